//! Reads the needed parts of a PE image, from its headers in memory or from a file. All offsets are
//! checked.

use object::LittleEndian as LE;
use object::pe;
use object::read::pe::{ExportTable, ImageNtHeaders, ImageOptionalHeader};
use std::ops::Range;
use stk_unwind::Arch;
use thiserror::Error;

/// Fields of the PE headers (PE format, "Optional header data directories").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Headers {
    /// `None`: the processor is not supported.
    pub arch: Option<Arch>,
    pub time_date_stamp: u32,
    pub size_of_image: u32,
    /// RVA and length of the exception directory; (0, 0) if there is none.
    pub exceptions: (u32, u32),
    /// RVA and length of the export directory; (0, 0) if there is none.
    pub exports: (u32, u32),
    /// RVA of the CLR header; 0 if there is none.
    pub clr: u32,
}

impl Headers {
    /// Reads headers that begin with the DOS header.
    pub(super) fn parse(bytes: &[u8]) -> Option<Headers> {
        Headers::parse_with_sections(bytes).map(|(headers, _)| headers)
    }

    fn parse_with_sections(bytes: &[u8]) -> Option<(Headers, Vec<PeSection>)> {
        let dos = pe::ImageDosHeader::parse(bytes).ok()?;
        let offset = u64::from(dos.nt_headers_offset());
        match object::read::pe::optional_header_magic(bytes).ok()? {
            pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC => parse_nt::<pe::ImageNtHeaders64>(bytes, offset),
            pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC => parse_nt::<pe::ImageNtHeaders32>(bytes, offset),
            _ => None,
        }
    }
}

fn parse_nt<H: ImageNtHeaders>(bytes: &[u8], mut offset: u64) -> Option<(Headers, Vec<PeSection>)> {
    let (headers, directories) = H::parse(bytes, &mut offset).ok()?;
    let directory = |index| {
        let found = directories.get(index).map(|directory| directory.address_range());
        found.filter(|&(rva, len)| rva != 0 && len != 0).unwrap_or((0, 0))
    };
    let file = headers.file_header();
    let arch = match file.machine.get(LE) {
        pe::IMAGE_FILE_MACHINE_AMD64 => Some(Arch::X64),
        pe::IMAGE_FILE_MACHINE_ARM64 => Some(Arch::Arm64),
        pe::IMAGE_FILE_MACHINE_I386 => Some(Arch::X86),
        _ => None,
    };
    // Absent if the headers were cut off behind the directories.
    let sections = headers.sections(bytes, offset).ok().map(|table| {
        let section = |section: &pe::ImageSectionHeader| {
            let (start, len) = section.pe_file_range();
            let start = start as usize;
            PeSection {
                rva: section.virtual_address.get(LE),
                executable: section.characteristics.get(LE) & pe::IMAGE_SCN_MEM_EXECUTE != 0,
                file_range: start..start.saturating_add(len as usize),
            }
        };
        table.iter().map(section).collect()
    });
    let headers = Headers {
        arch,
        time_date_stamp: file.time_date_stamp.get(LE),
        size_of_image: headers.optional_header().size_of_image(),
        exceptions: directory(pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION),
        exports: directory(pe::IMAGE_DIRECTORY_ENTRY_EXPORT),
        clr: directory(pe::IMAGE_DIRECTORY_ENTRY_COM_DESCRIPTOR).0,
    };
    Some((headers, sections.unwrap_or_default()))
}

/// Where a section is in memory and in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PeSection {
    pub rva: u32,
    pub executable: bool,
    pub file_range: Range<usize>,
}

pub(super) struct File {
    pub headers: Headers,
    pub sections: Vec<PeSection>,
}

impl File {
    pub(super) fn parse(bytes: &[u8]) -> Option<File> {
        let (headers, sections) = Headers::parse_with_sections(bytes)?;
        Some(File { headers, sections })
    }

    pub(super) fn exports(&self, bytes: &[u8]) -> Option<Exports> {
        let (rva, len) = self.headers.exports;
        let section =
            self.sections.iter().filter(|section| section.rva <= rva).max_by_key(|section| section.rva)?;
        let data = bytes.get(section.file_range.start..section.file_range.end.min(bytes.len()))?;
        exports(data, section.rva, rva, len).ok()
    }
}

/// Names of an image's exported functions: RVA and name, sorted.
pub type Exports = Vec<(u32, Box<str>)>;

/// Why an export directory cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(super) enum ExportsError {
    /// It lies outside the recorded bytes.
    #[error("export directory: outside the recorded bytes")]
    Outside,
    /// Its contents are invalid.
    #[error("export directory: {0}")]
    Damaged(object::read::Error),
    /// Its names overlap.
    #[error("export directory: its names overlap")]
    Overlap,
}

/// Upper limit for the number of exports, against forged counts. No real image has more.
const MAX_EXPORTS: usize = 1 << 20;
/// Upper limit for the length of a name. No real name is longer.
const MAX_NAME: usize = 8 << 10;

/// Reads the export directory at RVA `start`, `len` bytes long, within `bytes`, which begin at RVA
/// `bytes_rva`. Forwarders and functions without a name are left out.
pub(super) fn exports(bytes: &[u8], bytes_rva: u32, start: u32, len: u32) -> Result<Exports, ExportsError> {
    let offset = start.checked_sub(bytes_rva).ok_or(ExportsError::Outside)?;
    // Its names may lie behind it, so the slice extends to the end.
    let data = bytes.get(offset as usize..).ok_or(ExportsError::Outside)?;
    let table = ExportTable::parse(data, start).map_err(ExportsError::Damaged)?;
    let mut exports = Exports::new();
    let mut room = data.len();
    for (name, ordinal) in table.name_iter().take(MAX_EXPORTS) {
        let Some(target) = table.address_by_index(ordinal.into()).ok().filter(|&rva| rva != 0) else {
            continue;
        };
        // A target within the directory is a forwarder's text.
        if target.checked_sub(start).is_some_and(|inside| inside < len) {
            continue;
        }
        let name = table.name_from_pointer(name).ok();
        // Names that overlap can add up to far more bytes than there are. For a name without an
        // end, all bytes were searched, so it costs a share of all.
        room = match room.checked_sub(name.map_or(data.len() / 16, <[u8]>::len)) {
            Some(room) => room,
            None => return Err(ExportsError::Overlap),
        };
        let Some(name) = name else { continue };
        exports.push((target, String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]).into()));
    }
    exports.sort();
    exports.dedup();
    Ok(exports)
}
