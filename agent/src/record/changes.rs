//! What the loader has told and nobody has worked off yet.
//!
//! The tables thread hears of loads and unloads later than they happen. Whatever it reads of a
//! module meanwhile (its entry in the loader's list, its headers) may be of what lies at that
//! address by then. The loader tells of an unload before it unmaps: so what was read is the
//! module's if, *after* the reading, nothing waits here that says otherwise.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use stk_schema::Ticks;

use super::fingerprint::Fingerprint;
use super::modules::{ModuleSighting, is_same};
use super::rescue::RescueCopy;

/// What the loader did.
#[derive(Clone, Debug)]
pub enum Change {
    /// A module was mapped.
    Loaded {
        /// When the loader told of it.
        time: Ticks,
        /// What.
        seen: ModuleSighting,
        /// Whether the path is too long for the ring and was left out.
        path_cut: bool,
        /// Its identities at that moment, if its headers could be read.
        print: Option<Box<Fingerprint>>,
        /// By which its tables are reported as read; 0 if there was no place for it.
        ticket: u64,
    },
    /// A module is about to be unmapped, or was.
    Unloaded {
        /// When the loader told of it.
        time: Ticks,
        /// Load address.
        base: u64,
        /// What was copied of its tables, where they had not been read.
        rescued: Option<RescueCopy>,
    },
}

impl Change {
    fn base(&self) -> u64 {
        match self {
            Change::Loaded { seen, .. } => seen.base,
            Change::Unloaded { base, .. } => *base,
        }
    }
}

/// Changes in the order in which they happened.
#[derive(Debug, Default)]
pub struct Changes(VecDeque<Change>);

impl Changes {
    /// Takes over what the loader tells by `next` until it has no more.
    pub fn take(&mut self, mut next: impl FnMut() -> Option<Change>) {
        while let Some(change) = next() {
            self.0.push_back(change);
        }
    }

    /// The oldest one, to be worked off.
    pub fn pop(&mut self) -> Option<Change> {
        self.0.pop_front()
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.0.len()
    }

    /// Whether what lies at `base` is, or was, unloaded.
    pub fn unload(&self, base: u64) -> bool {
        self.0.iter().any(|change| matches!(change, Change::Unloaded { base: gone, .. } if *gone == base))
    }

    /// Whether any of them is about `base`.
    pub fn mention(&self, base: u64) -> bool {
        self.0.iter().any(|change| change.base() == base)
    }

    /// Whether `seen` is the module that lay at its address before all these changes: in a list
    /// that was read when the first `told` of them had been told and the others not yet. False
    /// where it may be another.
    pub fn leave(&self, seen: &ModuleSighting, told: usize) -> bool {
        let mut at_base = self.0.iter().enumerate().filter(|(_, change)| change.base() == seen.base);
        match at_base.next() {
            None => true,
            // Its own notification is the better witness.
            Some((_, Change::Loaded { .. })) => false,
            // Its entry was being taken out of the list, or was out of it.
            Some((n, Change::Unloaded { .. })) if n < told => false,
            // Shown before it was unloaded, unless it is what came afterwards.
            Some((_, Change::Unloaded { .. })) => !at_base.any(
                |(_, change)| matches!(change, Change::Loaded { seen: later, .. } if is_same(later, seen)),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(base: u64, path: &str) -> ModuleSighting {
        ModuleSighting { base, size: 0x1000, path: path.as_bytes().to_vec() }
    }

    fn loaded(base: u64, path: &str) -> Change {
        Change::Loaded { time: Ticks(0), seen: seen(base, path), path_cut: false, print: None, ticket: 0 }
    }

    fn unloaded(base: u64) -> Change {
        Change::Unloaded { time: Ticks(0), base, rescued: None }
    }

    fn changes(list: &[Change]) -> Changes {
        let (mut changes, mut list) = (Changes::default(), list.iter().cloned());
        changes.take(|| list.next());
        changes
    }

    #[test]
    fn headers_read_at_an_address_are_doubted_once_its_module_was_unloaded() {
        let mut told = changes(&[loaded(0x1000, "a.dll"), unloaded(0x2000)]);
        assert_eq!((told.unload(0x1000), told.unload(0x2000), told.waiting()), (false, true, 2));
        assert!(matches!(told.pop(), Some(Change::Loaded { .. })));
        assert!(told.pop().is_some() && told.pop().is_none());
        assert!(!told.unload(0x2000));
    }

    #[test]
    fn what_a_list_shows_was_there_unless_a_change_says_that_it_came_later() {
        let a = seen(0x1000, "a.dll");
        assert!(changes(&[loaded(0x2000, "a.dll"), unloaded(0x3000)]).leave(&a, 0), "elsewhere");
        assert!(changes(&[unloaded(0x1000)]).leave(&a, 0), "unloaded after the list was read");
        assert!(changes(&[unloaded(0x1000), loaded(0x1000, "b.dll")]).leave(&a, 0), "b.dll came later");
        assert!(!changes(&[unloaded(0x1000)]).leave(&a, 1), "being unloaded while the list was read");
        assert!(!changes(&[loaded(0x1000, "a.dll")]).leave(&a, 0), "new, as its notification tells");
        // The list may show what lay there first, or what was loaded then.
        assert!(!changes(&[unloaded(0x1000), loaded(0x1000, "a.dll")]).leave(&a, 0));
        assert!(!changes(&[unloaded(0x1000), loaded(0x1000, "b.dll"), loaded(0x1000, "a.dll")]).leave(&a, 0));
    }
}
