//! Parquet tables, by polars. Without the feature `parquet` the format is refused, with that
//! reason.
//!
//! ```text
//! dataset     one trace to a part of a dataset               Profile, Runs -> files
//! rows        the rows of samples                            Run -> columns
//! behind      row groups, encoded while the next one is filled
//! describe    the other tables of a trace                    Profile -> columns
//! ids         hashes that name places, functions and stacks
//! part        the folder of a part, and what it says of itself
//! catalog     which traces a dataset has                     folder -> DatasetEntry
//! compact     the tables of all parts                        parts -> files
//! packs       which parts of a date are one file             parts -> packs
//! state       of which parts the tables are
//! stacks      which pack has which stack                     packs -> files
//! pairs       pairs of numbers, sorted in bounded memory
//! dimensions  rows that many traces share, each once         parts -> rows
//! apply       names for what had none                        PDBs -> rows of frames
//! files       the files of a table
//! table       one Parquet file
//! groups      its row groups, encoded apart from it; lists of a dictionary
//! read        rows of a Parquet file, which nobody vouches for
//! pages       what such a file states, before it is believed
//! guard       polars' panics, and its environment variable
//! trace_id    the id of a trace
//! ```

#[cfg(feature = "parquet")]
mod apply;
#[cfg(feature = "parquet")]
mod behind;
#[cfg(feature = "parquet")]
mod catalog;
#[cfg(feature = "parquet")]
mod compact;
#[cfg(feature = "parquet")]
mod dataset;
#[cfg(feature = "parquet")]
mod describe;
#[cfg(feature = "parquet")]
mod dimensions;
#[cfg(feature = "parquet")]
mod files;
#[cfg(feature = "parquet")]
mod groups;
#[cfg(feature = "parquet")]
mod guard;
#[cfg(feature = "parquet")]
mod ids;
#[cfg(feature = "parquet")]
mod packs;
#[cfg(feature = "parquet")]
mod pages;
#[cfg(feature = "parquet")]
mod pairs;
#[cfg(feature = "parquet")]
mod part;
#[cfg(feature = "parquet")]
mod read;
#[cfg(feature = "parquet")]
mod rows;
#[cfg(feature = "parquet")]
mod stacks;
#[cfg(feature = "parquet")]
mod state;
#[cfg(feature = "parquet")]
mod table;
#[cfg(feature = "parquet")]
mod trace_id;

#[cfg(feature = "parquet")]
pub use read::{TableError, TableFile};

use super::{Description, Destination, Options, OutputError, Summary, Writer};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use stk_base::model::Image;
use stk_profile::profile::Profile;
use stk_profile::trace::Content;
use stk_schema::identity::ContentHash;
use stk_symbols::Symbolizer;

pub(super) const FORMAT: Description = Description {
    name: "parquet",
    help: "A folder of Parquet tables for SQL engines; many traces can share it",
    suffix: ".parquet",
    other_suffixes: &[],
    is_folder: true,
    names_source: true,
    takes_weight: false,
    has_time_line: false,
    create,
};

#[cfg(feature = "parquet")]
fn create(destination: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    Ok(match destination {
        Destination::Dir(path) => Box::new(dataset::Dataset::folder(path, options)?),
        Destination::File(path) if options.denormalized => {
            Box::new(dataset::Dataset::file(super::named_file(&path)?, options)?)
        }
        Destination::InFolder { folder, name } if options.denormalized => {
            Box::new(dataset::Dataset::file(part::dataset(&folder)?.join(name), options)?)
        }
        Destination::InFolder { folder, name } => return Err(OutputError::NeedsFolder(folder.join(name))),
        Destination::File(path) => return Err(OutputError::NeedsFolder(path)),
        Destination::Stdout => {
            return Err(OutputError::DatasetToStdout);
        }
    })
}

#[cfg(not(feature = "parquet"))]
fn create(_: Destination, _: &Options) -> Result<Box<dyn Writer>, OutputError> {
    Err(OutputError::NoParquet)
}

/// What a conversion came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Debug)]
pub struct ConversionFacts {
    /// Samples that were written.
    pub samples: u64,
    /// Samples that the recorder dropped.
    pub dropped: u64,
    /// What could not be read.
    pub damaged_blocks: u64,
    /// Whether the recorder finished the trace.
    pub complete: bool,
}

impl ConversionFacts {
    /// Those of a profile.
    pub fn of(profile: &Profile) -> ConversionFacts {
        ConversionFacts {
            samples: profile.threads.iter().map(|thread| thread.samples).sum(),
            dropped: profile.losses.dropped_samples,
            damaged_blocks: profile.losses.damaged_blocks.len() as u64,
            complete: profile.trace.complete,
        }
    }
}

/// The traces that a dataset has, by the names of its files.
#[derive(Debug)]
pub struct DatasetIndex {
    #[cfg(feature = "parquet")]
    catalog: catalog::Catalog,
}

/// What a dataset has of a content.
#[derive(Clone, Debug)]
pub struct DatasetEntry {
    /// The content.
    pub content: Content,
    /// Name of the file that it was converted from; `None` if another content stands for it.
    pub source: Option<String>,
    /// Digest of the content that stands for it. Then the dataset has no rows of it.
    pub superseded_by: Option<ContentHash>,
    /// [`Options::key`] of its conversion.
    pub key: Option<String>,
    /// What its conversion came to; `None` if another content stands for it.
    pub facts: Option<ConversionFacts>,
}

#[cfg(feature = "parquet")]
impl DatasetIndex {
    /// Lists a dataset. A folder that does not exist is an empty one.
    ///
    /// # Errors
    ///
    /// When the system refuses, or the tables are of another version.
    pub fn open(folder: &Path) -> Result<DatasetIndex, OutputError> {
        Ok(DatasetIndex { catalog: catalog::Catalog::open(folder)? })
    }

    /// What the dataset had of a UUID when it was listed.
    pub fn entries(&self, uuid: &str) -> Result<Vec<DatasetEntry>, OutputError> {
        self.catalog.entries(uuid)
    }

    /// Has the dataset say that `longer` stands for its beginning `shorter`, and removes what it
    /// has of that.
    pub fn supersede(&self, shorter: &Content, longer: &Content) -> Result<(), OutputError> {
        self.catalog.supersede(shorter, longer)
    }
}

/// Makes the tables of a dataset of all its parts, where they are not of these parts. Returns the
/// files that were made. Their bytes depend on the set of parts alone.
///
/// # Errors
///
/// When a part cannot be read, or the tables cannot be written.
#[cfg(feature = "parquet")]
pub fn compact(folder: &Path) -> Result<Summary, OutputError> {
    compact::compact(folder)
}

/// What became of the places of a module that had no name from symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppliedModule {
    /// Its file name.
    pub module: String,
    /// GUID and age of its PDB; empty if it has none.
    pub debug_id: String,
    /// Places without a name from symbols.
    pub places: u64,
    /// Those of them that have one now.
    pub named: u64,
    /// The file that the names are from.
    pub file: Option<PathBuf>,
    /// Why there are none.
    pub reason: Option<String>,
}

/// Names places of a dataset that have no name from symbols, where the symbols are available now.
/// Returns the modules with such places. Runs in the caller's rayon pool.
///
/// # Errors
///
/// When the dataset cannot be read or written, or has no tables.
#[cfg(feature = "parquet")]
pub fn apply_symbols(folder: &Path, symbolizer: &Symbolizer) -> Result<Vec<AppliedModule>, OutputError> {
    apply::apply(folder, symbolizer)
}

/// The images of a dataset, and in how many places of each its stacks are.
///
/// # Errors
///
/// When the dataset cannot be read.
#[cfg(feature = "parquet")]
pub fn dataset_modules(folder: &Path) -> Result<Vec<(Image, u64)>, OutputError> {
    apply::modules(folder)
}

/// There is no Parquet in this build.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "parquet"))]
pub fn dataset_modules(_: &Path) -> Result<Vec<(Image, u64)>, OutputError> {
    Err(OutputError::NoParquet)
}

/// There is no Parquet in this build.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "parquet"))]
pub fn apply_symbols(_: &Path, _: &Symbolizer) -> Result<Vec<AppliedModule>, OutputError> {
    Err(OutputError::NoParquet)
}

/// There is no Parquet in this build.
///
/// # Errors
///
/// Always.
#[cfg(not(feature = "parquet"))]
pub fn compact(_: &Path) -> Result<Summary, OutputError> {
    Err(OutputError::NoParquet)
}

#[cfg(not(feature = "parquet"))]
impl DatasetIndex {
    /// There is no Parquet in this build.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn open(_: &Path) -> Result<DatasetIndex, OutputError> {
        Err(OutputError::NoParquet)
    }

    /// There is no Parquet in this build.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn entries(&self, _: &str) -> Result<Vec<DatasetEntry>, OutputError> {
        Err(OutputError::NoParquet)
    }

    /// There is no Parquet in this build.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn supersede(&self, _: &Content, _: &Content) -> Result<(), OutputError> {
        Err(OutputError::NoParquet)
    }
}
