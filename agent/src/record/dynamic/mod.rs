//! Code that lies in no module: what just-in-time compilers and other runtimes make while the
//! process runs.
//!
//! ```text
//! scan       a sample's instruction pointer and changed stack words -> addresses of such code   (the sampler's thread)
//! functions  each new address is looked up once -> CODE_ADD, CODE_REMOVE                        (a thread of its own)
//! entry      RUNTIME_FUNCTION and unwind data as they lie in memory
//! ```
//!
//! Addresses in mapped images go to the tables thread instead, which finds the images that no
//! module covers (`record::unlisted`).
//!
//! A lookup asks the system's function tables, which may call a runtime back and wait for its
//! locks. So it is never done while a thread is suspended, and never by the sampler, which only
//! fills a bounded queue.
//!
//! **Other parts of the agent** that want to know of new dynamic code (a runtime is asked for names
//! once there are addresses without) read [`News`]: how many regions were added so far, and when
//! the last one was; and [`Shared::wants`], which holds the addresses themselves, for a runtime
//! that has to be asked for each.

mod entry;
mod functions;
mod regions;
mod scan;

pub use entry::FunctionEntry;
pub use functions::{CodeFunctions, Lookup, Tables};
pub use regions::{Region, RegionUse};
pub use scan::{Scanner, View};

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use stk_schema::Ticks;

use super::queue::Queue;

/// Sightings that can wait to be looked up.
const WAITING: usize = 8192;
/// Sightings in images that can wait to be compared with the modules.
const IMAGES: usize = 1024;
/// Code that can wait to be named.
const NAMELESS: usize = 16_384;

/// An address in dynamic code that a sample showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sighting {
    /// The instruction pointer itself, or the byte before a return address.
    pub inside: u64,
    /// The sample's time.
    pub time: Ticks,
    /// Whether it is the instruction pointer: surely code that was executed. A stack word may be
    /// anything.
    pub executed: bool,
}

/// Code that was recorded and may need a name that its runtime does not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// An address inside of it.
    pub address: u64,
    /// What the name is certainly of, if nothing else is known: the function in the system's table,
    /// or the one address. First address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

/// How much dynamic code was recorded so far; what those look at who ask runtimes for names.
#[derive(Debug, Default)]
pub struct News {
    /// Regions added, those with unwind data.
    pub functions: AtomicU64,
    /// Regions added, those without.
    pub stubs: AtomicU64,
    /// Time of the last addition, in ticks; 0 = none yet.
    pub last: AtomicU64,
}

impl News {
    /// Regions added so far.
    pub fn added(&self) -> u64 {
        self.functions.load(Ordering::Relaxed) + self.stubs.load(Ordering::Relaxed)
    }
}

/// What looking at dynamic code has cost, and what was left out.
#[derive(Debug, Default)]
pub struct Costs {
    /// Addresses handed over to be looked up.
    pub sightings: AtomicU64,
    /// Addresses that were not looked up, since the queue was full.
    pub lost: AtomicU64,
    /// Lookups in the system's function tables.
    pub lookups: AtomicU64,
    /// Nanoseconds spent in them, reading included.
    pub lookup_ns: AtomicU64,
    /// The longest of them.
    pub lookup_max_ns: AtomicU64,
    /// Lookups that ended in a fault of whoever was asked.
    pub faults: AtomicU64,
    /// Regions that were found gone or changed.
    pub removed: AtomicU64,
    /// Regions that were forgotten to make room; they are recorded again when they are seen again.
    pub forgotten: AtomicU64,
    /// Bytes of code and unwind data recorded.
    pub bytes: AtomicU64,
    /// Regions and addresses that nobody can be asked the name of, since the queue was full.
    pub unasked: AtomicU64,
}

/// What the sampler and the thread that looks up share.
pub struct Shared {
    /// From the sampler.
    pub sightings: Queue<Sighting>,
    /// Code in mapped images, which the tables thread compares with the modules that it knows.
    pub images: Queue<Sighting>,
    /// For whoever finds out names. Where nobody does it fills up, and that is all.
    pub wants: Queue<Want>,
    /// For whoever wants to know of new code.
    pub news: News,
    /// For the trace.
    pub costs: Costs,
}

impl Shared {
    /// An empty queue and counters at zero.
    pub fn new() -> Arc<Shared> {
        Arc::new(Shared {
            sightings: Queue::new(WAITING),
            images: Queue::new(IMAGES),
            wants: Queue::new(NAMELESS),
            news: News::default(),
            costs: Costs::default(),
        })
    }
}
