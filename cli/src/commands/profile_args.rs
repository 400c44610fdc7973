//! Arguments of commands that make a profile of a trace, and what they say of its losses.

use super::select::{NothingChosen, TimeRange};
use super::symbol_options::SymbolOptions;
use super::values::{choice, default_name};
use super::{Exit, Progress, SelectArgs, StackArgs, note_once, warn};
use clap::builder::{PathBufValueParser, TypedValueParser};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stk_base::deadline::Deadline;
use stk_base::files::open_plain;
use stk_base::text::{count, counted};
use stk_profile::image::SharedImages;
use stk_profile::pipeline::{LoadOptions, Loaded, load_trace, missing_tables};
use stk_profile::profile::{MOST_RUNS_HELD, MissingSymbols, Profile, RuleError, Rules, Run, Runs};
use stk_profile::stack::{FoldOptions, FrameChoice};
use stk_profile::trace::{TableFolders, Trace, TraceError, TraceFile};
use stk_schema::text::printable;
use stk_schema::typed::parse_size;
use stk_symbols::{Demangle, Remedy, SymbolStore, Symbolizer};

/// Options of commands that name code.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct SymbolArgs {
    /// Where symbols are found and kept.
    #[command(flatten)]
    pub options: SymbolOptions,
    /// How much of a mangled name to show
    #[arg(long, value_parser = choice::<Demangle>(), default_value = default_name::<Demangle>(), value_name = "STYLE", help_heading = "Symbols")]
    pub demangle: Demangle,
}

impl SymbolArgs {
    /// The places to search for the symbols of a trace: those of the arguments first, then the
    /// environment.
    pub fn store(&self, trace: &Path) -> SymbolStore {
        self.options.store([trace])
    }
}

/// Options of commands that read what of its modules a trace carries.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct TablesArgs {
    /// Folder of unwind data that many traces share, as `inject --tables DIR` fills it; may be
    /// repeated
    #[arg(long, value_name = "DIR", value_parser = PathBufValueParser::new().try_map(existing_folder))]
    pub tables: Vec<PathBuf>,
    /// Memory that what is kept of a trace may take; what is more is left out, as damage. How long
    /// stacks may take to walk grows with it [default: 256M and 8 times the trace's size]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub max_memory: Option<u64>,
}

impl TablesArgs {
    /// Opens a trace with the memory budget of the options.
    pub fn open(&self, path: &Path) -> Result<TraceFile, TraceError> {
        Ok(TraceFile::open(path)?.within(self.max_memory))
    }

    /// How many runs of samples a profile holds in memory: a quarter of what `--max-memory` gives,
    /// and never more than by default. The rest goes to a temporary file.
    pub(super) fn runs_limit(&self) -> Option<usize> {
        let runs = self.max_memory? / 4 / size_of::<Run>() as u64;
        Some(usize::try_from(runs).unwrap_or(usize::MAX).clamp(1, MOST_RUNS_HELD))
    }

    /// How many bytes of rows an output holds: a quarter of what `--max-memory` gives.
    pub(super) fn rows_memory(&self) -> Option<u64> {
        Some(self.max_memory? / 4)
    }

    /// Has a trace look into the folders for what it does not carry itself.
    pub fn give(&self, trace: &mut Trace<'_>) {
        trace.blobs.use_folders(TableFolders::new(self.tables.clone()));
    }
}

/// A folder in the arguments must exist.
fn existing_folder(path: PathBuf) -> Result<PathBuf, String> {
    match std::fs::metadata(&path) {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) => Err("is no folder".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The rules of a file.
fn read_rules(path: PathBuf) -> Result<Rules, String> {
    let mut text = Vec::new();
    let read = open_plain(&path).and_then(|file| file.take(MOST_RULE_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MOST_RULE_BYTES {
        return Err(format!("has more than {} KiB", MOST_RULE_BYTES >> 10));
    }
    String::from_utf8(text)
        .map_err(|_| "is no UTF-8 text".to_owned())?
        .parse()
        .map_err(|error: RuleError| error.to_string())
}

/// Bytes of a file of rules at most.
const MOST_RULE_BYTES: u64 = 1 << 20;

/// Options of commands that make a profile of a trace.
#[derive(clap::Args, Clone, Default, Debug)]
pub struct ProfileArgs {
    /// Where symbols are and how names are shown.
    #[command(flatten)]
    pub symbols: SymbolArgs,
    /// Exit with code 5 if less than this percentage of the frames has a name from symbols
    #[arg(long, value_name = "PCT", value_parser = parse_percent, help_heading = "Symbols")]
    pub require_symbols: Option<f64>,
    /// Where unwind data is missing, search the stack for return addresses. Such frames are guesses
    /// and marked as such
    #[arg(long, help_heading = "What to take")]
    pub scan: bool,
    /// Frames of a stack at most; of a deeper one the innermost and the outermost are shown
    /// [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16_384), help_heading = "What to take")]
    pub max_frames: Option<u32>,
    /// Behind a lost block that held events on modules: find stacks among the modules that are
    /// known. Such frames are assumed, not proved, and marked and counted as such
    #[arg(long, help_heading = "What to take")]
    pub salvage: bool,
    /// Where tables are that traces share.
    #[command(flatten)]
    pub tables: TablesArgs,
    /// Which part of the trace.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Which samples by their stacks, and which frames.
    #[command(flatten)]
    pub stacks: StackArgs,
    /// Which frames of mixed stacks.
    #[command(flatten)]
    pub fold: FoldArgs,
    /// Show a cycle of calls that follows itself once: a > b > a > b > c as a > b > c
    #[arg(long, help_heading = "What to take")]
    pub fold_recursion: bool,
    /// Give frames other names by the rules of this file: RE -> NAME, one a line. Frames of one
    /// name that follow each other are one
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(read_rules), help_heading = "Which frames")]
    pub rules: Option<Rules>,
}

/// Options that leave frames out of mixed stacks.
#[derive(clap::Args, Clone, Copy, Default, Debug)]
pub struct FoldArgs {
    /// Which frames of mixed stacks to show
    #[arg(long, value_parser = choice::<FrameChoice>(), default_value = default_name::<FrameChoice>(), value_name = "WHICH", help_heading = "What to take")]
    pub frames: FrameChoice,
    /// Show a language runtime's own frames that follow each other as one, and leave out its stubs
    #[arg(long, help_heading = "What to take")]
    pub hide_runtime: bool,
}

impl FoldArgs {
    /// The same options in the form of `stack`.
    pub fn options(self) -> FoldOptions {
        FoldOptions { frames: self.frames, hide_runtime: self.hide_runtime }
    }
}

impl ProfileArgs {
    /// Checks what the parser cannot check.
    pub fn check(&self) -> anyhow::Result<()> {
        self.select.check()
    }

    /// The rules that name frames.
    pub(super) fn rules(&self) -> Rules {
        self.rules.clone().unwrap_or_default()
    }

    /// Whether not all samples of a trace are chosen.
    pub fn is_part(&self) -> bool {
        self.select.is_part() || self.stacks.selection(None).picks_samples()
    }
}

/// The profile of a trace.
#[derive(Debug)]
pub struct LoadedProfile {
    /// Everything but the runs.
    pub profile: Profile,
    /// The runs.
    pub runs: Runs,
    /// What is missing in its names.
    pub missing: MissingSymbols,
    /// The range of time that was chosen, in words; empty = all of it.
    pub range: String,
    /// Why no sample was chosen, if none was.
    pub empty: Option<String>,
    /// `Damaged` if a part of the trace could not be read.
    pub exit: Exit,
}

/// Reads a trace, walks its samples and names its frames. Runs in the caller's rayon pool.
///
/// # Errors
///
/// When the file cannot be read at all.
pub(super) fn load_file(
    file: &TraceFile,
    args: &ProfileArgs,
    progress: &Progress,
) -> anyhow::Result<LoadedProfile> {
    load_read(&mut file.read()?, file.path(), args, progress, None, Deadline::NEVER)
}

/// [`load_file`] of a trace whose first pass is done, within a time, with the images of traces
/// before. `path` is that of its file.
///
/// # Errors
///
/// That the time is up, or as there.
pub(super) fn load_read(
    trace: &mut Trace<'_>,
    path: &Path,
    args: &ProfileArgs,
    progress: &Progress,
    images: Option<Arc<SharedImages>>,
    deadline: Deadline,
) -> anyhow::Result<LoadedProfile> {
    deadline.check()?;
    args.tables.give(trace);
    let trace = &*trace;
    args.select.process.demand(trace)?;
    progress.add_total(trace.samples());
    let TimeRange { from, until } = args.select.range(trace);
    let (threads, no_thread) = match args.select.threads.of(trace) {
        Ok(threads) => (threads, None),
        Err(NothingChosen(why)) => (Some(HashSet::new()), Some(why)),
    };
    let options = LoadOptions {
        from_ns: from,
        until_ns: until,
        selection: args.stacks.selection(threads),
        fold: args.fold.options(),
        rules: args.rules(),
        demangle: args.symbols.demangle,
        scan: args.scan,
        max_frames: args.max_frames,
        salvage: args.salvage,
        fold_recursion: args.fold_recursion,
        runs_limit: args.tables.runs_limit(),
        images,
        deadline,
    };
    warn_of_missing_tables(trace);
    let symbolizer = Symbolizer::new(args.symbols.store(path), options.demangle);
    let Loaded { profile, runs, missing, damaged } =
        load_trace(trace, &symbolizer, &options, progress.done())?;
    super::note_redirects(symbolizer.store());
    note_cached(&symbolizer.cached());
    let exit = if damaged { Exit::Damaged } else { Exit::Ok };
    let samples: u64 = profile.threads.iter().map(|thread| thread.samples).sum();
    let empty = (samples == 0).then(|| match (no_thread, &profile.selection) {
        (Some(why), _) => why,
        (None, Some(share)) if share.whole.samples > 0 => {
            format!("{}: no samples are left: {}", trace.source, share.why_empty())
        }
        _ => args.select.why_empty(trace),
    });
    let range = args.select.words(trace);
    Ok(LoadedProfile { profile, runs, missing, range, empty, exit })
}

/// Says that names come from the symbol cache, which another machine does not have.
fn note_cached(modules: &[String]) {
    let [first, others @ ..] = modules else { return };
    let (others, whose) = match others.len() as u64 {
        0 => (String::new(), "its PDB is"),
        n => (format!(" and of {}", counted(n, "other module")), "their PDBs are"),
    };
    note_once(&format!(
        "names of {first}{others} come from the symbol cache: {whose} not where stk searched"
    ));
}

/// Warns of tables of images that are nowhere.
pub(super) fn warn_of_missing_tables(trace: &Trace<'_>) {
    let missing = missing_tables(trace);
    if missing > 0 {
        let (source, tables) = (&trace.source, counted(missing, "table"));
        warn(&format!("{source}: {tables} of images {}", where_tables_are(trace)));
    }
}

/// What became of tables that are not in a trace, and what to do. In a trace that lost a block,
/// they were in that block.
fn where_tables_are(trace: &Trace<'_>) -> &'static str {
    if trace.lost_blocks {
        "went with the damaged blocks, and stacks may end early"
    } else {
        "are not in the trace, and stacks may end early; if inject wrote them to a folder, name it with --tables"
    }
}

/// What traces lack of names, as one: modules of one name and reason are one.
#[derive(Default)]
pub(super) struct MissingSum {
    traces: u64,
    /// The first trace.
    source: String,
    frames: u64,
    named: u64,
    /// By name and reason: samples, and the first trace that lacks it.
    modules: BTreeMap<(String, String), (u64, String)>,
}

impl MissingSum {
    pub(super) fn add(&mut self, source: &str, missing: &MissingSymbols) {
        if self.traces == 0 {
            source.clone_into(&mut self.source);
        }
        self.traces += 1;
        self.frames = self.frames.saturating_add(missing.frames);
        self.named = self.named.saturating_add(missing.named);
        for module in &missing.modules {
            let key = (module.module.clone(), module.reason.clone());
            let (samples, _) = self.modules.entry(key).or_insert_with(|| (0, source.to_owned()));
            *samples = samples.saturating_add(module.samples);
        }
    }

    /// Prints [`line`](Self::line), if there is one.
    pub(super) fn print(self, options: &SymbolOptions) {
        self.line(options).iter().for_each(|line| super::note_line(line));
    }

    /// One line on the names that can still be had, and the command that gets them; none if
    /// nothing helps.
    fn line(self, options: &SymbolOptions) -> Option<String> {
        /// Modules, and traces of the command, that are named.
        const NAMED: usize = 3;
        /// A module with a smaller part of the frames than one in this many is not worth a line.
        const LEAST: u64 = 1000;
        let mut modules: Vec<_> = self.modules.into_iter().collect();
        modules.retain(|((_, reason), (samples, _))| {
            Remedy::of(reason) != Remedy::Nothing && samples.saturating_mul(LEAST) >= self.frames
        });
        modules.sort_by_key(|(_, (samples, _))| Reverse(*samples));
        let ((first, reason), (_, source)) = modules.first()?;
        let of = if self.traces == 1 { self.source } else { counted(self.traces, "trace") };
        let lacking = modules.iter().filter(|((_, reason), _)| Remedy::of(reason) == Remedy::Pdb);
        let (lacking, traces): (Vec<&str>, Vec<&str>) =
            lacking.map(|((module, _), (_, source))| (module.as_str(), source.as_str())).unzip();
        let (shown, others) = match Remedy::of(reason) {
            Remedy::Pdb => {
                let more = lacking.len().saturating_sub(NAMED) as u64;
                let more = if more > 0 { format!(" and {} more", count(more)) } else { String::new() };
                let names = lacking.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
                let verb = if lacking.len() == 1 { "lacks its PDB" } else { "lack their PDBs" };
                let fetch = match options.ms_symbols {
                    true => String::new(),
                    false => format!("{}, or ", fetch_command(&traces, NAMED, options)),
                };
                let shown = format!("{names}{more} {verb}: {fetch}name the folder with -y");
                (shown, modules.len() - lacking.len())
            }
            _ => (format!("{first}: {reason}"), modules.len() - 1),
        };
        let share = MissingSymbols { frames: self.frames, named: self.named, modules: Vec::new() }.share();
        let others = match others {
            0 => String::new(),
            n => format!("; {} more: stk symbols list {}", count(n as u64), argument(source)),
        };
        let line =
            format!("{of}: {:.1} % of the frames have names from symbols; {shown}{others}", 100.0 * share);
        Some(format!("stk: {}", printable(&line)))
    }
}

/// The command that gets the PDBs of these traces from Microsoft.
fn fetch_command(traces: &[&str], most: usize, options: &SymbolOptions) -> String {
    let mut named: Vec<&str> = Vec::new();
    for trace in traces {
        if named.len() < most && !named.contains(trace) {
            named.push(trace);
        }
    }
    let cache = options.symbol_cache.as_ref().map(|cache| argument(&cache.display().to_string()));
    let cache = cache.map_or_else(String::new, |cache| format!(" --symbol-cache {cache}"));
    let named: Vec<String> = named.into_iter().map(argument).collect();
    format!("stk symbols fetch {} --ms-symbols{cache}", named.join(" "))
}

/// A path as a command line takes it.
fn argument(path: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "._-+=:/\\".contains(c);
    if path.chars().all(is_plain) { path.to_owned() } else { format!("\"{path}\"") }
}

/// The closing lines on what a trace lost: one for each kind of loss.
pub(super) fn loss_lines(profile: &Profile) -> Vec<String> {
    let source = &profile.trace.source;
    let losses = &profile.losses;
    let mut lines = Vec::new();
    let mut warn = |text: &str| lines.push(format!("stk: warning: {}", printable(text)));
    for damage in &losses.damaged_blocks {
        warn(&format!("{source}: {damage}"));
    }
    if !profile.trace.complete {
        warn(&format!("{source}: the recording was not finished; what was written before its end is there"));
    }
    for (reason, dropped) in &losses.dropped {
        warn(&format!(
            "{source}: samples were not taken or lost while recording: {} times {reason}",
            count(*dropped)
        ));
    }
    for problem in &losses.runtimes {
        warn(&format!("{source}: {problem}"));
    }
    if losses.lost_idle_spans > 0 {
        let spans = count(losses.lost_idle_spans);
        warn(&format!("{source}: {spans} idle spans have no stack: it was in a lost block"));
    }
    if losses.unknown_events > 0 {
        let events = count(losses.unknown_events);
        warn(&format!("{source}: {events} events of unknown type were skipped; a newer stk may know them"));
    }
    for note in losses.notes() {
        warn(&format!("{source}: {note}"));
    }
    if losses.tables_pending > 0 {
        let samples = count(losses.tables_pending);
        warn(&format!("{source}: {samples} stacks end early: their module's unwind data was never recorded"));
    }
    lines
}

/// Whether a profile has the symbols that `--require-symbols` requires; if not, also the line that
/// reports it.
pub fn check_symbols(loaded: &LoadedProfile, args: &ProfileArgs) -> (Exit, Option<String>) {
    let share = 100.0 * loaded.missing.share();
    match args.require_symbols {
        Some(required) if share < required => {
            let source = printable(&loaded.profile.trace.source);
            let line = format!(
                "stk: {source}: {share:.1} % of the frames have names from symbols, {required} % are required"
            );
            (Exit::Symbols, Some(line))
        }
        _ => (Exit::Ok, None),
    }
}

/// A size: see [`parse_size`].
pub(super) fn parse_memory(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "give a size such as 512M or 2G".into())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(value),
        _ => Err("give a percentage from 0 to 100".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_profile::profile::MissingModule;

    fn missing(frames: u64, named: u64, modules: &[(&str, u64, &str)]) -> MissingSymbols {
        let modules = modules.iter().map(|&(module, samples, reason)| MissingModule {
            module: module.to_owned(),
            samples,
            frames: 1,
            reason: reason.to_owned(),
        });
        MissingSymbols { frames, named, modules: modules.collect() }
    }

    const LOST: &str =
        "a.pdb is in none of 2 places: put it beside the trace, or name its folder or server with -y";
    const SYSTEM: &str = "an image of the system that names no PDB, as Wine's do not: nothing to do";
    const BUILT: &str = "the image names no PDB (no CodeView record): build it with debug information";

    fn line(traces: &[(&str, MissingSymbols)], options: &SymbolOptions) -> Option<String> {
        let mut sum = MissingSum::default();
        traces.iter().for_each(|(source, missing)| sum.add(source, missing));
        sum.line(options)
    }

    #[test]
    fn names_that_can_be_had_are_one_line_with_its_command() {
        let ours = SymbolOptions::default();
        let one = missing(100, 50, &[("nt.dll", 40, SYSTEM), ("a.exe", 10, LOST), ("b.dll", 5, BUILT)]);
        assert_eq!(
            line(&[("lab/a b.stk", one.clone())], &ours).unwrap(),
            "stk: lab/a b.stk: 50.0 % of the frames have names from symbols; a.exe lacks its PDB: stk symbols \
             fetch \"lab/a b.stk\" --ms-symbols, or name the folder with -y; 1 more: stk symbols list \
             \"lab/a b.stk\""
        );
        let other = missing(100, 50, &[("c.dll", 20, LOST), ("a.exe", 10, LOST)]);
        assert_eq!(
            line(&[("a.stk", one), ("b.stk", other.clone())], &ours).unwrap(),
            "stk: 2 traces: 50.0 % of the frames have names from symbols; a.exe, c.dll lack their PDBs: stk \
             symbols fetch a.stk b.stk --ms-symbols, or name the folder with -y; 1 more: stk symbols list a.stk"
        );
        // Microsoft's server was searched.
        let asked = SymbolOptions { ms_symbols: true, ..SymbolOptions::default() };
        assert!(
            line(&[("b.stk", other)], &asked).unwrap().ends_with("lack their PDBs: name the folder with -y")
        );
        let built = missing(100, 0, &[("b.dll", 90, BUILT), ("a.exe", 1, LOST)]);
        assert!(line(&[("a.stk", built)], &ours).unwrap().contains("; b.dll: the image names no PDB"));
    }

    #[test]
    fn names_that_nobody_can_have_are_no_line() {
        let options = SymbolOptions::default();
        assert_eq!(line(&[("a.stk", missing(60, 60, &[]))], &options), None);
        assert_eq!(line(&[("a.stk", missing(60, 10, &[("nt.dll", 50, SYSTEM)]))], &options), None);
        // One sample of a thousand frames and more.
        assert_eq!(line(&[("a.stk", missing(1001, 10, &[("a.dll", 1, LOST)]))], &options), None);
        assert_eq!(line(&[], &options), None);
    }
}
