//! Where a recording goes.

use super::finisher::FileEnding;
use crate::args::Record;
use crate::failure::Failure;
use crate::messages::{self, say};
use crate::record::delivery::Route;
use crate::record::pattern;
use crate::windows::flight::FlightPlan;
use crate::windows::output::{IfThere, Output};
use crate::windows::process::Process;
use crate::windows::record::deliver;
use crate::windows::supplement;
use crate::windows::system;
use std::os::windows::io::BorrowedHandle;
use std::path::{Path, PathBuf};

/// What the agent writes to.
pub(super) struct OpenOutput {
    output: Output,
    /// Where it is moved to at the end.
    goal: Option<PathBuf>,
}

impl OpenOutput {
    /// The file that the user wants.
    pub(super) fn new(record: &Record, process: &Process) -> Result<OpenOutput, Failure> {
        let path = output_path(record, process)?;
        OpenOutput::routed(record, deliver::route(path, record.move_to.as_deref(), record.force)?)
    }

    /// A file that takes this way.
    pub(super) fn routed(record: &Record, route: Route) -> Result<OpenOutput, Failure> {
        let output = Output::open(&route.local, IfThere::for_trace(record.force))?;
        Ok(OpenOutput { output, goal: route.goal })
    }

    /// A file of the ring of `--flight`.
    pub(super) fn temporary(path: &Path) -> Result<OpenOutput, Failure> {
        Ok(OpenOutput { output: Output::temporary(path)?, goal: None })
    }

    pub(super) fn empty(&self) -> Result<(), Failure> {
        self.output.empty()
    }

    pub(super) fn handle(&self) -> BorrowedHandle<'_> {
        self.output.handle()
    }

    /// The most bytes without `--max-size`; 0 = no limit.
    pub(super) fn default_limit(&self) -> u64 {
        self.output.default_limit()
    }

    /// The most bytes of a recording into this alone; 0 = no limit.
    pub(super) fn limit(&self, record: &Record) -> u64 {
        record.max_bytes.unwrap_or_else(|| self.default_limit())
    }

    /// Leaves it to the agent, whose recording of the trace with this UUID has begun. Returns what
    /// is to happen to it after its end.
    pub(super) fn begin(self, record: &Record, uuid: [u8; 16]) -> FileEnding {
        let (path, trace) = self.output.keep();
        let tables = record.tables.clone();
        let wanted = supplement::CompletionRequest { embed: record.embed, tables, trace };
        let goal = self.goal.map(|goal| (goal, record.force));
        FileEnding { path, uuid, wanted, dropped: 0, goal }
    }

    /// Says that a recording into this begins.
    pub(super) fn say_begun(&self, process: &Process) {
        say(&messages::recording(process, self.output.path()));
        if let Some(goal) = &self.goal {
            say(&format!("it is moved to {} when it is whole", goal.display()));
        }
    }
}

/// Where the traces of a recording with `--flight` go.
pub(super) fn flight_plan(record: &Record, process: &Process) -> Result<FlightPlan, Failure> {
    let path = output_path(record, process)?;
    let path = std::path::absolute(&path).unwrap_or(path);
    if !path.parent().is_some_and(Path::is_dir) {
        let shown = messages::file(&path);
        return Err(Failure::failed(format!(
            "{shown}: there is no such folder: choose another file with -o"
        )));
    }
    Ok(FlightPlan {
        path,
        force: record.force,
        window_ms: record.flight_ms,
        embed: record.embed,
        max_bytes: record.max_bytes,
    })
}

/// The path of `-o` for a process.
pub(super) fn output_path(record: &Record, process: &Process) -> Result<PathBuf, Failure> {
    let values = pattern::Values {
        name: pattern::program_name(process.name()),
        pid: process.pid(),
        host: &system::host_name(),
        time: &system::local_time(),
    };
    let name = pattern::expand(&record.output, values);
    let path = PathBuf::from(name.map_err(|error| Failure::usage(error.to_string()))?);
    if path.is_dir() {
        let shown = path.display();
        let file = path.join(pattern::DEFAULT);
        return Err(Failure::usage(format!("{shown} is a folder: write -o \"{}\"", file.display())));
    }
    Ok(path)
}
