//! Loads agent.dll into inject's own process, to see whether this system lets it and whether it is
//! of this version.

use crate::doctor::{Fact, Verdict};
use crate::windows::agent::AgentFile;
use crate::windows::system::{Procedure, wide};
use std::mem::{transmute, zeroed};
use std::ptr;
use stk_schema::control::{AgentStatus, CONTROL_VERSION};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_WITH_ALTERED_SEARCH_PATH, LoadLibraryExW,
};
use windows_sys::s;

const GROUP: &str = "agent";

/// Loads the agent; it stays loaded.
pub(super) fn check(agent: &AgentFile) -> Vec<Fact> {
    let failed = |why: String| vec![Fact::ok(GROUP, "loaded", false).but(Verdict::Bad, why)];
    if let Err(failure) = agent.check_exports() {
        return failed(failure.to_string());
    }
    let name = wide(agent.path.as_os_str());
    // SAFETY: the path is absolute and zero-terminated.
    let module = unsafe { LoadLibraryExW(name.as_ptr(), ptr::null_mut(), LOAD_WITH_ALTERED_SEARCH_PATH) };
    if module.is_null() {
        let error = std::io::Error::last_os_error();
        return failed(format!(
            "agent.dll cannot be loaded, not even into inject ({error}): a code integrity policy or security software blocks it \
             (event log Microsoft-Windows-CodeIntegrity/Operational, events 3033 and 3077)"
        ));
    }
    // SAFETY: the module is loaded, the name zero-terminated.
    let status = unsafe { GetProcAddress(module, s!("stk_agent_status")) };
    vec![
        Fact::ok(GROUP, "loaded", agent.path.display().to_string()),
        Fact::check(
            GROUP,
            "version",
            CONTROL_VERSION,
            status.is_some_and(is_of_this_version),
            "agent.dll is of another stk version than inject.exe",
        ),
    ]
}

/// Whether the agent's `stk_agent_status` takes this inject's version of the control block.
fn is_of_this_version(function: Procedure) -> bool {
    type Status = unsafe extern "system" fn(*mut AgentStatus) -> u32;
    // SAFETY: all zeros are a valid status.
    let mut status: AgentStatus = unsafe { zeroed() };
    status.size = size_of::<AgentStatus>() as u32;
    status.version = CONTROL_VERSION;
    // SAFETY: control.rs declares the export so; the struct has the size that it gives.
    unsafe { transmute::<Procedure, Status>(function)(&mut status) == 0 }
}
