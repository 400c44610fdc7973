//! Reads a RUNTIME_FUNCTION and its unwind data from memory. The memory can hold anything: every
//! size is bounded, and inconsistent data is no entry.

use alloc::vec;
use alloc::vec::Vec;

use stk_schema::Arch;
use stk_schema::bytes::u32_at;

use crate::record::image::Memory;

/// Most chained records that are followed, as many as stk-unwind follows.
const MAX_CHAIN: usize = 32;
/// A larger range without unwind codes describes no function. V8 registers its whole code range in
/// this way to receive exceptions; the entry's unwind data is wrong nearly everywhere.
const MOST_WITHOUT_CODES: u32 = 64 << 10;

/// Reads do not cross into pages that may be missing.
const PAGE: u64 = 4096;
/// Bytes of most UNWIND_INFOs, read at once: under Wine a read takes as long as a suspension.
const NEAR: u64 = 64;

/// UNW_FLAG_EHANDLER, UNW_FLAG_UHANDLER: a handler's address follows the codes.
const HANDLERS: u8 = 3;
/// UNW_FLAG_CHAININFO: another RUNTIME_FUNCTION follows the codes.
const CHAINED: u8 = 4;

/// A function table's entry for an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FunctionEntry {
    /// First address.
    pub base: u64,
    /// Size of the code in bytes.
    pub size: u32,
    /// Address to which RVAs are relative.
    pub image_base: u64,
    /// Bytes of the RUNTIME_FUNCTION.
    pub function: Vec<u8>,
    /// Its unwind data, with chained records appended as `(rva u32, len u32, bytes)`.
    pub unwind: Vec<u8>,
}

impl FunctionEntry {
    /// Reads the entry at `address`; `None` if it does not describe `inside` or is not plausible.
    pub(crate) fn read(
        memory: &impl Memory,
        arch: Arch,
        image_base: u64,
        address: u64,
        inside: u64,
    ) -> Option<FunctionEntry> {
        let entry = match arch {
            Arch::X64 => x64(memory, image_base, address)?,
            Arch::Arm64 => arm64(memory, image_base, address)?,
            Arch::X86 => return None,
        };
        (entry.base..entry.base.checked_add(u64::from(entry.size))?).contains(&inside).then_some(entry)
    }
}

fn x64(memory: &impl Memory, image_base: u64, address: u64) -> Option<FunctionEntry> {
    let function = read(memory, address, 12)?;
    let (begin, end, mut rva) = (u32_at(&function, 0)?, u32_at(&function, 4)?, u32_at(&function, 8)?);
    let size = end.checked_sub(begin).filter(|&size| size != 0)?;
    let mut unwind = Vec::new();
    let mut codes = 0;
    for link in 0..=MAX_CHAIN {
        // An odd RVA names another entry that shares its data. Linkers make such entries, runtimes
        // do not.
        if rva % 4 != 0 || link == MAX_CHAIN {
            return None;
        }
        let (info, next) = unwind_info(memory, image_base.checked_add(u64::from(rva))?)?;
        codes += usize::from(*info.get(2)?);
        if link != 0 {
            unwind.extend_from_slice(&rva.to_le_bytes());
            unwind.extend_from_slice(&(info.len() as u32).to_le_bytes());
        }
        unwind.extend_from_slice(&info);
        match next {
            Some(next) => rva = next,
            None => break,
        }
    }
    if codes == 0 && size > MOST_WITHOUT_CODES {
        return None;
    }
    Some(FunctionEntry {
        base: image_base.checked_add(u64::from(begin))?,
        size,
        image_base,
        function,
        unwind,
    })
}

/// Reads one UNWIND_INFO without its handler's data, and the RVA of the one that it continues.
fn unwind_info(memory: &impl Memory, address: u64) -> Option<(Vec<u8>, Option<u32>)> {
    let near = (PAGE - address % PAGE).min(NEAR) as usize;
    let head = read(memory, address, near).or_else(|| read(memory, address, 4))?;
    let (flags, count) = (head.first()? >> 3, usize::from(*head.get(2)?));
    let codes = 4 + (count * 2).next_multiple_of(4);
    let rest = match flags {
        flags if flags & CHAINED != 0 => 12,
        flags if flags & HANDLERS != 0 => 4,
        _ => 0,
    };
    let info = match head.get(..codes + rest) {
        Some(info) => info.to_vec(),
        None => read(memory, address, codes + rest)?,
    };
    let next = if flags & CHAINED != 0 { Some(u32_at(&info, codes + 8)?) } else { None };
    Some((info, next))
}

fn arm64(memory: &impl Memory, image_base: u64, address: u64) -> Option<FunctionEntry> {
    let function = read(memory, address, 8)?;
    let (begin, data) = (u32_at(&function, 0)?, u32_at(&function, 4)?);
    let (size, unwind) = if data & 3 != 0 {
        ((data >> 2 & 0x7ff) * 4, Vec::new())
    } else {
        let at = image_base.checked_add(u64::from(data))?;
        let head = u32_at(&read(memory, at, 4)?, 0)?;
        let (mut epilogues, mut codes, mut len) = (head >> 22 & 31, head >> 27, 4);
        if (epilogues, codes) == (0, 0) {
            let more = u32_at(&read(memory, at + 4, 4)?, 0)?;
            (epilogues, codes, len) = (more & 0xffff, more >> 16 & 0xff, 8);
        }
        // With E set the number of epilogues is an index instead.
        let scopes = if head >> 21 & 1 != 0 { 0 } else { epilogues };
        let handler = if head >> 20 & 1 != 0 { 4 } else { 0 };
        len += (scopes + codes) as usize * 4 + handler;
        ((head & 0x3_ffff) * 4, read(memory, at, len)?)
    };
    if size == 0 {
        return None;
    }
    Some(FunctionEntry {
        base: image_base.checked_add(u64::from(begin))?,
        size,
        image_base,
        function,
        unwind,
    })
}

fn read(memory: &impl Memory, address: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    memory.read(address, &mut bytes).then_some(bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use alloc::collections::BTreeMap;

    /// Memory made of pieces.
    #[derive(Default)]
    pub(crate) struct Pieces(pub BTreeMap<u64, Vec<u8>>);

    impl Memory for Pieces {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let Some((start, bytes)) = self.0.range(..=address).next_back() else { return false };
            let at = (address - start) as usize;
            match bytes.get(at..at + into.len()) {
                Some(found) => {
                    into.copy_from_slice(found);
                    true
                }
                None => false,
            }
        }
    }

    pub(crate) const IMAGE: u64 = 0x1000_0000;

    pub(crate) fn function(begin: u32, end: u32, unwind: u32) -> Vec<u8> {
        [begin, end, unwind].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn entry(pieces: &[(u64, Vec<u8>)]) -> Option<FunctionEntry> {
        let memory = Pieces(pieces.iter().cloned().collect());
        FunctionEntry::read(&memory, Arch::X64, IMAGE, 0x500, IMAGE + 0x1000)
    }

    #[test]
    fn chains_are_followed_and_appended_with_their_addresses() {
        // push rbp in the root; the fragment only continues it. Three codes are padded to four.
        let root = vec![0x01, 3, 3, 0x05, 3, 0x03, 1, 0x50, 0, 0, 0, 0];
        let chained = [vec![0x21, 0, 0, 0], function(0x900, 0x980, 0x3000)].concat();
        let found = entry(&[
            (0x500, function(0x1000, 0x1040, 0x2000)),
            (IMAGE + 0x2000, chained.clone()),
            (IMAGE + 0x3000, root.clone()),
        ])
        .unwrap();
        assert_eq!((found.base, found.size, found.image_base), (IMAGE + 0x1000, 0x40, IMAGE));
        let appended = [0x3000u32.to_le_bytes(), 12u32.to_le_bytes()].concat();
        assert_eq!(found.unwind, [chained, appended, root].concat());
    }

    #[test]
    fn a_handler_is_kept_and_its_data_is_not() {
        let info = vec![0x09, 0, 1, 0, 4, 0x42, 0, 0, 0x78, 0x56, 0x34, 0x12];
        let memory = [info.clone(), vec![0xee; 8]].concat();
        let found = entry(&[(0x500, function(0x1000, 0x1001, 0x2000)), (IMAGE + 0x2000, memory)]).unwrap();
        assert_eq!(found.unwind, info);
    }

    #[test]
    fn inconsistent_data_is_no_entry() {
        let leaf = || vec![0x01, 0, 0, 0];
        let cyclic = [vec![0x21, 0, 0, 0], function(0x1000, 0x1010, 0x2000)].concat();
        for (name, record, info) in [
            ("empty", function(0x1000, 0x1000, 0x2000), leaf()),
            ("backwards", function(0x1001, 0x1000, 0x2000), leaf()),
            ("elsewhere", function(0x1001, 0x1010, 0x2000), leaf()),
            ("odd", function(0x1000, 0x1010, 0x2001), leaf()),
            ("unreadable", function(0x1000, 0x1010, 0x4000), leaf()),
            ("cut", function(0x1000, 0x1010, 0x2000), vec![0x01, 0, 9, 0]),
            ("cyclic", function(0x1000, 0x1010, 0x2000), cyclic),
            ("V8's whole range without codes", function(0, 0x1000_0000, 0x2000), leaf()),
        ] {
            assert_eq!(entry(&[(0x500, record), (IMAGE + 0x2000, info)]), None, "{name}");
        }
        assert_eq!(entry(&[]), None);
    }

    #[test]
    fn a_large_range_with_codes_is_an_entry() {
        // push rbp; mov rbp,rsp: V8's unwind data for all of its frames.
        let info = vec![0x01, 4, 2, 0x05, 4, 0x03, 1, 0x50];
        let found =
            entry(&[(0x500, function(0, 0x0800_0000, 0x2000)), (IMAGE + 0x2000, info.clone())]).unwrap();
        assert_eq!((found.size, found.unwind), (0x0800_0000, info));
    }

    #[test]
    fn arm64_entries_are_packed_or_have_a_record() {
        let read = |pieces: &[(u64, Vec<u8>)]| {
            let memory = Pieces(pieces.iter().cloned().collect());
            FunctionEntry::read(&memory, Arch::Arm64, IMAGE, 0x500, IMAGE + 0x1000)
        };
        let record = |data: u32| [0x1000u32.to_le_bytes(), data.to_le_bytes()].concat();
        let packed = read(&[(0x500, record(5 << 2 | 1))]).unwrap();
        assert_eq!((packed.size, packed.unwind.len()), (20, 0));
        // 16 instructions, one epilogue scope, one word of codes.
        let xdata = [(1u32 << 27 | 1 << 22 | 16).to_le_bytes(), [0; 4], [0xe4; 4], [0xff; 4]].concat();
        let full = read(&[(0x500, record(0x2000)), (IMAGE + 0x2000, xdata.clone())]).unwrap();
        assert_eq!((full.size, full.unwind), (64, xdata[..12].to_vec()));
    }
}
