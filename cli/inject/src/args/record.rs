//! The options of a recording.

use super::Record;
use super::action::Target;
use super::values::*;
use crate::duration;
use crate::flight;
use crate::record::label::Label;
use crate::record::options::{self, AgentOption};
use crate::record::{pattern, stall};
use crate::rotate::{self, Rotation};
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use stk_schema::control;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("target").required(true).multiple(false).args(["pid", "name", "wait_for", "program"]))]
pub(super) struct RecordArgs {
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

    /// A child process that is not recorded to its end, say since it ended before it could be, is
    /// no failure: else the exit code is 9, or 125 with -- PROGRAM
    #[arg(long, requires = "children")]
    allow_missed_children: bool,

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
    #[arg(long, value_name = "DIR")]
    move_to: Option<PathBuf>,

    /// If there is a file of the trace's name: a trace is renamed to NAME.old (NAME.old.2 and so on
    /// if that is taken), any other file is replaced. Links are never followed
    #[arg(long)]
    force: bool,

    /// Leave the command lines of the process and of inject out of the trace. Copies in the
    /// process's memory, such as on its stacks, are still recorded
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
    /// holds less of the program's data (docs/concepts/privacy.md says what is left)
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
    /// those of _NT_SYMBOL_PATH; servers are not contacted. May be repeated
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

    /// Continue in a new file after this time, such as 60s or 1h, or when the file has this size,
    /// such as 256M (m is minutes, M is MiB); repeated: whichever comes first. The files are
    /// numbered: a.0001.stk, a.0002.stk for -o a.stk; each is a whole trace, without a gap between
    /// two. `stk merge` puts them on one time line.
    /// --duration and --max-size are for all of them together
    #[arg(long, value_name = "TIME|SIZE", value_parser = rotate_at)]
    rotate: Vec<RotateAt>,

    /// With --rotate: keep the last N files, the one that is being written included, and delete
    /// older ones of this recording. --max-size then bounds the files that are kept: each gets an
    /// N-th of it, and the recording continues
    #[arg(long, value_name = "N", requires = "rotate", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    keep: Option<u32>,

    /// Keep the last so many seconds (1s to 1h) in a ring of files in a private folder below TEMP,
    /// which are deleted at the end. A mark of the program, `inject snap` and the end of the
    /// process write a trace of them, to numbered files: a-1.stk, a-2.stk for -o a.stk. --max-size
    /// then limits all of these together
    #[arg(long, value_name = "TIME", value_parser = flight_ms)]
    flight: Option<u32>,

    /// Return once the recording has begun. A copy of inject stays behind, without a window, until
    /// the recording ends (by --duration, `inject stop` or the process's end); if that copy is
    /// ended, the recording ends too
    #[arg(long, conflicts_with = "program")]
    detach: bool,

    /// Show the trace when it is whole: `stk open`, by the stk.exe beside inject.exe. For one trace
    /// of one process
    #[arg(long, conflicts_with_all = ["detach", "children", "rotate", "flight"])]
    open: bool,

    /// Internal: how the copy that --detach leaves reports that the recording has begun.
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

    /// For the tests: how long the recorder may stand still.
    #[arg(long, hide = true, value_name = "TIME", value_parser = positive_ms)]
    test_stall: Option<u32>,

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

/// Why options do not go together: clap's kind of error, and what to do.
type Conflict = (ErrorKind, String);

impl RecordArgs {
    /// Whether the options make sense together.
    ///
    /// # Errors
    /// A sentence for the user, when they do not.
    pub(super) fn check(&self) -> Result<(), Conflict> {
        let text = match self.flight {
            Some(_) => self.flight_conflict(),
            None if self.once && !self.trigger.is_empty() => Some(
                "--once ends with one sample of each thread, before a trigger can happen: leave out --once, or --trigger",
            ),
            None => None,
        };
        text.map_or(Ok(()), |text| Err((ErrorKind::ArgumentConflict, text.to_owned())))
    }

    /// Why --flight does not go with the other options, and the way out.
    fn flight_conflict(&self) -> Option<&'static str> {
        if !self.rotate.is_empty() {
            Some(
                "--flight writes no file until something asks for it, so there is none to rotate: leave out --rotate and \
                 ask for files with inject snap, or leave out --flight and keep the last files with --keep",
            )
        } else if self.once {
            Some(
                "--once takes one sample of each thread and ends, so there are no last seconds: leave out --flight, or --once",
            )
        } else if self.tables.is_some() {
            Some(
                "--flight writes its few files with all tables in them: leave out --tables, or leave out --flight and \
                 keep the last files with --rotate and --keep",
            )
        } else if self.move_to.is_some() {
            Some(
                "--flight writes a file only when something asks for it, and to its place at once: name the folder in -o \
                 and leave out --move-to",
            )
        } else {
            None
        }
    }

    /// Whether each label is given once.
    ///
    /// # Errors
    /// A sentence for the user, when one is not.
    pub(super) fn labels_once(&self) -> Result<(), Conflict> {
        let keys: Vec<&str> = self.labels.iter().map(|label| label.key.as_str()).collect();
        match (1..keys.len()).find(|&at| keys[..at].contains(&keys[at])) {
            Some(at) => Err((ErrorKind::ArgumentConflict, format!("--label {} is given twice", keys[at]))),
            None => Ok(()),
        }
    }

    /// The rotation that the options ask for.
    ///
    /// # Errors
    /// A sentence for the user, when they make no sense together.
    pub(super) fn rotation(&self) -> Result<Rotation, Conflict> {
        if let Some(window_ms) = self.flight {
            return Ok(flight::ring(window_ms));
        }
        let mut rotation = Rotation { keep: self.keep.unwrap_or(0), ..Rotation::default() };
        let conflict = |text: &str| Err((ErrorKind::ArgumentConflict, text.to_owned()));
        for at in &self.rotate {
            match at {
                RotateAt::Time(ms) if rotation.every_ms == 0 => rotation.every_ms = *ms,
                RotateAt::Size(bytes) if rotation.bytes == 0 => rotation.bytes = *bytes,
                _ => return conflict("--rotate takes one time and one size: leave one of them out"),
            }
        }
        if self.rotate.is_empty() {
            return Ok(rotation);
        }
        if self.once {
            return conflict(
                "--once takes one sample of each thread, which needs no second file: leave out --rotate",
            );
        }
        match (self.max_size, rotation.keep) {
            (Some(all), keep @ 1..) if all != 0 && all / u64::from(keep) < rotate::LEAST_BYTES => conflict(
                "--max-size leaves less than 1M for each of the files of --keep: allow more, or keep fewer files",
            ),
            _ => Ok(rotation),
        }
    }
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
            may_miss_children: args.allow_missed_children,
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
            stall: args.test_stall.map_or(stall::LIMIT, |ms| Duration::from_millis(ms.into())),
            max_bytes: args.max_size,
            flight_ms: args.flight.unwrap_or(0),
            rotation: Rotation::default(),
            // The copy has the same command line.
            detach: args.detach && args.begun_event.is_none(),
            open: args.open,
            begun_event: args.begun_event,
        }
    }
}
