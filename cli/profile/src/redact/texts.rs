//! Texts that a copy of a trace drops: command lines, the host's name, the names of users in paths.

use crate::trace::Trace;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use stk_format::blob::content_hash;
use stk_format::{FileHeader, HEADER_KEY};
use stk_schema::event::{
    Blob, End, Event, Mark, Metadata, MethodName, ModuleLoad, ModuleTables, Nettrace, RuntimeInfo,
};
use stk_schema::identity::{CodeView, ContentHash, Identity};

/// What a user's name in a path becomes.
const USER: &[u8] = b"user";
/// What follows a separator and is followed by a user's folder.
const USERS: [&str; 2] = ["users", "documents and settings"];
/// The same of Unix, at the beginning of a path or behind its drive.
const HOME: &str = "home";
/// Folders beside those of users.
const NOBODY: [&str; 6] = ["public", "default", "default user", "all users", "user", "shared"];
/// Most bytes of .NET's lists that are searched as a whole.
const MOST_LISTS: usize = 256 << 20;
/// A CodeView record: signature, GUID and age come before its path.
const RSDS: &[u8] = b"RSDS";
const RSDS_PATH: usize = 24;

/// What can be dropped beside the words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Secret {
    /// The command lines of the process and of inject.
    CommandLine,
    /// The name of the machine.
    Host,
    /// Names of users in paths.
    User,
}

impl Secret {
    pub const ALL: [Secret; 3] = [Secret::CommandLine, Secret::Host, Secret::User];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Secret::CommandLine => "command-line",
            Secret::Host => "host",
            Secret::User => "user",
        }
    }

    /// The rule, as the copy states it.
    pub fn rule(self) -> String {
        format!("stk redact: {}", self.name())
    }
}

/// Which texts go, and where they are.
#[derive(Debug)]
pub struct Texts {
    dropped: BTreeSet<Secret>,
    /// The header as the copy has it: blocks repeat it.
    header: FileHeader,
    /// Command lines as UTF-16, as .NET's lists hold them.
    lines: Vec<Vec<u8>>,
    /// BLOBs that have other bytes in the copy: their hash and length there.
    blobs: HashMap<ContentHash, (ContentHash, u32)>,
    /// .NET's lists by session, as far as they can be searched: from their first byte on without a
    /// gap.
    lists: BTreeMap<u64, Vec<u8>>,
    listed: usize,
    /// Whether all that is to be looked for in them is known.
    knows_lines: bool,
    /// Pieces of these lists that the copy does not have.
    unsearched: u64,
    /// Bytes of .NET's lists to overwrite, by session, each range in the list.
    masked: BTreeMap<u64, Vec<Range<u64>>>,
    first_pass: bool,
}

impl Texts {
    /// The texts of a trace.
    pub fn of(trace: &Trace<'_>, dropped: &BTreeSet<Secret>) -> Texts {
        let facts = trace.timeline.metadata.iter().filter(|(key, _)| is_command_line(key.as_bytes()));
        let lines = facts.filter(|(_, line)| !line.is_empty());
        let knows_lines = lines.clone().any(|(key, _)| key == "command_line");
        let boot_id = if dropped.contains(&Secret::Host) { 0 } else { trace.header().boot_id };
        let wide = |(_, line): &(String, String)| line.encode_utf16().flat_map(u16::to_le_bytes).collect();
        Texts {
            dropped: dropped.clone(),
            header: FileHeader { boot_id, ..*trace.header() },
            lines: lines.map(wide).collect(),
            blobs: HashMap::new(),
            lists: BTreeMap::new(),
            listed: 0,
            knows_lines: knows_lines || !dropped.contains(&Secret::CommandLine),
            unsearched: 0,
            masked: BTreeMap::new(),
            first_pass: true,
        }
    }

    /// What is dropped.
    pub fn dropped(&self) -> &BTreeSet<Secret> {
        &self.dropped
    }

    /// The header of the copy.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Pieces of .NET's lists that were left out, since they could not be searched.
    pub fn unsearched(&self) -> u64 {
        self.unsearched
    }

    fn drops(&self, secret: Secret) -> bool {
        self.dropped.contains(&secret)
    }

    /// Finds the places in .NET's lists, all of which were seen now.
    pub fn finish_first_pass(&mut self) {
        self.first_pass = false;
        for (&session, list) in &self.lists {
            let mut places = Vec::new();
            if self.drops(Secret::User) {
                places.extend([0, 1].into_iter().flat_map(|from| {
                    users(list.get(from..).unwrap_or(&[]), 2)
                        .into_iter()
                        .map(move |place| (place.start + from) as u64..(place.end + from) as u64)
                }));
            }
            if self.drops(Secret::CommandLine) {
                for line in &self.lines {
                    let found = list.windows(line.len()).enumerate().filter(|(_, window)| window == line);
                    places.extend(found.map(|(at, _)| at as u64..(at + line.len()) as u64));
                }
            }
            self.masked.insert(session, places);
        }
    }

    /// Passes on what the copy has of an event. Returns the number of texts that were changed.
    pub fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) -> u64 {
        match event {
            Event::Metadata(fact) if fact.key == HEADER_KEY => {
                put(&Event::Metadata(Metadata { key: HEADER_KEY, value: &self.header.encode() }));
                return 0;
            }
            Event::Metadata(fact) if self.drops_fact(fact.key) => return 1,
            Event::Nettrace(piece) => return self.piece(piece, put),
            _ if !self.drops(Secret::User) => {}
            Event::Blob(blob) => return self.blob(blob, put),
            Event::ModuleTables(reported) => {
                let mut tables = reported.tables.clone();
                for table in &mut tables {
                    if let Some(&(hash, len)) = self.blobs.get(&table.hash) {
                        (table.hash, table.len) = (hash, len);
                    }
                }
                put(&Event::ModuleTables(ModuleTables { instance: reported.instance, tables }));
                return 0;
            }
            event => return paths(event, put),
        }
        put(event);
        0
    }

    fn drops_fact(&self, key: &[u8]) -> bool {
        let is_host = matches!(key, b"host" | b"machine.id");
        self.drops(Secret::CommandLine) && is_command_line(key) || self.drops(Secret::Host) && is_host
    }

    /// The path of a CodeView record is in a BLOB, which gets another hash by the change.
    fn blob(&mut self, blob: &Blob<'_>, put: &mut dyn FnMut(&Event<'_>)) -> u64 {
        let whole = blob.offset == 0 && blob.total == blob.bytes.len() as u64;
        let path = blob.bytes.get(RSDS_PATH..).filter(|_| whole && blob.bytes.starts_with(RSDS));
        let Some(path) = path.and_then(without_users) else {
            put(&Event::Blob(*blob));
            return 0;
        };
        let bytes = [&blob.bytes[..RSDS_PATH], &path].concat();
        let (hash, total) = (content_hash(&bytes), bytes.len() as u64);
        self.blobs.insert(blob.hash, (hash, total as u32));
        put(&Event::Blob(Blob { hash, total, offset: 0, bytes: &bytes }));
        1
    }

    /// A piece of .NET's lists keeps its length, since others count from its offsets. One that was
    /// not searched is left out: behind a gap nobody reads it.
    fn piece(&mut self, piece: &Nettrace<'_>, put: &mut dyn FnMut(&Event<'_>)) -> u64 {
        if self.first_pass {
            let list = self.lists.entry(piece.session).or_default();
            if list.len() as u64 == piece.offset && self.listed + piece.bytes.len() <= MOST_LISTS {
                list.extend_from_slice(piece.bytes);
                self.listed += piece.bytes.len();
            }
        }
        let searches = self.drops(Secret::User) || self.drops(Secret::CommandLine);
        if searches && !self.first_pass && !self.is_searched(piece) {
            self.unsearched += 1;
            return 0;
        }
        let mut bytes = piece.bytes.to_vec();
        let mut texts = 0;
        for place in self.masked.get(&piece.session).map_or(&[][..], Vec::as_slice) {
            let within = |at: u64| (at.saturating_sub(piece.offset) as usize).min(bytes.len());
            let part = within(place.start)..within(place.end);
            texts += u64::from(place.start >= piece.offset && !part.is_empty());
            for at in part {
                let unit = piece.offset + at as u64 - place.start;
                bytes[at] = if unit.is_multiple_of(2) { b'x' } else { 0 };
            }
        }
        put(&Event::Nettrace(Nettrace { bytes: &bytes, ..*piece }));
        texts
    }

    /// Whether these very bytes were searched for all that is dropped.
    fn is_searched(&self, piece: &Nettrace<'_>) -> bool {
        let list = self.lists.get(&piece.session).map_or(&[][..], Vec::as_slice);
        let searched = usize::try_from(piece.offset).ok().and_then(|from| list.get(from..));
        self.knows_lines && searched.is_some_and(|searched| searched.starts_with(piece.bytes))
    }
}

fn is_command_line(key: &[u8]) -> bool {
    matches!(key, b"command_line" | b"inject.command_line")
}

/// Passes on an event without the names of users in its paths. Returns the number of such names'
/// texts.
fn paths(event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) -> u64 {
    let mut texts = 0;
    let mut clean = |text: &[u8]| {
        let clean = without_users(text);
        texts += u64::from(clean.is_some());
        clean.unwrap_or_else(|| text.to_vec())
    };
    match event {
        Event::Metadata(fact) => {
            let value = clean(fact.value);
            put(&Event::Metadata(Metadata { value: &value, ..*fact }));
        }
        Event::ModuleLoad(load) => {
            let path = clean(load.path);
            let names: Vec<Vec<u8>> =
                load.identities.iter().map(|identity| clean(pdb_name(identity))).collect();
            let identities = load.identities.iter().zip(&names).map(|(identity, name)| match identity {
                Identity::CodeView(view) => Identity::CodeView(CodeView { pdb_name: name, ..*view }),
                other => *other,
            });
            let identities = identities.collect();
            put(&Event::ModuleLoad(ModuleLoad { path: &path, identities, ..load.clone() }));
        }
        Event::ThreadName { instance, time, name } => {
            let name = clean(name);
            put(&Event::ThreadName { instance: *instance, time: *time, name: &name });
        }
        Event::RuntimeInfo(info) => {
            let (version, note) = (clean(info.version), clean(info.note));
            put(&Event::RuntimeInfo(RuntimeInfo { version: &version, note: &note, ..*info }));
        }
        Event::MethodName(method) => {
            let name = clean(method.name);
            put(&Event::MethodName(MethodName { name: &name, ..*method }));
        }
        Event::Mark(mark) => {
            let text = clean(mark.text);
            put(&Event::Mark(Mark { text: &text, ..*mark }));
        }
        Event::End(end) => {
            let detail = clean(end.detail);
            put(&Event::End(End { detail: &detail, ..*end }));
        }
        other => put(other),
    }
    texts
}

fn pdb_name<'a>(identity: &Identity<'a>) -> &'a [u8] {
    match identity {
        Identity::CodeView(view) => view.pdb_name,
        _ => &[],
    }
}

/// The text with `user` for each user's name in its paths; `None` if it has none.
fn without_users(text: &[u8]) -> Option<Vec<u8>> {
    let places = users(text, 1);
    let mut clean = Vec::new();
    let mut from = 0;
    for place in &places {
        clean.extend_from_slice(&text[from..place.start]);
        clean.extend_from_slice(USER);
        from = place.end;
    }
    clean.extend_from_slice(&text[from..]);
    (!places.is_empty()).then_some(clean)
}

/// Where users' names are in the paths of a text whose units have `width` bytes (UTF-8 or
/// UTF-16).
fn users(text: &[u8], width: usize) -> Vec<Range<usize>> {
    // What is no ASCII can be part of a name and of nothing else here.
    let unit = |at: usize| {
        let bytes = text.get(at * width..(at + 1) * width)?;
        Some(if bytes[1..].iter().all(|byte| *byte == 0) { bytes[0] } else { 0xff })
    };
    let is = |at: usize, word: &str| {
        word.bytes().zip(at..).all(|(byte, at)| unit(at).is_some_and(|unit| unit.eq_ignore_ascii_case(&byte)))
    };
    let separator = |at: usize| matches!(unit(at), Some(b'\\' | b'/'));
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(here) = unit(at) {
        let start = at + 1;
        at = start;
        if !matches!(here, b'\\' | b'/') {
            continue;
        }
        let begins = start == 1 || start.checked_sub(2).and_then(unit) == Some(b':');
        let folders = USERS.iter().chain(begins.then_some(&HOME));
        let mut folders = folders.filter(|folder| is(start, folder) && separator(start + folder.len()));
        let Some(folder) = folders.next() else { continue };
        let from = start + folder.len() + 1;
        let in_name = |at: &usize| unit(*at).is_some_and(|unit| !ends_name(unit));
        let until = (from..).take_while(in_name).last().map_or(from, |last| last + 1);
        let nobody = NOBODY.iter().any(|name| name.len() == until - from && is(from, name));
        if until > from && !nobody {
            places.push(from * width..until * width);
        }
        at = until;
    }
    places
}

/// Whether a character cannot be part of a file's name.
fn ends_name(unit: u8) -> bool {
    matches!(unit, 0..0x20 | b'\\' | b'/' | b'"' | b'<' | b'>' | b'|' | b'?' | b'*' | b':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_names_in_paths_become_user() {
        for (text, clean) in [
            (r"C:\Users\Ann Lee\app.exe", Some(r"C:\Users\user\app.exe")),
            (r#""c:\users\ann" --in D:\x"#, Some(r#""c:\users\user" --in D:\x"#)),
            (r"\Device\HarddiskVolume3\Users\änn\a", Some(r"\Device\HarddiskVolume3\Users\user\a")),
            ("C:/Users/ann/a;C:/Users/bob/b", Some("C:/Users/user/a;C:/Users/user/b")),
            (r"Z:\home\ann\a.exe", Some(r"Z:\home\user\a.exe")),
            ("/home/ann", Some("/home/user")),
            (r"C:\Documents and Settings\ann\a", Some(r"C:\Documents and Settings\user\a")),
            (r"C:\Users\Public\a.dll", None),
            (r"C:\Users\user\a.dll", None),
            (r"C:\Users", None),
            (r"C:\Users\", None),
            (r"D:\site\home\index", None),
            (r"C:\SuperUsers\ann", None),
            ("", None),
        ] {
            let found = without_users(text.as_bytes()).map(|clean| String::from_utf8(clean).unwrap());
            assert_eq!(found.as_deref(), clean, "{text}");
        }
    }

    #[test]
    fn names_in_utf_16_are_found_at_any_byte() {
        let wide: Vec<u8> = "x C:\\Users\\ann\\b".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(users(&wide, 2), std::slice::from_ref(&(22..28)));
        assert_eq!(&wide[22..28], b"a\0n\0n\0");
    }
}
