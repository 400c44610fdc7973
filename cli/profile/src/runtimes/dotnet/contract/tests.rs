//! Tests of every mechanism of the contract on made-up memory, of the design document's two worked
//! examples, and of hostile chains.
//!
//! The layouts on x64 are those of CoreCLR 10.0.9, taken from its own descriptor. Elsewhere they
//! follow from `frames.h` for the same structures. The values are made up.

use stk_schema::Arch;

use super::chain::Kinds;
use super::testing::{MockCode, Process, context};
use super::*;

const X64: &str = r#"{
    "Frame":{"Next":8},
    "InlinedCallFrame":{"!":56,"CallSiteSP":24,"CallerReturnAddress":32,"CalleeSavedFP":40,"Datum":16},
    "SoftwareExceptionFrame":{"!":1520,"TargetContext":288,"ReturnAddress":16},
    "FramedMethodFrame":{"!":32,"TransitionBlockPtr":16,"MethodDescPtr":24},
    "StubDispatchFrame":{"MethodDescPtr":24,"RepresentativeMTPtr":32,"RepresentativeSlot":40},
    "TransitionBlock":{"!":72,"ReturnAddress":64,"CalleeSavedRegisters":0},
    "CalleeSavedRegisters":{"!":64,"Rdi":0,"Rsi":8,"Rbx":16,"Rbp":24,"R12":32,"R13":40,"R14":48,"R15":56},
    "FuncEvalFrame":{"!":40,"DebuggerEvalPtr":24},
    "DebuggerEval":{"!":1376,"TargetContext":0,"EvalDuringException":1350},
    "ResumableFrame":{"!":24,"TargetContextPtr":16},
    "FaultingExceptionFrame":{"!":1280,"TargetContext":32},
    "HijackFrame":{"!":40,"ReturnAddress":16,"HijackArgsPtr":32},
    "HijackArgs":{"!":96,"CalleeSavedRegisters":16,"Rsp":80},
    "MethodDesc":{"!":16,"ChunkIndex":2,"Slot":4,"Flags":6,"Flags3AndTokenRemainder":0},
    "MethodDescChunk":{"!":24,"FlagsAndTokenRange":18},
    "StoredSigMethodDesc":{"ExtendedFlags":28}
}"#;

const ARM64: &str = r#"{
    "Frame":{"Next":8},
    "InlinedCallFrame":{"!":56,"CallSiteSP":24,"CallerReturnAddress":32,"CalleeSavedFP":40},
    "SoftwareExceptionFrame":{"TargetContext":288,"ReturnAddress":16},
    "FramedMethodFrame":{"!":32,"TransitionBlockPtr":16},
    "TransitionBlock":{"!":176,"ReturnAddress":8,"CalleeSavedRegisters":0},
    "CalleeSavedRegisters":{"Fp":0,"Lr":8,"X19":16,"X20":24,"X28":88},
    "FuncEvalFrame":{"DebuggerEvalPtr":24},
    "DebuggerEval":{"TargetContext":0,"EvalUsesHijack":950},
    "ResumableFrame":{"TargetContextPtr":16},
    "FaultingExceptionFrame":{"TargetContext":32},
    "HijackFrame":{"ReturnAddress":16,"HijackArgsPtr":32},
    "HijackArgs":{"!":104,"Fp":0,"Lr":8,"X19":16,"X28":88,"X0":96}
}"#;

const X86: &str = r#"{
    "Frame":{"Next":4},
    "InlinedCallFrame":{"!":28,"Datum":8,"CallSiteSP":12,"CallerReturnAddress":16,"CalleeSavedFP":20},
    "FramedMethodFrame":{"TransitionBlockPtr":8},
    "TransitionBlock":{"!":28,"ReturnAddress":24,"CalleeSavedRegisters":8},
    "CalleeSavedRegisters":{"Edi":0,"Esi":4,"Ebx":8,"Ebp":12},
    "FaultingExceptionFrame":{"TargetContext":32},
    "HijackFrame":{"ReturnAddress":8,"HijackArgsPtr":12},
    "HijackArgs":{"!":36,"Edi":0,"Esi":4,"Ebx":8,"Ebp":12,"Eax":16},
    "TailCallFrame":{"!":28,"CalleeSavedRegisters":8,"ReturnAddress":24}
}"#;

const MANAGED: u64 = 0x7000_0000;
const NATIVE: u64 = 0x1000;

fn managed() -> MockCode {
    let mut code = MockCode::default();
    code.managed.push(MANAGED..MANAGED + 0x1000);
    code
}

/// The context that the one Frame at 0x8000 gives a thread in native code.
fn through(process: &Process, before: Context) -> Result<Context, ContractError> {
    let code = managed();
    let mut walk = process.contract.stack_walk(&process.memory, &code, before, 0x8000);
    let first = walk.next().expect("the thread's own context")?;
    assert_eq!(first.state, FrameState::Frame);
    assert_eq!(first.frame().map(|frame| frame.address), Some(0x8000));
    walk.next().expect("the context that the Frame holds").map(|frame| frame.context)
}

fn native(arch: Arch) -> Context {
    let all: &[(&str, u64)] = match arch {
        Arch::X64 => {
            &[("Rip", NATIVE), ("Rsp", 0x7f00), ("Rbp", 0xb0), ("Rbx", 0xb1), ("R12", 0xb2), ("Rcx", 0xb3)]
        }
        Arch::Arm64 => {
            &[("Pc", NATIVE), ("Sp", 0x7f00), ("Fp", 0xb0), ("X19", 0xb1), ("X20", 0xb2), ("X1", 0xb3)]
        }
        Arch::X86 => {
            &[("Eip", NATIVE), ("Esp", 0x7f00), ("Ebp", 0xb0), ("Ebx", 0xb1), ("Esi", 0xb2), ("Ecx", 0xb3)]
        }
    };
    context(arch, all)
}

fn process(arch: Arch, kind: ExplicitKind) -> Process {
    let mut process = Process::new(
        arch,
        match arch {
            Arch::X64 => X64,
            Arch::Arm64 => ARM64,
            Arch::X86 => X86,
        },
    );
    process.frame(0x8000, kind, 0);
    process
}

fn registers(context: &Context, names: &[&str]) -> Vec<u64> {
    names.iter().map(|name| context.register(name).expect("a register")).collect()
}

#[test]
fn inlined_call_frame_gives_only_ip_sp_and_fp() {
    for arch in [Arch::X64, Arch::Arm64, Arch::X86] {
        let mut process = process(arch, ExplicitKind::InlinedCallFrame);
        process.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", MANAGED + 4);
        process.field(0x8000, "InlinedCallFrame", "CallSiteSP", 0x8100);
        process.field(0x8000, "InlinedCallFrame", "CalleeSavedFP", 0x8200);
        // Unwinding the code that it leads to passes the Frame.
        let mut expected = native(arch);
        expected.set_ip(MANAGED + 4);
        expected.set_sp(0x8100);
        expected.set_fp(0x8200);
        let mut code = managed();
        code.callers.insert((MANAGED + 4, 0x8100), (NATIVE, 0x8180));
        let walk = process.contract.stack_walk(&process.memory, &code, native(arch), 0x8000);
        let steps: Vec<_> = walk.map(Result::unwrap).collect();
        let states: Vec<_> = steps.iter().map(|step| step.state).collect();
        assert_eq!(states, [FrameState::Frame, FrameState::SkippedFrame, FrameState::Frameless], "{arch:?}");
        assert_eq!(steps[1].context, expected, "{arch:?}");
        assert_eq!(steps[2].context, expected, "{arch:?}");
    }
}

#[test]
fn inlined_call_frame_without_a_call_changes_nothing() {
    for arch in [Arch::X64, Arch::Arm64] {
        let mut process = process(arch, ExplicitKind::InlinedCallFrame);
        process.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", 0);
        let code = managed();
        let walk = process.contract.stack_walk(&process.memory, &code, native(arch), 0x8000);
        let steps: Vec<_> = walk.map(Result::unwrap).collect();
        assert_eq!(steps.len(), 1);
        assert_eq!(steps[0].context, native(arch));
    }
}

#[test]
fn software_exception_frame_gives_the_callee_saved_registers_of_its_context() {
    type ArchCase = (Arch, &'static [(&'static str, u64)], &'static [&'static str]);
    let saved: [ArchCase; 2] = [
        (
            Arch::X64,
            &[("Rip", MANAGED), ("Rsp", 0x9000), ("Rbp", 1), ("Rbx", 2), ("R12", 3), ("Rcx", 4)],
            &["Rip", "Rsp", "Rbp", "Rbx", "R12", "Rcx"],
        ),
        (
            Arch::Arm64,
            &[("Pc", MANAGED), ("Sp", 0x9000), ("Fp", 1), ("X19", 2), ("X20", 3), ("X1", 4)],
            &["Pc", "Sp", "Fp", "X19", "X20", "X1"],
        ),
    ];
    for (arch, stored, names) in saved {
        let mut process = process(arch, ExplicitKind::SoftwareExceptionFrame);
        process.context(0x8000 + 288, 0, stored);
        let context = through(&process, native(arch)).unwrap();
        // The last register is volatile: it keeps the thread's value.
        assert_eq!(registers(&context, names), [MANAGED, 0x9000, 1, 2, 3, 0xb3], "{arch:?}");
    }
}

#[test]
fn transition_frames_give_the_block_and_the_stack_behind_it() {
    let kinds = ExplicitKind::ALL.into_iter().filter(|kind| kind.is_transition());
    for kind in kinds {
        for (arch, names, size) in [
            (Arch::X64, ["Rip", "Rsp", "Rbp", "Rbx", "R12", "Rcx"], 72),
            (Arch::Arm64, ["Pc", "Sp", "Fp", "X19", "X20", "X1"], 176),
            (Arch::X86, ["Eip", "Esp", "Ebp", "Ebx", "Esi", "Ecx"], 28),
        ] {
            let mut process = process(arch, kind);
            process.field(0x8000, "FramedMethodFrame", "TransitionBlockPtr", 0x8800);
            process.field(0x8800, "TransitionBlock", "ReturnAddress", MANAGED + 8);
            let saved = 0x8800
                + process.contract.descriptor().offset("TransitionBlock", "CalleeSavedRegisters").unwrap();
            let all: Vec<String> = {
                let info = process.contract.descriptor().type_info("CalleeSavedRegisters").unwrap();
                info.fields().map(|(name, _)| name.to_owned()).collect()
            };
            for name in all {
                let value = match name.as_str() {
                    "Rbp" | "Fp" | "Ebp" => 1,
                    "Rbx" | "X19" | "Ebx" => 2,
                    "R12" | "X20" | "Esi" => 3,
                    // arm64: the return address is stored as lr.
                    "Lr" => MANAGED + 8,
                    _ => 9,
                };
                process.field(saved, "CalleeSavedRegisters", &name, value);
            }
            let context = through(&process, native(arch)).unwrap();
            assert_eq!(
                registers(&context, &names),
                [MANAGED + 8, 0x8800 + size, 1, 2, 3, 0xb3],
                "{arch:?} {kind:?}"
            );
        }
    }
}

#[test]
fn func_eval_frames_are_refused_by_name() {
    let process = process(Arch::X64, ExplicitKind::FuncEvalFrame);
    assert_eq!(through(&process, native(Arch::X64)), Err(ContractError::Refused("FuncEvalFrame")));
}

#[test]
fn resumable_and_redirected_frames_give_the_context_that_they_point_to() {
    for kind in [ExplicitKind::ResumableFrame, ExplicitKind::RedirectedThreadFrame] {
        for (arch, ip, volatile) in [(Arch::X64, "Rip", "Rcx"), (Arch::Arm64, "Pc", "X1")] {
            let mut process = process(arch, kind);
            process.field(0x8000, "ResumableFrame", "TargetContextPtr", 0xdead_0000);
            assert_eq!(
                through(&process, native(arch)),
                Err(ContractError::Unread { what: "ResumableFrame.TargetContext", address: 0xdead_0000 })
            );
            process.context(0xdead_0000, 0, &[(ip, MANAGED), (volatile, 77)]);
            let context = through(&process, native(arch)).unwrap();
            assert_eq!(registers(&context, &[ip, volatile]), [MANAGED, 77], "{arch:?} {kind:?}");
        }
    }
}

#[test]
fn faulting_exception_frame_gives_its_context_without_extended_state() {
    for (arch, ip, flags, kept) in
        [(Arch::X64, "Rip", 0x10_005f, 0x10_001f), (Arch::Arm64, "Pc", 0x40_0027, 0x40_0007)]
    {
        let mut process = process(arch, ExplicitKind::FaultingExceptionFrame);
        process.context(0x8000 + 32, flags, &[(ip, MANAGED)]);
        let context = through(&process, native(arch)).unwrap();
        assert_eq!((context.ip(), context.flags()), (MANAGED, kept), "{arch:?}");
    }
    let x86 = process(Arch::X86, ExplicitKind::FaultingExceptionFrame);
    assert_eq!(
        through(&x86, native(Arch::X86)),
        Err(ContractError::Refused("FaultingExceptionFrame of x86"))
    );
}

#[test]
fn hijack_frame_on_windows_x64_states_the_stack_pointer() {
    let mut process = process(Arch::X64, ExplicitKind::HijackFrame);
    process.field(0x8000, "HijackFrame", "ReturnAddress", MANAGED);
    process.field(0x8000, "HijackFrame", "HijackArgsPtr", 0x8400);
    for (register, value) in
        [("Rbp", 1), ("Rbx", 2), ("R12", 3), ("Rdi", 4), ("Rsi", 5), ("R13", 6), ("R14", 7), ("R15", 8)]
    {
        process.field(0x8400 + 16, "CalleeSavedRegisters", register, value);
    }
    process.field(0x8400, "HijackArgs", "Rsp", 0x9990);
    let context = through(&process, native(Arch::X64)).unwrap();
    let names = ["Rip", "Rsp", "Rbp", "Rbx", "R12", "Rdi", "Rsi", "R13", "R14", "R15", "Rcx"];
    assert_eq!(registers(&context, &names), [MANAGED, 0x9990, 1, 2, 3, 4, 5, 6, 7, 8, 0xb3]);
}

#[test]
fn hijack_frame_elsewhere_has_the_stack_right_behind_its_arguments() {
    // x64 without the stack pointer: other systems than Windows.
    let mut unix = Process::new(Arch::X64, &X64.replace(",\"Rsp\":80", ""));
    unix.frame(0x8000, ExplicitKind::HijackFrame, 0);
    unix.field(0x8000, "HijackFrame", "ReturnAddress", MANAGED);
    unix.field(0x8000, "HijackFrame", "HijackArgsPtr", 0x8400);
    for n in 0..8 {
        unix.pointer(0x8400 + 16 + 8 * n, 100 + n);
    }
    let context = through(&unix, native(Arch::X64)).unwrap();
    assert_eq!(registers(&context, &["Rip", "Rsp", "Rdi", "R15"]), [MANAGED, 0x8400 + 96, 100, 107]);

    // 104 bytes of arguments, padded to 112, since the stack is aligned to 16 bytes.
    let mut arm64 = process(Arch::Arm64, ExplicitKind::HijackFrame);
    arm64.field(0x8000, "HijackFrame", "ReturnAddress", MANAGED);
    arm64.field(0x8000, "HijackFrame", "HijackArgsPtr", 0x8400);
    for (register, value) in [("Fp", 1), ("Lr", 2), ("X19", 3), ("X28", 4), ("X0", 5)] {
        arm64.field(0x8400, "HijackArgs", register, value);
    }
    let context = through(&arm64, native(Arch::Arm64)).unwrap();
    let names = ["Pc", "Sp", "Fp", "X19", "X28", "X0", "X20"];
    assert_eq!(registers(&context, &names), [MANAGED, 0x8400 + 112, 1, 3, 4, 5, 0xb2]);

    let mut x86 = process(Arch::X86, ExplicitKind::HijackFrame);
    x86.field(0x8000, "HijackFrame", "ReturnAddress", MANAGED);
    x86.field(0x8000, "HijackFrame", "HijackArgsPtr", 0x8400);
    for (register, value) in [("Edi", 1), ("Esi", 2), ("Ebx", 3), ("Ebp", 4), ("Eax", 5)] {
        x86.field(0x8400, "HijackArgs", register, value);
    }
    let context = through(&x86, native(Arch::X86)).unwrap();
    let names = ["Eip", "Esp", "Edi", "Esi", "Ebx", "Ebp", "Eax"];
    assert_eq!(registers(&context, &names), [MANAGED, 0x8400 + 36, 1, 2, 3, 4, 5]);
}

#[test]
fn tail_call_frame_is_refused_except_on_x86() {
    let mut x86 = process(Arch::X86, ExplicitKind::TailCallFrame);
    x86.field(0x8000, "TailCallFrame", "ReturnAddress", MANAGED);
    for (register, value) in [("Edi", 1), ("Esi", 2), ("Ebx", 3), ("Ebp", 4)] {
        x86.field(0x8000 + 8, "CalleeSavedRegisters", register, value);
    }
    let context = through(&x86, native(Arch::X86)).unwrap();
    assert_eq!(
        registers(&context, &["Eip", "Esp", "Edi", "Esi", "Ebx", "Ebp"]),
        [MANAGED, 0x8000 + 28, 1, 2, 3, 4]
    );
    let x64 = process(Arch::X64, ExplicitKind::TailCallFrame);
    assert!(matches!(through(&x64, native(Arch::X64)), Err(ContractError::Refused(_))));
}

#[test]
fn frames_without_registers_are_skipped() {
    let mut process = process(Arch::X64, ExplicitKind::DebuggerClassInitMarkFrame);
    process.frame(0x8000, ExplicitKind::DebuggerClassInitMarkFrame, 0x8100);
    process.frame(0x8100, ExplicitKind::SoftwareExceptionFrame, 0);
    process.context(0x8100 + 288, 0, &[("Rip", MANAGED), ("Rsp", 0x9000)]);
    // An identifier that the runtime does not name.
    process.pointer(0x8000, 0x777);
    let mut code = managed();
    code.callers.insert((MANAGED, 0x9000), (NATIVE, 0x9100));
    let walk = process.contract.stack_walk(&process.memory, &code, native(Arch::X64), 0x8000);
    let ips: Vec<_> = walk.map(|step| step.unwrap().context.ip()).collect();
    assert_eq!(ips, [NATIVE, NATIVE, MANAGED]);
    let kinds = process.contract.frames(&process.memory, 0x8000).map(|frame| frame.unwrap().kind);
    assert_eq!(kinds.collect::<Vec<_>>(), [None, Some(ExplicitKind::SoftwareExceptionFrame)]);
}

/// "Simple Example" of StackWalk.md: native A, managed B and its caller in native code C; one
/// SoftwareExceptionFrame with B's context.
#[test]
fn the_documents_simple_example() {
    let mut process = process(Arch::X64, ExplicitKind::SoftwareExceptionFrame);
    process.context(0x8000 + 288, 0, &[("Rip", MANAGED), ("Rsp", 0x9000)]);
    let mut code = managed();
    code.callers.insert((MANAGED, 0x9000), (NATIVE + 0x100, 0x9100));
    let walk = process.contract.stack_walk(&process.memory, &code, native(Arch::X64), 0x8000);
    let steps: Vec<_> = walk.map(Result::unwrap).collect();
    let reported: Vec<_> =
        steps.iter().map(|step| (step.state, step.context.ip(), step.context.sp())).collect();
    // The document returns C as well. The contract is derived from the code of the runtime's own
    // reader, and that ends before C.
    assert_eq!(reported, [(FrameState::Frame, NATIVE, 0x7f00), (FrameState::Frameless, MANAGED, 0x9000)]);
    assert!(steps[0].frame().is_some() && steps[1].frame().is_none());
}

/// "Skipped Frame Example": managed A called by managed B through an unmanaged boundary; B holds an
/// InlinedCallFrame.
#[test]
fn the_documents_skipped_frame_example() {
    let mut process = process(Arch::X64, ExplicitKind::InlinedCallFrame);
    process.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", MANAGED + 0x208);
    process.field(0x8000, "InlinedCallFrame", "CallSiteSP", 0x7f80);
    process.field(0x8000, "InlinedCallFrame", "CalleeSavedFP", 0x8040);
    process.field(0x8000, "InlinedCallFrame", "Datum", 0x6660);
    let (a, b, c) = ((MANAGED + 0x10, 0x7f00), (MANAGED + 0x208, 0x7f80), (NATIVE, 0x8080));
    let mut code = MockCode {
        managed: vec![MANAGED..MANAGED + 0x100, MANAGED + 0x200..MANAGED + 0x300],
        ..MockCode::default()
    };
    code.callers.extend([(a, b), (b, c)]);
    let start = context(Arch::X64, &[("Rip", a.0), ("Rsp", a.1)]);
    let walk = process.contract.stack_walk(&process.memory, &code, start, 0x8000);
    let steps: Vec<_> = walk.map(Result::unwrap).collect();
    let reported: Vec<_> =
        steps.iter().map(|step| (step.state, (step.context.ip(), step.context.sp()))).collect();
    assert_eq!(
        reported,
        [(FrameState::Frameless, a), (FrameState::SkippedFrame, b), (FrameState::Frameless, b)]
    );
    let frame = steps[1].frame().unwrap();
    let method = process.contract.method_of_frame(&process.memory, frame);
    assert_eq!(method, Ok(Some(MethodRef::MethodDesc(0x6660))));
}

#[test]
fn a_frames_method_is_read_from_its_field_or_its_slot() {
    let mut process = process(Arch::X64, ExplicitKind::PrestubMethodFrame);
    let of = |process: &Process| {
        let frame = process.contract.frames(&process.memory, 0x8000).next().unwrap().unwrap();
        process.contract.method_of_frame(&process.memory, frame)
    };
    process.field(0x8000, "FramedMethodFrame", "MethodDescPtr", 0x4440);
    assert_eq!(of(&process), Ok(Some(MethodRef::MethodDesc(0x4440))));
    process.frame(0x8000, ExplicitKind::PInvokeCalliFrame, 0);
    assert_eq!(of(&process), Ok(None));
    process.frame(0x8000, ExplicitKind::StubDispatchFrame, 0);
    assert_eq!(of(&process), Ok(Some(MethodRef::MethodDesc(0x4440))));
    process.field(0x8000, "StubDispatchFrame", "MethodDescPtr", 0);
    process.field(0x8000, "StubDispatchFrame", "RepresentativeMTPtr", 0x3330);
    process.field(0x8000, "StubDispatchFrame", "RepresentativeSlot", 5);
    assert_eq!(of(&process), Ok(Some(MethodRef::Slot { method_table: 0x3330, slot: 5 })));
    process.field(0x8000, "StubDispatchFrame", "RepresentativeMTPtr", 0);
    assert_eq!(of(&process), Ok(None));
    process.frame(0x8000, ExplicitKind::HijackFrame, 0);
    assert_eq!(of(&process), Ok(None));

    // Fields that the descriptor of 10.0 lacks are named in the error.
    let mut bare =
        Process::new(Arch::X64, &X64.replace(",\"MethodDescPtr\":24", "").replace(",\"Datum\":16", ""));
    bare.frame(0x8000, ExplicitKind::PrestubMethodFrame, 0);
    assert_eq!(of(&bare), Err(ContractError::NotDescribed("FramedMethodFrame.MethodDescPtr")));
    bare.frame(0x8000, ExplicitKind::InlinedCallFrame, 0);
    bare.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", 0);
    assert_eq!(of(&bare), Ok(None), "no call is under way");
    bare.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", 1);
    // Not described: the word before CallSiteSP, which is at 24.
    process.frame(0x8000, ExplicitKind::InlinedCallFrame, 0);
    process.field(0x8000, "InlinedCallFrame", "CallerReturnAddress", 1);
    process.field(0x8000, "InlinedCallFrame", "Datum", 0x7770);
    bare.memory = process.memory;
    assert_eq!(of(&bare), Ok(Some(MethodRef::MethodDesc(0x7770))));
    let frame = bare.contract.frames(&bare.memory, 0x8000).next().unwrap().unwrap();
    assert!(bare.contract.is_method_by_position(frame) && !process.contract.is_method_by_position(frame));
}

#[test]
fn a_checkpoint_is_the_next_frame_above_that_leads_to_managed_code() {
    let mut process = process(Arch::X64, ExplicitKind::InlinedCallFrame);
    process.frame(0x8000, ExplicitKind::InlinedCallFrame, 0x8800);
    for (address, ip) in [(0x8000, MANAGED), (0x8800, MANAGED + 0x20)] {
        process.field(address, "InlinedCallFrame", "CallerReturnAddress", ip);
        // The Frame is a local of the calling function, so that function's stack pointer lies below
        // it.
        process.field(address, "InlinedCallFrame", "CallSiteSP", address - 0x100);
        process.field(address, "InlinedCallFrame", "CalleeSavedFP", 0);
    }
    process.frame(0x8800, ExplicitKind::InlinedCallFrame, 0);
    let code = managed();
    let at = |sp| {
        let found = process.contract.checkpoint(&process.memory, &code, &native(Arch::X64), 0x8000, sp);
        found.map(|(frame, context)| (frame.address, context.ip()))
    };
    assert_eq!(at(0x7e00), Some((0x8000, MANAGED)));
    // That is the function that the walk could not leave.
    assert_eq!(at(0x7f00), Some((0x8800, MANAGED + 0x20)));
    assert_eq!(at(0x8001), Some((0x8800, MANAGED + 0x20)));
    assert_eq!(at(0x8801), None);
}

/// A thread that returned into the runtime's code: its walk ends above the HijackFrame, in the code
/// that took the return address's place.
#[test]
fn a_hijack_frame_below_is_a_checkpoint_for_the_code_that_it_returns_to() {
    let mut process = process(Arch::X64, ExplicitKind::HijackFrame);
    process.field(0x8000, "HijackFrame", "ReturnAddress", MANAGED);
    process.field(0x8000, "HijackFrame", "HijackArgsPtr", 0x8400);
    for register in ["Rbp", "Rbx", "R12", "Rdi", "Rsi", "R13", "R14", "R15"] {
        process.field(0x8400 + 16, "CalleeSavedRegisters", register, 0);
    }
    process.field(0x8400, "HijackArgs", "Rsp", 0x8500);
    let code = managed();
    let at = |sp| {
        let found = process.contract.checkpoint(&process.memory, &code, &native(Arch::X64), 0x8000, sp);
        found.map(|(frame, context)| (frame.address, context.ip(), context.sp()))
    };
    assert_eq!(at(0x83f0), Some((0x8000, MANAGED, 0x8500)));
    // The walk has passed the code that it leads to.
    assert_eq!(at(0x8500), None);
}

#[test]
fn hostile_chains_and_unwinding_end_with_a_reason() {
    let code = managed();
    let walk = |process: &Process, head| {
        let walk = process.contract.stack_walk(&process.memory, &code, native(Arch::X64), head);
        walk.collect::<Result<Vec<_>, _>>().map(|steps| steps.len())
    };
    let mut process = process(Arch::X64, ExplicitKind::DebuggerExitFrame);
    // A Frame that links to itself, to one below, or to unknown memory.
    process.frame(0x8000, ExplicitKind::DebuggerExitFrame, 0x8000);
    assert_eq!(walk(&process, 0x8000), Err(ContractError::BrokenChain { address: 0x8000, next: 0x8000 }));
    process.frame(0x8000, ExplicitKind::DebuggerExitFrame, 0x7000);
    assert_eq!(walk(&process, 0x8000), Err(ContractError::BrokenChain { address: 0x8000, next: 0x7000 }));
    process.frame(0x8000, ExplicitKind::DebuggerExitFrame, 0x9000);
    assert!(matches!(walk(&process, 0x8000), Err(ContractError::Unread { address: 0x9000, .. })));
    assert!(matches!(walk(&process, 0xffff_ffff_ffff_fff0), Err(ContractError::Unread { .. })));
    // No Frames at all.
    assert_eq!(walk(&process, u64::MAX), Ok(0));
    assert_eq!(walk(&process, 0), Ok(0));
    let frames: Vec<_> = process.contract.frames(&process.memory, 0x8000).collect();
    assert!(matches!(frames.as_slice(), [Ok(_), Err(ContractError::Unread { address: 0x9000, .. })]));

    // Managed code whose unwinding makes no progress, and code that cannot be unwound.
    let mut code = managed();
    let start = || context(Arch::X64, &[("Rip", MANAGED), ("Rsp", 0x7000)]);
    let steps = |code: &MockCode| {
        let walk = process.contract.stack_walk(&process.memory, code, start(), u64::MAX);
        walk.collect::<Vec<_>>()
    };
    assert!(matches!(steps(&code).as_slice(), [Ok(_), Err(ContractError::NotUnwound { .. })]));
    code.callers.insert((MANAGED, 0x7000), (MANAGED, 0x7000));
    assert!(matches!(steps(&code).as_slice(), [Ok(_), Err(ContractError::NoProgress { ip: MANAGED })]));
}

/// The parts of CoreCLR 10.0.9's own descriptor that a walk needs, checked against its source
/// (frames.h).
#[test]
fn a_real_descriptor_is_read() {
    let json = include_bytes!("../../../../../../tests/data/dotnet/coreclr-10.0.9-x64.descriptor.json");
    let pointers: Vec<u8> = (0..25u64).flat_map(|n| (0x1_8000_0000 + n * 8).to_le_bytes()).collect();
    let descriptor = Descriptor::parse(Arch::X64, json, &pointers).unwrap();
    assert_eq!(descriptor.number("ThreadStore"), Some(0x1_8000_0000 + 3 * 8));
    assert_eq!(descriptor.offset("Thread", "LinkNext"), Some(120));
    assert_eq!(descriptor.text("OperatingSystem"), Some("windows"));
    // A Frame here lies within the runtime's: the link after the identifier, the block of eight
    // registers and the return address.
    assert_eq!(descriptor.size("TransitionBlock"), Some(8 * 8 + 8));
    let kinds = Kinds::new(&descriptor);
    assert_eq!(kinds.of(1), Some(ExplicitKind::InlinedCallFrame));
    assert_eq!(kinds.of(0xe), Some(ExplicitKind::StubDispatchFrame));
    assert_eq!(kinds.of(0x15), Some(ExplicitKind::ExceptionFilterFrame));
    assert_eq!(kinds.of(0x16), None);
}
