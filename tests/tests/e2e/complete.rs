//! No module's data is lost: data that the recorder could not read in time is added to the trace
//! after its end.

use std::path::Path;
use std::process::Command;
use stk_schema::Ticks;
use stk_schema::event::ModuleFlags;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// Checks that every module of a trace has an identity, that no stack ends because a module's
/// tables are missing, and that the trace is sound. stk does not use this machine's images for
/// this.
#[track_caller]
fn nothing_is_lost(folder: &Folder, trace: &str) {
    let recorded = Recorded::open(&folder.file(trace));
    assert!(recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
    assert!(!recorded.samples.is_empty(), "{trace} has no samples");
    let info = stk::json(folder.path(), &["info", "--json", trace]);
    let modules = info["traces"][0]["modules"].as_array().expect("modules");
    assert!(!modules.is_empty(), "{trace} has no modules");
    let unknown: Vec<_> = modules.iter().filter(|module| module["code_id"] == "").collect();
    assert!(
        unknown.is_empty(),
        "{trace}: without identity: {unknown:#?}\n{:#}",
        info["traces"][0]["supplement"]
    );
    let without: Vec<_> = modules.iter().filter(|module| module["unwind_data"] == "none").collect();
    assert!(
        without.is_empty(),
        "{trace}: without tables: {without:#?}\n{:#}",
        info["traces"][0]["supplement"]
    );

    let line = ["stats", "--json", "--no-default-symbols", "--top", "0", trace];
    let stats = stk::json(folder.path(), &line);
    let stops = stats["traces"][0]["stops"].as_array().expect("stop reasons");
    let lacking: Vec<_> = stops.iter().filter(|stop| stop["reason"] == "no-unwind-data").collect();
    assert!(lacking.is_empty(), "{trace}: stacks end for lack of tables: {lacking:#?}");
    let verified = stk::run(folder.path(), &["verify", trace]);
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_program_that_ends_at_once_loses_no_module() {
    let cmake = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin/cmake.exe");
    for number in 0..5 {
        let folder = Folder::new("short-lived");
        let trace = format!("short-{number}.stk");
        let output = wine::windows_path(&folder.file(&trace));
        let program = wine::windows_path(&cmake);
        let arguments = ["-o", &output, "-r", "1000", "--", &program, "--version"];
        Inject::launch_in(&folder, folder.path(), &arguments).expect(0);
        nothing_is_lost(&folder, &trace);
    }
}

#[test]
fn a_target_that_is_killed_early_loses_no_module() {
    for number in 0..5 {
        let folder = Folder::new("killed-early");
        let mut busy = Program::busy(&folder, 0);
        let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "killed.stk", "-r", "1000"]);
        inject.wait_until_recording();
        let trace = folder.file("killed.stk");
        wine::wait_for("the first samples on disk", || {
            Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
        });
        std::thread::sleep(std::time::Duration::from_millis(number * 40));
        busy.terminate();
        inject.finish().expect(0).says("killed.stk");
        nothing_is_lost(&folder, "killed.stk");
    }
}

#[test]
fn modules_that_come_and_go_keep_their_identity_and_their_tables() {
    let folder = Folder::new("come-and-go");
    let busy = Program::busy(&folder, 0);
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "busy.stk", "-d", "4s", "-r", "1000"]);
    let recorded = Recorded::open(&folder.file("busy.stk"));
    let gone = recorded.modules.values().filter(|module| module.unload != Ticks::MAX).count();
    assert!(gone > 2, "busy unloads its plug-ins, but {gone} modules went");
    nothing_is_lost(&folder, "busy.stk");
}

#[test]
fn a_rust_program_that_ends_at_once_loses_no_module() {
    let biome = wine::path("STK_FETCH_DIR").join("biome/biome.exe");
    for number in 0..3 {
        let folder = Folder::new("biome");
        let trace = format!("biome-{number}.stk");
        let output = wine::windows_path(&folder.file(&trace));
        let program = wine::windows_path(&biome);
        let arguments = ["-o", &output, "-r", "1000", "--", &program, "--version"];
        let finished = Inject::launch_in(&folder, folder.path(), &arguments);
        assert!(finished.expect(0).stdout.contains("Version:"), "{}", finished.stdout);
        nothing_is_lost(&folder, &trace);
    }
}

#[test]
fn modules_that_are_loaded_right_before_the_process_ends_are_in_the_trace() {
    let folder = Folder::new("last-load");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/last_load.c");
    let program = folder.file("last_load.exe");
    let mut compiler = Command::new(wine::c_compiler());
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
    assert!(compiler.status().expect("the machine's C compiler runs").success());
    let program = wine::windows_path(&program);
    // While the recorder is still reading the earlier modules, and long after that.
    for milliseconds in ["50", "150", "2000", "2010"] {
        let trace = format!("last-{milliseconds}.stk");
        let output = wine::windows_path(&folder.file(&trace));
        let arguments = ["-o", &output, "-r", "1000", "--", &program, milliseconds];
        Inject::launch_in(&folder, folder.path(), &arguments).expect(7);
        let recorded = Recorded::open(&folder.file(&trace));
        for name in ["winmm.dll", "ws2_32.dll", "dbghelp.dll", "cabinet.dll", "version.dll"] {
            let found: Vec<_> =
                recorded.modules.values().filter(|module| module.name().eq_ignore_ascii_case(name)).collect();
            let [module] = found[..] else { panic!("{trace}: {name} was loaded once: {found:#?}") };
            // Wine reports unloads too while a process ends.
            assert!(
                module.flags.contains(ModuleFlags::NOTIFIED) && module.load < module.unload,
                "{module:?}"
            );
        }
        nothing_is_lost(&folder, &trace);
    }
}
