//! Folded stacks: their text, and that their counts are those of the other outputs.

use super::profiles::{AWKWARD, Builder, busy};
use std::collections::BTreeMap;
use stk_output::formats::{Format, Options};
use stk_profile::profile::{Placement, Weight};
use stk_profile::stack::StopReason;
use stk_schema::event::RunState;
use stk_unwind::Trust;

fn write(builder: &Builder) -> String {
    builder.write(Format::Folded, &Options::default()).text()
}

/// The lines as flamegraph.pl reads them: the last word is the count, `;` is between the names.
pub(crate) fn lines(text: &str) -> Vec<(Vec<String>, u64)> {
    let line = |line: &str| {
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        (stack.split(';').map(str::to_owned).collect(), count.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

/// Nanoseconds by stack of what folded lines count.
pub(crate) fn counts(builder: &Builder, weight: Weight) -> BTreeMap<Vec<String>, u64> {
    let options = Options { weights: vec![weight], ..Options::default() };
    lines(&builder.write(Format::Folded, &options).text()).into_iter().collect()
}

/// Nanoseconds by stack in speedscope's file, all threads together; times without samples are left
/// out.
fn sums(builder: &Builder) -> BTreeMap<Vec<String>, u64> {
    let options = Options { all_threads: true, ..Options::default() };
    let file = builder.write(Format::Speedscope, &options).json();
    let frames = &file["shared"]["frames"];
    let mut sums = BTreeMap::new();
    // The first profile is the sum of the others.
    for profile in file["profiles"].as_array().expect("profiles").iter().skip(1) {
        let samples = profile["samples"].as_array().expect("samples").iter();
        for (stack, weight) in samples.zip(profile["weights"].as_array().expect("weights")) {
            let frames = stack.as_array().expect("stack").iter().map(|i| {
                frames[i.as_u64().expect("index") as usize]["name"].as_str().expect("name").to_owned()
            });
            let stack: Vec<String> = frames.collect();
            if !stack.is_empty() {
                *sums.entry(stack).or_default() += weight.as_u64().expect("weight");
            }
        }
    }
    sums
}

/// A builder, and a maker of frames without source files in its one image.
fn plain() -> (Builder, impl FnMut(&mut Builder, &str) -> stk_profile::profile::FrameId) {
    let mut b = Builder::new();
    let exe = b.image("busy.exe", 0x1001);
    let mut rva = 0x1000;
    (b, move |b: &mut Builder, name: &str| {
        rva += 0x10;
        b.frame(Placement::Image(exe, rva), Trust::UnwindInfo, &[(name, None, None)])
    })
}

#[test]
fn each_distinct_stack_is_a_line_with_its_nanoseconds() {
    assert_eq!(
        write(&busy()),
        "\
[incomplete stack: no-unwind-data in plugin_ä.dll];plugin_run [plugin_ä.dll] 1000000
[incomplete stack: stack-lost] 1000000
main;fib;fib 3000000
main;fib;mix 1000000
main;plugin_run [plugin_a.dll] 2000000
main;plugin_run [plugin_ä.dll] 1000000
main;wait 3000000
"
    );
}

#[test]
fn counts_are_those_of_the_speedscope_file() {
    let (mut b, mut frame) = plain();
    let (main, work, rest) = (frame(&mut b, "main"), frame(&mut b, "work"), frame(&mut b, "rest"));
    let (one, two) = (b.thread(1, ""), b.thread(2, ""));
    let complete = b.stop(StopReason::COMPLETE, "");
    let (short, long, other) = (b.stack(&[main]), b.stack(&[main, work]), b.stack(&[main, rest]));
    b.run(one, Some(long), complete, 0, 4, RunState::Running);
    // The clock went back by a millisecond.
    b.run(one, Some(short), complete, 3, 3, RunState::Running);
    b.run(one, Some(other), complete, 4, 1, RunState::Running);
    b.run(two, Some(long), complete, 1, 2, RunState::Waiting);
    let text = write(&b);
    assert_eq!(text, "main 2000000\nmain;work 6000000\n");
    for builder in [b, busy()] {
        let of_folded: BTreeMap<Vec<String>, u64> = lines(&write(&builder)).into_iter().collect();
        assert_eq!(of_folded, sums(&builder));
    }
}

#[test]
fn names_cannot_end_a_field_or_a_line() {
    let (mut b, mut frame) = plain();
    let names = ["main;gain", AWKWARD, "line\nbreak", "take 2"];
    let frames = names.map(|name| frame(&mut b, name));
    let thread = b.thread(1, "");
    let complete = b.stop(StopReason::COMPLETE, "");
    let stack = b.stack(&frames);
    b.run(thread, Some(stack), complete, 0, 1, RunState::Running);
    let text = write(&b);
    let shown = [
        r"main\u{3b}gain",
        "größe \"q\" \\ \\u{1}\\u{9}\\u{a}\\u{7f}\\u{2028} 😀",
        r"line\u{a}break",
        r"take\u{20}2",
    ];
    assert_eq!(lines(&text), [(shown.map(str::to_owned).to_vec(), 1_000_000)]);
}

#[test]
fn a_profile_without_samples_is_an_empty_file() {
    assert_eq!(write(&Builder::new()), "");
}
