//! Walks and names a thread's stack at a moment.

use stk_profile::image::{ModuleImage, holder_name, image_of};
use stk_profile::profile::{Activity, is_behind_call};
use stk_profile::runtimes::Methods;
use stk_profile::runtimes::dotnet::explicit::{ExplicitFrames, FrameReport, MethodProblem, kind_name};
use stk_profile::stack::{
    self, Assumed, FoldOptions, FoldOutcome, FoldState, FrameId, FrameKind, NameSource, NameSources,
    NamedFrame, Names, Placement, Site, StackEnd, StackWalker, StopReason, folded_name,
};
use stk_profile::trace::{Snapshot, Thread, Trace};
use stk_schema::Ticks;
use stk_schema::event::RunState;
use stk_unwind::{Arch, Explanation, Frame, FrameFacts, Registers, Sample, Trust, explain, facts};

/// Which capture a stack is that of.
#[derive(Clone, Copy)]
pub(super) struct CaptureLabel {
    /// Its number among the events of the trace.
    pub(super) number: u64,
    pub(super) tag: u64,
    pub(super) time: Ticks,
}

/// A thread's walked stack.
pub(super) struct DumpStack {
    /// The capture that it is of, if captures are printed.
    pub(super) capture: Option<CaptureLabel>,
    pub(super) instance: u64,
    pub(super) tid: u32,
    pub(super) name: String,
    pub(super) sampled: Ticks,
    pub(super) until: Ticks,
    /// The recorder's view of what the thread did.
    pub(super) recorded: RunState,
    /// Whether the code at its instruction pointer is a return, or not known.
    pub(super) behind_call: bool,
    /// What the thread did; known once its frames are named.
    pub(super) activity: Activity,
    /// Innermost first.
    pub(super) frames: Vec<DumpFrame>,
    pub(super) end: StackEnd,
    /// The module to blame for its end; empty if there is none.
    pub(super) end_module: String,
    /// The runtime's explicit Frames, innermost first.
    pub(super) explicit: Vec<DumpExplicitFrame>,
    /// Why there are none, or no more.
    pub(super) explicit_end: Option<String>,
}

/// A runtime's explicit Frame.
pub(super) struct DumpExplicitFrame {
    /// Its address on the stack.
    pub(super) address: u64,
    /// The name of its kind.
    pub(super) kind: String,
    /// Instruction pointer and stack pointer of the code that it leads to, if it holds them.
    pub(super) leads_to: Option<(u64, u64)>,
    /// The method that it names, empty if its kind names none; or why the method is not known.
    pub(super) method: Result<String, MethodProblem>,
    /// The descriptor does not say where the Frame holds its method.
    pub(super) by_position: bool,
}

/// A frame with the registers at it.
pub(super) struct DumpFrame {
    pub(super) frame: Frame,
    /// How far it can be trusted, beside how it was found.
    pub(super) trust: Trust,
    pub(super) registers: Registers,
    /// Stack bytes from its stack pointer to its caller's, if all were captured.
    pub(super) bytes: Vec<u8>,
    /// Stack bytes of its arguments, if their location is known: x64's four home words, x86's
    /// parameters.
    pub(super) arguments: Vec<u8>,
    /// Innermost first; never empty once named.
    pub(super) names: Vec<Name>,
    pub(super) module: String,
    /// The kind of code it is in; known once it is named.
    pub(super) kind: FrameKind,
    /// Not shown.
    pub(super) hidden: bool,
    /// What the record of its function says of it.
    pub(super) facts: Option<FrameFacts>,
    /// Only if requested.
    pub(super) explanation: Option<Explanation>,
}

/// A name of a frame.
#[derive(Clone)]
pub(super) struct Name {
    pub(super) function: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) displacement: Option<u32>,
    /// Whether the function's name begins with its module.
    pub(super) has_module: bool,
    /// Further functions that the linker folded into this one.
    pub(super) aliases: Vec<String>,
}

impl Name {
    /// A function that nothing else is known of.
    pub(super) fn only(function: String) -> Name {
        Name { function, file: None, line: None, displacement: None, has_module: false, aliases: Vec::new() }
    }
}

impl DumpStack {
    /// Bytes of memory that it takes with its names.
    pub(super) fn memory(&self) -> usize {
        let frames = self.frames.iter();
        let frames: usize = frames.map(|walked| FRAME + walked.bytes.len() + 2 * walked.module.len()).sum();
        size_of::<DumpStack>() + 2 * self.name.len() + frames
    }
}

/// Bytes that a frame takes beside its stack bytes and the name of its module: its registers, its
/// names, and the lines printed for it.
const FRAME: usize = size_of::<DumpFrame>() + 1024;

/// The inputs of stacks.
#[derive(Clone, Copy)]
pub struct DumpInputs<'a> {
    pub trace: &'a Trace<'a>,
    pub images: &'a [ModuleImage],
    pub explicit: &'a ExplicitFrames,
    pub methods: &'a Methods,
    /// Whether samples behind a lost block of module events are walked.
    pub salvage: bool,
}

/// Walks a stack at `time`.
pub(super) fn walk(
    inputs: &DumpInputs<'_>,
    walker: &mut StackWalker<'_>,
    snapshot: &Snapshot,
    time: Ticks,
    explained: bool,
) -> DumpStack {
    let DumpInputs { trace, images, explicit, methods, salvage } = *inputs;
    let timeline = &trace.timeline;
    let thread = timeline.thread(snapshot.thread);
    let unknown = |reason| stack_of(snapshot, thread, StackEnd::without_walk(reason));
    let assumed = Assumed::of(&snapshot.block);
    if assumed == Assumed::All && !salvage {
        return unknown(StopReason::ModulesUnknown);
    }
    let Some(copy) = &snapshot.sample else { return unknown(StopReason::RegistersUnknown) };
    let sample = copy.sample();
    let time = snapshot.until.min(time);
    let mut frames: Vec<DumpFrame> = Vec::new();
    let mut end = walker.walk(&sample, time, snapshot.managed.as_ref(), |frame, registers| {
        frames.push(DumpFrame {
            frame: *frame,
            trust: assumed.trust(frame, timeline),
            registers: *registers,
            bytes: Vec::new(),
            arguments: Vec::new(),
            names: Vec::new(),
            module: frame.module.map_or("", |module| holder_name(timeline, module)).to_owned(),
            kind: FrameKind::Unknown,
            hidden: false,
            facts: None,
            explanation: None,
        });
    });
    end.reason = assumed.reason(end.reason, frames.iter().map(|walked| &walked.frame));
    let space = walker.space(time);
    for i in 0..frames.len() {
        let frame = frames[i].frame;
        let caller = frames.get(i + 1).map(|caller| caller.frame);
        frames[i].facts = facts(&space, &frame);
        if explained {
            frames[i].explanation = Some(explain(&space, &sample, &frame, caller.as_ref()));
        }
        if let Some(caller) = caller {
            frames[i].bytes = captured(&sample, frame.sp, caller.sp.checked_sub(frame.sp));
            let arguments = argument_bytes(trace, images, &frame, sample.registers.arch());
            frames[i].arguments = captured(&sample, caller.sp, arguments);
        }
    }
    let seen = (snapshot, trace.clock.ns(snapshot.sampled));
    let (explicit, explicit_end) = explicit_frames(explicit, &sample, seen, methods);
    let end_module = end.module().map_or("", |module| holder_name(timeline, module)).to_owned();
    let behind_call = is_behind_call(trace.header().arch, sample.code_at_ip);
    DumpStack { frames, behind_call, end_module, explicit, explicit_end, ..stack_of(snapshot, thread, end) }
}

/// The explicit Frames of a thread, and why there are none or no more.
fn explicit_frames(
    explicit: &ExplicitFrames,
    sample: &Sample<'_>,
    (snapshot, time_ns): (&Snapshot, u64),
    methods: &Methods,
) -> (Vec<DumpExplicitFrame>, Option<String>) {
    let managed = match (explicit.contract(), &snapshot.managed) {
        (Err(reason), _) => return (Vec::new(), Some(reason.to_string())),
        (Ok(_), None) => {
            return (
                Vec::new(),
                Some("the runtime reported nothing about this thread at this sample".to_owned()),
            );
        }
        (Ok(_), Some(managed)) => managed,
    };
    let (reported, broken) = match explicit.frames(sample, managed, methods, time_ns) {
        Ok(reported) => reported,
        Err(reason) => return (Vec::new(), Some(reason.to_string())),
    };
    let row = |found: FrameReport| {
        let (leads_to, method) = match found.leads_to {
            Ok(leads_to) => (leads_to, found.method),
            Err(reason) => (None, Err(reason.into())),
        };
        let by_position = found.by_position;
        DumpExplicitFrame {
            address: found.frame.address,
            kind: kind_name(found.frame),
            leads_to,
            method,
            by_position,
        }
    };
    (reported.into_iter().map(row).collect(), broken.map(|reason| reason.to_string()))
}

/// Captured stack bytes; empty unless all of them were captured.
fn captured(sample: &Sample<'_>, from: u64, len: Option<u64>) -> Vec<u8> {
    let range = || {
        let start = usize::try_from(from.checked_sub(sample.stack_start)?).ok()?;
        sample.stack.get(start..start.checked_add(usize::try_from(len?).ok()?)?)
    };
    range().unwrap_or_default().to_vec()
}

/// Number of bytes above the caller's stack pointer that are the frame's arguments.
fn argument_bytes(trace: &Trace<'_>, images: &[ModuleImage], frame: &Frame, arch: Arch) -> Option<u64> {
    /// The home space of the four register arguments (x64 calling convention, "Parameter passing").
    const HOME: u64 = 32;
    match arch {
        Arch::X64 => Some(HOME),
        Arch::X86 => {
            let image = image_of(&trace.timeline, frame.module?)?;
            // A return address lies behind the call, so look up one byte lower.
            let inside = if frame.trust.is_exact() { frame.rva } else { frame.rva.saturating_sub(1) };
            images[image.0 as usize].tables.x86().parameter_bytes(inside).map(u64::from)
        }
        _ => None,
    }
}

fn stack_of(snapshot: &Snapshot, thread: Option<&Thread>, end: StackEnd) -> DumpStack {
    DumpStack {
        capture: None,
        instance: snapshot.thread,
        tid: thread.map_or(0, |thread| thread.tid),
        name: thread.map(|thread| thread.name.clone()).unwrap_or_default(),
        sampled: snapshot.sampled,
        until: snapshot.until,
        recorded: snapshot.state,
        behind_call: false,
        activity: Activity::Unknown,
        frames: Vec::new(),
        end,
        end_module: String::new(),
        explicit: Vec::new(),
        explicit_end: None,
    }
}

/// Names all frames. Returns the number of texts left out because there is no memory for them.
pub(super) fn name(sources: &NameSources<'_>, stacks: &mut [DumpStack]) -> u64 {
    let (timeline, clock) = (&sources.trace.timeline, sources.trace.clock);
    let sites: Vec<Site> = stacks
        .iter()
        .flat_map(|stack| stack.frames.iter().map(|walked| (stack.until, &walked.frame)))
        .map(|(time, frame)| Site {
            place: Placement::of(timeline, frame),
            exact: frame.trust.is_exact(),
            seen: Some((frame.address, clock.ns(time))),
        })
        .collect();
    let names = stack::name(sources, &sites);
    let frames = stacks.iter_mut().flat_map(|stack| &mut stack.frames);
    for (walked, id) in frames.zip((0..).map(FrameId)) {
        let facts = names.symbols.facts[id.0 as usize];
        walked.kind = facts.kind;
        if let Some(module) = facts.module {
            walked.module = names.symbols.strings.get(module).to_owned();
        }
        walked.names = names_of(&names, id);
    }
    for stack in stacks {
        let frames = stack.frames.iter();
        let frames = frames.map(|walked| {
            let function = walked.names.last().map_or("", |name| name.function.as_str());
            (walked.module.as_str(), function)
        });
        stack.activity = Activity::of_stack(frames, stack.behind_call, stack.recorded);
    }
    names.left_out
}

/// The names of a frame, innermost first.
pub(super) fn names_of(names: &Names, id: FrameId) -> Vec<Name> {
    let Names { symbols, displacements, .. } = names;
    let text = |id| symbols.strings.get(id).to_owned();
    // Runtimes name methods with their modules, and the name for an offset has the module too.
    let has_module = matches!(symbols.source[id.0 as usize], NameSource::Runtime | NameSource::None);
    let name = |named: &NamedFrame| Name {
        file: named.file.map(text),
        line: named.line,
        has_module,
        ..Name::only(text(named.function))
    };
    let mut list: Vec<Name> = symbols.names(id).iter().map(name).collect();
    if let Some(outermost) = list.last_mut() {
        outermost.aliases = symbols.aliases(id).map(str::to_owned).collect();
        outermost.displacement = displacements[id.0 as usize];
    }
    list
}

/// Hides the frames that are not wanted of those that are not hidden yet.
pub(super) fn fold(stack: &mut DumpStack, options: FoldOptions) {
    let mut state = FoldState::default();
    for walked in stack.frames.iter_mut().rev().filter(|walked| !walked.hidden) {
        let folded = options.next(&mut state, walked.kind);
        walked.hidden = folded == FoldOutcome::Left;
        if folded == FoldOutcome::Begins {
            walked.names = vec![Name { has_module: true, ..Name::only(folded_name(&walked.module)) }];
        }
    }
}
