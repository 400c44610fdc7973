//! What is summed, and what samples come to in a function: own and total, in which recursion counts
//! once.

/// What is summed: nanoseconds, or samples with their times. The default is nothing.
pub trait Additive: Copy + Default + PartialEq {
    /// Adds without overflow: a forged trace may claim any time.
    fn add(&mut self, more: Self);
}

impl Additive for u64 {
    fn add(&mut self, more: u64) {
        *self = self.saturating_add(more);
    }
}

/// Sums by number. Costs the numbers that have one, not all: kept for one list after another.
#[derive(Clone, Debug, Default)]
pub struct Accumulator<A> {
    pub(super) sums: Vec<A>,
    /// Numbers that have a sum.
    pub(super) met: Vec<u32>,
}

impl<A: Additive> Accumulator<A> {
    /// Adds to the sum of a number.
    pub fn add(&mut self, number: u32, more: A) {
        let at = number as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, A::default());
        }
        let sum = &mut self.sums[at];
        if more != A::default() {
            if *sum == A::default() {
                self.met.push(number);
            }
            sum.add(more);
        }
    }

    /// The sums that are not nothing, by number. There are none afterwards.
    pub fn take(&mut self) -> Vec<(u32, A)> {
        let mut met = std::mem::take(&mut self.met);
        met.sort_unstable();
        met.into_iter().map(|number| (number, std::mem::take(&mut self.sums[number as usize]))).collect()
    }
}

/// What samples come to of which a function, module or group is part.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OwnTotal<A> {
    /// Of those that end in it.
    pub own: A,
    /// Of those that have it anywhere on the stack, each once: recursion does not count again.
    pub total: A,
}

impl<A: Additive> Additive for OwnTotal<A> {
    fn add(&mut self, more: OwnTotal<A>) {
        self.own.add(more.own);
        self.total.add(more.total);
    }
}

/// The functions of the stack that a visit of a tree is at, by which recursion counts once.
#[derive(Clone, Debug, Default)]
pub struct OpenFunctions {
    /// By function: how many times it is on the stack.
    times: Vec<u32>,
}

impl OpenFunctions {
    /// Adds a call of a function. Says whether it is in none of its callers.
    pub fn enter(&mut self, function: u32) -> bool {
        let at = function as usize;
        if self.times.len() <= at {
            self.times.resize(at + 1, 0);
        }
        self.times[at] += 1;
        self.times[at] == 1
    }

    /// Takes a call back.
    pub fn leave(&mut self, function: u32) {
        self.times[function as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_at_the_largest_number_and_nothing_is_left_out() {
        let mut sums = Accumulator::default();
        for (number, more) in [(7, 2), (3, 0), (5, u64::MAX), (7, 3), (5, 1)] {
            sums.add(number, more);
        }
        assert_eq!(sums.take(), [(5, u64::MAX), (7, 5)]);
        assert_eq!(sums.take(), []);
    }

    #[test]
    fn a_function_is_entered_anew_when_all_its_calls_are_left() {
        let mut open = OpenFunctions::default();
        assert_eq!([3, 1, 3].map(|function| open.enter(function)), [true, true, false]);
        open.leave(3);
        assert!(!open.enter(3));
        (0..2).for_each(|_| open.leave(3));
        assert!(open.enter(3));
    }
}
