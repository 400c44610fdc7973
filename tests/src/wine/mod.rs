//! Runs Windows programs, under Wine or natively, and inject.exe to record them.
//!
//! [`Machine`] starts them. The paths of the programs come from environment variables that
//! `tests/run.sh` sets (see tests/README.md). A missing variable is a failure: these tests are
//! never skipped.
//!
//! All output of the programs goes to files, not pipes: Wine's services would hold a pipe open
//! after the program's end.

mod host;
mod inject;
mod machine;
mod orphaned_lock;
mod program;

pub use host::{HostProgram, HostRun};
pub use inject::{Finished, Inject};
pub use machine::Machine;
pub use program::{Net, Program};

use crate::recorded::Recorded;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Time limit for one step of a test. Only a hang takes longer.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Time limit for a whole program of a test, in seconds. Only a hang takes longer.
pub const LIMIT: u32 = 240;

/// The path in an environment variable of tests/README.md.
pub fn path(variable: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(value) => value.into(),
        None => {
            panic!("{variable} is not set: run tests/run.sh, or prepare the shell as tests/README.md says")
        }
    }
}

/// Whether the tests run in their long forms (`tests/run.sh --long`).
pub fn long() -> bool {
    std::env::var_os("STK_LONG").is_some_and(|value| value == "1")
}

/// Prints a long test's measurements, for docs/measured/recorder.md, even if the test passes: test
/// harnesses capture only the output of the print macros.
pub fn measured(line: &str) {
    if long() {
        let _ = writeln!(std::io::stderr(), "\nmeasured: {line}");
    }
}

/// A short summary of a recording.
pub fn figures(recorded: &Recorded) -> String {
    let (full, unchanged, dropped) = (recorded.samples.len(), recorded.unchanged, recorded.dropped_samples);
    let end = if recorded.complete { "whole" } else { "without its end" };
    format!("{full} samples in full, {unchanged} passes unchanged, {dropped} dropped, {end}")
}

/// A command that runs a Windows program on the machine of this run.
pub fn command(program: &Path) -> Command {
    Machine::current().command(program)
}

/// Runs a command to its end, as [`Command::output`] does, but its output goes to files.
///
/// # Panics
/// If it does not end within [`LIMIT`]; it is killed then.
pub fn output(command: &mut Command) -> Output {
    output_within(LIMIT, command).unwrap_or_else(|why| panic!("{why}"))
}

/// As [`output`], but the command may take this many seconds. The error, if it takes longer, is a
/// message with what it printed.
pub fn output_within(seconds: u32, command: &mut Command) -> Result<Output, String> {
    let folder = Folder::new("output");
    let files = [folder.file("out"), folder.file("err")];
    let [out, err] = files.each_ref().map(|path| File::create(path).expect("the folder is new"));
    let child = command.stdout(out).stderr(err).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{}: {error}", command.get_program().display()));
    let status = ended_within(seconds, &mut child).map_err(|threads| {
        let said = files.each_ref().map(|path| read_lossy(path)).concat();
        format!("{command:?} did not end within {seconds} s:\n{said}\n{threads}")
    })?;
    let [stdout, stderr] = files.map(|path| std::fs::read(path).expect("the file was made"));
    Ok(Output { status, stdout, stderr })
}

/// How a child ended. If it does not end within these seconds it is killed; the error is what the
/// threads of the machine's Windows programs did.
fn ended_within(seconds: u32, child: &mut Child) -> Result<ExitStatus, String> {
    let ended = || child.try_wait().expect("a child can be waited for");
    found_within(Duration::from_secs(seconds.into()), ended).ok_or_else(|| {
        let threads = threads();
        let _ = child.kill();
        let _ = child.wait();
        threads
    })
}

/// What every thread of the machine's Windows programs waits for, where `ps` shows it.
fn threads() -> String {
    let all = Command::new("ps").args(["-eLo", "pid,tid,stat,wchan:24,etimes,args"]).output();
    let all = all.map_or_else(|error| error.to_string(), |all| String::from_utf8_lossy(&all.stdout).into());
    all.lines().filter(|line| line.contains(".exe")).collect::<Vec<_>>().join("\n")
}

/// Ends the process with this id by TerminateProcess, called in another Windows program. `log` is a
/// file beside which its output goes.
pub fn terminate(pid: &str, log: &Path) {
    let status = try_terminate(pid, log).expect("Wine has a taskkill");
    assert!(status.success(), "taskkill ended with {status}");
}

/// As [`terminate`], where the process may have ended already.
fn try_terminate(pid: &str, log: &Path) -> std::io::Result<ExitStatus> {
    let log = File::create(log.with_extension("taskkill"))?;
    let mut kill = command(Path::new("taskkill.exe"));
    let mut child = kill.args(["/f", "/pid", pid]).stdout(log.try_clone()?).stderr(log).spawn()?;
    ended_within(LIMIT, &mut child).map_err(std::io::Error::other)
}

/// The C compiler for programs of this run's machine: `STK_CC`, or mingw's for x64.
pub fn c_compiler() -> OsString {
    std::env::var_os("STK_CC").unwrap_or_else(|| "x86_64-w64-mingw32-gcc".into())
}

/// `tests/programs/NAME.c` compiled for this run's machine into a folder
/// (`env!("CARGO_TARGET_TMPDIR")`), with warnings as errors.
///
/// # Panics
/// If it cannot be compiled.
pub fn compiled(folder: &str, name: &str) -> PathBuf {
    compiled_with(&c_compiler(), folder, name, "")
}

/// As [`compiled`], as a 32-bit program.
///
/// # Panics
/// As there.
pub fn compiled_x86(folder: &str, name: &str) -> PathBuf {
    compiled_with("i686-w64-mingw32-gcc".as_ref(), folder, name, "32")
}

fn compiled_with(compiler: &OsStr, folder: &str, name: &str, width: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.c"));
    let exe = Path::new(folder).join(format!("{name}{width}-{:?}.exe", Machine::current()));
    // Another module may run it at this moment, on this machine's twin.
    let made = exe.with_extension(format!("{}.exe", std::process::id()));
    let mut compiler = Command::new(compiler);
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&made).arg(&source);
    assert!(compiler.status().expect("the machine's C compiler runs").success(), "{}", source.display());
    std::fs::rename(&made, &exe).unwrap_or_else(|error| panic!("{}: {error}", exe.display()));
    exe
}

/// The same path as Windows programs see it.
pub fn windows_path(path: &Path) -> String {
    Machine::current().windows_path(path)
}

/// Calls `what` until it returns a value.
///
/// # Panics
/// After [`PATIENCE`]. The message contains `name`.
pub fn wait_for<T>(name: &str, what: impl FnMut() -> Option<T>) -> T {
    wait_for_or_show(name, what, String::new)
}

/// As [`wait_for`], but the panic's message also contains the result of `show`.
///
/// # Panics
/// As [`wait_for`].
pub fn wait_for_or_show<T>(name: &str, what: impl FnMut() -> Option<T>, show: impl FnOnce() -> String) -> T {
    found_within(PATIENCE, what).unwrap_or_else(|| panic!("waited too long for {name}\n{}", show()))
}

/// Calls `what` until it returns a value; `None` if it did not within this time.
fn found_within<T>(time: Duration, mut what: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        let found = what();
        if found.is_some() || start.elapsed() >= time {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A folder of a test's own, deleted at its end unless the test fails.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new folder. Its name is not ASCII, to test such paths too.
    pub fn new(test: &str) -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("stk-größe-{test}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Folder(path)
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for a look: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Reads a text file that another process may be writing; empty if it does not exist yet.
fn read_lossy(path: &Path) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).replace('\r', "")).unwrap_or_default()
}

/// Writes JavaScript for esbuild and biome to read: 400 modules, and `entry.js`, which imports all.
pub fn write_modules(folder: &Folder) {
    let mut entry = String::new();
    for number in 0..400 {
        let function =
            |n| format!("export function f{n}(a, b) {{ return a.map((x) => x + b * {n} + {number}); }}\n");
        let source: String = (0..300).map(function).collect();
        std::fs::write(folder.file(&format!("m{number}.js")), source).expect("writable");
        entry +=
            &format!("import * as m{number} from './m{number}.js'; console.log(m{number}.f7([1], 2));\n");
    }
    std::fs::write(folder.file("entry.js"), entry).expect("writable");
}
