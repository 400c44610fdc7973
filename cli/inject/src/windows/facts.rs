//! The facts about a recording that only inject knows, for the trace's metadata.

use super::process::Process;
use super::registry;
use super::scheduling;
use super::system::{self, Procedure};
use crate::args::Record;
use crate::dac::runtime;
use std::mem::transmute;
use std::ptr;
use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::Security::Cryptography::{BCRYPT_ALG_HANDLE, BCRYPT_HASH_HANDLE};
use windows_sys::Win32::Storage::FileSystem::FileTimeToLocalFileTime;
use windows_sys::Win32::System::RemoteDesktop::ProcessIdToSessionId;
use windows_sys::Win32::System::SystemInformation::GetSystemTimeAsFileTime;
use windows_sys::core::PCWSTR;
use windows_sys::w;

/// Stands before the registry's MachineGuid in what is hashed, so that the id is that of no other
/// program.
const MACHINE_SALT: &str = "stk machine.id ";
/// Bytes of the hash that are the id.
const MACHINE_BYTES: usize = 16;

/// Key and value of a METADATA event.
pub(crate) type MetadataEntry = (String, String);

/// The metadata in the agent's form: `key 0 value 0 …`.
pub(crate) fn bytes(facts: &[MetadataEntry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in facts {
        for text in [key, value] {
            bytes.extend(text.bytes().filter(|&byte| byte != 0));
            bytes.push(0);
        }
    }
    bytes
}

/// What is known of a recording when it begins.
pub(crate) fn facts(record: &Record, process: &Process) -> Vec<MetadataEntry> {
    let mut facts = vec![("inject.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
    if record.command_line {
        let line: Vec<String> =
            std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        facts.push(("inject.command_line".to_owned(), line.join(" ")));
    }
    let known = [
        ("process.parent_pid", process.parent().map(|pid| pid.to_string())),
        ("inject.process_age_ms", process.age_ms().map(|ms| ms.to_string())),
        ("machine.id", machine_id()),
        ("session.id", session_id(process.pid()).map(|id| id.to_string())),
        ("exe.version", exe_version(process)),
        ("tz.offset", tz_offset().map(|minutes| minutes.to_string())),
    ];
    facts.extend(known.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    facts.extend(scheduling::of(process.handle()).metadata());
    if record.flight_ms != 0 {
        facts.push(("inject.flight_ms".to_owned(), record.flight_ms.to_string()));
    }
    facts.extend(record.labels.iter().map(|label| (label.metadata_key(), label.value.clone())));
    facts
}

/// An id of this installation of Windows, the same in all its traces: the beginning of the SHA-256
/// of the registry's MachineGuid, which Windows' setup draws at random. `None` if there is none or
/// it cannot be read.
fn machine_id() -> Option<String> {
    let guid = registry::text(r"SOFTWARE\Microsoft\Cryptography", "MachineGuid")?;
    let guid = guid.trim().to_ascii_lowercase();
    if guid.is_empty() {
        return None;
    }
    let hash = sha256(format!("{MACHINE_SALT}{guid}").as_bytes())?;
    Some(stk_schema::text::hex(&hash[..MACHINE_BYTES]))
}

/// The SHA-256 of `bytes`, by the system; `None` if that fails.
pub(super) fn sha256(bytes: &[u8]) -> Option<[u8; 32]> {
    let len = u32::try_from(bytes.len()).ok()?;
    type Open = unsafe extern "system" fn(*mut BCRYPT_ALG_HANDLE, PCWSTR, PCWSTR, u32) -> i32;
    type Create = unsafe extern "system" fn(
        BCRYPT_ALG_HANDLE,
        *mut BCRYPT_HASH_HANDLE,
        *mut u8,
        u32,
        *const u8,
        u32,
        u32,
    ) -> i32;
    type Data = unsafe extern "system" fn(BCRYPT_HASH_HANDLE, *const u8, u32, u32) -> i32;
    type Finish = unsafe extern "system" fn(BCRYPT_HASH_HANDLE, *mut u8, u32, u32) -> i32;
    type Destroy = unsafe extern "system" fn(BCRYPT_HASH_HANDLE) -> i32;
    type Close = unsafe extern "system" fn(BCRYPT_ALG_HANDLE, u32) -> i32;
    let bcrypt = |name| system::system_dll(c"bcrypt.dll", name);
    let (mut algorithm, mut hash) = (ptr::null_mut(), ptr::null_mut());
    let mut result = [0; 32];
    // SAFETY: the types are the documented signatures of these functions. Handles are used only if
    // they were made, and closed; lengths are those of the slices.
    unsafe {
        let open = transmute::<Procedure, Open>(bcrypt(c"BCryptOpenAlgorithmProvider")?);
        let create = transmute::<Procedure, Create>(bcrypt(c"BCryptCreateHash")?);
        let data = transmute::<Procedure, Data>(bcrypt(c"BCryptHashData")?);
        let finish = transmute::<Procedure, Finish>(bcrypt(c"BCryptFinishHash")?);
        let destroy = transmute::<Procedure, Destroy>(bcrypt(c"BCryptDestroyHash")?);
        let close = transmute::<Procedure, Close>(bcrypt(c"BCryptCloseAlgorithmProvider")?);
        if open(&mut algorithm, w!("SHA256"), ptr::null(), 0) < 0 {
            return None;
        }
        let mut done = create(algorithm, &mut hash, ptr::null_mut(), 0, ptr::null(), 0, 0) >= 0;
        if done {
            done = data(hash, bytes.as_ptr(), len, 0) >= 0
                && finish(hash, result.as_mut_ptr(), result.len() as u32, 0) >= 0;
            destroy(hash);
        }
        close(algorithm, 0);
        done.then_some(result)
    }
}

/// The session in which a process runs: 0 is that of services, users have others.
fn session_id(pid: u32) -> Option<u32> {
    let mut id = 0;
    // SAFETY: the result has room.
    (unsafe { ProcessIdToSessionId(pid, &mut id) } != 0).then_some(id)
}

/// The version in the resources of the process's executable, as Explorer shows it: `10.0.19041.1`.
/// `None` if it has none.
fn exe_version(process: &Process) -> Option<String> {
    let exe = process.executable()?;
    let read = |rva: u32, buffer: &mut [u8]| {
        exe.base.checked_add(rva.into()).is_some_and(|address| process.read(address, buffer))
    };
    let parts = runtime::file_version(&exe.image, read)?.parts;
    Some(parts.map(|part| part.to_string()).join("."))
}

/// Local time less UTC at this moment, in minutes.
fn tz_offset() -> Option<i64> {
    /// Units of 100 ns.
    const MINUTE: i64 = 600_000_000;
    let (mut utc, mut local) = (FILETIME::default(), FILETIME::default());
    // SAFETY: both calls fill a struct; the first cannot fail.
    let known = unsafe {
        GetSystemTimeAsFileTime(&mut utc);
        FileTimeToLocalFileTime(&utc, &mut local) != 0
    };
    let units = |time: FILETIME| i64::from(time.dwHighDateTime) << 32 | i64::from(time.dwLowDateTime);
    known.then(|| (units(local) - units(utc)) / MINUTE)
}
