//! Parquet datasets on command lines: `lab.parquet`, or `lab.parquet?build=12&lab=b` for its traces
//! with these labels; which of its traces and samples options choose.

use super::profile_args::ProfileArgs;
use super::select::{SelectArgs, ThreadPattern};
use super::{Progress, Usage, note};
use crate::dataset::{Dataset, DatasetPart, DatasetThread, DatasetTrace, Grouping, is_dataset};
use std::path::{Path, PathBuf};
use stk_base::files::note_input_folder;
use stk_base::text::counted;
use stk_profile::profile::{SelectionShare, apply_rules, fill_stacks, fold, leave_out, select};
use stk_symbols::Demangle;

/// A dataset that an argument names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DatasetArg {
    pub folder: PathBuf,
    /// Labels that its traces must have.
    pub labels: Vec<(String, String)>,
}

impl DatasetArg {
    /// The dataset that an argument names; `None` if it names none.
    ///
    /// # Errors
    ///
    /// A usage error for what stands behind the `?`.
    pub(super) fn of(argument: &Path) -> anyhow::Result<Option<DatasetArg>> {
        if is_dataset(argument) {
            note_input_folder(argument);
            return Ok(Some(DatasetArg { folder: argument.to_owned(), labels: Vec::new() }));
        }
        let text = argument.to_string_lossy();
        let Some((folder, query)) = text.split_once('?').filter(|(folder, _)| is_dataset(Path::new(folder)))
        else {
            return Ok(None);
        };
        let label = |pair: &str| match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Usage(format!("{text}: behind the ? give labels, such as build=1234&lab=b"))),
        };
        note_input_folder(Path::new(folder));
        let labels = query.split('&').map(label).collect::<Result<_, _>>()?;
        Ok(Some(DatasetArg { folder: folder.into(), labels }))
    }

    /// The dataset among the arguments of a command that takes one, or traces.
    ///
    /// # Errors
    ///
    /// A usage error if there is more than a dataset.
    pub(super) fn only(arguments: &[PathBuf]) -> anyhow::Result<Option<DatasetArg>> {
        for argument in arguments {
            if let Some(found) = DatasetArg::of(argument)? {
                return match arguments.len() {
                    1 => Ok(Some(found)),
                    _ => Err(Usage(format!(
                        "{}: a dataset stands alone on a command line: convert the other traces into it",
                        found.folder.display()
                    ))
                    .into()),
                };
            }
        }
        Ok(None)
    }

    /// Opens the dataset, with the traces that it and the options choose.
    ///
    /// # Errors
    ///
    /// When it cannot be read, has no such trace, or an option asks for what its tables do not
    /// hold.
    pub(super) fn open(&self, args: &ProfileArgs) -> anyhow::Result<Dataset> {
        check(args)?;
        let mut dataset = Dataset::open(&self.folder)?;
        let all = dataset.traces().len() as u64;
        dataset.keep(|trace| self.is_chosen(trace, &args.select));
        let traces = counted(all, "trace");
        let chosen = dataset.traces().len() as u64;
        if chosen == 0 {
            anyhow::bail!(
                "{}: none of its {traces} is one that the labels, --pid and times choose",
                self.folder.display()
            );
        }
        if chosen < all {
            note(&format!("{}: {} of {traces}", self.folder.display(), counted(chosen, "trace")));
        }
        Ok(dataset)
    }

    fn is_chosen(&self, trace: &mut DatasetTrace, select: &SelectArgs) -> bool {
        let has = |(key, value): &(String, String)| trace.labels.iter().any(|(k, v)| k == key && v == value);
        let process = &select.process;
        if !self.labels.iter().chain(&process.labels).all(has) {
            return false;
        }
        if !process.pids.is_empty() && !process.pids.contains(&trace.pid) {
            return false;
        }
        let (start, duration) = (trace.start_utc_ns, trace.duration_ns);
        let ns = |time: crate::times::TimeArg| time.since(start, duration, select.tz.tz);
        let (from, until) = (select.from.map(ns), select.until.map(ns));
        if from.is_some_and(|from| from > i128::from(duration)) || until.is_some_and(|until| until <= 0) {
            return false;
        }
        let positive = |ns: i128| ns.clamp(0, u64::MAX.into()) as u64;
        (trace.from_ns, trace.until_ns) = (from.filter(|ns| *ns > 0).map(positive), until.map(positive));
        true
    }
}

/// Refuses what the tables of a dataset cannot answer, with the way out.
fn check(args: &ProfileArgs) -> anyhow::Result<()> {
    args.check()?;
    let options = &args.symbols.options;
    let names = "its names are those of its conversion: stk symbols apply names what had no name";
    let walks = "its stacks are those of its conversion: give it to stk convert or stk batch";
    let refused = [
        (!options.symbol_path.is_empty(), "-y", names),
        (options.ms_symbols, "--ms-symbols", names),
        (options.no_default_symbols, "--no-default-symbols", names),
        (args.symbols.demangle != Demangle::default(), "--demangle", names),
        (
            args.require_symbols.is_some(),
            "--require-symbols",
            "the column named_pct of its table traces has the shares",
        ),
        (args.scan, "--scan", walks),
        (args.max_frames.is_some(), "--max-frames", walks),
        (args.salvage, "--salvage", walks),
        (args.fold_recursion, "--fold-recursion", walks),
        (!args.tables.tables.is_empty(), "--tables", walks),
        (args.tables.max_memory.is_some(), "--max-memory", "its traces are converted already"),
    ];
    match refused.into_iter().find(|(given, ..)| *given) {
        Some((_, option, why)) => Err(Usage(format!("{option} is not for a dataset: {why}")).into()),
        None => Ok(()),
    }
}

/// Whether `--tid` and `--thread` choose a thread.
fn is_chosen(select: &SelectArgs, thread: DatasetThread<'_>) -> bool {
    let fits = |pattern: &ThreadPattern| match pattern {
        ThreadPattern::Tid(tid) => *tid == thread.tid,
        ThreadPattern::Name(name) => name.is_match(thread.name),
    };
    let threads = &select.threads;
    (threads.tids.is_empty() || threads.tids.contains(&thread.tid))
        && (threads.patterns.is_empty() || threads.patterns.iter().any(fits))
}

/// What groups samples of a dataset: the values of a trace and of a thread.
pub(super) type GroupValues<'a> =
    &'a (dyn Fn(&DatasetTrace, Option<DatasetThread<'_>>) -> Vec<String> + Sync);

/// Which sums of a dataset are wanted.
pub(super) struct SumRequest<'a> {
    pub values: GroupValues<'a>,
    /// Whether `values` depends on the thread.
    pub by_thread: bool,
    /// Whether each trace is a group of its own, and waits are not counted.
    pub by_trace: bool,
    /// Whether states of threads matter to who asks.
    pub states: bool,
    pub waits: bool,
}

/// Sums up the samples that the options choose, and leaves out the frames that they leave out.
/// `progress` counts rows.
pub(super) fn load(
    dataset: &Dataset,
    args: &ProfileArgs,
    wanted: &SumRequest<'_>,
    progress: &Progress,
) -> anyhow::Result<Vec<DatasetPart>> {
    let picks_threads = args.select.threads.is_part();
    let values = |trace: &DatasetTrace, thread: Option<DatasetThread<'_>>| {
        let chosen = thread.is_none_or(|thread| is_chosen(&args.select, thread));
        chosen.then(|| (wanted.values)(trace, thread.filter(|_| wanted.by_thread)))
    };
    let grouping = Grouping {
        values: &values,
        by_thread: wanted.by_thread || picks_threads,
        by_trace: wanted.by_trace && !wanted.waits,
        states: wanted.states || !args.stacks.states.is_empty(),
        waits: wanted.waits,
        rows: &|rows| progress.add_total(rows),
        rows_read: progress.done(),
    };
    let mut parts = dataset.load(&grouping)?;
    let selection = args.stacks.selection(None);
    for part in &mut parts {
        let runs = std::mem::take(&mut part.runs);
        let mut runs = select(&mut part.profile, runs, &selection)?;
        if picks_threads && part.profile.selection.is_none() {
            let mut share = SelectionShare::default();
            runs.for_each(|batch| {
                batch.runs.iter().for_each(|run| share.chosen.add_run(run));
                Ok::<(), std::io::Error>(())
            })?;
            part.profile.selection = Some(share);
        }
        if let Some(share) = &mut part.profile.selection {
            // Samples of threads that are left out are of the whole, too.
            share.whole = part.whole;
        }
        leave_out(&mut part.profile, &mut runs, &selection)?;
        fold(&mut part.profile, &mut runs, args.fold.options());
        apply_rules(&mut part.profile, &mut runs, &args.rules());
        part.runs = fill_stacks(&mut part.profile, runs)?;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dataset_is_named_with_labels_behind_a_question_mark() {
        let folder = tempfile::tempdir().unwrap();
        let lab = folder.path().join("lab.parquet");
        std::fs::create_dir(&lab).unwrap();
        let of = |query: &str| DatasetArg::of(Path::new(&format!("{}{query}", lab.display())));
        assert_eq!(of("").unwrap(), None, "an empty folder is none");
        std::fs::write(lab.join("_stk.json"), "{}").unwrap();
        assert_eq!(of("").unwrap().unwrap().labels, []);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(of("?build=1&lab=a=b").unwrap().unwrap().labels, [pair("build", "1"), pair("lab", "a=b")]);
        assert_eq!(of("?build=1").unwrap().unwrap().folder, lab);
        assert!(of("?").unwrap_err().is::<Usage>() && of("?build").unwrap_err().is::<Usage>());
        let several = [lab.clone(), PathBuf::from("a.stk")];
        assert!(DatasetArg::only(&several).unwrap_err().is::<Usage>());
        assert_eq!(DatasetArg::only(&several[1..]).unwrap(), None);
    }
}
