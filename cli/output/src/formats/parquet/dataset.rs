//! The tables of one trace: a part of a dataset folder, or a single file of denormalized samples.
//!
//! Rows of `samples` are written continuously, one row group at a time. The tables that describe
//! them grow with the number of distinct things and are written at the end.

use super::super::source::exporter;
use super::super::{ConversionFacts, Options, OutputError, Summary, Writer};
use super::behind::WriterBehind;
use super::catalog;
use super::describe::{self, FrameCounts};
use super::ids::Ids;
use super::part::{self, NewPart, PartDescription};
use super::rows::{Allowance, Captures, SampleRowGroup, pieces, stack_names};
use super::table::TableWriter;
use super::trace_id::trace_id;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use stk_base::files::{Below, MayReplace, check_output};
use stk_base::text::counted;
use stk_profile::profile::{Batch, FrameId, Profile, Weight};
use stk_schema::tables::{self, ParquetTable};

/// Rows in a row group of `samples`.
const ROWS: usize = 1 << 17;
/// Bytes that a row takes until it is written: in the columns, in the row group made of them, and
/// in the one before, which is encoded meanwhile.
const ROW_BYTES: u64 = 1024;
/// The fewest rows of a row group that a limit of memory makes.
const FEWEST_ROWS: usize = 1 << 12;
/// Names in a row group of denormalized `samples`. The size of these rows grows with the depth of
/// their stacks.
const NAMES: usize = 1 << 20;

/// The tables of one trace in the making.
pub(super) struct Dataset {
    goal: Goal,
    denormalized: bool,
    key: Option<String>,
    /// The part that is being made, if the goal is a folder.
    part: Option<NewPart>,
    ids: Option<Ids>,
    /// Whether the ids of stacks are made.
    has_stacks: bool,
    captures: Captures,
    samples: Option<WriterBehind>,
    rows: SampleRowGroup,
    /// Rows of a row group.
    most_rows: usize,
    allowance: Option<Allowance>,
    /// Those of the run's stack; denormalized only.
    names: Vec<(FrameId, u32)>,
    totals: FrameCounts,
}

enum Goal {
    Folder(PathBuf),
    File(Below),
}

impl Dataset {
    pub(super) fn folder(path: PathBuf, options: &Options) -> Result<Dataset, OutputError> {
        if path.is_file() {
            return Err(OutputError::IsFile(path));
        }
        Ok(Dataset::new(Goal::Folder(path), options))
    }

    /// One file with everything in it.
    pub(super) fn file(at: Below, options: &Options) -> Result<Dataset, OutputError> {
        check_output(&at.path(), MayReplace::NoTrace)?;
        Ok(Dataset { denormalized: true, ..Dataset::new(Goal::File(at), options) })
    }

    fn new(goal: Goal, options: &Options) -> Dataset {
        let most_rows = options.rows_memory.map_or(ROWS, |memory| {
            usize::try_from(memory / ROW_BYTES).unwrap_or(ROWS).clamp(FEWEST_ROWS, ROWS)
        });
        Dataset {
            goal,
            denormalized: options.denormalized,
            key: options.key.clone(),
            part: None,
            ids: None,
            has_stacks: false,
            captures: Captures::default(),
            samples: None,
            rows: SampleRowGroup::default(),
            most_rows,
            allowance: None,
            names: Vec::new(),
            totals: FrameCounts::default(),
        }
    }

    /// Writes the rows if there are so many times as many as in a row group.
    fn flush_if_over(&mut self, profile: &Profile, times: usize) -> Result<(), OutputError> {
        if self.rows.len() < times * self.most_rows && self.rows.names() < times * NAMES {
            return Ok(());
        }
        self.flush(profile)
    }

    fn flush(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let rows = self.rows.take();
        let writer = self.samples.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        if rows.len() == 0 {
            return Ok(());
        }
        writer.write(rows.columns(profile, self.denormalized)?)
    }

    /// Writes the tables beside `samples`, and gives the part its name.
    fn finish_part(
        &mut self,
        profile: &Profile,
        files: &[(PathBuf, u64)],
    ) -> Result<Vec<(PathBuf, u64)>, OutputError> {
        let ids = self.ids.take().ok_or(OutputError::Order("finish before begin"))?;
        type Write<'a> = &'a (dyn Fn(&mut TableWriter) -> Result<(), OutputError> + Sync);
        let rest: [(&ParquetTable, Write<'_>); 7] = [
            (&tables::EVENTS, &|table| describe::write_events(table, profile)),
            (&tables::GAPS, &|table| describe::write_gaps(table, profile)),
            (&tables::STACKS, &|table| describe::write_stacks(table, profile, &ids)),
            (&tables::FRAMES, &|table| describe::write_frames(table, profile, &ids)),
            (&tables::MODULES, &|table| describe::write_modules(table, profile)),
            (&tables::THREADS, &|table| describe::write_threads(table, profile)),
            (&tables::TRACES, &|table| describe::write_trace(table, profile, &self.totals)),
        ];
        let (goal, part) = (&self.goal, self.part.as_ref());
        let make = |(table, write): (&ParquetTable, Write<'_>)| {
            let mut writer = create(goal, part, profile, table, &[])?;
            write(&mut writer)?;
            writer.finish()
        };
        let rest: Result<Vec<(PathBuf, u64)>, OutputError> = rest.into_par_iter().map(make).collect();
        let made = files.iter().cloned().chain(rest?);
        let part = self.part.take().ok_or(OutputError::Order("finish before begin"))?;
        let folder = part.finish(description(profile, self.denormalized, self.key.clone()))?;
        // They are where the part was given its name.
        let placed = made.map(|(path, size)| {
            let name = path.file_name().map(Path::new).unwrap_or(&path);
            (folder.join(name), size)
        });
        Ok(placed.collect())
    }
}

/// Begins a table.
fn create(
    goal: &Goal,
    part: Option<&NewPart>,
    profile: &Profile,
    table: &ParquetTable,
    more: &[tables::TableColumn],
) -> Result<TableWriter, OutputError> {
    let file = match (goal, part) {
        (Goal::File(file), _) => file.clone(),
        (Goal::Folder(_), Some(part)) => part.folder().join(part::table_file(table)),
        (Goal::Folder(_), None) => return Err(OutputError::Order("a table before begin")),
    };
    TableWriter::create(&file, table, more, exporter(profile))
}

impl Writer for Dataset {
    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        check_id(profile)?;
        if let Goal::Folder(folder) = &self.goal {
            self.part = Some(NewPart::begin(&catalog::prepare(folder)?)?);
        }
        self.ids = Some(Ids::new(profile)?);
        self.captures = Captures::of(profile);
        self.allowance = Some(Allowance::of(profile));
        let more: &[tables::TableColumn] = if self.denormalized { &[tables::SAMPLES_FRAMES] } else { &[] };
        self.samples =
            Some(WriterBehind::new(create(&self.goal, self.part.as_ref(), profile, &tables::SAMPLES, more)?));
        Ok(())
    }

    /// The first pass shows which stacks there are.
    fn passes(&self) -> Vec<Weight> {
        vec![Weight::Wall, Weight::Wall]
    }

    fn begin_pass(&mut self, profile: &Profile, pass: usize) -> Result<(), OutputError> {
        if pass == 1 {
            self.ids.as_mut().ok_or(OutputError::Order("a pass before begin"))?.make_stacks(profile)?;
            self.has_stacks = true;
        }
        Ok(())
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        let chains = profile.tree.chains();
        if !self.has_stacks {
            let ids = self.ids.as_mut().ok_or(OutputError::Order("samples before begin"))?;
            batch.runs.iter().filter_map(|run| run.node).for_each(|node| ids.want(chains.of_node(node)));
            return Ok(());
        }
        for run in batch.runs {
            let ids = self.ids.as_ref().ok_or(OutputError::Order("samples before begin"))?;
            let stack = run.node.and_then(|node| ids.stack(chains.of_node(node)));
            self.totals.add(run, stack);
            let row = self.rows.begin_run(profile, &self.captures, batch.thread, run, stack);
            if self.denormalized {
                stack_names(profile, run.node, &mut self.names);
            }
            let mut allowance = self.allowance.take().ok_or(OutputError::Order("samples before begin"))?;
            for piece in pieces(run, profile.trace.start_utc_ns, self.names.len(), &mut allowance) {
                // A row group ends with a run, unless that has so many rows itself.
                self.flush_if_over(profile, 2)?;
                self.rows.push(&row, &piece);
                if self.denormalized {
                    self.rows.push_names(&self.names, &mut allowance);
                }
            }
            self.allowance = Some(allowance);
            self.flush_if_over(profile, 1)?;
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.flush(profile)?;
        let samples = self.samples.take().ok_or(OutputError::Order("finish before begin"))?.finish()?;
        let mut files = vec![samples];
        if let Goal::Folder(_) = self.goal {
            files = self.finish_part(profile, &files)?;
        }
        let nameless = self.allowance.as_ref().map_or(0, |allowance| allowance.nameless);
        let warning = (nameless > 0).then(|| {
            format!(
                "{} of samples have no names in `frames`: they are too many for a trace of this size; without \
                 --denormalized the tables stacks and frames have them",
                counted(nameless, "row")
            )
        });
        Ok(Summary { files, warnings: warning.into_iter().collect(), ..Summary::default() })
    }
}

/// What a part says of itself.
fn description(profile: &Profile, denormalized: bool, key: Option<String>) -> PartDescription {
    let trace = &profile.trace;
    let start = trace.start_utc_ns;
    PartDescription {
        process: trace.process.clone(),
        host: trace.host.clone(),
        source: Some(describe::source(trace)),
        denormalized,
        key,
        facts: Some(ConversionFacts::of(profile)),
        ..catalog::describe(trace_id(profile), trace.trace_id.clone(), start, trace.content.as_ref())
    }
}

/// Refuses a trace whose id cannot be a part of a path: it comes from a file that anyone may have
/// written.
fn check_id(profile: &Profile) -> Result<(), OutputError> {
    let id = &profile.trace.trace_id;
    if id.is_empty() || id.len() > 64 || !id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-') {
        return Err(OutputError::TraceId { trace: profile.trace.source.clone(), id: id.clone() });
    }
    Ok(())
}
