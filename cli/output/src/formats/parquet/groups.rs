//! Row groups that are encoded apart from their file, several at once, and columns of lists whose
//! values are a dictionary and numbers in it: polars writes each value of a list in full.

use super::super::OutputError;
use super::guard::caught;
use hashbrown::HashMap;
use polars::prelude::*;
use polars_parquet::parquet::CowBuffer;
use polars_parquet::parquet::compression::Compression;
use polars_parquet::parquet::encoding::uleb128;
use polars_parquet::parquet::metadata::Descriptor;
use polars_parquet::parquet::page::{
    CompressedDictPage, DataPage, DataPageHeader, DataPageHeaderV1, DictPage,
};
use polars_parquet::parquet::schema::types::{PhysicalType, PrimitiveType};
use polars_parquet::parquet::statistics::ParquetStatistics;
use polars_parquet::write::{
    CompressedDataPage, CompressedPage, Encoding, Page, ParquetType, Version, WriteOptions, array_to_columns,
};
use rayon::prelude::*;
use std::cell::RefCell;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Values in the lists of a row group.
pub(super) const GROUP_VALUES: usize = 1 << 20;

/// So many first of some rows are a row group, by the lengths of their lists: at least one.
pub(super) fn rows_of_group(lengths: impl Iterator<Item = usize>) -> usize {
    let mut values = 0;
    let fits = |len: &usize| {
        values += len;
        values < GROUP_VALUES
    };
    lengths.take_while(fits).count() + 1
}

/// The numbers of rows of the row groups of a frame, by the lengths of its first column of lists.
pub(super) fn group_rows(frame: &DataFrame) -> PolarsResult<Vec<usize>> {
    let mut groups = Vec::new();
    for column in frame.get_columns() {
        if let Some((_, lengths)) = lists(column)? {
            let mut rest = &lengths[..];
            while !rest.is_empty() {
                let rows = rows_of_group(rest.iter().copied()).min(rest.len());
                groups.push(rows);
                rest = &rest[rows..];
            }
            return Ok(groups);
        }
    }
    Ok(vec![frame.height()])
}

/// How much all tables are compressed.
const LEVEL: i32 = 3;

/// How all tables are compressed.
pub(super) fn compression() -> PolarsResult<ParquetCompression> {
    Ok(ParquetCompression::Zstd(Some(ZstdLevel::try_new(LEVEL)?)))
}

thread_local! {
    /// polars makes one for each page, and most pages are smaller than what that costs.
    static COMPRESSOR: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Bytes of a column's pages that are stored as they are: most columns of a small trace have one
/// value in all rows, and a context of zstd, which polars makes for each page that it reads, costs
/// more than a page of it.
const PLAIN: usize = 1 << 10;

/// The pages of a column as they are stored: all in the same way.
fn stored_pages(mut pages: impl Iterator<Item = PolarsResult<Page>>) -> PolarsResult<Vec<CompressedPage>> {
    let (mut first, mut bytes) = (Vec::new(), 0);
    while bytes <= PLAIN
        && let Some(page) = pages.next().transpose()?
    {
        bytes += match &page {
            Page::Data(page) => page.buffer().len(),
            Page::Dict(page) => page.buffer.len(),
        };
        first.push(page);
    }
    let codec = if bytes <= PLAIN { Compression::Uncompressed } else { Compression::Zstd };
    first.into_iter().map(Ok).chain(pages).map(|page| stored_page(page?, codec)).collect()
}

/// The bytes of a page, compressed as [`compression`] says.
fn compressed(plain: &[u8]) -> PolarsResult<Vec<u8>> {
    let mut stored = Vec::with_capacity(zstd::zstd_safe::compress_bound(plain.len()));
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            none => none.insert(zstd::bulk::Compressor::new(LEVEL)?),
        };
        compressor.compress_to_buffer(plain, &mut stored)
    })?;
    stored.shrink_to_fit();
    Ok(stored)
}

fn stored_page(page: Page, codec: Compression) -> PolarsResult<CompressedPage> {
    let stored = |plain: &[u8]| match codec {
        Compression::Uncompressed => Ok(CowBuffer::Owned(plain.to_vec())),
        _ => compressed(plain).map(CowBuffer::Owned),
    };
    Ok(match page {
        Page::Data(page) => {
            let Some(rows) = page.num_rows() else {
                polars_bail!(ComputeError: "a page without its number of rows");
            };
            let (header, plain) = (page.header().clone(), page.buffer());
            let (len, stored) = (plain.len(), stored(plain)?);
            let descriptor = page.descriptor;
            CompressedPage::Data(CompressedDataPage::new(header, stored, codec, len, descriptor, rows))
        }
        Page::Dict(DictPage { buffer, num_values, is_sorted }) => {
            let stored = stored(&buffer)?;
            CompressedPage::Dict(CompressedDictPage::new(stored, codec, buffer.len(), num_values, is_sorted))
        }
    })
}

/// What row groups say of the values of their columns.
pub(super) fn statistics() -> StatisticsOptions {
    StatisticsOptions { min_value: true, max_value: true, null_count: true, distinct_count: false }
}

/// The result of polars' writing to a file.
pub(super) fn written<T>(path: &Path, work: impl FnOnce() -> PolarsResult<T>) -> Result<T, OutputError> {
    caught(work).map_err(|error| OutputError::Table { path: path.to_owned(), error })
}

/// Whether a row group has the columns of its table.
pub(super) fn check_columns(path: &Path, found: &Schema, wanted: &Schema) -> Result<(), OutputError> {
    if found.iter().eq(wanted.iter()) {
        return Ok(());
    }
    let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
    Err(OutputError::Columns { path: path.to_owned(), found, wanted })
}

/// Encodes row groups of a table.
pub(super) struct GroupEncoder {
    /// The file that they go to.
    pub path: PathBuf,
    pub schema: Schema,
    /// By column.
    pub types: Vec<ParquetType>,
}

/// A row group as it is stored: the pages of each column of Parquet.
pub(super) struct EncodedGroup(pub Vec<Vec<CompressedPage>>);

/// A column of a row group.
pub(super) enum GroupColumn {
    Values(Column),
    Lists(ListColumn),
}

/// Lists of values.
pub(super) struct ListColumn {
    pub name: PlSmallStr,
    /// How the values are cut into lists.
    pub levels: Arc<ListLevels>,
    pub dictionary: Dictionary,
    /// The values, as numbers in the dictionary.
    pub numbers: Vec<u32>,
}

/// Distinct values of a column.
pub(super) struct Dictionary {
    kind: DataType,
    len: usize,
    stored: Vec<u8>,
    /// The smallest value and the largest.
    bounds: Option<[Vec<u8>; 2]>,
}

/// Where the lists of a column begin, in Parquet's levels of repetition and definition.
pub(super) struct ListLevels {
    rows: usize,
    values: usize,
    stored: Vec<u8>,
}

impl GroupEncoder {
    /// Each column is made one piece, encoded and left alone, so that no second copy of the row
    /// group is in memory. Runs in the caller's rayon pool.
    pub(super) fn encode(&self, columns: Vec<GroupColumn>) -> Result<EncodedGroup, OutputError> {
        let found: Schema = columns.iter().map(GroupColumn::field).collect();
        check_columns(&self.path, &found, &self.schema)?;
        let encoded = written(&self.path, || {
            let columns = columns.into_par_iter().zip(&self.types);
            columns.map(|(column, kind)| column.encode(kind)).collect::<PolarsResult<Vec<_>>>()
        });
        Ok(EncodedGroup(encoded?.into_iter().flatten().collect()))
    }
}

impl GroupColumn {
    fn field(&self) -> Field {
        match self {
            GroupColumn::Values(values) => values.field().into_owned(),
            GroupColumn::Lists(lists) => {
                Field::new(lists.name.clone(), DataType::List(Box::new(lists.dictionary.kind.clone())))
            }
        }
    }

    /// The pages of each column of Parquet that it becomes.
    fn encode(self, kind: &ParquetType) -> PolarsResult<Vec<Vec<CompressedPage>>> {
        let options = WriteOptions {
            statistics: statistics(),
            version: Version::V1,
            compression: compression()?.into(),
            data_page_size: None,
        };
        let values = match self {
            GroupColumn::Values(values) => values,
            GroupColumn::Lists(lists) => {
                let pages = lists.pages(value_type(kind));
                return Ok(vec![stored_pages(pages.into_iter().map(Ok))?]);
            }
        };
        let series = values.as_materialized_series().rechunk();
        drop(values);
        let array = series.to_arrow(0, CompatLevel::newest());
        drop(series);
        let columns = array_to_columns(array, kind.clone(), options, &encodings(kind))?;
        columns.into_iter().map(stored_pages).collect()
    }
}

/// How polars encodes the values of a column.
fn encodings(kind: &ParquetType) -> Vec<Encoding> {
    match kind {
        ParquetType::PrimitiveType(values) => vec![match values.physical_type {
            PhysicalType::Int32 | PhysicalType::Int64 | PhysicalType::ByteArray => Encoding::RleDictionary,
            _ => Encoding::Plain,
        }],
        ParquetType::GroupType { fields, .. } => fields.iter().flat_map(encodings).collect(),
    }
}

/// The columns of a row group. Lists are written with a dictionary, if no other column is of more
/// than one column of Parquet.
pub(super) fn with_lists(columns: Vec<Column>) -> PolarsResult<Vec<GroupColumn>> {
    let mut lists = Vec::with_capacity(columns.len());
    for column in &columns {
        lists.push(ListColumn::of(column)?);
    }
    if columns.iter().zip(&lists).any(|(column, lists)| lists.is_none() && column.dtype().is_nested()) {
        lists.iter_mut().for_each(|lists| *lists = None);
    }
    let group = columns.into_iter().zip(lists);
    Ok(group.map(|(column, lists)| lists.map_or(GroupColumn::Values(column), GroupColumn::Lists)).collect())
}

/// The lists of a column of lists, and their lengths, if none is null or empty.
fn lists(column: &Column) -> PolarsResult<Option<(LargeListArray, Vec<usize>)>> {
    let series = column.as_materialized_series().rechunk();
    if !matches!(series.dtype(), DataType::List(_)) || series.null_count() > 0 {
        return Ok(None);
    }
    let lists = series.list()?.rechunk().downcast_into_array();
    let lengths: Vec<usize> = lists.offsets().lengths().collect();
    Ok((!lengths.contains(&0)).then_some((lists, lengths)))
}

/// Numbers of values, by first appearance, and the distinct values.
fn numbered<T: Copy + Eq + Hash>(values: impl Iterator<Item = T>) -> (Vec<u32>, Vec<T>) {
    let (mut known, mut distinct) = (HashMap::new(), Vec::new());
    let mut last = None;
    let number = |value| {
        // A value often follows itself.
        if let Some((_, number)) = last.filter(|(last, _)| *last == value) {
            return number;
        }
        let number = *known.entry(value).or_insert_with(|| {
            distinct.push(value);
            distinct.len() as u32 - 1
        });
        last = Some((value, number));
        number
    };
    (values.map(number).collect(), distinct)
}

/// The type of the values of a column.
fn value_type(column: &ParquetType) -> &PrimitiveType {
    match column {
        ParquetType::PrimitiveType(values) => values,
        ParquetType::GroupType { fields, .. } => value_type(&fields[0]),
    }
}

impl ListColumn {
    /// The lists of a column, if they are of numbers or of texts, and none is null or empty.
    pub(super) fn of(column: &Column) -> PolarsResult<Option<ListColumn>> {
        let Some((lists, lengths)) = lists(column)? else { return Ok(None) };
        let first = *lists.offsets().first() as usize;
        let values = lists.values().sliced(first, lengths.iter().sum());
        let values = Series::try_from((PlSmallStr::EMPTY, values))?;
        let (dictionary, numbers) = match values.dtype() {
            DataType::Int64 => {
                let (numbers, distinct) = numbered(values.i64()?.iter().flatten());
                (Dictionary::of_numbers(distinct.into_iter()), numbers)
            }
            DataType::String => {
                let (numbers, distinct) = numbered(values.str()?.iter().flatten());
                (Dictionary::of_texts(distinct.into_iter()), numbers)
            }
            _ => return Ok(None),
        };
        let (name, levels) = (column.name().clone(), Arc::new(ListLevels::new(&lengths)));
        // None of the values is null.
        Ok((numbers.len() == values.len()).then_some(ListColumn { name, levels, dictionary, numbers }))
    }

    fn pages(self, kind: &PrimitiveType) -> [Page; 2] {
        let ListColumn { levels, dictionary, numbers, .. } = self;
        let mut stored = levels.stored.clone();
        // A number of no bits is allowed, but not read by all.
        let bits = (dictionary.len as u32).saturating_sub(1).checked_ilog2().unwrap_or(0) + 1;
        stored.push(bits as u8);
        put_packed(&mut stored, numbers.len(), &packed(&numbers, bits));
        let (min_value, max_value) = dictionary.bounds.map(|[least, most]| (least, most)).unzip();
        let statistics = ParquetStatistics {
            null_count: Some(0),
            distinct_count: None,
            min_value,
            max_value,
            min: None,
            max: None,
            is_min_value_exact: None,
            is_max_value_exact: None,
        };
        let header = DataPageHeaderV1 {
            num_values: levels.values as i32,
            encoding: Encoding::RleDictionary.into(),
            definition_level_encoding: Encoding::Rle.into(),
            repetition_level_encoding: Encoding::Rle.into(),
            statistics: Some(statistics),
        };
        // As polars has it: only statistics are read with it.
        let descriptor = Descriptor { primitive_type: kind.clone(), max_def_level: 0, max_rep_level: 0 };
        let (header, stored) = (DataPageHeader::V1(header), CowBuffer::Owned(stored));
        let values = DictPage::new(CowBuffer::Owned(dictionary.stored), dictionary.len, false);
        [Page::Dict(values), Page::Data(DataPage::new(header, stored, descriptor, levels.rows))]
    }
}

impl Dictionary {
    pub(super) fn of_numbers(values: impl Iterator<Item = i64>) -> Dictionary {
        let mut all = Dictionary { kind: DataType::Int64, len: 0, stored: Vec::new(), bounds: None };
        let mut bounds: Option<[i64; 2]> = None;
        for number in values {
            all.stored.extend_from_slice(&number.to_le_bytes());
            all.len += 1;
            bounds = bounds.map(|[least, most]| [least.min(number), most.max(number)]).or(Some([number; 2]));
        }
        all.bounds = bounds.map(|bounds| bounds.map(|number| number.to_le_bytes().to_vec()));
        all
    }

    pub(super) fn of_texts<'a>(values: impl Iterator<Item = &'a str>) -> Dictionary {
        let mut all = Dictionary { kind: DataType::String, len: 0, stored: Vec::new(), bounds: None };
        let mut bounds: Option<[&str; 2]> = None;
        for text in values {
            all.stored.extend_from_slice(&(text.len() as u32).to_le_bytes());
            all.stored.extend_from_slice(text.as_bytes());
            all.len += 1;
            bounds = bounds.map(|[least, most]| [least.min(text), most.max(text)]).or(Some([text; 2]));
        }
        all.bounds = bounds.map(|bounds| bounds.map(|text| text.as_bytes().to_vec()));
        all
    }
}

impl ListLevels {
    /// Of lists of these lengths. None of them is 0.
    pub(super) fn new(lengths: &[usize]) -> ListLevels {
        let values = lengths.iter().sum();
        // Of each value, whether it continues a list.
        let mut continues = vec![0xFF; usize::div_ceil(values, 8)];
        let mut at = 0;
        for len in lengths {
            continues[at / 8] &= !(1u8 << (at % 8));
            at += len;
        }
        let mut stored = vec![0; 4];
        put_packed(&mut stored, values, &continues);
        let repetition = stored.len() as u32 - 4;
        stored[..4].copy_from_slice(&repetition.to_le_bytes());
        // All lists and values are there: one run of the highest level.
        let run = [varint(2 * values as u64), vec![DEFINED]].concat();
        stored.extend_from_slice(&(run.len() as u32).to_le_bytes());
        stored.extend_from_slice(&run);
        ListLevels { rows: lengths.len(), values, stored }
    }
}

/// The level of definition of a value in a list: polars' lists may be null, be empty, and have
/// values that are null.
const DEFINED: u8 = 3;

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = [0; 10];
    let len = uleb128::encode(number, &mut bytes);
    bytes[..len].to_vec()
}

/// Appends a run of so many packed values.
fn put_packed(out: &mut Vec<u8>, values: usize, packed: &[u8]) {
    out.extend_from_slice(&varint(2 * values.div_ceil(8) as u64 + 1));
    out.extend_from_slice(packed);
}

/// Numbers of so many bits each, the lowest bit first, and zeros up to a whole number of eights.
fn packed(numbers: &[u32], bits: u32) -> Vec<u8> {
    let len = numbers.len().div_ceil(8) * bits as usize;
    let mut out = Vec::with_capacity(len + 4);
    let (mut held, mut count) = (0u64, 0);
    for &number in numbers {
        held |= u64::from(number) << count;
        count += bits;
        if count >= u32::BITS {
            out.extend_from_slice(&(held as u32).to_le_bytes());
            held >>= u32::BITS;
            count -= u32::BITS;
        }
    }
    out.extend_from_slice(&(held as u32).to_le_bytes());
    out.resize(len, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::super::files::{open_table, read};
    use super::super::table::{TableWriter, column, list};
    use super::*;
    use stk_base::files::Below;
    use stk_schema::tables;

    #[test]
    fn numbers_are_packed_from_the_lowest_bit() {
        assert_eq!(packed(&[0, 1, 2, 3, 4, 5, 6, 7], 3), [0x88, 0xC6, 0xFA]);
        assert_eq!(packed(&[1], 1), [1]);
        assert_eq!(packed(&[u32::MAX, 1], 32)[..9], [0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0, 0]);
        assert_eq!(packed(&[], 7), [0_u8; 0]);
    }

    /// A row group of stacks with these lists, by numbers in dictionaries of so many values.
    fn group(encoder: &GroupEncoder, lists: &[Vec<u32>], values: u32) -> EncodedGroup {
        let rows = lists.len();
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        let levels = Arc::new(ListLevels::new(&lengths));
        let lists = |name, dictionary| {
            let (name, levels) = (PlSmallStr::from_static(name), levels.clone());
            GroupColumn::Lists(ListColumn { name, levels, dictionary, numbers: lists.concat() })
        };
        let texts: Vec<String> = (0..values).map(|number| format!("text {number}")).collect();
        let columns = vec![
            GroupColumn::Values(column("stack_id", (0..rows as i64).collect::<Vec<_>>())),
            GroupColumn::Values(column("walk_version", vec![1i64; rows])),
            lists("location_ids", Dictionary::of_numbers((0..i64::from(values)).map(|number| -number))),
            lists("trusts", Dictionary::of_texts(texts.iter().map(String::as_str))),
            GroupColumn::Values(column("depth", lengths.iter().map(|&len| len as i64).collect::<Vec<_>>())),
            GroupColumn::Values(column("resolved_by", vec!["a trace"; rows])),
        ];
        encoder.encode(columns).unwrap()
    }

    #[test]
    fn lists_of_a_dictionary_are_read_as_they_were() {
        for values in [1u32, 2, 3, 255, 257, 70_000] {
            let folder = tempfile::tempdir().unwrap();
            let file = Below::folder(folder.path()).unwrap().join("stacks.parquet");
            let mut table = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
            let encoder = table.encoder();
            let list = |row: u32| (0..1 + row * row % 31).map(|at| (row * 7919 + at * 31) % values).collect();
            let groups: Vec<Vec<Vec<u32>>> = [1, 9, 3000].map(|rows| (0..rows).map(list).collect()).into();
            for lists in &groups {
                table.write_encoded(&group(&encoder, lists, values)).unwrap();
            }
            table.finish().unwrap();
            let frame = read(&open_table(&file, &tables::STACKS).unwrap(), 0, usize::MAX).unwrap();
            let column = |name: &str| frame.column(name).unwrap().list().unwrap().clone();
            let (locations, trusts) = (column("location_ids"), column("trusts"));
            assert_eq!(frame.height(), 3010);
            // Written once more, of what was read.
            let again = Below::folder(folder.path()).unwrap().join("again.parquet");
            let mut table = TableWriter::create(&again, &tables::STACKS, &[], String::new()).unwrap();
            table.write_frame(frame.clone()).unwrap();
            table.finish().unwrap();
            let again = read(&open_table(&again, &tables::STACKS).unwrap(), 0, usize::MAX).unwrap();
            assert!(again.equals(&frame), "{values}");
            for (row, wanted) in groups.concat().iter().enumerate() {
                let found = locations.get_as_series(row).unwrap();
                let found: Vec<i64> = found.i64().unwrap().into_no_null_iter().collect();
                assert_eq!(found, wanted.iter().map(|&number| -i64::from(number)).collect::<Vec<_>>());
                let found = trusts.get_as_series(row).unwrap();
                let found: Vec<&str> = found.str().unwrap().into_no_null_iter().collect();
                assert_eq!(found, wanted.iter().map(|number| format!("text {number}")).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_group_ends_with_the_row_that_fills_it() {
        let rows = |lengths: &[usize]| rows_of_group(lengths.iter().copied());
        assert_eq!(rows(&[GROUP_VALUES / 2, GROUP_VALUES / 2, 1]), 2);
        assert_eq!(rows(&[2 * GROUP_VALUES, 1]), 1);
        assert_eq!(rows(&[1, 2]), 3, "all, and room for more");
    }

    /// Frames are text by text the same: a file of them would be thousands of times its size.
    #[test]
    fn very_many_equal_texts_in_lists_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = Below::folder(folder.path()).unwrap().join("stacks.parquet");
        let mut table = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
        let (rows, depth) = (60_000, 100);
        let offsets: Vec<i64> = (0..=rows).map(|row| row * depth).collect();
        let lists = |name, values: Column| list(name, offsets.clone(), values.take_materialized_series());
        let frame = DataFrame::new(vec![
            column("stack_id", (0..rows).collect::<Vec<_>>()),
            column("walk_version", vec![1i64; rows as usize]),
            lists("location_ids", column("", vec![7i64; (rows * depth) as usize])).unwrap(),
            lists("trusts", column("", vec!["unwind-info"; (rows * depth) as usize])).unwrap(),
            column("depth", vec![depth; rows as usize]),
            column("resolved_by", vec!["a trace"; rows as usize]),
        ]);
        table.write_frame(frame.unwrap()).unwrap();
        table.finish().unwrap();
        let table = open_table(&file, &tables::STACKS).unwrap();
        let read: usize =
            (0..60_000).step_by(1 << 16).map(|at| read(&table, at, 1 << 16).unwrap().height()).sum();
        assert_eq!(read, 60_000);
    }

    #[test]
    fn columns_of_another_table_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = Below::folder(folder.path()).unwrap().join("stacks.parquet");
        let mut table = TableWriter::create(&file, &tables::STACKS, &[], String::new()).unwrap();
        let columns = vec![GroupColumn::Values(column("stack_id", vec![1i64]))];
        assert!(matches!(table.encoder().encode(columns), Err(OutputError::Columns { .. })));
    }
}
