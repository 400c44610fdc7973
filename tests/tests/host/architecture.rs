//! The order of the modules of `stk`'s packages and of the agent: each uses only those above it in
//! a table of its documentation. In no package do the files of a folder use each other in circles.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use stk_tests::arrows::{Program, order};

fn source_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// A folder of sources, and the table in the documentation of `file` in it.
fn read(folder: &str, root: &[&str], file: &str) -> (Program, Vec<String>) {
    let folder = source_folder(folder);
    let order = order(&std::fs::read_to_string(folder.join(file)).unwrap());
    (Program::read(&folder, root), order)
}

/// The Rust files of all crates and their tests.
fn all_sources() -> Vec<PathBuf> {
    let mut folders: Vec<_> =
        ["agent", "benches", "build", "cli", "format", "schema", "tests"].map(source_folder).into();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    assert!(files.len() > 500, "{} files", files.len());
    files
}

/// A program of one file.
fn program(file: &str, source: &str) -> Program {
    Program::of(&[], [(Path::new(file), source)])
}

/// The packages that `stk` consists of, in their order, with the fewest files and modules of each.
/// What a package may use of the others, its Cargo.toml says.
const STK: [(&str, usize, usize); 4] =
    [("cli/base/src", 15, 9), ("cli/profile/src", 80, 8), ("cli/output/src", 50, 3), ("cli/src", 60, 3)];

#[test]
fn each_module_of_stk_uses_only_those_above_it_in_the_table() {
    for (folder, fewest, modules) in STK {
        let (program, order) = read(folder, &[], "lib.rs");
        let files = program.sources.len();
        assert!(files >= fewest && order.len() >= modules, "{folder}: {files}, {}", order.len());
        let found = program.upward(&order);
        assert!(found.is_empty(), "{folder}\n{}", found.join("\n"));
    }
}

/// The names of the packages that a package of the workspace needs, those of its tests left out.
fn dependencies(metadata: &serde_json::Value, package: &str) -> BTreeSet<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let found = packages.iter().find(|found| found["name"] == package).unwrap();
    let needed = found["dependencies"].as_array().unwrap().iter();
    let needed = needed.filter(|dependency| dependency["kind"].is_null());
    needed.map(|dependency| dependency["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn packages_of_stk_use_only_those_before_them() {
    let metadata = metadata();
    let order = ["stk-base", "stk-symbols", "stk-profile", "stk-output", "stk"];
    for (place, package) in order.iter().enumerate() {
        let needed = dependencies(&metadata, package);
        let later: Vec<_> = order[place..].iter().filter(|other| needed.contains(**other)).collect();
        assert!(later.is_empty(), "{package} needs {later:?}");
        for of_commands in ["clap", "anyhow", "indicatif"] {
            assert!(*package == "stk" || !needed.contains(of_commands), "{package} needs {of_commands}");
        }
    }
    for package in ["stk-schema", "stk-format", "stk-unwind", "stk-agent", "stk-inject"] {
        let needed = dependencies(&metadata, package);
        let upper: Vec<_> = order.iter().filter(|other| needed.contains(**other)).collect();
        assert!(upper.is_empty(), "{package} needs {upper:?}");
    }
}

#[test]
fn each_folder_of_the_agent_uses_only_those_above_it_in_the_table() {
    let (program, order) = read("agent/src/windows", &["windows"], "mod.rs");
    let files = program.sources.len();
    assert!(files > 30 && order.len() > 8, "{files} files, {} modules", order.len());
    let found = program.upward(&order);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn no_files_go_in_circles() {
    let is_root = |file: &PathBuf| file.ends_with("lib.rs") || file.ends_with("main.rs");
    let roots: BTreeSet<PathBuf> =
        all_sources().into_iter().filter(is_root).map(|file| file.parent().unwrap().to_owned()).collect();
    let (mut found, mut arrows) = (Vec::new(), 0);
    for root in &roots {
        let program = Program::read(root, &[]);
        arrows += program.sources.iter().map(|source| program.arrows(source).len()).sum::<usize>();
        found.extend(program.circles().into_iter().map(|circle| format!("{}: {circle}", root.display())));
    }
    assert!(roots.len() > 12 && arrows > 3_000, "{} packages and programs, {arrows} arrows", roots.len());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn only_the_commands_of_stk_know_the_command_lines_parser_and_errors_without_a_type() {
    let program = Program::read(&source_folder("cli/src"), &[]);
    for source in program.sources.iter().filter(|source| !source.module.is_empty()) {
        let found = source.tokens.iter().find(|token| ["clap", "anyhow"].contains(&token.text.as_str()));
        let found = found.filter(|_| source.module[0] != "commands").map(|token| (token.line, &token.text));
        assert_eq!(found, None, "{}", source.file.display());
    }
}

#[test]
fn the_model_of_stk_uses_nothing_else_of_the_crate() {
    let (program, order) = read("cli/base/src", &[], "lib.rs");
    let model: Vec<_> =
        program.sources.iter().filter(|source| source.module.first().is_some_and(|m| m == "model")).collect();
    assert!(!model.is_empty());
    for source in model {
        for arrow in program.arrows(source) {
            let other = order.contains(&arrow.target[0]) && arrow.target[0] != "model";
            let (file, line) = (source.file.display(), arrow.line);
            assert!(!other, "{file}:{line}: model uses {}", arrow.target[0]);
        }
    }
}

#[test]
fn an_arrow_upward_is_found_in_every_way_to_write_it() {
    let order = ["model", "trace", "symbols"].map(str::to_owned);
    let found = |file: &str, source: &str| program(file, source).upward(&order);
    for source in [
        "use crate::symbols::Reason;",
        "use crate::{model::{Image, ImageId}, symbols as names};",
        "fn f() -> crate::symbols::Reason {}",
        "use super::super::symbols::Reason;",
        "use super::super::{model, symbols};",
        "fn f(reason: super::super::symbols::Reason) {}",
    ] {
        assert_eq!(found("trace/clock.rs", source), ["trace/clock.rs:1: trace uses symbols"], "{source}");
    }
    assert_eq!(found("trace/mod.rs", "\nuse super::symbols;"), ["trace/mod.rs:2: trace uses symbols"]);
    assert_eq!(found("main.rs", "use crate::symbols;"), [""; 0]);
    assert_eq!(found("other.rs", ""), ["other.rs: other is not in the table"]);
}

#[test]
fn an_arrow_within_a_folder_below_the_root_is_found() {
    let text = "use crate::windows::writer::Writer;\nuse crate::record::writer;\nuse super::super::api;";
    let program = Program::of(&["windows"], [(Path::new("sampler/timer.rs"), text)]);
    let targets: Vec<_> =
        program.arrows(&program.sources[0]).into_iter().map(|arrow| arrow.target.join("::")).collect();
    assert_eq!(targets, ["writer::Writer", "api"]);
    let order = ["sampler", "writer"].map(str::to_owned);
    assert_eq!(program.upward(&order), ["sampler/timer.rs:1: sampler uses writer"]);
}

#[test]
fn comments_literals_and_tests_are_no_arrows() {
    let order = ["model", "trace"].map(str::to_owned);
    let source = r####"
        //! crate::trace
        /* use crate::trace; */
        const A: &str = "crate::trace \" crate::trace";
        const B: &str = r#"crate::trace " clap"#;
        const C: (char, char) = ('"', '\'');
        use crate::model::bytes;
        use super::trace;
        #[cfg(test)]
        mod tests {
            use crate::trace::Trace;
        }
        #[cfg(test)]
        mod other;
    "####;
    let texts = [
        (Path::new("model/deep/names.rs"), source),
        (Path::new("model/deep/names/other.rs"), "crate::trace"),
    ];
    let program = Program::of(&[], texts);
    assert_eq!(program.upward(&order), [""; 0]);
    assert_eq!(program.sources.len(), 1, "a file that only tests have is left out");
}

#[test]
fn a_circle_is_found_once_and_a_folders_own_file_is_part_of_none() {
    let texts = [
        ("tables/mod.rs", "use images::read;\nuse super::writer;"),
        ("tables/images.rs", "use super::loader::next;\nuse super::Tables;"),
        ("tables/loader.rs", "use crate::tables::{hints, Tables};"),
        ("tables/hints.rs", "fn f() { super::images::read() }"),
        ("writer.rs", "use crate::tables::images;"),
        ("system.rs", "use crate::writer;"),
    ];
    let program = Program::of(&[], texts.map(|(file, text)| (Path::new(file), text)));
    let circles = ["tables -> writer -> tables", "tables: hints -> images -> loader -> hints"];
    assert_eq!(program.circles(), [format!(": {}", circles[0]), circles[1].to_owned()]);
}

/// A module with files of its own is `name/mod.rs`.
#[test]
fn no_module_is_a_file_beside_its_folder() {
    let twice: Vec<_> = all_sources()
        .into_iter()
        .filter(|file| file.components().any(|part| part.as_os_str() == "src"))
        .filter(|file| file.with_extension("").is_dir())
        .collect();
    assert!(twice.is_empty(), "{twice:#?}");
}

#[test]
fn no_comment_line_has_more_than_100_columns() {
    let mut wide = Vec::new();
    for file in all_sources() {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > 100 {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

/// What Cargo says of the workspace's packages.
fn metadata() -> serde_json::Value {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .current_dir(source_folder(""))
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The words that a bash command prints in the root of the project.
#[cfg(unix)]
fn printed(command: &str) -> BTreeSet<String> {
    let output =
        std::process::Command::new("bash").args(["-c", command]).current_dir(source_folder("")).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
#[cfg(unix)]
fn the_test_script_runs_every_test_program() {
    let run = printed(
        "source tests/setup/setup.sh && source tests/lib.sh && printf '%s\\n' e2e microsoft \"${STK_HOST_PROGRAMS[@]}\"",
    );
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
    let programs = targets.filter(|target| target["kind"][0] == "test");
    let programs: Vec<String> = programs.map(|target| target["name"].as_str().unwrap().to_owned()).collect();
    // Each program links everything once more.
    assert!(programs.len() <= 10, "{programs:?}: add a module to one of them");
    assert_eq!(programs.iter().cloned().collect::<BTreeSet<_>>(), run);
}

#[test]
#[cfg(unix)]
fn every_end_to_end_module_is_run_by_a_wine() {
    let run = printed(
        "source tests/setup/setup.sh && source tests/lib.sh && machine_tests wine10 && machine_tests wine8",
    );
    let entries = std::fs::read_dir(source_folder("tests/tests/e2e")).unwrap();
    let stems = entries.map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned());
    assert_eq!(stems.filter(|name| name != "main").collect::<BTreeSet<_>>(), run);
}

#[test]
#[cfg(unix)]
fn every_module_beside_microsofts_code_is_run() {
    let run = printed(
        "source tests/setup/setup.sh && source tests/lib.sh && printf '%s\\n' \"${STK_MICROSOFT_TESTS[@]}\"",
    );
    let main = std::fs::read_to_string(source_folder("tests/tests/microsoft/main.rs")).unwrap();
    let modules = main.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    // Recordings are what the stacks are of.
    assert_eq!(modules.filter(|name| *name != "recordings").map(str::to_owned).collect::<BTreeSet<_>>(), run);
}
