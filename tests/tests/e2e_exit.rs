//! A recorded process ends, in every way and at any moment: it is gone soon, and its trace says
//! how.

use std::time::{Duration, Instant};
use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Folder, Inject, Program};

/// A process is gone this long after it was to end; a loaded machine included.
const GONE: Duration = Duration::from_secs(10);

/// How a program ends: the argument of ends.exe, its exit code, whether the recorder has a chance
/// to say why in the trace.
struct Way(&'static str, i32, bool);

const WAYS: [Way; 5] = [
    Way("exit", 4, true),
    Way("exit_other", 5, true),
    Way("terminate", 6, false),
    Way("last_thread", 9, true),
    Way("abort", 3, true),
];

fn times() -> u64 {
    if wine::long() { 500 } else { 10 }
}

#[test]
fn a_recorded_process_that_ends_in_any_way_is_gone_soon_and_its_trace_says_how() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for number in 0..times() {
        // xorshift: another moment in each run of the loop, the same ones in each run of the test.
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        end(&WAYS[number as usize % WAYS.len()], seed % 300);
    }
}

fn end(Way(way, code, says): &Way, moment: u64) {
    let folder = Folder::new(way);
    let home = wine::path("STK_ENDS_DIR");
    let go = folder.file("go");
    let arguments = [*way, &moment.to_string(), &wine::windows_path(&go)];
    let mut program = Program::ready(&folder, &home, &home.join("ends.exe"), &arguments);
    let mut inject = Inject::start(&folder, &["--pid", &program.pid(), "-o", "ends.stk"]);
    inject.wait_until_recording();
    let context = format!("{way} {moment} ms after the recording had begun");
    std::fs::write(&go, "").expect("writable");
    let begun = Instant::now();
    let status = program.wait();
    let gone = begun.elapsed().saturating_sub(Duration::from_millis(moment));
    assert!(gone < GONE, "{context}: gone after {gone:?}");
    // Where the last thread leaves, Wine sometimes ends its Linux process with the status of
    // another thread; what Windows programs see, inject tells.
    let last_thread = *way == "last_thread";
    assert!(last_thread || status.code() == Some(*code), "{context}: {status} {}", program.output());
    inject.finish().expect(0).says(&format!("ended with exit code {code}"));

    let recorded = Recorded::open(&folder.file("ends.stk"));
    assert!(recorded.damage.is_empty(), "{context}: {:?}", recorded.damage);
    match recorded.end {
        Some((reason, ..)) => assert_eq!(reason, EndReason::ProcessExit as u64, "{context}"),
        None => assert!(!says, "{context}: the trace has no end"),
    }
}
