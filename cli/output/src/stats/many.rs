//! The figures of several traces: one line each, their sum, and the functions of all of them.

use super::groups::Recorded;
use super::page::{AnswerTotal, CountedTotal, Page, PrintOptions};
use super::text::{ListedBy, amounts, module_of, waits_table};
use super::{Answer, AnswerSums, FunctionStats, Question, Stats, WaitStats};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};
use stk_base::text::{count, counted, size, span};
use stk_profile::profile::{Additive, CpuSource, Weight};
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Sums of several traces, filled trace by trace. Memory grows with the number of traces and of
/// distinct functions.
#[derive(Default, Debug)]
pub struct ManyStats {
    rows: Vec<TraceRow>,
    sum: TraceRow,
    weight: Option<Weight>,
    mixed: bool,
    interval_ns: u64,
    counted_ns: u64,
    functions: HashMap<(String, String), FunctionStats>,
    waits: HashMap<&'static str, WaitStats>,
    answer: Option<AnswerSums>,
    /// Of what dataset the sums are, if they are of one.
    dataset: Option<DatasetTotals>,
}

/// What the traces of a dataset come to, besides their samples.
#[derive(Clone, Default, Debug)]
pub struct DatasetTotals {
    /// Its folder.
    pub name: String,
    pub traces: u64,
    pub duration_ns: u64,
    /// Samples that the recorders dropped.
    pub dropped: u64,
    /// Bytes of the files of the traces.
    pub bytes: u64,
}

/// The sum of several traces with the answer to a question, for JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SumStats {
    pub traces: u64,
    pub samples: u64,
    /// CPU time of all samples; 0 if none is recorded.
    pub cpu_ns: u64,
    /// What the answer counts. Not all traces may be counted by it: without CPU times by other
    /// samples.
    pub weight: Option<Weight>,
    /// Whether some traces are counted by another weight.
    pub mixed_weights: bool,
    /// Weight of the counted samples.
    pub counted_ns: u64,
    #[serde(flatten)]
    pub answer: Option<Answer>,
}

/// A line of the table.
#[derive(Clone, Default, Debug)]
struct TraceRow {
    source: String,
    process: String,
    duration_ns: u64,
    cpu_ns: u64,
    /// Whether CPU time is recorded.
    has_cpu: bool,
    samples: u64,
    dropped: u64,
    threads: u64,
    bytes: u64,
    /// Frames, and those named from symbols.
    frames: u64,
    named: u64,
    problem: &'static str,
}

/// Said where traces are counted by different weights.
const MIXED: &str = "not all traces have CPU times: --weight wall compares them";

impl ManyStats {
    /// Sums for the traces of a dataset. What is added then are not traces but parts of these sums.
    pub fn of_dataset(totals: DatasetTotals) -> ManyStats {
        ManyStats { dataset: Some(totals), ..ManyStats::default() }
    }

    /// How many traces were summed.
    fn traces(&self) -> u64 {
        self.dataset.as_ref().map_or(self.rows.len() as u64, |dataset| dataset.traces)
    }

    /// Prints what the traces of a dataset come to, and the answer to the question; without one the
    /// first `top` functions and waits. `about`: of what they are.
    pub fn print_dataset(
        &self,
        out: &mut dyn Write,
        options: &PrintOptions,
        about: &str,
        question: Option<&Question>,
        top: usize,
    ) -> io::Result<()> {
        let Some(dataset) = &self.dataset else { return Ok(()) };
        let mut page = Page { out, options: *options };
        let title = format!("{}: {} of {about}", printable(&dataset.name), counted(dataset.traces, "trace"));
        page.line(&page.bold(&title))?;
        let cpu = self.sum.cpu_text();
        page.line(&format!(
            "{} recorded, {cpu} CPU time, {}, {} dropped, {:.0} % of the frames named",
            span(dataset.duration_ns),
            counted(self.sum.samples, "sample"),
            count(dataset.dropped),
            100.0 * super::share(self.sum.named, self.sum.frames.max(1)),
        ))?;
        match question {
            Some(question) => self.answer(&mut page, question),
            None => {
                self.top_functions(&mut page, top)?;
                self.top_waits(&mut page, top)
            }
        }
    }

    /// Adds the totals of a trace.
    pub fn add_totals(&mut self, stats: &Stats) {
        let row = TraceRow::of(stats);
        self.sum.add(&row);
        self.rows.push(row);
        self.mixed |= self.weight.is_some_and(|weight| weight != stats.weight);
        self.weight = Some(stats.weight);
        self.interval_ns = self.interval_ns.max(stats.totals.interval_ns);
        self.counted_ns = self.counted_ns.saturating_add(stats.counted_ns);
    }

    /// Adds a trace, collected without a limit for its lists.
    pub fn add(&mut self, stats: Stats) {
        self.add_totals(&stats);
        for function in stats.functions_by_total {
            let key = (function.module.clone(), function.function.clone());
            match self.functions.get_mut(&key) {
                None => drop(self.functions.insert(key, function)),
                Some(known) => {
                    known.own.add(function.own);
                    known.total.add(function.total);
                    known.modules = known.modules.max(function.modules);
                }
            }
        }
        for wait in stats.waits {
            match self.waits.get_mut(wait.reason) {
                None => drop(self.waits.insert(wait.reason, wait)),
                Some(known) => {
                    known.waits += wait.waits;
                    known.weight_ns = known.weight_ns.saturating_add(wait.weight_ns);
                    known.longest_ns = known.longest_ns.max(wait.longest_ns);
                }
            }
        }
    }

    /// Adds what a trace adds to the answer of a question.
    pub fn add_to_answer(&mut self, sums: AnswerSums) {
        match &mut self.answer {
            Some(known) => known.absorb(&sums),
            none => *none = Some(sums.of_first()),
        }
    }

    /// Adds to a group of whole traces, by its values, one of a dataset's traces.
    pub fn add_recorded(&mut self, values: &[String], duration_ns: u64) {
        let recorded = Recorded { traces: 1, duration_ns };
        self.answer.iter_mut().for_each(|sums| sums.add_recorded(values, recorded));
    }

    /// The sum, with the answer to the question.
    pub fn sum(&self, question: &Question) -> SumStats {
        SumStats {
            traces: self.traces(),
            samples: self.sum.samples,
            cpu_ns: self.sum.cpu_ns,
            weight: self.weight,
            mixed_weights: self.mixed,
            counted_ns: self.counted_ns,
            answer: self.answer.as_ref().map(|sums| sums.answer(question)),
        }
    }

    /// Prints the table, its sum, and the answer to the question.
    pub fn print_answer(
        &self,
        out: &mut dyn Write,
        options: &PrintOptions,
        question: &Question,
    ) -> io::Result<()> {
        let mut page = Page { out, options: *options };
        self.table(&mut page)?;
        self.answer(&mut page, question)
    }

    fn answer(&self, page: &mut Page<'_>, question: &Question) -> io::Result<()> {
        let (Some(sums), Some(weight)) = (&self.answer, self.weight) else { return Ok(()) };
        if self.mixed {
            page.line(MIXED)?;
        }
        let whole =
            CountedTotal { weight, interval_ns: self.interval_ns, counted_ns: self.counted_ns, few: None };
        sums.answer(question).print(AnswerTotal { whole, all_ns: self.counted_ns }, page)
    }

    /// Prints the table, its sum, and the first `top` functions and waits of all traces.
    pub fn print(&self, out: &mut dyn Write, options: &PrintOptions, top: usize) -> io::Result<()> {
        let mut page = Page { out, options: *options };
        self.table(&mut page)?;
        self.top_functions(&mut page, top)?;
        self.top_waits(&mut page, top)
    }

    fn table(&self, page: &mut Page<'_>) -> io::Result<()> {
        let total = counted(self.rows.len() as u64, "trace");
        let mut table = Table::new([
            Column::left("trace").gap(0),
            Column::left("process"),
            Column::right("recorded").gap(1).at_least(10),
            Column::right("CPU").gap(1).at_least(10),
            Column::right("samples").gap(1).at_least(11),
            Column::right("dropped").gap(1).at_least(11),
            Column::right("threads").gap(1).at_least(8),
            Column::right("size").gap(1).at_least(11),
            Column::right("named").gap(1).at_least(6),
            Column::left(""),
        ]);
        let traces = self.rows.iter().map(|row| (printable(&row.source), row));
        for (name, row) in traces.chain([(total.as_str().into(), &self.sum)]) {
            table.row([
                name.into_owned(),
                printable(&row.process).into_owned(),
                span(row.duration_ns),
                row.cpu_text(),
                count(row.samples),
                count(row.dropped),
                count(row.threads),
                size(row.bytes),
                format!("{:.0} %", 100.0 * super::share(row.named, row.frames.max(1))),
                if row.problem.is_empty() { String::new() } else { format!("({})", row.problem) },
            ]);
        }
        let lines = table.lines();
        let Some((heading, rows)) = lines.split_first() else { return Ok(()) };
        page.line(&page.bold(heading))?;
        rows.iter().try_for_each(|line| page.line(line))
    }

    fn top_functions(&self, page: &mut Page<'_>, top: usize) -> io::Result<()> {
        let Some(weight) = self.weight else { return Ok(()) };
        let mut list: Vec<&FunctionStats> = self.functions.values().collect();
        list.retain(|function| function.own.weight_ns > 0);
        list.sort_by_key(|f| {
            (Reverse((f.own.weight_ns, f.total.weight_ns)), (f.module.as_str(), f.function.as_str()))
        });
        list.truncate(top);
        if list.is_empty() {
            return Ok(());
        }
        let shown = list.iter().map(|function| function.own.weight_ns).fold(0, u64::saturating_add);
        let others_ns = self.counted_ns.saturating_sub(shown);
        let mixed = if self.mixed { format!(" ({MIXED})") } else { String::new() };
        page.heading(&format!("Functions of all traces by their own {}{mixed}", weight.title()))?;
        let whole =
            CountedTotal { weight, interval_ns: self.interval_ns, counted_ns: self.counted_ns, few: None };
        amounts(
            (whole, ListedBy::Own),
            page,
            list.iter().map(|f| (f.own, f.total, f.function.clone(), module_of(f))),
            Some(others_ns).filter(|ns| *ns > 0),
        )
    }

    fn top_waits(&self, page: &mut Page<'_>, top: usize) -> io::Result<()> {
        let mut list: Vec<&WaitStats> = self.waits.values().collect();
        list.sort_by_key(|wait| (Reverse(wait.weight_ns), wait.reason));
        list.truncate(top);
        if list.is_empty() {
            return Ok(());
        }
        page.heading("Waits of all traces")?;
        page.table(&waits_table(list.into_iter(), None))
    }
}

impl TraceRow {
    fn of(stats: &Stats) -> TraceRow {
        let Stats { totals, frames, .. } = stats;
        TraceRow {
            source: stats.source.clone(),
            process: stats.process.clone(),
            duration_ns: totals.duration_ns,
            cpu_ns: totals.cpu_ns,
            has_cpu: totals.cpu_source != CpuSource::None,
            samples: totals.samples,
            dropped: totals.dropped,
            threads: totals.threads,
            bytes: totals.file_bytes.unwrap_or(0),
            frames: frames.frames,
            named: frames.named,
            problem: match (stats.damaged_blocks.is_empty(), stats.complete) {
                (false, _) => "damaged",
                (true, false) => "not finished",
                (true, true) if totals.samples == 0 => "no samples",
                (true, true) => "",
            },
        }
    }

    fn add(&mut self, row: &TraceRow) {
        let pairs = [
            (&mut self.duration_ns, row.duration_ns),
            (&mut self.cpu_ns, row.cpu_ns),
            (&mut self.samples, row.samples),
            (&mut self.dropped, row.dropped),
            (&mut self.threads, row.threads),
            (&mut self.bytes, row.bytes),
            (&mut self.frames, row.frames),
            (&mut self.named, row.named),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
        self.has_cpu |= row.has_cpu;
    }

    /// Its CPU time; `-` if it is not recorded.
    fn cpu_text(&self) -> String {
        if self.has_cpu { span(self.cpu_ns) } else { "-".to_owned() }
    }
}
