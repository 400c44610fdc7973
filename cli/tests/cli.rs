//! The program as users run it: arguments, exit codes, what goes to standard output and what to standard error.

#[path = "../src/testing.rs"]
#[allow(dead_code)]
mod testing;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use stk_format::{BlockKind, Trace};
use testing::{Image, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// A folder of its own for each test, gone with it.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn stk(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stk"))
        .args(arguments)
        .current_dir(folder)
        .env_remove("_NT_SYMBOL_PATH")
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Two threads, several blocks.
fn trace() -> Vec<u8> {
    let mut builder = testing::trace();
    Image::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let threads = [builder.thread(0, 11, "Fäden", STACK), builder.thread(0, 12, "worker", 2 * STACK)];
    for i in 1..=200u64 {
        for (t, &thread) in threads.iter().enumerate() {
            let calls = [in_function(BASE, (i % 5) as u32), in_function(BASE, 5 + (i / 7 % 3) as u32)];
            testing::sample(&mut builder, thread, i * 10_000, (t as u64 + 1) * STACK, &calls);
        }
        if i % 20 == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A byte in the payload of the SAMPLES block with this number is changed.
fn damage_block(file: &mut [u8], number: usize) {
    let offset = {
        let trace = Trace::open(file).unwrap();
        let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
        samples.nth(number).unwrap().offset as usize + stk_format::BLOCK_HEADER_LEN + 20
    };
    file[offset] ^= 0x5A;
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    for format in ["speedscope", "chrome"] {
        let of = |jobs| {
            let output = stk(dir.path(), &["convert", "a.stk", "--to", format, "-o", "-", "-j", jobs]);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            output.stdout
        };
        let one = of("1");
        assert!(one.len() > 1000);
        assert_eq!(of("2"), one);
        assert_eq!(of("7"), one);
    }
}

#[test]
fn the_output_has_a_usual_name_and_its_name_can_tell_the_format() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    for (arguments, made) in [
        (&["convert", "a.stk", "--to", "speedscope"][..], "trace.speedscope.json"),
        (&["convert", "a.stk", "--to", "chrome"], "trace.chrome.json"),
        (&["convert", "a.stk", "--to", "parquet"], "trace.parquet"),
        (&["convert", "a.stk", "-o", "x.speedscope.json"], "x.speedscope.json"),
    ] {
        let output = stk(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "only data goes to standard output");
        assert!(dir.path().join(made).exists(), "{made}");
    }
    assert!(dir.path().join("trace.parquet").is_dir());
}

#[test]
fn wrong_usage_exits_with_2_and_says_why() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    write(dir.path(), "b.stk", &trace());
    for (arguments, says) in [
        (&["convert", "a.stk"][..], "--to"),
        (&["convert", "a.stk", "-o", "out.xyz"], "--to"),
        (&["convert", "a.stk", "--to", "parquet", "-o", "-"], "standard output"),
        (&["convert", "a.stk", "b.stk", "--to", "chrome", "-o", "-"], "standard output"),
        (&["convert", "a.stk", "b.stk", "-o", "x.speedscope.json"], "folder"),
        (&["convert", "a.stk", "--to", "speedscope", "--from", "2s", "--until", "1s"], "--until"),
        (&["convert", "a.stk", "--to", "speedscope", "-j", "0"], "-j"),
        (&["convert", "a.stk", "--to", "nonsense"], "nonsense"),
        (&["nonsense"], "nonsense"),
    ] {
        let output = stk(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(says), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(stk(dir.path(), &["--help"]).status.code(), Some(0));
}

#[test]
fn a_damaged_trace_among_others_is_reported_and_passed_over() {
    let dir = folder();
    let whole = trace();
    let mut damaged = whole.clone();
    damage_block(&mut damaged, 3);
    write(dir.path(), "whole.stk", &whole);
    write(dir.path(), "damaged.stk", &damaged);
    write(dir.path(), "cut.stk", &whole[..whole.len() / 2]);
    let output = stk(
        dir.path(),
        &["convert", "damaged.stk", "cut.stk", "whole.stk", "--to", "speedscope", "-o", "out/"],
    );
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("damaged.stk: block"), "{text}");
    assert!(text.contains("cut.stk: the recording was not finished"), "{text}");
    for name in ["whole", "damaged", "cut"] {
        assert!(dir.path().join(format!("out/{name}.speedscope.json")).exists(), "{name}");
    }
    let output = stk(dir.path(), &["convert", "none.stk", "whole.stk", "--to", "speedscope", "-o", "out2/"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("none.stk"));
    assert!(dir.path().join("out2/whole.speedscope.json").exists());
}

#[test]
fn traces_of_one_name_do_not_overwrite_each_other() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    write(dir.path(), "a.stk", &trace());
    write(dir.path(), "sub/a.stk", &trace());
    let output = stk(dir.path(), &["convert", "a.stk", "sub/a.stk", "--to", "chrome", "-o", "out"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(dir.path().join("out/a.chrome.json").exists());
    assert!(dir.path().join("out/a-2.chrome.json").exists());
}

#[test]
fn a_truncated_trace_is_no_failure_and_a_damaged_one_is() {
    let dir = folder();
    let whole = trace();
    let mut damaged = whole.clone();
    damage_block(&mut damaged, 0);
    write(dir.path(), "whole.stk", &whole);
    write(dir.path(), "damaged.stk", &damaged);
    write(dir.path(), "cut.stk", &whole[..whole.len() - 2000]);
    write(
        dir.path(),
        "not.stk",
        b"MZ this is something else, and it is longer than the header of a trace would be: \
        it goes on and on and on and on and on and on and on and on",
    );
    write(dir.path(), "empty.stk", b"");
    for (name, code, says) in [
        ("whole.stk", 0, "whole"),
        ("cut.stk", 0, "truncated, no completed block lost"),
        ("damaged.stk", 4, "damaged"),
        ("not.stk", 1, "not a .stk trace"),
        ("empty.stk", 1, "too short"),
    ] {
        let output = stk(dir.path(), &["verify", name]);
        let text = stdout(&output) + &stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{name}: {text}");
        assert!(text.contains(says), "{name}: {text}");
    }
}

#[test]
fn info_tells_people_and_programs_the_same() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    let text = stdout(&stk(dir.path(), &["info", "a.stk"]));
    for part in
        ["pid 4404", "Fäden", "worker", r"C:\app\app.exe", "400", "2023-11-14T22:13:20.000Z", "stopped"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let output = stk(dir.path(), &["info", "--json", "a.stk"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["version"], 1);
    let info = &json["traces"][0];
    assert_eq!(info["samples"], 400);
    assert_eq!(info["pid"], 4404);
    assert_eq!(info["complete"], true);
    assert_eq!(info["threads"].as_array().map(Vec::len), Some(2));
    assert_eq!(info["modules"].as_array().map(Vec::len), Some(3));
    assert_eq!(info["embedded"]["images_with_unwind_data"], 3);
}

#[test]
fn a_range_and_a_thread_can_be_chosen() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    let arguments = [
        "convert",
        "a.stk",
        "--to",
        "speedscope",
        "-o",
        "-",
        "--from",
        "50ms",
        "--until",
        "100ms",
        "--thread",
        "work",
    ];
    let output = stk(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let profiles = json["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 1);
    assert!(profiles[0]["name"].as_str().unwrap().contains("worker"));
    let weights: f64 =
        profiles[0]["weights"].as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).sum();
    assert!(
        (49e6..=50e6).contains(&weights)
            || (49e3..=50e3).contains(&weights)
            || (49.0..=50.0).contains(&weights)
    );
    let output =
        stk(dir.path(), &["convert", "a.stk", "--to", "speedscope", "-o", "-", "--thread", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nobody"));
}

#[test]
fn missing_symbols_are_explained_and_can_be_required() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    let output = stk(dir.path(), &["convert", "a.stk", "--to", "speedscope", "--require-symbols", "10"]);
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(text.contains("app.exe") && text.contains("400 samples"), "{text}");
    assert!(dir.path().join("trace.speedscope.json").exists(), "the output is written all the same");
    let names = std::fs::read_to_string(dir.path().join("trace.speedscope.json")).unwrap();
    assert!(
        names.contains("RtlUserThreadStart") && names.contains("BaseThreadInitThunk"),
        "exports of the trace"
    );
    assert!(names.contains("app.exe+0x"), "module and offset where nothing is known");
}

#[test]
fn dump_prints_the_stacks_of_a_moment() {
    let dir = folder();
    let mut builder = testing::trace();
    Image::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "worker", STACK);
    testing::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    testing::sample(&mut builder, thread, 20_000, STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    builder.cut();
    testing::sample(&mut builder, thread, 30_000, STACK, &[in_function(BASE, 3)]);
    write(dir.path(), "a.stk", &builder.finish());
    let frames = |at: &str| -> Vec<String> {
        let output = stk(dir.path(), &["dump", "a.stk", "--style", "json", "--at", at]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["threads"][0]["stop"], "thread-start");
        let frames = json["threads"][0]["frames"].as_array().unwrap();
        frames.iter().map(|frame| frame["function"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(frames("1ms"), ["app.exe+0x1050", "BaseThreadInitThunk", "RtlUserThreadStart"]);
    assert_eq!(
        frames("2.5ms"),
        ["app.exe+0x1090", "app.exe+0x1050", "BaseThreadInitThunk", "RtlUserThreadStart"]
    );
    assert_eq!(frames("1s"), ["app.exe+0x10d0", "BaseThreadInitThunk", "RtlUserThreadStart"]);
    let text = stdout(&stk(dir.path(), &["dump", "a.stk", "--at", "2ms"]));
    // Child-SP and return address of the innermost frame, from how the stack was built.
    let (registers, _) = testing::stack(STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    let address = |value: u64| format!("{:08x}`{:08x}", value >> 32, value & 0xFFFF_FFFF);
    let line = format!("{} {} app.exe+0x1090", address(registers[1]), address(in_function(BASE, 1)));
    assert!(text.contains(&line), "{line}\n{text}");
    assert!(text.contains("kernel32!BaseThreadInitThunk+0x10"), "{text}");
}
