//! Checks a process, and starts the recording of a file there.

use super::destination::OpenOutput;
use crate::args::Record;
use crate::dac::symbol_path::SymbolPath;
use crate::failure::Failure;
use crate::record::options;
use crate::windows::agent::{self, Agent, AgentFile};
use crate::windows::facts::{self, MetadataEntry};
use crate::windows::process::Process;
use crate::windows::process::remote::{Duplicate, MessageRoom};
use crate::windows::record::guard::{self, GuardThread};
use crate::windows::refusal;
use crate::windows::requests::{self, NextFile};
use crate::windows::system::{self, Event};
use crate::{status, uuid};
use std::os::windows::io::AsHandle as _;
use std::path::Path;
use stk_schema::control::{
    AgentConfig, AgentStatus, CONTROL_VERSION, FLAG_CHECK_WALKS, FLAG_LOADED, FLAG_OPTIONS, FLAG_PAUSED,
    FLAG_ROTATES, STATE_RECORDING,
};
use stk_schema::windows::MACHINE_X64;

/// Starts the recording of each file.
pub(super) struct Starter<'a> {
    pub record: &'a Record,
    pub process: &'a Process,
    pub agent: Agent,
    /// Zero-terminated path of the folder of shared tables; empty = none.
    pub tables: Vec<u16>,
    /// Where the agent reads what the next file needs.
    pub room: MessageRoom<'a>,
}

/// What is different from file to file.
#[derive(Clone, Debug, Default)]
pub(super) struct FilePlan {
    /// Milliseconds to record; 0 = until stopped.
    pub duration_ms: u32,
    /// Milliseconds before the first sample.
    pub delay_ms: u32,
    /// Whether to begin paused.
    pub paused: bool,
    /// Whether inject has just loaded the agent: it then holds a reference of inject's.
    pub loaded: bool,
    /// Most bytes of the file; 0 = no limit.
    pub max_bytes: u64,
    /// Metadata of this file alone.
    pub facts: Vec<MetadataEntry>,
}

/// The agent's recording of a file.
pub(super) struct Running {
    /// The trace's UUID.
    pub uuid: [u8; 16],
    /// Signalled by the agent when the recording has ended.
    pub ended: Event,
    pub status_address: u64,
    /// The status as last read.
    pub status: AgentStatus,
    /// Watches the recorder's threads until the process or the recording ends; `None` if the agent
    /// publishes no board.
    pub guarding: Option<GuardThread>,
}

impl Running {
    /// Whether the recording is paused and has not ended.
    pub(super) fn is_paused(&self) -> bool {
        self.status.paused != 0 && self.status.state == STATE_RECORDING
    }
}

impl Starter<'_> {
    /// Starts the recording of a file.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) fn start(&self, output: &OpenOutput, plan: &FilePlan) -> Result<Running, Failure> {
        let (record, process) = (self.record, self.process);
        let ended =
            Event::new().map_err(|error| Failure::failed(format!("no event could be made: {error}")))?;
        let config = config(record, plan);
        let own = guard::own_process()
            .map_err(|error| Failure::failed(format!("inject cannot be its own guard: {error}")))?;
        let handles = [
            Duplicate::new(process, output.handle())?,
            Duplicate::new(process, ended.handle())?,
            Duplicate::new(process, own.as_handle())?,
        ];
        let texts = agent::StartTexts {
            metadata: facts::bytes(&plan.facts),
            tables: self.tables.clone(),
            options: options::bytes(&record.options),
        };
        let status_address = self.agent.start(process, &config, &texts, handles, record.timeout_ms)?;
        let status = agent::read_status(process, status_address).unwrap_or(status::BLANK);
        let guarding = GuardThread::start(process, &status);
        Ok(Running { uuid: config.uuid, ended, status_address, status, guarding })
    }

    /// Has the recording continue in this file, without a gap: the trace's UUID. `None`: it stays
    /// in its file.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) fn continue_in(
        &mut self,
        output: &OpenOutput,
        plan: &FilePlan,
        number: u32,
    ) -> Result<Option<[u8; 16]>, Failure> {
        let handle = Duplicate::new(self.process, output.handle())?;
        let metadata = facts::bytes(&plan.facts);
        let next = NextFile { config: config(self.record, plan), metadata: &metadata, number };
        let done = requests::continue_in(self.process, &self.agent, &next, handle, &mut self.room)?;
        Ok(done.then_some(next.config.uuid))
    }
}

/// The agent's file, if it can record this process with these options.
pub(super) fn fitting_agent(record: &Record, process: &Process) -> Result<AgentFile, Failure> {
    if process.pid() == std::process::id() {
        return Err(Failure::usage(format!("pid {} is this inject itself", process.pid())));
    }
    let file = AgentFile::open(record.dll.as_deref())?.placed();
    let dll = (file.path.as_path(), &file.image);
    refusal::check(process.machine(), process.handle(), Some(dll))
        .map_err(|refusal| refusal.failure(&process.to_string()))?;
    file.check_exports()?;
    if record.flags & FLAG_CHECK_WALKS != 0 && file.image.machine != MACHINE_X64 {
        return Err(Failure::usage("--check-walks is not supported by the x86 and arm64 agents".to_owned()));
    }
    Ok(file)
}

/// The agent's configuration, without the handles and addresses in its process.
fn config(record: &Record, plan: &FilePlan) -> AgentConfig {
    let mut flags = record.flags & !FLAG_PAUSED;
    flags |= if plan.paused { FLAG_PAUSED } else { 0 };
    flags |= if record.rotation.is_on() { FLAG_ROTATES } else { 0 };
    flags |= if plan.loaded { FLAG_LOADED } else { 0 };
    flags |= if record.options.is_empty() { 0 } else { FLAG_OPTIONS };
    AgentConfig {
        size: size_of::<AgentConfig>() as u32,
        version: CONTROL_VERSION,
        rate_mhz: record.rate_mhz,
        max_stack_bytes: record.max_stack_bytes,
        flags,
        embed: record.embed,
        delay_ms: plan.delay_ms,
        duration_ms: plan.duration_ms,
        uuid: uuid::random(),
        max_bytes: plan.max_bytes,
        ..AgentConfig::BLANK
    }
}

/// The folder's absolute path in the agent's form. Makes the folder if it is missing.
pub(super) fn tables_dir(path: &Path) -> Result<Vec<u16>, Failure> {
    let fail = |error| Failure::failed(format!("--tables {}: {error}", path.display()));
    std::fs::create_dir_all(path).map_err(fail)?;
    Ok(system::wide(std::path::absolute(path).map_err(fail)?.as_os_str()))
}

/// The folders in which a runtime's data access library may lie: first the user's, then those of
/// the debuggers.
pub(super) fn symbol_path(record: &Record) -> SymbolPath {
    let mut path = SymbolPath::default();
    record.symbol_path.iter().for_each(|text| path.add(text, true));
    if let Some(text) = std::env::var_os("_NT_SYMBOL_PATH") {
        path.add(&text.to_string_lossy(), false);
    }
    path
}
