// How far to trust it: what was lost, which frames are guesses, which names are missing and how to get them.

/** What a share of the samples or frames says: fine, to be watched, bad. */
const grade = (share, fine, bad) => (share >= fine ? "good" : share >= bad ? "fair" : "poor");

/** Fewer samples than these leave shares too uncertain to decide by. */
const FEW_SAMPLES = 200;

/** A share that is 100 % of all only. */
const certain = (part, whole) => (part < whole && percent(part, whole) === percent(1, 1) ? percent(0.999, 1) : percent(part, whole));

/** Facts on the selection's stacks, by the weight shown, and on the rate of the whole trace. Poor is what would make a decision wrong. */
function trust() {
  const { stopWeights, trusted, weight: all } = answer;
  const { facts } = shown;
  const complete = facts.stops.reduce((sum, stop, i) => sum + (stop.complete ? stopWeights[i] : 0), 0);
  const named = trusted.named + trusted.exported;
  const of = `of the ${inSentence(WEIGHTS[shown.weight].title)}`;
  const share = (part) => (all > 0 ? part / all : 1);
  const rate = answer.samples < FEW_SAMPLES ? 0.5 : 0;
  const { asked_hz: asked, achieved_hz: achieved, missed_share: missed } = facts.totals;
  return {
    taken: { share: 1 - missed, grade: grade(1 - missed, 0.8, rate), text: `${three(achieved)} of ${three(asked)} samples a second taken of each thread (${percent(missed, 1)} missed)` },
    complete: { share: share(complete), grade: grade(share(complete), 0.98, 0.5), text: `${certain(complete, all)} ${of} in complete stacks` },
    proved: { share: share(trusted.proved), grade: grade(share(trusted.proved), 0.98, 0.5), text: `${certain(trusted.proved, all)} in proved ones` },
    named: { share: share(named), grade: grade(share(named), 0.85, 0.5), text: `${certain(trusted.named, all)} in functions named from symbols` },
  };
}

function list(title, rows, heads) {
  if (!rows.length) return null;
  return el("div", {}, el("h3", {}, title), el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)))), el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells)))));
}

const cell = (text, kind = "") => el("td", { class: kind }, text);
const number = (text) => cell(text, "number");

function stopRows() {
  const { stops } = answer;
  const all = stops.reduce((sum, samples) => sum + samples, 0);
  return shown.facts.stops
    .map((stop, i) => ({ ...stop, samples: stops[i] }))
    .filter(({ samples }) => samples > 0)
    .sort((a, b) => b.samples - a.samples)
    .slice(0, 30)
    .map(({ reason, module, complete, samples }) => [cell(el("span", { class: `tag ${complete ? "good" : "poor"}` }, complete ? "complete" : "cut")), cell(reason), cell(module, "soft"), number(count(samples)), number(percent(samples, all))]);
}

function causeRows() {
  const { frames } = answer;
  return shown.facts.causes
    .map((cause, i) => ({ ...cause, amount: frames.causes[i] }))
    .filter(({ amount }) => amount > 0)
    .sort((a, b) => b.amount - a.amount)
    .slice(0, 50)
    .map(({ module, cause, export_only: near, amount }) => [cell(module || "no module"), cell(near ? "after exports" : "none"), cell(cause, "reason"), number(percent(amount, frames.frames))]);
}

/** How to get what is missing. */
function remedies() {
  const { missing, source, sources = [source] } = shown.facts;
  const of = `${sources.slice(0, 3).map(quoted).join(" ")}${sources.length > 3 ? " …" : ""}`;
  if (!missing.length) return el("p", {}, "Every frame in a module has its name from symbols.");
  const line = (text) => el("code", {}, text);
  return el("div", {},
    el("p", {}, "Names come with the modules' PDB files (or, for MinGW, Rust and Go, the images with their debug information). The trace says which ones: by GUID and age. Then make the report again."),
    el("pre", {}, line(`stk symbols list ${of}\n`), line(`stk symbols fetch ${of} -y "srv*symbols*SERVER"     # or --ms-symbols for the system's\n`), line(`stk report ${of} -y symbols`)),
    list("Modules without symbols, by the samples that meet them (whole trace)", missing.slice(0, 50).map(({ module, samples, frames, reason }) => [cell(module), number(count(samples)), number(count(frames)), cell(reason, "reason")]), ["Module", "Samples", "Places", "Why, and what to do"]));
}

/** A file name for a shell. */
const quoted = (name) => (/^[\w./\\:-]+$/.test(name) ? name : `"${name}"`);

function qualityView(view) {
  const { facts, rows } = shown;
  const { frames } = answer;
  const { taken, complete, proved, named } = trust();
  const cards = [["Rate (whole trace)", taken], ["Stacks", complete], ["Frames", proved], ["Names", named]].map(([title, fact]) => el("div", { class: `card ${fact.grade}` }, el("h3", {}, title), el("p", {}, fact.text)));
  const warnings = facts.warnings.map((text) => el("li", {}, text));
  const joined = facts.joined_ns
    ? el("p", { class: "warn" }, `The trace has ${count(facts.runs)} runs of equal samples. This page holds ${count(rows)} rows: equal stacks of a thread within ${span(facts.joined_ns)} are one. Sums are exact; a time range is exact to that length.`)
    : el("p", { class: "soft" }, `This page holds each of the trace's ${count(facts.runs)} runs of equal samples. A run that a time range cuts counts in proportion.`);
  const unproved = [...frames.unprovedIn].sort(([, a], [, b]) => b - a).slice(0, 30);
  view.replaceChildren(
    el("div", { class: "cards" }, ...cards),
    warnings.length ? el("div", {}, el("h3", {}, "What was lost (whole trace)"), el("ul", { class: "warnings" }, ...warnings)) : el("p", {}, "Nothing was lost: no block is damaged, no sample was dropped, and the recorder finished the trace."),
    el("h3", {}, "Missing symbols"), remedies(),
    list("Frames without a certain name, by cause (selection)", causeRows(), ["Module", "Name", "Cause", "of the frames"]) ?? "",
    list("Why stacks end (selection)", stopRows(), ["", "Reason", "Module", "Samples", "Share"]) ?? "",
    unproved.length ? list("Frames that are not proved, hatched in the flame graph (selection)", unproved.map(([module, amount]) => [cell(shown.facts.modules[module] || "no module"), number(percent(amount, frames.frames))]), ["Module", "of the frames"]) : "",
    joined,
    state.process === ALL ? "" : el("p", { class: "soft" }, `Recorded ${facts.start} on ${facts.host || "an unknown host"}; process ${facts.process} (pid ${facts.pid}, ${facts.arch}); CPU times from ${facts.cpu_source}; trace ${facts.trace_id}; stk ${facts.stk}.`),
  );
}
