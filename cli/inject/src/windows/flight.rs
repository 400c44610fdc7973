//! `--flight`: the section that stands in for the trace's file, the thread that writes traces of
//! it, and `inject snap`, which asks for one. [`crate::flight`] makes the traces.
//!
//! The section has no name: nobody else can open it, and nobody can have made it before.

use super::agent::Agent;
use super::complete::{self, CompletionRequest};
use super::output::{IfThere, Output};
use super::process::Process;
use super::system::{self, Event};
use crate::contents;
use crate::failure::Failure;
use crate::flight::{self, Ring, RingReader};
use crate::messages::{self, say};
use crate::{duration, steps, uuid};
use std::io::{self, BufWriter};
use std::mem::offset_of;
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, BorrowedHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_schema::bytes::u32_in;
use stk_schema::flight::{
    ANSWER_BYTES, FLIGHT_VERSION, FlightHeader, RING_AT, RING_BYTES, SNAP_FAILED, SNAP_WRITTEN,
};
use stk_schema::text::{count, size};
use windows_sys::Win32::Foundation::INVALID_HANDLE_VALUE;
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FILE_MAP_READ, FILE_MAP_WRITE, MEMORY_MAPPED_VIEW_ADDRESS, MapViewOfFile,
    PAGE_READWRITE, UnmapViewOfFile,
};

/// Milliseconds between looks at the ring.
const POLL_MS: u32 = 50;
/// The age at which the recorder writes a block of samples that is not full, and some time for it.
const BLOCK_AGE: Duration = Duration::from_millis(1_200);
/// How long the ring is read at the end. The target can fill it with what takes hours.
const LAST_LOOK: Duration = Duration::from_secs(2);
/// Most files of one recording.
const MOST_FILES: u32 = 100_000;

/// The section, mapped.
pub(crate) struct FlightSection {
    handle: OwnedHandle,
    view: MEMORY_MAPPED_VIEW_ADDRESS,
}

// SAFETY: the header's fields are atomic, and the bytes of the ring are only copied, on any thread.
unsafe impl Send for FlightSection {}
// SAFETY: as above.
unsafe impl Sync for FlightSection {}

impl FlightSection {
    /// A section for so many milliseconds.
    ///
    /// # Errors
    /// A sentence for the user: no memory.
    pub(crate) fn new(window_ms: u32) -> Result<FlightSection, Failure> {
        let fail = |error: io::Error| {
            Failure::failed(format!("no {} MiB of memory for --flight: {error}", RING_BYTES >> 20))
        };
        let size = RING_AT as u32 + RING_BYTES as u32;
        // SAFETY: memory of the system's, for this user, without a name; the handle is fresh.
        let handle = unsafe {
            system::own(CreateFileMappingW(
                INVALID_HANDLE_VALUE,
                ptr::null(),
                PAGE_READWRITE,
                0,
                size,
                ptr::null(),
            ))
        };
        let handle = handle.map_err(fail)?;
        // SAFETY: the section is open.
        let view = unsafe { MapViewOfFile(handle.as_raw_handle(), FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, 0) };
        if view.Value.is_null() {
            return Err(fail(io::Error::last_os_error()));
        }
        let section = FlightSection { handle, view };
        section.header().prepare(RING_BYTES, window_ms);
        Ok(section)
    }

    /// For duplication.
    pub(crate) fn handle(&self) -> BorrowedHandle<'_> {
        self.handle.as_handle()
    }

    fn header(&self) -> &FlightHeader {
        // SAFETY: the view begins with the header, lasts as long as `self`, and holds numbers for
        // which any bits are valid.
        unsafe { &*self.view.Value.cast::<FlightHeader>() }
    }
}

impl Ring for FlightSection {
    fn size(&self) -> u64 {
        RING_BYTES
    }

    fn begun(&self) -> u64 {
        // What was copied before this was copied before `begun` is read.
        fence(Ordering::SeqCst);
        self.header().begun.load(Ordering::Acquire)
    }

    fn written(&self) -> u64 {
        self.header().written.load(Ordering::Acquire)
    }

    fn consume(&self, to: u64) {
        self.header().consumed.store(to, Ordering::Release);
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        let place = (at % RING_BYTES) as usize;
        let (first, rest) = out.split_at_mut(out.len().min(RING_BYTES as usize - place));
        let rest_len = rest.len().min(RING_BYTES as usize);
        // SAFETY: both parts lie within the ring, whose size is `RING_BYTES`. The agent may write
        // to them meanwhile; the bytes are used only if `begun` says that it did not.
        unsafe {
            let data = self.view.Value.cast::<u8>().add(RING_AT);
            ptr::copy(data.add(place), first.as_mut_ptr(), first.len());
            ptr::copy(data, rest.as_mut_ptr(), rest_len);
        }
    }
}

impl Drop for FlightSection {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nothing refers to it any more.
        unsafe { UnmapViewOfFile(self.view) };
    }
}

/// Which traces are to be written, and where.
#[derive(Clone, Debug)]
pub(crate) struct FlightPlan {
    /// The name from which the numbered names are made.
    pub path: PathBuf,
    pub force: bool,
    pub window_ms: u32,
    pub embed: u32,
    /// Most bytes of all traces together; `None` = what is usual for a trace, 0 = no limit.
    pub max_bytes: Option<u64>,
}

/// Follows the ring until it is told to finish.
#[derive(Debug)]
pub(crate) struct FlightThread {
    stop: Arc<Event>,
    /// Whether to write a trace at the end.
    last: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl FlightThread {
    /// Begins to follow.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn start(section: Arc<FlightSection>, plan: FlightPlan) -> Result<FlightThread, Failure> {
        let fail = |error: io::Error| Failure::failed(format!("no thread can follow the ring: {error}"));
        let stop = Arc::new(Event::new().map_err(fail)?);
        let last = Arc::new(AtomicBool::new(false));
        let (stopped, wanted) = (stop.clone(), last.clone());
        let work = move || Follower::new(section, plan).run(&stopped, &wanted);
        let thread = std::thread::Builder::new().name("flight".to_owned()).spawn(work).map_err(fail)?;
        Ok(FlightThread { stop, last, thread: Some(thread) })
    }

    /// Ends the following, with a last trace if `last`. Returns what was written, in words.
    pub(crate) fn finish(mut self, last: bool) -> String {
        self.last.store(last, Ordering::Release);
        self.stop.set();
        let written = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        match &written[..] {
            [] => "nothing was written: no mark, no inject snap and no end of the process asked for it"
                .to_owned(),
            written => written.join("; "),
        }
    }
}

impl Drop for FlightThread {
    fn drop(&mut self) {
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Follower {
    section: Arc<FlightSection>,
    plan: FlightPlan,
    reader: RingReader,
    number: u32,
    bytes: u64,
    /// What was written, in words.
    written: Vec<String>,
    /// Whether a mark waits for its trace.
    marked: bool,
    /// When the last trace was written.
    last: Option<Instant>,
}

impl Follower {
    fn new(section: Arc<FlightSection>, plan: FlightPlan) -> Follower {
        let reader = RingReader::new();
        Follower {
            section,
            plan,
            reader,
            number: 0,
            bytes: 0,
            written: Vec::new(),
            marked: false,
            last: None,
        }
    }

    fn run(mut self, stop: &Event, last: &AtomicBool) -> Vec<String> {
        while !system::wait(stop.handle(), POLL_MS) {
            steps::begin(steps::Thread::Flight, "reads the ring");
            self.look(&|| system::wait(stop.handle(), 0));
            let header = self.section.header();
            let requests = header.requests.load(Ordering::Acquire);
            if requests != header.answered.load(Ordering::Relaxed) {
                self.await_samples(stop);
                self.answer(requests);
            } else if self.marked && self.may_follow_mark() {
                self.await_samples(stop);
                self.report("a mark");
            }
        }
        let begun = Instant::now();
        self.look(&|| begun.elapsed() > LAST_LOOK);
        if last.load(Ordering::Acquire) || self.marked {
            self.report("the end");
        }
        let requests = self.section.header().requests.load(Ordering::Acquire);
        if requests != self.section.header().answered.load(Ordering::Relaxed) {
            self.answer(requests);
        }
        self.written
    }

    /// Waits until the samples up to now are in the ring: the recorder writes a block of them each
    /// second.
    fn await_samples(&mut self, stop: &Event) {
        let asked = Instant::now();
        while asked.elapsed() < BLOCK_AGE && !system::wait(stop.handle(), POLL_MS) {
            self.look(&|| system::wait(stop.handle(), 0));
        }
    }

    fn look(&mut self, stop: &dyn Fn() -> bool) {
        self.marked |= self.reader.poll(&*self.section, stop) != 0;
    }

    /// Marks within the time of one trace share the next.
    fn may_follow_mark(&self) -> bool {
        let window = Duration::from_millis(u64::from(self.plan.window_ms));
        self.last.is_none_or(|last| last.elapsed() >= window)
    }

    fn report(&mut self, cause: &str) {
        match self.snap() {
            Ok(text) => say(&format!("{cause}: {text}")),
            Err(failure) => say(&format!("inject: {cause}: {failure}")),
        }
    }

    fn answer(&mut self, requests: u32) {
        let (outcome, text) = match self.snap() {
            Ok(text) => (SNAP_WRITTEN, text),
            Err(failure) => (SNAP_FAILED, failure.to_string()),
        };
        say(&format!("asked: {text}"));
        self.section.header().answer(requests, outcome, &text);
    }

    /// Writes a trace. Returns its name and contents.
    fn snap(&mut self) -> Result<String, Failure> {
        steps::begin(steps::Thread::Flight, "writes a trace");
        self.marked = false;
        self.last = Some(Instant::now());
        let output = self.next_output()?;
        let limit = self.plan.max_bytes.unwrap_or_else(|| output.default_limit());
        if limit != 0 && self.bytes.saturating_add(RING_BYTES) > limit {
            let (what, way) = match self.plan.max_bytes {
                Some(_) => ("--max-size", "allow more"),
                None => (
                    "a tenth of the disk's free space",
                    "make room, or say with --max-size how much they may have",
                ),
            };
            return Err(Failure::failed(format!(
                "no trace was written: it may have up to {RING_BYTES} bytes, and all traces of this recording together could \
                 exceed {what} ({limit} bytes): {way}"
            )));
        }
        output.empty()?;
        let mut file = BufWriter::new(output.file());
        let made = self.reader.snapshot(&*self.section, self.plan.window_ms, uuid::random(), &mut file);
        drop(file);
        let shown = messages::file(output.path());
        let made = made.map_err(|error| Failure::failed(format!("{shown}: {error}")))?;
        self.bytes += made.bytes;
        let (path, trace) = output.keep();
        complete::run(&path, &CompletionRequest { embed: self.plan.embed, tables: None, trace }, true);
        let text = describe(&path, made);
        self.written.push(text.clone());
        Ok(text)
    }

    /// The next file whose name is free.
    fn next_output(&mut self) -> Result<Output, Failure> {
        while self.number < MOST_FILES {
            self.number += 1;
            let path = flight::numbered(&self.plan.path, self.number);
            if self.plan.force || !path.exists() {
                return Output::open(&path, IfThere::for_trace(self.plan.force));
            }
        }
        Err(Failure::failed(format!("{}: too many files", messages::file(&self.plan.path))))
    }
}

fn describe(path: &Path, made: flight::Snapshot) -> String {
    let contents = std::fs::File::open(path).and_then(|mut file| contents::read(&mut file)).ok().flatten();
    let mut text = messages::file(path);
    if let Some(held) = contents {
        let (covered, bytes) = (duration::show(held.elapsed_ms), size(held.bytes));
        text.push_str(&format!(
            ": {covered}, {} samples, {} dropped, {bytes}",
            count(held.samples),
            count(held.dropped)
        ));
    }
    for (number, what) in [
        (made.torn, "blocks were overwritten while they were read"),
        (made.left_out, "blocks with tables or names had no room in memory"),
    ] {
        if number != 0 {
            text.push_str(&format!("; {number} {what}"));
        }
    }
    text
}

/// The message that a recording has begun.
pub(crate) fn begun(process: &Process, plan: &FlightPlan) -> String {
    format!(
        "recording {process} in memory: the last {} s go to {} when a mark, inject snap --pid {} or its end asks for them",
        plan.window_ms.div_ceil(1000),
        messages::file(&flight::numbered(&plan.path, 1)),
        process.pid()
    )
}

/// Asks the inject that records the process for a trace, and waits for it. Returns the trace, in
/// words.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn snap(process: &Process, agent: &Agent, timeout_ms: u32) -> Result<String, Failure> {
    let status = agent.status(process)?;
    if status.flight == 0 {
        return Err(Failure::failed(format!(
            "{process} is recorded into a file, not into memory: only recordings with --flight have something to write"
        )));
    }
    let gone = || Failure::target(format!("the recording of {process} ended meanwhile"));
    let number = |field: usize| {
        let mut bytes = [0; 4];
        process.read(status.flight + field as u64, &mut bytes).then(|| u32_in(&bytes, 0)).ok_or_else(gone)
    };
    if number(offset_of!(FlightHeader, version))? != FLIGHT_VERSION {
        return Err(Failure::failed(format!(
            "{process} is recorded by another version of stk: use that version's inject"
        )));
    }
    let request = number(offset_of!(FlightHeader, requests))?.wrapping_add(1);
    if !process.write(status.flight + offset_of!(FlightHeader, requests) as u64, &request.to_le_bytes()) {
        return Err(gone());
    }
    let begun = Instant::now();
    while (number(offset_of!(FlightHeader, answered))?.wrapping_sub(request) as i32) < 0 {
        if begun.elapsed() >= Duration::from_millis(u64::from(timeout_ms)) {
            return Err(Failure::failed(format!(
                "the inject that records {process} did not answer within {} s",
                timeout_ms.div_ceil(1000)
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut answer = [0; ANSWER_BYTES];
    let len = (number(offset_of!(FlightHeader, answer_len))? as usize).min(ANSWER_BYTES);
    if !process.read(status.flight + offset_of!(FlightHeader, answer) as u64, &mut answer[..len]) {
        return Err(gone());
    }
    let text = String::from_utf8_lossy(&answer[..len]).into_owned();
    match number(offset_of!(FlightHeader, outcome))? {
        SNAP_WRITTEN => Ok(text),
        _ => Err(Failure::failed(text)),
    }
}
