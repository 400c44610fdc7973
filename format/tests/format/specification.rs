//! Checks the bytes that SPEC.md specifies.

use stk_format::{
    BLOCK_HEADER_LEN, BlockBuffer, BlockKind, CpuUnit, FILE_HEADER_LEN, FileHeader, HeaderError, RawSample,
    SampleEncoder, SampleStep, Scratch, Sealer, TAIL_LEN, ThreadImage, Trace, sealed_bound,
};
use stk_schema::event::{Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::TraceBuilder;

/// The example of SPEC.md, section 6, typed from the document.
#[rustfmt::skip]
const EXAMPLE: &[u8] = &[
    0x07, 0x03, 0x00, 0x05, 0x01,
    0x08, 0x32, 0x00, 0x08, 0x02, 0x03,
    0x22, 0x11, 0, 0, 0, 0, 0, 0,
    0xe8, 0x1f, 0, 0, 0, 0, 0, 0,
    0x80, 0x40, 0x00, 0x06,
    0x03, 0x00,
    0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x09, 0, 0, 0, 0, 0, 0, 0,
    0x08, 0x0f, 0x00, 0x06, 0x04, 0x00, 0x00,
    0x01, 0x02,
    0x08, 0, 0, 0, 0, 0, 0, 0,
];

fn header() -> FileHeader {
    FileHeader::new(Arch::X64, Os::Windows, *b"specification!!!", 1_000_000)
}

#[test]
fn the_example_of_the_specification_is_written_and_read() {
    let header = header();
    let mut block = BlockBuffer::new(1 << 16, &header).unwrap();
    let mut encoder = SampleEncoder::new();
    let mut image = ThreadImage::new(16, 8).unwrap();
    encoder.begin(&mut block, Ticks(1000));
    let mut registers = [0; 17];
    registers[..2].copy_from_slice(&[0x1122, 0x1fe8]);
    for (time, lowest, state) in [(1004, 7u64, RunState::Unknown), (1007, 8, RunState::Running)] {
        let stack: Vec<u8> = [lowest, 0, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
        let raw = RawSample {
            thread: 5,
            time: Ticks(time),
            set: RegisterSet::X64,
            registers: &registers,
            stack_base: 0x2000,
            stack_start: 0x1fe8,
            stack: &stack,
            code: None,
            cpu: None,
            state,
            tag: None,
            tables_pending: false,
            context_reply: None,
            extra: &[],
        };
        encoder.sample(&mut block, &mut image, &raw).unwrap();
    }
    let mut file = header.encode().to_vec();
    let mut sealer = Sealer::new(&header).unwrap();
    let mut out = vec![0; sealed_bound(block.len())];
    file.extend_from_slice(sealer.seal(&block, &mut out).unwrap());

    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    assert_eq!(trace.payload(&trace.blocks()[0], &mut scratch).unwrap(), EXAMPLE);
    let mut samples = trace.samples(&trace.blocks()[0], &mut scratch).unwrap();
    let mut seen = Vec::new();
    while let Some(decoded) = samples.next().unwrap() {
        let SampleStep::Sample(s) = decoded else { panic!("{decoded:?}") };
        seen.push((s.thread, s.time.0, s.registers[0], s.registers[1], s.stack_start, s.stack[0], s.state));
    }
    assert_eq!(
        seen,
        [
            (5, 1004, 0x1122, 0x1fe8, 0x1fe8, 7, RunState::Unknown),
            (5, 1007, 0x1122, 0x1fe8, 0x1fe8, 8, RunState::Running)
        ]
    );
}

#[test]
fn the_file_header_has_its_fields_where_the_specification_puts_them() {
    let mut header = header();
    header.clock_start = Ticks(0x0102_0304_0506_0708);
    header.utc_start = 11;
    header.process_created = 12;
    header.pid = 13;
    header.rate_mhz = 14;
    header.boot_id = 15;
    header.cpu_unit = CpuUnit::Cycles;
    header.compatible = 16;
    let bytes = header.encode();
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!(bytes.len(), 128);
    assert_eq!((u32_at(0), u32_at(4), &bytes[8..16]), (0x184D_2A50, 120, &b"STKTRACE"[..]));
    assert_eq!((bytes[16], bytes[18], bytes[20], bytes[22], bytes[23]), (1, 1, 128, 1, 8));
    assert_eq!((&bytes[24..28], u32_at(28), &bytes[32..48]), (&b"spec"[..], 1, &b"specification!!!"[..]));
    assert_eq!((u64_at(48), u64_at(56), u64_at(64)), (0, 16, 1_000_000));
    assert_eq!((u64_at(72), u64_at(80), u64_at(88)), (0x0102_0304_0506_0708, 11, 12));
    assert_eq!((u32_at(96), u32_at(100), u64_at(104), bytes[112]), (13, 14, 15, 2));
    assert_eq!(bytes[113..124], [0; 11]);
    assert_eq!(FileHeader::decode(&bytes), Ok(header));
}

#[test]
fn a_later_version_and_unknown_features_are_refused_by_name() {
    // Changes fields and corrects the checksum, as a later writer would.
    let forge = |at: usize, value: u8| {
        let mut bytes = header().encode();
        bytes[at] = value;
        let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI).checksum(&bytes[..124]);
        bytes[124..].copy_from_slice(&crc.to_le_bytes());
        FileHeader::decode(&bytes)
    };
    assert_eq!(forge(16, 2), Err(HeaderError::Version { major: 2, minor: 1 }));
    assert_eq!(forge(48, 4), Err(HeaderError::Features(4)));
    assert_eq!(forge(22, 9), Err(HeaderError::Machine { arch: 9, pointer: 8, os: 1 }));
    assert_eq!(forge(23, 4), Err(HeaderError::Machine { arch: 1, pointer: 4, os: 1 }));
    assert_eq!(forge(28, 7), Err(HeaderError::Machine { arch: 1, pointer: 8, os: 7 }));
    assert_eq!(forge(18, 9).map(|header| header.minor), Ok(9));
}

#[test]
fn a_block_and_the_tail_have_their_fields_where_the_specification_puts_them() {
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(50, 7, "", 0x10_000);
    builder.sample(thread, 100, &[1, 0xfff8], &[5]);
    builder.same(thread, 110, RunState::Waiting);
    let file = builder.finish();
    let trace = Trace::open(&file).unwrap();
    let found = trace.blocks().iter().find(|block| block.header.kind == BlockKind::Samples).unwrap();
    let at = found.offset as usize;
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!((u32_at(at), u32_at(at + 4), &file[at + 8..at + 12]), (0x184D_2A51, 96, &b"STKB"[..]));
    assert_eq!(u32_at(at + 12), u32_at(24));
    // STATE and META come first.
    assert_eq!((u64_at(at + 16), u64_at(at + 64), u64_at(at + 72)), (2, 1, 0));
    let (stored, raw) = (u32_at(at + 24) as usize, u32_at(at + 28) as usize);
    assert_eq!((u64_at(at + 32), u64_at(at + 40)), (100, 110));
    assert_eq!((file[at + 48], file[at + 49], u32_at(at + 52), u64_at(at + 56)), (2, 1, 3, 0));
    assert_eq!((u32_at(at + 80), u32_at(at + 84), u32_at(at + 96)), (2, 8, 0));
    let payload = &file[at + BLOCK_HEADER_LEN..][..stored];
    assert_eq!(u64_at(at + 88), xxhash_rust::xxh3::xxh3_64(payload));
    let mut out = vec![0; raw];
    assert_eq!(zstd_safe::decompress(&mut out[..], payload), Ok(raw));

    let tail = file.len() - TAIL_LEN;
    assert_eq!(
        (u32_at(tail), u32_at(tail + 4), &file[tail + 8..tail + 16]),
        (0x184D_2A52, 32, &b"STKTAIL1"[..])
    );
    let index = trace.blocks().iter().find(|block| block.header.kind == BlockKind::Index).unwrap();
    assert_eq!((u32_at(tail + 20), u64_at(tail + 24)), (1, index.offset));
    assert_eq!(FILE_HEADER_LEN as u64, trace.blocks()[0].offset);
}

#[test]
fn any_zstd_tool_prints_the_events_of_all_blocks() {
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(0, 7, "main", 0x10_000);
    for i in 0..100 {
        builder.sample(thread, 10 + i, &[i, 0xff00], &[i; 32]);
        if i % 10 == 9 {
            builder.cut();
        }
    }
    let file = builder.finish();
    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let mut events = Vec::new();
    for block in trace.blocks() {
        events.extend_from_slice(trace.payload(block, &mut scratch).unwrap());
    }
    // ZSTD_decompress reads all frames of its input and skips the skippable ones, as `zstd -dc`
    // does.
    let mut out = vec![0; events.len()];
    assert_eq!(zstd_safe::decompress(&mut out[..], &file), Ok(events.len()));
    assert_eq!(out, events);
}

#[test]
fn bodies_longer_than_known_are_read_by_their_known_fields() {
    // CLOCK: time +1, utc 300; then a field of a later version.
    let body = [0x02, 0xac, 0x02, 0x63];
    let event = stk_format::event::decode(stk_schema::event::kind::CLOCK, &body, Ticks(10)).unwrap();
    assert_eq!(event, Event::Clock(stk_schema::event::Clock { time: Ticks(11), utc: 300 }));
    assert!(stk_format::event::decode(stk_schema::event::kind::CLOCK, &body[..2], Ticks(10)).is_err());
}
