// Drives the page of `stk report` in Chromium: what it shows is what `stk stats --json` says, the selection
// drives every view and lives in the address, no request leaves, no name from a trace runs.
//
//   node report.mjs PLAYWRIGHT STK TRACES OUTPUTS
//
// TRACES: examples/traces. OUTPUTS: the folder with hostile.report.html of the test of outputs; screenshots go there.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./chromium.mjs";

const [playwright, stk, traces, outputs] = process.argv.slice(2);
const files = ["busy.stk", "mixed.stk"].map((name) => join(traces, name));
const run = (...args) => execFileSync(stk, args, { stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 28 });
run("report", ...files, "--force", "-o", join(outputs, "report.html"));
run("report", files[0], "--fold-recursion", "--force", "-o", join(outputs, "folded.report.html"));
const [busy, mixed] = JSON.parse(run("stats", "--json", "--top", "0", ...files)).traces;

const browser = await launch(playwright);
const problems = [];

async function open(name, options = {}) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 }, ...options });
  page.on("console", (message) => problems.push(`${name}: ${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => problems.push(`${name}: ${error.stack}`));
  page.on("request", (request) => {
    if (!/^(file|blob|data):/.test(request.url())) problems.push(`${name}: a request for ${request.url()}`);
  });
  page.on("dialog", (dialog) => {
    problems.push(`${name}: a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  await page.goto(pathToFileURL(join(outputs, name)).href);
  await settled(page, "");
  return page;
}

/** Waits until the page shows the selection of an address with this text. */
async function settled(page, text, without) {
  await page.waitForFunction(([text, without]) => {
    const { hash } = location;
    return document.body.dataset.ready === (hash || "#") && hash.includes(text) && (!without || !hash.includes(without));
  }, [text, without], { timeout: 60000 });
}

const selected = (page) => page.$eval("#selected", ({ dataset }) => ({ weight: Number(dataset.weight), whole: Number(dataset.whole), samples: Number(dataset.samples) }));

/** Numbers are sums of parts of numbers: they may differ in their last digits. */
const near = (a, b, what) => assert.ok(Math.abs(a - b) <= 1e-6 * Math.max(1, Math.abs(b)), `${what}: ${a}, expected ${b}`);

async function go(page, hash) {
  await page.evaluate((hash) => (location.hash = hash), hash);
  await settled(page, hash);
}

/** The rows of the table of functions, with exact numbers. */
const functions = (page) => page.$$eval("#view tr[data-function]", (rows) => rows.map((row) => ({
  name: row.querySelector(".name").textContent,
  module: row.querySelector(".module").textContent,
  amounts: [...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount)),
})));

const tests = {
  async "the whole trace has the sums of stats"(page) {
    const { weight, whole, samples } = await selected(page);
    assert.deepEqual([weight, whole, samples], [busy.totals.cpu_ns, busy.totals.cpu_ns, busy.totals.samples]);
    const lines = await page.$$eval("#answer .line", (lines) => lines.map((line) => line.textContent));
    assert.equal(lines.length, 3);
    assert.ok(lines[0].includes(`${((100 * busy.totals.cpu_ns) / busy.totals.duration_ns).toFixed(1)} % of one processor`), lines[0]);
    assert.ok(lines[0].includes(busy.functions_by_self[0].function), lines[0]);
    assert.ok(lines[1].includes(busy.waits[0].reason) && lines[1].includes(`${((100 * busy.states.waiting.weight_ns) / busy.totals.weight_ns).toFixed(1)} %`), lines[1]);
    assert.ok(lines[2].includes(`${(100 * busy.totals.missed_share).toFixed(1)} % missed`) && lines[2].includes(`${((100 * busy.totals.trusted.named_ns) / busy.counted_ns).toFixed(1)} % in functions named from symbols`), lines[2]);
  },

  async "functions and waits are those of stats"(page) {
    await go(page, "#v=functions&my=0");
    const rows = await functions(page);
    const expected = [...busy.functions_by_self, ...busy.functions_by_total];
    assert.ok(expected.length > 20 && rows.length > 20);
    for (const { function: name, module, self, total } of expected) {
      const found = rows.filter((row) => row.name === name && row.module.startsWith(module));
      assert.ok(found.some(({ amounts: [a, b] }) => Math.abs(a - self.weight_ns) < 1 && Math.abs(b - total.weight_ns) < 1), `${module}!${name}: ${JSON.stringify(found)}`);
    }
    assert.equal(rows[0].name, busy.functions_by_self[0].function, "sorted by self");
    await page.click('th button:text("With callees")');
    await settled(page, "sort=total");
    assert.ok((await functions(page))[0].amounts[1] === busy.functions_by_total[0].total.weight_ns);
    await page.keyboard.press("4");
    await settled(page, "v=waits");
    const waits = await page.$$eval("#view tbody tr", (rows) => rows.map((row) => [row.querySelector("button").textContent, ...[...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount))]));
    assert.deepEqual(waits, busy.waits.map(({ reason, weight_ns: ns, waits, longest_ns: longest }) => [reason, ns, waits, longest]));
  },

  async "recursion once is --fold-recursion, and Back shows it again"(page) {
    const graph = (page) => page.evaluate(() => {
      const { fn, parent, weight, self } = flame.frames;
      const path = (i) => (i < 0 ? "" : `${path(parent[i])}>${fn[i] < 0 ? "others" : nameOf(fn[i])}`);
      return [...fn].map((_, i) => [path(i), weight[i], self[i]]).sort(([a], [b]) => (a < b ? -1 : 1));
    });
    await go(page, "#my=0");
    const whole = await graph(page);
    await page.keyboard.press("o");
    await settled(page, "once=1");
    const folded = await graph(page);
    const other = await open("folded.report.html");
    await go(other, "#my=0");
    const expected = await graph(other);
    assert.deepEqual(folded.map(([path]) => path), expected.map(([path]) => path));
    folded.forEach(([path, ...amounts], i) => amounts.forEach((amount, at) => near(amount, expected[i][at + 1], path)));
    const deepest = (graph) => Math.max(...graph.map(([path]) => path.split(">").length));
    assert.ok(deepest(whole) > 100 && deepest(folded) < 30, `${deepest(whole)}, ${deepest(folded)}`);
    await go(page, "#my=0&once=1&v=functions");
    await go(other, "#my=0&v=functions");
    const sums = async (page) => (await functions(page)).map(({ name, module, amounts: [self, total] }) => [name, module, Math.round(self), Math.round(total)]).sort();
    assert.deepEqual(await sums(page), await sums(other));
    await other.close();
    await page.goBack();
    await page.goBack();
    await settled(page, "", "once");
    assert.deepEqual(await graph(page), whole);
  },

  async "a search selects the stacks that match, and Back takes it back"(page) {
    const leaf = busy.functions_by_total.find(({ function: name }) => name === "leaf_divide");
    await page.keyboard.press("/");
    await page.keyboard.type("leaf_div");
    await settled(page, "q=leaf_div");
    await page.keyboard.type("ide");
    await settled(page, "q=leaf_divide");
    near((await selected(page)).weight, leaf.total.weight_ns, "the search's time");
    assert.match(await page.textContent("#selection"), /% of the total/);
    await page.keyboard.press("Enter");
    await page.goBack();
    await settled(page, "", "q=");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
    // An expression of a link runs as long as whoever made it likes: it waits for a click.
    await go(page, "#q=%2F%5Eleaf_(divide%7Cnone)%24%2F");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
    await page.click("#run");
    await page.waitForSelector("#run", { state: "detached" });
    await settled(page, "q=");
    near((await selected(page)).weight, leaf.total.weight_ns, "an expression between slashes");
  },

  async "a drag selects a time, the halves add up, and Back undoes it"(page) {
    const lane = await (await page.$("#rows .total .lane")).boundingBox();
    await page.mouse.move(lane.x + lane.width / 4, lane.y + 20);
    await page.mouse.down();
    await page.mouse.move(lane.x + lane.width / 2, lane.y + 25, { steps: 4 });
    await page.mouse.up();
    await settled(page, "t=");
    const part = await selected(page);
    assert.ok(part.weight > 0 && part.weight < part.whole / 2, JSON.stringify(part));
    assert.ok(await page.isVisible("#brush"));
    await page.goBack();
    await settled(page, "", "t=");
    let sum = 0;
    for (const range of ["0-1.2345", "1.2345-1000"]) {
      await go(page, `#t=${range}`);
      sum += (await selected(page)).weight;
    }
    near(sum, busy.totals.cpu_ns, "both halves");
  },

  async "a click in the flame graph zooms, Escape and Back zoom out"(page) {
    const canvas = await (await page.$("#flame")).boundingBox();
    await page.mouse.click(canvas.x + 40, canvas.y + 30);
    await settled(page, "z=");
    assert.match(await page.textContent("#selection"), /zoomed: /);
    await page.goBack();
    await settled(page, "", "z=");
    await page.focus("#flame");
    for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
    await settled(page, "z=");
    await page.keyboard.press("Escape");
    await page.waitForFunction(() => !/z=\d+\.\d+/.test(location.hash));
  },

  async "callers and my-code are one key away"(page) {
    const top = () => page.evaluate(() => ({ all: answer.weight, sum: flame.rows[0].reduce((sum, i) => sum + flame.frames.weight[i], 0), names: flame.rows[0].map((i) => nameOf(flame.frames.fn[i])) }));
    const before = await top();
    assert.ok(!before.names.includes("RtlUserThreadStart"), "my code alone");
    await page.keyboard.press("m");
    await settled(page, "my=0");
    assert.ok((await top()).names.includes("RtlUserThreadStart"));
    await page.keyboard.press("i");
    await settled(page, "inv=1");
    assert.equal(await page.getAttribute("#inverted", "aria-pressed"), "true");
    const inverted = await top();
    near(inverted.sum, busy.totals.cpu_ns, "stacks end once");
    assert.equal(inverted.names[0], busy.functions_by_self[0].function);
    await page.keyboard.press("i");
    await settled(page, "", "inv=1");
    await page.keyboard.press("m");
    await settled(page, "", "my=0");
    // Recursion counts once: neither of the two functions that call each other has more than all.
    await go(page, "#v=functions");
    for (const { amounts } of await functions(page)) assert.ok(amounts[1] <= busy.totals.cpu_ns);
  },

  async "the menu focuses, hides and leads to callers and callees"(page) {
    const canvas = await (await page.$("#flame")).boundingBox();
    const open = async (item) => {
      await page.mouse.click(canvas.x + 40, canvas.y + 30, { button: "right" });
      await page.click(`#menu button:text("${item}")`);
    };
    await open("Focus");
    await settled(page, "focus=");
    const focused = await selected(page);
    assert.ok(focused.weight > 0 && focused.weight < focused.whole);
    await page.goBack();
    await settled(page, "", "focus=");
    await open("Hide");
    await settled(page, "hide=");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns, "what is hidden still counts");
    await page.click(".chip");
    await settled(page, "", "hide=");
    await open("Callers and callees");
    await settled(page, "v=around");
    const [, subject] = await page.$$eval("#view .subject, #view h2", (all) => all.map((one) => one.textContent));
    const expected = busy.functions_by_total.find(({ function: name }) => name === subject);
    const callees = await page.$$eval("#view .columns > div:last-child [data-amount]", (cells) => cells.reduce((sum, cell) => sum + Number(cell.dataset.amount), 0));
    const callers = await page.$$eval("#view .columns > div:first-child [data-amount]", (cells) => cells.reduce((sum, cell) => sum + Number(cell.dataset.amount), 0));
    near(callers, expected.total.weight_ns, "its callers");
    assert.ok(callees <= expected.total.weight_ns + 1);
  },

  async "states and threads are selected by a click"(page) {
    await page.click('#states button:text("Waiting")');
    await settled(page, "s=");
    assert.match(await page.textContent("#answer"), /Waits0 of/);
    await page.goBack();
    await settled(page, "", "s=");
    const thread = busy.threads[0];
    await page.click(`#rows button:text("${thread.name} (${thread.tid})")`);
    await settled(page, "th=");
    near((await selected(page)).weight, thread.cpu_ns, thread.name);
    await page.keyboard.press("r");
    await settled(page, "", "th=");
  },

  async "quality names what is missing and how to get it"(page) {
    await page.keyboard.press("5");
    await settled(page, "v=quality");
    const text = await page.textContent("#view");
    for (const part of ["2 times sampler woke late", "stk symbols fetch", "ntdll.dll", "thread-start"]) assert.ok(text.includes(part), part);
  },

  async "another process of the page is chosen"(page) {
    await page.selectOption("#process", "1");
    await settled(page, "p=1");
    assert.deepEqual((await selected(page)).weight, mixed.totals.cpu_ns);
    assert.match(await page.title(), /^mixed\.exe/);
    await page.goBack();
    await settled(page, "", "p=1");
    assert.match(await page.title(), /^busy\.exe/);
  },

  async "light and dark, by the system and by the button"(page) {
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const light = await ground();
    await page.emulateMedia({ colorScheme: "dark" });
    const dark = await ground();
    assert.notEqual(dark, light);
    await page.keyboard.press("t");
    assert.equal(await ground(), light);
    await page.keyboard.press("t");
    assert.equal(await ground(), dark);
  },

  async "the keys are listed, and broken addresses do no harm"(page) {
    await page.keyboard.press("?");
    assert.ok(await page.isVisible("#keys"));
    await page.keyboard.press("Escape");
    assert.ok(!(await page.isVisible("#keys")));
    for (const hash of ["#t=2-1", "#f=99999999&v=around", "#z=1.2.99999999", "#th=9999", "#wait=77", "#q=%E0%A4%A", "#p=9", "#v=constructor", "#sort=toString&v=functions", "#s=", "#q=%2F(%2F"]) {
      await page.evaluate((hash) => (location.hash = hash), hash);
      await page.waitForTimeout(150);
    }
    await page.keyboard.press("r");
    await go(page, "#v=flame");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
  },
};

for (const [name, test] of Object.entries(tests)) {
  const page = await open("report.html");
  try {
    await test(page);
    console.log(`ok    ${name}`);
  } catch (error) {
    problems.push(`${name}: failed`);
    console.log(`FAIL  ${name}\n${error.stack}`);
    await page.screenshot({ path: join(outputs, "failed.png") });
  }
  await page.close();
}

const hostile = await open("hostile.report.html");
for (const hash of ["#my=0", "#my=0&v=functions", "#my=0&v=around&f=0", "#v=waits&w=wall", "#v=quality", "#q=%3Cimg"]) {
  await hostile.evaluate((hash) => (location.hash = hash), hash);
  await settled(hostile, hash);
}
assert.equal(await hostile.evaluate(() => window.owned), undefined);
await go(hostile, "#my=0&v=functions&w=wall");
const shown = (await functions(hostile)).map(({ name }) => name);
assert.ok(shown.some((name) => name.includes('<img src=x onerror="window.owned=1">')), `the name is text: ${shown}`);
console.log("ok    names from a trace are text");

for (const [name, options] of Object.entries({ light: {}, dark: { colorScheme: "dark" }, narrow: { viewport: { width: 420, height: 900 } } })) {
  const page = await open("report.html", options);
  await page.screenshot({ path: join(outputs, `report-${name}.png`) });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `${name}: the page is ${wide} pixels wider than its window`);
  await page.close();
}
await browser.close();
assert.deepEqual(problems, []);
console.log("the page was driven, no error was logged, and no request left it");
