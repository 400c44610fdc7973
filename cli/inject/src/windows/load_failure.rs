//! Finds why a process did not load agent.dll, from Windows' event logs and settings and the
//! process's modules. It runs only after a failure.

use super::process::Process;
use super::system::{self, Procedure};
use crate::refusal::blocked::{self, LOGS, Log};
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::ptr;
use windows_sys::Win32::Foundation::ERROR_ACCESS_DENIED;
use windows_sys::Win32::Storage::FileSystem::{GetLogicalDrives, QueryDosDeviceW};
use windows_sys::Win32::System::EventLog::{
    EVT_HANDLE, EvtQueryChannelPath, EvtQueryReverseDirection, EvtRenderEventXml,
};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};
use windows_sys::Win32::System::Registry::{HKEY_LOCAL_MACHINE, RRF_RT_REG_DWORD, RegGetValueW};
use windows_sys::core::BOOL;
use windows_sys::{s, w};

/// Older events are unrelated to the failure.
const RECENT_S: u32 = 60;
/// The most events to read of each log, the newest first.
const EVENTS: usize = 64;

/// What may have blocked `dll` in `process`, as clauses of a sentence, the most certain first.
pub(crate) fn blocked(process: &Process, dll: &Path) -> String {
    let name = dll.file_name().unwrap_or_default().to_string_lossy();
    let (mut found, mut denied) = (Vec::new(), false);
    for log in &LOGS {
        match event(log, &name) {
            Ok(Some(id)) => {
                found.push(format!("{} blocked it (event {id} in the log {})", log.source, log.channel));
            }
            Ok(None) => {}
            Err(Denied) => denied = true,
        }
    }
    if found.is_empty() {
        if blocked::is_elsewhere(&process.native_image_path().unwrap_or_default(), &drives()) {
            found.push(blocked::IN_CONTAINER.to_owned());
        }
        if smart_app_control() == Some(1) {
            found.push("Smart App Control is on, which blocks unsigned DLLs".to_owned());
        }
        let modules = process.modules_if(&|_, _| false).unwrap_or_default();
        for whose in blocked::known(modules.iter().map(|module| module.image.name.as_str())) {
            found.push(format!("{whose} is in the process and may block it"));
        }
    }
    match found.is_empty() {
        true => format!(
            "a code integrity policy or security software blocks it; these event logs may say more: {}",
            blocked::where_to_look(denied)
        ),
        false => found.join("; "),
    }
}

/// Smart App Control's state: 0 off, 1 on, 2 evaluating; `None` where Windows has none.
pub(crate) fn smart_app_control() -> Option<u32> {
    let (mut value, mut size) = (0u32, size_of::<u32>() as u32);
    // SAFETY: both names are zero-terminated; value and size fit.
    let failed = unsafe {
        RegGetValueW(
            HKEY_LOCAL_MACHINE,
            w!(r"SYSTEM\CurrentControlSet\Control\CI\Policy"),
            w!("VerifiedAndReputablePolicyState"),
            RRF_RT_REG_DWORD,
            ptr::null_mut(),
            (&raw mut value).cast(),
            &mut size,
        )
    };
    (failed == 0).then_some(value)
}

/// The devices behind the drive letters.
fn drives() -> Vec<String> {
    // SAFETY: no preconditions.
    let letters = unsafe { GetLogicalDrives() };
    let device = |letter: u8| {
        let name = [u16::from(letter), u16::from(b':'), 0];
        let mut device = [0u16; 512];
        // SAFETY: the name is zero-terminated; the length is that of the array.
        let len = unsafe { QueryDosDeviceW(name.as_ptr(), device.as_mut_ptr(), device.len() as u32) };
        let text = device.split(|&unit| unit == 0).next().filter(|_| len != 0)?;
        Some(String::from_utf16_lossy(text))
    };
    (0..26u8).filter(|bit| letters >> bit & 1 != 0).filter_map(|bit| device(b'A' + bit)).collect()
}

/// Only administrators can read the log.
struct Denied;

/// The id of the newest event of `log` that names `file`; `None` also if there is no such log.
fn event(log: &Log, file: &str) -> Result<Option<u32>, Denied> {
    let Some(api) = EventLogApi::load() else { return Ok(None) };
    let channel = system::wide(OsStr::new(log.channel));
    let query = system::wide(OsStr::new(&log.query(RECENT_S)));
    let flags = EvtQueryChannelPath | EvtQueryReverseDirection;
    // SAFETY: both texts are zero-terminated; 0 is this machine.
    let handle = unsafe { (api.query)(0, channel.as_ptr(), query.as_ptr(), flags) };
    let results = Results { api: &api, handle };
    if results.handle == 0 {
        let error = system::code(&io::Error::last_os_error());
        return if error == ERROR_ACCESS_DENIED { Err(Denied) } else { Ok(None) };
    }
    Ok((0..EVENTS).map_while(|_| results.next()).find_map(|xml| blocked::event_about(&xml, file)))
}

/// The functions of wevtapi.dll, which is loaded only here.
struct EventLogApi {
    query: Query,
    next: Next,
    render: Render,
    close: Close,
}

type Query = unsafe extern "system" fn(EVT_HANDLE, *const u16, *const u16, u32) -> EVT_HANDLE;
type Next = unsafe extern "system" fn(EVT_HANDLE, u32, *mut EVT_HANDLE, u32, u32, *mut u32) -> BOOL;
type Render =
    unsafe extern "system" fn(EVT_HANDLE, EVT_HANDLE, u32, u32, *mut u16, *mut u32, *mut u32) -> BOOL;
type Close = unsafe extern "system" fn(EVT_HANDLE) -> BOOL;

impl EventLogApi {
    fn load() -> Option<EventLogApi> {
        // SAFETY: the names are zero-terminated; the DLL stays loaded; the types are the documented
        // signatures of these functions.
        unsafe {
            let dll = LoadLibraryExW(w!("wevtapi.dll"), ptr::null_mut(), LOAD_LIBRARY_SEARCH_SYSTEM32);
            if dll.is_null() {
                return None;
            }
            Some(EventLogApi {
                query: std::mem::transmute::<Procedure, Query>(GetProcAddress(dll, s!("EvtQuery"))?),
                next: std::mem::transmute::<Procedure, Next>(GetProcAddress(dll, s!("EvtNext"))?),
                render: std::mem::transmute::<Procedure, Render>(GetProcAddress(dll, s!("EvtRender"))?),
                close: std::mem::transmute::<Procedure, Close>(GetProcAddress(dll, s!("EvtClose"))?),
            })
        }
    }
}

/// A query's results.
struct Results<'a> {
    api: &'a EventLogApi,
    handle: EVT_HANDLE,
}

impl Results<'_> {
    /// The next event as XML.
    fn next(&self) -> Option<String> {
        const PATIENCE_MS: u32 = 2_000;
        let (mut event, mut count) = (0, 0);
        let mut text = vec![0u16; 32_768];
        let (mut used, mut properties) = (0, 0);
        // SAFETY: the query's handle is open; every result has the room that is passed; the event
        // is closed after its last use.
        let rendered = unsafe {
            if (self.api.next)(self.handle, 1, &mut event, PATIENCE_MS, 0, &mut count) == 0 || count == 0 {
                return None;
            }
            let bytes = size_of_val(&text[..]) as u32;
            let xml = text.as_mut_ptr();
            let done = (self.api.render)(0, event, EvtRenderEventXml, bytes, xml, &mut used, &mut properties);
            (self.api.close)(event);
            done != 0
        };
        let units = if rendered { (used as usize / 2).min(text.len()) } else { 0 };
        Some(String::from_utf16_lossy(&text[..units]))
    }
}

impl Drop for Results<'_> {
    fn drop(&mut self) {
        if self.handle != 0 {
            // SAFETY: it is open and this is its only owner.
            unsafe { (self.api.close)(self.handle) };
        }
    }
}
