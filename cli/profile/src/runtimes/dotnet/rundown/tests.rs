//! Tests against real streams of CoreCLR 3.1.2 and 10.0.9 (tests/data/dotnet), which another
//! program has read.

use super::*;
use std::io::Read;

const MIXED_31: &[u8] = include_bytes!("../../../../../../tests/data/dotnet/mixed31.nettrace.gz");
const MIXED_10: &[u8] = include_bytes!("../../../../../../tests/data/dotnet/mixed10.nettrace.gz");

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("gzip");
    bytes
}

fn read(stream: &[u8]) -> (Rundown, Outcome) {
    let mut rundown = Rundown::default();
    let outcome = rundown.stream(stream, |_| Times::OfEvents, |time| time.0);
    rundown.map.finish();
    (rundown, outcome)
}

/// Compares all methods of `mixed` and of dynamic code with the list of methods.py.
fn agrees_with_the_oracle(packed: &[u8], expected: &str) {
    let (rundown, outcome) = read(&unpack(packed));
    assert_eq!((outcome.error, outcome.damaged_blocks, outcome.unknown), (None, 0, 0));
    let mut lines = expected.lines();
    let methods = rundown.map.methods();
    let with_maps = methods.iter().filter(|method| method.lines.is_some()).count();
    assert_eq!(lines.next(), Some(&*format!("methods {} with maps {with_maps}", methods.len())));
    let wanted =
        |method: &&Method| method.name.starts_with("mixed!") || method.name.starts_with("dynamicClass!");
    let mut found: Vec<String> = Vec::new();
    for method in methods.iter().filter(wanted) {
        let sums = method.lines.as_ref().map_or("-".to_owned(), |lines| {
            let il: i64 = lines.offsets.iter().map(|(_, il)| i64::from(*il)).sum();
            let native: i64 = lines.offsets.iter().map(|(native, _)| i64::from(*native)).sum();
            format!("{},{il},{native}", lines.offsets.len())
        });
        found.push(format!("{:x} {:x} {:x} {sums} {}", method.base, method.size, method.token, method.name));
    }
    let listed: Vec<String> = lines
        .map(|line| {
            let [place, module, sums, space, name, signature] =
                line.split('\t').collect::<Vec<_>>().try_into().expect("six columns");
            let place: Vec<&str> = place.split(' ').collect();
            let signature = &signature[signature.find('(').expect("a signature")..];
            let space = if space == module { String::new() } else { format!("{space}.") };
            format!("{} {} {} {sums} {module}!{space}{name}{signature}", place[0], place[1], place[2])
        })
        .collect();
    assert_eq!(found.len(), listed.len());
    for (found, listed) in found.iter().zip(&listed) {
        assert_eq!(found, listed);
    }
}

#[test]
fn a_stream_of_coreclr_3_1_gives_the_methods_that_another_reader_finds() {
    agrees_with_the_oracle(MIXED_31, include_str!("../../../../../../tests/data/dotnet/mixed31.methods.txt"));
}

#[test]
fn a_stream_of_coreclr_10_gives_the_methods_that_another_reader_finds() {
    agrees_with_the_oracle(MIXED_10, include_str!("../../../../../../tests/data/dotnet/mixed10.methods.txt"));
}

#[test]
fn stubs_and_methods_and_their_tiers_are_distinguished() {
    let (rundown, _) = read(&unpack(MIXED_10));
    let facts = |name: &str| -> Vec<(MethodKind, &str)> {
        let named = rundown.map.methods().iter().filter(|method| method.name.contains(name));
        named.map(|method| (method.kind, method.tier)).collect()
    };
    // The program's own dynamic method is not a stub.
    assert_eq!(facts("dynamicClass!Made(int32)"), [(MethodKind::Managed, "optimized")]);
    assert!(facts("!IL_STUB_PInvoke").iter().all(|(kind, _)| *kind == MethodKind::Stub));
    let mut tiers: Vec<&str> = facts("mixed!Mixed.Work.Spin(").into_iter().map(|(_, tier)| tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    assert_eq!(tiers, ["tier-0", "tier-0-instrumented", "tier-1", "tier-1-osr"]);
    let mixed = rundown.modules.iter().find(|module| module.stem() == "mixed").expect("the program");
    assert_eq!(mixed.pdb_path, r".\mixed.pdb");
}

#[test]
fn a_stream_that_is_cut_off_anywhere_gives_what_came_before() {
    let whole = unpack(MIXED_31);
    let all = read(&whole).0.map.methods().len();
    let mut before = 0;
    for len in (0..whole.len()).step_by(12_007) {
        let (rundown, outcome) = read(&whole[..len]);
        let methods = rundown.map.methods().len();
        assert!(outcome.error.is_some(), "{len}");
        assert!((before..=all).contains(&methods), "{len}: {methods}");
        before = methods;
    }
    assert!(before > all / 2);
}

#[test]
fn damaged_bytes_do_not_panic() {
    let whole = unpack(MIXED_31);
    for n in 0..60usize {
        let mut bytes = whole[..whole.len().min(20_000 + 700 * n)].to_vec();
        let at = (n * 7919) % bytes.len();
        for byte in bytes.iter_mut().skip(at).step_by(1 + n).take(64) {
            *byte = byte.wrapping_mul(31).wrapping_add(n as u8);
        }
        read(&bytes);
    }
}

/// An event in the form that `events` returns.
fn reported(id: u64, start: u64) -> Event {
    let method = MethodCode {
        id,
        module: 0,
        start,
        size: 16,
        token: 0x600_0001,
        flags: 0,
        type_name: "T".into(),
        name: format!("M{start}"),
        signature: "void ()".into(),
    };
    Event::Method { loaded: false, method: Box::new(method) }
}

fn map(method: u64, after: bool, native: u32) -> Event {
    Event::IlMap(IlMap { method, after, offsets: vec![(native, 0)] })
}

fn maps_of(events: impl IntoIterator<Item = (u64, Event)>) -> Vec<Option<u32>> {
    let mut stream = RundownStream::default();
    for (thread, event) in events {
        stream.event(thread, 0, event);
    }
    let mut rundown = Rundown::default();
    rundown.join(stream);
    let methods = rundown.map.methods().iter();
    methods.map(|method| method.lines.as_ref().map(|lines| lines.offsets[0].0)).collect()
}

#[test]
fn a_rundowns_map_belongs_to_the_next_method_on_the_same_thread() {
    let events =
        [(1, map(7, false, 11)), (2, map(8, false, 22)), (1, reported(7, 100)), (2, reported(8, 200))];
    assert_eq!(maps_of(events), [Some(11), Some(22)]);
}

#[test]
fn precompiled_code_does_not_take_the_map_of_its_methods_next_version() {
    // 7 is sent twice: without a map (ready to run), then with its map before it.
    let events = [(1, reported(7, 100)), (1, map(7, false, 33)), (1, reported(7, 200))];
    assert_eq!(maps_of(events), [None, Some(33)]);
    // While the process runs, the map comes after.
    let events = [(1, reported(7, 100)), (1, map(7, true, 44)), (1, reported(7, 200))];
    assert_eq!(maps_of(events), [Some(44), None]);
    assert_eq!(maps_of([(1, map(9, false, 1)), (1, reported(7, 100))]), [None]);
}
