//! Joins the profiles of several traces to one, on one time line.
//!
//! Images, frames and stacks that are the same are one there; threads, modules and marks belong to
//! a process each. A thread that was running when one trace of its process ended, and is there when
//! the next one begins, is one thread: it has the same id, and was created at the same time.

use super::{
    CodeInfo, FrameFacts, FrameId, FrameKey, GapInfo, Losses, MarkInfo, ModuleInstance, NamedFrame, Node,
    NodeId, Placement, ProcessInfo, Processes, Profile, Run, Runs, StopId, StopInfo, StrId, ThreadInfo,
    TraceInfo,
};
use std::collections::HashMap;
use std::io;
use stk_base::model::{Image, ImageId};

/// Where a trace belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JoinPlace {
    /// Its process: an index in the list that [`Join::new`] got.
    pub process: u32,
    /// When it began, in nanoseconds on the common time line.
    pub start_ns: u64,
}

/// The most by which two traces of one clock differ about a moment.
const ROUNDING_NS: u64 = 1_000;
/// The reason of a gap between two traces of a process.
const NOT_RECORDED: &str = "not recorded";
/// Reasons why stacks end that keep the module to blame. Those beyond stand without it, which makes
/// them few: an id has 16 bits.
const MOST_STOPS: usize = 60_000;

/// A profile of several traces in the making. Traces are added in the order of their starts.
#[derive(Default)]
pub struct Join {
    profile: Option<Profile>,
    processes: Processes,
    runs: Runs,
    /// By identity, and path.
    images: HashMap<(u64, String), ImageId>,
    stops: HashMap<StopInfo, StopId>,
    /// By process and thread id: the last thread.
    last_threads: HashMap<(u32, u32), u32>,
    /// By process, image and address: the last instance.
    last_modules: HashMap<(u32, ImageId, u64), usize>,
    /// By thread: the time of its last sample.
    last_ns: Vec<u64>,
    /// Times between traces of one process.
    gaps: Vec<GapInfo>,
}

/// The ids in the joined profile of what a trace has, by its ids there.
struct NewIds {
    threads: Vec<u32>,
    nodes: Vec<Option<NodeId>>,
    stops: Vec<StopId>,
}

/// Whether what ended then in one trace can be there in the next: it did not end, or both traces
/// say when. What ends while a recording changes its file is in both.
fn continues(ended_ns: Option<u64>, ends_ns: Option<u64>) -> bool {
    ended_ns.is_none_or(|ended| ends_ns.is_some_and(|ends| ends.abs_diff(ended) <= ROUNDING_NS))
}

impl Join {
    /// For traces of these processes. `limit`: how many runs are held in memory.
    pub fn new(processes: Vec<ProcessInfo>, limit: usize) -> Join {
        Join {
            processes: Processes { list: processes, ..Processes::default() },
            runs: Runs::with_limit(limit),
            ..Join::default()
        }
    }

    /// Adds a trace with names.
    pub fn add(&mut self, part: &Profile, runs: &Runs, place: JoinPlace) -> io::Result<()> {
        let mut profile = self.profile.take().unwrap_or_else(|| empty(&part.trace));
        add_facts(&mut profile.trace, &part.trace, place.start_ns);
        add_losses(&mut profile.losses, &part.losses);
        if let Some(part) = &part.window {
            let [start, end] = [part.start, part.end].map(|ns| ns.saturating_add(place.start_ns));
            let window = profile.window.get_or_insert(start..end);
            *window = window.start.min(start)..window.end.max(end);
        }
        let code = profile.code.len() as u32;
        profile.code.extend(part.code.iter().map(|region| CodeInfo {
            remove_ns: region.remove_ns.map(|ns| ns.saturating_add(place.start_ns)),
            ..region.clone()
        }));
        let images = self.add_images(&mut profile, part, place);
        self.add_modules(&mut profile, part, &images, place);
        let threads = self.add_threads(&mut profile, part, first_samples(part, runs)?, place);
        let frames = add_frames(&mut profile, part, &images, code);
        let mut nodes: Vec<Option<NodeId>> = Vec::with_capacity(part.tree.nodes().len());
        for node in part.tree.nodes() {
            // A parent comes before its children.
            let parent = node.parent().and_then(|parent| nodes[parent.0 as usize]);
            let frame = frames[node.frame.0 as usize];
            nodes.push(Some(profile.tree.intern(Node { parent, frame })));
        }
        let stops = part.stops.iter().map(|stop| self.stop(&mut profile, stop)).collect();
        for mark in &part.marks {
            profile.marks.push(MarkInfo {
                time_ns: mark.time_ns.saturating_add(place.start_ns),
                thread: mark.thread.map(|thread| threads[thread as usize]),
                ..mark.clone()
            });
            self.processes.marks.push(place.process);
        }
        let ids = NewIds { threads, nodes, stops };
        self.add_runs(runs, &ids, place)?;
        self.profile = Some(profile);
        Ok(())
    }

    /// Notes that nothing of a process was recorded in a span of the common time line.
    pub fn add_gap(&mut self, process: u32, (start_ns, end_ns): (u64, u64)) {
        self.gaps.push(GapInfo { reason: NOT_RECORDED, thread: None, start_ns, end_ns, count: 1 });
        self.processes.gaps.push(process);
    }

    /// The joined profile; `None` if no trace was added.
    ///
    /// # Errors
    ///
    /// A failure to read the runs' temporary file.
    pub fn finish(self) -> io::Result<Option<(Profile, Runs)>> {
        let Some(mut profile) = self.profile else { return Ok(None) };
        profile.processes = self.processes;
        profile.gaps = self.gaps;
        profile.tree.chain(&self.runs)?;
        Ok(Some((profile, self.runs)))
    }

    fn add_images(&mut self, profile: &mut Profile, part: &Profile, place: JoinPlace) -> Vec<ImageId> {
        let mut new = Vec::with_capacity(part.images.len());
        for image in &part.images {
            // Without an identity, an image is only the same as itself.
            let known = image.is_identified().then(|| (image.identity_hash, image.path.clone()));
            let found = known.as_ref().and_then(|key| self.images.get(key));
            new.push(found.copied().unwrap_or_else(|| {
                profile.images.push(Image::clone(image));
                self.processes.images.push(place.process);
                let id = ImageId(profile.images.len() as u32 - 1);
                self.images.extend(known.map(|key| (key, id)));
                id
            }));
        }
        new
    }

    fn add_modules(&mut self, profile: &mut Profile, part: &Profile, images: &[ImageId], place: JoinPlace) {
        let later = |ns: Option<u64>| ns.map(|ns| ns.saturating_add(place.start_ns));
        let mut before = self.last_modules.clone();
        for module in &part.modules {
            let image = images[module.image.0 as usize];
            let key = (place.process, image, module.base);
            let continues = |at: &usize| continues(profile.modules[*at].unload_ns, later(module.unload_ns));
            let known = before.remove(&key).filter(|_| module.load_ns.is_none()).filter(continues);
            let at = known.unwrap_or(profile.modules.len());
            match known {
                Some(at) => profile.modules[at].unload_ns = later(module.unload_ns),
                None => {
                    let (load_ns, unload_ns) = (later(module.load_ns), later(module.unload_ns));
                    profile.modules.push(ModuleInstance { image, load_ns, unload_ns, ..module.clone() });
                    self.processes.modules.push(place.process);
                }
            }
            self.last_modules.insert(key, at);
        }
    }

    /// Adds the threads. `first_ns`: by thread, the time of its first sample in its trace.
    fn add_threads(
        &mut self,
        profile: &mut Profile,
        part: &Profile,
        first_ns: Vec<Option<u64>>,
        place: JoinPlace,
    ) -> Vec<u32> {
        let later = |ns: Option<u64>| ns.map(|ns| ns.saturating_add(place.start_ns));
        // Two threads of this trace are two, whatever their ids.
        let mut before = self.last_threads.clone();
        let mut new = Vec::with_capacity(part.threads.len());
        for (thread, first_ns) in part.threads.iter().zip(first_ns) {
            let key = (place.process, thread.tid);
            let follows = |known: &u32| {
                let before = &profile.threads[*known as usize];
                let created = (before.created_utc_ns, thread.created_utc_ns);
                let is_known = created.0 != 0 && created.1 != 0;
                // While a thread ends, which can take long, it is sampled after its exit. The next
                // trace then has that exit before its own beginning.
                let is_same = if is_known {
                    created.0 == created.1
                } else {
                    continues(before.exit_ns, later(thread.exit_ns))
                };
                is_same && later(first_ns).is_none_or(|first| first >= self.last_ns[*known as usize])
            };
            let known = before.remove(&key).filter(|_| thread.start_ns.is_none()).filter(follows);
            let at = match known {
                Some(at) => {
                    let before = &mut profile.threads[at as usize];
                    before.exit_ns = before.exit_ns.or(later(thread.exit_ns));
                    before.samples = before.samples.saturating_add(thread.samples);
                    before.active_samples = before.active_samples.saturating_add(thread.active_samples);
                    before.sampling_cpu_ns = before.sampling_cpu_ns.saturating_add(thread.sampling_cpu_ns);
                    if !thread.name.is_empty() {
                        before.name.clone_from(&thread.name);
                    }
                    at
                }
                None => {
                    let instance = profile.threads.len() as u64 + 1;
                    let (start_ns, exit_ns) = (later(thread.start_ns), later(thread.exit_ns));
                    profile.threads.push(ThreadInfo { instance, start_ns, exit_ns, ..thread.clone() });
                    self.processes.threads.push(place.process);
                    self.last_ns.push(0);
                    profile.threads.len() as u32 - 1
                }
            };
            self.last_threads.insert(key, at);
            new.push(at);
        }
        new
    }

    fn stop(&mut self, profile: &mut Profile, stop: &StopInfo) -> StopId {
        let mut stop = stop.clone();
        if profile.stops.len() >= MOST_STOPS && !self.stops.contains_key(&stop) {
            stop.module.clear();
        }
        *self.stops.entry(stop).or_insert_with_key(|stop| {
            profile.stops.push(stop.clone());
            StopId(profile.stops.len() as u16 - 1)
        })
    }

    fn add_runs(&mut self, runs: &Runs, ids: &NewIds, place: JoinPlace) -> io::Result<()> {
        runs.for_each(|batch| {
            let thread = ids.threads[batch.thread as usize];
            for run in batch.runs {
                let later = |ns: u64| ns.saturating_add(place.start_ns);
                let last = &mut self.last_ns[thread as usize];
                *last = later(run.last_ns).max(*last);
                self.runs.push(
                    thread,
                    Run {
                        node: run.node.and_then(|node| ids.nodes[node.0 as usize]),
                        stop: ids.stops[run.stop.0 as usize],
                        first_ns: later(run.first_ns),
                        last_ns: later(run.last_ns),
                        ..*run
                    },
                )?;
            }
            Ok(())
        })
    }
}

/// A profile without anything, of the trace that is added first.
fn empty(first: &TraceInfo) -> Profile {
    Profile::empty(TraceInfo { duration_ns: 0, metadata: Vec::new(), executable: None, ..first.clone() })
}

/// Adds what is known of a trace to what is known of all.
fn add_facts(all: &mut TraceInfo, trace: &TraceInfo, start_ns: u64) {
    all.duration_ns = all.duration_ns.max(start_ns.saturating_add(trace.duration_ns));
    all.complete &= trace.complete;
    // What is known of some is shown of those.
    if all.cpu_source == super::CpuSource::None {
        all.cpu_source = trace.cpu_source;
    }
    if !all.trace_id.split(' ').any(|id| id == trace.trace_id) {
        all.trace_id = format!("{} {}", all.trace_id, trace.trace_id);
    }
}

fn add_losses(all: &mut Losses, losses: &Losses) {
    all.dropped_samples = all.dropped_samples.saturating_add(losses.dropped_samples);
    for (reason, count) in &losses.dropped {
        match all.dropped.iter_mut().find(|(known, _)| known == reason) {
            Some((_, sum)) => *sum = sum.saturating_add(*count),
            None => all.dropped.push((reason.clone(), *count)),
        }
    }
    all.damaged_blocks.extend(losses.damaged_blocks.iter().cloned());
    all.lost_idle_spans = all.lost_idle_spans.saturating_add(losses.lost_idle_spans);
    all.runtimes.extend(losses.runtimes.iter().cloned());
    all.unknown_events = all.unknown_events.saturating_add(losses.unknown_events);
    all.tables_pending = all.tables_pending.saturating_add(losses.tables_pending);
    all.too_deep = all.too_deep.saturating_add(losses.too_deep);
    all.most_left_out = all.most_left_out.max(losses.most_left_out);
    let sums = [
        (&mut all.modules_unknown, losses.modules_unknown),
        (&mut all.assumed, losses.assumed),
        (&mut all.code_unknown, losses.code_unknown),
    ];
    sums.into_iter().for_each(|(sum, more)| *sum = sum.saturating_add(more));
    all.clock_jumps = all.clock_jumps.saturating_add(losses.clock_jumps);
    all.clock_excess_ns = all.clock_excess_ns.saturating_add(losses.clock_excess_ns);
    if all.clock_set_ns.unsigned_abs() < losses.clock_set_ns.unsigned_abs() {
        all.clock_set_ns = losses.clock_set_ns;
    }
    all.unread_ns = all.unread_ns.saturating_add(losses.unread_ns);
}

/// By thread: the time of its first sample.
fn first_samples(part: &Profile, runs: &Runs) -> io::Result<Vec<Option<u64>>> {
    let mut first = vec![None; part.threads.len()];
    runs.for_each(|batch| {
        let first = &mut first[batch.thread as usize];
        *first = first.or(batch.runs.first().map(|run| run.first_ns));
        Ok::<(), io::Error>(())
    })?;
    Ok(first)
}

/// Adds the frames with their names. `code` is the number of the trace's first region of code.
fn add_frames(profile: &mut Profile, part: &Profile, images: &[ImageId], code: u32) -> Vec<FrameId> {
    let mut texts: HashMap<StrId, StrId> = HashMap::new();
    let mut new = Vec::with_capacity(part.frames.keys().len());
    for (old, key) in (0..).map(FrameId).zip(part.frames.keys()) {
        let place = match key.place {
            Placement::Image(image, rva) => Placement::Image(images[image.0 as usize], rva),
            Placement::Code(region, offset) => Placement::Code(code + region, offset),
            unknown @ Placement::Unknown(_) => unknown,
        };
        let key = FrameKey { place, ..*key };
        let (symbols, from) = (&mut profile.symbols, &part.symbols);
        let mut text =
            |id: StrId| *texts.entry(id).or_insert_with(|| symbols.strings.intern(from.strings.get(id)));
        let names: Vec<NamedFrame> = from
            .names(old)
            .iter()
            .map(|name| NamedFrame { function: text(name.function), file: name.file.map(&mut text), ..*name })
            .collect();
        let at = old.0 as usize;
        let facts = from.facts.get(at).copied().unwrap_or_default();
        let facts = FrameFacts { kind: part.kind(old), module: facts.module.map(&mut text), ..facts };
        let reason = from.reason[at].map(&mut text);
        let aliases = from.aliases.get(&old).map(|ids| ids.iter().map(|&id| text(id)).collect());
        let mut id = profile.frames.intern(key);
        let is_known = (id.0 as usize) < profile.symbols.source.len();
        if is_known && profile.symbols.names(id) == names {
            new.push(id);
            continue;
        }
        if is_known {
            // One of the traces knows other names of it.
            id = profile.frames.push(key);
        }
        let symbols = &mut profile.symbols;
        symbols.named.extend(names);
        symbols.starts.push(symbols.named.len() as u32);
        symbols.source.push(from.source[at]);
        symbols.reason.push(reason);
        symbols.facts.push(facts);
        symbols.aliases.extend(aliases.map(|aliases| (id, aliases)));
        new.push(id);
    }
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::profile::{BuildOptions, FrameFacts, FrameKind, NameSource, build};
    use crate::trace::Trace;
    use std::sync::atomic::AtomicU64;
    use stk_schema::Arch;
    use stk_tests::traces::{self, TestImage, in_function};

    const APP: u64 = 0x1_4000_0000;
    const STACK: u64 = 0x20_0000;
    const MS: u64 = 10_000;

    /// A trace of 10 ms with two samples of thread 7, in functions of these numbers. Each frame's
    /// name is `name` and its place.
    fn trace(functions: [u32; 2], name: &str) -> (Profile, Runs) {
        let mut builder = traces::trace();
        TestImage::new(r"C:\lab\app.exe", 8).load(&mut builder, 0, APP);
        let thread = builder.thread(0, 7, "worker", STACK);
        for (at, function) in [(1, functions[0]), (9, functions[1])] {
            traces::sample(&mut builder, thread, at * MS, STACK, &[in_function(APP, function)]);
        }
        let file = builder.finish();
        let trace = Trace::read(&file, "app.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let (mut profile, runs) =
            build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
        let symbols = &mut profile.symbols;
        symbols.starts = vec![0];
        for key in profile.frames.keys() {
            let function = symbols.strings.intern(&format!("{name} {:?}", key.place));
            symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
            symbols.starts.push(symbols.named.len() as u32);
            symbols.source.push(NameSource::Pdb);
            symbols.reason.push(None);
            symbols.facts.push(FrameFacts { kind: FrameKind::Native, ..FrameFacts::default() });
        }
        // They ran before the recording began.
        profile.threads.iter_mut().for_each(|thread| thread.start_ns = None);
        profile.modules.iter_mut().for_each(|module| module.load_ns = None);
        (profile, runs)
    }

    fn joined(parts: &[(&(Profile, Runs), u32, u64)]) -> (Profile, Runs) {
        let process = |pid| ProcessInfo { pid, name: format!("{pid}.exe"), arch: Arch::X64 };
        let mut join = Join::new(vec![process(4), process(8)], 1);
        for &((profile, runs), process, start_ms) in parts {
            join.add(profile, runs, JoinPlace { process, start_ns: start_ms * 1_000_000 }).unwrap();
        }
        join.finish().unwrap().unwrap()
    }

    /// Threads with the times of their runs in milliseconds.
    fn times(profile: &Profile, runs: &Runs) -> Vec<(u32, u32, Vec<u64>)> {
        let mut times: Vec<(u32, u32, Vec<u64>)> = (0u32..)
            .zip(&profile.threads)
            .map(|(at, thread)| (profile.pid_of_thread(at), thread.tid, Vec::new()))
            .collect();
        runs.for_each(|batch| {
            let first = batch.runs.iter().map(|run| run.first_ns / 1_000_000);
            times[batch.thread as usize].2.extend(first);
            Ok::<(), io::Error>(())
        })
        .unwrap();
        times
    }

    #[test]
    fn a_thread_continues_in_the_next_trace_of_its_process() {
        let (one, two) = (trace([0, 1], "f"), trace([1, 2], "f"));
        let (profile, runs) = joined(&[(&one, 0, 0), (&two, 0, 20)]);
        assert_eq!(times(&profile, &runs), [(4, 7, vec![1, 9, 21, 29])]);
        assert_eq!(profile.threads[0].samples, 4);
        assert_eq!(profile.modules.len(), one.0.modules.len(), "the same instances");
        assert_eq!(profile.images.len(), one.0.images.len());
        assert_eq!(profile.trace.duration_ns, 20_000_000 + two.0.trace.duration_ns);
        // ntdll, kernel32, and three functions of the program.
        assert_eq!((profile.frames.keys().len(), profile.tree.nodes().len()), (5, 5));
    }

    #[test]
    fn threads_that_end_overlap_or_begin_anew_are_others() {
        let (one, mut two) = (trace([0, 1], "f"), trace([1, 2], "f"));
        fn count(parts: &[(&(Profile, Runs), u32, u64)]) -> usize {
            joined(parts).0.threads.len()
        }
        assert_eq!(count(&[(&one, 0, 0), (&two, 1, 20)]), 2, "of another process");
        assert_eq!(count(&[(&one, 0, 0), (&two, 0, 3)]), 2, "in both at the same time");
        two.0.threads[0].start_ns = Some(0);
        assert_eq!(count(&[(&one, 0, 0), (&two, 0, 20)]), 2, "an id that is used again");
        let mut ended = trace([0, 1], "f");
        ended.0.threads[0].exit_ns = Some(9_500_000);
        let mut two = trace([1, 2], "f");
        assert_eq!(count(&[(&ended, 0, 0), (&two, 0, 20)]), 2, "after it ended");
        two.0.threads[0].exit_ns = Some(500_000);
        assert_eq!(count(&[(&ended, 0, 0), (&two, 0, 9)]), 1, "both say that it ended at 9.5 ms");
        two.0.threads[0].exit_ns = None;
        // The end of the first one and the beginning of the second lie between the traces.
        let mut created = (trace([0, 1], "f"), trace([1, 2], "f"));
        created.0.0.threads[0].created_utc_ns = 5;
        created.1.0.threads[0].created_utc_ns = 6;
        assert_eq!(count(&[(&created.0, 0, 0), (&created.1, 0, 20)]), 2, "created at another time");
        created.1.0.threads[0].created_utc_ns = 5;
        assert_eq!(count(&[(&created.0, 0, 0), (&created.1, 0, 20)]), 1, "created at the same time");
        created.0.0.threads[0].exit_ns = Some(9_500_000);
        created.1.0.threads[0].exit_ns = Some(0);
        let ending = joined(&[(&created.0, 0, 0), (&created.1, 0, 20)]).0.threads;
        assert_eq!((ending.len(), ending[0].exit_ns), (1, Some(9_500_000)), "sampled while it ended");
        let twin = ThreadInfo { instance: 99, samples: 0, ..two.0.threads[0].clone() };
        two.0.threads.push(twin);
        assert_eq!(count(&[(&two, 0, 0)]), 2, "two of one trace are two");
    }

    #[test]
    fn frames_that_two_traces_name_differently_keep_their_names() {
        let (one, two) = (trace([0, 1], "f"), trace([0, 1], "g"));
        let (profile, runs) = joined(&[(&one, 0, 0), (&two, 1, 0)]);
        let mut names: Vec<Vec<&str>> = vec![Vec::new(); 2];
        runs.for_each(|batch| {
            for node in batch.runs.iter().filter_map(|run| run.node) {
                for frame in profile.tree.frames(node) {
                    let name = profile.symbols.names(frame)[0];
                    names[batch.thread as usize].push(profile.symbols.strings.get(name.function));
                }
            }
            Ok::<(), io::Error>(())
        })
        .unwrap();
        assert!(names[0].iter().all(|name| name.starts_with("f ")), "{names:?}");
        assert!(names[1].iter().all(|name| name.starts_with("g ")), "{names:?}");
        assert_eq!(names[0].len(), 6);
    }
}
