//! The captured stack, read by address.

use crate::Stop;

/// The stack bytes of one sample.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    bytes: &'a [u8],
    start: u64,
    base: Option<u64>,
    truncated: bool,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(bytes: &'a [u8], start: u64, base: Option<u64>, truncated: bool) -> Self {
        Memory { bytes, start, base, truncated }
    }

    /// The word at `address`.
    #[inline(always)]
    pub(crate) fn u64(&self, address: u64) -> Result<u64, Stop> {
        let at = address.wrapping_sub(self.start);
        let Some(end) = at.checked_add(8) else { return Err(self.missing(address)) };
        match self.bytes.get(at as usize..end as usize) {
            Some(word) if end <= self.bytes.len() as u64 => {
                Ok(u64::from_le_bytes(word.try_into().unwrap_or_default()))
            }
            _ => Err(self.missing(address)),
        }
    }

    /// Why the word at `address` is not there.
    #[cold]
    pub(crate) fn missing(&self, address: u64) -> Stop {
        if address < self.start {
            Stop::BadMemory { address }
        } else if self.base.is_some_and(|base| address.saturating_add(8) > base) {
            Stop::EndOfStack
        } else if self.truncated {
            Stop::Truncated
        } else {
            Stop::BadMemory { address }
        }
    }

    /// Whether `sp` is within the part of a stack where a thread's first frames lie. The system places the first
    /// frame at a random distance below the base (at most a few pages) and puts nothing but the thread's first
    /// context between; an unknown base counts as near.
    pub(crate) fn near_base(&self, sp: u64) -> bool {
        const NEAR: u64 = 0x4000;
        self.base.is_none_or(|base| sp <= base && base - sp <= NEAR)
    }
}
