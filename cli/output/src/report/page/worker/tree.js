// Call trees that are opened node by node: callees below callers, or callers below callees.

/** Callees of a node that are listed one by one. */
const MOST_LISTED = 100;
/** Nodes that are opened at once along the heaviest path. */
const MOST_OPENED = 60;

/** How a tree begins and continues: its groups at the root, and those below a group. */
function growth(trace, sums, { kind, fn }) {
  const groups = new Groups(trace.facts.functions.names.length);
  const down = (group) => calleesOf(trace, sums.total, sums.visible, groups, group && group.nodes);
  const up = (group) => (group ? callersOf(trace, sums.shown, groups, group) : leavesOf(trace, sums.own, sums.shown, groups));
  if (kind === "callees") return down;
  if (kind === "callers") return up;
  // Of one function: its outermost calls, and what leads to them or what they lead to.
  const { nodes, amounts, weight, unproved } = outermostCalls(trace, sums.total, fn);
  const below = kind === "callersOf" ? up : down;
  return (group) => (group ? below(group) : nodes.length ? [{ fn, nodes, amounts, weight, unproved, inlined: 0 }] : []);
}

/**
 * The rows of a tree, from the root downwards. `open`: paths of functions, as texts, whose callees are
 * listed. `along`: the path from which on the heaviest callees are opened too; null = none.
 */
function treeRows(next, open, along) {
  const rows = { fn: [], depth: [], weight: [], self: [], unproved: [], below: [], open: [], place: [], of: [], path: [] };
  const opened = new Set(open);
  let most = MOST_OPENED;
  const put = (row) => Object.entries(row).forEach(([name, value]) => rows[name].push(value));
  const visit = (groups, depth, above, heavy) => {
    const listed = groups.slice(0, MOST_LISTED);
    const of = listed.length + (groups.length > listed.length ? 1 : 0);
    listed.forEach((group, i) => {
      const path = above === "" ? `${group.fn}` : `${above}.${group.fn}`;
      const below = next(group);
      const inside = below.reduce((sum, { weight }) => sum + weight, 0);
      // The path on which most of the weight is, until it ends in a function of its own.
      const leads = along !== null && (path === along || (i === 0 && heavy)) && below.length > 0 && most-- > 0;
      if (leads) opened.add(path);
      const isOpen = opened.has(path) && below.length > 0;
      put({ fn: group.fn, depth, weight: group.weight, self: Math.max(0, group.weight - inside), unproved: group.unproved, below: below.length, open: isOpen, place: i + 1, of, path });
      if (isOpen) visit(below, depth + 1, path, leads && below[0].weight > group.weight / 2);
    });
    const rest = groups.slice(MOST_LISTED);
    if (rest.length) put({ fn: OTHERS, depth, weight: rest.reduce((sum, { weight }) => sum + weight, 0), self: 0, unproved: 0, below: rest.length, open: false, place: of, of, path: `${above}.rest` });
  };
  visit(next(null), 0, "", along === "");
  return { rows, opened: [...opened] };
}
