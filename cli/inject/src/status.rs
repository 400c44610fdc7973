//! What a recording is doing: the status line while recording, and `inject status`.

use crate::rotate::{FilePlace, FileTotals};
use crate::trace_summary::TraceSummary;
use crate::{duration, messages};
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use stk_schema::control::{AgentStatus, RECORDER_THREADS, ROTATION_CONTINUES, ThreadActivity};
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
    flight: 0,
    requests: 0,
    paused: 0,
    handler_begun: 0,
    handler_ended: 0,
    threads_met: 0,
    rotation: 0,
    reserved_for_hosts: 0,
    file_index: 0,
    file_number: 0,
    earlier_samples: 0,
    earlier_dropped: 0,
    earlier_bytes: 0,
    earlier_ms: 0,
    activity: [ThreadActivity { tid: 0, step: 0, rounds: 0, reserved: 0 }; RECORDER_THREADS.len()],
    held_p50_ns: 0,
    held_p999_ns: 0,
    held_max_ns: 0,
};

/// `12.3 s   8 threads   12,345 samples   0 dropped   1.2 MiB`.
pub(crate) fn line(status: &AgentStatus) -> String {
    let threads = if status.threads == 1 { "thread" } else { "threads" };
    let paused = if status.paused == 0 { "" } else { "   paused" };
    format!(
        "{:>8}   {} {threads}   {} samples   {} dropped   {}{paused}",
        duration::show(status.elapsed_ms),
        status.threads,
        count(status.samples),
        count(status.dropped),
        size(status.bytes),
    )
}

/// The trace's contents for the closing line: as [`line`], but with the numbers of the file itself.
/// The last status read from the agent's memory is up to half a second old when the process has
/// ended. Samples that could not be written are known to the status alone.
pub(crate) fn closing(status: &AgentStatus, contents: Option<&TraceSummary>) -> String {
    let Some(contents) = contents else { return held_line(status) };
    let held = AgentStatus {
        samples: contents.samples,
        dropped: contents.dropped.max(status.dropped),
        bytes: contents.bytes,
        elapsed_ms: contents.elapsed_ms,
        ..*status
    };
    held_line(&held)
}

/// As [`line`], with all threads that the recording has met: at its end few or none may be left.
fn held_line(status: &AgentStatus) -> String {
    let threads = status.threads_met.max(status.threads);
    line(&AgentStatus { threads, ..*status }).trim_start().to_owned()
}

/// What a recording that was stopped holds. `rotated`: it was one in several files, of which this
/// is the last one's status.
pub(crate) fn stopped(status: &AgentStatus, rotated: bool) -> String {
    let held = held_line(status);
    // Its host has withdrawn ROTATION_CONTINUES by now.
    let continues = AgentStatus { rotation: ROTATION_CONTINUES, ..*status };
    match FilePlace::of(&continues).filter(|_| rotated) {
        Some(place) => {
            let row = RotationRow::new(&place, status);
            format!("{}: {held}; {}", row.file(), row.all())
        }
        None => held,
    }
}

/// The text of the agent's last failure, and the system's reason if there is one. It is in the
/// target's memory, so it is made printable.
pub(crate) fn message(status: &AgentStatus) -> String {
    let len = (status.message_len as usize).min(status.message.len());
    let text = printable(&String::from_utf8_lossy(&status.message[..len])).into_owned();
    match status.system_error {
        0 => text,
        code => format!("{text}: {}", printable(&io::Error::from_raw_os_error(code as i32).to_string())),
    }
}

/// Version of the JSON of `inject status`. It increases with a change that breaks readers.
pub(crate) const VERSION: u32 = 1;

/// A recording in `inject status`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct StatusRow {
    pub pid: u32,
    /// Program file name.
    pub name: String,
    /// Milliseconds since the recording of the present file began.
    pub elapsed_ms: u64,
    /// Threads that are sampled now.
    pub threads: u32,
    /// Modules that are loaded now.
    pub modules: u32,
    /// Samples taken, those of waiting threads included.
    pub samples: u64,
    /// Samples taken per second and thread that is there now; `null` in the first moments.
    pub reached_hz: Option<f64>,
    /// Samples that were dropped.
    pub dropped: u64,
    /// Size of the trace.
    pub bytes: u64,
    /// How long a sampled thread of the present file's recording stood still; `null` before the
    /// first sample and of older agents.
    pub held: Option<HeldRow>,
    /// Whether the recording is paused.
    pub paused: bool,
    /// The present file's place in a recording in several files, and what all of them hold; `null`
    /// with one file.
    pub rotation: Option<RotationRow>,
}

/// How long sampled threads stood still, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct HeldRow {
    /// The median.
    pub p50_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest of all.
    pub max_ns: u64,
}

impl HeldRow {
    fn of(status: &AgentStatus) -> Option<HeldRow> {
        let &AgentStatus { held_p50_ns, held_p999_ns, held_max_ns, .. } = status;
        let held = HeldRow { p50_ns: held_p50_ns, p999_ns: held_p999_ns, max_ns: held_max_ns };
        (held.max_ns != 0).then_some(held)
    }

    /// `threads held 1.2 µs (p50), 8.0 µs (p99.9), 31.5 µs at most`.
    fn text(&self) -> String {
        let us = |ns: u64| ns as f64 / 1_000.0;
        format!(
            "threads held {:.1} µs (p50), {:.1} µs (p99.9), {:.1} µs at most",
            us(self.p50_ns),
            us(self.p999_ns),
            us(self.max_ns)
        )
    }
}

/// A recording in several files in `inject status`. What it counts, it counts over all of its
/// files, the present one and those that are deleted included.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct RotationRow {
    /// The present file's place in the recording, from 1.
    pub index: u32,
    /// The number in its name.
    pub number: u32,
    /// Milliseconds recorded, without those between two files.
    pub elapsed_ms: u64,
    /// Samples taken.
    pub samples: u64,
    /// Samples that were dropped.
    pub dropped: u64,
    /// Bytes written.
    pub bytes: u64,
}

impl RotationRow {
    fn new(place: &FilePlace, status: &AgentStatus) -> RotationRow {
        let FileTotals { samples, dropped, bytes, elapsed_ms } = place.earlier.with(status);
        RotationRow { index: place.index, number: place.number, elapsed_ms, samples, dropped, bytes }
    }

    /// `file 3 (0008 in its name)`; the number only where it differs.
    fn file(&self) -> String {
        let RotationRow { index, number, .. } = self;
        match index == number {
            true => format!("file {index}"),
            false => format!("file {index} ({number:04} in its name)"),
        }
    }

    fn all(&self) -> String {
        format!(
            "all files: {}, {} samples, {} dropped, {}",
            duration::show(self.elapsed_ms).trim(),
            count(self.samples),
            count(self.dropped),
            size(self.bytes)
        )
    }
}

impl StatusRow {
    pub(crate) fn new(pid: u32, name: &str, status: &AgentStatus) -> StatusRow {
        let thread_ms = status.elapsed_ms.saturating_mul(status.threads.into());
        StatusRow {
            pid,
            name: name.to_owned(),
            elapsed_ms: status.elapsed_ms,
            threads: status.threads,
            modules: status.modules,
            samples: status.samples,
            reached_hz: (thread_ms > 0)
                .then(|| (status.samples as f64 * 10_000.0 / thread_ms as f64).round() / 10.0),
            dropped: status.dropped,
            bytes: status.bytes,
            held: HeldRow::of(status),
            paused: status.paused != 0,
            rotation: FilePlace::of(status).map(|place| RotationRow::new(&place, status)),
        }
    }
}

/// JSON: `{"version":1,"recordings":[…]}`, one recording a line.
pub(crate) fn json(rows: &[StatusRow]) -> String {
    let lines: Vec<String> = rows.iter().filter_map(|row| serde_json::to_string(row).ok()).collect();
    format!("{{\"version\":{VERSION},\"recordings\":[\n{}\n]}}\n", lines.join(",\n"))
}

/// A line for each recording.
pub(crate) fn table(rows: &[StatusRow]) -> String {
    if rows.is_empty() {
        return "no process is being recorded\n".to_owned();
    }
    let mut text = String::new();
    for row in rows {
        let rate = match row.reached_hz {
            _ if row.paused => ", paused".to_owned(),
            Some(hz) => format!("   {hz:.1} Hz a thread"),
            None => String::new(),
        };
        let file = row.rotation.as_ref().map_or_else(String::new, |all| all.file() + ", ");
        let all = row.rotation.as_ref().map_or_else(String::new, |all| "; ".to_owned() + &all.all());
        let held = row.held.map_or_else(String::new, |held| "; ".to_owned() + &held.text());
        let _ = writeln!(
            text,
            "{}: {file}{}, {}, {} samples, {} dropped, {}{rate}{all}{held}",
            messages::process(&row.name, row.pid),
            duration::show(row.elapsed_ms).trim(),
            if row.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", row.threads) },
            count(row.samples),
            count(row.dropped),
            size(row.bytes),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_a_line_and_an_object() {
        let status =
            AgentStatus { threads: 4, modules: 9, samples: 12_000, bytes: 2048, elapsed_ms: 4_000, ..BLANK };
        let rows = [StatusRow::new(7, "a\u{1b}.exe", &status)];
        // 12,000 samples of 4 threads in 4 s.
        assert_eq!(rows[0].reached_hz, Some(750.0));
        let text = table(&rows);
        assert!(
            text.contains(r"a\u{1b}.exe (pid 7)") && text.contains("12,000 samples, 0 dropped, 2.0 KiB"),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap();
        assert_eq!(json["recordings"][0]["name"], "a\u{1b}.exe");
        assert_eq!(StatusRow::new(7, "a", &BLANK).reached_hz, None);
        let paused = [StatusRow::new(7, "a", &AgentStatus { paused: 1, ..status })];
        assert!(table(&paused).ends_with("2.0 KiB, paused\n"), "{}", table(&paused));
        assert_eq!(table(&[]), "no process is being recorded\n");
    }

    #[test]
    fn how_long_threads_were_held_is_on_the_line_and_in_the_object() {
        let status = AgentStatus { held_p50_ns: 1_234, held_p999_ns: 7_999, held_max_ns: 31_500, ..BLANK };
        let rows = [StatusRow::new(7, "a.exe", &status)];
        let text = table(&rows);
        assert!(text.ends_with("; threads held 1.2 µs (p50), 8.0 µs (p99.9), 31.5 µs at most\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap();
        let held = serde_json::json!({ "p50_ns": 1_234, "p999_ns": 7_999, "max_ns": 31_500 });
        assert_eq!(json["recordings"][0]["held"], held);
        // Older agents' status says nothing of it.
        assert_eq!(StatusRow::new(7, "a.exe", &BLANK).held, None);
    }

    #[test]
    fn status_of_several_files_shows_the_present_one_and_the_sum() {
        let status = AgentStatus {
            rotation: ROTATION_CONTINUES,
            threads: 1,
            samples: 20,
            dropped: 1,
            bytes: 512,
            elapsed_ms: 2_000,
            file_index: 3,
            file_number: 8,
            earlier_samples: 1_000,
            earlier_dropped: 2,
            earlier_bytes: 1_536,
            earlier_ms: 60_000,
            ..BLANK
        };
        let rows = [StatusRow::new(7, "a.exe", &status)];
        let text = table(&rows);
        assert_eq!(
            text,
            "a.exe (pid 7): file 3 (0008 in its name), 2.00 s, 1 thread, 20 samples, 1 dropped, 512 B   \
             10.0 Hz a thread; all files: 62.0 s, 1,020 samples, 3 dropped, 2.0 KiB\n"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&rows)).unwrap();
        let reported = &json["recordings"][0];
        assert_eq!((&reported["samples"], &reported["bytes"]), (&20.into(), &512.into()));
        let all = serde_json::json!({
            "index": 3, "number": 8, "elapsed_ms": 62_000, "samples": 1_020, "dropped": 3, "bytes": 2_048
        });
        assert_eq!(reported["rotation"], all);
        // The host has ended it, but what it wrote is still there.
        let ended = AgentStatus { rotation: 0, ..status };
        assert_eq!(StatusRow::new(7, "a.exe", &ended).rotation, None);
        assert!(stopped(&ended, true).ends_with("all files: 62.0 s, 1,020 samples, 3 dropped, 2.0 KiB"));
        assert!(!stopped(&ended, false).contains("all files"));
        // Older agents' status says nothing of it.
        assert_eq!(StatusRow::new(7, "a", &AgentStatus { file_index: 0, ..status }).rotation, None);
    }

    #[test]
    fn text_from_the_target_cannot_control_the_terminal() {
        let mut message = [0; 256];
        message[..4].copy_from_slice(b"\x1b[2J");
        let status = AgentStatus { message_len: 4, message, ..BLANK };
        assert_eq!(super::message(&status), r"\u{1b}[2J");
    }

    #[test]
    fn samples_that_could_not_be_written_are_counted_beside_those_in_the_file() {
        let contents = TraceSummary { samples: 10, dropped: 1, ..TraceSummary::default() };
        let status = AgentStatus { samples: 12, dropped: 7, ..BLANK };
        assert!(closing(&status, Some(&contents)).contains("10 samples   7 dropped"));
        let old = AgentStatus { samples: 9, dropped: 0, ..BLANK };
        assert!(closing(&old, Some(&contents)).contains("10 samples   1 dropped"));
    }

    #[test]
    fn closing_line_counts_threads_that_ended() {
        let status = AgentStatus { threads: 1, threads_met: 6, ..BLANK };
        assert!(line(&status).contains(" 1 thread "));
        assert!(closing(&status, None).contains(" 6 threads "));
        assert!(stopped(&status, false).contains(" 6 threads "));
        // Older agents do not count them.
        assert!(closing(&AgentStatus { threads_met: 0, ..status }, None).contains(" 1 thread "));
    }

    #[test]
    fn the_system_s_reason_follows_the_agent_s_message() {
        let mut message = [0; 256];
        message[..3].copy_from_slice(b"bad");
        let status = AgentStatus { message_len: 3, message, system_error: 5, ..BLANK };
        let text = super::message(&status);
        assert!(text.starts_with("bad: ") && text.contains("(os error 5)"), "{text}");
    }
}
