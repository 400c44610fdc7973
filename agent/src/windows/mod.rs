//! Records this process. Only this part of the agent calls the system; it also holds the exports.
//!
//! There is one folder per thread of the recorder, under one name everywhere. Each folder says
//! which thread runs it, what that thread owns, what it gets and what it gives. In the list below,
//! each row uses only the rows above it, which tests/tests/host/architecture.rs checks.
//!
//! ```text
//! system    the system's functions, memory, threads, files and facts, for all threads
//! own_thread exports for the calling thread that need no recording
//! shared    state of all threads: signals, status, events, exclusive states
//! runtimes  the runtimes thread: asks .NET runtimes for names
//! sampler   the sampler and its spares: suspends, captures, encodes; nothing else suspends
//! tables    the tables thread: lists threads and modules, reads images
//! code      the code thread: looks up dynamic code
//! workers   the four threads above together
//! writer    the writer: compresses and appends; the end of the trace
//! watchdog  the watchdog: resumes a thread that is held too long
//! session   a recording from start to end, and its threads
//! ```

mod code;
mod own_thread;
mod runtimes;
mod sampler;
mod session;
mod shared;
mod system;
mod tables;
mod watchdog;
mod workers;
mod writer;

use core::ffi::c_void;

use stk_schema::control::{
    AgentConfig, AgentStatus, CONTROL_VERSION, FIRST_CONFIG_SIZE, FIRST_STATUS_SIZE, StartResult,
};
use system::own_module;
use windows_sys::Win32::System::SystemServices::{DLL_PROCESS_ATTACH, DLL_PROCESS_DETACH, DLL_THREAD_ATTACH};

/// The loader's entry point. It runs under the loader's lock, so nothing here waits.
#[unsafe(no_mangle)]
extern "system" fn DllMain(module: *mut c_void, reason: u32, reserved: *mut c_void) -> i32 {
    match reason {
        DLL_PROCESS_ATTACH => own_module::set_base(module),
        DLL_THREAD_ATTACH => session::thread_started(),
        // A null `reserved` means that the agent is unloaded. Its own reference prevents that while
        // it has work.
        DLL_PROCESS_DETACH if reserved.is_null() => session::unmapped(),
        DLL_PROCESS_DETACH => session::process_exit(),
        _ => {}
    }
    1
}

/// Export: starts a recording; see [`stk_schema::control::EXPORT_START`].
///
/// # Safety
/// `config` is null or points to as many bytes as its size says, readable and writable during the
/// call, as is the memory that it points to.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_agent_start(config: *mut AgentConfig) -> u32 {
    // SAFETY: the caller's promise; size and version come first and are checked before anything
    // else.
    let result = unsafe {
        if config.is_null()
            || (*config).version != CONTROL_VERSION
            || ((*config).size as usize) < FIRST_CONFIG_SIZE
        {
            StartResult::BadConfig
        } else {
            let mut copy = AgentConfig::BLANK;
            let known = ((*config).size as usize).min(size_of::<AgentConfig>());
            core::ptr::copy_nonoverlapping(config.cast::<u8>(), (&raw mut copy).cast::<u8>(), known);
            let result = session::start(&mut copy, own_module::base());
            (*config).status_address = copy.status_address;
            (*config).system_error = copy.system_error;
            result
        }
    };
    result as u32
}

/// Export: stops the recording and waits until the trace is finalised; see
/// [`stk_schema::control::EXPORT_STOP`].
#[unsafe(no_mangle)]
extern "system" fn stk_agent_stop(_unused: *mut c_void) -> u32 {
    if session::stop() { 0 } else { 1 }
}

/// Export: the agent leaves the process; see [`stk_schema::control::EXPORT_LEAVE`].
#[unsafe(no_mangle)]
extern "system" fn stk_agent_leave(step: usize) -> u32 {
    session::leave(step)
}

/// Export: copies the status; see [`stk_schema::control::EXPORT_STATUS`].
///
/// # Safety
/// `status` is null or points to as many bytes as its size says, writable during the call.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_agent_status(status: *mut AgentStatus) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        if status.is_null()
            || (*status).version != CONTROL_VERSION
            || ((*status).size as usize) < FIRST_STATUS_SIZE
        {
            return 1;
        }
        let mut copy = shared::state::STATUS.copy();
        copy.size = (*status).size.min(copy.size);
        let (from, to) = (core::ptr::from_ref(&copy).cast::<u8>(), status.cast::<u8>());
        core::ptr::copy_nonoverlapping(from, to, copy.size as usize);
    }
    0
}
