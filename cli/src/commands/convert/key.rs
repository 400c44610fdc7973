//! What a conversion depends on: the trace's content, the options, the version of stk, and the
//! symbol files that are found for its modules, or are missing.

use super::super::profile_args::SymbolArgs;
use super::ConvertArgs;
use crate::batch::SymbolQuery;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use stk_base::map::MappedFile;
use stk_base::model::Image;
use stk_output::formats::Format;
use stk_profile::trace::Trace;
use stk_schema::identity::ContentHash;
use stk_schema::tables;
use stk_symbols::{Search, SymbolStore};
use xxhash_rust::xxh3::Xxh3;

/// Bytes at each end of a symbol file that stand for all of it, beside its length and the time at
/// which it was last changed: two of one build can differ in between.
const ENDS: usize = 64 << 10;

/// Makes the keys of a batch's conversions.
pub(in super::super) struct Keys {
    /// Everything that all of them depend on.
    options: String,
    symbols: SymbolArgs,
}

impl Keys {
    pub(in super::super) fn new(args: &ConvertArgs, format: Format) -> Keys {
        // Without `..`: who adds an option has to say here whether outputs depend on it.
        let ConvertArgs {
            files: _,
            to: _,
            output: _,
            force: _,
            jobs: _,
            weight,
            perfetto_style,
            lines,
            merge_threads,
            all_threads,
            split,
            denormalized,
            profile,
        } = args;
        let symbols = profile.symbols.clone();
        let mut profile = profile.clone();
        // What counts is what is found there.
        profile.symbols.options = Default::default();
        let styles = (weight, perfetto_style, lines);
        let outputs = (styles, merge_threads, all_threads, split, denormalized);
        let version = (env!("CARGO_PKG_VERSION"), tables::VERSION, tables::WALK_VERSION);
        Keys { options: format!("{version:?} {} {outputs:?} {profile:?}", format.name()), symbols }
    }

    /// The key of a trace's conversion. `path` is that of its file; `queries` are of its images.
    pub(in super::super) fn of<'q>(
        &self,
        digest: &ContentHash,
        path: &Path,
        queries: impl Iterator<Item = &'q SymbolQuery>,
    ) -> String {
        let store = self.symbols.store(path);
        self.with(digest, queries.map(|query| symbol_files(&store, query)))
    }

    /// [`of`](Keys::of) a trace of a batch, which looks once for the files of an image.
    pub(super) fn of_finished<'q>(
        &self,
        digest: &ContentHash,
        path: &Path,
        queries: impl Iterator<Item = &'q SymbolQuery>,
        found: &FoundSymbols,
    ) -> String {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut folders = found.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = match folders.get(folder) {
            Some(found) => found.clone(),
            None => folders.entry(folder.to_owned()).or_default().clone(),
        };
        drop(folders);
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        let store = OnceCell::new();
        let digests = queries.map(|query| match found.get(query) {
            Some(digest) => *digest,
            None => {
                let digest = symbol_files(store.get_or_init(|| self.symbols.store(path)), query);
                found.insert(query.clone(), digest);
                digest
            }
        });
        self.with(digest, digests)
    }

    /// The key with what was found for each image.
    fn with(&self, digest: &ContentHash, symbols: impl Iterator<Item = u128>) -> String {
        let mut hash = Xxh3::new();
        hash.update(self.options.as_bytes());
        hash.update(&digest.0);
        symbols.for_each(|found| hash.update(&found.to_le_bytes()));
        format!("{:032x}", hash.digest128())
    }
}

/// Digests of the symbol files that were found for images, by the folder of the traces, which is
/// searched too.
#[derive(Default)]
pub(super) struct FoundSymbols(Mutex<HashMap<PathBuf, OfFolder>>);

type OfFolder = Arc<Mutex<HashMap<SymbolQuery, u128>>>;

/// By what the symbol files of a trace's images are searched, each image once.
pub(super) fn symbol_queries(trace: &Trace<'_>) -> Vec<SymbolQuery> {
    let mut known = HashSet::new();
    let of_image = |image: &Image| SymbolQuery {
        path: image.path.clone(),
        pdb: image.code_view.map(|(guid, age)| (image.pdb_name.clone(), guid, age)),
        image: (!image.code_id.is_empty()).then_some((image.time_date_stamp, image.size)),
    };
    let queries = trace.timeline.images.iter().map(|record| of_image(&record.image));
    queries.filter(|query| known.insert(query.clone())).collect()
}

/// The digest of the symbol files that are found for an image, or are missing.
fn symbol_files(store: &SymbolStore, query: &SymbolQuery) -> u128 {
    let mut hash = Xxh3::new();
    let pdb = query.pdb.as_ref().map(|(name, guid, age)| {
        let found = store.find_pdb(name, guid, *age, &query.path);
        if found.found.is_some() { found } else { store.find_portable_pdb(name, guid, &query.path) }
    });
    symbol_file(&mut hash, pdb);
    let image = query.image.map(|(stamp, size)| store.find_image(&query.path, stamp, size));
    symbol_file(&mut hash, image);
    hash.digest128()
}

/// Adds what was found, or that nothing was.
fn symbol_file(hash: &mut Xxh3, search: Option<Search>) {
    let Some(search) = search else { return hash.update(b"-") };
    // Why a name is missing is part of an output.
    hash.update(&(search.mismatched.len() as u64).to_le_bytes());
    hash.update(&(search.unreadable.len() as u64).to_le_bytes());
    match search.found {
        None => hash.update(b"none"),
        Some(found) => {
            let file: &MappedFile = &found.file;
            hash.update(&(file.len() as u64).to_le_bytes());
            let changed = std::fs::metadata(&found.path).and_then(|facts| facts.modified()).ok();
            hash.update(format!("{changed:?}").as_bytes());
            hash.update(&file[..file.len().min(ENDS)]);
            hash.update(&file[file.len().saturating_sub(ENDS)..]);
        }
    }
}
