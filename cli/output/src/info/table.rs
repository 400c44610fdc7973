//! Several traces: one line each, and their sum.

use super::document::Info;
use stk_base::text::{TimeZone, count, counted, moment, size, span};
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// The lines so far.
pub struct TraceTable {
    zone: TimeZone,
    table: Table,
    traces: u64,
    samples: u64,
    dropped: u64,
    duration_ns: u64,
    bytes: u64,
    damaged: u64,
}

impl TraceTable {
    pub fn new(zone: TimeZone) -> TraceTable {
        let columns = [
            Column::left("").gap(0),
            Column::left(""),
            Column::left(""),
            Column::right("").gap(1).at_least(10),
            Column::right("").gap(1).at_least(11),
            Column::right("").gap(1),
            Column::right("").gap(1).at_least(9),
            Column::right("").gap(1),
            Column::right("").gap(1).at_least(11),
            Column::left(""),
        ];
        let table = Table::new(columns);
        TraceTable { zone, table, traces: 0, samples: 0, dropped: 0, duration_ns: 0, bytes: 0, damaged: 0 }
    }

    pub fn add(&mut self, info: &Info) {
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
        self.traces += 1;
        let state = match (info.damage.is_empty(), info.complete) {
            (false, _) => "damaged",
            (true, false) => "not finished",
            (true, true) => "",
        };
        let names = [
            printable(&info.file).into_owned(),
            format!("{} ({})", printable(&info.process), info.pid),
            moment(info.start_utc_ns, self.zone),
        ];
        let figures = figures(info.duration_ns, info.samples, info.dropped, info.bytes);
        self.table.row(names.into_iter().chain(figures).chain([state.to_owned()]));
    }

    /// The lines, and one for the sum.
    pub fn text(&self) -> String {
        let mut table = self.table.clone();
        let names = [counted(self.traces, "trace"), String::new(), String::new()];
        let sum = figures(self.duration_ns, self.samples, self.dropped, self.bytes);
        let damaged =
            if self.damaged > 0 { format!("{} damaged", count(self.damaged)) } else { String::new() };
        table.row(names.into_iter().chain(sum).chain([damaged]));
        table.text()
    }
}

fn figures(duration_ns: u64, samples: u64, dropped: u64, bytes: u64) -> [String; 6] {
    let noun = |noun: &str| noun.to_owned();
    [span(duration_ns), count(samples), noun("samples"), count(dropped), noun("dropped"), size(bytes)]
}
