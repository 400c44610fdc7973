//! Random UUIDs (version 4, RFC 9562), which identify traces and salt their blocks.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A new random UUID.
///
/// The bits come from the keys that std seeds from the system's random numbers for its hash maps:
/// enough for an identity, which is no secret.
pub(crate) fn random() -> [u8; 16] {
    let mut uuid = [0; 16];
    for (i, half) in uuid.chunks_exact_mut(8).enumerate() {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_usize(i);
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uuids_are_version_4_and_do_not_repeat() {
        let many: HashSet<[u8; 16]> = (0..1000).map(|_| random()).collect();
        assert_eq!(many.len(), 1000);
        assert!(many.iter().all(|uuid| uuid[6] >> 4 == 4 && uuid[8] >> 6 == 2));
    }
}
