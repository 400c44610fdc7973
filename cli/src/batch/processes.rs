//! Converts the traces of a batch in processes of their own, so that a trace that takes too long or
//! too much memory, or that ends its process in another way, costs itself only.

use super::protocol::{Answer, Lost, Order, Setup, Stage, TraceResult, TraceStatus};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_base::interrupt;

/// How much longer than the time limit a process may take to see by itself that the time is up.
const GRACE: Duration = Duration::from_secs(1);
/// How long a process may take to remove what is half made and end.
const ENDING: Duration = Duration::from_secs(2);
/// How much of what a process says last is kept.
const LAST_WORDS: usize = 16 << 10;

/// How traces are converted in processes.
pub struct Processes<'a> {
    /// All traces of the batch.
    pub files: &'a [PathBuf],
    /// Options before the command.
    pub messages: Vec<&'static str>,
    pub jobs: usize,
    pub limit: Option<Duration>,
}

/// Takes the place of a trace, its result and how long its task took.
pub type Done<'a> = &'a (dyn Fn(usize, &TraceResult, Duration) + Sync);

impl Processes<'_> {
    /// Converts all, several at once: each of `tasks` has the places of the files that are
    /// converted together.
    ///
    /// # Errors
    ///
    /// When processes cannot be started.
    pub fn convert_all(&self, tasks: &[Vec<usize>], done: Done<'_>) -> io::Result<()> {
        interrupt::before_end(stop_all);
        let lanes = tasks.len().min(self.jobs).max(1);
        let next = AtomicUsize::new(0);
        let work = || -> io::Result<()> {
            let mut process = None;
            loop {
                let Some(places) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) else { return Ok(()) };
                let begun = Instant::now();
                let threads = u16::try_from(self.jobs.div_ceil(lanes)).unwrap_or(u16::MAX);
                for (place, result) in self.task(places, threads, &mut process)? {
                    done(place, &result, begun.elapsed());
                }
            }
        };
        std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
            lanes.into_iter().try_for_each(|lane| match lane.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Does one task. Starts processes as long as there is something in it that ended none.
    fn task(
        &self,
        places: &[usize],
        threads: u16,
        kept: &mut Option<Process>,
    ) -> io::Result<Vec<(usize, TraceResult)>> {
        let files = places.iter().map(|&place| self.files[place].clone().into_os_string()).collect();
        let mut order = Order { files, lost: Vec::new() };
        loop {
            let mut process = match kept.take() {
                Some(process) => process,
                None => Process::start(&self.messages, threads)?,
            };
            let used = process.used;
            let end = process.run(&order, self.limit);
            // While the program is being ended, its processes are, too: that is no result.
            while STOPPING.load(Ordering::SeqCst) {
                std::thread::park();
            }
            let is_short = match &end {
                Ok(results) => results.iter().any(|(_, result)| result.status == TraceStatus::Memory),
                Err(death) => death.result.status == TraceStatus::Memory,
            };
            if is_short && used {
                // Memory that an earlier trace left taken may be why: what a trace comes to must
                // not depend on others.
                continue;
            }
            match end {
                Ok(results) => {
                    *kept = (!is_short).then_some(process);
                    return Ok(results.into_iter().map(|(file, result)| (places[file], result)).collect());
                }
                Err(WorkerExit { at: Some((file, stage)), result })
                    if !order.lost.iter().any(|lost| lost.file == file && lost.stage == stage) =>
                {
                    order.lost.push(Lost { file, stage, result });
                }
                Err(WorkerExit { result, .. }) => {
                    return Ok(places.iter().map(|&place| (place, result.clone())).collect());
                }
            }
        }
    }
}

/// Why a process does not answer any more.
struct WorkerExit {
    /// At which step of which file of the order.
    at: Option<(usize, Stage)>,
    result: TraceResult,
}

/// The way to a process, which ends when this is taken.
type Input = Arc<Mutex<Option<ChildStdin>>>;

/// All processes there are, for [`stop_all`].
static RUNNING: Mutex<Vec<Input>> = Mutex::new(Vec::new());
/// The program is being ended.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Has all processes remove what is half made and end.
fn stop_all() {
    STOPPING.store(true, Ordering::SeqCst);
    let inputs = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for input in inputs {
        input.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
    let begun = Instant::now();
    let are_running = || !RUNNING.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    while are_running() && begun.elapsed() < ENDING {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that converts traces.
struct Process {
    child: Child,
    input: Input,
    answers: Receiver<Answer>,
    /// Gives the last that the process says on standard error.
    words: Option<JoinHandle<String>>,
    /// Whether it had an order before.
    used: bool,
}

impl Process {
    fn start(messages: &[&str], threads: u16) -> io::Result<Process> {
        let why = "a process to convert traces in cannot be started";
        let mut command = Command::new(program()?);
        command.args(messages).arg("batch-worker");
        if std::env::var_os("POLARS_MAX_THREADS").is_none() {
            command.env("POLARS_MAX_THREADS", threads.to_string());
        }
        // Ctrl-C is for the batch, which ends its processes.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        #[cfg(windows)]
        std::os::windows::process::CommandExt::creation_flags(
            &mut command,
            windows_sys::Win32::System::Threading::CREATE_NEW_PROCESS_GROUP,
        );
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| io::Error::other(format!("{why}: {error}")))?;
        let input: Input = Arc::new(Mutex::new(child.stdin.take()));
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(input.clone());
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        let (sender, answers) = channel();
        let of_process = input.clone();
        std::thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                let Ok(answer) = serde_json::from_str(&line) else { break };
                if sender.send(answer).is_err() {
                    break;
                }
            }
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            running.retain(|input| !Arc::ptr_eq(input, &of_process));
        });
        let words = std::thread::spawn(move || errors.map(pass_on).unwrap_or_default());
        let mut process = Process { child, input, answers, words: Some(words), used: false };
        let args: Vec<OsString> = std::env::args_os().collect();
        let is_ready = process.send(&Setup { args, threads }).is_ok()
            && matches!(process.answers.recv(), Ok(Answer::Ready));
        if !is_ready {
            let reason = process.end().reason.unwrap_or_default();
            return Err(io::Error::other(format!("{why}: {reason}; a greater --memory-limit may help")));
        }
        Ok(process)
    }

    fn send(&self, line: &impl serde::Serialize) -> io::Result<()> {
        let text = serde_json::to_string(line)?;
        match &mut *self.input.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(input) => writeln!(input, "{text}"),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Has the process do an order. A process that is not done with a step of it in time is
    /// stopped.
    fn run(
        &mut self,
        order: &Order,
        limit: Option<Duration>,
    ) -> Result<Vec<(usize, TraceResult)>, WorkerExit> {
        self.used = true;
        let mut at = None;
        // If it cannot be sent, there is no answer.
        let _ = self.send(order);
        let until = || Instant::now().checked_add(limit?.checked_add(GRACE)?);
        let mut end = until();
        loop {
            let answer = match end {
                Some(end) => self.answers.recv_timeout(end.saturating_duration_since(Instant::now())),
                None => self.answers.recv().map_err(RecvTimeoutError::from),
            };
            match answer {
                Ok(Answer::Ready) => {}
                Ok(Answer::Begun { file, stage }) => {
                    at = Some((file, stage));
                    end = until();
                }
                Ok(Answer::Done(results)) => return Ok(results),
                Err(RecvTimeoutError::Disconnected) => return Err(WorkerExit { at, result: self.end() }),
                Err(RecvTimeoutError::Timeout) => {
                    self.stop();
                    let limit = limit.unwrap_or_default();
                    let reason =
                        format!("it took longer than the time limit of {limit:?}: its process was ended");
                    return Err(WorkerExit { at, result: TraceResult::lost(TraceStatus::Timeout, reason) });
                }
            }
        }
    }

    /// Has the process remove what is half made and end; ends it if it does not.
    fn stop(&mut self) {
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        let begun = Instant::now();
        while begun.elapsed() < ENDING {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// What it means that the process ended by itself.
    fn end(&mut self) -> TraceResult {
        let status = self.child.wait();
        let words = self.words.take().and_then(|words| words.join().ok()).unwrap_or_default();
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        meaning(&words, &how)
    }
}

/// What it means that a process ended in this way, by what it said last.
fn meaning(words: &str, how: &str) -> TraceResult {
    // Rust says this, then may say more, and aborts.
    if let Some(line) = words.lines().rev().find(|line| line.starts_with("memory allocation of ")) {
        return TraceResult::lost(TraceStatus::Memory, format!("its process ran out of memory: {line}"));
    }
    let reason = match words.lines().last() {
        Some(last) => format!("its process ended ({how}): {last}"),
        None => format!("its process ended ({how})"),
    };
    TraceResult::lost(TraceStatus::Failed, reason)
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

/// This program, also where its file was replaced meanwhile.
fn program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { std::env::current_exe() }
}

/// Prints what a process says on standard error, and gives the last of it.
fn pass_on(errors: impl Read) -> String {
    let mut kept = VecDeque::new();
    let mut errors = BufReader::new(errors);
    let mut line = Vec::new();
    while matches!(errors.read_until(b'\n', &mut line), Ok(1..)) {
        // That nobody reads it does not matter here.
        let _ = io::stderr().write_all(&line);
        kept.extend(line.drain(..));
        let extra = kept.len().saturating_sub(LAST_WORDS);
        kept.drain(..extra);
    }
    String::from_utf8_lossy(kept.make_contiguous()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_process_are_kept_and_bounded() {
        assert_eq!(pass_on(&b"one\ntwo"[..]), "one\ntwo");
        assert_eq!(pass_on(&vec![b'\n'; 3 * LAST_WORDS][..]).len(), LAST_WORDS);
    }

    #[test]
    fn a_process_that_said_it_has_no_memory_ran_out_of_it() {
        let says = |words: &str| {
            let result = meaning(words, "signal: 6");
            (result.status, result.reason.unwrap_or_default())
        };
        // With RUST_BACKTRACE, Rust continues.
        let (status, reason) = says(
            "memory allocation of 7 bytes failed\nskipping backtrace printing to avoid potential recursion\n",
        );
        assert_eq!(status, TraceStatus::Memory);
        assert_eq!(reason, "its process ran out of memory: memory allocation of 7 bytes failed");
        let (status, reason) = says("stk: panicked\nfatal runtime error: stack overflow\n");
        assert_eq!(status, TraceStatus::Failed);
        assert_eq!(reason, "its process ended (signal: 6): fatal runtime error: stack overflow");
        assert_eq!(says("").1, "its process ended (signal: 6)");
    }
}
