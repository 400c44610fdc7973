//! Names, lines and inline frames of PDBs: ours and dbghelp's.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stk_base::map::MappedFile;
use stk_symbols::index::SymbolIndex;
use stk_symbols::pdb::PdbFile;
use stk_symbols::pdb_records::{PdbRecords, RecordFrame};
use stk_symbols::{Demangle, NameTable, demangle, undecorate_x86};
use stk_tests::microsoft::{Level, Options, Rate, Request, ask, files_below};
use stk_tests::wine;

/// Addresses looked up in a PDB.
const ADDRESSES: usize = 2_000;
/// Parts of the paths of PDBs for x86.
const X86: [&str; 3] = ["_x86.pdb", "busy32", "capture32"];
const BASE: u64 = 0x1_8000_0000;

/// The PDBs of the tests: fetched, built and kept ones.
fn pdbs() -> Vec<PathBuf> {
    let fetched = wine::path("STK_FETCH_DIR");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let built = [
        "STK_BUSY_DIR",
        "STK_BUSY32_DIR",
        "STK_STRESS_DIR",
        "STK_CAPTURE_DIR",
        "STK_CAPTURE32_DIR",
        "STK_MIXED_DIR",
    ];
    let mut folders: Vec<PathBuf> = ["node-pty/prebuilds", "debugpy"].map(|name| fetched.join(name)).into();
    folders.push(kept);
    folders.extend(built.map(wine::path));
    let is_windows =
        |path: &Path| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"Microsoft C/C++"));
    let is_pdb = |path: &PathBuf| path.extension().is_some_and(|end| end == "pdb") && is_windows(path);
    let mut found: Vec<PathBuf> = files_below(&folders).into_iter().filter(is_pdb).collect();
    found.sort();
    found
}

/// How answers compare.
#[derive(Default)]
struct Tally {
    addresses: usize,
    equal: usize,
    differ: BTreeMap<String, usize>,
    examples: BTreeMap<String, Vec<String>>,
}

impl Tally {
    fn add(&mut self, class: &str, example: impl FnOnce() -> String) {
        *self.differ.entry(class.to_owned()).or_default() += 1;
        let examples = self.examples.entry(class.to_owned()).or_default();
        if examples.len() < 6 {
            examples.push(example());
        }
    }

    fn print(&self, what: &str) {
        println!("{what}: {} addresses, {} equal", self.addresses, self.equal);
        for (class, count) in &self.differ {
            println!("  {count} {class}");
            let shown = if class.starts_with("UNEXPLAINED") { usize::MAX } else { 1 };
            self.examples[class].iter().take(shown).for_each(|example| println!("    {example}"));
        }
    }
}

/// Addresses in the code, evenly spread.
fn addresses(records: &PdbRecords) -> Vec<u32> {
    let code: u64 = records.code().iter().map(|&(from, to)| u64::from(to - from)).sum();
    let step = (code / ADDRESSES as u64).max(1);
    // A step that shares no small factor with the alignment of functions.
    let step = step | 1;
    let at = |mut place: u64| {
        records.code().iter().find_map(|&(from, to)| {
            let len = u64::from(to - from);
            if place < len {
                return Some(from + place as u32);
            }
            place -= len;
            None
        })
    };
    (0..code).step_by(step as usize).take(ADDRESSES).filter_map(at).collect()
}

fn ours(index: &SymbolIndex, rva: u32) -> Vec<Level> {
    let Some(hit) = index.lookup(rva).expect("a sound index") else { return Vec::new() };
    let range = hit.range();
    hit.frames()
        .map(|frame| Level {
            start: range.map_or(0, |range| BASE + u64::from(range.start)),
            size: range.map_or(0, |range| range.end - range.start),
            name: frame.name.to_owned(),
            file: frame.file.unwrap_or_default().to_owned(),
            line: frame.line.unwrap_or_default(),
        })
        .collect()
}

/// What all of ours and theirs say of an address.
struct Answers<'a> {
    rva: u32,
    ours: &'a [Level],
    theirs: &'a [Level],
    /// DIA's, which is Microsoft's too.
    dia: &'a [Level],
    /// The chains that the PDB's records allow.
    records: &'a [Vec<RecordFrame>],
}

/// Numbers of MSVC for code without a line.
const NO_LINE: [u32; 3] = [0xfe_efee, 0xf0_0f00, 0];

impl Answers<'_> {
    /// Compares all but inlined levels; `Ok` if equal, else the class of the difference.
    fn function(&self) -> Result<(), &'static str> {
        let their = self.theirs.last().filter(|level| !level.name.is_empty());
        let (our, their) = match (self.ours.last(), their) {
            (None, None) => return Ok(()),
            (Some(our), Some(their)) => (our, their),
            (None, Some(their)) => {
                let inside = (BASE + u64::from(self.rva)).wrapping_sub(their.start) < their.size.into();
                return Err(if inside {
                    "UNEXPLAINED: a name of theirs only"
                } else {
                    "outside all symbols: the nearest"
                });
            }
            (Some(_), None) => return Err("UNEXPLAINED: a name of ours only"),
        };
        if (our.start, &our.name) == (their.start, &their.name) {
            return Ok(());
        }
        let is_record =
            |name: &str| self.records.iter().filter_map(|chain| chain.last()).any(|record| record.0 == name);
        Err(match () {
            () if our.start == their.start && is_record(&our.name) && is_record(&their.name) => {
                "folded functions: another one"
            }
            () if their.start > our.start && is_record(&our.name) && !is_record(&their.name) => {
                "a label or public inside of the procedure"
            }
            () => "UNEXPLAINED: name or start",
        })
    }

    /// Compares the levels, where the functions are the same.
    fn levels(&self) -> Result<(), &'static str> {
        if self.ours.len() != self.theirs.len() {
            return Err("UNEXPLAINED: depth");
        }
        let mut found = Ok(());
        for (n, (our, their)) in self.ours.iter().zip(self.theirs).enumerate() {
            let inlined = n + 1 < self.ours.len();
            // It may name another one of folded functions, with the same lines.
            let dia = self.dia.get(n).filter(|_| self.dia.len() == self.ours.len());
            let by_dia = dia.is_some_and(|dia| (&dia.file, dia.line) == (&our.file, our.line));
            if our.name != their.name {
                return Err("UNEXPLAINED: inlined name");
            }
            if (&our.file, our.line) == (&their.file, their.line) {
                continue;
            }
            found = Err(match () {
                () if our.line == 0 && NO_LINE.contains(&their.line) => "a number for no line",
                () if inlined && their.line == 0 && by_dia => {
                    "no line of an inlined function, but DIA has ours"
                }
                () if inlined && their.line == 0 && self.dia.len() < self.ours.len() => {
                    "no line of an inlined function, and DIA lacks a level"
                }
                () if by_dia => "another line, but DIA has ours",
                () if !inlined && our.start == BASE + u64::from(self.rva) && our.file == their.file => {
                    "two lines at a function's first byte: the other one"
                }
                () => return Err("UNEXPLAINED: file or line"),
            });
        }
        found
    }
}

#[test]
fn names_and_lines_of_every_pdb_are_as_dbghelp_says() {
    // Of the largest ones the speed is measured, too.
    const LARGE: u64 = 4 << 20;
    const TIME: Duration = Duration::from_millis(200);
    let (mut all, mut text) = (Tally::default(), Tally::default());
    for pdb in pdbs() {
        let records = PdbRecords::read(&pdb).expect("a PDB");
        let rvas = addresses(&records);
        let size =
            records.code().iter().map(|&(_, to)| to).max().unwrap_or(0).next_multiple_of(0x1000) + 0x10_0000;
        let file = MappedFile::open(&pdb).expect("a PDB");
        let index = PdbFile::open(&file).expect("a PDB").index().expect("a PDB");
        let is_large = std::fs::metadata(&pdb).expect("it is there").len() >= LARGE;
        let time = if is_large { TIME } else { Duration::ZERO };
        let is_x86 = X86.iter().any(|part| pdb.to_string_lossy().contains(part));
        let mut request = Request::default();
        request.symbols(&pdb, (BASE, size), Options::Raw, time, &rvas);
        request.symbols(&pdb, (BASE, size), Options::Undecorated, Duration::ZERO, &rvas);
        request.dia_symbols(&pdb, time, &rvas);
        let mut answer = ask(&request);
        let (theirs, rate) = answer.symbols(rvas.len());
        let (undecorated, _) = answer.symbols(rvas.len());
        let (by_dia, dia) = answer.dia_symbols(rvas.len());
        let mut tally = Tally::default();
        for (((&rva, theirs), undecorated), dia) in rvas.iter().zip(&theirs).zip(&undecorated).zip(&by_dia) {
            let (ours, records) = (ours(&index, rva), records.chains(rva).expect("sound records"));
            let answers = Answers { rva, ours: &ours, theirs, dia, records: &records };
            tally.addresses += 1;
            match answers.function().and_then(|()| answers.levels()) {
                Ok(()) => tally.equal += 1,
                Err(class) => tally.add(class, || {
                    format!("{rva:#x}: ours {ours:?}; theirs {theirs:?}; DIA {dia:?}; records {records:?}")
                }),
            }
            if let (Some(our), Some(their), Some(undecorated)) =
                (ours.last(), theirs.last(), undecorated.last())
                && our.name == their.name
            {
                text.addresses += 1;
                let mut shown = demangle(&our.name, Demangle::Short);
                if is_x86 && records.is_empty() && shown == our.name {
                    shown = undecorate_x86(&our.name, NameTable::Symbols).into();
                }
                if shown == undecorated.name {
                    text.equal += 1;
                } else {
                    text.add(class_of_text(&our.name, &shown, &undecorated.name), || {
                        format!("{}: ours {shown}, theirs {}", our.name, undecorated.name)
                    });
                }
            }
        }
        let name = pdb.strip_prefix(wine::path("STK_FETCH_DIR")).unwrap_or(&pdb).display().to_string();
        tally.print(&name);
        if is_large {
            let ours =
                Rate::of(TIME, || rvas.iter().map(|&rva| ours_quickly(&index, rva)).sum()).per_second();
            let [theirs, dia] = [rate, dia].map(Rate::per_second);
            println!(
                "  levels with name, file and line a second of processor time: dbghelp {theirs:.0}, DIA {dia:.0} (under Wine), \
                 stk {ours:.0} (native): {:.0} and {:.0} times as many",
                ours / theirs,
                ours / dia
            );
        }
        all.addresses += tally.addresses;
        all.equal += tally.equal;
        for (class, count) in tally.differ {
            *all.differ.entry(class.clone()).or_default() += count;
            all.examples.entry(class.clone()).or_insert_with(|| tally.examples[&class].clone());
        }
    }
    all.print("all");
    text.print("text");
    assert!(all.addresses > 20 * ADDRESSES && all.equal * 10 > all.addresses * 8);
    for tally in [&all, &text] {
        let classes: Vec<&String> = tally.differ.keys().collect();
        assert!(classes.len() <= 10, "{classes:?}");
        assert!(!classes.iter().any(|class| class.starts_with("UNEXPLAINED")), "{classes:?}");
    }
}

/// The frames of an address with their text, counted.
fn ours_quickly(index: &SymbolIndex, rva: u32) -> u64 {
    let hit = index.lookup(rva).expect("a sound index");
    let mut frames = 0;
    for frame in hit.iter().flat_map(|hit| hit.frames()) {
        black_box((frame.name, frame.file, frame.line));
        frames += 1;
    }
    frames
}

/// How dbghelp's text of a name differs from ours.
fn class_of_text(raw: &str, ours: &str, theirs: &str) -> &'static str {
    match () {
        () if raw.starts_with("_Z") => "a name of the Itanium ABI, which dbghelp does not know",
        () if ours.strip_prefix('_') == Some(theirs) => "an underscore taken off any name",
        () if raw == ours && undecorate_x86(raw, NameTable::Symbols) == theirs => {
            "decoration of x86 in a procedure's record"
        }
        () => "UNEXPLAINED: text",
    }
}
