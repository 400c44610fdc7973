//! The tables that all threads share.

use super::super::sink::Sink;
use super::super::strings::Strings;
use super::super::unfold::{EMPTY, StackOrigin, incomplete, wait_root};
use super::super::{OutputError, json, path_of};
use std::collections::HashMap;
use stk_base::model::{Image, ImageId};
use stk_profile::profile::{
    Category, FrameId, FrameKind, Functions, NodeId, Placement, Profile, StopId, Wait, Weight,
};
use stk_schema::Arch;

/// Names and colours of the categories. The viewer wants a grey one, for what is in no other.
pub(super) const CATEGORIES: [(&str, &str); 6] = [
    ("Other", "grey"),
    ("User", "yellow"),
    ("System", "orange"),
    ("Managed", "green"),
    ("Runtime", "purple"),
    ("Waiting", "transparent"),
];
const OTHER: u32 = 0;
const USER: u32 = 1;
const SYSTEM: u32 = 2;
const MANAGED: u32 = 3;
const RUNTIME: u32 = 4;
const WAITING: u32 = 5;

/// Type of a resource that is a library.
const LIBRARY: u64 = 1;

/// A row of the frame table.
#[derive(Clone)]
struct FrameRow {
    /// An index in the function table.
    func: u32,
    /// RVA, inside the call instruction for a return address; `None` = in no image.
    address: Option<u32>,
    inline_depth: u32,
    category: u32,
    native_symbol: Option<u32>,
    line: Option<u32>,
}

/// The function of a library that holds a frame.
struct NativeSymbol {
    image: ImageId,
    /// RVA of its beginning.
    start: u32,
    name: u64,
}

/// The tables in the making.
pub(super) struct Tables {
    pub strings: Strings,
    functions: Functions,
    /// The texts of functions beyond those of code: why stacks are incomplete, what threads wait
    /// for.
    roots: Vec<String>,
    frames: Vec<FrameRow>,
    /// By frame of the profile, the row of its outermost function; then the next row.
    starts: Vec<u32>,
    stops: Vec<Option<u32>>,
    waits: Vec<u32>,
    /// The frame of a stack that has no other.
    empty: u32,
    symbols: Vec<NativeSymbol>,
    /// By function, the first image with code of it.
    images: Vec<Option<ImageId>>,
    /// By the row of a frame that runs, the row of the same frame for stacks that wait.
    waiting: HashMap<u32, u32>,
    /// Prefix and frame of each stack.
    stacks: Vec<(Option<u32>, u32)>,
    calls: HashMap<(Option<u32>, u32), u32>,
    /// By a part of a stack without its innermost frames.
    known: HashMap<(NodeId, Option<StopId>, Option<Wait>), u32>,
    leaves: HashMap<(StackOrigin, bool), u32>,
}

impl Tables {
    pub(super) fn new(profile: &Profile, by_line: bool, weight: Weight) -> Tables {
        let functions = Functions::new(profile, by_line);
        let mut tables = Tables {
            strings: Strings::default(),
            images: vec![None; functions.list().len()],
            functions,
            roots: Vec::new(),
            frames: Vec::new(),
            starts: Vec::new(),
            stops: Vec::new(),
            waits: Vec::new(),
            empty: 0,
            symbols: Vec::new(),
            waiting: HashMap::new(),
            stacks: Vec::new(),
            calls: HashMap::new(),
            known: HashMap::new(),
            leaves: HashMap::new(),
        };
        tables.add_frames(profile);
        tables.empty = tables.root(EMPTY.to_owned());
        tables.stops =
            profile.stops.iter().map(|stop| incomplete(stop).map(|text| tables.root(text))).collect();
        if weight == Weight::Waiting {
            tables.waits = Wait::all().into_iter().map(|wait| tables.root(wait_root(wait))).collect();
        }
        tables
    }

    fn add_frames(&mut self, profile: &Profile) {
        let mut symbols: HashMap<(ImageId, u32), u32> = HashMap::new();
        for (frame, key) in (0..).map(FrameId).zip(profile.frames.keys()) {
            self.starts.push(self.frames.len() as u32);
            let functions = self.functions.of(frame);
            let (mut address, mut native_symbol) = (None, None);
            if let Placement::Image(image, rva) = key.place {
                address = Some(if key.exact { rva } else { rva.saturating_sub(1) });
                for function in functions {
                    self.images[function.0 as usize].get_or_insert(image);
                }
                let displacement =
                    profile.symbols.facts.get(frame.0 as usize).and_then(|facts| facts.displacement);
                let start = displacement.and_then(|displacement| rva.checked_sub(displacement));
                native_symbol = start.zip(functions.first()).map(|(start, function)| {
                    let name = &self.functions.list()[function.0 as usize].name;
                    *symbols.entry((image, start)).or_insert_with(|| {
                        let name = self.strings.id(name);
                        self.symbols.push(NativeSymbol { image, start, name });
                        self.symbols.len() as u32 - 1
                    })
                });
            }
            let category = category(profile, frame);
            let lines = profile.symbols.names(frame).iter().rev().map(|name| name.line);
            for ((inline_depth, function), line) in (0..).zip(functions).zip(lines) {
                let func = function.0;
                self.frames.push(FrameRow { func, address, inline_depth, category, native_symbol, line });
            }
        }
        self.starts.push(self.frames.len() as u32);
    }

    /// Adds a frame that is a text. Returns its row.
    fn root(&mut self, text: String) -> u32 {
        let func = (self.functions.list().len() + self.roots.len()) as u32;
        self.roots.push(text);
        self.frames.push(FrameRow {
            func,
            address: None,
            inline_depth: 0,
            category: OTHER,
            native_symbol: None,
            line: None,
        });
        self.frames.len() as u32 - 1
    }

    /// The stack of an origin. The innermost frame of a stack that waits is of the category for
    /// that.
    pub(super) fn stack(&mut self, profile: &Profile, origin: StackOrigin, waits: bool) -> u32 {
        if let Some(&known) = self.leaves.get(&(origin, waits)) {
            return known;
        }
        let wait = origin.wait.and_then(|wait| self.waits.get(usize::from(wait.number())).copied());
        let roots = [wait, origin.stop.and_then(|stop| self.stops[stop.0 as usize])];
        let root = roots.into_iter().flatten().fold(None, |prefix, frame| Some(self.call(prefix, frame)));
        let stack = match origin.node {
            Some(leaf) => self.stack_of(profile, origin, root, leaf, waits),
            None => root,
        };
        let stack = stack.unwrap_or_else(|| self.call(None, self.empty));
        self.leaves.insert((origin, waits), stack);
        stack
    }

    /// The stack of a node below `root`.
    fn stack_of(
        &mut self,
        profile: &Profile,
        origin: StackOrigin,
        root: Option<u32>,
        leaf: NodeId,
        waits: bool,
    ) -> Option<u32> {
        // Up to a node whose stack is known, then down again.
        let mut path = Vec::new();
        let mut prefix = root;
        let mut next = profile.tree.nodes()[leaf.0 as usize].parent();
        while let Some(node) = next {
            if let Some(&stack) = self.known.get(&(node, origin.stop, origin.wait)) {
                prefix = Some(stack);
                break;
            }
            path.push(node);
            next = profile.tree.nodes()[node.0 as usize].parent();
        }
        for node in path.into_iter().rev() {
            prefix = self.callees(profile, prefix, node, false);
            prefix.map(|stack| self.known.insert((node, origin.stop, origin.wait), stack));
        }
        self.callees(profile, prefix, leaf, waits)
    }

    /// The stack of a node, which `prefix` calls.
    fn callees(&mut self, profile: &Profile, prefix: Option<u32>, node: NodeId, waits: bool) -> Option<u32> {
        let frame = profile.tree.nodes()[node.0 as usize].frame.0 as usize;
        let (start, end) = (self.starts[frame], self.starts[frame + 1]);
        (start..end).fold(prefix, |prefix, row| {
            let row = if waits && row + 1 == end { self.waiting_row(row) } else { row };
            Some(self.call(prefix, row))
        })
    }

    fn waiting_row(&mut self, row: u32) -> u32 {
        *self.waiting.entry(row).or_insert_with(|| {
            let frame = FrameRow { category: WAITING, ..self.frames[row as usize].clone() };
            self.frames.push(frame);
            self.frames.len() as u32 - 1
        })
    }

    fn call(&mut self, prefix: Option<u32>, frame: u32) -> u32 {
        *self.calls.entry((prefix, frame)).or_insert_with(|| {
            self.stacks.push((prefix, frame));
            self.stacks.len() as u32 - 1
        })
    }

    /// Writes the tables, the strings last.
    pub(super) fn write(mut self, profile: &Profile, sink: &mut Sink) -> Result<(), OutputError> {
        let stacks = std::mem::take(&mut self.stacks);
        let mut table = Table::open(sink, "stackTable");
        table.numbers("frame", stacks.iter().map(|&(_, frame)| Some(frame.into())))?;
        table.numbers("prefix", stacks.iter().map(|&(prefix, _)| prefix.map(u64::from)))?;
        table.close(stacks.len());
        self.write_frames(sink)?;
        self.write_functions(profile, sink)?;
        let mut table = Table::open(sink, "nativeSymbols");
        let symbols = &self.symbols;
        table.numbers("libIndex", symbols.iter().map(|symbol| Some(symbol.image.0.into())))?;
        table.numbers("address", symbols.iter().map(|symbol| Some(symbol.start.into())))?;
        table.numbers("name", symbols.iter().map(|symbol| Some(symbol.name)))?;
        table.numbers("functionSize", symbols.iter().map(|_| None))?;
        table.close(symbols.len());
        sink.put(b"\"stringArray\":[\"\"");
        for text in &self.strings.list {
            sink.put(b",");
            json::string(&mut sink.buffer, text);
            sink.settle()?;
        }
        sink.put(b"]");
        Ok(())
    }

    fn write_frames(&self, sink: &mut Sink) -> Result<(), OutputError> {
        let frames = &self.frames;
        let mut table = Table::open(sink, "frameTable");
        table.column("address", frames.iter(), |out, frame| match frame.address {
            Some(address) => json::number(out, address.into()),
            None => out.extend_from_slice(b"-1"),
        })?;
        table.numbers("inlineDepth", frames.iter().map(|frame| Some(frame.inline_depth.into())))?;
        table.numbers("category", frames.iter().map(|frame| Some(frame.category.into())))?;
        table.numbers("subcategory", frames.iter().map(|_| Some(0)))?;
        table.numbers("func", frames.iter().map(|frame| Some(frame.func.into())))?;
        table.numbers("nativeSymbol", frames.iter().map(|frame| frame.native_symbol.map(u64::from)))?;
        table.numbers("innerWindowID", frames.iter().map(|_| Some(0)))?;
        table.numbers("line", frames.iter().map(|frame| frame.line.map(u64::from)))?;
        table.numbers("column", frames.iter().map(|_| None))?;
        table.close(frames.len());
        Ok(())
    }

    /// Writes functions, their source files and their libraries.
    fn write_functions(&mut self, profile: &Profile, sink: &mut Sink) -> Result<(), OutputError> {
        let strings = &mut self.strings;
        let list = self.functions.list();
        let mut sources = Strings::default();
        let (mut names, mut files, mut resources) = (Vec::new(), Vec::new(), Vec::new());
        for (function, image) in list.iter().zip(&self.images) {
            names.push(Some(strings.id(&function.name)));
            // Where the source file is not known, the module's name stands there.
            let file = function.file.as_deref().filter(|file| *file != function.module);
            files.push(file.and_then(|file| sources.id(file).checked_sub(1)));
            resources.push(image.map(|image| u64::from(image.0)));
        }
        for root in &self.roots {
            names.push(Some(strings.id(root)));
            files.push(None);
            resources.push(None);
        }
        let count = names.len();
        let mut table = Table::open(sink, "funcTable");
        table.numbers("name", names.into_iter())?;
        table.column("isJS", 0..count, |out, _| out.extend_from_slice(b"false"))?;
        table.column("relevantForJS", 0..count, |out, _| out.extend_from_slice(b"false"))?;
        table.column("resource", resources.into_iter(), |out, resource| match resource {
            Some(resource) => json::number(out, resource),
            None => out.extend_from_slice(b"-1"),
        })?;
        table.numbers("source", files.into_iter())?;
        table.numbers("lineNumber", (0..count).map(|_| None))?;
        table.numbers("columnNumber", (0..count).map(|_| None))?;
        table.close(count);

        let count = sources.list.len();
        let files: Vec<u64> = sources.list.iter().map(|file| strings.id(file)).collect();
        let mut table = Table::open(sink, "sources");
        table.numbers("id", (0..count).map(|_| None))?;
        table.numbers("filename", files.into_iter().map(Some))?;
        table.numbers("startLine", (0..count).map(|_| Some(1)))?;
        table.numbers("startColumn", (0..count).map(|_| Some(1)))?;
        table.numbers("sourceMapURL", (0..count).map(|_| None))?;
        table.close(count);

        let images = &profile.images;
        let names: Vec<u64> = images.iter().map(|image| strings.id(&image.name)).collect();
        let mut table = Table::open(sink, "resourceTable");
        table.numbers("lib", (0..images.len() as u64).map(Some))?;
        table.numbers("name", names.into_iter().map(Some))?;
        table.numbers("host", images.iter().map(|_| None))?;
        table.numbers("type", images.iter().map(|_| Some(LIBRARY)))?;
        table.close(images.len());
        Ok(())
    }
}

/// A table, written column by column.
struct Table<'a> {
    sink: &'a mut Sink,
}

impl<'a> Table<'a> {
    fn open(sink: &'a mut Sink, name: &str) -> Table<'a> {
        json::key(&mut sink.buffer, name);
        sink.put(b"{");
        Table { sink }
    }

    fn column<T>(
        &mut self,
        name: &str,
        values: impl Iterator<Item = T>,
        write: impl Fn(&mut Vec<u8>, T),
    ) -> Result<(), OutputError> {
        json::key(&mut self.sink.buffer, name);
        self.sink.put(b"[");
        for (i, value) in values.enumerate() {
            if i > 0 {
                self.sink.put(b",");
            }
            write(&mut self.sink.buffer, value);
            self.sink.settle()?;
        }
        self.sink.put(b"],\n");
        Ok(())
    }

    fn numbers(&mut self, name: &str, values: impl Iterator<Item = Option<u64>>) -> Result<(), OutputError> {
        self.column(name, values, |out, value| match value {
            Some(value) => json::number(out, value),
            None => out.extend_from_slice(b"null"),
        })
    }

    fn close(self, length: usize) {
        self.sink.put(b"\"length\":");
        json::number(&mut self.sink.buffer, length as u64);
        self.sink.put(b"},\n");
    }
}

/// The category of a frame that runs.
fn category(profile: &Profile, frame: FrameId) -> u32 {
    match profile.category(frame) {
        Category::User if profile.kind(frame) == FrameKind::Managed => MANAGED,
        Category::User => USER,
        Category::System => SYSTEM,
        Category::Framework => MANAGED,
        Category::Runtime | Category::Jit | Category::Gc => RUNTIME,
        Category::Unknown => OTHER,
    }
}

/// Writes an image as a library.
pub(super) fn write_lib(out: &mut Vec<u8>, arch: Arch, image: &Image) {
    let arch = match arch {
        Arch::X64 => "x86_64",
        Arch::X86 => "x86",
        Arch::Arm64 => "aarch64",
    };
    let debug_name = if image.pdb_name.is_empty() { &image.name } else { &image.pdb_name };
    out.push(b'{');
    for (key, text) in [
        ("arch", arch),
        ("name", &image.name),
        ("path", path_of(image)),
        ("debugName", debug_name),
        ("debugPath", debug_name),
        ("breakpadId", &image.debug_id),
    ] {
        json::key(out, key);
        json::string(out, text);
        out.push(b',');
    }
    json::key(out, "codeId");
    match image.code_id.as_str() {
        "" => out.extend_from_slice(b"null"),
        id => json::string(out, id),
    }
    out.push(b'}');
}
