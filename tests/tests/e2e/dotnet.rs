//! .NET in the recorder: finding runtimes, listing their methods through the diagnostics pipe,
//! their view of their threads, and the notes if these cannot be had. The tests search the stream
//! for method names as UTF-16 and do not decode it, which is `stk`'s task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stk_tests::managed_lines::{self, MixedLines, is_whole};
use stk_tests::recorded::{Recorded, Runtime};
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine, Net, Program, path, wait_for, windows_path};

/// Methods of examples/mixed that every runtime compiles, and lambdas and dynamic methods by their
/// usual names.
const METHODS: [&str; 16] = [
    "Spin",
    "Down",
    "Between",
    "Throw",
    "Filter",
    "InFinally",
    "InCatch",
    "Catch",
    "CallArea",
    "Shapes",
    "Lambda",
    "Deep",
    "Area",
    "Garbage",
    "Sleeper",
    "Made",
];

#[track_caller]
fn runtime(recorded: &Recorded) -> &Runtime {
    let [runtime] = recorded.runtimes.values().collect::<Vec<_>>()[..] else {
        panic!("one runtime: {:?}", recorded.runtimes)
    };
    runtime
}

#[track_caller]
fn names_all_methods(stream: &[u8]) {
    for method in METHODS {
        let name: Vec<u8> = method.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        assert!(stream.windows(name.len()).any(|window| window == name), "{method} is not listed");
    }
}

/// Records `mixed` into `trace` with these further arguments, and reads the trace, which must be
/// whole.
#[track_caller]
fn record(folder: &Folder, mixed: &Program, trace: &str, arguments: &[&str]) -> Recorded {
    let pid = mixed.pid();
    Inject::record(folder, &[&["--pid", &pid, "-o", trace][..], arguments].concat());
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty());
    recorded
}

/// Records `mixed` into `trace`, again and for longer while `info` says what `fits` refuses. On a
/// machine with several times the work that it can do, to load the data access library and to ask
/// it takes longer than a short recording and its end.
#[track_caller]
fn record_until(
    folder: &Folder,
    mixed: &Program,
    trace: &str,
    arguments: &[&str],
    fits: impl Fn(&str, &Recorded) -> bool,
) -> (String, Recorded) {
    let mut last = String::new();
    for duration in ["3s", "9s", "27s"] {
        let all = [&["-d", duration, "--rate", "100", "--force"], arguments].concat();
        let recorded = record(folder, mixed, trace, &all);
        last = info(folder, trace);
        if fits(&last, &recorded) {
            return (last, recorded);
        }
        wine::measured(&format!("{trace}: not enough in {duration}: {last}"));
    }
    panic!("{last}")
}

/// Whether `info` says that the data access library named functions.
fn has_names(text: &str, _: &Recorded) -> bool {
    text.contains("named through") && !text.contains(" 0 of the ")
}

#[track_caller]
fn ends_undisturbed(mixed: &mut Program) {
    mixed.stop();
    mixed.ends_saying("checksum right");
}

#[track_caller]
fn info(folder: &Folder, trace: &str) -> String {
    let ran = stk::run(folder.path(), &["info", trace]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

#[track_caller]
fn check_versions(net: Net, recorded: &Recorded) {
    let runtime = runtime(recorded);
    match net {
        Net::V3 => {
            assert_eq!((runtime.kind, runtime.version.as_str()), (1, "3.1.2"));
            assert_eq!((runtime.descriptor, recorded.managed.len()), (0, 0), "3.1 has no data contract");
        }
        Net::V10 => {
            assert_eq!((runtime.kind, runtime.version.as_str()), (3, "10.0.9"));
            assert!(runtime.descriptor > 5000 && runtime.pointers > 10, "{runtime:?}");
        }
    }
}

#[test]
fn a_late_attach_lists_every_method_that_was_compiled_before() {
    for net in [Net::V3, Net::V10] {
        let folder = Folder::new("late");
        let mut mixed = Program::mixed(&folder, net, &["300"], &[]);
        std::thread::sleep(std::time::Duration::from_secs(2));
        // At the start and at the end.
        let twice = |_: &str, recorded: &Recorded| recorded.streams.len() >= 2;
        let (_, recorded) = record_until(&folder, &mixed, "late.stk", &[], twice);
        check_versions(net, &recorded);
        for stream in recorded.streams.values() {
            assert!(is_whole(stream), "{net:?}: a stream of {} bytes is cut off", stream.len());
        }
        names_all_methods(recorded.streams.last_key_value().expect("a stream").1);
        assert!(info(&folder, "late.stk").contains("methods listed"), "{}", info(&folder, "late.stk"));
        if net == Net::V10 {
            managed_threads_belong_to_samples(&recorded);
            explicit_frames_agree(&folder, "late.stk");
            let equal = names_in_both_sources(&folder, &recorded);
            assert!(equal >= METHODS.len(), "{equal} names");
        }
        functions_have_names(&folder, "late.stk");
        stacks_are_complete_and_named(&folder, "late.stk");
        lines_are_the_compilers(net, &folder, "late.stk");
        texts_are_those_in_the_pdb(net, &folder, "late.stk");
        ends_undisturbed(&mut mixed);
    }
}

#[test]
fn each_file_of_a_ring_names_methods_compiled_before_it() {
    let folder = Folder::new("dotnet-rotate");
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &[]);
    let pid = mixed.pid();
    let arguments = ["--pid", &pid, "-o", "a.stk", "--rate", "100", "--rotate", "4s"];
    let mut inject = Inject::start(&folder, &arguments);
    inject.wait_until_recording();
    wait_for("the fourth file", || folder.file("a.0004.stk").exists().then_some(()));
    Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
    inject.finish().expect(0);
    for name in ["a.0002.stk", "a.0003.stk"] {
        let recorded = Recorded::open_sound(&folder.file(name));
        let whole = recorded.streams.values().rev().find(|stream| is_whole(stream));
        names_all_methods(whole.expect("a whole list"));
        functions_have_names(&folder, name);
        stacks_are_complete_and_named(&folder, name);
    }
    ends_undisturbed(&mut mixed);
}

/// Every frame in mixed.cs is on a line of its method that the compiler has code for, and Shapes
/// calls on its marked line.
#[track_caller]
fn lines_are_the_compilers(net: Net, folder: &Folder, trace: &str) {
    let shown = Speedscope::of(folder.path(), trace, &net.program().0);
    let compared = MixedLines::read().compare(&shown);
    wine::measured(&format!("{net:?}: {compared:?}"));
    assert!(compared.right > 0, "{compared:?}");
}

/// `stk annotate` shows each line of mixed.cs with the text that the compiler put into mixed.pdb.
#[track_caller]
fn texts_are_those_in_the_pdb(net: Net, folder: &Folder, trace: &str) {
    let source: Vec<&str> = include_str!("../../../examples/mixed/mixed.cs").lines().collect();
    let symbols = net.program().0.display().to_string();
    let shown = json(
        folder,
        &["annotate", trace, "/mixed.cs", "--top", "1", "--json", "--embedded-sources", "-y", &symbols],
    );
    let part = &shown["parts"][0];
    let rows = part["lines"].as_array().expect("lines");
    let rows = rows.iter().filter_map(|row| Some((row["line"].as_u64()?, row["text"].as_str())));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 5, "{net:?}: {part}");
    for (line, text) in rows {
        assert_eq!(text, source.get(line as usize - 1).copied(), "{net:?}: line {line}: {part}");
    }
}

/// The number of names that the recorder read from memory and that one of the runtime's lists has,
/// too. They must be equal.
#[track_caller]
fn names_in_both_sources(folder: &Folder, recorded: &Recorded) -> usize {
    let whole = recorded.streams.values().filter(|stream| is_whole(stream));
    let listed: Vec<_> =
        whole.flat_map(|stream| managed_lines::code_in(stream, &folder.file("list"))).collect();
    let mut equal = 0;
    for (base, size, source, name) in &recorded.names {
        let code = listed.iter().find(|(start, size, _)| (*start..start + size).contains(base));
        if let Some((start, _, expected)) = code {
            assert_eq!((*source, name), (4, expected), "{base:#x} of {size} bytes, in {start:#x}");
            equal += 1;
        }
    }
    equal
}

#[test]
fn a_program_that_ends_by_itself_has_named_methods() {
    let folder = Folder::new("ends");
    let recorded = record_early(&folder, Net::V10, "2");
    // The runtime lists its methods once, as it begins. Methods that are compiled later have names
    // only by what the recorder read.
    let read = recorded.names.iter().filter(|(_, _, source, _)| *source == 4).count();
    let equal = names_in_both_sources(&folder, &recorded);
    let stats = &json(&folder, &["stats", "--json", "--full", "early.stk"]);
    let [managed, named] =
        ["managed", "managed_named"].map(|name| stats["frames"][name].as_u64().expect("a number"));
    wine::measured(&format!(
        "{read} read, {equal} listed as well; {named} of {managed} managed frames named"
    ));
    assert!(read > METHODS.len() && managed > 50, "{read} read, {managed} managed frames");
    assert!(named * 100 >= managed * 95, "{named} of {managed}: {}", stats["frames"]);
    let text = info(&folder, "early.stk");
    assert!(text.contains("from .NET's memory"), "{text}");
}

/// Methods of mixed in the newest whole list of a trace.
#[track_caller]
fn methods_listed(folder: &Folder, recorded: &Recorded) -> BTreeSet<String> {
    let whole = recorded.streams.values().rev().find(|stream| is_whole(stream));
    whole.map(|stream| managed_lines::methods_in(stream, &folder.file("list"))).unwrap_or_default()
}

/// Records a run of mixed from its start to its end.
#[track_caller]
fn record_early(folder: &Folder, net: Net, seconds: &str) -> Recorded {
    let (home, exe, first) = net.program();
    let (trace, exe) = (windows_path(&folder.file("early.stk")), windows_path(&exe));
    let mut arguments = vec!["--force", "-o", &trace, "--rate", "50", "--", &exe];
    arguments.extend(first);
    arguments.push(seconds);
    Inject::launch_in(folder, &home, &arguments).expect(0);
    Recorded::open(&folder.file("early.stk"))
}

#[test]
fn a_late_attach_lists_the_methods_that_an_early_one_lists() {
    // Both in the long form: a run of each takes ten seconds, on a busy machine a minute.
    let nets: &[Net] = if wine::long() { &[Net::V3, Net::V10] } else { &[Net::V10] };
    for &net in nets {
        let folder = Folder::new("lists");
        let mut mixed = Program::mixed(&folder, net, &["600"], &[]);
        // On a busy machine a short run has not come to each of its methods.
        let same = ["5", "20", "60"].iter().any(|seconds| {
            let duration = format!("{seconds}s");
            let late = record(&folder, &mixed, "late.stk", &["-d", &duration, "--rate", "50", "--force"]);
            let late = methods_listed(&folder, &late);
            let early = methods_listed(&folder, &record_early(&folder, net, seconds));
            let only = |of: &BTreeSet<String>, other| of.difference(other).cloned().collect::<Vec<_>>();
            let (lost, more) = (only(&early, &late), only(&late, &early));
            wine::measured(&format!(
                "{net:?}, {seconds} s: early {}, late {}; only early {lost:?}, only late {more:?}",
                early.len(),
                late.len()
            ));
            early.len() >= METHODS.len() && early == late
        });
        assert!(same, "{net:?}: STK_LONG=1 shows the differences");
        ends_undisturbed(&mut mixed);
    }
}

/// The first trace in `stk`'s JSON output.
#[track_caller]
fn json(folder: &Folder, arguments: &[&str]) -> serde_json::Value {
    let ran = stk::run(folder.path(), arguments);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    document["traces"][0].clone()
}

/// Checks that 99.5 % of the functions made at run time that samples show have names.
#[track_caller]
fn functions_have_names(folder: &Folder, trace: &str) {
    let methods = &json(folder, &["info", "--json", trace])["methods"];
    let functions = methods["functions"].as_u64().expect("a number");
    let unnamed = methods["unnamed"].as_array().expect("a list").len() as u64;
    assert!(functions > 10 && unnamed * 200 <= functions, "{methods}");
}

/// Checks that 99.9 % of the stacks reach their thread's start and that 99.5 % of the frames in
/// .NET's code have names.
#[track_caller]
fn stacks_are_complete_and_named(folder: &Folder, trace: &str) {
    let stats = &json(folder, &["stats", "--json", "--full", trace]);
    let complete = stats["totals"]["complete_share"].as_f64().expect("a number");
    let [managed, named] =
        ["managed", "managed_named"].map(|name| stats["frames"][name].as_u64().expect("a number"));
    wine::measured(&format!("{trace}: {complete} complete, {named} of {managed} managed frames named"));
    let samples = stats["totals"]["samples"].as_u64().expect("a number") as f64;
    let stops = stats["stops"].as_array().expect("a list");
    let count_of = |is: &dyn Fn(&serde_json::Value) -> bool| -> f64 {
        stops.iter().filter(|stop| is(stop)).map(|stop| stop["samples"].as_f64().expect("a number")).sum()
    };
    // Past a gap that the runtime's own Frame leads across, the thread's start was reached, too.
    let past_gaps = count_of(&|stop| stop["reason"] == "thread-start-past-gap");
    // From the moment at which the collector hijacks a method's return address until it returns,
    // the stack leads to the runtime's stub for that: to its first byte, which no call leads to.
    let hijacked =
        count_of(&|stop| stop["reason"] == "replaced-return-address" && stop["module"] == "mixed.exe");
    assert!(hijacked <= samples / 200.0, "{complete}: {}", stats["stops"]);
    let lost = (1.0 - complete) * samples - past_gaps - hijacked;
    assert!(lost < 1.5 || lost <= samples / 1000.0, "{complete}: {}", stats["stops"]);
    assert!(managed > 200 && named * 1000 >= managed * 995, "{named} of {managed}: {}", stats["frames"]);
}

/// Checks that the runtime's explicit frames agree with the walks, and that they are nearly always
/// of the sample's moment.
#[track_caller]
fn explicit_frames_agree(folder: &Folder, trace: &str) {
    let explicit = &json(folder, &["verify", "--walks", "--json", trace])["explicit"];
    assert_eq!(explicit["unexplained"], 0, "{explicit}");
    let count = |list: &str, class: &str| {
        let found = explicit[list].as_array().expect("a list").iter().find(|shown| shown["class"] == class);
        found.map_or(0, |shown| shown["count"].as_u64().expect("a number"))
    };
    let (agree, out_of_date) = (count("frames", "agrees"), count("frames", "out-of-date"));
    assert!(agree > 20 && out_of_date * 20 <= agree, "{explicit}");
    // Nothing but the walk under test speaks against these.
    assert!(count("frames", "contradicted") * 200 <= agree, "{explicit}");
    assert!(count("steps", "agrees") > agree, "{explicit}");
}

/// Every MANAGED_THREAD is of a sample, and its Frame head lies on that thread's stack, above the
/// stack pointer, or is the end of the chain.
#[track_caller]
fn managed_threads_belong_to_samples(recorded: &Recorded) {
    assert!(!recorded.managed.is_empty());
    let mut threads = std::collections::BTreeSet::new();
    for &(thread, time, frame) in &recorded.managed {
        let sample = recorded.samples_of(thread).find(|sample| sample.time == time);
        let sample = sample.unwrap_or_else(|| panic!("no sample of thread {thread} at {time:?}"));
        let end = frame == u64::MAX;
        assert!(end || sample.holds(frame), "Frame {frame:#x} of {sample:x?}");
        threads.insert(thread);
    }
    for name in ["main", "mixed", "sleeper"] {
        let [thread] = recorded.threads_named(name)[..] else { panic!("one thread '{name}'") };
        assert!(threads.contains(&thread), "'{name}' has no samples with what the runtime says of it");
    }
}

#[test]
fn a_runtime_started_after_the_agent_is_found_and_read_before_the_process_exits() {
    for net in [Net::V3, Net::V10] {
        let folder = Folder::new("early");
        let recorded = record_early(&folder, net, "4");
        assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
        check_versions(net, &recorded);
        let runtime = runtime(&recorded);
        if net == Net::V3 {
            assert!(runtime.found > recorded.header.clock_start, "{runtime:?}");
        }
        assert!(recorded.streams.values().any(|stream| is_whole(stream)), "{net:?}: {runtime:?}");
        assert!(runtime.note.starts_with("methods listed"), "{runtime:?}");
    }
}

/// They disable a runtime's diagnostics pipe.
const NO_PIPE: [(&str, &str); 2] = [("COMPlus_EnableDiagnostics", "0"), ("DOTNET_EnableDiagnostics", "0")];

/// Functions by thread name, from the trace's profiles.
#[track_caller]
fn functions(folder: &Folder, trace: &str) -> BTreeMap<String, BTreeSet<String>> {
    let ran = stk::run(
        folder.path(),
        &["convert", trace, "-t", "speedscope", "--weight", "wall", "--force", "-o", "functions.json"],
    );
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let text = std::fs::read(folder.file("functions.json")).expect("the profile");
    let profile: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let names = profile["shared"]["frames"].as_array().expect("frames");
    let mut threads: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // The first profile is the sum of the others.
    for thread in profile["profiles"].as_array().expect("profiles").iter().skip(1) {
        let title = thread["name"].as_str().expect("a name");
        let stacks = thread["samples"].as_array().expect("samples").iter();
        let frames = stacks.flat_map(|stack| stack.as_array().expect("frames"));
        let frames = frames.map(|frame| &names[frame.as_u64().expect("a number") as usize]["name"]);
        threads
            .entry(title.to_owned())
            .or_default()
            .extend(frames.map(|name| name.as_str().expect("a name").to_owned()));
    }
    threads
}

/// Whether a method, given with its thread, is on that thread's stacks; `None`: there is no such
/// thread. It must be on no other's.
#[track_caller]
fn is_seen(threads: &BTreeMap<String, BTreeSet<String>>, (thread, method): (&str, &str)) -> Option<bool> {
    let mut seen = None;
    for (title, names) in threads {
        let has = names.iter().any(|name| name.starts_with(method));
        let is_its = title.contains(&format!("\"{thread}\"")) || title.starts_with(&format!("{thread} "));
        assert!(is_its || !has, "{method} in {title}: {names:#?}");
        if is_its {
            seen = Some(has);
        }
    }
    seen
}

/// Checks that each method is seen, on its thread only.
#[track_caller]
fn run_on_their_threads_only(threads: &BTreeMap<String, BTreeSet<String>>, methods: &[(&str, &str)]) {
    for own in methods {
        assert_eq!(is_seen(threads, *own), Some(true), "{own:?}: {threads:#?}");
    }
}

/// The expected methods of each thread come from the source of examples/mixed, independently of the
/// recorder.
#[test]
fn without_a_pipe_names_come_through_the_data_access_library() {
    let folder = Folder::new("dac");
    // Long enough that each of its threads is seen at work, also on two busy cores.
    let mut mixed = Program::mixed(&folder, Net::V3, &["300"], &NO_PIPE);
    let at_work = [
        ("mixed", "mixed!Mixed.Work.Down(Int32)"),
        ("exceptions", "mixed!Mixed.Work.Catch()"),
        ("interfaces", "mixed!Mixed.Work.Shapes("),
        ("garbage", "mixed!Mixed.Program.Garbage()"),
    ];
    // These sleep between their work: on a loaded machine a short recording shows few of them at
    // it.
    let half_at_work = |text: &str, recorded: &Recorded| {
        let threads = functions(&folder, "dac.stk");
        let met = at_work.iter().filter(|own| is_seen(&threads, **own) == Some(true)).count();
        has_names(text, recorded) && 2 * met >= at_work.len()
    };
    let (text, recorded) = record_until(&folder, &mixed, "dac.stk", &[], half_at_work);
    assert!(recorded.streams.is_empty());
    for part in [
        "no diagnostics pipe (DOTNET_EnableDiagnostics=0)",
        "named through mscordaccore.dll",
        "from .NET's data access library",
    ] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    let threads = functions(&folder, "dac.stk");
    let always = [("sleeper", "mixed!Mixed.Program.Sleeper()"), ("main", "mixed!Mixed.Program.Main(")];
    run_on_their_threads_only(&threads, &always);
    ends_undisturbed(&mut mixed);
}

/// A copy of CoreCLR 3.1.2: the folder of dotnet.exe and that of coreclr.dll.
fn dotnet31_copy(folder: &Folder) -> (PathBuf, PathBuf) {
    let from = path("STK_FETCH_DIR").join("dotnet31");
    let to = folder.file("dotnet");
    let framework = dotnet31();
    let version = framework.strip_prefix(&from).expect("within it");
    let fxr = Path::new("host/fxr").join(version.file_name().expect("a version"));
    for part in [Path::new(""), &fxr, version] {
        link_files(&from.join(part), &to.join(part));
    }
    (to.clone(), to.join(version))
}

/// Links, or copies, the files of a folder.
fn link_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    let files = std::fs::read_dir(from).expect("a folder").flatten().map(|entry| entry.path());
    for file in files.filter(|path| path.is_file()) {
        let to = to.join(file.file_name().expect("a name"));
        std::fs::hard_link(&file, &to).or_else(|_| std::fs::copy(&file, &to).map(drop)).expect("a copy");
    }
}

/// Debuggers look the library of CoreCLR 3.1.2 up under the index of its coreclr.dll,
/// 5E211DAC56b000; its own is 5E211C7F138000.
#[test]
fn the_data_access_library_is_found_on_the_symbol_path() {
    let folder = Folder::new("dacpath");
    let (home, _, first) = Net::V3.program();
    let (dotnet, framework) = dotnet31_copy(&folder);
    let mut mixed =
        Program::mixed_at(&folder, (&home, &dotnet.join("dotnet.exe"), first), &["300"], &NO_PIPE);
    // Only now: dotnet.exe does not start a runtime that lacks a file.
    std::fs::remove_file(framework.join("mscordaccore.dll")).expect("removed");

    let none = |text: &str, _: &Recorded| {
        text.contains("names cannot be had through the data access library: there is no ")
            && text.contains("mscordaccore_amd64_amd64_4.700.20.6602.dll (index 5E211DAC56b000)")
    };
    record_until(&folder, &mixed, "none.stk", &[], none);

    // A library of another build with the right name, a server that is never contacted, and then
    // the store.
    let (flat, store) = (folder.file("flat"), folder.file("store"));
    let long = "mscordaccore_amd64_amd64_4.700.20.6602.dll";
    let place = store.join(long).join("5E211DAC56b000");
    std::fs::create_dir_all(&flat).expect("a folder");
    std::fs::create_dir_all(&place).expect("a folder");
    std::fs::copy(dotnet31().join("coreclr.dll"), flat.join("mscordaccore.dll")).expect("a copy");
    let flat = windows_path(&flat);
    let refused = r"flat\mscordaccore.dll is not of the runtime's version 4.700.20.6602";
    record_until(&folder, &mixed, "vain.stk", &["-y", &flat], |text, _| text.contains(refused));

    std::fs::copy(dotnet31().join("mscordaccore.dll"), place.join(long)).expect("a copy");
    let store = format!("{flat};srv*{}*https://example.invalid", windows_path(&store));
    let (text, _) = record_until(&folder, &mixed, "dacpath.stk", &["-y", &store], has_names);
    assert!(text.contains(&format!("named through {long}")), "{text}");
    let threads = functions(&folder, "dacpath.stk");
    // Methods that never leave their threads' stacks.
    let own = [("main", "mixed!Mixed.Program.Main("), ("sleeper", "mixed!Mixed.Program.Sleeper()")];
    run_on_their_threads_only(&threads, &own);
    ends_undisturbed(&mut mixed);
}

/// A library that the program's user can write is not loaded with other rights, unless inject's
/// user names its folder.
#[test]
fn another_users_library_is_loaded_only_from_a_folder_of_injects_user() {
    let folder = Folder::new("below");
    let mut mixed = Program::mixed(&folder, Net::V3, &["300"], &NO_PIPE);
    let refused = |text: &str, _: &Recorded| text.contains("names cannot be had through the data access");
    let (text, _) = record_until(&folder, &mixed, "beside.stk", &["--test-below"], refused);
    assert!(text.contains(r"mscordaccore.dll is not loaded, since others can write it"), "{text}");

    let own = folder.file("own");
    std::fs::create_dir_all(&own).expect("a folder");
    std::fs::copy(dotnet31().join("mscordaccore.dll"), own.join("mscordaccore.dll")).expect("a copy");
    let arguments = ["--test-below", "-y", &windows_path(&own)];
    let (text, _) = record_until(&folder, &mixed, "named.stk", &arguments, has_names);
    assert!(text.contains("named through mscordaccore.dll"), "{text}");
    ends_undisturbed(&mut mixed);
}

#[test]
fn without_a_pipe_names_come_from_the_runtimes_memory() {
    let folder = Folder::new("nopipe");
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &NO_PIPE);
    let from_memory = |text: &str, _: &Recorded| text.contains("from .NET's memory, by its data contract");
    let (text, recorded) = record_until(&folder, &mixed, "nopipe.stk", &[], from_memory);
    // On a loaded machine names come so late that the agent asks inject for them, which has no such
    // library.
    let without =
        ["the data access library was not needed", "names cannot be had through the data access library"];
    assert!(without.iter().any(|part| text.contains(part)), "{text}");
    assert!(recorded.streams.is_empty());
    for part in
        ["no diagnostics pipe (DOTNET_EnableDiagnostics=0)", "from .NET's memory, by its data contract"]
    {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    functions_have_names(&folder, "nopipe.stk");
    ends_undisturbed(&mut mixed);
}

/// Without a pipe of its own, the runtime's name is free for any process.
#[test]
fn a_pipe_that_another_process_made_in_the_runtimes_place_is_not_written_to() {
    let folder = Folder::new("squat");
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &NO_PIPE);
    let home = path("STK_ENDS_DIR");
    let mut squat = Program::ready(&folder, &home, &home.join("squat.exe"), &[&mixed.pid()]);
    record(&folder, &mixed, "squat.stk", &["-d", "1s", "--rate", "100"]);
    let text = info(&folder, "squat.stk");
    let said = format!("the diagnostics pipe is not the runtime's: process {} made it", squat.pid());
    assert!(text.contains(&said), "{said}:\n{text}");
    squat.kill();
    let clients = squat.output();
    assert!(clients.contains("a client sent 0 bytes"), "{clients}");
    let sent = clients.lines().filter(|line| line.starts_with("a client")).count();
    assert_eq!(clients.matches("a client sent 0 bytes").count(), sent, "{clients}");
    ends_undisturbed(&mut mixed);
}

#[test]
fn a_process_that_is_killed_in_the_middle_of_the_list_leaves_a_trace_that_says_so() {
    let folder = Folder::new("killed");
    let mut mixed = Program::mixed(&folder, Net::V10, &["0"], &[]);
    let mut inject = Inject::start(&folder, &["--pid", &mixed.pid(), "-o", "killed.stk", "--rate", "100"]);
    inject.wait_until_recording();
    let trace = folder.file("killed.stk");
    wait_for("the runtime to list its methods", || {
        let recorded = Recorded::try_open(&trace)?;
        recorded.runtimes.values().any(|runtime| runtime.note.contains("being listed")).then_some(())
    });
    mixed.kill();
    inject.finish();
    let recorded = Recorded::open(&trace);
    assert!(!recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    let whole = recorded.streams.values().filter(|stream| is_whole(stream)).count();
    let text = info(&folder, "killed.stk");
    let expected = if whole == 0 {
        "were being listed for the first time when the recording ended"
    } else {
        "methods listed"
    };
    assert!(text.contains(expected), "{text}");
}

/// The folder of the runtime 3.1.2.
fn dotnet31() -> PathBuf {
    let shared = path("STK_FETCH_DIR").join("dotnet31/shared/Microsoft.NETCore.App");
    std::fs::read_dir(&shared).expect("a shared framework").flatten().next().expect("a version").path()
}

#[test]
fn two_runtimes_in_one_process_are_both_recorded() {
    let folder = Folder::new("two");
    let second = windows_path(&dotnet31().join("coreclr.dll"));
    // Long enough for a recorder that shares two cores with other programs.
    let mut mixed = Program::mixed(&folder, Net::V10, &["300", &second], &[]);
    // The program loads the second one after it has started.
    let both = |_: &str, recorded: &Recorded| recorded.runtimes.len() == 2;
    let (text, recorded) = record_until(&folder, &mixed, "two.stk", &[], both);
    let kinds: Vec<u64> = recorded.runtimes.values().map(|runtime| runtime.kind).collect();
    assert_eq!(kinds, [3, 1], "{:?}", recorded.runtimes);
    assert!(text.contains("a second runtime: the process has one diagnostics pipe"), "{text}");
    assert!(recorded.streams.values().any(|stream| is_whole(stream)));
    ends_undisturbed(&mut mixed);
}

/// The long form (`STK_LONG=1`) is a minute of it; the program itself checks what it computes.
#[test]
fn a_process_that_collects_garbage_all_the_time_is_not_harmed() {
    let folder = Folder::new("garbage");
    let seconds = if stk_tests::wine::long() { 60 } else { 4 };
    // Small generations make the runtime collect all the time.
    let budget = [("COMPlus_GCgen0size", "10000"), ("DOTNET_GCgen0size", "10000")];
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &budget);
    let duration = format!("{seconds}s");
    let recorded = record(&folder, &mixed, "garbage.stk", &["-d", &duration, "--rate", "500"]);
    managed_threads_belong_to_samples(&recorded);
    for &(address, bytes) in &recorded.memory {
        assert!(address != 0 && bytes == 1232, "{address:#x} {bytes}");
    }
    wine::measured(&format!(
        "mixed on 10.0.9, generation 0 of 64 KB, {seconds} s at 500 Hz: {}; managed threads reported in {}",
        wine::figures(&recorded),
        recorded.managed.len()
    ));
    ends_undisturbed(&mut mixed);
}

/// Explicit Frames of a kind that lead to the very frame that stk's walk has.
fn agreeing(explicit: &serde_json::Value, kind: &str) -> u64 {
    let kinds = explicit["kinds"].as_array().expect("a list").iter();
    let of_kind = kinds.filter(|shown| shown["kind"] == kind && shown["class"] == "agrees");
    of_kind.map(|shown| shown["count"].as_u64().expect("a number")).sum()
}

/// P/Invokes of examples/mixed, which call native functions of the same names. (native_wait only
/// jumps to Sleep.)
const P_INVOKES: [&str; 2] = ["native_call", "native_work"];

/// What the brackets of calls in progress say at many moments of a trace: all, those with a method,
/// and those whose native function is a P/Invoke's of examples/mixed. Each of these must be named
/// by that P/Invoke, and no other bracket may be.
#[track_caller]
fn brackets(folder: &Folder, trace: &str, seconds: u32) -> [u64; 3] {
    let mut counts = [0; 3];
    for tenth in 5..10 * seconds {
        let at = format!("{}.{}s", tenth / 10, tenth % 10);
        let ran = stk::run(folder.path(), &["dump", trace, "--at", &at, "--style", "json"]);
        // On a busy machine no thread was sampled yet.
        if ran.code == Some(1) && ran.stderr.contains("no thread was sampled") {
            continue;
        }
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let dump: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
        for thread in dump["threads"].as_array().expect("a list") {
            let frames = thread["frames"].as_array().expect("a list");
            for bracket in thread["explicit_frames"].as_array().expect("a list") {
                let is_active = bracket["kind"] == "InlinedCallFrame" && !bracket["ip"].is_null();
                let caller = frames.iter().position(|frame| frame["ip"] == bracket["ip"]);
                let Some(caller) = caller.filter(|&caller| is_active && caller > 0) else { continue };
                let method = bracket["method"].as_str().expect("a text");
                counts[0] += 1;
                counts[1] += u64::from(!method.is_empty());
                let callee = &frames[caller - 1];
                let function = callee["function"].as_str().expect("a text");
                let of_program = callee["module"] == "native.dll" && P_INVOKES.contains(&function);
                counts[2] += u64::from(of_program);
                let expected = format!("mixed!Mixed.Native.{function}(");
                assert!(
                    !of_program || method.is_empty() || method.starts_with(&expected),
                    "{bracket} {callee}"
                );
                let names_one = P_INVOKES.iter().any(|name| method.contains(&format!(".{name}(")));
                assert!(of_program || !names_one, "{bracket} {callee}");
                assert_eq!(bracket["by_position"], true, "10.0 describes no Datum");
            }
        }
    }
    counts
}

#[test]
fn brackets_of_calls_in_progress_name_their_methods() {
    let folder = Folder::new("brackets");
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &[]);
    record(&folder, &mixed, "brackets.stk", &["-d", "6s", "--rate", "100"]);
    let [all, named, _] = brackets(&folder, "brackets.stk", 6);
    wine::measured(&format!("{named} of {all} brackets name a method"));
    assert!(all > 100 && named * 100 >= all * 99, "{named} of {all}");
    ends_undisturbed(&mut mixed);
}

#[test]
fn brackets_and_native_callees_agree_on_p_invokes() {
    let folder = Folder::new("p-invokes");
    // With a thread that is in native code most of the time.
    let mut mixed = Program::mixed(&folder, Net::V10, &["300"], &[("MIXED_MECHANISMS", "1")]);
    record(&folder, &mixed, "callbacks.stk", &["-d", "6s", "--rate", "100"]);
    let [all, named, of_program] = brackets(&folder, "callbacks.stk", 6);
    wine::measured(&format!("{named} of {all} brackets name a method, {of_program} call native.dll"));
    assert!(of_program > 10, "{of_program} of {all}");
    let line = ["dump", "callbacks.stk", "--thread", "^(mixed|callbacks)$", "--style", "clrstack"];
    let shown = (5..60).any(|tenth| {
        let at = format!("{}.{}s", tenth / 10, tenth % 10);
        let ran = stk::run(folder.path(), &[&line[..], &["--at", &at]].concat());
        let mut lines = ran.stdout.lines().filter(|line| line.contains("[InlinedCallFrame: "));
        lines.any(|line| line.ends_with("] Mixed.Native.native_work(Int32)"))
    });
    assert!(shown, "the form of the first document");
    ends_undisturbed(&mut mixed);
}

/// Threads of examples/mixed that throw, dereference null, call and are called through native code:
/// on CoreCLR 10 their Frames lead to the frames that stk's own walk has. A thread that made an
/// explicit tail call shows no caller that is gone.
#[test]
fn each_mechanism_of_the_data_contract_leads_to_the_walks_own_frame() {
    let folder = Folder::new("mechanisms");
    let mut mixed = Program::mixed(&folder, Net::V10, &["600"], &[("MIXED_MECHANISMS", "1")]);
    let shown = ["10s", "30s", "90s"].iter().any(|duration| {
        record(&folder, &mixed, "mechanisms.stk", &["-d", duration, "--rate", "250", "--force"]);
        let missing = missing_mechanisms(&folder, "mechanisms.stk");
        wine::measured(&format!("mechanisms that {duration} do not show: {missing:?}"));
        missing.is_empty()
    });
    assert!(shown, "the last line says what is missing");
    ends_undisturbed(&mut mixed);
}

/// Whether samples met a thread whose return address the runtime had replaced (HijackFrame), and
/// stacks of the thread "calls" continue from the Frame to the method that called. A walk without
/// Frames ends at the replaced address, so that no frame of it could agree.
fn hijacked_threads_reach_their_callers(folder: &Folder, trace: &str, explicit: &serde_json::Value) -> bool {
    let kinds = explicit["kinds"].as_array().expect("a list").iter();
    let hijacked = kinds.filter(|shown| shown["kind"] == "HijackFrame");
    let met: u64 = hijacked.map(|shown| shown["count"].as_u64().expect("a number")).sum();
    let line =
        ["stats", "--json", "--full", "--thread", "^calls$", "--focus", "Mixed.Mechanisms.Calls", trace];
    let stats = json(folder, &line);
    let trusts = stats["trusts"].as_array().expect("a list").iter();
    let by_frame = trusts.filter(|shown| shown["trust"] == "explicit-frame");
    let led: u64 = by_frame.map(|shown| shown["frames"].as_u64().expect("a number")).sum();
    wine::measured(&format!("{met} HijackFrames, {led} stacks of the thread \"calls\" continue from one"));
    met > 0 && led > 0
}

/// The mechanisms that no sample of a trace shows. What must never be seen is asserted.
#[track_caller]
fn missing_mechanisms(folder: &Folder, trace: &str) -> Vec<String> {
    let explicit = &json(folder, &["verify", "--walks", "--json", trace])["explicit"];
    assert_eq!(explicit["unexplained"], 0, "{explicit}");
    let threads = functions(folder, trace);
    let has = |name: &str, part: &str| {
        let found = threads.iter().find(|(title, _)| title.contains(name));
        let names = found.unwrap_or_else(|| panic!("no thread {name}: {:?}", threads.keys())).1;
        names.iter().any(|function| function.contains(part))
    };
    assert!(!has("tail call", "TailCaller"), "{threads:#?}");
    let mut frames = vec!["SoftwareExceptionFrame", "FaultingExceptionFrame", "InlinedCallFrame"];
    // On Wine 8 the runtime redirects no thread and replaces no return address.
    if Machine::current() == Machine::Wine10 {
        frames.push("RedirectedThreadFrame");
    }
    let mut missing: Vec<String> =
        frames.iter().filter(|kind| agreeing(explicit, kind) == 0).map(|kind| (*kind).to_owned()).collect();
    if Machine::current() == Machine::Wine10 && !hijacked_threads_reach_their_callers(folder, trace, explicit)
    {
        missing.push("HijackFrame".to_owned());
    }
    let stacks = [
        // A callback below native code below managed code.
        ("callbacks", "Mixed.Work.Between("),
        ("callbacks", "native_call"),
        // The exception's filter runs while the thrower's frames are still on the stack.
        ("thrower", "Mixed.Mechanisms.Raise("),
        ("null dereference", "Mixed.Mechanisms.Dereference("),
        ("tail call", "Mixed.Work.Spin("),
    ];
    let stacks = stacks.iter().filter(|(name, part)| !has(name, part));
    missing.extend(stacks.map(|stack| format!("{stack:?}")));
    missing
}
