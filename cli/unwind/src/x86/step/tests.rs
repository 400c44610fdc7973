//! Walks over an x86 image at 400000h: which method finds the caller, and which checks it must
//! pass.

use super::*;
use crate::input::LoadedModule;
use crate::x86::{Fpo, FrameData, X86Tables};
use crate::{Frame, ImageTables, ModuleId, Registers, Sample, WalkOptions, Walker};

const BASE: u64 = 0x40_0000;
const STACK: u64 = 0x10_0000;

struct X86Space(ImageTables);

impl Modules for X86Space {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let inside = address.wrapping_sub(BASE) < 0x8000;
        inside.then_some(LoadedModule { module: ModuleId(0), base: BASE, image: &self.0, image_key: 0 })
    }
}

/// Two functions that begin with `push ebp; mov ebp, esp`: code at 1000h that cannot be followed to
/// its return, and call sites before 2010h and 2020h.
fn space(tables: X86Tables, extra: &[(u32, &[u8])]) -> X86Space {
    let mut caller = vec![0x90; 0x100];
    caller[..3].copy_from_slice(&[0x55, 0x89, 0xe5]);
    for at in [0x10, 0x20, 0x30] {
        caller[at - 5] = 0xe8;
    }
    let loops = [&[0x55, 0x8b, 0xec, 0x90][..], &[0x74, 0xfe].repeat(0x7e)].concat();
    let mut image = ImageTables::new(Arch::X86, 0x8000)
        .range(0x1000, loops)
        .range(0x2000, caller)
        .exception_directory(0, 0)
        .thread_start(0x2018)
        .x86(tables);
    for (rva, code) in extra {
        image = image.range(*rva, *code);
    }
    X86Space(image.build())
}

fn walk(space: &X86Space, ip: u32, gpr: [u32; 8], stack: &[u32]) -> (Vec<Frame>, Stop) {
    let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let registers = Registers::X86(X86Registers { ip: BASE as u32 + ip, gpr });
    let sample = Sample {
        registers: &registers,
        stack: &bytes,
        stack_start: STACK,
        stack_base: Some(STACK + bytes.len() as u64),
        truncated: false,
        code_at_ip: None,
    };
    let mut frames = Vec::new();
    let stop = Walker::new(WalkOptions::default()).walk(space, &sample, &mut frames);
    (frames, stop)
}

fn gpr(esp: u64, ebp: u64) -> [u32; 8] {
    [0, 0, 0, 0, esp as u32, ebp as u32, 0, 0]
}

fn program(text: &str, locals: u32, saved: u32) -> X86Tables {
    let record = FrameData {
        rva: 0x1000,
        len: 0x100,
        locals,
        params: 0,
        prologue: 0,
        saved,
        is_function_start: true,
        has_seh: false,
        has_eh: false,
        program: text.into(),
    };
    X86Tables::new([record], [])
}

const SEARCH: &str = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =";

#[test]
fn frame_data_searches_past_pushed_arguments_for_a_word_behind_a_call() {
    // 8 bytes of locals; two arguments are pushed, one of which points into code, but not behind a
    // call.
    let space = space(program(SEARCH, 8, 0), &[]);
    let (frames, _) = walk(&space, 0x1040, gpr(STACK, 0), &[1, 0x40_2011, 3, 4, 0x40_2010, 0, 0, 0]);
    assert_eq!((frames[1].rva, frames[1].sp, frames[1].trust), (0x2010, STACK + 20, Trust::FrameDataSearch));
}

#[test]
fn fpo_records_find_the_return_address_above_locals_and_saved_registers() {
    let fpo = Fpo {
        rva: 0x1000,
        len: 0x100,
        locals: 4,
        params: 0,
        saved: 4,
        uses_ebp: false,
        prologue: 0,
        has_seh: false,
        frame_type: 0,
    };
    let space = space(X86Tables::new([], [fpo]), &[]);
    let (frames, _) = walk(&space, 0x1040, gpr(STACK, 0), &[1, 2, 0x40_2010, 0, 0]);
    assert_eq!((frames[1].rva, frames[1].sp, frames[1].trust), (0x2010, STACK + 12, Trust::FrameData));
}

#[test]
fn the_code_is_used_before_records_and_frame_pointers() {
    // pop esi; ret. The record, which claims otherwise, is not used.
    let record = FrameData {
        rva: 0x3000,
        len: 0x10,
        locals: 8,
        params: 0,
        prologue: 0,
        saved: 0,
        is_function_start: true,
        has_seh: false,
        has_eh: false,
        program: SEARCH.into(),
    };
    let space = space(X86Tables::new([record], []), &[(0x3000, &[0x5e, 0xc3])]);
    let (frames, _) = walk(&space, 0x3000, gpr(STACK, 0), &[7, 0x40_2010, 0x40_2010, 0x40_2010]);
    assert_eq!((frames[1].sp, frames[1].trust), (STACK + 8, Trust::Code));
}

#[test]
fn arguments_that_the_callee_pops_are_removed() {
    // The innermost function returns by ret 8; its caller pops esi and returns.
    let space = space(
        X86Tables::default(),
        &[(0x3000, &[0xc2, 8, 0]), (0x3100, &[0xe8, 0xfb, 0xfe, 0xff, 0xff, 0x5e, 0xc3])],
    );
    let stack = [0x40_3105, 1, 2, 0x5151, 0x40_2010, 0, 0];
    let (frames, _) = walk(&space, 0x3000, gpr(STACK, 0), &stack);
    assert_eq!(frames.iter().map(|frame| frame.rva).collect::<Vec<_>>()[..3], [0x3000, 0x3105, 0x2010]);
    assert_eq!((frames[1].sp, frames[2].sp), (STACK + 4, STACK + 20));
}

#[test]
fn frame_pointers_are_used_only_if_they_lead_behind_a_call() {
    let space = space(X86Tables::default(), &[]);
    let stack = [9, 9, STACK as u32 + 16, 0x40_2010, 0, 0x40_2020];
    let (frames, stop) = walk(&space, 0x1040, gpr(STACK, STACK + 8), &stack);
    assert_eq!((frames[1].rva, frames[1].sp, frames[1].trust), (0x2010, STACK + 16, Trust::FramePointer));
    // From 2010h on the code runs into the next call: again by ebp, to 2020h, which starts threads.
    assert_eq!((frames[2].rva, frames[2].trust, stop), (0x2020, Trust::FramePointer, Stop::ThreadStart));
    let (frames, stop) =
        walk(&space, 0x1040, gpr(STACK, STACK + 8), &[9, 9, STACK as u32 + 16, 0x40_2015, 0, 0]);
    assert_eq!((frames.len(), stop), (1, Stop::NoModule { address: 0x40_2015 }));
    // Frame pointers must not lead downwards or to themselves.
    let (frames, _) = walk(&space, 0x1040, gpr(STACK + 8, STACK), &[STACK as u32, 0x40_2010, 0, 0]);
    assert_eq!(frames.len(), 1);
}

/// .NET's collector puts its stub in the place of a return address, to stop the thread there.
#[test]
fn a_first_byte_without_a_call_before_is_a_replaced_address() {
    // pop esi; ret. The stack's second word is what the return leads to.
    let ends_at = |before: &[u8]| {
        let code = [&[0x33, 0xc0][..], before, &[0x50, 0x55]].concat();
        let space = space(X86Tables::default(), &[(0x3000, &[0x5e, 0xc3]), (0x3100, &code)]);
        let address = 0x40_3102 + before.len() as u32;
        let (frames, stop) = walk(&space, 0x3000, gpr(STACK, 0), &[7, address, 0, 0]);
        (frames.len(), stop)
    };
    // ret; ret 8; int3.
    for before in [&[0xc3][..], &[0xc2, 8, 0], &[0xcc]] {
        let rva = 0x3102 + before.len() as u32;
        assert_eq!(ends_at(before), (1, Stop::ReplacedReturnAddress { module: ModuleId(0), rva }));
    }
    // Within a function.
    assert_eq!(ends_at(&[]), (1, Stop::NoModule { address: 0x40_3102 }));
}

#[test]
fn the_first_function_of_a_thread_is_no_replaced_address() {
    // 2018h starts threads. Above its frame is another function's first byte, behind int3.
    let space = space(X86Tables::default(), &[(0x3100, &[0xcc, 0x50])]);
    let stack = [9, 9, STACK as u32 + 16, 0x40_2020, 0, 0x40_3101];
    let (frames, stop) = walk(&space, 0x1040, gpr(STACK, STACK + 8), &stack);
    assert_eq!((frames.len(), frames[1].rva, stop), (2, 0x2020, Stop::ThreadStart));
}

/// A function that uses ebp for something else: no caller is better than a wrong one.
#[test]
fn a_frame_pointer_that_the_function_did_not_set_up_is_not_followed() {
    // xor ebp, ebp; loops.
    let code = [&[0x31, 0xed][..], &[0x74, 0xfe].repeat(0x20)].concat();
    let space = space(X86Tables::default(), &[(0x3000, &code)]);
    let stack = [9, 9, STACK as u32 + 16, 0x40_2010, 0, 0x40_2020];
    let (frames, stop) = walk(&space, 0x3010, gpr(STACK, STACK + 8), &stack);
    assert_eq!((frames.len(), stop), (1, Stop::NoUnwindData { module: ModuleId(0), rva: 0x3010 }));
}

/// `push ebp` of GCC's aligning prologue comes after a copy of the return address: the caller's
/// stack begins above the real one (seen in Wine's kernelbase!WaitForSingleObject, whose caller
/// appeared twice before).
#[test]
fn a_copied_return_address_is_not_taken_for_the_callers_stack() {
    let here = STACK as u32;
    for gap in [0, 4, 8, 12] {
        // ebp, the copy at a multiple of 16 less 4, words of alignment, the real return address.
        let mut stack = vec![9, 9, here + 0x40, 0x40_2010];
        stack.extend(vec![7; gap / 4]);
        stack.extend([0x40_2010, 0x51, 0x52, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let space = space(X86Tables::default(), &[]);
        let (by_ebp, _) = walk(&space, 0x1040, gpr(STACK, STACK + 8), &stack);
        assert_eq!((by_ebp[1].rva, by_ebp[1].trust), (0x2010, Trust::FramePointer));
        assert_eq!(by_ebp[1].sp, STACK + 16 + gap as u64 + 4, "{gap} bytes of alignment");
    }
}

/// All code above a thread-start function is the system's. So the end of the chain there is the
/// thread's start, whatever the function's name.
#[test]
fn frame_chain_end_above_a_thread_start_function_ends_the_thread() {
    let space = space(X86Tables::default(), &[]);
    let here = STACK as u32;
    let stack = [here + 8, 0x40_2020, here + 16, 0x40_2010, 0, 0];
    let (frames, stop) = walk(&space, 0x1040, gpr(STACK, STACK), &stack);
    assert_eq!(frames.iter().map(|frame| frame.rva).collect::<Vec<_>>(), [0x1040, 0x2020, 0x2010]);
    assert_eq!(stop, Stop::ThreadStart);
}

/// A loop that cannot be followed to its return, entered by a call; ebp is still the caller's.
#[test]
fn first_instructions_lead_to_the_caller_not_to_its_caller() {
    // Behind a function that ends in a jump: push ebp; mov ebp, esp; push esi; jmp $
    let code = [0x55, 0x8b, 0xec, 0x5d, 0xe9, 0, 1, 0, 0, 0xcc, 0x55, 0x8b, 0xec, 0x56, 0xeb, 0xfe];
    let space = space(X86Tables::default(), &[(0x3000, &code)]);
    let here = STACK as u32;
    let caller_ebp = here + 0x10;
    // The caller's frame, and above it that of its caller.
    let above = [0, 0, here + 0x20, 0x40_2020, 0, 0, 0, 0];
    for (offset, esp, stack) in [(10, here + 8, vec![0x40_2010]), (11, here + 4, vec![caller_ebp, 0x40_2010])]
    {
        let skipped = (esp - here) / 4;
        let words = [vec![7; skipped as usize], stack, above[1..].to_vec()].concat();
        let (frames, _) = walk(&space, 0x3000 + offset, gpr(esp.into(), caller_ebp.into()), &words);
        let found: Vec<_> = frames.iter().map(|frame| (frame.rva, frame.trust)).collect();
        let caller =
            [(0x3000 + offset, Trust::Context), (0x2010, Trust::Code), (0x2020, Trust::FramePointer)];
        assert_eq!(found[..3], caller, "{offset}");
    }
    // A word that no call leads to is no return address, and ebp is not taken for this function's.
    let (frames, stop) =
        walk(&space, 0x300a, gpr(STACK, caller_ebp.into()), &[0x40_2015, 0, 0, 0, 0, 0x40_2020, 0]);
    assert_eq!(frames.len(), 1);
    assert!(matches!(stop, Stop::NoUnwindData { rva: 0x300a, .. }), "{stop:?}");
}

/// A function of unknown extent that cannot be followed to its return, left by its frame pointer.
/// Its next return gives the bytes that it pops, and so where its caller's stack begins.
#[test]
fn the_next_return_gives_popped_bytes_if_they_lead_behind_a_call() {
    // push ebp; mov ebp, esp; a loop, entered by a branch; `ret 8`. Its caller has no frame
    // pointer: `pop esi; ret`.
    let code: &[(u32, &[u8])] = &[
        (0x3000, &[0x55, 0x8b, 0xec, 0x74, 0, 0xeb, 0xfe, 0xc2, 8, 0]),
        (0x3100, &[0xe8, 0xfb, 0xfe, 0xff, 0xff, 0x5e, 0xc3]),
    ];
    let here = STACK as u32;
    let space = space(X86Tables::default(), code);
    let stack = |address| [0u32, 0x40_3105, 1, 2, 0x5151, address, 0, 0];
    let (frames, _) = walk(&space, 0x3005, gpr(STACK, STACK), &stack(0x40_2010));
    assert_eq!(frames.iter().map(|frame| frame.rva).collect::<Vec<_>>()[..3], [0x3005, 0x3105, 0x2010]);
    assert_eq!((frames[2].sp, frames[2].trust), (u64::from(here) + 24, Trust::Code));
    // A word without a call before it is not accepted.
    let (frames, _) = walk(&space, 0x3005, gpr(STACK, STACK), &stack(0x40_2015));
    assert_eq!(frames.len(), 2);
}

/// The code that `i686-w64-mingw32-gcc -O2 -mforce-drap -mstackrealign
/// -mpreferred-stack-boundary=2` (GCC 12) makes of a function with a 64-bit local on an 8-byte
/// boundary, from its first byte to its `ret 4`; Wine 10's kernelbase!Sleep has the same prologue
/// and epilogue. Its call is at 34h.
const REALIGNED_TO_8: [u8; 0x43] = [
    0x8d, 0x4c, 0x24, 0x04, 0x83, 0xe4, 0xf8, 0xb8, 0xf0, 0xd8, 0xff, 0xff, 0xff, 0x71, 0xfc, 0x55, 0x89,
    0xe5, 0x51, 0x83, 0xec, 0x18, 0x8b, 0x09, 0xf7, 0xe1, 0x89, 0x45, 0xf0, 0x29, 0xca, 0x8d, 0x45, 0xf0,
    0x89, 0x55, 0xf4, 0x89, 0x0c, 0x24, 0x89, 0x44, 0x24, 0x08, 0xc7, 0x44, 0x24, 0x04, 0x00, 0x00, 0x00,
    0x00, 0xe8, 0x00, 0x00, 0x00, 0x00, 0x8b, 0x4d, 0xfc, 0xc9, 0x8d, 0x61, 0xfc, 0xc2, 0x04, 0x00,
];

/// The stack is as the processor leaves it after that function's prologue, with the return address
/// at `entry`.
#[test]
fn frames_realigned_to_8_bytes_are_left_where_their_caller_called_them() {
    let space = space(X86Tables::default(), &[(0x3000, &REALIGNED_TO_8), (0x3100, &[0x5e, 0xc3])]);
    for entry in [0x40, 0x44, 0x48, 0x4c] {
        let mut stack = [0u32; 0x30];
        let word = |at: u32| (at / 4) as usize;
        let here = STACK as u32;
        // The caller pushed one argument; behind the call it pops what it saved and returns.
        (stack[word(entry)], stack[word(entry + 4)]) = (0x40_2010, 1000);
        let aligned = (entry & !7) - 4;
        (stack[word(aligned)], stack[word(aligned - 4)]) = (0x40_2010, here + 0xa0);
        let ebp = aligned - 4;
        stack[word(ebp - 4)] = here + entry + 4;
        let esp = ebp - 4 - 0x18;
        let (frames, _) = walk(&space, 0x3039, gpr(STACK + u64::from(esp), STACK + u64::from(ebp)), &stack);
        assert_eq!((frames[1].rva, frames[1].sp), (0x2010, STACK + u64::from(entry) + 4), "{entry:#x}");
    }
}

/// Wine 10's ntdll!call_thread_func: only `nop`s follow its call of a function that does not
/// return. Following the code therefore ends in the next function, whose return uses esp.
#[test]
fn frame_chain_end_ends_a_thread_although_the_code_leads_elsewhere() {
    // 3000h: call; nop × 4; then `add esp, 8; ret` of another function.
    let code: &[(u32, &[u8])] = &[(0x3000, &[0xe8, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x83, 0xc4, 8, 0xc3])];
    let space = space(X86Tables::default(), code);
    let here = STACK as u32;
    // A loop with a frame, called by the thread start at 2020h, called by the function at 3000h,
    // whose ebp the system set to zero.
    let stack = [here + 8, 0x40_2020, here + 16, 0x40_3005, 0, 0, 0, 0];
    let (frames, stop) = walk(&space, 0x1040, gpr(STACK, STACK), &stack);
    assert_eq!(frames.iter().map(|frame| frame.rva).collect::<Vec<_>>(), [0x1040, 0x2020, 0x3005]);
    assert_eq!(stop, Stop::ThreadStart);
    // Without a thread start below, the stop has the first method's reason.
    let stack = [here + 8, 0x40_3005, 0, 0, 0, 0];
    let (frames, stop) = walk(&space, 0x1040, gpr(STACK, STACK), &stack);
    assert_eq!(frames.iter().map(|frame| frame.rva).collect::<Vec<_>>(), [0x1040, 0x3005]);
    assert!(matches!(stop, Stop::BadStackPointer { .. }), "{stop:?}");
}

#[test]
fn a_frame_that_is_not_set_up_yet_is_not_read_through_ebp() {
    // push ebp; mov ebp, esp at 3000h, of which no code is known. ebp is still the caller's, whose
    // frame leads to 2020h.
    let record = FrameData {
        rva: 0x3000,
        len: 0x10,
        locals: 0,
        params: 0,
        prologue: 3,
        saved: 0,
        is_function_start: true,
        has_seh: false,
        has_eh: false,
        program: "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =".into(),
    };
    let space = space(X86Tables::new([record], []), &[]);
    let outer = STACK as u32 + 16;
    let caller = |ip, ebp, stack: &[u32]| {
        let (frames, _) = walk(&space, ip, gpr(STACK, ebp), stack);
        (frames[1].rva, frames[1].sp, frames[1].trust)
    };
    let before_push = [0x40_2010, 0, 0, 0, 0, 0x40_2020, 0];
    assert_eq!(caller(0x3000, outer.into(), &before_push), (0x2010, STACK + 4, Trust::FrameData));
    let after_push = [outer, 0x40_2010, 0, 0, 0, 0x40_2020, 0];
    assert_eq!(caller(0x3001, outer.into(), &after_push), (0x2010, STACK + 8, Trust::FrameDataSearch));
    assert_eq!(caller(0x3003, STACK, &after_push), (0x2010, STACK + 8, Trust::FrameData));
}
