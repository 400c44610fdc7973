//! How agent.dll suspends threads, under Wine: threads that do not stop, and a sampler frozen in
//! each phase of a suspension (`tests/host.c`).
//!
//! Environment: see tests/README.md (`STK_WINE`, `STK_WINDOWS_BIN`, `WINEPREFIX`). Rates and times
//! are not asserted: the machine may be loaded.

#![cfg(not(windows))]

use std::collections::BTreeSet;
use std::sync::OnceLock;
use stk_schema::Ticks;

use stk_schema::event::{DropReason, EndReason};
use stk_schema::guard;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, HostProgram, HostRun};

#[test]
fn others_are_sampled_and_nothing_is_held_while_a_thread_does_not_stop() {
    let run = run("stubborn", &[]);
    assert_eq!(run.all("captured"), ["0"; 3], "marks in the trace");
    for (key, value) in [
        ("sampled_on", "1"),
        ("locks_free", "1"),
        ("still_blocked", "1"),
        ("held", "0"),
        ("working", "1"),
        ("sampled_after", "1"),
        ("stop", "0"),
        ("alive", "1"),
        ("left", "1"),
    ] {
        assert_eq!(run.one(key), value, "{key}: {:?}", run.output);
    }
    let trace = Recorded::open_sound(&run.trace);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64));
    let stubborn = thread(&trace, "stubborn");
    let [from, to, after] = [1, 2, 3].map(|tag| marked(&trace, tag));
    // The loss is reported with its thread and the time of the request to stop, which was before
    // the spare took over.
    let missed: Vec<_> = trace.losses.iter().filter(|dropped| dropped.thread == stubborn).collect();
    let [missed] = missed[..] else { panic!("one loss of the stubborn thread: {missed:?}") };
    assert_eq!((missed.reason, missed.count), (DropReason::NotStopped as u64, 1));
    assert!(missed.time < from, "{missed:?}, {from:?}");
    // While the call that asked it has not returned, it alone is missing ...
    let between: BTreeSet<u64> = sampled(&trace, from, to).collect();
    for name in ["shallow", "tiefer Fäden 🧵"] {
        assert!(between.contains(&thread(&trace, name)), "{name}: {between:?}");
    }
    assert!(!between.contains(&stubborn));
    // ... and a few seconds later it is sampled again.
    assert!(sampled(&trace, to, after).any(|thread| thread == stubborn), "not until {after:?}");
}

#[test]
fn stuck_samplers_hold_nothing_and_the_last_continues_later() {
    let run = run("stubborn_three", &[]);
    for (key, value) in [
        ("locks_free", "1"),
        ("still_blocked", "1"),
        ("held", "0"),
        ("working", "1"),
        ("sampled_after", "1"),
        ("stop", "0"),
        ("alive", "1"),
        ("left", "1"),
    ] {
        assert_eq!(run.one(key), value, "{key}: {:?}", run.output);
    }
    let trace = Recorded::open_sound(&run.trace);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64));
    let threads = trace.losses.iter().filter(|dropped| dropped.thread != 0);
    assert_eq!(threads.map(|dropped| dropped.thread).collect::<BTreeSet<_>>().len(), 3, "{:?}", trace.losses);
}

/// Where Sleep(1) lasts 15.6 ms, limits of 10 s last no longer. Counted sleeps made them 156 s.
#[test]
fn limits_are_the_clocks_where_sleeps_last_15_ms() {
    let run = run("coarse_clock", &[]);
    for (key, value) in [
        ("coarse", "1"),
        ("stop", "0"),
        // A thread of the agent's own has not ended; the start is refused for the same reason.
        ("leave", "4"),
        ("again", "6"),
        ("left", "1"),
        // Nothing is stuck any more. The program itself has called the agent, so it stays.
        ("leave_later", "5"),
    ] {
        assert_eq!(run.one(key), value, "{key}: {:?}", run.output);
    }
    let ms = |key: &str| run.one(key).parse::<u64>().expect("a number");
    assert!(ms("sleeps") > 100, "{:?}", run.output);
    assert!(ms("stop_ms") < 5_000, "{:?}", run.output);
    for key in ["leave_ms", "again_ms"] {
        assert!((9_900..20_000).contains(&ms(key)), "{key}: {:?}", run.output);
        wine::measured(&format!("{key} {} of 10000", ms(key)));
    }
}

/// Checks what the guard process finds when sampler and watchdog are gone: the word states the
/// phase, and one ResumeThread frees the thread.
#[test]
fn a_sampler_frozen_in_any_phase_leaves_a_word_that_names_the_thread_it_holds() {
    let mut phases = vec![guard::ASKING, guard::STOPPED, guard::WALKING];
    if wine::long() {
        phases.extend([guard::ASKED, guard::RESCUING, guard::UNDO, guard::RESUMING]);
    }
    for phase in phases {
        let run = run("freeze", &[&phase.to_string()]);
        assert_eq!(run.one("version"), guard::GUARD_VERSION.to_string());
        assert_eq!(run.one("phase"), phase.to_string());
        assert_eq!(run.one("unchanged"), "1", "in phase {phase} the watchdog leaves the suspension alone");
        // ResumeThread returns the suspend count before the call.
        assert_eq!(run.one("suspended"), "1", "in phase {phase}");
    }
}

/// Runs a scenario of the program, which is compiled once. The file differs from that of `agent`,
/// which may be running.
fn run(scenario: &str, arguments: &[&str]) -> HostRun {
    static HOST: OnceLock<HostProgram> = OnceLock::new();
    let host = HOST.get_or_init(|| HostProgram::compile(env!("CARGO_TARGET_TMPDIR"), "suspend-host"));
    let run = host.run(scenario, arguments);
    assert!(run.status.success(), "{scenario}: {:?}\n{}", run.status, run.text);
    run
}

/// The last thread with this name.
#[track_caller]
fn thread(trace: &Recorded, name: &str) -> u64 {
    let found = trace.threads_named(name).last().copied();
    found.unwrap_or_else(|| panic!("no thread {name}: {:?}", trace.threads))
}

/// When the program asked for the sample with this tag.
#[track_caller]
fn marked(trace: &Recorded, tag: u64) -> Ticks {
    let marked = trace.samples.iter().find(|sample| sample.tag == Some(tag));
    marked.unwrap_or_else(|| panic!("no sample has the tag {tag}")).time
}

/// Threads sampled within a span of time, unasked.
fn sampled(trace: &Recorded, from: Ticks, to: Ticks) -> impl Iterator<Item = u64> {
    let within = move |time| (from..to).contains(&time);
    let samples = trace.samples.iter().filter(move |sample| sample.tag.is_none() && within(sample.time));
    samples.map(|sample| sample.thread)
}
