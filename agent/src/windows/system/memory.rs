//! Reads the process's own memory with errors instead of faults.

use windows_sys::Win32::System::Threading::GetCurrentProcess;

use crate::record::image::Memory;
use crate::windows::system::api::SystemApi;

/// This process's memory through NtReadVirtualMemory. An unmapped address gives an error, not an
/// exception that the target's handlers would see.
#[derive(Clone, Copy)]
pub(crate) struct OwnMemory(pub &'static SystemApi);

impl Memory for OwnMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.read_some(address, into) == into.len()
    }
}

impl OwnMemory {
    /// Does the same as [`Memory::read`], but returns how many bytes from the start could be read.
    pub(crate) fn read_some(&self, address: u64, into: &mut [u8]) -> usize {
        let Ok(address) = usize::try_from(address) else { return 0 };
        let mut done = 0;
        // SAFETY: the system checks the source; the destination is a live mutable slice of that
        // length.
        let status = unsafe {
            (self.0.read_memory)(
                GetCurrentProcess(),
                address as *const _,
                into.as_mut_ptr().cast(),
                into.len(),
                &mut done,
            )
        };
        if status >= 0 { done.min(into.len()) } else { 0 }
    }

    /// Reads a pointer-sized value.
    pub(crate) fn pointer(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; size_of::<usize>()];
        self.read(address, &mut bytes).then(|| usize::from_le_bytes(bytes) as u64)
    }
}
