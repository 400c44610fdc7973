//! Commands of stk on traces that the fuzzer's input changes.

use crate::mutated::mutated;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;
use stk::commands::{Exit, answer};

/// Runs commands on a trace that `data` changes. The trace is their last argument; `OUT` stands for
/// an output.
///
/// # Panics
///
/// When a command ends in a way that no trace may cause.
pub fn run(data: &[u8], commands: &[&[&str]]) {
    let folder = folder();
    let trace = folder.join("fuzz.stk");
    std::fs::write(&trace, mutated(data)).expect("room for a trace");
    for command in commands {
        let out = folder.join("out").display().to_string();
        let arguments = command.iter().map(|part| OsString::from(part.replace("OUT", &out)));
        // An error is allowed, since the trace may not be valid. A caught fault is a fault of stk.
        match answer(arguments.chain([trace.clone().into_os_string()])) {
            Ok((_, exit)) => assert!(exit != Exit::Usage && exit != Exit::Interrupted, "{exit:?}"),
            Err(error) => assert!(!error.to_string().contains("a fault of stk"), "{error:#}"),
        }
    }
}

/// A folder that only this process uses.
fn folder() -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder")).path().to_owned()
}
