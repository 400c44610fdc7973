//! A thread that spins to the end with one stack, 5 s long: its CPU time in every command, and what
//! commands say of a trace of format version 1.0, which does not have it.

use crate::support::command;
use std::path::Path;
use stk_format::{CpuUnit, FileHeader, RawSample};
use stk_schema::event::{Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::{FREQUENCY, TraceBuilder};

/// Ticks of 50 ms, from pass to pass; the thread's clock gains as much.
const STEP: u64 = FREQUENCY / 20;
const STACK: u64 = 0x10_0000;

/// Writes `spin.stk`, of format version 1.`minor`.
fn spin(folder: &Path, minor: u16) {
    let mut header = FileHeader::new(Arch::X64, Os::Windows, [minor as u8 + 1; 16], FREQUENCY);
    (header.minor, header.cpu_unit, header.rate_mhz) = (minor, CpuUnit::Time100ns, 20_000);
    let mut builder = TraceBuilder::with_header(header);
    let thread = builder.thread(0, 7, "spinner", STACK);
    let mut registers = [0; RegisterSet::X64.len()];
    registers[1] = STACK;
    for pass in 0..=100 {
        builder.raw(&RawSample {
            thread,
            time: Ticks(pass * STEP),
            set: RegisterSet::X64,
            registers: &registers,
            stack_base: STACK,
            stack_start: STACK,
            stack: &[],
            code: Some(&[0xeb, 0xfe]),
            // Version 1.0 has no reading of its clock where nothing changes in a later block.
            cpu: (minor > 0 || pass < 20).then_some(pass * STEP),
            state: RunState::Running,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        });
        if pass % 20 == 19 {
            builder.cut();
        }
    }
    std::fs::write(folder.join("spin.stk"), builder.finish()).expect("writable");
}

fn stk(folder: &Path, arguments: &[&str]) -> String {
    let output = command(arguments).current_dir(folder).output().expect("stk runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// `cpu_ns`, `unread_ns` and the running time that `stk stats` has.
fn figures(folder: &Path, trace: &str) -> [u64; 3] {
    let json: serde_json::Value =
        serde_json::from_str(&stk(folder, &["stats", "--json", trace])).expect("JSON");
    let stats = &json["traces"][0];
    let (totals, running) = (&stats["totals"], &stats["states"]["running"]);
    [&totals["cpu_ns"], &totals["unread_ns"], &running["weight_ns"]]
        .map(|number| number.as_u64().expect("a number"))
}

#[test]
fn a_spinner_has_its_cpu_time_in_every_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    spin(folder, 1);
    // Its last sample stands for an interval of 50 ms, too.
    let all = [5_000_000_000, 0, 5_050_000_000];
    assert_eq!(figures(folder, "spin.stk"), all);
    assert!(stk(folder, &["stats", "spin.stk"]).contains("CPU time 5.00 s in 5.00 s, 100.0 %"));
    stk(folder, &["redact", "spin.stk", "-o", "copy.stk"]);
    assert_eq!(figures(folder, "copy.stk"), all, "redact");
    let top = stk(folder, &["top", "spin.stk", "--once"]);
    assert!(top.contains("CPU 100 % of one processor"), "{top}");
    stk(folder, &["merge", "spin.stk", "-o", "all.speedscope.json"]);
    let merged = std::fs::read_to_string(folder.join("all.speedscope.json")).expect("a file");
    let merged: serde_json::Value = serde_json::from_str(&merged).expect("JSON");
    let cpu = &merged["profiles"][0];
    let sum: f64 =
        cpu["weights"].as_array().expect("weights").iter().filter_map(serde_json::Value::as_f64).sum();
    assert_eq!(sum, 5_000_000_000.0, "merge: {cpu}");
    let info = stk(folder, &["info", "spin.stk"]);
    assert!(!info.contains("not read") && !info.contains("unknown type"), "{info}");
}

#[test]
fn an_old_trace_says_how_much_cpu_time_has_no_reading() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    spin(folder, 0);
    assert_eq!(figures(folder, "spin.stk"), [950_000_000, 4_050_000_000, 5_050_000_000]);
    let stats = stk(folder, &["stats", "spin.stk"]);
    assert!(stats.contains("up to 4.05 s of CPU time have no reading"), "{stats}");
    assert!(!stats.contains("mostly waits"), "{stats}");
    let info = stk(folder, &["info", "spin.stk"]);
    assert!(info.contains("not read   up to 4.05 s of CPU time"), "{info}");
    let json: serde_json::Value =
        serde_json::from_str(&stk(folder, &["info", "--json", "spin.stk"])).expect("JSON");
    assert_eq!(json["traces"][0]["unread_ns"], 4_050_000_000_u64);
}

#[test]
fn types_that_the_format_reserves_are_skipped_without_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let unknown = |kinds: &[u64]| {
        let mut builder = TraceBuilder::new(Arch::X64);
        for &kind in kinds {
            let event = Event::Unknown { kind, body: b"body" };
            builder.meta(10, &event);
            builder.push(&event);
        }
        std::fs::write(folder.join("reserved.stk"), builder.finish()).expect("writable");
        let info = stk(folder, &["info", "--json", "reserved.stk"]);
        let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
        stk(folder, &["verify", "reserved.stk"]);
        info["traces"][0]["unknown_events"].as_u64().expect("a number")
    };
    assert_eq!(unknown(&[34]), 0);
    assert_eq!(unknown(&[34, 35]), 1, "of META blocks, the one that nothing reserves");
}
