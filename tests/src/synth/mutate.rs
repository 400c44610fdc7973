//! Makes one change to a trace and keeps its structure. Such changes get past the checksums, which
//! flips of stored bytes never do.

use super::parts::{Parts, StoredEvent};
use super::random::Random;
use stk_format::blob::content_hash;
use stk_format::{BlockKind, event};
use stk_schema::event::{Blob, Event, kind};
use stk_schema::limits;

/// Chooses what to change: a random sequence, or the input of a fuzzer.
pub trait Choices {
    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize;
}

impl Choices for Random {
    fn below(&mut self, bound: usize) -> usize {
        Random::below(self, bound)
    }
}

/// Numbers at which arithmetic, limits and signs break.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    3,
    0x3f,
    0x40,
    0x7f,
    0x80,
    0xff,
    0xffff,
    0x1_0000,
    limits::MAX_NAME as u64,
    limits::MAX_SAMPLE_WORDS as u64,
    1 << 24,
    limits::MAX_BLOB,
    0x7fff_ffff,
    0xffff_ffff,
    0x1_0000_0000,
    1 << 47,
    u64::MAX / 2,
    u64::MAX - 1,
    u64::MAX,
];

/// Makes one change and returns its kind. A kind that applies to no part of the trace leaves it
/// unchanged.
pub fn mutate(parts: &mut Parts, choices: &mut dyn Choices) -> &'static str {
    if parts.blocks.is_empty() {
        return "nothing to change";
    }
    type Change = fn(&mut Parts, &mut dyn Choices);
    const CHANGES: [(u8, &str, Change); 12] = [
        (8, "a number of an event", event_number),
        (3, "a text of an event", event_text),
        (2, "a byte of an event", event_byte),
        (2, "an event's type", event_kind),
        (2, "an event dropped", |parts, choices| change_events(parts, choices, drop_event)),
        (2, "an event repeated", |parts, choices| change_events(parts, choices, repeat_event)),
        (2, "two events swapped", |parts, choices| {
            change_events(parts, choices, |events, at, choices| swap_events(events, at, choices))
        }),
        (1, "an event moved to another block", move_event),
        (3, "a block header's field", block_field),
        (2, "blocks in another order", block_order),
        (1, "the file header", file_header),
        (3, "a BLOB with its hash", blob),
    ];
    let all: usize = CHANGES.iter().map(|(share, _, _)| usize::from(*share)).sum();
    let mut choice = choices.below(all);
    for (share, name, change) in CHANGES {
        match choice.checked_sub(share.into()) {
            Some(rest) => choice = rest,
            None => {
                change(parts, choices);
                return name;
            }
        }
    }
    "nothing to change"
}

/// A boundary number, a number near `value`, or any number.
pub(crate) fn number(value: u64, choices: &mut dyn Choices) -> u64 {
    match choices.below(8) {
        0 => value.wrapping_add(1),
        1 => value.wrapping_sub(1),
        2 => value ^ 1 << choices.below(64),
        3 => NUMBERS[choices.below(NUMBERS.len())].wrapping_add(value),
        4 => (choices.below(1 << 16) as u64) << choices.below(49),
        _ => NUMBERS[choices.below(NUMBERS.len())],
    }
}

/// An event of the trace; none if the chosen block has none.
fn pick<'p>(parts: &'p mut Parts, choices: &mut dyn Choices) -> Option<&'p mut StoredEvent> {
    let block = choices.below(parts.blocks.len());
    let events = &mut parts.blocks[block].events;
    if events.is_empty() {
        return None;
    }
    let event = choices.below(events.len());
    events.get_mut(event)
}

fn event_number(parts: &mut Parts, choices: &mut dyn Choices) {
    let Some(event) = pick(parts, choices) else { return };
    let numbers = event.numbers();
    if numbers.is_empty() {
        return;
    }
    // Counts and lengths come first.
    let within = if choices.below(2) == 0 { numbers.len().min(8) } else { numbers.len() };
    let (range, value) = numbers[choices.below(within)].clone();
    event.set_number(range, number(value, choices));
}

fn event_byte(parts: &mut Parts, choices: &mut dyn Choices) {
    let Some(event) = pick(parts, choices) else { return };
    if event.body.is_empty() {
        return;
    }
    let at = choices.below(event.body.len());
    match choices.below(3) {
        0 => event.body[at] ^= 1 << choices.below(8),
        1 => event.body.truncate(at),
        _ => event.body.insert(at, choices.below(256) as u8),
    }
}

fn event_kind(parts: &mut Parts, choices: &mut dyn Choices) {
    let Some(event) = pick(parts, choices) else { return };
    event.kind = match choices.below(8) {
        0 => kind::VENDOR_FIRST,
        1 => u64::MAX,
        _ => choices.below(kind::END as usize + 2) as u64,
    };
}

/// Texts that are not valid names.
const TEXTS: [&[u8]; 16] = [
    b"",
    b"\0",
    b"..",
    b"..\\..\\..\\x.dll",
    b"/dev/zero",
    b"\\\\server\\share\\x.dll",
    b"\\\\?\\C:\\x.dll",
    b"C:\\",
    b"C:\\con.dll",
    b"\x1b[2J\x1b]0;title\x07",
    b"\xc2\x9b31m",
    b"a\r\nb\ttc",
    b"\xe2\x80\xae\xe2\x81\xa6x",
    b"\xff\xfe\xed\xa0\x80",
    b"{\"a\":\"</script>",
    b"%s%n{}{:?}",
];

fn event_text(parts: &mut Parts, choices: &mut dyn Choices) {
    let block = choices.below(parts.blocks.len());
    let first = parts.blocks[block].header.first;
    let events = &mut parts.blocks[block].events;
    let named = |event: &StoredEvent| {
        let decoded = event::decode(event.kind, &event.body, first).ok()?;
        with_text(decoded, b"").map(drop)
    };
    let places: Vec<usize> = (0..events.len()).filter(|&i| named(&events[i]).is_some()).collect();
    if places.is_empty() {
        return;
    }
    let place = places[choices.below(places.len())];
    let long = vec![b'n'; limits::MAX_NAME];
    let text = match choices.below(TEXTS.len() + 2) {
        0 => &long[..],
        1 => &long[..0x1_0000],
        i => TEXTS[i - 2],
    };
    let body = std::mem::take(&mut events[place].body);
    let decoded = event::decode(events[place].kind, &body, first).ok().and_then(|e| with_text(e, text));
    let changed = decoded.and_then(|event| StoredEvent::of(&event, first));
    events[place].body = changed.map_or(body, |event| event.body);
}

/// `event` with `text` for its name or text; `None` if it has none.
pub(super) fn with_text<'a>(event: Event<'a>, text: &'a [u8]) -> Option<Event<'a>> {
    Some(match event {
        Event::ModuleLoad(mut e) => {
            e.path = text;
            Event::ModuleLoad(e)
        }
        Event::ThreadName { instance, time, .. } => Event::ThreadName { instance, time, name: text },
        Event::MethodName(mut e) => {
            e.name = text;
            Event::MethodName(e)
        }
        Event::RuntimeInfo(mut e) => {
            (e.version, e.note) = (text, text);
            Event::RuntimeInfo(e)
        }
        Event::Mark(mut e) => {
            e.text = text;
            Event::Mark(e)
        }
        Event::Redaction(mut e) => {
            e.rule = text;
            Event::Redaction(e)
        }
        Event::Metadata(mut e) => {
            e.value = text;
            Event::Metadata(e)
        }
        Event::End(mut e) => {
            e.detail = text;
            Event::End(e)
        }
        _ => return None,
    })
}

/// Changes the list of events of one block at one index.
fn change_events(
    parts: &mut Parts,
    choices: &mut dyn Choices,
    change: fn(&mut Vec<StoredEvent>, usize, &mut dyn Choices),
) {
    let block = choices.below(parts.blocks.len());
    let events = &mut parts.blocks[block].events;
    if !events.is_empty() {
        let at = choices.below(events.len());
        change(events, at, choices);
    }
}

fn drop_event(events: &mut Vec<StoredEvent>, at: usize, _: &mut dyn Choices) {
    events.remove(at);
}

fn repeat_event(events: &mut Vec<StoredEvent>, at: usize, choices: &mut dyn Choices) {
    let times = [1, 1, 2, 100][choices.below(4)];
    let event = events[at].clone();
    events.splice(at..at, std::iter::repeat_n(event, times));
}

fn swap_events(events: &mut [StoredEvent], at: usize, choices: &mut dyn Choices) {
    let other = choices.below(events.len());
    events.swap(at, other);
}

fn move_event(parts: &mut Parts, choices: &mut dyn Choices) {
    let Some(event) = pick(parts, choices).map(|event| event.clone()) else { return };
    let block = choices.below(parts.blocks.len());
    let events = &mut parts.blocks[block].events;
    let at = choices.below(events.len() + 1);
    events.insert(at, event);
}

fn block_field(parts: &mut Parts, choices: &mut dyn Choices) {
    let block = choices.below(parts.blocks.len());
    let header = &mut parts.blocks[block].header;
    match choices.below(10) {
        0 => header.seq = number(header.seq, choices),
        1 => header.first.0 = number(header.first.0, choices),
        2 => header.last.0 = number(header.last.0, choices),
        3 => header.kind = BlockKind::from_code(choices.below(10) as u8),
        4 => header.flags = number(header.flags.into(), choices) as u16,
        5 => header.dropped = number(header.dropped, choices),
        6 => header.last_meta = number(header.last_meta, choices),
        7 => header.ordinal = number(header.ordinal, choices),
        8 => header.samples = number(header.samples.into(), choices) as u32,
        _ => header.stack_bytes = number(header.stack_bytes.into(), choices) as u32,
    }
}

fn block_order(parts: &mut Parts, choices: &mut dyn Choices) {
    let at = choices.below(parts.blocks.len());
    match choices.below(3) {
        0 => drop(parts.blocks.remove(at)),
        1 => {
            let other = choices.below(parts.blocks.len());
            parts.blocks.swap(at, other);
        }
        _ => {
            let block = parts.blocks[at].clone();
            parts.blocks.insert(at, block);
        }
    }
    if choices.below(2) == 0 {
        parts.renumber();
    }
}

fn file_header(parts: &mut Parts, choices: &mut dyn Choices) {
    let header = &mut parts.header;
    match choices.below(7) {
        0 => header.clock_frequency = number(header.clock_frequency, choices),
        1 => header.clock_start.0 = number(header.clock_start.0, choices),
        2 => header.utc_start = number(header.utc_start, choices),
        3 => header.process_created = number(header.process_created, choices),
        4 => header.rate_mhz = number(header.rate_mhz.into(), choices) as u32,
        5 => header.pid = number(header.pid.into(), choices) as u32,
        _ => header.compatible = number(header.compatible, choices),
    }
}

/// Changes the bytes of a BLOB that is one piece, and every mention of its hash with them.
fn blob(parts: &mut Parts, choices: &mut dyn Choices) {
    let mut places = Vec::new();
    for (b, block) in parts.blocks.iter().enumerate() {
        places.extend(
            block.events.iter().enumerate().filter(|(_, e)| e.kind == kind::BLOB).map(|(e, _)| (b, e)),
        );
    }
    if places.is_empty() {
        return;
    }
    let (block, event) = places[choices.below(places.len())];
    let first = parts.blocks[block].header.first;
    let stored = parts.blocks[block].events[event].body.clone();
    let Ok(Event::Blob(old)) = event::decode(kind::BLOB, &stored, first) else { return };
    let mut bytes = old.bytes.to_vec();
    if bytes.is_empty() || old.total != bytes.len() as u64 {
        return;
    }
    for _ in 0..1 + choices.below(4) {
        let at = choices.below(bytes.len());
        bytes[at] =
            if choices.below(2) == 0 { bytes[at] ^ 1 << choices.below(8) } else { choices.below(256) as u8 };
    }
    let hash = content_hash(&bytes);
    let new = Blob { hash, total: bytes.len() as u64, offset: 0, bytes: &bytes };
    let Some(changed) = StoredEvent::of(&Event::Blob(new), first) else { return };
    parts.blocks[block].events[event] = changed;
    for event in parts.blocks.iter_mut().flat_map(|block| &mut block.events) {
        if event.kind == kind::MODULE_TABLES {
            replace(&mut event.body, &old.hash.0, &hash.0);
        }
    }
}

fn replace(bytes: &mut [u8], old: &[u8; 16], new: &[u8; 16]) {
    let mut at = 0;
    while let Some(window) = bytes.get_mut(at..at + 16) {
        if window == old {
            window.copy_from_slice(new);
            at += 15;
        }
        at += 1;
    }
}
