//! Finds when a recording, or inject's own main thread, has come to a standstill, and writes what
//! each thread does to a file beside the trace. [`crate::record::stall`] and [`crate::steps`]
//! decide.

use super::start::Running;
use crate::failure::{self, Failure};
use crate::messages::{self, say};
use crate::record::guard;
use crate::record::stall::{self, LastBlock, Sight, StallVerdict, StallWatch, ThreadFacts};
use crate::steps::{self, MainWatch};
use crate::windows::output::{IfThere, Output};
use crate::windows::process::Process;
use crate::windows::process::threads;
use crate::windows::system::{self, Event};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, FILE_HEADER_LEN, FileHeader};
use stk_schema::control::THREAD_WATCHDOG;
use stk_schema::guard::{GuardBoard, SAMPLERS};

/// Milliseconds between two looks at the main thread.
const MONITOR_MS: u32 = 1_000;

/// Follows a recording and the thread that follows it.
pub(super) struct StallGuard {
    looked: Instant,
    shared: Arc<MonitorState>,
    /// `None` if there is no monitor.
    stop: Option<Arc<Event>>,
    monitor: Option<JoinHandle<()>>,
}

/// What the monitor needs for a report when the main thread does nothing any more.
struct MonitorState {
    /// The process, for messages.
    process: String,
    seen: Mutex<Seen>,
}

struct Seen {
    watch: StallWatch,
    /// The last look; `None` before the first.
    sight: Option<Sight>,
    /// The trace.
    path: PathBuf,
}

impl MonitorState {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StallGuard {
    /// Begins to follow a recording to `path`.
    pub(super) fn start(process: &Process, path: &Path, limit: Duration, launched: bool) -> StallGuard {
        let seen = Seen { watch: StallWatch::new(limit), sight: None, path: path.to_owned() };
        let shared = Arc::new(MonitorState { process: process.to_string(), seen: Mutex::new(seen) });
        let stop = Event::new().map(Arc::new).ok();
        let monitor = stop.as_ref().and_then(|stop| {
            let (shared, stop) = (shared.clone(), stop.clone());
            let work = move || monitor(&shared, &stop, limit, launched);
            std::thread::Builder::new().name("monitor".to_owned()).spawn(work).ok()
        });
        // Without a monitor the recording itself is still followed.
        StallGuard { looked: Instant::now(), shared, stop, monitor }
    }

    /// Looks whether the recording stands still. Called after its status was read. `path`: the
    /// present file.
    ///
    /// # Errors
    /// A sentence for the user, when it does.
    pub(super) fn look(&mut self, process: &Process, running: &Running, path: &Path) -> Result<(), Failure> {
        let sight = sight(process, running);
        let since = self.looked.elapsed();
        self.looked = Instant::now();
        let verdict = {
            let mut seen = self.shared.seen();
            path.clone_into(&mut seen.path);
            seen.sight = Some(sight);
            seen.watch.look(since, &sight)
        };
        match verdict {
            StallVerdict::Fine => Ok(()),
            StallVerdict::ProcessStands => {
                steps::begin(steps::Thread::Main, "writes to the console");
                say(&format!(
                    "{process} stands still (it is suspended, or a debugger has stopped it): waiting for it"
                ));
                Ok(())
            }
            StallVerdict::Stalled(stall) => {
                let what = format!("the recording of {process} stalled: {}", stall.text());
                let text = write_report(&self.shared, &what, &threads_of(process, &sight));
                Err(Failure::with_code(failure::STALLED, text))
            }
        }
    }
}

impl Drop for StallGuard {
    fn drop(&mut self) {
        self.stop.iter().for_each(|stop| stop.set());
        if let Some(thread) = self.monitor.take() {
            let _ = thread.join();
        }
    }
}

/// Ends inject if its main thread stays in a short step.
fn monitor(shared: &MonitorState, stop: &Event, limit: Duration, launched: bool) {
    let mut watch = MainWatch::new(limit);
    let mut looked = Instant::now();
    while !system::wait(stop.handle(), MONITOR_MS) {
        let stands = watch.look(looked.elapsed(), steps::of(steps::Thread::Main));
        looked = Instant::now();
        if stands {
            let what = format!("inject itself stalled while it recorded {}", shared.process);
            // Nothing is read from the process: the main thread may be stuck in just that.
            let failure = Failure::with_code(failure::STALLED, write_report(shared, &what, &[]));
            let failure = if launched { failure.in_launch() } else { failure };
            eprintln!("inject: {}", stk_schema::text::printable_lines(&failure.to_string()));
            std::process::exit(failure.code());
        }
    }
}

/// Writes the report. Returns a sentence that says what happened and where the report is.
fn write_report(shared: &MonitorState, what: &str, threads: &[ThreadFacts]) -> String {
    let seen = shared.seen();
    let mut name: OsString = seen.path.clone().into();
    name.push(".stall.txt");
    let place = PathBuf::from(name);
    let last = last_block(&seen.path).ok().flatten();
    let text = match &seen.sight {
        Some(sight) => stall::report(what, sight, &seen.watch, threads, last.as_ref()),
        None => format!("{what}\n\n{}", steps::describe()),
    };
    let written = Output::open(&place, IfThere::Replace).and_then(|output| output.write(text.as_bytes()));
    let report = match written {
        Ok(()) => format!("what each thread does is in {}: please report it", messages::file(&place)),
        Err(failure) => format!("{failure}; what each thread does:\n{text}"),
    };
    format!("{what}; what was written is in {}; {report}", messages::file(&seen.path))
}

fn sight(process: &Process, running: &Running) -> Sight {
    let status = running.status;
    let mut bytes = [0; size_of::<GuardBoard>()];
    let board = status.guard_board;
    let board = (board != 0 && process.read(board, &mut bytes)).then(|| guard::board(&bytes)).flatten();
    let words = board.map_or([0; SAMPLERS], |board| board.samplers.map(|slot| slot.word));
    let watchdog = status.activity.get(THREAD_WATCHDOG).map_or(0, |watchdog| watchdog.tid);
    Sight { status, words, cpu: process.cpu_time(), watchdog_ended: threads::has_ended(process, watchdog) }
}

/// The recorder's threads, and the others that the system lists for the process.
fn threads_of(process: &Process, sight: &Sight) -> Vec<ThreadFacts> {
    let mut all: Vec<u32> = threads::of(process);
    all.extend(sight.status.activity.iter().map(|activity| activity.tid).filter(|&tid| tid != 0));
    all.sort_unstable();
    all.dedup();
    let states = threads::states(process);
    let facts = |tid| ThreadFacts {
        tid,
        ended: threads::has_ended(process, tid),
        cpu: threads::cpu_time(process, tid),
        state: states.get(&tid).copied(),
    };
    all.into_iter().map(facts).collect()
}

/// The last whole block of a trace; `None` if there is none.
fn last_block(path: &Path) -> io::Result<Option<LastBlock>> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let mut head = [0; FILE_HEADER_LEN];
    file.read_exact(&mut head)?;
    let Ok(header) = FileHeader::decode(&head) else { return Ok(None) };
    let (mut at, mut last) = (FILE_HEADER_LEN as u64, None);
    let mut head = [0; BLOCK_HEADER_LEN];
    while at + BLOCK_HEADER_LEN as u64 <= len {
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut head)?;
        let Some(block) = BlockHeader::decode(&head).filter(|block| block.salt == header.salt()) else {
            break;
        };
        let next = at + BLOCK_HEADER_LEN as u64 + u64::from(block.stored_len);
        if next > len {
            break;
        }
        let kind = format!("{:?}", block.kind);
        last = Some(LastBlock { at, sequence: block.seq, kind, file: len });
        at = next;
    }
    Ok(last)
}
