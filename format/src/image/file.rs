//! An image file as the loader would map it. `object` gives sections as the headers state them; the
//! loader rounds their offsets to sectors and fills their ends up to a page, so this is read by
//! hand.

use super::{MAX_HEADERS, MAX_SECTIONS, Memory, PAGE};
use alloc::vec::Vec;
use stk_schema::bytes::{u16_at, u32_at};

/// Sections of an image whose alignment is smaller than a page are mapped as they are in the file.
const FLAT_BELOW: u32 = PAGE;
/// PointerToRawData is rounded down to a sector by the loader.
const SECTOR: u32 = 512;

/// Part of the mapped image.
#[derive(Debug)]
struct Segment {
    rva: u32,
    /// Bytes mapped, whole pages.
    mapped: u32,
    /// Offset in the file of the first byte ...
    start: u32,
    /// ... and how many come from the file; the rest is zero.
    stored: u32,
}

/// The bytes of an image file, read by RVA: the image mapped at address 0, without relocations and
/// imports applied.
#[derive(Debug)]
pub struct ImageFile<'a> {
    bytes: &'a [u8],
    segments: Vec<Segment>,
}

impl<'a> ImageFile<'a> {
    /// Lays out the file `bytes` (PE format, "Section Table"); `None` if it has no PE headers.
    pub fn new(bytes: &'a [u8]) -> Option<ImageFile<'a>> {
        let nt = u32_at(bytes, 0x3c).filter(|&nt| nt <= MAX_HEADERS)? as usize;
        if bytes.get(..2)? != b"MZ" || bytes.get(nt..nt.checked_add(4)?)? != b"PE\0\0" {
            return None;
        }
        let optional = nt + 24;
        let alignment = u32_at(bytes, optional + 32)?;
        let headers = u32_at(bytes, optional + 60)?;
        let mut segments = Vec::new();
        if alignment < FLAT_BELOW {
            let len = u32::try_from(bytes.len()).ok()?;
            segments.push(Segment { rva: 0, mapped: round_up(len), start: 0, stored: len });
            return Some(ImageFile { bytes, segments });
        }
        segments.push(Segment { rva: 0, mapped: round_up(headers), start: 0, stored: headers });
        let table = optional + usize::from(u16_at(bytes, nt + 20)?);
        let count = usize::from(u16_at(bytes, nt + 6)?).min(MAX_SECTIONS);
        for at in (0..count).map(|index| table + index * 40) {
            let field = |offset| u32_at(bytes, at + offset);
            let (size, raw) = (field(8)?, field(16)?);
            let mapped = round_up(if size == 0 { raw } else { size });
            let start = field(20)? & !(SECTOR - 1);
            segments.push(Segment { rva: field(12)?, mapped, start, stored: raw.min(mapped) });
        }
        Some(ImageFile { bytes, segments })
    }

    /// Fills `into` from the segment that holds `rva`, up to the segment's end. Returns the number
    /// of bytes.
    fn read_some(&self, rva: u32, into: &mut [u8]) -> Option<usize> {
        let holds = |segment: &&Segment| rva >= segment.rva && rva - segment.rva < segment.mapped;
        let segment = self.segments.iter().find(holds)?;
        let offset = rva - segment.rva;
        let len = into.len().min((segment.mapped - offset) as usize);
        let into = into.get_mut(..len)?;
        let stored = len.min(segment.stored.saturating_sub(offset) as usize);
        let (from_file, zero) = into.split_at_mut(stored);
        let start = segment.start as usize + offset as usize;
        if stored != 0 {
            from_file.copy_from_slice(self.bytes.get(start..start.checked_add(stored)?)?);
        }
        zero.fill(0);
        Some(len)
    }
}

impl Memory for ImageFile<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Ok(mut rva) = u32::try_from(address) else { return false };
        let mut done = 0;
        while done < into.len() {
            let Some(len) = self.read_some(rva, &mut into[done..]) else { return false };
            done += len;
            let Some(next) = rva.checked_add(len as u32) else { return done == into.len() };
            rva = next;
        }
        true
    }
}

fn round_up(len: u32) -> u32 {
    len.checked_next_multiple_of(PAGE).unwrap_or(!(PAGE - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const NT: usize = 0x80;

    /// Two sections after the PE specification: the first has more memory than file, the second
    /// more file than memory.
    fn file() -> Vec<u8> {
        let mut bytes = vec![0; 0x1000];
        let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        put(0x3c, NT as u32);
        put(NT, u32::from_le_bytes(*b"PE\0\0"));
        put(NT + 4, 0x8664 | 2 << 16);
        put(NT + 20, 240);
        put(NT + 24, 0x20b);
        put(NT + 24 + 32, 0x1000);
        put(NT + 24 + 36, 0x200);
        put(NT + 24 + 60, 0x400);
        let table = NT + 24 + 240;
        for (index, fields) in
            [[0x1800, 0x1000, 0x200, 0x400], [0x100, 0x4000, 0x400, 0x600]].iter().enumerate()
        {
            for (field, value) in fields.iter().enumerate() {
                put(table + index * 40 + 8 + field * 4, *value);
            }
        }
        bytes[0] = b'M';
        bytes[1] = b'Z';
        bytes[0x400..0x600].fill(1);
        bytes[0x600..0xa00].fill(2);
        bytes
    }

    fn at(image: &ImageFile<'_>, rva: u64, len: usize) -> Option<Vec<u8>> {
        let mut into = vec![9; len];
        image.read(rva, &mut into).then_some(into)
    }

    #[test]
    fn sections_lie_at_their_rvas_and_what_the_file_lacks_is_zero() {
        let bytes = file();
        let image = ImageFile::new(&bytes).unwrap();
        assert_eq!(at(&image, 0, 2).unwrap(), *b"MZ");
        assert_eq!(at(&image, 0x11ff, 2).unwrap(), [1, 0]);
        assert_eq!(at(&image, 0x2fff, 1).unwrap(), [0]);
        assert_eq!(at(&image, 0x4000, 0x400).unwrap(), [2; 0x400]);
        assert_eq!(at(&image, 0x4400, 1).unwrap(), [0]);
        // The gap between the sections and the range behind the last one are not mapped.
        assert_eq!([at(&image, 0x3000, 1), at(&image, 0x2fff, 2), at(&image, 0x5000, 1)], [None, None, None]);
        assert_eq!(at(&image, u64::MAX, 1), None);
    }

    #[test]
    fn a_file_that_was_cut_is_not_read_beyond_its_end() {
        let bytes = file();
        let image = ImageFile::new(&bytes[..0x700]).unwrap();
        assert_eq!(at(&image, 0x4000, 0x100).unwrap(), [2; 0x100]);
        assert_eq!(at(&image, 0x4000, 0x101), None);
        // PointerToRawData is the last field of the second section's header that is needed.
        for len in 0..NT + 24 + 240 + 40 + 24 {
            assert!(ImageFile::new(&bytes[..len]).is_none(), "{len} bytes were taken for an image");
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_headers_do_not_panic(
            changes in proptest::collection::vec((0usize..0x200, proptest::prelude::any::<u32>()), 0..20),
            rva: u32,
            len in 0usize..0x3000,
        ) {
            let mut bytes = file();
            for (at, value) in changes {
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
            if let Some(image) = ImageFile::new(&bytes) {
                at(&image, rva.into(), len);
            }
        }
    }
}
