//! Runs inject.exe.

use super::{
    Folder, Machine, command, path, read_lossy, terminate, threads, try_terminate, wait_for, wait_for_or_show,
};
use crate::schema;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};

/// A running inject.exe, killed on drop.
#[derive(Debug)]
pub struct Inject {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    line: String,
}

/// The result of a run of inject.exe.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line, for messages.
    pub line: String,
    /// Exit code.
    pub code: Option<i32>,
    /// What it printed to stdout.
    pub stdout: String,
    /// What it printed to stderr.
    pub stderr: String,
}

/// What inject says where Wine could not start the program to launch.
const NOT_STARTED: &str = "cannot be started: Internal error. (os error 1359)";

impl Inject {
    /// Runs inject.exe in `folder` to its end.
    pub fn run(folder: &Folder, arguments: &[&str]) -> Finished {
        Inject::run_exe(&path("STK_WINDOWS_BIN").join("inject.exe"), folder, arguments)
    }

    /// Runs a recording that must succeed. On an overloaded machine a thread can stay suspended for
    /// more than the 100 ms that the agent's watchdog allows. The watchdog then ends the recording,
    /// as it must, and the recording is repeated.
    #[track_caller]
    pub fn record(folder: &Folder, arguments: &[&str]) -> Finished {
        let finished = Inject::try_record(folder, arguments);
        finished.expect(0);
        finished
    }

    /// As [`Inject::record`], whatever the exit code is.
    pub fn try_record(folder: &Folder, arguments: &[&str]) -> Finished {
        Inject::record_with(&path("STK_WINDOWS_BIN").join("inject.exe"), folder, arguments)
    }

    /// What `inject status` says of the recording of this process.
    #[track_caller]
    pub fn status(folder: &Folder, pid: &str) -> serde_json::Value {
        Inject::status_by(&path("STK_WINDOWS_BIN").join("inject.exe"), folder, pid)
    }

    /// As [`Inject::status`], by this inject.
    #[track_caller]
    pub fn status_by(exe: &Path, folder: &Folder, pid: &str) -> serde_json::Value {
        let reported = Inject::run_exe(exe, folder, &["status", "--pid", pid, "--json"]);
        let reported: serde_json::Value = serde_json::from_str(&reported.expect(0).stdout).expect("JSON");
        reported["recordings"][0].clone()
    }

    /// As [`Inject::record`], by the inject that records 32-bit programs.
    #[track_caller]
    pub fn record_x86(folder: &Folder, arguments: &[&str]) -> Finished {
        let exe = path("STK_WINDOWS32_BIN").join("inject32.exe");
        let finished = Inject::record_with(&exe, folder, arguments);
        finished.expect(0);
        finished
    }

    fn record_with(exe: &Path, folder: &Folder, arguments: &[&str]) -> Finished {
        const TRIES: u32 = 5;
        let mut finished = Inject::run_exe(exe, folder, arguments);
        for _ in 1..TRIES {
            if !finished.stderr.contains("the agent's watchdog ended the recording") {
                break;
            }
            finished = Inject::run_exe(exe, folder, &again(arguments));
        }
        finished
    }

    /// Runs the inject of 32-bit programs in `folder` to its end.
    pub fn run_x86(folder: &Folder, arguments: &[&str]) -> Finished {
        Inject::run_exe(&path("STK_WINDOWS32_BIN").join("inject32.exe"), folder, arguments)
    }

    /// The line of this inject's `ps --json` for a process.
    #[track_caller]
    pub fn listed_by(exe: &Path, folder: &Folder, pid: &str) -> Value {
        let list = Inject::run_exe(exe, folder, &["ps", "--json"]);
        let list: Value = serde_json::from_str(&list.expect(0).stdout).expect("ps --json prints JSON");
        let rules = include_str!("../../../schema/ps.schema.json");
        let rules: Value = serde_json::from_str(rules).expect("a schema");
        schema::check(&rules, &list).expect("as schema/ps.schema.json describes it");
        let wanted: Value = pid.parse::<u32>().expect("a number").into();
        let found = list["processes"].as_array().expect("a list").iter().find(|line| line["pid"] == wanted);
        found.unwrap_or_else(|| panic!("process {pid} is not listed")).clone()
    }

    /// Starts inject.exe in `folder`.
    pub fn start(folder: &Folder, arguments: &[&str]) -> Inject {
        Inject::start_in(folder, folder.path(), arguments)
    }

    /// Starts inject.exe in `home`, with its logs in `folder`.
    pub fn start_in(folder: &Folder, home: &Path, arguments: &[&str]) -> Inject {
        Inject::start_exe(&path("STK_WINDOWS_BIN").join("inject.exe"), folder, home, arguments)
    }

    /// Runs this inject in `folder` to its end; once more where Wine could not start the program to
    /// launch, which leaves nothing.
    pub fn run_exe(exe: &Path, folder: &Folder, arguments: &[&str]) -> Finished {
        const TRIES: u32 = 3;
        let run = || Inject::start_exe(exe, folder, folder.path(), arguments).finish();
        let mut finished = run();
        for _ in 1..TRIES {
            if !finished.stderr.contains(NOT_STARTED) {
                break;
            }
            finished = run();
        }
        finished
    }

    /// Starts this inject in `home`, with its logs in `folder`.
    pub fn start_exe(exe: &Path, folder: &Folder, home: &Path, arguments: &[&str]) -> Inject {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let out = folder.file(&format!("inject-{number}.out"));
        let err = folder.file(&format!("inject-{number}.err"));
        let create =
            |path: &Path| File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let child =
            command(exe).args(arguments).current_dir(home).stdout(create(&out)).stderr(create(&err)).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("{} cannot be run under Wine: {error}", exe.display()));
        Inject { child, out, err, line: format!("inject {}", arguments.join(" ")) }
    }

    /// Waits until it records.
    pub fn wait_until_recording(&mut self) {
        self.wait_until_a_line_begins("recording ");
    }

    /// Waits until a line that it has printed begins so.
    pub fn wait_until_a_line_begins(&mut self, beginning: &str) {
        let line = self.line.clone();
        wait_for(&format!("{line} to say {beginning:?}"), || {
            let text = read_lossy(&self.err);
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("{line} ended with {status}:\n{text}");
            }
            text.lines().any(|said| said.starts_with(beginning)).then_some(())
        });
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        let sent = Machine::current().interrupt(&self.child);
        assert!(sent, "no signal could be sent to {}", self.line);
    }

    /// Sends its Linux process this signal, by the name that kill(1) knows.
    #[cfg(not(windows))]
    pub fn signal(&self, name: &str) {
        let sent = super::machine::signal(&self.child, name);
        assert!(sent, "no signal could be sent to {}", self.line);
    }

    /// Starts a program in `home`, records it and waits for its end. Where a thread is stopped, for
    /// somebody to read its process's memory, in the middle of a long message to the wineserver,
    /// Wine 8 takes the message for broken and ends that thread; the program may then never end. It
    /// is killed and recorded again. On a loaded machine Wine 8 sometimes starts no process at all
    /// ("Internal error").
    pub fn launch_in(folder: &Folder, home: &Path, arguments: &[&str]) -> Finished {
        const TRIES: u32 = 3;
        let again = again(arguments);
        for number in 1..TRIES {
            let arguments = if number == 1 { arguments } else { &again };
            if let Some(finished) = Inject::start_in(folder, home, arguments).finish_unless_wine_breaks() {
                return finished;
            }
        }
        Inject::start_in(folder, home, &again).finish()
    }

    fn finish_unless_wine_breaks(mut self) -> Option<Finished> {
        let (line, err) = (format!("{} to end", self.line), self.err.clone());
        let broken = || read_lossy(&err).contains("wine client error");
        let ended = || {
            let ended = self.child.try_wait().expect("a child can be waited for").is_some();
            (ended || broken()).then_some(())
        };
        wait_for_or_show(&line, ended, || state_of(&err));
        if read_lossy(&err).contains(NOT_STARTED) {
            self.finish();
            return None;
        }
        if !broken() {
            return Some(self.finish());
        }
        let said = read_lossy(&err);
        terminate(pid_in(&said).unwrap_or_else(|| panic!("{line} names no process:\n{said}")), &self.out);
        self.finish();
        None
    }

    /// Waits for its end.
    pub fn finish(mut self) -> Finished {
        let (line, err) = (format!("{} to end", self.line), self.err.clone());
        let ended = || self.child.try_wait().expect("a child can be waited for");
        let status = wait_for_or_show(&line, ended, || state_of(&err));
        Finished {
            line: self.line.clone(),
            code: status.code(),
            stdout: read_lossy(&self.out),
            stderr: read_lossy(&self.err),
        }
    }
}

/// The first process that inject's messages name.
fn pid_in(messages: &str) -> Option<&str> {
    messages.split_once("(pid ").and_then(|(_, rest)| rest.split_once(')')).map(|(pid, _)| pid)
}

/// What inject has printed to this file, and the state of the machine, for the message of a test
/// that waited too long.
fn state_of(err: &Path) -> String {
    // There is none of Wine 8, and none on Windows.
    let server = std::env::var_os("STK_WINE").map(|wine| Path::new(&wine).with_file_name("server.log"));
    let server = server.map(|log| read_lossy(&log)).unwrap_or_default();
    format!("{}\n{}\nwineserver: {server}", read_lossy(err), threads())
}

/// The arguments for repeating a recording. Its trace replaces the first one.
fn again<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&["--force"], arguments].concat()
}

impl Drop for Inject {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
            // A program that it launched is nobody's else, and would be recorded or run beside the
            // next tests.
            if self.line.contains(" -- ")
                && let Some(pid) = pid_in(&read_lossy(&self.err))
            {
                let _ = try_terminate(pid, &self.out);
            }
        }
    }
}

impl Finished {
    /// Checks the exit code.
    #[track_caller]
    pub fn expect(&self, code: i32) -> &Finished {
        assert_eq!(self.code, Some(code), "{}\n{}{}", self.line, self.stdout, self.stderr);
        self
    }

    /// Checks that stderr holds `text`.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Finished {
        assert!(self.stderr.contains(text), "{} does not say '{text}':\n{}", self.line, self.stderr);
        self
    }

    /// Checks that it refused in one clear sentence: nothing on stdout, one line that begins with
    /// `inject: `.
    #[track_caller]
    pub fn refuses(&self, code: i32, text: &str) -> &Finished {
        self.expect(code).says(text);
        assert_eq!(self.stderr.lines().count(), 1, "{} says more than one line:\n{}", self.line, self.stderr);
        assert!(self.stderr.starts_with("inject: ") && self.stdout.is_empty(), "{}", self.stderr);
        self
    }
}
