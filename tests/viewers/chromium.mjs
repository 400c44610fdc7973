// Debian's Chromium without a window, driven by playwright-core (npm), for pages of ours.

import { pathToFileURL } from "node:url";
import { join } from "node:path";

const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

/** A browser. `playwright`: the folder of the package. */
export async function launch(playwright) {
  const { chromium } = await import(pathToFileURL(join(playwright, "index.mjs")));
  return chromium.launch({ executablePath: process.env.STK_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
}
