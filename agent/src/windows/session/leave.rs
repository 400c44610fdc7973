//! The agent leaves the process: takes back what it has registered with the system, and gives the
//! host its references of the module. `inject stop --unload` frees them on a thread that begins in
//! kernel32, when no thread of the process is in the agent.
//!
//! What calls the agent, and why it is over: the loader's notifications and DllMain run under the
//! loader's lock, which taking them back, or unmapping, waits for. The recorder's own threads have
//! ended: their handles say so. The exports' callers hold a reference of their own, or were seen
//! ([`own_module::is_used`]). Of the exception handler the system only says that no new thread will
//! enter it; the host looks where each thread is ([`LEAVE_WATCH`]).

use core::sync::atomic::Ordering;

use stk_schema::control::{
    LEAVE_FAILED, LEAVE_HANDED_OVER, LEAVE_NOTIFIED, LEAVE_PREPARE, LEAVE_READY, LEAVE_RECORDING,
    LEAVE_THREADS, LEAVE_USED, LEAVE_WATCH, StartResult,
};

use super::{OCCUPIED, begin, threads, triggers};
use crate::windows::system::api::api;
use crate::windows::system::{own_module, panic};
use crate::windows::tables::loader;

/// Prepares to leave, or hands over the references, as [`stk_schema::control::EXPORT_LEAVE`] says.
/// Runs on a thread of the host.
pub(in crate::windows) fn leave(step: usize) -> u32 {
    if panic::happened() {
        return LEAVE_FAILED;
    }
    match begin::occupy() {
        Ok(()) => {}
        Err(StartResult::AlreadyRecording) => return LEAVE_RECORDING,
        Err(_) => return LEAVE_THREADS,
    }
    // No recording begins until this is over.
    let result = if step == LEAVE_PREPARE { prepare() } else { hand_over() };
    OCCUPIED.store(false, Ordering::Release);
    result
}

fn prepare() -> u32 {
    if own_module::is_used() {
        return LEAVE_USED;
    }
    if threads::has_strays() || !threads::have_ended(begin::LEAVE_MS) {
        return LEAVE_THREADS;
    }
    if !api().is_none_or(loader::unregister) {
        return LEAVE_NOTIFIED;
    }
    if triggers::had_handler() { LEAVE_WATCH } else { LEAVE_READY }
}

/// A recording that was made since [`prepare`] has registered anew: then nothing is handed over.
fn hand_over() -> u32 {
    if own_module::is_used() {
        return LEAVE_USED;
    }
    if loader::is_registered() || !threads::have_ended(0) {
        return LEAVE_RECORDING;
    }
    LEAVE_HANDED_OVER + own_module::take_references()
}
