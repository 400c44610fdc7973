//! Traces that a batch has read, by the size and the times of their files, so that one which did
//! not change is not read again: `_stk/files.json`, of a part of the traces `files.3-of-8.json`.
//!
//! Only that is taken from it. What the output is of, and whether that is what would be made now,
//! is compared as for a trace that is read: the output has the key of its conversion.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use stk_base::files::{Below, FileStamp, MayReplace, stamp};
use stk_output::formats;

/// Bytes of the file that are read and written at most: some 500 for each trace.
const MOST: u64 = 256 << 20;
/// Images of a trace that is kept, at most.
const MOST_IMAGES: usize = 1 << 12;
/// The names of the files.
const BEGIN: &str = "files";
const END: &str = ".json";
/// Number of this form of the file. Another one is not read.
const VERSION: u32 = 1;

/// By what the symbol files of an image are searched.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize, Debug)]
pub struct SymbolQuery {
    /// The image's recorded path.
    pub path: String,
    /// Name, GUID and age of its PDB, if it names one.
    pub pdb: Option<(String, [u8; 16], u32)>,
    /// TimeDateStamp and SizeOfImage, if its headers were recorded.
    pub image: Option<(u32, u32)>,
}

/// A trace that was read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct SeenTrace {
    /// Of its file, before it was read.
    pub stamp: FileStamp,
    /// UUID of its recording, and the digest of its content: 32 hex digits each.
    pub uuid: String,
    pub trace_id: String,
    /// Its images, each once.
    pub queries: Vec<SymbolQuery>,
}

/// The traces that earlier runs have read.
#[derive(Default)]
pub struct SeenTraces {
    /// What they search symbols by, each once.
    queries: Vec<SymbolQuery>,
    files: BTreeMap<String, Entry>,
    /// Files of parts of the traces, which are in these.
    of_parts: Vec<Below>,
}

/// A trace that was read, with the numbers of its images.
#[derive(Clone, Serialize, Deserialize)]
pub struct Entry {
    stamp: FileStamp,
    pub uuid: String,
    pub trace_id: String,
    queries: Vec<u32>,
}

/// `_stk/files.json`.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    queries: Vec<SymbolQuery>,
    files: BTreeMap<String, Entry>,
}

/// Numbers of queries, by their first appearance.
#[derive(Clone, Default)]
struct Numbers {
    known: HashMap<SymbolQuery, u32>,
    all: Vec<SymbolQuery>,
}

impl Numbers {
    fn of(&mut self, query: &SymbolQuery) -> u32 {
        if let Some(&number) = self.known.get(query) {
            return number;
        }
        let number = self.all.len() as u32;
        self.all.push(query.clone());
        self.known.insert(query.clone(), number);
        number
    }
}

/// The file in stk's own folder, and all of that kind: `part` of the traces, or all of them.
fn file_of(out: &Path, part: Option<&str>) -> io::Result<(Below, Vec<Below>)> {
    let own = Below::folder(out)?.join("_stk");
    let file = own.join(part.map_or_else(|| format!("{BEGIN}{END}"), |part| format!("{BEGIN}.{part}{END}")));
    let mut of_parts = Vec::new();
    if part.is_none() {
        let names = own.list()?.into_iter();
        let names = names.filter(|name| name.starts_with(&format!("{BEGIN}.")) && name.ends_with(END));
        of_parts.extend(names.map(|name| own.join(name)).filter(|at| at.name().ok() != file.name().ok()));
    }
    Ok((file, of_parts))
}

/// The name of a file here; `None` if it is no Unicode. Such files are read each time.
fn name(file: &Path) -> Option<String> {
    std::path::absolute(file).ok()?.into_os_string().into_string().ok()
}

impl SeenTraces {
    /// Those of a folder of outputs: of a part of the traces, or of all of them. None of a file
    /// that is not as stk writes it.
    ///
    /// # Errors
    ///
    /// That one is a link, or the error of the system.
    pub fn read(out: &Path, part: Option<&str>) -> io::Result<SeenTraces> {
        let (file, of_parts) = file_of(out, part)?;
        let mut seen = SeenTraces::default();
        for at in std::iter::once(&file).chain(&of_parts) {
            match at.read(MOST) {
                Ok(text) => seen.add(serde_json::from_slice(&text).ok()),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(SeenTraces { of_parts, ..seen })
    }

    fn add(&mut self, stored: Option<Stored>) {
        let Some(stored) = stored.filter(|stored| stored.version == VERSION) else { return };
        let (first, count) = (self.queries.len(), stored.queries.len());
        let (Ok(first), Ok(_)) = (u32::try_from(first), u32::try_from(first + count)) else { return };
        self.queries.extend(stored.queries);
        for (file, mut entry) in stored.files {
            if entry.queries.iter().all(|&at| (at as usize) < count) {
                entry.queries.iter_mut().for_each(|at| *at += first);
                self.files.insert(file, entry);
            }
        }
    }

    /// What is known of a file that did not change since it was read.
    pub fn of(&self, file: &Path) -> Option<&Entry> {
        let entry = self.files.get(&name(file)?)?;
        (stamp(file)? == entry.stamp).then_some(entry)
    }

    /// By what the symbols of a trace are searched.
    pub fn queries<'a>(&'a self, entry: &'a Entry) -> impl Iterator<Item = &'a SymbolQuery> {
        entry.queries.iter().map(|&at| &self.queries[at as usize])
    }

    /// Writes them with those that were read now. Their paths are not looked at: only the command
    /// line names files that are.
    pub fn save(&self, out: &Path, part: Option<&str>, now: &ReadNow) -> io::Result<()> {
        if now.files.is_empty() && self.of_parts.is_empty() {
            return Ok(());
        }
        let mut text = serde_json::to_string(&self.with(now))?;
        if text.len() as u64 >= MOST {
            text = serde_json::to_string(&SeenTraces::default().with(now))?;
        }
        if text.len() as u64 >= MOST {
            return Ok(());
        }
        let (at, _) = file_of(out, part)?;
        at.parent().make_folder()?;
        let mut file = formats::temporary(&at.parent())?;
        writeln!(file, "{text}")?;
        file.persist(&at, MayReplace::NoTrace)?;
        // A batch of all traces is alone in its folder.
        self.of_parts.iter().try_for_each(Below::remove_file)
    }

    fn with(&self, now: &ReadNow) -> Stored {
        let ReadNow { mut queries, mut files } = now.clone();
        let mut known: Vec<Option<u32>> = vec![None; self.queries.len()];
        for (file, entry) in self.files.iter().filter(|(file, _)| !now.files.contains_key(*file)) {
            let mut number = |&at: &u32| {
                let at = at as usize;
                *known[at].get_or_insert_with(|| queries.of(&self.queries[at]))
            };
            let numbers = entry.queries.iter().map(&mut number).collect();
            files.insert(file.clone(), Entry { queries: numbers, ..entry.clone() });
        }
        Stored { version: VERSION, queries: queries.all, files }
    }
}

/// The traces that a batch reads.
#[derive(Clone, Default)]
pub struct ReadNow {
    queries: Numbers,
    files: BTreeMap<String, Entry>,
}

impl ReadNow {
    pub fn add(&mut self, file: &Path, seen: &SeenTrace) {
        let Some(file) = name(file).filter(|_| seen.queries.len() <= MOST_IMAGES) else { return };
        let queries = seen.queries.iter().map(|query| self.queries.of(query)).collect();
        let (uuid, trace_id) = (seen.uuid.clone(), seen.trace_id.clone());
        self.files.insert(file, Entry { stamp: seen.stamp, uuid, trace_id, queries });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// These files as read now, with their images.
    fn read<const N: usize>(files: [(&Path, &[&str]); N]) -> ReadNow {
        let mut now = ReadNow::default();
        files.iter().for_each(|(file, images)| now.add(file, &seen(file, images)));
        now
    }

    fn seen(file: &Path, images: &[&str]) -> SeenTrace {
        let query = |path: &&str| SymbolQuery { path: (*path).to_owned(), pdb: None, image: Some((1, 2)) };
        SeenTrace {
            stamp: stamp(file).unwrap(),
            uuid: "1".repeat(32),
            trace_id: "2".repeat(32),
            queries: images.iter().map(query).collect(),
        }
    }

    #[test]
    fn files_that_did_not_change_are_known_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let [one, two, gone] = ["1.stk", "2.stk", "3.stk"].map(|name| {
            std::fs::write(file(name), name).unwrap();
            file(name)
        });
        let none = SeenTraces::read(folder.path(), None).unwrap();
        assert!(none.of(&one).is_none());
        none.save(folder.path(), None, &read([(&one, &["a", "b"]), (&gone, &["c"])])).unwrap();
        let first = SeenTraces::read(folder.path(), None).unwrap();
        std::fs::remove_file(&gone).unwrap();
        first.save(folder.path(), None, &read([(&two, &["b", "d"])])).unwrap();
        let both = SeenTraces::read(folder.path(), None).unwrap();
        let images = |file: &Path| -> Vec<&str> {
            both.queries(both.of(file).unwrap()).map(|query| query.path.as_str()).collect()
        };
        assert_eq!((images(&one), images(&two)), (vec!["a", "b"], vec!["b", "d"]));
        assert_eq!((both.queries.len(), both.files.len()), (4, 3), "each query once");
        std::fs::write(&one, "longer than before").unwrap();
        assert!(both.of(&one).is_none() && both.of(&two).is_some() && both.of(&gone).is_none());
    }

    #[test]
    fn what_parts_of_a_batch_have_read_is_known_to_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["1.stk", "2.stk"].map(|name| folder.path().join(name));
        for (number, file) in files.iter().enumerate() {
            std::fs::write(file, file.to_str().unwrap()).unwrap();
            let part = Some(["1-of-2", "2-of-2"][number]);
            let none = SeenTraces::read(folder.path(), part).unwrap();
            none.save(folder.path(), part, &read([(file, &[["a"], ["b"]][number])])).unwrap();
            assert_eq!(SeenTraces::read(folder.path(), part).unwrap().files.len(), 1);
        }
        for _ in 0..2 {
            let all = SeenTraces::read(folder.path(), None).unwrap();
            for (file, image) in files.iter().zip(["a", "b"]) {
                assert_eq!(all.queries(all.of(file).unwrap()).next().unwrap().path, image);
            }
            all.save(folder.path(), None, &ReadNow::default()).unwrap();
            let left: Vec<_> = std::fs::read_dir(folder.path().join("_stk")).unwrap().collect();
            assert_eq!(left.len(), 1, "one file of all");
        }
    }

    #[test]
    fn planted_files_are_no_traces_that_were_read() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("1.stk");
        std::fs::write(&trace, "1").unwrap();
        SeenTraces::default().save(folder.path(), None, &read([(&trace, &["a"])])).unwrap();
        let at = folder.path().join("_stk/files.json");
        let good = std::fs::read_to_string(&at).unwrap();
        let beyond = good.replace(r#""queries":[0]"#, r#""queries":[7]"#);
        let later = good.replace(r#""version":1"#, r#""version":2"#);
        assert!(beyond != good && later != good);
        for text in ["", "{}", "[]", "\0", &good[..good.len() / 2], &beyond, &later] {
            std::fs::write(&at, text).unwrap();
            assert!(SeenTraces::read(folder.path(), None).unwrap().of(&trace).is_none(), "{text}");
        }
        std::fs::write(&at, &good).unwrap();
        assert!(SeenTraces::read(folder.path(), None).unwrap().of(&trace).is_some());
    }
}
