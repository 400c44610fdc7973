//! Classifies why two walks of one stack differ, as far as the sample itself proves it.

use super::replay::{EpilogueEnd, frame_to_come, replay, word};
use stk_schema::event::CheckWalk;
use stk_unwind::x64::{RBP, RSP};
use stk_unwind::{Frame, Modules, Registers, Sample, Stop, Trust, Walker};

/// Why two walks differ. All classes but the last are proved from code bytes, unwind data or the
/// reason why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DifferenceClass {
    /// The code at the instruction pointer releases its frame and jumps to another function. At
    /// that function's first instruction, the caller is the one that we found. The system's
    /// unwinder took the code for the function's body.
    TailJumpMissed,
    /// Like [`TailJumpMissed`](DifferenceClass::TailJumpMissed), but the code runs to its return.
    EpilogueMissed,
    /// The code at the instruction pointer continues straight to the setup of a frame by rbp. One
    /// entry covers many functions, as V8 registers its code, and the system's unwinder knows only
    /// one prologue per entry. It took the code for a body, so its caller is that of the frame that
    /// rbp still belongs to.
    PrologueMissed,
    /// Assembler without unwind codes for its frame (it has no unwind data, or a handler and no
    /// codes). The system's unwinder applied the ABI's rule for leaves, which gives an address in
    /// no module. The code is not a leaf: followed to its return, it leads to the thread's start.
    TakenForLeaf,
    /// The call is the last instruction of its function, so its return address is in the next
    /// function, or in none. The system's unwinder looked up that address, but the call belongs to
    /// the function before.
    LookedBehindCall,
    /// A system call's stub, which has no unwind data, was interrupted by a function that the
    /// system enters by itself (Wine's KiUserApcDispatcher). The stub is a leaf, although it is not
    /// the innermost frame, and the recorder does not ask the system about such leaves.
    InterruptedLeaf,
    /// The system's unwinder continued past the thread's first function.
    PastThreadStart,
    /// The system's walk ended at the recorder's frame limit, or at a read of unmapped memory.
    SystemEndedEarly,
    /// Code in no recorded module or code region. The system has a function table for it.
    DynamicCode,
    /// Both walks end at the same return address, which is in no module. Our walk reports it in
    /// the stop reason, not as a frame.
    NoModule,
    /// The trace has no unwind data of a module.
    NoUnwindData,
    /// The captured stack ends below the stack's base.
    Truncated,
    /// No class explains the difference, so one of the two walks is wrong.
    Unexplained,
}

impl DifferenceClass {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            DifferenceClass::TailJumpMissed => "system-missed-tail-jump",
            DifferenceClass::EpilogueMissed => "system-missed-epilogue",
            DifferenceClass::PrologueMissed => "system-missed-prologue",
            DifferenceClass::TakenForLeaf => "system-took-assembler-for-leaf",
            DifferenceClass::LookedBehindCall => "system-looked-behind-call",
            DifferenceClass::InterruptedLeaf => "system-ended-at-interrupted-leaf",
            DifferenceClass::PastThreadStart => "system-past-thread-start",
            DifferenceClass::SystemEndedEarly => "system-ended-early",
            DifferenceClass::DynamicCode => "dynamic-code-not-recorded",
            DifferenceClass::NoModule => "both-end-outside-modules",
            DifferenceClass::NoUnwindData => "unwind-data-not-recorded",
            DifferenceClass::Truncated => "stack-truncated",
            DifferenceClass::Unexplained => "unexplained",
        }
    }

    /// What the class means, in words for users.
    pub fn meaning(self) -> &'static str {
        match self {
            DifferenceClass::TailJumpMissed => {
                "the system's unwinder took an epilogue that ends in a jump for the function's body"
            }
            DifferenceClass::EpilogueMissed => {
                "the system's unwinder took an epilogue for the function's body"
            }
            DifferenceClass::PrologueMissed => {
                "the system's unwinder took the prologue of one of many functions under one entry for a body"
            }
            DifferenceClass::TakenForLeaf => {
                "the system's unwinder took assembler, which has a frame without an unwind code, for a leaf"
            }
            DifferenceClass::LookedBehindCall => {
                "the system's unwinder looked up the function behind a call that ends its function"
            }
            DifferenceClass::InterruptedLeaf => {
                "the system's walk ended at a system call that was interrupted by a call into user mode"
            }
            DifferenceClass::PastThreadStart => {
                "the system's unwinder continued past the thread's first function"
            }
            DifferenceClass::SystemEndedEarly => "the frame limit or a fault ended the system's walk",
            DifferenceClass::DynamicCode => "dynamic code that the trace does not hold",
            DifferenceClass::NoModule => "both walks end at the same return address outside of all modules",
            DifferenceClass::NoUnwindData => "the trace holds no unwind data of the module",
            DifferenceClass::Truncated => "the captured stack was cut short",
            DifferenceClass::Unexplained => "NOT EXPLAINED: one of the walks is wrong",
        }
    }
}

/// Two walks that differ.
pub(super) struct Case<'a> {
    /// The walked sample.
    pub input: &'a Sample<'a>,
    /// Our walk.
    pub frames: &'a [Frame],
    /// Why it ended.
    pub stop: Stop,
    /// The system's walk.
    pub walk: &'a CheckWalk,
    /// Number of frames that are equal, counted from the first.
    pub equal: usize,
}

/// Classifies a difference. `prover` walks from other addresses than the sample's, without its
/// code.
pub(super) fn classify<M: Modules>(case: &Case<'_>, space: &M, prover: &mut Walker) -> DifferenceClass {
    let ours = case.frames.get(case.equal);
    let theirs = case.walk.frames.get(case.equal);
    match (ours, theirs) {
        (None, Some(&theirs)) => our_end(case, theirs),
        (Some(_), None) if case.walk.flags & (CheckWalk::FRAME_LIMIT | CheckWalk::FAULT) != 0 => {
            DifferenceClass::SystemEndedEarly
        }
        (Some(ours), None) if interrupted_leaf(case, ours, space) => DifferenceClass::InterruptedLeaf,
        (Some(ours), _) if case.equal == 1 => {
            context_step(case, ours, space, prover).unwrap_or_else(|| behind_call(case, space))
        }
        (Some(_), _) if case.equal > 1 => behind_call(case, space),
        _ => DifferenceClass::Unexplained,
    }
}

/// See [`DifferenceClass::InterruptedLeaf`].
fn interrupted_leaf<M: Modules>(case: &Case<'_>, ours: &Frame, space: &M) -> bool {
    let [.., dispatcher, stub] = &case.frames[..case.equal] else { return false };
    let image = |frame: &Frame| Some(space.find(frame.address)?.image);
    ours.trust == Trust::Leaf
        && image(stub).is_some_and(|image| image.function_range(stub.rva).is_none())
        && image(dispatcher).is_some_and(|image| image.is_interruption(dispatcher.rva))
}

/// Classifies a difference where our walk ended and the system's continued to `(ip, sp)`.
fn our_end(case: &Case<'_>, (ip, sp): (u64, u64)) -> DifferenceClass {
    let context = &case.frames[0];
    if case.equal == 1 && context.module.is_none() {
        // Code without tables is taken for a leaf, and with that rule no caller was found. The
        // system found one. If it is not the leaf's, the system has a table.
        let leaf = matches!(case.stop, Stop::NoModule { address } if address == ip)
            && sp == context.sp.wrapping_add(8)
            && case.walk.frames.len() == 2;
        return if leaf { DifferenceClass::NoModule } else { DifferenceClass::DynamicCode };
    }
    match case.stop {
        Stop::ThreadStart => DifferenceClass::PastThreadStart,
        Stop::Truncated => DifferenceClass::Truncated,
        Stop::NoUnwindData { .. } => DifferenceClass::NoUnwindData,
        Stop::NoModule { address } if address == ip && case.walk.frames.len() == case.equal + 1 => {
            DifferenceClass::NoModule
        }
        // The system found the caller of code that is not a leaf, which needs a table.
        Stop::NoModule { address } if address == ip => DifferenceClass::DynamicCode,
        _ => DifferenceClass::Unexplained,
    }
}

/// Classifies a difference in the step from the context frame, by running the code there.
fn context_step<M: Modules>(
    case: &Case<'_>,
    ours: &Frame,
    space: &M,
    prover: &mut Walker,
) -> Option<DifferenceClass> {
    let context = case.frames.first()?;
    if context.module.is_none() && ours.trust == Trust::LeafOutside {
        // Our frame is the caller by the rule for code without tables, so the system has a table.
        return Some(DifferenceClass::DynamicCode);
    }
    if took_for_leaf(case, ours, space) {
        return Some(DifferenceClass::TakenForLeaf);
    }
    let Registers::X64(registers) = case.input.registers else { return None };
    if missed_prologue(case, ours, space) {
        return Some(DifferenceClass::PrologueMissed);
    }
    let (end, ending) = replay(case.input, registers)?;
    let at_return = Sample { registers: &Registers::X64(end), code_at_ip: None, ..*case.input };
    let caller = match ending {
        EpilogueEnd::Return => (end.ip, end.gpr[RSP]),
        EpilogueEnd::Jump if !begins_function(space, end.ip) => return None,
        EpilogueEnd::Jump => {
            let mut frames = Vec::new();
            prover.walk(space, &at_return, &mut frames);
            frames.get(1).map(|frame| (frame.address, frame.sp))?
        }
        // At a function's first instruction, its return address is on top of the stack.
        EpilogueEnd::JumpIndirect => (word(case.input, end.gpr[RSP])?, end.gpr[RSP].wrapping_add(8)),
    };
    let proved = caller == (ours.address, ours.sp);
    proved.then_some(if ending == EpilogueEnd::Return {
        DifferenceClass::EpilogueMissed
    } else {
        DifferenceClass::TailJumpMissed
    })
}

/// See [`DifferenceClass::PrologueMissed`].
fn missed_prologue<M: Modules>(case: &Case<'_>, ours: &Frame, space: &M) -> bool {
    let (context, Registers::X64(registers)) = (&case.frames[0], case.input.registers) else { return false };
    let words = case.input.code_at_ip.and_then(frame_to_come);
    let (Some(words), Some(&theirs)) = (words, case.walk.frames.get(1)) else { return false };
    let caller = |at: u64| Some((word(case.input, at)?, at.wrapping_add(8)));
    // At an entry's own beginning, the system knows the prologue as well as we do.
    !begins_function(space, context.address.wrapping_sub(words))
        && caller(context.sp.wrapping_add(8 * words)) == Some((ours.address, ours.sp))
        && caller(registers.gpr[RBP].wrapping_add(8)) == Some(theirs)
}

/// See [`DifferenceClass::TakenForLeaf`].
fn took_for_leaf<M: Modules>(case: &Case<'_>, ours: &Frame, space: &M) -> bool {
    let (context, theirs) = (&case.frames[0], case.walk.frames.get(1));
    let has_table =
        space.find(context.address).is_none_or(|found| found.image.function_range(context.rva).is_some());
    let leaf = match theirs {
        Some(&(ip, sp)) => sp == context.sp.wrapping_add(8) && space.find(ip).is_none(),
        // The walk ends at an address of zero.
        None => word(case.input, context.sp) == Some(0),
    };
    (!has_table || ours.trust == Trust::Code) && leaf && case.stop.is_complete()
}

/// Whether a function begins at `address`. A function without unwind data can begin anywhere.
fn begins_function<M: Modules>(space: &M, address: u64) -> bool {
    let Some(found) = space.find(address) else { return true };
    let Ok(rva) = u32::try_from(address.wrapping_sub(found.base)) else { return false };
    found.image.function_range(rva).is_none_or(|range| range.start == rva)
}

/// Whether the last frame that both walks have returns to behind the last call of its function.
fn behind_call<M: Modules>(case: &Case<'_>, space: &M) -> DifferenceClass {
    let last = case.equal.checked_sub(1).and_then(|at| case.frames.get(at));
    let Some(last) = last.filter(|last| !last.trust.is_exact()) else {
        return DifferenceClass::Unexplained;
    };
    let function = |address: u64| {
        let found = space.find(address)?;
        let rva = u32::try_from(address.wrapping_sub(found.base)).ok()?;
        Some((found.module, found.image.function_range(rva)?))
    };
    let call = function(last.address.wrapping_sub(1));
    if call.is_some() && call != function(last.address) {
        DifferenceClass::LookedBehindCall
    } else {
        DifferenceClass::Unexplained
    }
}
