//! PDB files: their identity, and their symbols and lines as an index.
//!
//! PDBs are read in place by our own code, for speed and memory: the index of a PDB is built in 0.4
//! of the time that the crate `pdb` (with pdb-addr2line) takes to load it and to answer 100,000
//! look-ups, and with a third of the memory (docs/measured/symbols.md, a PDB of 98 MB), since `pdb`
//! copies every stream. `pdb` is instead the independent reader of
//! [`pdb_records`](super::pdb_records). On damage, this module returns an error, or leaves the
//! damaged part out and counts it.
//!
//! `msf` finds the streams, and `dbi` their contents. `records`, `lines`, `types` and `cross_scope`
//! read functions, lines and the names of inlined functions into the index, `file_names` those of
//! source files. `frames` reads the records that unwind x86 code.

mod cross_scope;
mod dbi;
mod error;
mod file_names;
mod frames;
mod lines;
mod msf;
mod records;
mod types;

use self::dbi::Dbi;
pub use self::error::PdbError;
use self::file_names::FileNames;
pub use self::frames::FrameRecords;
use self::msf::{Msf, STREAM_DBI, STREAM_IDS, STREAM_INFO, STREAM_TYPES};
use self::types::TypeNames;
use super::index::build::IndexBuilder;
use super::index::{IndexHeader, Origin, SymbolIndex};
use stk_base::model::bytes::{slice_at, u32_at};

/// Feature code of a PDB made with `/DEBUG:FASTLINK`, which refers to object files for all private
/// symbols.
const FEATURE_MINIMAL: u32 = 0x494e_494d;

/// Identifies the image that a PDB belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PdbIdentity {
    /// GUID, as in the image's CodeView record.
    pub guid: [u8; 16],
    /// Age in the DBI stream: the one in the image's CodeView record.
    pub age: u32,
    /// Age in the information stream, which tools that rewrite a PDB raise.
    pub info_age: u32,
    /// COFF machine number.
    pub machine: u16,
    /// Made with `/DEBUG:FASTLINK`: private symbols are in the object files.
    pub fastlink: bool,
}

impl PdbIdentity {
    /// Whether the image is one for x86.
    pub fn is_x86(&self) -> bool {
        self.machine == object::pe::IMAGE_FILE_MACHINE_I386
    }
}

pub struct PdbFile<'d> {
    msf: Msf<'d>,
    identity: PdbIdentity,
    names_stream: Option<u32>,
}

impl<'d> PdbFile<'d> {
    /// Reads the container and the identity.
    pub fn open(data: &'d [u8]) -> Result<PdbFile<'d>, PdbError> {
        if data.starts_with(b"BSJB") {
            return Err(PdbError::Portable);
        }
        let msf = Msf::open(data)?;
        let info = msf.stream(STREAM_INFO).ok_or(PdbError::MissingStream("information"))?.read_all()?;
        let bad = |at| PdbError::corrupt("information stream", at);
        let guid = *info.get(12..).and_then(|rest| rest.first_chunk()).ok_or(bad(12))?;
        let info_age = u32_at(&info, 8).ok_or(bad(8))?;
        let (names_stream, features_at) = named_stream(&info, b"/names").ok_or(bad(28))?;
        let fastlink = info
            .get(features_at..)
            .is_some_and(|rest| rest.chunks_exact(4).any(|code| u32_at(code, 0) == Some(FEATURE_MINIMAL)));
        // Reads the DBI header only; the identity does not need the modules.
        let dbi = msf.stream(STREAM_DBI).ok_or(PdbError::MissingStream("debug information"))?;
        let header = dbi.read(0, 64).ok_or(PdbError::corrupt("DBI header", 0))?;
        let identity = PdbIdentity {
            guid,
            age: u32_at(&header, 8).unwrap_or(info_age),
            info_age,
            machine: stk_base::model::bytes::u16_at(&header, 58).unwrap_or(0),
            fastlink,
        };
        Ok(PdbFile { msf, identity, names_stream })
    }

    /// Identifies the image that the PDB belongs to.
    pub fn identity(&self) -> &PdbIdentity {
        &self.identity
    }

    /// Distinguishes PDBs of one identity, such as a full one and its stripped copy: a hash over
    /// the container's header and stream directory, which lists every stream's size and pages.
    pub fn fingerprint(&self) -> u64 {
        self.msf.fingerprint()
    }

    /// Reads all symbols and lines into an index.
    ///
    /// # Errors
    ///
    /// What is wrong with the file. If one object file's part is damaged, that part is left out and
    /// counted in the index's header.
    pub fn index(&self) -> Result<SymbolIndex, PdbError> {
        self.index_letting_go(|| ())
    }

    /// Like [`PdbFile::index`]. Calls `let_go` whenever a good part of the file was read that is
    /// not needed again, and once more before the index is written, when the file is no longer
    /// needed. A caller that has mapped the file can then release its pages
    /// ([`MappedFile::release`]).
    ///
    /// # Errors
    ///
    /// As for [`PdbFile::index`].
    ///
    /// [`MappedFile::release`]: stk_base::map::MappedFile::release
    pub fn index_letting_go(&self, let_go: impl Fn()) -> Result<SymbolIndex, PdbError> {
        let stream = self.msf.stream(STREAM_DBI).ok_or(PdbError::MissingStream("debug information"))?;
        let dbi = Dbi::read(&self.msf, stream)?;
        let ids = self.msf.stream(STREAM_IDS);
        let types = self.msf.stream(STREAM_TYPES);
        let function_names = TypeNames::open(&self.msf, ids, types);
        let names = self.names()?;
        let files = FileNames::open(&names);

        let mut builder = IndexBuilder::new(self.msf.len());
        let damaged_parts = records::read(&self.msf, &dbi, &function_names, &files, &mut builder, &let_go);
        builder.set_omap(dbi.omap_to_source);
        let header = IndexHeader {
            guid: self.identity.guid,
            age: dbi.age,
            machine: dbi.machine,
            time_date_stamp: 0,
            size_of_image: 0,
            origin: Origin::Pdb,
            damaged_parts,
        };
        drop(function_names);
        drop(names);
        let_go();
        Ok(builder.finish(header)?)
    }

    /// Reads the records of x86 frames. Empty for other processors.
    pub fn frame_records(&self) -> Result<FrameRecords, PdbError> {
        if !self.identity.is_x86() {
            return Ok(FrameRecords::default());
        }
        let names = self.names()?;
        frames::read(&self.msf, FileNames::open(&names).strings)
    }

    /// The `/names` stream; empty if there is none.
    fn names(&self) -> Result<std::borrow::Cow<'_, [u8]>, PdbError> {
        match self.names_stream.and_then(|number| self.msf.stream(number)) {
            Some(stream) => stream.read_all(),
            None => Ok(std::borrow::Cow::Borrowed(&[][..])),
        }
    }
}

/// Number of a stream by its name, and the offset of the feature codes behind the table of names.
fn named_stream(info: &[u8], wanted: &[u8]) -> Option<(Option<u32>, usize)> {
    let strings_len = u32_at(info, 28)? as usize;
    let strings = slice_at(info, 32, strings_len)?;
    let mut at = 32 + strings_len;
    let count = u32_at(info, at)? as usize;
    at += 8; // size, capacity
    for _ in 0..2 {
        // bit vectors of present and of deleted entries
        at = (u32_at(info, at)? as usize).checked_mul(4)?.checked_add(at + 4)?;
    }
    let entries = slice_at(info, at, count.checked_mul(8)?)?;
    let found = entries.chunks_exact(8).find_map(|entry| {
        let rest = strings.get(u32_at(entry, 0)? as usize..)?.strip_prefix(wanted)?;
        rest.first().is_none_or(|&end| end == 0).then(|| u32_at(entry, 4)).flatten()
    });
    Some((found, at + entries.len()))
}
