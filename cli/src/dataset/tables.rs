//! Reads Parquet files row group by row group, and only the columns that are asked for.

use super::DatasetError;
use polars::io::parquet::metadata::FileMetadataRef;
use polars::prelude::*;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Rows of a row group that are read at once, at most.
const ROWS: usize = 1 << 19;

/// The row groups of some files, in order.
pub(super) struct RowGroups {
    files: Vec<(PathBuf, FileMetadataRef)>,
    groups: Vec<RowGroup>,
}

/// Rows of a file that are read at once.
#[derive(Clone, Copy)]
struct RowGroup {
    file: usize,
    from: usize,
    rows: usize,
}

impl RowGroups {
    /// Those of all files of a folder. A folder that is not there has none.
    pub(super) fn of_folder(folder: &Path) -> Result<RowGroups, DatasetError> {
        RowGroups::of_files(files(folder)?)
    }

    pub(super) fn of_files(paths: Vec<PathBuf>) -> Result<RowGroups, DatasetError> {
        let mut all = RowGroups { files: Vec::new(), groups: Vec::new() };
        for path in paths {
            let mut reader = ParquetReader::new(open(&path)?);
            let facts = reader.get_metadata().map_err(|error| table(&path, error))?.clone();
            let file = all.files.len();
            let mut at = 0;
            for group in &facts.row_groups {
                let end = at + group.num_rows();
                for from in (at..end).step_by(ROWS) {
                    all.groups.push(RowGroup { file, from, rows: ROWS.min(end - from) });
                }
                at = end;
            }
            all.files.push((path, facts));
        }
        Ok(all)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Columns of a row group, each in one piece.
    pub(super) fn read(&self, group: usize, columns: &[&str]) -> Result<Columns, DatasetError> {
        let RowGroup { file, from, rows } = self.groups[group];
        let (path, facts) = &self.files[file];
        let mut reader = ParquetReader::new(open(path)?)
            .with_columns(Some(columns.iter().map(|name| (*name).to_owned()).collect()))
            .with_slice(Some((from, rows)))
            .read_parallel(ParallelStrategy::None)
            .use_statistics(false);
        reader.set_metadata(facts.clone());
        let mut frame = reader.finish().map_err(|error| table(path, error))?;
        frame.as_single_chunk();
        Ok(Columns { path: path.clone(), frame })
    }
}

/// The files of a folder, by name.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let cannot = |error| DatasetError::File { path: folder.to_owned(), error };
    let mut files = Vec::new();
    match std::fs::read_dir(folder) {
        Ok(found) => {
            for entry in found {
                files.push(entry.map_err(cannot)?.path());
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(cannot(error)),
    }
    files.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    files.sort();
    Ok(files)
}

fn open(path: &Path) -> Result<File, DatasetError> {
    File::open(path).map_err(|error| DatasetError::File { path: path.to_owned(), error })
}

fn table(path: &Path, error: PolarsError) -> DatasetError {
    DatasetError::Table { path: path.to_owned(), error }
}

/// Columns of a table.
pub(super) struct Columns {
    path: PathBuf,
    frame: DataFrame,
}

impl Columns {
    pub(super) fn rows(&self) -> usize {
        self.frame.height()
    }

    fn column<'a, T>(
        &'a self,
        name: &str,
        of: impl Fn(&'a Column) -> PolarsResult<T>,
    ) -> Result<T, DatasetError> {
        self.frame.column(name).and_then(of).map_err(|error| table(&self.path, error))
    }

    /// Numbers; 0 where one is missing.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<i64>, DatasetError> {
        let column = self.column(name, Column::i64)?;
        Ok(match column.cont_slice() {
            Ok(values) => values.to_vec(),
            Err(_) => column.iter().map(Option::unwrap_or_default).collect(),
        })
    }

    /// Numbers that can be missing.
    pub(super) fn optional_numbers(&self, name: &str) -> Result<Vec<Option<i64>>, DatasetError> {
        Ok(self.column(name, Column::i64)?.iter().collect())
    }

    /// Texts.
    pub(super) fn texts(&self, name: &str) -> Result<&StringChunked, DatasetError> {
        self.column(name, Column::str)
    }

    pub(super) fn flags(&self, name: &str) -> Result<&BooleanChunked, DatasetError> {
        self.column(name, Column::bool)
    }

    /// Times of day, in microseconds since the Unix epoch.
    pub(super) fn times(&self, name: &str) -> Result<Vec<i64>, DatasetError> {
        let times = self.column(name, |column| Ok(column.datetime()?.0.clone()))?;
        Ok(times.iter().map(Option::unwrap_or_default).collect())
    }

    /// Lists: where each begins in the values, with the end of the last, and the values.
    pub(super) fn lists(&self, name: &str) -> Result<(Vec<usize>, Series), DatasetError> {
        let column = self.column(name, Column::list)?;
        let mut starts = vec![0];
        let mut values = Series::new_empty("".into(), &column.inner_dtype().clone());
        for array in column.downcast_iter() {
            // Lists of nulls alone have no values of their own.
            let offsets = array.offsets();
            let (first, last) = (*offsets.first(), *offsets.last());
            let before = values.len();
            starts.extend(offsets.iter().skip(1).map(|&at| before + (at - first) as usize));
            let part = Series::try_from((PlSmallStr::EMPTY, array.values().clone()));
            let part = part.map_err(|error| table(&self.path, error))?;
            let part = part.slice(first, (last - first) as usize);
            values.append(&part).map_err(|error| table(&self.path, error))?;
        }
        Ok((starts, values.rechunk()))
    }

    /// An error of polars on these columns.
    pub(super) fn error(&self, error: PolarsError) -> DatasetError {
        table(&self.path, error)
    }
}
