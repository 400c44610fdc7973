//! Compares stk.exe, run as a Windows program, with the host's stk.

use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use stk_tests::schema;
use stk_tests::wine::{self, Folder, Machine, Program, wait_for};
use stk_tests::{stk, wine::command};

/// The kept trace with its PDBs, in a folder where both programs work with the same relative paths.
fn kept_trace() -> Folder {
    let folder = Folder::new("stk-exe");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    for entry in std::fs::read_dir(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display())) {
        let entry = entry.expect("an entry of examples/traces");
        std::fs::copy(entry.path(), folder.file(&entry.file_name().to_string_lossy())).expect("a copy");
    }
    folder
}

/// A lab machine has only the unpacked release.
#[test]
fn the_programs_need_only_dlls_of_windows() {
    const WINDOWS: [&str; 10] = [
        "kernel32",
        "ntdll",
        "msvcrt",
        "advapi32",
        "ws2_32",
        "userenv",
        "bcryptprimitives",
        "bcrypt",
        "combase",
        "shell32",
    ];
    for program in ["stk.exe", "inject.exe", "agent.dll"] {
        let bytes = std::fs::read(wine::path("STK_WINDOWS_BIN").join(program)).expect(program);
        let image = object::read::pe::PeFile64::parse(&*bytes).expect(program);
        let table = image.import_table().expect("imports").expect("imports");
        let mut descriptors = table.descriptors().expect("imports");
        while let Some(descriptor) = descriptors.next().expect("imports") {
            let name = table.name(descriptor.name.get(object::LittleEndian)).expect("a name");
            let name = String::from_utf8_lossy(name).to_lowercase();
            let stem = name.strip_suffix(".dll").unwrap_or(&name);
            assert!(WINDOWS.contains(&stem) || stem.starts_with("api-ms-win-"), "{program} needs {name}");
        }
    }
}

/// All files at or below a path, by their relative paths.
fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        if next.is_dir() {
            let entries = std::fs::read_dir(&next).expect("a folder that was just written");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            let bytes = std::fs::read(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display()));
            found.insert(next.strip_prefix(path).expect("below the path").to_owned(), bytes);
        }
    }
    found
}

/// Every format, byte for byte. Without the default symbol folders both programs see the same
/// files. Otherwise stk.exe would find the system's own DLLs at the trace's paths, and so better
/// names.
#[test]
fn stk_exe_writes_the_same_bytes_as_the_hosts_stk() {
    let folder = kept_trace();
    let parquet = [
        ("tables.parquet", &["--to", "parquet"][..]),
        ("one.parquet", &["--to", "parquet", "--denormalized"]),
    ];
    let json = [
        ("functions.json", &["--to", "speedscope"][..]),
        ("lines.json", &["--to", "speedscope", "--lines"]),
        ("chrome.json", &["--to", "chrome"]),
    ];
    // In the short form of the tests stk.exe is built without Parquet.
    let parquet = parquet.into_iter().filter(|_| wine::long());
    for (output, options) in json.into_iter().chain(parquet) {
        let convert = |made: &str, cache: &str| {
            let line = [
                "convert",
                "busy.stk",
                "-y",
                ".",
                "--no-default-symbols",
                "--symbol-cache",
                cache,
                "-o",
                made,
            ];
            line.iter().chain(options).map(|part| (*part).to_owned()).collect::<Vec<String>>()
        };
        let (ours, theirs) = (format!("host.{output}"), format!("windows.{output}"));
        let line = convert(&ours, "host-cache");
        let ran = stk::run(folder.path(), &line.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        stk_exe(&folder, &convert(&theirs, "windows-cache"));
        let (ours, theirs) = (files(&folder.file(&ours)), files(&folder.file(&theirs)));
        assert_eq!(ours.len(), if output == "tables.parquet" { 6 } else { 1 }, "{output}: files");
        assert!(ours.keys().eq(theirs.keys()), "{output}: the files have other names");
        for (name, bytes) in &ours {
            assert!(bytes == &theirs[name], "{output}/{} differs", name.display());
        }
    }
}

/// Dumps one sample of every thread, taken by the inject.exe beside stk.exe.
#[test]
fn dump_of_a_live_process_prints_its_named_stacks() {
    let folder = Folder::new("stk-exe-dump");
    let busy = Program::busy(&folder, 0);
    let symbols = wine::windows_path(&wine::path("STK_BUSY_DIR"));
    let dump = |style: &str| {
        let pid = busy.pid();
        let line =
            ["dump", "--pid", &pid, "--style", style, "--explain", "-y", &symbols, "--symbol-cache", "cache"];
        stk_exe(&folder, &line.map(str::to_owned))
    };
    let json: Value = serde_json::from_str(&dump("json")).expect("stk.exe prints JSON");
    let rules: Value =
        serde_json::from_str(include_str!("../../../schema/dump.schema.json")).expect("a schema");
    schema::check(&rules, &json).expect("as schema/dump.schema.json describes it");
    let threads = json["threads"].as_array().expect("threads");
    let thread = threads.iter().find(|thread| thread["name"] == "recursion").expect("busy has such a thread");
    let frames = thread["frames"].as_array().expect("frames");
    let main =
        frames.iter().find(|frame| frame["function"].as_str().is_some_and(|f| f.contains("recursion_main")));
    let main = main.unwrap_or_else(|| panic!("recursion_main is on no stack of its thread: {thread:#}"));
    assert!(main["file"].as_str().is_some_and(|file| file.ends_with("busy.cpp")), "{main}");
    let text = dump("k");
    let line = text.lines().find(|line| line.contains("recursion_main+0x"));
    assert!(line.is_some_and(|line| line.contains(" busy!")), "as the debuggers name it: {text}");

    let line = ["dump", "--pid", "999999"].map(str::to_owned);
    let ran = run_stk_exe(&folder, &line);
    assert_eq!(ran.status.code(), Some(3), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(text.contains("999999"), "{text}");
}

#[test]
fn ctrl_c_leaves_no_partial_output() {
    let folder = kept_trace();
    // Enough traces that one is always being written.
    let traces: Vec<String> = (0..60).map(|n| format!("{n}.stk")).collect();
    for trace in &traces {
        std::fs::copy(folder.file("busy.stk"), folder.file(trace)).expect("a copy");
    }
    let exe = wine::path("STK_WINDOWS_BIN").join("stk.exe");
    let log = std::fs::File::create(folder.file("stk.log")).expect("writable");
    let mut command = command(&exe);
    command.arg("convert").args(&traces).args(["--to", "chrome", "-o", "out/", "--no-default-symbols"]);
    let mut child = command.current_dir(folder.path()).stderr(log).spawn().expect("stk.exe can be started");
    let written = |ending: &str| {
        let entries = std::fs::read_dir(folder.file("out")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(ending)).count()
    };
    wait_for("the first outputs", || (written(".chrome.json") > 0).then_some(()));
    assert!(Machine::current().interrupt(&child), "stk.exe was done too soon");
    let status = wait_for("stk.exe to end", || child.try_wait().expect("a child can be waited for"));
    let text = std::fs::read_to_string(folder.file("stk.log")).expect("a log");
    assert_eq!(status.code(), Some(130), "{text}");
    assert!(text.contains("interrupted"), "{text}");
    assert_eq!(written(".partial"), 0);
    assert!(written(".chrome.json") < traces.len(), "it continued to the end");
}

/// Runs stk.exe, which must succeed, and returns its output.
#[track_caller]
fn stk_exe(folder: &Folder, arguments: &[String]) -> String {
    let ran = run_stk_exe(folder, arguments);
    let text = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "stk.exe {}: {text}", arguments.join(" "));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

fn run_stk_exe(folder: &Folder, arguments: &[String]) -> Output {
    let exe = wine::path("STK_WINDOWS_BIN").join("stk.exe");
    let mut command = wine::command(&exe);
    wine::output(command.args(arguments).current_dir(folder.path()))
}
