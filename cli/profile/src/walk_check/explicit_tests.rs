//! Tests with explicit Frames that are right, out of date, or wrong.

use super::explicit::{ExplicitComparison, FrameClass, StepClass};
use crate::image::{ImageSearch, load_images};
use crate::trace::Trace;
use std::sync::atomic::AtomicU64;
use stk_schema::Ticks;
use stk_schema::event::{Event, MethodName, RunState};
use stk_tests::traces::{self, Moment, TestImage, in_function};

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;
const TIME: u64 = 1_000;
/// The data contract of CoreCLR 10.0.9 for its Frames. In it, 1 identifies an InlinedCallFrame.
const DESCRIPTOR: &[u8] = include_bytes!("../../../../tests/data/dotnet/coreclr-10.0.9-x64.descriptor.json");
const END: u64 = u64::MAX;

/// Two managed functions (1 and 3) that each called native code (2 and 4) with an InlinedCallFrame:
/// the thread is in 4, called from 3, called from 2, called from 1. Frames are larger than those of
/// other tests, to hold the explicit ones.
struct ExplicitScene {
    words: Vec<u64>,
    sp: u64,
    ip: u64,
    head: u64,
    /// Index in `words` of the two Frames, the inner one first.
    frames: [usize; 2],
}

/// Words of a frame of `testing`: `sub rsp, 28h` and the return address.
const FRAME: usize = 6;

impl ExplicitScene {
    fn new() -> ExplicitScene {
        // The explicit Frames are in the stack frames of the calling functions. Those have 28h
        // bytes, which is enough for the five words that are written of each.
        let calls: Vec<u64> = [1, 2, 3, 4].map(|n| in_function(BASE, n)).to_vec();
        let ([ip, sp], mut words) = traces::stack(STACK, &calls);
        // Frames of 4, 3, 2, 1 from the stack pointer up. 3 and 1 are the managed ones.
        let at = |n: usize| n * FRAME;
        let frames = [at(1), at(3)];
        let address = |index: usize| sp + 8 * index as u64;
        for (frame, next) in [(frames[0], address(frames[1])), (frames[1], END)] {
            // Identifier, link, (datum), CallSiteSP, CallerReturnAddress. rbp lies where the return
            // address is.
            let back = words[frame - 1];
            words[frame..frame + 5].copy_from_slice(&[1, next, 0, address(frame), back]);
        }
        ExplicitScene { head: address(frames[0]), words, sp, ip, frames }
    }

    fn compare(&self) -> ExplicitComparison {
        let mut builder = traces::trace();
        let module = TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
        builder.meta(0, &traces::runtime(module, DESCRIPTOR));
        for n in [1, 3] {
            let base = BASE + u64::from(TestImage::function(n));
            let name = MethodName {
                time: Ticks(0),
                base,
                size: traces::FUNCTION_SIZE.into(),
                source: 1,
                name: b"A!B.C()",
            };
            builder.meta(0, &Event::MethodName(name));
        }
        let thread = builder.thread(0, 1, "main", STACK);
        let ExplicitScene { ip, sp, words, .. } = self;
        // xor eax, eax: not an epilogue.
        let code = &[0x31, 0xc0, 0x31, 0xc0];
        let state = RunState::Waiting;
        let moment = Moment { thread, time: TIME, ip: *ip, sp: *sp, words, code, state };
        traces::sample_with_code(&mut builder, &moment);
        builder.push(&traces::managed(thread, TIME, self.head));
        let file = builder.finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let found = super::compare(&trace, &images, &AtomicU64::new(0));
        assert_eq!((found.samples, found.walks, found.damage.len()), (1, 0, 0));
        assert_eq!(found.explicit.samples, 1);
        found.explicit
    }
}

fn frames(found: &ExplicitComparison) -> Vec<(FrameClass, u64)> {
    found.frames.iter().map(|(class, counted)| (*class, counted.count)).collect()
}

fn steps(found: &ExplicitComparison) -> Vec<(StepClass, u64)> {
    found.steps.iter().map(|(class, counted)| (*class, counted.count)).collect()
}

#[test]
fn frames_that_lead_to_walked_frames_agree() {
    let found = ExplicitScene::new().compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 2)]);
    assert_eq!(steps(&found), [(StepClass::Agrees, 2)]);
    assert_eq!(found.unexplained(), 0);
}

#[test]
fn a_wrong_frame_behind_one_that_agrees_is_unexplained() {
    let mut scene = ExplicitScene::new();
    // Another return address within a managed function.
    scene.words[scene.frames[1] + 4] += 4;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 1), (FrameClass::Unexplained, 1)]);
    assert_eq!(steps(&found), [(StepClass::Agrees, 1), (StepClass::Unexplained, 1)]);
    assert_eq!(found.unexplained(), 2);
}

#[test]
fn a_stack_allocation_below_the_call_has_its_own_class() {
    let mut scene = ExplicitScene::new();
    scene.words[scene.frames[1] + 3] += 8;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 1), (FrameClass::StackAllocated, 1)]);
    assert_eq!(found.unexplained(), 0);
}

#[test]
fn a_head_whose_call_is_not_in_progress_is_out_of_date() {
    let mut scene = ExplicitScene::new();
    scene.words[scene.frames[0] + 4] = in_function(BASE, 1) + 4;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 1), (FrameClass::OutOfDate, 1)]);
    // The contract's own walk begins with the next Frame.
    assert_eq!((steps(&found), found.unexplained()), (vec![(StepClass::Agrees, 1)], 0));
}

/// A head of a chain of one Frame, at the upper end of the stack, whose return address lies on the
/// stack where its call would have put it, in a word that function 3 does not use.
fn with_return_address_on_the_stack(frame_pointer: u64) -> ExplicitScene {
    let mut scene = ExplicitScene::new();
    let unused = scene.frames[0] - 2;
    let back = in_function(BASE, 1) + 4;
    scene.words[unused] = back;
    // The stack frame of the function that the thread started in.
    let top = scene.words.len() - FRAME;
    scene.head = scene.sp + 8 * top as u64;
    let after = scene.sp + 8 * (unused as u64 + 1);
    scene.words[top..].copy_from_slice(&[1, END, 0, after, back, frame_pointer]);
    scene
}

#[test]
fn a_head_whose_return_address_is_still_on_the_stack_is_not_decided() {
    let found = with_return_address_on_the_stack(STACK - 16).compare();
    assert_eq!(frames(&found), [(FrameClass::Contradicted, 1)]);
    assert_eq!((steps(&found), found.unexplained()), (vec![], 0));
}

/// As CoreCLR 10.0.9 leaves it: a later call wrote a pointer to a heap over the Frame's last word.
#[test]
fn a_head_whose_frame_pointer_was_written_over_is_out_of_date() {
    for frame_pointer in [0x7fd2_6f80_3408, 0, STACK + 0x100, STACK - 0x1000] {
        let found = with_return_address_on_the_stack(frame_pointer).compare();
        assert_eq!(frames(&found), [(FrameClass::OutOfDate, 1)], "{frame_pointer:#x}");
        assert_eq!((steps(&found), found.unexplained()), (vec![], 0), "{frame_pointer:#x}");
    }
}

/// As CoreCLR 10.0.9 leaves a DynamicHelperFrame: a later call wrote over the return address.
#[test]
fn a_head_that_leads_to_the_stack_is_out_of_date() {
    let mut scene = with_return_address_on_the_stack(STACK - 16);
    let back = in_function(BASE, 1) + 4;
    assert_eq!(scene.words.iter().filter(|word| **word == back).count(), 2);
    scene.words.iter_mut().filter(|word| **word == back).for_each(|word| *word = STACK - 16);
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::OutOfDate, 1)]);
}

#[test]
fn a_head_that_breaks_its_chain_is_out_of_date() {
    let mut scene = ExplicitScene::new();
    scene.words[scene.frames[0]] = 77;
    scene.words[scene.frames[0] + 1] = 0x1234;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::OutOfDate, 1)]);
    assert_eq!((found.broken.count, found.unexplained()), (0, 0));
}

#[test]
fn a_head_in_the_right_call_with_a_wrong_stack_is_unexplained() {
    let mut scene = ExplicitScene::new();
    // The same call, but with its stack frame further up.
    scene.words[scene.frames[0] + 3] = STACK - 8;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 1), (FrameClass::Unexplained, 1)]);
}

#[test]
fn a_chain_broken_behind_a_frame_that_agrees_is_counted() {
    for link in [0x1234, STACK + 0x100, 0] {
        let mut scene = ExplicitScene::new();
        scene.words[scene.frames[0] + 1] = link;
        let found = scene.compare();
        assert_eq!(frames(&found), [(FrameClass::Agrees, 1)], "{link:#x}");
        assert_eq!((found.broken.count, found.unexplained()), (1, 1), "{link:#x}");
    }
}

#[test]
fn frames_of_finished_calls_hold_no_registers() {
    let mut scene = ExplicitScene::new();
    scene.words[scene.frames[0] + 4] = 0;
    let found = scene.compare();
    assert_eq!(frames(&found), [(FrameClass::Agrees, 1), (FrameClass::HoldsNone, 1)]);
    assert_eq!(found.unexplained(), 0);
}
