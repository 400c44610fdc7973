// Cycles of calls that follow themselves, shown once, as `--fold-recursion` does.

/** Frames of a cycle at most that is folded. (LONGEST_CYCLE of cli/profile/src/profile/depth.rs.) */
const LONGEST_CYCLE = 8;

/** A tree that grows: a node for each caller, function and flags. Nodes of a caller are a list in the order in which they came. */
class GrowingTree {
  constructor(most) {
    for (const name of ["frame", "parent", "firstBelow", "lastBelow", "next"]) this[name] = new Int32Array(most + 1).fill(-1);
    this.count = 0;
    // Open addressing; the root's place is `most`.
    this.root = most;
    this.slots = new Int32Array(2 ** Math.ceil(Math.log2(2 * most + 2))).fill(-1);
  }

  /** The node of a function called by `parent` (-1 = a root). */
  node(parent, frame) {
    const { slots, frame: frames, parent: parents } = this;
    const mask = slots.length - 1;
    let at = Math.imul(Math.imul(parent + 1, 0x9e3779b1) ^ frame, 0x85ebca6b);
    for (at = (at ^ (at >>> 15)) & mask; slots[at] >= 0; at = (at + 1) & mask) {
      if (parents[slots[at]] === parent && frames[slots[at]] === frame) return slots[at];
    }
    const node = (slots[at] = this.count++);
    frames[node] = frame;
    parents[node] = parent;
    const above = parent < 0 ? this.root : parent;
    if (this.firstBelow[above] < 0) this.firstBelow[above] = node;
    else this.next[this.lastBelow[above]] = node;
    this.lastBelow[above] = node;
    return node;
  }

  /** The stack without its innermost cycle, if the same one is right above it. */
  withoutCycle(stack) {
    const { frame, parent } = this;
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
}

/** The trace with another tree, and the rows' nodes in that. Inlined functions are one frame with the one that calls them. */
function withoutRecursion(trace) {
  const { tree, rows } = trace;
  // Without a function that is its own caller there is no cycle.
  if (!tree.first.includes(0)) return trace;
  const made = new GrowingTree(tree.count);
  // By node: where frames that it is the outer part of continue, and where its callees do.
  const whole = new Int32Array(tree.count), folded = new Int32Array(tree.count);
  for (let n = 0; n < tree.count; n++) {
    const up = tree.parent[n];
    const parent = up < 0 ? -1 : tree.flags[n] & 2 ? whole[up] : folded[up];
    whole[n] = made.node(parent, 4 * tree.fn[n] + tree.flags[n]);
    // A cycle has a function that the stack has already.
    folded[n] = tree.first[n] ? whole[n] : made.withoutCycle(whole[n]);
  }
  // In the order of a visit.
  const { count, root, firstBelow, next, parent, frame } = made;
  const places = new Int32Array(count), depth = new Uint32Array(count), frames = new Uint32Array(count);
  let at = 0, last = 0;
  for (let node = firstBelow[root], level = 0; node >= 0; ) {
    places[node] = at;
    // As a page's column: how far it is from a callee of the node before, and the direction.
    const step = level - last;
    depth[at] = step < 0 ? 2 * (-step - 1) + 1 : 2 * step;
    frames[at++] = frame[node];
    last = level + 1;
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
  const node = rows.node.map((n) => (n < 0 ? n : places[folded[n]]));
  return { ...trace, tree: treeOf({ depth, frame: frames }, trace.facts.functions.names.length), rows: { ...rows, node }, memory: undefined };
}
