//! Images with code that was compiled ahead of time for .NET. Their functions have names in no
//! symbol file, and a runtime without a pipe lists none of them, so the agent requests each from
//! the host.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use stk_format::image::{Image, Memory};
use stk_schema::bytes::u32_at;
use stk_schema::windows::DIRECTORY_COM_DESCRIPTOR;

/// Most images that are known at once; more are left out.
const MOST: usize = 512;
/// Bytes of IMAGE_COR20_HEADER, and where its ManagedNativeHeader stands: an RVA and a size.
const HEADER: usize = 72;
const NATIVE_HEADER: usize = 64;

/// The images. The tables thread writes them, and the sampler reads them.
pub(crate) struct PrecompiledImages {
    /// Load address (0 = free) and module instance.
    images: [(AtomicU64, AtomicU64); MOST],
    /// Changes with each image that is added.
    generation: AtomicU32,
    /// Whether names of their code may be requested.
    wanted: AtomicBool,
}

impl PrecompiledImages {
    /// Knows no image. Names may be requested: the kind of runtime shows later.
    pub(super) const fn new() -> PrecompiledImages {
        PrecompiledImages {
            images: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MOST],
            generation: AtomicU32::new(0),
            wanted: AtomicBool::new(true),
        }
    }

    /// Sets whether names are requested from now on.
    pub(crate) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Adds the module `instance`, if it has such code.
    pub(crate) fn add(&self, instance: u64, image: &Image, memory: &impl Memory) {
        if !has_managed_code(image, memory) {
            return;
        }
        if let Some((base, of)) = self.images.iter().find(|(base, _)| base.load(Ordering::Relaxed) == 0) {
            of.store(instance, Ordering::Relaxed);
            base.store(image.base, Ordering::Release);
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// The module at `base` is being unloaded.
    pub(crate) fn remove(&self, base: u64) {
        for (known, _) in self.images.iter().filter(|(known, _)| known.load(Ordering::Relaxed) == base) {
            known.store(0, Ordering::Release);
        }
    }

    /// A number that changes when an image is added.
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// The module instance of the image at `base`, if it has such code and names are requested.
    pub(super) fn instance(&self, base: u64) -> Option<u64> {
        if base == 0 || !self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        let (_, of) = self.images.iter().find(|(known, _)| known.load(Ordering::Acquire) == base)?;
        Some(of.load(Ordering::Relaxed))
    }
}

/// Whether the image has a .NET header with native code (ReadyToRun, NGEN).
fn has_managed_code(image: &Image, memory: &impl Memory) -> bool {
    let at = image.directory(DIRECTORY_COM_DESCRIPTOR);
    let mut header = [0; HEADER];
    at.len() >= HEADER
        && memory.read(image.base + u64::from(at.start), &mut header)
        && [NATIVE_HEADER, NATIVE_HEADER + 4]
            .iter()
            .all(|&at| u32_at(&header, at).is_some_and(|field| field != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const BASE: u64 = 0x1_0000;

    /// An image with a .NET header, whose ManagedNativeHeader has that RVA and size.
    struct Mapped(Vec<u8>);

    impl Mapped {
        fn new(native: [u32; 2]) -> Mapped {
            let mut bytes = vec![0; 0x3000];
            let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            put(0, u32::from_le_bytes(*b"MZ\0\0"));
            put(0x3c, 0x80);
            put(0x80, u32::from_le_bytes(*b"PE\0\0"));
            put(0x84, 0x14c);
            put(0x98, 0x10b);
            put(0x98 + 56, 0x3000);
            put(0x98 + 60, 0x400);
            put(0x98 + 92, 16);
            put(0x98 + 96 + 8 * DIRECTORY_COM_DESCRIPTOR, 0x2000);
            put(0x98 + 100 + 8 * DIRECTORY_COM_DESCRIPTOR, HEADER as u32);
            put(0x2000 + NATIVE_HEADER, native[0]);
            put(0x2000 + NATIVE_HEADER + 4, native[1]);
            Mapped(bytes)
        }
    }

    impl Memory for Mapped {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let at = (address - BASE) as usize;
            self.0.get(at..at + into.len()).map(|found| into.copy_from_slice(found)).is_some()
        }
    }

    #[test]
    fn image_with_native_code_is_known_until_it_is_unloaded() {
        for (native, expected) in [([0x2100, 0x80], Some(7)), ([0, 0], None), ([0x2100, 0], None)] {
            let (images, memory) = (PrecompiledImages::new(), Mapped::new(native));
            let image = Image::read(&memory, BASE, 0x3000).expect("an image");
            images.add(7, &image, &memory);
            assert_eq!(images.instance(BASE), expected, "{native:x?}");
            assert_eq!((images.instance(BASE + 0x1000), images.instance(0)), (None, None));
            images.want(false);
            assert_eq!(images.instance(BASE), None);
            images.want(true);
            images.remove(BASE);
            assert_eq!(images.instance(BASE), None);
        }
    }

    #[test]
    fn images_beyond_the_limit_are_left_out() {
        let (images, memory) = (PrecompiledImages::new(), Mapped::new([0x2100, 0x80]));
        let image = Image::read(&memory, BASE, 0x3000).expect("an image");
        for instance in 0..=MOST as u64 {
            images.add(instance, &image, &memory);
        }
        images.remove(BASE);
        images.add(9, &image, &memory);
        assert_eq!(images.instance(BASE), Some(9));
    }
}
