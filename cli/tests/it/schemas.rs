//! JSON outputs follow their schemas in `schema/`, and the schemas name every field of them.

use crate::support::{kept, kept_text};
use serde_json::{Value, json};
use std::path::Path;
use stk::commands::{Exit, answer};
use stk_tests::schema;

fn run(arguments: &[&str]) -> (String, Exit) {
    answer(arguments.iter().map(Into::into)).unwrap()
}

/// The schema, in which objects have no other fields than those it names.
fn strict(text: &str) -> Value {
    fn close(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.values_mut().for_each(close);
                if fields.get("properties").is_some_and(|properties| properties.get("type").is_none()) {
                    fields.insert("additionalProperties".to_owned(), json!(false));
                }
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => {}
        }
    }
    let mut schema: Value = serde_json::from_str(text).unwrap();
    close(&mut schema);
    schema
}

/// Checks a document, and that another version of it would be refused.
#[track_caller]
fn follows(rules: &str, text: &str) -> Value {
    let rules = strict(rules);
    let value: Value = serde_json::from_str(text).unwrap();
    schema::check(&rules, &value).unwrap_or_else(|wrong| panic!("{wrong}"));
    if value.get("version").is_some() {
        let mut other = value.clone();
        other["version"] = json!(99);
        assert!(schema::check(&rules, &other).is_err(), "the schema says something");
    }
    value
}

#[test]
fn info_follows_its_schema() {
    let rules = include_str!("../../../schema/info.schema.json");
    let (text, exit) = run(&["info", "--json", &kept_text("busy.stk"), &kept_text("mixed.stk")]);
    assert_eq!(exit, Exit::Ok);
    let value = follows(rules, &text);
    assert_eq!(value["traces"].as_array().unwrap().len(), 2);
    assert_eq!(value["traces"][1]["runtimes"][0]["version"], "10.0.9");
}

#[test]
fn verify_follows_its_schema() {
    let rules = include_str!("../../../schema/verify.schema.json");
    let folder = tempfile::tempdir().unwrap();
    let file = std::fs::read(kept_text("busy.stk")).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mut flipped = file.clone();
    flipped[file.len() / 2] ^= 0x5A;
    let files = [
        write("whole.stk", &file),
        write("cut.stk", &file[..file.len() / 2]),
        write("damaged.stk", &flipped),
    ];
    let (text, exit) = run(&["verify", "--json", &files[0], &files[1], &files[2]]);
    assert_eq!(exit, Exit::Damaged);
    let value = follows(rules, &text);
    let of = |field: &str| -> Vec<Value> {
        value["traces"].as_array().unwrap().iter().map(|trace| trace[field].clone()).collect()
    };
    assert_eq!(of("state"), ["whole", "truncated", "damaged"]);
    assert_eq!(of("complete"), [true, false, true]);
    assert_eq!(of("bytes"), [file.len(), file.len() / 2, file.len()]);
    assert_eq!(of("findings")[0], json!([]));
    assert_ne!(of("findings")[2], json!([]));
}

#[test]
fn verify_walks_follows_its_schema() {
    let rules = include_str!("../../../schema/walks.schema.json");
    let (text, _) = run(&["verify", "--walks", "--json", &kept_text("mixed.stk")]);
    let value = follows(rules, &text);
    assert!(value["traces"][0]["explicit"]["samples"].as_u64().unwrap() > 1000);
}

#[test]
fn diff_follows_its_schema() {
    let rules = include_str!("../../../schema/diff.schema.json");
    for by in ["function", "stack", "module"] {
        let (text, exit) =
            run(&["diff", "--format", "json", "--by", by, &kept_text("busy.stk"), &kept_text("mixed.stk")]);
        assert_eq!(exit, Exit::Inconclusive);
        let value = follows(rules, &text);
        assert_eq!((&value["verdict"], &value["by"]), (&json!("inconclusive"), &json!(by)));
    }
}

#[test]
fn stats_follow_their_schema() {
    let rules = include_str!("../../../schema/stats.schema.json");
    let (busy, mixed) = (kept_text("busy.stk"), kept_text("mixed.stk"));
    for question in [
        &[][..],
        &["--waiting"],
        &["--tree"],
        &["--callers", "mix", "--weight", "waiting"],
        &["--callees", "main"],
        &["--group-by", "thread", "--top", "3"],
        &["--group-by", "kind,function,line"],
    ] {
        let (text, exit) = run(&[&["stats", "--format", "json", &busy, &mixed], question].concat());
        assert_eq!(exit, Exit::Ok);
        let value = follows(rules, &text);
        let asked = question.first().is_some_and(|first| *first != "--waiting");
        assert_eq!(value.get("sum").is_some(), asked, "{question:?}");
        let answers =
            |of: &Value| ["call_tree", "groups"].iter().filter(|name| of.get(name).is_some()).count();
        assert_eq!(answers(&value["traces"][1]), usize::from(asked), "{question:?}");
    }
}

#[test]
fn symbols_follow_their_schemas() {
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    let (busy, pdb) = (kept_text("busy.stk"), kept_text("busy.pdb"));
    let (text, _) = run(&["symbols", "list", "--json", &busy, "--symbol-cache", cache]);
    let list = follows(include_str!("../../../schema/symbols-list.schema.json"), &text);
    let module = |name: &str| {
        let modules = list["modules"].as_array().unwrap();
        modules.iter().find(|module| module["name"] == name).unwrap().clone()
    };
    assert_eq!(module("busy.exe")["source"], "pdb");
    let system = module("ntdll.dll");
    assert_eq!(system["found"], Value::Null);
    assert!(system["reason"].as_str().unwrap().ends_with("nothing to do"), "{system}");

    let arguments = ["symbols", "lookup", &pdb, "1010", "ffffff", "--json", "--symbol-cache", cache];
    let (text, _) = run(&arguments);
    let rules = include_str!("../../../schema/symbols-lookup.schema.json");
    let lines: Vec<Value> = text.lines().map(|line| follows(rules, line)).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["source"], &lines[1]["source"]), (&json!("pdb"), &json!("none")));
}

#[test]
fn dump_follows_its_schema_with_modules_and_explanations() {
    let rules = include_str!("../../../schema/dump.schema.json");
    let line = ["dump", &kept_text("busy.stk"), "--style", "json", "--modules", "--explain"];
    let (text, exit) = run(&line);
    assert_eq!(exit, Exit::Ok);
    let value = follows(rules, &text);
    let threads = value["threads"].as_array().unwrap().iter();
    let frames: Vec<&Value> = threads.flat_map(|thread| thread["frames"].as_array().unwrap()).collect();
    let facts: Vec<&Value> = frames.iter().filter_map(|frame| frame.get("facts")).collect();
    assert!(facts.len() > 20 && value["modules"].as_array().unwrap().len() > 5, "{}", facts.len());
    // Without a frame register: what is allocated and saved is what is below the return address.
    for frame in frames.iter().filter(|frame| frame["trust"] == "unwind-info") {
        let Some(facts) = frame.get("facts").filter(|facts| facts["type"] == "unwind-info") else { continue };
        let text = frame["explain"]["rule"].as_str().unwrap();
        let Some(offset) = text.strip_prefix("body; return address at [rsp+0x") else { continue };
        let offset = u64::from_str_radix(&offset[..offset.find(']').unwrap()], 16).unwrap();
        let bytes = |name: &str| facts[name].as_u64().unwrap();
        assert!(bytes("locals_bytes") <= offset, "{frame}");
        assert!(offset <= bytes("locals_bytes") + bytes("saved_registers_bytes"), "{frame}");
    }
}

#[test]
fn without_its_pdb_a_module_is_listed_with_the_index_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let cache = cache.to_str().unwrap();
    let trace = folder.path().join("busy.stk");
    std::fs::copy(kept_text("busy.stk"), &trace).unwrap();
    let trace = trace.to_str().unwrap();
    let symbols = kept("");
    let symbols = symbols.to_str().unwrap();
    let list = || -> Value {
        let (text, _) =
            run(&["symbols", "list", "--json", trace, "--no-default-symbols", "--symbol-cache", cache]);
        let value = follows(include_str!("../../../schema/symbols-list.schema.json"), &text);
        let modules = value["modules"].as_array().unwrap();
        modules.iter().find(|module| module["name"] == "busy.exe").unwrap().clone()
    };
    let cold = list();
    assert_eq!((&cold["source"], &cold["index"]), (&Value::Null, &Value::Null));
    // Reading the PDB once keeps its index.
    run(&["stats", trace, "-y", symbols, "--no-default-symbols", "--symbol-cache", cache]);
    let warm = list();
    assert_eq!((&warm["source"], &warm["found"]), (&json!("pdb"), &Value::Null));
    assert!(Path::new(warm["index"].as_str().unwrap()).starts_with(cache), "{warm}");
    let (text, _) = run(&["symbols", "list", trace, "--no-default-symbols", "--symbol-cache", cache]);
    assert!(text.contains("(the index of its PDB, in the symbol cache)"), "{text}");
}
