//! The instructions of functions, with what samples come to in each.
//!
//! A sample's address is that of the instruction that was about to run, a return address that of
//! the one behind its call. Code is read from a function's beginning on; an address at which no
//! instruction begins then has a row of its own, which says so.

use super::code::{lengths, text};
use super::sums::PartSums;
use crate::stats::Amount;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use stk_base::model::ImageId;
use stk_profile::image::ModuleImage;
use stk_profile::profile::{Additive, FrameId, FrameKey, OwnTotal, Placement};
use stk_profile::trace::Trace;
use stk_unwind::ImageTables;

/// Where machine code is: in a trace and the images that were found for it.
#[derive(Clone, Copy)]
pub struct CodeSource<'a> {
    /// The trace of the profile.
    pub trace: &'a Trace<'a>,
    /// Its images, in the order of its timeline.
    pub images: &'a [ModuleImage],
}

impl std::fmt::Debug for CodeSource<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CodeSource({})", self.trace.source)
    }
}

/// Machine code of a function that belongs together.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CodeBlock {
    /// File name of the module, or `[dynamic code]`.
    pub module: String,
    /// What addresses count from: `module` for RVAs; `memory` for addresses as they were.
    pub base: &'static str,
    /// Samples that end in it.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Instructions that have samples, those around them, and addresses that are none, in order.
    pub rows: Vec<InstructionRow>,
}

/// An instruction, or an address that is none.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct InstructionRow {
    pub address: u64,
    /// Instructions that are left out before it.
    pub skipped: u64,
    /// The instruction; `None`: none that is known begins here.
    pub text: Option<String>,
    /// Why there is none.
    pub problem: Option<&'static str>,
    /// The source line of its samples, if there is one.
    pub line: Option<u32>,
    /// Samples that end in it.
    #[serde(rename = "self")]
    pub own: Amount,
    /// Samples that have it anywhere on the stack, each once.
    pub total: Amount,
}

/// Bytes from a function's beginning that are read as instructions.
const LONGEST: u32 = 64 << 10;
/// Bytes of all functions together.
const MOST: usize = 4 << 20;
/// Instructions around those with samples that are shown.
const CONTEXT: usize = 3;
/// Bytes behind the last sample that are read, where the function's end is not known.
const BEHIND: u32 = 32;

/// Bytes of an instruction of x64 (Intel SDM, volume 2, 2.3.11).
const LONGEST_INSTRUCTION: usize = 15;

const NO_CODE: &str = "no code: name the folder of the image with -y";
const BETWEEN: &str = "no instruction begins here";
const NO_CALL: &str = "no instruction ends here";
const NOT_READ: &str = "no code is read from the function's beginning up to here";

/// What holds code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum CodeHolder {
    Image(ImageId),
    Code(u32),
    /// No module: there is no code.
    Nothing,
}

/// A function's code in an image or region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FunctionCode {
    part: usize,
    holder: CodeHolder,
    /// Where the function begins, as an offset in the holder; 0 for [`CodeHolder::Nothing`].
    start: u32,
}

/// An address that samples have: an offset in its holder, or the address itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Address {
    at: u64,
    /// Whether it is that of an instruction, not one behind a call.
    exact: bool,
}

fn address_of(key: &FrameKey) -> (CodeHolder, Address) {
    let (holder, at) = match key.place {
        Placement::Image(image, rva) => (CodeHolder::Image(image), rva.into()),
        Placement::Code(region, offset) => (CodeHolder::Code(region), offset.into()),
        Placement::Unknown(address) => (CodeHolder::Nothing, address),
    };
    (holder, Address { at, exact: key.exact })
}

/// Where the instruction of a sample begins, or why that is not known.
type Found = Result<u64, &'static str>;

/// The code of a place.
#[derive(Default)]
struct Decoded {
    /// By offset: the length of the instruction there.
    instructions: BTreeMap<u64, u8>,
    found: HashMap<Address, Found>,
}

impl<'a> CodeSource<'a> {
    fn tables(&self, holder: CodeHolder) -> Option<&'a ImageTables> {
        match holder {
            CodeHolder::Image(ImageId(image)) => self.images.get(image as usize).map(|image| &image.tables),
            CodeHolder::Code(region) => {
                self.trace.timeline.code.get(region as usize).map(|region| &region.tables)
            }
            CodeHolder::Nothing => None,
        }
    }

    /// Where the function of an address begins: as symbols say, else as unwind data does.
    fn start(&self, holder: CodeHolder, address: Address, displacement: Option<u32>) -> u32 {
        let (Ok(at), Some(tables)) = (u32::try_from(address.at), self.tables(holder)) else { return 0 };
        let inside = if address.exact { at } else { at.saturating_sub(1) };
        let named = displacement.and_then(|displacement| at.checked_sub(displacement));
        let alone = if matches!(holder, CodeHolder::Code(_)) { 0 } else { at };
        named.or_else(|| tables.function_range(inside).map(|range| range.start)).unwrap_or(alone)
    }
}

/// By part: its code. Parts without samples are left out.
pub(super) fn blocks(sums: &PartSums<'_>, source: CodeSource<'_>) -> HashMap<usize, Vec<CodeBlock>> {
    let facts = &sums.profile.symbols.facts;
    let key = |frame: FrameId| sums.profile.frames.keys()[frame.0 as usize];
    let place = |part: usize, frame: FrameId| {
        let (holder, address) = address_of(&key(frame));
        let displacement = facts.get(frame.0 as usize).and_then(|facts| facts.displacement);
        (FunctionCode { part, holder, start: source.start(holder, address, displacement) }, address)
    };
    let mut wanted: BTreeMap<FunctionCode, Vec<Address>> = BTreeMap::new();
    sums.each_frame(|found| {
        for &(part, frame, _) in found {
            if let Some((place, address)) = part.map(|part| place(part, frame)) {
                wanted.entry(place).or_default().push(address);
            }
        }
    });
    let mut room = MOST;
    let decoded: HashMap<FunctionCode, Decoded> = wanted
        .into_iter()
        .map(|(at, mut addresses)| {
            addresses.sort_unstable();
            addresses.dedup();
            (at, decode(source.tables(at.holder), at.start, &addresses, &mut room))
        })
        .collect();
    // Two addresses may be of one instruction, so the sums come after the code.
    let spot = |part: usize, frame: FrameId| {
        let (place, address) = place(part, frame);
        let found = decoded.get(&place).and_then(|decoded| decoded.found.get(&address)).copied();
        let spot = match found.unwrap_or(Err(NO_CODE)) {
            Ok(at) => Spot { at, problem: None },
            Err(why) => Spot { at: address.at, problem: Some(why) },
        };
        (place, spot)
    };
    let mut rows: BTreeMap<FunctionCode, BTreeMap<Spot, Hit>> = BTreeMap::new();
    for ((place, spot), sum) in sums.by(|part, frame, _| spot(part, frame)) {
        let hit = Hit { sum, lines: BTreeSet::new() };
        rows.entry(place).or_default().insert(spot, hit);
    }
    sums.each_frame(|found| {
        for &(part, frame, name) in found {
            let Some((place, spot)) = part.map(|part| spot(part, frame)) else { continue };
            let hit = rows.get_mut(&place).and_then(|hits| hits.get_mut(&spot));
            hit.into_iter().for_each(|hit| hit.lines.extend(name.map(|name| name.line)));
        }
    });
    let mut blocks: HashMap<usize, Vec<CodeBlock>> = HashMap::new();
    for (place, hits) in rows {
        let decoded = decoded.get(&place).map(|decoded| &decoded.instructions);
        blocks.entry(place.part).or_default().push(block(sums, source, place, hits, decoded));
    }
    for list in blocks.values_mut() {
        list.sort_by_key(|block| std::cmp::Reverse(block.own.weight_ns));
    }
    blocks
}

/// An instruction, or an address that is none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Spot {
    at: u64,
    problem: Option<&'static str>,
}

/// Samples of an instruction, and their lines.
#[derive(Default)]
struct Hit {
    sum: OwnTotal<Amount>,
    lines: BTreeSet<Option<u32>>,
}

/// Finds the instructions of addresses in a function that begins at `start`.
fn decode(tables: Option<&ImageTables>, start: u32, addresses: &[Address], room: &mut usize) -> Decoded {
    let mut decoded = Decoded::default();
    let Some(tables) = tables else {
        decoded.found = addresses.iter().map(|&address| (address, Err(NO_CODE))).collect();
        return decoded;
    };
    let last = addresses.iter().map(|address| address.at).max().unwrap_or(0).min(u32::MAX.into()) as u32;
    let end = match tables.function_range(start) {
        Some(range) if range.contains(&start) && range.end > last => range.end,
        _ => last.saturating_add(BEHIND),
    };
    let bytes = tables.bytes(start).unwrap_or_default();
    let wanted = end.saturating_sub(start).min(LONGEST) as usize;
    let bytes = &bytes[..bytes.len().min(wanted).min(*room)];
    *room -= bytes.len();
    let mut known = u64::from(start);
    for len in lengths(tables.arch(), bytes) {
        decoded.instructions.insert(known, len);
        known += u64::from(len);
    }
    for &address in addresses {
        let at = address.at;
        if address.exact
            && !(u64::from(start)..known).contains(&at)
            && let Some(bytes) = u32::try_from(at).ok().and_then(|at| tables.bytes(at))
        {
            // What was recorded at the address itself, or lies far behind the beginning.
            let one = lengths(tables.arch(), &bytes[..bytes.len().min(LONGEST_INSTRUCTION)]);
            decoded.instructions.extend(one.first().map(|len| (at, *len)));
        }
        decoded.found.insert(address, find(&decoded.instructions, address, tables));
    }
    decoded
}

/// The instruction at an address, or the one that ends there.
fn find(instructions: &BTreeMap<u64, u8>, address: Address, tables: &ImageTables) -> Found {
    let at = address.at;
    if address.exact && instructions.contains_key(&at) {
        return Ok(at);
    }
    let before = instructions.range(..at).next_back();
    match before.map(|(from, len)| (*from, from + u64::from(*len))) {
        Some((from, end)) if !address.exact && end == at => Ok(from),
        Some((_, end)) if end > at => Err(if address.exact { BETWEEN } else { NO_CALL }),
        _ if u32::try_from(at).is_ok_and(|at| tables.bytes(at).is_some()) => Err(NOT_READ),
        _ => Err(NO_CODE),
    }
}

/// The rows of a place: its samples' instructions with those around them.
fn block(
    sums: &PartSums<'_>,
    source: CodeSource<'_>,
    place: FunctionCode,
    mut hits: BTreeMap<Spot, Hit>,
    instructions: Option<&BTreeMap<u64, u8>>,
) -> CodeBlock {
    let tables = source.tables(place.holder);
    let (module, base, offset) = match place.holder {
        CodeHolder::Image(ImageId(image)) => (sums.profile.images[image as usize].name.clone(), "module", 0),
        CodeHolder::Code(region) => {
            let base = sums.profile.code.get(region as usize).map_or(0, |code| code.base);
            (stk_base::model::DYNAMIC_CODE.to_owned(), "memory", base)
        }
        CodeHolder::Nothing => (String::new(), "memory", 0),
    };
    let list: Vec<(u64, u8)> = instructions.into_iter().flatten().map(|(at, len)| (*at, *len)).collect();
    let mut rows = Vec::new();
    let mut row = |at: u64, len: Option<u8>, hit: Hit, problem: Option<&'static str>, skipped: u64| {
        let code = len.and_then(|len| tables?.bytes(u32::try_from(at).ok()?)?.get(..usize::from(len)));
        let text = tables.zip(code).and_then(|(tables, code)| text(tables.arch(), code, offset + at));
        let problem = problem.or((text.is_none()).then_some(BETWEEN));
        let line = if hit.lines.len() == 1 { hit.lines.first().copied().flatten() } else { None };
        let OwnTotal { own, total } = hit.sum;
        rows.push(InstructionRow {
            address: offset.wrapping_add(at),
            skipped,
            text,
            problem,
            line,
            own,
            total,
        });
    };
    let mut shown = 0;
    let near = near(&list, &hits);
    for at in near {
        let (address, len) = list[at];
        let hit = hits.remove(&Spot { at: address, problem: None }).unwrap_or_default();
        row(address, Some(len), hit, None, (at - shown) as u64);
        shown = at + 1;
    }
    for (Spot { at, problem }, hit) in hits {
        row(at, None, hit, problem, 0);
    }
    rows.sort_by_key(|row| row.address);
    let mut own = Amount::default();
    rows.iter().for_each(|row| own.add(row.own));
    CodeBlock { module, base, own, rows }
}

/// The numbers of the instructions with samples and of those around them, in order.
fn near(list: &[(u64, u8)], hits: &BTreeMap<Spot, Hit>) -> Vec<usize> {
    let mut near = Vec::new();
    let mut next = 0;
    for Spot { at, problem } in hits.keys() {
        // An address within an instruction is shown behind it.
        let found = list.partition_point(|(address, _)| address <= at).checked_sub(1);
        let Some(found) = found.filter(|_| *problem != Some(NO_CODE)) else { continue };
        near.extend(found.saturating_sub(CONTEXT).max(next)..(found + CONTEXT + 1).min(list.len()).max(next));
        next = next.max((found + CONTEXT + 1).min(list.len()));
    }
    near
}
