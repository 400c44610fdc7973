//! Names of methods that explicit Frames of a runtime are about. They have no code of their own.

use std::collections::BTreeMap;
use std::ops::Bound;

/// Names by what identifies a method, over time.
#[derive(Default, Debug)]
pub struct FrameMethods {
    /// By address, slot, and time in nanoseconds since the trace's start.
    names: BTreeMap<(u64, Option<u64>, u64), Box<str>>,
}

impl FrameMethods {
    /// Adds a name that was true at a time. `slot`: of a MethodTable at `address`; `None`: a
    /// MethodDesc is there.
    pub fn add(&mut self, address: u64, slot: Option<u64>, time_ns: u64, name: &str) {
        self.names.insert((address, slot, time_ns), name.into());
    }

    /// The name at a time. `None` if there is none, or if another one was read next: the memory
    /// belonged to another method at some time in between.
    pub fn at(&self, address: u64, slot: Option<u64>, time_ns: u64) -> Option<&str> {
        let (first, now, last) = ((address, slot, 0), (address, slot, time_ns), (address, slot, u64::MAX));
        let before = self.names.range(first..=now).next_back();
        if let Some((known, name)) = before
            && *known == now
        {
            return Some(name);
        }
        let before = before.map(|(_, name)| &**name);
        let after = self.names.range((Bound::Excluded(now), Bound::Included(last))).next();
        let after = after.map(|(_, name)| &**name);
        match (before, after) {
            (Some(before), Some(after)) => (before == after).then_some(before),
            (found, None) | (None, found) => found,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_known_where_no_other_may_have_been_true() {
        let mut methods = FrameMethods::default();
        for (time, name) in [(10, "a"), (20, "a"), (40, "b")] {
            methods.add(0x1000, None, time, name);
        }
        methods.add(0x1000, Some(3), 50, "slot");
        let at = |time| methods.at(0x1000, None, time);
        assert_eq!([0, 10, 15, 20].map(at), [Some("a"); 4]);
        assert_eq!([21, 39].map(at), [None; 2]);
        assert_eq!([40, 99].map(at), [Some("b"); 2]);
        assert_eq!((methods.at(0x1000, Some(3), 0), methods.at(0x1008, None, 10)), (Some("slot"), None));
    }
}
