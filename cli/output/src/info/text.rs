//! The facts of `stk info` as text: one line per fact with its name in front. With `--all`, lists
//! of blocks, functions, threads and modules too.

use super::document::{EarlierName, EmbeddedTables, Info, SupplementInfo, TableTotals, ThreadSummary};
use std::collections::BTreeMap;
use std::fmt::Write;
use stk_base::text::{TimeZone, count, counted, moment, since_start, size, span};
use stk_profile::trace::drop_reason_name;
use stk_schema::event::DropReason;
use stk_schema::text::printable;

/// The text of one trace. With `all`, it has the lists.
pub fn of(info: &Info, all: bool, zone: TimeZone) -> String {
    let mut out = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "{label:<10} {}", printable(value));
        }
    };
    line("trace", &format!("{} ({}, {})", info.file, size(info.bytes), info.trace_id));
    line("process", &process(info));
    line("command", fact(info, "command_line"));
    line("machine", &machine(info));
    let rate = 1e9 / info.interval_ns.max(1) as f64;
    let start = moment(info.start_utc_ns, zone);
    line("recorded", &format!("{start} for {} at {rate:.0} Hz", span(info.duration_ns)));
    line("", &missed_text(info));
    line("rate", &rates_text(info));
    for (label, text) in limits_text(info) {
        line(label, &text);
    }
    line("paused", &pauses_text(info));
    line("file", &rotation_text(info));
    line("recorder", fact(info, "recorder.version"));
    line("ended", &ending(info));
    let per_sample = info.bytes as f64 / info.samples.max(1) as f64;
    line("samples", &format!("{} ({per_sample:.0} bytes each)", count(info.samples)));
    line("dropped", &counted(info.dropped, "sample"));
    for (reason, n) in &info.drops {
        line("", &format!("{} times: {reason}", count(*n)));
    }
    for damage in &info.damage {
        line("damage", damage);
    }
    if info.unknown_events > 0 {
        line("skipped", &format!("{} of unknown type", counted(info.unknown_events, "event")));
    }
    if info.unread_ns > 0 {
        let unread = span(info.unread_ns);
        line(
            "not read",
            &format!("up to {unread} of CPU time, of stacks that stood still (format version 1.0)"),
        );
    }
    if let Some(added) = &info.supplement {
        line("completed", &supplement_text(added));
        if !all && !added.left.is_empty() {
            line("", &format!("{} not completed{LISTS}", counted(added.left.len() as u64, "module")));
        }
        for left in added.left.iter().filter(|_| all) {
            line("", &format!("not completed: {left}"));
        }
    }
    blocks(info, all, &mut line);
    line("embedded", &embedded_text(info));
    line("tables", &apart_text(&info.embedded, !info.damage.is_empty()).unwrap_or_default());
    for runtime in &info.runtimes {
        let note = if runtime.note.is_empty() { String::new() } else { format!(": {}", runtime.note) };
        let name = format!("{} {}", runtime.kind, runtime.version);
        // A note may have several lines.
        for (i, part) in format!("{}{note}", name.trim_end()).lines().enumerate() {
            line(if i == 0 { "runtime" } else { "" }, part);
        }
    }
    if info.contract_names > 0 {
        line("names", &format!("{} from .NET's memory, by its data contract", count(info.contract_names)));
    }
    if info.data_access_names > 0 {
        line("names", &format!("{} from .NET's data access library", count(info.data_access_names)));
    }
    for (rule, words) in &info.redacted_words {
        let words = if *words > 0 { format!("{}: ", counted(*words, "word")) } else { String::new() };
        line("redacted", &format!("{words}{rule}"));
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
    line("threads", &threads(info, all));
    if all {
        threads_list(info, &mut out);
    }
    let _ = writeln!(out, "{:<10} {}", "modules", modules(info, all));
    if all {
        modules_list(info, &mut out);
    }
    out
}

/// Behind a count whose list is left out.
const LISTS: &str = " (--all lists them)";
/// Names in the line on threads.
const NAMES: usize = 6;

/// How many threads, and what they are called.
fn threads(info: &Info, all: bool) -> String {
    let mut text = count(info.threads.len() as u64);
    if all || info.threads.is_empty() {
        return text;
    }
    let mut names: BTreeMap<&str, u64> = BTreeMap::new();
    let own = info.threads.iter().filter(|thread| !thread.recorder && !thread.name.is_empty());
    own.for_each(|thread| *names.entry(&thread.name).or_default() += 1);
    let shown: Vec<String> = names
        .iter()
        .take(NAMES)
        .map(|(name, n)| if *n == 1 { (*name).to_owned() } else { format!("{name} ({n})") })
        .collect();
    if !shown.is_empty() {
        let more = if names.len() > NAMES { ", …" } else { "" };
        let _ = write!(text, ": {}{more}", shown.join(", "));
    }
    text + LISTS
}

/// How many modules, and what is remarkable about them.
fn modules(info: &Info, all: bool) -> String {
    let number = |fits: fn(&super::document::ModuleInfo) -> bool| {
        info.modules.iter().filter(|module| fits(module)).count() as u64
    };
    let mut text = count(info.modules.len() as u64);
    for (number, what) in [
        (number(|module| module.load_ns.is_some()), "loaded while recording"),
        (number(|module| module.unload_ns.is_some()), "unloaded"),
        (number(|module| module.unwind_data == "none"), "without unwind data"),
        (number(|module| module.unwind_data == "elsewhere"), "with unwind data elsewhere"),
    ] {
        if number > 0 {
            let _ = write!(text, ", {} {what}", count(number));
        }
    }
    if all { text } else { text + LISTS }
}

/// What the trace's METADATA says under a key, the last if it says more than one thing; empty if
/// nothing.
fn fact<'a>(info: &'a Info, key: &str) -> &'a str {
    info.metadata.iter().rev().find(|(known, _)| known == key).map_or("", |(_, value)| value.as_str())
}

fn process(info: &Info) -> String {
    let (version, session) = (fact(info, "exe.version"), fact(info, "session.id"));
    let version = if version.is_empty() { String::new() } else { format!(" {version}") };
    let session = if session.is_empty() { String::new() } else { format!(", session {session}") };
    format!("{}{version} (pid {}, {}{session})", info.process, info.pid, info.arch)
}

fn machine(info: &Info) -> String {
    let keys = ["host", "machine.id", "os.name", "os.build", "wine", "cpu.name", "cpu.count"];
    let mut parts = Vec::new();
    for key in keys {
        match (key, fact(info, key)) {
            (_, "") => {}
            ("host", value) => parts.push(value.to_owned()),
            (_, value) => parts.push(format!("{key} {value}")),
        }
    }
    parts.extend(fact(info, "tz.offset").parse().ok().map(local_time_text));
    parts.join(", ")
}

/// How far local time was from UTC where the trace was recorded.
fn local_time_text(minutes: i64) -> String {
    let (sign, ahead) =
        if minutes < 0 { ('-', minutes.unsigned_abs()) } else { ('+', minutes.unsigned_abs()) };
    format!("local time UTC{sign}{:02}:{:02}", ahead / 60, ahead % 60)
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

/// How many of the looks at all threads were not made.
fn missed_text(info: &Info) -> String {
    let paused: u64 = info.pauses.iter().map(|pause| pause.to_ns - pause.from_ns).sum();
    let passes = info.duration_ns.saturating_sub(paused) / info.interval_ns.max(1);
    let left_out = [DropReason::Late, DropReason::DutyLimit].map(|reason| drop_reason_name(reason as u64));
    let missed = left_out
        .iter()
        .filter_map(|reason| info.drops.get(*reason))
        .fold(0, |sum: u64, n| sum.saturating_add(*n))
        .min(passes);
    let share = 100 * u128::from(missed) / u128::from(passes.max(1));
    if share == 0 {
        return String::new();
    }
    format!("{} of {} looks at the threads were not made ({share} %)", count(missed), count(passes))
}

/// What the recording was limited to, and what made threads sample themselves.
fn limits_text(info: &Info) -> [(&'static str, String); 3] {
    let of_key = |wanted: &str| {
        let values = info.metadata.iter().filter(|(key, _)| key == wanted);
        values.map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", ")
    };
    let budget = of_key("recorder.max_overhead_ppm").parse::<u32>().map_or_else(
        |_| String::new(),
        |ppm| format!("the recorder may use {} % of a processor", f64::from(ppm) / 10_000.0),
    );
    let threads = match of_key("recorder.threads") {
        chosen if chosen.is_empty() => chosen,
        chosen => format!("threads that fit {chosen}; the others are listed, not sampled"),
    };
    [("only", threads), ("limit", budget), ("triggers", of_key("recorder.trigger"))]
}

/// When the recording was paused.
fn pauses_text(info: &Info) -> String {
    let Some(first) = info.pauses.first() else { return String::new() };
    let all: u64 = info.pauses.iter().map(|pause| pause.to_ns - pause.from_ns).sum();
    let times = match info.pauses.len() {
        1 => "once".to_owned(),
        times => format!("{} times", count(times as u64)),
    };
    format!("{times}, for {}, from {} on: not sampled, not counted", span(all), since_start(first.from_ns))
}

/// The place of the trace in a recording of several files.
fn rotation_text(info: &Info) -> String {
    let Some(rotation) = &info.rotation else { return String::new() };
    let gap = match rotation.gap_ns {
        None => String::new(),
        Some(0) => "; it continues without a gap".to_owned(),
        Some(gap) => format!("; {} before its first samples are not recorded", span(gap)),
    };
    format!("{} of the recording {}{gap}", count(rotation.index), rotation.id)
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
        since_start(lowest.at_ns)
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
    let modules = counted(added.modules, "module");
    format!("{modules} from their image files after the end ({} in the file){cut}", size(added.bytes))
}

/// The blocks of the file, with `all` by kind.
fn blocks(info: &Info, all: bool, line: &mut impl FnMut(&str, &str)) {
    let sum = |part: fn(&super::document::BlockInfo) -> u64| {
        info.blocks.values().map(part).fold(0, u64::saturating_add)
    };
    let (blocks, stored, raw) =
        (sum(|block| block.blocks), sum(|block| block.stored_bytes), sum(|block| block.raw_bytes));
    line("blocks", &format!("{} ({} stored, {} of events)", count(blocks), size(stored), size(raw)));
    for (kind, block) in info.blocks.iter().filter(|_| all) {
        let (stored, raw) = (size(block.stored_bytes), size(block.raw_bytes));
        line("", &format!("{} {kind} ({stored} stored, {raw} of events)", count(block.blocks)));
    }
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
fn apart_text(embedded: &EmbeddedTables, damaged: bool) -> Option<String> {
    let missing = match damaged {
        true => "not available: they may have been in the damaged part",
        false => "not available: name the folder that inject wrote them to with --tables",
    };
    let EmbeddedTables { in_folders, not_at_hand, .. } = embedded;
    let text = |tables: &TableTotals, where_: &str| {
        format!("{} ({}) {where_}", counted(tables.tables, "table"), size(tables.bytes))
    };
    let parts = [(in_folders, "in the folders of --tables"), (not_at_hand, missing)];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(tables, _)| tables.tables > 0)
        .map(|(tables, where_)| text(tables, where_))
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn threads_list(info: &Info, out: &mut String) {
    for thread in &info.threads {
        let _ = writeln!(
            out,
            "  {:>8}  {} .. {}  {}{}{}",
            thread.tid,
            thread.start_ns.map_or("before".to_owned(), since_start),
            thread.exit_ns.map_or("end".to_owned(), since_start),
            printable(&thread.name),
            if thread.recorder { "(recorder)" } else { "" },
            earlier_names(thread),
        );
    }
}

/// `  (before: first to 0.010 s, second to 0.020 s)`: the names that a thread had before.
fn earlier_names(thread: &ThreadSummary) -> String {
    let one =
        |earlier: &EarlierName| format!("{} to {}", printable(&earlier.name), since_start(earlier.until_ns));
    let names: Vec<String> = thread.earlier_names.iter().map(one).collect();
    if names.is_empty() { String::new() } else { format!("  (before: {})", names.join(", ")) }
}

fn modules_list(info: &Info, out: &mut String) {
    for module in &info.modules {
        let mut line = format!("  {:>18}  {}", module.base, printable(&module.path));
        if module.load_ns.is_some() || module.unload_ns.is_some() {
            let load = module.load_ns.map_or("before".to_owned(), since_start);
            let _ = write!(line, "  {load} .. {}", module.unload_ns.map_or("end".to_owned(), since_start));
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
}
