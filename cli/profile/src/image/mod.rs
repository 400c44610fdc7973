//! Facts about an image: unwind tables, export names and the system's thread-start functions, from
//! the trace itself or from a file on disk of the same identity. `pe` reads headers and exports.
//! `go` finds where Go's stacks start. `shared` keeps images for other traces. [`ModuleMap`]
//! (`space`) gives the walker the images and dynamic code at the addresses of a
//! [`TimelineCursor`](crate::trace::TimelineCursor).

mod go;
mod pe;
mod shared;
mod space;

use crate::trace::{BlobProblem, ImageRecord, Trace};
use rayon::prelude::*;
use shared::{ImageKey, KnownImage, Shared};
use std::collections::HashMap;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stk_base::map::MappedFile;
use stk_base::model::{Image, THREAD_STARTS, arch, image_id};
use stk_schema::event::TableKind;
use stk_schema::identity::ContentHash;
use stk_unwind::x86::X86Tables;
use stk_unwind::{Arch, ImageTables, ImageTablesBuilder, SharedBytes};
use thiserror::Error;

pub use pe::Exports;
pub use space::{ModuleMap, base_of, holder_name, image_of};

/// Facts about one image, which traces may share.
#[derive(Clone, Debug)]
pub struct ModuleImage(Arc<ImageFacts>);

/// Images that traces share.
pub type SharedImages = Shared<ModuleImage>;

impl Deref for ModuleImage {
    type Target = ImageFacts;

    fn deref(&self) -> &ImageFacts {
        &self.0
    }
}

/// Facts about one image.
#[derive(Debug)]
pub struct ImageFacts {
    /// Unwind tables and code, for the walker.
    pub tables: ImageTables,
    /// Names of exported functions.
    pub exports: Exports,
    /// Where these facts came from.
    pub source: ImageSource,
    /// What could not be used, one sentence each.
    pub problems: Vec<String>,
}

impl ImageFacts {
    /// The exported function that holds `rva`: its address and name. The nearest export below is
    /// not taken if unwind data shows that another function begins in between.
    pub fn export_at(&self, rva: u32) -> Option<(u32, &str)> {
        let after = self.exports.partition_point(|(start, _)| *start <= rva);
        let nearest = self.exports[..after].last()?.0;
        let start = if self.tables.knows_functions() {
            match self.tables.function_range(rva) {
                // An export may also be an entry in the middle of assembler code.
                Some(function) if function.contains(&nearest) && function.contains(&rva) => nearest,
                Some(function) => function.start,
                // A leaf function without unwind data (a system call thunk) is short.
                None if rva - nearest < LONGEST_LEAF && self.tables.is_one_function(nearest, rva) => nearest,
                None => return None,
            }
        } else {
            nearest
        };
        // Of several names for one address, take the first in the alphabet, so that all traces give
        // the same one.
        let first = self.exports.partition_point(|(rva, _)| *rva < start);
        let (rva, name) = self.exports.get(first).filter(|(rva, _)| *rva == start)?;
        Some((*rva, name))
    }
}

/// Limit for the bytes of a leaf function without unwind data that an export names.
const LONGEST_LEAF: u32 = 0x80;

/// Where the facts about an image came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageSource {
    /// The trace carries its tables.
    Trace,
    /// A file on disk with the same TimeDateStamp and SizeOfImage.
    File(PathBuf),
    /// Nowhere: only its name and size are known.
    Nowhere,
}

/// Where to find data on images that the trace does not carry.
#[derive(Clone, Copy)]
pub struct ImageSearch<'a> {
    /// Finds a file of the image. Whoever reads the file checks its identity. Called if the trace
    /// has no unwind data of the image; on x86, which has none, if the trace has no code of it.
    pub file: &'a (dyn Fn(&Image) -> Option<PathBuf> + Sync),
    /// Finds a file of the image on this machine. Called if the trace has the image's tables but
    /// not its code, which is needed to unwind assembler. Must not ask a server.
    pub code: &'a (dyn Fn(&Image) -> Option<PathBuf> + Sync),
    /// Reads the frame records of the image's PDB. Called for x86 images only.
    pub frames: &'a (dyn Fn(&Image) -> Option<X86Tables> + Sync),
}

impl ImageSearch<'static> {
    /// Finds nothing: only the trace is used.
    pub const NOWHERE: ImageSearch<'static> =
        ImageSearch { file: &|_| None, code: &|_| None, frames: &|_| None };
}

/// Loads every image of a trace; each image is one task.
pub fn load_images(trace: &Trace<'_>, elsewhere: &ImageSearch<'_>) -> Vec<ModuleImage> {
    load_shared(trace, elsewhere, None)
}

/// [`load_images`], of which some are those of traces before.
pub fn load_shared(
    trace: &Trace<'_>,
    elsewhere: &ImageSearch<'_>,
    shared: Option<&SharedImages>,
) -> Vec<ModuleImage> {
    let arch = arch(trace.header().arch);
    let records = &trace.timeline.images;
    // Frame records of x86 come from elsewhere.
    let shared = shared.filter(|_| arch != Arch::X86);
    let key = |record| shared.and_then(|shared| Some((shared, ImageKey::of(trace, record, arch)?)));
    let known = |record: &ImageRecord, (shared, key): &(&SharedImages, ImageKey)| {
        let found = shared.get(key)?;
        let is_whole = found.code || (elsewhere.code)(&record.image).is_none();
        is_whole.then_some(found.image)
    };
    let found: Vec<_> = records
        .par_iter()
        .map(|record| {
            let key = key(record);
            let known = key.as_ref().and_then(|key| known(record, key));
            (key, known)
        })
        .collect();
    let missing = records.iter().zip(&found).filter(|(_, (_, known))| known.is_none());
    let wanted = missing.flat_map(|(record, _)| record.tables.iter().map(|table| table.hash));
    let blobs = trace.blobs.read(trace.blocks(), wanted);
    let image = |(record, (key, known)): (&ImageRecord, (_, Option<ModuleImage>))| {
        known.unwrap_or_else(|| {
            let (image, alone) = load(record, arch, &blobs, elsewhere);
            let key: Option<(&SharedImages, ImageKey)> = key;
            if let (Some((shared, key)), Some(code)) = (key, alone) {
                shared.add(key, KnownImage { image: image.clone(), code });
            }
            image
        })
    };
    records.par_iter().zip(found).map(image).collect()
}

type BlobResults = HashMap<ContentHash, Result<Vec<u8>, BlobProblem>>;

/// An image; if all facts are of the trace's tables, also whether its code is among them.
fn load(
    record: &ImageRecord,
    arch: Arch,
    blobs: &BlobResults,
    elsewhere: &ImageSearch<'_>,
) -> (ModuleImage, Option<bool>) {
    let mut problems = Vec::new();
    let parts = ImageParts::of(record, blobs, &mut problems);
    let frames = if arch == Arch::X86 { (elsewhere.frames)(&record.image) } else { None }.unwrap_or_default();
    if parts.can_unwind(arch) {
        // A file of another build is not reported, since nothing depends on the file.
        let path = if parts.code { None } else { (elsewhere.code)(&record.image) };
        let file = path.and_then(|path| from_file(&path, &record.image).ok());
        let alone = file.is_none().then_some(parts.code);
        let (code, starts) = file.map(|file| (file.code, file.stack_starts)).unwrap_or_default();
        let image = parts.image(record, arch, frames, (code, starts), problems);
        let alone = alone.filter(|_| image.problems.is_empty());
        return (image, alone);
    }
    if let Some(path) = (elsewhere.file)(&record.image) {
        match from_file(&path, &record.image) {
            Ok(file) => return (file.image(frames, path), None),
            Err(problem) => problems.push(format!("{}: {problem}", path.display())),
        }
    }
    (parts.image(record, arch, frames, (Vec::new(), Vec::new()), problems), None)
}

/// The parts of an image that a trace carries.
#[derive(Default)]
struct ImageParts<'a> {
    headers: Option<&'a [u8]>,
    exceptions: Option<(u32, u32)>,
    exports: Option<(u32, &'a [u8])>,
    /// Whether the executable sections are among the ranges.
    code: bool,
    /// All bytes that unwinding can use, by RVA.
    ranges: Vec<(u32, &'a [u8])>,
}

impl<'a> ImageParts<'a> {
    fn of(record: &ImageRecord, blobs: &'a BlobResults, problems: &mut Vec<String>) -> ImageParts<'a> {
        let mut parts = ImageParts::default();
        for table in &record.tables {
            let bytes = match blobs.get(&table.hash) {
                Some(Ok(bytes)) => bytes.as_slice(),
                Some(Err(problem)) => {
                    problems.push(problem.to_string());
                    continue;
                }
                None => continue,
            };
            match TableKind::from_code(table.kind) {
                Some(TableKind::Headers) => {
                    parts.headers = Some(bytes);
                    parts.ranges.push((table.rva, bytes));
                }
                Some(TableKind::ExceptionDirectory) => {
                    parts.exceptions = Some((table.rva, bytes.len() as u32));
                    parts.ranges.push((table.rva, bytes));
                }
                Some(kind @ (TableKind::UnwindInfo | TableKind::Code)) => {
                    parts.code |= kind == TableKind::Code;
                    parts.ranges.push((table.rva, bytes));
                }
                Some(TableKind::Exports) => parts.exports = Some((table.rva, bytes)),
                Some(TableKind::Debug) | None => {}
            }
        }
        parts
    }

    fn headers(&self) -> Option<pe::Headers> {
        pe::Headers::parse(self.headers?)
    }

    /// Whether the trace has all that unwinding needs: the exception directory, or the fact that
    /// there is none. On x86, where there never is one, the code.
    fn can_unwind(&self, arch: Arch) -> bool {
        if arch == Arch::X86 {
            return self.code;
        }
        self.exceptions.is_some() || self.headers().is_some_and(|headers| headers.exceptions == (0, 0))
    }

    fn image(
        &self,
        record: &ImageRecord,
        arch: Arch,
        frames: X86Tables,
        (code, stack_starts): (Vec<(u32, SharedBytes)>, Vec<Range<u32>>),
        mut problems: Vec<String>,
    ) -> ModuleImage {
        let headers = self.headers();
        let exports = match self.exports {
            Some((rva, bytes)) => {
                // The recorded range may begin before the directory itself.
                let directory = headers.map(|headers| headers.exports).filter(|&(_, len)| len != 0);
                let (start, len) = directory.unwrap_or((rva, bytes.len() as u32));
                pe::exports(bytes, rva, start, len).unwrap_or_else(|problem| {
                    problems.push(problem.to_string());
                    Exports::default()
                })
            }
            None => Exports::default(),
        };
        let size = record.image.size;
        let mut builder = ImageTables::new(headers.and_then(|headers| headers.arch).unwrap_or(arch), size);
        for &(rva, bytes) in &self.ranges {
            builder = builder.range(rva, bytes);
        }
        for (rva, bytes) in code {
            builder = builder.range(rva, bytes);
        }
        for function in stack_starts {
            builder = builder.stack_start(function);
        }
        let directory =
            self.exceptions.or(headers.map(|headers| headers.exceptions).filter(|&d| d == (0, 0)));
        if let Some((rva, len)) = directory {
            builder = builder.exception_directory(rva, len);
        }
        if let Some(headers) = headers {
            builder = builder.clr_header(headers.clr);
        }
        let source = if self.ranges.is_empty() && self.exports.is_none() {
            ImageSource::Nowhere
        } else {
            ImageSource::Trace
        };
        let tables = with_system_entries(builder, &exports).x86(frames).build();
        ModuleImage(Arc::new(ImageFacts { tables, exports, source, problems }))
    }
}

/// The contents of an image file.
struct FileImage {
    builder: ImageTablesBuilder,
    exports: Exports,
    /// The executable sections. The builder's ranges include them too.
    code: Vec<(u32, SharedBytes)>,
    /// Where a language runtime's stacks start. The builder has them too.
    stack_starts: Vec<Range<u32>>,
}

impl FileImage {
    fn image(self, frames: X86Tables, path: PathBuf) -> ModuleImage {
        ModuleImage(Arc::new(ImageFacts {
            tables: with_system_entries(self.builder, &self.exports).x86(frames).build(),
            exports: self.exports,
            source: ImageSource::File(path),
            problems: Vec::new(),
        }))
    }
}

/// Why an image file cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// It cannot be opened.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is not a PE image.
    #[error("is not a PE image")]
    NotPe,
    /// The trace does not state which build was loaded.
    #[error("cannot be compared: the trace has no identity of the module")]
    NoIdentity,
    /// Another build was loaded.
    #[error("is {found}, not {wanted}")]
    OtherBuild {
        /// The file's identity, as symbol servers write it.
        found: String,
        /// The identity of the image that was loaded.
        wanted: String,
    },
    /// `stk` does not know its processor.
    #[error("is for a processor that is not supported")]
    UnknownProcessor,
}

/// Reads an image file of any identity.
pub fn open_image(path: &Path) -> Result<ModuleImage, ImageError> {
    let map = MappedFile::open_plain(path)?;
    let file = pe::File::parse(&map).ok_or(ImageError::NotPe)?;
    Ok(file_image(map, file)?.image(X86Tables::default(), path.to_owned()))
}

/// Reads an image file if it is the build that was loaded.
fn from_file(path: &Path, wanted: &Image) -> Result<FileImage, ImageError> {
    let map = MappedFile::open_plain(path)?;
    let file = pe::File::parse(&map).ok_or(ImageError::NotPe)?;
    let (stamp, size) = (file.headers.time_date_stamp, file.headers.size_of_image);
    if !wanted.is_identified() {
        return Err(ImageError::NoIdentity);
    }
    if (stamp, size) != (wanted.time_date_stamp, wanted.size) {
        return Err(ImageError::OtherBuild { found: image_id(stamp, size), wanted: wanted.code_id.clone() });
    }
    file_image(map, file)
}

fn file_image(map: MappedFile, file: pe::File) -> Result<FileImage, ImageError> {
    let size = file.headers.size_of_image;
    let arch = file.headers.arch.ok_or(ImageError::UnknownProcessor)?;
    let exports = file.exports(&map).unwrap_or_default();
    let (exception_rva, exception_len) = file.headers.exceptions;
    let stack_starts = go::stack_starts(&map);
    let sections = file.sections;
    let bytes: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(map);
    let mut builder = ImageTables::new(arch, size)
        .exception_directory(exception_rva, exception_len)
        .clr_header(file.headers.clr);
    let mut code = Vec::new();
    for function in stack_starts.iter().cloned() {
        builder = builder.stack_start(function);
    }
    for section in sections {
        let part = SharedBytes::part(bytes.clone(), section.file_range);
        if section.executable {
            code.push((section.rva, part.clone()));
        }
        builder = builder.range(section.rva, part);
    }
    Ok(FileImage { builder, exports, code, stack_starts })
}

/// Exports of ntdll through which the system interrupts a thread to run something else in it.
const INTERRUPTIONS: [&str; 3] =
    ["KiUserApcDispatcher", "KiUserCallbackDispatcher", "KiUserExceptionDispatcher"];

/// Marks the functions that the system enters by itself, for the unwinder.
fn with_system_entries(builder: ImageTablesBuilder, exports: &Exports) -> ImageTablesBuilder {
    exports.iter().fold(builder, |builder, (rva, name)| match &**name {
        name if THREAD_STARTS.contains(&name) => builder.thread_start(*rva),
        name if INTERRUPTIONS.contains(&name) => builder.interruption(*rva),
        _ => builder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::TraceFile;
    use stk_format::{BLOCK_HEADER_LEN, BlockKind};
    use stk_tests::traces::{TestImage, trace};

    /// A trace with the tables of an image of so many functions.
    fn file(functions: u32) -> Vec<u8> {
        let mut builder = trace();
        TestImage::new(r"C:\app.exe", functions).load(&mut builder, 0, 0x10_0000);
        builder.finish()
    }

    fn images(file: &[u8], shared: Option<&SharedImages>) -> Vec<ModuleImage> {
        let file = TraceFile::of_bytes(Path::new("a.stk"), file.to_vec());
        let file = file.knowing(shared.map(SharedImages::blocks));
        load_shared(&file.read().expect("a trace"), &ImageSearch::NOWHERE, shared)
    }

    #[track_caller]
    fn check(file: &[u8], shared: &SharedImages) -> Arc<ImageFacts> {
        let found = images(file, Some(shared));
        assert_eq!(format!("{found:?}"), format!("{:?}", images(file, None)));
        found.last().expect("an image").0.clone()
    }

    #[test]
    fn traces_with_equal_tables_share_an_image() {
        let shared = SharedImages::default();
        let [first, again, other] = [5, 5, 6].map(|functions| check(&file(functions), &shared));
        assert!(Arc::ptr_eq(&first, &again));
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn damaged_tables_are_not_those_of_another_trace() {
        let (whole, shared) = (file(5), SharedImages::default());
        let first = check(&whole, &shared);
        let mut damaged = whole.clone();
        for block in stk_format::Trace::open(&whole).expect("a trace").blocks() {
            if block.header.kind == BlockKind::Blob {
                damaged[block.offset as usize + BLOCK_HEADER_LEN] ^= 1;
            }
        }
        assert_ne!(damaged, whole);
        assert!(!Arc::ptr_eq(&first, &check(&damaged, &shared)));
    }
}
