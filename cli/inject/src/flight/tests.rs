use super::snapshot::{MOST_RESTATED, SnapError};
use super::*;
use std::cell::{Cell, RefCell};
use stk_format::SampleStep;
use stk_schema::event::{Idle, Mark, Metadata, RunState, TableKind};
use stk_schema::{Arch, Ticks};
use stk_tests::synth::TraceBuilder;

/// Ticks per millisecond of built traces.
const MS: u64 = 10_000;

/// A ring in this process, written as the agent writes it.
struct FakeRing {
    data: RefCell<Vec<u8>>,
    begun: Cell<u64>,
    written: Cell<u64>,
    consumed: Cell<u64>,
    /// When this position is copied, the agent begins to write so much more.
    rush: Cell<Option<(u64, u64)>>,
}

impl FakeRing {
    fn new(size: usize) -> FakeRing {
        FakeRing {
            data: RefCell::new(vec![0; size]),
            begun: Cell::new(0),
            written: Cell::new(0),
            consumed: Cell::new(0),
            rush: Cell::new(None),
        }
    }

    fn append(&self, bytes: &[u8]) {
        let mut data = self.data.borrow_mut();
        let (at, size) = (self.written.get(), data.len() as u64);
        for (position, byte) in (at..).zip(bytes) {
            data[(position % size) as usize] = *byte;
        }
        self.begun.set(at + bytes.len() as u64);
        self.written.set(at + bytes.len() as u64);
    }
}

impl Ring for FakeRing {
    fn size(&self) -> u64 {
        self.data.borrow().len() as u64
    }
    fn begun(&self) -> u64 {
        self.begun.get()
    }
    fn written(&self) -> u64 {
        self.written.get()
    }
    fn consume(&self, to: u64) {
        self.consumed.set(to);
    }
    fn copy(&self, at: u64, out: &mut [u8]) {
        let data = self.data.borrow();
        for (n, byte) in (0..).zip(out) {
            *byte = data[(at.wrapping_add(n) % data.len() as u64) as usize];
        }
        if let Some((when, more)) = self.rush.get()
            && when == at
        {
            self.rush.set(None);
            self.begun.set(self.begun.get() + more);
        }
    }
}

/// A recording of ten seconds: a STATE block and a SAMPLES block each second, a thread that comes
/// and goes in each, metadata, a table and a mark at the start.
fn recording() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.meta(0, &Event::Metadata(Metadata { key: b"host.name", value: b"LAB7" }));
    let module = builder.module(1, 0x1400_0000, 0x1000, r"C:\app.exe", Vec::new());
    builder.tables(2, module, &[(TableKind::Headers, 0, b"headers of app.exe")]);
    builder.meta(3, &Event::Mark(Mark { time: Ticks(3), thread: 0, tag: 0, text: b"early" }));
    let main = builder.thread(4, 4711, "main", 0x10_0000);
    for second in 0..10 {
        let at = (1000 * second + 10) * MS;
        let short = builder.thread(at, 5000 + second as u32, "short", 0x20_0000);
        for ms in 0..100 {
            let now = at + ms * MS;
            builder.sample(main, now, &[0x1400_0100, 0x0f_fff0], &[0x1400_0200, now]);
            builder.sample(short, now, &[0x1400_0100, 0x1f_fff0], &[0x1400_0300, now]);
        }
        builder.cut();
        builder.exit(at + 200 * MS, short);
        builder.state();
        // The sampler has not heard of the STATE block yet.
        let (first, block) = (Ticks(at + 300 * MS), 3 * second);
        let idle = Idle { thread: main, ticks: 2, first, last: first, block, state: RunState::Waiting };
        builder.push(&Event::Idle(idle));
        builder.cut();
    }
    builder.finish()
}

/// The header and each block of a trace, as the agent appends them.
fn pieces(file: &[u8]) -> Vec<&[u8]> {
    let trace = Trace::open(file).expect("a trace");
    let mut pieces = vec![&file[..FILE_HEADER_LEN]];
    for block in trace.blocks() {
        let at = block.offset as usize;
        pieces.push(&file[at..at + BLOCK_HEADER_LEN + block.header.stored_len as usize]);
    }
    pieces
}

/// Everything of a recording, read as it comes, in a ring of so many bytes. Returns the triggers.
fn followed(file: &[u8], size: usize) -> (RingReader, FakeRing, usize) {
    let (mut reader, ring, mut triggers) = (RingReader::new(), FakeRing::new(size), 0);
    for piece in pieces(file) {
        ring.append(piece);
        triggers += reader.poll(&ring, &|| false);
    }
    (reader, ring, triggers)
}

struct Written {
    file: Vec<u8>,
    snapshot: Snapshot,
}

fn written(reader: &mut RingReader, ring: &FakeRing, window_ms: u32) -> Written {
    let mut file = Vec::new();
    let snapshot = reader.snapshot(ring, window_ms, [7; 16], &mut file).expect("there is something");
    assert_eq!(snapshot.bytes, file.len() as u64);
    Written { file, snapshot }
}

/// Samples of a trace that must be whole.
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

fn has(events: &[String], text: &str) -> bool {
    events.iter().any(|event| event.contains(text))
}

/// What the format's Debug shows of a text.
fn shown(text: &[u8]) -> String {
    format!("{text:?}")
}

#[test]
fn a_ring_larger_than_the_recording_gives_all_of_it_since_the_first_state() {
    let file = recording();
    let (mut reader, ring, triggers) = followed(&file, 4 << 20);
    assert_eq!(triggers, 1, "the mark");
    assert_eq!(ring.consumed.get(), ring.written.get());
    assert!(reader.ended.is_some());
    let whole = written(&mut reader, &ring, u32::MAX);
    assert_eq!(samples(&whole.file), samples(&file));
    assert_eq!((whole.snapshot.torn, whole.snapshot.left_out), (0, 0));
}

#[test]
fn only_the_window_is_written_and_what_no_state_block_restates_is_kept() {
    let file = recording();
    let (mut reader, ring, _) = followed(&file, 4 << 20);
    let part = written(&mut reader, &ring, 3_000);
    // The last STATE block comes at 9.21 s, so that of 6.21 s is the first: three seconds of
    // samples, of two threads, a hundred each. The builder does not count pushed events as samples.
    let (got, all) = (samples(&part.file), samples(&file));
    assert_eq!((got, all), (600, 2000));
    assert!((2_900..=3_900).contains(&part.snapshot.covered_ms), "{:?}", part.snapshot);
    let events = events(&part.file);
    assert!(has(&events, &shown(b"LAB7")), "metadata");
    assert!(has(&events, &shown(b"headers of app.exe")), "tables");
    assert!(!has(&events, &shown(b"early")), "the mark is older");
    assert!(has(&events, "tid: 4711"), "restated");
    assert!(!has(&events, "tid: 5001") && has(&events, "tid: 5009"), "threads that are gone are not");
    // The trace begins where its first block does.
    let header = *Trace::open(&part.file).expect("a trace").header();
    let old = *Trace::open(&file).expect("a trace").header();
    let later = header.clock_start.0 - old.clock_start.0;
    assert_eq!(header.utc_start - old.utc_start, later * 100);
    assert_eq!((header.uuid[..4].to_vec(), header.uuid[4]), (old.uuid[..4].to_vec(), 7));
}

#[test]
fn what_was_overwritten_is_left_out_and_the_rest_is_whole() {
    let file = recording();
    let len = file.len();
    for size in [len / 2, len / 3, len / 4] {
        let (mut reader, ring, _) = followed(&file, size);
        let part = written(&mut reader, &ring, u32::MAX);
        let got = samples(&part.file);
        assert!(got > 0 && got < 2000, "{got} of a ring of {size}");
        assert!(has(&events(&part.file), &shown(b"headers of app.exe")));
    }
}

#[test]
fn a_block_that_is_overwritten_while_it_is_read_is_dropped_and_counted() {
    let file = recording();
    let (mut reader, ring, _) = followed(&file, file.len() / 2);
    let victims: Vec<Place> = reader.places.iter().copied().collect();
    let first = victims.iter().position(|place| place.header.kind == BlockKind::State).expect("a STATE");
    let place = victims[first + 1..].iter().find(|place| place.header.kind == BlockKind::Samples);
    let place = place.expect("samples");
    // As that block is copied, the agent comes to its last byte.
    ring.rush.set(Some((place.at, place.at + ring.size() + 1 - ring.begun())));
    let part = written(&mut reader, &ring, u32::MAX);
    assert_eq!(part.snapshot.torn, 1);
    samples(&part.file);
    assert!(has(&events(&part.file), &shown(b"flight.torn_blocks")));
}

#[test]
fn a_reader_that_was_left_behind_finds_the_next_block_and_says_what_it_missed() {
    let file = recording();
    let (mut reader, ring) = (RingReader::new(), FakeRing::new(file.len() / 3));
    let pieces = pieces(&file);
    ring.append(pieces[0]);
    reader.poll(&ring, &|| false);
    for piece in &pieces[1..] {
        ring.append(piece);
    }
    reader.poll(&ring, &|| false);
    assert!(reader.missed > 0);
    assert!(reader.ended.is_some());
    let part = written(&mut reader, &ring, u32::MAX);
    assert!(samples(&part.file) > 0);
    assert!(has(&events(&part.file), &shown(b"flight.missed_blocks")));
}

#[test]
fn a_ring_whose_header_was_never_read_gives_nothing() {
    let file = recording();
    let (mut reader, ring) = (RingReader::new(), FakeRing::new(file.len() / 3));
    for piece in pieces(&file) {
        ring.append(piece);
    }
    reader.poll(&ring, &|| false);
    assert_eq!(ring.consumed.get(), ring.written.get(), "the agent need not wait");
    let nothing = reader.snapshot(&ring, 1000, [7; 16], &mut Vec::new());
    assert!(matches!(nothing, Err(SnapError::Nothing)), "{nothing:?}");
}

#[test]
fn a_recording_that_was_cut_off_gives_what_is_whole() {
    let file = recording();
    let pieces = pieces(&file);
    let (mut reader, ring) = (RingReader::new(), FakeRing::new(4 << 20));
    for piece in &pieces[..pieces.len() - 3] {
        ring.append(piece);
    }
    // Killed within the copy: begun, not whole.
    ring.begun.set(ring.begun.get() + 1000);
    reader.poll(&ring, &|| false);
    assert!(reader.ended.is_none());
    assert!(samples(&written(&mut reader, &ring, u32::MAX).file) > 0);
}

#[test]
fn garbage_in_the_ring_does_no_harm() {
    let file = recording();
    let mut pieces: Vec<Vec<u8>> = pieces(&file).into_iter().map(<[u8]>::to_vec).collect();
    let third = pieces[3].len();
    pieces[3][third - 1] ^= 1;
    pieces[5].truncate(40);
    let (mut reader, ring) = (RingReader::new(), FakeRing::new(4 << 20));
    for piece in &pieces {
        ring.append(piece);
        reader.poll(&ring, &|| false);
    }
    let mut file = Vec::new();
    if reader.snapshot(&ring, u32::MAX, [7; 16], &mut file).is_ok() {
        assert!(Trace::open(&file).is_ok());
    }
}

#[test]
fn traces_are_numbered_before_their_ending() {
    assert_eq!(numbered(Path::new("t/a.b.stk"), 3), Path::new("t/a.b-3.stk"));
    assert_eq!(numbered(Path::new("a"), 12), Path::new("a-12"));
}

#[test]
fn positions_that_the_target_makes_up_end_and_keep_little() {
    let file = recording();
    const ALL: u64 = u64::MAX;
    // What the agent's side says next: begun, written.
    for stated in [
        vec![(0, ALL)],
        vec![(ALL, ALL)],
        vec![(0, ALL), (0, ALL - 1), (7, ALL)],
        vec![(ALL, 0), (0, 1 << 40), (1 << 20, 1 << 41), (0, 0), (0, ALL)],
        vec![(5, ALL / 2), (1, ALL / 2 + 1), (ALL, ALL)],
    ] {
        let (mut reader, ring, _) = followed(&file, file.len() + 200);
        let before = reader.places.len();
        for (begun, written) in &stated {
            ring.begun.set(*begun);
            ring.written.set(*written);
            reader.poll(&ring, &|| false);
            assert!(reader.places.len() <= 2 * before, "{stated:?}: {} blocks", reader.places.len());
        }
        let _ = reader.snapshot(&ring, u32::MAX, [7; 16], &mut Vec::new());
    }
}

#[test]
fn positions_that_jump_while_they_are_read_end() {
    let file = recording();
    let (mut reader, ring, _) = followed(&file, file.len() + 200);
    // Whatever is copied next is overwritten at once, and then is not.
    let at = ring.written.get();
    ring.written.set(at + 4096);
    ring.rush.set(Some((at, u64::MAX - ring.begun.get())));
    reader.poll(&ring, &|| false);
    ring.begun.set(0);
    ring.written.set(u64::MAX);
    reader.poll(&ring, &|| false);
    assert!(reader.places.len() < 100, "{}", reader.places.len());
}

#[test]
fn stop_ends_a_reading_before_all_is_read() {
    let file = recording();
    let (mut reader, ring) = (RingReader::new(), FakeRing::new(file.len() + 200));
    pieces(&file).into_iter().for_each(|piece| ring.append(piece));
    let steps = Cell::new(0);
    let stop = || steps.replace(steps.get() + 1) >= 3;
    reader.poll(&ring, &stop);
    assert!(!reader.places.is_empty() && reader.ended.is_none(), "{}", reader.places.len());
    reader.poll(&ring, &|| false);
    assert!(reader.ended.is_some(), "the next call reads on");
}

#[test]
fn blocks_that_unpack_to_much_are_left_out_of_a_trace() {
    let mut builder = TraceBuilder::new(Arch::X64);
    let main = builder.thread(0, 1, "main", 0x10_0000);
    builder.sample(main, MS, &[0x1400_0100, 0x0f_fff0], &[0x1400_0200]);
    builder.cut();
    builder.state();
    let file = builder.finish();
    let (mut reader, ring, _) = followed(&file, file.len() + 200);
    let state = *reader.places.iter().rfind(|place| place.header.kind == BlockKind::State).expect("a STATE");
    // The same block again and again, which says that it unpacks to 16 MiB.
    for _ in 0..200 {
        let mut place = state;
        place.header.raw_len = 16 << 20;
        reader.places.push_back(place);
    }
    let part = written(&mut reader, &ring, u32::MAX);
    assert!(part.snapshot.torn >= 200 - MOST_RESTATED / (16 << 20), "{}", part.snapshot.torn);
}
