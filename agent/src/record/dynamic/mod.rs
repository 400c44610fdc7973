//! Code that is in no module: just-in-time compilers and other runtimes make it while the process
//! runs.
//!
//! ```text
//! scan       a sample's instruction pointer and changed stack words -> addresses of such code
//!            (on the sampler's thread)
//! functions  looks up each new address once -> CODE_ADD, CODE_REMOVE (on the code thread)
//! entry      reads RUNTIME_FUNCTION and unwind data from memory
//! precompiled  .NET's images with native code, whose functions have no other names
//! ```
//!
//! Addresses in mapped images go to the tables thread instead, which finds the images that no
//! module covers (`record::unlisted`).
//!
//! A lookup asks the system's function tables, which may call back into a runtime and wait for its
//! locks. So no lookup runs while a thread is suspended, and the sampler itself never does one: it
//! only fills a bounded queue.
//!
//! **Other parts of the agent** that need to know of new dynamic code read [`CodeActivity`]: how
//! many regions were added so far, and when the last one was. The runtimes thread asks a runtime
//! for names once there are addresses without one. For a runtime that must be queried for each
//! address, [`Shared::unnamed`] holds the addresses themselves.

mod entry;
mod functions;
mod precompiled;
mod regions;
mod scan;

pub(crate) use entry::FunctionEntry;
pub(crate) use functions::{CodeFunctions, Lookup, MOST_CODE, Tables, follows_call, read_code};
pub(crate) use regions::{Region, RegionUse};
pub(crate) use scan::{ScannedSample, Scanner};

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use stk_schema::Ticks;

use precompiled::PrecompiledImages;

use super::queue::Queue;

/// Most sightings that wait to be looked up.
const WAITING: usize = 16_384;
/// Most sightings that may wait when a word of a stack is added. The other places are those of
/// instruction pointers: a machine that is too busy for all should know what its time went to.
const WAITING_WORDS: usize = WAITING / 2;
/// Most sightings in images that wait to be compared with the modules.
const IMAGES: usize = 1024;
/// Most pieces of code that wait to be named.
const NAMELESS: usize = 16_384;

/// An address in dynamic code that a sample showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CodeSample {
    /// The instruction pointer itself, or the byte before a return address.
    pub inside: u64,
    /// The sample's time.
    pub time: Ticks,
    /// Whether it is the instruction pointer: surely code that was executed. A stack word may be
    /// anything.
    pub executed: bool,
}

/// Recorded code that may need a name that its own runtime does not give.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnnamedCode {
    /// Instance of the CODE_ADD that holds it, or of the module.
    pub instance: u64,
    /// An address inside the code.
    pub address: u64,
    /// First address of the code that the name certainly covers: the function in the system's
    /// table, or just the one address.
    pub base: u64,
    /// Size of that code in bytes.
    pub size: u64,
    /// Whether the sample that showed it was executing it.
    pub executed: bool,
    /// Whether it is code of a module.
    pub precompiled: bool,
}

/// How much dynamic code was recorded so far. The threads that ask runtimes for names read it.
#[derive(Debug, Default)]
pub(crate) struct CodeActivity {
    /// Regions added that have unwind data.
    pub functions: AtomicU64,
    /// Regions added without unwind data.
    pub stubs: AtomicU64,
    /// Time of the last addition, in ticks; 0 = none yet.
    pub last: AtomicU64,
}

impl CodeActivity {
    /// Regions added so far.
    pub(crate) fn added(&self) -> u64 {
        self.functions.load(Ordering::Relaxed) + self.stubs.load(Ordering::Relaxed)
    }
}

/// What looking up dynamic code cost, and what was left out.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    /// Addresses handed over to be looked up.
    pub sightings: AtomicU64,
    /// Addresses that were not looked up because the queue was full.
    pub lost: AtomicU64,
    /// Lookups in the system's function tables.
    pub lookups: AtomicU64,
    /// Nanoseconds spent in them, including reading.
    pub lookup_ns: AtomicU64,
    /// Nanoseconds of the longest of them.
    pub lookup_max_ns: AtomicU64,
    /// Lookups that ended in a fault of the callback.
    pub faults: AtomicU64,
    /// Regions that were found removed or changed.
    pub removed: AtomicU64,
    /// Regions that were forgotten to make room. They are recorded again if they are seen again.
    pub forgotten: AtomicU64,
    /// Bytes of code and unwind data recorded.
    pub bytes: AtomicU64,
    /// Regions and addresses that were named by the runtime's data contract.
    pub named: AtomicU64,
    /// Regions and addresses that the contract did not name.
    pub nameless: AtomicU64,
    /// Nanoseconds spent in naming by the contract.
    pub naming_ns: AtomicU64,
    /// Regions and addresses whose name cannot be requested because the queue was full.
    pub unasked: AtomicU64,
}

/// State that the sampler and the code thread share.
pub(crate) struct Shared {
    /// Addresses from the sampler. They are looked up in the order of their samples: the time of
    /// CODE_ADD is that of the first sample that shows the code.
    sightings: Queue<CodeSample>,
    /// Code in mapped images, which the tables thread compares with the modules that it knows.
    pub images: Queue<CodeSample>,
    /// Modules with precompiled code. The sampler puts addresses in it into `unnamed`.
    pub precompiled: PrecompiledImages,
    /// Addresses to name. When the queue is full, new ones are dropped and counted in `unasked`.
    pub unnamed: Queue<UnnamedCode>,
    /// For the threads that need to know of new code.
    pub activity: CodeActivity,
    /// Counters that the trace stores.
    pub costs: Costs,
}

impl Shared {
    /// Takes a sighting to be looked up. False: there is no room for it.
    pub(crate) fn sight(&self, sighting: CodeSample) -> bool {
        (sighting.executed || self.sightings.len() < WAITING_WORDS) && self.sightings.push(sighting).is_ok()
    }

    /// The next sighting to look up.
    pub(crate) fn next_sighting(&self) -> Option<CodeSample> {
        self.sightings.pop()
    }

    /// Empty queues, and counters at zero.
    pub(crate) fn new() -> Arc<Shared> {
        Arc::new(Shared {
            sightings: Queue::new(WAITING),
            images: Queue::new(IMAGES),
            precompiled: PrecompiledImages::new(),
            unnamed: Queue::new(NAMELESS),
            activity: CodeActivity::default(),
            costs: Costs::default(),
        })
    }
}
