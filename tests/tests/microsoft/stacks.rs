//! Whole stacks of recordings: ours and StackWalk64's, over the same memory and the same tables, up
//! to the first frame in code made at run time, of which dbghelp knows nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::recordings;
use object::LittleEndian;
use object::read::pe::{ImageNtHeaders as _, ImageOptionalHeader as _, PeFile64};
use stk_base::map::MappedFile;
use stk_base::model::{Holder, Image};
use stk_format::{SampleStep, Scratch};
use stk_profile::image::{AddressSpace, ImageSearch, ModuleImage, load_images};
use stk_profile::trace::{Trace, TraceFile, registers};
use stk_schema::Ticks;
use stk_schema::event::TableKind;
use stk_tests::microsoft::{ImageBytes, Memory, Rate, Request, Walked, ask};
use stk_tests::wine;
use stk_unwind::x64::X64Registers;
use stk_unwind::{Frame, Registers, Stop, WalkOptions, Walker};

/// Image files by name, timestamp and size.
type Files = HashMap<(String, u32, u32), PathBuf>;

/// The x64 images in these folders and below.
fn image_files(folders: &[PathBuf]) -> Files {
    let (mut folders, mut files) = (folders.to_vec(), Files::new());
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(map) = MappedFile::open_plain(&path)
                && let Ok(pe) = PeFile64::parse(&*map)
            {
                let header = pe.nt_headers().file_header();
                let size = pe.nt_headers().optional_header().size_of_image();
                let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
                files.insert((name, header.time_date_stamp.get(LittleEndian), size), path);
            }
        }
    }
    files
}

/// A decoded sample.
struct Sample {
    time: Ticks,
    registers: X64Registers,
    stack: Vec<u8>,
    stack_start: u64,
    stack_base: Option<u64>,
    truncated: bool,
    code_at_ip: Option<Vec<u8>>,
}

fn samples(trace: &Trace<'_>) -> Vec<Sample> {
    let (mut found, mut scratch) = (Vec::new(), Scratch::default());
    for block in trace.sample_blocks() {
        let mut samples = trace.blocks().samples(block, &mut scratch).expect("a sound block");
        while let Some(step) = samples.next().expect("a sound sample") {
            let SampleStep::Sample(sample) = step else { continue };
            let Some(Registers::X64(registers)) = registers(sample.set, sample.registers) else { continue };
            found.push(Sample {
                time: sample.time,
                registers,
                stack: sample.stack.to_vec(),
                stack_start: sample.stack_start,
                stack_base: (sample.stack_base != 0).then_some(sample.stack_base),
                truncated: sample.truncated,
                code_at_ip: sample.code_at_ip.map(<[u8]>::to_vec),
            });
        }
    }
    found
}

/// Agreement on the stacks of a trace.
#[derive(Default)]
struct Tally {
    stacks: usize,
    equal: usize,
    /// Equal up to the first frame in code made at run time.
    equal_to_dynamic: usize,
    /// Equal up to a word that dbghelp takes for a return address and ours does not: no code is
    /// there.
    refused: usize,
    /// All others, by class.
    differ: BTreeMap<String, usize>,
    examples: BTreeMap<String, String>,
}

impl Tally {
    #[track_caller]
    fn agrees(&self) {
        assert!(self.stacks >= 30, "{} stacks", self.stacks);
        assert!(self.differ.is_empty(), "{:#?}", self.examples);
    }
}

fn judge(name: &str, file: &Path, files: &Files) -> Tally {
    const TIME: Duration = Duration::from_secs(1);
    let opened = TraceFile::open(file).expect("a trace");
    let trace = opened.read().expect("a trace");
    let find =
        |image: &Image| files.get(&(image.name.to_lowercase(), image.time_date_stamp, image.size)).cloned();
    let images = load_images(&trace, &ImageSearch { file: &find, code: &find, frames: &|_| None });
    let samples = samples(&trace);
    assert!(!samples.is_empty(), "{name}: no samples");
    let mut view = trace.timeline.view();
    let image_bytes: Vec<ImageBytes<'_>> = (0..images.len())
        .map(|n| ImageBytes::new(&images[n].tables, directory(&trace, n, &images)))
        .collect();

    // One request, in which the samples of the same modules share their memory.
    let mut request = Request::default();
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let mut codes = Vec::new();
    for (n, sample) in samples.iter().enumerate() {
        view.go(sample.time);
        match groups.last_mut() {
            Some((epoch, end)) if *epoch == view.epoch() => *end = n + 1,
            _ => {
                groups.push((view.epoch(), n + 1));
            }
        }
    }
    let mut from = 0;
    for &(_, end) in &groups {
        codes.push(code_of(&samples[from..end]));
        from = end;
    }
    let mut from = 0;
    for (&(_, end), code) in groups.iter().zip(&codes) {
        view.go(samples[from].time);
        let mut memory = Memory::default();
        for (address, bytes) in code {
            memory.add_bytes(*address, bytes);
        }
        for live in view.live() {
            memory.add(live.base, &image_bytes[live.image.0 as usize]);
        }
        let stacks = samples[from..end].iter().map(|s| (&s.registers, s.stack_start, s.stack.as_slice()));
        // Wine's clock is too coarse for few stacks.
        let share = (end - from) as f64 / samples.len() as f64;
        let time = TIME.mul_f64(share).max(Duration::from_millis(30));
        request.memory(&memory).walks(20_000, time, stacks);
        from = end;
    }
    let mut answer = ask(&request);
    let (mut theirs, mut their_rate) = (Vec::new(), Rate::default());
    let mut from = 0;
    for &(_, end) in &groups {
        let (walks, rate) = answer.walks(end - from);
        theirs.extend(walks);
        their_rate.add(rate);
        from = end;
    }
    let mut walker = Walker::new(WalkOptions::default());
    let mut walk = |sample: &Sample, found: &mut Vec<Frame>| {
        view.go(sample.time);
        let walked = stk_unwind::Sample {
            registers: &Registers::X64(sample.registers),
            stack: &sample.stack,
            stack_start: sample.stack_start,
            stack_base: sample.stack_base,
            truncated: sample.truncated,
            code_at_ip: sample.code_at_ip.as_deref(),
        };
        walker.walk(&AddressSpace::new(&view, &images), &walked, found)
    };
    let ours: Vec<(Vec<Frame>, Stop)> = samples
        .iter()
        .map(|sample| {
            let mut found = Vec::new();
            let stop = walk(sample, &mut found);
            (found, stop)
        })
        .collect();
    let mut found = Vec::new();
    let our_rate = Rate::of(TIME, || {
        let mut frames = 0;
        for sample in &samples {
            walk(sample, &mut found);
            frames += found.len() as u64;
        }
        frames
    });
    let mut tally = Tally { stacks: samples.len(), ..Tally::default() };
    for (((ours, stop), theirs), sample) in ours.iter().zip(&theirs).zip(&samples) {
        view.go(sample.time);
        let is_code = |address| view.find(address).is_some() || view.find_code(address).is_some();
        let has_function = |address| {
            let image = view.find(address).map(|live| (&images[live.image.0 as usize].tables, live.base));
            image.is_some_and(|(image, base)| image.function_range((address - base) as u32).is_some())
        };
        compare(&mut tally, &trace, is_code, has_function, sample, ours, *stop, theirs);
    }
    let (theirs, ours) = (their_rate.per_second(), our_rate.per_second());
    println!(
        "{name}: {} stacks, {} equal, {} to their first dynamic frame, {} to a word that is no code address; frames a second of processor time: dbghelp {theirs:.0} (under Wine), \
         stk {ours:.0} (native), {:.0} times as many",
        tally.stacks,
        tally.equal,
        tally.equal_to_dynamic,
        tally.refused,
        ours / theirs
    );
    for (class, count) in &tally.differ {
        println!("  {count} {class}: {}", tally.examples[class]);
    }
    tally
}

/// The recorded code at the instruction pointers, without overlap.
fn code_of(samples: &[Sample]) -> BTreeMap<u64, Vec<u8>> {
    let mut bytes = BTreeMap::new();
    for sample in samples {
        let code = sample.code_at_ip.iter().flatten();
        bytes.extend((sample.registers.ip..).zip(code.copied()));
    }
    let mut ranges: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for (address, byte) in bytes {
        match ranges.last_entry() {
            Some(mut last) if last.key() + last.get().len() as u64 == address => last.get_mut().push(byte),
            _ => {
                ranges.insert(address, vec![byte]);
            }
        }
    }
    ranges
}

/// The exception directory of an image: RVA and length.
fn directory(trace: &Trace<'_>, image: usize, images: &[ModuleImage]) -> (u32, u32) {
    let tables = &trace.timeline.images[image].tables;
    let recorded = tables.iter().find(|table| table.kind == TableKind::ExceptionDirectory as u64);
    if let Some(table) = recorded {
        return (table.rva, table.len);
    }
    let stk_profile::image::ImageSource::File(path) = &images[image].source else { return (0, 0) };
    let bytes = MappedFile::open_plain(path).expect("it was read");
    let pe = PeFile64::parse(&*bytes).expect("it was read");
    let directory = pe.data_directory(object::pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION);
    directory.map_or((0, 0), |directory| directory.address_range())
}

#[expect(clippy::too_many_arguments, reason = "one call")]
fn compare(
    tally: &mut Tally,
    trace: &Trace<'_>,
    is_code: impl Fn(u64) -> bool,
    has_function: impl Fn(u64) -> bool,
    sample: &Sample,
    ours: &[Frame],
    stop: Stop,
    theirs: &[Walked],
) {
    let is_dynamic =
        |frame: &Frame| frame.module.is_some_and(|module| matches!(Holder::of(module), Holder::Code(_)));
    let dynamic = ours.iter().position(is_dynamic);
    let compared = &ours[..dynamic.map_or(ours.len(), |at| at + 1)];
    let place = |frame: &Frame| {
        let name = frame.module.map_or("?", |id| stk_profile::image::holder_name(&trace.timeline, id));
        format!("{name}+{:#x}", frame.rva)
    };
    let module = |frame: &Frame| {
        frame.module.map_or("no module", |id| stk_profile::image::holder_name(&trace.timeline, id)).to_owned()
    };
    // Where a function ends with a call that does not return, dbghelp gives the address before the
    // return address, which lies behind the function.
    let same = |(frame, walked): (&Frame, &Walked)| {
        let is_behind = frame.address == walked.ip + 1 && !has_function(frame.address);
        frame.sp == walked.sp && (frame.address == walked.ip || is_behind)
    };
    let equal = compared.iter().zip(theirs).take_while(|pair| same(*pair)).count();
    let class = if equal < compared.len() {
        let from = &compared[equal.saturating_sub(1)];
        let what = if theirs.len() <= equal { "dbghelp ends" } else { "another caller" };
        format!("{what} in {}, ours by {}", module(from), compared[equal].trust.as_str())
    } else if dynamic.is_some() {
        tally.equal_to_dynamic += 1;
        return;
    } else if theirs.len() == compared.len() || matches!(stop, Stop::ThreadStart) {
        tally.equal += 1;
        return;
    } else if matches!(stop, Stop::NoModule { .. } | Stop::NoFunction { .. }) && !is_code(theirs[equal].ip) {
        tally.refused += 1;
        return;
    } else {
        format!("dbghelp continues where ours ends: {} in {}", stop.as_str(), module(&compared[equal - 1]))
    };
    *tally.differ.entry(class.clone()).or_default() += 1;
    tally.examples.entry(class).or_insert_with(|| {
        let from = equal.saturating_sub(2);
        let ours: Vec<String> = ours[from.min(ours.len())..]
            .iter()
            .take(4)
            .map(|frame| format!("{} {:#x} {}", place(frame), frame.sp, frame.trust.as_str()))
            .collect();
        format!(
            "frame {equal} of {}, ip {:#x}: ours {ours:?}, {stop:?}; theirs {:x?}",
            compared.len(),
            sample.registers.ip,
            &theirs[from.min(theirs.len())..theirs.len().min(from + 4)]
        )
    });
}

#[test]
fn kept_recordings_are_walked_as_by_dbghelp() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let files = image_files(&[wine::path("STK_FETCH_DIR").join("node")]);
    for name in ["busy.stk", "mixed.stk"] {
        judge(name, &traces.join(name), &files).agrees();
    }
}

#[test]
fn new_recordings_are_walked_as_by_dbghelp() {
    let makers = [
        recordings::busy,
        recordings::cmake,
        recordings::node,
        recordings::mixed,
        recordings::esbuild,
        recordings::biome,
    ];
    for make in makers {
        let recording = make();
        let mut folders = recording.images.clone();
        folders.push(wine::path("STK_WINE10_DIR").join("root/usr/lib/x86_64-linux-gnu/wine/x86_64-windows"));
        judge(recording.name, &recording.trace, &image_files(&folders)).agrees();
    }
}
