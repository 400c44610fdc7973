//! Dumps a running process: inject takes one sample of each of its threads into a temporary trace.

use super::super::Exit;
use std::path::Path;

/// Lets inject sample a process once, and calls `dump` with the trace.
///
/// # Errors
///
/// On other systems than Windows, a usage error with advice. Otherwise that inject cannot be run,
/// or the error of `dump`.
#[cfg(not(windows))]
pub(super) fn with_sample(pid: u32, _: impl FnOnce(&Path) -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    let text = format!(
        "--pid works on Windows only, where the process runs: there `inject --pid {pid} --once -o once.stk`, \
         here `stk dump once.stk`"
    );
    Err(super::super::Usage(text).into())
}

/// Lets inject sample a process once, and calls `dump` with the trace.
///
/// # Errors
///
/// That inject is missing or cannot be run, or the error of `dump`.
#[cfg(windows)]
pub(super) fn with_sample(
    pid: u32,
    dump: impl FnOnce(&Path) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    use anyhow::Context;
    use std::process::{Command, Stdio};

    // The trace is in a temporary folder and is named without a path, since inject expands `%` in
    // the name of its output.
    const TRACE: &str = "once.stk";
    let inject = std::env::current_exe().context("the folder of stk.exe is not known")?;
    let inject = inject.with_file_name("inject.exe");
    if !inject.is_file() {
        anyhow::bail!(
            "{}: is not there: --pid needs inject.exe and agent.dll beside stk.exe",
            inject.display()
        );
    }
    let folder = stk_base::interrupt::folder()?;
    let ran = Command::new(&inject)
        .args(["--pid", &pid.to_string(), "--once", "-o", TRACE])
        .current_dir(folder.at().path())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{}: cannot be run", inject.display()))?;
    if ran.status.success() {
        return dump(&folder.at().join(TRACE).path());
    }
    // Print inject's own message. Its exit codes 1 to 3 have the same meaning here.
    eprint!("{}", String::from_utf8_lossy(&ran.stderr));
    Ok(match ran.status.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Target,
        Some(130) => Exit::Interrupted,
        _ => Exit::Failure,
    })
}
