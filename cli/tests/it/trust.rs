//! Which files a trace, or a folder that somebody else has filled, can make `stk` open: only plain
//! files of this machine.

use crate::support::kept;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use stk::symbols::pdb::PdbFile;
use stk::symbols::{Search, SymbolPath, SymbolStore, pdb_id};

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
    let told = &search.skipped;
    assert!(told.len() == 1 && told[0].contains("file.ptr") && told[0].contains("-y"), "{told:?}");
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
            search.skipped.iter().any(|told| told.contains("file.ptr")),
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
    use stk::profile::{BuildOptions, build};
    use stk::trace::TraceFile;

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
            assert!(!search.skipped.is_empty() || !search.unreadable.is_empty(), "{image}: told");
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
        assert!(search.skipped.iter().any(|told| told.contains("proc") && told.contains("-y")), "{search:?}");
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
        let images = stk::image::load_images(&whole, &stk::image::ImageSearch::NOWHERE);
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
