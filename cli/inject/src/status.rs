//! The status line shown while recording.

use crate::contents::Contents;
use crate::duration;
use stk_schema::control::AgentStatus;
use stk_schema::text::printable;

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

/// `12.3 s   8 threads   12,345 samples   0 dropped   1.2 MB`.
pub(crate) fn line(status: &AgentStatus) -> String {
    let threads = if status.threads == 1 { "thread" } else { "threads" };
    format!(
        "{:>8}   {} {threads}   {} samples   {} dropped   {}",
        duration::show(status.elapsed_ms),
        status.threads,
        grouped(status.samples),
        grouped(status.dropped),
        bytes(status.bytes),
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

/// `n` with a comma between groups of three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `n` bytes in decimal units: `812 B`, `1.2 kB`, `34.5 MB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    // 999.95 would be shown as 1000.0.
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn text_from_the_target_cannot_control_the_terminal() {
        let mut message = [0; 256];
        message[..4].copy_from_slice(b"\x1b[2J");
        let status = AgentStatus { message_len: 4, message, ..BLANK };
        assert_eq!(super::message(&status), r"\u{1b}[2J");
    }

    #[test]
    fn byte_units_do_not_reach_a_thousand() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.0 kB");
        assert_eq!(bytes(999_949), "999.9 kB");
        assert_eq!(bytes(999_951), "1.0 MB");
        assert_eq!(bytes(34_500_000), "34.5 MB");
    }
}
