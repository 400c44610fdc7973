//! Nested `B`/`E` slices.

use super::super::sink::Sink;
use super::super::threads::by_track;
use super::super::unfold::{incomplete, stop_of};
use super::super::{OutputError, Summary, Writer, finish_for, json};
use super::stacks::{NodeLabel, StackOrigin};
use super::{OBJECT, Track, VIEWERS, address, other_data, preamble, time};
use stk_profile::profile::{Activity, Batch, FrameId, Functions, NameSource, Profile, Run};

/// Writes one slice for as long as neighbouring samples have the same function at the same depth.
///
/// Details that differ between those samples (line, trust) are collected while the slice is open
/// and written as arguments of its `E` event: viewers join the arguments of both events, and
/// speedscope would add those of `B` to the function's name. `cpu_us` is the CPU time within the
/// slice, callees included; `state` what the thread did while the function was the innermost one.
pub(in super::super) struct Slices {
    sink: Sink,
    /// Whether each source line is a function of its own.
    by_line: bool,
    functions: Option<Functions>,
    track: Track,
    /// Slices that are open on the track, root first.
    open: Vec<Slice>,
    /// CPU time of the runs so far, in nanoseconds.
    cpu_ns: u64,
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
    /// CPU time of the runs before it, in nanoseconds.
    cpu_before_ns: u64,
    /// What the thread did while it was the innermost slice: the first few.
    activities: [Option<Activity>; 4],
}

impl Slices {
    pub(super) fn new(sink: Sink, by_line: bool) -> Slices {
        Slices {
            sink,
            by_line,
            functions: None,
            track: Track::default(),
            open: Vec::new(),
            cpu_ns: 0,
            origin: None,
            frames: Vec::new(),
            levels: Vec::new(),
        }
    }

    /// Fills `self.levels` with the stack of a run, root first.
    fn unfold(&mut self, profile: &Profile, run: &Run) -> Result<(), OutputError> {
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        self.levels.clear();
        if let Some(stop) = stop_of(run)
            && incomplete(&profile.stops[stop.0 as usize]).is_some()
        {
            self.levels.push(Level { what: NodeLabel::Incomplete(stop), frame: None });
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

    /// Makes the open slices those of a run that begins at `start_ns`.
    fn change(&mut self, profile: &Profile, run: &Run, start_ns: u64) -> Result<(), OutputError> {
        self.unfold(profile, run)?;
        let same = self.open.iter().zip(&self.levels).take_while(|(slice, level)| slice.what == level.what);
        let common = same.count();
        for (slice, level) in self.open.iter_mut().zip(&self.levels[..common]) {
            slice.see(profile, level.frame);
        }
        self.close(profile, common, start_ns)?;
        let functions = self.functions.as_ref().ok_or(OutputError::Order("samples before begin"))?;
        for level in &self.levels[common..] {
            event(&mut self.sink, profile, &self.track, functions, b"B", level.what, start_ns);
            self.sink.put(b"}");
            let mut slice = Slice {
                what: level.what,
                frame: None,
                lines: None,
                trusts: [None; 4],
                cpu_before_ns: self.cpu_ns,
                activities: [None; 4],
            };
            slice.see(profile, level.frame);
            self.open.push(slice);
        }
        self.sink.settle()
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
            slice.times(sink, self.cpu_ns);
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
        self.functions = Some(Functions::new(profile, self.by_line));
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
            let origin = Some((run.node, stop_of(run)));
            if self.origin != origin {
                self.origin = origin;
                self.change(profile, run, step.start_ns)?;
            }
            self.cpu_ns = self.cpu_ns.saturating_add(run.cpu_ns);
            if let Some(innermost) = self.open.last_mut() {
                note(&mut innermost.activities, run.activity);
            }
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
        note(&mut self.trusts, profile.frames.keys()[frame.0 as usize].trust.as_str());
    }

    /// Writes what the thread did in the slice, and the CPU time up to `cpu_ns` of all runs.
    fn times(&self, sink: &mut Sink, cpu_ns: u64) {
        let states: Vec<String> = self.activities.iter().flatten().map(Activity::to_string).collect();
        let separator = |sink: &mut Sink| {
            if sink.buffer.last() != Some(&b'{') {
                sink.put(b",");
            }
        };
        if !states.is_empty() {
            separator(sink);
            sink.put(b"\"state\":");
            json::string(&mut sink.buffer, &states.join(", "));
        }
        if cpu_ns > self.cpu_before_ns {
            separator(sink);
            sink.put(b"\"cpu_us\":");
            json::microseconds(&mut sink.buffer, cpu_ns - self.cpu_before_ns);
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

/// Adds a detail to those of a slice, if it is new and there is room.
fn note<T: Copy + PartialEq>(seen: &mut [Option<T>], detail: T) {
    if !seen.contains(&Some(detail))
        && let Some(free) = seen.iter_mut().find(|seen| seen.is_none())
    {
        *free = Some(detail);
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
    address(sink, track.pid, track.tid);
    time(sink, at_ns);
}
