//! agent.dll: records raw stacks and module events inside a Windows process into one `.stk` trace, and does nothing
//! clever: everything else happens offline.
//!
//! **What the host provides** (inject.exe, or any program that loads the DLL into itself; `include/stk_agent.h`): a
//! config (`stk_schema::control`) with an open output handle, a rate and a UUID.
//!
//! **What it solves**: samples of all threads at that rate with registers, whole stacks and code bytes; every load and
//! unload of a module, with its identity and the tables that unwinding it elsewhere needs; threads with their names.
//! All of it without blocking the target, taking its locks, using its heap, or taking it down if the agent fails: the
//! recorder's law of DESIGN.md.
//!
//! [`record`] decides what is recorded and is tested on any host; `windows` alone calls the system. Elsewhere than on
//! Windows the library holds [`record`] only, and exports nothing.
#![cfg_attr(all(windows, not(test)), no_std)]

extern crate alloc;

pub mod record;

#[cfg(windows)]
mod windows;
