//! Images built field by field after the PE specification, whole, torn and arbitrary.

use super::*;
use alloc::collections::BTreeSet;

const BASE: u64 = 0x1_4000_0000;
const NT: usize = 0x80;
const OPTIONAL: usize = NT + 24;

/// An image in memory, built field by field after the PE specification.
struct Fake {
    bytes: Vec<u8>,
    /// Pages that cannot be read.
    holes: BTreeSet<u32>,
}

impl Memory for Fake {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(start) = address.checked_sub(BASE).map(|start| start as usize) else { return false };
        let Some(bytes) = self.bytes.get(start..start.saturating_add(into.len())) else { return false };
        let pages = start as u32 / PAGE..=(start + into.len()).saturating_sub(1) as u32 / PAGE;
        if pages.clone().any(|page| self.holes.contains(&page)) {
            return false;
        }
        into.copy_from_slice(bytes);
        true
    }
}

impl Fake {
    /// A 64 KiB x64 image with an executable section at 0x1000..0x2000.
    fn new(machine: u16) -> Fake {
        let mut fake = Fake { bytes: vec![0; 0x1_0000], holes: BTreeSet::new() };
        fake.put(0, b"MZ");
        fake.put(0x3c, &(NT as u32).to_le_bytes());
        fake.put(NT, b"PE\0\0");
        fake.put(NT + 4, &machine.to_le_bytes());
        fake.put(NT + 6, &1u16.to_le_bytes());
        fake.put(NT + 8, &0x1234_5678u32.to_le_bytes());
        fake.put(NT + 20, &240u16.to_le_bytes());
        fake.put(OPTIONAL, &0x20bu16.to_le_bytes());
        fake.put(OPTIONAL + 24, &BASE.to_le_bytes());
        fake.put(OPTIONAL + 56, &0x1_0000u32.to_le_bytes());
        fake.put(OPTIONAL + 60, &0x400u32.to_le_bytes());
        fake.put(OPTIONAL + 64, &0xabcdu32.to_le_bytes());
        fake.put(OPTIONAL + 108, &16u32.to_le_bytes());
        let section = OPTIONAL + 240;
        fake.put(section, b".text");
        fake.put(section + 8, &0x1000u32.to_le_bytes());
        fake.put(section + 12, &0x1000u32.to_le_bytes());
        fake.put(section + 36, &0x6000_0020u32.to_le_bytes());
        fake
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn words(&mut self, at: usize, words: &[u32]) {
        for (index, word) in words.iter().enumerate() {
            self.put(at + index * 4, &word.to_le_bytes());
        }
    }

    fn directory(&mut self, index: usize, rva: u32, len: u32) {
        self.words(OPTIONAL + 112 + index * 8, &[rva, len]);
    }

    fn image(&self) -> Image {
        Image::read(self, BASE, 0x1_0000).unwrap()
    }

    fn parts(&self) -> Vec<ImagePart> {
        let mut parts = Vec::new();
        self.image().unwind_parts(self, &mut |part| parts.push(part));
        parts
    }

    /// Start and end of every stored range of a kind.
    fn ranges(&self, kind: TableKind) -> Vec<(u32, u32)> {
        let parts = self.parts();
        for part in &parts {
            let at = part.rva as usize;
            assert!(part.bytes == self.bytes[at..at + part.bytes.len()], "the bytes at {at:#x}");
        }
        let of_kind = parts.iter().filter(|part| part.kind == kind);
        of_kind.map(|part| (part.rva, part.rva + part.bytes.len() as u32)).collect()
    }
}

#[test]
fn identity_fields_and_code_view_are_those_of_the_headers() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    fake.directory(pe::DIRECTORY_DEBUG, 0x2000, 56);
    // IMAGE_DEBUG_DIRECTORY: characteristics, stamp, version, type, size, rva, file offset. The
    // second is CodeView.
    fake.words(0x2000, &[0, 0, 0, 13, 8, 0x2200, 0]);
    fake.words(0x2000 + 28, &[0, 0, 0, 2, 24 + 8, 0x2100, 0]);
    fake.put(0x2100, b"RSDS");
    fake.put(0x2104, &[7; 16]);
    fake.put(0x2114, &3u32.to_le_bytes());
    fake.put(0x2118, b"app.pdb\0");
    let image = fake.image();
    assert_eq!(
        image.identity,
        PeIdentity { time_date_stamp: 0x1234_5678, size_of_image: 0x1_0000, check_sum: 0xabcd }
    );
    let record = image.code_view.as_ref().unwrap();
    assert_eq!((record.guid, record.age, &*record.pdb_name), ([7; 16], 3, &b"app.pdb"[..]));
    assert_eq!(fake.ranges(TableKind::Debug), [(0x2000, 0x2038), (0x2100, 0x2120)]);
    assert!(image.is_code(0x1000) && image.is_code(0x1fff) && !image.is_code(0x2000));
}

#[test]
fn the_header_hash_is_the_same_at_every_load_address_and_differs_between_images() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    let hash = fake.image().header_hash;
    fake.put(OPTIONAL + 24, &0x7ffe_0000_0000u64.to_le_bytes());
    assert_eq!(fake.image().header_hash, hash);
    fake.put(OPTIONAL + 240, b".text2");
    assert_ne!(fake.image().header_hash, hash);
}

#[test]
fn unwind_info_is_followed_through_chains_and_shared_entries_even_in_circles() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 36);
    // The first is chained to another page, the second shares a RUNTIME_FUNCTION elsewhere, the
    // third is plain.
    fake.words(0x4000, &[0x1000, 0x1010, 0x5000]);
    fake.words(0x400c, &[0x1010, 0x1020, 0x4801]);
    fake.words(0x4018, &[0x1020, 0x1030, 0x8ff8]);
    fake.put(0x5000, &[1 | 4 << 3, 0, 1, 0]);
    fake.words(0x5008, &[0x1000, 0x1010, 0x6000]);
    // Chained back to the first.
    fake.put(0x6000, &[1 | 4 << 3, 0, 0, 0]);
    fake.words(0x6004, &[0x1000, 0x1010, 0x5000]);
    fake.words(0x4800, &[0x1010, 0x1020, 0x7000]);
    fake.put(0x7000, &[1, 0, 0, 0]);
    // Four codes at the end of a page, then a handler on the next.
    fake.put(0x8ff8, &[1 | 1 << 3, 0, 4, 0]);
    assert_eq!(fake.ranges(TableKind::ExceptionDirectory), [(0x4000, 0x4024)]);
    assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x4000, 0xa000)]);
}

#[test]
fn a_page_that_cannot_be_read_is_left_out_and_the_rest_is_kept() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 24);
    fake.words(0x4000, &[0x1000, 0x1010, 0x5000]);
    fake.words(0x400c, &[0x1010, 0x1020, 0x6000]);
    fake.put(0x5000, &[1, 0, 0, 0]);
    fake.put(0x6000, &[1, 0, 0, 0]);
    fake.holes.insert(5);
    assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x6000, 0x7000)]);
    fake.holes.insert(4);
    assert_eq!(fake.ranges(TableKind::ExceptionDirectory), []);
    assert_eq!(fake.ranges(TableKind::Headers), [(0, 0x400)]);
}

#[test]
fn arm64_records_are_stored_with_all_their_words_and_packed_data_needs_none() {
    let mut fake = Fake::new(pe::MACHINE_ARM64);
    fake.directory(pe::DIRECTORY_EXCEPTION, 0x4000, 24);
    fake.words(0x4000, &[0x1000, 0x5ffc]);
    // Packed unwind data: flag 1.
    fake.words(0x4008, &[0x1010, 0x9001]);
    fake.words(0x4010, &[0x1020, 0x7ff8]);
    // 2 epilogue scopes, 1 code word: 4 + 8 + 4 bytes from 0x5ffc, so into the next page.
    fake.words(0x5ffc, &[2 << 22 | 1 << 27]);
    // Extended header: no epilogue scopes, 3 code words: 8 + 12 bytes from 0x7ff8.
    fake.words(0x7ff8, &[0, 3 << 16]);
    assert_eq!(fake.ranges(TableKind::UnwindInfo), [(0x5000, 0x9000)]);
}

#[test]
fn export_names_and_arrays_outside_of_the_directory_are_stored_too() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    fake.directory(pe::DIRECTORY_EXPORT, 0x2000, 0x100);
    // The export directory: the DLL name lies inside, 1 function, 2 names; functions and ordinals
    // lie inside, the names' array outside.
    fake.words(0x2000 + 12, &[0x2080, 1, 1, 2, 0x2040, 0x5000, 0x2050]);
    fake.words(0x5000, &[0x2090, 0x7ffe]);
    fake.put(0x2090, b"inside\0");
    fake.put(0x7ffe, b"across_pages\0");
    assert_eq!(fake.ranges(TableKind::Exports), [(0x2000, 0x2100), (0x5000, 0x6000), (0x7000, 0x9000)]);
}

#[test]
fn an_export_is_found_by_its_name_alone() {
    let mut fake = Fake::new(pe::MACHINE_X64);
    fake.directory(pe::DIRECTORY_EXPORT, 0x2000, 0x200);
    // Three functions, three names in order, whose ordinals are 2, 0, 1.
    fake.words(0x2000 + 20, &[3, 3, 0x2040, 0x2060, 0x2080]);
    fake.words(0x2040, &[0x1010, 0x1020, 0x1030]);
    fake.words(0x2060, &[0x2090, 0x20a0, 0x20b0]);
    fake.words(0x2080, &[2, 1]);
    for (at, name) in [(0x2090, &b"Alpha\0"[..]), (0x20a0, b"Beta\0"), (0x20b0, b"Betamax\0")] {
        fake.put(at, name);
    }
    let image = Image::read(&fake, BASE, 0x1_0000).expect("an image");
    let found = |name: &[u8]| image.export(&fake, name).map(|address| address - BASE);
    assert_eq!(
        [found(b"Alpha"), found(b"Beta"), found(b"Betamax")],
        [Some(0x1030), Some(0x1010), Some(0x1020)]
    );
    assert_eq!([found(b"Bet"), found(b"Betamaxx"), found(b""), found(&[b'x'; 500])], [None; 4]);
}

#[test]
fn invalid_images_are_refused() {
    let good = Fake::new(pe::MACHINE_X64);
    assert!(Image::read(&good, BASE + 0x1000, 0x1000).is_none());
    assert!(Image::read(&good, 0, 0x1000).is_none());
    for (at, byte) in [(0, b'N'), (NT, b'Q'), (OPTIONAL, 0), (0x3d, 0xff)] {
        let mut bad = Fake::new(pe::MACHINE_X64);
        bad.bytes[at] = byte;
        assert!(Image::read(&bad, BASE, 0x1_0000).is_none(), "byte {at:#x}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]

    /// Headers and tables of arbitrary content end in stored ranges inside the image, or in
    /// nothing.
    #[test]
    fn arbitrary_images_neither_panic_nor_leave_the_image(
        arm64: bool,
        changes in proptest::collection::vec((0usize..0x1_0000, proptest::prelude::any::<u32>()), 0..60),
        directories in proptest::collection::vec((0usize..16, 0u32..0x1_2000, 0u32..0x1_2000), 0..6),
        holes in proptest::collection::btree_set(1u32..16, 0..4),
    ) {
        let mut fake = Fake::new(if arm64 { pe::MACHINE_ARM64 } else { pe::MACHINE_X64 });
        for (index, rva, len) in directories {
            fake.directory(index, rva, len);
        }
        for (at, value) in changes {
            // Half of them point into the image, as RVAs would.
            let value = if value & 1 == 0 { value % 0x1_0000 } else { value };
            fake.words(at.min(0x1_0000 - 4), &[value]);
        }
        fake.holes = holes;
        if let Some(image) = Image::read(&fake, BASE, 0x1_0000) {
            let mut check = |part: ImagePart| {
                let at = part.rva as usize;
                assert!(part.bytes == fake.bytes[at..at + part.bytes.len()]);
            };
            image.unwind_parts(&fake, &mut check);
            image.code_parts(&fake, &mut check);
        }
    }
}
