//! Lists processes and the obstacles to recording them.

use super::agent;
use super::process::{self, Module, Process};
use super::refusal;
use super::system;
use crate::failure::Failure;
use crate::image;
use crate::list;
use crate::refusal::standing;
use crate::windows::launch::handover;
use std::os::windows::io::AsHandle;
use stk_schema::control;

/// All processes but inject itself, by pid.
///
/// # Errors
/// A sentence for the user, when the list cannot be read.
pub(crate) fn processes() -> Result<Vec<list::ProcessRow>, Failure> {
    let mut all = process::entries()?;
    all.retain(|entry| entry.pid != std::process::id());
    all.sort_by_key(|entry| entry.pid);
    Ok(all.into_iter().map(|entry| describe(entry.pid, entry.name)).collect())
}

/// Describes a process from a handle that allows only reading, without privileges. It does not read
/// the memory of other users' processes.
fn describe(pid: u32, name: String) -> list::ProcessRow {
    let mut line = list::ProcessRow {
        pid,
        name,
        arch: None,
        dotnet: None,
        recordable: false,
        recording: false,
        reason: None,
    };
    let Ok(limited) = process::open_limited(pid) else {
        line.reason = Some("may not be opened, or has ended".to_owned());
        return line;
    };
    let machine = process::machine(limited.as_handle());
    line.arch = Some(image::machine_name(machine.process));
    let facts = refusal::facts(limited.as_handle());
    if let Err(refusal) = standing(&facts) {
        line.reason = Some(refusal.cause);
        return line;
    }
    if system::wait(limited.as_handle(), 0) {
        line.reason = Some("has ended".to_owned());
        return line;
    }
    let own = facts.same_user == Some(true);
    let readable = if own { Process::open_to_read(pid).ok() } else { None };
    let handle = readable.as_ref().map_or(limited.as_handle(), Process::handle);
    let fits = if handover::companion_for(machine).is_some() {
        // The other inject checks for the remaining obstacles.
        refusal::policies(handle, None)
    } else {
        refusal::architecture(machine, None).and_then(|()| refusal::policies(handle, None))
    };
    let is_ours = machine.process == image::own_machine();
    let begun = readable.as_ref().filter(|_| is_ours).map_or(Ok(()), Process::begun);
    match fits.and(begun) {
        Ok(()) => line.recordable = true,
        Err(refusal) => line.reason = Some(refusal.cause),
    }
    if let Some(process) = readable {
        look_into(&process, &mut line);
    }
    line
}

/// Adds facts from the process's modules: its runtime, and the state of an agent in it.
fn look_into(process: &Process, line: &mut list::ProcessRow) {
    let wanted = |index: usize, name: &str| index == 0 || name.eq_ignore_ascii_case(image::AGENT_NAME);
    let modules = process.modules_if(&wanted).unwrap_or_default();
    line.dotnet = dotnet(&modules);
    if line.reason.is_some() {
        return;
    }
    match agent::state(process, &modules) {
        Some(control::STATE_RECORDING | control::STATE_STOPPING) => {
            (line.recordable, line.recording) = (false, true);
        }
        Some(control::STATE_FAILED) => {
            line.recordable = false;
            line.reason = Some("the agent failed in it before: it must be started anew".to_owned());
        }
        _ => {}
    }
}

/// The .NET runtime among the modules.
fn dotnet(modules: &[Module]) -> Option<&'static str> {
    for Module { image, .. } in modules {
        match image.name.to_ascii_lowercase().as_str() {
            "coreclr.dll" => return Some("coreclr"),
            "clr.dll" | "mscorwks.dll" => return Some("clr"),
            _ => {}
        }
    }
    // A single-file program has the runtime linked in and has the export that debuggers use.
    modules.first()?.image.export("DotNetRuntimeInfo").map(|_| "single-file")
}
