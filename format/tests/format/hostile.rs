//! Files from an attacker: the checksums are right and the contents wrong.

use proptest::prelude::*;
use stk_format::{BlockError, BlockHeader, BlockKind, FileHeader, ImageBudget, SampleStep, Scratch, Trace};
use stk_schema::event::kind;
use stk_schema::{Arch, Os, Ticks, limits};
use stk_tests::synth::damage::forged;
use stk_tests::synth::{Parts, StoredEvent};

fn header() -> FileHeader {
    FileHeader::new(Arch::X64, Os::Windows, [3; 16], 1000)
}

/// A trace with one SAMPLES block of these event bytes; see [`forged`].
fn trace_of(raw: &[u8], stored: Option<&[u8]>, forge: impl Fn(&mut BlockHeader)) -> Vec<u8> {
    forged(&header(), raw, stored, forge)
}

/// The error that reading the only block of `file` gives.
fn error_of(file: &[u8]) -> BlockError {
    let trace = Trace::open(file).unwrap();
    trace.verify_block(&trace.blocks()[0], &mut Scratch::new()).unwrap_err()
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn event(kind: u64, body: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.iter().for_each(|&value| varint(&mut bytes, value));
    let mut out = Vec::new();
    varint(&mut out, kind);
    varint(&mut out, bytes.len() as u64);
    out.extend_from_slice(&bytes);
    out
}

/// SLOT for slot 0, then a SAMPLE whose fields after the flags are `rest`.
fn sample(flags: u64, rest: &[u64]) -> Vec<u8> {
    let mut raw = event(kind::SLOT, &[0, 5, 1]);
    raw.extend(event(kind::SAMPLE, &[&[0, 0, flags], rest].concat()));
    raw
}

const SAME: u64 = 1;
const KEYFRAME: u64 = 2;
const TRUNCATED: u64 = 0x40;
const CODE: u64 = 0x10;
const EXTRA: u64 = 0x400;
/// Zigzag of a depth.
const fn depth(words: u64) -> u64 {
    words * 2
}

#[test]
fn samples_that_contradict_themselves_are_refused() {
    let base = 0x7000_0000u64;
    let max = limits::MAX_SAMPLE_WORDS as u64;
    let cases: &[(&str, Vec<u8>)] = &[
        ("no slot", event(kind::SAMPLE, &[0, 0, KEYFRAME, 0, base, 0, 0])),
        ("slots out of order", event(kind::SLOT, &[1, 5, 1])),
        ("unknown register set", event(kind::SLOT, &[0, 5, 99])),
        ("no keyframe", sample(0, &[0, 0])),
        ("same without a sample", sample(SAME, &[1, 0])),
        ("register beyond the set", sample(KEYFRAME, &[1 << 17, base, 0, 0])),
        ("registers missing", sample(KEYFRAME, &[3])),
        ("runs too long", sample(KEYFRAME, &[0, base, 0, depth(4), 0, 5])),
        ("runs overflow", sample(KEYFRAME, &[0, base, 0, depth(4), 0, u64::MAX])),
        ("runs overflow in sum", sample(KEYFRAME, &[0, base, 0, depth(4), 3, u64::MAX - 1])),
        ("empty run", sample(KEYFRAME, &[0, base, 0, depth(4), 0, 0])),
        ("runs too short", sample(KEYFRAME, &[0, base, 0, depth(4), 0, 3])),
        ("changed words missing", sample(KEYFRAME, &[0, base, 0, depth(4), 4, 0])),
        ("deeper than the anchor", sample(KEYFRAME, &[0, 16, 0, depth(4), 0, 4])),
        ("negative depth", sample(KEYFRAME, &[0, base, 0, 3])),
        ("depth over the limit", sample(KEYFRAME, &[0, 1 << 40, 0, depth(2 * max + 1), 0, 1])),
        ("words over the limit", sample(KEYFRAME, &[0, 1 << 40, 0, depth(max + 1), 0, max + 1])),
        ("more words than the depth", sample(KEYFRAME | TRUNCATED, &[0, base, 0, depth(4), 5, 0, 5])),
        ("anchor overflow", sample(KEYFRAME | TRUNCATED, &[0, u64::MAX, 1, depth(0), 0])),
        ("anchor below the base, not truncated", sample(KEYFRAME, &[0, base, 1, depth(1), 0, 1])),
        ("code over the limit", sample(KEYFRAME | CODE, &[0, base, 0, depth(0), 300])),
        ("code missing", sample(KEYFRAME | CODE, &[0, base, 0, depth(0), 30])),
        ("ranges over the limit", sample(KEYFRAME | EXTRA, &[0, base, 0, depth(0), 65])),
        ("event beyond the block", vec![8, 99, 0]),
        ("event length overflow", [&[8][..], &[0xff; 9], &[1]].concat()),
        ("endless varint", vec![0xff; 40]),
    ];
    for (name, raw) in cases {
        let error = error_of(&trace_of(raw, None, |_| ()));
        assert!(matches!(error, BlockError::Event { seq: 0, at } if at <= raw.len()), "{name}: {error:?}");
    }
}

#[test]
fn a_block_stands_for_no_more_stack_than_the_limit() {
    // 8 MiB samples that hold only zero words: 30 bytes each.
    let words = limits::MAX_SAMPLE_WORDS as u64;
    let mut raw = sample(KEYFRAME, &[0, 1 << 40, 0, depth(words), 0, words]);
    for _ in 0..8 {
        raw.extend(event(kind::SAMPLE, &[0, 0, 0, 0, 0, 0, words]));
    }
    assert!(matches!(error_of(&trace_of(&raw, None, |_| ())), BlockError::Limit { what: "stack bytes", .. }));
    assert!(matches!(
        error_of(&trace_of(&raw, None, |b| b.stack_bytes = (64 << 20) + 1)),
        BlockError::Limit { what: "stack bytes", .. }
    ));
}

#[test]
fn images_of_all_slots_and_workers_stay_within_the_budget() {
    // 100 slots, each 16 MiB deep, of which one word is captured.
    let depth_words = 2 * limits::MAX_SAMPLE_WORDS as u64;
    let mut raw = Vec::new();
    for slot in 0..100 {
        raw.extend(event(kind::SLOT, &[slot, slot, 1]));
        raw.extend(event(
            kind::SAMPLE,
            &[slot, 0, KEYFRAME | TRUNCATED, 0, 1 << 40, 0, depth(depth_words), 1, 0, 1],
        ));
    }
    let file = trace_of(&raw, None, |_| ());
    assert!(matches!(error_of(&file), BlockError::Budget { seq: 0 }));

    let budget = ImageBudget::new(40 << 20);
    let (mut one, mut two) = (Scratch::with_budget(&budget), Scratch::with_budget(&budget));
    let trace = Trace::open(&file).unwrap();
    let count = |scratch: &mut Scratch| {
        let mut samples = trace.samples(&trace.blocks()[0], scratch).unwrap();
        let mut count = 0;
        while let Ok(Some(_)) = samples.next() {
            count += 1;
        }
        count
    };
    assert_eq!(count(&mut one), 2);
    // The first worker still holds its images.
    assert_eq!(count(&mut two), 0);
    drop(one);
    assert_eq!(count(&mut two), 2);
}

#[test]
fn many_tiny_keyframes_of_deep_images_are_refused() {
    let deep = 2 * limits::MAX_SAMPLE_WORDS as u64;
    let mut raw = event(kind::SLOT, &[0, 5, 1]);
    // One changed word each, so that a page of the image has to be zeroed for the next one.
    let word = [1, 0, 0, 0, 0, 0, 0, 0];
    let one = [&[0, 0, KEYFRAME | TRUNCATED, 0, 1 << 40, 0, depth(deep), 1, 1, 0][..], &word].concat();
    for _ in 0..100_000 {
        raw.extend(event(kind::SAMPLE, &one));
    }
    assert!(matches!(error_of(&trace_of(&raw, None, |_| ())), BlockError::Limit { what: "keyframes", .. }));
}

#[test]
fn blocks_beyond_the_expansion_limit_are_refused_and_the_others_read() {
    let mut parts = Parts::new(header());
    let exit = StoredEvent::of_numbers(kind::THREAD_EXIT, &[1, 0]);
    parts.block(BlockKind::Meta, Ticks(0)).events.push(exit.clone());
    let bomb = parts.block(BlockKind::Meta, Ticks(0));
    bomb.events = vec![exit.clone(); 4_000_000];
    bomb.times = 100;
    parts.renumber();
    let file = parts.to_file();
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let limit = |error| matches!(error, BlockError::Limit { what: "events for its stored bytes", .. });
    let refused = trace.verify(&mut scratch);
    assert!(refused.len() > 80 && refused.len() < 100, "{}", refused.len());
    assert!(refused.into_iter().all(limit));
    trace.verify_block(&trace.blocks()[0], &mut scratch).unwrap();
}

#[test]
fn more_slots_than_the_limit_are_refused() {
    let mut raw = Vec::new();
    for slot in 0..=limits::MAX_SLOTS as u64 {
        raw.extend(event(kind::SLOT, &[slot, slot, 1]));
    }
    assert!(matches!(error_of(&trace_of(&raw, None, |_| ())), BlockError::Event { .. }));
}

#[test]
fn wrong_lengths_are_refused() {
    let raw = sample(KEYFRAME, &[0, 0x1000, 0, depth(1), 0, 1]);
    let with = |forge: fn(&mut BlockHeader)| error_of(&trace_of(&raw, None, forge));
    assert!(matches!(with(|b| b.raw_len += 1), BlockError::Payload { .. }));
    assert!(matches!(with(|b| b.raw_len = u32::MAX), BlockError::Limit { what: "event bytes", .. }));
    assert!(matches!(with(|b| b.payload_hash ^= 1), BlockError::Hash { .. }));
    assert!(matches!(with(|b| b.codec = 2), BlockError::Codec { codec: 2, .. }));
    // With a stored length beyond the file there is no block and no damage, because the file ends
    // within the block.
    let file = trace_of(&raw, None, |b| b.stored_len += 1);
    let trace = Trace::open(&file).unwrap();
    assert_eq!((trace.blocks().len(), trace.is_cut()), (0, true));
}

#[test]
fn zstd_frames_that_the_format_does_not_allow_are_refused() {
    let raw = sample(KEYFRAME, &[0, 0x1000, 0, depth(1), 0, 1]);
    let mut out = vec![0; 1000];
    let len = zstd_safe::compress(&mut out[..], &raw, 1).unwrap();
    let frame = out[..len].to_vec();
    let of = |stored: &[u8]| error_of(&trace_of(&raw, Some(stored), |_| ()));
    let two = [&frame[..], &frame].concat();
    assert!(matches!(of(&two), BlockError::Payload { .. }), "a second frame");
    assert!(matches!(of(&frame[..len - 1]), BlockError::Payload { .. }), "a frame cut short");
    assert!(matches!(of(b""), BlockError::Payload { .. }), "nothing");
    assert!(matches!(of(&raw), BlockError::Payload { .. }), "stored as it is");
    // RFC 8878, 3.1.1.1: no single segment, window descriptor 14 << 3 = 16 MiB, content size of 4
    // bytes.
    let mut wide = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80, 14 << 3];
    wide.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    // One raw block, the last: 3 bytes of header (size << 3 | 1), then the bytes.
    wide.extend_from_slice(&((raw.len() as u32) << 3 | 1).to_le_bytes()[..3]);
    wide.extend_from_slice(&raw);
    assert!(matches!(of(&wide), BlockError::Limit { what: "zstd window", .. }));
    wide[5] = 10 << 3;
    let file = trace_of(&raw, Some(&wide), |_| ());
    let trace = Trace::open(&file).unwrap();
    trace.verify_block(&trace.blocks()[0], &mut Scratch::new()).unwrap();
}

#[test]
fn a_stored_length_over_the_limit_is_no_block() {
    let mut file = trace_of(&[], Some(&vec![0; limits::MAX_BLOCK_STORED + 1]), |b| b.raw_len = 1);
    assert_eq!(Trace::open(&file).unwrap().blocks().len(), 0);
    assert_eq!(Trace::open(&file).unwrap().damage().len(), 1);
    file.truncate(200);
    assert_eq!(Trace::open(&file).unwrap().blocks().len(), 0);
}

#[test]
fn blocks_that_repeat_or_go_back_are_not_used() {
    let raw = sample(KEYFRAME, &[0, 0x1000, 0, depth(1), 0, 1]);
    let one = trace_of(&raw, None, |b| b.seq = 4);
    let mut file = one.clone();
    file.extend_from_slice(&one[128..]);
    let trace = Trace::open(&file).unwrap();
    assert_eq!(trace.blocks().len(), 1);
    assert_eq!(trace.damage().len(), 2, "blocks 0 to 3 are missing, and 4 repeats: {:?}", trace.damage());
}

#[test]
fn the_last_sequence_number_of_all_does_not_overflow() {
    let raw = sample(KEYFRAME, &[0, 0x1000, 0, depth(1), 0, 1]);
    let file = trace_of(&raw, None, |b| {
        b.seq = u64::MAX;
        b.ordinal = u64::MAX;
        b.first = Ticks(u64::MAX);
    });
    assert_eq!(Trace::open(&file).unwrap().blocks().len(), 1);
}

/// Words of a stack over several pages.
const RUN_WORDS: usize = 2500;

/// Runs of a sample: changed words, of which there is at least one, and words that are the same. A
/// word at least is left behind them.
fn runs() -> impl Strategy<Value = Vec<(usize, usize)>> {
    let changed = prop_oneof![Just(1usize), 1..9usize, 1..600usize];
    proptest::collection::vec((changed, prop_oneof![0..4usize, 0..600usize]), 0..8).prop_map(|runs| {
        let fits = |end: &mut usize, (changed, same): (usize, usize)| {
            *end += changed + same;
            (*end < RUN_WORDS).then_some((changed, same))
        };
        runs.into_iter().scan(0, fits).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_event_bytes_are_read_or_refused(raw in proptest::collection::vec(any::<u8>(), 0..400)) {
        let file = trace_of(&raw, None, |_| ());
        let trace = Trace::open(&file).unwrap();
        let _ = trace.verify_block(&trace.blocks()[0], &mut Scratch::new());
    }

    #[test]
    fn any_samples_are_read_or_refused(
        body in proptest::collection::vec(prop_oneof![0..4u64, 0..200u64, any::<u64>()], 0..30),
        flags in 0..0x800u64,
    ) {
        let mut raw = sample(KEYFRAME, &[0, 0x10000, 0, depth(8), 0, 8]);
        raw.extend(event(kind::SAMPLE, &[&[0, 2, flags], &body[..]].concat()));
        let file = trace_of(&raw, None, |_| ());
        let trace = Trace::open(&file).unwrap();
        let _ = trace.verify_block(&trace.blocks()[0], &mut Scratch::new());
    }

    #[test]
    fn runs_of_words_are_applied_one_by_one_or_refused_if_cut(
        samples in proptest::collection::vec((any::<bool>(), runs()), 1..6),
        cut in 0..3usize,
    ) {
        // What the samples must hold, by the specification: each run replaces its words.
        let (mut expected, mut image): (Vec<Vec<u64>>, _) = (Vec::new(), vec![0; RUN_WORDS]);
        let mut raw = event(kind::SLOT, &[0, 5, 1]);
        for (at, (keyframe, runs)) in samples.iter().enumerate() {
            let keyframe = *keyframe || at == 0;
            let mut body = Vec::new();
            let anchored: &[u64] = &[0, 1 << 40, 0, depth(RUN_WORDS as u64)];
            let fields = if keyframe { [&[0, 0, KEYFRAME], anchored].concat() } else { vec![0, 0, 0, 0, 0] };
            fields.iter().for_each(|&field| varint(&mut body, field));
            if keyframe {
                image = vec![0; RUN_WORDS];
            }
            let (mut word, mut words) = (0, Vec::new());
            let mut put = |changed: usize, same: usize| {
                varint(&mut body, changed as u64);
                varint(&mut body, same as u64);
                for place in &mut image[word..word + changed] {
                    *place = (at as u64 + 1) << 32 | words.len() as u64;
                    words.extend_from_slice(&place.to_le_bytes());
                }
                word += changed + same;
                word
            };
            let end = runs.iter().fold(0, |_, &(changed, same)| put(changed, same));
            put(0, RUN_WORDS - end);
            body.extend_from_slice(&words);
            if at + 1 == samples.len() && !words.is_empty() {
                body.truncate(body.len() - cut);
            }
            varint(&mut raw, kind::SAMPLE);
            varint(&mut raw, body.len() as u64);
            raw.extend_from_slice(&body);
            expected.push(image.clone());
        }
        let is_cut = cut != 0 && samples.last().is_some_and(|(_, runs)| !runs.is_empty());
        let file = trace_of(&raw, None, |_| ());
        let trace = Trace::open(&file).unwrap();
        let mut scratch = Scratch::new();
        let mut steps = trace.samples(&trace.blocks()[0], &mut scratch).unwrap();
        for (at, expected) in expected.iter().enumerate() {
            let step = steps.next();
            if is_cut && at + 1 == samples.len() {
                let is_refused = matches!(step, Err(BlockError::Event { .. }));
                prop_assert!(is_refused);
                break;
            }
            let Ok(Some(SampleStep::Sample(sample))) = step else { panic!("{step:?}") };
            let words = sample.stack.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            prop_assert!(words.eq(expected.iter().copied()), "sample {}", at);
        }
    }

    #[test]
    fn any_file_opens_or_is_refused(tail in proptest::collection::vec(any::<u8>(), 0..600), damaged in any::<bool>()) {
        let mut file = if damaged { Vec::new() } else { header().encode().to_vec() };
        file.extend_from_slice(&tail);
        let _ = Trace::open(&file);
    }
}
