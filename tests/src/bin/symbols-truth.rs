//! `symbols-truth PDB…`: compares the symbol index with the raw records at every address of the
//! code; prints one JSON line a file and exits 1 if any address disagrees.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use stk::map::MappedFile;
use stk::symbols::pdb::PdbFile;
use stk_tests::symbols::Truth;

fn main() -> Result<ExitCode> {
    let mut complete = true;
    for path in std::env::args().skip(1) {
        let path = Path::new(&path);
        let file = MappedFile::open(path).with_context(|| path.display().to_string())?;
        let index = PdbFile::open(&file)?.index()?;
        let agreement = Truth::read(path)?.compare(&index)?;
        let mut line = agreement.to_json();
        line["file"] = path.display().to_string().into();
        println!("{line}");
        complete &= agreement.complete();
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
