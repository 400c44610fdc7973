//! Reads a PE image's headers and exports from its file, or from the memory of the process that
//! loaded it.

use object::LittleEndian as LE;
use object::pe;
use object::pod;
use object::read::pe::{
    DataDirectories, ExportTable, ImageNtHeaders, ImageOptionalHeader, optional_header_magic,
};
use std::mem::offset_of;
use std::ops::Range;
use stk_schema::bytes::u32_at;
use stk_schema::{Arch, control};
use thiserror::Error;

/// The agent's name in its export directory, whatever its file's name.
pub(crate) const AGENT_NAME: &str = "agent.dll";

/// A larger export directory is not read (kernelbase's has 100 KB).
const MAX_EXPORTS: u32 = 4 << 20;
/// The headers of an image are in its first page.
const HEADER_BYTES: usize = 4096;

/// Headers and exports of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Image {
    /// `IMAGE_FILE_MACHINE_*`.
    pub machine: u16,
    /// Whether it is a DLL.
    pub dll: bool,
    /// Header fields that identify the build.
    pub identity: ImageIdentity,
    /// Name in the export directory; empty without one.
    pub name: String,
    /// Exported names with the RVAs of their code or data, forwarders left out.
    pub exports: Vec<(String, u32)>,
    /// RVAs of the resources; empty without any.
    pub resources: Range<u32>,
    /// Whether it is marked as compatible with shadow stacks (CET); only known from a file.
    pub cet: bool,
    /// Whether it is built for Control Flow Guard.
    pub guard_cf: bool,
}

/// PE header fields that identify an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ImageIdentity {
    pub time_date_stamp: u32,
    pub size_of_image: u32,
    pub check_sum: u32,
}

/// RVAs of the agent's functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AgentExports {
    /// `stk_agent_start`.
    pub start: u32,
    /// `stk_agent_stop`.
    pub stop: u32,
    /// `stk_agent_status`.
    pub status: u32,
    /// `stk_agent_status_block`, data; agents of the first versions have none.
    pub status_block: Option<u32>,
    /// `stk_agent_leave`; older agents have none.
    pub leave: Option<u32>,
}

/// Why an image could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub(crate) enum ImageError {
    #[error("no PE image")]
    NotPe,
    /// The memory or file ends within a structure.
    #[error("a damaged or truncated PE image")]
    Truncated,
}

/// The agent's function that an image does not export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("does not export {0}")]
pub(crate) struct MissingExport(&'static str);

impl Image {
    /// Reads an image as it is stored in a file.
    ///
    /// # Errors
    /// [`ImageError`] when the bytes are no PE image or end too early.
    pub(crate) fn from_file(bytes: &[u8]) -> Result<Image, ImageError> {
        match magic(bytes)? {
            pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC => from_file::<pe::ImageNtHeaders64>(bytes),
            pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC => from_file::<pe::ImageNtHeaders32>(bytes),
            _ => Err(ImageError::NotPe),
        }
    }

    /// Reads an image as the loader mapped it; `read` fills a buffer from an offset to the load
    /// address and returns whether it succeeded.
    ///
    /// # Errors
    /// [`ImageError`] when there is no image or its memory cannot be read.
    pub(crate) fn from_memory(read: impl FnMut(u32, &mut [u8]) -> bool) -> Result<Image, ImageError> {
        Image::from_memory_if(|_| true, read)
    }

    /// As [`Image::from_memory`], but reads the exports only if `wanted` accepts the name in the
    /// export directory. The name itself is always read, which takes three short reads; the exports
    /// of a system DLL have 100 KB.
    ///
    /// # Errors
    /// As [`Image::from_memory`].
    pub(crate) fn from_memory_if(
        wanted: impl FnOnce(&str) -> bool,
        read: impl FnMut(u32, &mut [u8]) -> bool,
    ) -> Result<Image, ImageError> {
        let mut read = read;
        let mut headers = vec![0; HEADER_BYTES];
        if !read(0, &mut headers) {
            return Err(ImageError::Truncated);
        }
        match magic(&headers)? {
            pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC => {
                from_memory::<pe::ImageNtHeaders64>(&headers, wanted, &mut read)
            }
            pe::IMAGE_NT_OPTIONAL_HDR32_MAGIC => {
                from_memory::<pe::ImageNtHeaders32>(&headers, wanted, &mut read)
            }
            _ => Err(ImageError::NotPe),
        }
    }

    /// RVA of the export `name`.
    pub(crate) fn export(&self, name: &str) -> Option<u32> {
        self.exports.iter().find(|(known, _)| known == name).map(|&(_, rva)| rva)
    }

    /// The RVAs of the agent's functions.
    ///
    /// # Errors
    /// [`MissingExport`].
    pub(crate) fn agent_exports(&self) -> Result<AgentExports, MissingExport> {
        let find = |name| self.export(name).ok_or(MissingExport(name));
        Ok(AgentExports {
            start: find(control::EXPORT_START)?,
            stop: find(control::EXPORT_STOP)?,
            status: find(control::EXPORT_STATUS)?,
            status_block: self.export(control::EXPORT_STATUS_BLOCK),
            leave: self.export(control::EXPORT_LEAVE),
        })
    }

    /// Whether this is an agent, of whatever build and file name.
    pub(crate) fn is_agent(&self) -> bool {
        self.name.eq_ignore_ascii_case(AGENT_NAME) && self.agent_exports().is_ok()
    }
}

/// The architecture of an `IMAGE_FILE_MACHINE_*`, if stk knows it.
pub(crate) fn arch(machine: u16) -> Option<Arch> {
    match machine {
        pe::IMAGE_FILE_MACHINE_AMD64 => Some(Arch::X64),
        pe::IMAGE_FILE_MACHINE_ARM64 => Some(Arch::Arm64),
        pe::IMAGE_FILE_MACHINE_I386 => Some(Arch::X86),
        _ => None,
    }
}

/// The usual name of an `IMAGE_FILE_MACHINE_*`, for messages.
pub(crate) fn machine_name(machine: u16) -> String {
    match arch(machine) {
        Some(arch) => arch.name().to_owned(),
        None => format!("machine type 0x{machine:04x}"),
    }
}

/// The `IMAGE_FILE_MACHINE_*` that this inject was built for.
pub(crate) const fn own_machine() -> u16 {
    if cfg!(target_arch = "x86_64") {
        pe::IMAGE_FILE_MACHINE_AMD64
    } else if cfg!(target_arch = "aarch64") {
        pe::IMAGE_FILE_MACHINE_ARM64
    } else {
        pe::IMAGE_FILE_MACHINE_I386
    }
}

fn magic(bytes: &[u8]) -> Result<u16, ImageError> {
    optional_header_magic(bytes).map_err(|_| ImageError::NotPe)
}

fn from_file<Pe: ImageNtHeaders>(bytes: &[u8]) -> Result<Image, ImageError> {
    let (nt, directories, sections_at) = headers::<Pe>(bytes)?;
    let sections = nt.sections(bytes, sections_at).map_err(|_| ImageError::Truncated)?;
    let mut image = described(nt, &directories);
    if let Some(directory) = directories.get(pe::IMAGE_DIRECTORY_ENTRY_EXPORT)
        && directory.size.get(LE) != 0
    {
        let data = directory.data(bytes, &sections).map_err(|_| ImageError::Truncated)?;
        (image.name, image.exports) = exports(data, directory.virtual_address.get(LE))?;
    }
    if let Some(directory) = directories.get(pe::IMAGE_DIRECTORY_ENTRY_DEBUG)
        && let Ok(data) = directory.data(bytes, &sections)
    {
        image.cet = cet_compatible(bytes, data);
    }
    Ok(image)
}

fn from_memory<Pe: ImageNtHeaders>(
    head: &[u8],
    wanted: impl FnOnce(&str) -> bool,
    read: &mut impl FnMut(u32, &mut [u8]) -> bool,
) -> Result<Image, ImageError> {
    let (nt, directories, _) = headers::<Pe>(head)?;
    let mut image = described(nt, &directories);
    if let Some(directory) = directories.get(pe::IMAGE_DIRECTORY_ENTRY_EXPORT) {
        let (rva, size) = directory.address_range();
        if (1..=MAX_EXPORTS).contains(&size) {
            image.name = export_name(rva..rva.saturating_add(size), read)?;
            if !wanted(&image.name) {
                return Ok(image);
            }
            let mut data = vec![0; size as usize];
            if !read(rva, &mut data) {
                return Err(ImageError::Truncated);
            }
            (image.name, image.exports) = exports(&data, rva)?;
        }
    }
    Ok(image)
}

/// The name in the export directory at `range`. Empty if the name is not in it.
fn export_name(
    range: Range<u32>,
    read: &mut impl FnMut(u32, &mut [u8]) -> bool,
) -> Result<String, ImageError> {
    const NAME_AT: u32 = offset_of!(pe::ImageExportDirectory, name) as u32;
    const LONGEST: u32 = 260;
    let mut name = [0; 4];
    if !read(range.start.saturating_add(NAME_AT), &mut name) {
        return Err(ImageError::Truncated);
    }
    let name = u32::from_le_bytes(name);
    if !range.contains(&name) {
        return Ok(String::new());
    }
    let mut text = vec![0; (range.end - name).min(LONGEST) as usize];
    if !read(name, &mut text) {
        return Err(ImageError::Truncated);
    }
    let len = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

fn headers<Pe: ImageNtHeaders>(bytes: &[u8]) -> Result<(&Pe, DataDirectories<'_>, u64), ImageError> {
    let dos = pe::ImageDosHeader::parse(bytes).map_err(|_| ImageError::NotPe)?;
    let mut offset = dos.nt_headers_offset().into();
    let (nt, directories) = Pe::parse(bytes, &mut offset).map_err(|_| ImageError::NotPe)?;
    Ok((nt, directories, offset))
}

fn described<Pe: ImageNtHeaders>(nt: &Pe, directories: &DataDirectories<'_>) -> Image {
    let file = nt.file_header();
    let optional = nt.optional_header();
    Image {
        machine: file.machine.get(LE),
        dll: file.characteristics.get(LE) & pe::IMAGE_FILE_DLL != 0,
        identity: ImageIdentity {
            time_date_stamp: file.time_date_stamp.get(LE),
            size_of_image: optional.size_of_image(),
            check_sum: optional.check_sum(),
        },
        name: String::new(),
        exports: Vec::new(),
        resources: resources(directories),
        cet: false,
        guard_cf: optional.dll_characteristics() & pe::IMAGE_DLLCHARACTERISTICS_GUARD_CF != 0,
    }
}

fn resources(directories: &DataDirectories<'_>) -> Range<u32> {
    let (rva, size) =
        directories.get(pe::IMAGE_DIRECTORY_ENTRY_RESOURCE).map_or((0, 0), |entry| entry.address_range());
    rva..rva.saturating_add(size)
}

fn exports(data: &[u8], rva: u32) -> Result<(String, Vec<(String, u32)>), ImageError> {
    let bad = |_| ImageError::Truncated;
    let table = ExportTable::parse(data, rva).map_err(bad)?;
    let name = table.name_from_pointer(table.directory().name.get(LE)).map_err(bad)?;
    let mut found = Vec::new();
    for (pointer, ordinal) in table.name_iter() {
        let name = table.name_from_pointer(pointer).map_err(bad)?;
        let address = table.address_by_index(ordinal.into()).map_err(bad)?;
        if !table.is_forward(address) {
            found.push((String::from_utf8_lossy(name).into_owned(), address));
        }
    }
    Ok((String::from_utf8_lossy(name).into_owned(), found))
}

/// IMAGE_DLLCHARACTERISTICS_EX_CET_COMPAT in the debug entry
/// IMAGE_DEBUG_TYPE_EX_DLLCHARACTERISTICS.
fn cet_compatible(file: &[u8], directory: &[u8]) -> bool {
    const EX_DLLCHARACTERISTICS: u32 = 20;
    const CET_COMPAT: u32 = 1;
    let whole = directory.len() - directory.len() % size_of::<pe::ImageDebugDirectory>();
    let entries = pod::slice_from_all_bytes::<pe::ImageDebugDirectory>(&directory[..whole]);
    entries.unwrap_or_default().iter().any(|entry| {
        let bits = u32_at(file, entry.pointer_to_raw_data.get(LE) as usize);
        entry.typ.get(LE) == EX_DLLCHARACTERISTICS && bits.is_some_and(|bits| bits & CET_COMPAT != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const RVA: u32 = 0x1000;

    /// A PE image whose file and memory layouts are the same: one section at 0x1000 that holds the
    /// export directory (and a debug directory). After the PE/COFF specification's "Optional
    /// Header" and ".edata".
    struct ImageBuilder {
        machine: u16,
        name: &'static str,
        exports: Vec<(&'static str, u32)>,
        cet: bool,
    }

    impl ImageBuilder {
        fn agent() -> ImageBuilder {
            ImageBuilder {
                machine: 0x8664,
                name: "agent.dll",
                exports: vec![
                    ("stk_agent_start", 0x2010),
                    ("stk_agent_status", 0x2020),
                    ("stk_agent_stop", 0x2030),
                    ("stk_capture", 0x2040),
                ],
                cet: false,
            }
        }

        fn build(&self) -> Vec<u8> {
            let wide = self.machine != 0x14c;
            let mut out = vec![0u8; RVA as usize];
            let put =
                |out: &mut Vec<u8>, at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
            put(&mut out, 0, b"MZ");
            put(&mut out, 0x3c, &0x80u32.to_le_bytes());
            put(&mut out, 0x80, b"PE\0\0");
            put(&mut out, 0x84, &self.machine.to_le_bytes());
            put(&mut out, 0x86, &1u16.to_le_bytes()); // NumberOfSections
            put(&mut out, 0x88, &0x1234_5678u32.to_le_bytes()); // TimeDateStamp
            let optional = if wide { 240u16 } else { 224 };
            put(&mut out, 0x94, &optional.to_le_bytes());
            put(&mut out, 0x96, &0x2022u16.to_le_bytes()); // EXECUTABLE_IMAGE | LARGE_ADDRESS_AWARE | DLL
            let o = 0x98;
            put(&mut out, o, &(if wide { 0x20bu16 } else { 0x10b }).to_le_bytes());
            put(&mut out, o + 32, &0x1000u32.to_le_bytes()); // SectionAlignment
            put(&mut out, o + 36, &0x1000u32.to_le_bytes()); // FileAlignment
            put(&mut out, o + 56, &0x3000u32.to_le_bytes()); // SizeOfImage
            put(&mut out, o + 60, &0x1000u32.to_le_bytes()); // SizeOfHeaders
            put(&mut out, o + 64, &0xabcdu32.to_le_bytes()); // CheckSum
            let directories = o + if wide { 108 } else { 92 };
            put(&mut out, directories, &16u32.to_le_bytes());

            let edata = self.edata();
            put(&mut out, directories + 4, &RVA.to_le_bytes());
            put(&mut out, directories + 8, &(edata.len() as u32).to_le_bytes());
            let mut section = edata;
            section.resize(section.len().next_multiple_of(4), 0);
            let debug = RVA + section.len() as u32;
            let mut entry = [0u8; 28];
            entry[12..16].copy_from_slice(&20u32.to_le_bytes());
            entry[16..20].copy_from_slice(&4u32.to_le_bytes());
            entry[24..28].copy_from_slice(&(debug + 28).to_le_bytes());
            section.extend(entry);
            section.extend(u32::from(self.cet).to_le_bytes());
            put(&mut out, directories + 4 + 6 * 8, &debug.to_le_bytes());
            put(&mut out, directories + 8 + 6 * 8, &28u32.to_le_bytes());
            section.resize(0x1000, 0);

            let s = o + usize::from(optional);
            put(&mut out, s, b".edata\0\0");
            for (at, value) in [(8, 0x1000u32), (12, RVA), (16, 0x1000), (20, RVA)] {
                put(&mut out, s + at, &value.to_le_bytes());
            }
            out.extend(section);
            out
        }

        fn edata(&self) -> Vec<u8> {
            let n = self.exports.len() as u32;
            let (addresses, names) = (RVA + 40, RVA + 40 + 4 * n);
            let ordinals = names + 4 * n;
            let mut text = ordinals + 2 * n;
            let mut directory = vec![0u8; 12];
            directory.extend(text.to_le_bytes()); // Name
            directory.extend(1u32.to_le_bytes()); // Base
            directory.extend(n.to_le_bytes());
            directory.extend(n.to_le_bytes());
            for part in [addresses, names, ordinals] {
                directory.extend(part.to_le_bytes());
            }
            let mut strings = self.name.as_bytes().to_vec();
            strings.push(0);
            let first = text + strings.len() as u32;
            text = first;
            for &(_, rva) in &self.exports {
                directory.extend(rva.to_le_bytes());
            }
            for (name, _) in &self.exports {
                directory.extend(text.to_le_bytes());
                strings.extend(name.as_bytes());
                strings.push(0);
                text += name.len() as u32 + 1;
            }
            for ordinal in 0..n as u16 {
                directory.extend(ordinal.to_le_bytes());
            }
            directory.extend(strings);
            directory
        }
    }

    fn from_memory(image: &[u8]) -> Result<Image, ImageError> {
        Image::from_memory(|rva, buffer| {
            let at = rva as usize;
            image.get(at..at + buffer.len()).map(|bytes| buffer.copy_from_slice(bytes)).is_some()
        })
    }

    #[test]
    fn an_image_reads_the_same_from_file_and_memory() {
        for machine in [0x8664, 0xaa64, 0x14c] {
            let bytes = ImageBuilder { machine, ..ImageBuilder::agent() }.build();
            let file = Image::from_file(&bytes).expect("file");
            assert_eq!(file, from_memory(&bytes).expect("memory"));
            assert_eq!(file.machine, machine);
            assert!(file.dll && file.is_agent());
            let expected =
                ImageIdentity { time_date_stamp: 0x1234_5678, size_of_image: 0x3000, check_sum: 0xabcd };
            assert_eq!(file.identity, expected);
            let exports = file.agent_exports().expect("all there");
            assert_eq!((exports.start, exports.status, exports.stop), (0x2010, 0x2020, 0x2030));
        }
    }

    #[test]
    fn a_missing_export_is_named() {
        let mut builder = ImageBuilder::agent();
        builder.exports.retain(|(name, _)| *name != "stk_agent_stop");
        let image = Image::from_file(&builder.build()).expect("file");
        assert_eq!(image.agent_exports(), Err(MissingExport("stk_agent_stop")));
        assert!(!image.is_agent());
    }

    #[test]
    fn a_forwarded_export_does_not_count() {
        let mut builder = ImageBuilder::agent();
        builder.exports[0].1 = RVA + 8; // within the export directory: a forwarder by definition
        let image = Image::from_file(&builder.build()).expect("file");
        assert_eq!(image.agent_exports(), Err(MissingExport("stk_agent_start")));
    }

    #[test]
    fn another_dll_with_the_exports_is_no_agent() {
        let image = from_memory(&ImageBuilder { name: "other.dll", ..ImageBuilder::agent() }.build())
            .expect("memory");
        assert!(image.agent_exports().is_ok() && !image.is_agent());
    }

    #[test]
    fn exports_are_read_only_of_images_with_a_wanted_name() {
        let bytes = ImageBuilder::agent().build();
        let read_bytes = Cell::new(0);
        let count = |rva: u32, buffer: &mut [u8]| {
            read_bytes.set(read_bytes.get() + buffer.len());
            buffer.copy_from_slice(&bytes[rva as usize..rva as usize + buffer.len()]);
            true
        };
        let image = Image::from_memory_if(|name| name == "other.dll", count).expect("memory");
        assert_eq!((image.name.as_str(), image.exports.len()), ("agent.dll", 0));
        assert!(read_bytes.get() <= HEADER_BYTES + 4 + 260, "{} bytes were read", read_bytes.get());
        let image = Image::from_memory_if(|name| name == "agent.dll", count).expect("memory");
        assert!(image.is_agent());
    }

    #[test]
    fn the_cet_mark_is_found() {
        assert!(!Image::from_file(&ImageBuilder::agent().build()).expect("file").cet);
        assert!(
            Image::from_file(&ImageBuilder { cet: true, ..ImageBuilder::agent() }.build()).expect("file").cet
        );
    }

    #[test]
    fn invalid_images_are_refused_at_every_length() {
        assert_eq!(Image::from_file(b""), Err(ImageError::NotPe));
        assert_eq!(Image::from_file(b"\x7fELF and more"), Err(ImageError::NotPe));
        let bytes = ImageBuilder::agent().build();
        let needed = RVA as usize + ImageBuilder::agent().edata().len();
        assert!(from_memory(&bytes[..needed]).is_ok());
        for len in 0..needed {
            assert!(Image::from_file(&bytes[..len]).is_err(), "{len} bytes were taken for an image");
            assert!(from_memory(&bytes[..len]).is_err(), "{len} bytes of memory were taken for an image");
        }
    }

    #[test]
    fn machines_have_their_usual_names() {
        assert_eq!(machine_name(0x8664), "x64");
        assert_eq!(machine_name(0xaa64), "arm64");
        assert_eq!(machine_name(0x14c), "x86");
        assert_eq!(machine_name(0x1c4), "machine type 0x01c4");
    }
}
