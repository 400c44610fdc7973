//! 32-bit .NET (CoreCLR 2.1.8), which has no function tables, no pipe and no PDBs here: stacks come
//! from code, methods' bounds and names from the data access library. And a C# program that
//! captures itself, there and on x64.

use std::path::PathBuf;
use stk_schema::event::ModuleFlags;
use stk_tests::recorded::{Module, Recorded};
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Finished, Folder, Inject, Machine, Program};

/// The framework's folder in that of the runtime.
pub(crate) const FRAMEWORK: &str = "shared/Microsoft.NETCore.App/2.1.8";

/// The folder of the programs in `net21` and that of their runtime.
fn net21() -> [PathBuf; 2] {
    [wine::path("STK_MIXED_DIR").join("net21"), wine::path("STK_FETCH_DIR").join("dotnet21-32")]
}

/// The folders of their images.
fn places() -> Vec<PathBuf> {
    let [home, runtime] = net21();
    let framework = runtime.join(FRAMEWORK);
    vec![home, runtime, framework, Machine::current().x86_system()]
}

/// A program in `net21` that runs for some seconds, and the folders of its images.
pub(crate) fn running(program: &str, seconds: &str) -> (Program, Folder, Vec<PathBuf>) {
    let folder = Folder::new(program);
    let [home, runtime] = net21();
    let dll = home.join(format!("{program}.dll"));
    let arguments = [&wine::windows_path(&dll)[..], seconds];
    let running = Program::ready(&folder, &home, &runtime.join("dotnet.exe"), &arguments);
    (running, folder, places())
}

/// Records a program of [`running`] into net21.stk.
#[track_caller]
pub(crate) fn record(folder: &Folder, running: &Program) -> Recorded {
    Inject::record_x86(folder, &["--pid", &running.pid(), "-o", "net21.stk", "-d", "6s", "-r", "100"]);
    let recorded = Recorded::open(&folder.file("net21.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    recorded
}

/// A recording of a program in `net21`, converted with the images of the runtime and the system.
fn recorded(program: &str) -> (Speedscope, Folder) {
    let (running, folder, _) = running(program, "20");
    record(&folder, &running);
    (converted(&folder), folder)
}

/// net21.stk.
fn converted(folder: &Folder) -> Speedscope {
    let places: Vec<String> = places().iter().map(|place| place.display().to_string()).collect();
    Speedscope::of(folder.path(), "net21.stk", &PathBuf::from(places.join(";")))
}

/// `least`: the least share of samples whose stacks must be complete.
#[track_caller]
fn is_complete(program: &str, least: f64) -> Speedscope {
    let (speedscope, _folder) = recorded(program);
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    let jit = |reason: &str| {
        speedscope.share(|stack| stk::incomplete(stack).is_some_and(|why| why.contains(reason)))
    };
    let line = format!(
        "{program} of .NET 2.1 for x86: {:.1} % of stacks complete, {:.1} % end in [dynamic code]",
        100.0 * complete,
        100.0 * jit("[dynamic code]")
    );
    wine::measured(&line);
    assert!(complete >= least, "{line}");
    is_named(program, &speedscope);
    speedscope
}

/// Checks that the framework's precompiled code has names, which no symbol file gives and no pipe.
/// A loaded machine's host leaves some requests without an answer.
#[track_caller]
fn is_named(program: &str, speedscope: &Speedscope) {
    let frames = || {
        let all = speedscope.stacks().flat_map(|(_, stack)| stack);
        all.filter(|frame| frame.file.starts_with("System.")).map(|frame| &frame.name[..])
    };
    let is_nameless = |name: &&str| name.contains(".dll+0x") || name.contains("!fn_");
    let nameless: Vec<&str> = frames().filter(is_nameless).collect();
    let named = frames().count() - nameless.len();
    let line = format!(
        "{program} of .NET 2.1 for x86: {named} frames in precompiled code named, {} not",
        nameless.len()
    );
    wine::measured(&line);
    assert!(named > 0 && nameless.len() * 19 <= named, "{line}: {:?}", nameless.first());
}

#[test]
fn managed_frames_of_every_layout_lead_to_the_thread_start() {
    let walk = is_complete("walk", 0.9);
    // Round calls Recursion 13 deep, and the deepest of them calls Nest.
    let named = |frame: &stk::Frame, method: &str| frame.name.contains(&format!("Walk.Program.{method}("));
    let of_deepest = |stack: &[stk::Frame]| {
        stack.windows(2).any(|pair| named(&pair[0], "Recursion") && named(&pair[1], "Nest"))
    };
    let complete = || walk.stacks().filter(|(_, stack)| stk::incomplete(stack).is_none());
    let mut deepest = 0;
    for (_, stack) in complete().filter(|(_, stack)| of_deepest(stack)) {
        let depth = stack.iter().filter(|frame| named(frame, "Recursion")).count();
        assert_eq!(depth, 13, "{stack:#?}");
        deepest += 1;
    }
    let of_rounds = complete().filter(|(_, stack)| stack.iter().any(|frame| named(frame, "Round")));
    assert_ne!(deepest, 0, "in {} stacks of rounds", of_rounds.count());
    let leaves: Vec<_> =
        complete().filter(|(_, stack)| stack.last().is_some_and(|frame| named(frame, "Leaf"))).collect();
    assert!(!leaves.is_empty());
    for (_, stack) in leaves {
        assert!(stack.iter().any(|frame| named(frame, "Round")), "{stack:#?}");
    }
}

#[test]
fn large_methods_and_precompiled_code_lead_to_the_thread_start() {
    is_complete("framework", 0.8);
}

#[test]
fn native_frames_between_managed_ones_lead_to_the_thread_start() {
    is_complete("mixed", 0.9);
}

#[test]
fn images_that_the_loader_maps_and_does_not_report_are_found() {
    let folder = Folder::new("launched");
    let [home, runtime] = net21();
    let [exe, dll] =
        [runtime.join("dotnet.exe"), home.join("walk.dll")].map(|path| wine::windows_path(&path));
    // The runtime loads its precompiled images while it is recorded.
    Inject::record_x86(&folder, &["-o", "net21.stk", "-r", "100", "--", &exe, &dll, "6"]);
    let recorded = Recorded::open(&folder.file("net21.stk"));
    let core = |module: &&Module| module.path.ends_with("System.Private.CoreLib.dll");
    let core = recorded.modules.values().find(core).expect("the core library");
    let reported = ModuleFlags::NOTIFIED | ModuleFlags::AT_START | ModuleFlags::UNLISTED;
    assert!(!core.flags.intersects(reported), "{core:?}");
    let complete = converted(&folder).share(|stack| stk::incomplete(stack).is_none());
    let line = format!("walk of .NET 2.1 for x86, launched: {:.1} % of stacks complete", 100.0 * complete);
    wine::measured(&line);
    assert!(complete >= 0.8, "{line}");
}

/// Records examples/capture_cs on this runtime, which captures, marks and names itself meanwhile.
#[track_caller]
fn captures_itself_from_csharp(net: &str, runtime: &str, record: fn(&Folder, &[&str]) -> Finished) {
    let folder = Folder::new(&format!("capture-cs-{net}"));
    let home = wine::path("STK_MIXED_DIR").join(net);
    let exe = wine::path("STK_FETCH_DIR").join(runtime).join("dotnet.exe");
    let dll = wine::windows_path(&home.join("capture_cs.dll"));
    let mut program = Program::ready(&folder, &home, &exe, &[&dll]);
    // It ends with the program.
    record(&folder, &["--pid", &program.pid(), "-o", "cs.stk"]);
    program.ends_saying("taken 20 marks 1 named 1");

    let events = stk::json(folder.path(), &["events", "cs.stk", "--json"]);
    let events = events["traces"][0]["events"].as_array().expect("a list");
    let of = |kind: &'static str| events.iter().filter(move |event| event["kind"] == kind);
    assert_eq!(of("mark").filter(|mark| mark["text"] == "f\u{fc}nf").count(), 1);
    let tags: Vec<u64> = of("capture").filter_map(|capture| capture["tag"].as_u64()).collect();
    assert!(tags.len() == 20 && tags.windows(2).all(|pair| pair[0] < pair[1]), "{tags:?}");
    let info = stk::run(folder.path(), &["info", "cs.stk", "--all"]).stdout;
    assert!(info.contains("C# \u{e4}"), "{info}");
    // The last of them: by then the names are there.
    let images = [home, wine::path("STK_FETCH_DIR").join(runtime), Machine::current().x86_system()];
    let images: Vec<String> = images.iter().map(|place| place.display().to_string()).collect();
    let shown = stk::run(
        folder.path(),
        &["events", "cs.stk", "--stacks", "--tag", &tags[19].to_string(), "-y", &images.join(";")],
    );
    let lines: Vec<&str> = shown.stdout.lines().collect();
    let at = |method: &str| {
        let method = format!("Capturing.Program.{method}(");
        lines
            .iter()
            .position(|line| line.contains(&method))
            .unwrap_or_else(|| panic!("{method}\n{}", shown.stdout))
    };
    assert!(at("Inner") < at("Outer") && at("Outer") < at("Main"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("\"agent"), "the agent's frames are left out: {}", shown.stdout);
}

#[test]
fn a_csharp_program_of_32_bits_captures_marks_and_names_itself() {
    captures_itself_from_csharp("net21", "dotnet21-32", Inject::record_x86);
}

#[test]
fn a_csharp_program_of_64_bits_captures_marks_and_names_itself() {
    captures_itself_from_csharp("net31", "dotnet31", Inject::record);
}
