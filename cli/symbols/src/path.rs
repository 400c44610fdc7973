//! The debuggers' symbol path syntax (Microsoft, "Symbol path for Windows debuggers").

use std::path::{Path, PathBuf};

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
        SymbolPath { elements: text.split(';').filter_map(|element| parse_element(element.trim())).collect() }
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

fn parse_element(element: &str) -> Option<PathElement> {
    let mut parts = element.split('*').map(str::trim);
    let first =
        parts.next().filter(|first| !element.is_empty() && (!first.is_empty() || element.contains('*')))?;
    if first.eq_ignore_ascii_case("srv") || first.eq_ignore_ascii_case("symsrv") {
        // In `symsrv*symsrv.dll*…` the second part names the library that debuggers use for it.
        let dll = first.eq_ignore_ascii_case("symsrv");
        let parts: Vec<&str> = parts.skip(usize::from(dll)).collect();
        return parse_server(&parts);
    }
    if first.eq_ignore_ascii_case("cache") && element.contains('*') {
        return Some(PathElement::Cache(store(parts.next().unwrap_or(""))));
    }
    if is_url(element) {
        // An address alone means `srv*address`.
        return parse_server(&[element]);
    }
    Some(PathElement::Folder(PathBuf::from(element)))
}

fn parse_server(parts: &[&str]) -> Option<PathElement> {
    let (last, before) = parts.split_last()?;
    let mut stores: Vec<Store> = before.iter().map(|part| store(part)).collect();
    if is_url(last) {
        if stores.is_empty() {
            // Files from a server are always stored somewhere.
            stores.push(Store::Default);
        }
        return Some(PathElement::Server { stores, url: Some(last.trim_end_matches('/').to_owned()) });
    }
    stores.push(store(last));
    Some(PathElement::Server { stores, url: None })
}

fn store(text: &str) -> Store {
    if text.is_empty() { Store::Default } else { Store::Folder(PathBuf::from(text)) }
}

fn is_url(text: &str) -> bool {
    let lower = text.get(..8).unwrap_or(text).to_ascii_lowercase();
    lower.starts_with("http://") || lower.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> Store {
        Store::Folder(PathBuf::from(name))
    }

    #[test]
    fn folders_servers_and_caches_are_distinguished() {
        let path =
            SymbolPath::parse(r"C:\mine; cache*c:\c ;srv*C:\s*\\share\syms*https://example.org/symbols/;");
        assert_eq!(
            path.elements,
            [
                PathElement::Folder(PathBuf::from(r"C:\mine")),
                PathElement::Cache(folder(r"c:\c")),
                PathElement::Server {
                    stores: vec![folder(r"C:\s"), folder(r"\\share\syms")],
                    url: Some("https://example.org/symbols".to_owned()),
                },
            ]
        );
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

    #[test]
    fn empty_elements_are_skipped() {
        assert!(SymbolPath::parse(";; ;srv").elements.is_empty());
    }
}
