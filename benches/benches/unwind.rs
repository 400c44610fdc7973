//! Compares the frames per second of stk-unwind and framehop, on generated stacks of the functions
//! of two real MSVC images.
//!
//! `cargo bench -p stk-benches --bench unwind`. The images are OpenConsole.exe and winpty-agent.exe
//! of npm node-pty@1.1.0, fetched by tests/fetch.sh.
//!
//! This program makes the stacks. It picks functions and call sites at random and lays out each
//! frame by its UNWIND_INFO (which it reads itself, without either unwinder), with the registers of
//! its callers in its save slots. Both unwinders must return every return address. Only then is
//! time measured: one core, tail reuse off, CPU time of the measuring thread, the best of many
//! short rounds that alternate between the two, which reduces the effect of other programs on the
//! machine.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use framehop::Unwinder as _;
use iced_x86::{Decoder, DecoderOptions, Mnemonic};
use object::read::pe::{ImageNtHeaders, ImageOptionalHeader, PeFile64};
use stk_tests::cpu::cpu_time;
use stk_unwind::{
    Arch, Frame, History, ImageTables, LoadedModule, ModuleId, Modules, Registers, Sample, WalkOptions,
    Walker, x64,
};

fn main() -> Result<()> {
    // `cargo test --benches` also runs this program, which has no tests.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let folder = node_pty()?.join("prebuilds/win32-x64");
    let images = vec![
        Image::load(&folder.join("conpty/OpenConsole.exe"), 0x7ff6_1000_0000)?,
        Image::load(&folder.join("winpty-agent.exe"), 0x7ff7_2000_0000)?,
    ];
    let mut random = Random(0x5bd1_e995);
    let many = stacks(&images, 600, &mut random);
    let hot = stacks(&images, 20, &mut random);
    let mut pcs: Vec<u64> = many.iter().flat_map(|stack| stack.addresses.iter().copied()).collect();
    let frames = pcs.len();
    pcs.sort_unstable();
    pcs.dedup();
    let bytes: usize = many.iter().map(|stack| stack.bytes.len()).sum();
    println!(
        "{} stacks of {} bytes on average, {frames} frames, {} distinct addresses; and 20 hot stacks",
        many.len(),
        bytes / many.len(),
        pcs.len()
    );

    let space = Space { images: &images };
    let peer = Peer::new(&images);
    for (name, stacks, rounds) in [("many distinct addresses", &many, 4), ("20 hot stacks", &hot, 60)] {
        let wrong = compare(&space, &peer, stacks)?;
        println!("{name}: framehop wrong in {wrong} of {} stacks, ours in none", stacks.len());
        let (mut ours, mut theirs) = (0.0f64, 0.0f64);
        let mut walker = Walker::new(WalkOptions::default());
        let mut cache = framehop::x86_64::CacheX86_64::<_>::new();
        for _ in 0..ALTERNATIONS {
            theirs = theirs.max(rate(stacks, rounds, |stack| peer.count(stack, &mut cache)));
            let mut found = Vec::new();
            ours = ours.max(rate(stacks, rounds, |stack| {
                walker.walk(&space, &stack.sample(), &mut found);
                found.len()
            }));
        }
        println!(
            "{name}: stk-unwind {:.1} M frames/s, framehop {:.2} M frames/s, ratio {:.1}",
            ours / 1e6,
            theirs / 1e6,
            ours / theirs
        );
    }
    reuse(&space, &many);
    Ok(())
}

/// How often the two are measured alternately.
const ALTERNATIONS: usize = 40;

/// Frames per second, whether rules are compiled yet or not.
fn rate(stacks: &[Stack], rounds: usize, mut walk: impl FnMut(&Stack) -> usize) -> f64 {
    let start = cpu_time();
    let mut frames = 0;
    for _ in 0..rounds {
        for stack in stacks {
            frames += walk(stack);
        }
    }
    frames as f64 / (cpu_time() - start).max(Duration::from_nanos(1)).as_secs_f64()
}

/// Measures the gain from walking only the changed part, when the innermost frames differ between
/// two samples of a thread.
fn reuse(space: &Space<'_>, stacks: &[Stack]) {
    let mut walker = Walker::new(WalkOptions::default());
    let mut frames = Vec::new();
    let rounds = 3;
    for part in [0usize, 25, 50, 75] {
        // In each stack, the innermost `part` per cent of the frames are new at each sample.
        let changed: Vec<(&Stack, u64)> = stacks.iter().map(|stack| (stack, stack.sp_at(part))).collect();
        let mut whole = f64::MAX;
        let mut partial = f64::MAX;
        for _ in 0..ALTERNATIONS {
            let start = cpu_time();
            for _ in 0..rounds {
                for (stack, _) in &changed {
                    walker.walk(space, &stack.sample(), &mut frames);
                }
            }
            whole = whole.min((cpu_time() - start).as_secs_f64());
            let mut histories: Vec<History> = changed.iter().map(|_| History::default()).collect();
            for ((stack, _), history) in changed.iter().zip(&mut histories) {
                walker.walk_again(space, &stack.sample(), 0, history);
            }
            let start = cpu_time();
            for _ in 0..rounds {
                for ((stack, unchanged), history) in changed.iter().zip(&mut histories) {
                    walker.walk_again(space, &stack.sample(), *unchanged, history);
                }
            }
            partial = partial.min((cpu_time() - start).as_secs_f64());
        }
        println!(
            "tail reuse, {part} % of the frames new: {:.1} times the samples/s of whole walks",
            whole / partial
        );
    }
}

/// The number of stacks on which the peer is wrong; an error if stk is wrong on one.
fn compare(space: &Space<'_>, peer: &Peer, stacks: &[Stack]) -> Result<usize> {
    let mut walker = Walker::new(WalkOptions::default());
    let mut cache = framehop::x86_64::CacheX86_64::<_>::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut wrong = 0;
    for stack in stacks {
        let stop = walker.walk(space, &stack.sample(), &mut frames);
        let ours: Vec<u64> = frames.iter().map(|frame| frame.address).collect();
        ensure!(
            ours == stack.addresses,
            "ours is wrong ({stop:x?}): {ours:x?}, laid were {:x?}",
            stack.addresses
        );
        wrong += usize::from(peer.walk(stack, &mut cache) != stack.addresses);
    }
    Ok(wrong)
}

// The peer.

struct Peer {
    unwinder: framehop::x86_64::UnwinderX86_64<Vec<u8>>,
}

impl Peer {
    fn new(images: &[Image]) -> Peer {
        let mut unwinder = framehop::x86_64::UnwinderX86_64::new();
        for image in images {
            let range = image.base..image.base + u64::from(image.size);
            let sections = PeSections { image };
            unwinder.add_module(framehop::Module::new(image.name.clone(), range, image.base, sections));
        }
        Peer { unwinder }
    }

    fn each(&self, stack: &Stack, cache: &mut framehop::x86_64::CacheX86_64, mut frame: impl FnMut(u64)) {
        let x64 = &stack.registers;
        let registers = framehop::x86_64::UnwindRegsX86_64::new(x64.ip, x64.gpr[x64::RSP], x64.gpr[x64::RBP]);
        let mut read = |address: u64| {
            let at = address.wrapping_sub(stack.start) as usize;
            let word = stack.bytes.get(at..at.wrapping_add(8)).ok_or(())?;
            Ok(u64::from_le_bytes(word.try_into().map_err(|_| ())?))
        };
        let mut frames = self.unwinder.iter_frames(x64.ip, registers, cache, &mut read);
        while let Ok(Some(found)) = frames.next() {
            frame(found.address());
        }
    }

    fn walk(&self, stack: &Stack, cache: &mut framehop::x86_64::CacheX86_64) -> Vec<u64> {
        let mut found = Vec::new();
        self.each(stack, cache, |address| found.push(address));
        found
    }

    fn count(&self, stack: &Stack, cache: &mut framehop::x86_64::CacheX86_64) -> usize {
        let mut count = 0;
        self.each(stack, cache, |_| count += 1);
        count
    }
}

struct PeSections<'a> {
    image: &'a Image,
}

impl framehop::ModuleSectionInfo<Vec<u8>> for PeSections<'_> {
    fn base_svma(&self) -> u64 {
        self.image.preferred
    }

    fn section_svma_range(&mut self, name: &[u8]) -> Option<Range<u64>> {
        let (rva, bytes) = self.image.sections.get(name)?;
        let start = self.image.preferred + u64::from(*rva);
        Some(start..start + bytes.len() as u64)
    }

    fn section_data(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        Some(self.image.sections.get(name)?.1.clone())
    }
}

// The stacks.

struct Stack {
    registers: x64::X64Registers,
    as_registers: Registers,
    start: u64,
    bytes: Vec<u8>,
    /// The return addresses laid out, innermost first.
    addresses: Vec<u64>,
    /// The stack pointers of those frames.
    sps: Vec<u64>,
}

impl Stack {
    fn sample(&self) -> Sample<'_> {
        Sample {
            registers: &self.as_registers,
            stack: &self.bytes,
            stack_start: self.start,
            stack_base: Some(BASE),
            truncated: false,
            code_at_ip: None,
        }
    }

    fn sp_at(&self, per_cent: usize) -> u64 {
        self.sps[self.sps.len() * per_cent / 100]
    }
}

const BASE: u64 = 0x50_0000_0000;
/// The most bytes of one stack.
const SIZE: usize = 1 << 20;

fn stacks(images: &[Image], count: usize, random: &mut Random) -> Vec<Stack> {
    let sites: Vec<(u64, &Function)> = images
        .iter()
        .flat_map(|image| image.functions.iter().map(move |function| (image.base, function)))
        .collect();
    (0..count).map(|_| lay(&sites, 20 + random.below(25), random)).collect()
}

/// Lays out a stack from its outermost frame down.
fn lay(functions: &[(u64, &Function)], depth: usize, random: &mut Random) -> Stack {
    let mut memory = vec![0u8; SIZE];
    let bottom = BASE - SIZE as u64;
    let mut gpr = [0u64; 16];
    for register in &mut gpr {
        *register = random.next() | 1;
    }
    let mut sp = BASE - 64;
    let mut return_address = 0u64;
    let (mut addresses, mut sps) = (Vec::new(), Vec::new());
    for _ in 0..depth {
        let (base, function) = loop {
            let (base, function) = functions[random.below(functions.len())];
            if sp - u64::from(function.layout.size) > bottom + 64 {
                break (base, function);
            }
        };
        sp -= 8;
        write(&mut memory, sp - bottom, return_address);
        let frame = sp - u64::from(function.layout.size);
        for &(register, offset) in &function.layout.saved {
            write(&mut memory, frame + u64::from(offset) - bottom, gpr[register]);
            gpr[register] = random.next() | 1;
        }
        if let Some((register, offset)) = function.layout.frame_register {
            gpr[register] = frame + u64::from(offset);
        }
        sp = frame;
        return_address = base + u64::from(function.sites[random.below(function.sites.len())]);
        addresses.push(return_address);
        sps.push(sp);
    }
    addresses.reverse();
    sps.reverse();
    gpr[x64::RSP] = sp;
    let registers = x64::X64Registers { ip: return_address, gpr };
    let bytes = memory.split_off((sp - bottom) as usize);
    Stack { registers, as_registers: Registers::X64(registers), start: sp, bytes, addresses, sps }
}

fn write(memory: &mut [u8], at: u64, value: u64) {
    memory[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
}

// The images.

struct Image {
    name: String,
    preferred: u64,
    base: u64,
    size: u32,
    sections: HashMap<Vec<u8>, (u32, Vec<u8>)>,
    tables: Arc<ImageTables>,
    functions: Vec<Function>,
}

/// A function whose frame can be laid out.
struct Function {
    layout: Layout,
    /// Return addresses of its calls, after its prologue.
    sites: Vec<u32>,
}

/// The layout of a frame by its UNWIND_INFO, from the stack pointer after the prologue.
#[derive(Default)]
struct Layout {
    size: u32,
    /// The part at its lower end that is allocated in one step.
    allocated: u32,
    saved: Vec<(usize, u32)>,
    frame_register: Option<(usize, u32)>,
}

struct Space<'a> {
    images: &'a [Image],
}

impl Modules for Space<'_> {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let index = self.images.partition_point(|image| image.base <= address).checked_sub(1)?;
        let image = &self.images[index];
        (address - image.base < u64::from(image.size)).then(|| LoadedModule {
            module: ModuleId(index as u32),
            base: image.base,
            image: &image.tables,
            image_key: index as u32,
        })
    }
}

impl Image {
    fn load(path: &Path, base: u64) -> Result<Image> {
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let pe = PeFile64::parse(&bytes[..])?;
        let optional = pe.nt_headers().optional_header();
        let size = optional.size_of_image();
        let mut sections = HashMap::new();
        let mut mapped = vec![0u8; size as usize];
        let mut builder = ImageTables::new(Arch::X64, size);
        for section in pe.section_table().iter() {
            let rva = section.virtual_address.get(object::LittleEndian);
            let data = section.pe_data(pe.data())?.to_vec();
            mapped[rva as usize..rva as usize + data.len()].copy_from_slice(&data);
            builder = builder.range(rva, data.clone());
            sections.insert(section.raw_name().to_vec(), (rva, data));
        }
        let directory = pe
            .data_directory(object::pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION)
            .context("no exception directory")?;
        let (rva, len) = directory.address_range();
        let functions = mapped[rva as usize..(rva + len) as usize]
            .chunks_exact(12)
            .filter_map(|record| function(&mapped, record))
            .collect();
        Ok(Image {
            name: path.display().to_string(),
            preferred: optional.image_base(),
            base,
            size,
            sections,
            tables: Arc::new(builder.exception_directory(rva, len).build()),
            functions,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn function(image: &[u8], record: &[u8]) -> Option<Function> {
    let (begin, end, info) = (word(record, 0), word(record, 4), word(record, 8));
    let layout = layout(image, info as usize)?;
    let prologue = u32::from(image[info as usize + 1]);
    let code = image.get(begin as usize..end as usize)?;
    let mut decoder = Decoder::with_ip(64, code, u64::from(begin), DecoderOptions::NONE);
    let mut sites = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let next = instruction.next_ip() as u32;
        if instruction.mnemonic() == Mnemonic::Call && next >= begin + prologue && next < end {
            sites.push(next);
        }
    }
    // A function that allocates less than this calls only helpers that use no home space.
    const HOME: u32 = 32;
    (!sites.is_empty() && layout.allocated >= HOME).then_some(Function { layout, sites })
}

/// Reads the unwind codes of a function and of the functions that it continues; `None` for machine
/// frames.
fn layout(image: &[u8], mut info: usize) -> Option<Layout> {
    let mut layout = Layout::default();
    loop {
        let (flags, count, frame) = (image[info] >> 3, usize::from(image[info + 2]), image[info + 3]);
        if image[info] & 7 != 1 {
            return None;
        }
        if frame & 15 != 0 {
            layout.frame_register = Some((usize::from(frame & 15), u32::from(frame >> 4) * 16));
        }
        let slot = |n: usize| u32::from(image[info + 4 + n * 2]) | u32::from(image[info + 5 + n * 2]) << 8;
        let mut n = 0;
        while n < count {
            let (operation, operand) = (slot(n) >> 8 & 15, slot(n) >> 12);
            match operation {
                0 => {
                    layout.saved.push((operand as usize, layout.size));
                    layout.size += 8;
                }
                1 | 2 => {
                    let size = match (operation, operand) {
                        (1, 0) => slot(n + 1) * 8,
                        (1, _) => slot(n + 1) | slot(n + 2) << 16,
                        _ => operand * 8 + 8,
                    };
                    if layout.size == 0 {
                        layout.allocated = size;
                    }
                    layout.size += size;
                }
                4 => layout.saved.push((operand as usize, slot(n + 1) * 8)),
                5 => layout.saved.push((operand as usize, slot(n + 1) | slot(n + 2) << 16)),
                3 | 8 | 9 => {}
                _ => return None,
            }
            n += match operation {
                1 if operand != 0 => 3,
                1 | 4 | 8 => 2,
                5 | 9 => 3,
                _ => 1,
            };
        }
        if flags & 4 == 0 {
            return Some(layout);
        }
        info = word(image, info + 4 + count.next_multiple_of(2) * 2 + 8) as usize;
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }
}

/// The folder of the npm package, fetched if it is missing.
fn node_pty() -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fetch.sh");
    let output = Command::new(&script).arg("node-pty").output().context("tests/fetch.sh")?;
    ensure!(
        output.status.success(),
        "tests/fetch.sh node-pty failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let folder = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let nested = folder.join("package");
    Ok(if nested.is_dir() { nested } else { folder })
}
