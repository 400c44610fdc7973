//! Gathers the facts about a trace from its file. Samples are counted, not decoded, except for
//! those of format version 1.0: how much CPU time has no reading follows from them alone.

use super::code::DynamicCode;
use super::document::{
    BlockInfo, EarlierName, EmbeddedTables, EndInfo, Info, ModuleInfo, PauseInfo, RateInfo, RotationInfo,
    RuntimeInfo, SupplementInfo, ThreadSummary,
};
use super::methods;
use std::collections::{BTreeMap, HashSet};
use stk_base::text::utc;
use stk_format::Supplement;
use stk_profile::profile::unread_ns;
use stk_profile::trace::{BlobPlace, Pauses, Timeline, Trace, drop_reason_name};
use stk_schema::Ticks;
use stk_schema::event::{EndReason, ImageTable, ModuleFlags, RuntimeKind, TableKind, ThreadFlags};

/// The facts about a trace of a file of so many bytes. Damage in it is one of them.
pub fn of(trace: &Trace<'_>, bytes: u64) -> Info {
    let timeline = &trace.timeline;
    let header = trace.header();
    let mut blocks: BTreeMap<&'static str, BlockInfo> = BTreeMap::new();
    for block in trace.blocks().blocks() {
        let entry = blocks.entry(block.header.kind.name()).or_default();
        entry.blocks += 1;
        entry.stored_bytes += u64::from(block.header.stored_len);
        entry.raw_bytes += u64::from(block.header.raw_len);
    }
    Info {
        file: trace.source.clone(),
        bytes,
        trace_id: trace.id(),
        process: trace.process(),
        pid: header.pid,
        arch: header.arch.name(),
        start_utc: utc(header.utc_start),
        start_utc_ns: header.utc_start,
        duration_ns: trace.clock.ns(trace.last()),
        interval_ns: trace.interval_ns(),
        rates: rates(trace),
        pauses: Pauses::of(trace)
            .times()
            .iter()
            .map(|pause| PauseInfo { from_ns: pause.start, to_ns: pause.end })
            .collect(),
        rotation: rotation(trace),
        complete: trace.blocks().is_complete(),
        end: timeline
            .end
            .as_ref()
            .map(|end| EndInfo { reason: end_reason_name(end.reason), detail: end.detail.clone() }),
        samples: trace.samples(),
        dropped: trace.dropped(),
        drops: timeline
            .dropped_when(|_| true)
            .into_iter()
            .map(|(reason, n)| (drop_reason_name(reason).to_owned(), n))
            .collect(),
        damage: trace.damage.clone(),
        unknown_events: timeline.unknown_events,
        unread_ns: unread_ns(trace),
        supplement: supplement(trace),
        blocks,
        embedded: embedded(trace),
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
        data_access_names: timeline.reported_names,
        contract_names: timeline.names_read,
        marks: timeline.marks.len(),
        exceptions: timeline.exceptions.len() as u64,
        dynamic_code: DynamicCode::of(trace),
        methods: methods::of(trace),
        redacted_words: timeline.redacted.clone(),
        threads: threads(trace),
        modules: modules(trace),
    }
}

fn supplement(trace: &Trace<'_>) -> Option<SupplementInfo> {
    let (whole, range) = match trace.blocks().supplement() {
        Supplement::None => return None,
        Supplement::Whole { range } => (true, range),
        Supplement::Torn { range } => (false, range),
    };
    let number = |key| trace.fact(key).and_then(|value| value.parse().ok()).unwrap_or(0);
    let left = trace.timeline.metadata.iter().filter(|(key, _)| key == "supplement.left");
    Some(SupplementInfo {
        whole,
        bytes: range.end - range.start,
        cut_bytes: number("supplement.cut"),
        modules: number("supplement.modules"),
        left: left.map(|(_, value)| value.clone()).collect(),
    })
}

fn threads(trace: &Trace<'_>) -> Vec<ThreadSummary> {
    let clock = trace.clock;
    let threads = trace.timeline.threads.iter().map(|thread| ThreadSummary {
        tid: thread.tid,
        name: thread.name.clone(),
        earlier_names: thread
            .earlier_names
            .iter()
            .map(|(until, name)| EarlierName { name: name.clone(), until_ns: clock.ns(*until) })
            .collect(),
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
            identity_from_file: module.flags.contains(ModuleFlags::FROM_FILE),
            unlisted: module.flags.contains(ModuleFlags::UNLISTED),
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

fn embedded(trace: &Trace<'_>) -> EmbeddedTables {
    let mut embedded = EmbeddedTables { stored_bytes: trace.blobs.stored_bytes, ..EmbeddedTables::default() };
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
        let available = |table: &&ImageTable| trace.blobs.place_of(table.hash) != BlobPlace::Nowhere;
        if record.tables.iter().filter(available).any(|table| unwinds(table.kind)) {
            embedded.images_with_unwind_data += 1;
        } else {
            embedded.images_without += 1;
        }
    }
    embedded
}

/// The place of the trace among the files of its recording.
fn rotation(trace: &Trace<'_>) -> Option<RotationInfo> {
    let id = trace.fact("rotation.id")?.to_owned();
    let index = trace.fact("rotation.index")?.parse().ok()?;
    let before: Option<u64> = trace.fact("rotation.previous_end").and_then(|ticks| ticks.parse().ok());
    let first = trace.sample_blocks().map(|block| block.header.first).min();
    let begun = first.unwrap_or(trace.header().clock_start);
    let gap_ns = before.map(|before| trace.clock.span_ns(begun.saturating_sub(Ticks(before))));
    let gap_ns = if trace.fact("rotation.continued") == Some("1") { Some(0) } else { gap_ns };
    Some(RotationInfo { id, index, gap_ns })
}

/// The rates that the recorder changed to, without pauses and their ends.
fn rates(trace: &Trace<'_>) -> Vec<RateInfo> {
    let (mut rates, mut rate, mut paused) = (Vec::new(), trace.header().rate_mhz, false);
    for &(time, mhz) in &trace.timeline.rates {
        if mhz != 0 && !(paused && mhz == rate) {
            rates.push(RateInfo { at_ns: trace.clock.ns(time), hz: f64::from(mhz) / 1000.0 });
            rate = mhz;
        }
        paused = mhz == 0;
    }
    rates
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
    match RuntimeKind::from_number(kind) {
        Some(RuntimeKind::Core) => ".NET",
        Some(RuntimeKind::Framework) => ".NET Framework",
        Some(RuntimeKind::SingleFile) => ".NET single-file",
        None => "unknown runtime",
    }
}

fn end_reason_name(reason: u64) -> &'static str {
    const NAMES: [(EndReason, &str); 8] = [
        (EndReason::Stopped, "stopped"),
        (EndReason::ProcessExit, "the process was exiting"),
        (EndReason::Duration, "the duration had passed"),
        (EndReason::Watchdog, "stopped by the watchdog: a thread was suspended for too long"),
        (EndReason::Panic, "the recorder failed"),
        (EndReason::WriteError, "the output could not be written"),
        (EndReason::SizeLimit, "the size limit was reached"),
        (EndReason::GuardGone, "the guard process (inject) had ended"),
    ];
    NAMES.iter().find(|(code, _)| *code as u64 == reason).map_or("for an unknown reason", |(_, name)| name)
}
