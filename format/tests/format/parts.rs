//! Takes traces apart, changes them and puts them together again.

use std::collections::BTreeSet;
use stk_format::{BlockKind, Scratch, Trace};
use stk_schema::event::{Event, Metadata, kind};
use stk_schema::{Arch, Ticks};
use stk_tests::synth::{Parts, Random, StoredBlock, StoredEvent, TraceBuilder, mutate};

fn trace() -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    let module = builder.module(0, 0x1_4000_0000, 0x1000, r"C:\app.exe", Vec::new());
    builder.tables(0, module, &[(stk_schema::event::TableKind::Code, 0, b"code bytes")]);
    let thread = builder.thread(0, 7, "main", 0x10_0000);
    for i in 0..20 {
        builder.sample(thread, 10 + i, &[0x1_4000_0010, 0x0f_fff0], &[i, 0]);
    }
    builder.finish()
}

/// The blocks of a file without the index: kind, events, samples and decompressed bytes.
fn contents(file: &[u8]) -> Vec<(BlockKind, u32, u32, Vec<u8>)> {
    let parts = Parts::take_apart(file).unwrap();
    let of = |part: &StoredBlock| (part.header.kind, part.header.events, part.header.samples, part.raw());
    parts.blocks.iter().map(of).collect()
}

#[test]
fn a_trace_taken_apart_and_put_together_has_the_same_contents() {
    let file = trace();
    let again = Parts::take_apart(&file).unwrap().to_file();
    assert_eq!(contents(&again), contents(&file));
    let opened = Trace::open(&again).unwrap();
    assert!(opened.damage().is_empty(), "{:?}", opened.damage());
    let sound = |block| opened.verify_block(block, &mut Scratch::new()).is_ok();
    assert!(opened.blocks().iter().all(sound));
}

#[test]
fn an_event_against_the_limits_can_be_written_and_is_refused_when_read() {
    let mut parts = Parts::new(*Trace::open(&trace()).unwrap().header());
    let long = vec![b'x'; stk_schema::limits::MAX_NAME + 1];
    parts.block(BlockKind::Meta, Ticks(0)).push(&Event::Metadata(Metadata { key: &long, value: b"" }));
    let file = parts.to_file();
    let opened = Trace::open(&file).unwrap();
    assert_eq!((opened.blocks().len(), opened.damage().len()), (1, 0));
    assert!(opened.verify_block(&opened.blocks()[0], &mut Scratch::new()).is_err());
}

#[test]
fn numbers_of_an_event_are_found_and_set() {
    let mut event = StoredEvent::of_numbers(kind::THREAD_EXIT, &[5, 300]);
    let numbers = event.numbers();
    assert_eq!(numbers, [(0..1, 5), (1..3, 300)]);
    event.set_number(numbers[1].0.clone(), u64::MAX);
    assert_eq!(event.numbers(), [(0..1, 5), (1..11, u64::MAX)]);
}

#[test]
fn every_kind_of_mutation_occurs_and_leaves_sound_checksums() {
    let base = Parts::take_apart(&trace()).unwrap();
    let mut random = Random::new(1);
    let mut kinds = BTreeSet::new();
    for _ in 0..1500 {
        let mut parts = base.clone();
        kinds.insert(mutate(&mut parts, &mut random));
        let file = parts.to_file();
        // A clock without frequency is the only wrong field of the file header that counts as
        // damage.
        let Ok(opened) = Trace::open(&file) else { continue };
        for block in opened.blocks() {
            let error = opened.verify_block(block, &mut Scratch::new()).err().map(|e| e.to_string());
            assert!(error.is_none_or(|e| !e.contains("stored bytes are damaged")));
        }
    }
    assert_eq!(kinds.len(), 12, "{kinds:?}");
}

#[test]
fn a_mutated_blob_has_the_hash_that_its_tables_name() {
    let base = Parts::take_apart(&trace()).unwrap();
    let mut random = Random::new(2);
    let mut changed = 0;
    for _ in 0..500 {
        let mut parts = base.clone();
        if mutate(&mut parts, &mut random) != "a BLOB with its hash" {
            continue;
        }
        let events = || parts.blocks.iter().flat_map(|block| &block.events);
        let blob = events().find(|event| event.kind == kind::BLOB).unwrap();
        let Ok(Event::Blob(blob)) = stk_format::event::decode(blob.kind, &blob.body, Ticks(0)) else {
            panic!()
        };
        let tables = events().find(|event| event.kind == kind::MODULE_TABLES).unwrap();
        let Ok(Event::ModuleTables(tables)) = stk_format::event::decode(tables.kind, &tables.body, Ticks(0))
        else {
            panic!()
        };
        assert_eq!(stk_format::blob::content_hash(blob.bytes), blob.hash);
        assert_eq!(tables.tables[0].hash, blob.hash);
        changed += usize::from(blob.bytes != b"code bytes");
    }
    assert!(changed > 10, "{changed}");
}
