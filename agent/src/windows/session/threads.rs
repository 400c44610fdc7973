//! The recorder's own threads. All of them start or none does; the last one to end cleans up.
//!
//! A sampler that is stuck in a system call can be deposed. It then ends in place and does not
//! return through the frames above that call, because its successor uses what they refer to.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use stk_schema::control::{RECORDER_THREADS, STATE_IDLE, STATE_RECORDING, StartResult};
use stk_schema::guard::SAMPLERS;
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    CreateThread, ExitThread, GetCurrentThreadId, ResumeThread, Sleep, TerminateThread, WaitForSingleObject,
};

use super::{CURRENT, OCCUPIED, RUNNING, Session, VISITORS};
use crate::windows::sampler::suspend::{SUSPENSIONS, System};
use crate::windows::shared::events::{ENDED, wake_all};
use crate::windows::shared::state::{FINISHED, LAST_EXIT_CODE, STATUS, WatchdogCause, stop_for};
use crate::windows::system::api::{SystemApi, api, ticks};
use crate::windows::system::landing;

/// Stack size of each thread of the recorder: reserved, committed as used.
const THREAD_STACK: usize = 512 << 10;
/// CREATE_SUSPENDED.
const CREATE_SUSPENDED: u32 = 4;
/// STACK_SIZE_PARAM_IS_A_RESERVATION.
const STACK_IS_RESERVE: u32 = 0x0001_0000;
/// Makes the threads of a session that failed to start end at once.
static ABANDONED: AtomicBool = AtomicBool::new(false);
/// The recorder's threads, in the order of [`RECORDER_THREADS`]. The samplers come last: slot 0
/// samples, the others are spare.
const ROLES: [Role; 8] = [
    Role::Writer,
    Role::Watchdog,
    Role::Tables,
    Role::Code,
    Role::Runtimes,
    Role::Sampler(1),
    Role::Sampler(2),
    Role::Sampler(0),
];
const _: () = assert!(ROLES.len() == RECORDER_THREADS.len());
/// Ids of the recorder's threads, in the order of [`ROLES`]; 0 = none.
static OWN_THREADS: [AtomicU32; ROLES.len()] = [const { AtomicU32::new(0) }; ROLES.len()];
/// Handles of the threads of the last recording, also of one that failed to start. They are open
/// until the threads are known to have ended: before the next recording, or when the agent leaves.
static HANDLES: [AtomicPtr<c_void>; ROLES.len()] = [const { AtomicPtr::new(null_mut()) }; ROLES.len()];
/// Whether a thread of an earlier recording had not ended when the next one started.
static STRAYED: AtomicBool = AtomicBool::new(false);
/// Milliseconds that threads may take to end after they have left the session: they only return.
const RETURN_MS: u32 = 5_000;
/// The seats of the running samplers, for a sampler that ends in place.
static SAMPLER_SEATS: [AtomicPtr<ThreadSlot>; SAMPLERS] = [const { AtomicPtr::new(null_mut()) }; SAMPLERS];

/// Starts all threads, or none.
pub(super) fn launch(session: Arc<Session>) -> Result<(), (StartResult, u32)> {
    ENDED.reset();
    if !have_ended(RETURN_MS) {
        STRAYED.store(true, Ordering::Release);
        for handle in &HANDLES {
            handle.store(null_mut(), Ordering::Release);
        }
    }
    let (mut threads, mut seats) = (Vec::new(), Vec::new());
    let (mut watchdog, mut samplers) = (0, [0; SAMPLERS]);
    for (index, role) in ROLES.into_iter().enumerate() {
        let seat = Box::into_raw(Box::new(ThreadSlot { role, session: session.clone() }));
        let mut tid = 0;
        // SAFETY: `entry` takes the seat. The thread is created suspended, so that none runs before
        // all exist.
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
            // The threads that exist find that the session is over before it began.
            session.workers.sampler.worker.done.store(true, Ordering::Release);
            ABANDONED.store(true, Ordering::Release);
            for (index, thread) in threads.into_iter().enumerate() {
                keep(index, thread);
                // SAFETY: a handle from CreateThread, which `have_ended` closes.
                unsafe { ResumeThread(thread) };
            }
            forget_own_threads();
            return Err((StartResult::NoThread, error));
        }
        if let Some(own) = OWN_THREADS.get(index) {
            own.store(tid, Ordering::Release);
        }
        STATUS.name_thread(index, tid);
        match role {
            Role::Watchdog => watchdog = tid,
            Role::Sampler(slot) => samplers[slot] = tid,
            _ => {}
        }
        threads.push(handle);
        seats.push(seat);
    }
    SUSPENSIONS.name_threads(watchdog, samplers);
    ABANDONED.store(false, Ordering::Release);
    STATUS.state.store(STATE_RECORDING, Ordering::Release);
    FINISHED.store(false, Ordering::Release);
    RUNNING.store(threads.len() as u32, Ordering::Release);
    CURRENT.store(Arc::as_ptr(&session).cast_mut(), Ordering::Release);
    for (index, &thread) in threads.iter().enumerate() {
        keep(index, thread);
        if !SUSPENSIONS.resume_own(thread as isize, &mut System) && index == 0 {
            // SAFETY: no preconditions.
            let error = unsafe { GetLastError() };
            // SAFETY: all threads are suspended since they were created, with these seats.
            unsafe { give_up(&threads, seats) };
            return Err((StartResult::NoThread, error));
        }
    }
    if SUSPENSIONS.is_resume_refused() {
        // Of the recorder's threads not all run, and no thread of the target was suspended.
        stop_for(WatchdogCause::ResumeRefused);
        wake_all();
    }
    Ok(())
}

/// Undoes a launch of which no thread could be resumed.
///
/// # Safety
/// No thread may have run, and `seats` must be theirs.
unsafe fn give_up(threads: &[HANDLE], seats: Vec<*mut ThreadSlot>) {
    for handle in &HANDLES {
        handle.store(null_mut(), Ordering::Release);
    }
    for &thread in threads {
        // SAFETY: handles from CreateThread, owned here. The threads have not run one
        // instruction, so they hold nothing.
        unsafe {
            TerminateThread(thread, 0);
            CloseHandle(thread);
        }
    }
    CURRENT.store(null_mut(), Ordering::Release);
    RUNNING.store(0, Ordering::Release);
    FINISHED.store(true, Ordering::Release);
    STATUS.state.store(STATE_IDLE, Ordering::Release);
    forget_own_threads();
    // SAFETY: by the caller's promise no thread took its seat.
    seats.into_iter().for_each(|seat| drop(unsafe { Box::from_raw(seat) }));
}

/// Keeps a thread's handle until [`have_ended`] closes it.
fn keep(index: usize, thread: HANDLE) {
    if let Some(place) = HANDLES.get(index) {
        place.store(thread, Ordering::Release);
    }
}

/// Waits until the threads of the last recording have ended and none of them executes the agent's
/// code, `milliseconds` for all together; false if one has not.
pub(super) fn have_ended(milliseconds: u32) -> bool {
    let begun = ticks();
    let left = |api: &SystemApi| milliseconds.saturating_sub(api.whole_milliseconds(ticks() - begun));
    for place in &HANDLES {
        let thread = place.load(Ordering::Acquire);
        if thread.is_null() {
            continue;
        }
        // SAFETY: a handle that `keep` kept and that is closed here alone.
        unsafe {
            if WaitForSingleObject(thread, api().map_or(0, left)) != WAIT_OBJECT_0 {
                return false;
            }
            place.store(null_mut(), Ordering::Release);
            CloseHandle(thread);
        }
    }
    true
}

/// Whether a thread of an earlier recording may still run.
pub(super) fn has_strays() -> bool {
    STRAYED.load(Ordering::Acquire)
}

#[derive(Clone, Copy)]
enum Role {
    Writer,
    Watchdog,
    Tables,
    Code,
    Runtimes,
    /// With its slot number on the board.
    Sampler(usize),
}

struct ThreadSlot {
    role: Role,
    session: Arc<Session>,
}

unsafe extern "system" fn entry(seat: *mut c_void) -> u32 {
    landing::forget_calls();
    let seat = seat.cast::<ThreadSlot>();
    if ABANDONED.load(Ordering::Acquire) {
        // SAFETY: `launch` made the box and gave it to this thread alone.
        drop(unsafe { Box::from_raw(seat) });
        return 0;
    }
    // SAFETY: as above; `leave` frees it, which this thread calls last.
    let ThreadSlot { role, session } = unsafe { &*seat };
    let workers = &session.workers;
    match role {
        Role::Writer => session.writer.run(workers),
        Role::Watchdog => session.watchdog.run(&workers.sampler, &session.writer),
        Role::Tables => workers.tables.run(),
        Role::Code => workers.code.run(&workers.sampler),
        Role::Runtimes => workers.runtimes.run(&workers.tables.worker.done, &workers.code.worker.done),
        Role::Sampler(slot) => {
            if let Some(place) = SAMPLER_SEATS.get(*slot) {
                place.store(seat, Ordering::Release);
            }
            if *slot == 0 { workers.sampler.run() } else { workers.sampler.run_spare() }
        }
    }
    // SAFETY: this thread's seat, which it does not use afterwards.
    unsafe { leave(seat) };
    // If the recorder's threads are the last of the process, the last of their exit codes becomes
    // the process's.
    LAST_EXIT_CODE.load(Ordering::Relaxed)
}

/// Ends a sampler that was deposed while it was in a system call. Nothing above that call runs
/// again.
pub(super) fn leave_deposed(slot: usize) -> ! {
    // SAFETY: no preconditions.
    let tid = unsafe { GetCurrentThreadId() };
    // From now on, the system may reuse its id for a thread of the target.
    for own in OWN_THREADS.iter().filter(|own| own.load(Ordering::Acquire) == tid) {
        own.store(0, Ordering::Release);
    }
    let seat = SAMPLER_SEATS.get(slot).map_or(null_mut(), |seat| seat.swap(null_mut(), Ordering::AcqRel));
    if !seat.is_null() {
        // SAFETY: this thread's seat, put there by `entry`, to which this thread does not return.
        unsafe { leave(seat) };
    }
    // SAFETY: the values in this thread's frames are leaked, but none of them is locked or shared.
    unsafe { ExitThread(0) }
}

/// Frees a thread's seat. The last thread cleans up.
///
/// # Safety
/// `seat` must be the calling thread's, made by `launch`, and must not be used afterwards.
unsafe fn leave(seat: *mut ThreadSlot) {
    // SAFETY: by the caller's promise.
    let seat = unsafe { Box::from_raw(seat) };
    if RUNNING.fetch_sub(1, Ordering::AcqRel) == 1 {
        // The last thread: nothing may find the session any more, and visitors must have left.
        CURRENT.store(null_mut(), Ordering::Release);
        while VISITORS.load(Ordering::Acquire) != 0 {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        forget_own_threads();
        drop(seat);
        OCCUPIED.store(false, Ordering::Release);
    }
}

fn forget_own_threads() {
    for (index, own) in OWN_THREADS.iter().enumerate() {
        own.store(0, Ordering::Release);
        STATUS.name_thread(index, 0);
    }
    SUSPENSIONS.name_threads(0, [0; SAMPLERS]);
}

/// Whether this is the id of a thread of the recorder.
pub(super) fn is_own(tid: u32) -> bool {
    OWN_THREADS.iter().any(|own| own.load(Ordering::Acquire) == tid)
}

/// Ids of the recorder's threads.
pub(super) fn own_threads() -> Vec<u32> {
    OWN_THREADS.iter().map(|tid| tid.load(Ordering::Acquire)).filter(|&tid| tid != 0).collect()
}
