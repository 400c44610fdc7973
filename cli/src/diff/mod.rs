//! What `stk diff` finds: which functions, stacks or modules take a greater part of the time in new
//! traces than in those of a base.
//!
//! ```text
//! call_rows what the stacks of traces count for
//! code      names that are the same in both builds, renames
//! collect   one trace's stacks and weights            Profile, Runs -> TraceStacks
//! coverage  modules whose names one side lacks
//! interval  how far a difference can be trusted
//! table, markdown, junit, flame   one output each     Diff -> text
//! ```
//!
//! A [`Comparison`] takes traces one by one and keeps of each the weights of its rows. Memory grows
//! with traces times distinct rows, not with samples.

mod call_rows;
mod code;
mod collect;
mod coverage;
mod flame;
mod interval;
mod junit;
mod markdown;
mod table;
#[cfg(test)]
mod tests;

pub use call_rows::CallRows;
pub use code::Renames;
pub use collect::{BuildFunction, Naming, StackWeights, ThreadStacks, TraceStacks, TraceWeights, collect};
pub use coverage::Unmatched;
pub use flame::flame_graph;
pub use junit::junit;
pub use markdown::markdown;
pub use table::table;

use call_rows::RowSums;
use code::{Code, RowKey};
use coverage::Coverage;
use interval::{DRAWS, RowShares, SideTotals, intervals};
use rayon::prelude::*;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stk_base::model::DYNAMIC_CODE;
use stk_profile::profile::{FunctionTree, NodeId, Weight};
use xxhash_rust::xxh3::xxh3_64;

/// Version of the JSON that `schema/diff.schema.json` describes.
pub const VERSION: u32 = 1;

/// Traces that a side needs before its differences can be judged.
pub const LEAST_TRACES: usize = 3;

/// Rows below this share of both sides are not judged, whatever the threshold: percent.
const LEAST_SHARE: f64 = 0.1;

/// What is one row.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Axis {
    #[default]
    Function,
    Stack,
    Module,
}

/// In which form a comparison is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiffFormat {
    Table,
    Json,
    Markdown,
    Junit,
}

/// What is compared, and when a difference counts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DiffOptions {
    pub by: Axis,
    /// Count functions and modules with their callees.
    pub total: bool,
    /// Percent of the base's mean weight of a trace, instead of each side's own: the traces do the
    /// same work.
    pub absolute: bool,
    /// Percent of the whole by which a row must differ.
    pub threshold: f64,
    /// Percent.
    pub confidence: f64,
    /// Rows to keep besides those that differ.
    pub top: usize,
    /// Keep what a flame graph needs.
    pub stacks: bool,
}

/// One of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Base,
    New,
}

/// The result of a comparison.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diff {
    pub version: u32,
    pub verdict: Verdict,
    /// Why nothing can be said for certain, one sentence each.
    pub inconclusive: Vec<String>,
    pub by: Axis,
    /// What rows count.
    pub weight: Weight,
    /// Whether callees count for their callers.
    pub total: bool,
    /// Whether percentages are those of the base's mean trace; else of each side's own weight.
    pub absolute: bool,
    pub threshold_pct: f64,
    pub confidence_pct: f64,
    pub base: SideSummary,
    pub new: SideSummary,
    /// Those that differ first, then by their difference.
    pub rows: Vec<DiffRow>,
    /// Rows that are left out: the smaller differences.
    pub rows_left_out: u64,
    /// Modules whose names one side lacks.
    pub unmatched: Vec<Unmatched>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// Weights of all stacks, base and new, in millionths of their side.
    #[serde(skip)]
    stacks: Vec<(Vec<String>, [u64; 2])>,
}

/// What a comparison comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing takes more than before, by more than the threshold.
    Passed,
    /// Something does.
    Worse,
    /// Inconclusive.
    Inconclusive,
}

/// One side.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SideSummary {
    pub traces: u64,
    /// Executables, sorted.
    pub processes: Vec<String>,
    /// Samples that have weight.
    pub samples: u64,
    /// Weight of all traces.
    pub weight_ns: u64,
    /// Part of it in code that has a name from symbols, in percent.
    pub named_pct: f64,
}

/// A row: a function, stack or module.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DiffRow {
    pub change: Change,
    /// Of a stack: that of its innermost function. Empty if it is in none.
    pub module: String,
    /// `None` for modules, and for code without a name.
    pub function: Option<String>,
    /// Outermost function first; empty unless stacks are compared.
    pub stack: Vec<String>,
    /// Percent of base's whole.
    pub base_pct: f64,
    /// Percent of new's whole.
    pub new_pct: f64,
    /// New minus base.
    pub difference_pct: f64,
    /// Bounds of the difference; `None` if it was not judged.
    pub low_pct: Option<f64>,
    pub high_pct: Option<f64>,
}

/// What became of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// It takes more: the lower bound of the difference exceeds the threshold.
    Worse,
    /// It takes less.
    Better,
    /// It differs by more than the threshold, but that may be chance.
    Unproved,
    /// It differs by less than the threshold.
    Small,
    /// One side lacks the names of its module.
    Unmatched,
    /// There are too few traces for a verdict.
    Unjudged,
}

impl Change {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Worse => "worse",
            Change::Better => "better",
            Change::Unproved => "unproved",
            Change::Small => "small",
            Change::Unmatched => "unmatched",
            Change::Unjudged => "unjudged",
        }
    }
}

/// Traces of both sides, filled one by one.
#[derive(Debug)]
pub struct Comparison {
    options: DiffOptions,
    renames: Renames,
    code: Code,
    sides: [Vec<TraceRows>; 2],
    notes: Vec<String>,
}

/// What is kept of a trace.
#[derive(Debug)]
struct TraceRows {
    source: String,
    digest: u64,
    process: String,
    weights: Vec<RowWeights>,
}

/// A trace's weights of one kind.
#[derive(Debug)]
struct RowWeights {
    weight: Weight,
    samples: u64,
    whole: u64,
    rows: Vec<(u32, u64)>,
    stacks: Vec<(NodeId, u64)>,
    coverage: Coverage,
}

impl Comparison {
    pub fn new(options: DiffOptions, renames: Renames) -> Comparison {
        let sides = [Vec::new(), Vec::new()];
        Comparison { options, renames, code: Code::default(), sides, notes: Vec::new() }
    }

    /// Adds a trace. The order of traces does not matter for the result but in which of equal rows
    /// comes first.
    pub fn add(&mut self, side: Side, trace: TraceStacks) {
        let TraceStacks { source, digest, process, functions, calls, weights } = trace;
        let code = self.code_of(side, &functions, calls);
        self.add_traces(&code, vec![TraceWeights { source, digest, process, weights }]);
    }

    /// The functions and stacks of traces that are to be added to a side.
    pub fn code_of(&mut self, side: Side, functions: &[BuildFunction], calls: FunctionTree) -> CallRows {
        let mut none = Renames::default();
        let renames = if side == Side::Base { &mut self.renames } else { &mut none };
        CallRows::new(side, functions, calls, &mut self.code, renames, self.options)
    }

    /// Adds traces that have this code, in their order. Runs in the caller's rayon pool.
    pub fn add_traces(&mut self, code: &CallRows, traces: Vec<TraceWeights>) {
        let side = &mut self.sides[code.side as usize];
        let mut new: Vec<TraceWeights> = Vec::new();
        for trace in traces {
            let known = side.iter().map(|known| (known.digest, &known.source));
            let mut known = known.chain(new.iter().map(|known| (known.digest, &known.source)));
            if let Some((_, same)) = known.find(|known| known.0 == trace.digest) {
                let source = &trace.source;
                self.notes.push(format!("{source}: is the same recording as {same}: it counts once"));
                continue;
            }
            new.push(trace);
        }
        let rows = |sums: &mut RowSums, TraceWeights { source, digest, process, weights }: TraceWeights| {
            let weights = weights.iter().map(|weights| code.weights(sums, weights)).collect();
            TraceRows { source, digest, process, weights }
        };
        side.par_extend(new.into_par_iter().map_init(RowSums::default, rows));
    }

    /// Compares the sides.
    pub fn finish(mut self) -> Diff {
        let at = self.weight();
        let wholes: [Vec<&RowWeights>; 2] =
            [0, 1].map(|side| self.sides[side].iter().filter_map(|trace| trace.weights.get(at)).collect());
        let coverage =
            wholes.each_ref().map(|traces| Coverage::sum(traces.iter().map(|trace| &trace.coverage)));
        let unmatched = match self.options.by {
            Axis::Module => Vec::new(),
            Axis::Function | Axis::Stack => coverage::unmatched(&coverage, &self.code),
        };
        let uneven: BTreeSet<&str> = unmatched.iter().map(|module| module.key.as_str()).collect();
        let judged = wholes.iter().all(|traces| traces.len() >= LEAST_TRACES);
        let totals = self.totals(&wholes);
        let mut rows = rows(&self, &wholes, &totals, &uneven, judged);
        let inconclusive = self.inconclusive(&wholes, &unmatched);
        let verdict = match rows.iter().any(|row| row.change == Change::Worse) {
            true => Verdict::Worse,
            false if inconclusive.is_empty() => Verdict::Passed,
            false => Verdict::Inconclusive,
        };
        let judged = rows.iter().take_while(|row| row.change <= Change::Better).count();
        let shown = judged.max(self.options.top).min(rows.len());
        let rows_left_out = (rows.len() - shown) as u64;
        rows.truncate(shown);
        let weight = wholes.iter().flatten().next().map_or(Weight::Cpu, |trace| trace.weight);
        let stacks = stack_sums(&self.code, &wholes);
        let summary = |side: usize| SideSummary {
            traces: wholes[side].len() as u64,
            processes: processes(&self.sides[side]),
            samples: wholes[side].iter().map(|trace| trace.samples).sum(),
            weight_ns: wholes[side].iter().map(|trace| trace.whole).fold(0, u64::saturating_add),
            named_pct: rounded(100.0 * coverage[side].named()),
        };
        let (base, new) = (summary(0), summary(1));
        self.note_on_sides();
        if base.processes != new.processes && base.traces > 0 && new.traces > 0 {
            let [base, new] = [&base, &new].map(|side| side.processes.join(", "));
            self.notes.push(format!(
                "the sides are of different programs, {base} and {new}: a difference may be theirs, not a change's"
            ));
        }
        Diff {
            version: VERSION,
            verdict,
            inconclusive,
            by: self.options.by,
            weight,
            total: self.options.total && self.options.by != Axis::Stack,
            absolute: self.options.absolute,
            threshold_pct: self.options.threshold,
            confidence_pct: self.options.confidence,
            base,
            new,
            rows,
            rows_left_out,
            unmatched,
            notes: self.notes,
            stacks,
        }
    }

    /// The weight that all traces have: an index in their lists.
    fn weight(&mut self) -> usize {
        let traces = || self.sides.iter().flatten();
        let choices = traces().map(|trace| trace.weights.len()).min().unwrap_or(0);
        let has = |at: usize| traces().all(|trace| trace.weights[at].whole > 0);
        let at = (0..choices).find(|&at| has(at)).unwrap_or(choices.saturating_sub(1));
        let skipped = traces().find_map(|trace| Some((trace, trace.weights.get(..at)?.first()?)));
        if let Some((trace, first)) = skipped {
            let lacks = traces().find(|trace| trace.weights[0].whole == 0).unwrap_or(trace);
            let (title, other) = (first.weight.title(), trace.weights[at].weight.title());
            let note = format!("{}: has no {title}; comparing {other}", lacks.source);
            self.notes.push(note);
        }
        at
    }

    fn totals(&self, wholes: &[Vec<&RowWeights>; 2]) -> [SideTotals; 2] {
        let mean = mean(&wholes[0]);
        [0, 1].map(|side| SideTotals {
            wholes: match self.options.absolute {
                true => vec![mean; wholes[side].len()],
                false => wholes[side].iter().map(|trace| trace.whole as f64).collect(),
            },
            samples: wholes[side].iter().map(|trace| trace.samples).sum::<u64>() as f64,
            seed: seed(&self.sides[side], side as u8),
        })
    }

    /// Why nothing can be said for certain.
    fn inconclusive(&self, wholes: &[Vec<&RowWeights>; 2], unmatched: &[Unmatched]) -> Vec<String> {
        let mut reasons = Vec::new();
        for (traces, name) in wholes.iter().zip(["base", "new"]) {
            let n = traces.len();
            if n < LEAST_TRACES {
                let counted = stk_base::text::counted(n as u64, "trace");
                reasons.push(format!("{name} has {counted}; a judgement needs {LEAST_TRACES} on each side"));
            } else if traces.iter().all(|trace| trace.whole == 0) {
                reasons.push(format!("{name} has no samples that count"));
            }
        }
        for (lacking, share) in coverage::lacking(unmatched) {
            if share > self.options.threshold {
                reasons.push(format!("unmatched: {lacking} lacks symbols, {share:.1} %"));
            }
        }
        reasons
    }

    /// Notes on what is odd about the sides.
    fn note_on_sides(&mut self) {
        let base: HashMap<u64, &str> =
            self.sides[0].iter().map(|trace| (trace.digest, trace.source.as_str())).collect();
        let both = self.sides[1].iter().filter(|trace| base.contains_key(&trace.digest));
        let both: Vec<String> =
            both.map(|trace| format!("{}: is the same recording on both sides", trace.source)).collect();
        self.notes.extend(both);
        for unused in self.renames.unused() {
            self.notes.push(format!("--map {unused}: no code of the base has the name before the ="));
        }
    }
}

/// The rows that have weight on either side, in the order in which they are shown.
fn rows(
    comparison: &Comparison,
    wholes: &[Vec<&RowWeights>; 2],
    totals: &[SideTotals; 2],
    uneven: &BTreeSet<&str>,
    judged: bool,
) -> Vec<DiffRow> {
    let Comparison { options, code, .. } = comparison;
    let mut parts: Vec<[RowShares; 2]> = vec![Default::default(); code.rows.values.len()];
    for (side, traces) in wholes.iter().enumerate() {
        for (trace, weights) in (0u32..).zip(traces) {
            for &(row, ns) in &weights.rows {
                parts[row as usize][side].push((trace, ns as f64));
            }
        }
    }
    let shares: Vec<[f64; 2]> =
        parts.iter().map(|parts| [0, 1].map(|side| 100.0 * totals[side].share(&parts[side]))).collect();
    let is_uneven = |row: usize| match &code.rows.values[row] {
        RowKey::Function(function) => uneven.contains(module_of(code, *function)),
        RowKey::Stack(stack) => {
            code.stacks.functions(*stack).iter().any(|&function| uneven.contains(module_of(code, function)))
        }
        RowKey::Module(_) | RowKey::Whole => false,
    };
    let least = options.threshold.max(LEAST_SHARE);
    let large = |row: &usize| shares[*row][0].max(shares[*row][1]) >= least;
    let judged: Vec<usize> =
        (0..parts.len()).filter(|row| judged && large(row) && !is_uneven(*row)).collect();
    let pairs: Vec<[&RowShares; 2]> = judged.iter().map(|&row| [&parts[row][0], &parts[row][1]]).collect();
    let bounds = intervals([&totals[0], &totals[1]], &pairs, options.confidence / 100.0, DRAWS);
    let bounds: HashMap<usize, interval::Interval> = judged.into_iter().zip(bounds).collect();
    let enough = wholes.iter().all(|traces| traces.len() >= LEAST_TRACES);
    let mut rows: Vec<DiffRow> = (0..parts.len())
        .filter(|&row| shares[row] != [0.0, 0.0])
        .map(|row| {
            let [base, new] = shares[row];
            let bound = bounds.get(&row).map(|bound| [100.0 * bound.low, 100.0 * bound.high]);
            let change = match bound {
                _ if is_uneven(row) => Change::Unmatched,
                _ if !enough => Change::Unjudged,
                Some([low, _]) if low > options.threshold => Change::Worse,
                Some([_, high]) if high < -options.threshold => Change::Better,
                _ if (new - base).abs() > options.threshold => Change::Unproved,
                _ => Change::Small,
            };
            let (module, function, stack) = named(code, &code.rows.values[row]);
            DiffRow {
                change,
                module,
                function,
                stack,
                base_pct: rounded(base),
                new_pct: rounded(new),
                difference_pct: rounded(new - base),
                low_pct: bound.map(|[low, _]| rounded(low)),
                high_pct: bound.map(|[_, high]| rounded(high)),
            }
        })
        .collect();
    rows.sort_by(order);
    rows
}

/// Those that differ first, then by the size of their difference, then by their weight and names.
fn order(a: &DiffRow, b: &DiffRow) -> Ordering {
    let group = |row: &DiffRow| row.change.min(Change::Unproved);
    let names = |row: &DiffRow| (row.module.clone(), row.function.clone(), row.stack.clone());
    group(a)
        .cmp(&group(b))
        .then_with(|| b.difference_pct.abs().total_cmp(&a.difference_pct.abs()))
        .then_with(|| (b.base_pct + b.new_pct).total_cmp(&(a.base_pct + a.new_pct)))
        .then_with(|| names(a).cmp(&names(b)))
}

fn module_of(code: &Code, function: u32) -> &str {
    &code.functions.values[function as usize].module
}

/// Module, function and stack of a row, as they are shown.
fn named(code: &Code, row: &RowKey) -> (String, Option<String>, Vec<String>) {
    let of = |function: u32| {
        let name = &code.functions.values[function as usize];
        (code.title(&name.module).to_owned(), name.function.clone())
    };
    match row {
        RowKey::Function(function) => {
            let (module, function) = of(*function);
            (module, function, Vec::new())
        }
        RowKey::Module(module) => (code.title(module).to_owned(), None, Vec::new()),
        RowKey::Stack(stack) => {
            let functions = code.stacks.functions(*stack);
            let (module, function) = functions.last().map_or_else(Default::default, |&leaf| of(leaf));
            (module, function, stack_names(code, &functions))
        }
        RowKey::Whole => (String::new(), Some(WHOLE.to_owned()), Vec::new()),
    }
}

/// The row of whole traces.
const WHOLE: &str = "[all code]";

fn stack_names(code: &Code, functions: &[u32]) -> Vec<String> {
    let name = |&function: &u32| {
        let name = &code.functions.values[function as usize];
        name.function.clone().unwrap_or_else(|| unnamed(code.title(&name.module)))
    };
    functions.iter().map(name).collect()
}

/// What stands for code of a module that has no name.
fn unnamed(module: &str) -> String {
    match module {
        "" => "[code without a name, in no module]".to_owned(),
        DYNAMIC_CODE => "[dynamic code without a name]".to_owned(),
        module => format!("[code without a name in {module}]"),
    }
}

/// By stack, its weight on each side in millionths of the side.
fn stack_sums(code: &Code, wholes: &[Vec<&RowWeights>; 2]) -> Vec<(Vec<String>, [u64; 2])> {
    let mut sums: BTreeMap<NodeId, [u64; 2]> = BTreeMap::new();
    for (side, traces) in wholes.iter().enumerate() {
        for &(stack, ns) in traces.iter().flat_map(|trace| &trace.stacks) {
            let sum = &mut sums.entry(stack).or_default()[side];
            *sum = sum.saturating_add(ns);
        }
    }
    let whole =
        wholes.each_ref().map(|traces| traces.iter().map(|trace| u128::from(trace.whole)).sum::<u128>());
    let millionths = |ns: u64, whole: u128| (u128::from(ns) * 1_000_000 / whole.max(1)) as u64;
    let named = |(stack, sums): (NodeId, [u64; 2])| {
        let sums = [millionths(sums[0], whole[0]), millionths(sums[1], whole[1])];
        (stack_names(code, &code.stacks.functions(stack)), sums)
    };
    sums.into_iter().map(named).collect()
}

fn processes(traces: &[TraceRows]) -> Vec<String> {
    let names: BTreeSet<&str> = traces.iter().map(|trace| trace.process.as_str()).collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The mean weight of a trace; 0 without traces.
fn mean(traces: &[&RowWeights]) -> f64 {
    traces.iter().map(|trace| trace.whole as f64).sum::<f64>() / traces.len().max(1) as f64
}

/// A number that the contents of a side's traces alone decide.
fn seed(traces: &[TraceRows], side: u8) -> u64 {
    let bytes = traces.iter().flat_map(|trace| trace.digest.to_le_bytes());
    xxh3_64(&bytes.chain([side]).collect::<Vec<u8>>())
}

/// To four digits behind the point.
fn rounded(value: f64) -> f64 {
    let rounded = (value * 1e4).round() / 1e4;
    // No -0.
    if rounded == 0.0 { 0.0 } else { rounded }
}
