//! Defines what counts as one function, in every output and in the statistics.

use super::Profile;
use crate::stack::{FrameId, StrId};
use hashbrown::HashMap;
use stk_unwind::Trust;

/// Index of a [`Function`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FunctionId(pub u32);

/// Code that is shown as one function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Name; no two functions of a table have the same.
    pub name: String,
    /// Name to show beside the module: no two functions of a module have the same.
    pub name_in_module: String,
    /// Source file if known, else the module's file name, else `None`.
    pub file: Option<String>,
    /// The line, if all addresses of this function in the profile are on the same line.
    pub line: Option<u32>,
    /// File name of its module; empty if the address is in no module.
    pub module: String,
    /// How many modules have a function of this name and file. It can be several if it is inlined
    /// from a header.
    pub modules: u32,
}

/// Distinct functions of a profile, and the functions of each frame.
///
/// Viewers take frames of equal name at two indices for two functions, so addresses are folded:
/// code of a module with the same name and source file is one function. An address without a line
/// row belongs to the file of the same function's other addresses, if they have only one. Functions
/// that still share a name (static functions, those of two DLLs) get what distinguishes them in
/// brackets: `plugin_run [plugin_a.dll]`.
#[derive(Debug)]
pub struct Functions {
    list: Vec<Function>,
    starts: Vec<u32>,
    of_frames: Vec<FunctionId>,
    modules: Modules,
}

/// What identifies a function.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    name: StrId,
    /// Index in the table of module names.
    module: u32,
    /// The source file, if it is known.
    file: Option<StrId>,
    /// The frame is a guess, which the name must show.
    guessed: bool,
    /// Only used with `by_line`.
    line: Option<u32>,
}

struct FunctionEntry {
    key: Key,
    line: ValueSet<u32>,
}

/// One value, or several, or none.
#[derive(Clone, Copy)]
enum ValueSet<T> {
    Nothing,
    One(T),
    Several,
}

impl<T: PartialEq + Copy> ValueSet<T> {
    fn add(&mut self, value: T) {
        *self = match *self {
            ValueSet::Nothing => ValueSet::One(value),
            ValueSet::One(old) if old == value => ValueSet::One(old),
            _ => ValueSet::Several,
        }
    }
}

impl Functions {
    /// The functions of a symbolized profile. With `by_line`, each source line is a function of its
    /// own, named `function:line`.
    pub fn new(profile: &Profile, by_line: bool) -> Functions {
        let modules = Modules::new(profile);
        let frames = profile.frames.keys();
        let files = files_of(profile, &modules);
        let mut ids: HashMap<Key, FunctionId> = HashMap::new();
        let mut entries: Vec<FunctionEntry> = Vec::new();
        let mut starts = Vec::with_capacity(frames.len() + 1);
        let mut of_frames = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            starts.push(of_frames.len() as u32);
            let module = modules.of_frames[i];
            let guessed = frame.trust == Trust::Scan;
            for name in profile.symbols.names(FrameId(i as u32)).iter().rev() {
                let file = name.file.or_else(|| match files.get(&(name.function, module)) {
                    Some(ValueSet::One(file)) => Some(*file),
                    _ => None,
                });
                let key =
                    Key { name: name.function, module, file, guessed, line: name.line.filter(|_| by_line) };
                let id = *ids.entry(key).or_insert_with(|| {
                    entries.push(FunctionEntry { key, line: ValueSet::Nothing });
                    FunctionId(entries.len() as u32 - 1)
                });
                let entry = &mut entries[id.0 as usize];
                match name.line {
                    Some(line) => entry.line.add(line),
                    None => entry.line = ValueSet::Several,
                }
                of_frames.push(id);
            }
        }
        starts.push(of_frames.len() as u32);

        let list = described(profile, &modules, &entries);
        Functions { list, starts, of_frames, modules }
    }

    /// The modules of the profile's frames.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// All functions; index = id.
    pub fn list(&self) -> &[Function] {
        &self.list
    }

    /// The functions of a frame, outermost first: the function itself, then those inlined into it.
    pub fn of(&self, frame: FrameId) -> &[FunctionId] {
        let i = frame.0 as usize;
        &self.of_frames[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}

/// File names of modules, each once. Index 0 is "none".
#[derive(Debug)]
pub struct Modules {
    pub names: Vec<String>,
    /// By frame, an index in `names`.
    pub of_frames: Vec<u32>,
}

impl Modules {
    pub(super) fn new(profile: &Profile) -> Modules {
        let mut names = vec![String::new()];
        let mut ids: HashMap<&str, u32> = HashMap::from([("", 0)]);
        let of_frames = (0..profile.frames.keys().len())
            .map(|i| {
                let name = profile.module_name(FrameId(i as u32)).unwrap_or_default();
                *ids.entry(name).or_insert_with(|| {
                    names.push(name.to_owned());
                    names.len() as u32 - 1
                })
            })
            .collect();
        Modules { names, of_frames }
    }
}

/// The name of a function. Other functions may have the same.
fn plain_name(profile: &Profile, entry: &FunctionEntry) -> String {
    let mut name = profile.symbols.strings.get(entry.key.name).to_owned();
    if let Some(line) = entry.key.line {
        name.push_str(&format!(":{line}"));
    }
    if entry.key.guessed {
        name.push_str(" [scanned]");
    }
    name
}

/// The source files of each name in each module.
fn files_of(profile: &Profile, modules: &Modules) -> HashMap<(StrId, u32), ValueSet<StrId>> {
    let mut files: HashMap<(StrId, u32), ValueSet<StrId>> = HashMap::new();
    for (&module, id) in modules.of_frames.iter().zip((0..).map(FrameId)) {
        for name in profile.symbols.names(id) {
            if let Some(file) = name.file {
                files.entry((name.function, module)).or_insert(ValueSet::Nothing).add(file);
            }
        }
    }
    files
}

/// The functions with their names, files, lines and modules.
fn described(profile: &Profile, modules: &Modules, entries: &[FunctionEntry]) -> Vec<Function> {
    let plain: Vec<String> = entries.iter().map(|entry| plain_name(profile, entry)).collect();
    let mut uses: HashMap<(&str, u32), u32> = HashMap::new();
    let mut in_modules: HashMap<Key, u32> = HashMap::new();
    for (entry, plain) in entries.iter().zip(&plain) {
        *uses.entry((plain, entry.key.module)).or_default() += 1;
        *in_modules.entry(in_any_module(entry.key)).or_default() += 1;
    }
    let names = unique_names(profile, modules, entries);
    let function = |((entry, name), plain): ((&FunctionEntry, String), &String)| {
        let shared = uses[&(plain.as_str(), entry.key.module)] > 1;
        let name_in_module = if shared { name.clone() } else { plain.clone() };
        let module = modules.names[entry.key.module as usize].clone();
        let file = match entry.key.file {
            Some(file) => Some(profile.symbols.strings.get(file).to_owned()),
            None => Some(module.clone()).filter(|module| !module.is_empty()),
        };
        let line = match (entry.key.file, entry.line) {
            (Some(_), ValueSet::One(line)) => Some(line),
            _ => None,
        };
        let modules = in_modules[&in_any_module(entry.key)];
        Function { name, name_in_module, file, line, module, modules }
    };
    entries.iter().zip(names).zip(&plain).map(function).collect()
}

/// What a function has in common with those of its name and file in other modules.
fn in_any_module(key: Key) -> Key {
    Key { module: 0, ..key }
}

/// Adds to names that several functions share what distinguishes them, as briefly as possible.
fn unique_names(profile: &Profile, modules: &Modules, entries: &[FunctionEntry]) -> Vec<String> {
    let text = |id| profile.symbols.strings.get(id);
    let plain = |entry: &FunctionEntry| plain_name(profile, entry);
    let module = |entry: &FunctionEntry| {
        Some(modules.names[entry.key.module as usize].as_str()).filter(|module| !module.is_empty())
    };
    let file = |entry: &FunctionEntry| entry.key.file.map(text);
    let base = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    let bracket = |entry: &FunctionEntry, parts: [Option<String>; 2]| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { plain(entry) } else { format!("{} [{}]", plain(entry), parts.join(", ")) }
    };
    let module_or_file = |entry: &FunctionEntry| match (module(entry), file(entry)) {
        (None, Some(file)) => bracket(entry, [Some(base(file)), None]),
        (module, _) => bracket(entry, [module.map(str::to_owned), None]),
    };
    let module_and_file =
        |entry: &FunctionEntry| bracket(entry, [module(entry).map(str::to_owned), file(entry).map(base)]);
    let full = |entry: &FunctionEntry| {
        bracket(entry, [module(entry).map(str::to_owned), file(entry).map(str::to_owned)])
    };

    let mut names: Vec<String> = entries.iter().map(plain).collect();
    let levels: [&dyn Fn(&FunctionEntry) -> String; 3] = [&module_or_file, &module_and_file, &full];
    for level in levels {
        let shared: Vec<usize> = {
            let mut uses: HashMap<&str, u32> = HashMap::new();
            names.iter().for_each(|name| *uses.entry(name).or_default() += 1);
            (0..names.len()).filter(|&i| uses[names[i].as_str()] > 1).collect()
        };
        if shared.is_empty() {
            return names;
        }
        for i in shared {
            names[i] = level(&entries[i]);
        }
    }
    // A function may have the same name as another one with its brackets: number those.
    let mut taken: HashMap<String, u32> = HashMap::new();
    for name in &mut names {
        let mut candidate = name.clone();
        let mut n = 1;
        while taken.contains_key(&candidate) {
            n += 1;
            candidate = format!("{name} #{n}");
        }
        taken.insert(candidate.clone(), n);
        *name = candidate;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::profile::{BuildOptions, FrameFacts, FrameKey, NamedFrame, Placement, build};
    use crate::trace::Trace;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    /// A profile with a function of a header that every one of `modules` modules has code of.
    fn inlined_everywhere(modules: u32) -> Profile {
        let file = stk_tests::traces::trace().finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let built = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0));
        let mut profile = built.unwrap().0;
        let symbols = &mut profile.symbols;
        let function = symbols.strings.intern("inlined");
        let file = Some(symbols.strings.intern("header.h"));
        for i in 0..modules {
            let place = Placement::Unknown(i.into());
            profile.frames.intern(FrameKey { place, exact: true, trust: Trust::UnwindInfo });
            symbols.starts.push(i);
            symbols.named.push(NamedFrame { function, file, line: None, inline: false });
            let module = Some(symbols.strings.intern(&format!("{i}.dll")));
            symbols.facts.push(FrameFacts { module, ..FrameFacts::default() });
        }
        symbols.starts.push(modules);
        profile
    }

    #[test]
    fn a_function_of_very_many_modules_takes_time_for_each_of_them_once() {
        const MODULES: u32 = 400_000;
        let profile = inlined_everywhere(MODULES);
        let begun = Instant::now();
        let functions = Functions::new(&profile, false);
        // Each module looked at for each other one takes many minutes; so long even on a busy
        // machine.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        assert_eq!(functions.list().len(), MODULES as usize);
        let first = &functions.list()[0];
        let found = (first.modules, first.module.as_str(), first.name.as_str());
        assert_eq!(found, (MODULES, "0.dll", "inlined [0.dll]"));
    }
}
