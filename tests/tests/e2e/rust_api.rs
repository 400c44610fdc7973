//! The feature `api` of stk-agent, by the example examples/rust_api.

use std::collections::HashMap;

use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// What the program said at its end, by name.
fn printed(program: &mut Program) -> HashMap<String, i64> {
    program.ends_saying("\nend");
    let output = program.output();
    let pairs = output.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
}

fn start(folder: &Folder, arguments: &[&str]) -> Program {
    let exe = wine::path("STK_RUST_API");
    Program::ready(folder, folder.path(), &exe, &[arguments, &["--until", "over"]].concat())
}

/// Only the calls of one outcome were counted.
#[track_caller]
fn all_are(outcomes: &HashMap<String, i64>, call: &str, outcome: &str) {
    for other in ["done", "not_recording", "no_agent", "other"] {
        let count = outcomes[&format!("{call}_{other}")];
        assert_eq!(count > 0, other == outcome, "{call}_{other} {count}: {outcomes:?}");
    }
}

#[test]
fn without_an_agent_the_calls_do_nothing() {
    let folder = Folder::new("rust-api-none");
    let mut program = start(&folder, &[]);
    std::fs::write(folder.file("over"), "").expect("writable");
    let outcomes = printed(&mut program);
    assert_eq!((outcomes["loaded"], outcomes["frames"]), (0, -1));
    for call in ["capture", "mark", "thread_name"] {
        all_are(&outcomes, call, "no_agent");
    }
}

#[test]
fn an_agent_that_the_program_loads_walks_and_names_without_a_recording() {
    let folder = Folder::new("rust-api-load");
    let agent = wine::windows_path(&wine::path("STK_WINDOWS_BIN").join("agent.dll"));
    let mut program = start(&folder, &[&agent]);
    std::fs::write(folder.file("over"), "").expect("writable");
    let outcomes = printed(&mut program);
    assert_eq!((outcomes["loaded"], outcomes["innermost_first"]), (1, 1));
    assert!(outcomes["frames"] >= 3, "{outcomes:?}");
    all_are(&outcomes, "capture", "not_recording");
    all_are(&outcomes, "mark", "not_recording");
    all_are(&outcomes, "thread_name", "done");
}

#[test]
fn a_recorded_program_finds_the_agent_and_captures_marks_and_names() {
    let folder = Folder::new("rust-api");
    let mut program = start(&folder, &[]);
    let pid = program.pid();
    let mut inject = Inject::start(&folder, &["--pid", &pid, "-o", "a.stk"]);
    inject.wait_until_recording();
    let events = |kind: &str| {
        let listed = stk::json(folder.path(), &["events", "a.stk", "--kind", kind, "--json"]);
        listed["traces"][0]["events"].as_array().expect("a list").clone()
    };
    wine::wait_for("captures", || (events("capture").len() >= 3).then_some(()));
    // The program holds the agent and has called it.
    let refused = Inject::run(&folder, &["stop", "--pid", &pid, "--unload"]);
    refused.expect(1).says("stopped rust_api.exe").says("the program itself has called it");
    inject.finish().expect(0);
    std::fs::write(folder.file("over"), "").expect("writable");
    let outcomes = printed(&mut program);
    assert_eq!(outcomes["loaded"], 1);
    assert!(
        outcomes["capture_done"] >= 3 && outcomes["mark_done"] >= 3 && outcomes["thread_name_done"] >= 3,
        "{outcomes:?}"
    );

    let marks = events("mark");
    assert!(marks.iter().any(|mark| mark["text"] == "a round begins: ä"), "{marks:?}");
    let named = stk::run(folder.path(), &["info", "a.stk", "--all"]).stdout;
    assert!(named.contains("collatz ä"), "{named}");
    // 27 takes 111 steps to 1, a call each, and the first call.
    let number = events("capture")[0]["number"].to_string();
    let shown = stk::run(folder.path(), &["dump", "a.stk", "--event", &number]).stdout;
    let calls = shown.lines().filter(|line| line.contains("rust_api!rust_api::collatz")).count();
    assert!(calls == 112 && shown.contains("BaseThreadInitThunk"), "{calls} calls\n{shown}");
    // Frames of the crate are the program's; those of the DLL are no part of its stack.
    assert!(!shown.contains("agent!") && !shown.contains("agent.dll"), "{shown}");
}
