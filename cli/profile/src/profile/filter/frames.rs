//! What the patterns say of all frames and stacks of a profile.

use super::{FrameName, FramePatterns, Marks};
use crate::profile::functions::Modules;
use crate::profile::{Category, FrameId, NameSource, Profile, StrId};
use std::collections::HashMap;

/// The marks of all frames.
pub(super) struct FrameMarks {
    /// Of each name, parallel to `FrameSymbols::named`.
    names: Vec<Marks>,
    /// Of each frame: those of its names together.
    frames: Vec<Marks>,
}

/// What `of` says of each name of a symbolized profile, parallel to `FrameSymbols::named`. Each
/// distinct function is looked at once.
pub(super) fn for_names<T: Copy>(profile: &Profile, of: impl Fn(&FrameName<'_>) -> T) -> Vec<T> {
    let modules = Modules::new(profile);
    let symbols = &profile.symbols;
    let mut known: HashMap<(StrId, u32, bool, Category), T> = HashMap::new();
    let mut found = Vec::with_capacity(symbols.named.len());
    for (&module, id) in modules.of_frames.iter().zip((0..).map(FrameId)) {
        let category = profile.category(id);
        // Runtimes name methods with their modules, and the name for an offset has the module too.
        let source = symbols.source[id.0 as usize];
        let has_module = matches!(source, NameSource::Runtime | NameSource::None);
        for name in symbols.names(id) {
            let said = known.entry((name.function, module, has_module, category)).or_insert_with(|| {
                of(&FrameName {
                    function: symbols.strings.get(name.function),
                    has_module,
                    module: &modules.names[module as usize],
                    category,
                })
            });
            found.push(*said);
        }
    }
    found
}

/// Of a list parallel to `FrameSymbols::named`, the part of a frame's names, innermost first.
pub(super) fn of_frame<'a, T>(list: &'a [T], profile: &Profile, frame: FrameId) -> &'a [T] {
    let starts = &profile.symbols.starts;
    let at = frame.0 as usize;
    &list[starts[at] as usize..starts[at + 1] as usize]
}

impl FrameMarks {
    pub(super) fn new(profile: &Profile, patterns: &FramePatterns) -> FrameMarks {
        let names = for_names(profile, |name| patterns.marks(name));
        let all = |frame| of_frame(&names, profile, FrameId(frame)).iter().copied().collect::<Marks>();
        let frames = (0..profile.frames.keys().len() as u32).map(all).collect();
        FrameMarks { names, frames }
    }

    /// The marks of a frame's names, innermost first.
    pub(super) fn of_names(&self, profile: &Profile, frame: FrameId) -> &[Marks] {
        of_frame(&self.names, profile, frame)
    }

    /// By node: the marks of all frames of the stack together.
    pub(super) fn of_stacks(&self, profile: &Profile) -> Vec<Marks> {
        let mut stacks: Vec<Marks> = Vec::with_capacity(profile.tree.nodes().len());
        for node in profile.tree.nodes() {
            // A parent comes before its children.
            let above = node.parent().map_or(Marks::empty(), |parent| stacks[parent.0 as usize]);
            stacks.push(above | self.frames[node.frame.0 as usize]);
        }
        stacks
    }
}
