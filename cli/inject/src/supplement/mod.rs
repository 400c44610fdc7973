//! Completes a trace after its recording has ended: modules whose tables or identity the agent
//! could not read in time get them from image files of the same identity (format/SPEC.md, section
//! 11).
//!
//! `scan` reads the trace's data on its modules. [`complete`] finds a file for each module that
//! lacks something and makes the supplement. Only [`Disk`] opens files.

mod scan;

pub(crate) use scan::{KnownModule, MismatchError, Scan};

use std::collections::{BTreeMap, HashSet};
use stk_format::image::{Image, ImageFile, ImagePart};
use stk_format::{Addition, BlockKind, NoSupplement, SupplementWriter, Trace, blob};
use stk_schema::control::{EMBED_FULL, EMBED_NONE};
use stk_schema::event::{Event, ImageTable, Metadata, ModuleFlags, ModuleLoad, ModuleTables};
use stk_schema::identity::{CodeView, ContentHash, Identity};
use stk_schema::limits;
use thiserror::Error;

/// Largest image file that is read.
pub(crate) const MAX_FILE: u64 = 512 << 20;
/// Most modules that the supplement lists as not found.
const MOST_NAMED: usize = 256;
/// Bytes of a BLOB per event.
const PIECE: usize = 256 << 10;

/// An image file as it lies on disk.
#[derive(Clone, Debug)]
pub(crate) struct DiskFile {
    pub bytes: Vec<u8>,
    /// The last change of its content or directory entry, in nanoseconds since the Unix epoch.
    pub changed: u64,
}

/// Why a module's file was not read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum FileError {
    /// It does not exist.
    #[error("there is no file at its path any more")]
    Missing,
    /// The system's reason.
    #[error("its file cannot be read ({0})")]
    Unreadable(String),
    /// A folder, a device or the like.
    #[error("its path is no regular file")]
    NotRegular,
    /// It has more than [`MAX_FILE`] bytes.
    #[error("its file is too large")]
    TooLarge,
    /// It is not on a local disk, for example on a share.
    #[error("its file does not lie on a local disk")]
    NotLocal,
    /// Its path or a folder on the way is a link.
    #[error("its path leads over a link")]
    Link,
}

/// Why nothing was added for a module.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum CompletionError {
    /// The module's path in the trace is not valid Unicode.
    #[error("its path is not valid Unicode")]
    PathNotUnicode,
    /// The trace has no path of the module.
    #[error("its path is not known")]
    PathUnknown,
    /// Its file was not read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its file is not a PE image.
    #[error("the file is no PE image")]
    NotPe,
    /// Its file is that of another image.
    #[error(transparent)]
    Mismatch(#[from] MismatchError),
}

/// Reads image files, and stores tables that many traces share.
pub(crate) trait Disk {
    /// Reads the file at `path` (as the trace names it).
    ///
    /// # Errors
    ///
    /// When it is not a local regular file of at most [`MAX_FILE`] bytes, is not there, or cannot
    /// be read.
    fn read(&mut self, path: &str) -> Result<DiskFile, FileError>;

    /// Stores a table in the folder of shared tables. Returns false if there is no folder, so that
    /// the trace must hold the table.
    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool;
}

/// The result of completing a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct CompletionReport {
    /// Module instances that lacked tables or an identity.
    pub lacking: usize,
    /// Instances that have them now.
    pub completed: usize,
    /// Paths of the others, with the reason.
    pub left: Vec<(String, CompletionError)>,
}

/// The supplement of `trace`; `None` if it lacks nothing. `embed` is the agent's setting of what to
/// store (`EMBED_*`); `cut` is the number of bytes to remove behind the recording.
///
/// # Errors
///
/// When the trace is damaged or has a supplement.
pub(crate) fn complete(
    trace: &Trace<'_>,
    embed: u32,
    cut: u64,
    disk: &mut impl Disk,
) -> Result<Option<(Addition, CompletionReport)>, NoSupplement> {
    let writer = SupplementWriter::new(trace)?;
    let scan = Scan::of(trace);
    let lacking: Vec<u64> = scan
        .modules
        .iter()
        .filter(|(_, module)| module.lacks(embed != EMBED_NONE))
        .map(|(&id, _)| id)
        .collect();
    if lacking.is_empty() {
        return Ok(None);
    }
    let mut supplement = SupplementBuilder {
        writer,
        disk,
        embed,
        stored: scan.blobs.clone(),
        files: BTreeMap::new(),
        pieces: BTreeMap::new(),
    };
    let mut report = CompletionReport { lacking: lacking.len(), ..CompletionReport::default() };
    for instance in lacking {
        let module = &scan.modules[&instance];
        match supplement.module(instance, module, &scan)? {
            Ok(()) => report.completed += 1,
            Err(reason) => report.left.push((module.shown(), reason)),
        }
    }
    supplement.facts(&report, cut)?;
    Ok(Some((supplement.writer.finish()?, report)))
}

/// The data read from a file.
struct FileImage {
    image: Image,
    parts: Vec<ImagePart>,
    changed: u64,
}

struct SupplementBuilder<'a, D> {
    writer: SupplementWriter,
    disk: &'a mut D,
    embed: u32,
    /// BLOBs in the trace or in the folder of shared tables.
    stored: HashSet<ContentHash>,
    /// By path in lower case.
    files: BTreeMap<String, Result<FileImage, CompletionError>>,
    /// Tables of files that this run stored, by path in lower case.
    pieces: BTreeMap<String, Vec<ImageTable>>,
}

impl<D: Disk> SupplementBuilder<'_, D> {
    /// Writes the tables or identity that `module` lacks. The inner error says why there are none.
    fn module(
        &mut self,
        instance: u64,
        module: &KnownModule,
        scan: &Scan,
    ) -> Result<Result<(), CompletionError>, NoSupplement> {
        if module.is_identified()
            && let Some(tables) = scan.tables_of_the_same(module)
        {
            // The agent read the same image as another instance in this recording.
            self.tables(instance, tables.to_vec())?;
            return Ok(Ok(()));
        }
        let Ok(path) = std::str::from_utf8(&module.path) else {
            return Ok(Err(CompletionError::PathNotUnicode));
        };
        if path.is_empty() {
            return Ok(Err(CompletionError::PathUnknown));
        }
        let key = path.to_lowercase();
        if !self.files.contains_key(&key) {
            let file = self.read(path);
            self.files.insert(key.clone(), file);
        }
        let file = match &self.files[&key] {
            Ok(file) => file,
            Err(reason) => return Ok(Err(reason.clone())),
        };
        if let Err(reason) = module.accepts(&file.image, file.changed, scan) {
            return Ok(Err(reason.into()));
        }
        let load = (!module.has_identity()).then(|| restated(instance, module, &file.image));
        if let Some(load) = load {
            self.writer.event(BlockKind::Meta, &Event::ModuleLoad(load))?;
        }
        if module.tables.is_empty() && self.embed != EMBED_NONE {
            let tables = self.store(&key)?;
            self.tables(instance, tables)?;
        }
        Ok(Ok(()))
    }

    fn read(&mut self, path: &str) -> Result<FileImage, CompletionError> {
        let file = self.disk.read(path)?;
        let memory = ImageFile::new(&file.bytes).ok_or(CompletionError::NotPe)?;
        let image = Image::read(&memory, 0, 0).ok_or(CompletionError::NotPe)?;
        let mut parts = Vec::new();
        image.unwind_parts(&memory, &mut |part| parts.push(part));
        if self.embed == EMBED_FULL {
            image.code_parts(&memory, &mut |part| parts.push(part));
        }
        Ok(FileImage { image, parts, changed: file.changed })
    }

    /// Stores the parts of a file, once.
    fn store(&mut self, key: &str) -> Result<Vec<ImageTable>, NoSupplement> {
        if let Some(tables) = self.pieces.get(key) {
            return Ok(tables.clone());
        }
        let Some(Ok(file)) = self.files.get(key) else { return Ok(Vec::new()) };
        let mut tables = Vec::with_capacity(file.parts.len());
        for part in &file.parts {
            let hash = blob::content_hash(&part.bytes);
            let Some(pieces) = blob::pieces(hash, &part.bytes, PIECE) else { continue };
            if self.stored.insert(hash) && !self.disk.put(hash, &part.bytes) {
                for piece in pieces {
                    self.writer.event(BlockKind::Blob, &Event::Blob(piece))?;
                }
            }
            tables.push(ImageTable {
                kind: part.kind as u64,
                rva: part.rva,
                len: part.bytes.len() as u32,
                hash,
            });
        }
        self.pieces.insert(key.to_owned(), tables.clone());
        Ok(tables)
    }

    fn tables(&mut self, instance: u64, tables: Vec<ImageTable>) -> Result<(), NoSupplement> {
        self.writer.event(BlockKind::Meta, &Event::ModuleTables(ModuleTables { instance, tables }))
    }

    fn facts(&mut self, report: &CompletionReport, cut: u64) -> Result<(), NoSupplement> {
        let mut fact = |key: &str, value: &str| {
            let value = value.as_bytes();
            let value = &value[..value.len().min(limits::MAX_NAME / 2)];
            self.writer.event(BlockKind::Meta, &Event::Metadata(Metadata { key: key.as_bytes(), value }))
        };
        fact("supplement.writer", concat!("inject ", env!("CARGO_PKG_VERSION")))?;
        fact("supplement.modules", &report.completed.to_string())?;
        if cut != 0 {
            fact("supplement.cut", &cut.to_string())?;
        }
        for (path, reason) in report.left.iter().take(MOST_NAMED) {
            fact("supplement.left", &format!("{path}: {reason}"))?;
        }
        Ok(())
    }
}

/// The MODULE_LOAD event again, with the identities of the module's file.
fn restated<'a>(instance: u64, module: &'a KnownModule, image: &'a Image) -> ModuleLoad<'a> {
    let mut identities = vec![Identity::Pe(image.identity)];
    if let Some(record) = &image.code_view {
        let (guid, age) = (record.guid, record.age);
        identities.push(Identity::CodeView(CodeView { guid, age, pdb_name: &record.pdb_name }));
    }
    identities.push(Identity::HeaderHash(image.header_hash));
    let flags = module.flags | ModuleFlags::RESTATED | ModuleFlags::FROM_FILE;
    ModuleLoad {
        instance,
        time: module.time,
        base: module.base,
        size: module.size,
        flags,
        path: &module.path,
        identities,
    }
}

#[cfg(test)]
mod tests;
