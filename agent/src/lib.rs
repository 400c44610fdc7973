//! agent.dll: records raw stacks and module events inside a Windows process into one `.stk` trace,
//! and does nothing clever: everything else happens offline.
//!
//! **What the host provides** (inject.exe, or any program that loads the DLL into itself;
//! `include/stk_agent.h`): a config (`stk_schema::control`) with an open output handle, a rate and
//! a UUID.
//!
//! **What it solves**: samples of all threads at that rate with registers, whole stacks and code
//! bytes; every load and unload of a module, with its identity and the tables that unwinding it
//! elsewhere needs; threads with their names. All of it without blocking the target, taking its
//! locks, using its heap, or taking it down if the agent fails.
//!
//! **The recorder's law**: one thread is suspended at a time, and while it is, its context and its
//! stack are copied and nothing else happens: no allocation, lock, loader call, I/O or table
//! lookup. What would make the target wait is dropped and counted instead. Loader callback and
//! DllMain only leave notes in preallocated places. A fault of the agent ends the recording, not
//! the target.
//!
//! Eight threads of its own, never sampled:
//! * the *sampler* suspends one thread at a time, captures it, and encodes what changed;
//! * two *spare samplers* wait: one takes over when the sampler is stuck with a thread that does
//!   not stop;
//! * the *tables thread* finds threads and modules and reads images;
//! * the *code thread* looks up dynamic code;
//! * the *writer* compresses and appends;
//! * the *watchdog* resumes a thread that stays suspended for 100 ms, or that has not stopped 1 s
//!   after it was asked to;
//! * the *runtimes thread*, asleep where there is no .NET runtime, asks one for the names of its
//!   methods.
//!
//! The README beside this crate lists every lock that is tried, and who resumes a suspended thread
//! when.
//!
//! **What it cannot do**
//! * If the process ends itself while the sampler holds the thread that does so, the system
//!   terminates the sampler and the watchdog, and nothing inside resumes that thread: the guard
//!   process does. A recording without a guard must be stopped before the exit.
//! * A thread that does not stop is not sampled. Up to three such threads at the same time cost a
//!   sampler each; with the third, sampling pauses until one of the calls returns.
//! * A thread that is terminated from outside by TerminateThread while it is suspended takes its
//!   stack away from under the copy.
//! * Cycle counts (Windows) move by what sampling itself costs. That cost is measured at the start;
//!   a thread that spent about as much since its last sample is left alone, and captured again when
//!   its count moves. Wine 8 has no cycle counts; there every thread is suspended in every pass,
//!   and on a loaded machine each waits for its turn to stop.
//! * `--check-walks` (x64 only) breaks the law on purpose: it holds the loader lock while it asks a
//!   thread to stop, and has the system's unwinder walk it, which may take locks. The watchdog
//!   resumes such a thread after 50 ms. For diagnosis, not for production.
//! * The sampler uses at most a quarter of one core: with more threads than fit, each is sampled
//!   less often (RATE_CHANGE; DROPPED, reason "duty limit").
//! * Passes that a late sampler skipped are counted as such (DROPPED, reason "late"), not as
//!   dropped samples.
//!
//! [`record`] decides what is recorded and is tested on any host; `windows` alone calls the system.
//! Elsewhere than on Windows the library holds [`record`] only, and exports nothing.
#![cfg_attr(all(windows, not(test)), no_std)]

extern crate alloc;

pub mod record;

#[cfg(windows)]
mod windows;
