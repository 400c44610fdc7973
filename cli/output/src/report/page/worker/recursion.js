// Cycles of calls that follow themselves, shown once, as `--fold-recursion` does.

/** Frames of a cycle at most that is folded. (LONGEST_CYCLE of cli/profile/src/profile/depth.rs.) */
const LONGEST_CYCLE = 8;

/** The trace with another tree, and the rows' nodes in that. Inlined functions are one frame with the one that calls them. */
function withoutRecursion(trace) {
  const { tree, rows } = trace;
  const made = { fn: [], flags: [], parent: [], below: [] };
  const roots = new Map();
  const intern = (parent, fn, flags) => {
    const callees = parent < 0 ? roots : made.below[parent];
    const key = 4 * fn + flags;
    let node = callees.get(key);
    if (node === undefined) {
      node = made.fn.length;
      callees.set(key, node);
      made.fn.push(fn);
      made.flags.push(flags);
      made.parent.push(parent);
      made.below.push(new Map());
    }
    return node;
  };
  // By node: where frames that it is the outer part of continue, and where its callees do.
  const whole = new Int32Array(tree.count), folded = new Int32Array(tree.count);
  for (let n = 0; n < tree.count; n++) {
    const up = tree.parent[n], inlined = tree.flags[n] & 2;
    const parent = up < 0 ? -1 : inlined ? whole[up] : folded[up];
    whole[n] = intern(parent, tree.fn[n], tree.flags[n]);
    folded[n] = withoutCycle(made, whole[n]);
  }
  // In the order of a visit.
  const count = made.fn.length, places = new Int32Array(count), depth = [], frame = [];
  const visit = [...roots.values()].reverse().map((node) => [node, 0]);
  let last = 0;
  while (visit.length) {
    const [node, at] = visit.pop();
    places[node] = frame.length;
    // As a page's column: how far it is from a callee of the node before, and the direction.
    const step = at - last;
    depth.push(step < 0 ? 2 * (-step - 1) + 1 : 2 * step);
    frame.push(4 * made.fn[node] + made.flags[node]);
    last = at + 1;
    for (const callee of [...made.below[node].values()].reverse()) visit.push([callee, at + 1]);
  }
  const node = rows.node.map((n) => (n < 0 ? n : places[folded[n]]));
  return { ...trace, tree: treeOf({ depth, frame }, trace.facts.functions.names.length), rows: { ...rows, node }, memory: undefined };
}

/** The stack without its innermost cycle, if the same one is right above it. */
function withoutCycle({ fn, flags, parent }, stack) {
  const caller = (node) => {
    while (flags[node] & 2 && parent[node] >= 0) node = parent[node];
    return parent[node];
  };
  let above = stack;
  for (let length = 0; length < LONGEST_CYCLE; length++) {
    above = caller(above);
    if (above < 0) break;
    let inner = stack, outer = above;
    while (inner !== above && outer >= 0 && fn[inner] === fn[outer] && (flags[inner] & 2) === (flags[outer] & 2)) {
      inner = parent[inner];
      outer = parent[outer];
    }
    if (inner === above) return above;
  }
  return stack;
}
