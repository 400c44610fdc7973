//! One recording, from the first check to the last line.

use super::agent::{self, Agent, AgentFile};
use super::children::{self, ChildWatch};
use super::complete;
use super::console;
use super::deliver;
use super::detach;
use super::facts;
use super::flight::{self, FlightPlan, FlightSection, FlightThread};
use super::guard::{self, GuardThread};
use super::handover;
use super::launch::LaunchedProgram;
use super::names::Names;
use super::output::{self, Output};
use super::process::{self, Process};
use super::refusal;
use super::remote::Duplicate;
use super::several;
use super::system::{self, Event};
use crate::args::{Record, Target};
use crate::failure::{self, Failure};
use crate::messages::{self, say};
use crate::symbol_path::SymbolPath;
use crate::{contents, options, pattern, status, uuid};
use std::ffi::OsString;
use std::io::{IsTerminal, Write as _};
use std::os::windows::io::{AsHandle as _, BorrowedHandle};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stk_schema::control::{
    AgentConfig, AgentStatus, CONTROL_VERSION, FLAG_CHECK_WALKS, FLAG_LOADED, FLAG_ONCE, FLAG_OPTIONS,
    FLAG_PAUSED, STATE_FAILED, STATE_STOPPED,
};
use stk_schema::event::EndReason;
use stk_schema::text::printable_lines;
use stk_schema::windows::MACHINE_X64;

/// Interval of updates of the status line on a terminal.
const TERMINAL_MS: u32 = 250;
/// Interval of reading the status without a terminal. There is no status line then, but the status
/// must be known when the process dies.
const QUIET_MS: u32 = 500;
/// How long the agent may take to write the end of the trace.
const STOP_MS: u32 = 30_000;
/// How long a process may take to end after its memory is gone or its agent has reported the exit.
/// Its other DLLs may still have work, and a killed process ends only when the system has completed
/// its threads' requests to a busy disk.
const GOING_MS: u32 = 30_000;

/// How long a program that is launched waits for the agent's first look at it.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// A first look ends after this many passes over the threads, even if none could be sampled.
const FIRST_PASSES: u64 = 20;

/// Records with these options and returns the exit code.
///
/// # Errors
/// A sentence for the user, when nothing was recorded or the trace is not whole.
pub(crate) fn run(record: &Record) -> Result<i32, Failure> {
    children::check(record)?;
    match &record.target {
        Target::Launch(line) => launch(record, line).map_err(Failure::in_launch),
        Target::Pids(pids) => several::run(record, pids),
        Target::WaitFor(_) if record.detach => detach::run(),
        Target::WaitFor(name) => match several::wait_for(name, catch_interrupts()?)? {
            Some(pid) => attach(record, pid),
            None => Ok(failure::INTERRUPTED),
        },
        Target::Name(name) => match process::pids_of(name)?[..] {
            [pid] => attach(record, pid),
            ref pids => several::run(record, pids),
        },
        Target::Pid(pid) => attach(record, *pid),
        Target::Recorded => Err(Failure::usage("name the process to record")),
    }
}

/// Records a process that runs.
fn attach(record: &Record, pid: u32) -> Result<i32, Failure> {
    let process = Process::open(pid)?;
    if let Some(other) = handover::companion(&process) {
        return handover::run_for(&other, pid);
    }
    if record.detach {
        drop(process);
        return detach::run();
    }
    let interrupted = catch_interrupts()?;
    let session = Session::start(record, &process, || Ok(()))?;
    if let Some(event) = record.begun_event {
        detach::begun(event);
    }
    let children = ChildWatch::start(record, &[pid])?;
    let recorded = session.run(interrupted);
    if let Some(children) = children {
        children.finish();
    }
    recorded
}

/// Starts the program, records it and returns its exit code.
fn launch(record: &Record, line: &[OsString]) -> Result<i32, Failure> {
    // Check before the program is started, so that a missing agent has no effect on it.
    AgentFile::open(record.dll.as_deref())?;
    let interrupted = catch_interrupts()?;
    let launched = LaunchedProgram::start(line)?;
    let process = launched.process();
    if let Some(other) = handover::companion(process) {
        // The other inject starts the program again. This instance has not run one instruction.
        drop(launched);
        return handover::run(&other);
    }
    let session = Session::start(record, process, || launched.initialise(record.timeout_ms))?;
    session.wait_for_first_look(record.delay_ms != 0 || record.flags & FLAG_PAUSED != 0);
    let children = ChildWatch::start(record, &[process.pid()])?;
    launched.resume();
    let recorded = session.run(interrupted);
    if let Err(failure) = &recorded {
        eprintln!("inject: {}", printable_lines(&failure.to_string()));
    }
    if !process.has_ended() {
        say(&format!("waiting for {process} to end"));
        system::wait(process.handle(), u32::MAX);
    }
    if let Some(children) = children {
        children.finish();
    }
    match recorded {
        // Exit codes of Windows have 32 bits without a sign.
        Ok(_) => Ok(process.exit_code() as i32),
        Err(_) => Ok(failure::LAUNCH_FAILED),
    }
}

fn catch_interrupts() -> Result<&'static Event, Failure> {
    console::catch().map_err(|error| Failure::failed(format!("Ctrl-C cannot be caught: {error}")))
}

/// A recording that has begun.
struct Session<'a> {
    process: &'a Process,
    agent: Agent,
    path: PathBuf,
    /// Signalled by the agent when the recording has ended.
    ended: Event,
    status_address: u64,
    /// The status as last read.
    status: AgentStatus,
    /// Whether stderr holds a status line without its end.
    line_open: bool,
    /// Whether to record only one sample of each thread.
    once: bool,
    /// Whether to show a status line.
    shows_status: bool,
    /// Where the recording goes.
    destination: Destination,
    /// Answers the agent's questions for names until the recording ends.
    names: Option<Names>,
    /// Watches the recorder's threads until the process or the recording ends.
    _guarding: Option<GuardThread>,
}

/// Where a recording goes.
enum Destination {
    /// Into a file; the settings for completing it after the recording's end, and where it is moved
    /// to then, replacing a file there or not.
    File(complete::CompletionRequest, Option<(PathBuf, bool)>),
    /// Into memory, from which this thread writes files.
    Memory(Option<FlightThread>),
}

/// What the agent writes to.
enum Opened {
    /// A file, and where it is moved to at the end.
    File(Output, Option<PathBuf>),
    Memory(Arc<FlightSection>, FlightPlan),
}

impl Opened {
    fn new(record: &Record, process: &Process) -> Result<Opened, Failure> {
        let path = output_path(record, process)?;
        if record.flight_ms == 0 {
            let route = deliver::route(path, record.move_to.as_deref(), record.force)?;
            return Ok(Opened::File(Output::open(&route.local, record.force)?, route.goal));
        }
        let path = std::path::absolute(&path).unwrap_or(path);
        if !path.parent().is_some_and(Path::is_dir) {
            let shown = messages::file(&path);
            return Err(Failure::failed(format!(
                "{shown}: there is no such folder: choose another file with -o"
            )));
        }
        let plan = FlightPlan {
            path,
            force: record.force,
            window_ms: record.flight_ms,
            embed: record.embed,
            max_bytes: record.max_bytes,
        };
        Ok(Opened::Memory(Arc::new(FlightSection::new(record.flight_ms)?), plan))
    }

    fn empty(&self) -> Result<(), Failure> {
        match self {
            Opened::File(output, _) => output.empty(),
            Opened::Memory(..) => Ok(()),
        }
    }

    fn handle(&self) -> BorrowedHandle<'_> {
        match self {
            Opened::File(output, _) => output.handle(),
            Opened::Memory(section, _) => section.handle(),
        }
    }

    fn limit(&self, record: &Record) -> u64 {
        match self {
            Opened::File(output, _) => record.max_bytes.unwrap_or_else(|| output.default_limit()),
            // The ring has no end.
            Opened::Memory(..) => 0,
        }
    }

    /// Goes on with a recording that has begun.
    fn begin(self, record: &Record, process: &Process) -> Result<(PathBuf, Destination), Failure> {
        match self {
            Opened::File(output, goal) => {
                let (path, trace) = output.keep();
                say(&messages::recording(process, &path));
                if let Some(goal) = &goal {
                    say(&format!("it is moved to {} when it is whole", goal.display()));
                }
                let tables = record.tables.clone();
                let wanted = complete::CompletionRequest { embed: record.embed, tables, trace };
                Ok((path, Destination::File(wanted, goal.map(|goal| (goal, record.force)))))
            }
            Opened::Memory(section, plan) => {
                say(&flight::begun(process, &plan));
                let path = plan.path.clone();
                Ok((path, Destination::Memory(Some(FlightThread::start(section, plan)?))))
            }
        }
    }
}

/// The reason why a recording ended.
enum End {
    Interrupted,
    ByAgent,
    ProcessEnded,
}

impl<'a> Session<'a> {
    /// Checks everything, loads the agent and starts it. Calls `initialise` before it first touches
    /// the process.
    fn start(
        record: &Record,
        process: &'a Process,
        initialise: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Session<'a>, Failure> {
        let file = fitting_agent(record, process)?;
        let tables = record.tables.as_deref().map(tables_dir).transpose()?.unwrap_or_default();
        let (loaded, hosts) = agent::idle_and_kept(process, &file)?;
        let output = Opened::new(record, process)?;
        let ended =
            Event::new().map_err(|error| Failure::failed(format!("no event could be made: {error}")))?;

        let fresh = loaded.is_none();
        let agent = match loaded {
            Some(agent) => agent,
            None => {
                initialise()?;
                agent::load(process, &file, record.timeout_ms)?
            }
        };
        output.empty()?;
        let mut config = config(record, &output);
        if fresh {
            config.flags |= FLAG_LOADED;
        }
        let own = guard::own_process()
            .map_err(|error| Failure::failed(format!("inject cannot be its own guard: {error}")))?;
        let handles = [
            Duplicate::new(process, output.handle())?,
            Duplicate::new(process, ended.handle())?,
            Duplicate::new(process, own.as_handle())?,
        ];
        let texts = agent::StartTexts {
            metadata: facts::metadata(record, process),
            tables,
            options: options::bytes(&record.options),
        };
        let status_address = agent.start(process, &config, &texts, handles, record.timeout_ms)?;
        drop(hosts);
        let (path, destination) = output.begin(record, process)?;
        let status = agent::read_status(process, status_address).unwrap_or(status::BLANK);
        let guarding = GuardThread::start(process, &status);
        if guarding.is_none() {
            say(&format!(
                "the agent publishes no board: a thread that it holds when {process} ends could not be resumed"
            ));
        }
        Ok(Session {
            process,
            agent,
            path,
            names: Names::start(process, &status, &ended, symbol_path(record), record.below),
            ended,
            status_address,
            status,
            line_open: false,
            destination,
            once: record.flags & FLAG_ONCE != 0,
            shows_status: std::io::stderr().is_terminal() && !record.one_of_several && !record.children,
            _guarding: guarding,
        })
    }

    /// Waits until the agent has written the list of modules and, unless the first sample is
    /// delayed, has sampled. Otherwise a program that ends at once would leave a trace of bare
    /// addresses, or an empty one, because the recorder measures its own cost before it samples.
    fn wait_for_first_look(&self, delayed: bool) {
        let start = Instant::now();
        let over = |status: AgentStatus| {
            let sampled = delayed || status.samples != 0 || status.passes >= FIRST_PASSES;
            status.modules != 0 && sampled || matches!(status.state, STATE_STOPPED | STATE_FAILED)
        };
        while start.elapsed() < FIRST_LOOK
            && !agent::read_status(self.process, self.status_address).is_none_or(over)
        {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end, reports the result and returns the exit code.
    fn run(mut self, interrupted: &Event) -> Result<i32, Failure> {
        let end = self.follow(interrupted);
        if self.line_open {
            eprintln!();
        }
        // From here on nothing is written to the agent's memory: it may leave.
        drop(self.names.take());
        let end = end?;
        let (trace, moved) = self.close(&end);
        let code = self.conclude(end, &trace);
        // A trace that stayed where it was is a failure, unless there is a graver one.
        code.and_then(|code| moved.map(|()| code))
    }

    /// Reports how the recording ended and returns the exit code.
    fn conclude(&self, end: End, trace: &str) -> Result<i32, Failure> {
        match end {
            End::Interrupted => {
                say(&format!("interrupted; {trace}"));
                Ok(failure::INTERRUPTED)
            }
            End::ProcessEnded => {
                let code = show_exit_code(self.process.exit_code());
                if self.status.state == STATE_FAILED {
                    let message = status::message(&self.status);
                    return Err(Failure::failed(format!(
                        "the agent failed ({message}); {} ended with exit code {code}, and what was recorded is in {trace}",
                        self.process
                    )));
                }
                say(&format!("{} ended with exit code {code}; {trace}", self.process));
                Ok(failure::OK)
            }
            End::ByAgent => self.report(trace),
        }
    }

    /// Completes what was recorded, and describes it.
    fn close(&mut self, end: &End) -> (String, Result<(), Failure>) {
        match &mut self.destination {
            Destination::File(wanted, goal) => {
                if let Some(why) = output::absence(&self.path, wanted.trace) {
                    return absent(&self.path, why, &self.status);
                }
                // The trace is final from here on.
                complete::run(&self.path, wanted);
                let contents = std::fs::File::open(&self.path).and_then(|mut file| contents::read(&mut file));
                let contents = contents.ok().flatten();
                let moved = match goal.take() {
                    Some((goal, force)) => {
                        deliver::run(&self.path, wanted.trace, &goal, force).map(|()| self.path = goal)
                    }
                    None => Ok(()),
                };
                let shown = status::closing(&self.status, contents.as_ref());
                (messages::trace(&self.path, &shown), moved)
            }
            Destination::Memory(thread) => {
                let planned = [EndReason::Stopped, EndReason::Duration].map(|reason| reason as u32);
                let last = match end {
                    End::Interrupted => false,
                    End::ProcessEnded => true,
                    End::ByAgent => !planned.contains(&self.status.end_reason),
                };
                (thread.take().map_or_else(String::new, |thread| thread.finish(last)), Ok(()))
            }
        }
    }

    fn follow(&mut self, interrupted: &Event) -> Result<End, Failure> {
        let terminal = self.shows_status;
        let period = if terminal { TERMINAL_MS } else { QUIET_MS };
        loop {
            let handles = [interrupted.handle(), self.ended.handle(), self.process.handle()];
            let signalled = system::wait_any(&handles, period);
            if signalled == Some(0) {
                self.agent.stop(self.process, STOP_MS)?;
            }
            match agent::read_status(self.process, self.status_address) {
                Some(status) => self.status = status,
                // Another inject had the agent leave after the recording's end.
                None if !self.agent.is_loaded(self.process)
                    && system::wait(self.ended.handle(), GOING_MS) =>
                {
                    (self.status.state, self.status.end_reason) = (STATE_STOPPED, EndReason::Stopped as u32);
                    self.status.paused = 0;
                }
                // The process's memory is freed a moment before its handle is signalled.
                None if system::wait(self.process.handle(), GOING_MS) => {
                    return Ok(if signalled == Some(0) { End::Interrupted } else { End::ProcessEnded });
                }
                None => {
                    let text = format!("the agent's status in {} cannot be read any more", self.process);
                    return Err(Failure::failed(text));
                }
            }
            if terminal {
                eprint!("\r{:<78}", status::line(&self.status));
                let _ = std::io::stderr().flush();
                self.line_open = true;
            }
            match signalled {
                Some(0) => return Ok(End::Interrupted),
                Some(2) => return Ok(End::ProcessEnded),
                Some(_) => return Ok(self.ended_by_agent()),
                None if matches!(self.status.state, STATE_STOPPED | STATE_FAILED) => {
                    return Ok(self.ended_by_agent());
                }
                None => {}
            }
        }
    }

    /// An agent that ends because its process exits does so a moment before the process.
    fn ended_by_agent(&self) -> End {
        let exiting = self.status.end_reason == EndReason::ProcessExit as u32;
        if exiting && system::wait(self.process.handle(), GOING_MS) {
            End::ProcessEnded
        } else {
            End::ByAgent
        }
    }

    fn report(&self, trace: &str) -> Result<i32, Failure> {
        let message = status::message(&self.status);
        let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
        let reason = self.status.end_reason;
        let is = |known: EndReason| reason == known as u32;
        if is(EndReason::Duration) || self.once && is(EndReason::Stopped) {
            say(trace);
        } else if is(EndReason::Stopped) {
            say(&format!("stopped from elsewhere; {trace}"));
        } else if is(EndReason::SizeLimit) {
            say(&format!("the size limit was reached{message}; {trace}"));
        } else if is(EndReason::ProcessExit) {
            say(&format!("{} is ending and has not ended yet; {trace}", self.process));
        } else {
            let cause = if is(EndReason::Watchdog) {
                "the agent's watchdog ended the recording"
            } else if is(EndReason::WriteError) {
                "the agent could not write the trace"
            } else if is(EndReason::Panic) || self.status.state == STATE_FAILED {
                "the agent failed and has switched itself off"
            } else {
                "the recording ended for a reason that this inject does not know"
            };
            return Err(Failure::failed(format!(
                "{cause}{message}; {} goes on, and what was recorded is in {trace}",
                self.process
            )));
        }
        Ok(failure::OK)
    }
}

/// Describes a trace that is not where it was made: for the closing line, and as a failure.
fn absent(path: &Path, why: &str, status: &AgentStatus) -> (String, Result<(), Failure>) {
    let shown = messages::file(path);
    let failure = format!("the trace {shown} was lost while it was recorded: {why}");
    (
        format!("{shown} is not there any more: {}", status::closing(status, None)),
        Err(Failure::failed(failure)),
    )
}

/// The agent's file, if it can record this process with these options.
fn fitting_agent(record: &Record, process: &Process) -> Result<AgentFile, Failure> {
    if process.pid() == std::process::id() {
        return Err(Failure::usage(format!("pid {} is this inject itself", process.pid())));
    }
    let file = AgentFile::open(record.dll.as_deref())?.placed();
    let dll = (file.path.as_path(), &file.image);
    refusal::check(process, Some(dll)).map_err(|refusal| refusal.failure(&process.to_string()))?;
    file.check_exports()?;
    if record.flags & FLAG_CHECK_WALKS != 0 && file.image.machine != MACHINE_X64 {
        return Err(Failure::usage("--check-walks is not supported by the x86 and arm64 agents".to_owned()));
    }
    Ok(file)
}

/// The agent's configuration, without the handles and addresses in its process.
fn config(record: &Record, output: &Opened) -> AgentConfig {
    AgentConfig {
        size: size_of::<AgentConfig>() as u32,
        version: CONTROL_VERSION,
        output: 0,
        rate_mhz: record.rate_mhz,
        max_stack_bytes: record.max_stack_bytes,
        flags: record.flags | if record.options.is_empty() { 0 } else { FLAG_OPTIONS },
        embed: record.embed,
        delay_ms: record.delay_ms,
        duration_ms: record.duration_ms,
        uuid: uuid::random(),
        metadata: 0,
        metadata_len: 0,
        reserved: 0,
        tables_dir: 0,
        ended_event: 0,
        status_address: 0,
        system_error: 0,
        reserved2: 0,
        guard: 0,
        max_bytes: output.limit(record),
        options: 0,
        options_len: 0,
        reserved3: 0,
    }
}

fn output_path(record: &Record, process: &Process) -> Result<PathBuf, Failure> {
    let values = pattern::Values {
        name: pattern::program_name(process.name()),
        pid: process.pid(),
        host: &system::host_name(),
        time: &system::local_time(),
    };
    let name = pattern::expand(&record.output, values);
    let path = PathBuf::from(name.map_err(|error| Failure::usage(error.to_string()))?);
    if path.is_dir() {
        let shown = path.display();
        let file = path.join(pattern::DEFAULT);
        return Err(Failure::usage(format!("{shown} is a folder: write -o \"{}\"", file.display())));
    }
    Ok(path)
}

/// The folder's absolute path in the agent's form. Makes the folder if it is missing.
fn tables_dir(path: &Path) -> Result<Vec<u16>, Failure> {
    let fail = |error| Failure::failed(format!("--tables {}: {error}", path.display()));
    std::fs::create_dir_all(path).map_err(fail)?;
    Ok(system::wide(std::path::absolute(path).map_err(fail)?.as_os_str()))
}

/// The folders in which a runtime's data access library may lie: first the user's, then those of
/// the debuggers.
fn symbol_path(record: &Record) -> SymbolPath {
    let mut path = SymbolPath::default();
    record.symbol_path.iter().for_each(|text| path.add(text, true));
    if let Some(text) = std::env::var_os("_NT_SYMBOL_PATH") {
        path.add(&text.to_string_lossy(), false);
    }
    path
}

/// Shows small codes as numbers and NTSTATUS values in their usual form: `0xC0000005`.
fn show_exit_code(code: u32) -> String {
    if code < 0x8000_0000 { code.to_string() } else { format!("0x{code:08X}") }
}
