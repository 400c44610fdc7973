// How large a page of `stk report` is, and how long Chromium takes to open it and to search in it.
//
//   node report.mjs PLAYWRIGHT PAGE [ROUNDS]

import { statSync } from "node:fs";
import { loadavg, cpus } from "node:os";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "../tests/viewers/chromium.mjs";

const [playwright, path, rounds = "5"] = process.argv.slice(2);
const address = pathToFileURL(resolve(path)).href;
const browser = await launch(playwright);
const ready = (page, hash) => page.waitForFunction((hash) => document.body.dataset.ready === hash, hash, { timeout: 120000, polling: 5 });
const median = (list) => list.sort((a, b) => a - b)[Math.floor(list.length / 2)];
const told = (name, list) => console.log(`${name}: ${median(list).toFixed(0)} ms (${Math.min(...list).toFixed(0)} to ${Math.max(...list).toFixed(0)}, ${list.length} times)`);

const opened = [], times = {};
let facts;
for (let round = 0; round < Number(rounds); round++) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  const begun = performance.now();
  await page.goto(address);
  await ready(page, "#");
  opened.push(performance.now() - begun);
  facts ??= await page.evaluate(() => ({ rows: shown.rows, functions: shown.facts.functions.names.length, threads: shown.facts.threads.length, stacks: shown.facts.totals.distinct_stacks, samples: shown.facts.totals.samples, runs: shown.facts.runs }));
  const steps = { "search, one letter more": ["#q=fn_1", "#q=fn_10"], "search, another one": ["#q=engine"], "a time range": ["#t=10-20"], "callers": ["#inv=1"], "my code off": ["#my=0"], "callers of all code": ["#my=0&inv=1"], "function table": ["#v=functions"], "one function's callers": ["#v=around&f=17"] };
  for (const [name, hashes] of Object.entries(steps)) {
    for (const hash of hashes) {
      await page.evaluate((hash) => (location.hash = hash), hash);
      await ready(page, hash);
      (times[name] ??= []).push(Number(await page.evaluate(() => document.body.dataset.took)));
    }
  }
  await page.close();
}
console.log(`${facts.samples.toLocaleString("en")} samples, ${facts.stacks.toLocaleString("en")} distinct stacks, ${facts.runs.toLocaleString("en")} runs as ${facts.rows.toLocaleString("en")} rows, ${facts.functions.toLocaleString("en")} functions, ${facts.threads} threads`);
console.log(`page: ${(statSync(path).size / 1e6).toFixed(2)} MB; ${cpus().length} cores, load average ${loadavg()[0].toFixed(1)}; ${browser.version()}`);
told("opened, drawn", opened);
for (const [name, list] of Object.entries(times)) told(`${name}, from the change of the address to the drawn page`, list);
await browser.close();
