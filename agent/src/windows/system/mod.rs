//! System calls for every thread of the recorder: functions, memory, threads, files, facts.
//!
//! No thread runs this folder alone. Its items own at most a handle, and know nothing of a
//! recording. While a thread is suspended (the law in `sampler`), the sampler uses it only to read:
//! memory (`memory`), the owners of locks (`peb`), the thread's block (`thread::Teb::stack`) and
//! its `context`. `api` was looked up when the recording started.
//!
//! ```text
//! api      functions of the system by name; ticks and the time
//! clock    the system's clock, and its sleeps
//! memory   reads with errors instead of faults
//! pages    queries of pages
//! peb      the process's block: modules, owners of its locks
//! thread   threads of the process, their handles and blocks
//! context  registers of a CONTEXT
//! backtrace the calling thread's own stack
//! host     facts about machine and process
//! files    the trace, and the folder of shared tables
//! heap     the recorder's own heap
//! panic    handles a panic of the recorder
//! no_crt   names that compiled code expects of a C runtime, which the agent does without
//! landing  a call that a panic or a fault can leave
//! own_module the agent's module: its addresses, its references, its users
//! random   bytes that other processes cannot predict
//! text     UTF-16: counted strings, conversion to WTF-8
//! ```

pub(super) mod api;
pub(super) mod backtrace;
pub(super) mod clock;
pub(super) mod context;
pub(super) mod files;
pub(super) mod heap;
pub(super) mod host;
pub(super) mod landing;
pub(super) mod memory;
mod no_crt;
pub(super) mod own_module;
pub(super) mod pages;
pub(super) mod panic;
pub(super) mod peb;
pub(super) mod random;
pub(super) mod text;
pub(super) mod thread;
