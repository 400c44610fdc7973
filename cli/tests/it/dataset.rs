//! Questions to a Parquet dataset: what `stk stats` and `stk diff` say of it is what they say of
//! its traces.
use crate::support::{Ran, command, kept, ran_in};
use polars::prelude::{
    Column, DataFrame, IntoColumn, NamedFrom, ParquetCompression, ParquetReader, ParquetWriter, SerReader,
    Series, StatisticsOptions,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stk_format::BlockKind;
use stk_schema::event::{Event, Metadata};
use stk_tests::schema;
use stk_tests::synth::Parts;

/// A folder with traces and the dataset of them.
struct Lab(tempfile::TempDir);

impl Lab {
    /// The kept recordings, converted with their symbols.
    fn new() -> Lab {
        let lab = Lab::of(&[]);
        for name in ["busy.stk", "mixed.stk"] {
            std::fs::copy(kept(name), lab.path("in").join(name)).unwrap();
        }
        lab.batch(&["-y", kept("").to_str().unwrap()]);
        lab
    }

    fn of(traces: &[(&str, Vec<u8>)]) -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        std::fs::create_dir(lab.path("in")).unwrap();
        for (name, bytes) in traces {
            std::fs::write(lab.path("in").join(name), bytes).unwrap();
        }
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn batch(&self, more: &[&str]) {
        let line = ["batch", "in", "--to", "parquet", "-o", "lab.parquet", "--no-default-symbols"];
        let (_, error, code) = self.run(&[&line, more].concat());
        assert_eq!(code, 0, "{error}");
    }

    /// Standard output, standard error, exit code.
    fn run(&self, arguments: &[&str]) -> (String, String, i32) {
        let Ran { code, out, error } = ran_in(self.0.path(), arguments);
        (out, error, code.unwrap())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let (text, error, code) = self.run(&[&["stats", "--format", "json"], arguments].concat());
        assert_eq!(code, 0, "{arguments:?}: {error}");
        serde_json::from_str(&text).unwrap()
    }

    /// The sum that `stk stats` gives of the traces.
    fn of_traces(&self, question: &[&str]) -> Value {
        let symbols = kept("");
        let line = ["in", "-y", symbols.to_str().unwrap(), "--no-default-symbols"];
        self.json(&[&line, question].concat())["sum"].take()
    }

    fn of_dataset(&self, question: &[&str]) -> Value {
        self.json(&[&["lab.parquet"], question].concat())["sum"].take()
    }
}

/// A kept recording under another UUID, with labels.
pub(crate) fn recording(number: u8, labels: &[(&str, &str)]) -> Vec<u8> {
    let mut parts = Parts::take_apart(&std::fs::read(kept("busy.stk")).unwrap()).unwrap();
    parts.header.uuid = [number; 16];
    let meta = parts.blocks.iter_mut().find(|block| block.header.kind == BlockKind::Meta).unwrap();
    for (key, value) in labels {
        let key = format!("label.{key}");
        meta.push(&Event::Metadata(Metadata { key: key.as_bytes(), value: value.as_bytes() }));
    }
    parts.to_file()
}

/// By the values of the keys: samples and weight of self and total.
fn groups(sum: &Value) -> BTreeMap<Vec<String>, [u64; 4]> {
    let rows = sum["groups"]["rows"].as_array().unwrap();
    let of = |row: &Value| {
        let number = |of: &str, what: &str| row[of][what].as_u64().unwrap();
        let values = row["values"].as_array().unwrap().iter();
        // Of traces the command line's names are shown, of a dataset those of their files.
        let values = values.map(|value| value.as_str().unwrap().trim_start_matches("in/").to_owned());
        let numbers = [
            number("self", "samples"),
            number("self", "weight_ns"),
            number("total", "samples"),
            number("total", "weight_ns"),
        ];
        (values.collect(), numbers)
    };
    rows.iter().map(of).collect()
}

#[test]
fn rules_name_a_dataset_as_they_name_its_traces() {
    let lab = Lab::new();
    std::fs::write(lab.path("names.rules"), "^plugin_ -> plugins\n^ntdll! -> system\n").unwrap();
    let question = ["--group-by", "function", "--top", "0", "--rules", "names.rules"];
    let sums = [lab.of_traces(&question), lab.of_dataset(&question)];
    let [traces, dataset] = sums.map(|sum| of_any_module(groups(&sum)));
    assert!(
        ["plugins", "system"]
            .iter()
            .all(|name| traces.contains_key(&[*name, "(no module)"].map(str::to_owned)[..]))
    );
    assert_eq!(dataset, traces);
}

#[test]
fn a_dataset_has_the_totals_and_functions_of_its_traces() {
    let lab = Lab::new();
    for more in
        [&[][..], &["--weight", "wall"], &["--weight", "samples"], &["--running"], &["--weight", "active"]]
    {
        let question = [&["--group-by", "function", "--top", "0"], more].concat();
        let (traces, dataset) = (lab.of_traces(&question), lab.of_dataset(&question));
        for field in ["traces", "samples", "cpu_ns", "weight", "mixed_weights", "counted_ns"] {
            assert_eq!(dataset[field], traces[field], "{more:?}: {field}");
        }
        assert_eq!(traces["traces"], 2);
        assert!(traces["samples"].as_u64().unwrap() > 1000, "{traces}");
        let (traces, dataset) = (of_any_module(groups(&traces)), of_any_module(groups(&dataset)));
        assert!(traces.len() > 20);
        assert_eq!(dataset, traces, "{more:?}");
    }
}

/// The groups, with no module beside `mix`: two have code of it, and which of them is shown depends
/// on the order in which frames are met.
fn of_any_module(groups: BTreeMap<Vec<String>, [u64; 4]>) -> BTreeMap<Vec<String>, [u64; 4]> {
    let mut sums: BTreeMap<Vec<String>, [u64; 4]> = BTreeMap::new();
    for (mut values, amounts) in groups {
        if let Some(at) = values.iter().position(|value| value == "mix") {
            values.truncate(at + 1);
        }
        let sum = sums.entry(values).or_default();
        sum.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
    }
    sums
}

/// A call tree, with no module beside `mix`, as in [`of_any_module`].
fn tree_of_any_module(tree: &Value) -> Value {
    let mut tree = tree.clone();
    for row in tree["rows"].as_array_mut().unwrap() {
        if row["function"] == "mix" {
            row["module"] = Value::Null;
        }
    }
    tree
}

#[test]
fn a_dataset_answers_the_questions_that_traces_answer() {
    let lab = Lab::new();
    for question in [
        &["--group-by", "module"][..],
        &["--group-by", "host,process,function"],
        &["--group-by", "trace,module"],
        &["--group-by", "thread-name,state"],
        &["--group-by", "wait-reason"],
        &["--group-by", "kind", "--weight", "wall"],
        &["--group-by", "line"],
        &["--group-by", "label:build"],
        &["--group-by", "function", "--state", "waiting", "--weight", "wall"],
        &["--group-by", "function", "--module", "ntdll", "--weight", "wall"],
        &["--group-by", "function", "--my-code", "--weight", "samples"],
        // By samples: without CPU time in the selection a trace counts them, a dataset does not.
        &["--group-by", "thread,function", "--thread", "worker", "--weight", "samples"],
        &["--group-by", "function", "--focus", "main", "--ignore", "Sleep", "--weight", "samples"],
    ] {
        let question = [question, &["--top", "0"]].concat();
        let (traces, dataset) = (groups(&lab.of_traces(&question)), groups(&lab.of_dataset(&question)));
        assert!(!traces.is_empty(), "{question:?}");
        assert_eq!(of_any_module(dataset), of_any_module(traces), "{question:?}");
    }
    for question in
        [&["--tree"][..], &["--callers", "^leaf_shuffle$"], &["--callees", "main", "--weight", "wall"]]
    {
        let question = [question, &["--top", "0"]].concat();
        let (traces, dataset) = (lab.of_traces(&question), lab.of_dataset(&question));
        let rows = |sum: &Value| sum["call_tree"]["rows"].as_array().unwrap().len();
        assert!(rows(&traces) >= 3, "{question:?}: {traces}");
        let tree = |sum: &Value| tree_of_any_module(&sum["call_tree"]);
        assert_eq!(tree(&dataset), tree(&traces), "{question:?}");
    }
}

#[test]
fn labels_and_times_choose_traces_of_a_dataset() {
    let lab = Lab::of(&[
        ("a.stk", recording(1, &[("build", "1"), ("lab", "west")])),
        ("b.stk", recording(2, &[("build", "2"), ("lab", "west")])),
        ("c.stk", recording(3, &[("build", "2")])),
    ]);
    lab.batch(&[]);
    let traces = |arguments: &[&str]| {
        let document = lab.json(arguments);
        schema::check(
            &serde_json::from_str(include_str!("../../../schema/stats.schema.json")).unwrap(),
            &document,
        )
        .unwrap_or_else(|wrong| panic!("{wrong}"));
        document["sum"]["traces"].as_u64().unwrap()
    };
    assert_eq!(traces(&["lab.parquet"]), 3);
    assert_eq!(traces(&["lab.parquet", "--label", "build=2"]), 2);
    assert_eq!(traces(&["lab.parquet?build=2"]), 2);
    assert_eq!(traces(&["lab.parquet?build=2&lab=west"]), 1);
    assert_eq!(traces(&["lab.parquet?build=2", "--label", "lab=west", "--from", "0s"]), 1);
    let by_label = groups(&lab.of_dataset(&["--group-by", "label:lab", "--weight", "samples"]));
    let samples = |lab: &str| by_label[&vec![lab.to_owned()]][0];
    assert_eq!(samples("west"), 2 * samples("(no label)"), "two of one, each with the same samples");
    let whole = lab.of_dataset(&["--label", "build=1"])["samples"].as_u64().unwrap();
    let part = lab.of_dataset(&["--label", "build=1", "--until", "100ms"])["samples"].as_u64().unwrap();
    assert!(part > 0 && part < whole, "{part} of {whole}");
    for (arguments, words) in [
        (&["lab.parquet?build=3"][..], "none of its 3 traces"),
        (&["lab.parquet", "--from", "2030-01-01T00:00Z"], "none of its 3 traces"),
    ] {
        let (_, error, code) = lab.run(&[&["stats"], arguments].concat());
        assert_eq!(code, 1, "{error}");
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_a_dataset_cannot_answer_is_refused_by_name() {
    let lab = Lab::of(&[("a.stk", recording(1, &[]))]);
    lab.batch(&[]);
    for (arguments, words) in [
        (&["-y", "in"][..], "-y is not for a dataset"),
        (&["--scan"], "--scan is not for a dataset"),
        (&["--salvage"], "--salvage is not for a dataset"),
        (&["--tables", "in"], "--tables is not for a dataset"),
        (&["--max-memory", "1G"], "--max-memory is not for a dataset"),
        (&["--require-symbols", "50"], "--require-symbols is not for a dataset"),
        (&["--demangle", "none"], "--demangle is not for a dataset"),
        (&["--each"], "--each is not for a dataset: --group-by trace"),
        (&["--full"], "--full is not for a dataset"),
        (&["--waiting"], "--waiting is not for a dataset"),
        (&["in/a.stk"], "a dataset stands alone"),
        (&["--group-by", "nothing"], "thread-name"),
    ] {
        let (_, error, code) = lab.run(&[&["stats", "lab.parquet"], arguments].concat());
        assert_eq!(code, 2, "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
    let (text, error, code) = lab.run(&["stats", "lab.parquet"]);
    assert_eq!(code, 0, "{error}");
    for words in
        ["lab.parquet: 1 trace of 1 process on 1 host", "Functions of all traces", "Waits of all traces"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// The rows of a comparison except for their bounds, which depend on the order of the traces.
fn rows(text: &str) -> BTreeMap<(String, String), [String; 3]> {
    let document: Value = serde_json::from_str(text).unwrap();
    let row = |row: &Value| {
        let name = (row["module"].to_string(), row["function"].to_string());
        (name, ["base_pct", "new_pct", "difference_pct"].map(|field| row[field].to_string()))
    };
    document["rows"].as_array().unwrap().iter().map(row).collect()
}

#[test]
fn sides_of_a_dataset_compare_as_their_traces_do() {
    let mut traces = Vec::new();
    for number in 1..=6 {
        let build = if number <= 3 { "1" } else { "2" };
        traces.push((format!("{number}.stk"), recording(number, &[("build", build)])));
    }
    // What takes time on one side alone.
    let mut parts = Parts::take_apart(&std::fs::read(kept("mixed.stk")).unwrap()).unwrap();
    parts.header.uuid = [9; 16];
    let meta = parts.blocks.iter_mut().find(|block| block.header.kind == BlockKind::Meta).unwrap();
    meta.push(&Event::Metadata(Metadata { key: b"label.build", value: b"2" }));
    traces.push(("9.stk".to_owned(), parts.to_file()));
    let named: Vec<(&str, Vec<u8>)> =
        traces.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let lab = Lab::of(&named);
    let symbols = kept("");
    let symbols = symbols.to_str().unwrap();
    lab.batch(&["-y", symbols]);
    for more in [
        &[][..],
        &["--by", "module"],
        &["--by", "stack"],
        &["--total"],
        &["--weight", "samples", "--my-code"],
    ] {
        let common = [&["--format", "json", "--top", "0"], more].concat();
        let base = ["--base", "in/1.stk", "in/2.stk", "in/3.stk"];
        let new = ["--new", "in/4.stk", "in/5.stk", "in/6.stk", "in/9.stk"];
        let of_traces =
            [&["diff"], &base[..], &new, &["-y", symbols, "--no-default-symbols"], &common].concat();
        let of_dataset = [&["diff", "lab.parquet?build=1", "lab.parquet?build=2"], &common[..]].concat();
        let (traces, error, code) = lab.run(&of_traces);
        assert!([0, 6, 7].contains(&code), "{error}");
        let (dataset, error, other) = lab.run(&of_dataset);
        assert_eq!(other, code, "{error}");
        assert!(rows(&traces).len() > 2, "{traces}");
        assert_eq!(rows(&dataset), rows(&traces), "{more:?}");
        let again = lab.run(&[&of_dataset[..], &["-j", "1"]].concat()).0;
        assert_eq!(again, dataset, "{more:?}: with any -j");
    }
}

#[test]
fn names_that_come_late_are_those_of_a_conversion_with_symbols() {
    let symbols = kept("");
    let symbols = symbols.to_str().unwrap();
    let late = Lab::of(&[("a.stk", recording(1, &[]))]);
    late.batch(&[]);
    let early = Lab::of(&[("a.stk", recording(1, &[]))]);
    early.batch(&["-y", symbols]);
    let question = ["--group-by", "function,line", "--top", "0", "--weight", "samples"];
    let named = |lab: &Lab| groups(&lab.of_dataset(&question));
    assert_ne!(named(&late), named(&early), "the PDBs matter");
    let apply = |lab: &Lab| {
        let (text, error, code) =
            lab.run(&["symbols", "apply", "lab.parquet", "-y", symbols, "--no-default-symbols"]);
        assert_eq!(code, 0, "{error}");
        text
    };
    let text = apply(&late);
    let gained = text.lines().find(|line| line.starts_with("busy.exe")).expect(&text);
    assert!(gained.contains("busy.pdb") && !gained.contains(" 0 of"), "{text}");
    assert_eq!(named(&late), named(&early));
    // Again it changes nothing, and traces that come later do not take the names away.
    let frames = || std::fs::read(late.path("lab.parquet/frames/0000.parquet")).unwrap();
    let before = frames();
    assert!(apply(&late).ends_with(" without one gained a name\n"));
    assert!(apply(&late).lines().last().unwrap().starts_with("0 of "), "{}", apply(&late));
    assert_eq!(frames(), before);
    std::fs::write(late.path("in/b.stk"), recording(2, &[])).unwrap();
    late.batch(&[]);
    std::fs::write(early.path("in/b.stk"), recording(2, &[])).unwrap();
    early.batch(&["-y", symbols]);
    assert_eq!(named(&late), named(&early));
    assert_eq!(late.run(&["symbols", "apply", "in"]).2, 2, "no dataset");
}

/// Replaces a text in the dictionaries of a table's file, whose other bytes are those of a writer.
fn forge(file: &Path, text: &str, bytes: &[u8]) {
    let mut frame = ParquetReader::new(std::fs::File::open(file).unwrap()).finish().unwrap();
    let mut written = Vec::new();
    let writer = ParquetWriter::new(&mut written).with_compression(ParquetCompression::Uncompressed);
    writer.with_statistics(StatisticsOptions::empty()).finish(&mut frame).unwrap();
    let places: Vec<usize> = (0..written.len() - text.len())
        .filter(|&at| &written[at..at + text.len()] == text.as_bytes())
        .collect();
    assert!((1..10).contains(&places.len()), "{text}: {places:?}");
    places.into_iter().for_each(|at| written[at..at + text.len()].copy_from_slice(bytes));
    std::fs::write(file, written).unwrap();
}

#[test]
fn text_that_is_not_utf8_is_an_error_of_its_file_and_column() {
    let symbols = kept("");
    let symbols = symbols.to_str().unwrap();
    let cases = [
        // A terminal would obey this one.
        ("module", "busy.exe", b"\xff\xfe\x1b[31mX".to_vec()),
        // Its last byte says that three more follow.
        ("file", "", b"\xf4".to_vec()),
    ];
    for (column, text, end) in cases {
        let lab = Lab::of(&[("a.stk", recording(1, &[]))]);
        lab.batch(&["-y", symbols]);
        let frames = lab.path("lab.parquet/frames/0000.parquet");
        let read = ParquetReader::new(std::fs::File::open(&frames).unwrap()).finish().unwrap();
        let texts = read.column(column).unwrap().str().unwrap();
        let count = |text: &str| texts.iter().filter(|found| *found == Some(text)).count();
        let found = texts.iter().flatten().filter(|found| text.is_empty() || *found == text);
        let text = found.max_by_key(|text| count(text)).unwrap();
        let bytes = [&text.as_bytes()[..text.len() - end.len()], &end].concat();
        forge(&frames, text, &bytes);
        std::fs::write(lab.path("b.stk"), recording(2, &[])).unwrap();
        for line in [
            &["stats", "lab.parquet"][..],
            &["stats", "lab.parquet", "--tree"],
            &["stats", "lab.parquet", "--json"],
            &["stats", "lab.parquet", "--group-by", "module,line", "--format", "csv"],
            &["diff", "lab.parquet", "lab.parquet"],
            &["symbols", "apply", "lab.parquet", "--no-default-symbols"],
            &["convert", "b.stk", "--to", "parquet", "-o", "lab.parquet", "--no-default-symbols"],
        ] {
            let (text, error, code) = lab.run(line);
            assert_eq!(code, 1, "{line:?}: {error}");
            assert!(error.contains("0000.parquet: column "), "{line:?}: {error}");
            assert!(error.contains(&format!("column {column}: ")), "{line:?}: {error}");
            assert!(!text.contains('\x1b') && !error.contains('\x1b'), "{line:?}");
        }
    }
}

/// Changes a table's file, as another program would write it, in row groups of so many rows.
fn rewrite(file: &Path, rows: Option<usize>, change: impl Fn(&mut DataFrame)) {
    let mut frame = ParquetReader::new(std::fs::File::open(file).unwrap()).finish().unwrap();
    change(&mut frame);
    let mut written = Vec::new();
    ParquetWriter::new(&mut written).with_row_group_size(rows).finish(&mut frame).unwrap();
    std::fs::write(file, written).unwrap();
}

/// A lab with the tables of one trace, and the only file of a table.
fn lab_and_file(table: &str) -> (Lab, PathBuf) {
    let lab = Lab::of(&[("a.stk", recording(1, &[]))]);
    lab.batch(&[]);
    let mut folder = lab.path("lab.parquet").join(table);
    if !folder.join("0000.parquet").exists() {
        folder = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    }
    (lab, folder.join("0000.parquet"))
}

fn column_of<T>(frame: &DataFrame, name: &str, value: T) -> Column
where
    Series: NamedFrom<Vec<T>, [T]>,
    T: Clone,
{
    Series::new(name.into(), vec![value; frame.height()]).into_column()
}

#[test]
fn tables_that_state_what_cannot_be_are_errors_that_name_it() {
    let error = |table: &str, change: &dyn Fn(&mut DataFrame), words: &str| {
        let (lab, file) = lab_and_file(table);
        rewrite(&file, None, change);
        for line in [&["stats", "lab.parquet"][..], &["stats", "lab.parquet", "--tree"]] {
            let begun = std::time::Instant::now();
            let (_, error, code) = lab.run(line);
            assert_eq!(code, 1, "{table} {line:?}: {error}");
            assert!(error.contains(words), "{table} {line:?}: {error}");
            assert!(begun.elapsed().as_secs() < 30, "{table} {line:?}");
        }
    };
    let with = |frame: &mut DataFrame, column: Column| {
        frame.with_column(column).unwrap();
    };
    let samples = |frame: &mut DataFrame| with(frame, column_of(frame, "samples", i64::MAX));
    error("samples", &samples, "lab.parquet: states more than ");
    let text = |frame: &mut DataFrame| with(frame, column_of(frame, "stack_id", "x"));
    error("samples", &text, "0000.parquet: column stack_id: is of the type str");
    let number = |frame: &mut DataFrame| with(frame, column_of(frame, "function", 7i64));
    error("frames", &number, "0000.parquet: column function: is of the type i64");
    let number = |frame: &mut DataFrame| with(frame, column_of(frame, "trace_id", 1.5f64));
    error("traces", &number, "0000.parquet: column trace_id: is of the type f64");
    let nanoseconds = |frame: &mut DataFrame| with(frame, column_of(frame, "start_utc", 5i64));
    error("traces", &nanoseconds, "column start_utc: is of the type i64");
}

#[test]
fn stack_of_millions_of_frames_is_refused() {
    let (lab, file) = lab_and_file("stacks");
    rewrite(&file, None, |frame| {
        let list = frame.column("location_ids").unwrap().list().unwrap().get_as_series(0).unwrap();
        let indices: Vec<u32> = vec![0; 5 << 20];
        let deep = Series::new("location_ids".into(), [list.take_slice(&indices).unwrap()]);
        let mut one = frame.head(Some(1));
        one.with_column(deep.into_column()).unwrap();
        *frame = one;
    });
    for line in [&["stats", "lab.parquet"][..], &["stats", "lab.parquet", "--tree"]] {
        let (_, error, code) = lab.run(line);
        assert_eq!(code, 1, "{line:?}: {error}");
        assert!(error.contains("stacks/"), "{line:?}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn pipes_and_devices_in_a_dataset_are_refused_without_waiting() {
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let zero = |path: &Path| std::os::unix::fs::symlink("/dev/zero", path).unwrap();
    for table in ["samples", "stacks", "frames", "traces"] {
        for plant in [&pipe as &dyn Fn(&Path), &zero] {
            let (lab, file) = lab_and_file(table);
            std::fs::remove_file(&file).unwrap();
            plant(&file);
            let (_, error, code) = lab.run(&["stats", "lab.parquet"]);
            assert_eq!(code, 1, "{table}: {error}");
            assert!(error.contains("0000.parquet"), "{table}: {error}");
        }
    }
    let (lab, _) = lab_and_file("samples");
    let version = lab.path("lab.parquet/_stk.json");
    std::fs::File::create(&version).unwrap().set_len(20 << 30).unwrap();
    let (_, error, code) = lab.run(&["stats", "lab.parquet"]);
    assert_eq!(code, 1, "{error}");
}

#[test]
fn row_groups_of_one_row_have_the_sums_of_large_ones() {
    let (lab, file) = lab_and_file("samples");
    let before = lab.of_dataset(&["--weight", "samples"]);
    rewrite(&file, Some(1), |_| ());
    assert_eq!(lab.of_dataset(&["--weight", "samples"]), before);
    let (lab, file) = lab_and_file("stacks");
    rewrite(&file, Some(3), |_| ());
    assert_eq!(groups(&lab.of_dataset(&["--weight", "samples"])), groups(&before));
}

#[test]
fn number_of_threads_of_the_environment_is_checked() {
    let (lab, _) = lab_and_file("samples");
    let dataset = lab.path("lab.parquet");
    for (threads, ends) in [("x", 1), ("99999999", 1), ("0", 1), ("2", 0)] {
        let mut stats = command(&["stats", dataset.to_str().unwrap()]);
        let output = stats.env("POLARS_MAX_THREADS", threads).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(ends), "{threads}: {error}");
        assert_eq!(error.contains("POLARS_MAX_THREADS is no number from 1 to 1024"), ends == 1, "{error}");
    }
}

#[test]
fn traces_that_are_added_later_change_few_files() {
    let number = |number: u8| (format!("{number:03}.stk"), recording(number, &[]));
    let many: Vec<(String, Vec<u8>)> = (1..=160).map(number).collect();
    let named: Vec<(&str, Vec<u8>)> =
        many.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let lab = Lab::of(&named);
    lab.batch(&[]);
    let date = std::fs::read_dir(lab.path("lab.parquet/samples")).unwrap().next().unwrap().unwrap().path();
    let date = Path::new("samples").join(date.file_name().unwrap());
    let bytes = |dataset: &str, table: &Path| -> Vec<Vec<u8>> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(lab.path(dataset).join(table))
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
    };
    // Files that are kept have the time at which they were made.
    let made = || -> Vec<(u64, std::time::SystemTime)> {
        let files = std::fs::read_dir(lab.path("lab.parquet").join(&date)).unwrap();
        let facts = files.map(|file| file.unwrap().metadata().unwrap());
        facts.map(|facts| (facts.len(), facts.modified().unwrap())).collect()
    };
    let whole = lab.of_dataset(&["--weight", "samples"]);
    let mut before = made();
    assert!(before.len() >= 3, "{} files of 160 traces", before.len());
    for added in 161..=163u8 {
        let (name, bytes) = number(added);
        std::fs::write(lab.path("in").join(&name), bytes).unwrap();
        let file = format!("in/{name}");
        let (_, error, code) =
            lab.run(&["convert", &file, "--to", "parquet", "-o", "lab.parquet", "--no-default-symbols"]);
        assert_eq!(code, 0, "{error}");
        let now = made();
        let anew = now.iter().filter(|file| !before.contains(file)).count();
        assert!((1..=2).contains(&anew), "{anew} of {} files are made anew", now.len());
        before = now;
        let sum = lab.of_dataset(&["--weight", "samples"]);
        assert_eq!(sum["traces"], added);
        // Each trace has the same samples, and each stack and name is there once.
        let expected = whole["samples"].as_u64().unwrap() / 160 * u64::from(added);
        assert_eq!(sum["samples"], expected);
        let (now, before) = (groups(&sum), groups(&whole));
        assert!(now.keys().eq(before.keys()));
        for (function, amounts) in &now {
            assert_eq!(amounts[0], before[function][0] / 160 * u64::from(added), "{function:?}");
        }
    }
    let line = ["batch", "in", "--to", "parquet", "-o", "new.parquet", "--no-default-symbols"];
    assert_eq!(lab.run(&line).2, 0);
    for table in [Path::new("stacks"), Path::new("frames"), &date] {
        let (grown, new) = (bytes("lab.parquet", table), bytes("new.parquet", table));
        assert!(
            grown == new,
            "{}: other bytes than those of a dataset that was made at once",
            table.display()
        );
    }
}

/// The CPU time of all traces of a dataset.
fn cpu_ns(lab: &Lab) -> u64 {
    lab.of_dataset(&[])["cpu_ns"].as_u64().unwrap()
}

#[test]
fn a_redacted_copy_is_no_second_recording() {
    let busy = std::fs::read(kept("busy.stk")).unwrap();
    let lab = Lab::of(&[("busy.stk", busy.clone())]);
    lab.batch(&[]);
    let alone = cpu_ns(&lab);
    let redact = |from: &str, to: &str, more: &[&str]| {
        let (_, error, code) = lab.run(&[&["redact", from, "-o", to], more].concat());
        assert_eq!(code, 0, "{error}");
    };
    redact("in/busy.stk", "in/copy.stk", &[]);
    redact("in/copy.stk", "in/again.stk", &["--drop", "host"]);
    lab.batch(&[]);
    assert_eq!(cpu_ns(&lab), alone, "the recording was there first");
    for (first, last) in [("copy.stk", "busy.stk"), ("busy.stk", "copy.stk")] {
        let other = Lab::of(&[]);
        for name in [first, last] {
            std::fs::copy(lab.path("in").join(name), other.path("in").join(name)).unwrap();
            other.batch(&[]);
        }
        assert_eq!(cpu_ns(&other), alone, "{first} was there first");
    }
    // Without the recording, one of its copies is there.
    std::fs::remove_file(lab.path("in/busy.stk")).unwrap();
    std::fs::remove_dir_all(lab.path("lab.parquet")).unwrap();
    lab.batch(&[]);
    assert_eq!(cpu_ns(&lab), alone);
}

#[test]
fn symbols_of_a_dataset_are_those_of_its_traces() {
    let lab = Lab::new();
    let symbols = kept("");
    let rows = |of: &[&str]| -> BTreeMap<String, (u64, Value, Value)> {
        let line = ["symbols", "list", "--json", "--no-default-symbols", "-y", symbols.to_str().unwrap()];
        let (text, error, code) = lab.run(&[&line, of].concat());
        assert_eq!(code, 0, "{error}");
        let list: Value = serde_json::from_str(&text).unwrap();
        let row = |row: &Value| {
            let name = row["name"].as_str().unwrap().to_owned() + row["debug_id"].as_str().unwrap();
            (name, (row["frames"].as_u64().unwrap(), row["pdb"].clone(), row["source"].clone()))
        };
        list["modules"].as_array().unwrap().iter().map(row).filter(|(_, (frames, ..))| *frames > 0).collect()
    };
    let of_traces = rows(&["in/busy.stk", "in/mixed.stk"]);
    let of_dataset = rows(&["lab.parquet"]);
    assert_eq!(of_traces.keys().collect::<Vec<_>>(), of_dataset.keys().collect::<Vec<_>>());
    for (module, (frames, pdb, source)) in &of_dataset {
        let (all, ..) = of_traces[module];
        assert_eq!((pdb, source), (&of_traces[module].1, &of_traces[module].2), "{module}");
        // Traces count frames by how they were found, too.
        assert!((1..=all).contains(frames), "{module}: {frames} of {all}");
    }
}
