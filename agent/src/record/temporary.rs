//! Unpredictable names for unfinished files, so that nobody can put another file under such a name.

use alloc::vec::Vec;

use stk_format::blob;
use stk_schema::identity::ContentHash;

/// A sequence of 128-bit names, made from a secret.
pub(crate) struct TemporaryNames {
    secret: Vec<u8>,
    count: u64,
}

impl TemporaryNames {
    /// The names that follow from `secret`, which others must not know.
    pub(crate) fn new(secret: &[u8]) -> TemporaryNames {
        TemporaryNames { secret: secret.to_vec(), count: 0 }
    }

    /// The next name: 32 hexadecimal digits when displayed.
    pub(crate) fn fresh(&mut self) -> ContentHash {
        self.count += 1;
        // The secret stands on both sides, so that one name does not reveal the next.
        let text = [&self.secret[..], &self.count.to_le_bytes(), &self.secret[..]].concat();
        blob::content_hash(&text)
    }
}

/// The path of a folder in the form for which no limit of 260 characters holds, where it has a
/// drive and is long with a name of `name` units in it.
pub(crate) fn long(folder: &[u16], name: usize) -> Vec<u16> {
    const SHORT: usize = 240;
    const BACKSLASH: u16 = b'\\' as u16;
    let drive = folder.get(1..3) == Some(&[u16::from(b':'), BACKSLASH]);
    // The system takes such a path as it is: with other separators it would be another.
    let plain = !folder.contains(&u16::from(b'/'));
    let mut path = Vec::new();
    if drive && plain && folder.len() + name >= SHORT {
        path.extend([BACKSLASH, BACKSLASH, u16::from(b'?'), BACKSLASH]);
    }
    path.extend_from_slice(folder);
    path
}

/// Whether a rename or a deletion failed because somebody else has the file open:
/// ERROR_ACCESS_DENIED, ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION.
pub(crate) fn is_held(error: u32) -> bool {
    matches!(error, 5 | 32 | 33)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;
    use alloc::string::String;

    #[test]
    fn only_long_paths_with_a_drive_get_the_long_form() {
        let long = |folder: &str| {
            let units: Vec<u16> = folder.encode_utf16().collect();
            String::from_utf16(&long(&units, 36)).unwrap()
        };
        let deep = "d\\".repeat(120);
        assert_eq!(long(&format!("C:\\{deep}")), format!("\\\\?\\C:\\{deep}"));
        for short in ["C:\\tables", "tables", &format!("\\\\server\\{deep}"), &format!("C:\\a/b\\{deep}")] {
            assert_eq!(long(short), short);
        }
    }

    #[test]
    fn names_differ_from_each_other_and_from_those_of_another_secret() {
        let (mut one, mut other) = (TemporaryNames::new(&[7; 32]), TemporaryNames::new(&[8; 32]));
        let names: BTreeSet<_> =
            (0..1000).flat_map(|_| [format!("{}", one.fresh()), format!("{}", other.fresh())]).collect();
        assert_eq!(names.len(), 2000);
        assert!(names.iter().all(|name| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())));
    }
}
