//! Asks the agents of recordings for marks and pauses, through their mailbox
//! ([`stk_schema::requests`]): no thread is made in the process, so it works too while the
//! process's loader is stuck.

use super::agent::{self, Agent};
use super::mutex::{self, OwnedMutex};
use super::process::{self, Process};
use super::system;
use crate::args::{Request, Target};
use crate::failure::{self, Failure};
use crate::messages::say;
use crate::windows::launch::handover;
use crate::windows::process::remote::{Duplicate, MessageRoom};
use crate::windows::recorded;
use std::io;
use std::mem::offset_of;
use std::os::windows::io::{AsHandle as _, OwnedHandle};
use std::time::{Duration, Instant};
use stk_schema::bytes::{u32_in, u64_in};
use stk_schema::control::{AgentConfig, ROTATION_CONTINUES, STATE_RECORDING, STATE_STOPPING};
use stk_schema::requests::{
    REQUEST_FILE, REQUEST_MARK, REQUEST_PAUSE, REQUEST_RESUME, RESULT_DONE, RESULT_ENDED, RESULT_REFUSED,
    RESULT_WAS_SO, RequestMailbox,
};
use stk_schema::text::printable_lines;
use windows_sys::Win32::System::Threading::EVENT_MODIFY_STATE;

/// How long an agent may take to answer, and another inject to be answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks for the answer.
const POLL: Duration = Duration::from_millis(2);

/// Asks the agent of each process and returns the exit code: that of the first failure, if one
/// failed. A failure does not keep the others.
///
/// # Errors
/// A sentence for the user, when there is nobody to ask.
pub(crate) fn run(target: &Target, request: &Request) -> Result<i32, Failure> {
    // The moment of the mark is now, not when its turn comes.
    let asked = PendingRequest { request, time: system::counter() };
    let pids = match target {
        Target::Recorded => recorded()?,
        Target::Pids(pids) => pids.clone(),
        Target::Pid(pid) => vec![*pid],
        Target::Name(name) => process::pids_of(name)?,
        Target::WaitFor(_) | Target::Launch(_) => return Err(Failure::usage("name processes that run")),
    };
    if pids.is_empty() {
        return Err(Failure::failed("no process is being recorded"));
    }
    let mut code = failure::OK;
    for pid in pids {
        match asked.of(pid) {
            Ok(text) => say(&text),
            Err(failure) => {
                eprintln!("inject: {}", printable_lines(&failure.to_string()));
                code = if code == failure::OK { failure.code() } else { code };
            }
        }
    }
    Ok(code)
}

/// What the user asked, and when by the system's performance counter.
struct PendingRequest<'a> {
    request: &'a Request,
    time: u64,
}

impl PendingRequest<'_> {
    /// Asks the agent of a process and says what came of it.
    fn of(&self, pid: u32) -> Result<String, Failure> {
        let process = Process::open(pid)?;
        if let Some(other) = handover::companion(&process) {
            return handover::ask(&other, pid, self.request)
                .map(|()| format!("{process}: {} has done it", other.display()));
        }
        match (self.result(&process)?, self.request) {
            (RESULT_DONE, Request::Mark(_)) => Ok(format!("marked {process}")),
            (RESULT_DONE, Request::Pause) => Ok(format!("paused the recording of {process}")),
            (RESULT_DONE, Request::Resume) => Ok(format!("the recording of {process} continues")),
            (RESULT_WAS_SO, Request::Pause) => Ok(format!("the recording of {process} was paused already")),
            (RESULT_WAS_SO, _) => Ok(format!("the recording of {process} was not paused")),
            (RESULT_ENDED, _) => Err(Failure::failed(format!("the recording of {process} has ended"))),
            _ => Err(Failure::failed(format!(
                "the agent in {process} does not know this request: it is of an older stk version"
            ))),
        }
    }
}

impl PendingRequest<'_> {
    /// Asks the agent, and asks again if the recording only continued in another file meanwhile.
    fn result(&self, process: &Process) -> Result<u32, Failure> {
        let (kind, text) = match self.request {
            Request::Mark(text) => (REQUEST_MARK, text.as_str()),
            Request::Pause => (REQUEST_PAUSE, ""),
            Request::Resume => (REQUEST_RESUME, ""),
        };
        let begun = Instant::now();
        loop {
            let agent = agent::recording(process)?
                .ok_or_else(|| Failure::failed(format!("{process} is not being recorded")))?;
            let result = Mailbox::open(process, &agent)?.ask(kind, self.time, text.as_bytes())?;
            let continues = agent.status(process)?.rotation == ROTATION_CONTINUES;
            if result != RESULT_ENDED || !continues || begun.elapsed() > PATIENCE {
                return Ok(result);
            }
        }
    }
}

/// The file in which a recording continues.
pub(super) struct NextFile<'a> {
    pub config: AgentConfig,
    pub metadata: &'a [u8],
    pub number: u32,
}

/// Has the recording continue in another file, without a gap. The agent gets the handle of the
/// output, and reads the rest from `room`. False: it stays in its file.
///
/// # Errors
/// A sentence for the user. The agent may still do it, unless it or its process has gone.
pub(super) fn continue_in(
    process: &Process,
    agent: &Agent,
    next: &NextFile<'_>,
    output: Duplicate,
    room: &mut MessageRoom<'_>,
) -> Result<bool, Failure> {
    const CONFIG: usize = size_of::<AgentConfig>();
    let address = room.reserve(CONFIG + next.metadata.len())?;
    let config = AgentConfig {
        output: output.value(),
        metadata: address + CONFIG as u64,
        metadata_len: next.metadata.len() as u32,
        ..next.config
    };
    if !process.write(address, &[agent::config_bytes(&config), next.metadata].concat()) {
        return Err(Failure::target(format!("{process} ended before the next file began")));
    }
    let text = [&address.to_le_bytes()[..], &next.number.to_le_bytes()].concat();
    match Mailbox::open(process, agent)?.ask(REQUEST_FILE, 0, &text) {
        Ok(RESULT_DONE) => {
            output.give();
            Ok(true)
        }
        Ok(RESULT_REFUSED) => {
            // The agent has closed the handle. Closing it twice would close another handle of the
            // program's.
            output.give();
            Ok(false)
        }
        Ok(_) => Ok(false),
        Err(failure) => {
            // The agent may still look at them.
            output.give();
            room.abandon();
            Err(failure)
        }
    }
}

/// An agent's mailbox for requests, which only this inject uses until it is dropped.
struct Mailbox<'a> {
    process: &'a Process,
    agent: &'a Agent,
    address: u64,
    /// Keeps other injects out.
    _lock: OwnedMutex,
    wake: OwnedHandle,
}

impl<'a> Mailbox<'a> {
    /// Takes the mailbox of the agent.
    fn open(process: &'a Process, agent: &'a Agent) -> Result<Mailbox<'a>, Failure> {
        let old = || {
            Failure::failed(format!(
                "the agent in {process} takes no requests: it is of an older stk version"
            ))
        };
        let address = agent.status(process)?.requests;
        let head = mutex::mailbox(process, address).ok_or_else(old)?;
        let fail =
            |error: io::Error| Failure::failed(format!("the agent in {process} cannot be reached: {error}"));
        let wake = u64_in(&head, offset_of!(RequestMailbox, wake));
        let wake = mutex::take_handle(process, wake, EVENT_MODIFY_STATE).map_err(fail)?;
        let lock = agent.take_hosts(process, PATIENCE.as_millis() as u32)?.ok_or_else(old)?;
        if !agent.is_loaded(process) {
            return Err(Failure::failed(format!("the agent has left {process}")));
        }
        Ok(Mailbox { process, agent, address, _lock: lock, wake })
    }

    /// Asks and waits for the result.
    fn ask(&self, kind: u32, time: u64, text: &[u8]) -> Result<u32, Failure> {
        // An inject that was ended may have left a request.
        let last = self.wait_for(None)?.0;
        let mut body = Vec::with_capacity(size_of::<RequestMailbox>());
        body.extend(kind.to_le_bytes());
        body.extend(time.to_le_bytes());
        body.extend((text.len() as u32).to_le_bytes());
        body.extend(0u32.to_le_bytes());
        body.extend(text);
        let number = last.wrapping_add(1);
        let (kind_at, request_at) = (offset_of!(RequestMailbox, kind), offset_of!(RequestMailbox, request));
        let written = self.process.write(self.address + kind_at as u64, &body)
            && self.process.write(self.address + request_at as u64, &number.to_le_bytes());
        if !written {
            return Err(Failure::target(format!("{} ended while inject waited for its agent", self.process)));
        }
        system::set(self.wake.as_handle());
        self.wait_for(Some(number)).map(|(_, result)| result)
    }

    /// Waits until the agent has answered the request with this number, or whichever was the last,
    /// and returns number and result.
    fn wait_for(&self, wanted: Option<u32>) -> Result<(u32, u32), Failure> {
        let begun = Instant::now();
        let mut ended = false;
        loop {
            let process = self.process;
            let head = mutex::mailbox(process, self.address).ok_or_else(|| {
                Failure::target(format!("{process} ended while inject waited for its agent"))
            })?;
            let field = |at: usize| u32_in(&head, at);
            let answer = field(offset_of!(RequestMailbox, answer));
            if answer == wanted.unwrap_or_else(|| field(offset_of!(RequestMailbox, request))) {
                return Ok((answer, field(offset_of!(RequestMailbox, result))));
            }
            if ended {
                return Ok((answer, RESULT_ENDED));
            }
            ended = !matches!(self.agent.status(process)?.state, STATE_RECORDING | STATE_STOPPING);
            if ended {
                // The agent may have answered before it ended.
                continue;
            }
            if begun.elapsed() > PATIENCE {
                return Err(Failure::failed(format!(
                    "the agent in {process} has not answered within {} s: a lock of the process or a disk holds it up. It \
                     will do it when it continues",
                    PATIENCE.as_secs()
                )));
            }
            std::thread::sleep(POLL);
        }
    }
}
