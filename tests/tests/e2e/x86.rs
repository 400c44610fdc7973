//! 32-bit programs: recorded by inject32.exe and agent32.dll in a 32-bit Wine, unwound from code,
//! FrameData and frame pointers.
//!
//! The expectations come from busy's sources and README, as in busy.rs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use stk_schema::Arch;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Frame, Profile, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

struct Run {
    recorded: Recorded,
    /// Converted with the image files of busy and of Wine.
    speedscope: Speedscope,
    /// Folder of the trace.
    folder: Folder,
}

/// Folder of the system's 32-bit DLLs. On x86 the unwinder needs their code.
fn system_images() -> PathBuf {
    Machine::current().x86_system()
}

/// One recording for all tests of this file.
fn busy() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Folder::new("busy32");
        let home = wine::path("STK_BUSY32_DIR");
        let mut busy = Program::ready(&folder, &home, &home.join("busy.exe"), &["12"]);
        Inject::record_x86(&folder, &["--pid", &busy.pid(), "-o", "busy32.stk", "-d", "7s"]);
        busy.ends_saying("checksum a9a6d267ba599d58");
        let recorded = Recorded::open(&folder.file("busy32.stk"));
        let symbols = PathBuf::from(format!("{};{}", home.display(), system_images().display()));
        let speedscope = Speedscope::of(folder.path(), "busy32.stk", &symbols);
        Run { recorded, speedscope, folder }
    })
}

#[track_caller]
fn thread(name: &str) -> &'static Profile {
    busy().speedscope.only(name)
}

#[track_caller]
fn has(profile: &Profile, chain: &[&str]) {
    let shown = || profile.stacks.iter().map(|(_, _, stack)| stack).max_by_key(|stack| stack.len());
    assert!(profile.has_chain(chain), "{} never shows {chain:?}: {:#?}", profile.name, shown());
}

/// The only line of a source file of busy that holds `code`.
fn line_of(file: &str, code: &str) -> u64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/busy").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.contains(code));
    let (line, _) = lines.next().unwrap_or_else(|| panic!("{file} does not hold '{code}'"));
    assert!(lines.next().is_none(), "{file} holds '{code}' more than once");
    line as u64 + 1
}

/// Shares of the reasons why stacks are incomplete, for messages.
fn reasons(speedscope: &Speedscope) -> Vec<(String, f64)> {
    let all: BTreeSet<&str> = speedscope.stacks().filter_map(|(_, stack)| stk::incomplete(stack)).collect();
    let share = |reason: &str| speedscope.share(|stack| stk::incomplete(stack) == Some(reason));
    all.iter().map(|reason| ((*reason).to_owned(), share(reason))).collect()
}

#[test]
fn a_32_bit_trace_is_sound_and_says_what_it_is() {
    let Run { recorded, folder, .. } = busy();
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.header.arch, Arch::X86);
    assert!(recorded.samples.iter().all(|sample| sample.ip >> 32 == 0), "a 64-bit address");
    // The recorder requests CONTEXT_CONTROL and CONTEXT_INTEGER with CONTEXT_EXCEPTION_REQUEST and
    // stores the answer. (A sample that repeats the last stack of a block has none.)
    let replies: Vec<u32> = recorded.samples.iter().filter_map(|sample| sample.context_reply).collect();
    assert!(!replies.is_empty() && replies.iter().all(|reply| reply & 0x1_0003 == 0x1_0003), "{replies:x?}");
    let deepest = recorded.samples.iter().map(|sample| sample.stack).max().unwrap_or(0);
    assert!(deepest > 4 << 10, "the deepest stack has {deepest} bytes only");
    for (command, text) in [("info", "x86"), ("verify", "busy32.stk")] {
        let ran = stk::run(folder.path(), &[command, "busy32.stk"]);
        assert_eq!(ran.code, Some(0), "stk {command}\n{}{}", ran.stdout, ran.stderr);
        assert!(ran.stdout.contains(text), "stk {command} does not say {text}:\n{}", ran.stdout);
    }
    let symbols = wine::path("STK_BUSY32_DIR").display().to_string();
    let ran = stk::run(folder.path(), &["dump", "busy32.stk", "--style", "k", "-y", &symbols]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("ChildEBP") && !ran.stdout.contains("Child-SP"), "{}", ran.stdout);
}

#[test]
fn x86_stacks_reach_the_thread_start_or_say_why_not() {
    let speedscope = &busy().speedscope;
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    assert!(complete > 0.95, "{:.2} %: {:?}", 100.0 * complete, reasons(speedscope));
    // Every thread begins in kernel32's BaseThreadInitThunk, which ntdll's start function calls,
    // under Wine in three steps. A chain of frame pointers (which is all that Wine's own DLLs have)
    // can skip a function that has not made its frame yet.
    let ends: Vec<_> = speedscope.stacks().filter(|(_, stack)| stk::incomplete(stack).is_none()).collect();
    let passed_by =
        ends.iter().filter(|(_, stack)| !stack.iter().take(4).any(|frame| frame.is("BaseThreadInitThunk")));
    assert!(passed_by.clone().count() * 50 <= ends.len(), "{:#?}", passed_by.collect::<Vec<_>>());
}

#[test]
fn x86_functions_have_their_names_and_lines() {
    let recursion = thread("recursion");
    has(recursion, &["recursion_main", "recurse_even", "recurse_odd", "recurse_even", "recurse_odd"]);
    let (even, odd) = ("return mix(recurse_odd(depth - 1", "uint64_t below = recurse_even(depth - 1");
    let calls = |frame: &&Frame| frame.is("recurse_even") || frame.is("recurse_odd");
    let mut bottoms = 0;
    for (_, _, stack) in &recursion.stacks {
        let Some(at) = stack.iter().position(|frame| frame.is("recursion_bottom")) else { continue };
        bottoms += 1;
        for frame in stack[..at].iter().filter(calls) {
            let code = if frame.is("recurse_even") { even } else { odd };
            assert_eq!(frame.line, line_of("recursion.cpp", code), "{}", frame.name);
        }
        let count = stack[..at].iter().filter(calls).count();
        assert!((150..=151).contains(&count), "{count} calls above the bottom");
    }
    assert!(bottoms > 0, "the bottom of the recursion was never seen");
    has(thread("größe"), &["sizes_main", "measure_sizes", "measure_one", "rotate_and_add"]);
    has(thread("waiter"), &["waiter_main", "wait_for_event"]);
    has(thread("spawner"), &["spawner_main", "spawn_worker"]);
    has(thread("main"), &["busy_main", "run_parts"]);
    has(thread("plugins"), &["plugins_main", "use_plugins", "load_and_call"]);
}

/// Uses the PDBs' FrameData without image files. busy's own frames do not need the code.
#[test]
fn frame_data_alone_leads_through_busys_frames() {
    let folder = &busy().folder;
    let pdbs = folder.file("pdbs");
    std::fs::create_dir_all(&pdbs).expect("ours");
    for entry in std::fs::read_dir(wine::path("STK_BUSY32_DIR")).expect("busy was built") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|extension| extension == "pdb") {
            std::fs::copy(&path, pdbs.join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    let speedscope = Speedscope::of(folder.path(), "busy32.stk", &pdbs);
    let found = speedscope.named("recursion");
    let [recursion] = found[..] else { panic!("one thread 'recursion'") };
    has(recursion, &["recursion_main", "recurse_even", "recurse_odd", "recurse_even", "recurse_odd"]);
    let stats = stk::json(
        folder.path(),
        &["dump", "busy32.stk", "--style", "json", "-y", &pdbs.display().to_string()],
    );
    let text = stats.to_string();
    assert!(text.contains("frame-data"), "no frame was found by FrameData: {text}");
}

/// A third-party 32-bit MSVC program without a PDB. The few stacks that cannot be followed to the
/// thread's start end with a reason, because stk searches stacks only on request.
#[test]
fn cmake_for_x86_is_recorded_to_the_thread_start_or_says_why_not() {
    let folder = Folder::new("cmake32");
    let exe = wine::path("STK_FETCH_DIR").join("cmake32/cmake/data/bin/cmake.exe");
    let mut cmake = Program::cmake(&folder, &exe);
    Inject::record_x86(&folder, &["--name", "cmake.exe", "-o", "cmake32.stk", "-d", "5s"]);
    assert!(cmake.is_running(), "cmake ended: {}", cmake.output());
    let recorded = Recorded::open(&folder.file("cmake32.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    let bin = exe.parent().expect("a folder").display().to_string();
    let symbols = PathBuf::from(format!("{bin};{}", system_images().display()));
    let speedscope = Speedscope::of(folder.path(), "cmake32.stk", &symbols);
    for (_, stack) in speedscope.stacks() {
        let complete = stk::incomplete(stack).is_none();
        let start = stack.iter().take(4).any(|frame| frame.is("BaseThreadInitThunk"));
        assert_eq!(
            complete,
            start,
            "a stack neither complete nor explained: {:#?}",
            &stack[..stack.len().min(5)]
        );
    }
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    wine::measured(&format!("cmake for x86, no PDB: {:.1} % of stacks complete", 100.0 * complete));
    assert!(complete > 0.87, "{:.2} %: {:?}", 100.0 * complete, reasons(&speedscope));
    let frames = speedscope.stacks().map(|(_, stack)| stack.len()).max().unwrap_or(0);
    assert!(frames > 64, "the deepest stack has {frames} frames only");
}
