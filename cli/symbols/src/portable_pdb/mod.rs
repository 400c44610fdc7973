//! Portable PDBs (dotnet/runtime, "Portable PDB Format Specification"; ECMA-335 II.24 for the
//! underlying format).
//!
//! Takes the bytes of a `.pdb` file, or of an assembly that has one inside, and returns the source
//! line of an IL offset in a method, the texts of source files that the compiler put into it
//! (`-embed`), and where they are on a server (`-sourcelink`). Nothing else is read.

mod embedded;
mod metadata;
mod sequence;

pub use embedded::{AssemblyDebug, assembly_debug, inflate};

use metadata::MetadataLayout;
use sequence::{MethodPoints, VisiblePoint};
use stk_base::map::MappedFile;
use stk_base::model::bytes::Cursor;

/// Kind of what the compiler wrote beside a document: the document's text.
const EMBEDDED_SOURCE: [u8; 16] =
    [0x1B, 0x57, 0x8A, 0x0E, 0x26, 0x69, 0x6E, 0x46, 0xB4, 0xAD, 0x8A, 0xB0, 0x46, 0x11, 0xF5, 0xFE];
/// Kind of what the compiler wrote beside the module: where its documents are.
const SOURCE_LINK: [u8; 16] =
    [0x56, 0x05, 0x11, 0xCC, 0x91, 0xA0, 0x38, 0x4D, 0x9F, 0xEC, 0x25, 0xAB, 0x9A, 0x35, 0x1A, 0x6A];
/// Algorithms by which documents are hashed.
const SHA_1: [u8; 16] =
    [0xEC, 0x16, 0x18, 0xFF, 0x5E, 0xAA, 0x10, 0x4D, 0x87, 0xF7, 0x6F, 0x49, 0x63, 0x83, 0x34, 0x60];
const SHA_256: [u8; 16] =
    [0x0F, 0xD0, 0x29, 0x88, 0xB8, 0x11, 0x13, 0x42, 0x87, 0x8B, 0x77, 0x0E, 0x85, 0x97, 0xAC, 0x16];
/// Limit for the documents among which one is looked for by its path.
const MOST_DOCUMENTS: u32 = 1 << 14;

#[derive(Debug)]
pub struct PortablePdb {
    data: MappedFile,
    layout: MetadataLayout,
    methods: MethodPoints,
}

/// A location in a method's IL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IlPlace {
    /// An offset from the beginning of the IL.
    Offset(u32),
    /// The end of the method.
    Epilogue,
}

/// How the text of a source file is recognised.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DocumentHash {
    /// SHA-1 of its bytes.
    Sha1(Vec<u8>),
    /// SHA-256 of its bytes.
    Sha256(Vec<u8>),
}

/// Why a portable PDB cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PortablePdbError {
    /// The bytes are not a portable PDB.
    #[error("is no portable PDB")]
    NotPortable,
    /// A part that the format requires is missing or invalid.
    #[error("is damaged: {0}")]
    Corrupted(&'static str),
}

impl PortablePdb {
    /// Reads the headers.
    ///
    /// # Errors
    ///
    /// When the bytes are not a portable PDB.
    pub fn parse(data: impl Into<MappedFile>) -> Result<PortablePdb, PortablePdbError> {
        let data = data.into();
        let layout = MetadataLayout::parse(&data)?;
        let methods = MethodPoints::new(data.len());
        Ok(PortablePdb { data, layout, methods })
    }

    /// The GUID of the portable PDB in these bytes.
    ///
    /// # Errors
    ///
    /// As for [`PortablePdb::parse`].
    pub fn guid_of(data: &[u8]) -> Result<[u8; 16], PortablePdbError> {
        MetadataLayout::parse(data).map(|layout| layout.guid)
    }

    /// Its GUID, the same as in the CodeView record of its assembly.
    pub fn guid(&self) -> [u8; 16] {
        self.layout.guid
    }

    /// Number of methods.
    pub fn methods(&self) -> u32 {
        self.layout.methods.rows
    }

    /// Source file and line of a location in the method with this metadata token. Hidden sequence
    /// points are skipped.
    pub fn line(&self, token: u32, place: IlPlace) -> Option<(String, u32)> {
        const METHOD_DEF: u32 = 0x06;
        if token >> 24 != METHOD_DEF {
            return None;
        }
        let (document, points) = self.layout.method(&self.data, token & 0xFF_FFFF)?;
        let points = self.methods.decode(&self.data, points, document)?;
        let end = match place {
            IlPlace::Offset(offset) => points.partition_point(|point| point.offset <= offset),
            IlPlace::Epilogue => points.len(),
        };
        let &VisiblePoint { document, line, .. } = points[..end].last()?;
        Some((self.document(document)?, line))
    }

    /// The text of a source file, under the path that [`line`](Self::line) gives, if the compiler
    /// put it into the PDB.
    ///
    /// # Errors
    ///
    /// When it is damaged, or larger than 16 MiB.
    pub fn source(&self, document: &str) -> Result<Option<Vec<u8>>, PortablePdbError> {
        let beside = self.row_of(document).and_then(metadata::beside);
        let packed = beside.and_then(|document| self.layout.custom(&self.data, document, &EMBEDDED_SOURCE));
        let Some(packed) = packed else { return Ok(None) };
        let damaged = PortablePdbError::Corrupted("the text of a source file cannot be unpacked");
        embedded::source(packed).ok_or(damaged).map(Some)
    }

    /// SourceLink's map from paths of source files to addresses, JSON, if the compiler wrote one.
    pub fn source_link(&self) -> Option<&[u8]> {
        self.layout.custom(&self.data, metadata::MODULE, &SOURCE_LINK)
    }

    /// The hash of a source file's text, under the path that [`line`](Self::line) gives. `None`: it
    /// has none, or one of another algorithm.
    pub fn hash(&self, document: &str) -> Option<DocumentHash> {
        let (algorithm, hash) = self.layout.document_hash(&self.data, self.row_of(document)?)?;
        match (algorithm, hash.len()) {
            (kind, 20) if kind == SHA_1 => Some(DocumentHash::Sha1(hash.to_vec())),
            (kind, 32) if kind == SHA_256 => Some(DocumentHash::Sha256(hash.to_vec())),
            _ => None,
        }
    }

    /// The row of a source file in the document table.
    fn row_of(&self, document: &str) -> Option<u32> {
        let mut rows = 1..=self.layout.documents.rows.min(MOST_DOCUMENTS);
        rows.find(|&row| self.document(row).is_some_and(|path| path == document))
    }

    /// Path of a source file, by row in the document table.
    fn document(&self, row: u32) -> Option<String> {
        /// Limit for the bytes of a path, and of the list of its parts.
        const LONGEST: usize = 1 << 15;
        let name = self.layout.document_name(&self.data, row)?;
        let mut name = Cursor::new(name.get(..LONGEST).unwrap_or(name));
        // A character, compressed like UTF-8. Compilers only write characters of one byte.
        let separator = char::from(name.u8().filter(u8::is_ascii)?);
        let mut path = String::new();
        let mut first = true;
        while !name.is_empty() {
            let part = self.layout.blob(&self.data, name.compressed()?)?;
            if !first && separator != '\0' {
                path.push(separator);
            }
            first = false;
            path.push_str(&String::from_utf8_lossy(part));
            if path.len() > LONGEST {
                return None;
            }
        }
        Some(path).filter(|path| !path.is_empty())
    }
}

#[cfg(test)]
mod tests;
