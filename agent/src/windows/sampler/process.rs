//! This process as the sampler sees it.

use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_IMAGE, PAGE_EXECUTE, PAGE_EXECUTE_READ, PAGE_EXECUTE_READWRITE, PAGE_EXECUTE_WRITECOPY,
};

use crate::record::code::{CODE_BYTES, CodeRead};
use crate::record::dotnet::contract::RecentMethods;
use crate::record::dotnet::threads::{CONTEXT_BYTES, ManagedState};
use crate::record::dynamic::{Region, RegionUse};
use crate::record::sampler::{Capture, CaptureOutcome, Target};
use crate::record::shared::Counters;
use crate::record::stack_bounds::CheckedBounds;
use crate::windows::runtimes::RuntimesState;
use crate::windows::sampler::own_cpu::OwnCpu;
use crate::windows::sampler::stack_copy::OwnPages;
use crate::windows::sampler::suspend::Suspender;
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::pages::{is_readable, query};
use crate::windows::system::thread::{Teb, ThreadHandle};
use stk_schema::registers::{IP, SP};

/// A thread that is sampled.
pub(crate) struct SampledThread {
    /// Open as long as the sampler or the tables thread knows the thread.
    pub handle: Arc<ThreadHandle>,
    pub tid: u32,
    pub teb: Teb,
    /// The runtime's state of the thread after its last sample.
    last: Cell<LastManagedState>,
    /// The checked bounds of its stack.
    checked: Cell<CheckedBounds>,
}

/// The state of a managed thread that is kept between samples.
#[derive(Clone, Copy, Default)]
struct LastManagedState {
    state: Option<ManagedState>,
    ip: u64,
    sp: u64,
    /// Whether its last two samples had the same instruction and stack pointers.
    still: bool,
}

impl SampledThread {
    /// A thread that was not sampled yet.
    pub(crate) fn new(handle: Arc<ThreadHandle>, tid: u32, teb: Teb) -> SampledThread {
        SampledThread {
            handle,
            tid,
            teb,
            last: Cell::new(LastManagedState::default()),
            checked: Cell::default(),
        }
    }
}

/// This process.
pub(crate) struct OwnProcess {
    api: &'static SystemApi,
    counters: Arc<Counters>,
    has_cycles: bool,
    own_cpu: OwnCpu,
    suspender: Suspender,
    dotnet: Arc<RuntimesState>,
    /// The methods of explicit Frames that were requested lately.
    called: RecentMethods,
}

impl OwnProcess {
    /// This process; `has_cycles` says whether the system counts cycles.
    pub(crate) fn new(
        suspender: Suspender,
        counters: Arc<Counters>,
        has_cycles: bool,
        dotnet: Arc<RuntimesState>,
    ) -> OwnProcess {
        let api = suspender.api;
        let own_cpu = OwnCpu::new(api, has_cycles);
        let called = RecentMethods::new(api.frequency);
        OwnProcess { api, counters, has_cycles, own_cpu, suspender, dotnet, called }
    }

    /// The runtime's state of the thread. Must not be called while the thread is suspended.
    fn managed(&self, thread: &SampledThread) -> Option<ManagedState> {
        let table = self.dotnet.table()?;
        table.layout().read(&OwnMemory(self.api), table.find(thread.tid)?, thread.tid)
    }

    /// The runtime's state before a thread is suspended. For a thread that seems to stand still,
    /// this is the state read after its last sample. So such a thread is read once per sample, not
    /// twice, which matters where a read is as slow as under Wine.
    fn managed_before(&self, thread: &SampledThread) -> Option<ManagedState> {
        let last = thread.last.get();
        if last.still && last.state.is_some() { last.state } else { self.managed(thread) }
    }

    /// Completes a capture with the runtime's state, if it is the same now as `before`, and with
    /// the CONTEXT that a Frame keeps outside of the stack.
    fn complete_managed(&self, thread: &SampledThread, before: ManagedState, into: &mut Capture) {
        let state = self.managed(thread);
        let (ip, sp) = (into.registers[IP], into.registers[SP]);
        let last = thread.last.get();
        thread.last.set(LastManagedState { state, ip, sp, still: (ip, sp) == (last.ip, last.sp) });
        into.managed = state.filter(|&after| after == before);
        let Some(managed) = into.managed else { return };
        let Some(table) = self.dotnet.table() else { return };
        let stack = into.stack.get(..into.len).unwrap_or(&[]);
        let wanted = self.dotnet.contract().is_some();
        let now = ticks();
        let called = |method| {
            if wanted && self.called.is_due(method, now) {
                let _ = self.dotnet.called.push(method);
            }
        };
        if let Some(context) = table.layout().outside(managed.frame, into.stack_start, stack, called)
            && OwnMemory(self.api).read_some(context, &mut into.outside) == CONTEXT_BYTES
        {
            into.outside_at = context;
        }
    }
}

impl Target for OwnProcess {
    type Thread = SampledThread;

    fn now(&mut self) -> Ticks {
        ticks()
    }

    fn cycles(&mut self, thread: &SampledThread) -> Option<u64> {
        let query = self.api.thread_cycles.filter(|_| self.has_cycles)?;
        let mut cycles = 0;
        // SAFETY: the handle is open with THREAD_QUERY_INFORMATION; the result is one u64.
        (unsafe { query(thread.handle.raw(), &mut cycles) } != 0).then_some(cycles)
    }

    fn cpu_time(&mut self, thread: &SampledThread) -> Option<u64> {
        thread.handle.times().map(|times| times.cpu)
    }

    fn own_cpu(&mut self) -> Ticks {
        self.own_cpu.ticks()
    }

    fn capture(&mut self, thread: &SampledThread, into: &mut Capture) -> CaptureOutcome {
        (into.managed, into.outside_at) = (None, 0);
        into.checked = thread.checked.get();
        let before = self.managed_before(thread);
        let (outcome, timing) = self.suspender.capture(thread.handle.raw(), thread.tid, thread.teb, into);
        if outcome == CaptureOutcome::Captured {
            into.checked.check(&OwnPages, into.bounds);
            thread.checked.set(into.checked);
        }
        if timing.total != Ticks::ZERO {
            let nanoseconds = |span: Ticks| span.0 * 1_000_000_000 / self.api.frequency;
            let (total, held) = (nanoseconds(timing.total), nanoseconds(timing.held));
            self.counters.suspensions.fetch_add(1, Ordering::Relaxed);
            self.counters.suspended_ns.fetch_add(total, Ordering::Relaxed);
            self.counters.suspended_max_ns.fetch_max(total, Ordering::Relaxed);
            self.counters.held_ns.fetch_add(held, Ordering::Relaxed);
            self.counters.held.add(held);
        }
        if let (CaptureOutcome::Captured, Some(before)) = (outcome, before) {
            self.complete_managed(thread, before, into);
        }
        // A thread that ended since its last sample can be neither suspended nor read. That is no
        // loss.
        match outcome {
            CaptureOutcome::NotSuspended | CaptureOutcome::NoContext | CaptureOutcome::NotStopped
                if thread.handle.ended() =>
            {
                CaptureOutcome::Ended
            }
            outcome => outcome,
        }
    }

    fn code(&mut self, ip: u64, into: &mut [u8; CODE_BYTES]) -> CodeRead {
        let none = CodeRead { len: 0, image: false };
        let Some(info) = query(ip).filter(is_readable) else { return none };
        // Do not read beyond the region: reading a guard page would remove its guard.
        let left = (info.BaseAddress as u64).saturating_add(info.RegionSize as u64).saturating_sub(ip);
        let most = CODE_BYTES.min(usize::try_from(left).unwrap_or(CODE_BYTES));
        let memory = OwnMemory(self.api);
        let len = into.get_mut(..most).map_or(0, |start| memory.read_some(ip, start));
        CodeRead { len, image: info.Type == MEM_IMAGE }
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
        } else if info.Protect & EXECUTABLE != 0 && is_readable(&info) {
            if info.Type == MEM_IMAGE {
                RegionUse::Image { base: info.AllocationBase as u64 }
            } else {
                RegionUse::Code
            }
        } else {
            RegionUse::Other
        };
        Region { start, end: start.saturating_add(info.RegionSize as u64), used }
    }
}
