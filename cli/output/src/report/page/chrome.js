// What frames the views: the answer, the selection with its parts, tabs, tooltip, menu, theme.

/** The best functions of the selection, as buttons. */
function topFunctions(most) {
  const { self } = answer.functions;
  const rows = [];
  for (let f = 0; f < self.length; f++) if (self[f] > 0) rows.push(f);
  rows.sort((a, b) => self[b] - self[a] || a - b);
  return rows.slice(0, most).flatMap((f, i) => [i ? ", " : "", functionButton(f), ` ${percent(self[f], answer.weight)}`]);
}

function answerLine(kind, title, view, ...parts) {
  return el("p", { class: "line" }, el("i", { class: `dot ${kind}` }), el("button", { type: "button", class: "plain what", onclick: () => go({ view }) }, title), el("span", {}, ...parts));
}

/** How long what is selected was recorded. The time line is longer where a row ends behind the recording. */
function recordedTime() {
  const { from_ns: start, until_ns: end } = shown.facts;
  return Math.max(1, Math.min(state.until ?? end, end) - Math.max(state.from ?? start, start));
}

function cpuLine() {
  const length = recordedTime();
  if (!answer.cpuKnown) {
    return answerLine("fair", "CPU", "functions", `CPU time is not recorded: ${inSentence(WEIGHTS[shown.weight].title)} ${amountText(answer.weight)} over ${span(length)}. Most: `, ...topFunctions(3));
  }
  const share = answer.cpu / length;
  const mostly = share < 0.1 ? "Mostly waits: " : "";
  const top = topFunctions(3);
  return answerLine("run", "CPU", "functions", `${mostly}${span(answer.cpu)} in ${span(length)}, ${percent(answer.cpu, length)} of one processor.`, top.length ? ` Most ${shown.weight === "cpu" ? "" : `(${inSentence(WEIGHTS[shown.weight].title)}) `}in ` : "", ...top);
}

function waitLine() {
  const rows = answer.waits.map((row, reason) => ({ ...row, ...shown.facts.waits[reason], number: reason })).filter(({ ns }) => ns > 0).sort((a, b) => b.ns - a.ns);
  const blocked = rows.filter((row) => row.class === "blocked").reduce((sum, row) => sum + row.ns, 0);
  const reasons = rows.slice(0, 3).flatMap((row, i) => [i ? ", " : "", el("button", { type: "button", class: "plain name", onclick: () => go({ view: "waits", wait: row.number, weight: "waiting" }) }, row.reason), ` ${span(row.ns)} (${row.class})`]);
  const text = `${span(answer.time[3])} of the threads' ${span(answer.wall)} (${percent(answer.time[3], answer.wall)}), ${blocked ? `${span(blocked)} of it blocked` : "none of it blocked for certain"}`;
  return answerLine(blocked > 0.05 * answer.wall ? "fair" : "wait", "Waits", "waits", text, reasons.length ? ": " : ".", ...reasons);
}

function trustLine() {
  const facts = trust();
  const damaged = shown.facts.warnings.length;
  const worst = Object.values(facts).some(({ grade }) => grade === "poor") ? "poor" : damaged || Object.values(facts).some(({ grade }) => grade === "fair") ? "fair" : "good";
  const verdict = { good: "Yes: ", fair: "With care: ", poor: "Only in part: " }[worst];
  const loss = damaged ? `; ${counted(damaged, "warning")}` : "";
  return answerLine(worst, "Can I trust it?", "quality", verdict + Object.values(facts).map(({ text }) => text).join("; ") + loss);
}

function showAnswer() {
  const share = answer.cpuKnown ? answer.cpu / recordedTime() : 1;
  const lines = share < 0.1 && !isPart(state) ? [waitLine(), cpuLine(), trustLine()] : [cpuLine(), waitLine(), trustLine()];
  $("answer").replaceChildren(...lines);
}

/** A part of the selection that a click takes away. */
function chip(text, change) {
  return el("button", { type: "button", class: "chip", title: "Take this out of the selection", onclick: () => go(change) }, text, el("b", { "aria-hidden": "true" }, " ×"));
}

function showSelection() {
  const chips = [];
  const { threads, from, until, search, find, states, wait, focus, hidden, zoom } = state;
  if (from !== null) chips.push(chip(`${moment(from)} – ${moment(until)}`, { from: null, until: null }));
  if (threads) chips.push(chip(threads.length === 1 ? threadName(shown.facts.threads[threads[0]] ?? {}) : counted(threads.length, "thread"), { threads: null }));
  if (search) chips.push(chip(`search: ${search}`, { search: "" }));
  const foreign = [search, find].find(isForeign);
  if (foreign) chips.push(el("button", { type: "button", class: "chip", id: "run", title: "Search for the expression of the link", onclick: () => runSearch(foreign) }, "not run: an expression of the link"));
  if (states.includes(false)) chips.push(chip(STATE_ORDER.filter((s) => states[s]).map((s) => STATES[s].name.toLowerCase()).join(", ") || "no state", { states: START.states }));
  if (wait >= 0) chips.push(chip(`waits for: ${shown.facts.waits[wait].reason}`, { wait: -1, weight: null }));
  if (focus >= 0) chips.push(chip(`stacks with ${nameOf(focus)}`, { focus: -1, zoom: [] }));
  for (const f of hidden) chips.push(chip(`hidden: ${nameOf(f)}`, { hidden: hidden.filter((other) => other !== f) }));
  if (zoom.length) chips.push(chip(`zoomed: ${nameOf(zoom[zoom.length - 1])}`, { zoom: [] }));
  const whole = shown.whole[shown.weight];
  const amount = `${WEIGHTS[shown.weight].title}: ${amountText(answer.weight)}`;
  const all = shown.facts.part ? "all of this page" : state.process === ALL ? "all traces" : "the whole trace";
  const part = isPart(state) ? ` of ${amountText(whole)} (${percent(answer.weight, whole)} of the total)` : ` (${all})`;
  $("selection").replaceChildren(el("b", { id: "selected", "data-weight": answer.weight, "data-whole": whole, "data-samples": answer.samples }, amount), el("span", { class: "soft" }, part), ...chips, chips.length ? el("button", { type: "button", class: "plain", onclick: reset }, "Whole trace") : "", shown.facts.part ? el("span", { class: "warn" }, `The page was made of a part of the trace: ${shown.facts.part}`) : "");
}

function reset() {
  const { process, view, sort, mine, once, inverted, fn, colour, charts } = state;
  go({ ...START, process, view, sort, mine, once, inverted, fn, colour, charts });
}

/** Views, by their keys. */
const DRAW = { flame: () => {}, tree: treeView, functions: functionsView, around: aroundView, source: sourceView, modules: modulesView, threads: threadsView, waits: waitsView, events: eventsView, quality: qualityView };

function showTabs() {
  const tab = (key, i) => el("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-selected": String(state.view === key), tabIndex: state.view === key ? 0 : -1, title: i < 9 ? `Key ${i + 1}` : "", onclick: () => go({ view: key }) }, VIEWS[key]);
  const focused = document.activeElement?.id;
  $("tabs").replaceChildren(...viewsOf(state.process).map(tab));
  if (focused?.startsWith("tab-")) $(`tab-${state.view}`).focus();
  $("view").setAttribute("aria-labelledby", `tab-${state.view}`);
}

function showView() {
  const view = $("view");
  if (state.view === "flame") {
    if (!flame.scroller?.isConnected) flameView(view);
    showFlame(answer);
  } else DRAW[state.view](view);
}

/** The tooltip of a function: name, module, source, amounts with both shares. */
function tipOf(f, amounts, more) {
  const box = el("div", {});
  if (f >= 0) {
    const { files, lines, sources, categories } = shown.facts.functions;
    box.append(el("b", {}, fullName(f)), el("div", { class: "soft" }, [moduleOf(f), shown.facts.categories[categories[f]], sources[f] === "none" ? "no symbols" : `name: ${sources[f]}`].filter(Boolean).join(" · ")));
    if (files[f]) box.append(el("div", { class: "soft" }, `${shown.facts.files[files[f] - 1]}${lines[f] ? `:${lines[f]}` : ""}`));
  } else box.append(el("b", {}, "Several functions"));
  box.append(el("table", {}, el("tbody", {}, ...amounts.map(([name, amount]) => el("tr", {}, el("td", {}, name), el("td", { class: "number" }, amountText(amount)), el("td", { class: "number" }, hasTotals() ? `${percent(amount, answer.weight)} of selection` : percent(amount, answer.weight)), hasTotals() ? el("td", { class: "number" }, `${percent(amount, shown.whole[shown.weight])} of total`) : null)))), ...more.map((text) => el("div", { class: "warn" }, text)));
  return box;
}

function showTip(content, x, y) {
  const tip = $("tooltip");
  tip.replaceChildren(content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

const hideTip = () => ($("tooltip").hidden = true);

/** What the keyboard and the menu do with a function. `stack`: its stack, innermost first. */
const functionKeys = (f, stack) => ({
  f: () => go({ focus: f, zoom: [] }),
  h: () => go({ hidden: [...new Set([...state.hidden, f])].sort((a, b) => a - b), zoom: [] }),
  c: () => go({ fn: f, view: "around" }),
  y: () => copy(stack.map((g) => `${moduleOf(g)}!${fullName(g)}`).join("\n")),
});

/** The menu of a frame of the flame graph. */
function openMenu(frame, x, y) {
  openMenuOf(flame.frames.fn[frame], stackOf(frame), x, y, () => go({ zoom: pathOf(frame) }));
}

/** The menu of a function. `zoom` and `time`: what shows it alone, and what selects its time, if it can be. */
function openMenuOf(f, stack, x, y, zoom, time) {
  hideTip();
  const keys = functionKeys(f, stack);
  const items = [
    zoom && ["Zoom in", "Enter", zoom],
    time && ["Select its time", "", time],
    ["Focus: only stacks with it", "f", keys.f],
    ["Hide: fold it into its caller", "h", keys.h],
    ["Callers and callees", "c", keys.c],
    sourceOf(f) && ["Source lines", "", () => go({ fn: f, view: "source" })],
    ["Copy stack", "y", keys.y],
    ["Copy name", "", () => copy(fullName(f))],
  ].filter(Boolean);
  const menu = $("menu");
  const back = document.activeElement;
  const close = () => {
    menu.hidden = true;
    back?.focus?.({ preventScroll: true });
  };
  menu.replaceChildren(...items.map(([text, key, act]) => el("button", { type: "button", role: "menuitem", tabIndex: -1, onclick: () => (close(), act()) }, text, key ? el("kbd", {}, key) : "")));
  menu.onkeydown = (event) => {
    const all = [...menu.children], at = all.indexOf(document.activeElement);
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) all[(at + move + all.length) % all.length].focus();
    else if (event.key === "Escape" || event.key === "Tab") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  menu.close = close;
  menu.hidden = false;
  const { width, height } = menu.getBoundingClientRect();
  menu.style.left = `${Math.max(4, Math.min(x, innerWidth - width - 8))}px`;
  menu.style.top = `${Math.max(4, Math.min(y, innerHeight - height - 8))}px`;
  menu.firstChild.focus();
}

/** Light, dark, or as the system says. */
function applyTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  readPaint();
  if (answer || state.view === "traces") render();
}

function toggleTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("stk-theme", theme);
  } catch {
    // Storage is off: the choice lasts as long as the page.
  }
  applyTheme(theme);
}
