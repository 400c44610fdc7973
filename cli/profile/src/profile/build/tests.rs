//! Handmade traces, and the profiles that they must give.

use crate::image::{ImageSearch, load_images};
use crate::profile::{
    BuildOptions, Losses, NodeId, Placement, Profile, Run, RunFlags, RunSelection, Runs, build, part,
};
use crate::trace::Trace;
use std::sync::atomic::AtomicU64;
use stk_schema::event::{Event, Mark, RateChange, RunState};
use stk_schema::{Arch, Ticks};
use stk_tests::synth::TraceBuilder;
use stk_tests::traces::{self, FIRST_FUNCTION, TestImage, in_function};
use stk_unwind::Trust;

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;

pub(super) fn profile_with(file: &[u8], options: &BuildOptions) -> (Profile, Runs) {
    let trace = Trace::read(file, "test.stk").unwrap();
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    build(&trace, &images, options, &AtomicU64::new(0)).unwrap()
}

pub(super) fn profile(file: &[u8]) -> (Profile, Runs) {
    profile_with(file, &BuildOptions::default())
}

pub(super) fn runs_of(profile: &Profile, runs: &Runs, tid: u32) -> Vec<Run> {
    let mut all = Vec::new();
    let visited: std::io::Result<()> = runs.for_each(|batch| {
        if profile.threads[batch.thread as usize].tid == tid {
            all.extend(batch.runs);
        }
        Ok(())
    });
    visited.unwrap();
    all
}

/// `module+function number` of each frame, leaf first.
pub(super) fn names(profile: &Profile, node: Option<NodeId>) -> Vec<String> {
    let frames = node.into_iter().flat_map(|node| profile.tree.frames(node));
    let name = |frame: crate::profile::FrameId| match profile.frames.keys()[frame.0 as usize].place {
        Placement::Image(image, rva) => {
            let name = &profile.images[image.0 as usize].name;
            format!("{name}:{}", (rva - FIRST_FUNCTION) / traces::FUNCTION_SIZE)
        }
        Placement::Code(region, offset) => {
            format!("code {}+{offset:#x}", profile.code[region as usize].instance)
        }
        Placement::Unknown(address) => format!("{address:#x}"),
    };
    frames.map(name).collect()
}

pub(super) fn stop(profile: &Profile, run: &Run) -> &'static str {
    profile.stops[usize::from(run.stop.0)].reason.as_str()
}

/// A trace of one thread that goes from function to function, with a sample a millisecond.
pub(super) fn walk_about(samples: u64, functions: u32, cut_every: u64) -> Vec<u8> {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", functions).load(&mut builder, 0, BASE);
    let threads = [builder.thread(0, 1, "eins", STACK), builder.thread(0, 2, "zwei", 2 * STACK)];
    for i in 0..samples {
        for (t, &thread) in threads.iter().enumerate() {
            let i = i + t as u64;
            let calls: Vec<u64> = (0..3 + i % 5)
                .map(|depth| in_function(BASE, ((i / 3 * 7 + depth * 13) % u64::from(functions)) as u32))
                .collect();
            traces::sample(&mut builder, thread, 10_000 * (i + 1), (t as u64 + 1) * STACK, &calls);
        }
        if i % cut_every == cut_every - 1 {
            builder.cut();
        }
    }
    builder.finish()
}

#[test]
fn recorded_unwind_data_lead_to_the_thread_start() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 4711, "worker", STACK);
    traces::sample(
        &mut builder,
        thread,
        10_000,
        STACK,
        &[in_function(BASE, 1), in_function(BASE, 2), in_function(BASE, 3)],
    );
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 4711);
    assert_eq!(runs.len(), 1);
    assert_eq!(
        names(&profile, runs[0].node),
        ["app.exe:3", "app.exe:2", "app.exe:1", "kernel32.dll:0", "ntdll.dll:0"]
    );
    assert_eq!(stop(&profile, &runs[0]), "thread-start");
    assert_eq!((runs[0].first_ns, runs[0].samples), (1_000_000, 1));
    assert_eq!(runs[0].weight_ns, 1_000_000, "the last sample stands for one interval");
    assert!(
        profile.frames.keys()[0].exact || profile.frames.keys().iter().filter(|key| key.exact).count() == 1
    );
}

#[test]
fn equal_samples_make_one_run_that_lasts_until_the_next_stack() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    for i in 1..=3 {
        traces::sample(&mut builder, thread, i * 10_000, STACK, &[in_function(BASE, 1)]);
    }
    traces::sample(&mut builder, thread, 50_000, STACK, &[in_function(BASE, 2)]);
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    // The second and third are the same as the first and are stored as SAME, whose state the
    // recorder states.
    let first: Vec<&Run> = runs.iter().filter(|run| names(&profile, run.node)[0] == "app.exe:1").collect();
    assert_eq!(first.iter().map(|run| run.samples).sum::<u32>(), 3);
    assert_eq!(first.iter().map(|run| run.weight_ns).sum::<u64>(), 4_000_000);
    assert_eq!(runs.last().map(|run| run.samples), Some(1));
}

#[test]
fn a_sample_before_a_pause_stands_for_the_time_until_the_pause() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    let sample = |builder: &mut TraceBuilder, time| {
        traces::sample(builder, thread, time, STACK, &[in_function(BASE, 1)]);
    };
    sample(&mut builder, 10_000);
    for (time, rate_mhz) in [(15_000, 0), (70_000, 1_000_000), (83_000, 0)] {
        let change = Event::RateChange(RateChange { time: Ticks(time), rate_mhz });
        builder.meta(time, &change);
    }
    // In the pause nothing is sampled. The last sample stands for less than an interval.
    sample(&mut builder, 80_000);
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    let found: Vec<(u64, u64)> = runs.iter().map(|run| (run.first_ns, run.weight_ns)).collect();
    assert_eq!(found, [(1_000_000, 500_000), (8_000_000, 300_000)]);
}

#[test]
fn the_same_address_belongs_to_the_module_that_is_loaded_at_the_time() {
    let mut builder = traces::trace();
    let thread = builder.thread(0, 1, "", STACK);
    let at = |n| in_function(BASE, n);
    let first = TestImage::new(r"C:\app\first.dll", 8).load(&mut builder, 5_000, BASE);
    traces::sample(&mut builder, thread, 10_000, STACK, &[at(1)]);
    builder.unload(15_000, first);
    traces::sample(&mut builder, thread, 20_000, STACK, &[at(2)]);
    let second = TestImage::new(r"C:\app\second.dll", 8).load(&mut builder, 25_000, BASE);
    traces::sample(&mut builder, thread, 30_000, STACK, &[at(1)]);
    builder.unload(35_000, second);
    TestImage::new(r"C:\app\first.dll", 8).load(&mut builder, 36_000, BASE);
    traces::sample(&mut builder, thread, 40_000, STACK, &[at(1)]);
    let (profile, runs) = profile(&builder.finish());
    let leaves: Vec<String> =
        runs_of(&profile, &runs, 1).iter().map(|run| names(&profile, run.node)[0].clone()).collect();
    assert_eq!(leaves, ["first.dll:1", &format!("{:#x}", at(2)), "second.dll:1", "first.dll:1"]);
    assert_eq!(profile.images.len(), 4, "the image that came back is the same image");
    assert_eq!(profile.modules.len(), 5);
}

#[test]
fn an_unchanged_stack_is_walked_again_when_its_module_is_unloaded() {
    let file = |cut: bool| {
        let mut builder = traces::trace();
        let idle = builder.thread(0, 1, "", STACK);
        let first = TestImage::new(r"C:\app\first.dll", 8).load(&mut builder, 5_000, BASE);
        traces::sample(&mut builder, idle, 10_000, STACK, &[in_function(BASE, 1)]);
        builder.same(idle, 20_000, RunState::Waiting);
        builder.cut();
        builder.same(idle, 30_000, RunState::Waiting);
        if cut {
            builder.cut();
        }
        // The module events are written later than the samples that they concern. A recorder may do
        // that.
        builder.same(idle, 40_000, RunState::Waiting);
        builder.same(idle, 50_000, RunState::Waiting);
        builder.same(idle, 60_000, RunState::Waiting);
        builder.unload(35_000, first);
        TestImage::new(r"C:\app\second.dll", 8).load(&mut builder, 45_000, BASE);
        builder.same(idle, 70_000, RunState::Waiting);
        builder.finish()
    };
    for cut in [false, true] {
        let (profile, runs) = profile(&file(cut));
        let leaves: Vec<(String, u64, u64)> = runs_of(&profile, &runs, 1)
            .iter()
            .map(|run| {
                (names(&profile, run.node)[0].clone(), run.first_ns / 1_000_000, run.last_ns / 1_000_000)
            })
            .collect();
        let unknown = format!("{:#x}", in_function(BASE, 1));
        assert_eq!(
            leaves,
            [
                ("first.dll:1".to_owned(), 1, 1),
                ("first.dll:1".to_owned(), 2, 3),
                (unknown, 4, 4),
                ("second.dll:1".to_owned(), 5, 7)
            ]
        );
    }
}

#[test]
fn a_capture_keeps_its_tag_and_joins_no_run_of_another() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    let calls = [in_function(BASE, 1)];
    traces::sample(&mut builder, thread, 10_000, STACK, &calls);
    for (time, tag) in [(20_000, 7), (30_000, 7), (40_000, u64::MAX), (50_000, 0)] {
        traces::capture(&mut builder, (thread, STACK), time, &calls, tag);
    }
    // It repeats the last capture, but was not asked for.
    builder.same(thread, 60_000, RunState::Running);
    builder.cut();
    traces::capture(&mut builder, (thread, STACK), 70_000, &calls, 7);
    builder.cut();
    builder.same(thread, 80_000, RunState::Running);
    // Each capture is an event of its own, and so a run of its own.
    let expected =
        [(None, 1), (Some(7), 1), (Some(7), 1), (Some(u64::MAX), 1), (Some(0), 1), (None, 1), (Some(7), 1)];
    let file = builder.finish();
    // Runs in memory, and in the temporary file.
    for runs_limit in [None, Some(1)] {
        let (profile, runs) = profile_with(&file, &BuildOptions { runs_limit, ..BuildOptions::default() });
        let runs = runs_of(&profile, &runs, 1);
        let tags: Vec<(Option<u64>, u32)> = runs.iter().map(|run| (run.tag(), run.samples)).collect();
        assert_eq!(tags, [&expected[..], &[(None, 1)]].concat());
        assert!(runs.iter().all(|run| run.node == runs[0].node), "one stack");
    }
}

#[test]
fn an_idle_thread_has_the_stack_of_the_cited_block() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let idle = builder.thread(0, 1, "idle", STACK);
    let busy = builder.thread(0, 2, "busy", 2 * STACK);
    traces::sample(&mut builder, idle, 10_000, STACK, &[in_function(BASE, 5)]);
    for block in 0..3 {
        for i in 0..10 {
            let time = 20_000 + block * 100_000 + i * 10_000;
            builder.same(idle, time, RunState::Waiting);
            traces::sample(&mut builder, busy, time, 2 * STACK, &[in_function(BASE, (i % 3) as u32)]);
        }
        builder.cut();
    }
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    assert!(runs.iter().all(|run| names(&profile, run.node)[0] == "app.exe:5"));
    assert_eq!(runs.iter().map(|run| run.samples).sum::<u32>(), 31);
    assert_eq!(runs.last().unwrap().state, RunState::Waiting);
    assert_eq!(runs.last().unwrap().last_ns, 31_000_000);
    let thread = &profile.threads[0];
    assert_eq!((thread.samples, thread.active_samples), (31, 1));
}

#[test]
fn the_profile_does_not_depend_on_the_number_of_threads_nor_on_the_memory_limit() {
    let file = walk_about(2000, 40, 37);
    let result = |threads: usize, runs_limit| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let options = BuildOptions { runs_limit, ..BuildOptions::default() };
        let (profile, runs) = pool.install(|| profile_with(&file, &options));
        let runs: Vec<Vec<Run>> = [1, 2].iter().map(|&tid| runs_of(&profile, &runs, tid)).collect();
        (profile.frames.keys().to_vec(), profile.tree.nodes().to_vec(), profile.stops.clone(), runs)
    };
    let one = result(1, None);
    assert!(one.3[0].len() > 500);
    for threads in [2, 3, 8] {
        assert_eq!(result(threads, None), one, "{threads} threads");
    }
    assert_eq!(result(2, Some(100)), one, "runs in a temporary file");
}

#[test]
fn incremental_walks_equal_full_walks() {
    // In blocks of one sample, no walk can take over frames from the one before.
    let (long, alone) = (walk_about(300, 16, 1000), walk_about(300, 16, 1));
    let stacks = |file: &[u8]| {
        let (profile, runs) = profile(file);
        let runs = runs_of(&profile, &runs, 1);
        let stacks = runs
            .iter()
            .map(|run| (names(&profile, run.node), run.first_ns, stop(&profile, run), run.weight_ns));
        stacks.collect::<Vec<_>>()
    };
    assert_eq!(stacks(&long), stacks(&alone));
}

#[test]
fn a_lost_block_loses_its_samples_and_the_idle_spans_that_cite_it() {
    let build_file = || {
        let mut builder = traces::trace();
        TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
        let idle = builder.thread(0, 1, "", STACK);
        let busy = builder.thread(0, 2, "", 2 * STACK);
        traces::sample(&mut builder, idle, 10_000, STACK, &[in_function(BASE, 5)]);
        traces::sample(&mut builder, busy, 10_000, 2 * STACK, &[in_function(BASE, 1)]);
        builder.cut();
        builder.same(idle, 20_000, RunState::Waiting);
        traces::sample(&mut builder, busy, 20_000, 2 * STACK, &[in_function(BASE, 2)]);
        builder.cut();
        traces::sample(&mut builder, idle, 30_000, STACK, &[in_function(BASE, 6)]);
        builder.cut();
        builder.finish()
    };
    let mut file = build_file();
    let offset = {
        let trace = Trace::read(&file, "test.stk").unwrap();
        let block = trace.sample_blocks().next().unwrap();
        block.offset as usize + stk_format::BLOCK_HEADER_LEN + 12
    };
    file[offset] ^= 0x55;
    let (profile, runs) = profile(&file);
    assert_eq!(profile.losses.damaged_blocks.len(), 1, "{:?}", profile.losses);
    assert_eq!(profile.losses.lost_idle_spans, 1);
    let idle = runs_of(&profile, &runs, 1);
    assert_eq!(idle.len(), 2);
    assert_eq!((idle[0].node, stop(&profile, &idle[0])), (None, "stack-lost"));
    assert!(idle[0].flags.contains(RunFlags::STACK_LOST));
    assert_eq!(names(&profile, idle[1].node)[0], "app.exe:6");
    assert_eq!(runs_of(&profile, &runs, 2).len(), 1);
}

#[test]
fn a_module_without_tables_ends_the_walk_and_is_named() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\bare.dll", 8).load_without_tables(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1), in_function(BASE, 2)]);
    let (profile, runs) = profile(&builder.finish());
    let run = runs_of(&profile, &runs, 1)[0];
    let stop = &profile.stops[usize::from(run.stop.0)];
    assert_eq!((stop.reason.as_str(), stop.module.as_str()), ("no-unwind-data", "bare.dll"));
}

#[test]
fn a_time_range_also_cuts_idle_spans() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let idle = builder.thread(0, 1, "", STACK);
    let busy = builder.thread(0, 2, "", 2 * STACK);
    traces::sample(&mut builder, idle, 10_000, STACK, &[in_function(BASE, 5)]);
    builder.cut();
    for i in 2..=100 {
        builder.same(idle, i * 10_000, RunState::Waiting);
        traces::sample(&mut builder, busy, i * 10_000, 2 * STACK, &[in_function(BASE, (i % 7) as u32)]);
    }
    let file = builder.finish();
    let (mut profile, runs) = profile_with(&file, &BuildOptions::default());
    let runs = part(&mut profile, &runs, RunSelection::Span(20_500_000, 40_500_000)).unwrap();
    let idle = runs_of(&profile, &runs, 1);
    assert_eq!(idle.len(), 1);
    assert_eq!((idle[0].first_ns, idle[0].last_ns, idle[0].samples), (20_500_000, 40_000_000, 20));
    assert_eq!(names(&profile, idle[0].node)[0], "app.exe:5");
    let busy = runs_of(&profile, &runs, 2);
    assert_eq!(busy.iter().map(|run| run.samples).sum::<u32>(), 20);
    assert_eq!(busy.iter().map(|run| run.weight_ns).sum::<u64>(), 20_000_000);
}

#[test]
fn a_stack_that_is_too_deep_keeps_its_root() {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    let calls: Vec<u64> = (0..100).map(|call| in_function(BASE, call % 7)).collect();
    traces::sample(&mut builder, thread, 10_000, STACK, &calls);
    let file = builder.finish();
    let stacks = |max_frames: Option<u32>| {
        let (profile, runs) = profile_with(&file, &BuildOptions { max_frames, ..BuildOptions::default() });
        let run = runs_of(&profile, &runs, 1)[0];
        let stop = stop(&profile, &run).to_owned();
        (names(&profile, run.node), stop, [profile.losses.too_deep, profile.losses.most_left_out])
    };
    let (whole, end, left_out) = stacks(None);
    assert_eq!((end.as_str(), left_out), ("thread-start", [0, 0]));
    let (frames, end, left_out) = stacks(Some(20));
    // The 20 innermost and the 16 outermost.
    assert_eq!(frames, [&whole[..20], &whole[whole.len() - 16..]].concat());
    assert_eq!(end, "thread-start-past-gap");
    assert_eq!(left_out, [1, whole.len() as u64 - 36]);
    let (frames, end, left_out) = stacks(Some(whole.len() as u32 - 10));
    assert_eq!((frames, end.as_str(), left_out), (whole, "thread-start", [0, 0]));
}

#[test]
fn marks_of_all_blocks_are_sorted_by_time() {
    let mut builder = traces::trace();
    let thread = builder.thread(0, 1, "", STACK);
    builder.meta(30_000, &Event::Mark(Mark { time: Ticks(30_000), thread: 0, tag: 3, text: b"late" }));
    traces::sample(&mut builder, thread, 40_000, STACK, &[]);
    builder.push(&Event::Mark(Mark { time: Ticks(20_000), thread, tag: 2, text: b"early" }));
    let (profile, _) = profile(&builder.finish());
    let marks: Vec<(u64, Option<u32>)> = profile.marks.iter().map(|mark| (mark.tag, mark.thread)).collect();
    assert_eq!(marks, [(2, Some(0)), (3, None)]);
}

#[test]
fn every_prefix_of_a_trace_gives_a_profile_without_a_panic() {
    let file = walk_about(60, 8, 7);
    let whole = profile(&file).1;
    let total = |runs: &Runs| {
        let mut n = 0;
        let visited: std::io::Result<()> = runs.for_each(|batch| {
            n += batch.runs.iter().map(|run| u64::from(run.samples)).sum::<u64>();
            Ok(())
        });
        visited.unwrap();
        n
    };
    assert_eq!(total(&whole), 120);
    let mut last = 0;
    for len in (stk_format::FILE_HEADER_LEN..file.len()).step_by(97) {
        assert!(!Trace::read(&file[..len], "test.stk").unwrap().lost_blocks, "{len}");
        let (_, runs) = profile(&file[..len]);
        let now = total(&runs);
        assert!(now >= last, "a longer prefix holds no fewer samples");
        last = now;
    }
}

#[test]
fn modules_are_unknown_for_samples_after_a_lost_meta_block() {
    let mut builder = traces::trace();
    let thread = builder.thread(0, 1, "", STACK);
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    builder.cut();
    builder.meta(15_000, &Event::Mark(Mark { time: Ticks(15_000), thread: 0, tag: 1, text: b"" }));
    traces::sample(&mut builder, thread, 20_000, STACK, &[in_function(BASE, 2)]);
    builder.cut();
    builder.state();
    traces::sample(&mut builder, thread, 30_000, STACK, &[in_function(BASE, 3)]);
    let mut file = builder.finish();
    let offset = {
        let trace = Trace::read(&file, "test.stk").unwrap();
        let of_mark = |block: &&stk_format::BlockRef| {
            block.header.kind == stk_format::BlockKind::Meta && block.header.first >= Ticks(15_000)
        };
        trace.blocks().blocks().iter().find(of_mark).unwrap().offset as usize
    };
    file[offset + 20] ^= 0xFF;
    let (profile, runs) = profile(&file);
    let stops: Vec<&str> = runs_of(&profile, &runs, 1).iter().map(|run| stop(&profile, run)).collect();
    assert_eq!(stops, ["thread-start", "modules-unknown", "thread-start"]);
    assert!(!profile.losses.damaged_blocks.is_empty());
}

/// Loses the first META block from 15,000 ticks on.
pub(super) fn lose_meta(file: &mut [u8]) {
    let seq = {
        let trace = Trace::read(file, "test.stk").unwrap();
        let is_lost = |block: &&stk_format::BlockRef| {
            block.header.kind == stk_format::BlockKind::Meta && block.header.first >= Ticks(15_000)
        };
        trace.blocks().blocks().iter().find(is_lost).unwrap().header.seq
    };
    stk_tests::synth::damage::lose(file, seq);
}

/// A thread's three samples, where the META block of `lost` is damaged behind the first and `then`
/// follows the second.
fn with_loss(lost: impl Fn(&mut TraceBuilder), then: impl Fn(&mut TraceBuilder)) -> Vec<u8> {
    let mut builder = traces::trace();
    let thread = builder.thread(0, 1, "", STACK);
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    traces::sample(&mut builder, thread, 10_000, STACK, &[in_function(BASE, 1)]);
    builder.cut();
    lost(&mut builder);
    traces::sample(&mut builder, thread, 20_000, STACK, &[in_function(BASE, 2)]);
    builder.cut();
    then(&mut builder);
    traces::sample(&mut builder, thread, 30_000, STACK, &[in_function(BASE, 3)]);
    builder.cut();
    let mut file = builder.finish();
    lose_meta(&mut file);
    file
}

fn lose_mark(builder: &mut TraceBuilder) {
    builder.meta(15_000, &Event::Mark(Mark { time: Ticks(15_000), thread: 0, tag: 1, text: b"" }));
}

/// The stops of these samples.
fn stops_after_loss(lost: impl Fn(&mut TraceBuilder), then: impl Fn(&mut TraceBuilder)) -> Vec<String> {
    let (profile, runs) = profile(&with_loss(lost, then));
    assert!(!profile.losses.damaged_blocks.is_empty());
    runs_of(&profile, &runs, 1).iter().map(|run| stop(&profile, run).to_owned()).collect()
}

#[test]
fn salvaged_stacks_are_assumed_and_counted() {
    let file = with_loss(lose_mark, |_| {});
    let found = |salvage| {
        let (profile, runs) = profile_with(&file, &BuildOptions { salvage, ..BuildOptions::default() });
        let assumed = |run: &Run| {
            let frames = run.node.into_iter().flat_map(|node| profile.tree.frames(node));
            let trusts = frames.map(|frame| profile.frames.keys()[frame.0 as usize].trust);
            trusts.map(|trust| trust == Trust::Assumed).collect::<Vec<_>>()
        };
        let runs = runs_of(&profile, &runs, 1);
        let stacks: Vec<_> = runs.iter().map(|run| (stop(&profile, run), assumed(run))).collect();
        let Losses { modules_unknown, assumed, .. } = profile.losses;
        (stacks, [modules_unknown, assumed])
    };
    let known = ("thread-start", vec![false; 3]);
    assert_eq!(found(false), (vec![known.clone(), ("modules-unknown", vec![])], [2, 0]));
    let assumed = ("thread-start", vec![true; 3]);
    assert_eq!(found(true), (vec![known, assumed.clone(), assumed], [0, 2]));
    // What is known again is not assumed.
    let file = with_loss(lose_mark, |builder| builder.confirm(false));
    let (profile, _) = profile_with(&file, &BuildOptions { salvage: true, ..BuildOptions::default() });
    assert_eq!((profile.losses.modules_unknown, profile.losses.assumed), (0, 1));
}

#[test]
fn modules_are_known_again_where_a_module_state_fits() {
    let known = ["thread-start", "modules-unknown", "thread-start"];
    assert_eq!(stops_after_loss(lose_mark, |builder| builder.confirm(false)), known);
    assert_eq!(stops_after_loss(lose_mark, |builder| builder.confirm(true)), known);
    // Without one, they are unknown to the next STATE block: one run of both samples.
    assert_eq!(stops_after_loss(lose_mark, |_| {})[1..], ["modules-unknown"]);
}

#[test]
fn lost_load_is_known_again_only_where_it_is_restated() {
    let load = |builder: &mut TraceBuilder| {
        TestImage::new(r"C:\app\late.dll", 9).load_without_tables(builder, 15_000, BASE + 0x100_0000);
    };
    let stops = stops_after_loss(load, |builder| builder.confirm(true));
    assert_eq!(stops, ["thread-start", "modules-unknown", "thread-start"]);
    let stops = stops_after_loss(load, |builder| builder.confirm(false));
    assert_eq!(stops[1..], ["modules-unknown"], "its hash has a module more");
}

#[test]
fn an_x86_trace_that_cannot_be_walked_is_still_read() {
    let mut builder = stk_tests::synth::TraceBuilder::new(Arch::X86);
    let thread = builder.thread(0, 1, "", 0x10_0000);
    builder.sample(thread, 10_000, &[0x40_1000, 0x0f_fff8], &[1, 2]);
    let (profile, runs) = profile(&builder.finish());
    assert_eq!(runs_of(&profile, &runs, 1).len(), 1);
}
