//! Files for readers that are not Rust: `tests/viewers/check.sh` names a folder in STK_OUTPUTS and
//! reads them there.

use crate::profiles::busy;
use std::path::PathBuf;
use stk::output::{self, ChromeStyle, Destination, Format, Options};

#[test]
fn every_format_can_be_written_by_name() {
    let temporary = tempfile::tempdir().expect("folder");
    let folder = std::env::var_os("STK_OUTPUTS").map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let styles = [ChromeStyle::Slices, ChromeStyle::V8, ChromeStyle::Samples];
    let outputs = [
        ("busy.speedscope.json", Options::default()),
        ("slices.trace.json", Options { chrome_style: styles[0], ..Options::default() }),
        ("v8.chrome.json", Options { chrome_style: styles[1], ..Options::default() }),
        ("samples.trace.json", Options { chrome_style: styles[2], ..Options::default() }),
        ("busy.folded", Options::default()),
        ("busy.parquet", Options { denormalized: true, ..Options::default() }),
    ];
    let b = busy();
    for (name, options) in outputs {
        let path = folder.join(name);
        let format = Format::from_path(&path).expect("the name says the format");
        let destination =
            if format.is_folder() { Destination::Dir(path.clone()) } else { Destination::File(path.clone()) };
        let mut writer = output::create(format, destination, &options).expect("create");
        let summary = output::write(&mut *writer, &b.profile, &b.runs).expect("write");
        for (file, size) in summary.files {
            assert_eq!(std::fs::metadata(&file).map(|f| f.len()).ok(), Some(size), "{}", file.display());
        }
        assert!(summary.warnings.is_empty());
    }
}
