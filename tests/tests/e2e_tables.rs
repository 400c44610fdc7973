//! Tables in a folder that many traces share (`inject --tables`), and what `stk` makes of them.

use serde_json::Value;
use std::collections::BTreeSet;
use stk_tests::stk;
use stk_tests::wine::{Folder, Inject, Program};

/// Names of the files in the shared folder.
fn tables(folder: &Folder) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder.file("tables")).expect("inject made the folder");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Share of the samples whose stack is complete. The images that lie on this machine are not looked at.
fn complete(folder: &Folder, arguments: &[&str]) -> f64 {
    let line = [&["stats", "--json", "--no-default-symbols"], arguments].concat();
    let stats = stk::json(folder.path(), &line);
    let stops = stats["traces"][0]["stops"].as_array().expect("stop reasons");
    let share = |stop: &Value| stop["share"].as_f64().expect("a share");
    stops.iter().filter(|stop| stop["reason"] == "thread-start").map(share).sum()
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

        assert!(complete(&folder, &[trace]) < 0.1, "{trace} has unwind data of its own");
        let found = complete(&folder, &[trace, "--tables", "tables"]);
        assert!(found > 0.99, "{trace}: {:.2} % of the stacks reach the thread start", 100.0 * found);
        let verified = stk::run(folder.path(), &["verify", trace, "--tables", "tables"]);
        assert_eq!(verified.code, Some(0), "{}", verified.stdout);
    }
}
