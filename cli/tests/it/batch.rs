//! `stk batch`: what stops it costs nothing but time, and bad traces cost themselves alone.

use crate::support::{command, kept};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use stk_format::BLOCK_HEADER_LEN;
use stk_format::BlockKind;
use stk_tests::synth::Parts;

/// A recording that is kept in the repository, under the UUID of this number.
fn recording(number: u8) -> Vec<u8> {
    let path = kept("busy.stk");
    let mut parts = Parts::take_apart(&std::fs::read(path).expect("the kept recording")).expect("a trace");
    parts.header.uuid = [number; 16];
    parts.to_file()
}

/// Where the SAMPLES block with this number begins and ends.
fn samples_block(file: &[u8], number: usize) -> std::ops::Range<usize> {
    let trace = stk_format::Trace::open(file).expect("a trace");
    let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    let block = samples.nth(number).expect("the block");
    let begin = block.offset as usize;
    begin..begin + BLOCK_HEADER_LEN + block.header.stored_len as usize
}

/// What a batch knows unchanged traces by.
const SEEN: &str = "_stk/files.json";

struct Lab(tempfile::TempDir);

impl Lab {
    /// Traces: whole ones, a damaged one, a truncated one, a copy, a prefix of another, no trace.
    fn new(whole: u8) -> Lab {
        let lab = Lab(tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(lab.path("in")).expect("a folder");
        for number in 0..whole {
            lab.write(&format!("{number:02}.stk"), &recording(number));
        }
        let mut damaged = recording(100);
        let block = samples_block(&damaged, 1);
        damaged[block.start + BLOCK_HEADER_LEN + 20] ^= 0x55;
        lab.write("damaged.stk", &damaged);
        let truncated = recording(101);
        lab.write("truncated.stk", &truncated[..samples_block(&truncated, 2).end + 40]);
        lab.write("copy.stk", &recording(0));
        let prefix = recording(1);
        lab.write("prefix.stk", &prefix[..samples_block(&prefix, 1).end]);
        lab.write("no-trace.stk", b"this is no trace");
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path("in").join(name), bytes).expect("written");
    }

    fn command(&self, format: &str, out: &str, more: &[&str]) -> Command {
        let mut command = command(&["batch", "--no-default-symbols", "--to", format, "-o"]);
        command.arg(self.path(out));
        command.arg("--symbol-cache").arg(self.path("cache")).arg(self.path("in")).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn batch(&self, format: &str, out: &str, more: &[&str]) -> (i32, String) {
        let Output { status, stderr, .. } = self.command(format, out, more).output().expect("stk runs");
        (status.code().expect("an exit code"), String::from_utf8_lossy(&stderr).into_owned())
    }

    /// Every file of an output folder but logs and what is known of the traces' files, with its
    /// bytes.
    fn files(&self, out: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let root = self.path(out);
        let mut found = BTreeMap::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let name = path.strip_prefix(&root).expect("within").to_owned();
                if path.is_dir() {
                    folders.push(path);
                } else if !name.to_string_lossy().starts_with("_batch.") && name != Path::new(SEEN) {
                    found.insert(name, std::fs::read(&path).expect("read"));
                }
            }
        }
        found
    }

    /// Samples of the traces in a log.
    fn samples_in_log(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(self.path(name)).expect("a log");
        let line = |line| serde_json::from_str::<serde_json::Value>(line).expect("JSON");
        text.lines().filter_map(|text| line(text)["samples"].as_u64()).sum()
    }

    fn samples_of_dataset(&self, out: &str) -> u64 {
        let output = command(&["stats", "--json"]).arg(self.path(out)).output().expect("stk runs");
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        found["sum"]["samples"].as_u64().expect("a number")
    }

    /// The status of each trace in a log.
    fn log(&self, name: &str) -> BTreeMap<String, String> {
        let text = std::fs::read_to_string(self.path(name)).expect("a log");
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let status = |line: serde_json::Value| {
            let trace = PathBuf::from(line["trace"].as_str().expect("a trace"));
            let name = trace.file_name().expect("a name").to_string_lossy().into_owned();
            (name, line["status"].as_str().expect("a status").to_owned())
        };
        let found: BTreeMap<String, String> = lines.map(status).collect();
        assert_eq!(found.len(), text.lines().count(), "one line a trace:\n{text}");
        found
    }
}

/// The formats of this build, of which one is a folder.
const FORMATS: &[&str] = if cfg!(feature = "parquet") { &["parquet", "folded"] } else { &["folded"] };

#[test]
fn bad_traces_are_reported_and_passed_over() {
    let lab = Lab::new(2);
    for format in FORMATS {
        let (exit, reported) = lab.batch(format, format, &["-j", "2"]);
        assert_eq!(exit, 4, "{reported}");
        assert!(reported.contains("7 traces: "), "{reported}");
        let log = lab.log(&format!("{format}/_batch.jsonl"));
        let status = |name: &str| log[name].as_str();
        assert_eq!([status("00.stk"), status("01.stk"), status("truncated.stk")], ["converted"; 3]);
        assert_eq!([status("damaged.stk"), status("no-trace.stk")], ["damaged", "failed"]);
        // A dataset has each content once; of other formats, each file has an output.
        let expected = if *format == "parquet" { ["copy", "prefix"] } else { ["converted"; 2] };
        assert_eq!([status("copy.stk"), status("prefix.stk")], expected);
        // Two are bad.
        assert_eq!(lab.batch(format, format, &["--max-bad", "1"]).0, 4);
        let (exit, reported) = lab.batch(format, format, &["--max-bad", "2"]);
        assert_eq!(exit, 0, "{reported}");
        let log = lab.log(&format!("{format}/_batch.jsonl"));
        assert_eq!([log["01.stk"].as_str(), log["truncated.stk"].as_str()], ["skipped"; 2], "{reported}");
        assert_eq!(log["damaged.stk"], "damaged", "still");
    }
}

#[test]
fn a_killed_batch_resumes_to_the_same_bytes() {
    let lab = Lab::new(6);
    for format in FORMATS {
        let quiet = format!("{format}-quiet");
        lab.batch(format, &quiet, &["-j", "1"]);
        let expected = lab.files(&quiet);
        let killed = format!("{format}-killed");
        for wait in [40, 120, 250] {
            let mut child = lab.command(format, &killed, &["-j", "3"]).spawn().expect("stk runs");
            std::thread::sleep(Duration::from_millis(wait));
            child.kill().expect("killed");
            child.wait().expect("ended");
        }
        lab.batch(format, &killed, &["-j", "2", "--resume"]);
        let found = lab.files(&killed);
        assert!(found.keys().eq(expected.keys()), "{:?}\n{:?}", found.keys(), expected.keys());
        let differ: Vec<_> = found.iter().filter(|(name, bytes)| expected[*name] != **bytes).collect();
        assert!(differ.is_empty(), "{:?}", differ.iter().map(|(name, _)| name).collect::<Vec<_>>());
        // A run that has nothing to do changes nothing.
        lab.batch(format, &killed, &[]);
        assert!(lab.files(&killed) == expected);
        if *format == "parquet" {
            assert_eq!(
                lab.samples_of_dataset(&killed),
                lab.samples_in_log(&format!("{killed}/_batch.jsonl"))
            );
        }
    }
}

/// A recording that began a day later than [`recording`]'s.
#[cfg(feature = "parquet")]
fn recording_of_next_day(number: u8) -> Vec<u8> {
    let mut parts = Parts::take_apart(&recording(number)).expect("a trace");
    parts.header.utc_start += 86_400_000_000_000;
    parts.to_file()
}

/// Tables that are of other parts than `_stk/state.json` says, or of parts of two runs.
#[test]
#[cfg(feature = "parquet")]
fn tables_that_were_half_replaced_are_made_again() {
    let lab = Lab::new(3);
    let state = lab.path("cut/_stk/state.json");
    lab.batch("parquet", "cut", &[]);
    assert!(state.exists());
    for number in [10, 11] {
        lab.write(&format!("{number}.stk"), &recording_of_next_day(number));
    }
    lab.batch("parquet", "whole", &[]);
    let dates: Vec<PathBuf> = std::fs::read_dir(lab.path("whole/traces"))
        .expect("a table")
        .map(|entry| PathBuf::from(entry.expect("a date").file_name()))
        .filter(|date| !lab.path("cut/traces").join(date).exists())
        .collect();
    let [date] = dates.as_slice() else { panic!("{dates:?}") };
    // Where a folder is to be renamed to is a file: renames fail half way. `traces` is the last.
    for table in ["samples", "threads", "traces"] {
        let obstacle = lab.path("cut").join(table).join(date);
        std::fs::write(&obstacle, "in the way").expect("written");
        let (exit, reported) = lab.batch("parquet", "cut", &["--max-bad", "100%"]);
        assert_eq!(exit, 1, "{table}: {reported}");
        assert!(!state.exists(), "{table}: the tables count as whole");
        let made = |table: &str| lab.path("cut").join(table).join(date).is_dir();
        assert!(!made("traces") && (table == "samples" || made("samples")), "{table}");
        std::fs::remove_file(&obstacle).expect("removed");
    }
    let (exit, reported) = lab.batch("parquet", "cut", &["--max-bad", "100%"]);
    assert_eq!(exit, 0, "{reported}");
    assert!(state.exists() && lab.files("cut") == lab.files("whole"));
}

#[test]
#[cfg(all(target_os = "linux", feature = "parquet"))]
fn a_kill_between_renames_of_tables_costs_only_time() {
    let lab = Lab::new(3);
    lab.batch("parquet", "base", &[]);
    for number in [10, 11] {
        lab.write(&format!("{number}.stk"), &recording_of_next_day(number));
    }
    lab.batch("parquet", "whole", &[]);
    let state = lab.path("cut/_stk/state.json");
    let is_cut = (0..200).any(|_| {
        let _ = std::fs::remove_dir_all(lab.path("cut"));
        let copied = Command::new("cp").arg("-r").arg(lab.path("base")).arg(lab.path("cut")).status();
        assert!(copied.expect("cp runs").success());
        let mut child = lab.command("parquet", "cut", &["-j", "2"]).spawn().expect("stk runs");
        while state.exists() && matches!(child.try_wait(), Ok(None)) {}
        child.kill().expect("killed");
        child.wait().expect("ended");
        !state.exists()
    });
    assert!(is_cut, "no run was killed while it renamed");
    lab.batch("parquet", "cut", &[]);
    assert!(state.exists() && lab.files("cut") == lab.files("whole"));
}

/// Names of temporary files and folders in a folder of outputs.
#[cfg(target_os = "linux")]
fn temporary(out: &Path) -> Vec<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let mut found = names(&out.join("_stk/tmp"));
    found.extend(names(out).into_iter().filter(|name| name.ends_with(".partial")));
    found
}

#[test]
#[cfg(target_os = "linux")]
fn what_a_killed_part_of_a_batch_left_goes_with_its_next_run_and_nothing_of_others() {
    for format in FORMATS {
        let lab = Lab::new(12);
        let (name, out) = (format!("{format}-parts"), lab.path(&format!("{format}-parts")));
        let is_left = |name: &String| {
            name.trim_start_matches(".stk-").trim_start_matches("new-").starts_with("1-of-2.")
        };
        // What was being written may have got its name before the kill.
        let killed = (0..200).any(|_| {
            let options = ["--shard", "1/2", "--max-bad", "100%", "-j", "2"];
            let mut child = lab.command(format, &name, &options).spawn().expect("stk runs");
            while !temporary(&out).iter().any(is_left) && matches!(child.try_wait(), Ok(None)) {}
            child.kill().expect("killed");
            child.wait().expect("ended");
            let left = temporary(&out).iter().any(is_left);
            if !left {
                // What is done would be passed over.
                std::fs::remove_dir_all(&out).expect("removed");
            }
            left
        });
        assert!(killed, "{format}: no run left anything");
        std::fs::create_dir_all(out.join("_stk/tmp/2-of-2.living")).expect("a folder");
        std::fs::write(out.join(".stk-2-of-2.living.partial"), "half").expect("written");
        let (exit, reported) = lab.batch(format, &name, &["--shard", "1/2", "--max-bad", "100%"]);
        assert_eq!(exit, 0, "{reported}");
        let mut left = temporary(&out);
        left.sort();
        assert_eq!(left, [".stk-2-of-2.living.partial", "2-of-2.living"], "{reported}");
    }
}

#[test]
fn a_trace_that_has_grown_is_converted_again() {
    for format in FORMATS {
        let lab = Lab::new(3);
        let whole = recording(7);
        lab.write("grows.stk", &whole[..samples_block(&whole, 1).end + 30]);
        lab.batch(format, "grown", &[]);
        assert_eq!(lab.log("grown/_batch.jsonl")["grows.stk"], "converted");
        lab.write("grows.stk", &whole);
        lab.batch(format, "grown", &[]);
        let log = lab.log("grown/_batch.jsonl");
        assert_eq!((log["grows.stk"].as_str(), log["01.stk"].as_str()), ("converted", "skipped"));
        lab.batch(format, "grown", &[]);
        assert_eq!(lab.log("grown/_batch.jsonl")["grows.stk"], "skipped");
    }
}

/// Has a batch believe that it has read a file as it is now.
#[cfg(unix)]
fn plant(seen: &Path, file: &Path) {
    use std::os::unix::fs::MetadataExt;
    let mut known: serde_json::Value =
        serde_json::from_slice(&std::fs::read(seen).expect("known files")).expect("JSON");
    let found = file.metadata().expect("a file");
    let times = [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())];
    let [modified, changed] = times.map(|(seconds, nanos)| seconds * 1_000_000_000 + nanos);
    let entry = &mut known["files"][file.to_str().expect("UTF-8")];
    assert!(entry.is_object(), "{} is not known", file.display());
    entry["stamp"] = serde_json::json!([found.len(), modified, changed, found.ino()]);
    std::fs::write(seen, known.to_string()).expect("written");
}

#[test]
#[cfg(unix)]
fn a_trace_that_did_not_change_is_not_read() {
    let lab = Lab::new(3);
    let symbols = lab.path("symbols");
    std::fs::create_dir(&symbols).expect("a folder");
    let symbols = ["-y", symbols.to_str().expect("UTF-8")];
    // A file that was just written may be written again with the same times.
    lab.batch("folded", "racy", &[]);
    assert!(!lab.path("racy").join(SEEN).exists());
    std::thread::sleep(Duration::from_millis(2100));
    for (format, limit) in FORMATS.iter().flat_map(|format| [(format, None), (format, Some("10h"))]) {
        let out = format!("{format}-{}", limit.unwrap_or_default());
        let limit: Vec<&str> = limit.map(|limit| ["--time-limit", limit]).into_iter().flatten().collect();
        let log = |more: &[&str]| {
            lab.batch(format, &out, &[&symbols, limit.as_slice(), more].concat());
            let text = std::fs::read_to_string(lab.path(&out).join("_batch.jsonl")).expect("a log");
            let lines = text.lines().map(|line| {
                let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
                line.as_object_mut().expect("an object").remove("seconds");
                (line["trace"].to_string(), line)
            });
            lines.collect::<BTreeMap<_, _>>()
        };
        let status = || lab.log(&format!("{out}/_batch.jsonl"))["02.stk"].clone();
        log(&[]);
        assert_eq!(status(), "converted");
        // Read or not, the log is the same.
        assert_eq!(log(&[]), log(&["--checksum"]));
        assert_eq!(status(), "skipped");
        let kept = std::fs::read(lab.path("in/02.stk")).expect("a trace");
        let modified = lab.path("in/02.stk").metadata().and_then(|found| found.modified()).expect("a time");
        lab.write("02.stk", b"no trace");
        plant(&lab.path(&out).join(SEEN), &lab.path("in/02.stk"));
        log(&[]);
        assert_eq!(status(), "skipped", "{out}: it is read");
        for more in [&["--checksum"][..], &["--from", "1ms"]] {
            log(more);
            assert_eq!(status(), "failed", "{out}: {more:?}: it is not read");
        }
        // Of the length and with the time of before, but written since.
        let other = recording(9);
        assert_eq!(other.len(), kept.len());
        lab.write("02.stk", &other);
        let file = std::fs::File::options().write(true).open(lab.path("in/02.stk")).expect("writable");
        file.set_modified(modified).expect("a time");
        log(&[]);
        assert_eq!(status(), "converted", "{out}");
        lab.write("02.stk", &kept);
        std::thread::sleep(Duration::from_millis(2100));
        log(&[]);
        log(&[]);
        assert_eq!(status(), "skipped");
        // Symbols that come late are looked for.
        std::fs::copy(self::kept("busy.pdb"), lab.path("symbols/busy.pdb")).expect("a kept PDB");
        log(&[]);
        assert_eq!(status(), "converted", "{out}");
        std::fs::remove_file(lab.path("symbols/busy.pdb")).expect("removed");
    }
}

#[test]
fn other_options_and_other_symbols_are_other_conversions() {
    let lab = Lab::new(2);
    let status = |more: &[&str]| {
        lab.batch("folded", "out", more);
        lab.log("out/_batch.jsonl")["01.stk"].clone()
    };
    assert_eq!(status(&[]), "converted");
    assert_eq!(status(&["-j", "1"]), "skipped", "-j makes no difference");
    for options in [&["--merge-threads"][..], &["--merge-threads=name"], &["--lines"], &["--weight", "wall"]]
    {
        assert_eq!(status(options), "converted", "{options:?}");
        assert_eq!(status(options), "skipped", "{options:?}");
    }
    // A folder without symbols makes no difference; the recording's PDBs do.
    let empty = lab.path("empty");
    std::fs::create_dir(&empty).expect("a folder");
    assert_eq!(status(&["--weight", "wall", "-y", empty.to_str().expect("UTF-8")]), "skipped");
    let traces = kept("");
    assert_eq!(status(&["--weight", "wall", "-y", traces.to_str().expect("UTF-8")]), "converted");
    // Another file in place of the output is made again.
    let output = std::fs::read_dir(lab.path("out")).expect("a folder").flatten().map(|entry| entry.path());
    let output = output.filter(|path| path.to_string_lossy().contains("/01-")).collect::<Vec<_>>();
    std::fs::write(&output[0], "").expect("written");
    let traces = traces.to_str().expect("UTF-8").to_owned();
    assert_eq!(status(&["--weight", "wall", "-y", &traces]), "converted");
    // A PDB that was changed since is another one, although its ends and its length are the same.
    let symbols = lab.path("symbols");
    std::fs::create_dir(&symbols).expect("a folder");
    let pdb = symbols.join("busy.pdb");
    std::fs::copy(kept("busy.pdb"), &pdb).expect("a kept PDB");
    let with_symbols = ["--weight", "wall", "-y", symbols.to_str().expect("UTF-8")];
    assert_eq!(status(&with_symbols), "converted");
    assert_eq!(status(&with_symbols), "skipped");
    let file = std::fs::File::options().write(true).open(&pdb).expect("writable");
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30)).expect("a time");
    assert_eq!(status(&with_symbols), "converted");
}

#[test]
fn the_parts_of_a_batch_make_the_whole() {
    let lab = Lab::new(8);
    for format in FORMATS {
        let (whole, parts) = (format!("{format}-whole"), format!("{format}-parts"));
        lab.batch(format, &whole, &[]);
        for part in ["1/3", "2/3", "3/3"] {
            lab.batch(format, &parts, &["--shard", part, "--max-bad", "100%"]);
        }
        let logs = [1, 2, 3].map(|part| lab.log(&format!("{parts}/_batch.{part}-of-3.jsonl")));
        assert_eq!(logs.iter().map(BTreeMap::len).sum::<usize>(), 13, "each trace once");
        assert!(logs.iter().all(|log| log.len() < 13), "{logs:?}");
        let (_, reported) = lab.batch(format, &parts, &[]);
        assert!(!reported.contains(" converted"), "{reported}");
        assert!(lab.files(&parts) == lab.files(&whole), "{format}");
    }
}

#[test]
fn a_batch_needs_a_folder() {
    let lab = Lab::new(0);
    for more in [&[][..], &["-o", "-"], &["-o", "out", "--shard", "0/3"], &["-o", "out", "--max-bad", "x"]] {
        let output = command(&["batch", "--to", "folded"]).arg(lab.path("in")).args(more).output();
        assert_eq!(output.expect("stk runs").status.code(), Some(2), "{more:?}");
    }
}

#[test]
fn options_that_a_batch_cannot_keep_are_refused() {
    let lab = Lab::new(0);
    for (format, options, named) in [
        ("folded", &["--split", "thread"][..], "--split"),
        ("folded", &["--split", "time=1s", "--resume"], "--split"),
        ("folded", &["--require-symbols", "90"], "--require-symbols"),
        ("chrome", &["--weight", "wall"], "--weight"),
        ("chrome", &["--merge-threads"], "--merge-threads"),
    ] {
        let (exit, reported) = lab.batch(format, "out", options);
        assert!(exit == 2 && reported.contains(named), "{options:?}: {exit} {reported}");
        assert!(!lab.path("out").exists(), "nothing is made");
    }
}

#[test]
fn only_the_chosen_processes_are_converted() {
    let lab = Lab::new(1);
    let (exit, reported) = lab.batch("folded", "out", &["--pid", "4294967295"]);
    assert_eq!(exit, 4, "{reported}");
    assert!(reported.contains("passed over"), "{reported}");
    // What is no trace has no process.
    let expected = BTreeMap::from([("no-trace.stk".to_owned(), "failed".to_owned())]);
    assert_eq!(lab.log("out/_batch.jsonl"), expected);
}

#[test]
fn a_trace_that_takes_too_long_costs_itself_and_is_tried_again() {
    let lab = Lab::new(2);
    for format in FORMATS {
        let (exit, reported) = lab.batch(format, format, &["--time-limit", "0"]);
        assert_eq!(exit, 4, "{reported}");
        assert!(reported.contains("took longer than --time-limit"), "{reported}");
        let log = lab.log(&format!("{format}/_batch.jsonl"));
        assert_eq!([log["00.stk"].as_str(), log["truncated.stk"].as_str()], ["timeout"; 2]);
        assert_eq!(log["no-trace.stk"], "failed");
        let text = std::fs::read_to_string(lab.path(&format!("{format}/_batch.jsonl"))).expect("a log");
        assert!(text.contains("took longer than the time limit of 0ns"), "{text}");
        let outputs =
            lab.files(format).into_keys().filter(|name| name.extension().is_some_and(|end| end == "folded"));
        assert_eq!(outputs.count(), 0, "nothing half made");
        let (exit, reported) = lab.batch(format, format, &["--time-limit", "10h", "--max-bad", "2"]);
        assert_eq!(exit, 0, "{reported}");
        let log = lab.log(&format!("{format}/_batch.jsonl"));
        assert_eq!([log["00.stk"].as_str(), log["truncated.stk"].as_str()], ["converted"; 2]);
        // What was left by the first run makes no difference.
        let (exit, reported) = lab.batch(format, &format!("{format}-at-once"), &["--max-bad", "2"]);
        assert_eq!(exit, 0, "{reported}");
        assert_eq!(lab.files(format), lab.files(&format!("{format}-at-once")));
    }
}

/// Traces that cannot be converted within limits: one that gives no byte, and one whose bytes never
/// end.
#[cfg(target_os = "linux")]
fn endless(lab: &Lab) -> [String; 2] {
    let (pipe, zeros) = (lab.path("pipe.stk"), lab.path("zeros.stk"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    std::os::unix::fs::symlink("/dev/zero", &zeros).expect("a link");
    [pipe, zeros].map(|path| path.to_str().expect("UTF-8").to_owned())
}

#[test]
#[cfg(target_os = "linux")]
fn a_trace_beyond_a_limit_costs_itself_only_and_the_bytes_of_others_are_the_same() {
    for format in FORMATS {
        let lab = Lab::new(3);
        let (quiet, limited) = (format!("{format}-quiet"), format!("{format}-limited"));
        lab.batch(format, &quiet, &["-j", "1"]);
        let [pipe, zeros] = endless(&lab);
        // The pipe and what is no trace are looked at together: nothing says that they are of
        // different recordings.
        let options = ["-j", "2", "--memory-limit", "200M", "--time-limit", "4s", "--", &pipe, &zeros];
        let (exit, reported) = lab.batch(format, &limited, &options);
        assert_eq!(exit, 4, "{reported}");
        let log = lab.log(&format!("{limited}/_batch.jsonl"));
        let status = |name: &str| log[name].as_str();
        assert_eq!([status("pipe.stk"), status("zeros.stk")], ["timeout", "memory"], "{reported}");
        assert_eq!([status("no-trace.stk"), status("damaged.stk")], ["failed", "damaged"], "{reported}");
        assert_eq!([status("00.stk"), status("02.stk"), status("truncated.stk")], ["converted"; 3]);
        assert!(lab.files(&limited) == lab.files(&quiet), "{reported}");
        let (_, reported) = lab.batch(format, &limited, &["--time-limit", "10h"]);
        assert_eq!(lab.log(&format!("{limited}/_batch.jsonl"))["01.stk"], "skipped", "{reported}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_limit_that_no_process_can_start_within_is_reported() {
    let lab = Lab::new(1);
    let (exit, reported) = lab.batch("folded", "out", &["--memory-limit", "64K"]);
    assert_eq!(exit, 1, "{reported}");
    assert!(reported.contains("a greater --memory-limit"), "{reported}");
}

/// Whether a process ends within some seconds.
#[cfg(target_os = "linux")]
fn ends(process: &Path) -> bool {
    (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        // One that nobody has waited for yet has no memory any more.
        std::fs::read_to_string(process.join("statm")).map_or(true, |sizes| sizes.starts_with("0 "))
    })
}

/// Waits for the only process that another has started.
#[cfg(target_os = "linux")]
fn child_of(process: u32) -> PathBuf {
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(20));
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("it runs").flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        if let Some(child) =
            children.flat_map(|text| text.split_whitespace().map(str::to_owned).next()).next()
        {
            return Path::new("/proc").join(child);
        }
    }
    panic!("{process} has started no process");
}

#[test]
#[cfg(target_os = "linux")]
fn the_processes_of_a_batch_end_with_it() {
    for signal in ["INT", "TERM", "KILL"] {
        let lab = Lab::new(0);
        let [pipe, _] = endless(&lab);
        let options = ["-j", "1", "--time-limit", "10h", "--", &pipe];
        let stk = lab.command("folded", "out", &options);
        // Shells start background programs with Ctrl-C ignored, and stk would keep that setting.
        let mut batch = Command::new("env")
            .arg("--default-signal=INT")
            .arg(stk.get_program())
            .args(stk.get_args())
            .current_dir(stk.get_current_dir().unwrap_or(Path::new(".")))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("env runs");
        let process = child_of(batch.id());
        let mut kill = Command::new("kill");
        assert!(kill.args(["-s", signal, &batch.id().to_string()]).status().expect("kill runs").success());
        batch.wait().expect("ended");
        assert!(ends(&process), "{signal}: {} still runs", process.display());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_is_killed_costs_its_trace() {
    let lab = Lab::new(2);
    let [pipe, _] = endless(&lab);
    let options = ["-j", "1", "--time-limit", "10h", "--max-bad", "3", "--", &pipe];
    let mut batch = lab.command("folded", "out", &options).spawn().expect("stk runs");
    let process = child_of(batch.id());
    // The pipe is the last: everything else is done when its turn comes.
    let is_last = || {
        let log = std::fs::read_to_string(lab.path("out/_batch.jsonl")).unwrap_or_default();
        log.lines().count() == 7
    };
    assert!((0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        is_last()
    }));
    let id = process.file_name().expect("a number").to_owned();
    assert!(Command::new("kill").arg("-KILL").arg(id).status().expect("kill runs").success());
    assert_eq!(batch.wait().expect("ended").code(), Some(0), "three are bad");
    assert_eq!(lab.log("out/_batch.jsonl")["pipe.stk"], "failed");
    let text = std::fs::read_to_string(lab.path("out/_batch.jsonl")).expect("a log");
    assert!(text.contains("its process ended (signal: 9 (SIGKILL))"), "{text}");
}

/// What somebody who may write in the folder of the outputs can put there.
#[cfg(unix)]
mod planted {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A lab with one trace, and a home with somebody's files.
    fn lab() -> Lab {
        let lab = Lab(tempfile::tempdir().expect("a folder"));
        for made in ["in", "home/docs", "home/new-1-of-1.x", "out"] {
            std::fs::create_dir_all(lab.path(made)).expect("a folder");
        }
        lab.write("a.stk", &recording(1));
        for name in ["home/letter.txt", "home/docs/thesis.txt", "home/new-1-of-1.x/letter.txt"] {
            std::fs::write(lab.path(name), "mine").expect("written");
        }
        lab
    }

    fn home(lab: &Lab) -> BTreeMap<PathBuf, Vec<u8>> {
        lab.files("home")
    }

    fn link(lab: &Lab, target: &str, at: &str) {
        let at = lab.path(at);
        std::fs::create_dir_all(at.parent().expect("a parent")).expect("a folder");
        symlink(lab.path(target), at).expect("a link");
    }

    /// The name of the output, and of its record.
    fn names(lab: &Lab) -> (String, String) {
        lab.batch("folded", "first", &[]);
        let names = lab.files("first").into_keys();
        let mut output = names.map(|name| name.to_str().expect("text").to_owned());
        let output = output.find(|name| name.ends_with(".folded")).expect("an output");
        let record = format!("_stk/done/{output}.json");
        assert!(lab.path("first").join(&record).exists());
        (output, record)
    }

    const SHARDS: [&[&str]; 2] = [&[], &["--shard", "1/1"]];

    #[test]
    fn link_in_stks_own_folder_is_an_error_and_its_target_stays() {
        for format in FORMATS {
            for shard in SHARDS {
                for at in ["_stk", "_stk/tmp", "_stk/done", "_stk/tmp/new-1-of-1.x"] {
                    let lab = lab();
                    link(&lab, "home", &format!("out/{at}"));
                    let before = home(&lab);
                    let (exit, printed) = lab.batch(format, "out", shard);
                    assert!(exit == 1 || exit == 4, "{format} {shard:?} {at}: {printed}");
                    assert!(home(&lab) == before, "{format} {shard:?} {at}");
                    if exit == 1 {
                        let named = format!("{}: is a link", lab.path("out").join(at).display());
                        assert!(printed.contains(&named), "{format} {shard:?} {at}: {printed}");
                    }
                }
            }
        }
    }

    #[test]
    fn link_at_an_output_costs_its_trace_and_its_target_stays() {
        for shard in SHARDS {
            for has_record in [false, true] {
                let lab = lab();
                let (output, record) = names(&lab);
                link(&lab, "home/letter.txt", &format!("out/{output}"));
                if has_record {
                    std::fs::create_dir_all(lab.path("out/_stk/done")).expect("a folder");
                    let length = r#"{"key":"","bytes":4,"facts":{"samples":0,"dropped":0,"damaged_blocks":0,"complete":true}}"#;
                    std::fs::write(lab.path("out").join(&record), length).expect("written");
                }
                for force in [&[][..], &["--force"]] {
                    let (exit, printed) = lab.batch("folded", "out", &[shard, force].concat());
                    assert_eq!(exit, 4, "{printed}");
                    let log = std::fs::read_dir(lab.path("out")).expect("a folder").flatten();
                    let log = log.filter(|entry| entry.path().extension().is_some_and(|e| e == "jsonl"));
                    let log = log.map(|entry| std::fs::read_to_string(entry.path()).expect("a log"));
                    let text = log.collect::<String>();
                    let named = format!("{}: is a link", lab.path("out").join(&output).display());
                    assert!(text.contains(&named), "{text}");
                    assert_eq!(std::fs::read(lab.path("home/letter.txt")).expect("there"), b"mine");
                }
            }
        }
    }

    #[test]
    fn a_planted_record_does_not_give_a_file_to_stk() {
        for record_text in ["{}", "", "[]", "{\"key\":\"\",\"bytes\":0}"] {
            let lab = lab();
            let (output, record) = names(&lab);
            std::fs::create_dir_all(lab.path("out/_stk/done")).expect("a folder");
            std::fs::write(lab.path("out").join(&record), record_text).expect("written");
            std::fs::write(lab.path("out").join(&output), "mine").expect("written");
            assert_eq!(lab.batch("folded", "out", &[]).0, 4, "{record_text}");
            assert_eq!(std::fs::read(lab.path("out").join(&output)).expect("there"), b"mine");
        }
    }

    #[test]
    fn devices_and_pipes_in_the_folder_are_not_read() {
        let pipe = |path: &Path| {
            let made = Command::new("mkfifo").arg(path).status().expect("mkfifo");
            assert!(made.success());
        };
        let zero = |path: &Path| symlink("/dev/zero", path).expect("a link");
        type Plant<'a> = (&'a str, &'a dyn Fn(&Path));
        let plants: [Plant<'_>; 2] = [("pipe", &pipe), ("zero", &zero)];
        for (what, plant) in plants {
            let lab = lab();
            let (_, record) = names(&lab);
            for (at, shard) in [(record.as_str(), SHARDS[0]), ("_stk/tmp/lock.1-of-1", SHARDS[1])] {
                let out = format!("out-{what}-{}", shard.len());
                let at = lab.path(&out).join(at);
                std::fs::create_dir_all(at.parent().expect("a parent")).expect("a folder");
                plant(&at);
                let (exit, printed) = lab.batch("folded", &out, shard);
                assert!(exit == 1 || exit == 4, "{what} {}: {printed}", at.display());
            }
            if cfg!(feature = "parquet") {
                for name in ["_stk/state.json", "_stk/lock", "_stk.json"] {
                    let out = format!("tables-{what}-{}", name.replace('/', "-"));
                    let at = lab.path(&out).join(name);
                    std::fs::create_dir_all(at.parent().expect("a parent")).expect("a folder");
                    plant(&at);
                    assert_eq!(lab.batch("parquet", &out, &[]).0, 1, "{what} {name}");
                }
            }
        }
    }

    #[test]
    fn a_log_replaces_only_a_log() {
        let lab = lab();
        link(&lab, "home/letter.txt", "out/_batch.jsonl");
        for force in [&[][..], &["--force"]] {
            let (exit, printed) = lab.batch("folded", "out", force);
            assert!(exit == 1 && printed.contains("_batch.jsonl: is a link"), "{printed}");
        }
        let letter = lab.path("home/letter.txt");
        let log = ["--log", letter.to_str().expect("text")];
        let (exit, printed) = lab.batch("folded", "other", &log);
        assert!(exit == 1 && printed.contains("is no log of stk batch: --force replaces it"), "{printed}");
        assert_eq!(std::fs::read(&letter).expect("there"), b"mine");
        assert_eq!(lab.batch("folded", "other", &[&log[..], &["--force"]].concat()).0, 0);
        assert_eq!(lab.batch("folded", "other", &log).0, 0, "now it is a log");
        let text = std::fs::read_to_string(&letter).expect("there");
        assert_eq!((text.lines().count(), lab.log("home/letter.txt")["a.stk"].as_str()), (1, "skipped"));
        assert_eq!(lab.batch("folded", "other", &["--log", "/dev/null"]).0, 0, "a device is written to");
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn links_at_tables_lead_stk_into_no_other_dataset() {
        let dates = ["samples/date=2001-01-01", "traces/date=2001-01-01"];
        for of in ["batch", "convert", "apply"] {
            for at in ["samples", "frames", "_stk/parts", "_stk/names", "samples/date=2001-01-01"] {
                let lab = lab();
                lab.batch("parquet", "home/lab.parquet", &[]);
                for date in dates {
                    std::fs::create_dir_all(lab.path("home/lab.parquet").join(date)).expect("a folder");
                    let table = lab.path("home/lab.parquet").join(date).join("0000.parquet");
                    std::fs::write(table, "another day").expect("written");
                }
                std::fs::create_dir_all(lab.path("home/lab.parquet/_stk/names")).expect("a folder");
                lab.batch("parquet", "out", &[]);
                let _ = std::fs::remove_file(lab.path("out/_stk/state.json"));
                let _ = std::fs::remove_dir_all(lab.path("out").join(at));
                link(&lab, &format!("home/lab.parquet/{at}"), &format!("out/{at}"));
                let before = home(&lab);
                let (out, trace) = (lab.path("out"), lab.path("in/a.stk"));
                let out = out.to_str().expect("text");
                let mut process = command(&[]);
                match of {
                    "batch" => process = lab.command("parquet", "out", &[]),
                    "convert" => drop(process.arg("convert").arg(trace).args(["--to", "parquet", "-o", out])),
                    _ => drop(process.args(["symbols", "apply", out, "--offline", "--no-default-symbols"])),
                }
                let ended = process.output().expect("stk runs");
                let printed = String::from_utf8_lossy(&ended.stderr);
                assert_eq!(ended.status.code(), Some(1), "{of} {at}: {printed}");
                let named = format!("{}: is a link", lab.path("out").join(at).display());
                assert!(printed.contains(&named), "{of} {at}: {printed}");
                assert!(home(&lab) == before, "{of} {at} changed the other dataset");
            }
        }
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn what_others_put_into_a_table_s_folder_stays() {
        let lab = lab();
        lab.batch("parquet", "out", &[]);
        let at = |name: &str| lab.path("out").join(name);
        let date = std::fs::read_dir(at("samples")).expect("a folder").flatten().next().expect("a date");
        let noted = date.path().join("notes.txt");
        for name in [&noted, &at("frames/notes.txt")] {
            std::fs::write(name, "mine").expect("written");
        }
        std::fs::create_dir_all(at("samples/date=2001-01-01")).expect("a folder");
        for name in ["notes.txt", "0000.parquet"] {
            std::fs::write(at("samples/date=2001-01-01").join(name), "x").expect("written");
        }
        lab.write("b.stk", &recording(2));
        let (exit, printed) = lab.batch("parquet", "out", &[]);
        assert_eq!(exit, 0, "{printed}");
        assert_eq!(std::fs::read(&noted).expect("there"), b"mine");
        assert_eq!(std::fs::read(at("frames/notes.txt")).expect("there"), b"mine");
        let old: Vec<_> =
            std::fs::read_dir(at("samples/date=2001-01-01")).expect("a folder").flatten().collect();
        assert_eq!(old.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["notes.txt"]);
    }
}
