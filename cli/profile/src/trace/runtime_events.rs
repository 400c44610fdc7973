//! What language runtimes reported about their methods, as the recorder wrote it: sessions are put
//! together from their pieces. Read on demand, since most traces have no such runtimes.

use super::{Trace, beyond_memory};
use std::collections::{BTreeMap, HashSet};
use stk_format::{BlockKind, Scratch};
use stk_schema::Ticks;
use stk_schema::event::{self, Event, FrameMethod};

/// The NetTrace stream of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nettrace {
    /// Number of the session.
    pub session: u64,
    /// When the latest piece was received.
    pub received: Ticks,
    /// The stream from its beginning.
    pub bytes: Vec<u8>,
}

/// A METHOD_NAME event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedCode {
    /// When the runtime said it.
    pub time: Ticks,
    /// First address of the code.
    pub base: u64,
    /// Length in bytes.
    pub size: u32,
    /// [`MethodNameSource`](event::MethodNameSource) as a number.
    pub source: u64,
    pub name: String,
}

/// A FRAME_METHOD event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFrameMethod {
    /// When it had that name.
    pub time: Ticks,
    /// Address of its MethodDesc or its MethodTable.
    pub address: u64,
    /// Slot of the MethodTable; `None` for a MethodDesc.
    pub slot: Option<u64>,
    pub name: String,
}

/// What runtimes reported.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct RuntimeEvents {
    /// Sessions, in the order in which they were received.
    pub sessions: Vec<Nettrace>,
    /// METHOD_NAME events, in stored order.
    pub names: Vec<NamedCode>,
    /// FRAME_METHOD events, in stored order.
    pub frame_methods: Vec<NamedFrameMethod>,
    /// What is missing, one sentence each.
    pub problems: Vec<String>,
}

/// Limit for the bytes of all sessions together. A rundown is some hundred kilobytes.
const MOST_BYTES: usize = 1 << 29;

/// Bytes that it takes to keep a piece or a name, beside its text.
const PIECE: usize = 128;

/// Reads what runtimes reported. Damaged blocks were reported when the trace was opened.
pub fn runtime_events(trace: &Trace<'_>) -> RuntimeEvents {
    let mut sessions = Sessions::default();
    let mut names = Vec::new();
    let mut frame_methods = Vec::new();
    let mut left_out = 0;
    let mut scratch = Scratch::new();
    for block in trace.blocks().blocks() {
        if matches!(block.header.kind, BlockKind::Samples | BlockKind::Blob | BlockKind::Index) {
            continue;
        }
        let Ok(events) = trace.blocks().events(block, &mut scratch) else { continue };
        for event in events.map_while(Result::ok) {
            match event {
                Event::Nettrace(piece) if !trace.budget.take(piece.bytes.len() + PIECE) => left_out += 1,
                Event::MethodName(name) if !trace.budget.take(name.name.len() + PIECE) => left_out += 1,
                Event::FrameMethod(method) if !trace.budget.take(method.name.len() + PIECE) => left_out += 1,
                Event::FrameMethod(method)
                    if method.kind == FrameMethod::DESC || method.kind == FrameMethod::SLOT =>
                {
                    frame_methods.push(NamedFrameMethod {
                        time: method.time,
                        address: method.address,
                        slot: (method.kind == FrameMethod::SLOT).then_some(method.slot),
                        name: String::from_utf8_lossy(method.name).into_owned(),
                    });
                }
                Event::Nettrace(piece) => sessions.add(&piece),
                Event::MethodName(name) => names.push(NamedCode {
                    time: name.time,
                    base: name.base,
                    size: u32::try_from(name.size).unwrap_or(u32::MAX),
                    source: name.source,
                    name: String::from_utf8_lossy(name.name).into_owned(),
                }),
                _ => {}
            }
        }
    }
    if left_out > 0 {
        sessions.problems.push(beyond_memory(left_out, "events of language runtimes", &trace.budget));
    }
    let begun = |session: &Nettrace| !session.bytes.is_empty();
    let mut list: Vec<Nettrace> = sessions.known.into_values().filter(begun).collect();
    list.sort_by_key(|session| (session.received, session.session));
    RuntimeEvents { sessions: list, names, frame_methods, problems: sessions.problems }
}

#[derive(Default)]
struct Sessions {
    known: BTreeMap<u64, Nettrace>,
    /// Sessions that lack a piece: the pieces behind it cannot be read.
    broken: HashSet<u64>,
    bytes: usize,
    problems: Vec<String>,
}

impl Sessions {
    fn add(&mut self, piece: &event::Nettrace<'_>) {
        if self.broken.contains(&piece.session) {
            return;
        }
        let session = self.known.entry(piece.session).or_insert(Nettrace {
            session: piece.session,
            received: Ticks::ZERO,
            bytes: Vec::new(),
        });
        let missing = piece.offset.checked_sub(session.bytes.len() as u64);
        let problem = if missing.is_some_and(|missing| missing > 0) {
            Some(format!("bytes {} to {} were lost", session.bytes.len(), piece.offset))
        } else if self.bytes.saturating_add(piece.bytes.len()) > MOST_BYTES {
            Some(format!("is left out from byte {} on: all lists together are too large", piece.offset))
        } else {
            None
        };
        if let Some(problem) = problem {
            let number = piece.session;
            self.problems.push(format!("the .NET runtime's list of methods (session {number}): {problem}"));
            self.broken.insert(number);
            return;
        }
        // Skip the bytes of a piece that was written twice.
        let known = (session.bytes.len() as u64 - piece.offset) as usize;
        let new = piece.bytes.get(known..).unwrap_or_default();
        session.bytes.extend_from_slice(new);
        session.received = session.received.max(piece.time);
        self.bytes += new.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(sessions: &mut Sessions, session: u64, offset: u64, bytes: &[u8]) {
        sessions.add(&event::Nettrace { session, time: Ticks(offset), offset, bytes });
    }

    #[test]
    fn alternating_pieces_of_two_sessions_are_kept_apart() {
        let mut sessions = Sessions::default();
        add(&mut sessions, 1, 0, b"ab");
        add(&mut sessions, 2, 0, b"xy");
        add(&mut sessions, 1, 2, b"cd");
        add(&mut sessions, 1, 2, b"cd");
        add(&mut sessions, 1, 3, b"de");
        assert_eq!(sessions.known[&1].bytes, b"abcde");
        assert_eq!((&*sessions.known[&2].bytes, sessions.known[&1].received), (&b"xy"[..], Ticks(3)));
        assert!(sessions.problems.is_empty());
    }

    #[test]
    fn nothing_is_joined_over_a_lost_piece() {
        let mut sessions = Sessions::default();
        add(&mut sessions, 7, 0, b"ab");
        add(&mut sessions, 7, 4, b"ef");
        add(&mut sessions, 7, 2, b"cd");
        assert_eq!(sessions.known[&7].bytes, b"ab");
        assert_eq!(sessions.problems.len(), 1);
        assert!(sessions.problems[0].contains("bytes 2 to 4 were lost"), "{:?}", sessions.problems);
    }
}
