//! Walks only the part of a stack that changed since the thread's last sample.

use crate::engine::{BaseValue, Facts, Sink, Unwinder};
use crate::input::Sample;
use crate::{Frame, Stop};

/// A thread's last walk: its frames and what they depended on.
#[derive(Debug, Default, Clone)]
pub struct History {
    /// The outermost first, and so the marks: what the next walk shares stays in place.
    frames: Vec<Frame>,
    marks: Vec<Mark>,
    /// Frames of the current walk, until it reaches a frame of the last one; the innermost first.
    fresh: Vec<Frame>,
    fresh_marks: Vec<Mark>,
    stop: Option<Stop>,
    reused: usize,
    /// The upper end of the captured stack, its base, and whether the capture was cut.
    extent: (u64, Option<u64>, bool),
}

/// The values on which the callers of a frame depend.
#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The frame's own step.
    step: Facts,
    /// The registers that it or any later step depends on.
    needs: u8,
    /// The base register; see [`Unwinder::base`].
    base: BaseValue,
}

impl History {
    /// The last walk's frames, outermost first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Why the last walk ended; `None` before the first one.
    pub fn stop(&self) -> Option<Stop> {
        self.stop
    }

    /// How many of the outermost frames were copied from the walk before. They are the same frames.
    pub fn reused(&self) -> usize {
        self.reused
    }

    /// Forgets everything, for another thread.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.marks.clear();
        self.stop = None;
        self.reused = 0;
    }
}

/// Records a walk into a history, and ends it at the frame from which the last walk's frames are
/// still valid.
pub(crate) struct Recorder<'a> {
    history: &'a mut History,
    unchanged_from: u64,
    max_frames: usize,
    /// The first of the last walk's frames that this walk may still reach.
    next: usize,
    /// How many of the last walk's innermost frames are replaced. Set when the walk reaches the
    /// last of them.
    met: Option<usize>,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(
        history: &'a mut History,
        sample: &Sample<'_>,
        unchanged_from: u64,
        max_frames: usize,
    ) -> Self {
        history.fresh.clear();
        history.fresh_marks.clear();
        let end = sample.stack_start.saturating_add(sample.stack.len() as u64);
        let extent = (end, sample.stack_base, sample.truncated);
        // A walk that the depth limit ended would continue now. A walk of another extent may have
        // ended because of its extent.
        let before = std::mem::replace(&mut history.extent, extent);
        let is_usable = extent == before && history.stop.is_some_and(|stop| stop != Stop::DepthLimit);
        // The innermost frame of the last walk was not reached by a return.
        let next = if is_usable { 1 } else { usize::MAX };
        Recorder { history, unchanged_from, max_frames, next, met: None }
    }

    /// Replaces the innermost frames of the last walk by the new ones.
    pub(crate) fn finish(self, stop: Stop) -> Stop {
        let History { frames, marks, fresh, fresh_marks, .. } = self.history;
        let reused = self.met.map_or(0, |met| frames.len() - met);
        frames.truncate(reused);
        frames.extend(fresh.iter().rev());
        marks.truncate(reused);
        let mut needs = marks.last().map_or(0, |mark| mark.needs);
        marks.extend(fresh_marks.iter().rev().map(|mark| {
            needs = mark.step.uses | (needs & !mark.step.restores);
            Mark { needs, ..*mark }
        }));
        self.history.stop = Some(stop);
        self.history.reused = reused;
        stop
    }
}

impl<U: Unwinder> Sink<U> for Recorder<'_> {
    const KNOWS: bool = true;

    fn frame(&mut self, frame: Frame, state: &U::State) {
        self.history.fresh.push(frame);
        self.history.fresh_marks.push(Mark { step: Facts::NONE, needs: 0, base: U::base(state) });
    }

    fn step(&mut self, facts: Facts) {
        if let Some(mark) = self.history.fresh_marks.last_mut() {
            mark.step = facts;
        }
    }

    #[inline(always)]
    fn known(&mut self, frame: &Frame, state: &U::State) -> Option<Stop> {
        // Most frames of a walk are in the part that changed.
        if frame.sp < self.unchanged_from {
            return None;
        }
        self.known_above::<U>(frame, state)
    }
}

impl Recorder<'_> {
    /// [`Sink::known`] of a frame whose stack is unchanged.
    fn known_above<U: Unwinder>(&mut self, frame: &Frame, state: &U::State) -> Option<Stop> {
        let History { frames: old, marks, fresh, stop, .. } = &*self.history;
        // Counted from the innermost.
        let at = |next: usize| old.len().checked_sub(next)?.checked_sub(1);
        while at(self.next).is_some_and(|at| old[at].sp < frame.sp) {
            self.next += 1;
        }
        let met = at(self.next).filter(|&at| old[at] == *frame)?;
        let mark = &marks[met];
        // Callers that depend on any other register than the usual one are walked again.
        let same_base = match mark.base {
            BaseValue::Known(_) => true,
            // The word has the same value if the stack from there on is unchanged.
            BaseValue::At(slot) => slot >= self.unchanged_from,
        };
        let same_registers =
            mark.needs == 0 || (mark.needs == U::BASE && same_base && mark.base == U::base(state));
        let depth = fresh.len() + old.len() - self.next;
        if !same_registers || depth >= self.max_frames {
            return None;
        }
        self.met = Some(self.next);
        *stop
    }
}
