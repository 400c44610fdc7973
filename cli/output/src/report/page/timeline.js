// The timeline: an overview of the whole trace, then CPU time of all threads and of each, stacked by state, over
// the time that is shown. Under a thread that is opened its stacks over time: see chart.

const BINS = 600, OF_BIN = 5;
/** Threads that are drawn before "more". */
const MOST_THREADS = 10;
/** A thread below this part of all threads' time that counts is idle. */
const IDLE = 0.005;
/** Idle threads that are listed. */
const MOST_IDLE = 500;

/** `data`: lanes and charts of the worker, and of which time. `listed`: the threads that have a row. */
const timeline = { all: false, idle: false, folded: false, drag: null, data: null, listed: [], drawn: 0 };

/** A thread's CPU time, or, where none is known, its time on a processor. */
const cpuOf = (thread) => (answer.cpuKnown ? thread.cpu : thread.time[1]);

/** How long a thread did something. */
const activity = (thread) => thread.time[1] + thread.time[2];

const threadName = ({ name, tid }) => (name ? `${name} (${tid})` : `thread ${tid}`);

function showTimeline() {
  if (!answer) return;
  $("timeline").hidden = state.process === ALL;
  if (state.process === ALL) return;
  const threads = [...answer.threads].sort((a, b) => cpuOf(b) - cpuOf(a) || activity(b) - activity(a) || b.wall - a.wall || a.t - b.t);
  const all = threads.reduce((sum, thread) => sum + activity(thread), 0);
  const isOpen = ({ t }) => state.charts.includes(t);
  const busy = threads.filter((thread) => activity(thread) > IDLE * all || (state.threads && thread.chosen) || isOpen(thread));
  const idle = threads.filter((thread) => !busy.includes(thread));
  const rows = timeline.all ? busy : busy.filter((thread, i) => i < MOST_THREADS || isOpen(thread));
  const more = busy.length - rows.length;
  const chosen = threads.filter((thread) => thread.chosen);
  timeline.listed = timeline.folded ? [] : [...rows, ...(timeline.idle ? idle.slice(0, MOST_IDLE) : [])].map(({ t }) => t);
  const old = document.querySelector(".threads"), scrolled = old?.scrollTop ?? 0;
  const box = el("div", { class: "rows", id: "rows", tabIndex: 0, role: "application", "aria-label": "Time. Drag, or arrow keys: move the selected time; plus and minus: change its length; z: show it alone; Escape: all of it." });
  const list = el("div", { class: `threads${state.charts.length ? " charted" : ""}`, hidden: timeline.folded }, ...rows.flatMap(threadRows));
  if (more > 0 || (timeline.all && busy.length > MOST_THREADS)) list.append(toggle(timeline.all ? "Fewer threads" : counted(more, "more thread"), "all"));
  box.append(axis(), eventRow(), totalRow(chosen), list);
  const parts = [timelineHead(), minimap(), box];
  if (idle.length && !timeline.folded) {
    parts.push(toggle(timeline.idle ? "Hide idle threads" : `${counted(idle.length, "idle thread")}: under ${100 * IDLE} % of the time that threads ran`, "idle"));
    if (timeline.idle) box.append(el("div", { class: "threads idle" }, ...idle.slice(0, MOST_IDLE).flatMap(threadRows)));
  }
  box.append(el("div", { class: "brush", id: "brush", hidden: true }));
  const focused = document.activeElement;
  const back = focused?.id === "rows" ? "#rows" : focused?.dataset?.chart !== undefined ? `[data-chart="${focused.dataset.chart}"]` : focused?.id?.startsWith("chart-") ? `#${focused.id}` : null;
  $("timeline").replaceChildren(...parts);
  list.scrollTop = scrolled;
  if (back) document.querySelector(back)?.focus({ preventScroll: true });
  drag(box);
  drawTimeline();
  askZoomed();
}

function timelineHead() {
  const button = (text, title, act, disabled) => el("button", { type: "button", class: "small", title, onclick: act, disabled });
  const make = (text, title, act, disabled = false) => {
    const made = button(text, title, act, disabled);
    made.textContent = text;
    return made;
  };
  const { from, until } = shownTime();
  const keys = [["run", "running or ready"], ["call", "system call"], ["unknown", "not known"], ["wait", "waiting"]].map(([name, text]) => legendKey(name, text));
  return el("div", { class: "legend head" },
    el("button", { type: "button", class: "plain title", "aria-expanded": String(!timeline.folded), title: "Fold the timeline", onclick: () => fold() }, el("span", { class: "twisty", "aria-hidden": "true" }, timeline.folded ? "▸" : "▾"), "Timeline"),
    ...keys, el("span", { class: "spring" }),
    el("span", { class: "soft", id: "shown-time" }, timeText(from, until)),
    make("−", "Show more time (−)", () => zoomBy(2)), make("+", "Show less time (+)", () => zoomBy(0.5)),
    make("Selection", "Show the selected time alone (z)", zoomToSelection, state.from === null), make("All", "Show all of the time (r)", () => showTime(0, shown.end, true), !isZoomed()));
}

const timeText = (from, until) => `${moment(from)} – ${moment(until)} (${span(until - from)})`;

function fold() {
  timeline.folded = !timeline.folded;
  showTimeline();
}

function toggle(text, which) {
  return el("button", { type: "button", class: "plain more", "aria-expanded": String(timeline[which]), onclick: () => {
    timeline[which] = !timeline[which];
    showTimeline();
  } }, text);
}

function axis() {
  return el("div", { class: "row axis" }, el("span", { class: "label soft" }, "Thread"), el("div", { class: "lane", id: "axis" }), el("span", { class: "amount soft" }, answer.cpuKnown ? "CPU" : "ran"));
}

/** Moments with round numbers, as many as fit. */
function drawAxis() {
  const lane = $("axis"), { from, until } = shownTime();
  const width = lane.clientWidth || 1, step = niceStep(((until - from) * 90) / width);
  const ticks = [];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / 1e9)));
  for (let at = Math.ceil(from / step) * step; at <= until; at += step) {
    const x = ((at - from) / (until - from)) * width;
    // A label that the edge would cut is left of its line.
    ticks.push(el("span", { class: `tick${x > width - 60 ? " left" : ""}`, style: { left: `${x}px` } }, step >= 1e9 ? `${Math.round(at / 1e9)} s` : step >= 1e6 && until < 1e9 ? `${(at / 1e6).toFixed(0)} ms` : `${(at / 1e9).toFixed(Math.min(9, digits))} s`));
  }
  lane.replaceChildren(...ticks);
}

/** 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1e3, least)));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
}

function totalRow(threads) {
  const row = el("div", { class: "row total" }, el("span", { class: "label" }, state.threads ? counted(threads.length, "thread") : "All threads"), el("canvas", { class: "lane" }), el("span", { class: "amount" }, span(answer.cpuKnown ? answer.cpu : answer.time[1])));
  row.children[1].draw = (canvas) => drawTotal(canvas, shownTime(), true);
  return row;
}

/** A thread's row, and its chart if that is open. */
function threadRows(thread) {
  const facts = shown.facts.threads[thread.t], open = state.charts.includes(thread.t);
  const picked = state.threads?.includes(thread.t) ?? false;
  const name = threadName(facts);
  const opener = el("button", { type: "button", class: "plain twisty", "data-chart": String(thread.t), "aria-expanded": String(open), "aria-label": `Flame chart of ${name}`, title: "Its stacks over time (Enter)", onclick: () => toggleChart(thread.t) }, open ? "▾" : "▸");
  const label = el("button", { type: "button", class: "plain", title: `${name}: click to select it alone, with Ctrl to add it`, "aria-pressed": String(picked), onclick: (event) => pickThread(thread.t, event.ctrlKey || event.metaKey || event.shiftKey) }, name);
  const row = el("div", { class: `row${thread.chosen ? "" : " unchosen"}` }, el("span", { class: "label" }, opener, label), el("canvas", { class: "lane", title: "Click: its stacks over time", "data-thread": String(thread.t) }), el("span", { class: "amount", title: `${percent(cpuOf(thread), answer.cpuKnown ? answer.cpu : answer.time[1])} of the selection's` }, span(cpuOf(thread))));
  row.children[1].draw = (canvas) => drawLane(canvas, thread.t);
  return open ? [row, chartOf(thread.t)] : [row];
}

function pickThread(t, add) {
  const old = state.threads ?? [];
  const others = old.filter((other) => other !== t);
  const next = add ? (others.length < old.length ? others : [...old, t].sort((a, b) => a - b)) : others.length < old.length && old.length === 1 ? [] : [t];
  go({ threads: next.length ? next : null });
}

function toggleChart(t) {
  go({ charts: state.charts.includes(t) ? state.charts.filter((other) => other !== t) : [...state.charts, t].sort((a, b) => a - b) });
}

/** Draws at the next frame of the screen. */
function drawSoon() {
  if (timeline.drawn) return;
  timeline.drawn = requestAnimationFrame(() => {
    timeline.drawn = 0;
    if (answer) drawTimeline();
  });
}

function drawTimeline() {
  if (!$("axis")) return;
  drawAxis();
  for (const canvas of document.querySelectorAll("#timeline canvas.lane")) if (isInSight(canvas)) canvas.draw?.(canvas);
  drawCharts();
  placeBrush(state.from, state.until);
  const { from, until } = shownTime();
  $("shown-time").textContent = timeText(from, until);
}

/** Whether the list of threads shows an element. */
function isInSight(element) {
  const list = element.closest(".threads");
  if (!list) return true;
  const [own, box] = [element.getBoundingClientRect(), list.getBoundingClientRect()];
  return own.bottom > box.top - 40 && own.top < box.bottom + 40;
}

/** A bin's parts: running, system call, not known, waiting. */
const PARTS = [1, 2, 0, 3];

/** By pixel of the time that is shown: the bin's first number in some data; -1 = outside of it. */
function binsOfPixels(width, { from, until }, data) {
  const scale = (until - from) / width, bin = (data.until - data.from) / BINS;
  return Int32Array.from({ length: width }, (_, x) => {
    const at = Math.floor((from + (x + 0.5) * scale - data.from) / bin);
    return at < 0 || at >= BINS ? -1 : at * OF_BIN;
  });
}

/** Fills a column for each pixel, with equal ones joined. `tall`: by pixel, in whole pixels; `bottom`: from where upwards. */
function fillColumns(pen, colour, height, tall, bottom) {
  pen.fillStyle = colour;
  for (let x = 0, first = 0; x <= tall.length; x++) {
    if (x < tall.length && tall[x] === tall[first] && bottom[x] === bottom[first]) continue;
    if (tall[first] > 0) pen.fillRect(first, height - bottom[first] - tall[first], x - first, tall[first]);
    first = x;
  }
}

function drawLane(canvas, t) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const pen = penOf(canvas, width, height), { data } = timeline;
  const bins = data?.lanes.get(t);
  if (!bins || width < 1) return;
  const places = binsOfPixels(width, shownTime(), data), bin = (data.until - data.from) / BINS;
  const bottom = new Uint16Array(width), tall = new Uint16Array(width);
  // Waits are a thin line: the thread was there and did nothing.
  for (let x = 0; x < width; x++) tall[x] = places[x] >= 0 && bins[places[x] + 3] > 0 ? 2 : 0;
  fillColumns(pen, paint.wait, height, tall, bottom);
  for (const [i, colour] of [[1, paint.run], [2, paint.call], [0, paint.unknown]]) {
    let sum = 0;
    for (let x = 0; x < width; x++) {
      tall[x] = places[x] < 0 ? 0 : Math.min(height - bottom[x], Math.round((bins[places[x] + i] / bin) * height));
      sum += tall[x];
    }
    if (sum) fillColumns(pen, colour, height, tall, bottom);
    for (let x = 0; x < width; x++) bottom[x] += tall[x];
  }
}

/** Clocks of threads that step by up to 15.6 ms: sums over less say little. */
const CLOCK_STEP = 32e6;

/** The mean of as many numbers around each as a clock's step has bins. */
function smoothed(list, binTime) {
  const half = shown.facts.cpu_source === "thread-times" ? Math.min(BINS, Math.floor(CLOCK_STEP / binTime / 2)) : 0;
  if (!half) return list;
  const sums = [0];
  for (const number of list) sums.push(sums[sums.length - 1] + number);
  return list.map((_, i) => {
    const [a, b] = [Math.max(0, i - half), Math.min(list.length, i + half + 1)];
    return (sums[b] - sums[a]) / (b - a);
  });
}

/** How many threads ran, and were in system calls, by bin. */
function concurrency(data) {
  data.concurrency ??= [1, 2].map((state) => {
    const binTime = (data.until - data.from) / BINS || 1;
    return smoothed(Array.from({ length: BINS }, (_, bin) => data.total[bin * OF_BIN + state] / binTime), binTime);
  });
  return data.concurrency;
}

/** All threads: how many processors they kept busy. `scaled`: with the scale, of the finest data that there are. */
function drawTotal(canvas, time, scaled) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const pen = penOf(canvas, width, height);
  const data = scaled && timeline.data ? timeline.data : answer.overview;
  if (width < 1) return;
  const [run, call] = concurrency(data);
  const places = binsOfPixels(width, time, data), bottom = new Uint16Array(width), tall = new Uint16Array(width);
  let peak = 1;
  for (const place of places) if (place >= 0) peak = Math.max(peak, run[place / OF_BIN] + call[place / OF_BIN]);
  for (const [list, colour] of [[run, paint.run], [call, paint.call]]) {
    for (let x = 0; x < width; x++) tall[x] = places[x] < 0 ? 0 : Math.round((list[places[x] / OF_BIN] / peak) * (height - 2));
    fillColumns(pen, colour, height, tall, bottom);
    for (let x = 0; x < width; x++) bottom[x] += tall[x];
  }
  if (!scaled) return;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "top";
  const text = `scale: ${three(peak)} ${peak === 1 ? "thread" : "threads"} at once`;
  pen.fillStyle = paint.panel;
  pen.globalAlpha = 0.75;
  pen.fillRect(1, 1, pen.measureText(text).width + 7, 14);
  pen.globalAlpha = 1;
  pen.fillStyle = paint.soft;
  pen.fillText(text, 4, 2);
}

/** The part of a time that is in sight, in pixels of a lane. */
function pixelsOf(from, until, width) {
  const time = shownTime(), scale = width / (time.until - time.from);
  const clip = (at) => Math.min(width, Math.max(0, (at - time.from) * scale));
  return [clip(from), clip(until)];
}

/** Shows a stretch of time over all rows. */
function placeBrush(from, until) {
  const brush = $("brush"), lane = document.querySelector("#rows .lane");
  if (!brush || !lane) return;
  const [left, right] = from === null ? [0, 0] : pixelsOf(from, Math.min(until, shown.end), lane.clientWidth);
  brush.hidden = right <= left;
  brush.style.left = `${lane.offsetLeft + left}px`;
  brush.style.width = `${Math.max(1, right - left)}px`;
}

/** The time at a place of the lanes. */
function timeAt(event, lane = $("axis")) {
  const { left, width } = lane.getBoundingClientRect(), { from, until } = shownTime();
  return Math.round(from + Math.min(1, Math.max(0, (event.clientX - left) / width)) * (until - from));
}

function drag(box) {
  box.addEventListener("wheel", (event) => event.target.closest(".lane, .chart") && wheel(event), { passive: false });
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.target.closest(".lane")) return;
    timeline.drag = { from: timeAt(event), x: event.clientX, thread: event.target.dataset.thread };
    box.setPointerCapture(event.pointerId);
    event.preventDefault();
    box.focus({ preventScroll: true });
  });
  box.addEventListener("pointermove", (event) => {
    if (!timeline.drag) return;
    const [a, b] = [timeline.drag.from, timeAt(event)].sort((a, b) => a - b);
    placeBrush(a, b);
    showTip(el("div", {}, timeText(a, b)), event.clientX, event.clientY);
  });
  box.addEventListener("pointerup", (event) => {
    if (!timeline.drag) return;
    const { from, x, thread } = timeline.drag;
    timeline.drag = null;
    hideTip();
    const [a, b] = [from, timeAt(event)].sort((a, b) => a - b);
    if (Math.abs(event.clientX - x) >= 4 && b > a) go({ from: a, until: b });
    else if (thread !== undefined) toggleChart(Number(thread));
    else go({ from: null, until: null });
    placeBrush(state.from, state.until);
  });
  box.addEventListener("pointercancel", () => {
    timeline.drag = null;
    hideTip();
    placeBrush(state.from, state.until);
  });
  box.addEventListener("keydown", timeKeys);
  for (const list of box.querySelectorAll(".threads")) list.addEventListener("scroll", drawSoon);
}

/** Moves and resizes the selected time by keys. */
function timeKeys(event) {
  if (event.target.id !== "rows") return;
  const from = state.from ?? 0, until = state.until ?? shown.end;
  const step = (until - from) / 10;
  const whole = (a, b) => go({ from: Math.round(Math.max(0, a)), until: Math.round(Math.min(shown.end, b)) }, { refine: state.from !== null });
  const keys = {
    ArrowLeft: () => whole(Math.max(0, from - step), Math.max(0, from - step) + (until - from)),
    ArrowRight: () => whole(Math.min(shown.end, until + step) - (until - from), until + step),
    "+": () => whole(from + step, until - step),
    "-": () => whole(from - step, until + step),
    Escape: () => go({ from: null, until: null }),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  event.stopPropagation();
  keys[event.key]();
}
