//! Runs Windows programs to record.

use super::{Folder, Machine, command, orphaned_lock, path, read_lossy, terminate, wait_for, windows_path};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// A program that still runs this long after its expected end may hang.
const ENDS_SOON: Duration = Duration::from_secs(10);

/// A running Windows program, killed on drop.
#[derive(Debug)]
pub struct Program {
    child: Child,
    log: PathBuf,
    pid: u32,
    /// Whether the child is another process, which waits for the program.
    has_substitute: bool,
}

/// Folder of the tests' own programs and scripts.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs")
}

/// A runtime that examples/mixed is built for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Net {
    /// CoreCLR 3.1.2: dotnet.exe and coreclr.dll.
    V3,
    /// CoreCLR 10.0.9, single-file.
    V10,
}

impl Net {
    /// Folder, program and first arguments of the mixed example.
    pub fn program(self) -> (PathBuf, PathBuf, &'static [&'static str]) {
        let mixed = path("STK_MIXED_DIR");
        match self {
            Net::V3 => {
                (mixed.join("net31"), path("STK_FETCH_DIR").join("dotnet31/dotnet.exe"), &["mixed.dll"])
            }
            Net::V10 => (mixed.join("net10"), mixed.join("net10/mixed.exe"), &[]),
        }
    }
}

impl Program {
    /// Starts examples/busy for `seconds` (0 = until it is killed) and waits until it is ready.
    pub fn busy(folder: &Folder, seconds: u32) -> Program {
        let home = path("STK_BUSY_DIR");
        Program::ready(folder, &home, &home.join("busy.exe"), &[&seconds.to_string()])
    }

    /// Starts cmake.exe of this file on a script that calls itself, and waits until it is at work.
    pub fn cmake(folder: &Folder, exe: &Path) -> Program {
        let script = windows_path(&programs().join("recurse.cmake"));
        let cmake = Program::start(folder, folder.path(), exe, &["-P", &script]);
        wait_for("cmake to be at work", || cmake.output().contains("ready").then_some(()));
        cmake
    }

    /// Starts node.exe on a script that works for `seconds`, and waits until it is ready.
    pub fn node(folder: &Folder, seconds: u32) -> Program {
        let exe = path("STK_FETCH_DIR").join("node/bin/node.exe");
        let script = windows_path(&programs().join("work.js"));
        Program::ready(folder, folder.path(), &exe, &[&script, &seconds.to_string()])
    }

    /// Starts examples/stress for `seconds` and waits until it is ready.
    pub fn stress(folder: &Folder, seconds: u32) -> Program {
        let home = path("STK_STRESS_DIR");
        Program::ready(folder, &home, &home.join("stress.exe"), &[&seconds.to_string()])
    }

    /// Starts examples/mixed on CoreCLR 3.1.2 or 10.0.9 with these arguments and environment
    /// variables and waits until it is ready.
    pub fn mixed(folder: &Folder, net: Net, arguments: &[&str], variables: &[(&str, &str)]) -> Program {
        let (home, exe, first) = net.program();
        Program::mixed_at(folder, (&home, &exe, first), arguments, variables)
    }

    /// As [`Program::mixed`], with a folder, a program and first arguments like those of
    /// [`Net::program`].
    pub fn mixed_at(
        folder: &Folder,
        (home, exe, first): (&Path, &Path, &[&str]),
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Program {
        let arguments: Vec<&str> = first.iter().copied().chain(arguments.iter().copied()).collect();
        let stop = windows_path(&stop_file(&log_of(folder, exe)));
        let variables = [variables, &[("MIXED_STOP", &stop)]].concat();
        let mut program = Program::start_with(folder, home, exe, &arguments, &variables);
        program.wait_until_ready(exe);
        program
    }

    /// Starts `exe` in the folder `home` and waits until it has printed `pid N` and `ready`.
    pub fn ready(folder: &Folder, home: &Path, exe: &Path, arguments: &[&str]) -> Program {
        let mut program = Program::start(folder, home, exe, arguments);
        if let Err(why) = program.wait_for_ready(exe) {
            // A loaded Wine 8 once did not start a program right after another had been killed by
            // SIGKILL. The program was not being recorded yet.
            super::measured(&format!("{why}: started again"));
            program = Program::start(folder, home, exe, arguments);
            program.wait_until_ready(exe);
        }
        program
    }

    fn wait_until_ready(&mut self, exe: &Path) {
        self.wait_for_ready(exe).unwrap_or_else(|why| panic!("{why}:\n{}", self.output()));
    }

    /// Waits until the program has printed its process id and `ready`; an error if it ended before.
    fn wait_for_ready(&mut self, exe: &Path) -> Result<(), String> {
        let (program, exe) = (self, exe.display());
        let pid = wait_for(&format!("{exe} to be ready"), || {
            let text = program.output();
            if let Ok(Some(status)) = program.child.try_wait() {
                return Some(Err(format!("{exe} ended with {status} before it was ready")));
            }
            let pid = text.lines().find_map(|line| line.strip_prefix("pid "))?.trim().parse().ok()?;
            text.contains("ready\n").then_some(Ok(pid))
        });
        program.pid = pid?;
        Ok(())
    }

    /// Starts `exe` in the folder `home`; its Windows process id is not known (0).
    pub fn start(folder: &Folder, home: &Path, exe: &Path, arguments: &[&str]) -> Program {
        Program::start_with(folder, home, exe, arguments, &[])
    }

    fn start_with(
        folder: &Folder,
        home: &Path,
        exe: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Program {
        let log = log_of(folder, exe);
        let out = File::create(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
        let err = out.try_clone().expect("a file handle can be duplicated");
        let child = command(exe)
            .args(arguments)
            // Wine reports a lock that is left by a thread that does not hold it: see `wait`.
            .env("WINEDEBUG", "-all,err+sync")
            .envs(variables.iter().copied())
            .current_dir(home)
            .stdout(out)
            .stderr(err)
            .spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{} cannot be run under Wine: {error}", exe.display()));
        let has_substitute = Machine::current().has_substitute(exe);
        Program { child, log, pid: 0, has_substitute }
    }

    /// Has examples/mixed end now.
    pub fn stop(&self) {
        let stop = stop_file(&self.log);
        File::create(&stop).unwrap_or_else(|error| panic!("{}: {error}", stop.display()));
    }

    /// Its Windows process id.
    pub fn pid(&self) -> String {
        self.pid.to_string()
    }

    /// Its Linux process id. Wine's loader becomes the program.
    pub fn linux_pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends its Linux process this signal, by the name that kill(1) knows.
    #[cfg(not(windows))]
    pub fn signal(&self, name: &str) {
        assert!(super::machine::signal(&self.child, name), "no signal could be sent");
    }

    /// What it has printed so far.
    pub fn output(&self) -> String {
        read_lossy(&self.log)
    }

    /// Waits for its own end.
    ///
    /// # Panics
    /// If Wine reported that a thread left a lock that it did not hold. The recorder once did that,
    /// and one in fifty recorded programs then hung.
    pub fn wait(&mut self) -> ExitStatus {
        let status = wait_for("the recorded program to end", || {
            self.child.try_wait().expect("a child can be waited for")
        });
        let output = self.output();
        assert!(!output.contains("is not acquired"), "a lock was left by who does not hold it:\n{output}");
        status
    }

    /// As [`Program::wait`], but kills the program and returns `None` if Wine makes it hang at its
    /// end (see [`orphaned_lock`]).
    ///
    /// [`orphaned_lock`]: super::orphaned_lock
    pub fn wait_unless_wine_hangs(&mut self) -> Option<ExitStatus> {
        let begun = Instant::now();
        let hangs = wait_for("the recorded program to end", || {
            let looks = begun.elapsed() > ENDS_SOON;
            (!self.is_running())
                .then_some(false)
                .or_else(|| (looks && orphaned_lock::is_left_spinning(self.linux_pid())).then_some(true))
        });
        if hangs {
            self.child.kill().expect("a child can be killed");
            return None;
        }
        Some(self.wait())
    }

    /// Waits for its own end, checks that it succeeded and that it has printed `says`.
    ///
    /// # Panics
    /// If one of both is not so. The message contains its whole output.
    #[track_caller]
    pub fn ends_saying(&mut self, says: &str) {
        let status = self.wait();
        let output = self.output();
        assert!(status.success() && output.contains(says), "{status}\n{output}");
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it by SIGKILL from the kernel, which Wine notices afterwards.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.wait();
    }

    /// Ends it by TerminateProcess, called in another Windows program.
    pub fn terminate(&mut self) {
        terminate(&self.pid(), &self.log);
        self.wait();
    }
}

/// The file for a program's output.
fn log_of(folder: &Folder, exe: &Path) -> PathBuf {
    let name = exe.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    folder.file(&format!("{name}.log"))
}

/// The file whose existence ends examples/mixed, by the file for its output.
fn stop_file(log: &Path) -> PathBuf {
    log.with_extension("stop")
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.is_running() {
            if self.has_substitute && self.pid != 0 && !std::thread::panicking() {
                terminate(&self.pid(), &self.log);
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
