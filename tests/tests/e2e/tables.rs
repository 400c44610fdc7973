//! Tables in a folder that many traces share (`inject --tables`), and how `stk` reads them.

use std::collections::BTreeSet;
use stk_tests::stk;
use stk_tests::wine::{Folder, Inject, Program};

/// Names of the files in the shared folder.
fn tables(folder: &Folder) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder.file("tables")).expect("inject made the folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Modules whose missing unwind data ends stacks. stk does not use this machine's images for this.
fn blamed(folder: &Folder, arguments: &[&str]) -> BTreeSet<String> {
    let line = [&["stats", "--json", "--no-default-symbols", "--top", "0"], arguments].concat();
    let stats = stk::json(folder.path(), &line);
    let stops = stats["traces"][0]["stops"].as_array().expect("stop reasons");
    let of_data = stops.iter().filter(|stop| stop["reason"] == "no-unwind-data");
    of_data.map(|stop| stop["module"].as_str().expect("a module").to_owned()).collect()
}

#[test]
fn a_file_with_a_tables_name_and_other_contents_is_not_used() {
    let folder = Folder::new("planted");
    let busy = Program::busy(&folder, 0);
    let record = |trace| {
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", trace, "-d", "1s", "--tables", "tables"]);
        let embedded = stk::json(folder.path(), &["info", "--json", trace])["traces"][0]["embedded"].clone();
        embedded["stored_bytes"].as_u64().expect("a number of bytes")
    };
    assert_eq!(record("first.stk"), 0);
    // An attacker who may write to the folder plants other bytes of the same length, and of another
    // length.
    let names = tables(&folder);
    let mut planted = std::collections::BTreeMap::new();
    for (number, name) in names.iter().enumerate() {
        let path = folder.file("tables").join(name);
        let mut bytes = std::fs::read(&path).expect("readable");
        match number % 2 {
            0 => bytes[0] ^= 1,
            _ => bytes.truncate(bytes.len() / 2),
        }
        std::fs::write(&path, &bytes).expect("ours");
        planted.insert(path, bytes);
    }
    assert!(record("second.stk") > 0);
    for (path, bytes) in planted {
        assert_eq!(std::fs::read(&path).expect("readable"), bytes, "{} was replaced", path.display());
    }
    assert!(tables(&folder).iter().all(|name| name.ends_with(".tbl")), "{:?}", tables(&folder));
    let found = blamed(&folder, &["second.stk"]);
    assert!(found.iter().all(|module| module.starts_with("plugin_")), "{found:?}");
}

#[test]
fn tables_are_written_once_and_found_again() {
    let folder = Folder::new("tables");
    let busy = Program::busy(&folder, 0);
    let record = |trace| {
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", trace, "-d", "1s", "--tables", "tables"]);
    };
    record("first.stk");
    let written = tables(&folder);
    assert!(written.len() > 10, "{written:?}");
    assert!(written.iter().all(|name| name.ends_with(".tbl")), "{written:?}");
    record("second.stk");
    assert!(tables(&folder).is_superset(&written));

    for trace in ["first.stk", "second.stk"] {
        let embedded = |arguments: &[&str]| {
            let line = [&["info", "--json", trace], arguments].concat();
            stk::json(folder.path(), &line)["traces"][0]["embedded"].clone()
        };
        let without = embedded(&[]);
        assert_eq!((&without["stored_bytes"], &without["images_with_unwind_data"]), (&0.into(), &0.into()));
        assert!(without["not_at_hand"]["tables"].as_u64() > Some(10), "{without}");
        let with = embedded(&["--tables", "tables"]);
        assert_eq!(with["not_at_hand"]["tables"], 0, "{with}");
        assert_eq!(with["in_folders"], without["not_at_hand"], "{with}");

        assert!(blamed(&folder, &[trace]).contains("ntdll.dll"), "{trace} has unwind data of its own");
        let found = blamed(&folder, &[trace, "--tables", "tables"]);
        // The plugins are loaded and unloaded all the time, so a sample may be earlier than their
        // tables.
        assert!(found.iter().all(|module| module.starts_with("plugin_")), "{trace}: {found:?}");
        let verified = stk::run(folder.path(), &["verify", trace, "--tables", "tables"]);
        assert_eq!(verified.code, Some(0), "{}", verified.stdout);
    }
}
