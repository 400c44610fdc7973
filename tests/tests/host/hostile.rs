//! Runs every command under limits on traces that an attacker could write: bombs, names and cuts.
//! `cli/tests/it/mutations.rs` has the tests that change one thing of a trace at a time.
#![cfg(unix)]

use std::collections::BTreeSet;
use std::fmt::{Display, Formatter};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stk_format::{BlockKind, Scratch, Trace};
use stk_tests::hostile::limits::{
    CPU_LEAST, LOOKED_AT, MEMORY, Run, START, cpu_limit, other_program, run, run_with, trim,
};
use stk_tests::hostile::shown::{forged, harm};
use stk_tests::hostile::{bombs, names, small};
use stk_tests::synth::{Parts, Random};
use stk_tests::wine::long;

/// How many times as many bombs, names and cuts there are with `--long`.
const LONGER: usize = 10;
/// Descriptors of a run.
const FILES: u64 = 64;

/// Every command that reads a trace, in every style with different text output. `TRACE` stands for
/// the trace, or for several where [`takes_many`]; `DATASET` for the dataset of it. What reads
/// symbol files is in `hostile_symbols`.
const COMMANDS: [&[&str]; 54] = [
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
    &["convert", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.speedscope.json", "--force"],
    &["convert", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.chrome.json", "--force"],
    &["symbols", "list", "--no-default-symbols", "TRACE"],
    &["convert", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.folded", "--force"],
    &["verify", "--walks", "--json", "TRACE"],
    &["events", "-j", "2", "TRACE"],
    &["events", "-j", "2", "--json", "TRACE"],
    &["verify", "--json", "TRACE"],
    &["info", "TRACE", "TRACE"],
    &["stats", "-j", "2", "--no-default-symbols", "--full", "TRACE"],
    &["dump", "--no-default-symbols", "--style", "merged", "TRACE"],
    &["convert", "-j", "2", "--no-default-symbols", "--to", "parquet", "TRACE", "-o", "OUT.parquet"],
    &["convert", "-j", "2", "--no-default-symbols", "--denormalized", "TRACE", "-o", "OUT.samples.parquet"],
    &["batch", "-j", "2", "--no-default-symbols", "--to", "parquet", "TRACE", "-o", "OUT.batch"],
    &["report", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.html", "--force"],
    &["redact", "--drop", "command-line,host,user", "TRACE", "-o", "OUT.stk", "--force"],
    &["merge", "-j", "2", "--no-default-symbols", "TRACE", "-o", "OUT.chrome.json", "--force"],
    &["top", "--once", "-j", "2", "--no-default-symbols", "TRACE"],
    &[
        "convert",
        "-j",
        "2",
        "--no-default-symbols",
        "--to",
        "flamegraph",
        "TRACE",
        "-o",
        "OUT.svg",
        "--force",
    ],
    &["convert", "-j", "2", "--no-default-symbols", "--to", "firefox", "TRACE", "-o", "OUT.json", "--force"],
    &[
        "convert",
        "-j",
        "2",
        "--no-default-symbols",
        "--to",
        "perfetto",
        "TRACE",
        "-o",
        "OUT.pftrace",
        "--force",
    ],
    &["convert", "-j", "2", "--no-default-symbols", "--to", "pprof", "TRACE", "-o", "OUT.pb.gz", "--force"],
    &[
        "convert",
        "-j",
        "2",
        "--no-default-symbols",
        "--to",
        "folded",
        "--split",
        "time=10s",
        "TRACE",
        "-o",
        "OUT.parts",
    ],
    &["stats", "-j", "2", "--no-default-symbols", "--tree", "TRACE"],
    &[
        "stats",
        "-j",
        "2",
        "--no-default-symbols",
        "--group-by",
        "thread-name,function",
        "--format",
        "csv",
        "TRACE",
    ],
    &["stats", "-j", "2", "--no-default-symbols", "--waiting", "TRACE"],
    &["diff", "-j", "2", "--no-default-symbols", "TRACE", "TRACE"],
    &["batch", "-j", "2", "--no-default-symbols", "--to", "folded", "TRACE", "-o", "OUT.batch"],
    &["symbols", "bundle", "--no-default-symbols", "TRACE", "-o", "OUT.symbols"],
    &["stats", "-j", "2", "--no-default-symbols", "TRACE", "TRACE"],
    &["convert", "-j", "2", "--no-default-symbols", "--to", "speedscope", "TRACE", "-o", "OUT.parts/"],
    &[
        "convert",
        "-j",
        "2",
        "--no-default-symbols",
        "--perfetto-style",
        "perf-samples",
        "TRACE",
        "-o",
        "OUT.pftrace",
        "--force",
    ],
    &["symbols", "fetch", "--no-default-symbols", "-y", "srv*http://127.0.0.1:1", "TRACE"],
    &["symbols", "apply", "-j", "2", "--no-default-symbols", "DATASET"],
    &["stats", "-j", "2", "--tree", "DATASET"],
    &["diff", "-j", "2", "DATASET", "DATASET"],
    &["events", "-j", "2", "--no-default-symbols", "--stacks", "TRACE"],
    &["events", "-j", "2", "--no-default-symbols", "--stacks=clrstack", "TRACE"],
    &["dump", "--no-default-symbols", "--modules", "TRACE"],
    &["symbols", "at", "--no-default-symbols", "TRACE", "140001010", "7ffb00001010", "0"],
    &["annotate", "-j", "2", "--no-default-symbols", "--source", ".", "TRACE", "."],
    &["annotate", "-j", "2", "--no-default-symbols", "--instructions", "--top", "0", "TRACE", "."],
    &["annotate", "-j", "2", "--no-default-symbols", "--instructions", "--json", "TRACE", "."],
];
const STATS_JSON: usize = 6;
/// Those of [`COMMANDS`] that take different ways through the library.
const WAYS: [usize; 7] = [0, 3, 5, 7, 11, 13, 16];
/// One of [`WAYS`] each, with the count of samples.
const COUNTED_WAYS: [[usize; 2]; 6] =
    [[0, STATS_JSON], [3, STATS_JSON], [5, STATS_JSON], [7, STATS_JSON], [11, STATS_JSON], [13, STATS_JSON]];
/// [`WAYS`] with the count of samples.
const ALL_COUNTED_WAYS: [usize; 7] = [0, 3, 5, 7, 11, 13, STATS_JSON];

/// [`WAYS`] for several traces at once.
const WAYS_OF_MANY: [usize; 7] = [0, 3, 5, 7, 41, 13, 16];
/// Traces of one command line, at most.
const MANY: usize = 32;
/// What makes the dataset of a trace.
const TO_DATASET: &[&str] =
    &["convert", "-j", "2", "--no-default-symbols", "--to", "parquet", "TRACE", "-o", "OUT.dataset"];

/// What a class of cases meets. "Others" are all of [`COMMANDS`] that are no ways: those on a
/// dataset of the trace are among them. With `--long`, bombs meet every command.
///
/// ```text
/// class                    commands
/// bombs                    ways, and four of the others in turn
/// bombs, larger sizes      info, stats, dump
/// names, in each place     ways, all names at once; of each, one of the others in turn
/// names, everywhere        every command
/// cuts of real traces      one of the ways in turn, with the count of samples, several at once
/// cuts of a small trace    all ways, with the count of samples
/// symbol files             `hostile_symbols`: lookup, check, stats, dump; names in them: more
/// datasets that are wrong  it::dataset, tests/fuzz: stats, diff, symbols apply
/// ```
fn ways_and(others: usize, case: usize) -> Vec<usize> {
    [WAYS.to_vec(), others_in_turn(others, case)].concat()
}

fn others_in_turn(others: usize, case: usize) -> Vec<usize> {
    let is_other = |at: &usize| !WAYS.contains(at) && !WAYS_OF_MANY.contains(at);
    let rest: Vec<usize> = (0..COMMANDS.len()).filter(is_other).collect();
    (0..others).map(|n| rest[(others * case + n) % rest.len()]).collect()
}

/// Whether a command takes several traces.
fn takes_many(command: &[&str]) -> bool {
    let of_lists =
        matches!(command[0], "info" | "verify" | "stats" | "events") || command[..2] == ["symbols", "list"];
    command.contains(&"OUT.parts/") || of_lists && command.contains(&"TRACE")
}

/// A trace: its name and its bytes.
type Made = (String, Vec<u8>);

/// Runs a command on traces and gives what is wrong with how it ended, what it took and what it
/// printed. The counts that `counted` traces' block headers hold are true.
fn check(folder: &Path, command: &[&str], traces: &[&Made], counted: bool) -> Checked {
    let name = &traces[0].0;
    let out = format!("{name}.out");
    let fill = |part: &&str| -> Vec<String> {
        match *part {
            "TRACE" => traces.iter().map(|(name, _)| name.clone()).collect(),
            "DATASET" => vec![format!("{out}.dataset")],
            part => vec![part.replace("OUT", &out)],
        }
    };
    let run_filled = |command: &[&str]| {
        let arguments: Vec<String> = command.iter().flat_map(fill).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        run(folder, &arguments, FILES).unwrap()
    };
    if command.contains(&"DATASET") {
        run_filled(TO_DATASET);
    }
    let run = run_filled(command);
    remove_outputs(folder, &out);
    let len = traces.iter().map(|(_, file)| file.len()).sum();
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
    // So is a comparison of a trace with itself that decides nothing.
    let undecided = command[0] == "diff" && run.code == Some(7);
    let ends = matches!(run.code, Some(0 | 1 | 4)) || walks && run.code == Some(6) || undecided;
    expect(ends, format!("ended with {:?}: {end}", run.code));
    expect(!error.contains("panicked"), format!("panicked: {end}"));
    // No server answers there.
    let fails = run.code == Some(1) && !walks && !command.contains(&"fetch");
    let have_samples = || traces.iter().any(|(_, file)| has_samples(file));
    expect(!(fails && have_samples()), format!("failed though undamaged blocks hold samples: {end}"));
    expect(run.cpu <= cpu_limit(len), format!("took {:?} for {len} bytes", run.cpu));
    expect(run.peak <= MEMORY, format!("took {} MiB for {len} bytes", run.peak >> 20));
    let json = command.contains(&"--json") || command.contains(&"json");
    // Lines of CSV end as RFC 4180 has it.
    let of_csv = command.contains(&"csv").then(|| String::from_utf8_lossy(&run.stdout).replace("\r\n", "\n"));
    let lines = of_csv.as_ref().map_or(&run.stdout[..], |lines| lines.as_bytes());
    let (out_harm, error_harm) = (harm(lines).filter(|_| !json), harm(&run.stderr));
    expect(out_harm.is_none(), format!("stdout: {out_harm:?}"));
    expect(error_harm.is_none(), format!("stderr: {error_harm:?}"));
    expect(json || !forged(&run.stdout), "stdout has a line that a name forged".to_owned());
    expect(!forged(&run.stderr), format!("stderr has a line that a name forged: {end}"));
    if json && run.code != Some(1) {
        let read: Result<serde_json::Value, _> = serde_json::from_slice(&run.stdout);
        // Of a longer one only the beginning was read.
        let is_whole = (run.stdout.len() as u64) < LOOKED_AT;
        expect(read.is_ok() || !is_whole, format!("is no JSON: {:?}", read.err()));
    }
    if counted && command == COMMANDS[STATS_JSON] {
        for (n, (name, file)) in traces.iter().enumerate() {
            let (shown, whole) = (shown_samples(&run.stdout, n), whole_samples(file));
            expect(shown >= whole, format!("{name}: shows {shown} samples, undamaged blocks hold {whole}"));
        }
    }
    if std::env::var_os("STK_HOSTILE_TIMES").is_some() {
        eprintln!("{name}: {} ms, {} MiB: stk {}", run.cpu.as_millis(), run.peak >> 20, command.join(" "));
    }
    Checked { run, wrong }
}

/// Removes what a command wrote: files of the next one have the same names.
fn remove_outputs(folder: &Path, out: &str) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with(out) {
            let path = entry.path();
            let removed =
                if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
            removed.unwrap();
        }
    }
}

/// A run, and what is wrong with it.
struct Checked {
    run: Run,
    wrong: Vec<String>,
}

/// Whether a block that can be read whole holds a sample.
fn has_samples(file: &[u8]) -> bool {
    whole_samples(file) > 0
}

/// How many samples the blocks hold that can be read whole, as their headers say.
fn whole_samples(file: &[u8]) -> u64 {
    let Ok(trace) = Trace::open(file) else { return 0 };
    let mut scratch = Scratch::new();
    let samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    let whole = samples.filter(|block| trace.verify_block(block, &mut scratch).is_ok());
    whole.map(|block| u64::from(block.header.samples)).sum()
}

/// How many samples `stats --json` shows of the trace at this place.
fn shown_samples(json: &[u8], trace: usize) -> u64 {
    let read: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    read["traces"][trace]["totals"]["samples"].as_u64().unwrap_or(0)
}

/// Traces to be, and the numbers of the commands to run on them.
struct Case<'c> {
    what: String,
    make: Box<dyn Fn() -> Vec<Vec<u8>> + Send + Sync + 'c>,
    commands: Vec<usize>,
    /// See [`check`].
    counted: bool,
}

impl<'c> Case<'c> {
    fn new(what: String, make: impl Fn() -> Vec<u8> + Send + Sync + 'c, commands: &[usize]) -> Case<'c> {
        Case::of_many(what, move || vec![make()], commands)
    }

    /// Of several traces, which one command line names where a command takes as many.
    fn of_many(
        what: String,
        make: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'c,
        commands: &[usize],
    ) -> Case<'c> {
        Case { what, make: Box::new(make), commands: commands.to_vec(), counted: false }
    }

    fn counted(self) -> Case<'c> {
        Case { counted: true, ..self }
    }
}

/// How the runs on one trace ended.
#[derive(Default)]
struct Row {
    ends: BTreeSet<String>,
    cpu: Duration,
    peak: u64,
    /// The commands with something wrong.
    wrong: BTreeSet<&'static str>,
}

impl Row {
    fn add(&mut self, command: &[&'static str], Checked { run, wrong }: &Checked) {
        let end = match (run.code, run.signal) {
            (Some(code), _) => format!("exit {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or_default()),
        };
        self.ends.insert(end);
        (self.cpu, self.peak) = (self.cpu.max(run.cpu), self.peak.max(run.peak));
        self.wrong.extend((!wrong.is_empty()).then_some(command[0]));
    }
}

impl Display for Row {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let join = |texts: &mut dyn Iterator<Item = &str>| texts.collect::<Vec<_>>().join(", ");
        let ends = join(&mut self.ends.iter().map(String::as_str));
        let wrong = join(&mut self.wrong.iter().copied());
        write!(f, "{ends} | {:.2} | {} | {wrong}", self.cpu.as_secs_f64(), self.peak >> 20)
    }
}

/// Runs all cases on two threads. Panics with the list of all failures, unless another program is
/// run to see what it does: then it prints a row for each case.
fn check_all(cases: &[Case<'_>]) {
    let outside = tempfile::tempdir().unwrap();
    let folder = outside.path().join("runs");
    std::fs::create_dir(&folder).unwrap();
    let (next, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // This variable selects one class.
    let only = std::env::var("STK_HOSTILE_ONLY").ok();
    let results = other_program().is_some();
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Case { what, make, commands, counted } = case;
            if only.as_ref().is_some_and(|only| !what.contains(only.as_str())) {
                continue;
            }
            let turn = START.write().unwrap();
            let files = make();
            trim();
            drop(turn);
            let name = what.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            let named = files.into_iter().enumerate().map(|(n, file)| match n {
                0 => (format!("{name}.stk"), file),
                n => (format!("{name}-and-{n}.stk"), file),
            });
            let traces: Vec<Made> = named.collect();
            traces.iter().for_each(|(name, file)| std::fs::write(folder.join(name), file).unwrap());
            // The ways alone, so that programs are compared in a short time.
            let commands: &[usize] = if results { &WAYS } else { commands };
            let mut row = Row::default();
            // Those without a sample may make a command fail: they are no company for the others.
            let is_alone = traces.len() == 1;
            let (with, without): (Vec<&Made>, Vec<&Made>) =
                traces.iter().partition(|(_, file)| is_alone || has_samples(file));
            for &command in commands {
                let at_once = if takes_many(COMMANDS[command]) { MANY } else { 1 };
                for traces in with.chunks(at_once).chain(without.chunks(at_once)) {
                    let found = check(&folder, COMMANDS[command], traces, *counted);
                    row.add(COMMANDS[command], &found);
                    // A long run is worth stopping at once.
                    if long() {
                        found.wrong.iter().for_each(|wrong| eprintln!("{wrong}"));
                    }
                    wrong.lock().unwrap().extend(found.wrong);
                }
            }
            if results {
                let len: usize = traces.iter().map(|(_, file)| file.len()).sum();
                println!("| {what} | {len} | {row} |");
            }
            traces.iter().for_each(|(name, _)| std::fs::remove_file(folder.join(name)).unwrap());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let wrong = wrong.into_inner().unwrap();
    if results {
        return;
    }
    let left =
        |folder: &Path| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let (made, left): (Vec<_>, Vec<_>) = (left(outside.path()), left(&folder));
    assert!(made == ["runs"] && left.is_empty(), "made beside the outputs: {made:?} {left:?}");
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Every command.
fn all() -> Vec<usize> {
    (0..COMMANDS.len()).collect()
}

#[test]
fn every_command_and_output_format_is_in_the_suite() {
    let folder = tempfile::tempdir().unwrap();
    // The lines of a list in a help.
    let listed = |arguments: &[&str], from: &str| -> Vec<String> {
        let text = String::from_utf8(run(folder.path(), arguments, FILES).unwrap().stdout).unwrap();
        let lines = text.lines().skip_while(|line| !line.contains(from)).skip(1);
        lines.take_while(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let commands = listed(&["--help"], "Commands:");
    // Their descriptions stand further in.
    let commands: Vec<&str> = commands
        .iter()
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()))
        .collect();
    assert!(commands.len() > 12, "{commands:?}");
    // They read no trace; `open` is report or convert, and leaves its page in the system's folder.
    const OTHERS: [&str; 5] = ["completions", "man", "schema", "help", "open"];
    for name in commands.into_iter().filter(|name| !OTHERS.contains(name)) {
        assert!(COMMANDS.iter().any(|command| command[0] == name), "{name}");
    }
    let of_symbols = listed(&["symbols", "--help"], "Commands:");
    let of_symbols = of_symbols.iter().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let of_symbols: Vec<&str> = of_symbols.filter(|name| !name.is_empty() && *name != "help").collect();
    assert!(of_symbols.len() > 6, "{of_symbols:?}");
    // It lists the cache's folder.
    for name in of_symbols.into_iter().filter(|name| *name != "cache") {
        let mut all = COMMANDS.iter().copied().chain(crate::hostile_symbols::SYMBOL_COMMANDS);
        assert!(all.any(|command| command[..2] == ["symbols", name]), "symbols {name}");
    }
    let formats = listed(&["convert", "--help"], "Possible values:");
    let names = formats.iter().filter_map(|line| line.trim_start().strip_prefix("- ")?.split(':').next());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 6, "{names:?}");
    for name in names {
        // Some are chosen by the name of the output.
        let suffix = format!(".{name}");
        let is_met = |part: &&str| *part == name || part.contains(&suffix);
        assert!(COMMANDS.iter().any(|command| command.iter().any(is_met)), "--to {name}");
    }
}

#[test]
fn bombs_stay_within_their_limits() {
    let bombs = bombs::all();
    assert!(bombs.len() >= 60, "{}", bombs.len());
    // A class's larger sizes show how the time grows. They run one reader each of metadata, of
    // samples and of stacks.
    let commands = |n: usize, large| -> Vec<usize> {
        match (long(), large) {
            (true, _) => all(),
            (false, false) => ways_and(4, n),
            (false, true) => vec![0, 5, 7],
        }
    };
    let drawn = bombs::drawn(if long() { LONGER - 1 } else { 0 });
    let cases = bombs
        .into_iter()
        .enumerate()
        .map(|(n, (what, make, large))| Case::new(what, make, &commands(n, large)));
    let drawn = drawn.into_iter().map(|(what, make)| Case::new(what, make, &WAYS));
    let cases: Vec<Case<'_>> = cases.chain(drawn).collect();
    check_all(&cases);
}

/// What broke a limit once is run whatever the turn gives a class.
#[test]
fn commands_that_bombs_once_broke_stay_within_their_limits() {
    let command = |words: &[&str]| -> usize {
        let has_all = |command: &&[&str]| words.iter().all(|word| command.contains(word));
        COMMANDS.iter().position(has_all).expect("a command with these words")
    };
    let pairs = [
        ("tiny marks, 40", command(&["redact"])),
        ("one stack that never changes, 2147483648", command(&["perf-samples"])),
        ("samples a century apart, 5", command(&["parquet", "batch"])),
    ];
    let once_broke = |(what, make, _): (String, bombs::Make, bool)| {
        let (_, command) = pairs.iter().find(|(class, _)| *class == what)?;
        Some(Case::new(what, make, &[*command]))
    };
    let cases: Vec<Case<'_>> = bombs::all().into_iter().filter_map(once_broke).collect();
    assert_eq!(cases.len(), pairs.len());
    check_all(&cases);
}

#[test]
fn perf_samples_beyond_a_limit_are_left_out_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let class = |(what, _, _): &(String, bombs::Make, bool)| what.starts_with("one stack that never changes");
    let (_, make, _) = bombs::all().into_iter().find(class).unwrap();
    std::fs::write(folder.path().join("a.stk"), make()).unwrap();
    let line =
        ["convert", "--no-default-symbols", "--perfetto-style", "perf-samples", "a.stk", "-o", "a.pftrace"];
    let run = run(folder.path(), &line, FILES).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(run.code == Some(0) || run.code == Some(4), "{error}");
    assert!(error.contains(" samples beyond the first 10000000 are left out"), "{error}");
    let written = std::fs::metadata(folder.path().join("a.pftrace")).unwrap().len();
    assert!((1..500 << 20).contains(&written), "{written}");
}

#[test]
fn invalid_names_do_no_harm_in_any_place() {
    let mut names = names::names();
    if long() {
        names.extend(names::drawn((LONGER - 1) * names.len()));
    }
    let mut cases: Vec<Case<'_>> = Vec::new();
    let names = &names;
    for (n, (place, make)) in names::PLACES.into_iter().enumerate() {
        let all = move || names.iter().map(|name| make(name)).collect();
        cases.push(Case::of_many(format!("{place}, all names"), all, &WAYS_OF_MANY));
        for (i, name) in names.iter().enumerate() {
            let commands = others_in_turn(1, n * names.len() + i);
            cases.push(Case::new(format!("{place}, name {i}"), move || make(name), &commands));
        }
    }
    assert!(cases.len() >= 180, "{}", cases.len());
    check_all(&cases);
}

#[test]
fn names_everywhere_are_text_in_every_command() {
    check_all(&[Case::new("everywhere".to_owned(), names::everywhere, &all())]);
}

#[test]
fn json_keeps_a_name_exactly() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), names::everywhere()).unwrap();
    let run = run(folder.path(), &["info", "--json", "a.stk"], FILES).unwrap();
    let info: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    let names: BTreeSet<&str> = info["traces"][0]["threads"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|thread| thread["name"].as_str())
        .collect();
    assert!(names.contains(names::EVERYWHERE), "{names:?}");
}

#[test]
fn a_cut_loses_only_blocks_that_it_shortens_or_removes() {
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
        let mut cuts = boundaries.clone();
        if long() {
            cuts.extend(drawn_cuts(&boundaries));
        }
        for (way, commands) in COUNTED_WAYS.iter().enumerate() {
            // One way each, in turn, unless there is time for all of them.
            let commands: &[usize] = if long() { &ALL_COUNTED_WAYS } else { commands };
            let of_way: Vec<usize> = cuts.iter().skip(way).step_by(COUNTED_WAYS.len()).copied().collect();
            for (n, cuts) in of_way.chunks(MANY / 2).enumerate() {
                let cuts = cuts.to_vec();
                let make = move || cuts.iter().map(|&at| file[..at].to_vec()).collect();
                cases.push(Case::of_many(format!("{name}, cuts {way}.{n}"), make, commands).counted());
            }
        }
    }
    let edges: Vec<usize> = [0, 1, 127, 128, 129].into_iter().chain(boundaries_of(&small)).collect();
    let drawn = if long() { drawn_cuts(&edges) } else { Vec::new() };
    let cuts: Vec<usize> = edges.into_iter().chain(drawn).collect();
    for (n, cuts) in cuts.chunks(MANY / 2).enumerate() {
        let (small, cuts) = (&small, cuts.to_vec());
        let make = move || cuts.iter().map(|&at| small[..at].to_vec()).collect();
        cases.push(Case::of_many(format!("small, cuts {n}"), make, &ALL_COUNTED_WAYS).counted());
    }
    check_all(&cases);
}

/// Cuts between block boundaries, the same in every run: in a header, in a block's bytes, or a few
/// bytes from its end.
fn drawn_cuts(boundaries: &[usize]) -> Vec<usize> {
    let mut random = Random::new(13);
    let last = *boundaries.last().unwrap_or(&0);
    let mut cuts = Vec::new();
    for (n, &from) in boundaries.iter().enumerate() {
        let to = boundaries.get(n + 1).copied().unwrap_or(last).max(from);
        for _ in 1..LONGER {
            let len = to - from;
            let into = match random.below(3) {
                0 => random.below(len.min(64) + 1),
                1 => random.below(len + 1),
                _ => len - random.below(len.min(16) + 1),
            };
            cuts.push(from + into);
        }
    }
    cuts
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
    // Of others the damage is reported in the text or beside it.
    let others: [&[&str]; 9] = [
        &["events"],
        &["events", "--json"],
        &["symbols", "list", "--no-default-symbols"],
        &["verify"],
        &["stats", "--no-default-symbols"],
        &["stats", "--no-default-symbols", "--json"],
        &["convert", "--no-default-symbols", "-o", "a.folded"],
        &["dump", "--no-default-symbols"],
        &["dump", "--no-default-symbols", "--style", "json"],
    ];
    for command in others {
        let arguments = [command, &["--max-memory", "300", "a.stk"]].concat();
        let run = run(folder.path(), &arguments, FILES).unwrap();
        let reported = [run.stdout, run.stderr].concat();
        let reported = String::from_utf8_lossy(&reported);
        assert_eq!(run.code, Some(4), "{command:?}: {reported}");
        assert!(reported.contains("--max-memory"), "{command:?}: {reported}");
    }
}

/// Both tags have the same stacks: as many are printed as there are captures.
#[test]
fn a_hundred_thousand_captures_are_listed_and_dumped_within_the_limits() {
    const CAPTURES: u64 = 100_000;
    let folder = tempfile::tempdir().unwrap();
    let file = bombs::two_tags(CAPTURES);
    std::fs::write(folder.path().join("a.stk"), &file).unwrap();
    let of = |arguments: &[&str], line: &str| {
        let run = run(folder.path(), arguments, FILES).unwrap();
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!((run.code, &*error), (Some(0), ""), "{arguments:?}");
        assert!(run.cpu <= cpu_limit(file.len()), "{arguments:?}: {:?}", run.cpu);
        assert!(run.peak <= MEMORY, "{arguments:?}: {} MiB", run.peak >> 20);
        String::from_utf8(run.stdout).unwrap().matches(line).count() as u64
    };
    assert_eq!(of(&["events", "a.stk"], "  capture  "), CAPTURES);
    assert_eq!(of(&["events", "--tag", "7", "a.stk"], " tag 7 (0x7)\n"), CAPTURES / 2);
    let dump = ["dump", "--no-default-symbols", "a.stk", "--tag", "7"];
    assert_eq!(of(&dump, ", tag 7 (0x7)\n"), CAPTURES / 2);
}

#[test]
fn the_log_is_text_too() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), names::everywhere()).unwrap();
    let arguments = ["stats", "--no-default-symbols", "a.stk"];
    let run = run_with(folder.path(), &arguments, FILES, &[("RUST_LOG", "debug")]).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert!(error.lines().any(|line| line.contains(" stk_") && line.contains("]0;x")), "{error}");
    assert_eq!(harm(&run.stderr), None);
    assert!(!error.lines().any(|line| line.starts_with("forged")), "{error}");
}

#[test]
fn a_newline_in_a_name_makes_no_line_of_a_comparison_of_walks() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), names::everywhere()).unwrap();
    let run = run(folder.path(), &["verify", "--walks", "a.stk"], FILES).unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    // The system's name and the modules of two frames.
    assert!(text.matches("forged: y").count() >= 3, "{text}");
    assert!(!text.lines().any(|line| line.starts_with("forged")), "{text}");
}

#[test]
fn a_device_without_end_is_read_up_to_a_reported_limit() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path(), &["info", "/dev/zero"], FILES).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.code, Some(1), "{error}");
    assert!(error.contains("/dev/zero") && error.contains("256 MiB"), "{error}");
    assert!(run.peak <= MEMORY && run.cpu <= CPU_LEAST, "{} MiB, {:?}", run.peak >> 20, run.cpu);
}

#[test]
fn json_of_many_traces_is_whole_even_if_one_of_them_fails() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.stk", "c.stk"] {
        std::fs::write(folder.path().join(name), small()).unwrap();
    }
    std::fs::write(folder.path().join("b.stk"), b"no trace").unwrap();
    let commands = [
        (&["info", "--json"][..], 1),
        (&["events", "--json"], 1),
        (&["stats", "--json", "--no-default-symbols"], 2),
    ];
    for (command, version) in commands {
        for (names, traces) in [(&["a.stk", "b.stk", "c.stk"][..], 2), (&["b.stk"], 0)] {
            let run = run(folder.path(), &[command, names].concat(), FILES).unwrap();
            assert_eq!(run.code, Some(1), "{command:?}");
            let json: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
            assert_eq!(
                (&json["version"], json["traces"].as_array().unwrap().len()),
                (&version.into(), traces)
            );
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
