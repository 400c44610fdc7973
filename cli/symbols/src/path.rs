//! Where symbols are searched: a symbol path in the debuggers' syntax.

use std::path::{Path, PathBuf};
use stk_schema::symbol_path::{self, elements};

/// A parsed symbol path: the places to search, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SymbolPath {
    pub elements: Vec<PathElement>,
}

/// One element of a symbol path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathElement {
    /// A folder, flat or a symbol store, or a bundle (a `.tar.zst` file).
    Folder(PathBuf),
    /// `srv*store*…*source`: a file found in the source, or in a later store, is copied to all
    /// stores before it.
    Server {
        /// Stores, nearest first. [`Store::Default`] is the cache folder of `stk`.
        stores: Vec<Store>,
        /// The last part, if it is a server's address.
        url: Option<String>,
    },
    /// `cache*dir`: files found by the elements behind it are copied to this store.
    Cache(Store),
}

/// A folder that holds symbol files by identity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Store {
    /// The default store (`srv**url`, `cache*`).
    Default,
    Folder(PathBuf),
}

impl Store {
    fn folder(&self) -> Option<&Path> {
        match self {
            Store::Folder(folder) => Some(folder),
            Store::Default => None,
        }
    }
}

impl SymbolPath {
    /// Parses a symbol path. Empty elements are skipped. Every text is valid: whatever is not
    /// another kind of element is a folder.
    pub fn parse(text: &str) -> SymbolPath {
        SymbolPath { elements: elements(text).map(PathElement::from).collect() }
    }

    /// Adds the elements of another path behind this one's.
    pub fn extend(&mut self, other: SymbolPath) {
        self.elements.extend(other.elements);
    }

    /// All folders in the path, in order. Some may be bundles.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.elements.iter().flat_map(|element| {
            let (one, stores): (Option<&Path>, &[Store]) = match element {
                PathElement::Folder(folder) => (Some(folder), &[]),
                PathElement::Cache(store) => (None, std::slice::from_ref(store)),
                PathElement::Server { stores, .. } => (None, stores),
            };
            one.into_iter().chain(stores.iter().filter_map(Store::folder))
        })
    }

    /// Addresses of all servers in the path.
    pub fn urls(&self) -> impl Iterator<Item = &str> {
        self.elements.iter().filter_map(|element| match element {
            PathElement::Server { url, .. } => url.as_deref(),
            _ => None,
        })
    }
}

impl From<&Path> for SymbolPath {
    /// A path of one folder.
    fn from(folder: &Path) -> SymbolPath {
        SymbolPath { elements: vec![PathElement::Folder(folder.to_path_buf())] }
    }
}

impl From<symbol_path::PathElement<'_>> for PathElement {
    fn from(element: symbol_path::PathElement<'_>) -> PathElement {
        match element {
            symbol_path::PathElement::Folder(folder) => PathElement::Folder(PathBuf::from(folder)),
            symbol_path::PathElement::Cache(store) => PathElement::Cache(Store::from(store)),
            symbol_path::PathElement::Server { stores, url } => {
                let mut stores: Vec<Store> = stores.into_iter().map(Store::from).collect();
                if stores.is_empty() {
                    // Files from a server are always stored somewhere.
                    stores.push(Store::Default);
                }
                PathElement::Server { stores, url: url.map(str::to_owned) }
            }
        }
    }
}

impl From<&str> for Store {
    fn from(text: &str) -> Store {
        if text.is_empty() { Store::Default } else { Store::Folder(PathBuf::from(text)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> Store {
        Store::Folder(PathBuf::from(name))
    }

    #[test]
    fn an_empty_store_is_the_default_one() {
        let url = Some("http://localhost:1".to_owned());
        for text in
            ["srv*http://localhost:1", "SRV**http://localhost:1", "symsrv*symsrv.dll*http://localhost:1"]
        {
            let expected = PathElement::Server { stores: vec![Store::Default], url: url.clone() };
            assert_eq!(SymbolPath::parse(text).elements, [expected], "{text}");
        }
        assert_eq!(SymbolPath::parse("cache*").elements, [PathElement::Cache(Store::Default)]);
    }

    #[test]
    fn a_store_without_a_server_is_a_folder_of_identities() {
        let expected = PathElement::Server { stores: vec![folder("/syms")], url: None };
        assert_eq!(SymbolPath::parse("srv*/syms").elements, [expected]);
    }
}
