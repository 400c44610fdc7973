//! Tests agent.dll under Wine with a small program that loads it into itself (`tests/host.c`): one
//! scenario per test.
//!
//! Environment: see tests/README.md (`STK_WINE`, `STK_WINDOWS_BIN`, `WINEPREFIX`, `STK_BIN`). Rates
//! are not asserted: the machine may be loaded.

#![cfg(not(windows))]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::OnceLock;

use object::read::pe::{ImageNtHeaders, ImageOptionalHeader, PeFile64};
use object::{Object, ObjectSection};
use stk_format::blob;
use stk_schema::Arch;
use stk_schema::event::{CheckWalk, EndReason, ImageTable, ModuleFlags, TableKind, ThreadFlags};
use stk_tests::recorded::{Module, Recorded, Sample, Thread};
use stk_tests::stk;
use stk_tests::wine::{self, HostProgram, HostRun, Machine};

#[test]
fn a_recording_has_threads_modules_tables_and_stacks_that_reach_their_base() {
    let run = run("plain");
    assert_eq!(run.all("stop"), ["0"]);
    // A second recording beside the first is refused.
    assert_eq!(run.all("again"), ["1"]);
    assert_eq!((run.one("alive"), run.one("joined")), ("1", "1"));
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64));
    assert_eq!(trace.metadata["label"], "from the host");
    assert!(trace.metadata["exe"].ends_with("host.exe"), "{:?}", trace.metadata);

    let names: BTreeSet<&str> = trace.threads.values().map(|thread| thread.name.as_str()).collect();
    for name in ["shallow", "tiefer Fäden 🧵", "waiter"] {
        assert!(names.contains(name), "{names:?}");
    }
    let recorders = trace.threads.values().filter(|thread| thread.is_recorders());
    assert_eq!(recorders.count(), 8);
    for sample in &trace.samples {
        assert!(!trace.threads[&sample.thread].is_recorders());
        assert_eq!(sample.stack_start, sample.sp & !7);
        // Under Wine, inside a system call the stack pointer lies elsewhere, and no base is known.
        if sample.stack_base != 0 {
            assert_eq!(sample.stack_end(), sample.stack_base);
        }
    }
    let sampled: BTreeSet<&str> =
        trace.samples.iter().map(|sample| trace.threads[&sample.thread].name.as_str()).collect();
    assert!(sampled.is_superset(&BTreeSet::from(["shallow", "tiefer Fäden 🧵", "waiter"])), "{sampled:?}");

    // It is loaded and freed several times: each load is another instance.
    let loads: Vec<_> = trace.modules.values().filter(|module| module.path.ends_with("winmm.dll")).collect();
    assert_eq!(loads.iter().filter(|module| module.unloaded().is_some()).count(), 4, "{loads:?}");
    for module in trace.modules.values() {
        assert!(module.unload >= module.load, "{module:?}");
    }
    let main: Vec<_> =
        trace.modules.values().filter(|module| module.flags.contains(ModuleFlags::MAIN)).collect();
    assert_eq!(main.len(), 1, "{main:?}");
    assert_tables_match_the_file(&trace, main[0]);
}

#[test]
fn stk_capture_records_its_callers_frame_under_its_tag() {
    let run = run("plain");
    assert_eq!(run.all("captured"), ["0"; 8]);
    // Before the recording, the capture finds nothing to record into.
    assert_eq!(run.all("capture_idle"), ["1"]);
    let trace = contents(&run);
    let tagged: BTreeMap<u64, &Sample> =
        trace.samples.iter().filter_map(|sample| Some((sample.tag?, sample))).collect();
    assert_eq!(tagged.keys().copied().collect::<Vec<_>>(), (100..108).collect::<Vec<u64>>());
    let host = std::fs::read(host().file()).unwrap();
    let host = PeFile64::parse(&*host).unwrap();
    let main = trace.modules.values().find(|module| module.flags.contains(ModuleFlags::MAIN)).unwrap();
    let text = host.section_by_name(".text").unwrap();
    let preferred = host.nt_headers().optional_header().image_base();
    for sample in tagged.values() {
        let at = sample.ip - main.base + preferred - text.address();
        let code = text.data().unwrap();
        let before = &code[at as usize - 6..at as usize];
        assert!(is_indirect_call(before), "{before:02x?}");
        // The caller's frame: its stack pointer is that right after the return, 16-aligned in the
        // body.
        assert_eq!(sample.sp % 16, 0);
        assert_eq!(sample.stack_start, sample.sp);
    }
    let deepest = tagged.values().map(|sample| sample.stack).max().unwrap();
    assert!(tagged.values().all(|sample| sample.stack == deepest), "always called from the same place");

    // stk lists the same captures, and prints the stack of the requested one.
    let folder = run.trace.parent().unwrap();
    let listed = stk::json(folder, &["events", "--json", "--kind", "capture", "out.stk"]);
    let listed = listed["traces"][0]["events"].as_array().unwrap().iter();
    assert!(listed.map(|event| event["tag"].as_u64().unwrap()).eq(100..108));
    let dump = ["dump", "--no-default-symbols", "--style", "json", "--tag", "103", "out.stk"];
    let dumped = stk::json(folder, &dump);
    let [stack] = &dumped["threads"].as_array().unwrap()[..] else { panic!("one stack: {dumped}") };
    assert_eq!(stack["frames"][0]["ip"], format!("{:#x}", tagged[&103].ip));
}

#[test]
fn one_shot_takes_one_sample_of_every_thread_and_reads_the_tables() {
    let run = run("once");
    let trace = contents(&run);
    let mut taken = BTreeMap::<u64, u32>::new();
    for sample in &trace.samples {
        *taken.entry(sample.thread).or_default() += 1;
    }
    let others: BTreeSet<u64> = trace
        .threads
        .iter()
        .filter(|(_, thread)| !thread.is_recorders())
        .map(|(instance, _)| *instance)
        .collect();
    assert_eq!(taken.keys().copied().collect::<BTreeSet<_>>(), others);
    assert!(taken.values().all(|&count| count == 1), "{taken:?}");
    for module in trace.modules.values() {
        assert!(module.tables.is_some(), "{module:?}");
    }
}

#[test]
fn tables_kept_in_a_shared_folder_are_complete_there_and_absent_from_the_trace() {
    let folder = host().scenario_folder("tables").join("store");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let run = run_with("tables", &[&wine::windows_path(&folder)]);
    assert_eq!(run.all("ended"), ["1", "1"]);
    let trace = contents(&run);
    assert!(trace.blobs.is_empty());
    let mut kinds = BTreeSet::new();
    for table in trace.modules.values().filter_map(|module| module.tables.as_ref()).flatten() {
        kinds.insert(table.kind);
        let file = folder.join(format!("{}.tbl", table.hash));
        let bytes = std::fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(bytes.len(), table.len as usize);
        assert_eq!(blob::content_hash(&bytes), table.hash);
    }
    assert!(kinds.contains(&(TableKind::Code as u64)), "{kinds:?}");
    for file in std::fs::read_dir(&folder).unwrap() {
        let name = file.unwrap().file_name();
        assert!(name.to_string_lossy().ends_with(".tbl"), "{name:?} was left behind");
    }
}

#[test]
fn without_embedding_modules_are_named_but_carry_no_tables() {
    let trace = contents(&run("none"));
    assert!(trace.blobs.is_empty());
    for module in trace.modules.values() {
        assert!(module.identities >= 2, "{module:?}");
        assert_eq!(module.tables.as_deref(), Some(&[][..]), "{module:?}");
    }
}

#[test]
fn a_recording_ends_by_itself_after_its_duration() {
    let run = run("duration");
    assert_eq!(run.one("ended"), "1", "the event is signalled");
    assert_eq!(run.one("end_reason"), (EndReason::Duration as u64).to_string());
    assert_eq!(contents(&run).end_reason(), Some(EndReason::Duration as u64));
}

#[test]
fn one_process_can_make_ten_recordings_in_a_row() {
    let run = run("cycles");
    assert_eq!(run.all("stop"), ["0"; 10]);
    assert_eq!(run.one("state"), "3");
    assert_eq!(contents(&run).end_reason(), Some(EndReason::Stopped as u64));
    leaks_nothing(&run, 10);
}

#[test]
fn a_thousand_recordings_in_a_row_leave_no_thread_handle_or_memory() {
    if !wine::long() {
        return;
    }
    const CYCLES: usize = 1_000;
    const SECONDS: u32 = 3_600;
    let run = host().run_within(SECONDS, "cycles", &[&CYCLES.to_string()]);
    assert_eq!(run.all("stop"), ["0"; CYCLES]);
    leaks_nothing(&run, CYCLES);
}

/// Checks what the process has at the end of its recordings beside what it had after half of them.
#[track_caller]
fn leaks_nothing(run: &HostRun, cycles: usize) {
    /// A page or two that the C library needs in a recording that was not there before.
    const ROOM_KIB: i64 = 512;
    let number = |key: &str| run.one(key).parse::<i64>().expect("a number");
    let grown = |what: &str| number(&format!("end_{what}")) - number(&format!("half_{what}"));
    wine::measured(&format!(
        "{cycles} recordings in a row: {} threads, {} handles, {} KiB at the end; {:+}, {:+}, {:+} since the middle",
        number("end_threads"),
        number("end_handles"),
        number("end_kib"),
        grown("threads"),
        grown("handles"),
        grown("kib"),
    ));
    assert_eq!(number("end_threads"), 6, "{:?}", run.output);
    assert!(grown("handles") <= 0, "{:?}", run.output);
    // What an emulator makes of code is memory of the process too.
    assert!(Machine::current().is_emulated() || grown("kib") <= ROOM_KIB, "{:?}", run.output);
}

#[test]
fn a_panic_in_the_recorder_is_in_the_trace_and_does_not_harm_the_target() {
    let run = run("panic");
    assert_eq!((run.one("alive"), run.one("joined")), ("1", "1"));
    assert_eq!(run.one("state"), "4");
    // The recorder stays off in this process.
    assert_eq!(run.all("again"), ["6"]);
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Panic as u64));
    assert!(trace.end_detail().contains("asked for by the test flag"), "{}", trace.end_detail());
    assert!(!trace.samples.is_empty());
}

/// The trace of a scenario in which the agent panics on a thread of the program.
fn panics_on_a_thread_of_the_target(scenario: &str) -> HostRun {
    let run = run(scenario);
    assert_eq!((run.one("alive"), run.one("joined")), ("1", "1"));
    assert_eq!((run.one("ended"), run.one("state")), ("1", "4"));
    assert_eq!((run.one("new_threads"), run.one("locks_free_later")), ("1", "1"));
    assert_eq!((run.one("capture_later"), run.one("again")), ("1", "6"));
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Panic as u64));
    assert!(trace.end_detail().contains("a test requested this"), "{}", trace.end_detail());
    assert!(!trace.samples.is_empty());
    run
}

#[test]
fn a_panic_in_stk_capture_returns_to_the_thread_that_called_it() {
    let run = panics_on_a_thread_of_the_target("panic_capture");
    // The sample was dropped.
    assert_eq!(run.one("captured"), "2");
}

#[test]
fn a_panic_in_a_loader_notification_returns_to_the_loader() {
    let run = panics_on_a_thread_of_the_target("panic_notification");
    assert_eq!(run.one("locks_free"), "1");
}

#[test]
fn a_process_that_exits_while_it_is_recorded_leaves_a_finished_trace() {
    // The sampler is terminated with the other threads. If that happens while it changes its block,
    // the samples of the last second are lost, about once in twenty runs here. The end is written
    // either way.
    let has_samples = (0..4).any(|_| {
        let run = run("exit");
        assert_eq!(run.status.code(), Some(7), "the program's own exit code");
        let trace = contents(&run);
        assert_eq!(trace.end_reason(), Some(EndReason::ProcessExit as u64));
        !trace.samples.is_empty()
    });
    assert!(has_samples);
}

#[test]
fn the_watchdog_resumes_the_thread_that_a_frozen_sampler_holds() {
    let run = run("frozen");
    assert_ne!(run.one("frozen"), "0");
    assert_eq!(run.one("stuck"), "0", "workers ran on although the sampler stood still");
    assert_eq!((run.one("alive"), run.one("joined")), ("1", "1"));
    contents(&run);
}

#[test]
fn a_walk_that_waits_is_discarded_and_its_thread_resumed() {
    let run = run("slow_walk");
    assert_eq!((run.one("registered"), run.one("stop"), run.one("left")), ("1", "0", "1"));
    assert!(run.one("slow_lookups").parse::<u32>().is_ok_and(|lookups| lookups >= 3));
    let trace = contents(&run);
    // The watchdog gives up the walk, but not the recording ...
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64), "{}", trace.end_detail());
    assert_eq!(trace.metadata["recorder.check_walks"], "on");
    let discarded: Vec<_> =
        trace.walks.iter().filter(|walk| walk.flags & CheckWalk::DISCARDED != 0).collect();
    assert!(!discarded.is_empty() && discarded.iter().all(|walk| walk.frames.is_empty()), "{discarded:?}");
    // ... nor the sample, which was complete before.
    let code: u64 = run.one("code").parse().unwrap();
    assert!(trace.samples.iter().any(|sample| (code..code + 16).contains(&sample.ip)));
    // The walks of the other threads reach their starts.
    assert!(trace.walks.iter().any(|walk| walk.flags == 0 && walk.frames.len() > 10));
}

#[test]
fn a_walk_that_reads_unmapped_memory_ends_and_the_target_continues() {
    let run = run("wild_walk");
    assert_eq!((run.one("registered"), run.one("bad_read"), run.one("left")), ("1", "1", "1"));
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64), "{}", trace.end_detail());
    let code: u64 = run.one("code").parse().unwrap();
    // After its prologue, the frame is looked for at address 10h.
    let of_code =
        |walk: &&CheckWalk| walk.frames.first().is_some_and(|&(ip, _)| (code + 6..code + 11).contains(&ip));
    let walks: Vec<_> = trace.walks.iter().filter(of_code).collect();
    assert!(!walks.is_empty());
    for walk in walks {
        assert_eq!((walk.flags, walk.frames.len()), (CheckWalk::FAULT, 1));
    }
}

#[test]
fn short_lived_threads_all_run_and_none_hangs() {
    let run = run("brief");
    assert_eq!(run.one("counted"), "300");
    assert_eq!(run.all("stop"), ["0"]);
    let trace = contents(&run);
    for thread in trace.threads.values() {
        assert!(thread.exit >= thread.start, "{thread:?}");
    }
}

/// Windows does not run a thread while enough threads of a higher priority are ready; Wine stores
/// the priority and ignores it.
#[test]
fn the_recorders_threads_have_at_least_the_targets_priority() {
    let run = run("priorities");
    let trace = contents(&run);
    let mut helpers = Vec::new();
    for line in run.all("priority") {
        let (tid, priority) = line.split_once(' ').unwrap();
        let (tid, priority): (u32, i32) = (tid.parse().unwrap(), priority.parse().unwrap());
        let thread = trace.threads.values().find(|thread| thread.tid == tid);
        if thread.is_some_and(|thread| thread.is_recorders()) {
            helpers.push(priority);
        }
    }
    helpers.sort_unstable();
    // Code and runtimes run at the target's priority, tables and writer above it, the watchdog at
    // the highest, and the sampler at time-critical.
    assert!(helpers.iter().all(|&priority| priority >= 0), "{helpers:?}");
    assert!(helpers.iter().filter(|&&priority| priority == 1).count() >= 2, "{helpers:?}");
    assert!(helpers.contains(&15), "{helpers:?}");
}

#[test]
fn the_cost_of_a_suspension_is_measured_at_the_start_and_stored() {
    let trace = contents(&run("priorities"));
    let value = |key: &str| trace.metadata.get(key).map(|text| text.parse::<u64>().unwrap());
    let (p50, p95) = (value("recorder.suspension_ns_p50"), value("recorder.suspension_ns_p95"));
    // A system call takes more than that on any machine.
    assert!(p50.is_some_and(|p50| p50 > 100), "{:?}", trace.metadata);
    assert!(p95 >= p50, "{p95:?} {p50:?}");
    // Wine 8 counts no cycles. If the system counts them, both are reported.
    let cycles = (value("recorder.suspension_cycles_p50"), value("recorder.suspension_cycles_p95"));
    assert!(cycles.0.is_some() || cycles.1.is_none(), "{cycles:?}");
}

/// How long threads stood still is measured for each suspension; and that the sampler, the watchdog
/// and the writer are out of power throttling, or why not.
#[test]
fn times_held_and_power_are_in_the_metadata() {
    let trace = contents(&run("priorities"));
    let value = |key: &str| trace.metadata.get(key).and_then(|text| text.parse::<u64>().ok());
    let held = ["recorder.held_p50_ns", "recorder.held_p999_ns", "recorder.held_max_ns"].map(value);
    let [Some(p50), Some(p999), Some(max)] = held else { panic!("{:?}", trace.metadata) };
    assert!(0 < p50 && p50 <= p999 && p999 <= max, "{held:?}");
    wine::measured(&format!("threads held: {p50} ns (p50), {p999} ns (p99.9), {max} ns at most"));
    let power = trace.metadata.get("recorder.power_throttling").expect("the recorder says it");
    let known = power == "off" || power == "unknown to this system" || power.starts_with("not switched off");
    assert!(known, "{power}");
}

/// Two busy loops per processor, which end when this is dropped.
struct BusyMachine(Vec<std::process::Child>);

impl BusyMachine {
    fn new() -> BusyMachine {
        let processors = std::thread::available_parallelism().unwrap().get();
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        BusyMachine((0..2 * processors).map(|_| spin()).collect())
    }
}

impl Drop for BusyMachine {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_recording_on_a_busy_machine_still_has_samples_modules_and_an_end() {
    let _busy = BusyMachine::new();
    let run = run("plain");
    assert_eq!(run.all("stop"), ["0"]);
    assert_eq!(run.one("alive"), "1");
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64));
    let loads = trace.modules.values().filter(|module| module.path.ends_with("winmm.dll"));
    assert_eq!(loads.filter(|module| module.unloaded().is_some()).count(), 4);
    let first: BTreeMap<u64, u64> =
        trace.samples.iter().rev().map(|sample| (sample.thread, sample.stack)).collect();
    let known = |thread: &&Thread| !thread.is_recorders() && !thread.name.is_empty();
    assert_eq!(trace.threads.values().filter(known).count(), 3);
    for (instance, thread) in trace.threads.iter().filter(|(_, thread)| known(thread)) {
        assert!(first.contains_key(instance), "{thread:?} was never sampled");
    }
}

#[test]
fn a_thread_whose_environment_block_is_unmapped_has_no_stack_bounds() {
    let run = run("block_gone");
    assert_eq!((run.one("diverted"), run.one("alive"), run.one("joined")), ("1", "1", "1"));
    assert_ne!(run.one("answers_without_block"), "0");
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::Stopped as u64), "{}", trace.end_detail());
    let tid: u32 = run.one("doomed_tid").parse().unwrap();
    let doomed: Vec<_> = trace.threads.values().filter(|thread| thread.tid == tid).collect();
    let [doomed] = doomed[..] else { panic!("one thread {tid}: {:?}", trace.threads) };
    assert!(doomed.flags.contains(ThreadFlags::NO_STACK_BOUNDS), "{doomed:?}");
    let others = trace.threads.values().filter(|thread| thread.flags.contains(ThreadFlags::NO_STACK_BOUNDS));
    assert_eq!(others.count(), 1, "{:?}", trace.threads);
}

#[test]
fn a_recording_ends_with_its_guard_and_the_target_continues() {
    let run = run("guard_gone");
    assert_eq!((run.one("guard"), run.one("ended"), run.one("alive")), ("1", "1", "1"));
    assert_eq!(run.one("end_reason"), (EndReason::GuardGone as u64).to_string());
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::GuardGone as u64));
    assert!(!trace.samples.is_empty());
    assert_eq!(trace.metadata.get("recorder.unguarded"), None);
}

#[test]
fn a_start_without_a_guard_needs_the_unguarded_flag_which_the_trace_stores() {
    assert_eq!(run("no_guard").one("start_failed"), "8 error 0");
    assert_eq!(contents(&run("once")).metadata["recorder.unguarded"], "on");
}

#[test]
fn a_recording_ends_before_its_size_limit_and_its_trace_is_whole() {
    let run = run("size_limit");
    assert_eq!((run.one("ended"), run.one("alive")), ("1", "1"));
    assert_eq!(run.one("end_reason"), (EndReason::SizeLimit as u64).to_string());
    let bytes = std::fs::metadata(&run.trace).unwrap().len();
    assert!((16 << 10..=128 << 10).contains(&bytes), "{bytes}");
    let trace = contents(&run);
    assert_eq!(trace.end_reason(), Some(EndReason::SizeLimit as u64));
    assert!(!trace.samples.is_empty());
}

/// Whether the test's machine runs arm64 programs (tests/README.md).
fn on_arm64() -> bool {
    Machine::current().arch() == Arch::Arm64
}

/// Whether six bytes of code end with a call through a register or, on x64, through memory relative
/// to the instruction pointer.
fn is_indirect_call(before: &[u8]) -> bool {
    if on_arm64() {
        let word = u32::from_le_bytes(before[2..].try_into().unwrap());
        return word & 0xffff_fc1f == 0xd63f_0000; // blr
    }
    before[0..2] == [0xff, 0x15] || before[4] == 0xff && before[5] & 0xf8 == 0xd0
}

/// The recorded parts of the executable are the bytes of its file.
fn assert_tables_match_the_file(trace: &Recorded, module: &Module) {
    let data = std::fs::read(host().file()).unwrap();
    let file = PeFile64::parse(&*data).unwrap();
    let base = file.nt_headers().optional_header().image_base();
    let sections: Vec<(u64, &[u8])> =
        file.sections().map(|section| (section.address() - base, section.data().unwrap_or(&[]))).collect();
    let mut kinds = BTreeSet::new();
    for table in module.tables.as_ref().unwrap() {
        kinds.insert(table.kind);
        let bytes = trace.blob(table.hash);
        assert_eq!(bytes.len(), table.len as usize);
        let unwind = [TableKind::ExceptionDirectory as u64, TableKind::UnwindInfo as u64];
        if !unwind.contains(&table.kind) {
            continue;
        }
        // On arm64 the linker puts the import address table on a page of the unwind data; the
        // records are checked below.
        if on_arm64() && table.kind == TableKind::UnwindInfo as u64 {
            continue;
        }
        // Bytes past a section's file data are zero or belong to the next page.
        let rva = u64::from(table.rva);
        let (start, content) =
            sections.iter().find(|(start, data)| (*start..start + data.len() as u64).contains(&rva)).unwrap();
        let content = &content[(rva - start) as usize..];
        let len = content.len().min(bytes.len());
        assert!(bytes[..len] == content[..len], "table at {rva:#x}");
    }
    let expected = [TableKind::Headers, TableKind::ExceptionDirectory, TableKind::UnwindInfo];
    assert!(expected.iter().all(|kind| kinds.contains(&(*kind as u64))), "{kinds:?}");
    // Every function's UNWIND_INFO is there.
    let tables = module.tables.as_ref().unwrap();
    let pdata = tables.iter().find(|table| table.kind == TableKind::ExceptionDirectory as u64).unwrap();
    let functions = trace.blob(pdata.hash);
    let unwind: Vec<&ImageTable> =
        tables.iter().filter(|table| table.kind == TableKind::UnwindInfo as u64).collect();
    // RUNTIME_FUNCTION ends with the RVA of the unwind data. On arm64, that word may be the data
    // itself, which its lowest bits show.
    let size = if on_arm64() { 8 } else { 12 };
    for function in functions.chunks_exact(size) {
        let rva = u32::from_le_bytes(function[size - 4..].try_into().unwrap());
        if rva != 0 && !(on_arm64() && rva & 3 != 0) {
            let table = unwind.iter().find(|table| (table.rva..table.rva + table.len).contains(&rva));
            let table = table.unwrap_or_else(|| panic!("no table holds {rva:#x}"));
            let bytes = trace.blob(table.hash);
            let rva = u64::from(rva);
            let in_section =
                |&&(start, data): &&(u64, &[u8])| (start..start + data.len() as u64).contains(&rva);
            let (start, data) = sections.iter().find(in_section).unwrap();
            let (recorded, file) = ((rva - u64::from(table.rva)) as usize, (rva - start) as usize);
            assert_eq!(bytes[recorded..recorded + 4], data[file..file + 4], "{rva:#x}");
        }
    }
}

/// The program, compiled once.
fn host() -> &'static HostProgram {
    static HOST: OnceLock<HostProgram> = OnceLock::new();
    HOST.get_or_init(|| HostProgram::compile(env!("CARGO_TARGET_TMPDIR"), "agent-host"))
}

fn run(scenario: &str) -> HostRun {
    run_with(scenario, &[])
}

/// Most runs of a scenario, when the emulator dies.
const RUNS: usize = 5;

fn run_with(scenario: &str, arguments: &[&str]) -> HostRun {
    let runs = (0..RUNS).map(|_| host().run(scenario, arguments));
    let mut runs = runs.skip_while(|run| scenario != "exit" && emulator_died_early(run));
    let run = runs.next().unwrap_or_else(|| panic!("{scenario}: the emulator died in each of {RUNS} runs"));
    let ended_well = run.status.success() || scenario == "exit" || emulator_died_at_exit(&run);
    assert!(ended_well, "{scenario}: {:?}\n{}", run.status, run.text);
    run
}

/// The program's last line before `main` returns.
const LAST_LINE: &str = "joined 1\n";

/// Whether qemu died after the program had finished its work, while `main` returned.
///
/// On the emulated arm64 machine that happens without any recorder: a program whose `main` returns
/// while four threads compute died of SIGSEGV in 51 of 60 runs.
fn emulator_died_at_exit(run: &HostRun) -> bool {
    const SIGSEGV: i32 = 11;
    // `timeout` ends by the signal by which its command ended.
    on_arm64() && run.status.signal() == Some(SIGSEGV) && run.text.ends_with(LAST_LINE)
}

/// Whether qemu died a little earlier: after the program printed its status, when the recording has
/// ended and the program's threads are made to return, and before its last line. Such a run is
/// repeated.
///
/// Without any recorder, with two busy loops per processor, a program whose five threads return
/// before `main` does died in this way in 3 of 60 runs. Wine may then report that the program ended
/// normally.
fn emulator_died_early(run: &HostRun) -> bool {
    let status_is_last = run.text.lines().last().is_some_and(|line| line.starts_with("message"));
    on_arm64() && status_is_last
}

/// The trace of a run. It must be sound in every scenario.
fn contents(run: &HostRun) -> Recorded {
    let trace = Recorded::open_sound(&run.trace);
    for module in trace.modules.values() {
        // The loader's notification may have kept the identity of a module that was gone when it
        // was read.
        let unreadable = module.flags.contains(ModuleFlags::HEADERS_UNREADABLE);
        assert!(module.has_pe_identity || unreadable, "{module:?}");
        assert!(module.identities != 0 || !module.has_tables(), "{module:?}");
    }
    trace
}
