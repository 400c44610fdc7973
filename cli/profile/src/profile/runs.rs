//! Runs of equal samples, per thread, in time order.

use super::activity::Weighing;
use super::{Activity, NodeId, StopId};
use rayon::prelude::*;
use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use stk_schema::bytes::{u32_in, u64_in};
use stk_schema::event::RunState;

bitflags::bitflags! {
    /// Special properties of a run's samples.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RunFlags: u8 {
        /// The captured stack bytes did not reach the stack's base.
        const TRUNCATED = 1;
        /// Taken by `stk_capture`.
        const TRIGGERED = 2;
        /// Some module's tables were not yet recorded.
        const TABLES_PENDING = 4;
        /// The stack was in a block that is lost.
        const STACK_LOST = 8;
        /// The code at the instruction pointer is a return, as behind a system call, or it is not
        /// known.
        const BEHIND_CALL = 16;
        /// `node` is a placeholder for a stack that there is not.
        const NO_STACK = 32;
        /// The modules of its stack are assumed: a block that could have changed them is lost.
        const ASSUMED = 64;
    }
}

/// Consecutive samples of one thread with the same stack, state, flags and tag.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Run {
    /// The stack; `None` = no frames (lost, unreadable, or left out): see
    /// [`fill_stacks`](super::fill_stacks).
    pub node: Option<NodeId>,
    /// Why the stack ends.
    pub stop: StopId,
    /// Time of the first sample, nanoseconds since trace start.
    pub first_ns: u64,
    /// Time of the last sample.
    pub last_ns: u64,
    /// Time that the run covers: from its first sample to the thread's next sample (or its exit, or
    /// one nominal interval after the last sample).
    pub weight_ns: u64,
    pub samples: u32,
    /// CPU time, nanoseconds; 0 if not recorded. As recorded, what the thread's clock gained during
    /// the run; after [`classify`](super::classify), the run's share of it.
    pub cpu_ns: u64,
    /// State as the recorder saw it.
    pub state: RunState,
    /// What the thread did; not known before [`classify`](super::classify).
    pub activity: Activity,
    /// Special properties of its samples.
    pub flags: RunFlags,
    /// The tag given to `stk_capture`; 0 and without meaning unless its samples are
    /// [`RunFlags::TRIGGERED`]: see [`tag`](Run::tag).
    pub capture_tag: u64,
}

impl Run {
    /// The tag given to `stk_capture`, if that took its samples.
    pub fn tag(&self) -> Option<u64> {
        self.flags.contains(RunFlags::TRIGGERED).then_some(self.capture_tag)
    }
}

/// Runs of one thread in time order. A thread's runs may be split into several batches.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Index in `Profile::threads`.
    pub thread: u32,
    /// Runs in time order.
    pub runs: &'a [Run],
    /// How [`weighed`](Batch::weighed) counts them.
    pub(super) weighing: Weighing,
    /// Whether they are known to be the thread's last.
    pub(super) is_last: bool,
}

impl<'a> Batch<'a> {
    /// Runs of a thread, counted by the time that they cover.
    fn of(thread: u32, runs: &'a [Run]) -> Batch<'a> {
        Batch { thread, runs, weighing: Weighing::TIME, is_last: false }
    }
}

/// Runs kept in memory by default (32 MiB); the rest goes to a temporary file.
pub const MOST_RUNS_HELD: usize = 512 << 10;

/// Recomputes runs on demand from a more compact form.
pub trait RunSource: Debug + Send + Sync {
    /// Adds the next runs of a thread to `runs`, of which some were given before: `from` is where
    /// to continue, 0 at first. Returns where to continue then; `None` when there are no more.
    fn runs(&self, thread: u32, from: usize, runs: &mut Vec<Run>) -> Option<usize>;
}

/// All runs of a profile, per thread. Past its memory limit it moves runs to a temporary file,
/// which is deleted with it.
#[derive(Debug)]
pub struct Runs {
    threads: Vec<ThreadRuns>,
    /// Where runs come from that are not held.
    source: Option<Box<dyn RunSource>>,
    /// Runs in memory, all threads together.
    held: usize,
    limit: usize,
    spill: Option<Spill>,
    /// New stacks for the nodes of the runs that are not held, from [`map_nodes`](Runs::map_nodes).
    map: Option<Vec<Option<NodeId>>>,
    /// From the first run's beginning to the end of the last; `None` without runs.
    span: Option<Range<u64>>,
    /// Whether a run may have no stack.
    may_lack_stacks: bool,
}

#[derive(Default, Debug)]
struct ThreadRuns {
    /// Segments in the spill file, earlier than `held`.
    spilled: Vec<Segment>,
    held: Vec<Run>,
}

/// Runs of one thread in the spill file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    runs: u32,
}

#[derive(Debug)]
struct Spill {
    file: File,
    len: u64,
}

impl Default for Runs {
    fn default() -> Self {
        Runs::with_limit(MOST_RUNS_HELD)
    }
}

impl Runs {
    /// An empty list that holds at most `limit` runs in memory.
    pub fn with_limit(limit: usize) -> Runs {
        Runs {
            threads: Vec::new(),
            source: None,
            held: 0,
            limit: limit.max(1),
            spill: None,
            map: None,
            span: None,
            may_lack_stacks: false,
        }
    }

    /// The runs of so many threads that a source makes. They cover this time. Of those chosen from
    /// them, at most `limit` are held in memory.
    pub fn of_source(source: Box<dyn RunSource>, threads: u32, span: Range<u64>, limit: usize) -> Runs {
        let mut runs = Runs::with_limit(limit);
        runs.threads.resize_with(threads as usize, ThreadRuns::default);
        (runs.source, runs.span, runs.may_lack_stacks) = (Some(source), Some(span), true);
        runs
    }

    /// Whether several threads may read them at the same time: no temporary file is read.
    pub fn can_be_shared(&self) -> bool {
        self.spill.is_none()
    }

    /// How many runs it holds in memory at most.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many it may hold now. Once some are in the file, there are many, and so are their
    /// stacks, which need memory too.
    fn room(&self) -> usize {
        if self.spill.is_some() { (self.limit / 4).max(1) } else { self.limit }
    }

    /// Adds a run of thread `thread` (index in `Profile::threads`). It must be later than the
    /// thread's other runs.
    pub fn push(&mut self, thread: u32, run: Run) -> io::Result<()> {
        let i = thread as usize;
        if self.threads.len() <= i {
            self.threads.resize_with(i + 1, ThreadRuns::default);
        }
        if self.held >= self.room() {
            self.spill()?;
        }
        let end = run.end_ns();
        let span = self.span.get_or_insert(run.first_ns..end);
        *span = span.start.min(run.first_ns)..span.end.max(end);
        self.may_lack_stacks |= run.node.is_none();
        self.threads[i].held.push(run);
        self.held += 1;
        Ok(())
    }

    /// Changes the runs of each thread, several threads at once. They stay in time order, and cover
    /// the same time. Returns what `change` does; `None` if not all runs are in memory, where
    /// nothing is changed.
    pub(super) fn change_held<T: Send>(
        &mut self,
        change: impl Fn(&mut Vec<Run>) -> T + Sync,
    ) -> io::Result<Option<Vec<T>>> {
        if self.spill.is_some() || self.source.is_some() {
            return Ok(None);
        }
        let changed = self.threads.par_iter_mut().map(|thread| change(&mut thread.held)).collect();
        self.held = self.threads.iter().map(|thread| thread.held.len()).sum();
        if self.held > self.room() {
            self.spill()?;
        }
        Ok(Some(changed))
    }

    /// The time that they cover, in nanoseconds since trace start; empty without runs.
    pub fn span(&self) -> Range<u64> {
        self.span.clone().unwrap_or_default()
    }

    /// Whether a run has no stack.
    pub(super) fn lack_stacks(&self) -> io::Result<bool> {
        let mut lacks = false;
        if self.may_lack_stacks {
            self.for_each(|batch| {
                lacks |= batch.runs.iter().any(|run| run.node.is_none());
                Ok::<(), io::Error>(())
            })?;
        }
        Ok(lacks)
    }

    /// Calls `visit` with every thread's runs, thread by thread, in time order. Can be called
    /// again.
    ///
    /// # Errors
    ///
    /// The error of `visit`, or a failure to read the temporary file.
    pub fn for_each<E: From<io::Error>>(
        &self,
        visit: impl FnMut(Batch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.for_threads(0..self.threads.len() as u32, visit)
    }

    /// Like [`Runs::for_each`], for these threads in this order.
    ///
    /// # Errors
    ///
    /// The error of `visit`, or a failure to read the temporary file.
    pub fn for_threads<E: From<io::Error>>(
        &self,
        threads: impl IntoIterator<Item = u32>,
        mut visit: impl FnMut(Batch<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut runs = Vec::new();
        for i in threads {
            // Threads without samples may have no entry.
            let Some(thread) = self.threads.get(i as usize) else { continue };
            let mut next = self.source.as_ref().map(|source| (source, 0));
            while let Some((source, from)) = next {
                runs.clear();
                next = source.runs(i, from, &mut runs).map(|from| (source, from));
                self.map(&mut runs);
                if !runs.is_empty() {
                    visit(Batch::of(i, &runs))?;
                }
            }
            for segment in &thread.spilled {
                if let Some(spill) = &self.spill {
                    spill.read(*segment, &mut runs)?;
                    self.map(&mut runs);
                    visit(Batch::of(i, &runs))?;
                }
            }
            if !thread.held.is_empty() {
                visit(Batch { is_last: true, ..Batch::of(i, &thread.held) })?;
            }
        }
        Ok(())
    }

    /// What `of` makes of each thread, several at once unless their runs are in a temporary file.
    pub(super) fn map_threads<T: Send, E: Send>(
        &self,
        of: impl Fn(u32) -> Result<T, E> + Send + Sync,
    ) -> Result<Vec<T>, E> {
        let threads = 0..self.threads.len() as u32;
        if self.can_be_shared() {
            threads.into_par_iter().map(of).collect()
        } else {
            threads.map(of).collect()
        }
    }

    /// Gives runs that were not held their new stacks.
    fn map(&self, runs: &mut [Run]) {
        if let Some(map) = &self.map {
            runs.iter_mut().for_each(|run| run.node = mapped(map, run.node));
        }
    }

    /// Replaces every run's stack by its entry in `map` (index = node). No run may be added
    /// afterwards.
    pub fn map_nodes(&mut self, map: Vec<Option<NodeId>>) {
        self.may_lack_stacks = true;
        for run in self.threads.iter_mut().flat_map(|thread| &mut thread.held) {
            run.node = mapped(&map, run.node);
        }
        self.map = Some(match self.map.take() {
            Some(before) => before.into_iter().map(|node| mapped(&map, node)).collect(),
            None => map,
        });
    }

    /// Moves the runs in memory to the temporary file if others are there: no more are added.
    pub(super) fn end(&mut self) -> io::Result<()> {
        if self.spill.is_some() { self.spill() } else { Ok(()) }
    }

    /// Moves all runs in memory to the temporary file.
    fn spill(&mut self) -> io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            none => none.insert(Spill::new()?),
        };
        let written = Runs::write(&mut self.threads, spill);
        written.map_err(|error| in_temporary(&error))?;
        self.held = 0;
        Ok(())
    }

    fn write(threads: &mut [ThreadRuns], spill: &mut Spill) -> io::Result<()> {
        let mut out = io::BufWriter::with_capacity(1 << 20, &spill.file);
        for thread in threads {
            // Reading back takes one segment at a time: its size bounds the memory for that.
            for runs in thread.held.chunks(SEGMENT_RUNS) {
                thread.spilled.push(Segment { offset: spill.len, runs: runs.len() as u32 });
                for run in runs {
                    out.write_all(&store(run))?;
                }
                spill.len += (runs.len() * STORED) as u64;
            }
            thread.held = Vec::new();
        }
        out.flush()
    }
}

fn mapped(map: &[Option<NodeId>], node: Option<NodeId>) -> Option<NodeId> {
    map.get(node?.0 as usize).copied().flatten()
}

/// Names the folder of temporary files in an error that concerns it.
fn in_temporary(error: &io::Error) -> io::Error {
    let folder = std::env::temp_dir();
    io::Error::new(error.kind(), format!("{}: a temporary file: {error}", folder.display()))
}

impl Spill {
    fn new() -> io::Result<Spill> {
        let file = tempfile::tempfile().map_err(|error| in_temporary(&error))?;
        Ok(Spill { file, len: 0 })
    }

    fn read(&self, segment: Segment, runs: &mut Vec<Run>) -> io::Result<()> {
        let mut bytes = vec![0; segment.runs as usize * STORED];
        let mut file = &self.file;
        file.seek(SeekFrom::Start(segment.offset))?;
        file.read_exact(&mut bytes)?;
        // Writes continue at the end, wherever the last read was.
        file.seek(SeekFrom::Start(self.len))?;
        runs.clear();
        runs.extend(bytes.as_chunks::<STORED>().0.iter().map(load));
        Ok(())
    }
}

/// Runs that are read at once.
pub const SEGMENT_RUNS: usize = 16 << 10;
/// Bytes of a run in the file.
const STORED: usize = 54;
const NO_NODE: u32 = u32::MAX;

fn store(run: &Run) -> [u8; STORED] {
    let mut bytes = [0; STORED];
    bytes[0..4].copy_from_slice(&run.node.map_or(NO_NODE, |node| node.0).to_le_bytes());
    bytes[4..6].copy_from_slice(&run.stop.0.to_le_bytes());
    bytes[6] = run.state as u8;
    bytes[7] = run.flags.bits();
    bytes[8..16].copy_from_slice(&run.first_ns.to_le_bytes());
    bytes[16..24].copy_from_slice(&run.last_ns.to_le_bytes());
    bytes[24..32].copy_from_slice(&run.weight_ns.to_le_bytes());
    bytes[32..40].copy_from_slice(&run.cpu_ns.to_le_bytes());
    bytes[40..44].copy_from_slice(&run.samples.to_le_bytes());
    bytes[44..46].copy_from_slice(&run.activity.code().to_le_bytes());
    bytes[46..54].copy_from_slice(&run.capture_tag.to_le_bytes());
    bytes
}

fn load(bytes: &[u8; STORED]) -> Run {
    let node = u32_in(bytes, 0);
    Run {
        node: (node != NO_NODE).then_some(NodeId(node)),
        stop: StopId(u32_in(bytes, 4) as u16),
        first_ns: u64_in(bytes, 8),
        last_ns: u64_in(bytes, 16),
        weight_ns: u64_in(bytes, 24),
        samples: u32_in(bytes, 40),
        cpu_ns: u64_in(bytes, 32),
        state: RunState::from_code(bytes[6].into()),
        activity: Activity::from_code(u16::from_le_bytes([bytes[44], bytes[45]])),
        flags: RunFlags::from_bits_truncate(bytes[7]),
        capture_tag: u64_in(bytes, 46),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(i: u64) -> Run {
        Run {
            node: (!i.is_multiple_of(5)).then_some(NodeId(i as u32 ^ 0xABCD_0123)),
            stop: StopId(i as u16),
            first_ns: i << 33,
            last_ns: (i << 33) + 1,
            weight_ns: u64::MAX - i,
            samples: i as u32 + 1,
            cpu_ns: i << 40,
            state: RunState::from_code(i % 3),
            activity: Activity::from_code(i as u16 % 12),
            flags: RunFlags::from_bits_truncate(i as u8),
            capture_tag: i.wrapping_mul(0x0123_4567_89AB_CDEF),
        }
    }

    fn collect(runs: &Runs) -> Vec<(u32, Vec<Run>)> {
        let mut all: Vec<(u32, Vec<Run>)> = Vec::new();
        let visited: io::Result<()> = runs.for_each(|batch| {
            match all.last_mut() {
                Some((thread, runs)) if *thread == batch.thread => runs.extend(batch.runs),
                _ => all.push((batch.thread, batch.runs.to_vec())),
            }
            Ok(())
        });
        visited.unwrap();
        all
    }

    #[test]
    fn changed_runs_beyond_the_limit_are_spilled() {
        let mut runs = Runs::with_limit(4);
        for i in 0..4 {
            runs.push(i as u32 % 2, run(i)).unwrap();
        }
        let expected: Vec<(u32, Vec<Run>)> =
            (0..2).map(|i| (i as u32, vec![run(i), run(i), run(i + 2), run(i + 2)])).collect();
        let twice = |runs: &mut Vec<Run>| *runs = runs.iter().flat_map(|run| [*run, *run]).collect();
        assert_eq!(runs.change_held(twice).unwrap().map(|made| made.len()), Some(2));
        assert!(runs.spill.is_some());
        assert_eq!(collect(&runs), expected);
        assert_eq!(runs.change_held(twice).unwrap(), None);
        assert_eq!(collect(&runs), expected, "runs that are not in memory");
    }

    #[test]
    fn map_nodes_also_applies_to_spilled_runs() {
        let mut small = Runs::with_limit(7);
        let mut large = Runs::with_limit(usize::MAX);
        for runs in [&mut small, &mut large] {
            for i in 0..100u32 {
                let node = (i % 5 != 0).then_some(NodeId(i % 10));
                runs.push(0, Run { node, ..run(i.into()) }).unwrap();
            }
            runs.map_nodes((0..10).map(|i| (i % 2 == 0).then_some(NodeId(i / 2))).collect());
            // The second map drops the nodes that it does not list.
            runs.map_nodes((0..4).map(|i| Some(NodeId(i + 100))).collect());
        }
        let stacks = |runs: &Runs| -> Vec<Option<u32>> {
            collect(runs).iter().flat_map(|(_, runs)| runs.iter().map(|run| run.node.map(|n| n.0))).collect()
        };
        let expected: Vec<Option<u32>> = (0..100u32)
            .map(|i| Some(i % 10).filter(|n| i % 5 != 0 && n % 2 == 0 && n / 2 < 4).map(|n| n / 2 + 100))
            .collect();
        assert_eq!(stacks(&large), expected);
        assert_eq!(stacks(&small), expected);
    }

    #[test]
    fn spilled_runs_come_back_in_order_and_unchanged() {
        let mut small = Runs::with_limit(7);
        let mut large = Runs::with_limit(usize::MAX);
        for i in 0..1000 {
            for runs in [&mut small, &mut large] {
                runs.push(i as u32 % 3, run(i)).unwrap();
            }
        }
        assert!(large.spill.is_none());
        // Run i covers the time from i << 33 on; these end beyond all time.
        assert_eq!(small.span(), 0..u64::MAX);
        assert!(small.spill.is_some());
        let expected = collect(&large);
        assert_eq!(expected.len(), 3);
        assert_eq!(expected[1].1[2], run(7));
        assert_eq!(collect(&small), expected);
        assert_eq!(collect(&small), expected, "a second visit");
        small.push(0, run(2000)).unwrap();
        for i in 2001..2020 {
            small.push(0, run(i)).unwrap();
        }
        assert_eq!(collect(&small)[0].1.last(), Some(&run(2019)), "written after having been read");
    }
}
