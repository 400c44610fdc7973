//! Converts one trace.

use super::key::{Keys, symbol_queries};
use super::{ConvertArgs, ConvertOutcome, Converted, Status, split};
use crate::batch::{Record, Recorded, SeenTrace, Stage};
use crate::commands::profile_args::{self, LoadedProfile, load_read};
use crate::commands::replace::{REPLACED, is_made_of, replaces_own};
use crate::commands::{Progress, note, size};
use anyhow::{Context, bail};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stk_base::deadline::Deadline;
use stk_base::files::MayReplace::NoTrace;
use stk_base::files::{Below, FileStamp, settled_stamp};
use stk_base::text::{count, counted};
use stk_output::formats::{self, ConversionFacts, Destination, Format, Options, SourceMark, Summary};
use stk_profile::image::SharedImages;
use stk_profile::profile::{Runs, SelectionShare, Weight, add_events, cut_stacks, merge_threads, part};
use stk_profile::trace::{Content, Trace, TraceFile};
use stk_schema::text::printable;

/// What all conversions of a command line share.
pub(in super::super) struct Converter<'a> {
    pub args: &'a ConvertArgs,
    pub format: Format,
    pub progress: &'a Progress,
    /// For a batch: what is done already is passed over, and nothing is printed about what is
    /// written.
    pub keys: Option<&'a Keys>,
    /// What traces have alike, if there are several.
    pub images: Option<Arc<SharedImages>>,
    /// For a batch: how long a trace may take.
    pub limit: Option<Duration>,
    /// For a batch in processes: hears of each step.
    pub watch: Option<&'a dyn StepObserver>,
}

/// Hears which step of which trace is begun.
pub(in super::super) trait StepObserver: Sync {
    /// # Errors
    ///
    /// That the step must not be done.
    fn begin(&self, path: &Path, stage: Stage) -> anyhow::Result<()>;
}

/// A trace that is being converted.
pub(super) struct RunningConversion<'a> {
    pub path: &'a Path,
    /// Its first pass is done once: a batch's trace is small beside the tables that it carries.
    pub trace: Trace<'a>,
    pub content: Content,
    pub deadline: Deadline,
    /// Of its file, before it was read.
    pub stamp: Option<FileStamp>,
}

/// What conversions of so many traces share. Not with folders of tables, whose content may change.
pub(in super::super) fn shared_images(traces: usize, args: &ConvertArgs) -> Option<Arc<SharedImages>> {
    (traces > 1 && args.profile.tables.tables.is_empty()).then(Arc::default)
}

impl Converter<'_> {
    /// When a trace that is begun now has to be done.
    pub(super) fn deadline(&self) -> Deadline {
        Deadline::after(self.limit)
    }

    /// Reports that a step is begun.
    pub(super) fn begin(&self, path: &Path, stage: Stage) -> anyhow::Result<()> {
        self.watch.map_or(Ok(()), |watch| watch.begin(path, stage))
    }

    /// Opens a trace.
    pub(super) fn open(&self, path: &Path) -> anyhow::Result<TraceFile> {
        let known = self.images.as_ref().map(|images| images.blocks());
        Ok(self.args.profile.tables.open(path)?.knowing(known))
    }

    /// Converts a trace that has an output of its own.
    pub(super) fn file(&self, path: &Path, destination: &Destination) -> ConvertOutcome {
        self.begin(path, Stage::Convert)?;
        let (deadline, stamp) = (self.deadline(), self.stamp(path));
        let file = self.open(path)?;
        let content = file.content()?;
        let begun = RunningConversion { path: file.path(), trace: file.read()?, content, deadline, stamp };
        let key = self.key(&begun);
        if let (Some((key, seen)), Destination::InFolder { folder, name }) = (&key, destination) {
            let output = output_in(folder, name)?;
            match Record::of(&output, key)? {
                Recorded::Done(facts) => {
                    let skipped = Converted::skipped(begun.content.digest, Some(facts));
                    return Ok(skipped.seen(seen.clone()));
                }
                Recorded::Own => {}
                Recorded::Nothing => drop(self.replaces_own(&output.path(), path, &begun.content)?),
            }
            Record::begin(&output, key)?;
            let done = self.convert(begun, destination, "wrote", Some(key.clone()))?;
            Record::write(&output, key, done.facts.unwrap_or_default())?;
            return Ok(done.seen(seen.clone()));
        }
        let verb = match destination.file() {
            // Each of several outputs is checked before they are written.
            Some(_) if self.args.split.is_some() => "wrote",
            Some(output) if self.replaces_own(&output, path, &begun.content)? => REPLACED,
            _ => "wrote",
        };
        self.convert(begun, destination, verb, None)
    }

    /// The stamp of a file of a batch that is about to be read.
    pub(super) fn stamp(&self, path: &Path) -> Option<FileStamp> {
        self.keys.and_then(|_| settled_stamp(path))
    }

    /// What a conversion of a batch depends on, and what its trace is known by.
    pub(super) fn key(&self, begun: &RunningConversion<'_>) -> Option<(String, Option<SeenTrace>)> {
        let keys = self.keys?;
        let queries = symbol_queries(&begun.trace);
        let key = keys.of(&begun.content.digest, begun.path, queries.iter());
        let uuid = begun.content.uuid.clone();
        let trace_id = begun.content.digest.to_string();
        Some((key, begun.stamp.map(|stamp| SeenTrace { stamp, uuid, trace_id, queries })))
    }

    fn replaces_own(&self, output: &Path, trace: &Path, content: &Content) -> anyhow::Result<bool> {
        let what_else = match self.format.names_source() {
            true => format!(" and is not stk's output of {}", trace.display()),
            false => format!(", and {} files do not name their source", self.format.name()),
        };
        let ours = |mark: &SourceMark| content.begins_with(mark.len, &mark.digest);
        replaces_own((output, NoTrace), self.args.force, &what_else, |path| is_made_of(path, ours))
    }

    /// Converts a trace. `verb` is what was done with the output, for the user.
    pub(super) fn convert(
        &self,
        RunningConversion { path, mut trace, content, deadline, .. }: RunningConversion<'_>,
        destination: &Destination,
        verb: &str,
        key: Option<String>,
    ) -> ConvertOutcome {
        let args = self.args;
        let trace_id = Some(content.digest.to_string());
        let shown = || path.display().to_string();
        let loaded = load_read(&mut trace, path, &args.profile, self.progress, self.images.clone(), deadline);
        let mut loaded = loaded.with_context(shown)?;
        loaded.profile.trace.content = Some(content);
        if let Some(how) = args.merge_threads {
            loaded.runs = merge_threads(&mut loaded.profile, &loaded.runs, how)?;
        }
        if self.format == Format::Parquet {
            add_events(&mut loaded.profile, &trace);
        }
        drop(trace);
        let cut = match self.format.most_functions() {
            Some(most) => cut_stacks(&mut loaded.profile, &mut loaded.runs, most)?,
            None => 0,
        };
        let (weights, weights_note) = weights(&loaded.runs, self.format, args.weight)
            .with_context(|| format!("{}: no flame graph", path.display()))?;
        let options = Options {
            lines: args.lines,
            perfetto_style: args.perfetto_style,
            denormalized: args.denormalized,
            key,
            rows_memory: args.profile.tables.rows_memory(),
            weights,
            // Who splits by thread wants each of them.
            all_threads: args.all_threads || args.split.is_some(),
            selection: selection(&loaded),
        };
        let summary = match (args.split, destination.file()) {
            (Some(split), Some(output)) => self.parts(split, &output, &mut loaded, path, &options)?,
            _ => self.whole(&loaded, destination.clone(), path, &options, deadline)?,
        };
        let bytes = size(summary.files.iter().map(|(_, bytes)| bytes).sum());
        match destination {
            _ if self.keys.is_some() => {}
            Destination::Stdout => {}
            Destination::File(_) | Destination::InFolder { .. } if args.split.is_some() => {
                let names: Vec<_> = summary.files.iter().map(|(path, _)| path.display()).collect();
                if let [first, .., last] = names.as_slice() {
                    note(&format!("wrote {} files ({bytes}), {first} to {last}", names.len()));
                } else {
                    names.iter().for_each(|name| note(&format!("wrote {name} ({bytes})")));
                }
            }
            Destination::File(_) | Destination::InFolder { .. } => {
                let output = destination.file().unwrap_or_default();
                note(&format!("{verb} {} ({bytes})", output.display()));
            }
            Destination::Dir(folder) => {
                let (trace, folder, files) = (path.display(), folder.display(), summary.files.len());
                note(&format!("{verb} {folder} ({bytes} in {files} files of {trace})"));
            }
        }
        let source = printable(&loaded.profile.trace.source);
        let mut lines = profile_args::loss_lines(&loaded.profile);
        // A batch keeps what became of each trace.
        let empty = loaded.empty.iter().filter(|_| self.keys.is_some());
        lines.extend(empty.map(|why| format!("stk: warning: {}", printable(why))));
        if let Some(share) = loaded.profile.selection.as_ref().filter(|_| loaded.empty.is_none()) {
            lines.push(format!("stk: {source}: selection: {}", share.describe()));
        }
        if let Some(most) = self.format.most_functions().filter(|_| cut > 0) {
            lines.push(format!(
                "stk: {source}: {} of more than {} functions, which its viewer would not open: their middle is left out; --fold-recursion shortens recursion",
                counted(cut, "different stack"),
                count(most as u64)
            ));
        }
        let weights_note = weights_note.filter(|_| loaded.empty.is_none());
        lines.extend(weights_note.map(|note| format!("stk: {source}: {note}")));
        lines.extend(summary.notes.iter().map(|text| format!("stk: {source}: {text}")));
        lines.extend(summary.warnings.iter().map(|text| format!("stk: warning: {}", printable(text))));
        let (symbols, failed) = profile_args::check_symbols(&loaded, &args.profile);
        let facts = Some(ConversionFacts::of(&loaded.profile));
        let missing = Some((loaded.profile.trace.source.clone(), loaded.missing));
        let (status, exit) = (Status::Converted, loaded.exit.worse(symbols));
        Ok(Converted {
            status,
            exit,
            lines,
            empty: loaded.empty,
            failed,
            missing,
            trace_id,
            facts,
            seen: None,
        })
    }
}

/// The output of a batch's trace.
pub(super) fn output_in(folder: &Path, name: &str) -> anyhow::Result<Below> {
    Ok(Below::folder(folder).with_context(|| folder.display().to_string())?.join(name))
}

/// Which part of the trace was chosen, for the titles of outputs; empty = all of it.
fn selection(loaded: &LoadedProfile) -> String {
    let share = loaded.profile.selection.as_ref().map(SelectionShare::describe);
    [loaded.range.clone(), share.unwrap_or_default()]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

impl Converter<'_> {
    fn whole(
        &self,
        loaded: &LoadedProfile,
        destination: Destination,
        trace: &Path,
        options: &Options,
        deadline: Deadline,
    ) -> anyhow::Result<Summary> {
        let mut writer = formats::create(self.format, destination, options)?;
        formats::write_within(&mut *writer, &loaded.profile, &loaded.runs, deadline)
            .with_context(|| format!("{}: the conversion could not be written", trace.display()))
    }

    /// Writes each part to a file of its own; none if one of the files must not be replaced.
    fn parts(
        &self,
        how: split::Split,
        output: &Path,
        loaded: &mut LoadedProfile,
        trace: &Path,
        options: &Options,
    ) -> anyhow::Result<Summary> {
        let parts = split::parts(how, &loaded.profile, &loaded.runs, (self.format, output))?;
        if let Some(content) = &loaded.profile.trace.content {
            for (_, path) in &parts {
                self.replaces_own(path, trace, content)?;
            }
        }
        let mut summary = Summary::default();
        let (window, threads) = (loaded.profile.window.clone(), loaded.profile.threads.clone());
        for (each, path) in parts {
            loaded.profile.window.clone_from(&window);
            loaded.profile.threads.clone_from(&threads);
            let runs = part(&mut loaded.profile, &loaded.runs, each)?;
            let folder = path.parent().map(Path::to_owned).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut writer = formats::create(self.format, Destination::InFolder { folder, name }, options)?;
            let written = formats::write(&mut *writer, &loaded.profile, &runs)
                .with_context(|| format!("{}: a part could not be written", trace.display()))?;
            summary.files.extend(written.files);
            summary.warnings.extend(written.warnings);
            summary.notes.extend(written.notes);
        }
        Ok(summary)
    }
}

/// What flame graphs count: what was requested, or else CPU time if it is known. With a note for
/// the user if it is not.
pub(in super::super) fn weights(
    runs: &Runs,
    format: Format,
    asked: Option<Weight>,
) -> anyhow::Result<(Vec<Weight>, Option<&'static str>)> {
    if !format.takes_weight() {
        return Ok((Vec::new(), None));
    }
    let (first, note) = match asked {
        Some(Weight::Cpu) if !any(runs, Weight::Cpu)? => {
            bail!("no CPU time is recorded in this selection: use --weight active or wall")
        }
        Some(weight) => return Ok((vec![weight], None)),
        None if any(runs, Weight::Cpu)? => (Weight::Cpu, None),
        None if any(runs, Weight::Active)? => {
            (Weight::Active, Some("no CPU time is recorded: the flame graph counts samples that do not wait"))
        }
        None => (Weight::Wall, Some("all samples wait: the flame graph counts waits")),
    };
    let both = format == Format::Speedscope && first != Weight::Wall;
    Ok((if both { vec![first, Weight::Wall] } else { vec![first] }, note))
}

/// Whether any run has this weight.
fn any(runs: &Runs, weight: Weight) -> std::io::Result<bool> {
    let mut found = false;
    runs.for_each(|batch| {
        found |= batch.runs.iter().any(|run| weight.of(run, 1) > 0);
        Ok::<(), std::io::Error>(())
    })?;
    Ok(found)
}
