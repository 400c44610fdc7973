//! Tests of symbol servers, against a real HTTP server on the loopback.

use crate::cabinet;
use crate::support::{kept, ran_in};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stk_symbols::pdb::PdbFile;
use stk_symbols::server::{Client, ClientOptions, ServerError, WrongFile};
use stk_symbols::{SymbolCache, SymbolPath, SymbolStore, pdb_id};
use stk_tests::sha256::sha256;

/// The server's answer for a path.
#[derive(Clone)]
enum Answer {
    Body(Vec<u8>),
    /// A status without a body.
    Status(u16),
    /// An error for the first requests, then the body.
    After(u32, u16, Vec<u8>),
    /// Announces this many bytes and sends fewer, then closes.
    Short(u64, Vec<u8>),
    /// Announces this many bytes, sends these and then nothing, with the connection open.
    Stall(u64, Vec<u8>),
    Redirect(String),
    /// Announces this many bytes and sends one every few milliseconds, until the client closes.
    Drip(u64),
    /// Sends a header that never ends, a byte every few milliseconds.
    DripHeader,
    /// States no length and sends zeros, until the client closes.
    Endless,
}

/// Time between two bytes of a slow answer.
const DRIP: Duration = Duration::from_millis(20);

#[derive(Clone)]
struct Server {
    base: String,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    log: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/symbols", listener.local_addr().unwrap());
        let server = Server { base, answers: Arc::default(), log: Arc::default() };
        let own = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = own.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    fn answer(&self, path: &str, answer: Answer) {
        self.answers.lock().unwrap().insert(format!("/symbols/{path}"), answer);
    }

    fn requests(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut out = stream;
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).ok()? == 0 || header.trim().is_empty() {
                break;
            }
        }
        self.log.lock().unwrap().push(path.clone());
        let answer = self.answers.lock().unwrap().get(&path).cloned().unwrap_or(Answer::Status(404));
        let head = |out: &mut TcpStream, status: u16, len: u64, more: &str| {
            write!(out, "HTTP/1.1 {status} X\r\nContent-Length: {len}\r\nConnection: close\r\n{more}\r\n")
                .ok()
        };
        match answer {
            Answer::Body(body) => {
                head(&mut out, 200, body.len() as u64, "")?;
                out.write_all(&body).ok()?;
            }
            Answer::Status(status) => head(&mut out, status, 0, "")?,
            Answer::After(0, _, body) => {
                head(&mut out, 200, body.len() as u64, "")?;
                out.write_all(&body).ok()?;
            }
            Answer::After(left, status, body) => {
                self.answers.lock().unwrap().insert(path, Answer::After(left - 1, status, body));
                head(&mut out, status, 0, "")?;
            }
            Answer::Short(announced, body) => {
                head(&mut out, 200, announced, "")?;
                out.write_all(&body).ok()?;
            }
            Answer::Stall(announced, body) => {
                head(&mut out, 200, announced, "")?;
                out.write_all(&body).ok()?;
                out.flush().ok()?;
                std::thread::sleep(Duration::from_secs(20));
            }
            Answer::Drip(announced) => {
                head(&mut out, 200, announced, "")?;
                drip(&mut out)?;
            }
            Answer::DripHeader => {
                write!(out, "HTTP/1.1 200 X\r\nX-Long: ").ok()?;
                drip(&mut out)?;
            }
            Answer::Endless => {
                write!(out, "HTTP/1.1 200 X\r\nConnection: close\r\n\r\n").ok()?;
                while out.write_all(&[0; 1 << 16]).is_ok() {}
            }
            Answer::Redirect(to) => head(&mut out, 302, 0, &format!("Location: {to}\r\n"))?,
        }
        Some(())
    }
}

fn drip(out: &mut TcpStream) -> Option<()> {
    loop {
        out.write_all(b"x").and_then(|()| out.flush()).ok()?;
        std::thread::sleep(DRIP);
    }
}

fn busy() -> Vec<u8> {
    std::fs::read(kept("busy.pdb")).unwrap()
}

fn options() -> ClientOptions {
    ClientOptions {
        stall: Duration::from_millis(400),
        answer: Duration::from_millis(800),
        retries: 2,
        backoff: Duration::from_millis(10),
        ..ClientOptions::default()
    }
}

/// Replaces bytes that occur once by as many others.
fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(old)).collect();
    assert_eq!((places.len(), old.len()), (1, new.len()));
    bytes[places[0]..][..new.len()].copy_from_slice(new);
}

#[test]
fn source_texts_come_from_the_named_server_alone() {
    let server = Server::start();
    let text: String = (1..300).map(|line| format!("text of line {line}\n")).collect();
    server.answer("examples/mixed/mixed.cs", Answer::Body(text.clone().into_bytes()));
    // Its map has port 47811 of this machine, and its hash of the file is of no text.
    let mut pdb = include_bytes!("../../../tests/data/dotnet/mixed_linked.pdb").to_vec();
    let port = server.base.rsplit(':').next().unwrap().split('/').next().unwrap();
    replace(&mut pdb, b"http://127.0.0.1:47811/", format!("http://127.0.0.1:{port:0>5}/").as_bytes());
    let hash = sha256(text.as_bytes());
    let hash: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&hash[2 * at..][..2], 16).unwrap()).collect();
    replace(&mut pdb, &[b'#'; 32], &hash);
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(kept("mixed.stk"), folder.path().join("mixed.stk")).unwrap();
    std::fs::write(folder.path().join("mixed.pdb"), pdb).unwrap();
    let annotated = |below: &str| {
        let line = ["annotate", "mixed.stk", "mixed.cs", "--json", "-y", ".", "--no-default-symbols"];
        let ran = ran_in(folder.path(), &[&line[..], &["--source-link", below]].concat());
        let value: serde_json::Value = serde_json::from_str(&ran.out).expect(&ran.error);
        value["traces"][0]["parts"][0].clone()
    };

    let part = annotated("http://127.0.0.1:1/");
    assert!(part["no_text"].as_str().unwrap().contains("below no address of --source-link"), "{part}");
    assert!(server.requests().is_empty());
    let part = annotated(&server.base);
    let lines = part["lines"].as_array().unwrap();
    assert!(lines.len() > 3, "{part}");
    for line in lines.iter().filter(|line| !line["line"].is_null()) {
        assert_eq!(line["text"], format!("text of line {}", line["line"]), "{part}");
    }
    assert_eq!(server.requests(), ["/symbols/examples/mixed/mixed.cs"]);
    server.answer("examples/mixed/mixed.cs", Answer::Body(text.replace('7', "8").into_bytes()));
    let part = annotated(&server.base);
    assert!(part["no_text"].as_str().unwrap().contains("its hash differs"), "{part}");
}

/// A server, an empty cache folder, and the identity of the requested PDB.
struct Setting {
    server: Server,
    folder: tempfile::TempDir,
    guid: [u8; 16],
    age: u32,
}

impl Setting {
    fn new() -> Setting {
        let data = busy();
        let identity = *PdbFile::open(&data).unwrap().identity();
        Setting {
            server: Server::start(),
            folder: tempfile::tempdir().unwrap(),
            guid: identity.guid,
            age: identity.age,
        }
    }

    fn id(&self) -> String {
        pdb_id(&self.guid, self.age)
    }

    fn place(&self) -> String {
        format!("busy.pdb/{}", self.id())
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn fetch(&self, options: ClientOptions) -> Result<PathBuf, ServerError> {
        let client = Client::new(options, Some(self.folder.path().join("missing")));
        let check = |data: &[u8]| match PdbFile::open(data) {
            Ok(pdb) if pdb.identity().matches(&self.guid, self.age) => Ok(()),
            _ => Err(WrongFile::Unreadable("is another build".to_owned())),
        };
        client.fetch(&self.server.base, "busy.pdb", &self.id(), &self.store(), &check, &|_, _, _| {})
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.store()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.path().is_dir() { folders.push(entry.path()) } else { found.push(entry.path()) }
            }
        }
        found
    }
}

#[test]
fn a_pdb_is_downloaded_from_its_path_in_the_store() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    let path = setting.fetch(options()).unwrap();
    assert_eq!(path, setting.store().join("busy.pdb").join(setting.id()).join("busy.pdb"));
    assert!(std::fs::read(path).unwrap() == busy());
}

#[test]
fn a_packed_pdb_is_unpacked() {
    let setting = Setting::new();
    setting
        .server
        .answer(&format!("{}/busy.pd_", setting.place()), Answer::Body(cabinet::of("busy.pdb", &busy())));
    let path = setting.fetch(options()).unwrap();
    assert!(std::fs::read(path).unwrap() == busy());
}

#[test]
fn a_store_of_three_tiers_is_recognised_by_its_index2_txt() {
    let setting = Setting::new();
    setting
        .server
        .answer(&format!("bu/{}/busy.pd_", setting.place()), Answer::Body(cabinet::of("busy.pdb", &busy())));
    assert!(matches!(setting.fetch(options()), Err(ServerError::NotFound(_))), "two tiers without the file");
    let setting = Setting::new();
    setting.server.answer("index2.txt", Answer::Body(Vec::new()));
    setting
        .server
        .answer(&format!("bu/{}/busy.pd_", setting.place()), Answer::Body(cabinet::of("busy.pdb", &busy())));
    let path = setting.fetch(options()).unwrap();
    assert_eq!(path, setting.store().join("busy.pdb").join(setting.id()).join("busy.pdb"));
    assert!(std::fs::read(path).unwrap() == busy());
}

#[test]
fn a_redirect_to_a_file_of_this_machine_is_refused() {
    let setting = Setting::new();
    let own = setting.folder.path().join("own.pdb");
    std::fs::write(&own, busy()).unwrap();
    let to = format!("file://{}", own.display());
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Redirect(to));
    assert!(setting.fetch(ClientOptions { retries: 0, ..options() }).is_err());
    assert!(setting.files().is_empty());
}

#[test]
fn a_cabinet_cannot_write_outside_the_cache() {
    for name in [r"..\..\evil.pdb", "/evil.pdb", r"C:\evil.pdb", r"\\server\share\evil.pdb", "NUL"] {
        let setting = Setting::new();
        let cabinet = cabinet::of(name, &busy());
        setting.server.answer(&format!("{}/busy.pd_", setting.place()), Answer::Body(cabinet));
        setting.fetch(options()).unwrap();
        assert_eq!(
            setting.files(),
            [setting.store().join("busy.pdb").join(setting.id()).join("busy.pdb")],
            "{name}"
        );
    }
}

#[test]
fn only_the_file_name_of_a_path_in_a_trace_is_used() {
    for name in [
        "/etc/busy.pdb",
        r"C:\x\busy.pdb",
        r"\\server\share\busy.pdb",
        r"..\..\busy.pdb",
        r"\\.\pipe\busy.pdb",
    ] {
        let setting = Setting::new();
        setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
        let mut store = SymbolStore::new(SymbolPath::parse(&format!("srv**{}", setting.server.base)));
        store.set_cache(SymbolCache::new(setting.folder.path().to_path_buf()));
        store.go_online(options());
        let found = store.find_pdb(name, &setting.guid, setting.age, "").found.unwrap();
        assert_eq!(
            found.path,
            setting.store().join("busy.pdb").join(setting.id()).join("busy.pdb"),
            "{name}"
        );
    }
}

#[test]
fn a_pointer_is_followed_only_on_the_same_server() {
    let setting = Setting::new();
    let pointer = format!("{}/file.ptr", setting.place());
    setting.server.answer(&pointer, Answer::Body(br"PATH:000\busy.pdb".to_vec()));
    setting.server.answer("000/busy.pdb", Answer::Body(busy()));
    assert!(setting.fetch(options()).is_ok());
    for outside in
        [r"PATH:\\server\share\busy.pdb", r"PATH:C:\busy.pdb", "PATH:/etc/passwd", "PATH:../../busy.pdb"]
    {
        let setting = Setting::new();
        setting.server.answer(&format!("{}/file.ptr", setting.place()), Answer::Body(outside.into()));
        assert!(matches!(setting.fetch(options()), Err(ServerError::Wrong { .. })), "{outside}");
        assert!(setting.files().is_empty());
    }
}

#[test]
fn a_redirect_is_followed() {
    let setting = Setting::new();
    let to = format!("{}/elsewhere", setting.server.base);
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Redirect(to));
    setting.server.answer("elsewhere", Answer::Body(busy()));
    assert!(setting.fetch(options()).is_ok());
}

#[test]
fn a_negative_answer_is_remembered_for_a_while() {
    let setting = Setting::new();
    assert!(matches!(setting.fetch(options()), Err(ServerError::NotFound(_))));
    let asked = setting.server.requests().len();
    assert!(asked > 0);
    assert!(matches!(setting.fetch(options()), Err(ServerError::KnownMissing(_))));
    assert_eq!(setting.server.requests().len(), asked, "the server was queried again");
    let forgetful = ClientOptions { negative_for: Duration::ZERO, ..options() };
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    assert!(setting.fetch(forgetful).is_ok());
}

#[test]
fn an_error_of_the_server_is_tried_again_and_not_remembered() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::After(1, 500, busy()));
    assert!(setting.fetch(options()).is_ok());
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::After(9, 503, busy()));
    assert!(matches!(setting.fetch(options()), Err(ServerError::Status { status: 503, .. })));
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    assert!(setting.fetch(options()).is_ok());
}

#[test]
fn a_stalled_download_ends_in_time_and_leaves_no_file() {
    let setting = Setting::new();
    let body = busy();
    let answer = Answer::Stall(body.len() as u64, body[..5000].to_vec());
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), answer);
    let begun = Instant::now();
    let error = setting.fetch(options()).unwrap_err();
    assert!(matches!(error, ServerError::Connection { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(setting.files().is_empty(), "{:?}", setting.files());
}

#[test]
fn a_truncated_answer_leaves_no_file() {
    let setting = Setting::new();
    let body = busy();
    let answer = Answer::Short(body.len() as u64, body[..body.len() / 2].to_vec());
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), answer);
    assert!(setting.fetch(options()).is_err());
    assert!(setting.files().is_empty(), "{:?}", setting.files());
}

#[test]
fn another_build_is_refused_and_leaves_no_file() {
    let setting = Setting { guid: [7; 16], ..Setting::new() };
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    assert!(matches!(setting.fetch(options()), Err(ServerError::Wrong { .. })));
    assert!(setting.files().is_empty());
}

#[test]
fn a_stated_size_of_two_gigabytes_is_refused_before_the_download() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Stall(2 << 30, vec![0; 100]));
    let begun = Instant::now();
    assert!(matches!(setting.fetch(options()), Err(ServerError::TooLarge { .. })));
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert!(setting.files().is_empty());
}

#[test]
fn a_server_is_queried_only_if_it_is_named_and_allowed() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    let path = SymbolPath::parse(&format!("srv**{}", setting.server.base));
    let mut store = SymbolStore::new(path);
    store.set_cache(SymbolCache::new(setting.folder.path().to_path_buf()));
    assert!(store.find_pdb("busy.pdb", &setting.guid, setting.age, "").found.is_none());
    assert!(setting.server.requests().is_empty(), "an offline store has asked a server");
    store.go_online(options());
    let search = store.find_pdb(r"D:\build\busy.pdb", &setting.guid, setting.age, "");
    assert!(search.found.is_some(), "{:?}", search.servers);
    let asked = setting.server.requests().len();
    assert!(store.find_pdb("busy.pdb", &setting.guid, setting.age, "").found.is_some());
    assert_eq!(setting.server.requests().len(), asked, "what is in the cache was downloaded again");
}

#[test]
fn a_trace_cannot_write_outside_the_cache() {
    let setting = Setting::new();
    let path = SymbolPath::parse(&format!("srv**{}", setting.server.base));
    let mut store = SymbolStore::new(path);
    store.set_cache(SymbolCache::new(setting.folder.path().join("cache")));
    store.go_online(options());
    for name in ["..", r"..\..", "../", "C:", "NUL", "a:b", "x\0.pdb", r"\\server\share\", "..\u{0}"] {
        let search = store.find_pdb(name, &setting.guid, setting.age, r"\\server\share\x.exe");
        assert!(search.found.is_none());
    }
    assert!(setting.server.requests().is_empty(), "{:?}", setting.server.requests());
}

#[test]
fn ten_downloads_at_once_share_one_store() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| setting.fetch(options()).unwrap());
        }
    });
    assert_eq!(setting.files().len(), 1);
    assert!(std::fs::read(&setting.files()[0]).unwrap() == busy());
}

/// Options that give up a server that delivers less than 100,000 bytes a second over a fifth of a
/// second.
fn impatient() -> ClientOptions {
    ClientOptions {
        stall: Duration::from_secs(60),
        least_rate: 100_000,
        rate_period: Duration::from_millis(200),
        retries: 3,
        ..options()
    }
}

#[test]
fn a_too_slow_server_is_given_up_after_one_request() {
    for file in ["busy.pdb", "file.ptr"] {
        let setting = Setting::new();
        setting.server.answer(&format!("{}/{file}", setting.place()), Answer::Drip(1 << 20));
        let error = setting.fetch(impatient()).unwrap_err();
        assert!(matches!(error, ServerError::TooSlow { .. }), "{file}: {error}");
        assert!(error.to_string().contains("too slow"), "{error}");
        let asked = setting.server.requests();
        assert_eq!(asked.iter().filter(|path| path.ends_with(file)).count(), 1, "{asked:?}");
        assert!(setting.files().is_empty(), "{:?}", setting.files());
    }
}

#[test]
fn a_server_with_endless_slow_headers_is_given_up() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::DripHeader);
    let error = setting.fetch(ClientOptions { retries: 0, ..options() }).unwrap_err();
    assert!(matches!(error, ServerError::Connection { .. }), "{error}");
}

#[test]
fn a_server_that_keeps_the_least_rate_is_read_to_its_end() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Body(busy()));
    let patient = ClientOptions { least_rate: 1, rate_period: Duration::from_nanos(1), ..options() };
    assert!(setting.fetch(patient).is_ok());
}

#[test]
fn an_answer_without_a_length_ends_at_the_limit() {
    let setting = Setting::new();
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Endless);
    let error = setting.fetch(ClientOptions { max_size: 1 << 20, ..options() }).unwrap_err();
    assert!(matches!(error, ServerError::TooLarge { .. }), "{error}");
    assert!(setting.files().is_empty());
}

#[test]
fn a_redirect_to_a_non_http_address_is_refused_at_once_and_reported() {
    for to in
        [r"\\server\share\x.pdb", "file://server/share/x.pdb", "ftp://127.0.0.1/x.pdb", "gopher:x", "http://"]
    {
        let setting = Setting::new();
        setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Redirect(to.to_owned()));
        let error = setting.fetch(options()).unwrap_err();
        assert!(matches!(error, ServerError::Redirect { .. }), "{to}: {error}");
        assert_eq!(setting.server.requests().len(), 1, "{to}: it was queried again");
    }
}

#[test]
fn endless_redirects_are_given_up() {
    let setting = Setting::new();
    let place = format!("{}/busy.pdb", setting.place());
    setting.server.answer(&place, Answer::Redirect("busy.pdb".to_owned()));
    let error = setting.fetch(options()).unwrap_err();
    assert!(matches!(error, ServerError::Redirect { .. }), "{error}");
    assert!(setting.server.requests().len() < 12, "{:?}", setting.server.requests());
}

#[test]
fn the_server_that_a_redirect_leads_to_is_named() {
    let (setting, other) = (Setting::new(), Server::start());
    let to = format!("{}/elsewhere", other.base);
    setting.server.answer(&format!("{}/busy.pdb", setting.place()), Answer::Redirect(to));
    let mut store = SymbolStore::new(SymbolPath::parse(&format!("srv**{}", setting.server.base)));
    store.set_cache(SymbolCache::new(setting.folder.path().to_path_buf()));
    store.go_online(options());
    let origin = |server: &Server| server.base.trim_end_matches("/symbols").to_owned();
    other.answer("elsewhere", Answer::Status(403));
    let search = store.find_pdb("busy.pdb", &setting.guid, setting.age, "");
    assert!(search.servers.iter().any(|reported| reported.contains(&origin(&other))), "{:?}", search.servers);
    other.answer("elsewhere", Answer::Body(busy()));
    assert!(store.find_pdb("busy.pdb", &setting.guid, setting.age, "").found.is_some());
    assert_eq!(store.redirects(), [(origin(&setting.server), origin(&other))]);
}
