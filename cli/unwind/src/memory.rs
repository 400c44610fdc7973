//! The captured stack, read by address.

use crate::frame::Stop;

/// The stack bytes of one sample.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    bytes: &'a [u8],
    start: u64,
    end: u64,
    base: Option<u64>,
    truncated: bool,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(bytes: &'a [u8], start: u64, base: Option<u64>, truncated: bool) -> Self {
        Memory { bytes, start, end: start.saturating_add(bytes.len() as u64), base, truncated }
    }

    /// The address behind the last captured byte.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The word at `address`.
    #[inline(always)]
    pub(crate) fn u64(&self, address: u64) -> Result<u64, Stop> {
        self.word(address).ok_or_else(|| self.missing(address))
    }

    /// The word at `address`, if it was captured.
    #[inline(always)]
    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.at(address).and_then(|bytes| bytes.first_chunk()).map(|word| u64::from_le_bytes(*word))
    }

    /// The double word at `address`.
    pub(crate) fn u32(&self, address: u64) -> Result<u32, Stop> {
        match self.at(address).and_then(|bytes| bytes.first_chunk()) {
            Some(word) => Ok(u32::from_le_bytes(*word)),
            None => Err(self.missing(address)),
        }
    }

    #[inline(always)]
    fn at(&self, address: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(address.wrapping_sub(self.start)).ok()?..)
    }

    /// Why the word at `address` was not captured.
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

    /// Whether `sp` is within the part of a stack where a thread's first frames lie. The system
    /// places the first frame at a random distance below the base (at most a few pages) and puts
    /// only the thread's first context between; an unknown base counts as near.
    pub(crate) fn near_base(&self, sp: u64) -> bool {
        const NEAR: u64 = 0x4000;
        self.base.is_none_or(|base| sp <= base && base - sp <= NEAR)
    }
}
