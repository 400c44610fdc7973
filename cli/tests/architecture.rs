//! The order of the library's modules: each uses only those above it in the table of `src/lib.rs`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A word of a program: an identifier or one character.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Token {
    text: String,
    line: usize,
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The modules of the table in the documentation of `lib.rs`, the lowest first.
fn order(lib: &str) -> Vec<String> {
    let table = lib.lines().skip_while(|line| *line != "//! ```text").skip(1);
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

/// The module that a file is, by its place below `src`: `["trace", "timeline"]`.
fn module_path(file: &Path) -> Vec<String> {
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

/// Behind the string that begins at `at`.
fn string(text: &[char], mut at: usize) -> usize {
    at += 1;
    while at < text.len() && text[at] != '"' {
        at += if text[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a raw string behind its `r`; `None` if that is none (`r#match`).
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

/// The words outside of items that only tests have, and the modules with files of their own among
/// these items.
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

/// The modules below the crate's root that a program names: the word behind `crate::` or behind as
/// many `super::` as lead to the root, in groups each of them.
fn named(tokens: &[Token], depth: usize) -> Vec<Token> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let mut next = at;
        if is(tokens, at, &["crate", ":", ":"]) {
            next += 3;
        } else if depth > 0 && !is(tokens, at.wrapping_sub(1), &[":"]) {
            while next - at < 3 * depth && is(tokens, next, &["super", ":", ":"]) {
                next += 3;
            }
            if next - at < 3 * depth {
                continue;
            }
        } else {
            continue;
        }
        if is(tokens, next, &["{"]) {
            found.extend(group(&tokens[next + 1..]));
        } else {
            found.extend(tokens.get(next).cloned());
        }
    }
    found
}

/// The first word of each path of a group.
fn group(tokens: &[Token]) -> Vec<Token> {
    let (mut found, mut depth, mut first) = (Vec::new(), 0, true);
    for token in tokens {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 0 => break,
            "}" => depth -= 1,
            "," if depth == 0 => first = true,
            _ if first => {
                found.push(token.clone());
                first = false;
            }
            _ => {}
        }
    }
    found
}

/// What is wrong with a file: each line that uses a module below its own in the table, and each
/// that knows the command line's parser outside of `commands`.
fn problems(order: &[String], file: &Path, source: &str) -> Vec<String> {
    let path = module_path(file);
    let place = |name: &str| order.iter().position(|known| known == name);
    let own = place(&path[0]).unwrap_or_else(|| panic!("{}: not in lib.rs's table", path[0]));
    let (tokens, _) = without_tests(&tokens(source));
    let upward = named(&tokens, path.len()).into_iter().filter_map(|token| {
        place(&token.text).filter(|&used| used > own)?;
        Some(format!("{}:{}: {} uses {}", file.display(), token.line, path[0], token.text))
    });
    let parser = tokens.iter().filter(|token| token.text == "clap" && path[0] != "commands");
    let parser = parser.map(|token| format!("{}:{}: clap outside commands", file.display(), token.line));
    upward.chain(parser).collect()
}

#[test]
fn each_module_uses_only_those_above_it_in_the_table() {
    let src = source_folder();
    let order = order(&std::fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut of_tests = BTreeSet::new();
    let mut sources = Vec::new();
    for path in files(&src) {
        let source = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(&src).unwrap().to_path_buf();
        let root = matches!(file.to_str(), Some("lib.rs" | "main.rs"));
        let inside = file.ends_with("mod.rs") || root;
        let folder = if inside { file.parent().unwrap().to_path_buf() } else { file.with_extension("") };
        let (_, modules) = without_tests(&tokens(&source));
        of_tests.extend(modules.iter().map(|name| folder.join(format!("{name}.rs"))));
        if !root {
            sources.push((file, source));
        }
    }
    let checked = sources.iter().filter(|(file, _)| !of_tests.contains(file));
    let found: Vec<String> = checked.flat_map(|(file, source)| problems(&order, file, source)).collect();
    assert!(sources.len() > 100 && order.len() > 10, "{} files, {} modules", sources.len(), order.len());
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn an_arrow_upward_is_found_in_every_way_to_write_it() {
    let order = ["model", "trace", "symbols"].map(str::to_owned);
    let found = |file: &str, source: &str| problems(&order, Path::new(file), source);
    for source in [
        "use crate::symbols::Reason;",
        "use crate::{model::{Image, ImageId}, symbols as names};",
        "fn f() -> crate::symbols::Reason {}",
        "use super::super::symbols::Reason;",
        "use super::super::{model, symbols};",
    ] {
        assert_eq!(found("trace/clock.rs", source), ["trace/clock.rs:1: trace uses symbols"], "{source}");
    }
    assert_eq!(found("trace/mod.rs", "\nuse super::symbols;"), ["trace/mod.rs:2: trace uses symbols"]);
    assert_eq!(found("model/mod.rs", "use clap::Args;"), ["model/mod.rs:1: clap outside commands"]);
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
    let file = Path::new("model/deep/names.rs");
    assert_eq!(problems(&order, file, source), Vec::<String>::new());
    assert_eq!(without_tests(&tokens(source)).1, ["other"]);
}

#[test]
fn the_model_uses_nothing_else_of_the_crate() {
    let src = source_folder();
    let order = order(&std::fs::read_to_string(src.join("lib.rs")).unwrap());
    for path in files(&src.join("model")) {
        let source = std::fs::read_to_string(&path).unwrap();
        let file = path.strip_prefix(&src).unwrap();
        let (tokens, _) = without_tests(&tokens(&source));
        for token in named(&tokens, module_path(file).len()) {
            let other = order.contains(&token.text) && token.text != "model";
            assert!(!other, "{}:{}: model uses {}", path.display(), token.line, token.text);
        }
    }
}
