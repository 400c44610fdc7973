//! Completes traces of killed recordings from right and wrong image files.

use super::*;
use std::cell::RefCell;
use stk_format::{Scratch, Supplement};
use stk_schema::Arch;
use stk_schema::control::EMBED_UNWIND;
use stk_schema::event::TableKind;
use stk_schema::identity::PeIdentity;
use stk_tests::synth::TraceBuilder;

const STAMP: u32 = 0x1234_5678;
const SIZE: u32 = 0x6000;

/// An x64 DLL file after the PE specification: one function with its unwind record, a CodeView
/// record if `guid` is given.
fn dll(stamp: u32, check_sum: u32, guid: Option<u8>) -> Vec<u8> {
    let mut bytes = vec![0u8; 0xa00];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    let (nt, optional) = (0x80, 0x80 + 24);
    put(0, u32::from_le_bytes(*b"MZ\0\0"));
    put(0x3c, nt as u32);
    put(nt, u32::from_le_bytes(*b"PE\0\0"));
    put(nt + 4, 0x8664 | 1 << 16);
    put(nt + 8, stamp);
    put(nt + 20, 240);
    put(optional, 0x20b);
    for (at, value) in [(32, 0x1000), (36, 0x200), (56, SIZE), (60, 0x400), (64, check_sum), (108, 16)] {
        put(optional + at, value);
    }
    put(optional + 112 + 3 * 8, 0x5000);
    put(optional + 112 + 3 * 8 + 4, 12);
    if guid.is_some() {
        put(optional + 112 + 6 * 8, 0x5100);
        put(optional + 112 + 6 * 8 + 4, 28);
        for (at, value) in [(12, 2), (16, 32), (20, 0x5200)] {
            put(0x400 + 0x100 + at, value);
        }
        put(0x400 + 0x200, u32::from_le_bytes(*b"RSDS"));
        put(0x400 + 0x214, 3);
    }
    // One section at 0x5000 whose bytes begin at 0x400 in the file.
    let section = optional + 240;
    for (at, value) in [(8, 0x600), (12, 0x5000), (16, 0x600), (20, 0x400)] {
        put(section + at, value);
    }
    for (at, value) in [(0, 0x1000), (4, 0x1010), (8, 0x5300)] {
        put(0x400 + at, value);
    }
    put(0x400 + 0x300, 1);
    if let Some(guid) = guid {
        bytes[0x604..0x614].fill(guid);
    }
    bytes
}

/// Files by path, and how often each was read.
#[derive(Default)]
struct Files {
    files: BTreeMap<String, DiskFile>,
    reads: RefCell<Vec<String>>,
}

impl Files {
    fn with(path: &str, bytes: Vec<u8>) -> Files {
        let mut files = Files::default();
        files.files.insert(path.to_owned(), DiskFile { bytes, changed: 0 });
        files
    }
}

impl Disk for Files {
    fn read(&mut self, path: &str) -> Result<DiskFile, FileError> {
        self.reads.borrow_mut().push(path.to_owned());
        self.files.get(path).cloned().ok_or(FileError::Missing)
    }

    fn put(&mut self, _: ContentHash, _: &[u8]) -> bool {
        false
    }
}

const PATH: &str = "C:\\a.dll";

fn identity(stamp: u32, check_sum: u32) -> Vec<Identity<'static>> {
    vec![Identity::Pe(PeIdentity { time_date_stamp: stamp, size_of_image: SIZE, check_sum })]
}

/// A recording with one module that has these identities and no tables.
fn recorded(identities: Vec<Identity<'_>>) -> Vec<u8> {
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.module(10, 0x18_0000_0000, SIZE.into(), PATH, identities);
    builder.finish()
}

/// The trace with its supplement, and the report.
fn completed(file: &[u8], files: &mut Files) -> (Vec<u8>, CompletionReport) {
    let trace = Trace::open(file).unwrap();
    let (addition, report) = complete(&trace, EMBED_UNWIND, 0, files).unwrap().expect("something lacks");
    ([&file[..addition.keep as usize], &addition.bytes].concat(), report)
}

/// The additions: kinds of tables of the module, and the number of its identities.
fn added(file: &[u8]) -> (Vec<u64>, usize) {
    let trace = Trace::open(file).unwrap();
    assert!(matches!(trace.supplement(), Supplement::Whole { .. }));
    let scan = Scan::of(&trace);
    let module = scan.modules.values().next().expect("the module");
    assert!(module.tables.iter().all(|table| scan.blobs.contains(&table.hash)), "a table is missing");
    let mut scratch = Scratch::new();
    let mut identities = 0;
    for block in trace.blocks() {
        for event in trace.events(block, &mut scratch).unwrap().map_while(Result::ok) {
            if let Event::ModuleLoad(load) = event
                && load.flags.contains(ModuleFlags::FROM_FILE)
            {
                identities = load.identities.len();
            }
        }
    }
    (module.tables.iter().map(|table| table.kind).collect(), identities)
}

#[test]
fn a_module_without_tables_gets_those_of_the_file_of_its_identity() {
    let mut files = Files::with(PATH, dll(STAMP, 7, Some(9)));
    let (file, report) = completed(&recorded(identity(STAMP, 7)), &mut files);
    assert_eq!((report.lacking, report.completed, &report.left[..]), (1, 1, &[][..]));
    let (tables, identities) = added(&file);
    for kind in [TableKind::Headers, TableKind::ExceptionDirectory, TableKind::UnwindInfo, TableKind::Debug] {
        assert!(tables.contains(&(kind as u64)), "{kind:?} is not among {tables:?}");
    }
    assert_eq!(identities, 0, "the recorder's own identities stand");
}

#[test]
fn a_file_of_another_identity_is_never_taken() {
    let guid = |guid| CodeView { guid: [guid; 16], age: 3, pdb_name: b"" };
    let with_pdb = |of| [identity(STAMP, 7), vec![Identity::CodeView(guid(of))]].concat();
    let with_hash = [identity(STAMP, 7), vec![Identity::HeaderHash(ContentHash([1; 16]))]].concat();
    for (known, file, what) in [
        (identity(STAMP, 7), dll(STAMP + 1, 7, None), "TimeDateStamp"),
        (identity(STAMP, 7), dll(STAMP, 8, None), "CheckSum"),
        (with_pdb(9), dll(STAMP, 7, Some(8)), "CodeView"),
        (with_pdb(9), dll(STAMP, 7, None), "CodeView"),
        (with_hash, dll(STAMP, 7, Some(9)), "header"),
    ] {
        let (completed, report) = completed(&recorded(known), &mut Files::with(PATH, file));
        assert_eq!(report.completed, 0, "{what}");
        assert!(report.left[0].1.to_string().contains(what), "{:?}", report.left);
        assert!(added(&completed).0.is_empty(), "{what}");
    }
    let file = dll(STAMP, 7, Some(9));
    assert_eq!(completed(&recorded(with_pdb(9)), &mut Files::with(PATH, file)).1.completed, 1);
}

#[test]
fn a_module_known_by_its_path_needs_a_file_that_did_not_change_since() {
    // The builder's clock starts at the epoch of the trace: the module was loaded after its start.
    let file = recorded(Vec::new());
    let trace = Trace::open(&file).unwrap();
    let (_, module) = Scan::of(&trace).modules.pop_first().expect("the module");
    let mapped = Scan::of(&trace).mapped_after(&module).expect("a time");
    for (changed, taken) in [(mapped.saturating_sub(1), true), (mapped, false), (mapped + 1, false)] {
        let mut files = Files::with(PATH, dll(STAMP, 7, Some(9)));
        files.files.get_mut(PATH).expect("the file").changed = changed;
        let (file, report) = completed(&file, &mut files);
        assert_eq!(report.completed, usize::from(taken), "{:?}", report.left);
        assert_eq!(added(&file).1, if taken { 3 } else { 0 });
    }
}

#[test]
fn a_size_alone_is_no_identity() {
    let mut files = Files::with(PATH, dll(0, 0, None));
    files.files.get_mut(PATH).expect("the file").changed = u64::MAX;
    assert_eq!(completed(&recorded(identity(0, 0)), &mut files).1.completed, 0);
    files.files.get_mut(PATH).expect("the file").changed = 0;
    let builder = |path_only: bool| recorded(if path_only { Vec::new() } else { identity(0, 0) });
    let mapped = |file: &[u8]| {
        let scan = Scan::of(&Trace::open(file).unwrap());
        scan.modules.values().next().and_then(|module| scan.mapped_after(module))
    };
    let file = builder(false);
    assert_eq!(completed(&file, &mut files).1.completed, usize::from(mapped(&file) > Some(0)));
}

#[test]
fn tables_of_another_instance_are_reused_without_opening_a_file() {
    let mut builder = TraceBuilder::new(Arch::X64);
    builder.module(10, 0x18_0000_0000, SIZE.into(), PATH, identity(STAMP, 7));
    let first = builder.finish();
    let (with_tables, _) = completed(&first, &mut Files::with(PATH, dll(STAMP, 7, None)));
    let mut scan = Scan::of(&Trace::open(&with_tables).unwrap());
    let (_, mut other) = scan.modules.pop_first().expect("the module");
    let tables = std::mem::take(&mut other.tables);
    assert!(!tables.is_empty());
    scan.modules.insert(1, KnownModule { tables: tables.clone(), ..other.clone() });
    assert_eq!(scan.tables_of_the_same(&other), Some(&tables[..]));
    let another = KnownModule { pe: Some(PeIdentity { check_sum: 8, ..other.pe.unwrap() }), ..other.clone() };
    assert_eq!(scan.tables_of_the_same(&another), None);
    let elsewhere = KnownModule { path: b"C:\\b.dll".to_vec(), ..other };
    assert_eq!(scan.tables_of_the_same(&elsewhere), None);
}

#[test]
fn a_trace_that_lacks_nothing_or_wants_no_tables_is_unchanged() {
    let file = recorded(identity(STAMP, 7));
    let trace = Trace::open(&file).unwrap();
    let mut files = Files::with(PATH, dll(STAMP, 7, None));
    assert!(complete(&trace, EMBED_NONE, 0, &mut files).unwrap().is_none());
    assert!(files.reads.borrow().is_empty());
    let (whole, _) = completed(&file, &mut files);
    let trace = Trace::open(&whole).unwrap();
    assert!(matches!(complete(&trace, EMBED_UNWIND, 0, &mut files), Err(NoSupplement::Present)));
}

#[test]
fn files_that_are_not_images_are_skipped_and_reported() {
    for bytes in [Vec::new(), b"MZ".to_vec(), vec![0x5a; 4000], dll(STAMP, 7, None)[..0x180].to_vec()] {
        let (_, report) = completed(&recorded(identity(STAMP, 7)), &mut Files::with(PATH, bytes));
        assert_eq!((report.completed, report.left.len()), (0, 1));
    }
}
