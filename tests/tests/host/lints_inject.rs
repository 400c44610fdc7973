//! Rules of inject that a search of its source can check.

use std::path::Path;

/// `inject ps` looks at every process of the machine. What opens one for writing, or takes the
/// debug privilege for it, looks to its guards like an attack.
#[test]
fn the_list_of_processes_opens_them_for_reading_alone_and_takes_no_privilege() {
    let ps = code("ps.rs");
    assert_eq!(calls(&ps, "process::open"), ["process::open_limited("]);
    assert_eq!(calls(&ps, "Process::"), ["Process::open_to_read(", "Process::handle)", "Process::begun)"]);
    for way in ["Privilege", "OpenProcess", "OpenThread", "PROCESS_", ".write(", "remote", "narrowed"] {
        assert!(!ps.contains(way), "ps.rs has {way}");
    }

    let process = code("process/mod.rs");
    let limited = function(&process, "pub(crate) fn open_limited(");
    assert_eq!(rights(limited), ["PROCESS_QUERY_LIMITED_INFORMATION"]);
    let readable = function(&process, "pub(crate) fn open_to_read(");
    assert_eq!(rights(readable), ["PROCESS_QUERY_INFORMATION", "PROCESS_VM_READ", "PROCESS_SYNCHRONIZE"]);
    // What both rest on.
    let open = function(&process, "pub(crate) fn open(pid: u32, rights: u32)");
    assert!(open.contains("OpenProcess(rights, 0, pid)"), "{open}");
    for body in [limited, readable, open] {
        assert!(!body.contains("Privilege"), "{body}");
    }

    // try_open and the guard take the privilege where opening was denied; ps uses neither.
    assert_eq!(files_with("DebugPrivilege::enable()"), ["process/mod.rs", "record/guard.rs"]);
    let taken = process.matches("DebugPrivilege::enable()").count();
    let in_open = function(&process, "pub(crate) fn try_open(").matches("DebugPrivilege::enable()").count();
    assert_eq!((taken, in_open), (1, 1));

    // What the list asks of others: what agents say, and what protects a process.
    let refusal = code("refusal.rs");
    assert!(!refusal.contains("Privilege") && !refusal.contains("OpenProcess("), "refusal.rs");
    let agent = code("agent/mod.rs");
    for name in ["pub(crate) fn state(", "fn among(", "pub(crate) fn status(", "pub(crate) fn read_status("] {
        let body = function(&agent, name);
        for way in [".write(", "open", "remote", "Privilege"] {
            assert!(!body.contains(way), "{name} has {way}");
        }
    }
}

/// The files of the Windows half that have this in their code, by their paths in it.
fn files_with(text: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/inject/src/windows");
    let (mut folders, mut found) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).expect("below").to_string_lossy().into_owned();
            if name.ends_with(".rs") && code(&name).contains(text) {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// A file of the Windows half without its comments.
fn code(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/inject/src/windows").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The function that begins with `head`, to the brace in its own column.
fn function<'a>(code: &'a str, head: &str) -> &'a str {
    let at = code.find(head).unwrap_or_else(|| panic!("no {head}"));
    let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
    let end = format!("\n{}}}\n", &code[line..at]);
    let len = code[at..].find(&end).unwrap_or_else(|| panic!("{head} has no end"));
    &code[at..at + len]
}

/// Each place that begins with `prefix`, to the bracket that follows.
fn calls<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let from = |at: usize| {
        let len = code[at..].find(['(', ')', ';']).map_or(0, |len| len + 1);
        &code[at..at + len]
    };
    code.match_indices(prefix).map(|(at, _)| from(at)).collect()
}

/// The rights that a function names.
fn rights(code: &str) -> Vec<&str> {
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("PROCESS_")).collect()
}

/// An object with a name can be made by somebody else first, or opened by anybody. Whatever inject
/// and the agent share goes by handles.
#[test]
fn no_object_of_the_system_has_a_name() {
    let mut calls = 0;
    for folder in ["../cli/inject/src", "../agent/src"] {
        let mut files = Vec::new();
        rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
        assert!(files.len() > 10, "{folder}");
        for file in files {
            let text = std::fs::read_to_string(&file).expect("readable");
            for function in
                ["CreateEvent", "CreateFileMapping", "CreateJobObject", "CreateMutex", "CreateSemaphore"]
            {
                for arguments in arguments(&text, &format!("{function}W(")) {
                    calls += 1;
                    let last = arguments.trim_end().trim_end_matches(',').rsplit(',').next();
                    let last = last.map(str::trim).unwrap_or_default();
                    assert!(last.ends_with("null()"), "{}: {function}W(… {last})", file.display());
                }
                assert!(!text.contains(&format!("{function}A(")), "{}", file.display());
            }
            for function in ["CreateNamedPipe", "OpenEvent", "OpenFileMapping", "OpenMutex"] {
                assert!(!text.contains(function), "{}: {function}", file.display());
            }
        }
    }
    assert!(calls >= 4, "the search finds what is known to be there: {calls}");
}

fn rust_files(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("there") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The arguments of each call that begins with `head`, which ends in a bracket.
fn arguments<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let call = |(at, _): (usize, &str)| {
        let rest = &text[at + head.len()..];
        let mut depth = 1;
        let end = rest.find(|c| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            depth == 0
        });
        &rest[..end.unwrap_or(rest.len())]
    };
    text.match_indices(head).map(call).collect()
}
