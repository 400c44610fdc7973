// What happened: on the line of the timeline, and as a list.

/** Kinds of events: their sign on the line and their colour in the style. */
const KINDS = {
  mark: { sign: "▼", colour: "match", title: "mark" }, exception: { sign: "✕", colour: "poor", title: "exception" },
  capture: { sign: "◆", colour: "accent", title: "capture" }, gap: { sign: "", colour: "fair", title: "gap: samples are missing" },
  rate: { sign: "▲", colour: "fair", title: "change of the rate" }, load: { sign: "|", colour: "soft", title: "load of a module" },
  unload: { sign: "|", colour: "soft", title: "unload of a module" }, "thread-start": { sign: "╷", colour: "soft", title: "thread start" },
  "thread-exit": { sign: "╵", colour: "soft", title: "thread exit" }, "thread-name": { sign: "╷", colour: "soft", title: "thread name" },
};
/** Events that a tooltip lists. */
const MOST_IN_TIP = 8;

/** Kinds that the list leaves out. */
const kindsOff = new Set();

const kindOf = (i) => shown.facts.events.kinds[shown.facts.events.of[i]];

/** The thread of an event, or the process. */
function placeOf(i) {
  const thread = shown.facts.events.threads[i];
  return thread ? threadName(shown.facts.threads[thread - 1]) : "process";
}

/** An event's text; of a path, the file. */
const eventText = (i) => (["load", "unload"].includes(kindOf(i)) ? shown.facts.events.texts[i].split(/[\\/]/).pop() : shown.facts.events.texts[i]);

function eventRow() {
  const canvas = el("canvas", { class: "lane", id: "event-line", role: "img", "aria-label": `${counted(shown.facts.events.times.length, "event")}: listed in the view Events` });
  canvas.draw = drawEvents;
  canvas.addEventListener("mousemove", (event) => {
    const near = eventsNear(canvas, event.offsetX);
    canvas.style.cursor = near.length ? "pointer" : "default";
    if (!near.length) hideTip();
    else showTip(el("div", {}, ...near.slice(0, MOST_IN_TIP).map((i) => el("div", {}, el("b", {}, kindOf(i)), ` ${moment(shown.facts.events.times[i])} · ${placeOf(i)} · ${eventText(i)}`)), near.length > MOST_IN_TIP ? el("div", { class: "soft" }, `${count(near.length - MOST_IN_TIP)} more`) : null), event.clientX, event.clientY);
  });
  canvas.addEventListener("mouseleave", hideTip);
  return el("div", { class: "row events" }, el("button", { type: "button", class: "plain label soft", title: "The list of events", onclick: () => go({ view: "events" }) }, "Events"), canvas, el("span", { class: "amount soft" }, count(shown.facts.events.times.length)));
}

/** The events within four pixels of a place, those of rare kinds first. */
function eventsNear(canvas, x) {
  const { times, ends, kinds } = shown.facts.events, { from, until } = shownTime();
  const scale = canvas.clientWidth / (until - from), order = Object.keys(KINDS);
  const near = [];
  for (let i = 0; i < times.length; i++) if ((times[i] - from) * scale - 4 <= x && (ends[i] - from) * scale + 4 >= x) near.push(i);
  return near.sort((a, b) => order.indexOf(kindOf(a)) - order.indexOf(kindOf(b)) || times[a] - times[b]);
}

function drawEvents(canvas) {
  const { times, ends, of, kinds } = shown.facts.events, { from, until } = shownTime();
  const width = canvas.clientWidth, height = canvas.clientHeight, scale = width / (until - from);
  const pen = penOf(canvas, width, height);
  pen.font = "10px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  // The frequent kinds first, so that the others stay in sight; a pixel has one event of a kind.
  for (const [name, { sign, colour }] of Object.entries(KINDS).reverse()) {
    const kind = kinds.indexOf(name);
    if (kind < 0) continue;
    pen.fillStyle = paint[colour];
    for (let i = 0, last = -1; i < times.length; i++) {
      if (of[i] !== kind || ends[i] < from || times[i] > until) continue;
      const x = Math.round((times[i] - from) * scale);
      if (name === "gap") {
        pen.globalAlpha = 0.55;
        pen.fillRect(Math.max(0, x), 2, Math.max(2, Math.min(width, (ends[i] - from) * scale) - Math.max(0, x)), height - 4);
        pen.globalAlpha = 1;
      } else if (x !== last) pen.fillText(sign, x, height / 2 + 0.5);
      last = x;
    }
  }
}

/** Turns a kind of the list off or on. */
function toggleKind(name) {
  if (!kindsOff.delete(name)) kindsOff.add(name);
  if (answer) showView();
}

function eventsView(view) {
  const { times, ends, kinds, of, threads, left_out: left } = shown.facts.events;
  const counts = kinds.map((_, kind) => of.reduce((sum, other) => sum + (other === kind ? 1 : 0), 0));
  const chosen = (i) =>
    !kindsOff.has(kindOf(i)) && (state.from === null || (ends[i] >= state.from && times[i] <= state.until)) && (!state.threads || threads[i] === 0 || state.threads.includes(threads[i] - 1));
  const list = [...times.keys()].filter(chosen);
  const button = (name, kind) => el("button", { type: "button", class: "small", "aria-pressed": String(!kindsOff.has(name)), title: KINDS[name]?.title ?? name, onclick: () => toggleKind(name) }, `${name} ${count(counts[kind] + left[kind])}`);
  const omitted = left.reduce((sum, number) => sum + number, 0);
  const body = el("tbody", {});
  const row = (i) => el("tr", { "data-event": String(i) },
    el("td", { class: "number fit" }, el("button", { type: "button", class: "plain", title: "Show it on the timeline", onclick: () => showMoment(times[i], ends[i]) }, moment(times[i]))),
    el("td", { class: "fit" }, el("i", { class: "key", style: { background: paint[KINDS[kindOf(i)]?.colour ?? "soft"] } }), kindOf(i)), el("td", { class: "fit" }, placeOf(i)), el("td", { class: "number soft fit" }, ends[i] > times[i] ? span(ends[i] - times[i]) : ""), el("td", { class: "reason", title: shown.facts.events.texts[i] }, eventText(i)));
  view.replaceChildren(
    el("div", { class: "legend" }, ...kinds.map(button), el("span", { class: "soft" }, `${counted(list.length, "event")}${state.from !== null || state.threads ? " of the selected time and threads, and of the process" : ""}.${omitted ? ` ${count(omitted)} of frequent kinds are not in the page: stk events lists them.` : ""}`)),
    times.length ? el("table", { class: "wide" }, el("thead", {}, el("tr", {}, ...["Time", "What", "Thread", "Lasts", "Text"].map((text, i) => el("th", { scope: "col", class: i === 0 || i === 3 ? "number" : "" }, text)))), body) : el("p", {}, "Nothing happened that the trace has: no mark, no exception, no module or thread that came or went, no gap."));
  appendRows(body, list, row);
}

/** Shows a moment on the timeline, closer than now. */
function showMoment(start, end) {
  const { from, until } = shownTime(), half = Math.max((until - from) / 20, (end - start) * 0.75);
  showTime((start + end) / 2 - half, (start + end) / 2 + half, true);
}
