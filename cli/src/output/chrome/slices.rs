//! Nested `B`/`E` slices.

use super::super::sink::Sink;
use super::super::unfold::incomplete;
use super::super::{OutputError, Summary, Writer, finish_for, json};
use super::stacks::{NodeLabel, StackOrigin};
use super::{OBJECT, Track, VIEWERS, address, by_track, other_data, preamble, time};
use crate::profile::{Batch, FrameId, Functions, NameSource, Profile, Run};

/// Writes one slice for as long as neighbouring samples have the same function at the same depth.
///
/// Details that differ between those samples (line, trust) are collected while the slice is open
/// and written as arguments of its `E` event: viewers join the arguments of both events, and
/// speedscope would add those of `B` to the function's name.
pub(in super::super) struct Slices {
    sink: Sink,
    functions: Option<Functions>,
    track: Track,
    /// Slices that are open on the track, root first.
    open: Vec<Slice>,
    /// The stack that the open slices were last made from.
    origin: Option<StackOrigin>,
    frames: Vec<FrameId>,
    levels: Vec<Level>,
}

/// A level of a stack.
#[derive(Clone, Copy)]
struct Level {
    what: NodeLabel,
    /// Frame, and index of its name in `FrameSymbols::names`.
    frame: Option<(FrameId, usize)>,
}

struct Slice {
    what: NodeLabel,
    /// The frame seen last. Its details are already in the fields below.
    frame: Option<(FrameId, usize)>,
    /// Lowest and highest line.
    lines: Option<(u32, u32)>,
    trusts: [Option<&'static str>; 4],
}

impl Slices {
    pub(super) fn new(sink: Sink) -> Slices {
        Slices {
            sink,
            functions: None,
            track: Track::default(),
            open: Vec::new(),
            origin: None,
            frames: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Fills `self.levels` with the stack of a run, root first.
    fn unfold(&mut self, profile: &Profile, run: &Run) -> Result<(), OutputError> {
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        self.levels.clear();
        if incomplete(&profile.stops[run.stop.0 as usize]).is_some() {
            self.levels.push(Level { what: NodeLabel::Incomplete(run.stop), frame: None });
        }
        let Some(node) = run.node else { return Ok(()) };
        self.frames.clear();
        self.frames.extend(profile.tree.frames(node));
        for &frame in self.frames.iter().rev() {
            let of_frame = functions.of(frame);
            for (i, &function) in of_frame.iter().enumerate() {
                let frame = Some((frame, of_frame.len() - 1 - i));
                self.levels.push(Level { what: NodeLabel::Function(function), frame });
            }
        }
        Ok(())
    }

    /// Closes slices until `depth` are left.
    fn close(&mut self, profile: &Profile, depth: usize, at_ns: u64) -> Result<(), OutputError> {
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        while self.open.len() > depth
            && let Some(slice) = self.open.pop()
        {
            let sink = &mut self.sink;
            event(sink, profile, &self.track, functions, b"E", slice.what, at_ns);
            sink.put(b",\"args\":{");
            slice.arguments(sink, profile, functions);
            sink.put(b"}}");
            sink.settle()?;
        }
        Ok(())
    }

    fn close_track(&mut self, profile: &Profile, at_ns: u64) -> Result<(), OutputError> {
        self.origin = None;
        self.close(profile, 0, at_ns)
    }
}

impl Writer for Slices {
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        by_track(profile)
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.functions = Some(Functions::new(profile, false));
        preamble(&mut self.sink, profile, OBJECT)
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let mut track = self.track;
            let Some(step) = track.step(profile, batch.thread, run) else { continue };
            if let Some(previous_end) = step.gap {
                self.close_track(profile, previous_end)?;
            }
            self.track = track;
            let origin = Some((run.node, run.stop));
            if self.origin == origin {
                continue;
            }
            self.origin = origin;
            self.unfold(profile, run)?;
            let common = self
                .open
                .iter()
                .zip(&self.levels)
                .take_while(|(slice, level)| slice.what == level.what)
                .count();
            for (slice, level) in self.open.iter_mut().zip(&self.levels[..common]) {
                slice.see(profile, level.frame);
            }
            self.close(profile, common, step.start_ns)?;
            let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
            for level in &self.levels[common..] {
                event(&mut self.sink, profile, &self.track, functions, b"B", level.what, step.start_ns);
                self.sink.put(b"}");
                let mut slice = Slice { what: level.what, frame: None, lines: None, trusts: [None; 4] };
                slice.see(profile, level.frame);
                self.open.push(slice);
            }
            self.sink.settle()?;
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.close_track(profile, self.track.end_ns)?;
        let sink = &mut self.sink;
        sink.put(b"\n],\n");
        other_data(sink, profile);
        sink.put(b"}\n");
        finish_for(VIEWERS, sink)
    }
}

impl Slice {
    /// Adds a sample's details to the slice.
    fn see(&mut self, profile: &Profile, frame: Option<(FrameId, usize)>) {
        if frame == self.frame {
            return;
        }
        self.frame = frame;
        let Some((frame, name)) = frame else { return };
        if let Some(line) = profile.symbols.names(frame)[name].line {
            let (low, high) = self.lines.unwrap_or((line, line));
            self.lines = Some((low.min(line), high.max(line)));
        }
        let trust = profile.frames.keys()[frame.0 as usize].trust.as_str();
        if !self.trusts.contains(&Some(trust))
            && let Some(free) = self.trusts.iter_mut().find(|t| t.is_none())
        {
            *free = Some(trust);
        }
    }

    fn arguments(&self, sink: &mut Sink, profile: &Profile, functions: &Functions) {
        let (NodeLabel::Function(id), Some((frame, name))) = (self.what, self.frame) else { return };
        let function = &functions.list()[id.0 as usize];
        let named = profile.symbols.names(frame)[name];
        sink.put(b"\"module\":");
        json::string(&mut sink.buffer, &function.module);
        if let (Some(file), Some(_)) = (&function.file, named.file) {
            let place = match self.lines {
                Some((low, high)) if low == high => format!("{file}:{low}"),
                Some((low, high)) => format!("{file}:{low}-{high}"),
                None => file.clone(),
            };
            sink.put(b",\"file\":");
            json::string(&mut sink.buffer, &place);
        }
        let trusts: Vec<&str> = self.trusts.iter().flatten().copied().collect();
        sink.put(b",\"trust\":");
        json::string(&mut sink.buffer, &trusts.join(", "));
        let aliases = profile.symbols.aliases(frame);
        if named.inline {
            sink.put(b",\"inline\":true");
        } else if aliases.len() != 0 {
            sink.put(b",\"same_code_as\":");
            json::string(&mut sink.buffer, &same_code_as(aliases));
        }
        if matches!(profile.symbols.source[frame.0 as usize], NameSource::Export) {
            sink.put(b",\"name_source\":\"export\"");
        }
    }
}

/// Lists some of the functions that share a function's code. A linker may fold thousands into one.
fn same_code_as<'a>(mut aliases: impl ExactSizeIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 4;
    let mut text = aliases.by_ref().take(SHOWN).collect::<Vec<_>>().join(", ");
    if aliases.len() != 0 {
        text += &format!(" and {} more", aliases.len());
    }
    text
}

fn event(
    sink: &mut Sink,
    profile: &Profile,
    track: &Track,
    functions: &Functions,
    phase: &[u8],
    what: NodeLabel,
    at_ns: u64,
) {
    sink.put(b",\n{\"ph\":\"");
    sink.put(phase);
    sink.put(b"\",\"name\":");
    match what {
        NodeLabel::Function(id) => json::string(&mut sink.buffer, &functions.list()[id.0 as usize].name),
        NodeLabel::Incomplete(stop) => {
            json::string(&mut sink.buffer, &incomplete(&profile.stops[stop.0 as usize]).unwrap_or_default());
        }
    }
    address(sink, profile.trace.pid, track.tid);
    time(sink, at_ns);
}
