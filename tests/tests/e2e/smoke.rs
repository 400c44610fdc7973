//! Checks the recorder's main properties in a few recordings. It runs on every machine, also on an
//! emulated and slow one.

use stk_schema::event::EndReason;
use stk_tests::recorded::Recorded;
use stk_tests::stk::{self, Speedscope};
use stk_tests::wine::{self, Folder, Inject, Machine, Program};

/// busy's last line in every undisturbed run (examples/busy/README.md).
const UNDISTURBED: &str = "checksum a9a6d267ba599d58";

#[test]
fn a_program_recorded_by_its_id_is_undisturbed_and_its_stacks_are_complete() {
    let folder = Folder::new("smoke");
    let mut busy = Program::busy(&folder, 20);
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "smoke.stk", "-r", "100", "-d", "10s"]);
    busy.ends_saying(UNDISTURBED);

    let recorded = Recorded::open(&folder.file("smoke.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.header.arch, Machine::current().arch());
    for name in ["main", "recursion", "leaf loops", "größe", "spawner", "plugins", "waiter"] {
        let [thread] = recorded.threads_named(name)[..] else {
            panic!("one thread '{name}': {:?}", recorded.threads)
        };
        assert!(recorded.samples_of(thread).count() > 0, "no sample of '{name}'");
    }

    let speedscope = Speedscope::of(folder.path(), "smoke.stk", &wine::path("STK_BUSY_DIR"));
    let complete = speedscope.share(|stack| stk::incomplete(stack).is_none());
    let incomplete = speedscope.stacks().find(|(_, stack)| stk::incomplete(stack).is_some());
    assert!(complete >= 0.99, "{:.2} % reach the thread start; not {incomplete:#?}", 100.0 * complete);
    for (thread, chain) in [
        ("recursion", &["recursion_main", "recurse_even", "recurse_odd", "recurse_even"][..]),
        ("größe", &["sizes_main", "measure_sizes", "measure_one"]),
        ("waiter", &["waiter_main", "wait_for_event"]),
        ("main", &["busy_main", "run_parts"]),
    ] {
        let profile = speedscope.only(thread);
        assert!(profile.has_chain(chain), "{thread} never shows {chain:?}: {:#?}", profile.stacks.first());
    }
    let bottom = speedscope.only("recursion").frame("recurse_even").expect("it was on the stack");
    assert!(bottom.file.ends_with("recursion.cpp") && bottom.line > 0, "{bottom:?}");
}

#[test]
fn a_launched_program_is_recorded_and_its_exit_code_passed_on() {
    let folder = Folder::new("smoke-launch");
    let busy = wine::windows_path(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    let line = ["-o", "launched.stk", "-r", "100", "--", &busy, "5"];
    let finished = Inject::launch_in(&folder, folder.path(), &line);
    finished.expect(0).says("busy.exe").says("ended with exit code 0");
    assert!(finished.stdout.contains(UNDISTURBED), "{}", finished.stdout);
    let recorded = Recorded::open(&folder.file("launched.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty());

    let line = ["-o", "cmd.stk", "--", "cmd.exe", "/c", "exit 7"];
    Inject::launch_in(&folder, folder.path(), &line).expect(7);
}

#[test]
fn a_recording_is_listed_and_stopped_from_elsewhere() {
    let folder = Folder::new("smoke-stop");
    let mut busy = Program::busy(&folder, 0);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "stopped.stk", "-r", "100"]);
    inject.wait_until_recording();
    let list = Inject::run(&folder, &["ps", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&list.expect(0).stdout).expect("JSON");
    let pid: u64 = busy.pid().parse().expect("a number");
    let processes = list["processes"].as_array().expect("a list");
    let listed = processes.iter().find(|process| process["pid"] == pid).expect("busy is listed");
    assert_eq!(listed["recording"], true, "{listed}");

    Inject::run(&folder, &["stop", "--pid", &busy.pid()]).expect(0).says("stopped busy.exe");
    inject.finish().expect(0).says("stopped from elsewhere");
    let recorded = Recorded::open(&folder.file("stopped.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.end.expect("a complete trace has an END").0, EndReason::Stopped as u64);
    assert!(busy.is_running());
}

#[test]
fn a_killed_program_leaves_a_readable_trace() {
    let folder = Folder::new("smoke-kill");
    let mut busy = Program::busy(&folder, 0);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "dead.stk", "-r", "100"]);
    inject.wait_until_recording();
    let trace = folder.file("dead.stk");
    wine::wait_for("the first samples on disk", || {
        Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
    });
    busy.terminate();
    inject.finish().expect(0).says("ended with exit code").says("dead.stk");
    let recorded = Recorded::open(&trace);
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty());
}
