//! The build of a symbol file or an image: identities in the form of symbol stores and servers, and
//! the check that a file is the wanted one.

use super::image::ImageFile;
use super::pdb::{PdbFile, PdbIdentity};
use super::portable_pdb::PortablePdb;
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader};
use object::{LittleEndian as LE, ReadRef, pe};
use stk_base::model::{Image, image_id, pdb_id};
use stk_schema::Arch;
use stk_schema::identity::CodeView;

/// The symbol file or image to find, of exactly one build.
#[derive(Clone, Copy, Debug)]
pub struct WantedFile<'a> {
    /// File name without folders.
    pub name: &'a str,
    pub identity: Identity,
}

/// Facts about a module whose addresses are to be named.
#[derive(Clone, Copy, Debug)]
pub struct ModuleKey<'a> {
    /// Path as recorded (Windows syntax).
    pub path: &'a str,
    /// CodeView record, if the image has one.
    pub code_view: Option<CodeView<'a>>,
    /// TimeDateStamp of the image.
    pub time_date_stamp: u32,
    /// SizeOfImage of the image, in bytes; 0 if it is not known which image it was.
    pub size_of_image: u32,
    pub arch: Arch,
}

impl<'a> ModuleKey<'a> {
    /// The key of an image of a trace.
    pub fn of(image: &'a Image, arch: Arch) -> ModuleKey<'a> {
        let pdb_name = image.pdb_name.as_bytes();
        ModuleKey {
            path: &image.path,
            code_view: image.code_view.map(|(guid, age)| CodeView { guid, age, pdb_name }),
            time_date_stamp: image.time_date_stamp,
            size_of_image: if image.is_identified() { image.size } else { 0 },
            arch,
        }
    }
}

/// What identifies a build.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Identity {
    /// A PDB, by the image's CodeView record.
    Pdb {
        /// GUID as stored.
        guid: [u8; 16],
        age: u32,
    },
    /// A portable PDB, by the CodeView record of its assembly.
    PortablePdb {
        /// GUID as stored.
        guid: [u8; 16],
    },
    /// An image, by its headers.
    Image {
        time_date_stamp: u32,
        /// SizeOfImage, in bytes.
        size_of_image: u32,
    },
    /// A file with an image's debug information, by the checksum that the image names it with
    /// (`.gnu_debuglink`).
    DebugFile { crc: u32 },
    /// Such a file, by the build id of the image, which is the GUID of its CodeView record.
    BuildId {
        /// GUID as stored.
        guid: [u8; 16],
    },
}

/// Largest portable PDB that is read, in bytes.
const MAX_PORTABLE: usize = 256 << 20;

/// Why a file is not the wanted one.
pub(super) enum IdentityMismatch {
    OtherBuild(Identity),
    Unreadable(String),
}

impl std::fmt::Display for Identity {
    /// In the form of symbol stores and servers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Identity::Pdb { guid, age } => f.write_str(&pdb_id(guid, *age)),
            // "SSQP Key Conventions", "Portable-Pdb-Signature".
            Identity::PortablePdb { guid } => f.write_str(&pdb_id(guid, u32::MAX)),
            Identity::Image { time_date_stamp, size_of_image } => {
                f.write_str(&image_id(*time_date_stamp, *size_of_image))
            }
            Identity::DebugFile { crc } => write!(f, "{crc:08x}"),
            Identity::BuildId { guid } => {
                // 32 digits, and behind them the age.
                f.write_str(pdb_id(guid, 0).to_ascii_lowercase().get(..32).unwrap_or_default())
            }
        }
    }
}

/// Checks by a file's contents whether it is of the wanted build.
///
/// # Errors
///
/// Why it is not.
pub(super) fn fits(data: &[u8], wanted: &Identity) -> Result<(), IdentityMismatch> {
    match wanted {
        Identity::Pdb { guid, age } => {
            let pdb = PdbFile::open(data).map_err(|error| IdentityMismatch::Unreadable(error.to_string()))?;
            let found = pdb.identity();
            let other = Identity::Pdb { guid: found.guid, age: found.age };
            if found.matches(guid, *age) { Ok(()) } else { Err(IdentityMismatch::OtherBuild(other)) }
        }
        Identity::PortablePdb { guid } => {
            if data.starts_with(b"Microsoft C/C++ MSF") {
                return Err(IdentityMismatch::Unreadable(
                    "is a Windows PDB: lines of managed code are read from portable ones only".to_owned(),
                ));
            }
            if data.len() > MAX_PORTABLE {
                return Err(IdentityMismatch::Unreadable("is larger than any portable PDB".to_owned()));
            }
            let found = PortablePdb::guid_of(data)
                .map_err(|error| IdentityMismatch::Unreadable(error.to_string()))?;
            let other = Identity::PortablePdb { guid: found };
            if found == *guid { Ok(()) } else { Err(IdentityMismatch::OtherBuild(other)) }
        }
        Identity::Image { .. } => {
            let (time_date_stamp, size_of_image) = image_identity(data)
                .ok_or_else(|| IdentityMismatch::Unreadable("is not a PE image".to_owned()))?;
            let found = Identity::Image { time_date_stamp, size_of_image };
            if found == *wanted { Ok(()) } else { Err(IdentityMismatch::OtherBuild(found)) }
        }
        Identity::DebugFile { .. } => {
            let mut crc = flate2::Crc::new();
            crc.update(data);
            let found = Identity::DebugFile { crc: crc.sum() };
            if found == *wanted { Ok(()) } else { Err(IdentityMismatch::OtherBuild(found)) }
        }
        Identity::BuildId { guid } => {
            let image =
                ImageFile::parse(data).map_err(|error| IdentityMismatch::Unreadable(error.to_string()))?;
            match image.code_view {
                Some((found, ..)) if found == *guid => Ok(()),
                Some((guid, ..)) => Err(IdentityMismatch::OtherBuild(Identity::BuildId { guid })),
                None => Err(IdentityMismatch::Unreadable("has no build id".to_owned())),
            }
        }
    }
}

/// TimeDateStamp and SizeOfImage of an image file (PE format, "COFF file header", "Optional
/// header").
pub fn image_identity(data: &[u8]) -> Option<(u32, u32)> {
    let dos = pe::ImageDosHeader::parse(data).ok()?;
    // PE32+ has both fields at the offsets that they have in PE32.
    let headers: &pe::ImageNtHeaders32 = data.read_at(dos.nt_headers_offset().into()).ok()?;
    (headers.signature() == pe::IMAGE_NT_SIGNATURE).then(|| {
        let (file, optional) = (headers.file_header(), headers.optional_header());
        (file.time_date_stamp.get(LE), optional.size_of_image())
    })
}

impl PdbIdentity {
    /// Whether the PDB belongs to an image with this CodeView record.
    pub fn matches(&self, guid: &[u8; 16], age: u32) -> bool {
        self.guid == *guid && (self.age == age || self.info_age == age)
    }
}
