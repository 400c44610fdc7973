//! stk.exe, run as a Windows program, beside the host's stk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use stk_tests::wine::{self, Folder};
use stk_tests::{stk, wine::command};

/// The kept trace with its PDBs, in a folder where both programs work with the same relative paths.
fn kept_trace() -> Folder {
    let folder = Folder::new("stk-exe");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    for entry in std::fs::read_dir(&kept).unwrap_or_else(|error| panic!("{}: {error}", kept.display())) {
        let entry = entry.expect("an entry of examples/traces");
        std::fs::copy(entry.path(), folder.file(&entry.file_name().to_string_lossy())).expect("a copy");
    }
    folder
}

/// All files at or below a path, by their place below it.
fn files(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        if next.is_dir() {
            let entries = std::fs::read_dir(&next).expect("a folder that was just written");
            open.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            let bytes = std::fs::read(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display()));
            found.insert(next.strip_prefix(path).expect("below the path").to_owned(), bytes);
        }
    }
    found
}

/// All tables but `frames`: stk.exe finds the system's own DLLs where the trace says they are, and with them better names.
#[test]
fn stk_exe_writes_the_same_bytes_as_the_hosts_stk() {
    let folder = kept_trace();
    let exe = wine::path("STK_WINDOWS_BIN").join("stk.exe");
    let arguments = |output| ["convert", "busy.stk", "--to", "parquet", "-o", output];
    let ran = stk::run(folder.path(), &arguments("host.parquet"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = command(&exe)
        .args(arguments("windows.parquet"))
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .expect("stk.exe can be started");
    assert!(ran.status.success(), "stk.exe: {}", String::from_utf8_lossy(&ran.stderr));
    let (ours, theirs) = (files(&folder.file("host.parquet")), files(&folder.file("windows.parquet")));
    assert_eq!(ours.len(), 6, "a file a table");
    assert_eq!(theirs.len(), 6, "a file a table");
    for (name, bytes) in ours.iter().filter(|(name, _)| !name.starts_with("frames")) {
        assert!(bytes == &theirs[name], "{} differs", name.display());
    }
}
