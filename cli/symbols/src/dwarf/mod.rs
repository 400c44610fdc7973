//! Symbols inside an image: DWARF (MinGW, Rust for windows-gnu, Go), Go's table of functions, the
//! COFF symbol table, exported names.

mod compressed;
mod line_header;

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use gimli::{
    Abbreviations, AttributeValue, DebugAbbrev, DebuggingInformationEntry, EndianSlice, LittleEndian,
    Section as _, UnitHeader, UnitOffset,
};
use object::pe;
use object::read::pe::{ImageNtHeaders, PeFile};
use thiserror::Error;

use self::compressed::Unpacked;
use super::coff::{add_sizeless, code_sections, coff_symbols, sections};
use super::go::{self, GoTable};
use super::image::{ImageFile, ImageFileError};
use super::index::build::IndexBuilder;
use super::index::layout::{FunctionRecord, InlineRow, InlineSite, LineRow, NONE, RecordKind, StringId};
use super::index::{IndexError, IndexHeader, Origin, SymbolIndex};

type DwarfSlice<'d> = EndianSlice<'d, LittleEndian>;
type Dwarf<'d> = gimli::Dwarf<DwarfSlice<'d>>;
type Unit<'d> = gimli::Unit<DwarfSlice<'d>>;
type DwarfEntry<'d> = DebuggingInformationEntry<DwarfSlice<'d>>;

/// Limit for the references from an entry to the one that has its name.
const MAX_REFERENCES: u32 = 16;
/// Limit for functions nested in each other (lambdas, Go closures).
const MAX_NESTED: usize = 256;
/// Units that are kept for references from others. Units that refer to each other lie close
/// together.
const KEPT_UNITS: usize = 64;
/// If the inline sites of a function take more rows than this, it counts as damaged and keeps only
/// its own rows.
const MAX_INLINE_ROWS: usize = 1 << 20;

/// Why no index can be made of an image's own symbols.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageIndexError {
    /// Its headers cannot be read.
    #[error(transparent)]
    Headers(#[from] ImageFileError),
    /// Its sections cannot be read.
    #[error(transparent)]
    Sections(object::read::Error),
    /// Its DWARF cannot be read.
    #[error(transparent)]
    Dwarf(gimli::Error),
    /// Its symbols do not fit into an index.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// Reads the symbols in an image; `None` if it has none.
///
/// # Errors
///
/// Why the image cannot be read. A damaged unit is left out and counted in the index's header.
pub fn image_index(data: &[u8]) -> Result<Option<SymbolIndex>, ImageIndexError> {
    let image = ImageFile::parse(data)?;
    let header = IndexHeader {
        guid: [0; 16],
        age: 0,
        machine: image.machine,
        time_date_stamp: image.time_date_stamp,
        size_of_image: image.size_of_image,
        origin: Origin::Exports,
        damaged_parts: 0,
    };
    if image.is_64 {
        read::<pe::ImageNtHeaders64>(data, &image, header)
    } else {
        read::<pe::ImageNtHeaders32>(data, &image, header)
    }
}

fn read<H: ImageNtHeaders>(
    data: &[u8],
    image: &ImageFile,
    mut header: IndexHeader,
) -> Result<Option<SymbolIndex>, ImageIndexError> {
    let file = PeFile::<H>::parse(data).map_err(ImageIndexError::Sections)?;
    let mut builder = IndexBuilder::new(data.len());
    let sections = sections(&file, &mut builder);
    let unpacked = Unpacked::new(&sections, &mut builder);
    let section = |id: gimli::SectionId| -> Result<DwarfSlice<'_>, gimli::Error> {
        let plain = sections.get(id.name().as_bytes()).copied();
        Ok(EndianSlice::new(plain.or(unpacked.section(id.name())).unwrap_or(&[]), LittleEndian))
    };
    let dwarf = Dwarf::load(section).map_err(ImageIndexError::Dwarf)?;
    let (symbols, all) = coff_symbols(&file, image.image_base, data.len());
    let mut reader = DwarfReader {
        mangled: symbols.iter().filter(|symbol| is_mangled(symbol.1)).copied().collect(),
        dwarf: &dwarf,
        base: image.image_base,
        size: image.size_of_image,
        builder: &mut builder,
        headers: Vec::new(),
        tables: Vec::new(),
        abbreviations: HashMap::new(),
        kept: VecDeque::new(),
        loose_lines: Vec::new(),
        damaged: unpacked.damaged,
    };
    reader.units();
    header.damaged_parts = reader.damaged + u32::from(!all);
    let mut loose_lines = std::mem::take(&mut reader.loose_lines);
    loose_lines.sort_by_key(|row| row.start);
    if let Some(table) = GoTable::find(&file) {
        header.damaged_parts += go::add_functions(&mut builder, &table);
    }
    let code = code_sections(&file, image.image_base);
    if builder.ranges().len() != 0 {
        header.origin = Origin::Dwarf;
    }
    add_sizeless(&mut builder, symbols, &code, RecordKind::CoffSymbol, &loose_lines);
    if builder.ranges().len() != 0 && header.origin == Origin::Exports {
        header.origin = Origin::Coff;
    }
    let exports = image.exports.iter().map(|(rva, name)| (*rva, name.as_bytes())).collect();
    add_sizeless(&mut builder, exports, &code, RecordKind::Export, &[]);
    header.damaged_parts += u32::from(builder.is_exhausted());
    if builder.ranges().len() == 0 {
        return Ok(None);
    }
    Ok(Some(builder.finish(header)?))
}

/// Whether the name is mangled: Itanium, Rust or MSVC, also behind the underscore that x86 puts
/// before C names.
fn is_mangled(name: &[u8]) -> bool {
    [&b"_Z"[..], b"__Z", b"_R", b"__R", b"?"].iter().any(|prefix| name.starts_with(prefix))
}

struct DwarfReader<'a, 'd> {
    /// Mangled names of the COFF symbol table. They qualify functions whose entries have only a
    /// plain name.
    mangled: HashMap<u32, &'a [u8]>,
    dwarf: &'a Dwarf<'d>,
    base: u64,
    size: u32,
    builder: &'a mut IndexBuilder,
    /// Headers of the units, sorted by offset.
    headers: Vec<UnitHeader<DwarfSlice<'d>>>,
    /// Offsets of the tables of abbreviations, sorted.
    tables: Vec<usize>,
    /// Tables of abbreviations that were read.
    abbreviations: HashMap<usize, Arc<Abbreviations>>,
    /// Units that others refer to, by their number. The last one is the newest.
    kept: VecDeque<(usize, Rc<Unit<'d>>)>,
    /// Rows for code that no function of their unit covers: assembler, units whose functions are
    /// described in another file.
    loose_lines: Vec<LineRow>,
    damaged: u32,
}

/// A function that is being read.
struct OpenFunction {
    depth: isize,
    name: StringId,
    ranges: Vec<(u32, u32)>,
    sites: Vec<InlineSite>,
    /// (site, range) of every inline site.
    site_ranges: Vec<(u32, (u32, u32))>,
    /// Depth and number of the sites that enclose the current entry.
    around: Vec<(isize, u32)>,
}

/// The files of a unit by their number in its line table.
type Files = Vec<StringId>;

impl<'d> DwarfReader<'_, 'd> {
    fn units(&mut self) {
        let mut headers = self.dwarf.units();
        loop {
            match headers.next() {
                Ok(Some(header)) => self.headers.push(header),
                Ok(None) => break,
                // If a header is damaged, the next one cannot be found.
                Err(_) => {
                    self.damaged += 1;
                    break;
                }
            }
        }
        self.tables = self.headers.iter().map(|header| header.debug_abbrev_offset().0).collect();
        self.tables.sort_unstable();
        self.tables.dedup();
        for number in 0..self.headers.len() {
            if self.builder.is_exhausted() {
                break;
            }
            let read = self.open_unit(number).and_then(|unit| self.unit(&unit));
            self.damaged += u32::from(read.is_err());
        }
    }

    /// Reads the header of a unit. With it, `gimli` reads the file names of the unit's line
    /// program.
    fn open_unit(&mut self, number: usize) -> gimli::Result<Unit<'d>> {
        let header = self.headers[number];
        let abbreviations = self.abbreviations(header.debug_abbrev_offset().0)?;
        if let Some(root) = header.entries(&abbreviations).next_dfs()? {
            line_header::check(self.dwarf, root)?;
        }
        let unit = Unit::new_with_abbreviations(self.dwarf, header, abbreviations)?;
        let lines = unit.line_program.as_ref().map(|program| program.header());
        let names = lines.map_or(0, |lines| lines.file_names().len() + lines.include_directories().len());
        self.builder.spend(1 + names);
        Ok(unit)
    }

    /// The table of abbreviations at an offset. It is cut where the next one begins, so that
    /// overlapping tables are not read repeatedly.
    fn abbreviations(&mut self, offset: usize) -> gimli::Result<Arc<Abbreviations>> {
        if let Some(known) = self.abbreviations.get(&offset) {
            return Ok(known.clone());
        }
        let all = self.dwarf.debug_abbrev.reader().slice();
        let next = self.tables.partition_point(|&table| table <= offset);
        let end = self.tables.get(next).map_or(all.len(), |&next| next.min(all.len()));
        let table = DebugAbbrev::new(&all[..end], LittleEndian);
        let read = Arc::new(table.abbreviations(gimli::DebugAbbrevOffset(offset))?);
        self.abbreviations.insert(offset, read.clone());
        Ok(read)
    }

    fn unit(&mut self, unit: &Unit<'d>) -> gimli::Result<()> {
        let (lines, files) = match self.lines(unit) {
            Ok(lines) => lines,
            Err(_) => {
                self.damaged += 1;
                Default::default()
            }
        };
        let first = self.builder.ranges().len();
        let mut entries = unit.entries();
        // Functions can be nested in others (lambdas, Go closures).
        let mut open: Vec<OpenFunction> = Vec::new();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            if !self.builder.spend(entry.attrs().len()) {
                break;
            }
            while open.last().is_some_and(|function| function.depth >= depth) {
                if let Some(function) = open.pop() {
                    self.close(function, &lines);
                }
            }
            if let Some(function) = open.last_mut() {
                while function.around.last().is_some_and(|&(outer, _)| outer >= depth) {
                    function.around.pop();
                }
            }
            match entry.tag() {
                gimli::DW_TAG_subprogram if open.len() >= MAX_NESTED => self.damaged += 1,
                gimli::DW_TAG_subprogram => {
                    let ranges = self.ranges(unit, entry)?;
                    let name = self.name(unit, entry, 0).unwrap_or(NONE);
                    let (sites, site_ranges, around) = Default::default();
                    open.push(OpenFunction { depth, name, ranges, sites, site_ranges, around });
                }
                gimli::DW_TAG_inlined_subroutine => {
                    let ranges = self.ranges(unit, entry)?;
                    let name = self.name(unit, entry, 0).unwrap_or(NONE);
                    let call_line =
                        entry.attr_value(gimli::DW_AT_call_line).and_then(|value| value.udata_value());
                    let call_file = match entry.attr_value(gimli::DW_AT_call_file) {
                        Some(AttributeValue::FileIndex(number)) => Some(number),
                        other => other.and_then(|value| value.udata_value()),
                    };
                    self.builder.spend(size_of::<InlineSite>());
                    if let Some(function) = open.last_mut() {
                        let site = function.sites.len() as u32;
                        function.sites.push(InlineSite {
                            parent: function.around.last().map_or(NONE, |&(_, site)| site),
                            name,
                            file: NONE,
                            call_line: call_line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0),
                            call_file: call_file.and_then(|n| files.get(n as usize)).copied().unwrap_or(NONE),
                        });
                        function.around.push((depth, site));
                        function.site_ranges.extend(ranges.into_iter().map(|range| (site, range)));
                    }
                }
                _ => {}
            }
        }
        while let Some(function) = open.pop() {
            self.close(function, &lines);
        }
        let loose = self.builder.loose_rows(&lines, first);
        if self.builder.spend(loose.len() * size_of::<LineRow>()) {
            self.loose_lines.extend(loose);
        }
        Ok(())
    }

    fn close(&mut self, function: OpenFunction, lines: &[LineRow]) {
        if function.name == NONE || function.ranges.is_empty() {
            return;
        }
        let mut inlined = Vec::new();
        for &(site, (start, end)) in &function.site_ranges {
            let passed = site_rows(site, start, end, lines, &mut inlined);
            if !self.builder.spend(passed) || inlined.len() > MAX_INLINE_ROWS {
                self.damaged += 1;
                inlined.clear();
                break;
            }
        }
        let mut name = function.name;
        if !is_mangled(self.builder.text(name).as_bytes())
            && let Some(mangled) = function.ranges.iter().find_map(|range| self.mangled.get(&range.0))
        {
            name = self.builder.string(mangled);
        }
        for (n, &(start, end)) in function.ranges.iter().enumerate() {
            let kind = if n == 0 { RecordKind::Procedure } else { RecordKind::SeparatedCode };
            if !self.builder.spend(inlined.len()) {
                break;
            }
            let inlined: Vec<InlineRow> = inlined
                .iter()
                .filter(|inlined| inlined.row.start < end && inlined.row.end > start)
                .copied()
                .collect();
            self.builder.add(&FunctionRecord {
                start,
                end,
                name,
                kind,
                lines,
                sites: &function.sites,
                inlined: &inlined,
            });
        }
    }

    /// Ranges of an entry as rvas. Ranges outside the image are left out (a linker sets dropped
    /// functions to 0).
    fn ranges(&mut self, unit: &Unit<'d>, entry: &DwarfEntry<'d>) -> gimli::Result<Vec<(u32, u32)>> {
        let mut ranges = Vec::new();
        let mut iter = self.dwarf.die_ranges(unit, entry)?;
        while let Some(range) = iter.next()? {
            if !self.builder.spend(size_of::<(u32, u32)>()) {
                break;
            }
            if let (Some(start), Some(end)) = (self.rva(range.begin), self.rva(range.end))
                && start < end
            {
                ranges.push((start, end));
            }
        }
        Ok(ranges)
    }

    fn rva(&self, address: u64) -> Option<u32> {
        let rva = u32::try_from(address.checked_sub(self.base)?).ok()?;
        (rva != 0 && rva <= self.size).then_some(rva)
    }

    /// The linkage name of an entry or of the one that it refers to; else its plain name.
    fn name(&mut self, unit: &Unit<'d>, entry: &DwarfEntry<'d>, depth: u32) -> Option<StringId> {
        for attribute in [gimli::DW_AT_linkage_name, gimli::DW_AT_MIPS_linkage_name] {
            if let Some(value) = entry.attr_value(attribute) {
                let text = self.text(unit, value)?;
                return Some(self.builder.string(text));
            }
        }
        if depth < MAX_REFERENCES {
            for attribute in [gimli::DW_AT_abstract_origin, gimli::DW_AT_specification] {
                let name = match entry.attr_value(attribute) {
                    Some(AttributeValue::UnitRef(offset)) => self.name_at(unit, offset, depth),
                    Some(AttributeValue::DebugInfoRef(offset)) => match offset.to_unit_offset(&unit.header) {
                        Some(offset) => self.name_at(unit, offset, depth),
                        None => self.name_in_other_unit(offset, depth),
                    },
                    _ => None,
                };
                if name.is_some() {
                    return name;
                }
            }
        }
        let text = self.text(unit, entry.attr_value(gimli::DW_AT_name)?)?;
        Some(self.builder.string(text))
    }

    fn text(&mut self, unit: &Unit<'d>, value: AttributeValue<DwarfSlice<'d>>) -> Option<&'d [u8]> {
        match self.dwarf.attr_string(unit, value) {
            Ok(text) => Some(text.slice()),
            Err(_) => {
                self.builder.spend_endless();
                None
            }
        }
    }

    fn name_at(&mut self, unit: &Unit<'d>, offset: UnitOffset, depth: u32) -> Option<StringId> {
        let entry = unit.entry(offset).ok()?;
        self.builder.spend(entry.attrs().len());
        self.name(unit, &entry, depth + 1)
    }

    fn name_in_other_unit(&mut self, offset: gimli::DebugInfoOffset, depth: u32) -> Option<StringId> {
        let starts = |header: &UnitHeader<DwarfSlice<'d>>| {
            header.debug_info_offset().is_some_and(|at| at.0 <= offset.0)
        };
        let number = self.headers.partition_point(starts).checked_sub(1)?;
        let inner = offset.to_unit_offset(&self.headers[number])?;
        let unit = self.kept_unit(number)?;
        self.name_at(&unit, inner, depth)
    }

    /// A unit that another one refers to.
    fn kept_unit(&mut self, number: usize) -> Option<Rc<Unit<'d>>> {
        if let Some((_, unit)) = self.kept.iter().find(|kept| kept.0 == number) {
            return Some(unit.clone());
        }
        let mut unit = self.open_unit(number).ok()?;
        // Only its entries are needed.
        unit.line_program = None;
        let unit = Rc::new(unit);
        if let Ok(Some(root)) = unit.entries().next_dfs() {
            self.builder.spend(root.attrs().len());
        }
        if self.kept.len() >= KEPT_UNITS {
            self.kept.pop_front();
        }
        self.kept.push_back((number, unit.clone()));
        Some(unit)
    }

    /// Line rows of a unit, sorted, and its files.
    fn lines(&mut self, unit: &Unit<'d>) -> gimli::Result<(Vec<LineRow>, Files)> {
        let Some(program) = unit.line_program.clone() else { return Ok(Default::default()) };
        let header = program.header();
        // Units can share a line program.
        self.builder.spend(header.raw_program_buf().len());
        let mut files = Files::new();
        // Up to DWARF 4, numbers begin at 1, and 0 is the unit itself.
        let count = header.file_names().len() as u64 + 1;
        for number in 0..count {
            if self.builder.is_exhausted() {
                break;
            }
            let name = header.file(number).and_then(|file| self.path(unit, header, file));
            files.push(name.unwrap_or(NONE));
        }
        let mut rows: Vec<LineRow> = Vec::new();
        let mut last: Option<(u32, StringId, u32)> = None;
        let mut iter = program.rows();
        while let Some((_, row)) = iter.next_row()? {
            if !self.builder.spend(size_of::<LineRow>() / 4) {
                break;
            }
            let here = self.rva(row.address());
            if let (Some((start, file, line)), Some(end)) = (last, here)
                && start < end
            {
                rows.push(LineRow { start, end, file, line });
            }
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
            let file = files.get(row.file_index() as usize).copied().unwrap_or(NONE);
            last = if row.end_sequence() { None } else { here.map(|start| (start, file, line)) };
        }
        rows.sort_by_key(|row| row.start);
        Ok((rows, files))
    }

    fn path(
        &mut self,
        unit: &Unit<'d>,
        header: &gimli::LineProgramHeader<DwarfSlice<'d>>,
        file: &gimli::FileEntry<DwarfSlice<'d>>,
    ) -> Option<StringId> {
        let absolute =
            |part: &[u8]| part.first().is_some_and(|c| b"/\\".contains(c)) || part.get(1) == Some(&b':');
        let mut path: Vec<u8> = self.text(unit, file.path_name())?.to_vec();
        // Before DWARF 5 the list of folders begins with number 1, and 0 is the unit's own.
        let folder = file.directory(header).filter(|_| file.directory_index() != 0 || header.version() >= 5);
        let folder = folder.and_then(|folder| self.text(unit, folder));
        for folder in [folder, unit.comp_dir.as_ref().map(|folder| folder.slice())] {
            if let Some(folder) = folder.filter(|folder| !folder.is_empty() && !absolute(&path)) {
                let separator = if folder.contains(&b'\\') && !folder.contains(&b'/') { b'\\' } else { b'/' };
                let mut joined = folder.to_vec();
                if !joined.ends_with(b"/") && !joined.ends_with(b"\\") {
                    joined.push(separator);
                }
                joined.append(&mut path);
                path = joined;
            }
        }
        Some(self.builder.string(&path))
    }
}

/// Adds the unit's rows within one range of a site, and fills the gaps with rows without a line.
/// Returns the number of rows that were looked at.
fn site_rows(site: u32, start: u32, end: u32, lines: &[LineRow], out: &mut Vec<InlineRow>) -> usize {
    let mut at = start;
    let mut passed = 1;
    let from = lines.partition_point(|line| line.end <= start);
    for line in lines[from..].iter().take_while(|line| line.start < end) {
        passed += 1;
        let row = LineRow { start: line.start.max(at), end: line.end.min(end), ..*line };
        if row.start >= row.end {
            continue;
        }
        if row.start > at {
            out.push(InlineRow { site, row: LineRow { start: at, end: row.start, file: NONE, line: 0 } });
        }
        out.push(InlineRow { site, row });
        at = row.end;
        if out.len() > MAX_INLINE_ROWS {
            break;
        }
    }
    if at < end {
        out.push(InlineRow { site, row: LineRow { start: at, end, file: NONE, line: 0 } });
    }
    passed
}
