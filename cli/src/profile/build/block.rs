//! One SAMPLES block: decoded, walked and interned in a call tree of its own, on whatever thread has time.

use super::Inputs;
use super::registers::registers;
use crate::profile::{CallTree, FrameKey, FrameTable, Node, NodeId, Placement, RunFlags};
use crate::trace::{Mark, View};
use std::collections::HashMap;
use stk_format::{BlockError, BlockRef, Decoded, ImageBudget, Sample, Scratch};
use stk_schema::event::{Event, RunState};
use stk_unwind::{Found, Frame, ModuleId, Modules, Stop, Trust, WalkOptions, Walker};

/// What one block gave. Ids are the block's own.
#[derive(Default)]
pub(super) struct BlockProfile {
    pub frames: FrameTable,
    pub tree: CallTree,
    pub stops: Vec<StopKey>,
    pub steps: Vec<Step>,
    pub marks: Vec<Mark>,
    /// Samples and events that the recorder dropped: reason and count.
    pub dropped: Vec<(u64, u64)>,
    pub unknown_events: u64,
    /// Samples that ended for want of tables which the trace never got.
    pub tables_pending: u64,
    /// Why the block could not be read to its end.
    pub error: Option<BlockError>,
}

/// Why stacks of a block end: the reason's name and the module to blame (index in the timeline).
pub(super) type StopKey = (&'static str, Option<u32>);

/// Consecutive samples of a thread that are equal in everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Thread instance.
    pub thread: u64,
    /// Times of the first and the last sample, in ticks.
    pub first: u64,
    pub last: u64,
    /// 0: outside the wanted time; the step only says what the thread's last stack was.
    pub samples: u64,
    /// In the unit of the header.
    pub cpu: i64,
    pub state: RunState,
    pub stack: Stack,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stack {
    /// A stack of this block.
    Known(Walked),
    /// That of the thread's last sample in the SAMPLES block with this ordinal.
    LastOf(u64),
}

/// A walked stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Walked {
    pub node: Option<NodeId>,
    /// Index in [`BlockProfile::stops`].
    pub stop: u16,
    pub flags: RunFlags,
}

/// What a worker keeps from block to block.
pub(super) struct Worker<'i> {
    inputs: &'i Inputs<'i>,
    scratch: Scratch,
    walker: Walker,
    view: View<'i>,
    walk: Vec<Frame>,
    slots: Vec<Slot>,
}

/// A thread within a block.
#[derive(Default)]
struct Slot {
    /// Its last walk, innermost frame first, and the node of each frame.
    frames: Vec<Frame>,
    nodes: Vec<NodeId>,
    last: Option<Walked>,
    /// Index of its latest step.
    step: Option<usize>,
    /// Walked in this block.
    live: bool,
}

impl<'i> Worker<'i> {
    pub fn new(inputs: &'i Inputs<'i>, budget: &ImageBudget) -> Worker<'i> {
        let mut options = WalkOptions::default();
        options.scan = inputs.options.scan;
        Worker {
            inputs,
            scratch: Scratch::with_budget(budget),
            walker: Walker::new(options),
            view: inputs.trace.timeline.view(),
            walk: Vec::new(),
            slots: Vec::new(),
        }
    }

    /// Reads a block as far as it can be read.
    pub fn block(&mut self, block: &BlockRef) -> BlockProfile {
        let Worker { inputs, scratch, walker, view, walk, slots } = self;
        for slot in slots.iter_mut() {
            slot.live = false;
        }
        let mut reader = Reader {
            inputs,
            walker,
            view,
            walk,
            slots,
            known: block.metadata_known,
            stop_ids: HashMap::new(),
            out: BlockProfile::default(),
        };
        match inputs.trace.blocks().samples(block, scratch) {
            Ok(mut samples) => loop {
                match samples.next() {
                    Ok(Some(decoded)) => reader.step(decoded),
                    Ok(None) => break,
                    Err(error) => {
                        reader.out.error = Some(error);
                        break;
                    }
                }
            },
            Err(error) => reader.out.error = Some(error),
        }
        reader.out
    }
}

/// A block being read.
struct Reader<'w, 'i> {
    inputs: &'i Inputs<'i>,
    walker: &'w mut Walker,
    view: &'w mut View<'i>,
    walk: &'w mut Vec<Frame>,
    slots: &'w mut Vec<Slot>,
    /// Whether modules are known.
    known: bool,
    stop_ids: HashMap<StopKey, u16>,
    out: BlockProfile,
}

impl Reader<'_, '_> {
    fn step(&mut self, decoded: Decoded<'_>) {
        match decoded {
            Decoded::Sample(sample) => {
                if !self.inputs.wants_thread(sample.thread) {
                    return;
                }
                let slot = sample.slot as usize;
                let walked = self.walk(&sample);
                let step = Step {
                    thread: sample.thread,
                    first: sample.time,
                    last: sample.time,
                    samples: 1,
                    cpu: sample.cpu_delta.unwrap_or(0),
                    state: sample.state,
                    stack: Stack::Known(walked),
                };
                self.push(Some(slot), step);
            }
            Decoded::Same(same) => {
                let Some(walked) = self.slots.get(same.slot as usize).filter(|s| s.live).and_then(|s| s.last)
                else {
                    return;
                };
                let step = Step {
                    thread: same.thread,
                    first: same.first,
                    last: same.last,
                    samples: same.ticks,
                    cpu: same.cpu_delta.unwrap_or(0),
                    state: same.state,
                    stack: Stack::Known(Walked { flags: walked.flags - RunFlags::TRIGGERED, ..walked }),
                };
                self.push(Some(same.slot as usize), step);
            }
            Decoded::Idle(idle) => {
                if self.inputs.wants_thread(idle.thread) {
                    let step = Step {
                        thread: idle.thread,
                        first: idle.first,
                        last: idle.last,
                        samples: idle.ticks,
                        cpu: 0,
                        state: idle.state,
                        stack: Stack::LastOf(idle.block),
                    };
                    self.push(None, step);
                }
            }
            Decoded::Other(event) => self.other(&event),
        }
    }

    fn other(&mut self, event: &Event<'_>) {
        match event {
            Event::Mark(mark) => self.out.marks.push(Mark {
                time: mark.time,
                thread: mark.thread,
                tag: mark.tag,
                text: String::from_utf8_lossy(mark.text).into_owned(),
            }),
            Event::Dropped(dropped) => self.out.dropped.push((dropped.reason, dropped.count)),
            Event::Unknown { .. } => self.out.unknown_events += 1,
            _ => {}
        }
    }

    /// Adds a step, to the thread's latest one where nothing but time has passed.
    fn push(&mut self, slot: Option<usize>, step: Step) {
        let step = self.inputs.clip(step);
        let latest = slot.and_then(|slot| self.slots.get(slot)?.step).map(|at| &mut self.out.steps[at]);
        if let Some(latest) = latest
            && latest.stack == step.stack
            && latest.state == step.state
            && (latest.samples == 0) == (step.samples == 0)
        {
            latest.last = latest.last.max(step.last);
            latest.samples += step.samples;
            latest.cpu = latest.cpu.saturating_add(step.cpu);
            return;
        }
        if let Some(slot) = slot.and_then(|slot| self.slots.get_mut(slot)) {
            slot.step = Some(self.out.steps.len());
        }
        self.out.steps.push(step);
    }

    /// Walks a sample.
    fn walk(&mut self, sample: &Sample<'_>) -> Walked {
        let at = sample.slot as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, Slot::default);
        }
        let slot = &mut self.slots[at];
        if !slot.live {
            slot.frames.clear();
            slot.nodes.clear();
            slot.step = None;
            slot.live = true;
        }
        let mut flags = RunFlags::empty();
        flags.set(RunFlags::TRUNCATED, sample.truncated);
        flags.set(RunFlags::TRIGGERED, sample.tag.is_some());
        flags.set(RunFlags::TABLES_PENDING, sample.tables_pending);
        let registers = registers(sample.set, sample.registers).filter(|_| self.known);
        let walked = match registers {
            Some(registers) => {
                self.view.go(sample.time);
                let space = Space { view: self.view, inputs: self.inputs };
                let input = stk_unwind::Sample {
                    registers: &registers,
                    stack: sample.stack,
                    stack_start: sample.stack_start,
                    stack_base: (sample.stack_base != 0).then_some(sample.stack_base),
                    truncated: sample.truncated,
                    code_at_ip: sample.code_at_ip,
                };
                let stop = self.walker.walk(&space, &input, self.walk);
                if sample.tables_pending && matches!(stop, Stop::NoUnwindData { .. }) {
                    self.out.tables_pending += 1;
                }
                let node = self.intern(at);
                let stop = self.stop((stop.as_str(), stop.module().map(|module| module.0)));
                Walked { node, stop, flags }
            }
            None => {
                let reason = if self.known { "registers-unknown" } else { "modules-unknown" };
                Walked { node: None, stop: self.stop((reason, None)), flags }
            }
        };
        self.slots[at].last = Some(walked);
        walked
    }

    /// Interns the frames of the last walk from the root on; those that are as in the slot's walk before cost nothing.
    fn intern(&mut self, at: usize) -> Option<NodeId> {
        let Reader { walk, slots, out, inputs, .. } = self;
        let slot = &mut slots[at];
        let same = |(new, old): &(&Frame, &Frame)| {
            new.address == old.address && new.module == old.module && new.trust == old.trust
        };
        let common = walk.iter().rev().zip(slot.frames.iter().rev()).take_while(same).count();
        slot.nodes.truncate(common);
        let mut parent = slot.nodes.last().copied();
        for frame in walk.iter().rev().skip(common) {
            let place = match frame.module {
                Some(module) => Placement::Image(inputs.image_of(module), frame.rva),
                None => Placement::Unknown(frame.address),
            };
            // What an exception interrupted is an instruction, not a return address.
            let exact = matches!(frame.trust, Trust::Context | Trust::MachineFrame);
            let frame = out.frames.intern(FrameKey { place, exact, trust: frame.trust });
            let node = out.tree.intern(Node { parent, frame });
            slot.nodes.push(node);
            parent = Some(node);
        }
        std::mem::swap(&mut slot.frames, *walk);
        parent
    }

    fn stop(&mut self, key: StopKey) -> u16 {
        let stops = &mut self.out.stops;
        *self.stop_ids.entry(key).or_insert_with(|| {
            // A block holds at most 16 MiB of events and a process far fewer modules than 2^16: ids do not run out in
            // earnest; if they do, the first one stands for the rest.
            if stops.len() > usize::from(u16::MAX) {
                return 0;
            }
            stops.push(key);
            (stops.len() - 1) as u16
        })
    }
}

/// The address space at the moment that the view shows.
struct Space<'a, 'i> {
    view: &'a View<'i>,
    inputs: &'i Inputs<'i>,
}

impl Modules for Space<'_, '_> {
    fn find(&self, address: u64) -> Option<Found<'_>> {
        let live = self.view.find(address)?;
        Some(Found {
            module: ModuleId(live.module),
            base: live.base,
            image: &self.inputs.images[live.image.0 as usize].tables,
            image_key: live.image.0,
        })
    }
}
