//! speedscope's file, checked against the format's JSON Schema and against the demands of its
//! importer.

use super::profiles::{AWKWARD, Builder, busy};
use serde_json::{Value, json};
use std::collections::HashSet;
use stk_output::formats::{self, Destination, Format, Options};
use stk_profile::profile::{Placement, Weight};
use stk_schema::event::RunState;
use stk_tests::schema;
use stk_unwind::Trust;

fn write(builder: &Builder, options: &Options) -> Value {
    let file = builder.write(Format::Speedscope, options).json();
    // file-format-schema.json of npm's speedscope 1.25.0; see SPEEDSCOPE-LICENSE.
    let format: Value =
        serde_json::from_str(include_str!("speedscope-file-format-schema.json")).expect("schema");
    schema::check(&format, &file).expect("follows the format's schema");
    demands_of_the_importer(&file);
    file
}

/// Checks for input at which `importSpeedscopeProfiles` throws or which it silently drops.
fn demands_of_the_importer(file: &Value) {
    let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
    let profiles = file["profiles"].as_array().expect("profiles");
    assert!(file["activeProfileIndex"].as_u64().expect("index") < profiles.len() as u64);
    for profile in profiles {
        let samples = profile["samples"].as_array().expect("samples");
        let weights = profile["weights"].as_array().expect("weights");
        assert_eq!(samples.len(), weights.len());
        assert!(weights.iter().all(|w| w.as_u64().is_some_and(|w| w > 0)), "a weight of 0 is dropped");
        for stack in samples {
            assert!(stack.as_array().expect("stack").iter().all(|i| i.as_u64().is_some_and(|i| i < frames)));
        }
        assert!(samples.windows(2).all(|pair| pair[0] != pair[1]), "equal neighbours are one sample");
        let sum: u64 = weights.iter().filter_map(Value::as_u64).sum();
        let (start, end) = (profile["startValue"].as_u64(), profile["endValue"].as_u64());
        assert_eq!(Some(sum), end.zip(start).map(|(end, start)| end - start));
    }
}

/// Stacks of a profile by name, with their weights in milliseconds.
fn stacks(file: &Value, profile: usize) -> Vec<(Vec<&str>, u64)> {
    let frames = &file["shared"]["frames"];
    let profile = &file["profiles"][profile];
    let name = |i: &Value| frames[i.as_u64().expect("index") as usize]["name"].as_str().expect("name");
    let samples = profile["samples"].as_array().expect("samples").iter();
    let weights = profile["weights"].as_array().expect("weights").iter();
    samples
        .zip(weights)
        .map(|(stack, weight)| {
            let weight = weight.as_u64().expect("weight");
            assert_eq!(weight % 1_000_000, 0);
            (stack.as_array().expect("stack").iter().map(name).collect(), weight / 1_000_000)
        })
        .collect()
}

fn frame<'a>(file: &'a Value, name: &str) -> &'a Value {
    let frames = file["shared"]["frames"].as_array().expect("frames");
    frames.iter().find(|f| f["name"] == name).unwrap_or_else(|| panic!("no frame {name}"))
}

#[test]
fn stacks_are_root_first_with_inlined_functions_and_gaps() {
    let builder = busy();
    let file = write(&builder, &Options { all_threads: true, ..Options::default() });
    let order: Vec<&str> =
        file["profiles"].as_array().expect("profiles").iter().filter_map(|p| p["name"].as_str()).collect();
    let wall = "time, waits included";
    let titles = [
        format!("all threads: {wall} (no time order)"),
        format!("thread 4: {wall}"),
        format!("{AWKWARD} (8): {wall}"),
    ];
    assert_eq!(order, titles, "the thread with the most CPU time comes first");
    assert_eq!(file["activeProfileIndex"], 0);
    assert_eq!(file["profiles"][0]["unit"], "nanoseconds");

    assert_eq!(
        stacks(&file, 1),
        [
            (vec!["main", "fib", "fib"], 2),
            (vec!["main", "fib", "mix"], 1),
            (vec!["main", "plugin_run [plugin_a.dll]"], 2),
            (vec!["main", "plugin_run [plugin_ä.dll]"], 1),
            (vec!["[incomplete stack: no-unwind-data in plugin_ä.dll]", "plugin_run [plugin_ä.dll]"], 1),
            (vec!["[incomplete stack: stack-lost]"], 1),
            (vec!["main", "fib", "fib"], 1),
        ]
    );
    assert_eq!(stacks(&file, 2), [(vec!["main", "wait"], 2), (vec![], 3), (vec!["main", "wait"], 1)]);
}

#[test]
fn the_first_profile_sums_all_threads_up() {
    let file = write(&busy(), &Options::default());
    let mut sum = stacks(&file, 0);
    sum.sort();
    assert_eq!(
        sum,
        [
            (vec!["[incomplete stack: no-unwind-data in plugin_ä.dll]", "plugin_run [plugin_ä.dll]"], 1),
            (vec!["[incomplete stack: stack-lost]"], 1),
            (vec!["main", "fib", "fib"], 3),
            (vec!["main", "fib", "mix"], 1),
            (vec!["main", "plugin_run [plugin_a.dll]"], 2),
            (vec!["main", "plugin_run [plugin_ä.dll]"], 1),
            (vec!["main", "wait"], 3),
        ]
    );
}

#[test]
fn each_weight_has_a_profile_of_each_thread_behind_the_sums_of_the_first_one_and_of_waits() {
    let mut b = Builder::new();
    let image = b.image("app.exe", 1);
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let frame = b.frame(Placement::Image(image, 1), Trust::Context, &[("work", None, None)]);
    let stack = b.stack(&[frame]);
    for (tid, name, state) in [(4, "busy", RunState::Running), (8, "idle", RunState::Waiting)] {
        let thread = b.thread(tid, name);
        // 0.9 ms of CPU time for each millisecond that it ran.
        b.run(thread, Some(stack), stop, 10, 40, state);
    }
    let file = write(&b, &Options { weights: vec![Weight::Cpu, Weight::Wall], ..Options::default() });
    let names: Vec<&str> =
        file["profiles"].as_array().expect("profiles").iter().filter_map(|p| p["name"].as_str()).collect();
    let wall = "time, waits included";
    assert_eq!(
        names,
        [
            "all threads: CPU time (no time order)",
            "all threads: time of waits (no time order)",
            "busy (4): CPU time",
            &format!("busy (4): {wall}"),
            &format!("idle (8): {wall}")
        ]
    );
    assert_eq!(stacks(&file, 0), [(vec!["work"], 36)]);
    let waits = stacks(&file, 1);
    let [(stack, 40)] = &waits[..] else { panic!("{waits:?}") };
    assert!(stack[0].starts_with("[waiting: ") && stack[1..] == ["work"], "{waits:?}");
    assert_eq!(stacks(&file, 2), [(vec!["work"], 36)]);
    assert_eq!(stacks(&file, 3), [(vec!["work"], 40)]);
    assert_eq!(file["profiles"][2]["startValue"], 0, "CPU time begins at 0");
    assert_eq!(file["profiles"][3]["startValue"], 10_000_000);
}

#[test]
fn without_waits_there_is_no_sum_of_waits() {
    let mut b = Builder::new();
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "busy");
    b.run(thread, None, stop, 10, 40, RunState::Running);
    let file = write(&b, &Options { weights: vec![Weight::Cpu, Weight::Wall], ..Options::default() });
    let names: Vec<&str> =
        file["profiles"].as_array().expect("profiles").iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(
        names,
        ["all threads: CPU time (no time order)", "busy (4): CPU time", "busy (4): time, waits included"]
    );
}

/// The names of a file's profiles.
fn names(file: &Value) -> Vec<&str> {
    let profiles = file["profiles"].as_array().expect("profiles").iter();
    profiles.filter_map(|profile| profile["name"].as_str()).collect()
}

#[test]
fn threads_of_few_samples_are_in_the_sum_alone_and_noted() {
    // Its second thread has three samples.
    let file = write(&busy(), &Options::default());
    assert_eq!(
        names(&file),
        ["all threads: time, waits included (no time order)", "thread 4: time, waits included"]
    );
    let all = write(&busy(), &Options { all_threads: true, ..Options::default() });
    assert_eq!(names(&all).len(), 3);
    assert_eq!(stacks(&file, 0), stacks(&all, 0), "no weight is lost");
    let notes = |options: &Options| {
        let builder = busy();
        let folder = tempfile::tempdir().expect("folder");
        let to = Destination::File(folder.path().join("x.speedscope.json"));
        let mut writer = formats::create(Format::Speedscope, to, options).expect("create");
        formats::write(&mut *writer, &builder.profile, &builder.runs).expect("write").notes
    };
    let [note] = &notes(&Options::default())[..] else { panic!("one note") };
    assert!(note.starts_with("1 thread with fewer than 4 samples: "), "{note}");
    assert!(notes(&Options { all_threads: true, ..Options::default() }).is_empty());
}

#[test]
fn threads_stay_where_all_have_few_samples() {
    let mut b = Builder::new();
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    for tid in [4, 8] {
        let thread = b.thread(tid, "few");
        b.run(thread, None, stop, 10, 3, RunState::Running);
    }
    assert_eq!(names(&write(&b, &Options::default())).len(), 3);
}

#[test]
fn threads_are_in_the_order_of_their_cpu_time() {
    let mut b = Builder::new();
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    // The first has more samples that may have run, and none of them has CPU time.
    let unknown = b.thread(4, "unknown");
    b.run(unknown, None, stop, 10, 40, RunState::Unknown);
    let busy = b.thread(8, "busy");
    b.run(busy, None, stop, 10, 20, RunState::Running);
    b.profile.threads[busy as usize].created_utc_ns = 7;
    let file = write(&b, &Options::default());
    let wall = "time, waits included";
    let threads = [format!("busy (8), main thread: {wall}"), format!("unknown (4): {wall}")];
    assert_eq!(names(&file)[1..], threads);
}

#[test]
fn a_function_has_one_frame_whatever_its_addresses() {
    let file = write(&busy(), &Options::default());
    let frames = file["shared"]["frames"].as_array().expect("frames");
    let names: HashSet<&str> = frames.iter().filter_map(|f| f["name"].as_str()).collect();
    assert_eq!(names.len(), frames.len(), "no name at two indices");
    assert_eq!(names.len(), 8);
    // An address of fib without a line row is merged with the others. The line is left out, because
    // there are several.
    assert_eq!(frame(&file, "fib"), &json!({"name": "fib", "file": "C:\\src\\busy.cpp"}));
    assert_eq!(frame(&file, "mix"), &json!({"name": "mix", "file": "C:\\src\\mix.hpp", "line": 3}));
}

#[test]
fn lines_split_functions_when_asked() {
    let file = write(&busy(), &Options { lines: true, ..Options::default() });
    assert_eq!(frame(&file, "fib:31"), &json!({"name": "fib:31", "file": "C:\\src\\busy.cpp", "line": 31}));
    assert_eq!(frame(&file, "main:12")["line"], 12);
    assert_eq!(frame(&file, "fib"), &json!({"name": "fib", "file": "C:\\src\\busy.cpp"}));
    assert_eq!(stacks(&file, 1)[1], (vec!["main:10", "fib:33", "mix:3"], 1));
}

#[test]
fn static_functions_of_one_name_stay_apart() {
    let mut b = Builder::new();
    let image = b.image("app.exe", 1);
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let at = |rva| Placement::Image(image, rva);
    let one = b.frame(at(1), Trust::Context, &[("init", Some("a/init.c"), Some(1))]);
    let two = b.frame(at(2), Trust::Context, &[("init", Some("b/init.c"), Some(1))]);
    let other = b.frame(at(3), Trust::Context, &[("init", Some("b/start.c"), Some(1))]);
    let guess = b.frame(at(4), Trust::Scan, &[("main", Some("a/main.c"), Some(9))]);
    for (i, frame) in [one, two, other, guess].into_iter().enumerate() {
        let stack = b.stack(&[frame]);
        b.run(thread, Some(stack), stop, i as u64, 1, RunState::Running);
    }
    let file = write(&b, &Options::default());
    let names: Vec<&str> = file["shared"]["frames"]
        .as_array()
        .expect("frames")
        .iter()
        .filter_map(|f| f["name"].as_str())
        .collect();
    assert_eq!(
        names,
        ["init [app.exe, a/init.c]", "init [app.exe, b/init.c]", "init [app.exe, start.c]", "main [scanned]"]
    );
}

#[test]
fn code_in_a_header_is_one_function_of_each_module() {
    let mut b = Builder::new();
    let (x, y) = (b.image("x.dll", 1), b.image("y.dll", 2));
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let names = [("mix", Some("mix.hpp"), Some(2))];
    let in_x = b.frame(Placement::Image(x, 1), Trust::Context, &names);
    let in_y = b.frame(Placement::Image(y, 1), Trust::Context, &names);
    for (i, frame) in [in_x, in_y].into_iter().enumerate() {
        let stack = b.stack(&[frame]);
        b.run(thread, Some(stack), stop, i as u64, 1, RunState::Running);
    }
    let file = write(&b, &Options::default());
    let mix = |module: &str| json!({"name": format!("mix [{module}]"), "file": "mix.hpp", "line": 2});
    assert_eq!(file["shared"]["frames"], json!([mix("x.dll"), mix("y.dll")]));
    assert_eq!(stacks(&file, 1), [(vec!["mix [x.dll]"], 1), (vec!["mix [y.dll]"], 1)]);
}

#[test]
fn a_profile_without_samples_can_be_opened() {
    let mut b = Builder::new();
    b.thread(4, "main");
    let file = write(&b, &Options::default());
    assert_eq!(file["profiles"].as_array().map(Vec::len), Some(1), "the viewer opens profile 0 unasked");
}

#[test]
fn an_output_appears_whole_or_not_at_all() {
    use stk_output::formats::create;
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("x.speedscope.json");
    std::fs::write(&path, "old").expect("write");
    let b = busy();
    let mut writer =
        create(Format::Speedscope, Destination::File(path.clone()), &Options::default()).expect("create");
    writer.begin(&b.profile).expect("begin");
    drop(writer);
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "old");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("list").count(),
        1,
        "nothing half-written stays behind"
    );
}
