//! V8 CPU profiles: `Profile` and `ProfileChunk` events.

use super::super::sink::Sink;
use super::super::threads::by_track;
use super::super::unfold::stop_of;
use super::super::{OutputError, Summary, Writer, finish_for, json};
use super::cpu_profile::{CpuProfile, ProfileChunk, Stay};
use super::labels::{LabelTexts, first_nodes};
use super::stacks::NodeNumbers;
use super::{Track, address, preamble, time};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;
use stk_profile::profile::{Batch, Folded, FrameId, FunctionTree, Functions, Profile};

/// Times that threads stay somewhere which are held until nodes are numbered: 6 MiB. Several
/// threads' nodes are numbered at once.
const MOST_STAYS: usize = 256 << 10;

/// Writes one V8 profile per thread. Nodes are written with the first chunk that needs them. Each
/// sample is valid until the next one.
pub(in super::super) struct V8 {
    sink: Sink,
    /// Whether each source line is a function of its own.
    by_line: bool,
    shared: Option<Shared>,
    track: Track,
    /// Number of profiles begun, which is also the id of the last one.
    profiles: u32,
    /// Profiles that are not written to their end. All but the last one are known to their end.
    making: VecDeque<CpuProfile>,
    /// How many stays they hold.
    stays: usize,
    spare: Mutex<Vec<NodeNumbers>>,
    /// The text that is written next.
    ready: Vec<Vec<u8>>,
}

/// What all profiles share.
struct Shared {
    folded: Folded,
    texts: LabelTexts,
}

impl V8 {
    pub(super) fn new(sink: Sink, by_line: bool) -> V8 {
        V8 {
            sink,
            by_line,
            shared: None,
            track: Track::default(),
            profiles: 0,
            making: VecDeque::new(),
            stays: 0,
            spare: Mutex::default(),
            ready: Vec::new(),
        }
    }

    fn push(&mut self, stay: Stay) {
        if let Some(making) = self.making.back_mut() {
            making.push(stay);
            self.stays += 1;
        }
    }

    fn end_profile(&mut self) {
        if let Some(making) = self.making.back_mut() {
            making.end(self.track.end_ns);
        }
    }

    /// Writes what is known of all profiles.
    fn write(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let V8 { sink, shared, making, spare, ready, .. } = self;
        let Shared { folded, texts } = shared.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        let at_once = rayon::current_num_threads();
        loop {
            let first = making.len().min(at_once);
            let active = &mut making.make_contiguous()[..first];
            active.par_iter_mut().for_each(|made| made.fill(profile, folded, texts, spare));
            let mut chunks: Vec<ProfileChunk> = Vec::new();
            while let Some(made) = making.front_mut() {
                chunks.append(&mut made.take());
                if !made.is_done() {
                    break;
                }
                making.pop_front();
            }
            if chunks.is_empty() {
                self.stays = 0;
                return Ok(());
            }
            for chunks in chunks.chunks(2 * at_once) {
                let written = std::mem::take(ready);
                let (made, written) = rayon::join(
                    || chunks.par_iter().map(|chunk| text_of(chunk, texts)).collect(),
                    || written.iter().try_for_each(|text| sink.put_many(text)),
                );
                written?;
                *ready = made;
            }
        }
    }
}

impl Writer for V8 {
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        by_track(profile)
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        let functions = Functions::new(profile, self.by_line);
        let of_frame = |frame: FrameId| functions.of(frame).iter().map(|function| function.0);
        let mut folded = FunctionTree::fold(&profile.tree, |_| true, of_frame, |_| false);
        folded.tree.settle();
        self.shared = Some(Shared { folded, texts: LabelTexts::new(profile, functions) });
        preamble(&mut self.sink, profile)
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let mut track = self.track;
            let Some(step) = track.step(profile, batch.thread, run) else { continue };
            if self.track.thread != track.thread {
                self.end_profile();
                self.profiles += 1;
                let made = CpuProfile::new(self.profiles, (track.pid, track.tid), step.start_ns);
                self.making.push_back(made);
            } else if let Some(previous_end) = step.gap {
                self.push(Stay { source: None, at_ns: previous_end });
            }
            self.track = track;
            self.push(Stay { source: Some((run.node, stop_of(run))), at_ns: step.start_ns });
            if self.stays >= MOST_STAYS {
                self.write(profile)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.end_profile();
        self.write(profile)?;
        let sink = &mut self.sink;
        self.ready.iter().try_for_each(|text| sink.put_many(text))?;
        sink.put(b"\n]\n");
        finish_for("a viewer of Chrome traces", sink)
    }
}

/// The events of a chunk.
fn text_of(chunk: &ProfileChunk, texts: &LabelTexts) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(start_ns) = chunk.start_ns {
        event(&mut out, chunk, "Profile", start_ns);
        out.extend_from_slice(b"\"startTime\":");
        json::microseconds(&mut out, start_ns);
        out.extend_from_slice(b"}}}");
    }
    event(&mut out, chunk, "ProfileChunk", chunk.at_ns);
    out.extend_from_slice(b"\"cpuProfile\":{\"nodes\":[");
    let begin = out.len();
    if chunk.start_ns.is_some() {
        out.extend_from_slice(&first_nodes());
    }
    let nodes = (chunk.first_node..).zip(&chunk.nodes);
    list(&mut out, begin, nodes, |out, (id, &(parent, label))| texts.node(out, id, parent, label));
    out.extend_from_slice(b"],\"samples\":[");
    let begin = out.len();
    list(&mut out, begin, &chunk.samples, |out, &(node, _)| json::number(out, node.into()));
    out.extend_from_slice(b"]},\"timeDeltas\":[");
    let begin = out.len();
    list(&mut out, begin, &chunk.samples, |out, &(_, delta_ns)| json::microseconds(out, delta_ns));
    out.extend_from_slice(b"]");
    if let Some(end_ns) = chunk.end_ns {
        out.extend_from_slice(b",\"endTime\":");
        json::microseconds(&mut out, end_ns);
    }
    out.extend_from_slice(b"}}}");
    out
}

/// Adds to a list that begins at `begin`. There is a comma before every item but the first.
fn list<T>(
    out: &mut Vec<u8>,
    begin: usize,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut Vec<u8>, T),
) {
    for item in items {
        if out.len() > begin {
            out.push(b',');
        }
        write(out, item);
    }
}

fn event(out: &mut Vec<u8>, chunk: &ProfileChunk, name: &str, at_ns: u64) {
    out.extend_from_slice(b",\n{\"ph\":\"P\",\"cat\":\"disabled-by-default-v8.cpu_profiler\",\"name\":");
    json::string(out, name);
    out.extend_from_slice(b",\"id\":");
    json::string(out, &format!("0x{:x}", chunk.profile));
    address(out, chunk.pid, chunk.tid);
    time(out, at_ns);
    out.extend_from_slice(b",\"args\":{\"data\":{");
}
