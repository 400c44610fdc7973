//! Options that choose a part of a trace: a time range, some threads.

use super::Usage;
use super::times::{self, TimeArg};
use crate::text::{TimeZone, since_start};
use crate::trace::Trace;
use std::collections::HashSet;

/// In which zone times are shown and taken.
#[derive(clap::Args, Clone, Copy, Default, Debug)]
pub struct TzArgs {
    /// The zone of times by the clock: in what is printed, and in options that name none
    #[arg(long, value_enum, default_value_t, value_name = "ZONE")]
    pub tz: TimeZone,
}

/// Which part of a trace.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct SelectArgs {
    /// Only what was sampled from this time on: since the trace's start (90, 1.5s, 250ms, 2m), by
    /// the clock (03:14, 03:14:05Z), or with a date (2026-11-21T03:14:05+01:00)
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    pub from: Option<TimeArg>,
    /// Only what was sampled before this time
    #[arg(long, value_name = "TIME", value_parser = times::parse, help_heading = "What to take")]
    pub until: Option<TimeArg>,
    /// Only threads with this id, or with this text in their name; may be repeated
    #[arg(long = "thread", value_name = "TID|NAME", help_heading = "What to take")]
    pub threads: Vec<String>,
    /// The zone of the times.
    #[command(flatten)]
    pub tz: TzArgs,
}

/// A range of time, in nanoseconds since a trace's start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimeRange {
    /// Its first moment; `None`: the trace's.
    pub from: Option<u64>,
    /// The moment behind its last; `None`: to the trace's end.
    pub until: Option<u64>,
}

impl SelectArgs {
    /// Checks that the options make sense.
    ///
    /// # Errors
    ///
    /// A usage error for a range that ends before it begins.
    pub fn check(&self) -> anyhow::Result<()> {
        match (self.from, self.until) {
            (Some(TimeArg::SinceStart(from)), Some(TimeArg::SinceStart(until))) if until <= from => {
                Err(Usage("--until is not after --from: nothing would be left".into()).into())
            }
            _ => Ok(()),
        }
    }

    /// Whether a part of the trace is chosen.
    pub fn is_part(&self) -> bool {
        self.from.is_some() || self.until.is_some() || !self.threads.is_empty()
    }

    /// The range of time in a trace.
    pub fn range(&self, trace: &Trace<'_>) -> TimeRange {
        let ns = |moment: TimeArg| moment.of(trace, self.tz.tz).clamp(0, u64::MAX.into()) as u64;
        TimeRange { from: self.from.map(ns), until: self.until.map(ns) }
    }

    /// Says why none of a trace's samples was chosen.
    pub fn why_empty(&self, trace: &Trace<'_>) -> String {
        if trace.samples() == 0 {
            return format!("{}: the trace holds no samples", trace.source);
        }
        if !self.is_part() {
            return format!("{}: no sample could be read", trace.source);
        }
        let last = trace.clock.ns(trace.last());
        let range = self.range(trace);
        let why = match range {
            TimeRange { from: Some(from), .. } if from > last => {
                format!("--from is {}, and the trace ends at {}", since_start(from), since_start(last))
            }
            TimeRange { until: Some(0), .. } => "--until is not after the trace's start".to_owned(),
            TimeRange { from: Some(from), until: Some(until) } if until <= from => {
                "--until is not after --from".to_owned()
            }
            _ if self.threads.is_empty() => "no thread was sampled in that time".to_owned(),
            _ => "the chosen threads were not sampled in that time".to_owned(),
        };
        format!("{}: no samples are left: {why}", trace.source)
    }

    /// Instance ids of the chosen threads; `None` = all.
    ///
    /// # Errors
    ///
    /// When a choice matches no thread of the trace.
    pub fn threads(&self, trace: &Trace<'_>) -> anyhow::Result<Option<HashSet<u64>>> {
        if self.threads.is_empty() {
            return Ok(None);
        }
        let mut chosen = HashSet::new();
        for wanted in &self.threads {
            let tid = parse_tid(wanted);
            let text = wanted.to_lowercase();
            let fits = trace.timeline.threads.iter().filter(|thread| {
                tid == Some(thread.tid) || (tid.is_none() && thread.name.to_lowercase().contains(&text))
            });
            let before = chosen.len();
            chosen.extend(fits.map(|thread| thread.instance));
            if chosen.len() == before {
                anyhow::bail!("{}: no thread is or is named `{wanted}`: stk info lists them", trace.source);
            }
        }
        Ok(Some(chosen))
    }
}

/// A thread id, decimal or 0x-hexadecimal as in debuggers.
fn parse_tid(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_ids_are_decimal_or_hexadecimal() {
        assert_eq!(parse_tid("4404"), Some(4404));
        assert_eq!(parse_tid("0x1134"), Some(0x1134));
        assert_eq!(parse_tid("worker 1"), None);
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let [from, until] = [2, 1].map(|ns| Some(TimeArg::SinceStart(ns)));
        let args = SelectArgs { from, until, ..SelectArgs::default() };
        assert!(args.check().unwrap_err().is::<Usage>());
    }
}
