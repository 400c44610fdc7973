//! Chrome traces: stacks, gaps and times, checked by reading the file back.

use super::profiles::{AWKWARD, Builder, busy};
use serde_json::Value;
use std::collections::HashMap;
use stk_output::formats::{Format, Options};
use stk_profile::profile::Placement;
use stk_schema::event::RunState;
use stk_tests::chrome;
use stk_unwind::Trust;

/// One thread: (stack root first, begin in µs, end in µs).
type Track = Vec<(Vec<String>, f64, f64)>;

fn write(builder: &Builder) -> Value {
    builder.write(Format::Chrome, &Options::default()).json()
}

fn events<'a>(file: &'a Value, phase: &str) -> Vec<&'a Value> {
    chrome::events(file).iter().filter(|e| e["ph"] == phase).collect()
}

fn names(stack: &[&str]) -> Vec<String> {
    stack.iter().map(|&name| name.to_owned()).collect()
}

/// The stacks of `busy`'s worker.
fn worker() -> Track {
    vec![
        (names(&["main", "fib", "fib"]), 0.0, 2000.0),
        (names(&["main", "fib", "mix"]), 2000.0, 3000.0),
        (names(&["main", "plugin_run [plugin_a.dll]"]), 3000.0, 5000.0),
        (names(&["main", "plugin_run [plugin_ä.dll]"]), 5000.0, 6000.0),
        (
            names(&["[incomplete stack: no-unwind-data in plugin_ä.dll]", "plugin_run [plugin_ä.dll]"]),
            6000.0,
            7000.0,
        ),
        (names(&["[incomplete stack: stack-lost]"]), 7000.0, 8000.0),
        (names(&["main", "fib", "fib"]), 8000.0, 9000.0),
    ]
}

#[test]
fn each_thread_has_its_stacks_over_time() {
    let file = write(&busy());
    // speedscope recognises the form by its first event.
    for key in ["pid", "tid", "ph", "cat"] {
        assert!(file[0].get(key).is_some(), "{key}");
    }
    let profiles = chrome::profiles(&file);
    assert!(profiles.iter().all(|profile| profile.pid == 4404));
    let track = |tid: u64| profiles.iter().find(|profile| profile.tid == tid).expect("thread").stacks.clone();
    assert_eq!(track(4), worker());
    let waits = names(&["main", "wait"]);
    let idle = names(&["(idle)"]);
    assert_eq!(track(8), [(waits.clone(), 0.0, 2000.0), (idle, 2000.0, 5000.0), (waits, 5000.0, 6000.0)]);
}

/// The frame of the first node of a function.
fn frame<'a>(file: &'a Value, function: &str) -> &'a Value {
    let chunks = events(file, "P").into_iter().filter(|event| event["name"] == "ProfileChunk");
    let mut frames = chunks
        .flat_map(|chunk| chunk["args"]["data"]["cpuProfile"]["nodes"].as_array().expect("nodes"))
        .map(|node| &node["callFrame"]);
    frames.find(|frame| frame["functionName"] == function).unwrap_or_else(|| panic!("no {function}"))
}

#[test]
fn frames_have_their_source_file_and_on_request_the_line() {
    let file = write(&busy());
    assert_eq!(frame(&file, "main")["url"], "C:\\src\\busy.cpp");
    assert_eq!(frame(&file, "mix")["url"], "C:\\src\\mix.hpp");
    assert_eq!(frame(&file, "(idle)").get("url"), None);
    let lines = busy().write(Format::Chrome, &Options { lines: true, ..Options::default() }).json();
    // V8 counts lines from 0.
    assert_eq!(frame(&lines, "mix:3")["lineNumber"], 2);
}

#[test]
fn threads_are_named_and_modules_come_and_go() {
    let file = write(&busy());
    let names: HashMap<u64, &str> = events(&file, "M")
        .into_iter()
        .filter(|e| e["name"] == "thread_name")
        .map(|e| (e["tid"].as_u64().expect("tid"), e["args"]["name"].as_str().expect("name")))
        .collect();
    assert_eq!(names[&4], "thread 4");
    assert_eq!(names[&8], format!("{AWKWARD} (8)"));
    let instants: Vec<(&str, f64)> = events(&file, "i")
        .into_iter()
        .map(|e| (e["name"].as_str().expect("name"), e["ts"].as_f64().expect("ts")))
        .collect();
    assert_eq!(
        instants,
        [
            ("load plugin_a.dll", 2500.0),
            ("unload plugin_a.dll", 4900.0),
            ("load plugin_ä.dll", 4950.5),
            (AWKWARD, 1000.001),
        ]
    );
}

#[test]
fn a_thread_id_used_again_stays_one_track() {
    let mut b = Builder::new();
    let image = b.image("app.exe", 1);
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let f = b.frame(Placement::Image(image, 1), Trust::Context, &[("f", None, None)]);
    let stack = b.stack(&[f]);
    // The second thread of this id is listed first and starts before the first one's estimated end.
    let second = b.thread(4, "second");
    let first = b.thread(4, "first");
    b.profile.threads[second as usize].start_ns = Some(2_000_000);
    b.profile.threads[first as usize].start_ns = Some(0);
    b.run(first, Some(stack), stop, 0, 3, RunState::Running);
    b.run(second, Some(stack), stop, 2, 2, RunState::Running);
    let file = write(&b);
    let times: Vec<(f64, f64)> =
        chrome::profiles(&file).iter().flat_map(|profile| profile.times_of("f")).collect();
    assert_eq!(times, [(0.0, 3000.0), (3000.0, 4000.0)]);
    let names: Vec<&Value> = events(&file, "M").into_iter().filter(|e| e["name"] == "thread_name").collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0]["args"]["name"], "first, second (4)");
}
