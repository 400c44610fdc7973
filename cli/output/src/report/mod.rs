//! `stk report`: one page that answers where a process's time went, without a network.
//!
//! A [`Report`] collects traces, each as a block of text, and writes the page: its program (the
//! files in `page`), then the blocks. A block is the base64 of a raw DEFLATE stream (RFC 1951) of:
//!
//! ```text
//! 4 bytes   length of the JSON, little-endian
//! JSON      names, totals, what is wrong; the columns' names, rows and planes
//! columns   one behind the other: see `columns`
//! ```
//!
//! Names from traces are nowhere else than in blocks, whose letters cannot end an element of the
//! page. The page's program sets them as text. Its policy (Content-Security-Policy) lets nothing be
//! loaded, and no script run but this one, by its digest.
//!
//! ```text
//! columns  whole numbers as bytes
//! tree     stacks of functions
//! rows     samples: thread, time, stack, state
//! events   what happened, and when samples are missing
//! source   source lines of functions, and their texts
//! facts    names and totals
//! page/    the program: see the head of page/app.js
//! ```

mod columns;
mod events;
mod facts;
mod rows;
mod source;
#[cfg(test)]
mod tests;
mod tree;

use crate::annotate::Annotation;
use crate::formats::{OutputError, Sink, Summary, exporter_of};
use crate::stats::{self, Stats, StatsOptions};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use columns::{Columns, difference};
use facts::{Facts, FunctionFacts};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use rows::{MOST_ROWS, PageRows};
use serde::Serialize;
use std::io::{self, Write as _};
use std::path::Path;
use stk_base::model::ImageId;
use stk_base::text::TimeZone;
use stk_profile::profile::{CpuSource, Functions, MissingSymbols, Profile, Runs};
use stk_profile::trace::Content;
use tree::PageTree;

/// A page above this size opens slowly.
const LARGE_PAGE: u64 = 64 << 20;

/// A trace for a page.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    pub profile: &'a Profile,
    pub runs: &'a Runs,
    pub missing: &'a MissingSymbols,
    /// Sentences on what was lost.
    pub warnings: &'a [String],
    /// What share of the trace the command line chose; empty = all of it.
    pub part: &'a str,
    /// Source lines of functions, if the page shows them.
    pub annotation: Option<&'a Annotation>,
    /// The zone in which the trace's start is shown.
    pub zone: TimeZone,
}

/// A page in the making.
#[derive(Default)]
pub struct Report {
    index: Vec<IndexEntry>,
    blocks: Vec<String>,
}

/// By what a trace is chosen in the page, and compared with the others. The page reads it as JSON.
/// Numbers are those of [`Stats`].
#[derive(Serialize)]
struct IndexEntry {
    source: String,
    process: String,
    pid: u32,
    host: String,
    /// See [`build_of`].
    build: String,
    duration_ns: u64,
    cpu_ns: u64,
    /// Whether the trace has CPU times.
    cpu_known: bool,
    /// Time of all samples, and of those that wait.
    weight_ns: u64,
    waiting_ns: u64,
    samples: u64,
    /// Part of the samples asked for that were not taken.
    missed_share: f64,
    /// Part of the samples whose stacks are complete.
    complete_share: f64,
    /// Whether it has source lines.
    sources: bool,
}

impl IndexEntry {
    fn new(source: &Source<'_>, stats: Stats) -> IndexEntry {
        let Stats { totals, states, .. } = stats;
        IndexEntry {
            build: build_of(source.profile),
            source: stats.source,
            process: stats.process,
            pid: stats.pid,
            host: stats.host,
            duration_ns: totals.duration_ns,
            cpu_ns: totals.cpu_ns,
            cpu_known: totals.cpu_source != CpuSource::None,
            weight_ns: totals.weight_ns,
            waiting_ns: states.waiting.weight_ns,
            samples: totals.samples,
            missed_share: totals.missed_share,
            complete_share: totals.complete_share,
            sources: source.annotation.is_some_and(|annotation| !annotation.parts.is_empty()),
        }
    }
}

/// Which build of its program a trace is of: its label `build`, else the executable's identity for
/// symbol servers, of its PDB or of itself; empty if none is known.
fn build_of(profile: &Profile) -> String {
    if let Some(label) = profile.trace.label("build") {
        return label.to_owned();
    }
    let executable = profile.trace.executable.and_then(|ImageId(image)| profile.images.get(image as usize));
    let id = executable.map(|image| if image.debug_id.is_empty() { &image.code_id } else { &image.debug_id });
    id.cloned().unwrap_or_default()
}

impl Report {
    /// Adds a trace.
    pub fn add(&mut self, source: &Source<'_>) -> io::Result<()> {
        let (block, stats) = block(source, MOST_ROWS)?;
        self.blocks.push(block);
        self.index.push(IndexEntry::new(source, stats));
        Ok(())
    }

    /// How many traces it has.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether it has no trace.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Writes the page. `content`: what it was made of, as later runs know it by.
    pub fn write(&self, path: Option<&Path>, content: &Content) -> Result<Summary, OutputError> {
        let mut sink = match path {
            Some(path) => Sink::file(path)?,
            None => Sink::stdout(crate::formats::Compression::None)?,
        };
        let (head, end) = page(&exporter_of(Some(content)));
        sink.put(head.as_bytes());
        let index = STANDARD.encode(serde_json::to_vec(&self.index).map_err(io::Error::from)?);
        sink.put(b"<script type=\"text/x-stk\" id=\"index\">");
        sink.put(index.as_bytes());
        sink.put(b"</script>\n");
        for block in &self.blocks {
            sink.put(b"<script type=\"text/x-stk\" class=\"trace\">");
            sink.put(block.as_bytes());
            sink.put(b"</script>\n");
            sink.settle()?;
        }
        sink.put(end.as_bytes());
        let bytes = sink.len();
        let mut summary = sink.finish()?;
        if bytes > LARGE_PAGE {
            let mib = bytes >> 20;
            summary.warnings.push(format!(
                "the page is {mib} MiB large and opens slowly: choose a time range, some threads or fewer traces"
            ));
        }
        Ok(summary)
    }
}

/// The page's parts, in the order in which its program uses them.
const SCRIPTS: [&str; 17] = [
    include_str!("page/text.js"),
    include_str!("page/state.js"),
    include_str!("page/colour.js"),
    include_str!("page/flame.js"),
    include_str!("page/timeline.js"),
    include_str!("page/zoom.js"),
    include_str!("page/chart.js"),
    include_str!("page/events.js"),
    include_str!("page/tree.js"),
    include_str!("page/tables.js"),
    include_str!("page/source.js"),
    include_str!("page/quality.js"),
    include_str!("page/many.js"),
    include_str!("page/chrome.js"),
    include_str!("page/search.js"),
    include_str!("page/keys.js"),
    include_str!("page/app.js"),
];
/// The parts of the program that runs beside the page.
const WORKER: [&str; 9] = [
    include_str!("page/worker/decode.js"),
    include_str!("page/worker/recursion.js"),
    include_str!("page/worker/merge.js"),
    include_str!("page/worker/sums.js"),
    include_str!("page/worker/lanes.js"),
    include_str!("page/worker/graph.js"),
    include_str!("page/worker/tree.js"),
    include_str!("page/worker/chart.js"),
    include_str!("page/worker/main.js"),
];
const STYLE: &str = include_str!("page/page.css");
const PAGE: &str = include_str!("page/page.html");

/// What comes before the blocks, and what behind them.
fn page(exporter: &str) -> (String, String) {
    let worker = format!("\"use strict\";\n{}", WORKER.concat());
    let script = format!("\"use strict\";\n{}", SCRIPTS.concat());
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'",
        digest(&script),
        digest(STYLE)
    );
    let page = PAGE
        .replace("{{policy}}", &policy)
        .replace("{{generator}}", exporter)
        .replace("{{style}}", STYLE)
        .replace("{{worker}}", &worker);
    let (head, end) = page.split_once("{{traces}}").unwrap_or((&page, ""));
    (head.to_owned(), end.replace("{{script}}", &script))
}

/// The digest by which the policy knows a script or a style (Content Security Policy, "hash").
fn digest(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    format!("sha256-{}", STANDARD.encode(digest))
}

/// The block of a trace, with at most `most` rows if that is possible, and its figures.
fn block(source: &Source<'_>, most: usize) -> io::Result<(String, Stats)> {
    let Source { profile, runs, .. } = *source;
    let functions = Functions::new(profile, false);
    let mut samples = vec![0u64; profile.tree.nodes().len()];
    let mut end_ns = profile.trace.duration_ns;
    runs.for_each(|batch| {
        for run in batch.runs {
            end_ns = end_ns.max(run.last_ns);
            if let Some(node) = run.node {
                let sum = &mut samples[node.0 as usize];
                // Some runs are CPU time alone.
                *sum = sum.saturating_add(run.samples.max(1).into());
            }
        }
        Ok::<(), io::Error>(())
    })?;
    let tree = PageTree::new(profile, &functions, &samples);
    let rows = PageRows::new(runs, profile.threads.len(), &tree, end_ns, most)?;
    let stats = stats::collect(profile, runs, None, &StatsOptions::default())?;
    let mut columns = Columns::default();
    columns.add("depth", &depth_steps(&tree.depths));
    columns.add("frame", &tree.frames);
    rows.put(&mut columns);
    let mut names = FunctionFacts::new(profile, &functions, &tree);
    let facts = Facts::new(source, &stats, &mut names, &rows, &tree, &columns.list);
    let json = serde_json::to_vec(&facts)?;
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::new(6));
    packed.write_all(&(json.len() as u32).to_le_bytes())?;
    packed.write_all(&json)?;
    packed.write_all(&columns.bytes)?;
    Ok((STANDARD.encode(packed.finish()?), stats))
}

/// The depths as differences from a child's of the node before.
fn depth_steps(depths: &[u32]) -> Vec<u64> {
    let mut expected = 0;
    let step = |&depth: &u32| {
        let step = difference(depth.into(), expected);
        expected = u64::from(depth) + 1;
        step
    };
    depths.iter().map(step).collect()
}
