//! Answers the agent's requests for names of code in the recorded process, from its runtime's data
//! access library.
//!
//! The library (mscordaccore.dll, mscordacwks.dll) is the runtime's own debugging aid: it reads the
//! process from outside and knows the runtime's structures. It runs here, on a thread of its own,
//! so that a failure affects only this inject. The agent continues to record and limits its wait
//! for an answer.
//!
//! * `library`: finds and calls it.
//! * `file`: whether its file may be loaded.
//! * `target`: the process as the library sees it, read-only.
//!
//! `crate::dac::mailbox` defines the bytes that the two processes exchange.

mod candidate;
mod file;
mod library;
mod target;

use super::mutex::{self, OwnedMutex};
use super::process::{NAMING, Process};
use super::refusal;
use super::system::{self, Event};
use crate::dac::mailbox::{self, Head, NameRequest};
use crate::dac::symbol_path::SymbolPath;
use crate::steps;
use crate::trust::IntegrityLevel;
use library::{Library, ReadFailure};
use std::os::windows::io::{AsHandle as _, OwnedHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_schema::control::AgentStatus;
use stk_schema::mailbox::{HEADER_BYTES, HOST_ANSWERS, HOST_CANNOT, HOST_LOOKS, NameMailbox, SLOTS};

/// Milliseconds between reads of the mailbox ...
const LOOK_MS: u32 = 100;
/// ... and while requests follow each other.
const BUSY_MS: u32 = 2;
/// How long to expect further requests after one.
const BUSY: Duration = Duration::from_millis(300);
/// How long to retry a library that fails. A runtime that is starting cannot be read yet, although
/// code that it made was seen.
const TRY: Duration = Duration::from_millis(1_500);
/// Milliseconds to wait for the end of the thread: it looks more often than that.
const END_MS: u32 = 3 * LOOK_MS;
/// Milliseconds to wait for the mutex of the mailbox: a host of the last recording may be ending.
const LOCK_MS: u32 = 10_000;
/// Stack of the thread, for a library that recurses over types.
const STACK: usize = 8 << 20;
/// Milliseconds before each try to name a request's addresses. The runtime runs while the library
/// reads it. If the library finds a structure that is being changed, it fails for every address
/// until its cache is cleared.
const TRIES_MS: [u64; 5] = [0, 1, 5, 20, 50];
/// The most milliseconds of such waiting in all requests of a recording, because some failures are
/// permanent.
const MOST_WAITED_MS: u64 = 2_000;
/// How often a library that has named nothing is opened again.
const MOST_REOPENED: u32 = 8;
/// Milliseconds between tries.
const TRY_MS: u32 = 250;

/// Answers the agent's requests until it is dropped.
#[derive(Debug)]
pub(crate) struct Names {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Names {
    /// Begins to poll the mailbox of an agent with this status; `None` if it has none, or if its
    /// recording has `ended` already. The library may also lie on the symbol path. `below`: treat
    /// the process as another user's.
    pub(crate) fn start(
        process: &Process,
        status: &AgentStatus,
        ended: &Event,
        symbols: SymbolPath,
        below: bool,
    ) -> Option<Names> {
        let mailbox = Some(status.names).filter(|&address| address != 0)?;
        let lock = lock_of(process, mailbox);
        let ended = ended.handle().try_clone_to_owned().ok()?;
        // An agent whose recording has ended may leave: what was read may be no mailbox.
        if system::wait(ended.as_handle(), 0) {
            return None;
        }
        let handle = process.narrowed(NAMING).ok()?;
        let process = Process::from_handle(handle, process.pid()).ok()?;
        let rank = if below { IntegrityLevel::Below } else { refusal::rank(process.handle()) };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            let (access, failures) = (DataAccess::default(), ReadFailures::default());
            // With the mutex, the agent stays mapped from here on, unless its recording has ended.
            let _lock = match lock.map(|lock| OwnedMutex::take(lock, LOCK_MS)) {
                Some(Err(_)) => return,
                Some(Ok(lock)) => Some(lock),
                None => None,
            };
            if !system::wait(ended.as_handle(), 0) {
                Host { process, rank, mailbox, symbols, stop: stopped, beat: 0, access, failures }.run();
            }
        };
        let thread = std::thread::Builder::new().name("names".to_owned()).stack_size(STACK).spawn(work);
        Some(Names { stop, thread: thread.ok()? })
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread is not joined, because a library may hang. But it should not end while this
        // process does: Wine 10 then sometimes gives the thread's exit code as the process's.
        system::wait(self.thread.as_handle(), END_MS);
    }
}

/// The mutex of the mailbox's host, not taken yet; `None` with an older agent.
fn lock_of(process: &Process, mailbox: u64) -> Option<OwnedHandle> {
    let mut lock = [0; 4];
    let at = std::mem::offset_of!(NameMailbox, lock) as u64;
    let known = process.read(mailbox + at, &mut lock) && lock != [0; 4];
    known.then(|| mutex::duplicate(process, u32::from_le_bytes(lock).into()).ok()).flatten()
}

struct Host {
    process: Process,
    /// The process's user and rights compared with inject's.
    rank: IntegrityLevel,
    /// Address of the mailbox.
    mailbox: u64,
    /// Further folders in which the library may lie.
    symbols: SymbolPath,
    stop: Arc<AtomicBool>,
    beat: u32,
    access: DataAccess,
    failures: ReadFailures,
}

/// The data access library, and what came of opening it.
#[derive(Default)]
struct DataAccess {
    library: Option<Library>,
    trying_since: Option<Instant>,
    /// Why there is no library. If set, none is tried again.
    error: Option<String>,
    /// Whether the library has named anything yet.
    named: bool,
    /// How often it was opened again because it had named nothing.
    reopened: u32,
}

/// The runtime's structures that the library could not read.
#[derive(Default)]
struct ReadFailures {
    /// Addresses for which it could not.
    addresses: usize,
    /// The library's error when that happened last.
    code: u32,
    /// Milliseconds spent waiting for readable structures.
    waited_ms: u64,
}

/// The mailbox or the process is gone.
struct MailboxLoss;

/// One address of a request.
#[derive(Clone, Copy)]
struct NameQuestion {
    address: u64,
    /// Address in the process for the answer.
    answer_at: u64,
    /// Address in the process for that of GCInfo; `None` with an older agent.
    gc_info_at: Option<u64>,
}

impl Host {
    fn run(mut self) {
        let mut busy = None;
        if self.say(HOST_LOOKS, "").is_err() {
            return;
        }
        while !self.stop.load(Ordering::Acquire) {
            let wait = match self.look() {
                Ok(true) => {
                    busy = Some(Instant::now());
                    BUSY_MS
                }
                Ok(false) if self.access.trying_since.is_some() && self.access.library.is_none() => TRY_MS,
                Ok(false) if busy.is_some_and(|since: Instant| since.elapsed() < BUSY) => BUSY_MS,
                Ok(false) => LOOK_MS,
                Err(MailboxLoss) => return,
            };
            steps::begin(steps::Thread::Names, "waits");
            if system::wait(self.process.handle().as_handle(), wait) {
                return;
            }
        }
    }

    /// Reads the mailbox once; true if a request was answered.
    fn look(&mut self) -> Result<bool, MailboxLoss> {
        steps::begin(steps::Thread::Names, "reads the mailbox");
        let mut head = [0; HEADER_BYTES];
        if !self.process.read(self.mailbox, &mut head) {
            return Err(MailboxLoss);
        }
        match mailbox::head(&head) {
            Head::Unknown => Err(MailboxLoss),
            Head::Idle => self.beat().map(|()| false),
            Head::Asks(request) => self.serve(request),
        }
    }

    fn serve(&mut self, request: NameRequest) -> Result<bool, MailboxLoss> {
        steps::begin(steps::Thread::Names, "asks the data access library");
        self.beat()?;
        if self.access.library.is_none() && self.access.error.is_none() && !self.open(request)? {
            return Ok(false);
        }
        let questions = self.questions(request)?;
        let mut unread = self.try_to_answer(&questions)?;
        while self.access.library.is_some() && !self.access.named && self.may_reopen() {
            // The data that it read when it was opened may be wrong too.
            (self.access.library, self.access.trying_since) = (None, None);
            self.access.reopened += 1;
            if !self.open(request)? {
                return Ok(false);
            }
            unread = self.try_to_answer(&questions)?;
        }
        self.give_up(&unread)?;
        let at = std::mem::offset_of!(NameMailbox, answer);
        self.put(self.mailbox + at as u64, &request.number.to_le_bytes())?;
        Ok(true)
    }

    /// Whether a library that has named nothing may be opened again.
    fn may_reopen(&self) -> bool {
        self.access.reopened < MOST_REOPENED
            && self.failures.waited_ms < MOST_WAITED_MS
            && !self.stop.load(Ordering::Acquire)
    }

    fn questions(&self, request: NameRequest) -> Result<Vec<NameQuestion>, MailboxLoss> {
        (0..request.count.min(SLOTS))
            .map(|index| {
                let slot = self.mailbox + mailbox::slot_at(index) as u64;
                let mut address = [0; 8];
                let read = self.process.read(slot, &mut address);
                let answer_at = slot + mailbox::ANSWER_AT as u64;
                let gc_info_at = request.gc_info.then(|| self.mailbox + mailbox::gc_info_at(index) as u64);
                let question = NameQuestion { address: u64::from_le_bytes(address), answer_at, gc_info_at };
                read.then_some(question).ok_or(MailboxLoss)
            })
            .collect()
    }

    /// Answers, with retries. Returns the questions whose structures could not be read.
    fn try_to_answer(&mut self, questions: &[NameQuestion]) -> Result<Vec<NameQuestion>, MailboxLoss> {
        let mut open = questions.to_vec();
        let mut unread = Vec::new();
        for ms in TRIES_MS {
            self.wait(ms);
            unread = self.answer(&open)?;
            // A library that has named nothing yet may have found the runtime's lists empty because
            // they were being changed, so its answer is not reliable.
            let certain = self.access.named || self.access.library.is_none();
            if unread.is_empty() && certain || self.failures.waited_ms >= MOST_WAITED_MS {
                break;
            }
            if certain {
                open.clone_from(&unread);
            }
        }
        Ok(unread)
    }

    /// Answers the questions that can be answered now. Returns those whose structures could not be
    /// read.
    fn answer(&mut self, questions: &[NameQuestion]) -> Result<Vec<NameQuestion>, MailboxLoss> {
        if let Some(library) = &mut self.access.library {
            library.refresh();
        }
        let mut unread = Vec::new();
        for &question in questions {
            let answer =
                self.access.library.as_mut().map_or(Ok(None), |library| library.name(question.address));
            match answer {
                Ok(answer) => {
                    self.access.named |= answer.is_some();
                    self.put(question.answer_at, &mailbox::answer(answer.as_ref()))?;
                    if let Some(at) = question.gc_info_at {
                        let gc_info = answer.map_or(0, |answer| answer.gc_info);
                        self.put(at, &gc_info.to_le_bytes())?;
                    }
                }
                Err(ReadFailure { code }) => {
                    self.failures.code = code;
                    unread.push(question);
                }
            }
            self.beat()?;
        }
        Ok(unread)
    }

    /// Answers that there is no name, and says why.
    fn give_up(&mut self, unread: &[NameQuestion]) -> Result<(), MailboxLoss> {
        for question in unread {
            self.put(question.answer_at, &mailbox::answer(None))?;
        }
        self.failures.addresses += unread.len();
        match &self.access.library {
            Some(library) if !unread.is_empty() => {
                let (title, code) = (library.title(), self.failures.code);
                let text =
                    format!("{title}, which could not read {} (error {code:#010x})", self.failures.addresses);
                self.say(HOST_ANSWERS, &text)
            }
            _ => Ok(()),
        }
    }

    fn wait(&mut self, ms: u64) {
        let begun = Instant::now();
        std::thread::sleep(Duration::from_millis(ms));
        self.failures.waited_ms += begun.elapsed().as_millis() as u64;
    }

    /// Tries to open the library; false if the caller must try again.
    fn open(&mut self, request: NameRequest) -> Result<bool, MailboxLoss> {
        let since = *self.access.trying_since.get_or_insert_with(Instant::now);
        match Library::open(&self.process, self.rank, request.runtime, request.kind, &self.symbols) {
            Ok(library) => {
                self.say(HOST_ANSWERS, library.title())?;
                self.access.library = Some(library);
            }
            Err(error) if error.may_pass && since.elapsed() < TRY => {
                self.say(HOST_LOOKS, &error.text)?;
                return Ok(false);
            }
            Err(error) => {
                self.say(HOST_CANNOT, &error.text)?;
                self.access.error = Some(error.text);
            }
        }
        Ok(true)
    }

    fn beat(&mut self) -> Result<(), MailboxLoss> {
        self.beat = self.beat.wrapping_add(1);
        let at = std::mem::offset_of!(NameMailbox, beat);
        self.put(self.mailbox + at as u64, &self.beat.to_le_bytes())
    }

    fn say(&self, state: u32, text: &str) -> Result<(), MailboxLoss> {
        const ROOM: usize = 240;
        let text = mailbox::cut(text, ROOM);
        let message = std::mem::offset_of!(NameMailbox, message);
        self.put(self.mailbox + message as u64, text.as_bytes())?;
        // State and length are adjacent and lie before the text.
        let at = std::mem::offset_of!(NameMailbox, host_state);
        let head = [state.to_le_bytes(), (text.len() as u32).to_le_bytes()].concat();
        self.put(self.mailbox + at as u64, &head)
    }

    fn put(&self, address: u64, bytes: &[u8]) -> Result<(), MailboxLoss> {
        if self.process.write(address, bytes) { Ok(()) } else { Err(MailboxLoss) }
    }
}
