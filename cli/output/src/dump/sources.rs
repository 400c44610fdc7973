//! Where the names of a trace come from: its images, the methods of its runtimes, symbols.

use super::stack::DumpInputs;
use stk_profile::image::ModuleImage;
use stk_profile::pipeline::load_images;
use stk_profile::runtimes::dotnet::explicit::ExplicitFrames;
use stk_profile::runtimes::{self, Methods};
use stk_profile::stack::{NameSources, StackWalker};
use stk_profile::trace::Trace;
use stk_symbols::{Demangle, SymbolStore, Symbolizer};
use stk_unwind::WalkOptions;

/// What stacks of a trace are walked and named with.
pub struct TraceSources<'t> {
    trace: &'t Trace<'t>,
    images: Vec<ModuleImage>,
    explicit: ExplicitFrames,
    pub methods: Methods,
    pub symbolizer: Symbolizer,
}

impl<'t> TraceSources<'t> {
    /// Reads what the trace and the files that belong to it say. Runs in the caller's rayon pool.
    pub fn of(trace: &'t Trace<'t>, store: SymbolStore, demangle: Demangle) -> TraceSources<'t> {
        TraceSources {
            trace,
            images: load_images(trace, &store),
            explicit: ExplicitFrames::of(&trace.timeline, trace.header().arch),
            methods: runtimes::methods(trace),
            symbolizer: Symbolizer::new(store, demangle),
        }
    }

    /// For stacks. `salvage`: samples behind a lost block of module events are walked too.
    pub fn inputs(&self, salvage: bool) -> DumpInputs<'_> {
        let TraceSources { trace, images, explicit, methods, .. } = self;
        DumpInputs { trace, images, explicit, methods, salvage }
    }

    /// A walker of the trace's stacks. `scan`: it searches stacks for return addresses where unwind
    /// data is missing.
    pub fn walker(&self, scan: bool) -> StackWalker<'_> {
        let mut options = WalkOptions::default();
        options.scan = scan;
        StackWalker::new(self.trace, &self.images, &self.explicit, options)
    }

    /// For names.
    pub fn names(&self) -> NameSources<'_> {
        let TraceSources { trace, images, methods, symbolizer, .. } = self;
        NameSources { trace, images, methods, symbolizer }
    }
}
