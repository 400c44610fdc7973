//! Parquet tables, by polars. Without the feature `parquet` the format is refused, with that
//! reason.

#[cfg(feature = "parquet")]
mod dataset;
#[cfg(feature = "parquet")]
mod ids;
#[cfg(feature = "parquet")]
mod table;

use super::{Description, Destination, Options, OutputError, Writer};

pub(super) const FORMAT: Description = Description {
    name: "parquet",
    help: "A folder of Parquet tables for SQL engines; many traces can share it",
    suffix: ".parquet",
    other_suffixes: &[],
    is_folder: true,
    create,
};

#[cfg(feature = "parquet")]
fn create(destination: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    Ok(match destination {
        Destination::Dir(path) => Box::new(dataset::Dataset::folder(path, options)?),
        Destination::File(path) if options.denormalized => Box::new(dataset::Dataset::file(path)),
        Destination::File(path) => {
            return Err(OutputError::NeedsFolder(path));
        }
        Destination::Stdout => {
            return Err(OutputError::DatasetToStdout);
        }
    })
}

#[cfg(not(feature = "parquet"))]
fn create(_: Destination, _: &Options) -> Result<Box<dyn Writer>, OutputError> {
    Err(OutputError::NoParquet)
}
