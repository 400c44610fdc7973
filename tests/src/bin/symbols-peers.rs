//! `symbols-peers [--llvm N] [--examples] IMAGE PDB…`: pairs of an image and its PDB. Looks up
//! every address of the code with pdb-addr2line, and with llvm-symbolizer-19, which is slow and
//! crashes, N addresses spread evenly over it (default 4000). It decides every difference from stk
//! by the raw records. It prints one JSON line for each pair and peer, and exits with 1 if the
//! records show that stk is wrong anywhere.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use stk_base::map::MappedFile;
use stk_symbols::pdb::PdbFile;
use stk_symbols::pdb_records::PdbRecords;
use stk_tests::peers::{Answer, compare, llvm_symbolizer, pdb_addr2line};

fn main() -> Result<ExitCode> {
    let (mut sample, mut examples, mut files) = (4000, false, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--llvm" => sample = arguments.next().context("--llvm N")?.parse::<usize>()?,
            "--examples" => examples = true,
            _ => files.push(argument),
        }
    }
    ensure!(
        !files.is_empty() && files.len() % 2 == 0,
        "usage: symbols-peers [--llvm N] [--examples] IMAGE PDB…"
    );
    let mut right = true;
    for pair in files.chunks_exact(2) {
        let (image, pdb) = (Path::new(&pair[0]), Path::new(&pair[1]));
        let file = MappedFile::open(pdb).with_context(|| pdb.display().to_string())?;
        let index = PdbFile::open(&file)?.index()?;
        let truth = PdbRecords::read(pdb)?;
        let all: Vec<u32> = truth.code().iter().flat_map(|&(from, to)| from..to).collect();
        let spread: Vec<u32> =
            all.iter().copied().step_by(all.len().div_ceil(sample.max(1)).max(1)).collect();
        let mut print = |peer: &str, rvas: &[u32], answers: &[Answer]| -> Result<()> {
            let tally = compare(&truth, &index, rvas, answers)?;
            let mut line = tally.to_json(examples);
            line["peer"] = peer.into();
            line["file"] = pdb.file_name().map(|name| name.to_string_lossy().into_owned()).into();
            println!("{line}");
            right &= tally.ours_wrong == 0;
            Ok(())
        };
        print("pdb-addr2line", &all, &pdb_addr2line(pdb, &all)?)?;
        if sample != 0 {
            print("llvm-symbolizer", &spread, &llvm_symbolizer(image, &spread)?)?;
        }
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
