//! The tables of a trace beside `samples`: stacks and names, modules, threads, events, gaps, and
//! the trace itself.

use super::super::OutputError;
use super::catalog;
use super::groups::{
    Dictionary, EncodedGroup, GroupColumn, GroupEncoder, ListColumn, ListLevels, rows_of_group,
};
use super::ids::{self, Ids, StackFacts, StackPath, StackRow};
use super::table::{self, KEY_VALUE, SharedTexts, TableWriter, column, list, structs};
use super::trace_id::trace_id;
use polars::prelude::{Column, PlSmallStr, Series};
use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;
use stk_base::model::function_key;
use stk_profile::profile::{
    EventInfo, FrameId, FrameKey, GapInfo, LABEL, NameSource, Placement, Profile, Run, StrId, ThreadOfEvent,
    TraceInfo,
};
use stk_profile::trace::drop_reason_name;
use stk_schema::event::DropReason;
use stk_schema::tables;

/// Rows in a row group of these tables.
pub(super) const DESCRIBING_ROWS: usize = 1 << 17;

/// `resolved_by` of what a trace's conversion found out.
pub(super) fn resolved_by(trace_id: &str) -> String {
    format!("trace {trace_id}")
}

/// Sums over all samples, for the table `traces`.
#[derive(Default)]
pub(super) struct FrameCounts {
    pub samples: u64,
    frames: u64,
    /// Frames with a name from symbols.
    named: u64,
}

impl FrameCounts {
    pub(super) fn add(&mut self, run: &Run, stack: Option<StackFacts>) {
        let samples = u64::from(run.samples);
        self.samples = self.samples.saturating_add(samples);
        if let Some(stack) = stack {
            self.frames = self.frames.saturating_add(samples.saturating_mul(stack.depth.into()));
            self.named = self.named.saturating_add(samples.saturating_mul(stack.named.into()));
        }
    }

    fn named_pct(&self) -> Option<f64> {
        (self.frames > 0).then(|| 100.0 * self.named as f64 / self.frames as f64)
    }
}

/// What the rows of stacks have in common.
struct StackGroups<'a> {
    encoder: GroupEncoder,
    profile: &'a Profile,
    ids: &'a Ids,
    resolved_by: SharedTexts,
    /// By frame: the place of its location among all, and of its trust in `trusts`.
    frames: Vec<(u32, u32)>,
    trusts: Vec<&'static str>,
}

pub(super) fn write_stacks(table: &mut TableWriter, profile: &Profile, ids: &Ids) -> Result<(), OutputError> {
    let mut trusts: Vec<&str> = Vec::new();
    let mut trust = |key: &FrameKey| {
        let name = key.trust.as_str();
        trusts.iter().position(|known| *known == name).unwrap_or_else(|| {
            trusts.push(name);
            trusts.len() - 1
        }) as u32
    };
    let frames = ids.places_of_frames().into_iter().zip(profile.frames.keys());
    let frames = frames.map(|(place, key)| (place, trust(key))).collect();
    let encoder = table.encoder();
    let resolved_by = SharedTexts::single(&resolved_by(&trace_id(profile)));
    let all = StackGroups { encoder, profile, ids, resolved_by, frames, trusts };
    let stacks = ids.stacks();
    let mut groups: Vec<&[StackRow]> = Vec::new();
    let mut rest = stacks;
    while !rest.is_empty() {
        let lengths = rest.iter().take(DESCRIBING_ROWS - 1).map(|row| row.depth as usize);
        let (group, others) = rest.split_at(rows_of_group(lengths).min(rest.len()));
        groups.push(group);
        rest = others;
    }
    for groups in groups.chunks(rayon::current_num_threads()) {
        let encoded: Result<Vec<EncodedGroup>, OutputError> =
            groups.par_iter().map(|group| all.encode(group)).collect();
        encoded?.iter().try_for_each(|group| table.write_encoded(group))?;
    }
    Ok(())
}

impl StackGroups<'_> {
    fn encode(&self, stacks: &[StackRow]) -> Result<EncodedGroup, OutputError> {
        let lengths: Vec<usize> = stacks.iter().map(|row| row.depth as usize).collect();
        let mut starts = Vec::with_capacity(stacks.len());
        let mut len = 0;
        for depth in &lengths {
            starts.push(len);
            len += depth;
        }
        // In the order of their nodes, stacks that follow each other begin alike.
        let mut order: Vec<u32> = (0..stacks.len() as u32).collect();
        order.sort_unstable_by_key(|&row| stacks[row as usize].node);
        let (mut locations, mut trusts) = (vec![0; len], vec![0; len]);
        let mut path = StackPath::default();
        for row in order.into_iter().map(|row| row as usize) {
            let of = |frame: FrameId| self.frames[frame.0 as usize];
            let stack = path.go(&self.profile.tree, stacks[row].node, of);
            let into = locations[starts[row]..].iter_mut().zip(&mut trusts[starts[row]..]);
            for ((location, trust), frame) in into.zip(stack) {
                (*location, *trust) = *frame;
            }
        }
        // Places among the locations of the row group.
        let (mut known, mut of_group) = (vec![u32::MAX; self.ids.locations().len()], Vec::new());
        for location in &mut locations {
            let place = &mut known[*location as usize];
            if *place == u32::MAX {
                *place = of_group.len() as u32;
                of_group.push(self.ids.locations()[*location as usize].0);
            }
            *location = *place;
        }
        let levels = Arc::new(ListLevels::new(&lengths));
        let lists = |name, dictionary, numbers| {
            let (name, levels) = (PlSmallStr::from_static(name), levels.clone());
            GroupColumn::Lists(ListColumn { name, levels, dictionary, numbers })
        };
        let resolved_by = self.resolved_by.column("resolved_by", &vec![0; stacks.len()])?;
        let ids: Vec<i64> = stacks.iter().map(|row| row.id).collect();
        let depths: Vec<i64> = stacks.iter().map(|row| row.depth.into()).collect();
        self.encoder.encode(vec![
            GroupColumn::Values(column("stack_id", ids)),
            GroupColumn::Values(column("walk_version", vec![tables::WALK_VERSION; stacks.len()])),
            lists("location_ids", Dictionary::of_numbers(of_group.into_iter()), locations),
            lists("trusts", Dictionary::of_texts(self.trusts.iter().copied()), trusts),
            GroupColumn::Values(column("depth", depths)),
            GroupColumn::Values(resolved_by),
        ])
    }
}

pub(super) fn write_frames(table: &mut TableWriter, profile: &Profile, ids: &Ids) -> Result<(), OutputError> {
    let resolved_by = SharedTexts::single(&resolved_by(&trace_id(profile)));
    let symbols = &profile.symbols;
    let text = |id: StrId| symbols.strings.get(id);
    let rows: Vec<(i64, FrameId, usize)> = ids
        .locations()
        .iter()
        .flat_map(|&(id, frame)| (0..symbols.names(frame).len()).map(move |i| (id, frame, i)))
        .collect();
    for rows in rows.chunks(DESCRIBING_ROWS) {
        let named = |&(_, frame, i): &(i64, FrameId, usize)| symbols.names(frame)[i];
        let key = |&(_, frame, _): &(i64, FrameId, usize)| profile.frames.keys()[frame.0 as usize];
        let image = |row: &(i64, FrameId, usize)| match key(row).place {
            Placement::Image(image, _) => Some(&profile.images[image.0 as usize]),
            Placement::Code(..) | Placement::Unknown(_) => None,
        };
        let source = |&(_, frame, _): &(i64, FrameId, usize)| symbols.source[frame.0 as usize].as_str();
        let kind = |&(_, frame, _): &(i64, FrameId, usize)| profile.kind(frame).as_str();
        let module = |&(_, frame, _): &(i64, FrameId, usize)| profile.module_name(frame);
        let tier = |&(_, frame, _): &(i64, FrameId, usize)| {
            symbols.facts.get(frame.0 as usize).map(|facts| facts.tier).filter(|tier| !tier.is_empty())
        };
        let reason = |&(_, frame, _): &(i64, FrameId, usize)| symbols.reason[frame.0 as usize].map(text);
        let mut offsets = vec![0i64];
        let mut aliases: Vec<&str> = Vec::new();
        for row in rows {
            if !named(row).inline {
                aliases.extend(symbols.aliases(row.1));
            }
            offsets.push(aliases.len() as i64);
        }
        let aliases = column("", aliases).take_materialized_series();
        let debug_id = |row| image(row).map(|i| i.debug_id.as_str()).filter(|id| !id.is_empty());
        let function = |row: &(i64, FrameId, usize)| match named(row).inline {
            true => None,
            false => ids::function(profile, row.1),
        };
        let function_key = |row: &(i64, FrameId, usize)| {
            let is_named = symbols.source[row.1.0 as usize] != NameSource::None;
            let name = || text(named(row).function);
            is_named.then(|| function_key(module(row).unwrap_or_default(), name()))
        };
        let category = |row: &(i64, FrameId, usize)| profile.category(row.1).as_str();
        table.write(vec![
            column("location_id", rows.iter().map(|&(id, ..)| id).collect::<Vec<_>>()),
            column("portable", rows.iter().map(|row| ids::is_portable(profile, row.1)).collect::<Vec<_>>()),
            column("inline_index", rows.iter().map(|&(_, _, i)| i as i64).collect::<Vec<_>>()),
            column("inlined", rows.iter().map(|row| named(row).inline).collect::<Vec<_>>()),
            column("function", rows.iter().map(|row| text(named(row).function)).collect::<Vec<_>>()),
            column("function_id", rows.iter().map(|row| function(row).map(|(id, _)| id)).collect::<Vec<_>>()),
            column(
                "function_rva",
                rows.iter().map(|row| function(row)?.1.map(i64::from)).collect::<Vec<_>>(),
            ),
            column("function_key", rows.iter().map(function_key).collect::<Vec<_>>()),
            column("file", rows.iter().map(|row| named(row).file.map(text)).collect::<Vec<_>>()),
            column("line", rows.iter().map(|row| named(row).line.map(i64::from)).collect::<Vec<_>>()),
            column("module", rows.iter().map(module).collect::<Vec<_>>()),
            column("debug_id", rows.iter().map(debug_id).collect::<Vec<_>>()),
            column(
                "image_id",
                rows.iter().map(|row| image(row).map(|i| i.identity_hash as i64)).collect::<Vec<_>>(),
            ),
            column("rva", rows.iter().map(|row| ids::rva(profile, key(row))).collect::<Vec<_>>()),
            column("address", rows.iter().map(|row| ids::address(profile, key(row))).collect::<Vec<_>>()),
            column("kind", rows.iter().map(kind).collect::<Vec<_>>()),
            column("category", rows.iter().map(category).collect::<Vec<_>>()),
            column("name_source", rows.iter().map(source).collect::<Vec<_>>()),
            column("unresolved", rows.iter().map(reason).collect::<Vec<_>>()),
            column("tier", rows.iter().map(tier).collect::<Vec<_>>()),
            list("aliases", offsets, aliases)?,
            resolved_by.column("resolved_by", &vec![0; rows.len()])?,
        ])?;
    }
    Ok(())
}

pub(super) fn write_events(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
    for events in profile.events.chunks(DESCRIBING_ROWS) {
        let thread = |event: &EventInfo| event.thread.map(|thread| thread.instance as i64);
        let tid = |event: &EventInfo| tid(event.thread);
        table.write(vec![
            trace.column("trace_id", &vec![0; events.len()])?,
            column("event_id", events.iter().map(|e| e.number as i64).collect::<Vec<_>>()),
            column("kind", events.iter().map(|e| e.kind).collect::<Vec<_>>()),
            column("ts_ns", events.iter().map(|e| e.time_ns as i64).collect::<Vec<_>>()),
            time_of_day("ts_utc", &profile.trace, events.iter().map(|e| e.time_ns)),
            column("thread", events.iter().map(thread).collect::<Vec<_>>()),
            column("tid", events.iter().map(tid).collect::<Vec<_>>()),
            column("tag", events.iter().map(|e| e.tag.map(|tag| tag as i64)).collect::<Vec<_>>()),
            column("text", events.iter().map(|e| e.text.as_deref()).collect::<Vec<_>>()),
            column("module", events.iter().map(|e| e.module.map(|m| m as i64)).collect::<Vec<_>>()),
            column("code", events.iter().map(|e| e.exception.map(|x| i64::from(x.0))).collect::<Vec<_>>()),
            column("address", events.iter().map(|e| e.exception.map(|x| x.1 as i64)).collect::<Vec<_>>()),
        ])?;
    }
    Ok(())
}

pub(super) fn write_gaps(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
    for gaps in profile.gaps.chunks(DESCRIBING_ROWS) {
        let thread = |gap: &GapInfo| gap.thread.map(|thread| thread.instance as i64);
        table.write(vec![
            trace.column("trace_id", &vec![0; gaps.len()])?,
            column("reason", gaps.iter().map(|gap| gap.reason).collect::<Vec<_>>()),
            column("thread", gaps.iter().map(thread).collect::<Vec<_>>()),
            column("tid", gaps.iter().map(|gap| tid(gap.thread)).collect::<Vec<_>>()),
            column("start_ns", gaps.iter().map(|gap| gap.start_ns as i64).collect::<Vec<_>>()),
            column("end_ns", gaps.iter().map(|gap| gap.end_ns as i64).collect::<Vec<_>>()),
            time_of_day("start_utc", &profile.trace, gaps.iter().map(|gap| gap.start_ns)),
            column("count", gaps.iter().map(|gap| gap.count as i64).collect::<Vec<_>>()),
        ])?;
    }
    Ok(())
}

fn tid(thread: Option<ThreadOfEvent>) -> Option<i64> {
    Some(thread?.tid?.into())
}

/// A column of times of day, from nanoseconds since the trace's start.
pub(super) fn time_of_day(name: &str, trace: &TraceInfo, times: impl Iterator<Item = u64>) -> Column {
    let start = trace.start_utc_ns as i64;
    table::timestamps(name, times.map(|ns| start.wrapping_add(ns as i64).div_euclid(1000)).collect())
}

pub(super) fn write_modules(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
    for modules in profile.modules.chunks(DESCRIBING_ROWS) {
        let images: Vec<_> = modules.iter().map(|m| &profile.images[m.image.0 as usize]).collect();
        table.write(vec![
            trace.column("trace_id", &vec![0; modules.len()])?,
            column("instance", modules.iter().map(|m| m.instance as i64).collect::<Vec<_>>()),
            column("image_id", images.iter().map(|i| i.identity_hash as i64).collect::<Vec<_>>()),
            column("name", images.iter().map(|i| i.name.as_str()).collect::<Vec<_>>()),
            column("path", images.iter().map(|i| i.path.as_str()).collect::<Vec<_>>()),
            column("debug_id", images.iter().map(|i| filled(&i.debug_id)).collect::<Vec<_>>()),
            column("code_id", images.iter().map(|i| filled(&i.code_id)).collect::<Vec<_>>()),
            column("pdb_name", images.iter().map(|i| filled(&i.pdb_name)).collect::<Vec<_>>()),
            column("base", modules.iter().map(|m| m.base as i64).collect::<Vec<_>>()),
            column("size", modules.iter().map(|m| m.size as i64).collect::<Vec<_>>()),
            column("load_ns", modules.iter().map(|m| m.load_ns.map(|t| t as i64)).collect::<Vec<_>>()),
            column("unload_ns", modules.iter().map(|m| m.unload_ns.map(|t| t as i64)).collect::<Vec<_>>()),
        ])?;
    }
    Ok(())
}

pub(super) fn write_threads(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
    for threads in profile.threads.chunks(DESCRIBING_ROWS) {
        table.write(vec![
            trace.column("trace_id", &vec![0; threads.len()])?,
            column("thread", threads.iter().map(|t| t.instance as i64).collect::<Vec<_>>()),
            column("tid", threads.iter().map(|t| i64::from(t.tid)).collect::<Vec<_>>()),
            column("name", threads.iter().map(|t| t.name.as_str()).collect::<Vec<_>>()),
            column("start_ns", threads.iter().map(|t| t.start_ns.map(|t| t as i64)).collect::<Vec<_>>()),
            column("exit_ns", threads.iter().map(|t| t.exit_ns.map(|t| t as i64)).collect::<Vec<_>>()),
            column("samples", threads.iter().map(|t| t.samples as i64).collect::<Vec<_>>()),
            column("active_samples", threads.iter().map(|t| t.active_samples as i64).collect::<Vec<_>>()),
        ])?;
    }
    Ok(())
}

pub(super) fn write_trace(
    table: &mut TableWriter,
    profile: &Profile,
    totals: &FrameCounts,
) -> Result<(), OutputError> {
    let trace = &profile.trace;
    let of_key = |key: &str| trace.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let number = |key: &str| of_key(key).and_then(|value| value.parse::<i64>().ok());
    let is_fact = |key: &str| !OWN_COLUMNS.contains(&key) && !key.starts_with(LABEL);
    let labels = key_values(trace.labels().collect())?;
    let facts = trace.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let facts = key_values(facts.filter(|(key, _)| is_fact(key)).collect())?;
    let dropped = profile.losses.dropped_samples;
    let executable = trace.executable.map(|image| &profile.images[image.0 as usize]);
    let mut columns =
        vec![column("trace_id", vec![trace_id(profile)]), column("uuid", vec![trace.trace_id.as_str()])];
    columns.extend(catalog::content_columns(trace.content.as_ref())?);
    columns.extend([
        column("tables_version", vec![tables::VERSION]),
        column("source", vec![source(trace)]),
        column("host", vec![trace.host.as_str()]),
        column("process", vec![trace.process.as_str()]),
        column("pid", vec![i64::from(trace.pid)]),
        column("arch", vec![trace.arch.name()]),
        column("os_build", vec![of_key("os.build")]),
        column("command_line", vec![of_key("command_line")]),
        column("recorder_version", vec![of_key("recorder.version")]),
        column("stk_version", vec![env!("CARGO_PKG_VERSION")]),
        table::timestamps("start_utc", vec![(trace.start_utc_ns / 1000) as i64]),
        column("duration_ns", vec![trace.duration_ns as i64]),
        column("interval_ns", vec![trace.interval_ns as i64]),
        column("complete", vec![trace.complete]),
        column("samples", vec![totals.samples as i64]),
        column("dropped", vec![dropped as i64]),
        column("damaged_blocks", vec![profile.losses.damaged_blocks.len() as i64]),
        column("machine_id", vec![of_key("machine.id")]),
        column("boot_id", vec![(trace.boot_id != 0).then(|| format!("{:016x}", trace.boot_id))]),
        column("session_id", vec![of_key("session.id")]),
        column("exe_version", vec![of_key("exe.version")]),
        column("exe_debug_id", vec![executable.and_then(|image| filled(&image.debug_id))]),
        column("cpu_count", vec![number("cpu.count")]),
        column("tz_offset", vec![number("tz.offset")]),
        column("achieved_hz", vec![achieved_hz(trace, number("recorder.passes"))]),
        column("missed_ticks", vec![missed_ticks(profile)]),
        column("named_pct", vec![totals.named_pct()]),
        list("labels", vec![0, labels.len() as i64], labels)?,
        list("facts", vec![0, facts.len() as i64], facts)?,
    ]);
    table.write(columns)
}

/// Name of the trace's file. Its folder is not part of it.
pub(super) fn source(trace: &TraceInfo) -> String {
    Path::new(&trace.source).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Keys that have a column of their own.
const OWN_COLUMNS: [&str; 9] = [
    "host",
    "os.build",
    "command_line",
    "recorder.version",
    "cpu.count",
    "machine.id",
    "session.id",
    "exe.version",
    "tz.offset",
];

fn key_values(pairs: Vec<(&str, &str)>) -> Result<Series, OutputError> {
    let (keys, values): (Vec<&str>, Vec<&str>) = pairs.into_iter().unzip();
    structs(KEY_VALUE, vec![column("key", keys), column("value", values)])
}

/// Looks at each thread per second, by the recorder's count of its passes over the threads.
fn achieved_hz(trace: &TraceInfo, passes: Option<i64>) -> Option<f64> {
    Some(passes? as f64 * 1e9 / trace.duration_ns as f64).filter(|hz| hz.is_finite())
}

/// How often the sampler came late or left threads out.
fn missed_ticks(profile: &Profile) -> i64 {
    let missed = [DropReason::Late, DropReason::DutyLimit].map(|reason| drop_reason_name(reason as u64));
    let dropped = profile.losses.dropped.iter().filter(|(reason, _)| missed.contains(&reason.as_str()));
    dropped.fold(0u64, |sum, (_, count)| sum.saturating_add(*count)) as i64
}

fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
