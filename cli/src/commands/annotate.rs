//! `stk annotate`: the lines and instructions of functions, with their weights.

use super::profile_args::{LoadedProfile, MissingSum, load_file};
use super::stats::print_options;
use super::symbol_options::SymbolOptions;
use super::values::choice;
use super::{
    Exit, Out, ProfileArgs, Progress, TraceChoice, TraceProgress, Usage, WorkerArgs, check_symbols,
    each_trace, inputs, pool, print_line,
};
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use stk_output::annotate::{
    self, AnnotateError, AnnotateOptions, Annotation, CodeSource, SourceFolder, SourceFolders, SourceServers,
    VERSION,
};
use stk_output::stats::{Length, StatsOptions};
use stk_output::traces::Traces;
use stk_profile::pipeline::load_images;
use stk_profile::profile::{MissingSymbols, Weight};
use stk_profile::runtimes::{lines, methods};
use stk_profile::trace::Trace;
use stk_symbols::SymbolStore;

/// Shows the source lines of a function or file, each with what samples come to in it; with
/// --instructions its machine code too. The lines of a function, and its instructions, add up to
/// its self time of `stk stats`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk annotate app.stk leaf_multiply --source src
  stk annotate app.stk parser.cpp --source C:\\agent\\work=src --weight wall
  stk annotate app.stk '^Parser::' --top 0 --instructions -y build

docs/guide/annotate.md describes what is read and what is not.")]
pub(super) struct AnnotateArgs {
    /// The trace
    #[arg(value_name = "TRACE")]
    file: PathBuf,
    /// A function's name, the end of a source file's path, or a regular expression as for
    /// --function
    #[arg(value_name = "FUNCTION|FILE")]
    what: String,
    #[command(flatten)]
    code: CodeArgs,
    /// Functions or files that are shown, the most self time first; 0 shows all
    #[arg(long, value_name = "N", default_value_t = 3)]
    top: usize,
    /// What is counted [default: cpu, or active if the trace has no CPU time]
    #[arg(long, value_parser = choice::<Weight>(), value_name = "WHAT")]
    weight: Option<Weight>,
    /// Leave out samples of waiting threads
    #[arg(long)]
    running: bool,
    /// Print JSON: `stk schema annotate` describes it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// What is shown of code, and where texts of source files are.
#[derive(clap::Args, Default, Debug)]
pub(super) struct CodeArgs {
    /// Folder of source files: the longest end of a path in the debug information that is below it
    /// is taken. OLD=NEW: paths that begin with OLD are below NEW. May be repeated
    #[arg(long, value_name = "DIR|OLD=NEW")]
    source: Vec<String>,
    /// Take texts of .NET source files from the modules' PDBs too, where the compiler put them
    /// there (-embed, EmbedAllSources)
    #[arg(long)]
    embedded_sources: bool,
    /// Take texts of .NET source files from below this address too, where SourceLink's maps in the
    /// modules' PDBs say that they are (https://host/folder/). A text with another hash than the
    /// PDB's is refused. May be repeated
    #[arg(long, value_name = "URL")]
    source_link: Vec<String>,
    /// Show machine code, from images (see -y) or as far as the trace holds it
    #[arg(long)]
    instructions: bool,
}

impl CodeArgs {
    /// Whether texts or instructions are wanted.
    pub(super) fn is_given(&self) -> bool {
        self.needs_trace() || !self.source.is_empty()
    }

    /// Whether the trace itself is needed, beside its profile.
    fn needs_trace(&self) -> bool {
        self.embedded_sources || self.instructions || !self.source_link.is_empty()
    }

    /// The servers of source files; none is contacted here.
    pub(super) fn servers(&self, symbols: &SymbolOptions) -> anyhow::Result<Option<SourceServers>> {
        if self.source_link.is_empty() {
            return Ok(None);
        }
        if symbols.offline {
            return Err(Usage("--source-link names a server, and --offline contacts none".into()).into());
        }
        let servers = SourceServers::new(&self.source_link);
        Ok(Some(servers.map_err(|error| Usage(format!("--source-link {error}")))?))
    }

    /// Opens the folders.
    pub(super) fn folders(&self) -> anyhow::Result<SourceFolders> {
        let folders: Vec<SourceFolder> = self.source.iter().map(|text| SourceFolder::parse(text)).collect();
        let opened = SourceFolders::open(&folders);
        Ok(opened.map_err(|(folder, error)| Usage(format!("--source {}: {error}", folder.display())))?)
    }

    /// Annotates a trace, with what is found for it in `store` and on `servers`. The options name
    /// no source of code and of texts that PDBs lead to.
    pub(super) fn annotate(
        &self,
        loaded: &LoadedProfile,
        trace: Option<&Trace<'_>>,
        store: &SymbolStore,
        servers: Option<&SourceServers>,
        options: &AnnotateOptions<'_>,
    ) -> Result<Annotation, AnnotateError> {
        let images = trace.filter(|_| self.instructions).map(|trace| load_images(trace, store));
        let methods = trace.filter(|_| self.embedded_sources || servers.is_some()).map(methods);
        let pdbs = methods.as_ref().map(|methods| lines(methods, store));
        let options = AnnotateOptions {
            embedded: pdbs.as_ref().filter(|_| self.embedded_sources),
            linked: pdbs.as_ref().zip(servers),
            code: trace.zip(images.as_deref()).map(|(trace, images)| CodeSource { trace, images }),
            ..*options
        };
        annotate::annotate(&loaded.profile, &loaded.runs, &options)
    }
}

/// Runs the command.
pub(super) fn run(args: &AnnotateArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let sources = args.code.folders()?;
    let servers = args.code.servers(&args.profile.symbols.options)?;
    let file = inputs::trace(&args.file)?;
    let pool = pool(args.workers.jobs)?;
    let progress = TraceProgress::new(1);
    let mut document = Traces::new(VERSION);
    let mut missing = MissingSum::default();
    let mut choice = TraceChoice::new(args.profile.is_part());
    let exit = each_trace(&[file], out, |path| {
        let read = pool.install(|| of_file(path, args, (&sources, servers.as_ref()), progress.samples()));
        let OfTrace { annotation, empty, missing: lacking, exit } = read?;
        choice.add(&annotation.source, empty);
        missing.add(&annotation.source, &lacking);
        if args.json {
            return Ok((document.next(&annotation)?, exit));
        }
        let look = print_options(Length::Short, None, args.profile.select.tz.tz);
        let mut text = Vec::new();
        annotate::print(&annotation, &mut text, &look)?;
        Ok((String::from_utf8_lossy(&text).into_owned(), exit))
    })?;
    drop(progress);
    let exit = exit.worse(choice.finish());
    if args.json {
        out(&document.end())?;
    } else {
        missing.print(&args.profile.symbols.options);
    }
    Ok(exit)
}

/// What a trace gave.
struct OfTrace {
    annotation: Annotation,
    /// Why nothing of it is chosen.
    empty: Option<String>,
    missing: MissingSymbols,
    exit: Exit,
}

fn of_file(
    path: &Path,
    args: &AnnotateArgs,
    (sources, servers): (&SourceFolders, Option<&SourceServers>),
    progress: &Progress,
) -> anyhow::Result<OfTrace> {
    let file = args.profile.tables.open(path)?;
    let loaded = load_file(&file, &args.profile, progress)?;
    let store = args.profile.symbols.store(path);
    let read = || {
        let mut trace = file.read()?;
        args.profile.tables.give(&mut trace);
        anyhow::Ok(trace)
    };
    let trace = args.code.needs_trace().then(read).transpose()?;
    let options = AnnotateOptions {
        what: &args.what,
        stats: StatsOptions { running_only: args.running, weight: args.weight, ..StatsOptions::default() },
        top: if args.top == 0 { usize::MAX } else { args.top },
        sources,
        embedded: None,
        linked: None,
        code: None,
    };
    let annotation = match args.code.annotate(&loaded, trace.as_ref(), &store, servers, &options) {
        Err(AnnotateError::Pattern(error)) => {
            return Err(Usage(format!("{}: {}", args.what, AnnotateError::Pattern(error))).into());
        }
        read => read.with_context(|| path.display().to_string())?,
    };
    if annotation.parts.is_empty() && loaded.empty.is_none() {
        let what = &args.what;
        anyhow::bail!(
            "{}: no function and no source file of its samples matches {what}: stk stats --top 0 lists functions",
            path.display()
        );
    }
    let (symbols, missed) = check_symbols(&loaded, &args.profile);
    missed.iter().for_each(|line| print_line(line));
    let exit = loaded.exit.worse(symbols);
    Ok(OfTrace { annotation, empty: loaded.empty, missing: loaded.missing, exit })
}
