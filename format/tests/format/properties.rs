//! Properties that hold for arbitrary events and stacks.

use crate::common::{Op, ops, play, read_back};
use proptest::prelude::*;
use stk_format::{
    BlockBuffer, BlockKind, FileHeader, RawSample, SampleEncoder, Scratch, ThreadImage, Trace, event,
};
use stk_schema::event::*;
use stk_schema::identity::{CodeView, ContentHash, Identity, PeIdentity};
use stk_schema::limits;
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::TraceWriter;

/// Bytes that live as long as the test program: events borrow them.
fn bytes(max: usize) -> impl Strategy<Value = &'static [u8]> {
    proptest::collection::vec(any::<u8>(), 0..max).prop_map(|bytes| &*bytes.leak())
}

fn state() -> impl Strategy<Value = RunState> {
    (0..3u64).prop_map(RunState::from_code)
}

fn hash() -> impl Strategy<Value = ContentHash> {
    any::<[u8; 16]>().prop_map(ContentHash)
}

fn identity() -> impl Strategy<Value = Identity<'static>> {
    prop_oneof![
        any::<(u32, u32, u32)>().prop_map(|(time_date_stamp, size_of_image, check_sum)| Identity::Pe(
            PeIdentity { time_date_stamp, size_of_image, check_sum }
        )),
        (any::<[u8; 16]>(), any::<u32>(), bytes(40))
            .prop_map(|(guid, age, pdb_name)| Identity::CodeView(CodeView { guid, age, pdb_name })),
        bytes(30).prop_map(Identity::ElfBuildId),
        hash().prop_map(Identity::HeaderHash),
        (5..u64::MAX, bytes(30)).prop_map(|(tag, bytes)| Identity::Unknown(tag, bytes)),
    ]
}

fn modules_and_threads() -> impl Strategy<Value = Event<'static>> {
    let table = (any::<u64>(), any::<u32>(), any::<u32>(), hash())
        .prop_map(|(kind, rva, len, hash)| ImageTable { kind, rva, len, hash });
    prop_oneof![
        (any::<[u64; 5]>(), bytes(60), proptest::collection::vec(identity(), 0..4)).prop_map(
            |([instance, time, base, size, flags], path, identities)| Event::ModuleLoad(ModuleLoad {
                instance,
                time: Ticks(time),
                base,
                size,
                flags: ModuleFlags::from_bits_retain(flags),
                path,
                identities
            })
        ),
        any::<(u64, u64)>().prop_map(|(instance, time)| Event::ModuleUnload { instance, time: Ticks(time) }),
        (any::<u64>(), proptest::collection::vec(table, 0..5))
            .prop_map(|(instance, tables)| Event::ModuleTables(ModuleTables { instance, tables })),
        (any::<[u64; 6]>(), any::<u32>()).prop_map(
            |([instance, time, flags, start_address, stack_base, created], tid)| {
                let flags = ThreadFlags::from_bits_retain(flags);
                Event::ThreadStart(ThreadStart {
                    instance,
                    time: Ticks(time),
                    tid,
                    flags,
                    start_address,
                    stack_base,
                    created,
                })
            }
        ),
        any::<(u64, u64)>().prop_map(|(instance, time)| Event::ThreadExit { instance, time: Ticks(time) }),
        (any::<u64>(), any::<u64>(), bytes(60)).prop_map(|(instance, time, name)| Event::ThreadName {
            instance,
            time: Ticks(time),
            name
        }),
        (any::<[u64; 5]>(), state()).prop_map(|([thread, ticks, first, last, block], state)| Event::Idle(
            Idle { thread, ticks, first: Ticks(first), last: Ticks(last), block, state }
        )),
        any::<(u64, u64, u64, Vec<(u64, u64)>)>().prop_map(|(thread, time, flags, frames)| Event::CheckWalk(
            CheckWalk { thread, time: Ticks(time), flags, frames }
        )),
    ]
}

fn code_and_runtimes() -> impl Strategy<Value = Event<'static>> {
    prop_oneof![
        (any::<[u64; 6]>(), bytes(30), bytes(30), bytes(99)).prop_map(
            |([instance, time, kind, base, size, image_base], function, unwind, code)| Event::CodeAdd(
                CodeAdd { instance, time: Ticks(time), kind, base, size, image_base, function, unwind, code }
            )
        ),
        any::<(u64, u64)>().prop_map(|(instance, time)| Event::CodeRemove { instance, time: Ticks(time) }),
        (any::<[u64; 4]>(), bytes(60)).prop_map(|([time, base, size, source], name)| Event::MethodName(
            MethodName { time: Ticks(time), base, size, source, name }
        )),
        (any::<[u64; 6]>(), bytes(60)).prop_map(|([module, time, kind, address, slot, source], name)| {
            Event::FrameMethod(FrameMethod { module, time: Ticks(time), kind, address, slot, source, name })
        }),
        (any::<[u64; 6]>(), bytes(99), bytes(30)).prop_map(
            |([time, instance, base, size, flags, source], code, gc_info)| {
                let time = Ticks(time);
                Event::MethodBody(MethodBody { time, instance, base, size, flags, source, code, gc_info })
            }
        ),
        (any::<[u64; 3]>(), bytes(9), bytes(99), bytes(64), bytes(9)).prop_map(
            |([module, time, kind], version, descriptor, pointer_data, note)| Event::RuntimeInfo(
                RuntimeInfo { module, time: Ticks(time), kind, version, descriptor, pointer_data, note }
            )
        ),
        any::<[u64; 7]>().prop_map(
            |[thread, time, address, state, preemptive_disabled, frame, exception]| {
                Event::ManagedThread(ManagedThread {
                    thread,
                    time: Ticks(time),
                    address,
                    state,
                    preemptive_disabled,
                    frame,
                    exception,
                })
            }
        ),
        (any::<[u64; 3]>(), bytes(99)).prop_map(|([thread, time, address], bytes)| Event::Memory(Memory {
            thread,
            time: Ticks(time),
            address,
            bytes
        })),
        (any::<[u64; 3]>(), bytes(99)).prop_map(|([session, time, offset], bytes)| Event::Nettrace(
            Nettrace { session, time: Ticks(time), offset, bytes }
        )),
    ]
}

fn others() -> impl Strategy<Value = Event<'static>> {
    let entry = any::<(u64, u64, u8, u64, u64)>().prop_map(|(offset, seq, kind, first, last)| IndexEntry {
        offset,
        seq,
        kind,
        first: Ticks(first),
        last: Ticks(last),
    });
    prop_oneof![
        (any::<[u64; 3]>(), any::<u32>()).prop_map(|([thread, time, address], code)| Event::Exception(
            Exception { thread, time: Ticks(time), code, address }
        )),
        (any::<[u64; 3]>(), bytes(60)).prop_map(|([time, thread, tag], text)| Event::Mark(Mark {
            time: Ticks(time),
            thread,
            tag,
            text
        })),
        any::<(u64, u32)>()
            .prop_map(|(time, rate_mhz)| Event::RateChange(RateChange { time: Ticks(time), rate_mhz })),
        (bytes(60), any::<u64>()).prop_map(|(rule, words)| Event::Redaction(Redaction { rule, words })),
        any::<(u32, u64, [u8; 16])>().prop_map(|(pid, created, trace)| Event::Parent(Parent {
            pid,
            created,
            trace
        })),
        any::<(u64, u64)>().prop_map(|(time, utc)| Event::Clock(Clock { time: Ticks(time), utc })),
        any::<[u64; 4]>().prop_map(|[time, reason, thread, count]| Event::Dropped(Dropped {
            time: Ticks(time),
            reason,
            thread,
            count
        })),
        (bytes(30), bytes(99)).prop_map(|(key, value)| Event::Metadata(Metadata { key, value })),
        (hash(), 0..limits::MAX_BLOB - 100, bytes(99)).prop_map(|(hash, offset, bytes)| Event::Blob(Blob {
            hash,
            total: offset + bytes.len() as u64,
            offset,
            bytes
        })),
        proptest::collection::vec(entry, 0..5).prop_map(Event::Index),
        (any::<[u64; 4]>(), bytes(60)).prop_map(|([time, reason, samples, dropped], detail)| Event::End(
            End { time: Ticks(time), reason, samples, dropped, detail }
        )),
        (any::<[u64; 2]>(), any::<i64>()).prop_map(|([thread, time], cpu)| Event::ThreadCpu(ThreadCpu {
            thread,
            time: Ticks(time),
            cpu
        })),
        (any::<[u64; 3]>(), hash(), hash()).prop_map(
            |([time, modules, ranges], modules_hash, ranges_hash)| {
                Event::ModuleState(ModuleState {
                    time: Ticks(time),
                    modules,
                    modules_hash,
                    ranges,
                    ranges_hash,
                })
            }
        ),
        (35..u64::MAX, bytes(99)).prop_map(|(kind, body)| Event::Unknown { kind, body }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_event_comes_back(
        event in prop_oneof![modules_and_threads(), code_and_runtimes(), others()],
        base in any::<u64>(),
    ) {
        let stored = event::encode(&event, Ticks(base));
        // Type and length, read as SPEC.md says.
        let (kind, at) = varint(&stored, 0);
        let (len, at) = varint(&stored, at);
        prop_assert_eq!(kind, event::kind_of(&event));
        prop_assert_eq!(at + len as usize, stored.len());
        prop_assert_eq!(event::decode(kind, &stored[at..], Ticks(base)), Ok(event));
    }

    #[test]
    fn any_bytes_decode_to_an_event_or_an_error(kind in 0..40u64, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = event::decode(kind, &body, Ticks(0));
    }

    #[test]
    fn any_run_of_samples_comes_back(ops in ops(120)) {
        let played = play(&ops, 1 << 20);
        read_back(&played)?;
    }

    #[test]
    fn samples_that_fill_blocks_again_and_again_come_back(ops in ops(200)) {
        let played = play(&ops, 4096);
        read_back(&played)?;
    }
}

#[test]
fn a_thread_that_never_runs_costs_one_keyframe_and_one_idle_per_block() {
    let mut ops = vec![Op::Change { thread: 0, seed: 1, depth: 300 }];
    for _ in 0..10 {
        ops.extend([Op::Same { thread: 0, state: RunState::Waiting }, Op::Again { thread: 0 }, Op::Cut]);
    }
    let played = play(&ops, 1 << 20);
    read_back(&played).unwrap();
    let trace = stk_format::Trace::open(&played.file).unwrap();
    let samples = trace.blocks().iter().filter(|block| block.header.kind == stk_format::BlockKind::Samples);
    let stack: Vec<u32> = samples.map(|block| block.header.stack_bytes).collect();
    assert_eq!(stack, [2400, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

/// The bodies of a reader of version 1.0: it skips THREAD_CPU and does not look behind the fields
/// that it knows.
#[test]
fn a_reader_of_1_0_gets_the_cpu_time_with_the_next_sample() {
    let header = FileHeader::new(Arch::X64, Os::Windows, [7; 16], 1000);
    let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
    let (mut encoder, mut image) = (SampleEncoder::new(), ThreadImage::new(8, 8).unwrap());
    let mut block = BlockBuffer::new(4096, &header).unwrap();
    let registers = [0; 17];
    let mut raw = RawSample {
        thread: 5,
        time: Ticks(1),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base: 0x1000,
        stack_start: 0x1000,
        stack: &[],
        code: None,
        cpu: Some(1000),
        state: RunState::Running,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: &[],
    };
    encoder.begin(&mut block, Ticks(0));
    encoder.sample(&mut block, &mut image, &raw).unwrap();
    writer.block(&block).unwrap();
    encoder.begin(&mut block, Ticks(10));
    (raw.time, raw.cpu) = (Ticks(11), Some(1300));
    encoder.sample(&mut block, &mut image, &raw).unwrap();
    let moved = [1; 17];
    (raw.time, raw.cpu, raw.registers) = (Ticks(12), Some(1310), &moved);
    encoder.sample(&mut block, &mut image, &raw).unwrap();
    writer.block(&block).unwrap();
    let file =
        writer.finish(&End { time: Ticks(13), reason: 1, samples: 3, dropped: 0, detail: b"" }).unwrap();

    let trace = Trace::open(&file).unwrap();
    let mut scratch = Scratch::new();
    let block = trace.blocks().iter().rfind(|block| block.header.kind == BlockKind::Samples).unwrap();
    let payload = trace.payload(block, &mut scratch).unwrap().to_vec();
    let (mut at, mut types, mut cpu) = (0, Vec::new(), None);
    while at < payload.len() {
        let (kind, body) = varint(&payload, at);
        let (len, body) = varint(&payload, body);
        types.push(kind);
        if kind == 8 {
            // slot, time, flags, CPU
            let (_, next) = varint(&payload, body);
            let (_, next) = varint(&payload, next);
            let (flags, next) = varint(&payload, next);
            assert_eq!(flags & 0x1020, 0x1020);
            cpu = Some(varint(&payload, next).0);
            // CPU_STATED is the body's last field.
            assert_eq!(payload[body + len as usize - 2..body + len as usize], [0xd8, 0x04]);
        }
        at = body + len as usize;
    }
    assert_eq!(types, [9, 30, 7, 8]);
    assert_eq!(cpu, Some(2 * 310), "zigzag: all since the SAMPLE before");
}

/// LEB128, independent of the crate's own reading.
fn varint(bytes: &[u8], mut at: usize) -> (u64, usize) {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = bytes[at];
        at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return (value, at);
        }
    }
}
