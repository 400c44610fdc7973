//! Facts from an image file: its identity, the PDB that it names, its exported names.

use object::LittleEndian as LE;
use object::pe;
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader, PeFile};
use object::{Object as _, ObjectSection as _, ReadRef};
use stk_schema::Arch;
use thiserror::Error;

/// An image file's identity and names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImageFile {
    /// Architecture; `None` if `stk` does not support it.
    pub arch: Option<Arch>,
    /// COFF machine number.
    pub machine: u16,
    /// Whether it is a PE32+ image.
    pub is_64: bool,
    pub time_date_stamp: u32,
    /// SizeOfImage, in bytes.
    pub size_of_image: u32,
    /// Preferred load address.
    pub image_base: u64,
    /// CodeView record: GUID, age, PDB name in the linker's form.
    pub code_view: Option<([u8; 16], u32, Vec<u8>)>,
    /// Whether it names its PDB only by a record of the kind before GUIDs (`NB10`).
    pub has_old_code_view: bool,
    /// The file with its debug information, by name and CRC-32 (`.gnu_debuglink`).
    pub debug_file: Option<(Box<str>, u32)>,
    /// Exported names by rva, sorted.
    pub exports: Vec<(u32, Box<str>)>,
}

/// Why the headers of an image cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ImageFileError {
    /// It is not a PE image.
    #[error("is not a PE image")]
    NotPe,
    /// Its headers are invalid.
    #[error("is a damaged PE image: {0}")]
    Damaged(object::read::Error),
}

/// Upper limit for the number of exports, against forged counts. No real image has more.
const MAX_EXPORTS: usize = 1 << 20;

impl ImageFile {
    /// Reads a PE image. Damaged parts behind the headers are left out.
    ///
    /// # Errors
    ///
    /// Why the headers cannot be read.
    pub fn parse(data: &[u8]) -> Result<ImageFile, ImageFileError> {
        match object::read::pe::optional_header_magic(data) {
            Ok(pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC) => parse::<pe::ImageNtHeaders64>(data),
            Ok(pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC) => parse::<pe::ImageNtHeaders32>(data),
            _ => Err(ImageFileError::NotPe),
        }
    }
}

fn parse<H: ImageNtHeaders>(data: &[u8]) -> Result<ImageFile, ImageFileError> {
    let file = PeFile::<H>::parse(data).map_err(ImageFileError::Damaged)?;
    let headers = file.nt_headers();
    let machine = headers.file_header().machine.get(LE);
    let arch = match machine {
        pe::IMAGE_FILE_MACHINE_AMD64 => Some(Arch::X64),
        pe::IMAGE_FILE_MACHINE_ARM64 => Some(Arch::Arm64),
        pe::IMAGE_FILE_MACHINE_I386 => Some(Arch::X86),
        _ => None,
    };
    let code_view =
        file.pdb_info().ok().flatten().map(|info| (info.guid(), info.age(), info.path().to_vec()));
    Ok(ImageFile {
        arch,
        machine,
        is_64: headers.is_type_64(),
        time_date_stamp: headers.file_header().time_date_stamp.get(LE),
        size_of_image: headers.optional_header().size_of_image(),
        image_base: headers.optional_header().image_base(),
        has_old_code_view: code_view.is_none() && has_old_code_view(&file, data) == Some(true),
        code_view,
        debug_file: debug_file(&file),
        exports: exports(&file, data.len()).unwrap_or_default(),
    })
}

/// The name in the section `.gnu_debuglink`, and behind it the checksum, at a multiple of 4 (GDB,
/// "Separate debug files").
fn debug_file<H: ImageNtHeaders>(file: &PeFile<'_, H>) -> Option<(Box<str>, u32)> {
    let data = file.section_by_name_bytes(b".gnu_debuglink")?.data().ok()?;
    let name = stk_base::model::bytes::c_str_at(data, 0)?;
    let crc = stk_base::model::bytes::u32_at(data, (name.len() + 1).next_multiple_of(4))?;
    Some((std::str::from_utf8(name).ok()?.into(), crc))
}

/// Whether the first debug record of the kind CodeView is an old one.
fn has_old_code_view<H: ImageNtHeaders>(file: &PeFile<'_, H>, data: &[u8]) -> Option<bool> {
    let directory = file.data_directory(pe::IMAGE_DIRECTORY_ENTRY_DEBUG)?;
    let records = directory.data(data, &file.section_table()).ok()?;
    let record = records.chunks_exact(size_of::<pe::ImageDebugDirectory>()).find_map(|record| {
        let (record, _) = object::pod::from_bytes::<pe::ImageDebugDirectory>(record).ok()?;
        (record.typ.get(LE) == pe::IMAGE_DEBUG_TYPE_CODEVIEW).then_some(record)
    })?;
    let at = record.pointer_to_raw_data.get(LE) as usize;
    Some(data.get(at..)?.starts_with(b"NB10"))
}

/// Exported functions with a name. Forwarders are left out, since their code is elsewhere. Names
/// that overlap can add up to far more bytes than there are, so names beyond `room` bytes are left
/// out.
fn exports<'d, H: ImageNtHeaders, R: ReadRef<'d>>(
    file: &PeFile<'d, H, R>,
    mut room: usize,
) -> Option<Vec<(u32, Box<str>)>> {
    let table = file.export_table().ok()??;
    let endless = room / 16;
    let mut exports: Vec<(u32, Box<str>)> = table
        .name_iter()
        .take(MAX_EXPORTS)
        .filter_map(|(name, ordinal)| {
            let rva = table.address_by_index(u32::from(ordinal)).ok()?;
            (!table.is_forward(rva)).then(|| (rva, table.name_from_pointer(name).ok()))
        })
        .map_while(|(rva, name)| {
            // The search for the end of a name without one may have covered the whole file.
            room = room.checked_sub(name.map_or(endless, <[u8]>::len))?;
            Some(name.map(|name| (rva, String::from_utf8_lossy(name).into())))
        })
        .flatten()
        .collect();
    exports.sort();
    Some(exports)
}
