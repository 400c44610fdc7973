//! Code made at run time: a program of our own that registers such code in every way, and fails in
//! one (tests/programs/dynamic.c).

use std::path::{Path, PathBuf};
use std::process::Command;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

pub(crate) fn program() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/dynamic.c");
    let program =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("dynamic-{:?}.exe", Machine::current()));
    let mut compiler = Command::new(wine::c_compiler());
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    let status = compiler.status().expect("the machine's C compiler runs");
    assert!(status.success());
    program
}

/// Share of a thread's stacks, by time, that reach its start, and of those that go through dynamic
/// code.
pub(crate) fn shares(speedscope: &Speedscope, thread: &str) -> (f64, f64) {
    let (mut all, mut complete, mut dynamic) = (0.0, 0.0, 0.0);
    for profile in speedscope.named(thread) {
        for (start, end, stack) in &profile.stacks {
            let weight = end - start;
            all += weight;
            if stk::incomplete(stack).is_none() {
                complete += weight;
                let is_dynamic = stack.iter().any(|frame| frame.name.starts_with("[dynamic code]"));
                dynamic += if is_dynamic { weight } else { 0.0 };
            }
        }
    }
    assert!(all > 0.0, "no samples of '{thread}'");
    (complete / all, dynamic / all)
}

#[test]
fn stacks_pass_through_every_kind_of_code_and_a_failing_runtime_does_no_harm() {
    let folder = Folder::new("dynamic");
    // It must outlive the recording, which an emulated inject takes long to begin.
    let (seconds, lives) = match (wine::long(), Machine::current().is_emulated()) {
        (true, _) => ("60", "100"),
        (false, true) => ("12", "60"),
        (false, false) => ("6", "14"),
    };
    let mut dynamic = Program::ready(&folder, folder.path(), &program(), &[lives]);
    let pid = dynamic.pid();
    Inject::record(&folder, &["--pid", &pid, "-o", "dynamic.stk", "-d", &format!("{seconds}s")]);
    let status = dynamic.wait();
    assert!(status.success() && dynamic.output().contains("done"), "{status}\n{}", dynamic.output());

    let recorded = Recorded::open(&folder.file("dynamic.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    let fact =
        |key: &str| recorded.metadata.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    assert!(fact("recorder.code.functions") >= 3, "{:?}", recorded.metadata);
    assert!(fact("recorder.code.stubs") >= 1, "{:?}", recorded.metadata);
    assert!(fact("recorder.code.faults") >= 1, "{:?}", recorded.metadata);
    assert!(fact("recorder.code.removed") >= 1, "the code that replaces other code: {:?}", recorded.metadata);

    let speedscope = Speedscope::of(folder.path(), "dynamic.stk", folder.path());
    for thread in ["table", "callback", "stub"] {
        let (complete, dynamic) = shares(&speedscope, thread);
        assert!(complete > 0.99, "{thread}: {:.2} % reach the thread start", 100.0 * complete);
        assert!(dynamic > 0.8, "{thread}: {:.2} % go through its code", 100.0 * dynamic);
    }
    // Between the replacement and the next check of the address, the recorder still uses the old
    // unwind data.
    let (complete, _) = shares(&speedscope, "reused");
    assert!(complete > 0.5, "reused: {:.2} % reach the thread start", 100.0 * complete);
    // No frames are invented if the lookup failed.
    let (complete, _) = shares(&speedscope, "failing");
    assert!(complete < 0.2, "failing: {:.2} % reach the thread start", 100.0 * complete);
}
