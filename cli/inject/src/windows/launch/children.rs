//! `--children`: the processes that recorded processes start, and theirs, are recorded too, each by
//! an inject of its own.
//!
//! A job reports each new process at once ([`births`](super::births)). The list of processes is
//! looked at ten times a second for what no report comes of: children that ran before inject came,
//! that leave the job, or of a process that cannot join it. A process that ends before its own
//! inject has come to it is counted as missed. How long a child ran before that is in its trace
//! (`inject.process_age_ms`), as is its parent (`process.parent_pid`).

use super::births::Births;
use super::copies;
use crate::args::{Record, Target};
use crate::failure::{self, Failure};
use crate::messages::say;
use crate::record::pattern;
use crate::windows::console;
use crate::windows::process;
use crate::windows::system::{self, Event};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::windows::io::{AsHandle as _, OwnedHandle};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Milliseconds between two looks at the list of processes.
const POLL_MS: u32 = 100;

/// Watches for children until it is finished.
pub(crate) struct ChildWatch {
    /// Set when the roots are recorded to their end.
    over: Arc<Event>,
    /// Copies of inject that record now.
    running: Arc<AtomicUsize>,
    /// Whether a child that is not recorded is no failure.
    may_miss: bool,
    thread: JoinHandle<ChildCounts>,
}

/// What became of the children.
#[derive(Clone, Copy, Default)]
struct ChildCounts {
    seen: usize,
    recorded: usize,
}

/// Refuses options that do not suit children.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn check(record: &Record) -> Result<(), Failure> {
    if record.children && !pattern::names_each_process(&record.output) {
        return Err(Failure::usage("children need a trace each: write %p (the pid) in the name of -o"));
    }
    Ok(())
}

impl ChildWatch {
    /// Begins to watch for children of these processes, if they are wanted.
    ///
    /// # Errors
    /// A sentence for the user, when it cannot be begun.
    pub(crate) fn start(record: &Record, roots: &[u32]) -> Result<Option<ChildWatch>, Failure> {
        if !record.children {
            return Ok(None);
        }
        let fail = |error: io::Error| Failure::failed(format!("children cannot be watched for: {error}"));
        let over = Arc::new(Event::new().map_err(fail)?);
        let running = Arc::new(AtomicUsize::new(0));
        let mut family = Family {
            members: HashMap::new(),
            // Without a job, the list of processes has to do.
            births: Births::new().ok(),
            known: HashSet::new(),
            job: copies::job().map_err(fail)?,
            arguments: arguments(record),
            ends: (record.duration_ms != 0)
                .then(|| Instant::now() + Duration::from_millis(record.duration_ms.into())),
            interrupted: console::catch().map_err(fail)?,
            copies: Vec::new(),
            counts: ChildCounts::default(),
            running: running.clone(),
        };
        for &pid in roots {
            family.add(pid);
        }
        let until = over.clone();
        let thread = std::thread::Builder::new().name("children".to_owned());
        let thread = thread.spawn(move || family.watch(&until)).map_err(fail)?;
        Ok(Some(ChildWatch { over, running, may_miss: record.may_miss_children, thread }))
    }

    /// Waits until the children are recorded to their end, and says what became of them. Returns
    /// the exit code: `code`, or if that is no failure, that children were missed.
    pub(crate) fn finish(self, code: i32) -> i32 {
        self.over.set();
        let running = self.running.load(Ordering::Acquire);
        if running != 0 {
            say(&format!(
                "waiting for the recordings of {running} child processes; Ctrl-C or inject stop ends them"
            ));
        }
        // A thread that panicked has said so, and knows no more what became of the children.
        let counts = self.thread.join().unwrap_or(ChildCounts { seen: 1, recorded: 0 });
        if counts.seen != 0 {
            say(&format!("{} of {} child processes recorded", counts.recorded, counts.seen));
        }
        match code {
            failure::OK | failure::INTERRUPTED if !self.may_miss && counts.recorded < counts.seen => {
                say("inject: child processes were missed; --allow-missed-children makes that no failure");
                failure::CHILD_MISSED
            }
            code => code,
        }
    }
}

/// The recorded processes and their children.
struct Family {
    /// By id: the process's handle, which reserves the id.
    members: HashMap<u32, OwnedHandle>,
    /// Reports the children of members that are in its job.
    births: Option<Births>,
    /// Children of members that were looked at: id and parent.
    known: HashSet<(u32, u32)>,
    job: OwnedHandle,
    /// The command line of the copies, without the process.
    arguments: Vec<OsString>,
    /// When the recording ends by its duration.
    ends: Option<Instant>,
    interrupted: &'static Event,
    copies: Vec<(u32, Child)>,
    counts: ChildCounts,
    running: Arc<AtomicUsize>,
}

impl Family {
    /// Records new children until the roots' recordings are over and those of the children too.
    fn watch(mut self, over: &Event) -> ChildCounts {
        let mut look_due = Instant::now();
        loop {
            let ending = system::wait(self.interrupted.handle(), 0)
                || self.ends.is_some_and(|ends| Instant::now() >= ends);
            if !ending && Instant::now() >= look_due {
                self.look();
                look_due = Instant::now() + Duration::from_millis(POLL_MS.into());
            }
            self.reap();
            if (ending || system::wait(over.handle(), 0)) && self.copies.is_empty() {
                return self.counts;
            }
            let born = match &self.births {
                Some(births) => births.next(POLL_MS),
                None => {
                    std::thread::sleep(Duration::from_millis(POLL_MS.into()));
                    None
                }
            };
            if let Some(pid) = born.filter(|_| !ending) {
                self.found(pid);
            }
        }
    }

    /// A process that a member has started: it is in the list, or has joined the job.
    fn found(&mut self, pid: u32) {
        // A root, a child that was found before, this inject (it may be a child of what it
        // records), or a copy of it.
        let is_known = self.members.contains_key(&pid)
            || pid == std::process::id()
            || self.copies.iter().any(|(_, copy)| copy.id() == pid);
        if !is_known {
            self.counts.seen += 1;
            self.add(pid);
            self.record(pid);
        }
    }

    /// Starts a recording of each new child.
    fn look(&mut self) {
        // A list that cannot be read this time can be read next time.
        let Ok(entries) = process::entries() else { return };
        let listed: HashSet<(u32, u32)> = entries.iter().map(|entry| (entry.pid, entry.parent)).collect();
        self.known.retain(|known| listed.contains(known));
        for entry in entries {
            // A child may be listed before its parent is a member: it is looked at again.
            let Some(parent) = self.members.get(&entry.parent) else { continue };
            if !self.known.insert((entry.pid, entry.parent)) {
                continue;
            }
            // An older process had another parent with this id.
            let parents = process::created(parent.as_handle());
            if created(entry.pid).zip(parents).is_some_and(|(child, parent)| child < parent) {
                continue;
            }
            self.found(entry.pid);
        }
    }

    /// Adds a process to those whose children are recorded.
    fn add(&mut self, pid: u32) {
        if let Ok(handle) = process::open_limited(pid) {
            self.members.insert(pid, handle);
        }
        if let Some(births) = &self.births {
            // One that does not join, or is in the job already: its children are in the list.
            let _ = births.add(pid);
        }
    }

    fn record(&mut self, pid: u32) {
        let mut arguments = self.arguments.clone();
        if let Some(ends) = self.ends {
            let left = ends.saturating_duration_since(Instant::now()).as_millis().max(1);
            arguments.extend(["--only-ms".to_owned(), left.to_string()].map(OsString::from));
        }
        match copies::start(&self.job, pid, &arguments) {
            Ok(copy) => self.copies.push((pid, copy)),
            Err(error) => say(&format!("inject: pid {pid}: no copy of inject can be started: {error}")),
        }
    }

    /// Takes note of copies that have ended.
    fn reap(&mut self) {
        let counts = &mut self.counts;
        self.copies.retain_mut(|(pid, copy)| match copy.try_wait() {
            Ok(None) => true,
            ended => {
                let code = ended.ok().flatten().and_then(|status| status.code());
                match code {
                    Some(failure::OK | failure::INTERRUPTED) => counts.recorded += 1,
                    code => say(&format!(
                        "inject: child process {pid} was not recorded to its end (code {})",
                        code.unwrap_or(failure::FAILED)
                    )),
                }
                false
            }
        });
        self.running.store(self.copies.len(), Ordering::Release);
    }
}

fn created(pid: u32) -> Option<u64> {
    process::created(process::open_limited(pid).ok()?.as_handle())
}

/// The options of this inject's command line, with a process in place of a program to start.
fn arguments(record: &Record) -> Vec<OsString> {
    let mut own: Vec<OsString> =
        std::env::args_os().skip(1).take_while(|argument| argument != "--").collect();
    if matches!(record.target, Target::Launch(_)) {
        // One option must name the process; --only-pid says which it is.
        own.extend(["--pid", "1"].map(OsString::from));
    }
    own
}
