// What threads did over a stretch of time: bins of the timeline.

/** Bins of a lane. */
const BINS = 600;
/** Numbers of a bin: time by state, then CPU time. */
const OF_BIN = 5;

/** The first row of a thread that ends behind a time. */
function firstBehind({ reach, starts }, t, time) {
  let low = starts[t], high = starts[t + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (reach[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Adds a row to the bins that it covers, in proportion. Times are those since the first bin. */
function addToBins(bins, width, start, wall, cpu, group) {
  const first = Math.max(0, Math.floor(start / width)), last = Math.min(BINS - 1, Math.max(first, Math.ceil((start + wall) / width) - 1));
  for (let bin = first; bin <= last; bin++) {
    const part = Math.min(start + wall, (bin + 1) * width) - Math.max(start, bin * width);
    if (part <= 0) continue;
    bins[bin * OF_BIN + group] += part;
    bins[bin * OF_BIN + 4] += (cpu * part) / wall;
  }
}

/** By thread: its bins from one time to another; null if it has no row that fits. Whatever time and threads are selected. */
function lanes({ rows, facts }, fitting, below, from, until) {
  const { start, wall, cpu, node, state, starts } = rows;
  const width = Math.max(1e-9, (until - from) / BINS), whole = from <= 0;
  return facts.threads.map((_, t) => {
    let bins = null;
    for (let i = whole ? starts[t] : firstBehind(rows, t, from); i < starts[t + 1]; i++) {
      const at = start[i], length = wall[i];
      if (at >= until) break;
      const n = node[i];
      if (!isTaken(fitting, below, state[i], n)) continue;
      bins ??= new Float32Array(BINS * OF_BIN);
      // A row without time is CPU time alone.
      if (length > 0) addToBins(bins, width, at - from, length, cpu[i], stateGroup(state[i]));
      else bins[Math.max(0, Math.min(BINS - 1, Math.floor((at - from) / width))) * OF_BIN + 4] += cpu[i];
    }
    return bins;
  });
}
