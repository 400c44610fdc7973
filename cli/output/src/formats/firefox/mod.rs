//! The Firefox Profiler's processed JSON, version 61.
//!
//! The viewer upgrades old versions. Perfetto's importer reads the columns `prefix` and `time`,
//! which version 66 and version 50 made replaceable, so both viewers read this one. The format:
//! `docs-developer/CHANGELOG-formats.md` and `src/types/profile.ts` of
//! <https://github.com/firefox-devtools/profiler>.
//!
//! ```text
//! tables   the tables that all threads share: stacks, frames, functions, libraries, strings
//! threads  samples and markers of a thread
//! ```
//!
//! A run of equal samples is a row at its first sample, with the weight of all of them, and another
//! without weight at its last. Time without samples begins with a row that has no stack. What a row
//! says of CPU time is what the thread used since the row before.

mod tables;
mod threads;

use super::counted_time::CountedTime;
use super::sink::Sink;
use super::source::exporter;
use super::threads::{busiest_first, main_threads};
use super::unfold::StackOrigin;
use super::{Description, Format, Options, OutputError, Summary, Writer, finish_for, json, single};
use std::collections::HashSet;
use stk_base::model::ImageId;
use stk_profile::profile::{Batch, CpuSource, Profile, Run, Weight};
use tables::{CATEGORIES, Tables};
use threads::{FirstThread, ThreadTable, WrittenRun};

pub(super) const FORMAT: Description = Description {
    name: "firefox",
    help: "JSON for <https://profiler.firefox.com>: samples of each thread in time, with its CPU use",
    suffix: ".firefox.json",
    other_suffixes: &[],
    is_folder: false,
    names_source: true,
    takes_weight: true,
    has_time_line: true,
    create: |to, options| Ok(Box::new(Firefox::new(single(Format::Firefox, to)?, options))),
};

/// Version of the format.
const VERSION: u64 = 61;
/// Version of the format that Firefox itself wrote at that time.
const GECKO_VERSION: u64 = 33;

struct Firefox {
    sink: Sink,
    by_line: bool,
    /// What the weights of samples are.
    weight: Weight,
    tables: Option<Tables>,
    counted: CountedTime,
    /// The thread that is being written.
    thread: Option<ThreadTable>,
    /// Number of threads begun.
    threads: u32,
    /// Processes of which a thread was begun.
    processes: HashSet<u32>,
    /// The main thread of each process.
    main_threads: HashSet<u32>,
}

impl Firefox {
    fn new(sink: Sink, options: &Options) -> Firefox {
        Firefox {
            sink,
            by_line: options.lines,
            weight: options.weights()[0],
            tables: None,
            counted: CountedTime::default(),
            thread: None,
            threads: 0,
            processes: HashSet::new(),
            main_threads: HashSet::new(),
        }
    }

    /// Ends the thread that is being written, if there is one.
    fn close_thread(&mut self) -> Result<(), OutputError> {
        self.thread.take().map_or(Ok(()), |thread| thread.close(&mut self.sink))
    }

    fn write_run(&mut self, profile: &Profile, thread: u32, run: &Run) -> Result<(), OutputError> {
        let Some((start_ns, end_ns)) = self.counted.count(thread, run) else { return Ok(()) };
        let tables = self.tables.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        if self.thread.as_ref().is_none_or(|open| open.thread != thread) {
            if let Some(done) = self.thread.take() {
                done.close(&mut self.sink)?;
            }
            let first = FirstThread {
                of_all: self.threads == 0,
                of_process: self.processes.insert(profile.process_of_thread(thread)),
                is_main: self.main_threads.contains(&thread),
            };
            self.threads += 1;
            self.thread = Some(ThreadTable::open(&mut self.sink, profile, tables, thread, first)?);
        }
        let Some(open) = &mut self.thread else { return Ok(()) };
        let weight_ns = match self.weight {
            Weight::Wall => end_ns - start_ns,
            other => other.of(run, profile.trace.interval_ns),
        };
        let origin = StackOrigin::of(run, self.weight);
        let stack = tables.stack(profile, origin, run.activity.wait().is_some());
        open.add(&mut self.sink, WrittenRun { stack, start_ns, end_ns, weight_ns }, run)
    }

    fn write_meta(&mut self, profile: &Profile) {
        let trace = &profile.trace;
        let out = &mut self.sink.buffer;
        out.extend_from_slice(b"{\"meta\":{\"preprocessedProfileVersion\":");
        json::number(out, VERSION);
        out.extend_from_slice(b",\"version\":");
        json::number(out, GECKO_VERSION);
        out.extend_from_slice(b",\"interval\":");
        json::milliseconds(out, trace.interval_ns);
        out.extend_from_slice(b",\"startTime\":");
        json::milliseconds(out, trace.start_utc_ns);
        let window = profile.window();
        out.extend_from_slice(b",\"profilingStartTime\":");
        json::milliseconds(out, window.start);
        out.extend_from_slice(b",\"profilingEndTime\":");
        json::milliseconds(out, window.end);
        let product = format!("{}: {}", profile.title(), self.weight.title());
        let source = exporter(profile);
        let texts = [("product", &product), ("importedFrom", &source)];
        for (key, text) in texts {
            out.push(b',');
            json::key(out, key);
            json::string(out, text);
        }
        out.extend_from_slice(
            b",\"processType\":0,\"stackwalk\":1,\"debug\":false,\"platform\":\"Windows\",\
              \"symbolicated\":true,\"usesOnlyOneStackType\":true,\"sourceCodeIsNotOnSearchfox\":true,\
              \"keepProfileThreadOrder\":true,\
              \"sampleUnits\":{\"time\":\"ms\",\"eventDelay\":\"ms\",\"threadCPUDelta\":\"ns\"},\
              \"categories\":[",
        );
        for (i, (name, color)) in CATEGORIES.into_iter().enumerate() {
            out.extend_from_slice(if i == 0 { b"{\"name\":" } else { b",{\"name\":" });
            json::string(out, name);
            out.extend_from_slice(b",\"color\":");
            json::string(out, color);
            out.extend_from_slice(b",\"subcategories\":[\"Other\"]}");
        }
        out.extend_from_slice(b"],\"markerSchema\":[");
        out.extend_from_slice(threads::MARKER_SCHEMA);
        out.extend_from_slice(b"]},\n\"libs\":[");
        for (i, image) in (0u32..).zip(&profile.images) {
            out.extend_from_slice(if i == 0 { b"\n" } else { b",\n" });
            tables::write_lib(out, profile.arch_of_image(ImageId(i)), image);
        }
        out.extend_from_slice(b"],\n\"threads\":[");
    }
}

impl Writer for Firefox {
    fn thread_order(&self, profile: &Profile) -> Vec<u32> {
        busiest_first(profile)
    }

    fn passes(&self) -> Vec<Weight> {
        vec![Weight::Wall]
    }

    fn begin(&mut self, profile: &Profile) -> Result<(), OutputError> {
        self.tables = Some(Tables::new(profile, self.by_line, self.weight));
        self.main_threads = main_threads(profile);
        self.write_meta(profile);
        self.sink.settle()
    }

    fn samples(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        batch.runs.iter().try_for_each(|run| self.write_run(profile, batch.thread, run))
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        self.close_thread()?;
        let tables = self.tables.take().ok_or(OutputError::Order("end before begin"))?;
        self.sink.put(b"],\n\"shared\":{");
        tables.write(profile, &mut self.sink)?;
        self.sink.put(b"}}\n");
        finish_for("the Firefox Profiler", &mut self.sink)
    }
}

/// Whether the trace has CPU times.
fn has_cpu_times(profile: &Profile) -> bool {
    profile.trace.cpu_source != CpuSource::None
}
