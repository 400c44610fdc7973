//! The DBI stream: modules, section contributions, and the numbers of the other streams.

use std::borrow::Cow;
use std::collections::HashSet;

use super::error::PdbError;
use super::msf::{Msf, MsfStream};
use stk_base::model::bytes::{c_str_at, u16_at, u32_at};

/// Stream number that means "none".
const NO_STREAM: u16 = u16::MAX;
const CONTRIBUTIONS_V60: u32 = 0xeffe_0000 + 19_970_605;
const CONTRIBUTIONS_V2: u32 = 0xeffe_0000 + 20_140_516;
/// IMAGE_SCN_MEM_EXECUTE.
const MEM_EXECUTE: u32 = 0x2000_0000;

/// The decoded contents of the DBI stream.
pub(super) struct Dbi {
    /// Age in the linker's count, which the image's CodeView record carries.
    pub(super) age: u32,
    /// COFF machine number of the image.
    pub(super) machine: u16,
    /// Stream of all global symbol records, publics among them.
    pub(super) symbol_records: Option<u32>,
    /// The object files that were linked.
    pub(super) modules: Vec<DbiModule>,
    /// The parts of sections that each module contributed, sorted by address.
    pub(super) contributions: Vec<Contribution>,
    /// The image's sections in the linker's view. Symbol addresses refer to these.
    pub(super) sections: Vec<DbiSection>,
    /// The sections that are not empty, sorted by address.
    sorted_sections: Vec<DbiSection>,
    /// Number of modules that state the same stream as another one. Their streams are left out.
    pub(super) damaged: u32,
    /// (rva in the image, rva as linked), sorted; empty unless a post-link tool moved code.
    pub(super) omap_to_source: Vec<(u32, u32)>,
    /// Numbers of the optional debug streams, by kind.
    debug_streams: Vec<u16>,
}

/// One object file.
pub(super) struct DbiModule {
    /// Its name: the object file's path, or its name within a library.
    pub(super) name: Vec<u8>,
    /// Its symbol and line stream.
    pub(super) stream: Option<u32>,
    /// Bytes of symbol records, with the leading signature.
    pub(super) symbol_bytes: u32,
    /// Bytes of old line information, which is skipped.
    pub(super) c11_bytes: u32,
    /// Bytes of C13 line information.
    pub(super) c13_bytes: u32,
}

impl DbiModule {
    /// Its C13 line information; `None` if there is none or it lies outside the file.
    pub(super) fn c13<'m>(&self, msf: &'m Msf<'m>) -> Option<Cow<'m, [u8]>> {
        let at = (self.symbol_bytes as usize).checked_add(self.c11_bytes as usize)?;
        msf.stream(self.stream?)?.read(at, self.c13_bytes as usize)
    }

    /// Bytes of it that are read.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.symbol_bytes) + u64::from(self.c13_bytes)
    }
}

/// A piece of code that one module contributed.
#[derive(Clone, Copy)]
pub(super) struct Contribution {
    /// First rva.
    pub(super) start: u32,
    /// First rva behind it.
    pub(super) end: u32,
    /// Index of the module.
    pub(super) module: u32,
}

#[derive(Clone, Copy)]
pub(super) struct DbiSection {
    /// Rva of its first byte.
    pub(super) start: u32,
    /// Size in memory.
    pub(super) size: u32,
    /// Whether it is executable.
    pub(super) executable: bool,
}

impl Dbi {
    /// Decodes the DBI stream, and the section headers and OMAP streams that it refers to.
    pub(super) fn read(msf: &Msf<'_>, stream: MsfStream<'_>) -> Result<Dbi, PdbError> {
        let dbi = stream.read_all()?;
        let word = |at| u32_at(&dbi, at).ok_or(PdbError::corrupt("DBI header", at));
        let half = |at| u16_at(&dbi, at).ok_or(PdbError::corrupt("DBI header", at));
        if word(0)? != u32::MAX {
            return Err(PdbError::OldFormat);
        }
        // Sizes of the substreams that follow the 64-byte header, in their order.
        let sizes = [24, 28, 32, 36, 40, 52, 48].map(|at| word(at).map(|size| size as usize));
        let mut at = 64usize;
        let mut substreams = [&dbi[..0]; 7];
        for (substream, size) in substreams.iter_mut().zip(sizes) {
            let size = size?;
            *substream = stk_base::model::bytes::slice_at(&dbi, at, size)
                .ok_or(PdbError::corrupt("size of a DBI substream", at))?;
            at += size;
        }
        let [modules, contributions, _section_map, _files, _type_servers, _edit_and_continue, debug] =
            substreams;

        let debug_stream = |n: usize| {
            u16_at(debug, n * 2).filter(|&number| number != NO_STREAM).and_then(|n| msf.stream(u32::from(n)))
        };
        let headers = debug_stream(5);
        let original_headers = debug_stream(10);
        let omap_to_source = match (debug_stream(3), original_headers) {
            (Some(stream), Some(_)) => read_omap(&stream.read_all()?),
            _ => Vec::new(),
        };
        // Symbols refer to the original sections. OMAP maps the image's addresses to those.
        let sections = match if omap_to_source.is_empty() { headers } else { original_headers } {
            Some(stream) => read_sections(&stream.read_all()?),
            None => Vec::new(),
        };
        let symbol_records = half(20)?;
        let mut modules = read_modules(modules)?;
        let damaged = leave_out_repeated_streams(&mut modules);
        let mut sorted_sections = sections.clone();
        sorted_sections.retain(|section| section.size != 0);
        sorted_sections.sort_by_key(|section| section.start);
        Ok(Dbi {
            age: word(8)?,
            machine: half(58)?,
            symbol_records: (symbol_records != NO_STREAM).then_some(u32::from(symbol_records)),
            modules,
            contributions: read_contributions(contributions, &sections),
            sections,
            sorted_sections,
            damaged,
            omap_to_source,
            debug_streams: debug
                .chunks_exact(2)
                .map(|number| u16::from_le_bytes([number[0], number[1]]))
                .collect(),
        })
    }

    /// Number of the optional debug stream of that kind (cvinfo.h: 0 FPO, 9 new FPO).
    pub(super) fn debug_stream(&self, kind: usize) -> Option<u32> {
        self.debug_streams.get(kind).copied().filter(|&number| number != NO_STREAM).map(u32::from)
    }

    /// The rva of `offset` in the section numbered from 1, if there is such a section and the
    /// offset is in it.
    pub(super) fn rva(&self, section: u16, offset: u32) -> Option<u32> {
        section_rva(&self.sections, section, offset)
    }

    /// The end of the section that holds `rva`, if that section is executable.
    pub(super) fn code_end(&self, rva: u32) -> Option<u32> {
        let after = self.sorted_sections.partition_point(|section| section.start <= rva);
        let section = self.sorted_sections[..after].last().filter(|s| rva - s.start < s.size)?;
        section.executable.then_some(section.start.saturating_add(section.size))
    }

    /// The contribution that holds `rva`.
    pub(super) fn contribution(&self, rva: u32) -> Option<Contribution> {
        let after = self.contributions.partition_point(|c| c.start <= rva);
        self.contributions[..after].last().copied().filter(|c| rva < c.end)
    }
}

fn section_rva(sections: &[DbiSection], section: u16, offset: u32) -> Option<u32> {
    let section = sections.get(usize::from(section).checked_sub(1)?)?;
    (offset <= section.size).then(|| section.start.checked_add(offset)).flatten()
}

fn read_modules(data: &[u8]) -> Result<Vec<DbiModule>, PdbError> {
    let mut modules = Vec::new();
    let mut at = 0usize;
    while at + 64 <= data.len() {
        let bad = || PdbError::corrupt("DBI module record", at);
        let number = u16_at(data, at + 34).ok_or_else(bad)?;
        let [symbol_bytes, c11_bytes, c13_bytes] = [36, 40, 44].map(|n| u32_at(data, at + n).unwrap_or(0));
        let module_name = c_str_at(data, at + 64).ok_or_else(bad)?;
        modules.push(DbiModule {
            name: module_name.to_vec(),
            stream: (number != NO_STREAM).then_some(u32::from(number)),
            symbol_bytes,
            c11_bytes,
            c13_bytes,
        });
        let name = module_name.len() + 1;
        let object = c_str_at(data, at + 64 + name).ok_or_else(bad)?.len() + 1;
        at = (at + 64 + name + object).next_multiple_of(4);
    }
    Ok(modules)
}

/// A stream belongs to one module. Of several modules with the same stream, the first keeps it:
/// reading it for each of many such modules would take too long. Returns the number of the others.
fn leave_out_repeated_streams(modules: &mut [DbiModule]) -> u32 {
    let mut known = HashSet::new();
    let repeated = modules.iter_mut().filter_map(|module| {
        let number = module.stream?;
        (!known.insert(number)).then(|| module.stream = None)
    });
    repeated.count() as u32
}

fn read_contributions(data: &[u8], sections: &[DbiSection]) -> Vec<Contribution> {
    let size = match u32_at(data, 0) {
        Some(CONTRIBUTIONS_V60) => 28,
        Some(CONTRIBUTIONS_V2) => 32,
        _ => return Vec::new(),
    };
    let mut contributions: Vec<Contribution> = data[4..]
        .chunks_exact(size)
        .filter_map(|record| {
            let start = section_rva(sections, u16_at(record, 0)?, u32_at(record, 4)?)?;
            let end = start.checked_add(u32_at(record, 8)?)?;
            (start < end).then_some(Contribution { start, end, module: u32::from(u16_at(record, 16)?) })
        })
        .collect();
    contributions.sort_by_key(|c| (c.start, c.end, c.module));
    contributions
}

fn read_sections(data: &[u8]) -> Vec<DbiSection> {
    data.chunks_exact(40)
        .take(usize::from(u16::MAX))
        .filter_map(|header| {
            let [virtual_size, start, raw_size, flags] = [8, 12, 16, 36].map(|at| u32_at(header, at));
            let (virtual_size, raw_size) = (virtual_size?, raw_size?);
            Some(DbiSection {
                start: start?,
                size: if virtual_size == 0 { raw_size } else { virtual_size },
                executable: flags? & MEM_EXECUTE != 0,
            })
        })
        .collect()
}

fn read_omap(data: &[u8]) -> Vec<(u32, u32)> {
    let mut map: Vec<(u32, u32)> =
        data.chunks_exact(8).filter_map(|entry| Some((u32_at(entry, 0)?, u32_at(entry, 4)?))).collect();
    map.sort_by_key(|&(from, _)| from);
    map
}
