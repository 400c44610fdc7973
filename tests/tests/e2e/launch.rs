//! Programs that inject starts: their main thread initialises them, and they are recorded before
//! their first instruction.

use stk_tests::recorded::Recorded;
use stk_tests::wine::{self, Finished, Folder, Inject, Program, compiled, windows_path};

const AS_ALONE: &str = "dll main\ntls main\n";

/// tests/programs/launch_probe.c ends with this code if it found everything as expected.
const AS_IT_SHOULD_BE: i32 = 10;

fn is_as_it_should_be(finished: &Finished) {
    assert_eq!(finished.stdout, format!("{AS_ALONE}recording 1\n"), "{}", finished.stderr);
    finished.expect(AS_IT_SHOULD_BE).says("launch_probe.exe").says("ended with exit code 10");
}

#[test]
fn the_main_thread_initialises_a_launched_program_which_is_recorded_when_it_begins() {
    let folder = Folder::new("launch-thread");
    let probe = wine::windows_path(&wine::path("STK_LAUNCH_DIR").join("launch_probe.exe"));
    is_as_it_should_be(&Inject::run(&folder, &["-o", "probe.stk", "--", &probe]));
    let recorded = Recorded::open(&folder.file("probe.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.modules_named("launch_probe.dll").len(), 1, "{:?}", recorded.modules);
}

#[test]
fn the_main_thread_initialises_a_launched_32_bit_program_too() {
    let folder = Folder::new("launch-thread32");
    let probe = wine::windows_path(&wine::path("STK_LAUNCH32_DIR").join("launch_probe.exe"));
    is_as_it_should_be(&Inject::run_x86(&folder, &["-o", "probe.stk", "--", &probe]));
}

#[test]
fn a_program_that_cannot_be_initialised_is_a_failure_with_its_exit_code() {
    let folder = Folder::new("launch-no-dll");
    // Without the DLL that it imports.
    let alone = folder.file("launch_probe.exe");
    std::fs::copy(wine::path("STK_LAUNCH_DIR").join("launch_probe.exe"), &alone).expect("ours");
    let finished = Inject::run(&folder, &["-o", "x.stk", "--", &wine::windows_path(&alone)]);
    finished.refuses(125, "ended with exit code 0xc0000135 while it was being initialised");
    assert!(!folder.file("x.stk").exists());
}

#[test]
fn refusal_before_the_first_instruction_ends_the_program() {
    let folder = Folder::new("launch-refused");
    let probe = wine::windows_path(&wine::path("STK_LAUNCH_DIR").join("launch_probe.exe"));
    let finished = Inject::run(&folder, &["-o", "nowhere/x.stk", "--", &probe]);
    finished.refuses(125, "nowhere");
    assert_eq!(finished.stdout, "", "the program ran");
}

#[test]
fn a_program_whose_agent_does_not_load_runs_unrecorded() {
    let folder = Folder::new("launch-unrecorded");
    let plain = wine::windows_path(&wine::path("STK_LAUNCH_DIR").join("attach_plain.exe"));
    // This DLL is not an agent, which shows when it is loaded.
    let slow = wine::windows_path(&wine::path("STK_SLOW_DLL"));
    let finished = Inject::run(&folder, &["-o", "x.stk", &slow, "--", &plain]);
    finished.expect(1).says("could not load").says("runs without being recorded");
    assert_eq!(finished.stdout, "recorded 0\n");
    // Its DllMain takes three seconds: the program is let run, and the time for it is over.
    let finished = Inject::run(&folder, &["-o", "x.stk", "--timeout", "1s", &slow, "--", &plain]);
    finished.expect(1).says("is let run").says("within 1 s").says("runs without being recorded");
    assert_eq!(finished.stdout, "recorded 0\n");
    assert!(!folder.file("x.stk").exists());
}

/// Programs of tests/programs/attach.c: how their DLL is attached, and the exit code.
const ATTACHED: [(&str, i32); 4] = [("plain", 1), ("alerted", 1), ("alerted_long", 1), ("own_calls", 51)];

fn is_recorded_to_its_end(folder: &Folder, run: impl Fn(&str, &str) -> Finished, home: &str) {
    for (how, code) in ATTACHED {
        let program = wine::windows_path(&wine::path(home).join(format!("attach_{how}.exe")));
        let trace = format!("{how}.stk");
        let finished = run(&trace, &program);
        finished.expect(code).says(&format!("ended with exit code {code}"));
        let recorded = Recorded::open_sound(&folder.file(&trace));
        assert!(!recorded.samples.is_empty(), "{how}");
        // One that is not held before its first instruction says so.
        let late = finished.stderr.contains("its recording begins late");
        assert_eq!(finished.stdout, format!("recorded {}\n", u8::from(!late)), "{how}: {}", finished.stderr);
        assert!(!late || how != "plain", "{}", finished.stderr);
    }
}

#[test]
fn a_program_whose_dll_waits_alertably_in_dllmain_is_recorded() {
    let folder = Folder::new("launch-alerted");
    let run = |trace: &str, program: &str| Inject::run(&folder, &["-o", trace, "--", program]);
    is_recorded_to_its_end(&folder, run, "STK_LAUNCH_DIR");
}

#[test]
fn a_32_bit_program_with_an_alertable_dllmain_is_recorded() {
    let folder = Folder::new("launch-alerted32");
    let run = |trace: &str, program: &str| Inject::run_x86(&folder, &["-o", trace, "--", program]);
    is_recorded_to_its_end(&folder, run, "STK_LAUNCH32_DIR");
}

#[test]
fn process_created_suspended_is_listed_and_refused_as_such() {
    let folder = Folder::new("born-suspended");
    let exe = compiled(env!("CARGO_TARGET_TMPDIR"), "suspended");
    let plain = windows_path(&wine::path("STK_LAUNCH_DIR").join("attach_plain.exe"));
    let go = folder.file("go");
    let home = exe.parent().expect("a folder").to_owned();
    let mut parent = Program::ready(&folder, &home, &exe, &[&plain, &windows_path(&go)]);
    let pid = parent.pid();
    let listed = Inject::run(&folder, &["ps", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.expect(0).stdout).expect("JSON");
    let row = listed["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|row| row["pid"].as_u64() == pid.parse().ok());
    let row = row.expect("it is listed");
    assert_eq!(row["recordable"], false, "{row}");
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("created suspended")), "{row}");
    Inject::run(&folder, &["--pid", &pid, "-o", "x.stk"])
        .refuses(3, "has not begun: it was created suspended");
    assert!(!folder.file("x.stk").exists());
    std::fs::write(go, "").expect("writable");
    // The program ends with the number of times that its DLL was attached.
    assert_eq!(parent.wait().code(), Some(1), "{}", parent.output());
}
