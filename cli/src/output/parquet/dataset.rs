//! A folder of Parquet tables in the layout of `stk_schema::tables`: one file per table and trace,
//! so that conversions of different traces into one folder do not touch each other's files.
//!
//! Rows of `samples` are written continuously, one row group at a time. The tables that describe
//! them grow with the number of distinct things and are written at the end, `traces` last.

use super::super::source::exporter;
use super::super::{Options, OutputError, Summary, Writer};
use super::catalog;
use super::ids::{self, Ids};
use super::table::{self, KEY_VALUE, NAMED_FRAME, SharedTexts, TableWriter, column, list, structs};
use crate::profile::{Batch, FrameId, NodeId, Placement, Profile, Run, RunFlags, StrId};
use polars::prelude::{Column, IdxSize};
use std::path::{Path, PathBuf};
use stk_schema::event::RunState;
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
    total_samples: u64,
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
    last_ns: Vec<i64>,
    stack_id: Vec<Option<i64>>,
    samples: Vec<i64>,
    weight_ns: Vec<i64>,
    cpu_ns: Vec<i64>,
    running: Vec<Option<bool>>,
    depth: Vec<i64>,
    truncated: Vec<bool>,
    triggered: Vec<bool>,
    tables_pending: Vec<bool>,
    /// Ends of the rows' stacks in `names`; denormalized only.
    name_ends: Vec<i64>,
    /// Frame, and index of its name.
    names: Vec<(FrameId, u32)>,
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
        Dataset { goal, denormalized, ids: None, samples: None, rows: Rows::default(), total_samples: 0 }
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
            self.total_samples += u64::from(run.samples);
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
            write_trace(&mut traces, profile, self.total_samples)?;
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

impl Rows {
    fn push(&mut self, thread: u32, run: &Run, stack: Option<(i64, u32)>) {
        self.thread.push(thread);
        self.stop.push(run.stop.0.into());
        self.ts_ns.push(run.first_ns as i64);
        self.last_ns.push(run.last_ns as i64);
        self.stack_id.push(stack.map(|(id, _)| id));
        self.samples.push(run.samples.into());
        self.weight_ns.push(run.weight_ns as i64);
        self.cpu_ns.push(run.cpu_ns as i64);
        self.running.push(match run.state {
            RunState::Running => Some(true),
            RunState::Waiting => Some(false),
            RunState::Unknown => None,
        });
        self.depth.push(stack.map_or(0, |(_, depth)| depth.into()));
        self.truncated.push(run.flags.contains(RunFlags::TRUNCATED));
        self.triggered.push(run.flags.contains(RunFlags::TRIGGERED));
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
            column("last_ns", self.last_ns),
            table::timestamps(
                "ts_utc",
                self.ts_ns.iter().map(|ns| (start_utc + ns).div_euclid(1000)).collect(),
            ),
            column("stack_id", self.stack_id),
            column("samples", self.samples),
            column("weight_ns", self.weight_ns),
            column("cpu_ns", self.cpu_ns),
            column("running", self.running),
            column("depth", self.depth),
            column("truncated", self.truncated),
            column("triggered", self.triggered),
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

fn named_frames(profile: &Profile, names: &[(FrameId, u32)]) -> Result<polars::prelude::Series, OutputError> {
    let strings = &profile.symbols.strings;
    let named = |&(frame, i): &(FrameId, u32)| profile.symbols.names(frame)[i as usize];
    let key = |&(frame, _): &(FrameId, u32)| profile.frames.keys()[frame.0 as usize];
    let fields = vec![
        column("function", names.iter().map(|n| strings.get(named(n).function)).collect::<Vec<_>>()),
        column("file", names.iter().map(|n| named(n).file.map(|f| strings.get(f))).collect::<Vec<_>>()),
        column("line", names.iter().map(|n| named(n).line.map(i64::from)).collect::<Vec<_>>()),
        column("module", names.iter().map(|n| profile.module_name(n.0)).collect::<Vec<_>>()),
        column("rva", names.iter().map(|n| ids::looked_up(profile, key(n)) as i64).collect::<Vec<_>>()),
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
        table.write(vec![
            trace.column("trace_id", &vec![0; rows.len()])?,
            column("location_id", rows.iter().map(|&(id, ..)| id).collect::<Vec<_>>()),
            column("inline_index", rows.iter().map(|&(_, _, i)| i as i64).collect::<Vec<_>>()),
            column("inlined", rows.iter().map(|row| named(row).inline).collect::<Vec<_>>()),
            column("function", rows.iter().map(|row| text(named(row).function)).collect::<Vec<_>>()),
            column("file", rows.iter().map(|row| named(row).file.map(text)).collect::<Vec<_>>()),
            column("line", rows.iter().map(|row| named(row).line.map(i64::from)).collect::<Vec<_>>()),
            column("module", rows.iter().map(module).collect::<Vec<_>>()),
            column("debug_id", rows.iter().map(debug_id).collect::<Vec<_>>()),
            column(
                "image_id",
                rows.iter().map(|row| image(row).map(|i| i.identity_hash as i64)).collect::<Vec<_>>(),
            ),
            column(
                "rva",
                rows.iter().map(|row| ids::looked_up(profile, key(row)) as i64).collect::<Vec<_>>(),
            ),
            column("kind", rows.iter().map(kind).collect::<Vec<_>>()),
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

fn write_trace(table: &mut TableWriter, profile: &Profile, samples: u64) -> Result<(), OutputError> {
    let trace = &profile.trace;
    let of_key = |key: &str| trace.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
    let own_column = ["host", "os.build", "command_line", "recorder.version"];
    let labels = || trace.metadata.iter().filter(|(key, _)| !own_column.contains(&key.as_str()));
    let labels = structs(
        KEY_VALUE,
        vec![
            column("key", labels().map(|(key, _)| key.as_str()).collect::<Vec<_>>()),
            column("value", labels().map(|(_, value)| value.as_str()).collect::<Vec<_>>()),
        ],
    )?;
    // The trace's folder is not part of its name.
    let source = Path::new(&trace.source).file_name().map(|name| name.to_string_lossy().into_owned());
    let dropped = profile.losses.dropped_samples;
    let mut columns = vec![
        column("trace_id", vec![trace_id(profile)]),
        column("uuid", vec![trace.trace_id.as_str()]),
    ];
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
        column("samples", vec![samples as i64]),
        column("dropped", vec![dropped as i64]),
        column("damaged_blocks", vec![profile.losses.damaged_blocks.len() as i64]),
        list("labels", vec![0, labels.len() as i64], labels)?,
    ]);
    table.write(columns)
}

fn filled(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
