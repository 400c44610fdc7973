//! V8 CPU profiles: `Profile` and `ProfileChunk` events.

use super::super::sink::Sink;
use super::super::threads::by_track;
use super::super::unfold::{incomplete, stop_of};
use super::super::{OutputError, Summary, Writer, finish_for, json};
use super::stacks::{NodeLabel, StackSource, Stacks};
use super::{Track, address, preamble, time};
use stk_profile::profile::{Batch, Function, FunctionId, Functions, Profile};

/// Samples per chunk.
const CHUNK: usize = 4096;
/// Bytes of nodes per chunk: a deep stack of long names may have hundreds of megabytes.
const NODE_BYTES: usize = 256 << 10;
/// The nodes that every V8 profile has: the root, and the one for times without samples.
const ROOT: u32 = 1;
const IDLE: u32 = 2;

/// Writes one V8 profile per thread. Nodes are written with the first chunk that needs them. Each
/// sample is valid until the next one.
pub(in super::super) struct V8 {
    sink: Sink,
    /// Whether each source line is a function of its own.
    by_line: bool,
    functions: Option<Functions>,
    track: Track,
    /// Number of profiles begun, which is also the id of the last one.
    profiles: u32,
    /// Nodes of the current profile.
    stacks: Stacks,
    call_frames: CallFrames,
    /// The last id that one of them got.
    last_node: u32,
    last: Option<u32>,
    last_ns: u64,
    chunk: Chunk,
}

/// Content of the next `ProfileChunk`, as JSON.
#[derive(Default)]
struct Chunk {
    nodes: Vec<u8>,
    samples: Vec<u8>,
    deltas: Vec<u8>,
    count: usize,
}

impl Chunk {
    /// Writes it as an event of this profile at a time, and the profile's end if it is the last.
    fn write(
        &mut self,
        sink: &mut Sink,
        track: &Track,
        profile: u32,
        (at_ns, end_ns): (u64, Option<u64>),
    ) -> Result<(), OutputError> {
        event(sink, track, "ProfileChunk", profile, at_ns);
        sink.put(b"\"cpuProfile\":{\"nodes\":[");
        sink.buffer.append(&mut self.nodes);
        sink.put(b"],\"samples\":[");
        sink.buffer.append(&mut self.samples);
        sink.put(b"]},\"timeDeltas\":[");
        sink.buffer.append(&mut self.deltas);
        sink.put(b"]");
        if let Some(end_ns) = end_ns {
            sink.put(b",\"endTime\":");
            json::microseconds(&mut sink.buffer, end_ns);
        }
        sink.put(b"}}}");
        self.count = 0;
        sink.settle()
    }
}

impl V8 {
    pub(super) fn new(sink: Sink, by_line: bool) -> V8 {
        V8 {
            sink,
            by_line,
            functions: None,
            track: Track::default(),
            profiles: 0,
            stacks: Stacks::default(),
            call_frames: CallFrames::default(),
            last_node: IDLE,
            last: None,
            last_ns: 0,
            chunk: Chunk::default(),
        }
    }

    fn begin_profile(&mut self, start_ns: u64) {
        self.profiles += 1;
        self.stacks.clear();
        self.last_node = IDLE;
        self.last = None;
        self.last_ns = start_ns;
        event(&mut self.sink, &self.track, "Profile", self.profiles, start_ns);
        self.sink.put(b"\"startTime\":");
        json::microseconds(&mut self.sink.buffer, start_ns);
        self.sink.put(b"}}}");
        for (id, parent, name) in [(ROOT, None, "(root)"), (IDLE, Some(ROOT), "(idle)")] {
            begin_node(&mut self.chunk.nodes, id, parent);
            end_node(&mut self.chunk.nodes, name, "", None);
        }
    }

    /// Adds a sample: the thread is at `node` from `at_ns` on.
    fn sample(&mut self, node: u32, at_ns: u64) -> Result<(), OutputError> {
        if self.last == Some(node) {
            return Ok(());
        }
        self.force_sample(node, at_ns)
    }

    fn force_sample(&mut self, node: u32, at_ns: u64) -> Result<(), OutputError> {
        let chunk = &mut self.chunk;
        if chunk.count > 0 {
            chunk.samples.push(b',');
            chunk.deltas.push(b',');
        }
        json::number(&mut chunk.samples, node.into());
        json::microseconds(&mut chunk.deltas, at_ns - self.last_ns);
        chunk.count += 1;
        self.last = Some(node);
        self.last_ns = at_ns;
        if chunk.count < CHUNK {
            return Ok(());
        }
        chunk.write(&mut self.sink, &self.track, self.profiles, (at_ns, None))
    }

    fn end_profile(&mut self, end_ns: u64) -> Result<(), OutputError> {
        if self.profiles == 0 {
            return Ok(());
        }
        // Readers give the last sample no time, so an extra one ends the profile.
        self.force_sample(IDLE, end_ns)?;
        self.chunk.write(&mut self.sink, &self.track, self.profiles, (end_ns, Some(end_ns)))
    }

    /// The node of a stack, new or known.
    fn node_of(&mut self, profile: &Profile, origin: StackSource) -> Result<u32, OutputError> {
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        let (chunk, last, call_frames) = (&mut self.chunk, &mut self.last_node, &mut self.call_frames);
        let mut written = Ok(());
        let node = self.stacks.node_of(profile, functions, origin, ROOT, |parent, what| {
            *last += 1;
            match what {
                NodeLabel::Function(id) => {
                    begin_node(&mut chunk.nodes, *last, Some(parent));
                    call_frames.write(&mut chunk.nodes, id, &functions.list()[id.0 as usize]);
                }
                NodeLabel::Incomplete(stop) => {
                    let text = incomplete(&profile.stops[stop.0 as usize]).unwrap_or_default();
                    begin_node(&mut chunk.nodes, *last, Some(parent));
                    end_node(&mut chunk.nodes, &text, "", None);
                }
            }
            if chunk.nodes.len() > NODE_BYTES && written.is_ok() {
                written = chunk.write(&mut self.sink, &self.track, self.profiles, (self.last_ns, None));
            }
            *last
        });
        written.map(|()| node)
    }
}

impl Writer for V8 {
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        by_track(profile)
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.functions = Some(Functions::new(profile, self.by_line));
        preamble(&mut self.sink, profile)
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let mut track = self.track;
            let Some(step) = track.step(profile, batch.thread, run) else { continue };
            let new_thread = self.track.thread != track.thread;
            if new_thread {
                self.end_profile(self.track.end_ns)?;
                self.track = track;
                self.begin_profile(step.start_ns);
            } else if let Some(previous_end) = step.gap {
                self.sample(IDLE, previous_end)?;
            }
            self.track = track;
            let node = self.node_of(profile, (run.node, stop_of(run)))?;
            self.sample(node, step.start_ns)?;
        }
        Ok(())
    }

    fn finish(&mut self, _: &Profile) -> Result<Summary, OutputError> {
        self.end_profile(self.track.end_ns)?;
        let sink = &mut self.sink;
        sink.put(b"\n]\n");
        finish_for("a viewer of Chrome traces", sink)
    }
}

fn event(sink: &mut Sink, track: &Track, name: &str, id: u32, at_ns: u64) {
    sink.put(b",\n{\"ph\":\"P\",\"cat\":\"disabled-by-default-v8.cpu_profiler\",\"name\":");
    json::string(&mut sink.buffer, name);
    sink.put(b",\"id\":");
    json::string(&mut sink.buffer, &format!("0x{id:x}"));
    address(sink, track.pid, track.tid);
    time(sink, at_ns);
    sink.put(b",\"args\":{\"data\":{");
}

fn begin_node(out: &mut Vec<u8>, id: u32, parent: Option<u32>) {
    if !out.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(b"{\"id\":");
    json::number(out, id.into());
    if let Some(parent) = parent {
        out.extend_from_slice(b",\"parent\":");
        json::number(out, parent.into());
    }
}

fn end_node(out: &mut Vec<u8>, name: &str, file: &str, line: Option<u32>) {
    out.extend_from_slice(b",\"callFrame\":{\"codeType\":\"other\",\"scriptId\":0,\"functionName\":");
    json::string(out, name);
    if !file.is_empty() {
        out.extend_from_slice(b",\"url\":");
        json::string(out, file);
    }
    // V8 counts lines from 0.
    if let Some(line) = line.and_then(|line| line.checked_sub(1)) {
        out.extend_from_slice(b",\"lineNumber\":");
        json::number(out, line.into());
    }
    out.extend_from_slice(b"}}");
}

/// Bytes of the ends of functions' nodes that are kept.
const MOST_KEPT: usize = 8 << 20;

/// The ends of functions' nodes, which nodes have in common: each made once, while there is room.
#[derive(Default)]
struct CallFrames {
    /// By function: where its text begins and ends; equal = it is not kept.
    places: Vec<(u32, u32)>,
    texts: Vec<u8>,
}

impl CallFrames {
    fn write(&mut self, out: &mut Vec<u8>, FunctionId(id): FunctionId, function: &Function) {
        let at = id as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, (0, 0));
        }
        let (first, end) = self.places[at];
        if first < end {
            return out.extend_from_slice(&self.texts[first as usize..end as usize]);
        }
        let first = out.len();
        end_node(out, &function.name, function.file.as_deref().unwrap_or(""), function.line);
        let text = &out[first..];
        if self.texts.len() + text.len() <= MOST_KEPT {
            let begin = self.texts.len();
            self.texts.extend_from_slice(text);
            self.places[at] = (begin as u32, self.texts.len() as u32);
        }
    }
}
