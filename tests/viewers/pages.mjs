// Opens outputs in a headless Chromium: speedscope's own page (npm speedscope) and the flame graph by itself. Takes a picture of each.
//
//   node tests/viewers/pages.mjs SPEEDSCOPE PLAYWRIGHT PROFILE.speedscope.json DEEP.speedscope.json GRAPH.svg PICTURES FUNCTION…
//
// Each FUNCTION must be among the names that the page shows. DEEP has a stack of more functions than speedscope's page opens, which stk
// has cut. PLAYWRIGHT is npm's playwright-core.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { basename, extname, join, normalize } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "./chromium.mjs";

const [speedscope, playwright, profile, deep, graph, pictures, ...functions] = process.argv.slice(2);
const browser = await launch(playwright);
const context = await browser.newContext({ viewport: { width: 1200, height: 800 } });
// A page that hangs must not keep the tests.
const alarm = setTimeout(() => fail("the pages took more than a minute"), 60_000);

function fail(text) {
  console.error(`pages: ${text}`);
  process.exit(1);
}

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json", ".svg": "image/svg+xml" };

/** Serves the page of speedscope, and a profile as /profile. */
function serve(profile) {
  const root = join(speedscope, "dist", "release");
  const server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const file = join(root, normalize(path));
    try {
      const content = path === "/profile" ? profile : readFileSync(file);
      response.writeHead(200, { "Content-Type": TYPES[extname(file)] ?? "application/octet-stream" }).end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server)));
}

/** speedscope's page with a profile; `errors` fills with its errors. */
async function openSpeedscope(profile, errors) {
  const server = await serve(profile);
  const page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("close", () => server.close());
  const here = `http://127.0.0.1:${server.address().port}`;
  await page.goto(`${here}/index.html#profileURL=${encodeURIComponent(`${here}/profile`)}&title=profile`);
  return page;
}

/** A stack as deep as stk writes opens; one eight times as deep does not, or there would be no need to cut. (Whether one twice as deep does depends on how much of the page is compiled by then.) */
async function checkDeep() {
  const errors = [];
  const content = readFileSync(deep, "utf8");
  const page = await openSpeedscope(content, errors);
  await page.getByText("Sandwich").click();
  await page.getByText("[frames left out: too deep]", { exact: true }).first().waitFor({ timeout: 10_000 });
  await page.close();
  if (errors.length > 0) fail(`speedscope, a deep stack: ${errors}`);
  const deeper = JSON.parse(content);
  for (const { samples } of deeper.profiles) samples.forEach((stack, i) => (samples[i] = Array(8).fill(stack).flat()));
  const other = await openSpeedscope(JSON.stringify(deeper), []);
  await other.getByText("Something went wrong").first().waitFor({ timeout: 30_000 });
  await other.close();
  console.log(`speedscope's page: ${basename(deep)} ok`);
}

/** speedscope draws flame graphs on a canvas. Its sandwich view has the functions in a table. */
async function checkSpeedscope() {
  const errors = [];
  const page = await openSpeedscope(readFileSync(profile), errors);
  await page.getByText("Sandwich").click();
  for (const name of functions) {
    await page.getByText(name, { exact: true }).first().waitFor({ timeout: 10_000 });
  }
  await page.screenshot({ path: join(pictures, "speedscope-sandwich.png") });
  await page.getByText("Left Heavy").click();
  await page.waitForTimeout(500);
  await page.screenshot({ path: join(pictures, "speedscope.png") });
  if (errors.length > 0) fail(`speedscope: ${errors}`);
  console.log(`speedscope's page: ${basename(profile)} ok`);
}

/** The flame graph: its title, its frames, and that a click on one makes that one as wide as the picture. */
async function checkGraph() {
  const page = await context.newPage();
  const errors = [];
  page.on("pageerror", (error) => errors.push(error.message));
  await page.goto(pathToFileURL(graph).href);
  const title = await page.locator("#title").textContent();
  if (!/^busy\.exe \(pid \d+\): CPU time$/.test(title)) fail(`the graph's title is ${title}`);
  const titles = await page.locator("#frames > g > title").allTextContents();
  for (const name of functions) {
    if (!titles.some((text) => text.startsWith(`${name} (`))) fail(`the graph lacks ${name}`);
  }
  await page.screenshot({ path: join(pictures, "flamegraph.png") });
  const frame = page.locator("#frames > g").filter({ hasText: `${functions[0]} (` }).first();
  const widthOf = async () => (await frame.locator("rect").boundingBox()).width;
  const before = await widthOf();
  await frame.click();
  await page.waitForFunction(() => !document.getElementById("unzoom").classList.contains("hide"));
  const after = await widthOf();
  if (!(after > 1.5 * before && after > 1000)) fail(`a click on ${functions[0]} makes ${before} wide ${after}`);
  await page.screenshot({ path: join(pictures, "flamegraph-zoomed.png") });
  if (errors.length > 0) fail(`flame graph: ${errors}`);
  console.log(`Chromium: ${basename(graph)} ok`);
}

try {
  await checkSpeedscope();
  await checkDeep();
  await checkGraph();
} catch (error) {
  fail(error.message);
} finally {
  clearTimeout(alarm);
  await browser.close();
}
