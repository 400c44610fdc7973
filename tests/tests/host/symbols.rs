//! Compares the symbol index with the raw records at every code address of the project's own PDBs
//! (clang-19, lld-19).

use std::path::Path;
use std::sync::atomic::AtomicU64;

use stk_base::map::MappedFile;
use stk_symbols::pdb::PdbFile;
use stk_symbols::pdb_records::PdbRecords;

#[test]
fn kept_pdbs_are_named_as_their_records_say() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let mut inlined = 0;
    for name in ["busy.pdb", "plugin_a.pdb", "plugin_ä.pdb"] {
        let path = traces.join(name);
        let file = MappedFile::open(&path).unwrap();
        let index = PdbFile::open(&file).unwrap().index().unwrap();
        let agreement = PdbRecords::read(&path).unwrap().compare(&index, &AtomicU64::default()).unwrap();
        assert!(agreement.complete(), "{name}: {agreement:#?}");
        assert!(agreement.with_line > 0, "{name}: {agreement:#?}");
        inlined += agreement.inlined;
    }
    // plugin_ä.dll has no inlined function. If none of the three had one, the test would not cover
    // chains.
    assert!(inlined > 0);
}

#[test]
fn the_index_of_another_pdb_disagrees_with_the_records() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let file = MappedFile::open(&traces.join("plugin_a.pdb")).unwrap();
    let index = PdbFile::open(&file).unwrap().index().unwrap();
    let records = PdbRecords::read(&traces.join("busy.pdb")).unwrap();
    let agreement = records.compare(&index, &AtomicU64::default()).unwrap();
    assert!(!agreement.complete());
    assert!(agreement.wrong_names > agreement.in_procedures / 2, "{agreement:#?}");
    assert_eq!(agreement.examples.len(), 12);
}
