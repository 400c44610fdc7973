//! agent.dll: records raw stacks and module events inside a Windows process into one `.stk` trace.
//! Everything else happens offline.
//!
//! **What the host provides** (inject.exe, or any program that loads the DLL into itself;
//! `include/stk_agent.h`): a config (`stk_schema::control`) with an open output handle, a rate and
//! a UUID.
//!
//! **What it solves**: it samples all threads at that rate, with registers, whole stacks and code
//! bytes. It records every load and unload of a module, with the module's identity and the tables
//! that unwinding it elsewhere needs, and all threads with their names. It does so without blocking
//! the target, taking its locks, using its heap, or taking it down if the agent fails.
//!
//! **The recorder's law**: one thread is suspended at a time. While it is, the sampler copies its
//! context and its stack and does nothing else: no allocation, lock, loader call, I/O or table
//! lookup. Anything that would make the target wait is dropped and counted instead. The loader
//! callback and DllMain only leave notes in preallocated memory. A fault of the agent ends the
//! recording, not the target.
//!
//! Eight threads of its own, never sampled:
//! * the *sampler* suspends one thread at a time, captures it, and encodes what changed;
//! * two *spare samplers* wait: one takes over when the sampler is stuck with a thread that does
//!   not stop;
//! * the *tables thread* finds threads and modules and reads images;
//! * the *code thread* looks up dynamic code, and reads the names of .NET's methods from memory;
//! * the *writer* compresses and appends;
//! * the *watchdog* resumes a thread that stays suspended for 100 ms, or that has not stopped 1 s
//!   after the request;
//! * the *runtimes thread* asks a .NET runtime for the names of its methods; without a runtime it
//!   sleeps.
//!
//! The README beside this crate lists every lock that the recorder tries, and which thread resumes
//! a suspended thread when.
//!
//! **What it cannot do**
//! * If a thread ends the process while the sampler holds it suspended, the system terminates the
//!   sampler and the watchdog, and nothing inside the process resumes that thread: the guard
//!   process does. A recording without a guard must be stopped before the exit.
//! * A thread that does not stop is not sampled. Each such thread occupies one sampler, up to three
//!   at the same time; with the third, sampling pauses until one of the calls returns.
//! * If TerminateThread ends a suspended thread from outside, its stack disappears during the copy.
//! * Cycle counts (Windows) include the cost of sampling itself. The recorder measures that cost at
//!   the start; it leaves alone a thread that spent about as much since its last sample, and
//!   captures it again when its count moves. Wine 8 has no cycle counts: there the sampler suspends
//!   every thread in every pass, and on a loaded machine each thread waits for its turn to stop.
//! * `--check-walks` (x64 only) breaks the law on purpose: it holds the loader lock while it asks a
//!   thread to stop, and lets the system's unwinder walk it, which may take locks. The watchdog
//!   resumes such a thread after 50 ms. For diagnosis, not for production.
//! * The sampler uses at most a quarter of one core. If there are too many threads for that, it
//!   samples each less often (RATE_CHANGE; DROPPED, reason "duty limit").
//! * Passes that a late sampler skipped are counted under DROPPED, reason "late", and not as
//!   dropped samples.
//!
//! [`record`] decides what is recorded and is tested on any host; only `windows` calls the system.
//! On other systems the library holds [`record`] only, and exports nothing.
//!
//! All of that is the feature `recorder`. Rust programs that use an agent.dll take the feature
//! `api` without it: [`Api`] has the agent's functions for programs.
#![cfg_attr(all(windows, feature = "recorder", not(test)), no_std)]

extern crate alloc;

#[cfg(feature = "api")]
mod api;
#[cfg(feature = "recorder")]
#[cfg_attr(not(windows), allow(dead_code, unused_imports, reason = "only `windows` uses it"))]
mod record;

#[cfg(all(windows, feature = "recorder"))]
mod windows;

#[cfg(feature = "fuzz")]
pub mod fuzz;

#[cfg(feature = "api")]
pub use api::{Api, Outcome};
