//! Limits on the memory that a profile takes.

use super::tests::walk_about;
use crate::image::{ImageSearch, load_images};
use crate::profile::{BuildOptions, Profile, Runs, build};
use crate::stack::{NameSources, StopReason};
use crate::trace::{Budget, Trace};
use std::sync::atomic::AtomicU64;
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};

/// A trace, and its profile with a memory budget.
fn within(file: &[u8], memory: u64) -> (Trace<'_>, Profile, Runs) {
    let mut trace = Trace::read(file, "test.stk").unwrap();
    trace.budget = Budget::new(memory);
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let (profile, runs) = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
    (trace, profile, runs)
}

fn samples(runs: &Runs) -> u64 {
    let mut sum = 0;
    let visited: std::io::Result<()> = runs.for_each(|batch| {
        sum += batch.runs.iter().map(|run| u64::from(run.samples)).sum::<u64>();
        Ok(())
    });
    visited.unwrap();
    sum
}

/// A trace of one thread in a recursion of 2,000 frames whose outermost caller is one of `callers`.
/// No sample shares a frame's stack with the one before. Each block has `in_block` samples.
fn recursion(samples: u32, callers: u32, in_block: u32) -> Vec<u8> {
    let mut builder = stk_tests::traces::trace();
    let (base, stack) = (0x1_4000_0000, 0x100_0000);
    stk_tests::traces::TestImage::new(r"C:\app\app.exe", 2_000).load(&mut builder, 0, base);
    let thread = builder.thread(0, 1, "eins", stack);
    for i in 0..samples {
        let mut calls = vec![stk_tests::traces::in_function(base, 0); 2_000];
        calls[0] = stk_tests::traces::in_function(base, i % callers + 1);
        stk_tests::traces::sample(&mut builder, thread, 10_000 * (u64::from(i) + 1), stack, &calls);
        if (i + 1) % in_block == 0 {
            builder.cut();
        }
    }
    builder.finish()
}

#[test]
fn stacks_beyond_the_memory_budget_are_left_out_and_counted() {
    let file = walk_about(500, 200, 20);
    let (_, whole, runs) = within(&file, u64::MAX);
    let all = samples(&runs);
    assert!(whole.losses.damaged_blocks.is_empty() && all == 1000, "{all}");
    let (_, part, runs) = within(&file, 64 << 10);
    let taken = samples(&runs);
    assert!(taken > 0 && taken < all, "{taken}");
    assert!(part.tree.nodes().len() < whole.tree.nodes().len());
    let [reported] = part.losses.damaged_blocks.as_slice() else {
        panic!("{:?}", part.losses.damaged_blocks)
    };
    assert!(
        reported.starts_with(&format!("{} samples", all - taken)) && reported.contains("--max-memory"),
        "{reported}"
    );
}

#[test]
fn what_is_left_out_does_not_depend_on_the_number_of_threads() {
    let file = walk_about(500, 200, 20);
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (_, profile, runs) = within(&file, 64 << 10);
            (profile.losses.damaged_blocks, profile.tree.nodes().to_vec(), samples(&runs))
        })
    };
    assert_eq!(with_threads(1), with_threads(5));
}

#[test]
fn a_block_with_results_above_its_limit_is_cut_and_reported() {
    let file = recursion(300, 300, u32::MAX);
    let (_, profile, runs) = within(&file, 256 << 20);
    let taken = samples(&runs);
    assert!(taken > 0 && taken < 300, "{taken}");
    assert!(profile.losses.damaged_blocks[0].contains("its end is left out"), "{:?}", profile.losses);
    // With more memory, everything is kept.
    let (_, profile, runs) = within(&file, 64 << 30);
    assert!(profile.losses.damaged_blocks.is_empty() && samples(&runs) == 300);
    assert!(profile.stops.iter().all(|stop| stop.reason != StopReason::StackLost));
}

#[test]
fn stacks_that_take_too_long_to_walk_are_left_out_and_counted() {
    let file = recursion(3_000, 2, 150);
    // 8 MiB are enough for the memory that these stacks take.
    let (_, profile, runs) = within(&file, 8 << 20);
    let taken = samples(&runs);
    assert!(taken > 0 && taken < 3_000, "{taken}");
    let left_out = format!("{} samples are left out", 3_000 - taken);
    let reported = profile.losses.damaged_blocks.last().unwrap();
    assert!(reported.starts_with(&left_out) && reported.contains("so long to walk"), "{reported}");
    let (_, profile, runs) = within(&file, 16 << 30);
    assert!(profile.losses.damaged_blocks.is_empty() && samples(&runs) == 3_000, "{:?}", profile.losses);
}

#[test]
fn a_block_whose_stacks_take_too_long_to_walk_is_cut_and_reported() {
    let file = recursion(500, 2, u32::MAX);
    let (_, profile, runs) = within(&file, 1 << 30);
    let taken = samples(&runs);
    assert!(taken > 0 && taken < 500, "{taken}");
    let [reported] = profile.losses.damaged_blocks.as_slice() else { panic!("{:?}", profile.losses) };
    assert!(reported.contains("its end is left out") && reported.contains("longer to walk"), "{reported}");
}

#[test]
fn names_beyond_the_memory_budget_are_left_out_and_counted() {
    let file = walk_about(50, 100, 20);
    let (mut trace, mut profile, _) = within(&file, u64::MAX);
    trace.budget = Budget::new(1000);
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let methods = crate::runtimes::methods(&trace);
    let store = SymbolStore::new(SymbolPath::default());
    let symbolizer = Symbolizer::new(store, Demangle::default());
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    crate::profile::symbolize(&mut profile, &sources);
    let [reported] = profile.losses.damaged_blocks.as_slice() else { panic!("{:?}", profile.losses) };
    assert!(reported.contains("names are left out") && reported.contains("--max-memory"), "{reported}");
    let names: Vec<&str> =
        profile.symbols.named.iter().map(|name| profile.symbols.strings.get(name.function)).collect();
    assert!(names[0].contains("+0x") || names[0].contains("Rtl"), "{}", names[0]);
    assert!(names.iter().any(|name| name.contains("left out")));
}
