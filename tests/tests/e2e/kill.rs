//! The target is killed in the middle of a recording. Everything written so far is readable, and
//! nothing else is wrong.

use std::time::Duration;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// How often each kind of kill is tested: in CI, and with STK_LONG.
const TIMES: u32 = 8;
const LONG_TIMES: u32 = 500;

#[test]
fn a_target_killed_by_terminate_process_leaves_a_truncated_trace_that_converts() {
    kill_often("terminated", Program::terminate);
}

#[test]
fn a_target_killed_by_sigkill_leaves_a_truncated_trace_that_converts() {
    kill_often("killed", Program::kill);
}

fn kill_often(name: &str, kill: impl Fn(&mut Program)) {
    let times = if wine::long() { LONG_TIMES } else { TIMES };
    for number in 0..times {
        kill_while_recording(name, number % TIMES, &kill);
        if (number + 1) % TIMES == 0 {
            wine::measured(&format!("{name} while recorded: {} of {}", number + 1, number + 1));
        }
    }
}

fn kill_while_recording(name: &str, number: u32, kill: impl Fn(&mut Program)) {
    let folder = Folder::new(name);
    let mut busy = Program::busy(&folder, 0);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "dead.stk"]);
    inject.wait_until_recording();
    let trace = folder.file("dead.stk");
    wine::wait_for("the first samples on disk", || {
        Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
    });
    // A different moment each time, up to the fourth block from there.
    std::thread::sleep(Duration::from_millis(u64::from(number) * 97));
    kill(&mut busy);
    inject.finish().expect(0).says("ended with exit code").says("dead.stk");

    let recorded = Recorded::open(&trace);
    assert!(!recorded.complete, "a killed process cannot have finished its trace");
    assert!(recorded.damage.is_empty(), "completed blocks are damaged: {:?}", recorded.damage);
    assert!(!recorded.samples.is_empty(), "nothing of the recording is left");

    let verify = stk::run(folder.path(), &["verify", "dead.stk"]);
    assert_eq!(verify.code, Some(0), "{}{}", verify.stdout, verify.stderr);
    let said = format!("{}{}", verify.stdout, verify.stderr);
    assert!(said.contains("truncated"), "stk verify does not say that it is truncated:\n{said}");
    let convert = stk::run(folder.path(), &["convert", "dead.stk", "-o", "dead.speedscope.json"]);
    assert_eq!(convert.code, Some(0), "{}", convert.stderr);
    assert!(folder.file("dead.speedscope.json").exists());
}
