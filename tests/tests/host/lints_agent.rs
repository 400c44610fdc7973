//! Rules of the recorder that a search of its source can check.

use std::path::Path;

/// `Teb::stack` reads a thread's environment block directly, and the system unmaps that block when
/// the thread ends. Only the code that suspends threads and the code with which a thread captures
/// or walks itself may call it. All other code uses the call that cannot fault (`Teb::stack_base`).
#[test]
fn only_suspended_or_own_tebs_are_read_directly() {
    let mut found = Vec::new();
    search(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src"), &mut found);
    found.sort();
    assert_eq!(found, ["backtrace.rs", "suspend.rs", "triggers.rs"]);
}

/// Names of the files that call `.stack()`.
fn search(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            search(&path, found);
        } else if std::fs::read_to_string(&path).unwrap().contains(".stack()") {
            found.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
}
