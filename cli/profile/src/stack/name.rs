//! Names code: by the language runtime that made it; else by its symbols; else by the exported
//! function that holds it; else by the start of the function that unwind data has there; else by
//! its offset.

use super::method::{MethodAt, MethodFinder};
use super::{
    FrameFacts, FrameId, FrameKind, FrameSymbols, MethodPlace, NameSource, NamedFrame, Placement, StrId,
};
use crate::image::ModuleImage;
use crate::runtimes::dotnet::readable::readable;
use crate::runtimes::{ManagedModule, Method, MethodKind, Methods};
use crate::trace::Trace;
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::BTreeMap;
use stk_base::model::{DYNAMIC_CODE, ImageId, recorded_arch};
use stk_symbols::{
    Demangle, ModuleKey, ModuleSymbols, NameTable, Resolution, Source, Symbolizer, demangle, undecorate_x86,
};

/// The sources of the names of a trace's code.
#[derive(Clone, Copy)]
pub struct NameSources<'a> {
    pub trace: &'a Trace<'a>,
    /// Its images, in the order of its timeline.
    pub images: &'a [ModuleImage],
    /// The methods that language runtimes reported.
    pub methods: &'a Methods,
    /// The images' symbols.
    pub symbolizer: &'a Symbolizer,
}

/// Code that is to be named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    pub place: Placement,
    /// Whether `place` is an instruction, not a return address. A return address belongs to the
    /// call before it.
    pub exact: bool,
    /// Its address, and when it was seen, in nanoseconds since the trace's start. `None`: at any
    /// time when its module or code was loaded.
    pub seen: Option<(u64, u64)>,
}

/// The names of sites.
#[derive(Default, Debug)]
pub struct Names {
    /// Names by site, in the form used for frames.
    pub symbols: FrameSymbols,
    /// By site: bytes from the beginning of the outermost function; `None` without a function.
    pub displacements: Vec<Option<u32>>,
    /// Number of texts left out because there was no memory for them. Another text replaces each.
    pub left_out: u64,
}

/// Names sites, in their order. Runs in the caller's rayon pool; each module is one task.
pub fn name(sources: &NameSources<'_>, sites: &[Site]) -> Names {
    let finder = MethodFinder::new(sources);
    let methods: Vec<MethodAt> = sites.par_iter().map(|site| finder.find(site)).collect();
    let symbols = ImageSymbols::look_up(sources, sites.iter().zip(&methods));
    let mut writer = NameWriter { sources, finder, symbols, names: Names::default() };
    writer.names.symbols.starts.push(0);
    for (site, method) in sites.iter().zip(methods) {
        writer.site(site, method);
    }
    writer.names
}

/// The name of code in an image, and where it came from.
pub enum ImageName<'a> {
    /// As its symbols say.
    Symbols(Resolution<'a>),
    /// By the exported function that holds it.
    Export {
        /// The function as the image has it.
        raw: &'a str,
        /// The function as displayed.
        function: Cow<'a, str>,
        /// Bytes from its beginning.
        displacement: u32,
    },
    /// By the [function](unnamed_function) that the image's unwind data has there.
    Function {
        /// RVA of its first part.
        start: u32,
        /// Bytes from there; `None` in another part of it, which may lie before the first.
        displacement: Option<u32>,
    },
    /// By its [`offset`](offset_name).
    Offset,
}

/// The name of the code at `rva` in an image: from its symbols, else from the exported function
/// that holds it, else from the function that unwind data has there, else from its offset.
pub fn image_name<'a>(
    symbols: Option<Resolution<'a>>,
    image: Option<&'a ModuleImage>,
    rva: u32,
    style: Demangle,
) -> ImageName<'a> {
    // A record without a size may not know of the functions behind its own.
    let reaches = |found: &Resolution<'_>| {
        let start = rva.wrapping_sub(found.displacement);
        !found.is_sizeless() || image.is_none_or(|image| image.tables.is_one_function(start, rva))
    };
    if let Some(found) = symbols.filter(|found| found.source != Source::None && reaches(found)) {
        return ImageName::Symbols(found);
    }
    match image.and_then(|image| Some((image, image.export_at(rva)?))) {
        Some((image, (start, raw))) => {
            ImageName::Export { raw, function: export_name(raw, image, style), displacement: rva - start }
        }
        None => match image.and_then(|image| image.tables.function_range(rva)) {
            Some(function) => ImageName::Function {
                start: function.start,
                displacement: Some(rva).filter(|rva| function.contains(rva)).map(|rva| rva - function.start),
            },
            None => ImageName::Offset,
        },
    }
}

/// The name of a function that nothing else is known of than where it starts:
/// `module.dll!fn_1a2b0`, by its RVA.
pub fn unnamed_function(module: &str, start: u64) -> String {
    format!("{module}!fn_{start:x}")
}

/// The name of code that nothing else is known of: `module.dll+0x1234`.
pub fn offset_name(module: &str, offset: u64) -> String {
    format!("{module}+{offset:#x}")
}

/// An exported name in its displayed form.
fn export_name<'a>(name: &'a str, image: &ModuleImage, style: Demangle) -> Cow<'a, str> {
    let shown = demangle(name, style);
    let decorated = image.tables.arch() == stk_unwind::Arch::X86 && style != Demangle::None && shown == name;
    if decorated { Cow::Borrowed(undecorate_x86(name, NameTable::Others)) } else { shown }
}

/// The RVA to look up: the instruction's own, or for a return address that of the call.
fn lookup_rva(exact: bool, rva: u32) -> u32 {
    if exact { rva } else { rva.saturating_sub(1) }
}

/// The symbols of the images that hold sites.
struct ImageSymbols {
    by_image: BTreeMap<ImageId, AddressSymbols>,
}

/// The symbols of an image's addresses.
struct AddressSymbols {
    /// Sorted.
    rvas: Vec<u32>,
    symbols: ModuleSymbols,
    /// By the text's id in the module: its id among all texts, once it has one.
    texts: Vec<Option<StrId>>,
}

impl ImageSymbols {
    /// Looks up the addresses that no runtime has named.
    fn look_up<'s>(
        sources: &NameSources<'_>,
        sites: impl Iterator<Item = (&'s Site, &'s MethodAt)>,
    ) -> ImageSymbols {
        let mut wanted: BTreeMap<ImageId, Vec<u32>> = BTreeMap::new();
        for (site, _) in sites.filter(|(_, method)| !method.is_named()) {
            if let Placement::Image(image, rva) = site.place {
                wanted.entry(image).or_default().push(lookup_rva(site.exact, rva));
            }
        }
        let mut modules: Vec<(ImageId, Vec<u32>)> = wanted.into_iter().collect();
        for (_, rvas) in &mut modules {
            rvas.sort_unstable();
            rvas.dedup();
        }
        // Large modules first, so that the last task to begin is a small one.
        modules.sort_by_key(|(_, rvas)| std::cmp::Reverse(rvas.len()));
        let NameSources { trace, images, symbolizer, .. } = sources;
        let resolve = |(image, rvas): (ImageId, Vec<u32>)| {
            let at = image.0 as usize;
            let arch = recorded_arch(images[at].tables.arch()).unwrap_or(trace.header().arch);
            let key = ModuleKey::of(&trace.timeline.images[at].image, arch);
            let symbols = symbolizer.resolve(&key, &rvas);
            let texts = vec![None; symbols.texts().len()];
            (image, AddressSymbols { rvas, symbols, texts })
        };
        let resolved: Vec<_> = modules.into_par_iter().map(resolve).collect();
        ImageSymbols { by_image: resolved.into_iter().collect() }
    }
}

/// Collects the names of sites, in their order.
struct NameWriter<'a> {
    sources: &'a NameSources<'a>,
    finder: MethodFinder<'a>,
    symbols: ImageSymbols,
    names: Names,
}

impl NameWriter<'_> {
    fn site(&mut self, site: &Site, method: MethodAt) {
        if method.is_named() {
            return self.method(site, method);
        }
        let runtimes = &self.sources.methods.runtimes;
        let kind = match site.place {
            Placement::Image(image, _) if runtimes.contains(&image) => FrameKind::Runtime,
            Placement::Image(..) => FrameKind::Native,
            Placement::Code(..) => FrameKind::Dynamic,
            Placement::Unknown(_) => FrameKind::Unknown,
        };
        self.names.symbols.facts.push(FrameFacts { kind, ..FrameFacts::default() });
        match site.place {
            Placement::Image(image, rva) => self.in_image(image, rva, site.exact),
            Placement::Code(region, offset) => self.dynamic(region, offset, &method),
            Placement::Unknown(address) => {
                let reason = self.finder.ambiguity(&method);
                let reason = reason.as_deref().unwrap_or("in no module that was loaded at that time");
                self.nameless(&format!("{address:#x}"), reason);
            }
        }
    }

    fn method(&mut self, site: &Site, method: MethodAt) {
        let MethodAt::Method { id, address, line, reason } = method else { return };
        let method = self.sources.methods.map.get(id);
        let (file, line) = match &line {
            Some(line) => (Some(self.text(&line.file)), Some(line.line)),
            None => (None, None),
        };
        let function = match self.sources.symbolizer.demangle() {
            Demangle::None => self.text(&method.name),
            Demangle::Full | Demangle::Short => self.as_written(&method.name),
        };
        self.names.symbols.named.push(NamedFrame { function, file, line, inline: false });
        let kind = match method.kind {
            MethodKind::Managed => FrameKind::Managed,
            MethodKind::Stub => FrameKind::Stub,
        };
        let module = self.finder.module_name(method).map(|name| self.text(name));
        let place = self.place_in(method, address);
        let facts = FrameFacts { kind, tier: method.tier, module, method: place, displacement: None };
        self.names.symbols.facts.push(facts);
        let reason = reason.map(|reason| self.text(&reason.to_string()));
        let inside = address.saturating_sub(method.base) + u64::from(!site.exact);
        self.end(NameSource::Runtime, reason, u32::try_from(inside).ok());
    }

    /// The name of the frame's method as in the source. What the runtime calls it, if that is
    /// another name, becomes a further name of the frame.
    fn as_written(&mut self, name: &str) -> StrId {
        let written = readable(name);
        let function = self.text(&written);
        if written != name {
            let own = self.text(name);
            let symbols = &mut self.names.symbols;
            symbols.aliases.insert(FrameId(symbols.source.len() as u32), Box::new([own]));
        }
        function
    }

    /// The place of an address in a method of a module whose build is known.
    fn place_in(&self, method: &Method, address: u64) -> Option<MethodPlace> {
        let module = &self.sources.methods.modules[method.module? as usize];
        let build = match module.pdb_guid == [0; 16] {
            true => self.runtime_build(module)?,
            false => module.pdb_guid,
        };
        let native = u32::try_from(address.saturating_sub(method.base)).ok();
        let il_offset = method.lines.as_ref().and_then(|lines| lines.il_offset(native?));
        (method.token != 0).then_some(MethodPlace { module: build, token: method.token, il_offset })
    }

    /// The build of a runtime's core library, which runs only with the runtime of the same build:
    /// the GUID of that one's PDB.
    fn runtime_build(&self, module: &ManagedModule) -> Option<[u8; 16]> {
        let timeline = &self.sources.trace.timeline;
        let [runtime] = timeline.runtimes.as_slice() else { return None };
        if !module.file_name().eq_ignore_ascii_case("System.Private.CoreLib.dll") {
            return None;
        }
        let loaded = timeline.modules.iter().find(|module| module.instance == runtime.module)?;
        Some(timeline.images[loaded.image.0 as usize].image.code_view?.0)
    }

    fn in_image(&mut self, image: ImageId, rva: u32, exact: bool) {
        let at = image.0 as usize;
        let inside = lookup_rva(exact, rva);
        let NameSources { trace, images, symbolizer, .. } = *self.sources;
        let known = self.symbols.by_image.get_mut(&image);
        let (found, texts) = match known {
            Some(AddressSymbols { rvas, symbols, texts }) => {
                (rvas.binary_search(&inside).ok().and_then(|n| symbols.get(n)), texts.as_mut_slice())
            }
            None => (None, &mut [][..]),
        };
        let reason = found.and_then(|found| found.why_not().map(ToString::to_string));
        // Return addresses were looked up one byte lower.
        let back = u32::from(!exact);
        match image_name(found, Some(&images[at]), inside, symbolizer.demangle()) {
            ImageName::Symbols(found) => {
                let source = if found.source == Source::Pdb { NameSource::Pdb } else { NameSource::Dwarf };
                let displacement = found.displacement + back;
                add_symbols(&mut self.names.symbols, found, texts);
                self.end(source, None, Some(displacement));
            }
            ImageName::Export { function, displacement, .. } => {
                let function = function.into_owned();
                let reason = reason.unwrap_or_else(|| NOT_COVERED.to_owned());
                self.only(&function, NameSource::Export, &reason, Some(displacement + back));
            }
            ImageName::Function { start, displacement } => {
                let name = unnamed_function(&trace.timeline.images[at].image.name, start.into());
                let reason = reason.unwrap_or_else(|| NOT_COVERED.to_owned());
                let displacement = displacement.map(|displacement| displacement + back);
                self.only(&name, NameSource::None, &reason, displacement);
            }
            ImageName::Offset => {
                let name = offset_name(&trace.timeline.images[at].image.name, rva.into());
                let reason = reason.unwrap_or_else(|| NOT_COVERED.to_owned());
                self.nameless(&name, &reason);
            }
        }
    }

    /// Names code that was made at run time and that no runtime has named.
    fn dynamic(&mut self, region: u32, offset: u32, method: &MethodAt) {
        let code = &self.sources.trace.timeline.code[region as usize];
        let address = code.base.wrapping_add(offset.into());
        let ambiguity = self.finder.ambiguity(method);
        let reason = match ambiguity.as_deref() {
            Some(reason) => reason,
            None if code.is_stub() => "a stub made at run time, without unwind data",
            None => "made at run time, and no runtime reported its name",
        };
        if code.is_one_piece() {
            let base = code.base;
            let name = match code.is_stub() {
                true => format!("{DYNAMIC_CODE}!stub_{base:x}"),
                false => unnamed_function(DYNAMIC_CODE, base),
            };
            return self.only(&name, NameSource::None, reason, Some(offset));
        }
        self.nameless(&offset_name(DYNAMIC_CODE, address), reason);
    }

    fn nameless(&mut self, text: &str, reason: &str) {
        self.only(text, NameSource::None, reason, None);
    }

    fn only(&mut self, text: &str, source: NameSource, reason: &str, displacement: Option<u32>) {
        let (function, reason) = (self.text(text), self.text(reason));
        self.names.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
        self.end(source, Some(reason), displacement);
    }

    /// The id of a text that comes from the trace, as far as the memory budget allows.
    fn text(&mut self, text: &str) -> StrId {
        let Names { symbols, left_out, .. } = &mut self.names;
        let budget = &self.sources.trace.budget;
        if symbols.strings.holds(text) || budget.take(TEXT + text.len()) {
            return symbols.strings.intern(text);
        }
        *left_out += 1;
        symbols.strings.intern(NO_MEMORY)
    }

    fn end(&mut self, source: NameSource, reason: Option<StrId>, displacement: Option<u32>) {
        let symbols = &mut self.names.symbols;
        symbols.source.push(source);
        symbols.reason.push(reason);
        symbols.starts.push(symbols.named.len() as u32);
        if let Some(facts) = symbols.facts.last_mut() {
            facts.displacement = displacement;
        }
        self.names.displacements.push(displacement);
    }
}

const NOT_COVERED: &str = "no symbol covers the address";

/// Replaces a text that there is no memory for.
const NO_MEMORY: &str = "(left out: --max-memory)";

/// Bytes that it takes to keep a text, beside its own.
const TEXT: usize = 96;

/// Adds the functions of an address. `texts` holds the ids that the module's texts already have.
fn add_symbols(symbols: &mut FrameSymbols, found: Resolution<'_>, texts: &mut [Option<StrId>]) {
    let FrameSymbols { strings, named, source, aliases, .. } = symbols;
    let mut text = |id: u32| *texts[id as usize].get_or_insert_with(|| strings.intern(found.text(id)));
    for frame in found.stored() {
        named.push(NamedFrame {
            function: text(frame.function),
            file: frame.file.map(&mut text),
            line: frame.line,
            inline: frame.inline,
        });
    }
    if !found.stored_aliases().is_empty() {
        let others = found.stored_aliases().iter().map(|&id| text(id)).collect();
        aliases.insert(FrameId(source.len() as u32), others);
    }
}
