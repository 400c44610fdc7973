//! The command line: one file or folder per subcommand, which parses arguments and calls the
//! library. Several subcommands share `profile_args` (the arguments of a profile), `select` (a
//! part of a trace) and `progress`.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: see [`Exit`].

mod annotate;
mod batch;
mod browser;
mod convert;
mod datasets;
mod diff;
mod dump;
mod events;
mod info;
mod inputs;
mod man;
mod merge;
mod open;
mod profile_args;
mod progress;
mod redact;
mod replace;
mod report;
mod schema;
mod select;
mod stats;
mod symbol_options;
mod symbols;
mod top;
mod values;
mod verify;

pub use open::with_command;
pub use profile_args::{LoadedProfile, ProfileArgs, SymbolArgs, TablesArgs, check_symbols};
pub use progress::{Progress, TraceProgress};
pub use select::{
    NothingChosen, ProcessArgs, SelectArgs, StackArgs, ThreadArgs, ThreadPattern, TraceChoice, TzArgs,
};

use clap::{CommandFactory, Parser, Subcommand};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use stk_base::files::is_refusal;
use stk_base::panics::{self, caught};
use stk_base::text::size;
use stk_output::formats::OutputError;
use stk_schema::text::printable;

/// The result of a command, as the process's exit code.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Exit {
    /// Everything succeeded.
    Ok = 0,
    /// It failed.
    Failure = 1,
    /// The command line is wrong.
    Usage = 2,
    /// A process was not found, denied, or of the wrong architecture.
    Target = 3,
    /// Input was damaged; the readable part was written.
    Damaged = 4,
    /// Fewer symbols were found than `--require-symbols` requires.
    Symbols = 5,
    /// A difference over the threshold.
    Difference = 6,
    /// Whether there is a difference is unknown.
    Inconclusive = 7,
    /// Interrupted; no incomplete output was left.
    Interrupted = 130,
}

impl Exit {
    /// The more serious of two results: failure before damage before all others.
    pub fn worse(self, other: Exit) -> Exit {
        let rank = |exit| match exit {
            Exit::Ok => 0,
            Exit::Inconclusive => 1,
            Exit::Difference => 2,
            Exit::Symbols => 3,
            Exit::Damaged => 4,
            Exit::Failure => 5,
            Exit::Target => 6,
            Exit::Usage => 7,
            Exit::Interrupted => 8,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// A mistake in the command line: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The version, the commit that it was built from, and its features.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("STK_BUILD_COMMIT"),
    "; features: ",
    env!("STK_BUILD_FEATURES"),
    ")"
);

/// Converts, inspects and summarises .stk traces on any operating system.
#[derive(Parser, Debug)]
#[command(name = "stk", version = VERSION, max_term_width = 110)]
#[command(after_help = "\
Exit codes:
  0    done (a trace that only ends early counts as whole, with a warning)
  1    failed, or the options choose nothing of any trace
  2    wrong usage
  3    the process of dump --pid was not found, is denied or of the wrong architecture
  4    damaged input: what could be read was written
  5    fewer symbols than --require-symbols asks for
  6    diff: something takes more than before; verify --walks: a walk differs and nothing explains it
  7    diff: inconclusive
  130  interrupted: nothing half made is left

Environment:
  _NT_SYMBOL_PATH  where symbols are, beside -y
  RUST_LOG         diagnostics on standard error: error, warn, info (as -v), debug (as -vv)
  NO_COLOR         no colours

Examples:
  stk app.stk                                   the page of stk open
  stk info app.stk
  stk convert app.stk --to speedscope -y C:\\build\\symbols
  stk convert *.stk --to parquet -o lab.parquet
  stk diff old new -y symbols
  stk report app.stk --open
  stk completions bash > ~/.local/share/bash-completion/completions/stk")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Say on standard error what is decided and why; twice: details too
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Messages")]
    verbose: u8,
    /// Print no notes and warnings, only data and errors
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    quiet: bool,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Print the stacks of all threads at a moment, or those of captures
    Dump(dump::DumpArgs),
    /// List what happened, in time: captures, marks, exceptions, loads, unloads, threads
    Events(events::EventsArgs),
    /// Say what was recorded: what, when, where, modules, threads, samples, losses
    Info(info::InfoArgs),
    /// Say where the time went: functions, modules, threads, and what is wrong with the stacks
    Stats(stats::StatsArgs),
    /// Show the source lines and instructions of a function, with their weights
    Annotate(annotate::AnnotateArgs),
    /// Follow a trace that is being recorded: functions by CPU now, threads and what they wait for
    Top(top::TopArgs),
    /// Say what takes more of the time in new traces than in those of a base
    Diff(diff::DiffArgs),
    /// Write one page for the browser: flame graph, functions, timeline, waits, trust
    Report(report::ReportArgs),
    /// Show a trace in a viewer: stk's page, or a site that reads it from this machine
    Open(open::OpenArgs),
    /// Convert traces to other formats
    Convert(convert::ConvertArgs),
    /// Put the traces of one machine on one time line
    Merge(merge::MergeArgs),
    /// Convert many traces to one folder, resumable
    Batch(batch::BatchArgs),
    /// Convert traces of a batch in a process of its own
    #[command(hide = true)]
    BatchWorker,
    /// Check every block of traces and say what is lost
    Verify(verify::VerifyArgs),
    /// Copy a trace without the data of the program on its stacks
    Redact(redact::RedactArgs),
    /// Where names come from: list, fetch, bundle, check, lookup, cache
    Symbols(symbols::SymbolsArgs),
    /// Print a script that has a shell complete stk's command lines
    Completions(CompletionsArgs),
    /// Write manual pages
    Man(man::ManArgs),
    /// Print the schemas of stk's and inject's JSON
    Schema(schema::SchemaArgs),
}

/// Prints the script on standard output; where it goes depends on the shell.
#[derive(clap::Args, Debug)]
struct CompletionsArgs {
    /// The shell
    shell: clap_complete::Shell,
}

/// Runs the program: parses the command line, runs the command, returns the exit code.
pub fn run() -> ExitCode {
    stk_base::interrupt::catch();
    std::panic::set_hook(Box::new(report_panic));
    let cli = match Cli::try_parse_from(open::with_command(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are printed on standard output with code 0, mistakes on standard
            // error with code 2.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    log_to_stderr(cli.verbose);
    QUIET.store(cli.quiet, Ordering::Relaxed);
    let exit = execute(&cli.command, &mut print).unwrap_or_else(|error| {
        print_error(&error);
        if is_usage(&error) { Exit::Usage } else { Exit::Failure }
    });
    ExitCode::from(exit as u8)
}

/// The description of the command line, for tests of documents.
pub fn program() -> clap::Command {
    Cli::command()
}

/// The output and the exit code of a command line without the program's name, for tests and fuzz
/// targets.
///
/// # Errors
///
/// The error that the program would report.
pub fn answer(arguments: impl IntoIterator<Item = OsString>) -> anyhow::Result<(String, Exit)> {
    let name = OsString::from("stk");
    let cli = Cli::try_parse_from(std::iter::once(name).chain(arguments))?;
    let mut text = String::new();
    let exit = execute(&cli.command, &mut |more| {
        text.push_str(more);
        Ok(())
    })?;
    Ok((text, exit))
}

/// Whether an error is a mistake in the command line, such as an output that would replace an
/// input.
fn is_usage(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let refused = matches!(cause.downcast_ref(), Some(OutputError::Refused(_)));
        refused || cause.is::<Usage>() || is_refusal(cause)
    })
}

/// Takes the text of a command.
type Out<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

fn execute(command: &Command, out: Out<'_>) -> anyhow::Result<Exit> {
    match command {
        Command::Annotate(args) => annotate::run(args, out),
        Command::Convert(args) => convert::run(args),
        Command::Diff(args) => diff::run(args, out),
        Command::Batch(args) => batch::run(args),
        Command::BatchWorker => batch::worker::run(),
        Command::Dump(args) => dump::run(args, out),
        Command::Events(args) => events::run(args, out),
        Command::Top(args) => top::run(args, out),
        Command::Info(args) => info::run(args, out),
        Command::Open(args) => open::run(args, out),
        Command::Merge(args) => merge::run(args),
        Command::Report(args) => report::run(args),
        Command::Stats(args) => stats::run(args, out),
        Command::Verify(args) => verify::run(args, out),
        Command::Redact(args) => redact::run(args),
        Command::Symbols(args) => symbols::run(args, out),
        Command::Completions(args) => completions(args, out),
        Command::Man(args) => man::run(args, Cli::command(), out),
        Command::Schema(args) => schema::run(args, out),
    }
}

fn completions(args: &CompletionsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "stk", &mut script);
    out(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}

/// Has every line of the log written as text, whatever names it holds. What `RUST_LOG` says goes
/// before `-v`.
fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => "error",
        1 => "error,stk=info",
        _ => "error,stk=debug",
    };
    let mut log = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level));
    log.format(|line, record| {
        let text = record.args().to_string();
        let text = printable(&text);
        match record.level() {
            log::Level::Info => writeln!(line, "stk: {text}"),
            level => writeln!(line, "[{level} {}] {text}", record.target()),
        }
    });
    log.init();
}

/// Says where stk panicked and, if `RUST_BACKTRACE` asks for it, by which way.
fn report_panic(panic: &PanicHookInfo<'_>) {
    if panics::is_of_input(panic) {
        return;
    }
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let text = format!("panicked at {place}: {}", panics::text(panic.payload()));
    print_message(&text);
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        print_line(&backtrace.to_string());
    }
}

/// Prints the text that `work` makes of each trace. A trace that it fails on, or of which the
/// options choose nothing, is reported and passed over; a panic is such a failure.
fn each_trace(
    files: &[PathBuf],
    out: Out<'_>,
    mut work: impl FnMut(&Path) -> anyhow::Result<(String, Exit)>,
) -> anyhow::Result<Exit> {
    let mut exit = Exit::Ok;
    let mut choice = TraceChoice::new(true);
    for path in files {
        match guarded(path, || work(path)) {
            Ok((text, ending)) => {
                choice.add("", None);
                exit = exit.worse(ending);
                out(&text)?;
            }
            Err(error) => match error.downcast::<NothingChosen>() {
                Ok(NothingChosen(why)) => choice.add(&path.display().to_string(), Some(why)),
                Err(error) => {
                    print_error(&error);
                    exit = exit.worse(verify::exit_of(&error));
                }
            },
        }
    }
    Ok(exit.worse(choice.finish()))
}

/// Does the work on one trace or module of several: a panic is its failure and not the end of the
/// others.
fn guarded<T>(path: &Path, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    caught(work).unwrap_or_else(|text| {
        Err(anyhow::anyhow!("{}: stk failed on this, which is a fault of stk: {text}", path.display()))
    })
}

/// Columns of the terminal that standard output is; `None` if it is no terminal.
fn terminal_columns() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(columns.into())
}

/// Lines of the terminal that standard output is; `None` if it is no terminal.
fn terminal_lines() -> Option<usize> {
    let (_, terminal_size::Height(lines)) = terminal_size::terminal_size_of(io::stdout())?;
    Some(lines.into())
}

/// Number of threads to use.
pub fn jobs(wanted: Option<u16>) -> usize {
    match wanted {
        Some(jobs) => usize::from(jobs),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// The option of commands that share their work out among threads.
#[derive(clap::Args, Debug)]
struct WorkerArgs {
    /// Worker threads [default: as many as there are processors]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
}

/// A pool with the wanted number of threads.
///
/// # Errors
///
/// When the system cannot start the threads.
pub fn pool(wanted: Option<u16>) -> anyhow::Result<rayon::ThreadPool> {
    Ok(rayon::ThreadPoolBuilder::new().num_threads(jobs(wanted)).build()?)
}

/// Prints an error with its causes as one line on standard error.
pub fn print_error(error: &anyhow::Error) {
    print_message(&format!("{error:#}"));
}

/// Whether `-q` was given: notes and warnings are left out.
static QUIET: AtomicBool = AtomicBool::new(false);

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a warning on standard error.
pub fn warn(text: &str) {
    note(&format!("warning: {text}"));
}

/// A note that is printed once, however often it is given.
pub(crate) fn note_once(text: &str) {
    static GIVEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(text.to_owned()) {
        note(text);
    }
}

/// Prints a note on standard error. Control characters in names are escaped.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        print_message(text);
    }
}

/// Prints a note or warning, which is a printable line, on standard error.
fn note_line(line: &str) {
    if !is_quiet() {
        print_line(line);
    }
}

/// Prints one line on standard error. Control characters in names are escaped.
pub(crate) fn print_message(text: &str) {
    print_line(&format!("stk: {}", printable(text)));
}

/// Prints a printable line on standard error. That nobody reads it is no failure.
fn print_line(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Reports which servers redirected to which others, each pair once.
pub fn note_redirects(store: &stk_symbols::SymbolStore) {
    static WARNED: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());
    for (from, to) in store.redirects() {
        let line = format!("the symbol server {from} has sent on to {to}");
        if WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert((from, to)) {
            note(&line);
        }
    }
}

/// Writes data to standard output. A reader that has closed it is not an error.
///
/// # Errors
///
/// When standard output cannot be written for another reason.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let checked = stk_base::stdout::check();
    match checked.and_then(|()| out.write_all(text.as_bytes())).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(io::Error::new(error.kind(), format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_panic_is_reported_as_the_failure_of_its_trace() {
        let failed = guarded(Path::new("a.stk"), || -> anyhow::Result<()> { panic!("out of {}", "range") });
        let text = failed.unwrap_err().to_string();
        assert!(text.starts_with("a.stk: ") && text.ends_with("out of range"), "{text}");
        assert_eq!(guarded(Path::new("b.stk"), || Ok(7)).unwrap(), 7);
    }

    #[test]
    fn a_panic_while_the_text_of_a_trace_is_made_costs_that_trace_alone() {
        let files = ["a.stk", "b.stk", "c.stk"].map(PathBuf::from);
        let mut printed = String::new();
        let mut out = |text: &str| -> io::Result<()> {
            printed.push_str(text);
            Ok(())
        };
        let exit = each_trace(&files, &mut out, |path| match path.to_str() {
            Some("b.stk") => panic!("out of range"),
            name => Ok((name.unwrap_or_default().to_owned(), Exit::Ok)),
        });
        assert_eq!((exit.unwrap(), printed.as_str()), (Exit::Failure, "a.stkc.stk"));
    }

    /// Runs a command line of `stk` and gives the pieces of text that it printed.
    fn pieces(arguments: &[&str]) -> (Vec<String>, Exit) {
        let cli = Cli::try_parse_from([&["stk"], arguments].concat()).unwrap();
        let mut pieces = Vec::new();
        let exit = execute(&cli.command, &mut |text| {
            pieces.push(text.to_owned());
            Ok(())
        });
        (pieces, exit.unwrap())
    }

    #[test]
    fn a_panic_while_a_trace_is_dumped_fails_that_trace() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), stk_tests::traces::trace().finish()).unwrap();
        let path = file.path().to_str().unwrap();
        let cli = Cli::try_parse_from(["stk", "dump", "--no-default-symbols", path]).unwrap();
        let failed = execute(&cli.command, &mut |_| panic!("out of range")).unwrap_err().to_string();
        assert!(failed.starts_with(path) && failed.ends_with("out of range"), "{failed}");
    }

    #[test]
    fn json_of_many_traces_is_written_trace_by_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (one, none, other) = (path("one.stk"), path("none.stk"), path("other.stk"));
        for path in [&one, &other] {
            std::fs::write(path, stk_tests::traces::trace().finish()).unwrap();
        }
        std::fs::write(&none, "no trace").unwrap();
        let commands: [&[&str]; 2] = [&["info", "--json"], &["stats", "--json", "--no-default-symbols"]];
        for command in commands {
            let (pieces, exit) = pieces(&[command, &[&one, &none, &other]].concat());
            // One piece per trace, and the end.
            assert_eq!((pieces.len(), exit), (3, Exit::Failure), "{command:?}: {pieces:?}");
            assert!(pieces[0].contains("one.stk") && pieces[1].contains("other.stk"), "{pieces:?}");
            let whole: serde_json::Value = serde_json::from_str(&pieces.concat()).unwrap();
            assert_eq!(whole["traces"].as_array().map(Vec::len), Some(2));
        }
    }

    #[test]
    fn failure_is_worse_than_damage() {
        assert_eq!(Exit::Ok.worse(Exit::Damaged), Exit::Damaged);
        assert_eq!(Exit::Failure.worse(Exit::Damaged), Exit::Failure);
    }
}
