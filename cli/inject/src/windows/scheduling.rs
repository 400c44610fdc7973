//! Asks the system how it schedules a process.

use super::system::{Procedure, kernel32};
use crate::doctor::scheduling::{Scheduling, Throttling};
use std::mem::transmute;
use std::os::windows::io::{AsRawHandle as _, BorrowedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{GetProcessAffinityMask, GetProcessPriorityBoost};
use windows_sys::core::BOOL;

/// What is known of the process; the handle has the right to query it.
pub(crate) fn of(process: BorrowedHandle) -> Scheduling {
    let process = process.as_raw_handle();
    let (mut own, mut system, mut off) = (0, 0, 0);
    // SAFETY: the handle is open; each result has room.
    let (bound, boosts) = unsafe {
        (
            GetProcessAffinityMask(process, &mut own, &mut system) != 0,
            GetProcessPriorityBoost(process, &mut off) != 0,
        )
    };
    Scheduling {
        throttling: throttling(process),
        affinity: bound.then_some((own as u64, system as u64)),
        cpu_sets: cpu_sets(process),
        boosts: boosts.then_some(off == 0),
    }
}

fn throttling(process: HANDLE) -> Option<Throttling> {
    type Function = unsafe extern "system" fn(HANDLE, i32, *mut u32, u32) -> BOOL;
    /// ProcessPowerThrottling.
    const CLASS: i32 = 4;
    let function = kernel32(c"GetProcessInformation")?;
    // PROCESS_POWER_THROTTLING_STATE: version, mask, state.
    let mut words = [1u32, 0, 0];
    // SAFETY: this is the documented signature; the struct has the size that is passed.
    let known = unsafe {
        let function = transmute::<Procedure, Function>(function);
        function(process, CLASS, words.as_mut_ptr(), size_of_val(&words) as u32)
    };
    (known != 0).then_some(Throttling { control: words[1], state: words[2] })
}

fn cpu_sets(process: HANDLE) -> Option<Vec<u32>> {
    type Function = unsafe extern "system" fn(HANDLE, *mut u32, u32, *mut u32) -> BOOL;
    let function = kernel32(c"GetProcessDefaultCpuSets")?;
    // SAFETY: this is the documented signature.
    let function = unsafe { transmute::<Procedure, Function>(function) };
    let mut needed = 0;
    // SAFETY: no room is passed; the number of ids has some.
    if unsafe { function(process, ptr::null_mut(), 0, &mut needed) } != 0 {
        return Some(Vec::new());
    }
    let mut ids = vec![0; (needed as usize).min(4096)];
    // SAFETY: pointer and number are those of the vector.
    let known = unsafe { function(process, ids.as_mut_ptr(), ids.len() as u32, &mut needed) };
    ids.truncate(needed as usize);
    (known != 0).then_some(ids)
}
