//! Everything that the documents name exists: linked files and headings, paths, packages and tests
//! of cargo commands, commands of stk, recipes of just. Lines and cells of tables are short. The
//! command lines of stk are run in cli/tests/it, those of inject are parsed beside its options.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use stk_tests::documents::{documents, files, root};

/// Endings of files that documents name by path.
const ENDINGS: [&str; 11] = [".rs", ".sh", ".md", ".ps1", ".h", ".c", ".toml", ".yml", ".py", ".sql", ".stk"];

/// Most columns of a line outside of tables, most words of a table's cell, most lines of README.md.
const COLUMNS: usize = 110;
const CELL_WORDS: usize = 25;
const README_LINES: usize = 160;

/// The targets of a text's links in the repository: file, empty for this one, and anchor.
fn links(text: &str) -> Vec<(&str, Option<&str>)> {
    let goals = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = goals.filter(|goal| !goal.contains("://"));
    local
        .map(|goal| goal.split_once('#').map_or((goal, None), |(file, anchor)| (file, Some(anchor))))
        .collect()
}

/// The anchors that GitHub gives to a document's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut block) = (BTreeSet::new(), false);
    for line in text.lines() {
        block ^= line.starts_with("```");
        let heading = line.trim_start_matches('#');
        if !block && heading.len() < line.len() && heading.starts_with(' ') {
            let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
            let slug = heading.trim().to_lowercase().chars().filter(kept).collect::<String>();
            found.insert(slug.replace(' ', "-"));
        }
    }
    found
}

/// The links of a document that lead nowhere.
fn broken_links(folder: &Path, text: &str) -> Vec<String> {
    let broken = |&(file, anchor): &(&str, Option<&str>)| {
        let goal = folder.join(file);
        let Some(anchor) = anchor else { return !goal.exists() };
        let there = if file.is_empty() { Ok(text.to_owned()) } else { std::fs::read_to_string(goal) };
        !there.is_ok_and(|there| anchors(&there).contains(anchor))
    };
    let named = |(file, anchor): (&str, Option<&str>)| match anchor {
        Some(anchor) => format!("{file}#{anchor}"),
        None => file.to_owned(),
    };
    links(text).into_iter().filter(broken).map(named).collect()
}

/// Lines that are too long, and cells with too many words.
fn oversized(text: &str) -> Vec<String> {
    let (mut found, mut block) = (Vec::new(), false);
    for (line, number) in text.lines().zip(1..) {
        block ^= line.starts_with("```");
        if line.starts_with('|') && !block {
            let cells = line.replace("\\|", " ");
            let words = cells.split('|').map(|cell| cell.split_whitespace().count()).max().unwrap_or(0);
            if words > CELL_WORDS {
                found.push(format!("{number}: a cell of {words} words"));
            }
        } else if line.chars().count() > COLUMNS {
            found.push(format!("{number}: {} columns", line.chars().count()));
        }
    }
    found
}

/// The text between backquotes on one line, and the lines of code blocks.
fn code(text: &str) -> Vec<&str> {
    let (mut found, mut block) = (Vec::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            block = !block;
        } else if block || line.starts_with("    ") {
            found.push(line.trim());
        } else {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

/// Whether a word of code is a path of the repository, not a placeholder or a build's output.
fn is_path(word: &str, tops: &BTreeSet<String>) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-".contains(c);
    let (top, rest) = word.split_once('/').unwrap_or((word, ""));
    let named = tops.contains(top) || ENDINGS.iter().any(|ending| word.ends_with(ending));
    let placeholder = |part: &str| part.starts_with(|c: char| c.is_uppercase()) && !part.ends_with(".md");
    named
        && !rest.is_empty()
        && word.chars().all(plain)
        && !word.contains(".cache")
        && !word.split('/').any(placeholder)
}

/// The names after an option in the words of a command.
fn options<'a>(words: &[&'a str], option: &str) -> Vec<&'a str> {
    words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]).collect()
}

/// The name in a line of a Cargo.toml.
fn name(line: &str) -> Option<&str> {
    line.strip_prefix("name = \"")?.strip_suffix('"')
}

struct Repository {
    /// Names at the top, folders only.
    tops: BTreeSet<String>,
    packages: BTreeSet<String>,
    /// Tests, benchmarks, examples and programs, by the names that cargo takes.
    targets: BTreeSet<String>,
    commands: BTreeSet<String>,
    recipes: BTreeSet<String>,
}

impl Repository {
    fn read(root: &Path, files: &[PathBuf]) -> Repository {
        let text = |path: &Path| std::fs::read_to_string(path).expect("text");
        let manifests: Vec<String> =
            files.iter().filter(|file| file.ends_with("Cargo.toml")).map(|file| text(file)).collect();
        let packages = manifests.iter().flat_map(|manifest| manifest.lines().filter_map(name));
        let packages: BTreeSet<String> = packages.map(str::to_owned).collect();
        let holds = |folder: &Path| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            matches!(name.as_ref(), "tests" | "benches" | "examples" | "bin")
        };
        let stems = files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "rs"));
        let stems = stems.filter_map(|file| match (file.file_stem(), file.parent()) {
            (Some(stem), Some(folder)) if holds(folder) => Some(stem.to_string_lossy().into_owned()),
            (_, Some(folder)) if file.ends_with("main.rs") && folder.parent().is_some_and(holds) => {
                folder.file_name().map(|name| name.to_string_lossy().into_owned())
            }
            _ => None,
        });
        let list = text(&root.join("cli/src/commands/mod.rs"));
        let list = list.split_once("enum Command {").and_then(|(_, rest)| rest.split_once("\n}"));
        let commands = list.expect("the commands").0.lines().filter_map(|line| line.split_once('('));
        let commands = commands.filter(|(name, _)| !name.contains("//"));
        let recipes = text(&root.join("justfile"));
        let recipes = recipes.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
        let folders = std::fs::read_dir(root).expect("folder").filter_map(Result::ok);
        let folders = folders.filter(|entry| entry.path().is_dir() && entry.file_name() != "target");
        Repository {
            tops: folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect(),
            targets: stems.chain(packages.clone()).collect(),
            packages,
            commands: commands.map(|(name, _)| name.trim().to_lowercase()).collect(),
            recipes: recipes.filter_map(|line| line.split([' ', ':']).next().map(str::to_owned)).collect(),
        }
    }

    /// The names in a document that the repository does not have.
    fn missing(&self, root: &Path, folder: &Path, text: &str) -> Vec<String> {
        let mut missing = Vec::new();
        missing.extend(broken_links(folder, text));
        for code in code(text) {
            let words: Vec<&str> = code.split_whitespace().collect();
            for word in &words {
                let word = word.trim_start_matches("./").trim_end_matches([',', ';', ':', ')', '.']);
                let word = word.trim_end_matches('/');
                let there = root.join(word).exists() || folder.join(word).exists();
                if is_path(word, &self.tops) && !there {
                    missing.push(word.to_owned());
                }
            }
            missing.extend(self.unknown(&words).into_iter().map(|word| format!("{word} in `{code}`")));
        }
        missing
    }

    /// The names in a command line that cargo would not find.
    fn unknown<'a>(&self, words: &[&'a str]) -> Vec<&'a str> {
        let real = |name: &&str| name.starts_with(|c: char| c.is_ascii_lowercase());
        match words {
            ["cargo", "+nightly", ..] => Vec::new(),
            ["cargo", rest @ ..] => {
                let packages = options(rest, "-p").into_iter().filter(|name| !self.packages.contains(*name));
                let kinds = ["--test", "--bin", "--bench", "--example"];
                let targets = kinds.into_iter().flat_map(|kind| options(rest, kind));
                let targets = targets.filter(|name| !self.targets.contains(*name));
                packages.chain(targets).filter(real).collect()
            }
            ["stk", name, ..] if real(name) && !name.contains(['.', '\\']) => {
                Vec::from_iter((!self.commands.contains(*name)).then_some(*name))
            }
            ["just", name, ..] => Vec::from_iter((!self.recipes.contains(*name)).then_some(*name)),
            _ => Vec::new(),
        }
    }
}

#[test]
fn the_names_in_the_documents_exist() {
    let root = root();
    let repository = Repository::read(&root, &files(&root));
    let documents = documents();
    let mut missing = Vec::new();
    for (name, text) in &documents {
        let path = root.join(name);
        let found = repository.missing(&root, path.parent().expect("a folder"), text);
        missing.extend(found.into_iter().map(|missing| format!("{name}: {missing}")));
    }
    assert!(documents.len() > 10 && repository.commands.len() > 4, "{} documents", documents.len());
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn tests_in_the_tables_of_the_readme_exist() {
    let root = root();
    let is_rust = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    let sources: String = files(&root)
        .iter()
        .filter(is_rust)
        .map(|path| std::fs::read_to_string(root.join(path)).expect("text"))
        .collect();
    let readme = std::fs::read_to_string(root.join("tests/README.md")).expect("text");
    let is_test = |word: &&str| {
        let is_plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        word.matches('_').count() >= 3 && word.chars().all(|letter| is_plain(letter) || "_:".contains(letter))
    };
    let rows = readme.lines().filter(|line| line.starts_with('|'));
    let named: Vec<&str> = rows.flat_map(code).filter(is_test).collect();
    assert!(named.len() > 5, "{named:?}");
    let last = |name: &str| name.rsplit("::").next().unwrap_or_default().to_owned();
    let missing: Vec<&&str> =
        named.iter().filter(|name| !sources.contains(&format!("fn {}(", last(name)))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn documents_have_short_lines_and_cells() {
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let found = oversized(&text);
        wrong.extend(found.into_iter().map(|found| format!("{name}:{found}")));
    }
    let readme = std::fs::read_to_string(root().join("README.md")).expect("text");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES, "README.md has {lines} lines");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn long_line_and_full_cell_are_reported() {
    let line = |columns: usize| "x".repeat(columns);
    let cell = |words: usize| format!("| a | {} |", "x ".repeat(words));
    assert_eq!(oversized(&format!("{}\n{}", line(110), cell(25))), Vec::<String>::new());
    assert_eq!(oversized(&line(111)), ["1: 111 columns"]);
    assert_eq!(oversized(&format!("```\n{}\n```", line(111))), ["2: 111 columns"]);
    assert_eq!(oversized(&cell(26)), ["1: a cell of 26 words"]);
}

#[test]
fn headings_have_the_anchors_of_github() {
    let text = "# `inject -- PROGRAM`\n```\n# none\n```\n## What it's for: a, b\n#no";
    let expected = ["inject----program", "what-its-for-a-b"].map(str::to_owned);
    assert_eq!(anchors(text), BTreeSet::from(expected));
}

#[test]
fn a_name_that_does_not_exist_is_reported() {
    let root = root();
    let repository = Repository::read(&root, &files(&root));
    for (text, name) in [
        ("[a](docs/none.md)", "docs/none.md"),
        ("[a](docs/none.md#part)", "docs/none.md#part"),
        ("[a](status.md#none)", "status.md#none"),
        ("# Part\n[a](#none)", "#none"),
        ("see `tests/none.rs`.", "tests/none.rs"),
        ("```sh\n./tests/none.sh --long  # text\n```", "tests/none.sh"),
        ("    source tests/setup/none.sh && x", "tests/setup/none.sh"),
        ("`cargo test -p none`", "none in `cargo test -p none`"),
        ("`cargo test -p stk --test none`", "none in `cargo test -p stk --test none`"),
        ("`stk none FILE`", "none in `stk none FILE`"),
        ("`just none`", "none in `just none`"),
    ] {
        assert_eq!(repository.missing(&root, &root.join("docs"), text), [name], "{text}");
    }
    let there = "[a](status.md#go) [a](status.md) `tests/run.sh` `tests/NAME.rs` `tests/.cache` `cargo test -p stk --test it` \
                 `stk convert a.stk` `stk symbols fetch` `just test` [b](https://example.com/none.md)";
    assert_eq!(repository.missing(&root, &root.join("docs"), there), Vec::<String>::new());
}
