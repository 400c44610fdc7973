//! The symbol files of one module: its PDB, or an image with symbols of its own, or an index that
//! an earlier run made of its PDB.

use crate::dwarf::image_index;
use crate::identity::Identity;
use crate::index::Origin;
use crate::reason::Reason;
use crate::server::OnBytes;
use crate::store::{FoundFile, Search, SymbolStore};
use crate::symbolizer::cached_index;
use crate::trust::places::safe_file_name;
use std::path::PathBuf;
use stk_base::model::{Image, file_name};

/// What a search for the symbols of a module found.
pub struct SymbolFiles {
    /// The search for its PDB; `None` if the image names none.
    pub pdb: Option<Search>,
    /// The image, if there is no PDB and the image has symbols of its own.
    pub image: Option<(FoundFile, Origin)>,
    /// The index of its PDB in the symbol cache, if neither was found.
    pub index: Option<PathBuf>,
}

/// Searches for a module's PDB, then for an image with symbols of its own.
///
/// `on_bytes` hears of what a server sends.
pub fn symbol_files(image: &Image, store: &SymbolStore, on_bytes: OnBytes<'_>) -> SymbolFiles {
    let pdb = image.code_view.map(|(guid, age)| {
        store.find(file_name(&image.pdb_name), Identity::Pdb { guid, age }, &image.path, on_bytes)
    });
    if !image.is_identified() || pdb.as_ref().is_some_and(|search| search.found.is_some()) {
        return SymbolFiles { pdb, image: None, index: None };
    }
    let own = store.find(file_name(&image.path), identity_of(image), &image.path, on_bytes).found;
    let own = own.and_then(|found| match image_index(&found.file) {
        Ok(Some(index)) if index.header().origin != Origin::Exports => Some((found, index.header().origin)),
        _ => None,
    });
    let code_view = image.code_view.filter(|_| own.is_none());
    let index = code_view.and_then(|(guid, age)| cached_index(store, file_name(&image.pdb_name), &guid, age));
    SymbolFiles { pdb, image: own, index: index.map(|(path, _)| path) }
}

fn identity_of(image: &Image) -> Identity {
    Identity::Image { time_date_stamp: image.time_date_stamp, size_of_image: image.size }
}

impl SymbolFiles {
    /// The file with the symbols, and the kind of symbols.
    pub fn found(&self) -> Option<(&FoundFile, Origin)> {
        let pdb = self.pdb.as_ref().and_then(|search| search.found.as_ref());
        pdb.map(|found| (found, Origin::Pdb)).or(self.image.as_ref().map(|(found, origin)| (found, *origin)))
    }

    /// Whether the PDB is missing because a server failed.
    pub fn server_failed(&self) -> bool {
        self.pdb.as_ref().is_some_and(|search| search.found.is_none() && search.server_failed)
    }

    /// Why there are none, and what to do.
    pub fn why_not(&self, image: &Image) -> String {
        match (&self.pdb, image.code_view) {
            (Some(search), Some((guid, age))) => {
                search.reason(&image.pdb_name, Identity::Pdb { guid, age }).to_string()
            }
            _ if !image.is_identified() => Reason::NoIdentity.to_string(),
            _ => Reason::no_code_view(&image.path).to_string(),
        }
    }

    /// The file with its name and identity in a two-tier store.
    pub fn into_file(self, image: &Image) -> Option<(String, Identity, FoundFile)> {
        let pdb = self.pdb.and_then(|search| search.found).zip(image.code_view);
        let (name, identity, found) = match (pdb, self.image) {
            (Some((found, (guid, age))), _) => (&image.pdb_name, Identity::Pdb { guid, age }, found),
            (None, Some((found, _))) => (&image.path, identity_of(image), found),
            (None, None) => return None,
        };
        safe_file_name(name).map(|name| (name.to_owned(), identity, found))
    }
}
