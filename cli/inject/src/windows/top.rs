//! `inject top`: records to a temporary file, and has `stk top` beside this inject show it.
//!
//! inject itself reads no symbols and walks no stack: what stk shows here is what it shows of any
//! trace. The recording is made by a copy of inject, so that its messages are not on the screen.

use super::console;
use super::process;
use super::stk;
use super::system;
use crate::args::{Target, Top};
use crate::failure::{self, Failure};
use crate::windows::launch::copies;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::windows::io::AsHandle as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long the recording may take to begin.
const BEGINS: Duration = Duration::from_secs(30);
/// Milliseconds that the recording may take to end.
const ENDS_MS: u32 = 30_000;

/// Shows what a process does, and returns the exit code: that of the recording if it failed, else
/// that of stk.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn run(top: &Top) -> Result<i32, Failure> {
    let pid = match &top.target {
        Target::Pid(pid) => *pid,
        Target::Name(name) => process::pid_of(name)?,
        _ => return Err(Failure::usage("name one process that runs")),
    };
    let stk = stk::beside("inject top", "record with -o FILE, and run stk top FILE")?;
    let fail = |error: std::io::Error| Failure::failed(format!("inject top: {error}"));
    // Ctrl-C reaches both programs themselves; this inject cleans up.
    console::catch().map_err(fail)?;
    let name = stk_schema::text::hex(&crate::uuid::random());
    let trace = TemporaryTrace(std::env::temp_dir().join(format!("{name}.stk")));
    let job = copies::job().map_err(fail)?;
    let mut recording = Recording(record(pid, top, &trace.0).map_err(fail)?, pid);
    copies::join(&job, &recording.0);
    recording.wait_until_begun(&trace.0)?;
    let mut command = Command::new(&stk);
    command.arg("top").arg(&trace.0).args(&top.stk_arguments);
    if top.once {
        command.arg("--once");
    }
    let shown = command.status();
    let shown =
        shown.map_err(|error| Failure::failed(format!("{} cannot be run: {error}", stk.display())))?;
    recording.end()?;
    Ok(shown.code().unwrap_or(failure::FAILED))
}

/// Starts a copy of inject that records the process to `trace`.
fn record(pid: u32, top: &Top, trace: &Path) -> std::io::Result<Child> {
    let mut arguments: Vec<OsString> =
        vec!["--pid".into(), pid.to_string().into(), "-o".into(), trace.into()];
    arguments.extend(["-r".into(), format!("{}", f64::from(top.rate_mhz) / 1000.0).into()]);
    if let Some(dll) = &top.dll {
        arguments.push(dll.into());
    }
    Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
}

/// A copy of inject that records, and the id of the process.
struct Recording(Child, u32);

impl Recording {
    /// Waits until the trace has content.
    fn wait_until_begun(&mut self, trace: &Path) -> Result<(), Failure> {
        let begun = Instant::now();
        while !trace.metadata().is_ok_and(|file| file.len() != 0) {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Err(Failure::with_code(status.code().unwrap_or(failure::FAILED), self.said()));
            }
            if begun.elapsed() > BEGINS {
                return Err(Failure::failed(format!(
                    "the recording did not begin within {} s",
                    BEGINS.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Ends the recording, unless it has ended.
    fn end(&mut self) -> Result<(), Failure> {
        if matches!(self.0.try_wait(), Ok(None)) {
            super::stop(&Target::Pid(self.1), ENDS_MS, false).or_else(|failure| {
                // The process may have ended meanwhile, and its recording with it.
                if system::wait(self.0.as_handle(), ENDS_MS) { Ok(failure::OK) } else { Err(failure) }
            })?;
            system::wait(self.0.as_handle(), ENDS_MS);
        }
        Ok(())
    }

    /// What the copy has said, without the name of this program.
    fn said(&mut self) -> String {
        let mut text = String::new();
        if let Some(said) = &mut self.0.stderr {
            let _ = said.read_to_string(&mut text);
        }
        text.trim().trim_start_matches("inject: ").to_owned()
    }
}

/// A trace that is deleted on drop.
struct TemporaryTrace(PathBuf);

impl Drop for TemporaryTrace {
    fn drop(&mut self) {
        let _ = system::delete(&self.0);
    }
}
