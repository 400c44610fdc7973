// The page of `stk report`. The data of a trace is unpacked and summed up in a worker; the page shows
// the sums of one selection, which lives in the address.
//
//   text      elements, numbers as text
//   state     the selection, and its address
//   colour    colours of functions
//   flame     the flame graph
//   timeline  CPU time over time, by thread
//   zoom      which time is shown
//   chart     stacks over time, of a thread
//   events    what happened
//   tree      call trees
//   tables    functions, modules, threads, waits
//   source    source lines of functions
//   quality   how far to trust it
//   many      the list of several traces
//   chrome    the answer, the selection's parts, tabs, tooltip, menu, theme
//   search    the search, from hit to hit
//   keys      the keyboard
//   app       asks the worker, and draws what it answers
//   worker/   decode, recursion, merge, sums, lanes, graph, tree, chart, main: what the worker does

const worker = new Worker(URL.createObjectURL(new Blob([$("program").textContent], { type: "text/javascript" })));

/** The trace that is shown: its facts and its sums. */
let shown = null;
/** The sums of the selection, as the worker gave them. */
let answer = null;

const asked = new Map();
let lastId = 0;

function ask(message) {
  return new Promise((resolve, reject) => {
    const id = ++lastId;
    asked.set(id, { resolve, reject });
    worker.postMessage({ ...message, id });
  });
}

worker.onmessage = ({ data: { id, answer, error } }) => {
  const { resolve, reject } = asked.get(id);
  asked.delete(id);
  if (error) reject(new Error(error));
  else resolve(answer);
};

/** Shows an error where the answer would be. */
function fail(error) {
  $("answer").replaceChildren(el("p", { class: "line warn" }, `This cannot be shown: ${error.message}`));
  document.body.dataset.ready = "failed";
}

const loaded = new Map();

async function load(process) {
  const blocks = [...document.querySelectorAll("script.trace")].filter((_, i) => process === ALL || process === i).map((block) => block.textContent);
  const { facts, whole, end, rows } = await ask({ ask: "load", blocks });
  return { process, facts, whole, end, rows, cpuKnown: whole.cpu > 0, weight: "cpu" };
}

/** One question at a time; of those that wait, the last one alone counts. */
let busy = false, waiting = null;

/** Shows the state of the address. `again`: also if the sums that it needs are there. */
async function update({ again = false } = {}) {
  waiting = { again: again || (waiting?.again ?? false) };
  if (busy) return;
  busy = true;
  while (waiting) {
    const { again } = waiting;
    waiting = null;
    await updateOnce(again).catch(fail);
  }
  busy = false;
}

/** What the answer is of. */
let answeredHash = null;

async function updateOnce(again) {
  const begun = performance.now();
  const before = state;
  // The address is newer than what the wheel left.
  clearTimeout(rested);
  state = fromHash(location.hash);
  if (state.view === "traces") {
    render();
    isReady(begun);
    return;
  }
  if (shown?.process !== state.process) {
    shown = await load(state.process);
    // Nothing of the other process is drawn with this one's names.
    answer = answeredHash = timeline.data = flame.frames = null;
    flame.rows = [];
    paint.functions.clear();
    $("timeline").replaceChildren();
  }
  state = fitting(state, shown);
  if (state.colour !== before.colour) paint.functions.clear();
  shown.weight = state.weight ?? (shown.cpuKnown ? "cpu" : shown.whole.active > 0 ? "active" : "wall");
  const needsThreads = state.colour === "thread" && !answer?.threadOf;
  if (again || needsThreads || answeredHash !== sumsHash(state)) {
    if (!(await askForSums())) return;
  }
  $("search").removeAttribute("aria-invalid");
  render();
  if (state.find !== before.find) {
    hitAt = -1;
    nextHit(1);
  }
  isReady(begun);
}

/** Says that the address is shown, and how long that took. */
function isReady(begun) {
  document.body.dataset.ready = location.hash || "#";
  document.body.dataset.took = (performance.now() - begun).toFixed(1);
}

/** The sums of the state; false if its search is no expression. */
async function askForSums() {
  const { from, until, threads, search, find, states, wait, mine, inverted, focus, hidden, zoom } = state;
  const allowed = (text) => (isForeign(text) ? "" : text);
  // Quality counts the frames of stacks as they were recorded.
  const once = state.once && state.view !== "quality";
  const selection = { from, until, threads, search: allowed(search), find: allowed(find), states, wait, weight: shown.weight, mine, once, inverted, focus, hidden, zoom };
  const wants = { modules: state.view === "modules", trees: wantedTrees(state), threadOf: state.colour === "thread", overview: state.process !== ALL };
  const hash = sumsHash(state);
  try {
    const next = await ask({ ask: "select", selection, wants });
    next.process = shown.process;
    // What did not change is drawn already.
    if (answer && sameFrames(answer, next)) next.flame = answer.flame;
    answer = next;
    answeredHash = hash;
    keepTrees(state, answer.trees);
    return true;
  } catch (error) {
    // An expression that is half typed: what was selected before stays in sight.
    $("search").setAttribute("aria-invalid", "true");
    $("selection").replaceChildren(el("span", { class: "warn" }, error.message), chip(`search: ${find || search}`, find ? { find: "" } : { search: "" }));
    document.body.dataset.ready = location.hash;
    answeredHash = null;
    return false;
  }
}

/** Whether two answers have the same flame graph: that of the same selection, whatever is looked for in it. */
function sameFrames(a, b) {
  const key = ({ selection: { find, ...others }, flame }) => JSON.stringify([others, flame.frames.fn.length]);
  return a.process === b.process && key(a) === key(b);
}

function render() {
  document.body.classList.toggle("listing", state.view === "traces");
  $("process").value = String(state.process);
  if (state.view === "traces") {
    document.title = `${counted(traces.length, "trace")} – stk report`;
    showTabs();
    showTraces();
    return;
  }
  document.title = `${shown.facts.process} – stk report`;
  showControls();
  showAnswer();
  showSelection();
  showTimeline();
  showTabs();
  showView();
  showFound();
}

function showControls() {
  const press = (id, on) => $(id).setAttribute("aria-pressed", String(on));
  press("mine", state.mine);
  press("once", state.once);
  press("inverted", state.inverted);
  $("weight").value = shown.weight;
  // What is being typed is newer than the address.
  if (!typed) $("search").value = state.find;
  [...$("states").children].forEach((button) => button.setAttribute("aria-pressed", String(state.states[Number(button.dataset.state)])));
}

function begin() {
  const names = traces.map(({ process, pid, host, cpu_ns: cpu, source }) => `${process} (${pid})${host ? ` on ${host}` : ""} – ${cpu > 0 ? `${span(cpu)} CPU` : "CPU not recorded"} – ${source.split(/[\\/]/).pop()}`);
  if (traces.length > 1) $("process").append(el("option", { value: String(ALL) }, `All ${count(traces.length)} traces`));
  $("process").append(...names.map((name, i) => el("option", { value: String(i) }, name)));
  $("process").onchange = (event) => goToTrace(Number(event.target.value));
  $("weight").append(...Object.entries(WEIGHTS).map(([key, { title }]) => el("option", { value: key }, title)));
  $("weight").onchange = (event) => go({ weight: event.target.value });
  $("states").append(...STATE_ORDER.map((s) => el("button", { type: "button", "aria-pressed": "true", "data-state": String(s), title: STATES[s].title, onclick: () => go({ states: state.states.map((on, i) => (i === s ? !on : on)), wait: -1 }) }, STATES[s].name)));
  $("search").oninput = (event) => searchFor(event.target.value);
  $("mine").onclick = PAGE_KEYS.m;
  $("once").onclick = PAGE_KEYS.o;
  $("inverted").onclick = toggleInverted;
  $("theme").onclick = toggleTheme;
  $("help").onclick = showKeys;
  addEventListener("keydown", onKey);
  addEventListener("hashchange", () => update());
  addEventListener("pointerdown", (event) => !$("menu").hidden && !event.target.closest("#menu") && $("menu").close());
  let resized = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => {
      if (!answer) return;
      drawTimeline();
      askZoomed();
      drawFlame();
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => applyTheme());
  let theme = null;
  try {
    theme = localStorage.getItem("stk-theme");
  } catch {
    // Storage is off.
  }
  applyTheme(theme);
  update();
}

begin();
