//! Profiles of sums: the stacks that they are of, from `stacks`, and the names of their code, from
//! `frames`.

use super::samples::{Group, GroupedSums};
use super::sums::{SumClass, SumKey};
use super::tables::{Columns, RowGroups};
use super::{Dataset, DatasetError, DatasetPart};
use hashbrown::{HashMap, HashSet};
use rayon::prelude::*;
use std::path::Path;
use stk_base::model::{Image, ImageId};
use stk_output::formats::TableError;
use stk_profile::profile::{
    Activity, CallTree, CpuSource, FrameFacts, FrameId, FrameKey, FrameKind, FrameSymbols, FrameTable,
    NameSource, NamedFrame, Node, NodeId, Placement, Profile, Run, RunFlags, RunSource, Runs, SEGMENT_RUNS,
    SampleSum, StopId, StopInfo, StopReason, ThreadInfo, TraceInfo,
};
use stk_schema::Arch;
use stk_schema::event::RunState;
use stk_schema::limits::MAX_SAMPLE_WORDS;
use stk_schema::tables;
use stk_unwind::Trust;

/// A part for each class of the sums.
pub(super) fn parts(dataset: &Dataset, sums: GroupedSums) -> Result<Vec<DatasetPart>, DatasetError> {
    let executables = dataset.traces.iter().map(|trace| trace.process.as_str()).collect();
    let mut names = Names::read(&dataset.folder.join(tables::FRAMES.name), &executables)?;
    let GroupedSums { groups, whole } = sums;
    // At 1,000 Hz more samples would take 142,000 years.
    let sums = groups.iter().flat_map(|group| &group.sums);
    let runs = sums.fold(0u64, |runs, (_, sum)| runs.saturating_add(sum.samples / u64::from(u32::MAX)));
    if runs > MOST_RUNS {
        let what = format!("states more than {runs} times {} samples", u32::MAX);
        return Err(TableError::Stated { path: dataset.folder.clone(), what }.into());
    }
    let classes = classes(groups);
    let mut trees: Vec<CallTree> = classes.iter().map(|_| CallTree::default()).collect();
    let mut nodes: Vec<StackNodes> = classes.iter().map(|groups| wanted_stacks(groups)).collect();
    read_stacks(&dataset.folder.join(tables::STACKS.name), &mut nodes, &mut trees, &mut names)?;
    let parts = classes.into_iter().zip(trees).zip(nodes).map(|((groups, tree), nodes)| {
        let whole = groups.first().and_then(|group| whole.get(&group.class)).copied();
        let part = part(dataset, groups, names.clone(), tree, nodes)?;
        Ok(DatasetPart { whole: whole.unwrap_or_default(), ..part })
    });
    parts.collect()
}

/// The stacks that sums of a class have, and their nodes.
type StackNodes = HashMap<i64, Option<NodeId>>;

/// The groups of each class. They are sorted by it.
fn classes(groups: Vec<Group>) -> Vec<Vec<Group>> {
    let mut classes: Vec<Vec<Group>> = Vec::new();
    for group in groups {
        match classes.last_mut() {
            Some(same) if same[0].class == group.class => same.push(group),
            _ => classes.push(vec![group]),
        }
    }
    classes
}

fn wanted_stacks(groups: &[Group]) -> StackNodes {
    let mut nodes = StackNodes::new();
    for (key, _) in groups.iter().flat_map(|group| &group.sums) {
        if let Some(id) = key.stack() {
            nodes.insert(id, None);
        }
    }
    nodes
}

fn part(
    dataset: &Dataset,
    groups: Vec<Group>,
    names: Names,
    tree: CallTree,
    nodes: StackNodes,
) -> Result<DatasetPart, DatasetError> {
    let class = groups[0].class;
    let samples = groups.iter().map(|group| {
        let samples = group.sums.iter().map(|(_, sum)| sum.samples);
        samples.fold(0, u64::saturating_add)
    });
    let threads = samples.zip(0..).map(|(samples, at)| ThreadInfo {
        instance: at,
        samples,
        active_samples: samples,
        ..ThreadInfo::default()
    });
    let threads: Vec<ThreadInfo> = threads.collect();
    let mut profile = Profile {
        images: images(),
        threads,
        frames: names.frames,
        tree,
        stops: vec![StopInfo { reason: StopReason::COMPLETE, module: String::new() }],
        symbols: names.symbols,
        ..Profile::empty(trace_info(dataset, class))
    };
    let (mut values, mut waits, mut of_threads) = (Vec::new(), Vec::new(), Vec::new());
    for group in groups {
        values.push(group.values);
        of_threads.push(ThreadSums { first_wait: waits.len() as u64, sums: group.sums });
        waits.extend(group.waits);
    }
    let longest = of_threads.iter().flat_map(|thread| &thread.sums).map(|(_, sum)| sum.weight_ns).max();
    let threads = of_threads.len() as u32;
    let source = Box::new(SumRuns { threads: of_threads, nodes });
    let runs = Runs::of_source(source, threads, 0..longest.unwrap_or(0), RUNS_HELD);
    profile.tree.chain(&runs)?;
    Ok(DatasetPart { profile, runs, values, waits, whole: SampleSum::default() })
}

/// The runs of sums: one each, but several if it has more samples than a run can count. Their
/// `capture_tag` is the number of their sum.
#[derive(Debug)]
struct SumRuns {
    threads: Vec<ThreadSums>,
    nodes: StackNodes,
}

/// Runs of all sums beyond the first of each.
const MOST_RUNS: u64 = 1 << 20;

#[derive(Debug)]
struct ThreadSums {
    /// Number of the first sum.
    first_wait: u64,
    sums: Vec<(SumKey, SampleSum)>,
}

impl RunSource for SumRuns {
    fn runs(&self, thread: u32, from: usize, runs: &mut Vec<Run>) -> Option<usize> {
        let ThreadSums { first_wait, sums } = &self.threads[thread as usize];
        let until = sums.len().min(from + SEGMENT_RUNS);
        for ((key, sum), number) in sums[from..until].iter().zip(first_wait + from as u64..) {
            let node = key.stack().and_then(|id| self.nodes.get(&id).copied().flatten());
            let mut left = *sum;
            loop {
                let samples = u32::try_from(left.samples).unwrap_or(u32::MAX);
                runs.push(run(node, key, &left, samples, number));
                left = SampleSum { samples: left.samples - u64::from(samples), ..SampleSum::default() };
                if left.samples == 0 {
                    break;
                }
            }
        }
        (until < sums.len()).then_some(until)
    }
}

fn run(node: Option<NodeId>, key: &SumKey, sum: &SampleSum, samples: u32, number: u64) -> Run {
    let waits = matches!(key.activity, Activity::Waiting(_));
    Run {
        node,
        stop: StopId(0),
        first_ns: 0,
        last_ns: 0,
        weight_ns: sum.weight_ns,
        samples,
        cpu_ns: sum.cpu_ns,
        state: if waits { RunState::Waiting } else { RunState::Running },
        activity: key.activity,
        flags: RunFlags::empty(),
        capture_tag: number,
    }
}

fn trace_info(dataset: &Dataset, class: SumClass) -> TraceInfo {
    TraceInfo {
        source: dataset.folder.display().to_string(),
        interval_ns: class.interval_ns,
        cpu_source: if class.has_cpu { CpuSource::ThreadTimes } else { CpuSource::None },
        ..TraceInfo::unknown(Arch::X64)
    }
}

/// What stands for the images of all frames: two, since a frame's category depends on whether its
/// image is in Windows' folder.
fn images() -> Vec<Image> {
    [String::new(), r"C:\Windows\System32\".to_owned()]
        .map(|path| Image { path, ..Image::default() })
        .to_vec()
}

/// Runs of a class that are chosen, in memory (about 150 MiB); more go to a temporary file.
const RUNS_HELD: usize = 2 << 20;

const ELSEWHERE: ImageId = ImageId(0);
const IN_WINDOWS: ImageId = ImageId(1);

/// Shown for a location of which the dataset says nothing.
const NO_LOCATION: &str = "(location that the dataset does not have)";

/// The frames of a dataset and their names.
#[derive(Clone)]
struct Names {
    frames: FrameTable,
    symbols: FrameSymbols,
    /// By location.
    ids: HashMap<i64, FrameId>,
    /// By frame: the same one where it is a guess.
    guesses: HashMap<FrameId, FrameId>,
    unknown: FrameId,
}

impl Names {
    /// Reads all locations. Those in executables come first: a function that several modules have
    /// code of is shown as that of the first of them.
    fn read(folder: &Path, executables: &HashSet<&str>) -> Result<Names, DatasetError> {
        let mut names = Names {
            frames: FrameTable::default(),
            symbols: FrameSymbols { starts: vec![0], ..FrameSymbols::default() },
            ids: HashMap::new(),
            guesses: HashMap::new(),
            unknown: FrameId(0),
        };
        let function = names.symbols.strings.intern(NO_LOCATION);
        names.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
        names.end(
            Placement::Unknown(u64::MAX),
            NameSource::None,
            FrameFacts { kind: FrameKind::Unknown, ..FrameFacts::default() },
        );
        let rows = RowGroups::of_folder(folder, &tables::FRAMES)?;
        for in_executables in [true, false] {
            let mut last = None;
            for group in 0..rows.len() {
                let is_taken = |module: &str| executables.contains(module) == in_executables;
                names.add(&rows.read(group, &FRAME_COLUMNS)?, &is_taken, &mut last)?;
            }
            names.finish(last);
        }
        Ok(names)
    }

    /// Adds the rows of a row group that are in such modules. A location's rows follow each other,
    /// innermost function first; `open` is the last one, which may continue.
    fn add(
        &mut self,
        rows: &Columns,
        is_taken: &dyn Fn(&str) -> bool,
        open: &mut Option<OpenLocation>,
    ) -> Result<(), DatasetError> {
        let ids = rows.numbers("location_id")?;
        let lines = rows.numbers_or_null("line")?;
        let [functions, files, modules, kinds, categories, sources] =
            ["function", "file", "module", "kind", "category", "name_source"].map(|name| rows.texts(name));
        let (functions, files, modules) = (functions?, files?, modules?);
        let (kinds, categories, sources) = (kinds?, categories?, sources?);
        let inlined = rows.flags("inlined")?;
        let taken = |at: &usize| is_taken(modules.get(*at).unwrap_or_default());
        for at in (0..ids.len()).filter(taken) {
            let id = ids[at];
            if open.as_ref().is_none_or(|open| open.id != id) {
                self.finish(open.take());
                let module = modules.get(at).map(|module| self.symbols.strings.intern(module));
                *open = Some(OpenLocation {
                    id,
                    facts: FrameFacts {
                        kind: kind(kinds.get(at).unwrap_or_default()),
                        module,
                        ..FrameFacts::default()
                    },
                    is_system: categories.get(at) == Some("system"),
                    source: source(sources.get(at).unwrap_or_default()),
                });
            }
            let function = self.symbols.strings.intern(functions.get(at).unwrap_or_default());
            let file = files.get(at).map(|file| self.symbols.strings.intern(file));
            let line = lines.get(at).and_then(|line| u32::try_from(line).ok());
            let inline = inlined.get(at).unwrap_or_default();
            self.symbols.named.push(NamedFrame { function, file, line, inline });
        }
        Ok(())
    }

    fn finish(&mut self, open: Option<OpenLocation>) {
        let Some(OpenLocation { id, facts, is_system, source }) = open else { return };
        let number = self.frames.keys().len() as u32;
        let place = match (facts.module, is_system) {
            (None, _) => Placement::Unknown(number.into()),
            (Some(_), true) => Placement::Image(IN_WINDOWS, number),
            (Some(_), false) => Placement::Image(ELSEWHERE, number),
        };
        let frame = self.end(place, source, facts);
        self.ids.insert(id, frame);
    }

    fn end(&mut self, place: Placement, source: NameSource, facts: FrameFacts) -> FrameId {
        let frame = self.frames.push(FrameKey { place, exact: true, trust: Trust::UnwindInfo });
        self.symbols.starts.push(self.symbols.named.len() as u32);
        self.symbols.source.push(source);
        self.symbols.reason.push(None);
        self.symbols.facts.push(facts);
        frame
    }

    /// The frame at a location.
    fn frame(&mut self, location: i64, guessed: bool) -> FrameId {
        let frame = self.ids.get(&location).copied().unwrap_or(self.unknown);
        if !guessed {
            return frame;
        }
        if let Some(known) = self.guesses.get(&frame) {
            return *known;
        }
        let at = frame.0 as usize;
        let names = self.symbols.starts[at] as usize..self.symbols.starts[at + 1] as usize;
        self.symbols.named.extend_from_within(names);
        let (place, source, facts) =
            (self.frames.keys()[at].place, self.symbols.source[at], self.symbols.facts[at]);
        self.symbols.starts.push(self.symbols.named.len() as u32);
        self.symbols.source.push(source);
        self.symbols.reason.push(None);
        self.symbols.facts.push(facts);
        let guess = self.frames.push(FrameKey { place, exact: true, trust: Trust::Scan });
        self.guesses.insert(frame, guess);
        guess
    }
}

const FRAME_COLUMNS: [&str; 9] =
    ["location_id", "inlined", "function", "file", "line", "module", "kind", "category", "name_source"];

/// A location whose rows are being read.
struct OpenLocation {
    id: i64,
    facts: FrameFacts,
    is_system: bool,
    source: NameSource,
}

fn kind(text: &str) -> FrameKind {
    let all = [
        FrameKind::Native,
        FrameKind::Managed,
        FrameKind::Stub,
        FrameKind::Runtime,
        FrameKind::Dynamic,
        FrameKind::Placeholder,
    ];
    all.into_iter().find(|kind| kind.as_str() == text).unwrap_or(FrameKind::Unknown)
}

fn source(text: &str) -> NameSource {
    let all = [NameSource::Pdb, NameSource::Dwarf, NameSource::Runtime, NameSource::Export];
    all.into_iter().find(|source| source.as_str() == text).unwrap_or(NameSource::None)
}

/// Stacks of a row group that are wanted.
struct StackRows {
    ids: Vec<i64>,
    /// Locations, root first, and whether they are guesses.
    frames: Vec<Vec<(i64, bool)>>,
}

/// Reads the stacks that are wanted and gives them nodes.
fn read_stacks(
    folder: &Path,
    nodes: &mut [StackNodes],
    trees: &mut [CallTree],
    names: &mut Names,
) -> Result<(), DatasetError> {
    let rows = RowGroups::of_folder(folder, &tables::STACKS)?;
    // In order, a few row groups at a time.
    let some = rayon::current_num_threads();
    for from in (0..rows.len()).step_by(some) {
        let is_wanted = |id: &i64| nodes.iter().any(|nodes| nodes.contains_key(id));
        let some = from..rows.len().min(from.saturating_add(some));
        let read: Vec<StackRows> = some
            .into_par_iter()
            .map(|group| stack_rows(&rows, group, &is_wanted))
            .collect::<Result<_, _>>()?;
        for (id, frames) in read.into_iter().flat_map(|rows| rows.ids.into_iter().zip(rows.frames)) {
            let frames: Vec<FrameId> =
                frames.into_iter().map(|(location, guessed)| names.frame(location, guessed)).collect();
            for (nodes, tree) in nodes.iter_mut().zip(trees.iter_mut()) {
                if let Some(node) = nodes.get_mut(&id) {
                    let leaf = |parent, frame: &FrameId| Some(tree.intern(Node { parent, frame: *frame }));
                    *node = frames.iter().fold(None, leaf);
                }
            }
        }
    }
    Ok(())
}

fn stack_rows(
    rows: &RowGroups,
    group: usize,
    is_wanted: &(dyn Fn(&i64) -> bool + Sync),
) -> Result<StackRows, DatasetError> {
    let columns = rows.read(group, &["stack_id", "location_ids", "trusts"])?;
    let ids = columns.numbers("stack_id")?;
    let (starts, locations) = columns.lists("location_ids")?;
    let (_, trusts) = columns.lists("trusts")?;
    let locations = locations.i64().map_err(|error| columns.error(error))?;
    let locations: Vec<i64> = locations.iter().map(Option::unwrap_or_default).collect();
    let trusts = trusts.str().map_err(|error| columns.error(error))?;
    let guessed: Vec<bool> = trusts.iter().map(|trust| trust == Some(Trust::Scan.as_str())).collect();
    let mut found = StackRows { ids: Vec::new(), frames: Vec::new() };
    for (&id, range) in ids.iter().zip(starts.windows(2)).filter(|(id, _)| is_wanted(id)) {
        let range = range[0]..range[1];
        if range.len() > MAX_SAMPLE_WORDS {
            let what = format!("states a stack of {} frames", range.len());
            return Err(columns.stated(what));
        }
        let frame = |at: usize| (locations[at], guessed.get(at).copied().unwrap_or_default());
        found.ids.push(id);
        found.frames.push(range.map(frame).collect());
    }
    Ok(found)
}
