// How long Chromium takes to show the list of traces of a page of `stk report`, and the flame graph of all of them.
//
//   node report-many.mjs PLAYWRIGHT PAGE [ROUNDS]

import { statSync } from "node:fs";
import { loadavg, cpus } from "node:os";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "../tests/viewers/chromium.mjs";
import { print } from "./times.mjs";

const [playwright, path, rounds = "5"] = process.argv.slice(2);
const browser = await launch(playwright);
const ready = (page, hash) => page.waitForFunction((hash) => document.body.dataset.ready === hash, hash, { timeout: 120000, polling: 5 });
const painted = [], listed = [], opened = [], together = [];
let traces = 0;
for (let round = 0; round < Number(rounds); round++) {
  const page = await browser.newPage({ viewport: { width: 1440, height: 900 } });
  await page.addInitScript(() => {
    new MutationObserver((_, observer) => {
      if (!document.querySelector("#view tr[data-trace]")) return;
      observer.disconnect();
      requestAnimationFrame(() => setTimeout(() => (window.listedAt = performance.now())));
    }).observe(document, { childList: true, subtree: true });
  });
  const begun = performance.now();
  await page.goto(pathToFileURL(resolve(path)).href);
  await ready(page, "#");
  opened.push(performance.now() - begun);
  await page.waitForFunction(() => window.listedAt);
  listed.push(await page.evaluate(() => window.listedAt));
  painted.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN));
  traces = await page.evaluate(() => document.querySelectorAll("#view tr[data-trace]").length);
  const asked = performance.now();
  await page.evaluate(() => (location.hash = "#v=flame"));
  await ready(page, "#v=flame");
  together.push(performance.now() - asked);
  await page.close();
}
console.log(`${traces} traces, page: ${(statSync(path).size / 1e6).toFixed(2)} MB; ${cpus().length} cores, load average ${loadavg()[0].toFixed(1)}; ${browser.version()}`);
print("first paint, by the browser's clock", painted);
print("list drawn, by the same clock", listed);
print("opened and read by the driver", opened);
print("from the click to the flame graph of all", together);
await browser.close();
