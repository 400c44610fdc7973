//! The memory and the modules of a process, from images' tables.

use std::collections::BTreeMap;
use std::rc::Rc;

use stk_unwind::ImageTables;

/// What a walk may read besides the stack.
#[derive(Default)]
pub struct Memory<'a> {
    ranges: BTreeMap<u64, &'a [u8]>,
    modules: BTreeMap<u64, Rc<Module>>,
}

pub(super) struct Module {
    pub(super) size: u64,
    /// RUNTIME_FUNCTIONs in order.
    pub(super) functions: Vec<[u32; 3]>,
}

impl<'a> Memory<'a> {
    /// Adds an image at `base`.
    pub fn add(&mut self, base: u64, image: &ImageBytes<'a>) {
        let ranges = image.ranges.iter().map(|&(rva, bytes)| (base + u64::from(rva), bytes));
        self.ranges.extend(ranges);
        self.modules.insert(base, image.module.clone());
    }

    /// Adds bytes, unless some of them are known.
    pub fn add_bytes(&mut self, address: u64, bytes: &'a [u8]) {
        let end = address + bytes.len() as u64;
        let before = self.ranges.range(..end).next_back();
        if before.is_none_or(|(start, known)| start + known.len() as u64 <= address) {
            self.ranges.insert(address, bytes);
        }
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = (&u64, &&'a [u8])> {
        self.ranges.iter()
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = (&u64, &Rc<Module>)> {
        self.modules.iter()
    }
}

/// An image's bytes and its exception directory.
pub struct ImageBytes<'a> {
    ranges: Vec<(u32, &'a [u8])>,
    module: Rc<Module>,
}

impl<'a> ImageBytes<'a> {
    /// Of an image, with its exception directory if it is x64.
    pub fn new(image: &'a ImageTables) -> ImageBytes<'a> {
        let table = image.exception_directory().unwrap_or_default();
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let functions = table
            .chunks_exact(12)
            .map(|entry| [word(&entry[..4]), word(&entry[4..8]), word(&entry[8..])])
            .filter(|[start, end, _]| start < end)
            .collect();
        let module = Rc::new(Module { size: image.size().into(), functions });
        let mut ranges = Vec::new();
        let mut rva = 0;
        while rva < image.size() {
            let bytes = image.bytes(rva).unwrap_or_default();
            if bytes.is_empty() {
                rva += 1;
            } else {
                ranges.push((rva, bytes));
                rva += bytes.len() as u32;
            }
        }
        ImageBytes { ranges, module }
    }
}
