//! Finds, opens and describes the threads of this process without enumerating the rest of the
//! system.

use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::null_mut;

use stk_schema::windows as layout;
use windows_sys::Win32::Foundation::{
    CloseHandle, DUPLICATE_SAME_ACCESS, DuplicateHandle, HANDLE, INVALID_HANDLE_VALUE, WAIT_OBJECT_0,
};
use windows_sys::Win32::System::Diagnostics::ToolHelp::{
    CreateToolhelp32Snapshot, TH32CS_SNAPTHREAD, THREADENTRY32, Thread32First, Thread32Next,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentProcessId, GetExitCodeThread, GetThreadTimes, OpenThread,
    WaitForSingleObject,
};

use crate::windows::system::api::{Status, SystemApi, unix_nanoseconds};
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::text::wtf8;

/// THREAD_SUSPEND_RESUME, THREAD_GET_CONTEXT, THREAD_QUERY_INFORMATION, SYNCHRONIZE.
const ACCESS: u32 = 0x0002 | 0x0008 | 0x0040 | 0x0010_0000;

/// ThreadBasicInformation.
const BASIC: u32 = 0;
/// ThreadQuerySetWin32StartAddress.
const START_ADDRESS: u32 = 9;
/// ThreadNameInformation (Windows 10 1607 and later, Wine).
const NAME: u32 = 38;
/// Bytes of a thread's name that are read, with the UNICODE_STRING before it.
const NAME_ROOM: usize = 16 + 2048;
/// Most handles that a wait takes (MAXIMUM_WAIT_OBJECTS).
pub(crate) const AT_ONCE: usize = 64;
/// More threads than any process has. Ends a walk that goes in circles.
const MAX_THREADS: usize = 65_536;

/// An open handle to a thread of this process.
pub(crate) struct ThreadHandle(HANDLE);

// SAFETY: a handle is a number, valid on every thread of the process.
unsafe impl Send for ThreadHandle {}
// SAFETY: as above.
unsafe impl Sync for ThreadHandle {}

impl ThreadHandle {
    /// The handle; it is open as long as this lives.
    pub(crate) fn raw(&self) -> HANDLE {
        self.0
    }

    /// Another handle to the same thread.
    pub(crate) fn duplicate(&self) -> Option<ThreadHandle> {
        let mut copy = null_mut();
        // SAFETY: the source is open, and the result is owned by the returned value.
        let ok = unsafe {
            let process = GetCurrentProcess();
            DuplicateHandle(process, self.0, process, &mut copy, 0, 0, DUPLICATE_SAME_ACCESS)
        };
        (ok != 0).then(|| ThreadHandle(copy))
    }

    /// Whether the thread has ended.
    pub(crate) fn ended(&self) -> bool {
        // SAFETY: the handle is open with SYNCHRONIZE; a time-out of 0 does not wait.
        unsafe { WaitForSingleObject(self.0, 0) == WAIT_OBJECT_0 }
    }

    /// Its exit code, once it has ended.
    pub(crate) fn exit_code(&self) -> u32 {
        let mut code = 0;
        // SAFETY: the handle is open with THREAD_QUERY_INFORMATION; the result has room.
        unsafe { GetExitCodeThread(self.0, &mut code) };
        code
    }

    /// Thread id and thread environment block. The error is the system's; 0 if the thread has no
    /// block.
    pub(crate) fn identity(&self, api: &SystemApi) -> Result<(u32, Teb), Status> {
        let info = self.basic(api)?;
        if info.teb.is_null() { Err(0) } else { Ok((info.thread as u32, Teb(info.teb))) }
    }

    fn basic(&self, api: &SystemApi) -> Result<BasicInformation, Status> {
        let mut info = BasicInformation {
            status: 0,
            teb: null_mut(),
            process: 0,
            thread: 0,
            affinity: 0,
            priorities: [0; 2],
        };
        // SAFETY: the buffer is a THREAD_BASIC_INFORMATION of that size.
        let status = unsafe {
            (api.query_thread)(
                self.0,
                BASIC,
                (&raw mut info).cast(),
                size_of::<BasicInformation>() as u32,
                null_mut(),
            )
        };
        if status < 0 { Err(status) } else { Ok(info) }
    }

    /// Win32 start address; 0 if unknown.
    pub(crate) fn start_address(&self, api: &SystemApi) -> u64 {
        let mut address = 0usize;
        // SAFETY: the buffer is one pointer.
        let status = unsafe {
            (api.query_thread)(
                self.0,
                START_ADDRESS,
                (&raw mut address).cast(),
                size_of::<usize>() as u32,
                null_mut(),
            )
        };
        if status >= 0 { address as u64 } else { 0 }
    }

    /// Its times, if they can be read.
    pub(crate) fn times(&self) -> Option<Times> {
        let mut times = [0u64; 4];
        let [created, exited, kernel, user] = times.each_mut().map(|time| core::ptr::from_mut(time).cast());
        // SAFETY: four FILETIMEs, each the size of a u64 with no stricter alignment.
        let ok = unsafe { GetThreadTimes(self.0, created, exited, kernel, user) } != 0;
        ok.then(|| Times {
            created: unix_nanoseconds(times[0]),
            exited: unix_nanoseconds(times[1]),
            cpu: times[2].wrapping_add(times[3]),
        })
    }

    /// Its description, WTF-8; empty if it has none, `None` if the system does not say.
    pub(crate) fn name(&self, api: &SystemApi) -> Option<Vec<u8>> {
        #[repr(C, align(8))]
        struct NameBuffer([u8; NAME_ROOM]);
        let mut room = NameBuffer([0; NAME_ROOM]);
        // SAFETY: the buffer has the length that is passed.
        let status = unsafe {
            (api.query_thread)(self.0, NAME, room.0.as_mut_ptr().cast(), NAME_ROOM as u32, null_mut())
        };
        if status < 0 {
            return None;
        }
        // UNICODE_STRING: length in bytes, then a pointer to the text, which follows in the same
        // buffer.
        let len = usize::from(u16::from_le_bytes([room.0[0], room.0[1]]));
        let text = room.0.get(2 * size_of::<usize>()..)?.get(..len)?;
        Some(wtf8(text.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]))))
    }
}

impl Drop for ThreadHandle {
    fn drop(&mut self) {
        // SAFETY: this owns the handle.
        unsafe { CloseHandle(self.0) };
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// When it was created, in nanoseconds since the Unix epoch; 0 if unknown.
    pub created: u64,
    /// When it ended, likewise; undefined before its end.
    pub exited: u64,
    /// CPU time so far, in units of 100 ns.
    pub cpu: u64,
}

#[cfg(target_pointer_width = "64")]
const STACK_LIMIT: usize = layout::TEB64_STACK_LIMIT;
#[cfg(target_pointer_width = "64")]
const STACK_BASE: usize = layout::TEB64_STACK_BASE;
#[cfg(target_pointer_width = "32")]
const STACK_LIMIT: usize = layout::TEB32_STACK_LIMIT;
#[cfg(target_pointer_width = "32")]
const STACK_BASE: usize = layout::TEB32_STACK_BASE;

/// A thread environment block. It stays mapped while the thread lives, hence while it is suspended.
#[derive(Clone, Copy)]
pub(crate) struct Teb(*const u8);

// SAFETY: an address; only `stack` reads through it, under its own conditions.
unsafe impl Send for Teb {}
// SAFETY: as above.
unsafe impl Sync for Teb {}

impl Teb {
    /// The calling thread's block.
    pub(crate) fn current() -> Teb {
        let teb;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: NT_TIB.Self.
        unsafe {
            core::arch::asm!("mov {}, gs:[0x30]", out(reg) teb, options(nostack, readonly, preserves_flags))
        };
        #[cfg(target_arch = "x86")]
        // SAFETY: NT_TIB.Self.
        unsafe {
            core::arch::asm!("mov {}, fs:[0x18]", out(reg) teb, options(nostack, readonly, preserves_flags))
        };
        #[cfg(target_arch = "aarch64")]
        // SAFETY: x18 holds the TEB on Windows.
        unsafe {
            core::arch::asm!("mov {}, x18", out(reg) teb, options(nostack, nomem, preserves_flags))
        };
        Teb(teb)
    }

    /// StackLimit and StackBase at this moment.
    ///
    /// # Safety
    /// The thread must be suspended or the calling one: the system unmaps the block when its thread
    /// ends.
    pub(crate) unsafe fn stack(&self) -> (usize, usize) {
        // SAFETY: both fields are in the block, which is mapped by the caller's promise; the thread
        // may change them, hence volatile.
        unsafe {
            (
                core::ptr::read_volatile(self.0.add(STACK_LIMIT).cast()),
                core::ptr::read_volatile(self.0.add(STACK_BASE).cast()),
            )
        }
    }

    /// StackBase of a thread that may end at any moment; `None` if the block is gone.
    pub(crate) fn stack_base(&self, memory: OwnMemory) -> Option<u64> {
        memory.pointer(self.0 as u64 + STACK_BASE as u64)
    }
}

/// THREAD_BASIC_INFORMATION.
#[repr(C)]
struct BasicInformation {
    status: usize,
    teb: *const u8,
    process: usize,
    thread: usize,
    affinity: usize,
    priorities: [i32; 2],
}

const _: () = {
    use core::mem::offset_of;
    use stk_schema::layout::NATIVE;
    assert!(offset_of!(BasicInformation, teb) == NATIVE.thread_teb);
    assert!(offset_of!(BasicInformation, thread) == NATIVE.thread_id);
    assert!(size_of::<BasicInformation>() == NATIVE.thread_size);
};

/// Calls `each` with every thread of this process; false if the system could not enumerate them.
pub(crate) fn enumerate(api: &SystemApi, mut each: impl FnMut(&ThreadHandle)) -> bool {
    let Some(next_thread) = api.next_thread else { return enumerate_system(each) };
    let mut previous: Option<ThreadHandle> = None;
    for _ in 0..MAX_THREADS {
        let mut next: *mut c_void = null_mut();
        let from = previous.as_ref().map_or(null_mut(), ThreadHandle::raw);
        // SAFETY: `from` is null or an open handle of the walk; the result is a handle that this
        // owns.
        if unsafe { next_thread(GetCurrentProcess(), from, ACCESS, 0, 0, &mut next) } < 0 {
            break;
        }
        let next = ThreadHandle(next);
        each(&next);
        previous = Some(next);
    }
    true
}

/// Opens the thread with this id, if it is alive and belongs to this process.
pub(crate) fn open_own(api: &SystemApi, tid: u32) -> Option<ThreadHandle> {
    let handle = open(tid)?;
    // SAFETY: no preconditions.
    let process = unsafe { GetCurrentProcessId() };
    handle.basic(api).is_ok_and(|info| info.process == process as usize).then_some(handle)
}

/// Whether one of these threads, at most [`AT_ONCE`], has ended or the system does not say.
pub(crate) fn any_ended(api: &SystemApi, threads: &[HANDLE]) -> bool {
    const WAIT_ANY: u32 = 1;
    const STATUS_TIMEOUT: Status = 0x102;
    let Some(wait) = api.wait_for_several else { return true };
    let now = 0i64;
    // SAFETY: so many open handles with SYNCHRONIZE; a time-out of 0 does not wait.
    let status = unsafe { wait(threads.len() as u32, threads.as_ptr(), WAIT_ANY, 0, &now) };
    status != STATUS_TIMEOUT
}

/// Opens the thread with this id if it is alive, whatever process it belongs to.
pub(crate) fn open(tid: u32) -> Option<ThreadHandle> {
    // SAFETY: no preconditions.
    let handle = unsafe { OpenThread(ACCESS, 0, tid) };
    (!handle.is_null()).then(|| ThreadHandle(handle))
}

/// For systems without NtGetNextThread: enumerates the whole system and filters.
fn enumerate_system(mut each: impl FnMut(&ThreadHandle)) -> bool {
    // SAFETY: plain calls on a snapshot handle that is closed at the end.
    unsafe {
        let snapshot = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
        if snapshot == INVALID_HANDLE_VALUE {
            return false;
        }
        let mut entry: THREADENTRY32 = core::mem::zeroed();
        entry.dwSize = size_of::<THREADENTRY32>() as u32;
        let mut more = Thread32First(snapshot, &mut entry) != 0;
        while more {
            if entry.th32OwnerProcessID == GetCurrentProcessId()
                && let Some(handle) = open(entry.th32ThreadID)
            {
                each(&handle);
            }
            more = Thread32Next(snapshot, &mut entry) != 0;
        }
        CloseHandle(snapshot);
    }
    true
}
