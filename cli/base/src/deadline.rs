//! A limit of time for one piece of work, such as the conversion of a trace.
//!
//! The work asks between its steps (blocks of samples, batches of an output) whether its time is
//! up, and ends with an error if so: what it began is dropped as after any other error, so nothing
//! half made is left.

use std::io;
use std::time::{Duration, Instant};

/// When a piece of work has to be done.
#[derive(Clone, Copy, Default, Debug)]
pub struct Deadline(Option<(Instant, Duration)>);

impl Deadline {
    /// None: the work takes as long as it takes.
    pub const NEVER: Deadline = Deadline(None);

    /// So long from now on; `None` = never.
    pub fn after(limit: Option<Duration>) -> Deadline {
        Deadline(limit.map(|limit| (Instant::now(), limit)))
    }

    /// Checks that the time is not up.
    ///
    /// # Errors
    ///
    /// That it is: [`is_over`] knows the error again.
    pub fn check(self) -> io::Result<()> {
        match self.0 {
            Some((begun, limit)) if begun.elapsed() >= limit => Err(io::Error::other(Timeout(limit))),
            _ => Ok(()),
        }
    }
}

/// The time of a piece of work was up.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it took longer than the time limit of {0:?}")]
struct Timeout(Duration);

/// Whether an error is that the time of a piece of work was up.
pub fn is_over(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    io.is_some_and(|inner| inner.is::<Timeout>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_nothing_is_over_at_once_and_its_error_is_known_again() {
        let error = Deadline::after(Some(Duration::ZERO)).check().unwrap_err();
        assert!(is_over(&error));
        assert_eq!(error.to_string(), "it took longer than the time limit of 0ns");
        assert!(!is_over(&io::Error::from(io::ErrorKind::TimedOut)), "the system's are others");
        assert!(Deadline::after(Some(Duration::MAX)).check().is_ok());
        assert!(Deadline::after(None).check().is_ok() && Deadline::NEVER.check().is_ok());
    }
}
