//! Runs every command under limits on traces that an attacker could write: bombs, names and cuts.
//! `cli/tests/mutations.rs` has the tests that change one thing of a trace at a time.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stk_format::synth::Parts;
use stk_format::{BlockKind, Scratch, Trace};
use stk_tests::hostile::limits::{Run, START, run, trim};
use stk_tests::hostile::{bombs, names, small};
use stk_tests::wine::long;

/// Memory of a run, in bytes.
const MEMORY: u64 = 512 << 20;
/// Processor time of a run on a trace of a megabyte or less.
const CPU_LEAST: Duration = Duration::from_secs(2);
/// Processor time for each byte of a larger trace: 2 s a megabyte.
const CPU_PER_BYTE: Duration = Duration::from_micros(2);
/// Processor time that no trace may take.
const CPU_MOST: Duration = Duration::from_secs(10);
/// Descriptors of a run.
const FILES: u64 = 64;

/// Every command that reads a trace, in every style with different text output. `TRACE` stands for
/// the trace.
const COMMANDS: [&[&str]; 14] = [
    &["info", "TRACE"],
    &["info", "--all", "TRACE"],
    &["info", "--json", "TRACE"],
    &["verify", "-j", "2", "TRACE"],
    &["verify", "--walks", "TRACE"],
    &["stats", "-j", "2", "--no-default-symbols", "TRACE"],
    &["stats", "-j", "2", "--no-default-symbols", "--json", "TRACE"],
    &["dump", "--no-default-symbols", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "plain", "--explain", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "clrstack", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "json", "TRACE"],
    &["convert", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.speedscope.json"],
    &["convert", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.chrome.json"],
    &["symbols", "list", "--no-default-symbols", "TRACE"],
];
/// Those of [`COMMANDS`] that use different parts of the library.
const WAYS: [usize; 6] = [0, 3, 5, 7, 11, 13];

/// Runs a command on a trace. Returns everything that is wrong with its exit code, cost and output.
fn check(folder: &Path, command: &[&str], name: &str, file: &[u8]) -> Vec<String> {
    let out = format!("{name}.out");
    let fill = |part: &str| part.replace("TRACE", name).replace("OUT", &out);
    let arguments: Vec<String> = command.iter().map(|part| fill(part)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = run(folder, &arguments, FILES).unwrap();
    let mut wrong = Vec::new();
    let mut expect = |holds: bool, what: String| {
        if !holds {
            wrong.push(format!("{name}: stk {}: {what}", command.join(" ")));
        }
    };
    let error = String::from_utf8_lossy(&run.stderr);
    let end: String = error.chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
    // A walk that differs from the system's own is a valid result.
    let walks = command.contains(&"--walks");
    let ends = matches!(run.code, Some(0 | 1 | 4)) || walks && run.code == Some(6);
    expect(ends, format!("ended with {:?}: {end}", run.code));
    expect(!error.contains("panicked"), format!("panicked: {end}"));
    let fails = run.code == Some(1) && !walks;
    expect(!(fails && has_samples(file)), format!("failed though undamaged blocks hold samples: {end}"));
    let cpu = (CPU_PER_BYTE * file.len() as u32).clamp(CPU_LEAST, CPU_MOST);
    expect(run.cpu <= cpu, format!("took {:?} for {} bytes", run.cpu, file.len()));
    expect(run.peak <= MEMORY, format!("took {} MiB for {} bytes", run.peak >> 20, file.len()));
    let json = command.contains(&"--json") || command.contains(&"json");
    let (out_harm, error_harm) = (harm(&run.stdout).filter(|_| !json), harm(&run.stderr));
    expect(out_harm.is_none(), format!("stdout: {out_harm:?}"));
    expect(error_harm.is_none(), format!("stderr: {error_harm:?}"));
    if json && run.code != Some(1) {
        let read: Result<serde_json::Value, _> = serde_json::from_slice(&run.stdout);
        expect(read.is_ok(), format!("is no JSON: {:?}", read.err()));
    }
    if std::env::var_os("STK_HOSTILE_TIMES").is_some() {
        eprintln!("{name}: {} ms, {} MiB: stk {}", run.cpu.as_millis(), run.peak >> 20, command.join(" "));
    }
    wrong
}

/// Whether a block that can be read whole holds a sample.
fn has_samples(file: &[u8]) -> bool {
    let Ok(trace) = Trace::open(file) else { return false };
    let mut scratch = Scratch::new();
    let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    samples.any(|block| block.header.samples > 0 && trace.verify_block(block, &mut scratch).is_ok())
}

/// The text around the first character that a terminal does not only show: control characters
/// except line ends and tabs, and characters that change the writing direction.
fn harm(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let harmful = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let at = text.find(harmful)?;
    let before: Vec<char> = text[..at].chars().rev().take(60).collect();
    Some(before.into_iter().rev().chain(text[at..].chars().take(20)).collect())
}

/// A case: a name, the function that makes the trace, and the numbers of the commands to run on it.
type Case<'c> = (String, Box<dyn Fn() -> Vec<u8> + Send + Sync + 'c>, &'c [usize]);

/// Runs all cases on two threads. Panics with the list of all failures.
fn check_all(cases: &[Case<'_>]) {
    let folder = tempfile::tempdir().unwrap();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // This variable selects one class.
    let only = std::env::var("STK_HOSTILE_ONLY").ok();
    let work = || {
        while let Some((what, make, commands)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
                continue;
            }
            let turn = START.write().unwrap();
            let file = make();
            trim();
            drop(turn);
            let name = format!("{}.stk", what.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
            std::fs::write(folder.path().join(&name), &file).unwrap();
            for &command in *commands {
                let found = check(folder.path(), COMMANDS[command], &name, &file);
                wrong.lock().unwrap().extend(found);
            }
            let _ = std::fs::remove_file(folder.path().join(&name));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

const ALL: [usize; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

#[test]
fn bombs_stay_within_their_limits() {
    let bombs = bombs::all();
    assert!(bombs.len() >= 60, "{}", bombs.len());
    // A class's larger sizes show how the time grows. They run one reader each of metadata, of
    // samples and of stacks.
    let commands = |large| -> &[usize] {
        match (long(), large) {
            (true, _) => &ALL,
            (false, false) => &WAYS,
            (false, true) => &[0, 5, 7],
        }
    };
    let case =
        |(what, make, large): (String, bombs::Make, bool)| -> Case<'_> { (what, make, commands(large)) };
    let cases: Vec<Case<'_>> = bombs.into_iter().map(case).collect();
    check_all(&cases);
}

#[test]
fn invalid_names_do_no_harm_in_any_place() {
    let names = names::names();
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (place, make) in names::PLACES {
        for (i, name) in names.iter().enumerate() {
            cases.push((format!("{place}, name {i}"), Box::new(move || make(name)), &WAYS));
        }
    }
    assert!(cases.len() >= 180, "{}", cases.len());
    check_all(&cases);
}

#[test]
fn names_everywhere_are_text_in_every_command() {
    check_all(&[("everywhere".to_owned(), Box::new(names::everywhere), &ALL)]);
}

#[test]
fn json_keeps_a_name_exactly() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), names::everywhere()).unwrap();
    let run = run(folder.path(), &["info", "--json", "a.stk"], FILES).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let name = "\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\r\u{8}\u{202e}\u{2066}\0z";
    let names: BTreeSet<&str> = info["traces"][0]["threads"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|thread| thread["name"].as_str())
        .collect();
    assert!(names.contains(name), "{names:?}");
}

#[test]
fn a_cut_at_any_block_boundary_loses_only_later_blocks() {
    let traces = ["busy.stk", "mixed.stk"].map(|name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces").join(name);
        (name, std::fs::read(path).unwrap())
    });
    let small = small();
    let mut cases: Vec<Case<'_>> = Vec::new();
    for (name, file) in &traces {
        let trace = Trace::open(file).unwrap();
        let boundaries = trace.blocks().iter().map(|block| block.offset as usize);
        let boundaries: Vec<usize> = boundaries.chain([file.len()]).collect();
        for (n, &at) in boundaries.iter().enumerate() {
            // One command for each in turn, unless there is time for all commands.
            let commands: &[usize] = if long() { &WAYS } else { &WAYS[n % WAYS.len()..][..1] };
            cases.push((format!("{name} to {at}"), Box::new(move || file[..at].to_vec()), commands));
        }
    }
    for at in [0, 1, 127, 128, 129].into_iter().chain(boundaries_of(&small)) {
        let small = &small;
        cases.push((format!("small to {at}"), Box::new(move || small[..at].to_vec()), &WAYS));
    }
    check_all(&cases);
}

fn boundaries_of(file: &[u8]) -> Vec<usize> {
    Trace::open(file).unwrap().blocks().iter().map(|block| block.offset as usize).collect()
}

#[test]
fn data_beyond_the_memory_limit_is_left_out_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), small()).unwrap();
    let of = |memory: &str| -> Run {
        run(folder.path(), &["info", "--max-memory", memory, "a.stk"], FILES).unwrap()
    };
    let text = |run: &Run| String::from_utf8_lossy(&run.stdout).into_owned();
    let enough = of("1M");
    assert_eq!(enough.code, Some(0), "{}", text(&enough));
    let little = of("300");
    assert_eq!(little.code, Some(4), "{}", text(&little));
    assert!(text(&little).contains("--max-memory"), "{}", text(&little));
    assert_eq!(of("much").code, Some(2));
    // The symbols commands print the damage beside the list.
    let list = ["symbols", "list", "--no-default-symbols", "--max-memory", "300", "a.stk"];
    let list = run(folder.path(), &list, FILES).unwrap();
    let error = String::from_utf8_lossy(&list.stderr);
    assert_eq!(list.code, Some(4), "{error}");
    assert!(error.contains("--max-memory"), "{error}");
}

#[test]
fn json_of_many_traces_is_whole_even_if_one_of_them_fails() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.stk", "c.stk"] {
        std::fs::write(folder.path().join(name), small()).unwrap();
    }
    std::fs::write(folder.path().join("b.stk"), b"no trace").unwrap();
    for command in [&["info", "--json"][..], &["stats", "--json", "--no-default-symbols"]] {
        for (names, traces) in [(&["a.stk", "b.stk", "c.stk"][..], 2), (&["b.stk"], 0)] {
            let run = run(folder.path(), &[command, names].concat(), FILES).unwrap();
            assert_eq!(run.code, Some(1), "{command:?}");
            let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!((&json["version"], json["traces"].as_array().unwrap().len()), (&1.into(), traces));
        }
    }
}

#[test]
fn every_written_file_is_reported_although_another_trace_fails() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.stk", "b.stk", "c.stk"] {
        std::fs::write(folder.path().join(name), small()).unwrap();
    }
    std::fs::write(folder.path().join("b.stk"), b"no trace").unwrap();
    let arguments = ["convert", "--no-default-symbols", "a.stk", "b.stk", "c.stk", "-o", "out/"];
    let run = run(folder.path(), &arguments, FILES).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.code, Some(1), "{error}");
    assert_eq!(error.matches("stk: wrote ").count(), 2, "{error}");
    assert!(error.contains("b.stk"), "{error}");
}

#[test]
fn parts_of_a_real_trace_read_as_the_trace_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/busy.stk");
    let file = std::fs::read(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), &file).unwrap();
    std::fs::write(folder.path().join("b.stk"), Parts::take_apart(&file).unwrap().to_file()).unwrap();
    let stats = |name| {
        let run = run(folder.path(), &["stats", "--no-default-symbols", name], FILES).unwrap();
        assert_eq!(run.code, Some(0));
        let text = String::from_utf8(run.stdout).unwrap();
        text[text.find("Functions by").unwrap()..].to_owned()
    };
    assert_eq!(stats("a.stk"), stats("b.stk"));
}
