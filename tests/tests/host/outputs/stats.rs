//! Compares the figures of `stk stats` with sums calculated by hand from the runs of `busy`.

use super::profiles::{AWKWARD, Builder, busy};
use serde_json::{Value, json};
use stk_output::stats::{self, Amount, Length, ManyStats, PrintOptions, Stats, StatsOptions};
use stk_profile::profile::{Placement, Run, Runs, Weight};
use stk_profile::stack::StopReason;
use stk_schema::event::RunState;
use stk_tests::schema;
use stk_unwind::Trust;

fn figures(options: &StatsOptions) -> Stats {
    let b = busy();
    stats::collect(&b.profile, &b.runs, Some(1200), options).expect("figures")
}

/// Lists by the time that samples cover.
const WALL: StatsOptions =
    StatsOptions { top: 20, running_only: false, weight: Some(Weight::Wall), waiting: false };

fn ms(samples: u64) -> Amount {
    Amount { samples, weight_ns: samples * 1_000_000 }
}

#[test]
fn recursion_counts_once_in_total() {
    let stats = figures(&WALL);
    let by_total: Vec<(&str, &str, Amount, Amount)> =
        stats.functions_by_total.iter().map(|f| (&*f.function, &*f.module, f.own, f.total)).collect();
    assert_eq!(
        by_total,
        [
            // All except the incomplete and the lost stack: 3 + 2 + 1 + 2 + 1 + 1.
            ("main", "busy.exe", ms(0), ms(10)),
            // fib > fib for 2, fib (mix inlined) for 1, fib > fib for 1.
            ("fib", "busy.exe", ms(3), ms(4)),
            ("wait", "busy.exe", ms(3), ms(3)),
            ("plugin_run", "plugin_a.dll", ms(2), ms(2)),
            ("plugin_run", "plugin_ä.dll", ms(2), ms(2)),
            ("mix", "busy.exe", ms(1), ms(1)),
        ]
    );
    assert_eq!(stats.functions_by_self[0].function, "fib");
    assert!(stats.functions_by_self.iter().all(|f| f.function != "main"), "no self time, no row");
}

#[test]
fn totals_states_threads_and_modules_add_up() {
    let stats = figures(&WALL);
    assert_eq!(stats.totals.samples, 12);
    assert_eq!(stats.totals.weight_ns, 12_000_000);
    assert_eq!(stats.totals.bytes_per_sample, Some(100.0));
    assert_eq!(stats.totals.distinct_stacks, 7);
    // 7 samples show a thread on a processor or ready, 2 have no complete stack.
    assert_eq!((stats.states.running, stats.states.unknown), (ms(7), ms(2)));
    assert_eq!((stats.states.waiting, stats.states.system_call), (ms(3), ms(0)));
    let threads: Vec<(u32, &str, Amount, u64)> =
        stats.threads.iter().map(|t| (t.tid, &*t.name, t.all, t.cpu_ns)).collect();
    assert_eq!(threads, [(4, "", ms(9), 6_300_000), (8, AWKWARD, ms(3), 0)]);
    let modules: Vec<(&str, Amount, Amount)> =
        stats.modules.iter().map(|m| (&*m.module, m.own, m.total)).collect();
    assert_eq!(
        modules,
        [("busy.exe", ms(7), ms(10)), ("plugin_a.dll", ms(2), ms(2)), ("plugin_ä.dll", ms(2), ms(2))]
    );
}

#[test]
fn stop_reasons_name_the_module_to_blame() {
    let stats = figures(&StatsOptions::default());
    let stops: Vec<(&str, &str, u64)> =
        stats.stops.iter().map(|s| (s.reason.as_str(), &*s.module, s.samples)).collect();
    assert_eq!(
        stops,
        [("thread-start", "", 10), ("no-unwind-data", "plugin_ä.dll", 1), ("stack-lost", "", 1)]
    );
    assert!((stats.stops[0].share - 10.0 / 12.0).abs() < 1e-12);
}

#[test]
fn trusts_count_every_frame_of_every_sample() {
    let stats = figures(&StatsOptions::default());
    let trusts: Vec<(&str, bool, &str, u64)> =
        stats.trusts.iter().map(|t| (t.trust.as_str(), t.proved, &*t.module, t.frames)).collect();
    // An innermost frame for each of the 11 samples with a stack; main in 10 of them and the
    // calling fib in 3.
    assert_eq!(trusts, [("unwind-info", true, "", 13), ("context", true, "", 11)]);
}

#[test]
fn unresolved_frames_are_counted_with_their_cause() {
    let mut b = busy();
    // The address of fib at 0x1204 (1 sample) has no name in this profile. Record the reason.
    let reason = b.profile.symbols.strings.intern("no symbols for plugin");
    let frame = b
        .profile
        .symbols
        .source
        .iter()
        .position(|s| *s == stk_profile::profile::NameSource::None)
        .expect("one");
    b.profile.symbols.reason[frame] = Some(reason);
    let stats = stats::collect(&b.profile, &b.runs, None, &StatsOptions::default()).expect("figures");
    // Depths times samples: 2·2 + 2·1 + 3·2 + 2·1 + 2·2 + 2·1 + 1·1 + 3·1.
    assert_eq!(stats.frames.frames, 24);
    assert_eq!((stats.frames.named, stats.frames.export_only, stats.frames.unresolved), (23, 0, 1));
    let cause = &stats.frames.causes[0];
    assert_eq!(
        (&*cause.module, &*cause.cause, cause.frames, cause.addresses),
        ("busy.exe", "no symbols for plugin", 1, 1)
    );
}

/// The functions of a profile with one sample of each of these frames: module, trust, name, file.
fn functions_of(frames: &[(&str, Trust, &str, &str)]) -> Vec<(String, String, u32, Amount)> {
    let mut b = Builder::new();
    let stop = b.stop(StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    for (i, &(module, trust, name, file)) in frames.iter().enumerate() {
        let known = b.profile.images.iter().position(|image| image.name == module);
        let image = known.map_or_else(|| b.image(module, i as u64), |at| stk_base::model::ImageId(at as u32));
        let place = Placement::Image(image, 16 * i as u32);
        let frame = b.frame(place, trust, &[(name, Some(file), Some(2))]);
        let stack = b.stack(&[frame]);
        b.run(thread, Some(stack), stop, i as u64, 1, RunState::Running);
    }
    let stats = stats::collect(&b.profile, &b.runs, None, &WALL).expect("figures");
    stats.functions_by_self.into_iter().map(|f| (f.function, f.module, f.modules, f.own)).collect()
}

#[test]
fn code_in_a_header_is_one_function_of_each_module() {
    let mix = |module| (module, Trust::Context, "mix", "mix.hpp");
    let row = |module: &str| ("mix".into(), module.into(), 2, ms(1));
    assert_eq!(functions_of(&[mix("x.dll"), mix("y.dll")]), [row("x.dll"), row("y.dll")]);
}

#[test]
fn static_functions_of_one_name_and_guesses_stay_apart_as_in_the_flame_graph() {
    let rows = functions_of(&[
        ("app.exe", Trust::Context, "init", "a/init.c"),
        ("app.exe", Trust::Context, "init", "b/start.c"),
        ("b.dll", Trust::Context, "run", "b/run.c"),
        ("b.dll", Trust::Scan, "run", "b/run.c"),
    ]);
    let names: Vec<(&str, &str)> = rows.iter().map(|row| (&*row.0, &*row.1)).collect();
    assert_eq!(
        names,
        [
            ("init [app.exe, init.c]", "app.exe"),
            ("init [app.exe, start.c]", "app.exe"),
            ("run", "b.dll"),
            ("run [scanned]", "b.dll"),
        ]
    );
    assert!(rows.iter().all(|row| row.2 == 1 && row.3 == ms(1)));
}

#[test]
fn the_rate_is_that_of_the_samples_and_the_time_that_they_cover() {
    let stats = figures(&WALL);
    let rate = (stats.totals.asked_hz, stats.totals.achieved_hz, stats.totals.missed_share);
    assert_eq!(rate, (1000.0, 1000.0, 0.0));
    let mut b = Builder::new();
    let stop = b.stop(StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    b.run(thread, None, stop, 0, 1, RunState::Unknown);
    // The same thread's next sample came 4 ms later.
    let mut runs = Runs::default();
    let slow = |run: &Run| Run { weight_ns: 4_000_000, ..*run };
    let visited: std::io::Result<()> =
        b.runs.for_each(|batch| batch.runs.iter().try_for_each(|run| runs.push(thread, slow(run))));
    visited.expect("runs");
    let totals = stats::collect(&b.profile, &runs, None, &WALL).expect("figures").totals;
    assert_eq!((totals.achieved_hz, totals.missed_share), (250.0, 0.75));
}

#[test]
fn stacks_that_wait_are_listed_with_what_they_wait_for() {
    let stats = figures(&StatsOptions { waiting: true, ..WALL });
    let [wait] = &stats.waits[..] else { panic!("{:?}", stats.waits) };
    let [stack] = &wait.stacks[..] else { panic!("{wait:?}") };
    assert_eq!((stack.samples, stack.weight_ns), (3, 3_000_000));
    assert_eq!(stack.functions, ["main", "wait"]);
    assert_eq!(stack.system, 2, "none of them is the system's");
}

#[test]
fn waiting_samples_can_be_left_out() {
    let stats = figures(&StatsOptions { running_only: true, ..WALL });
    assert_eq!(stats.counted_ns, 9_000_000);
    assert_eq!(stats.states.waiting, ms(3), "they still count in the totals");
    assert!(stats.functions_by_total.iter().all(|f| f.function != "wait"));
}

#[test]
fn lists_count_what_is_requested_and_by_default_cpu_time() {
    let first = |weight| {
        let stats = figures(&StatsOptions { weight, ..StatsOptions::default() });
        let fib = stats.functions_by_self.iter().find(|f| f.function == "fib").expect("a row").own;
        (stats.weight, fib.weight_ns, stats.counted_ns)
    };
    // 3 samples, each for 1 ms, with 0.9 ms of CPU time; 12 and 7 in all.
    assert_eq!(first(None), (Weight::Cpu, 2_700_000, 6_300_000));
    assert_eq!(first(Some(Weight::Wall)), (Weight::Wall, 3_000_000, 12_000_000));
    assert_eq!(first(Some(Weight::Samples)), (Weight::Samples, 3_000_000, 12_000_000));
    assert_eq!(first(Some(Weight::Active)), (Weight::Active, 3_000_000, 9_000_000));
}

#[test]
fn without_cpu_times_samples_that_do_not_wait_are_counted() {
    let mut b = Builder::new();
    let stop = b.stop(StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    b.run(thread, None, stop, 0, 1, RunState::Unknown);
    b.run(thread, None, stop, 1, 2, RunState::Waiting);
    let stats = stats::collect(&b.profile, &b.runs, None, &StatsOptions::default()).expect("figures");
    assert_eq!((stats.weight, stats.counted_ns), (Weight::Active, 1_000_000));
}

#[test]
fn lists_are_cut_at_top() {
    let stats = figures(&StatsOptions { top: 1, ..StatsOptions::default() });
    assert_eq!(stats.functions_by_self.len(), 1);
    assert_eq!(stats.threads.len(), 1);
    assert_eq!(stats.totals.threads, 2);
}

#[test]
fn json_follows_its_schema() {
    let value = json!({"version": stats::VERSION, "traces": [figures(&StatsOptions::default())]});
    let rules: Value =
        serde_json::from_str(include_str!("../../../../schema/stats.schema.json")).expect("schema");
    schema::check(&rules, &value).expect("follows the schema");
    assert_eq!(
        value["traces"][0]["functions_by_self"][0]["self"],
        json!({"samples": 3, "weight_ns": 2_700_000})
    );
    assert_eq!(
        value["traces"][0]["waits"],
        json!([{"reason": "sleep", "class": "idle", "waits": 2, "samples": 3, "weight_ns": 3_000_000, "longest_ns": 2_000_000, "stacks": []}])
    );

    let mut wrong = value.clone();
    wrong["traces"][0]["totals"]["samples"] = json!("many");
    assert!(schema::check(&rules, &wrong).is_err(), "the schema says something");
}

#[test]
fn text_is_aligned_and_harmless_on_a_terminal() {
    let mut text = Vec::new();
    let full = PrintOptions { length: Length::Full, ..PrintOptions::default() };
    stats::print(&figures(&StatsOptions::default()), &mut text, &full).expect("print");
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "names cannot send control characters:\n{text}"
    );
    let expected = include_str!("stats.txt");
    assert_eq!(text, expected, "\n{text}");

    let mut bold = Vec::new();
    let color = PrintOptions { color: true, ..full };
    stats::print(&figures(&StatsOptions::default()), &mut bold, &color).expect("print");
    let bold = String::from_utf8(bold).expect("UTF-8");
    assert_eq!(bold.replace("\x1b[1m", "").replace("\x1b[0m", ""), text);
}

#[test]
fn names_are_cut_by_the_columns_of_the_terminal() {
    let mut figures = figures(&StatsOptions::default());
    figures.functions_by_self[0].function = format!("first{}last", "名".repeat(60));
    figures.functions_by_self[1].function = "busy!known".to_owned();
    figures.functions_by_self[1].module = "busy.exe".to_owned();
    let rows = |columns| {
        let mut text = Vec::new();
        let options = PrintOptions { columns, ..PrintOptions::default() };
        stats::print(&figures, &mut text, &options).expect("print");
        let text = String::from_utf8(text).expect("UTF-8");
        let rows = text.lines().skip_while(|line| !line.starts_with("Functions")).skip(2).take(2);
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    // Unicode, UAX #11: the character takes two columns.
    let wide = |row: &str| row.chars().map(|c| if c == '名' { 2 } else { 1 }).sum::<usize>();
    for columns in [80, 100, 120] {
        let rows = rows(Some(columns));
        assert!(rows[0].contains("first名") && rows[0].contains("…") && rows[0].contains("last"), "{rows:?}");
        // The longest of the modules has 4 columns more, and a character of two columns leaves one
        // free at each side of the cut.
        assert!((columns - 6..=columns).contains(&wide(&rows[0])), "{columns}: {rows:?}");
        assert!(rows[1].ends_with("busy!known"), "its module is not said twice: {rows:?}");
    }
    assert!(rows(None)[0].contains(&"名".repeat(60)), "what is no terminal gets all");
}

#[test]
fn several_traces_are_summed_by_function() {
    let mut many = ManyStats::default();
    let all = StatsOptions { top: usize::MAX, ..StatsOptions::default() };
    many.add(figures(&all));
    many.add(figures(&all));
    let mut text = Vec::new();
    many.print(&mut text, &PrintOptions::default(), 1).expect("print");
    let text = String::from_utf8(text).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.iter().filter(|line| line.starts_with("busy.stk")).count(), 2, "{text}");
    // Twice 12 samples and 6.3 ms; of these, fib has twice 2.7 and 3.6 ms (see stats.txt).
    let sum = lines.iter().find(|line| line.starts_with("2 traces")).expect("a sum");
    assert!(sum.contains(" 12.6 ms ") && sum.contains(" 24 "), "{text}");
    let fib: Vec<&&str> =
        lines.iter().filter(|line| line.contains("busy.exe") && line.contains(" fib ")).collect();
    assert_eq!(fib, [&"    5.40 ms  42.9 %    7.20 ms  57.1 %  fib     busy.exe"], "{text}");
    assert!(!text.contains("plugin_run"), "one row of functions: {text}");
}
