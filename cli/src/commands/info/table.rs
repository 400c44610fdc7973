//! Several traces: one line each, and their sum.

use super::document::Info;
use stk_base::text::{TimeZone, count, counted, moment, pad, size, span, width};
use std::fmt::Write;
use stk_schema::text::printable;

/// The lines so far.
pub(super) struct Table {
    zone: TimeZone,
    rows: Vec<TableRow>,
    samples: u64,
    dropped: u64,
    duration_ns: u64,
    bytes: u64,
    damaged: u64,
}

struct TableRow {
    file: String,
    process: String,
    rest: String,
}

impl Table {
    pub(super) fn new(zone: TimeZone) -> Table {
        Table { zone, rows: Vec::new(), samples: 0, dropped: 0, duration_ns: 0, bytes: 0, damaged: 0 }
    }

    pub(super) fn add(&mut self, info: &Info) {
        let sums = [
            (&mut self.samples, info.samples),
            (&mut self.dropped, info.dropped),
            (&mut self.duration_ns, info.duration_ns),
            (&mut self.bytes, info.bytes),
            (&mut self.damaged, u64::from(!info.damage.is_empty())),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        let state = match (info.damage.is_empty(), info.complete) {
            (false, _) => "  damaged",
            (true, false) => "  not finished",
            (true, true) => "",
        };
        self.rows.push(TableRow {
            file: printable(&info.file).into_owned(),
            process: format!("{} ({})", printable(&info.process), info.pid),
            rest: format!(
                "{} {}{state}",
                moment(info.start_utc_ns, self.zone),
                figures(info.duration_ns, info.samples, info.dropped, info.bytes)
            ),
        });
    }

    pub(super) fn text(&self) -> String {
        let total = counted(self.rows.len() as u64, "trace");
        let files = self.rows.iter().map(|row| width(&row.file)).chain([width(&total)]).max().unwrap_or(0);
        let processes = self.rows.iter().map(|row| width(&row.process)).max().unwrap_or(0);
        let started = moment(0, self.zone).len();
        let mut text = String::new();
        for TableRow { file, process, rest } in &self.rows {
            let _ = writeln!(text, "{}  {}  {rest}", pad(file, files), pad(process, processes));
        }
        let sum = figures(self.duration_ns, self.samples, self.dropped, self.bytes);
        let damaged =
            if self.damaged > 0 { format!("  {} damaged", count(self.damaged)) } else { String::new() };
        let space = " ".repeat(processes + 2 + started);
        let _ = writeln!(text, "{}  {space} {sum}{damaged}", pad(&total, files));
        text
    }
}

fn figures(duration_ns: u64, samples: u64, dropped: u64, bytes: u64) -> String {
    let (samples, dropped) = (count(samples), count(dropped));
    format!("{:>10} {samples:>11} samples {dropped:>9} dropped {:>11}", span(duration_ns), size(bytes))
}
