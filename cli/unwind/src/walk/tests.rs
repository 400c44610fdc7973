//! How walks end. The image has a worker function (RVA 1000h, 28h bytes of frame), a thread-start
//! function (2000h, the same frame), a self-referencing frame-register function (3000h), one that
//! the system enters by itself (4200h, the worker's frame), and one without unwind data in which a
//! language runtime starts stacks (7000h).

use super::*;
use crate::{Arch, ImageTables, LoadedModule, ModuleId, x64};

const BASE: u64 = 0x7ff6_0000_0000;
const STACK: u64 = 0x10_0000;

struct Space {
    image: ImageTables,
}

impl Modules for Space {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let inside = address.wrapping_sub(BASE) < 0x8000;
        inside.then_some(LoadedModule { module: ModuleId(3), base: BASE, image: &self.image, image_key: 9 })
    }
}

fn space() -> Space {
    let records: Vec<u8> =
        [(0x1000u32, 0x6000u32), (0x2000, 0x6000), (0x3000, 0x6010), (0x4000, 0x6020), (0x4200, 0x6000)]
            .iter()
            .flat_map(|&(begin, info)| [begin, begin + 0x100, info])
            .flat_map(u32::to_le_bytes)
            .collect();
    let image = ImageTables::new(Arch::X64, 0x8000)
        .range(0x1000, vec![0x90; 0x2200])
        .range(0x4000, vec![0x90; 0x300])
        .range(0x5000, records)
        .exception_directory(0x5000, 60)
        .range(0x6000, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
        // mov rbp,rsp: the frame's base is rbp.
        .range(0x6010, vec![0x01, 0x03, 0x01, 0x05, 0x03, 0x03])
        // sub rsp,28h below a machine frame.
        .range(0x6020, vec![0x01, 0x04, 0x02, 0x00, 0x04, 0x42, 0x00, 0x0a])
        .thread_start(0x2010)
        .interruption(0x4200)
        .stack_start(0x7000..0x7010)
        .build();
    Space { image }
}

/// A sample of a partly captured stack from [`STACK`] up.
fn cut_off<'a>(registers: &'a Registers, stack: &'a [u8]) -> Sample<'a> {
    Sample { registers, stack, stack_start: STACK, stack_base: None, truncated: true, code_at_ip: None }
}

struct WalkResult {
    frames: Vec<Frame>,
    stop: Stop,
}

fn walk(ip: u64, stack: &[u64], base: Option<u64>, truncated: bool) -> WalkResult {
    walk_with(ip, STACK, stack, base, truncated, WalkOptions::default())
}

fn walk_with(
    ip: u64,
    sp: u64,
    stack: &[u64],
    stack_base: Option<u64>,
    truncated: bool,
    options: WalkOptions,
) -> WalkResult {
    let stack: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut gpr = [0; 16];
    gpr[x64::RSP] = sp;
    gpr[x64::RBP] = STACK;
    let registers = Registers::X64(x64::X64Registers { ip, gpr });
    let sample = Sample { stack_base, truncated, ..cut_off(&registers, &stack) };
    let mut frames = Vec::new();
    let mut walker = Walker::new(options);
    let stop = walker.walk(&space(), &sample, &mut frames);
    // Rules from the cache give the same frames as newly compiled ones.
    let mut again = Vec::new();
    assert_eq!(walker.walk(&space(), &sample, &mut again), stop);
    assert_eq!(again, frames);
    // A walk that restores every register gives the same frames.
    again.clear();
    let with_registers = walker.walk_with_registers(&space(), &sample, |frame, registers| {
        assert_eq!((registers.ip(), registers.sp()), (frame.address, frame.sp));
        again.push(*frame);
    });
    assert_eq!(with_registers, stop);
    assert_eq!(again, frames);
    WalkResult { frames, stop }
}

fn rvas(run: &WalkResult) -> Vec<u32> {
    run.frames.iter().map(|frame| frame.rva).collect()
}

/// A frame of 28h bytes and the return address above it.
fn frame(return_address: u64) -> [u64; 6] {
    [1, 2, 3, 4, 5, return_address]
}

#[test]
fn ends_at_the_thread_start_near_the_stack_base() {
    let stack = [frame(BASE + 0x2020), frame(0), [0; 6]].concat();
    let run = walk(BASE + 0x1050, &stack, Some(STACK + 0x90), false);
    assert_eq!((rvas(&run), run.stop), (vec![0x1050, 0x2020], Stop::ThreadStart));
    assert_eq!(run.frames[1].sp, STACK + 0x30);
    assert_eq!(run.frames[1].trust, Trust::UnwindInfo);
    assert_eq!(run.frames[0].trust, Trust::Context);
    assert_eq!(run.frames[1].module, Some(ModuleId(3)));
    // The stack may end right at the thread-start function's frame.
    let run = walk(BASE + 0x1050, &[frame(BASE + 0x2020), frame(0)].concat()[..11], Some(STACK + 88), false);
    assert_eq!(run.stop, Stop::ThreadStart);
}

#[test]
fn a_zero_return_address_alone_is_no_thread_start() {
    let run = walk(BASE + 0x1050, &frame(0), Some(STACK + 0x30), false);
    assert_eq!(run.stop, Stop::ZeroReturnAddress);
}

#[test]
fn a_thread_start_function_far_from_the_stack_base_is_no_thread_start() {
    let run = walk(BASE + 0x2050, &frame(0), Some(STACK + 0x10_0000), false);
    assert_eq!(run.stop, Stop::ZeroReturnAddress);
}

/// A goroutine's stack: captured up to a limit, without a base, and with leftovers above its start.
#[test]
fn a_function_that_starts_stacks_ends_the_walk_whatever_lies_above() {
    let stack = [frame(BASE + 0x7001), [BASE + 0x1020; 6], [BASE + 0x1020; 6]].concat();
    let run = walk(BASE + 0x1050, &stack, None, true);
    assert_eq!((rvas(&run), run.stop), (vec![0x1050, 0x7001], Stop::ThreadStart));
    // A scan for return addresses does not go beyond it either.
    let scan = WalkOptions { scan: true, ..WalkOptions::default() };
    let run = walk_with(BASE + 0x1050, STACK, &stack, None, true, scan);
    assert_eq!((rvas(&run), run.stop), (vec![0x1050, 0x7001], Stop::ThreadStart));
    // The byte before the return address decides. Code right after such a function belongs to
    // another one.
    let run = walk(BASE + 0x1050, &frame(BASE + 0x7000), None, true);
    assert!(matches!(run.stop, Stop::NoFunction { rva: 0x7000, .. }), "{:?}", run.stop);
}

#[test]
fn says_truncated_only_where_the_capture_was_cut() {
    let stack = frame(BASE + 0x1020);
    assert_eq!(walk(BASE + 0x1050, &stack, Some(STACK + 0x1000), true).stop, Stop::Truncated);
    let bad = walk(BASE + 0x1050, &stack, Some(STACK + 0x1000), false).stop;
    assert_eq!(bad, Stop::BadMemory { address: STACK + 0x58 });
    assert_eq!(walk(BASE + 0x1050, &stack, Some(STACK + 0x30), true).stop, Stop::EndOfStack);
}

#[test]
fn a_return_address_in_no_module_ends_the_walk_without_a_frame() {
    let run = walk(BASE + 0x1050, &frame(0x1234), Some(STACK + 0x1000), true);
    assert_eq!((run.frames.len(), run.stop), (1, Stop::NoModule { address: 0x1234 }));
}

#[test]
fn an_innermost_frame_outside_every_module_is_taken_for_a_leaf() {
    let stack = [vec![BASE + 0x1020], frame(BASE + 0x2020).to_vec(), frame(0).to_vec()].concat();
    let run = walk(0x7f00_1234_5678, &stack, Some(STACK + 0x100), false);
    assert_eq!((rvas(&run), run.stop), (vec![0, 0x1020, 0x2020], Stop::ThreadStart));
    assert_eq!(run.frames[0].module, None);
    assert_eq!(run.frames[1].trust, Trust::LeafOutside);
}

#[test]
fn a_caller_without_unwind_data_ends_the_walk() {
    let run = walk(BASE + 0x1050, &frame(BASE + 0x7000), Some(STACK + 0x1000), true);
    assert_eq!(run.stop, Stop::NoFunction { module: ModuleId(3), rva: 0x7000 });
    assert_eq!(run.frames.len(), 2);
}

#[test]
fn a_function_that_the_system_enters_returns_to_a_leaf_that_it_interrupted() {
    // The system call's stub at 7000h has no unwind data; its own caller's address lies where it
    // was interrupted.
    let stack = [
        frame(BASE + 0x7000).to_vec(),
        vec![BASE + 0x1020],
        frame(BASE + 0x2020).to_vec(),
        frame(0).to_vec(),
    ];
    let run = walk(BASE + 0x4250, &stack.concat(), Some(STACK + 0x100), false);
    assert_eq!((rvas(&run), run.stop), (vec![0x4250, 0x7000, 0x1020, 0x2020], Stop::ThreadStart));
    assert_eq!((run.frames[1].trust, run.frames[2].trust), (Trust::MachineFrame, Trust::Leaf));
    assert_eq!(run.frames[2].sp, STACK + 0x38);
}

#[test]
fn a_frame_that_is_its_own_caller_ends() {
    // rbp never changes, so the second step would not move rsp.
    let run = walk(BASE + 0x3050, &[BASE + 0x3050; 4], Some(STACK + 0x1000), true);
    assert_eq!(run.frames.len(), 2);
    assert_eq!(run.stop, Stop::BadStackPointer { sp: STACK + 8 });
}

#[test]
fn an_unaligned_or_wild_stack_pointer_ends() {
    let options = WalkOptions::default();
    let run = walk_with(BASE + 0x1050, STACK + 4, &frame(0), None, false, options);
    assert!(matches!(run.stop, Stop::BadStackPointer { .. }));
    let run = walk_with(BASE + 0x1050, u64::MAX - 7, &frame(0), None, false, options);
    assert!(matches!(run.stop, Stop::BadStackPointer { .. }));
    let run = walk_with(BASE + 0x1050, 0x1000, &frame(0), None, false, options);
    assert_eq!(run.stop, Stop::BadMemory { address: 0x1028 });
}

#[test]
fn the_depth_limit_ends() {
    let stack: Vec<u64> = (0..100).flat_map(|_| frame(BASE + 0x1020)).collect();
    let options = WalkOptions { max_frames: 10, ..WalkOptions::default() };
    let run = walk_with(BASE + 0x1050, STACK, &stack, None, true, options);
    assert_eq!((run.frames.len(), run.stop), (10, Stop::DepthLimit));
}

#[test]
fn continues_at_the_interrupted_instruction_below_a_machine_frame() {
    // The interrupted instruction was the first one of the function at 1000h, with its return
    // address at [rsp].
    let machine = [1, 2, 3, 4, 5, BASE + 0x1000, 0x33, 0x202, STACK + 0x60, 0x2b, 0, 0];
    let stack = [&machine[..], &[BASE + 0x2020], &frame(0)].concat();
    let run = walk(BASE + 0x4050, &stack, Some(STACK + 0x100), false);
    assert_eq!((rvas(&run), run.stop), (vec![0x4050, 0x1000, 0x2020], Stop::ThreadStart));
    assert_eq!(run.frames[1].trust, Trust::MachineFrame);
    assert_eq!(run.frames[1].sp, STACK + 0x60);
}

#[test]
fn scanning_is_off_by_default_and_marked_when_on() {
    // No call precedes 4020h, so it is no return address. A call precedes 1040h.
    let mut space = space();
    let mut code = vec![0x90; 0x100];
    code[0x3b] = 0xe8;
    space.image = ImageTables::new(Arch::X64, 0x8000)
        .range(0x1000, code)
        .range(0x5000, [0x1000u32, 0x1100, 0x6000].map(u32::to_le_bytes).concat())
        .exception_directory(0x5000, 12)
        .range(0x6000, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
        .build();
    let mut gpr = [0; 16];
    gpr[x64::RSP] = STACK;
    let registers = Registers::X64(x64::X64Registers { ip: BASE + 0x1050, gpr });
    let words = [frame(77), [BASE + 0x1030, BASE + 0x1040, 0, 0, 0, 0]].concat();
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let sample = cut_off(&registers, &stack);
    let mut frames = Vec::new();
    assert_eq!(
        Walker::new(WalkOptions::default()).walk(&space, &sample, &mut frames),
        Stop::NoModule { address: 77 }
    );
    let options = WalkOptions { scan: true, ..WalkOptions::default() };
    Walker::new(options).walk(&space, &sample, &mut frames);
    assert_eq!(frames.len(), 2);
    assert_eq!((frames[1].rva, frames[1].sp, frames[1].trust), (0x1040, STACK + 0x40, Trust::Scan));
}

#[test]
fn a_walk_continues_from_given_registers() {
    // Two functions that touch, of 28h and 68h bytes of stack: a return address at the second one's
    // beginning belongs to the first, which ends in a call.
    let mut code = vec![0x90; 0x200];
    code[0xfb] = 0xe8;
    let image = ImageTables::new(Arch::X64, 0x8000)
        .range(0x1000, code)
        .range(0x5000, [0x1000u32, 0x1100, 0x6000, 0x1100, 0x1200, 0x6010].map(u32::to_le_bytes).concat())
        .exception_directory(0x5000, 24)
        .range(0x6000, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
        .range(0x6010, vec![0x01, 0x00, 0x01, 0x00, 0x00, 0xc2])
        .build();
    let words: Vec<u64> = (0..32).map(|n| if n % 2 == 1 { BASE + 0x1000 + n } else { 0 }).collect();
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut gpr = [0; 16];
    gpr[x64::RSP] = STACK + 0x10;
    let registers = Registers::X64(x64::X64Registers { ip: BASE + 0x1100, gpr });
    let sample = Sample { code_at_ip: Some(&[0xc3]), ..cut_off(&registers, &stack) };
    let space = Space { image };
    for (trust, second) in [(Trust::ExplicitFrame, 0x28), (Trust::ExplicitContext, 0x68)] {
        let mut walked = Vec::new();
        Walker::new(WalkOptions::default()).walk_on(&space, &sample, trust, |frame, registers| {
            assert_eq!((frame.address, frame.sp), (registers.ip(), registers.sp()));
            walked.push((frame.address, frame.sp, frame.trust));
        });
        assert_eq!(walked[0], (BASE + 0x1100, STACK + 0x10, trust));
        let at = 0x10 + second;
        assert_eq!(walked[1].0, words[at as usize / 8]);
        assert_eq!(walked[1].1, STACK + at + 8);
    }
}

#[test]
fn a_frame_that_made_a_call_cannot_be_found_by_a_volatile_register() {
    // Frame register r10.
    let image = ImageTables::new(Arch::X64, 0x8000)
        .range(0x1000, vec![0x90; 0x100])
        .range(0x5000, [0x1000u32, 0x1100, 0x6000, 0x2000, 0x2100, 0x6010].map(u32::to_le_bytes).concat())
        .exception_directory(0x5000, 24)
        .range(0x6000, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
        .range(0x6010, vec![0x01, 0x03, 0x01, 0x0a, 0x03, 0x03])
        .build();
    let stack: Vec<u8> = frame(BASE + 0x2050).iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut gpr = [STACK; 16];
    gpr[10] = STACK + 0x40;
    let registers = Registers::X64(x64::X64Registers { ip: BASE + 0x1050, gpr });
    let sample = cut_off(&registers, &stack);
    let mut frames = Vec::new();
    let stop = Walker::new(WalkOptions::default()).walk(&Space { image }, &sample, &mut frames);
    assert_eq!(stop, Stop::BadUnwindInfo { module: ModuleId(3), rva: 0x2050 });
}

/// Two functions with plain frames (1000h, and 2000h that starts threads), one that finds its frame
/// by rbp (3000h: push rbp; mov rbp,rsp; sub rsp,20h).
fn frames_by_rbp() -> Space {
    let records = [0x1000u32, 0x1100, 0x6000, 0x2000, 0x2100, 0x6000, 0x3000, 0x3100, 0x6010];
    let image = ImageTables::new(Arch::X64, 0x8000)
        .range(0x1000, vec![0x90; 0x2200])
        .range(0x5000, records.map(u32::to_le_bytes).concat())
        .exception_directory(0x5000, 36)
        .range(0x6000, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
        .range(0x6010, vec![0x01, 0x08, 0x03, 0x05, 0x08, 0x32, 0x04, 0x03, 0x01, 0x50])
        .thread_start(0x2010)
        .build();
    Space { image }
}

struct NextSample {
    rip: u64,
    sp: u64,
    rbp: u64,
    words: Vec<u64>,
}

/// Walks one sample after the other with a history and checks each against a whole walk. Returns
/// the reused frames of each walk.
fn walk_again(space: &Space, samples: &[(NextSample, u64)]) -> Vec<usize> {
    let mut walker = Walker::new(WalkOptions::default());
    let mut history = History::default();
    let mut reused = Vec::new();
    for (next, unchanged_from) in samples {
        let stack: Vec<u8> = next.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut gpr = [0; 16];
        gpr[x64::RSP] = next.sp;
        gpr[x64::RBP] = next.rbp;
        let registers = Registers::X64(x64::X64Registers { ip: next.rip, gpr });
        let base = STACK + 0x200;
        let sample = Sample {
            registers: &registers,
            stack: &stack,
            stack_start: base - stack.len() as u64,
            stack_base: Some(base),
            truncated: false,
            code_at_ip: None,
        };
        let mut whole = Vec::new();
        let stop = walker.walk(space, &sample, &mut whole);
        assert_eq!(walker.walk_again(space, &sample, *unchanged_from, &mut history), stop);
        whole.reverse();
        assert_eq!(history.frames(), &whole[..]);
        assert_eq!(history.stop(), Some(stop));
        reused.push(history.reused());
    }
    reused
}

/// The stack from `sp` to the base at STACK + 200h: frames of the function at 1000h, then the one
/// at 2000h.
fn deep(innermost: u64, count: usize) -> NextSample {
    let mut words = vec![0u64; 8];
    let mut return_address = 0;
    for n in 0..count {
        let at = if n == 0 { 0x2020 } else { 0x1020 };
        words.splice(..0, frame(return_address));
        return_address = BASE + at;
    }
    words.splice(..0, frame(return_address));
    NextSample { rip: innermost, sp: STACK + 0x200 - words.len() as u64 * 8, rbp: 0, words }
}

#[test]
fn places_of_return_addresses_are_those_that_a_walk_filled() {
    let next = deep(BASE + 0x1050, 5);
    let stack: Vec<u8> = next.words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut gpr = [0; 16];
    gpr[x64::RSP] = next.sp;
    let registers = Registers::X64(x64::X64Registers { ip: next.rip, gpr });
    let sample = Sample { stack_start: next.sp, ..cut_off(&registers, &stack) };
    let mut walker = Walker::new(WalkOptions::default());
    let places = |walker: &Walker, arch| {
        let mut found = Vec::new();
        walker.places(arch, &stack, |place| found.push(*place));
        found
    };
    assert_eq!(places(&walker, Arch::X64), [], "no module is known");
    walker.walk(&space(), &sample, &mut Vec::new());
    let found = places(&walker, Arch::X64);
    // Four in the function at 1000h, one in the one at 2000h.
    assert_eq!(found.len(), 5);
    assert!(found[..4].iter().all(|place| *place == found[0]));
    assert!(!found.contains(&u64::MAX) && found[0] != found[4], "{found:?}");
    for arch in [Arch::Arm64, Arch::X86] {
        assert_eq!(places(&walker, arch), [], "of another architecture");
    }
}

#[test]
fn reuses_the_callers_that_did_not_change() {
    let space = frames_by_rbp();
    let first = deep(BASE + 0x1050, 5);
    let kept_from = first.sp;
    let samples =
        [(first, 0), (deep(BASE + 0x1060, 5), kept_from), (deep(BASE + 0x1070, 7), kept_from + 0x30)];
    assert_eq!(walk_again(&space, &samples), [0, 5, 5]);
}

#[test]
fn reuses_no_callers_that_may_have_changed() {
    let space = frames_by_rbp();
    let samples = [(deep(BASE + 0x1050, 5), 0), (deep(BASE + 0x1050, 5), u64::MAX)];
    assert_eq!(walk_again(&space, &samples), [0, 0]);
    // The word that was the fourth frame's return address has changed, and `unchanged_from` says
    // so.
    let mut other = deep(BASE + 0x1050, 5);
    let changed = other.sp + 3 * 0x30 + 0x28;
    other.words[3 * 6 + 5] = BASE + 0x1040;
    assert_eq!(walk_again(&space, &[(deep(BASE + 0x1050, 5), 0), (other, changed + 8)]), [0, 1]);
}

#[test]
fn a_caller_that_depends_on_rbp_is_reused_only_with_the_same_rbp() {
    let space = frames_by_rbp();
    // The function at 1000h was called by the one at 3000h, which finds its frame by rbp; two
    // frames of it lie there with the same contents, and rbp determines which one is used.
    let base = STACK + 0x200;
    let rbp = base - 0x40;
    let mut words = vec![0u64; 32];
    let at = |address: u64| ((address - (base - 0x100)) / 8) as usize;
    words[at(base - 0x100 + 0x28)] = BASE + 0x3040;
    for slot in [rbp, rbp - 0x40] {
        words[at(slot)] = 7;
        words[at(slot + 8)] = if slot == rbp { BASE + 0x1020 } else { BASE + 0x2020 };
    }
    let sample = |rbp| NextSample { rip: BASE + 0x1050, sp: base - 0x100, rbp, words: words.clone() };
    let samples = [(sample(rbp), 0), (sample(rbp), base - 0x100), (sample(rbp - 0x40), base - 0x100)];
    let reused = walk_again(&space, &samples);
    assert!(reused[1] > 0, "{reused:?}");
    assert_eq!(reused[2], 0);
}
