// Answers the page: unpacks a trace, and sums up a selection of it.

let trace = null;

const now = () => performance.now();

async function load({ block }) {
  const begun = now();
  trace = await decode(block);
  last = { key: "", sums: null };
  const { facts, rows } = trace;
  trace.whole = wholeOf(trace);
  trace.cpuKnown = trace.whole.cpu > 0;
  trace.end = facts.duration_ns;
  for (let i = 0; i < rows.count; i++) trace.end = Math.max(trace.end, rows.start[i] + rows.wall[i]);
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

/** What the last selection had, so that a change of the view alone does not sum again. */
let last = { key: "", sums: null };

function sumsOf(selection) {
  const { focus, search, hidden, mine, from, until, threads, states, wait, weight } = selection;
  const key = JSON.stringify([focus, search, hidden, mine, from, until, threads, states, wait, weight]);
  if (last.key === key) return last.sums;
  const matches = matchingFunctions(trace, search);
  let below = nodesBelow(trace, matches);
  if (focus >= 0) {
    const focused = new Uint8Array(trace.facts.functions.names.length);
    focused[focus] = 1;
    const inFocus = nodesBelow(trace, focused);
    below = below ? below.map((is, n) => is & inFocus[n]) : inFocus;
  }
  const visible = visibleFunctions(trace, selection);
  const shown = shownNodes(trace, visible);
  const sum = sumRows(trace, selection, below);
  const total = totalsOf(trace, sum.own);
  const sums = { ...sum, total, visible, shown, matches };
  sums.functions = functionSums(trace, sum.own, total, visible, shown);
  sums.frames = frameSums(trace, totalsOf(trace, sum.ownSamples));
  sums.waits = waitRows(trace, sum.waits, shown);
  last = { key, sums };
  return sums;
}

function select({ selection }) {
  const begun = now();
  const sums = sumsOf(selection);
  const { weight, samples, cpu, wall, time, noStack, stops, waits, threads, functions, frames, matches } = sums;
  return {
    selection, weight, samples, cpu, wall, time, noStack, stops, waits, threads, functions, frames, matches,
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
