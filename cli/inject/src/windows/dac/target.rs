//! The process as a data access library sees it: ICLRDataTarget (clrdata.idl), read-only.
//!
//! The library may read memory and query what it reads. Functions that would write or access a
//! thread fail. The object lives as long as the process, so that a library that keeps a reference
//! does no harm. Only the thread that calls the library uses it.

use crate::dac::page_cache::PageCache;
use std::cell::RefCell;
use std::ffi::c_void;
use std::os::windows::io::{AsRawHandle, OwnedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::{E_FAIL, E_INVALIDARG, E_NOINTERFACE, E_NOTIMPL, E_POINTER, S_OK};
use windows_sys::Win32::System::Diagnostics::Debug::ReadProcessMemory;
use windows_sys::core::{GUID, HRESULT};

/// CLRDATA_ADDRESS: an address in 64 bits; those of 32-bit processes are sign-extended.
pub(super) fn clr_address(address: u64) -> u64 {
    if size_of::<usize>() == 4 { address as u32 as i32 as i64 as u64 } else { address }
}

/// An address from a CLRDATA_ADDRESS.
pub(super) fn address(clr_address: u64) -> u64 {
    clr_address as usize as u64
}

const IID_UNKNOWN: GUID = GUID::from_u128(0x00000000_0000_0000_c000_000000000046);
const IID_DATA_TARGET: GUID = GUID::from_u128(0x3e11ccee_d08b_43e5_af01_32717a64da03);

/// The object that the library gets.
#[repr(C)]
pub(super) struct DataTarget {
    vtable: *const Vtable,
    process: OwnedHandle,
    machine: u16,
    runtime: u64,
    /// File names by which the library may ask for the runtime's module, in lower case.
    runtime_names: Vec<String>,
    /// What was read since the library's cache was cleared last.
    pages: RefCell<PageCache>,
}

#[repr(C)]
struct Vtable {
    query_interface: unsafe extern "system" fn(*mut DataTarget, *const GUID, *mut *mut c_void) -> HRESULT,
    add_ref: unsafe extern "system" fn(*mut DataTarget) -> u32,
    release: unsafe extern "system" fn(*mut DataTarget) -> u32,
    get_machine_type: unsafe extern "system" fn(*mut DataTarget, *mut u32) -> HRESULT,
    get_pointer_size: unsafe extern "system" fn(*mut DataTarget, *mut u32) -> HRESULT,
    get_image_base: unsafe extern "system" fn(*mut DataTarget, *const u16, *mut u64) -> HRESULT,
    read_virtual: unsafe extern "system" fn(*mut DataTarget, u64, *mut u8, u32, *mut u32) -> HRESULT,
    write_virtual: unsafe extern "system" fn(*mut DataTarget, u64, *mut u8, u32, *mut u32) -> HRESULT,
    get_tls_value: unsafe extern "system" fn(*mut DataTarget, u32, u32, *mut u64) -> HRESULT,
    set_tls_value: unsafe extern "system" fn(*mut DataTarget, u32, u32, u64) -> HRESULT,
    get_current_thread_id: unsafe extern "system" fn(*mut DataTarget, *mut u32) -> HRESULT,
    get_thread_context: unsafe extern "system" fn(*mut DataTarget, u32, u32, u32, *mut u8) -> HRESULT,
    set_thread_context: unsafe extern "system" fn(*mut DataTarget, u32, u32, *mut u8) -> HRESULT,
    request: unsafe extern "system" fn(*mut DataTarget, u32, u32, *mut u8, u32, *mut u8) -> HRESULT,
}

static VTABLE: Vtable = Vtable {
    query_interface,
    add_ref: counted,
    release: counted,
    get_machine_type,
    get_pointer_size,
    get_image_base,
    read_virtual,
    write_virtual,
    get_tls_value,
    set_tls_value,
    get_current_thread_id,
    get_thread_context,
    set_thread_context,
    request,
};

impl DataTarget {
    /// A target that is never freed. `runtime_names` are the names by which the library may ask for
    /// the module at `runtime`.
    pub(super) fn leaked(
        process: OwnedHandle,
        machine: u16,
        runtime: u64,
        runtime_names: &[&str],
    ) -> &'static DataTarget {
        Box::leak(Box::new(DataTarget {
            vtable: &VTABLE,
            process,
            machine,
            runtime,
            runtime_names: runtime_names.iter().map(|name| name.to_lowercase()).collect(),
            pages: RefCell::default(),
        }))
    }

    /// Forgets what was read of the process, because it keeps running.
    pub(super) fn refresh(&self) {
        self.pages.borrow_mut().clear();
    }

    /// Reads the process's memory. Returns how many bytes were read.
    fn read(&self, from: u64, into: &mut [u8]) -> usize {
        let direct = |from: u64, into: &mut [u8]| {
            let mut read = 0;
            let source = ptr::without_provenance(from as usize);
            // SAFETY: the buffer has `into.len()` bytes, and the system checks the process's
            // memory.
            unsafe {
                let process = self.process.as_raw_handle();
                ReadProcessMemory(process, source, into.as_mut_ptr().cast(), into.len(), &mut read);
            }
            read
        };
        let mut pages = self.pages.borrow_mut();
        pages.read(from, into, |from, page| direct(from, page) == page.len())
    }
}

unsafe extern "system" fn query_interface(
    this: *mut DataTarget,
    iid: *const GUID,
    out: *mut *mut c_void,
) -> HRESULT {
    if iid.is_null() || out.is_null() {
        return E_POINTER;
    }
    // SAFETY: both were checked; the caller gives an id and a place for a pointer, as COM says.
    unsafe {
        let is = |known: &GUID| {
            let iid = &*iid;
            (iid.data1, iid.data2, iid.data3, iid.data4)
                == (known.data1, known.data2, known.data3, known.data4)
        };
        if is(&IID_UNKNOWN) || is(&IID_DATA_TARGET) {
            *out = this.cast();
            return S_OK;
        }
        *out = ptr::null_mut();
    }
    E_NOINTERFACE
}

/// The object is never freed, so references are not counted.
unsafe extern "system" fn counted(_: *mut DataTarget) -> u32 {
    1
}

unsafe extern "system" fn get_machine_type(this: *mut DataTarget, out: *mut u32) -> HRESULT {
    // SAFETY: `this` is an object of `leaked`; see `put`.
    unsafe { put(out, u32::from((*this).machine)) }
}

unsafe extern "system" fn get_pointer_size(_: *mut DataTarget, out: *mut u32) -> HRESULT {
    // SAFETY: see `put`.
    unsafe { put(out, size_of::<usize>() as u32) }
}

/// The library asks only for the runtime's own module.
unsafe extern "system" fn get_image_base(this: *mut DataTarget, name: *const u16, out: *mut u64) -> HRESULT {
    const LONGEST: usize = 260;
    if name.is_null() {
        return E_INVALIDARG;
    }
    let mut text = Vec::new();
    // SAFETY: the caller gives a zero-terminated text, of which no more than that is read; `this`
    // is an object of `leaked`.
    unsafe {
        while text.len() < LONGEST && *name.add(text.len()) != 0 {
            text.push(*name.add(text.len()));
        }
        let target = &*this;
        if !target.runtime_names.contains(&String::from_utf16_lossy(&text).to_lowercase()) {
            return E_FAIL;
        }
        put(out, clr_address(target.runtime))
    }
}

unsafe extern "system" fn read_virtual(
    this: *mut DataTarget,
    from: u64,
    into: *mut u8,
    len: u32,
    done: *mut u32,
) -> HRESULT {
    if into.is_null() {
        return E_POINTER;
    }
    // SAFETY: the caller's buffer has `len` bytes, `done` is null or writable, and `this` is an
    // object of `leaked`, which only this thread uses.
    let read = unsafe {
        let into = std::slice::from_raw_parts_mut(into, len as usize);
        let read = (*this).read(address(from), into);
        if !done.is_null() {
            // A partial read is valid: the library continues from its end.
            *done = read as u32;
        }
        read
    };
    if read == 0 && len != 0 { E_FAIL } else { S_OK }
}

unsafe extern "system" fn write_virtual(
    _: *mut DataTarget,
    _: u64,
    _: *mut u8,
    _: u32,
    done: *mut u32,
) -> HRESULT {
    // SAFETY: see `put`.
    unsafe { put(done, 0) };
    E_FAIL
}

unsafe extern "system" fn get_tls_value(_: *mut DataTarget, _: u32, _: u32, _: *mut u64) -> HRESULT {
    E_NOTIMPL
}

unsafe extern "system" fn set_tls_value(_: *mut DataTarget, _: u32, _: u32, _: u64) -> HRESULT {
    E_NOTIMPL
}

unsafe extern "system" fn get_current_thread_id(_: *mut DataTarget, _: *mut u32) -> HRESULT {
    E_NOTIMPL
}

unsafe extern "system" fn get_thread_context(
    _: *mut DataTarget,
    _: u32,
    _: u32,
    _: u32,
    _: *mut u8,
) -> HRESULT {
    E_NOTIMPL
}

unsafe extern "system" fn set_thread_context(_: *mut DataTarget, _: u32, _: u32, _: *mut u8) -> HRESULT {
    E_NOTIMPL
}

unsafe extern "system" fn request(
    _: *mut DataTarget,
    _: u32,
    _: u32,
    _: *mut u8,
    _: u32,
    _: *mut u8,
) -> HRESULT {
    E_NOTIMPL
}

/// Stores a result.
///
/// # Safety
/// `out` is null or a place for it.
unsafe fn put<T>(out: *mut T, value: T) -> HRESULT {
    if out.is_null() {
        return E_POINTER;
    }
    // SAFETY: by the caller's promise.
    unsafe { *out = value };
    S_OK
}
