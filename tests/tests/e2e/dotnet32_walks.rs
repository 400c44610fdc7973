//! 32-bit managed frames beside the walk of the runtime's own data access library: the same stopped
//! threads, walked by both (`tests/programs/dotnet_walks.c`).

use crate::dotnet32::{self, FRAMEWORK};
use std::collections::BTreeMap;
use std::path::PathBuf;
use stk_base::model::Image;
use stk_profile::image::{ImageSearch, ModuleMap, image_of, load_images};
use stk_profile::trace::TraceFile;
use stk_tests::wine;
use stk_unwind::x86::{EBP, ESP, X86Registers};
use stk_unwind::{Modules as _, Registers, Sample, Stop, Trust, WalkOptions, Walker};

/// CLRDATA_SIMPFRAME_MANAGED_METHOD.
const METHOD: u32 = 2;

/// A frame by the library. Its esp has the callee's arguments removed.
#[derive(Clone, Copy, Debug)]
struct Theirs {
    kind: u32,
    eip: u32,
    esp: u32,
    ebp: u32,
}

/// A stopped thread, whose innermost frame is a managed method.
struct Stopped {
    registers: X86Registers,
    stack_base: u32,
    stack: Vec<u8>,
    frames: Vec<Theirs>,
}

fn numbers<const N: usize>(line: &str) -> [u32; N] {
    let mut words = line.split(' ');
    std::array::from_fn(|_| u32::from_str_radix(words.next().expect("a number"), 16).expect("hexadecimal"))
}

fn parse(text: &str) -> Vec<Stopped> {
    let mut found: Vec<Stopped> = Vec::new();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("S ") {
            let [eip, esp, ebp, ebx, esi, edi, stack_base] = numbers(line);
            let hex = line.rsplit(' ').next().expect("the stack");
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
            let registers = X86Registers { ip: eip, gpr: [0, 0, 0, ebx, esp, ebp, esi, edi] };
            let stack = (0..hex.len()).step_by(2).map(byte).collect();
            found.push(Stopped { registers, stack_base, stack, frames: Vec::new() });
        } else if let Some(line) = line.strip_prefix("F ") {
            let [kind, eip, esp, ebp] = numbers(line);
            found.last_mut().expect("a thread").frames.push(Theirs { kind, eip, esp, ebp });
        }
    }
    found
}

/// Steps from a managed method to the managed method that called it.
#[derive(Default, Debug)]
struct Steps {
    equal: u64,
    /// Ours ended before.
    ended: u64,
    /// Ours found another caller. That is wrong.
    wrong: Vec<String>,
    /// How ours were found.
    trusts: BTreeMap<&'static str, u64>,
    /// Of these, out of methods that were compiled at run time.
    compiled: BTreeMap<&'static str, u64>,
    /// Why ours ended.
    ends: BTreeMap<&'static str, u64>,
    /// Arguments that a return removes, by the return's address in the caller: theirs less ours.
    arguments: BTreeMap<u32, u32>,
}

impl Steps {
    /// `is_compiled`: whether the code at an address was compiled at run time. `code`: what is
    /// known of it, for the message.
    fn add(
        &mut self,
        theirs: &[Theirs],
        ours: &[(X86Registers, Trust)],
        is_compiled: impl Fn(u32) -> bool,
        code: impl Fn(u32) -> String,
    ) {
        // Their innermost frame is ours.
        for (n, pair) in theirs.windows(2).enumerate() {
            let [callee, caller] = pair else { continue };
            if callee.kind != METHOD || caller.kind != METHOD {
                return;
            }
            let Some((found, trust)) = ours.get(n + 1) else {
                self.ended += 1;
                return;
            };
            let removed = caller.esp.wrapping_sub(found.gpr[ESP]);
            let known = *self.arguments.entry(caller.eip).or_insert(removed);
            let is_equal = found.ip == caller.eip
                && found.gpr[EBP] == caller.ebp
                && removed == known
                && removed <= 0x40
                && removed % 4 == 0;
            if !is_equal {
                self.wrong.push(format!(
                    "{callee:x?} -> {caller:x?}, ours {found:x?} by {}; code {}",
                    trust.as_str(),
                    code(callee.eip)
                ));
                return;
            }
            self.equal += 1;
            *self.trusts.entry(trust.as_str()).or_default() += 1;
            if is_compiled(callee.eip) {
                *self.compiled.entry(trust.as_str()).or_default() += 1;
            }
        }
    }
}

/// Seconds for which threads are stopped and walked, and the least steps that must be found: a busy
/// machine's library walks few stacks. In CI, and with STK_LONG.
const SECONDS: (&str, u64) = ("8", 20);
const LONG_SECONDS: (&str, u64) = ("150", 5_000);

/// Walks what the library walked, in the process that was just recorded.
#[track_caller]
fn compare(program: &str) {
    let (seconds, least) = if wine::long() { LONG_SECONDS } else { SECONDS };
    let (mut running, folder, places) = dotnet32::running(program, "300");
    dotnet32::record(&folder, &running);
    let probe = wine::compiled_x86(env!("CARGO_TARGET_TMPDIR"), "dotnet_walks");
    let runtime = wine::path("STK_FETCH_DIR").join("dotnet21-32").join(FRAMEWORK);
    let library = wine::windows_path(&runtime.join("mscordaccore.dll"));
    let out = folder.file("walks.txt");
    let walked = wine::output(wine::command(&probe).args([
        &running.pid()[..],
        &library,
        seconds,
        &wine::windows_path(&out),
    ]));
    assert!(walked.status.success(), "{}", String::from_utf8_lossy(&walked.stdout));
    running.kill();

    let opened = TraceFile::open(&folder.file("net21.stk")).expect("a trace");
    let trace = opened.read().expect("a trace");
    let find = |image: &Image| -> Option<PathBuf> {
        places.iter().map(|place| place.join(&image.name)).find(|path| path.is_file())
    };
    let images = load_images(&trace, &ImageSearch { file: &find, code: &find, frames: &|_| None });
    let mut view = trace.timeline.view();
    view.go(trace.timeline.last);
    let (space, mut walker) = (ModuleMap::new(&view, &images), Walker::new(WalkOptions::default()));
    let stopped = parse(&std::fs::read_to_string(&out).expect("walks"));
    let mut steps = Steps::default();
    for thread in &stopped {
        let sample = Sample {
            registers: &Registers::X86(thread.registers),
            stack: &thread.stack,
            stack_start: thread.registers.gpr[ESP].into(),
            stack_base: Some(thread.stack_base.into()),
            truncated: false,
            code_at_ip: None,
        };
        let mut ours = Vec::new();
        let stop = walker.walk_with_registers(&space, &sample, |frame, registers| {
            if let Registers::X86(registers) = registers {
                ours.push((*registers, frame.trust));
            }
        });
        *steps.ends.entry(stop.as_str()).or_default() += 1;
        match stop {
            Stop::NoModule { address } => {
                assert!(space.find(address).is_none(), "{address:#x} is in a module: {:x?}", thread.frames);
            }
            Stop::ReplacedReturnAddress { rva, .. } => {
                let mut theirs = thread.frames.iter().map(|frame| u64::from(frame.eip));
                let is_theirs =
                    theirs.any(|eip| space.find(eip).is_some_and(|found| eip == found.base + u64::from(rva)));
                assert!(is_theirs, "{rva:#x}: {:x?}", thread.frames);
            }
            _ => {}
        }
        let is_compiled = |address: u32| {
            let found = space.find(address.into());
            found.is_some_and(|found| image_of(&trace.timeline, found.module).is_none())
        };
        steps.add(&thread.frames, &ours, is_compiled, |address| {
            let Some(found) = space.find(address.into()) else { return "unknown".to_owned() };
            let rva = (u64::from(address) - found.base) as u32;
            let code = found.image.bytes(rva).map(|bytes| &bytes[..bytes.len().min(16)]);
            let before = found.image.bytes(rva.saturating_sub(16)).map(|bytes| &bytes[..bytes.len().min(16)]);
            format!("{before:x?} {code:x?} at {rva:#x}, bounds {:x?}", found.image.function_range(rva))
        });
    }
    wine::measured(&format!(
        "{program} of .NET 2.1 for x86, beside the data access library: {} stopped threads, {} steps from method to method equal, {} of ours ended, {} wrong; by {:?}, out of methods compiled at run time {:?}; ends {:?}",
        stopped.len(),
        steps.equal,
        steps.ended,
        steps.wrong.len(),
        steps.trusts,
        steps.compiled,
        steps.ends
    ));
    assert!(steps.wrong.is_empty(), "{:#?}", &steps.wrong[..steps.wrong.len().min(10)]);
    // Not in prologues and epilogues, nor in methods with handlers or pushed arguments.
    let by_gc_info = steps.compiled.get(Trust::UnwindInfo.as_str()).copied().unwrap_or(0);
    let compiled: u64 = steps.compiled.values().sum();
    assert!(by_gc_info * 3 >= compiled && compiled > 0, "{by_gc_info} of {compiled} by GCInfo");
    assert!(
        steps.equal >= least && steps.ended * 20 <= steps.equal.max(100),
        "{} equal, {} ended",
        steps.equal,
        steps.ended
    );
}

#[test]
fn methods_have_the_callers_that_the_library_finds() {
    compare("walk");
}

#[test]
fn large_methods_have_the_callers_that_the_library_finds() {
    if wine::long() {
        compare("framework");
    }
}
