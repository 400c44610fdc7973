// Tables: functions, modules, threads, waits.

/** Rows that a table shows before "more". */
const MOST_ROWS = 200;

/** A function's name as the trace has it. */
const fullName = (f) => (f < 0 ? "no code of yours" : shown.facts.functions.names[f]);

/** A function's name as it is shown: what says nothing to a reader is left out. */
function nameOf(f) {
  if (f < 0) return fullName(f);
  shown.names ??= new Map();
  let name = shown.names.get(f);
  if (name === undefined) {
    // The module, which has its place beside the name; MSVC's unnamed namespaces; the number of type arguments, and
    // the runtime's word for shared ones (.NET).
    const module = moduleOf(f), prefixes = [module, module.replace(/\.[^.]*$/, "")].map((text) => `${text}!`);
    const prefix = prefixes.find((text) => text.length > 1 && fullName(f).startsWith(text)) ?? "";
    name = fullName(f).slice(prefix.length).replaceAll("`anonymous namespace'", "(anon)").replace(/`\d+(?=[.\[+(]|$)/g, "").replaceAll("System.__Canon", "…");
    shown.names.set(f, name);
  }
  return name;
}

/** The module of a function. */
function moduleOf(f) {
  if (f < 0) return "";
  return shown.facts.modules[shown.facts.functions.modules[f]];
}

/** Shares of the selection and of the whole. */
const bothShares = (amount) => (hasTotals() ? `${percent(amount, answer.weight)} of the selection, ${percent(amount, shown.whole[shown.weight])} of the total` : percent(amount, answer.weight));

const amountText = (amount) => WEIGHTS[shown.weight].show(amount);

/** Whether shares of the total differ from those of the selection. */
const hasTotals = () => isPart(state);

/** How many cells an amount takes. */
const amountColumns = () => (hasTotals() ? 3 : 2);

/** A cell with a share, and a bar beside it. */
function barCell(amount, whole) {
  const bar = el("i", {});
  bar.style.width = `${Math.min(100, (100 * amount) / (whole || 1))}%`;
  return el("td", { class: "number share" }, el("span", { class: "bar" }, bar), el("span", { class: "part" }, percent(amount, whole)));
}

/** Cells of an amount: the amount, its share of the selection with a bar, and of the total where that is another. */
function amountCells(amount) {
  return [
    el("td", { class: "number", "data-amount": amount }, amountText(amount)), barCell(amount, answer.weight),
    ...(hasTotals() ? [el("td", { class: "number soft" }, percent(amount, shown.whole[shown.weight]))] : []),
  ];
}

/** The head over the cells of an amount. */
const amountHead = (text) => el("th", { scope: "col", class: "number", colSpan: amountColumns() }, text, hasTotals() ? el("span", { class: "soft light" }, "  of selection, total") : "");

/** A second row of a head, for amounts behind some columns: of what the shares are. */
const sharesHead = (before, amounts) => (hasTotals() ? el("tr", { class: "soft" }, ...Array.from({ length: before }, () => el("th", {})), ...Array.from({ length: amounts }, () => ["", "selection", "total"]).flat().map((text) => el("th", { scope: "col", class: "number" }, text))) : "");

/** A button with a function's name. It leads to the function's callers and callees. */
function functionButton(f) {
  if (f < 0) return el("span", { class: "soft" }, nameOf(f));
  const button = el("button", { type: "button", class: "plain name", title: fullName(f), onclick: () => go({ fn: f, view: "around" }) }, nameOf(f));
  button.addEventListener("contextmenu", (event) => {
    event.preventDefault();
    openMenuOf(f, [f], event.clientX, event.clientY);
  });
  return button;
}

function functionRow(f, ...amounts) {
  const mark = el("i", { class: "swatch" });
  mark.style.background = chosenColour(f, 0);
  return el("tr", { class: state.fn === f ? "picked" : "", "data-function": f }, el("td", { class: "function" }, mark, functionButton(f)), el("td", { class: "module soft", title: moduleOf(f) }, moduleOf(f)), ...amounts.flatMap(amountCells));
}

const SORTS = {
  self: (a, b) => b.self - a.self || b.total - a.total || a.f - b.f,
  total: (a, b) => b.total - a.total || b.self - a.self || a.f - b.f,
  name: (a, b) => nameOf(a.f).localeCompare(nameOf(b.f), "en") || a.f - b.f,
  module: (a, b) => moduleOf(a.f).localeCompare(moduleOf(b.f), "en") || SORTS.self(a, b),
};

/** `sorts`: the orders of a table, the first of which is its own; `texts`: those by texts. */
function sortHead(key, text, columns, sorts = SORTS, texts = ["name", "module"]) {
  const on = (Object.hasOwn(sorts, state.sort) ? state.sort : Object.keys(sorts)[0]) === key;
  const sorted = texts.includes(key) ? "ascending" : "descending";
  return el("th", { scope: "col", class: sorted === "descending" ? "number" : "", colSpan: columns, "aria-sort": on ? sorted : "none" }, el("button", { type: "button", class: "plain", onclick: () => go({ sort: key }) }, text, on ? (sorted === "descending" ? " ▾" : " ▴") : ""));
}

function functionsView(view) {
  const { self, total, folded } = answer.functions;
  const rows = [];
  for (let f = 0; f < total.length; f++) if (total[f] > 0 || self[f] > 0) rows.push({ f, self: self[f], total: total[f] });
  rows.sort(Object.hasOwn(SORTS, state.sort) ? SORTS[state.sort] : SORTS.self);
  const matching = answer.matches ? rows.filter(({ f }) => answer.matches[f]) : rows;
  const body = el("tbody", {});
  const table = el("table", { class: "wide" },
    el("thead", {}, el("tr", {}, sortHead("name", "Function", 1), sortHead("module", "Module", 1), sortHead("self", `Self: ${WEIGHTS[shown.weight].title}`, amountColumns()), sortHead("total", "With callees", amountColumns())), sharesHead(2, 2)),
    body);
  const notes = [el("p", { class: "soft" }, `${counted(matching.length, "function")}${answer.matches ? ` that the search finds, of ${count(rows.length)} in the selection` : ""}. Recursion counts once.${folded > 0 ? ` ${amountText(folded)} (${bothShares(folded)}) is in stacks without code of yours.` : ""}`)];
  view.replaceChildren(...notes, table);
  appendRows(body, matching, ({ f, self, total }) => functionRow(f, self, total));
}

/** Appends rows to a table, the first ones, and a button for more. */
function appendRows(body, rows, make) {
  let at = 0;
  const more = () => {
    body.querySelector(".further")?.remove();
    const next = rows.slice(at, at + MOST_ROWS);
    body.append(...next.map(make));
    at += next.length;
    if (at < rows.length) body.append(el("tr", { class: "further" }, el("td", { colSpan: 8 }, el("button", { type: "button", class: "plain", onclick: more }, `${count(Math.min(MOST_ROWS, rows.length - at))} more of ${count(rows.length - at)}`))));
  };
  more();
}

/** Modules: what ends in their functions, and what has one of them. */
function modulesView(view) {
  const { self, total } = answer.modules;
  const rows = [];
  for (let m = 0; m < total.length; m++) if (total[m] > 0 || self[m] > 0) rows.push({ m, self: self[m], total: total[m] });
  rows.sort(state.sort === "total" ? (a, b) => b.total - a.total || a.m - b.m : state.sort === "name" ? (a, b) => moduleName(a.m).localeCompare(moduleName(b.m), "en") || a.m - b.m : (a, b) => b.self - a.self || b.total - a.total || a.m - b.m);
  const body = el("tbody", {});
  const make = ({ m, self, total }) => {
    const f = shown.facts.functions.modules.indexOf(m), owner = ownerOf(f);
    shown.hues ??= huesOf(shown);
    const mark = el("i", { class: "swatch", style: { background: owner === "own" ? tint(shown.hues.get(m)) : owner === "none" ? paint.nothing : paint[owner] } });
    return el("tr", { "data-module": shown.facts.modules[m] },
      el("td", { class: "function" }, mark, el("button", { type: "button", class: "plain name", title: "Select the stacks that have it", onclick: () => searchModule(m) }, moduleName(m))),
      el("td", { class: "soft" }, { own: "yours", system: "system", runtime: "runtime, framework", none: "" }[owner]), ...amountCells(self), ...amountCells(total));
  };
  view.replaceChildren(
    el("p", { class: "soft" }, `${counted(rows.length, "module")}. A stack that has a module several times counts once.${state.mine ? " Code of the system and of runtimes counts as its caller: m shows it." : ""}`),
    el("table", { class: "wide" }, el("thead", {}, el("tr", {}, sortHead("name", "Module", 1), el("th", { scope: "col" }, "Whose"), sortHead("self", `Self: ${WEIGHTS[shown.weight].title}`, amountColumns()), sortHead("total", "On the stack", amountColumns())), sharesHead(2, 2)), body));
  appendRows(body, rows, make);
}

const moduleName = (m) => shown.facts.modules[m] || "no module";

/** Selects the stacks that have a module. */
function searchModule(m) {
  const text = shown.facts.modules[m];
  if (text) go({ search: text, find: "", zoom: [] });
}

/** Threads with their numbers. */
function threadsView(view) {
  const orders = { name: (a, b) => threadName(a.facts).localeCompare(threadName(b.facts), "en") || a.t - b.t, total: (a, b) => b.wall - a.wall || a.t - b.t };
  const rows = answer.threads.map((thread) => ({ ...thread, facts: shown.facts.threads[thread.t] }));
  rows.sort(orders[state.sort] ?? ((a, b) => b.cpu - a.cpu || b.time[1] - a.time[1] || b.wall - a.wall || a.t - b.t));
  const all = rows.filter(({ chosen }) => chosen);
  const sum = (get) => all.reduce((sum, row) => sum + get(row), 0);
  const time = (ns, data) => el("td", { class: "number", "data-amount": data ? ns : undefined }, ns ? span(ns) : el("span", { class: "soft" }, "–"));
  const cells = ({ cpu, wall, time: [unknown, run, call, wait], samples }) => [
    el("td", { class: "number", "data-amount": cpu }, answer.cpuKnown ? span(cpu) : "–"), barCell(cpu, answer.cpu), time(wall, true), time(run), time(call), time(wait), time(unknown), el("td", { class: "number", "data-amount": samples }, count(samples))];
  const body = el("tbody", {});
  const make = (row) => {
    const picked = state.threads?.includes(row.t) ?? false, open = state.charts.includes(row.t);
    return el("tr", { class: picked ? "picked" : "", "data-thread": row.facts.tid },
      el("td", { class: "number soft" }, String(row.facts.tid)), el("td", { class: "wrapped" }, el("button", { type: "button", class: "plain name", "aria-pressed": String(picked), title: "Select it alone, with Ctrl add it", onclick: (event) => pickThread(row.t, event.ctrlKey || event.metaKey) }, row.facts.name || "no name")),
      ...cells(row), el("td", {}, state.process === ALL ? "" : el("button", { type: "button", class: "plain", "aria-pressed": String(open), onclick: () => toggleChart(row.t) }, open ? "close chart" : "flame chart")));
  };
  const head = el("tr", {}, el("th", { scope: "col", class: "number" }, "Id"), sortHead("name", "Thread", 1), sortHead("self", "CPU", 2), sortHead("total", "Time", 1), ...["Running", "System calls", "Waiting", "Not known", "Samples", ""].map((text) => el("th", { scope: "col", class: "number" }, text)));
  const total = el("tr", { class: "sum" }, el("td", {}), el("td", {}, counted(all.length, "thread")), ...cells({ cpu: sum((r) => r.cpu), wall: sum((r) => r.wall), time: [0, 1, 2, 3].map((s) => sum((r) => r.time[s])), samples: sum((r) => r.samples) }), el("td", {}));
  view.replaceChildren(
    el("p", { class: "soft" }, "CPU time is what the system's clock of the thread gained; running, system calls and waits are shares of the time between samples, by what they found."),
    el("div", { class: "scrolls" }, el("table", { class: "wide" }, el("thead", {}, head), body, el("tfoot", {}, total))));
  appendRows(body, rows, make);
}

function waitsView(view) {
  const { waits } = answer;
  const rows = waits.map((row, reason) => ({ ...row, reason })).filter((row) => row.samples > 0).sort((a, b) => b.ns - a.ns || a.reason - b.reason);
  const make = (row) => {
    const { reason, class: kind } = shown.facts.waits[row.reason];
    const on = state.wait === row.reason;
    return el("tr", { class: on ? "picked" : "" },
      el("td", {}, el("button", { type: "button", class: "plain name", "aria-pressed": String(on), title: "Select these waits", onclick: () => go(on ? { wait: -1, weight: null } : { wait: row.reason, weight: "waiting" }) }, reason)),
      el("td", {}, el("span", { class: `tag ${kind}` }, kind)),
      el("td", { class: "number", "data-amount": row.ns }, span(row.ns)), barCell(row.ns, answer.wall), ...(hasTotals() ? [el("td", { class: "number soft" }, percent(row.ns, shown.whole.wall))] : []),
      el("td", { class: "number", "data-amount": row.waits }, shown.facts.joined_ns ? "–" : count(row.waits)), el("td", { class: "number", "data-amount": row.longest }, shown.facts.joined_ns ? "–" : span(row.longest)),
      el("td", { class: "where" }, ...row.top.flatMap(([f, ns]) => [functionButton(f), el("span", { class: "soft" }, ` ${percent(ns, row.ns)}  `)])));
  };
  const body = el("tbody", {}, ...rows.map(make));
  const titles = ["For", "Class", "Time", ...(hasTotals() ? ["selection", "total"] : [""]), "Waits", "Longest", "Where"];
  const head = el("tr", {}, ...titles.map((text, i) => el("th", { scope: "col", class: i > 1 && i < titles.length - 1 ? "number" : "" }, text)));
  view.replaceChildren(
    el("p", { class: "soft" }, hasTotals() ? "Shares are of the selected threads' time, and of all threads' time in the trace." : "Shares are of the threads' time.", " Waits shorter than the time between two samples are mostly missed. Who woke whom cannot be known from samples.", shown.facts.joined_ns ? " Rows of this page are joined, so waits cannot be counted one by one." : ""),
    el("table", { class: "wide" }, el("thead", {}, head), body), rows.length ? "" : el("p", {}, "No thread waits in this selection."));
}
