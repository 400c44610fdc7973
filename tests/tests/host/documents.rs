//! Everything that the documents name exists: linked files, paths, packages and tests of cargo
//! commands, commands of stk, recipes of just.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Endings of files that documents name by path.
const ENDINGS: [&str; 11] = [".rs", ".sh", ".md", ".ps1", ".h", ".c", ".toml", ".yml", ".py", ".sql", ".stk"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

/// The files below a folder, without those that builds make.
fn files(folder: &Path) -> Vec<PathBuf> {
    let made = |name: &str| matches!(name, "target" | ".cache" | ".git" | "node_modules");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if !path.is_dir() {
            found.push(path);
        } else if path.file_name().is_none_or(|name| !made(&name.to_string_lossy())) {
            found.extend(files(&path));
        }
    }
    found
}

/// The targets of a text's links that are files, without their anchors.
fn links(text: &str) -> Vec<&str> {
    let goals = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = goals.filter(|goal| !goal.contains("://") && !goal.starts_with('#'));
    local.filter_map(|goal| goal.split('#').next()).collect()
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
        missing.extend(links(text).into_iter().filter(|goal| !folder.join(goal).exists()).map(str::to_owned));
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
    let files = files(&root);
    let repository = Repository::read(&root, &files);
    let mut missing = Vec::new();
    // The page of files that moved names those that are gone.
    let current = |file: &&PathBuf| !file.ends_with("docs/moved.md");
    let documents = files.iter().filter(|file| file.extension().is_some_and(|ending| ending == "md"));
    let documents: Vec<&PathBuf> = documents.filter(current).collect();
    for document in &documents {
        let text = std::fs::read_to_string(document).expect("text");
        let folder = document.parent().expect("a folder");
        let found = repository.missing(&root, folder, &text);
        missing.extend(found.into_iter().map(|name| format!("{}: {name}", document.display())));
    }
    assert!(documents.len() > 10 && repository.commands.len() > 4, "{} documents", documents.len());
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn a_name_that_does_not_exist_is_reported() {
    let root = root();
    let repository = Repository::read(&root, &files(&root));
    for (text, name) in [
        ("[a](docs/none.md)", "docs/none.md"),
        ("[a](docs/none.md#part)", "docs/none.md"),
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
    let there = "[a](trust.md) `tests/run.sh` `tests/NAME.rs` `tests/.cache` `cargo test -p stk --test it` \
                 `stk convert a.stk` `stk symbols fetch` `just test` [b](https://example.com/none.md)";
    assert_eq!(repository.missing(&root, &root.join("docs"), there), Vec::<String>::new());
}
