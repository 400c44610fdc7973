//! Chrome traces: nesting and times, checked by replaying the file.

use super::profiles::{AWKWARD, Builder, busy};
use serde_json::{Value, json};
use std::collections::HashMap;
use stk_output::formats::{ChromeStyle, Format, Options};
use stk_profile::profile::Placement;
use stk_schema::event::RunState;
use stk_unwind::Trust;

fn write(builder: &Builder, style: ChromeStyle) -> Value {
    builder.write(Format::Chrome, &Options { chrome_style: style, ..Options::default() }).json()
}

/// The events of a file: it is their array, or an object with it.
fn all_events(file: &Value) -> &[Value] {
    file.as_array().or(file["traceEvents"].as_array()).expect("events")
}

fn events<'a>(file: &'a Value, phase: &str) -> Vec<&'a Value> {
    all_events(file).iter().filter(|e| e["ph"] == phase).collect()
}

/// A slice: thread, depth, name, begin and end in microseconds, arguments.
#[derive(Debug, PartialEq)]
struct Slice<'a> {
    tid: u64,
    depth: usize,
    name: &'a str,
    begin: f64,
    end: f64,
    args: &'a Value,
}

/// Replays B and E events. Every E must close the slice on top of its thread's stack, times must
/// not decrease, and no slice may stay open.
fn slices(file: &Value) -> Vec<Slice<'_>> {
    let mut open: HashMap<u64, Vec<(&str, f64)>> = HashMap::new();
    let mut clock: HashMap<u64, f64> = HashMap::new();
    let mut slices = Vec::new();
    for event in file["traceEvents"].as_array().expect("events") {
        let phase = event["ph"].as_str().expect("ph");
        if phase != "B" && phase != "E" {
            continue;
        }
        assert_eq!(event["pid"], 4404);
        let tid = event["tid"].as_u64().expect("tid");
        let name = event["name"].as_str().expect("speedscope closes a slice by name");
        let ts = event["ts"].as_f64().expect("ts");
        let now = clock.entry(tid).or_insert(ts);
        assert!(*now <= ts, "{event}: time goes back");
        *now = ts;
        let stack = open.entry(tid).or_default();
        if phase == "B" {
            stack.push((name, ts));
        } else {
            let (opened, begin) = stack.pop().expect("E without B");
            assert_eq!(opened, name, "{event}");
            assert!(begin < ts, "{event}: empty slice");
            slices.push(Slice { tid, depth: stack.len(), name, begin, end: ts, args: &event["args"] });
        }
    }
    assert!(open.values().all(Vec::is_empty), "slices left open: {open:?}");
    slices
}

#[test]
fn slices_nest_and_merge_what_neighbours_share() {
    let file = write(&busy(), ChromeStyle::Slices);
    let mut all: Vec<(u64, usize, &str, f64, f64)> =
        slices(&file).iter().map(|s| (s.tid, s.depth, s.name, s.begin, s.end)).collect();
    all.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    assert_eq!(
        all,
        [
            (4, 0, "[incomplete stack: no-unwind-data in plugin_ä.dll]", 6000.0, 7000.0),
            (4, 0, "[incomplete stack: stack-lost]", 7000.0, 8000.0),
            (4, 0, "main", 0.0, 6000.0),
            (4, 0, "main", 8000.0, 9000.0),
            (4, 1, "fib", 0.0, 3000.0),
            (4, 1, "fib", 8000.0, 9000.0),
            (4, 1, "plugin_run [plugin_a.dll]", 3000.0, 5000.0),
            (4, 1, "plugin_run [plugin_ä.dll]", 5000.0, 6000.0),
            (4, 1, "plugin_run [plugin_ä.dll]", 6000.0, 7000.0),
            (4, 2, "fib", 0.0, 2000.0),
            (4, 2, "fib", 8000.0, 9000.0),
            (4, 2, "mix", 2000.0, 3000.0),
            (8, 0, "main", 0.0, 2000.0),
            (8, 0, "main", 5000.0, 6000.0),
            (8, 1, "wait", 0.0, 2000.0),
            (8, 1, "wait", 5000.0, 6000.0),
        ]
    );
}

#[test]
fn slices_say_module_line_and_trust() {
    let file = write(&busy(), ChromeStyle::Slices);
    let all = slices(&file);
    let find = |depth, name, begin| {
        all.iter().find(|s| (s.tid, s.depth, s.name, s.begin) == (4, depth, name, begin))
    };
    let main = find(0, "main", 0.0).expect("main").args;
    // Lines 10 and 12 were seen while this slice was open.
    // Six samples with 0.9 ms of CPU time each.
    let expected = json!({
        "module": "busy.exe", "file": "C:\\src\\busy.cpp:10-12", "trust": "unwind-info", "cpu_us": 5400
    });
    assert_eq!(main, &expected);
    let fib = find(1, "fib", 0.0).expect("fib").args;
    let expected = json!({
        "module": "busy.exe", "file": "C:\\src\\busy.cpp:31-33", "trust": "unwind-info, context", "cpu_us": 2700
    });
    assert_eq!(fib, &expected);
    let mix = find(2, "mix", 2000.0).expect("mix").args;
    let expected = json!({
        "module": "busy.exe", "file": "C:\\src\\mix.hpp:3", "trust": "context", "inline": true,
        "state": "running", "cpu_us": 900
    });
    assert_eq!(mix, &expected);
    let wait = all.iter().find(|s| (s.tid, s.name) == (8, "wait")).expect("wait").args;
    assert_eq!((&wait["state"], wait.get("cpu_us")), (&json!("waiting (sleep)"), None));
    let run = find(1, "plugin_run [plugin_a.dll]", 3000.0).expect("plugin_run").args;
    assert_eq!(run["same_code_as"], format!("plugin_stop, {AWKWARD}"));
    let other = find(1, "plugin_run [plugin_ä.dll]", 5000.0).expect("plugin_run").args;
    assert_eq!(other.get("same_code_as"), None);
}

#[test]
fn threads_are_named_and_modules_come_and_go() {
    let file = write(&busy(), ChromeStyle::Slices);
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
fn a_thread_id_used_again_stays_one_well_nested_track() {
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
    let file = write(&b, ChromeStyle::Slices);
    let times: Vec<(f64, f64)> = slices(&file).iter().map(|s| (s.begin, s.end)).collect();
    assert_eq!(times, [(0.0, 3000.0), (3000.0, 4000.0)]);
    let names: Vec<&Value> = events(&file, "M").into_iter().filter(|e| e["name"] == "thread_name").collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0]["args"]["name"], "first, second (4)");
}

/// One thread of a V8 or samples file: (stack root first, begin in µs, end in µs).
type Track = Vec<(Vec<String>, f64, f64)>;

/// The stacks of `busy`'s worker, for a reader in which a sample lasts until the next one.
fn worker() -> Track {
    let stack = |names: &[&str]| names.iter().map(|&n| n.to_owned()).collect::<Vec<_>>();
    vec![
        (stack(&["main", "fib", "fib"]), 0.0, 2000.0),
        (stack(&["main", "fib", "mix"]), 2000.0, 3000.0),
        (stack(&["main", "plugin_run [plugin_a.dll]"]), 3000.0, 5000.0),
        (stack(&["main", "plugin_run [plugin_ä.dll]"]), 5000.0, 6000.0),
        (
            stack(&["[incomplete stack: no-unwind-data in plugin_ä.dll]", "plugin_run [plugin_ä.dll]"]),
            6000.0,
            7000.0,
        ),
        (stack(&["[incomplete stack: stack-lost]"]), 7000.0, 8000.0),
        (stack(&["main", "fib", "fib"]), 8000.0, 9000.0),
    ]
}

#[test]
fn v8_profiles_hold_the_same_stacks() {
    let file = write(&busy(), ChromeStyle::V8);
    // speedscope expects an array in *.chrome.json, and recognises the form by its first event.
    assert!(file.is_array());
    for key in ["pid", "tid", "ph", "cat"] {
        assert!(file[0].get(key).is_some(), "{key}");
    }
    #[derive(Default)]
    struct Cpu {
        tid: u64,
        clock: f64,
        nodes: HashMap<u64, (Option<u64>, String)>,
        samples: Vec<(u64, f64)>,
        end: f64,
    }
    let mut profiles: HashMap<String, Cpu> = HashMap::new();
    for event in events(&file, "P") {
        let id = event["id"].as_str().expect("id").to_owned();
        let data = &event["args"]["data"];
        if event["name"] == "Profile" {
            let clock = data["startTime"].as_f64().expect("startTime");
            let tid = event["tid"].as_u64().expect("tid");
            assert!(profiles.insert(id, Cpu { tid, clock, ..Cpu::default() }).is_none(), "ids are unique");
            continue;
        }
        assert_eq!(event["name"], "ProfileChunk");
        let cpu = profiles.get_mut(&id).expect("declared before");
        for node in data["cpuProfile"]["nodes"].as_array().expect("nodes") {
            let parent = node["parent"].as_u64();
            assert!(parent.is_none_or(|p| cpu.nodes.contains_key(&p)), "a parent comes first");
            let name = node["callFrame"]["functionName"].as_str().expect("name").to_owned();
            cpu.nodes.insert(node["id"].as_u64().expect("id"), (parent, name));
        }
        let samples = data["cpuProfile"]["samples"].as_array().expect("samples");
        let deltas = data["timeDeltas"].as_array().expect("deltas");
        assert_eq!(samples.len(), deltas.len());
        for (sample, delta) in samples.iter().zip(deltas) {
            cpu.clock += delta.as_f64().expect("delta");
            cpu.samples.push((sample.as_u64().expect("node"), cpu.clock));
        }
        if let Some(end) = data["endTime"].as_f64() {
            cpu.end = end;
        }
    }
    let track = |tid: u64| -> Track {
        let cpu = profiles.values().find(|cpu| cpu.tid == tid).expect("thread");
        let mut track = Vec::new();
        for (i, &(node, begin)) in cpu.samples.iter().enumerate() {
            let end = cpu.samples.get(i + 1).map_or(cpu.end, |next| next.1);
            let mut stack = Vec::new();
            let mut next = Some(node);
            while let Some(id) = next {
                let (parent, name) = &cpu.nodes[&id];
                stack.insert(0, name.clone());
                next = *parent;
            }
            assert_eq!(stack.remove(0), "(root)");
            if begin < end {
                track.push((stack, begin, end));
            }
        }
        track
    };
    assert_eq!(track(4), worker());
    let waits = vec!["main".to_owned(), "wait".to_owned()];
    let idle = vec!["(idle)".to_owned()];
    assert_eq!(track(8), [(waits.clone(), 0.0, 2000.0), (idle, 2000.0, 5000.0), (waits, 5000.0, 6000.0)]);
}

#[test]
fn samples_refer_to_stack_frames_from_1() {
    let file = write(&busy(), ChromeStyle::Samples);
    let frames = file["stackFrames"].as_object().expect("stackFrames");
    assert!(!frames.contains_key("0"), "readers lose a parent of 0");
    let stack = |sf: u64| {
        let mut names = Vec::new();
        let mut next = Some(sf);
        while let Some(id) = next {
            let frame = &frames[&id.to_string()];
            names.insert(0, frame["name"].as_str().expect("name").to_owned());
            next = frame["parent"].as_u64();
        }
        names
    };
    let mut tracks: HashMap<u64, Track> = HashMap::new();
    for sample in file["samples"].as_array().expect("samples") {
        let ts = sample["ts"].as_f64().expect("ts");
        let track = tracks.entry(sample["tid"].as_u64().expect("tid")).or_default();
        if let Some(last) = track.last_mut() {
            last.2 = ts;
        }
        track.push((stack(sample["sf"].as_u64().expect("sf")), ts, ts));
    }
    let gap = vec!["(not sampled)".to_owned()];
    let mut expected = worker();
    expected.push((gap.clone(), 9000.0, 9000.0));
    assert_eq!(tracks[&4], expected);
    let waits = vec!["main".to_owned(), "wait".to_owned()];
    assert_eq!(
        tracks[&8],
        [
            (waits.clone(), 0.0, 2000.0),
            (gap.clone(), 2000.0, 5000.0),
            (waits, 5000.0, 6000.0),
            (gap, 6000.0, 6000.0)
        ]
    );
    // chrome://tracing needs each thread of `samples` in `traceEvents`, and speedscope needs at
    // least one event.
    for tid in tracks.keys() {
        assert!(events(&file, "M").iter().any(|e| e["tid"] == *tid));
    }
}
