//! Source files on servers that the user named, where SourceLink's map in a .NET PDB says that they
//! are.
//!
//! The map is part of debug information, so its addresses may be anything. Only what is below an
//! address that the user named is requested, without redirects, and a text counts only if its hash
//! is the one in the PDB.

use super::sources::{SourceProblem, SourceText};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use stk_base::text::percent_encoded;
use stk_profile::runtimes::dotnet::Lines;
use stk_symbols::portable_pdb::DocumentHash;
use stk_symbols::server::{Client, ClientOptions, ServerError};

/// Largest source file, in bytes.
const LARGEST: u64 = 16 << 20;
/// Most files that are requested, and bytes of them, in one run.
const MOST_FILES: u32 = 1000;
const MOST_BYTES: u64 = 256 << 20;
/// Limit for the time for one file.
const LONGEST: Duration = Duration::from_secs(60);
/// Largest map, in bytes.
const LARGEST_MAP: usize = 1 << 20;
/// Longest address.
const LONGEST_ADDRESS: usize = 4096;

/// Servers of source files.
#[derive(Debug)]
pub struct SourceServers {
    /// Addresses that end with a slash.
    below: Vec<String>,
    client: Client,
    spent: Mutex<Spent>,
}

/// What was requested.
#[derive(Default, Debug)]
struct Spent {
    files: u32,
    bytes: u64,
    /// Servers that failed or are too slow, and why. They are not tried again.
    failed: Vec<(String, String)>,
}

/// An address that cannot be one of a server of source files.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{0:?} is no address of a folder: it must begin with https:// or http:// and name a host and no user"
)]
pub struct SourceAddressError(String);

impl SourceServers {
    /// Servers and their folders: `https://host/folder/`.
    ///
    /// # Errors
    ///
    /// The address that is none.
    pub fn new(addresses: &[String]) -> Result<SourceServers, SourceAddressError> {
        let below = |address: &String| {
            let host = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
            let host = host.and_then(|rest| rest.split('/').next()).unwrap_or_default();
            let is_folder = !host.is_empty() && !address.contains(['@', '?', '#', '\\', '*', ' ']);
            let slash = if address.ends_with('/') { "" } else { "/" };
            let ok = is_folder && has_plain_segments(address);
            if ok { Ok(format!("{address}{slash}")) } else { Err(SourceAddressError(address.clone())) }
        };
        let options = ClientOptions { max_size: LARGEST, total: LONGEST, ..ClientOptions::default() };
        Ok(SourceServers {
            below: addresses.iter().map(below).collect::<Result<_, _>>()?,
            client: Client::new(options, None),
            spent: Mutex::default(),
        })
    }

    /// The text of a file of a .NET module.
    pub(super) fn find(
        &self,
        lines: &Lines<'_>,
        module: &str,
        path: &str,
    ) -> Result<SourceText, SourceProblem> {
        match lines.linked(module, path) {
            Ok(Some((map, hash))) => self.text(&map, &hash, path).map_err(SourceProblem::NotLinked),
            Ok(None) => {
                Err(SourceProblem::NotLinked("no PDB of a .NET module says where it is on a server".into()))
            }
            Err(error) => Err(SourceProblem::NotLinked(error.to_string())),
        }
    }

    fn text(&self, map: &[u8], hash: &DocumentHash, path: &str) -> Result<SourceText, String> {
        let address = address(map, path).ok_or("SourceLink's map in the PDB does not have its path")?;
        let server = self
            .below
            .iter()
            .find(|below| is_below(&address, below))
            .ok_or_else(|| format!("it is at {address}, which is below no address of --source-link"))?;
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, why)) = spent.failed.iter().find(|(at, _)| at == server) {
            return Err(why.clone());
        }
        if spent.files >= MOST_FILES || spent.bytes >= MOST_BYTES {
            return Err(format!("{address}: {MOST_FILES} files or {} MiB were read", MOST_BYTES >> 20));
        }
        spent.files += 1;
        let bytes = self.client.bytes(&address).map_err(|error| {
            if error.is_passing() || matches!(error, ServerError::TooSlow { .. }) {
                spent.failed.push((server.clone(), error.to_string()));
            }
            error.to_string()
        })?;
        spent.bytes += bytes.len() as u64;
        if !is_hash_of(hash, &bytes) {
            return Err(format!(
                "{address} has another text than the one that was compiled (its hash differs)"
            ));
        }
        Ok(SourceText { path: address, lines: super::sources::lines(&bytes).into() })
    }
}

fn is_hash_of(hash: &DocumentHash, bytes: &[u8]) -> bool {
    match hash {
        DocumentHash::Sha1(hash) => digest(&SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref() == hash,
        DocumentHash::Sha256(hash) => digest(&SHA256, bytes).as_ref() == hash,
        _ => false,
    }
}

/// The address of a source file by SourceLink's map (dotnet/designs, "Source Link"): the entry with
/// the longest path that fits, upper and lower case alike; `*` at the end of both stands for the
/// rest.
fn address(map: &[u8], path: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Map {
        documents: std::collections::BTreeMap<String, String>,
    }
    if map.len() > LARGEST_MAP {
        return None;
    }
    let map: Map = serde_json::from_slice(map.strip_prefix(b"\xef\xbb\xbf").unwrap_or(map)).ok()?;
    let rest_of = |pattern: &str| match pattern.strip_suffix('*') {
        None => path.eq_ignore_ascii_case(pattern).then_some(""),
        Some(begin) => {
            let (start, rest) = path.split_at_checked(begin.len())?;
            start.eq_ignore_ascii_case(begin).then_some(rest)
        }
    };
    let fits =
        |(pattern, to): (&String, &String)| Some((pattern.len(), rest_of(pattern)?.to_owned(), to.clone()));
    let (_, rest, to) = map.documents.iter().filter_map(fits).max_by_key(|(len, ..)| *len)?;
    let parts: Vec<String> = rest.split(['/', '\\']).map(|part| percent_encoded(part, b"-._~")).collect();
    let address = to.replacen('*', &parts.join("/"), 1);
    (address.len() <= LONGEST_ADDRESS).then_some(address)
}

/// Whether an address is below one that ends with a slash, and nothing in it leads elsewhere.
fn is_below(address: &str, folder: &str) -> bool {
    address.strip_prefix(folder).is_some_and(|rest| {
        has_plain_segments(rest)
            && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"\\@#\"<>^`{|}".contains(&byte))
    })
}

/// Whether no segment is `.` or `..`, also as servers decode them.
fn has_plain_segments(path: &str) -> bool {
    let decoded = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    !decoded.contains("%25") && decoded.split('/').all(|part| part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    const TEXT: &str = "class Short\n{\n}\n";

    /// A server that gives each request this answer, and the number of requests.
    fn server(answer: String) -> (String, std::sync::Arc<std::sync::atomic::AtomicU32>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        let requests = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = requests.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.read(&mut [0; 4096]);
                count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        (base, requests)
    }

    fn ok(body: &str) -> String {
        format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    }

    fn map(base: &str) -> Vec<u8> {
        format!(r#"{{"documents":{{"C:\\src\\*":"{base}repo/*"}}}}"#).into_bytes()
    }

    fn sha256(text: &str) -> DocumentHash {
        DocumentHash::Sha256(digest(&SHA256, text.as_bytes()).as_ref().to_vec())
    }

    fn lines_of(base: &str, below: &str, hash: &DocumentHash) -> Result<Vec<String>, String> {
        let servers = SourceServers::new(&[below.to_owned()]).unwrap();
        servers.text(&map(base), hash, r"C:\src\a\b.cs").map(|text| text.lines.to_vec())
    }

    #[test]
    fn text_with_the_hash_of_the_pdb_is_taken() {
        let (base, _) = server(ok(TEXT));
        assert_eq!(lines_of(&base, &base, &sha256(TEXT)).unwrap(), ["class Short", "{", "}"]);
        let sha1 = digest(&SHA1_FOR_LEGACY_USE_ONLY, TEXT.as_bytes()).as_ref().to_vec();
        assert_eq!(lines_of(&base, &format!("{base}repo"), &DocumentHash::Sha1(sha1)).unwrap().len(), 3);
    }

    #[test]
    fn text_with_another_hash_is_refused() {
        let (base, _) = server(ok("another"));
        let error = lines_of(&base, &base, &sha256(TEXT)).unwrap_err();
        assert!(error.contains("another text than the one that was compiled"), "{error}");
    }

    #[test]
    fn address_that_was_not_named_is_not_requested() {
        let (base, requests) = server(ok(TEXT));
        for below in ["http://127.0.0.1:1/", &format!("{base}rep"), &format!("{base}other/")] {
            let error = lines_of(&base, below, &sha256(TEXT)).unwrap_err();
            assert!(error.contains("below no address of --source-link"), "{error}");
        }
        assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), 0);
    }

    #[test]
    fn redirect_is_not_followed() {
        let (other, requests) = server(ok(TEXT));
        let redirect =
            format!("HTTP/1.1 302 X\r\nLocation: {other}x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let (base, _) = server(redirect);
        let error = lines_of(&base, &base, &sha256(TEXT)).unwrap_err();
        assert!(error.contains("302"), "{error}");
        assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), 0);
    }

    #[test]
    fn longest_path_of_the_map_gives_the_address() {
        let map = br#"{"documents":{".\\*":"https://source.test/build/1a2b3c/*",".\\short.cs":"https://source.test/generated/short.cs"}}"#;
        let at = |path| address(map, path);
        assert_eq!(at(r".\short.cs").as_deref(), Some("https://source.test/generated/short.cs"));
        assert_eq!(at(r".\A b\c#.cs").as_deref(), Some("https://source.test/build/1a2b3c/A%20b/c%23.cs"));
        assert_eq!(at(r"C:\elsewhere.cs"), None);
        assert_eq!(address(b"{", "x"), None);
    }

    #[test]
    fn addresses_that_lead_elsewhere_are_not_below_a_folder() {
        let folder = "https://source.test/repo/";
        assert!(is_below("https://source.test/repo/a/b%20c.cs?raw=1", folder));
        for other in [
            "https://source.test/repo/../x",
            "https://source.test/repo/a/%2e%2E/%2e./x",
            "https://source.test/repo/a%2f..%2f..%2fx",
            "https://source.test/repo/%252e%252e/x",
            "https://source.test/repository/x",
            "https://source.test.other/repo/x",
            "https://source.test/repo/a\\..\\x",
            "https://source.test/repo/a b",
            "http://source.test/repo/x",
            "https://user@source.test/repo/x",
        ] {
            assert!(!is_below(other, folder), "{other}");
        }
    }

    #[test]
    fn texts_that_are_no_address_are_refused() {
        for text in [
            "",
            "source.test",
            "ftp://a/",
            "https://",
            "https://u@h/",
            "https://h/../",
            "file:///x",
            "https://h/*",
        ] {
            assert_eq!(SourceServers::new(&[text.into()]).unwrap_err(), SourceAddressError(text.into()));
        }
    }
}
