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

/** The part of a row within the selected time, 0 to 1. */
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

/** By state: whether a row in it is selected. */
function fittingStates({ facts }, { states, wait }) {
  return Uint8Array.from({ length: 3 + facts.waits.length }, (_, state) => (states[stateGroup(state)] && (wait < 0 || state === wait + 3) ? 1 : 0));
}

/** Sums of the selected rows: by stack, thread, state, reason of a wait and end of the stack. */
function sumRows(trace, selection, below) {
  const { facts } = trace;
  const [own, ownSamples] = ["own", "ownSamples"].map((name) => emptied(trace, name));
  const sum = {
    own, ownSamples, weight: 0, samples: 0, noStack: 0, cpu: 0, wall: 0, time: [0, 0, 0, 0],
    stops: new Float64Array(facts.stops.length), stopWeights: new Float64Array(facts.stops.length),
    trusted: { proved: 0, named: 0, exported: 0 },
    waits: facts.waits.map(() => ({ ns: 0, samples: 0, waits: 0, longest: 0, where: new Map() })),
    threads: [],
  };
  const chosen = selection.threads && new Set(selection.threads);
  const how = { fitting: fittingStates(trace, selection), from: selection.from ?? -Infinity, until: selection.until ?? Infinity, below, amounts: amountsOf(trace, selection.weight), ofSamples: ["samples", "active"].includes(selection.weight) };
  for (let t = 0; t < facts.threads.length; t++) {
    const thread = sumThread(trace, how, sum, t, !chosen || chosen.has(t));
    if (!thread.any) continue;
    sum.threads.push(thread);
    if (!thread.chosen) continue;
    for (const what of ["cpu", "wall", "samples", "weight"]) sum[what] += thread[what];
    for (let s = 0; s < 4; s++) sum.time[s] += thread.time[s];
  }
  return sum;
}

/** Whether a selection takes a row, by its state and its node, whatever time and thread it is of. */
const isTaken = (fitting, below, state, n) => fitting[state] && (below === null || (n >= 0 && below[n] !== 0));

/** Adds a thread's selected rows to the sums, and gives the thread's own. `any`: it has a row that fits, at whatever time. */
function sumThread({ rows }, how, sum, t, chosen) {
  const { start, wall, cpu, samples, node, state, stop, trust, starts } = rows;
  const { fitting, below, from, until, amounts, ofSamples } = how;
  const whole = from === -Infinity && until === Infinity;
  const thread = { t, cpu: 0, wall: 0, samples: 0, weight: 0, time: [0, 0, 0, 0], any: false, chosen };
  const open = { state: -1, end: 0, ns: 0 };
  for (let i = starts[t]; i < starts[t + 1]; i++) {
    const group = stateGroup(state[i]), n = node[i];
    if (!isTaken(fitting, below, state[i], n)) {
      open.state = -1;
      continue;
    }
    thread.any = true;
    const share = whole ? 1 : shareInTime(start[i], wall[i], from, until);
    const count = whole ? samples[i] : samplesBefore(rows, i, until) - samplesBefore(rows, i, from);
    // CPU time alone does not end a wait.
    if ((share === 0 || group !== 3) && (wall[i] > 0 || samples[i] > 0)) open.state = -1;
    if (share === 0 && count === 0) continue;
    const ns = wall[i] * share, weight = ofSamples ? (amounts[i] === 0 ? 0 : count) : amounts[i] * share;
    thread.cpu += cpu[i] * share;
    thread.wall += ns;
    thread.time[group] += ns;
    thread.samples += count;
    thread.weight += weight;
    if (!chosen) continue;
    sum.stops[stop[i]] += count;
    sum.stopWeights[stop[i]] += weight;
    if (n >= 0) {
      sum.own[n] += weight;
      sum.ownSamples[n] += count;
      const of = trust[i];
      if (of & PROVED) sum.trusted.proved += weight;
      if (of & NAMED) sum.trusted.named += weight;
      if (of & EXPORTED) sum.trusted.exported += weight;
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

/** Bits of `rows.trust`: every frame is proved; the stack ends in a named function; in one named after an export near it. */
const PROVED = 1, NAMED = 2, EXPORTED = 4;

/** By row: how far its stack, with all of its frames, can be trusted. (`trusted` of cli/output/src/stats.) */
function trustOfRows({ tree: { fn, flags, parent, count }, facts, rows }) {
  const { causes, sources } = facts.functions;
  const guessed = new Uint8Array(count), of = new Uint8Array(count);
  for (let n = 0; n < count; n++) {
    const f = fn[n], up = parent[n];
    // A function without code stands for a stack that there is not.
    const placeholder = sources[f] === "none" && !causes[f];
    guessed[n] = flags[n] & 1 || (up < 0 ? placeholder : guessed[up]) ? 1 : 0;
    const named = causes[f] ? (facts.causes[causes[f] - 1].export_only ? EXPORTED : 0) : placeholder ? 0 : NAMED;
    of[n] = (guessed[n] ? 0 : PROVED) | named;
  }
  const trust = new Uint8Array(rows.count);
  for (let i = 0; i < rows.count; i++) trust[i] = rows.node[i] < 0 ? 0 : of[rows.node[i]];
  return trust;
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
  return { total, functions: { self: selfOf, total: totalOf, folded }, frames };
}

/** By module: the weight of stacks that end in it, and of those that have it. Folded functions count as their callers. */
function moduleSums({ tree, facts }, { total, functions, visible }) {
  const { fn, end, parent, count } = tree;
  const { modules: of } = facts.functions;
  const sums = { self: new Float64Array(facts.modules.length), total: new Float64Array(facts.modules.length) };
  functions.self.forEach((weight, f) => (sums.self[of[f]] += weight));
  // How many open callers are of a module. `last`: the innermost one of all.
  const open = new Int32Array(facts.modules.length);
  for (let n = 0, last = -1; n < count; n++) {
    for (; last >= 0 && end[last] <= n; last = parent[last]) if (visible[fn[last]]) open[of[fn[last]]]--;
    last = n;
    if (visible[fn[n]] && open[of[fn[n]]]++ === 0) sums.total[of[fn[n]]] += total[n];
  }
  return sums;
}

/** What a search finds in a selection: functions, those of them that are folded, and the weight of the stacks that have one. */
function foundBy({ tree }, { total, visible }, matches) {
  const { fn, end, count } = tree;
  const met = new Uint8Array(matches.length), found = { functions: 0, folded: 0, weight: 0 };
  for (let n = 0, inside = 0; n < count; n++) {
    const f = fn[n];
    if (!matches[f] || total[n] === 0) continue;
    if (n >= inside) {
      found.weight += total[n];
      inside = end[n];
    }
    if (met[f]++ > 0) {
      met[f] = 1;
      continue;
    }
    found.functions++;
    if (!visible[f]) found.folded++;
  }
  return found;
}

/**
 * By function: the thread that has at least half of its weight; -1 = none has. A vote of the stacks: equal
 * parts of different threads cancel out (Boyer and Moore), so what is left of the winner is a lower bound.
 */
function threadOfFunctions(trace, { total, visible }, threadOwn) {
  const { fn, parent, count } = trace.tree, functions = visible.length;
  const vote = Int32Array.from(threadOwn.vote), margin = Float64Array.from(threadOwn.margin);
  const winner = new Int32Array(functions).fill(-1), lead = new Float64Array(functions), sum = new Float64Array(functions);
  for (let n = count - 1; n >= 0; n--) {
    if (total[n] === 0) continue;
    if (parent[n] >= 0) addVote(vote, margin, parent[n], vote[n], margin[n]);
    addVote(winner, lead, fn[n], vote[n], margin[n]);
    sum[fn[n]] += total[n];
  }
  return winner.map((t, f) => (lead[f] >= sum[f] / 2 && sum[f] > 0 ? t : -1));
}

function addVote(vote, margin, at, thread, weight) {
  if (vote[at] === thread) margin[at] += weight;
  else if (weight > margin[at]) {
    margin[at] = weight - margin[at];
    vote[at] = thread;
  } else margin[at] -= weight;
}

/** By node: which thread leads in its own weight, and by how much. */
function votesOfRows(trace, selection, below) {
  const votes = { vote: new Int32Array(trace.tree.count).fill(-1), margin: new Float64Array(trace.tree.count) };
  const { starts, node, state, start, wall } = trace.rows, amounts = amountsOf(trace, selection.weight), fitting = fittingStates(trace, selection);
  const { threads, from, until } = selection;
  for (const t of threads ?? trace.facts.threads.keys()) {
    for (let i = starts[t]; i < starts[t + 1]; i++) {
      const n = node[i];
      if (n < 0 || !isTaken(fitting, below, state[i], n)) continue;
      const weight = amounts[i] * (from === null ? 1 : shareInTime(start[i], wall[i], from, until));
      if (weight > 0) addVote(votes.vote, votes.margin, n, t, weight);
    }
  }
  return votes;
}
