//! Gives one file to the pages of one site, over loopback: HTTP/1.1 (RFC 9112) as far as one GET
//! needs it.
//!
//! The address has a random part. A request must come from a page of the site (`Origin`, which
//! browsers add and pages cannot change) and name this machine by its number (`Host`), so that no
//! other page reads the file, whatever name it has for 127.0.0.1. Requests are bounded in size,
//! time and number; the server ends after the first whole transfer, or when its time is up.

use anyhow::Context as _;
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stk_schema::text::hex;

/// How long a site has for the transfer.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// How long a request may take to arrive, and the client to take the next bytes.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const LONGEST: usize = 8 << 10;
/// Requests in all.
const MOST: usize = 256;
/// Connections at once.
const AT_ONCE: usize = 8;
/// Between two looks for a connection.
const PACE: Duration = Duration::from_millis(10);

/// A server of one file.
pub(super) struct Server {
    listener: TcpListener,
    at: SocketAddr,
    origin: &'static str,
    /// Path of the file.
    path: String,
    limit: Duration,
}

impl Server {
    /// Listens on loopback. `port` 0: any that is free.
    pub(super) fn bind(port: u16, origin: &'static str, name: &str) -> anyhow::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("port {port} of 127.0.0.1, which {origin} reads from"))?;
        listener.set_nonblocking(true)?;
        let mut token = [0; 16];
        SystemRandom::new()
            .fill(&mut token)
            .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
        let at = listener.local_addr()?;
        Ok(Server { listener, at, origin, path: format!("/{}/{name}", hex(&token)), limit: LIMIT })
    }

    /// The address of the file.
    pub(super) fn address(&self) -> String {
        format!("http://{}{}", self.at, self.path)
    }

    /// Serves the file until it was read once. False: nobody read it in time.
    pub(super) fn serve(&self, file: File) -> io::Result<bool> {
        let len = file.metadata()?.len();
        let begun = Instant::now();
        let (done, open) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut requests = 0;
        let body = Body { file: &file, len };
        std::thread::scope(|scope| {
            while !done.load(Ordering::Acquire) && begun.elapsed() < self.limit && requests < MOST {
                match self.listener.accept() {
                    Ok((stream, _)) if open.load(Ordering::Acquire) < AT_ONCE => {
                        requests += 1;
                        open.fetch_add(1, Ordering::AcqRel);
                        let (done, open) = (&done, &open);
                        scope.spawn(move || {
                            // A client that fails is no failure of the server.
                            if self.answer(stream, body).unwrap_or(false) {
                                done.store(true, Ordering::Release);
                            }
                            open.fetch_sub(1, Ordering::AcqRel);
                        });
                    }
                    // One too many.
                    Ok((stream, _)) => drop(stream),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(PACE),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        Ok(done.load(Ordering::Acquire))
    }

    /// Answers a request. Whether the whole file was sent.
    fn answer(&self, mut stream: TcpStream, body: Body<'_>) -> io::Result<bool> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let head = match head_of(&mut stream)? {
            Some(head) => head,
            None => return refuse(&mut stream, "400 Bad Request"),
        };
        let Some(request) = Request::parse(&head) else { return refuse(&mut stream, "400 Bad Request") };
        if request.host != Some(self.at.to_string().as_str()) || request.origin != Some(self.origin) {
            return refuse(&mut stream, "403 Forbidden");
        }
        if request.target != self.path {
            return refuse(&mut stream, "404 Not Found");
        }
        let allowed = format!(
            "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\nCache-Control: no-store\r\n\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n",
            self.origin
        );
        match request.method {
            // What browsers ask first when a public site reads from a private address.
            "OPTIONS" => {
                let text = format!(
                    "HTTP/1.1 204 No Content\r\n{allowed}Access-Control-Allow-Methods: GET\r\n\
                     Access-Control-Allow-Private-Network: true\r\nAccess-Control-Allow-Headers: *\r\n\r\n"
                );
                stream.write_all(text.as_bytes())?;
                Ok(false)
            }
            "GET" => {
                let text = format!(
                    "HTTP/1.1 200 OK\r\n{allowed}Content-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
                    body.len
                );
                stream.write_all(text.as_bytes())?;
                body.send(&mut stream, Instant::now() + self.limit)?;
                stream.shutdown(std::net::Shutdown::Write)?;
                // Closed at once, what is on its way could be lost.
                let _ = stream.set_read_timeout(Some(PATIENCE));
                let _ = stream.read(&mut [0; 16]);
                Ok(true)
            }
            _ => refuse(&mut stream, "405 Method Not Allowed"),
        }
    }
}

fn refuse(stream: &mut TcpStream, status: &str) -> io::Result<bool> {
    let text = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes())?;
    Ok(false)
}

/// The head of a request, without the empty line at its end. `None`: it is too long, or ends early.
fn head_of(stream: &mut TcpStream) -> io::Result<Option<String>> {
    let begun = Instant::now();
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    loop {
        if let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
            head.truncate(end);
            return Ok(String::from_utf8(head).ok());
        }
        let Some(left) = PATIENCE.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) else {
            return Ok(None);
        };
        stream.set_read_timeout(Some(left))?;
        let read = stream.read(&mut piece)?;
        if read == 0 || head.len() + read > LONGEST {
            return Ok(None);
        }
        head.extend_from_slice(&piece[..read]);
    }
}

/// What of a request counts.
#[derive(PartialEq, Eq, Debug)]
struct Request<'a> {
    method: &'a str,
    target: &'a str,
    host: Option<&'a str>,
    origin: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// Reads a head. `None`: it is none, or says host or origin twice.
    fn parse(head: &'a str) -> Option<Request<'a>> {
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() || !matches!(version, "HTTP/1.1" | "HTTP/1.0") {
            return None;
        }
        let mut request = Request { method, target, host: None, origin: None };
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let field = match name {
                name if name.eq_ignore_ascii_case("host") => &mut request.host,
                name if name.eq_ignore_ascii_case("origin") => &mut request.origin,
                _ => continue,
            };
            if field.replace(value.trim()).is_some() {
                return None;
            }
        }
        Some(request)
    }
}

/// The file that is served.
#[derive(Clone, Copy)]
struct Body<'a> {
    file: &'a File,
    len: u64,
}

impl Body<'_> {
    fn send(&self, stream: &mut TcpStream, until: Instant) -> io::Result<()> {
        const PIECE: usize = 256 << 10;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < self.len {
            // However slowly a client takes it.
            if Instant::now() > until {
                return Err(ErrorKind::TimedOut.into());
            }
            let wanted = usize::try_from(self.len - at).unwrap_or(PIECE).min(PIECE);
            let read = read_at(self.file, &mut piece[..wanted], at)?;
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            stream.write_all(&piece[..read])?;
            at += read as u64;
        }
        Ok(())
    }
}

/// Reads at a place: several connections share the file.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_tests::synth::Random;

    const ORIGIN: &str = "https://viewer.example";

    fn server(limit: Duration) -> (Server, File) {
        let server = Server { limit, ..Server::bind(0, ORIGIN, "app.json").unwrap() };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[b'x'; 1 << 20]).unwrap();
        (server, file)
    }

    /// What the server answers to these bytes.
    fn ask(at: SocketAddr, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    fn request(method: &str, target: &str, host: &str, origin: Option<&str>) -> Vec<u8> {
        let origin = origin.map(|origin| format!("Origin: {origin}\r\n")).unwrap_or_default();
        format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{origin}Accept: */*\r\n\r\n").into_bytes()
    }

    fn status(answer: &[u8]) -> &str {
        std::str::from_utf8(answer.get(9..12).unwrap_or_default()).unwrap()
    }

    #[test]
    fn the_site_gets_the_file_once_and_the_server_ends() {
        let (server, file) = server(Duration::from_secs(60));
        let (at, path) = (server.at, server.path.clone());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| server.serve(file).unwrap());
            let host = at.to_string();
            let before = ask(at, &request("OPTIONS", &path, &host, Some(ORIGIN)));
            assert_eq!(status(&before), "204");
            let answer = ask(at, &request("GET", &path, &host, Some(ORIGIN)));
            assert_eq!(status(&answer), "200");
            let head = String::from_utf8_lossy(&answer[..answer.len() - (1 << 20)]).into_owned();
            assert!(head.contains(&format!("Access-Control-Allow-Origin: {ORIGIN}\r\n")), "{head}");
            assert!(answer.ends_with(&[b'x'; 1 << 20]));
            assert!(served.join().unwrap());
        });
        drop(server);
        assert!(TcpStream::connect(at).is_err());
    }

    #[test]
    fn other_pages_names_and_paths_are_refused() {
        let (server, file) = server(Duration::from_secs(60));
        let (at, path) = (server.at, server.path.clone());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| server.serve(file).unwrap());
            let host = at.to_string();
            let rebound = format!("evil.example:{}", at.port());
            for (expected, bytes) in [
                ("403", request("GET", &path, &host, Some("https://evil.example"))),
                ("403", request("GET", &path, &host, Some("https://viewer.example.evil"))),
                ("403", request("GET", &path, &host, Some("null"))),
                ("403", request("GET", &path, &host, None)),
                ("403", request("GET", &path, &rebound, Some(ORIGIN))),
                ("404", request("GET", "/app.json", &host, Some(ORIGIN))),
                ("404", request("GET", &format!("{path}?x"), &host, Some(ORIGIN))),
                ("404", request("GET", "/../../etc/passwd", &host, Some(ORIGIN))),
                ("405", request("POST", &path, &host, Some(ORIGIN))),
                (
                    "400",
                    format!(
                        "GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {ORIGIN}\r\nOrigin: null\r\n\r\n"
                    )
                    .into(),
                ),
                ("400", format!("GET {path}\r\n\r\n").into()),
                ("400", vec![b'a'; LONGEST + 1]),
                ("400", b"\r\n\r\n".to_vec()),
            ] {
                let answer = ask(at, &bytes);
                assert_eq!(status(&answer), expected, "{}", String::from_utf8_lossy(&bytes));
                assert!(answer.len() < 200);
            }
            assert_eq!(status(&ask(at, &request("GET", &path, &host, Some(ORIGIN)))), "200");
            assert!(served.join().unwrap());
        });
    }

    #[test]
    fn silent_clients_do_not_keep_the_site_waiting() {
        let (server, file) = server(Duration::from_secs(60));
        let (at, path) = (server.at, server.path.clone());
        std::thread::scope(|scope| {
            let served = scope.spawn(|| server.serve(file).unwrap());
            // As browsers open connections before they need them.
            let silent: Vec<TcpStream> = (0..AT_ONCE - 1).map(|_| TcpStream::connect(at).unwrap()).collect();
            let begun = Instant::now();
            let answer = ask(at, &request("GET", &path, &at.to_string(), Some(ORIGIN)));
            assert_eq!(status(&answer), "200");
            assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
            drop(silent);
            assert!(served.join().unwrap());
        });
    }

    #[test]
    fn a_server_that_nobody_reads_from_ends_in_its_time() {
        let (server, file) = server(Duration::from_millis(200));
        let begun = Instant::now();
        assert!(!server.serve(file).unwrap());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn random_requests_get_no_file() {
        let (server, _) = server(LIMIT);
        let mut random = Random::new(5);
        let pieces =
            ["GET", " ", "/", &server.path, "HTTP/1.1", "\r\n", "Host:", "Origin:", ORIGIN, ":", "\0", "é"];
        for _ in 0..20_000 {
            let count = random.below(12);
            let head: String = (0..count).map(|_| pieces[random.below(pieces.len())]).collect();
            if let Some(request) = Request::parse(&head) {
                assert!(head.starts_with(request.method) && head.contains(request.target));
            }
        }
    }

    #[test]
    fn each_server_has_an_address_of_its_own() {
        let paths: std::collections::HashSet<String> =
            (0..50).map(|_| Server::bind(0, ORIGIN, "a").unwrap().path).collect();
        assert_eq!(paths.len(), 50);
        assert!(paths.iter().all(|path| path.len() == 1 + 32 + 2));
    }
}
