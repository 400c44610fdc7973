//! The index: the function, inline chain, file and line of each address of one image.
//!
//! A reader of symbol files adds records (`build`), which may overlap and contradict each other.
//! The result is a [`SymbolIndex`]: one run of bytes (`flat`), the same in memory and in the cache
//! file. An address is looked up in it (`lookup`) without decoding the rest. [`TextMap`] (`texts`)
//! keeps a value for each string, for readers of many addresses.

pub(crate) mod build;
mod disjoint;
mod flat;
pub(crate) mod layout;
mod lookup;
mod string_table;
mod symbol_index;
mod texts;

pub use self::flat::VERSION as FORMAT_VERSION;
pub use self::layout::{IndexError, IndexHeader, Origin, RecordKind};
pub use self::symbol_index::{Frame, Frames, Hit, Range, RawFrame, RawFrames, SymbolIndex, TextId};
pub use self::texts::TextMap;
