//! Stacks as JSON, for programs.

use super::modules::ModuleAt;
use super::stack::{DumpExplicitFrame, DumpStack};
use serde::Serialize;
use std::collections::BTreeMap;
use stk_base::text::utc;
use stk_profile::profile::Wait;
use stk_profile::trace::Trace;
use stk_schema::Ticks;
use stk_schema::text::hex as hex_bytes;
use stk_unwind::{FrameFacts, Registers};

/// The JSON output that `schema/dump.schema.json` describes, written thread by thread. Its version
/// is raised when the meaning of a field changes or a field is removed. New fields may be added at
/// any time.
#[derive(Serialize)]
struct DumpDocument<'a> {
    version: u32,
    trace: &'a str,
    time_ns: u64,
    time_utc: String,
    /// What was loaded then; only with --modules.
    #[serde(skip_serializing_if = "Option::is_none")]
    modules: Option<Vec<ModuleAt<'a>>>,
    threads: Vec<ThreadJson<'a>>,
}

#[derive(Serialize)]
struct ThreadJson<'a> {
    tid: u32,
    name: &'a str,
    /// Of a capture: its number among the events of the trace, and its tag in both notations.
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag_hex: Option<String>,
    /// `running`, `waiting`, `system-call` or `unknown`.
    state: &'static str,
    /// What it waits for.
    wait_reason: Option<&'static str>,
    wait_class: Option<&'static str>,
    sampled_ns: u64,
    unchanged_until_ns: u64,
    /// Why the stack ends. `thread-start`: it is complete.
    stop: &'static str,
    /// The module to blame.
    stop_module: &'a str,
    /// The address that the walk needed and could not use; with a module to blame, an RVA in it.
    stop_address: Option<String>,
    frames: Vec<StackFrameJson<'a>>,
    /// Explicit Frames of .NET, innermost first.
    explicit_frames: Vec<ExplicitJson<'a>>,
    /// Why there are none, or no more; null if the chain was read to its end.
    explicit_end: Option<&'a str>,
}

#[derive(Serialize)]
struct ExplicitJson<'a> {
    address: String,
    kind: &'a str,
    /// Instruction pointer and stack pointer of the code that it leads to, if it holds them.
    ip: Option<String>,
    sp: Option<String>,
    /// Empty if its kind names none.
    method: &'a str,
    /// Whether the runtime's descriptor does not say where the Frame holds its method: it was taken
    /// from the place before CallSiteSP.
    by_position: bool,
    /// Which facts about it are not known, and why.
    problem: Option<String>,
}

#[derive(Serialize)]
struct StackFrameJson<'a> {
    ip: String,
    sp: String,
    return_address: Option<String>,
    /// The caller's stack pointer, where this frame ends.
    frame_base: Option<String>,
    trust: &'static str,
    /// native, managed, stub, runtime or unknown.
    kind: &'static str,
    module: &'a str,
    rva: String,
    function: &'a str,
    displacement: Option<u32>,
    file: Option<&'a str>,
    line: Option<u32>,
    inline: Vec<InlineJson<'a>>,
    /// Further functions that the linker folded into `function`.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    aliases: &'a [String],
    /// Stack bytes from `sp` to `frame_base`, in hexadecimal: locals, saved registers, the return
    /// address.
    bytes: String,
    /// Stack bytes from `frame_base` on that are the frame's arguments, in hexadecimal: on x64 the
    /// home space of the four register arguments, which a function need not fill; on x86 the
    /// parameters, if the PDB states their size.
    arguments: Option<String>,
    /// For a caller only the nonvolatile ones, since the others are not known.
    registers: BTreeMap<&'static str, String>,
    /// What the record of the function says.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<FactsJson>,
    /// Only with --explain.
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<ExplainJson<'a>>,
}

#[derive(Serialize)]
struct InlineJson<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
}

/// What DIA's IDiaStackFrame has beside the frame's registers. Null: such a record does not say it.
#[derive(Serialize)]
struct FactsJson {
    r#type: &'static str,
    function_start: String,
    locals_bytes: u32,
    parameters_bytes: Option<u32>,
    saved_registers_bytes: u32,
    prologue_bytes: u32,
    has_seh: Option<bool>,
    has_eh: Option<bool>,
    exception_handler: Option<bool>,
    termination_handler: Option<bool>,
    allocates_base_pointer: bool,
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    /// The record that describes the function.
    record: &'a str,
    /// The rule by which the caller was found.
    rule: &'a str,
}

/// The beginning of the document, up to the first thread. `time` is the moment.
pub(super) fn head(
    trace: &Trace<'_>,
    time: Ticks,
    modules: Option<Vec<ModuleAt<'_>>>,
) -> serde_json::Result<String> {
    let document = DumpDocument {
        version: 2,
        trace: &trace.source,
        time_ns: trace.clock.ns(time),
        time_utc: utc(trace.header().utc_start.saturating_add(trace.clock.ns(time))),
        modules,
        threads: Vec::new(),
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.truncate(text.len() - "]\n}".len());
    Ok(text)
}

/// A thread of the document.
pub(super) fn thread(trace: &Trace<'_>, stack: &DumpStack, first: bool) -> serde_json::Result<String> {
    let capture = stack.capture;
    let thread = ThreadJson {
        tid: stack.tid,
        name: &stack.name,
        event: capture.map(|capture| capture.number),
        tag: capture.map(|capture| capture.tag),
        tag_hex: capture.map(|capture| hex(capture.tag)),
        state: stack.activity.as_str(),
        wait_reason: stack.activity.wait().map(Wait::reason),
        wait_class: stack.activity.wait().map(|wait| wait.class().as_str()),
        sampled_ns: trace.clock.ns(stack.sampled),
        unchanged_until_ns: trace.clock.ns(stack.until),
        stop: stack.end.reason.as_str(),
        stop_module: &stack.end_module,
        stop_address: stack.end.address().map(hex),
        frames: (0..stack.frames.len())
            .filter(|&i| !stack.frames[i].hidden)
            .map(|i| frame(stack, i))
            .collect(),
        explicit_frames: stack.explicit.iter().map(explicit_frame).collect(),
        explicit_end: stack.explicit_end.as_deref(),
    };
    // Line ends within texts are escaped, so every line end here is between two fields.
    let text = serde_json::to_string_pretty(&thread)?.replace('\n', "\n    ");
    Ok(format!("{}\n    {text}", if first { "" } else { "," }))
}

/// The end of the document. `empty`: it has no threads.
pub(super) fn end(empty: bool) -> &'static str {
    if empty { "]\n}\n" } else { "\n  ]\n}\n" }
}

fn explicit_frame(frame: &DumpExplicitFrame) -> ExplicitJson<'_> {
    ExplicitJson {
        address: hex(frame.address),
        kind: &frame.kind,
        ip: frame.leads_to.map(|(ip, _)| hex(ip)),
        sp: frame.leads_to.map(|(_, sp)| hex(sp)),
        method: frame.method.as_deref().unwrap_or_default(),
        by_position: frame.by_position,
        problem: frame.method.as_ref().err().map(ToString::to_string),
    }
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn frame(stack: &DumpStack, i: usize) -> StackFrameJson<'_> {
    let walked = &stack.frames[i];
    let caller = stack.frames.get(i + 1);
    let (outermost, inline) =
        walked.names.split_last().map_or((None, &[][..]), |(last, rest)| (Some(last), rest));
    let inline = inline
        .iter()
        .map(|name| InlineJson { function: &name.function, file: name.file.as_deref(), line: name.line })
        .collect();
    StackFrameJson {
        ip: hex(walked.frame.address),
        sp: hex(walked.frame.sp),
        return_address: caller.map(|caller| hex(caller.frame.address)),
        frame_base: caller.map(|caller| hex(caller.frame.sp)),
        trust: walked.trust.as_str(),
        kind: walked.kind.as_str(),
        module: &walked.module,
        rva: hex(walked.frame.rva.into()),
        function: outermost.map_or("", |name| &name.function),
        displacement: outermost.and_then(|name| name.displacement),
        file: outermost.and_then(|name| name.file.as_deref()),
        line: outermost.and_then(|name| name.line),
        inline,
        aliases: outermost.map_or(&[], |name| &name.aliases),
        bytes: hex_bytes(&walked.bytes),
        arguments: (!walked.arguments.is_empty()).then(|| hex_bytes(&walked.arguments)),
        registers: registers(&walked.registers, i == 0),
        facts: walked.facts.map(facts),
        explain: walked
            .explanation
            .as_ref()
            .map(|explanation| ExplainJson { record: &explanation.record, rule: &explanation.rule }),
    }
}

fn facts(facts: FrameFacts) -> FactsJson {
    FactsJson {
        r#type: facts.frame_type,
        function_start: hex(facts.function_start.into()),
        locals_bytes: facts.locals,
        parameters_bytes: facts.parameters,
        saved_registers_bytes: facts.saved_registers,
        prologue_bytes: facts.prologue,
        has_seh: facts.has_seh,
        has_eh: facts.has_eh,
        exception_handler: facts.exception_handler,
        termination_handler: facts.termination_handler,
        allocates_base_pointer: facts.allocates_base_pointer,
    }
}

fn registers(registers: &Registers, context: bool) -> BTreeMap<&'static str, String> {
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
        values.insert(name, hex(value));
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
