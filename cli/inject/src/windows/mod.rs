//! Everything that calls the system.
//!
//! * [`agent`]: the agent inside another process, called through its exports.
//! * [`console`]: handles Ctrl-C.
//! * [`dac`]: names for the agent from a .NET runtime's data access library.
//! * [`doctor`]: whether this system is as the recorder expects.
//! * [`facts`]: what the trace says of the machine and the process.
//! * [`flight`]: the thread that makes traces of a ring of files.
//! * [`handler_drain`]: waits until no thread of a process is in its agent.
//! * [`launch`]: starts the program to record; children, several processes, copies of inject.
//! * [`load_failure`]: what blocked the agent.
//! * [`mutex`]: the agent's mutexes, which injects use among themselves.
//! * [`output`]: the file that the agent writes.
//! * [`place`]: agent.dll as a file, and the folder from which it is loaded.
//! * [`process`]: other processes: finding, opening, reading them; their memory and threads.
//! * [`ps`]: the list of processes.
//! * [`record`]: one recording from the first check to the last line.
//! * [`refusal`]: why a process cannot be recorded.
//! * [`registry`]: values of the registry.
//! * [`requests`]: asks the agents of recordings for marks and pauses.
//! * [`scheduling`]: priority classes and power throttling of a process.
//! * [`stk`]: runs stk.exe.
//! * [`supplement`]: the trace and image files, for the data added after the end.
//! * [`system`]: handles, events, error texts.
//! * [`top`]: what a process does now, shown by stk.
//! * [`trust`]: signatures, access tokens, and paths on this machine.
//! * [`unload`]: has the agent leave a process.

pub(crate) mod agent;
pub(crate) mod console;
pub(crate) mod dac;
pub(crate) mod doctor;
pub(crate) mod facts;
pub(crate) mod flight;
pub(crate) mod handler_drain;
pub(crate) mod launch;
pub(crate) mod load_failure;
pub(crate) mod mutex;
pub(crate) mod output;
pub(crate) mod place;
pub(crate) mod process;
pub(crate) mod ps;
pub(crate) mod record;
pub(crate) mod refusal;
pub(crate) mod registry;
pub(crate) mod requests;
pub(crate) mod scheduling;
pub(crate) mod stk;
pub(crate) mod supplement;
pub(crate) mod system;
pub(crate) mod top;
pub(crate) mod trust;
pub(crate) mod unload;

use crate::args::{Action, Target};
use crate::failure::{self, Failure};
use crate::messages;
use crate::status::StatusRow;
use launch::handover;
use process::{OpenError, Process};
use std::io::Write as _;
use stk_schema::control::AgentStatus;
use stk_schema::event::EndReason;

/// Runs the action and returns the exit code. Failures go to stderr.
pub(crate) fn run(action: Action) -> i32 {
    let done = match action {
        Action::Record(record) => record::run(&record),
        Action::Ps { json } => list(json),
        Action::Doctor { pid, json, output, force } => {
            doctor::run(&doctor::DoctorQuestion { pid, json, output, force })
        }
        Action::Stop { target: Target::Recorded, timeout_ms, unload } => {
            each_recorded(|pid| stop(&Target::Pid(pid), timeout_ms, unload))
        }
        Action::Stop { target, timeout_ms, unload } => stop(&target, timeout_ms, unload),
        Action::Status { target, json } => status(&target, json),
        Action::Snap { target: Target::Recorded, timeout_ms } => {
            each_recorded(|pid| snap(&Target::Pid(pid), timeout_ms))
        }
        Action::Snap { target, timeout_ms } => snap(&target, timeout_ms),
        Action::Top(top) => top::run(&top),
        Action::Ask { target, request } => requests::run(&target, &request),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("inject: {}", stk_schema::text::printable_lines(&failure.to_string()));
        failure.code()
    })
}

fn list(json: bool) -> Result<i32, Failure> {
    let processes = ps::processes()?;
    let text = if json { crate::list::json(&processes) } else { crate::list::table(&processes) };
    print(&text, "the list")?;
    Ok(failure::OK)
}

/// Ends a recording; with `unload`, the agent leaves the process then, also one that does not
/// record.
fn stop(target: &Target, timeout_ms: u32, unload: bool) -> Result<i32, Failure> {
    let process = open(target)?;
    if let Some(other) = handover::companion(&process) {
        return handover::stop(&other, process.pid(), timeout_ms, unload);
    }
    let mut whole = Ok(());
    match agent::recording(&process)? {
        Some(agent) => {
            let rotated = end_recording(&agent, &process, timeout_ms)?;
            let reported = match agent.status(&process) {
                // Another inject had it leave meanwhile.
                Err(_) if !agent.is_loaded(&process) => "the agent has left it meanwhile".to_owned(),
                status => {
                    let status = status?;
                    whole = is_whole(&status, &process);
                    crate::status::stopped(&status, rotated)
                }
            };
            messages::say(&format!("stopped {process}: {reported}"));
        }
        None if unload => {}
        None => return Err(Failure::failed(format!("{process} is not being recorded: nothing to stop"))),
    }
    let code = if unload { unload::run(&process, timeout_ms)? } else { failure::OK };
    whole.map(|()| code)
}

/// Whether the trace of a recording that ended with this status was written to its end.
fn is_whole(status: &AgentStatus, process: &Process) -> Result<(), Failure> {
    if status.end_reason != EndReason::WriteError as u32 {
        return Ok(());
    }
    let reason = crate::status::message(status);
    Err(Failure::failed(format!(
        "the recording of {process} has ended, but the trace is not whole: {reason}"
    )))
}

/// Ends a recording, also one that continues in other files. Returns whether it was such a one.
fn end_recording(agent: &agent::Agent, process: &Process, timeout_ms: u32) -> Result<bool, Failure> {
    // It may be between two files by now.
    let rotates = agent.end_rotation(process);
    agent.stop(process, timeout_ms)?;
    if rotates {
        agent.await_end(process, timeout_ms)?;
    }
    Ok(rotates)
}

/// Has the last seconds of a recording with `--flight` written to a file.
fn snap(target: &Target, timeout_ms: u32) -> Result<i32, Failure> {
    let process = open(target)?;
    if let Some(other) = handover::companion(&process) {
        return handover::snap(&other, process.pid(), timeout_ms);
    }
    let Some(agent) = agent::recording(&process)? else {
        return Err(Failure::failed(format!("{process} is not being recorded: nothing to write")));
    };
    let trace = flight::snap(&process, &agent, timeout_ms)?;
    print(&format!("{}\n", stk_schema::text::printable(&trace)), "the answer")?;
    Ok(failure::OK)
}

/// Does the same with every recording of this machine.
fn each_recorded(work: impl Fn(u32) -> Result<i32, Failure>) -> Result<i32, Failure> {
    let recorded: Vec<u32> = recorded()?;
    if recorded.is_empty() {
        messages::say("no process is being recorded");
    }
    let mut code = failure::OK;
    for pid in recorded {
        if let Err(failure) = work(pid) {
            code = report(pid, &failure).unwrap_or(code);
        }
    }
    Ok(code)
}

/// Says why something could not be done with one process of several, which does not keep the
/// others, and returns the exit code; `None` if that process has ended meanwhile.
fn report(pid: u32, failure: &Failure) -> Option<i32> {
    if matches!(Process::try_open(pid), Err(OpenError::NotFound | OpenError::Ended)) {
        return None;
    }
    eprintln!("inject: {}", stk_schema::text::printable_lines(&failure.to_string()));
    Some(failure.code())
}

/// The processes that are being recorded.
fn recorded() -> Result<Vec<u32>, Failure> {
    Ok(ps::processes()?.iter().filter(|row| row.recording).map(|row| row.pid).collect())
}

/// Prints how recordings are going.
fn status(target: &Target, json: bool) -> Result<i32, Failure> {
    let mut code = failure::OK;
    let mut rows = Vec::new();
    if *target == Target::Recorded {
        for pid in recorded()? {
            match status_of(pid) {
                // None: one that has just ended is none of those that are being recorded.
                Ok((_, row)) => rows.extend(row),
                Err(failure) => code = report(pid, &failure).unwrap_or(code),
            }
        }
    } else {
        let (process, row) = status_of(open(target)?.pid())?;
        rows.push(row.ok_or_else(|| Failure::failed(format!("{process} is not being recorded")))?);
    }
    let text = if json { crate::status::json(&rows) } else { crate::status::table(&rows) };
    print(&text, "the status")?;
    Ok(code)
}

/// A process, and how its recording is going if it is being recorded.
///
/// # Errors
/// A sentence for the user.
fn status_of(pid: u32) -> Result<(Process, Option<StatusRow>), Failure> {
    let process = Process::open_to_read(pid)
        .map_err(|error| Failure::target(format!("pid {pid} may not be read: {error}")))?;
    let recording = agent::recording_with_status(&process)?;
    let row = recording.map(|(_, status)| StatusRow::new(pid, process.name(), &status));
    Ok((process, row))
}

/// Writes a text, which `name` calls in a message, to standard output. That its reader has gone is
/// no failure.
///
/// # Errors
/// A sentence for the user, when it cannot be written.
fn print(text: &str, name: &str) -> Result<(), Failure> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("{name} cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Opens a running process.
fn open(target: &Target) -> Result<Process, Failure> {
    match target {
        Target::Pid(pid) => Process::open(*pid),
        Target::Name(name) => Process::open(process::pid_of(name)?),
        _ => Err(Failure::usage("name one process that runs")),
    }
}
