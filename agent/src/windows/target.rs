//! This process as the sampler sees it.

use alloc::sync::Arc;
use core::mem::zeroed;
use core::sync::atomic::Ordering;

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_IMAGE, MEMORY_BASIC_INFORMATION, PAGE_EXECUTE, PAGE_EXECUTE_READ, PAGE_EXECUTE_READWRITE,
    PAGE_EXECUTE_WRITECOPY, VirtualQuery,
};

use super::api::{Api, ticks};
use super::context::Context;
use super::memory::OwnMemory;
use super::peb::Peb;
use super::suspend;
use super::thread::{Teb, ThreadHandle};
use super::walk::SystemUnwinder;
use crate::record::dynamic::{Region, RegionUse};
use crate::record::sampler::{CODE_BYTES, Capture, CodeRead, Outcome, Target};
use crate::record::shared::Counters;

/// A thread that is sampled.
pub struct Sampled {
    /// Open as long as the sampler or the census knows the thread.
    pub handle: Arc<ThreadHandle>,
    /// Its id.
    pub tid: u32,
    /// Its environment block.
    pub teb: Teb,
}

/// This process.
pub struct OwnProcess {
    api: &'static Api,
    peb: Peb,
    context: Context,
    counters: Arc<Counters>,
    has_cycles: bool,
    /// Walks each stack too, if that was asked for.
    unwinder: Option<SystemUnwinder>,
}

impl OwnProcess {
    /// This process; `has_cycles` tells whether the system counts cycles.
    pub fn new(
        api: &'static Api,
        counters: Arc<Counters>,
        has_cycles: bool,
        unwinder: Option<SystemUnwinder>,
    ) -> OwnProcess {
        OwnProcess {
            api,
            peb: Peb::current(api),
            context: Context::request(),
            counters,
            has_cycles,
            unwinder,
        }
    }
}

impl Target for OwnProcess {
    type Thread = Sampled;

    fn now(&mut self) -> u64 {
        ticks()
    }

    fn cycles(&mut self, thread: &Sampled) -> Option<u64> {
        let query = self.api.thread_cycles.filter(|_| self.has_cycles)?;
        let mut cycles = 0;
        // SAFETY: the handle is open with THREAD_QUERY_INFORMATION; the result is one u64.
        (unsafe { query(thread.handle.raw(), &mut cycles) } != 0).then_some(cycles)
    }

    fn cpu_time(&mut self, thread: &Sampled) -> Option<u64> {
        thread.handle.times().map(|times| times.cpu)
    }

    fn capture(&mut self, thread: &Sampled, into: &mut Capture) -> Outcome {
        let (outcome, timing) = suspend::capture(
            thread.handle.raw(),
            thread.tid,
            thread.teb,
            &self.peb,
            &mut self.context,
            self.unwinder.as_ref(),
            into,
        );
        if timing.total != 0 {
            let nanoseconds = |ticks: u64| ticks * 1_000_000_000 / self.api.frequency;
            let (total, held) = (nanoseconds(timing.total), nanoseconds(timing.held));
            self.counters.suspensions.fetch_add(1, Ordering::Relaxed);
            self.counters.suspended_ns.fetch_add(total, Ordering::Relaxed);
            self.counters.suspended_max_ns.fetch_max(total, Ordering::Relaxed);
            self.counters.held_ns.fetch_add(held, Ordering::Relaxed);
            self.counters.held_max_ns.fetch_max(held, Ordering::Relaxed);
        }
        // A thread that ended since its last sample can be neither suspended nor read: that is no loss.
        match outcome {
            Outcome::NotSuspended | Outcome::NoContext if thread.handle.ended() => Outcome::Ended,
            outcome => outcome,
        }
    }

    fn code(&mut self, ip: u64, into: &mut [u8; CODE_BYTES]) -> CodeRead {
        let memory = OwnMemory(self.api);
        let mut len = memory.read_some(ip, into);
        let to_page_end = 4096 - (ip % 4096) as usize;
        if len == 0 && to_page_end < CODE_BYTES {
            // The next page is not there.
            len = into.get_mut(..to_page_end).map_or(0, |start| memory.read_some(ip, start));
        }
        CodeRead { len, image: query(ip).is_some_and(|info| info.Type == MEM_IMAGE) }
    }

    fn region(&mut self, address: u64) -> Region {
        let Some(info) = query(address) else {
            return Region { start: address, end: address.saturating_add(1), used: RegionUse::Nothing };
        };
        const EXECUTABLE: u32 =
            PAGE_EXECUTE | PAGE_EXECUTE_READ | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY;
        let start = info.BaseAddress as u64;
        let used = if info.State != MEM_COMMIT {
            RegionUse::Nothing
        } else if info.Type != MEM_IMAGE && info.Protect & EXECUTABLE != 0 {
            RegionUse::Code
        } else {
            RegionUse::Other
        };
        Region { start, end: start.saturating_add(info.RegionSize as u64), used }
    }
}

/// What the system says of the pages around `address`.
fn query(address: u64) -> Option<MEMORY_BASIC_INFORMATION> {
    // SAFETY: plain data; the query only writes it.
    let mut info: MEMORY_BASIC_INFORMATION = unsafe { zeroed() };
    // SAFETY: the address is only looked up, not read.
    let known = unsafe { VirtualQuery(address as usize as *const _, &mut info, size_of_val(&info)) } != 0;
    known.then_some(info)
}
