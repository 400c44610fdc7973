//! pprof's profile.proto: a gzipped protobuf message that `pprof`, `go tool pprof` and speedscope
//! read. It has no times of samples: equal stacks of a thread in one state are one sample.
//!
//! The fields: <https://github.com/google/pprof/blob/main/proto/profile.proto>. Stacks are leaf
//! first, and so are the inlined functions of a location. Each location has a function, since
//! speedscope drops those that have none; code without a symbol has the name that it has in every
//! output. `string_table[0]` is empty. A frame knows its image but not which of the image's
//! instances it was in: its mapping and address are those of the first instance.

use super::compress::Compression;
use super::counted_time::CountedTime;
use super::protobuf::Message;
use super::sink::Sink;
use super::source::exporter;
use super::strings::Strings;
use super::unfold::{EMPTY, StackOrigin, incomplete};
use super::{Description, Destination, Format, Options, OutputError, Summary, Writer, path_of, single_as};
use std::collections::HashMap;
use stk_profile::profile::{
    Activity, Batch, FrameId, FrameKey, Functions, Placement, Profile, StopId, Weight,
};
use stk_schema::text::printable;

pub(super) const FORMAT: Description = Description {
    name: "pprof",
    help: "Gzipped protobuf for pprof and go tool pprof: CPU time, time and samples by stack",
    suffix: ".pb.gz",
    other_suffixes: &[".pprof"],
    is_folder: false,
    names_source: true,
    takes_weight: false,
    has_time_line: false,
    create,
};

/// The fields of the messages.
mod field {
    pub(super) const SAMPLE_TYPE: u32 = 1;
    pub(super) const SAMPLE: u32 = 2;
    pub(super) const MAPPING: u32 = 3;
    pub(super) const LOCATION: u32 = 4;
    pub(super) const FUNCTION: u32 = 5;
    pub(super) const STRING_TABLE: u32 = 6;
    pub(super) const TIME_NANOS: u32 = 9;
    pub(super) const DURATION_NANOS: u32 = 10;
    pub(super) const PERIOD_TYPE: u32 = 11;
    pub(super) const PERIOD: u32 = 12;
    pub(super) const COMMENT: u32 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// What samples count, with the units.
const SAMPLE_TYPES: [(&str, &str); 3] =
    [("samples", "count"), ("cpu", "nanoseconds"), ("wall", "nanoseconds")];

/// The values of a sample, in the order of [`SAMPLE_TYPES`].
type Values = [u64; 3];

fn create(to: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    // The format is gzipped whatever its name. pprof reads it unpacked as well.
    let compression = match &to {
        to if to.file().is_some_and(|path| Compression::of(&path) == Compression::Zstd) => Compression::Zstd,
        _ => Compression::Gzip,
    };
    let sink = single_as(Format::Pprof, to, compression)?;
    Ok(Box::new(PprofWriter {
        out: Output { sink, strings: Strings::default() },
        by_line: options.lines,
        counted: CountedTime::default(),
        sums: HashMap::new(),
    }))
}

struct PprofWriter {
    out: Output,
    by_line: bool,
    counted: CountedTime,
    sums: HashMap<SampleKey, Values>,
}

/// What is one sample.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SampleKey {
    thread: u32,
    origin: StackOrigin,
    activity: Activity,
}

/// The file, and its strings so far.
struct Output {
    sink: Sink,
    strings: Strings,
}

impl Writer for PprofWriter {
    fn passes(&self) -> Vec<Weight> {
        vec![Weight::Wall]
    }

    fn begin(&mut self, _: &Profile) -> Result<(), OutputError> {
        Ok(())
    }

    fn samples(&mut self, _: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        for run in batch.runs {
            let wall_ns = self.counted.count(batch.thread, run).map_or(0, |(start, end)| end - start);
            let origin = StackOrigin::of(run, Weight::Wall);
            let key = SampleKey { thread: batch.thread, origin, activity: run.activity };
            let sums = self.sums.entry(key).or_default();
            for (sum, value) in sums.iter_mut().zip([run.samples.into(), run.cpu_ns, wall_ns]) {
                *sum = sum.saturating_add(value);
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        let functions = Functions::new(profile, self.by_line);
        let out = &mut self.out;
        let cpu_known = self.sums.values().any(|values| values[1] > 0);
        out.header(profile, cpu_known)?;
        let mut samples: Vec<(SampleKey, Values)> = self.sums.drain().collect();
        let order =
            |key: &SampleKey| (key.thread, key.origin.node, key.origin.stop, key.activity.to_string());
        samples.sort_by_cached_key(|(key, _)| order(key));
        for (key, values) in samples {
            out.sample(profile, &key, &values)?;
        }
        let mappings = out.mappings(profile)?;
        out.locations(profile, &functions, &mappings)?;
        out.functions(profile, &functions)?;
        out.end(profile)
    }
}

impl Output {
    /// Writes a field with a message.
    fn put(&mut self, field: u32, fill: impl FnOnce(&mut Message, &mut Strings)) -> Result<(), OutputError> {
        let mut message = Message { bytes: std::mem::take(&mut self.sink.buffer) };
        message.message(field, |message| fill(message, &mut self.strings));
        self.sink.buffer = message.bytes;
        self.sink.settle()
    }

    /// Writes a field with a number.
    fn put_number(&mut self, field: u32, value: u64) -> Result<(), OutputError> {
        let mut message = Message::default();
        message.number(field, signed(value));
        self.sink.put(&message.bytes);
        self.sink.settle()
    }

    fn value_type(&mut self, field: u32, (kind, unit): (&str, &str)) -> Result<(), OutputError> {
        self.put(field, |message, strings| {
            message.number(1, strings.id(kind));
            message.number(2, strings.id(unit));
        })
    }

    fn header(&mut self, profile: &Profile, cpu_known: bool) -> Result<(), OutputError> {
        let trace = &profile.trace;
        for kind in SAMPLE_TYPES {
            self.value_type(field::SAMPLE_TYPE, kind)?;
        }
        let window = profile.window();
        self.put_number(field::TIME_NANOS, trace.start_utc_ns.saturating_add(window.start))?;
        self.put_number(field::DURATION_NANOS, window.end.saturating_sub(window.start))?;
        self.value_type(field::PERIOD_TYPE, SAMPLE_TYPES[2])?;
        self.put_number(field::PERIOD, trace.interval_ns)?;
        let shown = self.strings.id(SAMPLE_TYPES[usize::from(cpu_known)].0);
        self.put_number(field::DEFAULT_SAMPLE_TYPE, shown)
    }

    fn sample(&mut self, profile: &Profile, key: &SampleKey, values: &Values) -> Result<(), OutputError> {
        let thread = profile.threads[key.thread as usize].label();
        let stop = key.origin.stop;
        let root = stop.filter(|stop| incomplete(&profile.stops[stop.0 as usize]).is_some());
        let root = root.map(|stop| stop_id(profile, stop));
        let root = root.or_else(|| key.origin.node.is_none().then(|| empty_id(profile)));
        self.put(field::SAMPLE, |message, strings| {
            let frames = key.origin.node.into_iter().flat_map(|node| profile.tree.frames(node));
            message.packed(1, frames.map(frame_id).chain(root));
            message.packed(2, values.iter().copied().map(signed));
            for (label, value) in [("thread", thread), ("state", key.activity.to_string())] {
                message.message(3, |message| {
                    message.number(1, strings.id(label));
                    message.number(2, strings.id(&value));
                });
            }
        })
    }

    /// Writes a mapping for each module instance, that of the program first, as pprof wants it.
    /// Returns the first mapping of each image and its address.
    fn mappings(&mut self, profile: &Profile) -> Result<Vec<Option<(u64, u64)>>, OutputError> {
        let mut first = vec![None; profile.images.len()];
        let (program, others): (Vec<_>, Vec<_>) =
            profile.modules.iter().partition(|module| Some(module.image) == profile.trace.executable);
        for (id, module) in (1..).zip(program.into_iter().chain(others)) {
            let image = &profile.images[module.image.0 as usize];
            first[module.image.0 as usize].get_or_insert((id, module.base));
            self.put(field::MAPPING, |message, strings| {
                message.number(1, id);
                message.number(2, module.base);
                message.number(3, module.base.saturating_add(module.size));
                message.number(5, strings.id(path_of(image)));
                message.number(6, strings.id(&image.debug_id));
                // What has no name has none here either: no use in looking for it.
                (7..=10).for_each(|flag| message.number(flag, 1));
            })?;
        }
        Ok(first)
    }

    fn locations(
        &mut self,
        profile: &Profile,
        functions: &Functions,
        mappings: &[Option<(u64, u64)>],
    ) -> Result<(), OutputError> {
        for (frame, key) in (0..).map(FrameId).zip(profile.frames.keys()) {
            let (mapping, address) = place(profile, mappings, key);
            let lines = profile.symbols.names(frame).iter().map(|name| name.line);
            self.put(field::LOCATION, |message, _| {
                message.number(1, frame_id(frame));
                message.number(2, mapping);
                message.number(3, address);
                for (function, line) in functions.of(frame).iter().rev().zip(lines) {
                    message.message(4, |message| {
                        message.number(1, u64::from(function.0) + 1);
                        message.number(2, line.unwrap_or(0).into());
                    });
                }
                message.number(5, profile.symbols.aliases.contains_key(&frame).into());
            })?;
        }
        let texts = stops(profile).map(|stop| stop_id(profile, stop)).chain([empty_id(profile)]);
        for (location, function) in texts.zip(functions.list().len() as u64 + 1..) {
            self.put(field::LOCATION, |message, _| {
                message.number(1, location);
                message.message(4, |message| message.number(1, function));
            })?;
        }
        Ok(())
    }

    fn functions(&mut self, profile: &Profile, functions: &Functions) -> Result<(), OutputError> {
        let stops: Vec<String> =
            stops(profile).filter_map(|stop| incomplete(&profile.stops[stop.0 as usize])).collect();
        let named =
            functions.list().iter().map(|function| (function.name.as_str(), function.file.as_deref()));
        let ends = stops.iter().map(String::as_str).chain([EMPTY]).map(|text| (text, None));
        for (id, (name, file)) in (1..).zip(named.chain(ends)) {
            self.put(field::FUNCTION, |message, strings| {
                message.number(1, id);
                // No system name: pprof takes a name that is both for a mangled one and cuts its
                // parameters off.
                message.number(2, strings.id(name));
                message.number(4, strings.id(file.unwrap_or_default()));
            })?;
        }
        Ok(())
    }

    /// Writes the strings. The source is the last one, where [`super::source_mark`] looks for it.
    fn end(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        let comment = self.strings.id(&exporter(profile));
        self.put_number(field::COMMENT, comment)?;
        let texts = std::mem::take(&mut self.strings.list);
        for text in std::iter::once("").chain(texts.iter().map(String::as_str)) {
            let mut message = Message::default();
            message.text(field::STRING_TABLE, &printable(text));
            self.sink.put(&message.bytes);
            self.sink.settle()?;
        }
        self.sink.finish()
    }
}

/// The mapping of a frame, 0 if it is in none, and the address at which its name was looked up.
fn place(profile: &Profile, mappings: &[Option<(u64, u64)>], key: &FrameKey) -> (u64, u64) {
    let (mapping, address) = match key.place {
        Placement::Image(image, rva) => {
            let (mapping, base) = mappings[image.0 as usize].unwrap_or_default();
            (mapping, base.wrapping_add(rva.into()))
        }
        Placement::Code(code, offset) => {
            let base = profile.code.get(code as usize).map_or(0, |code| code.base);
            (0, base.wrapping_add(offset.into()))
        }
        Placement::Unknown(address) => (0, address),
    };
    (mapping, if key.exact { address } else { address.saturating_sub(1) })
}

/// A number of a field that holds signed ones: what is greater would be read as less than 0.
fn signed(value: u64) -> u64 {
    value.min(i64::MAX as u64)
}

/// The location of a frame.
fn frame_id(frame: FrameId) -> u64 {
    u64::from(frame.0) + 1
}

/// The location that shows why a stack is incomplete.
fn stop_id(profile: &Profile, stop: StopId) -> u64 {
    (profile.frames.keys().len() as u64) + 1 + u64::from(stop.0)
}

/// The location that stands for a stack without frames.
fn empty_id(profile: &Profile) -> u64 {
    (profile.frames.keys().len() + profile.stops.len()) as u64 + 1
}

/// The reasons why stacks are incomplete.
fn stops(profile: &Profile) -> impl Iterator<Item = StopId> {
    let incomplete = |(_, stop)| incomplete(stop).is_some();
    let stops = (0..).map(StopId).zip(&profile.stops);
    stops.filter(move |&stop| incomplete(stop)).map(|(id, _)| id)
}
