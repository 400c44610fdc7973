//! What language runtimes report about the code that they make at run time, so that frames in it
//! get names.
//!
//! Each runtime is a folder beside the others ([`dotnet`]). It takes a trace and fills a
//! [`MethodMap`]: which method's code lay where and when, and how its addresses map to lines.
//! `profile` uses only the map; nothing outside a runtime's folder depends on that runtime.
//! [`Methods`] combines the results of all runtimes of a trace.

pub mod dotnet;
mod frame_methods;
mod methods;

pub use frame_methods::FrameMethods;
pub use methods::{Ambiguity, CodeLines, ManagedModule, Method, MethodId, MethodKind, MethodMap, Span};

use crate::trace::Trace;
use std::collections::BTreeSet;
use stk_base::model::ImageId;
use stk_symbols::SymbolStore;

/// Methods of all runtimes in a trace.
#[derive(Default, Debug)]
pub struct Methods {
    /// Methods by address and time.
    pub map: MethodMap,
    /// Methods without code of their own, which explicit Frames are about.
    pub of_frames: FrameMethods,
    /// Managed modules that methods refer to.
    pub modules: Vec<ManagedModule>,
    /// Images whose native code belongs to a runtime.
    pub runtimes: BTreeSet<ImageId>,
    /// What could not be read, one sentence each.
    pub problems: Vec<String>,
    /// Number of the runtimes' streams that were read.
    pub streams: usize,
}

/// What the runtimes of a trace report about their methods. A trace without runtimes gives an empty
/// map.
pub fn methods(trace: &Trace<'_>) -> Methods {
    dotnet::methods(trace)
}

/// Source file and line of addresses in methods, from the symbol files of their modules.
pub fn lines<'a>(methods: &'a Methods, store: &'a SymbolStore) -> dotnet::Lines<'a> {
    dotnet::Lines::new(methods, store)
}
