//! Reads from a .NET runtime which build of the data access library is its own, and under which
//! index debuggers look it up.
//!
//! The input is the memory of the runtime's module in the recorded process, which may hold
//! anything. Missing data is `None`, never guessed. Sources: the resource CLRDEBUGINFO and the
//! export DotNetRuntimeInfo as dbgshim reads them (dotnet/diagnostics, src/dbgshim/debugshim.cpp;
//! dotnet/runtime, src/coreclr/debug/inc/runtimeinfo.h), names and indices as the symbol server's
//! clients build them (dotnet/diagnostics,
//! src/Microsoft.SymbolStore/KeyGenerators/PEFileKeyGenerator.cs).

use crate::image::{self, Image, ImageError};
use object::LittleEndian as LE;
use object::pe;
use object::read::pe::{ResourceDirectory, ResourceDirectoryEntryData, ResourceNameOrId};
use std::fmt;
use std::ops::Range;
use stk_schema::bytes::u32_in;
use stk_schema::event::RuntimeKind;

/// Larger resource sections are not read. Those of the runtimes have some 100 KB.
const MAX_RESOURCES: u32 = 4 << 20;
/// Larger single resources are not read. The ones needed have less than 2 KB.
const MAX_RESOURCE: u32 = 64 << 10;

/// VS_FIXEDFILEINFO (Microsoft, "VS_FIXEDFILEINFO structure"): where it is in the version
/// resource, behind three words and the key "VS_VERSION_INFO" with its terminator and padding; its
/// signature; bits of its dwFileFlags.
const FIXED_FILE_INFO: usize = 40;
const FIXED_SIGNATURE: u32 = 0xfeef_04bd;
const FLAG_DEBUG: u32 = 0x01;
const FLAG_SPECIAL_BUILD: u32 = 0x20;

/// The export of a program that the runtime is linked into. Its data begins with the same text.
const RUNTIME_INFO: &str = "DotNetRuntimeInfo";

/// The index under which symbol servers and stores keep an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Index {
    pub time_date_stamp: u32,
    pub size_of_image: u32,
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}{:x}", self.time_date_stamp, self.size_of_image)
    }
}

/// The version in a runtime's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileVersion {
    /// Major, minor, build, revision.
    pub parts: [u32; 4],
    /// Marks a build that is not a released one: empty, `.dbg` or `.chk`.
    pub flavor: &'static str,
}

/// The last part has at least two digits.
impl fmt::Display for FileVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, build, revision] = self.parts;
        write!(f, "{major}.{minor}.{build}.{revision:02}{}", self.flavor)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Runtime {
    /// `IMAGE_FILE_MACHINE_*`.
    pub machine: u16,
    pub kind: RuntimeKind,
    /// Index of its module. For a runtime linked into a program, the index of that build's
    /// coreclr.dll.
    pub index: Option<Index>,
    /// Version of its file.
    pub version: Option<FileVersion>,
    /// Index of the data access library that was built with it.
    pub library: Option<Index>,
}

impl Runtime {
    /// Reads the data of a runtime of this kind. `read` fills a buffer from an offset to its load
    /// address and returns whether it succeeded.
    ///
    /// # Errors
    /// [`ImageError`] when there is no image.
    pub(crate) fn read(
        kind: RuntimeKind,
        mut read: impl FnMut(u32, &mut [u8]) -> bool,
    ) -> Result<Runtime, ImageError> {
        let image = Image::from_memory(&mut read)?;
        let mut runtime = Runtime::unread(kind, image.machine);
        if kind == RuntimeKind::SingleFile {
            if let Some(rva) = image.export(RUNTIME_INFO) {
                let mut info = [0; 112];
                if read(rva, &mut info) {
                    runtime.take_info(&info);
                }
            }
            return Ok(runtime);
        }
        runtime.index = index(image.identity.time_date_stamp, image.identity.size_of_image);
        runtime.version = file_version(&image, &mut read);
        // The newer resource name states the host. The one without a host is for the same machine
        // type.
        let host =
            format!("CLRDEBUGINFOWINDOWS{}", arch_name(image.machine).unwrap_or("?").to_ascii_uppercase());
        let info = resource(&image.resources, pe::RT_RCDATA, &[&host, "CLRDEBUGINFO"], &mut read);
        runtime.library = info.and_then(|bytes| debug_info(&bytes));
        Ok(runtime)
    }

    /// A runtime of which only the kind and the machine type are known.
    pub(crate) fn unread(kind: RuntimeKind, machine: u16) -> Runtime {
        Runtime { machine, kind, index: None, version: None, library: None }
    }

    /// RuntimeInfo of runtimeinfo.h: the signature (18 bytes), at 20 the version, at 24, 48 and 72
    /// the indices of runtime, data access library and debugger interface (each begins with its
    /// bytes), and from version 2 at 96 the four parts of the file version.
    fn take_info(&mut self, info: &[u8; 112]) {
        let signed = info.starts_with(RUNTIME_INFO.as_bytes()) && info[RUNTIME_INFO.len()] == 0;
        let version = u32_in(info, 20);
        if !signed || !(1..0x8000_0000).contains(&version) {
            return;
        }
        let index_at =
            |at: usize| (info[at] >= 8).then(|| index(u32_in(info, at + 1), u32_in(info, at + 5)))?;
        self.index = index_at(24);
        self.library = index_at(48);
        if version >= 2 {
            let parts = [96, 100, 104, 108].map(|at| u32_in(info, at));
            self.version = Some(FileVersion { parts, flavor: "" });
        }
    }

    /// File name of its data access library.
    pub(crate) fn library_name(&self) -> &'static str {
        if self.kind == RuntimeKind::Framework { "mscordacwks.dll" } else { "mscordaccore.dll" }
    }

    /// Whether its GCInfo is in the form of .NET Core 2 and 3 for x86, which `stk` reads. Their
    /// files have major version 4; later ones count regions without collection too.
    pub(crate) fn has_known_gc_info(&self) -> bool {
        let major = self.version.map(|version| version.parts[0]);
        (self.machine, self.kind, major) == (pe::IMAGE_FILE_MACHINE_I386, RuntimeKind::Core, Some(4))
    }

    /// The library's long name, by which symbol servers distinguish its builds: stem, architectures
    /// of debugger and program, version of the runtime. `None` if that is not known.
    pub(crate) fn long_name(&self) -> Option<String> {
        let (arch, version) = (arch_name(self.machine)?, self.version?);
        let stem = self.library_name().trim_end_matches(".dll");
        Some(format!("{stem}_{arch}_{arch}_{version}.dll"))
    }
}

/// An architecture's name in the library's long name.
fn arch_name(machine: u16) -> Option<&'static str> {
    match machine {
        pe::IMAGE_FILE_MACHINE_AMD64 => Some("amd64"),
        pe::IMAGE_FILE_MACHINE_I386 => Some("x86"),
        pe::IMAGE_FILE_MACHINE_ARM64 => Some("arm64"),
        _ => None,
    }
}

fn index(time_date_stamp: u32, size_of_image: u32) -> Option<Index> {
    (time_date_stamp != 0 && size_of_image != 0).then_some(Index { time_date_stamp, size_of_image })
}

/// The version in an image's resources. `read` is as in [`Runtime::read`].
pub(crate) fn file_version(
    image: &Image,
    mut read: impl FnMut(u32, &mut [u8]) -> bool,
) -> Option<FileVersion> {
    fixed_version(&resource(&image.resources, pe::RT_VERSION, &[], &mut read)?)
}

/// The version in a version resource.
fn fixed_version(bytes: &[u8]) -> Option<FileVersion> {
    let fixed: &[u8; 52] = bytes.get(FIXED_FILE_INFO..)?.first_chunk()?;
    if u32_in(fixed, 0) != FIXED_SIGNATURE {
        return None;
    }
    // dwFileVersionMS and dwFileVersionLS, dwFileFlags.
    let (high, low, flags) = (u32_in(fixed, 8), u32_in(fixed, 12), u32_in(fixed, 28));
    let flavor = match (flags & FLAG_DEBUG != 0, flags & FLAG_SPECIAL_BUILD != 0) {
        (false, _) => "",
        (true, true) => ".dbg",
        (true, false) => ".chk",
    };
    Some(FileVersion { parts: [high >> 16, high & 0xffff, low >> 16, low & 0xffff], flavor })
}

/// CLR_DEBUG_RESOURCE (debugshim.h): version, GUID, time stamp and size of the data access library,
/// then of the debugger interface.
fn debug_info(bytes: &[u8]) -> Option<Index> {
    let info: &[u8; 36] = bytes.first_chunk()?;
    (u32_in(info, 0) == 0).then(|| index(u32_in(info, 20), u32_in(info, 24)))?
}

/// The first existing resource of a type with one of these names, in any language. Without names,
/// the type's first resource.
fn resource(
    directory: &Range<u32>,
    ty: u16,
    names: &[&str],
    read: &mut impl FnMut(u32, &mut [u8]) -> bool,
) -> Option<Vec<u8>> {
    let size = Some(directory.len() as u32).filter(|size| (16..=MAX_RESOURCES).contains(size))?;
    let mut data = vec![0; size as usize];
    read(directory.start, &mut data).then_some(())?;
    let resources = ResourceDirectory::new(&data);
    let of_type = resources
        .root()
        .ok()?
        .entries
        .iter()
        .find(|entry| matches!(entry.name_or_id(), ResourceNameOrId::Id(id) if id == ty))?;
    let of_type = of_type.data(resources).ok()?.table()?;
    let is = |name: ResourceNameOrId, wanted: &str| {
        let name = name.name().and_then(|name| name.to_string_lossy(resources).ok());
        name.is_some_and(|name| name == wanted)
    };
    let named = match names {
        [] => of_type.entries.first(),
        names => names
            .iter()
            .find_map(|wanted| of_type.entries.iter().find(|entry| is(entry.name_or_id(), wanted))),
    }?;
    let languages = named.data(resources).ok()?.table()?;
    let ResourceDirectoryEntryData::Data(leaf) = languages.entries.first()?.data(resources).ok()? else {
        return None;
    };
    let size = Some(leaf.size.get(LE)).filter(|size| (1..=MAX_RESOURCE).contains(size))?;
    let mut bytes = vec![0; size as usize];
    read(leaf.offset_to_data.get(LE), &mut bytes).then_some(bytes)
}

/// Whether an image has an index.
pub(crate) fn is_of(identity: image::ImageIdentity, index: Index) -> bool {
    (identity.time_date_stamp, identity.size_of_image) == (index.time_date_stamp, index.size_of_image)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
        out[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A version resource as the resource compiler writes it, up to its strings.
    fn version(parts: [u16; 4], flags: u32) -> Vec<u8> {
        let mut out: Vec<u8> = [92u16, 52, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        out.extend("VS_VERSION_INFO\0".encode_utf16().flat_map(u16::to_le_bytes));
        out.resize(out.len().next_multiple_of(4), 0);
        let [major, minor, build, revision] = parts.map(u32::from);
        let (high, low) = (major << 16 | minor, build << 16 | revision);
        for field in [0xfeef_04bd, 0x1_0000, high, low, high, low, 0x3f, flags, 4, 2, 0, 0, 0] {
            out.extend(u32::to_le_bytes(field));
        }
        out
    }

    /// CLR_DEBUG_RESOURCE with the values of CoreCLR 3.1.2.
    fn debug() -> Vec<u8> {
        let mut out = vec![0; 36];
        put(&mut out, 4, &[0x0d, 0x76, 0xee, 0xb1, 0x4a, 0x6c, 0x33, 0x45]);
        for (at, value) in [(20, 0x5e21_1c7f_u32), (24, 0x13_8000), (28, 0x5e21_1c55), (32, 0x14_0000)] {
            put(&mut out, at, &value.to_le_bytes());
        }
        out
    }

    /// A mapped x64 DLL of 0x56b000 bytes made at 5E211DAC, with these RCDATA and version resources
    /// at 0x1000 and up.
    fn module(rcdata: &[(&str, Vec<u8>)], version: &[u8]) -> Vec<u8> {
        const RSRC: usize = 0x1000;
        let mut out = vec![0u8; 0x3000];
        put(&mut out, 0, b"MZ");
        put(&mut out, 0x3c, &[0x80]);
        put(&mut out, 0x80, b"PE\0\0");
        put(&mut out, 0x84, &0x8664u16.to_le_bytes());
        put(&mut out, 0x88, &0x5e21_1dacu32.to_le_bytes());
        put(&mut out, 0x94, &240u16.to_le_bytes());
        put(&mut out, 0x96, &0x2022u16.to_le_bytes());
        put(&mut out, 0x98, &0x20bu16.to_le_bytes());
        put(&mut out, 0x98 + 56, &0x56_b000u32.to_le_bytes());
        put(&mut out, 0x98 + 108, &16u32.to_le_bytes());
        put(&mut out, 0x98 + 112 + 16, &(RSRC as u32).to_le_bytes());
        put(&mut out, 0x98 + 112 + 20, &0x1000u32.to_le_bytes());

        // Tables have 16 bytes and entries of 8; texts and data follow all tables.
        let mut next = 0x400;
        let mut data = |out: &mut Vec<u8>, bytes: &[u8]| {
            let at = next;
            put(out, RSRC + at, bytes);
            next = (at + bytes.len()).next_multiple_of(4);
            at as u32
        };
        let table = |out: &mut Vec<u8>, at: usize, named: bool, entries: &[(u32, u32)]| {
            put(out, RSRC + at + if named { 12 } else { 14 }, &(entries.len() as u16).to_le_bytes());
            for (index, (name, to)) in entries.iter().enumerate() {
                put(out, RSRC + at + 16 + index * 8, &name.to_le_bytes());
                put(out, RSRC + at + 20 + index * 8, &to.to_le_bytes());
            }
        };
        const TABLE: u32 = 0x8000_0000;
        table(&mut out, 0, false, &[(10, TABLE | 0x40), (16, TABLE | 0x80)]);
        let mut names = Vec::new();
        for (index, (name, bytes)) in rcdata.iter().enumerate() {
            let mut text = (name.len() as u16).to_le_bytes().to_vec();
            text.extend(name.encode_utf16().flat_map(u16::to_le_bytes));
            let (text, bytes_at) = (data(&mut out, &text), data(&mut out, bytes));
            let languages = 0x100 + index as u32 * 0x40;
            names.push((TABLE | text, TABLE | languages));
            table(&mut out, languages as usize, false, &[(0, languages + 0x20)]);
            put(&mut out, RSRC + languages as usize + 0x20, &(RSRC as u32 + bytes_at).to_le_bytes());
            put(&mut out, RSRC + languages as usize + 0x24, &(bytes.len() as u32).to_le_bytes());
        }
        table(&mut out, 0x40, true, &names);
        table(&mut out, 0x80, false, &[(1, TABLE | 0xa0)]);
        table(&mut out, 0xa0, false, &[(1033, 0xc0)]);
        let at = data(&mut out, version);
        put(&mut out, RSRC + 0xc0, &(RSRC as u32 + at).to_le_bytes());
        put(&mut out, RSRC + 0xc4, &(version.len() as u32).to_le_bytes());
        out
    }

    fn read(kind: RuntimeKind, module: &[u8]) -> Result<Runtime, ImageError> {
        Runtime::read(kind, |rva, buffer| {
            let at = rva as usize;
            at.checked_add(buffer.len())
                .and_then(|end| module.get(at..end))
                .map(|bytes| buffer.copy_from_slice(bytes))
                .is_some()
        })
    }

    /// The values are those of CoreCLR 3.1.2 for x64, in whose folder the library lies under its
    /// long name too.
    #[test]
    fn a_module_gives_the_long_name_and_both_indices() {
        let module = module(&[("CLRDEBUGINFO", debug())], &version([4, 700, 20, 6602], 0));
        let runtime = read(RuntimeKind::Core, &module).expect("a module");
        assert_eq!(runtime.index.expect("an index").to_string(), "5E211DAC56b000");
        assert_eq!(runtime.library.expect("an index").to_string(), "5E211C7F138000");
        assert_eq!(runtime.long_name().as_deref(), Some("mscordaccore_amd64_amd64_4.700.20.6602.dll"));
        assert_eq!(runtime.library_name(), "mscordaccore.dll");
        let framework = Runtime { kind: RuntimeKind::Framework, ..runtime };
        assert_eq!(framework.long_name().as_deref(), Some("mscordacwks_amd64_amd64_4.700.20.6602.dll"));
    }

    #[test]
    fn gc_info_is_known_of_core_2_and_3_for_x86() {
        let of = |machine, kind, major| {
            let version = Some(FileVersion { parts: [major, 6, 27317, 3], flavor: "" });
            Runtime { version, ..Runtime::unread(kind, machine) }.has_known_gc_info()
        };
        let (x86, x64) = (pe::IMAGE_FILE_MACHINE_I386, pe::IMAGE_FILE_MACHINE_AMD64);
        assert!(of(x86, RuntimeKind::Core, 4));
        assert!(!of(x86, RuntimeKind::Core, 5) && !of(x86, RuntimeKind::Core, 10));
        assert!(!of(x64, RuntimeKind::Core, 4) && !of(x86, RuntimeKind::Framework, 4));
        assert!(!Runtime::unread(RuntimeKind::Core, x86).has_known_gc_info());
    }

    #[test]
    fn the_resource_for_this_host_comes_first() {
        let mut other = debug();
        put(&mut other, 20, &1u32.to_le_bytes());
        let both = [("CLRDEBUGINFO", debug()), ("CLRDEBUGINFOWINDOWSAMD64", other)];
        let runtime = read(RuntimeKind::Core, &module(&both, &version([9, 0, 1, 2], 0))).expect("a module");
        assert_eq!(runtime.library.expect("an index").to_string(), "00000001138000");
    }

    #[test]
    fn the_last_part_has_two_digits_and_unreleased_builds_say_so() {
        let name = |flags| fixed_version(&version([4, 8, 4300, 0], flags)).expect("a version").to_string();
        assert_eq!(name(0), "4.8.4300.00");
        assert_eq!(name(FLAG_SPECIAL_BUILD), "4.8.4300.00");
        assert_eq!(name(FLAG_DEBUG), "4.8.4300.00.chk");
        assert_eq!(name(FLAG_DEBUG | FLAG_SPECIAL_BUILD), "4.8.4300.00.dbg");
    }

    /// The 112 bytes of a single-file program of 10.0.9.
    #[test]
    fn a_runtime_in_a_program_gives_the_index_of_its_builds_coreclr() {
        let mut info = [0; 112];
        put(&mut info, 0, b"DotNetRuntimeInfo\0\0\0\x02");
        put(&mut info, 24, &[8, 0x71, 0x06, 0x0e, 0x6a, 0x00, 0xa0, 0x47, 0x00]);
        put(&mut info, 48, &[8, 0x7a, 0x05, 0x0e, 0x6a, 0x00, 0xc0, 0x14, 0x00]);
        put(&mut info, 96, &[0x0a, 0, 0, 0, 0, 0, 0, 0, 0x9e, 0x03, 0, 0, 0xe9, 0x69, 0, 0]);
        let blank = Runtime::unread(RuntimeKind::SingleFile, 0x8664);
        let mut runtime = blank.clone();
        runtime.take_info(&info);
        assert_eq!(runtime.index.expect("an index").to_string(), "6A0E067147a000");
        assert_eq!(runtime.library.expect("an index").to_string(), "6A0E057A14c000");
        assert_eq!(runtime.long_name().as_deref(), Some("mscordaccore_amd64_amd64_10.0.926.27113.dll"));
        for (at, byte) in [(0, b'd'), (17, b'x'), (20, 0), (23, 0x80)] {
            let (mut other, mut runtime) = (info, blank.clone());
            other[at] = byte;
            runtime.take_info(&other);
            assert_eq!(runtime, blank, "byte {at}");
        }
        let (mut first, mut runtime) = (info, blank);
        first[20] = 1;
        first[48] = 7;
        runtime.take_info(&first);
        assert_eq!((runtime.version, runtime.library), (None, None));
        assert!(runtime.index.is_some());
    }

    #[test]
    fn any_memory_is_read_without_harm() {
        let whole = module(&[("CLRDEBUGINFO", debug())], &version([4, 700, 20, 6602], 0));
        let full = read(RuntimeKind::Core, &whole).expect("a module");
        for len in (0..whole.len()).step_by(7) {
            // Memory that ends early gives less data, never other data.
            if let Ok(runtime) = read(RuntimeKind::Core, &whole[..len]) {
                assert!(runtime.version.is_none() || runtime.version == full.version);
                assert!(runtime.library.is_none() || runtime.library == full.library);
            }
        }
        for at in (0x98..0x180).chain(0x1000..0x1800) {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut other = whole.clone();
                other[at] = value;
                let _ = read(RuntimeKind::Core, &other);
            }
        }
    }
}
