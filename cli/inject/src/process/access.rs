//! Access to another process's memory that the system refuses for a moment.
//!
//! Wine does so when the thread of a process ends through which it reads and writes that process's
//! memory: for a moment it asks a thread that is gone. A process with a main thread that ends
//! before the others shows it. Windows does not.

use std::time::Duration;

/// How an access ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// All bytes were read or written.
    Done,
    /// The system refused it (`ERROR_ACCESS_DENIED`).
    Refused,
    /// It failed for another reason, such as an address with no memory.
    Failed,
}

/// How long an access is tried.
const LIMIT: Duration = Duration::from_millis(100);
/// Milliseconds between two tries.
pub(crate) const WAIT_MS: u32 = 5;

/// Tries an access until the system no longer refuses it. `ended` waits [`WAIT_MS`] or longer and
/// returns whether the process has ended; `waited` is the time since the first try. Returns whether
/// it was done.
pub(crate) fn unless_refused(
    mut access: impl FnMut() -> Access,
    mut ended: impl FnMut() -> bool,
    waited: impl Fn() -> Duration,
) -> bool {
    loop {
        match access() {
            Access::Done => return true,
            Access::Failed => return false,
            Access::Refused if waited() >= LIMIT || ended() => return false,
            Access::Refused => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Access, unless_refused};
    use std::cell::Cell;
    use std::time::Duration;

    /// Result and number of tries of an access that is refused `refused` times and then ends so.
    /// Each wait lasts until the next clock interrupt, 16 ms.
    fn tried(refused: u32, then: Access, ended: bool) -> (bool, u32) {
        let mut tries = 0;
        let clock = Cell::new(0);
        let access = || {
            tries += 1;
            if tries <= refused { Access::Refused } else { then }
        };
        let wait = || {
            clock.set(clock.get() + 16);
            ended
        };
        let done = unless_refused(access, wait, || Duration::from_millis(clock.get()));
        (done, tries)
    }

    #[test]
    fn a_refused_access_is_tried_again_until_it_is_done() {
        assert_eq!(tried(0, Access::Done, false), (true, 1));
        assert_eq!(tried(3, Access::Done, false), (true, 4));
        assert_eq!(tried(7, Access::Done, false), (true, 8));
    }

    #[test]
    fn an_access_is_tried_for_100_ms_by_the_clock() {
        assert_eq!(tried(u32::MAX, Access::Done, false), (false, 8));
    }

    #[test]
    fn an_access_that_fails_or_whose_process_has_ended_is_not_tried_again() {
        assert_eq!(tried(0, Access::Failed, false), (false, 1));
        assert_eq!(tried(2, Access::Failed, false), (false, 3));
        assert_eq!(tried(1, Access::Done, true), (false, 1));
    }
}
