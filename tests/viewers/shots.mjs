// Pictures of the page of `stk report` for the documents: light, dark, narrow, a flame chart, a call tree.
//
//   node shots.mjs PLAYWRIGHT PAGE FOLDER

import assert from "node:assert/strict";
import { statSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./chromium.mjs";

/** A document shows no picture above this size. */
const LARGEST = 200_000;

const [playwright, file, folder] = process.argv.slice(2);
const wide = { width: 1280, height: 800 };
const chart = (name) => `#ch=${name}&at=1.0-3.2`;
const PICTURES = {
  "report-light": { viewport: wide, hash: () => "#" },
  "report-dark": { viewport: wide, colorScheme: "dark", hash: () => "#p=1" },
  "report-narrow": { viewport: { width: 480, height: 860 }, hash: () => "#" },
  "report-chart": { viewport: wide, hash: (threads) => chart(threads.findIndex(({ name }) => name === "plugins")) },
  "report-tree": { viewport: wide, hash: () => "#v=tree&find=plugin_" },
};

const browser = await launch(playwright);
for (const [name, { hash, ...options }] of Object.entries(PICTURES)) {
  const page = await browser.newPage(options);
  const problems = [];
  page.on("pageerror", (error) => problems.push(error.stack));
  await page.goto(pathToFileURL(resolve(file)).href);
  await page.waitForFunction(() => document.body.dataset.ready === "#");
  const address = hash(await page.evaluate(() => shown.facts.threads));
  await page.evaluate((address) => (location.hash = address), address);
  await page.waitForFunction((address) => document.body.dataset.ready === address && !zoomBusy && !timeline.drawn, address);
  const path = join(folder, `${name}.png`);
  await page.screenshot({ path });
  const { size } = statSync(path);
  assert.deepEqual(problems, []);
  assert.ok(size <= LARGEST, `${path}: ${size} bytes`);
  console.log(`${path}: ${size} bytes`);
  await page.close();
}
await browser.close();
