// Answers the page: unpacks a trace, and sums up a selection of it.

// The trace as it is, and as a selection shows it: with recursion folded or not.
let plain = null, trace = null;

const now = () => performance.now();

/** Unpacks a trace; of several ones their sum. */
async function load({ blocks }) {
  const begun = now(), all = [];
  for (const block of blocks) all.push(await decode(block));
  trace = plain = all.length === 1 ? all[0] : mergedTraces(all);
  last.clear();
  const { facts, rows } = trace;
  trace.whole = wholeOf(trace);
  trace.cpuKnown = trace.facts.cpu_source !== "none";
  trace.end = facts.duration_ns;
  for (let i = 0; i < rows.count; i++) trace.end = Math.max(trace.end, rows.start[i] + rows.wall[i]);
  rows.trust = trustOfRows(trace);
  const { columns, ...others } = facts;
  return { facts: others, whole: trace.whole, end: trace.end, nodes: trace.tree.count, rows: rows.count, took: now() - begun };
}

/** By reason: the functions that wait longest, and their time. */
function waitRows({ tree }, waits, shown) {
  return waits.map(({ where, ...row }) => {
    const functions = new Map();
    for (const [n, ns] of where) {
      const f = n < 0 || shown[n] < 0 ? OTHERS : tree.fn[shown[n]];
      functions.set(f, (functions.get(f) ?? 0) + ns);
    }
    const top = [...functions].sort(([f, a], [g, b]) => b - a || f - g).slice(0, 5);
    return { ...row, top };
  });
}

/** What the last selection had, by its name: what it was made of, and what it is. */
const last = new Map();

/** What `make` gives; if it was made of the same key the last time, that. */
function kept(name, key, make) {
  const text = JSON.stringify(key);
  if (last.get(name)?.key !== text) {
    last.delete(name);
    last.set(name, { key: text, made: make() });
  }
  return last.get(name).made;
}

/** By node: whether the search and the focus take its stack; null = all are taken. */
function nodesTaken(matches, focus) {
  const found = nodesBelow(trace, matches);
  if (focus < 0) return found;
  const focused = new Uint8Array(trace.facts.functions.names.length);
  focused[focus] = 1;
  const inFocus = nodesBelow(trace, focused);
  return found ? found.map((is, n) => is & inFocus[n]) : inFocus;
}

/** Takes the trace as the selection shows it, and what does not depend on weight, time and threads. */
function prepare({ once, search, focus, hidden, mine }) {
  const wanted = once ? (plain.folded ??= withoutRecursion(plain)) : plain;
  if (trace !== wanted) last.clear();
  trace = wanted;
  const filter = kept("filter", search, () => matchingFunctions(trace, search));
  const below = kept("taken", [search, focus], () => nodesTaken(filter, focus));
  const visible = kept("visible", [mine, hidden], () => visibleFunctions(trace, { mine, hidden }));
  const shown = kept("shown", [mine, hidden], () => shownNodes(trace, visible));
  return { below, visible, shown };
}

/** What the sums of a selection depend on. */
const sumsKey = ({ focus, search, hidden, mine, from, until, threads, states, wait, weight }) => [focus, search, hidden, mine, from, until, threads, states, wait, weight];

function sumsOf(selection) {
  const { below, visible, shown } = prepare(selection);
  return kept("sums", sumsKey(selection), () => {
    const sum = sumRows(trace, selection, below);
    return { ...sum, ...treeSums(trace, sum, visible, shown), waits: waitRows(trace, sum.waits, shown), below, visible, shown };
  });
}

/** Lanes depend on what is selected of states and stacks, not on the selected time and threads. */
const lanesKey = ({ focus, search, states, wait, once }) => [focus, search, states, wait, once];

function lanesOf(selection, from, until) {
  const { below } = prepare(selection);
  return lanes(trace, fittingStates(trace, selection), below, from, until);
}

/** Bins of all selected threads together. */
function totalOf(all, threads) {
  const total = new Float64Array(BINS * OF_BIN);
  for (const bins of threads ? threads.map((t) => all[t]) : all) bins?.forEach((number, i) => (total[i] += number));
  return total;
}

/** The whole time of all selected threads. */
function overviewOf(selection) {
  const all = kept("lanes", lanesKey(selection), () => lanesOf(selection, 0, trace.end));
  return { from: 0, until: trace.end, total: kept("overview", [lanesKey(selection), selection.threads], () => totalOf(all, selection.threads)) };
}

/** `wants`: which sums of a view the page wants, beside those that every view shows. */
function select({ selection, wants }) {
  const begun = now();
  const sums = sumsOf(selection);
  const { weight, samples, cpu, wall, time, noStack, stops, stopWeights, waits, threads, functions, frames, trusted } = sums;
  const { find, search, inverted, zoom } = selection;
  const key = sumsKey(selection);
  const text = find || search;
  const matches = kept("matches", text, () => matchingFunctions(trace, text));
  return {
    selection, weight, samples, cpu, wall, time, noStack, stops, stopWeights, waits, threads, functions, frames, trusted, matches,
    found: matches && kept("found", [key, text], () => foundBy(trace, sums, matches)),
    flame: kept("flame", [key, inverted, zoom], () => flame(trace, sums, selection)),
    threadOf: wants.threadOf ? kept("threadOf", key, () => threadOfFunctions(trace, sums, votesOfRows(trace, selection, sums.below))) : null,
    modules: wants.modules ? kept("modules", key, () => moduleSums(trace, sums)) : null,
    trees: wants.trees.map(({ open, along, ...kind }) => treeRows(growth(trace, sums, kind), open, along)),
    overview: wants.overview ? overviewOf(selection) : null,
    whole: trace.whole, cpuKnown: trace.cpuKnown, took: now() - begun,
  };
}

/** What a flame chart needs of a selection. */
function chartOf(selection) {
  const { below, shown } = prepare(selection);
  const { mine, hidden, weight } = selection;
  const callers = kept("callers", [mine, hidden], () => shownCallers(trace, shown));
  return { below, shown, callers, fitting: fittingStates(trace, selection), amounts: amountsOf(trace, weight), ofSamples: ["samples", "active"].includes(weight) };
}

/** Lanes and flame charts of a stretch of time. `listed`: threads whose lanes are drawn; `charts`: those whose stacks are. */
function zoomed({ selection, from, until, listed, charts, columns }) {
  const begun = now();
  const how = chartOf(selection);
  const whole = from <= 0 && until >= trace.end;
  const all = whole ? kept("lanes", lanesKey(selection), () => lanesOf(selection, 0, trace.end)) : lanesOf(selection, from, until);
  return {
    lanes: listed.filter((t) => all[t]).map((t) => [t, all[t]]), total: totalOf(all, selection.threads),
    charts: charts.map((thread) => ({ thread, ...chart(trace, how, { thread, from, until, columns }) })),
    took: now() - begun,
  };
}

/** A part of a flame chart: the exact sums of a time and a stack. What ends with the trace is in it. */
const box = ({ selection, thread, from, until, path }) => stretchSums(trace, chartOf(selection), { thread, from: from <= 0 ? -Infinity : from, until: until >= trace.end ? Infinity : until, path });

const answers = { load, select, zoomed, box };

onmessage = async ({ data }) => {
  try {
    postMessage({ id: data.id, answer: await answers[data.ask](data) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error?.message ?? error) });
  }
};
