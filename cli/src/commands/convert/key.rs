//! What a conversion depends on: the trace's content, the options, the version of stk, and the
//! symbol files that are found for its modules, or are missing.

use super::super::profile_args::SymbolArgs;
use super::ConvertArgs;
use std::path::Path;
use stk_base::map::MappedFile;
use stk_output::formats::Format;
use stk_profile::trace::{Content, Trace};
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

    /// The key of a trace's conversion. `path` is that of its file.
    pub(in super::super) fn of(&self, trace: &Trace<'_>, path: &Path, content: &Content) -> String {
        let mut hash = Xxh3::new();
        hash.update(self.options.as_bytes());
        hash.update(&content.digest.0);
        let store = self.symbols.store(path);
        for record in &trace.timeline.images {
            let image = &record.image;
            let mut add = |search: Option<Search>| symbol_file(&mut hash, search);
            let pdb = image.code_view.map(|(guid, age)| {
                let found = store.find_pdb(&image.pdb_name, &guid, age, &image.path);
                if found.found.is_some() {
                    found
                } else {
                    portable(&store, &image.pdb_name, &guid, &image.path)
                }
            });
            add(pdb);
            let of_image = !image.code_id.is_empty();
            add(of_image.then(|| store.find_image(&image.path, image.time_date_stamp, image.size)));
        }
        format!("{:032x}", hash.digest128())
    }
}

fn portable(store: &SymbolStore, name: &str, guid: &[u8; 16], path: &str) -> Search {
    store.find_portable_pdb(name, guid, path)
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
