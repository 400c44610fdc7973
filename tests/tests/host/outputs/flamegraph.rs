//! Flame graphs: the frames that are drawn, and that their widths are the counts of folded stacks.

use super::folded::lines;
use super::profiles::{AWKWARD, Builder, busy};
use std::collections::BTreeMap;
use stk_output::formats::{Format, Options};
use stk_profile::profile::{Placement, Weight};
use stk_profile::stack::StopReason;
use stk_schema::event::RunState;
use stk_unwind::Trust;

fn write(builder: &Builder, options: &Options) -> String {
    builder.write(Format::Flamegraph, options).text()
}

/// The text between two others.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{before} in {text}"));
    rest.split_once(after).unwrap_or_else(|| panic!("{after} in {rest}")).0
}

/// How XML writes the characters that it cannot have as they are.
fn plain(text: &str) -> String {
    [("&quot;", "\""), ("&apos;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")]
        .iter()
        .fold(text.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// The nanoseconds of the whole, and of each drawn frame with its title.
fn frames(svg: &str) -> (u64, Vec<(String, u64)>) {
    let total = between(svg, "total_samples=\"", "\"").parse().expect("a number");
    let frame = |part: &str| {
        let width = between(part, "fg:w=\"", "\"").parse().expect("a number");
        (plain(part.split_once("</title>").expect("a title").0), width)
    };
    (total, svg.split("<g><title>").skip(1).map(frame).collect())
}

/// The name in a frame's title, `name (1,000 µs, 10.00%)`.
fn name(title: &str) -> String {
    title.rsplit_once(" (").expect("figures").0.to_owned()
}

/// The width of each function in each stack, as folded lines give it.
fn widths(folded: &str) -> BTreeMap<Vec<String>, u64> {
    let mut widths = BTreeMap::new();
    for (stack, count) in lines(folded) {
        for depth in 0..=stack.len() {
            *widths.entry(stack[..depth].to_vec()).or_default() += count;
        }
    }
    widths
}

#[test]
fn widths_are_the_counts_of_the_folded_stacks() {
    for weight in [Weight::Wall, Weight::Cpu, Weight::Waiting] {
        let options = Options { weights: vec![weight], ..Options::default() };
        let (total, frames) = frames(&write(&busy(), &options));
        let folded = widths(&busy().write(Format::Folded, &options).text());
        assert_eq!(total, folded[&vec![]], "{weight:?}");
        let mut drawn: Vec<(String, u64)> = frames.iter().map(|(title, ns)| (name(title), *ns)).collect();
        let last = |stack: &[String]| stack.last().map_or("all".to_owned(), Clone::clone);
        let mut counted: Vec<(String, u64)> = folded.iter().map(|(stack, ns)| (last(stack), *ns)).collect();
        drawn.sort();
        counted.sort();
        assert_eq!(drawn, counted, "{weight:?}");
    }
}

#[test]
fn titles_show_microseconds_and_the_share() {
    let (_, frames) = frames(&write(&busy(), &Options::default()));
    let titles: Vec<&str> = frames.iter().map(|(title, _)| title.as_str()).collect();
    assert!(titles.contains(&"all (12,000 µs, 100%)"), "{titles:?}");
    assert!(titles.contains(&"plugin_run [plugin_a.dll] (2,000 µs, 16.67%)"), "{titles:?}");
}

#[test]
fn the_title_says_process_weight_and_selection() {
    let selection = "from 1 s, threads <worker>";
    let options = Options { weights: vec![Weight::Cpu], selection: selection.into(), ..Options::default() };
    let svg = write(&busy(), &options);
    assert_eq!(
        plain(between(between(&svg, "<text id=\"title\"", "/text>"), ">", "<")),
        "busy.exe (pid 4404): CPU time"
    );
    assert_eq!(plain(between(between(&svg, "<text id=\"subtitle\"", "/text>"), ">", "<")), selection);
    assert!(svg.contains("<!--NOTES: stk "), "the source");
    assert!(!write(&busy(), &Options::default()).contains("\"subtitle\""));
}

#[test]
fn a_frame_is_drawn_once_whatever_names_stand_beside_it() {
    let mut b = Builder::new();
    let exe = b.image("busy.exe", 0x1001);
    let mut rva = 0x1000;
    // As text, `main 5` sorts before `main-2;x 5`, and that before `main;x 5`.
    let [main, other, x, awkward, markup, forbidden] =
        ["main", "main-2", "x", AWKWARD, "a<b>&'c'", "\u{fffe}"].map(|name| {
            rva += 0x10;
            b.frame(Placement::Image(exe, rva), Trust::UnwindInfo, &[(name, None, None)])
        });
    let thread = b.thread(1, "");
    let complete = b.stop(StopReason::COMPLETE, "");
    let stacks = [&[main][..], &[other, x], &[main, x], &[main, awkward, markup, forbidden]];
    for (at, stack) in (0..).zip(stacks) {
        let stack = b.stack(stack);
        b.run(thread, Some(stack), complete, at, 1, RunState::Running);
    }
    let (_, frames) = frames(&write(&b, &Options::default()));
    let mut names: Vec<(String, u64)> =
        frames.into_iter().map(|(title, ns)| (name(&title), ns / 1_000_000)).collect();
    names.sort();
    let mut expected = [
        ("all", 4),
        ("main", 3),
        ("main-2", 1),
        ("x", 1),
        ("x", 1),
        ("größe \"q\" \\ \\u{1}\\u{9}\\u{a}\\u{7f}\\u{2028} 😀", 1),
        ("a<b>&'c'", 1),
        (r"\u{fffe}", 1),
    ]
    .map(|(name, ms)| (name.to_owned(), ms));
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn a_profile_without_samples_says_so() {
    let svg = write(&Builder::new(), &Options::default());
    assert!(svg.contains("No sample has this weight."), "{svg}");
    assert!(svg.contains("<!-- stk "), "{svg}");
}
