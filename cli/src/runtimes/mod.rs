//! What language runtimes say of the code that they make at run time, so that frames in it get
//! names.
//!
//! Each runtime is a folder beside the others ([`dotnet`]); it gets a trace and fills a
//! [`MethodMap`]: which method's code lay where and when, and how its addresses become lines.
//! `profile` asks the map; nothing outside a runtime's folder knows how it talks. [`Methods`] is
//! what all runtimes of a trace gave.

pub mod dotnet;
mod methods;

pub use methods::{Ambiguity, CodeLines, ManagedModule, Method, MethodId, MethodKind, MethodMap, Span};

use crate::model::ImageId;
use crate::symbols::SymbolStore;
use crate::trace::Trace;
use std::collections::BTreeSet;

/// Methods of all runtimes in a trace.
#[derive(Default, Debug)]
pub struct Methods {
    /// Which method lies where.
    pub map: MethodMap,
    /// Managed modules that methods refer to.
    pub modules: Vec<ManagedModule>,
    /// Images whose native code is a runtime's own.
    pub runtimes: BTreeSet<ImageId>,
    /// What could not be read, one sentence each.
    pub problems: Vec<String>,
    /// Streams of the runtimes that were read.
    pub streams: usize,
}

/// What the runtimes of a trace say of their methods. A trace without any gives an empty map.
pub fn methods(trace: &Trace<'_>) -> Methods {
    dotnet::methods(trace)
}

/// Source file and line of addresses in methods, from the symbol files of their modules.
pub fn lines<'a>(methods: &'a Methods, store: &'a SymbolStore) -> dotnet::Lines<'a> {
    dotnet::Lines::new(methods, store)
}
