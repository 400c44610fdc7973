//! Datasets with one file that is wrong: a table, or what stk keeps in `_stk`.

use crate::command::{answered, end_at_panics, folder};
use crate::mutated::Input;
use polars::prelude::{ParallelStrategy, ParquetCompression, ParquetReader, ParquetWriter, SerReader};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use stk_output::formats::TableFile;
use stk_schema::tables::{self, ParquetTable};
use stk_tests::synth::Choices;
use stk_tests::{hostile, wrong};

/// The files of a dataset of one small trace, by their place in it. Tables that readers look at are
/// there as stk writes them, and without compression, so that changes reach their values.
fn sound() -> &'static BTreeMap<PathBuf, Vec<Vec<u8>>> {
    static FILES: OnceLock<BTreeMap<PathBuf, Vec<Vec<u8>>>> = OnceLock::new();
    FILES.get_or_init(|| {
        let at = folder().join("sound.parquet");
        let trace = folder().join("sound.stk");
        std::fs::write(&trace, hostile::small()).expect("writable");
        answered(
            ["convert", "-j", "1", "--no-default-symbols", "--to", "parquet"]
                .map(OsString::from)
                .into_iter()
                .chain([trace.into(), "-o".into(), at.clone().into()]),
        );
        let mut files = BTreeMap::new();
        add_files(&at, &at, &mut files);
        assert!(files.len() > 8, "{:?}", files.keys());
        files
    })
}

fn add_files(root: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<Vec<u8>>>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            add_files(root, &path, files);
            continue;
        }
        let bytes = std::fs::read(&path).expect("a file");
        let mut forms = vec![bytes.clone()];
        if path.extension().is_some_and(|end| end == "parquet") {
            let mut frame = ParquetReader::new(Cursor::new(bytes)).finish().expect("a table");
            let mut plain = Vec::new();
            let writer = ParquetWriter::new(&mut plain).with_compression(ParquetCompression::Uncompressed);
            writer.finish(&mut frame).expect("a table");
            forms.push(plain);
        }
        files.insert(path.strip_prefix(root).expect("below it").to_owned(), forms);
    }
}

/// The table that a file is of.
fn table_of(path: &Path) -> Option<&'static ParquetTable> {
    const TABLES: &[ParquetTable] = &tables::ALL;
    let first = path.components().next()?.as_os_str();
    TABLES.iter().find(|table| first == table.name)
}

/// A file of a table with changes: it is refused, or each column has the rows that it states.
///
/// # Panics
///
/// When that does not hold.
pub fn table(data: &[u8]) {
    end_at_panics();
    let mut input = Input(data);
    let files: Vec<_> = sound().iter().filter(|(path, _)| table_of(path).is_some()).collect();
    let (path, forms) = files[input.below(files.len())];
    let mut bytes = forms[input.below(forms.len())].clone();
    input.changes(|input| wrong::parquet(&mut bytes, input));
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(&bytes).expect("writable");
    let table = table_of(path).expect("of a table");
    let Ok(table) = TableFile::open(path, file, table) else { return };
    if let Ok(frame) = table.read(None, 0, usize::MAX, ParallelStrategy::None) {
        assert!(frame.get_columns().iter().all(|column| column.len() == frame.height()));
    }
}

/// A dataset of which one file has changes: a question to it, and the making of its tables.
///
/// # Panics
///
/// When a command ends in a way that no input may cause, or something is made beside the dataset.
pub fn command(data: &[u8]) {
    end_at_panics();
    let (outside, at) = (folder().join("runs"), folder().join("runs/lab.parquet"));
    let mut input = Input(data);
    let files: Vec<_> = sound().iter().collect();
    let (path, forms) = files[input.below(files.len())];
    let mut bytes = forms[input.below(forms.len())].clone();
    let command: &[&str] = match input.below(6) {
        0 | 1 => &["stats", "-j", "1", "DATASET"],
        2 => &["stats", "-j", "1", "--tree", "DATASET"],
        3 => &["stats", "-j", "1", "--group-by", "thread-name,module,wait", "--format", "csv", "DATASET"],
        4 => &["diff", "-j", "1", "DATASET", "DATASET"],
        _ => &["symbols", "apply", "-j", "1", "--no-default-symbols", "DATASET"],
    };
    let is_table = path.extension().is_some_and(|end| end == "parquet");
    input.changes(|input| match is_table {
        true => wrong::parquet(&mut bytes, input),
        false => wrong::json(&mut bytes, input),
    });
    if at.is_dir() && command[0] != "symbols" {
        // Questions change nothing.
        write(&at, path, &bytes);
    } else {
        let _ = std::fs::remove_dir_all(&outside);
        for (path, forms) in sound() {
            write(&at, path, &forms[0]);
        }
        write(&at, path, &bytes);
    }
    answered(command.iter().map(|part| match *part {
        "DATASET" => at.clone().into_os_string(),
        part => part.into(),
    }));
    let left: Vec<_> = std::fs::read_dir(&outside).expect("a folder").flatten().collect();
    assert!(left.len() == 1, "{left:?}");
    if command[0] == "symbols" {
        let _ = std::fs::remove_dir_all(&outside);
    } else {
        write(&at, path, &forms[0]);
    }
}

fn write(dataset: &Path, path: &Path, bytes: &[u8]) {
    let at = dataset.join(path);
    std::fs::create_dir_all(at.parent().expect("a folder")).expect("writable");
    File::create(at).and_then(|mut file| file.write_all(bytes)).expect("writable");
}
