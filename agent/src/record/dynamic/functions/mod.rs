//! Keeps the list of dynamic code that samples have shown: takes sightings, writes CODE_ADD and
//! CODE_REMOVE.
//!
//! Code is identified by its bytes, not by its address alone: a runtime frees code and puts other
//! code at the same address. So when a region is seen again after a while, it is looked up and
//! compared again. If it differs, the old instance ends and a new one begins, both at the time of
//! the sample that showed the difference.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use stk_format::blob::content_hash;
use stk_schema::event::{CodeAdd, CodeKind, Event};
use stk_schema::identity::ContentHash;
use stk_schema::{Arch, Ticks};

use super::{CodeSample, FunctionEntry, Shared, UnnamedCode};
use crate::record::image::Memory;
use crate::record::modules::Events;

/// Most regions known at once. Beyond that, those not seen for longest are forgotten.
pub(super) const MOST: usize = 16_384;
/// Most code bytes recorded of a function. For a larger one, its samples carry the code that they
/// need.
pub(crate) const MOST_CODE: usize = 16 << 10;
/// Bytes recorded before and after an address without an entry.
const STUB: u64 = 64;
/// Milliseconds for which a region counts as unchanged after it was compared.
const FRESH_MS: u64 = 200;
/// Reads of code do not cross into pages that may be missing.
const PAGE: u64 = 4096;

/// The answer of the system's function tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// There is an entry. RVAs are relative to `image_base`.
    Found {
        /// Address of the RUNTIME_FUNCTION.
        entry: u64,
        /// The address that its RVAs are relative to.
        image_base: u64,
    },
    None,
    Fault,
    /// No lookup was made, because too many faulted before.
    Unasked,
}

/// The system's function tables.
pub(crate) trait Tables {
    /// Looks up the entry of the code at `address`. May wait for locks of the process.
    fn lookup(&mut self, address: u64) -> Lookup;
}

/// A region that is in the trace.
#[derive(Clone, Debug)]
struct LiveRegion {
    size: u64,
    instance: u64,
    kind: CodeKind,
    hash: ContentHash,
    /// When it was last compared with what is in memory.
    compared: Ticks,
    /// When it was last seen.
    seen: Ticks,
    /// The query for it failed and is not repeated.
    faulty: bool,
    /// For a stub: the addresses (bits from `base` on) whose names were already requested. A stub
    /// may hold several, and without function tables (x86) every method looks like a stub.
    wanted: u128,
}

/// The dynamic code that is in the trace.
pub(crate) struct CodeFunctions {
    live: BTreeMap<u64, LiveRegion>,
    /// Instance ids: one number space with the modules.
    ids: Arc<AtomicU64>,
    shared: Arc<Shared>,
    arch: Arch,
    ticks_per_ms: u64,
    /// Code seen since [`CodeFunctions::take_unnamed`] that has no name yet.
    unnamed: Vec<UnnamedCode>,
}

impl CodeFunctions {
    /// Knows no code yet; `ids` gives the next free instance id.
    pub(crate) fn new(
        arch: Arch,
        ids: Arc<AtomicU64>,
        shared: Arc<Shared>,
        ticks_per_ms: u64,
    ) -> CodeFunctions {
        CodeFunctions { live: BTreeMap::new(), ids, shared, arch, ticks_per_ms, unnamed: Vec::new() }
    }

    /// Number of known regions.
    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.live.len()
    }

    /// The code that was seen since the last call and needs a name.
    pub(crate) fn take_unnamed(&mut self) -> Vec<UnnamedCode> {
        core::mem::take(&mut self.unnamed)
    }

    /// Handles an address that a sample showed: looks it up, unless that was done recently, and
    /// writes new code.
    pub(crate) fn sighted(
        &mut self,
        sighting: CodeSample,
        tables: &mut impl Tables,
        memory: &impl Memory,
        out: &mut impl Events,
    ) {
        let CodeSample { inside, time, executed } = sighting;
        let fresh = Ticks(FRESH_MS * self.ticks_per_ms);
        let known = self.holding_mut(inside).map(|live| {
            live.seen = time.max(live.seen);
            live.faulty || live.compared.saturating_add(fresh) > time
        });
        if known == Some(true) {
            return self.want(inside, executed);
        }
        let answer = tables.lookup(inside);
        if answer != Lookup::Unasked {
            self.shared.costs.lookups.fetch_add(1, Ordering::Relaxed);
        }
        let entry = match answer {
            Lookup::Found { entry, image_base } => {
                FunctionEntry::read(memory, self.arch, image_base, entry, inside)
            }
            Lookup::None => None,
            Lookup::Fault => {
                self.shared.costs.faults.fetch_add(1, Ordering::Relaxed);
                None
            }
            Lookup::Unasked => None,
        };
        if let Some(entry) = entry {
            return self.function(entry, executed, time, memory, out);
        }
        let unanswered = matches!(answer, Lookup::Fault | Lookup::Unasked);
        // A failed lookup does not mean that the known code is gone.
        if unanswered && self.holding(inside).is_some_and(|(_, live)| live.kind != CodeKind::Stub) {
            return;
        }
        self.stub(inside, executed, time, memory, out);
        self.want(inside, executed);
        if unanswered && let Some(live) = self.holding_mut(inside) {
            live.faulty = true;
        }
    }

    fn function(
        &mut self,
        entry: FunctionEntry,
        executed: bool,
        time: Ticks,
        memory: &impl Memory,
        out: &mut impl Events,
    ) {
        let code = if entry.size as usize <= 4 * MOST_CODE {
            read_code(memory, entry.base, (entry.size as usize).min(MOST_CODE))
        } else {
            Vec::new()
        };
        let size = u64::from(entry.size);
        let hash = content_hash(&[&entry.function[..], &entry.unwind, &code].concat());
        if let Some(live) = self.live.get_mut(&entry.base)
            && (live.kind, live.size, live.hash) == (CodeKind::TableFunction, size, hash)
        {
            live.compared = time;
            return;
        }
        self.remove(entry.base, size, time, out);
        let add = CodeAdd {
            instance: 0,
            time,
            kind: CodeKind::TableFunction as u64,
            base: entry.base,
            size,
            image_base: entry.image_base,
            function: &entry.function,
            unwind: &entry.unwind,
            code: &code,
        };
        let instance = self.add(add, CodeKind::TableFunction, hash, out);
        self.unnamed.push(UnnamedCode {
            instance,
            address: entry.base,
            base: entry.base,
            size,
            executed,
            precompiled: false,
        });
        self.shared.activity.functions.fetch_add(1, Ordering::Relaxed);
    }

    /// No table knows the address. Its bytes are recorded if it was executed or follows a call.
    fn stub(
        &mut self,
        inside: u64,
        executed: bool,
        time: Ticks,
        memory: &impl Memory,
        out: &mut impl Events,
    ) {
        let known = self.holding(inside).map(|(base, live)| (base, live.size, live.kind, live.hash));
        let (start, end) = match known {
            Some((base, size, CodeKind::Stub, _)) => (base, base + size),
            Some((base, size, ..)) => {
                // A function was here, but its entry is gone.
                self.remove(base, size, time, out);
                self.room(inside)
            }
            None => self.room(inside),
        };
        let mut bytes = [0; 2 * STUB as usize];
        let (start, len) = read_around(memory, inside, start, end, &mut bytes);
        let code = &bytes[..len];
        let hash = content_hash(code);
        if let Some((base, size, CodeKind::Stub, old)) = known {
            if (base, size, old) == (start, len as u64, hash) {
                if let Some(live) = self.live.get_mut(&base) {
                    live.compared = time;
                }
                return;
            }
            self.remove(base, size, time, out);
        }
        let at = inside.saturating_sub(start) as usize;
        if len == 0 || at >= len || !(executed || follows_call(code.get(..=at).unwrap_or(&[]), self.arch)) {
            return;
        }
        let add = CodeAdd {
            instance: 0,
            time,
            kind: CodeKind::Stub as u64,
            base: start,
            size: len as u64,
            image_base: start,
            function: &[],
            unwind: &[],
            code,
        };
        self.add(add, CodeKind::Stub, hash, out);
        self.shared.activity.stubs.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests a name for the address in a stub, once per address and stub.
    fn want(&mut self, inside: u64, executed: bool) {
        let Some((base, live)) = self.holding(inside) else { return };
        let bit = 1u128.checked_shl((inside - base) as u32).unwrap_or(0);
        if live.kind != CodeKind::Stub || live.wanted & bit == bit {
            return;
        }
        let instance = live.instance;
        if let Some(live) = self.live.get_mut(&base) {
            live.wanted |= bit;
        }
        let (address, base, size) = (inside, inside, 1);
        self.unnamed.push(UnnamedCode { instance, address, base, size, executed, precompiled: false });
    }

    /// Writes the code; returns its instance.
    fn add(&mut self, mut add: CodeAdd<'_>, kind: CodeKind, hash: ContentHash, out: &mut impl Events) -> u64 {
        if self.live.len() >= MOST {
            self.forget();
        }
        add.instance = self.ids.fetch_add(1, Ordering::Relaxed);
        let (size, instance, compared) = (add.size, add.instance, add.time);
        let live =
            LiveRegion { size, instance, kind, hash, compared, seen: compared, faulty: false, wanted: 0 };
        self.live.insert(add.base, live);
        let bytes = add.function.len() + add.unwind.len() + add.code.len();
        self.shared.costs.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.shared.activity.last.fetch_max(add.time.0, Ordering::Relaxed);
        out.event(&Event::CodeAdd(add));
        instance
    }

    /// Ends every region that overlaps `base..base + size`.
    fn remove(&mut self, base: u64, size: u64, time: Ticks, out: &mut impl Events) {
        let end = base.saturating_add(size);
        // Regions do not overlap, so only the nearest one below can reach into the range.
        let below = self.live.range(..base).next_back();
        let below = below.filter(|(start, live)| *start + live.size > base).map(|(start, _)| *start);
        while let Some(start) = below
            .filter(|start| self.live.contains_key(start))
            .or_else(|| self.live.range(base..end).next().map(|(start, _)| *start))
        {
            let Some(live) = self.live.remove(&start) else { break };
            out.event(&Event::CodeRemove { instance: live.instance, time });
            self.shared.costs.removed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets the eighth of the regions that was not seen for longest. They stay in the trace, and
    /// are written again when they are seen again.
    fn forget(&mut self) {
        let mut seen: Vec<Ticks> = self.live.values().map(|live| live.seen).collect();
        let (_, &mut oldest, _) = seen.select_nth_unstable(MOST / 8);
        let before = self.live.len();
        let mut left = MOST / 8;
        self.live.retain(|_, live| {
            let goes = live.seen <= oldest && left != 0;
            left -= usize::from(goes);
            !goes
        });
        self.shared.costs.forgotten.fetch_add((before - self.live.len()) as u64, Ordering::Relaxed);
    }

    fn holding(&self, address: u64) -> Option<(u64, &LiveRegion)> {
        let (base, live) = self.live.range(..=address).next_back()?;
        (address - base < live.size).then_some((*base, live))
    }

    fn holding_mut(&mut self, address: u64) -> Option<&mut LiveRegion> {
        let (base, live) = self.live.range_mut(..=address).next_back()?;
        (address - base < live.size).then_some(live)
    }

    /// The free range for a stub around `inside`, between the known regions.
    fn room(&self, inside: u64) -> (u64, u64) {
        let below = self.live.range(..=inside).next_back().map_or(0, |(base, live)| base + live.size);
        let above = self.live.range(inside..).next().map_or(u64::MAX, |(base, _)| *base);
        (inside.saturating_sub(STUB).max(below), inside.saturating_add(STUB).min(above))
    }
}

/// Reads up to `len` bytes of code, until a page is missing.
pub(crate) fn read_code(memory: &impl Memory, address: u64, len: usize) -> Vec<u8> {
    let mut code = alloc::vec![0; len];
    let mut done = 0;
    while done < len {
        let step = (PAGE - (address + done as u64) % PAGE).min((len - done) as u64) as usize;
        let into = code.get_mut(done..done + step);
        if !into.is_some_and(|into| memory.read(address + done as u64, into)) {
            break;
        }
        done += step;
    }
    code.truncate(done);
    code
}

/// Reads `start..end` (at most `into`), without missing pages around `inside`. Returns the first
/// address read and the number of bytes.
fn read_around(
    memory: &impl Memory,
    inside: u64,
    mut start: u64,
    mut end: u64,
    into: &mut [u8],
) -> (u64, usize) {
    end = end.min(start.saturating_add(into.len() as u64));
    let page = inside & !(PAGE - 1);
    for _ in 0..3 {
        let len = end.saturating_sub(start) as usize;
        if len != 0 && into.get_mut(..len).is_some_and(|into| memory.read(start, into)) {
            return (start, len);
        }
        if start < page {
            start = page;
        } else if end > page + PAGE {
            end = page + PAGE;
        } else {
            break;
        }
    }
    (start, 0)
}

/// Whether `before`, the bytes up to a return address, ends with a call.
pub(crate) fn follows_call(before: &[u8], arch: Arch) -> bool {
    let back = |n: usize| before.len().checked_sub(n).and_then(|at| before.get(at)).copied();
    if arch == Arch::Arm64 {
        let word = before.len().checked_sub(4).and_then(|at| before.get(at..)?.first_chunk::<4>());
        return word
            .map(|bytes| u32::from_le_bytes(*bytes))
            .is_some_and(|word| word >> 26 == 0x25 || word & 0xffff_fc1f == 0xd63f_0000);
    }
    // call rel32, or FF /2 with a ModRM, SIB and displacement of every length.
    back(5) == Some(0xe8)
        || [(2, 1), (3, 2), (4, 3), (6, 5), (7, 6)].into_iter().any(|(opcode, modrm)| {
            back(opcode) == Some(0xff) && back(modrm).is_some_and(|byte| byte >> 3 & 7 == 2)
        })
}

#[cfg(test)]
mod tests;
