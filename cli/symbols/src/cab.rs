//! Compressed symbol files: cabinets with a single file (`.pd_`, `.dl_`, `.ex_`).

use std::io::{self, Cursor, Read, Write};

use super::bundle::unpacked_limit;
use stk_base::model::bytes::{u16_at, u32_at};

/// Whether these are the first bytes of a cabinet.
pub fn is_cabinet(data: &[u8]) -> bool {
    data.starts_with(b"MSCF")
}

/// Unpacks the only file of a cabinet, at most `limit` bytes, and returns its length.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] if it is not a cabinet of one file, or is damaged, or its file is
/// larger than `limit` or than any real one of that packed size.
pub fn expand(data: &[u8], limit: u64, out: &mut dyn Write) -> io::Result<u64> {
    let size = single_file(data).ok_or_else(|| invalid("is not a cabinet with one file"))?;
    if u64::from(size) > limit {
        return Err(invalid("unpacks to more than the size limit"));
    }
    if u64::from(size) > unpacked_limit(data.len()) {
        return Err(invalid("unpacks to more than a cabinet of its size can hold"));
    }
    let mut cabinet = cab::Cabinet::new(Cursor::new(data))?;
    let name = cabinet
        .folder_entries()
        .flat_map(|folder| folder.file_entries())
        .next()
        .map(|file| file.name().to_owned())
        .ok_or_else(|| invalid("is an empty cabinet"))?;
    let mut file = cabinet.read_file(&name)?.take(u64::from(size));
    let written = io::copy(&mut file, out)?;
    if written != u64::from(size) {
        return Err(invalid("is a cabinet that ends early"));
    }
    Ok(written)
}

/// Size of the only file of a cabinet (MS-CAB, 2.1 to 2.3). The `cab` crate panics where a file
/// begins behind the folder's data, so only a single file at the beginning of a single folder is
/// accepted.
fn single_file(data: &[u8]) -> Option<u32> {
    let (folders, files) = (u16_at(data, 26)?, u16_at(data, 28)?);
    let first_file = u32_at(data, 16)? as usize;
    let (size, offset, folder) =
        (u32_at(data, first_file)?, u32_at(data, first_file + 4)?, u16_at(data, first_file + 8)?);
    (is_cabinet(data) && folders == 1 && files == 1 && offset == 0 && folder == 0).then_some(size)
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cabinet(contents: &[u8], compression: cab::CompressionType) -> Vec<u8> {
        let mut builder = cab::CabinetBuilder::new();
        builder.add_folder(compression).add_file("x.pdb");
        let mut writer = builder.build(Cursor::new(Vec::new())).unwrap();
        while let Some(mut file) = writer.next_file().unwrap() {
            file.write_all(contents).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    #[test]
    fn packed_files_are_unpacked() {
        let contents: Vec<u8> = (0..100_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for compression in [cab::CompressionType::None, cab::CompressionType::MsZip] {
            let packed = cabinet(&contents, compression);
            let mut out = Vec::new();
            assert_eq!(expand(&packed, 1 << 20, &mut out).unwrap(), contents.len() as u64);
            assert!(out == contents);
        }
    }

    #[test]
    fn a_stated_size_beyond_the_limit_is_refused_before_unpacking() {
        let packed = cabinet(&[0; 5000], cab::CompressionType::MsZip);
        let mut out = Vec::new();
        assert!(expand(&packed, 4999, &mut out).is_err());
        assert!(out.is_empty());
    }

    #[test]
    fn a_stated_size_far_beyond_the_packed_size_is_refused_before_unpacking() {
        let mut packed = cabinet(&[0; 5000], cab::CompressionType::MsZip);
        let first_file = u32_at(&packed, 16).unwrap() as usize;
        packed[first_file..first_file + 4].copy_from_slice(&(1u32 << 30).to_le_bytes());
        let mut out = Vec::new();
        let error = expand(&packed, u64::MAX, &mut out).unwrap_err();
        assert!(error.to_string().contains("of its size"), "{error}");
        assert!(out.is_empty());
    }

    #[test]
    fn a_file_that_begins_behind_the_data_is_refused() {
        let mut packed = cabinet(b"contents", cab::CompressionType::None);
        let first_file = u32_at(&packed, 16).unwrap() as usize;
        packed[first_file + 4] = 200;
        assert!(expand(&packed, 1 << 20, &mut Vec::new()).is_err());
    }

    #[test]
    fn every_prefix_and_flipped_byte_gives_an_error_or_the_contents() {
        let contents = b"contents contents contents".repeat(50);
        let packed = cabinet(&contents, cab::CompressionType::MsZip);
        for len in 0..packed.len() {
            assert!(expand(&packed[..len], 1 << 20, &mut Vec::new()).is_err(), "{len}");
        }
        for at in 0..packed.len() {
            for bit in 0..8 {
                let mut damaged = packed.clone();
                damaged[at] ^= 1 << bit;
                let _ = expand(&damaged, 1 << 20, &mut Vec::new());
            }
        }
    }
}
