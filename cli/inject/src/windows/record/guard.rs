//! The guard thread of inject. It watches the recorder's threads in the recorded process and
//! resumes the thread that a dead sampler held. [`crate::record::guard`] makes the decisions.

use crate::record::guard::{self, Guard, RecorderThreads, ThreadLife};
use crate::windows::process::Process;
use crate::windows::system::{self, Event};
use crate::windows::trust::token::DebugPrivilege;
use crate::{messages, steps};
use std::io;
use std::os::windows::io::{AsHandle as _, AsRawHandle, BorrowedHandle, OwnedHandle};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use stk_schema::control::AgentStatus;
use stk_schema::guard::{GuardBoard, SAMPLERS};
use windows_sys::Win32::System::Threading::{
    GetProcessIdOfThread, OpenProcess, OpenThread, PROCESS_SYNCHRONIZE, ResumeThread,
    THREAD_QUERY_LIMITED_INFORMATION, THREAD_SUSPEND_RESUME, THREAD_SYNCHRONIZE,
};

/// Milliseconds between reads of the board, which may list new samplers.
const LOOK_MS: u32 = 100;
/// The same once the watchdog or a sampler has ended.
const SOON_MS: u32 = 5;

/// A handle of this process that only shows when it has ended.
///
/// # Errors
/// The system's error.
pub(crate) fn own_process() -> io::Result<OwnedHandle> {
    // SAFETY: the handle is fresh.
    unsafe { system::own(OpenProcess(PROCESS_SYNCHRONIZE, 0, std::process::id())) }
}

/// Guards a process until it is dropped.
#[derive(Debug)]
pub(crate) struct GuardThread {
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl GuardThread {
    /// Begins to guard a process whose agent has this status; `None` if the agent has no board, or
    /// if no thread can be made.
    pub(crate) fn start(process: &Process, status: &AgentStatus) -> Option<GuardThread> {
        let address = Some(status.guard_board).filter(|&address| address != 0)?;
        let handle = process.handle().try_clone_to_owned().ok()?;
        let process = Process::from_handle(handle, process.pid()).ok()?;
        let stop = Arc::new(Event::new().ok()?);
        let mut watch = BoardMonitor::new(process, address);
        // Read the board once here, so that the threads are known before anything else happens.
        watch.read_board()?;
        let stopped = stop.clone();
        let work = move || watch.run(&stopped);
        let thread = std::thread::Builder::new().name("guard".to_owned()).spawn(work).ok()?;
        Some(GuardThread { stop, thread: Some(thread) })
    }
}

impl Drop for GuardThread {
    fn drop(&mut self) {
        self.stop.set();
        // Join the thread, so that none is waiting when inject ends.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One of the recorder's threads.
#[derive(Debug, Default)]
struct RecorderThread {
    tid: u32,
    /// `None` for a thread that had ended before it could be opened.
    handle: Option<OwnedHandle>,
    life: ThreadLife,
}

#[derive(Debug)]
struct BoardMonitor {
    process: Process,
    /// Address of the board in the process.
    board: u64,
    watchdog: RecorderThread,
    samplers: [RecorderThread; SAMPLERS],
    guard: Guard,
}

impl BoardMonitor {
    fn new(process: Process, board: u64) -> BoardMonitor {
        let samplers = std::array::from_fn(|_| RecorderThread::default());
        BoardMonitor {
            process,
            board,
            watchdog: RecorderThread::default(),
            samplers,
            guard: Guard::default(),
        }
    }

    fn run(&mut self, stop: &Event) {
        let begun = Instant::now();
        loop {
            let mut handles: Vec<BorrowedHandle> = vec![stop.handle(), self.process.handle()];
            let alive = self.all().filter(|thread| thread.life == ThreadLife::Alive);
            handles
                .extend(alive.filter_map(|thread| thread.handle.as_ref()).map(|handle| handle.as_handle()));
            steps::begin(steps::Thread::Guard, "waits");
            let died = self.all().any(|thread| thread.life == ThreadLife::Dead);
            if matches!(system::wait_any(&handles, if died { SOON_MS } else { LOOK_MS }), Some(0 | 1)) {
                return;
            }
            steps::begin(steps::Thread::Guard, "reads the board");
            for (slot, word) in self.words().into_iter().enumerate() {
                self.resume_refused(slot, word);
            }
            let watchdog = self.watchdog.look();
            let mut samplers = [ThreadLife::Absent; SAMPLERS];
            for (life, thread) in samplers.iter_mut().zip(&mut self.samplers) {
                *life = thread.look();
            }
            let now = begun.elapsed().as_millis() as u64;
            for slot in self.guard.look(now, &RecorderThreads { watchdog, samplers }) {
                self.let_go(slot);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &RecorderThread> {
        std::iter::once(&self.watchdog).chain(&self.samplers)
    }

    /// Reads the board and opens threads that it names for the first time; `None` if there is no
    /// board.
    fn read_board(&mut self) -> Option<GuardBoard> {
        let mut bytes = [0; size_of::<GuardBoard>()];
        self.process.read(self.board, &mut bytes).then_some(())?;
        let board = guard::board(&bytes)?;
        self.watchdog.open(&self.process, board.watchdog);
        for (thread, slot) in self.samplers.iter_mut().zip(board.samplers) {
            thread.open(&self.process, slot.sampler);
        }
        Some(board)
    }

    /// The samplers' words; 0, which names no thread, where there is no board.
    fn words(&mut self) -> [u64; SAMPLERS] {
        self.read_board().map_or([0; SAMPLERS], |board| board.samplers.map(|slot| slot.word))
    }

    /// Resumes the thread that the recorder was refused to resume, if the word of this slot says
    /// so. A hook in that process does not see the guard's call.
    fn resume_refused(&self, slot: usize, word: u64) {
        let Some(tid) = guard::refused_thread(word) else { return };
        let Ok(thread) = open(&self.process, tid, THREAD_SUSPEND_RESUME) else { return };
        // SAFETY: the handle is open with the right to resume. The sampler says that it suspended
        // the thread, and suspends no other after a refusal.
        if unsafe { ResumeThread(thread.as_raw_handle()) } == u32::MAX {
            return;
        }
        // Eight bytes at an aligned address, from which the sampler only reads in this phase.
        self.process.write(self.board + guard::word_offset(slot), &guard::freed(word).to_le_bytes());
        let process = &self.process;
        messages::say(&format!(
            "{process} refused to resume its thread {tid}, which the recorder held: the thread was resumed from outside"
        ));
    }

    /// Resumes, once, the thread that the dead sampler in this slot held, if it held one. Does
    /// nothing if the board is not that sampler's any more: the agent may have left, or record
    /// again.
    fn let_go(&self, slot: usize) {
        let mut bytes = [0; size_of::<GuardBoard>()];
        if !self.process.read(self.board, &mut bytes) {
            return;
        }
        let Some(word) = guard::word_of(&bytes, slot, self.samplers[slot].tid) else { return };
        let Some(tid) = guard::thread_to_resume(word) else { return };
        let Ok(thread) = open(&self.process, tid, THREAD_SUSPEND_RESUME) else { return };
        // SAFETY: the handle is open with the right to resume. The sampler that suspended the
        // thread is dead, and so is the watchdog.
        let before = unsafe { ResumeThread(thread.as_raw_handle()) };
        if before != 0 && before != u32::MAX {
            let process = &self.process;
            messages::say(&format!(
                "{process} was ending while the recorder held its thread {tid}: the thread was resumed"
            ));
        }
    }
}

impl RecorderThread {
    /// Watches the thread `tid` from now on; 0 = none.
    fn open(&mut self, process: &Process, tid: u32) {
        if tid == self.tid {
            return;
        }
        *self = match open(process, tid, THREAD_SYNCHRONIZE) {
            _ if tid == 0 => RecorderThread::default(),
            Ok(handle) => RecorderThread { tid, handle: Some(handle), life: ThreadLife::Alive },
            // No thread has this id any more, or one of another process has it.
            Err(error) if is_gone(&error) => RecorderThread { tid, handle: None, life: ThreadLife::Dead },
            Err(_) => RecorderThread { tid, handle: None, life: ThreadLife::Absent },
        };
    }

    fn look(&mut self) -> ThreadLife {
        if self.life == ThreadLife::Alive
            && self.handle.as_ref().is_some_and(|handle| system::wait(handle.as_handle(), 0))
        {
            self.life = ThreadLife::Dead;
        }
        self.life
    }
}

/// Opens a thread of `process` with `rights`.
fn open(process: &Process, tid: u32, rights: u32) -> io::Result<OwnedHandle> {
    const ACCESS_DENIED: u32 = 5;
    // SAFETY: the handle is fresh.
    let open = || unsafe { system::own(OpenThread(rights | THREAD_QUERY_LIMITED_INFORMATION, 0, tid)) };
    let mut opened = open();
    if opened.as_ref().is_err_and(|error| system::code(error) == ACCESS_DENIED)
        && let Some(_privilege) = DebugPrivilege::enable()
    {
        opened = open();
    }
    let thread = opened?;
    // SAFETY: the handle is open with the right to ask.
    if unsafe { GetProcessIdOfThread(thread.as_raw_handle()) } != process.pid() {
        return Err(io::Error::from_raw_os_error(INVALID_PARAMETER));
    }
    Ok(thread)
}

/// ERROR_INVALID_PARAMETER: OpenThread's error for an id that no thread has.
const INVALID_PARAMETER: i32 = 87;

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(INVALID_PARAMETER)
}
