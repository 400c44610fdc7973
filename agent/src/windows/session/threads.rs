//! The recorder's own threads: made together or not at all, each with its role, the last one out clears up.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stk_schema::control::{STATE_RECORDING, StartResult};
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE};
use windows_sys::Win32::System::Threading::{CreateThread, GetCurrentThread, SetThreadPriority, Sleep};

use super::events::ENDED;
use super::{CURRENT, FINISHED, OCCUPIED, RUNNING, Session, VISITORS};
use crate::windows::state::{LAST_EXIT_CODE, STATUS};

/// Stack sizes of the recorder's threads: reserved, committed as used.
const THREAD_STACK: usize = 512 << 10;
/// CREATE_SUSPENDED.
const CREATE_SUSPENDED: u32 = 4;
/// STACK_SIZE_PARAM_IS_A_RESERVATION.
const STACK_IS_RESERVE: u32 = 0x0001_0000;
/// Tells threads that were made for a session that did not start to leave.
static ABANDONED: AtomicBool = AtomicBool::new(false);
/// Ids of the recorder's threads; 0 = none.
static OWN_THREADS: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];

/// Starts the threads; all or none of them.
pub(super) fn launch(session: Arc<Session>) -> Result<(), (StartResult, u32)> {
    // SAFETY: the event lives as long as the process.
    unsafe { windows_sys::Win32::System::Threading::ResetEvent(ENDED.load(Ordering::Acquire)) };
    let mut threads = Vec::new();
    let roles = [Role::Writer, Role::Watchdog, Role::Census, Role::Code, Role::Runtimes, Role::Sampler];
    for (index, role) in roles.into_iter().enumerate() {
        let seat = Box::into_raw(Box::new(Seat { role, session: session.clone() }));
        let mut tid = 0;
        // SAFETY: `entry` takes the seat; the thread is made suspended, so that none runs before all exist.
        let handle = unsafe {
            CreateThread(
                null(),
                THREAD_STACK,
                Some(entry),
                seat.cast(),
                CREATE_SUSPENDED | STACK_IS_RESERVE,
                &mut tid,
            )
        };
        if handle.is_null() {
            // SAFETY: no thread took the seat.
            drop(unsafe { Box::from_raw(seat) });
            // SAFETY: no preconditions.
            let error = unsafe { GetLastError() };
            // Those that exist find that the session is over before it began.
            session.sampler_done.store(true, Ordering::Release);
            ABANDONED.store(true, Ordering::Release);
            resume(threads);
            forget_own_threads();
            return Err((StartResult::NoThread, error));
        }
        if let Some(own) = OWN_THREADS.get(index) {
            own.store(tid, Ordering::Release);
        }
        threads.push(handle);
    }
    ABANDONED.store(false, Ordering::Release);
    STATUS.state.store(STATE_RECORDING, Ordering::Release);
    FINISHED.store(false, Ordering::Release);
    RUNNING.store(threads.len() as u32, Ordering::Release);
    CURRENT.store(Arc::as_ptr(&session).cast_mut(), Ordering::Release);
    resume(threads);
    Ok(())
}

fn resume(threads: Vec<HANDLE>) {
    for thread in threads {
        // SAFETY: handles from CreateThread, owned here.
        unsafe {
            windows_sys::Win32::System::Threading::ResumeThread(thread);
            CloseHandle(thread);
        }
    }
}

#[derive(Clone, Copy)]
enum Role {
    Writer,
    Watchdog,
    Census,
    Code,
    Runtimes,
    Sampler,
}

struct Seat {
    role: Role,
    session: Arc<Session>,
}

unsafe extern "system" fn entry(seat: *mut c_void) -> u32 {
    // SAFETY: `launch` made the box and gave it to this thread alone.
    let seat = unsafe { Box::from_raw(seat.cast::<Seat>()) };
    if ABANDONED.load(Ordering::Acquire) {
        return 0;
    }
    let session = &seat.session;
    match seat.role {
        Role::Writer => session.run_writer(),
        Role::Watchdog => session.run_watchdog(),
        Role::Census => session.run_census(),
        Role::Code => session.run_code(),
        Role::Runtimes => session.run_runtimes(),
        Role::Sampler => session.run_sampler(),
    }
    if RUNNING.fetch_sub(1, Ordering::AcqRel) == 1 {
        // The last one out: nobody may find the session any more, and those who did must have left.
        CURRENT.store(null_mut(), Ordering::Release);
        while VISITORS.load(Ordering::Acquire) != 0 {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        forget_own_threads();
        drop(seat);
        OCCUPIED.store(false, Ordering::Release);
    }
    // Where they are the last threads of the process, the last of their exit codes becomes its own.
    LAST_EXIT_CODE.load(Ordering::Relaxed)
}

fn forget_own_threads() {
    for own in &OWN_THREADS {
        own.store(0, Ordering::Release);
    }
}

/// Ids of the recorder's threads.
pub(super) fn own_threads() -> Vec<u32> {
    OWN_THREADS.iter().map(|tid| tid.load(Ordering::Acquire)).filter(|&tid| tid != 0).collect()
}

/// Sets the calling thread's priority.
pub(super) fn set_priority(priority: i32) {
    // SAFETY: the calling thread's pseudo handle.
    unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}
