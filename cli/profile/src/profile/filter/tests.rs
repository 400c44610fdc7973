//! Selections of a profile made by hand.

use super::*;
use crate::image::{ImageSearch, load_images};
use crate::profile::{
    Activity, BuildOptions, FrameFacts, FrameId, FrameKey, FrameKind, Functions, ImageId, NameSource,
    NamedFrame, Node, NodeId, Placement, RunFlags, StopId, ThreadInfo, Wait, build, fold,
};
use crate::stack::{FoldOptions, FrameChoice};
use crate::trace::Trace;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use stk_base::model::Image;
use stk_unwind::Trust;

/// A profile in the making.
struct Maker {
    profile: Profile,
    runs: Runs,
}

impl Maker {
    fn new() -> Maker {
        let file = stk_tests::traces::trace().finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let built = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0));
        let (mut profile, runs) = built.unwrap();
        profile.images.clear();
        profile.symbols.starts = vec![0];
        Maker { profile, runs }
    }

    fn image(&mut self, name: &str) -> ImageId {
        let path = format!(r"C:\lab\{name}");
        self.profile.images.push(Image { path, name: name.to_owned(), ..Image::default() });
        ImageId(self.profile.images.len() as u32 - 1)
    }

    /// A frame with its functions, innermost first.
    fn frame(&mut self, image: ImageId, functions: &[&str]) -> FrameId {
        let rva = self.profile.frames.keys().len() as u32;
        let place = Placement::Image(image, rva);
        let id = self.profile.frames.intern(FrameKey { place, exact: true, trust: Trust::UnwindInfo });
        let symbols = &mut self.profile.symbols;
        for (i, function) in functions.iter().enumerate() {
            let function = symbols.strings.intern(function);
            let inline = i + 1 < functions.len();
            symbols.named.push(NamedFrame { function, file: None, line: None, inline });
        }
        symbols.starts.push(symbols.named.len() as u32);
        symbols.source.push(NameSource::Pdb);
        symbols.reason.push(None);
        symbols.facts.push(FrameFacts { kind: FrameKind::Native, ..FrameFacts::default() });
        id
    }

    /// A stack, outermost frame first.
    fn stack(&mut self, frames: &[FrameId]) -> NodeId {
        let tree = &mut self.profile.tree;
        let stack = frames.iter().fold(None, |parent, &frame| Some(tree.intern(Node { parent, frame })));
        stack.unwrap()
    }

    fn thread(&mut self, tid: u32) -> u32 {
        let instance = u64::from(tid) + 1000;
        let thread = ThreadInfo {
            instance,
            tid,
            name: String::new(),
            name_number: 0,
            created_utc_ns: 0,
            start_ns: None,
            exit_ns: None,
            samples: 0,
            active_samples: 0,
            sampling_cpu_ns: 0,
        };
        self.profile.threads.push(thread);
        self.profile.threads.len() as u32 - 1
    }

    fn run(&mut self, thread: u32, node: Option<NodeId>, samples: u32, activity: Activity) {
        let running = activity == Activity::OnCpu;
        let run = Run {
            node,
            stop: StopId(0),
            first_ns: 0,
            last_ns: 0,
            weight_ns: 10 * u64::from(samples),
            samples,
            cpu_ns: if running { 9 * u64::from(samples) } else { 0 },
            state: if running { RunState::Running } else { RunState::Waiting },
            activity,
            flags: RunFlags::empty(),
            capture_tag: 0,
        };
        let info = &mut self.profile.threads[thread as usize];
        info.samples += u64::from(samples);
        info.active_samples += if running { u64::from(samples) } else { 0 };
        self.runs.push(thread, run).unwrap();
    }
}

/// Two threads of a program. Stacks, outermost function first, with their samples; `+` is a
/// function inlined into the one before it.
///
/// ```text
/// thread 1: start main loop+step alloc      4, running
///           start main loop+step alloc loop+step   2, running: recursion
///           start main wait                 8, waiting
///           (no stack)                      1, unknown
/// thread 2: start alloc                     16, running
/// ```
fn sample() -> (Profile, Runs) {
    let mut maker = Maker::new();
    let (app, ntdll, runtime) = (maker.image("App.exe"), maker.image("ntdll.dll"), maker.image("alloc.dll"));
    let start = maker.frame(ntdll, &["RtlUserThreadStart"]);
    let main = maker.frame(app, &["main"]);
    let looped = maker.frame(app, &["step", "loop"]);
    let alloc = maker.frame(runtime, &["alloc"]);
    let wait = maker.frame(ntdll, &["NtWaitForSingleObject"]);
    let waiting = Activity::Waiting(Wait::from_number(9).unwrap());
    let (one, two) = (maker.thread(1), maker.thread(2));
    let stack = maker.stack(&[start, main, looped, alloc]);
    maker.run(one, Some(stack), 4, Activity::OnCpu);
    let stack = maker.stack(&[start, main, looped, alloc, looped]);
    maker.run(one, Some(stack), 2, Activity::OnCpu);
    let stack = maker.stack(&[start, main, wait]);
    maker.run(one, Some(stack), 8, waiting);
    maker.run(one, None, 1, Activity::Unknown);
    let stack = maker.stack(&[start, alloc]);
    maker.run(two, Some(stack), 16, Activity::OnCpu);
    (maker.profile, maker.runs)
}

fn functions(patterns: &[&str]) -> Vec<FunctionPattern> {
    patterns.iter().map(|pattern| pattern.parse().unwrap()).collect()
}

/// What is left: samples by stack, outermost function first.
type Left = BTreeMap<String, u64>;

fn left_of(profile: &Profile, runs: &Runs) -> Left {
    let names = Functions::new(profile, false);
    let mut left = Left::new();
    runs.for_each(|batch| {
        for run in batch.runs {
            let mut frames: Vec<FrameId> =
                run.node.map_or(Vec::new(), |node| profile.tree.frames(node).collect());
            frames.reverse();
            let functions = frames.iter().flat_map(|&frame| names.of(frame));
            let functions: Vec<&str> =
                functions.map(|id| names.list()[id.0 as usize].name.as_str()).collect();
            *left.entry(functions.join(" ")).or_default() += u64::from(run.samples);
        }
        Ok::<(), io::Error>(())
    })
    .unwrap();
    left
}

fn take(selection: &Selection) -> (Profile, Runs) {
    let (mut profile, runs) = sample();
    let mut runs = select(&mut profile, runs, selection).unwrap();
    leave_out(&mut profile, &mut runs, selection).unwrap();
    (profile, runs)
}

fn left(frames: FramePatterns) -> Left {
    let (profile, runs) = take(&Selection { frames, ..Selection::default() });
    left_of(&profile, &runs)
}

fn of<const N: usize>(rows: [(&str, u64); N]) -> Left {
    rows.into_iter().map(|(stack, samples)| (stack.to_owned(), samples)).collect()
}

const START: &str = "RtlUserThreadStart";

#[test]
fn nothing_is_left_out_unless_asked_for() {
    let (profile, runs) = take(&Selection::default());
    assert_eq!(profile.selection, None);
    let all = of([
        (&format!("{START} main loop step alloc"), 4),
        (&format!("{START} main loop step alloc loop step"), 2),
        (&format!("{START} main NtWaitForSingleObject"), 8),
        ("", 1),
        (&format!("{START} alloc"), 16),
    ]);
    assert_eq!(left_of(&profile, &runs), all);
}

#[test]
fn focus_and_ignore_of_the_same_pattern_are_the_whole() {
    for pattern in ["alloc", "step", "^main$", "nothing", "", "ntdll!"] {
        let focus = FramePatterns { focus: functions(&[pattern]), ..FramePatterns::default() };
        let ignore = FramePatterns { ignore: functions(&[pattern]), ..FramePatterns::default() };
        let (mut focus, ignore) = (left(focus), left(ignore));
        for (stack, samples) in ignore {
            assert!(focus.insert(stack, samples).is_none(), "{pattern}: a stack is in both");
        }
        assert_eq!(focus, left(FramePatterns::default()), "{pattern}");
    }
}

#[test]
fn a_hidden_frame_is_its_callers_time_and_no_sample_is_lost() {
    let hide = |pattern| left(FramePatterns { hide: functions(&[pattern]), ..FramePatterns::default() });
    let start = |rest: &str| format!("{START}{rest}");
    assert_eq!(
        hide("^alloc$"),
        of([
            (&start(" main loop step"), 4),
            (&start(" main loop step loop step"), 2),
            (&start(" main NtWaitForSingleObject"), 8),
            ("", 1),
            (&start(""), 16),
        ])
    );
    // One of two functions at an address.
    assert_eq!(hide("^step$")[&start(" main loop alloc loop")], 2);
    assert_eq!(hide("^loop$")[&start(" main step alloc step")], 2);
    for pattern in ["alloc", "step|loop", "", "Rtl", "main"] {
        assert_eq!(hide(pattern).values().sum::<u64>(), 31, "{pattern}");
    }
    assert_eq!(hide(""), of([("", 31)]));
}

#[test]
fn stacks_begin_at_the_outermost_requested_frame() {
    let root = |pattern| {
        let frames = FramePatterns { root: functions(&[pattern]), ..FramePatterns::default() };
        let (profile, runs) = take(&Selection { frames, ..Selection::default() });
        (left_of(&profile, &runs), profile.selection.unwrap().without_root)
    };
    let rooted = of([("loop step alloc", 4), ("loop step alloc loop step", 2)]);
    assert_eq!(root("^loop$"), (rooted, 25));
    // The function that it is inlined into is outside.
    assert_eq!(root("^step$"), (of([("step alloc", 4), ("step alloc loop step", 2)]), 25));
    assert_eq!(root("alloc"), (of([("alloc", 20), ("alloc loop step", 2)]), 9));
}

#[test]
fn the_order_of_choosing_and_leaving_out_does_not_matter() {
    let frames = FramePatterns {
        focus: functions(&["^main$"]),
        hide: functions(&["^main$"]),
        root: functions(&["^main$"]),
        ..FramePatterns::default()
    };
    let expected =
        of([("loop step alloc", 4), ("loop step alloc loop step", 2), ("NtWaitForSingleObject", 8)]);
    assert_eq!(left(frames), expected);
}

#[test]
fn frames_of_the_system_can_be_left_out() {
    let mine = left(FramePatterns { my_code: true, ..FramePatterns::default() });
    let expected = of([
        ("main loop step alloc", 4),
        ("main loop step alloc loop step", 2),
        ("main", 8),
        ("", 1),
        ("alloc", 16),
    ]);
    assert_eq!(mine, expected);
    let skipped = left(FramePatterns { skip_thread_start: true, ..FramePatterns::default() });
    assert_eq!(skipped["main NtWaitForSingleObject"], 8);
    assert_eq!(skipped.values().sum::<u64>(), 31);
    assert!(skipped.keys().all(|stack| !stack.contains(START)), "{skipped:?}");
}

#[test]
fn modules_states_and_threads_narrow_the_choice() {
    let by = |module: &str, states: &[ActivityKind], threads: Option<u64>| {
        let frames = FramePatterns { modules: vec![module.parse().unwrap()], ..FramePatterns::default() };
        let threads = threads.map(|instance| HashSet::from([(instance, 0)]));
        let (profile, _) = take(&Selection { threads, states: states.to_vec(), frames });
        let share = profile.selection.unwrap();
        let counted: Vec<_> = profile.threads.iter().map(|t| (t.samples, t.active_samples)).collect();
        (share.chosen.samples, counted)
    };
    assert_eq!(by("^app\\.EXE$", &[], None), (14, vec![(14, 6), (0, 0)]));
    assert_eq!(by("", &[], None), (30, vec![(14, 6), (16, 16)]), "a sample without a stack is in no module");
    assert_eq!(by("", &[ActivityKind::Waiting], None), (8, vec![(8, 0), (0, 0)]));
    let states = [ActivityKind::Waiting, ActivityKind::Running];
    assert_eq!(by("alloc", &states, None), (22, vec![(6, 6), (16, 16)]));
    assert_eq!(by("", &[], Some(1002)), (16, vec![(0, 0), (16, 16)]));
}

#[test]
fn the_share_of_the_whole_is_counted() {
    let frames = FramePatterns { functions: functions(&["step"]), ..FramePatterns::default() };
    let (profile, _) = take(&Selection { frames, ..Selection::default() });
    let share = profile.selection.unwrap();
    assert_eq!(share.chosen, SampleSum { samples: 6, cpu_ns: 54, weight_ns: 60 });
    assert_eq!(share.whole, SampleSum { samples: 31, cpu_ns: 198, weight_ns: 310 });
    assert_eq!(profile.frames.keys().len(), 4, "frames that no chosen sample has are gone");
    assert_eq!(profile.tree.nodes().len(), 5);
}

#[test]
fn what_is_left_can_be_folded_once_more() {
    let frames = FramePatterns { root: functions(&["^step$"]), ..FramePatterns::default() };
    let (mut profile, mut runs) = take(&Selection { frames, ..Selection::default() });
    fold(&mut profile, &mut runs, FoldOptions { frames: FrameChoice::Native, hide_runtime: true });
    // The frame whose outer function lies outside of the root is there twice, whole and in part.
    assert_eq!(left_of(&profile, &runs), of([("step alloc", 4), ("step alloc loop step", 2)]));
}

fn grouped(rules: &str) -> Left {
    let (mut profile, mut runs) = take(&Selection::default());
    apply_rules(&mut profile, &mut runs, &rules.parse().unwrap());
    left_of(&profile, &runs)
}

#[test]
fn frames_of_one_group_that_follow_each_other_are_one() {
    // `step` is inlined into `loop`, and both call each other's.
    let expected = of([
        ("threads the loop alloc", 4),
        ("threads the loop alloc the loop", 2),
        ("threads NtWaitForSingleObject", 8),
        ("", 1),
        ("threads alloc", 16),
    ]);
    assert_eq!(grouped("^RtlUser -> threads\n^main$ -> threads\nloop|step -> the loop"), expected);
    // Those of several modules are one function.
    let heap = grouped("^alloc!|^ntdll!Nt -> other code");
    assert_eq!(heap[&format!("{START} main other code")], 8);
    assert_eq!(heap[&format!("{START} other code")], 16);
}

#[test]
fn inlined_function_and_its_caller_can_be_of_different_groups() {
    let inner = grouped("^step$ -> inner");
    assert_eq!(inner[&format!("{START} main loop inner alloc")], 4);
    let outer = grouped("^loop$ -> outer");
    assert_eq!(outer[&format!("{START} main outer step alloc outer step")], 2);
    let both = grouped("^step$ -> inner\n^loop$ -> outer\n^alloc$ -> inner");
    assert_eq!(both[&format!("{START} main outer inner")], 4, "inlined and called");
}

#[test]
fn first_rule_that_matches_names_a_frame_and_no_sample_is_lost() {
    for rules in ["alloc -> a\n. -> b", ". -> all", "nothing -> x"] {
        assert_eq!(grouped(rules).values().sum::<u64>(), 31, "{rules}");
    }
    assert_eq!(grouped("alloc -> a\n. -> b"), of([("b a", 20), ("b a b", 2), ("b", 8), ("", 1)]));
    assert_eq!(grouped("# nothing\n"), left(FramePatterns::default()));
}
