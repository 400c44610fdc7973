//! Queries the process of `--pid` without changing it.

use super::policies;
use crate::doctor::target::{Drive, TargetFacts};
use crate::image;
use crate::windows::agent::AgentFile;
use crate::windows::process::threads;
use crate::windows::process::{self, OpenError, Process};
use crate::windows::refusal;
use crate::windows::scheduling;
use crate::windows::system::wide;
use crate::windows::trust::token::Token;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::io::AsHandle;
use std::path::{Component, Path, Prefix};
use windows_sys::Win32::Storage::FileSystem::{GetDriveTypeW, QueryDosDeviceW};
use windows_sys::Win32::System::LibraryLoader::GetModuleHandleW;
use windows_sys::Win32::System::RemoteDesktop::ProcessIdToSessionId;
use windows_sys::Win32::System::Threading::{
    PROCESS_CREATE_THREAD, PROCESS_DUP_HANDLE, PROCESS_QUERY_INFORMATION, PROCESS_SYNCHRONIZE,
    PROCESS_VM_OPERATION, PROCESS_VM_READ, PROCESS_VM_WRITE,
};
use windows_sys::w;

/// The rights that recording needs.
const RIGHTS: [(&str, u32); 7] = [
    ("CREATE_THREAD", PROCESS_CREATE_THREAD),
    ("VM_OPERATION", PROCESS_VM_OPERATION),
    ("VM_READ", PROCESS_VM_READ),
    ("VM_WRITE", PROCESS_VM_WRITE),
    ("DUP_HANDLE", PROCESS_DUP_HANDLE),
    ("QUERY_INFORMATION", PROCESS_QUERY_INFORMATION),
    ("SYNCHRONIZE", PROCESS_SYNCHRONIZE),
];

/// Queries process `pid`.
pub(super) fn gather(pid: u32, agent: Option<&AgentFile>) -> TargetFacts {
    let entry = process::entries().ok().and_then(|all| all.into_iter().find(|entry| entry.pid == pid));
    let Some(entry) = entry else { return TargetFacts::default() };
    let mut target = TargetFacts {
        name: Some(entry.name),
        rights: RIGHTS.iter().map(|&(name, right)| (name, process::open(pid, right).is_ok())).collect(),
        sessions: session(pid).zip(session(std::process::id())),
        agent_path: agent.map(|agent| (drive(&agent.path), agent.path.as_os_str().encode_wide().count())),
        threads: threads::ids(pid).ok().map(|all| all.len()),
        ..TargetFacts::default()
    };
    if let Ok(limited) = process::open_limited(pid) {
        let limited = limited.as_handle();
        target.machine = Some(image::machine_name(process::machine(limited).process));
        let (theirs, ours) = (Token::of(limited).ok(), Token::own().ok());
        target.app_container = theirs.as_ref().map(Token::is_app_container);
        target.integrity = theirs.zip(ours).map(|(theirs, ours)| (theirs.integrity(), ours.integrity()));
        target.policies = policies(limited);
        target.scheduling = scheduling::of(limited);
    }
    match Process::try_open(pid) {
        Ok(process) => {
            let dll = agent.map(|agent| (agent.path.as_path(), &agent.image));
            target.refusal = refusal::check(process.machine(), process.handle(), dll)
                .err()
                .map(|refusal| format!("{}: {}", refusal.cause, refusal.way_out));
            modules(&process, &mut target);
        }
        Err(OpenError::Refused(refusal)) => {
            target.refusal = Some(format!("{}: {}", refusal.cause, refusal.way_out))
        }
        Err(_) => target.refusal = Some("has ended".to_owned()),
    }
    target
}

fn modules(process: &Process, target: &mut TargetFacts) {
    let Ok(modules) = process.modules() else { return };
    target.modules = Some(modules.len() as u32);
    let there = modules.iter().find(|module| module.image.name.eq_ignore_ascii_case("kernel32.dll"));
    // SAFETY: kernel32 is in every process.
    let here = unsafe { GetModuleHandleW(w!("kernel32.dll")) } as u64;
    target.kernel32 = there.map(|module| (module.base, here));
}

fn session(pid: u32) -> Option<u32> {
    let mut session = 0;
    // SAFETY: the result has room.
    (unsafe { ProcessIdToSessionId(pid, &mut session) } != 0).then_some(session)
}

fn drive(path: &Path) -> Drive {
    const REMOTE: u32 = 4;
    const LOCAL: [u32; 3] = [2, 3, 6]; // removable, fixed, RAM disk
    let Some(Component::Prefix(prefix)) = path.components().next() else { return Drive::Other };
    let letter = match prefix.kind() {
        Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) => char::from(letter),
        Prefix::UNC(..) | Prefix::VerbatimUNC(..) => return Drive::Remote,
        _ => return Drive::Other,
    };
    let mut device = [0u16; 512];
    // SAFETY: the name is zero-terminated; the length is that of the array.
    let len = unsafe {
        QueryDosDeviceW(
            wide(format!("{letter}:").as_ref()).as_ptr(),
            device.as_mut_ptr(),
            device.len() as u32,
        )
    } as usize;
    // `subst` makes a link to another path of the same name space.
    if String::from_utf16_lossy(&device[..len.min(device.len())]).starts_with(r"\??\") {
        return Drive::Substituted;
    }
    // SAFETY: the path is zero-terminated.
    match unsafe { GetDriveTypeW(wide(format!("{letter}:\\").as_ref()).as_ptr()) } {
        REMOTE => Drive::Remote,
        kind if LOCAL.contains(&kind) => Drive::Local,
        _ => Drive::Other,
    }
}
