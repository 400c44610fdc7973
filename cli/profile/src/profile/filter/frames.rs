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

impl FrameMarks {
    /// Matches each distinct function of a symbolized profile once.
    pub(super) fn new(profile: &Profile, patterns: &FramePatterns) -> FrameMarks {
        let modules = Modules::new(profile);
        let symbols = &profile.symbols;
        let mut known: HashMap<(StrId, u32, bool, Category), Marks> = HashMap::new();
        let mut names = Vec::with_capacity(symbols.named.len());
        let mut frames = Vec::with_capacity(profile.frames.keys().len());
        for (&module, id) in modules.of_frames.iter().zip((0..).map(FrameId)) {
            let category = profile.category(id);
            // Runtimes name methods with their modules, and the name for an offset has the module
            // too.
            let source = symbols.source[id.0 as usize];
            let has_module = matches!(source, NameSource::Runtime | NameSource::None);
            let mut all = Marks::empty();
            for name in symbols.names(id) {
                let marks =
                    *known.entry((name.function, module, has_module, category)).or_insert_with(|| {
                        patterns.marks(&FrameName {
                            function: symbols.strings.get(name.function),
                            has_module,
                            module: &modules.names[module as usize],
                            category,
                        })
                    });
                names.push(marks);
                all |= marks;
            }
            frames.push(all);
        }
        FrameMarks { names, frames }
    }

    /// The marks of a frame's names, innermost first.
    pub(super) fn of_names(&self, profile: &Profile, frame: FrameId) -> &[Marks] {
        let starts = &profile.symbols.starts;
        let at = frame.0 as usize;
        &self.names[starts[at] as usize..starts[at + 1] as usize]
    }

    /// By node: the marks of all frames of the stack together.
    pub(super) fn of_stacks(&self, profile: &Profile) -> Vec<Marks> {
        let mut stacks: Vec<Marks> = Vec::with_capacity(profile.tree.nodes().len());
        for node in profile.tree.nodes() {
            // A parent comes before its children.
            let above = node.parent.map_or(Marks::empty(), |parent| stacks[parent.0 as usize]);
            stacks.push(above | self.frames[node.frame.0 as usize]);
        }
        stacks
    }
}
