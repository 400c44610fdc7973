//! Tests on streams written byte by byte according to the format's document: whole, cut off and
//! damaged.

use super::*;

struct Builder(Vec<u8>);

impl Builder {
    fn new() -> Builder {
        let mut builder = Builder(MAGIC.to_vec());
        builder.begin("Trace", 4);
        builder.0.extend([0; 16]);
        builder.0.extend(1000u64.to_le_bytes());
        builder.0.extend(10_000_000u64.to_le_bytes());
        builder.0.extend([8u32, 42, 2, 0].iter().flat_map(|word| word.to_le_bytes()));
        builder.0.push(END);
        builder
    }

    fn begin(&mut self, name: &str, version: u32) {
        self.0.extend([BEGIN, BEGIN, NULL]);
        for word in [version, 0, name.len() as u32] {
            self.0.extend(word.to_le_bytes());
        }
        self.0.extend(name.as_bytes());
        self.0.push(END);
    }

    /// A block with a header of `header` bytes.
    fn block(mut self, name: &str, header: u16, flags: u16, events: &[u8]) -> Builder {
        self.begin(name, 2);
        let len = usize::from(header) + events.len();
        self.0.extend((len as u32).to_le_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(header.to_le_bytes());
        self.0.extend(flags.to_le_bytes());
        self.0.resize(self.0.len() + usize::from(header) - 4, 0);
        self.0.extend(events);
        self.0.push(END);
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.push(NULL);
        self.0
    }
}

fn text(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// The payload of a metadata event.
fn metadata(id: u32, provider: &str, event: u32) -> Vec<u8> {
    let mut payload = id.to_le_bytes().to_vec();
    payload.extend(text(provider));
    payload.extend(event.to_le_bytes());
    payload.extend(text("name"));
    payload.extend(0u64.to_le_bytes());
    payload.extend([1u32, 5, 0].iter().flat_map(|word| word.to_le_bytes()));
    payload
}

/// A compressed event with every header field.
fn full(id: u8, thread: u8, time: u8, payload: &[u8]) -> Vec<u8> {
    let mut event = vec![0xFF, id, 1, 9, 0, thread, 3, time];
    event.extend([7; 32]);
    event.push(payload.len() as u8);
    event.extend(payload);
    event
}

/// Event, thread, time, payload.
type EventRow = (u32, u64, u64, Vec<u8>);

fn collect(stream: &[u8]) -> (Vec<EventRow>, Outcome) {
    let mut events = Vec::new();
    let outcome = read(stream, |kind, record| {
        events.push((kind.id, record.thread, record.time, record.payload.to_vec()));
    });
    (events, outcome)
}

fn described() -> Builder {
    let kind = metadata(5, "Provider", 144);
    let mut event = vec![0xFF, 0, 1, 9, 0, 1, 0, 0];
    event.extend([0; 32]);
    event.push(kind.len() as u8);
    event.extend(kind);
    Builder::new().block("MetadataBlock", 20, 1, &event)
}

#[test]
fn a_header_that_leaves_fields_out_repeats_the_event_before() {
    let mut events = full(5, 11, 100, b"abc");
    // Only time and payload.
    events.extend([0, 5]);
    events.extend(b"def");
    // Another thread, another length, a time of two bytes.
    events.extend([4 | 128, 12, 0x80, 0x01, 1]);
    events.extend(b"g");
    let stream = described().block("EventBlock", 20, 1, &events).end();
    let (events, outcome) = collect(&stream);
    assert_eq!(
        events,
        [(144, 11, 100, b"abc".to_vec()), (144, 11, 105, b"def".to_vec()), (144, 12, 233, b"g".to_vec())]
    );
    assert_eq!((outcome.error, outcome.events, outcome.damaged_blocks), (None, 3, 0));
    let header = Header { clock_start: 1000, clock_frequency: 10_000_000, pointer_size: 8, pid: 42 };
    assert_eq!(outcome.header, Some(header));
    assert_eq!(read_header(&stream), Some(header));
}

#[test]
fn a_blocks_first_event_does_not_repeat_the_block_before() {
    let stream = described()
        .block("EventBlock", 20, 1, &full(5, 11, 100, b"a"))
        .block("EventBlock", 20, 1, &full(5, 12, 100, b"b"))
        .end();
    let times: Vec<u64> = collect(&stream).0.iter().map(|event| event.2).collect();
    assert_eq!(times, [100, 100]);
}

#[test]
fn plain_headers_are_read_too() {
    let mut event = Vec::new();
    for word in [5u32 | 1 << 31, 1] {
        event.extend(word.to_le_bytes());
    }
    event.extend(11u64.to_le_bytes());
    event.extend([0; 16]);
    event.extend(77u64.to_le_bytes());
    event.extend([0; 32]);
    event.extend(3u32.to_le_bytes());
    event.extend(b"abc\0");
    let mut events = (event.len() as u32).to_le_bytes().to_vec();
    events.extend(event);
    let stream = described().block("EventBlock", 20, 0, &events).end();
    assert_eq!(collect(&stream).0, [(144, 11, 77, b"abc".to_vec())]);
}

#[test]
fn unknown_objects_are_skipped_and_unknown_events_counted() {
    let stream = described()
        .block("StackBlock", 20, 1, b"whatever")
        .block("FutureBlock", 20, 1, b"whatever")
        .block("EventBlock", 20, 1, &full(6, 1, 1, b"x"))
        .end();
    let (events, outcome) = collect(&stream);
    assert!(events.is_empty());
    assert_eq!((outcome.unknown, outcome.error), (1, None));
}

#[test]
fn an_event_longer_than_its_block_damages_only_that_block() {
    let mut bad = full(5, 1, 1, b"ok");
    bad.extend([128, 1, 0xFF, 0xFF, 0x7F]);
    let stream = described()
        .block("EventBlock", 20, 1, &bad)
        .block("EventBlock", 20, 1, &full(5, 1, 1, b"next"))
        .end();
    let (events, outcome) = collect(&stream);
    assert_eq!((events.len(), outcome.damaged_blocks, outcome.error), (2, 1, None));
}

#[test]
fn a_stream_cut_off_anywhere_is_reported_as_truncated() {
    let stream = described().block("EventBlock", 20, 1, &full(5, 1, 1, b"x")).end();
    for len in 0..stream.len() {
        let outcome = collect(&stream[..len]).1;
        assert!(matches!(outcome.error, Some(NettraceError::Truncated(_))), "{len}: {outcome:?}");
    }
}

#[test]
fn other_bytes_and_other_versions_are_refused_by_name() {
    assert_eq!(collect(&[b'x'; 64]).1.error, Some(NettraceError::NotNettrace));
    let mut stream = Builder(MAGIC.to_vec());
    stream.begin("Trace", 6);
    stream.0.extend([0; 64]);
    assert_eq!(collect(&stream.0).1.error, Some(NettraceError::Version(6)));
    let mut stream = described().0;
    stream.push(99);
    assert!(matches!(collect(&stream).1.error, Some(NettraceError::Corrupted(_))));
}
