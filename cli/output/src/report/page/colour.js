// Colours of functions: by module, whose code it is, the thread, or their own weight.

const COLOURS = { module: "module", category: "whose code", thread: "thread", heat: "own weight" };

/** Hues of modules (of oklch): the first ones far apart, the others between them. Blue and violet belong to the system and to runtimes. */
const HUES = [62, 152, 15, 195, 105, 340, 128, 38, 172, 85];
const FAR_APART = 5;

/** Colours of the theme, read once a theme. */
let paint = {};

function readPaint() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  paint = Object.fromEntries(
    ["ink", "soft", "line", "ground", "panel", "accent", "match", "run", "call", "unknown", "wait", "nothing", "system", "runtime", "light", "chroma", "hatch", "text", "mono", "poor", "fair"].map((name) => [name, of(name)]),
  );
  paint.lightness = Number.parseFloat(paint.light);
  paint.hatching = hatching();
  paint.functions = new Map();
}

/** Stripes over frames whose place on the stack is not proved. */
function hatching() {
  const tile = el("canvas", { width: 8, height: 8 });
  const pen = tile.getContext("2d");
  pen.strokeStyle = paint.hatch;
  pen.lineWidth = 1.5;
  for (const at of [-4, 4, 12]) {
    pen.beginPath();
    pen.moveTo(at - 4, 8);
    pen.lineTo(at + 4, 0);
    pen.stroke();
  }
  return pen.createPattern(tile, "repeat");
}

function hashOf(text) {
  let hash = 7;
  for (const letter of text) hash = (Math.imul(hash, 31) + letter.codePointAt(0)) >>> 0;
  return hash;
}

/** By module of the program: its hue. The executable has the first one; the others one that their name chooses, or the next that is free. */
function huesOf({ facts }) {
  const { modules, categories } = facts.functions;
  const stem = (name) => name.toLowerCase().replace(/\.[^.]*$/, "");
  const own = new Set(modules.filter((module, f) => facts.modules[module] && !facts.of_others[categories[f]]));
  const list = [...own].map((module) => ({ module, name: stem(facts.modules[module]) }));
  const executable = stem(facts.process);
  list.sort((a, b) => (b.name === executable) - (a.name === executable) || a.module - b.module);
  const hues = new Map();
  list.forEach(({ module, name }, i) => {
    const [first, length] = i % HUES.length < FAR_APART ? [0, FAR_APART] : [FAR_APART, HUES.length - FAR_APART];
    const taken = [...hues.values()].slice(i - (i % HUES.length));
    let slot = i === 0 ? 0 : first + (hashOf(name) % length);
    while (taken.includes(HUES[slot])) slot = first + ((slot - first + 1) % length);
    hues.set(module, HUES[slot]);
  });
  return hues;
}

/** `own`, `system` or `runtime`; `none` in no module, where functions are what is not known. */
function ownerOf(f) {
  const { facts } = shown;
  if (moduleOf(f) === "") return "none";
  const category = facts.functions.categories[f];
  return facts.of_others[category] ? (facts.categories[category] === "system" ? "system" : "runtime") : "own";
}

/** A colour of Oklab, in which hues of the same lightness look equally light, as the six digits that canvases take fastest. */
function oklch(light, chroma, hue) {
  const angle = (hue * Math.PI) / 180, a = chroma * Math.cos(angle), b = chroma * Math.sin(angle);
  const [l, m, s] = [light / 100 + 0.3963377774 * a + 0.2158037573 * b, light / 100 - 0.1055613458 * a - 0.0638541728 * b, light / 100 - 0.0894841775 * a - 1.291485548 * b].map((root) => root ** 3);
  const linear = [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s];
  const digits = (part) => {
    const bright = part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, bright))).toString(16).padStart(2, "0");
  };
  return `#${linear.map(digits).join("")}`;
}

/** A hue as light as the others. */
const tint = (hue, light = paint.lightness) => oklch(light, Number(paint.chroma), hue);

/** A thread's colour. */
const threadColour = (t) => tint(HUES[t % HUES.length]);

/** A weight's colour, from 0 to 1. */
const heatColour = (share) => oklch(88 - 22 * share, 0.03 + 0.15 * share, 85 - 55 * share);

/** The colour of a function of the trace that is shown, by its module or by whose code it is. */
function colourOf(f) {
  if (f < 0) return paint.line;
  let colour = paint.functions.get(f);
  if (!colour) {
    const owner = ownerOf(f);
    shown.hues ??= huesOf(shown);
    // Functions of a module differ a little, so that neighbours differ.
    const shade = (hashOf(nameOf(f)) % 7) - 3;
    colour = owner === "none" ? paint.nothing : owner !== "own" ? paint[owner] : state.colour === "category" ? tint(HUES[0]) : tint(shown.hues.get(shown.facts.functions.modules[f]), paint.lightness + shade);
    paint.functions.set(f, colour);
  }
  return colour;
}

function chooseColour(colour) {
  go({ colour });
}

/** The modules of the program that weigh most, each in its colour. */
function moduleKeys() {
  const weights = new Map();
  answer.functions.self.forEach((weight, f) => {
    if (weight > 0 && ownerOf(f) === "own") weights.set(shown.facts.functions.modules[f], (weights.get(shown.facts.functions.modules[f]) ?? 0) + weight);
  });
  shown.hues ??= huesOf(shown);
  const key = ([module]) => el("span", {}, el("i", { class: "key", style: { background: tint(shown.hues.get(module)) } }), shown.facts.modules[module] || "no module");
  return [...weights].sort(([, a], [, b]) => b - a).slice(0, 6).map(key);
}
