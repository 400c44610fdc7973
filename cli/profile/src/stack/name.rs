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
use hashbrown::HashMap;
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

/// Names sites, in their order. Runs in the caller's rayon pool: names are found by all threads,
/// while one numbers the texts of those before.
pub fn name(sources: &NameSources<'_>, sites: &[Site]) -> Names {
    let finder = MethodFinder::new(sources);
    let methods: Vec<MethodAt> = sites.par_iter().map(|site| finder.find(site)).collect();
    let symbols = ImageSymbols::look_up(sources, sites.iter().zip(&methods));
    let mut writer = NameWriter::new(sources, &finder, &symbols, sites.len());
    let mut batches = sites.chunks(BATCH).zip(methods.chunks(BATCH));
    let mut find = || {
        let (sites, methods) = batches.next()?;
        let find_one = |(site, method)| (site, method, FoundName::of(sources, &symbols, site, method));
        Some(sites.par_iter().zip(methods).map(find_one).collect::<Vec<_>>())
    };
    let mut found = find();
    while let Some(batch) = found {
        let write = || batch.into_iter().for_each(|(site, method, found)| writer.site(site, method, found));
        ((), found) = rayon::join(write, &mut find);
    }
    writer.names
}

/// Sites whose names are found before those of the next ones.
const BATCH: usize = 1 << 12;

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
}

impl ImageSymbols {
    /// Looks up the addresses that no runtime has named.
    fn look_up<'s>(
        sources: &NameSources<'_>,
        sites: impl Iterator<Item = (&'s Site, &'s MethodAt)>,
    ) -> ImageSymbols {
        let NameSources { trace, images, symbolizer, .. } = sources;
        let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); images.len()];
        for (site, _) in sites.filter(|(_, method)| !method.is_named()) {
            if let Placement::Image(ImageId(image), rva) = site.place {
                wanted[image as usize].push(lookup_rva(site.exact, rva));
            }
        }
        let wanted = (0..).map(ImageId).zip(wanted);
        let mut modules: Vec<(ImageId, Vec<u32>)> = wanted.filter(|(_, rvas)| !rvas.is_empty()).collect();
        // Large modules first, so that the last task to begin is a small one.
        modules.sort_by_key(|(_, rvas)| std::cmp::Reverse(rvas.len()));
        let resolve = |(image, mut rvas): (ImageId, Vec<u32>)| {
            rvas.par_sort_unstable();
            rvas.dedup();
            let at = image.0 as usize;
            let arch = recorded_arch(images[at].tables.arch()).unwrap_or(trace.header().arch);
            let key = ModuleKey::of(&trace.timeline.images[at].image, arch);
            let symbols = symbolizer.resolve(&key, &rvas);
            (image, AddressSymbols { rvas, symbols })
        };
        let resolved: Vec<_> = modules.into_par_iter().map(resolve).collect();
        ImageSymbols { by_image: resolved.into_iter().collect() }
    }
}

/// The name of a site whose texts have no ids yet.
enum FoundName<'a> {
    /// That of its method, as in the source.
    Method(Cow<'a, str>),
    /// That of code in an image, at an RVA.
    Image(ImageId, u32, ImageName<'a>),
    /// None, at an offset of a dynamic code region.
    Code(u32, u32),
    /// None, at an address in no module.
    Unknown(u64),
}

impl<'a> FoundName<'a> {
    fn of(
        sources: &NameSources<'a>,
        symbols: &'a ImageSymbols,
        site: &Site,
        method: &MethodAt,
    ) -> FoundName<'a> {
        let NameSources { images, methods, symbolizer, .. } = *sources;
        let style = symbolizer.demangle();
        match (method, site.place) {
            (MethodAt::Method { id, .. }, _) => {
                let name = &*methods.map.get(*id).name;
                FoundName::Method(if style == Demangle::None { name.into() } else { readable(name) })
            }
            (_, Placement::Image(image, rva)) => {
                let inside = lookup_rva(site.exact, rva);
                let known = symbols.by_image.get(&image);
                let found =
                    known.and_then(|known| known.symbols.get(known.rvas.binary_search(&inside).ok()?));
                let name = image_name(found, Some(&images[image.0 as usize]), inside, style);
                FoundName::Image(image, rva, name)
            }
            (_, Placement::Code(region, offset)) => FoundName::Code(region, offset),
            (_, Placement::Unknown(address)) => FoundName::Unknown(address),
        }
    }
}

/// Collects the names of sites, in their order.
struct NameWriter<'a> {
    sources: &'a NameSources<'a>,
    finder: &'a MethodFinder<'a>,
    symbols: &'a ImageSymbols,
    /// By image, as far as sites are in it.
    images: HashMap<ImageId, ImageTexts>,
    names: Names,
}

/// The ids of texts that an image's sites have in common.
#[derive(Default)]
struct ImageTexts {
    /// By the text's id in the image's symbols.
    symbols: Vec<Option<StrId>>,
    /// Names of functions without symbols, by where they start.
    functions: HashMap<u32, StrId>,
    /// Why there is no better name.
    reason: Option<StrId>,
}

impl<'a> NameWriter<'a> {
    /// A writer for so many sites.
    fn new(
        sources: &'a NameSources<'a>,
        finder: &'a MethodFinder<'a>,
        symbols: &'a ImageSymbols,
        sites: usize,
    ) -> NameWriter<'a> {
        let names = Names {
            symbols: FrameSymbols {
                starts: Vec::with_capacity(sites + 1),
                named: Vec::with_capacity(sites),
                source: Vec::with_capacity(sites),
                reason: Vec::with_capacity(sites),
                facts: Vec::with_capacity(sites),
                ..FrameSymbols::default()
            },
            displacements: Vec::with_capacity(sites),
            left_out: 0,
        };
        let mut writer = NameWriter { sources, finder, symbols, images: HashMap::new(), names };
        writer.names.symbols.starts.push(0);
        writer
    }

    fn site(&mut self, site: &Site, method: &MethodAt, found: FoundName<'_>) {
        let runtimes = &self.sources.methods.runtimes;
        let kind = match found {
            FoundName::Method(written) => return self.method(site, method, &written),
            FoundName::Image(image, ..) if runtimes.contains(&image) => FrameKind::Runtime,
            FoundName::Image(..) => FrameKind::Native,
            FoundName::Code(..) => FrameKind::Dynamic,
            FoundName::Unknown(_) => FrameKind::Unknown,
        };
        self.names.symbols.facts.push(FrameFacts { kind, ..FrameFacts::default() });
        match found {
            FoundName::Method(_) => {}
            FoundName::Image(image, rva, name) => self.in_image(image, rva, site.exact, name),
            FoundName::Code(region, offset) => self.dynamic(region, offset, method),
            FoundName::Unknown(address) => {
                let reason = self.finder.ambiguity(method);
                let reason = reason.as_deref().unwrap_or("in no module that was loaded at that time");
                self.only_text(&format!("{address:#x}"), reason, None);
            }
        }
    }

    /// Names code in a method, which is `written` so in the source. What the runtime calls it, if
    /// that is another name, becomes a further name of the frame.
    fn method(&mut self, site: &Site, method: &MethodAt, written: &str) {
        let MethodAt::Method { id, address, line, reason } = method else { return };
        let method = self.sources.methods.map.get(*id);
        let (file, line) = match &line {
            Some(line) => (Some(self.text(&line.file)), Some(line.line)),
            None => (None, None),
        };
        let function = self.text(written);
        if *written != *method.name {
            let own = self.text(&method.name);
            let symbols = &mut self.names.symbols;
            symbols.aliases.insert(FrameId(symbols.source.len() as u32), Box::new([own]));
        }
        self.names.symbols.named.push(NamedFrame { function, file, line, inline: false });
        let kind = match method.kind {
            MethodKind::Managed => FrameKind::Managed,
            MethodKind::Stub => FrameKind::Stub,
        };
        let module = self.finder.module_name(method).map(|name| self.text(name));
        let place = self.place_in(method, *address);
        let facts = FrameFacts { kind, tier: method.tier, module, method: place, displacement: None };
        self.names.symbols.facts.push(facts);
        let reason = reason.as_ref().map(|reason| self.text(&reason.to_string()));
        let inside = address.saturating_sub(method.base) + u64::from(!site.exact);
        self.end(NameSource::Runtime, reason, u32::try_from(inside).ok());
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

    fn in_image(&mut self, image: ImageId, rva: u32, exact: bool, name: ImageName<'_>) {
        // Return addresses were looked up one byte lower.
        let back = u32::from(!exact);
        let (function, source, displacement) = match name {
            ImageName::Symbols(found) => {
                let source = if found.source == Source::Pdb { NameSource::Pdb } else { NameSource::Dwarf };
                add_symbols(
                    &mut self.names.symbols,
                    found,
                    &mut self.images.entry(image).or_default().symbols,
                );
                return self.end(source, None, Some(found.displacement + back));
            }
            ImageName::Export { function, displacement, .. } => {
                (self.text(&function), NameSource::Export, Some(displacement + back))
            }
            ImageName::Function { start, displacement } => {
                let displacement = displacement.map(|displacement| displacement + back);
                (self.unnamed_function(image, start), NameSource::None, displacement)
            }
            ImageName::Offset => {
                let name = offset_name(self.image_file(image), rva.into());
                (self.text(&name), NameSource::None, None)
            }
        };
        let reason = self.image_reason(image);
        self.only(function, source, reason, displacement);
    }

    /// The id of the name of a function of an image that has no symbol.
    fn unnamed_function(&mut self, image: ImageId, start: u32) -> StrId {
        let known = self.images.get(&image).and_then(|image| image.functions.get(&start));
        if let Some(known) = known {
            return *known;
        }
        let name = unnamed_function(self.image_file(image), start.into());
        match self.affordable(&name) {
            Some(id) => *self.images.entry(image).or_default().functions.entry(start).or_insert(id),
            None => self.left_out(),
        }
    }

    /// The id of the reason why addresses of an image have no better name.
    fn image_reason(&mut self, image: ImageId) -> StrId {
        if let Some(known) = self.images.get(&image).and_then(|image| image.reason) {
            return known;
        }
        let symbols = self.symbols.by_image.get(&image);
        let reason = symbols.and_then(|known| known.symbols.why_not()).map(ToString::to_string);
        match self.affordable(reason.as_deref().unwrap_or("no symbol covers the address")) {
            Some(id) => *self.images.entry(image).or_default().reason.insert(id),
            None => self.left_out(),
        }
    }

    fn image_file(&self, image: ImageId) -> &'a str {
        &self.sources.trace.timeline.images[image.0 as usize].image.name
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
            return self.only_text(&name, reason, Some(offset));
        }
        self.only_text(&offset_name(DYNAMIC_CODE, address), reason, None);
    }

    fn only_text(&mut self, text: &str, reason: &str, displacement: Option<u32>) {
        let (function, reason) = (self.text(text), self.text(reason));
        self.only(function, NameSource::None, reason, displacement);
    }

    fn only(&mut self, function: StrId, source: NameSource, reason: StrId, displacement: Option<u32>) {
        self.names.symbols.named.push(NamedFrame { function, file: None, line: None, inline: false });
        self.end(source, Some(reason), displacement);
    }

    /// The id of a text that comes from the trace, as far as the memory budget allows.
    fn text(&mut self, text: &str) -> StrId {
        self.affordable(text).unwrap_or_else(|| self.left_out())
    }

    /// The id of a text; `None` if it is new, and there is no memory for it.
    fn affordable(&mut self, text: &str) -> Option<StrId> {
        let strings = &mut self.names.symbols.strings;
        let budget = &self.sources.trace.budget;
        (strings.holds(text) || budget.take(TEXT + text.len())).then(|| strings.intern(text))
    }

    /// The id of what replaces a text.
    fn left_out(&mut self) -> StrId {
        self.names.left_out += 1;
        self.names.symbols.strings.intern(NO_MEMORY)
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

/// Replaces a text that there is no memory for.
const NO_MEMORY: &str = "(left out: --max-memory)";

/// Bytes that it takes to keep a text, beside its own.
const TEXT: usize = 96;

/// Adds the functions of an address. `texts` holds the ids that the module's texts already have.
fn add_symbols(symbols: &mut FrameSymbols, found: Resolution<'_>, texts: &mut Vec<Option<StrId>>) {
    texts.resize(found.text_count(), None);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::trace::Budget;
    use stk_symbols::{SymbolPath, SymbolStore};
    use stk_tests::traces;

    /// Sites of functions with exports, functions without, and places in no module, some of them
    /// several times.
    fn sites(count: u32) -> Vec<Site> {
        let site = |n: u32| {
            let rva = traces::FIRST_FUNCTION + n.wrapping_mul(7919) % 50_000;
            let place = match n % 3 {
                2 => Placement::Unknown(u64::from(rva / 16)),
                image => Placement::Image(ImageId(image), rva),
            };
            Site { place, exact: n.is_multiple_of(2), seen: None }
        };
        (0..count).map(site).collect()
    }

    #[test]
    fn texts_are_numbered_in_order_as_far_as_memory_allows() {
        let mut builder = traces::trace();
        traces::load_system(&mut builder);
        let file = builder.finish();
        let mut trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let methods = crate::runtimes::methods(&trace);
        let store = SymbolStore::new(SymbolPath::default());
        let symbolizer = Symbolizer::new(store, Demangle::default());
        let sites = sites(3 * BATCH as u32 + 1);
        // The texts of each site, named without the others: its name, then the reason.
        let sources =
            NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
        let alone = |site: &Site| {
            let Names { symbols, .. } = name(&sources, &[*site]);
            let (function, reason) = (symbols.named[0].function, symbols.reason[0].unwrap());
            [function, reason].map(|id| symbols.strings.get(id).to_owned())
        };
        let texts: Vec<String> = sites.iter().flat_map(alone).collect();
        for (bytes, threads) in [(u64::MAX, 1), (u64::MAX, 4), (50_000, 1), (50_000, 4)] {
            let (mut left, mut left_out) = (bytes, 0);
            let mut numbers: HashMap<&str, u32> = HashMap::new();
            let expected: Vec<u32> = texts
                .iter()
                .map(|text| {
                    let next = numbers.len() as u32;
                    let needed = (TEXT + text.len()) as u64;
                    if !numbers.contains_key(text.as_str()) && left < needed {
                        left_out += 1;
                        return *numbers.entry(NO_MEMORY).or_insert(next);
                    }
                    *numbers.entry(text).or_insert_with(|| {
                        left -= needed;
                        next
                    })
                })
                .collect();
            trace.budget = Budget::new(bytes);
            let sources =
                NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let names = pool.install(|| name(&sources, &sites));
            let reasons = names.symbols.reason.iter().map(|reason| reason.unwrap());
            let functions = names.symbols.named.iter().map(|named| named.function);
            let ids: Vec<u32> =
                functions.zip(reasons).flat_map(|(function, reason)| [function.0, reason.0]).collect();
            assert!(ids == expected, "{bytes} bytes, {threads} threads");
            assert_eq!(names.left_out, left_out);
            assert_eq!(left_out > 0, bytes < u64::MAX);
        }
    }
}
