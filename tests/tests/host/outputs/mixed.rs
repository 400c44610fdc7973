//! Mixed stacks: which of their frames are shown, and what the tables state about them.

use super::profiles::Builder;
use polars::prelude::*;
use std::fs::File;
use stk_output::formats::{Format, Options};
use stk_profile::profile::*;
use stk_profile::stack::{FoldOptions, FrameChoice};
use stk_schema::event::RunState;
use stk_unwind::Trust;

/// Two stacks of a .NET program, root first:
///
/// ```text
/// start > host > run > mixed!Main > IL_STUB > call_back > mixed!Back > jit > compile
/// start > wait
/// ```
///
/// `host` is in hostfxr.dll, `run` and `jit` in coreclr.dll, `compile` in clrjit.dll, `call_back`
/// in native.dll.
fn mixed() -> Builder {
    let mut b = Builder::new();
    let images = ["kernel32.dll", "hostfxr.dll", "coreclr.dll", "clrjit.dll", "native.dll"];
    let [system, host, runtime, compiler, native] =
        [0, 1, 2, 3, 4].map(|n| b.image(images[n], 0x2001 + n as u64));
    let stop = b.stop(stk_profile::stack::StopReason::COMPLETE, "");
    let thread = b.thread(4, "main");
    let at = Placement::Image;
    let jitted = |n: u64| Placement::Unknown(0x7ff0_0000_0000 + n);
    let listed = [
        (at(system, 1), "start", FrameKind::Native),
        (at(host, 1), "host", FrameKind::Runtime),
        (at(runtime, 1), "run", FrameKind::Runtime),
        (jitted(1), "mixed!Main()", FrameKind::Managed),
        (jitted(2), "dynamicClass!IL_STUB()", FrameKind::Stub),
        (at(native, 1), "call_back", FrameKind::Native),
        (jitted(3), "mixed!Back()", FrameKind::Managed),
        (at(runtime, 2), "jit", FrameKind::Runtime),
        (at(compiler, 1), "compile", FrameKind::Runtime),
        (at(system, 2), "wait", FrameKind::Native),
    ];
    let frames: Vec<FrameId> = listed
        .iter()
        .map(|&(place, name, _)| b.frame(place, Trust::UnwindInfo, &[(name, None, None)]))
        .collect();
    let symbols = &mut b.profile.symbols;
    let module = symbols.strings.intern("mixed.dll");
    symbols.facts = listed
        .iter()
        .map(|&(_, _, kind)| match kind {
            FrameKind::Managed => {
                FrameFacts { kind, tier: "tier-1", module: Some(module), ..FrameFacts::default() }
            }
            kind => FrameFacts { kind, ..FrameFacts::default() },
        })
        .collect();
    let (deep, waits) = (b.stack(&frames[..9]), b.stack(&[frames[0], frames[9]]));
    b.run(thread, Some(deep), stop, 0, 3, RunState::Running);
    b.run(thread, Some(waits), stop, 3, 1, RunState::Waiting);
    b
}

/// The stacks of all runs, root first.
fn stacks(b: &Builder) -> Vec<String> {
    let mut stacks = Vec::new();
    let name = |frame| b.profile.symbols.strings.get(b.profile.symbols.names(frame)[0].function).to_owned();
    let visited: std::io::Result<()> = b.runs.for_each(|batch| {
        for run in batch.runs {
            let frames = run.node.into_iter().flat_map(|node| b.profile.tree.frames(node));
            let mut names: Vec<String> = frames.map(name).collect();
            names.reverse();
            stacks.push(names.join(" > "));
        }
        Ok(())
    });
    visited.expect("runs");
    stacks
}

fn folded(frames: FrameChoice, hide_runtime: bool) -> Builder {
    let mut b = mixed();
    fold(&mut b.profile, &mut b.runs, FoldOptions { frames, hide_runtime });
    b
}

#[test]
fn one_side_of_a_mixed_stack_can_be_left_out() {
    assert_eq!(
        stacks(&folded(FrameChoice::Native, false)),
        ["start > host > run > call_back > jit > compile", "start > wait"]
    );
    // A stack that consists only of hidden frames then has none.
    assert_eq!(
        stacks(&folded(FrameChoice::Managed, false)),
        ["mixed!Main() > dynamicClass!IL_STUB() > mixed!Back()", ""]
    );
    assert_eq!(stacks(&folded(FrameChoice::Managed, true))[0], "mixed!Main() > mixed!Back()");
    assert_eq!(stacks(&folded(FrameChoice::All, false)), stacks(&mixed()));
}

#[test]
fn hiding_the_runtime_leaves_one_frame_where_it_was() {
    let b = folded(FrameChoice::All, true);
    assert_eq!(
        stacks(&b),
        ["start > [hostfxr.dll] > mixed!Main() > call_back > mixed!Back() > [coreclr.dll]", "start > wait"]
    );
    // A frame that is in no stack is not in the tables either.
    assert_eq!(b.profile.frames.keys().len(), 7);
    assert_eq!(b.profile.symbols.source.len(), 7);
}

#[test]
fn the_tables_say_what_kind_of_code_a_frame_is() {
    let written = mixed().write(Format::Parquet, &Options::default());
    let path = std::fs::read_dir(written.path.join("frames")).expect("frames").next().expect("a file");
    let file = File::open(path.expect("a file").path()).expect("opens");
    let table = ParquetReader::new(file).finish().expect("Parquet");
    let text = |column: &str| -> Vec<Option<String>> {
        let column = table.column(column).expect("the column").str().expect("text").clone();
        column.iter().map(|value| value.map(str::to_owned)).collect()
    };
    let mut rows: Vec<_> =
        text("function").into_iter().zip(text("kind")).zip(text("tier")).zip(text("module")).collect();
    rows.sort();
    let row = |function: &str| {
        let found = rows.iter().find(|row| row.0.0.0.as_deref() == Some(function)).expect("the function");
        [&found.0.0.1, &found.0.1, &found.1].map(|text| text.clone().unwrap_or_default())
    };
    assert_eq!(rows.len(), 10);
    assert_eq!(row("mixed!Main()"), ["managed", "tier-1", "mixed.dll"]);
    assert_eq!(row("dynamicClass!IL_STUB()"), ["stub", "", ""]);
    assert_eq!(row("jit"), ["runtime", "", "coreclr.dll"]);
    assert_eq!(row("call_back"), ["native", "", "native.dll"]);
}
