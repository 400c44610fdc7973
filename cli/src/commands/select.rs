//! Options that choose a part of a trace: a time range, some threads.

use super::Usage;
use crate::trace::Trace;
use std::collections::HashSet;

/// Which part of a trace.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct SelectArgs {
    /// Only what was sampled from this time on, since the trace's start: 90, 1.5s, 250ms, 2m
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "What to take")]
    pub from: Option<u64>,
    /// Only what was sampled before this time, since the trace's start
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "What to take")]
    pub until: Option<u64>,
    /// Only threads with this id, or with this text in their name; may be repeated
    #[arg(long = "thread", value_name = "TID|NAME", help_heading = "What to take")]
    pub threads: Vec<String>,
}

impl SelectArgs {
    /// Checks that the options make sense.
    ///
    /// # Errors
    ///
    /// A usage error for a range that ends before it begins.
    pub fn check(&self) -> anyhow::Result<()> {
        if let (Some(from), Some(until)) = (self.from, self.until)
            && until <= from
        {
            return Err(Usage("--until is not after --from: nothing would be left".into()).into());
        }
        Ok(())
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

/// A time or span: a number of seconds, or a number with a unit (ns, us, ms, s, m, h).
pub(super) fn parse_time(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let number = &text[..text.len() - unit.len()];
    let scale = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err("units are ns, us, ms, s, m, h".into()),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok((value * scale).round() as u64),
        _ => Err("give a number and a unit, such as 250ms or 1.5s".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_seconds_need_none() {
        assert_eq!(parse_time("90"), Ok(90_000_000_000));
        assert_eq!(parse_time("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_time("250ms"), Ok(250_000_000));
        assert_eq!(parse_time("2m"), Ok(120_000_000_000));
        assert!(parse_time("soon").is_err());
        assert!(parse_time("-1s").is_err());
        assert!(parse_time("3 parsecs").is_err());
    }

    #[test]
    fn thread_ids_are_decimal_or_hexadecimal() {
        assert_eq!(parse_tid("4404"), Some(4404));
        assert_eq!(parse_tid("0x1134"), Some(0x1134));
        assert_eq!(parse_tid("worker 1"), None);
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let args = SelectArgs { from: Some(2), until: Some(1), threads: vec![] };
        assert!(args.check().unwrap_err().is::<Usage>());
    }
}
