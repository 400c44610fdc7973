//! What was where, and when: modules, threads and everything else that META and STATE blocks say.

use super::code::{CodeIndex, CodeRegion, LiveCode};
use crate::profile::{Image, ImageId};
use std::collections::{BTreeMap, HashMap, HashSet};
use stk_schema::event::{
    CodeAdd, DropReason, Event, ModuleFlags, ModuleLoad, RuntimeInfo, Table, ThreadFlags, ThreadStart,
};
use stk_schema::identity::{ContentHash, Identity, PeIdentity};
use stk_unwind::Arch;

/// Modules, threads and facts of a trace over time. Times are ticks.
#[derive(Default, Debug)]
pub struct Timeline {
    /// Distinct images, in order of first appearance.
    pub images: Vec<ImageRecord>,
    /// Module instances, by load time, then by instance id.
    pub modules: Vec<Module>,
    /// Threads, by instance id.
    pub threads: Vec<Thread>,
    /// Dynamic code, by time, then by instance id.
    pub code: Vec<CodeRegion>,
    /// Marks in stored order.
    pub marks: Vec<Mark>,
    /// METADATA events in stored order, without the copies of the file header.
    pub metadata: Vec<(String, String)>,
    /// Language runtimes found in the process.
    pub runtimes: Vec<Runtime>,
    /// Whether a runtime told of its methods: see [`runtime_events`](super::runtime_events).
    pub has_runtime_events: bool,
    /// METHOD_NAME events: names of code that were told one by one, by .NET's data access library.
    pub names_told: u64,
    /// Samples or events that the recorder dropped, by reason.
    pub dropped: BTreeMap<u64, u64>,
    /// The sampling rates that were set after the start: time and millihertz.
    pub rates: Vec<(u64, u32)>,
    /// Moments on both clocks: ticks and nanoseconds since the Unix epoch.
    pub clocks: Vec<(u64, u64)>,
    /// Words that were overwritten on purpose, by rule.
    pub redacted: BTreeMap<String, u64>,
    /// Exceptions seen.
    pub exceptions: u64,
    /// How the recording ended.
    pub end: Option<End>,
    /// Events of unknown type, skipped.
    pub unknown_events: u64,
    /// Latest time seen.
    pub last: u64,
    changes: Vec<Change>,
    pub(super) code_index: CodeIndex,
}

/// A distinct image and what the trace carries of it.
#[derive(Clone, Debug)]
pub struct ImageRecord {
    /// Its names and identities.
    pub image: Image,
    /// Hash of its headers; none if they were not readable.
    pub header_hash: ContentHash,
    /// The parts whose bytes are in the trace.
    pub tables: Vec<Table>,
    /// Whether a MODULE_TABLES event told what was recorded (possibly nothing).
    pub tables_told: bool,
}

/// An image at an address for a time.
#[derive(Clone, Debug)]
pub struct Module {
    /// Instance id of the trace.
    pub instance: u64,
    /// Which image.
    pub image: ImageId,
    /// Load address.
    pub base: u64,
    /// Bytes mapped.
    pub size: u64,
    /// How it became known.
    pub flags: ModuleFlags,
    /// From when on it is there; with [`ModuleFlags::AT_START`] from the beginning.
    pub load: u64,
    /// When it went; `None` = never.
    pub unload: Option<u64>,
}

/// A thread instance.
#[derive(Clone, Debug)]
pub struct Thread {
    /// Instance id of the trace.
    pub instance: u64,
    /// System thread id.
    pub tid: u32,
    /// How it became known.
    pub flags: ThreadFlags,
    /// When it was first seen; with [`ThreadFlags::AT_START`] it ran before.
    pub start: u64,
    /// When it ended; `None` = never.
    pub exit: Option<u64>,
    /// Last name it had; empty if none.
    pub name: String,
    /// Win32 start address; 0 if unknown.
    pub start_address: u64,
    /// Highest address of its stack, exclusive; 0 if unknown.
    pub stack_base: u64,
}

/// A point in time that the user or the target marked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// When, in ticks.
    pub time: u64,
    /// Thread instance; 0 = the process.
    pub thread: u64,
    /// Number given by the caller.
    pub tag: u64,
    /// Text.
    pub text: String,
}

/// A language runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Module instance id, as recorded.
    pub module: u64,
    /// 1 = .NET, 2 = .NET Framework, 3 = single-file .NET host.
    pub kind: u64,
    /// Version text.
    pub version: String,
    /// What could not be asked of it and why.
    pub note: String,
    /// Its data contract descriptor, JSON; empty if it publishes none.
    pub descriptor: Vec<u8>,
    /// The addresses that the descriptor refers to by number.
    pub pointer_data: Vec<u8>,
}

/// How the recording ended.
#[derive(Clone, Debug)]
pub struct End {
    /// When, in ticks.
    pub time: u64,
    /// `EndReason` as a number.
    pub reason: u64,
    /// Samples written, idle ones included.
    pub samples: u64,
    /// Samples dropped.
    pub dropped: u64,
    /// Text for the user.
    pub detail: String,
}

/// A module comes or goes.
#[derive(Clone, Copy, Debug)]
struct Change {
    time: u64,
    loads: bool,
    module: u32,
}

impl Timeline {
    /// The index of a thread instance in [`Timeline::threads`].
    pub fn thread(&self, instance: u64) -> Option<usize> {
        self.threads.binary_search_by_key(&instance, |thread| thread.instance).ok()
    }

    /// A view of the modules; begins before the first of them.
    pub fn view(&self) -> View<'_> {
        View { timeline: self, time: 0, next: 0, live: Vec::new(), code: LiveCode::default() }
    }

    /// When the first dynamic code that comes after `time` and holds `address` comes, in ticks.
    pub fn code_after(&self, address: u64, time: u64) -> Option<u64> {
        self.code_index.next_at(&self.code, address, time)
    }
}

/// The modules and the dynamic code that are there at a moment. Moving on is cheap, going back rebuilds.
#[derive(Clone, Debug)]
pub struct View<'t> {
    timeline: &'t Timeline,
    time: u64,
    next: usize,
    live: Vec<Live>,
    code: LiveCode,
}

/// A module of a [`View`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// First address.
    pub base: u64,
    /// Last address, inclusive.
    pub last: u64,
    /// Index in [`Timeline::modules`].
    pub module: u32,
    /// Its image.
    pub image: ImageId,
}

impl<'t> View<'t> {
    /// Goes to a moment.
    pub fn go(&mut self, time: u64) {
        if time < self.time {
            self.next = 0;
            self.live.clear();
            self.code = LiveCode::default();
        }
        self.time = time;
        self.code.go(self.timeline, time);
        let changes = &self.timeline.changes;
        while let Some(change) = changes.get(self.next).filter(|change| change.time <= time) {
            let module = &self.timeline.modules[change.module as usize];
            let at = self.live.partition_point(|live| live.base < module.base);
            if change.loads {
                let last = module.base.saturating_add(module.size - 1);
                self.live
                    .insert(at, Live { base: module.base, last, module: change.module, image: module.image });
            } else if self.live.get(at).is_some_and(|live| live.module == change.module) {
                self.live.remove(at);
            }
            self.next += 1;
        }
    }

    /// The module that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Live> {
        let after = self.live.partition_point(|live| live.base <= address);
        self.live[..after].last().filter(|live| address <= live.last)
    }

    /// The dynamic code region (index in [`Timeline::code`]) that holds `address`.
    pub fn find_code(&self, address: u64) -> Option<u32> {
        self.code.find(self.timeline, address)
    }

    /// The timeline that it shows.
    pub fn timeline(&self) -> &'t Timeline {
        self.timeline
    }

    /// A number that stays the same as long as the modules and the dynamic code do.
    pub fn epoch(&self) -> usize {
        self.next + self.code.epoch()
    }

    /// The modules, by address.
    pub fn live(&self) -> &[Live] {
        &self.live
    }
}

/// Builds a [`Timeline`] from the events of META and STATE blocks, taken in stored order.
#[derive(Debug)]
pub struct TimelineBuilder {
    timeline: Timeline,
    images: HashMap<ImageKey, ImageId>,
    modules: HashMap<u64, usize>,
    threads: HashMap<u64, usize>,
    code: HashMap<u64, usize>,
    /// Of the process.
    arch: Arch,
    /// Live modules by base.
    live: BTreeMap<u64, usize>,
    /// What the STATE block that is being read restated.
    restated: Option<HashSet<u64>>,
}

/// What makes two images the same in one trace: everything that is known of them.
#[derive(PartialEq, Eq, Hash, Debug)]
struct ImageKey {
    path: String,
    debug_id: String,
    pe: Option<PeIdentity>,
    header_hash: ContentHash,
    /// Only where nothing else tells images apart.
    instance: u64,
}

impl Default for TimelineBuilder {
    fn default() -> Self {
        TimelineBuilder::new(Arch::X64)
    }
}

impl TimelineBuilder {
    /// A timeline of a process of this architecture.
    pub fn new(arch: Arch) -> TimelineBuilder {
        TimelineBuilder {
            timeline: Timeline::default(),
            images: HashMap::new(),
            modules: HashMap::new(),
            threads: HashMap::new(),
            code: HashMap::new(),
            arch,
            live: BTreeMap::new(),
            restated: None,
        }
    }

    /// Says that a STATE block begins which follows a loss: what it does not restate is gone.
    pub fn begin_state_after_loss(&mut self) {
        self.restated = Some(HashSet::new());
    }

    /// Ends the STATE block that [`begin_state_after_loss`](Self::begin_state_after_loss) began at `time`.
    pub fn end_state(&mut self, time: u64) {
        let Some(restated) = self.restated.take() else { return };
        let modules = &mut self.timeline.modules;
        self.live.retain(|_, &mut i| {
            let stays = restated.contains(&modules[i].instance);
            if !stays {
                modules[i].unload = Some(time.max(modules[i].load));
            }
            stays
        });
        for thread in &mut self.timeline.threads {
            if thread.exit.is_none() && !restated.contains(&thread.instance) {
                thread.exit = Some(time.max(thread.start));
            }
        }
    }

    /// Takes an event.
    pub fn add(&mut self, event: &Event<'_>) {
        let timeline = &mut self.timeline;
        match event {
            Event::ModuleLoad(load) => self.module_load(load),
            Event::ModuleUnload { instance, time } => {
                timeline.last = timeline.last.max(*time);
                if let Some(&i) = self.modules.get(instance) {
                    let module = &mut timeline.modules[i];
                    module.unload = Some((*time).max(module.load));
                    if self.live.get(&module.base) == Some(&i) {
                        self.live.remove(&module.base);
                    }
                }
            }
            Event::ModuleTables(tables) => {
                if let Some(&i) = self.modules.get(&tables.instance) {
                    let record = &mut timeline.images[timeline.modules[i].image.0 as usize];
                    record.tables_told = true;
                    for table in &tables.tables {
                        if !record.tables.contains(table) {
                            record.tables.push(*table);
                        }
                    }
                }
            }
            Event::ThreadStart(start) => self.thread_start(start),
            Event::ThreadExit { instance, time } => {
                timeline.last = timeline.last.max(*time);
                if let Some(&i) = self.threads.get(instance) {
                    let thread = &mut timeline.threads[i];
                    thread.exit = Some((*time).max(thread.start));
                }
            }
            Event::ThreadName { instance, name, .. } => {
                if let Some(&i) = self.threads.get(instance) {
                    timeline.threads[i].name = text(name);
                }
            }
            Event::CodeAdd(add) => self.code_add(add),
            Event::CodeRemove { instance, time } => {
                if let Some(&i) = self.code.get(instance) {
                    timeline.code[i].remove = Some(*time);
                }
            }
            Event::RuntimeInfo(info) => runtime_info(&mut timeline.runtimes, info),
            Event::Nettrace(_) => timeline.has_runtime_events = true,
            Event::MethodName(_) => {
                timeline.has_runtime_events = true;
                timeline.names_told += 1;
            }
            Event::Mark(mark) => {
                timeline.last = timeline.last.max(mark.time);
                let text = text(mark.text);
                timeline.marks.push(Mark { time: mark.time, thread: mark.thread, tag: mark.tag, text });
            }
            Event::RateChange(change) => timeline.rates.push((change.time, change.rate_mhz)),
            Event::Redaction(redaction) => {
                *timeline.redacted.entry(text(redaction.rule)).or_default() += redaction.words;
            }
            Event::Clock(clock) => timeline.clocks.push((clock.time, clock.utc)),
            Event::Dropped(dropped) => {
                let count = timeline.dropped.entry(dropped.reason).or_default();
                *count = count.saturating_add(dropped.count);
            }
            Event::Metadata(fact) if fact.key != stk_format::HEADER_KEY => {
                // A STATE block restates facts; a value that changed is a new fact.
                let fact = (text(fact.key), text(fact.value));
                if !timeline.metadata.contains(&fact) {
                    timeline.metadata.push(fact);
                }
            }
            Event::Exception(_) => timeline.exceptions += 1,
            Event::End(end) => {
                timeline.last = timeline.last.max(end.time);
                timeline.end = Some(End {
                    time: end.time,
                    reason: end.reason,
                    samples: end.samples,
                    dropped: end.dropped,
                    detail: text(end.detail),
                });
            }
            Event::Unknown { .. } => timeline.unknown_events += 1,
            _ => {}
        }
    }

    /// The finished timeline.
    pub fn finish(mut self) -> Timeline {
        let timeline = &mut self.timeline;
        timeline.modules.sort_by_key(|module| (module.load, module.instance));
        timeline.threads.sort_by_key(|thread| thread.instance);
        timeline.code_index = CodeIndex::new(&mut timeline.code);
        for (i, module) in timeline.modules.iter().enumerate() {
            if module.unload.is_some_and(|unload| unload <= module.load) {
                continue;
            }
            timeline.changes.push(Change { time: module.load, loads: true, module: i as u32 });
            if let Some(time) = module.unload {
                timeline.changes.push(Change { time, loads: false, module: i as u32 });
            }
        }
        // At one moment what goes makes room for what comes.
        timeline.changes.sort_by_key(|change| (change.time, change.loads, change.module));
        self.timeline
    }

    fn module_load(&mut self, load: &ModuleLoad<'_>) {
        if let Some(restated) = &mut self.restated {
            restated.insert(load.instance);
        }
        self.timeline.last = self.timeline.last.max(load.time);
        if self.modules.contains_key(&load.instance) || load.size == 0 {
            return;
        }
        let image = self.image(load);
        let time = if load.flags.contains(ModuleFlags::AT_START) { 0 } else { load.time };
        let i = self.timeline.modules.len();
        // Whatever lay there is gone, whether or not its unloading was told.
        let last = load.base.saturating_add(load.size - 1);
        let modules = &mut self.timeline.modules;
        let below = self.live.range(..load.base).next_back().map(|(&base, _)| base);
        let overlapped: Vec<u64> = self
            .live
            .range(below.unwrap_or(load.base)..=last)
            .filter(|&(_, &other)| modules[other].base.saturating_add(modules[other].size - 1) >= load.base)
            .map(|(&base, _)| base)
            .collect();
        for base in overlapped {
            if let Some(other) = self.live.remove(&base) {
                modules[other].unload = Some(time.max(modules[other].load));
            }
        }
        modules.push(Module {
            instance: load.instance,
            image,
            base: load.base,
            size: load.size,
            flags: load.flags,
            load: time,
            unload: None,
        });
        self.modules.insert(load.instance, i);
        self.live.insert(load.base, i);
    }

    /// The image of a module, new or known.
    fn image(&mut self, load: &ModuleLoad<'_>) -> ImageId {
        let record = image_record(load);
        let pe = load.identities.iter().find_map(|identity| match identity {
            Identity::Pe(pe) => Some(*pe),
            _ => None,
        });
        let known = pe.is_some() || !record.image.debug_id.is_empty() || !record.header_hash.is_none();
        let key = ImageKey {
            path: record.image.path.to_lowercase(),
            debug_id: record.image.debug_id.clone(),
            pe,
            header_hash: record.header_hash,
            instance: if known { 0 } else { load.instance },
        };
        *self.images.entry(key).or_insert_with(|| {
            self.timeline.images.push(record);
            ImageId(self.timeline.images.len() as u32 - 1)
        })
    }

    fn thread_start(&mut self, start: &ThreadStart) {
        if let Some(restated) = &mut self.restated {
            restated.insert(start.instance);
        }
        self.timeline.last = self.timeline.last.max(start.time);
        if self.threads.contains_key(&start.instance) {
            return;
        }
        self.threads.insert(start.instance, self.timeline.threads.len());
        self.timeline.threads.push(Thread {
            instance: start.instance,
            tid: start.tid,
            flags: start.flags,
            start: start.time,
            exit: None,
            name: String::new(),
            start_address: start.start_address,
            stack_base: start.stack_base,
        });
    }

    fn code_add(&mut self, add: &CodeAdd<'_>) {
        self.timeline.last = self.timeline.last.max(add.time);
        if self.code.contains_key(&add.instance) {
            return;
        }
        self.code.insert(add.instance, self.timeline.code.len());
        self.timeline.code.push(CodeRegion::new(add, self.arch));
    }
}

/// Stable short name of a DROPPED reason.
pub fn drop_reason_name(reason: u64) -> &'static str {
    const NAMES: [(DropReason, &str); 7] = [
        (DropReason::BuffersFull, "buffers full"),
        (DropReason::NoContext, "context not readable"),
        (DropReason::Late, "sampler woke late"),
        (DropReason::RingFull, "loader events lost"),
        (DropReason::NoThread, "thread not suspendable"),
        (DropReason::TableFull, "recorder's table full"),
        (DropReason::CodeUnseen, "dynamic code not looked up"),
    ];
    NAMES.iter().find(|(code, _)| *code as u64 == reason).map_or("unknown reason", |(_, name)| name)
}

/// Names and identities of a module's image.
fn image_record(load: &ModuleLoad<'_>) -> ImageRecord {
    let path = text(load.path);
    let mut image = Image {
        name: file_name(&path).to_owned(),
        path,
        debug_id: String::new(),
        code_id: String::new(),
        pdb_name: String::new(),
        code_view: None,
        time_date_stamp: 0,
        size: u32::try_from(load.size).unwrap_or(u32::MAX),
        identity_hash: 0,
    };
    let mut header_hash = ContentHash::NONE;
    for identity in &load.identities {
        match identity {
            Identity::Pe(pe) => {
                image.code_id = format!("{:08X}{:x}", pe.time_date_stamp, pe.size_of_image);
                image.time_date_stamp = pe.time_date_stamp;
                image.size = pe.size_of_image;
            }
            Identity::CodeView(record) => {
                let guid = stk_schema::identity::GuidText(&record.guid).to_string().replace('-', "");
                image.debug_id = format!("{guid}{:x}", record.age);
                image.code_view = Some((record.guid, record.age));
                image.pdb_name = file_name(&text(record.pdb_name)).to_owned();
            }
            Identity::HeaderHash(hash) => header_hash = *hash,
            Identity::ElfBuildId(_) | Identity::Unknown(..) => {}
        }
    }
    if image.name.is_empty() {
        image.name = if image.pdb_name.is_empty() {
            format!("module@{:x}", load.base)
        } else {
            image.pdb_name.clone()
        };
    }
    image.identity_hash = identity_hash(&image, header_hash);
    ImageRecord { image, header_hash, tables: Vec::new(), tables_told: false }
}

/// See [`Image::identity_hash`]. The same image gives the same hash in every trace, so the path, which may differ, counts
/// only where nothing else does.
fn identity_hash(image: &Image, header_hash: ContentHash) -> u64 {
    let mut bytes = Vec::with_capacity(64);
    if let Some((guid, age)) = image.code_view {
        bytes.extend_from_slice(b"codeview");
        bytes.extend_from_slice(&guid);
        bytes.extend_from_slice(&age.to_le_bytes());
    } else if !image.code_id.is_empty() || !header_hash.is_none() {
        bytes.extend_from_slice(b"headers\0");
        bytes.extend_from_slice(image.code_id.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&header_hash.0);
    } else {
        bytes.extend_from_slice(b"path\0\0\0\0");
        bytes.extend_from_slice(image.path.to_lowercase().as_bytes());
        bytes.extend_from_slice(&image.size.to_le_bytes());
    }
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// A runtime is told of again when more is known of it: what is said later counts, what is not said stands.
fn runtime_info(runtimes: &mut Vec<Runtime>, info: &RuntimeInfo<'_>) {
    let (version, note) = (text(info.version), text(info.note));
    match runtimes.iter_mut().find(|runtime| runtime.module == info.module) {
        Some(known) => {
            known.kind = info.kind;
            if !version.is_empty() {
                known.version = version;
            }
            if !note.is_empty() {
                known.note = note;
            }
            if !info.descriptor.is_empty() {
                known.descriptor = info.descriptor.to_vec();
            }
            if !info.pointer_data.is_empty() {
                known.pointer_data = info.pointer_data.to_vec();
            }
        }
        None => runtimes.push(Runtime {
            module: info.module,
            kind: info.kind,
            version,
            note,
            descriptor: info.descriptor.to_vec(),
            pointer_data: info.pointer_data.to_vec(),
        }),
    }
}

/// The last component of a Windows or Unix path.
fn file_name(path: &str) -> &str {
    path.rsplit(['\\', '/']).next().unwrap_or(path)
}

/// WTF-8 as text; unpaired surrogates become U+FFFD.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
