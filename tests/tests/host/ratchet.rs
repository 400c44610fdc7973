//! The size of each package and the words that the house does without, held at what
//! tests/ratchet.txt notes. Words may only fall. Lines may rise by an edit of that file, with the
//! reason in the same commit. And the names of each package's types: one name, one type.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regex::Regex;
use stk_tests::arrows::{Program, Token};

/// Lines by which a package may be smaller than noted, before the note has to follow.
const SLACK: usize = 150;
/// Each package's folder of production code.
const PACKAGES: [(&str, &str); 12] = [
    ("agent", "agent/src"),
    ("base", "cli/base/src"),
    ("format", "format/src"),
    ("inject", "cli/inject/src"),
    ("output", "cli/output/src"),
    ("profile", "cli/profile/src"),
    ("schema", "schema/src"),
    ("stk", "cli/src"),
    ("symbols", "cli/symbols/src"),
    ("unwind", "cli/unwind/src"),
    ("tests", "tests/src"),
    ("benches", "benches/src"),
];
/// Packages of tests, whose modules are programs of their own.
const OF_TESTS: [&str; 2] = ["tests", "benches"];
/// Percent of a package's type names that may be defined twice: two systems or processors may each
/// need their own definition.
const MOST_DOUBLE_NAMES: f64 = 2.0;
/// Translated English: report, show, query, continue, is in, for lack of, except, available, anyway
/// say the same.
const BANNED: &str = r"(?i)(^|[^a-z])(tells?|telling|told|(is|are|was|were|be|been|being)[ _]asked|goes[ _]on|go[ _]on|went[ _]on|(stands?|stood|lies|lie)[ _]in|for[ _]want[ _]of|but[ _]for|at[ _]hand|all[ _]the[ _]same|in[ _]vain)($|[^a-z])";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// The notes: a package or file, and its number.
fn noted(kind: &str) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(root().join("tests/ratchet.txt")).unwrap();
    let rows = text.lines().filter_map(|line| line.split('#').next()?.strip_prefix(kind));
    let row = |row: &str| {
        let (name, number) = row.trim().rsplit_once(' ').expect("NAME NUMBER");
        (name.trim().to_owned(), number.parse().expect("a number"))
    };
    rows.map(row).collect()
}

/// Lines that hold code and belong to no test.
fn lines(folder: &str) -> usize {
    let program = Program::read(&root().join(folder), &[]);
    let lines = |tokens: &[Token]| {
        let mut lines: Vec<usize> = tokens.iter().map(|token| token.line).collect();
        lines.dedup();
        lines.len()
    };
    program.sources.iter().map(|source| lines(&source.tokens)).sum()
}

/// The number of banned words in each tracked text that has any.
fn words() -> BTreeMap<String, usize> {
    let banned = Regex::new(BANNED).unwrap();
    let listed = std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let listed = String::from_utf8(listed.expect("git").stdout).unwrap();
    let texts = ["md", "rs", "sh", "yml", "py", "js", "mjs", "css", "html", "c", "cpp", "h", "ps1", "toml"];
    let mut found = BTreeMap::new();
    for name in listed.split('\0').filter(|name| texts.iter().any(|end| name.ends_with(&format!(".{end}")))) {
        // Gone from the work tree, not yet from the index; and this file names the words.
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        // A key of `stk info --json`.
        let text = text.replace("not_at_hand", "");
        let count = text.lines().map(|line| banned.find_iter(line).count()).sum();
        if count > 0 && !name.ends_with("host/ratchet.rs") {
            found.insert(name.to_owned(), count);
        }
    }
    found
}

#[test]
fn packages_have_the_noted_number_of_lines() {
    let noted = noted("lines ");
    let mut wrong = Vec::new();
    for (package, folder) in PACKAGES {
        let (lines, most) = (lines(folder), noted.get(package).copied().unwrap_or(0));
        if lines > most {
            wrong.push(format!(
                "{package}: {lines} lines of code, {most} allowed: raise it with its reason behind a #"
            ));
        } else if lines + SLACK < most {
            wrong.push(format!("{package}: {lines} lines of code: lower its {most}"));
        }
    }
    assert!(wrong.is_empty(), "tests/ratchet.txt:\n{}", wrong.join("\n"));
}

#[test]
fn banned_words_of_each_file_only_fall() {
    let (noted, words) = (noted("words "), words());
    let mut wrong = Vec::new();
    for name in noted.keys().chain(words.keys()).collect::<std::collections::BTreeSet<_>>() {
        let (was, is) = (noted.get(name).unwrap_or(&0), words.get(name).unwrap_or(&0));
        if is > was {
            wrong.push(format!(
                "{name}: {is} banned words, {was} allowed (STYLE: report, show, query, continue, is in)"
            ));
        } else if is < was {
            wrong.push(format!("{name}: {is} banned words: lower its {was} in tests/ratchet.txt"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The structs, enums, unions, traits and type aliases of a program, each with where it is defined.
/// Associated types are left out: a trait gives their names.
fn type_names(program: &Program) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in &program.sources {
        // Whether each open brace is that of an impl or a trait.
        let (mut open, mut is_next) = (Vec::new(), false);
        for (at, token) in source.tokens.iter().enumerate() {
            let before = at.checked_sub(1).map_or("", |before| source.tokens[before].text.as_str());
            let begins = matches!(before, "" | "{" | "}" | ";" | "]" | ")" | "pub" | "unsafe");
            match token.text.as_str() {
                "{" => open.push(std::mem::take(&mut is_next)),
                "}" => _ = open.pop(),
                "type" if open.contains(&true) => {}
                "impl" if begins => is_next = true,
                kind @ ("struct" | "enum" | "union" | "trait" | "type") if begins => {
                    is_next |= kind == "trait";
                    let name = source.tokens.get(at + 1).map_or("", |name| name.text.as_str());
                    if name.starts_with(char::is_alphabetic) {
                        let place = format!("{}:{}", source.file.display(), token.line);
                        found.entry(name.to_owned()).or_default().push(place);
                    }
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn a_package_has_one_type_of_a_name() {
    let (mut wrong, mut all) = (Vec::new(), 0);
    for (package, folder) in PACKAGES.iter().filter(|(package, _)| !OF_TESTS.contains(package)) {
        let names = type_names(&Program::read(&root().join(folder), &[]));
        let double: Vec<_> = names.iter().filter(|(_, places)| places.len() > 1).collect();
        all += names.len();
        if double.len() as f64 * 100.0 > MOST_DOUBLE_NAMES * names.len() as f64 {
            wrong.push(format!(
                "{package}: {} names of types; defined more than once: {double:#?}",
                names.len()
            ));
        }
    }
    assert!(all > 1_000, "{all} names of types");
    assert!(wrong.is_empty(), "rename types by what they are:\n{}", wrong.join("\n"));
}

#[test]
fn names_of_types_are_found_wherever_they_are_defined() {
    let source = "
        pub(crate) struct Sample { union: u8 }
        #[repr(C)]
        union Word { all: u64 }
        fn walk(frames: impl Iterator<Item = Frame>) -> impl Sized { enum Step { Call } }
        unsafe impl<T> Walker for Stack<T> { type State = T; fn state() { struct Held; } }
        pub trait Unwinder { type State; }
        type Registers = [u64; 16];
        mod x64 { pub struct Sample; }
        #[cfg(test)]
        mod tests { struct Step; }
    ";
    let names = type_names(&Program::of(&[], [(Path::new("walk.rs"), source)]));
    let expected = ["Held", "Registers", "Sample", "Step", "Unwinder", "Word"];
    assert_eq!(names.keys().collect::<Vec<_>>(), expected);
    let places: Vec<_> = names.into_values().map(|places| places.len()).collect();
    assert_eq!(places, [1, 1, 2, 1, 1, 1]);
}
