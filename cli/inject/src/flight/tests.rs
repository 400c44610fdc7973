use super::*;
use std::io::Cursor;
use stk_format::{SampleStep, Trace};
use stk_schema::Arch;
use stk_schema::event::{Idle, Mark, RateChange, RunState, TableKind};
use stk_tests::synth::{Parts, TraceBuilder, damage};

/// Ticks per millisecond of built traces.
const MS: u64 = 10_000;
const SECONDS: u64 = 10;

/// A recording of ten seconds: a STATE block and a SAMPLES block each second, a thread that comes
/// and goes in each, metadata, a table and a mark at the start.
fn recording() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.meta(0, &Event::Metadata(Metadata { key: b"host.name", value: b"LAB7" }));
    let module = builder.module(1, 0x1400_0000, 0x1000, r"C:\app.exe", Vec::new());
    builder.tables(2, module, &[(TableKind::Headers, 0, b"headers of app.exe")]);
    builder.meta(3, &mark(3, "early"));
    let main = builder.thread(4, 4711, "main", 0x10_0000);
    for second in 0..SECONDS {
        let at = (1000 * second + 10) * MS;
        let short = builder.thread(at, 5000 + second as u32, "short", 0x20_0000);
        for ms in 0..100 {
            let now = at + ms * MS;
            builder.sample(main, now, &[0x1400_0100, 0x0f_fff0], &[0x1400_0200, now]);
            builder.sample(short, now, &[0x1400_0100, 0x1f_fff0], &[0x1400_0300, now]);
        }
        builder.cut();
        builder.exit(at + 200 * MS, short);
        let (first, block) = (Ticks(at + 250 * MS), 3 * second);
        let idle = Idle { thread: main, ticks: 2, first, last: first, block, state: RunState::Waiting };
        builder.push(&Event::Idle(idle));
        builder.cut();
        if second + 1 < SECONDS {
            builder.state();
        }
    }
    builder.finish()
}

fn mark(time: u64, text: &str) -> Event<'_> {
    Event::Mark(Mark { time: Ticks(time), thread: 0, tag: 0, text: text.as_bytes() })
}

fn fact<'a>(key: &'a str, value: &'a str) -> Event<'a> {
    Event::Metadata(Metadata { key: key.as_bytes(), value: value.as_bytes() })
}

/// The recording in a file from each STATE block on, as a recorder that changes its file writes
/// them: a mark that each change falls together with is in both files.
fn ring() -> Vec<Parts> {
    let whole = Parts::take_apart(&recording()).expect("a trace");
    let blob =
        whole.blocks.iter().find(|block| block.header.kind == BlockKind::Blob).expect("a table").clone();
    let mut files: Vec<Parts> = Vec::new();
    for block in &whole.blocks {
        if block.header.kind != BlockKind::State {
            files.last_mut().expect("a STATE block first").blocks.push(block.clone());
            continue;
        }
        let number = files.len();
        let at = block.header.first;
        if let Some(before) = files.last_mut() {
            before.block(BlockKind::Meta, at + Ticks(1)).push(&mark(at.0 + 1, "both"));
            let end = End { time: at, reason: 1, samples: 0, dropped: 0, detail: b"it continues" };
            before.block(BlockKind::End, at).push(&Event::End(end));
        }
        let uuid = [number as u8 + 1; 16];
        let mut file = Parts::new(FileHeader { uuid, clock_start: at, ..whole.header });
        file.blocks.push(block.clone());
        if number != 0 {
            let pause = RateChange { time: at, rate_mhz: 0 };
            let state = file.blocks.last_mut().expect("STATE");
            state.push(&fact("host.name", "LAB7")).push(&fact("rotation.continued", "1"));
            state.push(&Event::RateChange(pause));
            file.block(BlockKind::Meta, at + Ticks(1)).push(&mark(at.0 + 1, "both"));
            let turned = (at.0 + 2).to_string();
            file.block(BlockKind::Meta, at + Ticks(3)).push(&fact("rotation.turned", &turned));
            file.blocks.push(blob.clone());
        }
        files.push(file);
    }
    for file in &mut files {
        file.renumber();
    }
    files
}

type File = Cursor<Vec<u8>>;

fn parts(files: &[Vec<u8>]) -> Vec<RingPart<File>> {
    let parts = files.iter().enumerate();
    parts.map(|(at, file)| RingPart { file: Cursor::new(file.clone()), continued: at != 0 }).collect()
}

fn files() -> Vec<Vec<u8>> {
    ring().iter().map(Parts::to_file).collect()
}

fn plan(window_ms: u32) -> JoinPlan {
    JoinPlan { window_ms, uuid: *b"uuid of the join", most_bytes: 1 << 30 }
}

struct Written {
    file: Vec<u8>,
    snapshot: Snapshot,
}

#[track_caller]
fn joined(parts: &mut [RingPart<File>], plan: &JoinPlan) -> Written {
    let mut file = Vec::new();
    let snapshot = join(parts, plan, &mut file).expect("there is something");
    assert_eq!(snapshot.bytes, file.len() as u64);
    Written { file, snapshot }
}

/// Samples of a trace that must be whole.
#[track_caller]
fn samples(file: &[u8]) -> u64 {
    let trace = Trace::open(file).expect("a trace");
    assert_eq!(trace.damage(), [], "nothing is lost in it");
    assert!(trace.is_complete() && trace.is_indexed());
    assert!(trace.blocks().iter().all(|block| block.metadata_known));
    assert_eq!(trace.blocks()[0].header.kind, BlockKind::State);
    assert_eq!(trace.verify(&mut Scratch::new()), []);
    let mut scratch = Scratch::new();
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).expect("sound");
        while let Some(step) = samples.next().expect("sound") {
            if let SampleStep::Idle(idle) = step {
                assert!(trace.samples_block(idle.block).is_some(), "no block {} is cited", idle.block);
            }
        }
    }
    trace.blocks().iter().map(|block| u64::from(block.header.samples)).sum()
}

fn events(file: &[u8]) -> Vec<String> {
    let trace = Trace::open(file).expect("a trace");
    let mut scratch = Scratch::new();
    let mut found = Vec::new();
    for block in trace.blocks() {
        for event in trace.events(block, &mut scratch).expect("sound") {
            found.push(format!("{:?}", event.expect("sound")));
        }
    }
    found
}

/// How often a text is in the events.
fn times(events: &[String], text: &[u8]) -> usize {
    events.iter().filter(|event| event.contains(&format!("{text:?}"))).count()
}

#[test]
fn joined_files_hold_what_the_uncut_recording_holds_once() {
    let (whole, mut parts) = (recording(), parts(&files()));
    assert_eq!(parts.len() as u64, SECONDS);
    let joined = joined(&mut parts, &plan(u32::MAX));
    assert_eq!(samples(&joined.file), samples(&whole));
    assert_eq!(joined.snapshot.torn, 0);
    let (all, expected) = (events(&joined.file), events(&whole));
    for text in [&b"LAB7"[..], b"headers of app.exe", b"early"] {
        assert_eq!((times(&all, text), times(&expected, text)), (1, 1), "{text:?}");
    }
    assert_eq!(times(&all, b"both") as u64, SECONDS - 1, "one at each change");
    assert!(!all.iter().any(|event| event.contains("RateChange")), "nothing was paused");
    for key in [&b"rotation.continued"[..], b"rotation.turned"] {
        assert_eq!(times(&all, key), 0, "{key:?}");
    }
    let trace = Trace::open(&joined.file).expect("a trace");
    assert_eq!(&trace.header().uuid, b"uuid of the join");
    let whole = Trace::open(&whole).expect("a trace");
    assert_eq!(trace.header().clock_start, whole.header().clock_start);
}

#[test]
fn a_trace_begins_with_the_last_file_that_is_old_enough() {
    let ring = ring();
    let mut parts = parts(&files());
    let joined = joined(&mut parts, &plan(2_500));
    // Something is recorded up to 9.26 s, and files begin at 0.26 s of a second: that of 6.26 s is
    // the last one at 6.76 s.
    let trace = Trace::open(&joined.file).expect("a trace");
    assert_eq!(trace.header().clock_start, ring[7].header.clock_start);
    assert_eq!(samples(&joined.file), samples(&recording()) * 3 / SECONDS);
    assert!((2_500..3_500).contains(&joined.snapshot.covered_ms), "{:?}", joined.snapshot);
    let events = events(&joined.file);
    assert_eq!(times(&events, b"LAB7"), 1, "restated");
    assert_eq!(times(&events, b"headers of app.exe"), 1, "restated");
    assert_eq!(times(&events, b"early"), 0, "the mark is older");
    let has = |text: &str| events.iter().any(|event| event.contains(text));
    assert!(has("tid: 4711") && has("tid: 5009") && !has("tid: 5001"));
}

#[test]
fn nothing_before_a_gap_is_in_the_trace() {
    let mut parts = parts(&files());
    parts[7].continued = false;
    let joined = joined(&mut parts, &plan(u32::MAX));
    assert_eq!(samples(&joined.file), samples(&recording()) * 3 / SECONDS);
}

#[test]
fn a_damaged_block_is_left_out_and_counted() {
    let mut files = files();
    let ring = ring();
    let damaged = ring[4].blocks.iter().find(|block| block.header.kind == BlockKind::Samples);
    damage::corrupt(&mut files[4], damaged.expect("samples").header.seq);
    let mut parts = parts(&files);
    let mut out = Vec::new();
    let snapshot = join(&mut parts, &plan(u32::MAX), &mut out).expect("the others are there");
    assert_eq!(snapshot.torn, 1);
    let trace = Trace::open(&out).expect("a trace");
    assert_eq!((trace.damage(), trace.is_complete()), (&[][..], true));
    let held: u64 = trace.blocks().iter().map(|block| u64::from(block.header.samples)).sum();
    assert_eq!(held, samples(&recording()) - 200);
    assert_eq!(times(&events(&out), b"flight.torn_blocks"), 1);
}

#[test]
fn a_file_that_is_still_written_gives_its_whole_blocks() {
    let mut files = files();
    let newest = ring().pop().expect("files");
    let last = newest.blocks.iter().rfind(|block| block.header.kind == BlockKind::Samples).expect("samples");
    damage::cut_within(files.last_mut().expect("files"), last.header.seq);
    let joined = joined(&mut parts(&files), &plan(u32::MAX));
    assert_eq!(joined.snapshot.torn, 0);
    assert_eq!(samples(&joined.file), samples(&recording()) - u64::from(last.header.samples));
    assert_eq!(times(&events(&joined.file), b"written from the ring; the recording had no end yet"), 1);
}

#[test]
fn a_file_that_has_only_begun_is_none_of_the_trace() {
    let mut files = files();
    let header = ring()[3].header;
    files.push(FileHeader { uuid: [99; 16], ..header }.encode().to_vec());
    files.push(Vec::new());
    let joined = joined(&mut parts(&files), &plan(u32::MAX));
    assert_eq!(samples(&joined.file), samples(&recording()));
    for nothing in [&files[files.len() - 2..], &[]] {
        let made = join(&mut parts(nothing), &plan(1000), &mut Vec::new());
        assert!(matches!(made, Err(SnapError::Nothing)), "{made:?}");
    }
}

#[test]
fn lost_samples_of_all_files_are_counted() {
    let mut ring = ring();
    for (number, file) in ring.iter_mut().enumerate() {
        // Each file counts from its own start.
        file.blocks.iter_mut().skip(1).for_each(|block| block.header.dropped = number as u64);
    }
    let files: Vec<Vec<u8>> = ring.iter().map(Parts::to_file).collect();
    let joined = joined(&mut parts(&files), &plan(u32::MAX));
    samples(&joined.file);
    let trace = Trace::open(&joined.file).expect("a trace");
    let dropped = trace.blocks().iter().map(|block| block.header.dropped);
    assert_eq!(dropped.max(), Some((0..SECONDS).sum()));
}

#[test]
fn no_more_than_the_limit_is_read_of_a_file() {
    let files = files();
    let most = files.iter().map(Vec::len).max().expect("files") as u64;
    let mut long = files.clone();
    // The program can make a file long.
    long[2].resize(1 << 24, 0x55);
    let limited = JoinPlan { most_bytes: most, ..plan(u32::MAX) };
    let joined = joined(&mut parts(&long), &limited);
    assert_eq!(samples(&joined.file), samples(&recording()));
}

#[test]
fn garbage_in_a_file_does_no_harm() {
    for file in [1, 5, 9] {
        for at in (FILE_HEADER_LEN..1500).step_by(97) {
            let mut files = files();
            let len = files[file].len();
            files[file][at.min(len - 1)] ^= 0x81;
            let mut out = Vec::new();
            if join(&mut parts(&files), &plan(u32::MAX), &mut out).is_ok() {
                let trace = Trace::open(&out).expect("a trace");
                assert_eq!(trace.damage(), [], "byte {at} of file {file}");
            }
        }
    }
}

#[test]
fn the_ring_covers_its_window_with_the_files_that_stay() {
    for window_ms in [1_000, 1_500, 30_000, 3_600_000] {
        let rotation = super::ring(window_ms);
        assert!(rotation.is_on() && rotation.every_ms >= 1_000);
        // Without the one that is being written.
        let whole = u64::from(rotation.every_ms) * u64::from(rotation.keep - 1);
        assert!(whole >= u64::from(window_ms) + u64::from(rotation.every_ms), "{window_ms}");
    }
}

#[test]
fn traces_are_numbered_before_their_ending() {
    assert_eq!(numbered(Path::new("t/a.b.stk"), 3), Path::new("t/a.b-3.stk"));
    assert_eq!(numbered(Path::new("a"), 12), Path::new("a-12"));
}
