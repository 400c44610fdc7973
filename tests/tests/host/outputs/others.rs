//! Files for readers that are not Rust: `tests/viewers/check.sh` names a folder in STK_OUTPUTS and
//! reads them there.

use super::profiles::busy;
use serde_json::Value;
use std::path::{Path, PathBuf};
use stk::commands::{Exit, answer};
use stk_format::BlockKind;
use stk_output::formats::{self, Destination, Format, Options};
use stk_schema::event::{Event, Metadata};
use stk_tests::synth::Parts;
use stk_tests::traces::{self, TestImage, in_function};

/// The folder for the files: that of the viewers, or else the temporary one.
fn folder(temporary: &tempfile::TempDir) -> PathBuf {
    std::env::var_os("STK_OUTPUTS").map_or_else(|| temporary.path().to_owned(), PathBuf::from)
}

#[test]
fn every_format_can_be_written_by_name() {
    let temporary = tempfile::tempdir().expect("folder");
    let folder = folder(&temporary);
    let outputs = [
        ("busy.speedscope.json", Options::default()),
        ("busy.chrome.json", Options::default()),
        ("busy.folded", Options::default()),
        ("busy.flamegraph.svg", Options::default()),
        ("busy.firefox.json", Options::default()),
        ("busy.perfetto-trace", Options::default()),
        ("busy.pb.gz", Options::default()),
        ("busy.parquet", Options { denormalized: true, ..Options::default() }),
    ];
    let b = busy();
    for (name, options) in outputs {
        let path = folder.join(name);
        let format = Format::from_path(&path).expect("the name says the format");
        let destination =
            if format.is_folder() { Destination::Dir(path.clone()) } else { Destination::File(path.clone()) };
        let mut writer = formats::create(format, destination, &options).expect("create");
        let summary = formats::write(&mut *writer, &b.profile, &b.runs).expect("write");
        for (file, size) in summary.files {
            assert_eq!(std::fs::metadata(&file).map(|f| f.len()).ok(), Some(size), "{}", file.display());
        }
        assert!(summary.warnings.is_empty());
        if format.is_folder() {
            formats::compact(&path).expect("compacted");
        }
    }
}

/// Functions of the deepest stack that speedscope's page opens, with room: between 3,500 and 4,000.
const DEEPEST: usize = 3_500;

#[test]
fn a_stack_too_deep_for_speedscope_is_cut() {
    let temporary = tempfile::tempdir().expect("folder");
    let folder = folder(&temporary);
    let mut builder = traces::trace();
    let base = 0x1_4000_0000;
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, base);
    let thread = builder.thread(0, 1, "", 0x1000_0000);
    traces::sample(&mut builder, thread, 10_000, 0x1000_0000, &vec![in_function(base, 1); 10_000]);
    let [trace, output] = ["deep.stk", "deep.speedscope.json"].map(|name| folder.join(name));
    std::fs::write(&trace, builder.finish()).expect("written");
    let line = [
        "convert",
        trace.to_str().unwrap(),
        "-o",
        output.to_str().unwrap(),
        "--no-default-symbols",
        "--force",
    ];
    let (_, exit) = answer(line.map(Into::into)).expect("converted");
    assert_eq!(exit, Exit::Ok);
    let file: Value = serde_json::from_slice(&std::fs::read(&output).unwrap()).unwrap();
    let profiles = file["profiles"].as_array().unwrap();
    let samples = profiles.iter().flat_map(|profile| profile["samples"].as_array().unwrap());
    let deepest = samples.map(|stack| stack.as_array().unwrap().len()).max().unwrap();
    assert!((DEEPEST - 200..DEEPEST).contains(&deepest), "{deepest}");
    let names =
        file["shared"]["frames"].as_array().unwrap().iter().map(|frame| frame["name"].as_str().unwrap());
    assert_eq!(names.filter(|name| *name == "[frames left out: too deep]").count(), 1);
}

/// Ends of the names of the files, and whether what they count is chosen with `--weight`.
const ENDINGS: [(&str, bool); 7] = [
    ("speedscope.json", true),
    ("folded", true),
    ("flamegraph.svg", true),
    ("firefox.json", true),
    ("perfetto-trace", true),
    ("pb.gz", false),
    ("trace.json", false),
];

/// Files `TRACE-WEIGHT.ENDING` with what `stk stats` says in `TRACE-WEIGHT.stats.json`.
#[test]
fn every_format_of_a_recording_can_be_written() {
    let temporary = tempfile::tempdir().expect("folder");
    let folder = folder(&temporary);
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let run = |arguments: &[&str]| {
        let symbols = traces.to_str().expect("a path");
        let always = ["-y", symbols, "--no-default-symbols"];
        let (text, exit) = answer(arguments.iter().chain(&always).map(Into::into))
            .unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(exit, Exit::Ok, "{arguments:?}");
        text
    };
    for (trace, weight) in [("busy", "cpu"), ("busy", "wall"), ("mixed", "cpu"), ("mixed", "wall")] {
        let file = traces.join(format!("{trace}.stk"));
        let file = file.to_str().expect("a path");
        let figures = run(&["stats", file, "--json", "--top", "0", "--weight", weight]);
        std::fs::write(folder.join(format!("{trace}-{weight}.stats.json")), figures).expect("written");
        for (ending, chosen) in ENDINGS {
            let output = folder.join(format!("{trace}-{weight}.{ending}"));
            let output = output.to_str().expect("a path");
            let all = ["convert", file, "-o", output, "--weight", weight];
            run(if chosen { &all } else { &all[..4] });
        }
    }
}

/// Traces of a night, for the questions of examples/recipes: a program on three machines in two
/// builds. Build 42 takes twice the time of build 41, and lab-3 three times that of the others,
/// since their clocks have other frequencies. And one of another program.
#[test]
fn every_format_can_be_made_of_a_night_of_traces() {
    let temporary = tempfile::tempdir().expect("folder");
    let night = folder(&temporary).join("night");
    std::fs::create_dir_all(&night).expect("folder");
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let busy = super::dataset::kept("busy.stk");
    let mut number = 0;
    for (host, slower) in [("lab-1", 1), ("lab-2", 1), ("lab-3", 3)] {
        for (build, takes) in [("41", 1), ("42", 2)] {
            number += 1;
            let mut parts = Parts::take_apart(&busy).expect("a trace");
            parts.header.uuid = [number; 16];
            parts.header.clock_frequency /= slower * takes;
            let mut blocks = parts.blocks.iter_mut().filter(|block| block.header.kind == BlockKind::Meta);
            let block = blocks.next_back().expect("a block of metadata");
            for (key, value) in [("host", host), ("label.build", build)] {
                let metadata = Metadata { key: key.as_bytes(), value: value.as_bytes() };
                block.push(&Event::Metadata(metadata));
            }
            std::fs::write(night.join(format!("{host}-{build}.stk")), parts.to_file()).expect("written");
        }
    }
    std::fs::copy(traces.join("mixed.stk"), night.join("mixed.stk")).expect("copied");
    let folder = night.to_str().expect("a path");
    let (text, exit) = answer(["info", "--json", folder].map(Into::into)).expect("read");
    assert_eq!((exit, text.matches("\"lab-3\"").count() > 0), (Exit::Ok, true), "{text}");
}
