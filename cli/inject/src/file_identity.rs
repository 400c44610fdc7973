//! Which file it is, whatever its name: the volume's serial number and the file's number there.
//!
//! ReFS (Dev Drives) has numbers of 128 bits; those of 64 bits are not unique there. Redirectors
//! may have none: 0 or all ones.

/// The identity of a file on its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileIdentity {
    /// FILE_ID_INFO.
    Wide(u64, u128),
    /// BY_HANDLE_FILE_INFORMATION, where the file system has no other.
    Narrow(u32, u64),
    Unknown,
}

impl FileIdentity {
    /// From what the system gives: volume and number, of 128 and of 64 bits.
    pub(crate) fn new(wide: Option<(u64, u128)>, narrow: Option<(u32, u64)>) -> FileIdentity {
        match (wide, narrow) {
            (Some((volume, number)), _) if !matches!(number, 0 | u128::MAX) => {
                FileIdentity::Wide(volume, number)
            }
            (_, Some((volume, number))) if !matches!(number, 0 | u64::MAX) => {
                FileIdentity::Narrow(volume, number)
            }
            _ => FileIdentity::Unknown,
        }
    }

    /// Whether both are known, and are not the same file.
    pub(crate) fn differs_from(self, other: FileIdentity) -> bool {
        match (self, other) {
            (FileIdentity::Wide(..), FileIdentity::Wide(..))
            | (FileIdentity::Narrow(..), FileIdentity::Narrow(..)) => self != other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_differ_in_the_upper_64_bits_differ() {
        let wide = |number: u128| FileIdentity::new(Some((1, number)), Some((1, number as u64)));
        assert!(wide(1 << 64 | 7).differs_from(wide(2 << 64 | 7)));
        assert!(!wide(1 << 64 | 7).differs_from(wide(1 << 64 | 7)));
        let volume = FileIdentity::new(Some((2, 7)), None);
        assert!(volume.differs_from(FileIdentity::new(Some((1, 7)), None)));
    }

    #[test]
    fn without_128_bits_the_64_are_compared() {
        let narrow = |number| FileIdentity::new(None, Some((1, number)));
        assert!(narrow(7).differs_from(narrow(8)));
        assert!(!narrow(7).differs_from(narrow(7)));
        assert_eq!(FileIdentity::new(Some((1, 0)), Some((1, 7))), narrow(7));
    }

    #[test]
    fn numbers_that_are_none_say_nothing() {
        let known = FileIdentity::new(Some((1, 7)), Some((1, 7)));
        for (wide, narrow) in [(0, 0), (u128::MAX, u64::MAX), (0, u64::MAX)] {
            let none = FileIdentity::new(Some((1, wide)), Some((1, narrow)));
            assert_eq!(none, FileIdentity::Unknown);
            assert!(!none.differs_from(known) && !known.differs_from(none) && !none.differs_from(none));
        }
        assert!(!FileIdentity::new(None, Some((1, 7))).differs_from(known));
    }
}
