//! The data model of a `.stk` trace.
//!
//! This crate holds the types that every other crate of stk shares. It does no parsing and no I/O.
//!
//! * [`event`]: every event of a trace, as plain data ([`event::Event`]). How each is stored is
//!   `stk-format`'s business (`format/SPEC.md`).
//! * [`Ticks`]: times and spans on a recording's clock.
//! * [`registers`]: which registers a sample carries, per register set.
//! * [`pointers`]: which words of a stack are addresses.
//! * [`identity`]: identities of images: PE header fields, CodeView record, ELF build id, content
//!   hash.
//! * [`limits`]: upper bounds that writers obey and readers enforce.
//! * `table`: tables for people, with the feature of that name.
//! * [`tables`]: the tables of a Parquet dataset.
//! * [`control`]: the structs that inject.exe and agent.dll exchange in the target's memory.
//! * [`mailbox`]: the structs by which agent.dll asks inject.exe for names that it cannot get in
//!   the process.
//! * [`options`]: options of a recording that are texts, as inject.exe gives them to agent.dll.
//! * [`flight`]: requests for traces of a `--flight` recording.
//! * [`requests`]: the struct by which inject.exe asks agent.dll to mark, pause and resume.
//! * [`sddl`]: who may write a file or folder, from its security descriptor.
//! * [`symbol_path`]: the syntax of the debuggers' symbol path.
//! * [`bytes`]: little-endian numbers at an offset.
//! * [`windows`]: the layouts of Windows' own structures that more than one crate needs.
//!
//! `no_std` + `alloc`, because the agent is. Nothing here assumes Windows except [`windows`],
//! [`control`], [`mailbox`], [`options`] and [`requests`].
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

pub mod bytes;
pub mod control;
pub mod event;
pub mod flight;
pub mod guard;
pub mod identity;
pub mod layout;
pub mod limits;
pub mod mailbox;
pub mod options;
pub mod pointers;
pub mod registers;
pub mod requests;
pub mod sddl;
pub mod symbol_path;
#[cfg(feature = "table")]
pub mod table;
pub mod tables;
pub mod text;
mod ticks;
pub mod typed;
pub mod windows;

pub use ticks::Ticks;

/// Processor architecture of a recorded process, as stored in the file header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Arch {
    /// x86-64.
    X64 = 1,
    /// 64-bit ARM.
    Arm64 = 2,
    /// 32-bit x86.
    X86 = 3,
}

impl Arch {
    /// The architecture stored as `code`, or `None` if this version does not know it.
    pub const fn from_code(code: u8) -> Option<Arch> {
        match code {
            1 => Some(Arch::X64),
            2 => Some(Arch::Arm64),
            3 => Some(Arch::X86),
            _ => None,
        }
    }

    /// Size of a pointer and of a stack word, in bytes: 8 or 4.
    pub const fn pointer_size(self) -> usize {
        match self {
            Arch::X64 | Arch::Arm64 => 8,
            Arch::X86 => 4,
        }
    }

    /// The field's usual short name: `x64`, `arm64`, `x86`.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X64 => "x64",
            Arch::Arm64 => "arm64",
            Arch::X86 => "x86",
        }
    }
}

/// Operating system of a recorded process, as stored in the file header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Os {
    /// Windows, Wine included (the metadata key `wine` marks Wine).
    Windows = 1,
    /// Linux: reserved, no recorder writes it yet.
    Linux = 2,
}

impl Os {
    /// The operating system stored as `code`, or `None` if this version does not know it.
    pub const fn from_code(code: u8) -> Option<Os> {
        match code {
            1 => Some(Os::Windows),
            2 => Some(Os::Linux),
            _ => None,
        }
    }
}
