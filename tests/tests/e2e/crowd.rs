//! Records a program with thousands of threads, nearly all of which wait
//! (`tests/programs/crowd.c`).

#![cfg(not(windows))]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use stk_schema::event::{DropReason, EndReason};
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program, figures, measured};

/// Threads that wait: in CI, and with STK_LONG.
const WAITING: usize = 500;
const LONG_WAITING: usize = 5_000;
const BUSY: usize = 4;
/// A pass over 2,000 threads took two minutes under Wine 8 at a load of 24.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// File descriptors that Wine opens for a thread, and those that it needs for the rest.
const FILES_A_THREAD: usize = 4;
const OTHER_FILES: usize = 400;

#[test]
fn a_program_of_very_many_threads_survives_its_recording() {
    let (waiting, length) =
        if wine::long() { (LONG_WAITING.min(most_threads()), "30s") } else { (WAITING, "4s") };
    record_crowd(waiting, length);
}

#[test]
fn with_64_threads_the_agent_takes_32_mib_at_most() {
    const MOST_MIB: u64 = 32;
    let grown = record_crowd(64 - BUSY, if wine::long() { "20s" } else { "3s" });
    assert!(grown <= MOST_MIB << 10, "{grown} KiB");
}

/// Records a program of so many waiting threads, and returns by how many KiB its memory grew.
#[track_caller]
fn record_crowd(waiting: usize, length: &str) -> u64 {
    let folder = Folder::new("crowd");
    let exe = wine::compiled(env!("CARGO_TARGET_TMPDIR"), "crowd");
    let go = wine::windows_path(&folder.file("go"));
    let arguments = [waiting.to_string(), BUSY.to_string(), go];
    let mut program = Program::ready(&folder, folder.path(), &exe, &arguments.each_ref().map(String::as_str));
    let before = memory(&program);
    let pid = program.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "crowd.stk", "-r", "1000", "-d", length]);
    inject.wait_until_recording();
    let mut most = before;
    let begun = Instant::now();
    while inject.is_running() {
        assert!(begun.elapsed() < PATIENCE, "the recording does not end");
        most = most.max(memory(&program));
        std::thread::sleep(Duration::from_millis(50));
    }
    inject.finish().expect(0);
    std::fs::write(folder.file("go"), "").expect("writable");
    program.ends_saying(&format!("woke {waiting}"));

    let recorded = Recorded::open_sound(&folder.file("crowd.stk"));
    assert_eq!(recorded.end_reason(), Some(EndReason::Duration as u64));
    // The main thread too.
    assert!(recorded.threads.len() > waiting + BUSY, "{} threads are known", recorded.threads.len());
    // Each loss has a reason.
    let without: BTreeSet<u64> = DropReason::WITHOUT_SAMPLES.map(|reason| reason as u64).into();
    let reported = recorded.dropped.iter().filter(|(reason, _)| !without.contains(reason));
    assert_eq!(
        reported.map(|(_, count)| count).sum::<u64>(),
        recorded.dropped_samples,
        "{:?}",
        recorded.dropped
    );
    // However few passes there were, each is over all threads.
    let sampled: BTreeSet<u64> = recorded.samples.iter().map(|sample| sample.thread).collect();
    assert!(sampled.len() > waiting, "{} threads were sampled", sampled.len());
    let idle = program.output();
    let idle = idle.lines().find(|line| line.starts_with("idle seconds")).unwrap_or_default().to_owned();
    measured(&format!(
        "{waiting} threads wait, {BUSY} work, {length}: {}; losses by reason {:?}; the process's memory grew by {} MiB; {idle}",
        figures(&recorded),
        recorded.dropped,
        (most - before) >> 10,
    ));
    most - before
}

/// Threads that a program may have under Wine, by this process's limit of open files.
fn most_threads() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = files.and_then(|text| text.split_whitespace().nth(1)?.parse::<usize>().ok());
    hard.map_or(usize::MAX, |hard| hard.saturating_sub(OTHER_FILES) / FILES_A_THREAD)
}

/// Resident memory of the program, in KiB.
fn memory(program: &Program) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", program.linux_pid())).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    resident.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
