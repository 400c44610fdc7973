//! The page that figures are printed on, and what their shares refer to.

use super::{States, Stats};
use std::borrow::Cow;
use std::io::{self, Write};
use stk_base::text::{TimeZone, count, cut, span, width};
use stk_profile::profile::Weight;
use stk_schema::table::{Column, Table};

/// How to print figures.
#[derive(Clone, Copy, Default, Debug)]
pub struct PrintOptions {
    pub length: Length,
    /// Rows of the lists of functions in the short form; `None`: as many as are usual.
    pub rows: Option<usize>,
    /// Headings are bold.
    pub color: bool,
    /// Columns of the terminal, by which names are cut; `None`: no terminal, nothing is cut.
    pub columns: Option<usize>,
    /// The zone of times by the clock.
    pub zone: TimeZone,
    /// Bars are made of ASCII characters.
    pub ascii: bool,
}

/// How much to print.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Length {
    /// Where the CPU time goes, what threads wait for, and how far the figures can be trusted: less
    /// than the 24 lines of a small terminal.
    #[default]
    Short,
    /// Everything.
    Full,
    /// What threads wait for, with the stacks that wait.
    Waiting,
}

pub(super) struct Page<'a> {
    pub(super) out: &'a mut dyn Write,
    pub(super) options: PrintOptions,
}

impl Page<'_> {
    pub(super) fn heading(&mut self, text: &str) -> io::Result<()> {
        let text = self.bold(text);
        writeln!(self.out, "\n{text}")
    }

    pub(super) fn bold(&self, text: &str) -> String {
        if self.options.color { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn table(&mut self, table: &Table) -> io::Result<()> {
        table.lines().iter().try_for_each(|line| self.line(line))
    }

    pub(super) fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", text.trim_end())
    }
}

/// What the lists count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedTotal {
    pub(crate) weight: Weight,
    pub(crate) interval_ns: u64,
    /// The whole that shares refer to.
    pub(crate) counted_ns: u64,
    /// How many samples are counted, if shares of them are uncertain for that.
    pub(crate) few: Option<u64>,
}

/// Samples below which shares are too uncertain to go without a word.
const FEW_SAMPLES: u64 = 1_000;

/// How many samples have what the lists count.
fn counted_samples(stats: &Stats) -> u64 {
    let States { running, waiting, system_call, unknown } = stats.states;
    let active = running.samples.saturating_add(system_call.samples).saturating_add(unknown.samples);
    match stats.weight {
        Weight::Cpu | Weight::Active => active,
        Weight::Waiting => waiting.samples,
        Weight::Wall | Weight::Samples => active.saturating_add(waiting.samples),
    }
}

impl CountedTotal {
    pub(super) fn of(stats: &Stats) -> CountedTotal {
        let Stats { weight, counted_ns, totals, .. } = *stats;
        let few = Some(counted_samples(stats)).filter(|samples| (1..FEW_SAMPLES).contains(samples));
        CountedTotal { weight, interval_ns: totals.interval_ns, counted_ns, few }
    }

    /// How uncertain the share of an amount is, in points: half of the 95 % interval of a share of
    /// so few samples (Agresti and Coull, 1998, which is none of nothing and of all neither).
    pub(super) fn uncertainty(&self, ns: u64) -> Option<String> {
        const Z: f64 = 1.96;
        let share = ns as f64 / self.counted_ns.max(1) as f64;
        self.few.map(|samples| {
            let all = samples as f64 + Z * Z;
            let share = (share * samples as f64 + Z * Z / 2.0) / all;
            format!("±{:.1}", 100.0 * Z * (share * (1.0 - share) / all).sqrt())
        })
    }

    /// An amount, and its share of the whole.
    pub(crate) fn figures(&self, ns: u64) -> [String; 2] {
        [self.amount(ns), percent(ns, self.counted_ns)]
    }

    pub(crate) fn amount(&self, ns: u64) -> String {
        match self.weight {
            Weight::Samples | Weight::Active => count(ns / self.interval_ns.max(1)),
            _ => span(ns),
        }
    }
}

/// A name in so many columns. Where they are too few, the words of compilers are shortened first.
pub(super) fn fitted(name: &str, columns: usize) -> Cow<'_, str> {
    if width(name) <= columns {
        return name.into();
    }
    cut(&shorter(name), columns).into_owned().into()
}

/// A name with shorter words of compilers.
pub(super) fn shorter(name: &str) -> String {
    name.replace("`anonymous namespace'", "(anon)")
}

/// The columns of an amount and of its share.
pub(super) fn amount_columns(heading: &str) -> [Column; 2] {
    [Column::right(heading).at_least(9), Column::right("").gap(1)]
}

/// What the figures of an answer refer to.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnswerTotal {
    pub whole: CountedTotal,
    /// The weight of the whole recording, of which the counted samples may be a part.
    pub all_ns: u64,
}

/// Whether a function's name begins with that of its module, with or without the ending.
pub(crate) fn names_module(name: &str, module: &str) -> bool {
    let stem = module.rsplit_once('.').map_or(module, |(stem, _)| stem);
    [module, stem].iter().any(|&prefix| {
        name.strip_prefix(prefix).is_some_and(|rest| !prefix.is_empty() && rest.starts_with(['!', '+']))
    })
}

/// ` 12.3 %`, always seven columns.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    share(if whole == 0 { 0.0 } else { part as f64 / whole as f64 })
}

pub(super) fn share(share: f64) -> String {
    format!("{:>5.1} %", share * 100.0)
}
