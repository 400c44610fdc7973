//! What the code and runtimes threads wrote that the next file of a recording restates: dynamic
//! code, names and bodies of methods, what is known of runtimes, and their last lists of methods.
//!
//! Bounded: what has no room is not restated, and the next file says how much.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use stk_format::event::{decode, encode};
use stk_schema::Ticks;
use stk_schema::bytes::leb128_at;
use stk_schema::event::{Event, Metadata};

/// Most bytes that are kept.
const MOST_BYTES: usize = if size_of::<usize>() == 8 { 32 << 20 } else { 12 << 20 };
/// Bytes that an event takes beside its own.
const OVERHEAD: usize = 64;
/// METADATA of the next file: events that had no room, decimal.
const NOT_RESTATED: &[u8] = b"rotation.not_restated";

/// An event, encoded with its own time.
type Encoded = Box<[u8]>;

/// A code range.
struct RestatedCode {
    base: u64,
    size: u64,
    event: Encoded,
    bodies: Vec<Encoded>,
}

/// The events.
#[derive(Default)]
pub(crate) struct RestatedEvents {
    /// By the module's instance: the first one, which has the descriptor, and the last.
    runtimes: BTreeMap<u64, [Option<Encoded>; 2]>,
    /// By the instance.
    code: BTreeMap<u64, RestatedCode>,
    /// Bodies of methods of modules, by address.
    bodies: BTreeMap<u64, Encoded>,
    /// By the first address.
    names: BTreeMap<u64, Encoded>,
    /// Names of methods that explicit Frames are about, by kind, address and slot.
    frame_methods: BTreeMap<(u64, u64, u64), Encoded>,
    /// With the session.
    lists: Vec<(u64, Encoded)>,
    bytes: usize,
    left_out: u64,
}

impl RestatedEvents {
    /// Takes note of an event that is written.
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::CodeAdd(add) => {
                if let Some(encoded) = self.encoded(event) {
                    let code =
                        RestatedCode { base: add.base, size: add.size, event: encoded, bodies: Vec::new() };
                    let before = self.code.insert(add.instance, code);
                    self.forget_code(before);
                }
            }
            Event::CodeRemove { instance, .. } => {
                let gone = self.code.remove(instance);
                if let Some(code) = &gone {
                    let names: Vec<u64> = self
                        .names
                        .range(code.base..code.base.saturating_add(code.size))
                        .map(|(base, _)| *base)
                        .collect();
                    for base in names {
                        let name = self.names.remove(&base);
                        self.forget(name);
                    }
                }
                self.forget_code(gone);
            }
            Event::MethodName(name) => {
                if let Some(encoded) = self.encoded(event) {
                    let before = self.names.insert(name.base, encoded);
                    self.forget(before);
                }
            }
            Event::FrameMethod(method) => {
                if let Some(encoded) = self.encoded(event) {
                    let key = (method.kind, method.address, method.slot);
                    let before = self.frame_methods.insert(key, encoded);
                    self.forget(before);
                }
            }
            Event::MethodBody(body) => {
                let Some(encoded) = self.encoded(event) else { return };
                match self.code.get_mut(&body.instance).filter(|_| body.instance != 0) {
                    Some(code) => code.bodies.push(encoded),
                    // A module's code, or that of another thread: it is true until that is found
                    // out.
                    None => {
                        let before = self.bodies.insert(body.base, encoded);
                        self.forget(before);
                    }
                }
            }
            Event::RuntimeInfo(info) => {
                let Some(encoded) = self.encoded(event) else { return };
                let [first, last] = self.runtimes.entry(info.module).or_default();
                let before = if first.is_none() { first.replace(encoded) } else { last.replace(encoded) };
                self.forget(before);
            }
            Event::Nettrace(piece) => {
                // Each list has all methods. The one before is kept until this one is whole, which
                // the beginning of the next one shows.
                if piece.offset == 0 {
                    let old = piece.session.saturating_sub(1);
                    let lists = core::mem::take(&mut self.lists);
                    let (kept, gone): (Vec<_>, Vec<_>) =
                        lists.into_iter().partition(|(session, _)| *session >= old);
                    self.lists = kept;
                    gone.into_iter().for_each(|(_, piece)| self.forget(Some(piece)));
                }
                if let Some(encoded) = self.encoded(event) {
                    self.lists.push((piece.session, encoded));
                }
            }
            _ => {}
        }
    }

    /// Calls `write` with each event, in an order in which a reader understands them.
    pub(crate) fn each(&self, mut write: impl FnMut(&Event<'_>)) {
        let code = self.code.values().flat_map(|code| [&code.event].into_iter().chain(&code.bodies));
        let runtimes = self.runtimes.values().flatten().flatten();
        let lists = self.lists.iter().map(|(_, piece)| piece);
        let names = self.names.values().chain(self.frame_methods.values());
        for encoded in runtimes.chain(code).chain(self.bodies.values()).chain(names).chain(lists) {
            if let Some(event) = decoded(encoded) {
                write(&event);
            }
        }
        if self.left_out != 0 {
            let value = alloc::format!("{}", self.left_out);
            write(&Event::Metadata(Metadata { key: NOT_RESTATED, value: value.as_bytes() }));
        }
    }

    fn encoded(&mut self, event: &Event<'_>) -> Option<Encoded> {
        let encoded = encode(event, Ticks::ZERO).into_boxed_slice();
        let bytes = self.bytes + encoded.len() + OVERHEAD;
        if bytes > MOST_BYTES {
            self.left_out += 1;
            return None;
        }
        self.bytes = bytes;
        Some(encoded)
    }

    fn forget(&mut self, encoded: Option<Encoded>) {
        if let Some(encoded) = encoded {
            self.bytes = self.bytes.saturating_sub(encoded.len() + OVERHEAD);
        }
    }

    fn forget_code(&mut self, code: Option<RestatedCode>) {
        if let Some(code) = code {
            self.forget(Some(code.event));
            code.bodies.into_iter().for_each(|body| self.forget(Some(body)));
        }
    }
}

/// The event that was encoded.
fn decoded(encoded: &[u8]) -> Option<Event<'_>> {
    let (kind, at) = leb128_at(encoded, 0)?;
    let (_, body) = leb128_at(encoded, at)?;
    decode(kind, encoded.get(body..)?, Ticks::ZERO).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use stk_schema::event::{CodeAdd, FrameMethod, MethodName, Nettrace, RuntimeInfo};

    fn code(instance: u64, base: u64, code: &[u8]) -> Event<'_> {
        let (time, kind, size) = (Ticks(9), 1, 16);
        let (function, unwind): (&[u8], &[u8]) = (&[1], &[2]);
        Event::CodeAdd(CodeAdd { instance, time, kind, base, size, image_base: 5, function, unwind, code })
    }

    fn name(base: u64, name: &[u8]) -> Event<'_> {
        Event::MethodName(MethodName { time: Ticks(12), base, size: 4, source: 1, name })
    }

    fn piece(session: u64, offset: u64) -> Event<'static> {
        Event::Nettrace(Nettrace { session, time: Ticks(3), offset, bytes: b"xy" })
    }

    fn restated(kept: &RestatedEvents) -> Vec<String> {
        let mut all = Vec::new();
        kept.each(|event| all.push(format!("{event:?}")));
        all
    }

    fn shown(events: &[Event<'_>]) -> Vec<String> {
        events.iter().map(|event| format!("{event:?}")).collect()
    }

    #[test]
    fn code_that_lives_is_restated_with_its_names_as_they_were() {
        let mut kept = RestatedEvents::default();
        for event in
            [code(1, 0x1000, b"ab"), name(0x1004, b"gone"), code(2, 0x2000, b"cd"), name(0x2000, b"old")]
        {
            kept.note(&event);
        }
        kept.note(&Event::CodeRemove { instance: 1, time: Ticks(20) });
        kept.note(&name(0x2000, b"new"));
        assert_eq!(restated(&kept), shown(&[code(2, 0x2000, b"cd"), name(0x2000, b"new")]));
        kept.note(&Event::CodeRemove { instance: 2, time: Ticks(21) });
        assert_eq!((restated(&kept), kept.bytes), (vec![], 0));
    }

    #[test]
    fn methods_of_frames_are_restated_as_last_read() {
        let method = |address, name| {
            let (module, time, kind, slot, source) = (3, Ticks(7), FrameMethod::DESC, 0, 4);
            Event::FrameMethod(FrameMethod { module, time, kind, address, slot, source, name })
        };
        let mut kept = RestatedEvents::default();
        for event in [method(0x5000, b"old"), method(0x6000, b"other"), method(0x5000, b"new")] {
            kept.note(&event);
        }
        assert_eq!(restated(&kept), shown(&[method(0x5000, b"new"), method(0x6000, b"other")]));
    }

    #[test]
    fn the_last_two_lists_and_a_runtimes_facts_are_restated() {
        let info = |descriptor: &'static [u8], note: &'static [u8]| {
            Event::RuntimeInfo(RuntimeInfo {
                module: 3,
                time: Ticks(1),
                kind: 1,
                version: b"9",
                descriptor,
                pointer_data: b"",
                note,
            })
        };
        let mut kept = RestatedEvents::default();
        for event in
            [info(b"{}", b""), info(b"", b"one"), piece(1, 0), piece(1, 2), piece(2, 0), info(b"", b"two")]
        {
            kept.note(&event);
        }
        kept.note(&piece(3, 0));
        let expected = [info(b"{}", b""), info(b"", b"two"), piece(2, 0), piece(3, 0)];
        assert_eq!(restated(&kept), shown(&expected));
    }

    #[test]
    fn what_has_no_room_is_left_out_and_counted() {
        let mut kept = RestatedEvents::default();
        let large = vec![7; MOST_BYTES / 2];
        kept.note(&code(1, 0x1000, &large));
        kept.note(&code(2, 0x2000, &large));
        kept.note(&name(0x3000, b"small"));
        let all = restated(&kept);
        assert_eq!(all.len(), 3);
        assert!(all[2].contains("Metadata"), "{}", all[2]);
        assert!(kept.bytes <= MOST_BYTES);
    }
}
