//! The rows of `samples`: a run of samples gives one for each second of UTC that it reaches into,
//! or for each minute, hour or day, since a few bytes of a trace can claim any time.

use super::super::OutputError;
use super::ids::{self, StackFacts};
use super::table::{self, NAMED_FRAME, SharedTexts, column, list, repeated, structs};
use super::trace_id::trace_id;
use polars::prelude::{Column, IdxSize, Series};
use std::collections::HashMap;
use stk_profile::profile::{CpuSource, FrameId, NodeId, Profile, Run, RunFlags, Wait};

/// The captures of a trace, by thread instance, time and tag: their events.
#[derive(Default)]
pub(super) struct Captures(HashMap<(u64, u64, u64), i64>);

impl Captures {
    pub(super) fn of(profile: &Profile) -> Captures {
        let captures = profile.events.iter().filter(|event| event.kind == "capture");
        let key = |event: &stk_profile::profile::EventInfo| {
            Some(((event.thread?.instance, event.time_ns, event.tag?), event.number as i64))
        };
        Captures(captures.filter_map(key).collect())
    }

    fn event(&self, profile: &Profile, thread: u32, run: &Run) -> Option<i64> {
        let instance = profile.threads.get(thread as usize)?.instance;
        self.0.get(&(instance, run.first_ns, run.tag()?)).copied()
    }
}

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// Where a run may be cut, in nanoseconds of UTC: the finest of these that gives few enough rows,
/// else the last. The rows of the last one still fit into 64 bits with a sign.
const UNITS: [u64; 5] = [SECOND, 60 * SECOND, 3_600 * SECOND, DAY, 36_525 * DAY];
/// Most rows of a run: the seconds of a day.
const MOST_ROWS: u64 = 86_400;
/// Cuts that any trace may have in its runs. A recorder writes more than a byte for each thread in
/// each second, so a trace may also have a cut for each of its bytes.
const CUTS: u64 = 1 << 17;

/// Names of frames that any trace may have in its rows, and for each of its bytes. polars takes
/// 400 ns to write one, and a few bytes can repeat a stack of thousands of frames.
const NAMES: (u64, u64) = (1 << 19, 1);

/// What the rows of a trace may still have.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Cuts in runs.
    cuts: u64,
    /// Names of frames; denormalized only.
    names: u64,
    /// Rows that have no names for that reason.
    pub nameless: u64,
}

impl Allowance {
    pub(super) fn of(profile: &Profile) -> Allowance {
        let bytes = profile.trace.content.as_ref().map_or(0, |content| content.len);
        let names = NAMES.0.saturating_add(NAMES.1.saturating_mul(bytes));
        Allowance { cuts: CUTS.saturating_add(bytes), names, nameless: 0 }
    }

    /// Whether a row may have so many names.
    fn takes_names(&mut self, names: usize) -> bool {
        let left = self.names.checked_sub(names as u64);
        self.nameless += u64::from(left.is_none());
        self.names = left.unwrap_or(self.names);
        left.is_some()
    }

    /// The unit in which to cut a run whose rows have so many names each.
    fn unit(&mut self, run: &Run, start_utc_ns: u64, names: usize) -> u64 {
        // Half of the names are left to other runs.
        let most = self.cuts.min((self.names / 2).checked_div(names as u64).unwrap_or(u64::MAX));
        let within = |unit: u64| {
            let utc = |at: u64| (u128::from(start_utc_ns) + u128::from(at)) / u128::from(unit);
            let end = run.end_ns().saturating_sub(1).max(run.first_ns);
            u64::try_from(utc(end) - utc(run.first_ns)).unwrap_or(u64::MAX)
        };
        let cuts = |unit: u64| {
            if run.cpu_ns > 0 {
                return within(unit);
            }
            // Short pieces at both ends, longer ones between.
            let longer = UNITS.windows(2).filter(|pair| pair[0] >= unit);
            let ends: u64 = longer.map(|pair| within(pair[0]).min(2 * pair[1] / pair[0])).sum();
            ends.saturating_add(within(UNITS[UNITS.len() - 1])).min(within(unit))
        };
        let is_allowed = |unit: &u64| cuts(*unit) < MOST_ROWS && cuts(*unit) <= most;
        let unit = UNITS.into_iter().find(is_allowed).unwrap_or(UNITS[UNITS.len() - 1]);
        self.cuts = self.cuts.saturating_sub(cuts(unit));
        unit
    }
}

/// A part of a run: within one unit of UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RunSegment {
    start_ns: u64,
    duration_ns: u64,
    samples: u64,
    cpu_ns: u64,
}

/// Cuts a run at whole seconds of UTC, or at another unit if these are too many. Of a run without
/// CPU time, whole minutes, hours and days are one piece each. Its samples are evenly spaced, and
/// so is its CPU time. Each row of it has so many names.
pub(super) fn pieces(
    run: &Run,
    start_utc_ns: u64,
    names: usize,
    allowance: &mut Allowance,
) -> impl Iterator<Item = RunSegment> + use<> {
    let unit = allowance.unit(run, start_utc_ns, names);
    let run = *run;
    let end = run.end_ns();
    let mut at = run.first_ns;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let utc = u128::from(start_utc_ns) + u128::from(at);
        let fits = |longer: &&u64| {
            run.cpu_ns == 0 && utc % u128::from(**longer) == 0 && end.saturating_sub(at) >= **longer
        };
        let unit = UNITS.iter().rev().find(fits).map_or(unit, |longer| unit.max(*longer));
        let until = at.saturating_add(unit - (utc % u128::from(unit)) as u64).min(end);
        done = until >= end;
        let (samples, cpu_ns) = match done {
            true => (u64::from(run.samples), run.cpu_ns),
            false => (run.samples_before(until).into(), run.cpu_before(until)),
        };
        let piece = RunSegment {
            start_ns: at,
            duration_ns: until - at,
            samples: samples - u64::from(run.samples_before(at)),
            cpu_ns: cpu_ns - run.cpu_before(at),
        };
        at = until;
        Some(piece)
    })
}

/// The names of a stack, root first.
pub(super) fn stack_names(profile: &Profile, node: Option<NodeId>, names: &mut Vec<(FrameId, u32)>) {
    names.clear();
    for frame in node.into_iter().flat_map(|node| profile.tree.frames(node)) {
        let count = profile.symbols.names(frame).len() as u32;
        names.extend((0..count).map(|i| (frame, i)));
    }
    names.reverse();
}

/// What the rows of a run have in common.
#[derive(Clone, Copy)]
pub(super) struct RunRow<'r> {
    thread: u32,
    run: &'r Run,
    run_id: i64,
    stack: Option<StackFacts>,
    event: Option<i64>,
}

/// A wait that the thread's next run may continue.
#[derive(Clone, Copy)]
struct OpenWaitRun {
    thread: u32,
    wait: Wait,
    end_ns: u64,
    run_id: i64,
}

/// A time beyond 292 years is as large as the column can say.
fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// The next row group of `samples`, column by column.
#[derive(Default)]
pub(super) struct SampleRowGroup {
    /// Runs so far, of this row group and those before; the runs of a wait are one.
    runs: i64,
    /// The wait of the last run.
    wait: Option<OpenWaitRun>,
    run_id: Vec<i64>,
    thread: Vec<u32>,
    stop: Vec<IdxSize>,
    ts_ns: Vec<i64>,
    duration_ns: Vec<i64>,
    stack_id: Vec<Option<i64>>,
    samples: Vec<i64>,
    state: Vec<&'static str>,
    wait_reason: Vec<Option<&'static str>>,
    wait_class: Vec<Option<&'static str>>,
    cpu_ns: Vec<i64>,
    tag: Vec<Option<i64>>,
    event_id: Vec<Option<i64>>,
    depth: Vec<i64>,
    proved: Vec<bool>,
    truncated: Vec<bool>,
    tables_pending: Vec<bool>,
    /// Ends of the rows' stacks in `names`; denormalized only.
    name_ends: Vec<i64>,
    /// Frame, and index of its name.
    names: Vec<(FrameId, u32)>,
}

impl SampleRowGroup {
    pub(super) fn len(&self) -> usize {
        self.thread.len()
    }

    /// Names of frames in all rows.
    pub(super) fn names(&self) -> usize {
        self.names.len()
    }

    /// Takes the rows, and continues to count runs.
    pub(super) fn take(&mut self) -> SampleRowGroup {
        let SampleRowGroup { runs, wait, .. } = *self;
        std::mem::replace(self, SampleRowGroup { runs, wait, ..SampleRowGroup::default() })
    }

    /// The rows that follow are of this run. Runs of a thread that wait for the same one after the
    /// other are one wait.
    pub(super) fn begin_run<'r>(
        &mut self,
        profile: &Profile,
        captures: &Captures,
        thread: u32,
        run: &'r Run,
        stack: Option<StackFacts>,
    ) -> RunRow<'r> {
        let event = captures.event(profile, thread, run);
        if run.weight_ns == 0 && run.samples == 0 {
            // CPU time alone does not end a wait.
            self.runs += 1;
            let run_id = self.runs;
            return RunRow { thread, run, run_id, stack, event };
        }
        let next =
            run.activity.wait().map(|wait| OpenWaitRun { thread, wait, end_ns: run.end_ns(), run_id: 0 });
        let continues = |open: &OpenWaitRun| {
            next.is_some_and(|next| {
                (open.thread, open.wait, open.end_ns) == (next.thread, next.wait, run.first_ns)
            })
        };
        let known = self.wait.filter(continues).map(|open| open.run_id);
        let run_id = known.unwrap_or(self.runs + 1);
        self.runs = self.runs.max(run_id);
        self.wait = next.map(|next| OpenWaitRun { run_id, ..next });
        RunRow { thread, run, run_id, stack, event }
    }

    /// Adds a row: a piece of the run that was begun.
    pub(super) fn push(&mut self, of: &RunRow<'_>, piece: &RunSegment) {
        let RunRow { thread, run, run_id, stack, event } = *of;
        self.run_id.push(run_id);
        self.thread.push(thread);
        self.stop.push(run.stop.0.into());
        self.ts_ns.push(signed(piece.start_ns));
        self.duration_ns.push(signed(piece.duration_ns));
        self.stack_id.push(stack.map(|stack| stack.id));
        self.samples.push(piece.samples as i64);
        self.state.push(run.activity.as_str());
        let wait = run.activity.wait();
        self.wait_reason.push(wait.map(Wait::reason));
        self.wait_class.push(wait.map(|wait| wait.class().as_str()));
        self.cpu_ns.push(signed(piece.cpu_ns));
        self.tag.push(run.tag().map(|tag| tag as i64));
        self.event_id.push(event);
        self.depth.push(stack.map_or(0, |stack| stack.depth.into()));
        self.proved.push(stack.is_none_or(|stack| stack.proved));
        self.truncated.push(run.flags.contains(RunFlags::TRUNCATED));
        self.tables_pending.push(run.flags.contains(RunFlags::TABLES_PENDING));
    }

    /// Appends the names of the last row's stack, if the trace may have them.
    pub(super) fn push_names(&mut self, names: &[(FrameId, u32)], allowance: &mut Allowance) {
        if allowance.takes_names(names.len()) {
            self.names.extend_from_slice(names);
        }
        self.name_ends.push(self.names.len() as i64);
    }

    pub(super) fn columns(self, profile: &Profile, denormalized: bool) -> Result<Vec<Column>, OutputError> {
        let rows = self.thread.len();
        let trace = &profile.trace;
        let same = |name, text: &str| SharedTexts::single(text).column(name, &vec![0; rows]);
        let of_threads = |each: &dyn Fn(usize) -> i64| -> Vec<i64> {
            self.thread.iter().map(|&thread| each(thread as usize)).collect()
        };
        let start_utc = signed(trace.start_utc_ns);
        let cpu_source = Some(trace.cpu_source).filter(|source| *source != CpuSource::None);
        let mut columns = vec![
            same("trace_id", &trace_id(profile))?,
            same("host", &trace.host)?,
            same("process", &trace.process)?,
            column("pid", vec![i64::from(trace.pid); rows]),
            column("thread", of_threads(&|i| profile.threads[i].instance as i64)),
            column("tid", of_threads(&|i| profile.threads[i].tid.into())),
            SharedTexts::new(profile.threads.iter().map(|t| t.name.as_str()))
                .column("thread_name", &self.thread)?,
            column("ts_ns", self.ts_ns.clone()),
            table::timestamps(
                "ts_utc",
                self.ts_ns.iter().map(|ns| start_utc.saturating_add(*ns).div_euclid(1000)).collect(),
            ),
            column("duration_ns", self.duration_ns),
            column("run_id", self.run_id),
            column("stack_id", self.stack_id),
            column("samples", self.samples),
            column("state", self.state),
            column("wait_reason", self.wait_reason),
            column("wait_class", self.wait_class),
            column("cpu_ns", self.cpu_ns.into_iter().map(|ns| cpu_source.map(|_| ns)).collect::<Vec<_>>()),
            column("cpu_source", vec![cpu_source.map(CpuSource::as_str); rows]),
            column("tag", self.tag),
            column("event_id", self.event_id),
            column("depth", self.depth),
            column("proved", self.proved),
            column("truncated", self.truncated),
            column("tables_pending", self.tables_pending),
            SharedTexts::new(profile.stops.iter().map(|s| s.reason.as_str()))
                .column("stop_reason", &self.stop)?,
            SharedTexts::new(profile.stops.iter().map(|s| s.module.as_str()))
                .column("stop_module", &self.stop)?,
        ];
        if denormalized {
            let mut offsets = vec![0];
            offsets.extend(self.name_ends);
            columns.push(list("frames", offsets, named_frames(profile, &self.names)?)?);
        }
        Ok(columns)
    }
}

fn named_frames(profile: &Profile, names: &[(FrameId, u32)]) -> Result<Series, OutputError> {
    let strings = &profile.symbols.strings;
    let named = |&(frame, i): &(FrameId, u32)| profile.symbols.names(frame)[i as usize];
    let key = |&(frame, _): &(FrameId, u32)| profile.frames.keys()[frame.0 as usize];
    // Names may be long, and the same ones are in many rows.
    let fields = vec![
        repeated("function", names.iter().map(|n| Some(strings.get(named(n).function))))?,
        repeated("file", names.iter().map(|n| named(n).file.map(|file| strings.get(file))))?,
        column("line", names.iter().map(|n| named(n).line.map(i64::from)).collect::<Vec<_>>()),
        repeated("module", names.iter().map(|n| profile.module_name(n.0)))?,
        column("rva", names.iter().map(|n| ids::rva(profile, key(n))).collect::<Vec<_>>()),
        column("address", names.iter().map(|n| ids::address(profile, key(n))).collect::<Vec<_>>()),
        column("trust", names.iter().map(|n| key(n).trust.as_str()).collect::<Vec<_>>()),
        column("inline", names.iter().map(|n| named(n).inline).collect::<Vec<_>>()),
    ];
    structs(NAMED_FRAME, fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_profile::profile::{Activity, StopId};
    use stk_schema::event::RunState;

    fn run(first_ns: u64, last_ns: u64, weight_ns: u64, samples: u32, cpu_ns: u64) -> Run {
        Run {
            node: None,
            stop: StopId(0),
            first_ns,
            last_ns,
            weight_ns,
            samples,
            cpu_ns,
            state: RunState::Waiting,
            activity: Activity::Unknown,
            flags: RunFlags::empty(),
            capture_tag: 0,
        }
    }

    fn cut(run: &Run, start_utc_ns: u64) -> Vec<(u64, u64, u64, u64)> {
        let row = |piece: RunSegment| (piece.start_ns, piece.duration_ns, piece.samples, piece.cpu_ns);
        pieces(run, start_utc_ns, 0, &mut allowance(CUTS, 0)).map(row).collect()
    }

    fn allowance(cuts: u64, names: u64) -> Allowance {
        Allowance { cuts, names, nameless: 0 }
    }

    #[test]
    fn a_run_is_cut_at_whole_seconds_of_utc() {
        // From 0.4 s to 2.9 s of UTC: samples at 0.4, 0.9, 1.4, 1.9, 2.4.
        let run = run(100_000_000, 2_100_000_000, 2_500_000_000, 5, 250);
        assert_eq!(
            cut(&run, 300_000_000),
            [
                (100_000_000, 600_000_000, 2, 60),
                (700_000_000, 1_000_000_000, 2, 100),
                (1_700_000_000, 900_000_000, 1, 90),
            ]
        );
    }

    #[test]
    fn a_run_within_a_second_stays_whole() {
        assert_eq!(cut(&run(5, 7, 100, 3, 9), 1_000), [(5, 100, 3, 9)]);
        // Up to the second exactly, and beginning with it.
        assert_eq!(cut(&run(0, 0, SECOND, 1, 9), 0), [(0, SECOND, 1, 9)]);
        assert_eq!(cut(&run(7, 7, 0, 1, 9), 0), [(7, 0, 1, 9)]);
        assert_eq!(cut(&run(SECOND, SECOND, 0, 1, 9), 0), [(SECOND, 0, 1, 9)]);
    }

    #[test]
    fn nothing_is_lost_by_cutting() {
        for (i, start) in [(1u64, 0u64), (2, 999_999_999), (3, 1_700_000_000_123_456_789)] {
            for samples in [1, 2, 7, 1_000] {
                let weight = i * 777_777_777;
                let run = run(i * 333, i * 333 + weight / 2, weight, samples, 10_007 * i);
                let rows = cut(&run, start);
                let mut at = run.first_ns;
                for row in &rows {
                    assert_eq!(row.0, at, "rows follow each other");
                    at += row.1;
                }
                assert_eq!(at, run.first_ns + weight);
                assert_eq!(rows.iter().map(|row| row.2).sum::<u64>(), u64::from(samples));
                assert_eq!(rows.iter().map(|row| row.3).sum::<u64>(), run.cpu_ns);
            }
        }
    }
    #[test]
    fn long_run_is_cut_at_longer_units_and_keeps_its_time() {
        let rows =
            [(1, 86_400), (2, 2 * 1_440), (60, 86_400), (61, 61 * 24), (3_600, 86_400), (3_601, 3_601)];
        for (days, wanted) in rows {
            let rows = cut(&run(0, 0, days * DAY, 1, 1_000), 0);
            assert_eq!(rows.len(), wanted, "{days} days");
            assert_eq!(rows.iter().map(|row| row.1).sum::<u64>(), days * DAY, "{days} days");
        }
        let endless = cut(&run(7, 7, u64::MAX - 7, 1, 1_000), u64::MAX);
        assert!(endless.len() < 10, "{} rows", endless.len());
        assert_eq!(endless.iter().map(|row| row.1).sum::<u64>(), u64::MAX - 7);
        assert_eq!(endless.iter().map(|row| row.3).sum::<u64>(), 1_000);
        assert!(endless.iter().all(|row| row.1 <= i64::MAX as u64), "{endless:?}");
    }

    #[test]
    fn idle_run_has_a_row_for_each_whole_day_hour_and_minute() {
        // From 12:34:56.5 of a day.
        let start = DAY + 45_296 * SECOND + SECOND / 2;
        let idle = cut(&run(0, 0, 40 * DAY, 40, 0), start);
        // To the second, the minute, the hour, midnight; 39 days; and as far on the other side.
        assert_eq!(idle.len(), 1 + 3 + 25 + 11 + 39 + 12 + 34 + 57);
        assert_eq!(idle.iter().map(|row| row.1).sum::<u64>(), 40 * DAY);
        assert_eq!(idle.iter().map(|row| row.2).sum::<u64>(), 40);
        for (at, duration, ..) in idle {
            let (from, until) = (start + at, start + at + duration - 1);
            assert_eq!(from / DAY, until / DAY, "a row is of one day");
        }
        let short = cut(&run(0, 0, 100 * SECOND, 1, 0), 59 * SECOND);
        assert_eq!(short.iter().map(|row| row.1 / SECOND).collect::<Vec<_>>()[..3], [1, 60, 1]);
        assert_eq!(short.len(), 41);
        // What a thread did on a processor stays second by second.
        assert_eq!(cut(&run(0, 0, 100 * SECOND, 1, 1_000), 59 * SECOND).len(), 100);
    }

    #[test]
    fn runs_of_a_trace_share_its_cuts() {
        let mut left = allowance(100, 0);
        let mut rows = |seconds: u64| pieces(&run(0, 0, seconds * SECOND, 1, 1), 0, 0, &mut left).count();
        assert_eq!(rows(91), 91, "90 cuts");
        assert_eq!(rows(11), 11, "the last 10");
        assert_eq!(rows(50), 1, "no cut is left");
        assert_eq!(rows(1), 1);
    }
    #[test]
    fn rows_beyond_the_names_of_a_trace_have_none_and_are_counted() {
        let mut left = allowance(CUTS, 100);
        assert_eq!(pieces(&run(0, 0, 6 * SECOND, 1, 1), 0, 10, &mut left).count(), 6, "5 cuts take half");
        assert_eq!(pieces(&run(0, 0, 7 * SECOND, 1, 1), 0, 10, &mut left).count(), 1, "6 would take more");
        let taken: Vec<bool> = [60, 50, 40, 1].map(|names| left.takes_names(names)).into();
        assert_eq!(taken, [true, false, true, false]);
        assert_eq!(left.nameless, 2);
    }
}
