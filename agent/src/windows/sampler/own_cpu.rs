//! The calling thread's own CPU time, for the sampler's share of a processor.

use stk_schema::Ticks;
use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};

use crate::windows::system::api::{SystemApi, ticks};

/// Rounds in which the rate of the cycle count is measured, and microseconds of each round.
const ROUNDS: usize = 3;
const ROUND_US: u64 = 200;
/// The rate is stored in this fraction of a cycle.
const FINE: u128 = 1024;

/// A clock of the calling thread's CPU time.
pub(crate) struct OwnCpu {
    api: &'static SystemApi,
    /// Cycles per tick, times [`FINE`]; `None` where the system counts no cycles.
    rate: Option<u128>,
}

impl OwnCpu {
    /// A clock; `has_cycles` says whether the system counts cycles. If so, this takes most of a
    /// millisecond.
    pub(crate) fn new(api: &'static SystemApi, has_cycles: bool) -> OwnCpu {
        // A round in which the thread lost its processor gives too low a rate.
        let rate = if has_cycles { (0..ROUNDS).filter_map(|_| rate(api)).max() } else { None };
        OwnCpu { api, rate: rate.filter(|&rate| rate != 0) }
    }

    /// CPU time of the calling thread: fine where cycles are counted, else in the steps of the
    /// system's clock.
    pub(crate) fn ticks(&self) -> Ticks {
        if let (Some(rate), Some(cycles)) = (self.rate, own_cycles(self.api)) {
            return Ticks((u128::from(cycles) * FINE / rate) as u64);
        }
        let mut times = [0u64; 4];
        let [created, exited, kernel, user] = times.each_mut().map(|time| core::ptr::from_mut(time).cast());
        // SAFETY: the calling thread's pseudo handle; four FILETIMEs, each the size of a u64 with
        // no stricter alignment.
        if unsafe { GetThreadTimes(GetCurrentThread(), created, exited, kernel, user) } == 0 {
            return Ticks::ZERO;
        }
        let units = times[2].wrapping_add(times[3]);
        Ticks((u128::from(units) * u128::from(self.api.frequency) / 10_000_000) as u64)
    }
}

/// Cycles that the calling thread has used.
fn own_cycles(api: &SystemApi) -> Option<u64> {
    let mut cycles = 0;
    // SAFETY: the calling thread's pseudo handle; the result is one u64.
    (unsafe { api.thread_cycles?(GetCurrentThread(), &mut cycles) } != 0).then_some(cycles)
}

/// Cycles per tick while this thread spins, times [`FINE`].
fn rate(api: &SystemApi) -> Option<u128> {
    let (began, from) = (ticks(), own_cycles(api)?);
    let until = began + Ticks((api.frequency * ROUND_US / 1_000_000).max(1));
    while ticks() < until {
        core::hint::spin_loop();
    }
    let (cycles, span) = (own_cycles(api)?.saturating_sub(from), ticks().saturating_sub(began).0.max(1));
    Some(u128::from(cycles) * FINE / u128::from(span))
}
