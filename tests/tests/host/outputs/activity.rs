//! What threads did, by hand-made stacks.

use super::profiles::Builder;
use stk_profile::profile::{Activity, Placement, Run, RunFlags, Runs, classify};
use stk_profile::stack::StopReason;
use stk_schema::event::RunState;
use stk_unwind::Trust;

/// The activity of the only run of a thread with this stack, root first: modules and functions.
fn one(frames: &[(&str, &str)], flags: RunFlags, state: RunState) -> Activity {
    of_run(frames, |run| Run { flags, state, ..run })
}

/// As [`one`], of a run with changes.
fn of_run(frames: &[(&str, &str)], change: impl Fn(Run) -> Run) -> Activity {
    let mut b = Builder::new();
    let stop = b.stop(StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let ids: Vec<_> = (0u32..)
        .zip(frames)
        .map(|(i, (module, function))| {
            let image = b.image(module, i.into());
            b.frame(Placement::Image(image, 16 * i), Trust::UnwindInfo, &[(function, None, None)])
        })
        .collect();
    let node = b.stack(&ids);
    b.run(thread, Some(node), stop, 0, 1, RunState::Unknown);
    let mut runs = Runs::default();
    let visited: std::io::Result<()> =
        b.runs.for_each(|batch| batch.runs.iter().try_for_each(|run| runs.push(thread, change(*run))));
    visited.expect("runs");
    let mut found = None;
    let classified = classify(&mut b.profile, runs).expect("classified");
    let visited: std::io::Result<()> = classified.for_each(|batch| {
        // Before it may be what the thread used before this wait.
        found = batch.runs.last().map(|run| run.activity);
        Ok(())
    });
    visited.expect("runs");
    found.expect("a run")
}

const APP: (&str, &str) = ("app.exe", "work");
const BEHIND: RunFlags = RunFlags::BEHIND_CALL;

/// Reason and class of a stack that waits.
fn wait(frames: &[(&str, &str)]) -> (&'static str, &'static str) {
    match one(frames, BEHIND, RunState::Unknown) {
        Activity::Waiting(wait) => (wait.reason(), wait.class().as_str()),
        other => panic!("{frames:?}: {other:?}"),
    }
}

#[test]
fn the_outermost_function_that_waits_is_the_reason() {
    let alert = ("ntdll.dll", "NtWaitForAlertByThreadId");
    assert_eq!(wait(&[APP, alert]), ("address", "unknown"));
    let sleep =
        [("kernelbase.dll", "SleepConditionVariableSRW"), ("ntdll.dll", "RtlSleepConditionVariableSRW")];
    assert_eq!(wait(&[APP, sleep[0], sleep[1], alert]), ("condition variable", "idle"));
    let lock = [("ntdll.dll", "RtlEnterCriticalSection"), ("ntdll.dll", "RtlpWaitOnCriticalSection")];
    assert_eq!(wait(&[APP, lock[0], lock[1], alert]), ("critical section", "blocked"));
    // Frames without a name are passed; those of the program end the search.
    let unnamed = ("KERNELBASE.dll", "KERNELBASE.dll+0x75550");
    let single = ("kernelbase.dll", "WaitForSingleObject");
    let call = ("ntdll.dll", "NtWaitForMultipleObjects");
    assert_eq!(wait(&[APP, single, unnamed, call]), ("single object", "unknown"));
    assert_eq!(wait(&[("kernelbase.dll", "SleepEx"), APP, call]), ("multiple objects", "unknown"));
}

#[test]
fn a_system_call_counts_only_behind_its_instruction() {
    let call = [APP, ("ntdll.dll", "NtDelayExecution")];
    assert_eq!(one(&call, RunFlags::empty(), RunState::Unknown), Activity::OnCpu);
    assert_eq!(one(&call, RunFlags::empty(), RunState::Running), Activity::OnCpu);
    assert_eq!(one(&[APP, ("ntdll.dll", "NtClose")], BEHIND, RunState::Unknown), Activity::SystemCall);
    assert_eq!(one(&[APP], BEHIND, RunState::Unknown), Activity::OnCpu);
    assert_eq!(one(&[APP, ("app.exe", "NtClose")], BEHIND, RunState::Unknown), Activity::OnCpu);
}

#[test]
fn a_thread_that_did_not_run_is_not_on_a_processor() {
    assert_eq!(one(&[APP], RunFlags::empty(), RunState::Waiting), Activity::Unknown);
    // A register that changed is no proof of running: the stack shows what the thread did.
    let call = [APP, ("ntdll.dll", "NtDelayExecution")];
    assert!(matches!(one(&call, BEHIND, RunState::Running), Activity::Waiting(_)));
}

#[test]
fn a_clock_that_gains_in_a_long_wait_shows_work() {
    let call = [APP, ("ntdll.dll", "NtWaitForSingleObject")];
    let stood = |ms: u64, cpu_ms: u64| {
        let (weight_ns, cpu_ns) = (ms * 1_000_000, cpu_ms * 1_000_000);
        of_run(&call, |run| Run { flags: BEHIND, weight_ns, cpu_ns, ..run })
    };
    assert_eq!(stood(4_000, 3_900), Activity::SystemCall);
    assert!(matches!(stood(4_000, 400), Activity::Waiting(_)), "what sampling costs");
    assert!(matches!(stood(10, 10), Activity::Waiting(_)), "one step of the clock");
}
