//! A bundle: a symbol store in one `.tar.zst` file, to carry to another machine.
//!
//! Members are named `<file name>/<identity>/<file name>`, as in a two-tier store, so that `tar
//! -xf` also makes a store. Each member is a zstd frame of its own (header, contents and padding).
//! RFC 8878 allows frames to follow each other, so unwanted members are skipped without being
//! unpacked. A bundle that another tool packed as one frame is also read, from its beginning.
//!
//! Member names are never used as paths: a member's name is only compared with the wanted one.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use zstd::stream::{read, write};
use zstd::zstd_safe::{find_frame_compressed_size, get_error_name, get_frame_content_size};

use stk_base::map::MappedFile;

/// Packs a 100 MB PDB in a few seconds to about a sixth of its size.
const LEVEL: i32 = 6;
/// Bytes of a tar header, and the unit that members are padded to.
const BLOCK: u64 = 512;
/// Limit for the members of a bundle. No real one has more.
const MAX_MEMBERS: usize = 1 << 17;
/// Limit for a header that names the next member (GNU long name, pax), in bytes.
const MAX_HEADER: u64 = 1 << 16;
/// Limit for the name of a member, in bytes: file names in it have at most 255, an identity 41.
const MAX_KEY: usize = 600;
/// How often an archive of one frame may be unpacked from its beginning, at its largest size.
const MAX_PASSES: u64 = 16;

/// Bytes that a stored file may unpack to. Real symbol files are packed to between a third and a
/// twentieth.
pub(super) fn unpacked_limit(stored: usize) -> u64 {
    stored as u64 * 256 + (16 << 20)
}

/// Whether the file name is that of a bundle.
pub fn is_bundle(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_ascii_lowercase();
    name.ends_with(".tar.zst") || name.ends_with(".tzst")
}

/// An open bundle. Its members are listed, but not unpacked.
#[derive(Debug)]
pub struct Bundle {
    file: MappedFile,
    /// The range of the frames that hold each member, by its name in lower case.
    members: HashMap<String, Range<usize>>,
    /// Bytes that may still be unpacked from an archive whose members share a frame.
    left: AtomicU64,
}

impl Bundle {
    /// Opens a bundle and lists its members.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is not a `.tar.zst`, or expands to far more than any real one.
    pub fn open(path: &Path) -> io::Result<Bundle> {
        let file = MappedFile::open_plain(path)?;
        let members = match list_frames(&file)? {
            Some(members) => members,
            None => list_stream(&file)?,
        };
        let left = AtomicU64::new(unpacked_limit(file.len()).saturating_mul(MAX_PASSES));
        Ok(Bundle { file, members, left })
    }

    /// How many files it holds.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it holds no file.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether it holds this file.
    pub fn holds(&self, name: &str, id: &str) -> bool {
        self.members.contains_key(&member_key(name, id))
    }

    /// Unpacks a file of at most `limit` bytes. Returns its length, or `None` if the bundle does
    /// not have it.
    ///
    /// # Errors
    ///
    /// When the output cannot be written, the archive is damaged, or the file is larger than
    /// `limit`.
    pub fn unpack(&self, name: &str, id: &str, limit: u64, out: &mut impl Write) -> io::Result<Option<u64>> {
        let key = member_key(name, id);
        let Some(frames) = self.members.get(&key).and_then(|range| self.file.get(range.clone())) else {
            return Ok(None);
        };
        let mut reader = ZstdFrames::new(frames, self.room(frames.len())?)?;
        let mut found = None;
        walk(&mut reader, |name, entry| {
            if name.as_ref() != Some(&key) {
                return Ok(true);
            }
            if entry.size() > limit {
                return Err(invalid(format!("is larger than {limit} bytes when unpacked")));
            }
            found = Some(io::copy(entry, out)?);
            Ok(false)
        })?;
        let len =
            found.ok_or_else(|| invalid("is damaged: a file that was listed is not there".to_owned()))?;
        reader.finish()?;
        if frames.len() == self.file.len() {
            self.left.fetch_sub(reader.made.min(self.left.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
        Ok(Some(len))
    }

    /// Bytes that may be unpacked for one member.
    fn room(&self, stored: usize) -> io::Result<u64> {
        let room = unpacked_limit(stored);
        if stored == self.file.len() && self.left.load(Ordering::Relaxed) < room {
            let text = "has one frame for all its files and was unpacked too often: unpack it with tar -xf and name the folder with -y";
            return Err(invalid(text.to_owned()));
        }
        Ok(room)
    }
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn not_intact(why: impl std::fmt::Display) -> io::Error {
    invalid(format!("is no intact .tar.zst: {why}"))
}

fn member_key(name: &str, id: &str) -> String {
    format!("{name}/{id}/{name}").to_lowercase()
}

/// Calls `each` with each file of an archive until it returns false, and with the file's name in
/// lower case if a file of a symbol store can have that name. Headers that name the next file are
/// read here, since the `tar` crate would read all of the length that they state.
fn walk<R: Read>(
    reader: R,
    mut each: impl FnMut(Option<String>, &mut tar::Entry<'_, R>) -> io::Result<bool>,
) -> io::Result<()> {
    let mut archive = tar::Archive::new(reader);
    let mut long_name = None;
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        match entry.header().entry_type() {
            tar::EntryType::GNULongName => long_name = Some(read_header(&mut entry)?),
            tar::EntryType::XHeader => long_name = pax_path(&read_header(&mut entry)?)?.or(long_name),
            tar::EntryType::GNULongLink | tar::EntryType::XGlobalHeader => {}
            kind => {
                let name = long_name.take().unwrap_or_else(|| entry.header().path_bytes().into_owned());
                let name = file_key(&name).filter(|_| kind.is_file());
                if !each(name, &mut entry)? {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// The contents of a header that describes the next member.
fn read_header<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Vec<u8>> {
    if entry.size() > MAX_HEADER {
        return Err(invalid(format!("is damaged: a header in it has more than {MAX_HEADER} bytes")));
    }
    let mut text = Vec::new();
    entry.read_to_end(&mut text)?;
    Ok(text)
}

/// The path in a pax header. No symbol file is so large that pax has to state its size.
fn pax_path(header: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut path = None;
    for extension in tar::PaxExtensions::new(header) {
        let extension = extension?;
        match extension.key_bytes() {
            b"path" => path = Some(extension.value_bytes().to_vec()),
            b"size" => return Err(invalid("holds a file with a pax size, which is not read".to_owned())),
            _ => {}
        }
    }
    Ok(path)
}

/// A member's name in the form for comparisons: in lower case. `None` if no file of a symbol store
/// can have it.
fn file_key(name: &[u8]) -> Option<String> {
    let name = name.split(|&byte| byte == 0).next()?;
    let name = std::str::from_utf8(name).ok()?;
    let name = name.strip_prefix("./").unwrap_or(name);
    (name.len() <= MAX_KEY).then(|| name.to_lowercase())
}

/// The members of a bundle with one frame for each; `None` if it is not made that way.
fn list_frames(data: &[u8]) -> io::Result<Option<HashMap<String, Range<usize>>>> {
    let mut members = HashMap::new();
    let mut at = 0;
    while at < data.len() {
        let rest = &data[at..];
        let len = find_frame_compressed_size(rest).map_err(|code| not_intact(get_error_name(code)))?;
        let frame = rest.get(..len).filter(|frame| !frame.is_empty());
        let frame = frame.ok_or_else(|| invalid("is no intact .tar.zst".to_owned()))?;
        let content = get_frame_content_size(frame).ok().flatten();
        let mut head = Vec::new();
        ZstdFrames::new(frame, u64::MAX)?.take(BLOCK).read_to_end(&mut head)?;
        if head.iter().any(|&byte| byte != 0) {
            let Some((name, size)) = first_file(&head) else { return Ok(None) };
            let whole = size.checked_next_multiple_of(BLOCK).and_then(|len| len.checked_add(BLOCK));
            if whole != content {
                return Ok(None);
            }
            insert(&mut members, name, at..at + len)?;
        }
        at += len;
    }
    Ok(Some(members))
}

/// Name and size of the file whose header comes first in an archive.
fn first_file(head: &[u8]) -> Option<(String, u64)> {
    let mut found = None;
    // What follows the header is missing, so the walk may end in an error.
    let _ = walk(head, |name, entry| {
        found = name.map(|name| (name, entry.size()));
        Ok(false)
    });
    found
}

/// The members of any `.tar.zst`. Each is found by reading from the beginning.
fn list_stream(data: &[u8]) -> io::Result<HashMap<String, Range<usize>>> {
    let mut members = HashMap::new();
    walk(ZstdFrames::new(data, unpacked_limit(data.len()))?, |name, _| {
        name.map_or(Ok(()), |name| insert(&mut members, name, 0..data.len()))?;
        Ok(true)
    })?;
    Ok(members)
}

fn insert(members: &mut HashMap<String, Range<usize>>, name: String, frames: Range<usize>) -> io::Result<()> {
    if members.len() >= MAX_MEMBERS {
        return Err(invalid(format!("holds more than {MAX_MEMBERS} files")));
    }
    members.insert(name, frames);
    Ok(())
}

/// Unpacks zstd frames that follow each other.
struct ZstdFrames<'d> {
    frames: read::Decoder<'static, &'d [u8]>,
    /// Bytes unpacked so far, and their limit.
    made: u64,
    limit: u64,
}

impl<'d> ZstdFrames<'d> {
    fn new(input: &'d [u8], limit: u64) -> io::Result<ZstdFrames<'d>> {
        Ok(ZstdFrames { frames: read::Decoder::with_buffer(input)?, made: 0, limit })
    }

    /// Reads to the end, to check the last frame's checksum.
    fn finish(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(drop)
    }
}

impl Read for ZstdFrames<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let made = self.frames.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "the archive is cut off"),
            _ => not_intact(error),
        })?;
        self.made += made as u64;
        if self.made > self.limit {
            return Err(invalid(format!("expands to more than {} bytes", self.limit)));
        }
        Ok(made)
    }
}

/// Writes a bundle. The same files in the same order give the same bytes.
pub struct BundleWriter<W: Write> {
    tar: tar::Builder<FrameWriter<W>>,
}

impl<W: Write> BundleWriter<W> {
    /// A writer that writes nothing before the first file.
    pub fn new(out: W) -> BundleWriter<W> {
        BundleWriter { tar: tar::Builder::new(FrameWriter::Between(out)) }
    }

    /// Adds a file. `name` must be safe as a file name ([`super::safe_file_name`]). `id` is its
    /// identity.
    pub fn add(&mut self, name: &str, id: &str, data: &[u8]) -> io::Result<()> {
        let path = format!("{name}/{id}/{name}");
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        // A longer name gets a header of its own before the file's. Such a member is found by
        // reading from the beginning.
        let size = (data.len() as u64).next_multiple_of(BLOCK) + BLOCK;
        let size = header.set_path(&path).is_ok().then_some(size);
        self.tar.get_mut().begin(size)?;
        self.tar.append_data(&mut header, &path, data)?;
        self.tar.get_mut().end()
    }

    /// Ends the archive and returns the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.tar.get_mut().begin(None)?;
        let frames = self.tar.into_inner()?;
        let mut out = frames.into_output()?;
        out.flush()?;
        Ok(out)
    }
}

/// Packs what is written between `begin` and `end` into one zstd frame.
enum FrameWriter<W: Write> {
    /// No frame is open.
    Between(W),
    /// A frame that has begun.
    Open(write::Encoder<'static, W>),
    /// A write failed.
    Failed,
}

impl<W: Write> FrameWriter<W> {
    /// Begins a frame of `size` bytes, if the size is known.
    fn begin(&mut self, size: Option<u64>) -> io::Result<()> {
        let mut encoder =
            write::Encoder::new(std::mem::replace(self, FrameWriter::Failed).into_output()?, LEVEL)?;
        encoder.include_checksum(true)?;
        encoder.set_pledged_src_size(size)?;
        *self = FrameWriter::Open(encoder);
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        *self = FrameWriter::Between(std::mem::replace(self, FrameWriter::Failed).into_output()?);
        Ok(())
    }

    /// Ends the open frame and returns the output.
    fn into_output(self) -> io::Result<W> {
        match self {
            FrameWriter::Between(out) => Ok(out),
            FrameWriter::Open(encoder) => encoder.finish(),
            FrameWriter::Failed => Err(io::Error::other("the bundle was not written whole")),
        }
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            FrameWriter::Open(encoder) => encoder.write(data),
            FrameWriter::Between(_) | FrameWriter::Failed => Err(io::Error::other("no frame is open")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
