//! Compares the index with the records, address by address.

use super::{PdbRecords, Procedure, RecordFrame, RecordsError};
use crate::index::{Hit, RecordKind, SymbolIndex};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of disagreements that are shown.
const MOST_EXAMPLES: usize = 12;
/// Addresses between two progress reports.
const STEP: u64 = 4096;

/// The outcome of a comparison.
#[derive(Default, Debug, Serialize)]
pub struct Agreement {
    /// Addresses looked up.
    pub rvas: u64,
    /// Of these, inside a procedure record.
    pub in_procedures: u64,
    /// Of these, with inline frames by the records.
    pub inlined: u64,
    /// Of these, with a line on the outermost level by the records.
    pub with_line: u64,
    /// Addresses whose outermost name is wrong.
    pub wrong_names: u64,
    /// Addresses whose chain of names is wrong.
    pub wrong_chains: u64,
    /// Addresses with a wrong file or line on some level.
    pub wrong_lines: u64,
    /// Addresses in procedures that share their code with others, by the records (identical-code
    /// folding).
    pub folded: u64,
    /// Addresses for which the index lists other sharers than the records.
    pub wrong_aliases: u64,
    /// The first disagreements.
    pub examples: Vec<String>,
}

/// The kind of a disagreement, with the expected value.
enum Disagreement {
    Name(String),
    Chain(String),
    Line(String),
    Aliases(String),
}

impl Agreement {
    /// Whether every address agrees, and there is at least one.
    pub fn complete(&self) -> bool {
        self.rvas != 0 && self.wrong() == 0
    }

    /// Number of addresses that disagree.
    pub fn wrong(&self) -> u64 {
        self.wrong_names + self.wrong_chains + self.wrong_lines + self.wrong_aliases
    }

    fn add(&mut self, rva: u32, frames: &[RecordFrame], disagreement: Disagreement) {
        let (counter, expected) = match disagreement {
            Disagreement::Name(expected) => (&mut self.wrong_names, expected),
            Disagreement::Chain(expected) => (&mut self.wrong_chains, expected),
            Disagreement::Line(expected) => (&mut self.wrong_lines, expected),
            Disagreement::Aliases(expected) => (&mut self.wrong_aliases, expected),
        };
        *counter += 1;
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("{rva:#x}: {frames:?} instead of {expected}"));
        }
    }
}

impl PdbRecords {
    /// Looks up every address of the code in `index` and compares. `done` counts addresses.
    ///
    /// # Errors
    ///
    /// When the index cannot be read, or the records overlap too much.
    pub fn compare(&self, index: &SymbolIndex, done: &AtomicU64) -> Result<Agreement, RecordsError> {
        let mut agreement = Agreement::default();
        for &(from, to) in &self.code {
            for rva in from..to {
                self.compare_one(rva, index, &mut agreement)?;
                if agreement.rvas.is_multiple_of(STEP) {
                    done.fetch_add(STEP, Ordering::Relaxed);
                }
            }
        }
        Ok(agreement)
    }

    fn compare_one(&self, rva: u32, index: &SymbolIndex, out: &mut Agreement) -> Result<(), RecordsError> {
        out.rvas += 1;
        let hit = index.lookup(rva)?;
        let frames: Vec<RecordFrame> = hit
            .iter()
            .flat_map(|hit| hit.frames())
            .map(|frame| (frame.name.to_owned(), frame.file.map(str::to_owned), frame.line))
            .collect();
        let holders = self.procedures.at(rva).ok_or(RecordsError::Overlap(rva))?;
        let result = if holders.is_empty() {
            self.outside(rva, &frames, hit.as_ref())
        } else {
            out.in_procedures += 1;
            self.inside(rva, &holders, &frames, hit.as_ref(), index, out)
        };
        if let Err(disagreement) = result {
            out.add(rva, &frames, disagreement);
        }
        Ok(())
    }

    /// Outside of procedures, an address has the name of the nearest public at or below it, or
    /// none.
    fn outside(&self, rva: u32, frames: &[RecordFrame], hit: Option<&Hit<'_>>) -> Result<(), Disagreement> {
        let nearest = self.publics[..self.publics.partition_point(|public| public.0 <= rva)].last();
        let allowed = |name: &str| {
            let at = nearest.map_or(0, |nearest| nearest.0);
            let from = self.publics.partition_point(|public| public.0 < at);
            self.publics[from..].iter().take_while(|public| public.0 == at).any(|public| public.1 == name)
        };
        let right = match (frames, hit.and_then(Hit::range)) {
            ([], _) => true,
            ([frame], Some(range)) if range.kind == RecordKind::Public => allowed(&frame.0),
            // Thunk records have names but no rows.
            ([_], Some(range)) => range.kind == RecordKind::Thunk,
            _ => false,
        };
        if right { Ok(()) } else { Err(Disagreement::Name(format!("{nearest:?}"))) }
    }

    fn inside(
        &self,
        rva: u32,
        holders: &[(u32, &Procedure)],
        frames: &[RecordFrame],
        hit: Option<&Hit<'_>>,
        index: &SymbolIndex,
        out: &mut Agreement,
    ) -> Result<(), Disagreement> {
        let range = hit.and_then(Hit::range);
        let start = range.as_ref().map(|range| range.start);
        let outermost = frames.last();
        let is_named = |&&(from, p): &&(u32, &Procedure)| {
            outermost.is_some_and(|frame| frame.0 == p.name) && Some(from) == start
        };
        let named: Vec<&Procedure> = holders.iter().filter(is_named).map(|&(_, p)| p).collect();
        let Some((winner, start)) = named.first().zip(start) else {
            let names: Vec<&str> = holders.iter().map(|(_, p)| p.name.as_str()).collect();
            return Err(Disagreement::Name(format!("one of {names:?}")));
        };
        // Procedures that begin at the winner's address have the same code.
        let sharers: BTreeSet<&str> = self
            .procedures
            .starting_at(start)
            .map(|p| &*p.name)
            .filter(|name| *name != winner.name)
            .collect();
        let aliases: BTreeSet<&str> = range
            .iter()
            .flat_map(|range| range.aliases(index))
            .filter(|alias| alias.1 == RecordKind::Procedure)
            .map(|alias| alias.0)
            .collect();
        if aliases != sharers {
            return Err(Disagreement::Aliases(format!("aliases {sharers:?}, not {aliases:?}")));
        }
        let expected: Vec<Vec<RecordFrame>> = named.iter().map(|p| p.chain(rva)).collect();
        if expected.iter().any(|chain| chain == frames) {
            out.folded += u64::from(!sharers.is_empty());
            out.inlined += u64::from(frames.len() > 1);
            out.with_line += u64::from(outermost.is_some_and(|frame| frame.2.is_some()));
            return Ok(());
        }
        let text = format!("{expected:?} (module {})", winner.module);
        let same_names =
            |chain: &Vec<RecordFrame>| chain.iter().map(|f| &f.0).eq(frames.iter().map(|f| &f.0));
        Err(if expected.iter().any(same_names) {
            Disagreement::Line(text)
        } else {
            Disagreement::Chain(text)
        })
    }
}
