// Several traces as one: their stacks in one tree, their threads one behind the other. Sums of it are those of the traces.

/** Numbers things in the order in which they are met. `of`: the number of a key; `make` gives what is listed for a new one. */
function numbering() {
  const numbers = new Map(), list = [];
  const of = (key, make) => {
    let number = numbers.get(key);
    if (number === undefined) {
      number = list.length;
      numbers.set(key, number);
      list.push(make());
    }
    return number;
  };
  return { list, of };
}

/** The texts, stops and functions of all traces, each once. */
function together() {
  const [modules, categories, files, causes, stops, functions] = Array.from({ length: 6 }, numbering);
  const text = (names, name) => names.of(name, () => name);
  const ofOthers = [];

  /** The numbers here of a trace's functions. What a function is named after is a part of it, so that what can be trusted adds up. */
  function addFunctions({ functions: of, modules: moduleNames, categories: categoryNames, of_others: others, files: fileNames, causes: causeList }) {
    return Int32Array.from(of.names, (name, f) => {
      const module = text(modules, moduleNames[of.modules[f]]), category = text(categories, categoryNames[of.categories[f]]);
      ofOthers[category] = others[of.categories[f]];
      const cause = of.causes[f] ? 1 + causes.of(JSON.stringify(causeList[of.causes[f] - 1]), () => causeList[of.causes[f] - 1]) : 0;
      const file = of.files[f] ? 1 + text(files, fileNames[of.files[f] - 1]) : 0;
      const made = { name, module, category, source: of.sources[f], cause, file, line: of.lines[f] };
      const number = functions.of(JSON.stringify([name, module, category, made.source, cause, file]), () => made);
      // Code of several lines has none.
      if (functions.list[number].line !== made.line) functions.list[number].line = 0;
      return number;
    });
  }

  const column = (what) => functions.list.map((made) => made[what]);
  return {
    addFunctions,
    addStops: (list) => Int32Array.from(list, (stop) => stops.of(JSON.stringify(stop), () => stop)),
    facts: () => ({
      modules: modules.list, categories: categories.list, of_others: ofOthers, files: files.list, causes: causes.list, stops: stops.list,
      functions: { names: column("name"), modules: column("module"), categories: column("category"), files: column("file"), lines: column("line"), sources: column("source"), causes: column("cause") },
    }),
  };
}

/** One tree of the trees of all traces, and where the nodes of each are in it. `numbers`, by trace: the functions' numbers. */
function mergedTree(all, numbers, functions) {
  const most = all.reduce((sum, { tree }) => sum + tree.count, 0);
  const frame = new Int32Array(most), parent = new Int32Array(most), known = new Map();
  let count = 0;
  const merged = all.map(({ tree }, i) => {
    const nodes = new Int32Array(tree.count);
    for (let n = 0; n < tree.count; n++) {
      const up = tree.parent[n] < 0 ? -1 : nodes[tree.parent[n]], packed = 4 * numbers[i][tree.fn[n]] + tree.flags[n];
      const key = (up + 1) * 4 * functions + packed;
      let node = known.get(key);
      if (node === undefined) {
        node = count++;
        known.set(key, node);
        [frame[node], parent[node]] = [packed, up];
      }
      nodes[n] = node;
    }
    return nodes;
  });
  const { places, ...columns } = inOrder({ count, parent }, Int32Array.from({ length: count }, (_, n) => n), parent, frame, []);
  return { tree: treeOf(columns, functions), places: merged.map((nodes) => nodes.map((n) => places[n])) };
}

/** The rows of all traces. */
function mergedRows(all, places, stops) {
  const count = all.reduce((sum, { rows }) => sum + rows.count, 0);
  const rows = { count, starts: [0] };
  for (const [name, Type] of Object.entries({ start: Float64Array, reach: Float64Array, wall: Float64Array, last: Float64Array, cpu: Float64Array, samples: Uint32Array, node: Int32Array, state: Uint8Array, stop: Uint32Array })) {
    const column = (rows[name] = new Type(count));
    const number = { node: (n, i) => (n < 0 ? -1 : places[i][n]), stop: (stop, i) => stops[i][stop] }[name];
    let at = 0;
    all.forEach(({ rows: of }, i) => {
      column.set(number ? of[name].map((value) => number(value, i)) : of[name], at);
      at += of.count;
    });
  }
  let begin = 0;
  for (const { rows: of } of all) {
    rows.starts.push(...of.starts.slice(1).map((start) => begin + start));
    begin += of.count;
  }
  return rows;
}

/** What is said of all traces: sums, and what is known of any. */
function mergedFacts(all) {
  const facts = all.map((trace) => trace.facts), first = facts[0];
  const sum = (get) => facts.reduce((sum, of) => sum + get(of), 0);
  const time = Math.max(1, sum(({ totals }) => totals.weight_ns)), mean = (what) => sum(({ totals }) => totals[what] * totals.weight_ns) / time;
  const known = facts.filter((of) => of.cpu_source !== "none");
  const missing = numbering();
  for (const { module, reason, samples, frames } of facts.flatMap((of) => of.missing)) {
    const at = missing.of(JSON.stringify([module, reason]), () => ({ module, reason, samples: 0, frames: 0 }));
    missing.list[at].samples += samples;
    missing.list[at].frames += frames;
  }
  const warnings = facts.flatMap((of) => of.warnings);
  if (known.length && known.length < facts.length) warnings.push(`${facts.length - known.length} of ${facts.length} traces have no CPU times: another weight compares all of them`);
  const [hz, asked] = [mean("achieved_hz"), mean("asked_hz")];
  return {
    ...first, sources: facts.map((of) => of.source), process: `${facts.length} traces`, host: "",
    duration_ns: Math.max(...facts.map((of) => of.duration_ns)),
    sources: [],
    // How long all of them recorded.
    from_ns: 0, until_ns: sum((of) => of.until_ns - of.from_ns),
    cpu_source: known.length ? known[0].cpu_source : "none",
    totals: { asked_hz: asked, achieved_hz: hz, missed_share: sum(({ totals }) => totals.missed_share * totals.weight_ns) / time },
    part: facts.some((of) => of.part) ? "what the options chose of each trace" : "",
    threads: facts.flatMap((of) => of.threads.map((thread) => ({ ...thread, name: `${thread.name || "no name"} – ${of.process} (${of.pid})` }))),
    events: { times: [] }, missing: missing.list, warnings,
    runs: sum((of) => of.runs), joined_ns: facts.reduce((most, of) => Math.max(most, of.joined_ns ?? 0), 0) || null,
  };
}

function mergedTraces(all) {
  const names = together();
  const numbers = all.map(({ facts }) => names.addFunctions(facts)), stops = all.map(({ facts }) => names.addStops(facts.stops));
  const facts = { ...mergedFacts(all), ...names.facts() };
  const { tree, places } = mergedTree(all, numbers, facts.functions.names.length);
  return { facts, tree, rows: mergedRows(all, places, stops) };
}
