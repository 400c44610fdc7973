//! Several processes at once, and processes that are waited for.
//!
//! Each process gets an inject of its own, which records it and is its guard: what goes wrong with
//! one costs the others nothing. They share this inject's console, so Ctrl-C reaches each. They are
//! in a job that ends them if this inject is killed; their recordings then end and are whole.

use super::children::ChildWatch;
use super::copies;
use crate::args::Record;
use crate::failure::{self, Failure};
use crate::messages::say;
use crate::process::name_pattern::NamePattern;
use crate::record::pattern;
use crate::windows::console;
use crate::windows::process::{self, Entry};
use crate::windows::system::{self, Event};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::process::Child;

/// Milliseconds between two looks at the list of processes: nothing reports a process by its name.
const POLL_MS: u32 = 100;

/// Records processes, each by an inject of its own, and returns an exit code for all: that of the
/// first that failed, or 130 if Ctrl-C ended them.
///
/// # Errors
/// A sentence for the user, when the options do not suit several processes.
pub(crate) fn run(record: &Record, pids: &[u32]) -> Result<i32, Failure> {
    if record.detach || record.begun_event.is_some() {
        return Err(Failure::usage("--detach takes one process: call inject for each".to_owned()));
    }
    if record.open {
        return Err(Failure::usage("--open takes one process: open the traces with stk open".to_owned()));
    }
    if !pattern::names_each_process(&record.output) {
        return Err(Failure::usage(
            "several processes need a trace each: write %p (the pid) in the name of -o".to_owned(),
        ));
    }
    let fail = |error: io::Error| Failure::failed(format!("no copy of inject can be started: {error}"));
    // The copies get Ctrl-C themselves. This inject only must not be ended by it.
    console::catch().map_err(fail)?;
    let job = copies::job().map_err(fail)?;
    let mut pids = pids.to_vec();
    pids.sort_unstable();
    pids.dedup();
    let children = ChildWatch::start(record, &pids)?;
    let own: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut copies: Vec<(u32, Child)> = Vec::new();
    for pid in pids {
        match copies::start(&job, pid, &own) {
            Ok(copy) => copies.push((pid, copy)),
            Err(error) => say(&format!("inject: pid {pid}: no copy of inject can be started: {error}")),
        }
    }
    let wanted = copies.len();
    let mut codes = Vec::new();
    for (pid, mut copy) in copies {
        let code = copy.wait().map_err(fail)?.code().unwrap_or(failure::FAILED);
        if code != failure::OK && code != failure::INTERRUPTED {
            say(&format!("inject: pid {pid} was not recorded to its end (code {code})"));
        }
        codes.push(code);
    }
    let recorded = codes.iter().filter(|code| matches!(**code, failure::OK | failure::INTERRUPTED)).count();
    say(&format!("{recorded} of {wanted} processes recorded"));
    let failed = codes.iter().find(|code| !matches!(**code, failure::OK | failure::INTERRUPTED));
    let interrupted = codes.iter().find(|code| **code == failure::INTERRUPTED);
    let code = *failed.or(interrupted).unwrap_or(&failure::OK);
    Ok(children.map_or(code, |children| children.finish(code)))
}

/// The next process with such a name that starts; `None` if Ctrl-C came first.
///
/// # Errors
/// A sentence for the user, when the list of processes cannot be read.
pub(crate) fn wait_for(name: &str, interrupted: &Event) -> Result<Option<u32>, Failure> {
    let wanted = NamePattern::new(name).map_err(Failure::usage)?;
    // With names: a process may be in the list before its name is.
    let listed = |entries: Vec<Entry>| entries.into_iter().map(|entry| (entry.pid, entry.name)).collect();
    let mut known: HashSet<(u32, String)> = listed(process::entries()?);
    say(&format!("waiting for the start of {name}"));
    while !system::wait(interrupted.handle(), POLL_MS) {
        let now = listed(process::entries()?);
        let new = now.difference(&known).filter(|(_, name)| wanted.fits(name));
        if let Some((pid, _)) = new.min() {
            return Ok(Some(*pid));
        }
        // An id that is free again may be that of the process that is waited for.
        known = now;
    }
    Ok(None)
}
