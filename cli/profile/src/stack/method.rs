//! Finds the methods of language runtimes that code is in.

use super::{NameSources, Placement, Site};
use crate::runtimes::dotnet::{Line, LineError, Lines};
use crate::runtimes::{self, Ambiguity, Method, MethodId, Methods};
use stk_schema::event::ModuleFlags;

/// Finds methods for sites.
pub(super) struct MethodFinder<'a> {
    methods: &'a Methods,
    lines: Lines<'a>,
    /// By image: its load addresses and times where methods are known.
    images: Vec<Vec<LoadInterval>>,
    /// Dynamic code, in the timeline's order.
    code: Vec<LoadInterval>,
}

/// An image or a code region at an address for a time, in nanoseconds since the trace's start.
struct LoadInterval {
    base: u64,
    from: u64,
    until: u64,
}

/// The method at a site, by the runtimes' reports.
pub(super) enum MethodAt {
    /// No method.
    None,
    /// The method that it is in.
    Method {
        id: MethodId,
        /// For a return address, one less.
        address: u64,
        line: Option<Line>,
        /// Why there is no line.
        reason: Option<LineError>,
    },
    /// Several methods were at this address, and the time does not show which of them it was.
    Ambiguous(Ambiguity),
}

impl MethodAt {
    pub(super) fn is_named(&self) -> bool {
        matches!(self, MethodAt::Method { .. })
    }
}

impl<'a> MethodFinder<'a> {
    pub(super) fn new(sources: &NameSources<'a>) -> MethodFinder<'a> {
        let NameSources { trace, methods, symbolizer, .. } = *sources;
        let (timeline, clock) = (&trace.timeline, trace.clock);
        let mut images: Vec<Vec<LoadInterval>> = timeline.images.iter().map(|_| Vec::new()).collect();
        for module in &timeline.modules {
            if methods.map.any_within(module.base, module.size) {
                let at_start = module.flags.contains(ModuleFlags::AT_START);
                images[module.image.0 as usize].push(LoadInterval {
                    base: module.base,
                    from: if at_start { 0 } else { clock.ns(module.load) },
                    until: module.unload.map_or(u64::MAX, |unload| clock.ns(unload)),
                });
            }
        }
        let code = timeline.code.iter().map(|code| LoadInterval {
            base: code.base,
            from: clock.ns(code.add),
            until: code.remove.map_or(u64::MAX, |remove| clock.ns(remove)),
        });
        let lines = runtimes::lines(methods, symbolizer.store());
        MethodFinder { methods, lines, images, code: code.collect() }
    }

    /// Finds the method at a site.
    pub(super) fn find(&self, site: &Site) -> MethodAt {
        // A return address belongs to the call before it.
        let back = u64::from(!site.exact);
        let in_stay = |stay: &LoadInterval, offset: u32| {
            let address = stay.base.saturating_add(offset.into()).saturating_sub(back);
            self.find_at(address, stay.from, stay.until, !site.exact)
        };
        match (site.seen, site.place) {
            _ if self.methods.map.is_empty() => MethodAt::None,
            (Some((address, time)), _) => self.find_at(address.saturating_sub(back), time, time, !site.exact),
            (None, Placement::Image(image, rva)) => {
                let mut found = self.images[image.0 as usize].iter().map(|stay| in_stay(stay, rva));
                found.find(|found| !matches!(found, MethodAt::None)).unwrap_or(MethodAt::None)
            }
            (None, Placement::Code(region, offset)) => in_stay(&self.code[region as usize], offset),
            (None, Placement::Unknown(address)) => {
                self.find_at(address.saturating_sub(back), 0, u64::MAX, !site.exact)
            }
        }
    }

    /// File name of a method's module.
    pub(super) fn module_name(&self, method: &Method) -> Option<&'a str> {
        let module = &self.methods.modules[method.module? as usize];
        Some(module.file_name()).filter(|name| !name.is_empty())
    }

    /// Says why no single method was chosen.
    pub(super) fn ambiguity(&self, method: &MethodAt) -> Option<String> {
        let MethodAt::Ambiguous(Ambiguity { methods }) = method else { return None };
        let [one, other] = methods.map(|id| &self.methods.map.get(id).name);
        Some(format!("at different times {one} and {other} were at this address"))
    }

    fn find_at(&self, address: u64, from: u64, until: u64, is_call: bool) -> MethodAt {
        match self.methods.map.find(address, from, until) {
            Ok(None) => MethodAt::None,
            Ok(Some(id)) => {
                let (line, reason) = match self.lines.line(id, address, is_call) {
                    Ok(line) => (Some(line), None),
                    Err(reason) => (None, Some(reason)),
                };
                MethodAt::Method { id, address, line, reason }
            }
            Err(ambiguity) => MethodAt::Ambiguous(ambiguity),
        }
    }
}
