// Flame graphs of a selection, and the calls of a function.
//
// A frame of a flame graph stands for all nodes of the tree that have the same functions above
// them, folded functions left out. Frames too narrow to be seen are not made: the work grows with
// what is drawn, not with the number of stacks.

/** The function of a frame that stands for several narrow ones. */
const OTHERS = -1;
/** Frames narrower than this part of the widest are not drawn one by one. */
const NARROWEST = 1 / 2500;
/** Frames of a flame graph at most. */
const MOST_FRAMES = 60000;

/** Frames one behind the other, callers first. */
class Frames {
  constructor() {
    for (const name of ["fn", "depth", "parent", "x", "weight", "self", "unproved", "inlined"]) this[name] = [];
  }

  add({ fn, weight, unproved, inlined }, depth, parent, x, self) {
    this.fn.push(fn);
    this.depth.push(depth);
    this.parent.push(parent);
    this.x.push(x);
    this.weight.push(weight);
    this.self.push(self);
    this.unproved.push(unproved);
    this.inlined.push(inlined);
    return this.fn.length - 1;
  }

  packed() {
    const types = { fn: Int32Array, depth: Int32Array, parent: Int32Array, x: Float64Array, weight: Float64Array, self: Float64Array, unproved: Float64Array, inlined: Uint8Array };
    return Object.fromEntries(Object.entries(this).map(([name, list]) => [name, types[name].from(list)]));
  }
}

/** Collects groups by function. */
class Groups {
  constructor(functions) {
    this.slots = new Int32Array(functions).fill(-1);
    this.list = [];
  }

  of(fn) {
    let slot = this.slots[fn];
    if (slot < 0) {
      slot = this.slots[fn] = this.list.length;
      this.list.push({ fn, nodes: [], amounts: [], weight: 0, unproved: 0, inlined: 0 });
    }
    return this.list[slot];
  }

  /** The groups, heaviest first; then it is empty again. */
  take() {
    const list = this.list;
    for (const { fn } of list) this.slots[fn] = -1;
    this.list = [];
    return list.sort((a, b) => b.weight - a.weight || a.fn - b.fn);
  }
}

/** The callees of nodes, by function. Callees of folded functions take their place. */
function calleesOf({ tree }, total, visible, groups, nodes) {
  const { fn, flags, end, count } = tree;
  const visit = (from, to) => {
    for (let n = from; n < to; ) {
      const amount = total[n];
      if (amount > 0) {
        const f = fn[n];
        if (!visible[f]) {
          n++; // into its callees
          continue;
        }
        const group = groups.of(f);
        group.nodes.push(n);
        group.weight += amount;
        if (flags[n] & 1) group.unproved += amount;
        group.inlined |= flags[n] & 2;
      }
      n = end[n];
    }
  };
  if (nodes === null) visit(0, count);
  else for (const n of nodes) visit(n + 1, end[n]);
  return groups.take();
}

/** The callers of stacks that have reached `nodes`, by function. `amounts`: the weight of each. */
function callersOf({ tree }, shown, groups, { nodes, amounts }) {
  const { fn, flags, parent } = tree;
  for (let i = 0; i < nodes.length; i++) {
    const up = parent[nodes[i]] < 0 ? -1 : shown[parent[nodes[i]]];
    if (up < 0) continue;
    const group = groups.of(fn[up]);
    group.nodes.push(up);
    group.amounts.push(amounts[i]);
    group.weight += amounts[i];
    if (flags[up] & 1) group.unproved += amounts[i];
    group.inlined |= flags[up] & 2;
  }
  return groups.take();
}

/** The functions that stacks end in, by function. */
function leavesOf({ tree }, own, shown, groups) {
  const { fn, flags, count } = tree;
  for (let n = 0; n < count; n++) {
    if (own[n] === 0 || shown[n] < 0) continue;
    const group = groups.of(fn[shown[n]]);
    group.nodes.push(shown[n]);
    group.amounts.push(own[n]);
    group.weight += own[n];
    if (flags[shown[n]] & 1) group.unproved += own[n];
    group.inlined |= flags[shown[n]] & 2;
  }
  return groups.take();
}

/**
 * The flame graph below a path of functions from the root. Frames of the path are as wide as the
 * last of them. `next` gives the groups below a group, or those at the root for null.
 */
function flameOf(all, path, next) {
  const frames = new Frames();
  let groups = next(null), parent = -1, depth = 0, zoomed = all;
  const found = [];
  for (const fn of path) {
    const group = groups.find((group) => group.fn === fn);
    if (!group) break;
    const below = next(group);
    const inside = below.reduce((sum, other) => sum + other.weight, 0);
    parent = frames.add(group, depth++, parent, 0, group.weight - inside);
    found.push(fn);
    groups = below;
    zoomed = group.weight;
  }
  const least = zoomed * NARROWEST;
  // Breadth first, so that the widest are drawn if there are too many.
  const queue = [{ groups, parent, depth, x: 0 }];
  for (let at = 0; at < queue.length; at++) {
    let { x } = queue[at];
    const { groups, parent, depth } = queue[at];
    let others = 0;
    for (const group of groups) {
      if (group.weight < least || frames.fn.length >= MOST_FRAMES) {
        others += group.weight;
        continue;
      }
      const below = next(group);
      const inside = below.reduce((sum, other) => sum + other.weight, 0);
      const frame = frames.add(group, depth, parent, x, Math.max(0, group.weight - inside));
      if (below.length) queue.push({ groups: below, parent: frame, depth: depth + 1, x });
      x += group.weight;
    }
    if (others >= least) frames.add({ fn: OTHERS, weight: others, unproved: 0, inlined: 0 }, depth, parent, x, 0);
  }
  return { frames: frames.packed(), zoom: found, all: zoomed };
}

/** The flame graph of a selection: callees below callers, or callers below the functions that stacks end in. */
function flame(trace, { own, total, visible, shown }, { inverted, zoom }) {
  const groups = new Groups(trace.facts.functions.names.length);
  let next;
  if (inverted) {
    next = (group) => (group ? callersOf(trace, shown, groups, group) : leavesOf(trace, own, shown, groups));
  } else {
    next = (group) => calleesOf(trace, total, visible, groups, group && group.nodes);
  }
  let all = 0;
  for (let n = 0; n < own.length; n++) all += own[n];
  return flameOf(all, zoom, next);
}

/** The outermost calls of a function in each stack: their nodes, and the weight of each. */
function outermostCalls({ tree: { fn, first, flags, count } }, total, f) {
  const calls = { nodes: [], amounts: [], weight: 0, unproved: 0 };
  for (let n = 0; n < count; n++) {
    if (fn[n] !== f || !first[n] || total[n] === 0) continue;
    calls.nodes.push(n);
    calls.amounts.push(total[n]);
    calls.weight += total[n];
    if (flags[n] & 1) calls.unproved += total[n];
  }
  return calls;
}
