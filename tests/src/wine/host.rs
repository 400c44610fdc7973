//! Runs agent/tests/host.c, a program that loads agent.dll into itself and records itself, one
//! scenario per run.

use super::{LIMIT, Machine, c_compiler, command, output_within, path, windows_path};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The program, compiled for this run's machine.
#[derive(Debug)]
pub struct HostProgram {
    program: PathBuf,
    folder: PathBuf,
}

/// The result of a scenario.
#[derive(Debug)]
pub struct HostRun {
    /// The program's output by line: a key and its value.
    pub output: Vec<(String, String)>,
    /// The whole output.
    pub text: String,
    /// How it ended.
    pub status: ExitStatus,
    /// Path of the trace that it writes.
    pub trace: PathBuf,
}

impl HostProgram {
    /// Compiles it as `<name>.exe` into this machine's folder below `folder`, in which the
    /// scenarios run too.
    pub fn compile(folder: &str, name: &str) -> HostProgram {
        let folder = Machine::current().folder(Path::new(folder));
        let program = folder.join(format!("{name}.exe"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/tests/host.c");
        let status = Command::new(c_compiler())
            .args(["-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-o"])
            .arg(&program)
            .arg(&source)
            .status()
            .expect("the machine's C compiler runs");
        assert!(status.success(), "host.c does not compile: {status}");
        HostProgram { program, folder }
    }

    /// The program's file.
    pub fn file(&self) -> &Path {
        &self.program
    }

    /// The folder in which a scenario runs. Makes it if it is missing.
    pub fn scenario_folder(&self, scenario: &str) -> PathBuf {
        let name = self.program.file_stem().unwrap_or_default().to_string_lossy();
        let folder = self.folder.join(format!("{name}-{scenario}"));
        std::fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        folder
    }

    /// Runs a scenario to its end.
    pub fn run(&self, scenario: &str, arguments: &[&str]) -> HostRun {
        self.run_within(LIMIT, scenario, arguments)
    }

    /// As [`HostProgram::run`], but the scenario may take this many seconds.
    pub fn run_within(&self, seconds: u32, scenario: &str, arguments: &[&str]) -> HostRun {
        let folder = self.scenario_folder(scenario);
        let trace = folder.join("out.stk");
        let mut command = command(&self.program);
        command
            .arg(windows_path(&path("STK_WINDOWS_BIN").join("agent.dll")))
            .arg(windows_path(&trace))
            .arg(scenario)
            .args(arguments)
            .current_dir(&folder);
        let output = output_within(seconds, &mut command).unwrap_or_else(|why| panic!("{why}"));
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let lines = lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        HostRun { output: lines, text, status: output.status, trace }
    }
}

impl HostRun {
    /// The values of a key, in the order in which they were printed.
    pub fn all(&self, key: &str) -> Vec<&str> {
        self.output.iter().filter(|(name, _)| name == key).map(|(_, value)| value.as_str()).collect()
    }

    /// The last value of a key.
    ///
    /// # Panics
    /// If none was printed.
    #[track_caller]
    pub fn one(&self, key: &str) -> &str {
        self.all(key)
            .last()
            .copied()
            .unwrap_or_else(|| panic!("the program printed no {key}: {:?}", self.output))
    }
}
