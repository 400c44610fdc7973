//! One Parquet file of a table, written by polars.

use super::super::OutputError;
use super::super::sink::temporary;
use super::groups::{self, EncodedGroup, GroupColumn, GroupEncoder, written};
use hashbrown::HashMap;
use polars::prelude::*;
use polars_parquet::write::KeyValue;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::PoisonError;
use stk_base::files::{Below, MayReplace};
use stk_base::interrupt::TemporaryFile;
use stk_schema::tables::{self, ColumnType};

/// Names of the fields of [`ColumnType::NamedFrames`].
pub(super) const NAMED_FRAME: &str = "frame";
/// Name of the struct of [`ColumnType::KeyValues`].
pub(super) const KEY_VALUE: &str = "label";

/// A Parquet file that gets its name when it is finished.
pub(super) struct TableWriter {
    goal: Below,
    path: PathBuf,
    file: TemporaryFile,
    writer: polars::io::parquet::write::BatchedWriter<BufWriter<File>>,
    schema: Schema,
    exporter: String,
}

/// Keys of the facts that each file holds beside its rows.
const VERSION_KEY: &str = "stk.tables_version";
const EXPORTER_KEY: &str = "stk.exporter";

impl TableWriter {
    /// A file of `table`, with the columns of `more` at the end. `exporter` says who made it of
    /// what.
    pub(super) fn create(
        goal: &Below,
        table: &tables::ParquetTable,
        more: &[tables::TableColumn],
        exporter: String,
    ) -> Result<TableWriter, OutputError> {
        let path = goal.path();
        let schema: Schema =
            table.columns.iter().chain(more).map(|c| Field::new(c.name.into(), data_type(c.kind))).collect();
        let file = temporary(&goal.parent()).map_err(OutputError::at(&path, "cannot be made"))?;
        let handle = file.as_file().try_clone().map_err(OutputError::at(&path, "cannot be written"))?;
        let writer = written(&path, || {
            let writer = ParquetWriter::new(BufWriter::new(handle)).with_compression(groups::compression()?);
            writer.with_statistics(groups::statistics()).batched(&schema)
        })?;
        Ok(TableWriter { goal: goal.clone(), path, file, writer, schema, exporter })
    }

    /// Writes a row group.
    pub(super) fn write(&mut self, columns: Vec<Column>) -> Result<(), OutputError> {
        let frame = DataFrame::new(columns)?;
        if frame.height() == 0 {
            return Ok(());
        }
        self.write_group(frame.take_columns().into_iter().map(GroupColumn::Values).collect())
    }

    fn write_group(&mut self, group: Vec<GroupColumn>) -> Result<(), OutputError> {
        let encoded = self.encoder().encode(group)?;
        self.write_encoded(&encoded)
    }

    /// Writes a frame with the columns of the table: a row group, or several if it has very many
    /// values in lists.
    pub(super) fn write_frame(&mut self, mut frame: DataFrame) -> Result<(), OutputError> {
        if frame.get_columns().iter().any(|column| column.dtype().is_nested()) {
            frame.as_single_chunk();
        }
        let mut from = 0;
        for rows in groups::group_rows(&frame)? {
            let group = frame.slice(from as i64, rows);
            from += rows;
            if from == frame.height() {
                // So that columns that are encoded are in memory no more.
                frame = DataFrame::empty();
            }
            self.write_group(groups::with_lists(group.take_columns())?)?;
        }
        Ok(())
    }

    /// Encodes row groups for [`write_encoded`](Self::write_encoded).
    pub(super) fn encoder(&mut self) -> GroupEncoder {
        let types = self.writer.parquet_schema().fields().to_vec();
        GroupEncoder { path: self.path.clone(), schema: self.schema.clone(), types }
    }

    /// Writes a row group that is encoded.
    pub(super) fn write_encoded(&mut self, EncodedGroup(columns): &EncodedGroup) -> Result<(), OutputError> {
        written(&self.path, || self.writer.write_row_group(columns))
    }

    /// Bytes so far, except for what is still to be written of the last row group.
    pub(super) fn len(&self) -> Result<u64, OutputError> {
        let facts = self.file.as_file().metadata();
        Ok(facts.map_err(OutputError::at(&self.path, "cannot be written"))?.len())
    }

    /// Completes the file. Returns its path and size.
    pub(super) fn finish(self) -> Result<(PathBuf, u64), OutputError> {
        let path = self.path;
        let facts = [(VERSION_KEY, tables::VERSION.to_string()), (EXPORTER_KEY, self.exporter)];
        let facts = facts.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect();
        // The writer's own `finish` writes no facts.
        let end = || self.writer.get_writer().lock().unwrap_or_else(PoisonError::into_inner).end(Some(facts));
        written(&path, end)?;
        drop(self.writer);
        let size = self.file.as_file().metadata().map_err(OutputError::at(&path, "cannot be written"))?.len();
        let placed = self.file.persist(&self.goal, MayReplace::NoTrace);
        placed.map_err(OutputError::at(&path, "cannot be replaced"))?;
        Ok((path, size))
    }
}

/// The polars type of a column.
pub(super) fn data_type(kind: ColumnType) -> DataType {
    let field = |name: &str, dtype| Field::new(name.into(), dtype);
    match kind {
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float64 => DataType::Float64,
        ColumnType::Boolean => DataType::Boolean,
        ColumnType::Text => DataType::String,
        ColumnType::TimestampMicrosUtc => utc(),
        ColumnType::ListInt64 => DataType::List(Box::new(DataType::Int64)),
        ColumnType::ListText => DataType::List(Box::new(DataType::String)),
        ColumnType::NamedFrames => DataType::List(Box::new(DataType::Struct(vec![
            field("function", DataType::String),
            field("file", DataType::String),
            field("line", DataType::Int64),
            field("module", DataType::String),
            field("rva", DataType::Int64),
            field("address", DataType::Int64),
            field("trust", DataType::String),
            field("inline", DataType::Boolean),
        ]))),
        ColumnType::KeyValues => DataType::List(Box::new(DataType::Struct(vec![
            field("key", DataType::String),
            field("value", DataType::String),
        ]))),
    }
}

pub(super) fn utc() -> DataType {
    DataType::Datetime(TimeUnit::Microseconds, Some("UTC".into()))
}

/// A column of values.
pub(super) fn column<T, Phantom: ?Sized>(name: &str, values: T) -> Column
where
    Series: NamedFrom<T, Phantom>,
{
    Series::new(name.into(), values).into_column()
}

/// A column of this kind without values.
pub(super) fn nulls(wanted: &tables::TableColumn, rows: usize) -> Column {
    Series::full_null(wanted.name.into(), rows, &data_type(wanted.kind)).into_column()
}

/// A column of times of day, from microseconds since the Unix epoch.
pub(super) fn timestamps(name: &str, values: Vec<i64>) -> Column {
    in_utc(Int64Chunked::from_vec(name.into(), values))
}

/// Microseconds since the Unix epoch as times of day.
pub(super) fn in_utc(values: Int64Chunked) -> Column {
    // Not a cast, since a cast drops the time zone unless polars is built with all of them.
    values.into_datetime(TimeUnit::Microseconds, Some("UTC".into())).into_column()
}

/// A column of lists: row `i` is `values[offsets[i]..offsets[i + 1]]`.
pub(super) fn list(name: &str, offsets: Vec<i64>, values: Series) -> Result<Column, OutputError> {
    let values = values.rechunk();
    let values = values.chunks()[0].clone();
    let dtype = LargeListArray::default_datatype(values.dtype().clone());
    let list = LargeListArray::try_new(dtype, offsets.try_into()?, values, None)?;
    Ok(Series::try_from((PlSmallStr::from(name), Box::new(list) as ArrayRef))?.into_column())
}

/// A series of structs.
pub(super) fn structs(name: &str, fields: Vec<Column>) -> Result<Series, OutputError> {
    let rows = fields.first().map_or(0, Column::len);
    Ok(StructChunked::from_columns(name.into(), rows, &fields)?.into_series())
}

/// The same values, in memory of their own. Rows that are picked from a column of texts keep all
/// texts of that column in memory, and so all of the files that it was read from.
pub(super) fn in_own_memory(column: &Column) -> Result<Column, OutputError> {
    let series = column.as_materialized_series();
    let own = match series.dtype() {
        DataType::String => own_texts(series)?,
        DataType::List(inner) if **inner == DataType::String => {
            let whole = series.rechunk();
            let list = whole.list()?.rechunk().downcast_into_array();
            let values = Series::try_from((PlSmallStr::EMPTY, list.values().clone()))?;
            let values = own_texts(&values)?.rechunk().chunks()[0].clone();
            let dtype = LargeListArray::default_datatype(values.dtype().clone());
            let validity = whole.chunks()[0].validity().cloned();
            let own = LargeListArray::try_new(dtype, list.offsets().clone(), values, validity)?;
            Series::try_from((series.name().clone(), Box::new(own) as ArrayRef))?
        }
        _ => return Ok(column.clone()),
    };
    Ok(own.into_column())
}

/// The texts of a series, each once in memory.
fn own_texts(series: &Series) -> Result<Series, OutputError> {
    // Short texts are in the rows themselves.
    if series.str()?.downcast_iter().all(|texts| texts.data_buffers().is_empty()) {
        return Ok(series.clone());
    }
    let texts = repeated(series.name(), series.str()?.iter())?;
    Ok(texts.take_materialized_series())
}

/// A column of texts that has each of them once in memory.
pub(super) fn repeated<'a>(
    name: &str,
    texts: impl Iterator<Item = Option<&'a str>>,
) -> Result<Column, OutputError> {
    let mut numbers: HashMap<&str, IdxSize> = HashMap::new();
    let mut unique: Vec<&str> = Vec::new();
    let mut number = |text| {
        *numbers.entry(text).or_insert_with(|| {
            unique.push(text);
            unique.len() as IdxSize - 1
        })
    };
    let indices: IdxCa = texts.map(|text| text.map(&mut number)).collect();
    Ok(Series::new(name.into(), unique).take(&indices)?.into_column())
}

/// Texts that many rows share.
pub(super) struct SharedTexts(Series);

impl SharedTexts {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> SharedTexts {
        SharedTexts(Series::new("".into(), texts.collect::<Vec<_>>()))
    }

    pub(super) fn single(text: &str) -> SharedTexts {
        SharedTexts::new(std::iter::once(text))
    }

    /// A column of the texts at these indices.
    pub(super) fn column(&self, name: &str, indices: &[IdxSize]) -> Result<Column, OutputError> {
        Ok(self.0.take_slice(indices)?.with_name(name.into()).into_column())
    }
}
