//! The walk's loop, which all architectures share, and the trait that each implements for it.

use std::hash::Hash;

use crate::cache::RuleCache;
use crate::frame::Fault;
use crate::input::{LoadedModule, ModuleId, Modules, Sample, WalkOptions};
use crate::memory::Memory;
use crate::{Arch, Frame, ImageTables, Registers, Stop, Trust};

/// Whether an address is about to be executed or to be returned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Position {
    /// Exact: a sample's or an interrupted frame's instruction pointer.
    Context,
    /// After a call. The function is the one that holds the byte before.
    Caller,
}

impl Position {
    /// How many bytes before the address to look up its code.
    pub(crate) fn back(self) -> u32 {
        match self {
            Position::Context => 0,
            Position::Caller => 1,
        }
    }
}

/// An address in an image for which the walk needs a rule.
pub(crate) struct CodeAddress<'a> {
    pub(crate) image: &'a ImageTables,
    pub(crate) rva: u32,
    pub(crate) position: Position,
    /// Code from `rva` on that was recorded with the sample.
    pub(crate) code: Option<&'a [u8]>,
}

/// The result of one step, besides the new registers.
#[derive(Clone, Copy)]
pub(crate) struct StepResult {
    pub(crate) trust: Trust,
    pub(crate) position: Position,
}

/// The operations that each architecture implements for the walk.
pub(crate) trait Unwinder {
    const ARCH: Arch;
    /// The bit of [`base`](Self::base) in [`Facts`].
    const BASE: u8;
    /// The registers and all other state that passes from frame to frame.
    type State;
    /// The part of a state that is needed to try another method after a step has failed.
    type Checkpoint: Copy;
    /// A compiled rule in the small form that the cache holds.
    type Rule: Copy + Eq + Hash;
    /// A compiled rule in its full form.
    type Full;

    fn ip(state: &Self::State) -> u64;
    fn sp(state: &Self::State) -> u64;
    fn registers(state: &Self::State) -> Registers;
    fn checkpoint(state: &Self::State) -> Self::Checkpoint;
    fn restore(state: &mut Self::State, checkpoint: Self::Checkpoint);
    /// The register that callers use most to find their frames, apart from the stack pointer.
    fn base(state: &Self::State) -> BaseValue;

    /// Whether an earlier frame was in a function that starts threads. Then this one, its caller,
    /// counts as one too.
    fn called_thread_start(_state: &Self::State) -> bool {
        false
    }

    /// What the walk needs to know of a rule besides how it steps.
    fn facts(rule: &Self::Rule) -> Facts;
    fn full_facts(full: &Self::Full) -> Facts;

    /// Makes the rule for a place from the image's tables and code.
    fn compile(place: &CodeAddress<'_>) -> Result<Self::Full, Fault>;
    /// The rule's small form, if it has one.
    fn pack(full: &Self::Full) -> Option<Self::Rule>;
    /// The second argument of [`quick`](Self::quick): the part of the rule that the step needs
    /// first. The table that gives the rule's number holds it, limited to
    /// [`crate::cache::MOST_HINT`].
    #[inline(always)]
    fn hint(_rule: &Self::Rule) -> u16 {
        0
    }
    /// Steps to the caller as [`apply`](Self::apply) does, but handles only the common case: the
    /// step succeeds, and the caller is reached by a return and lies higher on the stack. In all
    /// other cases returns `None` and leaves `state` unchanged.
    #[inline(always)]
    fn quick(
        _rule: &Self::Rule,
        _hint: u16,
        _state: &mut Self::State,
        _memory: &Memory<'_>,
    ) -> Option<Trust> {
        None
    }
    /// Steps to the caller. Reads no stack below the frame's stack pointer.
    fn apply<M: Modules>(
        rule: &Self::Rule,
        state: &mut Self::State,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop>;
    fn apply_full<M: Modules>(
        full: &Self::Full,
        state: &mut Self::State,
        memory: &Memory<'_>,
        modules: &M,
    ) -> Result<StepResult, Stop>;
    /// Steps from an innermost frame outside every module, as from a leaf.
    fn leaf(state: &mut Self::State, memory: &Memory<'_>) -> Result<StepResult, Stop>;
    /// Searches the stack for a return address.
    fn scan<M: Modules>(
        state: &mut Self::State,
        memory: &Memory<'_>,
        modules: &M,
        position: Position,
    ) -> Option<StepResult>;
}

/// A register's value, or where on the stack it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BaseValue {
    Known(u64),
    At(u64),
}

/// What the walk needs to know of a rule besides how it steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// The function starts threads.
    pub(crate) starts_thread: bool,
    /// The registers, besides the stack pointer, that the step depends on: one bit each, as the
    /// architecture numbers them.
    pub(crate) uses: u8,
    /// The registers that the step restores from the stack, numbered like `uses`.
    pub(crate) restores: u8,
}

impl Facts {
    /// A step that fails whatever the registers are.
    pub(crate) const NONE: Facts = Facts { starts_thread: false, uses: 0, restores: 0 };
    /// A step that may depend on anything.
    const ANY: Facts = Facts { starts_thread: false, uses: u8::MAX, restores: 0 };
}

/// Receives the frames of a walk.
pub(crate) trait Sink<U: Unwinder> {
    /// Whether [`known`](Self::known) can end a walk.
    const KNOWS: bool = false;
    fn frame(&mut self, frame: Frame, state: &U::State);
    /// The step from the last frame.
    #[inline(always)]
    fn step(&mut self, _facts: Facts) {}
    /// Ends the walk if the callers of `frame`, which a return reached, are known already.
    #[inline(always)]
    fn known(&mut self, _frame: &Frame, _state: &U::State) -> Option<Stop> {
        None
    }
}

/// Walks one stack from a first frame of this trust.
pub(crate) fn run<U: Unwinder, M: Modules, S: Sink<U>>(
    options: &WalkOptions,
    known: &mut Known<U::Rule>,
    modules: &M,
    sample: &Sample<'_>,
    state: &mut U::State,
    sink: &mut S,
    mut trust: Trust,
) -> Stop {
    let memory = Memory::new(sample.stack, sample.stack_start, sample.stack_base, sample.truncated);
    let Known { cache, recent } = known;
    recent.begin(modules.epoch(), cache.begin());
    let mut position = if trust.is_exact() { Position::Context } else { Position::Caller };
    let mut count = 0usize;
    let mut found = recent.find(modules, cache, U::ip(state).wrapping_sub(u64::from(position.back())));
    loop {
        let ip = U::ip(state);
        let sp = U::sp(state);
        let (module, rva) = match found {
            Some(place) => {
                let own = recent.get(place);
                (Some(own.module), ip.wrapping_sub(own.base) as u32)
            }
            None => (None, 0),
        };
        if S::KNOWS
            && position == Position::Caller
            && let Some(stop) = sink.known(&Frame { address: ip, sp, module, rva, trust }, state)
        {
            return stop;
        }
        sink.frame(Frame { address: ip, sp, module, rva, trust }, state);
        count += 1;
        if count >= options.max_frames {
            return Stop::DepthLimit;
        }
        let before = U::checkpoint(state);
        let (stepped, facts) = match found {
            Some(place) => {
                let own = recent.get(place);
                let key =
                    RuleCache::<U::Rule>::key(ip.wrapping_add(own.to_place), position == Position::Context);
                match cache.get(key).filter(|_| own.is_cached) {
                    Some((rule, hint)) => {
                        if let Some(quick) = U::quick(rule, hint, state, &memory) {
                            if own.contains(U::ip(state).wrapping_sub(1)) {
                                sink.step(U::facts(rule));
                                (trust, position) = (quick, Position::Caller);
                                continue;
                            }
                            (Ok(StepResult { trust: quick, position: Position::Caller }), U::facts(rule))
                        } else {
                            (U::apply(rule, state, &memory, modules), U::facts(rule))
                        }
                    }
                    None => {
                        let code = if count == 1 { sample.code_at_ip } else { None };
                        let inside = ip.wrapping_sub(u64::from(position.back()));
                        // It was found there before.
                        let Some(loaded) = modules.find(inside) else {
                            return Stop::NoModule { address: ip };
                        };
                        let place = CodeAddress { image: loaded.image, rva, position, code };
                        let key = own.is_cached.then_some(key);
                        miss::<U, M>(cache, key, own.module, &place, state, &memory, modules)
                    }
                }
            }
            None if position == Position::Context => (U::leaf(state, &memory), Facts::ANY),
            None => (Err(Stop::NoModule { address: ip }), Facts::NONE),
        };
        sink.step(facts);
        let stop = match stepped {
            Ok(next) => {
                let address = U::ip(state);
                if U::sp(state) <= sp && count > 1 {
                    return Stop::Loop;
                }
                found = recent.find(modules, cache, address.wrapping_sub(u64::from(next.position.back())));
                if found.is_some() || next.position == Position::Context {
                    trust = next.trust;
                    position = next.position;
                    continue;
                }
                if address == 0 { Stop::ZeroReturnAddress } else { Stop::NoModule { address } }
            }
            Err(Stop::ThreadStart) => return Stop::ThreadStart,
            Err(stop) => stop,
        };
        if (facts.starts_thread || U::called_thread_start(state)) && ends_thread(stop) && memory.near_base(sp)
        {
            return Stop::ThreadStart;
        }
        U::restore(state, before);
        if !options.scan {
            return stop;
        }
        let guessed = U::scan(state, &memory, modules, position);
        let Some(next) = guessed else { return stop };
        sink.step(Facts::ANY);
        if U::sp(state) <= sp && count > 1 {
            return Stop::Loop;
        }
        let inside = U::ip(state).wrapping_sub(u64::from(next.position.back()));
        found = recent.find(modules, cache, inside);
        trust = next.trust;
        position = next.position;
    }
}

/// Whether a stop is one that is expected above a thread's first function.
pub(crate) fn ends_thread(stop: Stop) -> bool {
    matches!(stop, Stop::ZeroReturnAddress | Stop::EndOfStack | Stop::NoModule { .. })
}

/// What earlier walks found out.
pub(crate) struct Known<R> {
    cache: RuleCache<R>,
    recent: RecentModules,
}

impl<R: Copy + Eq + Hash> Known<R> {
    pub(crate) fn nothing() -> Known<R> {
        Known { cache: RuleCache::new(), recent: RecentModules::default() }
    }

    /// Calls `each` with the places of the rules for those of these words that are addresses in
    /// modules found before.
    #[inline(always)]
    pub(crate) fn places(&self, words: &[u8], mut each: impl FnMut(&u64)) {
        let address = |word: &[u8; 8]| u64::from_le_bytes(*word);
        for address in words.as_chunks().0.iter().take(EXPECTED).map(address) {
            let own = self.recent.get(RecentPlace::of(address));
            if own.contains(address) {
                let key = RuleCache::<R>::key(address.wrapping_add(own.to_place), false);
                self.cache.place_of(key).into_iter().for_each(&mut each);
            }
        }
    }
}

/// Words that are taken for return addresses before a walk, at most.
const EXPECTED: usize = 32;

/// Modules found before, while they are the same: the last one, and one for each group of
/// addresses. Neighbouring frames often are in one of them.
#[derive(Default)]
struct RecentModules {
    /// Of [`Modules::epoch`] at that time.
    epoch: Option<u64>,
    /// The last one's place.
    last: RecentPlace,
    modules: [Extent; RECENT],
}

/// Places for modules, by the bits of an address in which modules differ most.
const RECENT: usize = 8;

/// Index of a place.
#[derive(Clone, Copy, Default)]
struct RecentPlace(u8);

impl RecentPlace {
    /// The place of an address: images lie at multiples of 64 KiB, mostly some MiB apart.
    #[inline(always)]
    fn of(address: u64) -> RecentPlace {
        RecentPlace(((address >> 20).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as u8)
    }
}

/// Where a module lies.
#[derive(Clone, Copy)]
struct Extent {
    base: u64,
    /// 0: the place is free.
    size: u64,
    /// The offset from an address to its place in the cache.
    to_place: u64,
    /// Whether it has places there.
    is_cached: bool,
    module: ModuleId,
}

impl Extent {
    #[inline(always)]
    fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < self.size
    }
}

impl Default for Extent {
    fn default() -> Self {
        Extent { base: 0, size: 0, to_place: 0, is_cached: false, module: ModuleId(0) }
    }
}

impl RecentModules {
    /// Begins a walk. Forgets the modules if they may be others, or the cache is a new one.
    #[inline(always)]
    fn begin(&mut self, epoch: Option<u64>, is_cache_new: bool) {
        if epoch.is_none() || epoch != self.epoch || is_cache_new {
            *self = RecentModules { epoch, ..RecentModules::default() };
        }
    }

    #[inline(always)]
    fn get(&self, place: RecentPlace) -> &Extent {
        &self.modules[usize::from(place.0) % RECENT]
    }

    /// The place of the module that holds `address`. Valid until the next call.
    #[inline(always)]
    fn find<M: Modules, R: Copy + Eq + Hash>(
        &mut self,
        modules: &M,
        cache: &mut RuleCache<R>,
        address: u64,
    ) -> Option<RecentPlace> {
        if self.get(self.last).contains(address) {
            return Some(self.last);
        }
        let place = RecentPlace::of(address);
        if !self.get(place).contains(address) {
            self.modules[usize::from(place.0) % RECENT] = search(modules, cache, address)?;
        }
        self.last = place;
        Some(place)
    }
}

/// Where the module that holds `address` lies.
#[inline(never)]
fn search<M: Modules, R: Copy + Eq + Hash>(
    modules: &M,
    cache: &mut RuleCache<R>,
    address: u64,
) -> Option<Extent> {
    let LoadedModule { module, base, image, image_key } = modules.find(address)?;
    let first = cache.image(image_key, image.size());
    Some(Extent {
        base,
        size: u64::from(image.size()),
        to_place: first.unwrap_or(0).wrapping_sub(base),
        is_cached: first.is_some(),
        module,
    })
}

/// Compiles the rule of a place, keeps it if it is small, and applies it.
#[cold]
fn miss<U: Unwinder, M: Modules>(
    cache: &mut RuleCache<U::Rule>,
    key: Option<u64>,
    module: ModuleId,
    place: &CodeAddress<'_>,
    state: &mut U::State,
    memory: &Memory<'_>,
    modules: &M,
) -> (Result<StepResult, Stop>, Facts) {
    if place.image.arch() != U::ARCH {
        return (Err(Stop::OtherArchitecture { module }), Facts::NONE);
    }
    // Such places are never cached, so every one of them is checked here.
    if place.position == Position::Caller && place.image.is_stack_start(place.rva.wrapping_sub(1)) {
        return (Err(Stop::ThreadStart), Facts::NONE);
    }
    let full = match U::compile(place) {
        Ok(full) => full,
        Err(fault) => return (Err(fault.at(module, place.rva)), Facts::NONE),
    };
    match U::pack(&full) {
        Some(rule) => {
            if let Some(key) = key {
                cache.insert(key, rule, U::hint(&rule));
            }
            (U::apply(&rule, state, memory, modules), U::facts(&rule))
        }
        None => (U::apply_full(&full, state, memory, modules), U::full_facts(&full)),
    }
}
