//! Queries this process's pages.

use core::mem::zeroed;

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEMORY_BASIC_INFORMATION, PAGE_GUARD, PAGE_NOACCESS, VirtualQuery,
};

/// Whether the pages can be read without a side effect: reading a guard page removes its guard.
pub(crate) fn is_readable(info: &MEMORY_BASIC_INFORMATION) -> bool {
    info.State == MEM_COMMIT && info.Protect & (PAGE_GUARD | PAGE_NOACCESS) == 0
}

/// The system's information on the pages around `address`.
pub(crate) fn query(address: u64) -> Option<MEMORY_BASIC_INFORMATION> {
    // SAFETY: plain data; the query only writes it.
    let mut info: MEMORY_BASIC_INFORMATION = unsafe { zeroed() };
    // SAFETY: the address is only looked up, not read.
    let known = unsafe { VirtualQuery(address as usize as *const _, &mut info, size_of_val(&info)) } != 0;
    known.then_some(info)
}
