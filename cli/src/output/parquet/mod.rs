//! Parquet tables, by polars. Without the feature `parquet` the format is refused, with that
//! reason.

#[cfg(feature = "parquet")]
mod dataset;
#[cfg(feature = "parquet")]
mod ids;
#[cfg(feature = "parquet")]
mod table;

use super::{Description, Destination, Options, Writer};
use anyhow::bail;

pub(super) const FORMAT: Description = Description {
    name: "parquet",
    help: "A folder of Parquet tables for SQL engines; many traces can share it",
    suffix: ".parquet",
    other_suffixes: &[],
    is_folder: true,
    create,
};

#[cfg(feature = "parquet")]
fn create(destination: Destination, options: &Options) -> anyhow::Result<Box<dyn Writer>> {
    Ok(match destination {
        Destination::Dir(path) => Box::new(dataset::Dataset::folder(path, options)?),
        Destination::File(path) if options.denormalized => Box::new(dataset::Dataset::file(path)),
        Destination::File(path) => {
            bail!("{}: a Parquet dataset is a folder of files; one file needs --denormalized", path.display())
        }
        Destination::Stdout => {
            bail!("a Parquet dataset is a folder of files and cannot go to standard output")
        }
    })
}

#[cfg(not(feature = "parquet"))]
fn create(_: Destination, _: &Options) -> anyhow::Result<Box<dyn Writer>> {
    bail!("this stk was built without Parquet: build it with the feature `parquet`")
}
