//! Stacks through code that was made at run time.

use super::tests::{lose_meta, names, profile, runs_of, stop};
use stk_schema::Ticks;
use stk_schema::event::{CodeAdd, CodeKind, Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_tests::synth::TraceBuilder;
use stk_tests::traces::{self, TestImage, in_function};
use stk_unwind::Trust;

const BASE: u64 = 0x1_4000_0000;
const STACK: u64 = 0x10_0000;
/// Address of the runtime's code. Its functions' RVAs count from a base below it.
const CODE: u64 = 0x2_5000_1000;
const HEAP: u64 = 0x2_5000_0000;
/// UNWIND_INFO of `sub rsp, 28h`, like the frames of `traces::stack`.
const INFO: [u8; 8] = [0x01, 0x04, 0x01, 0x00, 0x04, 0x42, 0, 0];

/// A trace with an application and a thread.
fn trace() -> (TraceBuilder, u64) {
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, BASE);
    let thread = builder.thread(0, 1, "", STACK);
    (builder, thread)
}

fn function(builder: &mut TraceBuilder, instance: u64, time: u64, base: u64, size: u32) {
    let begin = (base - HEAP) as u32;
    let record: Vec<u8> = [begin, begin + size, 0x9_0000].into_iter().flat_map(u32::to_le_bytes).collect();
    let add = CodeAdd {
        instance,
        time: Ticks(time),
        kind: CodeKind::TableFunction as u64,
        base,
        size: size.into(),
        image_base: HEAP,
        function: &record,
        unwind: &INFO,
        code: &[],
    };
    builder.meta(time, &Event::CodeAdd(add));
}

fn stub(builder: &mut TraceBuilder, instance: u64, time: u64, base: u64, code: &[u8]) {
    let add = CodeAdd {
        instance,
        time: Ticks(time),
        kind: CodeKind::Stub as u64,
        base,
        size: code.len() as u64,
        image_base: base,
        function: &[],
        unwind: &[],
        code,
    };
    builder.meta(time, &Event::CodeAdd(add));
}

#[test]
fn dynamic_functions_are_unwound_by_their_own_unwind_data() {
    let (mut builder, thread) = trace();
    function(&mut builder, 100, 5_000, CODE, 0x40);
    function(&mut builder, 101, 5_000, CODE + 0x40, 0x200);
    let calls = [in_function(BASE, 1), CODE + 0x20, CODE + 0x40 + 0x1ff, in_function(BASE, 2), CODE + 0x30];
    traces::sample(&mut builder, thread, 10_000, STACK, &calls);
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    assert_eq!(
        names(&profile, runs[0].node),
        [
            "code 100+0x30",
            "app.exe:2",
            "code 101+0x1ff",
            "code 100+0x20",
            "app.exe:1",
            "kernel32.dll:0",
            "ntdll.dll:0"
        ]
    );
    assert_eq!(stop(&profile, &runs[0]), "thread-start");
}

#[test]
fn an_address_belongs_to_the_code_that_was_there_at_the_time() {
    let (mut builder, thread) = trace();
    function(&mut builder, 100, 5_000, CODE, 0x40);
    let calls = [in_function(BASE, 1), CODE + 0x20];
    traces::sample(&mut builder, thread, 10_000, STACK, &calls);
    builder.meta(20_000, &Event::CodeRemove { instance: 100, time: Ticks(20_000) });
    traces::sample(&mut builder, thread, 25_000, STACK, &[in_function(BASE, 2), CODE + 0x20]);
    function(&mut builder, 102, 30_000, CODE, 0x80);
    traces::sample(&mut builder, thread, 40_000, STACK, &calls);
    let (profile, runs) = profile(&builder.finish());
    let leaves: Vec<String> =
        runs_of(&profile, &runs, 1).iter().map(|run| names(&profile, run.node)[0].clone()).collect();
    assert_eq!(leaves, ["code 100+0x20", &format!("{:#x}", CODE + 0x20), "code 102+0x20"]);
    assert_eq!(profile.code.len(), 2);
    assert_eq!(profile.code[0].remove_ns, Some(2_000_000));
}

#[test]
fn an_unchanged_stack_is_walked_again_when_its_code_becomes_known() {
    let (mut builder, thread) = trace();
    // The code that called app.exe:2 becomes known only later.
    let calls = [in_function(BASE, 1), CODE + 0x20, in_function(BASE, 2)];
    traces::sample(&mut builder, thread, 10_000, STACK, &calls);
    for time in 2..=6 {
        builder.same(thread, time * 10_000, RunState::Waiting);
    }
    function(&mut builder, 100, 35_000, CODE, 0x40);
    let (profile, runs) = profile(&builder.finish());
    let depths: Vec<(usize, u32, &str)> = runs_of(&profile, &runs, 1)
        .iter()
        .map(|run| (names(&profile, run.node).len(), run.samples, stop(&profile, run)))
        .collect();
    let samples = |depth| depths.iter().filter(|d| d.0 == depth).map(|d| d.1).sum::<u32>();
    assert_eq!((samples(1), samples(5)), (3, 3), "{depths:?}");
    assert_eq!(depths.last().map(|d| d.2), Some("thread-start"));
}

#[test]
fn a_stub_is_walked_as_a_leaf_or_with_one_pushed_register() {
    let (mut builder, thread) = trace();
    // cmp rax, [rcx]; jne $: these instructions alone do not show where the return address is.
    let code = [0x48, 0x3b, 0x01, 0x75, 0xfe, 0xcc, 0xcc, 0xcc];
    stub(&mut builder, 100, 5_000, CODE, &code);
    let (registers, words) = traces::stack(STACK, &[in_function(BASE, 1)]);
    for (time, pushed) in [(10_000, &[][..]), (20_000, &[0x1234_5678][..])] {
        let words = [pushed, &[registers[0]], &words].concat();
        let sp = STACK - 8 * words.len() as u64;
        builder.sample(thread, time, &[CODE + 3, sp], &words);
    }
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(names(&profile, run.node), ["code 100+0x3", "app.exe:1", "kernel32.dll:0", "ntdll.dll:0"]);
        assert_eq!(stop(&profile, run), "thread-start");
    }
    let trusts: Vec<&str> = profile.frames.keys().iter().map(|key| key.trust.as_str()).collect();
    assert!(trusts.contains(&"leaf") && trusts.contains(&"leaf-outside"), "{trusts:?}");
}

#[test]
fn instrumentation_callback_is_named_behind_a_system_call_alone() {
    let (mut builder, thread) = trace();
    let system_call = traces::NTDLL + u64::from(TestImage::function(2)) + 0x14;
    // The callback has pushed what it saves, so that no return address is where its walk looks.
    let mut sample = |time, ip, r10| {
        let value = |name: &&str| match *name {
            "rip" => ip,
            "rsp" => STACK - 16,
            "r10" => r10,
            _ => 0,
        };
        let registers: Vec<u64> = RegisterSet::X64.names().iter().map(value).collect();
        builder.sample(thread, time, &registers, &[0x1234, 0x5678]);
    };
    sample(10_000, CODE, system_call);
    sample(20_000, CODE, in_function(BASE, 2));
    sample(30_000, CODE, 0);
    sample(40_000, in_function(BASE, 2), system_call);
    let (profile, runs) = profile(&builder.finish());
    let stops: Vec<&str> = runs_of(&profile, &runs, 1).iter().map(|run| stop(&profile, run)).collect();
    // The second and the third have the same stack: one run.
    assert_eq!(stops, ["instrumentation-callback", "no-module", "end-of-stack"]);
}

#[test]
fn a_caller_in_code_without_unwind_data_ends_the_stack_and_is_blamed() {
    let (mut builder, thread) = trace();
    stub(&mut builder, 100, 5_000, CODE, &[0x90; 0x40]);
    traces::sample(&mut builder, thread, 10_000, STACK, &[CODE + 0x20, in_function(BASE, 1)]);
    let (profile, runs) = profile(&builder.finish());
    let runs = runs_of(&profile, &runs, 1);
    assert_eq!(names(&profile, runs[0].node), ["app.exe:1", "code 100+0x20"]);
    let stop = &profile.stops[usize::from(runs[0].stop.0)];
    assert_eq!((stop.reason.as_str(), stop.module.as_str()), ("no-function", "[dynamic code]"));
}

#[test]
fn code_of_before_a_loss_is_assumed_until_it_is_restated() {
    let (mut builder, thread) = trace();
    function(&mut builder, 100, 5_000, CODE, 0x40);
    let sample = |builder: &mut TraceBuilder, time, leaf| {
        traces::sample(builder, thread, time, STACK, &[in_function(BASE, 1), leaf]);
        builder.cut();
    };
    sample(&mut builder, 10_000, CODE + 0x20);
    function(&mut builder, 101, 15_000, CODE + 0x100, 0x40);
    builder.confirm(false);
    sample(&mut builder, 20_000, CODE + 0x28);
    sample(&mut builder, 22_000, CODE + 0x120);
    function(&mut builder, 102, 25_000, CODE + 0x200, 0x40);
    sample(&mut builder, 30_000, CODE + 0x220);
    function(&mut builder, 103, 35_000, CODE + 0x300, 0x40);
    builder.state();
    sample(&mut builder, 40_000, CODE + 0x20);
    let mut file = builder.finish();
    lose_meta(&mut file);
    let (profile, runs) = profile(&file);
    let found = runs_of(&profile, &runs, 1).into_iter().map(|run| {
        let leaf = profile.tree.frames(run.node.unwrap()).next().unwrap();
        let is_assumed = profile.frames.keys()[leaf.0 as usize].trust == Trust::Assumed;
        (names(&profile, run.node).swap_remove(0), is_assumed, stop(&profile, &run))
    });
    let unknown = |offset| format!("{:#x}", CODE + offset);
    let expected = [
        ("code 100+0x20".to_owned(), false, "thread-start"),
        ("code 100+0x28".to_owned(), true, "thread-start"),
        (unknown(0x120), false, "code-unknown"),
        ("code 102+0x20".to_owned(), false, "thread-start"),
        // The STATE block restates no code: what was there has ended.
        (unknown(0x20), false, "zero-return-address"),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
    assert_eq!(profile.losses.code_unknown, 1);
}
