//! `inject doctor`: the self-check completes, gives the expected facts under Wine, and finds
//! faults.

use object::Object as _;
use serde_json::Value;
use std::path::Path;
use stk_tests::schema;
use stk_tests::sha256::sha256;
use stk_tests::wine::{self, Finished, Folder, Inject, Program};

/// A report that follows the schema and whose summary counts its facts.
struct Report(Value);

impl Report {
    fn of(finished: &Finished) -> Report {
        Report::parse(&finished.stdout)
    }

    fn parse(text: &str) -> Report {
        let report: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}:\n{text}"));
        let rules = include_str!("../../../schema/doctor.schema.json");
        let rules: Value = serde_json::from_str(rules).expect("a schema");
        schema::check(&rules, &report).unwrap_or_else(|wrong| panic!("{wrong}:\n{text}"));
        let report = Report(report);
        for verdict in ["ok", "note", "unknown", "bad"] {
            let count = report.facts().filter(|fact| fact["verdict"] == verdict).count();
            assert_eq!(report.0["summary"][verdict], count, "{verdict}");
        }
        report
    }

    fn facts(&self) -> impl Iterator<Item = &Value> {
        self.0["facts"].as_array().expect("a list").iter()
    }

    #[track_caller]
    fn fact(&self, group: &str, name: &str) -> &Value {
        let found = self.facts().find(|fact| fact["group"] == group && fact["name"] == name);
        found.unwrap_or_else(|| panic!("no fact {group}/{name} in {}", self.0))
    }

    #[track_caller]
    fn is_ok(&self, group: &str, name: &str) -> &Value {
        let fact = self.fact(group, name);
        assert_eq!(fact["verdict"], "ok", "{fact}");
        &fact["value"]
    }
}

/// The name of a program's architecture, read from its file.
fn arch(program: &Path) -> &'static str {
    let bytes = std::fs::read(program).unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    match object::File::parse(&*bytes).expect("a PE image").architecture() {
        object::Architecture::X86_64 => "x64",
        object::Architecture::Aarch64 => "arm64",
        object::Architecture::I386 => "x86",
        other => panic!("{}: {other:?}", program.display()),
    }
}

/// Checks the facts that hold on every system that the recorder supports.
fn works(report: &Report, inject: &Path) {
    assert_eq!(report.0["arch"], arch(inject));
    let loaded = report.is_ok("agent", "loaded").as_str().expect("a path").to_lowercase();
    assert!(loaded.ends_with(".dll"), "{loaded}");
    report.is_ok("agent", "version");
    if !cfg!(windows) {
        assert_eq!(report.fact("system", "wine")["verdict"], "note");
    }
    // On a real Windows the clocks and calls of the machine, virtual or guarded, are not stk's.
    let bad = report.facts().filter(|fact| fact["verdict"] == "bad");
    let own = bad.filter(|fact| !cfg!(windows) || fact["group"] == "agent" || fact["group"] == "files");
    assert_eq!(own.collect::<Vec<_>>(), Vec::<&Value>::new(), "{}", report.0);
}

/// The exit code of a report: 1 if something is bad.
fn checked(finished: &Finished) -> Report {
    let report = Report::of(finished);
    let bad = report.0["summary"]["bad"] != 0;
    finished.expect(bad.into());
    report
}

#[test]
fn this_system_is_found_fit_and_the_report_follows_its_schema() {
    let folder = Folder::new("doctor");
    let finished = Inject::run(&folder, &["doctor", "--json"]);
    let report = checked(&finished);
    works(&report, &wine::path("STK_WINDOWS_BIN").join("inject.exe"));
    assert_eq!(report.0["pid"], Value::Null);
    assert!(report.facts().all(|fact| fact["group"] != "target"));
    for file in ["inject.exe", "agent.dll"] {
        let hash = report.is_ok("files", &format!("{file} sha256"));
        let bytes = std::fs::read(wine::path("STK_WINDOWS_BIN").join(file)).expect("a program");
        assert_eq!(hash, &sha256(&bytes), "{file}");
    }
}

#[test]
fn the_32_bit_inject_finds_its_own_system_fit() {
    let folder = Folder::new("doctor32");
    let report = checked(&Inject::run_x86(&folder, &["doctor", "--json"]));
    works(&report, &wine::path("STK_WINDOWS32_BIN").join("inject32.exe"));
}

#[test]
fn the_text_goes_to_the_file_that_is_named() {
    let folder = Folder::new("doctor-text");
    let finished = Inject::run(&folder, &["doctor", "-o", "döctor.txt"]);
    assert!(finished.code == Some(0) || cfg!(windows) && finished.code == Some(1), "{}", finished.stderr);
    assert_eq!(finished.stdout, "");
    let text = std::fs::read_to_string(folder.file("döctor.txt")).expect("the report");
    assert!(text.contains("\nagent\n  ok       loaded"), "{text}");
    assert!(text.trim_end().ends_with(" bad"), "{text}");
    assert_eq!(text.trim_end().ends_with(" 0 bad"), finished.code == Some(0), "{text}");
    Inject::run(&folder, &["doctor", "-o", "döctor.txt"]).refuses(1, "exists");
    assert_eq!(std::fs::read_to_string(folder.file("döctor.txt")).expect("the report"), text);
    Inject::run(&folder, &["doctor", "-o", "nowhere/d.txt"]).refuses(1, "nowhere/d.txt cannot be written");
}

#[test]
fn a_process_is_examined_and_not_changed() {
    let folder = Folder::new("doctor-pid");
    let mut busy = Program::busy(&folder, 0);
    let report = checked(&Inject::run(&folder, &["doctor", "--json", "--pid", &busy.pid()]));
    assert_eq!(report.is_ok("target", "name"), "busy.exe");
    let own = arch(&wine::path("STK_BUSY_DIR").join("busy.exe"));
    assert_eq!(report.is_ok("target", "machine"), own);
    assert_eq!(report.is_ok("target", "recordable"), true);
    assert_eq!(report.is_ok("target", "right VM_WRITE"), true);
    assert_eq!(report.is_ok("target", "app-container"), false);
    report.is_ok("target", "kernel32");
    // What the system says of these differs by its version.
    for name in ["power", "affinity", "cpu-sets", "priority-boosts"] {
        assert_ne!(report.fact("target", name)["verdict"], "bad", "{name}");
    }
    assert!(report.fact("target", "affinity")["value"].as_str().expect("text").contains(" of "));
    // Its main thread and the six of its README.
    assert!(report.is_ok("target", "threads").as_u64().expect("a number") >= 7);
    assert!(report.is_ok("target", "modules").as_u64().expect("a number") > 2);
    assert!(busy.is_running(), "{}", busy.output());
    let list = Inject::run(&folder, &["ps", "--json"]);
    assert!(!list.stdout.contains("\"recording\":true"), "{}", list.stdout);
}

#[test]
fn a_process_that_does_not_exist_is_bad() {
    let folder = Folder::new("doctor-nobody");
    let report = Report::of(Inject::run(&folder, &["doctor", "--json", "--pid", "999999"]).expect(1));
    assert_eq!(report.fact("target", "name")["verdict"], "bad");
    let bad = report.facts().filter(|fact| fact["verdict"] == "bad");
    assert_eq!(bad.filter(|fact| !cfg!(windows) || fact["group"] == "target").count(), 1, "{}", report.0);
}

#[test]
fn an_agent_that_is_missing_or_of_another_version_is_bad() {
    let folder = Folder::new("doctor-alone");
    let bin = wine::path("STK_WINDOWS_BIN");
    let inject = folder.file("inject.exe");
    std::fs::copy(bin.join("inject.exe"), &inject).expect("inject.exe can be copied");
    let doctor = || {
        let out = folder.file("report.json");
        let mut command = wine::command(&inject);
        command.args(["doctor", "--json", "-o", "report.json", "--force"]);
        let status = wine::output(command.current_dir(folder.path())).status;
        (status.code(), Report::parse(&std::fs::read_to_string(out).expect("a report")))
    };

    let (code, report) = doctor();
    assert_eq!(code, Some(1));
    assert_eq!(report.fact("files", "agent.dll path")["verdict"], "bad");
    assert_eq!(report.fact("agent", "loaded")["verdict"], "bad");
    assert!(report.facts().all(|fact| fact["name"] != "version"));

    // A DLL without the agent's export.
    std::fs::copy(wine::path("STK_BUSY_DIR").join("plugin_a.dll"), folder.file("agent.dll")).expect("copied");
    let (code, report) = doctor();
    assert_eq!(code, Some(1));
    let loaded = report.fact("agent", "loaded");
    assert_eq!(loaded["verdict"], "bad");
    assert!(loaded["explanation"].as_str().is_some_and(|why| why.contains("stk_agent_start")), "{loaded}");
}
