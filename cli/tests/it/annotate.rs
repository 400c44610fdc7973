//! `stk annotate`: lines and instructions beside `stk stats` and the sources of the kept traces.

use crate::support::{Ran, kept, kept_text, stk};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use stk_schema::event::TableKind;
use stk_tests::schema;
use stk_tests::traces::{self, AFTER_CALL, TestImage, in_function};

/// The folder with the sources of the examples.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn ran(arguments: &[&str]) -> Ran {
    let symbols = kept_text("");
    // Leaves no cache among the sources.
    stk(root(), &[arguments, &["-y", &symbols, "--no-default-symbols"]].concat()).into()
}

/// The trace of a JSON document, which must follow its schema.
fn document(arguments: &[&str]) -> Value {
    let Ran { code, out, error } = ran(&[arguments, &["--json"]].concat());
    assert!(matches!(code, Some(0 | 4)), "{arguments:?}: {code:?} {error}");
    let mut value: Value = serde_json::from_str(&out).unwrap();
    if arguments[0] == "annotate" {
        let rules = serde_json::from_str(include_str!("../../../schema/annotate.schema.json")).unwrap();
        schema::check(&rules, &value).unwrap();
        let mut other = value.clone();
        other["traces"][0]["parts"][0]["lines"][0]["self"] = json!(7);
        assert!(schema::check(&rules, &other).is_err(), "the schema says something");
    }
    value["traces"][0].take()
}

/// Samples and weight.
fn amount(value: &Value) -> [u64; 2] {
    ["samples", "weight_ns"].map(|field| value[field].as_u64().unwrap())
}

fn sum<'v>(rows: impl IntoIterator<Item = &'v Value>) -> [u64; 2] {
    rows.into_iter().map(|row| amount(&row["self"])).fold([0; 2], |[a, b], [c, d]| [a + c, b + d])
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().unwrap()
}

/// By function and module: self and total.
type Functions = BTreeMap<[String; 2], [[u64; 2]; 2]>;

fn functions(rows: &[Value]) -> Functions {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |row: &Value| {
        ([text(&row["function"]), text(&row["module"])], [amount(&row["self"]), amount(&row["total"])])
    };
    rows.iter().map(row).collect()
}

#[test]
fn lines_and_instructions_add_up_to_the_self_time_of_stats() {
    let choices: [&[&str]; 5] = [
        &[],
        &["--weight", "wall"],
        &["--weight", "samples", "--running"],
        &["--from", "1s", "--until", "3s", "--state", "running"],
        &["--my-code", "--fold-recursion"],
    ];
    for trace in ["busy.stk", "mixed.stk"] {
        let path = kept_text(trace);
        for more in choices {
            let stats = document(&[&["stats", &path, "--top", "0"], more].concat());
            let whole = document(&[&["annotate", &path, ".", "--top", "0", "--instructions"], more].concat());
            let parts = list(&whole, "parts");
            assert!(parts.len() > 10, "{trace} {more:?}: {}", parts.len());
            // Lists by an amount leave out what has none of it.
            let lists = ["functions_by_self", "functions_by_total"];
            let listed: Functions = lists.iter().flat_map(|of| functions(list(&stats, of))).collect();
            let annotated = functions(parts);
            for (function, sums) in &listed {
                assert_eq!(annotated.get(function), Some(sums), "{trace} {more:?}: {function:?}");
            }
            let others = annotated.iter().filter(|(function, _)| !listed.contains_key(*function));
            for (function, [own, total]) in others {
                assert_eq!([own[1], total[1]], [0, 0], "{trace} {more:?}: {function:?}");
            }
            for part in parts {
                let own = amount(&part["self"]);
                assert_eq!(sum(list(part, "lines")), own, "{trace} {more:?}: lines of {}", part["function"]);
                let rows = list(part, "code").iter().flat_map(|block| list(block, "rows"));
                assert_eq!(sum(rows), own, "{trace} {more:?}: instructions of {}", part["function"]);
                for block in list(part, "code") {
                    assert_eq!(sum(list(block, "rows")), amount(&block["self"]));
                }
            }
        }
    }
}

#[test]
fn the_lines_of_a_file_add_up_to_its_functions() {
    let path = kept_text("busy.stk");
    let whole = document(&["annotate", &path, "leaf_loops.cpp", "--instructions", "--top", "0"]);
    let parts = list(&whole, "parts");
    let (file, functions) = parts.split_first().unwrap();
    assert_eq!(file["function"], Value::Null);
    assert_eq!(functions.len(), 4, "leaf_loops, leaf_multiply, leaf_divide, leaf_shuffle");
    assert_eq!(sum(list(file, "lines")), amount(&file["self"]));
    assert_eq!(sum(functions), amount(&file["self"]));
}

/// The line with the most self time of the function's source.
fn top_line(trace: &str, function: &str) -> String {
    let trace = document(&["annotate", &kept_text(trace), function, "--source", "."]);
    let lines = list(&trace["parts"][0], "lines").to_vec();
    let top = lines.into_iter().max_by_key(|line| amount(&line["self"])[1]).unwrap();
    top["text"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_top_line_of_each_hot_loop_is_the_marked_one() {
    for (trace, function, mark) in [
        ("busy.stk", "rotate_and_add", "rotate_and_add"),
        ("busy.stk", "plugin_b_work", "plugin_b_work"),
        ("busy.stk", "leaf_shuffle", "leaf_shuffle"),
        ("mixed.stk", r"Work\.Spin\(", "Spin"),
        ("mixed.stk", r"Work\.Shapes\(", "Shapes"),
    ] {
        let top = top_line(trace, function);
        assert!(top.ends_with(&format!("// hot: {mark}")), "{trace} {function}: {top}");
    }
}

#[test]
fn a_line_without_its_source_has_its_number_and_the_way_out() {
    let path = kept_text("busy.stk");
    let Ran { code, out, .. } = ran(&["annotate", &path, "leaf_shuffle"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("no text: name the folder of the sources with --source"), "{out}");
    let row = out.lines().last().unwrap();
    assert!(row.trim_end().ends_with(" 18"), "{row}");
    let mapped = ran(&["annotate", &path, "leaf_shuffle", "--source", r"examples\busy=examples/busy"]).out;
    assert!(mapped.contains("// hot: leaf_shuffle"), "{mapped}");
}

#[test]
fn mistakes_in_the_command_line_are_named() {
    let path = kept_text("busy.stk");
    for (arguments, code, text) in [
        (&["annotate", &path, "no_such_function"][..], 1, "matches no_such_function"),
        (&["annotate", &path, "("], 2, "regular expression"),
        (&["annotate", &path, "main", "--source", "no/such"], 2, "--source no/such"),
        (&["annotate", &path, "main", "--thread", "nobody"], 1, "nobody"),
    ] {
        let Ran { code: ended, error, .. } = ran(arguments);
        assert_eq!(ended, Some(code), "{arguments:?}: {error}");
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
}

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

/// Machine code of functions of a [`TestImage`]: each calls the next one.
fn code(functions: usize) -> Vec<u8> {
    let size = (TestImage::function(1) - TestImage::function(0)) as usize;
    let mut code = vec![0xCC; functions * size];
    for function in code.chunks_exact_mut(size) {
        // sub rsp, 28h; seven NOPs; call next; add rsp, 28h; ret
        function[..4].copy_from_slice(&[0x48, 0x83, 0xEC, 0x28]);
        function[4..11].fill(0x90);
        let behind_call = AFTER_CALL as usize;
        function[11] = 0xE8;
        function[12..16].copy_from_slice(&((size - behind_call) as u32).to_le_bytes());
        function[behind_call..behind_call + 5].copy_from_slice(&[0x48, 0x83, 0xC4, 0x28, 0xC3]);
    }
    code
}

#[test]
fn a_return_address_counts_for_its_call() {
    let mut builder = traces::trace();
    let image = TestImage::new(r"C:\app\app.exe", 4);
    let instance = image.load_without_tables(&mut builder, 0, BASE);
    let code = code(4);
    image.with_tables(|tables| {
        let code = (TableKind::Code, TestImage::function(0), code.as_slice());
        builder.tables(0, instance, &[tables, &[code]].concat());
    });
    let thread = builder.thread(0, 1, "main", STACK);
    let [outer, inner] = [1, 2].map(|function| in_function(BASE, function));
    // Two samples behind the call, and one within the instruction there.
    for (i, leaf) in (1..).zip([inner, inner, inner + 2]) {
        traces::sample(&mut builder, thread, i * 10_000, STACK, &[outer, leaf]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.stk");
    std::fs::write(&path, builder.finish()).unwrap();
    let path = path.to_str().unwrap();
    let rows = |function: u32| -> Vec<Value> {
        let name = format!("app.exe!fn_{:x}", TestImage::function(function));
        let trace = document(&["annotate", path, &name, "--instructions", "--weight", "samples"]);
        let rows = list(&trace["parts"][0]["code"][0], "rows");
        let met = rows.iter().filter(|row| amount(&row["total"])[0] > 0);
        met.map(|row| {
            json!([
                row["address"],
                row["text"],
                row["problem"],
                amount(&row["self"])[0],
                amount(&row["total"])[0]
            ])
        })
        .collect()
    };
    let (one, two) = (TestImage::function(1), TestImage::function(2));
    assert_eq!(rows(1), [json!([one + 11, format!("call {two:#x}"), null, 0, 3])]);
    assert_eq!(
        rows(2),
        [
            json!([two + AFTER_CALL, "add rsp, 0x28", null, 2, 2]),
            json!([two + AFTER_CALL + 2, null, "no instruction begins here", 1, 1])
        ]
    );
}

#[test]
fn code_that_a_runtime_made_is_read_from_the_trace() {
    // C#'s `sum * 31 + i` is a shift and a subtraction.
    let trace = document(&["annotate", &kept_text("mixed.stk"), r"Work\.Spin\(", "--instructions"]);
    let block = &trace["parts"][0]["code"][0];
    assert_eq!(block["base"], "memory");
    let texts: Vec<&str> = list(block, "rows").iter().filter_map(|row| row["text"].as_str()).collect();
    assert!(texts.iter().any(|text| text.starts_with("shl ") && text.ends_with(", 5")), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("sub ")), "{texts:?}");
    let text = ran(&["annotate", &kept_text("mixed.stk"), r"Work\.Spin\(", "--instructions"]).out;
    assert!(text.contains("would have run next"), "skid is explained: {text}");
    assert!(kept("mixed.stk").exists());
}
