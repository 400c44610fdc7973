//! The functions by which a program captures itself, on the example `examples/capture`, which
//! records itself; and what `--stack-words pointers` leaves of its secrets.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use stk_format::{BlockKind, Scratch, Trace};
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Machine};

/// What the program printed, and its trace.
struct Run {
    /// Where the program and its PDB lie.
    program: PathBuf,
    reported: HashMap<String, String>,
    trace: PathBuf,
    folder: Folder,
}

impl Run {
    fn of(name: &str, more: &[&str]) -> Run {
        let agent = wine::path("STK_WINDOWS_BIN").join("agent.dll");
        Run::of_program(name, wine::path("STK_CAPTURE_DIR"), &agent, more)
    }

    /// Of the program in this folder, with this agent.
    fn of_program(name: &str, program: PathBuf, built: &Path, more: &[&str]) -> Run {
        Run::within(wine::LIMIT, name, program, built, more).unwrap_or_else(|why| panic!("{why}"))
    }

    /// As [`Run::of_program`]; an error if the program takes more seconds than these.
    fn within(
        seconds: u32,
        name: &str,
        program: PathBuf,
        built: &Path,
        more: &[&str],
    ) -> Result<Run, String> {
        let folder = Folder::new(name);
        let trace = folder.file("capture.stk");
        let agent = folder.file("agent.dll");
        std::fs::copy(built, &agent).expect("the agent");
        let mut command = wine::command(&program.join("capture.exe"));
        command.arg(wine::windows_path(&agent)).arg(wine::windows_path(&trace)).args(more);
        let output = wine::output_within(seconds, &mut command)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Emulated for arm64, a program that ends while another thread still ends dies of SIGSEGV,
        // also without the agent. It has done all that it does.
        let emulated = Machine::current().is_emulated() && text.contains("after_stop ");
        assert!(output.status.success() || emulated, "{text}");
        let reported = text.lines().filter_map(|line| line.trim().split_once(' '));
        let reported = reported.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Run { program, reported, trace, folder })
    }

    fn number(&self, name: &str) -> u64 {
        let reported = self.reported.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.reported));
        reported.parse().unwrap_or_else(|error| panic!("{name} {reported}: {error}"))
    }

    /// The functions of the capture with this tag, innermost first.
    fn stack(&self, tag: &str) -> String {
        let trace = self.trace.to_str().expect("UTF-8");
        let symbols = self.program.to_str().expect("UTF-8");
        stk::run(self.folder.path(), &["dump", trace, "--tag", tag, "-y", symbols]).stdout
    }

    /// The event bytes of its samples.
    fn samples(&self) -> Vec<u8> {
        let bytes = std::fs::read(&self.trace).expect("a trace");
        let trace = Trace::open(&bytes).expect("a trace");
        assert!(trace.is_complete() && trace.damage().is_empty());
        let mut scratch = Scratch::new();
        let blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
        blocks.flat_map(|block| trace.payload(block, &mut scratch).expect("a block").to_vec()).collect()
    }
}

fn is_before(text: &str, first: &str, second: &str) -> bool {
    text.find(first).zip(text.find(second)).is_some_and(|(first, second)| first < second)
}

#[test]
fn a_program_captures_marks_and_walks_itself() {
    captures_marks_and_walks(&Run::of("e2e-capture", &[]));
}

#[test]
fn a_32_bit_program_captures_marks_and_walks_itself() {
    let agent = wine::path("STK_WINDOWS32_BIN").join("agent32.dll");
    captures_marks_and_walks(&Run::of_program(
        "e2e-capture-x86",
        wine::path("STK_CAPTURE32_DIR"),
        &agent,
        &[],
    ));
}

#[track_caller]
fn captures_marks_and_walks(run: &Run) {
    // Before a recording and after it, captures and marks say that there is none.
    for name in ["before_start", "mark_before", "after_stop"] {
        assert_eq!(run.number(name), 1, "{name}");
    }
    for name in ["thread_named", "start", "mark", "capture", "exception", "secrets", "stop"] {
        assert_eq!(run.number(name), 0, "{name}");
    }
    for name in ["no_mark", "bad_mark", "no_context"] {
        assert_eq!(run.number(name), 3, "{name}");
    }
    // Walks need no recording, begin at their caller, leave out and end as asked.
    assert!(run.number("before_frames") >= 2 && run.number("frames") >= 4);
    for name in ["innermost_first", "skipped_one", "exception_in_raiser"] {
        assert_eq!(run.number(name), 1, "{name}");
    }
    assert_eq!(run.number("at_most_two"), 2);
    assert!(run.number("captures_taken") >= 8);

    let (own, raised) = (run.stack("1"), run.stack("2"));
    assert!(is_before(&own, "capture_here", "main+"), "{own}");
    assert!(is_before(&raised, "RaiseException", "raise_here") && is_before(&raised, "raise_here", "main+"));
    for stack in [&own, &raised] {
        // The recorder's own frames are no part of a stack, which reaches the thread's start.
        assert!(!stack.contains("agent!") && !stack.contains("agent.dll"), "{stack}");
        assert!(stack.contains("BaseThreadInitThunk"), "{stack}");
    }
    let trace = run.trace.to_str().expect("UTF-8");
    let events = stk::run(run.folder.path(), &["events", trace, "--kind", "mark,capture"]).stdout;
    assert!(events.contains("half way: ä") && !events.contains("too early"), "{events}");
    assert!(
        is_before(&events, "half way", "tag 1 (0x1)") && is_before(&events, "tag 1 (0x1)", "tag 2 (0x2)")
    );
    assert!(events.contains("main thread ä"), "{events}");
    wine::measured(&format!(
        "capture of a stack of over 8 KB: {} us at best; backtrace of {} frames: {} us",
        run.reported["capture_us"], run.reported["backtrace_frames"], run.reported["backtrace_us"]
    ));
}

/// The sampler is not woken for each capture: the thread that ends the process stores what waits.
#[test]
fn a_capture_right_before_the_process_ends_is_in_the_trace() {
    const SECONDS: u32 = 30;
    let agent = wine::path("STK_WINDOWS_BIN").join("agent.dll");
    // If the sampler is terminated while it changes its block, the capture is lost. If it is
    // terminated while it holds the program's thread, nobody resumes that: the program has no guard
    // and breaks the promise of STK_FLAG_UNGUARDED to stop the recording first. Under load that
    // happens once in 500 runs.
    let stored = (0..4).find_map(|_| {
        let program = wine::path("STK_CAPTURE_DIR");
        let run = Run::within(SECONDS, "e2e-capture-exit", program, &agent, &["--exit"]).ok()?;
        assert_eq!(run.number("last"), 0);
        let trace = run.trace.to_str().expect("UTF-8");
        let events = stk::run(run.folder.path(), &["events", trace, "--kind", "capture"]).stdout;
        events.contains("tag 5 (0x5)").then(|| run.stack("5"))
    });
    let stack = stored.expect("the capture is in a trace");
    assert!(is_before(&stack, "exit_here", "BaseThreadInitThunk"), "{stack}");
}

#[test]
fn with_the_trigger_api_each_capture_of_the_program_leaves_a_mark_too() {
    let marks = |run: &Run| {
        let trace = run.trace.to_str().expect("UTF-8");
        let events = stk::json(run.folder.path(), &["events", trace, "--kind", "mark", "--json"]);
        let events = events["traces"][0]["events"].as_array().expect("a list").clone();
        let texts = events.iter().map(|event| event["text"].as_str().expect("a text").to_owned());
        texts.filter(|text| text.starts_with("trigger api: ")).collect::<Vec<_>>()
    };
    let run = Run::of("e2e-capture-api", &["--trigger-api"]);
    captures_marks_and_walks(&run);
    let found = marks(&run);
    // stk_capture, stk_capture_context, stk_capture among secrets and with another DLL; then a
    // hundred and more in a fraction of a second, of which some have no mark.
    let (first, rest) = found.split_at(4.min(found.len()));
    assert_eq!(first, [1, 2, 3, 4].map(|tag| format!("trigger api: tag {tag}")));
    assert!(!rest.is_empty() && rest.iter().all(|text| text == "trigger api: tag 9"), "{rest:?}");
    assert!(marks(&Run::of("e2e-capture-no-api", &[])).is_empty());
}

/// Eight bytes in a row of what `keep_secrets` of the example has in its locals.
fn secrets() -> Vec<(&'static str, Vec<u8>)> {
    let wide: Vec<u8> = "Pa$$w\u{f6}rd of Alice".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let number = 0x5ec2_e7d1_5c0d_e42f_u64;
    vec![
        ("text", b"orse bat".to_vec()),
        ("UTF-16", wide[8..16].to_vec()),
        ("number", number.to_le_bytes().to_vec()),
        ("another number", (number ^ 1).to_le_bytes().to_vec()),
        ("double", 1234.56789f64.to_le_bytes().to_vec()),
        ("float", 1_234.567_9_f32.to_le_bytes().to_vec()),
    ]
}

fn holds(bytes: &[u8], secret: &[u8]) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret)
}

#[test]
fn only_pointers_leave_no_secret_in_the_trace_and_the_same_stacks() {
    let (all, pointers) = (Run::of("e2e-capture-all", &[]), Run::of("e2e-capture-pointers", &["--pointers"]));
    let (in_all, in_pointers) = (all.samples(), pointers.samples());
    for (name, secret) in secrets() {
        assert!(holds(&in_all, &secret), "{name}: the plain trace has it");
        assert!(!holds(&in_pointers, &secret), "{name}");
    }
    for tag in ["1", "2", "3"] {
        let functions = |run: &Run| -> Vec<String> {
            let stack = run.stack(tag);
            let frames = stack.lines().skip(2).filter_map(|line| line.split_whitespace().nth(2));
            frames.map(str::to_owned).collect()
        };
        let (whole, redacted) = (functions(&all), functions(&pointers));
        assert!(whole.len() >= 5 && whole == redacted, "{whole:?} {redacted:?}");
    }
    let trace = pointers.trace.to_str().expect("UTF-8");
    let info = stk::run(pointers.folder.path(), &["info", trace]).stdout;
    assert!(info.contains("redacted") && info.contains("--stack-words pointers"), "{info}");
    redacts_the_plain_one(&all);
}

/// `stk redact` finds the same secrets.
fn redacts_the_plain_one(all: &Run) {
    let copy = all.folder.file("copy.stk");
    let (trace, out) = (all.trace.to_str().expect("UTF-8"), copy.to_str().expect("UTF-8"));
    stk::run(all.folder.path(), &["redact", trace, "-o", out]);
    let bytes = std::fs::read(Path::new(out)).expect("a copy");
    let trace = Trace::open(&bytes).expect("a trace");
    let mut scratch = Scratch::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let raw = trace.payload(block, &mut scratch).expect("a block");
        for (name, secret) in secrets() {
            assert!(!holds(raw, &secret), "{name}");
        }
    }
}
