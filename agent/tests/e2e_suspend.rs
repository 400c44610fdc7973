//! How agent.dll suspends threads, under Wine: threads that do not stop, and a sampler frozen in
//! each phase of a suspension (`tests/host.c`).
//!
//! Environment: see tests/README.md (`STK_WINE`, `STK_WINDOWS_BIN`, `WINEPREFIX`). Rates and times
//! are not asserted: the machine may be loaded.

#![cfg(not(windows))]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use stk_format::{BlockKind, Decoded, Scratch, Trace};
use stk_schema::event::{DropReason, Dropped, EndReason, Event};
use stk_schema::guard;

#[test]
fn while_a_thread_does_not_stop_the_others_are_sampled_and_nothing_is_held() {
    let run = Run::of("stubborn", &[]);
    assert_eq!(run.all("captured"), ["0"; 3], "marks in the trace");
    for (key, value) in [
        ("sampled_on", "1"),
        ("locks_free", "1"),
        ("still_blocked", "1"),
        ("held", "0"),
        ("working", "1"),
        ("sampled_after", "1"),
        ("stop", "0"),
        ("alive", "1"),
        ("left", "1"),
    ] {
        assert_eq!(run.one(key), value, "{key}: {:?}", run.output);
    }
    let trace = Contents::read(&run.trace);
    assert_eq!(trace.end, Some(EndReason::Stopped as u64));
    let stubborn = trace.thread("stubborn");
    let [from, to, after] = [1, 2, 3].map(|tag| trace.marks[&tag]);
    // The span is told with its thread and the time when it was asked, which was before the spare
    // took over.
    let missed: Vec<_> = trace.dropped.iter().filter(|dropped| dropped.thread == stubborn).collect();
    let [missed] = missed[..] else { panic!("one loss of the stubborn thread: {missed:?}") };
    assert_eq!((missed.reason, missed.count), (DropReason::NotStopped as u64, 1));
    assert!(missed.time < from, "{missed:?}, {from}");
    // While the call that asked it has not returned, it alone is missing ...
    let between: BTreeSet<u64> = trace.sampled(from, to).collect();
    for name in ["shallow", "tiefer Fäden 🧵"] {
        assert!(between.contains(&trace.thread(name)), "{name}: {between:?}");
    }
    assert!(!between.contains(&stubborn));
    // ... and a few seconds later it is sampled again.
    assert!(trace.sampled(to, after).any(|thread| thread == stubborn), "not until {after}");
}

#[test]
fn when_all_samplers_are_stuck_they_hold_nothing_and_the_last_goes_on_later() {
    let run = Run::of("stubborn_three", &[]);
    for (key, value) in [
        ("locks_free", "1"),
        ("still_blocked", "1"),
        ("held", "0"),
        ("working", "1"),
        ("sampled_after", "1"),
        ("stop", "0"),
        ("alive", "1"),
        ("left", "1"),
    ] {
        assert_eq!(run.one(key), value, "{key}: {:?}", run.output);
    }
    let trace = Contents::read(&run.trace);
    assert_eq!(trace.end, Some(EndReason::Stopped as u64));
    let threads = trace.dropped.iter().filter(|dropped| dropped.thread != 0);
    assert_eq!(
        threads.map(|dropped| dropped.thread).collect::<BTreeSet<_>>().len(),
        3,
        "{:?}",
        trace.dropped
    );
}

/// What the guard process finds when sampler and watchdog are gone: the word says the phase, and
/// one ResumeThread frees the thread.
#[test]
fn a_sampler_frozen_in_any_phase_leaves_a_word_that_names_the_thread_it_holds() {
    let phases = [
        guard::ASKING,
        guard::ASKED,
        guard::STOPPED,
        guard::RESCUING,
        guard::UNDO,
        guard::WALKING,
        guard::RESUMING,
    ];
    for phase in phases {
        let run = Run::of("freeze", &[&phase.to_string()]);
        assert_eq!(run.one("version"), guard::GUARD_VERSION.to_string());
        assert_eq!(run.one("phase"), phase.to_string());
        assert_eq!(run.one("unchanged"), "1", "in phase {phase} the watchdog leaves the suspension alone");
        // ResumeThread gives the suspend count before.
        assert_eq!(run.one("suspended"), "1", "in phase {phase}");
    }
}

// ---- running ----

struct Run {
    output: Vec<(String, String)>,
    trace: PathBuf,
}

impl Run {
    fn of(scenario: &str, arguments: &[&str]) -> Run {
        let folder = machine_folder().join(format!("suspend-{scenario}"));
        std::fs::create_dir_all(&folder).unwrap();
        let trace = folder.join("out.stk");
        let output = Command::new("timeout")
            .args(["240", &environment("STK_WINE")])
            .arg(host_program())
            .arg(windows_path(&Path::new(&environment("STK_WINDOWS_BIN")).join("agent.dll")))
            .arg(windows_path(&trace))
            .arg(scenario)
            .args(arguments)
            .current_dir(&folder)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        assert!(output.status.success(), "{scenario}: {:?}\n{text}", output.status);
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let output = lines.map(|(key, value)| (key.to_string(), value.to_string())).collect();
        Run { output, trace }
    }

    fn all(&self, key: &str) -> Vec<&str> {
        self.output.iter().filter(|(name, _)| name == key).map(|(_, value)| value.as_str()).collect()
    }

    fn one(&self, key: &str) -> &str {
        self.all(key).last().unwrap_or_else(|| panic!("the program printed no {key}: {:?}", self.output))
    }
}

fn environment(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run tests/run.sh, or see tests/README.md"))
}

fn windows_path(path: &Path) -> String {
    format!("Z:{}", path.display().to_string().replace('/', "\\"))
}

/// A folder of this machine's own: two machines are tested at once.
fn machine_folder() -> PathBuf {
    let machine = std::env::var("STK_MACHINE").unwrap_or_else(|_| "wine8".to_owned());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(machine);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The program, compiled once; not the file of e2e_agent, which may be running.
fn host_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = machine_folder().join("suspend-host.exe");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host.c");
        let status = Command::new("x86_64-w64-mingw32-gcc")
            .args(["-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-o"])
            .arg(&program)
            .arg(&source)
            .status()
            .expect("x86_64-w64-mingw32-gcc runs (package gcc-mingw-w64-x86-64)");
        assert!(status.success());
        program
    })
}

// ---- reading ----

/// What these tests ask of a trace.
#[derive(Default)]
struct Contents {
    /// Instances by name.
    names: BTreeMap<String, u64>,
    /// Thread and time of each sample.
    samples: Vec<(u64, u64)>,
    /// Times of the samples that the program asked for, by tag.
    marks: BTreeMap<u64, u64>,
    dropped: Vec<Dropped>,
    end: Option<u64>,
}

impl Contents {
    fn read(path: &Path) -> Contents {
        let data = std::fs::read(path).unwrap();
        let trace = Trace::open(&data).unwrap();
        let mut scratch = Scratch::new();
        assert!(trace.is_complete(), "{:?}", trace.damage());
        assert_eq!(trace.verify(&mut scratch), []);
        let mut contents = Contents::default();
        for block in trace.blocks() {
            if block.header.kind == BlockKind::Samples {
                let mut samples = trace.samples(block, &mut scratch).unwrap();
                while let Some(decoded) = samples.next().unwrap() {
                    let Decoded::Sample(sample) = decoded else { continue };
                    match sample.tag {
                        Some(tag) => drop(contents.marks.insert(tag, sample.time)),
                        None => contents.samples.push((sample.thread, sample.time)),
                    }
                }
                continue;
            }
            for event in trace.events(block, &mut scratch).unwrap() {
                match event.unwrap() {
                    Event::ThreadName { instance, name, .. } => {
                        contents.names.insert(String::from_utf8_lossy(name).into_owned(), instance);
                    }
                    Event::Dropped(dropped) => contents.dropped.push(dropped),
                    Event::End(end) => contents.end = Some(end.reason),
                    _ => {}
                }
            }
        }
        contents
    }

    #[track_caller]
    fn thread(&self, name: &str) -> u64 {
        *self.names.get(name).unwrap_or_else(|| panic!("no thread {name}: {:?}", self.names))
    }

    /// Threads sampled within a span of time.
    fn sampled(&self, from: u64, to: u64) -> impl Iterator<Item = u64> {
        self.samples.iter().filter(move |(_, time)| (from..to).contains(time)).map(|&(thread, _)| thread)
    }
}
