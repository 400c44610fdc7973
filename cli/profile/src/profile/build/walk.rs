//! A sample's stack within a block: walked, then interned.

use super::block::{BlockReader, BlockStack, PendingStep, Slot, StepStack, WalkedStep};
use super::stacks::{BaseStack, WorkerStackId};
use crate::profile::activity::is_behind_call;
use crate::profile::{FrameKey, Placement, RunFlags};
use crate::stack::{Assumed, StackEnd, StopReason, cost};
use crate::trace::{ManagedState, SampleCopy, Timeline, registers, walk_input};
use stk_format::Sample;
use stk_schema::Ticks;
use stk_unwind::{Frame, Stop};

impl BlockReader<'_, '_> {
    /// Walks a sample, and beyond gaps as far as the runtime's report on its thread leads.
    pub(super) fn walk(&mut self, sample: &Sample<'_>, managed: Option<ManagedState>) -> BlockStack {
        let at = sample.slot as usize;
        let stop = self.walk_code(sample);
        if let (Ok(stop), Some(managed)) = (stop, managed) {
            if let Some(copy) = SampleCopy::of(sample).filter(|_| self.walker.may_continue(stop)) {
                self.walker.continue_walk(&copy.sample(), &managed, stop, &mut self.slots[at].stack);
            }
            self.slots[at].managed = Some(managed);
        }
        if stop.is_ok() {
            self.hash(at);
        }
        self.finish(at, stop, sample.time)
    }

    /// Completes the step before: all events that follow its sample or IDLE have been read.
    pub(super) fn release(&mut self) {
        if let Some(WalkedStep { slot, mut step, stop }) = self.walked_step.take() {
            step.stack = StepStack::Known(self.finish(slot, stop, step.first));
            self.push(Some(slot), step);
        }
        if let Some(idle) = self.idle.take() {
            self.push(None, idle);
        }
        let Some(PendingStep { slot, mut step, stop, copy, managed }) = self.pending.take() else { return };
        if let Some(managed) = managed {
            self.walker.continue_walk(&copy.sample(), &managed, stop, &mut self.slots[slot].stack);
            self.slots[slot].managed = Some(managed);
        }
        self.hash(slot);
        step.stack = StepStack::Known(self.finish(slot, Ok(stop), step.first));
        self.push(Some(slot), step);
    }

    /// Walks a sample by its code alone.
    pub(super) fn walk_code(&mut self, sample: &Sample<'_>) -> Result<Stop, StopReason> {
        let at = sample.slot as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        if !slot.live {
            slot.stack.clear();
            slot.hashes.clear();
            slot.base = None;
            slot.step = None;
            slot.deepest = 0;
            slot.live = true;
            slot.thread = sample.thread;
        }
        if slot.stack.leave_gap() {
            // The hashes belong to a longer stack.
            slot.hashes.clear();
        }
        slot.managed = None;
        let mut flags = RunFlags::empty();
        flags.set(RunFlags::TRUNCATED, sample.truncated);
        flags.set(RunFlags::TRIGGERED, sample.tag.is_some());
        flags.set(RunFlags::TABLES_PENDING, sample.tables_pending);
        let arch = self.inputs.trace.header().arch;
        flags.set(RunFlags::ASSUMED, self.known && self.assumed == Assumed::All);
        flags.set(RunFlags::BEHIND_CALL, is_behind_call(arch, sample.code_at_ip));
        slot.flags = flags;
        slot.tag = sample.tag.unwrap_or(0);
        if !self.known {
            return Err(StopReason::ModulesUnknown);
        }
        // By reference: the registers of arm64 make the type large.
        let registers = registers(sample.set, sample.registers);
        let Some(registers) = &registers else { return Err(StopReason::RegistersUnknown) };
        let input = walk_input(sample, registers);
        let stop = self.walker.walk_next(&input, sample.time, sample.unchanged_from, &mut slot.stack);
        if sample.tables_pending && matches!(stop, Stop::NoUnwindData { .. }) {
            self.out.tables_pending += 1;
        }
        Ok(stop)
    }

    /// Interns what was walked at `time`, and hashed if it was walked.
    pub(super) fn finish(&mut self, at: usize, stop: Result<Stop, StopReason>, time: Ticks) -> BlockStack {
        let (id, end) = match stop {
            Ok(stop) => (self.intern(at), self.slots[at].stack.end(stop)),
            Err(reason) => (None, StackEnd::without_walk(reason)),
        };
        let reason = self.assumed.reason(end.reason, self.slots[at].stack.frames());
        let stop = self.stop((reason, end.module()));
        let slot = &mut self.slots[at];
        let left_out = slot.stack.left_out();
        self.out.too_deep += u64::from(left_out > 0);
        self.out.most_left_out = self.out.most_left_out.max(left_out);
        let walked = BlockStack { id, stop, flags: slot.flags, tag: slot.tag };
        slot.last = Some(walked);
        slot.expires = self.inputs.expires(slot.stack.frames(), slot.stack.stops(), time);
        self.out.cost += cost::LATE_MODULE * self.inputs.late.len() as u64;
        walked
    }

    /// Hashes the stack of the last walk. Frames taken over from the walk before already have their
    /// hashes.
    pub(super) fn hash(&mut self, at: usize) {
        let BlockReader { slots, stacks, inputs, walked, assumed, .. } = self;
        let Slot { stack, hashes, shared, deepest, .. } = &mut slots[at];
        hashes.truncate(stack.reused());
        *shared = hashes.len();
        for frame in stack.frames_behind(*shared) {
            let key = frame_key(frame, &inputs.trace.timeline, *assumed);
            hashes.push(inputs.hasher.call(hashes.last().copied(), key));
        }
        let len = hashes.len();
        *walked += len.saturating_sub(*deepest);
        *deepest = len.max(*deepest);
        if let Some(&hash) = hashes.last() {
            stacks.expect(hash);
        }
    }

    /// Interns the stack that was hashed.
    fn intern(&mut self, at: usize) -> Option<WorkerStackId> {
        let BlockReader { slots, stacks, inputs, assumed, .. } = self;
        let Slot { stack, hashes, shared, base, .. } = &mut slots[at];
        let shared = *shared;
        let key = |frame| frame_key(frame, &inputs.trace.timeline, *assumed);
        let others = stack.frames_behind(shared).map(key);
        let id = stacks.intern(hashes, (base.filter(|_| shared > 0), shared), others)?;
        *base = Some(BaseStack { id, len: hashes.len() });
        Some(id)
    }
}

fn frame_key(frame: &Frame, timeline: &Timeline, assumed: Assumed) -> FrameKey {
    FrameKey {
        place: Placement::of(timeline, frame),
        // Where an exception interrupted a function, the address is that of an instruction, not a
        // return address.
        exact: frame.trust.is_exact(),
        trust: assumed.trust(frame, timeline),
    }
}
