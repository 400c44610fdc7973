//! Sampled threads that hold locks of the system for long, and a target that suspends its threads
//! itself (tests/programs/locks.c).

use std::path::{Path, PathBuf};
use std::process::Command;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

fn program() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/locks.c");
    let program =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("locks-{:?}.exe", Machine::current()));
    let mut compiler = Command::new(wine::c_compiler());
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("the machine's C compiler runs").success());
    program
}

/// While one thread holds the loader lock nothing can begin or end in the process: a start and a
/// stop wait until it is free for a moment. Sampling continues.
#[test]
fn threads_that_hold_locks_are_sampled_and_nothing_hangs() {
    let folder = Folder::new("locks");
    let mut locks = Program::ready(&folder, folder.path(), &program(), &["15"]);
    let pid = locks.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "locks.stk", "--timeout", "60s"]);
    inject.wait_until_recording();
    let trace = folder.file("locks.stk");
    let held = ["loader lock", "heap lock", "critical section", "SRW lock"];
    wine::wait_for("samples of every thread that holds a lock", || {
        let recorded = Recorded::try_open(&trace)?;
        let sampled = |name: &&str| {
            let threads = recorded.threads_named(name);
            threads.iter().map(|&thread| recorded.samples_of(thread).count()).sum::<usize>() >= 10
        };
        held.iter().all(sampled).then_some(())
    });
    Inject::run(&folder, &["stop", "--pid", &pid, "--timeout", "60s"]).expect(0);
    inject.finish().expect(0).says("stopped from elsewhere");
    let recorded = Recorded::open(&trace);
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    locks.ends_saying("done");
}
