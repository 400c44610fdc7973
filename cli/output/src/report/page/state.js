// The selection and the view: one object, kept in the address behind `#`, so that Back works and a
// link leads to the same view.

/** The traces of the page, each with the facts by which it is chosen. */
const traces = JSON.parse(new TextDecoder().decode(Uint8Array.from(atob($("index").textContent), (letter) => letter.charCodeAt(0))));
/** The process of a state that is of all traces together. */
const ALL = -1;

const START = {
  process: traces.length > 1 ? ALL : 0, from: null, until: null, threads: null, search: "", find: "", states: [true, true, true, true], wait: -1,
  weight: null, mine: true, once: true, inverted: false, focus: -1, hidden: [], fn: -1, zoom: [], view: traces.length > 1 ? "traces" : "flame", sort: "self",
  colour: "module", shownFrom: null, shownUntil: null, charts: [],
};

let state = { ...START };

const VIEWS = {
  traces: "Traces", flame: "Flame graph", tree: "Call tree", functions: "Functions", around: "Callers & callees", source: "Source", modules: "Modules",
  threads: "Threads", waits: "Waits", events: "Events", quality: "Quality",
};

/** The views of a trace, or of all: these have no list of events. Not every page holds source lines. */
const viewsOf = (process) => Object.keys(VIEWS).filter((view) => view !== (process === ALL ? "events" : "traces") && (view !== "source" || traces[process]?.sources));

/** A view, if a trace or all of them have it; else the first one. */
const viewIn = (process, view) => (viewsOf(process).includes(view) ? view : viewsOf(process)[0]);

/** The address of a state: only what differs from the start. */
function toHash(s) {
  const parts = [];
  const put = (key, value) => parts.push(`${key}=${encodeURIComponent(value)}`);
  if (s.process !== START.process) put("p", s.process);
  if (s.view !== viewsOf(s.process)[0]) put("v", s.view);
  if (s.from !== null) put("t", `${s.from / 1e9}-${s.until / 1e9}`);
  if (s.threads) put("th", s.threads.join("."));
  if (s.search) put("q", s.search);
  if (s.find) put("find", s.find);
  if (s.states.includes(false)) put("s", STATES.map(({ key }, i) => (s.states[i] ? key : "")).join(""));
  if (s.wait >= 0) put("wait", s.wait);
  if (s.weight) put("w", s.weight);
  if (!s.mine) put("my", 0);
  if (!s.once) put("once", 0);
  if (s.inverted) put("inv", 1);
  if (s.focus >= 0) put("focus", s.focus);
  if (s.hidden.length) put("hide", s.hidden.join("."));
  if (s.fn >= 0) put("f", s.fn);
  if (s.zoom.length) put("z", s.zoom.join("."));
  if (s.sort !== START.sort) put("sort", s.sort);
  if (s.colour !== START.colour) put("c", s.colour);
  if (s.shownFrom !== null) put("at", `${s.shownFrom / 1e9}-${s.shownUntil / 1e9}`);
  if (s.charts.length) put("ch", s.charts.join("."));
  return `#${parts.join("&")}`;
}

/** Expressions that were typed or asked for here. One of a link runs as long as whoever made the link likes. */
const ownExpressions = new Set();

/** Whether a search is an expression that only a link asks for. */
const isForeign = (search) => /^\/.+\/$/.test(search) && !ownExpressions.has(search);

/** The state of an address. Whatever makes no sense in it is left out. */
function fromHash(hash) {
  const s = { ...START, view: null };
  const whole = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : -1);
  const list = (text) => text.split(".").map(whole).filter((number) => number >= 0);
  const range = (text, [from, until]) => {
    const [first, last] = text.split("-").map((part) => Math.round(Number(part) * 1e9));
    if (first >= 0 && last > first) [s[from], s[until]] = [first, last];
  };
  const read = {
    p: (text) => (s.process = Math.min(Math.max(START.process, whole(text)), traces.length - 1)),
    v: (text) => (s.view = text),
    t: (text) => range(text, ["from", "until"]),
    at: (text) => range(text, ["shownFrom", "shownUntil"]),
    ch: (text) => (s.charts = list(text)),
    c: (text) => (s.colour = Object.hasOwn(COLOURS, text) ? text : s.colour),
    th: (text) => (s.threads = list(text)),
    q: (text) => (s.search = text),
    find: (text) => (s.find = text),
    s: (text) => (s.states = STATES.map(({ key }) => text.includes(key))),
    wait: (text) => (s.wait = whole(text)),
    w: (text) => (s.weight = Object.hasOwn(WEIGHTS, text) ? text : null),
    my: (text) => (s.mine = text !== "0"),
    once: (text) => (s.once = text !== "0"),
    inv: (text) => (s.inverted = text === "1"),
    focus: (text) => (s.focus = whole(text)),
    hide: (text) => (s.hidden = list(text)),
    f: (text) => (s.fn = whole(text)),
    z: (text) => (s.zoom = list(text)),
    sort: (text) => (s.sort = text),
  };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [key, value = ""] = part.split("=");
    try {
      if (Object.hasOwn(read, key)) read[key](decodeURIComponent(value));
    } catch {
      // A broken address: this part of it is left out.
    }
  }
  return { ...s, view: viewIn(s.process, s.view) };
}

/** Goes to another state. It is a step that Back undoes, unless it only refines the last one. */
function go(change, { refine = false } = {}) {
  const next = toHash({ ...state, ...change });
  if (next === (location.hash || "#")) return;
  if (refine) location.replace(next);
  else location.hash = next;
}

/** Goes to a trace, or to all. Numbers of functions and threads are others there. */
function goToTrace(process) {
  const { mine, once, view, colour } = state;
  go({ ...START, mine, once, colour, process, view: viewIn(process, view) });
}

/** Whether a part of the trace is selected. */
const isPart = (s) =>
  s.from !== null || s.threads || s.search || s.states.includes(false) || s.wait >= 0 || s.focus >= 0;

/** What of a state the sums depend on: not which time is shown, nor which flame charts are open. */
const sumsHash = (s) => toHash({ ...s, shownFrom: null, shownUntil: null, charts: [], colour: START.colour });

/** Leaves out what a number in an address does not fit: another trace has fewer functions and threads. */
function fitting(s, { facts, end }) {
  const functions = facts.functions.names.length;
  const known = (f) => f < functions;
  // Times of different traces have nothing in common.
  if (s.process === ALL) s = { ...s, from: null, until: null, shownFrom: null, shownUntil: null, charts: [] };
  const threads = s.threads?.filter((t) => t < facts.threads.length) ?? [];
  return {
    ...s,
    focus: known(s.focus) ? s.focus : -1,
    fn: known(s.fn) ? s.fn : -1,
    hidden: s.hidden.filter(known),
    zoom: s.zoom.filter(known),
    threads: threads.length ? threads : null,
    charts: s.charts.filter((t) => t < facts.threads.length),
    ...(s.shownFrom !== null && s.shownFrom < end ? { shownUntil: Math.min(end, s.shownUntil) } : { shownFrom: null, shownUntil: null }),
    wait: s.wait < facts.waits.length ? s.wait : -1,
  };
}
