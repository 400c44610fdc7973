// Sums of a selection: one pass over the rows, one over the tree.
//
// What a selection shares with the one before it, such as which nodes are shown, is kept: see `kept`
// in main.

/** States as the page groups them: not known, on a processor, in a system call, waiting. */
const stateGroup = (state) => (state > 3 ? 3 : state);

/** Whether a function is shown as it is; the others are folded into their caller. */
function visibleFunctions({ facts }, { mine, hidden }) {
  const { categories } = facts.functions;
  const visible = Uint8Array.from(categories, (category) => (mine && facts.of_others[category] ? 0 : 1));
  for (const f of hidden) visible[f] = 0;
  return visible;
}

/** By function: whether its name or its module's matches a text in any case, or an expression between slashes; null without a search. */
function matchingFunctions(trace, search) {
  if (!search) return null;
  const { names, modules: of } = trace.facts.functions;
  const slashed = /^\/(.+)\/$/.exec(search);
  if (slashed) {
    const expression = new RegExp(slashed[1], "i");
    const modules = trace.facts.modules.map((module) => expression.test(module));
    return Uint8Array.from(names, (name, f) => (modules[of[f]] || expression.test(name) ? 1 : 0));
  }
  const lower = (texts) => texts.map((text) => text.toLowerCase());
  trace.lower ??= { names: lower(names), modules: lower(trace.facts.modules) };
  const wanted = search.toLowerCase();
  const modules = trace.lower.modules.map((module) => module.includes(wanted));
  return Uint8Array.from(trace.lower.names, (name, f) => (modules[of[f]] || name.includes(wanted) ? 1 : 0));
}

/** By node: whether it or a caller of it is one of these functions; null = all are. */
function nodesBelow({ tree }, functions) {
  if (!functions) return null;
  const { fn, end, count } = tree;
  const below = new Uint8Array(count);
  for (let n = 0; n < count; ) {
    if (functions[fn[n]]) {
      below.fill(1, n, end[n]);
      n = end[n];
    } else n++;
  }
  return below;
}

/** By row: the number that a weight counts, nanoseconds or samples. */
function amountsOf(trace, weight) {
  const { cpu, wall, samples, state, count } = trace.rows;
  if (weight === "cpu") return cpu;
  if (weight === "wall") return wall;
  trace.amounts ??= {};
  let amounts = trace.amounts[weight];
  if (!amounts) {
    amounts = trace.amounts[weight] = Float64Array.from(samples);
    if (weight === "waiting") for (let i = 0; i < count; i++) amounts[i] = state[i] >= 3 ? wall[i] : 0;
    if (weight === "active") for (let i = 0; i < count; i++) if (state[i] >= 3) amounts[i] = 0;
  }
  return amounts;
}

const WEIGHTS = ["cpu", "wall", "waiting", "active", "samples"];

/** Sums of the whole trace, by weight. */
function wholeOf(trace) {
  const whole = Object.fromEntries(WEIGHTS.map((weight) => [weight, 0]));
  const { cpu, wall, samples, state, count } = trace.rows;
  for (let i = 0; i < count; i++) {
    whole.cpu += cpu[i];
    whole.wall += wall[i];
    whole.samples += samples[i];
    if (state[i] >= 3) whole.waiting += wall[i];
    else whole.active += samples[i];
  }
  return whole;
}

/** Bins of the timeline. */
const BINS = 480;
/** Numbers of a bin: time by state, then CPU time. */
const OF_BIN = 5;

/** The first and the last bin that a row covers. */
function binsOf(width, start, wall) {
  const first = Math.min(BINS - 1, Math.max(0, Math.floor(start / width)));
  return [first, wall <= 0 ? first : Math.min(BINS - 1, Math.max(first, Math.ceil((start + wall) / width) - 1))];
}

/** By row: the first number of the only bin that it covers; -1 if it covers several. */
function onlyBins({ rows: { start, wall, count }, end }) {
  const width = end / BINS || 1;
  const only = new Int16Array(count);
  for (let i = 0; i < count; i++) {
    const [first, last] = binsOf(width, start[i], wall[i]);
    only[i] = first === last ? first * OF_BIN : -1;
  }
  return only;
}

/** Adds a row to the bins that it covers, in proportion. */
function addToBins(bins, width, start, wall, cpu, group) {
  const [first, last] = binsOf(width, start, wall);
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

/** How many samples of a row were taken before a time. They are evenly spaced. (`Run::samples_before` of cli/profile.) */
function samplesBefore({ start, last, samples }, i, time) {
  if (time <= start[i] || samples[i] === 0) return 0;
  if (time > start[i] + last[i]) return samples[i];
  return Math.min(samples[i], Math.ceil(((time - start[i]) * Math.max(samples[i] - 1, 1)) / Math.max(last[i], 1)));
}

/** Sums of the selected rows: by stack, thread, state, reason of a wait and end of the stack. */
function sumRows(trace, selection, below) {
  const { facts, end } = trace;
  const [own, ownSamples] = ["own", "ownSamples"].map((name) => emptied(trace, name));
  const sum = {
    own, ownSamples, weight: 0, samples: 0, noStack: 0, cpu: 0, wall: 0, time: [0, 0, 0, 0],
    stops: new Float64Array(facts.stops.length), stopWeights: new Float64Array(facts.stops.length),
    waits: facts.waits.map(() => ({ ns: 0, samples: 0, waits: 0, longest: 0, where: new Map() })),
    threads: [],
  };
  const chosen = selection.threads && new Set(selection.threads);
  const { states, wait } = selection;
  // By state: whether a row in it fits.
  const fitting = Uint8Array.from({ length: 3 + facts.waits.length }, (_, state) => (states[stateGroup(state)] && (wait < 0 || state === wait + 3) ? 1 : 0));
  const how = { fitting, from: selection.from ?? -Infinity, until: selection.until ?? Infinity, below, amounts: amountsOf(trace, selection.weight), ofSamples: ["samples", "active"].includes(selection.weight), width: end / BINS || 1 };
  for (let t = 0; t < facts.threads.length; t++) {
    const thread = sumThread(trace, how, sum, t, !chosen || chosen.has(t));
    if (thread.bins === null) continue;
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
  const { start, wall, cpu, samples, node, state, stop, starts, only } = rows;
  const { fitting, below, from, until, amounts, ofSamples, width } = how;
  const whole = from === -Infinity && until === Infinity;
  const thread = { t, cpu: 0, wall: 0, samples: 0, weight: 0, time: [0, 0, 0, 0], bins: null, chosen };
  const open = { state: -1, end: 0, ns: 0 };
  let bins = null;
  for (let i = starts[t]; i < starts[t + 1]; i++) {
    const group = stateGroup(state[i]), n = node[i];
    if (!fitting[state[i]] || (below !== null && (n < 0 || below[n] === 0))) {
      open.state = -1;
      continue;
    }
    bins ??= thread.bins = new Float32Array(BINS * OF_BIN);
    const bin = only[i];
    if (bin >= 0) {
      bins[bin + group] += wall[i];
      bins[bin + 4] += cpu[i];
    } else addToBins(bins, width, start[i], wall[i], cpu[i], group);
    const share = whole ? 1 : shareInTime(start[i], wall[i], from, until);
    const count = whole ? samples[i] : samplesBefore(rows, i, until) - samplesBefore(rows, i, from);
    // CPU time alone does not end a wait.
    if ((share === 0 || group !== 3) && (wall[i] > 0 || samples[i] > 0)) open.state = -1;
    if (share === 0 && count === 0) continue;
    const ns = wall[i] * share, weight = ofSamples ? (amounts[i] === 0 ? 0 : count) : amounts[i] * share;
    thread.cpu += cpu[i] * share;
    thread.wall += ns;
    thread.time[group] += ns;
    if (!chosen) continue;
    thread.samples += count;
    thread.weight += weight;
    sum.stops[stop[i]] += count;
    sum.stopWeights[stop[i]] += weight;
    if (n >= 0) {
      sum.own[n] += weight;
      sum.ownSamples[n] += count;
    } else sum.noStack += weight;
    if (group === 3) addWait(sum.waits[state[i] - 3], open, { state: state[i], start: start[i], end: start[i] + wall[i], n, ns, count });
  }
  return thread;
}

/** Rows of one thread that wait for the same and follow each other are one wait: `open` is the last one. */
function addWait(reason, open, { state, start, end, n, ns, count }) {
  const goesOn = open.state === state && open.end === start;
  open.ns = goesOn ? open.ns + ns : ns;
  open.state = state;
  open.end = end;
  reason.ns += ns;
  reason.samples += count;
  if (!goesOn) reason.waits++;
  reason.longest = Math.max(reason.longest, open.ns);
  reason.where.set(n, (reason.where.get(n) ?? 0) + ns);
}

/** The weight of stacks in which every frame is proved, and of those that end in a named function. (`trusted` of cli/output/src/stats.) */
function trustedWeight({ tree: { fn, flags, parent, count }, facts }, own) {
  const { causes, sources } = facts.functions;
  const guessed = new Uint8Array(count), sums = { proved: 0, named: 0, exported: 0 };
  for (let n = 0; n < count; n++) {
    const f = fn[n], up = parent[n];
    // A function without code stands for a stack that there is not.
    const placeholder = sources[f] === "none" && !causes[f];
    guessed[n] = flags[n] & 1 || (up < 0 ? placeholder : guessed[up]) ? 1 : 0;
    if (!guessed[n]) sums.proved += own[n];
    if (causes[f]) sums.exported += facts.causes[causes[f] - 1].export_only ? own[n] : 0;
    else if (!placeholder) sums.named += own[n];
  }
  return sums;
}

/** A number of each node, 0 at first, in the memory of the selection before. */
function emptied(trace, name) {
  trace.memory ??= {};
  const array = (trace.memory[name] ??= new Float64Array(trace.tree.count));
  array.fill(0);
  return array;
}

/** By node: itself or its nearest caller that is shown; -1 = none. */
function shownNodes({ tree }, visible) {
  const { fn, parent, count } = tree;
  const shown = new Int32Array(count);
  for (let n = 0; n < count; n++) shown[n] = visible[fn[n]] ? n : parent[n] < 0 ? -1 : shown[parent[n]];
  return shown;
}

/**
 * What the tree adds up to. `total`, by node: its own weight and those of its callees. `functions`, by
 * function: its own weight, and that of the stacks it is in; recursion counts once. `frames`: how many
 * frames the samples have, how many are not proved, and those without a certain name by cause.
 */
function treeSums(trace, { own, ownSamples: samples }, visible, shown) {
  const { fn, first, flags, parent, count } = trace.tree;
  const { functions: of, causes, modules } = trace.facts;
  const total = emptied(trace, "total");
  total.set(own);
  const selfOf = new Float64Array(of.names.length), totalOf = new Float64Array(of.names.length);
  const framesOf = new Float64Array(of.names.length), unprovedIn = new Float64Array(modules.length);
  const frames = { frames: 0, unproved: 0, uncertain: 0, causes: new Float64Array(causes.length), unprovedIn: new Map() };
  let folded = 0;
  // Callers come before their callees.
  for (let n = count - 1; n >= 0; n--) {
    const weight = total[n], amount = samples[n];
    if (weight === 0 && amount === 0) continue;
    const up = parent[n], f = fn[n];
    if (up >= 0) {
      total[up] += weight;
      samples[up] += amount;
    }
    if (first[n] && visible[f]) totalOf[f] += weight;
    if (own[n] !== 0) {
      if (shown[n] >= 0) selfOf[fn[shown[n]]] += own[n];
      else folded += own[n];
    }
    if (flags[n] & 2) continue;
    framesOf[f] += amount;
    if (flags[n] & 1) unprovedIn[of.modules[f]] += amount;
  }
  framesOf.forEach((amount, f) => {
    frames.frames += amount;
    const cause = of.causes[f];
    if (!cause) return;
    frames.causes[cause - 1] += amount;
    if (!causes[cause - 1].export_only) frames.uncertain += amount;
  });
  unprovedIn.forEach((amount, module) => {
    frames.unproved += amount;
    if (amount > 0) frames.unprovedIn.set(module, amount);
  });
  return { total, functions: { self: selfOf, total: totalOf, folded }, frames, trusted: trustedWeight(trace, own) };
}
