//! The loader's notifications that the tables thread has not worked off yet.
//!
//! The tables thread learns of loads and unloads later than they happen. What it reads of a module
//! meanwhile (its entry in the loader's list, its headers) may belong to another module at the same
//! address. The loader reports an unload before it unmaps. So what was read belongs to the module
//! if, *after* the reading, no change waits here that contradicts it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use stk_schema::Ticks;

use super::fingerprint::Fingerprint;
use super::modules::{ModuleSighting, is_same};
use super::rescue::RescueCopy;

/// A load or an unload that the loader reported.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A module was mapped.
    Loaded {
        /// When the loader reported it.
        time: Ticks,
        /// What.
        seen: ModuleSighting,
        /// Whether the path was too long for the ring and was left out.
        path_cut: bool,
        /// Its identities at that moment, if its headers could be read.
        print: Option<Box<Fingerprint>>,
        /// The ticket for [`super::rescue::PendingModules::settle`]; 0 if there was no free slot.
        ticket: u64,
    },
    /// A module is about to be unmapped, or was.
    Unloaded {
        /// When the loader reported it.
        time: Ticks,
        /// Load address.
        base: u64,
        /// A copy of its tables, if they had not been read.
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
pub(crate) struct LoaderQueue(VecDeque<Change>);

impl LoaderQueue {
    /// Takes changes from `next` until it returns `None`.
    pub(crate) fn take(&mut self, mut next: impl FnMut() -> Option<Change>) {
        while let Some(change) = next() {
            self.0.push_back(change);
        }
    }

    /// Takes out the oldest change.
    pub(crate) fn pop(&mut self) -> Option<Change> {
        self.0.pop_front()
    }

    /// Number of changes that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.0.len()
    }

    /// Whether the module at `base` is being unloaded or was.
    pub(crate) fn unload(&self, base: u64) -> bool {
        self.0.iter().any(|change| matches!(change, Change::Unloaded { base: gone, .. } if *gone == base))
    }

    /// Whether any of them is about `base`.
    pub(crate) fn mention(&self, base: u64) -> bool {
        self.0.iter().any(|change| change.base() == base)
    }

    /// Whether `seen`, from the loader's list, is the module that lay at its address before all
    /// these changes. `reported` is the number of changes that had been reported when the list was
    /// read. False if it may be another module.
    pub(crate) fn leave(&self, seen: &ModuleSighting, reported: usize) -> bool {
        let mut at_base = self.0.iter().enumerate().filter(|(_, change)| change.base() == seen.base);
        match at_base.next() {
            None => true,
            // Use its own notification instead.
            Some((_, Change::Loaded { .. })) => false,
            // The list was read while its entry was being removed, or afterwards.
            Some((n, Change::Unloaded { .. })) if n < reported => false,
            // The list showed it before it was unloaded, unless it was loaded again later.
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

    fn changes(list: &[Change]) -> LoaderQueue {
        let (mut changes, mut list) = (LoaderQueue::default(), list.iter().cloned());
        changes.take(|| list.next());
        changes
    }

    #[test]
    fn unload_is_true_while_an_unload_of_that_address_waits() {
        let mut reported = changes(&[loaded(0x1000, "a.dll"), unloaded(0x2000)]);
        assert_eq!((reported.unload(0x1000), reported.unload(0x2000), reported.waiting()), (false, true, 2));
        assert!(matches!(reported.pop(), Some(Change::Loaded { .. })));
        assert!(reported.pop().is_some() && reported.pop().is_none());
        assert!(!reported.unload(0x2000));
    }

    #[test]
    fn a_listed_module_predates_the_changes_unless_one_of_them_loaded_it() {
        let a = seen(0x1000, "a.dll");
        assert!(changes(&[loaded(0x2000, "a.dll"), unloaded(0x3000)]).leave(&a, 0), "elsewhere");
        assert!(changes(&[unloaded(0x1000)]).leave(&a, 0), "unloaded after the list was read");
        assert!(changes(&[unloaded(0x1000), loaded(0x1000, "b.dll")]).leave(&a, 0), "b.dll came later");
        assert!(!changes(&[unloaded(0x1000)]).leave(&a, 1), "being unloaded while the list was read");
        assert!(!changes(&[loaded(0x1000, "a.dll")]).leave(&a, 0), "new, by its notification");
        // The list may show the first module or the one that was loaded later.
        assert!(!changes(&[unloaded(0x1000), loaded(0x1000, "a.dll")]).leave(&a, 0));
        assert!(!changes(&[unloaded(0x1000), loaded(0x1000, "b.dll"), loaded(0x1000, "a.dll")]).leave(&a, 0));
    }
}
