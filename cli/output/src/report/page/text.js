// Elements, and numbers as text. Text from traces only ever becomes text nodes and attributes.

const $ = (id) => document.getElementById(id);

/** An element with properties and children. Keys that begin with "aria-" or "data-" are attributes. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key === "class") element.className = value;
    else if (key === "role" || key === "scope" || key.startsWith("aria-") || key.startsWith("data-")) element.setAttribute(key, value);
    else if (key === "style") Object.assign(element.style, value);
    else element[key] = value;
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Three digits of a number. */
function three(number) {
  const size = Math.abs(number);
  return number.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/** Nanoseconds as a person reads them: `1.80 s`, `964 ms`. */
function span(ns) {
  if (ns === 0) return "0";
  if (ns < 999.5) return `${Math.round(ns)} ns`;
  if (ns < 999.5e3) return `${three(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${three(ns / 1e6)} ms`;
  if (ns < 600e9) return `${three(ns / 1e9)} s`;
  const minutes = Math.round(ns / 60e9);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A moment since the trace's start. */
const moment = (ns) => `${(ns / 1e9).toFixed(3)} s`;

/** A count with separators. */
const count = (number) => Math.round(number).toLocaleString("en");

/** `1 thread`, `2 threads`. */
const counted = (number, noun) => `${count(number)} ${noun}${Math.round(number) === 1 ? "" : "s"}`;

/** A part of a whole. */
function percent(part, whole) {
  if (!(whole > 0)) return "–";
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.05) return "< 0.1 %";
  return `${share.toFixed(1)} %`;
}

/** What is counted, in words, and how its numbers are shown. */
const WEIGHTS = {
  cpu: { title: "CPU time", show: span },
  wall: { title: "Time, waits included", show: span },
  waiting: { title: "Time of waits", show: span },
  active: { title: "Samples, waits left out", show: count },
  samples: { title: "Samples", show: count },
};

/** A weight within a sentence. */
const inSentence = (title) => (title.startsWith("CPU") ? title : title.toLowerCase());

/** States as the page groups them, by number. */
const STATES = [
  { key: "u", name: "Not known", title: "Ready to run, held by the recorder, or without a stack" },
  { key: "r", name: "Running", title: "On a processor" },
  { key: "c", name: "System call", title: "In a system call that does not only wait" },
  { key: "w", name: "Waiting", title: "Waiting in the system" },
];
/** The order in which they are shown. */
const STATE_ORDER = [1, 3, 2, 0];

/** Puts a text into the clipboard. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("Copied");
}

/** Says what happened to people who do not see the page. */
function say(text) {
  $("status").textContent = text;
}
