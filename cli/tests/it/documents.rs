//! The command lines of stk in README and docs: each is parsed, those of code blocks and of the
//! page of questions are run. The reference of options is the help.

use crate::dataset::recording;
use crate::support::{Ran, kept, ran_in};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::path::Path;
use stk::commands::{program, with_command};
use stk_tests::documents::{self, CommandLine};

/// Lines that are parsed and not run, and why.
const NOT_RUN: [(&str, &str); 3] = [
    ("--open", "starts a browser"),
    ("--ms-symbols", "contacts a server"),
    ("--tag", "the kept traces have no captures"),
];
/// Where each command is one column of a table.
const QUESTIONS: &str = "docs/guide/questions.md";

fn no_value() -> ContextValue {
    ContextValue::String(String::new())
}

fn parsed(line: &CommandLine) -> Result<(), String> {
    let words = std::iter::once("stk").chain(line.arguments.iter().map(String::as_str));
    let words = with_command(words.map(Into::into).collect());
    let Err(error) = program().try_get_matches_from(words) else { return Ok(()) };
    let complete = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return Ok(()),
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => false,
        // An option without its value.
        ErrorKind::InvalidValue => error.get(ContextKind::InvalidValue) != Some(&no_value()),
        _ => true,
    };
    // A sentence names an option, not the whole command.
    match complete || line.in_block {
        false => Ok(()),
        true => Err(format!("{}: {}\n{error}", line.document, line.text)),
    }
}

#[test]
fn command_lines_of_documents_are_parsed() {
    let lines = documents::command_lines("stk");
    let wrong: Vec<String> = lines.iter().filter_map(|line| parsed(line).err()).collect();
    assert!(lines.len() > 100, "{} command lines", lines.len());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn wrong_command_line_of_a_document_is_reported() {
    let line = |text: &str, in_block| CommandLine {
        document: "page.md".to_owned(),
        text: text.to_owned(),
        arguments: text.split(' ').skip(1).map(str::to_owned).collect(),
        in_block,
    };
    for text in ["stk stats --none a.stk", "stk none a.stk", "stk convert a.stk --to none"] {
        assert!(parsed(&line(text, false)).is_err(), "{text}");
    }
    assert!(parsed(&line("stk redact", true)).is_err());
    assert!(parsed(&line("stk redact", false)).is_ok());
}

/// What the documents' examples name: traces of builds, a dataset of them, the repository's traces.
fn make_examples(folder: &Path) {
    let copy = |from: &str, to: &str| {
        std::fs::copy(kept(from), folder.join(to)).unwrap();
    };
    for name in ["night", "old", "new", "symbols", "examples/traces"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in std::fs::read_dir(kept("")).unwrap() {
        let name = name.unwrap().file_name().into_string().unwrap();
        copy(&name, &format!("examples/traces/{name}"));
        if name.ends_with(".pdb") {
            copy(&name, &format!("symbols/{name}"));
        }
    }
    for (name, number, build) in [("old", 1, "1"), ("new", 2, "2"), ("night/a", 3, "1234")] {
        let labels = [("build", build), ("lab", "west")];
        std::fs::write(folder.join(format!("{name}.stk")), recording(number, &labels)).unwrap();
    }
    for name in ["old", "new"] {
        std::fs::copy(folder.join(format!("{name}.stk")), folder.join(name).join("a.stk")).unwrap();
    }
    copy("mixed.stk", "night/b.stk");
    copy("busy.stk", "app.stk");
    // Recordings of one process, on one clock.
    for (name, number) in [("client", 1), ("server", 2), ("a.0001", 1), ("a.0002", 2)] {
        std::fs::write(folder.join(format!("{name}.stk")), recording(number, &[])).unwrap();
    }
    let made =
        ran_in(folder, &["convert", "old.stk", "new.stk", "night", "--to", "parquet", "-o", "lab.parquet"]);
    assert_eq!(made.code, Some(0), "{}", made.error);
}

#[test]
fn command_lines_of_documents_run() {
    let folder = tempfile::tempdir().unwrap();
    make_examples(folder.path());
    let lines = documents::command_lines("stk").into_iter();
    let complete = |line: &CommandLine| line.in_block || line.document == QUESTIONS;
    let runs = |line: &CommandLine| !NOT_RUN.iter().any(|(word, _)| line.text.contains(word));
    let (mut wrong, mut run) = (Vec::new(), 0);
    for line in lines.filter(complete).filter(runs) {
        let arguments: Vec<&str> = line.arguments.iter().map(String::as_str).collect();
        let Ran { code, out, error } = ran_in(folder.path(), &arguments);
        // Two recordings are too few for a verdict.
        let right = code == Some(0) || (arguments[0] == "diff" && code == Some(7));
        if !right || (out.is_empty() && error.is_empty()) {
            wrong.push(format!("{}: {}: {code:?}\n{error}", line.document, line.text));
        }
        run += 1;
    }
    assert!(run > 40, "{run} command lines");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The blocks of text below a sentence that names a command on a kept trace: command, lines.
fn shown(text: &str) -> Vec<(String, Vec<String>)> {
    let (mut shown, mut command) = (Vec::new(), None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == "```text" {
            let block = lines.by_ref().take_while(|line| *line != "```").map(str::to_owned).collect();
            shown.extend(command.take().map(|command| (command, block)));
        } else if !line.is_empty() {
            let span = line.split('`').nth(1).filter(|span| span.starts_with("stk "));
            command = span.filter(|span| span.contains("examples/traces/")).map(str::to_owned);
        }
    }
    shown
}

#[test]
fn outputs_in_documents_are_real() {
    let folder = tempfile::tempdir().unwrap();
    make_examples(folder.path());
    let (mut wrong, mut blocks) = (Vec::new(), 0);
    for (document, text) in documents::documents() {
        for (command, lines) in shown(&text) {
            let arguments: Vec<&str> = command.split(' ').skip(1).collect();
            let Ran { out, .. } = ran_in(folder.path(), &arguments);
            let real = |line: &str| match line.strip_suffix('…') {
                Some(start) => out.lines().any(|line| line.starts_with(start)),
                None => out.lines().any(|real| real == line),
            };
            let unreal = lines.iter().filter(|line| !line.is_empty() && !real(line));
            wrong.extend(unreal.map(|line| format!("{document}: {command}: {line}")));
            blocks += 1;
        }
    }
    assert!(blocks >= 2, "{blocks} outputs");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn page_of_questions_has_twenty_lines() {
    let lines = documents::command_lines("stk").into_iter().chain(documents::command_lines("inject"));
    assert_eq!(lines.filter(|line| line.document == QUESTIONS).count(), 20);
}

/// Adds the help of a command and of those below it.
fn add_pages(command: &mut clap::Command, name: &str, pages: &mut Vec<(String, String)>) {
    pages.push((name.to_owned(), command.render_long_help().to_string()));
    for below in command.get_subcommands_mut().filter(|below| !below.is_hide_set()) {
        let name = format!("{name} {}", below.get_name());
        add_pages(below, &name, pages);
    }
}

#[test]
fn reference_of_stk_is_its_help() {
    let mut program = program().disable_help_subcommand(true).term_width(100);
    program.build();
    let mut pages = Vec::new();
    add_pages(&mut program, "stk", &mut pages);
    documents::assert_current("docs/reference/stk.md", &documents::reference("stk", &pages));
}
