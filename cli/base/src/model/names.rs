//! Names of files and builds, in the forms of images and of symbol stores and servers.

use std::borrow::Cow;
use std::fmt::Write as _;
use stk_schema::identity::GuidText;
pub use stk_schema::text::file_name;

/// Cuts a name after `most` bytes. A recorded name may have any length, and every frame of a stack
/// repeats it.
pub fn shortened(name: &str, most: usize) -> Cow<'_, str> {
    if name.len() <= most {
        return Cow::Borrowed(name);
    }
    let end = (0..=most).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
    Cow::Owned(format!("{}…", &name[..end]))
}

/// The identity of a PDB as stores and servers write it: GUID as 32 hex digits, then the age in
/// hex.
pub fn pdb_id(guid: &[u8; 16], age: u32) -> String {
    let mut id: String = GuidText(guid).to_string().chars().filter(|&c| c != '-').collect();
    let _ = write!(id, "{age:x}");
    id
}

/// The GUID, as stored, and the age of a PDB that [`pdb_id`] wrote.
pub fn parse_pdb_id(text: &str) -> Option<([u8; 16], u32)> {
    let (guid, age) = text.split_at_checked(32)?;
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&guid[2 * at..2 * at + 2], 16).ok()?;
    }
    // The first three fields are stored in little endian.
    bytes[..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    Some((bytes, u32::from_str_radix(age, 16).ok()?))
}

/// TimeDateStamp and SizeOfImage of an image, as [`image_id`] wrote them.
pub fn parse_image_id(text: &str) -> Option<(u32, u32)> {
    let (stamp, size) = text.split_at_checked(8)?;
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some((u32::from_str_radix(stamp, 16).ok()?, u32::from_str_radix(size, 16).ok()?))
}

/// The identity of an image as stores and servers write it: TimeDateStamp (8 hex digits), then
/// SizeOfImage in hex.
pub fn image_id(time_date_stamp: u32, size_of_image: u32) -> String {
    format!("{time_date_stamp:08X}{size_of_image:x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_separators_end_a_folder_name() {
        assert_eq!(file_name(r"D:\a\_work\1\s\winpty.pdb"), "winpty.pdb");
        assert_eq!(file_name("/build/x.pdb"), "x.pdb");
        assert_eq!(file_name(r"C:\Übung/дерево.pdb"), "дерево.pdb");
    }

    #[test]
    fn a_long_name_is_cut_between_two_characters() {
        assert_eq!(shortened("äöü", 6), "äöü");
        assert_eq!(shortened("äöü", 5), "äö…");
    }

    // The example of Microsoft's "Using SymStore". In the record, the first three GUID fields are
    // little-endian.
    #[test]
    fn identities_are_written_as_symbol_servers_do() {
        let guid =
            [0xcb, 0xfa, 0xb9, 0x1e, 0xc7, 0x04, 0x3c, 0x41, 0x96, 0xba, 0xb6, 0x69, 0xdb, 0x5a, 0x2c, 0x3f];
        assert_eq!(pdb_id(&guid, 10), "1EB9FACB04C7413C96BAB669DB5A2C3Fa");
        assert_eq!(image_id(0x0a1b_2c3d, 0x1_f000), "0A1B2C3D1f000");
        assert_eq!(parse_pdb_id("1EB9FACB04C7413C96BAB669DB5A2C3Fa"), Some((guid, 10)));
        assert_eq!(parse_image_id("0A1B2C3D1f000"), Some((0x0a1b_2c3d, 0x1_f000)));
        for wrong in
            ["", "1EB9FACB04C7413C96BAB669DB5A2C3F", "1EB9FACB-4C7413C96BAB669DB5A2C3Fa", "ääääääääääääääääa"]
        {
            assert_eq!(parse_pdb_id(wrong), None, "{wrong}");
            assert_eq!(parse_image_id(&wrong[..wrong.len().min(8)]), None, "{wrong}");
        }
    }
}
