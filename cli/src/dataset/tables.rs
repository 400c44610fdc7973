//! Reads Parquet files row group by row group, and only the requested columns.

use super::DatasetError;
use hashbrown::HashMap;
use polars::io::parquet::metadata::FileMetadataRef;
use polars::prelude::*;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use stk_base::files::open_plain;
use stk_output::formats::{TableError, TableFile};
use stk_schema::tables::ParquetTable;

/// Rows of a row group that are read at once, at most.
const ROWS: usize = 1 << 19;

/// The row groups of some files, in order; a large one is several here.
pub(super) struct RowGroups {
    files: Vec<(PathBuf, FileMetadataRef)>,
    groups: Vec<RowGroup>,
}

/// Rows of a file that are read at once.
struct RowGroup {
    file: usize,
    from: usize,
    rows: usize,
}

impl RowGroups {
    /// Those of all files of a folder of a table. A folder that is not there has none.
    pub(super) fn of_folder(folder: &Path, table: &ParquetTable) -> Result<RowGroups, DatasetError> {
        RowGroups::of_files(files(folder)?, table)
    }

    pub(super) fn of_files(paths: Vec<PathBuf>, table: &ParquetTable) -> Result<RowGroups, DatasetError> {
        let mut all = RowGroups { files: Vec::new(), groups: Vec::new() };
        for path in paths {
            let facts = TableFile::open(&path, open(&path)?, table)?.facts().clone();
            let mut begin = 0;
            for group in &facts.row_groups {
                let end = begin + group.num_rows();
                let starts = (begin..end).step_by(ROWS);
                let file = all.files.len();
                all.groups.extend(starts.map(|from| RowGroup { file, from, rows: ROWS.min(end - from) }));
                begin = end;
            }
            all.files.push((path, facts));
        }
        Ok(all)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// How many rows one of them has.
    pub(super) fn rows(&self, group: usize) -> u64 {
        self.groups[group].rows as u64
    }

    /// How many rows all of them have.
    pub(super) fn all_rows(&self) -> u64 {
        self.groups.iter().map(|group| group.rows as u64).sum()
    }

    /// Columns of a row group, each in one piece.
    pub(super) fn read(&self, group: usize, columns: &[&str]) -> Result<Columns, DatasetError> {
        let RowGroup { file, from, rows } = self.groups[group];
        let (path, facts) = &self.files[file];
        let table = TableFile::again(path, open(path)?, facts.clone());
        let frame = table.read(Some(columns), from, rows, ParallelStrategy::None)?;
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
    open_plain(path).map_err(|error| DatasetError::File { path: path.to_owned(), error })
}

fn table(path: &Path, error: PolarsError) -> DatasetError {
    TableError::Polars { path: path.to_owned(), error }.into()
}

/// The numbers of a column.
#[derive(Default)]
pub(super) struct Numbers<'a> {
    values: &'a [i64],
    /// By row; `None` if none is missing.
    is_there: Option<Vec<bool>>,
}

impl Numbers<'_> {
    pub(super) fn get(&self, row: usize) -> Option<i64> {
        self.is_there.as_ref().is_none_or(|is_there| is_there[row]).then(|| self.values[row])
    }

    /// 0 where it is missing.
    pub(super) fn or_zero(&self, row: usize) -> i64 {
        self.get(row).unwrap_or(0)
    }
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
        let numbers = self.numbers_or_null(name)?;
        Ok((0..self.rows()).map(|row| numbers.or_zero(row)).collect())
    }

    /// Numbers that can be missing.
    pub(super) fn numbers_or_null(&self, name: &str) -> Result<Numbers<'_>, DatasetError> {
        // Of an empty table there is no array.
        let Some(array) = self.column(name, Column::i64)?.downcast_iter().next() else {
            return Ok(Numbers::default());
        };
        let is_there = array.validity().map(|is_there| is_there.iter().collect());
        Ok(Numbers { values: array.values(), is_there })
    }

    /// What texts stand for: `of` is called once for texts that follow each other and are the same,
    /// or that have the same place in the file's dictionary.
    pub(super) fn of_texts<T: Copy>(
        &self,
        name: &str,
        of: impl Fn(Option<&str>) -> T,
    ) -> Result<Vec<T>, DatasetError> {
        let mut all = Vec::with_capacity(self.rows());
        let none = of(None);
        for array in self.texts(name)?.downcast_iter() {
            let mut known: HashMap<u128, T> = HashMap::new();
            let mut last: Option<(u128, T)> = None;
            for (view, text) in array.views().iter().zip(array.iter()) {
                if text.is_none() {
                    all.push(none);
                    continue;
                }
                let view = view.as_u128();
                let value = match last {
                    Some((before, value)) if before == view => value,
                    _ => *known.entry(view).or_insert_with(|| of(text)),
                };
                last = Some((view, value));
                all.push(value);
            }
        }
        Ok(all)
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

    /// What they state cannot be.
    pub(super) fn stated(&self, what: String) -> DatasetError {
        TableError::Stated { path: self.path.clone(), what }.into()
    }

    /// An error of polars on these columns.
    pub(super) fn error(&self, error: PolarsError) -> DatasetError {
        table(&self.path, error)
    }
}
