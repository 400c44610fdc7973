// Reads profiles with speedscope's own importer and prints what it made of them, one JSON object a profile.
//
//   node tests/viewers/speedscope-import.mjs "$(tests/fetch.sh speedscope)" FILE…
//
// npm's speedscope is a bundle for browsers: this stops it right after its importers are defined.
import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import vm from "node:vm";

const [folder, ...files] = process.argv.slice(2);
const release = join(folder, "dist", "release");
const bundle = readdirSync(release).find((name) => /^speedscope-.*\.js$/.test(name));
const source = readFileSync(join(release, bundle), "utf8");

const module_init = /var \w+=Promise\.resolve\(\)\.then\(\(\)=>\((\w+)\(\),(\w+)\)\);/;
const found = module_init.exec(source);
if (!found || !source.includes(`${found[2]}={};`)) throw new Error("this version of speedscope is bundled in another way");
const cut = source.slice(0, found.index) + `globalThis.importers=(${found[1]}(),${found[2]});})();`;

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

for (const file of files) {
  warnings.clear();
  const group = await context.importers.importProfileGroupFromText(basename(file), readFileSync(file, "utf8"));
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
    console.log(JSON.stringify({
      file: basename(file), name: profile.getName(), active: index === group.indexToView, unit: profile.getWeightUnit(),
      total: profile.getTotalWeight(), unclosed, warnings: Object.fromEntries(warnings), calls,
    }));
  }
}
