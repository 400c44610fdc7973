//! Parses and checks the command line and turns it into an [`Action`].

mod action;
mod record;
mod values;

pub(crate) use action::{Action, Record, Request, Target, Top};

use crate::duration;
use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use record::RecordArgs;
use std::ffi::OsString;
use std::path::PathBuf;
use values::*;

/// Reads a command line, the program's name first.
///
/// # Errors
/// clap's error, with its text and exit code. `--help` and `--version` are such errors too.
pub(crate) fn parse<I: IntoIterator<Item = OsString>>(line: I) -> Result<Action, clap::Error> {
    let matches = Cli::command().try_get_matches_from(line)?;
    let cli = Cli::from_arg_matches(&matches)?;
    match cli.command {
        Some(Command::Ps { json }) => Ok(Action::Ps { json }),
        Some(Command::Doctor { pid, json, output, force }) => Ok(Action::Doctor { pid, json, output, force }),
        Some(Command::Stop { target, timeout, unload }) => {
            Ok(Action::Stop { target: target.target(), timeout_ms: timeout, unload })
        }
        Some(Command::Snap { target, timeout }) => {
            Ok(Action::Snap { target: target.target(), timeout_ms: timeout })
        }
        Some(Command::Status { pid, json }) => {
            Ok(Action::Status { target: pid.map_or(Target::Recorded, Target::Pid), json })
        }
        Some(Command::Top(args)) => Ok(Action::Top(args.into())),
        Some(Command::Mark { target, text }) => {
            Ok(Action::Ask { target: target.target(), request: Request::Mark(text) })
        }
        Some(Command::Pause { target }) => {
            Ok(Action::Ask { target: target.target(), request: Request::Pause })
        }
        Some(Command::Resume { target }) => {
            Ok(Action::Ask { target: target.target(), request: Request::Resume })
        }
        None => {
            let rotation = cli
                .record
                .check()
                .and_then(|()| cli.record.labels_once())
                .and_then(|()| cli.record.rotation());
            let rotation = rotation.map_err(|(kind, text)| Cli::command().error(kind, text))?;
            Ok(Action::Record(Box::new(Record { rotation, ..cli.record.into() })))
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  inject --pid 4404                       record until Ctrl-C, into <name>-4404-<time>.stk
  inject --pid 4404 agent.dll -o a.stk -d 10s
  inject --name app.exe -r 500 -d 1m      by name, 500 samples a second and thread, one minute
  inject --pid 4404 --pid 4408 -d 1m      several processes, a trace each
  inject --name 'worker.*' --label build=1234 -o '%h-%n-%p-%t.stk'
                                          every process whose name fits; host in the names, a label in the traces
  inject --wait-for app.exe               the next app.exe that starts
  inject -o 'traces\\%n-%p.stk' -- app.exe --its-own option
  inject --pid 4404 -y C:\\symbols          names of a .NET without diagnostics pipe: its library is in this symbol store
  inject --pid 4404 --threads main --threads 'name=worker*' --max-overhead 2
                                          some threads, with at most 2 % of a processor
  inject --pid 4404 --trigger exception --trigger 'module:evil*.dll'
                                          also a stack of each exception and each load of such a DLL
  inject ps                               which processes can be recorded, and why not
  inject --pid 4404 --detach -d 1h        return to the prompt and record for an hour
  inject --pid 4404 --rotate 10m --rotate 256M --keep 50 --detach
                                          for weeks: a file for each 10 minutes or 256 MiB, the last 50 are kept
  inject --pid 4404 --flight 30s          keep only the last 30 s, and write them when
  inject snap --pid 4404                  this asks for them, or a mark, or the process's end
  inject status                           how the recordings of this machine are going
  inject top --pid 4404                   what it does now: functions by CPU, threads and what they wait for
  inject mark --pid 4404 \"build 7 loaded\"  mark this moment in the trace: stk events shows it
  inject --pid 4404 --paused              be ready; sample from inject resume --pid 4404 on
  inject stop --pid 4404                  end a recording from elsewhere; --all: every one
  inject stop --pid 4404 --unload         and have agent.dll leave the process
  inject doctor --json -o doctor.json     what this system is and what may get in the way: send it with a report

The trace is read by `stk` on any system: stk info, stk stats, stk convert a.stk --to speedscope.

Exit codes: 0 recorded; 1 failed; 2 wrong usage; 3 no such process, denied or wrong architecture; 9 a
child process of --children was missed; 130 ended by Ctrl-C, the trace is complete. With `-- PROGRAM` the program's own code, or 125 if inject failed, 126 if the program
cannot be run, 127 if it was not found.";

/// Record the stacks of a running Windows process into a .stk trace.
///
/// Puts agent.dll into the process, which then samples every thread. No administrator rights are
/// needed for one's own processes, no debugger is attached, and the process runs on while and
/// after it is recorded.
#[derive(Parser, Debug)]
#[command(
    name = "inject",
    version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("STK_BUILD_COMMIT"), ")"),
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "inject --pid PID [AGENT_DLL] [OPTIONS]\n       inject --name EXE [AGENT_DLL] [OPTIONS]\n       \
                      inject --wait-for EXE [OPTIONS]\n       inject [OPTIONS] -- PROGRAM [ARGS]...\n       inject ps [--json]\n       inject status [--pid PID] [--json]\n       inject stop|pause|resume|snap --pid PID\n       inject mark --pid PID TEXT\n       inject top --pid PID [--once]\n       inject doctor [--pid PID] [--json] [-o FILE]"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    record: RecordArgs,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// List the processes: pid, name, architecture, .NET or not, whether recordable and why not
    Ps {
        /// Print JSON, as schema/ps.schema.json describes it
        #[arg(long)]
        json: bool,
    },
    /// Check this system: what it is, whether it looks as the recorder expects, and what may get in
    /// the way. One file to send with a report
    Doctor {
        /// Also look at this process, without changing anything in it
        #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
        pid: Option<u32>,
        /// Print JSON, as schema/doctor.schema.json describes it
        #[arg(long)]
        json: bool,
        /// Write the report to this file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it is there
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// End the recording of a process and finalise its trace
    Stop {
        #[command(flatten)]
        target: TargetArgs,
        /// How long the agent may take to write the end of the trace
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse_ms)]
        timeout: u32,
        /// Then have the agent leave the process, also one that is not being recorded any more. If
        /// that is not safe, inject says why, and the exit code is 1; the recording has ended
        /// anyway. With --all: of the processes that are being recorded
        #[arg(long)]
        unload: bool,
    },
    /// Write the last seconds of a recording with --flight to a file
    Snap {
        #[command(flatten)]
        target: TargetArgs,
        /// How long the inject that records may take to write it
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse_ms)]
        timeout: u32,
    },
    /// Show what a process does now: functions by CPU, threads and what they wait for, refreshed
    /// each second. Records to a temporary file, which `stk top` beside inject shows
    Top(TopArgs),
    /// Mark this moment in the traces of recordings: `stk events` shows it
    Mark {
        #[command(flatten)]
        target: RecordedArgs,
        /// What happened, at most 256 bytes
        #[arg(value_name = "TEXT", value_parser = mark_text)]
        text: String,
    },
    /// Sample no thread of a recording until `inject resume`; marks and captures are still taken.
    /// The trace says so, and no time is counted
    Pause {
        #[command(flatten)]
        target: RecordedArgs,
    },
    /// Continue a recording that is paused
    Resume {
        #[command(flatten)]
        target: RecordedArgs,
    },
    /// Say how recordings are going: time, threads, samples, what was dropped, size; with --rotate,
    /// of the present file and of all files together
    Status {
        /// Only of this process [default: every process that is being recorded]
        #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
        pid: Option<u32>,
        /// Print JSON, as schema/status.schema.json describes it
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("shown").required(true).multiple(false).args(["pid", "name"]))]
struct TopArgs {
    /// The process
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// The process with this program file name, if there is exactly one
    #[arg(short, long, value_name = "EXE")]
    name: Option<String>,
    /// The agent [default: agent.dll beside inject.exe]
    #[arg(value_name = "AGENT_DLL")]
    dll: Option<PathBuf>,
    /// Samples per second and thread
    #[arg(short, long, value_name = "HZ", default_value = "200", value_parser = rate_mhz)]
    rate: u32,
    /// Print one screen as plain text, and end
    #[arg(long)]
    once: bool,
    /// Options of `stk top`, such as -y SYMBOLS or --my-code
    #[arg(last = true, value_name = "STK_OPTIONS")]
    stk: Vec<OsString>,
}

impl From<TopArgs> for Top {
    fn from(args: TopArgs) -> Top {
        Top {
            target: args.pid.map_or_else(|| Target::Name(args.name.unwrap_or_default()), Target::Pid),
            dll: args.dll,
            rate_mhz: args.rate,
            once: args.once,
            stk_arguments: args.stk,
        }
    }
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct RecordedArgs {
    /// The recorded process. Repeated: several
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,
    /// The process with this program file name, or, with any of *?+|()[], every process whose name
    /// fits this regular expression
    #[arg(short, long, value_name = "EXE|RE", value_parser = name_pattern)]
    name: Option<String>,
    /// Every process that is being recorded
    #[arg(long)]
    all: bool,
}

impl RecordedArgs {
    fn target(self) -> Target {
        match self.name {
            _ if self.all => Target::Recorded,
            Some(name) => Target::Name(name),
            None => Target::Pids(self.pid),
        }
    }
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct TargetArgs {
    /// The process that is being recorded
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// The process with this program file name, if there is exactly one
    #[arg(short, long, value_name = "EXE")]
    name: Option<String>,
    /// Every process that is being recorded
    #[arg(long)]
    all: bool,
}

impl TargetArgs {
    fn target(self) -> Target {
        match (self.pid, self.name) {
            _ if self.all => Target::Recorded,
            (Some(pid), _) => Target::Pid(pid),
            (None, name) => Target::Name(name.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests;
