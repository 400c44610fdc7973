// How large a page of `stk report` is, how long Chromium takes to open it and to search in it, and how many frames a
// second it draws while the timeline and a flame chart zoom and pan.
//
//   node report.mjs PLAYWRIGHT PAGE [ROUNDS]

import { statSync } from "node:fs";
import { loadavg, cpus } from "node:os";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "../tests/viewers/chromium.mjs";
import { median, print } from "./times.mjs";

const [playwright, path, rounds = "5"] = process.argv.slice(2);
const address = pathToFileURL(resolve(path)).href;
const browser = await launch(playwright);
const ready = (page, hash) => page.waitForFunction((hash) => document.body.dataset.ready === hash, hash, { timeout: 120000, polling: 5 });

/** Zooms or pans at each frame of the screen for two seconds: frames a second, and the longest time between two. */
const frames = (page, what) => page.evaluate((what) => new Promise((resolve) => {
  const lane = document.querySelector("#rows .total .lane"), { left, width, top } = lane.getBoundingClientRect();
  const times = [];
  let step = 0;
  const tick = (now) => {
    times.push(now);
    if (now - times[0] > 2000) {
      const gaps = times.slice(1).map((time, i) => time - times[i]);
      resolve({ rate: (1000 * gaps.length) / (now - times[0]), longest: Math.max(...gaps) });
      return;
    }
    // In and out, or to and fro.
    const forth = Math.floor(step++ / 60) % 2 === 0;
    const wheel = what === "zoom" ? { deltaY: forth ? -20 : 20 } : { deltaX: forth ? 20 : -20 };
    lane.dispatchEvent(new WheelEvent("wheel", { ...wheel, clientX: left + width * 0.4, clientY: top + 5, bubbles: true, cancelable: true }));
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}), what);

const opened = [], times = {}, rates = {}, longest = {}, boxes = [];
let facts;
for (let round = 0; round < Number(rounds); round++) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  const begun = performance.now();
  await page.goto(address);
  await ready(page, "#");
  opened.push(performance.now() - begun);
  facts ??= await page.evaluate(() => ({ rows: shown.rows, functions: shown.facts.functions.names.length, threads: shown.facts.threads.length, stacks: shown.facts.totals.distinct_stacks, samples: shown.facts.totals.samples, runs: shown.facts.runs }));
  const steps = { "search, one letter more": ["#find=fn_1", "#find=fn_10"], "search, another one": ["#find=engine"], "filter": ["#q=engine"], "a time range": ["#t=10-20"], "callers": ["#inv=1"], "my code off": ["#my=0"], "recursion shown": ["#once=0"], "callers of all code": ["#my=0&inv=1"], "function table": ["#v=functions"], "call tree": ["#v=tree&my=0"], "modules": ["#v=modules"], "threads": ["#v=threads"], "one function's callers": ["#v=around&f=17"] };
  for (const [name, hashes] of Object.entries(steps)) {
    for (const hash of hashes) {
      await page.evaluate((hash) => (location.hash = hash), hash);
      await ready(page, hash);
      (times[name] ??= []).push(Number(await page.evaluate(() => document.body.dataset.took)));
    }
  }
  for (const [name, hash] of Object.entries({ "timeline": "#at=2-8", "timeline and a flame chart of all code": "#at=2-8&ch=0&my=0" })) {
    await page.evaluate((hash) => (location.hash = hash), hash);
    await ready(page, hash);
    await page.waitForFunction(() => !zoomBusy);
    if (hash.includes("ch")) boxes.push(await page.evaluate(() => dataOf(0).boxes.fn.length));
    for (const what of ["zoom", "pan"]) {
      const { rate, longest: gap } = await frames(page, what);
      (rates[`${what} of ${name}`] ??= []).push(rate);
      (longest[`${what} of ${name}`] ??= []).push(gap);
    }
  }
  await page.close();
}
console.log(`${facts.samples.toLocaleString("en")} samples, ${facts.stacks.toLocaleString("en")} distinct stacks, ${facts.runs.toLocaleString("en")} runs as ${facts.rows.toLocaleString("en")} rows, ${facts.functions.toLocaleString("en")} functions, ${facts.threads} threads`);
console.log(`page: ${(statSync(path).size / 1e6).toFixed(2)} MB; ${cpus().length} cores, load average ${loadavg()[0].toFixed(1)}; ${browser.version()}`);
print("opened, drawn", opened);
for (const [name, list] of Object.entries(times)) print(`${name}, from the change of the address to the drawn page`, list);
for (const [name, list] of Object.entries(rates)) {
  print(name, list, "frames a second");
  print(`${name}, longest time between two frames`, longest[name]);
}
console.log(`boxes of the flame chart, with half a screen of margin on each side: ${median(boxes).toLocaleString("en")}`);
await browser.close();
