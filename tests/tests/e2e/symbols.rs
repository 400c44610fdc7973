//! Compares the symbol index with the raw records at every code address of third-party PDBs.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use stk_base::map::MappedFile;
use stk_symbols::pdb::PdbFile;
use stk_symbols::pdb_records::PdbRecords;

fn fetched(path: &str) -> PathBuf {
    let folder = std::env::var_os("STK_FETCH_DIR").expect("STK_FETCH_DIR is set by tests/run.sh");
    Path::new(&folder).join(path)
}

/// `folded`: whether the linker folded functions with the same code.
fn every_address_agrees(path: &Path, at_least: u64, folded: bool) {
    let file = MappedFile::open(path).unwrap();
    let index = PdbFile::open(&file).unwrap().index().unwrap();
    assert_eq!(index.header().damaged_parts, 0);
    let agreement = PdbRecords::read(path).unwrap().compare(&index, &AtomicU64::default()).unwrap();
    assert!(agreement.complete(), "{}: {:#?}", path.display(), agreement);
    assert!(agreement.in_procedures >= at_least, "{}: {:#?}", path.display(), agreement);
    assert!(agreement.inlined > 0 && agreement.with_line > 0);
    assert_eq!(agreement.folded > 0, folded, "{}: {:#?}", path.display(), agreement);
}

#[test]
fn winpty_agent_x64_is_named_as_its_records_say() {
    every_address_agrees(&fetched("node-pty/prebuilds/win32-x64/winpty-agent.pdb"), 190_000, true);
}

#[test]
fn winpty_agent_arm64_is_named_as_its_records_say() {
    every_address_agrees(&fetched("node-pty/prebuilds/win32-arm64/winpty-agent.pdb"), 190_000, true);
}

#[test]
fn conpty_x64_is_named_as_its_records_say() {
    every_address_agrees(&fetched("node-pty/prebuilds/win32-x64/conpty.pdb"), 190_000, true);
}

#[test]
fn attach_x86_is_named_as_its_records_say() {
    every_address_agrees(
        &fetched("debugpy/debugpy/_vendored/pydevd/pydevd_attach_to_process/attach_x86.pdb"),
        17_000,
        false,
    );
}
