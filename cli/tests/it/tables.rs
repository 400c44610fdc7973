//! `schema/tables.json` describes the tables of a dataset as `stk_schema::tables` does.

use serde_json::{Value, json};
use stk_schema::tables::{self, ColumnType, TableColumn};

fn type_name(kind: ColumnType) -> &'static str {
    match kind {
        ColumnType::Int64 => "int64",
        ColumnType::Float64 => "float64",
        ColumnType::Boolean => "boolean",
        ColumnType::Text => "text",
        ColumnType::TimestampMicrosUtc => "timestamp in microseconds, UTC",
        ColumnType::ListInt64 => "list of int64",
        ColumnType::ListText => "list of text",
        ColumnType::NamedFrames => {
            "list of struct {function: text, file: text, line: int64, module: text, rva: int64, address: int64, trust: text, inline: boolean}"
        }
        ColumnType::KeyValues => "list of struct {key: text, value: text}",
    }
}

fn described() -> Value {
    let column = |column: &TableColumn| {
        let (name, doc) = (column.name, column.doc);
        json!({ "name": name, "type": type_name(column.kind), "nullable": column.nullable, "doc": doc })
    };
    let tables = tables::ALL.iter().map(|table| {
        let columns: Vec<Value> = table.columns.iter().map(column).collect();
        json!({ "name": table.name, "partitioned_by_date": table.by_date, "doc": table.doc, "columns": columns })
    });
    json!({
        "tables_version": tables::VERSION,
        "walk_version": tables::WALK_VERSION,
        "tables": tables.collect::<Vec<_>>(),
        "samples_with_denormalized": column(&tables::SAMPLES_FRAMES),
    })
}

/// With STK_WRITE=1 in the environment, writes the file.
#[test]
fn the_tables_are_described_as_data() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../schema/tables.json");
    let text = serde_json::to_string_pretty(&described()).expect("JSON") + "\n";
    if std::env::var_os("STK_WRITE").is_some() {
        std::fs::write(path, &text).expect("written");
    }
    let found = std::fs::read_to_string(path).expect("schema/tables.json");
    assert!(found == text, "schema/tables.json is not as schema/src/tables.rs: write it with STK_WRITE=1");
}
