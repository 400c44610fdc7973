//! The list of processes with what recording them would meet.

use super::agent;
use super::handover;
use super::process::{self, Module, OpenError, Process};
use super::refusal;
use crate::failure::Failure;
use crate::image;
use crate::list;
use std::os::windows::io::AsHandle;
use stk_schema::control;

/// All processes but inject itself, by pid.
///
/// # Errors
/// A sentence for the user, when the list cannot be had.
pub fn processes() -> Result<Vec<list::Process>, Failure> {
    let mut all = process::entries()?;
    all.retain(|entry| entry.pid != std::process::id());
    all.sort_by_key(|entry| entry.pid);
    Ok(all.into_iter().map(|entry| describe(entry.pid, entry.name)).collect())
}

fn describe(pid: u32, name: String) -> list::Process {
    let mut line = list::Process {
        pid,
        name,
        arch: None,
        dotnet: None,
        recordable: false,
        recording: false,
        reason: None,
    };
    if let Ok(handle) = process::open_limited(pid) {
        let machine = process::machine(handle.as_handle());
        line.arch = Some(image::machine_name(machine.process));
    }
    let process = match Process::try_open(pid) {
        Ok(process) => process,
        Err(error) => {
            line.reason = Some(match error {
                OpenError::NotFound | OpenError::Ended => "has ended".to_owned(),
                OpenError::Refused(refusal) => refusal.cause,
            });
            return line;
        }
    };
    let modules = process.modules().unwrap_or_default();
    line.dotnet = dotnet(&modules);
    if handover::companion(&process).is_some() {
        // What that inject would meet is for it to find out.
        line.recordable = true;
        return line;
    }
    match refusal::check(&process, None) {
        Err(refusal) => line.reason = Some(refusal.cause),
        Ok(()) => match agent::state(&process, &modules) {
            Some(control::STATE_RECORDING | control::STATE_STOPPING) => line.recording = true,
            Some(control::STATE_FAILED) => {
                line.reason = Some("the agent failed in it before: it must be started anew".to_owned());
            }
            _ => line.recordable = true,
        },
    }
    line
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
    // A single-file program has the runtime linked in and exports what debuggers ask of it.
    modules.first()?.image.export("DotNetRuntimeInfo").map(|_| "single-file")
}
