//! The agent's own module: where it lies, what keeps it mapped, and whether the program uses it.

use core::ffi::c_void;
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::LibraryLoader::{GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GetModuleHandleExW};

/// Load address.
static BASE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// Whether the agent holds a reference of its module.
static HELD: AtomicBool = AtomicBool::new(false);
/// References by LoadLibrary that hosts left to the agent.
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// Whether the program itself has called the agent.
static USED: AtomicBool = AtomicBool::new(false);

/// Notes where the agent is mapped.
pub(crate) fn set_base(base: HANDLE) {
    BASE.store(base, Ordering::Release);
}

/// Where the agent is mapped.
pub(crate) fn base() -> HANDLE {
    BASE.load(Ordering::Acquire)
}

/// The addresses of the agent's image.
pub(crate) fn image() -> Range<usize> {
    let base = base() as usize;
    if base == 0 {
        return 0..0;
    }
    // SAFETY: the agent's own headers, which are mapped: IMAGE_DOS_HEADER.e_lfanew, then
    // SizeOfImage in the optional header.
    let size = unsafe {
        let nt = base + ((base + 0x3c) as *const u32).read_unaligned() as usize;
        ((nt + 24 + 56) as *const u32).read_unaligned()
    };
    base..base + size as usize
}

/// Keeps the agent mapped, because the loader calls it and its threads run in it. It is no pin, so
/// that the agent can leave.
pub(crate) fn hold() {
    if HELD.swap(true, Ordering::AcqRel) {
        return;
    }
    let mut module = null_mut();
    // SAFETY: an address inside the agent stands for its name. The reference that this adds is
    // handed over by `take_references`.
    let held = unsafe {
        GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, base().cast(), &mut module) != 0
    };
    HELD.store(held, Ordering::Release);
}

/// Notes that a host leaves the reference of its LoadLibrary to the agent.
pub(crate) fn take_hosts_reference() {
    GIVEN.fetch_add(1, Ordering::AcqRel);
}

/// Takes the number of references that the agent has. The caller owns them from now on.
pub(crate) fn take_references() -> u32 {
    u32::from(HELD.swap(false, Ordering::AcqRel)) + GIVEN.swap(0, Ordering::AcqRel)
}

/// Notes that the program has called one of the functions for programs.
pub(crate) fn note_use() {
    if !USED.load(Ordering::Relaxed) {
        USED.store(true, Ordering::Release);
    }
}

/// Whether the program has called one of the functions for programs.
pub(crate) fn is_used() -> bool {
    USED.load(Ordering::Acquire)
}
