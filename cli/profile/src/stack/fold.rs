//! Which frames are left out of a stack: those of one side of a mixed stack, or a language
//! runtime's own.

use super::FrameKind;

/// Which frames of mixed stacks are shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FrameChoice {
    /// All of them
    #[default]
    All,
    /// All but those of managed methods and of the stubs between them
    Native,
    /// Only those of managed methods and of the stubs between them
    Managed,
}

/// Which frames to leave out.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FoldOptions {
    /// The frames to show.
    pub frames: FrameChoice,
    /// Whether to leave out stubs, and to join frames of a runtime that follow each other.
    pub hide_runtime: bool,
}

/// State of folding one stack, from the root to the leaf.
#[derive(Clone, Copy, Default, Debug)]
pub struct FoldState {
    /// Whether the nearest frame that was not [`FoldOutcome::Left`] is one of a runtime's.
    in_runtime: bool,
}

/// How a frame is shown when a stack is folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoldOutcome {
    /// It is shown.
    Shown,
    /// It is left out.
    Left,
    /// It is the first of a runtime's frames that follow each other: one frame stands for all of
    /// them.
    Begins,
}

impl FoldOptions {
    /// Whether nothing is left out.
    pub fn is_all(&self) -> bool {
        *self == FoldOptions::default()
    }

    /// Decides how the next frame, which is of this kind, is shown.
    pub fn next(&self, state: &mut FoldState, kind: FrameKind) -> FoldOutcome {
        let folded = self.of(kind, state.in_runtime);
        if folded != FoldOutcome::Left {
            state.in_runtime = folded == FoldOutcome::Begins;
        }
        folded
    }

    fn of(&self, kind: FrameKind, in_runtime: bool) -> FoldOutcome {
        let managed = matches!(kind, FrameKind::Managed | FrameKind::Stub);
        let chosen = match self.frames {
            FrameChoice::All => true,
            FrameChoice::Native => !managed,
            FrameChoice::Managed => managed,
        };
        match kind {
            _ if !chosen => FoldOutcome::Left,
            FrameKind::Stub if self.hide_runtime => FoldOutcome::Left,
            FrameKind::Runtime if self.hide_runtime && in_runtime => FoldOutcome::Left,
            FrameKind::Runtime if self.hide_runtime => FoldOutcome::Begins,
            _ => FoldOutcome::Shown,
        }
    }
}

/// The name of the frame that replaces a runtime's.
pub fn folded_name(module: &str) -> String {
    format!("[{module}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [FrameKind; 5] =
        [FrameKind::Native, FrameKind::Managed, FrameKind::Stub, FrameKind::Runtime, FrameKind::Unknown];

    #[test]
    fn each_choice_keeps_its_kinds() {
        let kept = |frames| {
            let options = FoldOptions { frames, hide_runtime: false };
            KINDS.map(|kind| options.next(&mut FoldState::default(), kind) == FoldOutcome::Shown)
        };
        assert_eq!(kept(FrameChoice::All), [true; 5]);
        assert_eq!(kept(FrameChoice::Native), [true, false, false, true, true]);
        assert_eq!(kept(FrameChoice::Managed), [false, true, true, false, false]);
    }

    #[test]
    fn frames_of_a_runtime_that_follow_each_other_become_one() {
        let options = FoldOptions { frames: FrameChoice::All, hide_runtime: true };
        let stack = [
            FrameKind::Native,
            FrameKind::Runtime,
            FrameKind::Runtime,
            FrameKind::Managed,
            FrameKind::Stub,
            FrameKind::Runtime,
            FrameKind::Stub,
            FrameKind::Runtime,
            FrameKind::Native,
            FrameKind::Runtime,
        ];
        let mut state = FoldState::default();
        let folded = stack.map(|kind| options.next(&mut state, kind));
        use FoldOutcome::{Begins, Left, Shown};
        assert_eq!(folded, [Shown, Begins, Left, Shown, Left, Begins, Left, Left, Shown, Begins]);
    }
}
