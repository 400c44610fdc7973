//! What a walk returns: frames, how far each can be trusted, and why the walk ended.

use crate::input::ModuleId;

/// One frame of a walked stack, innermost first.
///
/// Copyable and free of pointers, so that a walk costs no allocation once the caller's vector has
/// grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The instruction pointer of the context frame; the return address of every other one.
    pub address: u64,
    /// The stack pointer of this frame at [`address`](Self::address) (for a caller: after the
    /// return).
    pub sp: u64,
    /// The module (or code region) that holds the frame's code, as the caller's
    /// [`Modules`](crate::Modules) named it.
    pub module: Option<ModuleId>,
    /// `address` relative to the module's base; 0 without a module.
    pub rva: u32,
    /// How this frame was found.
    pub trust: Trust,
}

/// How a frame was found, and so how far it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
#[repr(u8)]
pub enum Trust {
    /// The sample's own registers: certain.
    Context = 0,
    /// From the called function's unwind data and, for a context frame, its code bytes.
    UnwindInfo = 1,
    /// The code was interrupted there. Found from the frame that an exception or interrupt pushed
    /// (UWOP_PUSH_MACHFRAME and its like), or below a function that the system enters by itself
    /// ([`interruption`](crate::ImageTablesBuilder::interruption)).
    MachineFrame = 2,
    /// The called function has no unwind data and is the innermost one: a leaf by the ABI's rule.
    Leaf = 3,
    /// The innermost instruction pointer is in no known module, so its code was assumed to be a
    /// leaf.
    LeafOutside = 4,
    /// From unwind data alone. The code bytes at the instruction pointer are not known, so the
    /// function was assumed not to be in an epilogue.
    UnwindInfoNoCode = 5,
    /// x86: from the PDB's FrameData program or FPO record, at the place that it gives.
    FrameData = 6,
    /// From following the called function's own code to its return: x86, and x64 assembler whose
    /// frame no unwind code describes. On x86 also from its first instructions up to the address.
    Code = 7,
    /// From a chain of saved frame pointers whose links were checked.
    FramePointer = 8,
    /// Found by searching the stack for a return address: a guess.
    Scan = 9,
    /// Unwinding ended. A language runtime's own record on the stack (.NET: an explicit Frame)
    /// gives the return address at which its code continues. Frames in between may be missing.
    ExplicitFrame = 10,
    /// As [`ExplicitFrame`](Self::ExplicitFrame), but the record holds the registers of code that
    /// was interrupted.
    ExplicitContext = 11,
    /// x86: as [`FrameData`](Self::FrameData), but the return address was searched for from the
    /// place that the record gives, or the code before it is not known to be a call.
    FrameDataSearch = 12,
    /// Found by one of the rules above, among modules or code that are assumed to have been there:
    /// a block of the trace that could have shown otherwise is lost. The walker never sets it.
    Assumed = 13,
}

impl Trust {
    /// The short stable name that outputs carry.
    pub fn as_str(self) -> &'static str {
        match self {
            Trust::Context => "context",
            Trust::UnwindInfo => "unwind-info",
            Trust::MachineFrame => "machine-frame",
            Trust::Leaf => "leaf",
            Trust::LeafOutside => "leaf-outside",
            Trust::UnwindInfoNoCode => "unwind-info-no-code",
            Trust::FrameData => "frame-data",
            Trust::Code => "code",
            Trust::FramePointer => "frame-pointer",
            Trust::Scan => "scan",
            Trust::ExplicitFrame => "explicit-frame",
            Trust::ExplicitContext => "explicit-context",
            Trust::FrameDataSearch => "frame-data-search",
            Trust::Assumed => "assumed",
        }
    }

    /// Whether the frame's address is that of an instruction. Otherwise it is a return address, and
    /// the call is the instruction before it.
    pub fn is_exact(self) -> bool {
        matches!(self, Trust::Context | Trust::MachineFrame | Trust::ExplicitContext)
    }

    /// Whether the frame follows from the recorded data. Otherwise the unwinder made an assumption
    /// that it could not check.
    pub fn is_proved(self) -> bool {
        !matches!(
            self,
            Trust::LeafOutside
                | Trust::UnwindInfoNoCode
                | Trust::FramePointer
                | Trust::Scan
                | Trust::ExplicitFrame
                | Trust::ExplicitContext
                | Trust::FrameDataSearch
                | Trust::Assumed
        )
    }

    /// Every trust, most certain first.
    pub const ALL: [Trust; 14] = [
        Trust::Context,
        Trust::UnwindInfo,
        Trust::MachineFrame,
        Trust::Leaf,
        Trust::LeafOutside,
        Trust::UnwindInfoNoCode,
        Trust::FrameData,
        Trust::Code,
        Trust::FrameDataSearch,
        Trust::FramePointer,
        Trust::ExplicitFrame,
        Trust::ExplicitContext,
        Trust::Scan,
        Trust::Assumed,
    ];
}

/// Why a walk ended.
///
/// Only [`Stop::ThreadStart`] says that the stack is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stop {
    /// The last frames are the system's thread-start functions and lie near the recorded stack
    /// base; or the last frame is a function in which a language runtime starts stacks of its own
    /// ([`stack_start`](crate::ImageTablesBuilder::stack_start)).
    ThreadStart,
    /// A return address of zero, but not in a thread-start function near the stack base.
    ZeroReturnAddress,
    /// The next word to read lies at or above the stack base.
    EndOfStack,
    /// The next word to read lies above the captured bytes, and the capture was cut short.
    Truncated,
    /// The sample does not hold a word that the unwinder needed.
    BadMemory {
        /// The address of that word.
        address: u64,
    },
    /// The stack pointer is unaligned, outside the captured stack, or does not increase.
    BadStackPointer {
        /// The stack pointer in question.
        sp: u64,
    },
    /// The return address is in no known module.
    NoModule {
        /// The return address.
        address: u64,
    },
    /// The thread was in an instrumentation callback, code outside of all modules to which Windows
    /// returns from system calls for some security software: its stack says no more.
    InstrumentationCallback {
        /// Where the callback continues (R10), behind the system call.
        address: u64,
    },
    /// The module's unwind tables are not known.
    NoUnwindData {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
    },
    /// The module's tables are known, but none covers this address, and only the innermost function
    /// can be a leaf.
    NoFunction {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
    },
    /// The return address is a function's first byte, and no call leads there: something replaced
    /// it on the stack. .NET's collector does so, to stop a thread when its method returns.
    ReplacedReturnAddress {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
    },
    /// The unwind data is cyclic, cut off or makes no sense.
    BadUnwindInfo {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
    },
    /// The unwind data is of a version that this crate does not know (UNWIND_INFO version 3, for
    /// one).
    UnsupportedVersion {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
        /// The version it states.
        version: u8,
    },
    /// The function saves scalable vector registers (SVE), in space whose size the unwind data does
    /// not give.
    ScalableVectors {
        /// The module concerned.
        module: ModuleId,
        /// The RVA in it.
        rva: u32,
    },
    /// The module's code is of another architecture than the sample's registers (WOW64, ARM64EC,
    /// emulated x64).
    OtherArchitecture {
        /// The module concerned.
        module: ModuleId,
    },
    /// The walk reached [`WalkOptions::max_frames`](crate::WalkOptions::max_frames) frames.
    DepthLimit,
    /// The frame is its own caller.
    Loop,
}

/// A [`Stop`] without addresses and modules, by which outputs group stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is that of the variant of `Stop` with its name")]
#[non_exhaustive]
pub enum StopKind {
    ThreadStart,
    ZeroReturnAddress,
    EndOfStack,
    Truncated,
    BadMemory,
    BadStackPointer,
    NoModule,
    InstrumentationCallback,
    NoUnwindData,
    NoFunction,
    ReplacedReturnAddress,
    BadUnwindInfo,
    UnsupportedVersion,
    ScalableVectors,
    OtherArchitecture,
    DepthLimit,
    Loop,
}

impl StopKind {
    /// The short stable name that outputs carry.
    pub fn as_str(self) -> &'static str {
        match self {
            StopKind::ThreadStart => "thread-start",
            StopKind::ZeroReturnAddress => "zero-return-address",
            StopKind::EndOfStack => "end-of-stack",
            StopKind::Truncated => "truncated",
            StopKind::BadMemory => "bad-memory",
            StopKind::BadStackPointer => "bad-stack-pointer",
            StopKind::NoModule => "no-module",
            StopKind::InstrumentationCallback => "instrumentation-callback",
            StopKind::NoUnwindData => "no-unwind-data",
            StopKind::NoFunction => "no-function",
            StopKind::ReplacedReturnAddress => "replaced-return-address",
            StopKind::BadUnwindInfo => "bad-unwind-info",
            StopKind::UnsupportedVersion => "unsupported-version",
            StopKind::ScalableVectors => "scalable-vectors",
            StopKind::OtherArchitecture => "other-architecture",
            StopKind::DepthLimit => "depth-limit",
            StopKind::Loop => "loop",
        }
    }
}

impl Stop {
    /// The stop's kind.
    pub fn kind(self) -> StopKind {
        match self {
            Stop::ThreadStart => StopKind::ThreadStart,
            Stop::ZeroReturnAddress => StopKind::ZeroReturnAddress,
            Stop::EndOfStack => StopKind::EndOfStack,
            Stop::Truncated => StopKind::Truncated,
            Stop::BadMemory { .. } => StopKind::BadMemory,
            Stop::BadStackPointer { .. } => StopKind::BadStackPointer,
            Stop::NoModule { .. } => StopKind::NoModule,
            Stop::InstrumentationCallback { .. } => StopKind::InstrumentationCallback,
            Stop::NoUnwindData { .. } => StopKind::NoUnwindData,
            Stop::NoFunction { .. } => StopKind::NoFunction,
            Stop::ReplacedReturnAddress { .. } => StopKind::ReplacedReturnAddress,
            Stop::BadUnwindInfo { .. } => StopKind::BadUnwindInfo,
            Stop::UnsupportedVersion { .. } => StopKind::UnsupportedVersion,
            Stop::ScalableVectors { .. } => StopKind::ScalableVectors,
            Stop::OtherArchitecture { .. } => StopKind::OtherArchitecture,
            Stop::DepthLimit => StopKind::DepthLimit,
            Stop::Loop => StopKind::Loop,
        }
    }

    /// The short stable name that outputs carry.
    pub fn as_str(self) -> &'static str {
        self.kind().as_str()
    }

    /// The module that is the cause, if the stop names one.
    pub fn module(self) -> Option<ModuleId> {
        match self {
            Stop::NoUnwindData { module, .. }
            | Stop::NoFunction { module, .. }
            | Stop::ReplacedReturnAddress { module, .. }
            | Stop::BadUnwindInfo { module, .. }
            | Stop::UnsupportedVersion { module, .. }
            | Stop::ScalableVectors { module, .. }
            | Stop::OtherArchitecture { module } => Some(module),
            _ => None,
        }
    }

    /// Whether the stack was walked to its end.
    pub fn is_complete(self) -> bool {
        self == Stop::ThreadStart
    }
}

/// Why no rule could be made for an address in an image. The walk, which knows the module, makes a
/// [`Stop`] of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NoUnwindData,
    NoFunction,
    ReplacedReturnAddress,
    BadUnwindInfo,
    UnsupportedVersion(u8),
    ScalableVectors,
    OtherArchitecture,
}

impl Fault {
    pub(crate) fn at(self, module: ModuleId, rva: u32) -> Stop {
        match self {
            Fault::NoUnwindData => Stop::NoUnwindData { module, rva },
            Fault::NoFunction => Stop::NoFunction { module, rva },
            Fault::ReplacedReturnAddress => Stop::ReplacedReturnAddress { module, rva },
            Fault::ScalableVectors => Stop::ScalableVectors { module, rva },
            Fault::OtherArchitecture => Stop::OtherArchitecture { module },
            Fault::BadUnwindInfo => Stop::BadUnwindInfo { module, rva },
            Fault::UnsupportedVersion(version) => Stop::UnsupportedVersion { module, rva, version },
        }
    }
}
