//! The recorder's hot path allocates nothing after set-up.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stk_format::{
    BlockBuffer, BlockKind, FileHeader, RawSample, SampleEncoder, Sealer, ThreadImage, sealed_bound,
};
use stk_schema::event::{Clock, Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks, limits};

/// The system's allocator, counting.
struct Counting;

thread_local! {
    /// Counts per thread, because the test harness has threads of its own.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn recording_allocates_nothing_after_set_up() {
    let header = FileHeader::new(Arch::X64, Os::Windows, [1; 16], 1000);
    let mut sealer = Sealer::new(&header).unwrap();
    let mut block = BlockBuffer::new(limits::CUT_RAW + (64 << 10), &header).unwrap();
    let mut out = vec![0; sealed_bound(limits::CUT_RAW + (64 << 10))];
    let mut encoder = SampleEncoder::new();
    let mut images: Vec<ThreadImage> = (0..4).map(|_| ThreadImage::new(4096, 8).unwrap()).collect();
    let mut stack = vec![0u8; 20_000];
    let mut registers = [0u64; 17];
    let mut written = 0;

    let before = ALLOCATIONS.get();
    for round in 0..300u64 {
        block.begin(BlockKind::State, Ticks(round));
        block.push(&Event::Clock(Clock { time: Ticks(round), utc: round })).unwrap();
        written += sealer.seal(&block, &mut out).unwrap().len();
        if round % 50 == 0 {
            encoder.renew_keyframes();
        }
        encoder.begin(&mut block, Ticks(round));
        for i in 0..40u64 {
            stack[(i * 97 + round) as usize % 20_000] ^= i as u8;
            registers[2] = i;
            let (thread, deep) = (i as usize % 4, (i as usize * 64) % 20_000 / 8 * 8);
            let raw = RawSample {
                thread: thread as u64,
                time: Ticks(round + i),
                set: RegisterSet::X64,
                registers: &registers,
                stack_base: 0x10_0000,
                stack_start: 0x10_0000 - deep as u64,
                stack: &stack[..deep],
                code: Some(&[0x90; 64]),
                cpu: Some(i),
                state: RunState::Running,
                tag: None,
                tables_pending: false,
                context_reply: None,
                extra: &[],
            };
            encoder.sample(&mut block, &mut images[thread], &raw).unwrap();
            encoder.same(&mut block, &mut images[thread], Ticks(round + i), RunState::Waiting).unwrap();
        }
        for image in &mut images {
            encoder.flush_idle(&mut block, image).unwrap();
        }
        written += sealer.seal(&block, &mut out).unwrap().len();
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(written > 0);
}
