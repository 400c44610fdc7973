//! `stk diff` through the program, on built traces with a regression of known size.

use crate::support::stk;
use serde_json::Value;
use std::path::Path;
use stk_tests::schema;
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// The exit code and what is printed.
fn diff(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let output = stk(folder, &[&["diff"], arguments].concat());
    let code = output.status.code().unwrap();
    assert!(code < 8, "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    (code, String::from_utf8(output.stdout).unwrap())
}

/// A trace in which the functions of app.exe, in their order, are seen in so many samples, one a
/// millisecond. `names`: those of its exports; none: it has no names.
fn trace(names: &[&'static str], samples: [u64; 3]) -> Vec<u8> {
    let mut builder = traces::trace();
    let mut app = TestImage::new(r"C:\app\app.exe", 8);
    app.exports = names.iter().zip(0..).map(|(&name, number)| (name, number)).collect();
    app.load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 11, "worker", STACK);
    let functions = (0u32..).zip(samples).flat_map(|(function, n)| (0..n).map(move |_| function));
    for (time, function) in (1u64..).zip(functions) {
        traces::sample(&mut builder, thread, time * 10_000, STACK, &[in_function(BASE, function)]);
    }
    builder.finish()
}

const NAMES: [&str; 3] = ["parse", "render", "store"];

/// A folder with folders of four traces each:
///
/// * `old` and `same`: 200, 500 and 300 of 1,000 samples in the three functions, by up to 1 % more
///   or less
/// * `slow`: the first one takes 100 samples more
/// * `renamed`: as `slow`, and the first function has another name
/// * `unnamed`: as `old`, without names
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let renamed = ["scan", "render", "store"];
    let kinds: [(&str, &[&'static str], u64, u64); 5] = [
        ("old", &NAMES, 200, 0),
        ("same", &NAMES, 200, 5),
        ("slow", &NAMES, 300, 2),
        ("renamed", &renamed, 200, 3),
        ("unnamed", &[], 200, 4),
    ];
    for (name, names, first, shift) in kinds {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        for i in 0..4 {
            let noise = |of: u64| (3 * of + 5 * i + shift) % 11;
            let samples = [first + noise(0), 495 + noise(1), 295 + noise(2)];
            let path = folder.path().join(name).join(format!("{i}.stk"));
            std::fs::write(path, trace(names, samples)).unwrap();
        }
    }
    folder
}

#[test]
fn rules_give_functions_of_both_builds_one_name() {
    let folder = folder();
    let (code, text) = diff(folder.path(), &["old", "renamed"]);
    assert_eq!(code, 6, "{text}");
    std::fs::write(folder.path().join("names.rules"), "^(parse|scan)$ -> reading").unwrap();
    let rules = ["old", "renamed", "--rules", "names.rules", "--format", "json"];
    let (code, text) = diff(folder.path(), &rules);
    assert!(code == 0 && text.contains("\"reading\"") && !text.contains("\"scan\""), "{text}");
}

#[test]
fn a_regression_is_found_with_exit_code_6_and_noise_is_not() {
    let folder = folder();
    let (code, text) = diff(folder.path(), &["old", "slow"]);
    assert_eq!(code, 6, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("worse: 1 function takes more than before"), "{text}");
    let row = lines.iter().find(|line| line.contains("parse")).unwrap();
    // 20 % before; 300 of 1,100 samples now.
    assert!(row.contains(" 20.") && row.contains(" 27.") && row.contains("worse"), "{row}");
    let (code, text) = diff(folder.path(), &["old", "same"]);
    assert_eq!((code, text.starts_with("passed: ")), (0, true), "{text}");
    let (code, text) = diff(folder.path(), &["old", "slow", "--threshold", "12"]);
    assert_eq!((code, text.starts_with("passed: ")), (0, true), "{text}");
    let (code, _) =
        diff(folder.path(), &["--base", "old/*.stk", "--new", "slow/0.stk", "slow/1.stk", "slow/2.stk"]);
    assert_eq!(code, 6);
}

#[test]
fn two_traces_a_side_are_inconclusive_with_exit_code_7() {
    let folder = folder();
    let (code, text) = diff(folder.path(), &["--base", "old/0.stk", "old/1.stk", "--new", "slow"]);
    assert_eq!(code, 7, "{text}");
    assert!(text.starts_with("inconclusive: ") && text.contains("base has 2 traces"), "{text}");
    let (code, text) = diff(folder.path(), &["old/0.stk", "slow/0.stk"]);
    assert_eq!((code, text.contains("unjudged")), (7, true), "{text}");
}

#[test]
fn a_renamed_function_is_no_regression_if_its_names_are_given() {
    let folder = folder();
    let (code, text) = diff(folder.path(), &["old", "renamed"]);
    assert_eq!(code, 6, "{text}");
    for map in ["parse=scan", "app.exe!parse=scan", "pars*=sca*"] {
        let (code, text) = diff(folder.path(), &["old", "renamed", "--map", map]);
        let expected = if map.contains('*') { 6 } else { 0 };
        assert_eq!(code, expected, "{map}: {text}");
    }
    let output = stk(folder.path(), &["diff", "old", "same", "--map", "nothing=scan"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("--map nothing=scan: no code of the base"), "{error}");
}

#[test]
fn code_whose_names_one_side_lacks_is_unmatched() {
    let folder = folder();
    let (code, text) = diff(folder.path(), &["old", "unnamed"]);
    assert_eq!(code, 7, "{text}");
    assert!(text.contains("unmatched: new lacks symbols, 100.0 %") && !text.contains("worse:"), "{text}");
    let (code, _) = diff(folder.path(), &["unnamed", "old"]);
    assert_eq!(code, 7);
    let (code, text) = diff(folder.path(), &["old", "unnamed", "--by", "module"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn json_follows_its_schema_and_the_bytes_do_not_depend_on_the_number_of_threads() {
    let folder = folder();
    for options in [&["--by", "function"][..], &["--by", "stack", "--top", "0"], &["--total", "--absolute"]] {
        let with = |jobs: &str| {
            let arguments = [&["old", "slow", "--format", "json", "-j", jobs], options].concat();
            diff(folder.path(), &arguments)
        };
        let (code, text) = with("1");
        assert_eq!(code, 6, "{text}");
        assert_eq!(with("4"), (6, text.clone()));
        let value: Value = serde_json::from_str(&text).unwrap();
        let rules = serde_json::from_str(include_str!("../../../schema/diff.schema.json")).unwrap();
        schema::check(&rules, &value).unwrap();
        assert_eq!((&value["verdict"], &value["weight"]), (&"worse".into(), &"active".into()));
    }
}

#[test]
fn outputs_have_the_form_of_their_names() {
    let folder = folder();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    for (name, begins) in [
        ("x.md", "### worse: 1 function"),
        ("x.xml", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"stk diff\" tests=\""),
        ("x.json", "{\n  \"version\": 1,"),
        ("x.txt", "worse: 1 function"),
        ("x.svg", "<?xml version=\"1.0\""),
    ] {
        let (code, _) = diff(folder.path(), &["old", "slow", "-o", name]);
        assert_eq!((code, read(name).starts_with(begins)), (6, true), "{}", read(name));
    }
    assert!(read("x.svg").contains("parse (") && read("x.xml").contains("<failure type=\"worse\""));
    let output = stk(folder.path(), &["diff", "old", "slow", "-o", "x.md"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("x.md: is there already: --force replaces it"));
    let (code, _) = diff(folder.path(), &["old", "slow", "-o", "x.md", "--force", "--flamegraph", "y.svg"]);
    assert_eq!((code, read("y.svg")), (6, read("x.svg")));
}

#[test]
fn wrong_usage_is_reported() {
    let folder = folder();
    for (arguments, reported) in [
        (&["old"][..], "one side is named"),
        (&[], "two sides are compared"),
        (&["old", "same", "--base", "old"], "either BASE and NEW, or --base and --new"),
        (&["old", "same", "--map", "x"], "--map x: has no ="),
        (&["old", "same", "-o", "x.bin"], "the name has no known format"),
        (&["old", "same", "--threshold", "x"], "a percentage"),
    ] {
        let output = stk(folder.path(), &[&["diff"], arguments].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), error.contains(reported)),
            (Some(2), true),
            "{arguments:?}: {error}"
        );
    }
}

#[test]
fn sides_of_different_programs_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), trace(&NAMES, [20, 50, 30])).unwrap();
    let mixed = crate::support::kept_text("mixed.stk");
    let warned = |base: &str, new: &str| {
        let output = stk(folder.path(), &["diff", base, new]);
        String::from_utf8(output.stderr).unwrap().contains("the sides are of different programs, ")
    };
    assert!(warned("a.stk", &mixed) && warned(&mixed, "a.stk") && !warned("a.stk", "a.stk"));
}

#[test]
fn equal_sides_have_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    for (name, samples) in [("a.stk", [20, 50, 30]), ("b.stk", [40, 100, 60]), ("c.stk", [20, 50, 31])] {
        std::fs::write(folder.path().join(name), trace(&NAMES, samples)).unwrap();
    }
    let (_, equal) = diff(folder.path(), &["a.stk", "b.stk"]);
    assert!(equal.contains("\n  none differs\n") && !equal.contains("render"), "{equal}");
    let (_, other) = diff(folder.path(), &["a.stk", "c.stk"]);
    assert!(!other.contains("none differs") && other.contains("render"), "{other}");
}
