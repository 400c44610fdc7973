//! Saves the unread tables of a module that is about to be unmapped. The thread that unloads it
//! copies them into preallocated memory: no lock, no allocation, a few bounded copies. What does
//! not fit is counted by the caller and left to the supplement.
//!
//! [`PendingModules`] knows which modules have unread tables, [`Arena`] is the memory, and
//! [`RescuedImage`] reads a [`RescueCopy`] like an image.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::fingerprint::{NT, read_headers};
use super::image::Memory;
use stk_schema::bytes::u32_at;
use stk_schema::windows as pe;

/// Most modules whose tables may be unread at one time; a power of two.
const PENDING: usize = 2048;
/// Slots that are searched for one module.
const PROBES: usize = 32;
/// Images are mapped at multiples of 64 KiB, so the low bits of a slot hold a number that
/// distinguishes successive loads at the same address.
const GRANULARITY: u64 = 0x1_0000;
const PAGE: u32 = 4096;
/// Most bytes of headers.
const MAX_HEADERS: u32 = 64 << 10;
/// Most bytes of an UNWIND_INFO: 255 codes, a chained entry or a handler's address. An arm64 record
/// is shorter.
const MAX_RECORD: u32 = 4 + 256 * 2 + 12;
/// Bytes read at once while the unwind info is copied.
const CHUNK: usize = 64 << 10;

/// Modules whose tables are still to be read. The loader's callback adds and looks up modules; the
/// tables thread settles them.
pub(crate) struct PendingModules {
    /// Load address and, in its low 16 bits, the number of the load; 0 is free.
    places: Box<[AtomicU64]>,
    loads: AtomicU32,
}

impl Default for PendingModules {
    fn default() -> PendingModules {
        PendingModules { places: (0..PENDING).map(|_| AtomicU64::new(0)).collect(), loads: AtomicU32::new(0) }
    }
}

impl PendingModules {
    /// Notes that a module was mapped at `base`. Returns the ticket for [`PendingModules::settle`];
    /// 0 if no slot is free.
    pub(crate) fn loaded(&self, base: u64) -> u64 {
        if base == 0 || !base.is_multiple_of(GRANULARITY) {
            return 0;
        }
        let number = self.loads.fetch_add(1, Ordering::Relaxed) % (GRANULARITY as u32 - 1) + 1;
        let ticket = base | u64::from(number);
        let free = self
            .probe(base)
            .find(|place| place.compare_exchange(0, ticket, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        free.map_or(0, |_| ticket)
    }

    /// Notes that the tables of this load were read, or that the module is gone.
    pub(crate) fn settle(&self, ticket: u64) {
        if ticket != 0 {
            for place in self.probe(ticket & !(GRANULARITY - 1)) {
                let _ = place.compare_exchange(ticket, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Settles the module at `base`, which is about to be unmapped. True if its tables had not been
    /// read.
    pub(crate) fn unloaded(&self, base: u64) -> bool {
        let mut unread = false;
        for place in self.probe(base) {
            let ticket = place.load(Ordering::Acquire);
            if ticket != 0 && ticket & !(GRANULARITY - 1) == base {
                unread |= place.compare_exchange(ticket, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            }
        }
        unread
    }

    fn probe(&self, base: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = (base / GRANULARITY).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (0..PROBES).filter_map(move |n| self.places.get((first as usize).wrapping_add(n) % PENDING))
    }
}

/// Memory for bytes of the target's modules, allocated once. Parts are taken in order; when the
/// last part is given back, all of it is free again.
pub(crate) struct Arena {
    bytes: Box<[UnsafeCell<u8>]>,
    /// High half: parts that are in use. Low half: bytes taken.
    state: AtomicU64,
}

// SAFETY: a range of bytes is written by the one thread that took it, before it hands the range
// over (through a queue, which orders the accesses), and read by the one that gives it back.
unsafe impl Sync for Arena {}
// SAFETY: as above; the arena owns its bytes.
unsafe impl Send for Arena {}

impl Arena {
    /// An arena of `len` bytes.
    pub(crate) fn new(len: u32) -> Arena {
        // Zeroed by the system: pages that are never used cost no memory.
        let bytes = Box::into_raw(vec![0u8; len as usize].into_boxed_slice());
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box goes over whole.
        Arena { bytes: unsafe { Box::from_raw(bytes as *mut [UnsafeCell<u8>]) }, state: AtomicU64::new(0) }
    }

    /// Takes `len` bytes; `None` if too few are left. Each call takes one part, to be given back.
    fn take(&self, len: u32) -> Option<ArenaSpan<'_>> {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let (parts, used) = (state >> 32, state as u32);
            let end = used.checked_add(len).filter(|&end| end as usize <= self.bytes.len())?;
            let next = (parts + 1) << 32 | u64::from(end);
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(ArenaSpan { arena: self, start: used, len }),
                Err(now) => state = now,
            }
        }
    }

    fn give_back(&self, parts: u64) {
        let mut state = self.state.load(Ordering::Acquire);
        loop {
            let left = (state >> 32).saturating_sub(parts);
            let next = if left == 0 { 0 } else { left << 32 | state & 0xffff_ffff };
            match self.state.compare_exchange_weak(state, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => state = now,
            }
        }
    }

    /// Bytes that were handed over.
    fn get(&self, start: u32, len: u32) -> &[u8] {
        let (start, len) = (start as usize, len as usize);
        if start.checked_add(len).is_none_or(|end| end > self.bytes.len()) {
            return &[];
        }
        // SAFETY: in bounds, and written before it was handed over; no thread writes to it until it
        // is given back.
        unsafe { core::slice::from_raw_parts(self.bytes.as_ptr().add(start).cast(), len) }
    }
}

/// Bytes that this thread alone may write.
struct ArenaSpan<'a> {
    arena: &'a Arena,
    start: u32,
    len: u32,
}

impl ArenaSpan<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        let cells = self.arena.bytes.as_ptr();
        // SAFETY: `take` gave this range only to this value, and `&mut self` makes this the only
        // reference.
        unsafe {
            core::slice::from_raw_parts_mut(
                cells.add(self.start as usize).cast_mut().cast(),
                self.len as usize,
            )
        }
    }
}

/// A range of an image, and the position of its bytes in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CopiedRange {
    rva: u32,
    len: u32,
    start: u32,
}

/// The copied parts of a module: headers, exception directory, unwind info.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RescueCopy {
    base: u64,
    size: u32,
    ranges: [CopiedRange; 3],
    parts: u64,
}

impl RescueCopy {
    /// Copies the parts of the image at `base` that unwinding needs. `None` if it has no exception
    /// directory or the arena has no room.
    pub(crate) fn copy(memory: &impl Memory, base: u64, arena: &Arena) -> Option<RescueCopy> {
        let mut headers = [0; NT];
        read_headers(memory, base, &mut headers)?;
        let field = |at: usize| u32_at(&headers, at);
        let (count, directories) = match field(24)? & 0xffff {
            0x20b => (24 + 108, 24 + 112),
            0x10b => (24 + 92, 24 + 96),
            _ => return None,
        };
        let (machine, size) = ((field(4)? & 0xffff) as u16, field(24 + 56)?);
        let entry = directories + pe::DIRECTORY_EXCEPTION * 8;
        if field(count)? as usize <= pe::DIRECTORY_EXCEPTION {
            return None;
        }
        let (rva, len) = (field(entry)?, field(entry + 4)?);
        if rva == 0 || len == 0 || rva.checked_add(len)? > size {
            return None;
        }
        let mut rescued = RescueCopy { base, size, ranges: [CopiedRange::default(); 3], parts: 0 };
        // At least as much as `Image::read` reads to learn the size of the headers.
        let of_headers = field(24 + 60)?.clamp(PAGE, MAX_HEADERS).min(size);
        // Whole pages, as records may refer to others in the directory.
        let (from, to) = (rva - rva % PAGE, (rva + len).checked_next_multiple_of(PAGE)?.min(size));
        let whole =
            rescued.take(memory, arena, 0, 0, of_headers) && rescued.take(memory, arena, 1, from, to - from);
        let functions = if whole { arena.get(rescued.ranges[1].start + rva % PAGE, len) } else { &[] };
        let Some((start, end)) = unwind_range(machine, functions, size).filter(|_| whole) else {
            rescued.give_back(arena);
            return None;
        };
        if !rescued.take(memory, arena, 2, start, end - start) {
            rescued.give_back(arena);
            return None;
        }
        Some(rescued)
    }

    /// Lets the arena reuse the bytes. Called once for each copy.
    pub(crate) fn give_back(self, arena: &Arena) {
        arena.give_back(self.parts);
    }

    /// The copy as an image's memory.
    pub(crate) fn image<'a>(&'a self, arena: &'a Arena) -> RescuedImage<'a> {
        RescuedImage { rescued: self, arena }
    }

    /// Load address and SizeOfImage.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.base, u64::from(self.size))
    }

    fn take(&mut self, memory: &impl Memory, arena: &Arena, index: usize, rva: u32, len: u32) -> bool {
        let Some(mut room) = arena.take(len) else { return false };
        self.parts += 1;
        let start = room.start;
        let mut address = self.base + u64::from(rva);
        for chunk in room.bytes().chunks_mut(CHUNK) {
            if !memory.read(address, chunk) {
                return false;
            }
            address += chunk.len() as u64;
        }
        if let Some(range) = self.ranges.get_mut(index) {
            *range = CopiedRange { rva, len, start };
        }
        true
    }
}

/// The pages that the unwind records of `functions` span.
fn unwind_range(machine: u16, functions: &[u8], size: u32) -> Option<(u32, u32)> {
    let (entry, at) = match machine {
        pe::MACHINE_X64 => (pe::RUNTIME_FUNCTION_X64_SIZE, 8),
        pe::MACHINE_ARM64 => (pe::RUNTIME_FUNCTION_ARM64_SIZE, 4),
        _ => return None,
    };
    // On x64, bit 0 refers to another entry; on arm64, the low bits mark packed data.
    let records = functions.chunks_exact(entry).filter_map(|function| u32_at(function, at));
    let records = records.filter(|&rva| rva & 3 == 0 && rva != 0 && rva < size);
    let (low, high) = records.fold((u32::MAX, 0), |(low, high), rva| (low.min(rva), high.max(rva)));
    let end = high.saturating_add(MAX_RECORD).checked_next_multiple_of(PAGE)?.min(size);
    (low < end).then_some((low - low % PAGE, end))
}

/// A module that is unmapped, read from its copy.
pub(crate) struct RescuedImage<'a> {
    rescued: &'a RescueCopy,
    arena: &'a Arena,
}

impl Memory for RescuedImage<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some(rva) = address.checked_sub(self.rescued.base) else { return false };
        let from = self.rescued.ranges.iter().find_map(|range| {
            let offset = usize::try_from(rva.checked_sub(u64::from(range.rva))?).ok()?;
            self.arena.get(range.start, range.len).get(offset..offset.checked_add(into.len())?)
        });
        from.map(|from| into.copy_from_slice(from)).is_some()
    }
}

/// The tickets of known modules, by instance. Only the tables thread uses it.
#[derive(Debug, Default)]
pub(crate) struct PoolIds(Vec<(u64, u64)>);

impl PoolIds {
    /// Keeps the ticket of an instance.
    pub(crate) fn put(&mut self, instance: u64, ticket: u64) {
        if ticket != 0 {
            self.0.push((instance, ticket));
        }
    }

    /// Takes out the ticket of an instance; 0 if there is none.
    pub(crate) fn take(&mut self, instance: u64) -> u64 {
        let at = self.0.iter().position(|(known, _)| *known == instance);
        at.map_or(0, |at| self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests;
