//! Compares our walks with those that the system's own unwinder made of the same stacks at the same
//! moment (`inject --check-walks`).
//!
//! Takes a trace and the loaded images, and returns a [`Comparison`]: how many walks are equal
//! frame by frame (instruction pointer and stack pointer), and why the others differ. The system's
//! unwinder has faults of its own, so it cannot decide which walk is right. Each difference gets a
//! [`DifferenceClass`], and an explained one only if the sample's own bytes prove it ([`classify`]:
//! code run to its return, unwind data, stop reasons). All others are
//! [`DifferenceClass::Unexplained`].
//!
//! [`explicit`] does the same with a .NET runtime's own view of its stacks, its explicit Frames.

mod classify;
pub mod explicit;
mod pinvoke_return;
mod replay;

pub use classify::DifferenceClass;

use crate::image::{ModuleImage, ModuleMap, base_of, holder_name};
use crate::stack::{StackWalker, cost};
use crate::trace::{Timeline, Trace, beyond_cost, registers, walk_input};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use stk_format::{BlockError, BlockRef, Sample, SampleStep, Scratch};
use stk_schema::Ticks;
use stk_schema::event::{CheckWalk, Event};
use stk_unwind::{Frame, ModuleId, Modules as _, Stop, WalkOptions, Walker};

/// Examples kept of each class.
const EXAMPLES: usize = 3;

/// The result for a trace's recorded walks.
#[derive(Default, Debug)]
pub struct Comparison {
    /// Samples with registers and a stack, walked or not.
    pub samples: u64,
    /// Recorded walks.
    pub walks: u64,
    /// Walks that are equal in every frame.
    pub equal: u64,
    /// Number of frames of the equal walks.
    pub equal_frames: u64,
    /// Walks that the recorder discarded because the loader lock was taken, or because its watchdog
    /// had to end the walk.
    pub discarded: u64,
    /// Walks that cannot be compared, because their sample or the modules at that time are not
    /// known.
    pub unmatched: u64,
    /// Differences by class.
    pub differences: BTreeMap<DifferenceClass, Differences>,
    /// How explicit Frames agree with our walks.
    pub explicit: explicit::ExplicitComparison,
    /// Blocks that could not be read to their end.
    pub damage: Vec<String>,
}

/// The differences of one class.
#[derive(Default, Debug)]
pub struct Differences {
    /// How many there are.
    pub count: u64,
    /// The first of them, by block.
    pub examples: Vec<Example>,
}

/// One walk that differs.
#[derive(Clone, Debug)]
pub struct Example {
    /// Thread instance.
    pub thread: u64,
    /// When it was sampled.
    pub time: Ticks,
    /// Number of the first frame that differs, from 0.
    pub frame: usize,
    /// The frame before it, which both walks have, if there is one.
    pub before: Option<Side>,
    /// Our frame, if our walk has it.
    pub ours: Option<Side>,
    /// The system's frame, if its walk has it.
    pub system: Option<Side>,
    /// Why our walk ended.
    pub stop: Stop,
    /// Code bytes at the sample's instruction pointer.
    pub code: Vec<u8>,
}

/// One frame of one walk.
#[derive(Clone, Debug)]
pub struct Side {
    /// Instruction pointer or return address.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// File name of the module that holds `ip`; empty if none does.
    pub module: String,
    /// `ip` relative to that module; `ip` itself without one.
    pub rva: u64,
}

impl Comparison {
    /// Differences without a proven explanation.
    pub fn unexplained(&self) -> u64 {
        self.differences.get(&DifferenceClass::Unexplained).map_or(0, |differences| differences.count)
    }

    /// Walks that differ, explained or not.
    pub fn different(&self) -> u64 {
        self.differences.values().map(|differences| differences.count).sum()
    }

    fn add(&mut self, other: Comparison) {
        self.samples += other.samples;
        self.walks += other.walks;
        self.equal += other.equal;
        self.equal_frames += other.equal_frames;
        self.discarded += other.discarded;
        self.unmatched += other.unmatched;
        self.explicit.add(other.explicit);
        self.damage.extend(other.damage);
        for (class, differences) in other.differences {
            let known = self.differences.entry(class).or_default();
            known.count += differences.count;
            let room = EXAMPLES.saturating_sub(known.examples.len());
            known.examples.extend(differences.examples.into_iter().take(room));
        }
    }
}

/// Compares all recorded walks of a trace; each block is one task. `done` counts blocks. Runs in
/// the caller's rayon pool.
pub fn compare(trace: &Trace<'_>, images: &[ModuleImage], done: &AtomicU64) -> Comparison {
    let checks = explicit::Checks::new(trace);
    let blocks: Vec<&BlockRef> = trace.sample_blocks().collect();
    let workers = Mutex::new(Vec::new());
    let mut all = Comparison::default();
    let mut cost_left = cost::of_trace(trace);
    let mut left_out = 0;
    // A few blocks at a time, since only the shown part of their results is kept.
    for some in blocks.chunks(4 * rayon::current_num_threads()) {
        let compare = |block: &&BlockRef| {
            let idle = || workers.lock().unwrap_or_else(PoisonError::into_inner);
            let worker = idle().pop();
            let mut worker = worker.unwrap_or_else(|| ComparisonWorker::new(trace, images, &checks));
            let part = worker.block(block);
            idle().push(worker);
            done.fetch_add(1, Ordering::Relaxed);
            part
        };
        if cost_left == 0 {
            left_out += some.iter().map(|block| u64::from(block.header.samples)).sum::<u64>();
            continue;
        }
        let parts: Vec<(Comparison, u64)> = some.par_iter().map(compare).collect();
        for (part, cost) in parts {
            all.add(part);
            cost_left = cost_left.saturating_sub(cost);
        }
    }
    if left_out > 0 {
        all.damage.push(beyond_cost(left_out, trace));
    }
    all
}

/// What a task keeps between blocks.
struct ComparisonWorker<'t> {
    trace: &'t Trace<'t>,
    walker: StackWalker<'t>,
    /// Walks from the addresses that a proof needs. It is separate since its rules are made without
    /// the sample's code.
    prover: Walker,
    scratch: Scratch,
    frames: Vec<Frame>,
    checks: &'t explicit::Checks,
}

impl<'t> ComparisonWorker<'t> {
    fn new(
        trace: &'t Trace<'t>,
        images: &'t [ModuleImage],
        checks: &'t explicit::Checks,
    ) -> ComparisonWorker<'t> {
        ComparisonWorker {
            trace,
            checks,
            walker: StackWalker::new(trace, images, checks.explicit(), WalkOptions::default()),
            prover: Walker::new(WalkOptions::default()),
            scratch: Scratch::new(),
            frames: Vec::new(),
        }
    }

    /// Compares the walks of a block. Also returns the cost.
    fn block(&mut self, block: &BlockRef) -> (Comparison, u64) {
        let mut out = Comparison::default();
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut cost = 0;
        if let Err(error) = self.read(block, &mut scratch, &mut out, &mut cost) {
            out.damage.push(error.to_string());
        }
        self.scratch = scratch;
        (out, cost)
    }

    fn read(
        &mut self,
        block: &BlockRef,
        scratch: &mut Scratch,
        out: &mut Comparison,
        cost: &mut u64,
    ) -> Result<(), BlockError> {
        let mut samples = self.trace.blocks().samples(block, scratch)?;
        // The view's earlier moment depends on which worker took which block, so this move is not
        // counted.
        self.walker.space(block.header.first);
        self.walker.take_cost();
        let most_cost = cost::of_block(self.trace, block);
        // Time and slot of the last sample of each thread that has no walk yet.
        let mut last: BTreeMap<u64, (Ticks, u32)> = BTreeMap::new();
        // The latest sample, until what a runtime said of it has been read.
        let mut waiting: Option<explicit::WaitingSample> = None;
        while let Some(decoded) = samples.next()? {
            *cost += self.walker.take_cost();
            if *cost > most_cost {
                out.damage.push(cost::beyond_block(block));
                break;
            }
            if let SampleStep::Other(event) = &decoded {
                if waiting.as_mut().is_some_and(|waiting| waiting.take(event)) {
                    continue;
                }
            } else if let Some(waiting) = waiting.take() {
                *cost += self.check(&waiting, out);
            }
            let walk = match decoded {
                SampleStep::Sample(sample) => {
                    out.samples += 1;
                    last.insert(sample.thread, (sample.time, sample.slot));
                    if block.metadata_known && self.checks.can_be_made() {
                        waiting = explicit::WaitingSample::of(&sample);
                    }
                    continue;
                }
                SampleStep::Other(Event::CheckWalk(walk)) => walk,
                _ => continue,
            };
            out.walks += 1;
            if walk.flags & CheckWalk::DISCARDED != 0 {
                out.discarded += 1;
                continue;
            }
            let sampled = last.remove(&walk.thread);
            let sampled = sampled.filter(|&(time, _)| time == walk.time && block.metadata_known);
            match sampled.and_then(|(_, slot)| samples.last_sample(slot)) {
                Some(sample) => self.compare(&sample, &walk, out),
                None => out.unmatched += 1,
            }
        }
        if let Some(waiting) = waiting {
            *cost += self.check(&waiting, out);
        }
        Ok(())
    }

    /// Compares the explicit Frames of a sample with our walk. Returns the cost.
    fn check(&mut self, waiting: &explicit::WaitingSample, out: &mut Comparison) -> u64 {
        let time = self.trace.clock.ns(waiting.time);
        self.checks.check(waiting, time, &mut self.walker, &mut out.explicit);
        // The contract's own walk of the same stack takes a few times as long.
        4 * self.walker.take_cost()
    }

    fn compare(&mut self, sample: &Sample<'_>, walk: &CheckWalk, out: &mut Comparison) {
        let Some(context) = registers(sample.set, sample.registers) else {
            out.unmatched += 1;
            return;
        };
        let input = walk_input(sample, &context);
        let stop = self.walker.walk_code(&input, walk.time, &mut self.frames);
        let ours = self.frames.iter().map(|frame| (frame.address, frame.sp));
        let equal = ours.zip(&walk.frames).take_while(|(ours, theirs)| ours == *theirs).count();
        if equal == self.frames.len() && equal == walk.frames.len() {
            out.equal += 1;
            out.equal_frames += equal as u64;
            return;
        }
        let case = classify::Case { input: &input, frames: &self.frames, stop, walk, equal };
        let space = self.walker.space(walk.time);
        let class = classify::classify(&case, &space, &mut self.prover);
        let example = example(&case, &self.trace.timeline, &space);
        let known = out.differences.entry(class).or_default();
        known.count += 1;
        if known.examples.len() < EXAMPLES {
            known.examples.push(example);
        }
    }
}

/// A difference, in the form for users.
fn example(case: &classify::Case<'_>, timeline: &Timeline, space: &ModuleMap<'_, '_>) -> Example {
    // The module that the walk found, or else the one that holds the address.
    let side = |frame: (u64, u64), found: Option<ModuleId>| {
        side(timeline, frame, found.or_else(|| Some(space.find(frame.0)?.module)))
    };
    let ours = |at: usize| case.frames.get(at).map(|f| side((f.address, f.sp), f.module));
    let system = case.walk.frames.get(case.equal).map(|&frame| side(frame, None));
    Example {
        thread: case.walk.thread,
        time: case.walk.time,
        frame: case.equal,
        before: case.equal.checked_sub(1).and_then(ours),
        ours: ours(case.equal),
        system,
        stop: case.stop,
        code: case.input.code_at_ip.unwrap_or_default().to_vec(),
    }
}

/// A frame with the module or the dynamic code that holds it.
fn side(timeline: &Timeline, (ip, sp): (u64, u64), holder: Option<ModuleId>) -> Side {
    let base = holder.and_then(|id| base_of(timeline, id));
    let module = holder.map_or("", |id| holder_name(timeline, id)).to_owned();
    Side { ip, sp, module, rva: ip.wrapping_sub(base.unwrap_or(0)) }
}

#[cfg(test)]
mod explicit_tests;
#[cfg(test)]
mod tests;
