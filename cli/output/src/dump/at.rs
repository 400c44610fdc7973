//! The code at an address of a trace: at a moment, or each that was there at some time.

use super::stack::{Name, names_of};
use super::text::site;
use serde::Serialize;
use std::fmt::Write;
use stk_base::text::since_start;
use stk_profile::stack::{self, FrameId, NameSources, Placement, Site};
use stk_profile::trace::Trace;
use stk_schema::Ticks;
use stk_schema::event::ModuleFlags;
use stk_schema::text::{file_name, printable};

/// A module or code that was made at run time, at an address for a time.
struct HolderAt<'a> {
    module: &'a str,
    path: &'a str,
    base: u64,
    size: u64,
    place: Placement,
    /// A moment at which it was there.
    seen: Ticks,
    /// `None`: from before the recording on.
    from: Option<Ticks>,
    /// `None`: to the trace's end.
    until: Option<Ticks>,
}

/// An address with what was there: a line of JSON. Where nothing was, all but the address is null
/// or empty.
#[derive(Default, Serialize)]
struct AddressJson<'a> {
    address: String,
    /// Empty for code that was made at run time.
    module: Option<&'a str>,
    path: Option<&'a str>,
    base: Option<String>,
    rva: Option<String>,
    /// Null: from before the recording on.
    from_ns: Option<u64>,
    /// Null: to the trace's end.
    until_ns: Option<u64>,
    frames: Vec<AddressFrameJson<'a>>,
}

#[derive(Serialize)]
struct AddressFrameJson<'a> {
    function: &'a str,
    displacement: Option<u32>,
    file: Option<&'a str>,
    line: Option<u32>,
    inline: bool,
}

/// The code at addresses, in their order: what was there at `time`, or without it each that was
/// there at some time, by time. As text, or as lines of JSON; and how many names are left out for
/// lack of memory. Runs in the caller's rayon pool.
///
/// # Errors
///
/// That JSON cannot be written.
pub fn text(
    sources: &NameSources<'_>,
    addresses: &[u64],
    time: Option<Ticks>,
    json: bool,
) -> serde_json::Result<(String, u64)> {
    let trace = sources.trace;
    let found: Vec<(u64, Vec<HolderAt<'_>>)> =
        addresses.iter().map(|&address| (address, holders(trace, address, time))).collect();
    let site_of = |(address, holder): (u64, &HolderAt<'_>)| Site {
        place: holder.place,
        exact: true,
        seen: Some((address, trace.clock.ns(holder.seen))),
    };
    let each = found.iter().flat_map(|(address, all)| all.iter().map(|holder| (*address, holder)));
    let sites: Vec<Site> = each.map(site_of).collect();
    let names = stack::name(sources, &sites);
    let mut ids = (0..).map(FrameId);
    let mut text = String::new();
    for (address, holders) in &found {
        if holders.is_empty() {
            let none = AddressJson { address: format!("{address:#x}"), ..AddressJson::default() };
            let json = if json { Some(serde_json::to_string(&none)?) } else { None };
            let _ = match json {
                Some(line) => writeln!(text, "{line}"),
                None => writeln!(text, "{address:#x} in no module and in no recorded code"),
            };
        }
        for (holder, id) in holders.iter().zip(&mut ids) {
            let named = names_of(&names, id);
            if json {
                text += &json_line(trace, *address, holder, &named)?;
            } else {
                lines(trace, *address, holder, &named, &mut text);
            }
        }
    }
    Ok((text, names.left_out))
}

/// What was at an address, by time.
fn holders<'a>(trace: &'a Trace<'_>, address: u64, time: Option<Ticks>) -> Vec<HolderAt<'a>> {
    let timeline = &trace.timeline;
    let module = |index: usize| {
        let module = &timeline.modules[index];
        let path = timeline.images[module.image.0 as usize].image.path.as_str();
        let at_start = module.flags.contains(ModuleFlags::AT_START);
        HolderAt {
            module: file_name(path),
            path,
            base: module.base,
            size: module.size,
            place: Placement::Image(module.image, rva(address, module.base)),
            seen: time.unwrap_or(module.load),
            from: (!at_start).then_some(module.load),
            until: module.unload,
        }
    };
    let code = |index: usize| {
        let region = &timeline.code[index];
        HolderAt {
            module: "",
            path: "",
            base: region.base,
            size: region.size,
            place: Placement::Code(index as u32, rva(address, region.base)),
            seen: time.unwrap_or(region.add),
            from: Some(region.add),
            until: region.remove,
        }
    };
    if let Some(time) = time {
        let mut view = timeline.view();
        view.go(time);
        let found = view.find(address).map(|live| module(live.module as usize));
        return found
            .or_else(|| view.find_code(address).map(|index| code(index as usize)))
            .into_iter()
            .collect();
    }
    let modules = (0..timeline.modules.len()).map(module);
    let mut all: Vec<HolderAt<'a>> = modules
        .chain((0..timeline.code.len()).map(code))
        .filter(|holder| address.checked_sub(holder.base).is_some_and(|inside| inside < holder.size))
        .collect();
    all.sort_by_key(|holder| holder.from);
    all
}

/// The offset of an address. Modules and code are smaller than 4 GiB.
fn rva(address: u64, base: u64) -> u32 {
    address.wrapping_sub(base) as u32
}

fn json_line(
    trace: &Trace<'_>,
    address: u64,
    holder: &HolderAt<'_>,
    names: &[Name],
) -> serde_json::Result<String> {
    let hex = |value: u64| format!("{value:#x}");
    let line = AddressJson {
        address: hex(address),
        module: Some(holder.module),
        path: Some(holder.path),
        base: Some(hex(holder.base)),
        rva: Some(hex(address - holder.base)),
        from_ns: holder.from.map(|time| trace.clock.ns(time)),
        until_ns: holder.until.map(|time| trace.clock.ns(time)),
        frames: names
            .iter()
            .enumerate()
            .map(|(n, name)| AddressFrameJson::of(name, n + 1 < names.len()))
            .collect(),
    };
    Ok(serde_json::to_string(&line)? + "\n")
}

impl AddressFrameJson<'_> {
    fn of(name: &Name, inline: bool) -> AddressFrameJson<'_> {
        AddressFrameJson {
            function: &name.function,
            displacement: name.displacement,
            file: name.file.as_deref(),
            line: name.line,
            inline,
        }
    }
}

/// `0x180001010 plugin_a.dll+0x1010, loaded 0.012 s to 0.104 s`, and its names below it.
fn lines(trace: &Trace<'_>, address: u64, holder: &HolderAt<'_>, names: &[Name], text: &mut String) {
    let since = |time: Option<Ticks>, none: &str| {
        time.map_or_else(|| none.to_owned(), |time| since_start(trace.clock.ns(time)))
    };
    let (from, until) = (since(holder.from, "the start"), since(holder.until, "the end"));
    let inside = address - holder.base;
    let place = if holder.module.is_empty() { "code made at run time" } else { &*printable(holder.module) };
    let _ = writeln!(text, "{address:#x} {place}+{inside:#x}, loaded from {from} to {until}");
    for (n, name) in names.iter().enumerate() {
        let inline = if n + 1 < names.len() { " (inlined)" } else { "" };
        let _ = writeln!(text, "    {}{inline}", site(holder.module, name));
    }
}
