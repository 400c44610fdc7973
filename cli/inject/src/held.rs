//! What another program holds for a moment, and how long inject tries again or waits.
//!
//! * A file: virus scanners and indexers open a file as it is closed. Renaming and deleting it then
//!   fail for some milliseconds ([`while_held`]).
//! * A thread that does not stop when it is suspended, such as one in a driver ([`inspect`]).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long a rename or a deletion is tried, and the time between two tries.
const LIMIT: Duration = Duration::from_millis(1_000);
const AGAIN: Duration = Duration::from_millis(50);

/// Whether the error may be gone in a moment: ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION,
/// ERROR_LOCK_VIOLATION.
fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(5 | 32 | 33))
}

/// Calls `attempt` until it succeeds, or fails for another reason than that somebody else has the
/// file open, or for a second. `waited` is the time since the first call.
///
/// # Errors
/// That of the last attempt.
pub(crate) fn while_held<T>(
    mut attempt: impl FnMut() -> io::Result<T>,
    waited: impl Fn() -> Duration,
    sleep: impl Fn(Duration),
) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if is_held(&error) && waited() < LIMIT => sleep(AGAIN),
            done => return done,
        }
    }
}

/// How the inspection of a thread ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inspection<R> {
    Done(R),
    /// It could not be suspended, or its registers not be read.
    Refused,
    /// It did not stop in time. It was resumed.
    NotStopped,
}

/// The calls about one thread, which a helper thread makes. Some of them wait in the kernel without
/// a limit.
pub(crate) trait ThreadCalls: Send + Sync + 'static {
    type Found: Send;

    /// Suspends it; false if that is refused.
    fn suspend(&self) -> bool;

    /// Waits until it has stopped, and reads it; `None` if that is refused.
    fn read(&self) -> Option<Self::Found>;

    fn resume(&self);
}

/// The helper is in `suspend`; the thread is suspended; whoever sets this resumes it, or it is not
/// suspended.
const ASKING: u8 = 0;
const SUSPENDED: u8 = 1;
const OVER: u8 = 2;

/// Suspends a thread, reads it and resumes it, for `limit` at most. The thread is resumed once.
///
/// # Errors
/// The system's, when it has no memory for a helper thread.
pub(crate) fn inspect<C: ThreadCalls>(calls: C, limit: Duration) -> io::Result<Inspection<C::Found>> {
    let (send, receive) = mpsc::sync_channel(1);
    let shared = Arc::new((calls, AtomicU8::new(ASKING)));
    let helpers = shared.clone();
    std::thread::Builder::new().name("inspect".to_owned()).spawn(move || {
        let (calls, state) = &*helpers;
        if !calls.suspend() {
            let _ = send.send(None);
            return;
        }
        let asked = state.compare_exchange(ASKING, SUSPENDED, Ordering::AcqRel, Ordering::Acquire);
        let found = asked.ok().and_then(|_| calls.read());
        // In the first case the caller gave up before there was a suspension that it could undo.
        let undone = state.compare_exchange(SUSPENDED, OVER, Ordering::AcqRel, Ordering::Acquire);
        if asked.is_err() || undone.is_ok() {
            calls.resume();
        }
        let _ = send.send(found);
    })?;
    Ok(match receive.recv_timeout(limit) {
        Ok(Some(found)) => Inspection::Done(found),
        Ok(None) | Err(RecvTimeoutError::Disconnected) => Inspection::Refused,
        Err(RecvTimeoutError::Timeout) => {
            let (calls, state) = &*shared;
            if state.swap(OVER, Ordering::AcqRel) == SUSPENDED {
                calls.resume();
            }
            Inspection::NotStopped
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicI32;
    use std::sync::{Condvar, Mutex};
    use std::time::Instant;

    /// The result and the number of tries of a file that is held until `free_ms`. Each sleep ends
    /// with the system's clock interrupt, of which there is one in 16 ms.
    fn tried(code: i32, free_ms: u64) -> (bool, u32) {
        let (clock, tries) = (Cell::new(0), Cell::new(0));
        let attempt = || {
            tries.set(tries.get() + 1);
            if clock.get() < free_ms { Err(io::Error::from_raw_os_error(code)) } else { Ok(()) }
        };
        let sleep = |time: Duration| {
            clock.set((clock.get() + time.as_millis() as u64).div_ceil(16) * 16);
        };
        let done = while_held(attempt, || Duration::from_millis(clock.get()), sleep);
        (done.is_ok(), tries.get())
    }

    #[test]
    fn a_held_file_is_tried_again_for_a_second() {
        for code in [5, 32, 33] {
            assert_eq!(tried(code, 0), (true, 1));
            assert_eq!(tried(code, 300), (true, 6));
            assert_eq!(tried(code, u64::MAX), (false, 17), "64 ms each");
        }
    }

    #[test]
    fn another_error_is_final() {
        for code in [2, 3, 80, 183] {
            assert_eq!(tried(code, 300), (false, 1));
        }
    }

    #[derive(Default)]
    struct Door(Mutex<bool>, Condvar);

    impl Door {
        fn open(&self) {
            *self.0.lock().unwrap() = true;
            self.1.notify_all();
        }

        fn pass(&self) {
            drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
        }
    }

    /// A thread whose suspension and whose stop take until the doors are open.
    #[derive(Default)]
    struct FakeThread {
        count: AtomicI32,
        resumed: AtomicI32,
        suspend: Door,
        stop: Door,
        left: Door,
    }

    impl ThreadCalls for Arc<FakeThread> {
        type Found = u64;

        fn suspend(&self) -> bool {
            self.suspend.pass();
            self.count.fetch_add(1, Ordering::SeqCst);
            true
        }

        fn read(&self) -> Option<u64> {
            self.stop.pass();
            Some(7)
        }

        fn resume(&self) {
            self.resumed.fetch_add(1, Ordering::SeqCst);
            if self.count.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.left.open();
            }
        }
    }

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_thread_that_stops_is_read_and_resumed() {
        let thread = Arc::new(FakeThread::default());
        thread.suspend.open();
        thread.stop.open();
        assert_eq!(inspect(thread.clone(), LONG).unwrap(), Inspection::Done(7));
        assert_eq!((thread.count.load(Ordering::SeqCst), thread.resumed.load(Ordering::SeqCst)), (0, 1));
    }

    #[test]
    fn a_thread_that_does_not_stop_is_resumed_once_in_time() {
        for suspends in [true, false] {
            let thread = Arc::new(FakeThread::default());
            if suspends {
                thread.suspend.open();
            }
            let begun = Instant::now();
            assert_eq!(inspect(thread.clone(), SHORT).unwrap(), Inspection::NotStopped);
            assert!(begun.elapsed() < LONG);
            assert_eq!(thread.count.load(Ordering::SeqCst), 0, "nothing holds it");
            // The calls return long after that.
            thread.suspend.open();
            thread.stop.open();
            thread.left.pass();
            while Arc::strong_count(&thread) > 1 {
                std::thread::yield_now();
            }
            assert_eq!((thread.count.load(Ordering::SeqCst), thread.resumed.load(Ordering::SeqCst)), (0, 1));
        }
    }
}
