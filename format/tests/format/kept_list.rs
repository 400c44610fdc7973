//! The contents of `tests/data/format-v1.stk` and `format-v1.1.stk`. `examples/kept_trace.rs` made
//! the files from this list once, and they are never made again: every later version of this crate
//! must read them.

use stk_format::BlockKind;
use stk_schema::Ticks;
use stk_schema::event::*;
use stk_schema::identity::{CodeView, ContentHash, Identity, PeIdentity};

/// Bytes of the BLOB.
pub(crate) const BLOB: &[u8] = b"the bytes of an exception directory, as far as this trace is concerned";

/// Events outside SAMPLES blocks: kind of block, its first time, events.
pub(crate) fn blocks() -> Vec<(BlockKind, u64, Vec<Event<'static>>)> {
    vec![
        (
            BlockKind::Blob,
            100,
            vec![Event::Blob(Blob { hash: blob_hash(), total: 70, offset: 0, bytes: BLOB })],
        ),
        (BlockKind::Meta, 110, modules_and_threads()),
        (BlockKind::Meta, 120, code_and_runtimes()),
        (
            BlockKind::Dropped,
            130,
            vec![Event::Dropped(Dropped { time: Ticks(131), reason: 1, thread: 0, count: 12 })],
        ),
        (BlockKind::Other(0x80), 140, vec![Event::Unknown { kind: 0x4001, body: b"a vendor's" }]),
    ]
}

/// A block of version 1.1 alone: types that it reserves.
pub(crate) fn reserved() -> (BlockKind, u64, Vec<Event<'static>>) {
    let bodies: [(u64, &[u8]); 1] = [
        // THREAD_CLOCK: thread 5, time 154, 1000.
        (34, &[5, 8, 0xe8, 7]),
    ];
    let unknown = bodies.into_iter().map(|(kind, body)| Event::Unknown { kind, body });
    let mut events: Vec<Event<'static>> = unknown.collect();
    events.insert(
        0,
        Event::FrameMethod(FrameMethod {
            module: 1,
            time: Ticks(151),
            kind: FrameMethod::DESC,
            address: 0x1000,
            slot: 0,
            source: MethodNameSource::Contract as u64,
            name: b"M(Int32)",
        }),
    );
    events.insert(
        1,
        Event::ModuleState(ModuleState {
            time: Ticks(152),
            modules: 1,
            modules_hash: ContentHash([9; 16]),
            ranges: 0,
            ranges_hash: ContentHash([8; 16]),
        }),
    );
    events.insert(
        2,
        Event::MethodBody(MethodBody {
            time: Ticks(153),
            instance: 3,
            base: 0x1000,
            size: 1,
            flags: MethodBody::REPORTED,
            source: MethodNameSource::DataAccess as u64,
            code: &[0xc3],
            gc_info: &[],
        }),
    );
    (BlockKind::Meta, 150, events)
}

/// The address of [`BLOB`].
pub(crate) fn blob_hash() -> ContentHash {
    stk_format::blob::content_hash(BLOB)
}

fn modules_and_threads() -> Vec<Event<'static>> {
    let pe = PeIdentity { time_date_stamp: 0x1234_5678, size_of_image: 0x2_0000, check_sum: 0x9abc };
    let codeview = CodeView { guid: *b"0123456789abcdef", age: 3, pdb_name: "größe.pdb".as_bytes() };
    vec![
        Event::Metadata(Metadata { key: b"host", value: b"lab-7" }),
        Event::ModuleLoad(ModuleLoad {
            instance: 1,
            time: Ticks(105),
            base: 0x7ff6_0000_0000,
            size: 0x2_0000,
            flags: ModuleFlags::AT_START | ModuleFlags::MAIN,
            path: "C:\\Größe\\app.exe".as_bytes(),
            identities: vec![
                Identity::Pe(pe),
                Identity::CodeView(codeview),
                Identity::ElfBuildId(&[1, 2, 3]),
                Identity::HeaderHash(ContentHash([9; 16])),
                Identity::Unknown(77, b"later"),
            ],
        }),
        Event::ModuleTables(ModuleTables {
            instance: 1,
            tables: vec![ImageTable { kind: 2, rva: 0x1000, len: 70, hash: blob_hash() }],
        }),
        Event::ThreadStart(ThreadStart {
            instance: 5,
            time: Ticks(110),
            tid: 4404,
            flags: ThreadFlags::AT_START,
            start_address: 0x7ff6_0000_1000,
            stack_base: 0x20_0000,
            created: 1_700_000_000_000_000_000,
        }),
        Event::ThreadName { instance: 5, time: Ticks(112), name: "größe".as_bytes() },
        Event::ThreadExit { instance: 4, time: Ticks(113) },
        Event::ModuleUnload { instance: 2, time: Ticks(114) },
        Event::Parent(Parent { pid: 1, created: 2, trace: [3; 16] }),
        Event::RateChange(RateChange { time: Ticks(115), rate_mhz: 500_000 }),
        Event::Redaction(Redaction { rule: b"strings", words: 44 }),
    ]
}

fn code_and_runtimes() -> Vec<Event<'static>> {
    vec![
        Event::CodeAdd(CodeAdd {
            instance: 3,
            time: Ticks(121),
            kind: CodeKind::Jit as u64,
            base: 0x7ff7_0000_0000,
            size: 64,
            image_base: 0x7ff7_0000_0000,
            function: &[0, 0, 0, 0, 64, 0, 0, 0, 80, 0, 0, 0],
            unwind: &[1, 0, 0, 0],
            code: &[0xc3],
        }),
        Event::MethodName(MethodName {
            time: Ticks(122),
            base: 0x7ff7_0000_0000,
            size: 64,
            source: 1,
            name: b"N.T.M()",
        }),
        Event::RuntimeInfo(RuntimeInfo {
            module: 1,
            time: Ticks(123),
            kind: 1,
            version: b"10.0.9",
            descriptor: b"{}",
            pointer_data: &[0; 8],
            note: b"",
        }),
        Event::Nettrace(Nettrace { session: 1, time: Ticks(124), offset: 0, bytes: b"Nettrace" }),
        Event::Exception(Exception { thread: 5, time: Ticks(125), code: 0xc000_0005, address: 0x1000 }),
        Event::CodeRemove { instance: 3, time: Ticks(126) },
        Event::Clock(Clock { time: Ticks(127), utc: 1_700_000_000_000_000_127 }),
    ]
}

/// Events that belong to samples, in the second SAMPLES block.
pub(crate) fn beside_samples() -> Vec<Event<'static>> {
    vec![
        // SAMPLE_IPS, a type that is no longer known: thread 5, time 210 (the block's first is
        // 209), the three addresses 1000h, 2000h, 0FFFh as differences.
        Event::Unknown { kind: 10, body: &[5, 2, 3, 0x80, 0x40, 0x80, 0x40, 0x81, 0x40] },
        Event::CheckWalk(CheckWalk { thread: 5, time: Ticks(211), flags: 2, frames: vec![(1, 2), (3, 1)] }),
        Event::ManagedThread(ManagedThread {
            thread: 5,
            time: Ticks(212),
            address: 1,
            state: 2,
            preemptive_disabled: 1,
            frame: 4,
            exception: 0,
        }),
        Event::Memory(Memory { thread: 5, time: Ticks(213), address: 0x5000, bytes: b"memory" }),
        Event::Mark(Mark { time: Ticks(214), thread: 0, tag: 7, text: "Größe".as_bytes() }),
    ]
}

/// Registers of the samples: rip and rsp, the rest by number.
pub(crate) fn registers(rip: u64, rsp: u64) -> Vec<u64> {
    let mut registers: Vec<u64> = (0..17).map(|i| i * 0x1_0001).collect();
    registers[..2].copy_from_slice(&[rip, rsp]);
    registers
}
