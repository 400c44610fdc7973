//! Checks that a sample's stack is the same in profiles, which name distinct frames over all times,
//! and in dumps, which name frames at one moment.

use crate::support::kept;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use stk_profile::image::{ImageSearch, load_images};
use stk_profile::profile::{BuildOptions, Profile, build, symbolize};
use stk_profile::runtimes::{self, dotnet::explicit::ExplicitFrames};
use stk_profile::stack::{FrameId, NameSources, Names, Placement, Site, StackWalker, name};
use stk_profile::trace::{TraceFile, snapshots};
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};
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
