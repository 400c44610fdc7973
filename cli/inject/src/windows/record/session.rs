//! A recording that has begun: follows it until it ends.

use super::destination::OpenOutput;
use super::finisher::FileEnding;
use super::ring::Rotating;
use super::standstill::StallGuard;
use super::start::{self, FilePlan, Running, Starter};
use crate::args::Record;
use crate::failure::Failure;
use crate::messages::{self, say};
use crate::windows::agent;
use crate::windows::dac::Names;
use crate::windows::facts;
use crate::windows::launch::LaunchedProgram;
use crate::windows::process::Process;
use crate::windows::process::remote::MessageRoom;
use crate::windows::stk;
use crate::windows::system::{self, Event};
use crate::{status, steps};
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stk_schema::control::{
    AgentStatus, FLAG_ONCE, FLAG_PAUSED, ROTATION_CONTINUES, ROTATION_NONE, ROTATION_STOP, STATE_FAILED,
    STATE_STOPPED,
};
use stk_schema::event::EndReason;

/// Interval of updates of the status line on a terminal.
const TERMINAL_MS: u32 = 250;
/// Interval of reading the status without a terminal. There is no status line then, but the status
/// must be known when the process dies.
const QUIET_MS: u32 = 500;
/// The same where the file's size decides when the next one begins.
const ROTATING_MS: u32 = 100;
/// How long the agent may take to write the end of the trace.
pub(super) const STOP_MS: u32 = 30_000;
/// How long a process may take to end after its memory is gone or its agent has reported the exit.
/// Its other DLLs may still have work, and a killed process ends only when the system has completed
/// its threads' requests to a busy disk.
const GOING_MS: u32 = 30_000;
/// The wait between two tries to read a status that cannot be read.
const UNREAD_MS: u32 = 50;

/// How long a program that is launched waits for the agent's first look at it.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// A first look ends after this many passes over the threads, even if none could be sampled.
const FIRST_PASSES: u64 = 20;

/// A recording that has begun.
pub(super) struct Session<'a> {
    pub starter: Starter<'a>,
    /// The recording of the present file.
    pub running: Running,
    pub path: PathBuf,
    /// What happens to the present file after its end; `None` once that has begun.
    pub ending: Option<FileEnding>,
    /// The ring of files, of which this is one.
    pub rotating: Option<Rotating>,
    /// Whether stderr holds a status line without its end.
    line_open: bool,
    /// Whether to record only one sample of each thread.
    pub once: bool,
    /// Whether to show a status line.
    shows_status: bool,
    /// Answers the agent's questions for names until the recording ends.
    names: Option<Names>,
    /// Finds when nothing moves any more. Dropped last: what is dropped before may stand still.
    pub stall: StallGuard,
}

/// The reason why a recording ended.
pub(super) enum End {
    Interrupted,
    ByAgent,
    ProcessEnded,
    /// The files have the size that all may have.
    Full,
}

/// Why a recording is not followed any further.
pub(super) enum FollowOutcome {
    Ended(End),
    /// The present file is full.
    FileFull,
}

impl<'a> Session<'a> {
    /// Checks everything, loads the agent and starts it. A program that inject has started and that
    /// waits is initialised before anything else touches it.
    pub(super) fn start(
        record: &'a Record,
        process: &'a Process,
        launched: Option<&LaunchedProgram>,
    ) -> Result<Session<'a>, Failure> {
        let file = start::fitting_agent(record, process)?;
        let tables = record.tables.as_deref().map(start::tables_dir).transpose()?.unwrap_or_default();
        let (loaded, hosts) = agent::idle_and_kept(process, &file)?;
        let (output, mut rotating) = if record.rotation.is_on() {
            let (rotating, output) = Rotating::new(record, process)?;
            (output, Some(rotating))
        } else {
            (OpenOutput::new(record, process)?, None)
        };
        let fresh = loaded.is_none();
        let agent = match loaded {
            Some(agent) => agent,
            None => {
                launched.map_or(Ok(()), |launched| launched.initialise(record.timeout_ms))?;
                let late = || launched.iter().for_each(|launched| launched.resume_early());
                agent::load(process, &file, record.timeout_ms, late)?
            }
        };
        output.empty()?;
        let starter = Starter { record, process, agent, tables, room: MessageRoom::new(process) };
        let mut plan = FilePlan {
            duration_ms: record.duration_ms,
            delay_ms: record.delay_ms,
            paused: record.flags & FLAG_PAUSED != 0,
            loaded: fresh,
            max_bytes: output.limit(record),
            facts: facts::facts(record, process),
        };
        if let Some(rotating) = &mut rotating {
            rotating.plan_first(&mut plan);
        }
        // An inject that was ended between two files has left its own.
        starter.agent.set_rotation(process, ROTATION_NONE);
        if let Some(rotating) = &rotating {
            starter.agent.set_file(process, rotating.place());
        }
        let running = starter.start(&output, &plan)?;
        drop(hosts);
        match &rotating {
            Some(rotating) => rotating.say_begun(&output, process),
            None => output.say_begun(process),
        }
        let rotation = if rotating.is_some() { ROTATION_CONTINUES } else { ROTATION_NONE };
        starter.agent.set_rotation(process, rotation);
        let ending = output.begin(record, running.uuid);
        let path = ending.path.clone();
        rotating.iter_mut().for_each(|rotating| rotating.begin_file(&ending, false));
        if running.guarding.is_none() {
            say(&format!(
                "the agent publishes no board: a thread that it holds when {process} ends could not be resumed"
            ));
        }
        let symbols = start::symbol_path(record);
        let names = Names::start(process, &running.status, &running.ended, symbols, record.below);
        let stall = StallGuard::start(process, &path, record.stall, launched.is_some());
        Ok(Session {
            starter,
            running,
            path,
            ending: Some(ending),
            rotating,
            line_open: false,
            once: record.flags & FLAG_ONCE != 0,
            shows_status: std::io::stderr().is_terminal() && !record.one_of_several && !record.children,
            names,
            stall,
        })
    }

    /// Waits until the agent has written the list of modules and, unless the first sample is
    /// delayed, has sampled. Otherwise a program that ends at once would leave a trace of bare
    /// addresses, or an empty one, because the recorder measures its own cost before it samples.
    pub(super) fn wait_for_first_look(&self, delayed: bool) {
        let start = Instant::now();
        let over = |status: AgentStatus| {
            let sampled = delayed || status.samples != 0 || status.passes >= FIRST_PASSES;
            status.modules != 0 && sampled || matches!(status.state, STATE_STOPPED | STATE_FAILED)
        };
        while start.elapsed() < FIRST_LOOK
            && !agent::read_status(self.starter.process, self.running.status_address).is_none_or(over)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end, reports the result and returns the exit code.
    pub(super) fn run(mut self, interrupted: &Event) -> Result<i32, Failure> {
        let end = loop {
            match self.follow(interrupted) {
                Ok(FollowOutcome::Ended(end)) => break Ok(end),
                Ok(FollowOutcome::FileFull) => match self.rotate() {
                    Ok(None) => {}
                    Ok(Some(end)) => break Ok(end),
                    Err(failure) => break Err(failure),
                },
                Err(failure) => break Err(failure),
            }
        };
        steps::begin(steps::Thread::Main, "completes the recording");
        if self.line_open {
            eprintln!();
        }
        drop(self.names.take());
        let last = end.as_ref().map_or(true, |end| self.wants_last_trace(end));
        if let Some(rotating) = &mut self.rotating {
            rotating.finish_flight(self.starter.process, last);
            // Whoever has it leave waits for this.
            self.starter.agent.rotation_ended(self.starter.process);
            return self.close_ring(end);
        }
        // What is dropped now waits for threads that may stand still, too.
        let end = end.inspect_err(|_| steps::begin_short(steps::Thread::Main, "leaves the recording"))?;
        let (trace, moved) = self.close();
        let code = self.conclude(end, &trace);
        // A trace that stayed where it was is a failure, unless there is a graver one.
        let code = code.and_then(|code| moved.map(|()| code));
        if self.starter.record.open && code.is_ok() {
            steps::begin(steps::Thread::Main, "shows the trace");
            stk::open(&self.path);
        }
        code
    }

    /// Completes what was recorded, and describes it.
    fn close(&mut self) -> (String, Result<(), Failure>) {
        // The trace is final from here on.
        let Some(ending) = self.ending.take() else { return (String::new(), Ok(())) };
        let finished = ending.finish(true);
        self.path = finished.path;
        if let Some(why) = finished.lost {
            return absent(&self.path, why, &self.running.status);
        }
        let shown = status::closing(&self.running.status, finished.contents.as_ref());
        (messages::trace(&self.path, &shown), finished.moved)
    }

    fn follow(&mut self, interrupted: &Event) -> Result<FollowOutcome, Failure> {
        let terminal = self.shows_status;
        let process = self.starter.process;
        let period = match self.rotating {
            Some(_) => ROTATING_MS,
            None if terminal => TERMINAL_MS,
            None => QUIET_MS,
        };
        loop {
            let handles = [interrupted.handle(), self.running.ended.handle(), process.handle()];
            steps::begin_short(steps::Thread::Main, "waits for the recording");
            let signalled = system::wait_any(&handles, period);
            if signalled == Some(0) {
                steps::begin(steps::Thread::Main, "has the agent end the recording");
                self.starter.agent.stop(process, STOP_MS)?;
            }
            if !self.read_status()? {
                let end = if signalled == Some(0) { End::Interrupted } else { End::ProcessEnded };
                return Ok(FollowOutcome::Ended(end));
            }
            if let Some(rotating) = &mut self.rotating {
                rotating.look_at_file(&self.running.status);
                rotating.look_at_desk(process, &self.running.status);
            }
            self.stall.look(self.starter.process, &self.running, &self.path)?;
            if terminal {
                // As long as somebody marks text in a console, it takes none.
                steps::begin(steps::Thread::Main, "writes to the console");
                let file = self.rotating.as_ref().map_or_else(String::new, Rotating::label);
                eprint!("\r{:<78}", file + &status::line(&self.running.status));
                let _ = std::io::stderr().flush();
                self.line_open = true;
            }
            if self.rotating.is_some() && self.running.status.rotation == ROTATION_STOP {
                // Another inject asked for the end between two files.
                steps::begin(steps::Thread::Main, "has the agent end the recording");
                self.starter.agent.stop(process, STOP_MS)?;
                let runs = self.read_status()?;
                return Ok(FollowOutcome::Ended(if runs {
                    self.ended_by_agent()
                } else {
                    End::ProcessEnded
                }));
            }
            let ended = match signalled {
                Some(0) => return Ok(FollowOutcome::Ended(End::Interrupted)),
                Some(2) => return Ok(FollowOutcome::Ended(End::ProcessEnded)),
                Some(_) => true,
                None => matches!(self.running.status.state, STATE_STOPPED | STATE_FAILED),
            };
            let status = &self.running.status;
            if self.rotating.as_mut().is_some_and(|rotating| rotating.is_due(status, ended)) {
                return Ok(FollowOutcome::FileFull);
            }
            if ended {
                return Ok(FollowOutcome::Ended(self.ended_by_agent()));
            }
        }
    }

    /// Reads the status; false if the process has ended.
    ///
    /// # Errors
    /// A sentence for the user, when it cannot be read and the process continues.
    pub(super) fn read_status(&mut self) -> Result<bool, Failure> {
        let process = self.starter.process;
        let asked = Instant::now();
        loop {
            steps::begin_short(steps::Thread::Main, "reads the agent's status");
            if let Some(status) = agent::read_status(process, self.running.status_address) {
                self.running.status = status;
                return Ok(true);
            }
            // Another inject had the agent leave after the recording's end.
            if !self.starter.agent.is_loaded(process) && system::wait(self.running.ended.handle(), 0) {
                let status = &mut self.running.status;
                (status.state, status.end_reason) = (STATE_STOPPED, EndReason::Stopped as u32);
                status.paused = 0;
                return Ok(true);
            }
            // The process's memory is freed a moment before its handle is signalled.
            if system::wait(process.handle(), UNREAD_MS) {
                return Ok(false);
            }
            if asked.elapsed() >= Duration::from_millis(GOING_MS.into()) {
                let text = format!("the agent's status in {process} cannot be read any more");
                return Err(Failure::failed(text));
            }
        }
    }

    /// An agent that ends because its process exits does so a moment before the process.
    pub(super) fn ended_by_agent(&self) -> End {
        steps::begin(steps::Thread::Main, "waits for the end of the process");
        let exiting = self.running.status.end_reason == EndReason::ProcessExit as u32;
        if exiting && system::wait(self.starter.process.handle(), GOING_MS) {
            End::ProcessEnded
        } else {
            End::ByAgent
        }
    }
}

/// Describes a trace that is not where it was made: for the closing line, and as a failure.
fn absent(path: &Path, why: &str, status: &AgentStatus) -> (String, Result<(), Failure>) {
    let held = status::closing(status, None);
    let shown = format!("{} is not there any more: {held}", messages::file(path));
    (shown, Err(Failure::failed(messages::lost(path, why))))
}
