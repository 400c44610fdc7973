//! Perfetto's protobuf trace, in two forms.
//!
//! * [`stack-samples`](PerfettoStyle::StackSamples): a `StackSample` packet for each run of equal
//!   samples, which Perfetto reads from version 58 on.
//! * [`perf-samples`](PerfettoStyle::PerfSamples): a `PerfSample` packet for each sample, for older
//!   readers. It has no weight, so each counts the same; those of a run stand at even distances
//!   between its first and its last one.
//!
//! The messages: <https://github.com/google/perfetto/tree/main/protos/perfetto/trace>, above all
//! `profiling/stack_sample.proto`. Names, mappings, frames and call stacks are written once and
//! referred to by numbers, which begin with 1: 0 means "not set". A call stack is root first, and
//! an inlined function is a frame of its own. Threads of one id that follow each other are one
//! thread there.
//!
//! A `StackSample` has several weights: the one that was chosen, the other times, and how many
//! samples it stands for. Times are nanoseconds since the start of the trace; a clock snapshot says
//! what the time of day was then.

use super::counted_time::CountedTime;
use super::protobuf::Message;
use super::sink::Sink;
use super::source::exporter;
use super::strings::Strings;
use super::threads::{TrackKey, track_names, track_of};
use super::unfold::{EMPTY, StackOrigin, incomplete, wait_root};
use super::{
    Description, Destination, Format, Options, OutputError, Summary, Writer, finish_for, path_of, single,
};
use std::collections::HashMap;
use stk_profile::profile::{
    Batch, FrameId, FrameKey, FrameKind, Functions, Placement, Profile, Run, Wait, Weight,
};
use stk_schema::text::printable;

pub(super) const FORMAT: Description = Description {
    name: "perfetto",
    help: "Protobuf trace for Perfetto 58 and later: samples on the time line of each thread",
    suffix: ".perfetto-trace",
    other_suffixes: &[".pftrace"],
    is_folder: false,
    names_source: true,
    takes_weight: true,
    has_time_line: true,
    create,
};

/// Fields of `TracePacket`.
mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const DEFAULTS: u32 = 59;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    pub(super) const PERF_SAMPLE: u32 = 66;
    pub(super) const FIRST_ON_SEQUENCE: u32 = 87;
    pub(super) const STACK_SAMPLE: u32 = 135;
}

/// Fields of `InternedData`.
mod interned {
    pub(super) const FUNCTION_NAMES: u32 = 5;
    pub(super) const FRAMES: u32 = 6;
    pub(super) const CALLSTACKS: u32 = 7;
    pub(super) const BUILD_IDS: u32 = 16;
    pub(super) const MAPPING_PATHS: u32 = 17;
    pub(super) const SOURCE_PATHS: u32 = 18;
    pub(super) const MAPPINGS: u32 = 19;
    pub(super) const TASK_CONTEXTS: u32 = 48;
}

/// Values of `sequence_flags`.
const STATE_CLEARED: u64 = 1;
const NEEDS_STATE: u64 = 2;

/// Values of `BuiltinClock`.
const REALTIME: u64 = 1;
const BOOTTIME: u64 = 6;

/// Values of `StackSample.Unit`.
const NANOSECONDS: u64 = 1;
const COUNT: u64 = 9;

/// Values of `TrackEvent.Type`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;

/// The track of the first process. Those of others follow.
const PROCESS_TRACK: u64 = 1;

/// Entries of interned data in one packet.
const ENTRIES: usize = 1024;

/// The form of a Perfetto trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PerfettoStyle {
    /// Samples with weights: Perfetto 58 and later.
    #[default]
    StackSamples,
    /// Samples that count the same: older ones.
    PerfSamples,
}

/// `PerfSample` packets of a file at most. A damaged trace may claim any number of samples.
const MOST_PERF_SAMPLES: u64 = 10_000_000;

fn create(to: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    let weight = options.weights()[0];
    let others = [Weight::Cpu, Weight::Wall].into_iter().filter(|other| *other != weight).collect();
    Ok(Box::new(PerfettoWriter {
        sink: single(Format::Perfetto, to)?,
        by_line: options.lines,
        style: options.perfetto_style,
        perf_samples: 0,
        left_out: 0,
        weight,
        others,
        frames: FrameNumbers::default(),
        counted: CountedTime::default(),
        callstacks: HashMap::new(),
    }))
}

struct PerfettoWriter {
    sink: Sink,
    by_line: bool,
    style: PerfettoStyle,
    /// `PerfSample` packets so far.
    perf_samples: u64,
    /// Samples beyond [`MOST_PERF_SAMPLES`].
    left_out: u64,
    /// The first weight of samples.
    weight: Weight,
    /// Their further weights.
    others: Vec<Weight>,
    frames: FrameNumbers,
    counted: CountedTime,
    /// The numbers of call stacks.
    callstacks: HashMap<StackOrigin, u64>,
}

/// The numbers of frames: those of code, an inlined function being one, then those that say why a
/// stack is incomplete, then those that say what a thread waits for.
#[derive(Default)]
struct FrameNumbers {
    /// By frame of the profile, the number of its outermost function; then the next free number.
    starts: Vec<u64>,
    /// By stop; `None` = the stack is complete.
    stops: Vec<Option<u64>>,
    /// By wait.
    waits: Vec<u64>,
    /// For a stack without frames.
    empty: u64,
}

impl FrameNumbers {
    /// The frames of a stack, root first.
    fn of(&self, profile: &Profile, origin: StackOrigin) -> Vec<u64> {
        let wait = origin.wait.and_then(|wait| self.waits.get(usize::from(wait.number())));
        let mut frames: Vec<u64> = wait
            .copied()
            .into_iter()
            .chain(origin.stop.and_then(|stop| self.stops[stop.0 as usize]))
            .collect();
        let roots = frames.len();
        for frame in origin.node.into_iter().flat_map(|node| profile.tree.frames(node)) {
            let at = frame.0 as usize;
            frames.extend((self.starts[at]..self.starts[at + 1]).rev());
        }
        frames[roots..].reverse();
        // Readers refuse a call stack without frames.
        if frames.is_empty() { vec![self.empty] } else { frames }
    }
}

impl Writer for PerfettoWriter {
    fn passes(&self) -> Vec<Weight> {
        vec![Weight::Wall]
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.write_head(profile)?;
        self.write_tracks(profile)?;
        self.write_events(profile)?;
        let functions = Functions::new(profile, self.by_line);
        let mappings = self.write_mappings(profile)?;
        self.write_frames(profile, &functions, &mappings)?;
        let threads: Vec<u32> = (0..profile.threads.len() as u32).collect();
        self.write_interned(interned::TASK_CONTEXTS, &threads, |message, &thread| {
            message.number(1, u64::from(thread) + 1);
            message.number(2, profile.pid_of_thread(thread).into());
            message.number(3, profile.threads[thread as usize].tid.into());
        })
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        batch.runs.iter().try_for_each(|run| match self.style {
            PerfettoStyle::StackSamples => self.write_sample(profile, batch.thread, run),
            PerfettoStyle::PerfSamples => self.write_perf_samples(profile, batch.thread, run),
        })
    }

    fn finish(&mut self, _: &Profile) -> Result<Summary, OutputError> {
        let mut summary = finish_for("Perfetto", &mut self.sink)?;
        if self.left_out > 0 {
            summary.warnings.push(format!(
                "{} samples beyond the first {MOST_PERF_SAMPLES} are left out: choose a time range or some \
                 threads, or leave --perfetto-style out",
                self.left_out
            ));
        }
        Ok(summary)
    }
}

impl PerfettoWriter {
    fn packet(&mut self, flags: u64, fill: impl FnOnce(&mut Message)) -> Result<(), OutputError> {
        let mut trace = Message { bytes: std::mem::take(&mut self.sink.buffer) };
        trace.message(1, |message| {
            message.number(packet::SEQUENCE_ID, 1);
            message.number(packet::SEQUENCE_FLAGS, flags);
            fill(message);
        });
        self.sink.buffer = trace.bytes;
        self.sink.settle()
    }

    /// Writes what every reader needs first.
    fn write_head(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let start = profile.trace.start_utc_ns;
        let weight = (self.weight.title(), NANOSECONDS);
        let mut followers: Vec<(&str, u64)> =
            self.others.iter().map(|weight| (weight.title(), NANOSECONDS)).collect();
        followers.push(("samples taken", COUNT));
        self.packet(STATE_CLEARED, |message| {
            message.number(packet::FIRST_ON_SEQUENCE, 1);
            message.message(packet::CLOCK_SNAPSHOT, |message| {
                for (clock, time) in [(BOOTTIME, 0), (REALTIME, start)] {
                    message.message(1, |message| {
                        message.number(1, clock);
                        message.number(2, time);
                    });
                }
                message.number(2, BOOTTIME);
            });
            message.message(packet::DEFAULTS, |message| {
                message.number(58, BOOTTIME);
                message.message(100, |message| {
                    message.text(1, "stk");
                    message.message(2, |message| counter(message, weight));
                    followers.iter().for_each(|&follower| message.message(3, |m| counter(m, follower)));
                });
            });
        })
    }

    /// Writes the names of the processes and their threads. A process has a label that lists
    /// which trace this was made.
    fn write_tracks(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let (processes, source) = (profile.process_list(), exporter(profile));
        for (i, process) in (0..).zip(&processes) {
            self.packet(NEEDS_STATE, |message| {
                message.message(packet::TRACK_DESCRIPTOR, |message| {
                    message.number(1, process_track(i));
                    message.message(3, |message| {
                        message.number(1, process.pid.into());
                        message.text(6, &printable(&process.name));
                        message.text(8, &source);
                    });
                });
            })?;
        }
        let mut names: Vec<(TrackKey, String)> = track_names(profile).into_iter().collect();
        names.sort_unstable();
        for (track, name) in names {
            let (process, tid) = track;
            self.packet(NEEDS_STATE, |message| {
                message.message(packet::TRACK_DESCRIPTOR, |message| {
                    message.number(1, thread_track(track));
                    message.number(5, process_track(process));
                    message.message(4, |message| {
                        message.number(1, processes[process as usize].pid.into());
                        message.number(2, tid.into());
                        message.text(5, &printable(&name));
                    });
                });
            })?;
        }
        Ok(())
    }

    /// Writes marks, gaps, and modules that were loaded or unloaded.
    fn write_events(&mut self, profile: &Profile) -> Result<(), OutputError> {
        for (i, module) in profile.modules.iter().enumerate() {
            let track = process_track(profile.process_of_module(i));
            let image = &profile.images[module.image.0 as usize];
            for (verb, time) in [("load", module.load_ns), ("unload", module.unload_ns)] {
                let Some(time) = time else { continue };
                let notes = [("path", &image.path), ("debug_id", &image.debug_id)];
                let name = format!("{verb} {}", image.name);
                self.write_track_event(INSTANT, track, time, "module", &name, &notes)?;
            }
        }
        for (i, gap) in profile.gaps.iter().enumerate() {
            let track = process_track(profile.process_of_gap(i));
            self.write_track_event(SLICE_BEGIN, track, gap.start_ns, "gap", gap.reason, &[])?;
            self.write_track_event(SLICE_END, track, gap.end_ns, "gap", gap.reason, &[])?;
        }
        for (i, mark) in profile.marks.iter().enumerate() {
            let track = match mark.thread {
                Some(thread) => thread_track(track_of(profile, thread)),
                None => process_track(profile.process_of_mark(i)),
            };
            let tag = mark.tag.to_string();
            let name = if mark.text.is_empty() { format!("mark {tag}") } else { mark.text.clone() };
            self.write_track_event(INSTANT, track, mark.time_ns, "mark", &name, &[("tag", &tag)])?;
        }
        Ok(())
    }

    /// Writes a `TrackEvent` of this type.
    fn write_track_event(
        &mut self,
        kind: u64,
        track: u64,
        time_ns: u64,
        category: &str,
        name: &str,
        notes: &[(&str, &String)],
    ) -> Result<(), OutputError> {
        self.packet(NEEDS_STATE, |message| {
            message.number(packet::TIMESTAMP, time_ns);
            message.message(packet::TRACK_EVENT, |message| {
                message.number(9, kind);
                message.number(11, track);
                message.text(22, category);
                message.text(23, &printable(name));
                for (key, value) in notes {
                    message.message(4, |message| {
                        message.text(10, key);
                        message.text(6, &printable(value));
                    });
                }
            });
        })
    }

    /// Writes a table of interned data in packets of a bounded size.
    fn write_interned<T>(
        &mut self,
        field: u32,
        entries: &[T],
        write: impl Fn(&mut Message, &T),
    ) -> Result<(), OutputError> {
        for part in entries.chunks(ENTRIES) {
            self.packet(NEEDS_STATE, |message| {
                message.message(packet::INTERNED_DATA, |message| {
                    part.iter().for_each(|entry| message.message(field, |message| write(message, entry)));
                });
            })?;
        }
        Ok(())
    }

    fn write_strings(&mut self, field: u32, strings: &Strings) -> Result<(), OutputError> {
        let entries: Vec<(u64, &String)> = (1..).zip(&strings.list).collect();
        self.write_interned(field, &entries, |message, (id, text)| {
            message.number(1, *id);
            message.text(2, &printable(text));
        })
    }

    /// Writes a mapping for each module instance, and one for code that is in none: readers
    /// before version 58 want one for every frame. Returns the first of each image; 0 = none.
    fn write_mappings(&mut self, profile: &Profile) -> Result<Vec<u64>, OutputError> {
        let (mut builds, mut paths) = (Strings::default(), Strings::default());
        let mut first = vec![0; profile.images.len()];
        let mut rows = Vec::with_capacity(profile.modules.len());
        for (id, module) in (1..).zip(&profile.modules) {
            let at = module.image.0 as usize;
            let image = &profile.images[at];
            if first[at] == 0 {
                first[at] = id;
            }
            let end = module.base.saturating_add(module.size);
            rows.push((id, builds.id(&image.debug_id), paths.id(path_of(image)), module.base, end));
        }
        let no_module = (rows.len() as u64 + 1, 0, paths.id("[no module]"), 0, 0);
        rows.push(no_module);
        self.write_strings(interned::BUILD_IDS, &builds)?;
        self.write_strings(interned::MAPPING_PATHS, &paths)?;
        self.write_interned(interned::MAPPINGS, &rows, |message, &(id, build, path, start, end)| {
            message.number(1, id);
            message.number(4, start);
            message.number(5, end);
            for (field, string) in [(2, build), (7, path)] {
                if string != 0 {
                    message.number(field, string);
                }
            }
        })?;
        Ok(first)
    }

    fn write_frames(
        &mut self,
        profile: &Profile,
        functions: &Functions,
        mappings: &[u64],
    ) -> Result<(), OutputError> {
        let (mut names, mut sources) = (Strings::default(), Strings::default());
        let mut rows: Vec<InternedFrame> = Vec::new();
        let no_mapping = profile.modules.len() as u64 + 1;
        for (frame, key) in (0..).map(FrameId).zip(profile.frames.keys()) {
            self.frames.starts.push(rows.len() as u64 + 1);
            let (mapping, address) = place(mappings, key).unwrap_or((no_mapping, 0));
            let lines = profile.symbols.names(frame).iter().rev().map(|name| name.line);
            for (&id, line) in functions.of(frame).iter().zip(lines) {
                let function = &functions.list()[id.0 as usize];
                let source = function.file.as_deref().filter(|_| line.is_some());
                rows.push(InternedFrame {
                    name: names.id(&function.name),
                    mapping,
                    address,
                    source: sources.id(source.unwrap_or_default()),
                    line: line.unwrap_or(0),
                    kind: kind(profile.kind(frame)),
                });
            }
        }
        self.frames.starts.push(rows.len() as u64 + 1);
        let mut root = |text: String| {
            rows.push(InternedFrame {
                name: names.id(&text),
                mapping: no_mapping,
                ..InternedFrame::default()
            });
            rows.len() as u64
        };
        self.frames.empty = root(EMPTY.to_owned());
        self.frames.stops = profile.stops.iter().map(|stop| incomplete(stop).map(&mut root)).collect();
        if self.weight == Weight::Waiting {
            self.frames.waits = Wait::all().into_iter().map(|wait| root(wait_root(wait))).collect();
        }
        self.write_strings(interned::FUNCTION_NAMES, &names)?;
        self.write_strings(interned::SOURCE_PATHS, &sources)?;
        let rows: Vec<(u64, InternedFrame)> = (1..).zip(rows).collect();
        self.write_interned(interned::FRAMES, &rows, |message, (id, row)| row.write(*id, message))
    }

    fn write_sample(&mut self, profile: &Profile, thread: u32, run: &Run) -> Result<(), OutputError> {
        let interval_ns = profile.trace.interval_ns;
        let counted = self.counted.count(thread, run);
        let wall_ns = counted.map_or(0, |(start, end)| end - start);
        let of = |weight: Weight| match weight {
            Weight::Wall => wall_ns,
            other => other.of(run, interval_ns),
        };
        let weight = of(self.weight);
        let followers: Vec<u64> =
            self.others.iter().map(|&other| of(other)).chain([run.samples.into()]).collect();
        let (callstack, frames) = self.callstack(profile, run);
        let time_ns = counted.map_or(run.first_ns, |(start, _)| start);
        self.packet(NEEDS_STATE, |message| {
            message.number(packet::TIMESTAMP, time_ns);
            write_callstack(message, callstack, frames);
            message.message(packet::STACK_SAMPLE, |message| {
                message.number(2, u64::from(thread) + 1);
                message.number(6, callstack);
                message.number(11, weight);
                message.packed(14, followers.into_iter());
            });
        })
    }

    /// Writes the samples of a run that count, each for itself.
    fn write_perf_samples(&mut self, profile: &Profile, thread: u32, run: &Run) -> Result<(), OutputError> {
        let counts = match self.weight {
            Weight::Wall | Weight::Samples => true,
            Weight::Waiting => run.activity.wait().is_some(),
            // A sample that counts CPU time has no place for how much.
            Weight::Cpu | Weight::Active => run.activity.wait().is_none(),
        };
        if !counts {
            return Ok(());
        }
        let samples = u64::from(run.samples);
        let taken = samples.min(MOST_PERF_SAMPLES - self.perf_samples);
        self.perf_samples += taken;
        self.left_out += samples - taken;
        let (callstack, mut frames) = self.callstack(profile, run);
        let (pid, tid) = (profile.pid_of_thread(thread), profile.threads[thread as usize].tid);
        for sample in 0..taken {
            let span = u128::from(run.last_ns.saturating_sub(run.first_ns));
            let after = span * u128::from(sample) / u128::from(samples.saturating_sub(1).max(1));
            let frames = frames.take();
            self.packet(NEEDS_STATE, |message| {
                message.number(packet::TIMESTAMP, run.first_ns.saturating_add(after as u64));
                write_callstack(message, callstack, frames);
                message.message(packet::PERF_SAMPLE, |message| {
                    message.number(2, pid.into());
                    message.number(3, tid.into());
                    message.number(4, callstack);
                });
            })?;
        }
        Ok(())
    }

    /// The number of a run's call stack, and its frames if it is new.
    fn callstack(&mut self, profile: &Profile, run: &Run) -> (u64, Option<Vec<u64>>) {
        let origin = StackOrigin::of(run, self.weight);
        let known = self.callstacks.len() as u64;
        let callstack = *self.callstacks.entry(origin).or_insert(known + 1);
        (callstack, (callstack > known).then(|| self.frames.of(profile, origin)))
    }
}

/// Writes a new call stack as interned data of a packet.
fn write_callstack(message: &mut Message, callstack: u64, frames: Option<Vec<u64>>) {
    let Some(frames) = frames else { return };
    message.message(packet::INTERNED_DATA, |message| {
        message.message(interned::CALLSTACKS, |message| {
            message.number(1, callstack);
            // Readers expect this field unpacked.
            frames.into_iter().for_each(|frame| message.number(2, frame));
        });
    });
}

/// A frame as Perfetto has it.
#[derive(Default)]
struct InternedFrame {
    name: u64,
    mapping: u64,
    /// From the beginning of the mapping.
    address: u64,
    source: u64,
    line: u32,
    kind: u64,
}

impl InternedFrame {
    fn write(&self, id: u64, message: &mut Message) {
        message.number(1, id);
        message.number(2, self.name);
        message.number(3, self.mapping);
        message.number(4, self.address);
        for (field, value) in [(5, self.source), (6, self.line.into()), (7, self.kind)] {
            if value != 0 {
                message.number(field, value);
            }
        }
    }
}

/// A description of a counter.
fn counter(message: &mut Message, (name, unit): (&str, u64)) {
    message.text(2, name);
    message.number(3, unit);
}

/// The track of the threads with this id.
fn thread_track((process, tid): TrackKey) -> u64 {
    // Behind those of all processes.
    (u64::from(process) << 32) + (1 << 32) + u64::from(tid)
}

fn process_track(process: u32) -> u64 {
    PROCESS_TRACK + u64::from(process)
}

/// The mapping of a frame, and its place there: inside the call instruction for a return address.
/// `None` = it is in no mapping.
fn place(mappings: &[u64], key: &FrameKey) -> Option<(u64, u64)> {
    match key.place {
        Placement::Image(image, rva) => {
            let mapping = Some(mappings[image.0 as usize]).filter(|&mapping| mapping != 0)?;
            Some((mapping, if key.exact { rva } else { rva.saturating_sub(1) }.into()))
        }
        Placement::Code(..) | Placement::Unknown(_) => None,
    }
}

/// The value of `Frame.Kind`; 0 = unknown.
fn kind(kind: FrameKind) -> u64 {
    match kind {
        FrameKind::Native => 1,
        FrameKind::Managed | FrameKind::Dynamic => 4,
        FrameKind::Runtime | FrameKind::Stub => 6,
        FrameKind::Unknown | FrameKind::Placeholder => 0,
    }
}
