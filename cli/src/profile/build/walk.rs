//! A sample's walk within a block: as far as its code leads, beyond a gap if a runtime said how, then interned.

use super::block::{Reader, Slot, Stack, Walked};
use super::gap::Held;
use crate::image::AddressSpace;
use crate::model::Holder;
use crate::profile::{FrameKey, Node, NodeId, Placement, RunFlags};
use crate::runtimes::dotnet::explicit::PAST_GAP;
use crate::trace::{Kept, Managed, registers, walk_input};
use stk_format::Sample;
use stk_unwind::Stop;

impl Reader<'_, '_> {
    /// Walks a sample, as far as it goes with what the runtime said of its thread.
    pub(super) fn walk(&mut self, sample: &Sample<'_>, managed: Option<Managed>) -> Walked {
        let at = sample.slot as usize;
        let stop = self.walk_native(sample);
        if let (Ok(stop), Some(managed)) = (stop, managed) {
            if let Some(kept) = Kept::of(sample).filter(|_| self.inputs.explicit.may_go_on(stop)) {
                self.go_on(at, stop, &kept, &managed);
            }
            self.slots[at].managed = Some(managed);
        }
        self.finish(at, stop, sample.time)
    }

    /// Ends what was held back: what follows its sample has been read.
    pub(super) fn release(&mut self) {
        let Some(Held { slot, mut step, stop, kept, managed }) = self.held.take() else { return };
        if let Some(managed) = managed {
            self.go_on(slot, stop, &kept, &managed);
            self.slots[slot].managed = Some(managed);
        }
        step.stack = Stack::Known(self.finish(slot, Ok(stop), step.first));
        self.push(Some(slot), step);
    }

    /// Finds the frames beyond a gap.
    fn go_on(&mut self, at: usize, stop: Stop, kept: &Kept, managed: &Managed) {
        let Reader { slots, inputs, walker, view, .. } = self;
        let Slot { history, beyond, beyond_stop, .. } = &mut slots[at];
        let space = AddressSpace::new(view, inputs.images);
        let sp = history.frames().last().map_or(0, |frame| frame.sp);
        let end = inputs.explicit.go_on(&space, walker, &kept.sample(), managed, (sp, stop), |frame, _| {
            beyond.push(*frame);
        });
        *beyond_stop = (!beyond.is_empty()).then_some(end);
    }

    /// Walks a sample by what is known of its code alone.
    ///
    /// # Errors
    ///
    /// Why it cannot be walked.
    pub(super) fn walk_native(&mut self, sample: &Sample<'_>) -> Result<Stop, &'static str> {
        let at = sample.slot as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        if !slot.live {
            slot.history.clear();
            slot.nodes.clear();
            slot.step = None;
            slot.live = true;
            slot.thread = sample.thread;
        }
        if slot.beyond_stop.take().is_some() {
            // The nodes are those of a longer stack.
            slot.beyond.clear();
            slot.nodes.clear();
        }
        slot.managed = None;
        let mut flags = RunFlags::empty();
        flags.set(RunFlags::TRUNCATED, sample.truncated);
        flags.set(RunFlags::TRIGGERED, sample.tag.is_some());
        flags.set(RunFlags::TABLES_PENDING, sample.tables_pending);
        slot.flags = flags;
        if !self.known {
            return Err("modules-unknown");
        }
        let registers = registers(sample.set, sample.registers).ok_or("registers-unknown")?;
        self.view.go(sample.time);
        let space = AddressSpace::new(self.view, self.inputs.images);
        let input = walk_input(sample, &registers);
        // Under other modules even the same words mean something else.
        let epoch = self.view.epoch();
        let unchanged_from = if epoch == slot.epoch { sample.unchanged_from } else { u64::MAX };
        slot.epoch = epoch;
        let stop = self.walker.walk_again(&space, &input, unchanged_from, &mut slot.history);
        if sample.tables_pending && matches!(stop, Stop::NoUnwindData { .. }) {
            self.out.tables_pending += 1;
        }
        Ok(stop)
    }

    /// Interns what was walked at `time`.
    pub(super) fn finish(&mut self, at: usize, stop: Result<Stop, &'static str>, time: u64) -> Walked {
        let flags = self.slots[at].flags;
        let walked = match stop {
            Ok(stop) => {
                let node = self.intern(at);
                let key = match self.slots[at].beyond_stop {
                    // What the stack lacks is still to blame on what the first walk stumbled over.
                    Some(Stop::ThreadStart) => (PAST_GAP, stop.module()),
                    end => (end.unwrap_or(stop).as_str(), end.unwrap_or(stop).module()),
                };
                Walked { node, stop: self.stop((key.0, key.1.map(|module| module.0))), flags }
            }
            Err(reason) => Walked { node: None, stop: self.stop((reason, None)), flags },
        };
        let slot = &mut self.slots[at];
        slot.last = Some(walked);
        let stops = slot.history.stop().into_iter().chain(slot.beyond_stop);
        slot.expires = self.inputs.expires(slot.history.frames().iter().chain(&slot.beyond), stops, time);
        walked
    }

    /// Interns the frames of the last walk from the root on; those that were taken over from the walk before have their
    /// nodes.
    fn intern(&mut self, at: usize) -> Option<NodeId> {
        let Reader { slots, out, inputs, .. } = self;
        let Slot { history, nodes, beyond, .. } = &mut slots[at];
        if beyond.is_empty() {
            nodes.truncate(history.reused());
        } else {
            nodes.clear();
        }
        let mut parent = nodes.last().copied();
        for frame in history.frames().iter().chain(&*beyond).rev().skip(nodes.len()) {
            let place = match frame.module {
                Some(id) => match Holder::of(id) {
                    Holder::Module(module) => Placement::Image(inputs.image_of(module), frame.rva),
                    Holder::Code(region) => Placement::Code(region, frame.rva),
                },
                None => Placement::Unknown(frame.address),
            };
            // What an exception interrupted is an instruction, not a return address.
            let exact = frame.trust.is_exact();
            let frame = out.frames.intern(FrameKey { place, exact, trust: frame.trust });
            let node = out.tree.intern(Node { parent, frame });
            nodes.push(node);
            parent = Some(node);
        }
        parent
    }
}
