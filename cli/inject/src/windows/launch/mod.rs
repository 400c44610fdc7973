//! Starts the program to record. Its main thread initialises the process and waits for the agent.

pub(crate) mod births;
pub(crate) mod children;
pub(crate) mod copies;
pub(crate) mod handover;
pub(crate) mod several;

use super::process::Process;
use super::system::{self, Event};
use crate::failure::{Failure, LAUNCH_DENIED, LAUNCH_NOT_FOUND};
use crate::launch::readiness::{self, LoaderState, Unready};
use crate::messages::say;
use crate::windows::process::ntdll;
use crate::windows::process::remote::Duplicate;
use crate::windows::process::suspension::Suspension;
use crate::windows::process::threads;
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, OwnedHandle};
use std::os::windows::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use windows_sys::Win32::System::Diagnostics::Debug::CONTEXT;
use windows_sys::Win32::System::Threading::{
    CREATE_SUSPENDED, OpenThread, ResumeThread, THREAD_GET_CONTEXT, THREAD_SET_CONTEXT,
    THREAD_SUSPEND_RESUME, TerminateProcess,
};

/// How often the main thread is made to wait before it is let run for good.
const ROUNDS: u32 = 2;
/// How long a main thread that waits is looked at, until its process counts as not initialised:
/// another thread may be loading a DLL in that moment.
const PROOF: Duration = Duration::from_millis(50);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// How long the main thread may take to leave a wait that has ended.
const LEAVE_MS: u32 = 1_000;
/// How long it may take, after it has signalled that, to return to where it was.
const RETURN: Duration = Duration::from_millis(20);
/// Time between two looks whether it has returned.
const STEP: Duration = Duration::from_micros(150);

/// A program that inject has started and that waits for [`LaunchedProgram::resume`]. If it is
/// dropped before its first instruction, it is ended; later, it is let run.
#[derive(Debug)]
pub(crate) struct LaunchedProgram {
    process: Process,
    main_thread: OwnedHandle,
    main_tid: u32,
    stage: Cell<Stage>,
    /// The events for which the main thread waits, or is going to.
    go: RefCell<Vec<Event>>,
    // Keeps the pipes, if any, and the process handle as long as the program runs.
    _child: Child,
}

/// The stages of a launched program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its main thread is suspended before its first instruction.
    Suspended,
    /// Its main thread was resumed, and is not known to wait before the program's entry point.
    Initialising,
    /// The process is initialised and its main thread waits before the program's entry point.
    Waiting,
    /// Nothing holds it any more.
    Running,
}

impl LaunchedProgram {
    /// Starts `line` (program and arguments) in inject's own console, environment and folder.
    ///
    /// # Errors
    /// A sentence for the user, with the exit code that a shell would give.
    pub(crate) fn start(line: &[OsString]) -> Result<LaunchedProgram, Failure> {
        let [program, arguments @ ..] = line else {
            return Err(Failure::usage("no program to start: name one after --"));
        };
        let shown = program.to_string_lossy();
        let child = Command::new(program).args(arguments).creation_flags(CREATE_SUSPENDED).spawn();
        let child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Failure::with_code(
                LAUNCH_NOT_FOUND,
                format!("{shown}: program not found, neither as a path nor on PATH"),
            ),
            _ => Failure::with_code(LAUNCH_DENIED, format!("{shown} cannot be started: {error}")),
        })?;
        let pid = child.id();
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed(format!("{shown} was started and lost again: {error}"))
        };
        let handle = child.as_handle().try_clone_to_owned().map_err(|error| failed(&error))?;
        let process = Process::from_handle(handle, pid).map_err(|_| failed(&"it has ended"))?;
        let (main_tid, main_thread) = only_thread(pid).map_err(|error| failed(&error))?;
        Ok(LaunchedProgram {
            process,
            main_thread,
            main_tid,
            stage: Cell::new(Stage::Suspended),
            go: RefCell::default(),
            _child: child,
        })
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Lets the main thread initialise the process and then wait before the program's entry point,
    /// so that DLLs are attached on the same thread as without inject. (The first thread that runs
    /// in a process initialises it. A remote thread would do so instead of the main thread, and
    /// become the main thread of a .NET Framework program.)
    ///
    /// This uses asynchronous procedure calls. If they were queued to a thread before its first
    /// instruction, the loader delivers them after it has initialised the process and before the
    /// entry point. They call exports of ntdll; no code is written. The DllMains of the program's
    /// static imports and its TLS callbacks have run by then.
    ///
    /// They come earlier if a DllMain waits alertably, or if a driver has the thread make its own
    /// calls. Then the thread waits within its initialisation, and maybe with the loader lock: it
    /// is released, and made to wait once more. If that comes too early as well, the program runs,
    /// and this returns as soon as it is initialised.
    ///
    /// # Errors
    /// A sentence for the user: it was refused, the process ended, or it took too long.
    pub(crate) fn initialise(&self, timeout_ms: u32) -> Result<(), Failure> {
        let process = &self.process;
        let until = Instant::now() + Duration::from_millis(timeout_ms.into());
        let calls = ntdll::Calls::find(process)?;
        let own = Loader::own();
        let mut round = self.queue_round(&calls)?;
        self.stage.set(Stage::Initialising);
        // SAFETY: the handle is open with the right to resume.
        if unsafe { ResumeThread(self.main_thread.as_raw_handle()) } == u32::MAX {
            let error = io::Error::last_os_error();
            self.stage.set(Stage::Suspended);
            return Err(Failure::failed(format!("{process} cannot be let run: {error}")));
        }
        let mut rounds = 1;
        loop {
            match system::wait_any(&[process.handle(), round.ready.handle()], system::rest_ms(until)) {
                Some(0) if rounds == 1 => return Err(self.ended()),
                Some(0) => return Err(self.ended_running()),
                Some(_) => {}
                None => return Err(self.late(timeout_ms)),
            }
            let Some(sign) = self.sign_of_initialisation(own.as_ref()) else {
                self.stage.set(Stage::Waiting);
                return Ok(());
            };
            let next = if rounds < ROUNDS { self.next_round(&calls, &round, own.as_ref()) } else { None };
            rounds += 1;
            match next {
                Some(next) => round = next,
                None => return self.initialised_while_running(&sign, own.as_ref(), until, timeout_ms),
            }
        }
    }

    /// Queues the calls by which the main thread says that it is ready, waits until it may
    /// continue, and says that it has.
    ///
    /// # Errors
    /// A sentence for the user.
    fn queue_round(&self, calls: &ntdll::Calls) -> Result<Round, Failure> {
        let process = &self.process;
        let event =
            || Event::new().map_err(|error| Failure::failed(format!("no event could be made: {error}")));
        let (ready, go, gone) = (event()?, event()?, event()?);
        let (there, wait) = (Duplicate::new(process, ready.handle())?, Duplicate::new(process, go.handle())?);
        let left = Duplicate::new(process, gone.handle())?;
        // A call that is made later, after this has failed, must not wait, nor find another object
        // behind its handle.
        self.go.borrow_mut().push(go);
        let calls = [
            (calls.set_event, there.value()),
            (calls.close, there.value()),
            (calls.wait, wait.value()), // not alertable, without a limit: both are 0
            (calls.close, wait.value()),
            (calls.set_event, left.value()),
            (calls.close, left.value()),
        ];
        // The main thread closes them.
        [there, wait, left].into_iter().for_each(Duplicate::give);
        for (function, handle) in calls {
            ntdll::queue(self.main_thread.as_handle(), function, handle).map_err(|error| {
                Failure::target(format!("{process} cannot be made to wait for the agent: {error}"))
            })?;
        }
        Ok(Round { ready, gone })
    }

    /// Releases the main thread, which waits within its initialisation, and has it wait again;
    /// `None` if it may have come to the entry point meanwhile, where the calls would reach the
    /// program itself.
    fn next_round(&self, calls: &ntdll::Calls, last: &Round, own: Option<&Loader>) -> Option<Round> {
        let main = self.main_thread.as_handle();
        let own = own?;
        let (first, waiting) = (self.process.loader_state(), Suspension::of(main)?.registers());
        self.let_go();
        if system::wait_any(&[self.process.handle(), last.gone.handle()], LEAVE_MS) != Some(1) {
            return None;
        }
        // Calls that are queued before the thread has left the last one would be made at once.
        let begun = Instant::now();
        loop {
            // From here on until it is dropped, nothing is called in the process.
            let thread = Suspension::of(main)?;
            if has_left(waiting.sp, thread.registers().sp) || begun.elapsed() >= RETURN {
                let state = self.process.loader_state();
                let certain = readiness::is_still_initialising(state.as_ref(), first.as_ref(), &own.0);
                return if certain { self.queue_round(calls).ok() } else { None };
            }
            drop(thread);
            // A thread that is suspended over and over comes no further.
            let looked = Instant::now();
            while looked.elapsed() < STEP {
                std::hint::spin_loop();
            }
        }
    }

    /// Waits until the process of a program that runs already is initialised: only then may another
    /// thread come into it.
    fn initialised_while_running(
        &self,
        sign: &Unready,
        own: Option<&Loader>,
        until: Instant,
        timeout_ms: u32,
    ) -> Result<(), Failure> {
        self.resume();
        say(&format!(
            "{} could not be held before its first instruction ({sign}): its recording begins late",
            self.process
        ));
        while self.sign_of_initialisation(own).is_some() {
            if self.process.has_ended() {
                return Err(self.ended_running());
            }
            if Instant::now() >= until {
                return Err(self.late(timeout_ms));
            }
        }
        Ok(())
    }

    /// The sign that the process is not initialised, if there is one for as long as another thread
    /// may take to load a DLL. Without knowledge of this system's loader there is none.
    fn sign_of_initialisation(&self, own: Option<&Loader>) -> Option<Unready> {
        let own = own?;
        let begun = Instant::now();
        loop {
            let sign = own.sign_in(self)?;
            if begun.elapsed() >= PROOF || self.process.has_ended() {
                return Some(sign);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn ended(&self) -> Failure {
        Failure::target(format!(
            "{} ended with exit code 0x{:08x} while it was being initialised, before the program began: one of its DLLs is missing \
             or failed",
            self.process,
            self.process.exit_code()
        ))
    }

    /// The failure of a program that may have run.
    fn ended_running(&self) -> Failure {
        self.stage.set(Stage::Running);
        Failure::target(format!("{} ended before it could be recorded", self.process))
    }

    fn late(&self, timeout_ms: u32) -> Failure {
        Failure::target(format!(
            "{} was not initialised within {} s (one of its DLLs waits, or security software holds it): record it with --pid {}, \
             or start it with a longer --timeout",
            self.process,
            timeout_ms.div_ceil(1000),
            self.process.pid()
        ))
    }

    /// Lets the program run.
    pub(crate) fn resume(&self) {
        self.let_go();
        self.stage.set(Stage::Running);
    }

    /// Lets the program run before it is recorded: the agent, for which it waits, may be waiting
    /// for it.
    pub(crate) fn resume_early(&self) {
        if self.stage.get() != Stage::Running {
            self.resume();
            say(&format!(
                "{} is let run, since the agent takes long: its recording begins late",
                self.process
            ));
        }
    }

    /// Lets a program run that cannot be recorded; false if it has not run one instruction, or
    /// ended before its entry point.
    pub(crate) fn leave_to_run(&self) -> bool {
        let stage = self.stage.get();
        let runs = match stage {
            Stage::Suspended => false,
            Stage::Initialising | Stage::Waiting => !self.process.has_ended(),
            Stage::Running => true,
        };
        if runs {
            self.resume();
        }
        runs
    }

    fn let_go(&self) {
        self.go.borrow().iter().for_each(Event::set);
    }
}

impl Drop for LaunchedProgram {
    fn drop(&mut self) {
        match self.stage.get() {
            // SAFETY: the handle is open. The program has not run one instruction, so nothing is
            // lost with it.
            Stage::Suspended => unsafe {
                TerminateProcess(self.process.handle().as_raw_handle(), 1);
            },
            Stage::Initialising | Stage::Waiting | Stage::Running => self.let_go(),
        }
    }
}

/// Calls that were queued to the main thread.
struct Round {
    /// Signalled when the main thread waits.
    ready: Event,
    /// Signalled when it waits no more.
    gone: Event,
}

/// Whether a thread whose stack pointer was `waiting` within a queued call has returned from it:
/// the registers to which it returns lie above that, in a CONTEXT.
fn has_left(waiting: u64, now: u64) -> bool {
    let context = size_of::<CONTEXT>() as u64;
    now >= waiting + context
}

/// What the loader of this system notes of a process that is initialised: inject's own.
struct Loader(LoaderState);

impl Loader {
    /// `None` where it cannot be read.
    fn own() -> Option<Loader> {
        let own = Process::open_to_read(std::process::id()).ok()?;
        own.loader_state().map(Loader)
    }

    /// The sign that a program is not initialised, if there is one.
    fn sign_in(&self, launched: &LaunchedProgram) -> Option<Unready> {
        readiness::unready(launched.process.loader_state().as_ref(), launched.main_tid, &self.0)
    }
}

/// The main thread of a process that was created suspended: it has no other yet.
fn only_thread(pid: u32) -> io::Result<(u32, OwnedHandle)> {
    let tid = threads::ids(pid)?.into_iter().next();
    let tid = tid.ok_or_else(|| io::Error::other("its main thread is not listed"))?;
    let rights = THREAD_SUSPEND_RESUME | THREAD_SET_CONTEXT | THREAD_GET_CONTEXT;
    // SAFETY: the handle is fresh.
    let thread = unsafe { system::own(OpenThread(rights, 0, tid)) };
    Ok((tid, thread?))
}
