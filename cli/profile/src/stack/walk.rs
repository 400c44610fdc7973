//! Walks a sample's stack: as far as the code leads, then beyond gaps by what a language runtime
//! reported about the thread.

use super::cost::FRAME;
use super::hash_index::load_ahead;
use crate::image::{ModuleImage, ModuleMap};
use crate::runtimes::dotnet::explicit::ExplicitFrames;
use crate::trace::{ManagedState, Timeline, TimelineCursor, Trace};
use serde::{Serialize, Serializer};
use std::collections::VecDeque;
use stk_base::model::CodeOwner;
use stk_format::BlockRef;
use stk_schema::Ticks;
use stk_schema::registers::RegisterSet;
use stk_unwind::x64::{R10, X64Registers};
use stk_unwind::{
    Arch, Frame, History, ModuleId, Modules as _, Registers, Sample, Stop, StopKind, Trust, WalkOptions,
    Walker,
};

/// Walks the stacks of one trace.
pub struct StackWalker<'i> {
    images: &'i [ModuleImage],
    explicit: &'i ExplicitFrames,
    view: TimelineCursor<'i>,
    walker: Walker,
    options: WalkOptions,
    /// Walks stacks deeper than the options allow. Made when it is first needed.
    deep: Option<Walker>,
    /// Frames found since the last [`take_cost`](Self::take_cost).
    found: usize,
}

/// Outermost frames that are shown of a stack that is too deep.
const ROOT_FRAMES: usize = 16;
/// Frames of the deepest stack whose outermost ones are looked for: one of 16 MiB has no more.
const DEEPEST: usize = 1 << 20;

/// A thread's stack, walked sample after sample. Each walk covers only what changed since the one
/// before.
#[derive(Default, Debug)]
pub struct ThreadStack {
    /// The walk by code alone.
    history: History,
    /// Epoch of the modules at that walk.
    epoch: usize,
    /// Frames beyond the gap at which that walk ended, innermost first, and why there are no more.
    beyond: Vec<Frame>,
    beyond_stop: Option<Stop>,
    /// Frames between that are not shown: the stack is too deep.
    left_out: u64,
}

/// Why there are no more frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackEnd {
    /// The reason that stacks are grouped by.
    pub reason: StopReason,
    /// How the walk ended that is to blame; `None` if there was no walk.
    stop: Option<Stop>,
}

/// What of a block's stacks is assumed, since a block before it is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assumed {
    /// Nothing: no block that it depends on is lost.
    Nothing,
    /// Dynamic code that was there before this time: modules are known again, code is not.
    CodeBefore(Ticks),
    /// All modules and code.
    All,
}

impl Assumed {
    pub fn of(block: &BlockRef) -> Assumed {
        match (block.metadata_known, block.confirmed_at) {
            (false, _) => Assumed::All,
            (true, Some(time)) => Assumed::CodeBefore(time),
            (true, None) => Assumed::Nothing,
        }
    }

    /// How far a frame can be trusted.
    pub fn trust(self, frame: &Frame, timeline: &Timeline) -> Trust {
        let code = || match frame.module.map(CodeOwner::of) {
            Some(CodeOwner::Code(region)) => timeline.code.get(region as usize),
            _ => None,
        };
        let is_assumed = match self {
            Assumed::Nothing => false,
            Assumed::CodeBefore(time) => code().is_some_and(|code| code.add <= time),
            Assumed::All => true,
        };
        if is_assumed { Trust::Assumed } else { frame.trust }
    }

    /// Why a stack with these frames ends.
    pub fn reason<'f>(self, reason: StopReason, mut frames: impl Iterator<Item = &'f Frame>) -> StopReason {
        let is_cut =
            matches!(reason, StopReason::Walk(_)) && self != Assumed::Nothing && !reason.is_complete();
        let is_outside = is_cut
            && (reason == StopReason::Walk(StopKind::NoModule) || frames.any(|frame| frame.module.is_none()));
        if is_outside { StopReason::CodeUnknown } else { reason }
    }
}

/// The kind of reason why a stack ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StopReason {
    /// The walk ended for this reason.
    Walk(StopKind),
    /// The walk reached the thread's start, but over a gap: frames are missing.
    PastGap,
    /// There was no walk: it is not known which modules were loaded.
    ModulesUnknown,
    /// The walk met an address that no module holds, and a lost block may have described code
    /// there.
    CodeUnknown,
    /// There was no walk: the registers cannot be read.
    RegistersUnknown,
    /// There was no walk: the stack is in a lost block.
    StackLost,
}

impl StopReason {
    /// The stack was walked to the thread's start without a gap.
    pub const COMPLETE: StopReason = StopReason::Walk(StopKind::ThreadStart);

    /// The short stable name for outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            StopReason::Walk(kind) => kind.as_str(),
            StopReason::PastGap => "thread-start-past-gap",
            StopReason::ModulesUnknown => "modules-unknown",
            StopReason::CodeUnknown => "code-unknown",
            StopReason::RegistersUnknown => "registers-unknown",
            StopReason::StackLost => "stack-lost",
        }
    }

    /// Whether there was no walk, or it found no frame.
    pub fn is_without_walk(self) -> bool {
        !matches!(self, StopReason::Walk(_) | StopReason::PastGap | StopReason::CodeUnknown)
    }

    /// Whether nothing of the stack is missing.
    pub fn is_complete(self) -> bool {
        self == StopReason::COMPLETE
    }
}

impl Serialize for StopReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl StackEnd {
    /// The end of a stack that was not walked.
    pub fn without_walk(reason: StopReason) -> StackEnd {
        StackEnd { reason, stop: None }
    }

    /// The end of a walk that stopped with `stop`. `beyond` is the stop of the frames beyond that
    /// gap, if there are any.
    fn of(stop: Stop, beyond: Option<Stop>) -> StackEnd {
        match beyond {
            // Frames are missing at the gap, so the first walk's stop is to blame.
            Some(Stop::ThreadStart) => StackEnd { reason: StopReason::PastGap, stop: Some(stop) },
            Some(last) => StackEnd { reason: StopReason::Walk(last.kind()), stop: Some(last) },
            None => StackEnd { reason: StopReason::Walk(stop.kind()), stop: Some(stop) },
        }
    }

    /// The module to blame, if there is one.
    pub fn module(self) -> Option<ModuleId> {
        self.stop?.module()
    }

    /// The address that the walk needed and could not use: of a word on the stack or a return
    /// address. If there is a module to blame, an RVA in it.
    pub fn address(self) -> Option<u64> {
        match self.stop? {
            Stop::BadMemory { address }
            | Stop::NoModule { address }
            | Stop::InstrumentationCallback { address } => Some(address),
            Stop::BadStackPointer { sp } => Some(sp),
            Stop::NoUnwindData { rva, .. }
            | Stop::NoFunction { rva, .. }
            | Stop::ReplacedReturnAddress { rva, .. }
            | Stop::BadUnwindInfo { rva, .. }
            | Stop::UnsupportedVersion { rva, .. }
            | Stop::ScalableVectors { rva, .. } => Some(rva.into()),
            _ => None,
        }
    }
}

impl ThreadStack {
    pub fn clear(&mut self) {
        self.history.clear();
        self.leave_gap();
    }

    /// Forgets the frames beyond a gap. Returns whether there were any.
    pub fn leave_gap(&mut self) -> bool {
        let had_any = !self.beyond.is_empty();
        self.beyond.clear();
        self.left_out = 0;
        self.beyond_stop.take().is_some() || had_any
    }

    /// Its frames, innermost first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &Frame> {
        self.history.frames().iter().rev().chain(&self.beyond)
    }

    /// Its frames, outermost first, without the first `known` of them.
    pub fn frames_behind(&self, known: usize) -> impl Iterator<Item = &Frame> {
        let (beyond, frames) = (&self.beyond, self.history.frames());
        let (left_out, known) = (known.min(beyond.len()), known.saturating_sub(beyond.len()));
        beyond[..beyond.len() - left_out].iter().rev().chain(&frames[known.min(frames.len())..])
    }

    /// How many of the outermost frames were taken over from the walk before.
    pub fn reused(&self) -> usize {
        if self.beyond.is_empty() { self.history.reused() } else { 0 }
    }

    /// How many frames between are not shown, since the stack is too deep.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Why the walks that it consists of ended.
    pub fn stops(&self) -> impl Iterator<Item = Stop> {
        self.history.stop().into_iter().chain(self.beyond_stop)
    }

    /// Why the stack ends, if the walk by code stopped with `stop`.
    pub fn end(&self, stop: Stop) -> StackEnd {
        StackEnd::of(stop, self.beyond_stop)
    }
}

impl<'i> StackWalker<'i> {
    /// Walks stacks of `trace`. `images` are those of its timeline, in its order.
    pub fn new(
        trace: &'i Trace<'_>,
        images: &'i [ModuleImage],
        explicit: &'i ExplicitFrames,
        options: WalkOptions,
    ) -> StackWalker<'i> {
        let (view, walker) = (trace.timeline.view(), Walker::new(options));
        StackWalker { images, explicit, view, walker, options, deep: None, found: 0 }
    }

    /// Cost of the walks and of the moves to other times since the last call, in the unit of
    /// [`cost`](super::cost).
    pub fn take_cost(&mut self) -> u64 {
        self.view.take_cost() + FRAME * std::mem::take(&mut self.found) as u64
    }

    /// The modules and the code of a time.
    pub fn space(&mut self, time: Ticks) -> ModuleMap<'_, 'i> {
        self.view.go(time);
        ModuleMap::new(&self.view, self.images)
    }

    /// Walks a sample at `time` by its code alone.
    pub fn walk_code(&mut self, sample: &Sample<'_>, time: Ticks, frames: &mut Vec<Frame>) -> Stop {
        self.view.go(time);
        let stop = self.walker.walk(&ModuleMap::new(&self.view, self.images), sample, frames);
        self.found += 1 + frames.len();
        stop
    }

    /// Walks a sample at `time`, and beyond gaps as far as `managed` leads. Calls `each` with every
    /// frame, innermost first, and the registers at it.
    pub fn walk(
        &mut self,
        sample: &Sample<'_>,
        time: Ticks,
        managed: Option<&ManagedState>,
        mut each: impl FnMut(&Frame, &Registers),
    ) -> StackEnd {
        self.view.go(time);
        let (mut sp, mut found) = (0, 1);
        let space = ModuleMap::new(&self.view, self.images);
        let stop = self.walker.walk_with_registers(&space, sample, |frame, registers| {
            sp = frame.sp;
            found += 1;
            each(frame, registers);
        });
        self.found += found;
        let stop = self.in_callback(sample, found - 1).unwrap_or(stop);
        let beyond = managed.and_then(|managed| self.beyond(sample, managed, (sp, stop), each));
        StackEnd::of(stop, beyond)
    }

    /// Has the processor load what the walk of a sample reads of its return addresses.
    pub(crate) fn expect(&self, sample: &stk_format::Sample<'_>) {
        let arch = match sample.set {
            RegisterSet::X64 => Arch::X64,
            RegisterSet::Arm64 => Arch::Arm64,
            RegisterSet::X86 => Arch::X86,
        };
        self.walker.places(arch, sample.changed, load_ahead);
    }

    /// Walks a thread's next sample at `time` by its code alone, and only the part of its stack
    /// that changed. From the address `unchanged_from` on, the stack's words are the same as at the
    /// walk before.
    pub fn walk_next(
        &mut self,
        sample: &Sample<'_>,
        time: Ticks,
        unchanged_from: u64,
        stack: &mut ThreadStack,
    ) -> Stop {
        self.view.go(time);
        // If the modules differ, the same words can be different frames.
        let epoch = self.view.epoch();
        let unchanged_from = if epoch == stack.epoch { unchanged_from } else { u64::MAX };
        stack.epoch = epoch;
        let space = ModuleMap::new(&self.view, self.images);
        let stop = self.walker.walk_again(&space, sample, unchanged_from, &mut stack.history);
        self.found += 1 + stack.history.frames().len() - stack.history.reused();
        match stop {
            Stop::DepthLimit => self.find_root(sample, stack),
            stop => self.in_callback(sample, stack.history.frames().len()).unwrap_or(stop),
        }
    }

    /// The stop of a walk that found the one frame of an instrumentation callback. Windows enters
    /// one where a system call returns, with the address behind that call in R10.
    fn in_callback(&self, sample: &Sample<'_>, frames: usize) -> Option<Stop> {
        let Registers::X64(X64Registers { ip, gpr }) = sample.registers else { return None };
        let is_outside = || ModuleMap::new(&self.view, self.images).find(*ip).is_none();
        if frames != 1 || !is_outside() {
            return None;
        }
        let address = gpr[R10];
        let live = self.view.find(address)?;
        let (_, name) =
            self.images[live.image.0 as usize].export_at(address.wrapping_sub(live.base) as u32)?;
        let is_system_call = name.starts_with("Nt") || name.starts_with("Zw");
        is_system_call.then_some(Stop::InstrumentationCallback { address })
    }

    /// Finds the outermost frames of a stack that is deeper than the options allow. What is between
    /// is left out. Returns why the walk by code ended.
    fn find_root(&mut self, sample: &Sample<'_>, stack: &mut ThreadStack) -> Stop {
        let deep = self.deep.get_or_insert_with(|| {
            let mut options = self.options;
            options.max_frames = DEEPEST;
            Walker::new(options)
        });
        let space = ModuleMap::new(&self.view, self.images);
        let shown = stack.history.frames().len();
        let mut last: VecDeque<Frame> = VecDeque::with_capacity(ROOT_FRAMES + 1);
        let mut found = 0;
        let stop = deep.walk_with_registers(&space, sample, |frame, _| {
            found += 1;
            if found > shown {
                last.push_back(*frame);
            }
            if last.len() > ROOT_FRAMES {
                last.pop_front();
            }
        });
        self.found += found;
        stack.left_out = (found - shown.min(found) - last.len()) as u64;
        stack.beyond.extend(last);
        if stack.left_out == 0 {
            return stop;
        }
        stack.beyond_stop = Some(stop);
        Stop::DepthLimit
    }

    /// Whether a walk that stopped with `stop` can continue if a runtime reported something about
    /// the thread.
    pub fn may_continue(&self, stop: Stop) -> bool {
        self.explicit.may_continue(stop)
    }

    /// Finds the frames beyond the gap at which the latest walk ended. That walk must be of this
    /// sample.
    pub fn continue_walk(
        &mut self,
        sample: &Sample<'_>,
        managed: &ManagedState,
        stop: Stop,
        stack: &mut ThreadStack,
    ) {
        let sp = stack.history.frames().first().map_or(0, |frame| frame.sp);
        let beyond = &mut stack.beyond;
        stack.beyond_stop = self.beyond(sample, managed, (sp, stop), |frame, _| beyond.push(*frame));
    }

    /// Finds the frames beyond a gap and returns why there are no more. `None`: there are none.
    fn beyond(
        &mut self,
        sample: &Sample<'_>,
        managed: &ManagedState,
        end: (u64, Stop),
        mut each: impl FnMut(&Frame, &Registers),
    ) -> Option<Stop> {
        let space = ModuleMap::new(&self.view, self.images);
        let mut found = 0;
        let stop = self.explicit.continue_walk(
            &space,
            &mut self.walker,
            sample,
            managed,
            end,
            |frame, registers| {
                found += 1;
                each(frame, registers);
            },
        );
        self.found += 1 + found;
        (found > 0).then_some(stop)
    }
}
