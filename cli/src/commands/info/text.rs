//! The facts of `stk info` as text: one line per fact with its name in front, then lists of threads
//! and modules.

use super::LISTED;
use super::document::{EmbeddedTables, Info, SupplementInfo, TableTotals};
use crate::commands::{count, size, span};
use std::fmt::Write;
use stk_schema::text::printable;

/// The text of one trace. With `all`, every list is complete.
pub(super) fn of(info: &Info, all: bool) -> String {
    let mut out = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "{label:<10} {}", printable(value));
        }
    };
    line("trace", &format!("{} ({}, {})", info.file, size(info.bytes), info.trace_id));
    let fact = |key: &str| {
        info.metadata.iter().rev().find(|(k, _)| k == key).map_or("", |(_, value)| value.as_str())
    };
    line("process", &format!("{} (pid {}, {})", info.process, info.pid, info.arch));
    line("command", fact("command_line"));
    line("machine", &machine(info));
    let rate = 1e9 / info.interval_ns.max(1) as f64;
    line("recorded", &format!("{} for {} at {rate:.0} Hz", info.start_utc, span(info.duration_ns)));
    line("rate", &rates_text(info));
    line("recorder", fact("recorder.version"));
    line("ended", &ending(info));
    let per_sample = info.bytes as f64 / info.samples.max(1) as f64;
    line("samples", &format!("{} ({per_sample:.0} bytes each)", count(info.samples)));
    line("dropped", &format!("{} samples", count(info.dropped)));
    for (reason, n) in &info.drops {
        line("", &format!("{} times: {reason}", count(*n)));
    }
    for damage in &info.damage {
        line("damage", damage);
    }
    if info.unknown_events > 0 {
        line("skipped", &format!("{} events of unknown type", count(info.unknown_events)));
    }
    if let Some(added) = &info.supplement {
        line("completed", &supplement_text(added));
        let shown = if all { added.left.len() } else { LISTED };
        for left in added.left.iter().take(shown) {
            line("", &format!("not completed: {left}"));
        }
    }
    line("blocks", &blocks_text(info));
    line("embedded", &embedded_text(info));
    line("tables", &apart_text(&info.embedded).unwrap_or_default());
    for runtime in &info.runtimes {
        let note = if runtime.note.is_empty() { String::new() } else { format!(": {}", runtime.note) };
        let name = format!("{} {}", runtime.kind, runtime.version);
        // A note may have several lines.
        for (i, part) in format!("{}{note}", name.trim_end()).lines().enumerate() {
            line(if i == 0 { "runtime" } else { "" }, part);
        }
    }
    if info.data_access_names > 0 {
        line("names", &format!("{} from .NET's data access library", count(info.data_access_names)));
    }
    for (rule, words) in &info.redacted_words {
        line("redacted", &format!("{} words: {rule}", count(*words)));
    }
    line("code", &info.dynamic_code.text());
    if let Some(methods) = &info.methods {
        line("methods", &methods.text());
        methods.list(all, &mut line);
    }
    for (label, n) in [("marks", info.marks as u64), ("exceptions", info.exceptions)] {
        if n > 0 {
            line(label, &count(n));
        }
    }
    threads_text(info, all, &mut out);
    modules_text(info, all, &mut out);
    out
}

fn machine(info: &Info) -> String {
    let keys = ["host", "os.name", "os.build", "wine", "cpu.name", "cpu.count"];
    let mut parts = Vec::new();
    for key in keys {
        if let Some((_, value)) = info.metadata.iter().rev().find(|(known, _)| known == key) {
            parts.push(if key == "host" { value.clone() } else { format!("{key} {value}") });
        }
    }
    parts.join(", ")
}

fn ending(info: &Info) -> String {
    match &info.end {
        Some(end) if end.detail.is_empty() => end.reason.to_owned(),
        Some(end) => format!("{}: {}", end.reason, end.detail),
        None => {
            "not finished: the target or the recorder was ended; what was written before is there".to_owned()
        }
    }
}

fn rates_text(info: &Info) -> String {
    let Some(lowest) = info.rates.iter().min_by(|a, b| a.hz.total_cmp(&b.hz)) else { return String::new() };
    let times = match info.rates.len() {
        1 => "once".to_owned(),
        times => format!("{} times", count(times as u64)),
    };
    format!(
        "changed {times}, to {:.0} Hz at {} at the lowest: the recorder kept to its share of a processor",
        lowest.hz,
        span(lowest.at_ns)
    )
}

fn supplement_text(added: &SupplementInfo) -> String {
    if !added.whole {
        return format!(
            "a torn supplement of {} is ignored: the recording itself is whole",
            size(added.bytes)
        );
    }
    let cut = match added.cut_bytes {
        0 => String::new(),
        cut => format!("; {} of a block that was not whole were cut off", size(cut)),
    };
    let modules = count(added.modules);
    format!("{modules} modules from their image files after the end ({} in the file){cut}", size(added.bytes))
}

fn blocks_text(info: &Info) -> String {
    let parts = info.blocks.iter().map(|(kind, block)| {
        format!(
            "{} {kind} ({} stored, {} of events)",
            count(block.blocks),
            size(block.stored_bytes),
            size(block.raw_bytes)
        )
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn embedded_text(info: &Info) -> String {
    let embedded = &info.embedded;
    let tables: Vec<String> =
        embedded.tables.iter().map(|(kind, bytes)| format!("{kind} {}", size(*bytes))).collect();
    format!(
        "unwind data of {} of {} images; {}; {} in the file ({:.0} %)",
        embedded.images_with_unwind_data,
        embedded.images_with_unwind_data + embedded.images_without,
        if tables.is_empty() { "no tables".to_owned() } else { tables.join(", ") },
        size(embedded.stored_bytes),
        100.0 * embedded.stored_bytes as f64 / info.bytes.max(1) as f64,
    )
}

/// The tables that are not in the trace itself.
fn apart_text(embedded: &EmbeddedTables) -> Option<String> {
    let EmbeddedTables { in_folders, not_at_hand, .. } = embedded;
    let text = |tables: &TableTotals, where_: &str| {
        format!("{} tables ({}) {where_}", count(tables.tables), size(tables.bytes))
    };
    let parts = [
        (in_folders, "in the folders of --tables"),
        (not_at_hand, "not at hand: name the folder that inject wrote them to with --tables"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(tables, _)| tables.tables > 0)
        .map(|(tables, where_)| text(tables, where_))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn threads_text(info: &Info, all: bool, out: &mut String) {
    let _ = writeln!(out, "threads    {}", count(info.threads.len() as u64));
    let shown = if all { info.threads.len() } else { LISTED };
    for thread in info.threads.iter().take(shown) {
        let _ = writeln!(
            out,
            "  {:>8}  {} .. {}  {}{}",
            thread.tid,
            thread.start_ns.map_or("before".to_owned(), span),
            thread.exit_ns.map_or("end".to_owned(), span),
            printable(&thread.name),
            if thread.recorder { "(recorder)" } else { "" },
        );
    }
    more(info.threads.len(), shown, out);
}

fn modules_text(info: &Info, all: bool, out: &mut String) {
    let _ = writeln!(out, "modules    {}", count(info.modules.len() as u64));
    let shown = if all { info.modules.len() } else { LISTED };
    for module in info.modules.iter().take(shown) {
        let mut line = format!("  {:>18}  {}", module.base, printable(&module.path));
        if module.load_ns.is_some() || module.unload_ns.is_some() {
            let load = module.load_ns.map_or("before".to_owned(), span);
            let _ = write!(line, "  {load} .. {}", module.unload_ns.map_or("end".to_owned(), span));
        }
        if !module.pdb.is_empty() {
            let _ = write!(line, "  {} {}", printable(&module.pdb), module.debug_id);
        }
        match module.unwind_data {
            "none" => line.push_str("  (no unwind data)"),
            "elsewhere" => line.push_str("  (unwind data elsewhere)"),
            _ => {}
        }
        let _ = writeln!(out, "{line}");
    }
    more(info.modules.len(), shown, out);
}

fn more(total: usize, shown: usize, out: &mut String) {
    if total > shown {
        let _ = writeln!(out, "  ... and {} more (--all lists them)", count((total - shown) as u64));
    }
}
