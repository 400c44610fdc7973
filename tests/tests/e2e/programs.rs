//! Third-party programs: they are recorded and converted, and continue undisturbed.

use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Profile, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Program};

/// Records `target` for some seconds and converts the trace.
fn record(folder: &Folder, target: &[&str]) -> (Recorded, Speedscope) {
    Inject::record(folder, &[target, &["-o", "real.stk", "-d", "5s"]].concat());
    let recorded = Recorded::open(&folder.file("real.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    // Neither ships a PDB: names come from the exports in the trace.
    let speedscope = Speedscope::of(folder.path(), "real.stk", folder.path());
    (recorded, speedscope)
}

#[test]
fn cmake_from_its_wheel_is_recorded_to_the_thread_start() {
    let folder = Folder::new("cmake");
    let exe = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin/cmake.exe");
    let mut cmake = Program::cmake(&folder, &exe);
    let (recorded, speedscope) = record(&folder, &["--name", "cmake.exe"]);
    assert!(cmake.is_running(), "cmake ended: {}", cmake.output());

    let deepest = recorded.samples.iter().map(|sample| sample.stack).max().unwrap_or(0);
    assert!(deepest > 16 << 10, "the deepest stack has {deepest} bytes only");
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    assert!(
        complete > 0.99,
        "{:.2} % of the stacks reach the thread start: {:?}",
        100.0 * complete,
        reasons(&speedscope)
    );
    let frames = speedscope.stacks().map(|(_, stack)| stack.len()).max().unwrap_or(0);
    assert!(frames > 64, "the deepest stack has {frames} frames only");
}

#[test]
fn node_from_its_package_is_recorded_to_the_thread_start() {
    let folder = Folder::new("node");
    let mut node = Program::node(&folder, 12);
    let (recorded, speedscope) = record(&folder, &["--pid", &node.pid()]);
    assert!(recorded.threads.len() > 1, "node has several threads: {:?}", recorded.threads);
    let status = node.wait();
    assert!(status.success() && node.output().contains("rounds ok"), "{status}\n{}", node.output());

    // Compiled JavaScript is in no module. The recorder got its unwind data from the process.
    let compiled = |stack: &[stk::Frame]| stack.iter().any(|frame| frame.name.starts_with("[dynamic code]"));
    let through = speedscope.share(compiled);
    assert!(through > 0.01, "{:.2} % of the stacks hold compiled JavaScript", 100.0 * through);
    let complete = speedscope.share(|stack| compiled(stack) && stk::incomplete(stack).is_none()) / through;
    assert!(
        complete > 0.99,
        "{:.2} % of the stacks through compiled JavaScript reach the thread start: {:?}",
        100.0 * complete,
        reasons(&speedscope)
    );
    // OpenSSL's assembler has frames that its unwind data does not describe; only an exception
    // handler knows them. Such stacks end in the innermost frame, at a word that is not a code
    // address.
    let undescribed = |stack: &[stk::Frame]| stk::incomplete(stack) == Some("no-module") && stack.len() == 2;
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    let known = 1.0 - speedscope.share(undescribed);
    assert!(
        complete / known > 0.99,
        "{:.2} % of the other stacks reach the thread start: {:?}",
        100.0 * complete / known,
        reasons(&speedscope)
    );
    let fact =
        |key: &str| recorded.metadata.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    assert!(
        fact("recorder.code.functions") > 0 && fact("recorder.code.faults") == 0,
        "{:?}",
        recorded.metadata
    );
}

/// Go runs goroutines on stacks that it allocates itself. esbuild is written in Go.
#[test]
fn a_goroutine_on_its_own_stack_is_followed_to_its_start() {
    let folder = Folder::new("go");
    wine::write_modules(&folder);
    let exe = wine::path("STK_FETCH_DIR").join("esbuild/esbuild.exe");
    let exe = wine::windows_path(&exe);
    let bundle =
        ["-o", "go.stk", "--", &exe, "--bundle", "entry.js", "--minify", "--sourcemap", "--outfile=out.js"];
    // A short run has few samples, of which one or two are more than the part that may be missing.
    let (mut seen, mut whole, mut why) = (0, 0, Vec::new());
    for _ in 0..5 {
        let run = goroutine_samples(&folder, &bundle);
        (seen, whole) = (seen + run.0, whole + run.1);
        why.extend(run.2);
        if seen >= 100 {
            break;
        }
    }
    wine::measured(&format!("goroutines: {whole} of {seen} samples on their own stacks reach their start"));
    assert!(seen >= 10, "{seen} samples on stacks of goroutines");
    assert!(whole * 100 >= seen * 95, "{whole} of {seen} reach the start of their goroutine: {why:?}");
}

/// Records esbuild. Gives the samples on stacks of goroutines, how many of them reach the start of
/// their goroutine, and why stacks are incomplete.
fn goroutine_samples(folder: &Folder, bundle: &[&str]) -> (u32, u32, Vec<(String, f64)>) {
    let arguments = [&["--force"], bundle].concat();
    Inject::launch_in(folder, folder.path(), &arguments).expect(0);
    assert!(folder.file("out.js").exists(), "esbuild wrote nothing");

    let recorded = Recorded::open(&folder.file("go.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    // The image contains the address at which goroutines start. It lies at the path that the trace
    // names, or here.
    let home = wine::path("STK_FETCH_DIR").join("esbuild");
    let speedscope = Speedscope::of(folder.path(), "go.stk", &home);
    let [esbuild] = recorded.modules_named("esbuild.exe")[..] else {
        panic!("one esbuild.exe: {:?}", recorded.modules)
    };
    let (mut seen, mut whole) = (0, 0);
    for sample in
        recorded.samples.iter().filter(|sample| sample.is_foreign() && esbuild.holds(sample.ip, sample.time))
    {
        let tid = recorded.threads[&sample.thread].tid.to_string();
        let time = recorded.header.nanoseconds(sample.time) as f64;
        // Threads that ended may have had the same id.
        let of_thread =
            |profile: &&Profile| profile.name.split(|c: char| !c.is_ascii_digit()).any(|n| n == tid);
        let stack = speedscope.threads.iter().filter(of_thread).find_map(|profile| profile.at(time));
        let stack = stack.unwrap_or_else(|| panic!("no stack of thread {tid} at {time} ns"));
        seen += 1;
        whole += u32::from(stk::incomplete(stack).is_none());
    }
    (seen, whole, reasons(&speedscope))
}

/// Shares of the reasons why stacks are incomplete, for messages.
fn reasons(speedscope: &Speedscope) -> Vec<(String, f64)> {
    let mut all: Vec<String> =
        speedscope.stacks().filter_map(|(_, stack)| stk::incomplete(stack)).map(str::to_owned).collect();
    all.sort();
    all.dedup();
    let share = |reason: &String| speedscope.share(|stack| stk::incomplete(stack) == Some(reason));
    all.iter().map(|reason| (reason.clone(), share(reason))).collect()
}
