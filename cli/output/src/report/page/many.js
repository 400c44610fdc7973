// The list of several traces: what each did, and which of them stand out.

/** Fewer traces than these have no usual values. */
const FEW_TRACES = 5;
/** A number that is farther from the median is an outlier. (Iglewicz and Hoaglin, 1993: 3.5 of these distances.) */
const FAR = 3.5;
/** The least distance that counts as one: a hundredth. Shares that differ by rounding alone do not stand out. */
const LEAST_DISTANCE = 0.01;

/** What traces are compared by: parts of a whole; null where it is not known. */
const MEASURES = {
  cpu: { title: "CPU", of: "of one processor", get: ({ cpu_ns: cpu, cpu_known: known, duration_ns: all }) => (known && all > 0 ? cpu / all : null) },
  waits: { title: "Waits", of: "of the threads' time", get: ({ waiting_ns: waiting, weight_ns: all }) => (all > 0 ? waiting / all : null) },
  missed: { title: "Missed", of: "of the samples", get: ({ missed_share: missed }) => missed },
  trust: { title: "Complete stacks", of: "of the samples", get: ({ complete_share: complete, samples }) => (samples > 0 ? complete : null) },
};

function medianOf(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b), middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * How far each number is from the median, as multiples of the usual distance: 1.4826 times the median of all
 * distances, which is the standard deviation where numbers are spread as by a normal distribution.
 */
function distancesOf(numbers) {
  const known = numbers.filter((number) => number !== null);
  if (known.length < FEW_TRACES) return { median: null, usual: null, distances: numbers.map(() => 0) };
  const median = medianOf(known), usual = Math.max(LEAST_DISTANCE, 1.4826 * medianOf(known.map((number) => Math.abs(number - median))));
  return { median, usual, distances: numbers.map((number) => (number === null ? 0 : (number - median) / usual)) };
}

/** By trace: its measures, and those in which it stands out, the farthest first. */
function tracesCompared() {
  const of = Object.entries(MEASURES).map(([key, measure]) => ({ key, ...measure, ...distancesOf(traces.map(measure.get)) }));
  return traces.map((trace, i) => {
    const far = of.map(({ distances, ...measure }) => ({ ...measure, distance: distances[i] })).filter(({ distance }) => Math.abs(distance) > FAR);
    return { i, trace, measures: Object.fromEntries(of.map(({ key, get }) => [key, get(trace)])), far: far.sort((a, b) => Math.abs(b.distance) - Math.abs(a.distance)) };
  });
}

/** Orders of the list; the first one is its own. */
const TRACE_SORTS = (() => {
  const farthest = ({ far }) => Math.abs(far[0]?.distance ?? 0), cpu = (a, b) => b.trace.cpu_ns - a.trace.cpu_ns || a.i - b.i;
  const text = (get) => (a, b) => get(a.trace).localeCompare(get(b.trace), "en") || a.i - b.i;
  const number = (get) => (a, b) => (get(b) ?? -1) - (get(a) ?? -1) || a.i - b.i;
  return {
    out: (a, b) => farthest(b) - farthest(a) || cpu(a, b), trace: text(baseName), process: text(({ process }) => process), host: text(({ host }) => host), build: text(({ build }) => build), cpu,
    waits: number(({ measures }) => measures.waits), samples: number(({ trace }) => trace.samples), missed: number(({ measures }) => measures.missed), trust: number(({ measures }) => measures.trust),
  };
})();

/** The last part of a trace's path. */
function baseName({ source }) {
  return source.split(/[\\/]/).pop();
}

/** The sum of all traces, where the answer of one would be. */
function tracesLine(compared) {
  const sum = (get) => traces.reduce((sum, trace) => sum + get(trace), 0);
  const [cpu, time, all, waiting] = [({ cpu_ns: ns }) => ns, ({ duration_ns: ns }) => ns, ({ weight_ns: ns }) => ns, ({ waiting_ns: ns }) => ns].map(sum);
  const out = compared.filter(({ far }) => far.length).length, unknown = traces.filter(({ cpu_known: known }) => !known).length;
  return [
    answerLine("run", "CPU", "flame", `${span(cpu)} in ${counted(traces.length, "trace")} of ${span(time)}, ${percent(cpu, time)} of one processor.${unknown ? ` ${counted(unknown, "trace")} without CPU times.` : ""}`),
    answerLine("wait", "Waits", "waits", `${span(waiting)} of the threads' ${span(all)} (${percent(waiting, all)}).`),
    answerLine(out ? "fair" : "good", "Stands out", "quality", traces.length < FEW_TRACES ? `Fewer than ${FEW_TRACES} traces: none can stand out.` : out ? `${counted(out, "trace")}, farther than ${FAR} times the usual distance from the median.` : "No trace."),
  ];
}

function traceRow({ i, trace, measures, far }) {
  const isFar = (key) => far.find((measure) => measure.key === key);
  const explained = ({ title, of, get, median, usual }) => `${title}: ${percent(get(trace), 1)} ${of}; the median is ${percent(median, 1)}, the usual distance ${percent(usual, 1)}`;
  const share = (key) => {
    const out = isFar(key);
    return el("td", { class: `number${out ? " out" : ""}`, title: out ? explained(out) : "", "data-amount": measures[key] ?? "" }, measures[key] === null ? "–" : measures[key] > 0 ? percent(measures[key], 1) : "0");
  };
  return el("tr", { "data-trace": String(i), class: far.length ? "far" : "" },
    el("td", { class: "wrapped" }, el("button", { type: "button", class: "plain name", title: trace.source, onclick: () => goToTrace(i) }, baseName(trace))),
    el("td", {}, `${trace.process} `, el("span", { class: "soft" }, String(trace.pid))), el("td", {}, trace.host), el("td", { class: "name", title: trace.build }, trace.build.length > 14 ? `${trace.build.slice(0, 12)}…` : trace.build),
    el("td", { class: "number", "data-amount": trace.cpu_ns }, trace.cpu_known ? span(trace.cpu_ns) : "–"), share("cpu"), share("waits"), el("td", { class: "number", "data-amount": trace.samples }, count(trace.samples)), share("missed"), share("trust"),
    el("td", {}, ...far.map((measure) => el("span", { class: "tag poor", title: explained(measure) }, `${measure.title} ${measure.distance > 0 ? "+" : "−"}${three(Math.abs(measure.distance))}×`))));
}

/** Draws the list. It needs nothing but the index of the page: no trace is unpacked for it. */
function showTraces() {
  const compared = tracesCompared(), head = (key, text, columns = 1) => sortHead(key, text, columns, TRACE_SORTS, ["trace", "process", "host", "build"]);
  compared.sort(Object.hasOwn(TRACE_SORTS, state.sort) ? TRACE_SORTS[state.sort] : TRACE_SORTS.out);
  const body = el("tbody", {});
  $("answer").replaceChildren(...tracesLine(compared));
  $("view").replaceChildren(
    el("p", { class: "soft" }, "A click on a trace shows it; the other views are of all traces together. Marked numbers are far from the median, as multiples of the usual distance from it."),
    el("div", { class: "scrolls" }, el("table", { class: "wide" },
      el("thead", {}, el("tr", {}, head("trace", "Trace"), head("process", "Process"), head("host", "Host"), head("build", "Build"), head("cpu", "CPU", 2), head("waits", "Waits"), head("samples", "Samples"), head("missed", "Missed"), head("trust", "Complete stacks"), head("out", "Stands out"))), body)));
  appendRows(body, compared, traceRow);
}
