//! A process that runs now: inject takes one sample of each of its threads into a temporary trace.

use super::super::Exit;
use std::path::Path;

/// Has inject sample a process once and hands the trace to `dump`.
///
/// # Errors
///
/// Elsewhere than on Windows a usage error that says what to do; else that inject cannot be run, or
/// what `dump` says.
#[cfg(not(windows))]
pub(super) fn with_sample(pid: u32, _: impl FnOnce(&Path) -> anyhow::Result<Exit>) -> anyhow::Result<Exit> {
    let text = format!(
        "--pid works on Windows only, where the process runs: there `inject --pid {pid} --once -o once.stk`, \
         here `stk dump once.stk`"
    );
    Err(super::super::Usage(text).into())
}

/// Has inject sample a process once and hands the trace to `dump`.
///
/// # Errors
///
/// That inject is not there or cannot be run, or what `dump` says.
#[cfg(windows)]
pub(super) fn with_sample(
    pid: u32,
    dump: impl FnOnce(&Path) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    use anyhow::Context;
    use std::process::{Command, Stdio};

    // In a folder of its own, named without a path: inject expands `%` in the name of its output.
    const TRACE: &str = "once.stk";
    let inject = std::env::current_exe().context("the folder of stk.exe is not known")?;
    let inject = inject.with_file_name("inject.exe");
    if !inject.is_file() {
        anyhow::bail!(
            "{}: is not there: --pid needs inject.exe and agent.dll beside stk.exe",
            inject.display()
        );
    }
    let folder = crate::interrupt::folder()?;
    let ran = Command::new(&inject)
        .args(["--pid", &pid.to_string(), "--once", "-o", TRACE])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{}: cannot be run", inject.display()))?;
    if ran.status.success() {
        return dump(&folder.path().join(TRACE));
    }
    // inject's own sentence; its codes 1 to 3 mean what they mean here.
    eprint!("{}", String::from_utf8_lossy(&ran.stderr));
    Ok(match ran.status.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Target,
        Some(130) => Exit::Interrupted,
        _ => Exit::Failure,
    })
}
