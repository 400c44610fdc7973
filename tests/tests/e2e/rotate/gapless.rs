//! The change of a file: no look at a thread is lost, none is late, and each file is whole by
//! itself. What dies then takes one block with it at most.

use super::{RingFile, ended, files, ring, wait_for_file};
use std::time::Duration;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// Changes of the file, and kills: in CI, and with STK_LONG.
const CHANGES: u32 = 10;
const LONG_CHANGES: u32 = 100;
const KILLS: u32 = 4;
const LONG_KILLS: u32 = 100;

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
    wait_for_file(folder.path(), &format!("a.{:04}.stk", changes + 1));
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");

    let names = files(folder.path());
    assert!(names.len() as u32 > changes, "{names:?}");
    let ring = ring(&folder, &names);
    let per_ms = ring[0].recorded.header.clock_frequency / 1000;
    let lost: u64 = ring.iter().map(|file| file.recorded.dropped_samples).sum();
    assert_eq!(lost, 0, "lost samples");
    let mut gaps = Vec::new();
    for pair in ring.windows(2) {
        let (before, after) = (looks(&pair[0]), looks(&pair[1]));
        let (Some(last), Some(first)) = (before.last(), after.first()) else { continue };
        let gap = first - last;
        // A busy machine makes passes late anywhere: the change makes none later than those are.
        let usual = longest(&before).max(longest(&after)).max(2 * per_ms);
        assert!(gap <= usual, "{} of {} us at a change, {} us elsewhere", gap, per_ms, usual);
        gaps.push(gap * 1000 / per_ms);
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
fn each_file_names_the_dynamic_code_that_was_there_before_it() {
    let folder = Folder::new("rotate-code");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk", "--rotate", "1s"]);
    inject.wait_until_recording();
    wait_for_file(folder.path(), "a.0005.stk");
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    ended(inject.finish(), 0, "stopped from elsewhere");
    let names = files(folder.path());
    let code = |name: &String| {
        let events = stk::json(folder.path(), &["events", name, "--kind", "code-add", "--json"]);
        let events = events["traces"][0]["events"].as_array().expect("a list").clone();
        let mut bases: Vec<String> = events.iter().map(|event| event["base"].to_string()).collect();
        bases.sort();
        bases
    };
    let first = code(&names[1]);
    for name in &names[1..names.len() - 1] {
        let here = code(name);
        assert!(first.iter().all(|base| here.contains(base)), "{name}: {here:?}, before {first:?}");
    }
    ring(&folder, &names);
}

/// Blocks of samples that were written a second before the end at the latest: all but one.
#[track_caller]
fn whole_up_to_a_block(folder: &Folder) -> u64 {
    let names = files(folder.path());
    assert!(names.len() >= 2, "{names:?}");
    let mut samples = 0;
    for name in &names {
        let recorded = Recorded::open(&folder.file(name));
        assert!(recorded.damage.is_empty(), "{name}: {:?}", recorded.damage);
        let verify = stk::run(folder.path(), &["verify", name]);
        assert_eq!(verify.code, Some(0), "{name}: {}{}", verify.stdout, verify.stderr);
        samples += recorded.samples.len() as u64;
    }
    samples
}

/// Runs `kill` at another moment of a file's second each time.
fn each_kill(name: &str, kill: impl Fn(&Folder, Program, Inject)) {
    let kills = if wine::long() { LONG_KILLS } else { KILLS };
    for number in 0..kills {
        let folder = Folder::new(name);
        let busy = Program::busy(&folder, 0);
        let mut inject =
            Inject::start(&folder, &["--pid", &busy.pid(), "-o", "a.stk", "-r", "1000", "--rotate", "1s"]);
        inject.wait_until_recording();
        wait_for_file(folder.path(), "a.0002.stk");
        // 37 and 100 have no common divisor.
        std::thread::sleep(Duration::from_millis(10 * (u64::from(number) * 37 % 100)));
        kill(&folder, busy, inject);
        assert!(whole_up_to_a_block(&folder) > 0);
    }
    wine::measured(&format!("{name}: {kills} of {kills} leave whole blocks"));
}

#[test]
fn a_target_killed_as_files_change_leaves_whole_files() {
    each_kill("rotate-kill-target", |_, mut busy, inject| {
        busy.kill();
        inject.finish().expect(0);
    });
}

#[test]
fn an_inject_killed_as_files_change_leaves_whole_files() {
    each_kill("rotate-kill-inject", |folder, mut busy, inject| {
        // SIGKILL. Without its guard the agent ends the recording, in the files in which it is.
        drop(inject);
        let last = files(folder.path()).pop().expect("files");
        wine::wait_for("the end of the recording", || Recorded::try_open(&folder.file(&last))?.end);
        assert!(busy.is_running(), "{}", busy.output());
    });
}
