//! `stk convert`: traces to other formats.

use super::{Exit, ProfileArgs, Progress, Usage, guarded, load, pipeline, report, say, size, verify};
use crate::output::{self, ChromeStyle, Destination, Format, Options};
use crate::profile::{Runs, Weight};
use anyhow::{Context, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use stk_schema::text::printable;

/// Converts traces. Several at once are converted in parallel; a damaged one is reported and passed
/// over.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Where the output goes:
  one trace         -o FILE, or trace.speedscope.json and so on in the current folder
  several traces    -o FOLDER, one file a trace there; to Parquet one dataset folder for all
  -o -              standard output (not for Parquet, which is a folder)
  --denormalized    one trace to Parquet gives one file

Examples:
  stk convert app.stk
  stk convert app.stk -o app.chrome.json --from 2s --until 5s --thread worker
  stk convert app.stk --to speedscope -o - | gzip > app.speedscope.json.gz
  stk convert lab/*.stk --to parquet -o lab.parquet -y 'srv*symbols'")]
pub(super) struct ConvertArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format; by default that of the output's name, or speedscope
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    to: Option<Format>,
    /// Output file or folder, or - for standard output
    #[arg(short, long, value_name = "FILE|FOLDER|-")]
    output: Option<PathBuf>,
    /// Threads to use; by default as many as there are processors. The output does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Speedscope, folded: what the widths of the flame graph are [default: cpu, or active if the
    /// trace tells no CPU time; speedscope has wall, too]
    #[arg(long, value_enum, value_name = "WHAT", help_heading = "Output")]
    weight: Option<Weight>,
    /// Chrome: which of its forms to write
    #[arg(long, value_enum, default_value_t, value_name = "STYLE", help_heading = "Output")]
    chrome_style: ChromeStyle,
    /// Speedscope: one frame per source line instead of one per function
    #[arg(long, help_heading = "Output")]
    lines: bool,
    /// Parquet: samples carry the names of their frames, so that one file answers queries alone;
    /// one trace then gives one file
    #[arg(long, help_heading = "Output")]
    denormalized: bool,
    #[command(flatten)]
    profile: ProfileArgs,
}

pub(super) fn run(args: &ConvertArgs) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let format = format(args)?;
    if args.weight.is_some() && !matches!(format, Format::Speedscope | Format::Folded) {
        let name = format.name();
        return Err(Usage(format!("--weight is for speedscope and folded; {name} holds all times")).into());
    }
    let tasks = tasks(args, format)?;
    let progress = Progress::new("samples");
    let jobs = super::jobs(args.jobs);
    // A task keeps its conversion in memory, so no more tasks run at once than there are threads.
    // The remaining threads help within the tasks.
    let lanes = tasks.len().min(jobs);
    let next = AtomicUsize::new(0);
    let endings: Mutex<Vec<(usize, ConvertOutcome)>> = Mutex::new(Vec::new());
    let work = || -> anyhow::Result<()> {
        let pool = super::pool(u16::try_from(jobs.div_ceil(lanes)).ok())?;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(i) else { return Ok(()) };
            let ending = guarded(task.file, || pool.install(|| convert(task, format, args, &progress)));
            endings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((i, ending));
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    drop(progress);
    let mut endings = endings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    endings.sort_by_key(|(i, _)| *i);
    Ok(endings.iter().fold(Exit::Ok, |exit, (_, ending)| exit.worse(tell(ending))))
}

/// A trace and the destination of its conversion.
struct Task<'a> {
    file: &'a Path,
    destination: Destination,
}

/// The result of the conversion of one trace: its exit code, and what to print.
type ConvertOutcome = anyhow::Result<(Exit, Vec<String>)>;

fn convert(task: &Task<'_>, format: Format, args: &ConvertArgs, progress: &Progress) -> ConvertOutcome {
    let loaded = load(task.file, &args.profile, progress)?;
    let (weights, weights_note) = weights(&loaded.runs, format, args.weight)
        .with_context(|| format!("{}: no flame graph", task.file.display()))?;
    let options = Options {
        lines: args.lines,
        chrome_style: args.chrome_style,
        denormalized: args.denormalized,
        weights,
    };
    let mut writer = output::create(format, task.destination.clone(), &options)?;
    let summary = output::write(&mut *writer, &loaded.profile, &loaded.runs)
        .with_context(|| format!("{}: the conversion could not be written", task.file.display()))?;
    for (path, bytes) in &summary.files {
        say(&format!("wrote {} ({})", path.display(), size(*bytes)));
    }
    let mut lines = pipeline::closing_lines(&loaded);
    lines.extend(weights_note.map(|note| format!("{}: {note}", task.file.display())));
    lines.extend(summary.warnings.iter().map(|text| format!("stk: warning: {}", printable(text))));
    let (symbols, missed) = pipeline::check_symbols(&loaded, &args.profile);
    lines.extend(missed);
    Ok((loaded.exit.worse(symbols), lines))
}

/// What flame graphs count: what was asked for, or else CPU time if it is known. With a note for
/// the user if it is not.
fn weights(
    runs: &Runs,
    format: Format,
    asked: Option<Weight>,
) -> anyhow::Result<(Vec<Weight>, Option<&'static str>)> {
    if !matches!(format, Format::Speedscope | Format::Folded) {
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

/// Prints the result.
fn tell(ending: &ConvertOutcome) -> Exit {
    match ending {
        Ok((exit, lines)) => {
            lines.iter().for_each(|line| eprintln!("{line}"));
            *exit
        }
        Err(error) => {
            report(error);
            verify::exit_of(error)
        }
    }
}

fn format(args: &ConvertArgs) -> anyhow::Result<Format> {
    let named = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let told = args.to.or_else(|| Format::from_path(named?));
    match (told, named) {
        (Some(format), _) => Ok(format),
        (None, Some(path)) if !is_folder(path) => {
            Err(Usage(format!("{}: the name does not tell a format: give one with --to", path.display()))
                .into())
        }
        (None, _) => Ok(Format::Speedscope),
    }
}

/// Chooses the destination of each trace.
fn tasks(args: &ConvertArgs, format: Format) -> anyhow::Result<Vec<Task<'_>>> {
    let output = args.output.as_deref();
    let task = |file, destination| Task { file, destination };
    if output == Some(Path::new("-")) {
        if format.is_folder() {
            return Err(Usage(
                "a Parquet dataset is a folder and cannot go to standard output: name one with -o".into(),
            )
            .into());
        }
        let [file] = args.files.as_slice() else {
            return Err(
                Usage("only one trace can go to standard output: name a folder with -o".into()).into()
            );
        };
        return Ok(vec![task(file.as_path(), Destination::Stdout)]);
    }
    let one_file = args.denormalized && args.files.len() == 1 && !output.is_some_and(is_folder);
    if format.is_folder() && !one_file {
        let folder = output.map_or_else(|| PathBuf::from(format.default_name()), Path::to_owned);
        return Ok(args
            .files
            .iter()
            .map(|file| task(file.as_path(), Destination::Dir(folder.clone())))
            .collect());
    }
    let folder = output.filter(|path| is_folder(path));
    if let ([file], None) = (args.files.as_slice(), folder) {
        let path = output.map_or_else(|| PathBuf::from(format.default_name()), Path::to_owned);
        return Ok(vec![task(file.as_path(), Destination::File(path))]);
    }
    let folder = match (folder, output) {
        (Some(folder), _) => folder.to_owned(),
        (None, Some(path)) if path.exists() || Format::from_path(path).is_some() => {
            let path = path.display();
            return Err(
                Usage(format!("{path}: several traces need a folder: give one with -o FOLDER/")).into()
            );
        }
        (None, Some(path)) => path.to_owned(),
        (None, None) => PathBuf::from("."),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    let mut taken: HashMap<String, u32> = HashMap::new();
    let suffix = format.suffix();
    let tasks = args.files.iter().map(|file| {
        let stem = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        // Traces of one name in several folders are numbered, in the order of the command line.
        let n = taken.entry(stem.to_lowercase()).or_default();
        *n += 1;
        let name = if *n == 1 { format!("{stem}{suffix}") } else { format!("{stem}-{n}{suffix}") };
        task(file.as_path(), Destination::File(folder.join(name)))
    });
    Ok(tasks.collect())
}

/// Whether a path is a folder, or is written like one.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}
