//! Compares a .NET runtime's own view of its stacks with our walks: its explicit Frames, by the
//! data contract "StackWalk".
//!
//! Two comparisons are made for each sample. Each explicit Frame of the thread's chain gives the
//! instruction pointer and the stack pointer of the managed code that it leads to, and our walk
//! must have exactly that frame ([`FrameClass`]). The contract's own walk, which skips native code
//! through Frames alone, must not reach a managed frame that our walk does not have
//! ([`StepClass`]).

use super::pinvoke_return::waits_for_runtime;
use crate::runtimes::dotnet::contract::{
    Context, ContractError, ExplicitFrame, ExplicitKind, Fragments, FrameState, Memory,
};
use crate::runtimes::dotnet::explicit::{ExplicitFrames, FrameReport, SampleCode, kind_name, memory};
use crate::runtimes::{self, Methods};
use crate::stack::StackWalker;
use crate::trace::{ManagedState, SampleCopy, Trace, take_managed};
use std::collections::BTreeMap;
use stk_format::Sample;

use stk_schema::Ticks;
use stk_schema::event::Event;
use stk_unwind::{Arch, Frame, Modules, Stop};

/// Examples kept of each class.
const EXAMPLES: usize = 3;

/// How an explicit Frame agrees with our walk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FrameClass {
    /// Our walk has a frame of the same instruction pointer and stack pointer.
    Agrees,
    /// Our walk has a frame of the same instruction pointer around the Frame, but its stack begins
    /// lower: an InlinedCallFrame's CallSiteSP leaves out the method's stack allocations (see the
    /// contract's document).
    StackAllocated,
    /// Its kind holds no registers, or none at this moment.
    HoldsNone,
    /// Our walk ended below it, for a reason of its own.
    WalkEndedBelow,
    /// The runtime's descriptor lacks a needed field.
    NotDescribed,
    /// The memory that it refers to was not captured.
    NotCaptured,
    /// An InlinedCallFrame whose call has returned to managed code, which then called the runtime
    /// to wait (for a garbage collection, as a rule). The code between the Frame's return address
    /// and that of the wait proves it, and our walk has the frame of the wait.
    Returning,
    /// The head of the chain was read at another moment than the sample: the recorder reads it
    /// before and after the thread is suspended, and the same Frame can have been removed and
    /// pushed again in between. The sample's own stack must show it, whatever our walk says (see
    /// `Moment::is_gone`), or the chain must break off at it. A Frame behind one that agrees is
    /// never out of date.
    OutOfDate,
    /// As above, but what the call left on the stack is still there, so that nothing but our walk
    /// speaks against it: our walk is complete and proved, and has another call there.
    Contradicted,
    /// None of these.
    Unexplained,
}

impl FrameClass {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            FrameClass::Agrees => "agrees",
            FrameClass::StackAllocated => "stack-allocated",
            FrameClass::HoldsNone => "holds-no-registers",
            FrameClass::WalkEndedBelow => "walk-ended-below",
            FrameClass::NotDescribed => "not-described",
            FrameClass::NotCaptured => "not-captured",
            FrameClass::Returning => "returning",
            FrameClass::OutOfDate => "out-of-date",
            FrameClass::Contradicted => "contradicted",
            FrameClass::Unexplained => "unexplained",
        }
    }

    /// What the class means, in words for users.
    pub fn meaning(self) -> &'static str {
        match self {
            FrameClass::Agrees => "our walk has the very frame that they lead to",
            FrameClass::StackAllocated => {
                "our walk has that frame, with what it allocated on its stack, which the Frame leaves out"
            }
            FrameClass::HoldsNone => "hold no registers, by their kind or at that moment",
            FrameClass::WalkEndedBelow => "our walk ended below them",
            FrameClass::NotDescribed => "the runtime's descriptor leaves out a field of theirs",
            FrameClass::NotCaptured => "what they refer to was not captured",
            FrameClass::Returning => {
                "their call has returned, and our walk has the wait for the runtime that follows it in the same method"
            }
            FrameClass::OutOfDate => {
                "heads of chains read at another moment: the stack shows that the call that they stand for is not under way"
            }
            FrameClass::Contradicted => {
                "NOT DECIDED: heads of chains that only our walk, which is complete and proved, speaks against"
            }
            FrameClass::Unexplained => "NOT EXPLAINED: the Frame or our walk is wrong",
        }
    }
}

/// How a step of the contract's walk agrees with ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepClass {
    /// A managed frame that our walk has too.
    Agrees,
    /// Like [`FrameClass::StackAllocated`].
    StackAllocated,
    /// A managed frame above the end of our walk.
    WalkEndedBelow,
    /// The method of a [`FrameClass::Returning`] Frame, which our walk has at its wait.
    Returning,
    /// The contract's walk ended for a reason that it gives.
    Ended,
    /// A managed frame that our walk does not have.
    Unexplained,
}

impl StepClass {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            StepClass::Agrees => "agrees",
            StepClass::StackAllocated => "stack-allocated",
            StepClass::WalkEndedBelow => "walk-ended-below",
            StepClass::Returning => "returning",
            StepClass::Ended => "contract-ended",
            StepClass::Unexplained => "unexplained",
        }
    }

    /// What the class means, in words for users.
    pub fn meaning(self) -> &'static str {
        match self {
            StepClass::Agrees => "managed frames of the contract's own walk that our walk has",
            StepClass::StackAllocated => "the same, except for what they allocated on their stack",
            StepClass::WalkEndedBelow => "managed frames above the end of our walk",
            StepClass::Returning => "the same, waiting for the runtime after the call of their Frame",
            StepClass::Ended => "ends of the contract's own walk before the stack's",
            StepClass::Unexplained => "NOT EXPLAINED: managed frames that our walk does not have",
        }
    }
}

/// Number of cases of a class, and the first of them by block.
#[derive(Default, Debug)]
pub struct ClassCount {
    pub count: u64,
    /// Thread instance, time, and what it is.
    pub examples: Vec<(u64, Ticks, String)>,
}

impl ClassCount {
    fn add(&mut self, other: ClassCount) {
        self.count += other.count;
        let room = EXAMPLES.saturating_sub(self.examples.len());
        self.examples.extend(other.examples.into_iter().take(room));
    }
}

/// Results for all explicit Frames of a trace.
#[derive(Default, Debug)]
pub struct ExplicitComparison {
    /// Samples with a report of the runtime.
    pub samples: u64,
    /// Explicit Frames by class.
    pub frames: BTreeMap<FrameClass, ClassCount>,
    /// The same by the kind that the descriptor names, and class; "unknown" = by no kind.
    pub kinds: BTreeMap<(&'static str, FrameClass), u64>,
    /// Chains that do not end properly.
    pub broken: ClassCount,
    /// Steps of the contract's walks by class.
    pub steps: BTreeMap<StepClass, ClassCount>,
}

impl ExplicitComparison {
    /// Number of cases without an explanation.
    pub fn unexplained(&self) -> u64 {
        let frames = self.frames.get(&FrameClass::Unexplained).map_or(0, |counted| counted.count);
        let steps = self.steps.get(&StepClass::Unexplained).map_or(0, |counted| counted.count);
        frames + steps + self.broken.count
    }

    pub(super) fn add(&mut self, other: ExplicitComparison) {
        self.samples += other.samples;
        other
            .frames
            .into_iter()
            .for_each(|(class, counted)| self.frames.entry(class).or_default().add(counted));
        other
            .steps
            .into_iter()
            .for_each(|(class, counted)| self.steps.entry(class).or_default().add(counted));
        other.kinds.into_iter().for_each(|(kind, count)| *self.kinds.entry(kind).or_default() += count);
        self.broken.add(other.broken);
    }
}

/// A sample whose report by a runtime may still follow.
#[derive(Debug)]
pub(super) struct WaitingSample {
    thread: u64,
    pub(super) time: Ticks,
    copy: SampleCopy,
    managed: Option<ManagedState>,
}

impl WaitingSample {
    /// A copy of a sample; `None` if its registers are not known.
    pub(super) fn of(sample: &Sample<'_>) -> Option<WaitingSample> {
        let copy = SampleCopy::of(sample)?;
        Some(WaitingSample { thread: sample.thread, time: sample.time, copy, managed: None })
    }

    /// Takes an event, if it belongs to the sample.
    pub(super) fn take(&mut self, event: &Event<'_>) -> bool {
        take_managed(&mut self.managed, self.thread, self.time, event)
    }
}

/// The inputs of the comparison.
#[derive(Debug)]
pub(super) struct Checks {
    explicit: ExplicitFrames,
    methods: Methods,
}

impl Checks {
    pub(super) fn new(trace: &Trace<'_>) -> Checks {
        let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
        let methods = if explicit.contract().is_ok() { runtimes::methods(trace) } else { Methods::default() };
        Checks { explicit, methods }
    }

    /// The explicit Frames of the trace.
    pub(super) fn explicit(&self) -> &ExplicitFrames {
        &self.explicit
    }

    /// Whether the trace has a contract.
    pub(super) fn can_be_made(&self) -> bool {
        self.explicit.contract().is_ok()
    }

    /// Compares a sample. `time` is its time in nanoseconds since the trace's start.
    pub(super) fn check(
        &self,
        waiting: &WaitingSample,
        time: u64,
        walker: &mut StackWalker<'_>,
        out: &mut ExplicitComparison,
    ) {
        let Some(managed) = &waiting.managed else { return };
        out.samples += 1;
        let sample = &waiting.copy.sample();
        let mut ours = Vec::new();
        let stop = walker.walk_code(sample, waiting.time, &mut ours);
        let ours = OwnWalk { frames: &ours, stop };
        let space = walker.space(waiting.time);
        let code = SampleCode::new(&space, sample, Some((&self.methods.map, time)));
        let Ok((reported, broken)) = self.explicit.frames(sample, managed, &self.methods, time) else {
            return;
        };
        let memory = memory(sample, managed);
        let moment = Moment { sample, memory: &memory, ours: &ours, space: &space };
        let mut first = true;
        let mut returning = None;
        // The contract's own walk begins with the first Frame that is not out of date.
        let mut head = managed.thread.frame;
        for (index, report) in reported.iter().enumerate() {
            let ends_chain = broken.is_some() && index + 1 == reported.len();
            let class = moment.class(report, first, ends_chain);
            if matches!(class, FrameClass::OutOfDate | FrameClass::Contradicted) {
                head = reported.get(index + 1).map_or(0, |next| next.frame.address);
            }
            if class == FrameClass::Returning {
                returning = report.leads_to.as_ref().ok().copied().flatten();
            }
            first &=
                matches!(class, FrameClass::OutOfDate | FrameClass::Contradicted | FrameClass::HoldsNone);
            let kind = report.frame.kind.map_or("unknown", ExplicitKind::as_str);
            *out.kinds.entry((kind, class)).or_default() += 1;
            count(out.frames.entry(class).or_default(), waiting, || {
                let text = match &report.leads_to {
                    Ok(Some((ip, sp))) => format!("leads to {ip:#x} (sp {sp:#x})"),
                    Ok(None) => "leads nowhere".to_owned(),
                    Err(reason) => reason.to_string(),
                };
                format!("{} at {:#x} {text}", kind_name(report.frame), report.frame.address)
            });
        }
        if let Some(reason) = broken {
            // The link of a Frame that is gone can be any value.
            if first && reported.is_empty() && head < sample.registers.sp() {
                let text = || format!("{head:#x} lies below the stack pointer");
                count(out.frames.entry(FrameClass::OutOfDate).or_default(), waiting, text);
                head = 0;
            } else if head != 0 {
                count(&mut out.broken, waiting, || reason.to_string());
            }
        }
        self.steps(waiting, &memory, head, (&ours, returning), &code, out);
    }

    /// Compares the contract's own walk from the chain at `head` with ours. `returning`: what a
    /// Frame of that class leads to.
    fn steps<M: Modules>(
        &self,
        waiting: &WaitingSample,
        memory: &Fragments<'_>,
        head: u64,
        (ours, returning): (&OwnWalk<'_>, Option<(u64, u64)>),
        code: &SampleCode<'_, M>,
        out: &mut ExplicitComparison,
    ) {
        let Ok(contract) = self.explicit.contract() else { return };
        let context = Context::from_registers(waiting.copy.sample().registers);
        for step in contract.stack_walk(memory, code, context, head) {
            let (class, what) = match step {
                Ok(step) if step.state == FrameState::Frameless => {
                    let there = (step.context.ip(), step.context.sp());
                    let text = format!("{:#x} (sp {:#x})", there.0, there.1);
                    if returning == Some(there) {
                        (StepClass::Returning, text)
                    } else {
                        (ours.step(there.0, there.1), text)
                    }
                }
                Ok(_) => continue,
                Err(reason) => (StepClass::Ended, reason.to_string()),
            };
            let wrong = class == StepClass::Unexplained;
            count(out.steps.entry(class).or_default(), waiting, || what);
            if wrong {
                // The following steps depend on this one.
                return;
            }
        }
    }
}

fn count(counted: &mut ClassCount, waiting: &WaitingSample, example: impl FnOnce() -> String) {
    counted.count += 1;
    if counted.examples.len() < EXAMPLES {
        counted.examples.push((waiting.thread, waiting.time, example()));
    }
}

/// Our walk.
struct OwnWalk<'a> {
    frames: &'a [Frame],
    stop: Stop,
}

impl OwnWalk<'_> {
    /// Whether our walk has the frame of this instruction pointer and stack pointer. `Some(false)`:
    /// it has a frame of this instruction pointer that holds that stack pointer but begins lower.
    fn find(&self, ip: u64, sp: u64) -> Option<bool> {
        let same = |frame: &&Frame| frame.address == ip;
        let holds = |at: usize| {
            let end = self.frames.get(at + 1).map_or(u64::MAX, |caller| caller.sp);
            self.frames[at].sp < sp && sp < end
        };
        if self.frames.iter().filter(same).any(|frame| frame.sp == sp) {
            return Some(true);
        }
        (0..self.frames.len()).any(|at| self.frames[at].address == ip && holds(at)).then_some(false)
    }

    /// Whether it ended below `address` for another reason than the end of the stack.
    fn ended_below(&self, address: u64) -> bool {
        self.stop != Stop::ThreadStart && self.frames.last().is_none_or(|last| last.sp <= address)
    }

    /// Whether it is complete, all its frames are proved, and the stack frame that holds `address`
    /// is in another call than the one that returns to `ip`.
    fn has_other_call(&self, address: u64, ip: u64) -> bool {
        self.stop == Stop::ThreadStart
            && self.frames.iter().all(|frame| frame.trust.is_proved())
            && self.around(address).is_some_and(|around| around.address != ip)
    }

    /// The frame whose stack frame holds `address`.
    fn around(&self, address: u64) -> Option<&Frame> {
        let after = self.frames.partition_point(|frame| frame.sp <= address);
        self.frames.get(after.checked_sub(1)?)
    }

    fn step(&self, ip: u64, sp: u64) -> StepClass {
        match self.find(ip, sp) {
            Some(true) => StepClass::Agrees,
            Some(false) => StepClass::StackAllocated,
            None if self.ended_below(sp) => StepClass::WalkEndedBelow,
            None => StepClass::Unexplained,
        }
    }
}

/// What a sample shows about its explicit Frames.
struct Moment<'a, M> {
    sample: &'a stk_unwind::Sample<'a>,
    memory: &'a Fragments<'a>,
    ours: &'a OwnWalk<'a>,
    space: &'a M,
}

impl<M: Modules> Moment<'_, M> {
    /// The class of an explicit Frame. `first`: no earlier Frame of the chain is up to date.
    /// `ends_chain`: its link leads to no Frame, nor is it the chain's end.
    fn class(&self, report: &FrameReport, first: bool, ends_chain: bool) -> FrameClass {
        let ExplicitFrame { address, kind, .. } = report.frame;
        let leads_to = match &report.leads_to {
            Ok(None) if first && ends_chain => return FrameClass::OutOfDate,
            Ok(None) => return FrameClass::HoldsNone,
            Ok(Some((ip, sp))) => match self.ours.find(*ip, *sp) {
                Some(true) => return FrameClass::Agrees,
                Some(false) if kind == Some(ExplicitKind::InlinedCallFrame) => {
                    return FrameClass::StackAllocated;
                }
                // A HijackFrame lies below the code that took the return address's place, of
                // whose stack frame the unwind data leaves out a part: walks end there.
                _ if kind == Some(ExplicitKind::HijackFrame) && self.ours.ended_below(*sp) => {
                    return FrameClass::WalkEndedBelow;
                }
                _ if self.ours.ended_below(address) => return FrameClass::WalkEndedBelow,
                _ => Some((*ip, *sp)),
            },
            Err(ContractError::NotDescribed(_)) => return FrameClass::NotDescribed,
            Err(ContractError::Unread { .. }) if self.sample.truncated || keeps_context_elsewhere(kind) => {
                return FrameClass::NotCaptured;
            }
            Err(_) => None,
        };
        match leads_to {
            Some((ip, sp)) if first && self.is_returning(kind, ip, sp) => FrameClass::Returning,
            _ if first && (ends_chain || self.is_gone(report, leads_to)) => FrameClass::OutOfDate,
            Some((ip, _)) if first && self.ours.has_other_call(address, ip) => FrameClass::Contradicted,
            _ => FrameClass::Unexplained,
        }
    }

    /// Whether the sample's stack shows that a Frame is not in use: the Frame, or the stack of the
    /// code that it leads to, lies below the stack pointer; it leads to an address of the stack,
    /// where no code is; an InlinedCallFrame's return address is not where its call would have put
    /// it; or something else was written over the frame pointer that it states. If our walk has
    /// that very call around the Frame, one of the two is wrong about the stack pointer, and that
    /// is no excuse.
    fn is_gone(&self, report: &FrameReport, leads_to: Option<(u64, u64)>) -> bool {
        let FrameReport { frame, .. } = report;
        let sp = self.sample.registers.sp();
        let below = frame.address < sp || leads_to.is_some_and(|(_, there)| there < sp);
        let returned = leads_to.is_some_and(|(ip, there)| {
            let elsewhere = self.return_address(frame.kind, there).is_some_and(|address| address != ip)
                && !self.is_same_call(frame.kind, ip, there)
                || report.frame_pointer.is_some_and(|fp| self.is_no_frame_pointer(there, fp));
            elsewhere && self.ours.around(frame.address).is_none_or(|around| around.address != ip)
        });
        below || returned || leads_to.is_some_and(|(ip, _)| self.is_on_stack(ip))
    }

    /// Whether an address is one of the stack that was copied.
    fn is_on_stack(&self, address: u64) -> bool {
        let end = self.sample.stack_start.saturating_add(self.sample.stack.len() as u64);
        (self.sample.stack_start..end).contains(&address)
    }

    /// Whether `fp` cannot be the frame pointer of a method whose stack begins at `sp`: it does not
    /// point into the stack above. CoreCLR's compiler gives each method with an InlinedCallFrame a
    /// frame pointer, which on x64 is rbp and points into the method's own stack frame.
    fn is_no_frame_pointer(&self, sp: u64, fp: u64) -> bool {
        let end = self.sample.stack_start.saturating_add(self.sample.stack.len() as u64);
        let known = self.sample.registers.arch() == Arch::X64 && !self.sample.truncated;
        known && !(sp..end).contains(&fp)
    }

    /// The return address on the stack of the call for which an InlinedCallFrame states the stack
    /// pointer `sp`. Only calls on x64 put it at a known place.
    fn return_address(&self, kind: Option<ExplicitKind>, sp: u64) -> Option<u64> {
        let known = self.sample.registers.arch() == Arch::X64 && kind == Some(ExplicitKind::InlinedCallFrame);
        known.then(|| self.memory.number(sp.wrapping_sub(8), 8)).flatten()
    }

    /// Whether the call of an InlinedCallFrame, which returns to `ip`, has returned and its method
    /// waits for the runtime: our walk has that wait, and the code before it proves it.
    fn is_returning(&self, kind: Option<ExplicitKind>, ip: u64, sp: u64) -> bool {
        let Some(wait) = self.return_address(kind, sp) else { return false };
        let between = wait.wrapping_sub(ip);
        let code = (between <= LONGEST_RETURN).then(|| self.code(ip, between as usize)).flatten();
        code.is_some_and(waits_for_runtime) && self.ours.find(wait, sp) == Some(true)
    }

    /// Whether our walk has the method of an InlinedCallFrame at a later call than the one that
    /// returns to `ip`, with the same stack: then the Frame is of this moment, and only its code
    /// can explain it.
    fn is_same_call(&self, kind: Option<ExplicitKind>, ip: u64, sp: u64) -> bool {
        let later = |address: &u64| (1..=LONGEST_RETURN).contains(&address.wrapping_sub(ip));
        let address = self.return_address(kind, sp).filter(later);
        address.is_some_and(|address| self.ours.find(address, sp) == Some(true))
    }

    /// The code of `len` bytes at `address`, if the trace holds it.
    fn code(&self, address: u64, len: usize) -> Option<&[u8]> {
        let found = self.space.find(address)?;
        found.image.bytes(u32::try_from(address - found.base).ok()?)?.get(..len)
    }
}

/// Most bytes between the return of a P/Invoke and the return of the wait that follows.
const LONGEST_RETURN: u64 = 64;

/// Whether a Frame's registers lie outside of the stack by design.
fn keeps_context_elsewhere(kind: Option<ExplicitKind>) -> bool {
    matches!(
        kind,
        Some(
            ExplicitKind::ResumableFrame | ExplicitKind::RedirectedThreadFrame | ExplicitKind::FuncEvalFrame
        )
    )
}
