//! The reasons why an output was not written.

use super::Format;
use std::io;
use std::path::{Path, PathBuf};
use stk_base::files::{self, Refusal};

/// Why an output was not written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The destination is an input or a trace: the command line is wrong.
    #[error("{0}")]
    Refused(Refusal),
    /// The destination of a single file is a folder.
    #[error("{}: is a folder: give a file name", .0.display())]
    IsFolder(PathBuf),
    /// A folder was named for a format that is one file.
    #[error("{}: {format:?} is one file, not a folder: give a file name", .path.display())]
    OneFile {
        /// The folder.
        path: PathBuf,
        /// The format.
        format: Format,
    },
    /// The destination is in a folder that does not exist.
    #[error("{}: the folder {} does not exist", .path.display(), .folder.display())]
    NoFolder {
        /// The file.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The destination of a dataset is a file.
    #[error("{}: is a file, but a Parquet dataset is a folder of files", .0.display())]
    IsFile(PathBuf),
    /// A file was named for a dataset of several tables.
    #[error("{}: a Parquet dataset is a folder of files; one file needs --denormalized", .0.display())]
    NeedsFolder(PathBuf),
    /// A dataset cannot go to standard output.
    #[error("a Parquet dataset is a folder of files and cannot go to standard output")]
    DatasetToStdout,
    /// A dataset's tables are of another version.
    #[error(
        "{}: a dataset with tables of version {found}, and this stk has version {}: convert its traces again, into another folder",
        .path.display(), stk_schema::tables::VERSION
    )]
    TablesVersion {
        /// The dataset's folder.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// The description of a dataset's part is not as stk writes it.
    #[error("{}: not as stk writes it: remove its folder and convert its trace again", .0.display())]
    BadPart(PathBuf),
    /// A folder has no tables.
    #[error("{}: no dataset with tables: stk convert --to parquet and stk batch make one", .0.display())]
    NoTables(PathBuf),
    /// This build has no Parquet.
    #[error("this stk was built without Parquet: build it with the feature `parquet`")]
    NoParquet,
    /// A link is where none is followed.
    #[error("{0}")]
    Link(io::Error),
    /// The system refused a step at a file or folder.
    #[error("{}: {step}", .path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The step: `cannot be made`, `cannot be written`, `cannot be replaced`.
        step: &'static str,
        #[source]
        error: io::Error,
    },
    /// Standard output cannot be written.
    #[error("standard output")]
    Stdout(#[source] io::Error),
    /// The writer's own temporary file cannot be written or read.
    #[error("temporary file for a column of values")]
    Column(#[source] io::Error),
    /// The temporary file with the profile's runs cannot be read.
    #[error("temporary file for samples")]
    Runs(#[from] io::Error),
    /// The time of the conversion was up.
    #[error("not written")]
    OverTime(#[source] io::Error),
    /// The library that draws flame graphs failed.
    #[error("the flame graph cannot be drawn")]
    Library(#[source] io::Error),
    /// A [`super::Writer`] was called out of order.
    #[error("a writer was called out of order: {0}")]
    Order(&'static str),
    /// The trace's id cannot be a part of a file's name.
    #[error("{trace}: {id:?} is no trace id")]
    TraceId {
        /// The trace's source.
        trace: String,
        /// The id.
        id: String,
    },
    /// Two different things have the same id in a dataset.
    #[error(
        "{trace}: two {things} have the same 64-bit id {id}; the dataset would mix them up. \
         Please report this trace; other output formats are not affected"
    )]
    SameId {
        /// The trace's source.
        trace: String,
        /// What they are, in the plural.
        things: &'static str,
        /// Their id.
        id: i64,
    },
    /// A Parquet file cannot be read.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Read(#[from] super::parquet::TableError),
    /// A Parquet file cannot be written.
    #[cfg(feature = "parquet")]
    #[error("{}: cannot be written", .path.display())]
    Table {
        /// The file.
        path: PathBuf,
        #[source]
        error: polars::prelude::PolarsError,
    },
    /// The columns of a table do not match its description.
    #[cfg(feature = "parquet")]
    #[error("{}: columns {found} instead of {wanted}", .path.display())]
    Columns {
        /// The table's file.
        path: PathBuf,
        /// The columns that were to be written.
        found: String,
        /// The described columns.
        wanted: String,
    },
    /// A table's columns cannot be made.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Polars(#[from] polars::prelude::PolarsError),
}

impl From<Refusal> for OutputError {
    fn from(refusal: Refusal) -> OutputError {
        OutputError::Refused(refusal)
    }
}

impl OutputError {
    /// The error of a library that wrote to a [`Sink`](super::sink::Sink).
    pub(super) fn from_io(error: io::Error) -> OutputError {
        error.downcast::<OutputError>().unwrap_or_else(OutputError::Library)
    }

    /// The error of a step at `path`, such as `cannot be written`.
    pub(super) fn at(path: &Path, step: &'static str) -> impl FnOnce(io::Error) -> OutputError {
        let path = path.to_owned();
        move |error| match files::is_link(&error) {
            true => OutputError::Link(error),
            false => OutputError::File { path, step, error },
        }
    }
}
