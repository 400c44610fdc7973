//! The agent inside another process, called through its exports.
//!
//! * `hosts`: the mutex that injects take before they change what the agent does.
//! * `rotation`: recordings in several files, which injects must agree on.

mod hosts;
mod rotation;

use super::mutex::OwnedMutex;
pub(crate) use super::place::AgentFile;
use super::process::{Module, Process};
use super::system;
use crate::exports;
use crate::failure::Failure;
use crate::image::{self, AgentExports, ImageIdentity};
use crate::status;
use crate::windows::load_failure;
use crate::windows::process::remote::{self, Block, Call, Duplicate, RemoteCall};
use rotation::is_between_files;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stk_schema::bytes::u32_in;
use stk_schema::control::{
    AgentConfig, AgentStatus, CONTROL_VERSION, FIRST_STATUS_SIZE, STATE_FAILED, STATE_RECORDING,
    STATE_STOPPING, StartResult,
};

/// An agent loaded in a process.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Where it was loaded from.
    pub path: PathBuf,
    base: u64,
    identity: ImageIdentity,
    exports: AgentExports,
}

/// What the agent reads from its process's memory as it starts.
pub(crate) struct StartTexts {
    /// `key 0 value 0 …`, for the trace.
    pub metadata: Vec<u8>,
    /// Zero-terminated path of the folder of shared tables; empty = none.
    pub tables: Vec<u16>,
    /// `key 0 value 0 …` ([`stk_schema::options`]).
    pub options: Vec<u8>,
}

/// The agents loaded in a process. There is more than one only if copies were loaded from different
/// paths.
pub(crate) fn loaded(process: &Process) -> Vec<Agent> {
    let modules = process.modules_if(&|_, name| name.eq_ignore_ascii_case(image::AGENT_NAME));
    among(process, &modules.unwrap_or_default())
}

fn among(process: &Process, modules: &[Module]) -> Vec<Agent> {
    modules.iter().filter_map(|module| Agent::of(process, module)).collect()
}

/// The agent that is recording the process. Waits for the next file of a recording that is between
/// two.
///
/// # Errors
/// A sentence for the user, when an agent's status cannot be read.
pub(crate) fn recording(process: &Process) -> Result<Option<Agent>, Failure> {
    Ok(recording_with_status(process)?.map(|(agent, _)| agent))
}

/// Looks at a process before it counts as not recorded: a program that loads and unloads modules
/// changes the list while it is read, so that a look may miss the agent.
const LOOKS: u32 = 5;
/// Time between two of them.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// As [`recording`], with the agent's status, which is not one of between two files.
///
/// # Errors
/// As there.
pub(crate) fn recording_with_status(process: &Process) -> Result<Option<(Agent, AgentStatus)>, Failure> {
    for _ in 1..LOOKS {
        match look_for_recording(process)? {
            None if !process.has_ended() => std::thread::sleep(LOOK_AGAIN),
            found => return Ok(found),
        }
    }
    look_for_recording(process)
}

fn look_for_recording(process: &Process) -> Result<Option<(Agent, AgentStatus)>, Failure> {
    for agent in loaded(process) {
        let status = match agent.settled_status(process) {
            // Another inject had it leave meanwhile.
            Err(_) if !agent.is_loaded(process) => continue,
            status => status?,
        };
        if is_recording(status.state) {
            return Ok(Some((agent, status)));
        }
    }
    Ok(None)
}

fn is_recording(state: u32) -> bool {
    matches!(state, STATE_RECORDING | STATE_STOPPING)
}

/// The state (`control::STATE_*`) of the agent among the process's modules, preferably of one that
/// records; `None` without an agent whose status this inject understands.
pub(crate) fn state(process: &Process, modules: &[Module]) -> Option<u32> {
    let agents = among(process, modules);
    let statuses = agents.iter().filter_map(|agent| agent.status(process).ok());
    let states =
        statuses.map(|status| if is_between_files(&status) { STATE_RECORDING } else { status.state });
    states.max_by_key(|state| matches!(*state, STATE_RECORDING | STATE_STOPPING))
}

/// The agent that an earlier recording left in the process.
///
/// # Errors
/// A sentence for the user: the process is being recorded, the agent failed before, or an agent of
/// another version was loaded from the path of `file`.
pub(crate) fn idle(process: &Process, file: &AgentFile) -> Result<Option<Agent>, Failure> {
    let mut usable = Vec::new();
    for agent in loaded(process) {
        let status = match agent.settled_status(process) {
            Ok(status) => status,
            // An agent of another version. `file` can be loaded too, unless it has the same path.
            Err(failure) if process.has_ended() || agent.is_at(&file.path) => return Err(failure),
            Err(_) => continue,
        };
        match status.state {
            STATE_RECORDING | STATE_STOPPING => {
                return Err(Failure::failed(format!(
                    "{process} is being recorded already: end that with inject stop --pid {}",
                    process.pid()
                )));
            }
            STATE_FAILED => {
                return Err(Failure::failed(format!(
                    "the agent failed in {process} before and stays off there ({}): start the program anew",
                    status::message(&status)
                )));
            }
            _ => usable.push(agent),
        }
    }
    usable.sort_by_key(|agent| (!agent.is_at(&file.path), agent.identity != file.image.identity));
    Ok(usable.into_iter().next())
}

/// As [`idle`], with the agent's mutex of hosts if it has one: no other inject has it leave, or
/// starts it, meanwhile.
///
/// # Errors
/// As there, and that another inject has the mutex.
pub(crate) fn idle_and_kept(
    process: &Process,
    file: &AgentFile,
) -> Result<(Option<Agent>, Option<OwnedMutex>), Failure> {
    let Some(agent) = idle(process, file)? else { return Ok((None, None)) };
    match agent.take_hosts(process, HOSTS_MS)? {
        // Another inject may have had it leave before this one got the mutex.
        Some(mutex) => Ok((idle(process, file)?.filter(|found| found.base == agent.base), Some(mutex))),
        None => Ok((Some(agent), None)),
    }
}

/// How long a start waits for another inject that asks the agent for something.
pub(crate) const HOSTS_MS: u32 = 15_000;
/// How long a stop does. It does not depend on the other inject, which may be stopped itself.
const STOP_HOSTS_MS: u32 = 2_000;

/// Loads the agent into the process. Calls `late` if that takes half of the time: it lets a process
/// run that waits for the agent, in case the agent waits for the process.
///
/// # Errors
/// A sentence for the user: the agent was blocked, or was not loaded in time.
pub(crate) fn load(
    process: &Process,
    file: &AgentFile,
    timeout_ms: u32,
    late: impl FnOnce(),
) -> Result<Agent, Failure> {
    let path = system::wide(file.path.as_os_str());
    let bytes: Vec<u8> = path.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let argument = Block::new(process, &bytes)?;
    let load_library = load_library(process)?;
    let thread = RemoteCall::begin(process, load_library, argument.address())?;
    let mut called = thread.wait(timeout_ms / 2);
    if called == Call::TimedOut {
        late();
        called = thread.wait(timeout_ms - timeout_ms / 2);
    }
    match called {
        Call::Returned(_) => {}
        Call::ProcessEnded => {
            return Err(Failure::target(format!("{process} ended while the agent was being loaded")));
        }
        Call::TimedOut => {
            argument.leak();
            return Err(Failure::target(format!(
                "{process} did not load the agent within {} s: its loader lock is held (a DllMain waits) or it is suspended; \
                 try again when it runs, or give it longer with --timeout",
                timeout_ms.div_ceil(1000)
            )));
        }
    }
    // A thread's exit code has 32 bits, too few for an address, so the module list is searched for
    // the agent.
    let found = loaded(process).into_iter().min_by_key(|agent| !agent.is_at(&file.path));
    found.ok_or_else(|| {
        // A process that is ending has no list of modules any more, for some moments before its
        // end.
        if system::wait(process.handle(), ENDING_MS) {
            return Failure::target(format!("{process} ended while the agent was being loaded"));
        }
        Failure::target(format!(
            "{process} could not load {}: {}; allow the file there",
            file.path.display(),
            load_failure::blocked(process, &file.path)
        ))
    })
}

/// Milliseconds after its start within which a process may still be loading kernel32. With
/// `--children` inject comes to it before its first instruction.
const YOUNG_MS: u64 = 5_000;
/// Milliseconds that a process may take to end.
const ENDING_MS: u32 = 300;

/// Address of LoadLibraryW in the process. Waits for it in one that has just been started.
fn load_library(process: &Process) -> Result<u64, Failure> {
    loop {
        let found = loader_function(process, "LoadLibraryW");
        let young = process.age_ms().is_some_and(|age| age < YOUNG_MS);
        if found.is_ok() || !young || process.has_ended() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Address of a function of kernel32 in the process, from its own module list.
///
/// # Errors
/// A sentence for the user: the list cannot be read, or has no kernel32 yet.
pub(crate) fn loader_function(process: &Process, function: &str) -> Result<u64, Failure> {
    process.begun().map_err(|refusal| refusal.failure(&process.to_string()))?;
    let modules = process.modules_if(&|_, name| exports::is_loader(name)).map_err(|error| {
        Failure::target(format!("the list of modules of {process} cannot be read: {error}"))
    })?;
    let images = modules.iter().map(|module| (module.base, &module.image));
    exports::loader_function(image::own_machine(), function, images).ok_or_else(|| {
        Failure::target(format!(
            "{process} has not loaded kernel32.dll yet: it was created suspended, or is being started; try again when it runs, or start \
             it with inject -- PROGRAM"
        ))
    })
}

impl Agent {
    fn of(process: &Process, Module { base, image }: &Module) -> Option<Agent> {
        let exports = image.agent_exports().ok().filter(|_| image.is_agent())?;
        Some(Agent { path: process.module_path(*base), base: *base, identity: image.identity, exports })
    }

    fn is_at(&self, path: &Path) -> bool {
        let lower = |path: &Path| path.to_string_lossy().replace('/', "\\").to_lowercase();
        lower(&self.path) == lower(path)
    }

    /// Starts a recording. The agent gets the handles (output, event of the end, guard process) and
    /// closes them. Returns the address of the agent's status.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn start(
        &self,
        process: &Process,
        config: &AgentConfig,
        texts: &StartTexts,
        handles: [Duplicate; 3],
        timeout_ms: u32,
    ) -> Result<u64, Failure> {
        let [output, ended, guard] = handles;
        let StartTexts { metadata, tables, options } = texts;
        let metadata_block = Block::new(process, if metadata.is_empty() { &[0] } else { metadata })?;
        let tables_bytes: Vec<u8> = tables.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        let tables_block = Block::new(process, if tables.is_empty() { &[0, 0] } else { &tables_bytes })?;
        let options_block = Block::new(process, if options.is_empty() { &[0] } else { options })?;
        let config = AgentConfig {
            output: output.value(),
            ended_event: ended.value(),
            guard: guard.value(),
            metadata: if metadata.is_empty() { 0 } else { metadata_block.address() },
            metadata_len: metadata.len() as u32,
            tables_dir: if tables.is_empty() { 0 } else { tables_block.address() },
            options: if options.is_empty() { 0 } else { options_block.address() },
            options_len: options.len() as u32,
            ..*config
        };
        let config_block = Block::new(process, config_bytes(&config))?;
        let called =
            remote::call(process, self.address(self.exports.start), config_block.address(), timeout_ms)?;
        output.give();
        ended.give();
        guard.give();
        let code = match called {
            Call::Returned(code) => code,
            Call::ProcessEnded => {
                return Err(Failure::target(format!("{process} ended before the recording began")));
            }
            Call::TimedOut => {
                for block in [metadata_block, tables_block, options_block, config_block] {
                    block.leak();
                }
                return Err(Failure::failed(format!(
                    "the agent in {process} did not begin within {} s: give it longer with --timeout. Should it still begin, it \
                     ends at once, since its guard, this inject, is gone",
                    timeout_ms.div_ceil(1000)
                )));
            }
        };
        let mut answer = [0u8; size_of::<AgentConfig>()];
        if !process.read(config_block.address(), &mut answer) {
            return Err(Failure::target(format!("{process} ended before the recording began")));
        }
        let field = |at: usize, len: usize| {
            answer[at..at + len].iter().rev().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let system_error = field(std::mem::offset_of!(AgentConfig, system_error), 4) as u32;
        match StartResult::from_code(code) {
            Some(StartResult::Ok) => Ok(field(std::mem::offset_of!(AgentConfig, status_address), 8)),
            result => Err(refused(process, result, code, system_error)),
        }
    }

    /// Ends the recording and waits until the trace is finalised. Succeeds too if no recording was
    /// running.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn stop(&self, process: &Process, timeout_ms: u32) -> Result<(), Failure> {
        let hosts = self.take_hosts(process, STOP_HOSTS_MS);
        let may_leave = || !self.status(process).is_ok_and(|status| is_recording(status.state));
        if !self.is_loaded(process) || hosts.is_err() && may_leave() {
            // The recording has ended, and another inject has the agent leave.
            return Ok(());
        }
        match remote::call(process, self.address(self.exports.stop), 0, timeout_ms)? {
            Call::Returned(_) | Call::ProcessEnded => Ok(()),
            Call::TimedOut => Err(Failure::failed(format!(
                "the agent in {process} did not finish within {} s: the trace holds what was written so far",
                timeout_ms.div_ceil(1000)
            ))),
        }
    }

    /// The status of its recording, read from the process's memory without running code there.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn status(&self, process: &Process) -> Result<AgentStatus, Failure> {
        let other_version = || {
            Failure::failed(format!(
                "{process} has loaded {}, which is of another stk version: start the program anew, or use that version's inject",
                self.path.display()
            ))
        };
        let block = self.exports.status_block.ok_or_else(other_version)?;
        let status = read_status(process, self.address(block))
            .ok_or_else(|| Failure::target(format!("{process} ended while inject waited for its agent")))?;
        let fits = status.version == CONTROL_VERSION && status.size as usize >= FIRST_STATUS_SIZE;
        if fits { Ok(status) } else { Err(other_version()) }
    }

    /// Whether the agent is still mapped where it was found. True if the process's list of modules
    /// cannot be read, as in one that ends.
    pub(crate) fn is_loaded(&self, process: &Process) -> bool {
        process.has_module(self.base).unwrap_or(true)
    }

    /// The addresses of its image.
    pub(crate) fn image(&self) -> Range<u64> {
        self.base..self.base + u64::from(self.identity.size_of_image)
    }

    /// Address of `stk_agent_leave`; `None` in older agents.
    pub(crate) fn leave_address(&self) -> Option<u64> {
        self.exports.leave.map(|rva| self.address(rva))
    }

    fn address(&self, rva: u32) -> u64 {
        self.base + u64::from(rva)
    }
}

/// Reads an agent's status at `address`; `None` if the process has ended or the status is not
/// valid.
pub(crate) fn read_status(process: &Process, address: u64) -> Option<AgentStatus> {
    let mut head = [0u8; 8];
    if !process.read(address, &mut head) {
        return None;
    }
    let size = u32_in(&head, 0) as usize;
    let mut bytes = [0u8; size_of::<AgentStatus>()];
    let known = size.clamp(head.len(), bytes.len());
    if !process.read(address, &mut bytes[..known]) {
        return None;
    }
    // SAFETY: both have the same size, and every field of AgentStatus is an integer or bytes: any
    // bits are valid.
    Some(unsafe { std::mem::transmute::<[u8; size_of::<AgentStatus>()], AgentStatus>(bytes) })
}

pub(super) fn config_bytes(config: &AgentConfig) -> &[u8] {
    let len = size_of::<AgentConfig>();
    // SAFETY: AgentConfig is repr(C) without padding (its size is asserted in stk-schema), so that
    // all its bytes are initialised; the slice borrows it.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(config).cast(), len) }
}

fn refused(process: &Process, result: Option<StartResult>, code: u32, system_error: u32) -> Failure {
    let system = match system_error {
        0 => String::new(),
        code => format!(" ({})", std::io::Error::from_raw_os_error(code as i32)),
    };
    let agent = format!("the agent in {process}");
    match result {
        Some(StartResult::AlreadyRecording) => Failure::failed(format!(
            "{process} is being recorded already: end that with inject stop --pid {}",
            process.pid()
        )),
        Some(StartResult::BadOutput) => {
            Failure::failed(format!("{agent} cannot write the output{system}: choose another file with -o"))
        }
        Some(StartResult::NoMemory) => Failure::failed(format!(
            "{agent} had no memory for the recorder{system}: the process is near its limit"
        )),
        Some(StartResult::NoThread) => {
            Failure::failed(format!("{agent} could not start its threads{system}"))
        }
        Some(StartResult::Disabled) => {
            Failure::failed(format!("{agent} failed before and stays off: start the program anew"))
        }
        Some(StartResult::WrongArchitecture) => Failure::target(format!(
            "{agent} runs on an emulated processor: record a native build of the program"
        )),
        Some(StartResult::NoGuard) => {
            Failure::failed(format!("{agent} was started without a guard process: this is a fault of inject"))
        }
        Some(StartResult::BadConfig) => Failure::failed(format!(
            "{agent} does not understand this inject: take inject.exe and agent.dll of the same stk version"
        )),
        Some(StartResult::Ok) | None => {
            Failure::failed(format!("{agent} answered {code}, which this inject does not know{system}"))
        }
    }
}
