//! The multi-stream container of a PDB (MSF 7.00), read in place.
//!
//! Layout as in LLVM's "The MSF File Format". A stream is a list of pages. Nothing is copied as
//! long as the pages that are read are consecutive in the file.

use std::borrow::Cow;

use super::error::PdbError;
use stk_base::model::bytes::u32_at;

const MAGIC: &[u8; 32] = b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0";
const OLD_MAGIC: &[u8] = b"Microsoft C/C++ program database 2.00\r\n";
const COMPRESSED_MAGIC: &[u8] = b"Microsoft MSFZ Container\r\n";
/// Numbers of the streams that every PDB has.
pub(super) const STREAM_INFO: u32 = 1;
pub(super) const STREAM_TYPES: u32 = 2;
pub(super) const STREAM_DBI: u32 = 3;
pub(super) const STREAM_IDS: u32 = 4;
/// Size of a stream that the directory lists as absent.
const NO_STREAM: u32 = u32::MAX;

/// An open container. The directory is read, the streams are not.
pub(super) struct Msf<'d> {
    data: &'d [u8],
    page_size: usize,
    directory: Cow<'d, [u8]>,
    /// Size of each stream in bytes, and the offset of its page list in the directory.
    streams: Vec<(u32, u32)>,
}

/// One stream of the container.
#[derive(Clone, Copy)]
pub(super) struct MsfStream<'m> {
    msf: &'m Msf<'m>,
    size: usize,
    pages: &'m [u8],
}

impl<'d> Msf<'d> {
    /// Reads the header and the stream directory.
    pub(super) fn open(data: &'d [u8]) -> Result<Msf<'d>, PdbError> {
        if data.starts_with(OLD_MAGIC) {
            return Err(PdbError::OldFormat);
        }
        if data.starts_with(COMPRESSED_MAGIC) {
            return Err(PdbError::Compressed);
        }
        if !data.starts_with(MAGIC) {
            return Err(PdbError::NotPdb);
        }
        let word = |at| u32_at(data, at).ok_or(PdbError::corrupt("header", at));
        let page_size = word(32)? as usize;
        if !page_size.is_power_of_two() || !(512..=1 << 16).contains(&page_size) {
            return Err(PdbError::corrupt("page size", 32));
        }
        let directory_size = word(44)? as usize;
        if directory_size > data.len() {
            return Err(PdbError::corrupt("directory size", 44));
        }
        // Behind the header come the page numbers of the list of the directory's pages.
        let page_count = directory_size.div_ceil(page_size);
        let list_pages = (page_count * 4).div_ceil(page_size);
        let outer = data.get(52..52 + list_pages * 4).ok_or(PdbError::corrupt("directory page list", 52))?;
        let list = gather(data, page_size, outer, 0, page_count * 4)
            .ok_or(PdbError::corrupt("directory page list", 52))?;
        let directory = gather(data, page_size, &list, 0, directory_size)
            .ok_or(PdbError::corrupt("directory pages", 52))?;

        let streams = read_directory(&directory, page_size, data.len())?;
        Ok(Msf { data, page_size, directory, streams })
    }

    /// Length of the file in bytes.
    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    /// Hash over the header, the directory and the length of the file.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = xxhash_rust::xxh3::Xxh3::new();
        hash.update(&self.data[..56.min(self.data.len())]);
        hash.update(&self.directory);
        hash.update(&(self.data.len() as u64).to_le_bytes());
        hash.digest()
    }

    /// The stream with this number, or `None` if the directory has none.
    pub(super) fn stream(&self, number: u32) -> Option<MsfStream<'_>> {
        let &(size, at) = self.streams.get(number as usize)?;
        if size == NO_STREAM {
            return None;
        }
        let size = size as usize;
        let pages = self.directory.get(at as usize..at as usize + size.div_ceil(self.page_size) * 4)?;
        Some(MsfStream { msf: self, size, pages })
    }
}

impl<'m> MsfStream<'m> {
    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.size
    }

    /// `len` bytes from `at`, borrowed from the file if their pages are consecutive.
    pub(super) fn read(&self, at: usize, len: usize) -> Option<Cow<'m, [u8]>> {
        if at.checked_add(len)? > self.size {
            return None;
        }
        gather(self.msf.data, self.msf.page_size, self.pages, at, len)
    }

    /// The whole stream.
    pub(super) fn read_all(&self) -> Result<Cow<'m, [u8]>, PdbError> {
        self.read(0, self.size).ok_or(PdbError::Corrupt { what: "page of a stream", at: 0 })
    }
}

/// Splits the directory into streams, checking that no stream claims more pages than the file has.
fn read_directory(directory: &[u8], page_size: usize, file_size: usize) -> Result<Vec<(u32, u32)>, PdbError> {
    let bad = |at| PdbError::corrupt("stream directory", at);
    let count = u32_at(directory, 0).ok_or(bad(0))? as usize;
    let sizes = directory.get(4..).and_then(|rest| rest.get(..count.checked_mul(4)?)).ok_or(bad(0))?;
    let mut at = 4 + sizes.len();
    let mut streams = Vec::with_capacity(count);
    // A page belongs to one stream (except for the copy of the previous directory, hence the
    // factor). A directory that repeats pages would expand a small file to gigabytes.
    let mut pages_left = file_size.div_ceil(page_size) * 2;
    for (n, size) in sizes.chunks_exact(4).enumerate() {
        let size = u32_at(size, 0).unwrap_or(NO_STREAM);
        let pages = if size == NO_STREAM { 0 } else { (size as usize).div_ceil(page_size) };
        pages_left = pages_left.checked_sub(pages).ok_or(bad(4 + n * 4))?;
        if at + pages * 4 > directory.len() {
            return Err(bad(4 + n * 4));
        }
        streams.push((size, at as u32));
        at += pages * 4;
    }
    Ok(streams)
}

/// `len` bytes from `at` of the stream whose little-endian page numbers are `pages`.
fn gather<'d>(
    data: &'d [u8],
    page_size: usize,
    pages: &[u8],
    at: usize,
    len: usize,
) -> Option<Cow<'d, [u8]>> {
    if len == 0 {
        return Some(Cow::Borrowed(&[]));
    }
    let first = at / page_size;
    let last = (at + len - 1) / page_size;
    let number = |n: usize| u32_at(pages, n * 4).map(|page| page as usize);
    let start = number(first)?;
    let contiguous = (first..=last).all(|n| number(n) == Some(start + (n - first)));
    if contiguous {
        let from = start.checked_mul(page_size)? + at % page_size;
        return data.get(from..from.checked_add(len)?).map(Cow::Borrowed);
    }
    let mut out = Vec::with_capacity(len);
    for n in first..=last {
        let base = number(n)?.checked_mul(page_size)?;
        let skip = if n == first { at % page_size } else { 0 };
        let take = (page_size - skip).min(len - out.len());
        out.extend_from_slice(data.get(base + skip..base + skip + take)?);
    }
    Some(Cow::Owned(out))
}
