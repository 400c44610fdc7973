// Pictures for the documents: the page of `stk report` (light, dark, narrow, a flame chart, a call tree), a flame graph of differences, terminals.
//
//   node shots.mjs PLAYWRIGHT INPUTS FOLDER      INPUTS: the folder of report.html, many.html, diff.svg, terminal.txt and source.txt, as shots.sh makes them

import assert from "node:assert/strict";
import { readFileSync, statSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./chromium.mjs";

/** A document shows no picture above this size. */
const LARGEST = 200_000;

const [playwright, inputs, folder] = process.argv.slice(2);
const wide = { width: 1280, height: 800 };
const chart = (thread) => `#p=0&ch=${thread}&at=1.0-3.2`;
const PICTURES = {
  "report-light": { viewport: wide, hash: () => "#p=0" },
  "report-dark": { viewport: wide, colorScheme: "dark", hash: () => "#p=1" },
  "report-narrow": { viewport: { width: 480, height: 860 }, hash: () => "#p=0" },
  "report-chart": { viewport: wide, hash: (threads) => chart(threads.findIndex(({ name }) => name === "plugins")) },
  "report-many": { file: "many.html", viewport: { width: 1280, height: 480 }, hash: () => "#" },
  "report-source": { viewport: wide, scroll: true, hash: () => "#p=0&v=source" },
  "report-tree": { viewport: wide, hash: () => "#p=0&v=tree&find=plugin_" },
};

/** Lets no picture become too large. */
function checkSize(path) {
  const { size } = statSync(path);
  assert.ok(size <= LARGEST, `${path}: ${size} bytes`);
  console.log(`${path}: ${size} bytes`);
}

const browser = await launch(playwright);
for (const [name, { hash, file = "report.html", scroll, ...options }] of Object.entries(PICTURES)) {
  const page = await browser.newPage(options);
  const problems = [];
  page.on("pageerror", (error) => problems.push(error.stack));
  await page.goto(pathToFileURL(resolve(join(inputs, file))).href);
  await page.waitForFunction(() => document.body.dataset.ready === "#");
  // The first view is the list of traces.
  await page.evaluate(() => (location.hash = "#p=0"));
  await page.waitForFunction(() => document.body.dataset.ready === "#p=0");
  const address = hash(await page.evaluate(() => shown.facts.threads));
  await page.evaluate((address) => (location.hash = address), address);
  await page.waitForFunction((address) => document.body.dataset.ready === address && !zoomBusy && !timeline.drawn, address);
  if (scroll) await page.locator("#tabs").evaluate((tabs) => tabs.scrollIntoView());
  const path = join(folder, `${name}.png`);
  await page.screenshot({ path });
  assert.deepEqual(problems, []);
  checkSize(path);
  await page.close();
}

/** One element of a page without scripts, its upper part of `most` pixels. */
async function picture(name, content, selector, most) {
  const page = await browser.newPage({ viewport: { width: 1200, height: 700 }, javaScriptEnabled: false });
  await page.setContent(content);
  const path = join(folder, `${name}.png`);
  const { width, height } = await page.locator(selector).first().boundingBox();
  await page.screenshot({ path, clip: { x: 0, y: 0, width: Math.ceil(width), height: Math.min(Math.ceil(height), most) } });
  checkSize(path);
  await page.close();
}

const text = (name) => readFileSync(join(inputs, name), "utf8");
const svg = text("diff.svg").replace(/^<\?xml[^>]*>\s*<!DOCTYPE[^>]*>/, "");
await picture("diff", `<body style="margin: 0">${svg}`, "svg", 280);
for (const name of ["terminal", "source"]) {
  const escaped = text(`${name}.txt`).trimEnd().replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  const style = "display: inline-block; margin: 0; padding: 16px; background: #16181d; color: #d7dae0; font: 13px/1.45 monospace";
  await picture(name, `<body style="margin: 0"><pre style="${style}">${escaped}</pre>`, "pre", 700);
}
await browser.close();
