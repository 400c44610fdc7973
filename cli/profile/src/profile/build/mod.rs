//! Builds a profile from a trace. Every SAMPLES block is one task, which walks it and lists its
//! distinct stacks. These are then merged in block order. At most two windows of blocks are in
//! memory at once, however long the trace is.

mod block;
mod facts;
mod merge;
mod stacks;
mod thread_clock;
mod unread;
mod walk;

pub use unread::unread_ns;

use self::block::{BlockProfile, BlockWorker};
use self::merge::Merger;
use self::stacks::{BlockStacks, StackHasher};
use super::{Profile, Runs};
use crate::image::ModuleImage;
use crate::runtimes::dotnet::explicit::ExplicitFrames;
use crate::trace::{Module, Trace};
use rayon::prelude::*;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use stk_base::deadline::Deadline;
use stk_base::model::Holder;
use stk_format::{BlockError, BlockKind, BlockRef, ImageBudget};
use stk_schema::Ticks;
use stk_unwind::{Frame, Stop};

/// How to build a profile.
#[derive(Clone, Default, Debug)]
pub struct BuildOptions {
    /// Count only what the recorder dropped in this time, nanoseconds since trace start; `None` =
    /// all of it. The runs are always of the whole trace: [`part`](super::part) takes a time.
    pub window: Option<Range<u64>>,
    /// Search stacks for words that look like return addresses, where nothing else helps.
    pub scan: bool,
    /// Frames of a stack at most; `None` = the default.
    pub max_frames: Option<u32>,
    /// Walk also samples whose modules a lost block may have changed, among those that are known.
    pub salvage: bool,
    /// Runs to hold in memory before they are moved to a temporary file; `None` = the default.
    pub runs_limit: Option<usize>,
    /// When it has to be done.
    pub deadline: Deadline,
}

/// Builds the profile of a trace, without names. Runs in the caller's rayon pool. The result does
/// not depend on the size of that pool. `done` counts finished samples.
///
/// # Errors
///
/// When the runs' temporary file cannot be written, or the time is up. Damaged blocks are not an
/// error: see [`Losses`](super::Losses).
pub fn build(
    trace: &Trace<'_>,
    images: &[ModuleImage],
    options: &BuildOptions,
    done: &AtomicU64,
) -> io::Result<(Profile, Runs)> {
    let inputs = BuildInputs::new(trace, images, options);
    let blocks = placed_blocks(&inputs);
    let budget = ImageBudget::default();
    let workers = Mutex::new(Vec::new());
    let mut merger = Merger::new(&inputs);
    let mut finished: Vec<(PlacedBlock, BlockProfile)> = Vec::new();
    // Few, so that blocks are merged while others are walked, and while they are in the cache.
    let window = 2 * rayon::current_num_threads();
    for blocks in blocks.chunks(window) {
        options.deadline.check()?;
        if merger.is_full() {
            blocks.iter().for_each(|block| merger.leave_out(block));
            continue;
        }
        let (walked, merged) = rayon::join(
            || walk_window(&inputs, blocks, &budget, &workers),
            || {
                finished.drain(..).try_for_each(|(block, profile)| {
                    done.fetch_add(u64::from(block.block.header.samples), Ordering::Relaxed);
                    merger.block(&block, profile)
                })
            },
        );
        merged?;
        finished.extend(blocks.iter().copied().zip(walked));
        if let Some(block) = blocks.last() {
            trace.release(block.block.offset as usize);
        }
    }
    for (block, profile) in finished {
        done.fetch_add(u64::from(block.block.header.samples), Ordering::Relaxed);
        merger.block(&block, profile)?;
    }
    let (mut profile, runs) = merger.finish()?;
    profile.losses.damaged_blocks.extend(trace.lost());
    Ok((profile, runs))
}

/// Frames that a list of stacks holds whose memory is kept for other blocks, at most.
const MOST_SPARE_FRAMES: usize = 1 << 20;

/// A SAMPLES block in the trace.
#[derive(Clone, Copy, Debug)]
struct PlacedBlock {
    block: BlockRef,
    /// Whether blocks are missing between it and the SAMPLES block before it.
    after_loss: bool,
}

/// Inputs that all workers share.
struct BuildInputs<'i> {
    trace: &'i Trace<'i>,
    images: &'i [ModuleImage],
    options: &'i BuildOptions,
    /// Modules that were loaded after the start.
    late: Vec<usize>,
    /// Whether any module or dynamic code was loaded or unloaded.
    changes: bool,
    /// Continues walks that end in a gap.
    explicit: ExplicitFrames,
    hasher: StackHasher,
    /// Empty lists of blocks that are merged: their memory serves other blocks.
    spare: Mutex<Vec<BlockStacks>>,
}

impl<'i> BuildInputs<'i> {
    fn new(trace: &'i Trace<'i>, images: &'i [ModuleImage], options: &'i BuildOptions) -> BuildInputs<'i> {
        let modules = &trace.timeline.modules;
        let late: Vec<usize> =
            (0..modules.len()).filter(|&i| modules[i].load > trace.header().clock_start).collect();
        let changes = !late.is_empty()
            || modules.iter().any(|module| module.unload.is_some())
            || !trace.timeline.code.is_empty();
        let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
        let (hasher, spare) = (StackHasher::new(), Mutex::default());
        BuildInputs { trace, images, options, late, changes, explicit, hasher, spare }
    }

    /// An empty list of stacks for a block.
    fn stacks(&self) -> BlockStacks {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Takes the list of a block that is merged.
    fn give_back(&self, mut stacks: BlockStacks) {
        if stacks.listed() <= MOST_SPARE_FRAMES {
            stacks.clear();
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(stacks);
        }
    }

    /// Whether what was dropped at a time is counted.
    fn counts_drops_at(&self, time: Ticks) -> bool {
        let ns = self.trace.clock.ns(time);
        self.options.window.as_ref().is_none_or(|window| window.contains(&ns))
    }

    /// From when on these frames, walked at `time`, and why there are no more, may mean something
    /// else: a module or dynamic code of theirs goes, or some comes to where there was none.
    fn expires<'f>(
        &self,
        frames: impl Iterator<Item = &'f Frame>,
        stops: impl Iterator<Item = Stop>,
        time: Ticks,
    ) -> Ticks {
        if !self.changes {
            return Ticks::MAX;
        }
        let timeline = &self.trace.timeline;
        let modules = &timeline.modules;
        let comes = |address: u64| {
            let inside = address.saturating_sub(1);
            let covers =
                |module: &&Module| inside.wrapping_sub(module.base) < module.size && module.load > time;
            let module =
                self.late.iter().map(|&i| &modules[i]).filter(covers).map(|module| module.load).min();
            [module, timeline.code_after(inside, time)].into_iter().flatten().min()
        };
        let expiry = |frame: &Frame| match frame.module.map(Holder::of) {
            Some(Holder::Module(module)) => modules[module as usize].unload,
            Some(Holder::Code(region)) => timeline.code[region as usize].remove,
            None => comes(frame.address),
        };
        let after = stops.filter_map(|stop| match stop {
            Stop::NoModule { address } => comes(address),
            _ => None,
        });
        frames.filter_map(expiry).chain(after).min().unwrap_or(Ticks::MAX)
    }
}

/// The SAMPLES blocks, in order.
fn placed_blocks(inputs: &BuildInputs<'_>) -> Vec<PlacedBlock> {
    let mut blocks = Vec::new();
    let mut next = 0;
    let mut lost = false;
    for block in inputs.trace.blocks().blocks() {
        lost |= block.header.seq != next;
        next = block.header.seq.saturating_add(1);
        if block.header.kind == BlockKind::Samples {
            blocks.push(PlacedBlock { block: *block, after_loss: std::mem::take(&mut lost) });
        }
    }
    blocks
}

/// Walks a few blocks, each as one task.
fn walk_window<'i>(
    inputs: &'i BuildInputs<'i>,
    blocks: &[PlacedBlock],
    budget: &ImageBudget,
    workers: &Mutex<Vec<BlockWorker<'i>>>,
) -> Vec<BlockProfile> {
    // Workers hold the lock only for a push or a pop, and do not panic there.
    let idle = || workers.lock().unwrap_or_else(PoisonError::into_inner);
    let walk = |block: &PlacedBlock| {
        let worker = idle().pop();
        let mut worker = worker.unwrap_or_else(|| BlockWorker::new(inputs, budget));
        let profile = worker.block(&block.block);
        idle().push(worker);
        profile
    };
    let mut profiles: Vec<BlockProfile> = blocks.par_iter().map(walk).collect();
    for (profile, block) in profiles.iter_mut().zip(blocks) {
        if matches!(profile.error, Some(BlockError::Budget { .. })) {
            // The other workers had used the memory budget. Free the idle workers and walk the
            // block again.
            idle().clear();
            *profile = walk(block);
        }
    }
    profiles
}

#[cfg(test)]
mod code_tests;
#[cfg(test)]
mod cpu_tests;
#[cfg(test)]
mod gap_tests;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod tests;
