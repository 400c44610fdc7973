//! The loaded agent, and its functions by name.

use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute_copy;
use core::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{FreeLibrary, HMODULE};
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleExW, GetProcAddress, LoadLibraryW};

type CaptureFn = unsafe extern "system" fn(u64) -> u32;
type BacktraceFn = unsafe extern "system" fn(*const c_void, *mut *mut c_void, u32, u32) -> u32;
type TextFn = unsafe extern "system" fn(*const c_char) -> u32;

/// Most bytes of a text that the agent may keep, with the zero behind it.
const TEXT: usize = 1024;

/// A reference of the agent's module.
#[derive(Debug)]
struct ModuleReference(HMODULE);

// SAFETY: a module's handle is its address, which is the same on every thread.
unsafe impl Send for ModuleReference {}
// SAFETY: as above.
unsafe impl Sync for ModuleReference {}

impl Drop for ModuleReference {
    fn drop(&mut self) {
        // SAFETY: the reference is this value's own.
        unsafe { FreeLibrary(self.0) };
    }
}

/// A loaded agent. Its functions stay mapped as long as this lives.
#[derive(Debug)]
pub(super) struct Loaded {
    capture: CaptureFn,
    backtrace: BacktraceFn,
    mark: TextFn,
    thread_name: TextFn,
    /// Last, since it keeps the functions mapped.
    _module: ModuleReference,
}

impl Loaded {
    pub(super) fn load(path: &str) -> Option<Loaded> {
        let path: Vec<u16> = path.encode_utf16().chain([0]).collect();
        // SAFETY: the path is zero-terminated.
        Loaded::of(unsafe { LoadLibraryW(path.as_ptr()) })
    }

    pub(super) fn find() -> Option<Loaded> {
        ["agent.dll", "agent32.dll"].iter().find_map(|name| {
            let name: Vec<u16> = name.encode_utf16().chain([0]).collect();
            let mut module = null_mut();
            // SAFETY: the name is zero-terminated and the result has room. Without flags, the call
            // adds a reference.
            let found = unsafe { GetModuleHandleExW(0, name.as_ptr(), &mut module) } != 0;
            found.then(|| Loaded::of(module)).flatten()
        })
    }

    /// Takes over a reference; `None` for null, and for a module that is no agent.
    fn of(module: HMODULE) -> Option<Loaded> {
        if module.is_null() {
            return None;
        }
        let module = ModuleReference(module);
        // SAFETY: agent/include/stk_agent.h declares these types for these names, and of the other
        // modules of that name none has all of them.
        unsafe {
            Some(Loaded {
                capture: function(&module, c"stk_capture")?,
                backtrace: function(&module, c"stk_backtrace")?,
                mark: function(&module, c"stk_mark")?,
                thread_name: function(&module, c"stk_thread_name")?,
                _module: module,
            })
        }
    }

    #[inline]
    pub(super) fn capture(&self, tag: u64) -> u32 {
        // SAFETY: the function is mapped; it takes any tag.
        unsafe { (self.capture)(tag) }
    }

    #[inline(always)]
    pub(super) fn backtrace(&self, pcs: &mut [usize], skip: u32) -> usize {
        let max = u32::try_from(pcs.len()).unwrap_or(u32::MAX);
        // SAFETY: the function is mapped, and the array has room for so many addresses, which are
        // as large as a pointer.
        unsafe { (self.backtrace)(null(), pcs.as_mut_ptr().cast(), max, skip) as usize }
    }

    pub(super) fn mark(&self, text: &str) -> u32 {
        // SAFETY: the function is mapped, and the text is zero-terminated.
        terminated(text, |text| unsafe { (self.mark)(text) })
    }

    pub(super) fn thread_name(&self, text: &str) -> u32 {
        // SAFETY: the function is mapped, and the text is zero-terminated.
        terminated(text, |text| unsafe { (self.thread_name)(text) })
    }
}

/// A function of the agent.
///
/// # Safety
/// `T` must be its type.
unsafe fn function<T: Copy>(module: &ModuleReference, name: &CStr) -> Option<T> {
    const { assert!(size_of::<T>() == size_of::<usize>()) };
    // SAFETY: the name is zero-terminated.
    let found = unsafe { GetProcAddress(module.0, name.as_ptr().cast()) }?;
    // SAFETY: the sizes are equal, and the caller names the function's type.
    Some(unsafe { transmute_copy(&found) })
}

/// Calls `work` with the text and a zero behind it, without the heap. A text that does not fit is
/// cut between two characters.
fn terminated(text: &str, work: impl FnOnce(*const c_char) -> u32) -> u32 {
    let mut room = [0u8; TEXT];
    let mut len = text.len().min(TEXT - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    if let (Some(to), Some(from)) = (room.get_mut(..len), text.as_bytes().get(..len)) {
        to.copy_from_slice(from);
    }
    work(room.as_ptr().cast())
}
