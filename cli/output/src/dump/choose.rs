//! Which stacks are printed, by their states and frames, and which of their frames: the options
//! that `stk stats` and `stk convert` have, with the same rules.

use super::stack::DumpStack;
use stk_base::model::CodeOwner;
use stk_base::text::counted;
use stk_profile::profile::{Category, CutState, FrameName, Marks, Selection, is_kept};
use stk_profile::trace::Trace;

/// Chooses stacks that are named.
pub struct StackChoice {
    selection: Selection,
    /// Stacks that came, and those of them that were taken.
    pub all: u64,
    pub taken: u64,
    /// Stacks that fit, except that they lack a `--root` frame.
    without_root: u64,
}

impl StackChoice {
    /// The threads are chosen before stacks are walked.
    pub(super) fn new(selection: Selection) -> StackChoice {
        StackChoice { selection, all: 0, taken: 0, without_root: 0 }
    }

    /// Whether a stack is printed. If so, hides the frames that are not wanted.
    pub(super) fn takes(&mut self, trace: &Trace<'_>, stack: &mut DumpStack) -> bool {
        self.all += 1;
        let patterns = &self.selection.frames;
        let marks: Vec<Vec<Marks>> = stack.frames.iter().map(|_| Vec::new()).collect();
        let marks = match patterns.pick_samples() || patterns.leave_out_frames() {
            true => self.marks(trace, stack),
            false => marks,
        };
        let together = marks.iter().flatten().fold(Marks::empty(), |all, marks| all | *marks);
        let states = &self.selection.states;
        let [others @ .., root] = patterns.fits(together);
        let fits =
            (states.is_empty() || states.contains(&stack.activity.kind())) && others.iter().all(|fits| *fits);
        self.without_root += u64::from(fits && !root);
        if !fits || !root {
            return false;
        }
        self.taken += 1;
        if patterns.leave_out_frames() {
            leave_out(stack, &marks, CutState::new(patterns));
        }
        true
    }

    /// What the patterns say of each frame's names.
    fn marks(&self, trace: &Trace<'_>, stack: &DumpStack) -> Vec<Vec<Marks>> {
        let marks_of = |walked: &super::stack::DumpFrame| {
            let path = match walked.frame.module.map(CodeOwner::of) {
                Some(CodeOwner::Module(module)) => {
                    let image = trace.timeline.modules[module as usize].image;
                    trace.timeline.images[image.0 as usize].image.path.as_str()
                }
                Some(CodeOwner::Code(_)) | None => "",
            };
            let outermost = walked.names.last().map_or("", |name| name.function.as_str());
            let category = Category::of(walked.kind, &walked.module, path, outermost);
            let marks = walked.names.iter().map(|name| {
                self.selection.frames.marks(&FrameName {
                    function: &name.function,
                    has_module: name.has_module,
                    module: &walked.module,
                    category,
                })
            });
            marks.collect()
        };
        stack.frames.iter().map(marks_of).collect()
    }

    /// How many stacks were left out, if options choose among stacks: a note; a warning if none is
    /// left.
    pub fn note(&self, source: &str) -> Option<String> {
        if self.taken == self.all {
            return None;
        }
        let root = match self.without_root {
            0 => String::new(),
            n => format!("; {} left out for lack of a --root frame", counted(n, "stack")),
        };
        let all = counted(self.all, "stack");
        Some(if self.taken == 0 {
            format!("warning: {source}: none of {all} is one that the options choose{root}")
        } else {
            format!("{source}: selection: {} of {all}{root}", self.taken)
        })
    }
}

/// Hides what is left out of a stack, from its outermost frame inwards.
fn leave_out(stack: &mut DumpStack, marks: &[Vec<Marks>], mut cut: CutState) {
    for (walked, marks) in stack.frames.iter_mut().zip(marks).rev() {
        let inside = cut.next(marks);
        if !(0..inside).any(|i| is_kept(marks, inside, i)) {
            walked.hidden = true;
            continue;
        }
        let mut at = 0;
        walked.names.retain(|_| {
            at += 1;
            is_kept(marks, inside, at - 1)
        });
    }
}
