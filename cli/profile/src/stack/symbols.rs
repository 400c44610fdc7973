//! Names and facts of frames: columns parallel to a table of frames, and their texts.

use super::FrameId;
use hashbrown::HashMap;
use std::sync::Arc;

/// Index of a text in [`Strings`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct StrId(pub u32);

/// A name of a frame: the function itself or one inlined into it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NamedFrame {
    /// Function name as displayed; never empty (`module.dll!fn_1200` or `module.dll+0x1234`
    /// without a name).
    pub function: StrId,
    /// Source file; `None` if unknown.
    pub file: Option<StrId>,
    /// Line of the code in `file`; `None` if no line row covers it.
    pub line: Option<u32>,
    /// Whether it was inlined into the next frame towards the root.
    pub inline: bool,
}

/// The kind of code that a frame is in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub enum FrameKind {
    /// Compiled ahead of time, part of an image.
    #[default]
    Native,
    /// A method of a language runtime, whether it was compiled at run time or ahead of it.
    Managed,
    /// Code that a language runtime made for itself at run time.
    Stub,
    /// Native code of a language runtime.
    Runtime,
    /// Made at run time, and no language runtime reported what it is.
    Dynamic,
    /// In no image, and not known to be made at run time.
    Unknown,
    /// No code: it stands for what is not known, such as why there is no stack.
    Placeholder,
}

impl FrameKind {
    /// Stable short name, for outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            FrameKind::Native => "native",
            FrameKind::Managed => "managed",
            FrameKind::Stub => "stub",
            FrameKind::Runtime => "runtime",
            FrameKind::Dynamic => "dynamic",
            FrameKind::Unknown => "unknown",
            FrameKind::Placeholder => "placeholder",
        }
    }
}

/// Facts about a frame besides its names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FrameFacts {
    /// The kind of code that it is in.
    pub kind: FrameKind,
    /// How far a managed method's code is optimised, as its runtime calls it; empty if unknown.
    pub tier: &'static str,
    /// File name of the managed module that its method belongs to.
    pub module: Option<StrId>,
    /// Its place in a managed method, if the runtime reported that.
    pub method: Option<MethodPlace>,
    /// Bytes from the beginning of the function that holds the address; `None` if unknown.
    pub displacement: Option<u32>,
}

/// A place in a managed method that is the same in every process with this build of its module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MethodPlace {
    /// GUID of the module's build: that of its portable PDB, or for a runtime's core library that
    /// of the runtime's PDB.
    pub module: [u8; 16],
    /// Metadata token of the method.
    pub token: u32,
    /// Offset in its IL, or below 0 for code without IL; `None` if the runtime gave no map.
    pub il_offset: Option<i32>,
}

/// Where a frame's name came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NameSource {
    Pdb,
    /// DWARF or COFF symbols.
    Dwarf,
    /// Nearest export.
    Export,
    /// The language runtime that made the code.
    Runtime,
    /// No symbol: module and offset, or a bare address.
    None,
}

impl NameSource {
    /// Stable short name, for outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            NameSource::Pdb => "pdb",
            NameSource::Dwarf => "dwarf",
            NameSource::Export => "export",
            NameSource::Runtime => "runtime",
            NameSource::None => "none",
        }
    }

    /// Whether the name belongs to the function itself, not to something near it.
    pub fn is_certain(self) -> bool {
        matches!(self, NameSource::Pdb | NameSource::Dwarf | NameSource::Runtime)
    }
}

/// Names of all frames, parallel to [`FrameTable`](super::FrameTable).
#[derive(Clone, Default, Debug)]
pub struct FrameSymbols {
    pub strings: Strings,
    /// Names of frame `i`, innermost first: `named[starts[i]..starts[i + 1]]`.
    pub starts: Vec<u32>,
    pub named: Vec<NamedFrame>,
    /// Source of each frame's name.
    pub source: Vec<NameSource>,
    /// Per frame: why there is no (better) name, or no line of a managed method; index into
    /// `strings`.
    pub reason: Vec<Option<StrId>>,
    /// Further facts of each frame; empty if there are none.
    pub facts: Vec<FrameFacts>,
    /// For frames whose outermost function shares its code with others (identical-code folding):
    /// the names of the others.
    pub aliases: HashMap<FrameId, Box<[StrId]>>,
}

impl FrameSymbols {
    /// Names of a frame, innermost first; never empty.
    pub fn names(&self, frame: FrameId) -> &[NamedFrame] {
        let i = frame.0 as usize;
        &self.named[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// Names of further functions whose code is the same as that of the frame's outermost function.
    /// The trace does not show which of them ran.
    pub fn aliases(&self, frame: FrameId) -> impl ExactSizeIterator<Item = &str> {
        self.aliases.get(&frame).map_or(&[][..], |ids| ids).iter().map(|&id| self.strings.get(id))
    }
}

/// Interned texts.
#[derive(Clone, Default, Debug)]
pub struct Strings {
    texts: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, StrId>,
}

impl Strings {
    /// The id of a text, new or known.
    pub fn intern(&mut self, text: &str) -> StrId {
        if let Some(&id) = self.ids.get(text) {
            return id;
        }
        let id = StrId(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.ids.insert(text, id);
        id
    }

    /// Whether it has a text.
    pub fn holds(&self, text: &str) -> bool {
        self.ids.contains_key(text)
    }

    /// The text of an id from this table.
    pub fn get(&self, id: StrId) -> &str {
        &self.texts[id.0 as usize]
    }
}
