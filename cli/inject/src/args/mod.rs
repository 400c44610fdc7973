//! Parses and checks the command line and turns it into an [`Action`].

mod action;
mod values;

pub(crate) use action::{Action, Record, Request, Target, Top};

use crate::label::Label;
use crate::name_pattern::NamePattern;
use crate::options::{self, AgentOption};
use crate::{duration, pattern};
use clap::{ArgGroup, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use stk_schema::control;
use stk_schema::{limits, requests};
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
        None => Ok(Action::Record(Box::new(cli.record.into()))),
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
  inject --pid 4404 --flight 30s          keep the last 30 s in memory, and write them when
  inject snap --pid 4404                  this asks for them, or a mark, or the process's end
  inject status                           how the recordings of this machine are going
  inject top --pid 4404                   what it does now: functions by CPU, threads and what they wait for
  inject mark --pid 4404 \"build 7 loaded\"  mark this moment in the trace: stk events shows it
  inject --pid 4404 --paused              be ready; sample from inject resume --pid 4404 on
  inject stop --pid 4404                  end a recording from elsewhere; --all: every one
  inject stop --pid 4404 --unload         and have agent.dll leave the process
  inject doctor --json -o doctor.json     what this system is and what may get in the way: send it with a report

The trace is read by `stk` on any system: stk info, stk stats, stk convert a.stk --to speedscope.

Exit codes: 0 recorded; 1 failed; 2 wrong usage; 3 no such process, denied or wrong architecture; 130 ended by
Ctrl-C, the trace is complete. With `-- PROGRAM` the program's own code, or 125 if inject failed, 126 if the program
cannot be run, 127 if it was not found.";

/// Record the stacks of a running Windows process into a .stk trace.
///
/// Puts agent.dll into the process, which then samples every thread. No administrator rights are
/// needed for one's own processes, no debugger is attached, and the process goes on while and after
/// it is recorded.
#[derive(Parser, Debug)]
#[command(
    name = "inject",
    version,
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
        /// that is not safe, inject says why, and the exit code is 1; the recording has ended all
        /// the same. With --all: of the processes that are being recorded
        #[arg(long)]
        unload: bool,
    },
    /// Write what a recording in memory (--flight) holds now to a file
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
    /// Go on with a recording that is paused
    Resume {
        #[command(flatten)]
        target: RecordedArgs,
    },
    /// Say how recordings are going: time, threads, samples, what was dropped, size
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

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).multiple(false).args(["pid", "name", "wait_for", "program"]))]
struct RecordArgs {
    /// The process to record. Repeated: several processes at once, a trace each
    #[arg(short, long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,

    /// The process with this program file name, if there is exactly one; or, with any of *?+|()[],
    /// a regular expression: every process whose whole name fits it, in upper or lower case
    #[arg(short, long, value_name = "EXE|RE", value_parser = name_pattern)]
    name: Option<String>,

    /// The next process with this program file name (or a name that fits this regular expression)
    /// that starts. It is looked for every 10 ms; how long it ran before inject came to it is in
    /// the trace
    #[arg(long, value_name = "EXE|RE", value_parser = name_pattern)]
    wait_for: Option<String>,

    /// Also record the processes that it starts, and theirs, and those that run already: a trace
    /// each, with the same options (%p in the name of -o). New ones are looked for every 10 ms;
    /// inject ends when all of them are recorded to their end. --duration counts for all together
    #[arg(long, conflicts_with = "detach")]
    children: bool,

    /// The agent [default: agent.dll beside inject.exe]
    #[arg(value_name = "AGENT_DLL")]
    dll: Option<PathBuf>,

    /// The trace; %n stands for the program's name, %p for its pid, %h for the host, %t for the
    /// time
    #[arg(short, long, value_name = "FILE", default_value = pattern::DEFAULT, value_parser = output)]
    output: OsString,

    /// Move the trace to this folder when it is whole: the copy is read back and compared before
    /// the local file is deleted. A trace whose -o lies on a network share is written to the folder
    /// for temporary files, and moved to its place in the same way
    #[arg(long, value_name = "DIR", conflicts_with = "flight")]
    move_to: Option<PathBuf>,

    /// Replace the trace if there is a file of its name. Links are never followed
    #[arg(long)]
    force: bool,

    /// Leave the command lines of the process and of inject out of the trace. Copies in the
    /// process's memory, such as on its stacks, are recorded all the same
    #[arg(long)]
    no_command_line: bool,

    /// A label for the trace, such as build=1234: `stk` shows and selects by it. May be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = Label::parse)]
    labels: Vec<Label>,

    /// Samples per second and thread, 0.001 to 20000
    #[arg(short, long, value_name = "HZ", default_value = "1000", value_parser = rate_mhz)]
    rate: u32,

    /// Which threads to sample: all, main (the one that was created first), name=PATTERN (* and ?;
    /// also threads that come or get their names later) or tid=N. May be repeated: threads that fit
    /// any of them [default: all]
    #[arg(long, value_name = "WHICH", value_parser = options::threads)]
    threads: Vec<AgentOption>,

    /// Most CPU time of the recorder, in percent of one processor, such as 2 or 0.5. The rate falls
    /// before more is used, and the trace says so [default: 25 for the sampler]
    #[arg(long, value_name = "PCT", value_parser = options::max_overhead)]
    max_overhead: Option<AgentOption>,

    /// What makes a thread sample itself the moment it happens: exception (any that is an error),
    /// exception=CODE, breakpoint, module:NAME (the load of a module whose file name fits; * and
    /// ?). "cpu>PCT" leaves a mark when the process begins to use more than that of one processor,
    /// and api one for each capture that the program asks for itself (stk_capture); with --flight,
    /// each of them has the last seconds written. `stk events` lists them. May be repeated
    #[arg(long, value_name = "WHAT", value_parser = options::trigger)]
    trigger: Vec<AgentOption>,

    /// Time to record, such as 10, 10s, 1m30s [default: until Ctrl-C, `inject stop` or the
    /// process's end]
    #[arg(short, long, value_name = "TIME", value_parser = positive_ms)]
    duration: Option<u32>,

    /// Time to wait before the first sample
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = duration::parse_ms)]
    delay: u32,

    /// Begin paused: everything is ready, and threads are sampled from `inject resume` on. The time
    /// of --duration begins then
    #[arg(long, conflicts_with = "delay")]
    paused: bool,

    /// Most stack bytes to keep per sample, such as 64k or 1M [default: the whole stack, up to 8
    /// MiB]
    #[arg(long, value_name = "MAX", value_parser = stack_bytes)]
    stack_bytes: Option<u32>,

    /// Which words of stacks go into the trace, and which registers. `pointers` stores zeros for
    /// those that are no addresses of mapped memory: stacks are walked as before, and the trace
    /// holds less of the program's data (docs/recording.md says what is left)
    #[arg(long, value_enum, default_value_t = StackWords::All)]
    stack_words: StackWords,

    /// What of each module goes into the trace
    #[arg(long, value_enum, default_value_t = Embed::Unwind)]
    embed: Embed,

    /// Store modules' tables in this folder, shared by many traces, instead of in each trace
    #[arg(long, value_name = "DIR")]
    tables: Option<PathBuf>,

    /// Where .NET's data access library may lie (mscordaccore.dll, mscordacwks.dll) if it is not
    /// beside the runtime: folders and local symbol stores as in a debugger's symbol path, before
    /// those of _NT_SYMBOL_PATH; servers are not asked. May be repeated
    #[arg(short = 'y', long, value_name = "PATH")]
    symbol_path: Vec<String>,

    /// Take one sample of every thread, then stop
    #[arg(long, conflicts_with = "duration")]
    once: bool,

    /// Also have the system's own unwinder walk each stack while its thread is suspended, for `stk
    /// verify --walks` (x64 only; a diagnostic, not for production: it can stop a thread for 50 ms)
    #[arg(long)]
    check_walks: bool,

    /// How long the process may take to load the agent
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = positive_ms)]
    timeout: u32,

    /// Most bytes of the trace, such as 500M or 4G, 0 for no limit: the recording ends before they
    /// are exceeded, and the trace is whole [default: 4G, or a tenth of the disk's free space if
    /// that is less]
    #[arg(long, value_name = "SIZE", value_parser = trace_bytes)]
    max_size: Option<u64>,

    /// Write no file, but keep the last so many seconds in memory (1s to 1h, as far as 40 MiB hold
    /// them). A mark of the program, `inject snap` and the end of the process write them, to
    /// numbered files: a-1.stk, a-2.stk for -o a.stk. --max-size then limits all of them together
    #[arg(long, value_name = "TIME", value_parser = flight_ms, conflicts_with_all = ["once", "tables"])]
    flight: Option<u32>,

    /// Return once the recording has begun. A copy of inject stays behind, without a window, until
    /// the recording ends (by --duration, `inject stop` or the process's end); if that copy is
    /// ended, the recording ends too
    #[arg(long, conflicts_with = "program")]
    detach: bool,

    /// Internal: how the copy that --detach leaves tells that the recording has begun.
    #[arg(long, hide = true, value_name = "HANDLE", conflicts_with = "program")]
    begun_event: Option<u64>,

    /// Internal: which of several processes this copy of inject records.
    #[arg(long, hide = true, value_name = "PID", conflicts_with = "program")]
    only_pid: Option<u32>,

    /// Internal: milliseconds that are left of the duration.
    #[arg(long, hide = true, value_name = "MS", requires = "only_pid")]
    only_ms: Option<u32>,

    /// Fault injection for the tests: the sampler stops for ever in this phase of a suspension
    /// (stk_schema::guard) after a second; 8 = the writer, between two blocks; 9 =
    /// the agent panics where the process ends.
    #[arg(long, hide = true, value_name = "PHASE", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=9))]
    test_freeze: u32,

    /// Fault injection for the tests: the agent panics after a second.
    #[arg(long, hide = true)]
    test_panic: bool,

    /// For the tests, which have one user: the process counts as another user's, so that nothing
    /// that it or its user can write is trusted.
    #[arg(long, hide = true)]
    test_below: bool,

    /// Start this program and record it from its first instruction on
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Debug)]
enum StackWords {
    /// All of them, whatever they hold
    All,
    /// Addresses of mapped memory only; zeros for the others
    Pointers,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Embed {
    /// Nothing: offline work needs the image files
    None,
    /// Unwind data and export names: stacks need nothing but the trace
    Unwind,
    /// Executable sections too
    Full,
}

impl From<RecordArgs> for Record {
    fn from(args: RecordArgs) -> Record {
        let target = match (&args.pid[..], args.name, args.wait_for) {
            _ if args.only_pid.is_some() => Target::Pid(args.only_pid.unwrap_or_default()),
            ([], Some(name), _) => Target::Name(name),
            ([], None, Some(name)) => Target::WaitFor(name),
            ([], None, None) => Target::Launch(args.program),
            ([pid], ..) => Target::Pid(*pid),
            _ => Target::Pids(args.pid),
        };
        let mut flags = 0;
        for (on, flag) in [
            (args.once, control::FLAG_ONCE),
            (args.check_walks, control::FLAG_CHECK_WALKS),
            (args.no_command_line, control::FLAG_NO_COMMAND_LINE),
            (args.stack_words == StackWords::Pointers, control::FLAG_POINTERS_ONLY),
            (args.flight.is_some(), control::FLAG_FLIGHT),
            (args.paused, control::FLAG_PAUSED),
            (args.test_panic, control::FLAG_TEST_PANIC),
        ] {
            flags |= if on { flag } else { 0 };
        }
        flags |= args.test_freeze << control::TEST_FREEZE_SHIFT;
        Record {
            target,
            dll: args.dll,
            output: args.output,
            move_to: args.move_to,
            force: args.force,
            command_line: !args.no_command_line,
            labels: args.labels,
            one_of_several: args.only_pid.is_some(),
            options: [args.threads, args.max_overhead.into_iter().collect(), args.trigger].concat(),
            rate_mhz: args.rate,
            // The copies of inject do not watch for children.
            children: args.children && args.only_pid.is_none(),
            duration_ms: args.only_ms.or(args.duration).unwrap_or(0),
            delay_ms: args.delay,
            max_stack_bytes: args.stack_bytes.unwrap_or(0),
            embed: match args.embed {
                Embed::None => control::EMBED_NONE,
                Embed::Unwind => control::EMBED_UNWIND,
                Embed::Full => control::EMBED_FULL,
            },
            tables: args.tables,
            symbol_path: args.symbol_path,
            flags,
            below: args.test_below,
            timeout_ms: args.timeout,
            max_bytes: args.max_size,
            flight_ms: args.flight.unwrap_or(0),
            // The copy has the same command line.
            detach: args.detach && args.begun_event.is_none(),
            begun_event: args.begun_event,
        }
    }
}

#[cfg(test)]
mod tests;
