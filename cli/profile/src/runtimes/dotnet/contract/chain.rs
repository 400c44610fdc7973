//! The chain of explicit Frames: their kinds and their links.

use std::collections::HashMap;

use super::{ContractError, Descriptor, Memory};

/// Limit for the number of Frames of a chain.
const MAX_FRAMES: usize = 65_536;

/// The kinds of explicit Frames, under the runtime's own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExplicitKind {
    InlinedCallFrame,
    SoftwareExceptionFrame,
    FramedMethodFrame,
    CLRToCOMMethodFrame,
    PInvokeCalliFrame,
    PrestubMethodFrame,
    StubDispatchFrame,
    CallCountingHelperFrame,
    ExternalMethodFrame,
    DynamicHelperFrame,
    FuncEvalFrame,
    ResumableFrame,
    RedirectedThreadFrame,
    FaultingExceptionFrame,
    HijackFrame,
    TailCallFrame,
    InterpreterFrame,
    UnmanagedToManagedFrame,
    ComMethodFrame,
    ComPrestubMethodFrame,
    ProtectValueClassFrame,
    DebuggerClassInitMarkFrame,
    DebuggerExitFrame,
    DebuggerU2MCatchHandlerFrame,
    ExceptionFilterFrame,
}

impl ExplicitKind {
    pub const ALL: [ExplicitKind; 25] = [
        ExplicitKind::InlinedCallFrame,
        ExplicitKind::SoftwareExceptionFrame,
        ExplicitKind::FramedMethodFrame,
        ExplicitKind::CLRToCOMMethodFrame,
        ExplicitKind::PInvokeCalliFrame,
        ExplicitKind::PrestubMethodFrame,
        ExplicitKind::StubDispatchFrame,
        ExplicitKind::CallCountingHelperFrame,
        ExplicitKind::ExternalMethodFrame,
        ExplicitKind::DynamicHelperFrame,
        ExplicitKind::FuncEvalFrame,
        ExplicitKind::ResumableFrame,
        ExplicitKind::RedirectedThreadFrame,
        ExplicitKind::FaultingExceptionFrame,
        ExplicitKind::HijackFrame,
        ExplicitKind::TailCallFrame,
        ExplicitKind::InterpreterFrame,
        ExplicitKind::UnmanagedToManagedFrame,
        ExplicitKind::ComMethodFrame,
        ExplicitKind::ComPrestubMethodFrame,
        ExplicitKind::ProtectValueClassFrame,
        ExplicitKind::DebuggerClassInitMarkFrame,
        ExplicitKind::DebuggerExitFrame,
        ExplicitKind::DebuggerU2MCatchHandlerFrame,
        ExplicitKind::ExceptionFilterFrame,
    ];

    /// The name of the runtime's class.
    pub const fn as_str(self) -> &'static str {
        match self {
            ExplicitKind::InlinedCallFrame => "InlinedCallFrame",
            ExplicitKind::SoftwareExceptionFrame => "SoftwareExceptionFrame",
            ExplicitKind::FramedMethodFrame => "FramedMethodFrame",
            ExplicitKind::CLRToCOMMethodFrame => "CLRToCOMMethodFrame",
            ExplicitKind::PInvokeCalliFrame => "PInvokeCalliFrame",
            ExplicitKind::PrestubMethodFrame => "PrestubMethodFrame",
            ExplicitKind::StubDispatchFrame => "StubDispatchFrame",
            ExplicitKind::CallCountingHelperFrame => "CallCountingHelperFrame",
            ExplicitKind::ExternalMethodFrame => "ExternalMethodFrame",
            ExplicitKind::DynamicHelperFrame => "DynamicHelperFrame",
            ExplicitKind::FuncEvalFrame => "FuncEvalFrame",
            ExplicitKind::ResumableFrame => "ResumableFrame",
            ExplicitKind::RedirectedThreadFrame => "RedirectedThreadFrame",
            ExplicitKind::FaultingExceptionFrame => "FaultingExceptionFrame",
            ExplicitKind::HijackFrame => "HijackFrame",
            ExplicitKind::TailCallFrame => "TailCallFrame",
            ExplicitKind::InterpreterFrame => "InterpreterFrame",
            ExplicitKind::UnmanagedToManagedFrame => "UnmanagedToManagedFrame",
            ExplicitKind::ComMethodFrame => "ComMethodFrame",
            ExplicitKind::ComPrestubMethodFrame => "ComPrestubMethodFrame",
            ExplicitKind::ProtectValueClassFrame => "ProtectValueClassFrame",
            ExplicitKind::DebuggerClassInitMarkFrame => "DebuggerClassInitMarkFrame",
            ExplicitKind::DebuggerExitFrame => "DebuggerExitFrame",
            ExplicitKind::DebuggerU2MCatchHandlerFrame => "DebuggerU2MCatchHandlerFrame",
            ExplicitKind::ExceptionFilterFrame => "ExceptionFilterFrame",
        }
    }

    /// Whether it holds a TransitionBlock: a return address and the callee-saved registers.
    pub const fn is_transition(self) -> bool {
        matches!(
            self,
            ExplicitKind::FramedMethodFrame
                | ExplicitKind::CLRToCOMMethodFrame
                | ExplicitKind::PInvokeCalliFrame
                | ExplicitKind::PrestubMethodFrame
                | ExplicitKind::StubDispatchFrame
                | ExplicitKind::CallCountingHelperFrame
                | ExplicitKind::ExternalMethodFrame
                | ExplicitKind::DynamicHelperFrame
        )
    }
}

/// The identifiers of one build of the runtime.
#[derive(Debug, Clone)]
pub(super) struct Kinds(HashMap<u64, ExplicitKind>);

impl Kinds {
    pub(super) fn new(descriptor: &Descriptor) -> Kinds {
        let identifier = |kind: ExplicitKind| descriptor.number(&format!("{}Identifier", kind.as_str()));
        Kinds(ExplicitKind::ALL.into_iter().filter_map(|kind| Some((identifier(kind)?, kind))).collect())
    }

    pub(super) fn of(&self, identifier: u64) -> Option<ExplicitKind> {
        self.0.get(&identifier).copied()
    }
}

/// One Frame of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExplicitFrame {
    /// Its address on the stack.
    pub address: u64,
    /// Its identifier as read.
    pub identifier: u64,
    /// Its kind; `None` if the runtime's descriptor does not name it.
    pub kind: Option<ExplicitKind>,
}

/// Follows a thread's Frames, the innermost first.
#[derive(Debug, Clone)]
pub struct Chain<'a, M> {
    descriptor: &'a Descriptor,
    kinds: &'a Kinds,
    memory: &'a M,
    /// Address of the current Frame; `None` at the end.
    at: Option<u64>,
    left: usize,
    /// Why the chain broke off, until the iterator has returned it.
    error: Option<ContractError>,
}

impl<'a, M: Memory> Chain<'a, M> {
    pub(super) fn new(
        descriptor: &'a Descriptor,
        kinds: &'a Kinds,
        memory: &'a M,
        head: u64,
    ) -> Chain<'a, M> {
        let at = (head != terminator(descriptor) && head != 0).then_some(head);
        Chain { descriptor, kinds, memory, at, left: MAX_FRAMES, error: None }
    }

    /// The address of the current Frame; `None` at the end of the chain.
    pub fn address(&self) -> Option<u64> {
        self.at
    }

    /// The current Frame; `None` at the end of the chain.
    ///
    /// # Errors
    ///
    /// The memory of the Frame is not known.
    pub fn current(&self) -> Result<Option<ExplicitFrame>, ContractError> {
        let Some(address) = self.at else { return Ok(None) };
        let identifier = self
            .memory
            .number(address, self.descriptor.pointer_size())
            .ok_or(ContractError::Unread { what: "a Frame's identifier", address })?;
        Ok(Some(ExplicitFrame { address, identifier, kind: self.kinds.of(identifier) }))
    }

    /// Moves to the next Frame.
    ///
    /// # Errors
    ///
    /// The link is not known, or leads down the stack. Frames are pushed as the stack grows, so a
    /// chain that does not go up is damaged or cyclic. The chain is then at its end.
    pub fn advance(&mut self) -> Result<(), ContractError> {
        let Some(address) = self.at.take() else { return Ok(()) };
        let offset =
            self.descriptor.offset("Frame", "Next").ok_or(ContractError::NotDescribed("Frame.Next"))?;
        let link = address.wrapping_add(offset);
        let next = self
            .memory
            .number(link, self.descriptor.pointer_size())
            .ok_or(ContractError::Unread { what: "a Frame's link", address: link })?;
        if next == terminator(self.descriptor) {
            return Ok(());
        }
        self.left -= 1;
        if next <= address || self.left == 0 {
            return Err(ContractError::BrokenChain { address, next });
        }
        self.at = Some(next);
        Ok(())
    }
}

impl<M: Memory> Iterator for Chain<'_, M> {
    type Item = Result<ExplicitFrame, ContractError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(reason) = self.error.take() {
            return Some(Err(reason));
        }
        let frame = match self.current() {
            Ok(frame) => frame?,
            Err(reason) => {
                self.at = None;
                return Some(Err(reason));
            }
        };
        self.error = self.advance().err();
        Some(Ok(frame))
    }
}

/// The value of the last Frame's link and of an empty chain's head.
pub(super) fn terminator(descriptor: &Descriptor) -> u64 {
    if descriptor.pointer_size() == 4 { u64::from(u32::MAX) } else { u64::MAX }
}
