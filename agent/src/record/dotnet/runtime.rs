//! Recognises .NET runtimes among modules, and finds their versions.

use alloc::vec::Vec;

use stk_schema::bytes::u32_at;
use stk_schema::event::RuntimeKind;

use super::descriptor;
use crate::record::image::{Image, Memory};

/// The symbol that a single-file host exports so that debuggers find the runtime in it (.NET 6 and
/// later).
const SINGLE_FILE_EXPORT: &[u8] = b"DotNetRuntimeInfo";

/// Index of the resource directory among the image's data directories.
const DIRECTORY_RESOURCE: usize = 2;
/// RT_VERSION.
const RESOURCE_VERSION: u32 = 16;
/// Most entries of one resource directory that are searched, and most bytes of a version resource.
const MAX_ENTRIES: u32 = 256;
const MAX_VERSION: u32 = 64 << 10;
/// Most UTF-16 units of a version.
const MAX_TEXT: usize = 256;

/// The kind of runtime that the module `path` with these headers is; `None` if it is none.
pub(crate) fn kind_of(path: &[u8], image: &Image, memory: &impl Memory) -> Option<RuntimeKind> {
    let name = path.rsplit(|&byte| byte == b'\\' || byte == b'/').next()?;
    let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
    if is(b"coreclr.dll") {
        return Some(RuntimeKind::Core);
    }
    if is(b"clr.dll") || is(b"mscorwks.dll") {
        return Some(RuntimeKind::Framework);
    }
    let exported = |name| image.export(memory, name).is_some();
    (exported(descriptor::EXPORT) || exported(SINGLE_FILE_EXPORT)).then_some(RuntimeKind::SingleFile)
}

/// Whether this kind of runtime has a diagnostics pipe.
pub(crate) fn has_pipe(kind: RuntimeKind) -> bool {
    kind != RuntimeKind::Framework
}

/// Whether a .NET Core of this version is older than the diagnostics pipe, which came with 3.0. Its
/// file's own number then was 4.700, and 4.6 before.
pub(crate) fn is_before_pipe(version: &[u8]) -> bool {
    let mut numbers = version.split(|&byte| byte == b'.').map(|number| {
        let digits = number.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0u32, |value, &byte| value.saturating_mul(10).saturating_add(u32::from(byte - b'0')))
    });
    match (numbers.next(), numbers.next()) {
        (Some(1 | 2), _) => true,
        (Some(4), Some(minor)) => minor < 700,
        _ => false,
    }
}

/// The version of the runtime at `path`. If its folder's name is a version
/// (`…\\Microsoft.NETCore.App\\3.1.2\\coreclr.dll`), that counts, because the file's resources
/// hold a number of their own; otherwise the version in its resources.
pub(crate) fn version(
    kind: RuntimeKind,
    path: &[u8],
    image: &Image,
    memory: &impl Memory,
) -> Option<Vec<u8>> {
    match (kind, folder_version(path)) {
        (RuntimeKind::Core, Some(version)) => Some(version.to_vec()),
        // A single-file host's resources hold the program's version.
        (RuntimeKind::SingleFile, _) => None,
        _ => product_version(image, memory),
    }
}

/// The folder's name, if it starts like a version: digits, a dot, a digit.
fn folder_version(path: &[u8]) -> Option<&[u8]> {
    let folder = path.rsplit(|&byte| byte == b'\\' || byte == b'/').nth(1)?;
    let digits = folder.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = folder.get(digits..)?;
    (digits > 0 && rest.first() == Some(&b'.') && rest.get(1)?.is_ascii_digit()).then_some(folder)
}

/// The product version in the image's version resource, UTF-8; the file version if there is none.
fn product_version(image: &Image, memory: &impl Memory) -> Option<Vec<u8>> {
    let resources = image.directory(DIRECTORY_RESOURCE);
    let at = |offset: u32, into: &mut [u8]| {
        let rva = resources.start.checked_add(offset)?;
        let end = rva.checked_add(into.len() as u32)?;
        (end <= resources.end && memory.read(image.base + u64::from(rva), into)).then_some(())
    };
    // Three levels: type, name, language. Each directory has 16 bytes, then entries of id and
    // offset.
    let mut offset = 0;
    for level in 0..3 {
        let mut head = [0; 16];
        at(offset, &mut head)?;
        let count = u32::from(u16::from_le_bytes([head[12], head[13]]))
            + u32::from(u16::from_le_bytes([head[14], head[15]]));
        let entry = (0..count.min(MAX_ENTRIES)).find_map(|index| {
            let mut entry = [0; 8];
            at(offset + 16 + index * 8, &mut entry)?;
            (level != 0 || u32_at(&entry, 0)? == RESOURCE_VERSION).then_some(entry)
        })?;
        let next = u32_at(&entry, 4)?;
        // The highest bit marks a directory.
        if (next & 0x8000_0000 != 0) != (level < 2) {
            return None;
        }
        offset = next & 0x7fff_ffff;
    }
    let mut leaf = [0; 8];
    at(offset, &mut leaf)?;
    let (rva, len) = (u32_at(&leaf, 0)?, u32_at(&leaf, 4)?.min(MAX_VERSION));
    if rva.checked_add(len)? > image.size {
        return None;
    }
    let mut bytes = alloc::vec![0; len as usize];
    if !memory.read(image.base + u64::from(rva), &mut bytes) {
        return None;
    }
    text_of(&bytes, "ProductVersion").or_else(|| text_of(&bytes, "FileVersion"))
}

/// The value of a String structure in a VS_VERSIONINFO: the key, a terminator, padding to 4 bytes,
/// the value, a terminator.
fn text_of(bytes: &[u8], key: &str) -> Option<Vec<u8>> {
    let units: Vec<u16> = bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
    let key: Vec<u16> = key.encode_utf16().chain([0]).collect();
    let at = units.windows(key.len()).position(|window| window == key)?;
    let value = units.get((at + key.len()).next_multiple_of(2)..)?;
    let value = value.iter().copied().take(MAX_TEXT).take_while(|&unit| unit != 0);
    let text: alloc::string::String =
        char::decode_utf16(value).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    (!text.is_empty()).then(|| text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A String structure: three words, the key, padding to 4 bytes, the value, padding.
    fn string(units: &mut Vec<u16>, key: &str, value: &str) {
        units.extend_from_slice(&[0, 0, 1]);
        units.extend(key.encode_utf16().chain([0]));
        units.resize(units.len().next_multiple_of(2), 0);
        units.extend(value.encode_utf16().chain([0]));
        units.resize(units.len().next_multiple_of(2), 0);
    }

    #[test]
    fn pipe_came_with_net_core_3() {
        for (version, before) in [
            ("1.1.13", true),
            ("2.1.30", true),
            ("2.1.30-servicing", true),
            ("4.6.30411.1", true),
            ("4.700.20.6602", false),
            ("3.0.0", false),
            ("10.0.9", false),
            ("20.1", false),
            ("", false),
            ("x", false),
        ] {
            assert_eq!(is_before_pipe(version.as_bytes()), before, "{version}");
        }
    }

    #[test]
    fn the_version_of_a_shared_runtime_is_its_folder_name() {
        let version = |path: &'static str| folder_version(path.as_bytes());
        let shared = version(r"C:\Program Files\dotnet\shared\Microsoft.NETCore.App\9.0.0-rc.1\coreclr.dll");
        assert_eq!(shared, Some(&b"9.0.0-rc.1"[..]));
        assert_eq!(version(r"C:\app\publish\coreclr.dll"), None);
        assert_eq!(version(r"C:\9\coreclr.dll"), None);
        assert_eq!(version("coreclr.dll"), None);
    }

    #[test]
    fn a_version_is_found_behind_its_padding() {
        let mut units = Vec::new();
        string(&mut units, "FileVersion", "4.700.20.6602");
        string(&mut units, "ProductVersion", "3.1.2-servicing.20067.4");
        let bytes: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        assert_eq!(text_of(&bytes, "FileVersion").as_deref(), Some(&b"4.700.20.6602"[..]));
        assert_eq!(text_of(&bytes, "ProductVersion").as_deref(), Some(&b"3.1.2-servicing.20067.4"[..]));
        assert_eq!(text_of(&bytes, "CompanyName"), None);
        for len in 0..bytes.len() {
            let _ = text_of(&bytes[..len], "ProductVersion");
        }
    }
}
