//! Takes code that needs a name, and writes METHOD_NAME events.

use alloc::collections::VecDeque;
use core::sync::atomic::Ordering;

use stk_schema::Ticks;
use stk_schema::event::{Event, MethodName, MethodNameSource};

use super::pages::PageCache;
use super::{Contract, name_of_code};
use crate::record::dynamic::{Shared, UnnamedCode};
use crate::record::image::Memory;
use crate::record::modules::Events;

/// Most pieces of code that wait.
const MOST_WAITING: usize = 16_384;
/// Milliseconds until code that had no name is tried once more. The runtime may have been changing
/// what was read.
const AGAIN_MS: u64 = 100;
/// Milliseconds after which assemblies that were read are looked at again.
const CHECK_MS: u64 = 1_000;
/// Milliseconds without new code after which nothing is kept.
const IDLE_MS: u64 = 10_000;
/// Milliseconds that a step may take, beyond which further code is named in the next one.
const STEP_MS: u64 = 25;

/// Code that waits for its name.
struct PendingCode {
    code: UnnamedCode,
    /// Not to be tried before. It was tried already if this is not zero.
    due: Ticks,
}

/// Names code by the contract.
pub(crate) struct ContractNames {
    ticks_per_ms: u64,
    /// Code that was seen before what the pages hold was read.
    waiting: VecDeque<PendingCode>,
    /// Code that samples have executed since. It is named before all other code.
    urgent: VecDeque<PendingCode>,
    /// Other code that was seen since, or is to be tried again.
    later: VecDeque<PendingCode>,
    pages: PageCache,
    /// When assemblies were last looked at again.
    checked: Ticks,
    /// When the last code was named.
    active: Ticks,
}

impl ContractNames {
    /// Nothing waits yet.
    pub(crate) fn new(ticks_per_ms: u64) -> ContractNames {
        ContractNames {
            ticks_per_ms,
            waiting: VecDeque::new(),
            urgent: VecDeque::new(),
            later: VecDeque::new(),
            pages: PageCache::default(),
            checked: Ticks::ZERO,
            active: Ticks::ZERO,
        }
    }

    /// Takes code that has no name yet. Without a contract the host may name it; a contract that is
    /// found later names it as well.
    pub(crate) fn want(&mut self, code: UnnamedCode, contract: Option<&Contract>, shared: &Shared) {
        if contract.is_none() {
            ask_others(code, shared);
        }
        let queue = if code.executed { &mut self.urgent } else { &mut self.later };
        if queue.len() < MOST_WAITING {
            queue.push_back(PendingCode { code, due: Ticks::ZERO });
        } else if contract.is_some() {
            ask_others(code, shared);
        }
    }

    /// Whether code waits that is to be named now.
    pub(crate) fn is_due(&self, now: Ticks) -> bool {
        !self.waiting.is_empty() || !self.urgent.is_empty() || self.later.iter().any(|want| want.due <= now)
    }

    /// Names what waits, for a moment; with `last`, all of it, and what is to be tried again later.
    /// `now` is a clock.
    pub(crate) fn step(
        &mut self,
        contract: &Contract,
        memory: &impl Memory,
        now: impl Fn() -> Ticks,
        last: bool,
        shared: &Shared,
        out: &mut impl Events,
    ) {
        let start = now();
        let since = |time: Ticks| start.saturating_sub(time).0 / self.ticks_per_ms;
        if self.waiting.is_empty() && self.urgent.is_empty() && self.later.is_empty() {
            if self.active != Ticks::ZERO && since(self.active) >= IDLE_MS {
                self.pages.forget();
                self.active = Ticks::ZERO;
            }
            return;
        }
        if !self.urgent.is_empty() || self.waiting.is_empty() || last {
            self.pages.refresh();
        }
        while let Some(want) = self.urgent.pop_back() {
            self.waiting.push_front(want);
        }
        if self.waiting.is_empty() || last {
            let due = |want: &PendingCode| last || want.due <= start;
            let (now, later): (VecDeque<_>, _) = core::mem::take(&mut self.later).into_iter().partition(due);
            self.waiting.extend(now);
            self.later = later;
        }
        if since(self.checked) >= CHECK_MS {
            self.pages.check();
            self.checked = start;
        }
        while let Some(want) = self.waiting.pop_front() {
            let now = now();
            self.active = now;
            let UnnamedCode { address, base, size, .. } = want.code;
            if let Some(name) = name_of_code(contract, memory, &self.pages, address) {
                shared.costs.named.fetch_add(1, Ordering::Relaxed);
                out.event(&Event::MethodName(MethodName {
                    time: now,
                    base,
                    size,
                    source: MethodNameSource::Contract as u64,
                    name: name.as_bytes(),
                }));
            } else if want.due == Ticks::ZERO && !last {
                let due = now + Ticks(AGAIN_MS * self.ticks_per_ms);
                self.later.push_back(PendingCode { due, ..want });
            } else {
                shared.costs.nameless.fetch_add(1, Ordering::Relaxed);
                ask_others(want.code, shared);
            }
            if !last && now.saturating_sub(start).0 >= STEP_MS * self.ticks_per_ms {
                break;
            }
        }
    }
}

/// Leaves code to the runtimes thread, which may ask the host for its name.
fn ask_others(code: UnnamedCode, shared: &Shared) {
    if shared.unnamed.push(code).is_err() {
        shared.costs.unasked.fetch_add(1, Ordering::Relaxed);
    }
}
