//! The calls that start a walk.

use crate::engine::{Known, Sink, Unwinder, run};
use crate::history::{History, Recorder};
use crate::input::{Modules, Sample, WalkOptions};
use crate::{Arch, Frame, Registers, Stop, Trust, arm64, x64, x86};

/// Walks stacks. One per worker thread: it holds the rules compiled so far.
pub struct Walker {
    options: WalkOptions,
    x64: Known<x64::X64Rule>,
    trail: Vec<x64::X64Step>,
    arm64: Known<arm64::Arm64Rule>,
    x86: Known<x86::X86Rule>,
}

impl Walker {
    /// A walker that knows no rules yet.
    pub fn new(options: WalkOptions) -> Self {
        Walker {
            options,
            x64: Known::nothing(),
            trail: Vec::new(),
            arm64: Known::nothing(),
            x86: Known::nothing(),
        }
    }

    /// Walks `sample`'s stack. `frames` is cleared and filled, innermost first; it holds at least
    /// the context frame.
    pub fn walk<M: Modules>(&mut self, modules: &M, sample: &Sample<'_>, frames: &mut Vec<Frame>) -> Stop {
        frames.clear();
        self.run(modules, sample, Trust::Context, &mut Collect(frames))
    }

    /// As [`walk`](Self::walk), but passes each frame to a function together with the registers
    /// recovered for it. Of a caller's registers only the instruction pointer, the stack pointer
    /// and the nonvolatile ones mean anything.
    pub fn walk_with_registers<M: Modules>(
        &mut self,
        modules: &M,
        sample: &Sample<'_>,
        each: impl FnMut(&Frame, &Registers),
    ) -> Stop {
        self.run_restoring(modules, sample, Trust::Context, &mut FrameCallback(each))
    }

    /// Continues a walk from registers that were found by other means than unwinding, such as a
    /// language runtime's record of where its code continues. `sample.registers` holds them;
    /// `trust` is the first frame's. Passes the frames on as
    /// [`walk_with_registers`](Self::walk_with_registers) does.
    pub fn walk_on<M: Modules>(
        &mut self,
        modules: &M,
        sample: &Sample<'_>,
        trust: Trust,
        each: impl FnMut(&Frame, &Registers),
    ) -> Stop {
        self.run_restoring(modules, &Sample { code_at_ip: None, ..*sample }, trust, &mut FrameCallback(each))
    }

    /// Calls `each` with the places in memory that a walk reads for those of these words, as bytes,
    /// that are return addresses. A walk reads each of them only when it knows the frame before; a
    /// caller that knows which words are new, the lowest first, can have them all loaded ahead.
    #[inline]
    pub fn places(&self, arch: Arch, words: &[u8], each: impl FnMut(&u64)) {
        match arch {
            Arch::X64 => self.x64.places(words, each),
            Arch::Arm64 => self.arm64.places(words, each),
            // Its words are shorter, and its stacks are walked whole each time.
            Arch::X86 => {}
        }
    }

    /// Walks a thread's next sample, but only the part of its stack that changed since the sample
    /// that `history` holds.
    ///
    /// `unchanged_from` is the lowest address from which on the stack's bytes are the same as in
    /// that sample. Pass `u64::MAX` if it is not known, or if modules were loaded or unloaded
    /// between the two samples. The walk ends early at a frame that was there before, whose stack
    /// lies above `unchanged_from` and whose callers depend on no register that has another value
    /// now. It then copies that frame's callers from `history`, which are those that a whole walk
    /// would find. [`History::frames`] holds the result. (x86 stacks are walked whole each time,
    /// because a step there may depend on any register.)
    pub fn walk_again<M: Modules>(
        &mut self,
        modules: &M,
        sample: &Sample<'_>,
        unchanged_from: u64,
        history: &mut History,
    ) -> Stop {
        let mut recorder = Recorder::new(history, sample, unchanged_from, self.options.max_frames);
        let stop = self.run(modules, sample, Trust::Context, &mut recorder);
        recorder.finish(stop)
    }

    /// As [`run`](Self::run), but with all registers restored. The other x64 unwinder restores only
    /// those that the walk needs.
    fn run_restoring<M: Modules, F: FnMut(&Frame, &Registers)>(
        &mut self,
        modules: &M,
        sample: &Sample<'_>,
        trust: Trust,
        sink: &mut FrameCallback<F>,
    ) -> Stop {
        match sample.registers {
            Registers::X64(r) => {
                let (options, state) = (&self.options, &mut { *r });
                run::<x64::X64Machine, M, _>(options, &mut self.x64, modules, sample, state, sink, trust)
            }
            _ => self.run(modules, sample, trust, sink),
        }
    }

    fn run<M, S>(&mut self, modules: &M, sample: &Sample<'_>, trust: Trust, sink: &mut S) -> Stop
    where
        M: Modules,
        S: for<'a> Sink<x64::X64LazyMachine<'a>> + Sink<arm64::Arm64Machine> + Sink<x86::X86Machine>,
    {
        let options = &self.options;
        match sample.registers {
            Registers::X64(r) => {
                let state = &mut x64::X64State::new(r, &mut self.trail);
                run::<x64::X64LazyMachine<'_>, M, _>(
                    options,
                    &mut self.x64,
                    modules,
                    sample,
                    state,
                    sink,
                    trust,
                )
            }
            Registers::Arm64(r) => run::<arm64::Arm64Machine, M, _>(
                options,
                &mut self.arm64,
                modules,
                sample,
                &mut { *r },
                sink,
                trust,
            ),
            Registers::X86(r) => {
                let state = &mut x86::X86State::new(*r);
                run::<x86::X86Machine, M, _>(options, &mut self.x86, modules, sample, state, sink, trust)
            }
        }
    }
}

/// Collects the frames only.
struct Collect<'a>(&'a mut Vec<Frame>);

impl<U: Unwinder> Sink<U> for Collect<'_> {
    #[inline(always)]
    fn frame(&mut self, frame: Frame, _: &U::State) {
        self.0.push(frame);
    }
}

/// Passes frames and registers to a function.
struct FrameCallback<F>(F);

impl<U: Unwinder, F: FnMut(&Frame, &Registers)> Sink<U> for FrameCallback<F> {
    fn frame(&mut self, frame: Frame, state: &U::State) {
        (self.0)(&frame, &U::registers(state));
    }
}

#[cfg(test)]
mod tests;
