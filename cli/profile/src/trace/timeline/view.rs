//! The modules and the dynamic code at a moment, by address.

use super::Timeline;
use crate::trace::changes::destination;
use crate::trace::code::{Extent as _, LiveCode};
use std::collections::BTreeMap;
use stk_base::model::ImageId;
use stk_schema::Ticks;

/// The modules and the dynamic code that are live at a moment. Moving to another moment, later or
/// earlier, costs as much as there are changes in between.
#[derive(Clone, Debug)]
pub struct TimelineCursor<'t> {
    timeline: &'t Timeline,
    next: usize,
    /// By address.
    live: Vec<LiveModule>,
    code: LiveCode,
    /// Cost of the moves so far, in nanoseconds by the prices below.
    cost: u64,
}

/// Price of one change.
const CHANGE: u64 = 100;
/// A move makes its changes in a map if there are more of them than this, and more than one per
/// this many live modules.
const MANY: usize = 16;

/// A module of a [`TimelineCursor`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveModule {
    /// First address.
    pub base: u64,
    /// Last address, inclusive.
    pub last: u64,
    /// Index in [`Timeline::modules`].
    pub module: u32,
    pub image: ImageId,
}

impl<'t> TimelineCursor<'t> {
    /// A view that begins before the first module.
    pub(super) fn new(timeline: &'t Timeline) -> TimelineCursor<'t> {
        TimelineCursor { timeline, next: 0, live: Vec::new(), code: LiveCode::default(), cost: 0 }
    }

    /// Goes to a moment.
    pub fn go(&mut self, time: Ticks) {
        self.cost += CHANGE * self.code.go(&self.timeline.code, &self.timeline.code_index, time);
        let changes = &self.timeline.changes;
        let start = self.next;
        let end = destination(changes, start, |change| change.time <= time);
        if start == end {
            return;
        }
        let steps = start.abs_diff(end);
        self.next = end;
        if steps > MANY && steps > self.live.len() / MANY {
            let mut live: BTreeMap<u64, LiveModule> =
                self.live.iter().map(|live| (live.base, *live)).collect();
            self.cost += CHANGE * (live.len() + steps) as u64;
            self.changes(start, end, |comes, module| {
                if comes {
                    live.insert(module.base, module);
                } else if live.get(&module.base).is_some_and(|live| live.module == module.module) {
                    live.remove(&module.base);
                }
            });
            self.live.clear();
            self.live.extend(live.into_values());
            return;
        }
        let mut live = std::mem::take(&mut self.live);
        // Each change moves the modules behind it.
        self.cost += (CHANGE + live.len() as u64) * steps as u64;
        self.changes(start, end, |comes, module| {
            let at = live.partition_point(|live| live.base < module.base);
            if comes {
                live.insert(at, module);
            } else if live.get(at).is_some_and(|live| live.module == module.module) {
                live.remove(at);
            }
        });
        self.live = live;
    }

    /// Applies the changes from number `start` up to, but not including, `end`. If `end` is before
    /// `start`, takes them back.
    fn changes(&self, start: usize, end: usize, mut change: impl FnMut(bool, LiveModule)) {
        let Timeline { changes, modules, .. } = self.timeline;
        let mut one = |at: usize, forward: bool| {
            let module = &modules[changes[at].module as usize];
            let (base, last) = module.span();
            let live = LiveModule { base, last, module: changes[at].module, image: module.image };
            change(changes[at].loads == forward, live);
        };
        if start <= end {
            (start..end).for_each(|at| one(at, true));
        } else {
            (end..start).rev().for_each(|at| one(at, false));
        }
    }

    /// Cost of the moves since the last call, in nanoseconds of a slow processor. A price list
    /// gives the cost, so it is the same on every machine.
    pub fn take_cost(&mut self) -> u64 {
        std::mem::take(&mut self.cost)
    }

    /// The module that holds `address`.
    pub fn find(&self, address: u64) -> Option<&LiveModule> {
        let after = self.live.partition_point(|live| live.base <= address);
        self.live[..after].last().filter(|live| address <= live.last)
    }

    /// The dynamic code region (index in [`Timeline::code`]) that holds `address`.
    pub fn find_code(&self, address: u64) -> Option<u32> {
        self.code.find(&self.timeline.code, address)
    }

    /// The timeline that it shows.
    pub fn timeline(&self) -> &'t Timeline {
        self.timeline
    }

    /// A number that stays the same as long as the modules and the dynamic code do.
    pub fn epoch(&self) -> usize {
        self.next + self.code.epoch()
    }

    /// The modules, by address.
    pub fn live(&self) -> &[LiveModule] {
        &self.live
    }
}

#[cfg(test)]
mod tests {
    use crate::trace::TimelineBuilder;
    use stk_schema::Ticks;
    use stk_schema::event::{Event, ModuleFlags, ModuleLoad};

    fn load(instance: u64, time: u64, base: u64) -> ModuleLoad<'static> {
        ModuleLoad {
            instance,
            time: Ticks(time),
            base,
            size: 0x1000,
            flags: ModuleFlags::NOTIFIED,
            path: b"a.dll",
            identities: Vec::new(),
        }
    }

    #[test]
    fn a_moved_view_shows_the_same_as_a_new_one() {
        let mut builder = TimelineBuilder::default();
        // Modules that replace each other, that are stored out of order, and that are never
        // unloaded.
        for i in 0..500u64 {
            builder.add(&Event::ModuleLoad(load(i + 1, i * 7919 % 1000, i * 104_729 % 200 * 0x800)));
            if i % 3 == 0 {
                builder.add(&Event::ModuleUnload { instance: i + 1, time: Ticks(i * 7919 % 1000 + i % 97) });
            }
        }
        let timeline = builder.finish();
        let mut view = timeline.view();
        for time in [1000, 0, 500, 501, 499, 130, 131, 990, 3, 700, 0, 1200].map(Ticks) {
            view.go(time);
            let mut new = timeline.view();
            new.go(time);
            assert_eq!((view.live(), view.epoch()), (new.live(), new.epoch()), "at {time:?}");
            let there = |i: &usize| {
                let module = &timeline.modules[*i];
                module.load <= time && module.unload.is_none_or(|unload| time < unload)
            };
            let mut there: Vec<usize> = (0..timeline.modules.len()).filter(there).collect();
            there.sort_by_key(|&i| timeline.modules[i].base);
            assert_eq!(view.live().iter().map(|live| live.module as usize).collect::<Vec<_>>(), there);
            let overlaps = view.live().windows(2).filter(|two| two[0].last >= two[1].base).count();
            assert_eq!(overlaps, 0, "at {time:?}");
        }
        assert!(view.take_cost() > 0 && view.take_cost() == 0);
    }
}
