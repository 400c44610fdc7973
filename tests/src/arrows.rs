//! Reads from a crate's sources which module uses which, to check that the modules keep the order
//! of a table and that no folder's files use each other in circles.
//!
//! A module's name is its path below the folder: `["trace", "timeline"]`. Items that only tests
//! have are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A word of a program: an identifier or one character.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Token {
    /// The word.
    pub text: String,
    /// Its line, counted from 1.
    pub line: usize,
}

/// A file of a program.
pub struct Source {
    /// Its path below the folder.
    pub file: PathBuf,
    /// The module that it is; empty for the folder's own (`lib.rs`, `main.rs`, `mod.rs`).
    pub module: Vec<String>,
    /// Its words, without items that only tests have.
    pub tokens: Vec<Token>,
}

/// A place where a file names another module.
pub struct Arrow {
    /// Counted from 1.
    pub line: usize,
    /// The path that is named, below the folder: a module and an item in it.
    pub target: Vec<String>,
}

/// The files of a folder.
pub struct Program {
    /// The folder's path in its crate.
    root: Vec<String>,
    /// The files, without those that only tests have.
    pub sources: Vec<Source>,
}

impl Program {
    /// Reads all `.rs` files below a folder, whose module in its crate is `root`; empty for `src`.
    pub fn read(folder: &Path, root: &[&str]) -> Program {
        let texts: Vec<(PathBuf, String)> = files(folder)
            .into_iter()
            .map(|path| {
                let text = std::fs::read_to_string(&path).unwrap();
                (path.strip_prefix(folder).unwrap().to_path_buf(), text)
            })
            .collect();
        Program::of(root, texts.iter().map(|(file, text)| (file.as_path(), text.as_str())))
    }

    /// A program of these files and their texts.
    pub fn of<'a>(root: &[&str], texts: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Program {
        let mut of_tests = BTreeSet::new();
        let mut sources = Vec::new();
        for (file, text) in texts {
            let module = module_path(file);
            let (tokens, modules) = without_tests(&tokens(text));
            of_tests.extend(modules.into_iter().map(|name| [&module[..], &[name]].concat()));
            sources.push(Source { file: file.to_path_buf(), module, tokens });
        }
        sources.retain(|source| !of_tests.contains(&source.module));
        Program { root: root.iter().map(|&name| name.to_owned()).collect(), sources }
    }

    /// The modules below the folder that a file names by `crate::` or `super::`.
    pub fn arrows(&self, source: &Source) -> Vec<Arrow> {
        let (tokens, mut found) = (&source.tokens, Vec::new());
        let own = [&self.root[..], &source.module[..]].concat();
        for at in 0..tokens.len() {
            let (mut base, mut next) = (own.clone(), at);
            if at > 1 && is(tokens, at - 2, &[":", ":"]) {
                continue;
            } else if is(tokens, at, &["crate", ":", ":"]) {
                base.clear();
                next += 3;
            } else {
                while is(tokens, next, &["super", ":", ":"]) && base.pop().is_some() {
                    next += 3;
                }
                if next == at {
                    continue;
                }
            }
            paths(tokens, next, base, &mut found);
        }
        let below = |arrow: &mut Arrow| {
            let inside = arrow.target.starts_with(&self.root);
            arrow.target.drain(..self.root.len().min(arrow.target.len()));
            inside && !arrow.target.is_empty()
        };
        found.retain_mut(below);
        found
    }

    /// Each line that names a module which comes after the line's own in `order`, a table with the
    /// lowest first.
    pub fn upward(&self, order: &[String]) -> Vec<String> {
        let place = |name: &String| order.iter().position(|known| known == name);
        let mut found = Vec::new();
        for source in &self.sources {
            let Some(module) = source.module.first() else { continue };
            let Some(own) = place(module) else {
                found.push(format!("{}: {module} is not in the table", source.file.display()));
                continue;
            };
            for arrow in self.arrows(source) {
                if place(&arrow.target[0]).is_some_and(|used| used > own) {
                    let (file, line) = (source.file.display(), arrow.line);
                    found.push(format!("{file}:{line}: {module} uses {}", arrow.target[0]));
                }
            }
        }
        found
    }

    /// Each circle among the files and folders of one folder: `tables: images -> loader -> images`.
    /// A folder's own file, `mod.rs`, is part of no circle, because it may use the folder's files
    /// and they may use it.
    pub fn circles(&self) -> Vec<String> {
        let modules: BTreeSet<&[String]> = self.sources.iter().map(|source| &source.module[..]).collect();
        let mut uses: BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for source in &self.sources {
            for arrow in self.arrows(source) {
                let mut target = &arrow.target[..];
                while !modules.contains(target) && !target.is_empty() {
                    target = &target[..target.len() - 1];
                }
                let common = source.module.iter().zip(target).take_while(|(a, b)| a == b).count();
                if let (Some(from), Some(to)) = (source.module.get(common), target.get(common)) {
                    let folder = uses.entry(target[..common].to_vec()).or_default();
                    folder.entry(from.clone()).or_default().insert(to.clone());
                }
            }
        }
        let circles = uses.iter().flat_map(|(folder, uses)| {
            let found = uses.keys().filter_map(|start| circle(uses, start));
            found.map(|circle| format!("{}: {}", folder.join("::"), circle.join(" -> ")))
        });
        circles.collect()
    }
}

/// The shortest circle through `start`, if there is one and `start` is its first member in order.
fn circle(uses: &BTreeMap<String, BTreeSet<String>>, start: &String) -> Option<Vec<String>> {
    let mut ways = vec![vec![start.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in uses.get(way.last()?).into_iter().flatten() {
                let further = [&way[..], std::slice::from_ref(next)].concat();
                if next == start {
                    return (way.iter().min() == Some(start)).then_some(further);
                }
                if seen.insert(next.clone()) {
                    longer.push(further);
                }
            }
        }
        ways = longer;
    }
    None
}

/// The modules of the table in a file's documentation, the lowest first.
pub fn order(documentation: &str) -> Vec<String> {
    let table = documentation.lines().skip_while(|line| *line != "//! ```text").skip(1);
    let rows = table.take_while(|line| *line != "//! ```").filter(|row| !row.starts_with("//!  "));
    let word = |row: &str| row.trim_start_matches("//!").split_whitespace().next().map(str::to_owned);
    rows.filter_map(word).collect()
}

/// All `.rs` files below a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The module of a file, from its path.
fn module_path(file: &Path) -> Vec<String> {
    if matches!(file.to_str(), Some("lib.rs" | "main.rs")) {
        return Vec::new();
    }
    let mut parts: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    parts
}

/// The words of a program without comments, literals and lifetimes.
fn tokens(source: &str) -> Vec<Token> {
    let text: Vec<char> = source.chars().collect();
    let (mut out, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let start = at;
        at = match (text[at], text.get(at + 1)) {
            ('/', Some('/')) => end_of(&text, at, |rest| rest[0] == '\n'),
            ('/', Some('*')) => end_of(&text, at + 2, |rest| rest.starts_with(&['*', '/'])) + 2,
            ('r', Some('"' | '#')) if raw_string(&text[at + 1..]).is_some() => {
                at + 1 + raw_string(&text[at + 1..]).unwrap()
            }
            ('"', _) => string(&text, at),
            ('\'', Some('\\')) => end_of(&text, at + 3, |rest| rest[0] == '\'') + 1,
            ('\'', _) if text.get(at + 2) == Some(&'\'') => at + 3,
            (c, _) if c.is_alphanumeric() || c == '_' => {
                let end = end_of(&text, at, |rest| !rest[0].is_alphanumeric() && rest[0] != '_');
                out.push(Token { text: text[at..end].iter().collect(), line });
                end
            }
            (c, _) => {
                if !c.is_whitespace() {
                    out.push(Token { text: c.to_string(), line });
                }
                at + 1
            }
        }
        .min(text.len());
        line += text[start..at].iter().filter(|&&c| c == '\n').count();
    }
    out
}

fn end_of(text: &[char], from: usize, ends: impl Fn(&[char]) -> bool) -> usize {
    (from..text.len()).find(|&at| ends(&text[at..])).unwrap_or(text.len())
}

/// The index behind the string that begins at `at`.
fn string(text: &[char], mut at: usize) -> usize {
    at += 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a raw string behind its `r`; `None` if it is not a raw string (`r#match`).
fn raw_string(text: &[char]) -> Option<usize> {
    let marks = text.iter().take_while(|&&c| c == '#').count();
    if text.get(marks) != Some(&'"') {
        return None;
    }
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', marks)).collect();
    Some(end_of(text, marks + 1, |rest| rest.starts_with(&end)) + end.len())
}

/// Whether the words at `at` are these.
fn is(tokens: &[Token], at: usize, words: &[&str]) -> bool {
    words.iter().enumerate().all(|(n, word)| tokens.get(at + n).is_some_and(|token| token.text == *word))
}

/// The words outside items that only tests have, and the names of those items that are modules with
/// their own files.
fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut left, mut modules, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        if !is(tokens, at, &MARK) {
            left.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        if is(tokens, at, &["mod"]) && is(tokens, at + 2, &[";"]) {
            modules.push(tokens[at + 1].text.clone());
        }
        let mut depth = 0;
        while at < tokens.len() {
            let text = tokens[at].text.as_str();
            at += 1;
            depth += i32::from(text == "{") - i32::from(text == "}");
            if depth == 0 && matches!(text, ";" | "}") {
                break;
            }
        }
    }
    (left, modules)
}

/// The paths that begin at `at`, with `base` before them. In a group, each path of it.
fn paths(tokens: &[Token], mut at: usize, mut base: Vec<String>, found: &mut Vec<Arrow>) {
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            for item in items(tokens, at + 1) {
                paths(tokens, item, base.clone(), found);
            }
            return;
        }
        if token.text.starts_with(|c: char| c.is_alphanumeric() || c == '_') && token.text != "self" {
            base.push(token.text.clone());
        }
        if !is(tokens, at + 1, &[":", ":"]) {
            found.push(Arrow { line: token.line, target: base });
            return;
        }
        at += 3;
    }
}

/// The indexes at which the items of a group begin. The first begins at `at`.
fn items(tokens: &[Token], at: usize) -> Vec<usize> {
    let (mut found, mut depth, mut first) = (Vec::new(), 0, true);
    for (at, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "}" if depth == 0 => break,
            "," if depth == 0 => first = true,
            text => {
                if first {
                    found.push(at);
                    first = false;
                }
                depth += i32::from(text == "{") - i32::from(text == "}");
            }
        }
    }
    found
}
