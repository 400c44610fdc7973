//! Compressed outputs: the end of a file's name says which.

use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{self, Read, Write};
use std::path::Path;

/// How an output is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip, by the ending `.gz`.
    Gzip,
    /// Zstandard, by the ending `.zst`.
    Zstd,
}

impl Compression {
    /// The compression that a file's name asks for.
    pub fn of(path: &Path) -> Compression {
        let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
        match extension.as_ref().and_then(|extension| extension.to_str()) {
            Some("gz") => Compression::Gzip,
            Some("zst") => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// The compression of a file that begins with these bytes.
    pub(super) fn of_bytes(bytes: &[u8]) -> Compression {
        const GZIP: [u8; 2] = [0x1f, 0x8b];
        const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
        match bytes {
            _ if bytes.starts_with(&GZIP) => Compression::Gzip,
            _ if bytes.starts_with(&ZSTD) => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// Reads the text of such a file; `None` if it is not compressed.
    pub(super) fn reader<'a, R: Read + 'a>(self, file: R) -> io::Result<Option<Box<dyn Read + 'a>>> {
        Ok(match self {
            Compression::None => None,
            Compression::Gzip => Some(Box::new(MultiGzDecoder::new(file))),
            Compression::Zstd => Some(Box::new(zstd::Decoder::new(file)?)),
        })
    }
}

/// Compresses what is written to it. The same bytes always give the same file: it has no time in
/// it.
pub(super) struct Encoder<W: Write>(EncoderKind<W>);

enum EncoderKind<W: Write> {
    None(CountingWriter<W>),
    Gzip(GzEncoder<CountingWriter<W>>),
    Zstd(zstd::Encoder<'static, CountingWriter<W>>),
}

impl<W: Write> Encoder<W> {
    pub(super) fn new(inner: W, compression: Compression) -> io::Result<Encoder<W>> {
        let inner = CountingWriter { inner, bytes: 0 };
        Ok(Encoder(match compression {
            Compression::None => EncoderKind::None(inner),
            Compression::Gzip => EncoderKind::Gzip(GzEncoder::new(inner, flate2::Compression::default())),
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(inner, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                EncoderKind::Zstd(encoder)
            }
        }))
    }

    /// Writes the rest. Returns what was written to, and the number of bytes.
    pub(super) fn finish(self) -> io::Result<(W, u64)> {
        let mut counter = match self.0 {
            EncoderKind::None(inner) => inner,
            EncoderKind::Gzip(encoder) => encoder.finish()?,
            EncoderKind::Zstd(encoder) => encoder.finish()?,
        };
        counter.flush()?;
        Ok((counter.inner, counter.bytes))
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            EncoderKind::None(inner) => inner.write(bytes),
            EncoderKind::Gzip(encoder) => encoder.write(bytes),
            EncoderKind::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            EncoderKind::None(inner) => inner.flush(),
            EncoderKind::Gzip(encoder) => encoder.flush(),
            EncoderKind::Zstd(encoder) => encoder.flush(),
        }
    }
}

/// Counts the bytes that are written.
struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn what_is_written_comes_back_through_other_readers() {
        let text = "main;work 12\n".repeat(5000).into_bytes();
        let packed = |compression| {
            let mut encoder = Encoder::new(Vec::new(), compression).unwrap();
            text.chunks(7).for_each(|part| encoder.write_all(part).unwrap());
            let (bytes, count) = encoder.finish().unwrap();
            assert_eq!(bytes.len() as u64, count);
            bytes
        };
        assert_eq!(packed(Compression::None), text);
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&*packed(Compression::Gzip)).read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, text);
        assert_eq!(zstd::decode_all(&*packed(Compression::Zstd)).unwrap(), text);
        for compression in [Compression::Gzip, Compression::Zstd] {
            assert!(packed(compression).len() < text.len() / 20);
        }
        // RFC 1952, 2.3: MTIME is in bytes 4 to 7.
        assert_eq!(packed(Compression::Gzip)[4..8], [0; 4]);
    }

    #[test]
    fn the_last_ending_alone_says_the_compression() {
        let of = |name: &str| Compression::of(Path::new(name));
        assert_eq!(of("a.speedscope.json.gz"), Compression::Gzip);
        assert_eq!(of("A.FOLDED.GZ"), Compression::Gzip);
        assert_eq!(of("a.chrome.json.zst"), Compression::Zstd);
        assert_eq!(of("a.gz.json"), Compression::None);
        assert_eq!(of("gz"), Compression::None);
    }
}
