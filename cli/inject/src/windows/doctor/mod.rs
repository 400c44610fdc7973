//! `inject doctor`: gathers what `crate::doctor` judges.
//!
//! It accesses no other process except that of `--pid`, which it only queries.
//!
//! * [`system`]: Windows, processors, code integrity, security software.
//! * [`files`]: hashes, zone marks, signatures.
//! * [`agent`]: agent.dll in inject's own process.
//! * [`target`]: the process of `--pid`.

mod agent;
mod files;
mod system;
mod target;

use super::agent::AgentFile;
use super::output::{IfThere, Output};
use super::system::{Procedure, kernel32};
use crate::doctor::{self, DoctorReport, Fact, Verdict};
use crate::failure::{self, Failure};
use crate::image;
use std::os::windows::io::{AsRawHandle, BorrowedHandle};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::GetCurrentProcess;
use windows_sys::core::BOOL;

/// The options of `inject doctor`.
#[derive(Clone, Debug, Default)]
pub(crate) struct DoctorQuestion {
    /// A process to check too.
    pub pid: Option<u32>,
    /// JSON instead of text.
    pub json: bool,
    /// File for the report; `None` is the standard output.
    pub output: Option<PathBuf>,
    /// Whether a file that is there may be replaced, if it is no trace.
    pub force: bool,
}

/// Makes the report; the exit code is 1 if something is bad.
///
/// # Errors
/// A sentence for the user, when the report cannot be written.
pub(crate) fn run(question: &DoctorQuestion) -> Result<i32, Failure> {
    let report = report(question.pid);
    let text = if question.json { report.json() } else { report.text() };
    match &question.output {
        Some(path) => {
            let there = if question.force { IfThere::Replace } else { IfThere::Refuse };
            Output::open(path, there)?.write(text.as_bytes())?;
        }
        None => super::print(&text, "the report")?,
    }
    Ok(if report.summary.bad == 0 { failure::OK } else { failure::FAILED })
}

fn report(pid: Option<u32>) -> DoctorReport {
    let agent = AgentFile::open(None);
    let mut facts = doctor::system::judge(&system::gather());
    facts.extend(doctor::files::judge(&files::gather()));
    facts.extend(match &agent {
        Ok(agent) => agent::check(agent),
        Err(failure) => {
            vec![Fact::ok("agent", "loaded", false).but(Verdict::Bad, failure.to_string())]
        }
    });
    // SAFETY: the pseudo handle of this process is valid as long as the process, and needs no
    // closing.
    let own = unsafe { BorrowedHandle::borrow_raw(GetCurrentProcess()) };
    facts.extend(doctor::policies::judge("own-process", &policies(own)));
    if let Some(pid) = pid {
        facts.extend(doctor::target::judge(&target::gather(pid, agent.as_ref().ok())));
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    DoctorReport::new(image::machine_name(image::own_machine()), time, pid, facts)
}

/// The words of all mitigation policies that have one.
fn policies(process: BorrowedHandle) -> Vec<doctor::policies::Word> {
    type Function = unsafe extern "system" fn(HANDLE, i32, *mut u32, usize) -> BOOL;
    let function = kernel32(c"GetProcessMitigationPolicy").map(|function| {
        // SAFETY: this is the documented signature of GetProcessMitigationPolicy.
        unsafe { std::mem::transmute::<Procedure, Function>(function) }
    });
    let word = |policy: i32| {
        // DEP has a BOOLEAN behind its flags; every other policy here is one word.
        const DEP: i32 = 0;
        let mut words = [0u32; 2];
        let size = size_of::<u32>() * if policy == DEP { 2 } else { 1 };
        // SAFETY: the buffer has at least the size that is passed.
        let known = unsafe { function?(process.as_raw_handle(), policy, words.as_mut_ptr(), size) } != 0;
        known.then_some(words[0])
    };
    doctor::policies::POLICIES.iter().map(|&(policy, _)| (policy, word(policy))).collect()
}
