//! Invalid names, and every place of a trace that has a name.

use super::{BASE, STACK, THREAD, small_parts};
use crate::synth::{Parts, Random, TraceBuilder};
use stk_format::{BlockKind, SupplementWriter, Trace};
use stk_schema::event::*;
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_schema::{Arch, Ticks, limits};

/// A place of a trace, filled with a name.
type Place = fn(&[u8]) -> Vec<u8>;

/// The names.
pub fn names() -> Vec<Vec<u8>> {
    let long = |len: usize| vec![b'n'; len];
    let texts: [&[u8]; 19] = [
        b"",
        b"\0",
        b"a\0b.dll",
        b"..",
        b"..\\..\\..\\..\\x.dll",
        b"../../../../etc/passwd",
        b"\\\\attacker\\share\\x.dll",
        b"\\\\?\\C:\\x.dll",
        b"\\\\.\\pipe\\x",
        b"C:\\con.dll",
        b"\x1b[2J\x1b]0;title\x07.dll",
        b"\xc2\x9b31m.dll",
        b"a\r\nstk: wrote b.json\tc.dll",
        b"\xe2\x80\xaegpj.exe\xe2\x81\xa6.dll",
        b"\xff\xfe\xed\xa0\x80.dll",
        b"\"},{\"</script><img src=x>",
        b"{0}{:?}%s%n$(id)`id`",
        b"~",
        b"\x7f\x08\x08\x08.dll",
    ];
    let mut names: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
    // Lengths at and above 16 bits; the longest that the format allows.
    names.extend([long(300), long(65_535), long(65_536), long(96 << 10)]);
    names
}

/// `count` more names, the same in every run: pieces of [`names`] and other text in any order, and
/// any bytes, up to the longest name that the format allows.
pub fn drawn(count: usize) -> Vec<Vec<u8>> {
    let pieces: [&[u8]; 12] = [
        b"\n",
        b"\r\nforged: ",
        b"\x1b]8;;http://x\x1b\\",
        b"\xe2\x80\x8f",
        b"\xd8\x9c",
        b"\xe2\x80\xa8",
        b"\xf4\x8f\xbf\xbf",
        b"\xcc\x88\xcc\x88",
        b";",
        b"\\",
        b"/",
        b":$DATA",
    ];
    let names = names();
    let mut random = Random::new(12);
    let mut draw = || {
        let longest = limits::MAX_NAME >> random.below(17);
        let mut name = Vec::new();
        for _ in 0..=random.below(8) {
            match random.below(4) {
                0 => name.extend((0..random.below(40)).map(|_| random.number() as u8)),
                1 => name.extend(&names[random.below(names.len())]),
                2 => name.extend(pieces[random.below(pieces.len())].repeat(1 + random.below(longest))),
                _ => name.extend(pieces[random.below(pieces.len())]),
            }
        }
        name.truncate(longest);
        name
    };
    (0..count).map(|_| draw()).collect()
}

/// The places, by name.
pub const PLACES: [(&str, Place); 9] = [
    ("module path", module_path),
    ("PDB name", pdb_name),
    ("thread name", thread_name),
    ("metadata", metadata),
    ("mark", mark),
    ("end", end),
    ("runtime", runtime),
    ("redaction and drop", redaction),
    ("method", method),
];

/// A trace that has names with terminal control characters in all places at once.
pub fn everywhere() -> Vec<u8> {
    let name = EVERYWHERE.as_bytes();
    let mut parts = with_module(&[b"C:\\".as_slice(), name].concat(), name);
    for event in events(name) {
        parts.block(BlockKind::Meta, Ticks(500_000)).push(&event);
    }
    supplemented(finished(parts, name), name)
}

/// The name that [`everywhere`] has in every place. Its second line is no line of stk's.
pub const EVERYWHERE: &str = "\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\r\u{8}\u{202e}\u{2066}\0z\nforged: y";

/// A trace with a supplement that says this of what it lacks.
fn supplemented(mut file: Vec<u8>, left: &[u8]) -> Vec<u8> {
    let trace = Trace::open(&file).expect("a trace");
    let mut supplement = SupplementWriter::new(&trace).expect("a trace without one");
    let fact = Event::Metadata(Metadata { key: b"supplement.left", value: left });
    supplement.event(BlockKind::Meta, &fact).expect("an event within the limits");
    let addition = supplement.finish().expect("memory");
    file.truncate(addition.keep as usize);
    file.extend(addition.bytes);
    file
}

fn events(name: &[u8]) -> Vec<Event<'_>> {
    vec![
        Event::ThreadName { instance: THREAD, time: Ticks(5), name },
        Event::Metadata(Metadata { key: b"host", value: name }),
        Event::Metadata(Metadata { key: b"command_line", value: name }),
        Event::Metadata(Metadata { key: b"os.name", value: name }),
        Event::Metadata(Metadata { key: b"recorder.version", value: name }),
        Event::Metadata(Metadata { key: b"os.build", value: name }),
        Event::Metadata(Metadata { key: b"wine", value: name }),
        Event::Metadata(Metadata { key: name, value: name }),
        Event::Mark(Mark { time: Ticks(6), thread: THREAD, tag: 1, text: name }),
        Event::RuntimeInfo(RuntimeInfo {
            module: 1,
            time: Ticks(7),
            kind: 1,
            version: name,
            descriptor: name,
            pointer_data: &[],
            note: name,
        }),
        Event::Redaction(Redaction { rule: name, words: 1 }),
        Event::MethodName(MethodName { time: Ticks(8), base: 0x5000, size: 0x1000, source: 1, name }),
    ]
}

/// A trace with a module of this path and PDB name, and samples in it.
fn with_module(path: &[u8], pdb_name: &[u8]) -> Parts {
    let mut builder = TraceBuilder::new(Arch::X64);
    let pe = Identity::Pe(PeIdentity { time_date_stamp: 7, size_of_image: 0x10_0000, check_sum: 9 });
    let code_view = Identity::CodeView(CodeView { guid: [7; 16], age: 1, pdb_name });
    // It takes the first instance, as in `small`, so that the thread has the same as there.
    builder.module(0, 0x9000_0000, 0x1000, r"C:\other.dll", Vec::new());
    let instance = 50;
    builder.meta(
        0,
        &Event::ModuleLoad(ModuleLoad {
            instance,
            time: Ticks(0),
            base: BASE,
            size: 0x10_0000,
            flags: ModuleFlags::MAIN,
            path,
            identities: vec![pe, code_view],
        }),
    );
    let module = Event::ModuleTables(ModuleTables { instance, tables: Vec::new() });
    builder.meta(0, &module);
    let thread = builder.thread(0, 11, "main", STACK);
    for i in 1..=40 {
        let registers = [BASE + 0x1000 + i % 3, STACK - 32];
        builder.sample(thread, i * 10_000, &registers, &[i, BASE + 0x2000, 0, 0]);
    }
    // The system's walk of the last sample, which ours differs from, and a runtime's word on it.
    let (time, frames) = (Ticks(400_000), vec![(BASE + 0x1001, STACK - 32), (BASE + 0x77, STACK - 8)]);
    builder.push(&Event::CheckWalk(CheckWalk { thread, time, flags: 0, frames }));
    let managed = ManagedThread {
        thread,
        time,
        address: 0x5000,
        state: 0,
        preemptive_disabled: 0,
        frame: STACK - 16,
        exception: 0,
    };
    builder.push(&Event::ManagedThread(managed));
    Parts::take_apart(&builder.finish()).expect("a trace")
}

fn finished(mut parts: Parts, detail: &[u8]) -> Vec<u8> {
    let is_end = |kind| kind == BlockKind::End;
    parts.blocks.retain(|block| !is_end(block.header.kind));
    let end =
        End { time: Ticks(500_000), reason: EndReason::Stopped as u64, samples: 40, dropped: 0, detail };
    parts.block(BlockKind::End, Ticks(500_000)).push(&Event::End(end));
    parts.renumber();
    parts.to_file()
}

fn with_events(events: &[Event<'_>]) -> Vec<u8> {
    let mut parts = small_parts();
    let end = parts.blocks.pop();
    let block = parts.block(BlockKind::Meta, Ticks(500_000));
    for event in events {
        block.push(event);
    }
    parts.blocks.extend(end);
    parts.renumber();
    parts.to_file()
}

fn module_path(name: &[u8]) -> Vec<u8> {
    with_module(name, b"app.pdb").to_file()
}

fn pdb_name(name: &[u8]) -> Vec<u8> {
    with_module(b"C:\\app.exe", name).to_file()
}

fn thread_name(name: &[u8]) -> Vec<u8> {
    with_events(&[Event::ThreadName { instance: THREAD, time: Ticks(5), name }])
}

fn metadata(name: &[u8]) -> Vec<u8> {
    with_events(&[
        Event::Metadata(Metadata { key: b"host", value: name }),
        Event::Metadata(Metadata { key: b"command_line", value: name }),
        Event::Metadata(Metadata { key: name, value: name }),
    ])
}

fn mark(name: &[u8]) -> Vec<u8> {
    with_events(&[Event::Mark(Mark { time: Ticks(6), thread: 0, tag: 1, text: name })])
}

fn end(name: &[u8]) -> Vec<u8> {
    finished(small_parts(), name)
}

fn runtime(name: &[u8]) -> Vec<u8> {
    let (version, note, descriptor) = (name, name, name);
    let info =
        RuntimeInfo { module: 1, time: Ticks(7), kind: 1, version, descriptor, pointer_data: &[], note };
    with_events(&[Event::RuntimeInfo(info)])
}

fn redaction(name: &[u8]) -> Vec<u8> {
    let dropped = Dropped { time: Ticks(9), reason: u64::MAX, thread: 0, count: 3 };
    with_events(&[Event::Redaction(Redaction { rule: name, words: 1 }), Event::Dropped(dropped)])
}

fn method(name: &[u8]) -> Vec<u8> {
    // Where the samples' return addresses lie that are in no module.
    let named = MethodName { time: Ticks(8), base: 0, size: 0x1000, source: 1, name };
    let code = CodeAdd {
        instance: 77,
        time: Ticks(0),
        kind: CodeKind::Jit as u64,
        base: 0,
        size: 0x1000,
        image_base: 0,
        function: &[],
        unwind: &[],
        code: &[],
    };
    with_events(&[Event::CodeAdd(code), Event::MethodName(named)])
}
