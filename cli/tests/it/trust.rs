//! Which files a trace, or a folder that somebody else has filled, can make `stk` open: only plain
//! files of this machine. Which files an output replaces: no input and no trace.

use crate::support::kept;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use stk_symbols::pdb::PdbFile;
use stk_symbols::{Search, SymbolPath, SymbolStore, pdb_id};

/// Limit for the time of a search, far more than any here takes. A search that opens a pipe or a
/// device never ends.
const LONGEST: Duration = Duration::from_secs(600);

/// Identity of the kept busy.pdb.
fn busy() -> ([u8; 16], u32) {
    let data = std::fs::read(kept("busy.pdb")).unwrap();
    let identity = *PdbFile::open(&data).unwrap().identity();
    (identity.guid, identity.age)
}

fn id() -> String {
    let (guid, age) = busy();
    pdb_id(&guid, age)
}

/// Searches for busy's PDB under a name, for an image of this path.
fn find(store: SymbolStore, name: &str, image: &str) -> Search {
    let (name, image) = (name.to_owned(), image.to_owned());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (guid, age) = busy();
        let _ = sender.send(store.find_pdb(&name, &guid, age, &image));
    });
    receiver.recv_timeout(LONGEST).expect("the search waits for what it should not have opened")
}

/// The usual places of a trace in this folder.
fn usual(folder: &Path) -> SymbolStore {
    SymbolStore::with_defaults(SymbolPath::default(), [folder.join("a.stk").as_path()])
}

fn named(folder: &Path) -> SymbolStore {
    SymbolStore::new(SymbolPath::from(folder))
}

/// A folder of this name for busy.pdb's identity.
fn tier(store: &Path, name: &str) -> PathBuf {
    let folder = store.join(name).join(id());
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn path(search: &Search) -> Option<&Path> {
    search.found.as_ref().map(|found| found.path.as_path())
}

#[test]
fn a_pointer_is_followed_only_in_places_of_the_symbol_path() {
    let folder = tempfile::tempdir().unwrap();
    let target = kept("busy.pdb");
    let pointer = tier(folder.path(), "busy.pdb").join("file.ptr");
    std::fs::write(&pointer, format!("PATH:{}\r\n", target.display())).unwrap();
    let search = find(usual(folder.path()), "busy.pdb", "");
    assert_eq!(path(&search), None, "the trace's folder");
    let reported = &search.skipped;
    assert!(
        reported.len() == 1 && reported[0].contains("file.ptr") && reported[0].contains("-y"),
        "{reported:?}"
    );
    let search = find(named(folder.path()), "busy.pdb", "");
    assert_eq!(
        path(&search).map(|found| found.canonicalize().unwrap()),
        Some(target.canonicalize().unwrap()),
        "the user named the folder"
    );
}

#[test]
fn pointers_to_shares_devices_and_relative_paths_are_refused_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(kept("busy.pdb"), folder.path().join("other.pdb")).unwrap();
    let pointer = tier(folder.path(), "busy.pdb").join("file.ptr");
    for target in
        [r"\\evil.invalid\share\x.pdb", "//evil.invalid/share/x.pdb", r"\\.\C:", r"\\?\C:\x", "other.pdb"]
    {
        std::fs::write(&pointer, format!("PATH:{target}")).unwrap();
        let search = find(named(folder.path()), "busy.pdb", "");
        assert_eq!(path(&search), None, "{target}");
        assert!(
            search.skipped.iter().any(|reported| reported.contains("file.ptr")),
            "{target}: {:?}",
            search.skipped
        );
    }
}

#[test]
fn the_first_tier_never_leads_out_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let outside = tier(folder.path(), "..x.pdb");
    std::fs::copy(kept("busy.pdb"), outside.join("..x.pdb")).unwrap();
    assert_eq!(path(&find(named(&store), "..x.pdb", "")), None);
    assert!(path(&find(named(folder.path()), "..x.pdb", "")).is_some(), "in the folder itself");
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::symlink;
    use stk_profile::profile::{BuildOptions, build};
    use stk_profile::trace::TraceFile;

    fn pipe(path: &Path) {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn pipes_and_devices_in_a_folder_are_neither_waited_for_nor_read() {
        for make in [pipe as fn(&Path), |path| symlink("/dev/zero", path).unwrap()] {
            for stored in [false, true] {
                for file in ["busy.pdb", "file.ptr", "busy.pd_"] {
                    let folder = tempfile::tempdir().unwrap();
                    let place = if stored { tier(folder.path(), "busy.pdb") } else { folder.path().into() };
                    make(&place.join(file));
                    for store in [usual(folder.path()), named(folder.path())] {
                        assert_eq!(path(&find(store, "busy.pdb", "")), None, "{file}");
                    }
                }
            }
        }
    }

    #[test]
    fn devices_that_a_trace_names_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        for (name, image) in [
            ("zero", "/dev/x.dll"),
            ("zero", r"Z:\dev\x.dll"),
            ("random", "/dev/x.dll"),
            ("kmsg", "/proc/x.dll"),
            ("mem", "/proc/self/x.dll"),
        ] {
            let search = find(usual(folder.path()), name, image);
            assert_eq!(path(&search), None, "{image}");
            assert!(!search.skipped.is_empty() || !search.unreadable.is_empty(), "{image}: reported");
        }
        for image in ["/dev/zero", r"Z:\dev\zero"] {
            let (sender, receiver) = mpsc::channel();
            let store = usual(folder.path());
            std::thread::spawn(move || sender.send(store.find_image(image, 1, 2).found.is_some()));
            assert!(!receiver.recv_timeout(LONGEST).expect("the device was read"), "{image}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_link_that_leads_off_this_machines_storage_is_skipped_and_reported() {
        let folder = tempfile::tempdir().unwrap();
        symlink("/proc/self/mem", folder.path().join("busy.pdb")).unwrap();
        let search = find(usual(folder.path()), "busy.pdb", "");
        assert!(
            search.skipped.iter().any(|reported| reported.contains("proc") && reported.contains("-y")),
            "{search:?}"
        );
        assert!(search.unreadable.is_empty(), "{search:?}");
    }

    /// A kept trace of several pages, alone in a folder.
    fn trace() -> (tempfile::TempDir, PathBuf, u64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("busy.stk");
        let len = std::fs::copy(kept("busy.stk"), &path).unwrap();
        assert!(len > 6 * 4096, "{len}");
        (folder, path, len)
    }

    fn shorten(path: &Path, len: u64) {
        std::fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    #[test]
    fn a_trace_that_is_shortened_after_it_was_opened_is_damaged() {
        let (_folder, path, len) = trace();
        let file = TraceFile::open(&path).unwrap();
        shorten(&path, len / 3);
        let trace = file.read().unwrap();
        assert!(trace.lost_blocks);
        assert!(trace.damage.iter().any(|damage| damage.contains("shortened")), "{:?}", trace.damage);
    }

    #[test]
    fn a_trace_shortened_between_its_passes_gives_the_rest_and_is_reported() {
        let (_folder, path, len) = trace();
        let whole = TraceFile::open(&path).unwrap();
        let whole = whole.read().unwrap();
        let images = stk_profile::image::load_images(&whole, &stk_profile::image::ImageSearch::NOWHERE);
        let (profile, _) = build(&whole, &images, &BuildOptions::default(), &Default::default()).unwrap();
        assert_eq!(profile.losses.damaged_blocks, Vec::<String>::new());
        shorten(&path, len / 2);
        let (profile, _) = build(&whole, &images, &BuildOptions::default(), &Default::default()).unwrap();
        let damage = &profile.losses.damaged_blocks;
        assert!(damage.iter().any(|damage| damage.contains("shortened")), "{damage:?}");
        shorten(&path, 0);
        assert!(build(&whole, &images, &BuildOptions::default(), &Default::default()).is_ok());
    }
}

/// Command lines with an output, and the input or trace that it must not replace.
mod outputs {
    use crate::support::{kept, stk};
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::{Path, PathBuf};

    /// Has other files replaced.
    const FORCE: &str = "--force";

    /// A command line of which `OUT` is the output, and what it must not replace.
    struct Case {
        line: Vec<&'static str>,
        /// The option that names the output.
        option: &'static str,
        victim: &'static str,
    }

    fn case(line: &'static str, option: &'static str, victim: &'static str) -> Case {
        Case { line: line.split(' ').collect(), option, victim }
    }

    /// Every command with an output. `a.stk`, `b.stk` and `night.tar.zst` are traces, and
    /// `torn.stk` is a file that no longer begins as a trace.
    fn cases() -> Vec<Case> {
        let mut cases = vec![
            case("convert a.stk torn.stk --to folded -o OUT --force", "--output", "a.stk"),
            case("convert a.stk --to folded -y syms -o OUT --force", "--output", "syms/busy.pdb"),
            case("convert a.stk --to folded -y s.tar.zst -o OUT --force", "--output", "s.tar.zst"),
            case("convert torn.stk --to folded -o OUT --force", "--output", "torn.stk"),
            case("merge a.stk b.stk --to chrome -o OUT --force", "--output", "b.stk"),
            case("merge a.stk torn.stk --to chrome -o OUT --force", "--output", "torn.stk"),
            case("report a.stk b.stk -o OUT --force", "--output", "b.stk"),
            case("report a.stk torn.stk -o OUT --force", "--output", "torn.stk"),
            case("diff a.stk b.stk --format json -o OUT --force", "--output", "b.stk"),
            case("diff a.stk b.stk --flamegraph OUT --force", "--flamegraph", "a.stk"),
            case("diff a.stk torn.stk --format json -o OUT --force", "--output", "torn.stk"),
            case("redact a.stk -o OUT --force", "--output", "a.stk"),
            case("redact torn.stk -o OUT --force", "--output", "torn.stk"),
            case("batch a.stk b.stk --to folded -o out --log OUT --force", "--log", "b.stk"),
            case("batch torn.stk --to folded -o out --log OUT --force", "--log", "torn.stk"),
            case("batch night.txt --to folded -o out --log OUT --force", "--log", "night.txt"),
            case("batch night.txt --to folded -o out --log OUT --force", "--log", "a.stk"),
            case("batch a.stk --to folded -o OUT --force", "--output", "a.stk"),
            case("symbols bundle a.stk -y syms -o OUT", "--output", "a.stk"),
            case("symbols bundle night.tar.zst -y syms -o OUT", "--output", "night.tar.zst"),
            case("symbols bundle a.stk -y s.tar.zst -o OUT", "--output", "s.tar.zst"),
            case("man OUT", "DIR", "a.stk"),
        ];
        for format in ["speedscope", "chrome", "firefox", "perfetto", "pprof", "flamegraph"] {
            for victim in ["a.stk", "b.stk"] {
                let line = vec!["convert", "a.stk", "--to", format, "-o", "OUT", FORCE];
                cases.push(Case { line, option: "--output", victim });
            }
        }
        if cfg!(feature = "parquet") {
            for victim in ["lab.parquet/_stk.json", "lab.parquet/frames/0000.parquet"] {
                let line = "diff lab.parquet lab.parquet --format json -o OUT --force";
                cases.push(case(line, "--output", victim));
                cases.push(case("diff lab.parquet a.stk --flamegraph OUT --force", "--flamegraph", victim));
            }
            cases.push(case("convert a.stk --to parquet -o OUT --force", "--output", "a.stk"));
            cases.push(case("convert a.stk --to parquet --denormalized -o OUT --force", "--output", "a.stk"));
            cases.push(case("batch a.stk --to parquet -o OUT --force", "--output", "a.stk"));
        }
        // A trace that is no input.
        for line in [
            "convert a.stk --to folded -o OUT --force",
            "merge a.stk --to chrome -o OUT --force",
            "report a.stk -o OUT --force",
            "diff a.stk b.stk --format json -o OUT --force",
            "diff a.stk b.stk --flamegraph OUT --force",
            "redact a.stk -o OUT --force",
            "batch a.stk --to folded -o out --log OUT --force",
            "batch a.stk --to folded -o OUT --force",
            "symbols bundle a.stk -y syms -o OUT",
            "man OUT",
        ] {
            let option = ["--log", "--flamegraph"].into_iter().find(|option| line.contains(option));
            cases.push(case(line, option.unwrap_or("--output"), "night.tar.zst"));
        }
        cases
    }

    /// A folder with the inputs.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for made in ["syms", "x"] {
            std::fs::create_dir(at(made)).unwrap();
        }
        let trace = std::fs::read(kept("busy.stk")).unwrap();
        for name in ["a.stk", "b.stk", "night.tar.zst"] {
            std::fs::write(at(name), &trace).unwrap();
        }
        std::fs::write(at("torn.stk"), &trace[8..]).unwrap();
        std::fs::copy(kept("busy.pdb"), at("syms/busy.pdb")).unwrap();
        std::fs::write(at("night.txt"), "a.stk\nb.stk\n").unwrap();
        let made = stk(folder.path(), &["symbols", "bundle", "a.stk", "-y", "syms", "-o", "s.tar.zst"]);
        assert!(made.status.success(), "{made:?}");
        if cfg!(feature = "parquet") {
            let line = ["convert", "a.stk", "--to", "parquet", "-o", "lab.parquet"];
            assert!(stk(folder.path(), &line).status.success());
        }
        folder
    }

    /// All files below a folder but those of the cache, and where links lead.
    fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap() {
                let (kind, path) = entry.map(|entry| (entry.file_type().unwrap(), entry.path())).unwrap();
                match () {
                    () if kind.is_symlink() => {
                        let goal = std::fs::read_link(&path).unwrap();
                        drop(found.insert(path, goal.as_os_str().as_encoded_bytes().to_vec()));
                    }
                    () if kind.is_dir() && path != folder.join("cache") => folders.push(path),
                    () if kind.is_file() => drop(found.insert(path.clone(), std::fs::read(path).unwrap())),
                    () => {}
                }
            }
        }
        found
    }

    /// Other names of a file.
    fn names(folder: &Path, victim: &str) -> Vec<String> {
        let mut names = vec![victim.to_owned(), format!("./x/../{victim}")];
        // A bundle that is one file is known by its name.
        let ending = if victim.ends_with(".tar.zst") { ".tar.zst" } else { "" };
        let mut link = |name: String, made: std::io::Result<()>| {
            made.unwrap();
            names.push(name);
        };
        let hard = format!("hard{ending}");
        link(hard.clone(), std::fs::hard_link(folder.join(victim), folder.join(hard)));
        #[cfg(unix)]
        {
            let soft = format!("soft{ending}");
            link(soft.clone(), std::os::unix::fs::symlink(victim, folder.join(&soft)));
            let twice = format!("twice{ending}");
            link(twice.clone(), std::os::unix::fs::symlink(&soft, folder.join(twice)));
        }
        names
    }

    #[test]
    fn no_output_of_any_command_replaces_an_input_or_a_trace() {
        let folder = folder();
        let untouched = contents(folder.path());
        for Case { line, victim, .. } in cases() {
            let made = names(folder.path(), victim);
            let before = contents(folder.path());
            for name in &made {
                for force in [true, false] {
                    let line: Vec<&str> = line
                        .iter()
                        .filter(|word| force || **word != FORCE)
                        .map(|word| if *word == "OUT" { name } else { *word })
                        .collect();
                    let output = stk(folder.path(), &line);
                    let printed = String::from_utf8_lossy(&output.stderr);
                    // Without --force, a PDB that is found later is another file that is there.
                    if force || !printed.contains("is there already") {
                        assert_eq!(output.status.code(), Some(2), "{line:?}: {printed}");
                        let why = printed.contains("is an input of this command, which no output replaces")
                            || printed.contains("is a trace, which no output replaces");
                        assert!(why && printed.contains("name another output"), "{line:?}: {printed}");
                    }
                    // A folder of outputs may have been made.
                    let mut after = contents(folder.path());
                    after.retain(|path, _| !path.starts_with(folder.path().join("out")));
                    assert!(after == before, "{line:?} changed a file");
                    let _ = std::fs::remove_dir_all(folder.path().join("out"));
                }
            }
            for name in &made[2..] {
                std::fs::remove_file(folder.path().join(name)).unwrap();
            }
        }
        assert!(contents(folder.path()) == untouched);
    }

    /// The options of a command that name outputs, by its help.
    #[test]
    fn every_option_for_an_output_is_walked() {
        let folder = tempfile::tempdir().unwrap();
        let help = |command: &[&str]| {
            let output = stk(folder.path(), &[command, &["--help"]].concat());
            String::from_utf8(output.stdout).unwrap()
        };
        let commands = |text: &str| -> Vec<String> {
            let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
            let names = lines.take_while(|line| line.starts_with("  "));
            let names = names.filter(|line| !line.starts_with("   "));
            names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
        };
        let mut all: Vec<Vec<String>> = commands(&help(&[])).into_iter().map(|name| vec![name]).collect();
        let of_symbols = commands(&help(&["symbols"])).into_iter();
        all.extend(of_symbols.map(|name| vec!["symbols".to_owned(), name]));
        assert!(all.len() > 20, "{all:?}");
        let walked: BTreeSet<(String, &str)> = cases()
            .iter()
            .map(|case| {
                let words = if case.line[0] == "symbols" { 2 } else { 1 };
                (case.line[..words].join(" "), case.option)
            })
            .collect();
        let mut found = 0;
        for command in all.iter().filter(|command| command[0] != "help") {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let text = help(&words);
            for option in ["--output", "--log", "--flamegraph"] {
                let has = text.lines().any(|line| {
                    let line = line.trim_start();
                    line.split([' ', ',']).any(|word| word == option) && line.starts_with('-')
                });
                if has {
                    found += 1;
                    assert!(walked.contains(&(words.join(" "), option)), "{words:?} {option}");
                }
            }
        }
        assert_eq!(found, 9, "-o of 7 commands, --log, --flamegraph");
    }

    #[test]
    fn a_bundle_is_added_to_the_folder_where_its_symbols_are() {
        let folder = folder();
        let bundle = |out| stk(folder.path(), &["symbols", "bundle", "a.stk", "-y", "syms", "-o", out]);
        assert!(bundle("store").status.success());
        let before = contents(folder.path());
        let again = stk(folder.path(), &["symbols", "bundle", "a.stk", "-y", "store", "-o", "store"]);
        assert!(again.status.success(), "{again:?}");
        assert!(contents(folder.path()) == before);
    }
}
