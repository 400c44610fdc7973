//! Identities of images: two images with the same identity are the same.

/// A 128-bit content hash (xxh3-128 of the bytes, little-endian). All zero means "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct ContentHash(pub [u8; 16]);

impl ContentHash {
    /// No content.
    pub const NONE: ContentHash = ContentHash([0; 16]);

    /// Whether this is [`ContentHash::NONE`].
    pub fn is_none(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The hash that `text` is the text form of: 32 hex digits in lower case.
    pub fn parse(text: &str) -> Option<ContentHash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
        let mut hash = [0; 16];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(ContentHash(hash))
    }
}

impl core::fmt::Display for ContentHash {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// PE header fields that symbol servers use to name an image (PE specification, COFF and optional
/// header).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct PeIdentity {
    /// COFF header TimeDateStamp; not a time in reproducible builds.
    pub time_date_stamp: u32,
    /// Optional header SizeOfImage, in bytes.
    pub size_of_image: u32,
    /// Optional header CheckSum; 0 in many images.
    pub check_sum: u32,
}

/// CodeView record of an image (`RSDS`): names its PDB exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodeView<'a> {
    /// GUID as stored in the record (first three fields little-endian).
    pub guid: [u8; 16],
    /// Age: how often the PDB was rewritten under this GUID.
    pub age: u32,
    /// PDB path or name as the linker wrote it (UTF-8 by convention, not guaranteed).
    pub pdb_name: &'a [u8],
}

/// One identity of an image; an image may have several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Identity<'a> {
    /// PE header fields.
    Pe(PeIdentity),
    /// CodeView record.
    CodeView(CodeView<'a>),
    /// ELF build id (NT_GNU_BUILD_ID).
    ElfBuildId(&'a [u8]),
    /// Hash of the image's headers as found in memory with the fields that loading changes
    /// (ImageBase) zeroed: distinguishes images that share their other identities, as Wine's own
    /// DLLs do.
    HeaderHash(ContentHash),
    /// An identity that this version does not know: its tag and bytes.
    Unknown(u64, &'a [u8]),
}

/// Writes a GUID in its usual text form, `XXXXXXXX-XXXX-XXXX-XXXX-XXXXXXXXXXXX`.
pub struct GuidText<'a>(pub &'a [u8; 16]);

impl core::fmt::Display for GuidText<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let g = self.0;
        write!(
            f,
            "{:08X}-{:04X}-{:04X}-{:02X}{:02X}-",
            u32::from_le_bytes([g[0], g[1], g[2], g[3]]),
            u16::from_le_bytes([g[4], g[5]]),
            u16::from_le_bytes([g[6], g[7]]),
            g[8],
            g[9]
        )?;
        g[10..].iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_hash_comes_back_from_its_text() {
        let hash = ContentHash([0, 1, 0x2f, 0xff, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xa5]);
        let text = hash.to_string();
        assert_eq!(text, "00012fff0405060708090a0b0c0d0ea5");
        assert_eq!(ContentHash::parse(&text), Some(hash));
        for wrong in
            ["", "00", &text[1..], &text.to_uppercase(), &text.replace('f', "g"), &text.replace("00", "é")]
        {
            assert_eq!(ContentHash::parse(wrong), None, "{wrong}");
        }
    }
}
