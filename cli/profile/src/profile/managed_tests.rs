//! Frames in methods that a language runtime reported.

use super::{FrameKey, Placement, Profile};
use crate::image::{ImageSearch, load_images};
use crate::profile::{BuildOptions, FrameId, FrameKind, NameSource, build, symbolize};
use crate::runtimes::{self, Methods};
use crate::stack::NameSources;
use crate::trace::Trace;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use stk_schema::Ticks;
use stk_schema::event::{Event, MethodName, Nettrace};
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};
use stk_tests::traces::{self, TestImage};

const STACK: u64 = 0x10_0000;
/// Mixed.Work.Down at tier 0 (tests/data/dotnet/mixed31.methods.txt). methods.py prints its map as
/// `(0, -2), (60, 0), (66, 4), (180, 26), (195, -1), (206, -3)`.
const DOWN: u64 = 0x1ae9_9f30;
/// System.Threading.Thread.Sleep, compiled ahead of time (ready to run).
const SLEEP: u64 = 0x644_8a4c_b900;

/// The profile of a trace of one thread that was at `addresses`. The trace holds the real stream of
/// tests/data/dotnet in pieces.
fn profile(addresses: &[u64], more: &[Event<'_>]) -> (Profile, Methods) {
    let mut stream = Vec::new();
    let packed = include_bytes!("../../../../tests/data/dotnet/mixed31.nettrace.gz");
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut stream).unwrap();
    let mut builder = traces::trace();
    // An image that holds ready-to-run code. An export covers the same address.
    let mut library = TestImage::new(r"C:\dotnet\System.Private.CoreLib.dll", 700);
    let number = (0xb900 - traces::FIRST_FUNCTION) / traces::FUNCTION_SIZE;
    library.exports = vec![("NotThisOne", number)];
    library.load(&mut builder, 0, SLEEP - 0xb900);
    let thread = builder.thread(0, 1, "main", STACK);
    for (i, &address) in addresses.iter().enumerate() {
        builder.sample(thread, 1000 * (i as u64 + 1), &[address, STACK - 16], &[0, 0]);
    }
    let time = 1000 * addresses.len() as u64 + 1000;
    for (i, bytes) in stream.chunks(60_000).enumerate() {
        let offset = 60_000 * i as u64;
        builder.meta(time, &Event::Nettrace(Nettrace { session: 3, time: Ticks(time), offset, bytes }));
    }
    more.iter().for_each(|event| builder.meta(time, event));
    let file = builder.finish();
    let trace = Trace::read(&file, "test.stk").unwrap();
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let (mut profile, _) = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/dotnet/mixed");
    let mut store = SymbolStore::new(SymbolPath::default());
    store.add_folder(folder);
    let methods = runtimes::methods(&trace);
    let symbolizer = Symbolizer::new(store, Demangle::default());
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    symbolize(&mut profile, &sources);
    (profile, methods)
}

/// Name, file and line of the frame at an address.
fn frame(profile: &Profile, address: u64) -> (FrameId, String, Option<String>, Option<u32>) {
    let at = |key: &FrameKey| match key.place {
        Placement::Unknown(known) => known == address,
        Placement::Image(_, rva) => SLEEP - 0xb900 + u64::from(rva) == address,
        Placement::Code(..) => false,
    };
    let id = FrameId(profile.frames.keys().iter().position(at).expect("a frame") as u32);
    let name = profile.symbols.names(id)[0];
    let text = |id| profile.symbols.strings.get(id).to_owned();
    (id, text(name.function), name.file.map(text), name.line)
}

#[test]
fn jitted_code_has_the_methods_name_file_and_line() {
    let offsets =
        [(10, Some(85)), (61, Some(85)), (70, Some(86)), (181, Some(87)), (196, None), (210, Some(87))];
    let addresses = offsets.map(|(offset, _)| DOWN + offset);
    let (profile, methods) = profile(&addresses, &[]);
    assert_eq!((methods.streams, methods.problems.len()), (1, 0));
    for (offset, expected) in offsets {
        let (id, name, file, line) = frame(&profile, DOWN + offset);
        assert_eq!(name, "mixed!Mixed.Work.Down(int32)");
        assert_eq!(line, expected, "{offset}");
        assert_eq!(file.as_deref(), expected.map(|_| r".\examples\mixed\mixed.cs"));
        assert_eq!((profile.kind(id), profile.module_name(id)), (FrameKind::Managed, Some("mixed.dll")));
        assert_eq!(profile.symbols.source[id.0 as usize], NameSource::Runtime);
        assert_eq!(profile.symbols.reason[id.0 as usize].is_some(), expected.is_none());
    }
}

#[test]
fn ready_to_run_code_is_named_by_its_method_not_by_the_nearest_export() {
    let (profile, _) = profile(&[SLEEP + 4, SLEEP + 0x14], &[]);
    let (id, name, _, line) = frame(&profile, SLEEP + 4);
    assert_eq!((&*name, line), ("System.Private.CoreLib!System.Threading.Thread.Sleep(int32)", None));
    assert_eq!(profile.kind(id), FrameKind::Managed);
    // Behind the method (of 17 bytes) and within the exported function.
    let (id, name, ..) = frame(&profile, SLEEP + 0x14);
    assert_eq!((&*name, profile.kind(id)), ("NotThisOne", FrameKind::Native));
}

#[test]
fn names_of_the_data_access_library_serve_where_there_is_no_stream() {
    let name = MethodName { time: Ticks(5), base: 0x7000_0000, size: 0x20, source: 1, name: b"App!T.M()" };
    let (profile, _) = profile(&[0x7000_0010, 0x7000_0020], &[Event::MethodName(name)]);
    let (id, name, ..) = frame(&profile, 0x7000_0010);
    assert_eq!(name, "App!T.M()");
    let reason = profile.symbols.reason[id.0 as usize].expect("why there is no line");
    assert!(profile.symbols.strings.get(reason).contains("data access library"));
    let (id, name, ..) = frame(&profile, 0x7000_0020);
    assert_eq!((&*name, profile.kind(id)), ("0x70000020", FrameKind::Unknown));
}

#[test]
fn the_data_access_library_is_not_heard_of_what_the_runtime_lists_itself() {
    let name = MethodName { time: Ticks(5), base: DOWN, size: 0x20, source: 1, name: b"App!T.Other()" };
    let (profile, _) = profile(&[DOWN + 61], &[Event::MethodName(name)]);
    let (_, name, _, line) = frame(&profile, DOWN + 61);
    assert_eq!((&*name, line), ("mixed!Mixed.Work.Down(int32)", Some(85)));
}

fn read_from_memory(base: u64, name: &'static [u8]) -> Event<'static> {
    Event::MethodName(MethodName { time: Ticks(5), base, size: 0x20, source: 4, name })
}

#[test]
fn a_name_read_from_memory_is_the_same_function_as_a_listed_one() {
    let tier1 = read_from_memory(0x7000_0000, b"mixed!Mixed.Work.Down(int32)");
    let other = read_from_memory(0x7000_1000, b"Other!T.M()");
    let (profile, methods) = profile(&[DOWN + 61, 0x7000_0010, 0x7000_1010], &[tier1, other]);
    let (listed, name, ..) = frame(&profile, DOWN + 61);
    let (read, same, ..) = frame(&profile, 0x7000_0010);
    assert_eq!((&*name, &*same), ("mixed!Mixed.Work.Down(int32)", "mixed!Mixed.Work.Down(int32)"));
    assert_eq!(profile.module_name(read), profile.module_name(listed));
    assert_eq!(profile.kind(read), FrameKind::Managed);
    let (other, name, ..) = frame(&profile, 0x7000_1010);
    assert_eq!((&*name, profile.module_name(other)), ("Other!T.M()", Some("Other.dll")));
    assert_eq!(methods.modules.iter().filter(|module| module.stem() == "mixed").count(), 1);
}

#[test]
fn a_name_read_from_memory_wins_over_the_data_access_librarys() {
    let library =
        MethodName { time: Ticks(6), base: 0x7000_0004, size: 1, source: 1, name: b"App.dll!T.M(Int32)" };
    let events = [Event::MethodName(library), read_from_memory(0x7000_0000, b"App!T.M(int32)")];
    let (profile, methods) = profile(&[0x7000_0004], &events);
    assert_eq!(frame(&profile, 0x7000_0004).1, "App!T.M(int32)");
    assert_eq!(methods.map.methods().iter().filter(|method| method.id == 0).count(), 1);
}

#[test]
fn an_address_of_two_methods_at_unknown_times_is_ambiguous() {
    let name = |time, name| MethodName { time, base: 0x7000_0000, size: 0x20, source: 1, name };
    let more = [name(Ticks(5), b"App!One()"), name(Ticks(5000), b"App!Two()")].map(Event::MethodName);
    let (profile, _) = profile(&[0x7000_0010], &more);
    let (id, name, ..) = frame(&profile, 0x7000_0010);
    assert_eq!((&*name, profile.kind(id)), ("0x70000010", FrameKind::Unknown));
    let reason = profile.symbols.reason[id.0 as usize].expect("a reason");
    let reason = profile.symbols.strings.get(reason);
    assert!(reason.contains("App!One()") && reason.contains("App!Two()"), "{reason}");
}

#[test]
fn a_stream_of_which_a_piece_is_lost_names_what_came_before_and_says_so() {
    let lost = Nettrace { session: 9, time: Ticks(1), offset: 500, bytes: b"?" };
    let (profile, methods) = profile(&[DOWN], &[Event::Nettrace(lost)]);
    assert_eq!(frame(&profile, DOWN).1, "mixed!Mixed.Work.Down(int32)");
    assert!(methods.problems.iter().any(|problem| problem.contains("session 9")), "{:?}", methods.problems);
}
