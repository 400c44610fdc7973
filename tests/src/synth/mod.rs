//! Builds the traces that tests and benchmarks need, with the same writer that the agent uses.
//!
//! ```
//! use stk_format::Trace;
//! use stk_schema::Arch;
//! use stk_tests::synth::TraceBuilder;
//!
//! let mut builder = TraceBuilder::new(Arch::X64);
//! let thread = builder.thread(0, 4711, "main", 0x10_0000);
//! builder.sample(thread, 10, &[0x1400_1000, 0x0f_fff0], &[0x1400_2000, 0]);
//! let file = builder.finish();
//! assert_eq!(Trace::open(&file).unwrap().blocks().len(), 5); // STATE, META, SAMPLES, END, INDEX
//! ```

pub mod damage;
mod mutate;
mod parts;
mod random;
mod writer;

pub(crate) use mutate::number;
pub use mutate::{Choices, mutate};
pub use parts::{Parts, StoredBlock, StoredEvent};
pub use random::Random;
pub use writer::TraceWriter;

use std::collections::BTreeMap;
use stk_format::{
    BlockBuffer, BlockKind, CpuUnit, EncodeError, FileHeader, RawSample, SampleEncoder, ThreadImage, blob,
};
use stk_schema::event::*;
use stk_schema::identity::{ContentHash, Identity};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};

/// Ticks per second of built traces: those of QueryPerformanceCounter on most machines.
pub const FREQUENCY: u64 = 10_000_000;

/// A thread of a trace that is being built.
struct Thread {
    image: ThreadImage,
    start: ThreadStart,
    stack_base: u64,
}

/// Builds a trace event by event. Methods take times as bare numbers of ticks, since tests write
/// many, and panic on what the format does not allow: a test must not continue with less than it
/// asked for.
pub struct TraceBuilder {
    writer: TraceWriter<Vec<u8>>,
    encoder: SampleEncoder,
    block: BlockBuffer,
    block_open: bool,
    threads: BTreeMap<u64, Thread>,
    live_modules: BTreeMap<u64, (u64, u64, String)>,
    next_instance: u64,
    now: Ticks,
    samples: u64,
}

impl TraceBuilder {
    /// A builder for a trace of Windows on `arch`, with a fixed UUID and clock.
    pub fn new(arch: Arch) -> TraceBuilder {
        let mut header = FileHeader::new(arch, Os::Windows, *b"stk synth trace\0", FREQUENCY);
        header.utc_start = 1_700_000_000_000_000_000;
        header.process_created = 1_699_999_999_000_000_000;
        header.pid = 4404;
        header.rate_mhz = 1_000_000;
        header.cpu_unit = CpuUnit::Time100ns;
        TraceBuilder::with_header(header)
    }

    /// A builder for a trace with this header.
    pub fn with_header(header: FileHeader) -> TraceBuilder {
        let writer = TraceWriter::new(Vec::new(), &header).expect("writing to memory");
        let block = BlockBuffer::new(stk_schema::limits::MAX_BLOCK_RAW, &header).expect("memory for a block");
        let mut builder = TraceBuilder {
            writer,
            encoder: SampleEncoder::new(),
            block,
            block_open: false,
            threads: BTreeMap::new(),
            live_modules: BTreeMap::new(),
            next_instance: 1,
            now: header.clock_start,
            samples: 0,
        };
        builder.state();
        builder
    }

    /// Bytes of a stack word.
    fn word(&self) -> usize {
        self.writer.header().word()
    }

    /// Records a module loaded at `time`; returns its instance id.
    pub fn module(&mut self, time: u64, base: u64, size: u64, path: &str, identities: Vec<Identity>) -> u64 {
        let instance = self.instance();
        self.live_modules.insert(instance, (base, size, path.to_owned()));
        let flags = ModuleFlags::NOTIFIED;
        let path = path.as_bytes();
        self.meta(
            time,
            &Event::ModuleLoad(ModuleLoad {
                instance,
                time: Ticks(time),
                base,
                size,
                flags,
                path,
                identities,
            }),
        );
        instance
    }

    /// Records that the module was unloaded at `time`.
    pub fn unload(&mut self, time: u64, instance: u64) {
        self.live_modules.remove(&instance);
        self.meta(time, &Event::ModuleUnload { instance, time: Ticks(time) });
    }

    /// Records tables of a module, each a BLOB: (kind, rva, bytes).
    pub fn tables(&mut self, time: u64, instance: u64, tables: &[(TableKind, u32, &[u8])]) {
        let mut list = Vec::new();
        for &(kind, rva, bytes) in tables {
            let hash = self.blob(time, bytes);
            list.push(ImageTable { kind: kind as u64, rva, len: bytes.len() as u32, hash });
        }
        self.meta(time, &Event::ModuleTables(ModuleTables { instance, tables: list }));
    }

    /// Records tables of a module, each (kind, rva, bytes), by their hashes alone. Their bytes are
    /// not in the trace.
    pub fn tables_elsewhere(&mut self, time: u64, instance: u64, tables: &[(TableKind, u32, &[u8])]) {
        let list = tables.iter().map(|&(kind, rva, bytes)| ImageTable {
            kind: kind as u64,
            rva,
            len: bytes.len() as u32,
            hash: blob::content_hash(bytes),
        });
        let tables = list.collect();
        self.meta(time, &Event::ModuleTables(ModuleTables { instance, tables }));
    }

    /// Records a BLOB; returns its hash.
    pub fn blob(&mut self, time: u64, bytes: &[u8]) -> ContentHash {
        let hash = blob::content_hash(bytes);
        let pieces = blob::pieces(hash, bytes, 1 << 20).expect("a BLOB within the limit");
        for piece in pieces {
            self.events(BlockKind::Blob, time, [Event::Blob(piece)]);
        }
        hash
    }

    /// Records a thread that starts at `time`; returns its instance id. An empty name is not
    /// recorded.
    pub fn thread(&mut self, time: u64, tid: u32, name: &str, stack_base: u64) -> u64 {
        let instance = self.instance();
        let start = ThreadStart {
            instance,
            time: Ticks(time),
            tid,
            flags: ThreadFlags::empty(),
            start_address: 0,
            stack_base,
            created: 0,
        };
        let image = ThreadImage::new(1024, self.word()).expect("memory for an image");
        self.threads.insert(instance, Thread { image, start, stack_base });
        let mut events = vec![Event::ThreadStart(start)];
        if !name.is_empty() {
            events.push(Event::ThreadName { instance, time: Ticks(time), name: name.as_bytes() });
        }
        self.events(BlockKind::Meta, time, events);
        instance
    }

    /// Records that the thread ended at `time`.
    pub fn exit(&mut self, time: u64, instance: u64) {
        let mut thread = self.threads.remove(&instance).expect("a thread of this trace");
        self.flush(&mut thread.image);
        self.last_cpu(&mut thread.image, Ticks(time));
        self.meta(time, &Event::ThreadExit { instance, time: Ticks(time) });
    }

    /// A sample: registers (the rest of the set is zero) and the stack's words from the stack
    /// pointer, rounded down to a word, up; they must reach the stack base.
    pub fn sample(&mut self, thread: u64, time: u64, registers: &[u64], words: &[u64]) {
        let word = self.word();
        let set = RegisterSet::general(self.writer.header().arch);
        let mut all = vec![0; set.len()];
        all[..registers.len()].copy_from_slice(registers);
        // Some tests have millions of words.
        let mut stack = Vec::with_capacity(words.len() * word);
        words.iter().for_each(|value| stack.extend_from_slice(&value.to_le_bytes()[..word]));
        let stack_base = self.threads[&thread].stack_base;
        self.raw(&RawSample {
            thread,
            time: Ticks(time),
            set,
            registers: &all,
            stack_base,
            stack_start: stack_base - stack.len() as u64,
            stack: &stack,
            code: None,
            cpu: None,
            state: RunState::Running,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        });
    }

    /// Any sample; its thread must be one of this trace.
    pub fn raw(&mut self, raw: &RawSample) {
        let word = self.word();
        self.now = self.now.max(raw.time);
        let mut thread = self.threads.remove(&raw.thread).expect("a thread of this trace");
        for _ in 0..4 {
            self.open_block();
            match self.encoder.sample(&mut self.block, &mut thread.image, raw) {
                Ok(_) => {
                    self.samples += 1;
                    self.threads.insert(raw.thread, thread);
                    return;
                }
                Err(EncodeError::BlockFull) => {
                    self.flush(&mut thread.image);
                    self.cut();
                }
                Err(EncodeError::ImageTooSmall { words }) => {
                    thread.image.reserve(words, word).expect("memory for an image");
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the sample fits no block");
    }

    /// Records a pass that found the thread as in its last sample.
    pub fn same(&mut self, thread: u64, time: u64, state: RunState) {
        let time = Ticks(time);
        self.now = self.now.max(time);
        let mut entry = self.threads.remove(&thread).expect("a thread of this trace");
        for _ in 0..2 {
            self.open_block();
            match self.encoder.same(&mut self.block, &mut entry.image, time, state) {
                Ok(_) => {
                    self.samples += 1;
                    self.threads.insert(thread, entry);
                    return;
                }
                Err(EncodeError::BlockFull) => {
                    self.flush(&mut entry.image);
                    self.cut();
                }
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the pass fits no block");
    }

    /// A reading of the thread's clock at its last pass or after it, in the header's unit.
    pub fn clock(&mut self, thread: u64, cpu: u64) {
        self.threads.get_mut(&thread).expect("a thread of this trace").image.note_cpu(cpu);
    }

    /// An event in the SAMPLES block that is being filled.
    pub fn push(&mut self, event: &Event) {
        self.open_block();
        if self.block.push(event).is_err() {
            self.cut();
            self.open_block();
            self.block.push(event).expect("an event that fits a block");
        }
    }

    /// Whether the SAMPLES block that is being filled is due to be cut, as a recorder would do it.
    pub fn wants_cut(&self, now: u64) -> bool {
        self.block_open && self.block.wants_cut(Ticks(now))
    }

    /// Ends the SAMPLES block that is being filled.
    pub fn cut(&mut self) {
        if !self.block_open {
            return;
        }
        for thread in self.threads.values_mut() {
            self.encoder.flush_idle(&mut self.block, &mut thread.image).expect("room that the block kept");
        }
        self.writer.block(&self.block).expect("writing to memory");
        self.block_open = false;
    }

    /// A META block with one event.
    pub fn meta(&mut self, time: u64, event: &Event) {
        self.events(BlockKind::Meta, time, [event.clone()]);
    }

    /// A block of `kind` with these events. Ends the SAMPLES block before it.
    pub fn events<'e>(&mut self, kind: BlockKind, time: u64, events: impl IntoIterator<Item = Event<'e>>) {
        self.cut();
        let time = Ticks(time);
        self.now = self.now.max(time);
        self.writer.events(kind, time, events).expect("events that fit a block");
    }

    /// A STATE block: clock, live modules and threads. Keyframes are renewed.
    pub fn state(&mut self) {
        let header = *self.writer.header();
        let ns = header.nanoseconds(self.now) as u64;
        let clock = Event::Clock(Clock { time: self.now, utc: header.utc_start.wrapping_add(ns) });
        self.restating(BlockKind::State, |restated| [vec![clock], restated].concat());
        self.encoder.renew_keyframes();
    }

    /// A META block with MODULE_STATE, and before it, with `restates`, all live modules and
    /// threads.
    pub fn confirm(&mut self, restates: bool) {
        let (modules, modules_hash) = blob::instances_hash(self.live_modules.keys().copied());
        let state =
            ModuleState { time: self.now, modules, modules_hash, ranges: 0, ranges_hash: ContentHash::NONE };
        self.restating(BlockKind::Meta, |restated| {
            let before = if restates { restated } else { Vec::new() };
            [before, vec![Event::ModuleState(state)]].concat()
        });
    }

    /// A block with what `choose` makes of all live modules and threads, restated.
    fn restating(&mut self, kind: BlockKind, choose: impl for<'e> FnOnce(Vec<Event<'e>>) -> Vec<Event<'e>>) {
        let modules = std::mem::take(&mut self.live_modules);
        let loads = modules.iter().map(|(&instance, (base, size, path))| {
            Event::ModuleLoad(ModuleLoad {
                instance,
                time: self.now,
                base: *base,
                size: *size,
                flags: ModuleFlags::RESTATED,
                path: path.as_bytes(),
                identities: Vec::new(),
            })
        });
        let starts = self.threads.values().map(|thread| {
            let flags = thread.start.flags | ThreadFlags::RESTATED;
            Event::ThreadStart(ThreadStart { flags, ..thread.start })
        });
        let events = choose(loads.chain(starts).collect());
        self.events(kind, self.now.0, events);
        self.live_modules = modules;
    }

    /// The finished trace.
    pub fn finish(mut self) -> Vec<u8> {
        let mut threads = std::mem::take(&mut self.threads);
        for thread in threads.values_mut() {
            if self.block_open {
                self.flush(&mut thread.image);
            }
            self.last_cpu(&mut thread.image, self.now);
        }
        self.cut();
        let end = End {
            time: self.now,
            reason: EndReason::Stopped as u64,
            samples: self.samples,
            dropped: 0,
            detail: b"",
        };
        self.writer.finish(&end).expect("writing to memory")
    }

    /// The trace as a killed recorder leaves it: the blocks written so far, without an end. The
    /// block being filled is lost.
    pub fn abandon(self) -> Vec<u8> {
        self.writer.abandon()
    }

    fn instance(&mut self) -> u64 {
        self.next_instance += 1;
        self.next_instance - 1
    }

    fn open_block(&mut self) {
        if !self.block_open {
            self.encoder.begin(&mut self.block, self.now);
            self.block_open = true;
        }
    }

    /// States what the thread used since its last event; opens no block where it used nothing.
    fn last_cpu(&mut self, image: &mut ThreadImage, time: Ticks) {
        if !image.has_unstated_cpu() {
            return;
        }
        self.open_block();
        if self.encoder.last_cpu(&mut self.block, image, time).is_err() {
            self.cut();
            self.open_block();
            self.encoder.last_cpu(&mut self.block, image, time).expect("an event that fits a block");
        }
    }

    fn flush(&mut self, image: &mut ThreadImage) {
        if self.block_open || image.has_sample() {
            self.open_block();
            self.encoder.flush_idle(&mut self.block, image).expect("room that the block kept");
        }
    }
}
