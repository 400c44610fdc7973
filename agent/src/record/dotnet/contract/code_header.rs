//! Finds the MethodDesc of the method whose code holds an address: contract ExecutionManager.
//!
//! ```text
//! address -> RangeSectionMap (five levels of 256 pointers) -> RangeSectionFragment -> RangeSection
//!   jitted:       code heap -> nibble map -> start of the code -> RealCodeHeader -> MethodDesc
//!   precompiled:  RUNTIME_FUNCTIONs of the image -> entry point -> hash map -> MethodDesc
//! ```

use stk_schema::bytes::u64_at;

use super::layout::{Contract, MOST_BUCKET, NibbleMap, PrecompiledOffsets};
use super::pages::PageCache;
use super::reader::{Range, RangeKind, Reader};
use crate::record::image::Memory;

/// Levels of the RangeSectionMap on 64 bits, and the bits below the lowest.
const LEVELS: u32 = 5;
const CHUNK_BITS: u32 = 17;
/// Most fragments in one chunk of the address space.
const MOST_FRAGMENTS: usize = 256;
/// RangeSection.Flags: code of a code heap; a list of stubs.
const CODE_HEAP: u32 = 2;
const RANGE_LIST: u32 = 4;
/// Bytes of code per nibble, and nibbles per unit of the map.
const BUCKET: u64 = 32;
const UNIT: u64 = 8;
/// Most units that a search of a linear map goes back: 1 MiB of code.
const MOST_UNITS: u64 = 4096;
/// Most functions from one with a funclet's code back to its method.
const MOST_FUNCLETS: u32 = 128;
/// Most buckets of the hash map that are looked at for one entry point.
const MOST_BUCKETS: u32 = 64;

/// What the runtime has at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RuntimeCode {
    /// Code of the method whose MethodDesc is at this address.
    Method(u64),
    /// Code that the runtime wrote for itself: dispatch of interface calls, entry points of methods
    /// that are not compiled yet, and their kind. The descriptor says no more.
    Stub,
}

/// What the runtime has at `address`; `None` if it does not know the address. `kept` reads what
/// stays as it is while an image is loaded.
pub(super) fn code_at<M: Memory>(
    contract: &Contract,
    reader: &Reader<'_, M>,
    kept: &Reader<'_, M>,
    pages: &PageCache,
    address: u64,
) -> Option<RuntimeCode> {
    let range = pages.range(address, || range(contract, reader, address))?;
    match range.kind {
        RangeKind::Stubs => Some(RuntimeCode::Stub),
        RangeKind::Image { module } => {
            let offsets = contract.precompiled.as_ref()?;
            precompiled(offsets, (reader, kept), module, range.begin, address).map(RuntimeCode::Method)
        }
        RangeKind::Heap { first, base, units } => {
            let code = code_start(contract.nibble_map, reader, base, units, address)?;
            if !(first..=address).contains(&code) {
                return None;
            }
            let header = reader.u64(code.checked_sub(8))?;
            if header <= contract.last_stub {
                return (header != 0).then_some(RuntimeCode::Stub);
            }
            reader.pointer(header.checked_add(contract.map.header_method)).map(RuntimeCode::Method)
        }
    }
}

fn range<M: Memory>(contract: &Contract, reader: &Reader<'_, M>, address: u64) -> Option<Range> {
    let map = &contract.map;
    let section = section(contract, reader, address)?;
    let flags = reader.u32(section.checked_add(map.flags))?;
    let kind = if flags & RANGE_LIST != 0 {
        RangeKind::Stubs
    } else if flags & CODE_HEAP == 0 {
        RangeKind::Image { module: reader.pointer(section.checked_add(map.module))? }
    } else {
        let node = reader.pointer(section.checked_add(map.heap))?;
        RangeKind::Heap {
            first: reader.u64(node.checked_add(map.node_start))?,
            base: reader.u64(node.checked_add(map.node_map_base))?,
            units: reader.pointer(node.checked_add(map.node_map))?,
        }
    };
    let begin = reader.u64(section.checked_add(map.begin))?;
    Some(Range { begin, end: reader.u64(section.checked_add(map.end))?, kind })
}

/// The RangeSection that holds `address`.
fn section<M: Memory>(contract: &Contract, reader: &Reader<'_, M>, address: u64) -> Option<u64> {
    let map = &contract.map;
    let mut level = contract.code_ranges.checked_add(map.top)?;
    for depth in (0..LEVELS).rev() {
        let index = address >> (CHUNK_BITS + 8 * depth) & 0xff;
        // Bit 0 says that the memory below can be freed.
        level = reader.pointer(level.checked_add(8 * index))? & !1;
    }
    let mut fragment = level;
    for _ in 0..MOST_FRAGMENTS {
        if fragment == 0 {
            return None;
        }
        let begin = reader.u64(fragment.checked_add(map.fragment_begin))?;
        let end = reader.u64(fragment.checked_add(map.fragment_end))?;
        if (begin..end).contains(&address) {
            let section = reader.pointer(fragment.checked_add(map.fragment_section))?;
            let begin = reader.u64(section.checked_add(map.begin))?;
            let end = reader.u64(section.checked_add(map.end))?;
            let deleted = reader.u64(section.checked_add(map.deleted))?;
            if (begin..end).contains(&address) && deleted == 0 {
                return Some(section);
            }
        }
        fragment = reader.u64(fragment.checked_add(map.fragment_next))? & !1;
    }
    None
}

/// Start of the code that holds `address`, by the nibble map `units` for the code from `base` on.
/// Each nibble stands for 32 bytes of code: 0 if no code starts there, else 1 + its offset / 4.
fn code_start<M: Memory>(
    kind: NibbleMap,
    reader: &Reader<'_, M>,
    base: u64,
    units: u64,
    address: u64,
) -> Option<u64> {
    let at = address.checked_sub(base)?;
    let bucket = at / BUCKET;
    let unit = |number: u64| reader.u32(units.checked_add(4 * number));
    // The nibbles of a unit begin at its highest bits.
    let nibble = |unit: u32, number: u64| u64::from(unit >> (28 - 4 * (number % UNIT)) & 0xf);
    let start = |bucket: u64, nibble: u64| base.checked_add(bucket * BUCKET)?.checked_add((nibble - 1) * 4);
    let distance = |unit: u32| {
        let low = u64::from(unit & 0xf);
        let found = (kind == NibbleMap::Constant && (9..=12).contains(&low))
            .then(|| base.checked_add(u64::from(unit & !0xf) + (low - 9) * 4));
        found.flatten()
    };
    let first = unit(bucket / UNIT)?;
    if let Some(start) = distance(first) {
        return Some(start);
    }
    // In the bucket itself only what starts at or before the address counts.
    let here = nibble(first, bucket);
    if (1..=at % BUCKET / 4 + 1).contains(&here) {
        return start(bucket, here);
    }
    let in_unit = |value: u32, below: u64| {
        let from = below / UNIT * UNIT;
        (from..below).rev().find(|&bucket| nibble(value, bucket) != 0)
    };
    if let Some(found) = in_unit(first, bucket) {
        return start(found, nibble(first, found));
    }
    let back = if kind == NibbleMap::Constant { 1 } else { MOST_UNITS };
    for number in (0..bucket / UNIT).rev().take(back as usize) {
        let value = unit(number)?;
        if let Some(start) = distance(value) {
            return Some(start);
        }
        if let Some(found) = (number * UNIT..(number + 1) * UNIT).rev().find(|&one| nibble(value, one) != 0) {
            return start(found, nibble(value, found));
        }
    }
    None
}

/// The MethodDesc of precompiled code in the image at `image`, whose Module is `module`.
fn precompiled<M: Memory>(
    offsets: &PrecompiledOffsets,
    (reader, kept): (&Reader<'_, M>, &Reader<'_, M>),
    module: u64,
    image: u64,
    address: u64,
) -> Option<u64> {
    let info = kept.pointer(module.checked_add(offsets.info))?;
    let rva = u32::try_from(address.checked_sub(image)?).ok()?;
    if let Some(thunks) = kept.pointer(info.checked_add(offsets.thunks)) {
        let begin = kept.u32(thunks.checked_add(offsets.directory_rva))?;
        let size = kept.u32(thunks.checked_add(offsets.directory_size))?;
        if rva.checked_sub(begin).is_some_and(|at| at < size) {
            return None;
        }
    }
    let functions = kept.pointer(info.checked_add(offsets.functions))?;
    let count = kept.u32(info.checked_add(offsets.function_count))?;
    let begin = |index: u32| {
        let entry = functions.checked_add(u64::from(index) * offsets.function_size)?;
        kept.u32(entry.checked_add(offsets.function_begin))
    };
    // The last function that begins at or before the address.
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        if begin(middle)? <= rva {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let mut index = low.checked_sub(1)?;
    // Cold parts come behind all others, in pairs (cold, hot) sorted by the first. Which method a
    // cold part belongs to is not followed.
    if kept.u32(info.checked_add(offsets.cold_count))? != 0 {
        let first_cold = kept.u32(Some(kept.pointer(info.checked_add(offsets.cold))?))?;
        if index >= first_cold {
            return None;
        }
    }
    let whole = kept.pointer(info.checked_add(offsets.composite))?;
    let entry_points = whole.checked_add(offsets.entry_points)?;
    // The funclets of a method follow it, and have no entry of their own.
    for _ in 0..MOST_FUNCLETS {
        let entry = image.checked_add(u64::from(begin(index)?))?;
        if let Some(method) = lookup(offsets, reader, entry_points, entry) {
            return Some(method);
        }
        index = index.checked_sub(1)?;
    }
    None
}

/// The value for `key` in a PtrHashMap of the runtime.
fn lookup<M: Memory>(
    offsets: &PrecompiledOffsets,
    reader: &Reader<'_, M>,
    map: u64,
    key: u64,
) -> Option<u64> {
    let buckets = reader.pointer(map.checked_add(offsets.buckets))?;
    // The first bucket holds only their number.
    let count = reader.u32(Some(buckets)).filter(|&count| count > 1)?;
    let first = buckets.checked_add(offsets.bucket_size)?;
    let mut seed = (key >> 2) as u32;
    let step = 1 + (((key >> 5) as u32).wrapping_add(1)) % (count - 1);
    for _ in 0..count.min(MOST_BUCKETS) {
        let bucket = first.checked_add(u64::from(seed % count) * offsets.bucket_size)?;
        let mut bytes = [0; MOST_BUCKET];
        let bytes = bytes.get_mut(..offsets.bucket_size as usize)?;
        reader.fill(bucket, bytes)?;
        let slot = |at: u64, number: u64| u64_at(bytes, (at + 8 * number) as usize);
        for number in 0..offsets.slots {
            if slot(offsets.keys, number)? == key {
                let value = slot(offsets.values, number)? & offsets.value_mask;
                // Values are stored without their lowest bit.
                return value.checked_mul(2).filter(|&value| value != 0);
            }
        }
        // The bits beyond the mask, of the first value, say that more buckets may hold it.
        if slot(offsets.values, 0)? & !offsets.value_mask == 0 {
            return None;
        }
        seed = seed.wrapping_add(step);
    }
    None
}
