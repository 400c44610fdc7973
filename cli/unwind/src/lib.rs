//! Unwinds Windows stacks (x64, arm64, x86) from captured bytes alone: on any operating system,
//! with no debugger library and no live process. Every guess is marked as one.
//!
//! # What you provide
//!
//! - A [`Sample`]: the registers of a thread, the bytes of its stack from the stack pointer up,
//!   and, if you have them, the stack's base and some code bytes at the instruction pointer.
//! - For each image an [`ImageTables`]: its bytes by RVA as far as you know them (at least `.pdata`
//!   and the unwind info that it points to; code too, if it shall recognise epilogues of the
//!   innermost frame without recorded code bytes), where its exception directory lies, and which of
//!   its functions start threads. For x86, the FrameData and FPO records of its PDB
//!   ([`X86Tables`](x86::X86Tables)).
//! - A [`Modules`]: which image is loaded where at the moment of the sample.
//!
//! # What it solves
//!
//! A [`Walker`] returns the frames, innermost first, each with its [`Trust`] (how it was found),
//! and a [`Stop`] (why the walk ended). Only [`Stop::ThreadStart`] says that the stack is complete:
//! the last frames are the system's thread-start functions near the stack's base.
//!
//! - x64: UNWIND_INFO versions 1 and 2, with prologues by offset and epilogues by following the
//!   code.
//! - arm64: packed and full `.xdata`, prologues and epilogues by counting unwind codes.
//! - x86: the code itself, the PDB's FrameData and FPO, GCInfo of .NET Core 2 and 3, chained frame
//!   pointers.
//!
//! [`explain()`] says in words which record describes a frame and by which rule its caller was
//! found.
//!
//! The data may come from an image file, a recorded trace or a live process: the crate reads only
//! what you provide, and allocates nothing per frame. Wrong, cyclic or hostile tables and stacks
//! end a walk with a reason.
//!
//! # Example
//!
//! ```
//! use stk_unwind::{
//!     Arch, ImageTables, LoadedModule, ModuleId, Modules, Registers, Sample, Stop, Trust,
//!     WalkOptions, Walker, x64,
//! };
//!
//! struct OneModule(ImageTables);
//! impl Modules for OneModule {
//!     fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
//!         (0x1_4000_0000..0x1_4000_3000).contains(&address).then_some(LoadedModule {
//!             module: ModuleId(0),
//!             base: 0x1_4000_0000,
//!             image: &self.0,
//!             image_key: 0,
//!         })
//!     }
//! }
//!
//! // One function at RVA 0x1000: `sub rsp,28h; …; add rsp,28h; ret`, its RUNTIME_FUNCTION and
//! // its UNWIND_INFO.
//! let record = [0x1000u32, 0x1010, 0x2010];
//! let record: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
//! let image = ImageTables::new(Arch::X64, 0x3000)
//!     .range(0x2000, record)
//!     .range(0x2010, vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42])
//!     .exception_directory(0x2000, 12)
//!     .build();
//!
//! let mut stack = vec![0u8; 0x30];
//! stack[0x28..].copy_from_slice(&0x1_4000_1008u64.to_le_bytes());
//! let registers = x64::X64Registers { ip: 0x1_4000_1008, gpr: [0x7000; 16] };
//! let sample = Sample {
//!     registers: &Registers::X64(registers),
//!     stack: &stack,
//!     stack_start: 0x7000,
//!     stack_base: Some(0x7030),
//!     truncated: false,
//!     code_at_ip: None,
//! };
//! let mut frames = Vec::new();
//! let stop = Walker::new(WalkOptions::default()).walk(&OneModule(image), &sample, &mut frames);
//! assert_eq!(frames[1].address, 0x1_4000_1008);
//! assert_eq!(frames[1].trust, Trust::UnwindInfoNoCode);
//! assert_eq!(stop, Stop::EndOfStack);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arm64;
mod cache;
mod engine;
mod explain;
mod explanation;
mod facts;
mod flow;
mod frame;
mod frame_facts;
mod history;
mod image;
mod input;
mod memory;
mod registers;
mod walk;
pub mod x64;
pub mod x86;

pub use explain::explain;
pub use explanation::Explanation;
pub use facts::facts;
pub use frame::{Frame, Stop, StopKind, Trust};
pub use frame_facts::FrameFacts;
pub use history::History;
pub use image::{Arch, ImageTables, ImageTablesBuilder, SharedBytes};
pub use input::{LoadedModule, ModuleId, Modules, Sample, WalkOptions};
pub use registers::Registers;
pub use walk::Walker;
