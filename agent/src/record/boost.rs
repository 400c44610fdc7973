//! Switches the system's priority boosts off for a thread while it is sampled.
//!
//! Windows raises the priority of a resumed thread for a moment. A thread that is sampled a
//! thousand times a second would keep the raised priority and take time from all others.

/// Whether the system boosts a thread.
pub(crate) trait BoostControl {
    /// Whether boosts are off; `None` if the system does not say.
    fn is_off(&self) -> Option<bool>;

    /// Switches boosts off or on; false if the system refused.
    fn set_off(&self, off: bool) -> bool;
}

/// Boosts are off while this lives. Dropping it restores the earlier setting.
pub(crate) struct BoostOff<C: BoostControl> {
    /// `None` if they were off before or could not be switched.
    switched: Option<C>,
}

impl<C: BoostControl> BoostOff<C> {
    /// Switches the boosts off, if that can be undone.
    pub(crate) fn new(control: C) -> BoostOff<C> {
        let switched = control.is_off() == Some(false) && control.set_off(true);
        BoostOff { switched: switched.then_some(control) }
    }
}

impl<C: BoostControl> Drop for BoostOff<C> {
    fn drop(&mut self) {
        // If the program switched them on meanwhile, keep its choice.
        if let Some(control) = &self.switched
            && control.is_off() == Some(true)
        {
            control.set_off(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::{Cell, RefCell};

    #[derive(Default)]
    struct Thread {
        off: Cell<Option<bool>>,
        refuses: bool,
        calls: RefCell<Vec<bool>>,
    }

    impl BoostControl for &Thread {
        fn is_off(&self) -> Option<bool> {
            self.off.get()
        }

        fn set_off(&self, off: bool) -> bool {
            self.calls.borrow_mut().push(off);
            if !self.refuses {
                self.off.set(Some(off));
            }
            !self.refuses
        }
    }

    #[test]
    fn boosts_are_off_while_a_thread_is_sampled_and_on_again_afterwards() {
        let thread = Thread { off: Cell::new(Some(false)), ..Thread::default() };
        let boost = BoostOff::new(&thread);
        assert_eq!(thread.off.get(), Some(true));
        drop(boost);
        assert_eq!(*thread.calls.borrow(), [true, false]);
    }

    #[test]
    fn the_programs_own_setting_is_kept() {
        let before = Thread { off: Cell::new(Some(true)), ..Thread::default() };
        drop(BoostOff::new(&before));
        assert_eq!((before.off.get(), before.calls.borrow().len()), (Some(true), 0));
        let meanwhile = Thread { off: Cell::new(Some(false)), ..Thread::default() };
        let boost = BoostOff::new(&meanwhile);
        meanwhile.off.set(Some(false));
        drop(boost);
        assert_eq!(*meanwhile.calls.borrow(), [true]);
    }

    #[test]
    fn a_refused_switch_is_not_undone() {
        let refused = Thread { off: Cell::new(Some(false)), refuses: true, ..Thread::default() };
        drop(BoostOff::new(&refused));
        assert_eq!(*refused.calls.borrow(), [true]);
        let unknown = Thread::default();
        drop(BoostOff::new(&unknown));
        assert!(unknown.calls.borrow().is_empty());
    }
}
