// A flame chart: the stacks of one thread over time.
//
// The time that is shown has columns of the screen. A row at least a column long is drawn as it is. Of
// shorter rows, those that begin within a column are one stretch: the stack that most of their time leads
// to is drawn. So there is at most a screen of boxes, however long the time is, and the boxes of a short
// time have exact ends.

/** Functions of a stack at most that are drawn. */
const DEEPEST = 400;

/** By node: its nearest caller that is shown. */
function shownCallers({ tree: { parent, count } }, shown) {
  const callers = new Int32Array(count);
  for (let n = 0; n < count; n++) callers[n] = parent[n] < 0 ? -1 : shown[parent[n]];
  return callers;
}

/** The rows of a column, to choose the stack that stands for them. */
class Column {
  constructor(count) {
    this.weight = new Float64Array(count);
    this.own = new Float64Array(count);
    this.best = new Int32Array(count).fill(-1);
    this.rows = [];
    this.from = this.until = 0;
  }

  add(node, from, until, waits) {
    if (!this.rows.length) this.from = from;
    this.rows.push([node, until - from, waits]);
    this.until = until;
  }

  /** The node where most of the time is, callers first; -1 = no function. */
  heaviest(callers) {
    if (this.rows.length === 1) return this.rows[0][0];
    const met = [];
    let none = 0, root = -1;
    for (const [node, time] of this.rows) {
      if (node < 0) none += time;
      else this.own[node] += time;
      for (let n = node; n >= 0; n = callers[n]) {
        if (this.weight[n] === 0) met.push(n);
        this.weight[n] += time;
      }
    }
    for (const n of met) {
      const caller = callers[n];
      const rival = caller < 0 ? root : this.best[caller];
      if (rival >= 0 && this.weight[rival] >= this.weight[n]) continue;
      if (caller < 0) root = n;
      else this.best[caller] = n;
    }
    let at = root >= 0 && this.weight[root] > none ? root : -1;
    while (at >= 0 && this.best[at] >= 0 && this.weight[this.best[at]] > this.own[at]) at = this.best[at];
    for (const n of met) {
      this.weight[n] = this.own[n] = 0;
      this.best[n] = -1;
    }
    return at;
  }

  /** The column as a stretch of time; then it is empty. */
  take(callers) {
    const all = this.until - this.from;
    const waits = this.rows.reduce((sum, [, time, waits]) => sum + (waits ? time : 0), 0);
    const stretch = { node: this.heaviest(callers), start: this.from, end: this.until, waits: waits > all / 2 };
    this.rows = [];
    return stretch;
  }
}

/** The stretches of a thread's time in which one stack is drawn. */
function stretches(trace, { fitting, below, shown, callers }, { thread: t, from, until, columns }) {
  const { rows, tree } = trace;
  const { start, wall, node, state, starts } = rows;
  const width = (until - from) / columns;
  const column = (trace.column ??= new Column(tree.count));
  const list = [];
  const put = (stretch) => {
    const last = list[list.length - 1];
    if (last && last.node === stretch.node && last.waits === stretch.waits && stretch.start - last.end < width) last.end = stretch.end;
    else list.push(stretch);
  };
  const flush = () => column.rows.length && put(column.take(callers));
  let end = from;
  for (let i = firstBehind(rows, t, from); i < starts[t + 1] && start[i] < until; i++) {
    const n = node[i];
    if (!isTaken(fitting, below, state[i], n)) continue;
    const first = Math.max(start[i], end), last = Math.min(start[i] + wall[i], until);
    if (last <= first) continue;
    end = last;
    const visible = n < 0 ? -1 : shown[n], waits = state[i] >= 3;
    if (column.rows.length && last - column.from > width) flush();
    if (last - first >= width) put({ node: visible, start: first, end: last, waits });
    else column.add(visible, first, last, waits);
  }
  flush();
  return list;
}

/** The boxes of a thread's stacks from one time to another: functions, outermost at depth 0, from `x` on, `wide` long; and when it waits, starts and ends. */
function chart(trace, how, asked) {
  const { fn, flags } = trace.tree;
  const boxes = { fn: [], depth: [], parent: [], x: [], wide: [], unproved: [] };
  const waits = [];
  const near = (asked.until - asked.from) / asked.columns;
  let open = [], before = null;
  const add = (f, depth, { start, end }, unproved) => {
    const parent = depth > 0 ? open[depth - 1] : -1;
    boxes.fn.push(f);
    boxes.depth.push(depth);
    boxes.parent.push(parent);
    boxes.x.push(start);
    boxes.wide.push(end - start);
    boxes.unproved.push(unproved);
    return boxes.fn.length - 1;
  };
  for (const stretch of stretches(trace, how, asked)) {
    const path = [];
    for (let n = stretch.node; n >= 0; n = how.callers[n]) path.push(n);
    path.reverse();
    if (path.length > DEEPEST) path.length = DEEPEST;
    const follows = before !== null && stretch.start - before.end < near;
    if (!follows) open = [];
    if (stretch.waits && follows && before.waits) waits[waits.length - 1] = stretch.end;
    else if (stretch.waits) waits.push(stretch.start, stretch.end);
    const functions = path.length ? path.map((n) => fn[n]) : [OTHERS];
    let same = 0;
    while (same < functions.length && same < open.length && boxes.fn[open[same]] === functions[same]) same++;
    for (const box of open.slice(0, same)) boxes.wide[box] = stretch.end - boxes.x[box];
    open = open.slice(0, same);
    for (let depth = same; depth < functions.length; depth++) open.push(add(functions[depth], depth, stretch, path.length ? flags[path[depth]] & 1 : 0));
    before = stretch;
  }
  const types = { fn: Int32Array, depth: Uint16Array, parent: Int32Array, x: Float64Array, wide: Float64Array, unproved: Uint8Array };
  return { boxes: Object.fromEntries(Object.entries(boxes).map(([name, list]) => [name, types[name].from(list)])), waits: Float64Array.from(waits) };
}

/** What a thread's rows below a path of functions add up to from one time to another: exact, whatever is drawn. */
function stretchSums(trace, { fitting, below, shown, callers, amounts, ofSamples }, { thread: t, from, until, path }) {
  const { rows, tree: { fn } } = trace;
  const { start, wall, cpu, samples, node, state, starts } = rows;
  const sums = { cpu: 0, wall: 0, samples: 0, weight: 0, waiting: 0 }, is = new Map();
  const leads = (n) => {
    const functions = [];
    for (let at = shown[n]; at >= 0; at = callers[at]) functions.push(fn[at]);
    return path.every((f, depth) => functions[functions.length - 1 - depth] === f);
  };
  for (let i = firstBehind(rows, t, from - 1); i < starts[t + 1] && start[i] < until; i++) {
    const n = node[i];
    if (!isTaken(fitting, below, state[i], n)) continue;
    if (path.length) {
      if (n < 0) continue;
      if (!is.has(n)) is.set(n, leads(n));
      if (!is.get(n)) continue;
    }
    const share = shareInTime(start[i], wall[i], from, until);
    const count = samplesBefore(rows, i, until) - samplesBefore(rows, i, from);
    sums.cpu += cpu[i] * share;
    sums.wall += wall[i] * share;
    sums.samples += count;
    sums.weight += ofSamples ? (amounts[i] === 0 ? 0 : count) : amounts[i] * share;
    if (state[i] >= 3) sums.waiting += wall[i] * share;
  }
  return sums;
}
