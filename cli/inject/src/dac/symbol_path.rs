//! Finds where a runtime's data access library may lie on the debuggers' symbol path.
//!
//! Gets the path's text and the runtime's data on the library ([`runtime`](super::runtime)), and
//! returns files to try. It uses only folders of this machine. inject has no network client, so it
//! skips servers, and also network shares, which are servers too.

use crate::dac::runtime::Runtime;
use std::path::PathBuf;
use stk_schema::symbol_path::{PathElement, elements};

/// A folder to look into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SymbolDir {
    /// The folder, as it was written.
    pub folder: PathBuf,
    /// Whether the library may lie directly in it: a plain folder, not a store.
    pub flat: bool,
    /// Whether the user named it on the command line.
    pub named: bool,
}

/// The folders of a symbol path.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SymbolPath {
    /// Folders of this machine, in order.
    pub places: Vec<SymbolDir>,
    /// How many servers, shares and unnamed default stores are left out.
    pub left_out: usize,
}

/// A file to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub path: PathBuf,
    /// Whether it lies under an index. Otherwise only its name indicates that it is the right one.
    pub indexed: bool,
    /// Whether the user named the folder on the command line.
    pub named: bool,
}

impl SymbolPath {
    /// Adds the elements of a path. `named`: the user gave it on the command line.
    pub(crate) fn add(&mut self, text: &str, named: bool) {
        for element in elements(text) {
            match element {
                PathElement::Folder(folder) => self.add_place(folder, true, named),
                PathElement::Cache(store) => self.add_place(store, false, named),
                PathElement::Server { stores, url } => {
                    stores.into_iter().for_each(|store| self.add_place(store, false, named));
                    self.left_out += usize::from(url.is_some());
                }
            }
        }
    }

    fn add_place(&mut self, folder: &str, flat: bool, named: bool) {
        if folder.is_empty() || is_elsewhere(folder) {
            self.left_out += 1;
            return;
        }
        self.places.push(SymbolDir { folder: PathBuf::from(folder), flat, named });
    }

    /// Files to try for the library of `runtime`, likeliest first in each place: directly in a
    /// plain folder, and in folders and stores under the library's names and both indices, with one
    /// or two tiers (`name\index\name`, `na\name\index\name`).
    pub(crate) fn candidates(&self, runtime: &Runtime) -> Vec<Candidate> {
        let short = runtime.library_name();
        let long = runtime.long_name();
        let names = || [Some(short), long.as_deref()].into_iter().flatten();
        let mut found = Vec::new();
        for SymbolDir { folder, flat, named } in &self.places {
            let mut add = |path, indexed| found.push(Candidate { path, indexed, named: *named });
            if *flat {
                names().for_each(|name| add(folder.join(name), false));
            }
            for index in [runtime.index, runtime.library].into_iter().flatten() {
                for name in names() {
                    let file = PathBuf::from(name).join(index.to_string()).join(name);
                    add(folder.join(&file), true);
                    add(folder.join(&name[..2]).join(file), true);
                }
            }
        }
        found
    }

    /// The end of the sentence "there is no X beside the runtime": what was searched, where, and
    /// what would help.
    pub(crate) fn not_found(&self, runtime: &Runtime) -> String {
        let name = runtime.long_name().unwrap_or_else(|| runtime.library_name().to_owned());
        let index = runtime.index.map(|index| format!(" (index {index})")).unwrap_or_default();
        let left_out = match self.left_out {
            0 => String::new(),
            1 => "; inject asks no server or share".to_owned(),
            n => format!("; inject asks no server or share ({n} left out)"),
        };
        if self.places.is_empty() {
            return format!("; {name}{index} can be put into a folder for --symbol-path{left_out}");
        }
        let folders: Vec<String> =
            self.places.iter().map(|place| place.folder.display().to_string()).collect();
        format!("; no {name}{index} in {}{left_out}", folders.join("; "))
    }
}

/// Whether a folder is not on this machine but an address or a share.
fn is_elsewhere(text: &str) -> bool {
    let lower = text.to_ascii_lowercase().replace('/', "\\");
    if let Some(rest) = lower.strip_prefix(r"\\?\").or_else(|| lower.strip_prefix(r"\\.\")) {
        return rest.starts_with(r"unc\");
    }
    // One letter before the colon is a drive.
    lower.starts_with(r"\\") || lower.split_once(r":\\").is_some_and(|(scheme, _)| scheme.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dac::runtime::{FileVersion, Index};
    use std::path::Path;
    use stk_schema::event::RuntimeKind;

    fn parsed(text: &str) -> SymbolPath {
        let mut path = SymbolPath::default();
        path.add(text, true);
        path
    }

    fn places(text: &str) -> Vec<(String, bool)> {
        let places = parsed(text).places;
        places.into_iter().map(|place| (place.folder.to_string_lossy().into_owned(), place.flat)).collect()
    }

    /// CoreCLR 3.1.2.
    fn runtime() -> Runtime {
        Runtime {
            machine: 0x8664,
            kind: RuntimeKind::Core,
            index: Some(Index { time_date_stamp: 0x5e21_1dac, size_of_image: 0x56_b000 }),
            version: Some(FileVersion { parts: [4, 700, 20, 6602], flavor: "" }),
            library: Some(Index { time_date_stamp: 0x5e21_1c7f, size_of_image: 0x13_8000 }),
        }
    }

    #[test]
    fn folders_and_local_stores_are_taken_servers_are_not() {
        let text = r"C:\mine; cache*c:\c ;SRV*C:\s*D:\t*https://example.org/symbols/;symsrv*symsrv.dll*e:\u*http://h;";
        let expected =
            [(r"C:\mine", true), (r"c:\c", false), (r"C:\s", false), (r"D:\t", false), (r"e:\u", false)];
        assert_eq!(places(text), expected.map(|(folder, flat)| (folder.to_owned(), flat)));
        assert_eq!(parsed(text).left_out, 2);
        assert_eq!(places("srv;cache"), [("cache".to_owned(), true)], "without a star");
    }

    #[test]
    fn addresses_shares_and_unnamed_stores_are_left_out() {
        for text in [
            "https://example.org/symbols",
            "HTTP://h",
            r"\\server\symbols",
            "//server/symbols",
            r"\\?\UNC\server\symbols",
            r"srv*\\server\symbols",
            "srv*",
            "cache*",
            "srv**https://h",
        ] {
            assert_eq!(places(text), [], "{text}");
            assert_ne!(parsed(text).left_out, 0, "{text}");
        }
        assert_eq!(parsed("; ;;"), SymbolPath::default());
        assert_eq!(places(r"\\?\C:\symbols;C:\\symbols").len(), 2);
    }

    #[test]
    fn both_names_and_both_indices_are_looked_for() {
        let (short, long) = ("mscordaccore.dll", "mscordaccore_amd64_amd64_4.700.20.6602.dll");
        let candidates = parsed("f;srv*s").candidates(&runtime());
        let has = |path: &[&str]| {
            let path: PathBuf = path.iter().collect();
            candidates.iter().find(|candidate| candidate.path == path)
        };
        for name in [short, long] {
            assert!(!has(&["f", name]).expect("flat").indexed);
            assert!(has(&["s", name]).is_none(), "a store is not flat");
            for place in ["f", "s"] {
                for index in ["5E211DAC56b000", "5E211C7F138000"] {
                    assert!(has(&[place, name, index, name]).expect("one tier").indexed);
                    assert!(has(&[place, "ms", name, index, name]).expect("two tiers").indexed);
                }
            }
        }
        assert_eq!(candidates.len(), 2 + 2 * 2 * 2 * 2);
        assert!(candidates.iter().all(|candidate| candidate.named));
    }

    #[test]
    fn unknown_names_and_indices_give_no_candidates() {
        let unknown = Runtime { index: None, version: None, library: None, ..runtime() };
        let candidates = parsed("f;srv*s").candidates(&unknown);
        let paths: Vec<&Path> = candidates.iter().map(|candidate| &*candidate.path).collect();
        assert_eq!(paths, [Path::new("f").join("mscordaccore.dll")]);
        assert_eq!(parsed("f").not_found(&unknown), "; no mscordaccore.dll in f");
    }

    #[test]
    fn folders_of_the_environment_do_not_count_as_named_by_the_user() {
        let mut path = parsed("a");
        path.add("b", false);
        assert_eq!(path.places.iter().map(|place| place.named).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn the_message_names_the_places_searched_and_the_file_to_fetch() {
        let wanted = "mscordaccore_amd64_amd64_4.700.20.6602.dll (index 5E211DAC56b000)";
        assert_eq!(
            SymbolPath::default().not_found(&runtime()),
            format!("; {wanted} can be put into a folder for --symbol-path")
        );
        assert_eq!(
            parsed(r"C:\a;srv*C:\b*https://h").not_found(&runtime()),
            format!(r"; no {wanted} in C:\a; C:\b; inject asks no server or share")
        );
    }
}
