//! The pieces of real stacks, and new stacks made of them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use stk_format::{BlockKind, BlockRef, Sample, SampleStep, Scratch, Trace};
use stk_schema::Ticks;
use stk_schema::registers::{IP, RegisterSet, SP};
use stk_tests::synth::Random;

/// One frame of a walked stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// Instruction pointer: of frame 0 the sampled one, of others the return address.
    pub ip: u64,
    /// Stack pointer in this frame: of frame 0 the sampled one, of others its value after the
    /// return.
    pub sp: u64,
}

/// Returns the frames of a sample, leaf first, if they reach the thread's start.
pub(crate) type Walk<'a> = &'a mut dyn FnMut(&Sample) -> Option<Vec<Frame>>;

/// Facts from the real trace's metadata.
#[derive(Default)]
pub(crate) struct Facts {
    /// Memory of modules that were unloaded.
    pub unloaded: Vec<Range<u64>>,
    /// Threads that ended.
    pub ended: HashSet<u64>,
    /// Latest time of any block.
    pub last: Ticks,
}

/// A word that pointed into the stack.
#[derive(Clone, Copy)]
struct Pointer {
    /// Index of the word (or register).
    at: u32,
    /// How many frames further out its target lies ...
    up: u32,
    /// ... and at which offset in that frame's piece.
    offset: u32,
}

/// The stack of one frame.
struct Piece {
    ip: u64,
    /// Instruction pointers of the next two frames; 0 beyond the outermost.
    next: (u64, u64),
    bytes: Vec<u8>,
    pointers: Vec<Pointer>,
    /// Only in a leaf's piece.
    leaf: Option<Leaf>,
}

/// The parts of a sample besides its stack.
struct Leaf {
    set: RegisterSet,
    registers: Vec<u64>,
    pointers: Vec<Pointer>,
    code: Option<Vec<u8>>,
}

/// A position in a walk: the frame's instruction pointer and the one above.
type Place = (u64, u64);

/// All pieces of the real stacks, by where they fit.
pub(crate) struct Pieces {
    all: Vec<Piece>,
    /// Outermost pieces: thread, its stack base, the piece.
    pub roots: Vec<(u64, u64, usize)>,
    inner: HashMap<Place, Vec<usize>>,
    pub leaves: HashMap<Place, Vec<usize>>,
    pub source: u64,
}

/// The most different pieces of the same frame below the same callers.
const VARIANTS: usize = 8;

impl Pieces {
    /// Takes apart the real samples, at most so many.
    pub(crate) fn take_apart(trace: &Trace, most: usize, facts: &Facts, walk: Walk) -> Pieces {
        let mut pieces = Pieces {
            all: Vec::new(),
            roots: Vec::new(),
            inner: HashMap::new(),
            leaves: HashMap::new(),
            source: 0,
        };
        let mut scratch = Scratch::new();
        let blocks: Vec<&BlockRef> =
            trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples).collect();
        let mut kept: HashMap<(u64, u64, u64, bool), usize> = HashMap::new();
        for block in blocks {
            let Ok(mut samples) = trace.samples(block, &mut scratch) else { continue };
            while let Ok(Some(decoded)) = samples.next() {
                let SampleStep::Sample(sample) = decoded else { continue };
                if pieces.source == most as u64 {
                    return pieces;
                }
                if sample.truncated || facts.ended.contains(&sample.thread) {
                    continue;
                }
                let Some(frames) = walk(&sample) else { continue };
                let gone = |ip: u64| facts.unloaded.iter().any(|range| range.contains(&ip));
                let rising = frames.windows(2).all(|pair| pair[0].sp < pair[1].sp);
                let within =
                    frames.iter().all(|frame| (sample.stack_start..sample.stack_base).contains(&frame.sp));
                if frames.len() < 2 || !rising || !within || frames.iter().any(|frame| gone(frame.ip)) {
                    continue;
                }
                pieces.source += 1;
                pieces.add(&sample, &frames, trace.header().word(), &mut kept);
            }
        }
        pieces
    }

    fn add(
        &mut self,
        sample: &Sample,
        frames: &[Frame],
        word: usize,
        kept: &mut HashMap<(u64, u64, u64, bool), usize>,
    ) {
        // Frame i's piece reaches from its stack pointer to the next one's, the outermost's to the
        // base.
        let start = |i: usize| match i {
            0 => sample.stack_start,
            i => frames.get(i).map_or(sample.stack_base, |frame| frame.sp),
        };
        let pointer = |value: u64, from: usize| {
            let i = (0..frames.len()).rfind(|&i| start(i) <= value).filter(|_| value < sample.stack_base)?;
            Some((i.checked_sub(from)? as u32, (value - start(i)) as u32))
        };
        let ip = |i: usize| frames.get(i).map_or(0, |frame| frame.ip);
        for i in 0..frames.len() {
            let (leaf, root) = (i == 0, i + 1 == frames.len());
            let count = kept.entry((ip(i), ip(i + 1), ip(i + 2), leaf)).or_default();
            let known_root = root && self.roots.iter().any(|&(thread, _, _)| thread == sample.thread);
            if *count >= VARIANTS && (!root || known_root) {
                continue;
            }
            *count += 1;
            let range =
                (start(i) - sample.stack_start) as usize..(start(i + 1) - sample.stack_start) as usize;
            let bytes = sample.stack[range].to_vec();
            let words = bytes.chunks_exact(word).map(number).enumerate();
            let find = |(at, value): (usize, u64)| {
                pointer(value, i).map(|(up, offset)| Pointer { at: at as u32, up, offset })
            };
            let pointers = words.filter_map(find).collect();
            let registers = sample.registers.iter().copied().enumerate();
            let leaf_facts = leaf.then(|| Leaf {
                set: sample.set,
                registers: sample.registers.to_vec(),
                pointers: registers.filter(|&(at, _)| at != IP && at != SP).filter_map(find).collect(),
                code: sample.code_at_ip.map(<[u8]>::to_vec),
            });
            let next = (ip(i + 1), ip(i + 2));
            let at = self.all.len();
            self.all.push(Piece { ip: ip(i), next, bytes, pointers, leaf: leaf_facts });
            if root {
                self.roots.push((sample.thread, sample.stack_base, at));
            } else if leaf {
                self.leaves.entry(next).or_default().push(at);
            } else {
                self.inner.entry(next).or_default().push(at);
            }
        }
    }

    fn place(&self, piece: usize) -> Place {
        (self.all[piece].ip, self.all[piece].next.0)
    }
}

/// A new stack: pieces from the outermost to the leaf.
#[derive(Clone, Default)]
pub(crate) struct Path {
    pub pieces: Vec<usize>,
}

impl Path {
    /// Grows a new path from the `keep` outermost pieces; `false` if it reaches no leaf.
    pub(crate) fn regrow(&mut self, pieces: &Pieces, keep: usize, depth: usize, random: &mut Random) -> bool {
        self.pieces.truncate(keep);
        let goal = depth + random.below(5) - 2;
        while let Some(&last) = self.pieces.last() {
            let place = pieces.place(last);
            let leaves = pieces.leaves.get(&place).map_or(&[][..], Vec::as_slice);
            let inner = pieces.inner.get(&place).map_or(&[][..], Vec::as_slice);
            let deep = self.pieces.len() + 1 >= goal;
            if !leaves.is_empty() && (deep || inner.is_empty()) {
                self.pieces.push(leaves[random.below(leaves.len())]);
                return true;
            }
            if inner.is_empty() || self.pieces.len() > 2 * depth + 64 {
                return false;
            }
            self.pieces.push(inner[random.below(inner.len())]);
        }
        false
    }
}

/// A new sample, made of pieces.
pub(crate) struct Composed {
    pub set: RegisterSet,
    pub registers: Vec<u64>,
    pub stack: Vec<u8>,
    pub code: Option<Vec<u8>>,
    pub ips: Vec<u64>,
}

pub(crate) fn compose(pieces: &Pieces, path: &Path, base: u64, word: usize) -> Option<Composed> {
    // Leaf first, with the address at which each piece begins.
    let parts: Vec<&Piece> = path.pieces.iter().rev().map(|&piece| &pieces.all[piece]).collect();
    let size: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let mut starts = Vec::with_capacity(parts.len());
    let mut at = base.checked_sub(size as u64)?;
    for part in &parts {
        starts.push(at);
        at += part.bytes.len() as u64;
    }
    let moved = |from: usize, pointer: &Pointer| {
        starts.get(from + pointer.up as usize).map(|start| start + u64::from(pointer.offset))
    };
    let mut stack = Vec::with_capacity(size);
    for (i, part) in parts.iter().enumerate() {
        let begin = stack.len();
        stack.extend_from_slice(&part.bytes);
        for pointer in &part.pointers {
            if let Some(value) = moved(i, pointer) {
                let at = begin + pointer.at as usize * word;
                stack[at..at + word].copy_from_slice(&value.to_le_bytes()[..word]);
            }
        }
    }
    let leaf = parts[0].leaf.as_ref()?;
    let mut registers = leaf.registers.clone();
    for pointer in &leaf.pointers {
        if let Some(value) = moved(0, pointer) {
            registers[pointer.at as usize] = value;
        }
    }
    registers[SP] = starts[0];
    let ips = parts.iter().map(|part| part.ip).collect();
    Some(Composed { set: leaf.set, registers, stack, code: leaf.code.clone(), ips })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
