//! Records a program that starts and ends threads of a few microseconds all the time. Nothing
//! faults, and all threads do their work.

use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

#[test]
fn threads_that_live_for_microseconds_are_recorded_without_a_fault() {
    let folder = Folder::new("churn");
    let seconds = if wine::long() { "60" } else { "5" };
    let home = wine::path("STK_ENDS_DIR");
    let mut program = Program::ready(&folder, &home, &home.join("churn.exe"), &[seconds]);
    let inject = Inject::run(&folder, &["--pid", &program.pid(), "-o", "churn.stk"]);
    inject.expect(0).says("ended with exit code 0");
    program.ends_saying("checksum right");
    let recorded = Recorded::open(&folder.file("churn.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.end.as_ref().map(|end| end.0), Some(EndReason::ProcessExit as u64));
    wine::measured(&format!("churn for {seconds} s: {}", wine::figures(&recorded)));
}
