//! Checks that a sample's stack is the same in profiles, which name distinct frames over all times,
//! and in dumps, which name frames at one moment.

use crate::support::{kept, ran_in};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use stk_profile::image::{ImageSearch, load_images};
use stk_profile::profile::{BuildOptions, Profile, build, symbolize};
use stk_profile::runtimes::{self, dotnet::explicit::ExplicitFrames};
use stk_profile::stack::{FrameId, NameSources, Names, Placement, Site, StackWalker, name};
use stk_profile::trace::{TraceFile, snapshots};
use stk_schema::Ticks;
use stk_schema::event::{Event, ModuleFlags, ModuleLoad};
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};
use stk_tests::traces::{self, IMAGE_SIZE, TestImage, in_function};
use stk_unwind::WalkOptions;

/// The names of a frame, innermost first, with files and lines.
type Frame = Vec<(String, Option<String>, Option<u32>)>;

fn frame(symbols: &stk_profile::stack::FrameSymbols, id: FrameId) -> Frame {
    let text = |id| symbols.strings.get(id).to_owned();
    symbols.names(id).iter().map(|name| (text(name.function), name.file.map(text), name.line)).collect()
}

/// The names of a profile's frames.
fn by_place(profile: &Profile) -> HashMap<(Placement, bool), Frame> {
    let ids = (0..).map(FrameId);
    let place =
        |(key, id): (&stk_profile::stack::FrameKey, _)| ((key.place, key.exact), frame(&profile.symbols, id));
    profile.frames.keys().iter().zip(ids).map(place).collect()
}

/// Number of frames in the stacks of all threads at a moment. Checks that each is in the profile.
fn compared(trace: &str, moment_ns: u64) -> usize {
    let file = TraceFile::open(&kept(trace)).unwrap();
    let trace = file.read().unwrap();
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let methods = runtimes::methods(&trace);
    let store = SymbolStore::new(SymbolPath::from(kept("").as_path()));
    let symbolizer = Symbolizer::new(store, Demangle::Short);
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    let (mut profile, _) = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
    symbolize(&mut profile, &sources);
    let known = by_place(&profile);

    let explicit = ExplicitFrames::of(&trace.timeline, trace.header().arch);
    let mut walker = StackWalker::new(&trace, &images, &explicit, WalkOptions::default());
    let mut sites = Vec::new();
    for snapshot in snapshots(&trace, trace.clock.ticks(moment_ns), &|_| true).0 {
        let copy = snapshot.sample.as_ref().unwrap();
        let managed = snapshot.managed.as_ref();
        walker.walk(&copy.sample(), snapshot.sampled, managed, |frame, _| {
            let place = Placement::of(&trace.timeline, frame);
            let seen = Some((frame.address, trace.clock.ns(snapshot.sampled)));
            sites.push(Site { place, exact: frame.trust.is_exact(), seen });
        });
    }
    let Names { symbols, .. } = name(&sources, &sites);
    for (site, id) in sites.iter().zip((0..).map(FrameId)) {
        assert_eq!(Some(&frame(&symbols, id)), known.get(&(site.place, site.exact)), "{site:?}");
    }
    sites.len()
}

#[test]
fn a_dump_has_the_frames_and_the_names_of_the_profile() {
    for moment in [1, 2, 3] {
        assert!(compared("busy.stk", moment * 1_000_000_000) > 10);
    }
}

#[test]
fn a_dump_of_mixed_stacks_has_the_frames_and_the_names_of_the_profile() {
    assert!(compared("mixed.stk", 5_980_000_000) > 20);
}

#[test]
fn work_of_the_recorder_is_one_row_of_its_own() {
    let [app, agent_base, stack_base] = [0x1_4000_0000, 0x1_8000_0000, 0x10_0000];
    let mut builder = traces::trace();
    TestImage::new(r"C:\app\app.exe", 8).load(&mut builder, 0, app);
    let agent = TestImage::new(r"C:\stk\agent.dll", 8);
    let load = ModuleLoad {
        instance: 1000,
        time: Ticks(0),
        base: agent_base,
        size: IMAGE_SIZE.into(),
        flags: ModuleFlags::RECORDER,
        path: b"C:\\stk\\agent.dll",
        identities: Vec::new(),
    };
    builder.meta(0, &Event::ModuleLoad(load));
    agent.with_tables(|tables| builder.tables(0, 1000, tables));
    let thread = builder.thread(0, 1, "", stack_base);
    let in_agent = [in_function(app, 1), in_function(agent_base, 1), in_function(agent_base, 2)];
    let in_system = [in_agent[0], in_agent[1], in_function(traces::NTDLL, 3)];
    let stacks: [&[u64]; 4] = [&[in_function(app, 1)], &in_agent, &in_system, &[in_function(app, 2)]];
    for (time, stack) in (1..).zip(stacks) {
        traces::sample(&mut builder, thread, time * 10_000, stack_base, stack);
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.stk"), builder.finish()).unwrap();
    let line = ["stats", "a.stk", "--json", "--top", "0", "--weight", "samples", "--no-default-symbols"];
    let stats: Value = serde_json::from_str(&ran_in(folder.path(), &line).out).unwrap();
    let rows = stats["traces"][0]["functions_by_total"].as_array().unwrap();
    let samples = |row: &Value| ["self", "total"].map(|of| row[of]["samples"].as_u64().unwrap());
    let found: HashMap<&str, [u64; 2]> =
        rows.iter().map(|row| (row["function"].as_str().unwrap(), samples(row))).collect();
    assert_eq!(found["[recorder's own work]"], [2, 2]);
    assert!(found.keys().all(|name| !name.contains("agent")), "{found:?}");
    let folded =
        ran_in(folder.path(), &["convert", "a.stk", "--to", "folded", "-o", "-", "--weight", "samples"]);
    let own: Vec<&str> = folded.out.lines().filter(|line| line.contains("recorder's")).collect();
    assert!(own.len() == 1 && own[0].contains("app.exe"), "{}", folded.out);
}
