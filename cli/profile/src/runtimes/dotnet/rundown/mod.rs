//! Makes methods from the events of a runtime's sessions: composes names, assigns IL maps to the
//! methods beside which they were sent, and finds modules by id.

use super::events::{self, Event, IlMap, MethodCode};
use super::nettrace::{self, Outcome};
use crate::runtimes::{CodeLines, ManagedModule, Method, MethodKind, MethodMap, Span};
use crate::trace::Budget;
use std::collections::HashMap;
use std::sync::Arc;
use stk_base::model::shortened;
use stk_schema::Ticks;

/// Module of dynamic methods, under the name that dotnet-trace and PerfView use.
const DYNAMIC: &str = "dynamicClass";

/// Bytes of a method's name that are kept, since every frame in it repeats them.
pub(super) const MAX_NAME: usize = 8 << 10;
/// Limit for a path, in bytes of UTF-8. Windows has no path of more than 32,767 units of UTF-16.
const MAX_PATH: usize = 3 * 32_767;
/// Bytes that it takes to keep an event and what is made of it, beside its texts.
const EVENT: usize = 400;

/// When the events of a stream happened.
#[derive(Clone, Copy, Debug)]
pub(super) enum Times {
    /// The stream's clock is the trace's.
    OfEvents,
    /// It is another one: when the stream was received, by the trace's clock.
    Received(Ticks),
}

/// Collects the contents of streams, in the order in which they were received.
#[derive(Default, Debug)]
pub(super) struct Rundown {
    pub map: MethodMap,
    pub modules: Vec<ManagedModule>,
    /// Memory that may be used for the streams.
    pub budget: Budget,
    /// Events that were left out because the budget was used up.
    pub left_out: u64,
    /// Index in `modules` by the module itself.
    known: HashMap<ManagedModule, u32>,
    /// Index in `modules` by the stem of the module's file, for names that come without a list;
    /// made when it is first asked for.
    stems: Option<HashMap<String, u32>>,
}

impl Rundown {
    /// An empty rundown. What it keeps counts against `budget`.
    pub(super) fn within(budget: Budget) -> Rundown {
        Rundown { budget, ..Rundown::default() }
    }

    /// The module that a method's name begins with, `Module!`. One that no list has is added: a
    /// .NET of the versions whose names are read from memory loads assemblies from `.dll` files.
    pub(super) fn module_of(&mut self, name: &str) -> Option<u32> {
        let (stem, _) = name.split_once('!')?;
        if matches!(stem, "" | "?" | DYNAMIC) {
            return None;
        }
        let modules = &mut self.modules;
        let stems = self.stems.get_or_insert_with(|| {
            let stems = modules.iter().enumerate().rev();
            stems.map(|(at, module)| (module.stem().to_owned(), at as u32)).collect()
        });
        Some(*stems.entry(stem.to_owned()).or_insert_with(|| {
            modules.push(ManagedModule { path: format!("{stem}.dll"), ..ManagedModule::default() });
            modules.len() as u32 - 1
        }))
    }

    /// Takes a stream. `times` decides, by the stream's header, how its clock is to be taken. `ns`
    /// turns times of the trace into nanoseconds since its start.
    pub(super) fn stream(
        &mut self,
        bytes: &[u8],
        times: impl Fn(&nettrace::Header) -> Times,
        ns: impl Fn(Ticks) -> u64,
    ) -> Outcome {
        let header = nettrace::read_header(bytes);
        let times = header.as_ref().map_or(Times::OfEvents, times);
        let mut stream = RundownStream::default();
        let Rundown { budget, left_out, .. } = self;
        let outcome = nettrace::read(bytes, |kind, record| {
            if let Some(event) = events::decode(kind, record.payload) {
                if !budget.take(EVENT + record.payload.len()) {
                    *left_out += 1;
                    return;
                }
                let time = match times {
                    Times::OfEvents => Ticks(record.time),
                    Times::Received(time) => time,
                };
                stream.event(record.thread, ns(time), event);
            }
        });
        self.join(stream);
        outcome
    }

    /// Makes methods from the contents of a stream. A module may come after its methods.
    fn join(&mut self, stream: RundownStream) {
        let mut ids: HashMap<u64, u32> = HashMap::new();
        for (id, module) in stream.modules {
            let next = self.modules.len() as u32;
            let index = *self.known.entry(module.clone()).or_insert(next);
            if index == next {
                self.modules.push(module);
            }
            ids.insert(id, index);
        }
        let stem = |module: &ManagedModule| shortened(module.stem(), MAX_NAME).into_owned();
        let stems: Vec<String> = self.modules.iter().map(stem).collect();
        for change in stream.changes {
            match change {
                CodeChange::Method(reported) => {
                    let module = ids.get(&reported.code.module).copied();
                    let module = module.filter(|_| !reported.code.is_dynamic());
                    self.map.add(method(reported, module, &stems));
                }
                CodeChange::Unload { start, time } => self.map.remove(start, time),
            }
        }
    }
}

/// The contents of one stream.
#[derive(Default)]
struct RundownStream {
    changes: Vec<CodeChange>,
    /// By the runtime's id.
    modules: HashMap<u64, ManagedModule>,
    /// The last event of each thread that concerns a method.
    last: HashMap<u64, LastEvent>,
}

enum CodeChange {
    Method(MethodRecord),
    Unload { start: u64, time: u64 },
}

/// A method from its event.
struct MethodRecord {
    code: Box<MethodCode>,
    lines: Option<Arc<CodeLines>>,
    span: Span,
}

/// The last event of a thread that concerns a method.
enum LastEvent {
    /// A map. Its method may follow.
    Map(IlMap),
    /// A method (index in `changes`). Its map may follow.
    Method(usize),
}

impl RundownStream {
    fn event(&mut self, thread: u64, time: u64, event: Event) {
        match event {
            Event::Method { loaded, method } => {
                let lines = match self.last.remove(&thread) {
                    Some(LastEvent::Map(map)) if map.method == method.id && !map.after => Some(map.offsets),
                    _ => None,
                };
                let lines = lines.map(|offsets| Arc::new(CodeLines { offsets }));
                let span = if loaded { Span::from(time) } else { Span::seen(time) };
                self.last.insert(thread, LastEvent::Method(self.changes.len()));
                self.changes.push(CodeChange::Method(MethodRecord { code: method, lines, span }));
            }
            Event::IlMap(map) => match self.last.remove(&thread) {
                Some(LastEvent::Method(at)) if map.after && self.wants(at, map.method) => {
                    if let CodeChange::Method(reported) = &mut self.changes[at] {
                        reported.lines = Some(Arc::new(CodeLines { offsets: map.offsets }));
                    }
                }
                _ => {
                    self.last.insert(thread, LastEvent::Map(map));
                }
            },
            Event::MethodUnload { start } => self.changes.push(CodeChange::Unload { start, time }),
            Event::Module(module) => {
                let known = self.modules.entry(module.id).or_default();
                if (1..=MAX_PATH).contains(&module.il_path.len()) {
                    known.path = module.il_path;
                }
                if let Some((guid, path)) = module.pdb.filter(|(_, path)| path.len() <= MAX_PATH) {
                    (known.pdb_guid, known.pdb_path) = (guid, path);
                }
            }
            Event::Runtime { .. } => {}
        }
    }

    /// Whether the method at index `at` is `id` and has no map yet.
    fn wants(&self, at: usize, id: u64) -> bool {
        matches!(&self.changes[at], CodeChange::Method(reported) if reported.code.id == id && reported.lines.is_none())
    }
}

/// Makes a method of a module. `stems` holds the names of all modules.
fn method(reported: MethodRecord, module: Option<u32>, stems: &[String]) -> Method {
    let MethodRecord { code, lines, span } = reported;
    let stem = match module.map(|module| stems[module as usize].as_str()) {
        Some(stem) if !stem.is_empty() => stem,
        _ if code.is_dynamic() => DYNAMIC,
        _ => "?",
    };
    let kind = if is_stub(&code) { MethodKind::Stub } else { MethodKind::Managed };
    Method {
        id: code.id,
        base: code.start,
        size: code.size,
        name: shortened(&full_name(stem, &code), MAX_NAME).into(),
        kind,
        tier: code.tier(),
        module,
        token: if code.is_dynamic() { 0 } else { code.token },
        lines: lines.filter(|_| code.extent() == 0),
        span,
    }
}

/// Whether the runtime made the method's IL for itself: marshalling, delegates, instantiation. A
/// dynamic method of the program has the same flag, but a name of its own.
fn is_stub(code: &MethodCode) -> bool {
    code.is_helper() || (code.is_dynamic() && code.name.starts_with("IL_STUB"))
}

/// `Module!Namespace.Type.Method(signature)`. The signature is the event's, from its parenthesis
/// on.
fn full_name(stem: &str, code: &MethodCode) -> String {
    let mut name = format!("{stem}!");
    // Dynamic methods have the name of their module as their type.
    let is_module = code.is_dynamic() && code.type_name == stem;
    if !code.type_name.is_empty() && !is_module {
        name.push_str(&code.type_name);
        name.push('.');
    }
    name.push_str(&code.name);
    if let Some(at) = code.signature.find('(') {
        name.push_str(&code.signature[at..]);
    }
    name
}

#[cfg(test)]
mod tests;
