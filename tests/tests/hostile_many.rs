//! Thousands of traces on one command line: memory and descriptors do not grow with their number.
//! How the time grows is measured by `benches/many.sh`. It has its own file because a program's
//! peak memory starts with that of the process that starts it.
#![cfg(unix)]

use stk_tests::hostile::limits::run;
use stk_tests::hostile::small;

/// Traces on the command line.
const TRACES: usize = 5_000;
/// Memory, in bytes.
const MEMORY: u64 = 100 << 20;
/// Descriptors.
const FILES: u64 = 64;

#[test]
fn five_thousand_traces_take_the_memory_of_a_few() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut names) = (small(), Vec::new());
    for i in 0..TRACES {
        let name = format!("{i}.stk");
        std::fs::write(folder.path().join(&name), &file).unwrap();
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let convert: [&[&str]; 2] = [
        &["convert", "--no-default-symbols", "-j", "2", "--to", "speedscope", "-o", "out/"],
        &["convert", "--no-default-symbols", "-j", "2", "--to", "chrome", "-o", "out/"],
    ];
    let others: [&[&str]; 5] = [
        &["info"],
        &["info", "--json"],
        &["verify", "-j", "2"],
        &["stats", "-j", "2", "--no-default-symbols"],
        &["stats", "-j", "2", "--no-default-symbols", "--json"],
    ];
    for command in others.into_iter().chain(convert) {
        let arguments = [command, &names].concat();
        let run = run(folder.path(), &arguments, FILES).unwrap();
        let error = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.code, Some(0), "{command:?}: {}", error.lines().last().unwrap_or_default());
        assert!(run.peak <= MEMORY, "{command:?}: {} MiB", run.peak >> 20);
        eprintln!("{command:?}: {} MiB, {:?}", run.peak >> 20, run.cpu);
    }
}
