//! Checks a server's redirects: they may lead to an HTTP or HTTPS address, but never from HTTPS to
//! HTTP.

use thiserror::Error;
use ureq::http::Uri;

/// Limit for the redirects that one request follows.
pub(crate) const MOST: usize = 8;

/// Why a redirect is not followed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// Its target is not an address.
    #[error("redirects to {0:?}, which is no address")]
    NoAddress(String),
    /// It leads to a file, or to a service of another kind.
    #[error("redirects to {0:?}, which is neither HTTP nor HTTPS")]
    NotHttp(String),
    /// It leads from HTTPS to HTTP, where the answer could be changed on the way.
    #[error("redirects to {0:?}, which leaves HTTPS")]
    LeavesHttps(String),
    /// Following it would send credentials.
    #[error("redirects to {0:?}, which names a user")]
    NamesUser(String),
    /// There are too many redirects.
    #[error("redirects more than {MOST} times")]
    TooMany,
}

/// The address of a `Location`, relative to the address `from` (RFC 9110, 10.2.2; RFC 3986, 5.2;
/// dot segments stay).
pub(crate) fn target(from: &str, location: &str) -> Result<String, RedirectError> {
    let refused = |why: fn(String) -> RedirectError| Err(why(location.to_owned()));
    let place = location.split('#').next().unwrap_or_default().trim();
    if place.is_empty() || place.contains(['\\', ' ']) {
        return refused(RedirectError::NoAddress);
    }
    let address = match scheme(place) {
        Some(scheme) if !is_http(scheme) => return refused(RedirectError::NotHttp),
        Some(_) => place.to_owned(),
        None => resolve(from, place),
    };
    if is_https(from) && !is_https(&address) {
        return refused(RedirectError::LeavesHttps);
    }
    match address.parse::<Uri>().ok().as_ref().and_then(Uri::authority) {
        Some(authority) if authority.as_str().contains('@') => refused(RedirectError::NamesUser),
        Some(authority) if !authority.host().is_empty() => Ok(address),
        _ => refused(RedirectError::NoAddress),
    }
}

/// Scheme, host and port of an address.
pub(crate) fn origin(address: &str) -> &str {
    let host = address.find("://").map_or(0, |at| at + 3);
    let end = address[host..].find(['/', '?']).map_or(address.len(), |at| host + at);
    &address[..end]
}

/// Resolves a reference without a scheme, relative to an address.
fn resolve(from: &str, reference: &str) -> String {
    let origin = origin(from);
    if reference.starts_with("//") {
        let scheme = scheme(from).unwrap_or("https");
        return format!("{scheme}:{reference}");
    }
    if reference.starts_with('/') {
        return format!("{origin}{reference}");
    }
    let path = from[origin.len()..].split('?').next().unwrap_or_default();
    let folder = path.rfind('/').map_or("/", |at| &path[..=at]);
    format!("{origin}{folder}{reference}")
}

fn scheme(reference: &str) -> Option<&str> {
    let end = reference.find([':', '/', '?'])?;
    reference[end..].starts_with(':').then(|| &reference[..end])
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn is_https(address: &str) -> bool {
    scheme(address).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: &str = "https://a.test:444/store/x.pdb/1/x.pdb?k=v";

    #[test]
    fn redirect_targets_follow_the_rfc() {
        for (location, expected) in [
            ("https://b.test/y?z", "https://b.test/y?z"),
            ("HTTPS://b.test/y#part", "HTTPS://b.test/y"),
            ("//b.test/y", "https://b.test/y"),
            ("/y", "https://a.test:444/y"),
            ("y", "https://a.test:444/store/x.pdb/1/y"),
            ("y:1", "refused"),
        ] {
            match target(FROM, location) {
                Ok(address) => assert_eq!(address, expected),
                Err(_) => assert_eq!("refused", expected, "{location}"),
            }
        }
        assert_eq!(target("http://a.test", "y").unwrap(), "http://a.test/y");
        assert_eq!(target("http://a.test/x", "https://b.test/").unwrap(), "https://b.test/");
    }

    #[test]
    fn redirects_to_files_shares_other_schemes_or_away_from_https_are_refused() {
        for location in [
            "http://b.test/y",
            "file:///etc/passwd",
            "file://server/share/x",
            r"\\server\share\x",
            r"C:\x",
            "ftp://b.test/y",
            "data:,x",
            "https://me:secret@b.test/y",
            "https://",
            "https:///y",
            "//",
            "",
        ] {
            assert!(target(FROM, location).is_err(), "{location}");
        }
    }

    #[test]
    fn an_origin_is_everything_before_the_path() {
        assert_eq!(origin(FROM), "https://a.test:444");
        assert_eq!(origin("http://a.test?x/y"), "http://a.test");
    }
}
