//! Names for the distinct frames of a profile, and what is missing.

use super::managed::{Managed, Told};
use super::{
    CodeInfo, FrameFacts, FrameId, FrameKey, FrameKind, FrameSymbols, NameSource, NamedFrame, NodeId,
    Placement, Profile, Runs, StrId,
};
use crate::image::ModuleImage;
use crate::model::{DYNAMIC_CODE, Image, ImageId};
use crate::runtimes::{MethodKind, Methods};
use crate::symbols::{
    Demangle, ModuleKey, ModuleSymbols, Resolved, Source, Symbolizer, demangle, undecorate_x86,
};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use stk_schema::identity::CodeView;

/// Fills [`Profile::symbols`]. A caller's frame is looked up at its return address − 1; its name, if nothing is known,
/// shows the return address itself. What a language runtime told of its code comes first: its methods may lie in images whose
/// exports are other functions. Exported functions are named where no symbols are. Uses the rayon pool that it is called in,
/// a module a task.
pub fn symbolize(
    profile: &mut Profile,
    images: &[ModuleImage],
    symbolizer: &Symbolizer,
    demangle: Demangle,
    methods: &Methods,
) {
    let managed = Managed::new(profile, methods, symbolizer.store());
    let told: Vec<Told> = profile.frames.keys().par_iter().map(|key| managed.find(key)).collect();
    let wanted = wanted(profile, &told);
    let key = |ImageId(image): ImageId| {
        module_key(&profile.images[image as usize], &images[image as usize], profile.trace.arch)
    };
    let modules: Vec<(ModuleKey<'_>, &[u32])> =
        wanted.iter().map(|(image, rvas)| (key(*image), rvas.as_slice())).collect();
    // Large modules first, so that the last task to begin is a small one.
    let mut order: Vec<usize> = (0..modules.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(modules[i].1.len()));
    let mut resolved: Vec<(usize, ModuleSymbols)> =
        order.into_par_iter().map(|i| (i, symbolizer.resolve(&modules[i].0, modules[i].1))).collect();
    resolved.sort_by_key(|(i, _)| *i);
    let of_image: HashMap<ImageId, usize> =
        wanted.iter().enumerate().map(|(i, (image, _))| (*image, i)).collect();
    let mut names = Names { symbols: FrameSymbols::default(), demangle };
    names.symbols.starts.push(0);
    for (key, told) in profile.frames.keys().iter().zip(told) {
        let kind = match key.place {
            _ if told.is_named() => {
                names.managed(&managed, told);
                continue;
            }
            Placement::Image(image, _) if methods.runtimes.contains(&image) => FrameKind::Runtime,
            Placement::Image(..) => FrameKind::Native,
            Placement::Code(..) => FrameKind::Dynamic,
            Placement::Unknown(_) => FrameKind::Unknown,
        };
        names.symbols.facts.push(FrameFacts { kind, ..FrameFacts::default() });
        match key.place {
            Placement::Image(image, rva) => {
                let i = of_image[&image];
                let n = wanted[i].1.binary_search(&lookup_rva(key, rva)).ok();
                let module = (&*profile.images[image.0 as usize].name, &images[image.0 as usize]);
                names.frame(module, key, rva, n.and_then(|n| resolved[i].1.get(n)));
            }
            Placement::Code(region, offset) => names.dynamic(&profile.code[region as usize], offset, &told),
            Placement::Unknown(address) => names.unknown(address, &told),
        }
    }
    profile.symbols = names.symbols;
}

/// How many samples hold at least one frame whose module has no symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Module's file name.
    pub module: String,
    /// Samples with a frame in it that has no better name than an export or an offset.
    pub samples: u64,
    /// Distinct frames without a name.
    pub frames: u64,
    /// Why, and what to do.
    pub reason: String,
}

/// What a profile's names lack.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MissingSymbols {
    /// Frames of all samples.
    pub frames: u64,
    /// Frames of all samples that have a name from symbols.
    pub named: u64,
    /// Modules without symbols, by samples affected.
    pub modules: Vec<Missing>,
}

impl MissingSymbols {
    /// Share of frames, weighted by samples, that have a name from symbols: 0 to 1; 1 if there are no frames.
    pub fn share(&self) -> f64 {
        if self.frames == 0 { 1.0 } else { self.named as f64 / self.frames as f64 }
    }
}

/// Sums up what symbolization did not find.
///
/// # Errors
///
/// When the runs' temporary file cannot be read.
pub fn missing_symbols(profile: &Profile, runs: &Runs) -> io::Result<MissingSymbols> {
    let sets = ReasonSets::new(profile);
    let mut samples: Vec<u64> = Vec::new();
    let (mut frames, mut named) = (0u64, 0u64);
    runs.for_each(|batch| {
        for run in batch.runs {
            if let Some(NodeId(node)) = run.node {
                let facts = sets.nodes[node as usize];
                let count = u64::from(run.samples);
                frames += count * u64::from(facts.depth);
                named += count * u64::from(facts.named);
                if samples.len() <= facts.set as usize {
                    samples.resize(sets.sets.len(), 0);
                }
                samples[facts.set as usize] += count;
            }
        }
        Ok::<(), io::Error>(())
    })?;
    let mut by_reason: BTreeMap<(ImageId, StrId), (u64, u64)> = BTreeMap::new();
    for (set, count) in samples.iter().enumerate() {
        for &key in &sets.sets[set] {
            by_reason.entry(key).or_default().0 += count;
        }
    }
    let symbols = &profile.symbols;
    for ((key, reason), source) in profile.frames.keys().iter().zip(&symbols.reason).zip(&symbols.source) {
        if let (Placement::Image(image, _), Some(reason)) = (key.place, *reason)
            && *source != NameSource::Runtime
        {
            by_reason.entry((image, reason)).or_default().1 += 1;
        }
    }
    let mut modules: Vec<Missing> = by_reason
        .into_iter()
        .map(|((image, reason), (samples, frames))| Missing {
            module: profile.images[image.0 as usize].name.clone(),
            samples,
            frames,
            reason: profile.symbols.strings.get(reason).to_owned(),
        })
        .collect();
    modules.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.module.cmp(&b.module)));
    Ok(MissingSymbols { frames, named, modules })
}

/// Distinct addresses to look up, by image, sorted.
fn wanted(profile: &Profile, told: &[Told]) -> Vec<(ImageId, Vec<u32>)> {
    let mut by_image: BTreeMap<ImageId, Vec<u32>> = BTreeMap::new();
    for (key, _) in profile.frames.keys().iter().zip(told).filter(|(_, told)| !told.is_named()) {
        if let Placement::Image(image, rva) = key.place {
            by_image.entry(image).or_default().push(lookup_rva(key, rva));
        }
    }
    for rvas in by_image.values_mut() {
        rvas.sort_unstable();
        rvas.dedup();
    }
    by_image.into_iter().collect()
}

fn lookup_rva(key: &FrameKey, rva: u32) -> u32 {
    if key.exact { rva } else { rva.saturating_sub(1) }
}

/// What symbols are looked for by. `arch`: of the trace, for an image whose own is not known.
pub(crate) fn module_key<'a>(facts: &'a Image, known: &ModuleImage, arch: stk_schema::Arch) -> ModuleKey<'a> {
    ModuleKey {
        path: &facts.path,
        code_view: facts.code_view.map(|(guid, age)| CodeView {
            guid,
            age,
            pdb_name: facts.pdb_name.as_bytes(),
        }),
        time_date_stamp: facts.time_date_stamp,
        size_of_image: if facts.is_identified() { facts.size } else { 0 },
        // Callers look at exports themselves, where unwind data tells how far a function reaches.
        exports: None,
        arch: match known.tables.arch() {
            stk_unwind::Arch::X64 => stk_schema::Arch::X64,
            stk_unwind::Arch::Arm64 => stk_schema::Arch::Arm64,
            stk_unwind::Arch::X86 => stk_schema::Arch::X86,
            _ => arch,
        },
    }
}

/// An exported name for people.
pub(crate) fn export_name<'a>(name: &'a str, image: &ModuleImage, style: Demangle) -> Cow<'a, str> {
    let shown = demangle(name, style);
    let decorated = image.tables.arch() == stk_unwind::Arch::X86 && style != Demangle::None && shown == name;
    if decorated { Cow::Borrowed(undecorate_x86(name)) } else { shown }
}

/// Collects the names of frames, in the order of the frame table.
struct Names {
    symbols: FrameSymbols,
    demangle: Demangle,
}

impl Names {
    fn frame(
        &mut self,
        module: (&str, &ModuleImage),
        key: &FrameKey,
        rva: u32,
        resolved: Option<Resolved<'_>>,
    ) {
        let (module, image) = module;
        let reason = resolved.and_then(|resolved| resolved.reason.map(ToString::to_string));
        if let Some(resolved) =
            resolved.filter(|resolved| matches!(resolved.source, Source::Pdb | Source::Dwarf))
        {
            return self.found(&resolved, reason);
        }
        let reason = reason.unwrap_or_else(|| "no symbol covers the address".to_owned());
        let Some((_, name)) = image.export_at(lookup_rva(key, rva)) else {
            return self.nameless(&format!("{module}+{rva:#x}"), &reason);
        };
        let name = export_name(name, image, self.demangle);
        self.only(&name, NameSource::Export, &reason);
    }

    fn found(&mut self, resolved: &Resolved<'_>, reason: Option<String>) {
        let symbols = &mut self.symbols;
        for location in resolved.frames() {
            symbols.named.push(NamedFrame {
                function: symbols.strings.intern(location.function),
                file: location.file.map(|file| symbols.strings.intern(file)),
                line: location.line,
                inline: location.inline,
            });
        }
        if resolved.aliases().len() != 0 {
            let aliases = resolved.aliases().map(|name| symbols.strings.intern(name)).collect();
            symbols.aliases.insert(FrameId(symbols.source.len() as u32), aliases);
        }
        let reason = reason.map(|reason| symbols.strings.intern(&reason));
        let source = if resolved.source == Source::Pdb { NameSource::Pdb } else { NameSource::Dwarf };
        self.end(source, reason);
    }

    fn managed(&mut self, managed: &Managed<'_>, told: Told) {
        let Told::Named { method, line, reason } = told else { return };
        let symbols = &mut self.symbols;
        let method = managed.method(method);
        let (file, line) = match &line {
            Some(line) => (Some(symbols.strings.intern(&line.file)), Some(line.line)),
            None => (None, None),
        };
        let function = symbols.strings.intern(&method.name);
        symbols.named.push(NamedFrame { function, file, line, inline: false });
        let kind = match method.kind {
            MethodKind::Managed => FrameKind::Managed,
            MethodKind::Stub => FrameKind::Stub,
        };
        let module = managed.module_name(method).map(|name| symbols.strings.intern(name));
        symbols.facts.push(FrameFacts { kind, tier: method.tier, module });
        let reason = reason.map(|reason| symbols.strings.intern(&reason));
        self.end(NameSource::Runtime, reason);
    }

    fn unknown(&mut self, address: u64, told: &Told) {
        let reason = match told {
            Told::Ambiguous(reason) => reason,
            _ => "in no module that was loaded at that time",
        };
        self.nameless(&format!("{address:#x}"), reason);
    }

    /// Code that was made at run time and that no runtime has named.
    fn dynamic(&mut self, code: &CodeInfo, offset: u32, told: &Told) {
        let address = code.base.wrapping_add(offset.into());
        let reason = match told {
            Told::Ambiguous(reason) => reason,
            _ if code.stub => "a stub made at run time, without unwind data",
            _ => "made at run time, and no runtime told its name",
        };
        self.nameless(&format!("{DYNAMIC_CODE}+{address:#x}"), reason);
    }

    fn nameless(&mut self, text: &str, reason: &str) {
        self.only(text, NameSource::None, reason);
    }

    fn only(&mut self, text: &str, source: NameSource, reason: &str) {
        let strings = &mut self.symbols.strings;
        let (function, reason) = (strings.intern(text), strings.intern(reason));
        self.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
        self.end(source, Some(reason));
    }

    fn end(&mut self, source: NameSource, reason: Option<StrId>) {
        let symbols = &mut self.symbols;
        symbols.source.push(source);
        symbols.reason.push(reason);
        symbols.starts.push(symbols.named.len() as u32);
    }
}

/// For each stack which (module, reason) pairs its frames lack symbols for. Few distinct sets of pairs occur.
struct ReasonSets {
    sets: Vec<Vec<(ImageId, StrId)>>,
    nodes: Vec<NodeFacts>,
}

#[derive(Clone, Copy)]
struct NodeFacts {
    set: u32,
    depth: u16,
    named: u16,
}

impl ReasonSets {
    fn new(profile: &Profile) -> ReasonSets {
        let mut sets: Vec<Vec<(ImageId, StrId)>> = vec![Vec::new()];
        let mut grown: HashMap<(u32, (ImageId, StrId)), u32> = HashMap::new();
        let mut ids: HashMap<Vec<(ImageId, StrId)>, u32> = HashMap::from([(Vec::new(), 0)]);
        let mut nodes: Vec<NodeFacts> = Vec::with_capacity(profile.tree.nodes().len());
        for node in profile.tree.nodes() {
            let parent =
                node.parent.map_or(NodeFacts { set: 0, depth: 0, named: 0 }, |p| nodes[p.0 as usize]);
            let frame = node.frame.0 as usize;
            let image = match profile.frames.keys()[frame].place {
                // Where a runtime named the frame, the reason is about its line.
                Placement::Image(image, _) if profile.symbols.source[frame] != NameSource::Runtime => {
                    Some(image)
                }
                _ => None,
            };
            let lacks = image.zip(profile.symbols.reason[frame]);
            let set = match lacks {
                Some(pair) => *grown.entry((parent.set, pair)).or_insert_with(|| {
                    let mut set = sets[parent.set as usize].clone();
                    if let Err(at) = set.binary_search(&pair) {
                        set.insert(at, pair);
                    }
                    *ids.entry(set).or_insert_with_key(|set| {
                        sets.push(set.clone());
                        (sets.len() - 1) as u32
                    })
                }),
                None => parent.set,
            };
            let named = profile.symbols.source[frame].is_certain();
            nodes.push(NodeFacts {
                set,
                depth: parent.depth.saturating_add(1),
                named: parent.named.saturating_add(u16::from(named)),
            });
        }
        ReasonSets { sets, nodes }
    }
}
