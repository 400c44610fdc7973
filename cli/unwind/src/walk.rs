//! The walk: what the caller provides, and the loop that every architecture shares.

use crate::cache::RuleCache;
use crate::frame::Fault;
use crate::memory::Memory;
use crate::{Arch, Frame, ImageTables, Registers, Stop, Trust, arm64, x64};

/// A module or code region as the caller numbers them: one *instance*, since the same image may be loaded again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u32);

/// The module that holds an address.
#[derive(Debug, Clone, Copy)]
pub struct Found<'a> {
    /// Which module instance it is.
    pub module: ModuleId,
    /// Where it is loaded.
    pub base: u64,
    /// What is known of its image.
    pub image: &'a ImageTables,
    /// Names the image's *content* for the walker's rule cache: below 2^30, equal for all instances of the same
    /// content, never reused for another within one [`Walker`]'s life.
    pub image_key: u32,
}

/// The address space at the time of a sample.
pub trait Modules {
    /// The module whose `[base, base + size)` holds `address`.
    fn find(&self, address: u64) -> Option<Found<'_>>;
}

impl<M: Modules + ?Sized> Modules for &M {
    fn find(&self, address: u64) -> Option<Found<'_>> {
        (**self).find(address)
    }
}

/// One captured moment of one thread.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// The registers at that moment.
    pub registers: &'a Registers,
    /// Stack bytes, from `stack_start` up.
    pub stack: &'a [u8],
    /// The address of the first stack byte: at or below the stack pointer.
    pub stack_start: u64,
    /// The upper end of the thread's stack (TEB.StackBase), where recorded.
    pub stack_base: Option<u64>,
    /// The capture ends below the stack's upper end because of a limit.
    pub truncated: bool,
    /// Code bytes from the instruction pointer on, where recorded; preferred to the image's.
    pub code_at_ip: Option<&'a [u8]>,
}

/// How to walk.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct WalkOptions {
    /// Frames at most.
    pub max_frames: usize,
    /// Where nothing else helps, search the stack for what looks like a return address ([`Trust::Scan`]). Off by
    /// default: such frames are guesses.
    pub scan: bool,
}

impl Default for WalkOptions {
    fn default() -> Self {
        WalkOptions { max_frames: 4096, scan: false }
    }
}

/// Walks stacks. One per worker thread: it holds the rules compiled so far.
pub struct Walker {
    options: WalkOptions,
    x64: RuleCache<x64::Rule>,
    arm64: RuleCache<arm64::Rule>,
}

impl Walker {
    /// A walker that knows no rules yet.
    pub fn new(options: WalkOptions) -> Self {
        Walker { options, x64: RuleCache::new(), arm64: RuleCache::new() }
    }

    /// Walks `sample`'s stack. `frames` is cleared and filled, innermost first; it holds at least the context frame.
    pub fn walk<M: Modules>(&mut self, modules: &M, sample: &Sample<'_>, frames: &mut Vec<Frame>) -> Stop {
        frames.clear();
        match sample.registers {
            Registers::X64(r) => {
                run::<x64::Machine, M, _>(&self.options, &mut self.x64, modules, sample, *r, |frame, _| {
                    frames.push(frame);
                })
            }
            Registers::Arm64(r) => run::<arm64::Machine, M, _>(
                &self.options,
                &mut self.arm64,
                modules,
                sample,
                *r,
                |frame, _| {
                    frames.push(frame);
                },
            ),
        }
    }

    /// As [`walk`](Self::walk), but hands each frame over together with the registers recovered for it. Of a
    /// caller's registers only the instruction pointer, the stack pointer and the nonvolatile ones mean anything.
    pub fn walk_with_registers<M: Modules>(
        &mut self,
        modules: &M,
        sample: &Sample<'_>,
        mut each: impl FnMut(&Frame, &Registers),
    ) -> Stop {
        match sample.registers {
            Registers::X64(r) => {
                run::<x64::Machine, M, _>(&self.options, &mut self.x64, modules, sample, *r, |frame, r| {
                    each(&frame, &Registers::X64(*r));
                })
            }
            Registers::Arm64(r) => run::<arm64::Machine, M, _>(
                &self.options,
                &mut self.arm64,
                modules,
                sample,
                *r,
                |frame, r| {
                    each(&frame, &Registers::Arm64(*r));
                },
            ),
        }
    }
}

/// Whether an address is about to be executed or to be returned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Exact: a sample's or an interrupted frame's instruction pointer.
    Context,
    /// After a call: the function is the one that holds the byte before.
    Caller,
}

impl Position {
    /// By how much to look before the address for the code that it belongs to.
    pub(crate) fn back(self) -> u32 {
        match self {
            Position::Context => 0,
            Position::Caller => 1,
        }
    }
}

/// A place in an image for which a rule is wanted.
pub(crate) struct Place<'a> {
    pub(crate) image: &'a ImageTables,
    pub(crate) rva: u32,
    pub(crate) position: Position,
    /// Code from `rva` on that was recorded with the sample.
    pub(crate) code: Option<&'a [u8]>,
}

/// What one step gave, besides the new registers.
#[derive(Clone, Copy)]
pub(crate) struct Stepped {
    pub(crate) trust: Trust,
    pub(crate) position: Position,
}

/// What an architecture adds to the walk.
pub(crate) trait Unwinder {
    const ARCH: Arch;
    /// The registers and whatever else goes from frame to frame.
    type State: Copy;
    /// A compiled rule as the cache holds it: small.
    type Rule: Copy + Default;
    /// A rule that need not be small.
    type Full;

    fn ip(state: &Self::State) -> u64;
    fn sp(state: &Self::State) -> u64;
    /// Whether the rule is for a function that starts threads.
    fn starts_thread(rule: &Self::Rule) -> bool;
    fn full_starts_thread(rule: &Self::Full) -> bool;

    /// Makes the rule for a place from the image's tables and code.
    fn compile(place: &Place<'_>) -> Result<Self::Full, Fault>;
    /// The small form, if the rule has one.
    fn pack(full: &Self::Full) -> Option<Self::Rule>;
    fn apply(rule: &Self::Rule, state: &mut Self::State, memory: &Memory<'_>) -> Result<Stepped, Stop>;
    fn apply_full(full: &Self::Full, state: &mut Self::State, memory: &Memory<'_>) -> Result<Stepped, Stop>;
    /// For an innermost frame outside every module: taken to be a leaf.
    fn leaf(state: &mut Self::State, memory: &Memory<'_>) -> Result<Stepped, Stop>;
    /// Searches the stack for a return address.
    fn scan<M: Modules>(
        state: &mut Self::State,
        memory: &Memory<'_>,
        modules: &M,
        position: Position,
    ) -> Option<Stepped>;
    /// Last resort of one architecture, tried even where scanning is off.
    fn fallback<M: Modules>(
        _state: &mut Self::State,
        _memory: &Memory<'_>,
        _modules: &M,
        _position: Position,
    ) -> Option<Stepped> {
        None
    }
}

fn run<U: Unwinder, M: Modules, F: FnMut(Frame, &U::State)>(
    options: &WalkOptions,
    cache: &mut RuleCache<U::Rule>,
    modules: &M,
    sample: &Sample<'_>,
    mut state: U::State,
    mut each: F,
) -> Stop {
    let memory = Memory::new(sample.stack, sample.stack_start, sample.stack_base, sample.truncated);
    let mut position = Position::Context;
    let mut trust = Trust::Context;
    let mut count = 0usize;
    let mut last: Option<Found<'_>> = None;
    let mut found = find(modules, &mut last, U::ip(&state));
    loop {
        let ip = U::ip(&state);
        let sp = U::sp(&state);
        let rva = found.map_or(0, |found| ip.wrapping_sub(found.base) as u32);
        let frame = Frame { address: ip, sp, module: found.map(|found| found.module), rva, trust };
        each(frame, &state);
        count += 1;
        if count >= options.max_frames {
            return Stop::DepthLimit;
        }
        let before = state;
        let (stepped, starts_thread) = match found {
            Some(found) => {
                let key = RuleCache::<U::Rule>::key(found.image_key, position == Position::Context, rva);
                if let Some(rule) = cache.get(key) {
                    (U::apply(&rule, &mut state, &memory), U::starts_thread(&rule))
                } else {
                    let code = if count == 1 { sample.code_at_ip } else { None };
                    let place = Place { image: found.image, rva, position, code };
                    miss::<U>(cache, key, found.module, &place, &mut state, &memory)
                }
            }
            None if position == Position::Context => (U::leaf(&mut state, &memory), false),
            None => (Err(Stop::NoModule { address: ip }), false),
        };
        let stop = match stepped {
            Ok(next) => {
                let address = U::ip(&state);
                if U::sp(&state) <= sp && count > 1 {
                    return Stop::Loop;
                }
                found = find(modules, &mut last, address.wrapping_sub(u64::from(next.position.back())));
                if found.is_some() || next.position == Position::Context {
                    trust = next.trust;
                    position = next.position;
                    continue;
                }
                if address == 0 { Stop::ZeroReturnAddress } else { Stop::NoModule { address } }
            }
            Err(stop) => stop,
        };
        if starts_thread && ends_thread(stop) && memory.near_base(sp) {
            return Stop::ThreadStart;
        }
        state = before;
        let guessed = match U::fallback(&mut state, &memory, modules, position) {
            None if options.scan => U::scan(&mut state, &memory, modules, position),
            guessed => guessed,
        };
        match guessed {
            Some(next) => {
                let inside = U::ip(&state).wrapping_sub(u64::from(next.position.back()));
                found = find(modules, &mut last, inside);
                trust = next.trust;
                position = next.position;
            }
            None => return stop,
        }
    }
}

/// Whether a stop is what one finds above a thread's first function.
fn ends_thread(stop: Stop) -> bool {
    matches!(stop, Stop::ZeroReturnAddress | Stop::EndOfStack | Stop::NoModule { .. })
}

/// The module that holds `address`: mostly the one of the frame before.
#[inline(always)]
fn find<'m, M: Modules>(modules: &'m M, last: &mut Option<Found<'m>>, address: u64) -> Option<Found<'m>> {
    if let Some(found) = *last
        && address.wrapping_sub(found.base) < u64::from(found.image.size())
    {
        return Some(found);
    }
    let found = modules.find(address);
    if found.is_some() {
        *last = found;
    }
    found
}

/// Compiles the rule of a place, keeps it if it is small, and applies it.
#[cold]
fn miss<U: Unwinder>(
    cache: &mut RuleCache<U::Rule>,
    key: u64,
    module: ModuleId,
    place: &Place<'_>,
    state: &mut U::State,
    memory: &Memory<'_>,
) -> (Result<Stepped, Stop>, bool) {
    if place.image.arch() != U::ARCH {
        return (Err(Stop::OtherArchitecture { module }), false);
    }
    let full = match U::compile(place) {
        Ok(full) => full,
        Err(fault) => return (Err(fault.at(module, place.rva)), false),
    };
    if let Some(rule) = U::pack(&full) {
        cache.insert(key, rule);
    }
    (U::apply_full(&full, state, memory), U::full_starts_thread(&full))
}

#[cfg(test)]
mod tests;
