//! C13 line numbers, read naively from a module's raw bytes.

use std::collections::{BTreeMap, HashMap};
use stk_base::model::bytes::{u16_at, u32_at};

const DEBUG_S_LINES: u32 = 0xf2;
const DEBUG_S_FILECHKSMS: u32 = 0xf4;

/// The C13 lines of one module.
#[derive(Default)]
pub(super) struct C13Lines {
    /// In the order of the module.
    subsections: Vec<Subsection>,
    /// Numbers of the subsections by first address.
    by_start: BTreeMap<u32, Vec<usize>>,
    /// Longest subsection, in bytes.
    longest: u32,
    /// Names by offset in the list of checksums.
    files: HashMap<u32, String>,
}

/// One DEBUG_S_LINES subsection, and the rvas that it covers.
pub(super) struct Subsection {
    pub start: u32,
    pub end: u32,
    /// In record order.
    pub rows: Vec<LineEntry>,
}

/// A line record: from `rva` on.
#[derive(Clone, Copy)]
pub(super) struct LineEntry {
    pub rva: u32,
    pub file: u32,
    pub line: u32,
}

impl LineEntry {
    /// 0 and the two "hidden" numbers are not lines.
    pub(super) fn is_line(&self) -> bool {
        ![0, 0xfe_efee, 0xf0_0f00].contains(&self.line)
    }
}

impl C13Lines {
    /// Reads the data up to the first invalid part.
    pub(super) fn read(
        c13: &[u8],
        rva_of: impl Fn(u16, u32) -> Option<u32>,
        file_name: impl Fn(u32) -> Option<String>,
    ) -> C13Lines {
        let mut lines = C13Lines::default();
        let mut at = 0;
        while let (Some(kind), Some(size)) = (u32_at(c13, at), u32_at(c13, at + 4)) {
            let from = at + 8;
            let Some(body) = c13.get(from..from.saturating_add(size as usize)) else { break };
            match kind {
                DEBUG_S_LINES => lines.subsections.extend(Subsection::read(body, &rva_of)),
                DEBUG_S_FILECHKSMS => lines.read_files(body, &file_name),
                _ => {}
            }
            at = (from + size as usize).next_multiple_of(4);
        }
        for (n, subsection) in lines.subsections.iter().enumerate() {
            lines.by_start.entry(subsection.start).or_default().push(n);
            lines.longest = lines.longest.max(subsection.end - subsection.start);
        }
        lines
    }

    fn read_files(&mut self, body: &[u8], file_name: &impl Fn(u32) -> Option<String>) {
        let mut at = 0;
        while let (Some(name), Some(&length)) = (u32_at(body, at), body.get(at + 4)) {
            if let Some(name) = file_name(name) {
                self.files.insert(at as u32, name);
            }
            at = (at + 6 + usize::from(length)).next_multiple_of(4);
        }
    }

    /// The name of a file.
    pub(super) fn file(&self, file: u32) -> Option<String> {
        self.files.get(&file).cloned()
    }

    pub(super) fn subsection(&self, number: usize) -> &Subsection {
        &self.subsections[number]
    }

    /// The subsections of the procedure that is the `ordinal`-th of this module at its address: its
    /// own first, then others that overlap it.
    pub(super) fn of_procedure(&self, start: u32, end: u32, ordinal: usize) -> Vec<usize> {
        let own = self.by_start.get(&start).and_then(|own| own.get(ordinal).or(own.first())).copied();
        let reaching = self.by_start.range(start.saturating_sub(self.longest)..end);
        let others =
            reaching.filter(|(base, _)| **base != start).flat_map(|(_, numbers)| numbers.iter().copied());
        own.into_iter().chain(others.filter(|&n| self.subsections[n].end > start)).collect()
    }
}

impl Subsection {
    fn read(body: &[u8], rva_of: &impl Fn(u16, u32) -> Option<u32>) -> Option<Subsection> {
        let start = rva_of(u16_at(body, 4)?, u32_at(body, 0)?)?;
        let end = start.checked_add(u32_at(body, 8)?)?;
        let mut rows = Vec::new();
        let mut block = 12;
        while let (Some(file), Some(count), Some(size)) =
            (u32_at(body, block), u32_at(body, block + 4), u32_at(body, block + 8))
        {
            for n in 0..count as usize {
                let entry = block + 12 + n * 8;
                let (Some(offset), Some(line)) = (u32_at(body, entry), u32_at(body, entry + 4)) else {
                    break;
                };
                rows.push(LineEntry { rva: start.wrapping_add(offset), file, line: line & 0xff_ffff });
            }
            // A block is at least as large as its head.
            block += (size as usize).max(12);
        }
        Some(Subsection { start, end, rows })
    }
}
