//! Thousands of traces on one command line: memory and descriptors do not grow with their number,
//! and processor time grows no faster. `benches/many.sh` measures the latter closer. A program of
//! its own: a program begins with the memory of the process that starts it.
#![cfg(unix)]

use std::path::Path;
use std::time::Duration;
use stk_tests::hostile::limits::{Run, run, run_with};
use stk_tests::hostile::{alternating, small};

/// Traces on the command line.
const TRACES: usize = 5_000;
/// Parts of them whose processor times are compared, and how many times as much the larger may
/// take: five times would be linear.
const FEW: usize = 500;
const MANY: usize = 2_500;
const RATIO: f64 = 7.0;
/// Seconds of CPU time by which two runs of one command may differ. A quadratic step takes several.
const NOISE: f64 = 0.3;
/// Memory, in bytes.
const MEMORY: u64 = 100 << 20;
/// Descriptors.
const FILES: u64 = 64;
/// Traces that each keep a part of their samples in a temporary file: more than descriptors.
const SPILLING: usize = 70;

fn write(folder: &Path, file: &[u8], count: usize) -> Vec<String> {
    let names: Vec<String> = (0..count).map(|i| format!("{i}.stk")).collect();
    names.iter().for_each(|name| std::fs::write(folder.join(name), file).unwrap());
    names
}

/// Runs a command on traces; panics if it fails or takes more memory than it may.
fn run_on(folder: &Path, command: &[&str], names: &[String]) -> Run {
    let arguments: Vec<&str> = command.iter().copied().chain(names.iter().map(String::as_str)).collect();
    let run = run(folder, &arguments, FILES).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.code, Some(0), "{command:?}: {}", error.lines().last().unwrap_or_default());
    assert!(run.peak <= MEMORY, "{command:?}: {} MiB", run.peak >> 20);
    eprintln!("{command:?} of {}: {} MiB, {:?}", names.len(), run.peak >> 20, run.cpu);
    run
}

#[test]
fn five_thousand_traces_take_the_memory_of_a_few_and_no_more_time_each() {
    let folder = tempfile::tempdir().unwrap();
    let names = write(folder.path(), &small(), TRACES);
    let commands: [&[&str]; 8] = [
        &["events", "-j", "2"],
        &["info"],
        &["info", "--json"],
        &["verify", "-j", "2"],
        &["stats", "-j", "2", "--no-default-symbols"],
        &["stats", "-j", "2", "--no-default-symbols", "--json"],
        &["convert", "--no-default-symbols", "-j", "2", "--to", "speedscope", "-o", "out/"],
        &["convert", "--no-default-symbols", "-j", "2", "--to", "chrome", "-o", "out/"],
    ];
    for command in commands {
        run_on(folder.path(), command, &names);
        // The least of two: what else the machine does only adds.
        let least = |count: usize| {
            let times = (0..2).map(|_| run_on(folder.path(), command, &names[..count]).cpu);
            times.min().unwrap_or(Duration::MAX).as_secs_f64()
        };
        let (few, many) = (least(FEW), least(MANY));
        let most = RATIO * few + NOISE;
        assert!(many <= most, "{command:?}: {few} s of {FEW} traces, {many} s of {MANY}");
    }
}

#[test]
fn traces_that_spill_give_their_descriptors_back() {
    let folder = tempfile::tempdir().unwrap();
    let names = write(folder.path(), &alternating(20_000), SPILLING);
    let commands: [&[&str]; 2] = [
        &["stats", "-j", "2", "--no-default-symbols", "--max-memory", "1M"],
        &[
            "convert",
            "--no-default-symbols",
            "--max-memory",
            "1M",
            "-j",
            "2",
            "--to",
            "folded",
            "--force",
            "-o",
            "out/",
        ],
    ];
    for command in commands {
        run_on(folder.path(), command, &names);
        // That they do spill shows where there is no place to.
        let arguments: Vec<&str> = command.iter().copied().chain([names[0].as_str()]).collect();
        let nowhere = folder.path().join("nowhere");
        let place = [("TMPDIR", nowhere.to_str().unwrap())];
        let run = run_with(folder.path(), &arguments, FILES, &place).unwrap();
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.code, Some(1), "{command:?}: {error}");
        assert!(error.contains(place[0].1), "{command:?}: {error}");
    }
}
