//! Waits until no thread of a process is in its agent; [`crate::handler_drain`] decides by
//! registers. A thread that began in the agent, such as one that carries out a call of an inject
//! that has not waited for it, must have ended.
//!
//! Each thread is suspended for as long as it takes to read its registers, one at a time, and for a
//! second at most. Only `inject stop --unload` does this. Ctrl-C does not end inject meanwhile.

use super::agent::Agent;
use super::process::{Module, Process};
use super::system::{self, Procedure};
use crate::handler_drain::{BEFORE, Places};
use crate::held::{self, Inspection, ThreadCalls};
use crate::image;
use crate::windows::process::suspension;
use std::io;
use std::os::windows::io::{AsHandle as _, AsRawHandle as _, OwnedHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stk_schema::Arch;
use windows_sys::Win32::Foundation::{HANDLE, NTSTATUS};
use windows_sys::Win32::System::Threading::{
    GetProcessIdOfThread, OpenThread, THREAD_GET_CONTEXT, THREAD_QUERY_INFORMATION, THREAD_SUSPEND_RESUME,
    THREAD_SYNCHRONIZE,
};

/// How long a thread may take to stop. Without a limit, one that is stuck in a driver would keep
/// inject, and would stay suspended if inject is killed.
const MOST_HELD: Duration = Duration::from_secs(1);
/// Time between two looks at threads that may be in the agent.
const AGAIN: Duration = Duration::from_millis(2);

/// A thread that was not seen elsewhere yet.
struct Suspect {
    tid: u32,
    handle: Arc<OwnedHandle>,
    /// Whether it began in the agent.
    of_agent: bool,
}

/// Waits until every thread was seen outside of the agent. `handler`: a recording had a handler for
/// exceptions, which is removed.
///
/// # Errors
/// Why it is not known that the agent may be unmapped: a part of a sentence.
pub(crate) fn wait(process: &Process, agent: &Agent, handler: bool, until: Instant) -> Result<(), String> {
    let places = if handler { Some(places(process, agent)?) } else { None };
    // A thread that begins later cannot get there.
    let mut suspects = threads(process, agent)?;
    loop {
        let before = handler_calls(process, agent);
        let elsewhere = suspects.iter().map(|suspect| is_elsewhere(process, places.as_ref(), suspect));
        let elsewhere: Vec<bool> = elsewhere.collect::<Result<_, String>>()?;
        // Else a thread may have been in what the handler calls, which looks like being elsewhere.
        if before.is_some() && before == handler_calls(process, agent) {
            let mut elsewhere = elsewhere.into_iter();
            suspects.retain(|_| !elsewhere.next().unwrap_or(false));
        }
        if suspects.is_empty() || process.has_ended() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(in_the_way(&suspects));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Where threads must not be.
fn places(process: &Process, agent: &Agent) -> Result<Places, String> {
    let arch = image::arch(image::own_machine()).unwrap_or(Arch::X64);
    let is_ntdll = |name: &str| name.eq_ignore_ascii_case("ntdll.dll");
    let modules = process.modules_if(&|_, name| is_ntdll(name));
    let modules = modules.map_err(|error| format!("its list of modules cannot be read ({error})"))?;
    let own = |module: &&Module| module.image.machine == image::own_machine();
    let ntdll = modules.iter().filter(own).find(|module| is_ntdll(&module.image.name));
    let ntdll = ntdll.ok_or("its ntdll.dll cannot be read".to_owned())?;
    Ok(Places::new(arch, agent.image(), ntdll.base, &ntdll.image))
}

/// What the first of these threads does, in words.
fn in_the_way(suspects: &[Suspect]) -> String {
    let Some(first) = suspects.first() else { return String::new() };
    let place = if first.of_agent {
        "carries out what an inject has asked the agent"
    } else {
        "may still be in the agent's handler of exceptions"
    };
    let others = match suspects.len() - 1 {
        0 => String::new(),
        others => format!(", and {others} more threads are in the way"),
    };
    format!("its thread {} {place}{others}", first.tid)
}

/// Calls of the handler that have begun, if as many have ended.
fn handler_calls(process: &Process, agent: &Agent) -> Option<u32> {
    let status = agent.status(process).ok()?;
    (status.handler_begun == status.handler_ended).then_some(status.handler_begun)
}

/// The threads of the process.
fn threads(process: &Process, agent: &Agent) -> Result<Vec<Suspect>, String> {
    let fail = |error: io::Error| format!("its threads cannot be listed ({error})");
    let mut all = Vec::new();
    for tid in crate::windows::process::threads::ids(process.pid()).map_err(fail)? {
        match open(process, tid) {
            Ok(Some(handle)) => match start_address(&handle) {
                Some(began) => {
                    let of_agent = agent.image().contains(&began);
                    all.push(Suspect { tid, handle: Arc::new(handle), of_agent });
                }
                None if system::wait(handle.as_handle(), 0) => {}
                None => return Err(format!("it is not known where its thread {tid} began")),
            },
            Ok(None) => {}
            Err(error) => return Err(format!("its thread {tid} cannot be opened ({error})")),
        }
    }
    Ok(all)
}

/// Opens a thread; `None` if it has ended.
fn open(process: &Process, tid: u32) -> io::Result<Option<OwnedHandle>> {
    /// ERROR_INVALID_PARAMETER: no thread has this id.
    const GONE: u32 = 87;
    let rights = THREAD_SUSPEND_RESUME | THREAD_GET_CONTEXT | THREAD_QUERY_INFORMATION | THREAD_SYNCHRONIZE;
    // SAFETY: the handle is fresh.
    match unsafe { system::own(OpenThread(rights, 0, tid)) } {
        Ok(handle) => {
            // SAFETY: the handle is open with the right to ask.
            let pid = unsafe { GetProcessIdOfThread(handle.as_raw_handle()) };
            Ok((pid == process.pid()).then_some(handle))
        }
        Err(error) if system::code(&error) == GONE => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the thread has ended, or is neither in the agent nor on its way there. Without `places`
/// only threads that began in the agent can be there, and no other is suspended.
///
/// # Errors
/// Why that cannot be found out: a part of a sentence.
fn is_elsewhere(process: &Process, places: Option<&Places>, thread: &Suspect) -> Result<bool, String> {
    if system::wait(thread.handle.as_handle(), 0) {
        return Ok(true);
    }
    if thread.of_agent {
        return Ok(false);
    }
    let Some(places) = places else { return Ok(true) };
    let ip = match held::inspect(SuspendedThread(thread.handle.clone()), MOST_HELD) {
        Ok(Inspection::Done(ip)) => ip,
        Ok(Inspection::Refused) => return Ok(false),
        Ok(Inspection::NotStopped) => {
            return Err(format!(
                "its thread {} did not stop within {} s and was resumed",
                thread.tid,
                MOST_HELD.as_secs()
            ));
        }
        Err(error) => return Err(format!("no thread can be started that inspects its threads ({error})")),
    };
    let mut code = [0; BEFORE + 1];
    let known = places.needs_code(ip) && process.read(ip - BEFORE as u64, &mut code);
    Ok(places.is_elsewhere(ip, known.then_some(&code)))
}

/// The calls about a thread, whose handle stays open as long as the helper is in one of them, which
/// may be for ever.
struct SuspendedThread(Arc<OwnedHandle>);

impl ThreadCalls for SuspendedThread {
    /// Its instruction pointer.
    type Found = u64;

    fn suspend(&self) -> bool {
        suspension::suspend(self.0.as_handle())
    }

    fn read(&self) -> Option<u64> {
        suspension::registers_of(self.0.as_handle()).map(|registers| registers.ip)
    }

    fn resume(&self) {
        suspension::resume(self.0.as_handle());
    }
}

/// The function with which the thread began.
fn start_address(thread: &OwnedHandle) -> Option<u64> {
    type Function = unsafe extern "system" fn(HANDLE, i32, *mut usize, u32, *mut u32) -> NTSTATUS;
    /// ThreadQuerySetWin32StartAddress.
    const START: i32 = 9;
    let function = system::ntdll(c"NtQueryInformationThread")?;
    // SAFETY: this is the documented signature of NtQueryInformationThread.
    let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
    let mut address = 0;
    let size = size_of_val(&address) as u32;
    // SAFETY: the handle is open with the right to ask, and the result is one address.
    let status = unsafe { function(thread.as_raw_handle(), START, &mut address, size, std::ptr::null_mut()) };
    (status >= 0).then_some(address as u64)
}
