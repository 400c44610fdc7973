//! The change of a file: no look at a thread is lost, none is late, and each file is whole by
//! itself. What dies then takes one block with it at most.

use super::{RingFile, ended, files, ring, wait_for_file};
use crate::dynamic;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Program};

/// Changes of the file, and kills: in CI, and with STK_LONG.
const CHANGES: u32 = 10;
const LONG_CHANGES: u32 = 100;
const KILLS: u32 = 4;
const LONG_KILLS: u32 = 100;
/// Most milliseconds that a kill may cost: a block is handed over when it is a second old, and on a
/// machine with several times the work that it can do the writer may need another.
const MOST_LOST_MS: u128 = 2_000;

/// All moments in which a thread was looked at, in order.
fn looks(file: &RingFile) -> Vec<u64> {
    let mut times: Vec<u64> = file.recorded.samples.iter().map(|sample| sample.time.0).collect();
    times.sort_unstable();
    times
}

/// The longest time between two of these moments.
fn longest(times: &[u64]) -> u64 {
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

#[test]
fn files_change_at_1000_hz_without_a_lost_look_or_a_gap() {
    let folder = Folder::new("rotate-gapless");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let changes = if wine::long() { LONG_CHANGES } else { CHANGES };
    let line = ["--pid", &pid, "-o", "a.stk", "-r", "1000", "--rotate", "1s"];
    let mut inject = Inject::start(&folder, &line);
    inject.wait_until_recording();
    // One by one: on a busy machine a change waits for the file's unwind tables.
    (2..=changes + 1).for_each(|number| wait_for_file(folder.path(), &format!("a.{number:04}.stk")));
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");

    let names = files(folder.path());
    assert!(names.len() as u32 > changes, "{names:?}");
    let ring = ring(&folder, &names);
    let per_ms = ring[0].recorded.header.clock_frequency / 1000;
    let lost: u64 = ring.iter().map(|file| file.recorded.dropped_samples).sum();
    assert_eq!(lost, 0, "lost samples");
    // A busy machine makes passes late anywhere: the change makes none later than those are.
    let elsewhere = ring.iter().map(|file| longest(&looks(file))).max().unwrap_or(0);
    let elsewhere = elsewhere.max(2 * per_ms) * 1000 / per_ms;
    let mut gaps = Vec::new();
    for pair in ring.windows(2) {
        let (before, after) = (looks(&pair[0]), looks(&pair[1]));
        let (Some(last), Some(first)) = (before.last(), after.first()) else { continue };
        let gap = first - last;
        let gap = gap * 1000 / per_ms;
        assert!(gap <= elsewhere, "{gap} us at a change, at most {elsewhere} us elsewhere");
        gaps.push(gap);
    }
    gaps.sort_unstable();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    wine::measured(&format!(
        "{} changes of --rotate at 1000 Hz: 0 samples lost; from look to look: median {} us, most {} us; load {}",
        gaps.len(),
        gaps[gaps.len() / 2],
        gaps[gaps.len() - 1],
        load.trim()
    ));
}

#[test]
fn each_file_alone_has_the_dynamic_code_made_before_it() {
    let folder = Folder::new("rotate-code");
    let mut dynamic = Program::ready(&folder, folder.path(), &dynamic::program(), &["60"]);
    let pid = dynamic.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "2s"]);
    inject.wait_until_recording();
    wait_for_file(folder.path(), "a.0005.stk");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");
    dynamic.kill();
    let names = files(folder.path());
    ring(&folder, &names);
    // The code of these threads is made before the recording begins, and registered once.
    for name in &names[1..names.len() - 1] {
        let speedscope = Speedscope::of(folder.path(), name, folder.path());
        for thread in ["table", "callback"] {
            let (complete, through) = dynamic::shares(&speedscope, thread);
            assert!(complete > 0.99 && through > 0.8, "{name}: {thread}: {complete} {through}");
        }
    }
}

/// The files that were begun, in order. Only the last name can be that of a file without a header.
#[track_caller]
fn begun(folder: &Folder) -> Vec<Recorded> {
    let mut names = files(folder.path());
    let is_empty = |name: &String| folder.file(name).metadata().expect("there").len() == 0;
    names.pop_if(|name| is_empty(name));
    let mut all = Vec::new();
    for name in &names {
        let recorded = Recorded::open(&folder.file(name));
        assert!(recorded.damage.is_empty(), "{name}: {:?}", recorded.damage);
        let verify = stk::run(folder.path(), &["verify", name]);
        assert_eq!(verify.code, Some(0), "{name}: {}{}", verify.stdout, verify.stderr);
        all.push(recorded);
    }
    all
}

/// When a thread was looked at last, in nanoseconds since 1970 UTC; the beginning, where the only
/// block of samples is the one that was lost.
#[track_caller]
fn last_look_ns(files: &[Recorded]) -> u128 {
    let last = |file: &Recorded| {
        let header = &file.header;
        let time = file.samples.iter().map(|sample| sample.time).max().unwrap_or(header.clock_start);
        let since = u128::from((time - header.clock_start).0) * 1_000_000_000;
        u128::from(header.utc_start) + since / u128::from(header.clock_frequency)
    };
    files.iter().map(last).max().expect("a file")
}

/// Kills at another moment of a file's second each time. `kill` returns the time since 1970 UTC of
/// what is lost at the latest, if something may be. Returns what was lost each time, in ms.
fn each_kill(name: &str, kill: impl Fn(&Folder, Program, Inject) -> Option<Duration>) {
    let kills = if wine::long() { LONG_KILLS } else { KILLS };
    let mut lost = Vec::new();
    for number in 0..kills {
        let folder = Folder::new(name);
        let busy = Program::busy(&folder, 0);
        let mut inject =
            Inject::start(&folder, &["--pid", &busy.pid(), "-o", "a.stk", "-r", "1000", "--rotate", "1s"]);
        inject.wait_until_recording();
        let second = folder.file("a.0002.stk");
        wine::wait_for("the second file", || (second.metadata().ok()?.len() != 0).then_some(()));
        // 37 and 100 have no common divisor.
        std::thread::sleep(Duration::from_millis(10 * (u64::from(number) * 37 % 100)));
        let until = kill(&folder, busy, inject);
        let last = last_look_ns(&begun(&folder));
        lost.extend(until.map(|until| until.as_nanos().saturating_sub(last) / 1_000_000));
    }
    lost.sort_unstable();
    let (median, most) = (lost.get(lost.len() / 2), lost.last());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    wine::measured(&format!(
        "{name}: {kills} of {kills} leave whole files; lost: median {median:?}, most {most:?} ms; load {}",
        load.trim()
    ));
    assert!(most.is_none_or(|&most| most <= MOST_LOST_MS), "{lost:?} ms");
}

#[test]
fn a_target_killed_as_files_change_loses_one_block_at_most() {
    each_kill("rotate-kill-target", |_, mut busy, inject| {
        let killed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        busy.kill();
        inject.finish().expect(0);
        Some(killed)
    });
}

#[test]
fn killed_inject_leaves_the_agent_in_its_file() {
    each_kill("rotate-kill-inject", |folder, mut busy, inject| {
        // SIGKILL. Without its guard the agent ends the recording, in the file in which it is.
        drop(inject);
        let reasons = wine::wait_for("the end of the recording", || {
            let files = files(folder.path());
            let begun = files.iter().filter_map(|name| Recorded::try_open(&folder.file(name)));
            begun.map(|recorded| recorded.end_reason()).collect::<Option<Vec<u64>>>()
        });
        let (stopped, gone) = (EndReason::Stopped as u64, EndReason::GuardGone as u64);
        assert_eq!(reasons.last(), Some(&gone), "{reasons:?}");
        assert!(reasons.iter().all(|reason| [stopped, gone].contains(reason)), "{reasons:?}");
        assert!(busy.is_running(), "{}", busy.output());
        None
    });
}
