//! Traces with one change under correct checksums, run through every command's entry in the
//! library. Bombs, names and cuts are tested through the program, in `tests/tests/host/hostile.rs`.

use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stk::commands::{Exit, answer};
use stk_format::{BlockKind, Scratch, Trace};
use stk_schema::Ticks;
use stk_schema::event::*;
use stk_tests::synth::{Parts, Random, mutate};
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

/// Number of traces; ten times as many with `STK_LONG=1`.
const TRACES: usize = 5_000;
/// Limit for the time of all commands on one trace, on a loaded machine.
const TIME: Duration = Duration::from_secs(10);
/// Processor time that all commands together may take for each trace, all traces taken together.
#[cfg(unix)]
const CPU: Duration = Duration::from_millis(100);
/// Most memory of this process over all traces, two at a time, in bytes.
#[cfg(unix)]
const MEMORY: u64 = 512 << 20;
const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// Every command, in styles with different code paths.
const COMMANDS: [&[&str]; 10] = [
    &["info", "--all", "TRACE"],
    &["info", "--json", "TRACE"],
    &["events", "-j", "1", "TRACE"],
    &["verify", "-j", "1", "TRACE"],
    &["stats", "-j", "1", "--no-default-symbols", "TRACE"],
    &["dump", "--no-default-symbols", "--explain", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "clrstack", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "json", "--scan", "--salvage", "TRACE"],
    &[
        "convert",
        "-j",
        "1",
        "--no-default-symbols",
        "--salvage",
        "TRACE",
        "-o",
        "OUT.speedscope.json",
        "--force",
    ],
    &["convert", "-j", "1", "--no-default-symbols", "TRACE", "-o", "OUT.chrome.json", "--force"],
];

/// A trace with an event of every kind that readers store.
fn everything() -> Vec<u8> {
    let mut builder = traces::trace();
    let module = TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "main", STACK);
    let bytes = b"bytes".as_slice();
    builder.meta(0, &traces::runtime(module, br#"{"version":0}"#));
    builder.meta(0, &Event::Metadata(Metadata { key: b"host", value: b"lab" }));
    builder.meta(0, &Event::Mark(Mark { time: Ticks(5), thread, tag: 1, text: b"mark" }));
    builder.meta(0, &Event::RateChange(RateChange { time: Ticks(5), rate_mhz: 500_000 }));
    builder.meta(0, &Event::Redaction(Redaction { rule: b"rule", words: 1 }));
    builder.meta(0, &Event::Dropped(Dropped { time: Ticks(6), reason: 1, thread, count: 2 }));
    builder.meta(0, &Event::Nettrace(Nettrace { session: 1, time: Ticks(6), offset: 0, bytes: b"Nettrace" }));
    let name = MethodName { time: Ticks(6), base: 0x5000, size: 64, source: 1, name: b"Method" };
    builder.meta(0, &Event::MethodName(name));
    builder.meta(
        0,
        &Event::CodeAdd(CodeAdd {
            instance: 99,
            time: Ticks(6),
            kind: CodeKind::Jit as u64,
            base: 0x5000,
            size: 64,
            image_base: 0x5000,
            function: &[0; 12],
            unwind: &[1, 0, 0, 0],
            code: bytes,
        }),
    );
    for i in 1..=30u64 {
        let calls = [in_function(BASE, (i % 5) as u32), in_function(BASE, 5 + (i % 3) as u32)];
        traces::sample(&mut builder, thread, i * 10_000, STACK, &calls);
        builder.push(&traces::managed(thread, i * 10_000, STACK - 64));
        if i % 6 == 0 {
            builder.push(&Event::Memory(Memory { thread, time: Ticks(i * 10_000), address: 0x7000, bytes }));
            builder.same(thread, i * 10_000 + 5_000, RunState::Waiting);
            builder.cut();
        }
        if i == 15 {
            builder.state();
        }
    }
    traces::capture(&mut builder, (thread, STACK), 390_000, &[in_function(BASE, 1)], 7);
    builder.push(&Event::Mark(Mark { time: Ticks(395_000), thread, tag: 8, text: b"mark" }));
    builder.meta(
        395_000,
        &Event::Exception(Exception { thread, time: Ticks(395_000), code: 0xC000_0005, address: BASE }),
    );
    builder.exit(400_000, thread);
    builder.finish()
}

/// A kept trace, with only its first block of samples.
fn kept(name: &str) -> Parts {
    let path = crate::support::kept(name);
    let mut parts = Parts::take_apart(&std::fs::read(path).unwrap()).unwrap();
    let mut samples = 0;
    parts.blocks.retain(|block| {
        samples += usize::from(block.header.kind == BlockKind::Samples);
        block.header.kind != BlockKind::Samples || samples == 1
    });
    parts.renumber();
    parts
}

/// The faults in the commands' answers for a trace.
fn check(folder: &Path, name: &str, file: &[u8]) -> Vec<String> {
    std::fs::write(folder.join(name), file).unwrap();
    let path = folder.join(name).into_os_string().into_string().unwrap();
    let fill = |part: &&str| OsString::from(part.replace("TRACE", &path).replace("OUT", &path));
    let mut wrong = Vec::new();
    let begun = Instant::now();
    for command in COMMANDS {
        let answered = catch_unwind(AssertUnwindSafe(|| answer(command.iter().map(fill))));
        let problem = match answered {
            Err(_) => Some("panicked".to_owned()),
            Ok(Ok((text, exit))) => fault(command, &text, exit, file),
            Ok(Err(error)) if has_samples(file) => Some(format!("failed: {error:#}")),
            Ok(Err(_)) => None,
        };
        wrong.extend(problem.map(|problem| format!("stk {}: {problem}", command.join(" "))));
    }
    if begun.elapsed() > TIME {
        wrong.push(format!("took {:?}", begun.elapsed()));
    }
    wrong
}

fn fault(command: &[&str], text: &str, exit: Exit, file: &[u8]) -> Option<String> {
    let json = command.iter().any(|part| part.ends_with("json"));
    // Control characters but ends of lines and tabs, and what turns the direction of writing.
    let harmful = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    match exit {
        Exit::Failure if has_samples(file) => Some("failed though undamaged blocks hold samples".to_owned()),
        Exit::Ok | Exit::Damaged | Exit::Failure if json => None,
        Exit::Ok | Exit::Damaged | Exit::Failure => text.find(harmful).map(|at| format!("no text at {at}")),
        other => Some(format!("{other:?}")),
    }
}

/// Whether a block that can be read as a whole has a sample.
fn has_samples(file: &[u8]) -> bool {
    let Ok(trace) = Trace::open(file) else { return false };
    let mut scratch = Scratch::new();
    let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    samples.any(|block| block.header.samples > 0 && trace.verify_block(block, &mut scratch).is_ok())
}

#[test]
fn no_change_under_correct_checksums_makes_a_command_fail() {
    let long = std::env::var_os("STK_LONG").is_some_and(|value| value == "1");
    let count = if long { 10 * TRACES } else { TRACES };
    let bases = [Parts::take_apart(&everything()).unwrap(), kept("busy.stk"), kept("mixed.stk")];
    let folder = tempfile::tempdir().unwrap();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= count {
                return;
            }
            // Real traces are ten times as large, so each is used for only one in fifty.
            let base = &bases[match seed % 50 {
                0 => 1,
                1 => 2,
                _ => 0,
            }];
            let (mut parts, mut random) = (base.clone(), Random::new(seed as u64));
            let changes: Vec<&str> = (0..1 + seed % 3).map(|_| mutate(&mut parts, &mut random)).collect();
            let name = format!("{:?}.stk", std::thread::current().id());
            for problem in check(folder.path(), &name, &parts.to_file()) {
                wrong.lock().unwrap().push(format!("seed {seed}, {}: {problem}", changes.join(", ")));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    #[cfg(unix)]
    {
        let (cpu, peak) = used();
        eprintln!("{count} traces: {cpu:?} of processor time, {} MiB at most", peak >> 20);
        assert!(cpu <= CPU * count as u32, "{cpu:?} of processor time");
        assert!(peak <= MEMORY, "{} MiB", peak >> 20);
    }
}

/// Processor time and most memory of this process until now.
#[cfg(unix)]
fn used() -> (Duration, u64) {
    // SAFETY: the structure is of integers alone.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives through the call.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut used) }, 0);
    let seconds = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    // Bytes on macOS, kilobytes elsewhere.
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    (seconds(used.ru_utime) + seconds(used.ru_stime), used.ru_maxrss as u64 * unit)
}
