//! `stk stats --tree`, `--callers`, `--callees`, `--group-by`: figures that a person can add up,
//! and sums that must agree on the kept traces.

use crate::profiles::{AWKWARD, busy};
use crate::support::kept_text;
use serde_json::Value;
use std::collections::HashMap;
use stk::commands::{Exit, answer};
use stk_output::stats::{
    Amount, Answer, GroupKey, ManyStats, PrintOptions, Question, SortBy, StatsOptions, Subject, TreeLimits,
    collect_with, print_answer, with_modules,
};
use stk_profile::profile::Weight;

/// Everything that a tree has.
const ALL: TreeLimits =
    TreeLimits { functions: usize::MAX, lines: usize::MAX, depth: usize::MAX, least: 0.0 };

fn question(subject: Subject, limits: TreeLimits) -> Question {
    Question { subject, limits, sort: SortBy::Own, top: usize::MAX }
}

fn groups_by(keys: &[GroupKey]) -> Question {
    question(Subject::Groups(with_modules(keys)), ALL)
}

/// The answer of the profile `busy`, by CPU time unless another weight is given.
fn of_busy(question: &Question, weight: Option<Weight>) -> Answer {
    let b = busy();
    let options = StatsOptions { weight, ..StatsOptions::default() };
    let (_, sums) = collect_with(&b.profile, &b.runs, None, &options, Some(question)).unwrap();
    sums.unwrap().answer(question)
}

/// Rows as `depth function self total`, amounts as samples and microseconds.
fn tree_of(answer: &Answer) -> Vec<String> {
    let Answer::CallTree(tree) = answer else { panic!("{answer:?}") };
    let amount = |Amount { samples, weight_ns }: Amount| format!("{samples}/{}", weight_ns / 1000);
    let name = |row: &stk_output::stats::TreeRow| match row.others {
        0 => row.function.clone(),
        others => format!("+{others}"),
    };
    let rows = tree.rows.iter();
    rows.map(|row| format!("{} {} {} {}", row.depth, name(row), amount(row.own), amount(row.total))).collect()
}

// What `busy` does, by the comment beside it: a sample that ran has 900 us of CPU time. Thread 4 is
// twice in main > fib > fib, once in main > fib > mix, twice in plugin_run of plugin_a, once in
// that of plugin_ä, once more in that without main, once without a stack, and once in main > fib >
// fib. Thread 8 waits thrice in main > wait.

#[test]
fn a_tree_has_every_sample_once_and_its_rows_add_up() {
    let all = of_busy(&question(Subject::Tree, ALL), None);
    assert_eq!(
        tree_of(&all),
        [
            "0 main 0/0 10/6300",
            "1 fib 0/0 4/3600",
            "2 fib 3/2700 3/2700",
            "2 mix 1/900 1/900",
            "1 plugin_run 2/1800 2/1800",
            "1 plugin_run 1/900 1/900",
            "1 wait 3/0 3/0",
            "0 (no stack) 1/0 1/0",
            "0 plugin_run 1/0 1/0",
        ]
    );
}

#[test]
fn the_heaviest_functions_are_shown_and_the_others_summed() {
    let of = |limits| tree_of(&of_busy(&question(Subject::Tree, limits), None));
    let top = of(TreeLimits { functions: 3, ..ALL });
    let heaviest = [
        "0 main 0/0 10/6300",
        "1 fib 0/0 4/3600",
        "2 fib 3/2700 3/2700",
        "2 +1 0/0 1/900",
        "1 +3 0/0 6/2700",
        "0 +2 0/0 2/0",
    ];
    assert_eq!(top, heaviest);
    let flat = of(TreeLimits { depth: 1, ..ALL });
    assert_eq!(
        flat,
        ["0 main 0/0 10/6300", "1 +4 0/0 10/6300", "0 (no stack) 1/0 1/0", "0 plugin_run 1/0 1/0"]
    );
    let heavy = of(TreeLimits { least: 0.4, ..ALL });
    assert_eq!(heavy[..3], heaviest[..3], "2.7 of 6.3 ms are 43 %");
    assert_eq!(heavy.len(), heaviest.len());
    // The line of the other roots, main, fib with the line of the others.
    let low = of(TreeLimits { lines: 4, ..ALL });
    assert_eq!(low, ["0 main 0/0 10/6300", "1 fib 0/0 4/3600", "2 +2 0/0 4/3600", heaviest[4], heaviest[5]]);
}

#[test]
fn callers_go_outwards_from_every_function_that_matches() {
    let callers = |pattern: &str| {
        let subject = Subject::Callers(pattern.parse().unwrap());
        let answer = of_busy(&question(subject, ALL), None);
        let Answer::CallTree(tree) = &answer else { panic!("{answer:?}") };
        (tree.roots, tree.whole.weight_ns / 1000, tree_of(&answer))
    };
    let (roots, whole, rows) = callers("^plugin_run$");
    assert_eq!((roots, whole), (2, 2700));
    // "self": of stacks that begin there.
    assert_eq!(
        rows,
        ["0 plugin_run 0/0 2/1800", "1 main 2/1800 2/1800", "0 plugin_run 1/0 2/900", "1 main 1/900 1/900"]
    );
    let (roots, whole, rows) = callers("^fib$");
    assert_eq!((roots, whole), (1, 3600), "recursion counts once");
    assert_eq!(rows, ["0 fib 0/0 4/3600", "1 main 4/3600 4/3600"]);
    let (roots, whole, rows) = callers("^(fib|mix)$");
    assert_eq!((roots, whole), (2, 3600), "mix is called by fib: its time is in the whole once");
    assert_eq!(rows[2..], ["0 mix 0/0 1/900", "1 fib 0/0 1/900", "2 main 1/900 1/900"]);
    assert_eq!(callers("^none$"), (0, 0, Vec::new()));
}

#[test]
fn callees_are_summed_over_all_callers() {
    let subject = Subject::Callees("^fib$".parse().unwrap());
    let rows = tree_of(&of_busy(&question(subject, ALL), None));
    assert_eq!(rows, ["0 fib 0/0 4/3600", "1 fib 3/2700 3/2700", "1 mix 1/900 1/900"]);
}

/// Groups as `values self total waits`, in samples.
fn groups_of(answer: &Answer) -> Vec<String> {
    let Answer::Groups(groups) = answer else { panic!("{answer:?}") };
    let row = |row: &stk_output::stats::GroupRow| {
        let samples = [row.own, row.total, row.waits].map(|amount| amount.samples.to_string());
        format!("{} {}", row.values.join(", "), samples.join(" "))
    };
    groups.rows.iter().map(row).collect()
}

#[test]
fn groups_have_each_sample_once_in_self_and_at_most_once_in_total() {
    let by = |keys: &[GroupKey]| groups_of(&of_busy(&groups_by(keys), Some(Weight::Wall)));
    // All but the lost stack have a frame; main is above the wait.
    assert_eq!(by(&[GroupKey::Kind]), ["native 8 11 3", "kernel-wait 3 3 3", "(no stack) 1 1 0"]);
    assert_eq!(
        by(&[GroupKey::Module]),
        ["busy.exe 7 10 3", "plugin_a.dll 2 2 0", "plugin_ä.dll 2 2 0", "(no stack) 1 1 0"]
    );
    assert_eq!(
        by(&[GroupKey::Line]),
        [
            r"C:\src\busy.cpp:20 3 3 3",
            "busy.exe (no line) 3 3 0",
            r"C:\src\plugin_a.cpp:5 2 2 0",
            r"C:\src\plugin_b.cpp:7 2 2 0",
            "(no stack) 1 1 0",
            r"C:\src\mix.hpp:3 1 1 0",
            r"C:\src\busy.cpp:10 0 7 3",
            r"C:\src\busy.cpp:12 0 3 0",
            r"C:\src\busy.cpp:31 0 3 0",
            r"C:\src\busy.cpp:33 0 1 0",
        ]
    );
    assert_eq!(by(&[GroupKey::Thread]), ["thread 4 9 9 0".to_owned(), format!("{AWKWARD} (8) 3 3 3")]);
    assert_eq!(by(&[GroupKey::ThreadName])[0], "(no name) 9 9 0");
    assert_eq!(by(&[GroupKey::Host, GroupKey::Process]), ["lab-7, busy.exe 12 12 3"]);
    let both = by(&[GroupKey::ThreadName, GroupKey::Function]);
    assert!(both.contains(&format!("{AWKWARD}, main, busy.exe 0 3 3")), "{both:?}");
    assert!(both.contains(&"(no name), main, busy.exe 0 7 0".to_owned()), "{both:?}");
    assert!(both.contains(&"(no name), fib, busy.exe 3 4 0".to_owned()), "recursion counts once: {both:?}");
}

#[test]
fn lists_are_sorted_as_asked() {
    let first = |sort| {
        let asked = Question { sort, ..groups_by(&[GroupKey::Function]) };
        groups_of(&of_busy(&asked, None)).remove(0)
    };
    assert_eq!(first(SortBy::Own), "fib, busy.exe 3 4 0");
    assert_eq!(first(SortBy::Total), "main, busy.exe 0 10 3");
    assert_eq!(first(SortBy::Waits), "main, busy.exe 0 10 3");
    assert_eq!(first(SortBy::Name), "(no stack), (no stack) 1 1 0");
    let asked = Question { top: 1, ..groups_by(&[GroupKey::Function]) };
    let Answer::Groups(groups) = of_busy(&asked, None) else { panic!() };
    // fib is listed, with 3 samples of 12 and 2.7 ms of 6.3.
    assert_eq!((groups.others, groups.others_self), (6, Amount { samples: 9, weight_ns: 3_600_000 }));
}

#[test]
fn answers_are_printed_as_a_person_reads_them() {
    let print = |question: &Question, columns| {
        let b = busy();
        let options = StatsOptions::default();
        let (stats, sums) = collect_with(&b.profile, &b.runs, None, &options, Some(question)).unwrap();
        let mut text = Vec::new();
        let look = PrintOptions { columns, ..PrintOptions::default() };
        print_answer(&stats, &sums.unwrap().answer(question), &mut text, &look).unwrap();
        String::from_utf8(text).unwrap()
    };
    let mut text = print(&question(Subject::Tree, ALL), None);
    let callers = Subject::Callers("^(mix|plugin_run)$".parse().unwrap());
    text += &print(&question(callers, ALL), Some(70));
    text += &print(&groups_by(&[GroupKey::Function]), Some(80));
    text += &print(&groups_by(&[GroupKey::ThreadName]), Some(80));
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
    assert_eq!(text, include_str!("questions.txt"), "\n{text}");
}

#[test]
fn several_traces_have_the_sum_of_their_answers() {
    for asked in [question(Subject::Tree, ALL), groups_by(&[GroupKey::ThreadName, GroupKey::Line])] {
        let mut many = ManyStats::default();
        for _ in 0..3 {
            let b = busy();
            let options = StatsOptions::default();
            let (stats, sums) = collect_with(&b.profile, &b.runs, None, &options, Some(&asked)).unwrap();
            many.add(stats);
            many.add_to_answer(sums.unwrap());
        }
        let (one, sum) = (of_busy(&asked, None), many.sum(&asked));
        assert_eq!((sum.traces, sum.samples, sum.cpu_ns, sum.counted_ns), (3, 36, 18_900_000, 18_900_000));
        let times_three = |answer: Answer| {
            let mut value = serde_json::to_value(answer).unwrap();
            multiply(&mut value, 3);
            value
        };
        assert_eq!(serde_json::to_value(sum.answer.unwrap()).unwrap(), times_three(one));
    }
}

/// Multiplies all amounts of an answer.
fn multiply(value: &mut Value, by: u64) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| multiply(value, by)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), value.as_u64()) {
                    ("samples" | "weight_ns", Some(number)) => *value = (number * by).into(),
                    _ => multiply(value, by),
                }
            }
        }
        _ => {}
    }
}

// The kept traces.

fn stk(arguments: &[&str]) -> String {
    let (text, exit) = answer(["stats"].iter().chain(arguments).map(Into::into)).unwrap();
    assert_eq!(exit, Exit::Ok, "{arguments:?}");
    text
}

/// The entry of the only trace.
fn json(arguments: &[&str]) -> Value {
    let text = stk(&[arguments, &["--json", "--top", "0"]].concat());
    serde_json::from_str::<Value>(&text).unwrap()["traces"][0].take()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn amount(value: &Value) -> (u64, u64) {
    (number(&value["samples"]), number(&value["weight_ns"]))
}

fn add(sum: &mut (u64, u64), more: (u64, u64)) {
    *sum = (sum.0 + more.0, sum.1 + more.1);
}

/// Checks that each row is the sum of those below it. Returns the sum of the roots.
fn adds_up(tree: &Value) -> (u64, u64) {
    let rows = tree["rows"].as_array().unwrap();
    let mut below: Vec<(u64, u64)> = rows.iter().map(|row| amount(&row["self"])).collect();
    let mut roots = (0, 0);
    for row in rows {
        match row["parent"].as_u64() {
            Some(parent) => {
                assert_eq!(number(&row["depth"]), number(&rows[parent as usize]["depth"]) + 1);
                add(&mut below[parent as usize], amount(&row["total"]));
            }
            None => add(&mut roots, amount(&row["total"])),
        }
    }
    for (row, below) in rows.iter().zip(below) {
        let expected = amount(&row["total"]);
        assert!(number(&row["others"]) > 0 || below == expected, "{row}: {below:?}");
    }
    roots
}

#[test]
fn tree_list_and_header_have_the_same_cpu_time() {
    for trace in ["busy.stk", "mixed.stk"] {
        let trace = kept_text(trace);
        for limits in [&["--top", "0"][..], &["--top", "9"], &["--depth", "3"]] {
            let text = stk(&[&[&trace, "--tree", "--json"], limits].concat());
            let stats = serde_json::from_str::<Value>(&text).unwrap()["traces"][0].take();
            let roots = adds_up(&stats["call_tree"]);
            let totals = &stats["totals"];
            assert_eq!(roots, (number(&totals["samples"]), number(&totals["cpu_ns"])), "{trace} {limits:?}");
        }
        let tree = json(&[&trace, "--tree"]);
        // Self times by function, from the tree and from the list.
        let mut by_tree: HashMap<(String, String), (u64, u64)> = HashMap::new();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        for row in tree["call_tree"]["rows"].as_array().unwrap() {
            let key = (text(&row["function"]), text(&row["module"]));
            add(by_tree.entry(key).or_default(), amount(&row["self"]));
        }
        by_tree.retain(|_, own| own.1 > 0);
        let by_list: HashMap<_, _> = tree["functions_by_self"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| ((text(&row["function"]), text(&row["module"])), amount(&row["self"])))
            .collect();
        assert_eq!(by_tree, by_list, "{trace}");
    }
}

#[test]
fn every_list_has_the_header_s_cpu_time_and_csv_has_the_figures_of_json() {
    let of_busy = ["function", "module", "thread", "thread-name", "host,process,function"];
    let of_mixed = ["line", "kind", "thread,kind"];
    for (trace, keys) in [("busy.stk", &of_busy[..]), ("mixed.stk", &of_mixed)] {
        let trace = kept_text(trace);
        for keys in keys.iter().copied() {
            let stats = json(&[&trace, "--group-by", keys]);
            let groups = &stats["groups"];
            let rows = groups["rows"].as_array().unwrap();
            let mut own = (0, 0);
            rows.iter().for_each(|row| add(&mut own, amount(&row["self"])));
            let totals = &stats["totals"];
            assert_eq!(own, (number(&totals["samples"]), number(&totals["cpu_ns"])), "{trace} {keys}");
            let expected: Vec<Vec<String>> = rows
                .iter()
                .map(|row| {
                    let values = row["values"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|value| value.as_str().unwrap().to_owned());
                    let amounts = ["self", "total", "waits"].into_iter().flat_map(|of| {
                        let (samples, weight_ns) = amount(&row[of]);
                        [samples.to_string(), weight_ns.to_string()]
                    });
                    values.chain(amounts).collect()
                })
                .collect();
            let csv = stk(&[&trace, "--group-by", keys, "--format", "csv"]);
            let mut lines = csv_lines(&csv);
            let names = lines.remove(0);
            assert_eq!(
                names[names.len() - 6..],
                [
                    "self_samples",
                    "self_weight_ns",
                    "total_samples",
                    "total_weight_ns",
                    "waits_samples",
                    "waits_weight_ns"
                ]
            );
            assert_eq!(lines, expected, "{trace} {keys}");
        }
    }
}

/// The fields of CSV, by the grammar of RFC 4180.
fn csv_lines(text: &str) -> Vec<Vec<String>> {
    let (mut lines, mut line, mut field) = (Vec::new(), Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => quoted = !quoted,
            _ if quoted => field.push(c),
            ',' => line.push(std::mem::take(&mut field)),
            '\r' => {
                assert_eq!(chars.next(), Some('\n'));
                line.push(std::mem::take(&mut field));
                lines.push(std::mem::take(&mut line));
            }
            c => field.push(c),
        }
    }
    assert!(field.is_empty() && line.is_empty() && !quoted, "the last line has its end");
    lines
}

#[test]
fn callers_and_callees_have_the_total_of_their_function() {
    for (trace, pattern) in
        [("busy.stk", "^mix$"), ("busy.stk", "^recurse_odd$"), ("mixed.stk", "^NtSetEvent$")]
    {
        let trace = kept_text(trace);
        for direction in ["--callers", "--callees"] {
            let stats = json(&[&trace, direction, pattern]);
            let function = pattern.trim_matches(['^', '$']);
            let list = stats["functions_by_total"].as_array().unwrap();
            // A function of a header is one of each module.
            let rows = list.iter().filter(|row| row["function"] == function);
            let total = rows.map(|row| amount(&row["total"]));
            let total = total.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
            let tree = &stats["call_tree"];
            assert!(total.1 > 0);
            assert_eq!((adds_up(tree), amount(&tree["whole"])), (total, total), "{direction} {pattern}");
        }
    }
}

#[test]
fn the_sum_of_two_traces_is_that_of_each() {
    let (busy, mixed) = (kept_text("busy.stk"), kept_text("mixed.stk"));
    let keys = ["--group-by", "host,process,function", "--format", "csv"];
    let rows = |traces: &[&str]| {
        let mut sums: HashMap<Vec<String>, Vec<u64>> = HashMap::new();
        for trace in traces {
            for mut line in csv_lines(&stk(&[&[*trace], &keys[..]].concat())).into_iter().skip(1) {
                let figures = line.split_off(line.len() - 6);
                sums.insert(line, figures.iter().map(|figure| figure.parse().unwrap()).collect());
            }
        }
        sums
    };
    let text = stk(&[&[busy.as_str(), &mixed], &keys[..]].concat());
    let mut both: HashMap<Vec<String>, Vec<u64>> = HashMap::new();
    for mut line in csv_lines(&text).into_iter().skip(1) {
        let figures = line.split_off(line.len() - 6);
        both.insert(line, figures.iter().map(|figure| figure.parse().unwrap()).collect());
    }
    assert_eq!(both, rows(&[&busy, &mixed]), "the processes differ, so no row is of both");

    let text = stk(&[&busy, &mixed, "--tree", "--json", "--top", "0"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let mut of_each = (0, 0);
    for trace in document["traces"].as_array().unwrap() {
        add(&mut of_each, adds_up(&trace["call_tree"]));
    }
    assert_eq!(adds_up(&document["sum"]["call_tree"]), of_each);
    assert_eq!((number(&document["sum"]["samples"]), number(&document["sum"]["cpu_ns"])), of_each);
}

#[test]
fn sparklines_have_the_cpu_time_of_their_threads() {
    let stats = json(&[&kept_text("mixed.stk"), "--group-by", "thread"]);
    let sum = |timeline: &Value| -> u64 {
        timeline["cpu_ns"].as_array().unwrap().iter().filter_map(Value::as_u64).sum()
    };
    for thread in stats["threads"].as_array().unwrap() {
        assert_eq!(sum(&thread["timeline"]), number(&thread["cpu_ns"]), "{thread}");
    }
    for row in stats["groups"]["rows"].as_array().unwrap() {
        assert_eq!(sum(&row["timeline"]), number(&row["self"]["weight_ns"]), "{row}");
    }
}

#[test]
fn wrong_questions_are_refused() {
    let trace = kept_text("busy.stk");
    for (arguments, says) in [
        (&["--tree", "--group-by", "line"][..], "cannot be used with"),
        (&["--callers", "("], "invalid value '(' for '--callers <RE>'"),
        (&["--group-by", "colour"], "invalid value 'colour'"),
        (&["--depth", "3"], "--depth is for --tree, --callers and --callees"),
        (&["--sort", "waits"], "--group-by"),
    ] {
        let error = answer(["stats", &trace].iter().chain(arguments).map(Into::into)).unwrap_err();
        assert!(error.to_string().contains(says), "{arguments:?}: {error}");
    }
}

#[test]
fn callers_are_the_programs_own_functions() {
    let (trace, symbols) = (kept_text("busy.stk"), kept_text(""));
    let of = |thread: &str| {
        let entry = json(&[
            &trace,
            "-y",
            &symbols,
            "--thread",
            thread,
            "--weight",
            "waiting",
            "--group-by",
            "wait-reason,caller",
        ]);
        let waits = |row: &&Value| number(&row["self"]["weight_ns"]) > 0;
        let rows = entry["groups"]["rows"].as_array().unwrap();
        rows.iter().filter(waits).map(|row| row["values"].clone()).collect::<Vec<_>>()
    };
    // What these threads of examples/busy call Sleep from.
    assert_eq!(of("^main$"), [serde_json::json!(["sleep", "run_parts"])]);
    assert_eq!(of("^leaf loops$"), [serde_json::json!(["sleep", "`anonymous namespace'::leaves_main"])]);
}

#[test]
fn groups_of_whole_traces_have_the_means_of_their_traces() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = folder.path().join("lab.parquet");
    let (busy, mixed, dataset) = (kept_text("busy.stk"), kept_text("mixed.stk"), dataset.to_str().unwrap());
    let convert = ["convert", &busy, &mixed, "--to", "parquet", "-o", dataset];
    assert_eq!(answer(convert.map(Into::into)).unwrap().1, Exit::Ok);
    let each = [&busy, &mixed].map(|trace| json(&[trace]));
    let sum = |of: &str| each.iter().map(|trace| number(&trace["totals"][of])).sum::<u64>();
    for files in [&[busy.as_str(), mixed.as_str()][..], &[dataset]] {
        let line = |key| [files, &["--group-by", key]].concat();
        let text = stk(&[&line("host")[..], &["--json"]].concat());
        let row = serde_json::from_str::<Value>(&text).unwrap()["sum"]["groups"]["rows"][0].take();
        assert_eq!(
            (number(&row["recorded"]["traces"]), number(&row["self"]["weight_ns"])),
            (2, sum("cpu_ns"))
        );
        assert_eq!(number(&row["recorded"]["duration_ns"]), sum("duration_ns"), "{files:?}");
        let text = stk(&line("host"));
        let row = text.lines().last().unwrap();
        let mean = stk_schema::text::span(sum("cpu_ns") / 2);
        let processor = format!("{:.1} %", 100.0 * sum("cpu_ns") as f64 / sum("duration_ns") as f64);
        assert!(row.contains(&format!("  {mean}  ")) && row.contains(&format!(" {processor}  ")), "{text}");
        assert!(!stk(&line("thread-name")).contains("per trace"));
    }
}
