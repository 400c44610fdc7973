//! Stacks that are continued beyond a gap by what a .NET runtime reported about the thread.

use super::tests::{names, profile, runs_of, stop};
use crate::profile::{Profile, Run};
use stk_schema::Ticks;
use stk_schema::event::{Event, Memory};
use stk_tests::synth::TraceBuilder;
use stk_tests::traces::{self, TestImage, in_function};
use stk_unwind::Trust;

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;
/// A return address in no module.
const NOWHERE: u64 = 0x6_6666_0000;
/// The data contract of CoreCLR 10.0.9 for its Frames. In it, 1 identifies an InlinedCallFrame.
const DESCRIPTOR: &[u8] =
    include_bytes!("../../../../../tests/data/dotnet/coreclr-10.0.9-x64.descriptor.json");
const INLINED_CALL_FRAME: u64 = 1;
const END_OF_CHAIN: u64 = u64::MAX;

fn trace(descriptor: &[u8]) -> (TraceBuilder, u64) {
    let mut builder = traces::trace();
    let module = TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    builder.meta(0, &traces::runtime(module, descriptor));
    let thread = builder.thread(0, 1, "main", STACK);
    (builder, thread)
}

/// Registers and stack of a thread whose function 7 was called from [`NOWHERE`]. Above it lies an
/// InlinedCallFrame of function `calls.last()`, which was called by the others. Also returns the
/// address of that Frame.
fn stack(calls: &[u64]) -> ([u64; 2], Vec<u64>, u64) {
    let (caller, above) = traces::stack(STACK, calls);
    let frame = caller[1] - 7 * 8;
    // `sub rsp, 28h`, the return address, the Frame: identifier, link, datum, CallSiteSP, return
    // address, rbp.
    let mut words = vec![0, 0, 0, 0, 0, NOWHERE];
    words.extend([INLINED_CALL_FRAME, END_OF_CHAIN, 0, caller[1], caller[0], 0x77, 0]);
    words.extend(above);
    ([in_function(BASE, 7), STACK - 8 * words.len() as u64], words, frame)
}

fn of_thread(file: &[u8]) -> (Profile, Vec<Run>) {
    let (profile, runs) = profile(file);
    let runs = runs_of(&profile, &runs, 1);
    (profile, runs)
}

fn trusts(profile: &Profile, run: &Run) -> Vec<Trust> {
    let frames = run.node.into_iter().flat_map(|node| profile.tree.frames(node));
    frames.map(|frame| profile.frames.keys()[frame.0 as usize].trust).collect()
}

const WHOLE: [&str; 5] = ["app.exe:7", "app.exe:2", "app.exe:1", "kernel32.dll:0", "ntdll.dll:0"];

#[test]
fn a_stack_continued_from_an_explicit_frame_is_not_complete() {
    let (mut builder, thread) = trace(DESCRIPTOR);
    let (registers, words, frame) = stack(&[in_function(BASE, 1), in_function(BASE, 2)]);
    builder.sample(thread, 1_000, &registers, &words);
    builder.push(&traces::managed(thread, 1_000, frame));
    let (profile, runs) = of_thread(&builder.finish());
    assert_eq!(names(&profile, runs[0].node), WHOLE);
    assert_eq!(stop(&profile, &runs[0]), "thread-start-past-gap");
    let trusts = trusts(&profile, &runs[0]);
    assert_eq!(trusts[..3], [Trust::Context, Trust::ExplicitFrame, Trust::UnwindInfo]);
}

#[test]
fn interrupted_code_is_continued_from_registers_outside_the_stack() {
    const RESUMABLE_FRAME: u64 = 2;
    /// Where the recorder found the CONTEXT that the Frame points to.
    const CONTEXT: u64 = 0x33_0000;
    let (registers, mut words, frame) = stack(&[in_function(BASE, 1), in_function(BASE, 2)]);
    let sp = words[9];
    words[6..9].copy_from_slice(&[RESUMABLE_FRAME, END_OF_CHAIN, CONTEXT]);
    words[9..12].fill(0);
    // Interrupted at function 2's first instruction: the byte before it belongs to another
    // function, and only the return address is on the stack so far. winnt.h, CONTEXT of AMD64: Rsp,
    // Rip.
    let ip = in_function(BASE, 2) - u64::from(traces::AFTER_CALL);
    let mut context = vec![0; 1232];
    context[0x98..0xa0].copy_from_slice(&(sp + 0x28).to_le_bytes());
    context[0xf8..0x100].copy_from_slice(&ip.to_le_bytes());
    for (bytes, expected) in [(&context[..], 5), (&context[..1231], 1)] {
        let (mut builder, thread) = trace(DESCRIPTOR);
        builder.sample(thread, 1_000, &registers, &words);
        builder.push(&traces::managed(thread, 1_000, frame));
        builder.push(&Event::Memory(Memory { thread, time: Ticks(1_000), address: CONTEXT, bytes }));
        let (profile, runs) = of_thread(&builder.finish());
        assert_eq!(names(&profile, runs[0].node), WHOLE[..expected], "{} bytes", bytes.len());
        if expected == 5 {
            assert_eq!(trusts(&profile, &runs[0])[1], Trust::ExplicitContext);
        }
    }
}

#[test]
fn without_a_report_on_the_same_sample_the_stack_ends_in_the_gap() {
    let (registers, words, frame) = stack(&[in_function(BASE, 1), in_function(BASE, 2)]);
    for (name, descriptor, time, head) in [
        ("no contract", &b""[..], 1_000, frame),
        ("another version", br#"{"version":0,"contracts":{"StackWalk":2}}"#, 1_000, frame),
        ("no JSON", b"{", 1_000, frame),
        ("another sample", DESCRIPTOR, 1_001, frame),
        ("no Frames", DESCRIPTOR, 1_000, END_OF_CHAIN),
        ("a Frame outside the stack", DESCRIPTOR, 1_000, STACK + 0x1000),
        ("the Frame lies below the gap", DESCRIPTOR, 1_000, registers[1] - 8),
    ] {
        let (mut builder, thread) = trace(descriptor);
        builder.sample(thread, 1_000, &registers, &words);
        builder.push(&traces::managed(thread, time, head));
        let (profile, runs) = of_thread(&builder.finish());
        assert_eq!(names(&profile, runs[0].node), ["app.exe:7"], "{name}");
        assert_eq!(stop(&profile, &runs[0]), "no-module", "{name}");
    }
}

#[test]
fn a_frame_that_leads_to_unknown_code_is_skipped() {
    let (mut builder, thread) = trace(DESCRIPTOR);
    let (registers, mut words, frame) = stack(&[in_function(BASE, 1), in_function(BASE, 2)]);
    words[10] = 0x12_3456;
    builder.sample(thread, 1_000, &registers, &words);
    builder.push(&traces::managed(thread, 1_000, frame));
    let (profile, runs) = of_thread(&builder.finish());
    assert_eq!(names(&profile, runs[0].node), ["app.exe:7"]);
}

#[test]
fn a_stack_with_a_gap_does_not_change_the_stacks_before_and_after() {
    let (mut builder, thread) = trace(DESCRIPTOR);
    let calls = [in_function(BASE, 1), in_function(BASE, 2)];
    let (registers, words, frame) = stack(&calls);
    let whole = [calls[0], calls[1], in_function(BASE, 3)];
    traces::sample(&mut builder, thread, 1_000, STACK, &whole);
    builder.sample(thread, 2_000, &registers, &words);
    builder.push(&traces::managed(thread, 2_000, frame));
    // An unchanged sample: the report is still valid.
    builder.same(thread, 3_000, stk_schema::event::RunState::Waiting);
    traces::sample(&mut builder, thread, 4_000, STACK, &whole);
    // There is no report on this one.
    builder.sample(thread, 5_000, &registers, &words);
    traces::sample(&mut builder, thread, 6_000, STACK, &whole);
    let (profile, runs) = of_thread(&builder.finish());
    let stops: Vec<_> = runs.iter().map(|run| (stop(&profile, run), names(&profile, run.node))).collect();
    let complete = ["app.exe:3", "app.exe:2", "app.exe:1", "kernel32.dll:0", "ntdll.dll:0"];
    for (run, (reason, frames)) in stops.iter().enumerate() {
        match *reason {
            "thread-start" => assert_eq!(frames, &complete, "{run}"),
            "thread-start-past-gap" => assert_eq!(frames, &WHOLE, "{run}"),
            _ => assert_eq!((*reason, frames.len()), ("no-module", 1), "{run}"),
        }
    }
    let samples = |wanted: &str| -> u64 {
        let of = runs.iter().filter(|run| stop(&profile, run) == wanted);
        of.map(|run| u64::from(run.samples)).sum()
    };
    assert_eq!(["thread-start", "thread-start-past-gap", "no-module"].map(samples), [3, 2, 1], "{stops:?}");
}
