//! `stk info`: what was recorded.

mod methods;

use super::{Exit, TablesArgs, count, print, report, size, span, utc, verify};
use crate::trace::{BlobPlace, Timeline, Trace, TraceFile, drop_reason_name};
use methods::Methods;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use stk_schema::event::{EndReason, ModuleFlags, Table, TableKind, ThreadFlags};

/// Says what a trace holds, without decoding its samples.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk info app.stk
  stk info --json *.stk | jq '.traces[].samples'")]
pub struct Args {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON: {\"version\": 1, \"traces\": [...]}
    #[arg(long)]
    json: bool,
    /// List all modules and threads, however many
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    tables: TablesArgs,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    let mut infos = Vec::new();
    for path in &args.files {
        match info(path, &args.tables) {
            Ok(info) => {
                if !info.damage.is_empty() {
                    exit = exit.worse(Exit::Damaged);
                }
                infos.push(info);
            }
            Err(error) => {
                report(&error);
                exit = exit.worse(verify::exit_of(&error));
            }
        }
    }
    if args.json {
        let document = Document { version: 1, traces: infos };
        print(&format!("{}\n", serde_json::to_string_pretty(&document)?))?;
    } else {
        let texts: Vec<String> = infos.iter().map(|info| text(info, args.all)).collect();
        print(&texts.join("\n"))?;
    }
    Ok(exit)
}

/// The JSON output. Its version grows when a field changes its meaning or goes; new fields may come at any time.
#[derive(Serialize)]
struct Document {
    version: u32,
    traces: Vec<Info>,
}

#[derive(Serialize)]
struct Info {
    file: String,
    bytes: u64,
    trace_id: String,
    process: String,
    pid: u32,
    arch: &'static str,
    start_utc: String,
    duration_ns: u64,
    interval_ns: u64,
    complete: bool,
    end: Option<EndInfo>,
    samples: u64,
    dropped: u64,
    drops: BTreeMap<String, u64>,
    damage: Vec<String>,
    unknown_events: u64,
    blocks: BTreeMap<&'static str, BlockInfo>,
    embedded: Embedded,
    metadata: Vec<(String, String)>,
    runtimes: Vec<RuntimeInfo>,
    /// Names that the recorder got from .NET's data access library.
    data_access_names: u64,
    marks: usize,
    exceptions: u64,
    dynamic_code: DynamicCode,
    methods: Option<Methods>,
    redacted_words: BTreeMap<String, u64>,
    threads: Vec<ThreadInfo>,
    modules: Vec<ModuleInfo>,
}

#[derive(Serialize)]
struct EndInfo {
    reason: &'static str,
    detail: String,
}

#[derive(Default, Serialize)]
struct BlockInfo {
    blocks: u64,
    stored_bytes: u64,
    raw_bytes: u64,
}

/// What of the images the trace carries. A table that several images share counts once.
#[derive(Default, Serialize)]
struct Embedded {
    /// Bytes by kind of table.
    tables: BTreeMap<&'static str, u64>,
    /// Bytes that all of it takes in the file.
    stored_bytes: u64,
    /// Images with, and without, what unwinding needs, in the trace or in a folder of tables.
    images_with_unwind_data: usize,
    images_without: usize,
    /// Tables that the trace does not carry itself: those in a folder given with --tables, and those that are not at hand.
    in_folders: Tables,
    not_at_hand: Tables,
}

#[derive(Default, Serialize)]
struct Tables {
    tables: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct RuntimeInfo {
    kind: &'static str,
    version: String,
    note: String,
}

#[derive(Serialize)]
struct ThreadInfo {
    tid: u32,
    name: String,
    start_ns: Option<u64>,
    exit_ns: Option<u64>,
    recorder: bool,
}

#[derive(Serialize)]
struct ModuleInfo {
    name: String,
    path: String,
    base: String,
    size: u64,
    debug_id: String,
    code_id: String,
    pdb: String,
    load_ns: Option<u64>,
    unload_ns: Option<u64>,
    /// Bytes of its tables that are in the trace.
    embedded_bytes: u64,
    /// `here` (in the trace or a folder given with --tables), `elsewhere` (in a folder that was not given) or `none`.
    unwind_data: &'static str,
}

fn info(path: &Path, tables: &TablesArgs) -> anyhow::Result<Info> {
    let file = TraceFile::open(path)?;
    let mut trace = file.read()?;
    tables.give(&mut trace);
    let timeline = &trace.timeline;
    let header = trace.header();
    let mut blocks: BTreeMap<&'static str, BlockInfo> = BTreeMap::new();
    for block in trace.blocks().blocks() {
        let entry = blocks.entry(block.header.kind.name()).or_default();
        entry.blocks += 1;
        entry.stored_bytes += u64::from(block.header.stored_len);
        entry.raw_bytes += u64::from(block.header.raw_len);
    }
    Ok(Info {
        file: trace.source.clone(),
        bytes: file.len(),
        trace_id: trace.id(),
        process: trace.process(),
        pid: header.pid,
        arch: header.arch.name(),
        start_utc: utc(header.utc_start),
        duration_ns: trace.clock.ns(trace.last()),
        interval_ns: trace.interval_ns(),
        complete: trace.blocks().is_complete(),
        end: timeline
            .end
            .as_ref()
            .map(|end| EndInfo { reason: end_reason_name(end.reason), detail: end.detail.clone() }),
        samples: trace.samples(),
        dropped: trace.dropped(),
        drops: timeline
            .dropped
            .iter()
            .map(|(&reason, &n)| (drop_reason_name(reason).to_owned(), n))
            .collect(),
        damage: trace.damage.clone(),
        unknown_events: timeline.unknown_events,
        blocks,
        embedded: embedded(&trace),
        metadata: timeline.metadata.clone(),
        runtimes: timeline
            .runtimes
            .iter()
            .map(|runtime| RuntimeInfo {
                kind: runtime_name(runtime.kind),
                version: runtime.version.clone(),
                note: runtime.note.clone(),
            })
            .collect(),
        data_access_names: timeline.names_told,
        marks: timeline.marks.len(),
        exceptions: timeline.exceptions,
        dynamic_code: DynamicCode::of(&trace),
        methods: methods::of(&trace),
        redacted_words: timeline.redacted.clone(),
        threads: threads(&trace),
        modules: modules(&trace),
    })
}

/// Code made at run time: what was recorded of it, and what that cost.
#[derive(Default, Serialize)]
struct DynamicCode {
    /// Regions with unwind data.
    functions: usize,
    /// Regions without.
    stubs: usize,
    /// Bytes of code and unwind data.
    bytes: u64,
    /// Lookups in the target's function tables; 0 if the recording did not end in order.
    lookups: u64,
    lookup_ns: u64,
    lookup_max_ns: u64,
    /// Lookups that ended in a fault of whoever was asked.
    faults: u64,
    /// Addresses that were not looked up.
    not_looked_up: u64,
}

impl DynamicCode {
    fn of(trace: &Trace<'_>) -> DynamicCode {
        let fact = |key: &str| trace.fact(key).and_then(|value| value.parse().ok()).unwrap_or(0);
        let code = &trace.timeline.code;
        let stubs = code.iter().filter(|region| region.is_stub()).count();
        DynamicCode {
            functions: code.len() - stubs,
            stubs,
            bytes: fact("recorder.code.bytes"),
            lookups: fact("recorder.code.lookups"),
            lookup_ns: fact("recorder.code.lookup_ns"),
            lookup_max_ns: fact("recorder.code.lookup_max_ns"),
            faults: fact("recorder.code.faults"),
            not_looked_up: fact("recorder.code.unseen"),
        }
    }

    fn text(&self) -> String {
        if self.functions + self.stubs + self.not_looked_up as usize == 0 {
            return String::new();
        }
        let (functions, stubs) = (count(self.functions as u64), count(self.stubs as u64));
        let mut text = format!("{functions} functions and {stubs} stubs made at run time");
        if self.lookups > 0 {
            let (bytes, lookups) = (size(self.bytes), count(self.lookups));
            let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
            let (all, longest) = (ms(self.lookup_ns), ms(self.lookup_max_ns));
            let _ = write!(text, " ({bytes}; {lookups} lookups in {all}, the longest {longest})");
        }
        if self.not_looked_up > 0 {
            let _ = write!(text, "; {} addresses not looked up", count(self.not_looked_up));
        }
        if self.faults > 0 {
            let _ = write!(text, "; {} lookups failed in the target", count(self.faults));
        }
        text
    }
}

fn threads(trace: &Trace<'_>) -> Vec<ThreadInfo> {
    let clock = trace.clock;
    let threads = trace.timeline.threads.iter().map(|thread| ThreadInfo {
        tid: thread.tid,
        name: thread.name.clone(),
        start_ns: (!thread.flags.contains(ThreadFlags::AT_START)).then(|| clock.ns(thread.start)),
        exit_ns: thread.exit.map(|exit| clock.ns(exit)),
        recorder: thread.flags.contains(ThreadFlags::RECORDER),
    });
    threads.collect()
}

fn modules(trace: &Trace<'_>) -> Vec<ModuleInfo> {
    let Timeline { modules, images, .. } = &trace.timeline;
    let clock = trace.clock;
    let modules = modules.iter().map(|module| {
        let record = &images[module.image.0 as usize];
        let image = &record.image;
        let place = |hash| trace.blobs.place_of(hash);
        let in_trace = record.tables.iter().filter(|table| place(table.hash) == BlobPlace::Trace);
        ModuleInfo {
            name: image.name.clone(),
            path: image.path.clone(),
            base: format!("{:#x}", module.base),
            size: module.size,
            debug_id: image.debug_id.clone(),
            code_id: image.code_id.clone(),
            pdb: image.pdb_name.clone(),
            load_ns: (!module.flags.contains(ModuleFlags::AT_START)).then(|| clock.ns(module.load)),
            unload_ns: module.unload.map(|unload| clock.ns(unload)),
            embedded_bytes: in_trace.map(|table| u64::from(table.len)).sum(),
            unwind_data: match record.tables.as_slice() {
                [] => "none",
                tables if tables.iter().all(|table| place(table.hash) == BlobPlace::Nowhere) => "elsewhere",
                _ => "here",
            },
        }
    });
    modules.collect()
}

fn embedded(trace: &Trace<'_>) -> Embedded {
    let mut embedded = Embedded { stored_bytes: trace.blobs.stored_bytes, ..Embedded::default() };
    let mut seen = HashSet::new();
    for record in &trace.timeline.images {
        for table in &record.tables {
            if !seen.insert(table.hash) {
                continue;
            }
            let len = u64::from(table.len);
            let apart = match trace.blobs.place_of(table.hash) {
                BlobPlace::Trace => {
                    *embedded.tables.entry(table_name(table.kind)).or_default() += len;
                    continue;
                }
                BlobPlace::Folder => &mut embedded.in_folders,
                BlobPlace::Nowhere => &mut embedded.not_at_hand,
            };
            apart.tables += 1;
            apart.bytes += len;
        }
        let unwinds = |kind: u64| kind == TableKind::ExceptionDirectory as u64;
        let at_hand = |table: &&Table| trace.blobs.place_of(table.hash) != BlobPlace::Nowhere;
        if record.tables.iter().filter(at_hand).any(|table| unwinds(table.kind)) {
            embedded.images_with_unwind_data += 1;
        } else {
            embedded.images_without += 1;
        }
    }
    embedded
}

/// Modules and threads that are listed unless `--all` is given.
const LISTED: usize = 40;

fn text(info: &Info, all: bool) -> String {
    let mut out = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(out, "{label:<10} {value}");
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
    line("blocks", &blocks_text(info));
    line("embedded", &embedded_text(info));
    line("tables", &apart_text(&info.embedded).unwrap_or_default());
    for runtime in &info.runtimes {
        let note = if runtime.note.is_empty() { String::new() } else { format!(": {}", runtime.note) };
        let name = format!("{} {}", runtime.kind, runtime.version);
        line("runtime", &format!("{}{note}", name.trim_end()));
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

/// The tables that the trace does not carry itself.
fn apart_text(embedded: &Embedded) -> Option<String> {
    let Embedded { in_folders, not_at_hand, .. } = embedded;
    let text = |tables: &Tables, where_: &str| {
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
            thread.name,
            if thread.recorder { "(recorder)" } else { "" },
        );
    }
    more(info.threads.len(), shown, out);
}

fn modules_text(info: &Info, all: bool, out: &mut String) {
    let _ = writeln!(out, "modules    {}", count(info.modules.len() as u64));
    let shown = if all { info.modules.len() } else { LISTED };
    for module in info.modules.iter().take(shown) {
        let mut line = format!("  {:>18}  {}", module.base, module.path);
        if module.load_ns.is_some() || module.unload_ns.is_some() {
            let load = module.load_ns.map_or("before".to_owned(), span);
            let _ = write!(line, "  {load} .. {}", module.unload_ns.map_or("end".to_owned(), span));
        }
        if !module.pdb.is_empty() {
            let _ = write!(line, "  {} {}", module.pdb, module.debug_id);
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

fn table_name(kind: u64) -> &'static str {
    match TableKind::from_code(kind) {
        Some(TableKind::Headers) => "headers",
        Some(TableKind::ExceptionDirectory) => "exception directories",
        Some(TableKind::UnwindInfo) => "unwind info",
        Some(TableKind::Exports) => "exports",
        Some(TableKind::Code) => "code",
        Some(TableKind::Debug) => "debug directories",
        None => "others",
    }
}

fn runtime_name(kind: u64) -> &'static str {
    match kind {
        1 => ".NET",
        2 => ".NET Framework",
        3 => ".NET single-file",
        _ => "unknown runtime",
    }
}

fn end_reason_name(reason: u64) -> &'static str {
    const NAMES: [(EndReason, &str); 7] = [
        (EndReason::Stopped, "stopped"),
        (EndReason::ProcessExit, "the process was exiting"),
        (EndReason::Duration, "the duration had passed"),
        (EndReason::Watchdog, "stopped by the watchdog: a thread was suspended for too long"),
        (EndReason::Panic, "the recorder failed"),
        (EndReason::WriteError, "the output could not be written"),
        (EndReason::SizeLimit, "the size limit was reached"),
    ];
    NAMES.iter().find(|(code, _)| *code as u64 == reason).map_or("for an unknown reason", |(_, name)| name)
}
