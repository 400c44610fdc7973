//! HTTP(S) servers of symbols and source files: the only code of `stk` that talks to a network.
//!
//! A server is queried only if the user named it. Its answers are not trusted: the name of the file
//! comes from the image, never from the server, the size is limited, and the identity is checked
//! before the file gets its name in the cache.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::cab;
use super::cache::write_atomically;
pub use super::server_error::{ServerError, WrongFile};
use super::trust::pace::{Pace, PacedReader, Slowness};
use super::trust::places::first_tier;
use super::trust::pointer::pointer_path;
use super::trust::redirect;
pub use super::trust::redirect::RedirectError;
use stk_base::files::{look_at, read_within};
use stk_base::map::MappedFile;
use stk_base::text::percent_encoded;

/// Microsoft's public symbol server, for `--ms-symbols`.
pub const MICROSOFT: &str = "https://msdl.microsoft.com/download/symbols";

/// Limits of a client.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Limit for the wait for a connection.
    pub connect: Duration,
    /// Limit for the wait for an answer's headers.
    pub answer: Duration,
    /// Limit for the wait for the next bytes of an answer.
    pub stall: Duration,
    /// Bytes a second that an answer must deliver at least, over each `rate_period`.
    pub least_rate: u64,
    /// How long a server may be slower than `least_rate`.
    pub rate_period: Duration,
    /// Limit for the time for one file.
    pub total: Duration,
    /// How often a failed request is tried again.
    pub retries: u32,
    /// Wait before the first retry; doubled for each further one.
    pub backoff: Duration,
    /// Largest file that is accepted, packed or unpacked, in bytes.
    pub max_size: u64,
    /// How long the answer "there is no such file" is remembered.
    pub negative_for: Duration,
}

/// A client for symbol servers.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    options: ClientOptions,
    /// Folder of negative answers.
    missing: Option<PathBuf>,
    /// Whether the servers asked so far keep files in three tiers.
    three_tier: Arc<Mutex<HashMap<String, bool>>>,
    /// Servers that redirected, and the servers that they redirected to.
    redirects: Arc<Mutex<BTreeSet<(String, String)>>>,
}

/// Called during a download, with the file name, the bytes so far, and the total bytes if the
/// server has stated them.
pub type OnBytes<'a> = &'a (dyn Fn(&str, u64, Option<u64>) + Sync);

/// Takes the next bytes of an answer; then the number so far, and that which the server has stated.
type TakeBytes<'a> = &'a mut dyn FnMut(&[u8], u64, Option<u64>) -> Result<(), ServerError>;

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            least_rate: 4096,
            rate_period: Duration::from_secs(30),
            total: Duration::from_secs(3600),
            retries: 3,
            backoff: Duration::from_millis(500),
            max_size: 1 << 30,
            negative_for: Duration::from_secs(12 * 3600),
        }
    }
}

/// A file that is being downloaded.
#[derive(Clone, Copy)]
struct Download<'a> {
    /// File name without folders.
    name: &'a str,
    /// Returns what is wrong with its bytes.
    check: &'a dyn Fn(&[u8]) -> Result<(), WrongFile>,
    /// Its path in the store.
    target: &'a Path,
    on_bytes: OnBytes<'a>,
}

impl Client {
    /// A client that remembers negative answers in the folder `missing`, if one is given. Proxies
    /// are taken from the environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`).
    pub fn new(options: ClientOptions, missing: Option<PathBuf>) -> Client {
        let config = Agent::config_builder()
            .timeout_connect(Some(options.connect))
            .timeout_recv_response(Some(options.answer))
            .timeout_per_read(Some(options.stall))
            .timeout_global(Some(options.total))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(ureq::Proxy::try_from_env())
            .user_agent(concat!("stk/", env!("CARGO_PKG_VERSION")))
            .build();
        let agent = Agent::new_with_config(config);
        Client { agent, options, missing, three_tier: Arc::default(), redirects: Arc::default() }
    }

    /// Servers that redirected, and the servers that they redirected to (scheme, host and port).
    pub fn redirects(&self) -> Vec<(String, String)> {
        self.redirects.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Downloads `name` with identity `id` from the server at `base` into the symbol store `store`,
    /// and returns its path. `check` returns what is wrong with a file, before it becomes visible.
    /// `name` and `id` must be safe as file names ([`super::safe_file_name`]).
    ///
    /// # Errors
    ///
    /// Why there is no file. Nothing is then left in the store.
    pub fn fetch(
        &self,
        base: &str,
        name: &str,
        id: &str,
        store: &Path,
        check: &dyn Fn(&[u8]) -> Result<(), WrongFile>,
        on_bytes: OnBytes<'_>,
    ) -> Result<PathBuf, ServerError> {
        let target = store.join(name).join(id).join(name);
        let file = Download { name, check, target: &target, on_bytes };
        let folder = format!("{base}/{}/{}", escape(name), escape(id));
        if self.known_missing(&folder) {
            return Err(ServerError::KnownMissing(folder));
        }
        match self.fetch_from(base, &folder, file) {
            Err(ServerError::NotFound(_)) => {}
            result => return result.map(|()| target),
        }
        if let Some(tier) = first_tier(name)
            && self.has_three_tiers(base)?
        {
            let folder = format!("{base}/{}/{}/{}", escape(tier), escape(name), escape(id));
            match self.fetch_from(base, &folder, file) {
                Err(ServerError::NotFound(_)) => {}
                result => return result.map(|()| target),
            }
        }
        self.remember_missing(&folder);
        Err(ServerError::NotFound(folder))
    }

    /// The bytes at an address, not more than [`ClientOptions::max_size`], by one request. A
    /// redirect is an error: what the user named is a place, and only that is read.
    ///
    /// # Errors
    ///
    /// Why there are none.
    pub fn bytes(&self, url: &str) -> Result<Vec<u8>, ServerError> {
        let mut response = answer(url.to_owned(), self.get(url, self.options.total)?)?;
        let mut bytes = Vec::new();
        self.copy_body(url, &mut response, &mut |piece, _, _| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Whether a store has a tier of first letters. If so, it has a file `index2.txt` (Microsoft,
    /// "SymStore"). Each server is queried once.
    fn has_three_tiers(&self, base: &str) -> Result<bool, ServerError> {
        let known = || self.three_tier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&answer) = known().get(base) {
            return Ok(answer);
        }
        let answer = match self.request(&format!("{base}/index2.txt")) {
            Ok(_) => true,
            Err(error) if error.is_passing() => return Err(error),
            Err(_) => false,
        };
        known().insert(base.to_owned(), answer);
        Ok(answer)
    }

    /// Gets a file from one folder of the server: unpacked, packed, or from where `file.ptr`
    /// points.
    fn fetch_from(&self, base: &str, folder: &str, file: Download<'_>) -> Result<(), ServerError> {
        let plain = format!("{folder}/{}", escape(file.name));
        let packed = packed_name(file.name).map(|packed| format!("{folder}/{}", escape(&packed)));
        for url in [Some(plain), packed].into_iter().flatten() {
            match self.download(&url, file) {
                Err(ServerError::NotFound(_)) => {}
                result => return result,
            }
        }
        self.follow_pointer(base, folder, file)
    }

    /// Follows `file.ptr`, which states where on the same server the file lies. Pointers to
    /// anything else (a share, a drive, another server) are refused: a server must not make this
    /// machine open a path or address of its choice.
    fn follow_pointer(&self, base: &str, folder: &str, file: Download<'_>) -> Result<(), ServerError> {
        let url = format!("{folder}/file.ptr");
        let mut response = self.request(&url)?;
        let mut text = String::new();
        PacedReader::new(response.body_mut().as_reader(), self.pace())
            .take(4096)
            .read_to_string(&mut text)
            .map_err(|error| body_error(&url, 0, None, &error))?;
        let pointer = pointer_path(&text).ok_or_else(|| ServerError::NotFound(url.clone()))?;
        let address = pointer_url(base, pointer)
            .ok_or_else(|| ServerError::Wrong { url, reason: WrongFile::Pointer(pointer.to_owned()) })?;
        self.download(&address, file)
    }

    /// Downloads, unpacks and checks a file. Only then gives it its name.
    fn download(&self, url: &str, file: Download<'_>) -> Result<(), ServerError> {
        let mut last = None;
        for attempt in 0..=self.options.retries {
            if attempt != 0 {
                std::thread::sleep(self.options.backoff * (1 << (attempt - 1).min(6)));
            }
            let mut outcome = None;
            let written = write_atomically(file.target, |out| {
                outcome = Some(self.receive(url, file, out));
                match &outcome {
                    Some(Ok(())) => Ok(()),
                    _ => Err(io::Error::other("no file came")),
                }
            });
            match (outcome, written) {
                (Some(Ok(())), Ok(())) => return Ok(()),
                (Some(Err(error)), _) if error.is_passing() => last = Some(error),
                (Some(Err(error)), _) => return Err(error),
                (_, Err(error)) => return Err(ServerError::Cache { path: file.target.to_path_buf(), error }),
                (None, Ok(())) => break,
            }
        }
        // Remove the folders of the file that was not downloaded.
        let _ = file.target.parent().map(std::fs::remove_dir);
        let _ = file.target.parent().and_then(Path::parent).map(std::fs::remove_dir);
        Err(last.unwrap_or_else(|| ServerError::NotFound(url.to_owned())))
    }

    /// Writes the content of one address to `out`, unpacked and checked.
    fn receive(&self, url: &str, file: Download<'_>, out: &mut File) -> Result<(), ServerError> {
        let cache_error = |error| ServerError::Cache { path: PathBuf::from(file.name), error };
        let mut response = self.request(url)?;
        self.copy_body(url, &mut response, &mut |piece, got, announced| {
            out.write_all(piece).map_err(cache_error)?;
            (file.on_bytes)(file.name, got, announced);
            Ok(())
        })?;
        let mut map = map(out).map_err(cache_error)?;
        if cab::is_cabinet(&map) {
            let mut unpacked = tempfile::tempfile().map_err(cache_error)?;
            cab::expand(&map, self.options.max_size, &mut unpacked).map_err(|error| ServerError::Wrong {
                url: url.to_owned(),
                reason: WrongFile::Packed(error),
            })?;
            drop(map);
            unpacked.seek(SeekFrom::Start(0)).map_err(cache_error)?;
            out.set_len(0).and_then(|()| out.seek(SeekFrom::Start(0))).map_err(cache_error)?;
            io::copy(&mut unpacked, out).map_err(cache_error)?;
            map = self::map(out).map_err(cache_error)?;
        }
        (file.check)(&map).map_err(|reason| ServerError::Wrong { url: url.to_owned(), reason })
    }

    /// Gives the body of an answer to `out`, up to the size limit.
    fn copy_body(
        &self,
        url: &str,
        response: &mut Response<Body>,
        out: TakeBytes<'_>,
    ) -> Result<(), ServerError> {
        let limit = self.options.max_size;
        let too_large = || ServerError::TooLarge { url: url.to_owned(), limit };
        let announced = response.body().content_length();
        if announced.is_some_and(|len| len > limit) {
            return Err(too_large());
        }
        let body = response.body_mut().with_config().limit(u64::MAX).reader();
        let mut reader = PacedReader::new(body, self.pace());
        let mut buffer = vec![0; 1 << 16];
        let mut got = 0u64;
        loop {
            let len = match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(body_error(url, got, announced, &error)),
            };
            got += len as u64;
            if got > limit {
                return Err(too_large());
            }
            out(&buffer[..len], got, announced)?;
        }
        match announced {
            Some(announced) if announced != got => {
                Err(ServerError::Truncated { url: url.to_owned(), got, announced })
            }
            _ => Ok(()),
        }
    }

    fn pace(&self) -> Pace {
        let bytes = self.options.least_rate as f64 * self.options.rate_period.as_secs_f64();
        Pace { bytes: bytes as u64, period: self.options.rate_period }
    }

    /// Requests an address and follows its redirects.
    fn request(&self, url: &str) -> Result<Response<Body>, ServerError> {
        let until = Instant::now() + self.options.total;
        let mut at = url.to_owned();
        for _ in 0..=redirect::MOST {
            let response = self.get(&at, until.saturating_duration_since(Instant::now()))?;
            let location = match response.status().as_u16() {
                301 | 302 | 303 | 307 | 308 => response.headers().get("Location"),
                _ => return answer(shown(url, &at), response),
            };
            let Some(location) = location else { return answer(shown(url, &at), response) };
            let target = redirect::target(&at, &String::from_utf8_lossy(location.as_bytes()));
            let next = target.map_err(|reason| ServerError::Redirect { url: shown(url, &at), reason })?;
            self.note_redirect(&at, &next);
            at = next;
        }
        Err(ServerError::Redirect { url: shown(url, &at), reason: RedirectError::TooMany })
    }

    fn get(&self, url: &str, total: Duration) -> Result<Response<Body>, ServerError> {
        let request = self.agent.get(url).config().timeout_global(Some(total)).build();
        let sent = request.header("Accept-Encoding", "identity").call();
        sent.map_err(|error| ServerError::Connection { url: url.to_owned(), error: error.to_string() })
    }

    fn note_redirect(&self, from: &str, to: &str) {
        let (from, to) = (redirect::origin(from), redirect::origin(to));
        if !from.eq_ignore_ascii_case(to) {
            let mut redirects = self.redirects.lock().unwrap_or_else(PoisonError::into_inner);
            redirects.insert((from.to_owned(), to.to_owned()));
        }
    }

    fn missing_path(&self, folder: &str) -> Option<PathBuf> {
        Some(self.missing.as_ref()?.join(format!("{:016x}", xxhash_rust::xxh3::xxh3_64(folder.as_bytes()))))
    }

    fn known_missing(&self, folder: &str) -> bool {
        let Some(path) = self.missing_path(folder) else { return false };
        let modified = path.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = modified.and_then(|time| SystemTime::now().duration_since(time).ok());
        age.is_some_and(|age| age < self.options.negative_for)
            && look_at(&path)
                .and_then(|file| read_within(file, folder.len() as u64))
                .is_ok_and(|text| text == folder.as_bytes())
    }

    fn remember_missing(&self, folder: &str) {
        if let Some(path) = self.missing_path(folder) {
            // If this fails, the server is queried again, so the error is ignored.
            let _ = write_atomically(&path, |file| file.write_all(folder.as_bytes()));
        }
    }
}

/// The answer if it has a file; otherwise why there is none.
fn answer(url: String, response: Response<Body>) -> Result<Response<Body>, ServerError> {
    let status = response.status();
    match status {
        StatusCode::OK => Ok(response),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(ServerError::NotFound(url)),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(ServerError::Denied { url, status: status.as_u16() })
        }
        _ => Err(ServerError::Status { url, status: status.as_u16() }),
    }
}

/// The requested address, with the server that it was redirected to.
fn shown(url: &str, at: &str) -> String {
    match redirect::origin(at) {
        origin if origin.eq_ignore_ascii_case(redirect::origin(url)) => url.to_owned(),
        origin => format!("{url} (redirected to {origin})"),
    }
}

/// Why a body is incomplete.
fn body_error(url: &str, got: u64, announced: Option<u64>, error: &io::Error) -> ServerError {
    let url = url.to_owned();
    if let Some(slow) = error.get_ref().and_then(|inner| inner.downcast_ref::<Slowness>()) {
        return ServerError::TooSlow { url, got: slow.got, seconds: slow.waited.as_secs_f64() };
    }
    match announced {
        // If the length of a body is known, its early end is an error.
        Some(announced) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ServerError::Truncated { url, got, announced }
        }
        _ => ServerError::Connection { url, error: error.to_string() },
    }
}

/// The name of a packed file on symbol servers: its last character is replaced by `_`.
pub(crate) fn packed_name(name: &str) -> Option<String> {
    let mut packed = name.to_owned();
    packed.pop()?;
    packed.push('_');
    Some(packed)
}

/// The address of a pointer, if it lies below the same server address.
fn pointer_url(base: &str, pointer: &str) -> Option<String> {
    if let Some(rest) = pointer.strip_prefix(base) {
        return rest.strip_prefix('/').and_then(|path| pointer_url(base, path));
    }
    let parts: Vec<&str> = pointer.split(['/', '\\']).collect();
    let safe = parts.iter().all(|part| super::safe_file_name(part) == Some(part));
    safe.then(|| {
        let escaped: Vec<String> = parts.iter().map(|part| escape(part)).collect();
        format!("{base}/{}", escaped.join("/"))
    })
}

/// Percent-encodes the characters that a URL's path may not have.
fn escape(text: &str) -> String {
    percent_encoded(text, b"-._~+@")
}

fn map(file: &File) -> io::Result<MappedFile> {
    MappedFile::from_file(file.try_clone()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_may_only_lead_to_its_own_server() {
        let base = "http://symbols.test/store";
        for outside in [
            r"\\server\share\x.pdb",
            r"C:\x.pdb",
            "/etc/passwd",
            "../x.pdb",
            "a/../../x.pdb",
            "http://other.test/x.pdb",
            "http://symbols.test/storeroom/x.pdb",
            "NUL",
            "",
        ] {
            assert_eq!(pointer_url(base, outside), None, "{outside:?}");
        }
        assert_eq!(pointer_url(base, r"000Admin\a b.pdb"), Some(format!("{base}/000Admin/a%20b.pdb")));
        assert_eq!(pointer_url(base, "http://symbols.test/store/x/y.pdb"), Some(format!("{base}/x/y.pdb")));
    }

    #[test]
    fn names_are_encoded_for_urls() {
        assert_eq!(escape("ä b#.pdb"), "%C3%A4%20b%23.pdb");
        assert_eq!(packed_name("x.pdb").as_deref(), Some("x.pd_"));
    }
}
