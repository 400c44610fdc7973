//! What an output says of the trace that it was made of, so that stk knows its own output of a
//! trace when it meets it again.

use super::compress::Compression;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use stk_base::files::look_at;
use stk_profile::profile::Profile;
use stk_profile::trace::Content;
use stk_schema::identity::ContentHash;

/// Bytes at the beginning and at the end of an output that are searched. The end of a Parquet file
/// describes its columns too.
const SEARCHED: u64 = 64 << 10;

/// Bytes of a compressed output that are unpacked at most.
const MOST_UNPACKED: u64 = 4 << 30;

/// The content of a trace, as an output names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceMark {
    /// Its length in bytes.
    pub len: u64,
    /// Its digest.
    pub digest: ContentHash,
}

/// Name and version of this program, and the content of the profile's trace if it is known:
/// `stk 0.1.0 (trace of 312090 bytes, xxh3-128 0123…)`.
pub(super) fn exporter(profile: &Profile) -> String {
    exporter_of(profile.trace.content.as_ref())
}

/// [`exporter`] for an output of this content.
pub(crate) fn exporter_of(content: Option<&Content>) -> String {
    let stk = concat!("stk ", env!("CARGO_PKG_VERSION"));
    match content {
        Some(content) => format!("{stk}{BEFORE_LEN}{}{BEFORE_DIGEST}{})", content.len, content.digest),
        None => stk.to_owned(),
    }
}

const BEFORE_LEN: &str = " (trace of ";
const BEFORE_DIGEST: &str = " bytes, xxh3-128 ";

/// The trace that the file at `path` says it was made of; `None` if it says nothing of that.
///
/// # Errors
///
/// When it is no regular file, or cannot be read.
pub fn source_mark(path: &Path) -> io::Result<Option<SourceMark>> {
    let mut file = look_at(path)?;
    let mut magic = Vec::new();
    (&file).take(4).read_to_end(&mut magic)?;
    file.rewind()?;
    if let Some(mut text) = Compression::of_bytes(&magic).reader(&file)? {
        let ends = ends_of(&mut *text);
        return Ok(ends.ok().and_then(|ends| ends.iter().find_map(|end| mark_in(end))));
    }
    let len = file.metadata()?.len();
    for at in [0, len.saturating_sub(SEARCHED)] {
        file.seek(SeekFrom::Start(at))?;
        let mut bytes = Vec::new();
        (&file).take(SEARCHED).read_to_end(&mut bytes)?;
        if let Some(mark) = mark_in(&bytes) {
            return Ok(Some(mark));
        }
    }
    Ok(None)
}

/// The first and the last bytes of a text that can only be read from its beginning.
///
/// # Errors
///
/// When it cannot be read, or is longer than an output that a viewer could open.
fn ends_of(text: &mut dyn Read) -> io::Result<[Vec<u8>; 2]> {
    let mut first = Vec::new();
    text.take(SEARCHED).read_to_end(&mut first)?;
    let mut last = first.clone();
    let mut read = 0;
    loop {
        let before = last.len();
        text.take(SEARCHED).read_to_end(&mut last)?;
        let more = last.len() - before;
        read += more as u64;
        if more == 0 {
            return Ok([first, last]);
        }
        if read > MOST_UNPACKED {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        last.drain(..last.len().saturating_sub(SEARCHED as usize));
    }
}

fn mark_in(bytes: &[u8]) -> Option<SourceMark> {
    let before = BEFORE_LEN.as_bytes();
    let places = bytes.windows(before.len()).enumerate().filter(|(_, window)| *window == before);
    places.filter_map(|(at, _)| parse(&bytes[at + before.len()..])).next()
}

/// Reads a mark behind [`BEFORE_LEN`].
fn parse(bytes: &[u8]) -> Option<SourceMark> {
    let text: Vec<u8> = bytes.iter().copied().take(80).take_while(|byte| *byte != b')').collect();
    let (len, digest) = std::str::from_utf8(&text).ok()?.split_once(BEFORE_DIGEST)?;
    Some(SourceMark { len: len.parse().ok()?, digest: ContentHash::parse(digest)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const DIGEST: &str = "000102030405060708090a0b0c0d0e0f";

    #[test]
    fn a_mark_is_found_in_a_compressed_file() {
        let filling = "(trace of ".repeat(40_000);
        let text = format!("{filling}stk 0.1.0 (trace of 5 bytes, xxh3-128 {DIGEST})\n");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        let gzip = gzip.finish().unwrap();
        let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        for packed in [&gzip, &zstd] {
            std::fs::write(file.path(), packed).unwrap();
            assert_eq!(source_mark(file.path()).unwrap().map(|mark| mark.len), Some(5));
            std::fs::write(file.path(), &packed[..packed.len() / 2]).unwrap();
            assert_eq!(source_mark(file.path()).unwrap(), None, "cut");
        }
    }

    #[test]
    fn a_mark_is_found_at_both_ends_of_a_file() {
        let mark = format!("\"exporter\":\"stk 0.1.0 (trace of 312090 bytes, xxh3-128 {DIGEST})\"}}");
        let expected = SourceMark {
            len: 312_090,
            digest: ContentHash([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let filling = "(trace of ".repeat(20_000);
        for (text, found) in [
            (mark.clone(), Some(expected)),
            (format!("{filling}{mark}\n"), Some(expected)),
            (format!("{mark}{filling}"), Some(expected)),
            (format!("{filling}{mark}{filling}"), None),
            (mark.replace("0f)", "0g)"), None),
            (mark.replace("312090", "-1"), None),
            (String::new(), None),
        ] {
            std::fs::write(file.path(), &text).unwrap();
            assert_eq!(source_mark(file.path()).unwrap(), found, "{} bytes", text.len());
        }
    }
}
