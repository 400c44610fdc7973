//! `stk events --stacks` on examples/capture, beside its golden text: what the program does, in the
//! order and the form of a viewer that resolves each address by what was loaded at its time.

use stk_tests::stk;
use stk_tests::wine::{self, Folder};

/// The text without what differs from run to run: times, thread ids, numbers of events, addresses,
/// sizes and the folder of the sources.
fn normalised(text: &str) -> String {
    let line = |line: &str| {
        let mut words: Vec<String> = Vec::new();
        let all: Vec<&str> = line.split(' ').collect();
        for (n, word) in all.iter().enumerate() {
            let before = n.checked_sub(1).map_or("", |n| all[n]);
            let end = word.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
            let is_size = all.get(n + 1).is_some_and(|unit| *unit == "KiB" || *unit == "MiB");
            words.push(match before {
                "" if n == 0 && word.starts_with("20") && word.ends_with('Z') => "TIME".to_owned(),
                "thread" if word.parse::<u32>().is_ok() => "TID".to_owned(),
                "event" => format!("N{end}"),
                "at" if word.parse::<f64>().is_ok() => "T".to_owned(),
                _ if word.starts_with("0x") => format!("ADDR{end}"),
                _ if is_size => "SIZE".to_owned(),
                _ if *word == "KiB" || *word == "MiB" => continue,
                _ => match word.find("capture.c(") {
                    Some(at) => word[at..].to_owned(),
                    None => (*word).to_owned(),
                },
            });
        }
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

/// The paragraphs of a text that have one of these words.
fn with(text: &str, words: &[&str]) -> String {
    let chosen = text.split("\n\n").filter(|part| words.iter().any(|word| part.contains(word)));
    chosen.map(str::trim_end).collect::<Vec<_>>().join("\n\n") + "\n"
}

#[test]
fn events_with_stacks_of_capture_equal_their_golden_text() {
    let folder = Folder::new("playback");
    let (program, trace) = (wine::path("STK_CAPTURE_DIR"), folder.file("capture.stk"));
    let agent = folder.file("agent.dll");
    std::fs::copy(wine::path("STK_WINDOWS_BIN").join("agent.dll"), &agent).expect("the agent");
    let mut command = wine::command(&program.join("capture.exe"));
    let output = wine::output(command.arg(wine::windows_path(&agent)).arg(wine::windows_path(&trace)));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("loaded 0"), "{said}");
    let symbols = program.to_str().expect("UTF-8");
    let line = ["events", "capture.stk", "--stacks", "-y", symbols, "--kind"];
    let of = |kinds: &str| stk::run(folder.path(), &[&line[..], &[kinds]].concat()).stdout;
    let text = of("mark,capture,load,unload");
    let words = ["half way", " tag 1 ", " tag 2 ", " tag 3 ", " tag 4 ", "version.dll"];
    let golden = include_str!("../../data/playback/capture.txt");
    assert_eq!(with(&normalised(&text), &words), golden, "{text}");
    // Followed after its end, it is the same.
    let followed = stk::run(folder.path(), &[&line[..5], &["--follow"]].concat()).stdout;
    assert_eq!(followed, stk::run(folder.path(), &line[..5]).stdout);
}
