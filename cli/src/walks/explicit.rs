//! Compares a .NET runtime's own view of its stacks with our walks: its explicit Frames, by the
//! data contract "StackWalk".
//!
//! Two comparisons are made for each sample. Each explicit Frame of the thread's chain gives the
//! instruction pointer and the stack pointer of the managed code that it leads to, and our walk
//! must have exactly that frame ([`FrameClass`]). The contract's own walk, which skips native code
//! through Frames alone, must not reach a managed frame that our walk does not have
//! ([`StepClass`]).

use crate::runtimes::dotnet::contract::{Context, ContractError, ExplicitFrame, ExplicitKind, FrameState};
use crate::runtimes::dotnet::explicit::{ExplicitFrames, FrameReport, SampleCode, kind_name, memory};
use crate::runtimes::{self, MethodMap};
use crate::stack::StackWalker;
use crate::trace::{ManagedState, SampleCopy, Trace, take_managed};
use std::collections::BTreeMap;
use stk_format::Sample;
use stk_schema::Ticks;
use stk_schema::event::Event;
use stk_unwind::{Frame, Modules, Stop};

/// Examples kept of each class.
const EXAMPLES: usize = 3;

/// How an explicit Frame agrees with our walk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum FrameClass {
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
    /// The head of the chain was read at another moment than the sample: the recorder reads it
    /// before and after the thread is suspended, and the same Frame can have been removed and
    /// pushed again in between. It is out of date if the code that it leads to would have its stack
    /// below the sample's stack pointer. It is also out of date if our walk is complete and proved,
    /// and the stack frame in which the Frame lies is not in the call that the Frame belongs to. A
    /// Frame behind one that agrees is never out of date.
    OutOfDate,
    /// None of these.
    Unexplained,
}

impl FrameClass {
    /// Short stable name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            FrameClass::Agrees => "agrees",
            FrameClass::StackAllocated => "stack-allocated",
            FrameClass::HoldsNone => "holds-no-registers",
            FrameClass::WalkEndedBelow => "walk-ended-below",
            FrameClass::NotDescribed => "not-described",
            FrameClass::NotCaptured => "not-captured",
            FrameClass::OutOfDate => "out-of-date",
            FrameClass::Unexplained => "unexplained",
        }
    }

    /// What the class means, in words for users.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            FrameClass::Agrees => "our walk has the very frame that they lead to",
            FrameClass::StackAllocated => {
                "our walk has that frame, with what it allocated on its stack, which the Frame leaves out"
            }
            FrameClass::HoldsNone => "hold no registers, by their kind or at that moment",
            FrameClass::WalkEndedBelow => "our walk ended below them",
            FrameClass::NotDescribed => "the runtime's descriptor leaves out a field of theirs",
            FrameClass::NotCaptured => "what they refer to was not captured",
            FrameClass::OutOfDate => {
                "heads of chains read at another moment: the call that they stand for is not under way"
            }
            FrameClass::Unexplained => "NOT EXPLAINED: the Frame or our walk is wrong",
        }
    }
}

/// How a step of the contract's walk agrees with ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum StepClass {
    /// A managed frame that our walk has too.
    Agrees,
    /// Like [`FrameClass::StackAllocated`].
    StackAllocated,
    /// A managed frame above the end of our walk.
    WalkEndedBelow,
    /// The contract's walk began with a Frame that is out of date.
    OutOfDate,
    /// The contract's walk ended for a reason that it gives.
    Ended,
    /// A managed frame that our walk does not have.
    Unexplained,
}

impl StepClass {
    /// Short stable name.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            StepClass::Agrees => "agrees",
            StepClass::StackAllocated => "stack-allocated",
            StepClass::WalkEndedBelow => "walk-ended-below",
            StepClass::OutOfDate => "out-of-date",
            StepClass::Ended => "contract-ended",
            StepClass::Unexplained => "unexplained",
        }
    }

    /// What the class means, in words for users.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            StepClass::Agrees => "managed frames of the contract's own walk that our walk has",
            StepClass::StackAllocated => "the same, but for what they allocated on their stack",
            StepClass::WalkEndedBelow => "managed frames above the end of our walk",
            StepClass::OutOfDate => "walks of the contract that begin with a Frame of another moment",
            StepClass::Ended => "ends of the contract's own walk before the stack's",
            StepClass::Unexplained => "NOT EXPLAINED: managed frames that our walk does not have",
        }
    }
}

/// Number of cases of a class, and the first of them by block.
#[derive(Default, Debug)]
pub(crate) struct ClassCount {
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
pub(crate) struct ExplicitComparison {
    /// Samples with a report of the runtime.
    pub samples: u64,
    /// Explicit Frames by class.
    pub frames: BTreeMap<FrameClass, ClassCount>,
    /// Chains that do not end properly.
    pub broken: ClassCount,
    /// Steps of the contract's walks by class.
    pub steps: BTreeMap<StepClass, ClassCount>,
}

impl ExplicitComparison {
    /// Number of cases without an explanation.
    pub(crate) fn unexplained(&self) -> u64 {
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
    methods: MethodMap,
}

impl Checks {
    pub(super) fn new(trace: &Trace<'_>) -> Checks {
        let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
        let methods =
            if explicit.contract().is_ok() { runtimes::methods(trace).map } else { MethodMap::default() };
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
        let code = SampleCode::new(&space, sample, Some((&self.methods, time)));
        let Ok((told, broken)) = self.explicit.frames(sample, managed, &self.methods) else { return };
        let mut first = true;
        let mut out_of_date = false;
        for told in &told {
            let class = frame_class(told, &ours, sample.truncated, first);
            first &= matches!(class, FrameClass::OutOfDate | FrameClass::HoldsNone);
            out_of_date |= class == FrameClass::OutOfDate;
            let example = || {
                let leads_to = match &told.leads_to {
                    Ok(Some((ip, sp))) => format!("leads to {ip:#x} (sp {sp:#x})"),
                    Ok(None) => "leads nowhere".to_owned(),
                    Err(reason) => reason.to_string(),
                };
                format!("{} at {:#x} {leads_to}", kind_name(told.frame), told.frame.address)
            };
            count(out.frames.entry(class).or_default(), waiting, example);
        }
        match broken {
            // The link of a Frame that is gone can be any value.
            Some(_) if first && (out_of_date || ours.is_proved()) => {
                let example = || "the head of the chain is no Frame any more".to_owned();
                count(out.frames.entry(FrameClass::OutOfDate).or_default(), waiting, example);
                out_of_date = true;
            }
            Some(reason) => count(&mut out.broken, waiting, || reason.to_string()),
            None => {}
        }
        if out_of_date {
            count(out.steps.entry(StepClass::OutOfDate).or_default(), waiting, || {
                "see the Frames".to_owned()
            });
        } else {
            self.steps(waiting, managed, &ours, &code, out);
        }
    }

    /// Compares the contract's own walk with ours.
    fn steps<M: Modules>(
        &self,
        waiting: &WaitingSample,
        managed: &ManagedState,
        ours: &OwnWalk<'_>,
        code: &SampleCode<'_, M>,
        out: &mut ExplicitComparison,
    ) {
        let Ok(contract) = self.explicit.contract() else { return };
        let sample = &waiting.copy.sample();
        let memory = memory(sample, managed);
        let context = Context::from_registers(sample.registers);
        for step in contract.stack_walk(&memory, code, context, managed.thread.frame) {
            let (class, what) = match step {
                Ok(step) if step.state == FrameState::Frameless => {
                    let (ip, sp) = (step.context.ip(), step.context.sp());
                    (ours.step(ip, sp), format!("{ip:#x} (sp {sp:#x})"))
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

    /// Whether it is complete and all its frames are proved.
    fn is_proved(&self) -> bool {
        self.stop == Stop::ThreadStart && self.frames.iter().all(|frame| frame.trust.is_proved())
    }

    fn step(&self, ip: u64, sp: u64) -> StepClass {
        match self.find(ip, sp) {
            Some(true) => StepClass::Agrees,
            Some(false) => StepClass::StackAllocated,
            None if self.ended_below(sp) => StepClass::WalkEndedBelow,
            None => StepClass::Unexplained,
        }
    }

    /// The frame whose stack frame holds `address`.
    fn around(&self, address: u64) -> Option<&Frame> {
        let after = self.frames.partition_point(|frame| frame.sp <= address);
        self.frames.get(after.checked_sub(1)?)
    }
}

/// The class of an explicit Frame. `first`: no earlier Frame of the chain agrees.
fn frame_class(told: &FrameReport, ours: &OwnWalk<'_>, truncated: bool, first: bool) -> FrameClass {
    let ExplicitFrame { address, kind, .. } = told.frame;
    let claims = match &told.leads_to {
        Ok(None) => return FrameClass::HoldsNone,
        Ok(Some((ip, sp))) => match ours.find(*ip, *sp) {
            Some(true) => return FrameClass::Agrees,
            Some(false) if kind == Some(ExplicitKind::InlinedCallFrame) => return FrameClass::StackAllocated,
            _ if ours.ended_below(address) => return FrameClass::WalkEndedBelow,
            _ => Some((*ip, *sp)),
        },
        Err(ContractError::NotDescribed(_)) => return FrameClass::NotDescribed,
        Err(ContractError::Unread { .. }) if truncated || keeps_context_elsewhere(kind) => {
            return FrameClass::NotCaptured;
        }
        Err(_) => None,
    };
    let gone = match claims {
        Some((_, sp)) if sp < ours.frames[0].sp => true,
        // The stack frame that the Frame lies in is not in the call that the Frame belongs to.
        _ => {
            let around = ours.around(address).map(|around| around.address);
            ours.is_proved() && around.is_some() && claims.map(|(ip, _)| ip) != around
        }
    };
    if first && gone { FrameClass::OutOfDate } else { FrameClass::Unexplained }
}

/// Whether a Frame's registers lie outside of the stack by design.
fn keeps_context_elsewhere(kind: Option<ExplicitKind>) -> bool {
    matches!(
        kind,
        Some(
            ExplicitKind::ResumableFrame | ExplicitKind::RedirectedThreadFrame | ExplicitKind::FuncEvalFrame
        )
    )
}
