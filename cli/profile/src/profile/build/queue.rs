//! Hands the blocks of a trace out to workers, in order, and their results to the merger, in order.

use super::block::{BlockProfile, BlockWorker};
use super::merge::Merger;
use super::{BuildInputs, PlacedBlock};
use crate::profile::{Profile, Runs};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use stk_format::BlockError;

pub(super) struct BlockQueue<'q, 'i> {
    inputs: &'i BuildInputs<'i>,
    blocks: &'q [PlacedBlock],
    /// Blocks that are handed out and not merged, at most.
    window: usize,
    /// Counts samples of merged blocks.
    done: &'q AtomicU64,
    state: Mutex<State<'i>>,
    /// Wakes workers that wait until fewer blocks are in memory, or none is handed out.
    merged: Condvar,
}

struct State<'i> {
    /// The next block to hand out, and the next one to merge.
    next: usize,
    to_merge: usize,
    /// The results from the next one to merge on, as far as they are there.
    walked: VecDeque<Option<BlockProfile>>,
    /// `None` while a worker merges.
    merger: Option<Box<Merger<'i>>>,
    /// No further block is handed out: one found no memory, or an error ended all.
    is_closed: bool,
    error: Option<io::Error>,
}

impl<'q, 'i> BlockQueue<'q, 'i> {
    pub(super) fn new(
        inputs: &'i BuildInputs<'i>,
        blocks: &'q [PlacedBlock],
        merger: Merger<'i>,
        done: &'q AtomicU64,
    ) -> BlockQueue<'q, 'i> {
        let state = State {
            next: 0,
            to_merge: 0,
            walked: VecDeque::new(),
            merger: Some(Box::new(merger)),
            is_closed: false,
            error: None,
        };
        // So many that a worker seldom waits for the one that merges.
        let window = 4 * rayon::current_num_threads();
        BlockQueue { inputs, blocks, window, done, state: Mutex::new(state), merged: Condvar::new() }
    }

    /// Walks and merges blocks until none is left.
    pub(super) fn work(&self, worker: &mut BlockWorker<'_>) {
        let _close = CloseOnPanic(self);
        while let Some(at) = self.take() {
            self.give(at, worker.block(&self.blocks[at]));
        }
    }

    /// The next block that is not handed out. Waits while as many as the window are in memory: one
    /// of them is being walked or merged, by a worker that does not wait.
    fn take(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if let Err(error) = self.inputs.options.deadline.check() {
                state.fail(error);
                self.merged.notify_all();
            }
            if state.is_closed || state.next == self.blocks.len() {
                return None;
            }
            if state.next < state.to_merge + self.window {
                state.next += 1;
                return Some(state.next - 1);
            }
            state = self.merged.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the result of a block. Merges it and those behind it unless results before it are
    /// missing, or another worker merges.
    fn give(&self, at: usize, profile: BlockProfile) {
        let mut state = self.lock();
        if is_starved(&profile) {
            state.is_closed = true;
            self.merged.notify_all();
        }
        let place = at - state.to_merge;
        if state.walked.len() <= place {
            state.walked.resize_with(place + 1, || None);
        }
        state.walked[place] = Some(profile);
        self.merge(state);
    }

    /// The first block not merged, if it had too little memory. To be called when no worker is at
    /// work.
    pub(super) fn starved(&self) -> Option<&PlacedBlock> {
        let state = self.lock();
        let first = state.walked.front()?.as_ref()?;
        (is_starved(first) && state.error.is_none()).then(|| &self.blocks[state.to_merge])
    }

    /// Takes that block's result instead. Blocks are handed out again.
    pub(super) fn give_again(&self, profile: BlockProfile) {
        let mut state = self.lock();
        let Some(mut merger) = state.merger.take() else { return };
        state = self.merge_block(state, &mut merger, profile);
        state.is_closed = state.error.is_some() || merger.is_full();
        state.merger = Some(merger);
        self.merge(state);
    }

    /// Merges the results that are there.
    fn merge<'s>(&'s self, mut state: MutexGuard<'s, State<'i>>) {
        let Some(mut merger) = state.merger.take() else { return };
        while state.error.is_none()
            && let Some(first) = state.walked.front_mut()
            && let Some(profile) = first.take_if(|profile| !is_starved(profile))
        {
            state = self.merge_block(state, &mut merger, profile);
        }
        state.merger = Some(merger);
    }

    /// Merges the next block. The queue is open to others meanwhile.
    fn merge_block<'s>(
        &'s self,
        state: MutexGuard<'s, State<'i>>,
        merger: &mut Merger<'i>,
        profile: BlockProfile,
    ) -> MutexGuard<'s, State<'i>> {
        let block = &self.blocks[state.to_merge];
        drop(state);
        let merged = merger.block(block, profile);
        self.done.fetch_add(u64::from(block.block.header.samples), Ordering::Relaxed);
        self.inputs.trace.release(block.block.offset as usize);
        let mut state = self.lock();
        state.walked.pop_front();
        state.to_merge += 1;
        if let Err(error) = merged {
            state.fail(error);
        }
        state.is_closed |= merger.is_full();
        self.merged.notify_all();
        state
    }

    /// The finished profile.
    pub(super) fn finish(self) -> io::Result<(Profile, Runs)> {
        let State { to_merge, merger, error, .. } =
            self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error {
            return Err(error);
        }
        let mut merger = *merger.ok_or_else(|| io::Error::other("a worker ended early"))?;
        // Of these, memory or time were used up.
        self.blocks[to_merge..].iter().for_each(|block| merger.leave_out(block));
        merger.finish()
    }

    fn lock(&self) -> MutexGuard<'_, State<'i>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State<'_> {
    fn fail(&mut self, error: io::Error) {
        self.error.get_or_insert(error);
        self.is_closed = true;
    }
}

/// Whether the workers together had too little memory for a block.
fn is_starved(profile: &BlockProfile) -> bool {
    matches!(profile.error, Some(BlockError::Budget { .. }))
}

/// Ends the wait of the other workers when one panics.
struct CloseOnPanic<'q, 'b, 'i>(&'q BlockQueue<'b, 'i>);

impl Drop for CloseOnPanic<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().is_closed = true;
            self.0.merged.notify_all();
        }
    }
}
