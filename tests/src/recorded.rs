//! A trace as the format's own reader returns it: events and raw samples, without stk's unwinding,
//! symbols or timeline. The tests compare stk's outputs with it.

use std::collections::BTreeMap;
use std::path::Path;
use stk_format::{FileHeader, SampleStep, Scratch, Trace, blob};
use stk_schema::Ticks;
use stk_schema::event::{
    CheckWalk, Dropped, Event, ImageTable, ModuleFlags, ModuleLoad, ThreadFlags, ThreadStart,
};
use stk_schema::identity::{ContentHash, Identity};
use stk_schema::registers::{IP, SP};

/// The data of a trace that the tests use.
#[derive(Debug)]
pub struct Recorded {
    /// The file header.
    pub header: FileHeader,
    /// Whether the recording was finished.
    pub complete: bool,
    /// Whether the file ends within a block.
    pub cut: bool,
    /// Whether the file has an index and a tail.
    pub indexed: bool,
    /// Damage and missing blocks, as text; empty for a sound trace, finished or not.
    pub damage: Vec<String>,
    /// Modules by instance id.
    pub modules: BTreeMap<u64, Module>,
    /// Threads by instance id.
    pub threads: BTreeMap<u64, Thread>,
    /// Metadata.
    pub metadata: BTreeMap<String, String>,
    /// Samples with registers and stack, in file order.
    pub samples: Vec<Sample>,
    /// Passes that found a thread unchanged.
    pub unchanged: u64,
    /// Walks by the system's own unwinder, in file order.
    pub walks: Vec<CheckWalk>,
    /// Samples or events that were dropped, by reason.
    pub dropped: BTreeMap<u64, u64>,
    /// The DROPPED events, in file order.
    pub losses: Vec<Dropped>,
    /// Samples that were dropped, by the blocks' running total.
    pub dropped_samples: u64,
    /// .NET runtimes by module instance.
    pub runtimes: BTreeMap<u64, Runtime>,
    /// EventPipe streams by session.
    pub streams: BTreeMap<u64, Vec<u8>>,
    /// Names of code made at run time: first address, size, source, name.
    pub names: Vec<(u64, u64, u64, String)>,
    /// What runtimes said of samples: thread instance, time, Frame head.
    pub managed: Vec<(u64, Ticks, u64)>,
    /// Bytes beside the stack that belong to samples: address and how many.
    pub memory: Vec<(u64, usize)>,
    /// The complete BLOBs, by hash.
    pub blobs: BTreeMap<[u8; 16], Vec<u8>>,
    /// The END event: reason, samples, dropped, detail.
    pub end: Option<(u64, u64, u64, String)>,
}

/// A .NET runtime in the process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Runtime {
    /// 1 = .NET, 2 = .NET Framework, 3 = single-file .NET host.
    pub kind: u64,
    /// Version.
    pub version: String,
    /// Bytes of the data contract descriptor.
    pub descriptor: usize,
    /// Its globals.
    pub pointers: usize,
    /// The last note.
    pub note: String,
    /// When it was found.
    pub found: Ticks,
}

/// A module instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Module {
    /// Full path.
    pub path: String,
    /// The PDB's path in its CodeView record, if it has one.
    pub pdb: Option<String>,
    /// Load address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
    /// When it was loaded.
    pub load: Ticks,
    /// When it was unloaded; [`Ticks::MAX`] if it was not.
    pub unload: Ticks,
    /// How it became known.
    pub flags: ModuleFlags,
    /// How many identities it has, and whether that of its PE headers is among them.
    pub identities: usize,
    /// See `identities`.
    pub has_pe_identity: bool,
    /// Its tables from MODULE_TABLES; `None` without such an event.
    pub tables: Option<Vec<ImageTable>>,
}

/// A thread instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Thread {
    /// The system's id.
    pub tid: u32,
    /// Its last name; empty if it has none.
    pub name: String,
    /// How it became known.
    pub flags: ThreadFlags,
    /// When the system created it, nanoseconds since 1970 UTC; 0 if unknown.
    pub created: u64,
    /// When it was first seen.
    pub start: Ticks,
    /// When it ended; [`Ticks::MAX`] if it did not.
    pub exit: Ticks,
}

/// A sample with registers and stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Thread instance.
    pub thread: u64,
    /// When it was taken.
    pub time: Ticks,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Address of the first captured byte.
    pub stack_start: u64,
    /// Bytes of stack.
    pub stack: u64,
    /// Whether the stack is cut below its base.
    pub truncated: bool,
    /// Its end, exclusive; 0 for a stack that the program made itself, whose base is not known.
    pub stack_base: u64,
    /// Given by the caller of stk_capture.
    pub tag: Option<u64>,
    /// The answer to CONTEXT_EXCEPTION_REQUEST, on x86.
    pub context_reply: Option<u32>,
}

impl Module {
    /// File name.
    pub fn name(&self) -> &str {
        self.path.rsplit('\\').next().unwrap_or_default()
    }

    /// Whether a MODULE_TABLES names at least one table of it.
    pub fn has_tables(&self) -> bool {
        self.tables.as_ref().is_some_and(|tables| !tables.is_empty())
    }

    /// When it was unloaded, if it was.
    pub fn unloaded(&self) -> Option<Ticks> {
        Some(self.unload).filter(|&time| time != Ticks::MAX)
    }

    /// Whether it held `address` at `time`.
    pub fn holds(&self, address: u64, time: Ticks) -> bool {
        (self.load..self.unload).contains(&time) && (self.base..self.base + self.size).contains(&address)
    }
}

impl Thread {
    /// Whether it is one of the recorder's own.
    pub fn is_recorders(&self) -> bool {
        self.flags.contains(ThreadFlags::RECORDER)
    }
}

impl Sample {
    /// Whether it is a stack that the program made itself, whose base is not known.
    pub fn is_foreign(&self) -> bool {
        self.stack_base == 0
    }

    /// The end of the captured stack, exclusive.
    pub fn stack_end(&self) -> u64 {
        self.stack_start + self.stack
    }

    /// Whether `address` is in the captured stack.
    pub fn holds(&self, address: u64) -> bool {
        (self.stack_start..self.stack_end()).contains(&address)
    }
}

impl Recorded {
    /// Reads a trace.
    ///
    /// # Panics
    /// When it cannot be opened.
    #[track_caller]
    pub fn open(path: &Path) -> Recorded {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let trace = Trace::open(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Recorded::read(&trace)
    }

    /// Reads a trace that must be finished and sound, its index included.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn open_sound(path: &Path) -> Recorded {
        let recorded = Recorded::open(path);
        let (damage, end) = (&recorded.damage, &recorded.end);
        assert!(recorded.complete && damage.is_empty(), "{}: {damage:?}, {end:?}", path.display());
        assert!(recorded.indexed, "{} has no index", path.display());
        recorded
    }

    /// Reads a trace that is being written; `None` while it is empty.
    pub fn try_open(path: &Path) -> Option<Recorded> {
        let bytes = std::fs::read(path).ok()?;
        Some(Recorded::read(&Trace::open(&bytes).ok()?))
    }

    fn read(trace: &Trace) -> Recorded {
        let mut recorded = Recorded {
            header: *trace.header(),
            complete: trace.is_complete(),
            cut: trace.is_cut(),
            indexed: trace.is_indexed(),
            damage: trace.damage().iter().map(|damage| damage.to_string()).collect(),
            modules: BTreeMap::new(),
            threads: BTreeMap::new(),
            metadata: BTreeMap::new(),
            samples: Vec::new(),
            unchanged: 0,
            walks: Vec::new(),
            dropped: BTreeMap::new(),
            losses: Vec::new(),
            dropped_samples: trace.blocks().iter().map(|block| block.header.dropped).max().unwrap_or(0),
            runtimes: BTreeMap::new(),
            streams: BTreeMap::new(),
            names: Vec::new(),
            managed: Vec::new(),
            memory: Vec::new(),
            blobs: BTreeMap::new(),
            end: None,
        };
        let mut blobs = BTreeMap::new();
        let mut scratch = Scratch::new();
        for error in trace.verify(&mut scratch) {
            recorded.damage.push(error.to_string());
        }
        for block in trace.blocks() {
            if block.header.kind == stk_format::BlockKind::Samples {
                let Ok(mut samples) = trace.samples(block, &mut scratch) else { continue };
                while let Ok(Some(decoded)) = samples.next() {
                    match decoded {
                        SampleStep::Sample(sample) => recorded.samples.push(Sample {
                            thread: sample.thread,
                            time: sample.time,
                            ip: sample.registers[IP],
                            sp: sample.registers[SP],
                            stack_start: sample.stack_start,
                            stack: sample.stack.len() as u64,
                            truncated: sample.truncated,
                            stack_base: sample.stack_base,
                            tag: sample.tag,
                            context_reply: sample.context_reply,
                        }),
                        SampleStep::Same(same) => recorded.unchanged += same.ticks,
                        SampleStep::Idle(idle) => recorded.unchanged += idle.ticks,
                        SampleStep::Other(event) => recorded.event(&event),
                    }
                }
            } else {
                let Ok(mut events) = trace.events(block, &mut scratch) else { continue };
                while let Some(Ok(event)) = events.next() {
                    if let Event::Blob(piece) = event {
                        let blob =
                            blobs.entry(piece.hash.0).or_insert_with(|| blob::Assembly::new(piece.hash));
                        recorded.damage.extend(blob.add(&piece).err().map(|error| error.to_string()));
                    }
                    recorded.event(&event);
                }
            }
        }
        let whole = |(hash, blob): ([u8; 16], blob::Assembly)| Some((hash, blob.finish().ok()?));
        recorded.blobs = blobs.into_iter().filter_map(whole).collect();
        recorded
    }

    /// The bytes of a table.
    #[track_caller]
    pub fn blob(&self, hash: ContentHash) -> &[u8] {
        self.blobs.get(&hash.0).unwrap_or_else(|| panic!("the trace has no BLOB {hash}"))
    }

    /// Why the recording ended, if it says so: an `EndReason`.
    pub fn end_reason(&self) -> Option<u64> {
        self.end.as_ref().map(|end| end.0)
    }

    /// The text of its END event; empty without one.
    pub fn end_detail(&self) -> &str {
        self.end.as_ref().map_or("", |end| &end.3)
    }

    /// The modules with this file name, by load time.
    pub fn modules_named(&self, name: &str) -> Vec<&Module> {
        let mut found: Vec<&Module> = self.modules.values().filter(|module| module.name() == name).collect();
        found.sort_by_key(|module| module.load);
        found
    }

    /// The instances of threads with this name.
    pub fn threads_named(&self, name: &str) -> Vec<u64> {
        self.threads.iter().filter(|(_, thread)| thread.name == name).map(|(&instance, _)| instance).collect()
    }

    /// The samples of one thread instance.
    pub fn samples_of(&self, thread: u64) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.thread == thread)
    }

    fn event(&mut self, event: &Event) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match event {
            Event::ModuleLoad(load) if !load.flags.contains(ModuleFlags::RESTATED) => {
                let pdb = load.identities.iter().find_map(|identity| match identity {
                    Identity::CodeView(record) => Some(text(record.pdb_name)),
                    _ => None,
                });
                let module = Module {
                    path: text(load.path),
                    pdb,
                    base: load.base,
                    size: load.size,
                    load: load.time,
                    unload: Ticks::MAX,
                    flags: load.flags,
                    identities: load.identities.len(),
                    has_pe_identity: load.identities.iter().any(|one| matches!(one, Identity::Pe(_))),
                    tables: None,
                };
                let twice = self.modules.insert(load.instance, module);
                assert_eq!(twice, None, "module instance {} is loaded twice", load.instance);
            }
            // A trace that was written from memory begins in the middle.
            Event::ModuleLoad(load) if !self.modules.contains_key(&load.instance) => {
                let flags = load.flags - ModuleFlags::RESTATED;
                self.event(&Event::ModuleLoad(ModuleLoad { flags, ..load.clone() }));
            }
            Event::ModuleUnload { instance, time } => {
                let module =
                    self.modules.get_mut(instance).expect("a module is loaded before it is unloaded");
                module.unload = *time;
            }
            Event::ModuleTables(tables) => {
                if let Some(module) = self.modules.get_mut(&tables.instance) {
                    module.tables = Some(tables.tables.clone());
                }
            }
            Event::ThreadStart(start) if !start.flags.contains(ThreadFlags::RESTATED) => {
                let (tid, flags) = (start.tid, start.flags);
                let (created, name) = (start.created, String::new());
                let thread = Thread { tid, name, flags, created, start: start.time, exit: Ticks::MAX };
                let twice = self.threads.insert(start.instance, thread);
                assert_eq!(twice, None, "thread instance {} starts twice", start.instance);
            }
            Event::ThreadStart(start) if !self.threads.contains_key(&start.instance) => {
                let flags = start.flags - ThreadFlags::RESTATED;
                self.event(&Event::ThreadStart(ThreadStart { flags, ..*start }));
            }
            Event::ThreadExit { instance, time } => {
                self.threads.get_mut(instance).expect("a thread starts before it ends").exit = *time;
            }
            Event::ThreadName { instance, name, .. } => {
                self.threads.get_mut(instance).expect("a thread starts before it is named").name = text(name);
            }
            Event::Metadata(fact) => {
                self.metadata.insert(text(fact.key), text(fact.value));
            }
            Event::RuntimeInfo(info) => {
                let runtime = self.runtimes.entry(info.module).or_insert_with(|| Runtime {
                    descriptor: info.descriptor.len(),
                    pointers: info.pointer_data.len() / 8,
                    found: info.time,
                    ..Runtime::default()
                });
                (runtime.kind, runtime.version, runtime.note) =
                    (info.kind, text(info.version), text(info.note));
            }
            Event::Nettrace(piece) => {
                let stream = self.streams.entry(piece.session).or_default();
                assert_eq!(stream.len() as u64, piece.offset, "stream {} has a gap", piece.session);
                stream.extend_from_slice(piece.bytes);
            }
            Event::MethodName(name) => self.names.push((name.base, name.size, name.source, text(name.name))),
            Event::ManagedThread(managed) => self.managed.push((managed.thread, managed.time, managed.frame)),
            Event::Memory(memory) => self.memory.push((memory.address, memory.bytes.len())),
            Event::CheckWalk(walk) => self.walks.push(walk.clone()),
            Event::Dropped(dropped) => {
                *self.dropped.entry(dropped.reason).or_default() += dropped.count;
                self.losses.push(*dropped);
            }
            Event::End(end) => self.end = Some((end.reason, end.samples, end.dropped, text(end.detail))),
            _ => {}
        }
    }
}
