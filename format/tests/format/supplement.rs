//! Supplements, which are added to a trace after its recording has ended: whole, torn and forged.

use crate::common::{ops, play};
use proptest::prelude::*;
use stk_format::{
    BLOCK_HEADER_LEN, BlockHeader, BlockKind, FLAG_SUPPLEMENT, NoSupplement, Scratch, Supplement,
    SupplementWriter, TAIL_LEN, Tail, Trace, blob,
};
use stk_schema::Arch;
use stk_schema::event::{Event, ImageTable, Metadata, ModuleTables, TableKind};
use stk_tests::synth::TraceBuilder;

/// A finished recording of a few blocks.
fn finished() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let thread = builder.thread(0, 1, "busy", 0x20_0000);
    builder.module(0, 0x1_0000, 0x1000, "C:\\x.dll", vec![]);
    for i in 0..40u64 {
        builder.sample(thread, 10 + i, &[i, 0x1f_0000], &[i; 16]);
        if i % 10 == 9 {
            builder.cut();
        }
    }
    builder.finish()
}

/// The same recording as a killed recorder leaves it, with `torn` bytes of its END block.
fn killed(torn: usize) -> Vec<u8> {
    let mut file = finished();
    let end =
        Trace::open(&file).unwrap().blocks().iter().find(|b| b.header.kind == BlockKind::End).unwrap().offset;
    file.truncate(end as usize + torn);
    file
}

const BYTES: [u8; 3000] = [0x5a; 3000];

/// The file with a supplement; also how many bytes of it were kept.
fn completed(file: &[u8]) -> (Vec<u8>, usize) {
    let trace = Trace::open(file).unwrap();
    let mut writer = SupplementWriter::new(&trace).unwrap();
    let hash = blob::content_hash(&BYTES);
    let fact = Metadata { key: b"supplement.modules", value: b"1" };
    writer.event(BlockKind::Meta, &Event::Metadata(fact)).unwrap();
    for piece in blob::pieces(hash, &BYTES, 700).unwrap() {
        writer.event(BlockKind::Blob, &Event::Blob(piece)).unwrap();
    }
    let table =
        ImageTable { kind: TableKind::ExceptionDirectory as u64, rva: 0x400, len: BYTES.len() as u32, hash };
    let tables = ModuleTables { instance: 1, tables: vec![table] };
    writer.event(BlockKind::Meta, &Event::ModuleTables(tables)).unwrap();
    let addition = writer.finish().unwrap();
    let keep = addition.keep as usize;
    ([&file[..keep], &addition.bytes].concat(), keep)
}

/// Blocks, damage, whether the recording was finished, whether there is an index.
type Content = (Vec<(BlockHeader, Vec<u8>)>, Vec<String>, bool, bool);

/// Everything that a reader gets from a file, except the supplement's range.
fn content(file: &[u8]) -> Content {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let payload = |block| trace.payload(block, &mut scratch).unwrap().to_vec();
    let payloads: Vec<Vec<u8>> = trace.blocks().iter().map(payload).collect();
    let blocks = trace.blocks().iter().map(|block| block.header).zip(payloads).collect();
    let damage = trace.damage().iter().map(ToString::to_string).collect();
    (blocks, damage, trace.is_complete(), trace.is_indexed())
}

#[test]
fn a_supplement_follows_the_whole_recording_and_is_read_with_it() {
    for (file, keep, complete) in [
        (finished(), finished().len(), true),
        (killed(0), killed(0).len(), false),
        (killed(50), killed(0).len(), false),
        (killed(BLOCK_HEADER_LEN + 1), killed(0).len(), false),
    ] {
        let recorded = content(&file[..keep]);
        let (completed, kept) = completed(&file);
        assert_eq!((kept, &completed[..keep]), (keep, &file[..keep]), "the recording is a prefix");
        let trace = Trace::open(&completed).unwrap();
        assert_eq!(trace.damage(), []);
        assert_eq!((trace.is_complete(), trace.is_indexed(), trace.is_cut()), (complete, true, false));
        let range = keep as u64..completed.len() as u64;
        assert_eq!(trace.supplement(), &Supplement::Whole { range });
        assert!(trace.verify(&mut Scratch::new()).is_empty());

        let (old, new) = trace.blocks().split_at(recorded.0.len());
        assert!(old.iter().map(|block| block.header).eq(recorded.0.iter().map(|(header, _)| *header)));
        let kinds: Vec<BlockKind> = new.iter().map(|block| block.header.kind).collect();
        assert_eq!(kinds, [BlockKind::Meta, BlockKind::Blob, BlockKind::Meta, BlockKind::Index]);
        let last = old.iter().map(|block| block.header.last).max().unwrap();
        for block in new {
            assert_eq!(block.header.last, last);
            assert!(block.header.kind == BlockKind::Index || block.header.first == last);
            assert_eq!((block.header.flags, block.metadata_known), (FLAG_SUPPLEMENT, true));
        }
        // The index of the supplement lists every block of the file except INDEX blocks.
        let mut scratch = Scratch::new();
        let listed = trace.events(new.last().unwrap(), &mut scratch).unwrap().find_map(|event| match event {
            Ok(Event::Index(entries)) => Some(entries),
            _ => None,
        });
        let listed: Vec<(u64, u64)> = listed.unwrap().iter().map(|entry| (entry.offset, entry.seq)).collect();
        let blocks = trace.blocks().iter().filter(|block| block.header.kind != BlockKind::Index);
        assert_eq!(listed, blocks.map(|block| (block.offset, block.header.seq)).collect::<Vec<_>>());
        // A trace that has a supplement does not get another.
        assert!(matches!(SupplementWriter::new(&trace), Err(NoSupplement::Present)));
    }
}

#[test]
fn a_supplement_that_is_cut_anywhere_is_ignored() {
    for file in [finished(), killed(0)] {
        let (completed, keep) = completed(&file);
        let recorded = content(&file);
        for len in keep..completed.len() {
            assert_eq!(content(&completed[..len]), recorded, "{len} of {} bytes", completed.len());
            let trace = Trace::open(&completed[..len]).unwrap();
            let reported = matches!(trace.supplement(), Supplement::Torn { .. }) || trace.is_cut();
            assert_eq!(reported, len > keep, "{len}: {:?}", trace.supplement());
        }
    }
}

#[test]
fn a_torn_supplement_is_cut_off_and_written_anew() {
    let (whole, keep) = completed(&finished());
    for len in [keep + 1, keep + BLOCK_HEADER_LEN + 5, whole.len() - TAIL_LEN, whole.len() - 1] {
        assert_eq!(completed(&whole[..len]), (whole.clone(), keep));
    }
}

#[test]
fn a_changed_byte_in_a_supplement_does_not_change_the_recording() {
    for file in [finished(), killed(0)] {
        let (mut completed, keep) = completed(&file);
        let recorded = content(&file).0;
        for at in keep..completed.len() {
            completed[at] ^= 0x11;
            let found = content(&completed);
            assert_eq!(found.0[..recorded.len().min(found.0.len())], recorded, "byte {at}");
            let trace = Trace::open(&completed).unwrap();
            let reported =
                matches!(trace.supplement(), Supplement::Torn { .. }) || !trace.damage().is_empty();
            // Checksums cover the unused bytes of the header and the tail too.
            assert!(reported, "byte {at} of {} is changed and nobody says so", completed.len());
            completed[at] ^= 0x11;
        }
    }
}

/// A whole supplement of one block, whose header `forge` has changed, before the INDEX blocks and
/// the tail.
fn forged(forge: impl Fn(&mut BlockHeader)) -> Vec<u8> {
    let (mut file, keep) = completed(&finished());
    let mut header = BlockHeader::decode(&file[keep..]).unwrap();
    forge(&mut header);
    file[keep..keep + BLOCK_HEADER_LEN].copy_from_slice(&header.encode());
    file
}

#[test]
fn blocks_that_a_supplement_must_not_hold_make_it_torn() {
    let old = content(&finished());
    let unchanged = forged(|_| ());
    assert!(matches!(Trace::open(&unchanged).unwrap().supplement(), Supplement::Whole { .. }));
    let forgeries: [fn(&mut BlockHeader); 5] = [
        |header| header.kind = BlockKind::Samples,
        |header| header.kind = BlockKind::State,
        |header| header.flags = 0,
        |header| header.seq = 0,
        |header| header.payload_hash ^= 1,
    ];
    for forge in forgeries {
        let file = forged(forge);
        assert!(matches!(Trace::open(&file).unwrap().supplement(), Supplement::Torn { .. }));
        assert_eq!(content(&file), old);
    }
}

#[test]
fn a_tail_that_names_other_index_blocks_makes_the_supplement_torn() {
    let (mut file, _) = completed(&finished());
    let at = file.len() - TAIL_LEN;
    let tail = Tail::decode(&file[at..]).unwrap();
    for forged in
        [Tail { index_offset: 128, ..tail }, Tail { index_blocks: 2, ..tail }, Tail { salt: 1, ..tail }]
    {
        file[at..].copy_from_slice(&forged.encode());
        assert_eq!(content(&file), content(&finished()));
    }
}

#[test]
fn damaged_and_empty_traces_get_no_supplement() {
    let mut damaged = finished();
    let middle = Trace::open(&damaged).unwrap().blocks()[1].offset as usize;
    damaged[middle + 8] ^= 1;
    assert!(matches!(SupplementWriter::new(&Trace::open(&damaged).unwrap()), Err(NoSupplement::Damaged)));
    let empty = &finished()[..128];
    assert!(matches!(SupplementWriter::new(&Trace::open(empty).unwrap()), Err(NoSupplement::Empty)));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn a_supplement_does_not_change_the_contents_of_any_recording(ops in ops(40), cut in 0usize..4000) {
        let file = play(&ops, 4096).file;
        let file = &file[..file.len() - cut.min(file.len() - 128)];
        let trace = Trace::open(file).unwrap();
        prop_assume!(!trace.blocks().is_empty() && trace.damage().is_empty());
        let recorded = content(file);
        let (completed, _) = completed(file);
        let found = content(&completed);
        prop_assert_eq!(&found.0[..recorded.0.len()], &recorded.0[..]);
        prop_assert!(found.1.is_empty());
        prop_assert_eq!(found.2, recorded.2);
    }

    #[test]
    fn bytes_after_a_tail_do_not_change_the_recording(
        junk in proptest::collection::vec(any::<u8>(), 1..400),
        take in 0usize..400,
    ) {
        let file = finished();
        let (whole, keep) = completed(&file);
        let more = [&whole[keep..keep + take.min(whole.len() - keep)], &junk[..]].concat();
        let joined = [&file[..], &more[..]].concat();
        prop_assert_eq!(content(&joined), content(&file));
        let trace = Trace::open(&joined).unwrap();
        let torn = matches!(trace.supplement(), Supplement::Torn { .. });
        prop_assert!(torn);
    }
}
