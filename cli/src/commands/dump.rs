//! `stk dump`: stacks at a moment, as text.

use super::{Exit, pipeline, print, select::parse_time, span, utc};
use crate::image::{AddressSpace, ModuleImage};
use crate::profile::export_name;
use crate::symbols::{Demangle, ModuleKey, ModuleSymbols, Resolved, Source, Symbolizer};
use crate::trace::{Snapshot, Trace, TraceFile, registers, snapshots};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use stk_schema::event::RunState;
use stk_schema::identity::CodeView;
use stk_unwind::{Frame, Registers, Stop, Trust, WalkOptions, Walker};

/// Prints the stacks of all threads, or of some, as they were at a moment.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk dump app.stk
  stk dump app.stk --at 1.5s --thread worker --style k
  stk dump once.stk --style json | jq '.threads[].frames[0].function'")]
pub struct Args {
    /// Trace
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The moment, since the trace's start; by default the last
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    at: Option<u64>,
    /// Only threads with this id, or with this text in their name; may be repeated
    #[arg(long = "thread", value_name = "TID|NAME")]
    threads: Vec<String>,
    /// How to print them
    #[arg(long, value_enum, default_value_t)]
    style: Style,
    #[command(flatten)]
    symbols: pipeline::SymbolArgs,
    /// Where unwind data is missing, search the stack for return addresses. Such frames are guesses and marked as such
    #[arg(long)]
    scan: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
enum Style {
    /// Like the debuggers' `k`: Child-SP, RetAddr, Call Site
    #[default]
    K,
    /// One line a frame: "module"! file(line): function
    Plain,
    /// Everything that is known of each frame
    Json,
}

pub(super) fn run(args: &Args) -> anyhow::Result<Exit> {
    let file = TraceFile::open(&args.file)?;
    let trace = file.read()?;
    let select = super::SelectArgs { from: None, until: None, threads: args.threads.clone() };
    let chosen = select.threads(&trace)?;
    let time = args.at.map_or(trace.last(), |at| trace.clock.ticks(at));
    let store = args.symbols.store(&args.file);
    let images = pipeline::load_images(&trace, &store);
    let taken =
        snapshots(&trace, time, &|thread| chosen.as_ref().is_none_or(|chosen| chosen.contains(&thread)));
    let mut options = WalkOptions::default();
    options.scan = args.scan;
    let mut walker = Walker::new(options);
    let mut stacks: Vec<Stack> =
        taken.iter().map(|snapshot| walk(&trace, &images, &mut walker, snapshot, time)).collect();
    // Of one moment, by thread id as users know them.
    stacks.sort_by_key(|stack| (stack.tid, stack.instance));
    let demangle = args.symbols.demangle;
    name(&trace, &images, &Symbolizer::new(store, demangle), demangle, &mut stacks);
    let text = match args.style {
        Style::K => stacks.iter().map(|stack| k(&trace, stack)).collect::<Vec<_>>().join("\n"),
        Style::Plain => stacks.iter().map(|stack| plain(&trace, stack)).collect::<Vec<_>>().join("\n"),
        Style::Json => json(&trace, time, &stacks)?,
    };
    print(&text)?;
    if stacks.is_empty() {
        super::warn(&format!("{}: no thread was sampled by {}", trace.source, span(trace.clock.ns(time))));
    }
    Ok(if trace.lost_blocks { Exit::Damaged } else { Exit::Ok })
}

/// A thread's walked stack.
struct Stack {
    instance: u64,
    tid: u32,
    name: String,
    sampled: u64,
    until: u64,
    state: RunState,
    frames: Vec<Walked>,
    stop: &'static str,
    stop_module: String,
}

/// A frame with the registers at it.
struct Walked {
    frame: Frame,
    registers: Registers,
    /// Stack bytes from its stack pointer to its caller's, if all were captured.
    bytes: Vec<u8>,
    /// Innermost first; never empty once named.
    names: Vec<Name>,
    module: String,
}

/// What a frame is called.
struct Name {
    function: String,
    file: Option<String>,
    line: Option<u32>,
    inline: bool,
    displacement: Option<u32>,
}

fn walk(
    trace: &Trace<'_>,
    images: &[ModuleImage],
    walker: &mut Walker,
    snapshot: &Snapshot,
    time: u64,
) -> Stack {
    let mut view = trace.timeline.view();
    view.go(snapshot.until.min(time));
    let mut frames: Vec<Walked> = Vec::new();
    let thread = trace.timeline.thread(snapshot.thread).map(|at| &trace.timeline.threads[at]);
    let context = registers(snapshot.set, &snapshot.registers).filter(|_| snapshot.modules_known);
    let stop = match &context {
        Some(context) => {
            let sample = stk_unwind::Sample {
                registers: context,
                stack: &snapshot.stack,
                stack_start: snapshot.stack_start,
                stack_base: (snapshot.stack_base != 0).then_some(snapshot.stack_base),
                truncated: snapshot.truncated,
                code_at_ip: snapshot.code_at_ip.as_deref(),
            };
            walker.walk_with_registers(&AddressSpace::new(&view, images), &sample, |frame, registers| {
                frames.push(Walked {
                    frame: *frame,
                    registers: *registers,
                    bytes: Vec::new(),
                    names: Vec::new(),
                    module: module_name(trace, *frame),
                });
            })
        }
        None => return Stack { stop: "modules-unknown", ..stack_of(snapshot, thread) },
    };
    for i in 0..frames.len().saturating_sub(1) {
        let (from, to) = (frames[i].frame.sp, frames[i + 1].frame.sp);
        let at = from.checked_sub(snapshot.stack_start).map(|at| at as usize);
        let bytes = at.and_then(|at| {
            snapshot.stack.get(at..at.checked_add(usize::try_from(to.checked_sub(from)?).ok()?)?)
        });
        frames[i].bytes = bytes.unwrap_or_default().to_vec();
    }
    let stop_module = stop.module().map(|module| {
        let image = trace.timeline.modules[module.0 as usize].image;
        trace.timeline.images[image.0 as usize].image.name.clone()
    });
    Stack {
        frames,
        stop: Stop::as_str(stop),
        stop_module: stop_module.unwrap_or_default(),
        ..stack_of(snapshot, thread)
    }
}

fn stack_of(snapshot: &Snapshot, thread: Option<&crate::trace::Thread>) -> Stack {
    Stack {
        instance: snapshot.thread,
        tid: thread.map_or(0, |thread| thread.tid),
        name: thread.map(|thread| thread.name.clone()).unwrap_or_default(),
        sampled: snapshot.sampled,
        until: snapshot.until,
        state: snapshot.state,
        frames: Vec::new(),
        stop: "",
        stop_module: String::new(),
    }
}

fn module_name(trace: &Trace<'_>, frame: Frame) -> String {
    let image = frame.module.map(|module| trace.timeline.modules[module.0 as usize].image);
    image.map(|image| trace.timeline.images[image.0 as usize].image.name.clone()).unwrap_or_default()
}

/// Whether a frame's address is that of an instruction, not a return address.
fn is_exact(frame: &Frame) -> bool {
    matches!(frame.trust, Trust::Context | Trust::MachineFrame)
}

/// Names all frames, a module at a time.
fn name(
    trace: &Trace<'_>,
    images: &[ModuleImage],
    symbolizer: &Symbolizer,
    demangle: Demangle,
    stacks: &mut [Stack],
) {
    let timeline = &trace.timeline;
    let image_of = |frame: &Frame| Some(timeline.modules[frame.module?.0 as usize].image);
    let lookup = |frame: &Frame| if is_exact(frame) { frame.rva } else { frame.rva.saturating_sub(1) };
    let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for walked in stacks.iter().flat_map(|stack| &stack.frames) {
        if let Some(image) = image_of(&walked.frame) {
            wanted.entry(image.0).or_default().push(lookup(&walked.frame));
        }
    }
    let mut resolved: BTreeMap<u32, (Vec<u32>, ModuleSymbols)> = BTreeMap::new();
    for (image, mut rvas) in wanted {
        rvas.sort_unstable();
        rvas.dedup();
        let facts = &timeline.images[image as usize].image;
        let key = ModuleKey {
            path: &facts.path,
            code_view: facts.code_view.map(|(guid, age)| CodeView {
                guid,
                age,
                pdb_name: facts.pdb_name.as_bytes(),
            }),
            time_date_stamp: facts.time_date_stamp,
            size_of_image: facts.size,
            exports: None,
            arch: trace.header().arch,
        };
        let symbols = symbolizer.resolve(&key, &rvas);
        resolved.insert(image, (rvas, symbols));
    }
    for walked in stacks.iter_mut().flat_map(|stack| &mut stack.frames) {
        let known = image_of(&walked.frame).and_then(|image| resolved.get(&image.0));
        let names = known.and_then(|(rvas, symbols)| {
            let resolved = symbols.get(rvas.binary_search(&lookup(&walked.frame)).ok()?)?;
            match resolved.source {
                Source::Pdb | Source::Dwarf => Some(names_of(&resolved, &walked.frame)),
                Source::Export | Source::None => None,
            }
        });
        let exported = || {
            let image = &images[image_of(&walked.frame)?.0 as usize];
            let (start, name) = image.export_at(lookup(&walked.frame))?;
            let function = export_name(name, image, demangle).into_owned();
            let displacement = Some(walked.frame.rva - start);
            Some(vec![Name { function, file: None, line: None, inline: false, displacement }])
        };
        let nameless = || vec![nameless(&walked.frame, &walked.module)];
        walked.names = names.or_else(exported).unwrap_or_else(nameless);
    }
}

fn names_of(resolved: &Resolved<'_>, frame: &Frame) -> Vec<Name> {
    let mut names: Vec<Name> = resolved
        .frames()
        .map(|location| Name {
            function: location.function.to_owned(),
            file: location.file.map(str::to_owned),
            line: location.line,
            inline: location.inline,
            displacement: None,
        })
        .collect();
    if let Some(outermost) = names.last_mut() {
        // Symbols were looked up one byte before a return address.
        outermost.displacement = Some(resolved.displacement + u32::from(!is_exact(frame)));
    }
    names
}

fn nameless(frame: &Frame, module: &str) -> Name {
    let function = if module.is_empty() {
        format!("{:#x}", frame.address)
    } else {
        format!("{module}+{:#x}", frame.rva)
    };
    Name { function, file: None, line: None, inline: false, displacement: None }
}

fn state_name(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Waiting => "waiting",
        RunState::Unknown => "unknown",
    }
}

fn heading(trace: &Trace<'_>, stack: &Stack) -> String {
    let clock = trace.clock;
    let mut text = format!("thread {}", stack.tid);
    if !stack.name.is_empty() {
        let _ = write!(text, " \"{}\"", stack.name);
    }
    let _ = write!(text, ", {}, sampled at {}", state_name(stack.state), span(clock.ns(stack.sampled)));
    if stack.until > stack.sampled {
        let _ = write!(text, ", unchanged until {}", span(clock.ns(stack.until)));
    }
    let _ = write!(text, " ({})", utc(trace.header().utc_start + clock.ns(stack.until)));
    text
}

fn ending(stack: &Stack) -> String {
    let module =
        if stack.stop_module.is_empty() { String::new() } else { format!(" in {}", stack.stop_module) };
    match stack.stop {
        "thread-start" => String::new(),
        reason => format!("  (stack ends here: {reason}{module})\n"),
    }
}

/// How a frame that is not certain was found.
fn doubt(frame: &Frame) -> String {
    match frame.trust {
        Trust::Scan | Trust::FramePointer | Trust::LeafOutside => format!("  ({})", frame.trust.as_str()),
        _ => String::new(),
    }
}

fn k(trace: &Trace<'_>, stack: &Stack) -> String {
    let wide = trace.header().arch.pointer_size() == 8;
    let address = |value: u64| {
        if wide { format!("{:08x}`{:08x}", value >> 32, value & 0xFFFF_FFFF) } else { format!("{value:08x}") }
    };
    let mut text = format!("{}\n", heading(trace, stack));
    let (sp_title, width) = if wide { ("Child-SP", 17) } else { ("ChildEBP", 8) };
    let _ = writeln!(text, "{sp_title:width$} {:width$} Call Site", "RetAddr");
    for (i, walked) in stack.frames.iter().enumerate() {
        let caller = stack.frames.get(i + 1);
        let shown =
            if wide { walked.frame.sp } else { caller.map_or(0, |caller| caller.frame.sp.saturating_sub(8)) };
        let outermost = walked.names.len() - 1;
        for (n, name) in walked.names.iter().enumerate() {
            let columns = if n == outermost {
                format!("{} {}", address(shown), address(caller.map_or(0, |caller| caller.frame.address)))
            } else {
                format!("{:width$} {:width$}", "(Inline)", "--------")
            };
            let _ = writeln!(text, "{columns} {}{}", site(&walked.module, name), doubt(&walked.frame));
        }
    }
    text + &ending(stack)
}

/// `module!function+0x12 [file @ line]`.
fn site(module: &str, name: &Name) -> String {
    let stem = module.rsplit_once('.').map_or(module, |(stem, _)| stem);
    let mut text = match name.displacement {
        None if !name.inline && name.file.is_none() => name.function.clone(),
        _ => format!("{stem}!{}", name.function),
    };
    if let Some(displacement) = name.displacement.filter(|&displacement| displacement != 0) {
        let _ = write!(text, "+{displacement:#x}");
    }
    match (&name.file, name.line) {
        (Some(file), Some(line)) => {
            let _ = write!(text, " [{file} @ {line}]");
        }
        (Some(file), None) => {
            let _ = write!(text, " [{file}]");
        }
        _ => {}
    }
    text
}

fn plain(trace: &Trace<'_>, stack: &Stack) -> String {
    let mut text = format!("{}\n", heading(trace, stack));
    for walked in &stack.frames {
        for name in &walked.names {
            let place = match (&name.file, name.line) {
                (Some(file), Some(line)) => format!(" {file}({line}):"),
                (Some(file), None) => format!(" {file}:"),
                _ => String::new(),
            };
            let _ = writeln!(text, "\"{}\"!{place} {}{}", walked.module, name.function, doubt(&walked.frame));
        }
    }
    text + &ending(stack)
}

/// The JSON output. Its version grows when a field changes its meaning or goes; new fields may come at any time.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    trace: &'a str,
    time_ns: u64,
    time_utc: String,
    threads: Vec<ThreadJson<'a>>,
}

#[derive(Serialize)]
struct ThreadJson<'a> {
    tid: u32,
    name: &'a str,
    state: &'static str,
    sampled_ns: u64,
    unchanged_until_ns: u64,
    stop: &'static str,
    stop_module: &'a str,
    frames: Vec<FrameJson<'a>>,
}

#[derive(Serialize)]
struct FrameJson<'a> {
    ip: String,
    sp: String,
    return_address: Option<String>,
    /// The caller's stack pointer: where this frame ends.
    frame_base: Option<String>,
    trust: &'static str,
    module: &'a str,
    rva: String,
    function: &'a str,
    displacement: Option<u32>,
    file: Option<&'a str>,
    line: Option<u32>,
    inline: Vec<InlineJson<'a>>,
    /// Stack bytes from `sp` to `frame_base`, in hexadecimal: locals, arguments, saved registers, the return address.
    bytes: String,
    registers: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct InlineJson<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
}

fn json(trace: &Trace<'_>, time: u64, stacks: &[Stack]) -> anyhow::Result<String> {
    let threads = stacks
        .iter()
        .map(|stack| ThreadJson {
            tid: stack.tid,
            name: &stack.name,
            state: state_name(stack.state),
            sampled_ns: trace.clock.ns(stack.sampled),
            unchanged_until_ns: trace.clock.ns(stack.until),
            stop: stack.stop,
            stop_module: &stack.stop_module,
            frames: (0..stack.frames.len()).map(|i| frame_json(stack, i)).collect(),
        })
        .collect();
    let document = Document {
        version: 1,
        trace: &trace.source,
        time_ns: trace.clock.ns(time),
        time_utc: utc(trace.header().utc_start + trace.clock.ns(time)),
        threads,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn frame_json(stack: &Stack, i: usize) -> FrameJson<'_> {
    let hex = |value: u64| format!("{value:#x}");
    let walked = &stack.frames[i];
    let caller = stack.frames.get(i + 1);
    let (outermost, inline) =
        walked.names.split_last().map_or((None, &[][..]), |(last, rest)| (Some(last), rest));
    let inline = inline
        .iter()
        .map(|name| InlineJson { function: &name.function, file: name.file.as_deref(), line: name.line })
        .collect();
    FrameJson {
        ip: hex(walked.frame.address),
        sp: hex(walked.frame.sp),
        return_address: caller.map(|caller| hex(caller.frame.address)),
        frame_base: caller.map(|caller| hex(caller.frame.sp)),
        trust: walked.frame.trust.as_str(),
        module: &walked.module,
        rva: hex(walked.frame.rva.into()),
        function: outermost.map_or("", |name| &name.function),
        displacement: outermost.and_then(|name| name.displacement),
        file: outermost.and_then(|name| name.file.as_deref()),
        line: outermost.and_then(|name| name.line),
        inline,
        bytes: walked.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        registers: register_values(&walked.registers, i == 0),
    }
}

/// Registers at a frame: of a caller the nonvolatile ones, which are all that is known.
fn register_values(registers: &Registers, context: bool) -> BTreeMap<&'static str, String> {
    const X64: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    const X64_KEPT: [usize; 9] = [3, 4, 5, 6, 7, 12, 13, 14, 15];
    const X86: [&str; 8] = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
    const X86_KEPT: [usize; 5] = [3, 4, 5, 6, 7];
    const ARM64: [&str; 31] = [
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
        "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "fp",
        "lr",
    ];
    let mut values = BTreeMap::new();
    let mut put = |name, value: u64| {
        values.insert(name, format!("{value:#x}"));
    };
    match registers {
        Registers::X64(r) => {
            (0..16).filter(|n| context || X64_KEPT.contains(n)).for_each(|n| put(X64[n], r.gpr[n]));
        }
        Registers::X86(r) => {
            (0..8).filter(|n| context || X86_KEPT.contains(n)).for_each(|n| put(X86[n], r.gpr[n].into()));
        }
        Registers::Arm64(r) => {
            (0..31).filter(|&n| context || (19..31).contains(&n)).for_each(|n| put(ARM64[n], r.x[n]));
            put("sp", r.sp);
        }
    }
    values
}
