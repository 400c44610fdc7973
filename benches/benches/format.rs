//! Compares the format's size and speed with plain zstd level 1 in 1 MB frames, on the stack
//! sequences of real recordings. Both sides store the same: registers and stack words of the same
//! samples.
//!
//! ```text
//! cargo bench -p stk-benches --bench format -- [--ideas] FILE.stk …
//! # default: examples/traces/*.stk
//! ```
//!
//! `--ideas`: what blocks of samples would take if the compressor knew more than the block.
//!
//! Times are those that the measuring thread spent on a CPU, best of several rounds. Two sequences
//! per recording: `written` are the full samples; `passes` also repeats a thread's stack for every
//! pass that found it unchanged, up to a memory limit, as a recorder without stack images would
//! have to store it.

use std::collections::HashMap;
use std::time::Duration;

use stk_format::{
    BlockBuffer, BlockKind, EncodeError, FileHeader, RawSample, SampleEncoder, SampleOutcome, SampleStep,
    Scratch, Sealer, ThreadImage, Trace, sealed_bound,
};
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_schema::limits;
use stk_schema::registers::RegisterSet;
use stk_tests::cpu::cpu_time;

/// The most stack bytes of a sequence.
const MOST_STACK: usize = 256 << 20;
/// Input bytes of one plain frame.
const PLAIN_FRAME: usize = 1 << 20;

/// The goals set in the issues.
const TARGET_DIFF_US: f64 = 2.0;
const TARGET_DECODE_GBS: f64 = 4.0;
const TARGET_EVERY: f64 = 1.10;
const TARGET_BEST: f64 = 2.0;

fn main() {
    let mut files: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if files.is_empty() {
        let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/traces");
        let found = std::fs::read_dir(kept).into_iter().flatten().flatten();
        files.extend(
            found.map(|entry| entry.path().to_string_lossy().into_owned()).filter(|p| p.ends_with(".stk")),
        );
        files.sort();
    }
    if files.is_empty() {
        eprintln!("no recordings: name .stk files, or make examples/traces with examples/demo.sh");
        std::process::exit(2);
    }
    let mut rows = Vec::new();
    let of_ideas = std::env::args().any(|arg| arg == "--ideas");
    if of_ideas {
        println!("| recording | blocks | raw bytes | way | bytes | of today's | decoding, of today's |");
        println!("|---|---|---|---|---|---|---|");
    }
    for file in &files {
        let data = std::fs::read(file).unwrap_or_else(|error| fail(file, &error));
        let trace = Trace::open(&data).unwrap_or_else(|error| fail(file, &error));
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        if of_ideas {
            ideas(name, &trace);
            continue;
        }
        for (kind, repeat) in [("written", false), ("passes", true)] {
            let sequence = Sequence::read(&trace, repeat);
            if sequence.samples.is_empty() {
                eprintln!("{file}: no samples, passed over");
                continue;
            }
            rows.push(measure(&format!("{name} {kind}"), trace.header(), &sequence));
        }
    }
    if !of_ideas {
        print(&rows);
    }
}

fn fail(file: &str, error: &dyn std::error::Error) -> ! {
    eprintln!("{file}: {error}");
    std::process::exit(1);
}

/// One sample of a sequence; its stack is in [`Sequence::stack`].
struct Item {
    thread: u64,
    time: Ticks,
    set: RegisterSet,
    registers: [u64; 64],
    stack_base: u64,
    stack_start: u64,
    at: usize,
    len: usize,
}

/// The samples of a recording, in the order of time.
struct Sequence {
    samples: Vec<Item>,
    stack: Vec<u8>,
    threads: usize,
}

impl Sequence {
    fn read(trace: &Trace, repeat: bool) -> Sequence {
        let mut sequence = Sequence { samples: Vec::new(), stack: Vec::new(), threads: 0 };
        let mut scratch = Scratch::new();
        // A thread's last full sample, as an index into `samples`.
        let mut last: HashMap<u64, usize> = HashMap::new();
        let mut total = 0;
        for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
            let Ok(mut samples) = trace.samples(block, &mut scratch) else { continue };
            while let Ok(Some(decoded)) = samples.next() {
                let (thread, first, span, ticks) = match &decoded {
                    SampleStep::Sample(s) => {
                        last.insert(s.thread, sequence.samples.len());
                        total += s.stack.len();
                        sequence.push(s);
                        continue;
                    }
                    SampleStep::Same(s) => (s.thread, s.first, s.last - s.first, s.ticks),
                    SampleStep::Idle(i) => (i.thread, i.first, i.last - i.first, i.ticks),
                    SampleStep::Other(_) => continue,
                };
                let Some(&source) = last.get(&thread).filter(|_| repeat) else { continue };
                for tick in 0..ticks {
                    let item = &sequence.samples[source];
                    total += item.len;
                    if total > MOST_STACK {
                        break;
                    }
                    let time = first + Ticks(span.0 * tick / ticks.max(1));
                    let item = Item { time, ..*item };
                    sequence.samples.push(item);
                }
            }
            if total > MOST_STACK {
                break;
            }
        }
        sequence.samples.sort_by_key(|item| item.time);
        sequence.threads = last.len();
        sequence
    }

    fn push(&mut self, s: &stk_format::Sample) {
        let mut registers = [0; 64];
        registers[..s.registers.len()].copy_from_slice(s.registers);
        let at = self.stack.len();
        self.stack.extend_from_slice(s.stack);
        self.samples.push(Item {
            thread: s.thread,
            time: s.time,
            set: s.set,
            registers,
            stack_base: s.stack_base,
            stack_start: s.stack_start,
            at,
            len: s.stack.len(),
        });
    }
}

/// Results of one sequence.
struct Row {
    name: String,
    samples: usize,
    threads: usize,
    stack: usize,
    unchanged: usize,
    ours: usize,
    plain: usize,
    diff: Duration,
    zstd: Duration,
    plain_time: Duration,
    decoded: usize,
    decode: Duration,
}

fn measure(name: &str, header: &FileHeader, sequence: &Sequence) -> Row {
    let mut row = Row {
        name: name.to_owned(),
        samples: sequence.samples.len(),
        threads: sequence.threads,
        stack: sequence.samples.iter().map(|item| item.len).sum(),
        unchanged: 0,
        ours: 0,
        plain: 0,
        diff: Duration::MAX,
        zstd: Duration::MAX,
        plain_time: Duration::MAX,
        decoded: 0,
        decode: Duration::MAX,
    };
    let mut file = Vec::new();
    for _ in 0..3 {
        let mut encoded = Encoded::default();
        encode(header, sequence, &mut encoded);
        row.diff = row.diff.min(encoded.diff);
        row.zstd = row.zstd.min(encoded.zstd);
        row.ours = encoded.file.len();
        row.unchanged = encoded.unchanged;
        file = encoded.file;
        let (bytes, time) = plain(sequence);
        row.plain = bytes;
        row.plain_time = row.plain_time.min(time);
    }
    let trace = Trace::open(&file).expect("the trace just written");
    let mut scratch = Scratch::new();
    let blocks: Vec<_> = trace.blocks().iter().filter(|b| b.header.kind == BlockKind::Samples).collect();
    row.decoded = blocks.iter().map(|block| block.header.stack_bytes as usize).sum();
    for _ in 0..5 {
        let start = cpu_time();
        for block in &blocks {
            let mut samples = trace.samples(block, &mut scratch).expect("a sound block");
            while let Some(decoded) = samples.next().expect("a sound block") {
                std::hint::black_box(&decoded);
            }
        }
        row.decode = row.decode.min(cpu_time() - start);
    }
    row
}

#[derive(Default)]
struct Encoded {
    file: Vec<u8>,
    diff: Duration,
    zstd: Duration,
    unchanged: usize,
}

/// Stores the sequence as the recorder does, with the same rules for cutting blocks, but without
/// code bytes and CPU times.
fn encode(header: &FileHeader, sequence: &Sequence, out: &mut Encoded) {
    let word = header.word();
    let capacity = limits::CUT_RAW + (9 << 20);
    let mut block = BlockBuffer::new(capacity, header).expect("memory");
    let mut encoder = SampleEncoder::new();
    let mut sealer = Sealer::new(header).expect("memory");
    let mut sealed = vec![0; sealed_bound(capacity)];
    let mut images: HashMap<u64, ThreadImage> = HashMap::new();
    for item in &sequence.samples {
        let words = item.len / word + 1024;
        images.entry(item.thread).or_insert_with(|| ThreadImage::new(words, word).expect("memory"));
    }
    out.file.extend_from_slice(&header.encode());
    encoder.begin(&mut block, sequence.samples[0].time);
    let mut at = 0;
    while at < sequence.samples.len() {
        let start = cpu_time();
        while at < sequence.samples.len() {
            let item = &sequence.samples[at];
            if block.wants_cut(item.time) {
                break;
            }
            let raw = RawSample {
                thread: item.thread,
                time: item.time,
                set: item.set,
                registers: &item.registers[..item.set.len()],
                stack_base: item.stack_base,
                stack_start: item.stack_start,
                stack: &sequence.stack[item.at..item.at + item.len],
                code: None,
                cpu: None,
                state: RunState::Unknown,
                tag: None,
                tables_pending: false,
                context_reply: None,
                extra: &[],
            };
            let image = images.get_mut(&item.thread).expect("made above");
            match encoder.sample(&mut block, image, &raw) {
                Ok(taken) => out.unchanged += usize::from(taken == SampleOutcome::Unchanged),
                Err(EncodeError::BlockFull) => break,
                Err(EncodeError::ImageTooSmall { words }) => {
                    image.reserve(words * 2, word).expect("memory");
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            at += 1;
        }
        for image in images.values_mut() {
            encoder.flush_idle(&mut block, image).expect("room that the block kept");
        }
        out.diff += cpu_time() - start;
        let start = cpu_time();
        out.file.extend_from_slice(sealer.seal(&block, &mut sealed).expect("room"));
        out.zstd += cpu_time() - start;
        if let Some(item) = sequence.samples.get(at) {
            encoder.begin(&mut block, item.time);
        }
    }
}

/// Stored bytes and time of the same samples as plain zstd level 1 frames of 1 MB.
fn plain(sequence: &Sequence) -> (usize, Duration) {
    let mut input: Vec<u8> = Vec::with_capacity(PLAIN_FRAME + (16 << 20));
    let mut output = vec![0; zstd_safe::compress_bound(PLAIN_FRAME + (16 << 20))];
    let mut zstd = zstd_safe::CCtx::create();
    let mut stored = 0;
    let mut time = Duration::ZERO;
    let mut start = cpu_time();
    for (i, item) in sequence.samples.iter().enumerate() {
        input.extend_from_slice(&(item.thread as u32).to_le_bytes());
        input.extend_from_slice(&(item.len as u32).to_le_bytes());
        input.extend_from_slice(&item.time.0.to_le_bytes());
        item.registers[..item.set.len()]
            .iter()
            .for_each(|value| input.extend_from_slice(&value.to_le_bytes()));
        input.extend_from_slice(&sequence.stack[item.at..item.at + item.len]);
        if input.len() >= PLAIN_FRAME || i + 1 == sequence.samples.len() {
            stored += zstd.compress(&mut output[..], &input, 1).expect("room");
            input.clear();
            time += cpu_time() - start;
            start = cpu_time();
        }
    }
    (stored, time)
}

/// What the compressor of one block may know besides it.
#[derive(Clone, Copy)]
enum Known {
    /// Nothing, as the recorder has it.
    Nothing,
    /// The end of the first block, as a dictionary that the file holds once. The first block is
    /// compressed without.
    Dictionary(usize),
    /// All blocks before, up to so many bytes: references back to any stack of that time.
    Before(usize),
}

/// Prints what each way makes of a recording's blocks of samples.
fn ideas(name: &str, trace: &Trace<'_>) {
    let (mut scratch, mut blocks, mut stored) = (Scratch::new(), Vec::new(), 0);
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        if let Ok(raw) = trace.payload(block, &mut scratch) {
            blocks.push(raw.to_vec());
            stored += u64::from(block.header.stored_len);
        }
    }
    let raw: usize = blocks.iter().map(Vec::len).sum();
    println!("| {name} | {} | {raw} | in the file | {stored} | | |", blocks.len());
    let ways = [
        ("today's", None, Known::Nothing),
        ("a dictionary of 64 KiB", None, Known::Dictionary(64 << 10)),
        ("references to 1 MiB before", None, Known::Before(1 << 20)),
        ("references to 8 MiB before", None, Known::Before(8 << 20)),
        ("level 19", Some(19), Known::Nothing),
        ("level 19, 8 MiB before", Some(19), Known::Before(8 << 20)),
    ];
    let mut today = None;
    for (way, level, known) in ways {
        let (bytes, time) = stored_with(&blocks, level, known);
        let (first, first_time) = *today.get_or_insert((bytes, time));
        println!(
            "| {name} | {} | {raw} | {way} | {bytes} | {:.3} | {:.2} |",
            blocks.len(),
            bytes as f64 / first as f64,
            time.as_secs_f64() / first_time.as_secs_f64()
        );
    }
}

/// The bytes of all blocks compressed in this way, and the time that decompressing them takes.
/// `level`: `None` = the recorder's own, with its tables.
fn stored_with(blocks: &[Vec<u8>], level: Option<i32>, known: Known) -> (usize, Duration) {
    use zstd_safe::CParameter;
    let all = blocks.concat();
    let (mut bytes, mut time, mut begin) = (0, Duration::ZERO, 0);
    for (n, block) in blocks.iter().enumerate() {
        let before = match known {
            Known::Nothing => 0..0,
            Known::Dictionary(_) if n == 0 => 0..0,
            Known::Dictionary(most) => {
                let end = blocks[0].len();
                end - most.min(end)..end
            }
            Known::Before(most) => begin - most.min(begin)..begin,
        };
        let before = &all[before];
        let mut compressor = zstd_safe::CCtx::create();
        let mut parameters = vec![CParameter::CompressionLevel(level.unwrap_or(1))];
        if level.is_none() {
            parameters.extend([
                CParameter::Strategy(zstd_safe::Strategy::ZSTD_dfast),
                CParameter::HashLog(if before.is_empty() { 16 } else { 20 }),
                CParameter::ChainLog(if before.is_empty() { 15 } else { 20 }),
                CParameter::MinMatch(5),
            ]);
        }
        parameters.push(CParameter::WindowLog(if before.is_empty() { 20 } else { 24 }));
        for parameter in parameters {
            compressor.set_parameter(parameter).expect("a parameter that zstd has");
        }
        compressor.ref_prefix(before).expect("a prefix");
        let mut stored = vec![0; zstd_safe::compress_bound(block.len())];
        let len = compressor.compress2(&mut stored[..], block).expect("room");
        bytes += len;
        let mut best = Duration::MAX;
        let mut raw = vec![0; block.len()];
        for _ in 0..5 {
            let mut reader = zstd_safe::DCtx::create();
            reader.ref_prefix(before).expect("a prefix");
            let start = cpu_time();
            reader.decompress(&mut raw[..], &stored[..len]).expect("the same prefix");
            best = best.min(cpu_time() - start);
        }
        assert!(raw == *block, "what was stored");
        time += best;
        begin += block.len();
    }
    (bytes, time)
}

fn print(rows: &[Row]) {
    println!(
        "| sequence | samples | threads | stack B/sample | unchanged | ours B/sample | plain B/sample | plain ÷ ours | \
         diff µs/8 KB | zstd µs/8 KB | diff + zstd µs/sample | plain µs/sample | decode GB/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let samples = row.samples as f64;
        let us = |time: Duration, per: f64| time.as_secs_f64() * 1e6 / per;
        let pieces = row.stack as f64 / 8192.0;
        println!(
            "| {} | {} | {} | {:.0} | {:.1} % | {:.1} | {:.1} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} |",
            row.name,
            row.samples,
            row.threads,
            row.stack as f64 / samples,
            100.0 * row.unchanged as f64 / samples,
            row.ours as f64 / samples,
            row.plain as f64 / samples,
            row.ratio(),
            us(row.diff, pieces),
            us(row.zstd, pieces),
            us(row.diff + row.zstd, samples),
            us(row.plain_time, samples),
            row.decode_rate(),
        );
    }
    let worst = rows.iter().map(Row::ratio).fold(f64::MAX, f64::min);
    let best = rows.iter().map(Row::ratio).fold(0.0, f64::max);
    let diff = rows.iter().map(Row::diff_us).fold(0.0, f64::max);
    let decode = rows.iter().map(Row::decode_rate).fold(f64::MAX, f64::min);
    let mark = |good: bool| if good { "reached" } else { "MISSED" };
    println!();
    println!(
        "plain ÷ ours, every sequence ≥ {TARGET_EVERY}: worst {worst:.2}, {}",
        mark(worst >= TARGET_EVERY)
    );
    println!("plain ÷ ours, best sequence ≥ {TARGET_BEST}: {best:.2}, {}", mark(best >= TARGET_BEST));
    println!("diff ≤ {TARGET_DIFF_US} µs per 8 KB: worst {diff:.2}, {}", mark(diff <= TARGET_DIFF_US));
    println!(
        "decode ≥ {TARGET_DECODE_GBS} GB/s of stack: worst {decode:.1}, {}",
        mark(decode >= TARGET_DECODE_GBS)
    );
}

impl Row {
    fn ratio(&self) -> f64 {
        self.plain as f64 / self.ours as f64
    }

    fn diff_us(&self) -> f64 {
        self.diff.as_secs_f64() * 1e6 / (self.stack as f64 / 8192.0)
    }

    fn decode_rate(&self) -> f64 {
        self.decoded as f64 / self.decode.as_secs_f64() / 1e9
    }
}
