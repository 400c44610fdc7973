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
    }
}
