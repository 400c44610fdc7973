//! Commands of stk on traces that the fuzzer's input changes.

use crate::mutated::mutated;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};
use stk::commands::{Exit, answer};
use stk_base::panics::is_of_input;

/// Runs commands on a trace that `data` changes. `TRACE` stands for it, at the end if it is nowhere
/// else; `OUT` for an output, and `EXAMPLES` for the folder of the kept traces' sources.
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
        let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let argument = |part: &&str| match *part {
            "TRACE" => trace.clone().into_os_string(),
            part => OsString::from(part.replace("OUT", &out).replace("EXAMPLES", examples)),
        };
        let last = (!command.contains(&"TRACE")).then(|| trace.clone().into_os_string());
        answered(command.iter().map(argument).chain(last));
    }
}

/// Runs a command.
///
/// # Panics
///
/// When it ends in a way that no input may cause.
pub fn answered(arguments: impl Iterator<Item = OsString>) {
    // An error is allowed, since the input may not be valid. A caught fault is a fault of stk.
    match answer(arguments) {
        Ok((_, exit)) => assert!(exit != Exit::Usage && exit != Exit::Interrupted, "{exit:?}"),
        Err(error) => assert!(!format!("{error:#}").contains("a fault of stk"), "{error:#}"),
    }
}

/// Panics end the target, except those of libraries that are errors of the input.
pub fn end_at_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            if !is_of_input(panic) {
                eprintln!("{panic}");
                std::process::abort();
            }
        }));
    });
}

/// A folder that only this process uses.
pub fn folder() -> PathBuf {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder")).path().to_owned()
}
