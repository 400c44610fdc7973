//! A folder of Parquet tables in the layout of `stk_schema::tables`: one file per table and trace,
//! so that conversions of different traces into one folder do not touch each other's files.
//!
//! Rows of `samples` are written continuously, one row group at a time. The tables that describe
//! them grow with the number of distinct things and are written at the end, `traces` last.

use super::super::source::exporter;
use super::super::{Options, OutputError, Summary, Writer};
use super::catalog;
use super::ids::{self, Ids, StackFacts};
use super::table::{self, KEY_VALUE, NAMED_FRAME, SharedTexts, TableWriter, column, list, structs};
use crate::model::function_key;
use crate::profile::{
    Batch, CpuSource, FrameId, NameSource, NodeId, Placement, Profile, Run, RunFlags, StrId, TraceInfo, Wait,
};
use crate::trace::drop_reason_name;
use polars::prelude::{Column, IdxSize, Series};
use std::path::{Path, PathBuf};
use stk_schema::event::DropReason;
use stk_schema::tables;

/// Rows in a row group of `samples`.
const ROWS: usize = 1 << 20;
/// Names in a row group of denormalized `samples`. The size of these rows grows with the depth of
/// their stacks.
const NAMES: usize = 1 << 20;
/// Rows in a row group of the other tables.
const DESCRIBING_ROWS: usize = 1 << 18;

/// A dataset folder, or a single file of denormalized samples.
pub(super) struct Dataset {
    goal: Goal,
    denormalized: bool,
    ids: Option<Ids>,
    samples: Option<TableWriter>,
    rows: Rows,
    totals: Totals,
}

enum Goal {
    Folder(PathBuf),
    File(PathBuf),
}

/// The next row group of `samples`, column by column.
#[derive(Default)]
struct Rows {
    thread: Vec<u32>,
    stop: Vec<IdxSize>,
    ts_ns: Vec<i64>,
    duration_ns: Vec<i64>,
    stack_id: Vec<Option<i64>>,
    samples: Vec<i64>,
    state: Vec<&'static str>,
    wait_reason: Vec<Option<&'static str>>,
    wait_class: Vec<Option<&'static str>>,
    cpu_ns: Vec<i64>,
    tag: Vec<Option<i64>>,
    event_id: Vec<Option<i64>>,
    depth: Vec<i64>,
    proved: Vec<bool>,
    truncated: Vec<bool>,
    tables_pending: Vec<bool>,
    /// Ends of the rows' stacks in `names`; denormalized only.
    name_ends: Vec<i64>,
    /// Frame, and index of its name.
    names: Vec<(FrameId, u32)>,
}

/// Sums over all samples, for the table `traces`.
#[derive(Default)]
struct Totals {
    samples: u64,
    frames: u64,
    /// Frames with a name from symbols.
    named: u64,
}

impl Totals {
    fn add(&mut self, run: &Run, stack: Option<StackFacts>) {
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

impl Dataset {
    pub(super) fn folder(path: PathBuf, options: &Options) -> Result<Dataset, OutputError> {
        if path.is_file() {
            return Err(OutputError::IsFile(path));
        }
        Ok(Dataset::new(Goal::Folder(path), options.denormalized))
    }

    /// One file with everything in it.
    pub(super) fn file(path: PathBuf) -> Dataset {
        Dataset::new(Goal::File(path), true)
    }

    fn new(goal: Goal, denormalized: bool) -> Dataset {
        let (rows, totals) = (Rows::default(), Totals::default());
        Dataset { goal, denormalized, ids: None, samples: None, rows, totals }
    }

    fn table(
        &self,
        profile: &Profile,
        table: &tables::ParquetTable,
        more: &[tables::Column],
    ) -> Result<TableWriter, OutputError> {
        match &self.goal {
            Goal::File(path) => TableWriter::create(path, table, more, exporter(profile)),
            Goal::Folder(folder) => {
                let path = catalog::path(folder, table, &file_name(profile)?)?;
                TableWriter::create(&path, table, more, exporter(profile))
            }
        }
    }

    fn flush(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let rows = std::mem::take(&mut self.rows);
        let writer = self.samples.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        if rows.thread.is_empty() {
            return Ok(());
        }
        writer.write(rows.columns(profile, self.denormalized)?)
    }
}

impl Writer for Dataset {
    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        if let Goal::Folder(folder) = &self.goal {
            catalog::prepare(folder)?;
        }
        self.ids = Some(Ids::new(profile)?);
        let more: &[tables::Column] = if self.denormalized { &[tables::SAMPLES_FRAMES] } else { &[] };
        self.samples = Some(self.table(profile, &tables::SAMPLES, more)?);
        Ok(())
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let ids = self.ids.as_mut().ok_or(OutputError::Order("samples before begin"))?;
            let stack = run.node.map(|node| ids.stack(profile, node)).transpose()?;
            self.rows.push(batch.thread, run, stack);
            if self.denormalized {
                self.rows.push_names(profile, run.node);
            }
            self.totals.add(run, stack);
            if self.rows.thread.len() >= ROWS || self.rows.names.len() >= NAMES {
                self.flush(profile)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.flush(profile)?;
        let mut done = vec![self.samples.take().ok_or(OutputError::Order("finish before begin"))?];
        if let Goal::Folder(_) = self.goal {
            let ids = self.ids.take().ok_or(OutputError::Order("finish before begin"))?;
            let mut stacks = self.table(profile, &tables::STACKS, &[])?;
            write_stacks(&mut stacks, profile, &ids)?;
            let mut frames = self.table(profile, &tables::FRAMES, &[])?;
            write_frames(&mut frames, profile, &ids)?;
            let mut modules = self.table(profile, &tables::MODULES, &[])?;
            write_modules(&mut modules, profile)?;
            let mut threads = self.table(profile, &tables::THREADS, &[])?;
            write_threads(&mut threads, profile)?;
            let mut traces = self.table(profile, &tables::TRACES, &[])?;
            write_trace(&mut traces, profile, &self.totals)?;
            done.extend([stacks, frames, modules, threads, traces]);
        }
        let mut summary = Summary::default();
        // In this order, so that the other tables of a trace in `traces` always exist.
        for table in done {
            summary.files.push(table.finish()?);
        }
        Ok(summary)
    }
}

/// The id of a trace in a dataset: its content, or for a profile that is of no file its UUID.
pub(super) fn trace_id(profile: &Profile) -> String {
    match &profile.trace.content {
        Some(content) => content.digest.to_string(),
        None => profile.trace.trace_id.clone(),
    }
}

/// Name of a trace's files.
fn file_name(profile: &Profile) -> Result<String, OutputError> {
    if let Some(content) = &profile.trace.content {
        return Ok(catalog::file_name(content));
    }
    let id = &profile.trace.trace_id;
    // The id comes from a file that anyone may have written, and it becomes part of a path.
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        return Err(OutputError::TraceId { trace: profile.trace.source.clone(), id: id.clone() });
    }
    Ok(format!("{id}.parquet"))
}

/// The tag that the program gave a run's samples, and the event that they belong to. Profiles do
/// not have the event yet.
fn events_of(run: &Run) -> (Option<i64>, Option<i64>) {
    (run.tag().map(|tag| tag as i64), None)
}

impl Rows {
    fn push(&mut self, thread: u32, run: &Run, stack: Option<StackFacts>) {
        self.thread.push(thread);
        self.stop.push(run.stop.0.into());
        self.ts_ns.push(run.first_ns as i64);
        self.duration_ns.push(run.weight_ns as i64);
        self.stack_id.push(stack.map(|stack| stack.id));
        self.samples.push(run.samples.into());
        self.state.push(run.activity.as_str());
        let wait = run.activity.wait();
        self.wait_reason.push(wait.map(Wait::reason));
        self.wait_class.push(wait.map(|wait| wait.class().as_str()));
        self.cpu_ns.push(run.cpu_ns as i64);
        let (tag, event) = events_of(run);
        self.tag.push(tag);
        self.event_id.push(event);
        self.depth.push(stack.map_or(0, |stack| stack.depth.into()));
        self.proved.push(stack.is_none_or(|stack| stack.proved));
        self.truncated.push(run.flags.contains(RunFlags::TRUNCATED));
        self.tables_pending.push(run.flags.contains(RunFlags::TABLES_PENDING));
    }

    /// Appends the stack's names, root first.
    fn push_names(&mut self, profile: &Profile, node: Option<NodeId>) {
        let start = self.names.len();
        for frame in node.into_iter().flat_map(|node| profile.tree.frames(node)) {
            let count = profile.symbols.names(frame).len() as u32;
            self.names.extend((0..count).map(|i| (frame, i)));
        }
        self.names[start..].reverse();
        self.name_ends.push(self.names.len() as i64);
    }

    fn columns(self, profile: &Profile, denormalized: bool) -> Result<Vec<Column>, OutputError> {
        let rows = self.thread.len();
        let trace = &profile.trace;
        let same = |name, text: &str| SharedTexts::single(text).column(name, &vec![0; rows]);
        let of_threads = |each: &dyn Fn(usize) -> i64| -> Vec<i64> {
            self.thread.iter().map(|&thread| each(thread as usize)).collect()
        };
        let start_utc = trace.start_utc_ns as i64;
        let cpu_source = Some(trace.cpu_source).filter(|source| *source != CpuSource::None);
        let mut columns = vec![
            same("trace_id", &trace_id(profile))?,
            same("host", &trace.host)?,
            same("process", &trace.process)?,
            column("pid", vec![i64::from(trace.pid); rows]),
            column("thread", of_threads(&|i| profile.threads[i].instance as i64)),
            column("tid", of_threads(&|i| profile.threads[i].tid.into())),
            SharedTexts::new(profile.threads.iter().map(|t| t.name.as_str()))
                .column("thread_name", &self.thread)?,
            column("ts_ns", self.ts_ns.clone()),
            table::timestamps(
                "ts_utc",
                self.ts_ns.iter().map(|ns| (start_utc + ns).div_euclid(1000)).collect(),
            ),
            column("duration_ns", self.duration_ns),
            column("stack_id", self.stack_id),
            column("samples", self.samples),
            column("state", self.state),
            column("wait_reason", self.wait_reason),
            column("wait_class", self.wait_class),
            column("cpu_ns", self.cpu_ns.into_iter().map(|ns| cpu_source.map(|_| ns)).collect::<Vec<_>>()),
            column("cpu_source", vec![cpu_source.map(CpuSource::as_str); rows]),
            column("tag", self.tag),
            column("event_id", self.event_id),
            column("depth", self.depth),
            column("proved", self.proved),
            column("truncated", self.truncated),
            column("tables_pending", self.tables_pending),
            SharedTexts::new(profile.stops.iter().map(|s| s.reason.as_str()))
                .column("stop_reason", &self.stop)?,
            SharedTexts::new(profile.stops.iter().map(|s| s.module.as_str()))
                .column("stop_module", &self.stop)?,
        ];
        if denormalized {
            let mut offsets = vec![0];
            offsets.extend(self.name_ends);
            columns.push(list("frames", offsets, named_frames(profile, &self.names)?)?);
        }
        Ok(columns)
    }
}

fn named_frames(profile: &Profile, names: &[(FrameId, u32)]) -> Result<Series, OutputError> {
    let strings = &profile.symbols.strings;
    let named = |&(frame, i): &(FrameId, u32)| profile.symbols.names(frame)[i as usize];
    let key = |&(frame, _): &(FrameId, u32)| profile.frames.keys()[frame.0 as usize];
    let fields = vec![
        column("function", names.iter().map(|n| strings.get(named(n).function)).collect::<Vec<_>>()),
        column("file", names.iter().map(|n| named(n).file.map(|f| strings.get(f))).collect::<Vec<_>>()),
        column("line", names.iter().map(|n| named(n).line.map(i64::from)).collect::<Vec<_>>()),
        column("module", names.iter().map(|n| profile.module_name(n.0)).collect::<Vec<_>>()),
        column("rva", names.iter().map(|n| ids::rva(profile, key(n))).collect::<Vec<_>>()),
        column("address", names.iter().map(|n| ids::address(profile, key(n))).collect::<Vec<_>>()),
        column("trust", names.iter().map(|n| key(n).trust.as_str()).collect::<Vec<_>>()),
        column("inline", names.iter().map(|n| named(n).inline).collect::<Vec<_>>()),
    ];
    structs(NAMED_FRAME, fields)
}

fn write_stacks(table: &mut TableWriter, profile: &Profile, ids: &Ids) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
    let trusts: Vec<&str> = profile.frames.keys().iter().map(|key| key.trust.as_str()).collect();
    let stacks = ids.stacks();
    for stacks in stacks.chunks(DESCRIBING_ROWS) {
        let mut offsets = vec![0i64];
        let mut frames: Vec<FrameId> = Vec::new();
        let mut depths: Vec<i64> = Vec::new();
        for &(_, node) in stacks {
            let start = frames.len();
            frames.extend(profile.tree.frames(node));
            frames[start..].reverse();
            offsets.push(frames.len() as i64);
            depths.push((frames.len() - start) as i64);
        }
        let locations = column("", frames.iter().map(|&frame| ids.location(frame)).collect::<Vec<_>>());
        let indices: Vec<IdxSize> = frames.iter().map(|frame| frame.0).collect();
        let trusts = SharedTexts::new(trusts.iter().copied()).column("", &indices)?;
        table.write(vec![
            trace.column("trace_id", &vec![0; stacks.len()])?,
            column("stack_id", stacks.iter().map(|&(id, _)| id).collect::<Vec<_>>()),
            column("walk_version", vec![tables::WALK_VERSION; stacks.len()]),
            list("location_ids", offsets.clone(), locations.take_materialized_series())?,
            list("trusts", offsets, trusts.take_materialized_series())?,
            column("depth", depths),
        ])?;
    }
    Ok(())
}

fn write_frames(table: &mut TableWriter, profile: &Profile, ids: &Ids) -> Result<(), OutputError> {
    let trace = SharedTexts::single(&trace_id(profile));
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
            trace.column("trace_id", &vec![0; rows.len()])?,
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
        ])?;
    }
    Ok(())
}

fn write_modules(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
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

fn write_threads(table: &mut TableWriter, profile: &Profile) -> Result<(), OutputError> {
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

fn write_trace(table: &mut TableWriter, profile: &Profile, totals: &Totals) -> Result<(), OutputError> {
    let trace = &profile.trace;
    let of_key = |key: &str| trace.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let number = |key: &str| of_key(key).and_then(|value| value.parse::<i64>().ok());
    let is_fact = |key: &str| !OWN_COLUMNS.contains(&key) && !key.starts_with(LABEL);
    let labels =
        trace.metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(LABEL)?, value.as_str())));
    let labels = key_values(labels.collect())?;
    let facts = trace.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let facts = key_values(facts.filter(|(key, _)| is_fact(key)).collect())?;
    // The trace's folder is not part of its name.
    let source = Path::new(&trace.source).file_name().map(|name| name.to_string_lossy().into_owned());
    let dropped = profile.losses.dropped_samples;
    let executable = trace.executable.map(|image| &profile.images[image.0 as usize]);
    let mut columns =
        vec![column("trace_id", vec![trace_id(profile)]), column("uuid", vec![trace.trace_id.as_str()])];
    columns.extend(catalog::content_columns(trace.content.as_ref())?);
    columns.extend([
        column("tables_version", vec![tables::VERSION]),
        column("source", vec![source.unwrap_or_default()]),
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

/// Begins the keys of what the user noted.
const LABEL: &str = "label.";
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
