// The timeline: CPU time of all threads, then of each, stacked by state. A drag selects a time.

const BINS = 480, OF_BIN = 5;
/** Threads that are drawn before "more". */
const MOST_THREADS = 10;
/** A thread below this part of all threads' time that counts is idle. */
const IDLE = 0.005;

const timeline = { all: false, idle: false, drag: null };

/** Whether a thread's row counts by CPU time, or, where none is known, by time on a processor. */
const activity = (thread) => thread.time[1] + thread.time[2];

function showTimeline() {
  const threads = [...answer.threads].sort((a, b) => b.time[1] - a.time[1] || activity(b) - activity(a) || b.wall - a.wall || a.t - b.t);
  const all = threads.reduce((sum, thread) => sum + activity(thread), 0);
  const busy = threads.filter((thread) => activity(thread) > IDLE * all || (state.threads && thread.chosen));
  const idle = threads.filter((thread) => !busy.includes(thread));
  const rows = timeline.all ? busy : busy.slice(0, MOST_THREADS);
  const more = busy.length - rows.length;
  const box = el("div", { class: "rows", id: "rows", tabIndex: 0, role: "application", "aria-label": "Time. Drag, or arrow keys: move the selected time; plus and minus: change its length; Escape: all of it." });
  box.append(axis(), totalRow(threads.filter((thread) => thread.chosen)), ...rows.map(threadRow));
  if (timeline.idle) box.append(...idle.slice(0, 500).map(threadRow));
  box.append(el("div", { class: "brush", id: "brush", hidden: true }));
  const buttons = el("div", { class: "more" });
  if (more > 0 || timeline.all) buttons.append(toggle(timeline.all ? "Fewer threads" : `${counted(more, "more thread")}`, "all"));
  if (idle.length) {
    const text = timeline.idle ? "Hide idle threads" : `${counted(idle.length, "idle thread")}: under ${100 * IDLE} % of the time that threads ran`;
    buttons.append(toggle(text, "idle"));
  }
  const focused = document.activeElement?.id === "rows";
  $("timeline").replaceChildren(el("div", { class: "legend" }, el("span", { class: "soft" }, "Timeline. "), ...[["run", "running or ready"], ["call", "system call"], ["unknown", "not known"], ["wait", "waiting"]].map(([name, text]) => el("span", {}, el("i", { class: `key ${name}` }), text)), marksNote()), box, buttons);
  if (focused) box.focus();
  drag(box);
  drawTimeline();
}

function toggle(text, which) {
  return el("button", { type: "button", class: "plain", "aria-expanded": String(timeline[which]), onclick: () => {
    timeline[which] = !timeline[which];
    showTimeline();
  } }, text);
}

function marksNote() {
  const { marks } = shown.facts;
  return marks.length ? el("span", { class: "soft" }, `${counted(marks.length, "mark")} ▼`) : null;
}

function axis() {
  const row = el("div", { class: "row axis" }, el("span", { class: "label soft" }, "Thread"), el("div", { class: "lane" }), el("span", { class: "amount soft" }, answer.cpuKnown ? "CPU" : "ran"));
  const lane = row.children[1];
  const step = niceStep(shown.end / 6);
  for (let at = 0; at < shown.end; at += step) {
    lane.append(el("span", { class: "tick", style: { left: `${(100 * at) / shown.end}%` } }, step >= 1e9 ? `${at / 1e9} s` : `${Math.round(at / 1e6)} ms`));
  }
  for (const mark of shown.facts.marks.slice(0, 200)) {
    lane.append(el("span", { class: "mark", title: `${moment(mark.time_ns)}: ${mark.text || `mark ${mark.tag}`}`, style: { left: `${(100 * mark.time_ns) / shown.end}%` } }, "▼"));
  }
  return row;
}

/** 1, 2 or 5 times a power of ten, at least `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1e6, least)));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) ?? 10);
}

function totalRow(threads) {
  const bins = new Float64Array(BINS * OF_BIN);
  for (const thread of threads) for (let i = 0; i < bins.length; i++) bins[i] += thread.bins[i];
  const row = el("div", { class: "row total" }, el("span", { class: "label" }, state.threads ? counted(threads.length, "thread") : "All threads"), el("canvas", { class: "lane" }), el("span", { class: "amount" }, span(answer.time[1])));
  row.children[1].draw = (canvas) => drawTotal(canvas, bins);
  return row;
}

const threadName = ({ name, tid }) => (name ? `${name} (${tid})` : `thread ${tid}`);

function threadRow(thread) {
  const facts = shown.facts.threads[thread.t];
  const picked = state.threads?.includes(thread.t) ?? false;
  const title = `${threadName(facts)}: click to select it alone, with Ctrl to add it`;
  const label = el("button", { type: "button", class: "label plain", title, "aria-pressed": String(picked), onclick: (event) => pickThread(thread.t, event.ctrlKey || event.metaKey || event.shiftKey) }, threadName(facts));
  const row = el("div", { class: `row${thread.chosen ? "" : " unchosen"}` }, label, el("canvas", { class: "lane" }), el("span", { class: "amount", title: `${percent(thread.time[1], answer.time[1])} of the selection's` }, span(thread.time[1])));
  row.children[1].draw = (canvas) => drawLane(canvas, thread.bins);
  return row;
}

function pickThread(t, add) {
  const old = state.threads ?? [];
  const others = old.filter((other) => other !== t);
  const next = add ? (others.length < old.length ? others : [...old, t].sort((a, b) => a - b)) : others.length < old.length && old.length === 1 ? [] : [t];
  go({ threads: next.length ? next : null });
}

function drawTimeline() {
  for (const canvas of document.querySelectorAll("#rows canvas")) canvas.draw?.(canvas);
  placeBrush(state.from, state.until);
}

/** A bin's parts: running, system call, not known, waiting; each of `all`. */
function partsOf(bins, bin) {
  return [1, 2, 0, 3].map((state) => bins[bin * OF_BIN + state]);
}

function drawLane(canvas, bins) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const pen = penOf(canvas, width, height);
  const colours = [paint.run, paint.call, paint.unknown, paint.wait];
  const binTime = shown.end / BINS || 1;
  for (let bin = 0; bin < BINS; bin++) {
    const left = (bin * width) / BINS, wide = Math.max(width / BINS, 0.7) + 0.2;
    let y = height;
    partsOf(bins, bin).forEach((part, i) => {
      const tall = Math.min(1, part / binTime) * height;
      pen.fillStyle = colours[i];
      // Waits are a thin line: the thread was there and did nothing.
      if (i === 3) {
        if (part > 0) pen.fillRect(left, height - 2, wide, 2);
        return;
      }
      pen.fillRect(left, y - tall, wide, tall);
      y -= tall;
    });
  }
}

/** Clocks of threads that step by up to 15.6 ms: sums over less say little. */
const CLOCK_STEP = 32e6;

/** The mean of as many numbers around each as a clock's step has bins. */
function smoothed(list, binTime) {
  const half = shown.facts.cpu_source === "thread-times" ? Math.min(BINS, Math.floor(CLOCK_STEP / binTime / 2)) : 0;
  return list.map((_, i) => {
    const near = list.slice(Math.max(0, i - half), i + half + 1);
    return near.reduce((sum, number) => sum + number, 0) / near.length;
  });
}

/** All threads: how many processors they kept busy. */
function drawTotal(canvas, bins) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const pen = penOf(canvas, width, height);
  const binTime = shown.end / BINS || 1;
  const parts = Array.from({ length: BINS }, (_, bin) => partsOf(bins, bin));
  const [run, call] = [0, 1].map((i) => smoothed(parts.map((of) => of[i] / binTime), binTime));
  const peak = Math.max(1, ...run.map((busy, bin) => busy + call[bin]));
  for (let bin = 0; bin < BINS; bin++) {
    let y = height;
    for (const [busy, colour] of [[run[bin], paint.run], [call[bin], paint.call]]) {
      const tall = (busy / peak) * (height - 2);
      pen.fillStyle = colour;
      pen.fillRect((bin * width) / BINS, y - tall, width / BINS + 0.2, tall);
      y -= tall;
    }
  }
  pen.fillStyle = paint.soft;
  pen.font = "11px sans-serif";
  pen.textBaseline = "top";
  pen.fillText(`scale: ${three(peak)} threads at once`, 4, 2);
}

/** Shows a stretch of time over all rows. */
function placeBrush(from, until) {
  const brush = $("brush"), lane = document.querySelector("#rows .lane");
  if (!brush || !lane) return;
  brush.hidden = from === null;
  if (from === null) return;
  const width = lane.clientWidth;
  brush.style.left = `${lane.offsetLeft + (width * from) / shown.end}px`;
  brush.style.width = `${Math.max(1, (width * (Math.min(until, shown.end) - from)) / shown.end)}px`;
}

function drag(box) {
  const timeAt = (event) => {
    const { left, width } = box.querySelector(".lane").getBoundingClientRect();
    return Math.round(Math.min(1, Math.max(0, (event.clientX - left) / width)) * shown.end);
  };
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.target.closest(".lane")) return;
    timeline.drag = { from: timeAt(event), x: event.clientX };
    box.setPointerCapture(event.pointerId);
    event.preventDefault();
    box.focus();
  });
  box.addEventListener("pointermove", (event) => {
    if (!timeline.drag) return;
    const [a, b] = [timeline.drag.from, timeAt(event)].sort((a, b) => a - b);
    placeBrush(a, b);
    showTip(el("div", {}, `${moment(a)} – ${moment(b)} (${span(b - a)})`), event.clientX, event.clientY);
  });
  box.addEventListener("pointerup", (event) => {
    if (!timeline.drag) return;
    const { from, x } = timeline.drag;
    timeline.drag = null;
    hideTip();
    const [a, b] = [from, timeAt(event)].sort((a, b) => a - b);
    if (Math.abs(event.clientX - x) < 4 || b <= a) go({ from: null, until: null });
    else go({ from: a, until: b });
    placeBrush(state.from, state.until);
  });
  box.addEventListener("keydown", timeKeys);
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
