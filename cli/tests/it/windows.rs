//! Windows of time: what `--from` and `--until` choose, what the parts of a split hold and what a
//! page selects are parts of one whole.

use crate::support::{Ran, command, kept, kept_text, more_traces};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use stk_profile::pipeline::{LoadOptions, Loaded, load};
use stk_profile::profile::{Profile, RunSelection, Runs, Weight, part};
use stk_tests::synth::Random;

const WEIGHTS: [Weight; 5] = [Weight::Cpu, Weight::Wall, Weight::Waiting, Weight::Samples, Weight::Active];
/// How far the times of parts may be from the whole, for each thread.
const ROUNDING_NS: u64 = 1;
/// Cuts of a trace.
const CUTS: u64 = 1_000;

fn loaded(trace: &Path, window: (Option<u64>, Option<u64>)) -> Loaded {
    let (from_ns, until_ns) = window;
    load(trace, &LoadOptions { from_ns, until_ns, ..LoadOptions::default() }).unwrap()
}

/// By thread: the sum of each weight.
fn sums(profile: &Profile, runs: &Runs) -> Vec<[u64; WEIGHTS.len()]> {
    let mut sums = vec![[0; WEIGHTS.len()]; profile.threads.len()];
    let added: io::Result<()> = runs.for_each(|batch| {
        for (sum, weight) in sums[batch.thread as usize].iter_mut().zip(WEIGHTS) {
            *sum += batch.runs.iter().map(|run| weight.of(run, profile.trace.interval_ns)).sum::<u64>();
        }
        Ok(())
    });
    added.unwrap();
    sums
}

fn part_sums(whole: &mut Loaded, from: u64, until: u64) -> Vec<[u64; WEIGHTS.len()]> {
    whole.profile.window = None;
    let runs = part(&mut whole.profile, &whole.runs, RunSelection::Span(from, until)).unwrap();
    sums(&whole.profile, &runs)
}

/// The cuts of a trace whose parts do not add up to the whole.
fn failed_cuts(trace: &Path) -> Vec<String> {
    let mut random = Random::new(13);
    let mut whole = loaded(trace, (None, None));
    let (expected, duration) = (sums(&whole.profile, &whole.runs), whole.profile.trace.duration_ns);
    let mut failed = Vec::new();
    for round in 0..CUTS {
        let mut cuts: Vec<u64> = (0..1 + round % 7).map(|_| random.number() % duration.max(1)).collect();
        cuts.extend([0, u64::MAX]);
        cuts.sort_unstable();
        let mut found = vec![[0; WEIGHTS.len()]; expected.len()];
        for span in cuts.windows(2) {
            for (sum, more) in found.iter_mut().zip(part_sums(&mut whole, span[0], span[1])) {
                sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            }
        }
        for (thread, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
                let allowed = if at < 3 { ROUNDING_NS } else { 0 };
                if found.abs_diff(*expected) > allowed {
                    let what = format!("thread {thread}, {:?}: {found} of {expected}", WEIGHTS[at]);
                    failed.push(format!("{}: {cuts:?}: {what}", trace.display()));
                }
            }
        }
    }
    failed
}

#[test]
fn parts_of_random_cuts_add_up_to_the_whole() {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/tests/data");
    let of_formats = ["format-v1.stk", "format-v1.1.stk"].map(|name| formats.join(name));
    let kept = [kept("busy.stk"), kept("mixed.stk")].into_iter().chain(of_formats);
    for trace in kept.chain(more_traces()) {
        let failed = failed_cuts(&trace);
        println!("measured: {}: {CUTS} cuts, {} failures", trace.display(), failed.len());
        assert!(failed.is_empty(), "{}", failed.join("\n"));
    }
}

#[test]
fn a_window_has_what_the_same_part_of_a_split_has() {
    for (trace, from, until) in
        [("busy.stk", 1_000, 2_000), ("mixed.stk", 0, 1_700), ("mixed.stk", 8_000, 9_000)]
    {
        let [from, until] = [from, until].map(|ms: u64| ms * 1_000_000);
        let path = kept(trace);
        let mut whole = loaded(&path, (None, None));
        let window = loaded(&path, (Some(from), Some(until)));
        assert_eq!(sums(&window.profile, &window.runs), part_sums(&mut whole, from, until), "{trace}");
    }
}

fn stats(trace: &str, options: &[&str]) -> Value {
    let ran = Ran::of(&mut command(&[&["stats", "--json", "--top", "0", trace], options].concat()));
    assert_eq!(ran.code, Some(0), "{options:?}: {ran:?}");
    serde_json::from_str::<Value>(&ran.out).unwrap()["traces"][0].take()
}

#[test]
fn the_head_of_a_window_is_of_the_window() {
    let trace = kept_text("busy.stk");
    let window = stats(&trace, &["--from", "1s", "--until", "2s"]);
    let totals = &window["totals"];
    assert_eq!(totals["duration_ns"], 1_000_000_000);
    assert_eq!(window["selection"]["from_ns"], 1_000_000_000u64);
    assert_eq!(window["selection"]["until_ns"], 2_000_000_000u64);
    let whole = stats(&trace, &[]);
    assert!(whole["selection"].is_null());
    let late = |of: &Value| {
        of["dropped"].as_array().unwrap().iter().map(|row| row["samples"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(late(&window) < late(&whole), "{} of {}", late(&window), late(&whole));
    let printed = Ran::of(&mut command(&["stats", &trace, "--from", "1s", "--until", "2s", "--full"])).out;
    assert!(printed.contains(" in 1.00 s, "), "{printed}");
    // No thread is on more than one processor.
    let share = printed.split_once("CPU, up to ").unwrap().1.split_once(" %").unwrap().0;
    assert!(share.parse::<u64>().unwrap() <= 100, "{share} %");
}

#[test]
fn windows_of_a_trace_add_up_in_its_lists() {
    let trace = kept_text("mixed.stk");
    let lists = |options: &[&str]| {
        let stats = stats(&trace, options);
        let own = |row: &Value| {
            (
                row["function"].to_string() + &row["module"].to_string(),
                row["self"]["weight_ns"].as_u64().unwrap(),
            )
        };
        let functions: BTreeMap<String, u64> =
            stats["functions_by_self"].as_array().unwrap().iter().map(own).collect();
        (stats["totals"]["cpu_ns"].as_u64().unwrap(), functions)
    };
    let (whole, functions) = lists(&[]);
    let parts = [lists(&["--until", "1.7s"]), lists(&["--from", "1.7s"])];
    let threads = 20;
    assert!((parts[0].0 + parts[1].0).abs_diff(whole) <= threads);
    for (name, own) in functions {
        let sum: u64 = parts.iter().filter_map(|(_, part)| part.get(&name)).sum();
        assert!(sum.abs_diff(own) <= threads, "{name}: {sum} of {own}");
    }
}

#[test]
fn rows_of_spans_of_time_are_the_windows_of_those_times() {
    let trace = kept_text("busy.stk");
    let answer = stats(&trace, &["--group-by", "time=1s"]);
    let rows = answer["groups"]["rows"].as_array().unwrap();
    let seconds: Vec<&str> = rows.iter().map(|row| row["values"][0].as_str().unwrap()).collect();
    assert_eq!(seconds, ["0s", "1s", "2s", "3s", "4s", "5s", "6s", "7s", "8s"]);
    for (second, row) in rows.iter().enumerate() {
        let (from, until) = (format!("{second}s"), format!("{}s", second + 1));
        let window = stats(&trace, &["--from", &from, "--until", &until]);
        assert_eq!(row["self"]["weight_ns"], window["counted_ns"], "{second}");
        assert_eq!(row["self"]["samples"], window["totals"]["samples"], "{second}");
    }
    let by_thread = stats(&trace, &["--group-by", "time=1500ms,thread-name"]);
    let rows = by_thread["groups"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["values"] == serde_json::json!(["1.5s", "recursion"])));
    let sum: u64 = rows.iter().map(|row| row["self"]["weight_ns"].as_u64().unwrap()).sum();
    assert_eq!(answer["counted_ns"], sum);
    for (key, code, says) in [("time=1ns", 1, "makes more than 10000 spans"), ("time=0", 2, "time=LENGTH")] {
        let ran = Ran::of(&mut command(&["stats", &trace, "--group-by", key]));
        assert!(ran.code == Some(code) && ran.error.contains(says), "{ran:?}");
    }
}

#[test]
fn an_unfinished_trace_ends_with_its_samples() {
    // Events are written before the samples of their time: what is cut off are samples.
    for trace in ["busy.stk", "mixed.stk"] {
        let bytes = std::fs::read(kept(trace)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cut.stk");
        let mut compared = 0;
        for part in [60, 70, 80, 90] {
            std::fs::write(&path, &bytes[..bytes.len() * part / 100]).unwrap();
            let Loaded { profile, runs, .. } = load(&path, &LoadOptions::default()).unwrap();
            let window = profile.window();
            if runs.span().is_empty() {
                continue; // The samples' first block is behind the cut.
            }
            compared += 1;
            let gap_ns = window.end.abs_diff(runs.span().end);
            assert!(
                gap_ns <= 2 * profile.trace.interval_ns,
                "{trace} {part} %: {window:?} {:?}",
                runs.span()
            );
        }
        assert!(compared > 0, "{trace}");
    }
}
