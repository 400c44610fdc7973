// Tables: functions, callers and callees, waits.

/** Rows that a table shows before "more". */
const MOST_ROWS = 200;

const nameOf = (f) => (f < 0 ? "no code of yours" : shown.facts.functions.names[f]);

/** The module of a function. */
function moduleOf(f) {
  if (f < 0) return "";
  return shown.facts.modules[shown.facts.functions.modules[f]];
}

/** Shares of the selection and of the whole. */
const bothShares = (amount) => `${percent(amount, answer.weight)} of the selection, ${percent(amount, shown.whole[shown.weight])} of the total`;

const amountText = (amount) => WEIGHTS[shown.weight].show(amount);

/** Three cells: an amount, its share of the selection with a bar, its share of the total. */
function amountCells(amount) {
  const bar = el("i", { class: "bar" });
  bar.style.width = `${Math.min(100, (100 * amount) / (answer.weight || 1))}%`;
  return [
    el("td", { class: "number", "data-amount": amount }, amountText(amount)),
    el("td", { class: "number share" }, bar, el("span", {}, percent(amount, answer.weight))),
    el("td", { class: "number soft" }, percent(amount, shown.whole[shown.weight])),
  ];
}

/** A button with a function's name. It leads to the function's callers and callees. */
function functionButton(f) {
  if (f < 0) return el("span", { class: "soft" }, nameOf(f));
  const button = el("button", { type: "button", class: "plain name", title: nameOf(f), onclick: () => go({ fn: f, view: "around" }) }, nameOf(f));
  button.addEventListener("contextmenu", (event) => {
    event.preventDefault();
    openMenuOf(f, [f], event.clientX, event.clientY);
  });
  return button;
}

function functionRow(f, ...amounts) {
  const mark = el("i", { class: "swatch" });
  mark.style.background = colourOf(shown.facts, f);
  return el("tr", { class: state.fn === f ? "picked" : "", "data-function": f }, el("td", { class: "function" }, mark, functionButton(f)), el("td", { class: "module soft", title: moduleOf(f) }, moduleOf(f)), ...amounts.flatMap(amountCells));
}

const SORTS = {
  self: (a, b) => b.self - a.self || b.total - a.total || a.f - b.f,
  total: (a, b) => b.total - a.total || b.self - a.self || a.f - b.f,
  name: (a, b) => nameOf(a.f).localeCompare(nameOf(b.f), "en") || a.f - b.f,
  module: (a, b) => moduleOf(a.f).localeCompare(moduleOf(b.f), "en") || SORTS.self(a, b),
};

function sortHead(key, text, columns) {
  const on = (Object.hasOwn(SORTS, state.sort) ? state.sort : "self") === key;
  const sorted = key === "self" || key === "total" ? "descending" : "ascending";
  return el("th", { scope: "col", colSpan: columns, "aria-sort": on ? sorted : "none" }, el("button", { type: "button", class: "plain", onclick: () => go({ sort: key }) }, text, on ? (sorted === "descending" ? " ▾" : " ▴") : ""));
}

/** A table's head for columns of amounts: what, of the selection, of the total. */
const shares = () => ["", "selection", "total"].map((text) => el("th", { scope: "col", class: "number" }, text));

function functionsView(view) {
  const { self, total, folded } = answer.functions;
  const rows = [];
  for (let f = 0; f < total.length; f++) if (total[f] > 0 || self[f] > 0) rows.push({ f, self: self[f], total: total[f] });
  rows.sort(Object.hasOwn(SORTS, state.sort) ? SORTS[state.sort] : SORTS.self);
  const matching = answer.matches ? rows.filter(({ f }) => answer.matches[f]) : rows;
  const body = el("tbody", {});
  const table = el("table", { class: "wide" },
    el("thead", {}, el("tr", {}, sortHead("name", "Function", 1), sortHead("module", "Module", 1), sortHead("self", `Self: ${WEIGHTS[shown.weight].title}`, 3), sortHead("total", "With callees", 3)), el("tr", { class: "soft" }, el("th", {}), el("th", {}), ...shares(), ...shares())),
    body);
  const notes = [el("p", { class: "soft" }, `${counted(matching.length, "function")}${answer.matches ? ` that the search finds, of ${count(rows.length)} in the selection` : ""}. Recursion counts once.${folded > 0 ? ` ${amountText(folded)} (${bothShares(folded)}) lies in stacks without code of yours.` : ""}`)];
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

function aroundView(view) {
  const { around } = answer;
  if (!around) {
    view.replaceChildren(el("p", {}, "Choose a function: in the table of functions, or by its menu in the flame graph (right click)."));
    return;
  }
  const { f, weight, self, outermost, callers, callees, unproved } = around;
  const { files, lines, sources, causes } = shown.facts.functions;
  const place = files[f] ? `${shown.facts.files[files[f] - 1]}${lines[f] ? `:${lines[f]}` : ""}` : "";
  const cause = causes[f] ? shown.facts.causes[causes[f] - 1].cause : "";
  const list = (title, note, rows) => {
    const body = el("tbody", {});
    const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, title), el("th", { scope: "col" }, "Module"), ...shares())), body);
    appendRows(body, rows, ([g, amount]) => functionRow(g, amount));
    return el("div", {}, table, rows.length ? null : el("p", { class: "soft" }, note));
  };
  const roots = outermost > 0 ? [...callers, [-1, outermost]] : callers;
  view.replaceChildren(
    el("div", { class: "subject" }, el("h2", {}, nameOf(f)), el("span", { class: "soft" }, [moduleOf(f), place, `named by: ${sources[f]}`].filter(Boolean).join(" · ")),
      cause ? el("p", { class: "warn" }, cause) : null,
      el("p", {}, `${amountText(weight)} with callees (${bothShares(weight)}), ${amountText(self)} its own (${bothShares(self)}).${unproved > 0 ? ` ${percent(unproved, weight)} of it is not proved.` : ""} Recursion counts once: callers are those of its outermost call.`)),
    el("div", { class: "columns" }, list("Callers", "No caller is known: stacks begin here.", roots), list("Callees", "It calls nothing that samples show.", callees)),
  );
}

function waitsView(view) {
  const { waits } = answer;
  const rows = waits.map((row, reason) => ({ ...row, reason })).filter((row) => row.samples > 0).sort((a, b) => b.ns - a.ns || a.reason - b.reason);
  const make = (row) => {
    const { reason, class: kind } = shown.facts.waits[row.reason];
    const bar = el("i", { class: "bar" });
    bar.style.width = `${Math.min(100, (100 * row.ns) / (answer.wall || 1))}%`;
    const on = state.wait === row.reason;
    return el("tr", { class: on ? "picked" : "" },
      el("td", {}, el("button", { type: "button", class: "plain name", "aria-pressed": String(on), title: "Select these waits", onclick: () => go(on ? { wait: -1, weight: null } : { wait: row.reason, weight: "waiting" }) }, reason)),
      el("td", {}, el("span", { class: `tag ${kind}` }, kind)),
      el("td", { class: "number", "data-amount": row.ns }, span(row.ns)), el("td", { class: "number share" }, bar, el("span", {}, percent(row.ns, answer.wall))), el("td", { class: "number soft" }, percent(row.ns, shown.whole.wall)),
      el("td", { class: "number", "data-amount": row.waits }, shown.facts.joined_ns ? "–" : count(row.waits)), el("td", { class: "number", "data-amount": row.longest }, shown.facts.joined_ns ? "–" : span(row.longest)),
      el("td", { class: "where" }, ...row.top.flatMap(([f, ns]) => [functionButton(f), el("span", { class: "soft" }, ` ${percent(ns, row.ns)}  `)])));
  };
  const body = el("tbody", {}, ...rows.map(make));
  const head = el("tr", {}, ...["For", "Class", "Time", "selection", "total", "Waits", "Longest", "Where"].map((text, i) => el("th", { scope: "col", class: i > 1 && i < 7 ? "number" : "" }, text)));
  view.replaceChildren(
    el("p", { class: "soft" }, "Shares are of the selected threads' time, and of all threads' time in the trace. Waits shorter than the time between two samples are mostly missed. Who woke whom cannot be known from samples.", shown.facts.joined_ns ? " Rows of this page are joined, so waits cannot be counted one by one." : ""),
    el("table", { class: "wide" }, el("thead", {}, head), body), rows.length ? "" : el("p", {}, "No thread waits in this selection."));
}
