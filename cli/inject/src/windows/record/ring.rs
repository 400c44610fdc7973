//! A recording in a ring of files: which file is the present one, when the next is due.

use super::destination::{self, OpenOutput};
use super::finisher::{FileEnding, Finisher};
use super::start::FilePlan;
use crate::args::Record;
use crate::failure::Failure;
use crate::messages::say;
use crate::rotate::{self, FileLimits, FilePlace, FileTotals, Rotation};
use crate::uuid;
use crate::windows::facts::MetadataEntry;
use crate::windows::flight::FlightThread;
use crate::windows::process::Process;
use crate::windows::record::deliver;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stk_schema::control::AgentStatus;
use stk_schema::event::EndReason;

/// Most names that are tried for the next file, if other files have them.
const MOST_NAMES: u32 = 10_000;

/// How long the recording stays in its file where the next one could not be begun.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// What becomes of the files.
pub(super) enum FileUse {
    /// They stay, as far as `--keep` lets them.
    Kept(Finisher),
    /// Traces are made of the last ones when something asks for it.
    Flight(FlightThread),
}

impl FileUse {
    /// Adds a file whose recording has ended.
    pub(super) fn add(&mut self, file: FileEnding) {
        match self {
            FileUse::Kept(finisher) => finisher.add(file),
            FileUse::Flight(flight) => flight.end_file(&file.path),
        }
    }
}

/// A recording in a ring of files.
pub(super) struct Rotating {
    rotation: Rotation,
    /// Of the recording.
    id: [u8; 16],
    /// The name from which the files' names are made.
    path: PathBuf,
    /// The present file's place in the recording; its number is that of the name tried last.
    place: FilePlace,
    limits: FileLimits,
    /// The most bytes without `--max-size`.
    usual_limit: u64,
    begun: Instant,
    /// How much of `--duration` is left for this file; `None` = it is not limited.
    left_ms: Option<u32>,
    /// Milliseconds of this file before the recording was resumed for the first time.
    rested_ms: Option<u64>,
    /// The file before, until the agent has ended it.
    before: Option<FileEnding>,
    /// Not to be tried again before: the next file could not be begun.
    not_before: Option<Instant>,
    pub(super) files: FileUse,
}

impl Rotating {
    /// The ring that the options ask for, and its first file.
    pub(super) fn new(record: &Record, process: &Process) -> Result<(Rotating, OpenOutput), Failure> {
        let (path, number, files) = if record.flight_ms != 0 {
            let flight = FlightThread::start(destination::flight_plan(record, process)?)?;
            (flight.ring_path().to_owned(), 0, FileUse::Flight(flight))
        } else {
            let path = destination::output_path(record, process)?;
            deliver::check_folder(record.move_to.as_deref())?;
            let number = if record.force { 0 } else { last_number(record, &path) };
            (path, number, FileUse::Kept(Finisher::start(record.rotation.keep)?))
        };
        let mut rotating = Rotating {
            rotation: record.rotation,
            id: uuid::random(),
            path,
            place: FilePlace { index: 1, number, earlier: FileTotals::default() },
            limits: FileLimits { full: 0, most: 0 },
            usual_limit: 0,
            begun: Instant::now(),
            left_ms: (record.duration_ms != 0).then_some(record.duration_ms),
            rested_ms: None,
            before: None,
            not_before: None,
            files,
        };
        let opened = rotating.open(record)?;
        rotating.usual_limit = opened.default_limit();
        if let Some(limits) = rotating.rotation.limits(most_bytes(record), rotating.usual_limit, 0) {
            rotating.limits = limits;
        }
        if rotating.limits.are_too_small() && record.flight_ms != 0 {
            return Err(Failure::failed(
                "the disk of the folder for temporary files (TEMP) has no room for the ring of --flight: make room, or let \
                 TEMP name a folder of another disk",
            ));
        }
        if rotating.limits.are_too_small() {
            return Err(Failure::failed(format!(
                "a tenth of the disk's free space, shared by the {} files of --keep, is less than the 1M that each needs: keep \
                 fewer files, make room, or say with --max-size how much all of them may have",
                record.rotation.keep
            )));
        }
        Ok((rotating, opened))
    }

    /// Opens the next file whose name is free.
    pub(super) fn open(&mut self, record: &Record) -> Result<OpenOutput, Failure> {
        for _ in 0..MOST_NAMES {
            self.place.number = self.place.number.saturating_add(1);
            let path = rotate::numbered(&self.path, self.place.number);
            if let FileUse::Flight(_) = self.files {
                return OpenOutput::temporary(&path);
            }
            let route = deliver::local_route(path, record.move_to.as_deref())?;
            if record.force || route.local.symlink_metadata().is_err() {
                return OpenOutput::routed(record, route);
            }
        }
        let path = rotate::numbered(&self.path, self.place.number);
        Err(Failure::failed(format!("{} exists: choose another file with -o", path.display())))
    }

    /// Makes the plan that of the first file.
    pub(super) fn plan_first(&mut self, plan: &mut FilePlan) {
        plan.max_bytes = self.limits.most;
        plan.facts.extend(self.facts(None));
        self.rested_ms = plan.paused.then_some(0);
    }

    /// The recording of the present file has begun. `continued`: without a gap.
    pub(super) fn begin_file(&mut self, file: &FileEnding, continued: bool) {
        self.begun = Instant::now();
        if let FileUse::Flight(flight) = &self.files {
            flight.begin_file(&file.path, file.uuid, continued, self.limits.most);
        }
    }

    /// The file that was opened last is not written.
    pub(super) fn take_back_name(&mut self) {
        self.place.number = self.place.number.saturating_sub(1);
    }

    /// What the trace says of its place in the recording. `previous_end`: the performance counter
    /// when the recording of the file before was requested to end.
    pub(super) fn facts(&self, previous_end: Option<u64>) -> Vec<MetadataEntry> {
        self.facts_of(self.place.index, previous_end)
    }

    /// The same of the next file, which begins without a gap.
    pub(super) fn facts_of_next(&self) -> Vec<MetadataEntry> {
        self.facts_of(self.place.index + 1, None)
    }

    fn facts_of(&self, index: u32, previous_end: Option<u64>) -> Vec<MetadataEntry> {
        let id = stk_schema::text::hex(&self.id);
        let mut facts = vec![("rotation.id", id), ("rotation.index", index.to_string())];
        facts.extend(previous_end.map(|ticks| ("rotation.previous_end", ticks.to_string())));
        facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Says that the recording begins.
    pub(super) fn say_begun(&self, opened: &OpenOutput, process: &Process) {
        match &self.files {
            FileUse::Flight(flight) => say(&flight.begun(process)),
            FileUse::Kept(_) => {
                opened.say_begun(process);
                let files = rotate::describe(&self.rotation, self.limits);
                say(&format!("it continues in numbered files, {files}"));
            }
        }
    }

    /// Passes on what asks for a trace of the last files.
    pub(super) fn look_at_desk(&mut self, process: &Process, status: &AgentStatus) {
        if let FileUse::Flight(flight) = &mut self.files {
            flight.look(process, status.flight);
        }
    }

    /// Writes the last trace of the ring if it is wanted. The agent must not leave before.
    pub(super) fn finish_flight(&mut self, process: &Process, last: bool) {
        if let FileUse::Flight(flight) = &mut self.files {
            flight.finish(process, last);
        }
    }

    /// The present file's place in the recording, which the other hosts get before it
    /// begins.
    pub(super) fn place(&self) -> &FilePlace {
        &self.place
    }

    /// The present file, before its status.
    pub(super) fn label(&self) -> String {
        match self.files {
            FileUse::Kept(_) => format!("file {}: ", self.place.index),
            FileUse::Flight(_) => String::new(),
        }
    }

    /// Whether the next file is due. `ended`: the agent ended this one itself.
    pub(super) fn is_due(&mut self, status: &AgentStatus, ended: bool) -> bool {
        if ended {
            // What may have no more bytes gives its place in the ring to the next file.
            return self.rotation.keep != 0 && status.end_reason == EndReason::SizeLimit as u32;
        }
        if self.before.is_some() || self.not_before.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        if status.paused != 0 {
            // A pause continues in the file in which it began.
            if let Some(rested) = &mut self.rested_ms {
                *rested = status.elapsed_ms;
            }
            return false;
        }
        let old = Duration::from_millis(self.rotation.every_ms.into());
        !old.is_zero() && self.begun.elapsed() >= old
            || self.limits.full != 0 && status.bytes >= self.limits.full
    }

    /// The plan of the file in which the agent continues by itself from the present one, whose
    /// status this is; `None` if the recording has reached the limit of all files.
    pub(super) fn plan_next(&mut self, record: &Record, present: &AgentStatus) -> Option<FilePlan> {
        let finished = self.place.earlier.with(present).bytes;
        self.limits = self.rotation.limits(most_bytes(record), self.usual_limit, finished)?;
        let max_bytes = self.limits.most;
        Some(FilePlan { max_bytes, ..FilePlan::default() })
    }

    /// The number in the name of the file that was opened last.
    pub(super) fn number(&self) -> u32 {
        self.place.number
    }

    /// The agent continues in the file that was opened last, and ends this one.
    pub(super) fn continued_in(&mut self, before: Option<FileEnding>, present: &FileEnding) {
        self.before = before;
        self.begin_file(present, true);
    }

    /// The next file could not be begun. The name that was taken for it is given back.
    pub(super) fn try_later(&mut self) {
        self.take_back_name();
        self.not_before = Some(Instant::now() + TRY_AGAIN);
    }

    /// Takes note of the end of the file before, of which the status shows.
    pub(super) fn look_at_file(&mut self, status: &AgentStatus) {
        if status.file_index <= self.place.index || self.before.is_none() {
            return;
        }
        let Some(place) = FilePlace::of(status) else { return };
        let dropped = place.earlier.dropped.saturating_sub(self.place.earlier.dropped);
        let elapsed = place.earlier.elapsed_ms.saturating_sub(self.place.earlier.elapsed_ms);
        self.use_time(elapsed);
        (self.place.index, self.place.earlier) = (place.index, place.earlier);
        self.before.take().into_iter().for_each(|file| self.files.add(FileEnding { dropped, ..file }));
    }

    /// A file took so many milliseconds of `--duration`, without those before the first resumption.
    fn use_time(&mut self, elapsed_ms: u64) {
        let rested = self.rested_ms.take().unwrap_or(0);
        if let Some(left) = &mut self.left_ms {
            let recorded = elapsed_ms.saturating_sub(rested);
            *left = left.saturating_sub(u32::try_from(recorded).unwrap_or(u32::MAX)).max(1);
        }
    }

    /// The file before, which the agent may not have ended: nothing is heard of it any more.
    pub(super) fn leave_before(&mut self) {
        if let Some(file) = self.before.take() {
            self.place.index += 1;
            self.files.add(file);
        }
    }

    /// Takes note of the end of a file, whose last status this is. The plan of the next one;
    /// `None` if the recording has reached the limit of all files or its duration.
    pub(super) fn next_plan(&mut self, record: &Record, ended: &AgentStatus) -> Option<FilePlan> {
        self.place.earlier = self.place.earlier.with(ended);
        let finished = self.place.earlier.bytes;
        self.limits = self.rotation.limits(most_bytes(record), self.usual_limit, finished)?;
        self.use_time(ended.elapsed_ms);
        let paused = ended.paused != 0;
        self.rested_ms = paused.then_some(0);
        self.place.index += 1;
        Some(FilePlan {
            duration_ms: self.left_ms.unwrap_or(0),
            delay_ms: 0,
            paused,
            loaded: false,
            max_bytes: self.limits.most,
            facts: Vec::new(),
        })
    }
}

/// `--max-size` of all files of the ring; that of `--flight` is for the traces.
fn most_bytes(record: &Record) -> Option<u64> {
    if record.flight_ms == 0 { record.max_bytes } else { None }
}

/// The highest number of a file of an earlier recording with the same name, beside this one or
/// where its files are moved to.
fn last_number(record: &Record, path: &Path) -> u32 {
    let name = Path::new(path.file_name().unwrap_or_default());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folders = [Some(folder.unwrap_or(Path::new("."))), record.move_to.as_deref()];
    let entries = folders.into_iter().flatten().filter_map(|folder| folder.read_dir().ok()).flatten();
    let numbers = entries.flatten().filter_map(|entry| rotate::number_of(name, &entry.file_name()));
    numbers.max().unwrap_or(0)
}
