//! Names of the methods that explicit Frames are about: MethodDesc -> FRAME_METHOD.
//!
//! Such a method (a P/Invoke) has no code of its own, so no list of the runtime's and no address
//! names it. Its MethodDesc may be freed with its assembly and another method may come in its
//! place, so the name is read again from time to time and written again if it has changed.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::cell::Cell;

use stk_schema::Ticks;
use stk_schema::event::{Event, FrameMethod, MethodNameSource};

use super::method_desc::Namer;
use super::pages::PageCache;
use super::{Contract, MOST_READS};
use crate::record::image::Memory;
use crate::record::modules::Events;

/// Seconds after which a method that is still called is looked at again.
const AGAIN: u64 = 5;
/// Places for methods that were requested lately; two that share one are requested in turn.
const RECENT: usize = 256;
/// Most methods that are known.
const MOST_KNOWN: usize = 4096;
/// Most methods that are named in one step.
const MOST_NAMED: usize = 32;

/// The methods that were requested in the last seconds, for the sampler: it allocates nothing.
pub(crate) struct RecentMethods {
    again: Ticks,
    places: [Cell<(u64, Ticks)>; RECENT],
}

impl RecentMethods {
    /// None yet. `frequency`: ticks of a second.
    pub(crate) fn new(frequency: u64) -> RecentMethods {
        let places = [const { Cell::new((0, Ticks::ZERO)) }; RECENT];
        RecentMethods { again: Ticks(AGAIN.saturating_mul(frequency)), places }
    }

    /// Whether a method is to be requested at `now`. If so, counts it as requested.
    pub(crate) fn is_due(&self, method: u64, now: Ticks) -> bool {
        // MethodDescs are 8 bytes apart at least.
        let Some(place) = self.places.get((method / 8 % RECENT as u64) as usize) else { return false };
        let (last, requested) = place.get();
        let due = last != method || now.saturating_sub(requested) >= self.again;
        if due {
            place.set((method, now));
        }
        due
    }
}

/// Names methods of Frames.
#[derive(Default)]
pub(crate) struct FrameMethods {
    /// Names as they were last written, by MethodDesc. Empty: there was none.
    known: BTreeMap<u64, String>,
}

impl FrameMethods {
    /// Names some of the MethodDescs that `next` gives. `module`: instance of the runtime's module.
    /// Returns whether there may be more.
    pub(crate) fn step(
        &mut self,
        (contract, module): (&Contract, u64),
        memory: &impl Memory,
        now: Ticks,
        mut next: impl FnMut() -> Option<u64>,
        out: &mut impl Events,
    ) -> bool {
        // What is read is true of one moment.
        let pages = PageCache::default();
        for _ in 0..MOST_NAMED {
            let Some(address) = next() else { return false };
            let name = name_of_method(contract, memory, &pages, address).unwrap_or_default();
            let known = self.known.get(&address);
            if known.is_none() && self.known.len() >= MOST_KNOWN || known == Some(&name) {
                continue;
            }
            // A name that cannot be read any more stays true of the time before.
            if !name.is_empty() {
                out.event(&Event::FrameMethod(FrameMethod {
                    module,
                    time: now,
                    kind: FrameMethod::DESC,
                    address,
                    slot: 0,
                    source: MethodNameSource::Contract as u64,
                    name: name.as_bytes(),
                }));
                self.known.insert(address, name);
            }
        }
        true
    }
}

/// The name of the method with this MethodDesc, in the form of the runtime's own list. `None` if
/// its data make no sense.
pub(super) fn name_of_method(
    contract: &Contract,
    memory: &impl Memory,
    pages: &PageCache,
    method: u64,
) -> Option<String> {
    let (fresh, kept) = (pages.fresh(memory, MOST_READS), pages.kept(memory, MOST_READS));
    Namer { contract, reader: &fresh, kept: &kept, pages }.method(method)
}
