//! Runs `stk` under limits and measures its time and memory.

use crate::wine;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::RwLock;
use std::time::Duration;

/// Most memory that a run may take, in bytes.
pub const MEMORY: u64 = 512 << 20;
/// Processor time of a run on input of a megabyte or less.
pub const CPU_LEAST: Duration = Duration::from_secs(2);
/// Processor time for each byte of larger input: 2 s a megabyte.
const CPU_PER_BYTE: Duration = Duration::from_micros(2);
/// Processor time that no input may take.
const CPU_MOST: Duration = Duration::from_secs(10);
/// Processor time after which a run is killed, in seconds.
pub const CPU_SECONDS: u64 = 11;
/// Seconds after which a run is killed, even if it waits.
const WALL_SECONDS: u32 = 60;
/// Address space of a run, in bytes.
const ADDRESS_SPACE: u64 = 4 << 30;
/// The same three for [`other_program`].
const OTHER: (u64, u32, u64) = (10, 20, 1 << 30);
/// The most bytes of each output that are read.
pub const LOOKED_AT: u64 = 64 << 20;

/// Held for writing while this process uses much memory, because a program's peak starts with the
/// memory of the process that starts it.
pub static START: RwLock<()> = RwLock::new(());

/// The output and the cost of a run.
#[derive(Debug)]
pub struct Run {
    /// Exit code; `None` after a signal, those of the limits included.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// What it printed to stdout.
    pub stdout: Vec<u8>,
    /// What it printed to stderr.
    pub stderr: Vec<u8>,
    /// Processor time of all its threads.
    pub cpu: Duration,
    /// Most memory that it had in use, in bytes.
    pub peak: u64,
}

/// The most processor time that input of `len` bytes may take.
pub fn cpu_limit(len: usize) -> Duration {
    (CPU_PER_BYTE * len as u32).clamp(CPU_LEAST, CPU_MOST)
}

/// The program to run in place of `stk`, to see what it does with hostile input: the path in
/// `STK_HOSTILE_PROGRAM`. It has narrower limits than `stk`, since it may take all that it gets.
pub fn other_program() -> Option<PathBuf> {
    std::env::var_os("STK_HOSTILE_PROGRAM").map(PathBuf::from)
}

/// Runs `stk` in `folder` with these arguments and at most `files` descriptors.
///
/// # Errors
///
/// When it cannot be started.
pub fn run(folder: &Path, arguments: &[&str], files: u64) -> io::Result<Run> {
    run_with(folder, arguments, files, &[])
}

/// [`run`] with these variables in the environment.
///
/// # Errors
///
/// When it cannot be started.
pub fn run_with(
    folder: &Path,
    arguments: &[&str],
    files: u64,
    variables: &[(&str, &str)],
) -> io::Result<Run> {
    let outputs = tempfile::tempdir()?;
    let (out, err) = (outputs.path().join("out"), outputs.path().join("err"));
    let mut command = Command::new(other_program().unwrap_or_else(|| wine::path("STK_BIN")));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.stdout(File::create(&out)?).stderr(File::create(&err)?);
    command.env_remove("_NT_SYMBOL_PATH").env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    command.envs(variables.iter().copied());
    limit(&mut command, files);
    let turn = START.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    let child = command.spawn()?;
    drop(turn);
    let (status, used) = wait(child.id())?;
    let seconds = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Ok(Run {
        code: status.code(),
        signal: status.signal(),
        stdout: read(&out)?,
        stderr: read(&err)?,
        cpu: seconds(used.ru_utime) + seconds(used.ru_stime),
        // Kilobytes on Linux.
        peak: used.ru_maxrss as u64 * 1024,
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LOOKED_AT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Sets limits for the command's process.
fn limit(command: &mut Command, files: u64) {
    let set = |what, value| {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        // SAFETY: the structure lives through the call.
        if unsafe { libc::setrlimit(what, &limit) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let own = (CPU_SECONDS, WALL_SECONDS, ADDRESS_SPACE);
    let (cpu, wall, address_space) = if other_program().is_some() { OTHER } else { own };
    let all = move || {
        set(libc::RLIMIT_CPU, cpu)?;
        set(libc::RLIMIT_AS, address_space)?;
        set(libc::RLIMIT_NOFILE, files)?;
        set(libc::RLIMIT_CORE, 0)?;
        // SAFETY: only arms a timer, which outlives exec; its signal ends the program.
        unsafe { libc::alarm(wall) };
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made, which are allowed there.
    unsafe { command.pre_exec(all) };
}

/// Returns unused memory to the system: see [`START`].
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and may be called by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Waits for a child of this process; returns its resource usage too.
fn wait(pid: u32) -> io::Result<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    // SAFETY: the structure is of integers alone.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both live through the call; no other code waits for this child.
    let ended = unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, &mut used) };
    if ended < 0 { Err(io::Error::last_os_error()) } else { Ok((ExitStatus::from_raw(status), used)) }
}
