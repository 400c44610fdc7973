//! The syntax of the debuggers' symbol path (Microsoft, "Symbol path for Windows debuggers"):
//! `dir;srv*cache*https://server;cache*dir`. One syntax for all programs.

use crate::text::strip_prefix_ignoring_case;
use alloc::vec::Vec;

/// One element of a symbol path. An empty text of a store stands for the default store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathElement<'a> {
    /// A folder, or whatever is no other kind of element.
    Folder(&'a str),
    /// `srv*store*…*source`, or a server's address alone.
    Server {
        /// Stores, nearest first.
        stores: Vec<&'a str>,
        /// The last part, if it is a server's address; without slashes at its end.
        url: Option<&'a str>,
    },
    /// `cache*store`.
    Cache(&'a str),
}

/// The elements of a symbol path, in order. Empty ones are skipped. Every text is a path.
///
/// ```
/// use stk_schema::symbol_path::{PathElement, elements};
/// let all: Vec<_> = elements(r"C:\mine; cache*").collect();
/// assert_eq!(all, [PathElement::Folder(r"C:\mine"), PathElement::Cache("")]);
/// ```
pub fn elements(text: &str) -> impl Iterator<Item = PathElement<'_>> {
    text.split(';').filter_map(|text| element(text.trim()))
}

fn element(element: &str) -> Option<PathElement<'_>> {
    let mut parts = element.split('*').map(str::trim);
    let first =
        parts.next().filter(|first| !element.is_empty() && (!first.is_empty() || element.contains('*')))?;
    if first.eq_ignore_ascii_case("srv") {
        return server(parts.collect());
    }
    if first.eq_ignore_ascii_case("symsrv") {
        // In `symsrv*symsrv.dll*…` the second part names the library that debuggers use for it.
        return server(parts.skip(1).collect());
    }
    if first.eq_ignore_ascii_case("cache") && element.contains('*') {
        return Some(PathElement::Cache(parts.next().unwrap_or("")));
    }
    if is_url(element) {
        return server(Vec::from([element]));
    }
    Some(PathElement::Folder(element))
}

fn server(mut stores: Vec<&str>) -> Option<PathElement<'_>> {
    let url = stores.pop_if(|last| is_url(last)).map(|url| url.trim_end_matches('/'));
    (url.is_some() || !stores.is_empty()).then_some(PathElement::Server { stores, url })
}

fn is_url(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| strip_prefix_ignoring_case(text, scheme).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<PathElement<'_>> {
        elements(text).collect()
    }

    #[test]
    fn folders_servers_and_caches_are_distinguished() {
        let path = parsed(r"C:\mine; cache*c:\c ;srv*C:\s*\\share\syms*https://example.org/symbols/;");
        assert_eq!(
            path,
            [
                PathElement::Folder(r"C:\mine"),
                PathElement::Cache(r"c:\c"),
                PathElement::Server {
                    stores: Vec::from([r"C:\s", r"\\share\syms"]),
                    url: Some("https://example.org/symbols"),
                },
            ]
        );
    }

    #[test]
    fn the_name_of_the_server_library_is_skipped() {
        let expected = PathElement::Server { stores: Vec::from([""]), url: Some("http://localhost:1") };
        for text in ["SRV**http://localhost:1", "symsrv*symsrv.dll**http://localhost:1"] {
            assert_eq!(parsed(text), core::slice::from_ref(&expected), "{text}");
        }
    }

    #[test]
    fn an_address_alone_is_a_server_without_a_store() {
        let expected = PathElement::Server { stores: Vec::new(), url: Some("HTTP://h") };
        assert_eq!(parsed("HTTP://h/"), [expected]);
    }

    #[test]
    fn empty_elements_are_skipped() {
        assert_eq!(parsed(";; ;srv"), []);
        assert_eq!(parsed("cache"), [PathElement::Folder("cache")]);
    }
}
