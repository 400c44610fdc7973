//! Turns a decoded sample into a named stack. Profiles, dumps and the comparison of walks all use
//! this module.
//!
//! ```text
//! cost     limits on the cost of walking
//! walk     the sample's frames, beyond gaps too, and why there are no more  Sample -> Frame, End
//! frame    distinct frames: where code lies, how it was found               Frame -> FrameKey
//! name     the name of code: from its runtime, symbols, export, offset      Site -> Names
//! method   the methods of language runtimes that code is in
//! symbols  names and facts of frames, as columns                            FrameSymbols
//! fold     which frames are left out                                        FrameKind -> Folded
//! hash_index  finds the things of a list by a hash
//! ```

pub mod cost;
mod fold;
mod frame;
mod hash_index;
mod method;
mod name;
mod symbols;
mod walk;

pub use fold::{FoldOptions, FoldOutcome, FoldState, FrameChoice, folded_name};
pub use frame::{FrameId, FrameKey, FrameTable, Interner, Placement};
pub(crate) use hash_index::{HashIndex, ThingHash, load_ahead, random_numbers};
pub use name::{ImageName, NameSources, Names, Site, image_name, name, offset_name, unnamed_function};
pub use symbols::{FrameFacts, FrameKind, FrameSymbols, MethodPlace, NameSource, NamedFrame, StrId, Strings};
pub use walk::{Assumed, StackEnd, StackWalker, StopReason, ThreadStack};
