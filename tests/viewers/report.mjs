// Drives the page of `stk report` in Chromium, every view by clicks and keys: what it shows is what `stk stats --json`
// and `stk events --json` say, the selection drives every view and lives in the address, no request leaves, no name
// from a trace runs.
//
//   node report.mjs PLAYWRIGHT STK TRACES OUTPUTS [WORDS]     WORDS: only the tests whose names contain this
//
// TRACES: examples/traces. OUTPUTS: the folder with hostile.report.html of the test of outputs; screenshots go there.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./chromium.mjs";

const [playwright, stk, traces, outputs, words = ""] = process.argv.slice(2);
const files = ["busy.stk", "mixed.stk"].map((name) => join(traces, name));
const run = (...args) => execFileSync(stk, args, { stdio: ["ignore", "pipe", "ignore"], maxBuffer: 1 << 28 });
// Many traces: eight that are equal, one that is another.
mkdirSync(join(outputs, "lab"), { recursive: true });
const lab = Array.from({ length: 9 }, (_, i) => join(outputs, "lab", `${i}.stk`));
lab.forEach((path, i) => copyFileSync(files[i === 4 ? 1 : 0], path));
const rules = join(outputs, "names.rules");
writeFileSync(rules, "^plugin_|^use_plugins$ -> plugins\n^ntdll! -> system\n");
if (!process.env.STK_PAGES) {
  run("report", files[0], "--force", "-o", join(outputs, "report.html"));
  run("report", ...lab, "-y", traces, "--force", "-o", join(outputs, "many.report.html"));
  run("report", files[0], "--fold-recursion", "--force", "-o", join(outputs, "folded.report.html"));
  run("report", files[0], "--rules", rules, "--force", "-o", join(outputs, "rules.report.html"));
  run("report", files[0], "--source", join(traces, "../.."), "--force", "-o", join(outputs, "source.report.html"));
  files.forEach((file, i) => run("report", file, "--instructions", "--force", "-o", join(outputs, `code-${i}.report.html`)));
}
const stats = (...options) => JSON.parse(run("stats", "--json", "--top", "0", ...options)).traces;
const [busy, mixed] = stats(...files);
const [{ events: happened }] = JSON.parse(run("events", "--json", files[0])).traces;

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

/** Waits until lanes and flame charts of what is shown are drawn. */
const drawn = (page) => page.waitForFunction(() => {
  const { from, until } = shownTime();
  return !zoomBusy && !timeline.drawn && timeline.data && timeline.data.from <= from && timeline.data.until >= until;
});

/** The time that is shown, seconds. */
const shownSeconds = (page) => page.evaluate(() => Object.values(shownTime()).map((ns) => ns / 1e9));

/** The rows of the table of functions, with exact numbers. */
const functions = (page) => page.$$eval("#view tr[data-function]", (rows) => rows.map((row) => ({
  name: row.querySelector(".name").title,
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
    await page.keyboard.press("7");
    await settled(page, "v=waits");
    const waits = await page.$$eval("#view tbody tr", (rows) => rows.map((row) => [row.querySelector("button").textContent, ...[...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount))]));
    assert.deepEqual(waits, busy.waits.map(({ reason, weight_ns: ns, waits, longest_ns: longest }) => [reason, ns, waits, longest]));
  },

  async "source lines are those of annotate, and the menu leads to them"() {
    const page = await open("source.report.html");
    const [{ parts }] = JSON.parse(run("annotate", files[0], ".", "--top", "0", "--source", join(traces, "../.."), "--json")).traces;
    const numberOf = (name) => page.evaluate((name) => shown.facts.functions.names.indexOf(name), name);
    for (const name of ["leaf_divide", "leaf_shuffle"]) {
      await go(page, `#f=${await numberOf(name)}&v=functions`);
      await page.click(`tr[data-function="${await numberOf(name)}"] button`, { button: "right" });
      await page.click('#menu button:text("Source lines")');
      await settled(page, "v=source");
      const rows = await page.$$eval("#view tbody tr", (rows) => rows.map((row) => [Number(row.dataset.line), ...[...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount)), row.querySelector(".code").textContent]));
      const { lines } = parts.find((part) => part.function === name);
      const hit = rows.filter(([, self, total]) => self || total);
      assert.deepEqual(hit.map(([line, self, total]) => [line, self, total]), lines.map(({ line, self, total }) => [line ?? 0, self.weight_ns, total.weight_ns]), name);
      hit.forEach(([line, , , text], i) => line && assert.equal(text, lines[i].text ?? "", `${name}:${line}`));
      assert.ok(rows.length > hit.length, "the lines around them");
    }
    await page.close();
    const without = await open("report.html");
    assert.equal(await without.locator("#tab-source").count(), 0, "no such view without texts");
    await without.close();
  },

  async "instructions are those of annotate, and a click marks those of a line"() {
    let texts = 0;
    for (const i of [0, 1]) {
      const page = await open(`code-${i}.report.html`);
      // Addresses can have more digits than a number of JavaScript keeps.
      const json = String(run("annotate", files[i], ".", "--top", "0", "--instructions", "--json")).replace(/("address":\s*)(\d+)/g, '$1"$2"');
      const [{ parts }] = JSON.parse(json).traces;
      const hot = parts.filter(({ self, code }) => self.weight_ns && code.length).slice(0, 12);
      assert.ok(hot.length > 5);
      for (const { function: name, module, self, code } of hot) {
        const f = await page.evaluate(([name, module]) => {
          const { names, modules } = shown.facts.functions;
          return names.findIndex((of, f) => of === name && shown.facts.modules[modules[f]] === module);
        }, [name, module]);
        await go(page, `#f=${f}&v=source`);
        const rows = await page.$$eval("#view tr[data-address]", (rows) => rows.map((row) => [row.dataset.address, Number(row.dataset.line), ...[...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount)), row.lastElementChild.textContent]));
        const expected = code.flatMap(({ rows }) => rows).map(({ address, line, self, total, text, problem }) => [BigInt(address).toString(16), line ?? 0, self.weight_ns, total.weight_ns, text ?? `(${problem})`]);
        assert.deepEqual(rows, expected, name);
        assert.equal(rows.reduce((sum, [, , own]) => sum + own, 0), self.weight_ns, name);
        texts += code.flatMap(({ rows }) => rows).filter(({ text }) => text).length;
      }
      await page.close();
    }
    assert.ok(texts > 50, `${texts} instructions`);
    const page = await open("code-0.report.html");
    await go(page, `#f=${await page.evaluate(() => shown.facts.functions.names.indexOf("leaf_shuffle"))}&v=source`);
    const line = await page.$eval("#view tr[data-address][data-line]:not([data-line='0'])", ({ dataset }) => dataset.line);
    await page.click(`#view tr[data-line="${line}"]:not([data-address])`);
    const marked = await page.$$eval("#view tr.picked", (rows) => rows.map(({ dataset }) => [dataset.line, Boolean(dataset.address)]));
    assert.ok(marked.length > 1 && marked.every(([of]) => of === line) && marked.some(([, isCode]) => isCode) && marked.some(([, isCode]) => !isCode), JSON.stringify(marked));
    await page.close();
  },

  async "recursion is folded as --fold-recursion does, and a key shows it"(page) {
    const graph = (page) => page.evaluate(() => {
      const { fn, parent, weight, self } = flame.frames;
      const path = (i) => (i < 0 ? "" : `${path(parent[i])}>${fn[i] < 0 ? "others" : fullName(fn[i])}`);
      return [...fn].map((_, i) => [path(i), weight[i], self[i]]).sort(([a], [b]) => (a < b ? -1 : 1));
    });
    await go(page, "#my=0");
    const folded = await graph(page);
    const totals = await page.evaluate(() => answer.trusted);
    await page.keyboard.press("o");
    await settled(page, "once=0");
    const whole = await graph(page);
    assert.deepEqual(await page.evaluate(() => answer.trusted), totals, "what can be trusted does not depend on folding");
    const other = await open("folded.report.html");
    await go(other, "#my=0&once=0");
    const expected = await graph(other);
    assert.deepEqual(folded.map(([path]) => path), expected.map(([path]) => path));
    folded.forEach(([path, ...amounts], i) => amounts.forEach((amount, at) => near(amount, expected[i][at + 1], path)));
    const deepest = (graph) => Math.max(...graph.map(([path]) => path.split(">").length));
    assert.ok(deepest(whole) > 100 && deepest(folded) < 30, `${deepest(whole)}, ${deepest(folded)}`);
    await go(page, "#my=0&v=functions");
    await go(other, "#my=0&once=0&v=functions");
    const sums = async (page) => (await functions(page)).map(({ name, module, amounts: [self, total] }) => [name, module, Math.round(self), Math.round(total)]).sort();
    assert.deepEqual(await sums(page), await sums(other));
    await other.close();
    await page.goBack();
    await settled(page, "once=0");
    assert.deepEqual(await graph(page), whole);
  },

  async "a search counts, leads from hit to hit, and filters with Ctrl Enter"(page) {
    const leaf = busy.functions_by_total.find(({ function: name }) => name === "leaf_divide");
    await page.keyboard.press("/");
    await page.keyboard.type("leaf_div");
    await settled(page, "find=leaf_div");
    await page.keyboard.type("ide");
    await settled(page, "find=leaf_divide");
    const found = await page.$eval("#found", ({ dataset, textContent }) => ({ ...dataset, text: textContent }));
    assert.equal(found.functions, "1");
    near(Number(found.weight), leaf.total.weight_ns, "the weight of what is found");
    assert.match(found.text, /^1 function, .* · hit 1 of 1/);
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns, "looking for something selects nothing");
    assert.equal(await page.evaluate(() => nameOf(flame.frames.fn[flame.cursor])), "leaf_divide", "it leads to the hit");
    await page.keyboard.press("Control+Enter");
    await settled(page, "q=leaf_divide");
    near((await selected(page)).weight, leaf.total.weight_ns, "the filter's time");
    assert.match(await page.textContent("#selection"), /% of the total/);
    await page.goBack();
    await settled(page, "find=", "q=");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
    // Several functions: from hit to hit, and round.
    await go(page, "#find=plugin_");
    await page.focus("#search");
    const hits = await page.evaluate(() => hits().length);
    assert.ok(hits > 2, `${hits} hits`);
    const at = async () => (await page.textContent("#found")).match(/hit (\d+) of/)[1];
    for (const expected of ["2", "3"]) {
      await page.keyboard.press("Enter");
      assert.equal(await at(), expected);
    }
    for (const expected of ["2", "1", String(hits)]) {
      await page.keyboard.press("Shift+Enter");
      assert.equal(await at(), expected);
    }
    await page.keyboard.press("Escape");
    await settled(page, "", "find=");
    // In the call tree, a hit is opened and has the cursor.
    await go(page, "#v=tree&find=plugin_b_work");
    await page.focus("#search");
    await page.keyboard.press("Enter");
    await page.waitForSelector("tr.hit");
    assert.match(await page.textContent("tr.hit"), /plugin_b_work/);
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
    const choose = async (item) => {
      await page.mouse.click(canvas.x + 40, canvas.y + 30, { button: "right" });
      await page.click(`#menu button:text("${item}")`);
    };
    await choose("Focus");
    await settled(page, "focus=");
    const focused = await selected(page);
    assert.ok(focused.weight > 0 && focused.weight < focused.whole);
    await page.goBack();
    await settled(page, "", "focus=");
    await choose("Hide");
    await settled(page, "hide=");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns, "what is hidden still counts");
    await page.click(".chip");
    await settled(page, "", "hide=");
    await choose("Callers and callees");
    await settled(page, "v=around");
    const expected = busy.functions_by_total.find(({ function: name }) => name === "use_plugins");
    assert.equal(await page.textContent("#view h2"), expected.function);
    const subject = await page.$eval("#view .subject", ({ dataset }) => [Number(dataset.weight), Number(dataset.self)]);
    near(subject[0], expected.total.weight_ns, "with its callees");
    // Both trees begin with the function; what it calls has at most its weight.
    const amounts = await page.$$eval("#view [data-tree]", (trees) => trees.map((tree) => [...tree.querySelectorAll("tr[data-path]")].map((row) => [Number(row.getAttribute("aria-level")), Number(row.querySelector("[data-amount]").dataset.amount)])));
    assert.equal(amounts.length, 2);
    for (const tree of amounts) near(tree[0][1], expected.total.weight_ns, "the root of a tree");
    const callees = amounts[1].filter(([level]) => level === 2).reduce((sum, [, amount]) => sum + amount, 0);
    near(callees + subject[1], expected.total.weight_ns, "its callees and its own part");
    // With all code, its callers are all of it too.
    await go(page, "#my=0&v=around&f=" + (await page.evaluate(() => state.fn)));
    await page.focus('#view [data-tree*="callersOf"] tr[tabindex="0"]');
    const callers = await page.$$eval('#view [data-tree*="callersOf"] tr[aria-level="2"] td:nth-child(2)', (cells) => cells.map(({ dataset }) => Number(dataset.amount)));
    near(callers.reduce((sum, amount) => sum + amount, 0), expected.total.weight_ns, "its callers");
  },

  async "the call tree is opened by keys and adds up to stats"(page) {
    await page.keyboard.press("2");
    await settled(page, "v=tree");
    const rows = () => page.$$eval("#view tr[data-path]", (rows) => rows.map((row) => ({ path: row.dataset.path, level: Number(row.getAttribute("aria-level")), open: row.getAttribute("aria-expanded"), name: row.querySelector(".name").textContent, amounts: [...row.querySelectorAll("[data-amount]")].map(({ dataset }) => Number(dataset.amount)), cursor: row.tabIndex === 0 })));
    const first = await rows();
    assert.ok(first.some(({ level }) => level > 1), "the heaviest path is open");
    near(first.filter(({ level }) => level === 1).reduce((sum, { amounts: [weight] }) => sum + weight, 0), busy.totals.cpu_ns - (await page.evaluate(() => answer.functions.folded)), "the roots");
    await page.focus('#view tr[tabindex="0"]');
    await page.keyboard.press("ArrowLeft");
    await page.waitForFunction(() => document.querySelector('#view tr[tabindex="0"]').getAttribute("aria-expanded") === "false");
    assert.ok((await rows()).every(({ level }) => level === 1), "closed");
    await page.keyboard.press("*");
    await page.waitForFunction(() => document.querySelectorAll('#view tr[aria-level="3"]').length > 0);
    const opened = await rows();
    // Of each open row: its own part and its callees are all of it.
    opened.forEach((row, i) => {
      if (row.open !== "true") return;
      const next = opened.findIndex((other, at) => at > i && other.level <= row.level);
      const callees = opened.slice(i + 1, next < 0 ? undefined : next).filter(({ level }) => level === row.level + 1);
      near(callees.reduce((sum, { amounts: [weight] }) => sum + weight, row.amounts[1]), row.amounts[0], row.name);
    });
    for (const key of ["ArrowDown", "ArrowDown", "ArrowUp"]) await page.keyboard.press(key);
    assert.equal((await rows()).findIndex(({ cursor }) => cursor), 1);
    assert.ok(await page.evaluate(() => document.activeElement.matches('tr[tabindex="0"]')), "the focus follows the cursor");
    await page.keyboard.press("End");
    assert.ok((await rows()).at(-1).cursor);
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowRight");
    assert.ok((await rows())[1].cursor, "an open row leads to its first callee");
    await page.keyboard.press("ArrowLeft");
    // Callers below the functions that stacks end in: their weights are the self times.
    await go(page, "#v=tree&inv=1&my=0");
    const leaves = (await rows()).filter(({ level }) => level === 1);
    const byName = (list, name) => list.filter((other) => other.name === name).reduce((sum, { weight }) => sum + weight, 0);
    const selves = busy.functions_by_self.map(({ function: name, self }) => ({ name, weight: self.weight_ns }));
    const shownLeaves = leaves.map(({ name, amounts: [weight] }) => ({ name, weight }));
    for (const name of ["rotate_and_add", "plugin_b_work", "leaf_divide"]) near(byName(shownLeaves, name), byName(selves, name), name);
    near(shownLeaves.reduce((sum, { weight }) => sum + weight, 0), busy.totals.cpu_ns, "all leaves");
    await page.focus('#view tr[tabindex="0"]');
    await page.keyboard.press("Enter");
    await settled(page, "v=around");
    await page.goBack();
    await settled(page, "v=tree");
  },

  async "functions have the names of rules, with the sums of stats"() {
    const page = await open("rules.report.html");
    await go(page, "#v=functions&my=0");
    const rows = await functions(page);
    const [named] = stats(files[0], "--rules", rules);
    for (const name of ["plugins", "system"]) {
      const { self, total } = named.functions_by_total.find((row) => row.function === name);
      const found = rows.find((row) => row.name === name);
      [self, total].forEach(({ weight_ns: ns }, i) => near(found.amounts[i], ns, name));
    }
    assert.ok(!rows.some((row) => row.name.startsWith("plugin_")));
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
    await page.close();
  },

  async "modules and threads are those of stats"(page) {
    await go(page, "#v=modules&my=0");
    const modules = await page.$$eval("#view tr[data-module]", (rows) => rows.map((row) => [row.dataset.module, ...[...row.querySelectorAll("[data-amount]")].map(({ dataset }) => Number(dataset.amount))]));
    // stats lists the modules that have a part of their own.
    assert.deepEqual(modules.filter(([, self]) => self > 0).map(([name]) => name).sort(), busy.modules.map(({ module }) => module).sort());
    for (const { module, self, total } of busy.modules) {
      const [, own, all] = modules.find(([name]) => name === module);
      near(own, self.weight_ns, `${module}, self`);
      near(all, total.weight_ns, `${module}, on the stack`);
    }
    await page.keyboard.press("6");
    await settled(page, "v=threads");
    const threads = await page.$$eval("#view tbody tr[data-thread]", (rows) => rows.map((row) => [Number(row.dataset.thread), row.querySelector(".name").textContent, ...[...row.querySelectorAll("[data-amount]")].map(({ dataset }) => Number(dataset.amount))]));
    assert.equal(threads.length, busy.threads.length);
    for (const { tid, name, cpu_ns: cpu, all } of busy.threads) {
      const found = threads.filter(([id, text]) => id === tid && text === name);
      assert.ok(found.some(([, , a, b, samples]) => Math.abs(a - cpu) < 2 && Math.abs(b - all.weight_ns) < 2 && samples === all.samples), `${name} (${tid}): ${JSON.stringify(found)}`);
    }
    await page.click(`#view tbody button:text-is("${busy.threads[0].name}")`);
    await settled(page, "th=");
    near((await selected(page)).weight, busy.threads[0].cpu_ns, "the thread is selected");
  },

  async "events are those of stk events"(page) {
    await page.keyboard.press("8");
    await settled(page, "v=events");
    const list = await page.evaluate(() => shown.facts.events.times.map((time, i) => [time, kindOf(i)]).filter(([, kind]) => !["gap", "rate"].includes(kind)));
    assert.ok(happened.length > 100);
    const order = ([a, b], [c, d]) => a - c || (b < d ? -1 : 1);
    assert.deepEqual(list.sort(order), happened.map(({ time_ns: time, kind }) => [time, kind]).sort(order));
    const rows = () => page.$$eval("#view tr[data-event]", (rows) => rows.length);
    const gaps = await page.evaluate(() => shown.facts.events.times.length) - happened.length;
    assert.equal(await rows(), Math.min(200, happened.length + gaps));
    const loads = happened.filter(({ kind }) => kind === "load").length;
    await page.click('#view button:text-is("load ' + loads + '")');
    assert.equal(await rows(), Math.min(200, happened.length + gaps - loads));
    await page.click('#view button:text-is("load ' + loads + '")');
    // A click on its time shows it on the timeline.
    await page.click("#view tr[data-event] button >> nth=50");
    await settled(page, "at=");
    const time = await page.evaluate(() => shown.facts.events.times[50] / 1e9), [from, until] = await shownSeconds(page);
    assert.ok(from <= time && time <= until && until - from < 1.5, `${from} to ${until}`);
    await page.goBack();
    await settled(page, "", "at=");
  },

  async "the timeline zooms by wheel, keys, buttons and the minimap"(page) {
    await drawn(page);
    const all = (await shownSeconds(page))[1];
    const lane = await (await page.$("#rows .total .lane")).boundingBox();
    const place = 0.25, x = lane.x + place * lane.width;
    await page.mouse.move(x, lane.y + 10);
    for (let i = 0; i < 6; i++) await page.mouse.wheel(0, -100);
    await settled(page, "at=");
    const [from, until] = await shownSeconds(page);
    assert.ok(Math.abs((until - from) / all - 0.25) < 0.02, `a quarter: ${until - from}`);
    assert.ok(Math.abs(from + place * (until - from) - place * all) < 0.01 * all, "what is under the pointer stays there");
    await drawn(page);
    // Sideways it pans, and the same time is as long as before.
    await page.mouse.wheel(200, 0);
    await page.waitForFunction((from) => shownTime().from / 1e9 > from + 0.1, from);
    const [next, end] = await shownSeconds(page);
    assert.ok(Math.abs(end - next - (until - from)) < 1e-6);
    // The minimap: a drag of what is shown moves it.
    const map = await (await page.$("#minimap")).boundingBox();
    const middle = map.x + (map.width * (next + end)) / 2 / all;
    await page.mouse.move(middle, map.y + 8);
    await page.mouse.down();
    await page.mouse.move(middle + map.width / 4, map.y + 8, { steps: 3 });
    await page.mouse.up();
    await page.waitForFunction((from) => shownTime().from / 1e9 > from, next + all / 5);
    await page.keyboard.press("r");
    await settled(page, "", "at=");
    assert.deepEqual(await shownSeconds(page), [0, all]);
    // z shows the selected time alone, and Back shows all of it again.
    await go(page, "#t=1-2");
    await page.keyboard.press("z");
    await settled(page, "at=");
    assert.deepEqual(await shownSeconds(page), [1, 2]);
    await page.goBack();
    await settled(page, "t=", "at=");
    await page.keyboard.press("+");
    await settled(page, "at=");
    assert.ok(Math.abs((await shownSeconds(page))[1] - 0.75 * all) < 1e-6);
    await page.click('#timeline button:text-is("All")');
    await settled(page, "", "at=");
  },

  async "the timeline takes at most 40 % of the height, and folds"(page) {
    await drawn(page);
    const height = () => page.$eval("#timeline", ({ offsetHeight }) => offsetHeight);
    assert.ok((await height()) <= 360, `${await height()} pixels of 900`);
    await page.click('#timeline button:has-text("idle thread")');
    assert.ok((await page.$$("#timeline .idle .row")).length > 20);
    await page.keyboard.press("l");
    assert.ok((await height()) < 170, `${await height()} pixels, folded`);
    assert.ok(await page.isVisible("#rows .total"));
    await page.click(".title");
    assert.ok((await height()) > 200);
    // The axis, the total and the lanes of threads are one below the other.
    const lefts = await page.$$eval("#timeline .lane", (lanes) => lanes.map((lane) => lane.getBoundingClientRect()).map(({ left, right }) => [left, right]));
    for (const [left, right] of lefts) assert.ok(Math.abs(left - lefts[0][0]) < 1 && Math.abs(right - lefts[0][1]) < 1, JSON.stringify(lefts));
  },

  async "a thread's flame chart has the stacks and sums of stats"(page) {
    const thread = busy.threads[0];
    await page.click(`#rows canvas[data-thread="${await page.evaluate((tid) => shown.facts.threads.findIndex((thread) => thread.tid === tid), thread.tid)}"]`);
    await settled(page, "ch=");
    await drawn(page);
    const t = await page.evaluate(() => state.charts[0]);
    const sums = (from, until, path = []) => page.evaluate(([thread, from, until, path]) => ask({ ask: "box", selection: answer.selection, thread, from, until, path }), [t, from, until, path]);
    const end = await page.evaluate(() => shown.end);
    const whole = await sums(0, end);
    near(whole.cpu, thread.cpu_ns, "its CPU time");
    near(whole.wall, thread.all.weight_ns, "its time");
    near(whole.waiting, thread.states.waiting.weight_ns, "its waits");
    assert.equal(whole.samples, thread.all.samples);
    const parts = await Promise.all([[0, 1.5e9], [1.5e9, 3.3e9], [3.3e9, end]].map(([from, until]) => sums(from, until)));
    near(parts.reduce((sum, { cpu }) => sum + cpu, 0), thread.cpu_ns, "three parts");
    // Boxes do not overlap nor leave their callers, and those of the outermost depth cover what the thread's samples do.
    const checked = await page.evaluate((t) => {
      const { boxes: { fn, x, wide, depth, parent }, rows } = dataOf(t);
      let covered = 0;
      const problems = [];
      for (const row of rows) row.forEach((box, at) => {
        if (at && x[box] < x[row[at - 1]] + wide[row[at - 1]] - 1) problems.push(`${box} overlaps`);
        if (parent[box] >= 0 && (depth[parent[box]] !== depth[box] - 1 || x[box] < x[parent[box]] - 1 || x[box] + wide[box] > x[parent[box]] + wide[parent[box]] + 1)) problems.push(`${box} leaves its caller`);
        if (depth[box] === 0) covered += wide[box];
      });
      return { problems, covered, boxes: fn.length, names: [...new Set([...fn].map((f) => fullName(f)))] };
    }, t);
    assert.deepEqual(checked.problems, []);
    assert.ok(Math.abs(checked.covered - thread.all.weight_ns) < 0.01 * thread.all.weight_ns, `${checked.covered} of ${thread.all.weight_ns}`);
    for (const name of ["use_plugins", "plugin_b_work", "plugin_a_work"]) assert.ok(checked.names.includes(name), `${name} of ${checked.names}`);
    // Close up, each row of samples is drawn as it is: the boxes of a function have its time.
    await go(page, `#ch=${t}&my=0&at=1-1.4`);
    await drawn(page);
    const exact = await page.evaluate(async (t) => {
      const { boxes: { fn, x, wide }, rows } = dataOf(t);
      const f = [...fn].find((f) => fullName(f) === "use_plugins");
      const boxes = [...fn.keys()].filter((box) => fn[box] === f), first = boxes[0];
      const path = stackOfBox(dataOf(t), first);
      const asked = await ask({ ask: "box", selection: answer.selection, thread: t, from: timeline.data.from, until: timeline.data.until, path });
      return { drawn: boxes.reduce((sum, box) => sum + wide[box], 0), wall: asked.wall, depth: rows.length };
    }, t);
    near(exact.drawn, exact.wall, "the time of use_plugins");
    assert.ok(exact.depth > 4);
  },

  async "a flame chart is moved in by keys, clicks and drags, and Back undoes them"(page) {
    const t = await page.evaluate((tid) => shown.facts.threads.findIndex((thread) => thread.tid === tid), busy.threads[0].tid);
    await page.keyboard.press("s");
    await settled(page, `ch=${t}`);
    await drawn(page);
    await page.focus(`#chart-${t}`);
    for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"]) await page.keyboard.press(key);
    assert.equal(await page.evaluate(() => charts.cursor.data.boxes.depth[charts.cursor.box]), 1);
    for (const key of ["ArrowDown", "ArrowDown", "Enter"]) await page.keyboard.press(key);
    await settled(page, "at=");
    const [from, until] = await shownSeconds(page);
    assert.ok(until - from < 8, "the box is shown alone");
    assert.ok(await page.evaluate((id) => document.activeElement.id === id, `chart-${t}`), "the focus stays");
    await page.keyboard.press("Escape");
    await page.waitForFunction((length) => (shownTime().until - shownTime().from) / 1e9 > 1.5 * length, until - from);
    await page.goBack();
    await page.waitForFunction((from) => Math.abs(shownTime().from / 1e9 - from) < 1e-6, from);
    await page.goBack();
    await settled(page, "ch=", "at=");
    // A click on a box, and a drag to the side.
    await drawn(page);
    const chart = await (await page.$(`#chart-${t}`)).boundingBox();
    await page.mouse.click(chart.x + chart.width / 2, chart.y + 8);
    await page.waitForTimeout(100);
    await go(page, `#ch=${t}&at=2-3`);
    await drawn(page);
    await page.mouse.move(chart.x + chart.width / 2, chart.y + 8);
    await page.mouse.down();
    await page.mouse.move(chart.x + chart.width / 4, chart.y + 8, { steps: 4 });
    await page.mouse.up();
    await page.waitForFunction(() => Math.abs(shownTime().from / 1e9 - 2.25) < 0.01);
    await page.mouse.move(chart.x + chart.width / 2, chart.y + 8);
    await page.waitForFunction(() => /with this stack/.test(document.getElementById("tooltip").textContent));
    await page.click(`#timeline [data-chart="${t}"]`);
    await settled(page, "", "ch=");
  },

  async "colours follow the choice, and total columns the selection"(page) {
    const colour = () => page.evaluate(() => chosenColour(flame.frames.fn[0], 0));
    const seen = new Set([await colour()]);
    for (const choice of ["category", "thread", "heat"]) {
      await page.keyboard.press("k");
      await settled(page, `c=${choice}`);
      if (choice !== "category") seen.add(await colour());
    }
    assert.equal(seen.size, 3);
    // The thread that has all of a function's weight gives its colour.
    const owners = await page.evaluate(() => answer.threadOf && [...answer.threadOf].map((t, f) => [fullName(f), t < 0 ? null : shown.facts.threads[t].tid]).filter(([name]) => ["leaf_divide", "plugin_a_work"].includes(name)));
    await go(page, "#c=thread&my=0");
    const now = await page.evaluate(() => Object.fromEntries([...answer.threadOf].map((t, f) => [fullName(f), t < 0 ? null : shown.facts.threads[t].name])));
    assert.equal(now.leaf_divide, "leaf loops", JSON.stringify(owners));
    assert.equal(now.plugin_a_work, "plugins");
    assert.equal(now.RtlUserThreadStart, null, "several threads");
    await go(page, "#v=functions");
    const columns = () => page.$eval("#view tbody tr", (row) => row.children.length);
    assert.equal(await columns(), 6);
    await go(page, "#v=functions&t=1-2");
    assert.equal(await columns(), 8);
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
    await page.keyboard.press("9");
    await settled(page, "v=quality");
    const text = await page.textContent("#view");
    for (const part of ["2 times sampler woke late", "stk symbols fetch", "ntdll.dll", "thread-start"]) assert.ok(text.includes(part), part);
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
    for (const hash of ["#t=2-1", "#f=99999999&v=around", "#z=1.2.99999999", "#th=9999", "#at=99-100", "#at=1-x", "#ch=9999", "#c=toString", "#find=%2F(%2F", "#v=tree&z=1", "#wait=77", "#q=%E0%A4%A", "#p=9", "#v=constructor", "#sort=toString&v=functions", "#s=", "#q=%2F(%2F"]) {
      await page.evaluate((hash) => (location.hash = hash), hash);
      await page.waitForTimeout(150);
    }
    await page.keyboard.press("r");
    await go(page, "#v=flame");
    assert.equal((await selected(page)).weight, busy.totals.cpu_ns);
  },
};

/** The sum of a number of all traces. */
const sumOf = (all, get) => all.reduce((sum, trace) => sum + get(trace), 0);

/** By key: the sums of the rows of all traces. */
function sumsBy(rows, key, amounts) {
  const sums = new Map();
  for (const row of rows) sums.set(key(row), amounts(row).map((amount, i) => amount + (sums.get(key(row))?.[i] ?? 0)));
  return sums;
}

const testsOfMany = {
  async "the list of traces has the figures of stats and marks what stands out"(page) {
    assert.equal(await page.evaluate(() => shown), null, "no trace is unpacked for it");
    const all = stats(...lab, "-y", traces);
    const rows = await page.$$eval("#view tr[data-trace]", (rows) => rows.map((row) => ({ trace: Number(row.dataset.trace), name: row.querySelector(".name").title, text: row.textContent, amounts: [...row.querySelectorAll("[data-amount]")].map(({ dataset }) => Number(dataset.amount)), tags: [...row.querySelectorAll(".tag")].map((tag) => tag.textContent), marked: row.querySelectorAll(".out").length })));
    assert.deepEqual(rows.map(({ trace }) => trace), [4, 0, 1, 2, 3, 5, 6, 7, 8], "what stands out comes first");
    const measures = ({ totals, states }) => [totals.cpu_ns / totals.duration_ns, states.waiting.weight_ns / totals.weight_ns, totals.missed_share, totals.complete_share];
    for (const { trace, name, text, amounts } of rows) {
      const { totals, source, process, pid, host } = all[trace], [cpu, waits, missed, complete] = measures(all[trace]);
      assert.equal(name, source);
      for (const part of [process, String(pid), host]) assert.ok(text.includes(part), `${part}: ${text}`);
      [totals.cpu_ns, cpu, waits, totals.samples, missed, complete].forEach((expected, i) => near(amounts[i], expected, `${name} ${i}`));
    }
    // The median is that of the equal ones, whose distance from it is nothing: a hundredth is the least.
    const [usual, other] = [busy, mixed].map(measures);
    const far = other.map((share, i) => (share - usual[i]) / 0.01).filter((distance) => Math.abs(distance) > 3.5);
    assert.ok(far.length > 1);
    const shownFar = rows[0].tags.map((tag) => Number(tag.replace("−", "-").match(/([+-][\d.]+)×/)[1]));
    assert.deepEqual(shownFar.map((distance) => distance.toPrecision(3)).sort(), far.map((distance) => distance.toPrecision(3)).sort());
    assert.equal(rows[0].marked, far.length);
    assert.ok(rows.slice(1).every(({ tags, marked }) => !tags.length && !marked));
    await page.click('th button:text("Samples")');
    await settled(page, "sort=samples");
    assert.equal(await page.$eval("#view tr[data-trace]", (row) => row.dataset.trace), String(mixed.totals.samples > busy.totals.samples ? 4 : 0));
  },

  async "the views of all traces add up to stats"(page) {
    const all = stats(...lab, "-y", traces);
    await page.keyboard.press("2");
    await settled(page, "v=flame");
    const { weight, samples } = await selected(page);
    near(weight, sumOf(all, ({ totals }) => totals.cpu_ns), "CPU time");
    assert.equal(samples, sumOf(all, ({ totals }) => totals.samples));
    near(await page.evaluate(() => flame.all), weight, "the flame graph");
    const trusted = await page.evaluate(() => answer.trusted);
    near(trusted.proved, sumOf(all, ({ totals }) => totals.trusted.proved_ns), "proved");
    near(trusted.named, sumOf(all, ({ totals }) => totals.trusted.named_ns), "named");
    near(trusted.exported, sumOf(all, ({ totals }) => totals.trusted.export_ns), "named after exports");
    await go(page, "#v=functions&my=0");
    for (let more; (more = await page.$("#view .further button")); ) await more.click();
    const key = ({ module, name, function: own }) => `${module}!${own ?? name}`;
    const found = sumsBy(await functions(page), key, ({ amounts }) => amounts);
    const expected = sumsBy(all.flatMap((trace) => trace.functions_by_total), key, ({ self, total }) => [self.weight_ns, total.weight_ns]);
    assert.ok(expected.size > 100 && [...expected.keys()].some((name) => name.startsWith("mixed.dll!")));
    for (const [name, amounts] of expected) {
      // A function of no weight has no row.
      if (amounts[1] > 0) amounts.forEach((amount, i) => near((found.get(name) ?? [])[i], amount, name));
    }
    await go(page, "#v=modules&my=0");
    const modules = await page.$$eval("#view tr[data-module]", (rows) => rows.map((row) => [row.dataset.module, ...[...row.querySelectorAll("[data-amount]")].map(({ dataset }) => Number(dataset.amount))]));
    for (const [module, [own, total]] of sumsBy(all.flatMap((trace) => trace.modules), ({ module }) => module, ({ self, total }) => [self.weight_ns, total.weight_ns])) {
      const row = modules.find(([name]) => name === module);
      if (total > 0) [own, total].forEach((amount, i) => near(row[i + 1], amount, module));
    }
    await go(page, "#v=threads");
    assert.equal(await page.$eval("#view tr.sum", (row) => row.children[1].textContent), `${sumOf(all, ({ totals }) => totals.threads)} threads`);
    await go(page, "#v=waits");
    const waits = await page.$$eval("#view tbody tr", (rows) => rows.map((row) => [row.querySelector("button").textContent, ...[...row.querySelectorAll("[data-amount]")].map((cell) => Number(cell.dataset.amount))]));
    const longest = (reason) => Math.max(...all.flatMap((trace) => trace.waits).filter((wait) => wait.reason === reason).map((wait) => wait.longest_ns));
    const expectedWaits = [...sumsBy(all.flatMap((trace) => trace.waits), ({ reason }) => reason, (wait) => [wait.weight_ns, wait.waits])].map(([reason, [ns, number]]) => [reason, ns, number, longest(reason)]);
    assert.deepEqual(waits.sort(), expectedWaits.sort());
    await go(page, "#v=tree&inv=1&my=0");
    const leaves = await page.$$eval('#view tr[aria-level="1"] td:nth-child(2)', (cells) => cells.map(({ dataset }) => Number(dataset.amount)));
    near(leaves.reduce((sum, amount) => sum + amount, 0), weight, "the leaves of the tree");
    // Without a time line its keys do nothing.
    for (const key of ["z", "+", "-", "s", "l"]) await page.keyboard.press(key);
    assert.ok(!(await page.isVisible("#timeline")));
  },

  async "a click leads into a trace, and Back to the list"(page) {
    await page.click("#view tr[data-trace] button");
    await settled(page, "p=4");
    assert.equal((await selected(page)).weight, mixed.totals.cpu_ns);
    assert.match(await page.title(), /^mixed\.exe/);
    assert.ok(await page.isVisible("#timeline"));
    await page.goBack();
    await settled(page, "", "p=4");
    assert.match(await page.title(), /^9 traces/);
    assert.ok(!(await page.isVisible("#timeline")) && (await page.isVisible("#view tr[data-trace]")));
    await page.selectOption("#process", "1");
    await settled(page, "p=1");
    assert.deepEqual((await selected(page)).weight, busy.totals.cpu_ns);
    await go(page, "#p=1&v=waits");
    await page.selectOption("#process", "-1");
    await settled(page, "v=waits", "p=1");
    await page.goBack();
    await settled(page, "p=1");
    assert.match(await page.title(), /^busy\.exe/);
    for (const hash of ["#v=events", "#v=traces&p=1", "#t=1-2&v=flame", "#ch=3&at=1-2&v=tree", "#p=99", "#p=x", "#sort=constructor"]) {
      await page.evaluate((hash) => (location.hash = hash), hash);
      await settled(page, hash);
    }
    await page.keyboard.press("t");
    assert.ok(await page.isVisible("#view tr[data-trace]"), "the list is drawn anew");
  },
};

async function drive(file, name, test) {
  const page = await open(file);
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

for (const [file, list] of [["report.html", tests], ["many.report.html", testsOfMany]]) {
  for (const [name, test] of Object.entries(list).filter(([name]) => name.includes(words))) await drive(file, name, test);
}

if (!words) {
  const hostile = await open("hostile.report.html");
  for (const hash of ["#my=0", "#my=0&v=functions", "#my=0&v=around&f=0", "#my=0&v=tree", "#my=0&v=modules&w=wall", "#v=threads", "#v=events", "#v=waits&w=wall", "#v=quality", "#q=%3Cimg", "#find=%3Cimg", "#my=0&ch=0&c=thread"]) {
    await hostile.evaluate((hash) => (location.hash = hash), hash);
    await settled(hostile, hash);
  }
  assert.equal(await hostile.evaluate(() => window.owned), undefined);
  await go(hostile, "#my=0&v=functions&w=wall");
  const shown = (await functions(hostile)).map(({ name }) => name);
  assert.ok(shown.some((name) => name.includes('<img src=x onerror="window.owned=1">')), `the name is text: ${shown}`);
  console.log("ok    names from a trace are text");
}

const narrow = { viewport: { width: 420, height: 900 } };
for (const [name, { file = "report.html", ...options }] of Object.entries({ light: {}, dark: { colorScheme: "dark" }, narrow, many: { file: "many.report.html" }, "many-narrow": { file: "many.report.html", ...narrow } })) {
  const page = await open(file, options);
  await page.screenshot({ path: join(outputs, `report-${name}.png`) });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.ok(wide <= 0, `${name}: the page is ${wide} pixels wider than its window`);
  await page.close();
}
await browser.close();
assert.deepEqual(problems, []);
console.log("the page was driven, no error was logged, and no request left it");
