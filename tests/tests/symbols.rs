//! The symbol index against the raw records, at every address of the code of the PDBs that are kept
//! with the project (clang-19, lld-19).

use std::path::Path;

use stk::map::MappedFile;
use stk::symbols::pdb::PdbFile;
use stk_tests::symbols::Truth;

#[test]
fn kept_pdbs_are_named_as_their_records_say() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let mut inlined = 0;
    for name in ["busy.pdb", "plugin_a.pdb", "plugin_ä.pdb"] {
        let path = traces.join(name);
        let file = MappedFile::open(&path).unwrap();
        let index = PdbFile::open(&file).unwrap().index().unwrap();
        let agreement = Truth::read(&path).unwrap().compare(&index).unwrap();
        assert!(agreement.complete(), "{name}: {:#}", agreement.to_json());
        assert!(agreement.with_line > 0, "{name}: {:#}", agreement.to_json());
        inlined += agreement.inlined;
    }
    // plugin_ä.dll has no inlined function; without any in all three, chains would not be tested.
    assert!(inlined > 0);
}
