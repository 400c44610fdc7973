//! `stackFrames` and `samples`.

use super::super::sink::Sink;
use super::super::threads::by_track;
use super::super::unfold::{incomplete, stop_of};
use super::super::{OutputError, Summary, Writer, finish_for, json};
use super::stacks::{NodeLabel, StackOrigin, Stacks};
use super::{OBJECT, Track, VIEWERS, other_data, preamble};
use stk_profile::profile::{Batch, Functions, Profile};

/// The frame for times without samples, since readers need a frame for every sample.
const GAP: u32 = 1;
/// Stands for "no parent", as readers expect.
const NO_PARENT: u32 = 0;

/// Writes the samples in their order, and the frames after them. A frame here is a function
/// together with its callers.
///
/// Ids start at 1, because readers take a parent of 0 for none. Each thread ends with an extra
/// sample, because readers give the last one no time.
pub(in super::super) struct Samples {
    sink: Sink,
    /// Whether each source line is a function of its own.
    by_line: bool,
    functions: Option<Functions>,
    track: Track,
    stacks: Stacks,
    /// Parent and content of each frame, by id.
    list: Vec<(u32, NodeLabel)>,
    last: Option<u32>,
    written: u64,
}

impl Samples {
    pub(super) fn new(sink: Sink, by_line: bool) -> Samples {
        Samples {
            sink,
            by_line,
            functions: None,
            track: Track::default(),
            stacks: Stacks::default(),
            list: Vec::new(),
            last: None,
            written: 0,
        }
    }

    fn sample(&mut self, frame: u32, at_ns: u64) -> Result<(), OutputError> {
        let sink = &mut self.sink;
        sink.put(if self.written == 0 { b"\n" } else { b",\n" });
        sink.put(b"{\"cpu\":0,\"name\":\"sample\",\"pid\":");
        json::number(&mut sink.buffer, self.track.pid.into());
        sink.put(b",\"tid\":");
        json::number(&mut sink.buffer, self.track.tid.into());
        sink.put(b",\"ts\":");
        json::microseconds(&mut sink.buffer, at_ns);
        sink.put(b",\"sf\":");
        json::number(&mut sink.buffer, frame.into());
        sink.put(b",\"weight\":1}");
        self.written += 1;
        self.last = Some(frame);
        sink.settle()
    }

    fn end_thread(&mut self) -> Result<(), OutputError> {
        if self.last.is_some() {
            self.sample(GAP, self.track.end_ns)?;
        }
        self.last = None;
        Ok(())
    }

    /// The frame of a stack, new or known.
    fn frame_of(&mut self, profile: &Profile, origin: StackOrigin) -> Result<u32, OutputError> {
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        let list = &mut self.list;
        let frame = self.stacks.node_of(profile, functions, origin, NO_PARENT, |parent, what| {
            list.push((parent, what));
            GAP + list.len() as u32
        });
        Ok(if frame == NO_PARENT { GAP } else { frame })
    }
}

impl Writer for Samples {
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        by_track(profile)
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.functions = Some(Functions::new(profile, self.by_line));
        preamble(&mut self.sink, profile, OBJECT)?;
        self.sink.put(b"\n],\n\"samples\":[");
        Ok(())
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let mut track = self.track;
            let Some(step) = track.step(profile, batch.thread, run) else { continue };
            if self.track.thread != track.thread {
                self.end_thread()?;
            } else if let Some(previous_end) = step.gap {
                self.sample(GAP, previous_end)?;
            }
            self.track = track;
            let frame = self.frame_of(profile, (run.node, stop_of(run)))?;
            if self.last != Some(frame) {
                self.sample(frame, step.start_ns)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.end_thread()?;
        let functions = self.functions.as_ref().ok_or(OutputError::Order("finish before begin"))?;
        let sink = &mut self.sink;
        sink.put(b"\n],\n\"stackFrames\":{\n\"1\":{\"name\":\"(not sampled)\",\"category\":\"\"}");
        for (i, &(parent, what)) in self.list.iter().enumerate() {
            sink.put(b",\n\"");
            json::number(&mut sink.buffer, (GAP as usize + 1 + i) as u64);
            sink.put(b"\":{\"name\":");
            match what {
                NodeLabel::Function(id) => {
                    let function = &functions.list()[id.0 as usize];
                    json::string(&mut sink.buffer, &function.name);
                    sink.put(b",\"category\":");
                    json::string(&mut sink.buffer, &function.module);
                }
                NodeLabel::Incomplete(stop) => {
                    let text = incomplete(&profile.stops[stop.0 as usize]).unwrap_or_default();
                    json::string(&mut sink.buffer, &text);
                    sink.put(b",\"category\":\"\"");
                }
            }
            if parent != NO_PARENT {
                sink.put(b",\"parent\":");
                json::number(&mut sink.buffer, parent.into());
            }
            sink.put(b"}");
            sink.settle()?;
        }
        sink.put(b"\n},\n");
        other_data(sink, profile);
        sink.put(b"}\n");
        finish_for(VIEWERS, sink)
    }
}
