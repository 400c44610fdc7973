//! Reads Parquet files by polars. They come from outside: polars does not check all that they say,
//! and it panics on some of them.

use polars::io::parquet::metadata::FileMetadataRef;
use polars::prelude::*;
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use stk_base::panics;

/// Why a file of a table was not read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// It is no such table.
    #[error("{}: cannot be read", .path.display())]
    Polars {
        /// The file.
        path: PathBuf,
        #[source]
        error: PolarsError,
    },
    /// A text that is no UTF-8.
    #[error("{}: column {column}: a text is not UTF-8; convert its traces again, into another folder", .path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
    },
    /// A column has another number of rows than the file states.
    #[error("{}: column {column}: {found} rows instead of {wanted}; convert its traces again, into another folder", .path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// The column.
        column: String,
        /// Its rows.
        found: usize,
        /// Those that the file states.
        wanted: usize,
    },
}

/// What is to be read of a file.
pub struct Wanted<'a> {
    /// `None` = all columns.
    pub columns: Option<&'a [&'a str]>,
    /// Number of the first row.
    pub from: usize,
    /// The most rows.
    pub rows: usize,
    /// What the file's end says.
    pub facts: FileMetadataRef,
    /// Which parts of the file are read side by side.
    pub parallel: ParallelStrategy,
}

/// What the end of a file says of its rows. `path` is for messages.
pub fn facts(path: &Path, file: File) -> Result<FileMetadataRef, TableError> {
    caught(|| ParquetReader::new(file).get_metadata().cloned()).map_err(not_read(path))
}

fn not_read(path: &Path) -> impl FnOnce(PolarsError) -> TableError {
    let path = path.to_owned();
    move |error| TableError::Polars { path, error }
}

/// How many rows a file states.
pub(crate) fn stated_rows(facts: &FileMetadataRef) -> usize {
    facts.row_groups.iter().fold(0, |rows, group| rows.saturating_add(group.num_rows()))
}

/// Rows of a file, each column in one piece. All texts are UTF-8, and all columns have the number
/// of rows that the file states.
pub fn read(path: &Path, file: File, wanted: Wanted<'_>) -> Result<DataFrame, TableError> {
    let Wanted { columns, from, rows, facts, parallel } = wanted;
    let rows = rows.min(stated_rows(&facts).saturating_sub(from));
    let frame = caught(|| {
        let mut reader = ParquetReader::new(file)
            .with_columns(columns.map(|names| names.iter().map(|name| (*name).to_owned()).collect()))
            .with_slice(Some((from, rows)))
            .read_parallel(parallel)
            .use_statistics(false);
        reader.set_metadata(facts);
        let mut frame = reader.finish()?;
        frame.as_single_chunk();
        Ok(frame)
    });
    let frame = frame.map_err(not_read(path))?;
    for column in frame.get_columns() {
        let name = || column.name().to_string();
        if column.len() != rows {
            return Err(TableError::Rows {
                path: path.to_owned(),
                column: name(),
                found: column.len(),
                wanted: rows,
            });
        }
        let series = column.as_materialized_series();
        if !caught(|| are_texts(series)).map_err(not_read(path))? {
            return Err(TableError::Text { path: path.to_owned(), column: name() });
        }
    }
    Ok(frame)
}

/// The result of polars' work on a file. A panic is a fault of that file.
pub(super) fn caught<T>(work: impl FnOnce() -> PolarsResult<T>) -> PolarsResult<T> {
    panics::caught_of_input(work).unwrap_or_else(|text| Err(PolarsError::ComputeError(text.into())))
}

/// Whether all texts of a series are UTF-8. polars does not look at those of a dictionary.
fn are_texts(series: &Series) -> PolarsResult<bool> {
    Ok(match series.dtype() {
        DataType::String => has_texts(series.str()?),
        DataType::List(_) => {
            let mut lists = series.list()?.downcast_iter().map(|list| list.values().clone());
            lists.try_fold(true, |all, values| {
                Ok::<_, PolarsError>(all && are_texts(&Series::try_from((PlSmallStr::EMPTY, values))?)?)
            })?
        }
        DataType::Struct(_) => {
            let fields = series.struct_()?.fields_as_series();
            fields.iter().try_fold(true, |all, field| Ok::<_, PolarsError>(all && are_texts(field)?))?
        }
        _ => true,
    })
}

/// Bytes of a text that its view holds itself. A longer text is in a buffer.
const INLINE: usize = 12;

/// Whether all texts of a column are UTF-8: each distinct view is looked at once.
fn has_texts(texts: &StringChunked) -> bool {
    texts.downcast_iter().all(|array| {
        let buffers = array.data_buffers();
        let are_ascii = buffers.iter().all(|buffer| buffer.is_ascii());
        let mut known: HashSet<u128> = HashSet::new();
        array.views().iter().all(|view| {
            let (length, own) = (view.length as usize, view.as_u128().to_le_bytes());
            let is_ascii = if length <= INLINE { own[4..].is_ascii() } else { are_ascii };
            is_ascii || !known.insert(view.as_u128()) || {
                let start = view.offset as usize;
                let bytes = match length {
                    ..=INLINE => own.get(4..4 + length),
                    _ => buffers.get(view.buffer_idx as usize).and_then(|all| all.get(start..start + length)),
                };
                bytes.is_some_and(|bytes| std::str::from_utf8(bytes).is_ok())
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::{column, list, repeated, structs};
    use super::*;

    /// Rows with texts that polars puts into dictionaries, uncompressed.
    fn file_of_texts() -> Vec<u8> {
        const ROWS: usize = 500;
        let texts = |text: &'static str| repeated("", (0..ROWS).map(|_| Some(text))).unwrap();
        let offsets = || (0..=ROWS as i64).collect::<Vec<i64>>();
        let fields = vec![texts("of a struct").with_name("key".into())];
        let mut frame = DataFrame::new(vec![
            column("number", (0..ROWS as i64).collect::<Vec<i64>>()),
            texts("brief").with_name("short".into()),
            texts("longer than a view").with_name("long".into()),
            list("list", offsets(), texts("of a list").take_materialized_series()).unwrap(),
            list("structs", offsets(), structs("label", fields).unwrap()).unwrap(),
        ])
        .unwrap();
        let mut bytes = Vec::new();
        let writer = ParquetWriter::new(&mut bytes).with_compression(ParquetCompression::Uncompressed);
        writer.with_statistics(StatisticsOptions::empty()).finish(&mut frame).unwrap();
        bytes
    }

    fn read_bytes(bytes: &[u8]) -> Result<DataFrame, TableError> {
        let path = Path::new("frames/0000.parquet");
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        let facts = facts(path, file.try_clone().unwrap())?;
        let parallel = ParallelStrategy::None;
        read(path, file, Wanted { columns: None, from: 0, rows: usize::MAX, facts, parallel })
    }

    #[test]
    fn text_that_is_not_utf8_names_file_and_column() {
        let sound = file_of_texts();
        assert_eq!(read_bytes(&sound).unwrap().height(), 500);
        // polars itself refuses texts that are not in a dictionary, without the column's name.
        for (text, forged, places, words) in [
            ("brief", &b"\xff\xfe\x1b[3"[..], 1, "column short: a text is not UTF-8"),
            ("longer than a view", b"longer than a vi\xf0\x9f", 1, "column long: a text is not UTF-8"),
            ("of a list", b"of a lis\xf4", 500, "cannot be read"),
            ("of a struct", b"\x80f a struct", 500, "cannot be read"),
        ] {
            let found: Vec<usize> = (0..sound.len() - text.len())
                .filter(|&at| &sound[at..at + text.len()] == text.as_bytes())
                .collect();
            assert_eq!(found.len(), places, "{text}");
            let with = |bytes: &[u8]| {
                let mut file = sound.clone();
                found.iter().for_each(|&at| file[at..at + text.len()].copy_from_slice(bytes));
                read_bytes(&file)
            };
            let error = with(forged).unwrap_err().to_string();
            assert!(error.starts_with(&format!("frames/0000.parquet: {words}")), "{error}");
            assert!(with(&vec![b'x'; text.len()]).is_ok(), "{text}: other letters are read");
        }
    }

    #[test]
    fn changed_byte_of_a_footer_is_an_error_and_no_panic() {
        let sound = file_of_texts();
        let length = u32::from_le_bytes(sound[sound.len() - 8..sound.len() - 4].try_into().unwrap());
        let footer = sound.len() - 8 - length as usize..sound.len() - 8;
        let mut refused = 0;
        for at in footer {
            for change in [1, 0x10, 0x80] {
                let mut bytes = sound.clone();
                bytes[at] ^= change;
                refused += usize::from(read_bytes(&bytes).is_err());
            }
        }
        assert!(refused > 100, "{refused}");
    }
}
