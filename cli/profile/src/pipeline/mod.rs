//! From a trace to a profile with names: what every answer about samples begins with.
//!
//! ```text
//! images      images of a trace, from it and from the places of symbols   Trace -> ModuleImage
//! ```

mod images;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use images::load_shared;
pub use images::{load_images, missing_tables};

use crate::image::SharedImages;
use crate::profile::{BuildOptions, MissingSymbols, Profile, Rules, RunSelection, Runs, Selection};
use crate::profile::{
    apply_rules, build, classify, fill_stacks, fold, fold_recursion, leave_out, missing_symbols,
    name_recorder, part, select, split_renamed, symbolize,
};
use crate::runtimes;
use crate::stack::{FoldOptions, NameSources};
use crate::trace::{Trace, TraceError, TraceFile};
use stk_base::deadline::Deadline;
use stk_base::text::{counted, since_start};
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};

/// What of a trace becomes a profile, and how. By default everything, with full names.
#[derive(Clone, Default, Debug)]
pub struct LoadOptions {
    /// Only samples from this time on, in nanoseconds since the trace's start.
    pub from_ns: Option<u64>,
    /// Only samples before this time, in nanoseconds since the trace's start.
    pub until_ns: Option<u64>,
    /// Which samples, by thread, state and frames, and which of their frames.
    pub selection: Selection,
    /// Which frames of mixed stacks.
    pub fold: FoldOptions,
    /// Other names for frames, after all else is left out.
    pub rules: Rules,
    /// Whether cycles of calls that follow themselves are shown once.
    pub fold_recursion: bool,
    /// How much of a mangled name.
    pub demangle: Demangle,
    /// Searches stacks for return addresses where unwind data is missing.
    pub scan: bool,
    /// Frames of a stack at most; `None` = 16,384.
    pub max_frames: Option<u32>,
    /// Walks samples behind a lost block of module events among the modules that are known. Their
    /// frames are assumed ([`Trust::Assumed`](stk_unwind::Trust::Assumed)).
    pub salvage: bool,
    /// How many runs of samples are held in memory, if fewer than by default.
    pub runs_limit: Option<usize>,
    /// The images of traces before, which are used and extended.
    pub images: Option<Arc<SharedImages>>,
    /// When it has to be done.
    pub deadline: Deadline,
}

/// A profile with names.
#[derive(Debug)]
pub struct Loaded {
    /// Everything but the runs.
    pub profile: Profile,
    /// The runs.
    pub runs: Runs,
    /// What is missing in its names.
    pub missing: MissingSymbols,
    /// Whether a part of the trace could not be read.
    pub damaged: bool,
}

/// Why a file gave no profile.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is no trace that can be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The system refused, or the time was up.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Opens a trace and makes a profile of it. Symbols are searched in the usual folders of this
/// machine; no server is contacted.
///
/// ```no_run
/// use stk_profile::pipeline::{LoadOptions, load};
///
/// let loaded = load("app.stk".as_ref(), &LoadOptions::default())?;
/// println!("{} of {} frames have names", loaded.missing.named, loaded.missing.frames);
/// # Ok::<(), stk_profile::pipeline::LoadError>(())
/// ```
///
/// # Errors
///
/// When the file cannot be read at all, the system refuses, or the time is up.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let file = TraceFile::open(path)?;
    let store = SymbolStore::with_defaults(SymbolPath::default(), [path]);
    let symbolizer = Symbolizer::new(store, options.demangle);
    Ok(load_trace(&file.read()?, &symbolizer, options, &AtomicU64::new(0))?)
}

/// Walks the samples of a trace and names their frames. Counts the samples in `done`. Runs in the
/// caller's rayon pool.
///
/// # Errors
///
/// When the system refuses a temporary file, or the time is up.
pub fn load_trace(
    trace: &Trace<'_>,
    symbolizer: &Symbolizer,
    options: &LoadOptions,
    done: &AtomicU64,
) -> io::Result<Loaded> {
    let LoadOptions { from_ns, until_ns, scan, max_frames, salvage, runs_limit, deadline, .. } = *options;
    explain_range(trace, from_ns, until_ns);
    let window =
        (from_ns.is_some() || until_ns.is_some()).then(|| from_ns.unwrap_or(0)..until_ns.unwrap_or(u64::MAX));
    let images = load_shared(trace, symbolizer.store(), options.images.as_deref());
    let build_options =
        BuildOptions { window: window.clone(), scan, max_frames, salvage, runs_limit, deadline };
    let (mut profile, runs) = build(trace, &images, &build_options, done)?;
    deadline.check()?;
    let methods = runtimes::methods(trace);
    symbolize(&mut profile, &NameSources { trace, images: &images, methods: &methods, symbolizer });
    deadline.check()?;
    profile.losses.runtimes.extend(methods.problems);
    // Before samples and frames are left out: CPU time is shared out among all samples of a thread,
    // and the system's frames say what it did.
    let mut runs = classify(&mut profile, runs)?;
    deadline.check()?;
    runs = split_renamed(&mut profile, runs, trace)?;
    name_recorder(&mut profile, &mut runs, trace);
    if let Some(window) = window {
        runs = part(&mut profile, &{ runs }, RunSelection::Span(window.start, window.end))?;
    }
    let runs = fill_stacks(&mut profile, runs)?;
    let mut runs = select(&mut profile, runs, &options.selection)?;
    // Seldom is a stack added from here on.
    profile.tree.chain(&runs)?;
    let missing = missing_symbols(&profile, &runs)?;
    leave_out(&mut profile, &mut runs, &options.selection)?;
    if let Some(share) = &profile.selection {
        log::info!("{}: selection: {}", trace.source, share.describe());
    }
    fold(&mut profile, &mut runs, options.fold);
    apply_rules(&mut profile, &mut runs, &options.rules);
    if options.fold_recursion {
        fold_recursion(&mut profile, &mut runs);
    }
    let runs = fill_stacks(&mut profile, runs)?;
    profile.tree.chain(&runs)?;
    let damaged = trace.lost_blocks || !profile.losses.damaged_blocks.is_empty();
    Ok(Loaded { profile, runs, missing, damaged })
}

/// Logs which part of a trace is taken.
fn explain_range(trace: &Trace<'_>, from_ns: Option<u64>, until_ns: Option<u64>) {
    let last = trace.clock.ns(trace.last());
    log::info!(
        "{}: {} recorded; taken from {} to {}",
        trace.source,
        counted(trace.samples(), "sample"),
        since_start(from_ns.unwrap_or(0)),
        since_start(until_ns.unwrap_or(last).min(last))
    );
}
