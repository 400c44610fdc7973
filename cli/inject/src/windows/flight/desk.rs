//! What injects exchange in the agent's memory ([`stk_schema::flight`]).

use crate::failure::Failure;
use crate::windows::agent::Agent;
use crate::windows::process::Process;
use std::mem::offset_of;
use std::time::{Duration, Instant};
use stk_schema::bytes::u32_in;
use stk_schema::control::ROTATION_NONE;
use stk_schema::flight::{ANSWER_BYTES, FLIGHT_VERSION, FlightDesk, SNAP_FAILED, SNAP_WRITTEN, answer};

/// What the desk says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TraceRequest {
    pub triggers: u32,
    pub requests: u32,
    pub answered: u32,
}

fn number(process: &Process, desk: u64, field: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    process.read(desk + field as u64, &mut bytes).then(|| u32_in(&bytes, 0))
}

/// What is wanted of the recording; `None` if that cannot be read.
pub(super) fn wanted(process: &Process, desk: u64) -> Option<TraceRequest> {
    let number = |field| number(process, desk, field);
    Some(TraceRequest {
        triggers: number(offset_of!(FlightDesk, triggers))?,
        requests: number(offset_of!(FlightDesk, requests))?,
        answered: number(offset_of!(FlightDesk, answered))?,
    })
}

/// Answers all requests up to this number: with the trace, in words, or why there is none. Whoever
/// asked does without if the process has ended.
pub(super) fn put_answer(process: &Process, desk: u64, request: u32, result: &Result<String, String>) {
    let (outcome, text) = match result {
        Ok(text) => (SNAP_WRITTEN, text),
        Err(text) => (SNAP_FAILED, text),
    };
    let text = answer(text);
    let len = text.len() as u32;
    for (field, bytes) in [
        (offset_of!(FlightDesk, answer), text.as_bytes()),
        (offset_of!(FlightDesk, answer_len), &len.to_le_bytes()),
        (offset_of!(FlightDesk, outcome), &outcome.to_le_bytes()),
        (offset_of!(FlightDesk, answered), &request.to_le_bytes()),
    ] {
        process.write(desk + field as u64, bytes);
    }
}

/// Asks the inject that records the process for a trace, and waits for it. Returns the trace, in
/// words.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn snap(process: &Process, agent: &Agent, timeout_ms: u32) -> Result<String, Failure> {
    let desk = agent.status(process)?.flight;
    if desk == 0 {
        return Err(Failure::failed(format!(
            "{process} is recorded into files that stay: only recordings with --flight have something to write"
        )));
    }
    let gone = || Failure::target(format!("the recording of {process} ended meanwhile"));
    let number = |field: usize| number(process, desk, field).ok_or_else(gone);
    if number(offset_of!(FlightDesk, version))? != FLIGHT_VERSION {
        return Err(Failure::failed(format!(
            "{process} is recorded by another version of stk: use that version's inject"
        )));
    }
    let request = number(offset_of!(FlightDesk, requests))?.wrapping_add(1);
    if !process.write(desk + offset_of!(FlightDesk, requests) as u64, &request.to_le_bytes()) {
        return Err(gone());
    }
    let begun = Instant::now();
    loop {
        let status = agent.status(process).map_err(|_| gone())?;
        if number(offset_of!(FlightDesk, answered))?.wrapping_sub(request) as i32 >= 0 {
            break;
        }
        if status.flight == 0 && status.rotation == ROTATION_NONE {
            return Err(gone());
        }
        if begun.elapsed() >= Duration::from_millis(u64::from(timeout_ms)) {
            return Err(Failure::failed(format!(
                "the inject that records {process} did not answer within {} s",
                timeout_ms.div_ceil(1000)
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut answer = [0; ANSWER_BYTES];
    let len = (number(offset_of!(FlightDesk, answer_len))? as usize).min(ANSWER_BYTES);
    if !process.read(desk + offset_of!(FlightDesk, answer) as u64, &mut answer[..len]) {
        return Err(gone());
    }
    let text = String::from_utf8_lossy(&answer[..len]).into_owned();
    match number(offset_of!(FlightDesk, outcome))? {
        SNAP_WRITTEN => Ok(text),
        _ => Err(Failure::failed(text)),
    }
}
