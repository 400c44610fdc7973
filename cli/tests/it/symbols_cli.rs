//! Symbols from the user's side: the kept recording of `busy` and its PDBs, through the program.

use crate::support::{command_in, kept};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::AtomicU64;
use stk_tests::traces;

use serde_json::Value;
use stk_base::map::MappedFile;
use stk_profile::profile::{BuildOptions, build, symbolize};
use stk_profile::stack::NameSources;
use stk_profile::trace::TraceFile;
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_symbols::index::SymbolIndex;
use stk_symbols::pdb::PdbFile;
use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};

fn stk(folder: &Path, arguments: &[&str]) -> Output {
    command_in(folder, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

/// A folder with only the recording: symbols are only where a test puts them.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(kept("busy.stk"), folder.path().join("busy.stk")).unwrap();
    folder
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.path().is_dir() { folders.push(entry.path()) } else { files.push(entry.path()) }
        }
    }
    files.sort();
    files
}

fn convert(folder: &Path, symbols: &str) -> Vec<u8> {
    let arguments = ["convert", "busy.stk", "--to", "speedscope", "-o", "-", "--offline", "-y", symbols];
    let output = stk(folder, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output.stdout
}

#[test]
fn ten_processes_share_one_cache_and_leave_no_damaged_file() {
    let folder = folder();
    let symbols = kept("").display().to_string();
    let alone = convert(self::folder().path(), &symbols);
    // Twice: with an empty cache, and with one whose files are all damaged.
    for _ in 0..2 {
        let processes: Vec<_> = (0..10)
            .map(|_| {
                let arguments =
                    ["convert", "busy.stk", "--to", "speedscope", "-o", "-", "--offline", "-y", &symbols];
                let mut command = command_in(folder.path(), &arguments);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for process in processes {
            let output = process.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
            assert!(output.stdout == alone, "another process's work changed the output");
        }
        let files = files_below(&folder.path().join("cache"));
        assert!(files.len() >= 2, "{files:?}");
        for file in &files {
            assert_eq!(file.extension().and_then(|e| e.to_str()), Some("stksym"), "{files:?}");
            SymbolIndex::open(MappedFile::open(file).unwrap()).unwrap().verify().unwrap();
        }
        for file in &files {
            let mut bytes = std::fs::read(file).unwrap();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0xff;
            bytes[100] ^= 0xff;
            // Written like stk itself does it, so that a process that has mapped the file does not
            // see it change.
            let other = file.with_extension("other");
            std::fs::write(&other, bytes).unwrap();
            std::fs::rename(other, file).unwrap();
        }
    }
}

#[test]
fn a_bundle_gives_the_same_names_as_the_symbols_themselves() {
    let from = folder();
    let symbols = kept("").display().to_string();
    let expected = convert(from.path(), &symbols);
    assert!(text(&expected).contains("busy.c"), "files and lines");
    let nameless = convert(folder().path(), "nowhere");
    assert!(nameless != expected);
    for name in ["bundle", "bundle.tar.zst", "again.tar.zst"] {
        let arguments = ["symbols", "bundle", "busy.stk", "-o", name, "--offline", "-y", &symbols];
        let output = stk(from.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("symbol files"), "{}", text(&output.stderr));
        // Like on a machine that has nothing else.
        let to = folder();
        let carried = from.path().join(name).display().to_string();
        assert!(convert(to.path(), &carried) == expected, "{name}");
        assert!(convert(to.path(), &carried) == expected, "{name}, from the cache");
        let output = stk(to.path(), &["symbols", "list", "busy.stk", "--json", "-y", &carried]);
        let modules = json(&output)["modules"].as_array().unwrap().clone();
        let busy = modules.iter().find(|module| module["name"] == "busy.exe").unwrap();
        assert_eq!(busy["source"], "pdb");
        assert!(Path::new(busy["found"].as_str().unwrap()).exists(), "{busy}");
    }
    let bytes = |name: &str| std::fs::read(from.path().join(name)).unwrap();
    assert!(bytes("bundle.tar.zst") == bytes("again.tar.zst"), "the same files give the same bundle");
    // In the layout of any symbol store: <name>/<identity>/<name>.
    let pdb = std::fs::read(kept("busy.pdb")).unwrap();
    let identity = *PdbFile::open(&pdb).unwrap().identity();
    let id = stk_symbols::pdb_id(&identity.guid, identity.age);
    assert!(std::fs::read(from.path().join("bundle/busy.pdb").join(id).join("busy.pdb")).unwrap() == pdb);
}

#[test]
fn a_damaged_bundle_is_reported_and_loses_only_names() {
    let folder = folder();
    std::fs::write(folder.path().join("x.tar.zst"), b"not a bundle").unwrap();
    let output = stk(folder.path(), &["symbols", "list", "busy.stk", "-y", "x.tar.zst"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("x.tar.zst: is no intact .tar.zst"), "{}", text(&output.stdout));
    assert!(!convert(folder.path(), "x.tar.zst").is_empty());
}

#[test]
fn list_shows_what_each_module_needs_and_where_it_is_or_why_not() {
    let folder = folder();
    let symbols = kept("").display().to_string();
    let output = stk(folder.path(), &["symbols", "list", "busy.stk", "--json", "-y", &symbols]);
    let document = json(&output);
    assert_eq!(document["version"], 1);
    let modules = document["modules"].as_array().unwrap();
    for module in modules {
        assert_eq!(module["found"].is_null(), !module["reason"].is_null(), "{module}");
        assert_eq!(module["found"].is_null(), module["source"].is_null(), "{module}");
        assert!(module["frames"].is_u64() && !module["path"].as_str().unwrap().is_empty());
    }
    let of = |name: &str| modules.iter().find(|module| module["name"] == name).unwrap();
    assert!(of("busy.exe")["frames"].as_u64().unwrap() > 0);
    assert!(of("busy.exe")["found"].as_str().unwrap().ends_with("busy.pdb"));
    assert!(of("plugin_ä.dll")["found"].as_str().unwrap().ends_with("plugin_ä.pdb"));
    assert!(!of("ntdll.dll")["reason"].as_str().unwrap().is_empty());
    let people = text(&stk(folder.path(), &["symbols", "list", "busy.stk"]).stdout);
    assert!(people.contains("busy.exe") && people.contains("name its folder or server with -y"), "{people}");
}

#[test]
fn wrong_usage_of_symbols_exits_with_2_and_a_reason() {
    let folder = folder();
    for (arguments, says) in [
        (&["symbols", "fetch", "busy.stk"][..], "--ms-symbols"),
        (&["symbols", "lookup", "busy.stk", "xyz"], "hexadecimal"),
        (&["symbols", "list"], "FILE"),
        (&["symbols", "cache", "--stats", "--clear"], "--clear"),
    ] {
        let output = stk(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(says), "{arguments:?}: {}", text(&output.stderr));
    }
    for command in ["list", "fetch", "bundle", "check", "lookup"] {
        let help = text(&stk(folder.path(), &["symbols", command, "--help"]).stdout);
        assert!(help.contains("Examples:") && help.contains(&format!("stk symbols {command}")), "{help}");
    }
}

#[test]
fn fetch_fails_if_a_server_fails_or_nothing_was_found() {
    // No program listens at port 1.
    let unreachable = "srv*http://127.0.0.1:1";
    let folder = folder();
    let output = stk(folder.path(), &["symbols", "fetch", "busy.stk", "-y", unreachable]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("symbols of 0 of"), "{}", text(&output.stderr));
    // Some symbols are found, but the server could not be queried for the others.
    std::fs::copy(kept("busy.pdb"), folder.path().join("busy.pdb")).unwrap();
    let output = stk(folder.path(), &["symbols", "fetch", "busy.stk", "-y", unreachable]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(!text(&output.stderr).contains("symbols of 0 of"), "{}", text(&output.stderr));
    // No server is queried, and some symbols are found.
    let output = stk(folder.path(), &["symbols", "fetch", "busy.stk", "--offline", "-y", unreachable]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn lookup_gives_one_json_object_a_line() {
    let folder = folder();
    let pdb = kept("busy.pdb");
    let (start, end, name) = {
        let file = MappedFile::open(&pdb).unwrap();
        let index = PdbFile::open(&file).unwrap().index().unwrap();
        let range = index.ranges().find(|range| range.name == "busy_main" || range.end - range.start > 64);
        let range = range.unwrap();
        (range.start, range.end, range.name.to_owned())
    };
    let pdb = pdb.display().to_string();
    let mut child = command_in(folder.path(), &["symbols", "lookup", &pdb, "-", "--json"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = format!("{start:x}\n0x{:X}\n\nfffffff0\n", end - 1);
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0]["rva"], format!("{start:#x}"));
    assert_eq!(lines[1]["rva"], format!("{:#x}", end - 1));
    for line in &lines[..2] {
        let frames = line["frames"].as_array().unwrap();
        let outermost = frames.last().unwrap();
        assert_eq!((&line["source"], &line["reason"]), (&Value::from("pdb"), &Value::Null));
        assert_eq!(
            (&outermost["raw"], &outermost["inline"]),
            (&Value::from(name.as_str()), &Value::from(false))
        );
        for key in ["function", "file", "line", "inline", "raw"] {
            assert!(outermost.get(key).is_some(), "{key}");
        }
    }
    assert_eq!(lines[2]["source"], "none");
    assert!(lines[2]["frames"].as_array().unwrap().is_empty());
    assert!(lines[2]["reason"].as_str().unwrap().contains("no record covers"), "{}", lines[2]);
}

/// A PE32+ image whose exception directory has two functions of 40h bytes, at 1000h and at 1040h.
/// The first is exported as `Work` (PE format).
fn image_with_an_export() -> Vec<u8> {
    /// File offset of `.rdata`, whose RVA is 2000h.
    const RDATA: usize = 0x400;
    let mut image = vec![0u8; 0x800];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let optional = 0x58;
    put(0, b"MZ");
    put(0x3c, &0x40u32.to_le_bytes());
    put(0x40, b"PE\0\0");
    put(0x44, &0x8664u16.to_le_bytes());
    put(0x46, &2u16.to_le_bytes());
    put(0x54, &240u16.to_le_bytes());
    put(optional, &0x20bu16.to_le_bytes());
    put(optional + 24, &0x1_8000_0000u64.to_le_bytes());
    put(optional + 56, &0x3000u32.to_le_bytes());
    put(optional + 108, &16u32.to_le_bytes());
    let mut words = |at: usize, words: &[u32]| {
        words.iter().enumerate().for_each(|(n, word)| put(at + 4 * n, &word.to_le_bytes()));
    };
    // Directories: exports, exceptions.
    words(optional + 112, &[0x2000, 0x100]);
    words(optional + 112 + 3 * 8, &[0x2200, 24]);
    // Sections: virtual size, RVA, size in the file, offset in the file; flags.
    let sections = optional + 240;
    words(sections + 8, &[0x100, 0x1000, 0x200, 0x200]);
    words(sections + 36, &[0x6000_0020]);
    words(sections + 40 + 8, &[0x400, 0x2000, 0x400, RDATA as u32]);
    words(sections + 40 + 36, &[0x4000_0040]);
    // Name, ordinal base, number of functions, number of names, and the RVAs of these tables.
    words(RDATA + 12, &[0x2080, 1, 1, 1, 0x2040, 0x2050, 0x2060]);
    words(RDATA + 0x40, &[0x1000]);
    words(RDATA + 0x50, &[0x2070]);
    words(RDATA + 0x200, &[0x1000, 0x1040, 0x2300, 0x1040, 0x1080, 0x2300]);
    words(RDATA + 0x300, &[1]);
    put(sections, b".text");
    put(sections + 40, b".rdata");
    put(RDATA + 0x70, b"Work");
    put(RDATA + 0x80, b"app.dll");
    image
}

#[test]
fn lookup_names_an_export_only_within_its_function() {
    let folder = folder();
    std::fs::write(folder.path().join("app.dll"), image_with_an_export()).unwrap();
    let line = ["symbols", "lookup", "app.dll", "1000", "1010", "1050"];
    let shown = text(&stk(folder.path(), &line).stdout);
    let names: Vec<&str> = shown.lines().filter(|line| line.starts_with("0x")).collect();
    assert_eq!(names, ["0x1000      Work", "0x1010      Work+0x10", "0x1050      app.dll!fn_1040+0x10"]);
    let json = text(&stk(folder.path(), &[&line[..], &["--json"]].concat()).stdout);
    let lines: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sources: Vec<&str> = lines.iter().map(|line| line["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["export", "export", "none"]);
    assert_eq!((&lines[1]["frames"][0]["raw"], &lines[2]["frames"]), (&"Work".into(), &Value::Array(vec![])));
}

#[test]
fn the_cache_is_counted_and_emptied() {
    let folder = folder();
    convert(folder.path(), &kept("").display().to_string());
    let stats = text(&stk(folder.path(), &["symbols", "cache"]).stdout);
    let indexes = files_below(&folder.path().join("cache")).len();
    assert!(indexes > 0 && stats.contains(&format!("indexes    {indexes} (")), "{stats}");
    assert_eq!(stk(folder.path(), &["symbols", "cache", "--clear"]).status.code(), Some(0));
    assert!(files_below(&folder.path().join("cache")).is_empty());
}

/// A recording of `samples` samples, all at the same 40 addresses of busy.exe. Returns the number
/// of samples and of lookups.
fn lookups_for(samples: u64) -> (u64, u64) {
    const BASE: u64 = 0x1_4000_0000;
    const STACK: u64 = 0x10_0000;
    let pdb = std::fs::read(kept("busy.pdb")).unwrap();
    let identity = *PdbFile::open(&pdb).unwrap().identity();
    let mut builder = traces::trace();
    let code_view = CodeView { guid: identity.guid, age: identity.age, pdb_name: b"busy.pdb" };
    let pe = PeIdentity { time_date_stamp: 1, size_of_image: 0x10_0000, check_sum: 0 };
    let identities = vec![Identity::Pe(pe), Identity::CodeView(code_view)];
    builder.module(0, BASE, 0x10_0000, r"C:\busy.exe", identities);
    let thread = builder.thread(0, 11, "worker", STACK);
    for n in 0..samples {
        let rip = BASE + 0x1000 + (n % 40) * 8;
        builder.sample(thread, (n + 1) * 10_000, &[rip, STACK - 64], &[0; 8]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.stk");
    std::fs::write(&path, builder.finish()).unwrap();
    let file = TraceFile::open(&path).unwrap();
    let trace = file.read().unwrap();
    let store = SymbolStore::new(SymbolPath::from(kept("").as_path()));
    let images = stk_profile::pipeline::load_images(&trace, &store);
    let (mut profile, runs) = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0)).unwrap();
    let symbolizer = Symbolizer::new(store, Demangle::Short);
    let methods = stk_profile::runtimes::Methods::default();
    let sources = NameSources { trace: &trace, images: &images, methods: &methods, symbolizer: &symbolizer };
    symbolize(&mut profile, &sources);
    let mut walked = 0;
    let count = |batch: stk_profile::profile::Batch<'_>| {
        walked += batch.runs.iter().map(|run| u64::from(run.samples)).sum::<u64>();
        Ok::<(), std::io::Error>(())
    };
    runs.for_each(count).unwrap();
    (walked, symbolizer.lookups())
}

#[test]
fn twice_the_samples_at_the_same_addresses_need_no_more_lookups() {
    let (samples, lookups) = lookups_for(2000);
    let (twice, same) = lookups_for(4000);
    assert_eq!((samples, twice), (2000, 4000));
    assert_eq!((lookups, same), (40, 40));
}

/// xorshift64: the same damage in every run.
fn damaged(whole: &[u8], seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let mut bytes = whole.to_vec();
    for _ in 0..1 + below(8) {
        let at = below(bytes.len() / 4) * 4;
        let word = [0u32, 1, 0x7fff_ffff, u32::MAX, 0x1000, 0xffff][below(6)];
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    if below(4) == 0 {
        bytes.truncate(below(whole.len()));
    }
    bytes
}

#[test]
fn damaged_symbol_files_and_bundles_end_with_a_documented_exit_code() {
    let folder = folder();
    let symbols = kept("").display().to_string();
    let bundled = ["symbols", "bundle", "busy.stk", "-o", "whole.tar.zst", "--offline", "-y", &symbols];
    assert_eq!(stk(folder.path(), &bundled).status.code(), Some(0));
    let pdb = std::fs::read(kept("busy.pdb")).unwrap();
    let bundle = std::fs::read(folder.path().join("whole.tar.zst")).unwrap();
    for seed in 0..40 {
        std::fs::write(folder.path().join("x.pdb"), damaged(&pdb, seed)).unwrap();
        std::fs::write(folder.path().join("x.tar.zst"), damaged(&bundle, seed)).unwrap();
        for arguments in [
            &["symbols", "lookup", "x.pdb", "0x1000", "0x2345"][..],
            &["symbols", "list", "busy.stk", "--no-default-symbols", "-y", "x.tar.zst"],
        ] {
            let output = stk(folder.path(), arguments);
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{seed}: {code:?}: {}", text(&output.stderr));
        }
    }
    // Files from a damaged bundle are correct, or were not stored.
    let store = files_below(&folder.path().join("cache").join("stk").join("symbols").join("store"));
    assert!(
        store
            .iter()
            .all(|path| path.file_name() != Some("busy.pdb".as_ref()) || std::fs::read(path).unwrap() == pdb)
    );
}

/// Windows allows no such names.
#[cfg(unix)]
#[test]
fn a_newline_in_a_name_makes_no_line() {
    let folder = folder();
    let name = "a\nforged: b.pdb";
    std::fs::copy(kept("busy.pdb"), folder.path().join(name)).unwrap();
    // An address that no symbol covers has the file's name.
    for command in [&["lookup", name, "fffffff0"][..], &["check", "--records", name]] {
        let output = stk(folder.path(), &[&["symbols"], command].concat());
        let shown = text(&output.stdout);
        assert!(shown.contains("forged: b.pdb"), "{command:?}: {shown} {}", text(&output.stderr));
        assert!(!shown.lines().any(|line| line.starts_with("forged")), "{command:?}: {shown}");
    }
}
