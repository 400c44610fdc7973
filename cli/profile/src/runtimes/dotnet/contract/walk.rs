//! The walk: managed code is unwound, and native code is skipped through the next explicit Frame.

use super::chain::Kinds;
use super::update::FieldReader;
use super::{Chain, Context, Descriptor, ExplicitFrame, ExplicitKind, Memory, MethodRef, method};

/// Limit for the steps of one walk.
const MAX_STEPS: usize = 65_536;

/// Facts about code that the walk needs.
pub trait Code {
    /// Whether managed code (JIT-compiled or ready-to-run, stubs left out) holds this address.
    fn is_managed(&self, ip: u64) -> bool;

    /// Sets a context in managed code to that of its caller.
    ///
    /// # Errors
    ///
    /// Why that is not possible: no unwind data, memory that was not captured, or
    /// [`ContractError::Refused`]`("GCInfo")` for x86, whose managed code has no other unwind data.
    fn unwind(&self, context: &mut Context) -> Result<(), ContractError>;
}

/// Why a walk cannot continue, or why a fact about a Frame is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContractError {
    /// Memory that was not captured.
    #[error("{what} at {address:#x} was not recorded")]
    Unread {
        /// What was to be read.
        what: &'static str,
        /// The address that was not captured.
        address: u64,
    },
    /// The runtime's descriptor lacks a type, a field or a global.
    #[error("the runtime's data descriptor has no {0}")]
    NotDescribed(&'static str),
    /// A structure of registers has one that the architecture does not have.
    #[error("{0} holds a register that this architecture does not have")]
    UnknownRegister(&'static str),
    /// A Frame's link does not lead up the stack.
    #[error("the Frame at {address:#x} links to {next:#x}, which is not above it")]
    BrokenChain {
        /// Address of the Frame.
        address: u64,
        /// The address that it links to.
        next: u64,
    },
    /// Unwinding managed code did not move up the stack.
    #[error("unwinding at {ip:#x} does not move up the stack")]
    NoProgress {
        /// The instruction pointer.
        ip: u64,
    },
    /// Managed code could not be unwound.
    #[error("managed code at {ip:#x} cannot be unwound: {why}")]
    NotUnwound {
        /// The instruction pointer.
        ip: u64,
        /// The unwinder's reason.
        why: String,
    },
    /// A case that is not supported on purpose.
    #[error("{0} is not supported")]
    Refused(&'static str),
    /// More steps than any walk needs.
    #[error("the walk does not end")]
    TooLong,
}

/// The kind of a step of the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameState {
    /// The context is in managed code.
    Frameless,
    /// The context is in native code. The explicit Frame leads to the next one.
    Frame,
    /// The context is in managed code, and this explicit Frame lies within its stack frame.
    SkippedFrame,
}

/// One step of a walk (the contract's IStackDataFrameHandle).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackFrame {
    /// The registers. They are not complete if they come from a Frame: see [`Context`].
    pub context: Context,
    /// The kind of the step.
    pub state: FrameState,
    frame: Option<ExplicitFrame>,
}

impl StackFrame {
    /// The explicit Frame of this step; `None` for managed frames.
    pub fn frame(&self) -> Option<ExplicitFrame> {
        if self.state == FrameState::Frameless { None } else { self.frame }
    }
}

/// The contract for one process.
#[derive(Debug)]
pub struct Contract {
    descriptor: Descriptor,
    kinds: Kinds,
}

impl Contract {
    /// The contract for a runtime with this descriptor.
    pub fn new(descriptor: Descriptor) -> Contract {
        let kinds = Kinds::new(&descriptor);
        Contract { descriptor, kinds }
    }

    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The thread's explicit Frames, innermost first, from the head of its chain.
    pub fn frames<'a, M: Memory>(&'a self, memory: &'a M, head: u64) -> Chain<'a, M> {
        Chain::new(&self.descriptor, &self.kinds, memory, head)
    }

    /// CreateStackWalk: walks from a thread's context and the head of its chain of Frames. For a
    /// thread in native code without Frames, the walk is empty.
    pub fn stack_walk<'a, M: Memory, C: Code>(
        &'a self,
        memory: &'a M,
        code: &'a C,
        context: Context,
        head: u64,
    ) -> StackWalk<'a, M, C> {
        let reader = FieldReader { descriptor: &self.descriptor, memory };
        let chain = self.frames(memory, head);
        StackWalk { reader, code, context, chain, next: NextStep::Start, left: MAX_STEPS }
    }

    /// GetMethodDescPtr of a Frame: the method that it names, if its kind names one.
    ///
    /// # Errors
    ///
    /// A field is not described (10.0 describes neither `InlinedCallFrame.Datum` nor
    /// `FramedMethodFrame.MethodDescPtr`) or was not captured.
    pub fn method_of_frame<M: Memory>(
        &self,
        memory: &M,
        frame: ExplicitFrame,
    ) -> Result<Option<MethodRef>, ContractError> {
        method::of_frame(&FieldReader { descriptor: &self.descriptor, memory }, frame)
    }

    /// Whether the descriptor does not say where a Frame of this kind holds its method, and the
    /// place before CallSiteSP is taken.
    pub fn is_method_by_position(&self, frame: ExplicitFrame) -> bool {
        frame.kind == Some(ExplicitKind::InlinedCallFrame)
            && self.descriptor.offset("InlinedCallFrame", "Datum").is_none()
    }

    /// The instruction pointer and the stack pointer of the managed code that a Frame leads to;
    /// `None` if it holds none, or none at this moment. Registers that it does not hold are those
    /// of `context`.
    ///
    /// # Errors
    ///
    /// A field is not described or was not captured.
    pub fn leads_to<M: Memory>(
        &self,
        memory: &M,
        frame: ExplicitFrame,
        context: &Context,
    ) -> Result<Option<(u64, u64)>, ContractError> {
        let reader = FieldReader { descriptor: &self.descriptor, memory };
        let mut there = context.clone();
        reader.update(frame, &mut there)?;
        Ok((there != *context).then(|| (there.ip(), there.sp())))
    }

    /// The frame pointer that an InlinedCallFrame states of its method; `None` for other kinds, and
    /// if its call is not in progress.
    ///
    /// # Errors
    ///
    /// A field is not described or was not captured.
    pub fn frame_pointer<M: Memory>(
        &self,
        memory: &M,
        frame: ExplicitFrame,
    ) -> Result<Option<u64>, ContractError> {
        let reader = FieldReader { descriptor: &self.descriptor, memory };
        if frame.kind != Some(ExplicitKind::InlinedCallFrame) || !reader.has_active_call(frame.address)? {
            return Ok(None);
        }
        let mut there = Context::new(self.descriptor.arch());
        reader.update(frame, &mut there)?;
        Ok(Some(there.fp()))
    }

    /// The explicit Frame from which a native walk can continue whose last frame has the stack
    /// pointer `sp`: the first one at or above `sp` that leads to managed code above `sp`. Also
    /// returns the context of that code. Registers that the Frame does not hold are those of
    /// `context`. A HijackFrame may lie below `sp`: it is made by what the code calls that took the
    /// return address's place, and the walk ends in that code, of whose stack frame the unwind data
    /// leaves out the stack pointer that it pushes first.
    pub fn checkpoint<M: Memory, C: Code>(
        &self,
        memory: &M,
        code: &C,
        context: &Context,
        head: u64,
        sp: u64,
    ) -> Option<(ExplicitFrame, Context)> {
        let reader = FieldReader { descriptor: &self.descriptor, memory };
        let frames = self.frames(memory, head).map_while(Result::ok);
        let fits =
            |frame: &ExplicitFrame| frame.address >= sp || frame.kind == Some(ExplicitKind::HijackFrame);
        frames.filter(fits).find_map(|frame| {
            let mut there = context.clone();
            reader.update(frame, &mut there).ok()?;
            (there.sp() > sp && code.is_managed(there.ip())).then_some((frame, there))
        })
    }
}

/// How the next step begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextStep {
    Start,
    /// Leave the current step, which has this state.
    Leave(FrameState),
    End,
}

/// A walk in progress, made by [`Contract::stack_walk`]. After an error it is at its end.
pub struct StackWalk<'a, M, C> {
    reader: FieldReader<'a, M>,
    code: &'a C,
    context: Context,
    chain: Chain<'a, M>,
    next: NextStep,
    left: usize,
}

impl<M: Memory, C: Code> StackWalk<'_, M, C> {
    /// Leaves a step: unwinds, or takes a Frame off the chain.
    fn leave(&mut self, state: FrameState) -> Result<(), ContractError> {
        match state {
            FrameState::Frameless => {
                let caller = self.caller()?;
                self.context = caller;
                Ok(())
            }
            FrameState::SkippedFrame => self.chain.advance(),
            FrameState::Frame => {
                let Some(frame) = self.chain.current()? else { return Ok(()) };
                self.reader.update(frame, &mut self.context)?;
                // While the call of an InlinedCallFrame is in progress, the Frame lies within the
                // frame that it leads to. The Frame is skipped there.
                let stays = frame.kind == Some(ExplicitKind::InlinedCallFrame)
                    && self.reader.has_active_call(frame.address)?;
                if stays && self.code.is_managed(self.context.ip()) {
                    return Ok(());
                }
                self.chain.advance()
            }
        }
    }

    /// The caller of the managed code that the context is in.
    fn caller(&self) -> Result<Context, ContractError> {
        let mut caller = self.context.clone();
        self.code.unwind(&mut caller)?;
        if caller.sp() <= self.context.sp() {
            return Err(ContractError::NoProgress { ip: self.context.ip() });
        }
        Ok(caller)
    }

    /// The state of the current step; `None` at the end of the walk.
    fn state(&self) -> Result<Option<FrameState>, ContractError> {
        let frame = self.chain.address();
        if !self.code.is_managed(self.context.ip()) {
            return Ok(frame.map(|_| FrameState::Frame));
        }
        let Some(address) = frame else { return Ok(Some(FrameState::Frameless)) };
        // A Frame below the caller's stack lies within this stack frame.
        Ok(Some(if address < self.caller()?.sp() { FrameState::SkippedFrame } else { FrameState::Frameless }))
    }

    fn step(&mut self) -> Result<Option<StackFrame>, ContractError> {
        self.left = self.left.checked_sub(1).ok_or(ContractError::TooLong)?;
        let state = match self.next {
            NextStep::End => return Ok(None),
            // The first frame is returned as it is. Frames within it follow.
            NextStep::Start if self.code.is_managed(self.context.ip()) => Some(FrameState::Frameless),
            NextStep::Start => self.chain.address().map(|_| FrameState::Frame),
            NextStep::Leave(state) => {
                self.leave(state)?;
                self.state()?
            }
        };
        let Some(state) = state else {
            self.next = NextStep::End;
            return Ok(None);
        };
        self.next = NextStep::Leave(state);
        let frame = if state == FrameState::Frameless { None } else { self.chain.current()? };
        Ok(Some(StackFrame { context: self.context.clone(), state, frame }))
    }
}

impl<M: Memory, C: Code> Iterator for StackWalk<'_, M, C> {
    type Item = Result<StackFrame, ContractError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.next = NextStep::End;
            self.left = 1;
        }
        step.transpose()
    }
}
