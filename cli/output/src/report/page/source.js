// Source lines of functions, each with what samples come to in it.

/** The source of a function, if the page holds it. */
const sourceOf = (f) => shown.facts.sources.find(({ functions }) => functions.includes(f));

/** The source of the chosen function, else of the one with the most own weight. */
function sourceView(view) {
  const { sources, sources_weight: weight, part } = shown.facts;
  const source = sourceOf(state.fn) ?? sources[0];
  if (!source) {
    view.replaceChildren(el("p", {}, "No function has source lines."));
    return;
  }
  const { functions: [f], file, problem, first, texts, lines } = source;
  const amounts = new Map(lines.map(([line, ...sums]) => [line, sums]));
  const self = lines.reduce((sum, [, own]) => sum + own, 0), most = Math.max(1, ...lines.map(([, own]) => own));
  // 0 is what has no line: it comes last.
  const numbers = [...new Set([...texts.map((_, i) => first + i), ...amounts.keys()])].sort((a, b) => (a || Infinity) - (b || Infinity));
  const cell = (ns) => el("td", { class: "number", "data-amount": ns }, ns ? span(ns) : "");
  const row = (line) => {
    const [own, total] = amounts.get(line) ?? [0, 0];
    const heat = own ? { background: `color-mix(in srgb, ${paint.call} ${Math.round(6 + (44 * own) / most)}%, transparent)` } : {};
    return el("tr", { "data-line": line, style: heat },
      el("td", { class: "number soft" }, line ? String(line) : "none"), cell(own), own ? barCell(own, self) : el("td", {}), cell(total),
      el("td", { class: "code" }, line ? (texts[line - first] ?? "") : "addresses without a line"));
  };
  const choice = el("select", { "aria-label": "Function", onchange: (event) => go({ fn: Number(event.target.value) }) },
    ...sources.map((of) => el("option", { value: String(of.functions[0]), selected: of === source }, `${nameOf(of.functions[0])} – ${span(of.lines.reduce((sum, [, own]) => sum + own, 0))}`)));
  const body = el("tbody", {}, ...numbers.map(row));
  view.replaceChildren(
    el("p", { class: "soft" }, choice, ` ${file ?? ""} `, functionButton(f)),
    el("p", { class: "soft" }, `${WEIGHTS[weight].title} of ${part ? "all that this page was made of" : "the whole trace"}, whatever is selected: ${span(self)} in its lines. A sample counts for the instruction that would have run next, which can belong to the line behind the one that took long.`),
    problem ? el("p", { class: "warn" }, problem) : "",
    el("div", { class: "scrolls" }, el("table", { class: "wide" },
      el("thead", {}, el("tr", {}, ...["Line", "Self"].map((text) => el("th", { scope: "col", class: "number" }, text)), el("th", {}), el("th", { scope: "col", class: "number" }, "With callees"), el("th", { scope: "col" }, "Text"))), body)));
  body.querySelector(`[data-line="${lines.find(([, own]) => own === most)?.[0]}"]`)?.scrollIntoView({ block: "nearest" });
}
