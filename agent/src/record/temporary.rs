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

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;

    #[test]
    fn names_differ_from_each_other_and_from_those_of_another_secret() {
        let (mut one, mut other) = (TemporaryNames::new(&[7; 32]), TemporaryNames::new(&[8; 32]));
        let names: BTreeSet<_> =
            (0..1000).flat_map(|_| [format!("{}", one.fresh()), format!("{}", other.fresh())]).collect();
        assert_eq!(names.len(), 2000);
        assert!(names.iter().all(|name| name.len() == 32 && name.bytes().all(|b| b.is_ascii_hexdigit())));
    }
}
