//! A cache of code bytes at sampled instruction pointers. Reading them is a system call, and hot
//! code is sampled at the same few addresses again and again.

use alloc::boxed::Box;
use alloc::vec;

/// Code bytes read at the instruction pointer.
pub(crate) const CODE_BYTES: usize = 64;
/// Entries of the cache; a power of two.
const PLACES: usize = 4096;

/// The result of reading code bytes at an instruction pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CodeRead {
    /// Bytes read, from the start.
    pub len: usize,
    /// Whether the bytes belong to an image. They do not change while it is mapped.
    pub image: bool,
}

/// The cached code bytes of one address.
#[derive(Clone, Copy)]
pub(crate) struct CodeBytes {
    ip: u64,
    generation: u32,
    len: u8,
    /// Whether the entry may be used again. Dynamic code can change at any time and is read anew.
    image: bool,
    bytes: [u8; CODE_BYTES],
}

impl CodeBytes {
    const NONE: CodeBytes = CodeBytes { ip: 0, generation: 0, len: 0, image: false, bytes: [0; CODE_BYTES] };

    /// The bytes; `None` if none could be read.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        self.bytes.get(..usize::from(self.len)).filter(|bytes| !bytes.is_empty())
    }
}

/// The cache. It allocates only in [`CodeCache::new`].
pub(crate) struct CodeCache {
    places: Box<[CodeBytes]>,
}

impl CodeCache {
    pub(crate) fn new() -> CodeCache {
        CodeCache { places: vec![CodeBytes::NONE; PLACES].into_boxed_slice() }
    }

    /// The code at `ip` in the loader's `generation`: from the cache, or by `read` if it is not
    /// cached.
    pub(crate) fn get(
        &mut self,
        ip: u64,
        generation: u32,
        read: impl FnOnce(&mut [u8; CODE_BYTES]) -> CodeRead,
    ) -> &CodeBytes {
        let place = (ip.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % PLACES;
        let code = &mut self.places[place];
        if !(code.ip == ip && code.generation == generation && code.image) {
            let found = read(&mut code.bytes);
            code.ip = ip;
            code.generation = generation;
            code.len = found.len.min(CODE_BYTES) as u8;
            code.image = found.image && found.len != 0;
        }
        code
    }
}

impl Default for CodeCache {
    fn default() -> CodeCache {
        CodeCache::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_images_code_is_read_once_per_generation_and_dynamic_code_every_time() {
        let mut cache = CodeCache::new();
        let mut reads = 0;
        let mut get = |ip, generation, image| {
            let code = *cache.get(ip, generation, |bytes| {
                reads += 1;
                bytes[0] = reads;
                CodeRead { len: 1, image }
            });
            code.bytes().map(|bytes| bytes[0])
        };
        assert_eq!([get(16, 1, true), get(16, 1, true), get(16, 2, true)], [Some(1), Some(1), Some(2)]);
        assert_eq!([get(32, 2, false), get(32, 2, false)], [Some(3), Some(4)]);
    }
}
