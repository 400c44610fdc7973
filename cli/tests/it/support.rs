//! Runs `stk` and finds the kept traces: what every module here uses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A kept trace or its PDB.
pub(crate) fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces").canonicalize().unwrap().join(name)
}

/// The same, as an argument.
pub(crate) fn kept_text(name: &str) -> String {
    kept(name).to_str().unwrap().to_owned()
}

/// Traces beside the kept ones whose numbers must agree: those that `STK_TRACES` names, each path
/// from the next as in `PATH`.
pub(crate) fn more_traces() -> Vec<PathBuf> {
    std::env::var_os("STK_TRACES").map_or_else(Vec::new, |paths| std::env::split_paths(&paths).collect())
}

/// `stk` without the environment's symbol path and log level, and with a symbol cache of the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stk"));
    command.args(arguments).env_remove("_NT_SYMBOL_PATH").env_remove("RUST_LOG");
    with_cache(&mut command, Path::new(env!("CARGO_TARGET_TMPDIR")));
    command
}

/// The same in a folder, with a symbol cache in it.
pub(crate) fn command_in(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    with_cache(command.current_dir(folder), folder);
    command
}

fn with_cache(command: &mut Command, folder: &Path) {
    let cache = folder.join("cache");
    command.env("XDG_CACHE_HOME", &cache).env("LOCALAPPDATA", &cache);
}

/// Runs `stk` in a folder, with the symbol cache of the tests.
pub(crate) fn stk(folder: &Path, arguments: &[&str]) -> Output {
    command(arguments).current_dir(folder).output().unwrap()
}

/// How a run of `stk` ended and what it printed, which must be UTF-8.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) error: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), out: text(output.stdout), error: text(output.stderr) }
    }
}

impl Ran {
    /// Runs a command to its end.
    pub(crate) fn of(command: &mut Command) -> Ran {
        command.output().unwrap().into()
    }
}

/// Runs `stk` in a folder, with a symbol cache in it; what it prints must be UTF-8.
pub(crate) fn ran_in(folder: &Path, arguments: &[&str]) -> Ran {
    Ran::of(&mut command_in(folder, arguments))
}
