//! The data contract applied to a trace: what the explicit Frames of its samples say.
//!
//! Gets the descriptor that a runtime published (RUNTIME_INFO), a sample with its stack, and what
//! the runtime said of its thread ([`ManagedState`]); gives the chain of Frames, and goes on with
//! walks that end in a gap ([`ExplicitFrames::go_on`]).

use super::contract::{
    Code, Context, Contract, ContractError, Descriptor, DescriptorError, ExplicitFrame, ExplicitKind,
    Fragments, MethodRef,
};
use crate::runtimes::MethodMap;
use crate::trace::{ManagedState, Timeline};
use std::cell::RefCell;
use stk_schema::Arch;
use stk_unwind::{Frame, Modules, Registers, Sample, Stop, Trust, WalkOptions, Walker};
use thiserror::Error;

/// Gaps of one stack that are crossed at most.
const MOST_GAPS: usize = 64;

/// Why nothing can be said of the explicit Frames of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ContractProblem {
    /// The trace has no runtime of that kind.
    #[error("the trace tells of no runtime with explicit Frames")]
    NoRuntime,
    /// Its runtime is too old.
    #[error("the runtime ({version}) publishes no data contract")]
    Unpublished {
        /// The runtime's version.
        version: String,
    },
    /// The runtime's descriptor cannot be read.
    #[error("the runtime's data contract cannot be read: {0}")]
    Descriptor(DescriptorError),
    /// It describes stacks in a way that is not known.
    #[error("version {0} of the data contract StackWalk is not known")]
    UnknownVersion(u32),
    /// It does not describe stacks.
    #[error("the runtime's data contract has no StackWalk")]
    NoStackWalk,
}

/// Why it is not known which method an explicit Frame names.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum MethodProblem {
    /// No list of methods has it.
    #[error("MethodDesc {0:#x} is in no list of methods")]
    Unlisted(u64),
    /// The Frame names it by its place in a table.
    #[error("slot {slot} of MethodTable {method_table:#x}, which was not recorded")]
    Slot {
        /// Address of the table.
        method_table: u64,
        /// Place in it.
        slot: u64,
    },
    /// The Frame cannot be read.
    #[error(transparent)]
    Contract(#[from] ContractError),
}

/// What can be said of the explicit Frames of a trace.
#[derive(Debug)]
pub struct ExplicitFrames {
    contract: Result<Contract, ContractProblem>,
}

impl ExplicitFrames {
    /// Of a trace with this timeline. Of several runtimes it is the first with a contract: the
    /// recorder asks no other.
    pub fn of(timeline: &Timeline, arch: Arch) -> ExplicitFrames {
        let described = timeline.runtimes.iter().find(|runtime| !runtime.descriptor.is_empty());
        let contract = match (described, timeline.runtimes.first()) {
            (Some(runtime), _) => read(arch, &runtime.descriptor, &runtime.pointer_data),
            (None, Some(runtime)) => {
                let version = if runtime.version.is_empty() { "this version" } else { &runtime.version };
                Err(ContractProblem::Unpublished { version: version.to_owned() })
            }
            (None, None) => Err(ContractProblem::NoRuntime),
        };
        ExplicitFrames { contract }
    }

    /// The contract.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn contract(&self) -> Result<&Contract, &ContractProblem> {
        self.contract.as_ref()
    }

    /// Whether a walk that stopped so may be gone on with.
    pub fn may_go_on(&self, stop: Stop) -> bool {
        self.contract.is_ok() && !matches!(stop, Stop::ThreadStart | Stop::DepthLimit)
    }

    /// Goes on with a walk that ended with the frame at stack pointer `sp`, for the reason `stop`:
    /// from the next explicit Frame above, and again if that ends in a gap too. What a Frame does
    /// not hold of the registers is taken to be zero, so that code which rests on it ends the walk.
    /// Hands over the frames that are found and gives the reason of the end.
    pub fn go_on<M: Modules>(
        &self,
        space: &M,
        walker: &mut Walker,
        sample: &Sample<'_>,
        managed: &ManagedState,
        (mut sp, mut stop): (u64, Stop),
        mut each: impl FnMut(&Frame, &Registers),
    ) -> Stop {
        let Ok(contract) = &self.contract else { return stop };
        let memory = memory(sample, managed);
        let code = SampleCode::new(space, sample, None);
        let unknown = Context::new(contract.descriptor().arch());
        for _ in 0..MOST_GAPS {
            if !self.may_go_on(stop) {
                return stop;
            }
            let next = contract.checkpoint(&memory, &code, &unknown, managed.thread.frame, sp);
            let Some((frame, context)) = next else { return stop };
            let registers = context.registers();
            let from = Sample { registers: &registers, ..*sample };
            stop = walker.walk_on(space, &from, trust_of(frame), |frame, registers| {
                sp = frame.sp;
                each(frame, registers);
            });
        }
        stop
    }

    /// The explicit Frames of a sample, innermost first, and why there are no more if the chain
    /// does not end as it should.
    ///
    /// # Errors
    ///
    /// Why the trace has no contract.
    pub fn frames(
        &self,
        sample: &Sample<'_>,
        managed: &ManagedState,
        methods: &MethodMap,
    ) -> Result<(Vec<FrameReport>, Option<ContractError>), &ContractProblem> {
        let contract = self.contract()?;
        let memory = memory(sample, managed);
        let unknown = Context::new(contract.descriptor().arch());
        let mut told = Vec::new();
        for frame in contract.frames(&memory, managed.thread.frame) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(reason) => return Ok((told, Some(reason))),
            };
            let leads_to = contract.leads_to(&memory, frame, &unknown);
            let method = match contract.method_of_frame(&memory, frame) {
                Ok(None) => Ok(String::new()),
                Ok(Some(method)) => named(method, methods),
                Err(reason) => Err(MethodProblem::Contract(reason)),
            };
            told.push(FrameReport { frame, leads_to, method });
        }
        Ok((told, None))
    }
}

/// What an explicit Frame says.
#[derive(Debug)]
pub struct FrameReport {
    /// Which one.
    pub frame: ExplicitFrame,
    /// The instruction pointer and the stack pointer of the managed code that it stands for; `None`
    /// if it holds none (at this moment).
    pub leads_to: Result<Option<(u64, u64)>, ContractError>,
    /// The method that it names, empty if its kind names none; or why that is not known.
    pub method: Result<String, MethodProblem>,
}

/// What the kind of a Frame is called; one that the descriptor does not name, by its identifier.
pub fn kind_name(frame: ExplicitFrame) -> String {
    frame.kind.map_or_else(|| format!("Frame {:#x}", frame.identifier), |kind| kind.as_str().to_owned())
}

/// Whether a Frame holds the registers of interrupted code, not a return address.
pub fn is_interrupted(kind: Option<ExplicitKind>) -> bool {
    matches!(
        kind,
        Some(
            ExplicitKind::ResumableFrame
                | ExplicitKind::RedirectedThreadFrame
                | ExplicitKind::FaultingExceptionFrame
        )
    )
}

fn trust_of(frame: ExplicitFrame) -> Trust {
    if is_interrupted(frame.kind) { Trust::ExplicitContext } else { Trust::ExplicitFrame }
}

fn named(method: MethodRef, methods: &MethodMap) -> Result<String, MethodProblem> {
    match method {
        MethodRef::MethodDesc(id) => {
            let name = methods.name_of(id).map(str::to_owned);
            name.ok_or(MethodProblem::Unlisted(id))
        }
        MethodRef::Slot { method_table, slot } => Err(MethodProblem::Slot { method_table, slot }),
    }
}

fn read(arch: Arch, json: &[u8], pointer_data: &[u8]) -> Result<Contract, ContractProblem> {
    let descriptor = Descriptor::parse(arch, json, pointer_data).map_err(ContractProblem::Descriptor)?;
    match descriptor.contract("StackWalk") {
        Some(1) => Ok(Contract::new(descriptor)),
        Some(version) => Err(ContractProblem::UnknownVersion(version)),
        None => Err(ContractProblem::NoStackWalk),
    }
}

/// The memory that a sample holds.
pub fn memory<'a>(sample: &Sample<'a>, managed: &'a ManagedState) -> Fragments<'a> {
    let mut memory = Fragments::new();
    memory.add(sample.stack_start, sample.stack);
    for (address, bytes) in &managed.outside {
        memory.add(*address, bytes.as_slice());
    }
    memory
}

/// Code as the contract sees it, by a sample's modules and dynamic code.
pub struct SampleCode<'a, M> {
    space: &'a M,
    sample: &'a Sample<'a>,
    /// Methods, and the sample's time in nanoseconds since the trace's start. Without them all code
    /// is taken to be managed that has unwind data: to see that a Frame's own word is no nonsense.
    methods: Option<(&'a MethodMap, u64)>,
    /// Takes one step.
    walker: RefCell<Walker>,
}

impl<'a, M: Modules> SampleCode<'a, M> {
    /// The code around a sample.
    pub fn new(
        space: &'a M,
        sample: &'a Sample<'a>,
        methods: Option<(&'a MethodMap, u64)>,
    ) -> SampleCode<'a, M> {
        let mut options = WalkOptions::default();
        options.max_frames = 2;
        SampleCode { space, sample, methods, walker: RefCell::new(Walker::new(options)) }
    }

    fn has_unwind_data(&self, ip: u64) -> bool {
        let inside = ip.wrapping_sub(1);
        self.space.find(inside).is_some_and(|found| {
            let rva = u32::try_from(inside.wrapping_sub(found.base)).ok();
            rva.is_some_and(|rva| found.image.function_range(rva).is_some())
        })
    }
}

impl<M: Modules> Code for SampleCode<'_, M> {
    fn is_managed(&self, ip: u64) -> bool {
        let Some((methods, time)) = self.methods else { return self.has_unwind_data(ip) };
        // The addresses that are asked for are return addresses, but for the sample's own and
        // interrupted ones.
        let held = |address| !matches!(methods.find(address, time, time), Ok(None));
        held(ip.wrapping_sub(1)) || held(ip)
    }

    fn method_desc(&self, ip: u64) -> Option<u64> {
        let (methods, time) = self.methods?;
        let id = methods.find(ip.wrapping_sub(1), time, time).ok()??;
        Some(methods.get(id).id).filter(|id| *id != 0)
    }

    fn unwind(&self, context: &mut Context) -> Result<(), ContractError> {
        let registers = context.registers();
        let from = Sample { registers: &registers, ..*self.sample };
        let exact =
            (registers.ip(), registers.sp()) == (self.sample.registers.ip(), self.sample.registers.sp());
        let mut walker = self.walker.borrow_mut();
        let mut frames = 0;
        let mut caller = None;
        let mut step = |_: &Frame, registers: &Registers| {
            frames += 1;
            if frames == 2 {
                caller = Some(*registers);
            }
        };
        let stop = if exact {
            walker.walk_with_registers(self.space, &from, &mut step)
        } else {
            walker.walk_on(self.space, &from, Trust::ExplicitFrame, &mut step)
        };
        match caller {
            Some(caller) => {
                *context = Context::from_registers(&caller);
                Ok(())
            }
            None => Err(ContractError::NotUnwound { ip: registers.ip(), why: stop.as_str().to_owned() }),
        }
    }
}
