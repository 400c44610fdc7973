//! Compressed sections, as Go's linker and `objcopy --compress-debug-sections` write them:
//! `.zdebug_info` holds `ZLIB`, the length as eight bytes, big-endian, and a zlib stream (GDB,
//! "Separate debug sections").

use std::collections::HashMap;
use std::io::Read as _;

use crate::index::build::IndexBuilder;

/// Limit for the bytes that a stored byte may expand to. Real sections expand to less than 12.
const MOST_EXPANSION: usize = 64;
const HEADER: usize = 12;

/// The compressed sections of an image, unpacked.
pub(super) struct Unpacked<'d> {
    sections: HashMap<&'d [u8], Vec<u8>>,
    /// Number of those that cannot be unpacked.
    pub(super) damaged: u32,
}

impl<'d> Unpacked<'d> {
    /// Unpacks the sections. Their bytes count as bytes of the file from now on.
    pub(super) fn new(sections: &HashMap<&'d [u8], &'d [u8]>, builder: &mut IndexBuilder) -> Unpacked<'d> {
        let mut unpacked = Unpacked { sections: HashMap::new(), damaged: 0 };
        for (name, data) in sections {
            let Some(name) = name.strip_prefix(b".zdebug_") else { continue };
            match unpack(data) {
                Some(data) => {
                    builder.add_stored(data.len());
                    unpacked.sections.insert(name, data);
                }
                None => unpacked.damaged += 1,
            }
        }
        unpacked
    }

    /// A section by its name without compression.
    pub(super) fn section(&self, name: &str) -> Option<&[u8]> {
        self.sections.get(name.strip_prefix(".debug_")?.as_bytes()).map(Vec::as_slice)
    }
}

fn unpack(data: &[u8]) -> Option<Vec<u8>> {
    let stated = u64::from_be_bytes(*data.strip_prefix(b"ZLIB")?.first_chunk()?);
    let len = usize::try_from(stated).ok().filter(|len| *len <= data.len().saturating_mul(MOST_EXPANSION))?;
    let mut out = Vec::new();
    flate2::read::ZlibDecoder::new(data.get(HEADER..)?).take(stated).read_to_end(&mut out).ok()?;
    (out.len() == len).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn packed(data: &[u8], stated: u64) -> Vec<u8> {
        let mut out = b"ZLIB".to_vec();
        out.extend(stated.to_be_bytes());
        let mut encoder = flate2::write::ZlibEncoder::new(out, flate2::Compression::best());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn only_whole_sections_of_a_believable_length_are_taken() {
        let data: Vec<u8> = (0..4096u32).flat_map(|n| n.wrapping_mul(0x9e37).to_le_bytes()).collect();
        let whole = packed(&data, data.len() as u64);
        assert_eq!(unpack(&whole), Some(data.clone()));
        let mut padded = whole.clone();
        padded.resize(whole.len() + 512, 0);
        assert_eq!(unpack(&padded), Some(data.clone()), "with the file's padding behind it");
        assert_eq!(unpack(&whole[..whole.len() / 2]), None);
        assert_eq!(unpack(&packed(&data, data.len() as u64 + 1)), None);
        assert_eq!(unpack(&packed(&data, u64::MAX)), None);
        assert_eq!(unpack(&packed(&[0; 1 << 20], 1 << 20)), None, "a bomb");
        assert_eq!(unpack(b"ZLIB"), None);
    }
}
