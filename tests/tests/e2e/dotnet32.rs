//! 32-bit .NET (CoreCLR 2.1.8), which has no function tables, no pipe and no PDBs here: stacks come
//! from code, methods' bounds and names from the data access library.

use std::path::PathBuf;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

/// A recording of a program in `net21`, converted with the images of the runtime and the system.
fn recorded(program: &str) -> (Speedscope, Folder) {
    let folder = Folder::new(program);
    let home = wine::path("STK_MIXED_DIR").join("net21");
    let runtime = wine::path("STK_FETCH_DIR").join("dotnet21-32");
    let dll = home.join(format!("{program}.dll"));
    let arguments = [&wine::windows_path(&dll)[..], "20"];
    let running = Program::ready(&folder, &home, &runtime.join("dotnet.exe"), &arguments);
    Inject::record_x86(&folder, &["--pid", &running.pid(), "-o", "net21.stk", "-d", "6s", "-r", "100"]);
    let recorded = Recorded::open(&folder.file("net21.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    let framework = runtime.join("shared/Microsoft.NETCore.App/2.1.8");
    let places = [home, runtime, framework, Machine::current().x86_system()];
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    let speedscope = Speedscope::of(folder.path(), "net21.stk", &PathBuf::from(places.join(";")));
    (speedscope, folder)
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
    let nameless: Vec<&str> = frames().filter(|name| name.contains(".dll+0x")).collect();
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
    // Round calls Recursion 13 deep, and that Nest, Many and Leaf.
    let named = |frame: &stk::Frame, method: &str| frame.name.contains(&format!("Walk.Program.{method}("));
    let deepest =
        walk.stacks().map(|(_, stack)| stack.iter().filter(|frame| named(frame, "Recursion")).count());
    assert_eq!(deepest.max(), Some(13));
    let complete = walk.stacks().filter(|(_, stack)| stk::incomplete(stack).is_none());
    let leaves: Vec<_> =
        complete.filter(|(_, stack)| stack.last().is_some_and(|frame| named(frame, "Leaf"))).collect();
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
