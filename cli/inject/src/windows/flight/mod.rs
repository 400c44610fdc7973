//! `--flight`: a recording in a ring of files in a private folder, and the thread that makes traces
//! of them when something asks for it.
//!
//! * `folder`: the private folder.
//! * `desk`: what other injects, and the agent, ask for.

mod desk;
mod folder;

pub(crate) use desk::snap;

use super::output::{self, IfThere, Output};
use super::process::Process;
use crate::failure::Failure;
use crate::flight::{self, JoinPlan, RingPart, Snapshot};
use crate::messages::{self, say};
use crate::rotate::{Deletion, RingFile};
use crate::windows::supplement::{self, CompletionRequest};
use crate::{duration, steps, trace_summary, uuid};
use folder::FlightFolder;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter};
use std::os::windows::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_schema::text::{count, size};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE,
};

/// Between two looks for files that are too old.
const SWEEP: Duration = Duration::from_millis(500);
/// The age at which the recorder writes a block of samples that is not full, and some time for it.
const BLOCK_AGE: Duration = Duration::from_millis(1_200);
/// Most files of one recording.
const MOST_FILES: u32 = 100_000;

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

/// A file of the ring.
#[derive(Clone, Debug)]
struct BegunFile {
    file: RingFile,
    continued: bool,
    /// When the agent had written its end.
    ended: Option<Instant>,
}

/// Orders for the thread.
#[derive(Default)]
struct Orders {
    begun: Vec<BegunFile>,
    ended: Vec<PathBuf>,
    /// The most bytes of a file.
    most_bytes: u64,
    /// Whether a mark waits for its trace.
    marked: bool,
    /// The number of a request that waits.
    request: Option<u32>,
    /// What came of requests, with their numbers.
    answers: Vec<(u32, Result<String, String>)>,
    /// Whether to finish, and with a last trace.
    finish: Option<bool>,
}

#[derive(Default)]
struct SharedOrders {
    orders: Mutex<Orders>,
    changed: Condvar,
}

impl SharedOrders {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, work: impl FnOnce(&mut Orders)) {
        work(&mut self.orders());
        self.changed.notify_all();
    }

    /// Waits until something is ordered, or for so long.
    fn wait(&self, most: Duration) -> MutexGuard<'_, Orders> {
        let idle = |orders: &mut Orders| {
            orders.begun.is_empty()
                && orders.ended.is_empty()
                && orders.request.is_none()
                && orders.finish.is_none()
        };
        let orders = self.changed.wait_timeout_while(self.orders(), most, idle);
        orders.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether it is time to finish, after some time at most.
    fn finishes_within(&self, most: Duration) -> bool {
        let going = |orders: &mut Orders| orders.finish.is_none();
        let orders = self.changed.wait_timeout_while(self.orders(), most, going);
        orders.unwrap_or_else(PoisonError::into_inner).0.finish.is_some()
    }
}

/// Makes traces of the ring, and deletes its old files, until it is to finish.
pub(crate) struct FlightThread {
    shared: Arc<SharedOrders>,
    ring_path: PathBuf,
    plan: FlightPlan,
    thread: Option<JoinHandle<Vec<String>>>,
    /// Marks and exceptions that are known.
    triggers: u32,
    /// The last request that is known.
    request: Option<u32>,
    /// Address of the desk.
    desk: u64,
    /// What was written, in words.
    written: Vec<String>,
}

impl FlightThread {
    /// Makes the folder of the ring and begins to wait for its files.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn start(plan: FlightPlan) -> Result<FlightThread, Failure> {
        let folder = FlightFolder::new()?;
        let ring_path = folder.ring_path();
        let shared = Arc::new(SharedOrders::default());
        let (own, planned) = (shared.clone(), plan.clone());
        let work = move || RingTailer::new(folder, planned).run(&own);
        let thread = std::thread::Builder::new().name("flight".to_owned()).spawn(work).map_err(|error| {
            Failure::failed(format!("no thread can follow the ring of --flight: {error}"))
        })?;
        Ok(FlightThread {
            shared,
            ring_path,
            plan,
            thread: Some(thread),
            triggers: 0,
            request: None,
            desk: 0,
            written: Vec::new(),
        })
    }

    /// The name from which the names of the ring's files are made.
    pub(crate) fn ring_path(&self) -> &Path {
        &self.ring_path
    }

    /// The recording goes into this file now. `continued`: without a gap. `most_bytes`: what the
    /// agent may write.
    pub(crate) fn begin_file(&self, path: &Path, uuid: [u8; 16], continued: bool, most_bytes: u64) {
        let file = RingFile { path: path.to_owned(), uuid };
        self.shared.change(|orders| {
            orders.begun.push(BegunFile { file, continued, ended: None });
            orders.most_bytes = orders.most_bytes.max(most_bytes);
        });
    }

    /// The agent has ended a file.
    pub(crate) fn end_file(&self, path: &Path) {
        self.shared.change(|orders| orders.ended.push(path.to_owned()));
    }

    /// Passes on requests at the desk at this address, and the answers.
    pub(crate) fn look(&mut self, process: &Process, desk: u64) {
        if desk != 0 {
            self.desk = desk;
        }
        if self.desk == 0 {
            return;
        }
        for (number, result) in std::mem::take(&mut self.shared.orders().answers) {
            desk::put_answer(process, self.desk, number, &result);
        }
        let Some(wanted) = desk::wanted(process, self.desk) else { return };
        let marked = wanted.triggers != self.triggers && wanted.triggers != 0;
        self.triggers = wanted.triggers;
        let asked = wanted.requests != wanted.answered && self.request != Some(wanted.requests);
        if asked {
            self.request = Some(wanted.requests);
        }
        if marked || asked {
            self.shared.change(|orders| {
                orders.marked |= marked;
                if asked {
                    orders.request = Some(wanted.requests);
                }
            });
        }
    }

    /// Ends the ring, with a last trace if `last`, and answers requests. The agent must not
    /// leave the process before.
    pub(crate) fn finish(&mut self, process: &Process, last: bool) {
        self.look(process, 0);
        self.shared.change(|orders| orders.finish = Some(last));
        self.written = self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default();
        self.look(process, 0);
    }

    /// What was written, in words.
    pub(crate) fn text(&self) -> String {
        match &self.written[..] {
            [] => "nothing was written: no mark, no inject snap and no end of the process asked for it"
                .to_owned(),
            written => written.join("; "),
        }
    }

    /// The message that a recording has begun.
    pub(crate) fn begun(&self, process: &Process) -> String {
        format!(
            "recording {process} in a ring of files: the last {} s go to {} when a mark, inject snap --pid {} or its end asks for them",
            self.plan.window_ms.div_ceil(1000),
            messages::file(&flight::numbered(&self.plan.path, 1)),
            process.pid()
        )
    }
}

impl Drop for FlightThread {
    fn drop(&mut self) {
        self.shared.change(|orders| orders.finish = Some(orders.finish.unwrap_or(false)));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct RingTailer {
    /// The ring's files, oldest first.
    files: VecDeque<BegunFile>,
    /// Dropped last: it deletes the files.
    _folder: FlightFolder,
    plan: FlightPlan,
    /// The most bytes of a file of the ring.
    most_bytes: u64,
    number: u32,
    bytes: u64,
    /// What was written, in words.
    written: Vec<String>,
    /// Whether a mark waits for its trace.
    marked: bool,
    /// When the last trace was written.
    last: Option<Instant>,
}

impl RingTailer {
    fn new(folder: FlightFolder, plan: FlightPlan) -> RingTailer {
        RingTailer {
            files: VecDeque::new(),
            _folder: folder,
            plan,
            most_bytes: 0,
            number: 0,
            bytes: 0,
            written: Vec::new(),
            marked: false,
            last: None,
        }
    }

    fn run(mut self, shared: &SharedOrders) -> Vec<String> {
        loop {
            steps::begin(steps::Thread::Flight, "waits for something to ask for a trace");
            let (request, finish) = self.take(&mut shared.wait(SWEEP));
            self.delete_old();
            if let Some(last) = finish {
                self.answer(shared, request);
                if last || self.marked {
                    self.report("the end");
                }
                return self.written;
            }
            if request.is_some() {
                shared.finishes_within(BLOCK_AGE);
                self.take_files(&mut shared.orders());
                self.answer(shared, request);
            } else if self.marked && self.may_follow_mark() {
                shared.finishes_within(BLOCK_AGE);
                self.take_files(&mut shared.orders());
                self.report("a mark");
            }
        }
    }

    /// Takes what was ordered: the request that waits, and whether to finish.
    fn take(&mut self, orders: &mut Orders) -> (Option<u32>, Option<bool>) {
        self.take_files(orders);
        (orders.request.take(), orders.finish)
    }

    fn take_files(&mut self, orders: &mut Orders) {
        self.files.extend(orders.begun.drain(..));
        self.most_bytes = orders.most_bytes;
        for path in orders.ended.drain(..) {
            let file = self.files.iter_mut().find(|begun| begun.file.path == path);
            file.into_iter().for_each(|file| file.ended = Some(Instant::now()));
        }
        self.marked |= std::mem::take(&mut orders.marked);
    }

    /// Deletes files that ended before all that a trace may need.
    fn delete_old(&mut self) {
        let needed = Duration::from_millis(u64::from(self.plan.window_ms)) + 2 * BLOCK_AGE;
        let most = flight::ring(self.plan.window_ms).keep as usize;
        while let Some(oldest) = self.files.front()
            && let Some(ended) = oldest.ended
            && (ended.elapsed() > needed || self.files.len() > most)
        {
            if let Deletion::Failed(_) = output::delete_trace(&oldest.file) {
                // The next look tries again.
                return;
            }
            self.files.pop_front();
        }
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

    fn answer(&mut self, shared: &SharedOrders, request: Option<u32>) {
        let Some(number) = request else { return };
        let result = self.snap().map_err(|failure| failure.to_string());
        match &result {
            Ok(text) | Err(text) => say(&format!("asked: {text}")),
        }
        shared.change(|orders| orders.answers.push((number, result)));
    }

    /// Writes a trace. Returns its name and contents.
    fn snap(&mut self) -> Result<String, Failure> {
        steps::begin(steps::Thread::Flight, "writes a trace");
        self.marked = false;
        self.last = Some(Instant::now());
        let output = self.next_output()?;
        let limit = self.plan.max_bytes.unwrap_or_else(|| output.default_limit());
        let (mut parts, bytes) = self.open_parts();
        if limit != 0 && self.bytes.saturating_add(bytes) > limit {
            let (what, way) = match self.plan.max_bytes {
                Some(_) => ("--max-size", "allow more"),
                None => (
                    "a tenth of the disk's free space",
                    "make room, or say with --max-size how much they may have",
                ),
            };
            return Err(Failure::failed(format!(
                "no trace was written: it may have up to {bytes} bytes, and all traces of this recording together could exceed \
                 {what} ({limit} bytes): {way}"
            )));
        }
        output.empty()?;
        let mut file = BufWriter::new(output.file());
        let plan =
            JoinPlan { window_ms: self.plan.window_ms, uuid: uuid::random(), most_bytes: self.most_bytes };
        let made = flight::join(&mut parts, &plan, &mut file);
        drop(file);
        let shown = messages::file(output.path());
        let made = made.map_err(|error| Failure::failed(format!("{shown}: {error}")))?;
        self.bytes += made.bytes;
        let (path, trace) = output.keep();
        supplement::run(&path, &CompletionRequest { embed: self.plan.embed, tables: None, trace }, true);
        let text = describe(&path, made);
        self.written.push(text.clone());
        Ok(text)
    }

    /// The ring's files, and their size together.
    fn open_parts(&self) -> (Vec<RingPart<File>>, u64) {
        let mut parts: Vec<RingPart<File>> = Vec::new();
        let (mut bytes, mut gap) = (0u64, false);
        for begun in &self.files {
            match open_shared(&begun.file.path) {
                Ok(file) => {
                    bytes = bytes.saturating_add(file.metadata().map_or(0, |known| known.len()));
                    parts.push(RingPart { file, continued: begun.continued && !gap });
                    gap = false;
                }
                Err(_) => gap = true,
            }
        }
        (parts, bytes)
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

/// Opens a file that the agent may still write.
fn open_shared(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options
        .read(true)
        .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE)
        .custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    options.open(path)
}

fn describe(path: &Path, made: Snapshot) -> String {
    let contents = File::open(path).and_then(|mut file| trace_summary::read(&mut file)).ok().flatten();
    let mut text = messages::file(path);
    if let Some(held) = contents {
        let (covered, bytes) = (duration::show(held.elapsed_ms), size(held.bytes));
        text.push_str(&format!(
            ": {covered}, {} samples, {} dropped, {bytes}",
            count(held.samples),
            count(held.dropped)
        ));
    }
    if made.torn != 0 {
        text.push_str(&format!("; {} blocks could not be read", made.torn));
    }
    text
}
