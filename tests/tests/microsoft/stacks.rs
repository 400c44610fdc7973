//! Whole stacks of recordings: ours and StackWalk64's, over the same memory and the same tables, up
//! to the first frame in code made at run time, of which dbghelp knows nothing.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::recordings;
use object::LittleEndian;
use object::read::pe::{ImageNtHeaders as _, ImageOptionalHeader as _, PeFile64};
use stk_base::map::MappedFile;
use stk_base::model::{CodeOwner, Image};
use stk_format::{SampleStep, Scratch};
use stk_profile::image::{ImageSearch, ModuleImage, ModuleMap, holder_name, load_images};
use stk_profile::trace::{TimelineCursor, Trace, TraceFile, registers};
use stk_schema::Ticks;
use stk_tests::microsoft::{ImageBytes, Memory, Rate, Request, Walked, ask, files_below};
use stk_tests::wine;
use stk_unwind::x64::X64Registers;
use stk_unwind::{Frame, Registers, Stop, Trust, WalkOptions, Walker};

/// Image files by name, timestamp and size.
type Files = HashMap<(String, u32, u32), PathBuf>;

/// The x64 images in these folders and below.
fn image_files(folders: &[PathBuf]) -> Files {
    let mut files = Files::new();
    for path in files_below(folders) {
        if let Ok(map) = MappedFile::open_plain(&path)
            && let Ok(pe) = PeFile64::parse(&*map)
        {
            let header = pe.nt_headers().file_header();
            let size = pe.nt_headers().optional_header().size_of_image();
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            files.insert((name, header.time_date_stamp.get(LittleEndian), size), path);
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

/// A trace, its images and samples.
struct Recorded<'a> {
    trace: &'a Trace<'a>,
    images: &'a [ModuleImage],
    samples: &'a [Sample],
}

/// How long each side walks for its rate.
const TIME: Duration = Duration::from_secs(1);

fn judge(name: &str, file: &Path, files: &Files) -> Tally {
    let opened = TraceFile::open(file).expect("a trace");
    let trace = opened.read().expect("a trace");
    let find =
        |image: &Image| files.get(&(image.name.to_lowercase(), image.time_date_stamp, image.size)).cloned();
    let images = load_images(&trace, &ImageSearch { file: &find, code: &find, frames: &|_| None });
    let samples = samples(&trace);
    let recorded = Recorded { trace: &trace, images: &images, samples: &samples };
    let (theirs, their_rate) = recorded.by_dbghelp();
    let (ours, our_rate) = recorded.by_stk();
    let mut tally = Tally { stacks: samples.len(), ..Tally::default() };
    let mut view = trace.timeline.view();
    for (((ours, stop), theirs), sample) in ours.iter().zip(&theirs).zip(&samples) {
        view.go(sample.time);
        tally.add(&Case { view: &view, images: &images, ours, stop: *stop, theirs });
    }
    tally.print(name);
    let (theirs, ours) = (their_rate.per_second(), our_rate.per_second());
    println!(
        "  frames a second of processor time: dbghelp {theirs:.0} (under Wine), stk {ours:.0} (native), {:.0} times as many",
        ours / theirs
    );
    tally
}

impl Recorded<'_> {
    /// The samples of the same modules, which share their memory.
    fn groups(&self) -> Vec<Range<usize>> {
        let mut view = self.trace.timeline.view();
        let mut groups: Vec<(usize, Range<usize>)> = Vec::new();
        for (n, sample) in self.samples.iter().enumerate() {
            view.go(sample.time);
            match groups.last_mut() {
                Some((epoch, group)) if *epoch == view.epoch() => group.end = n + 1,
                _ => groups.push((view.epoch(), n..n + 1)),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// The frames of every sample by StackWalk64.
    fn by_dbghelp(&self) -> (Vec<Vec<Walked>>, Rate) {
        let mut view = self.trace.timeline.view();
        let groups = self.groups();
        let bytes: Vec<ImageBytes<'_>> =
            self.images.iter().map(|image| ImageBytes::new(&image.tables)).collect();
        let codes: Vec<_> = groups.iter().map(|group| code_of(&self.samples[group.clone()])).collect();
        let mut request = Request::default();
        for (group, code) in groups.iter().zip(&codes) {
            let samples = &self.samples[group.clone()];
            view.go(samples[0].time);
            let mut memory = Memory::default();
            for live in view.live() {
                memory.add(live.base, &bytes[live.image.0 as usize]);
            }
            for (address, bytes) in code {
                memory.add_bytes(*address, bytes);
            }
            let stacks = samples.iter().map(|s| (&s.registers, s.stack_start, s.stack.as_slice()));
            // Wine's clock is too coarse for less.
            let share = samples.len() as f64 / self.samples.len() as f64;
            let time = TIME.mul_f64(share).max(Duration::from_millis(30));
            request.memory(&memory).walks(20_000, time, stacks);
        }
        let mut answer = ask(&request);
        let (mut stacks, mut all) = (Vec::new(), Rate::default());
        for group in groups {
            let (walks, rate) = answer.walks(group.len());
            stacks.extend(walks);
            all.add(rate);
        }
        (stacks, all)
    }

    /// The frames of every sample by stk.
    fn by_stk(&self) -> (Vec<(Vec<Frame>, Stop)>, Rate) {
        let mut view = self.trace.timeline.view();
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
            walker.walk(&ModuleMap::new(&view, self.images), &walked, found)
        };
        let mut stacks = Vec::new();
        for sample in self.samples {
            let mut found = Vec::new();
            let stop = walk(sample, &mut found);
            stacks.push((found, stop));
        }
        let mut found = Vec::new();
        let rate = Rate::of(TIME, || {
            let mut frames = 0;
            for sample in self.samples {
                walk(sample, &mut found);
                frames += found.len() as u64;
            }
            frames
        });
        (stacks, rate)
    }
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

/// A stack by both, at its moment.
struct Case<'a, 't> {
    view: &'a TimelineCursor<'t>,
    images: &'a [ModuleImage],
    ours: &'a [Frame],
    stop: Stop,
    theirs: &'a [Walked],
}

impl Case<'_, '_> {
    fn module(&self, frame: &Frame) -> &str {
        frame.module.map_or("no module", |id| holder_name(self.view.timeline(), id))
    }

    fn is_code(&self, address: u64) -> bool {
        self.view.find(address).is_some() || self.view.find_code(address).is_some()
    }

    fn has_function(&self, address: u64) -> bool {
        self.view.find(address).is_some_and(|live| {
            let image = &self.images[live.image.0 as usize].tables;
            image.function_range((address - live.base) as u32).is_some()
        })
    }

    /// Where a function ends with a call that does not return, dbghelp gives the address before the
    /// return address, which is behind the function.
    fn is_same(&self, frame: &Frame, walked: &Walked) -> bool {
        let is_behind = || frame.address == walked.ip + 1 && !self.has_function(frame.address);
        frame.sp == walked.sp && (frame.address == walked.ip || is_behind())
    }

    fn show(&self, equal: usize) -> String {
        let from = equal.saturating_sub(2);
        let ours: Vec<String> = self
            .ours
            .iter()
            .skip(from)
            .take(4)
            .map(|frame| {
                format!("{}+{:#x} {:#x} {}", self.module(frame), frame.rva, frame.sp, frame.trust.as_str())
            })
            .collect();
        let theirs: Vec<_> = self.theirs.iter().skip(from).take(4).collect();
        format!("frame {equal} of {}: ours {ours:?}, {:?}; theirs {theirs:x?}", self.ours.len(), self.stop)
    }
}

/// Agreement on the stacks of a trace.
#[derive(Default)]
struct Tally {
    stacks: usize,
    /// Frames that are equal, without those of the samples' own registers.
    frames: usize,
    equal: usize,
    /// Of these, dbghelp continues above the start of the thread or goroutine.
    above_start: usize,
    /// Equal up to the first frame in code made at run time.
    equal_to_dynamic: usize,
    /// Equal up to a word that dbghelp takes for a return address and ours does not: no code is
    /// there.
    refused: usize,
    /// Equal up to assembler without right unwind data: dbghelp's next word is no code address,
    /// ours is found by the code and leads to the thread's start.
    astray: usize,
    /// All others, by class.
    differ: BTreeMap<String, usize>,
    examples: BTreeMap<String, String>,
}

impl Tally {
    fn add(&mut self, case: &Case<'_, '_>) {
        let is_dynamic = |frame: &Frame| {
            frame.module.is_some_and(|module| matches!(CodeOwner::of(module), CodeOwner::Code(_)))
        };
        let dynamic = case.ours.iter().position(is_dynamic);
        let compared = &case.ours[..dynamic.map_or(case.ours.len(), |at| at + 1)];
        let pairs = compared.iter().zip(case.theirs);
        let equal = pairs.take_while(|(frame, walked)| case.is_same(frame, walked)).count();
        self.frames += equal.saturating_sub(1);
        let continues = case.theirs.get(equal);
        let is_astray = |next: &Walked| !case.is_code(next.ip) && case.stop == Stop::ThreadStart;
        let class = if equal < compared.len() {
            if compared[equal].trust == Trust::Code && continues.is_some_and(is_astray) {
                self.astray += 1;
                return;
            }
            let what = if continues.is_some() { "another caller" } else { "dbghelp ends" };
            let from = case.module(&compared[equal.saturating_sub(1)]);
            format!("{what} in {from}, ours by {}", compared[equal].trust.as_str())
        } else {
            match (dynamic, case.stop, continues) {
                (Some(_), _, _) => self.equal_to_dynamic += 1,
                (None, _, None) => self.equal += 1,
                (None, Stop::ThreadStart, Some(_)) => {
                    self.equal += 1;
                    self.above_start += 1;
                }
                (None, Stop::NoModule { .. } | Stop::NoFunction { .. }, Some(next))
                    if !case.is_code(next.ip) =>
                {
                    self.refused += 1;
                }
                (None, stop, Some(_)) => {
                    let class = format!("dbghelp continues where ours ends: {}", stop.as_str());
                    return self.add_difference(class, case, equal);
                }
            }
            return;
        };
        self.add_difference(class, case, equal);
    }

    fn add_difference(&mut self, class: String, case: &Case<'_, '_>, equal: usize) {
        *self.differ.entry(class.clone()).or_default() += 1;
        self.examples.entry(class).or_insert_with(|| case.show(equal));
    }

    fn print(&self, name: &str) {
        println!(
            "{name}: {} stacks, {} callers equal: {} whole ({} of them go further in dbghelp), {} to their first dynamic frame, \
             {} to a word that is no code address, {} to assembler that only its code leads out of",
            self.stacks,
            self.frames,
            self.equal,
            self.above_start,
            self.equal_to_dynamic,
            self.refused,
            self.astray
        );
        for (class, count) in &self.differ {
            println!("  {count} {class}: {}", self.examples[class]);
        }
    }

    #[track_caller]
    fn agrees(&self) {
        assert!(self.stacks >= 30, "{} stacks", self.stacks);
        assert!(self.differ.is_empty(), "{:#?}", self.examples);
        assert!(self.astray * 100 <= self.stacks, "{} of {} stacks", self.astray, self.stacks);
    }
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
