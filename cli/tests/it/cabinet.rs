//! Cabinets in the form of symbol stores: takes the bytes of a file and returns those of the
//! cabinet.

use std::io::{Cursor, Write};

/// A cabinet with `contents` as its one file, of this name.
pub(crate) fn of(name: &str, contents: &[u8]) -> Vec<u8> {
    let mut builder = cab::CabinetBuilder::new();
    builder.add_folder(cab::CompressionType::MsZip).add_file(name);
    let mut writer = builder.build(Cursor::new(Vec::new())).unwrap();
    while let Some(mut file) = writer.next_file().unwrap() {
        file.write_all(contents).unwrap();
    }
    writer.finish().unwrap().into_inner()
}
