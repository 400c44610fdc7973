// Answers the page: unpacks a trace, and sums up a selection of it.

// The trace as it is, and as a selection shows it: with recursion folded or not.
let plain = null, trace = null;

const now = () => performance.now();

async function load({ block }) {
  const begun = now();
  trace = plain = await decode(block);
  last.clear();
  const { facts, rows } = trace;
  trace.whole = wholeOf(trace);
  trace.cpuKnown = trace.facts.cpu_source !== "none";
  trace.end = facts.duration_ns;
  for (let i = 0; i < rows.count; i++) trace.end = Math.max(trace.end, rows.start[i] + rows.wall[i]);
  rows.only = onlyBins(trace);
  const { columns, ...told } = facts;
  return { facts: told, whole: trace.whole, end: trace.end, nodes: trace.tree.count, rows: rows.count, took: now() - begun };
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

function sumsOf(selection) {
  const { focus, search, hidden, mine, from, until, threads, states, wait, weight } = selection;
  return kept("sums", [focus, search, hidden, mine, from, until, threads, states, wait, weight], () => {
    const matches = kept("matches", search, () => matchingFunctions(trace, search));
    const below = kept("taken", [search, focus], () => nodesTaken(matches, focus));
    const visible = kept("visible", [mine, hidden], () => visibleFunctions(trace, selection));
    const shown = kept("shown", [mine, hidden], () => shownNodes(trace, visible));
    const sum = sumRows(trace, selection, below);
    return { ...sum, ...treeSums(trace, sum, visible, shown), waits: waitRows(trace, sum.waits, shown), visible, shown, matches };
  });
}

function select({ selection }) {
  const begun = now();
  const wanted = selection.once ? (plain.folded ??= withoutRecursion(plain)) : plain;
  if (trace !== wanted) last.clear();
  trace = wanted;
  const sums = sumsOf(selection);
  const { weight, samples, cpu, wall, time, noStack, stops, stopWeights, waits, threads, functions, frames, trusted, matches } = sums;
  return {
    selection, weight, samples, cpu, wall, time, noStack, stops, stopWeights, waits, threads, functions, frames, trusted, matches,
    flame: flame(trace, sums, selection),
    around: selection.fn >= 0 ? around(trace, sums, selection.fn) : null,
    whole: trace.whole, cpuKnown: trace.cpuKnown, took: now() - begun,
  };
}

const answers = { load, select };

onmessage = async ({ data }) => {
  try {
    postMessage({ id: data.id, answer: await answers[data.ask](data) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error?.message ?? error) });
  }
};
