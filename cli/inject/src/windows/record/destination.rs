//! Where a recording goes: a file, or memory.

use super::finisher::FileEnding;
use crate::args::Record;
use crate::delivery::Route;
use crate::failure::Failure;
use crate::messages::{self, say};
use crate::pattern;
use crate::windows::complete;
use crate::windows::deliver;
use crate::windows::flight::{self, FlightPlan, FlightSection, FlightThread};
use crate::windows::output::{IfThere, Output};
use crate::windows::process::Process;
use crate::windows::system;
use std::os::windows::io::BorrowedHandle;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a recording goes.
pub(super) enum Destination {
    /// Into a file, and what happens to it after its end; `None` once that has begun.
    File(Option<FileEnding>),
    /// Into memory, from which this thread writes files.
    Memory(Option<FlightThread>),
}

/// What the agent writes to.
pub(super) enum Opened {
    /// A file, and where it is moved to at the end.
    File(Output, Option<PathBuf>),
    Memory(Arc<FlightSection>, FlightPlan),
}

impl Opened {
    pub(super) fn new(record: &Record, process: &Process) -> Result<Opened, Failure> {
        let path = output_path(record, process)?;
        if record.flight_ms == 0 {
            return Opened::file(record, path);
        }
        let path = std::path::absolute(&path).unwrap_or(path);
        if !path.parent().is_some_and(Path::is_dir) {
            let shown = messages::file(&path);
            return Err(Failure::failed(format!(
                "{shown}: there is no such folder: choose another file with -o"
            )));
        }
        let plan = FlightPlan {
            path,
            force: record.force,
            window_ms: record.flight_ms,
            embed: record.embed,
            max_bytes: record.max_bytes,
        };
        Ok(Opened::Memory(Arc::new(FlightSection::new(record.flight_ms)?), plan))
    }

    /// The file that the user wants at this path.
    fn file(record: &Record, path: PathBuf) -> Result<Opened, Failure> {
        Opened::routed(record, deliver::route(path, record.move_to.as_deref(), record.force)?)
    }

    /// A file that takes this way.
    pub(super) fn routed(record: &Record, route: Route) -> Result<Opened, Failure> {
        Ok(Opened::File(Output::open(&route.local, IfThere::for_trace(record.force))?, route.goal))
    }

    pub(super) fn empty(&self) -> Result<(), Failure> {
        match self {
            Opened::File(output, _) => output.empty(),
            Opened::Memory(..) => Ok(()),
        }
    }

    pub(super) fn handle(&self) -> BorrowedHandle<'_> {
        match self {
            Opened::File(output, _) => output.handle(),
            Opened::Memory(section, _) => section.handle(),
        }
    }

    /// The most bytes without `--max-size`; 0 = no limit.
    pub(super) fn default_limit(&self) -> u64 {
        match self {
            Opened::File(output, _) => output.default_limit(),
            // The ring has no end.
            Opened::Memory(..) => 0,
        }
    }

    /// The most bytes of a recording into this alone; 0 = no limit.
    pub(super) fn limit(&self, record: &Record) -> u64 {
        match self {
            Opened::File(..) => record.max_bytes.unwrap_or_else(|| self.default_limit()),
            Opened::Memory(..) => 0,
        }
    }

    /// Leaves it to the agent, whose recording of the trace with this UUID has begun.
    pub(super) fn begin(self, record: &Record, uuid: [u8; 16]) -> Result<(PathBuf, Destination), Failure> {
        match self {
            Opened::File(output, goal) => {
                let (path, trace) = output.keep();
                let tables = record.tables.clone();
                let wanted = complete::CompletionRequest { embed: record.embed, tables, trace };
                let goal = goal.map(|goal| (goal, record.force));
                let ending = FileEnding { path: path.clone(), uuid, wanted, dropped: 0, goal };
                Ok((path, Destination::File(Some(ending))))
            }
            Opened::Memory(section, plan) => {
                let path = plan.path.clone();
                Ok((path, Destination::Memory(Some(FlightThread::start(section, plan)?))))
            }
        }
    }

    /// Says that a recording into this begins.
    pub(super) fn say_begun(&self, process: &Process) {
        match self {
            Opened::File(output, goal) => {
                say(&messages::recording(process, output.path()));
                if let Some(goal) = &goal {
                    say(&format!("it is moved to {} when it is whole", goal.display()));
                }
            }
            Opened::Memory(_, plan) => say(&flight::begun(process, plan)),
        }
    }
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
