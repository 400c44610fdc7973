//! Names, lines and inlined functions of images that are special in one way: tests/data/symbols.
//! What is expected is what llvm-symbolizer-19 says, or follows from the source.

use crate::support::ran_in;
use std::path::{Path, PathBuf};
use std::process::Command;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/symbols").canonicalize().unwrap().join(name)
}

/// The frames of each address as `name [file:line]`, innermost first.
fn frames(folder: &Path, image: &Path, rvas: &[&str]) -> Vec<Vec<String>> {
    let mut arguments = vec!["symbols", "lookup", "--offline", "--json", image.to_str().unwrap()];
    arguments.extend(rvas);
    let ran = ran_in(folder, &arguments);
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let text = |frame: &serde_json::Value| {
        let name = frame["function"].as_str().unwrap();
        match (frame["file"].as_str(), frame["line"].as_u64()) {
            (Some(file), Some(line)) => format!("{name} [{file}:{line}]"),
            _ => name.to_owned(),
        }
    };
    let lines = ran.out.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| line["frames"].as_array().unwrap().iter().map(text).collect()).collect()
}

fn check(image: &str, expected: &[(&str, &[&str])]) {
    let folder = tempfile::tempdir().unwrap();
    let rvas: Vec<&str> = expected.iter().map(|(rva, _)| *rva).collect();
    let wanted: Vec<&[&str]> = expected.iter().map(|(_, frames)| *frames).collect();
    // From the file, then from the cache.
    for _ in 0..2 {
        assert_eq!(frames(folder.path(), &data(image), &rvas), wanted);
    }
}

const SECOND: &[&str] = &["second [/src/tiny.c:3]", "outer [/src/tiny.c:8]"];

#[test]
fn a_block_behind_an_inlined_function_is_not_in_it() {
    check("tiny.dll", &[("100f", SECOND), ("1016", SECOND)]);
}

#[test]
fn compressed_dwarf_gives_what_the_plain_one_gives() {
    let first: &[&str] = &["first [/src/tiny.c:2]", "outer [/src/tiny.c:5]"];
    check("tinyz.dll", &[("1000", first), ("1006", &["outer [/src/tiny.c:7]"]), ("100f", SECOND)]);
}

#[test]
fn lines_of_units_without_functions_are_shown() {
    for image in ["as.dll", "as_clang.dll"] {
        check(image, &[("1000", &["asm_fn [/src/as.S:4]"]), ("1005", &["asm_fn [/src/as.S:5]"])]);
    }
}

#[test]
fn the_file_of_debuglink_is_found_or_named() {
    let inner: &[&str] = &["inner [/src/app.c:2]", "middle [/src/app.c:3]"];
    check("app.dll", &[("1000", &["middle [/src/app.c:3]"]), ("1010", inner)]);
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("app.dll");
    std::fs::copy(data("app.dll"), &image).unwrap();
    let reason = || ran_in(folder.path(), &["symbols", "lookup", "--offline", "app.dll", "1000"]).out;
    assert!(reason().contains("app.debug (") && reason().contains("is in none of"), "{}", reason());
    // A file of that name with other contents is never used.
    std::fs::create_dir(folder.path().join(".debug")).unwrap();
    let debug = folder.path().join(".debug/app.debug");
    let mut bytes = std::fs::read(data("app.debug")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&debug, bytes).unwrap();
    assert!(reason().contains("does not match"), "{}", reason());
    assert!(frames(folder.path(), &image, &["1000"])[0].is_empty());
    std::fs::copy(data("app.debug"), &debug).unwrap();
    assert_eq!(frames(folder.path(), &image, &["1010"]), [inner]);
}

#[test]
fn the_folder_of_build_ids_is_searched() {
    let folder = tempfile::tempdir().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        let ran = Command::new(program).args(arguments).current_dir(folder.path()).status();
        assert!(ran.unwrap().success(), "{program} {arguments:?}");
    };
    let source = "volatile int s; __declspec(dllexport) int f(int n) { return s + n; }";
    std::fs::write(folder.path().join("b.c"), source).unwrap();
    let whole =
        ["-g", "-O1", "-shared", "-nostdlib", "-Wl,--entry=0", "-Wl,--build-id", "b.c", "-o", "b.dll"];
    run("x86_64-w64-mingw32-gcc", &whole);
    run("x86_64-w64-mingw32-objcopy", &["--only-keep-debug", "b.dll", "b.debug"]);
    run("x86_64-w64-mingw32-strip", &["-s", "b.dll"]);
    let image = folder.path().join("b.dll");
    let guid = stk_symbols::ImageFile::parse(&std::fs::read(&image).unwrap()).unwrap().code_view.unwrap().0;
    let id = stk_symbols::pdb_id(&guid, 0).to_lowercase();
    let place = folder.path().join(".build-id").join(&id[..2]);
    std::fs::create_dir_all(&place).unwrap();
    std::fs::rename(folder.path().join("b.debug"), place.join(format!("{}.debug", &id[2..32]))).unwrap();
    let found = frames(folder.path(), &image, &["1000"]);
    assert!(found[0][0].starts_with("f [") && found[0][0].ends_with("b.c:1]"), "{found:?}");
}

#[test]
fn names_of_x86_lose_their_decoration_but_no_underscore() {
    check("ex.dll", &[("1000", &["exit_it"]), ("1010", &["_exit_it"]), ("1020", &["std_api"])]);
    let lines = ["std_fn [/src/d.c:2]", "fast_fn [/src/d.c:3]", "_lead [/src/d.c:6]"];
    check("d_dwarf.dll", &[("1000", &lines[..1]), ("1020", &lines[1..2]), ("1040", &lines[2..])]);
    check("d_symtab.dll", &[("1000", &["std_fn"]), ("1020", &["fast_fn"])]);
}

#[test]
fn an_export_reaches_to_the_end_of_its_unwind_data() {
    check("v3long.dll", &[("1060", &["f_t+0x50"]), ("10a0", &["f_t+0x90"])]);
}

#[test]
fn a_pdb_of_publics_does_not_hide_the_image() {
    check("part.dll", &[("1000", &["hidden [/src/part.c:2]"]), ("1018", &["shown [/src/part.c:3]"])]);
}

#[test]
fn a_public_ends_where_unwind_data_has_a_function() {
    check("pub.dll", &[("1000", &["shown"]), ("1030", &[]), ("1050", &[]), ("1070", &["last"])]);
    let folder = tempfile::tempdir().unwrap();
    let image = data("pub.dll");
    let text =
        ran_in(folder.path(), &["symbols", "lookup", "--offline", image.to_str().unwrap(), "1050"]).out;
    assert!(text.contains("pub.dll!fn_1030+0x20") && text.contains("pub.pdb: no record covers"), "{text}");
}
