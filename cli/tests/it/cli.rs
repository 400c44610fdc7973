//! Tests of the program from the outside: arguments, exit codes, standard output and standard
//! error.

use crate::commit;
use crate::support::{kept, stk};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use stk_format::{BlockKind, Trace};
use stk_schema::Ticks;
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// A new folder for each test, which is deleted with it.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A trace of two threads, in several blocks.
fn trace() -> Vec<u8> {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let threads = [builder.thread(0, 11, "Fäden", STACK), builder.thread(0, 12, "worker", 2 * STACK)];
    for i in 1..=200u64 {
        for (t, &thread) in threads.iter().enumerate() {
            let calls = [in_function(BASE, (i % 5) as u32), in_function(BASE, 5 + (i / 7 % 3) as u32)];
            traces::sample(&mut builder, thread, i * 10_000, (t as u64 + 1) * STACK, &calls);
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

/// Changes a byte in the payload of the SAMPLES block with this number.
fn damage_block(file: &mut [u8], number: usize) {
    let offset = {
        let trace = Trace::open(file).unwrap();
        let mut samples = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
        samples.nth(number).unwrap().offset as usize + stk_format::BLOCK_HEADER_LEN + 20
    };
    file[offset] ^= 0x5A;
}

#[test]
fn version_shows_commit_and_features() {
    let dir = folder();
    let output = stk(dir.path(), &["--version"]);
    let line = stdout(&output);
    let inner = line.strip_prefix(concat!("stk ", env!("CARGO_PKG_VERSION"), " (")).expect(&line);
    let (commit, features) = inner.trim_end().strip_suffix(')').unwrap().split_once("; features: ").unwrap();
    assert_eq!(features.contains("parquet"), cfg!(feature = "parquet"), "{line}");
    assert_eq!(features.contains("swift"), cfg!(feature = "swift"), "{line}");
    let known = commit.split([',', ' ']).next().unwrap();
    let digits = known.len() == 10 && known.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(commit == "unknown commit" || digits, "{line}");
}

#[test]
fn commit_of_a_build_comes_from_its_own_checkout() {
    let dir = folder();
    let root = dir.path().join("checkout");
    std::fs::create_dir_all(root.join("src")).unwrap();
    std::fs::create_dir_all(root.join("copy/src")).unwrap();
    write(&root, "src/main.rs", b"fn main() {}");
    assert_eq!(commit::described(&root, &["src"]), "unknown commit");
    let git = |arguments: &[&str]| {
        let name = ["-c", "user.name=stk", "-c", "user.email=stk@example.org"];
        let date = ("GIT_COMMITTER_DATE", "2026-11-27T12:00:00Z");
        let mut command = Command::new("git");
        command.args(name).args(arguments).env(date.0, date.1).current_dir(&root);
        let output = command.output().expect("git");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    git(&["init", "-q"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    let commit = git(&["rev-parse", "HEAD"])[..10].to_owned();
    assert_eq!(commit::described(&root, &["src"]), format!("{commit}, 2026-11-27"));
    write(&root, "README.md", b"not built from");
    assert_eq!(commit::described(&root, &["src"]), format!("{commit}, 2026-11-27"));
    write(&root, "src/more.rs", b"// new");
    assert_eq!(commit::described(&root, &["src"]), format!("{commit} with changes, 2026-11-27"));
    assert_eq!(commit::described(&root.join("copy"), &["src"]), "unknown commit");
}

#[test]
fn the_bytes_do_not_depend_on_the_number_of_threads() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    for format in ["speedscope", "chrome", "folded", "flamegraph", "firefox", "perfetto", "pprof"] {
        let of = |jobs| {
            let output = stk(dir.path(), &["convert", "a.stk", "--to", format, "-o", "-", "-j", jobs]);
            assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
            output.stdout
        };
        let one = of("1");
        // pprof's is compressed.
        assert!(one.len() > if format == "pprof" { 200 } else { 1000 }, "{format}: {} bytes", one.len());
        assert_eq!(of("2"), one);
        assert_eq!(of("7"), one);
    }
}

#[test]
fn the_output_has_a_default_name_and_its_name_can_select_the_format() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    for (arguments, made) in [
        (&["convert", "a.stk"][..], "a.speedscope.json"),
        (&["convert", "a.stk", "-o", "out/"], "out/a.speedscope.json"),
        (&["convert", "a.stk", "--to", "chrome"], "a.chrome.json"),
        (&["convert", "a.stk", "--to", "parquet"], "a.parquet"),
        (&["convert", "a.stk", "--to", "folded"], "a.folded"),
        (&["convert", "a.stk", "--to", "flamegraph"], "a.flamegraph.svg"),
        (&["convert", "a.stk", "--to", "firefox"], "a.firefox.json"),
        (&["convert", "a.stk", "--to", "perfetto"], "a.perfetto-trace"),
        (&["convert", "a.stk", "--to", "pprof"], "a.pb.gz"),
        (&["convert", "a.stk", "-o", "x.pprof"], "x.pprof"),
        (&["convert", "a.stk", "-o", "y.pb.gz"], "y.pb.gz"),
        (&["convert", "a.stk", "-o", "x.pftrace"], "x.pftrace"),
        (&["convert", "a.stk", "-o", "x.svg"], "x.svg"),
        (&["convert", "a.stk", "-o", "x.svg.gz"], "x.svg.gz"),
        (&["convert", "a.stk", "-o", "x.speedscope.json"], "x.speedscope.json"),
        (&["convert", "a.stk", "-o", "x.folded"], "x.folded"),
        (&["convert", "a.stk", "-o", "x.chrome.json.gz"], "x.chrome.json.gz"),
        (&["convert", "a.stk", "--to", "parquet", "--denormalized"], "a.samples.parquet"),
    ] {
        if made.ends_with("parquet") && cfg!(not(feature = "parquet")) {
            continue;
        }
        let output = stk(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "only data goes to standard output");
        assert!(dir.path().join(made).exists(), "{made}");
    }
    assert!(cfg!(not(feature = "parquet")) || dir.path().join("a.parquet").is_dir());
}

#[test]
fn wrong_usage_exits_with_2_and_a_reason() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    write(dir.path(), "b.stk", &trace());
    for (arguments, says) in [
        (&["convert", "a.stk", "-o", "out.xyz"][..], "--to"),
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
fn a_damaged_trace_among_others_is_reported_and_skipped() {
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
fn only_the_own_output_of_the_same_recording_is_replaced_without_force() {
    let dir = folder();
    let whole = trace();
    write(dir.path(), "a.stk", &whole);
    write(dir.path(), "a-cut.stk", &whole[..whole.len() / 2]);
    let mut other = traces::trace();
    let thread = other.thread(0, 11, "worker", STACK);
    traces::sample(&mut other, thread, 10_000, STACK, &[]);
    write(dir.path(), "b.stk", &other.finish());
    for format in ["speedscope", "chrome"] {
        let convert = |trace: &str, more: &[&str]| {
            let line = [&["convert", trace, "--to", format, "-o", "out"], more].concat();
            let output = stk(dir.path(), &line);
            (output.status.code(), stderr(&output))
        };
        let is_there = |said: &(Option<i32>, String)| said.0 == Some(1) && said.1.contains("--force");
        let own = |said: &(Option<i32>, String)| {
            said.0 == Some(0) && said.1.contains("replaced stk's own output out (")
        };
        let out = dir.path().join("out");
        let _ = std::fs::remove_file(&out);
        assert_eq!(convert("a-cut.stk", &[]).0, Some(0), "there is nothing yet");
        assert!(own(&convert("a.stk", &[])), "a longer file of the same recording");
        assert!(own(&convert("a.stk", &["--from", "1us"])));
        let before = std::fs::read(&out).unwrap();
        let said = convert("b.stk", &[]);
        assert!(is_there(&said) && said.1.contains("b.stk"), "another recording of the same UUID: {said:?}");
        assert!(is_there(&convert("a-cut.stk", &[])), "the output is of more");
        assert_eq!(std::fs::read(&out).unwrap(), before);
        assert_eq!(convert("b.stk", &["--force"]).0, Some(0));
        assert!(own(&convert("b.stk", &[])));
        write(dir.path(), "out", b"{}");
        assert!(is_there(&convert("a.stk", &[])), "not stk's");
        assert_eq!(std::fs::read(&out).unwrap(), b"{}");
        write(dir.path(), "out", b"");
        assert_eq!(convert("a.stk", &[]).0, Some(0), "an empty file");
    }
    // Folded text has no source.
    let folded = ["convert", "a.stk", "-o", "a.folded"];
    assert_eq!(stk(dir.path(), &folded).status.code(), Some(0));
    let output = stk(dir.path(), &folded);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("folded files do not name their source"), "{}", stderr(&output));
    assert_eq!(stk(dir.path(), &[&folded[..], &["--force"]].concat()).status.code(), Some(0));
}

#[cfg(feature = "parquet")]
#[test]
fn what_a_dataset_does_with_each_file_is_said() {
    let dir = folder();
    let whole = trace();
    write(dir.path(), "cut.stk", &whole[..whole.len() / 2]);
    write(dir.path(), "whole.stk", &whole);
    write(dir.path(), "copy.stk", &whole);
    let mut other = traces::trace();
    let thread = other.thread(0, 11, "worker", STACK);
    traces::sample(&mut other, thread, 10_000, STACK, &[]);
    write(dir.path(), "other.stk", &other.finish());
    let convert = |files: &[&str]| {
        let line = [&["convert", "--to", "parquet", "-o", "ds", "-j", "2"], files].concat();
        let output = stk(dir.path(), &line);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said: Vec<String> = stderr(&output).lines().map(str::to_owned).collect();
        let words = ["wrote", "replaced", "the same content", "prefix"];
        said.into_iter().filter(|line| words.iter().any(|word| line.contains(word))).collect()
    };
    let says = |files: &[&str], expected: &[&str]| {
        let said: Vec<String> = convert(files);
        assert_eq!(said.len(), expected.len(), "{said:#?}");
        for words in expected {
            assert!(said.iter().any(|line| line.contains(words)), "{words}: {said:#?}");
        }
    };
    says(&["cut.stk"], &["of cut.stk)"]);
    says(
        &["whole.stk", "cut.stk", "other.stk", "copy.stk"],
        &[
            "of copy.stk)",
            "of other.stk)",
            "whole.stk: the same content as copy.stk, which stands for both",
            "cut.stk: a prefix of copy.stk, which is converted",
        ],
    );
    says(&["cut.stk"], &["cut.stk: a prefix of copy.stk, which is in ds"]);
    says(&["copy.stk"], &["replaced stk's own output ds ("]);
    let output = stk(dir.path(), &["convert", "cut.stk", "--to", "parquet", "-o", "ds2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = stk(dir.path(), &["convert", "whole.stk", "--to", "parquet", "-o", "ds2"]);
    let said = stderr(&output);
    assert!(
        said.contains("whole.stk: replaces its prefix cut.stk, which an earlier run had written to ds2"),
        "{said}"
    );
    // Parquet files name their source too.
    for (trace, code) in [("cut.stk", 0), ("whole.stk", 0), ("cut.stk", 1), ("other.stk", 1)] {
        let line = ["convert", trace, "--denormalized", "-o", "trace.samples.parquet"];
        let output = stk(dir.path(), &line);
        assert_eq!(output.status.code(), Some(code), "{trace}: {}", stderr(&output));
    }
    assert!(dir.path().join("trace.samples.parquet").is_file());
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
fn a_damaged_trace_is_a_failure_and_a_truncated_one_is_not() {
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
        it is long and long and long and long and long and long and long and long",
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
fn info_prints_the_same_facts_as_text_and_json() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    let text = stdout(&stk(dir.path(), &["info", "a.stk", "--all"]));
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
        "--weight",
        "wall",
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
    let names: Vec<&str> = profiles.iter().filter_map(|profile| profile["name"].as_str()).collect();
    assert_eq!(
        names,
        ["all threads: time, waits included (no time order)", "worker (12): time, waits included"]
    );
    let weights: f64 =
        profiles[1]["weights"].as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).sum();
    assert!((49e6..=50e6).contains(&weights), "{weights} ns");
    let output =
        stk(dir.path(), &["convert", "a.stk", "--to", "speedscope", "-o", "-", "--thread", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nobody"));
}

/// The lines of `clrstack` from the third on, for the kept trace of examples/mixed on CoreCLR
/// 10.0.9, at a moment when its thread "mixed" was in native_work.
fn mixed_clrstack(more: &[&str]) -> Vec<String> {
    let traces = kept("");
    let arguments =
        [&["dump", "mixed.stk", "--style", "clrstack", "--thread", "mixed", "--at", "5.98s"], more].concat();
    let output = stk(&traces, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Why the Frames' methods are not known is printed once, at the end.
    let text = stdout(&output);
    let (stack, notes) = text.split_once("\n\n").unwrap();
    // The recorder of that trace did not read the names of native_work and native_call.
    let notes: Vec<&str> = notes.lines().collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    for (note, method) in notes.iter().zip(["0xe0ab03d8", "0xe0ab0398"]) {
        let number = if method.ends_with("d8") { 1 } else { 2 };
        let says = "is in no list of methods, and the recorder did not read its name";
        assert_eq!(*note, format!("note {number}: MethodDesc {method} {says}"));
    }
    stack.lines().skip(2).map(str::to_owned).collect()
}

/// The number of the line of an example's source that holds `text`.
fn source_line(file: &str, text: &str) -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/mixed").join(file);
    let source = std::fs::read_to_string(path).unwrap();
    let found: Vec<usize> =
        source.lines().enumerate().filter(|(_, line)| line.contains(text)).map(|(n, _)| n + 1).collect();
    assert_eq!(found.len(), 1, "{text}");
    found[0]
}

/// The frames of `Down(3)` by its source: it calls itself through Between and native_call, three
/// times, and then native_work.
fn down_from_three(with_native: bool) -> Vec<String> {
    let native = |function: &str, text: &str| {
        format!("native!{function} [examples\\mixed\\native.c @ {}]", source_line("native.c", text))
    };
    let managed = |method: &str, text: &str| {
        format!(
            "mixed!Mixed.Work.{method} [.\\examples\\mixed\\mixed.cs @ {}]",
            source_line("mixed.cs", text)
        )
    };
    let mut expected = vec![
        native("native_work", "sum = sum * 31 + i;"),
        "[InlinedCallFrame]".to_owned(),
        // The runtime's map of this code has no IL of that call.
        "mixed!Mixed.Work.Down(int32)".to_owned(),
    ];
    for _ in 0..3 {
        expected.extend([
            native("native_call", "int result = callback(depth);"),
            "[InlinedCallFrame]".to_owned(),
            managed("Between(int32)", "static int Between(int depth)"),
            managed("Down(int32)", "return Between(depth) + 1;"),
        ]);
    }
    expected.retain(|line| with_native || !line.starts_with("native!"));
    expected
}

/// Stack address, instruction pointer and call site. Leaves out the address in a Frame's brackets,
/// the text behind the brackets, and displacements of native code.
fn clrstack_row(line: &str) -> (u64, Option<u64>, String) {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let (sp, ip, site) = (&line[..16], &line[17..33], &line[34..]);
    let mut site = site.split("  (").next().unwrap().to_owned();
    if let Some((kind, rest)) = site.clone().split_once(": ")
        && kind.starts_with('[')
    {
        assert_eq!(rest[..16], sp.to_lowercase(), "{line}");
        site = format!("{kind}]");
    } else if site.starts_with("native!")
        && let Some((function, rest)) = site.clone().split_once('+')
    {
        site = format!("{function}{}", &rest[rest.find(' ').unwrap()..]);
    }
    (number(sp).expect("an address"), number(ip), site)
}

#[test]
fn clrstack_shows_native_managed_and_explicit_frames_in_one_stack() {
    for with_native in [true, false] {
        let lines = mixed_clrstack(if with_native { &[] } else { &["--frames", "managed"] });
        let rows: Vec<_> = lines.iter().map(|line| clrstack_row(line)).collect();
        let of_program = |site: &str| {
            ["mixed!Mixed.Work.", "native!", "[InlinedCallFrame"].iter().any(|p| site.starts_with(p))
        };
        let sites: Vec<&str> = rows.iter().map(|row| &*row.2).filter(|site| of_program(site)).collect();
        assert_eq!(sites, down_from_three(with_native), "{lines:#?}");
        let last =
            if with_native { "ntdll!RtlUserThreadStart+0x88" } else { "[DebuggerU2MCatchHandlerFrame]" };
        assert_eq!(rows.last().map(|row| &*row.2), Some(last));
        for pair in rows.windows(2) {
            if pair[0].2 == "[InlinedCallFrame]" {
                // The runtime's Frame of the call in progress agrees with the result of unwinding
                // the native frames.
                assert_eq!(pair[0].1, pair[1].1, "{lines:#?}");
                assert!(pair[1].0 < pair[0].0, "the Frame lies within the stack frame of its method");
            } else if pair.iter().all(|row| !row.2.starts_with('[')) {
                assert!(pair[0].0 < pair[1].0, "{lines:#?}");
            }
        }
        let said = |note: &str| lines.iter().filter(|line| line.ends_with(note)).count();
        assert_eq!((said(" (note 1)"), said(" (note 2)")), (1, 3));
    }
}

#[test]
fn clrstack_reports_why_it_shows_no_explicit_frames() {
    use stk_schema::event::{Event, RuntimeInfo};
    let dir = folder();
    let text = |name: &str, version: Option<&[u8]>| {
        let mut builder = traces::trace();
        let module = TestImage::new(r"C:\app\coreclr.dll", 16).load(&mut builder, 0, BASE);
        if let Some(version) = version {
            let info = RuntimeInfo {
                module,
                time: Ticks(0),
                kind: 1,
                version,
                descriptor: b"",
                pointer_data: b"",
                note: b"",
            };
            builder.meta(0, &Event::RuntimeInfo(info));
        }
        let thread = builder.thread(0, 11, "worker", STACK);
        traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
        write(dir.path(), name, &builder.finish());
        let output = stk(dir.path(), &["dump", name, "--style", "clrstack"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    let of_old = text("old.stk", Some(b"3.1.2"));
    assert!(
        of_old.contains("(no explicit Frames: the runtime (3.1.2) publishes no data contract)"),
        "{of_old}"
    );
    assert!(of_old.contains("coreclr.dll!fn_1040"), "the native frames are there: {of_old}");
    let of_none = text("none.stk", None);
    assert!(of_none.contains("no explicit Frames: the trace has no runtime"), "{of_none}");
}

#[test]
fn info_lists_where_the_recorder_lowered_its_rate() {
    use stk_schema::event::{Event, RateChange};
    let dir = folder();
    let mut builder = traces::trace();
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 500, STACK, &[0x7000_0000]);
    for (time, rate_mhz) in [(10_000, 250_000), (20_000, 125_500), (30_000, 500_000)] {
        builder.meta(time, &Event::RateChange(RateChange { time: Ticks(time), rate_mhz }));
    }
    write(dir.path(), "a.stk", &builder.finish());
    let text = stdout(&stk(dir.path(), &["info", "a.stk"]));
    assert!(text.contains("rate       changed 3 times, to 126 Hz at 0.002 s at the lowest"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&stk(dir.path(), &["info", "--json", "a.stk"]))).expect("JSON");
    let rates = &json["traces"][0]["rates"];
    assert_eq!(rates[1], serde_json::json!({ "at_ns": 2_000_000, "hz": 125.5 }));
    assert_eq!(rates.as_array().map(Vec::len), Some(3));
}

#[test]
fn info_lists_pauses_and_takes_none_for_a_lowered_rate() {
    use stk_schema::event::{Event, RateChange};
    let dir = folder();
    let mut builder = traces::trace();
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 500, STACK, &[0x7000_0000]);
    for (time, rate_mhz) in [(10_000, 0), (20_000, 1_000_000), (30_000, 0)] {
        builder.meta(time, &Event::RateChange(RateChange { time: Ticks(time), rate_mhz }));
    }
    traces::sample(&mut builder, thread, 60_000, STACK, &[0x7000_0000]);
    write(dir.path(), "a.stk", &builder.finish());
    let text = stdout(&stk(dir.path(), &["info", "a.stk"]));
    assert!(text.contains("paused     2 times, for 4.00 ms, from 0.001 s on"), "{text}");
    assert!(!text.contains("share of a processor"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&stk(dir.path(), &["info", "--json", "a.stk"]))).expect("JSON");
    let trace = &json["traces"][0];
    assert_eq!(trace["pauses"][0], serde_json::json!({ "from_ns": 1_000_000, "to_ns": 2_000_000 }));
    assert_eq!(trace["rates"], serde_json::json!([]));
}

#[test]
fn info_lists_the_functions_that_no_list_of_the_runtime_names() {
    use stk_schema::event::{CodeAdd, CodeKind, Event, MethodName, RuntimeInfo};
    let dir = folder();
    let mut builder = traces::trace();
    let module = TestImage::new(r"C:\app\coreclr.dll", 16).load(&mut builder, 0, BASE);
    let (version, note) = (&b"3.1.2"[..], &b""[..]);
    let info =
        RuntimeInfo { module, time: Ticks(0), kind: 1, version, descriptor: b"", pointer_data: b"", note };
    builder.meta(0, &Event::RuntimeInfo(info));
    let code = |instance: u64, time: u64, base: u64, kind: CodeKind| CodeAdd {
        instance,
        time: Ticks(time),
        kind: kind as u64,
        base,
        size: 0x40,
        image_base: base,
        function: &[],
        unwind: &[],
        code: &[0x90; 0x40],
    };
    let function = CodeKind::TableFunction;
    for (n, (time, base, kind)) in [
        (1_000, 0x7000_0000, function),
        (1_000, 0x7000_1000, function),
        (9_000, 0x7000_2000, function),
        (1_000, 0x7000_3000, CodeKind::Stub),
    ]
    .into_iter()
    .enumerate()
    {
        builder.meta(time, &Event::CodeAdd(code(100 + n as u64, time, base, kind)));
    }
    let name =
        MethodName { time: Ticks(5_000), base: 0x7000_0000, size: 0x40, source: 1, name: b"App!T.M()" };
    builder.meta(9_000, &Event::MethodName(name));
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    write(dir.path(), "a.stk", &builder.finish());
    let text = stdout(&stk(dir.path(), &["info", "a.stk", "--all"]));
    assert!(text.contains("methods    0 listed in 0 lists; 1 of the 3 functions seen have names"), "{text}");
    // The name is the data access library's, which lists nothing.
    assert!(text.contains("names      1 from .NET's data access library"), "{text}");
    for address in ["0x70001000", "0x70002000"] {
        let why = "(64 bytes), seen at 0.000 s: the runtime listed no methods";
        assert!(text.contains(&format!("unnamed {address} {why}")), "{text}");
    }
    let json: serde_json::Value =
        serde_json::from_slice(&stk(dir.path(), &["info", "--json", "a.stk"]).stdout).unwrap();
    let methods = &json["traces"][0]["methods"];
    assert_eq!(methods["functions"], 3);
    let addresses: Vec<_> = methods["unnamed"].as_array().unwrap().iter().map(|m| &m["address"]).collect();
    assert_eq!(addresses, ["0x70001000", "0x70002000"]);
}

#[test]
fn verify_walks_compares_the_explicit_frames_of_the_kept_trace() {
    let traces = kept("");
    let output = stk(&traces, &["verify", "--walks", "--json", "mixed.stk"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let explicit = &json["traces"][0]["explicit"];
    assert_eq!((&explicit["unexplained"], &explicit["broken"]), (&0.into(), &0.into()));
    let count = |list: &str, class: &str| {
        let found = explicit[list].as_array().unwrap().iter().find(|shown| shown["class"] == class);
        found.map_or(0, |shown| shown["count"].as_u64().unwrap())
    };
    // Nine threads are in Thread.Sleep, or deeper: each of their samples has at least one Frame.
    assert!(count("frames", "agrees") > 500, "{explicit}");
    assert!(count("steps", "agrees") > count("frames", "agrees"), "{explicit}");
    // Collections let threads wait for the runtime after a P/Invoke. Heads of chains are read
    // around the suspension, some at another moment.
    let others = ["returning", "out-of-date", "contradicted"].map(|class| count("frames", class));
    assert_eq!((others, count("steps", "returning")), ([8, 13, 0], 8), "{explicit}");
}

/// Frames of the kept traces that reach the thread's start, and of those in .NET's code that have
/// names. The second count was made by hand, before stk counted.
#[test]
fn stacks_of_the_kept_traces_are_complete_and_managed_frames_have_names() {
    let traces = kept("");
    for (trace, managed) in [("busy.stk", [0, 0]), ("mixed.stk", [21_198, 21_177])] {
        let output = stk(&traces, &["stats", "--json", "--full", trace]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let stats = &json["traces"][0];
        assert!(stats["totals"]["complete_share"].as_f64().unwrap() >= 0.999, "{trace}");
        let frames = ["managed", "managed_named"].map(|name| stats["frames"][name].as_u64().unwrap());
        assert_eq!(frames, managed, "{trace}");
        assert!(frames[1] * 1000 >= frames[0] * 995, "{trace}");
    }
}

#[test]
fn times_of_the_kept_traces_add_up() {
    let traces = kept("");
    for trace in ["busy.stk", "mixed.stk"] {
        let output = stk(&traces, &["stats", "--json", "--top", "0", trace]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let stats = &json["traces"][0];
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        let totals = &stats["totals"];
        let state = |of: &serde_json::Value, name: &str| number(&of["states"][name]["weight_ns"]);
        let sum = |of: &serde_json::Value| {
            ["running", "waiting", "system_call", "unknown"].map(|name| state(of, name)).iter().sum::<u64>()
        };
        assert_eq!(sum(stats), number(&totals["weight_ns"]), "{trace}");
        // The recording machine had two processors.
        assert!(state(stats, "running") <= 2 * number(&totals["duration_ns"]), "{trace}");
        let threads = stats["threads"].as_array().unwrap();
        let cpu: u64 = threads.iter().map(|thread| number(&thread["cpu_ns"])).sum();
        assert_eq!(cpu, number(&totals["cpu_ns"]), "{trace}");
        // What the threads' clocks gained.
        let clocks = if trace == "busy.stk" { 10_320_000_000 } else { 3_470_000_000 };
        assert_eq!(cpu + number(&totals["sampling_cpu_ns"]), clocks, "{trace}");
        for thread in threads {
            assert_eq!(sum(thread), number(&thread["all"]["weight_ns"]), "{trace}: {thread}");
        }
        // These sleep, or wait for an event, in every sample.
        for name in if trace == "busy.stk" { &["main", "waiter"][..] } else { &["main"] } {
            let thread = threads.iter().find(|thread| thread["name"] == *name).unwrap();
            assert_eq!(state(thread, "waiting"), number(&thread["all"]["weight_ns"]), "{trace}: {thread}");
        }
        assert_eq!((&stats["weight"], &stats["waits"][0]["reason"]), (&"cpu".into(), &"sleep".into()));
    }
}

/// What a new user sees of the two kept traces.
#[test]
fn stats_answer_in_less_than_a_screen() {
    let traces = kept("");
    for trace in ["busy.stk", "mixed.stk"] {
        let output = stk(&traces, &["stats", trace]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().count() < 34, "{text}");
        for part in [
            "CPU time ",
            " of one processor",
            " samples a second taken of each thread: ",
            " times sampler woke late)",
            " is in proved stacks, ",
            " in complete ones; ",
            "Functions by their own CPU time",
            "idle     sleep",
        ] {
            assert!(text.contains(part), "{trace}: {part}: {text}");
        }
        let full = stk(&traces, &["stats", "--full", trace]);
        let full = String::from_utf8(full.stdout).unwrap();
        for heading in ["with callees", "Modules by", "Threads", "Where stacks end", "Names of frames"] {
            assert!(full.contains(heading) && !text.contains(heading), "{trace}: {heading}");
        }
    }
}

/// examples/busy and examples/mixed sleep in these functions, by their sources.
#[test]
fn waits_are_listed_by_reason_and_stack() {
    let traces = kept("");
    let output = stk(&traces, &["stats", "--waiting", "--json", "--top", "50", "mixed.stk"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let stats = &json["traces"][0];
    for wait in stats["waits"].as_array().unwrap() {
        let stacks = wait["stacks"].as_array().unwrap();
        let sum: u64 = stacks.iter().map(|stack| stack["weight_ns"].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), wait["weight_ns"].as_u64(), "{wait}");
        assert!(stacks.is_sorted_by(|a, b| a["weight_ns"].as_u64() >= b["weight_ns"].as_u64()));
    }
    let sleep = &stats["waits"][0];
    assert_eq!(sleep["reason"], "sleep");
    let sleeper = sleep["stacks"].as_array().unwrap().iter().find(|stack| {
        let functions = stack["functions"].as_array().unwrap();
        functions.iter().any(|function| function.as_str().unwrap().contains("Mixed.Program.Sleeper()"))
    });
    let sleeper = sleeper.expect("the thread that sleeps in native code");
    let system = sleeper["system"].as_u64().unwrap() as usize;
    let functions = sleeper["functions"].as_array().unwrap();
    assert!(functions[system - 1].as_str().unwrap().contains("Sleeper"), "{sleeper}");
    assert_eq!(functions.last().unwrap(), "NtDelayExecution");

    let output = stk(&traces, &["convert", "busy.stk", "--to", "folded", "-o", "-", "--weight", "waiting"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.is_empty() && text.lines().all(|line| line.starts_with("[waiting: ")), "{text}");
    assert!(text.lines().any(|line| line.starts_with("[waiting: sleep (idle)];")), "{text}");
}

#[test]
fn flame_graphs_count_what_is_requested() {
    let traces = kept("");
    let whole = |weight: &[&str]| {
        let arguments = ["convert", "busy.stk", "--to", "folded", "-o", "-"].iter().chain(weight);
        let output = stk(&traces, &arguments.copied().collect::<Vec<_>>());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| line.rsplit_once(' ').unwrap());
        let lines: Vec<_> = lines.map(|(stack, count)| (count.parse::<u64>().unwrap(), stack)).collect();
        let (_, most) = lines.iter().max().unwrap();
        let leaf = most.rsplit(';').next().unwrap().split(" [").next().unwrap().to_owned();
        (lines.iter().map(|line| line.0).sum::<u64>(), leaf)
    };
    let output = stk(&traces, &["stats", "--json", "busy.stk"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let totals = &json["traces"][0]["totals"];
    let cpu = (totals["cpu_ns"].as_u64().unwrap(), "mix".to_owned());
    assert_eq!(whole(&["--weight", "cpu"]), cpu);
    assert_eq!(whole(&[]), cpu, "CPU time is the default");
    // 3,172 samples, nominally one every 20 ms.
    assert_eq!(whole(&["--weight", "samples"]), (3_172 * 20_000_000, "NtDelayExecution".to_owned()));
    assert_eq!(whole(&["--weight", "wall"]).1, "NtDelayExecution");

    let output = stk(&traces, &["convert", "busy.stk", "--to", "chrome", "-o", "-", "--weight", "cpu"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--weight is for speedscope, folded, flamegraph"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn missing_symbols_are_explained_and_can_be_required() {
    let dir = folder();
    write(dir.path(), "a.stk", &trace());
    let output = stk(dir.path(), &["convert", "a.stk", "--to", "speedscope", "--require-symbols", "10"]);
    assert_eq!(output.status.code(), Some(5));
    let text = stderr(&output);
    assert!(text.contains("app.exe: the image names no PDB"), "{text}");
    assert!(dir.path().join("a.speedscope.json").exists(), "the output is written anyway");
    let names = std::fs::read_to_string(dir.path().join("a.speedscope.json")).unwrap();
    assert!(
        names.contains("RtlUserThreadStart") && names.contains("BaseThreadInitThunk"),
        "exports of the trace"
    );
    assert!(names.contains("app.exe!fn_"), "module and function where no name is known");
}

#[test]
fn a_module_known_only_by_its_path_gets_a_reason_instead_of_names() {
    let dir = folder();
    let mut builder = traces::trace();
    builder.module(0, BASE, 0x10_0000, r"C:\app\gone.dll", Vec::new());
    let thread = builder.thread(0, 11, "main", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    write(dir.path(), "a.stk", &builder.finish());
    let output = stk(dir.path(), &["convert", "a.stk"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Nothing helps.
    assert!(!stderr(&output).contains("gone.dll"), "{}", stderr(&output));
    let full = stdout(&stk(dir.path(), &["stats", "--full", "a.stk"]));
    assert!(full.contains("gone.dll: its headers were not recorded"), "{full}");
    let list = stdout(&stk(dir.path(), &["symbols", "list", "a.stk"]));
    assert!(list.contains("its headers were not recorded"), "{list}");
}

#[test]
fn dump_prints_the_stacks_of_a_moment() {
    let dir = folder();
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    traces::sample(&mut builder, thread, 20_000, STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    builder.cut();
    traces::sample(&mut builder, thread, 30_000, STACK, &[in_function(BASE, 3)]);
    write(dir.path(), "a.stk", &builder.finish());
    let frames = |at: &str| -> Vec<String> {
        let output = stk(dir.path(), &["dump", "a.stk", "--style", "json", "--at", at]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["threads"][0]["stop"], "thread-start");
        let frames = json["threads"][0]["frames"].as_array().unwrap();
        frames.iter().map(|frame| frame["function"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(frames("1ms"), ["app.exe!fn_1040", "BaseThreadInitThunk", "RtlUserThreadStart"]);
    assert_eq!(
        frames("2.5ms"),
        ["app.exe!fn_1080", "app.exe!fn_1040", "BaseThreadInitThunk", "RtlUserThreadStart"]
    );
    assert_eq!(frames("1s"), ["app.exe!fn_10c0", "BaseThreadInitThunk", "RtlUserThreadStart"]);
    let text = stdout(&stk(dir.path(), &["dump", "a.stk", "--at", "2ms"]));
    // Child-SP and return address of the innermost frame, from the stack as it was built.
    let (registers, _) = traces::stack(STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    let address = |value: u64| format!("{:08x}`{:08x}", value >> 32, value & 0xFFFF_FFFF);
    let line = format!("{} {} app.exe!fn_1080+0x10", address(registers[1]), address(in_function(BASE, 1)));
    assert!(text.contains(&line), "{line}\n{text}");
    assert!(text.contains("kernel32!BaseThreadInitThunk+0x10"), "{text}");
}

#[test]
fn tables_in_a_shared_folder_are_found_and_missing_ones_are_named() {
    let dir = folder();
    let tables = dir.path().join("tables");
    std::fs::create_dir(&tables).unwrap();
    let mut builder = traces::trace();
    let app = TestImage::new(r"C:\app\app.exe", 16);
    let instance = app.load_without_tables(&mut builder, 0, BASE);
    app.with_tables(|parts| {
        builder.tables_elsewhere(0, instance, parts);
        for (_, _, bytes) in parts {
            // The file name that inject's --tables gives it.
            let name = format!("{}.tbl", stk_format::blob::content_hash(bytes));
            write(&tables, &name, bytes);
        }
    });
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    write(dir.path(), "a.stk", &builder.finish());
    let run = |arguments: &[&str]| {
        let output = stk(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
        output
    };
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_slice(&run(arguments).stdout).expect("JSON")
    };

    let stop = |arguments: &[&str]| json(arguments)["threads"][0]["stop"].clone();
    assert_eq!(stop(&["dump", "a.stk", "--style", "json"]), "no-unwind-data");
    assert_eq!(stop(&["dump", "a.stk", "--style", "json", "--tables", "tables"]), "thread-start");

    let info = |arguments: &[&str]| json(arguments)["traces"][0]["embedded"].clone();
    // The exception directory of app.exe is not in the trace. Its unwind info is, since that of
    // ntdll has the same bytes.
    let without = info(&["info", "--json", "a.stk"]);
    assert_eq!((&without["images_with_unwind_data"], &without["images_without"]), (&2.into(), &1.into()));
    assert_eq!((&without["not_at_hand"]["tables"], &without["in_folders"]["tables"]), (&1.into(), &0.into()));
    let with = info(&["info", "--json", "a.stk", "--tables", "tables"]);
    assert_eq!((&with["images_with_unwind_data"], &with["images_without"]), (&3.into(), &0.into()));
    assert_eq!((&with["not_at_hand"]["tables"], &with["in_folders"]["tables"]), (&0.into(), &1.into()));
    // 16 RUNTIME_FUNCTION records of 12 bytes.
    assert_eq!(with["in_folders"]["bytes"], 192);

    let convert = |arguments: &[&str]| {
        let line = [&["convert", "a.stk", "--to", "speedscope", "-o", "-"], arguments].concat();
        let output = run(&line);
        (stdout(&output).contains("incomplete stack"), stderr(&output).contains("--tables"))
    };
    assert_eq!(convert(&[]), (true, true), "an incomplete stack, and a warning that says what helps");
    assert_eq!(convert(&["--tables", "tables"]), (false, false));
    let complete = |arguments: &[&str]| json(arguments)["traces"][0]["stops"][0]["reason"].clone();
    assert_eq!(complete(&["stats", "--json", "a.stk"]), "no-unwind-data");
    assert_eq!(complete(&["stats", "--json", "a.stk", "--tables", "tables"]), "thread-start");
    let scanned = json(&["stats", "--json", "--scan", "a.stk"])["traces"][0]["trusts"].clone();
    let guessed =
        scanned.as_array().unwrap().iter().find(|found| found["trust"] == "scan").expect("guessed frames");
    assert_eq!((&guessed["module"], &guessed["proved"]), (&"app.exe".into(), &false.into()), "{scanned}");

    assert!(stdout(&run(&["verify", "a.stk"])).contains("--tables"));
    assert!(!stdout(&run(&["verify", "a.stk", "--tables", "tables"])).contains("--tables"));
    for entry in std::fs::read_dir(&tables).unwrap() {
        std::fs::write(entry.unwrap().path(), b"something else").unwrap();
    }
    let output = stk(dir.path(), &["verify", "a.stk", "--tables", "tables"]);
    assert_eq!(output.status.code(), Some(4), "{}", stdout(&output));
    assert!(stdout(&output).contains("do not match"), "{}", stdout(&output));
    let output = stk(dir.path(), &["verify", "a.stk", "--tables", "none"]);
    assert_eq!(output.status.code(), Some(2), "a folder that is not there");
}

#[test]
fn dump_prints_utc_time_and_arguments_and_explains_each_frame() {
    let dir = folder();
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "worker", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    write(dir.path(), "a.stk", &builder.finish());
    // The trace begins at 2023-11-14T22:13:20Z; 10,000 ticks are a millisecond.
    for style in ["k", "plain"] {
        let text = stdout(&stk(dir.path(), &["dump", "a.stk", "--style", style]));
        assert!(text.starts_with("2023-11-14T22:13:20.001Z thread 11 \"worker\""), "{text}");
    }
    let text = stdout(&stk(dir.path(), &["dump", "a.stk", "--style", "plain"]));
    assert!(text.contains("\"ntdll.dll\"! 0x7ff800001010: RtlUserThreadStart\n"), "{text}");
    // The innermost function's code is not in the trace, so it is not known whether the thread was
    // at its end. The output must say so.
    assert!(text.contains("! 0x7ff700001010: BaseThreadInitThunk  (unwind-info-no-code)\n"), "{text}");

    let explained = stdout(&stk(dir.path(), &["dump", "a.stk", "--explain"]));
    // The second function, at 0x1040: its RUNTIME_FUNCTION, its UNWIND_INFO and `sub rsp, 28h`,
    // from traces::TestImage.
    let says = "UNWIND_INFO v1 at 0xc0000 of function 0x1040..0x1080, prologue 0x4";
    assert!(explained.contains(says) && explained.contains("return address at [rsp+0x28]"), "{explained}");

    let output = stk(dir.path(), &["dump", "a.stk", "--style", "json", "--explain"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let frame = &json["threads"][0]["frames"][0];
    assert!(frame["explain"]["record"].as_str().unwrap().starts_with(says), "{frame}");
    // 28h bytes of locals and the return address. Above them are the four home words.
    assert_eq!(frame["bytes"].as_str().unwrap().len(), 2 * 0x30);
    assert_eq!(frame["arguments"].as_str().unwrap().len(), 2 * 0x20);
    assert_eq!(json["threads"][0]["stop_address"], serde_json::Value::Null);
}

#[cfg(not(windows))]
#[test]
fn dump_of_a_live_process_gives_advice_on_other_systems() {
    let output = stk(folder().path(), &["dump", "--pid", "4404"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("inject --pid 4404 --once"), "{}", stderr(&output));
    assert_eq!(stk(folder().path(), &["dump"]).status.code(), Some(2), "neither a trace nor a process");
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_no_incomplete_output_and_exits_with_130() {
    let dir = folder();
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 16).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "worker", STACK);
    // More samples in so few bytes than the default `--max-memory` has room for.
    for i in 1..=100_000u64 {
        let calls = [in_function(BASE, (i % 2) as u32), in_function(BASE, 2 + (i % 3) as u32)];
        traces::sample(&mut builder, thread, i * 10_000, STACK, &calls);
    }
    write(dir.path(), "a.stk", &builder.finish());
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    write(&out, "a.chrome.json", b"what was there before");
    // The program may finish before the signal arrives, so this is repeated.
    for _ in 0..20 {
        // Shells start background programs with Ctrl-C ignored, and stk would keep that setting.
        let mut child = Command::new("env")
            .args(["--default-signal=INT", env!("CARGO_BIN_EXE_stk")])
            .args(["convert", "a.stk", "--force", "--max-memory", "1GiB", "-o", "out/a.chrome.json"])
            .current_dir(dir.path())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let partial = || {
            let mut entries = std::fs::read_dir(&out).unwrap();
            entries.any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".partial"))
        };
        while !partial() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).output().unwrap();
        let code = child.wait().unwrap().code();
        if !kill.status.success() || code == Some(0) {
            write(&out, "a.chrome.json", b"what was there before");
            continue;
        }
        assert_eq!(code, Some(130));
        assert!(!partial(), "the temporary file is gone");
        let there = std::fs::read(out.join("a.chrome.json")).unwrap();
        if there != b"what was there before" {
            // The signal came between the renaming and the end.
            assert!(there.starts_with(b"[") && there.trim_ascii_end().ends_with(b"]"), "a part of it");
            write(&out, "a.chrome.json", b"what was there before");
            continue;
        }
        return;
    }
    panic!("the program was always done before the signal came");
}

#[test]
fn without_the_default_places_only_the_named_ones_are_searched() {
    let dir = folder();
    let kept = kept("");
    let trace = kept.join("busy.stk").canonicalize().unwrap().display().to_string();
    let symbols = kept.canonicalize().unwrap().display().to_string();
    let mut runs = 0;
    let mut named = |arguments: &[&str]| {
        // Found files are stored in the cache, which is searched too. So each run gets a new cache.
        runs += 1;
        let output = Command::new(env!("CARGO_BIN_EXE_stk"))
            .args(["stats", "--json", &trace, "--symbol-cache", &format!("cache-{runs}")])
            .args(arguments)
            .current_dir(dir.path())
            .env("_NT_SYMBOL_PATH", &symbols)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        json["traces"][0]["frames"]["named"].as_u64().unwrap()
    };
    // The PDBs lie beside the trace, and the environment names their folder.
    let found = named(&[]);
    assert!(found > 0);
    assert_eq!(named(&["--no-default-symbols"]), 0);
    assert_eq!(named(&["--no-default-symbols", "-y", &symbols]), found);
}

#[cfg(unix)]
#[test]
fn a_closed_standard_output_is_a_failure_that_names_it() {
    let folder = folder();
    write(folder.path(), "a.stk", &trace());
    let commands: [&[&str]; 7] = [
        &["info", "a.stk"],
        &["events", "a.stk"],
        &["verify", "a.stk"],
        &["stats", "--json", "--no-default-symbols", "a.stk"],
        &["dump", "--no-default-symbols", "a.stk"],
        &["convert", "--no-default-symbols", "a.stk", "-o", "-"],
        &["symbols", "list", "--no-default-symbols", "a.stk"],
    ];
    let run = |redirection: &str, command: &[&str]| {
        let script = format!("exec \"$0\" \"$@\" {redirection}");
        let arguments = [&["-c", &script, env!("CARGO_BIN_EXE_stk")], command].concat();
        Command::new("sh").args(arguments).current_dir(folder.path()).output().unwrap()
    };
    for command in commands {
        let closed = run(">&-", command);
        assert_eq!(closed.status.code(), Some(1), "{command:?}: {}", stderr(&closed));
        assert!(stderr(&closed).contains("standard output: is closed"), "{}", stderr(&closed));
        let nowhere = run(">/dev/null", command);
        assert_eq!(nowhere.status.code(), Some(0), "{command:?}: {}", stderr(&nowhere));
    }
    // What writes to a file needs none.
    let file = run(">&-", &["convert", "--no-default-symbols", "a.stk", "-o", "a.folded"]);
    assert_eq!(file.status.code(), Some(0), "{}", stderr(&file));
}
