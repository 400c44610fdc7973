//! examples/busy, recorded and symbolized: known functions on known threads, with their lines.
//!
//! The expectations come from busy's sources and README, and from the trace's events as the
//! format's own reader returns them. The tests check the output of `stk convert`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Frame, Profile, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Program};

struct Run {
    recorded: Recorded,
    speedscope: Speedscope,
}

/// One recording for all tests of this file.
fn busy() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Folder::new("busy");
        let mut busy = Program::busy(&folder, 12);
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", "größe.stk", "-d", "8s"]);
        busy.ends_saying("checksum a9a6d267ba599d58");
        let recorded = Recorded::open(&folder.file("größe.stk"));
        let speedscope = Speedscope::of(folder.path(), "größe.stk", &wine::path("STK_BUSY_DIR"));
        Run { recorded, speedscope }
    })
}

#[track_caller]
fn thread(name: &str) -> &'static Profile {
    busy().speedscope.only(name)
}

fn source(file: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/busy").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (path, text)
}

/// The only line of a source file of busy that holds `code`.
fn line_of(file: &str, code: &str) -> u64 {
    let (_, text) = source(file);
    let mut lines = text.lines().enumerate().filter(|(_, line)| line.contains(code));
    let (line, _) = lines.next().unwrap_or_else(|| panic!("{file} does not hold '{code}'"));
    assert!(lines.next().is_none(), "{file} holds '{code}' more than once");
    line as u64 + 1
}

/// Checks that every frame of `function` on `profile` is in `file`, on a line of the function that
/// begins with the line that holds `head` and ends with the next line that is a closing brace.
fn is_in(profile: &Profile, function: &str, file: &str, head: &str) {
    let first = line_of(file, head);
    let (_, text) = source(file);
    let length =
        text.lines().skip(first as usize).position(|line| line == "}").expect("a closing brace") as u64;
    let frames: Vec<&Frame> =
        profile.stacks.iter().flat_map(|(_, _, stack)| stack).filter(|frame| frame.is(function)).collect();
    assert!(!frames.is_empty(), "no frame of {function} on {}", profile.name);
    for frame in frames {
        let name = frame.file.rsplit(['/', '\\']).next().unwrap_or_default();
        assert_eq!(name, file, "{function} on {}", profile.name);
        let inside = (first..=first + length + 1).contains(&frame.line);
        assert!(
            inside,
            "{function} at line {} of {file}, which is in {first} to {}",
            frame.line,
            first + length + 1
        );
    }
}

#[track_caller]
fn has(profile: &Profile, chain: &[&str]) {
    let shown = || profile.stacks.iter().map(|(_, _, stack)| stack).max_by_key(|stack| stack.len());
    assert!(
        profile.has_chain(chain),
        "{} never shows {chain:?}; its deepest stack: {:#?}",
        profile.name,
        shown()
    );
}

#[test]
fn every_stack_reaches_the_thread_start_or_says_why_not() {
    let speedscope = &busy().speedscope;
    let mut stacks = 0;
    for (_, stack) in speedscope.stacks() {
        stacks += 1;
        // A thread that is still being initialised starts in LdrInitializeThunk.
        let starts = ["RtlUserThreadStart", "LdrInitializeThunk"].iter().any(|name| stack[0].is(name));
        let start = starts || stack[0].name.starts_with("ntdll.dll");
        assert!(
            start || stk::incomplete(stack).is_some(),
            "a stack neither complete nor explained: {stack:#?}"
        );
    }
    assert!(stacks > 0);
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    assert!(complete > 0.99, "{:.2} % of the stacks reach the thread start", 100.0 * complete);
}

#[test]
fn deep_recursion_shows_every_level_with_its_line() {
    let recursion = thread("recursion");
    has(recursion, &["recursion_main", "recurse_even", "recurse_odd", "recurse_even", "recurse_odd"]);
    // At depth 0 the compiler calls the bottom by a jump: recurse_even is no longer on the stack
    // then, and must not be shown.
    has(recursion, &["recurse_even", "recurse_odd", "recursion_bottom"]);
    assert!(
        !recursion.has_chain(&["recurse_even", "recursion_bottom"]),
        "a frame that a tail call had replaced is shown"
    );
    is_in(
        recursion,
        "recurse_even",
        "recursion.cpp",
        "uint64_t recurse_even(unsigned depth, uint64_t seed) {",
    );
    is_in(recursion, "recursion_bottom", "recursion.cpp", "uint64_t recursion_bottom(uint64_t seed) {");
    // 151 calls, and 150 on the stack while the bottom works. Each lies on the line of its own
    // call.
    let calls = |stack: &[Frame]| {
        stack.iter().filter(|frame| frame.is("recurse_even") || frame.is("recurse_odd")).count()
    };
    let bottoms = recursion.stacks.iter().filter_map(|(_, _, stack)| {
        let at = stack.iter().position(|frame| frame.is("recursion_bottom"))?;
        Some(&stack[..at])
    });
    let (even, odd) = ("return mix(recurse_odd(depth - 1", "uint64_t below = recurse_even(depth - 1");
    for callers in bottoms {
        assert_eq!(calls(callers), 150);
        for frame in callers.iter().filter(|frame| frame.is("recurse_even") || frame.is("recurse_odd")) {
            let code = if frame.is("recurse_even") { even } else { odd };
            assert_eq!(frame.line, line_of("recursion.cpp", code), "{}", frame.name);
        }
    }
}

#[test]
fn leaf_functions_are_found_below_their_caller() {
    let leaves = thread("leaf loops");
    let mut seen = 0;
    for leaf in ["leaf_multiply", "leaf_divide", "leaf_shuffle"] {
        // How many of them are seen depends on the rate that the machine allows.
        if leaves.frame(leaf).is_some() {
            seen += 1;
            has(leaves, &["leaves_main", "leaf_loops", leaf]);
            is_in(leaves, leaf, "leaf_loops.cpp", &format!("static uint64_t {leaf}(uint64_t value) {{"));
        }
    }
    assert!(seen > 0, "no leaf function was seen");
}

#[test]
fn inlined_functions_are_frames_of_their_own_and_names_are_not_ascii() {
    let sizes = thread("größe");
    has(sizes, &["sizes_main", "measure_sizes", "measure_one", "rotate_and_add"]);
    is_in(sizes, "measure_sizes", "größe.cpp", "uint64_t measure_sizes(uint64_t seed) {");
    is_in(sizes, "measure_one", "inlined.hpp", "uint64_t measure_one(uint64_t sum, uint64_t value) {");
    is_in(sizes, "rotate_and_add", "inlined.hpp", "uint64_t rotate_and_add(uint64_t sum, uint64_t value) {");
    // An inlined function's caller is on the line of the call.
    let call = line_of("größe.cpp", "sum = measure_one(sum, i);");
    for (_, _, stack) in &sizes.stacks {
        for pair in stack.windows(2).filter(|pair| pair[1].is("measure_one")) {
            assert_eq!(pair[0].line, call, "{pair:?}");
        }
    }
}

#[test]
fn threads_that_wait_have_their_stacks_too() {
    has(thread("waiter"), &["waiter_main", "wait_for_event"]);
    is_in(thread("waiter"), "wait_for_event", "waiter.cpp", "bool wait_for_event(HANDLE event) {");
    has(thread("spawner"), &["spawner_main", "spawn_worker"]);
    has(thread("main"), &["busy_main", "run_parts"]);
}

/// A worker lives for a few hundredths of a second, in which an overloaded machine may not run the
/// sampler. So the test tries several times.
#[test]
fn threads_that_live_shortly_are_seen_with_their_names_and_stacks() {
    const TRIES: u32 = 20;
    let folder = Folder::new("workers");
    let busy = Program::busy(&folder, 0);
    for number in 1..=TRIES {
        let trace = format!("{number}.stk");
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", &trace, "-d", "3s"]);
        let speedscope = Speedscope::of(folder.path(), &trace, &wine::path("STK_BUSY_DIR"));
        let named = |profile: &&Profile| {
            profile.name.starts_with("worker ") && profile.frame("worker_main").is_some()
        };
        let Some(worker) = speedscope.threads.iter().find(named) else { continue };
        is_in(worker, "worker_main", "spawner.cpp", "DWORD WINAPI worker_main(void *argument) {");
        return;
    }
    panic!("no named short-lived thread was seen in {TRIES} recordings");
}

/// What a recording shows of the two DLLs that busy loads in turn.
struct PluginSamples {
    /// Samples in plugin_a_work and in plugin_b_work.
    right: [u64; 2],
    /// Samples in a DLL that was unloaded before its unwind data could be read.
    without_tables: u64,
    /// Whether one of them was loaded where the other one had lain.
    reused: bool,
}

/// Checks every sample of the thread `plugins` whose instruction pointer is in one of the DLLs.
#[track_caller]
fn plugin_samples(Run { recorded, speedscope }: &Run) -> PluginSamples {
    let plugins = speedscope.only("plugins");
    let [instance] = recorded.threads_named("plugins")[..] else { panic!("one thread 'plugins'") };
    let (mut right, mut without_tables) = ([0, 0], 0);
    for sample in recorded.samples_of(instance) {
        let holder = |name: &str| {
            recorded.modules_named(name).into_iter().find(|module| module.holds(sample.ip, sample.time))
        };
        let (a, b) = (holder("plugin_a.dll"), holder("plugin_ä.dll"));
        let Some(module) = a.or(b) else { continue };
        let time = recorded.header.nanoseconds(sample.time) as f64;
        let stack = plugins.at(time).unwrap_or_else(|| panic!("no stack at {time} ns"));
        let shows = |name: &str| stack.iter().any(|frame| frame.is(name));
        let (theirs, others) =
            if a.is_some() { ("plugin_a_work", "plugin_b_work") } else { ("plugin_b_work", "plugin_a_work") };
        assert!(!shows(others), "at {time} ns {theirs}'s DLL lay there, but the stack is {stack:#?}");
        // The trace says that the module was unloaded before its unwind data could be read, so the
        // stack ends there.
        if !module.has_tables() {
            without_tables += 1;
            continue;
        }
        assert!(shows("load_and_call"), "at {time} ns: {stack:#?}");
        // The loader calls the DLL's entry function when the DLL is loaded and unloaded.
        let by_loader = shows("LoadLibraryW") || shows("FreeLibrary");
        assert!(shows("plugin_run") || by_loader, "at {time} ns: {stack:#?}");
        right[usize::from(b.is_some())] += u64::from(shows(theirs));
    }
    for (seen, work, file) in
        [(right[0], "plugin_a_work", "plugin_a.cpp"), (right[1], "plugin_b_work", "plugin_b.cpp")]
    {
        if seen > 0 {
            is_in(plugins, work, file, &format!("uint64_t {work}(uint64_t seed) {{"));
            has(plugins, &["plugins_main", "use_plugins", "load_and_call", "plugin_run"]);
        }
    }
    let second = recorded.modules_named("plugin_ä.dll");
    let first = recorded.modules_named("plugin_a.dll");
    let reused = first.iter().any(|a| second.iter().any(|b| a.base == b.base && a.load != b.load));
    PluginSamples { right, without_tables, reused }
}

/// A DLL is loaded for a few hundredths of a second, in which an overloaded machine may not run the
/// sampler. So the test tries several times; what a recording does show must be right.
#[test]
fn a_reused_address_belongs_to_the_dll_that_lay_there_at_the_time() {
    const TRIES: u32 = 6;
    let mut seen = plugin_samples(busy());
    let folder = Folder::new("plugins");
    for number in 1..TRIES {
        if seen.reused && seen.right.iter().all(|samples| *samples > 0) {
            break;
        }
        let trace = format!("{number}.stk");
        let mut busy = Program::busy(&folder, 12);
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", &trace, "-d", "8s"]);
        busy.ends_saying("checksum a9a6d267ba599d58");
        let recorded = Recorded::open(&folder.file(&trace));
        let speedscope = Speedscope::of(folder.path(), &trace, &wine::path("STK_BUSY_DIR"));
        let more = plugin_samples(&Run { recorded, speedscope });
        seen.reused |= more.reused;
        seen.without_tables += more.without_tables;
        seen.right = [seen.right[0] + more.right[0], seen.right[1] + more.right[1]];
    }
    let PluginSamples { right, without_tables, reused } = seen;
    assert!(
        reused && right.iter().all(|samples| *samples > 0),
        "in {TRIES} recordings: samples in plugin_a_work and plugin_b_work {right:?}, an address used twice: {reused}"
    );
    assert!(
        without_tables * 50 <= right[0] + right[1],
        "{without_tables} without unwind data, {right:?} right"
    );
}

/// A number that `busy states` prints behind `name`, in milliseconds.
#[track_caller]
fn clock_ms(output: &str, name: &str) -> u64 {
    let words: Vec<&str> = output.split_whitespace().collect();
    let at = words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("no {name}: {output}"));
    words[at + 1].parse().unwrap_or_else(|_| panic!("{name}: {output}"))
}

/// Time in nanoseconds of the samples of a trace or of one of its threads that show this state.
fn state_ns(of: &Value, state: &str) -> u64 {
    of["states"][state]["weight_ns"].as_u64().unwrap_or_else(|| panic!("{state}: {of}"))
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name}: {of}"))
}

#[track_caller]
fn thread_of<'a>(stats: &'a Value, name: &str) -> &'a Value {
    let threads = stats["threads"].as_array().expect("threads");
    let found = threads.iter().find(|thread| thread["name"] == name);
    found.unwrap_or_else(|| panic!("no thread {name}: {stats}"))
}

/// Records `busy states` from its beginning to its end. Returns what `stk stats` says and what the
/// program printed.
#[track_caller]
fn record_states(folder: &Folder) -> (Value, String) {
    let exe = wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    let trace = wine::windows_path(&folder.file("states.stk"));
    let arguments = ["--force", "-o", &trace, "-r", "500", "--", &exe, "states", "8"];
    let finished = Inject::launch_in(folder, folder.path(), &arguments);
    finished.expect(0);
    let stats = stk::json(folder.path(), &["stats", "--json", "--full", "states.stk"]);
    (stats["traces"][0].clone(), finished.stdout)
}

/// Whether the CPU time of `busy states` is within 5 % of what the system's clocks showed at its
/// end: of the spinner, and of all its threads. The rest of the process' time is the recorder's.
fn clocks_agree(stats: &Value, printed: &str) -> bool {
    let agrees = |found: u64, clock: &str| {
        let clock = 1_000_000 * clock_ms(printed, clock);
        (clock / 100 * 95..=clock / 100 * 105).contains(&found)
    };
    let totals = &stats["totals"];
    let found = number(totals, "cpu_ns") + number(totals, "sampling_cpu_ns");
    let spinner = number(thread_of(stats, "spinner"), "cpu_ns");
    wine::measured(&format!("busy states: {found} ns found, spinner {spinner} ns; {}", printed.trim()));
    assert!(found <= 1_000_000 * clock_ms(printed, "process"), "{found}: {printed}");
    agrees(found, "threads") && agrees(spinner, "spinner")
}

/// How long a thread of states.stk waited for this reason, in nanoseconds: of its samples alone.
#[track_caller]
fn waited_ns(folder: &Folder, thread: &Value, reason: &str) -> u64 {
    let line = ["stats", "--json", "--full", "--thread", &thread["tid"].to_string(), "states.stk"];
    let alone = &stk::json(folder.path(), &line)["traces"][0];
    let waits = alone["waits"].as_array().expect("waits");
    let waited = waits.iter().find(|wait| wait["reason"] == reason);
    number(waited.unwrap_or_else(|| panic!("never waits for {reason}: {alone}")), "weight_ns")
}

/// Its threads are in one state each from their beginning to their end.
#[test]
fn a_thread_in_each_state_is_said_to_be_in_it_and_the_clocks_agree() {
    const TRIES: u32 = 3;
    let folder = Folder::new("states");
    // On a busy machine the recorder's last look may be long before the program's end.
    let mut recorded = (0..TRIES).map(|_| record_states(&folder));
    let agreeing = recorded.find(|(stats, printed)| clocks_agree(stats, printed));
    let (stats, printed) = agreeing.expect("one of three recordings in which the clocks agree");
    let metadata = Recorded::open(&folder.file("states.stk")).metadata;

    // Every nanosecond has one state, and no more threads ran than there are processors.
    let totals = &stats["totals"];
    let states = ["running", "waiting", "system_call", "unknown"];
    let sum = |of: &Value| states.iter().map(|state| state_ns(of, state)).sum::<u64>();
    assert_eq!(sum(&stats), number(totals, "weight_ns"), "{stats}");
    let processors: u64 = metadata["cpu.count"].parse().expect("a number");
    assert!(state_ns(&stats, "running") <= processors * number(totals, "duration_ns"), "{stats}");

    // A busy machine lets the spinner wait for a processor; it never waits for anything else.
    let spinner = thread_of(&stats, "spinner");
    let all = number(&spinner["all"], "weight_ns");
    assert!(state_ns(spinner, "waiting") + state_ns(spinner, "system_call") <= all / 20, "{spinner}");
    assert!(state_ns(spinner, "running") >= 950_000 * clock_ms(&printed, "spinner"), "{spinner}");
    // The first thread starts the others before, and waits for their ends after, which takes them a
    // while on a busy machine.
    let waited = waited_ns(&folder, thread_of(&stats, "main"), "sleep");
    assert!(waited >= 990 * 8_000_000, "main: {waited} ns");
    for (name, reason) in [("sleeper", "sleep"), ("blocked", "critical section"), ("blocked srw", "SRW lock")]
    {
        let thread = thread_of(&stats, name);
        let all = number(&thread["all"], "weight_ns");
        assert!(state_ns(thread, "waiting") >= all / 100 * 99, "{thread}");
        let waited = waited_ns(&folder, thread, reason);
        assert!(waited >= all / 100 * 99, "{name} waits {waited} ns of {all} for {reason}");
    }
}

/// Loops of tests/programs/burns.c.
const LOOPS: [&str; 5] = ["empty", "flag", "pause", "stosb", "read"];

/// Records tests/programs/burns.c with these loops from its beginning to its end, as a 64- or
/// 32-bit program. Returns what is wrong with each thread's CPU time and states.
fn burn_badly(folder: &Folder, width: u32, seconds: u32, loops: &[&str]) -> Vec<String> {
    let (folder_of_program, trace) = (env!("CARGO_TARGET_TMPDIR"), folder.file("burns.stk"));
    let compile = if width == 32 { wine::compiled_x86 } else { wine::compiled };
    let exe = wine::windows_path(&compile(folder_of_program, "burns"));
    let (trace, seconds) = (wine::windows_path(&trace), seconds.to_string());
    let mut arguments = vec!["--force", "-o", &trace, "--", &exe, &seconds];
    arguments.extend(loops);
    let finished = match width {
        32 => Inject::run_x86(folder, &arguments),
        _ => Inject::launch_in(folder, folder.path(), &arguments),
    };
    finished.expect(0);
    let stats = stk::json(folder.path(), &["stats", "--json", "--full", "burns.stk"]);
    let stats = &stats["traces"][0];
    assert_eq!(number(&stats["totals"], "unread_ns"), 0, "{stats}");
    let threads = stats["threads"].as_array().expect("threads");
    let mut wrong = Vec::new();
    for line in finished.stdout.lines() {
        let [name, tid, ms] = line.split_whitespace().collect::<Vec<_>>()[..] else { continue };
        let tid: u64 = tid.parse().expect("a thread id");
        let thread = threads.iter().find(|thread| thread["tid"] == tid).expect("the thread is recorded");
        let clock = 1_000_000 * ms.parse::<u64>().expect("milliseconds");
        // The system's count holds what being sampled costs.
        let (own, sampling) = (number(thread, "cpu_ns"), number(thread, "sampling_cpu_ns"));
        let cpu = own + sampling;
        let all = number(&thread["all"], "weight_ns");
        let [running, waiting] = ["running", "waiting"].map(|state| state_ns(thread, state));
        let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let found = format!(
            "{name} of {loops:?}, x{width}: CPU {own} ns and {sampling} ns of being sampled, {:.1} % of the system's \
             count {clock} ns; of {all} ns running {:.1} %, waiting {waiting} ns",
            percent(cpu, clock),
            percent(running, all)
        );
        wine::measured(&format!("burns: {found}"));
        let agrees = (clock / 100 * 95..=clock / 100 * 105).contains(&cpu);
        // Where the system let it run all the time, it is shown to.
        let quiet = clock >= all / 100 * 97;
        if !agrees || waiting != 0 || quiet && running + sampling < all / 100 * 95 {
            wrong.push(found);
        }
    }
    wrong
}

/// Threads whose stacks, and some whose registers, stand still while they use a processor: their
/// time is theirs by the system's count, and they never wait.
#[test]
fn a_loop_that_stands_still_has_its_cpu_time() {
    // The recorder's last look may be long before the end where the machine is loaded.
    const TRIES: u32 = 3;
    let folder = Folder::new("burns");
    let mut cases: Vec<(u32, u32, Vec<&str>)> =
        vec![(64, 3, vec!["empty", "read"]), (64, 3, vec!["stosb"]), (32, 3, vec!["empty", "flag"])];
    if wine::long() {
        let alone_and_twice = |name| [vec![name], vec![name, name]];
        let loops = || LOOPS.into_iter().flat_map(alone_and_twice);
        cases = [64, 32].into_iter().flat_map(|width| loops().map(move |loops| (width, 8, loops))).collect();
    }
    for (width, seconds, loops) in cases {
        let mut tries = (0..TRIES).map(|_| burn_badly(&folder, width, seconds, &loops));
        let wrong: Vec<Vec<String>> = tries.by_ref().take_while(|wrong| !wrong.is_empty()).collect();
        assert!(wrong.len() < TRIES as usize, "{wrong:#?}");
    }
}
