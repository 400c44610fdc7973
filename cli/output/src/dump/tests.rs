//! Tests on stacks that go through a language runtime, named and folded.

use super::stack::{self, DumpStack};
use super::text;
use stk_profile::image::{ImageSearch, load_images};
use stk_profile::runtimes;
use stk_profile::runtimes::dotnet::explicit::ExplicitFrames;
use stk_profile::stack::{FoldOptions, FrameChoice, NameSources, StackWalker};
use stk_profile::trace::{Trace, snapshots};
use stk_schema::Ticks;
use stk_schema::event::{Event, MethodName};
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};
use stk_tests::traces::{self, FUNCTION_SIZE, TestImage, in_function};
use stk_unwind::WalkOptions;

const STACK: u64 = 0x10_0000;
const APP: u64 = 0x1_4000_0000;
const RUNTIME: u64 = 0x7FFE_0000_0000;

/// Call sites, innermost first, of a stack that goes through a runtime twice: `RtlUserThreadStart`,
/// `BaseThreadInitThunk`, coreclr 1, coreclr 2, app 1 (managed), coreclr 3, app 2.
fn shown(options: FoldOptions) -> Vec<String> {
    let mut builder = traces::trace();
    let mut app = TestImage::new(r"C:\app\app.dll", 8);
    app.exports = vec![("One", 1), ("Two", 2)];
    app.load(&mut builder, 0, APP);
    let mut runtime = TestImage::new(r"C:\dotnet\coreclr.dll", 8);
    runtime.exports = vec![("Enter", 1), ("Invoke", 2), ("Leave", 3)];
    runtime.load(&mut builder, 0, RUNTIME);
    let thread = builder.thread(0, 1, "main", STACK);
    let calls = [
        in_function(RUNTIME, 1),
        in_function(RUNTIME, 2),
        in_function(APP, 1),
        in_function(RUNTIME, 3),
        in_function(APP, 2),
    ];
    traces::sample(&mut builder, thread, 1000, STACK, &calls);
    let base = APP + u64::from(TestImage::function(1));
    let name = MethodName {
        time: Ticks(1500),
        base,
        size: FUNCTION_SIZE.into(),
        source: 1,
        name: b"App!T.M(int32)",
    };
    builder.meta(1500, &Event::MethodName(name));
    let file = builder.finish();
    let trace = Trace::read(&file, "test.stk").unwrap();
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let (taken, _) = snapshots(&trace, trace.last(), &|_| true);
    let methods = runtimes::methods(&trace);
    let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
    let mut walker = StackWalker::new(&trace, &images, &explicit, WalkOptions::default());
    let inputs = stack::DumpInputs {
        trace: &trace,
        images: &images,
        explicit: &explicit,
        methods: &methods,
        salvage: false,
    };
    let mut stacks: Vec<DumpStack> = taken
        .iter()
        .map(|snapshot| stack::walk(&inputs, &mut walker, snapshot, trace.last(), false))
        .collect();
    let store = SymbolStore::new(SymbolPath::default());
    let symbolizer = Symbolizer::new(store, Demangle::default());
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    stack::name(&sources, &mut stacks);
    stack::fold(&mut stacks[0], options);
    let text = text::k(&trace, &stacks[0], Default::default());
    // Leave out the trust of the frame.
    let site = |line: &str| line[36..].split("  (").next().unwrap_or_default().to_owned();
    text.lines().skip(2).map(site).collect()
}

#[test]
fn a_runtimes_method_wins_over_the_export() {
    assert_eq!(
        shown(FoldOptions::default()),
        [
            "app!Two+0x10",
            "coreclr!Leave+0x10",
            "App!T.M(int32)+0x10",
            "coreclr!Invoke+0x10",
            "coreclr!Enter+0x10",
            "kernel32!BaseThreadInitThunk+0x10",
            "ntdll!RtlUserThreadStart+0x10",
        ]
    );
}

#[test]
fn frames_of_the_runtime_are_folded_and_one_side_can_be_chosen() {
    let hidden = shown(FoldOptions { hide_runtime: true, frames: FrameChoice::All });
    assert_eq!(hidden[..4], ["app!Two+0x10", "[coreclr.dll]", "App!T.M(int32)+0x10", "[coreclr.dll]"]);
    assert_eq!(hidden.len(), 6);
    let managed = shown(FoldOptions { hide_runtime: false, frames: FrameChoice::Managed });
    assert_eq!(managed, ["App!T.M(int32)+0x10"]);
    let native = shown(FoldOptions { hide_runtime: false, frames: FrameChoice::Native });
    assert_eq!(native.len(), 6);
}
