//! What an index consists of, as readers of symbol files add it and as it is stored.

use thiserror::Error;

/// The kind of file that an index was built from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum Origin {
    Pdb = 0,
    /// DWARF sections of an image, or Go's table of functions.
    Dwarf = 1,
    /// The COFF symbol table of an image.
    Coff = 2,
    /// The export directory of an image.
    Exports = 3,
}

impl Origin {
    pub(super) fn from_u32(value: u32) -> Option<Origin> {
        [Origin::Pdb, Origin::Dwarf, Origin::Coff, Origin::Exports].get(value as usize).copied()
    }
}

/// Identity of the file that an index was built from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexHeader {
    /// GUID of the PDB, zero for an image.
    pub guid: [u8; 16],
    /// Age of the PDB by its DBI stream, zero for an image.
    pub age: u32,
    /// COFF machine number.
    pub machine: u16,
    /// TimeDateStamp of the image, zero for a PDB.
    pub time_date_stamp: u32,
    /// SizeOfImage of the image, zero for a PDB.
    pub size_of_image: u32,
    /// The kind of the file.
    pub origin: Origin,
    /// Parts of the file (object files, line blocks) that were damaged and left out.
    pub damaged_parts: u32,
}

/// Why an index cannot be used. A cache then builds it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not an index at all.
    #[error("is not a symbol index")]
    NotAnIndex,
    /// Written by another version of `stk`.
    #[error("is a symbol index of another version")]
    OtherVersion,
    /// Bytes do not match their hash or are invalid.
    #[error("is a damaged symbol index ({0})")]
    Damaged(&'static str),
    /// More than 2 GiB of names or 4 G rows.
    #[error("holds more symbols than an index can")]
    TooLarge,
}

/// No string, no node, no parent.
pub(crate) const NONE: u32 = u32::MAX;

/// The kind of the record that gave a range its name. Lower kinds win where ranges overlap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A procedure record (S_GPROC32, S_LPROC32), a DWARF subprogram.
    Procedure = 0,
    /// Code of a procedure that lies apart from it (S_SEPCODE).
    SeparatedCode = 1,
    /// A thunk (S_THUNK32) or incremental-link thunk (S_TRAMPOLINE).
    Thunk = 2,
    /// A public symbol (S_PUB32), with no size of its own.
    Public = 3,
    /// An entry of the image's COFF symbol table, with no size of its own.
    CoffSymbol = 4,
    /// An exported name, with no size of its own.
    Export = 5,
}

impl RecordKind {
    /// The kind that is stored as this number.
    pub(crate) fn from_u8(value: u8) -> Option<RecordKind> {
        use RecordKind::*;
        [Procedure, SeparatedCode, Thunk, Public, CoffSymbol, Export].get(usize::from(value)).copied()
    }
}

/// A string in the builder's table, by its number.
pub(crate) type StringId = u32;

/// A line row: addresses `start..end` come from `line` of `file`. Line 0 means none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRow {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) file: StringId,
    pub(crate) line: u32,
}

/// An inline site of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineSite {
    /// Index of the site that it is inlined into, below its own; [`NONE`] for the function itself.
    pub(crate) parent: u32,
    /// Name of the inlined function.
    pub(crate) name: StringId,
    /// File of the inlined function, for addresses without a row of their own.
    pub(crate) file: StringId,
    /// Line of the call, if the symbol file states it separately from line rows (DWARF); else 0.
    pub(crate) call_line: u32,
    /// File of the call, if stated in the same way; else [`NONE`].
    pub(crate) call_file: StringId,
}

/// One row of an inline site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InlineRow {
    pub(crate) site: u32,
    pub(crate) row: LineRow,
}

/// A function as the symbol file describes it.
pub(crate) struct FunctionRecord<'a> {
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) name: StringId,
    pub(crate) kind: RecordKind,
    /// The function's own rows, sorted by start; those outside the function are ignored.
    pub(crate) lines: &'a [LineRow],
    pub(crate) sites: &'a [InlineSite],
    pub(crate) inlined: &'a [InlineRow],
}

/// A range of code with the rows that describe it.
#[derive(Clone, Copy)]
pub(super) struct CodeSpan {
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) name: StringId,
    pub(super) kind: RecordKind,
    pub(super) first_row: u32,
    pub(super) row_count: u32,
}

/// The node and the line of the code from `start` on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) start: u32,
    pub(super) node: u32,
    pub(super) line: u32,
}

/// One frame of a chain; `parent` is the frame that it is inlined into.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChainNode {
    pub(super) name: StringId,
    pub(super) file: StringId,
    pub(super) parent: u32,
    /// With a parent: the line of the call in it. Without one: the index of the span.
    pub(super) extra: u32,
}
