//! `stk top`: the newest seconds of a trace, also of one that still grows.

use crate::support::{command, kept_text};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Output;

fn stk(arguments: &[&str]) -> Output {
    command(arguments).output().expect("stk runs")
}

#[track_caller]
fn screen(arguments: &[&str]) -> String {
    let shown = stk(&[&["top"], arguments].concat());
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{text}{}", String::from_utf8_lossy(&shown.stderr));
    text
}

/// The figures of one thread's row: its share and what it did last.
fn row<'t>(screen: &'t str, name: &str) -> (f64, &'t str) {
    let line = screen.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}:\n{screen}"));
    let share = line.trim_start().split('%').next().and_then(|share| share.parse().ok());
    (share.expect("a share"), line.split(name).nth(1).expect("more").trim())
}

#[test]
fn one_screen_shows_the_shares_that_stats_has_and_what_threads_wait_for() {
    let trace = kept_text("busy.stk");
    let text = screen(&[&trace, "--once", "--span", "60s", "--top", "50"]);
    assert!(text.starts_with("busy.exe (pid 672), ") && text.contains("the recording has ended"), "{text}");
    let stats = stk(&["stats", &trace, "--json"]);
    let stats: serde_json::Value = serde_json::from_slice(&stats.stdout).expect("JSON");
    let stats = &stats["traces"][0];
    let best = &stats["functions_by_self"][0];
    let share = 100.0 * best["self"]["weight_ns"].as_f64().unwrap() / stats["counted_ns"].as_f64().unwrap();
    let shown = text.lines().find(|line| line.contains(best["function"].as_str().unwrap())).expect(&text);
    assert!(shown.trim_start().starts_with(&format!("{share:.1}%")), "{share} {shown}");
    let (_, now) = row(&text, " waiter ");
    assert!(now.starts_with("waiting (") && now.contains("wait_for_event"), "{now}");
    let (cpu, _) = row(&text, " recursion ");
    assert!(cpu > 0.0, "{text}");
}

/// A recorder appends whole blocks; a reader may come in the middle of one.
#[test]
fn a_trace_that_ends_in_the_middle_of_a_block_is_shown_up_to_there() {
    let bytes = std::fs::read(kept_text("busy.stk")).expect("a kept trace");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("grows.stk");
    let mut file = File::create(&path).expect("writable");
    file.write_all(&bytes[..bytes.len() * 9 / 10]).expect("writable");
    let text = screen(&[path_text(&path), "--once"]);
    assert!(text.starts_with("busy.exe (pid 672), ") && !text.contains("has ended"), "{text}");
    assert!(text.contains(" recursion "), "{text}");
}

#[test]
fn a_file_that_is_no_trace_is_a_failure_that_names_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.stk");
    std::fs::write(&path, [b'x'; 500]).expect("writable");
    let shown = stk(&["top", path_text(&path), "--once"]);
    let said = String::from_utf8_lossy(&shown.stderr);
    assert_eq!(shown.status.code(), Some(1), "{said}");
    assert!(said.contains("x.stk"), "{said}");
}

fn path_text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
