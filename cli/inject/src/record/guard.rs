//! Decides when a guard process resumes a thread that a dead recorder holds.
//!
//! [`stk_schema::guard`] describes the board that it reads. When a process calls ExitProcess, the
//! system terminates all threads except the calling one. If the sampler had suspended that thread,
//! no code in the process can resume it, and the process hangs.

use stk_schema::bytes::{u32_in, u64_in};
use stk_schema::guard::{FREE, GUARD_VERSION, GuardBoard, REFUSED, SAMPLERS, SamplerSlot, SuspensionWord};

/// Milliseconds after the end of a sampler and the watchdog before the guard acts. A process that
/// is not held usually ends in less time. If it does not, resuming its thread does no harm.
pub(crate) const GRACE_MS: u64 = 20;

/// Whether one of the recorder's threads is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ThreadLife {
    /// There is no such thread, or it cannot be watched.
    #[default]
    Absent,
    Alive,
    Dead,
}

/// The recorder's threads at one moment, in a process that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RecorderThreads {
    pub watchdog: ThreadLife,
    /// The samplers, in the board's order.
    pub samplers: [ThreadLife; SAMPLERS],
}

/// For each slot, since when its sampler has been dead and whether the guard has acted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Guard {
    slots: [Slot; SAMPLERS],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Slot {
    /// The watchdog, the sampler or both are alive, and resume the thread themselves.
    #[default]
    Watched,
    /// Both were found dead at this time, in milliseconds.
    Dead(u64),
    /// Its word was read. It is not read again.
    Done,
}

impl Guard {
    /// Takes the observation at `now_ms` (of any monotonic clock). Returns the slots whose words
    /// the caller must read and obey now. Each slot is returned once.
    pub(crate) fn look(&mut self, now_ms: u64, look: &RecorderThreads) -> Vec<usize> {
        let mut due = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let both_dead = look.watchdog == ThreadLife::Dead && look.samplers[index] == ThreadLife::Dead;
            *slot = match *slot {
                Slot::Done => Slot::Done,
                _ if !both_dead => Slot::Watched,
                Slot::Watched => Slot::Dead(now_ms),
                Slot::Dead(since) if now_ms.saturating_sub(since) >= GRACE_MS => {
                    due.push(index);
                    Slot::Done
                }
                dead => dead,
            };
        }
        due
    }
}

/// The thread that a dead sampler held or was about to hold, by its word. The guard must resume it.
/// If the thread is not suspended, resuming it changes nothing.
pub(crate) fn thread_to_resume(word: u64) -> Option<u32> {
    let word = SuspensionWord(word);
    (word.phase() != FREE && word.tid() != 0).then_some(word.tid())
}

/// The thread that the recorder was refused to resume, by a sampler's word. The guard must resume
/// it and then free the word.
pub(crate) fn refused_thread(word: u64) -> Option<u32> {
    let word = SuspensionWord(word);
    (word.phase() == REFUSED && word.tid() != 0).then_some(word.tid())
}

/// The word of the same suspension, after the thread was resumed.
pub(crate) fn freed(word: u64) -> u64 {
    SuspensionWord(word).with_phase(FREE).0
}

/// The board in bytes read from another process; `None` if this guard does not know its form.
pub(crate) fn board(bytes: &[u8; size_of::<GuardBoard>()]) -> Option<GuardBoard> {
    let slot = |index: usize| {
        let at = 16 + 16 * index;
        SamplerSlot {
            sampler: u32_in(bytes, at),
            reserved: u32_in(bytes, at + 4),
            word: u64_in(bytes, at + 8),
        }
    };
    let board = GuardBoard {
        size: u32_in(bytes, 0),
        version: u32_in(bytes, 4),
        watchdog: u32_in(bytes, 8),
        reserved: u32_in(bytes, 12),
        samplers: std::array::from_fn(slot),
    };
    let fits = board.size as usize >= size_of::<GuardBoard>() && board.version == GUARD_VERSION;
    fits.then_some(board)
}

/// Where the word of slot `index` is in the board.
pub(crate) fn word_offset(index: usize) -> u64 {
    (16 + 16 * index + 8) as u64
}

/// The word of slot `index`, if it is still that of the sampler with this thread id, or if the
/// samplers were taken off the board.
pub(crate) fn word_of(bytes: &[u8; size_of::<GuardBoard>()], index: usize, sampler: u32) -> Option<u64> {
    let slot = board(bytes)?.samplers.get(index).copied()?;
    (slot.sampler == sampler || slot.sampler == 0).then_some(slot.word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use stk_schema::guard::{ASKED, ASKING, RESCUING, STOPPED, UNDO, WALKING};

    const fn look(watchdog: ThreadLife, first: ThreadLife) -> RecorderThreads {
        RecorderThreads { watchdog, samplers: [first, ThreadLife::Absent, ThreadLife::Absent] }
    }

    const NONE: [usize; 0] = [];
    const BOTH_DEAD: RecorderThreads = look(ThreadLife::Dead, ThreadLife::Dead);

    #[test]
    fn a_slot_is_due_once_20_ms_after_sampler_and_watchdog_were_found_dead() {
        let mut guard = Guard::default();
        assert_eq!(guard.look(1_000, &BOTH_DEAD), NONE);
        assert_eq!(guard.look(1_019, &BOTH_DEAD), NONE);
        assert_eq!(guard.look(1_020, &BOTH_DEAD), [0]);
        for now in [1_021, 1_040, 5_000] {
            assert_eq!(guard.look(now, &BOTH_DEAD), NONE, "a thread is resumed once");
        }
    }

    #[test]
    fn as_long_as_one_of_the_two_lives_nothing_is_due() {
        let others = [
            look(ThreadLife::Alive, ThreadLife::Alive),
            look(ThreadLife::Alive, ThreadLife::Dead),
            look(ThreadLife::Dead, ThreadLife::Alive),
            look(ThreadLife::Absent, ThreadLife::Dead),
            look(ThreadLife::Dead, ThreadLife::Absent),
            RecorderThreads::default(),
        ];
        for other in others {
            let mut guard = Guard::default();
            for now in 0..100 {
                assert_eq!(guard.look(now, &other), NONE, "{other:?}");
            }
        }
    }

    #[test]
    fn each_dead_sampler_is_judged_by_its_own_slot() {
        let mut guard = Guard::default();
        // A stuck sampler has ended and a spare one continues. Then the spare one and the watchdog
        // die.
        let mut look = RecorderThreads {
            watchdog: ThreadLife::Alive,
            samplers: [ThreadLife::Dead, ThreadLife::Alive, ThreadLife::Absent],
        };
        assert_eq!(guard.look(0, &look), NONE);
        look.watchdog = ThreadLife::Dead;
        assert_eq!(guard.look(50, &look), NONE);
        look.samplers[1] = ThreadLife::Dead;
        assert_eq!(guard.look(60, &look), NONE);
        assert_eq!(guard.look(70, &look), [0]);
        assert_eq!(guard.look(80, &look), [1]);
        assert_eq!(guard.look(90, &look), NONE);
    }

    #[test]
    fn a_thread_is_resumed_in_every_phase_but_free() {
        for phase in [ASKING, ASKED, STOPPED, RESCUING, UNDO, WALKING] {
            assert_eq!(thread_to_resume(SuspensionWord::new(44, 9, phase).0), Some(44), "phase {phase}");
            assert_eq!(thread_to_resume(SuspensionWord::new(0, 9, phase).0), None, "phase {phase}");
        }
        assert_eq!(thread_to_resume(SuspensionWord::new(44, 9, FREE).0), None);
        assert_eq!(thread_to_resume(0), None);
    }

    #[test]
    fn only_a_refusal_asks_a_guard_whose_recorder_lives() {
        let word = SuspensionWord::new(44, 9, REFUSED).0;
        assert_eq!(refused_thread(word), Some(44));
        assert_eq!(refused_thread(freed(word)), None);
        assert_eq!(SuspensionWord(freed(word)), SuspensionWord::new(44, 9, FREE));
        for phase in [FREE, ASKING, ASKED, STOPPED, RESCUING, UNDO, WALKING] {
            assert_eq!(refused_thread(SuspensionWord::new(44, 9, phase).0), None, "phase {phase}");
        }
    }

    #[test]
    fn a_board_is_read_as_the_schema_lays_it_out() {
        let mut bytes = [0; size_of::<GuardBoard>()];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(offset_of!(GuardBoard, size), &(size_of::<GuardBoard>() as u32).to_le_bytes());
        put(offset_of!(GuardBoard, version), &GUARD_VERSION.to_le_bytes());
        put(offset_of!(GuardBoard, watchdog), &7u32.to_le_bytes());
        let second = offset_of!(GuardBoard, samplers) + size_of::<SamplerSlot>();
        put(second + offset_of!(SamplerSlot, sampler), &8u32.to_le_bytes());
        put(second + offset_of!(SamplerSlot, word), &0x1234_5678_9abc_def0u64.to_le_bytes());
        let read = board(&bytes).expect("a board");
        assert_eq!((read.watchdog, read.samplers[0].sampler, read.samplers[1].sampler), (7, 0, 8));
        assert_eq!(word_offset(1), (second + offset_of!(SamplerSlot, word)) as u64);
        assert_eq!(word_of(&bytes, 1, 8), Some(0x1234_5678_9abc_def0));
        assert_eq!(word_of(&bytes, 1, 9), None, "another recording's sampler");
        assert_eq!(word_of(&bytes, 3, 0), None, "no such slot");
        bytes[4] = 99;
        assert!(board(&bytes).is_none(), "a version that this guard does not know");
        assert!(board(&[0; size_of::<GuardBoard>()]).is_none(), "no board at all");
    }
}
