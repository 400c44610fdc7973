// Sums of a selection: one pass over the rows, one over the tree.

/** States as the page groups them: not known, on a processor, in a system call, waiting. */
const stateGroup = (state) => (state > 3 ? 3 : state);

/** Whether a function is shown as it is; the others are folded into their caller. */
function visibleFunctions({ facts }, { mine, hidden }) {
  const { categories } = facts.functions;
  const visible = Uint8Array.from(categories, (category) => (mine && facts.of_others[category] ? 0 : 1));
  for (const f of hidden) visible[f] = 0;
  return visible;
}

/** A test of names: a text in any case, or an expression between slashes. */
function matcher(search) {
  const slashed = /^\/(.+)\/$/.exec(search);
  if (slashed) {
    const expression = new RegExp(slashed[1], "i");
    return (text) => expression.test(text);
  }
  const wanted = search.toLowerCase();
  return (text) => text.toLowerCase().includes(wanted);
}

/** By function: whether its name or its module's matches; null without a search. */
function matchingFunctions({ facts }, search) {
  if (!search) return null;
  const test = matcher(search);
  const modules = facts.modules.map(test);
  const { names, modules: of } = facts.functions;
  return Uint8Array.from(names, (name, f) => (modules[of[f]] || test(name) ? 1 : 0));
}

/** By node: whether it or a caller of it is one of these functions; null = all are. */
function nodesBelow({ tree }, functions) {
  if (!functions) return null;
  const { fn, parent, count } = tree;
  const below = new Uint8Array(count);
  for (let n = 0; n < count; n++) below[n] = functions[fn[n]] || (parent[n] >= 0 && below[parent[n]]) ? 1 : 0;
  return below;
}

/** The number of a row that a weight counts: nanoseconds, or samples. */
function weightOf({ rows }, weight) {
  const { cpu, wall, samples, state } = rows;
  switch (weight) {
    case "cpu": return (i) => cpu[i];
    case "wall": return (i) => wall[i];
    case "waiting": return (i) => (state[i] >= 3 ? wall[i] : 0);
    case "active": return (i) => (state[i] >= 3 ? 0 : samples[i]);
    default: return (i) => samples[i];
  }
}

const WEIGHTS = ["cpu", "wall", "waiting", "active", "samples"];

/** Sums of the whole trace, by weight. */
function wholeOf(trace) {
  const whole = {};
  for (const weight of WEIGHTS) {
    const of = weightOf(trace, weight);
    let sum = 0;
    for (let i = 0; i < trace.rows.count; i++) sum += of(i);
    whole[weight] = sum;
  }
  return whole;
}

/**
 * A thread's time by state, in agreement with its clock: it ran for `cpu`. What its samples on a
 * processor cover beyond that is not known; what they lack it spent between the other samples.
 * (`States::agree_with` of cli/src/stats.) `time`: not known, on a processor, system call, waiting.
 */
function agree(time, cpu) {
  let left = Math.min(cpu, time[0] + time[1] + time[2] + time[3]);
  const ready = Math.max(0, time[1] - left);
  left -= Math.min(left, time[1]);
  time[1] -= ready;
  time[0] += ready;
  for (const state of [2, 0, 3]) {
    const part = Math.min(left, time[state]);
    time[state] -= part;
    time[1] += part;
    left -= part;
  }
}

/** Bins of the timeline. */
const BINS = 480;
/** Numbers of a bin: time by state, then CPU time. */
const OF_BIN = 5;

/** Adds a row to the bins that it covers, in proportion. */
function addToBins(bins, width, start, wall, cpu, group) {
  const first = Math.min(BINS - 1, Math.max(0, Math.floor(start / width)));
  const last = Math.min(BINS - 1, Math.max(first, Math.ceil((start + wall) / width) - 1));
  if (first === last || wall <= 0) {
    bins[first * OF_BIN + group] += wall;
    bins[first * OF_BIN + 4] += cpu;
    return;
  }
  for (let bin = first; bin <= last; bin++) {
    const part = Math.min(start + wall, (bin + 1) * width) - Math.max(start, bin * width);
    bins[bin * OF_BIN + group] += part;
    bins[bin * OF_BIN + 4] += (cpu * part) / wall;
  }
}

/** The part of a row that lies in the selected time, 0 to 1. */
function shareInTime(start, wall, from, until) {
  if (wall <= 0) return start >= from && start < until ? 1 : 0;
  const part = Math.min(start + wall, until) - Math.max(start, from);
  return part <= 0 ? 0 : part >= wall ? 1 : part / wall;
}

/** Sums of the selected rows: by stack, thread, state, reason of a wait and end of the stack. */
function sumRows(trace, selection, below) {
  const { tree, facts, cpuKnown, end } = trace;
  const sum = {
    own: new Float64Array(tree.count), ownSamples: new Float64Array(tree.count),
    weight: 0, samples: 0, noStack: 0, cpu: 0, wall: 0, time: [0, 0, 0, 0],
    stops: new Float64Array(facts.stops.length),
    waits: facts.waits.map(() => ({ ns: 0, samples: 0, waits: 0, longest: 0, where: new Map() })),
    threads: [],
  };
  const chosen = selection.threads && new Set(selection.threads);
  const how = { ...selection, from: selection.from ?? -Infinity, until: selection.until ?? Infinity, below, of: weightOf(trace, selection.weight), width: end / BINS || 1 };
  for (let t = 0; t < facts.threads.length; t++) {
    const thread = sumThread(trace, how, sum, t, !chosen || chosen.has(t));
    if (thread.bins === null) continue;
    if (cpuKnown) agree(thread.time, thread.cpu);
    sum.threads.push(thread);
    if (!thread.chosen) continue;
    for (const what of ["cpu", "wall", "samples", "weight"]) sum[what] += thread[what];
    for (let s = 0; s < 4; s++) sum.time[s] += thread.time[s];
  }
  return sum;
}

/**
 * Adds a thread's selected rows to the sums, and gives the thread's own. Its bins span the whole trace,
 * whatever time is selected, and are null if it has no row that fits.
 */
function sumThread({ rows }, how, sum, t, chosen) {
  const { start, wall, cpu, samples, node, state, stop, starts } = rows;
  const { states, wait: reason, below, from, until, of, width } = how;
  const whole = from === -Infinity && until === Infinity;
  const thread = { t, cpu: 0, wall: 0, samples: 0, weight: 0, time: [0, 0, 0, 0], bins: null, chosen };
  const open = { state: -1, ns: 0 };
  for (let i = starts[t]; i < starts[t + 1]; i++) {
    const group = stateGroup(state[i]), n = node[i];
    const fits = states[group] && (reason < 0 || state[i] === reason + 3) && (!below || (n >= 0 && below[n]));
    const share = !fits ? 0 : whole ? 1 : shareInTime(start[i], wall[i], from, until);
    if (fits) {
      thread.bins ??= new Float32Array(BINS * OF_BIN);
      addToBins(thread.bins, width, start[i], wall[i], cpu[i], group);
    }
    if (share === 0 || group !== 3) open.state = -1;
    if (share === 0) continue;
    const ns = wall[i] * share, count = samples[i] * share, weight = of(i) * share;
    thread.cpu += cpu[i] * share;
    thread.wall += ns;
    thread.time[group] += ns;
    if (!chosen) continue;
    thread.samples += count;
    thread.weight += weight;
    sum.stops[stop[i]] += count;
    if (n >= 0) {
      sum.own[n] += weight;
      sum.ownSamples[n] += count;
    } else sum.noStack += weight;
    if (group === 3) addWait(sum.waits[state[i] - 3], open, state[i], n, ns, count);
  }
  return thread;
}

/** Rows of one thread that wait for the same and follow each other are one wait: `open` is the last one. */
function addWait(reason, open, state, n, ns, count) {
  const goesOn = open.state === state;
  open.ns = goesOn ? open.ns + ns : ns;
  open.state = state;
  reason.ns += ns;
  reason.samples += count;
  if (!goesOn) reason.waits++;
  reason.longest = Math.max(reason.longest, open.ns);
  reason.where.set(n, (reason.where.get(n) ?? 0) + ns);
}

/** By node: the sum of its own number and those of its callees. */
function totalsOf({ tree }, own) {
  const total = own.slice();
  const { parent } = tree;
  // Callers come before their callees.
  for (let n = tree.count - 1; n >= 0; n--) if (parent[n] >= 0) total[parent[n]] += total[n];
  return total;
}

/** By node: itself or its nearest caller that is shown; -1 = none. */
function shownNodes({ tree }, visible) {
  const { fn, parent, count } = tree;
  const shown = new Int32Array(count);
  for (let n = 0; n < count; n++) shown[n] = visible[fn[n]] ? n : parent[n] < 0 ? -1 : shown[parent[n]];
  return shown;
}

/** By function: its own weight, and that of the stacks it is in; recursion counts once. */
function functionSums({ tree, facts }, own, total, visible, shown) {
  const { fn, first, count } = tree;
  const functions = facts.functions.names.length;
  const selfOf = new Float64Array(functions), totalOf = new Float64Array(functions);
  let folded = 0;
  for (let n = 0; n < count; n++) {
    if (first[n] && visible[fn[n]]) totalOf[fn[n]] += total[n];
    if (own[n] === 0) continue;
    if (shown[n] >= 0) selfOf[fn[shown[n]]] += own[n];
    else folded += own[n];
  }
  return { self: selfOf, total: totalOf, folded };
}

/** Frames of the selected samples: how many, how many not proved, and those without a certain name by cause. */
function frameSums({ tree, facts }, samples) {
  const { fn, flags, count } = tree;
  const { causes } = facts.functions;
  const sum = { frames: 0, unproved: 0, uncertain: 0, causes: new Float64Array(facts.causes.length), unprovedIn: new Map() };
  for (let n = 0; n < count; n++) {
    const amount = samples[n];
    if (amount === 0 || flags[n] & 2) continue;
    sum.frames += amount;
    if (flags[n] & 1) {
      sum.unproved += amount;
      const module = facts.functions.modules[fn[n]];
      sum.unprovedIn.set(module, (sum.unprovedIn.get(module) ?? 0) + amount);
    }
    const cause = causes[fn[n]];
    if (cause) {
      sum.causes[cause - 1] += amount;
      if (!facts.causes[cause - 1].export_only) sum.uncertain += amount;
    }
  }
  return sum;
}
