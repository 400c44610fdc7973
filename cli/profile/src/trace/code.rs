//! Dynamic code over time: which region held an address at a moment, and how it is unwound.
//!
//! A stub is a window of bytes around an address; where its runtime stated the whole method, the
//! method counts. So there are two layers, stubs and all else below, methods above, and within each
//! no two regions overlap at any moment.

use super::changes::destination;
use std::collections::BTreeMap;
use stk_base::model::bytes::u32_at;
use stk_schema::Ticks;
use stk_schema::event::{CodeAdd, CodeKind, MethodBody};
use stk_unwind::x86::X86Tables;
use stk_unwind::{Arch, ImageTables};

/// A dynamic code region: code outside all modules, from a time on.
#[derive(Debug)]
pub struct CodeRegion {
    /// Instance id.
    pub instance: u64,
    /// From when on: the time of the first sample that showed it.
    pub add: Ticks,
    /// Until when; `None` = to the end.
    pub remove: Option<Ticks>,
    /// `CodeKind` as a number.
    pub kind: u64,
    /// First address.
    pub base: u64,
    /// Length in bytes.
    pub size: u64,
    /// The trace's unwind data of its functions, for the walker. RVAs count from `base`.
    pub tables: ImageTables,
}

impl CodeRegion {
    /// A region from its event.
    pub(super) fn new(add: &CodeAdd<'_>, arch: Arch) -> CodeRegion {
        CodeRegion {
            instance: add.instance,
            add: add.time,
            remove: None,
            kind: add.kind,
            base: add.base,
            size: add.size,
            tables: tables(add, arch),
        }
    }

    /// The method that `known` is a part of. `None` if that is no stub, or not within the method's
    /// code.
    pub(super) fn method<'a>(known: &'a CodeRegion, body: &MethodBody<'a>, arch: Arch) -> Option<CodeRegion> {
        let size = u32::try_from(body.size).ok().filter(|_| arch == Arch::X86 && known.is_stub())?;
        let code = body.code.get(..body.code.len().min(size as usize))?;
        // Other code may have come to the address before the runtime reported the method.
        let first = known.base.max(body.base);
        let from = |base: u64, bytes: &'a [u8]| bytes.get(usize::try_from(first - base).ok()?..);
        let ours = from(body.base, code)?;
        let theirs = from(known.base, known.tables.bytes(0)?)?;
        let both = ours.len().min(theirs.len());
        if both == 0 || ours[..both] != theirs[..both] {
            return None;
        }
        let function = std::iter::once(0..size);
        let tables = ImageTables::new(arch, size)
            .range(0, code)
            .exception_directory(0, 0)
            .x86(X86Tables::default().with_functions(function))
            .method(body.gc_info);
        Some(CodeRegion {
            instance: known.instance,
            add: known.add,
            remove: known.remove,
            kind: CodeKind::Jit as u64,
            base: body.base,
            size: body.size,
            tables: tables.build(),
        })
    }

    /// Whether it is a whole method, which counts instead of the stubs at its addresses.
    fn is_method(&self) -> bool {
        self.kind == CodeKind::Jit as u64 && self.tables.arch() == Arch::X86
    }

    /// Whether it has no unwind data and is only known to be code.
    pub fn is_stub(&self) -> bool {
        self.kind == CodeKind::Stub as u64
    }

    /// Whether it is one function or stub, not a range of many functions.
    pub fn is_one_piece(&self) -> bool {
        self.size <= MOST_OF_ONE
    }

    /// Whether `address` is in it.
    pub fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.size
    }

    fn last(&self) -> u64 {
        self.base.saturating_add(self.size.max(1) - 1)
    }
}

/// An entry larger than this covers a whole range of functions, as V8 registers it.
const MOST_OF_ONE: u64 = 1 << 20;
/// An entry without unwind codes that is larger than this covers no function: V8 registers its
/// whole code range this way, for exceptions alone.
const MOST_WITHOUT_CODES: u64 = 64 << 10;
/// Unwind data gets RVAs behind its region. A region this large leaves no RVAs for it.
const MOST_BYTES: u64 = 0xf000_0000;

/// Tables of a region for the walker: the region becomes an image that begins at its first address.
fn tables(add: &CodeAdd<'_>, arch: Arch) -> ImageTables {
    let size = u32::try_from(add.size.min(MOST_BYTES)).unwrap_or(u32::MAX);
    let code = add.code.get(..add.code.len().min(size as usize)).unwrap_or(&[]);
    let builder = ImageTables::new(arch, size).range(0, code);
    if add.function.is_empty() {
        // The region is known to have no entry, so only the innermost function can be followed.
        return builder.exception_directory(0, 0).stub().build();
    }
    let unwind = match arch {
        _ if add.size > MOST_BYTES => None,
        Arch::X64 => x64(add, size),
        Arch::Arm64 => arm64(add, size),
        _ => None,
    };
    match unwind {
        Some((ranges, directory)) => {
            let builder = ranges.into_iter().fold(builder, |builder, (rva, bytes)| builder.range(rva, bytes));
            let builder = builder.exception_directory(directory.0, directory.1);
            if add.size > MOST_OF_ONE { builder.many_functions().build() } else { builder.build() }
        }
        // The entry is not usable.
        None => builder.build(),
    }
}

/// Bytes by RVA, and the RVA and size of the exception directory among them.
type UnwindBytes = (Vec<(u32, Vec<u8>)>, (u32, u32));

/// The RUNTIME_FUNCTION and its UNWIND_INFOs, moved to RVAs behind the region.
fn x64(add: &CodeAdd<'_>, size: u32) -> Option<UnwindBytes> {
    let [begin, end, unwind_rva] = words(add.function)?;
    // RVAs of the event count from its image base, those here from the region.
    let moved = u32::try_from(add.base.checked_sub(add.image_base)?).ok()?;
    if begin != moved || u64::from(end.checked_sub(begin)?) != add.size {
        return None;
    }
    // The first UNWIND_INFO has its own length. For the others, the event states the length.
    let (_, mut len) = unwind_len(add.unwind)?;
    let mut rest = add.unwind;
    let mut rva = unwind_rva;
    let mut pieces: Vec<(u32, Vec<u8>)> = Vec::new();
    let mut codes = 0;
    loop {
        let (info, behind) = (rest.get(..len)?, rest.get(len..)?);
        codes += usize::from(*info.get(2)?);
        pieces.push((rva, info.to_vec()));
        if behind.is_empty() {
            break;
        }
        let [next, next_len] = words(behind.get(..8)?)?;
        (rva, len, rest) = (next, next_len as usize, behind.get(8..)?);
    }
    if codes == 0 && add.size > MOST_WITHOUT_CODES {
        return None;
    }
    let mut at = size.next_multiple_of(8);
    let mut places: BTreeMap<u32, u32> = BTreeMap::new();
    for (rva, bytes) in &pieces {
        places.entry(*rva).or_insert(at);
        at = at.checked_add(u32::try_from(bytes.len()).ok()?.next_multiple_of(8))?;
    }
    let mut ranges = Vec::new();
    for (rva, mut bytes) in pieces {
        if let Some((Some(chained), _)) = unwind_len(&bytes) {
            let [begin, end, next] = words(bytes.get(chained..chained + 12)?)?;
            let record =
                [begin.wrapping_sub(moved), end.wrapping_sub(moved), places.get(&next).copied().unwrap_or(0)];
            bytes.splice(chained..chained + 12, record.into_iter().flat_map(u32::to_le_bytes));
        }
        ranges.push((*places.get(&rva)?, bytes));
    }
    let first = *places.get(&unwind_rva)?;
    ranges.push((at, [0, size, first].into_iter().flat_map(u32::to_le_bytes).collect()));
    Some((ranges, (at, 12)))
}

/// The offset of the record that an UNWIND_INFO chains to, if there is one, and the length of the
/// UNWIND_INFO without its handler's data.
fn unwind_len(info: &[u8]) -> Option<(Option<usize>, usize)> {
    let (flags, count) = (info.first()? >> 3, usize::from(*info.get(2)?));
    let codes = 4 + (count * 2).next_multiple_of(4);
    Some(match flags {
        flags if flags & 4 != 0 => (Some(codes), codes + 12),
        flags if flags & 3 != 0 => (None, codes + 4),
        _ => (None, codes),
    })
}

/// The packed record, or the .xdata moved behind the region.
fn arm64(add: &CodeAdd<'_>, size: u32) -> Option<UnwindBytes> {
    let [_, data] = words(add.function)?;
    let at = size.next_multiple_of(8);
    let mut ranges = Vec::new();
    let data = if data & 3 != 0 {
        data
    } else {
        ranges.push((at, add.unwind.to_vec()));
        at
    };
    let directory = at.checked_add(u32::try_from(add.unwind.len()).ok()?.next_multiple_of(8))?;
    ranges.push((directory, [0, data].into_iter().flat_map(u32::to_le_bytes).collect()));
    Some((ranges, (directory, 8)))
}

fn words<const N: usize>(bytes: &[u8]) -> Option<[u32; N]> {
    let mut words = [0; N];
    for (n, word) in words.iter_mut().enumerate() {
        *word = u32_at(bytes, n * 4)?;
    }
    Some(words)
}

/// A region is added or removed.
#[derive(Clone, Copy, Debug)]
struct RegionChange {
    time: Ticks,
    adds: bool,
    region: u32,
}

/// Something that occupies a range of addresses for a time.
pub(super) trait Extent {
    /// First and last address.
    fn span(&self) -> (u64, u64);
    /// When it comes.
    fn comes(&self) -> Ticks;
    /// When it goes; `None` = never.
    fn goes(&mut self) -> &mut Option<Ticks>;
}

impl Extent for CodeRegion {
    fn span(&self) -> (u64, u64) {
        (self.base, self.last())
    }

    fn comes(&self) -> Ticks {
        self.add
    }

    fn goes(&mut self) -> &mut Option<Ticks> {
        &mut self.remove
    }
}

/// Ends each item where a later one overlaps it, whether or not the trace says so. After that, no
/// two overlap at any moment. `all` is sorted by begin.
pub(super) fn end_overlapped<T: Extent>(all: &mut [T]) {
    let mut live: BTreeMap<u64, usize> = BTreeMap::new();
    for at in 0..all.len() {
        let ((base, last), comes) = (all[at].span(), all[at].comes());
        if all[at].goes().is_some_and(|goes| goes <= comes) {
            continue;
        }
        // Items that do not overlap: of those below, only the nearest can reach in.
        let below = live.range(..base).next_back().filter(|&(_, &other)| all[other].span().1 >= base);
        let overlapped: Vec<u64> =
            below.into_iter().chain(live.range(base..=last)).map(|(&base, _)| base).collect();
        for other in overlapped.into_iter().filter_map(|base| live.remove(&base)) {
            let goes = all[other].goes();
            *goes = Some(goes.map_or(comes, |goes| goes.min(comes)));
        }
        live.insert(base, at);
    }
}

/// The regions of a timeline, sorted for lookups.
#[derive(Default, Debug)]
pub(super) struct CodeIndex {
    changes: Vec<RegionChange>,
    /// Regions by base, each with the highest last address of it and all before it.
    by_base: Vec<(u64, u64, u32)>,
}

impl CodeIndex {
    /// Sorts the regions, and ends each where a later one of its layer overlaps it.
    pub(super) fn new(regions: &mut [CodeRegion]) -> CodeIndex {
        regions.sort_by_key(|region| (region.is_method(), region.add, region.instance));
        let methods = regions.partition_point(|region| !region.is_method());
        let (below, above) = regions.split_at_mut(methods);
        end_overlapped(below);
        end_overlapped(above);
        let mut index = CodeIndex::default();
        for (at, region) in regions.iter().enumerate() {
            if region.size == 0 || region.remove.is_some_and(|remove| remove <= region.add) {
                continue;
            }
            index.changes.push(RegionChange { time: region.add, adds: true, region: at as u32 });
            if let Some(time) = region.remove {
                index.changes.push(RegionChange { time, adds: false, region: at as u32 });
            }
            index.by_base.push((region.base, region.last(), at as u32));
        }
        index.changes.sort_by_key(|change| (change.time, change.adds, change.region));
        index.by_base.sort_unstable();
        let mut highest = 0;
        for (_, last, _) in &mut index.by_base {
            highest = highest.max(*last);
            *last = highest;
        }
        index
    }

    /// When the first region that comes after `time` and holds `address` comes.
    pub(super) fn next_at(&self, regions: &[CodeRegion], address: u64, time: Ticks) -> Option<Ticks> {
        let after = self.by_base.partition_point(|(base, ..)| *base <= address);
        let reaching = self.by_base[..after].iter().rev().take_while(|(_, highest, _)| *highest >= address);
        let holding = reaching
            .map(|&(.., region)| &regions[region as usize])
            .filter(|region| region.holds(address) && region.add > time);
        holding.map(|region| region.add).min()
    }
}

/// The regions that are live at a moment.
#[derive(Clone, Default, Debug)]
pub(super) struct LiveCode {
    next: usize,
    /// By base: regions without methods, and methods.
    layers: [BTreeMap<u64, u32>; 2],
}

impl LiveCode {
    /// Goes to a moment, later or earlier; how many changes lie between.
    pub(super) fn go(&mut self, regions: &[CodeRegion], index: &CodeIndex, time: Ticks) -> u64 {
        let changes = &index.changes;
        let start = self.next;
        let end = destination(changes, start, |change| change.time <= time);
        if start <= end {
            changes[start..end].iter().for_each(|change| self.change(regions, change, change.adds));
        } else {
            let back = changes[end..start].iter().rev();
            back.for_each(|change| self.change(regions, change, !change.adds));
        }
        self.next = end;
        start.abs_diff(end) as u64
    }

    fn change(&mut self, regions: &[CodeRegion], change: &RegionChange, comes: bool) {
        let region = &regions[change.region as usize];
        let live = &mut self.layers[usize::from(region.is_method())];
        if comes {
            live.insert(region.base, change.region);
        } else if live.get(&region.base) == Some(&change.region) {
            live.remove(&region.base);
        }
    }

    /// The region (index in `regions`) that holds `address`.
    pub(super) fn find(&self, regions: &[CodeRegion], address: u64) -> Option<u32> {
        let nearest =
            |live: &BTreeMap<u64, u32>| live.range(..=address).next_back().map(|(_, &region)| region);
        let mut found = self.layers.iter().rev().filter_map(nearest);
        found.find(|&region| regions[region as usize].holds(address))
    }

    /// A number that is unique to the time between two changes.
    pub(super) fn epoch(&self) -> usize {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Timeline, TimelineBuilder};
    use super::*;
    use stk_schema::event::Event;
    use stk_unwind::{Frame, LoadedModule, ModuleId, Modules, Trust};

    const BASE: u64 = 0x2_0000_1000;

    fn add(instance: u64, time: u64, base: u64, size: u64) -> CodeAdd<'static> {
        let (kind, image_base) = (CodeKind::Stub as u64, base);
        CodeAdd {
            instance,
            time: Ticks(time),
            kind,
            base,
            size,
            image_base,
            function: &[],
            unwind: &[],
            code: &[],
        }
    }

    fn timeline(events: &[Event<'_>]) -> Timeline {
        let mut builder = TimelineBuilder::default();
        events.iter().for_each(|event| builder.add(event));
        builder.finish()
    }

    /// Instance ids at `address` at these times.
    fn at(timeline: &Timeline, address: u64, times: &[u64]) -> Vec<u64> {
        let mut view = timeline.view();
        let found = times.iter().map(|&time| {
            view.go(Ticks(time));
            view.find_code(address).map_or(0, |region| timeline.code[region as usize].instance)
        });
        found.collect()
    }

    #[test]
    fn code_at_a_reused_address_is_that_of_the_moment() {
        let timeline = timeline(&[
            Event::CodeAdd(add(7, 10, BASE, 0x40)),
            Event::CodeRemove { instance: 7, time: Ticks(20) },
            Event::CodeAdd(add(9, 30, BASE, 0x80)),
        ]);
        assert_eq!(at(&timeline, BASE + 0x3f, &[9, 10, 19, 20, 29, 30, 99, 12]), [0, 7, 7, 0, 0, 9, 9, 7]);
        assert_eq!(at(&timeline, BASE + 0x40, &[10, 30]), [0, 9]);
        assert_eq!(at(&timeline, BASE - 1, &[10, 30]), [0, 0]);
    }

    #[test]
    fn code_ends_older_code_that_it_overlaps_without_an_event() {
        let timeline = timeline(&[
            Event::CodeAdd(add(1, 10, BASE, 0x40)),
            Event::CodeAdd(add(2, 10, BASE + 0x40, 0x40)),
            Event::CodeAdd(add(3, 10, BASE + 0x80, 0x40)),
            Event::CodeAdd(add(4, 20, BASE + 0x20, 0x40)),
            // Reported later than it happened.
            Event::CodeRemove { instance: 1, time: Ticks(25) },
        ]);
        assert_eq!(at(&timeline, BASE + 0x10, &[19, 20]), [1, 0]);
        assert_eq!(at(&timeline, BASE + 0x30, &[19, 20]), [1, 4]);
        assert_eq!(at(&timeline, BASE + 0x70, &[19, 20]), [2, 0]);
        assert_eq!(at(&timeline, BASE + 0x80, &[19, 20]), [3, 3]);
    }

    #[test]
    fn the_next_code_at_an_address_is_found_among_large_and_small_regions() {
        let timeline = timeline(&[
            Event::CodeAdd(add(1, 50, BASE, 0x1000)),
            Event::CodeAdd(add(2, 10, BASE + 0x100, 0x10)),
            Event::CodeAdd(add(3, 30, BASE + 0x200, 0x10)),
        ]);
        assert_eq!(timeline.code_after(BASE + 0x108, Ticks(0)), Some(Ticks(10)));
        assert_eq!(timeline.code_after(BASE + 0x108, Ticks(10)), Some(Ticks(50)));
        assert_eq!(timeline.code_after(BASE + 0x300, Ticks(0)), Some(Ticks(50)));
        assert_eq!(timeline.code_after(BASE + 0x300, Ticks(50)), None);
        assert_eq!(timeline.code_after(BASE + 0x1000, Ticks(0)), None);
    }

    #[test]
    fn a_method_counts_instead_of_the_stubs_within_it() {
        let code: Vec<u8> = (0..=255).cycle().take(0x400).collect();
        let stub = |instance, time, rva: usize, bytes| {
            let add = add(instance, time, BASE + rva as u64, 0x80);
            Event::CodeAdd(CodeAdd { code: bytes, ..add })
        };
        let body = |instance, size| {
            let (time, flags) = (Ticks(40), MethodBody::REPORTED);
            let body =
                MethodBody { time, instance, base: BASE, size, flags, source: 1, code: &code, gc_info: &[] };
            Event::MethodBody(body)
        };
        let timeline_of = |arch, events: &[Event<'_>]| {
            let mut builder = TimelineBuilder::new(arch);
            events.iter().for_each(|event| builder.add(event));
            builder.finish()
        };
        let events = [
            stub(1, 10, 0x100, &code[0x100..0x180]),
            stub(2, 20, 0x3c0, &code[0x3c0..]),
            body(1, 0x400),
            Event::CodeRemove { instance: 1, time: Ticks(50) },
        ];
        let found = |timeline: &Timeline, rva: u64, time| {
            let mut view = timeline.view();
            view.go(Ticks(time));
            let region = view.find_code(BASE + rva).map(|region| &timeline.code[region as usize]);
            region.map(|region| (region.base - BASE, region.tables.function_range(rva as u32)))
        };
        let x86 = timeline_of(Arch::X86, &events);
        let whole = Some((0, Some(0..0x400)));
        // It counts from the time of its part on, and as long as that is there.
        assert_eq!([found(&x86, 0x110, 9), found(&x86, 0x3d0, 19)], [None, whole.clone()]);
        assert_eq!(
            [found(&x86, 0, 10), found(&x86, 0x3d0, 20), found(&x86, 0x3ff, 49)],
            [whole.clone(), whole.clone(), whole]
        );
        // A stub that reaches out of it stays there, and everywhere once it is gone.
        assert_eq!(found(&x86, 0x410, 49), Some((0x3c0, None)));
        assert_eq!([found(&x86, 0x110, 50), found(&x86, 0x3d0, 50)], [None, Some((0x3c0, None))]);
        // Other code was there when the runtime reported the method.
        let mut replaced = code[0x100..0x180].to_vec();
        replaced[0x7f] ^= 1;
        for (arch, first, body) in [
            (Arch::X86, stub(1, 10, 0x100, &replaced), body(1, 0x400)),
            (Arch::X86, stub(1, 10, 0x100, &code[0x100..0x180]), body(1, 0x100)),
            (Arch::X86, stub(1, 10, 0x100, &code[0x100..0x180]), body(9, 0x400)),
            (Arch::X64, stub(1, 10, 0x100, &code[0x100..0x180]), body(1, 0x400)),
        ] {
            let timeline = timeline_of(arch, &[first, body]);
            assert_eq!((timeline.code.len(), found(&timeline, 0x110, 30)), (1, Some((0x100, None))));
        }
    }

    /// One method, everywhere.
    struct Space<'a>(&'a ImageTables);

    impl Modules for Space<'_> {
        fn find(&self, _: u64) -> Option<LoadedModule<'_>> {
            Some(LoadedModule { module: ModuleId(0), base: BASE, image: self.0, image_key: 0 })
        }
    }

    #[test]
    fn gc_info_of_a_method_says_what_its_frame_is() {
        // Size 10h, and the header of a method that pushes edi and esi.
        const INFO: [u8; 2] = [0x10, 0x21];
        let code = [0x90; 0x10];
        let frame_of = |size, gc_info| {
            let mut builder = TimelineBuilder::new(Arch::X86);
            let stub = add(1, 10, BASE, 0x10);
            builder.add(&Event::CodeAdd(CodeAdd { code: &code, ..stub }));
            let (time, flags) = (Ticks(40), MethodBody::REPORTED);
            let body =
                MethodBody { time, instance: 1, base: BASE, size, flags, source: 1, code: &code, gc_info };
            builder.add(&Event::MethodBody(body));
            let timeline = builder.finish();
            let method = timeline.code.iter().find(|region| !region.is_stub()).expect("a method");
            let frame = Frame { address: BASE + 2, sp: 0, module: None, rva: 2, trust: Trust::Context };
            stk_unwind::facts(&Space(&method.tables), &frame)
                .map(|facts| (facts.frame_type, facts.saved_registers))
        };
        assert_eq!(frame_of(0x10, &INFO), Some(("gc-info", 8)));
        // Of a method of another size.
        assert_eq!(frame_of(0x11, &INFO), None);
        assert_eq!(frame_of(0x10, &INFO[..1]), None);
        assert_eq!(frame_of(0x10, &[]), None);
    }

    fn record(words: [u32; 3]) -> Vec<u8> {
        words.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn unwind_data_is_moved_behind_the_region_with_its_chains() {
        let root = [0x01u8, 1, 1, 0, 1, 0x30, 0, 0];
        let chained = [vec![0x21u8, 0, 0, 0], record([0x800, 0x900, 0x5000])].concat();
        let unwind =
            [&chained[..], &0x5000u32.to_le_bytes(), &(root.len() as u32).to_le_bytes(), &root].concat();
        let function = record([0x1000, 0x1030, 0x4000]);
        let add = CodeAdd {
            kind: CodeKind::TableFunction as u64,
            image_base: BASE - 0x1000,
            function: &function,
            unwind: &unwind,
            code: &[0x90; 0x30],
            ..add(1, 1, BASE, 0x30)
        };
        let tables = tables(&add, Arch::X64);
        assert!(tables.knows_functions());
        // The extent is that of the chain's root, relative to the region.
        let before = |rva: u32| rva.wrapping_sub(0x1000);
        assert_eq!(tables.function_range(0), Some(before(0x800)..before(0x900)));
        let moved = tables.bytes(0x30).map(|bytes| bytes[..4].to_vec());
        assert_eq!(moved, Some(vec![0x21, 0, 0, 0]));
    }

    #[test]
    fn impossible_entries_are_ignored() {
        let function = record([0x1000, 0x1030, 0x4000]);
        let good = CodeAdd {
            kind: CodeKind::TableFunction as u64,
            image_base: BASE - 0x1000,
            function: &function,
            unwind: &[0x01, 0, 0, 0],
            ..add(1, 1, BASE, 0x30)
        };
        assert!(tables(&good, Arch::X64).knows_functions());
        let large = record([0x1000, 0x1000 + 0x2_0000, 0x4000]);
        for (name, bad) in [
            ("cut unwind data", CodeAdd { unwind: &[0x01, 0, 2, 0], ..good.clone() }),
            ("another size", CodeAdd { size: 0x31, ..good.clone() }),
            ("another base", CodeAdd { image_base: BASE, ..good.clone() }),
            ("a cut entry", CodeAdd { function: &function[..11], ..good.clone() }),
            ("a range without codes", CodeAdd { function: &large, size: 0x2_0000, ..good.clone() }),
            ("more than RVAs reach", CodeAdd { size: u64::MAX, ..good.clone() }),
        ] {
            assert!(!tables(&bad, Arch::X64).knows_functions(), "{name}");
        }
    }
}
