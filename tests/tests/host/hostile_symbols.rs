//! Runs `stk` under limits on symbol files that an attacker could write: bombs, and names that are
//! no text. `cli/tests/it/symbols_bombs*.rs` say what is read from the same bombs.
#![cfg(unix)]

use serde_json::Value;
use std::path::Path;
use stk_tests::hostile::limits::{MEMORY, Run, cpu_limit, other_program, run};
use stk_tests::hostile::shown::{forged, harm};
use stk_tests::hostile::wanting_symbols;
use stk_tests::pdb_file::words;
use stk_tests::symbol_bombs::{image, pdb};

/// Descriptors of a run.
const FILES: u64 = 64;
/// Which symbols a command uses: those beside the trace. It does not use the user's cache.
const SYMBOLS: [&str; 6] = ["--no-default-symbols", "--symbol-cache", "cache", "-y", ".", "--offline"];
/// Commands that read a symbol file, `FILE`, without a trace.
pub(crate) const SYMBOL_COMMANDS: [&[&str]; 3] = [
    &["symbols", "lookup", "FILE", "1000", "1010", "fff0"],
    &["symbols", "check", "FILE", "FILE"],
    &["symbols", "check", "--records", "FILE"],
];
/// A name with what controls a terminal, ends a line and changes the order of characters.
const NAME: &str = "\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\r\u{8}\u{202e}\u{2066}z\nforged: y";
/// Commands with text for people on stdout.
const TEXTS: [&[&str]; 6] = [
    &["stats", "a.stk"],
    &["dump", "a.stk"],
    &["dump", "--style", "plain", "--explain", "a.stk"],
    &["dump", "--style", "clrstack", "a.stk"],
    &["symbols", "list", "a.stk"],
    &["convert", "--to", "folded", "-o", "-", "a.stk"],
];

/// Runs a command and checks what holds for all: its end, its cost, and its text.
fn checked(folder: &Path, command: &[&str]) -> Run {
    let run = run(folder, command, FILES).unwrap();
    let error = String::from_utf8_lossy(&run.stderr);
    let shown = command.join(" ");
    assert!(matches!(run.code, Some(0 | 1 | 4)), "stk {shown}: {:?}: {error}", run.code);
    assert!(!error.contains("panicked"), "stk {shown}: {error}");
    assert!(run.peak <= MEMORY, "stk {shown}: {} MiB", run.peak >> 20);
    assert_eq!(harm(&run.stderr), None, "stk {shown}");
    assert!(!forged(&run.stderr), "stk {shown}: {error}");
    let json = command.iter().any(|part| part.contains("json"));
    if !json {
        assert_eq!(harm(&run.stdout), None, "stk {shown}");
        assert!(!forged(&run.stdout), "stk {shown}: {}", String::from_utf8_lossy(&run.stdout));
    }
    run
}

/// [`checked`], with symbols.
fn with_symbols(folder: &Path, command: &[&str]) -> Run {
    checked(folder, &[command, &SYMBOLS].concat())
}

fn json(run: &Run) -> Value {
    serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:?}"))
}

/// Every string in a JSON value.
fn strings<'v>(value: &'v Value, out: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => out.push(text),
        Value::Array(values) => values.iter().for_each(|value| strings(value, out)),
        Value::Object(values) => values.values().for_each(|value| strings(value, out)),
        _ => {}
    }
}

#[test]
fn bombs_stay_within_their_limits() {
    let pdbs = pdb::ALL.map(|bomb| (bomb, "app.pdb"));
    let images = image::ALL.map(|bomb| (bomb, "app.exe"));
    // Those of `Image`.
    let trace = wanting_symbols(0, 0x1000_0000, &[0x1000, 0x1010]);
    for ((what, make), name) in pdbs.into_iter().chain(images) {
        let folder = tempfile::tempdir().unwrap();
        let file = make();
        std::fs::write(folder.path().join(name), &file).unwrap();
        std::fs::write(folder.path().join("a.stk"), &trace).unwrap();
        let only = std::env::var("STK_HOSTILE_ONLY");
        if only.is_ok_and(|only| !what.contains(&only)) {
            continue;
        }
        let of_file = SYMBOL_COMMANDS.map(|command| {
            command.iter().map(|part| if *part == "FILE" { name } else { part }).collect::<Vec<&str>>()
        });
        let of_trace = [vec!["stats", "a.stk"], vec!["dump", "--style", "plain", "a.stk"]];
        for command in of_file.into_iter().chain(of_trace) {
            let command = match command[..2] {
                // It takes only what it is given.
                ["symbols", "check"] => command,
                _ => [&command[..], &SYMBOLS].concat(),
            };
            // Each time the file is read again.
            let _ = std::fs::remove_dir_all(folder.path().join("cache"));
            if other_program().is_some() {
                let run = run(folder.path(), &command, FILES).unwrap();
                let (end, cpu) = ((run.code, run.signal), run.cpu.as_secs_f64());
                println!(
                    "| {what} | {} | {} | {end:?} | {cpu:.2} | {} |",
                    file.len(),
                    command[0],
                    run.peak >> 20
                );
                continue;
            }
            let run = checked(folder.path(), &command);
            assert!(run.cpu <= cpu_limit(file.len()), "{what}: {command:?}: {:?}", run.cpu);
            if std::env::var_os("STK_HOSTILE_TIMES").is_some() {
                let (cpu, peak) = (run.cpu.as_millis(), run.peak >> 20);
                eprintln!("{what}, {} bytes: {cpu} ms, {peak} MiB: {command:?}", file.len());
            }
        }
    }
}

/// A PDB with these functions, 16 bytes each from RVA 1000h on. Each has an inlined function of the
/// same name at its beginning, and is in a file of the same name.
fn named(names: &[&str]) -> Vec<u8> {
    let mut pdb = pdb::Pdb::of_one_module();
    let (mut checksums, mut blocks) = (Vec::new(), Vec::new());
    for (n, name) in (0u32..).zip(names) {
        let text = [name.as_bytes(), b"\0"].concat();
        // A record has up to 64 KiB.
        let function = pdb.id(0x1601, &[&[0; 8], &text[text.len().saturating_sub(60_000)..]].concat());
        let cut: String = name.chars().take(60_000).collect();
        pdb.procedure(n * 16, 16, &cut);
        pdb.inline_site(function, &[12, 4, 0]);
        pdb.inline_site_end();
        pdb.end();
        blocks.extend(words(&[checksums.len() as u32, 1, 20, n * 16, n + 1]));
        checksums.extend(words(&[pdb.names.len() as u32, 0]));
        pdb.names.extend(text);
    }
    pdb.subsection(0xf4, &checksums);
    pdb.subsection(0xf2, &pdb::lines(&blocks));
    pdb.bytes()
}

/// A folder with such a PDB and a trace with a sample in each function and each inlined one.
fn folder(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("app.pdb"), named(names)).unwrap();
    let places: Vec<u64> = (0..names.len() as u64).flat_map(|n| [0x1000 + n * 16, 0x1008 + n * 16]).collect();
    std::fs::write(folder.path().join("a.stk"), wanting_symbols(0, 0x1000_0000, &places)).unwrap();
    folder
}

#[test]
fn names_of_a_pdb_are_text_in_every_command() {
    let long = "n".repeat(1 << 20);
    let folder = folder(&[&long, "a;b 12", "\u{2028}forged: x", "\u{61c}\u{200f}", NAME]);
    for command in TEXTS {
        let run = with_symbols(folder.path(), command);
        assert_eq!(run.code, Some(0), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
        let text = String::from_utf8_lossy(&run.stdout);
        let named = command[0] != "symbols";
        assert_eq!(
            text.contains(r"\u{1b}]0;x\u{7}") || text.contains(r"\u{1b}]0\u{3b}x\u{7}"),
            named,
            "{text}"
        );
    }
    let lookup =
        with_symbols(folder.path(), &["symbols", "lookup", "app.pdb", "1010", "1020", "1030", "1040"]);
    assert_eq!(lookup.code, Some(0));
    // Two lines an address: the function and the one inlined in it.
    assert_eq!(String::from_utf8_lossy(&lookup.stdout).lines().count(), 8);
    for command in
        [&["symbols", "check", "--records", "app.pdb"][..], &["symbols", "bundle", "a.stk", "-o", "b/"]]
    {
        checked(folder.path(), command);
    }
}

#[test]
fn names_of_a_pdb_are_exact_in_json() {
    let names = [NAME, "\"},{\"</script><img src=x>", "a;b 12", "\u{2028}forged: x"];
    let folder = folder(&names);
    let commands: [&[&str]; 5] = [
        &["symbols", "lookup", "--json", "app.pdb", "1000"],
        &["stats", "--json", "a.stk"],
        &["dump", "--style", "json", "a.stk"],
        &["convert", "--to", "speedscope", "--force", "-o", "x.json", "a.stk"],
        &["convert", "--to", "chrome", "-o", "y.json", "a.stk"],
    ];
    for command in commands {
        let mut run = with_symbols(folder.path(), command);
        assert_eq!(run.code, Some(0), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
        if let Some(output) = command.iter().find(|part| part.ends_with(".json")) {
            run.stdout = std::fs::read(folder.path().join(output)).unwrap();
        }
        let value = json(&run);
        let mut found = Vec::new();
        strings(&value, &mut found);
        // A dump shows the last sample of each thread, `lookup` got the first address.
        let wanted = match command[0] {
            "dump" => &names[3..],
            "symbols" => &names[..1],
            _ => &names[..],
        };
        for name in wanted {
            assert!(found.iter().any(|text| text == name), "{command:?}: {name:?}: {value}");
        }
    }
}

#[test]
fn names_of_a_pdb_add_no_frame_and_no_line_to_folded_stacks() {
    let shape = |names: &[&str]| {
        let folder = folder(names);
        let run = with_symbols(folder.path(), &["convert", "--to", "folded", "-o", "-", "a.stk"]);
        let text = String::from_utf8(run.stdout).unwrap();
        for line in text.lines() {
            let weight = line.rsplit_once(' ').map(|(_, weight)| weight.parse::<u64>());
            assert!(matches!(weight, Some(Ok(1..))), "{line:?}");
        }
        (text.lines().count(), text.matches(';').count())
    };
    let hostile = [NAME, "a;b", "a\n7", "x 12", "y\u{2028}z", ";", "\r\n"];
    assert_eq!(shape(&hostile), shape(&["a", "b", "c", "d", "e", "f", "g"]));
}

#[test]
fn a_name_of_a_megabyte_is_cut_in_text_and_exact_in_json_as_far_as_it_is_kept() {
    // DWARF's names have no limit.
    let name = format!("{NAME}{}", "n".repeat(1 << 20));
    let entries = [&[1][..], &image::function(&name, 0x100), &[0, 0]].concat();
    let sections = [(".debug_info", image::unit(0, &entries)), (".debug_abbrev", image::abbreviations())];
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("app.exe"), image::image(&sections).bytes()).unwrap();
    std::fs::write(folder.path().join("a.stk"), wanting_symbols(0, 0x1000_0000, &[0x1000])).unwrap();
    for command in TEXTS {
        let run = with_symbols(folder.path(), command);
        assert_eq!(run.code, Some(0), "{command:?}: {}", String::from_utf8_lossy(&run.stderr));
        assert!(run.stdout.len() < 200_000, "{command:?}: {} bytes", run.stdout.len());
    }
    let lookup = with_symbols(folder.path(), &["symbols", "lookup", "--json", "app.exe", "1000"]);
    let lookup = json(&lookup);
    let found = lookup["frames"][0]["function"].as_str().unwrap();
    // An index keeps the first 64 KiB.
    assert!(found == &name[..1 << 16], "{} bytes", found.len());
}

#[test]
fn names_of_a_portable_pdb_are_text() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(traces.join("mixed.stk"), folder.path().join("a.stk")).unwrap();
    let mut pdb = std::fs::read(traces.join("mixed.pdb")).unwrap();
    // A document's name is in the heap of blobs, in parts.
    let (old, new) = (b"mixed.cs", b"\x1b[2J\nx;y");
    let places: Vec<usize> = (0..pdb.len() - 8).filter(|&at| pdb[at..].starts_with(old)).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| pdb[at..at + 8].copy_from_slice(new));
    std::fs::write(folder.path().join("mixed.pdb"), pdb).unwrap();
    for command in TEXTS {
        with_symbols(folder.path(), command);
    }
    let run =
        with_symbols(folder.path(), &["convert", "--to", "speedscope", "--force", "-o", "x.json", "a.stk"]);
    assert_eq!(run.code, Some(0));
    let value: Value = serde_json::from_slice(&std::fs::read(folder.path().join("x.json")).unwrap()).unwrap();
    let mut found = Vec::new();
    strings(&value, &mut found);
    assert!(found.iter().any(|text| text.ends_with("\u{1b}[2J\nx;y")), "{value}");
}

/// A tar archive of one file in a zstd frame that stores it (POSIX ustar; RFC 8878).
fn bundle(name: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000644\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
    header[148..156].copy_from_slice(b"        ");
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut tar = [&header, contents].concat();
    tar.resize(tar.len().next_multiple_of(512) + 1024, 0);
    // No checksum, content size of four bytes, window of 2^20 bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x80, 10 << 3];
    frame.extend((tar.len() as u32).to_le_bytes());
    let pieces: Vec<&[u8]> = tar.chunks(128 << 10).collect();
    for (n, piece) in pieces.iter().enumerate() {
        let last = u32::from(n + 1 == pieces.len());
        frame.extend(&((piece.len() as u32) << 3 | last).to_le_bytes()[..3]);
        frame.extend(*piece);
    }
    frame
}

#[test]
fn names_in_a_bundle_are_text() {
    let pdb = named(&["f"]);
    let trace = wanting_symbols(0, 0x1000_0000, &[0x1000]);
    const STORED: &[u8] = b"app.pdb/070707070707070707070707070707071/app.pdb";
    let members: [&[u8]; 5] = [
        STORED,
        b"\x1b[2J\nforged: /app.pdb",
        b"\x1b[2J\xe2\x80\xae\r\nforged: app.pdb",
        b"../\x9b\x1b/app.pdb",
        b"app.pdb/\x1b[2J\nforged: /app.pdb",
    ];
    for member in members {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.stk"), &trace).unwrap();
        for (name, contents) in [("x.tar.zst", &pdb[..]), ("y.tar.zst", b"no PDB")] {
            std::fs::write(folder.path().join(name), bundle(member, contents)).unwrap();
            for command in TEXTS {
                let symbols = ["--no-default-symbols", "--symbol-cache", "cache", "-y", name, "--offline"];
                let run = checked(folder.path(), &[command, &symbols].concat());
                let read = command[0] == "stats" && member == STORED && name == "x.tar.zst";
                let text = String::from_utf8_lossy(&run.stdout);
                assert!(!read || text.lines().any(|line| line.contains("  f  app.exe")), "{text}");
            }
        }
    }
}

#[test]
fn a_pointer_in_a_store_is_text() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("app.pdb/070707070707070707070707070707071");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(folder.path().join("a.stk"), wanting_symbols(0, 0x1000_0000, &[0x1000])).unwrap();
    for pointer in [
        format!("PATH:{NAME}"),
        format!("MSG: {NAME}"),
        format!("PATH:\\\\{NAME}\\x.pdb"),
        "PATH:".to_owned() + &"\u{1b}".repeat(1 << 20),
    ] {
        std::fs::write(place.join("file.ptr"), pointer).unwrap();
        for command in TEXTS {
            with_symbols(folder.path(), command);
        }
    }
}
