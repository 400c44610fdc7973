//! Applies the data contract to a trace: what the explicit Frames of its samples state.
//!
//! Takes the descriptor that a runtime published (RUNTIME_INFO), a sample with its stack, and what
//! the runtime reported about its thread ([`ManagedState`]). Returns the chain of Frames, and
//! continues walks that end in a gap ([`ExplicitFrames::continue_walk`]).

use super::contract::{
    Code, Context, Contract, ContractError, Descriptor, DescriptorError, ExplicitFrame, ExplicitKind,
    Fragments, MethodRef,
};
use crate::runtimes::{MethodMap, Methods};
use crate::trace::{ManagedState, Timeline};
use std::cell::RefCell;
use stk_schema::Arch;
use stk_unwind::{Frame, Modules, Registers, Sample, Stop, Trust, WalkOptions, Walker};
use thiserror::Error;

/// Limit for the gaps that are crossed in one stack.
const MOST_GAPS: usize = 64;

/// Why the explicit Frames of a trace cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ContractProblem {
    /// The trace has no runtime with explicit Frames.
    #[error("the trace has no runtime with explicit Frames")]
    NoRuntime,
    /// Its runtime is too old.
    #[error("the runtime ({version}) publishes no data contract")]
    Unpublished {
        /// Version of the runtime.
        version: String,
    },
    /// The runtime's descriptor cannot be read.
    #[error("the runtime's data contract cannot be read: {0}")]
    Descriptor(DescriptorError),
    /// It has an unknown version of the contract for stacks.
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
    /// No list of methods has its MethodDesc.
    #[error("MethodDesc {0:#x} is in no list of methods, and the recorder did not read its name")]
    Unlisted(u64),
    /// The Frame names it by a slot of a method table.
    #[error("slot {slot} of MethodTable {method_table:#x}, which was not recorded")]
    Slot {
        /// Address of the table.
        method_table: u64,
        /// Number of the slot.
        slot: u64,
    },
    /// The Frame cannot be read.
    #[error(transparent)]
    Contract(#[from] ContractError),
}

/// The explicit Frames of a trace.
#[derive(Debug)]
pub struct ExplicitFrames {
    contract: Result<Contract, ContractProblem>,
}

impl ExplicitFrames {
    /// Of a trace with this timeline. If there are several runtimes, takes the first that published
    /// a contract, since the recorder asks no other.
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
    /// Why there is no contract.
    pub fn contract(&self) -> Result<&Contract, &ContractProblem> {
        self.contract.as_ref()
    }

    /// Whether a walk that stopped with `stop` can be continued.
    pub fn may_continue(&self, stop: Stop) -> bool {
        self.contract.is_ok() && !matches!(stop, Stop::ThreadStart | Stop::DepthLimit)
    }

    /// Continues a walk that ended with the frame at stack pointer `sp`, for the reason `stop`:
    /// from the next explicit Frame above, and again if that walk ends in a gap too. Registers that
    /// a Frame does not hold are taken as zero, so code that depends on them ends the walk. Calls
    /// `each` with the frames that it finds, and returns why the walk ended.
    pub fn continue_walk<M: Modules>(
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
            if !self.may_continue(stop) {
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

    /// The explicit Frames of a sample, innermost first, and an error if the chain does not end
    /// properly. `time_ns`: of the sample, since the trace's start.
    ///
    /// # Errors
    ///
    /// Why the trace has no contract.
    pub fn frames(
        &self,
        sample: &Sample<'_>,
        managed: &ManagedState,
        methods: &Methods,
        time_ns: u64,
    ) -> Result<(Vec<FrameReport>, Option<ContractError>), &ContractProblem> {
        let contract = self.contract()?;
        let memory = memory(sample, managed);
        let unknown = Context::new(contract.descriptor().arch());
        let mut reported = Vec::new();
        for frame in contract.frames(&memory, managed.thread.frame) {
            let frame = match frame {
                Ok(frame) => frame,
                Err(reason) => return Ok((reported, Some(reason))),
            };
            let leads_to = contract.leads_to(&memory, frame, &unknown);
            let method = match contract.method_of_frame(&memory, frame) {
                Ok(None) => Ok(String::new()),
                Ok(Some(method)) => named(method, methods, time_ns),
                Err(reason) => Err(MethodProblem::Contract(reason)),
            };
            let frame_pointer = contract.frame_pointer(&memory, frame).ok().flatten();
            let by_position = contract.is_method_by_position(frame);
            reported.push(FrameReport { frame, leads_to, frame_pointer, method, by_position });
        }
        Ok((reported, None))
    }
}

/// The facts in an explicit Frame.
#[derive(Debug)]
pub struct FrameReport {
    pub frame: ExplicitFrame,
    /// The instruction pointer and the stack pointer of the managed code that it leads to; `None`
    /// if it holds none (at this moment).
    pub leads_to: Result<Option<(u64, u64)>, ContractError>,
    /// The frame pointer of its method, of a kind that states one (see
    /// [`Contract::frame_pointer`]).
    pub frame_pointer: Option<u64>,
    /// The method that it names, empty if its kind names none; or why the method is not known.
    pub method: Result<String, MethodProblem>,
    /// The descriptor does not say where the Frame holds its method: it was taken from the place
    /// before CallSiteSP.
    pub by_position: bool,
}

/// The name of a Frame's kind. If the descriptor does not define the kind, its identifier is shown.
pub fn kind_name(frame: ExplicitFrame) -> String {
    frame.kind.map_or_else(|| format!("Frame {:#x}", frame.identifier), |kind| kind.as_str().to_owned())
}

/// Whether a Frame holds the registers of interrupted code instead of a return address.
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

fn named(method: MethodRef, methods: &Methods, time_ns: u64) -> Result<String, MethodProblem> {
    match method {
        MethodRef::MethodDesc(id) => {
            let name = methods.of_frames.at(id, None, time_ns).or_else(|| methods.map.name_of(id));
            name.map(str::to_owned).ok_or(MethodProblem::Unlisted(id))
        }
        MethodRef::Slot { method_table, slot } => {
            let name = methods.of_frames.at(method_table, Some(slot), time_ns);
            name.map(str::to_owned).ok_or(MethodProblem::Slot { method_table, slot })
        }
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

/// The contract's view of code, from a sample's modules and dynamic code.
pub struct SampleCode<'a, M> {
    space: &'a M,
    sample: &'a Sample<'a>,
    /// Methods, and the sample's time in nanoseconds since the trace's start. Without them, all
    /// code that has unwind data counts as managed. That is enough to see that a Frame does not
    /// lead to a wrong address.
    methods: Option<(&'a MethodMap, u64)>,
    /// A walker for single steps.
    walker: RefCell<Walker>,
}

impl<'a, M: Modules> SampleCode<'a, M> {
    /// The code for a sample.
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
        // The addresses are return addresses, except the sample's own and interrupted ones.
        let held = |address| !matches!(methods.find(address, time, time), Ok(None));
        held(ip.wrapping_sub(1)) || held(ip)
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
