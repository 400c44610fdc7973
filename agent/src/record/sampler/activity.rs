//! Judges from a thread's cycle counts whether it ran since its last sample, and whether it has to
//! be captured again.
//!
//! A capture costs the captured thread cycles of its own: the system wakes it to stop it and to
//! resume it. So a count that was read before a capture is compared with a tolerance, the measured
//! cost of a suspension. A count that was read after the last capture is exact: if it has not
//! changed, the thread did not run.

use stk_schema::event::RunState;

/// Cycles that one suspension, capture and resumption costs a waiting thread itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SuspensionCost {
    pub p50: u64,
    pub p95: u64,
}

impl SuspensionCost {
    /// Assumed if the cost could not be measured: the upper end of the known costs on x64
    /// processors.
    pub(crate) const ASSUMED: SuspensionCost = SuspensionCost { p50: 20_000, p95: 60_000 };

    /// The percentiles (nearest rank) of measured costs; sorts `costs`. `None` if there are none.
    pub(crate) fn of(costs: &mut [u64]) -> Option<SuspensionCost> {
        costs.sort_unstable();
        let rank = |percent: usize| costs.get((costs.len() * percent).div_ceil(100).checked_sub(1)?).copied();
        Some(SuspensionCost { p50: rank(50)?, p95: rank(95)? })
    }

    /// Most cycles, including one suspension, with which an unchanged thread is left alone for one
    /// pass. A thread that runs for less than this in exactly that pass is not captured in it.
    fn settling(self) -> u64 {
        self.p95.saturating_mul(4)
    }
}

/// The earlier cycle count that a thread's next count is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Reference {
    #[default]
    None,
    /// Read before the last capture.
    Captured(u64),
    /// Read before the last capture, which found the registers unchanged and the count nearly so.
    Settling(u64),
    /// Read since the last capture.
    Exact(u64),
}

/// What to do with a thread in this pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PassAction {
    /// Nothing changed since its last sample: store that again, with this state.
    Same(RunState),
    /// It may have run: capture it.
    Capture,
}

/// Whether a thread runs, as far as its cycle counts show.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Activity {
    reference: Reference,
}

impl Activity {
    /// Decides what to do with a thread whose cycle count is `now`.
    pub(super) fn look(&mut self, now: u64, cost: SuspensionCost) -> PassAction {
        match self.reference {
            Reference::Captured(at) | Reference::Settling(at) | Reference::Exact(at) if at == now => {
                PassAction::Same(RunState::Waiting)
            }
            Reference::Settling(at) if now.saturating_sub(at) <= cost.settling() => {
                self.reference = Reference::Exact(now);
                let within = now.saturating_sub(at) <= cost.p95;
                PassAction::Same(if within { RunState::Waiting } else { RunState::Unknown })
            }
            _ => PassAction::Capture,
        }
    }

    /// Notes a capture before which the count was `now`; `moved` says whether a register changed
    /// since the last capture. Returns the thread's state since its last sample.
    pub(super) fn captured(&mut self, now: u64, moved: bool, cost: SuspensionCost) -> RunState {
        let (state, spent) = match self.reference {
            Reference::None => (RunState::Unknown, None),
            Reference::Exact(at) => {
                let spent = now.saturating_sub(at);
                // On a busy machine, the cost of the capture before the reading may be charged
                // after the reading.
                (if spent > cost.p95 { RunState::Running } else { RunState::Unknown }, Some(spent))
            }
            Reference::Captured(at) | Reference::Settling(at) => {
                let spent = now.saturating_sub(at);
                (state(spent, moved, cost), Some(spent))
            }
        };
        let little = spent.is_some_and(|spent| spent <= cost.settling());
        self.reference = if little && !moved { Reference::Settling(now) } else { Reference::Captured(now) };
        state
    }

    /// Notes that the last stored sample is not the one that the count belongs to.
    pub(super) fn forget(&mut self) {
        self.reference = Reference::None;
    }
}

/// The state of a thread that spent so many cycles, including those of one suspension.
fn state(spent: u64, moved: bool, cost: SuspensionCost) -> RunState {
    if spent > cost.p95.saturating_mul(2) {
        RunState::Running
    } else if spent <= cost.p95 && !moved {
        RunState::Waiting
    } else {
        // If it ran, then for less than the suspension cost it.
        RunState::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: SuspensionCost = SuspensionCost { p50: 10_000, p95: 15_000 };

    /// Runs passes over a thread that spends `own(pass)` cycles between two passes and `cost(pass)`
    /// for being captured. Returns the number of captures, and the states.
    fn run(
        passes: u64,
        own: impl Fn(u64) -> u64,
        cost: impl Fn(u64) -> u64,
        moves: bool,
    ) -> (u64, Vec<RunState>) {
        let (mut activity, mut count, mut captures, mut states) = (Activity::default(), 1_000, 0, Vec::new());
        for pass in 0..passes {
            count += own(pass);
            states.push(match activity.look(count, COST) {
                PassAction::Same(state) => state,
                PassAction::Capture => {
                    let state = activity.captured(count, moves && captures > 0, COST);
                    captures += 1;
                    count += cost(pass);
                    state
                }
            });
        }
        (captures, states)
    }

    #[test]
    fn an_idle_thread_is_captured_twice_and_left_alone() {
        let (captures, states) = run(100, |_| 0, |_| 12_000, false);
        assert_eq!(captures, 2);
        assert!(states[1..].iter().all(|&state| state == RunState::Waiting), "{states:?}");
    }

    #[test]
    fn an_idle_thread_with_varying_suspension_costs_is_left_alone() {
        for seed in 0..50u64 {
            let (captures, states) =
                run(100, |_| 0, |pass| 3_000 + (pass * 7919 + seed * 104_729) % 50_000, false);
            assert!(captures <= 3, "{captures}");
            assert!(states[3..].iter().all(|&state| state == RunState::Waiting), "{states:?}");
        }
    }

    #[test]
    fn a_running_thread_is_captured_in_every_pass_even_with_unchanged_registers() {
        for moves in [false, true] {
            let (captures, states) = run(100, |_| 1_000_000, |_| 12_000, moves);
            assert_eq!(captures, 100);
            assert!(states[1..].iter().all(|&state| state == RunState::Running), "{states:?}");
        }
    }

    #[test]
    fn a_burst_is_captured_at_once_and_counts_as_running_beyond_a_suspensions_cost() {
        for (burst, state) in [(500, RunState::Unknown), (100_000, RunState::Running)] {
            let (captures, states) = run(100, |pass| if pass == 50 { burst } else { 0 }, |_| 12_000, false);
            assert!((3..=4).contains(&captures), "{captures}");
            assert_eq!(states[50], state);
            assert!(states[51..].iter().all(|&state| state == RunState::Waiting), "{states:?}");
        }
    }

    #[test]
    fn a_changed_register_is_no_proof_of_running() {
        let mut activity = Activity::default();
        assert_eq!(activity.captured(0, false, COST), RunState::Unknown);
        assert_eq!(activity.captured(12_000, true, COST), RunState::Unknown);
        assert_eq!(activity.captured(12_000 + 29_000, false, COST), RunState::Unknown);
        assert_eq!(activity.captured(41_000 + 31_000, false, COST), RunState::Running);
    }

    #[test]
    fn without_a_reference_the_state_is_unknown_and_a_capture_is_needed() {
        let mut activity = Activity::default();
        activity.captured(5, false, COST);
        activity.forget();
        assert_eq!(activity.look(5, COST), PassAction::Capture);
        assert_eq!(activity.captured(5, false, COST), RunState::Unknown);
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let mut costs: Vec<u64> = (1..=50).rev().collect();
        assert_eq!(SuspensionCost::of(&mut costs), Some(SuspensionCost { p50: 25, p95: 48 }));
        assert_eq!(SuspensionCost::of(&mut [7]), Some(SuspensionCost { p50: 7, p95: 7 }));
        assert_eq!(SuspensionCost::of(&mut []), None);
    }
}
