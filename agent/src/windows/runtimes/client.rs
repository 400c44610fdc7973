//! Decides when a runtime, or the host in its place, is queried for the names of methods.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use stk_schema::Ticks;

use stk_schema::control::{STEP_ASKING_RUNTIME, STEP_ENDING, STEP_WAITING, STEP_WORKING, THREAD_RUNTIMES};
use stk_schema::event::{EndReason, RuntimeKind};
use windows_sys::Win32::System::Threading::{GetCurrentProcessId, INFINITE, Sleep};

use super::answers::AskError;
use super::recorder::RuntimesRecorder;
use super::shared::RuntimesState;
use crate::record::dotnet::contract::Contract;
use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dotnet::ipc;
use crate::record::dotnet::names::Names;
use crate::record::dotnet::runtime::has_pipe;
use crate::record::dotnet::schedule::Schedule;
use crate::record::dotnet::threads::{Layout, ThreadTable};
use crate::record::dynamic;
use crate::record::files::FileThread;
use crate::windows::shared::events::{WAKE_WRITER, WakeEvent};
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::state::{MAILBOX, SIGNALS, STATUS};
use crate::windows::system::api::{SystemApi, ticks};
use crate::windows::system::context::ARCH;
use crate::windows::system::memory::OwnMemory;

/// Milliseconds between walks of the runtime's list of threads.
const THREADS_MS: u64 = 50;
/// Milliseconds without progress after which the runtime is given up.
pub(super) const STALLED_MS: u64 = 8_000;
/// Milliseconds that the last rundown may take after the end of the recording was requested.
pub(super) const LAST_MS: u64 = 6_000;
/// Milliseconds between attempts to open a busy pipe.
pub(super) const BUSY_MS: u32 = 10;
/// Milliseconds between checks of the mailbox while an answer is expected ...
const ANSWER_MS: u64 = 20;
/// ... and while the host gets requests at all.
const MAILBOX_MS: u64 = 250;
/// Milliseconds during which an unusable pipe may belong to a runtime that is just starting.
const STARTING_MS: u64 = 2_000;
/// Milliseconds that a host may take to read the mailbox for the first time, if a recording ends as
/// soon as it has begun.
const FIRST_LOOK_MS: u64 = 500;
/// Milliseconds that a file's end waits for the host's last names.
const NAMES_MS: u64 = 3_000;
/// Milliseconds between notes about the host's answers.
const NOTE_MS: u64 = 5_000;

/// State that only the runtimes thread uses.
pub(super) struct RuntimesClient<'a> {
    api: &'static SystemApi,
    shared: &'a RuntimesState,
    pub(super) state: &'a Exclusive<RuntimesRecorder>,
    code: &'a dynamic::Shared,
    wake: &'static WakeEvent,
    ticks_per_ms: u64,
    names: Names,
    /// When to describe again how that goes.
    note_due: Ticks,
    /// The first runtime with a pipe: load address, what it is, when it was found.
    piped: Option<(u64, RuntimeKind, Ticks)>,
    /// The names that the pipe may have, zero-terminated.
    pub(super) pipes: [Vec<u16>; 2],
    /// Whether the runtime is too old for CollectTracing4.
    pub(super) old: bool,
    pub(super) version: Option<Vec<u8>>,
    pub(super) version_asked: bool,
    /// When the end of the recording was noticed.
    stopping: Option<Ticks>,
    pub(super) buffer: Vec<u8>,
}

impl<'a> RuntimesClient<'a> {
    /// `code` holds the dynamic code that was seen. `wake` is signalled when a runtime was found or
    /// the recording is to end.
    pub(super) fn new(
        api: &'static SystemApi,
        shared: &'a RuntimesState,
        state: &'a Exclusive<RuntimesRecorder>,
        code: &'a dynamic::Shared,
        wake: &'static WakeEvent,
        ticks_per_ms: u64,
    ) -> RuntimesClient<'a> {
        // SAFETY: no preconditions.
        let pid = unsafe { GetCurrentProcessId() };
        RuntimesClient {
            api,
            shared,
            state,
            code,
            wake,
            ticks_per_ms,
            names: Names::new(&MAILBOX, ARCH, ticks_per_ms),
            note_due: Ticks::ZERO,
            piped: None,
            pipes: ipc::pipe_names(pid).map(|name| name.encode_utf16().chain([0]).collect()),
            old: false,
            version: None,
            version_asked: false,
            stopping: None,
            buffer: Vec::new(),
        }
    }

    /// Works until the recording ends. Without a runtime in the process, the thread sleeps until
    /// one is found.
    ///
    /// `tables_done` is set when no more runtimes can be found, `code_done` when no more dynamic
    /// code can.
    pub(super) fn run(&mut self, tables_done: &AtomicBool, code_done: &AtomicBool) {
        let memory = OwnMemory(self.api);
        let mut schedule: Option<Schedule> = None;
        while !SIGNALS.stopping() {
            STATUS.round(THREAD_RUNTIMES, STEP_WORKING);
            self.take_found(&mut schedule);
            if let Some(table) = self.shared.table() {
                table.refresh(&memory);
            }
            if let Some(schedule) = &mut schedule {
                let seen = self.code.activity.added();
                if schedule.is_due(ticks(), seen) {
                    STATUS.step(THREAD_RUNTIMES, STEP_ASKING_RUNTIME);
                    match self.ask() {
                        Ok(()) => schedule.answered(ticks(), seen),
                        Err(_) => schedule.failed(ticks()),
                    }
                }
            }
            self.ask_host(false);
            self.follow_files(&mut schedule);
            let mut wait = match &schedule {
                Some(_) if self.shared.table().is_some() => THREADS_MS,
                Some(schedule) => schedule.wait_ms(ticks()),
                None => u64::from(INFINITE),
            };
            if self.names.asks() {
                wait = wait.min(if self.names.in_flight() { ANSWER_MS } else { MAILBOX_MS });
            }
            STATUS.step(THREAD_RUNTIMES, STEP_WAITING);
            self.wake.wait(wait.min(u64::from(INFINITE)) as u32);
        }
        STATUS.step(THREAD_RUNTIMES, STEP_ENDING);
        // On an overloaded machine, a recording may end before the first enumeration of modules
        // does.
        let since = ticks();
        while schedule.is_none() && !tables_done.load(Ordering::Acquire) && self.may_wait(since) {
            self.take_found(&mut schedule);
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
        self.take_found(&mut schedule);
        let reason = SIGNALS.stop.load(Ordering::Acquire);
        let asked_for = [EndReason::Stopped, EndReason::Duration, EndReason::SizeLimit];
        if asked_for.iter().any(|&one| one as u32 == reason) {
            if schedule.is_some() {
                let _ = self.ask();
            }
            self.finish_names(code_done);
        }
        self.state.enter(RuntimesRecorder::flush);
    }

    /// Turns to the next file when the code thread has: the names of what was seen before are
    /// requested for first, so that both files have them.
    fn follow_files(&mut self, schedule: &mut Option<Schedule>) {
        let Some((file, files)) = self.state.enter(|state| state.files()) else { return };
        if !files.is_due(FileThread::Runtimes, file) {
            return;
        }
        let seen = self.code.activity.added();
        if let Some(schedule) = schedule.as_mut().filter(|schedule| schedule.lacks(seen)) {
            match self.ask() {
                Ok(()) => schedule.answered(ticks(), seen),
                Err(_) => schedule.failed(ticks()),
            }
        }
        let since = ticks();
        while self.names.is_busy(&MAILBOX)
            && !SIGNALS.stopping()
            && (ticks() - since).0 < NAMES_MS * self.ticks_per_ms
        {
            self.ask_host(true);
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
        self.state.enter(RuntimesRecorder::turn);
        WAKE_WRITER.signal();
    }

    /// Takes the runtimes that the tables thread has found, and writes them.
    fn take_found(&mut self, schedule: &mut Option<Schedule>) {
        let memory = OwnMemory(self.api);
        while let Some(found) = self.shared.found.pop() {
            let descriptor = found.descriptor.and_then(|address| Descriptor::read(&memory, address));
            if let Some(layout) = descriptor.as_ref().and_then(Layout::new) {
                self.shared.set_table(ThreadTable::new(layout));
            }
            if let Some(contract) = descriptor.as_ref().and_then(Contract::new) {
                self.shared.set_contract(contract, found.module);
            }
            self.state.enter(|state| state.found(&found, descriptor.as_ref()));
            if has_pipe(found.kind) && schedule.is_none() {
                *schedule = Some(Schedule::new(ticks(), self.ticks_per_ms));
                self.piped = Some((found.base, found.kind, ticks()));
            }
            if !has_pipe(found.kind) && !self.names.asks() {
                self.ask_of(found.base, found.kind);
            }
        }
    }

    /// Lets the runtime list its methods. If it does not, starts asking the host.
    fn ask(&mut self) -> Result<(), AskError> {
        self.take_wants();
        let result = self.list();
        let of_piped = self.piped.filter(|_| self.names.runtime().is_none_or(has_pipe));
        match (result, of_piped) {
            // The list has the names of all addresses requested before it began.
            (Ok(()), Some(_)) => {
                self.code.precompiled.want(false);
                self.names.stop_asking(&MAILBOX);
            }
            (Err(_), Some((base, kind, found))) if !self.names.asks() => {
                let age = ticks().saturating_sub(found).0 / self.ticks_per_ms;
                if SIGNALS.stopping() || age >= STARTING_MS {
                    self.ask_of(base, kind);
                }
            }
            _ => {}
        }
        let version = self.version.take();
        self.state.enter(|state| state.asked(result, version));
        result
    }

    /// Asks the host for names of the runtime at `base` from now on.
    fn ask_of(&mut self, base: u64, kind: RuntimeKind) {
        self.code.precompiled.want(true);
        self.names.ask_of(base, kind, &MAILBOX);
    }

    /// Takes the addresses that the code thread needs names for. Without a runtime they stay in the
    /// queue.
    fn take_wants(&mut self) {
        let memory = OwnMemory(self.api);
        while let Some(want) = self.code.unnamed.pop() {
            self.names.want(want, &memory);
        }
    }

    /// Asks the host for the waiting names, and takes its answers.
    fn ask_host(&mut self, at_once: bool) {
        if !self.names.asks() {
            return;
        }
        self.take_wants();
        let (names, memory) = (&mut self.names, OwnMemory(self.api));
        self.state.enter(|state| state.step_names(names, &memory, at_once));
        if ticks() >= self.note_due {
            self.note_due = ticks() + Ticks(NOTE_MS * self.ticks_per_ms);
            let note = self.names.note(&MAILBOX);
            self.state.enter(|state| state.note_names(note));
        }
    }

    /// Sends the last requests when the end of the recording was requested, while the process and
    /// the host still run.
    fn finish_names(&mut self, code_done: &AtomicBool) {
        if !self.names.asks() {
            return;
        }
        let since = ticks();
        loop {
            // Read this flag first, so that the last added addresses are taken.
            let all_known = code_done.load(Ordering::Acquire);
            self.ask_host(true);
            let young = (ticks() - since).0 / self.ticks_per_ms < FIRST_LOOK_MS;
            let answers = young || self.names.host_is_there(&MAILBOX);
            if !self.may_wait(since) || !answers || all_known && !self.names.is_busy(&MAILBOX) {
                break;
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
        self.names.end();
        self.names.counts.left_out += self.code.costs.unasked.load(Ordering::Relaxed);
        let note = self.names.note(&MAILBOX);
        self.state.enter(|state| state.note_names(note));
    }

    /// Whether the runtime, which last did something at `moved`, may be waited for.
    pub(super) fn may_wait(&mut self, moved: Ticks) -> bool {
        let now = ticks();
        if SIGNALS.stopping() {
            let since = *self.stopping.get_or_insert(now);
            if now.saturating_sub(since).0 >= LAST_MS * self.ticks_per_ms {
                return false;
            }
        }
        now.saturating_sub(moved).0 < STALLED_MS * self.ticks_per_ms
    }
}
