//! One recording, from the first check to the last line.
//!
//! * `start`: checks a process, and starts the recording of a file there.
//! * `destination`: where a recording goes.
//! * `session`: follows a recording until it ends.
//! * `standstill`: finds when nothing moves any more.
//! * `ending`: how a recording ended, in words.
//! * `ring`: the files of a recording in many, and when the next one is due.
//! * `rotate`: continues in the next file.
//! * `deliver`: moves a whole trace to where it belongs.
//! * `guard`: the thread that watches the recorder's threads.
//! * `detach`: starts a copy of inject that remains as the guard.
//! * `logoff`: the end of the user's session in a copy without a console.
//! * `finisher`: completes, moves and deletes files while the recording continues.

mod deliver;
mod destination;
mod detach;
mod ending;
mod finisher;
mod guard;
mod logoff;
mod ring;
mod rotate;
mod session;
mod standstill;
mod start;

use super::console;
use super::launch::LaunchedProgram;
use super::place::AgentFile;
use super::process::{self, Process};
use super::stk;
use super::system::{self, Event};
use crate::args::{Record, Target};
use crate::failure::{self, Failure};
use crate::messages::say;
use crate::windows::launch::children::{self, ChildWatch};
use crate::windows::launch::handover;
use crate::windows::launch::several;
use session::Session;
use std::ffi::OsString;
use stk_schema::control::FLAG_PAUSED;
use stk_schema::text::printable_lines;

/// Records with these options and returns the exit code.
///
/// # Errors
/// A sentence for the user, when nothing was recorded or the trace is not whole.
pub(crate) fn run(record: &Record) -> Result<i32, Failure> {
    children::check(record)?;
    if record.open {
        // Before anything is recorded.
        let stk = stk::for_open();
        match &record.target {
            Target::Launch(_) => stk.map_err(Failure::in_launch)?,
            _ => stk?,
        };
    }
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
    let session = Session::start(record, &process, None)?;
    if let Some(event) = record.begun_event {
        detach::begun(event);
    }
    let children = ChildWatch::start(record, &[pid])?;
    let recorded = session.run(interrupted);
    let code = recorded.as_ref().map_or(failure::FAILED, |code| *code);
    let code = children.map_or(code, |children| children.finish(code));
    recorded.map(|_| code)
}

/// Starts the program, records it and returns its exit code. A program that has begun to run is
/// never ended: if it cannot be recorded, it runs without.
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
    let session = match Session::start(record, process, Some(&launched)) {
        Ok(session) => session,
        Err(failure) if launched.leave_to_run() => return Ok(run_unrecorded(process, &failure)),
        Err(failure) => return Err(failure),
    };
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
    let code = recorded.map_or(failure::LAUNCH_FAILED, |_| failure::OK);
    match children.map_or(code, |children| children.finish(code)) {
        // Exit codes of Windows have 32 bits without a sign.
        failure::OK => Ok(process.exit_code() as i32),
        _ => Ok(failure::LAUNCH_FAILED),
    }
}

/// Waits for the end of a program that runs although it is not recorded, and returns its exit code.
fn run_unrecorded(process: &Process, failure: &Failure) -> i32 {
    eprintln!("inject: {}", printable_lines(&failure.to_string()));
    if !process.has_ended() {
        say(&format!("{process} runs without being recorded; waiting for it to end"));
    }
    system::wait(process.handle(), u32::MAX);
    // Exit codes of Windows have 32 bits without a sign.
    process.exit_code() as i32
}

fn catch_interrupts() -> Result<&'static Event, Failure> {
    console::catch().map_err(|error| Failure::failed(format!("Ctrl-C cannot be caught: {error}")))
}
