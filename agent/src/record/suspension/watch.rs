//! The watchdog's half: how long a suspension may stay in one phase, and what happens after that.

use core::sync::atomic::{Ordering, fence};

use stk_schema::Ticks;
use stk_schema::guard::{ASKED, ASKING, FREE, RESCUING, RESUMING, STOPPED, UNDO, WALKING};

use super::{FROZEN_MS, Resume, Suspensions};

/// How long a suspension may stay in one phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// In SuspendThread and until the context is known: the thread may merely not have been
    /// scheduled.
    pub asked: Ticks,
    /// While the thread certainly stands still.
    pub stopped: Ticks,
    /// In the walk of the system's unwinder.
    pub walking: Ticks,
}

/// Suspensions in a row whose ResumeThread must last too long until the watchdog says so. On a
/// loaded machine one may by chance.
pub(crate) const SLOW_RESUMPTIONS: u32 = 3;

/// The watchdog's action for one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rescue {
    None,
    /// Resumed a thread that did not stop in time. Its sampler keeps its slot.
    NotStopped,
    /// Did the same as [`Rescue::NotStopped`], and deposed its sampler.
    Deposed,
    /// Resumed a thread whose stack was being walked: only that walk is lost.
    WhileWalking,
    /// Resumed a thread that stood still for too long: the sampler is stuck.
    WhileStopped,
    /// Resumed a thread whose sampler has been in ResumeThread for too long, in each of the last
    /// [`SLOW_RESUMPTIONS`] suspensions.
    ResumeSlow,
    /// ResumeThread was refused to the watchdog. It tries again later.
    Refused,
}

/// The watchdog's view of one slot. It takes the time itself, so that the sampler need not read the
/// clock while a thread is suspended.
#[derive(Clone, Copy, Default)]
pub(crate) struct SlotWatchdog {
    seen: u64,
    since: Ticks,
    /// Sequence number of the last suspension whose ResumeThread lasted too long, and how many did
    /// in a row.
    slow: (u32, u32),
}

impl SlotWatchdog {
    /// Looks at a slot, and resumes a thread that has been in one phase of the same suspension for
    /// longer than `limits` allow. `spare` says whether a spare sampler can take over.
    pub(crate) fn look(
        &mut self,
        all: &Suspensions,
        slot: usize,
        now: Ticks,
        limits: &Limits,
        spare: bool,
        calls: &mut impl Resume,
    ) -> Rescue {
        let (Some(live), Some(place)) = (all.board.samplers.get(slot), all.places.get(slot)) else {
            return Rescue::None;
        };
        let word = live.word();
        if word.0 != self.seen {
            *self = SlotWatchdog { seen: word.0, since: now, ..*self };
        }
        let phase = word.phase();
        let limit = match phase {
            ASKING | ASKED => limits.asked,
            STOPPED | UNDO | RESUMING => limits.stopped,
            WALKING => limits.walking,
            _ => return Rescue::None,
        };
        if now.saturating_sub(self.since) < limit || all.frozen.load(Ordering::Relaxed) == phase {
            return Rescue::None;
        }
        let thread = place.thread.load(Ordering::Relaxed);
        // If the word has changed, the handle may belong to another suspension.
        fence(Ordering::Acquire);
        if !live.change(word, RESCUING) {
            return Rescue::None;
        }
        while all.frozen.load(Ordering::Relaxed) == RESCUING {
            calls.sleep(FROZEN_MS);
        }
        // The sampler's handle. It stays open, because the sampler does not continue in this phase.
        let before = calls.resume(thread);
        let too_early = matches!(phase, ASKING | UNDO) && matches!(before, None | Some(0));
        if before.is_none() && !too_early {
            self.since = now;
            live.change(word.with_phase(RESCUING), phase);
            return Rescue::Refused;
        }
        let asked = matches!(phase, ASKING | ASKED);
        if asked {
            place.stuck_until.store(u64::MAX, Ordering::Relaxed);
            place.stuck.store(word.tid(), Ordering::Release);
            place.missed_since.store(self.since.0.max(1), Ordering::Release);
            place.deposed.store(spare, Ordering::Release);
        }
        self.since = now;
        live.change(word.with_phase(RESCUING), if too_early { UNDO } else { FREE });
        match phase {
            _ if asked && spare => Rescue::Deposed,
            _ if asked => Rescue::NotStopped,
            STOPPED => Rescue::WhileStopped,
            WALKING => Rescue::WhileWalking,
            RESUMING => self.note_slow_resumption(word.sequence()),
            _ => Rescue::None,
        }
    }

    fn note_slow_resumption(&mut self, sequence: u32) -> Rescue {
        let (last, count) = self.slow;
        let follows = sequence == last.wrapping_add(1) & 0xff_ffff;
        self.slow = (sequence, if follows { count + 1 } else { 1 });
        if self.slow.1 >= SLOW_RESUMPTIONS { Rescue::ResumeSlow } else { Rescue::None }
    }

    /// Whether nothing has changed for `span`.
    pub(crate) fn idle_for(&self, span: Ticks, now: Ticks) -> bool {
        now.saturating_sub(self.since) >= span
    }
}
