//! Facts about a trace as a whole, for its profile.

use super::thread_clock::ThreadClock;
use crate::profile::TraceInfo;
use crate::trace::{Trace, drop_reason_name};
use std::collections::BTreeMap;
use stk_schema::event::DropReason;

/// Facts about a recording.
pub(super) fn trace_info(trace: &Trace<'_>) -> TraceInfo {
    let header = trace.header();
    TraceInfo {
        trace_id: trace.id(),
        source: trace.source.clone(),
        content: None,
        arch: header.arch,
        pid: header.pid,
        process: trace.process(),
        host: trace.fact("host").unwrap_or_default().to_owned(),
        start_utc_ns: header.utc_start,
        duration_ns: recorded_ns(trace),
        interval_ns: trace.interval_ns(),
        cpu_source: ThreadClock::of(trace).source(),
        metadata: trace.timeline.metadata.clone(),
        complete: trace.blocks().is_complete(),
        boot_id: header.boot_id,
        executable: trace.executable(),
    }
}

/// How long was recorded. Of a trace whose end is lost, up to its last sample.
fn recorded_ns(trace: &Trace<'_>) -> u64 {
    let last = trace.clock.ns(trace.last());
    match trace.sampled_ns() {
        Some((_, sampled)) if !trace.blocks().is_complete() => {
            last.min(sampled.saturating_add(trace.interval_ns()))
        }
        _ => last,
    }
}

/// The number of dropped samples, and all drops by reason. If the running total of samples is
/// greater than the sum of the reasons, the rest gets its own entry.
pub(super) fn dropped(by_reason: &BTreeMap<u64, u64>, total: u64) -> (u64, Vec<(String, u64)>) {
    let no_sample = DropReason::WITHOUT_SAMPLES.map(|reason| reason as u64);
    let reported: u64 =
        by_reason.iter().filter(|(reason, _)| !no_sample.contains(reason)).map(|(_, count)| count).sum();
    let mut list: Vec<(String, u64)> =
        by_reason.iter().map(|(&reason, &count)| (drop_reason_name(reason).to_owned(), count)).collect();
    if total > reported {
        list.push(("reason not recorded".to_owned(), total - reported));
    }
    (total.max(reported), list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_passes_do_not_count_as_dropped_samples() {
        let by_reason = BTreeMap::from([(DropReason::NoContext as u64, 2), (DropReason::Late as u64, 5)]);
        let named =
            |list: &[(&str, u64)]| list.iter().map(|&(name, count)| (name.to_owned(), count)).collect();
        let reported: Vec<_> = named(&[("context not readable", 2), ("sampler woke late", 5)]);
        assert_eq!(dropped(&by_reason, 2), (2, reported.clone()));
        assert_eq!(dropped(&by_reason, 4), (4, [reported, named(&[("reason not recorded", 2)])].concat()));
    }
}
