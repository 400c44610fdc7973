//! The thread that speaks with a .NET runtime in the process: the names of its methods, through the
//! diagnostics pipe, and which of its Thread objects belongs to which thread. What the pipe cannot
//! tell it asks of the host, through the mailbox.
//!
//! It may wait for the runtime as long as its deadlines allow, and nobody waits for it but the end
//! of a recording that was asked for. Where the process itself ends, it is simply gone: what it had
//! received is written, nothing more is asked.

mod pipe;

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use stk_schema::event::{EndReason, Event, Nettrace, RuntimeInfo};
use windows_sys::Win32::Foundation::{ERROR_FILE_NOT_FOUND, ERROR_PIPE_BUSY, HANDLE};
use windows_sys::Win32::System::Threading::{GetCurrentProcessId, INFINITE, Sleep, WaitForSingleObject};

use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dotnet::ipc::{self, HEADER, Refusal, Request};
use crate::record::dotnet::names::Names;
use crate::record::dotnet::runtime::Kind;
use crate::record::dotnet::schedule::Schedule;
use crate::record::dotnet::threads::{Layout, Table};
use crate::record::dynamic;
use crate::record::journal::Journal;
use crate::record::modules::Events;
use crate::record::queue::Queue;
use crate::windows::runtimes::pipe::{Fault, Pipe};
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::state::{MAILBOX, SIGNALS};
use crate::windows::system::api::{Api, ticks};
use crate::windows::system::memory::OwnMemory;

/// Runtimes that can wait to be looked at.
const FOUND: usize = 16;
/// Milliseconds between walks of the runtime's list of threads.
const THREADS_MS: u64 = 50;
/// Milliseconds for which the runtime may do nothing before it is given up.
const STALLED_MS: u64 = 8_000;
/// Milliseconds that the last rundown may take once the end of the recording was asked for.
const LAST_MS: u64 = 6_000;
/// Milliseconds between looks at these limits.
const STEP_MS: u32 = 100;
/// Milliseconds between tries to open a pipe that is busy.
const BUSY_MS: u32 = 10;
/// Milliseconds between looks into the mailbox while an answer is expected ...
const ANSWER_MS: u64 = 20;
/// ... and while the host is asked at all.
const MAILBOX_MS: u64 = 250;
/// Milliseconds for which a pipe that cannot be used may belong to a runtime that just starts.
const STARTING_MS: u64 = 2_000;
/// Milliseconds that a host may take for its first look where a recording ends as soon as it has
/// begun.
const FIRST_LOOK_MS: u64 = 500;
/// Milliseconds between descriptions of how the host's answers go.
const NOTE_MS: u64 = 5_000;
/// Bytes of a stream per event.
const PIECE: usize = 32 << 10;
/// Bytes after which what was received goes to the writer.
const FLUSH: u64 = 256 << 10;

/// A runtime, as the tables thread found it.
pub struct Found {
    /// Module instance.
    pub module: u64,
    /// Its load address.
    pub base: u64,
    /// What it is.
    pub kind: Kind,
    /// Version from its resources; may be empty.
    pub version: Vec<u8>,
    /// Address of its data contract descriptor.
    pub descriptor: Option<u64>,
}

/// What this thread shares with the others of the recording.
pub struct Shared {
    /// Runtimes, from the tables thread.
    pub found: Queue<Found>,
    /// Managed threads, for the sampler; null until a runtime with a data contract is found, then
    /// never changed.
    table: AtomicPtr<Table>,
}

impl Shared {
    /// Nothing found.
    pub fn new() -> Shared {
        Shared { found: Queue::new(FOUND), table: AtomicPtr::new(null_mut()) }
    }

    /// The managed threads, if a runtime tells them.
    pub fn table(&self) -> Option<&Table> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    fn set_table(&self, table: Table) {
        if self.table().is_none() {
            self.table.store(alloc::boxed::Box::into_raw(alloc::boxed::Box::new(table)), Ordering::Release);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: made by `set_table`, and nobody else has `self` any more.
            drop(unsafe { alloc::boxed::Box::from_raw(table) });
        }
    }
}

/// A runtime that was found.
struct Known {
    module: u64,
    kind: Kind,
    version: Vec<u8>,
    /// Another one was found before it.
    second: bool,
}

/// What became of asking.
#[derive(Default)]
struct Answers {
    whole: u64,
    cut: u64,
    bytes: u64,
    trouble: Option<Trouble>,
}

/// Why the runtime could not be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// There is no pipe.
    Absent,
    /// It was busy or silent for too long.
    Silent,
    /// Another system error.
    System(u32),
    /// The runtime refused.
    Refused(Refusal),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        match fault {
            Fault::Late => Trouble::Silent,
            Fault::System(code) => Trouble::System(code),
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        Trouble::Refused(refusal)
    }
}

/// What is written of runtimes: the part of the thread's state that others may flush.
pub struct Runtimes {
    journal: Journal<JournalPace>,
    known: Vec<Known>,
    answers: Answers,
    asking: bool,
    /// How the host's answers go, where it is asked.
    names: Option<String>,
    /// The stream that is being received: number, bytes written, bytes not written yet.
    session: u64,
    offset: u64,
    piece: Vec<u8>,
    unflushed: u64,
}

impl Runtimes {
    /// Nothing written yet.
    pub fn new(journal: Journal<JournalPace>) -> Runtimes {
        Runtimes {
            journal,
            known: Vec::new(),
            answers: Answers::default(),
            asking: false,
            names: None,
            session: 0,
            offset: 0,
            piece: Vec::with_capacity(PIECE),
            unflushed: 0,
        }
    }

    /// Hands over what was received and written; also for the end of the process.
    pub fn flush(&mut self) {
        self.write_piece();
        self.journal.flush();
        self.unflushed = 0;
    }

    fn found(&mut self, found: &Found, descriptor: Option<&Descriptor>) {
        let known = Known {
            module: found.module,
            kind: found.kind,
            version: found.version.clone(),
            second: !self.known.is_empty(),
        };
        self.tell(&known, descriptor);
        self.known.push(known);
        self.flush();
    }

    /// Writes what is known now of every runtime; the description stands.
    fn report(&mut self) {
        for known in core::mem::take(&mut self.known) {
            self.tell(&known, None);
            self.known.push(known);
        }
        self.flush();
    }

    /// Writes what is known now of a runtime, with its description if that is to be told.
    fn tell(&mut self, known: &Known, descriptor: Option<&Descriptor>) {
        let pointers = descriptor.map(Descriptor::pointer_bytes).unwrap_or_default();
        let note = self.note(known);
        self.journal.event(&Event::RuntimeInfo(RuntimeInfo {
            module: known.module,
            time: ticks(),
            kind: known.kind as u64,
            version: &known.version,
            descriptor: descriptor.map_or(&[], |descriptor| &descriptor.json),
            pointer_data: &pointers,
            note: note.as_bytes(),
        }));
    }

    /// One line for the user.
    fn note(&self, known: &Known) -> String {
        if !known.kind.has_pipe() {
            return match &self.names {
                Some(names) => format!("this runtime has no diagnostics pipe; {names}"),
                None => "this runtime has no diagnostics pipe: its methods have no names".into(),
            };
        }
        let answers = &self.answers;
        let mut note = String::new();
        if known.second {
            note.push_str("a second runtime: the process has one diagnostics pipe, and which of them answers is not known; ");
        }
        match (answers.whole, answers.trouble) {
            (0, _) if self.asking => {
                note.push_str("its methods were being listed for the first time when the recording ended");
                return note;
            }
            (0, None) => note.push_str("its methods were not listed"),
            (0, Some(_)) => {}
            (times, _) => {
                let plural = if times == 1 { "" } else { "s" };
                note.push_str(&format!("methods listed {times} time{plural} ({} KB)", answers.bytes >> 10));
            }
        }
        let mut add = |text: &str| {
            if !(note.is_empty() || note.ends_with("; ")) {
                note.push_str("; ");
            }
            note.push_str(text);
        };
        if answers.cut != 0 {
            add(&format!("cut off {} times", answers.cut));
        }
        if self.asking {
            add("being listed again when the recording ended");
            return note;
        }
        match answers.trouble {
            None => {}
            Some(Trouble::Absent) if self.names.is_some() => {
                add("no diagnostics pipe (DOTNET_EnableDiagnostics=0)");
            }
            Some(Trouble::Absent) => add(
                "no diagnostics pipe (DOTNET_EnableDiagnostics=0, or the runtime was not ready): methods not listed \
                 have no names",
            ),
            Some(Trouble::Silent) => add("the runtime did not answer in time"),
            Some(Trouble::System(code)) => {
                add(&format!("the diagnostics pipe failed with system error {code}"))
            }
            Some(Trouble::Refused(Refusal::Code(code))) => {
                add(&format!("the runtime refused with {code:#x}"))
            }
            Some(Trouble::Refused(Refusal::Garbled)) => {
                add("what answered on the diagnostics pipe is no .NET runtime");
            }
        }
        if answers.trouble.is_some()
            && let Some(names) = &self.names
        {
            add(names);
        }
        note
    }

    /// Has the host asked, or takes its answers; see [`Names::step`].
    fn step_names(&mut self, names: &mut Names, at_once: bool) {
        if names.step(&MAILBOX, ticks(), at_once, &mut self.journal) {
            self.journal.flush();
        }
    }

    /// Describes how the host's answers go, if that is new.
    fn note_names(&mut self, names: Option<String>) {
        if names != self.names {
            self.names = names;
            self.report();
        }
    }

    fn begin_stream(&mut self) {
        self.write_piece();
        self.session += 1;
        self.offset = 0;
        self.asking = true;
        self.report();
    }

    fn received(&mut self, bytes: &[u8]) {
        self.answers.bytes += bytes.len() as u64;
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.write_piece();
        }
        if self.unflushed >= FLUSH {
            self.flush();
        }
    }

    fn end_stream(&mut self, result: Result<(), Trouble>) {
        match result {
            Ok(()) => self.answers.whole += 1,
            Err(_) => self.answers.cut += 1,
        }
        self.write_piece();
    }

    /// The outcome of asking, stream or none.
    fn asked(&mut self, result: Result<(), Trouble>, version: Option<Vec<u8>>) {
        self.asking = false;
        let changed = self.answers.trouble != result.err();
        self.answers.trouble = result.err();
        let mut named = false;
        if let (Some(version), [known]) = (version, &mut self.known[..])
            && !version.is_empty()
        {
            named = known.version != version;
            known.version = version;
        }
        if changed || named || result.is_ok() {
            self.report();
        }
    }

    fn write_piece(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        let event = Event::Nettrace(Nettrace {
            session: self.session,
            time: ticks(),
            offset: self.offset,
            bytes: &self.piece,
        });
        self.journal.event(&event);
        self.offset += self.piece.len() as u64;
        self.unflushed += self.piece.len() as u64;
        self.piece.clear();
    }
}

/// The thread's own state.
pub struct Speaker<'a> {
    api: &'static Api,
    shared: &'a Shared,
    state: &'a Exclusive<Runtimes>,
    code: &'a dynamic::Shared,
    wake: HANDLE,
    ticks_per_ms: u64,
    names: Names,
    /// When to describe again how that goes, in ticks.
    note_due: u64,
    /// The first runtime with a pipe: load address, what it is, when it was found.
    piped: Option<(u64, Kind, u64)>,
    pipe: Vec<u16>,
    /// Whether the runtime is too old for CollectTracing4.
    old: bool,
    version: Option<Vec<u8>>,
    version_asked: bool,
    /// When the end of the recording was noticed, in ticks.
    stopping: Option<u64>,
    buffer: Vec<u8>,
}

impl<'a> Speaker<'a> {
    /// `code` tells what dynamic code was seen; `wake` is signalled when a runtime was found or the
    /// recording is to end.
    pub fn new(
        api: &'static Api,
        shared: &'a Shared,
        state: &'a Exclusive<Runtimes>,
        code: &'a dynamic::Shared,
        wake: HANDLE,
        ticks_per_ms: u64,
    ) -> Speaker<'a> {
        // SAFETY: no preconditions.
        let pid = unsafe { GetCurrentProcessId() };
        let name = format!("\\\\.\\pipe\\dotnet-diagnostic-{pid}\0");
        Speaker {
            api,
            shared,
            state,
            code,
            wake,
            ticks_per_ms,
            names: Names::new(&MAILBOX, ticks_per_ms),
            note_due: 0,
            piped: None,
            pipe: name.encode_utf16().collect(),
            old: false,
            version: None,
            version_asked: false,
            stopping: None,
            buffer: Vec::new(),
        }
    }

    /// Works until the recording ends. A process without a runtime costs nothing: the thread sleeps
    /// until one is found.
    ///
    /// `census_done` is set when no runtime can be found any more, `code_done` when no dynamic code
    /// can.
    pub fn run(&mut self, census_done: &AtomicBool, code_done: &AtomicBool) {
        let memory = OwnMemory(self.api);
        let mut schedule: Option<Schedule> = None;
        while !SIGNALS.stopping() {
            self.take_found(&mut schedule);
            if let Some(table) = self.shared.table() {
                table.refresh(&memory);
            }
            if let Some(schedule) = &mut schedule {
                let seen = self.code.news.added();
                if schedule.is_due(ticks(), seen) {
                    match self.ask() {
                        Ok(()) => schedule.answered(ticks(), seen),
                        Err(_) => schedule.failed(ticks()),
                    }
                }
            }
            self.ask_host(false);
            let mut wait = match &schedule {
                Some(_) if self.shared.table().is_some() => THREADS_MS,
                Some(schedule) => schedule.wait_ms(ticks()),
                None => u64::from(INFINITE),
            };
            if self.names.asks() {
                wait = wait.min(if self.names.in_flight() { ANSWER_MS } else { MAILBOX_MS });
            }
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(self.wake, wait.min(u64::from(INFINITE)) as u32) };
        }
        // On a machine that is overloaded a recording may end before the first look at the modules
        // does.
        let since = ticks();
        while schedule.is_none() && !census_done.load(Ordering::Acquire) && self.may_wait(since) {
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
        self.state.enter(Runtimes::flush);
    }

    /// Describes what the tables thread has found.
    fn take_found(&mut self, schedule: &mut Option<Schedule>) {
        let memory = OwnMemory(self.api);
        while let Some(found) = self.shared.found.pop() {
            let descriptor = found.descriptor.and_then(|address| Descriptor::read(&memory, address));
            if let Some(layout) = descriptor.as_ref().and_then(Layout::new) {
                self.shared.set_table(Table::new(layout));
            }
            self.state.enter(|state| state.found(&found, descriptor.as_ref()));
            if found.kind.has_pipe() && schedule.is_none() {
                *schedule = Some(Schedule::new(ticks(), self.ticks_per_ms));
                self.piped = Some((found.base, found.kind, ticks()));
            }
            if !found.kind.has_pipe() && !self.names.asks() {
                self.names.ask_of(found.base, found.kind, &MAILBOX);
            }
        }
    }

    /// Has the runtime list its methods. If it does not, the host is asked.
    fn ask(&mut self) -> Result<(), Trouble> {
        self.take_wants();
        let result = self.list();
        let of_piped = self.piped.filter(|_| self.names.runtime().is_none_or(Kind::has_pipe));
        match (result, of_piped) {
            // What was wanted before the list began is in it.
            (Ok(()), Some(_)) => self.names.stop_asking(&MAILBOX),
            (Err(_), Some((base, kind, found))) if !self.names.asks() => {
                let age = ticks().saturating_sub(found) / self.ticks_per_ms;
                if SIGNALS.stopping() || age >= STARTING_MS {
                    self.names.ask_of(base, kind, &MAILBOX);
                }
            }
            _ => {}
        }
        let version = self.version.take();
        self.state.enter(|state| state.asked(result, version));
        result
    }

    /// Takes the addresses that the code thread wants to be named. Without a runtime they stay
    /// where they are.
    fn take_wants(&mut self) {
        while let Some(want) = self.code.wants.pop() {
            self.names.want(want);
        }
    }

    /// Asks the host what waits, and takes its answers.
    fn ask_host(&mut self, at_once: bool) {
        if !self.names.asks() {
            return;
        }
        self.take_wants();
        let names = &mut self.names;
        self.state.enter(|state| state.step_names(names, at_once));
        if ticks() >= self.note_due {
            self.note_due = ticks() + NOTE_MS * self.ticks_per_ms;
            let note = self.names.note(&MAILBOX);
            self.state.enter(|state| state.note_names(note));
        }
    }

    /// The last requests of a recording whose end was asked for, while the process and the host are
    /// there.
    fn finish_names(&mut self, code_done: &AtomicBool) {
        if !self.names.asks() {
            return;
        }
        let since = ticks();
        loop {
            // In this order: what was added last is taken.
            let all_known = code_done.load(Ordering::Acquire);
            self.ask_host(true);
            let young = (ticks() - since) / self.ticks_per_ms < FIRST_LOOK_MS;
            let answers = young || self.names.host_is_there(&MAILBOX);
            if !self.may_wait(since) || !answers || all_known && !self.names.is_busy(&MAILBOX) {
                break;
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
        self.names.counts.left_out += self.code.costs.unasked.load(Ordering::Relaxed);
        let note = self.names.note(&MAILBOX);
        self.state.enter(|state| state.note_names(note));
    }

    fn list(&mut self) -> Result<(), Trouble> {
        if !self.version_asked {
            let mut pipe = self.connect(true)?;
            self.version_asked = true;
            // Before .NET 6 it is not known: the version in the module's resources stands.
            if let Ok(payload) = self.request(&mut pipe, Request::ProcessInfo2) {
                self.version = ipc::version(&payload);
            }
        }
        let (mut stream, session) = self.start()?;
        self.state.enter(Runtimes::begin_stream);
        let result = self.receive(&mut stream, session);
        self.state.enter(|state| state.end_stream(result));
        result
    }

    /// Starts a session, by the newest command that the runtime has.
    fn start(&mut self) -> Result<(Pipe, u64), Trouble> {
        if !self.old {
            let mut pipe = self.connect(true)?;
            match self.request(&mut pipe, Request::CollectTracing4) {
                Ok(payload) => return Ok((pipe, ipc::session(&payload)?)),
                Err(Trouble::Refused(Refusal::Code(ipc::UNKNOWN_COMMAND))) => self.old = true,
                Err(other) => return Err(other),
            }
        }
        let mut pipe = self.connect(true)?;
        let payload = self.request(&mut pipe, Request::CollectTracing2)?;
        Ok((pipe, ipc::session(&payload)?))
    }

    /// Ends the session at once, which makes the runtime list everything, and receives that. The
    /// reply to the request comes after the stream's end only.
    fn receive(&mut self, stream: &mut Pipe, session: u64) -> Result<(), Trouble> {
        let mut control = self.connect(false)?;
        control.write(&Request::StopTracing { session }.message(), STALLED_MS as u32)?;
        let mut buffer = core::mem::take(&mut self.buffer);
        buffer.resize(PIECE, 0);
        let mut moved = ticks();
        let result: Result<(), Trouble> = loop {
            match stream.read(&mut buffer, STEP_MS) {
                Ok(0) => break Ok(()),
                Ok(read) => {
                    let bytes = buffer.get(..read).unwrap_or(&[]);
                    self.state.enter(|state| state.received(bytes));
                    moved = ticks();
                }
                Err(Fault::Late) if self.may_wait(moved) => {}
                Err(fault) => break Err(fault.into()),
            }
        };
        self.buffer = buffer;
        result?;
        let mut header = [0; HEADER];
        let _ = control.read_exact(&mut header, STEP_MS);
        Ok(())
    }

    /// Sends a request and gives the payload of its reply.
    fn request(&mut self, pipe: &mut Pipe, request: Request) -> Result<Vec<u8>, Trouble> {
        let ms = STALLED_MS.min(LAST_MS) as u32;
        pipe.write(&request.message(), ms)?;
        let mut header = [0; HEADER];
        pipe.read_exact(&mut header, ms)?;
        let mut payload = vec![0; ipc::payload_len(&header)?];
        pipe.read_exact(&mut payload, ms)?;
        ipc::reply(&header, &payload)?;
        Ok(payload)
    }

    /// Opens the pipe. The runtime serves one client at a time and makes the pipe anew for the
    /// next, so that it can be busy, or, in the middle of things, absent. `absent` says whether its
    /// absence is to be taken as such.
    fn connect(&mut self, absent: bool) -> Result<Pipe, Trouble> {
        let since = ticks();
        loop {
            match Pipe::open(&self.pipe) {
                Ok(pipe) => return Ok(pipe),
                Err(Fault::System(ERROR_FILE_NOT_FOUND)) if absent && !self.version_asked => {
                    return Err(Trouble::Absent);
                }
                Err(Fault::System(ERROR_FILE_NOT_FOUND | ERROR_PIPE_BUSY)) => {}
                Err(fault) => return Err(fault.into()),
            }
            if !self.may_wait(since) {
                return Err(Trouble::Silent);
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(BUSY_MS) };
        }
    }

    /// Whether the runtime, which last did something at `moved`, may be waited for.
    fn may_wait(&mut self, moved: u64) -> bool {
        let now = ticks();
        if SIGNALS.stopping() {
            let since = *self.stopping.get_or_insert(now);
            if now.saturating_sub(since) >= LAST_MS * self.ticks_per_ms {
                return false;
            }
        }
        now.saturating_sub(moved) < STALLED_MS * self.ticks_per_ms
    }
}
