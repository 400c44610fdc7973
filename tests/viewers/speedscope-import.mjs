// Reads profiles with speedscope's own importer and prints what it made of them, one JSON object a profile.
//
//   node tests/viewers/speedscope-import.mjs "$(tests/fetch.sh speedscope)" [--check] FILE…
//
// With --check, it compares what the worker thread did with what tests/tests/host/outputs/profiles.rs says of `busy`, and folded
// stacks with their own text, instead of printing.
//
// npm's speedscope is a bundle for browsers: this stops it right after its importers are defined.
import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import vm from "node:vm";

const [folder, ...rest] = process.argv.slice(2);
const check = rest[0] === "--check";
const files = check ? rest.slice(1) : rest;
const release = join(folder, "dist", "release");
const bundle = readdirSync(release).find((name) => /^speedscope-.*\.js$/.test(name));
const source = readFileSync(join(release, bundle), "utf8");

const module_init = /var \w+=Promise\.resolve\(\)\.then\(\(\)=>\((\w+)\(\),(\w+)\)\);/;
const found = module_init.exec(source);
if (!found || !source.includes(`${found[2]}={};`)) throw new Error("this version of speedscope is bundled in another way");
const cut = source.slice(0, found.index) + `globalThis.importers=(${found[1]}(),${found[2]});})();`;

let checked = 0;
const warnings = new Map();
const count = (...words) => {
  const text = words.join(" ").replace(/[0-9.]+/g, "N").slice(0, 60);
  warnings.set(text, (warnings.get(text) ?? 0) + 1);
};
const stub = new Proxy(function () {}, { get: (_, key) => (key === Symbol.toPrimitive ? () => "" : stub), apply: () => stub, construct: () => stub });
const context = vm.createContext({
  console: { log() {}, warn: count, error: count }, TextDecoder, TextEncoder, Uint8Array, ArrayBuffer, URL, setTimeout, clearTimeout,
  navigator: { userAgent: "node", platform: "" }, location: { hash: "", protocol: "file:" }, document: stub, performance,
  requestAnimationFrame: () => 0, HTMLElement: class {}, Node: class {},
});
context.window = context.self = context;
vm.runInContext(cut, context);

// The bundle is one line of half a megabyte, which node would print with an error of its own.
process.on("uncaughtException", (error) => {
  console.error(`speedscope-import: ${error.message}\n${String(error.stack).split("\n").filter((line) => /^\s+at /.test(line)).slice(0, 5).join("\n")}`);
  process.exit(1);
});

for (const file of files) {
  warnings.clear();
  checked = 0;
  const group = await read(file);
  if (!group) throw new Error(`${file}: speedscope does not recognise it`);
  for (const [index, profile] of group.profiles.entries()) {
    const calls = [];
    const open = [];
    profile.forEachCall(
      (node, at) => {
        const call = [node.frame.name, node.frame.file ?? null, node.frame.line ?? null, at, null];
        open.push(call);
        calls.push(call);
      },
      (_, at) => {
        open.pop()[4] = at;
      },
    );
    const unclosed = open.length;
    if (check && file.endsWith(".folded")) {
      checkFolded(file, profile, calls);
      continue;
    }
    if (check) {
      // speedscope.json has the sum of all threads before them.
      if (/thread 4\b/.test(profile.getName())) checkWorker(file, profile, calls, unclosed);
      continue;
    }
    console.log(JSON.stringify({
      file: basename(file), name: profile.getName(), active: index === group.indexToView, unit: profile.getWeightUnit(),
      total: profile.getTotalWeight(), unclosed, warnings: Object.fromEntries(warnings), calls,
    }));
  }
  if (check && checked !== 1) throw new Error(`${file}: ${checked} profiles were checked instead of 1`);
}

/** Texts as such, everything else (pprof) as bytes. */
async function read(file) {
  const bytes = readFileSync(file);
  if (/\.(json|folded)$/.test(file)) return context.importers.importProfileGroupFromText(basename(file), bytes.toString("utf8"));
  return context.importers.importProfilesFromArrayBuffer(basename(file), new Uint8Array(bytes).buffer);
}

/** [function, begin, end] of every call of the worker thread, in milliseconds, in order of their begin, callers first. */
function expected() {
  return [
    ["main", 0, 6], ["fib", 0, 3], ["fib", 0, 2], ["mix", 2, 3], ["plugin_run [plugin_a.dll]", 3, 5], ["plugin_run [plugin_ä.dll]", 5, 6],
    ["[incomplete stack: no-unwind-data in plugin_ä.dll]", 6, 7], ["plugin_run [plugin_ä.dll]", 6, 7],
    ["[incomplete stack: stack-lost]", 7, 8], ["main", 8, 9], ["fib", 8, 9], ["fib", 8, 9],
  ];
}

/** Folded stacks have no order in time: their sum and their frames are compared with the file's text. */
function checkFolded(file, profile, calls) {
  const lines = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => /^(.*) (\d+)$/.exec(line));
  const total = lines.reduce((sum, [, , count]) => sum + Number(count), 0);
  if (!total || profile.getTotalWeight() !== total) throw new Error(`${file}: ${profile.getTotalWeight()} of ${total}`);
  const names = new Set(lines.flatMap(([, stack]) => stack.split(";")));
  const found = new Set(calls.map(([name]) => name));
  const missing = [...names].filter((name) => !found.has(name));
  if (missing.length || found.size !== names.size) throw new Error(`${file}: speedscope lacks ${missing}`);
  checked += 1;
  console.log(`speedscope: ${basename(file)} ok`);
}

function checkWorker(file, profile, calls, unclosed) {
  const unit = { nanoseconds: 1e-6, microseconds: 1e-3 }[profile.getWeightUnit()];
  const found = calls.map(([name, , , begin, end]) => [name, begin * unit, end * unit]);
  if (JSON.stringify(found) !== JSON.stringify(expected())) throw new Error(`${file}: ${JSON.stringify(found)}`);
  if (unclosed) throw new Error(`${file}: ${unclosed} calls never end`);
  if (warnings.size) throw new Error(`${file}: ${[...warnings.keys()]}`);
  checked += 1;
  console.log(`speedscope: ${basename(file)} ok`);
}
