//! .NET: where the methods of a process lay and their names, from what its runtime reported to the
//! recorder.
//!
//! Takes a trace with NETTRACE events (the streams of EventPipe sessions, byte for byte as the
//! runtime sent them) and METHOD_NAME events (read by the recorder from the runtime's memory, or
//! from the data access library, where there is no EventPipe). Returns [`Methods`]. [`Lines`]
//! converts addresses in them to source lines, by the IL maps of the same streams and the modules'
//! portable PDBs.
//!
//! * [`nettrace`] reads a stream into events, [`events`] their payloads, [`rundown`] joins them to
//!   methods.
//! * [`lines`] finds the portable PDB of a module and the line in it.
//! * [`readable`] writes names that a compiler makes as in the source.
//! * [`contract`] walks the runtime's explicit Frames over captured bytes. [`explicit`] applies it
//!   to a trace's samples.

pub mod contract;
mod events;
pub mod explicit;
mod lines;
pub(crate) mod nettrace;
pub mod readable;
mod rundown;

pub use lines::{Line, LineError, Lines, ModulePdbError, SourceError};

use super::{FrameMethods, Method, MethodKind, Methods, Span};
use crate::trace::{NamedCode, Nettrace, RuntimeEvents, Timeline, Trace, beyond_memory, runtime_events};
use rundown::{MAX_NAME, Rundown, Times};
use std::collections::{BTreeSet, HashSet};
use stk_base::model::{ImageId, shortened};
use stk_schema::Ticks;
use stk_schema::event::MethodNameSource;

/// The methods that the .NET runtimes of a trace reported.
pub fn methods(trace: &Trace<'_>) -> Methods {
    let runtimes = runtime_images(&trace.timeline);
    if !trace.timeline.has_runtime_events {
        return Methods { runtimes, ..Methods::default() };
    }
    let RuntimeEvents { sessions, names, frame_methods, mut problems } = runtime_events(trace);
    let mut of_frames = FrameMethods::default();
    for method in frame_methods {
        let name = shortened(&method.name, MAX_NAME);
        of_frames.add(method.address, method.slot, trace.clock.ns(method.time), &name);
    }
    let clock_frequency = trace.header().clock_frequency;
    let mut rundown = Rundown::within(trace.budget.clone());
    for Nettrace { session, received, bytes } in &sessions {
        let times = |header: &nettrace::Header| {
            // Both are the system's performance counter then.
            if header.clock_frequency == clock_frequency && Ticks(header.clock_start) <= *received {
                Times::OfEvents
            } else {
                Times::Received(*received)
            }
        };
        let outcome = rundown.stream(bytes, times, |time| trace.clock.ns(time));
        problems.extend(outcome_problems(*session, &outcome));
    }
    // Where the runtime's own list has a method, its name wins: it also has the method's lines and
    // tier. The names that the recorder read from memory come next, since they have the same form.
    // The library writes the same name in another form.
    let (read, other): (Vec<NamedCode>, Vec<NamedCode>) =
        names.into_iter().partition(|name| name.source == MethodNameSource::Contract as u64);
    for names in [read, other] {
        rundown.map.finish();
        let unlisted = |name: &NamedCode| !rundown.map.any_within(name.base, name.size.into());
        let names: Vec<NamedCode> = names.into_iter().filter(unlisted).collect();
        for name in names {
            let module = (name.source == MethodNameSource::Contract as u64)
                .then(|| rundown.module_of(&name.name))
                .flatten();
            rundown.map.add(named(&name, module, trace.clock.ns(name.time)));
        }
    }
    rundown.map.finish();
    let Rundown { map, modules, left_out, budget, .. } = rundown;
    if left_out > 0 {
        problems.push(beyond_memory(left_out, "events of the .NET runtime", &budget));
    }
    Methods { map, of_frames, modules, problems, streams: sessions.len(), runtimes }
}

/// The method of a METHOD_NAME event.
fn named(code: &NamedCode, module: Option<u32>, time: u64) -> Method {
    let stub = ["IL_STUB", "CLRStub["].iter().any(|mark| code.name.contains(mark));
    Method {
        id: 0,
        base: code.base,
        size: code.size,
        kind: if stub { MethodKind::Stub } else { MethodKind::Managed },
        name: shortened(&code.name, MAX_NAME).into(),
        tier: "",
        module,
        token: 0,
        lines: None,
        span: Span::seen(time),
    }
}

/// File names of .NET's own binaries: runtimes, compilers, collectors, hosts. In lower case.
const RUNTIME_FILES: [&str; 11] = [
    "coreclr.dll",
    "clrjit.dll",
    "clrgc.dll",
    "clrgcexp.dll",
    "hostfxr.dll",
    "hostpolicy.dll",
    "clr.dll",
    "mscorwks.dll",
    "mscorjit.dll",
    "mscoree.dll",
    "mscoreei.dll",
];

/// The images whose native code belongs to the runtime: those with a known name, and those that the
/// recorder found (a single-file host can have any name).
fn runtime_images(timeline: &Timeline) -> BTreeSet<ImageId> {
    let named = timeline.images.iter().enumerate().filter_map(|(i, record)| {
        let name = record.image.name.to_lowercase();
        RUNTIME_FILES.contains(&name.as_str()).then_some(ImageId(i as u32))
    });
    let holders: HashSet<u64> = timeline.runtimes.iter().map(|runtime| runtime.module).collect();
    let found = timeline.modules.iter().filter(|module| holders.contains(&module.instance));
    let found = found.map(|module| module.image);
    named.chain(found).collect()
}

/// The methods in one stream, with times on the stream's own clock. For tools, and to test the
/// reader on any bytes.
pub fn stream_methods(stream: &[u8]) -> (Methods, nettrace::Outcome) {
    let mut rundown = Rundown::default();
    let outcome = rundown.stream(stream, |_| Times::OfEvents, |time| time.0);
    rundown.map.finish();
    let Rundown { map, modules, .. } = rundown;
    (Methods { map, modules, streams: 1, ..Methods::default() }, outcome)
}

/// The errors in a stream, one sentence each.
fn outcome_problems(session: u64, outcome: &nettrace::Outcome) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(error) = outcome.error {
        problems.push(format!(
            "the .NET runtime's list of methods (session {session}) {error}: methods may have no names"
        ));
    }
    if outcome.damaged_blocks > 0 {
        problems.push(format!(
            "the .NET runtime's list of methods (session {session}) has {} damaged blocks: methods may have no names",
            outcome.damaged_blocks
        ));
    }
    problems
}
