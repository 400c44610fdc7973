// Cycles of calls that follow themselves, shown once, as `--fold-recursion` does.

/** Frames of a cycle at most that is folded. (LONGEST_CYCLE of cli/profile/src/profile/depth.rs.) */
const LONGEST_CYCLE = 8;

/** The stack without its innermost cycle, if the same one is right above it; else the stack. `frame`: functions and flags. */
function withoutCycle(frame, parent, stack) {
  const caller = (node) => {
    while (frame[node] & 2 && parent[node] >= 0) node = parent[node];
    return parent[node];
  };
  let above = stack;
  for (let length = 0; length < LONGEST_CYCLE; length++) {
    above = caller(above);
    if (above < 0) break;
    let inner = stack, outer = above;
    // Whether a frame is proved makes no other cycle.
    while (inner !== above && outer >= 0 && (frame[inner] & ~1) === (frame[outer] & ~1)) {
      inner = parent[inner];
      outer = parent[outer];
    }
    if (inner === above) return above;
  }
  return stack;
}

/** Whether a stack of a tree has a cycle that follows itself. */
function hasCycle({ frame, first, parent, count }) {
  // A cycle ends with a function that the stack has already.
  for (let n = 0; n < count; n++) if (!first[n] && withoutCycle(frame, parent, n) !== n) return true;
  return false;
}

/** The trace with another tree, and the rows' nodes in that. Inlined functions are one frame with the one that calls them. */
function withoutRecursion(trace) {
  const { tree, rows } = trace;
  if (!hasCycle(tree)) return trace;
  const { count, flags, first, end, parent: callers } = tree;
  // The tree's nodes keep their numbers; those that lose their caller to a fold come behind them.
  const frame = new Int32Array(2 * count), parent = new Int32Array(2 * count);
  frame.set(tree.frame);
  parent.set(callers);
  // By node: where frames that it is the outer part of continue, and where its callees do.
  const whole = new Int32Array(count), folded = new Int32Array(count);
  const made = [], below = new Map();
  const calleesIn = (at) => {
    let callees = below.get(at);
    if (!callees) below.set(at, (callees = new Map()));
    else return callees;
    for (let c = at + 1; at < count && c < end[at]; c = end[c]) if ((flags[c] & 2 ? whole : folded)[at] === at) callees.set(frame[c], c);
    return callees;
  };
  for (let n = 0; n < count; n++) {
    const up = callers[n];
    const at = up < 0 ? -1 : flags[n] & 2 ? whole[up] : folded[up];
    let node = n;
    if (at !== up) {
      const callees = calleesIn(at);
      node = callees.get(frame[n]) ?? -1;
      if (node < 0) {
        node = count + made.length;
        made.push(at);
        frame[node] = frame[n];
        parent[node] = at;
        callees.set(frame[n], node);
      }
    }
    whole[n] = node;
    folded[n] = first[n] ? node : withoutCycle(frame, parent, node);
  }
  const { places, ...columns } = inOrder(tree, whole, parent, frame, made);
  const node = new Int32Array(rows.count);
  for (let i = 0; i < rows.count; i++) node[i] = rows.node[i] < 0 ? -1 : places[folded[rows.node[i]]];
  return { ...trace, tree: treeOf(columns, trace.facts.functions.names.length), rows: { ...rows, node }, memory: undefined, column: undefined };
}

/** Columns of a tree in the order of a visit, as a page has them, and where each node is in it. `made`: the callers of nodes behind the tree's own. */
function inOrder({ count, parent: callers }, whole, parent, frame, made) {
  const all = count + made.length, root = all;
  const firstBelow = new Int32Array(all + 1).fill(-1), next = new Int32Array(all).fill(-1), last = new Int32Array(all + 1).fill(-1);
  const append = (node, at) => {
    if (last[at] < 0) firstBelow[at] = node;
    else next[last[at]] = node;
    last[at] = node;
  };
  for (let n = 0; n < count; n++) if (whole[n] === n) append(n, callers[n] < 0 ? root : callers[n]);
  made.forEach((at, i) => append(count + i, at < 0 ? root : at));
  const places = new Int32Array(all), depth = new Uint32Array(all), frames = new Uint32Array(all);
  let at = 0, before = 0;
  for (let node = firstBelow[root], level = 0; node >= 0; ) {
    places[node] = at;
    // As a page's column: how far it is from a callee of the node before, and the direction.
    const step = level - before;
    depth[at] = step < 0 ? 2 * (-step - 1) + 1 : 2 * step;
    frames[at++] = frame[node];
    before = level + 1;
    if (firstBelow[node] >= 0) {
      node = firstBelow[node];
      level++;
      continue;
    }
    while (node >= 0 && next[node] < 0) {
      node = parent[node];
      level--;
    }
    node = node < 0 ? -1 : next[node];
  }
  return { places, depth: depth.subarray(0, at), frame: frames.subarray(0, at) };
}
