//! Small traces that need much time or memory to read. Each class has its sizes: the smallest that
//! showed a fault, and a larger one that shows a cost that grows faster than the trace. [`drawn`]
//! gives more of them.

mod drawn;
mod frames;
mod stacks;

pub use drawn::drawn;
pub use stacks::two_tags;

use super::{BASE, STACK, THREAD, small_parts, thread};
use crate::synth::{Parts, StoredBlock, StoredEvent};
use stk_format::BlockKind;
use stk_format::blob::content_hash;
use stk_schema::Ticks;
use stk_schema::event::*;
use stk_schema::identity::{CodeView, ContentHash, Identity, PeIdentity};
use stk_schema::limits;

/// A class: its name, the function that makes it, its sizes.
type Class = (&'static str, Add, &'static [usize]);

/// Adds a bomb of a size to a trace.
type Add = fn(&mut Parts, usize);

/// Longest text that the format allows.
const TEXT: usize = limits::MAX_NAME;

/// Classes that add to a trace.
const CLASSES: &[Class] = &[
    ("tiny marks", tiny_marks, &[10, 40]),
    ("long marks", long_marks, &[60, 300]),
    ("pieces of BLOBs", blob_pieces, &[20, 100]),
    ("distinct BLOBs", distinct_blobs, &[100_000]),
    ("BLOBs of a claimed gigabyte", claimed_blobs, &[1_000]),
    ("pieces of a BLOB in falling order", falling_pieces, &[200_000, 550_000]),
    ("long thread names", long_thread_names, &[300, 3_000]),
    ("a thread renamed", renamed_thread, &[3_000]),
    ("deep stacks at a moment", deep_stacks, &[1, 4, 40]),
    ("facts", facts, &[100_000, 400_000]),
    ("long facts", long_facts, &[10, 60]),
    ("tables of an image", image_tables, &[100_000, 600_000]),
    ("keyframes of deep images", keyframes, &[200, 2_000]),
    ("keyframes that dirty pages", dirty_pages, &[200, 2_000]),
    ("broken sessions", broken_sessions, &[200_000]),
    ("long sessions", long_sessions, &[10, 60]),
    ("runtimes", runtimes, &[150_000]),
    ("long runtime texts", long_runtimes, &[600]),
    ("threads", threads, &[50_000, 300_000]),
    ("threads lost again and again", lost_threads, &[2_000]),
    ("modules", modules, &[10_000, 100_000]),
    ("modules in falling order", falling_modules, &[10_000, 200_000]),
    ("samples back and forth among modules", back_and_forth, &[200, 20_000]),
    ("modules that overlap", overlapping_modules, &[10_000, 100_000]),
    ("modules without headers", modules_without_headers, &[2_000, 20_000]),
    ("long module paths", long_paths, &[100, 2_000]),
    ("long PDB names", long_pdb_names, &[50]),
    ("code regions", code_regions, &[20_000, 200_000]),
    ("code regions that overlap", overlapping_code, &[2_000, 20_000]),
    ("long code", long_code, &[20]),
    ("method names", method_names, &[50_000, 200_000]),
    ("long method names", long_method_names, &[60, 300]),
    ("clocks and rates", clocks, &[50_000, 300_000]),
    ("drop reasons", drop_reasons, &[100_000]),
    ("redaction rules", redactions, &[100_000]),
    ("unknown events", unknown_events, &[100_000, 500_000]),
    ("idle spans", idle_spans, &[50_000, 200_000]),
    ("empty walks", long_walks, &[10, 100]),
    ("memory", memory, &[20]),
    ("managed threads", managed_threads, &[200_000]),
    ("times at the end of all", last_times, &[0]),
    ("times that go back", backward_times, &[0]),
    ("counts at their limit", full_counts, &[0]),
    ("thread slots", slots, &[1_000, 65_536]),
    ("samples without stack", bare_samples, &[10_000, 200_000]),
];

/// Classes that make a trace of their own.
const STACKS: &[Class] = &[
    ("deep stacks that differ at their root", stacks::other_roots, &[200, 1_000]),
    ("deep stacks that differ at their root, block after block", stacks::repeated_roots, &[10, 100]),
    ("deep stacks of many threads", stacks::many_threads, &[200, 1_000]),
    ("deep stacks through many modules", stacks::many_modules, &[200, 1_000]),
    ("deep stacks in a module with a long name", stacks::long_module, &[40]),
    ("samples that are all different", stacks::different, &[20_000]),
    ("captures", stacks::captures, &[10_000, 100_000]),
    ("methods with long names at one place", stacks::ambiguous_methods, &[20_000]),
    ("samples a day apart", stacks::days, &[2]),
    ("many samples a day apart", stacks::days, &[5_000]),
    ("samples a century apart", stacks::centuries, &[5]),
    ("runtimes and modules", stacks::runtimes_and_modules, &[10_000, 60_000]),
    ("one stack that never changes", unchanging, &[1 << 31]),
];

/// Makes a trace.
pub type Make = Box<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Every bomb: its name, the function that makes it, and whether it is one of its class's larger
/// sizes.
pub fn all() -> Vec<(String, Make, bool)> {
    let mut bombs: Vec<(String, Make, bool)> = Vec::new();
    for &(name, class, sizes) in CLASSES.iter().chain(STACKS) {
        for (n, &size) in sizes.iter().enumerate() {
            bombs.push((format!("{name}, {size}"), Box::new(move || bomb(&[(class, size)])), n > 0));
        }
    }
    for (name, stored) in frames::frames() {
        bombs.push((name.to_owned(), Box::new(move || frames::forged_frame(&stored)), false));
    }
    bombs
}

/// A trace with bombs of these classes and sizes. It begins with the blocks of a sound trace,
/// unless the first is of [`STACKS`].
fn bomb(classes: &[(Add, usize)]) -> Vec<u8> {
    let mut parts = small_parts();
    // Without its END block it is a recording in progress.
    parts.blocks.retain(|block| block.header.kind != BlockKind::End);
    for &(add, size) in classes {
        add(&mut parts, size);
        parts.renumber();
    }
    parts.to_file()
}

/// A block of `kind` full of copies of `event`, `times` times.
fn full(parts: &mut Parts, kind: BlockKind, event: &Event<'_>, times: usize) {
    let block = parts.block(kind, Ticks(600_000));
    let Some(event) = StoredEvent::of(event, Ticks(600_000)) else { return };
    let one = event.body.len() + 12;
    block.events = vec![event; (limits::MAX_BLOCK_RAW - 1024) / one];
    block.times = times as u32;
}

/// Blocks of `kind` with `count` events from `make`.
fn many<'e>(parts: &mut Parts, kind: BlockKind, count: usize, make: impl Fn(u64) -> Event<'e>) {
    let mut left = 0..count as u64;
    while !left.is_empty() {
        let block: &mut StoredBlock = parts.block(kind, Ticks(600_000));
        let mut raw = 0;
        while raw < limits::MAX_BLOCK_RAW - 2 * TEXT - 1024
            && let Some(i) = left.next()
        {
            block.push(&make(i));
            raw += block.events.last().map_or(0, |event| event.body.len() + 12);
        }
        block.seal();
    }
}

fn tiny_marks(parts: &mut Parts, blocks: usize) {
    let mark = Event::Mark(Mark { time: Ticks(600_000), thread: 0, tag: 0, text: b"" });
    full(parts, BlockKind::Meta, &mark, blocks);
}

fn long_marks(parts: &mut Parts, blocks: usize) {
    let text = vec![b'x'; TEXT];
    full(
        parts,
        BlockKind::Meta,
        &Event::Mark(Mark { time: Ticks(0), thread: 0, tag: 0, text: &text }),
        blocks,
    );
}

fn blob_pieces(parts: &mut Parts, blocks: usize) {
    let piece =
        |i: u8| Event::Blob(Blob { hash: ContentHash([i; 16]), total: 1 << 20, offset: 0, bytes: b"" });
    full(parts, BlockKind::Blob, &piece(1), blocks);
    if let Some(block) = parts.blocks.last_mut()
        && let Some(other) = StoredEvent::of(&piece(2), Ticks(600_000))
    {
        block.events.iter_mut().step_by(2).for_each(|event| event.clone_from(&other));
    }
}

fn distinct_blobs(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Blob, count, |i| {
        let mut hash = [0; 16];
        hash[..8].copy_from_slice(&i.to_le_bytes());
        Event::Blob(Blob { hash: ContentHash(hash), total: 8, offset: 0, bytes: b"" })
    });
}

fn claimed_blobs(parts: &mut Parts, count: usize) {
    let hash = |i: u64| ContentHash(std::array::from_fn(|n| (i >> (n % 8)) as u8));
    let blob = |i| Blob { hash: hash(i), total: limits::MAX_BLOB, offset: 0, bytes: b"x" };
    many(parts, BlockKind::Blob, count, |i| Event::Blob(blob(i)));
    many(parts, BlockKind::Meta, count, |i| {
        let kind = TableKind::UnwindInfo as u64;
        let table = ImageTable { kind, rva: 0, len: u32::MAX, hash: hash(i) };
        Event::ModuleTables(ModuleTables { instance: 1, tables: vec![table] })
    });
}

fn falling_pieces(parts: &mut Parts, count: usize) {
    let whole = vec![7; count];
    let hash = content_hash(&whole);
    let total = count as u64;
    many(parts, BlockKind::Blob, count, |i| {
        Event::Blob(Blob { hash, total, offset: total - 1 - i, bytes: &[7] })
    });
    let kind = TableKind::UnwindInfo as u64;
    let table = ImageTable { kind, rva: 0x9_0000, len: count as u32, hash };
    let tables = ModuleTables { instance: 1, tables: vec![table] };
    parts.block(BlockKind::Meta, Ticks(600_000)).push(&Event::ModuleTables(tables));
}

fn long_thread_names(parts: &mut Parts, count: usize) {
    let name = vec![b'x'; TEXT];
    many(parts, BlockKind::Meta, count, |i| Event::ThreadStart(thread(100 + i)));
    // In blocks of 160, each of which stands for 16 MB.
    many(parts, BlockKind::Meta, count, |i| Event::ThreadName {
        instance: 100 + i,
        time: Ticks(0),
        name: &name,
    });
}

fn renamed_thread(parts: &mut Parts, count: usize) {
    let name = vec![b'x'; TEXT];
    many(parts, BlockKind::Meta, count, |_| Event::ThreadName {
        instance: THREAD,
        time: Ticks(0),
        name: &name,
    });
}

/// A SAMPLE: slot 0, no time passed, its flags and fields, all as numbers.
fn sample(slot: u64, flags: u64, rest: &[u64]) -> StoredEvent {
    StoredEvent::of_numbers(kind::SAMPLE, &[&[slot, 0, flags], rest].concat())
}

const KEYFRAME: u64 = 2;
const TRUNCATED: u64 = 0x40;

/// A SAMPLES block whose slots are those threads.
fn samples(parts: &mut Parts, threads: impl Iterator<Item = u64>) -> &mut StoredBlock {
    let block = parts.block(BlockKind::Samples, Ticks(600_000));
    let slot = |(slot, thread)| StoredEvent::of_numbers(kind::SLOT, &[slot, thread, 1]);
    block.events.extend((0..).zip(threads).map(slot));
    block
}

fn deep_stacks(parts: &mut Parts, blocks: usize) {
    let words = limits::MAX_SAMPLE_WORDS as u64;
    many(parts, BlockKind::Meta, 8 * blocks, |i| Event::ThreadStart(thread(100 + i)));
    for block in 0..blocks as u64 {
        let block = samples(parts, (0..8).map(|i| 100 + 8 * block + i));
        // Eight stacks of 8 MiB of zeros, which is the most that a block may stand for.
        let deep = |slot| sample(slot, KEYFRAME, &[0, 1 << 40, 0, 2 * words, 0, words]);
        block.events.extend((0..8).map(deep));
        (block.header.samples, block.header.stack_bytes) = (8, 64 << 20);
    }
}

fn facts(parts: &mut Parts, count: usize) {
    let keys: Vec<String> = (0..count).map(|i| format!("{i}")).collect();
    many(parts, BlockKind::Meta, count, |i| {
        Event::Metadata(Metadata { key: keys[i as usize].as_bytes(), value: b"" })
    });
}

fn long_facts(parts: &mut Parts, blocks: usize) {
    let mut values: Vec<Vec<u8>> = (0..200u8).map(|i| vec![b'x'; TEXT - usize::from(i)]).collect();
    values.iter_mut().for_each(|value| value[0] = b'y');
    let fact = |i: u64| Metadata { key: b"host", value: &values[i as usize % 200] };
    for i in 0..blocks as u64 {
        many(parts, BlockKind::Meta, 150, |n| Event::Metadata(fact(i + n)));
    }
}

fn image_tables(parts: &mut Parts, count: usize) {
    let table = |i: usize| ImageTable { kind: 6, rva: i as u32, len: 1, hash: ContentHash([1; 16]) };
    for some in (0..count).collect::<Vec<_>>().chunks(100_000) {
        let tables = some.iter().map(|&i| table(i)).collect();
        let event = Event::ModuleTables(ModuleTables { instance: 1, tables });
        parts.block(BlockKind::Meta, Ticks(600_000)).push(&event);
    }
}

fn keyframes(parts: &mut Parts, blocks: usize) {
    let deep = 2 * limits::MAX_SAMPLE_WORDS as u64;
    let block = samples(parts, std::iter::once(THREAD));
    let one = sample(0, KEYFRAME | TRUNCATED, &[0, 1 << 40, 0, 2 * deep, 1, 0, 1]);
    block.events.extend(vec![one; 2_000]);
    block.times = blocks as u32;
}

fn dirty_pages(parts: &mut Parts, blocks: usize) {
    let words = limits::MAX_SAMPLE_WORDS as u64;
    let block = samples(parts, std::iter::once(THREAD));
    let mut one = sample(0, KEYFRAME | TRUNCATED, &[0, 1 << 40, 0, 2 * words, 1, 1, 0]);
    one.body.extend([1; 8]);
    block.events.extend(vec![one; 50_000]);
    block.times = blocks as u32;
}

fn broken_sessions(parts: &mut Parts, count: usize) {
    let piece = |i| Nettrace { session: i, time: Ticks(0), offset: 1, bytes: b"" };
    many(parts, BlockKind::Meta, count, |i| Event::Nettrace(piece(i)));
    many(parts, BlockKind::Meta, count, |i| Event::Nettrace(piece(i)));
}

fn long_sessions(parts: &mut Parts, blocks: usize) {
    let bytes = vec![0; 1 << 20];
    let piece = |i: u64| Nettrace { session: 1, time: Ticks(0), offset: i << 20, bytes: &bytes };
    many(parts, BlockKind::Meta, 15 * blocks, |i| Event::Nettrace(piece(i)));
}

fn runtime<'a>(module: u64, text: &'a [u8]) -> Event<'a> {
    let (version, note, descriptor) = (text, text, text);
    Event::RuntimeInfo(RuntimeInfo {
        module,
        time: Ticks(0),
        kind: 1,
        version,
        descriptor,
        pointer_data: &[],
        note,
    })
}

fn runtimes(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| runtime(i, b""));
}

fn long_runtimes(parts: &mut Parts, count: usize) {
    let text = vec![b'x'; TEXT / 2];
    many(parts, BlockKind::Meta, count, |i| runtime(i, &text));
}

fn threads(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| Event::ThreadStart(thread(100 + i)));
}

fn lost_threads(parts: &mut Parts, blocks: usize) {
    threads(parts, 100_000);
    parts.renumber();
    let block = parts.block(BlockKind::State, Ticks(600_000));
    block.push(&Event::ThreadStart(thread(100)));
    // Each follows a loss.
    let (one, next) = (block.clone(), block.header.seq);
    let states = (1..blocks as u64).map(|i| {
        let mut state = one.clone();
        state.header.seq = next + 2 * i;
        state
    });
    parts.blocks.extend(states);
}

fn module(instance: u64, base: u64, path: &[u8], pe: Option<PeIdentity>) -> Event<'_> {
    let identities = pe.map(Identity::Pe).into_iter().collect();
    let flags = ModuleFlags::NOTIFIED;
    Event::ModuleLoad(ModuleLoad { instance, time: Ticks(1), base, size: 0x1000, flags, path, identities })
}

fn modules(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| module(100 + i, i << 12, b"x.dll", None));
}

fn falling_modules(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| module(100 + i, (count as u64 - i) << 12, b"x.dll", None));
    samples(parts, std::iter::once(THREAD)).events.push(sample(0, KEYFRAME | TRUNCATED, &BARE));
}

/// All of 20,000 modules are loaded or unloaded between two samples.
fn back_and_forth(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, 20_000, |i| module(100 + i, i << 12, b"x.dll", None));
    many(parts, BlockKind::Meta, 20_000, |i| Event::ModuleUnload { instance: 100 + i, time: Ticks(700_000) });
    let block = samples(parts, std::iter::once(THREAD));
    // Differences of times are stored zigzag.
    let there = [0, 400_000, KEYFRAME | TRUNCATED];
    let back = [0, 399_999, KEYFRAME | TRUNCATED];
    let turn = |head: [u64; 3]| StoredEvent::of_numbers(kind::SAMPLE, &[&head[..], &BARE].concat());
    block.events.extend((0..count).map(|i| turn(if i % 2 == 0 { there } else { back })));
    block.header.samples = count as u32;
}

fn overlapping_modules(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| module(100 + i, BASE + i % 7, b"x.dll", None));
}

fn modules_without_headers(parts: &mut Parts, count: usize) {
    let pe = |i: u64| PeIdentity { time_date_stamp: 1 + i as u32, size_of_image: 0x1000, check_sum: 0 };
    many(parts, BlockKind::Meta, count, |i| module(100 + i, i << 12, b"x.dll", Some(pe(i))));
}

fn long_paths(parts: &mut Parts, count: usize) {
    let path = vec![b'x'; TEXT];
    many(parts, BlockKind::Meta, count, |i| module(100 + i, i << 12, &path, None));
}

fn long_pdb_names(parts: &mut Parts, count: usize) {
    let name = vec![b'x'; TEXT / 64];
    let identity = || Identity::CodeView(CodeView { guid: [1; 16], age: 1, pdb_name: &name });
    many(parts, BlockKind::Meta, count, |i| {
        let identities = (0..64).map(|_| identity()).collect();
        let (path, flags) = (b"x.dll".as_slice(), ModuleFlags::NOTIFIED);
        let base = i << 12;
        Event::ModuleLoad(ModuleLoad {
            instance: 100 + i,
            time: Ticks(1),
            base,
            size: 0x1000,
            flags,
            path,
            identities,
        })
    });
}

fn code(instance: u64, base: u64, size: u64, code: &[u8]) -> Event<'_> {
    let (kind, image_base) = (CodeKind::Jit as u64, base);
    let (function, unwind) = (b"".as_slice(), b"".as_slice());
    Event::CodeAdd(CodeAdd { instance, time: Ticks(1), kind, base, size, image_base, function, unwind, code })
}

fn code_regions(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| code(1000 + i, 0x5000_0000 + (i << 8), 0x100, b""));
}

fn overlapping_code(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| code(1000 + i, BASE - i, 1 << 40, b""));
}

fn long_code(parts: &mut Parts, blocks: usize) {
    let bytes = vec![0x90; 1 << 20];
    many(parts, BlockKind::Meta, 15 * blocks, |i| code(1000 + i, i << 20, 1 << 20, &bytes));
}

fn named(base: u64, name: &[u8]) -> Event<'_> {
    Event::MethodName(MethodName { time: Ticks(1), base, size: 1 << 20, source: 1, name })
}

fn method_names(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| named(i, b"x"));
}

fn long_method_names(parts: &mut Parts, blocks: usize) {
    full(parts, BlockKind::Meta, &named(0, &vec![b'x'; TEXT]), blocks);
}

fn clocks(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| Event::Clock(Clock { time: Ticks(i), utc: u64::MAX - i }));
    many(parts, BlockKind::Meta, count, |i| {
        Event::RateChange(RateChange { time: Ticks(i), rate_mhz: i as u32 })
    });
}

fn drop_reasons(parts: &mut Parts, count: usize) {
    let dropped = |reason| Dropped { time: Ticks(1), reason, thread: 0, count: u64::MAX };
    many(parts, BlockKind::Meta, count, |i| Event::Dropped(dropped(i)));
}

fn redactions(parts: &mut Parts, count: usize) {
    let rules: Vec<String> = (0..count).map(|i| format!("rule {i}")).collect();
    let redaction = |i: u64| Redaction { rule: rules[i as usize].as_bytes(), words: u64::MAX };
    many(parts, BlockKind::Meta, count, |i| Event::Redaction(redaction(i)));
    many(parts, BlockKind::Meta, count, |i| Event::Redaction(redaction(i)));
}

fn unknown_events(parts: &mut Parts, count: usize) {
    many(parts, BlockKind::Meta, count, |i| Event::Unknown { kind: kind::VENDOR_FIRST + i, body: b"" });
}

fn idle_spans(parts: &mut Parts, count: usize) {
    let idle = |i| Idle {
        thread: THREAD,
        ticks: u64::MAX,
        first: Ticks(i),
        last: Ticks::MAX,
        block: 0,
        state: RunState::Waiting,
    };
    let stored = |i| StoredEvent::of(&Event::Idle(idle(i)), Ticks(600_000));
    let block = samples(parts, std::iter::empty());
    block.events.extend((0..count as u64).filter_map(stored));
    block.header.samples = u32::MAX;
}

fn long_walks(parts: &mut Parts, count: usize) {
    let frames = vec![(BASE, STACK); limits::MAX_WALK_FRAMES];
    let walk = Event::CheckWalk(CheckWalk { thread: THREAD, time: Ticks(10_000), flags: 0, frames });
    let block = samples(parts, std::iter::empty());
    block.push(&walk);
    block.times = count as u32;
}

fn memory(parts: &mut Parts, blocks: usize) {
    let bytes = vec![0; 15 << 20];
    let event = Event::Memory(Memory { thread: THREAD, time: Ticks(10_000), address: 0, bytes: &bytes });
    let block = samples(parts, std::iter::empty());
    block.push(&event);
    block.times = blocks as u32;
}

fn managed_threads(parts: &mut Parts, count: usize) {
    let of = |i| ManagedThread {
        thread: i,
        time: Ticks(i),
        address: i,
        state: i,
        preemptive_disabled: 1,
        frame: i,
        exception: i,
    };
    let stored = |i| StoredEvent::of(&Event::ManagedThread(of(i)), Ticks(600_000));
    let block = samples(parts, std::iter::empty());
    block.events.extend((0..count as u64).filter_map(stored));
}

fn last_times(parts: &mut Parts, _: usize) {
    for block in &mut parts.blocks {
        (block.header.first, block.header.last) = (Ticks::MAX, Ticks::MAX);
    }
    (parts.header.utc_start, parts.header.clock_frequency) = (u64::MAX, 1);
}

fn backward_times(parts: &mut Parts, _: usize) {
    let count = parts.blocks.len() as u64;
    for (i, block) in (0..).zip(&mut parts.blocks) {
        (block.header.first, block.header.last) = (Ticks((count - i) << 40), Ticks::ZERO);
    }
    parts.header.clock_start = Ticks(u64::MAX / 2);
}

fn full_counts(parts: &mut Parts, _: usize) {
    for block in &mut parts.blocks {
        block.header.samples = u32::MAX;
        (block.header.dropped, block.header.ordinal) = (u64::MAX, u64::MAX);
    }
    parts.header.rate_mhz = u32::MAX;
}

fn slots(parts: &mut Parts, count: usize) {
    let block = samples(parts, 0..count as u64);
    let bare = |slot| sample(slot, KEYFRAME | TRUNCATED, &[0, 1 << 40, 0, 2 * 1024, 1, 0, 1]);
    block.events.extend((0..count as u64).map(bare));
    block.header.samples = count as u32;
}

/// The fields after the flags of a sample without a stack.
const BARE: [u64; 7] = [0, 1 << 40, 0, 2, 1, 0, 1];

/// One sample, and how often the thread was found the same after it.
fn unchanging(parts: &mut Parts, times: usize) {
    const SAME: u64 = 1;
    let block = samples(parts, std::iter::once(THREAD));
    block.events.push(sample(0, KEYFRAME | TRUNCATED, &BARE));
    block.events.push(sample(0, SAME, &[times as u64, 10_000_000]));
    block.header.samples = times as u32 + 1;
}

fn bare_samples(parts: &mut Parts, count: usize) {
    let block = samples(parts, std::iter::once(THREAD));
    let one = sample(0, KEYFRAME | TRUNCATED, &BARE);
    block.events.extend(vec![one; count]);
    block.header.samples = count as u32;
}
