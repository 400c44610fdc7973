//! The status line shown while recording.

use crate::contents::Contents;
use crate::duration;
use stk_schema::control::AgentStatus;
use stk_schema::text::{count, printable, size};

/// The status of an agent that has not reported yet.
pub(crate) const BLANK: AgentStatus = AgentStatus {
    size: 0,
    version: 0,
    state: 0,
    end_reason: 0,
    threads: 0,
    modules: 0,
    samples: 0,
    dropped: 0,
    bytes: 0,
    passes: 0,
    elapsed_ms: 0,
    system_error: 0,
    message_len: 0,
    message: [0; 256],
    names: 0,
    guard_board: 0,
};

/// `12.3 s   8 threads   12,345 samples   0 dropped   1.2 MiB`.
pub(crate) fn line(status: &AgentStatus) -> String {
    let threads = if status.threads == 1 { "thread" } else { "threads" };
    format!(
        "{:>8}   {} {threads}   {} samples   {} dropped   {}",
        duration::show(status.elapsed_ms),
        status.threads,
        count(status.samples),
        count(status.dropped),
        size(status.bytes),
    )
}

/// The trace's contents for the closing line: as [`line`], but with the numbers of the file itself.
/// The last status read from the agent's memory is up to half a second old when the process has
/// ended.
pub(crate) fn closing(status: &AgentStatus, contents: Option<&Contents>) -> String {
    let Some(contents) = contents else { return line(status).trim_start().to_owned() };
    let held = AgentStatus {
        samples: contents.samples,
        dropped: contents.dropped,
        bytes: contents.bytes,
        elapsed_ms: contents.elapsed_ms,
        ..*status
    };
    line(&held).trim_start().to_owned()
}

/// The text of the agent's last failure. It lies in the target's memory, so it is made printable.
pub(crate) fn message(status: &AgentStatus) -> String {
    let len = (status.message_len as usize).min(status.message.len());
    printable(&String::from_utf8_lossy(&status.message[..len])).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_the_target_cannot_control_the_terminal() {
        let mut message = [0; 256];
        message[..4].copy_from_slice(b"\x1b[2J");
        let status = AgentStatus { message_len: 4, message, ..BLANK };
        assert_eq!(super::message(&status), r"\u{1b}[2J");
    }
}
