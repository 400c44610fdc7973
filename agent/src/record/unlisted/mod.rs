//! Finds images in which samples show code and that no known module covers: hot-patch images,
//! unlinked or manually mapped DLLs, and images in the loader's list of which no notification came,
//! such as precompiled .NET code that a runtime has the loader map but not start.
//!
//! An image that the loader is mapping is in memory before it is in the loader's list, and one that
//! it is unmapping stays in memory after it left the list. The loader's notifications report both.
//! No code runs in such an image, but a word on a stack may point into it. So of an image that is
//! not listed an instruction pointer counts at once. A stack word, and either of an image that is
//! listed, counts after [`CONFIRM_MS`], if the image is then still mapped and no notification came.

use alloc::vec::Vec;
use stk_schema::Ticks;
use stk_schema::event::ModuleFlags;
use stk_schema::identity::PeIdentity;

use super::dynamic::CodeSample;
use super::modules::{ModuleSighting, Modules};

/// Milliseconds for which a notification of an image may still come.
const CONFIRM_MS: u64 = 100;
/// Milliseconds between checks whether unlisted images are still mapped.
const LOOK_MS: u64 = 50;
/// Most images without a notification recorded at one time.
const MOST: usize = 1024;
/// Most images that wait to be confirmed.
const MOST_WAITING: usize = 64;
/// Most unloads that are remembered, for samples that were taken before the unload and are looked
/// at afterwards.
const UNLOADS: usize = 64;

/// The system's view of mapped images.
pub(crate) trait Mappings {
    /// The image that is mapped at `address`, without its path; `None` if there is none.
    fn image_at(&self, address: u64) -> Option<ModuleSighting>;

    /// The load addresses in the loader's list; `None` if it could not be read.
    fn listed(&self) -> Option<Vec<u64>>;

    /// Header fields of the image at `base`.
    fn identity(&self, base: u64) -> Option<PeIdentity>;
}

/// State that is kept between two calls.
#[derive(Debug, Default)]
pub(crate) struct UnlistedImages {
    waiting: Vec<CandidateImage>,
    unloads: Vec<Unload>,
    next_unload: usize,
    look_due: Ticks,
    left_out: u64,
}

#[derive(Debug)]
struct CandidateImage {
    sighting: CodeSample,
    base: u64,
}

#[derive(Debug)]
struct Unload {
    start: u64,
    end: u64,
    time: Ticks,
}

/// An image without a notification that is to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct UnlistedImage {
    /// Its address and size, without its path.
    pub seen: ModuleSighting,
    /// Time of the first sample that showed it.
    pub time: Ticks,
    /// UNLISTED, unless the loader's list has it.
    pub flags: ModuleFlags,
}

/// Whether neither a notification nor the snapshot at the start reported a module with these flags:
/// then none reports its end.
pub(crate) fn is_unreported(flags: ModuleFlags) -> bool {
    !flags.intersects(ModuleFlags::NOTIFIED | ModuleFlags::AT_START)
}

impl UnlistedImages {
    /// The loader reported that it unmaps a known module.
    pub(crate) fn unloaded(&mut self, seen: &ModuleSighting, time: Ticks) {
        let unload = Unload { start: seen.base, end: seen.base.saturating_add(seen.size), time };
        match self.unloads.get_mut(self.next_unload) {
            Some(place) => *place = unload,
            None => self.unloads.push(unload),
        }
        self.next_unload = (self.next_unload + 1) % UNLOADS;
    }

    /// The images to be recorded now, from the sightings of `next` and those that wait. The caller
    /// must still leave out images that the loader has reported meanwhile.
    pub(crate) fn find(
        &mut self,
        now: Ticks,
        ticks_per_ms: u64,
        modules: &Modules,
        mappings: &impl Mappings,
        mut next: impl FnMut() -> Option<CodeSample>,
    ) -> Vec<UnlistedImage> {
        let mut found: Vec<UnlistedImage> = Vec::new();
        let confirmed =
            |one: &CandidateImage| now.saturating_sub(one.sighting.time).0 >= CONFIRM_MS * ticks_per_ms;
        let (ripe, waiting) = core::mem::take(&mut self.waiting).into_iter().partition(confirmed);
        self.waiting = waiting;
        let ripe: Vec<CandidateImage> = ripe;
        for one in &ripe {
            self.add(&mut found, one.sighting, modules, mappings);
        }
        while let Some(sighting) = next() {
            if sighting.executed {
                self.add(&mut found, sighting, modules, mappings);
            } else if self.waiting.len() < MOST_WAITING && self.is_unknown(&sighting, modules) {
                // If there is no room, the sighting comes again.
                let Some(seen) = mappings.image_at(sighting.inside) else { continue };
                if modules.based_at(seen.base).is_none()
                    && self.waiting.iter().all(|one| one.base != seen.base)
                {
                    self.waiting.push(CandidateImage { sighting, base: seen.base });
                }
            }
        }
        // Read the list after finding the images: an image that the loader mapped before is in it,
        // or was reported.
        if !found.is_empty() {
            let Some(listed) = mappings.listed() else { return Vec::new() };
            found.retain_mut(|one| {
                let base = one.seen.base;
                if !listed.contains(&base) {
                    one.flags |= ModuleFlags::UNLISTED;
                    return true;
                }
                let is_confirmed = ripe.iter().any(|candidate| candidate.base == base);
                if !is_confirmed && self.waiting.len() < MOST_WAITING {
                    let sighting = CodeSample { inside: base, time: one.time, executed: true };
                    self.waiting.push(CandidateImage { sighting, base });
                }
                is_confirmed
            });
        }
        found
    }

    /// Load addresses of recorded images without a notification that are not mapped any more.
    pub(crate) fn gone(
        &mut self,
        now: Ticks,
        ticks_per_ms: u64,
        modules: &Modules,
        mappings: &impl Mappings,
    ) -> Vec<u64> {
        if now < self.look_due {
            return Vec::new();
        }
        self.look_due = now + Ticks(LOOK_MS * ticks_per_ms);
        let gone = modules.live().iter().filter(|module| is_unreported(module.flags)).filter(|module| {
            let mapped =
                mappings.image_at(module.seen.base).is_some_and(|seen| seen.base == module.seen.base);
            let known = module.identity();
            !mapped || known.is_some_and(|known| mappings.identity(module.seen.base) != Some(known))
        });
        gone.map(|module| module.seen.base).collect()
    }

    /// Images that were not recorded because there were too many.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    fn add(
        &mut self,
        found: &mut Vec<UnlistedImage>,
        sighting: CodeSample,
        modules: &Modules,
        mappings: &impl Mappings,
    ) {
        if !self.is_unknown(&sighting, modules) {
            return;
        }
        let Some(seen) = mappings.image_at(sighting.inside) else { return };
        // The loader may report a smaller size than the mapping has.
        if modules.based_at(seen.base).is_some() {
            return;
        }
        if let Some(known) = found.iter_mut().find(|known| known.seen.base == seen.base) {
            known.time = known.time.min(sighting.time);
            return;
        }
        let recorded = modules.live().iter().filter(|module| is_unreported(module.flags)).count();
        if recorded + found.len() >= MOST {
            self.left_out += 1;
            return;
        }
        // A stack word may have shown it before it was executed.
        let earlier = self.waiting.iter().find(|one| one.base == seen.base).map(|one| one.sighting.time);
        self.waiting.retain(|one| one.base != seen.base);
        let time = earlier.unwrap_or(sighting.time).min(sighting.time);
        found.push(UnlistedImage { seen, time, flags: ModuleFlags::empty() });
    }

    /// Whether no module holds the address, neither now nor when the sample was taken.
    fn is_unknown(&self, sighting: &CodeSample, modules: &Modules) -> bool {
        let was_there = |unload: &Unload| {
            sighting.time <= unload.time && (unload.start..unload.end).contains(&sighting.inside)
        };
        modules.holding(sighting.inside).is_none() && !self.unloads.iter().any(was_there)
    }
}

/// Converts a path of the object manager to the form that programs use:
/// `\Device\HarddiskVolume3\a.dll` to `C:\a.dll`. `device` returns the device of a drive letter. A
/// path on a device without a letter is returned unchanged.
pub(crate) fn dos_path(path: &[u16], mut device: impl FnMut(u8) -> Vec<u16>) -> Vec<u16> {
    let starts = |path: &[u16], with: &[u16]| {
        path.get(..with.len())
            .is_some_and(|start| start.iter().zip(with).all(|(&one, &other)| lower(one) == lower(other)))
    };
    let joined = |start: &str, rest: &[u16]| start.encode_utf16().chain(rest.iter().copied()).collect();
    for (prefix, start) in
        [(r"\??\UNC\", r"\\"), (r"\??\", ""), (r"\Device\Mup\", r"\\"), (r"\Device\LanmanRedirector\", r"\\")]
    {
        let prefix: Vec<u16> = prefix.encode_utf16().collect();
        if starts(path, &prefix) {
            return joined(start, path.get(prefix.len()..).unwrap_or(&[]));
        }
    }
    for letter in (b'C'..=b'Z').chain(b'A'..=b'B') {
        let mut prefix = device(letter);
        if !prefix.is_empty() {
            prefix.push(u16::from(b'\\'));
            if starts(path, &prefix) {
                let drive = [u16::from(letter), u16::from(b':')];
                return drive.into_iter().chain(path.iter().skip(prefix.len() - 1).copied()).collect();
            }
        }
    }
    path.to_vec()
}

fn lower(unit: u16) -> u16 {
    if (u16::from(b'A')..=u16::from(b'Z')).contains(&unit) { unit + 32 } else { unit }
}

#[cfg(test)]
mod tests;
