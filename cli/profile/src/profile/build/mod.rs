//! Builds a profile from a trace. Workers, one a thread, walk the SAMPLES blocks, each the next one
//! that none has taken, and list their distinct stacks. The results are merged in block order, by
//! whichever worker has the next one ready. At most four blocks a thread are in memory at once,
//! however long the trace is.

mod block;
mod facts;
mod merge;
mod queue;
mod stacks;
mod thread_clock;
mod unread;
mod walk;

pub use unread::unread_ns;

use self::block::BlockWorker;
use self::merge::Merger;
use self::queue::BlockQueue;
use self::stacks::StackHasher;
use super::{Profile, Runs};
use crate::image::ModuleImage;
use crate::runtimes::dotnet::explicit::ExplicitFrames;
use crate::trace::{Module, Trace};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use stk_base::deadline::Deadline;
use stk_base::model::CodeOwner;
use stk_format::{BlockKind, BlockRef, ImageBudget};
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
    let threads = rayon::current_num_threads().min(blocks.len());
    let queue = BlockQueue::new(&inputs, &blocks, Merger::new(&inputs), done);
    loop {
        rayon::scope(|scope| {
            for worker in (FIRST_WORKER..).take(threads) {
                let (queue, inputs, budget) = (&queue, &inputs, &budget);
                scope.spawn(move |_| queue.work(&mut BlockWorker::new(inputs, budget, worker)));
            }
        });
        // The other workers had used the memory budget. They are gone: walk the block again.
        let Some(block) = queue.starved() else { break };
        let again = BlockWorker::new(&inputs, &budget, ALONE).block(block);
        queue.give_again(again);
    }
    let (mut profile, runs) = queue.finish()?;
    profile.losses.damaged_blocks.extend(trace.lost());
    Ok((profile, runs))
}

/// Numbers of workers: the one that walks single samples again, the one that walks a block for
/// which the others left no memory, the first of the others.
const AGAIN: u32 = 0;
const ALONE: u32 = 1;
const FIRST_WORKER: u32 = 2;

/// A SAMPLES block in the trace.
#[derive(Clone, Copy, Debug)]
struct PlacedBlock {
    block: BlockRef,
    /// Its number among the SAMPLES blocks.
    number: u32,
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
    /// How many tables of stacks were begun.
    tables: AtomicU32,
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
        let (hasher, tables) = (StackHasher::new(), AtomicU32::new(0));
        BuildInputs { trace, images, options, late, changes, explicit, hasher, tables }
    }

    /// Number of a new table of stacks.
    fn next_table(&self) -> u32 {
        self.tables.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
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
        let expiry = |frame: &Frame| match frame.module.map(CodeOwner::of) {
            Some(CodeOwner::Module(module)) => modules[module as usize].unload,
            Some(CodeOwner::Code(region)) => timeline.code[region as usize].remove,
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
            let number = blocks.len() as u32;
            blocks.push(PlacedBlock { block: *block, number, after_loss: std::mem::take(&mut lost) });
        }
    }
    blocks
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
