//! Compares the unwinder's callers with the true ones.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Result, ensure};
use stk_unwind::{
    Arch, ImageTables, LoadedModule, ModuleId, Modules, Registers, Sample, Stop, Trust, WalkOptions, Walker,
    arm64, x64, x86,
};

use super::image::Image;
use super::layout::{Record, States, Truth};

/// How many states were right.
#[derive(Debug, Default)]
pub struct Score {
    /// States compared.
    pub states: u64,
    /// States whose callers are all right.
    pub right: u64,
    /// The same by tag: (states, right).
    pub by_tag: BTreeMap<&'static str, (u64, u64)>,
    /// The same by the trust of the first caller that is wrong, or of the first one: (states,
    /// right).
    pub by_trust: BTreeMap<&'static str, (u64, u64)>,
    /// The first few wrong ones.
    pub wrong: Vec<Wrong>,
    /// Frames walked per second, rules compiled before.
    pub frames_per_second: f64,
}

/// A state whose callers are not all right.
#[derive(Debug)]
pub struct Wrong {
    /// Where the instruction pointer was.
    pub rva: u32,
    /// Which caller is the first wrong one, from 1.
    pub caller: usize,
    /// The record's tags.
    pub tags: Vec<&'static str>,
    /// The true caller.
    pub truth: Truth,
    /// The caller found instead, if any.
    pub found: Option<(Truth, Trust)>,
    /// Why the walk ended.
    pub stop: Stop,
}

/// The page that the emulator scripts return to is a module without tables, so that a true caller
/// there is a frame and the walk ends with it.
struct Space<'a> {
    image: &'a Image,
    outside: ImageTables,
    returns: u64,
}

impl<'a> Space<'a> {
    fn new(image: &'a Image, states: &States) -> Space<'a> {
        let arch = states.header.arch;
        let returns = if arch == Arch::X86 { 0x5000_0000 } else { 0x50_0000_0000 } - 0x10;
        Space { image, outside: ImageTables::new(arch, 0x1020).build(), returns }
    }
}

impl Modules for Space<'_> {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let image = self.image;
        if address.wrapping_sub(image.base) < u64::from(image.tables.size()) {
            Some(LoadedModule { module: ModuleId(0), base: image.base, image: &image.tables, image_key: 0 })
        } else {
            let base = self.returns;
            let is_inside = address.wrapping_sub(base) < u64::from(self.outside.size());
            is_inside.then_some(LoadedModule {
                module: ModuleId(1),
                base,
                image: &self.outside,
                image_key: 1,
            })
        }
    }
}

/// Wrong examples kept.
const EXAMPLES: usize = 20;

/// What the unwinder found for a record.
#[derive(Debug)]
pub struct Walk {
    /// The callers, innermost first.
    pub callers: Vec<(Truth, Trust)>,
    /// Why the walk ended.
    pub stop: Stop,
}

/// Walks every record. Fails if the states are not of this image. `code`: each sample carries the
/// 64 code bytes that a recorder takes from this image, which holds what `image` may lack.
pub fn walks(image: &Image, code: Option<&Image>, states: &States) -> Result<Vec<Walk>> {
    belong_together(image, code, states)?;
    let space = Space::new(image, states);
    let mut walker = walker(states);
    let mut frames = Vec::new();
    let walk = |record: &Record| {
        let mut callers: Vec<(Truth, Trust)> = Vec::new();
        let registers = at(record, image.base);
        let sample = sample(record, &registers, code);
        let stop = walker.walk_with_registers(&space, &sample, |frame, registers| {
            callers.push((as_truth(registers), frame.trust));
        });
        // The walk that restores registers only where needed must find the same frames.
        let same_stop = walker.walk(&space, &sample, &mut frames) == stop;
        let found = frames.iter().map(|frame| (frame.address, frame.sp));
        if !same_stop || !found.eq(callers.iter().map(|(caller, _)| (caller.ip, caller.sp))) {
            callers.truncate(1);
        }
        callers.remove(0);
        Walk { callers, stop }
    };
    Ok(states.records.iter().map(walk).collect())
}

/// Walks every record, as [`walks`] does, and compares.
pub fn score(image: &Image, code: Option<&Image>, states: &States) -> Result<Score> {
    let mut score = Score::default();
    for (record, Walk { callers, stop }) in states.records.iter().zip(walks(image, code, states)?) {
        let wrong = record
            .truth
            .iter()
            .enumerate()
            .find(|(n, truth)| callers.get(*n).is_none_or(|(found, _)| found != *truth));
        let tags = states.tags(record);
        let right = u64::from(wrong.is_none());
        score.states += 1;
        score.right += right;
        for tag in &tags {
            let entry = score.by_tag.entry(tag).or_default();
            *entry = (entry.0 + 1, entry.1 + right);
        }
        let judged = callers.get(wrong.map_or(0, |(n, _)| n));
        let entry = score.by_trust.entry(judged.map_or("none", |(_, trust)| trust.as_str())).or_default();
        *entry = (entry.0 + 1, entry.1 + right);
        if let Some((n, truth)) = wrong
            && score.wrong.len() < EXAMPLES
        {
            let found = callers.get(n).cloned();
            let truth = truth.clone();
            score.wrong.push(Wrong { rva: record.rva, caller: n + 1, tags, truth, found, stop });
        }
    }
    score.frames_per_second = frames_per_second(image, states);
    Ok(score)
}

fn walker(states: &States) -> Walker {
    let mut options = WalkOptions::default();
    if !states.chains {
        // A state has only one caller.
        options.max_frames = 2;
    }
    Walker::new(options)
}

/// How many callers are found in a second, rules compiled before.
fn frames_per_second(image: &Image, states: &States) -> f64 {
    let (space, mut walker) = (Space::new(image, states), walker(states));
    let registers: Vec<Registers> = states.records.iter().map(|record| at(record, image.base)).collect();
    let mut frames = Vec::new();
    let mut round = || {
        let mut count = 0usize;
        for (record, registers) in states.records.iter().zip(&registers) {
            walker.walk(&space, &sample(record, registers, None), &mut frames);
            count += frames.len() - 1;
        }
        count
    };
    round();
    let start = Instant::now();
    round() as f64 / start.elapsed().as_secs_f64()
}

fn sample<'a>(record: &'a Record, registers: &'a Registers, code: Option<&'a Image>) -> Sample<'a> {
    Sample {
        registers,
        stack: &record.stack,
        stack_start: registers.sp(),
        stack_base: None,
        truncated: true,
        code_at_ip: code.and_then(|image| code_at(&image.tables, record.rva)),
    }
}

/// The code bytes that a recorder takes at an instruction pointer.
pub(super) fn code_at(image: &ImageTables, rva: u32) -> Option<&[u8]> {
    image.bytes(rva).map(|bytes| &bytes[..bytes.len().min(64)])
}

/// The record's registers, with the instruction pointer that the layout leaves out.
pub fn at(record: &Record, base: u64) -> Registers {
    match record.registers {
        Registers::X64(r) => Registers::X64(x64::X64Registers { ip: base + u64::from(record.rva), ..r }),
        Registers::Arm64(r) => {
            Registers::Arm64(arm64::Arm64Registers { pc: base + u64::from(record.rva), ..r })
        }
        Registers::X86(r) => Registers::X86(x86::X86Registers { ip: base as u32 + record.rva, ..r }),
    }
}

fn as_truth(registers: &Registers) -> Truth {
    let nonvolatile = match registers {
        Registers::X64(r) => [3, 5, 6, 7, 12, 13, 14, 15].map(|n: usize| r.gpr[n]).to_vec(),
        Registers::Arm64(r) => [&r.x[19..30], &r.d[..]].concat(),
        Registers::X86(r) => [x86::EBX, x86::EBP, x86::ESI, x86::EDI].map(|n| u64::from(r.gpr[n])).to_vec(),
    };
    Truth { ip: registers.ip(), sp: registers.sp(), nonvolatile }
}

/// Fails if the states were not made from this image.
fn belong_together(image: &Image, code: Option<&Image>, states: &States) -> Result<()> {
    let header = &states.header;
    ensure!(
        image.tables.arch() == header.arch,
        "the states are {}, the image is {}",
        header.arch.as_str(),
        image.tables.arch().as_str()
    );
    ensure!(
        image.base == header.image_base && image.size == header.image_size,
        "the states are of an image of {:#x} bytes at {:#x}, this one has {:#x} at {:#x}",
        header.image_size,
        header.image_base,
        image.size,
        image.base
    );
    // Two images can share base and size. But a true caller in the right image follows a call in
    // its code.
    let code = &code.unwrap_or(image).tables;
    let callers = states.records.iter().flat_map(|record| &record.truth);
    for truth in callers {
        let Some(rva) = truth.ip.checked_sub(image.base).filter(|&rva| rva < image.size) else { continue };
        ensure!(
            follows_call(code, rva as u32),
            "the states are of another image: there is no call before {:#x}, which is a return address in them",
            truth.ip
        );
    }
    Ok(())
}

/// Whether the code before `rva` ends with a call, as far as it is known.
fn follows_call(image: &ImageTables, rva: u32) -> bool {
    let byte = |back: u32| rva.checked_sub(back).and_then(|at| image.bytes(at)).map(|bytes| bytes[0]);
    let Some(before) = (1..=7).map(byte).collect::<Option<Vec<u8>>>() else { return true };
    let byte = |back: usize| before[back - 1];
    match image.arch() {
        Arch::Arm64 => {
            let word = u32::from_le_bytes([byte(4), byte(3), byte(2), byte(1)]);
            // BL, or BLR and its authenticating forms.
            word >> 26 == 0x25 || word & 0xfeff_f800 == 0xd63f_0000
        }
        // call rel32, or call r/m with any addressing form.
        _ => byte(5) == 0xe8 || (2..=7).any(|back| byte(back) == 0xff && byte(back - 1) >> 3 & 7 == 2),
    }
}
