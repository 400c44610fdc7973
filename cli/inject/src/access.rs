//! Access to another process's memory that the system refuses for a moment.
//!
//! Wine does so when the thread of a process ends through which it reads and writes that process's
//! memory: for a moment it asks a thread that is gone. A process with a main thread that ends
//! before the others shows it. Windows does not.

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

/// How often an access is tried. With [`WAIT_MS`] between two tries, it may take 100 ms.
const MOST_TRIES: u32 = 21;
/// Milliseconds between two tries.
pub(crate) const WAIT_MS: u32 = 5;

/// Tries an access until the system no longer refuses it. `ended` waits [`WAIT_MS`] and tells
/// whether the process has ended. Returns whether it was done.
pub(crate) fn unless_refused(mut access: impl FnMut() -> Access, mut ended: impl FnMut() -> bool) -> bool {
    for _ in 1..MOST_TRIES {
        match access() {
            Access::Done => return true,
            Access::Failed => return false,
            Access::Refused if ended() => return false,
            Access::Refused => {}
        }
    }
    access() == Access::Done
}

#[cfg(test)]
mod tests {
    use super::{Access, MOST_TRIES, unless_refused};

    /// Result and number of tries of an access that is refused `refused` times and then ends so.
    fn tried(refused: u32, then: Access, ended: bool) -> (bool, u32) {
        let mut tries = 0;
        let access = || {
            tries += 1;
            if tries <= refused { Access::Refused } else { then }
        };
        let done = unless_refused(access, || ended);
        (done, tries)
    }

    #[test]
    fn a_refused_access_is_tried_again_until_it_is_done() {
        assert_eq!(tried(0, Access::Done, false), (true, 1));
        assert_eq!(tried(3, Access::Done, false), (true, 4));
        assert_eq!(tried(MOST_TRIES - 1, Access::Done, false), (true, MOST_TRIES));
    }

    #[test]
    fn an_access_is_not_tried_for_ever() {
        assert_eq!(tried(u32::MAX, Access::Done, false), (false, MOST_TRIES));
    }

    #[test]
    fn an_access_that_fails_or_whose_process_has_ended_is_not_tried_again() {
        assert_eq!(tried(0, Access::Failed, false), (false, 1));
        assert_eq!(tried(2, Access::Failed, false), (false, 3));
        assert_eq!(tried(1, Access::Done, true), (false, 1));
    }
}
