//! Comparisons of hand-made traces.

use super::*;

/// A trace of an application whose functions take these parts of 1,000 samples. `main` calls all of
/// them. Names without a `!` are of `app.exe`.
fn trace(id: u64, parts: &[(&str, u64)]) -> TraceStacks {
    let naming = |name: &str| if name.starts_with("lib.dll!") { Naming::Export } else { Naming::Symbols };
    let mut functions = vec![function("app.exe", Some("main"), Naming::Symbols)];
    let mut calls = FunctionTree::default();
    let main = calls.call(None, 0);
    let mut stacks = Vec::new();
    for &(name, samples) in parts {
        let (module, short) = name.split_once('!').unwrap_or(("app.exe", name));
        let number = functions.len() as u32;
        functions.push(match short {
            "?" => function(module, None, Naming::None),
            short => function(module, Some(short), naming(name)),
        });
        let NodeId(stack) = calls.call(Some(main), number);
        stacks.push((stack, samples * 1_000_000));
    }
    let samples = parts.iter().map(|part| part.1).sum();
    TraceStacks {
        source: format!("{id}.stk"),
        digest: id,
        process: "app.exe".to_owned(),
        functions,
        calls,
        weights: vec![StackWeights { weight: Weight::Cpu, samples, stacks }],
    }
}

fn function(module: &str, name: Option<&str>, naming: Naming) -> BuildFunction {
    BuildFunction { module: module.to_owned(), name: name.map(stable), naming }
}

fn stable(name: &str) -> String {
    stk_base::model::stable_name(name)
}

const OPTIONS: DiffOptions = DiffOptions {
    by: Axis::Function,
    total: false,
    absolute: false,
    threshold: 1.0,
    confidence: 95.0,
    top: 20,
    stacks: false,
};

/// Four traces of a side: these parts, each a little more or less in every trace.
fn four(first: u64, parts: &[(&str, u64)]) -> Vec<TraceStacks> {
    let of = |i: u64| {
        let parts: Vec<(&str, u64)> = parts
            .iter()
            .enumerate()
            .map(|(at, &(name, n))| (name, n + (7 * i + 3 * at as u64) % 5))
            .collect();
        trace(first + i, &parts)
    };
    (0..4).map(of).collect()
}

fn compare_with(options: DiffOptions, renames: &[&str], sides: [Vec<TraceStacks>; 2]) -> Diff {
    let mut map = Renames::default();
    renames.iter().for_each(|text| map.add(text).unwrap());
    let mut comparison = Comparison::new(options, map);
    let [base, new] = sides;
    base.into_iter().for_each(|trace| comparison.add(Side::Base, trace));
    new.into_iter().for_each(|trace| comparison.add(Side::New, trace));
    comparison.finish()
}

fn compare(base: &[(&str, u64)], new: &[(&str, u64)]) -> Diff {
    compare_with(OPTIONS, &[], [four(1, base), four(11, new)])
}

/// Changes of the rows with these names.
fn changes(diff: &Diff, names: &[&str]) -> Vec<Option<Change>> {
    let row = |name: &&str| diff.rows.iter().find(|row| row.function.as_deref() == Some(*name));
    names.iter().map(|name| row(name).map(|row| row.change)).collect()
}

const BEFORE: &[(&str, u64)] = &[("parse", 300), ("render", 500), ("lib.dll!copy", 200)];

#[test]
fn what_takes_more_is_found_with_its_size() {
    let diff = compare(BEFORE, &[("parse", 450), ("render", 500), ("lib.dll!copy", 200)]);
    assert_eq!(diff.verdict, Verdict::Worse);
    let row = &diff.rows[0];
    assert_eq!((row.function.as_deref(), row.module.as_str()), (Some("parse"), "app.exe"));
    // 300 of 1,000 samples, and 450 of 1,150; the traces have up to 12 samples more.
    assert!((row.base_pct - 30.0).abs() < 0.5 && (row.new_pct - 39.13).abs() < 0.5, "{row:?}");
    assert!(row.low_pct.unwrap() > 1.0 && row.low_pct.unwrap() < row.difference_pct, "{row:?}");
    assert!(row.high_pct.unwrap() > row.difference_pct);
    assert_eq!(changes(&diff, &["parse", "render"]), [Some(Change::Worse), Some(Change::Better)]);
}

#[test]
fn equal_sides_pass_and_noise_is_small() {
    let diff = compare(BEFORE, BEFORE);
    assert_eq!((diff.verdict, diff.inconclusive.len()), (Verdict::Passed, 0));
    assert!(diff.rows.iter().all(|row| row.change == Change::Small), "{:?}", diff.rows);
}

#[test]
fn a_difference_below_the_threshold_does_not_count() {
    let new = [("parse", 450), ("render", 500), ("lib.dll!copy", 200)];
    let options = DiffOptions { threshold: 15.0, ..OPTIONS };
    let diff = compare_with(options, &[], [four(1, BEFORE), four(11, &new)]);
    assert_eq!(diff.verdict, Verdict::Passed);
}

#[test]
fn a_difference_that_may_be_chance_is_not_proved() {
    let base: Vec<TraceStacks> = [100, 300, 500]
        .iter()
        .enumerate()
        .map(|(i, &n)| trace(i as u64, &[("parse", n), ("render", 600)]))
        .collect();
    let new: Vec<TraceStacks> = [200, 500, 700]
        .iter()
        .enumerate()
        .map(|(i, &n)| trace(10 + i as u64, &[("parse", n), ("render", 600)]))
        .collect();
    let diff = compare_with(OPTIONS, &[], [base, new]);
    assert_eq!(diff.verdict, Verdict::Passed);
    assert_eq!(changes(&diff, &["parse"]), [Some(Change::Unproved)]);
}

#[test]
fn two_traces_a_side_are_inconclusive() {
    let mut sides = [four(1, BEFORE), four(11, &[("parse", 900), ("render", 100)])];
    sides[0].truncate(2);
    let diff = compare_with(OPTIONS, &[], sides);
    assert_eq!(diff.verdict, Verdict::Inconclusive);
    assert_eq!(diff.inconclusive, ["base has 2 traces; a judgement needs 3 on each side"]);
    assert!(diff.rows.iter().all(|row| row.change == Change::Unjudged && row.low_pct.is_none()));
    assert!(diff.rows[0].difference_pct.abs() > 40.0, "the figures are there");
}

#[test]
fn copies_of_a_recording_count_once() {
    let copies = vec![trace(1, BEFORE), trace(1, BEFORE), trace(1, BEFORE)];
    let diff = compare_with(OPTIONS, &[], [copies, four(11, BEFORE)]);
    assert_eq!((diff.verdict, diff.base.traces), (Verdict::Inconclusive, 1));
    assert_eq!(diff.notes.len(), 2, "{:?}", diff.notes);
}

#[test]
fn names_that_compilers_number_are_the_same() {
    let base = [("parse::h0123456789abcdef", 300), ("<lambda_12ab>::operator()", 400), ("work", 300)];
    let new = [("parse::hfedcba9876543210", 300), ("<lambda_77ff>::operator()", 400), ("work.cold", 300)];
    let diff = compare(&base, &new);
    assert_eq!((diff.verdict, diff.rows.len()), (Verdict::Passed, 3));
}

#[test]
fn a_renamed_function_is_compared_under_its_new_name() {
    let new = [("parse_all", 300), ("render", 500), ("lib.dll!copy", 200)];
    let diff = compare(BEFORE, &new);
    assert_eq!(changes(&diff, &["parse", "parse_all"]), [Some(Change::Better), Some(Change::Worse)]);
    let diff = compare_with(OPTIONS, &["parse=parse_all", "x=y"], [four(1, BEFORE), four(11, &new)]);
    assert_eq!((diff.verdict, diff.rows.len()), (Verdict::Passed, 3));
    assert_eq!(diff.notes, ["--map x=y: no code of the base has the name before the ="]);
}

#[test]
fn code_whose_names_one_side_lacks_is_unmatched_and_no_regression() {
    let base = [("parse", 300), ("render", 500), ("lib.dll!copy", 200)];
    let new = [("?", 850), ("lib.dll!copy", 200)];
    let diff = compare(&base, &new);
    assert_eq!(diff.verdict, Verdict::Inconclusive);
    assert!(diff.rows.iter().all(|row| row.change != Change::Worse), "{:?}", diff.rows);
    let [module] = diff.unmatched.as_slice() else { panic!("{:?}", diff.unmatched) };
    assert_eq!((module.module.as_str(), module.lacks), ("app.exe", "new"));
    assert_eq!((module.base_named_pct, module.new_named_pct), (100.0, 0.0));
    assert!(diff.inconclusive[0].starts_with("unmatched: new lacks symbols, 8"), "{:?}", diff.inconclusive);
    assert_eq!(changes(&diff, &["parse", "copy"]), [Some(Change::Unmatched), Some(Change::Small)]);
    // Modules need no symbols.
    let options = DiffOptions { by: Axis::Module, ..OPTIONS };
    let diff = compare_with(options, &[], [four(1, &base), four(11, &new)]);
    assert_eq!((diff.verdict, diff.unmatched.len()), (Verdict::Passed, 0));
}

#[test]
fn a_regression_in_named_code_stands_beside_unmatched_code() {
    let base = [("parse", 300), ("other.dll!f", 500), ("lib.dll!copy", 200)];
    let new = [("parse", 600), ("other.dll!?", 500), ("lib.dll!copy", 200)];
    let diff = compare(&base, &new);
    assert_eq!((diff.verdict, diff.inconclusive.len()), (Verdict::Worse, 1));
    assert_eq!(diff.rows[0].function.as_deref(), Some("parse"));
}

#[test]
fn code_that_neither_side_has_names_for_is_one_row_a_module() {
    let diff = compare(&[("lib.dll!?", 300), ("main2", 700)], &[("lib.dll!?", 500), ("main2", 700)]);
    assert_eq!((diff.verdict, diff.unmatched.len()), (Verdict::Worse, 0));
    assert_eq!((diff.rows[0].module.as_str(), &diff.rows[0].function), ("lib.dll", &None));
}

#[test]
fn shares_hide_what_slows_all_code_down_and_times_show_it() {
    let slower = [("parse", 600), ("render", 1000), ("lib.dll!copy", 400)];
    assert_eq!(compare(BEFORE, &slower).verdict, Verdict::Passed);
    let options = DiffOptions { absolute: true, ..OPTIONS };
    let diff = compare_with(options, &[], [four(1, BEFORE), four(11, &slower)]);
    assert_eq!(diff.verdict, Verdict::Worse);
    let whole = &diff.rows[0];
    assert_eq!((whole.function.as_deref(), whole.base_pct), (Some("[all code]"), 100.0));
    assert!((whole.new_pct - 200.0).abs() < 2.0, "{whole:?}");
}

#[test]
fn callees_count_for_their_callers_if_asked() {
    let options = DiffOptions { total: true, ..OPTIONS };
    let diff = compare_with(options, &[], [four(1, BEFORE), four(11, BEFORE)]);
    let main = diff.rows.iter().find(|row| row.function.as_deref() == Some("main")).unwrap();
    assert_eq!((main.base_pct, main.new_pct), (100.0, 100.0));
    let own = compare(BEFORE, BEFORE);
    assert!(own.rows.iter().all(|row| row.function.as_deref() != Some("main")));
}

#[test]
fn stacks_are_compared_whole() {
    let options = DiffOptions { by: Axis::Stack, ..OPTIONS };
    let new = [("parse", 450), ("render", 500), ("lib.dll!copy", 200)];
    let diff = compare_with(options, &[], [four(1, BEFORE), four(11, &new)]);
    assert_eq!((diff.verdict, diff.rows[0].stack.join(";").as_str()), (Verdict::Worse, "main;parse"));
    assert_eq!(diff.rows[0].module, "app.exe");
}

#[test]
fn a_trace_without_cpu_time_has_all_compared_by_samples() {
    let with = |mut trace: TraceStacks, cpu: bool| {
        let mut active = trace.weights[0].clone();
        active.weight = Weight::Active;
        trace.weights.push(active);
        if !cpu {
            trace.weights[0].stacks.clear();
        }
        trace
    };
    let base: Vec<_> = four(1, BEFORE).into_iter().map(|trace| with(trace, true)).collect();
    let new: Vec<_> =
        four(11, BEFORE).into_iter().enumerate().map(|(i, trace)| with(trace, i != 2)).collect();
    let diff = compare_with(OPTIONS, &[], [base.clone(), new]);
    assert_eq!((diff.weight, diff.verdict), (Weight::Active, Verdict::Passed));
    assert_eq!(diff.notes, ["13.stk: has no CPU time; comparing samples, waits left out"]);
    let diff = compare_with(OPTIONS, &[], [base.clone(), base]);
    assert_eq!(diff.weight, Weight::Cpu);
}

/// Texts and attributes of JUnit's elements that a comparison gives, by a reader of XML that knows
/// elements and the five references alone.
fn read_xml(text: &str) -> Vec<(String, Vec<(String, String)>)> {
    let plain = |text: &str| {
        let pairs = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&amp;", "&")];
        pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    };
    let mut open: Vec<String> = Vec::new();
    let mut elements = Vec::new();
    for piece in text.split('<').skip(1) {
        let (tag, _) = piece.split_once('>').unwrap();
        if tag.starts_with('?') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name));
            continue;
        }
        let empty = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let (name, rest) = tag.split_once(' ').unwrap_or((tag, ""));
        let pieces: Vec<&str> = rest.split('"').collect();
        let attributes = pieces.chunks_exact(2);
        let attributes =
            attributes.map(|pair| (pair[0].trim().trim_end_matches('=').to_owned(), plain(pair[1])));
        elements.push((name.to_owned(), attributes.collect()));
        if !empty {
            open.push(name.to_owned());
        }
    }
    assert!(open.is_empty(), "{open:?}");
    elements
}

#[test]
fn junit_reads_back_with_one_failure_a_regression() {
    let new = [("parse", 450), ("op<a&b>\"\u{1}\u{ffff}", 500), ("lib.dll!copy", 200)];
    let diff = compare(BEFORE, &new);
    let elements = read_xml(&junit(&diff));
    let with = |name: &str| elements.iter().filter(|element| element.0 == name).collect::<Vec<_>>();
    let attribute = |element: &(String, Vec<(String, String)>), name: &str| {
        element.1.iter().find(|pair| pair.0 == name).unwrap().1.clone()
    };
    let suite = with("testsuite")[0];
    assert_eq!(
        ["tests", "failures", "errors", "skipped"].map(|name| attribute(suite, name)),
        ["5", "2", "0", "0"]
    );
    assert_eq!((with("testcase").len(), with("failure").len(), with("error").len()), (5, 2, 0));
    let names: Vec<String> = with("testcase").into_iter().map(|case| attribute(case, "name")).collect();
    assert!(names.contains(&"parse".to_owned()), "{names:?}");
    assert!(names.contains(&"op<a&b>\"\\u{1}\\u{ffff}".to_owned()), "{names:?}");
}

#[test]
fn an_inconclusive_comparison_is_an_error_in_junit() {
    let diff = compare_with(OPTIONS, &[], [four(1, BEFORE), vec![trace(11, BEFORE)]]);
    let text = junit(&diff);
    let elements = read_xml(&text);
    assert_eq!(elements.iter().filter(|element| element.0 == "error").count(), 1);
    assert_eq!(elements.iter().filter(|element| element.0 == "skipped").count(), 3, "{text}");
}

#[test]
fn the_flame_graph_shows_more_in_red_and_less_in_blue() {
    let options = DiffOptions { stacks: true, ..OPTIONS };
    let new = [("parse", 450), ("render", 500), ("lib.dll!copy", 200)];
    let diff = compare_with(options, &[], [four(1, BEFORE), four(11, &new)]);
    let svg = String::from_utf8(flame_graph(&diff).unwrap()).unwrap();
    // A frame is a group of a title and a rectangle with its colour.
    let colour = |name: &str| -> Vec<u8> {
        let frame = svg.split("<title>").find(|frame| frame.starts_with(name)).unwrap();
        let rgb = frame.split_once("rgb(").unwrap().1.split_once(')').unwrap().0;
        rgb.split(',').map(|part| part.trim().parse::<u8>().unwrap()).collect()
    };
    let (more, less) = (colour("parse "), colour("render "));
    assert!(more[0] > more[2], "{more:?}");
    assert!(less[2] > less[0], "{less:?}");
    assert!(svg.contains("main (") && !svg.contains("nan"), "{svg}");
    assert_eq!(svg.as_bytes(), flame_graph(&diff).unwrap());
}

#[test]
fn the_result_does_not_depend_on_how_traces_are_numbered() {
    let new = [("parse", 450), ("render", 500), ("lib.dll!copy", 200)];
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| serde_json::to_string(&compare(BEFORE, &new)).unwrap())
    };
    assert_eq!(with(1), with(4));
}
