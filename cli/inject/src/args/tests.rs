use super::*;
use crate::record::pattern;
use crate::rotate::Rotation;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use stk_schema::control;
use stk_tests::documents;

fn record(line: &[&str]) -> Record {
    match parse_line(line) {
        Ok(Action::Record(record)) => *record,
        other => panic!("{line:?} gave {other:?}"),
    }
}

fn parse_line(line: &[&str]) -> Result<Action, clap::Error> {
    parse(["inject"].iter().chain(line).map(OsString::from))
}

fn refused(line: &[&str]) -> String {
    let error = parse_line(line).expect_err("must be refused");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

#[test]
fn the_clap_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn the_documented_command_line_parses_as_documented() {
    let r = record(&["--pid", "4404", "agent.dll", "-o", "demo.stk", "--duration", "5s"]);
    assert_eq!(r.target, Target::Pid(4404));
    assert_eq!(r.dll.as_deref(), Some("agent.dll".as_ref()));
    assert_eq!(r.output, "demo.stk");
    assert_eq!(r.duration_ms, 5_000);
    assert_eq!(r.rate_mhz, 1_000_000);
    assert_eq!((r.max_stack_bytes, r.delay_ms, r.flags), (0, 0, 0));
    assert_eq!((r.max_bytes, r.detach), (None, false));
    assert_eq!(r.embed, control::EMBED_UNWIND);
}

#[test]
fn flight_says_how_long_it_keeps() {
    let r = record(&["--pid", "1", "--flight", "30s"]);
    assert_eq!((r.flight_ms, r.flags), (30_000, control::FLAG_FLIGHT));
    assert_eq!(record(&["--pid", "1"]).flight_ms, 0);
    assert!(refused(&["--pid", "1", "--flight", "10ms"]).contains("1s to 1h"));
    assert!(refused(&["--pid", "1", "--flight", "2h"]).contains("1s to 1h"));
    match parse_line(&["snap", "--pid", "7"]) {
        Ok(Action::Snap { target, timeout_ms }) => {
            assert_eq!((target, timeout_ms), (Target::Pid(7), 60_000));
        }
        other => panic!("{other:?}"),
    }
    refused(&["snap"]);
}

#[test]
fn a_ring_of_files_has_a_time_a_size_or_both() {
    let rotation = |line: &[&str]| record(&[&["--pid", "1"], line].concat()).rotation;
    assert_eq!(rotation(&[]), Rotation::default());
    assert_eq!(rotation(&["--rotate", "60s"]), Rotation { every_ms: 60_000, bytes: 0, keep: 0 });
    assert_eq!(rotation(&["--rotate", "2m"]).every_ms, 120_000);
    assert_eq!(rotation(&["--rotate", "2M"]).bytes, 2 << 20);
    let both = rotation(&["--rotate", "256M", "--rotate", "1h", "--keep", "7"]);
    assert_eq!(both, Rotation { every_ms: 3_600_000, bytes: 256 << 20, keep: 7 });
}

#[test]
fn a_ring_of_files_that_makes_no_sense_is_refused_with_the_way_out() {
    let refused = |line: &[&str]| refused(&[&["--pid", "1"], line].concat());
    for (line, way_out) in [
        (&["--rotate", "60"][..], "60s, 10m or 1h, or 256M"),
        (&["--rotate", "soon"], "60s, 10m or 1h, or 256M"),
        (&["--rotate", "500ms"], "at least 1s"),
        (&["--rotate", "100K"], "at least 1M"),
        (&["--rotate", "60s", "--rotate", "2m"], "one time and one size"),
        (&["--rotate", "4M", "--rotate", "2M"], "one time and one size"),
        (&["--rotate", "60s", "--flight", "30s"], "keep the last files with --keep"),
        (&["--rotate", "60s", "--once"], "leave out --rotate"),
        (&["--rotate", "60s", "--keep", "9", "--max-size", "8M"], "keep fewer files"),
        (&["--rotate", "60s", "--keep", "0"], "1.."),
        (&["--keep", "3"], "--rotate"),
    ] {
        let reported = refused(line);
        assert!(reported.contains(way_out), "{line:?}: {reported}");
    }
    record(&["--pid", "1", "--rotate", "60s", "--keep", "8", "--max-size", "8M"]);
}

#[test]
fn what_does_not_go_with_flight_is_refused_with_the_way_out() {
    for (line, way_out) in [
        (&["--flight", "30s", "--once"][..], "leave out --flight, or --once"),
        (&["--flight", "30s", "--tables", "t"], "leave out --tables"),
        (&["--flight", "30s", "--move-to", "d"], "name the folder in -o"),
        (&["--flight", "30s", "--trigger", "api", "--rotate", "60s"], "ask for files with inject snap"),
        (&["--trigger", "api", "--once"], "leave out --once, or --trigger"),
    ] {
        let reported = refused(&[&["--pid", "1"], line].concat());
        assert!(reported.contains(way_out), "{line:?}: {reported}");
    }
    for more in
        [&["--max-size", "40M"][..], &["--max-size", "0"], &["--detach"], &["--children"], &["--paused"]]
    {
        record(&[&["--pid", "1", "--flight", "30s", "--trigger", "api"], more].concat());
    }
}

#[test]
fn every_option_arrives() {
    let r = record(&[
        "--name",
        "app.exe",
        "-r",
        "0.5",
        "--delay",
        "250ms",
        "--stack-bytes",
        "64k",
        "--embed",
        "full",
        "--tables",
        "t",
        "-y",
        r"C:\a;srv*C:\b*https://h",
        "--symbol-path",
        "c",
        "--once",
        "--check-walks",
        "--test-panic",
        "--test-freeze",
        "3",
        "--max-size",
        "2G",
        "--detach",
        "--timeout",
        "3",
    ]);
    assert_eq!(r.target, Target::Name("app.exe".to_owned()));
    assert_eq!(r.rate_mhz, 500);
    assert_eq!(r.delay_ms, 250);
    assert_eq!(r.max_stack_bytes, 65_536);
    assert_eq!(r.embed, control::EMBED_FULL);
    assert_eq!(r.tables.as_deref(), Some("t".as_ref()));
    assert_eq!(r.symbol_path, [r"C:\a;srv*C:\b*https://h", "c"]);
    let freeze = 3 << control::TEST_FREEZE_SHIFT;
    assert_eq!(r.flags, control::FLAG_ONCE | control::FLAG_CHECK_WALKS | control::FLAG_TEST_PANIC | freeze);
    assert_eq!((r.max_bytes, r.detach, r.begun_event), (Some(2 << 30), true, None));
    assert_eq!(r.timeout_ms, 3_000);
    assert_eq!(r.output, pattern::DEFAULT);
}

#[test]
fn threads_overhead_and_triggers_go_to_the_agent_as_texts() {
    let r = record(&[
        "--pid",
        "1",
        "--trigger",
        "exception",
        "--threads",
        "main",
        "--threads",
        "name=w*",
        "--max-overhead",
        "1.5",
        "--trigger",
        "cpu>90",
    ]);
    let options: Vec<_> = r.options.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let wanted = [
        ("threads", "main"),
        ("threads", "name=w*"),
        ("max_overhead_ppm", "15000"),
        ("trigger", "exception"),
        ("trigger", "cpu=90"),
    ];
    assert_eq!(options, wanted);
    assert!(record(&["--pid", "1"]).options.is_empty());
    for line in [["--threads", "few"], ["--max-overhead", "0"], ["--trigger", "moon"]] {
        refused(&[&["--pid", "1"], &line[..]].concat());
    }
}

#[test]
fn a_program_to_start_keeps_its_own_options() {
    let r = record(&["agent.dll", "-d", "1m", "--", "app.exe", "--pid", "7", "ps"]);
    assert_eq!(r.target, Target::Launch(["app.exe", "--pid", "7", "ps"].map(OsString::from).to_vec()));
    assert_eq!(r.dll.as_deref(), Some("agent.dll".as_ref()));
    assert_eq!(r.duration_ms, 60_000);
}

#[test]
fn exactly_one_target_is_required() {
    refused(&[]);
    refused(&["agent.dll"]);
    refused(&["--pid", "1", "--name", "a"]);
    refused(&["--pid", "1", "--", "a.exe"]);
    refused(&["--pid", "0"]);
    refused(&["--pid", "x"]);
    refused(&["stop"]);
    refused(&["stop", "--pid", "1", "--name", "a"]);
    refused(&["stop", "--pid", "1", "--all"]);
    refused(&["--wait-for", "a", "--name", "b"]);
}

#[test]
fn several_processes_are_named_by_repetition_or_by_a_pattern() {
    assert_eq!(record(&["--pid", "1", "-p", "2"]).target, Target::Pids(vec![1, 2]));
    assert_eq!(record(&["--name", "work.*"]).target, Target::Name("work.*".to_owned()));
    assert_eq!(record(&["--wait-for", "a.exe"]).target, Target::WaitFor("a.exe".to_owned()));
    refused(&["--name", "work(.*"]);
    let one = record(&["--pid", "1", "-p", "2", "--only-pid", "2"]);
    assert_eq!((one.target, one.one_of_several), (Target::Pid(2), true));
}

#[test]
fn children_are_watched_for_by_the_first_inject_alone() {
    assert!(record(&["--pid", "1", "--children"]).children);
    assert!(record(&["--children", "--", "a.exe", "--pid", "2"]).children);
    let copy = record(&["--only-pid", "7", "--children", "-d", "10s", "--pid", "1", "--only-ms", "1500"]);
    assert_eq!((copy.children, copy.target, copy.duration_ms), (false, Target::Pid(7), 1500));
    refused(&["--pid", "1", "--children", "--detach"]);
    for other in [&["--detach"][..], &["--children"], &["--rotate", "60s"], &["--flight", "30s"]] {
        refused(&[&["--pid", "1", "--open"], other].concat());
    }
    assert!(record(&["--pid", "1", "--open"]).open && !record(&["--pid", "1"]).open);
    assert!(record(&["--pid", "1", "--children", "--allow-missed-children"]).may_miss_children);
    refused(&["--pid", "1", "--allow-missed-children"]);
    refused(&["--pid", "1", "--only-ms", "7"]);
}

#[test]
fn labels_are_keys_and_values() {
    let r = record(&["--pid", "1", "--label", "build=12=34", "--label", "lab=west"]);
    let labels: Vec<_> = r.labels.iter().map(|label| (label.key.as_str(), label.value.as_str())).collect();
    assert_eq!(labels, [("build", "12=34"), ("lab", "west")]);
    for label in ["build", "=x", "a b=c", "a\u{1b}=c"] {
        refused(&["--pid", "1", "--label", label]);
    }
    refused(&["--pid", "1", "--label", "build=1", "--label", "lab=west", "--label", "build=2"]);
}

#[test]
fn recordings_are_requested_and_ended_one_by_one_or_all() {
    assert!(matches!(parse_line(&["stop", "--all"]), Ok(Action::Stop { target: Target::Recorded, .. })));
    let status = parse_line(&["status", "--json"]);
    assert!(matches!(status, Ok(Action::Status { target: Target::Recorded, json: true })));
    let status = parse_line(&["status", "--pid", "7"]);
    assert!(matches!(status, Ok(Action::Status { target: Target::Pid(7), json: false })));
}

#[test]
fn requests_name_one_recording_several_or_all() {
    let asked = |line: &[&str]| match parse_line(line) {
        Ok(Action::Ask { target, request }) => (target, request),
        other => panic!("{line:?} gave {other:?}"),
    };
    let mark = Request::Mark("build 7".to_owned());
    assert_eq!(asked(&["mark", "--pid", "7", "build 7"]), (Target::Pids(vec![7]), mark.clone()));
    assert_eq!(asked(&["mark", "-p", "7", "-p", "8", "build 7"]), (Target::Pids(vec![7, 8]), mark));
    assert_eq!(asked(&["pause", "--all"]), (Target::Recorded, Request::Pause));
    assert_eq!(asked(&["resume", "-n", "a.*"]), (Target::Name("a.*".to_owned()), Request::Resume));
    refused(&["mark", "--pid", "7"]);
    refused(&["mark", "build 7"]);
    refused(&["mark", "--pid", "7", " "]);
    refused(&["mark", "--pid", "7", &"ä".repeat(129)]);
    refused(&["pause"]);
    refused(&["pause", "--pid", "7", "--all"]);
}

#[test]
fn top_takes_one_process_and_options_for_stk() {
    let top = |line: &[&str]| match parse_line(line) {
        Ok(Action::Top(top)) => top,
        other => panic!("{line:?} gave {other:?}"),
    };
    let shown = top(&["top", "--pid", "7", "--once", "--", "-y", "symbols"]);
    assert_eq!((shown.target, shown.rate_mhz, shown.once), (Target::Pid(7), 200_000, true));
    assert_eq!(shown.stk_arguments, ["-y", "symbols"]);
    assert_eq!(top(&["top", "-n", "a.exe"]).target, Target::Name("a.exe".to_owned()));
    refused(&["top"]);
    refused(&["top", "--pid", "7", "--name", "a"]);
}

#[test]
fn a_recording_may_begin_paused_and_then_has_no_delay() {
    assert_eq!(record(&["--pid", "1", "--paused"]).flags, control::FLAG_PAUSED);
    refused(&["--pid", "1", "--paused", "--delay", "1s"]);
}

#[test]
fn values_out_of_range_are_refused() {
    for (option, value) in [
        ("-r", "0"),
        ("-r", "20001"),
        ("-r", "nan"),
        ("-d", "0"),
        ("-d", "x"),
        ("--stack-bytes", "1"),
        ("--stack-bytes", "9M"),
        ("--stack-bytes", "1q"),
        ("--max-size", "1"),
        ("--max-size", "4X"),
        ("--max-size", "99999999T"),
        ("--embed", "some"),
        ("-o", "-"),
        ("-o", "a%z"),
    ] {
        refused(&["--pid", "1", option, value]);
    }
    refused(&["--pid", "1", "--once", "-d", "1"]);
}

#[test]
fn the_copy_that_detach_leaves_does_not_detach_again() {
    let r = record(&["--pid", "1", "--detach", "--begun-event", "84"]);
    assert_eq!((r.detach, r.begun_event), (false, Some(84)));
    // A program that inject starts has inject's console and its exit code is inject's.
    refused(&["--detach", "--", "app.exe"]);
    assert_eq!(record(&["--pid", "1", "--max-size", "0"]).max_bytes, Some(0));
}

#[test]
fn by_default_files_are_not_replaced_and_command_lines_are_stored() {
    let plain = record(&["--pid", "1"]);
    assert_eq!((plain.force, plain.command_line, plain.flags), (false, true, 0));
    let reported = record(&["--pid", "1", "--force", "--no-command-line"]);
    assert_eq!(
        (reported.force, reported.command_line, reported.flags),
        (true, false, control::FLAG_NO_COMMAND_LINE)
    );
}

#[test]
fn all_stack_words_are_stored_unless_only_pointers_are_wanted() {
    assert_eq!(record(&["--pid", "1", "--stack-words", "all"]).flags, 0);
    assert_eq!(record(&["--pid", "1", "--stack-words", "pointers"]).flags, control::FLAG_POINTERS_ONLY);
    assert!(parse_line(&["--pid", "1", "--stack-words", "none"]).is_err());
}

#[test]
fn subcommands_are_distinguished_from_a_dll() {
    assert!(matches!(parse_line(&["ps", "--json"]), Ok(Action::Ps { json: true })));
    assert!(matches!(parse_line(&["ps"]), Ok(Action::Ps { json: false })));
    match parse_line(&["doctor", "--pid", "7", "--json", "-o", "d.json"]) {
        Ok(Action::Doctor { pid: Some(7), json: true, output: Some(output), force: false }) => {
            assert_eq!(output.to_str(), Some("d.json"));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        parse_line(&["doctor"]),
        Ok(Action::Doctor { pid: None, json: false, output: None, force: false })
    ));
    assert!(matches!(
        parse_line(&["doctor", "-o", "d.txt", "--force"]),
        Ok(Action::Doctor { force: true, .. })
    ));
    refused(&["doctor", "--force"]);
    refused(&["doctor", "--pid", "0"]);
    match parse_line(&["stop", "--pid", "12"]) {
        Ok(Action::Stop { target, timeout_ms: 30_000, unload: false }) => {
            assert_eq!(target, Target::Pid(12));
        }
        other => panic!("{other:?}"),
    }
    let unload = parse_line(&["stop", "--all", "--unload"]);
    assert!(matches!(unload, Ok(Action::Stop { target: Target::Recorded, unload: true, .. })));
}

#[test]
fn help_names_examples_and_exit_codes() {
    let help = parse_line(&["--help"]).expect_err("help is an error to clap");
    assert_eq!(help.exit_code(), 0);
    let text = help.to_string();
    for part in ["inject --pid 4404", "Exit codes", "--stack-bytes", "-y C:\\symbols", "inject stop"] {
        assert!(text.contains(part), "{part} is missing from:\n{text}");
    }
}

#[test]
fn command_lines_of_documents_are_parsed() {
    let lines = documents::command_lines("inject");
    let no_value = ContextValue::String(String::new());
    let incomplete = |error: &clap::Error| match error.kind() {
        ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        ErrorKind::InvalidValue => error.get(ContextKind::InvalidValue) == Some(&no_value),
        _ => false,
    };
    let wrong = lines.iter().filter_map(|line| {
        let words = std::iter::once("inject").chain(line.arguments.iter().map(String::as_str));
        let error = parse(words.map(OsString::from)).err()?;
        // A sentence names an option, not the process.
        let right = error.kind() == ErrorKind::DisplayHelp || (!line.in_block && incomplete(&error));
        (!right).then(|| format!("{}: {}\n{error}", line.document, line.text))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(lines.len() > 50, "{} command lines", lines.len());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Adds the help of a command and of those below it.
fn add_pages(command: &mut clap::Command, name: &str, pages: &mut Vec<(String, String)>) {
    pages.push((name.to_owned(), command.render_long_help().to_string()));
    for below in command.get_subcommands_mut() {
        let name = format!("{name} {}", below.get_name());
        add_pages(below, &name, pages);
    }
}

#[test]
fn reference_of_inject_is_its_help() {
    let mut program = Cli::command().disable_help_subcommand(true).term_width(100);
    program.build();
    let mut pages = Vec::new();
    add_pages(&mut program, "inject", &mut pages);
    documents::assert_current("docs/reference/inject.md", &documents::reference("inject", &pages));
}
