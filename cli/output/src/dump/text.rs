//! Stacks as text for users: `k` like the debuggers', `plain`, and `merged`.

use super::stack::{CaptureLabel, DumpFrame, DumpStack, Name};
use crate::tag::tag_text;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;
use stk_base::text::{TimeZone, counted, moment, since_start};
use stk_profile::stack::StopReason;
use stk_profile::trace::Trace;
use stk_schema::Ticks;
use stk_schema::text::printable;
use stk_unwind::Trust;

/// Like WinDbg's `k`: Child-SP (x86: ChildEBP), RetAddr, Call Site as `module!function+0x12 [file @
/// line]`.
pub(super) fn k(trace: &Trace<'_>, stack: &DumpStack, zone: TimeZone) -> String {
    let wide = trace.header().arch.pointer_size() == 8;
    let address = |value: u64| {
        if wide { format!("{:08x}`{:08x}", value >> 32, value & 0xFFFF_FFFF) } else { format!("{value:08x}") }
    };
    let (child, width, inlined, no_address) = if wide {
        ("Child-SP", 17, "(Inline Function)", "--------`--------")
    } else {
        ("ChildEBP", 8, "(Inline)", "--------")
    };
    let mut text =
        format!("{}\n{child:width$} {:width$} Call Site\n", heading(trace, stack, zone), "RetAddr");
    for (i, walked) in stack.frames.iter().enumerate().filter(|(_, walked)| !walked.hidden) {
        let caller = stack.frames.get(i + 1).map(|caller| caller.frame);
        // The address at which a frame stores its caller's ebp: below the return address.
        let child_ebp = || caller.map_or(0, |caller| caller.sp.saturating_sub(8));
        let shown = if wide { walked.frame.sp } else { child_ebp() };
        let outermost = walked.names.len() - 1;
        for (n, name) in walked.names.iter().enumerate() {
            let columns = if n == outermost {
                format!("{} {}", address(shown), address(caller.map_or(0, |caller| caller.address)))
            } else {
                format!("{inlined} {no_address}")
            };
            let _ = writeln!(text, "{columns} {}{}", site(&walked.module, name), doubt(walked.trust));
        }
        explain(walked, &mut text);
    }
    text + &ending(stack)
}

/// One line per frame: `"foo.dll"! path\foo.cpp(56): function`, or `"foo.dll"! 0x18000a2c:
/// function` where no line is known.
pub(super) fn plain(trace: &Trace<'_>, stack: &DumpStack, zone: TimeZone) -> String {
    let mut text = format!("{}\n", heading(trace, stack, zone));
    for walked in stack.frames.iter().filter(|walked| !walked.hidden) {
        for name in &walked.names {
            let place = match (&name.file, name.line) {
                (Some(file), Some(line)) => format!(" {}({line}):", printable(file)),
                (Some(file), None) => format!(" {}:", printable(file)),
                _ => format!(" {:#x}:", walked.frame.address),
            };
            let _ = writeln!(
                text,
                "\"{}\"!{place} {}{}",
                printable(&walked.module),
                printable(&name.function),
                doubt(walked.trust)
            );
        }
        explain(walked, &mut text);
    }
    text + &ending(stack)
}

/// Stacks of the same functions once, with their threads; those of the most threads first.
#[derive(Default)]
pub(super) struct MergedStacks {
    /// By functions: state and thread of each stack, in the order in which they came.
    groups: BTreeMap<String, Vec<(String, String)>>,
    stacks: u64,
}

impl MergedStacks {
    pub(super) fn add(&mut self, stack: &DumpStack) {
        let mut text = String::new();
        for walked in stack.frames.iter().filter(|walked| !walked.hidden) {
            for name in &walked.names {
                let function = Name { has_module: name.has_module, ..Name::only(name.function.clone()) };
                let _ = writeln!(text, "  {}{}", site(&walked.module, &function), doubt(walked.trust));
            }
        }
        let thread = match stack.capture {
            Some(CaptureLabel { number, .. }) => format!("{} in event {number}", thread(stack)),
            None => thread(stack),
        };
        self.groups.entry(text + &ending(stack)).or_default().push((activity(stack), thread));
        self.stacks += 1;
    }

    /// All of them, at a moment or up to it.
    pub(super) fn text(self, trace: &Trace<'_>, time: Ticks, zone: TimeZone) -> String {
        let mut groups: Vec<(String, Vec<(String, String)>)> = self.groups.into_iter().collect();
        groups.sort_by_key(|(_, group)| Reverse(group.len()));
        let different = counted(groups.len() as u64, "different stack");
        let ns = trace.clock.ns(time);
        let at = moment(trace.header().utc_start.saturating_add(ns), zone);
        let (all, since) = (counted(self.stacks, "thread"), since_start(ns));
        let mut text = format!("{at} {all} in {different}, at {since}\n");
        for (functions, group) in groups {
            let mut states: BTreeMap<&str, u64> = BTreeMap::new();
            group.iter().for_each(|(state, _)| *states.entry(state).or_default() += 1);
            let states: Vec<String> = match states.len() {
                1 => states.into_keys().map(str::to_owned).collect(),
                _ => states.into_iter().map(|(state, threads)| format!("{threads} {state}")).collect(),
            };
            let names: Vec<&str> = group.iter().map(|(_, thread)| thread.as_str()).collect();
            let threads = counted(group.len() as u64, "thread");
            let _ = write!(text, "\n{threads}, {}: {}\n{functions}", states.join(", "), names.join(", "));
        }
        text
    }
}

/// `4404 "worker"`.
fn thread(stack: &DumpStack) -> String {
    let name = if stack.name.is_empty() { String::new() } else { format!(" \"{}\"", printable(&stack.name)) };
    format!("{}{name}", stack.tid)
}

/// `waiting (sleep)`.
fn activity(stack: &DumpStack) -> String {
    let reason = stack.activity.wait().map(|wait| format!(" ({})", wait.reason()));
    stack.activity.as_str().to_owned() + reason.as_deref().unwrap_or_default()
}

/// The heading of a stack. It begins with the time by the clock, like a log line.
pub(super) fn heading(trace: &Trace<'_>, stack: &DumpStack, zone: TimeZone) -> String {
    let clock = trace.clock;
    let mut text = moment(trace.header().utc_start.saturating_add(clock.ns(stack.until)), zone);
    let _ = write!(text, " thread {}, {}", thread(stack), activity(stack));
    let sampled = since_start(clock.ns(stack.sampled));
    if let Some(CaptureLabel { number, tag, .. }) = stack.capture {
        let _ = write!(text, ", captured at {sampled}, event {number}, tag {}", tag_text(tag));
        return text;
    }
    let _ = write!(text, ", sampled at {sampled}");
    if stack.until > stack.sampled {
        let _ = write!(text, ", unchanged until {}", since_start(clock.ns(stack.until)));
    }
    text
}

pub(super) fn ending(stack: &DumpStack) -> String {
    let end = &stack.end;
    if end.reason.is_complete() {
        return String::new();
    }
    let past_gap = end.reason == StopReason::PastGap;
    let mut text = if past_gap {
        "  (frames are missing: unwinding ended".to_owned()
    } else {
        format!("  (stack ends here: {}", end.reason.as_str())
    };
    match (&*printable(&stack.end_module), end.address()) {
        ("", Some(address)) => {
            let _ = write!(text, " at {address:#x}");
        }
        ("", None) => {}
        (module, Some(rva)) => {
            let _ = write!(text, " in {module}+{rva:#x}");
        }
        (module, None) => {
            let _ = write!(text, " in {module}");
        }
    }
    if past_gap {
        text.push_str(", the runtime's explicit Frame led on");
    }
    text + ")\n"
}

/// How a frame was found, if it could be wrong.
pub(super) fn doubt(trust: Trust) -> String {
    if trust.is_proved() { String::new() } else { format!("  ({})", trust.as_str()) }
}

/// How the frame's caller was found, on a line of its own.
pub(super) fn explain(walked: &DumpFrame, text: &mut String) {
    if let Some(explanation) = &walked.explanation {
        let _ = writeln!(text, "    {}", printable(&explanation.to_string()));
    }
}

/// `module!function+0x12 [file @ line]`.
pub(super) fn site(module: &str, name: &Name) -> String {
    let stem = module.rsplit_once('.').map_or(module, |(stem, _)| stem);
    let mut text = if name.has_module { name.function.clone() } else { format!("{stem}!{}", name.function) };
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
    printable(&text).into_owned()
}
