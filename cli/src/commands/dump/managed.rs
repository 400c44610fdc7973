//! Frames of language runtimes: named by what the runtime told, before symbols are asked; and which of them are shown.

use super::stack::{Name, Stack, is_exact};
use crate::profile::{FoldOptions, Folded, FrameKind, folded_name};
use crate::runtimes::{self, MethodKind, Methods};
use crate::symbols::SymbolStore;
use crate::trace::Trace;

/// Names the frames that lie in methods that a runtime told of, and says which frames are a runtime's own.
pub(super) fn name(trace: &Trace<'_>, methods: &Methods, store: &SymbolStore, stacks: &mut [Stack]) {
    let lines = runtimes::lines(methods, store);
    for stack in stacks {
        let time = trace.clock.ns(stack.until);
        for walked in &mut stack.frames {
            let image = walked.frame.module.and_then(|module| trace.image_of(module));
            if image.is_some_and(|image| methods.runtimes.contains(&image)) {
                walked.kind = FrameKind::Runtime;
            }
            let address = walked.frame.address.saturating_sub(u64::from(!is_exact(&walked.frame)));
            // Of two methods that may have been there neither is taken.
            let Ok(Some(id)) = methods.map.find(address, time, time) else { continue };
            let method = methods.map.get(id);
            walked.kind = match method.kind {
                MethodKind::Managed => FrameKind::Managed,
                MethodKind::Stub => FrameKind::Stub,
            };
            if let Some(module) = method.module {
                walked.module = methods.modules[module as usize].file_name().to_owned();
            }
            let line = lines.line(id, address, !is_exact(&walked.frame)).ok();
            let displacement = u32::try_from(walked.frame.address - method.base).ok();
            walked.names = vec![Name {
                file: line.as_ref().map(|line| line.file.clone()),
                line: line.map(|line| line.line),
                displacement,
                has_module: true,
                ..Name::only(method.name.to_string())
            }];
        }
    }
}

/// Hides the frames that are not wanted.
pub(super) fn fold(stack: &mut Stack, options: FoldOptions) {
    let mut in_runtime = false;
    for walked in stack.frames.iter_mut().rev() {
        let folded = options.of(walked.kind, in_runtime);
        walked.hidden = folded == Folded::Left;
        if !walked.hidden {
            in_runtime = folded == Folded::Begins;
        }
        if folded == Folded::Begins {
            walked.names = vec![Name { has_module: true, ..Name::only(folded_name(&walked.module)) }];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dump::{stack, text};
    use crate::image::{Elsewhere, load_images};
    use crate::profile::FrameChoice;
    use crate::runtimes::dotnet::explicit::ExplicitFrames;
    use crate::symbols::{Demangle, SymbolPath, Symbolizer};
    use crate::testing::{self, FUNCTION_SIZE, Image, in_function};
    use crate::trace::snapshots;
    use stk_schema::event::{Event, MethodName};
    use stk_unwind::{WalkOptions, Walker};

    const STACK: u64 = 0x10_0000;
    const APP: u64 = 0x1_4000_0000;
    const RUNTIME: u64 = 0x7FFE_0000_0000;

    /// Call sites, innermost first, of a stack that goes through a runtime twice: `RtlUserThreadStart`, `BaseThreadInitThunk`,
    /// coreclr 1, coreclr 2, app 1 (managed), coreclr 3, app 2.
    fn shown(options: FoldOptions) -> Vec<String> {
        let mut builder = testing::trace();
        let mut app = Image::new(r"C:\app\app.dll", 8);
        app.exports = vec![("One", 1), ("Two", 2)];
        app.load(&mut builder, 0, APP);
        let mut runtime = Image::new(r"C:\dotnet\coreclr.dll", 8);
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
        testing::sample(&mut builder, thread, 1000, STACK, &calls);
        let base = APP + u64::from(Image::function(1));
        let name =
            MethodName { time: 1500, base, size: FUNCTION_SIZE.into(), source: 1, name: b"App!T.M(int32)" };
        builder.meta(1500, &Event::MethodName(name));
        let file = builder.finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &Elsewhere::NOWHERE);
        let mut walker = Walker::new(WalkOptions::default());
        let (taken, _) = snapshots(&trace, trace.last(), &|_| true);
        let methods = runtimes::methods(&trace);
        let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
        let inputs = stack::Inputs { trace: &trace, images: &images, explicit: &explicit, methods: &methods };
        let mut stacks: Vec<Stack> = taken
            .iter()
            .map(|snapshot| stack::walk(&inputs, &mut walker, snapshot, trace.last(), false))
            .collect();
        let store = SymbolStore::new(SymbolPath::default());
        name_all(&trace, &images, store, &mut stacks);
        fold(&mut stacks[0], options);
        let text = text::k(&trace, &stacks[0]);
        // Without how sure a frame is.
        let site = |line: &str| line[36..].split("  (").next().unwrap_or_default().to_owned();
        text.lines().skip(2).map(site).collect()
    }

    fn name_all(
        trace: &Trace<'_>,
        images: &[crate::image::ModuleImage],
        store: SymbolStore,
        stacks: &mut [Stack],
    ) {
        name(trace, &runtimes::methods(trace), &store, stacks);
        let demangle = Demangle::default();
        stack::name(trace, images, &Symbolizer::new(store, demangle), demangle, stacks);
    }

    #[test]
    fn a_method_that_a_runtime_told_of_comes_before_the_export() {
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
}
