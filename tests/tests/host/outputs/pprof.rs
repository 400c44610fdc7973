//! pprof: the rules of its format, and that its values are the counts of folded stacks.

use super::folded::counts;
use super::profiles::{AWKWARD, Builder, busy};
use super::wire::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use stk_output::formats::{Format, Options};
use stk_profile::profile::{Run, Runs, Weight};

fn bytes(builder: &Builder) -> Vec<u8> {
    std::fs::read(&builder.write(Format::Pprof, &Options::default()).path).expect("output")
}

fn read(builder: &Builder) -> Message {
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*bytes(builder)).read_to_end(&mut unpacked).expect("gzip");
    Message::read(&unpacked)
}

/// By location, its functions, outermost first.
fn locations(profile: &Message) -> HashMap<u64, Vec<String>> {
    let strings = profile.texts(6);
    let name = |function: &Message| strings[function.number(2) as usize].clone();
    let functions: HashMap<u64, String> =
        profile.messages(5).iter().map(|function| (function.number(1), name(function))).collect();
    let of = |location: &Message| {
        let lines = location.messages(4);
        lines.iter().rev().map(|line| functions[&line.number(1)].clone()).collect()
    };
    profile.messages(4).iter().map(|location| (location.number(1), of(location))).collect()
}

/// One of the values of each stack, root first.
fn sums(profile: &Message, value: usize) -> BTreeMap<Vec<String>, u64> {
    let locations = locations(profile);
    let mut sums = BTreeMap::new();
    for sample in profile.messages(2) {
        let stack: Vec<String> =
            sample.packed(1).iter().rev().flat_map(|location| locations[location].clone()).collect();
        let values = sample.packed(2);
        assert_eq!(values.len(), profile.messages(1).len());
        if values[value] > 0 {
            *sums.entry(stack).or_default() += values[value];
        }
    }
    sums
}

#[test]
fn values_are_the_counts_of_the_folded_stacks() {
    let (builder, profile) = (busy(), read(&busy()));
    let strings = profile.texts(6);
    let types: Vec<(String, String)> = (profile.messages(1).iter())
        .map(|kind| (strings[kind.number(1) as usize].clone(), strings[kind.number(2) as usize].clone()))
        .collect();
    let expected = [("samples", "count"), ("cpu", "nanoseconds"), ("wall", "nanoseconds")];
    assert_eq!(types, expected.map(|(kind, unit)| (kind.to_owned(), unit.to_owned())));
    assert_eq!(strings[profile.number(14) as usize], "cpu");
    assert_eq!(sums(&profile, 1), counts(&builder, Weight::Cpu));
    assert_eq!(sums(&profile, 2), counts(&builder, Weight::Wall));
    // A sample is a millisecond there.
    let samples: u64 = sums(&profile, 0).values().sum();
    assert_eq!(samples * 1_000_000, counts(&builder, Weight::Samples).values().sum::<u64>());
}

#[test]
fn a_value_beyond_its_type_is_not_negative() {
    let mut builder = busy();
    let most = |run: &Run| Run { cpu_ns: u64::MAX, weight_ns: u64::MAX, ..*run };
    let mut runs = Runs::default();
    let filled: std::io::Result<()> = builder
        .runs
        .for_each(|batch| batch.runs.iter().try_for_each(|run| runs.push(batch.thread, most(run))));
    filled.expect("runs");
    builder.runs = runs;
    let profile = read(&builder);
    let values: Vec<u64> = profile.messages(2).iter().flat_map(|sample| sample.packed(2)).collect();
    assert!(values.iter().all(|value| i64::try_from(*value).is_ok()), "{values:?}");
    assert!(values.contains(&(i64::MAX as u64)));
}

#[test]
fn every_reference_leads_somewhere_and_every_location_has_a_function() {
    let profile = read(&busy());
    let strings = profile.texts(6);
    assert_eq!(strings[0], "");
    let ids = |field| -> HashSet<u64> {
        let messages = profile.messages(field);
        let ids: HashSet<u64> = messages.iter().map(|message| message.number(1)).collect();
        assert_eq!(ids.len(), messages.len(), "field {field}");
        assert!(!ids.contains(&0), "field {field}");
        ids
    };
    let (mappings, locations, functions) = (ids(3), ids(4), ids(5));
    for location in profile.messages(4) {
        assert!(location.number(2) == 0 || mappings.contains(&location.number(2)));
        assert!(!location.messages(4).is_empty());
        assert!(location.messages(4).iter().all(|line| functions.contains(&line.number(1))));
    }
    for sample in profile.messages(2) {
        assert!(sample.packed(1).iter().all(|location| locations.contains(location)));
    }
    assert!(strings.last().expect("strings").starts_with("stk "), "the source is at the end");
}

#[test]
fn each_module_instance_is_a_mapping_and_holds_the_addresses_of_its_frames() {
    let profile = read(&busy());
    let strings = profile.texts(6);
    let mappings: Vec<(u64, u64, String)> = (profile.messages(3).iter())
        .map(|m| (m.number(2), m.number(3), strings[m.number(5) as usize].clone()))
        .collect();
    let expected = [
        (0x1_4000_0000, 0x1_4002_1000, r"C:\lab\busy.exe"),
        (0x1_8000_0000, 0x1_8002_1000, r"C:\lab\plugin_a.dll"),
        (0x1_8000_0000, 0x1_8002_1000, r"C:\lab\plugin_ä.dll"),
    ];
    assert_eq!(mappings, expected.map(|(start, end, path)| (start, end, path.to_owned())));
    for location in profile.messages(4).iter().filter(|location| location.number(2) != 0) {
        let (start, end, _) = mappings[location.number(2) as usize - 1];
        assert!((start..end).contains(&location.number(3)), "{:#x}", location.number(3));
    }
    // main+0x10 returns to 0x1010: the call ends one byte before. plugin_run has twins.
    let first = &profile.messages(4)[0];
    assert_eq!((first.number(3), first.number(5)), (0x1_4000_100f, 0));
    assert_eq!(profile.messages(4).iter().map(|location| location.number(5)).sum::<u64>(), 1);
}

#[test]
fn samples_hold_their_thread_and_its_state() {
    let profile = read(&busy());
    let strings = profile.texts(6);
    let mut labels: Vec<(String, String, u64)> = Vec::new();
    for sample in profile.messages(2) {
        let labels_of: Vec<(String, String)> = (sample.messages(3).iter())
            .map(|l| (strings[l.number(1) as usize].clone(), strings[l.number(2) as usize].clone()))
            .collect();
        let [(thread_key, thread), (state_key, state)] = &labels_of[..] else { panic!("{labels_of:?}") };
        assert_eq!((thread_key.as_str(), state_key.as_str()), ("thread", "state"));
        labels.push((thread.clone(), state.clone(), sample.packed(2)[0]));
    }
    let waits = r#"größe "q" \ \u{1}\u{9}\u{a}\u{7f}\u{2028} 😀 (8)"#;
    assert!(waits.starts_with(&*stk_schema::text::printable(AWKWARD)));
    assert!(labels.contains(&(waits.to_owned(), "waiting (sleep)".to_owned(), 3)), "{labels:?}");
    assert!(labels.contains(&("thread 4".to_owned(), "unknown".to_owned(), 1)), "{labels:?}");
}

#[test]
fn the_file_is_gzip_without_a_time_whatever_its_name() {
    let folder = tempfile::tempdir().expect("folder");
    let mut files = vec![bytes(&busy())];
    for name in ["a.pprof", "a.pprof.gz"] {
        let path = folder.path().join(name);
        assert_eq!(Format::from_path(&path), Some(Format::Pprof), "{name}");
        let to = stk_output::formats::Destination::File(path.clone());
        let mut writer = stk_output::formats::create(Format::Pprof, to, &Options::default()).expect("create");
        let b = busy();
        stk_output::formats::write(&mut *writer, &b.profile, &b.runs).expect("write");
        files.push(std::fs::read(path).expect("output"));
    }
    assert!(files.iter().all(|file| *file == files[0]));
    // RFC 1952, 2.3: the magic number, then MTIME in bytes 4 to 7.
    assert_eq!(files[0][..2], [0x1f, 0x8b]);
    assert_eq!(files[0][4..8], [0; 4]);
}
