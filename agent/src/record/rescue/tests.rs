//! Copies of modules that are unmapped before their tables were read, made from a fake image.

use super::*;
use crate::record::fingerprint::Fingerprint;
use crate::record::image::{Image, ImagePart};
use stk_schema::event::TableKind;
use stk_schema::identity::Identity;

const BASE: u64 = 0x1_4000_0000;
const NT_AT: usize = 0x80;
const OPTIONAL: usize = NT_AT + 24;
const SIZE: usize = 0x1_0000;

/// An x64 image in memory after the PE specification: exception directory at 0x4000, records at
/// 0x5ff0 and 0x7000, CodeView at 0x2100.
struct FakeImage(Vec<u8>);

impl FakeImage {
    fn new() -> FakeImage {
        let mut fake = FakeImage(vec![0; SIZE]);
        fake.put(0, b"MZ");
        fake.words(0x3c, &[NT_AT as u32]);
        fake.put(NT_AT, b"PE\0\0");
        fake.words(NT_AT + 4, &[0x8664, 0x1234_5678]);
        fake.put(NT_AT + 20, &240u16.to_le_bytes());
        fake.put(OPTIONAL, &0x20bu16.to_le_bytes());
        fake.words(OPTIONAL + 56, &[SIZE as u32, 0x400, 0xabcd]);
        fake.words(OPTIONAL + 108, &[16]);
        fake.words(OPTIONAL + 112 + pe::DIRECTORY_EXCEPTION * 8, &[0x4000, 36]);
        fake.words(OPTIONAL + 112 + pe::DIRECTORY_DEBUG * 8, &[0x2000, 28]);
        fake.words(0x2000, &[0, 0, 0, 2, 24 + 8, 0x2100, 0]);
        fake.put(0x2100, b"RSDS");
        fake.put(0x2104, &[7; 16]);
        fake.words(0x2114, &[3]);
        fake.put(0x2118, b"app.pdb\0");
        // The third entry shares the record of the first one.
        fake.words(0x4000, &[0x1000, 0x1010, 0x5ff0, 0x1010, 0x1020, 0x7000, 0x1020, 0x1030, 0x4001]);
        fake.put(0x5ff0, &[1, 0, 8, 0]);
        fake.put(0x7000, &[1, 0, 2, 0]);
        fake
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, at: usize, words: &[u32]) {
        for (index, word) in words.iter().enumerate() {
            self.put(at + index * 4, &word.to_le_bytes());
        }
    }
}

impl Memory for FakeImage {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(at) = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok()) else {
            return false;
        };
        let Some(from) = at.checked_add(into.len()).and_then(|end| self.0.get(at..end)) else { return false };
        into.copy_from_slice(from);
        true
    }
}

/// The parts that unwinding needs, without those that are not copied: debug directory and exports.
fn unwind_parts(image: &Image, memory: &impl Memory) -> Vec<ImagePart> {
    let mut parts = Vec::new();
    image.unwind_parts(memory, &mut |part| parts.push(part));
    parts.retain(|part| !matches!(part.kind, TableKind::Debug | TableKind::Exports));
    parts
}

#[test]
fn a_rescue_copy_gives_the_same_tables_as_the_module() {
    let (fake, arena) = (FakeImage::new(), Arena::new(1 << 20));
    let rescued = RescueCopy::copy(&fake, BASE, &arena).expect("room");
    let there = Image::read(&fake, BASE, SIZE as u64).expect("an image");
    let memory = rescued.image(&arena);
    let copied = Image::read(&memory, rescued.place().0, rescued.place().1).expect("its copy");
    assert_eq!((copied.identity, copied.header_hash), (there.identity, there.header_hash));
    let parts = unwind_parts(&there, &fake);
    let kinds: Vec<TableKind> = parts.iter().map(|part| part.kind).collect();
    assert_eq!(kinds[..2], [TableKind::Headers, TableKind::ExceptionDirectory]);
    assert!(kinds[2..].iter().all(|&kind| kind == TableKind::UnwindInfo) && kinds.len() > 2);
    assert_eq!(unwind_parts(&copied, &memory), parts);
}

#[test]
fn a_full_arena_copies_nothing_and_is_free_after_all_parts_are_given_back() {
    let fake = FakeImage::new();
    let arena = Arena::new(0x6000);
    let first = RescueCopy::copy(&fake, BASE, &arena).expect("room for one");
    assert_eq!(RescueCopy::copy(&fake, BASE, &arena), None);
    first.give_back(&arena);
    let again = RescueCopy::copy(&fake, BASE, &arena).expect("room again");
    assert!(Image::read(&again.image(&arena), BASE, SIZE as u64).is_some());
    again.give_back(&arena);
    assert_eq!(arena.state.load(Ordering::Relaxed), 0);
}

#[test]
fn images_without_tables_and_unreadable_ones_are_not_copied() {
    let arena = Arena::new(1 << 20);
    let mut none = FakeImage::new();
    none.words(OPTIONAL + 112 + pe::DIRECTORY_EXCEPTION * 8, &[0, 0]);
    assert_eq!(RescueCopy::copy(&none, BASE, &arena), None);
    let mut outside = FakeImage::new();
    outside.words(OPTIONAL + 112 + pe::DIRECTORY_EXCEPTION * 8, &[0x4000, u32::MAX]);
    assert_eq!(RescueCopy::copy(&outside, BASE, &arena), None);
    let mut cut = FakeImage::new();
    cut.0.truncate(0x6000);
    assert_eq!(RescueCopy::copy(&cut, BASE, &arena), None);
    assert_eq!(RescueCopy::copy(&FakeImage::new(), BASE + 0x1000, &arena), None);
    assert_eq!(arena.state.load(Ordering::Relaxed), 0, "a part was not given back");
}

#[test]
fn a_module_is_pending_until_its_own_load_is_settled() {
    let pending = PendingModules::default();
    let first = pending.loaded(BASE);
    assert_ne!(first, 0);
    assert!(pending.unloaded(BASE) && !pending.unloaded(BASE));
    // Another module is loaded at the same address: the old ticket does not settle it.
    let second = pending.loaded(BASE);
    pending.settle(first);
    assert!(pending.unloaded(BASE));
    let third = pending.loaded(BASE);
    assert!(second != third);
    pending.settle(third);
    assert!(!pending.unloaded(BASE));
    assert_eq!([pending.loaded(0), pending.loaded(BASE + 8)], [0, 0]);
}

#[test]
fn many_modules_can_be_pending_but_not_more_than_the_table_holds() {
    let pending = PendingModules::default();
    let tickets: Vec<u64> = (1..=1000).map(|n| pending.loaded(n * GRANULARITY)).collect();
    assert!(tickets.iter().all(|&ticket| ticket != 0));
    assert!((1..=1000).all(|n| pending.unloaded(n * GRANULARITY)));
    let taken = (1..=5000).filter(|n| pending.loaded(n * GRANULARITY) != 0).count();
    assert!((1000..=PENDING).contains(&taken), "{taken}");
}

#[test]
fn a_fingerprint_has_the_identities_of_the_headers() {
    let mut fake = FakeImage::new();
    let there = Image::read(&fake, BASE, SIZE as u64).expect("an image");
    let print = Fingerprint::read(&fake, BASE).expect("headers");
    let identities: Vec<Identity<'_>> = print.identities().collect();
    let [Identity::Pe(pe), Identity::CodeView(record)] = identities[..] else { panic!("{identities:?}") };
    assert_eq!((pe.time_date_stamp, pe.size_of_image, pe.check_sum), (0x1234_5678, SIZE as u32, 0xabcd));
    assert_eq!((record.guid, record.age, record.pdb_name), ([7; 16], 3, &b"app.pdb"[..]));
    assert_eq!(there.identity, pe);
    // A CodeView record that lies outside of the image is left out; the rest stays.
    fake.words(0x2000 + 20, &[SIZE as u32 - 4]);
    assert_eq!(Fingerprint::read(&fake, BASE).expect("headers").identities().count(), 1);
    fake.put(NT_AT, b"NE\0\0");
    assert!(Fingerprint::read(&fake, BASE).is_none());
}

proptest::proptest! {
    #[test]
    fn arbitrary_headers_neither_panic_nor_leak_the_arena(
        changes in proptest::collection::vec((0usize..SIZE, proptest::prelude::any::<u32>()), 0..40),
        len in 0x400usize..SIZE,
    ) {
        let arena = Arena::new(0x2_0000);
        let mut fake = FakeImage::new();
        for (at, value) in changes {
            // Most of them hit headers and directories.
            let at = if at % 4 == 0 { at } else { at % 0x200 };
            fake.words(at.min(SIZE - 4), &[value]);
        }
        fake.0.truncate(len);
        let _ = Fingerprint::read(&fake, BASE);
        if let Some(rescued) = RescueCopy::copy(&fake, BASE, &arena) {
            if let Some(image) = Image::read(&rescued.image(&arena), BASE, SIZE as u64) {
                image.unwind_parts(&rescued.image(&arena), &mut |_| ());
            }
            rescued.give_back(&arena);
        }
        assert_eq!(arena.state.load(Ordering::Relaxed), 0);
    }
}
