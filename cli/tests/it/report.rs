//! `stk report`: which files it writes and replaces, and traces that it cannot read.

use crate::support::{command, kept};
use std::path::Path;
use std::process::Output;

/// Runs `stk report` in a folder, with kept traces for the names that end in `.stk`.
fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = command(&["report"]);
    command.current_dir(folder);
    for argument in arguments {
        match argument.ends_with(".stk") && !folder.join(argument).exists() {
            true => command.arg(kept(argument)),
            false => command.arg(argument),
        };
    }
    command.output().unwrap()
}

fn reported(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_page_is_named_after_its_trace_and_replaced_by_its_own_kind_only() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("busy.report.html");
    assert!(report(folder.path(), &["busy.stk"]).status.success());
    let first = std::fs::read(&page).unwrap();
    assert!(first.starts_with(b"<!doctype html>"));
    let again = report(folder.path(), &["busy.stk"]);
    assert!(
        again.status.success() && reported(&again).contains("replaced stk's own output"),
        "{}",
        reported(&again)
    );
    assert!(std::fs::read(&page).unwrap() == first, "the same bytes");
    let other = report(folder.path(), &["mixed.stk", "-o", "busy.report.html"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(reported(&other).contains("--force"), "{}", reported(&other));
    assert!(std::fs::read(&page).unwrap() == first);
    assert!(report(folder.path(), &["mixed.stk", "-o", "busy.report.html", "--force"]).status.success());
    assert!(std::fs::read(&page).unwrap() != first);
}

#[test]
fn a_page_of_several_traces_is_not_that_of_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    assert!(report(folder.path(), &["busy.stk", "mixed.stk"]).status.success());
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert_eq!(page.matches("class=\"trace\"").count(), 2);
    let one = report(folder.path(), &["busy.stk", "-o", "report.html"]);
    assert_eq!(one.status.code(), Some(1), "{}", reported(&one));
    assert!(report(folder.path(), &["busy.stk", "mixed.stk"]).status.success());
}

#[test]
fn an_unreadable_trace_is_left_out_and_sets_the_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.stk"), b"no trace").unwrap();
    let output = report(folder.path(), &["bad.stk", "busy.stk", "-o", "page.html"]);
    assert!(!output.status.success());
    assert!(reported(&output).contains("bad.stk"), "{}", reported(&output));
    let page = std::fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert_eq!(page.matches("class=\"trace\"").count(), 1);
    let none = report(folder.path(), &["bad.stk", "-o", "none.html"]);
    assert!(!none.status.success() && !folder.path().join("none.html").exists());
}

#[test]
fn the_page_of_one_trace_goes_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let output = report(folder.path(), &["busy.stk", "-o", "-"]);
    assert!(output.status.success() && output.stdout.starts_with(b"<!doctype html>"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
