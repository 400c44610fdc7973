//! What the repository's documents hold: their files, their code, and the command lines of stk and
//! inject in them.

use std::path::{Path, PathBuf};

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").to_path_buf()
}

/// The files below a folder, without those that builds make.
pub fn files(folder: &Path) -> Vec<PathBuf> {
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

/// The documents: names from the repository's root, with `/`, and texts.
pub fn documents() -> Vec<(String, String)> {
    let root = root();
    let documents = files(&root).into_iter().filter(|file| file.extension().is_some_and(|end| end == "md"));
    let read = |file: PathBuf| {
        let name = file.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/");
        (name, std::fs::read_to_string(file).expect("text"))
    };
    let mut documents: Vec<(String, String)> = documents.map(read).collect();
    documents.sort();
    documents
}

/// A command line in a document.
#[derive(Debug)]
pub struct CommandLine {
    /// The document's name, from the root.
    pub document: String,
    /// As it is written.
    pub text: String,
    /// Without the program's name, placeholders replaced.
    pub arguments: Vec<String>,
    /// It is a line of a code block, so complete; else it is in a sentence or a table.
    pub in_block: bool,
}

/// The command lines of a program in the documents' code blocks for a shell, sentences and tables.
pub fn command_lines(program: &str) -> Vec<CommandLine> {
    let mut lines = Vec::new();
    for (document, text) in documents() {
        for (text, in_block) in code(&text) {
            if let Some(arguments) = arguments(&text, program).filter(|arguments| !arguments.is_empty()) {
                lines.push(CommandLine { document: document.clone(), text, arguments, in_block });
            }
        }
    }
    lines
}

/// Lines of blocks for a shell (true), and texts between backquotes (false).
fn code(text: &str) -> Vec<(String, bool)> {
    let (mut found, mut block) = (Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(language), None) => block = Some(matches!(language, "sh" | "bat" | "powershell")),
            (None, Some(shell)) if shell => found.push((line.trim().to_owned(), true)),
            (None, Some(_)) => {}
            (None, None) => {
                // A text that ends with a space is no command: SPEC.md has one to hash.
                let spans = line.split('`').skip(1).step_by(2).filter(|span| !span.ends_with(' '));
                found.extend(spans.map(|span| (span.replace("\\|", "|"), false)));
            }
        }
    }
    found
}

/// The arguments of a command line of this program, up to a comment, a pipe or the next command.
fn arguments(line: &str, program: &str) -> Option<Vec<String>> {
    let mut words = words(line).into_iter();
    let (first, _) = words.next()?;
    let name = first.rsplit(['/', '\\']).next().unwrap_or(&first);
    if name == "cargo" {
        let rest: Vec<(String, bool)> = words.by_ref().take_while(|(word, _)| word != "--").collect();
        let package = rest.windows(2).any(|pair| pair[0].0 == "-p" && pair[1].0 == program);
        if !package || rest.first().is_none_or(|(word, _)| word != "run") {
            return None;
        }
    } else if name.trim_end_matches(".exe") != program {
        return None;
    }
    let ends = |word: &str| matches!(word, "|" | "&&" | ">" | "&rem") || word.starts_with('#');
    let words = words.take_while(|(word, quoted)| *quoted || !ends(word));
    Some(words.filter_map(|(word, quoted)| if quoted { Some(word) } else { filled(&word) }).collect())
}

/// The words of a line, and whether a part of each is quoted.
fn words(line: &str) -> Vec<(String, bool)> {
    let (mut words, mut word, mut quote, mut quoted) = (Vec::new(), String::new(), None, false);
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => (quote, quoted) = (Some(c), true),
            None if c == ' ' => {
                if !word.is_empty() || quoted {
                    words.push((std::mem::take(&mut word), std::mem::take(&mut quoted)));
                }
            }
            _ => word.push(c),
        }
    }
    if !word.is_empty() || quoted {
        words.push((word, quoted));
    }
    words
}

/// A word with values for placeholders, the first of alternatives, without brackets and ellipsis.
fn filled(word: &str) -> Option<String> {
    let word = word.trim_matches(['…', '[', ']', ',']);
    if word.is_empty() || word == "options" {
        return None;
    }
    let word = word.split('|').next().unwrap_or(word);
    let (before, last) = word.split_once('=').map_or(("", word), |(key, value)| (key, value));
    let value = match last {
        "N" | "PID" => "1",
        "TIME" => "1s",
        "SIZE" => "64M",
        "PCT" => "5",
        "HZ" => "100",
        "MAX" => "64k",
        "ADDRESS" | "RVA" => "0x1000",
        "DIR" | "FOLDER" => ".",
        "SHELL" => "bash",
        "FORMAT" => "folded",
        other => other,
    };
    Some(if before.is_empty() { value.to_owned() } else { format!("{before}={value}") })
}

/// A page of the help of a program and its commands: headings and texts.
pub fn reference(program: &str, pages: &[(String, String)]) -> String {
    let mut text = format!(
        "# {program}: every command and option\n\nGenerated from the help of the program: \
         `STK_WRITE_DOCUMENTS=1` makes the test that compares it write it.\n"
    );
    for (heading, help) in pages {
        let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
        text += &format!("\n## {heading}\n\n```text\n{}\n```\n", lines.join("\n"));
    }
    text
}

/// Compares a generated document with its file, or writes it where `STK_WRITE_DOCUMENTS` is set.
///
/// # Panics
///
/// If they differ.
pub fn assert_current(name: &str, text: &str) {
    let path = root().join(name);
    if std::env::var_os("STK_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&path, text).expect(name);
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(kept == text, "{name} is not what the help says: run this test with STK_WRITE_DOCUMENTS=1");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_its_arguments_to_its_end() {
        let of = |line: &str, program: &str| arguments(line, program).map(|words| words.join("·"));
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(of("stk stats app.stk  # where", "stk"), text("stats·app.stk"));
        assert_eq!(of(r"target\release\inject.exe --pid N | more", "inject"), text("--pid·1"));
        assert_eq!(of("cargo run --release -p stk -- info a.stk", "stk"), text("info·a.stk"));
        assert_eq!(of("stk diff 'a|b c' \"d # e\"", "stk"), text("diff·a|b c·d # e"));
        assert_eq!(
            of("inject [options] --keep N --label k=N --to a|b FILE…", "inject"),
            text("--keep·1·--label·k=1·--to·a·FILE")
        );
        assert_eq!(of("inject stop", "stk"), None);
        assert_eq!(of("cargo test -p stk", "stk"), None);
    }

    #[test]
    fn blocks_for_a_shell_and_spans_are_code() {
        let text = "a `b c` d\n```text\ne\n```\n```sh\nf g\n```\n| `h\\|i` |";
        let found = code(text);
        assert_eq!(found, [("b c".to_owned(), false), ("f g".to_owned(), true), ("h|i".to_owned(), false)]);
    }
}
