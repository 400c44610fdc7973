//! Stacks outside of the bounds in the thread's environment block, under Wine: they are recorded
//! and marked, and the target is not harmed (tests/programs/foreign_stack.c).
//!
//! Environment: see tests/README.md (`STK_WINE`, `STK_WINDOWS_BIN`, `WINEPREFIX`). Rates are not
//! asserted: the machine may be loaded.

#![cfg(not(windows))]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use stk_format::{BlockKind, SampleStep, Scratch, Trace};
use stk_schema::event::Event;
use stk_schema::registers::SP;
use stk_tests::wine::{self, Machine, windows_path};

/// MARKER in the program, which it writes at the start of its own stack.
const MARKER: u64 = 0x5354_414b_4d41_524b;
/// Bytes from the marker to the end of the memory.
const ABOVE_MARKER: u64 = 4096;
/// Most bytes of a foreign stack (format/SPEC.md).
const FOREIGN_BYTES: u64 = 64 << 10;

struct Sample {
    sp: u64,
    stack_base: u64,
    stack_start: u64,
    stack: Vec<u8>,
    truncated: bool,
}

impl Sample {
    fn end(&self) -> u64 {
        self.stack_start + self.stack.len() as u64
    }
}

/// The bounds that the program printed for a thread's stack, and the thread's samples.
struct ForeignThread {
    start: u64,
    end: u64,
    samples: Vec<Sample>,
}

/// Records the program. Returns the printed bounds and the recorded samples of each thread.
fn record() -> BTreeMap<String, ForeignThread> {
    let folder = Machine::current().folder(Path::new(env!("CARGO_TARGET_TMPDIR"))).join("foreign");
    std::fs::create_dir_all(&folder).unwrap();
    let (program, trace) = (folder.join("foreign_stack.exe"), folder.join("foreign.stk"));
    let _ = std::fs::remove_file(&trace);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/foreign_stack.c");
    let mut compiler = Command::new(wine::c_compiler());
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("the machine's C compiler runs").success());

    let bin = wine::path("STK_WINDOWS_BIN");
    let mut inject = wine::command(&bin.join("inject.exe"));
    inject.arg(windows_path(&bin.join("agent.dll"))).args([
        "-r",
        "200",
        "-o",
        &windows_path(&trace),
        "--",
        &windows_path(&program),
        "6",
    ]);
    let output = wine::output(&mut inject);
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert_eq!(output.status.code(), Some(7), "{text}\n{}", String::from_utf8_lossy(&output.stderr));

    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let mut reported = BTreeMap::new();
    let mut tids = BTreeMap::new();
    for line in text.lines() {
        if let [name, tid, start, end] = *line.split_whitespace().collect::<Vec<_>>()
            && let Ok(tid) = tid.parse::<u32>()
        {
            tids.insert(tid, name.to_string());
            let (start, end) = (number(start), number(end));
            reported.insert(name.to_string(), ForeignThread { start, end, samples: Vec::new() });
        }
    }
    assert_eq!(reported.len(), 5, "{text}");
    for (tid, sample) in samples(&std::fs::read(&trace).unwrap()) {
        if let Some(reported) = tids.get(&tid).and_then(|name| reported.get_mut(name)) {
            reported.samples.push(sample);
        }
    }
    reported
}

/// All full samples, with their threads' ids.
fn samples(data: &[u8]) -> Vec<(u32, Sample)> {
    let trace = Trace::open(data).unwrap();
    let mut scratch = Scratch::new();
    assert!(trace.is_complete() && trace.damage().is_empty(), "{:?}", trace.damage());
    let mut tids = BTreeMap::new();
    let mut found = Vec::new();
    for block in trace.blocks() {
        if block.header.kind != BlockKind::Samples {
            for event in trace.events(block, &mut scratch).unwrap() {
                if let Ok(Event::ThreadStart(start)) = event {
                    tids.insert(start.instance, start.tid);
                }
            }
            continue;
        }
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            let SampleStep::Sample(sample) = decoded else { continue };
            let own = Sample {
                sp: sample.registers[SP],
                stack_base: sample.stack_base,
                stack_start: sample.stack_start,
                stack: sample.stack.to_vec(),
                truncated: sample.truncated,
            };
            found.push((sample.thread, own));
        }
    }
    found.into_iter().filter_map(|(thread, sample)| Some((*tids.get(&thread)?, sample))).collect()
}

#[test]
fn stacks_outside_of_their_bounds_are_recorded_without_trusting_the_target() {
    let reported = record();
    on_memory_of_its_own(&reported["foreign"]);
    with_wrong_bounds(&reported["lying"]);
    on_true_bounds("fiber", &reported["fiber"]);
    on_true_bounds("growing", &reported["growing"]);
    below_its_limit(&reported["untouched"]);
}

fn on_memory_of_its_own(thread: &ForeignThread) {
    let inside = |sample: &&Sample| (thread.start..thread.end).contains(&sample.sp);
    let samples: Vec<&Sample> = thread.samples.iter().filter(inside).collect();
    assert!(!samples.is_empty(), "foreign: none of {} samples", thread.samples.len());
    for sample in samples {
        assert_eq!((sample.stack_base, sample.truncated), (0, true));
        assert_eq!(sample.stack_start, sample.sp & !7);
        // The memory ends before the limit; after it lies another allocation or nothing.
        assert!(thread.end - sample.stack_start <= FOREIGN_BYTES);
        assert_eq!(sample.end(), thread.end);
        let marker = (thread.end - ABOVE_MARKER - sample.stack_start) as usize;
        assert_eq!(sample.stack[marker..marker + 8], MARKER.to_le_bytes());
    }
}

fn with_wrong_bounds(thread: &ForeignThread) {
    let wrong = |sample: &&Sample| sample.stack_base != thread.end;
    let samples: Vec<&Sample> = thread.samples.iter().filter(wrong).collect();
    assert!(!samples.is_empty(), "lying: none of {} samples", thread.samples.len());
    // Most samples are taken after the bounds were refused. Before that, all of the allocation is
    // read.
    let most = samples.iter().map(|sample| sample.stack.len() as u64).min().unwrap();
    assert!(most <= FOREIGN_BYTES, "{most:#x}");
    for sample in samples {
        assert_eq!((sample.stack_base, sample.stack_start), (0, sample.sp & !7));
        // The stack itself is recorded, whatever follows it.
        assert!(
            sample.end() >= thread.end || sample.stack.len() as u64 == FOREIGN_BYTES,
            "{:#x}",
            sample.end()
        );
    }
}

fn on_true_bounds(name: &str, thread: &ForeignThread) {
    let on_it = |sample: &&Sample| sample.stack_base == thread.end && sample.sp < thread.end;
    let samples: Vec<&Sample> = thread.samples.iter().filter(on_it).collect();
    assert!(!samples.is_empty(), "{name}: none of {} samples", thread.samples.len());
    for sample in samples {
        assert_eq!((sample.stack_start, sample.end()), (sample.sp & !7, thread.end), "{name}");
    }
}

fn below_its_limit(thread: &ForeignThread) {
    let samples: Vec<&Sample> = thread.samples.iter().filter(|sample| sample.sp < thread.start).collect();
    assert!(!samples.is_empty(), "untouched: none of {} samples", thread.samples.len());
    for sample in samples {
        assert_eq!((sample.stack_base, sample.end(), sample.truncated), (thread.end, thread.end, false));
        let below = (thread.start - sample.stack_start) as usize;
        assert!(sample.stack[..below].iter().all(|&byte| byte == 0));
        assert!(sample.stack[below..].iter().any(|&byte| byte != 0));
    }
}
