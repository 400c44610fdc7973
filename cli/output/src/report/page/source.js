// Source lines and instructions of functions, each with what samples come to in it.

/** The source of a function, if the page holds it. */
const sourceOf = (f) => shown.facts.sources.find(({ functions }) => functions.includes(f));

/** The cells of the weight that ends in a line or instruction, its part of the function's, and of what has it on the stack. */
function weightCells(own, total, self) {
  const cell = (ns) => el("td", { class: "number", "data-amount": ns }, ns ? span(ns) : "");
  return [cell(own), own ? barCell(own, self) : el("td", {}), cell(total)];
}

/** The colour behind a row: the more weight, the stronger. */
const heat = (own, most) => (own ? { background: `color-mix(in srgb, ${paint.call} ${Math.round(6 + (44 * own) / most)}%, transparent)` } : {});

/** A table of weights; rows have a heading of their own before them and a text behind them. */
function weightTable(heading, text, rows) {
  const th = (name, number) => el("th", { scope: "col", class: number ? "number" : "" }, name);
  return el("div", { class: "scrolls" }, el("table", { class: "wide" },
    el("thead", {}, el("tr", {}, th(heading, true), th("Self", true), el("th", {}), th("With callees", true), ...text.map((name) => th(name, name === "Line")))), el("tbody", {}, ...rows)));
}

/** Marks the lines and instructions of a line, and shows the first of the others. */
function pickLine(view, row) {
  const { line } = row.dataset;
  for (const other of view.querySelectorAll("tr[data-line]")) other.classList.toggle("picked", line !== "0" && other.dataset.line === line);
  const others = [...view.querySelectorAll("tr.picked")].filter((other) => other.closest("table") !== row.closest("table"));
  others[0]?.scrollIntoView({ block: "nearest" });
}

/** The instructions of a function. Rows of addresses at which none is known say why. */
function instructionTables({ code, code_problem: problem }, pick) {
  const rows = code.flatMap(({ rows }) => rows);
  const self = rows.reduce((sum, [, , , , , own]) => sum + own, 0), most = Math.max(1, ...rows.map(([, , , , , own]) => own));
  const row = ([address, skipped, text, none, line, own, total]) => [
    skipped ? el("tr", { class: "soft" }, el("td", { colSpan: 5 }), el("td", {}, `… ${counted(skipped, "instruction")}`)) : "",
    el("tr", { "data-address": address, "data-line": line, style: heat(own, most), onclick: pick },
      el("td", { class: "number soft code" }, address), ...weightCells(own, total, self),
      el("td", { class: "number soft" }, line ? String(line) : ""), el("td", { class: text ? "code" : "soft" }, text ?? `(${none})`)),
  ];
  return [problem ? el("p", { class: "warn" }, problem) : "",
    ...code.map(({ module, base, rows }) => weightTable("Address", ["Line", `${module || "no module"}, addresses ${base === "module" ? "from its beginning" : "in memory"}`], rows.flatMap(row).filter(Boolean)))];
}

/** The source of the chosen function, else of the one with the most own weight. */
function sourceView(view) {
  const { sources, sources_weight: weight, part } = shown.facts;
  const source = sourceOf(state.fn) ?? sources[0];
  if (!source) {
    view.replaceChildren(el("p", {}, "No function has source lines."));
    return;
  }
  const { functions: [f], file, problem, first, texts, lines, code } = source;
  const amounts = new Map(lines.map(([line, ...sums]) => [line, sums]));
  const self = lines.reduce((sum, [, own]) => sum + own, 0), most = Math.max(1, ...lines.map(([, own]) => own));
  // 0 is what has no line: it comes last.
  const numbers = [...new Set([...texts.map((_, i) => first + i), ...amounts.keys()])].sort((a, b) => (a || Infinity) - (b || Infinity));
  const pick = code.length ? (event) => pickLine(view, event.currentTarget) : undefined;
  const row = (line) => {
    const [own, total] = amounts.get(line) ?? [0, 0];
    return el("tr", { "data-line": line, style: heat(own, most), onclick: pick },
      el("td", { class: "number soft" }, line ? String(line) : "none"), ...weightCells(own, total, self),
      el("td", { class: "code" }, line ? (texts[line - first] ?? "") : "addresses without a line"));
  };
  const choice = el("select", { "aria-label": "Function", onchange: (event) => go({ fn: Number(event.target.value) }) },
    ...sources.map((of) => el("option", { value: String(of.functions[0]), selected: of === source }, `${nameOf(of.functions[0])} – ${span(of.lines.reduce((sum, [, own]) => sum + own, 0))}`)));
  const instructions = instructionTables(source, pick);
  view.replaceChildren(
    el("p", { class: "soft" }, choice, ` ${file ?? ""} `, functionButton(f)),
    el("p", { class: "soft" }, `${WEIGHTS[weight].title} of ${part ? "all that this page was made of" : "the whole trace"}, whatever is selected: ${span(self)} in its lines${code.length ? " and in its instructions; a click on one marks those that belong together" : ""}. A sample counts for the instruction that would have run next, which can belong to the line behind the one that took long.`),
    problem ? el("p", { class: "warn" }, problem) : "",
    el("div", { class: code.length ? "sources both" : "sources" }, el("div", {}, weightTable("Line", ["Text"], numbers.map(row))), el("div", {}, ...instructions)));
  view.querySelector(`tr[data-line="${lines.find(([, own]) => own === most)?.[0]}"]`)?.scrollIntoView({ block: "nearest" });
}
