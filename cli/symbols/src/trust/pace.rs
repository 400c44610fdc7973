//! A reader that stops reading from a sender that is too slow.

use std::io::{self, Read};
use std::time::{Duration, Instant};

/// The minimum that a sender must deliver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Bytes in each period.
    pub bytes: u64,
    /// Length of a period. Only the time spent waiting for the sender counts.
    pub period: Duration,
}

/// Reads from a sender as long as it keeps the pace. The time between reads does not count.
#[derive(Debug)]
pub(crate) struct PacedReader<R> {
    inner: R,
    pace: Pace,
    waited: Duration,
    got: u64,
}

/// The bytes and the time of the period in which the sender was too slow.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("only {got} bytes came in {} s", waited.as_secs_f64())]
pub(crate) struct Slowness {
    pub(crate) got: u64,
    pub(crate) waited: Duration,
}

impl<R> PacedReader<R> {
    pub(crate) fn new(inner: R, pace: Pace) -> PacedReader<R> {
        PacedReader { inner, pace, waited: Duration::ZERO, got: 0 }
    }
}

impl<R: Read> Read for PacedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let len = self.inner.read(buffer)?;
        self.waited += begun.elapsed();
        self.got += len as u64;
        if self.waited >= self.pace.period {
            if len != 0 && self.got < self.pace.bytes {
                return Err(io::Error::other(Slowness { got: self.got, waited: self.waited }));
            }
            (self.waited, self.got) = (Duration::ZERO, 0);
        }
        Ok(len)
    }
}
