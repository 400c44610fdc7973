//! Reads Parquet files by polars, for all that reads tables: they come from outside. polars does
//! not check all that they say, reserves what they state, and panics on some of them; so what they
//! state is compared with the table's columns and with the bytes that are there before.
//!
//! ```text
//! guard  polars' panics, and its environment variable   work -> its result
//! pages  what the end of a file and its pages state     bytes -> numbers
//! ```

use super::guard::caught;
use super::pages;
use super::table::{data_type, in_utc, utc};
use polars::io::parquet::metadata::FileMetadataRef;
use polars::prelude::*;
use polars_parquet::parquet::metadata::RowGroupMetadata;
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use stk_base::map::MappedFile;
use stk_schema::tables::{self, ParquetTable};

/// Rows of a row group for each of its bytes, and those that any may have. The tables of kept
/// traces have at most one.
const ROWS_PER_BYTE: u64 = 16;
const ROWS_FREE: u64 = 1 << 16;
/// Rows of a row group: polars walks over those before a piece that is read.
const MOST_ROWS: u64 = 1 << 23;

/// Why a file of a table was not read.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The system refused.
    #[error("{}: cannot be read", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
    /// It is no such table.
    #[error("{}: cannot be read", .path.display())]
    Polars {
        /// The file.
        path: PathBuf,
        #[source]
        error: PolarsError,
    },
    /// What it states cannot be.
    #[error("{}: {what}; convert its traces again, into another folder", .path.display())]
    Stated {
        /// The file.
        path: PathBuf,
        /// A sentence.
        what: String,
    },
}

/// A file of a table, whose columns have the table's types and whose row groups have rows for
/// their bytes.
#[derive(Debug)]
pub struct TableFile {
    path: PathBuf,
    file: File,
    facts: FileMetadataRef,
}

impl TableFile {
    /// Reads what the end of the file states. `path` is for messages.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is no file of that table.
    pub fn open(path: &Path, file: File, table: &ParquetTable) -> Result<TableFile, TableError> {
        let bytes = mapped(path, &file)?;
        let stated = |what: String| TableError::Stated { path: path.to_owned(), what };
        pages::check_end(&bytes).map_err(stated)?;
        let facts = caught(|| {
            let mut facts = polars_parquet::read::read_metadata(&mut Cursor::new(&bytes[..]))?;
            // They have another program's types; what is stored has the types of the schema.
            facts.key_value_metadata = None;
            Ok(facts)
        });
        let facts = facts.map_err(not_read(path))?;
        for group in &facts.row_groups {
            check_group(group, bytes.len() as u64).map_err(stated)?;
        }
        let schema = caught(|| polars_parquet::read::infer_schema(&facts)).map_err(not_read(path))?;
        for wanted in table.columns.iter().chain([&tables::SAMPLES_FRAMES]) {
            let Some(found) = schema.get(wanted.name) else { continue };
            let found = caught(|| Ok(DataType::from_arrow_field(found))).map_err(not_read(path))?;
            let found = if is_utc(&found) { utc() } else { found };
            if found != data_type(wanted.kind) {
                return Err(stated(format!("column {}: is of the type {found}", wanted.name)));
            }
        }
        Ok(TableFile { path: path.to_owned(), file, facts: facts.into() })
    }

    /// The same file, opened anew.
    pub fn again(path: &Path, file: File, facts: FileMetadataRef) -> TableFile {
        TableFile { path: path.to_owned(), file, facts }
    }

    /// What the end of the file states.
    pub fn facts(&self) -> &FileMetadataRef {
        &self.facts
    }

    /// How many rows it states.
    pub(crate) fn rows(&self) -> usize {
        self.facts.row_groups.iter().map(RowGroupMetadata::num_rows).sum()
    }

    /// Rows from number `from` on, each column in one piece; `columns`: `None` = all. All texts are
    /// UTF-8, and all columns have the number of rows that the file states.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or are not what the file states.
    pub fn read(
        &self,
        columns: Option<&[&str]>,
        from: usize,
        rows: usize,
        parallel: ParallelStrategy,
    ) -> Result<DataFrame, TableError> {
        let path = &self.path;
        let rows = rows.min(self.rows().saturating_sub(from));
        let stated = |what: String| TableError::Stated { path: path.clone(), what };
        let bytes = mapped(path, &self.file)?;
        // polars walks over all row groups of what it is given.
        let (facts, from) = self.facts_of(from, rows);
        let leaves = self.facts.schema_descr.columns().iter();
        let roots = leaves.filter_map(|leaf| leaf.path_in_schema.first()).map(|name| name.as_str());
        let roots: BTreeSet<&str> =
            roots.filter(|name| columns.is_none_or(|columns| columns.contains(name))).collect();
        for group in &facts.row_groups {
            check_pages(group, &bytes, &roots).map_err(stated)?;
        }
        let frame = caught(|| {
            let mut reader = ParquetReader::new(Cursor::new(bytes))
                .with_columns(columns.map(|names| names.iter().map(|name| (*name).to_owned()).collect()))
                .with_slice(Some((from, rows)))
                .read_parallel(parallel)
                .use_statistics(false);
            reader.set_metadata(facts);
            let mut frame = reader.finish()?;
            frame.as_single_chunk();
            // polars takes no zone from Parquet's own schema.
            for column in frame.get_columns().to_vec() {
                if matches!(column.dtype(), DataType::Datetime(TimeUnit::Microseconds, _)) {
                    let times: &Int64Chunked = column.datetime()?;
                    frame.with_column(in_utc(times.clone()))?;
                }
            }
            Ok(frame)
        });
        let frame = frame.map_err(not_read(path))?;
        for column in frame.get_columns() {
            let (name, found) = (column.name(), column.len());
            if found != rows {
                return Err(stated(format!("column {name}: {found} rows instead of {rows}")));
            }
            let series = column.as_materialized_series();
            if !caught(|| are_texts(series)).map_err(not_read(path))? {
                return Err(stated(format!("column {name}: a text is not UTF-8")));
            }
        }
        Ok(frame)
    }

    /// The row groups that have these rows, and how many rows of theirs are before them.
    fn facts_of(&self, from: usize, rows: usize) -> (FileMetadataRef, usize) {
        let (mut groups, mut before, mut skipped) = (Vec::new(), 0, 0);
        for group in &self.facts.row_groups {
            let end = before + group.num_rows();
            if end <= from {
                skipped = end;
            } else if before < from + rows {
                groups.push(group.clone());
            }
            before = end;
        }
        let facts = polars_parquet::read::FileMetadata {
            version: self.facts.version,
            num_rows: groups.iter().map(RowGroupMetadata::num_rows).sum(),
            max_row_group_height: self.facts.max_row_group_height,
            created_by: None,
            row_groups: groups,
            key_value_metadata: None,
            schema_descr: self.facts.schema_descr.clone(),
            column_orders: None,
        };
        (facts.into(), from - skipped)
    }
}

/// Whether it is a time of UTC, as Parquet's own schema says it.
fn is_utc(found: &DataType) -> bool {
    matches!(found, DataType::Datetime(TimeUnit::Microseconds, Some(zone)) if zone == "+00:00")
}

fn mapped(path: &Path, file: &File) -> Result<MappedFile, TableError> {
    let map = file.try_clone().and_then(MappedFile::from_file);
    map.map_err(|error| TableError::File { path: path.to_owned(), error })
}

fn not_read(path: &Path) -> impl FnOnce(PolarsError) -> TableError {
    let path = path.to_owned();
    move |error| TableError::Polars { path, error }
}

/// The error is a sentence.
fn check_group(group: &RowGroupMetadata, len: u64) -> Result<(), String> {
    let mut bytes = 0u64;
    for range in group.byte_ranges_iter() {
        if range.start > range.end || range.end > len {
            return Err("a column reaches over the end of the file".to_owned());
        }
        bytes = bytes.saturating_add(range.end - range.start);
    }
    let (rows, most) =
        (group.num_rows() as u64, bytes.saturating_mul(ROWS_PER_BYTE).saturating_add(ROWS_FREE));
    if rows > most.min(MOST_ROWS) {
        return Err(format!("{rows} rows in {bytes} bytes: no row group of a table has as many"));
    }
    Ok(())
}

/// Looks at the pages of columns of a row group. The error is a sentence.
fn check_pages(group: &RowGroupMetadata, bytes: &[u8], roots: &BTreeSet<&str>) -> Result<(), String> {
    for root in roots {
        for column in group.columns_under_root_iter(root).into_iter().flatten() {
            let range = column.byte_range();
            let stored = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
            pages::check(stored, column.num_values()).map_err(|what| format!("column {root}: {what}"))?;
        }
    }
    Ok(())
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
    use stk_tests::synth::Random;
    use stk_tests::wrong;

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
        let table = TableFile::open(path, file, &tables::FRAMES)?;
        table.read(None, 0, usize::MAX, ParallelStrategy::None)
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

    /// A file of these columns.
    fn file_of(columns: Vec<Column>) -> Vec<u8> {
        let mut bytes = Vec::new();
        let writer = ParquetWriter::new(&mut bytes).with_compression(ParquetCompression::Zstd(None));
        let writer = writer.with_statistics(StatisticsOptions::empty());
        writer.finish(&mut DataFrame::new(columns).unwrap()).unwrap();
        bytes
    }

    #[track_caller]
    fn refused(bytes: &[u8], words: &str) {
        let error = read_bytes(bytes).unwrap_err().to_string();
        assert!(error.starts_with("frames/0000.parquet: ") && error.contains(words), "{error}");
    }

    #[test]
    fn column_of_another_type_is_refused_by_name() {
        refused(&file_of(vec![column("function", vec![1i64])]), "column function: is of the type i64");
        refused(&file_of(vec![column("line", vec![1i32])]), "column line: is of the type i32");
        refused(&file_of(vec![column("rva", vec![1.5f64])]), "column rva: is of the type f64");
        refused(&file_of(vec![column("inlined", vec!["yes"])]), "column inlined: is of the type str");
        let texts = list("aliases", vec![0, 1], column("", vec![7i64]).take_materialized_series()).unwrap();
        refused(&file_of(vec![texts]), "column aliases: is of the type list[i64]");
        assert!(read_bytes(&file_of(vec![column("of a later version", vec![1i32])])).is_ok());
    }

    #[test]
    fn more_rows_than_the_bytes_can_hold_are_refused() {
        refused(&file_of(vec![column("rva", vec![5i64; 3 << 20])]), "262144 rows in ");
        assert_eq!(read_bytes(&file_of(vec![column("rva", vec![5i64; 60_000])])).unwrap().height(), 60_000);
    }

    #[test]
    fn pages_that_unpack_to_too_much_are_refused() {
        refused(
            &file_of(vec![column("function", vec!["x".repeat(32 << 20)])]),
            "column function: 1 values, ",
        );
        let many = column("", vec![7i64; 6 << 20]).take_materialized_series();
        let lists = list("long lists", vec![0, many.len() as i64], many).unwrap();
        refused(&file_of(vec![lists]), "column long lists: 6291456 values, ");
    }

    #[test]
    fn groups_nested_without_end_are_refused() {
        // The schema's elements have one child each.
        let mut end = vec![0x15, 2, 0x19, 0xfc, 0xc0, 0x9a, 0x0c];
        end.extend([0x55, 2, 0].repeat(200_000));
        end.push(0);
        let mut bytes = b"PAR1".to_vec();
        bytes.extend(&end);
        bytes.extend((end.len() as u32).to_le_bytes());
        bytes.extend(b"PAR1");
        refused(&bytes, "has 200000 groups of columns");
    }

    /// Files as stk and others write them, small.
    fn sound_files() -> Vec<Vec<u8>> {
        let texts =
            |texts: [&'static str; 2]| repeated("function", (0..300).map(move |row| Some(texts[row % 2])));
        let numbers = || column("rva", (0..300i64).map(|row| row * row).collect::<Vec<i64>>());
        let lists = || {
            let values = column("", vec!["x"; 300]).take_materialized_series();
            list("aliases", (0..=300).collect(), values).unwrap()
        };
        let columns = || vec![texts(["main", "a longer name"]).unwrap(), numbers(), lists()];
        let written = |compression, rows| {
            let mut bytes = Vec::new();
            let writer =
                ParquetWriter::new(&mut bytes).with_compression(compression).with_row_group_size(rows);
            writer.finish(&mut DataFrame::new(columns()).unwrap()).unwrap();
            bytes
        };
        vec![
            written(ParquetCompression::Zstd(None), None),
            written(ParquetCompression::Uncompressed, None),
            written(ParquetCompression::Uncompressed, Some(70)),
        ]
    }

    /// Tables with some changes; this variable says how many. tests/fuzz makes the same ones.
    #[test]
    fn wrong_files_are_refused_or_have_the_rows_that_they_state() {
        let of_environment =
            |name| -> Option<u64> { std::env::var(name).ok().and_then(|text| text.parse().ok()) };
        let runs = of_environment("STK_WRONG_PARQUET").unwrap_or(3_000);
        let mut random = Random::new(of_environment("STK_SEED").unwrap_or(17));
        let sound = sound_files();
        let (mut read, mut refused) = (0, 0);
        for _ in 0..runs {
            let mut bytes = sound[random.below(sound.len())].clone();
            for _ in 0..1 + random.below(4) {
                wrong::parquet(&mut bytes, &mut random);
            }
            match read_bytes(&bytes) {
                Ok(frame) => {
                    read += 1;
                    assert!(frame.get_columns().iter().all(|column| column.len() == frame.height()));
                }
                Err(_) => refused += 1,
            }
        }
        eprintln!("{read} files read, {refused} refused");
        assert!(read > runs / 50 && refused > runs / 10, "{read} {refused}");
    }

    #[test]
    fn changed_byte_of_a_file_is_no_panic_and_no_other_text() {
        let sound = file_of(vec![
            repeated("function", (0..300).map(|row| Some(["main", "a longer name"][row % 2]))).unwrap(),
            column("rva", (0..300i64).map(|row| row * row).collect::<Vec<i64>>()),
            list("aliases", (0..=300).collect(), column("", vec!["x"; 300]).take_materialized_series())
                .unwrap(),
        ]);
        for at in 0..sound.len() {
            for change in [1, 0x80] {
                let mut bytes = sound.clone();
                bytes[at] ^= change;
                let Ok(frame) = read_bytes(&bytes) else { continue };
                assert!(frame.height() <= 400, "{at}");
            }
        }
    }
}
