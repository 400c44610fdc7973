//! Has the agent leave a process: `inject stop --unload`.
//!
//! The agent first takes back what it has registered (`stk_agent_leave`). Then this waits until no
//! thread of the process can be in it ([`handler_drain`]) and no other inject uses its memory. Then
//! the references of its module that belong to it are freed, on threads that begin and end in
//! kernel32.
//! Meanwhile this holds the agent's mutex of hosts, so that no other inject calls an agent that
//! goes.

use super::agent::{self, Agent};
use super::console;
use super::mutex::{self, OwnedMutex};
use super::process::Process;
use super::system;
use crate::failure::{self, Failure};
use crate::image;
use crate::messages::say;
use crate::windows::handler_drain;
use crate::windows::process::remote::{self, Call};
use std::time::{Duration, Instant};
use stk_schema::control::{
    LEAVE_FAILED, LEAVE_HANDED_OVER, LEAVE_NOTIFIED, LEAVE_PREPARE, LEAVE_READY, LEAVE_RECORDING,
    LEAVE_REFERENCES, LEAVE_THREADS, LEAVE_USED, LEAVE_WATCH,
};
use stk_schema::mailbox::NameMailbox;

/// Has every agent in the process leave. None of them records.
///
/// # Errors
/// A sentence for the user: none is loaded, or why one stays.
pub(crate) fn run(process: &Process, timeout_ms: u32) -> Result<i32, Failure> {
    let machine = process.machine().process;
    if machine != image::own_machine() {
        let machine = image::machine_name(machine);
        return Err(Failure::failed(format!(
            "the agent stays loaded in {process}, which is {machine}: put the inject for {machine} beside this one, or call it"
        )));
    }
    let agents = agent::loaded(process);
    if agents.is_empty() {
        return Err(Failure::failed(format!("{process} has not loaded an agent: nothing to unload")));
    }
    // Ctrl-C must not end inject while it has a thread suspended.
    let _ = console::catch();
    let until = Instant::now() + Duration::from_millis(timeout_ms.into());
    for agent in agents {
        leave(process, &agent, until).map_err(|reason| {
            Failure::failed(format!("{} stays loaded in {process}: {reason}", agent.path.display()))
        })?;
    }
    say(&format!("the agent has left {process}"));
    Ok(failure::OK)
}

/// Has the agent leave, or says why it stays and what can be done.
fn leave(process: &Process, agent: &Agent, until: Instant) -> Result<(), String> {
    let text = |failure: Failure| failure.to_string();
    let _hosts = agent.take_hosts(process, system::rest_ms(until)).map_err(text)?;
    if !agent.is_loaded(process) {
        return Ok(());
    }
    let free = agent::loader_function(process, "FreeLibrary").map_err(text)?;
    let _namer = naming_host(process, agent, until)?;
    let handler = match call(process, agent, LEAVE_PREPARE, until)? {
        LEAVE_READY => false,
        LEAVE_WATCH => true,
        code => return Err(refusal(code)),
    };
    handler_drain::wait(process, agent, handler, until)
        .map_err(|reason| format!("{reason}; try again, or end the program"))?;
    let references = match call(process, agent, LEAVE_REFERENCES, until)? {
        code if code >= LEAVE_HANDED_OVER => code - LEAVE_HANDED_OVER,
        code => return Err(refusal(code)),
    };
    for _ in 0..references {
        match remote::call(process, free, agent.image().start, system::rest_ms(until)).map_err(text)? {
            Call::Returned(_) => {}
            Call::ProcessEnded => return Ok(()),
            // The thread there still waits, and will free it.
            Call::TimedOut => return Err(lock_is_held()),
        }
    }
    if agent.is_loaded(process) && !process.has_ended() {
        return Err(
            "the program, or one of its DLLs, has loaded or linked it itself: it goes when they free it"
                .to_owned(),
        );
    }
    Ok(())
}

/// Waits until the inject that recorded has left the agent's mailbox for names. Nobody enters it
/// while this is held.
fn naming_host(process: &Process, agent: &Agent, until: Instant) -> Result<Option<OwnedMutex>, String> {
    let address = agent.status(process).map(|status| status.names).unwrap_or(0);
    let mut lock = [0; 4];
    let at = std::mem::offset_of!(NameMailbox, lock) as u64;
    if address == 0 || !process.read(address + at, &mut lock) || lock == [0; 4] {
        return Ok(None);
    }
    let lock = mutex::duplicate(process, u32::from_le_bytes(lock).into())
        .map_err(|error| format!("its mutex cannot be opened ({error})"))?;
    OwnedMutex::take(lock, system::rest_ms(until)).map(Some).map_err(|_| {
        "the inject that recorded it still reads a .NET runtime there; try again when that inject has ended".to_owned()
    })
}

/// Calls the agent's function for leaving.
fn call(process: &Process, agent: &Agent, step: usize, until: Instant) -> Result<u32, String> {
    let leave =
        agent.leave_address().ok_or("it is of an older stk version, which cannot leave".to_owned())?;
    match remote::call(process, leave, step as u64, system::rest_ms(until))
        .map_err(|failure| failure.to_string())?
    {
        Call::Returned(code) => Ok(code),
        Call::ProcessEnded => Err("the process ended".to_owned()),
        Call::TimedOut => Err(lock_is_held()),
    }
}

fn lock_is_held() -> String {
    "it did not answer in time: the loader lock is held (a DllMain waits), or the program has stopped one of its threads in the \
     agent; try again when they run, or give it longer with --timeout"
        .to_owned()
}

fn refusal(code: u32) -> String {
    match code {
        LEAVE_RECORDING => "another inject records it again; end that with inject stop".to_owned(),
        LEAVE_FAILED => "it failed there, and a thread of its own is parked for ever; it goes with the process".to_owned(),
        LEAVE_THREADS => {
            "a thread of its own has not ended: it waits for the loader's lock, or for a thread of the program that does not \
             stop or is stopped in the agent; try again later"
                .to_owned()
        }
        LEAVE_USED => {
            "the program itself has called it (stk_capture or another of its functions) and may do so again; it goes with the \
             process"
                .to_owned()
        }
        LEAVE_NOTIFIED => "the system did not take its notifications of DLLs back; it goes with the process".to_owned(),
        code => format!("it answered {code}, which this inject does not know"),
    }
}
