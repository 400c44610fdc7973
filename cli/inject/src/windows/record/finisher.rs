//! What happens to a file after its recording has ended: it is completed from image files, moved to
//! where it belongs, and, of a ring, deleted when it is too old. Of a ring this is a thread's work,
//! so that the recording continues meanwhile.

use crate::failure::Failure;
use crate::messages::{self, say};
use crate::rotate::{Deletion, Ring, RingFile, RingSummary};
use crate::steps;
use crate::trace_summary::{self, TraceSummary};
use crate::windows::output;
use crate::windows::record::deliver;
use crate::windows::supplement::{self, CompletionRequest};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A file, and what is to happen to it after its end.
pub(super) struct FileEnding {
    pub path: PathBuf,
    /// The trace's UUID.
    pub uuid: [u8; 16],
    /// The settings for completing it.
    pub wanted: CompletionRequest,
    /// Samples that were lost by the agent's last status, those that could not be written included.
    pub dropped: u64,
    /// Where it is moved to then, and whether a file there is replaced.
    pub goal: Option<(PathBuf, bool)>,
}

/// A file that is finished.
pub(super) struct FinishedFile {
    /// Where it is now.
    pub path: PathBuf,
    pub contents: Option<TraceSummary>,
    /// What came of moving it.
    pub moved: Result<(), Failure>,
    /// Why it is not where it was made: nothing was done with what is there.
    pub lost: Option<&'static str>,
}

impl FileEnding {
    /// Completes and moves the file, whose recording has ended. `reports`: whether to print which
    /// modules lack their tables.
    pub(super) fn finish(self, reports: bool) -> FinishedFile {
        let mut path = self.path;
        if let Some(why) = output::absence(&path, self.wanted.trace) {
            return FinishedFile { path, contents: None, moved: Ok(()), lost: Some(why) };
        }
        supplement::run(&path, &self.wanted, reports);
        let contents = std::fs::File::open(&path).and_then(|mut file| trace_summary::read(&mut file));
        let moved = match self.goal {
            Some((goal, force)) => deliver::run(&path, self.wanted.trace, &goal, force).map(|()| path = goal),
            None => Ok(()),
        };
        FinishedFile { path, contents: contents.ok().flatten(), moved, lost: None }
    }
}

/// Finishes the files of a ring, one after the other.
pub(super) struct Finisher {
    shared: Arc<SharedQueue>,
    /// Most files that wait; older ones are deleted unmoved.
    most_waiting: usize,
    /// Files that were deleted because they waited too long.
    overrun: u64,
    thread: Option<JoinHandle<RingSummary>>,
}

#[derive(Default)]
struct SharedQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    files: VecDeque<FileEnding>,
    /// No further file comes.
    closed: bool,
}

impl SharedQueue {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next file, and says whether another one is being written; `None` at the end.
    fn next(&self) -> Option<(FileEnding, bool)> {
        steps::begin(steps::Thread::Finisher, "waits for a file");
        let mut queue = self.queue();
        loop {
            if let Some(file) = queue.files.pop_front() {
                return Some((file, !(queue.closed && queue.files.is_empty())));
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Finisher {
    /// Begins to wait for files of a ring that keeps so many; 0 = all.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(super) fn start(keep: u32) -> Result<Finisher, Failure> {
        let shared = Arc::new(SharedQueue::default());
        let most_waiting = if keep == 0 { usize::MAX } else { keep as usize };
        let own = shared.clone();
        let work = move || finish_all(&own, Ring::new(keep));
        let thread = std::thread::Builder::new().name("finisher".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            Failure::failed(format!("no thread can finish the files of --rotate: {error}"))
        })?;
        Ok(Finisher { shared, most_waiting, overrun: 0, thread: Some(thread) })
    }

    /// Adds a file whose recording has ended. Never waits for a disk that is moved to.
    pub(super) fn add(&mut self, file: FileEnding) {
        let mut too_old = Vec::new();
        {
            let mut queue = self.shared.queue();
            queue.files.push_back(file);
            while queue.files.len() > self.most_waiting {
                too_old.extend(queue.files.pop_front());
            }
        }
        self.shared.changed.notify_all();
        for file in too_old {
            self.overrun += 1;
            let shown = messages::file(&file.path);
            say(&format!("{shown} could not be moved before --keep let it go: it is deleted"));
            let deleted = output::delete_trace(&RingFile { path: file.path, uuid: file.uuid });
            if let Deletion::Failed(reason) = deleted {
                say(&format!("{shown} cannot be deleted: {reason}"));
            }
        }
    }

    /// Adds the last file, and waits until all are finished.
    pub(super) fn finish(mut self, last: Option<FileEnding>) -> RingSummary {
        let overrun = self.overrun;
        let summary = self.close(last).unwrap_or_default();
        RingSummary { overrun, ..summary }
    }

    fn close(&mut self, last: Option<FileEnding>) -> Option<RingSummary> {
        {
            // At once: that no other file is being written decides how many are kept.
            let mut queue = self.shared.queue();
            queue.files.extend(last);
            queue.closed = true;
        }
        self.shared.changed.notify_all();
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        self.close(None);
    }
}

/// Finishes files until no further one comes.
fn finish_all(shared: &SharedQueue, mut ring: Ring) -> RingSummary {
    let mut sum = RingSummary::default();
    while let Some((file, writing)) = shared.next() {
        steps::begin(steps::Thread::Finisher, "completes and moves a file");
        let (uuid, dropped) = (file.uuid, file.dropped);
        // What one file lacks, the others lack too.
        let finished = file.finish(sum.files == 0);
        sum.add(finished.contents.as_ref(), dropped);
        if let Some(why) = finished.lost {
            sum.lost += 1;
            say(&format!("inject: {}", messages::lost(&finished.path, why)));
            continue;
        }
        if let Err(failure) = finished.moved {
            sum.unmoved += 1;
            say(&format!("inject: {failure}"));
        }
        let file = RingFile { path: finished.path, uuid };
        for text in ring.add(file, writing, output::delete_trace) {
            say(&format!("inject: {text}"));
        }
    }
    let ends = ring.files().next().zip(ring.files().next_back());
    sum.kept = ends.map(|(first, last)| (first.path.clone(), last.path.clone()));
    sum.kept_files = ring.files().count();
    (sum.deleted, sum.stuck) = (ring.deleted, ring.stuck().len());
    sum
}
