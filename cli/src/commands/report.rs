//! `stk report`: one page with what there is of traces.

use super::annotate::CodeArgs;
use super::profile_args::{LoadedProfile, MissingSum, check_symbols, load_file, loss_lines};
use super::replace::{self, REPLACED, is_made_of, replaces_own};
use super::{
    Exit, ProfileArgs, Progress, TraceChoice, browser, guarded, inputs, note, note_line, pool, print_error,
    size, verify, warn,
};
use anyhow::Context;
use std::path::{Path, PathBuf};
use stk_base::files::MayReplace::NoTrace;
use stk_output::annotate::{AnnotateOptions, Annotation, SourceFolders, SourceServers};
use stk_output::formats::SourceMark;
use stk_output::report::{Report, Source};
use stk_output::stats::StatsOptions;
use stk_profile::profile::add_events;
use stk_profile::trace::{Content, Trace, TraceFile};

/// Writes one page that a browser shows: flame graph, functions, callers, timeline, waits, and how
/// far to trust it. It needs no network and no other file.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The page opens on the answer: CPU time, waits, how far the figures can be trusted. One selection of
time, threads, search and state drives all of it and is part of its address, so that Back works and
a link leads to the same view. Press ? in it for its keys; docs/report.md describes it.

Of several traces, the page opens on their list, which marks those that stand out. Its other views are of
all of them together; a click shows one.

A page that is there already is replaced if stk made it of the same traces. Any other file needs
--force.

Examples:
  stk report app.stk --open
  stk report app.stk -o app.html -y symbols --from 2s --until 5s
  stk report lab/*.stk -o lab.html              a list, one flame graph of all, each trace")]
pub(super) struct ReportArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// The page, or - for standard output [default: app.report.html for app.stk, report.html for
    /// several traces, in the current folder]
    #[arg(short, long, value_name = "FILE|-")]
    pub(super) output: Option<PathBuf>,
    /// Show the page in the browser afterwards
    #[arg(long)]
    pub(super) open: bool,
    /// Replace a file that is there, unless it is a trace or an input
    #[arg(long)]
    pub(super) force: bool,
    /// Threads to use [default: as many as there are processors]. The page does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) jobs: Option<u16>,
    #[command(flatten)]
    pub(super) code: CodeArgs,
    #[command(flatten)]
    pub(super) profile: ProfileArgs,
}

/// Runs the command.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let (paths, mut exit) = inputs::traces(&args.files);
    let paths = args.profile.select.process.traces(paths)?;
    let output = output(args, &paths);
    output.as_deref().map_or(Ok(()), replace::check)?;
    let mut files = Vec::new();
    for path in &paths {
        match guarded(path, || opened(path, args)) {
            Ok(file) => files.push(file),
            Err(error) => {
                print_error(&error);
                exit = exit.worse(verify::exit_of(&error));
            }
        }
    }
    let Some(content) = together(files.iter().map(|(_, content)| content)) else { return Ok(exit) };
    let ours = |mark: &SourceMark| mark.len == content.len && mark.digest == content.digest;
    let traces = if files.len() == 1 { "this trace" } else { "these traces" };
    let replaced = match &output {
        Some(path) => {
            let what_else = format!(" and is not stk's output of {traces}");
            replaces_own((path, NoTrace), args.force, &what_else, |path| is_made_of(path, ours))?
        }
        None => false,
    };
    let (page, ending) = collect(args, &files)?;
    exit = exit.worse(ending);
    if page.is_empty() {
        return Ok(exit);
    }
    let summary = page.write(output.as_deref(), &content)?;
    summary.warnings.iter().for_each(|text| warn(text));
    if let Some(path) = &output {
        let bytes = size(summary.files.iter().map(|(_, bytes)| bytes).sum());
        note(&format!("{} {} ({bytes})", if replaced { REPLACED } else { "wrote" }, path.display()));
        if args.open {
            browser::show(path.canonicalize()?.as_os_str())?;
        }
    }
    Ok(exit)
}

fn opened(path: &Path, args: &ReportArgs) -> anyhow::Result<(TraceFile, Content)> {
    let file = args.profile.tables.open(path)?;
    let content = file.content()?;
    Ok((file, content))
}

/// The page of all traces that can be read.
fn collect(args: &ReportArgs, files: &[(TraceFile, Content)]) -> anyhow::Result<(Report, Exit)> {
    let sources = args.code.folders()?;
    let servers = args.code.servers(&args.profile.symbols.options)?;
    let texts = (&sources, servers.as_ref());
    let pool = pool(args.jobs)?;
    let progress = Progress::new("samples");
    let mut page = Report::default();
    let mut exit = Exit::Ok;
    let mut lines = Vec::new();
    let mut sum = MissingSum::default();
    let mut choice = TraceChoice::new(args.profile.is_part());
    for (file, _) in files {
        match guarded(file.path(), || pool.install(|| add(&mut page, file, args, texts, &progress))) {
            Ok(added) => {
                exit = exit.worse(added.exit);
                let source = file.path().display().to_string();
                sum.add(&source, &added.missing);
                choice.add(&source, added.empty);
                lines.extend(added.lines);
            }
            Err(error) => {
                print_error(&error);
                exit = exit.worse(verify::exit_of(&error));
            }
        }
    }
    drop(progress);
    lines.iter().for_each(|line| note_line(line));
    sum.print(&args.profile.symbols.options);
    Ok((page, exit.worse(choice.finish())))
}

/// Functions at most whose lines and instructions a page holds, the most self time first.
const MOST_SOURCES: usize = 200;

/// The lines and instructions of the functions that were hit most.
fn annotation(
    path: &Path,
    trace: &Trace<'_>,
    loaded: &LoadedProfile,
    args: &ReportArgs,
    (sources, servers): (&SourceFolders, Option<&SourceServers>),
) -> anyhow::Result<Annotation> {
    let store = args.profile.symbols.store(path);
    let options = AnnotateOptions {
        // Every function.
        what: ".",
        stats: StatsOptions::default(),
        top: MOST_SOURCES,
        sources,
        embedded: None,
        linked: None,
        code: None,
    };
    Ok(args.code.annotate(loaded, Some(trace), &store, servers, &options)?)
}

/// What became of a trace.
struct Added {
    exit: Exit,
    /// Notes and warnings, printable.
    lines: Vec<String>,
    /// Why nothing of it is chosen.
    empty: Option<String>,
    missing: stk_profile::profile::MissingSymbols,
}

fn add(
    page: &mut Report,
    file: &TraceFile,
    args: &ReportArgs,
    texts: (&SourceFolders, Option<&SourceServers>),
    progress: &Progress,
) -> anyhow::Result<Added> {
    let mut loaded = load_file(file, &args.profile, progress)?;
    let trace = file.read()?;
    add_events(&mut loaded.profile, &trace);
    let annotation =
        args.code.is_given().then(|| annotation(file.path(), &trace, &loaded, args, texts)).transpose()?;
    let mut lines = loss_lines(&loaded.profile);
    let warnings = lines.iter().map(|line| line.replacen("stk: warning: ", "", 1));
    let warnings: Vec<String> = warnings.chain(loaded.empty.clone()).collect();
    let share = loaded.profile.selection.as_ref().map(|share| share.describe()).unwrap_or_default();
    page.add(&Source {
        profile: &loaded.profile,
        runs: &loaded.runs,
        missing: &loaded.missing,
        warnings: &warnings,
        part: &share,
        annotation: annotation.as_ref(),
        zone: args.profile.select.tz.tz,
    })
    .with_context(|| format!("{}: no report", file.path().display()))?;
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    lines.extend(missed);
    Ok(Added { exit: loaded.exit.worse(symbols), lines, empty: loaded.empty, missing: loaded.missing })
}

/// Where the page goes; `None` = standard output.
fn output(args: &ReportArgs, traces: &[PathBuf]) -> Option<PathBuf> {
    match (&args.output, traces) {
        (Some(path), _) if path == Path::new("-") => None,
        (Some(path), _) => Some(path.clone()),
        (None, [trace]) => {
            let stem = trace.file_stem().unwrap_or_default().to_string_lossy();
            Some(PathBuf::from(format!("{stem}.report.html")))
        }
        (None, _) => Some(PathBuf::from("report.html")),
    }
}

/// What an output of these traces is known by: that of the only one, or a digest of all digests.
pub(super) fn together<'a>(contents: impl ExactSizeIterator<Item = &'a Content>) -> Option<Content> {
    let several = contents.len() > 1;
    contents
        .cloned()
        .reduce(|sum, next| {
            let both = [sum.digest.0, next.digest.0].concat();
            let digest = stk_format::blob::content_hash(&both);
            Content { digest, len: sum.len.saturating_add(next.len), ..sum }
        })
        .map(|content| Content {
            beginnings: if several { Vec::new() } else { content.beginnings.clone() },
            ..content
        })
}
