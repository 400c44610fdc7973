//! Bytes that other processes cannot predict, without loading any DLL into the target.

use alloc::vec::Vec;
use core::mem::transmute;

use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress};
use windows_sys::Win32::System::Threading::GetCurrentThreadId;
use windows_sys::{s, w};

use crate::windows::system::api::ticks;

/// A secret of this recording. It comes from the system's generator if the target has loaded one.
/// Otherwise it is only as good as the trace's UUID (which readers of the trace know), the clock
/// and the addresses of stack and heap together.
///
/// Takes the loader lock, so it must not be called while threads are being sampled.
pub(crate) fn secret(uuid: &[u8; 16]) -> Vec<u8> {
    let mut secret = alloc::vec![0u8; 32];
    fill(&mut secret);
    let here = [secret.as_ptr() as u64, (&raw const secret) as u64, ticks().0];
    secret.extend(here.iter().flat_map(|word| word.to_le_bytes()));
    // SAFETY: no preconditions.
    secret.extend(unsafe { GetCurrentThreadId() }.to_le_bytes());
    secret.extend(uuid);
    secret
}

/// Fills `bytes` from the system's generator, if one of its DLLs is loaded.
fn fill(bytes: &mut [u8]) {
    /// ProcessPrng (bcryptprimitives.dll): always succeeds.
    type Generator = unsafe extern "system" fn(*mut u8, usize) -> i32;
    /// RtlGenRandom, exported as SystemFunction036 (advapi32.dll).
    type Older = unsafe extern "system" fn(*mut u8, u32) -> u8;
    // SAFETY: the names are zero-terminated, the types are the documented signatures, and pointer
    // and length belong to the slice.
    unsafe {
        let module = GetModuleHandleW(w!("bcryptprimitives.dll"));
        if !module.is_null()
            && let Some(function) = GetProcAddress(module, s!("ProcessPrng"))
        {
            transmute::<unsafe extern "system" fn() -> isize, Generator>(function)(
                bytes.as_mut_ptr(),
                bytes.len(),
            );
            return;
        }
        let module = GetModuleHandleW(w!("advapi32.dll"));
        if !module.is_null()
            && let Some(function) = GetProcAddress(module, s!("SystemFunction036"))
        {
            transmute::<unsafe extern "system" fn() -> isize, Older>(function)(
                bytes.as_mut_ptr(),
                bytes.len() as u32,
            );
        }
    }
}
