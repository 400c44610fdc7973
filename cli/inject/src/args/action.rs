//! What a command line asks for, parsed and checked.

use crate::record::label::Label;
use crate::record::options::AgentOption;
use crate::rotate::Rotation;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The command that the user gave.
#[derive(Debug)]
pub(crate) enum Action {
    Record(Box<Record>),
    Ps {
        json: bool,
    },
    /// Describe this system and check that it is as the recorder expects.
    Doctor {
        /// A process to check too.
        pid: Option<u32>,
        json: bool,
        /// File for the report; `None` is the standard output.
        output: Option<PathBuf>,
        /// Whether a file that is there may be replaced.
        force: bool,
    },
    /// End the recording of a process, or all recordings.
    Stop {
        target: Target,
        /// Milliseconds that the agent may take.
        timeout_ms: u32,
        /// Whether the agent leaves the process then.
        unload: bool,
    },
    /// Have the last seconds of a recording with --flight written to a file.
    Snap {
        target: Target,
        /// Milliseconds that the inject that records may take.
        timeout_ms: u32,
    },
    /// Say how recordings are going.
    Status {
        target: Target,
        json: bool,
    },
    /// Show what a process does now.
    Top(Top),
    /// Ask the agents of recordings for something.
    Ask {
        target: Target,
        request: Request,
    },
}

/// What `inject top` shows, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Top {
    pub target: Target,
    /// agent.dll; `None` = beside inject.exe.
    pub dll: Option<PathBuf>,
    /// Rate in millihertz.
    pub rate_mhz: u32,
    /// Whether to print one screen and end.
    pub once: bool,
    /// Further arguments for `stk top`.
    pub stk_arguments: Vec<OsString>,
}

/// What inject asks the agent of a recording for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Mark this moment with a text.
    Mark(String),
    /// Sample no thread until further notice.
    Pause,
    /// Sample again.
    Resume,
}

/// How the user names the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// By its id.
    Pid(u32),
    /// Several, by their ids.
    Pids(Vec<u32>),
    /// By its program's file name, which exactly one process must have, or by a pattern of names
    /// ([`crate::process::name_pattern`]), which several may have.
    Name(String),
    /// The next process whose program has this name, or a name of this pattern.
    WaitFor(String),
    /// One that inject starts: program and arguments.
    Launch(Vec<OsString>),
    /// Every process that is being recorded.
    Recorded,
}

#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// The process to record.
    pub target: Target,
    /// agent.dll; `None` = beside inject.exe.
    pub dll: Option<PathBuf>,
    /// Output file; see [`crate::record::pattern`].
    pub output: OsString,
    /// Folder to which the trace is moved when it is whole.
    pub move_to: Option<PathBuf>,
    /// Whether a file that is there may be replaced; a trace is renamed.
    pub force: bool,
    /// Whether the command lines of the process and of inject go into the trace.
    pub command_line: bool,
    /// The user's labels for the trace.
    pub labels: Vec<Label>,
    /// Whether this inject is one of several with the same console, and so prints no status line.
    pub one_of_several: bool,
    /// Options that the agent gets as texts.
    pub options: Vec<AgentOption>,
    /// Whether the processes that it starts are recorded too.
    pub children: bool,
    /// Whether a child that is not recorded to its end is no failure.
    pub may_miss_children: bool,
    /// Rate in millihertz.
    pub rate_mhz: u32,
    /// Milliseconds to record; 0 = until stopped.
    pub duration_ms: u32,
    /// Milliseconds before the first sample.
    pub delay_ms: u32,
    /// Most stack bytes per sample; 0 = the format's limit.
    pub max_stack_bytes: u32,
    /// `control::EMBED_*`.
    pub embed: u32,
    /// Folder of shared tables.
    pub tables: Option<PathBuf>,
    /// Symbol paths with a runtime's data access library.
    pub symbol_path: Vec<String>,
    /// `control::FLAG_*`.
    pub flags: u32,
    /// Whether to treat the process as one of a user below inject's.
    pub below: bool,
    /// Milliseconds that the target may take to load the agent.
    pub timeout_ms: u32,
    /// How long the recorder may stand still.
    pub stall: Duration,
    /// Most bytes of the trace; `None` = chosen by the disk's free space, 0 = no limit.
    pub max_bytes: Option<u64>,
    /// Milliseconds to keep in a ring of files in place of a trace; 0 = write a trace.
    pub flight_ms: u32,
    /// When to continue in another file, and how many to keep.
    pub rotation: Rotation,
    /// Whether to return once the recording has begun and leave a copy of inject running as its
    /// guard.
    pub detach: bool,
    /// Whether to show the trace when it is whole.
    pub open: bool,
    /// Handle of the event that such a copy sets when the recording has begun.
    pub begun_event: Option<u64>,
}
