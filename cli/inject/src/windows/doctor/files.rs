//! The files of the release beside inject.exe: hashes, zone marks, signatures.

use crate::doctor::files::{FileFacts, Signature, zone_id};
use crate::windows::agent::AgentFile;
use crate::windows::facts;
use crate::windows::trust::signature;
use std::path::{Path, PathBuf};
use stk_schema::text::hex;

/// Examines inject.exe, agent.dll and the release's other programs.
pub(super) fn gather() -> Vec<FileFacts> {
    let own = std::env::current_exe().unwrap_or_default();
    let agent =
        AgentFile::open(None).map(|agent| agent.path).unwrap_or_else(|_| own.with_file_name("agent.dll"));
    let mut files = vec![(own.clone(), true), (agent, true)];
    let others = ["stk.exe", "inject32.exe", "agent32.dll", "inject.exe", "agent.dll"];
    for other in others.map(|name| own.with_file_name(name)) {
        let is = |path: &PathBuf| {
            path.file_name().map(|name| name.to_ascii_lowercase())
                == other.file_name().map(|name| name.to_ascii_lowercase())
        };
        if !files.iter().any(|(path, _)| is(path)) {
            files.push((other, false));
        }
    }
    files.into_iter().map(|(path, needed)| describe(&path, needed)).collect()
}

fn describe(path: &Path, needed: bool) -> FileFacts {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let there = path.is_file();
    let mut stream = path.as_os_str().to_owned();
    stream.push(":Zone.Identifier");
    FileFacts {
        name,
        path: there.then(|| path.display().to_string()),
        needed,
        sha256: there.then(|| sha256(path)).flatten(),
        zone: std::fs::read(stream).ok().and_then(|bytes| zone_id(&String::from_utf8_lossy(&bytes))),
        signature: if there { signature(path) } else { Signature::Unknown },
    }
}

fn sha256(path: &Path) -> Option<String> {
    Some(hex(&facts::sha256(&std::fs::read(path).ok()?)?))
}

/// Calls WinVerifyTrust, without a dialog and without the network.
fn signature(path: &Path) -> Signature {
    const NO_SIGNATURE: u32 = 0x800b_0100; // TRUST_E_NOSIGNATURE
    const UNKNOWN_FORM: u32 = 0x800b_0003; // TRUST_E_SUBJECT_FORM_UNKNOWN
    const UNKNOWN_PROVIDER: u32 = 0x800b_0001; // TRUST_E_PROVIDER_UNKNOWN
    let Some(error) = signature::verify(path, None, |error, _| error) else { return Signature::Unknown };
    match error {
        0 => Signature::Trusted,
        NO_SIGNATURE | UNKNOWN_FORM => Signature::Unsigned,
        UNKNOWN_PROVIDER => Signature::Unknown,
        error => Signature::Refused(error),
    }
}
