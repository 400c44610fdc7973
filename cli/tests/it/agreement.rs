//! Every list of one trace beside every other: what `stk stats` prints as text, JSON and CSV, what
//! diff, report, the dataset and the outputs say of the same samples.

use crate::support::{Ran, kept, more_traces, ran_in};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;
use stk_format::BlockKind;
use stk_schema::text::span;
use stk_tests::synth::Parts;

/// Nanoseconds in own code and with callees.
type OwnTotal = [u64; 2];
/// By name and module.
type Functions = BTreeMap<(String, String), OwnTotal>;
/// By name.
type Sums = BTreeMap<String, OwnTotal>;

/// A folder with a trace in it, and what is not equal in its lists so far.
struct Lists {
    folder: tempfile::TempDir,
    trace: String,
    /// `stk stats --json`: what the others are compared with.
    stats: Value,
    found: BTreeSet<(String, String)>,
}

impl Lists {
    fn new(trace: &str, bytes: &[u8]) -> Lists {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.stk"), bytes).unwrap();
        let (trace, found) = (trace.to_owned(), BTreeSet::new());
        let mut lists = Lists { folder, trace, stats: Value::Null, found };
        lists.stats = lists.json(&["stats", "t.stk", "--json", "--top", "0"])["traces"][0].take();
        lists
    }

    fn run(&self, arguments: &[&str]) -> String {
        let symbols = kept("");
        let line = [arguments, &["-y", symbols.to_str().unwrap(), "--no-default-symbols"]].concat();
        let line = if arguments[1].ends_with(".parquet") { arguments } else { &line };
        let Ran { code, out, error } = ran_in(self.folder.path(), line);
        // 4: a damaged trace, as far as it could be read; 7: one trace a side judges nothing.
        assert!(matches!(code, Some(0 | 4 | 7)), "{arguments:?}: {code:?} {error}");
        out
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(arguments)).unwrap()
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, list: &str, what: &str, found: &T, expected: &T) {
        if found != expected {
            eprintln!("{}: {list}: {what}\n   {found:?}\n   {expected:?}", self.trace);
            self.found.insert((list.to_owned(), what.to_owned()));
        }
    }

    /// The weight of the counted samples.
    fn whole(&self) -> u64 {
        self.stats["counted_ns"].as_u64().unwrap()
    }

    fn functions(&self) -> Functions {
        let rows = self.stats["functions_by_total"].as_array().unwrap();
        rows.iter().map(|row| ((text(&row["function"]), text(&row["module"])), own_total(row))).collect()
    }

    fn modules(&self) -> Sums {
        let rows = self.stats["modules"].as_array().unwrap();
        rows.iter().map(|row| (text(&row["module"]), own_total(row))).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

fn own_total(row: &Value) -> OwnTotal {
    ["self", "total"].map(|of| number(&row[of]["weight_ns"]))
}

fn add(sum: &mut OwnTotal, more: OwnTotal) {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

/// The own time by a part of what it is listed by.
fn own_by<K>(rows: &BTreeMap<K, OwnTotal>, of: impl Fn(&K) -> String) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    rows.iter().for_each(|(key, [own, _])| *sums.entry(of(key)).or_default() += own);
    sums.retain(|_, own| *own > 0);
    sums
}

fn all_own<K>(rows: &BTreeMap<K, OwnTotal>) -> u64 {
    rows.values().map(|[own, _]| own).sum()
}

/// A name without what outputs put behind it where several functions share it.
fn base_name(name: &str) -> String {
    match name.rsplit_once(" [") {
        _ if name.starts_with('[') => NO_STACK.to_owned(),
        Some((base, rest)) if rest.ends_with(']') => base.to_owned(),
        _ => name.to_owned(),
    }
}

/// What stands for samples without a stack, whatever an output calls it.
const NO_STACK: &str = "(no stack)";

/// The lists of `stk stats --json` beside each other.
fn of_stats(lists: &mut Lists) {
    let whole = lists.whole();
    let (functions, modules) = (lists.functions(), lists.modules());
    lists.same("stats", "functions add up to the whole", &all_own(&functions), &whole);
    lists.same("stats", "modules add up to the whole", &all_own(&modules), &whole);
    let waits = lists.stats["waits"].as_array().unwrap();
    let waits: u64 = waits.iter().map(|wait| number(&wait["weight_ns"])).sum();
    let states = lists.stats["states"].clone();
    let waiting = number(&states["waiting"]["weight_ns"]);
    lists.same("stats", "waits add up to the waiting state", &waits, &waiting);
    let grouped = groups(lists, "t.stk", &["--group-by", "state", "--weight", "wall"]);
    let name = |state: &str| state.replace('_', "-");
    let states = states.as_object().unwrap().iter();
    let states = states.map(|(state, sum)| (name(state), number(&sum["weight_ns"])));
    let states: BTreeMap<String, u64> = states.filter(|(_, ns)| *ns > 0).collect();
    lists.same("stats --group-by state", "time of a state", &own_by(&grouped, |key| key[0].clone()), &states);
}

/// The groups of a question to a trace or a dataset, by the values of their keys.
fn groups(lists: &Lists, of: &str, question: &[&str]) -> BTreeMap<Vec<String>, OwnTotal> {
    let answer = lists.json(&[&["stats", of, "--json", "--top", "0"], question].concat());
    let answer = if of.ends_with(".parquet") { &answer["sum"] } else { &answer["traces"][0] };
    let rows = answer["groups"]["rows"].as_array().unwrap();
    let of = |row: &Value| (row["values"].as_array().unwrap().iter().map(text).collect(), own_total(row));
    rows.iter().map(of).filter(|(_, sums)| *sums != [0, 0]).collect()
}

/// The text of `stk stats --full`: each function in its place.
fn of_text(lists: &mut Lists) {
    let printed = lists.run(&["stats", "t.stk", "--full", "--top", "0"]);
    let whole = lists.whole();
    for (list, heading) in [("functions_by_self", " own "), ("functions_by_total", " with callees")] {
        let section = printed.split("\n\n").find(|part| {
            let first = part.lines().next().unwrap_or_default();
            first.starts_with("Functions by") && first.contains(heading)
        });
        let found: Vec<String> =
            section.unwrap_or_default().lines().skip(2).map(without_uncertainty).collect();
        let percent = |ns: u64| format!("{:>5.1} %", 100.0 * ns as f64 / whole as f64);
        let line = |row: &Value| {
            let [own, total] = own_total(row);
            let figures =
                format!("  {:>9} {} {:>10} {}", span(own), percent(own), span(total), percent(total));
            format!("{figures}  {}", text(&row["function"]))
        };
        let expected: Vec<String> = lists.stats[list].as_array().unwrap().iter().map(line).collect();
        let same = found.len() == expected.len()
            && found.iter().zip(&expected).all(|(found, expected)| found.starts_with(expected.as_str()));
        lists.same("stats as text", list, &same, &true);
    }
}

/// CSV: by function and by module.
fn of_csv(lists: &mut Lists) {
    let csv = |key: &str| -> BTreeMap<Vec<String>, OwnTotal> {
        let printed = lists.run(&["stats", "t.stk", "--group-by", key, "--format", "csv", "--top", "0"]);
        let rows = printed.lines().skip(1).map(|line| {
            let fields = fields(line);
            let at = fields.len() - 6;
            let number = |field: usize| fields[at + field].parse().unwrap();
            (fields[..at].to_vec(), [number(1), number(3)])
        });
        rows.filter(|(_, sums)| *sums != [0, 0]).collect()
    };
    let (functions, modules) = (csv("function"), csv("module"));
    let pairs: Functions =
        functions.into_iter().map(|(key, sums)| ((key[0].clone(), key[1].clone()), sums)).collect();
    // Programs get an empty name where there is no module, people a text.
    let named = |module: String| if module.is_empty() { "(no module)".to_owned() } else { module };
    let known = lists.functions().into_iter();
    let known: Functions = known.map(|((name, module), sums)| ((name, named(module)), sums)).collect();
    lists.same("stats --group-by function", "functions", &pairs, &known);
    let known =
        own_by(
            &lists.modules(),
            |module| if module.is_empty() { "(no module)".into() } else { module.clone() },
        );
    lists.same("stats --group-by module", "modules", &own_by(&modules, |key| key[0].clone()), &known);
    let of_functions = own_by(&pairs, |(_, module)| module.clone());
    let of_modules = own_by(&modules, |key| key[0].clone());
    lists.same("stats --group-by function", "time of a module", &of_functions, &of_modules);
}

/// The fields of a line of CSV.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in line.trim_end().chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
    }
    fields
}

/// The call tree: its rows' own time by function.
fn of_tree(lists: &mut Lists) {
    let answer = lists.json(&["stats", "t.stk", "--tree", "--json", "--top", "0", "--depth", "1000"]);
    let rows = answer["traces"][0]["call_tree"]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["others"] == 0), "all are shown");
    let mut functions = Functions::new();
    for row in rows {
        let sum = functions.entry((text(&row["function"]), text(&row["module"]))).or_default();
        add(sum, own_total(row));
    }
    let name = |(name, _): &(String, String)| name.clone();
    let known = own_by(&lists.functions(), name);
    lists.same("stats --tree", "own time of a function", &own_by(&functions, name), &known);
    let whole = lists.whole();
    lists.same("stats --tree", "whole", &all_own(&functions), &whole);
}

/// What the block of a page says: own CPU time by function, and that of rows without a stack.
fn of_report(lists: &mut Lists) {
    lists.run(&["report", "t.stk", "-o", "t.html"]);
    let page = std::fs::read_to_string(lists.folder.path().join("t.html")).unwrap();
    let block = page.split_once("class=\"trace\">").unwrap().1.split_once('<').unwrap().0;
    let mut bytes = Vec::new();
    flate2::read::DeflateDecoder::new(&STANDARD.decode(block).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let length = u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize;
    let facts: Value = serde_json::from_slice(&bytes[4..4 + length]).unwrap();
    let mut at = 4 + length;
    let mut columns: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for column in facts["columns"].as_array().unwrap() {
        let (rows, planes) = (number(&column["rows"]) as usize, number(&column["planes"]) as usize);
        let value = |row: usize| {
            (0..planes).map(|plane| u64::from(bytes[at + plane * rows + row]) << (8 * plane)).sum()
        };
        columns.insert(text(&column["name"]), (0..rows).map(value).collect());
        at += rows * planes;
    }
    let names = &facts["functions"]["names"];
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    let mut without = 0;
    for (&node, &cpu_ns) in columns["node"].iter().zip(&columns["cpu"]) {
        match node.checked_sub(1) {
            Some(node) => {
                let function = columns["frame"][node as usize] >> 2;
                *own.entry(text(&names[function as usize])).or_default() += cpu_ns;
            }
            None => without += cpu_ns,
        }
    }
    own.retain(|_, ns| *ns > 0);
    let drawn: u64 = own.values().sum();
    let whole = lists.whole();
    lists.same("report", "rows add up to the whole", &(drawn + without), &whole);
    lists.same("report", "flame graph adds up to the whole", &drawn, &whole);
    let known = own_by(&lists.functions(), |(name, _)| name.clone());
    lists.same("report", "own time of a function", &own, &known);
}

/// Outputs that have stacks: own CPU time by function.
fn of_outputs(lists: &mut Lists) {
    let whole = lists.whole();
    let known = own_by(&lists.functions(), |(name, _)| base_name(name));
    let folded = lists.run(&["convert", "t.stk", "--to", "folded", "-o", "-"]);
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    for line in folded.lines() {
        let (stack, ns) = line.rsplit_once(' ').unwrap();
        let name = base_name(stack.rsplit(';').next().unwrap());
        *own.entry(name).or_default() += ns.parse::<u64>().unwrap();
    }
    lists.same("folded", "whole", &own.values().sum(), &whole);
    lists.same("folded", "own time of a function", &own, &known);
    let speedscope = lists.json(&["convert", "t.stk", "--to", "speedscope", "-o", "-"]);
    let names = &speedscope["shared"]["frames"];
    let profile = &speedscope["profiles"][0];
    let mut own: BTreeMap<String, u64> = BTreeMap::new();
    for (stack, ns) in
        profile["samples"].as_array().unwrap().iter().zip(profile["weights"].as_array().unwrap())
    {
        let leaf = stack.as_array().unwrap().last().unwrap();
        *own.entry(base_name(&text(&names[number(leaf) as usize]["name"]))).or_default() += number(ns);
    }
    lists.same("speedscope", "whole", &own.values().sum(), &whole);
    lists.same("speedscope", "own time of a function", &own, &known);
    let svg = lists.run(&["convert", "t.stk", "--to", "flamegraph", "-o", "-"]);
    let total = svg.split_once("total_samples=\"").unwrap().1.split_once('"').unwrap().0;
    lists.same("flamegraph", "whole", &total.parse().unwrap(), &whole);
}

/// A name without the numbers that C#'s compiler gives closures, which builds differ in.
fn without_numbers(function: &str) -> String {
    let mut name = function.to_owned();
    for before in ["<>c__DisplayClass", ">b__"] {
        if let Some((begin, rest)) = name.split_once(before) {
            let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_');
            name = format!("{begin}{before}{rest}");
        }
    }
    name
}

/// A comparison of the trace with itself: percent of the whole by module, and by function where it
/// has a name.
fn of_diff(lists: &mut Lists) {
    let whole = lists.whole() as f64;
    let percent = |ns: &u64| (100.0 * *ns as f64 / whole * 10.0).round() as i64;
    let diff = |by: &str| {
        let line = ["diff", "t.stk", "t.stk", "--by", by, "--format", "json", "--top", "0"];
        lists.json(&line)["rows"].take()
    };
    let (functions, modules) = (diff("function"), diff("module"));
    let rounded = |row: &Value| (row["base_pct"].as_f64().unwrap() * 10.0).round() as i64;
    let shown = |rows: BTreeMap<String, i64>| -> BTreeMap<String, i64> {
        rows.into_iter().filter(|(_, tenths)| *tenths > 0).collect()
    };
    let of_modules = modules.as_array().unwrap().iter().map(|row| (text(&row["module"]), rounded(row)));
    let known = own_by(&lists.modules(), Clone::clone);
    let known = known.iter().map(|(module, ns)| (module.clone(), percent(ns)));
    lists.same(
        "diff --by module",
        "share of a module",
        &shown(of_modules.collect()),
        &shown(known.collect()),
    );
    let named = functions.as_array().unwrap().iter().filter(|row| !row["function"].is_null());
    let key = |function: &str, module: &str| format!("{module}!{function}");
    let of_functions = named.map(|row| (key(&text(&row["function"]), &text(&row["module"])), rounded(row)));
    let of_functions = shown(of_functions.collect());
    let known: BTreeMap<String, u64> =
        own_by(&lists.functions(), |(function, module)| key(&without_numbers(function), module));
    let known = of_functions.keys().map(|key| (key.clone(), known.get(key).map_or(0, percent))).collect();
    lists.same("diff", "share of a function", &of_functions, &known);
}

/// The dataset of the trace: every key, the waits, and a part of the time.
fn of_dataset(lists: &mut Lists) {
    lists.run(&["convert", "t.stk", "--to", "parquet", "-o", "t.parquet"]);
    for key in ["function", "module", "line", "kind", "thread", "thread-name", "state", "wait-reason"] {
        for weight in ["cpu", "wall"] {
            let question = ["--group-by", key, "--weight", weight];
            let [of_trace, of_dataset] = ["t.stk", "t.parquet"].map(|of| groups(lists, of, &question));
            let list = format!("dataset --group-by {key}");
            if key == "function" {
                let own = |rows| own_by(rows, |key: &Vec<String>| key[0].clone());
                lists.same(&list, "own time of a function", &own(&of_dataset), &own(&of_trace));
            }
            lists.same(&list, "groups", &of_dataset, &of_trace);
        }
    }
    let at = |thirds: u64| format!("{}us", number(&lists.stats["totals"]["duration_ns"]) / 3_000 * thirds);
    let (from, until) = (at(1), at(2));
    let part = ["--group-by", "module", "--from", &from, "--until", &until, "--weight", "wall"];
    let [of_trace, of_dataset] = ["t.stk", "t.parquet"].map(|of| groups(lists, of, &part));
    lists.same("dataset --from --until", "groups", &of_dataset, &of_trace);
    let printed = lists.run(&["stats", "t.parquet", "--top", "0"]);
    let (_, list) = printed.split_once("Waits of all traces\n").unwrap();
    for wait in lists.stats["waits"].as_array().unwrap().clone() {
        let reason = text(&wait["reason"]);
        let line = list.lines().find(|line| line.ends_with(&format!("  {reason}"))).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = (words[..2].join(" "), words[2].replace(',', ""), words[3..5].join(" "));
        let [time, longest] = ["weight_ns", "longest_ns"].map(|of| span(number(&wait[of])));
        lists.same("dataset", "time of a wait", &found.0, &time);
        let [found, expected] = [(found.1, found.2), (number(&wait["waits"]).to_string(), longest)];
        lists.same("dataset", "waits and the longest", &found, &expected);
    }
}

/// A row without the six columns of how uncertain its share is.
fn without_uncertainty(line: &str) -> String {
    let Some((before, behind)) = line.split_once('±') else { return line.to_owned() };
    let digits = behind.find(' ').unwrap();
    let columns = before.chars().count() + 1 + digits;
    line.chars().take(columns - 6).chain(line.chars().skip(columns)).collect()
}

/// `busy.stk` without one block that describes threads and modules, in the middle: what follows has
/// no stacks.
fn damaged() -> Vec<u8> {
    let mut parts = Parts::take_apart(&std::fs::read(kept("busy.stk")).unwrap()).unwrap();
    let metas: Vec<usize> =
        (0..parts.blocks.len()).filter(|&at| parts.blocks[at].header.kind == BlockKind::Meta).collect();
    parts.blocks.remove(metas[metas.len() / 2]);
    parts.to_file()
}

#[test]
fn every_list_agrees_with_every_other() {
    let read = |name: &str| std::fs::read(Path::new(&kept(name))).unwrap();
    let mut found = BTreeSet::new();
    let kept = [("busy", read("busy.stk")), ("mixed", read("mixed.stk")), ("damaged", damaged())];
    let kept = kept.map(|(name, bytes)| (name.to_owned(), bytes));
    let more =
        more_traces().into_iter().map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()));
    for (trace, bytes) in kept.into_iter().chain(more) {
        let mut lists = Lists::new(&trace, &bytes);
        for compare in [of_stats, of_text, of_csv, of_tree, of_report, of_outputs, of_diff, of_dataset] {
            compare(&mut lists);
        }
        println!("measured: {trace}: {} differences between lists", lists.found.len());
        found.extend(lists.found.into_iter().map(|(list, what)| (list, what, trace.clone())));
    }
    assert!(found.is_empty(), "{found:?}");
}

/// The intact trace is the truth: what is assumed of the damaged one may differ from it by little.
#[test]
fn salvage_finds_the_stacks_and_says_what_it_assumes() {
    let intact = Lists::new("busy", &std::fs::read(kept("busy.stk")).unwrap());
    let lists = Lists::new("damaged", &damaged());
    let without = &lists.stats["totals"]["trusted"]["no_stack_ns"];
    assert!(number(without) > lists.whole() / 10, "the loss costs stacks: {without}");
    let notes_with = |stats: &Value, text: &str| {
        stats["notes"].as_array().unwrap().iter().filter(|note| note.as_str().unwrap().contains(text)).count()
    };
    assert_eq!(notes_with(&lists.stats, "--salvage assumes"), 1);
    let printed = lists.run(&["stats", "t.stk"]);
    assert!(printed.contains("--salvage"), "{printed}");
    let salvaged = lists.json(&["stats", "t.stk", "--json", "--top", "0", "--salvage"])["traces"][0].take();
    assert_eq!(notes_with(&salvaged, "with stacks that --salvage assumes"), 1);
    let trusted = &salvaged["totals"]["trusted"];
    assert_eq!(number(&trusted["no_stack_ns"]), 0);
    assert!(
        number(&trusted["proved_ns"]) + number(without) <= lists.whole(),
        "what is assumed is not proved"
    );
    let assumed = salvaged["trusts"].as_array().unwrap().iter().find(|trust| trust["trust"] == "assumed");
    assert_eq!(assumed.unwrap()["proved"], false);
    let own = |stats: &Value| -> BTreeMap<String, u64> {
        let rows = stats["functions_by_self"].as_array().unwrap();
        rows.iter().map(|row| (text(&row["function"]), own_total(row)[0])).collect()
    };
    let (found, expected) = (own(&salvaged), own(&intact.stats));
    for (function, ns) in expected {
        let found = found.get(&function).copied().unwrap_or(0);
        assert!(found.abs_diff(ns) <= intact.whole() / 50, "{function}: {found} of {ns}");
    }
    let printed = lists.run(&["dump", "t.stk", "--salvage"]);
    assert!(printed.contains("(assumed)"), "{printed}");
}
