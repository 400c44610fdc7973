//! What is there at a moment: modules and dynamic code by address.

use super::Timeline;
use crate::model::ImageId;
use crate::trace::code::LiveCode;

/// The modules and the dynamic code that are there at a moment. Moving on is cheap, going back
/// rebuilds.
#[derive(Clone, Debug)]
pub struct View<'t> {
    timeline: &'t Timeline,
    time: u64,
    next: usize,
    live: Vec<Live>,
    code: LiveCode,
}

/// A module of a [`View`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// First address.
    pub base: u64,
    /// Last address, inclusive.
    pub last: u64,
    /// Index in [`Timeline::modules`].
    pub module: u32,
    /// Its image.
    pub image: ImageId,
}

impl<'t> View<'t> {
    /// A view that begins before the first module.
    pub(super) fn new(timeline: &'t Timeline) -> View<'t> {
        View { timeline, time: 0, next: 0, live: Vec::new(), code: LiveCode::default() }
    }

    /// Goes to a moment.
    pub fn go(&mut self, time: u64) {
        if time < self.time {
            self.next = 0;
            self.live.clear();
            self.code = LiveCode::default();
        }
        self.time = time;
        self.code.go(self.timeline, time);
        let changes = &self.timeline.changes;
        while let Some(change) = changes.get(self.next).filter(|change| change.time <= time) {
            let module = &self.timeline.modules[change.module as usize];
            let at = self.live.partition_point(|live| live.base < module.base);
            if change.loads {
                let last = module.base.saturating_add(module.size - 1);
                self.live
                    .insert(at, Live { base: module.base, last, module: change.module, image: module.image });
            } else if self.live.get(at).is_some_and(|live| live.module == change.module) {
                self.live.remove(at);
            }
            self.next += 1;
        }
    }

    /// The module that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Live> {
        let after = self.live.partition_point(|live| live.base <= address);
        self.live[..after].last().filter(|live| address <= live.last)
    }

    /// The dynamic code region (index in [`Timeline::code`]) that holds `address`.
    pub fn find_code(&self, address: u64) -> Option<u32> {
        self.code.find(self.timeline, address)
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
    pub fn live(&self) -> &[Live] {
        &self.live
    }
}
