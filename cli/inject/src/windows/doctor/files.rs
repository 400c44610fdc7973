//! The files of the release beside inject.exe: hashes, zone marks, signatures.

use crate::doctor::files::{FileFacts, Signature, zone_id};
use crate::windows::agent::AgentFile;
use crate::windows::system::{system_dll as function, wide};
use std::fmt::Write as _;
use std::mem::transmute;
use std::path::{Path, PathBuf};
use std::ptr;
use windows_sys::Win32::Foundation::HWND;
use windows_sys::Win32::Security::WinTrust::{
    WINTRUST_ACTION_GENERIC_VERIFY_V2, WINTRUST_DATA, WINTRUST_DATA_0, WINTRUST_FILE_INFO,
    WTD_CACHE_ONLY_URL_RETRIEVAL, WTD_CHOICE_FILE, WTD_REVOKE_NONE, WTD_STATEACTION_CLOSE,
    WTD_STATEACTION_VERIFY, WTD_UI_NONE,
};
use windows_sys::core::GUID;

type Found = unsafe extern "system" fn() -> isize;

/// Looks at inject.exe, agent.dll and what else a release holds.
pub fn gather() -> Vec<FileFacts> {
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
    type BCryptHash = unsafe extern "system" fn(usize, *const u8, u32, *const u8, u32, *mut u8, u32) -> i32;
    /// BCRYPT_SHA256_ALG_HANDLE.
    const SHA256: usize = 0x41;
    let bytes = std::fs::read(path).ok()?;
    let len = u32::try_from(bytes.len()).ok()?;
    let hash = function(c"bcrypt.dll", c"BCryptHash")?;
    let mut digest = [0u8; 32];
    // SAFETY: the documented signature; pointers and lengths are those of the buffers; no key.
    let status = unsafe {
        transmute::<Found, BCryptHash>(hash)(
            SHA256,
            ptr::null(),
            0,
            bytes.as_ptr(),
            len,
            digest.as_mut_ptr(),
            32,
        )
    };
    (status >= 0).then(|| {
        digest.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    })
}

/// Asks WinVerifyTrust, without a dialog and without the network.
fn signature(path: &Path) -> Signature {
    type WinVerifyTrust = unsafe extern "system" fn(HWND, *mut GUID, *mut WINTRUST_DATA) -> i32;
    const NO_SIGNATURE: u32 = 0x800b_0100; // TRUST_E_NOSIGNATURE
    const UNKNOWN_FORM: u32 = 0x800b_0003; // TRUST_E_SUBJECT_FORM_UNKNOWN
    const UNKNOWN_PROVIDER: u32 = 0x800b_0001; // TRUST_E_PROVIDER_UNKNOWN
    let Some(verify) = function(c"wintrust.dll", c"WinVerifyTrust") else { return Signature::Unknown };
    // SAFETY: this is the documented signature of WinVerifyTrust.
    let verify = unsafe { transmute::<Found, WinVerifyTrust>(verify) };
    let name = wide(path.as_os_str());
    let mut file = WINTRUST_FILE_INFO {
        cbStruct: size_of::<WINTRUST_FILE_INFO>() as u32,
        pcwszFilePath: name.as_ptr(),
        ..WINTRUST_FILE_INFO::default()
    };
    let mut data = WINTRUST_DATA {
        cbStruct: size_of::<WINTRUST_DATA>() as u32,
        dwUIChoice: WTD_UI_NONE,
        fdwRevocationChecks: WTD_REVOKE_NONE,
        dwUnionChoice: WTD_CHOICE_FILE,
        Anonymous: WINTRUST_DATA_0 { pFile: &mut file },
        dwStateAction: WTD_STATEACTION_VERIFY,
        dwProvFlags: WTD_CACHE_ONLY_URL_RETRIEVAL,
        ..WINTRUST_DATA::default()
    };
    let mut action = WINTRUST_ACTION_GENERIC_VERIFY_V2;
    // SAFETY: the structs say their sizes and outlive both calls; the second frees what the first
    // left in them.
    let error = unsafe {
        let error = verify(ptr::null_mut(), &mut action, &mut data) as u32;
        data.dwStateAction = WTD_STATEACTION_CLOSE;
        verify(ptr::null_mut(), &mut action, &mut data);
        error
    };
    match error {
        0 => Signature::Trusted,
        NO_SIGNATURE | UNKNOWN_FORM => Signature::Unsigned,
        UNKNOWN_PROVIDER => Signature::Unknown,
        error => Signature::Refused(error),
    }
}
