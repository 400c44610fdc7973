//! Reads the records of a PDB for every address of its code, without the index, and checks that the
//! index agrees.
//!
//! The `pdb` crate decodes procedures, inline sites and ids. `lines` reads C13 lines naively from
//! the raw bytes. No code is shared with the readers in `symbols::pdb` that make the index. Each
//! address of each executable section is then looked up in the index, and must agree:
//!
//! - The outermost name is that of a procedure record whose range holds the address. If there is
//!   none, it is that of the nearest public at or below the address, or there is no name.
//! - The inline chain is the path through the S_INLINESITE records whose rows cover the address.
//! - Each line is that of the row that covers the address on its level. If there is none, there is
//!   no line.
//!
//! For procedures that were folded into one (several records and several line subsections with one
//! address), the n-th record belongs to the n-th subsection: object files have both in the same
//! order.

mod compare;
mod intervals;
mod lines;
mod names;
mod read;

pub use compare::Agreement;

use intervals::Intervals;
use lines::{C13Lines, LineEntry};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;

/// One frame as (name, file, line).
pub type RecordFrame = (String, Option<String>, Option<u32>);

/// Why the records cannot be read or compared.
#[derive(Debug, Error)]
pub enum RecordsError {
    /// The file cannot be opened.
    #[error("{path}: {error}")]
    Io {
        /// Path of the PDB.
        path: PathBuf,
        error: std::io::Error,
    },
    /// The `pdb` crate cannot read it.
    #[error("the crate `pdb` cannot read its records")]
    Pdb(#[from] pdb::Error),
    /// There is no list of sections.
    #[error("the PDB has no section headers")]
    NoSections,
    /// A module has no stream, or one that is shorter than stated.
    #[error("the stream of module {0} is missing or too short")]
    ModuleStream(String),
    /// Scopes are nested more deeply than compilers make them.
    #[error("procedures or inline sites are nested more than {} deep", read::MOST_SCOPES)]
    TooDeep,
    /// Too many procedures hold one address.
    #[error("too many procedures overlap at {0:#x}")]
    Overlap(u32),
    /// The index cannot be read.
    #[error(transparent)]
    Index(#[from] super::index::IndexError),
}

/// All records of a PDB that are about code.
pub struct PdbRecords {
    procedures: Intervals<Procedure>,
    /// (rva, name), sorted.
    publics: Vec<(u32, String)>,
    /// Executable sections as ranges of rvas.
    code: Vec<(u32, u32)>,
}

struct Procedure {
    name: String,
    /// Number of its module, from 1.
    module: usize,
    sites: Vec<InlineSiteRecord>,
    lines: Arc<C13Lines>,
    /// Its subsections of `lines`, its own first.
    subsections: Vec<usize>,
}

/// An S_INLINESITE record.
struct InlineSiteRecord {
    /// The site that it is nested in, by number.
    parent: Option<usize>,
    name: String,
    file: Option<u32>,
    rows: Vec<SiteRange>,
}

/// The rvas that a row of an inline site covers, its file and line.
struct SiteRange {
    start: u32,
    end: u32,
    file: u32,
    line: u32,
}

impl SiteRange {
    fn covers(&self, rva: u32) -> bool {
        (self.start..self.end).contains(&rva)
    }
}

impl PdbRecords {
    /// Executable sections as ranges of rvas.
    pub fn code(&self) -> &[(u32, u32)] {
        &self.code
    }

    /// The chains that the records allow at an address, innermost first: one for each procedure
    /// that holds it. If some of these lie within others, only those that begin last.
    ///
    /// # Errors
    ///
    /// [`RecordsError::Overlap`].
    pub fn chains(&self, rva: u32) -> Result<Vec<Vec<RecordFrame>>, RecordsError> {
        let procedures = self.procedures.at(rva).ok_or(RecordsError::Overlap(rva))?;
        let last = procedures.iter().map(|(start, _)| *start).max();
        let of_last = procedures.iter().filter(|(start, _)| Some(*start) == last);
        Ok(of_last.map(|(_, procedure)| procedure.chain(rva)).collect())
    }
}

impl Procedure {
    /// The frames of an rva, innermost first.
    fn chain(&self, rva: u32) -> Vec<RecordFrame> {
        let own = self.line(rva);
        let line = own.map(|row| row.line);
        let mut frames = vec![(self.name.clone(), own.and_then(|row| self.lines.file(row.file)), line)];
        let mut at = None;
        while let Some(next) = self.child_at(at, rva) {
            let site = &self.sites[next];
            // Of the rows that cover the address, the one that begins last counts.
            let row = site.rows.iter().filter(|row| row.covers(rva)).max_by_key(|row| row.start);
            frames.push(match row {
                Some(row) => {
                    (site.name.clone(), self.lines.file(row.file), Some(row.line).filter(|&line| line != 0))
                }
                None => (site.name.clone(), site.file.and_then(|file| self.lines.file(file)), None),
            });
            at = Some(next);
        }
        frames.reverse();
        frames
    }

    /// The row of an rva: of the rows at or below it, in a subsection that covers it, the one that
    /// begins last.
    fn line(&self, rva: u32) -> Option<LineEntry> {
        let subsections = self.subsections.iter().map(|&n| self.lines.subsection(n));
        let covering = subsections.filter(|subsection| rva < subsection.end);
        let rows = covering.flat_map(|subsection| &subsection.rows).filter(|row| row.rva <= rva);
        rows.max_by_key(|row| row.rva).copied().filter(LineEntry::is_line)
    }

    /// The site below `parent` that covers the address, itself or through the sites inlined into
    /// it.
    fn child_at(&self, parent: Option<usize>, rva: u32) -> Option<usize> {
        (0..self.sites.len()).filter(|&n| self.sites[n].parent == parent).find(|&n| self.covers(n, rva))
    }

    fn covers(&self, site: usize, rva: u32) -> bool {
        self.sites[site].rows.iter().any(|row| row.covers(rva)) || self.child_at(Some(site), rva).is_some()
    }
}
