//! One trace to several outputs: one a thread, or one a span of time.

use super::Usage;
use crate::times::{self, TimeArg};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use stk_output::formats::Format;
use stk_profile::profile::{Profile, RunSelection, Runs, spans};

/// What each output of a trace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Split {
    Thread,
    /// A span of so many nanoseconds.
    Time(u64),
}

/// The most outputs of a trace.
const MOST: usize = 1_000;

/// `thread`, or `time=10s`.
pub(super) fn parse(text: &str) -> Result<Split, String> {
    let wrong = || "give thread, or time and a length such as time=10s".to_owned();
    match text.split_once('=') {
        None if text == "thread" => Ok(Split::Thread),
        Some(("time", length)) => match times::parse(length) {
            Ok(TimeArg::SinceStart(ns)) if ns > 0 => Ok(Split::Time(ns)),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

/// The parts of a profile, each with the name of its output.
///
/// # Errors
///
/// A usage error for too many parts, or that the runs cannot be read.
pub(super) fn parts(
    split: Split,
    profile: &Profile,
    runs: &Runs,
    (format, output): (Format, &Path),
) -> anyhow::Result<Vec<(RunSelection, PathBuf)>> {
    let (stem, ending) = format.split_name(output);
    let path = |middle: &str| output.with_file_name(format!("{stem}.{middle}{ending}"));
    let parts: Vec<(RunSelection, PathBuf)> = match split {
        Split::Thread => {
            let sampled = (0u32..).zip(&profile.threads).filter(|(_, thread)| thread.samples > 0);
            let mut taken = HashSet::new();
            let part = |(at, thread): (u32, &stk_profile::profile::ThreadInfo)| {
                let mut middle = in_file_name(&format!("{} {}", thread.name, thread.tid));
                // Windows gives ids of threads that ended to others.
                if !taken.insert(middle.clone()) {
                    middle = format!("{middle}-{}", thread.instance);
                }
                (RunSelection::Thread(at), path(&middle))
            };
            sampled.map(part).collect()
        }
        Split::Time(length) => {
            let spans = spans(runs, length, MOST)?.unwrap_or_default();
            let digits = spans.last().map_or(1, |last| last.to_string().len());
            let part = |&span: &u64| {
                let from = span.saturating_mul(length);
                (RunSelection::Span(from, from.saturating_add(length)), path(&format!("{span:0digits$}")))
            };
            let parts: Vec<_> = spans.iter().map(part).collect();
            if parts.is_empty() && profile.threads.iter().any(|thread| thread.samples > 0) {
                return Err(too_many().into());
            }
            parts
        }
    };
    if parts.len() > MOST { Err(too_many().into()) } else { Ok(parts) }
}

fn too_many() -> Usage {
    Usage(format!("--split makes more than {MOST} files: choose longer spans, or a part of the trace"))
}

/// A text as part of a file's name: letters and digits of any language, and single hyphens.
fn in_file_name(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || c == '_' => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
        // File systems allow 255 bytes.
        if name.len() > 100 {
            break;
        }
    }
    name.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_by_threads_or_by_time() {
        assert_eq!(parse("thread"), Ok(Split::Thread));
        assert_eq!(parse("time=1.5s"), Ok(Split::Time(1_500_000_000)));
        for wrong in ["", "time", "time=", "time=0", "time=03:14", "thread=1", "threads"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_threads_lead_to_no_other_folder() {
        assert_eq!(in_file_name("../..\\worker: 1/2 12"), "worker-1-2-12");
        assert_eq!(in_file_name("名前 7"), "名前-7");
        assert_eq!(in_file_name(" 7"), "7");
        assert!(in_file_name(&"ä".repeat(500)).len() < 120);
    }
}
