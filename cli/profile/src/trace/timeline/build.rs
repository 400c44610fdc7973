//! Builds the timeline from events, in the order in which they are stored.

use super::image::image_record;
use super::text::text;
use super::{Mark, Module, ModuleChange, RecordingEnd, Runtime, Thread, Timeline};
use crate::trace::budget::Budget;
use crate::trace::code::{CodeIndex, CodeRegion, end_overlapped};
use std::collections::{BTreeMap, HashMap, HashSet};
use stk_base::model::{Image, ImageId};
use stk_format::blob::{content_hash, instances_hash};
use stk_schema::Ticks;
use stk_schema::event::kind::is_reserved;
use stk_schema::event::{
    CodeAdd, Event, ImageTable, MethodBody, MethodNameSource, ModuleFlags, ModuleLoad, ModuleState,
    RuntimeInfo, ThreadStart,
};
use stk_schema::identity::{ContentHash, Identity, PeIdentity};
use stk_unwind::Arch;

/// Builds a [`Timeline`] from the events of META and STATE blocks, taken in stored order.
#[derive(Debug)]
pub struct TimelineBuilder {
    timeline: Timeline,
    images: HashMap<ImageKey, ImageId>,
    /// Header hashes by the image's other identities; `None` where several hashes share these.
    header_hashes: HashMap<ImageIdentity, Option<ContentHash>>,
    /// Tables that are already in the timeline.
    tables: HashSet<(ImageId, ImageTable)>,
    /// Hashes of the facts that are already in the timeline.
    facts: HashSet<ContentHash>,
    /// Runtimes by their module's instance.
    runtimes: HashMap<u64, usize>,
    modules: HashMap<u64, usize>,
    threads: HashMap<u64, usize>,
    code: HashMap<u64, usize>,
    /// Methods, and the regions that hold a part of each.
    methods: Vec<(usize, CodeRegion)>,
    /// Architecture of the process.
    arch: Arch,
    /// Live modules by base.
    live: BTreeMap<u64, usize>,
    /// Instances that the current STATE block has restated.
    restated: Option<HashSet<u64>>,
    /// Dynamic code that no event has ended.
    live_code: HashSet<usize>,
    /// Threads that have not ended.
    live_threads: HashSet<usize>,
    /// Memory that may be used for the timeline.
    budget: Budget,
    /// Events that were left out because the budget was used up.
    left_out: u64,
}

/// Path, PDB identity and PE identity.
type ImageIdentity = (String, String, PeIdentity);

/// Bytes that it costs to keep a record, beside its texts.
const RECORD: usize = 256;

/// What identifies an image within one trace: everything that is known of it.
#[derive(PartialEq, Eq, Hash, Debug)]
struct ImageKey {
    path: String,
    debug_id: String,
    pe: Option<PeIdentity>,
    header_hash: ContentHash,
    /// Used only if nothing else distinguishes images.
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
            header_hashes: HashMap::new(),
            tables: HashSet::new(),
            facts: HashSet::new(),
            runtimes: HashMap::new(),
            modules: HashMap::new(),
            threads: HashMap::new(),
            code: HashMap::new(),
            methods: Vec::new(),
            arch,
            live: BTreeMap::new(),
            restated: None,
            live_code: HashSet::new(),
            live_threads: HashSet::new(),
            budget: Budget::unlimited(),
            left_out: 0,
        }
    }

    /// Counts what is kept against a budget. Events are left out once it is used up.
    pub fn within(mut self, budget: Budget) -> TimelineBuilder {
        self.budget = budget;
        self
    }

    /// Events that were left out for lack of memory.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whether there is memory to keep a record with `text` bytes of text.
    fn keeps(&mut self, text: usize) -> bool {
        // The users of the timeline copy texts once more.
        let kept = self.budget.take(RECORD + 2 * text);
        self.left_out += u64::from(!kept);
        kept
    }

    /// A loss, or a STATE block that follows one: what is not restated from here on may be gone.
    pub fn begin_restating(&mut self) {
        self.restated = Some(HashSet::new());
    }

    /// Whether these modules are all that live, after a loss: those that are known, or those of
    /// them that were restated since. The others have then ended.
    pub fn is_confirmed_by(&mut self, state: &ModuleState) -> bool {
        let stated = (state.modules, state.modules_hash);
        let modules = &self.timeline.modules;
        let ids = || self.live.values().map(|&i| modules[i].instance);
        if instances_hash(ids()) == stated {
            self.restated = None;
            return true;
        }
        let is_stated =
            |restated: &HashSet<u64>| instances_hash(ids().filter(|id| restated.contains(id))) == stated;
        match self.restated.take() {
            Some(restated) if is_stated(&restated) => {
                self.end_instances(&restated, state.time);
                true
            }
            restated => {
                self.restated = restated;
                false
            }
        }
    }

    /// What was not restated since [`begin_restating`](Self::begin_restating) has ended, at `time`
    /// at the latest.
    pub fn end_state(&mut self, time: Ticks) {
        let Some(restated) = self.restated.take() else { return };
        self.end_instances(&restated, time);
        let code = &mut self.timeline.code;
        self.live_code.retain(|&i| {
            let stays = restated.contains(&code[i].instance);
            if !stays {
                code[i].remove = Some(time.max(code[i].add));
            }
            stays
        });
    }

    /// Modules and threads that were not restated have ended.
    fn end_instances(&mut self, restated: &HashSet<u64>, time: Ticks) {
        let modules = &mut self.timeline.modules;
        self.live.retain(|_, &mut i| {
            let stays = restated.contains(&modules[i].instance);
            if !stays {
                modules[i].unload = Some(time.max(modules[i].load));
            }
            stays
        });
        let threads = &mut self.timeline.threads;
        self.live_threads.retain(|&i| {
            let stays = restated.contains(&threads[i].instance);
            if !stays {
                threads[i].exit = Some(time.max(threads[i].start));
            }
            stays
        });
    }

    pub fn add(&mut self, event: &Event<'_>) {
        match event {
            Event::ModuleLoad(load) => self.module_load(load),
            Event::ModuleUnload { instance, time } => {
                self.timeline.last = self.timeline.last.max(*time);
                if let Some(&i) = self.modules.get(instance) {
                    let module = &mut self.timeline.modules[i];
                    module.unload = Some((*time).max(module.load));
                    if self.live.get(&module.base) == Some(&i) {
                        self.live.remove(&module.base);
                    }
                }
            }
            Event::ModuleTables(tables) => {
                if let Some(&i) = self.modules.get(&tables.instance) {
                    let image = self.timeline.modules[i].image;
                    self.timeline.images[image.0 as usize].tables_reported = true;
                    self.add_tables(image, &tables.tables);
                }
            }
            Event::ThreadStart(start) => self.thread_start(start),
            Event::ThreadExit { instance, time } => {
                self.timeline.last = self.timeline.last.max(*time);
                if let Some(&i) = self.threads.get(instance) {
                    let thread = &mut self.timeline.threads[i];
                    thread.exit = Some((*time).max(thread.start));
                    self.live_threads.remove(&i);
                }
            }
            Event::ThreadName { instance, time, name } => {
                // STATE blocks restate names.
                if let Some(&i) = self.threads.get(instance)
                    && self.timeline.threads[i].name != text(name)
                    && self.keeps(name.len())
                {
                    let thread = &mut self.timeline.threads[i];
                    let before = std::mem::replace(&mut thread.name, text(name));
                    // A thread has its first name from its beginning on.
                    if !before.is_empty() {
                        let last = thread.earlier_names.last().map_or(Ticks::ZERO, |(until, _)| *until);
                        thread.earlier_names.push(((*time).max(last), before));
                    }
                }
            }
            Event::CodeAdd(add) => self.code_add(add),
            Event::CodeRemove { instance, time } => {
                if let Some(&i) = self.code.get(instance) {
                    self.timeline.code[i].remove = Some(*time);
                    self.live_code.remove(&i);
                }
            }
            Event::MethodBody(body) => self.method_body(body),
            Event::RuntimeInfo(info) => self.runtime_info(info),
            Event::Nettrace(_) => self.timeline.has_runtime_events = true,
            Event::MethodName(name) => {
                self.timeline.has_runtime_events = true;
                if name.source == MethodNameSource::Contract as u64 {
                    self.timeline.names_read += 1;
                } else {
                    self.timeline.reported_names += 1;
                }
            }
            Event::FrameMethod(_) => self.timeline.has_runtime_events = true,
            Event::Mark(mark) => {
                self.timeline.last = self.timeline.last.max(mark.time);
                if self.keeps(mark.text.len()) {
                    let text = text(mark.text);
                    let mark = Mark { time: mark.time, thread: mark.thread, tag: mark.tag, text };
                    self.timeline.marks.push(mark);
                }
            }
            Event::RateChange(change) if self.keeps(0) => {
                self.timeline.rates.push((change.time, change.rate_mhz));
            }
            Event::Redaction(redaction) if self.keeps(redaction.rule.len()) => {
                let words = self.timeline.redacted.entry(text(redaction.rule)).or_default();
                *words = words.saturating_add(redaction.words);
            }
            Event::Clock(clock) if self.keeps(0) => self.timeline.clocks.push((clock.time, clock.utc)),
            Event::Dropped(dropped) if self.keeps(0) => {
                self.timeline.dropped.push((dropped.time, dropped.reason, dropped.count));
            }
            Event::Metadata(fact) if fact.key != stk_format::HEADER_KEY => {
                // A STATE block restates facts. A fact whose value changed is a new fact.
                let hash = content_hash(&[&fact.key.len().to_le_bytes(), fact.key, fact.value].concat());
                if !self.facts.contains(&hash) && self.keeps(fact.key.len() + fact.value.len()) {
                    self.facts.insert(hash);
                    self.timeline.metadata.push((text(fact.key), text(fact.value)));
                }
            }
            Event::Exception(exception) => {
                self.timeline.last = self.timeline.last.max(exception.time);
                if self.keeps(0) {
                    self.timeline.exceptions.push(*exception);
                }
            }
            Event::End(end) => {
                self.timeline.last = self.timeline.last.max(end.time);
                self.timeline.end = Some(RecordingEnd {
                    time: end.time,
                    reason: end.reason,
                    samples: end.samples,
                    dropped: end.dropped,
                    detail: text(end.detail),
                });
            }
            Event::Unknown { kind, .. } if !is_reserved(*kind) => self.timeline.unknown_events += 1,
            _ => {}
        }
    }

    pub fn finish(mut self) -> Timeline {
        let timeline = &mut self.timeline;
        timeline.modules.sort_by_key(|module| (module.load, module.instance));
        end_overlapped(&mut timeline.modules);
        timeline.threads.sort_by_key(|thread| thread.instance);
        // A method lives as long as the code that it was found by.
        for (known, mut method) in self.methods {
            method.remove = timeline.code[known].remove;
            timeline.code.push(method);
        }
        timeline.code_index = CodeIndex::new(&mut timeline.code);
        for (i, module) in timeline.modules.iter().enumerate() {
            if module.unload.is_some_and(|unload| unload <= module.load) {
                continue;
            }
            timeline.changes.push(ModuleChange { time: module.load, loads: true, module: i as u32 });
            if let Some(time) = module.unload {
                timeline.changes.push(ModuleChange { time, loads: false, module: i as u32 });
            }
        }
        // At equal times, unloads sort before loads.
        timeline.changes.sort_by_key(|change| (change.time, change.loads, change.module));
        self.timeline
    }

    fn module_load(&mut self, load: &ModuleLoad<'_>) {
        if let Some(restated) = &mut self.restated {
            restated.insert(load.instance);
        }
        self.timeline.last = self.timeline.last.max(load.time);
        if load.size == 0 {
            return;
        }
        if let Some(&known) = self.modules.get(&load.instance) {
            if load.flags.contains(ModuleFlags::FROM_FILE) {
                self.identified_later(known, load);
            }
            return;
        }
        // The path is stored in the image, in its name, and in two keys.
        if !self.keeps(2 * load.path.len() + RECORD) {
            return;
        }
        let image = self.image(load);
        let time = if load.flags.contains(ModuleFlags::AT_START) { Ticks::ZERO } else { load.time };
        let i = self.timeline.modules.len();
        // Modules that overlap this one are gone, whether or not the trace has their unloads.
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

    /// A supplement gives identities to a module that had none. Identities that a module already
    /// has stay.
    fn identified_later(&mut self, module: usize, load: &ModuleLoad<'_>) {
        let record = &self.timeline.images[self.timeline.modules[module].image.0 as usize];
        if record.image.is_identified() || !record.header_hash.is_none() || !record.tables.is_empty() {
            return;
        }
        let image = self.image(load);
        let module = &mut self.timeline.modules[module];
        module.image = image;
        module.flags |= ModuleFlags::FROM_FILE;
    }

    /// The image of a module, new or known.
    fn image(&mut self, load: &ModuleLoad<'_>) -> ImageId {
        let record = image_record(load);
        let pe = load.identities.iter().find_map(|identity| match identity {
            Identity::Pe(pe) => Some(*pe),
            _ => None,
        });
        let known = pe.is_some() || !record.image.debug_id.is_empty() || !record.header_hash.is_none();
        // For a module that was unloaded too soon there is only the loader's notification, which
        // has no header hash. If its path and other identities are those of one known image, it is
        // that image.
        let header_hash = match pe {
            Some(pe) if record.header_hash.is_none() && (pe.time_date_stamp != 0 || pe.check_sum != 0) => {
                self.hash_of_the_same(&record.image, pe).unwrap_or(record.header_hash)
            }
            _ => record.header_hash,
        };
        let key = ImageKey {
            path: record.image.path.to_lowercase(),
            debug_id: record.image.debug_id.clone(),
            pe,
            header_hash,
            instance: if known { 0 } else { load.instance },
        };
        if let Some(&known) = self.images.get(&key) {
            return known;
        }
        let image = ImageId(self.timeline.images.len() as u32);
        if let Some(pe) = key.pe.filter(|_| !key.header_hash.is_none()) {
            let identified = (key.path.clone(), key.debug_id.clone(), pe);
            let hash = self.header_hashes.entry(identified).or_insert(Some(key.header_hash));
            if *hash != Some(key.header_hash) {
                *hash = None;
            }
        }
        self.images.insert(key, image);
        self.timeline.images.push(record);
        image
    }

    /// Adds the tables that the image does not have yet.
    fn add_tables(&mut self, image: ImageId, tables: &[ImageTable]) {
        for table in tables {
            if !self.tables.contains(&(image, *table)) && self.keeps(0) {
                self.tables.insert((image, *table));
                self.timeline.images[image.0 as usize].tables.push(*table);
            }
        }
    }

    /// The header hash of an image of this path and these identities, if just one such image is
    /// known.
    fn hash_of_the_same(&self, image: &Image, pe: PeIdentity) -> Option<ContentHash> {
        let identified = (image.path.to_lowercase(), image.debug_id.clone(), pe);
        *self.header_hashes.get(&identified)?
    }

    fn thread_start(&mut self, start: &ThreadStart) {
        if let Some(restated) = &mut self.restated {
            restated.insert(start.instance);
        }
        self.timeline.last = self.timeline.last.max(start.time);
        if self.threads.contains_key(&start.instance) || !self.keeps(0) {
            return;
        }
        self.live_threads.insert(self.timeline.threads.len());
        self.threads.insert(start.instance, self.timeline.threads.len());
        self.timeline.threads.push(Thread {
            instance: start.instance,
            tid: start.tid,
            flags: start.flags,
            created_utc_ns: start.created,
            start: start.time,
            exit: None,
            name: String::new(),
            earlier_names: Vec::new(),
            start_address: start.start_address,
            stack_base: start.stack_base,
        });
    }

    fn code_add(&mut self, add: &CodeAdd<'_>) {
        if let Some(restated) = &mut self.restated {
            restated.insert(add.instance);
        }
        self.timeline.last = self.timeline.last.max(add.time);
        let bytes = add.function.len() + add.unwind.len() + add.code.len();
        if self.code.contains_key(&add.instance) || !self.keeps(RECORD + bytes) {
            return;
        }
        self.code.insert(add.instance, self.timeline.code.len());
        self.live_code.insert(self.timeline.code.len());
        self.timeline.code.push(CodeRegion::new(add, self.arch));
    }

    fn method_body(&mut self, body: &MethodBody<'_>) {
        self.timeline.last = self.timeline.last.max(body.time);
        let Some(&known) = self.code.get(&body.instance) else { return };
        if !self.keeps(RECORD + body.code.len() + body.gc_info.len()) {
            return;
        }
        let method = CodeRegion::method(&self.timeline.code[known], body, self.arch);
        self.methods.extend(method.map(|method| (known, method)));
    }

    /// A later RUNTIME_INFO replaces the fields that it states. The others keep their values.
    fn runtime_info(&mut self, info: &RuntimeInfo<'_>) {
        let bytes = info.version.len() + info.note.len() + info.descriptor.len() + info.pointer_data.len();
        if !self.keeps(bytes) {
            return;
        }
        let runtimes = &mut self.timeline.runtimes;
        let i = *self.runtimes.entry(info.module).or_insert_with(|| {
            runtimes.push(Runtime {
                module: info.module,
                kind: info.kind,
                version: String::new(),
                note: String::new(),
                descriptor: Vec::new(),
                pointer_data: Vec::new(),
            });
            runtimes.len() - 1
        });
        let runtime = &mut runtimes[i];
        runtime.kind = info.kind;
        if !info.version.is_empty() {
            runtime.version = text(info.version);
        }
        if !info.note.is_empty() {
            runtime.note = text(info.note);
        }
        if !info.descriptor.is_empty() {
            runtime.descriptor = info.descriptor.to_vec();
        }
        if !info.pointer_data.is_empty() {
            runtime.pointer_data = info.pointer_data.to_vec();
        }
    }
}
