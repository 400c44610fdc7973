//! Stacks in the form of SOS, the debugger extension of .NET: of `clrstack -f`, or of `clrstack` if
//! only managed frames are wanted.
//!
//! Takes a stack whose frames are named and folded, and the runtime's explicit Frames, which lie on
//! the same stack. Prints both in the order of their addresses. SOS shows the Frame of a call in
//! progress twice, before the managed frame that holds it. Here it is shown once.

use super::stack::{DumpExplicitFrame, DumpStack};
use super::text::{doubt, ending, explain, heading, site};
use std::collections::HashMap;
use std::fmt::Write;
use stk_base::text::TimeZone;
use stk_profile::stack::{FrameChoice, FrameKind};
use stk_profile::trace::Trace;
use stk_schema::text::printable;

/// Reasons that are printed once, at the end, by their numbers.
#[derive(Default)]
pub(super) struct Notes {
    numbers: HashMap<String, usize>,
}

impl Notes {
    /// The number of a note, new or known.
    fn number(&mut self, text: String) -> usize {
        let next = self.numbers.len() + 1;
        *self.numbers.entry(text).or_insert(next)
    }

    /// The notes after an empty line; nothing without notes.
    pub(super) fn text(&self) -> String {
        let mut notes: Vec<(&String, &usize)> = self.numbers.iter().collect();
        notes.sort_by_key(|(_, number)| **number);
        let mut text = String::new();
        for (note, number) in notes {
            let before = if *number == 1 { "\n" } else { "" };
            let _ = writeln!(text, "{before}note {number}: {}", printable(note));
        }
        text
    }
}

/// A thread's stack: Child SP, IP, Call Site. `frames` is the choice of frames. Why a Frame's
/// method is not known goes to the notes.
pub(super) fn text(
    trace: &Trace<'_>,
    stack: &DumpStack,
    frames: FrameChoice,
    zone: TimeZone,
    notes: &mut Notes,
) -> String {
    let digits = 2 * trace.header().arch.pointer_size();
    let mut text =
        format!("{}\n{:>digits$} {:>digits$} Call Site\n", heading(trace, stack, zone), "Child SP", "IP");
    let with_explicit = frames != FrameChoice::Native;
    let mut explicit = stack.explicit.iter().filter(|_| with_explicit).peekable();
    for (i, walked) in stack.frames.iter().enumerate() {
        // A Frame within a stack frame comes before it.
        let end = stack.frames.get(i + 1).map_or(u64::MAX, |caller| caller.frame.sp);
        while let Some(frame) = explicit.next_if(|frame| frame.address < end) {
            explicit_row(&mut text, frame, digits, notes);
        }
        if walked.hidden {
            continue;
        }
        let (sp, ip) = (walked.frame.sp, walked.frame.address);
        for name in &walked.names {
            let mut name = name.clone();
            if matches!(walked.kind, FrameKind::Managed | FrameKind::Stub) {
                // SOS prints no displacement, since the IP is shown.
                name.displacement = None;
            }
            let site = site(&walked.module, &name);
            let _ = writeln!(text, "{sp:0digits$X} {ip:0digits$x} {site}{}", doubt(walked.trust));
        }
        explain(walked, &mut text);
    }
    for frame in explicit {
        explicit_row(&mut text, frame, digits, notes);
    }
    if let Some(reason) = stack.explicit_end.as_ref().filter(|_| with_explicit) {
        let which = if stack.explicit.is_empty() { "no" } else { "no further" };
        let _ = writeln!(text, "  ({which} explicit Frames: {})", printable(&reason.to_string()));
    }
    if frames == FrameChoice::Managed && stack.frames.iter().all(|walked| walked.hidden) {
        text.push_str("  (no managed frames)\n");
    }
    text + &ending(stack)
}

/// `[InlinedCallFrame: 000000b5c8d7e918] Type.Method(signature)`. Its IP is that of the code
/// that it leads to.
fn explicit_row(text: &mut String, frame: &DumpExplicitFrame, digits: usize, notes: &mut Notes) {
    let DumpExplicitFrame { address, kind, leads_to, method, .. } = frame;
    let ip = match leads_to {
        Some((ip, _)) => format!("{ip:0digits$x}"),
        None => "-".repeat(digits),
    };
    let _ = write!(text, "{address:0digits$X} {ip} [{}: {address:0digits$x}]", printable(kind));
    let _ = match method {
        Ok(method) if method.is_empty() => writeln!(text),
        Ok(method) => writeln!(text, " {}", printable(&as_sos(method))),
        Err(reason) => writeln!(text, " (note {})", notes.number(reason.to_string())),
    };
}

/// Types of signatures in the form of the runtime's lists, and in that of SOS.
const TYPES: [(&str, &str); 17] = [
    ("void", "Void"),
    ("bool", "Boolean"),
    ("wchar", "Char"),
    ("int8", "SByte"),
    ("unsigned int8", "Byte"),
    ("int16", "Int16"),
    ("unsigned int16", "UInt16"),
    ("int32", "Int32"),
    ("unsigned int32", "UInt32"),
    ("int64", "Int64"),
    ("unsigned int64", "UInt64"),
    ("float32", "Single"),
    ("float64", "Double"),
    ("int", "IntPtr"),
    ("unsigned int", "UIntPtr"),
    ("native int", "IntPtr"),
    ("native uint", "UIntPtr"),
];

/// A method's name as SOS writes it: `Mixed.Native.native_work(Int32)` of
/// `mixed!Mixed.Native.native_work(int32)`. Signatures with function pointers or modifiers stay as
/// they are.
fn as_sos(name: &str) -> String {
    let name = name.split_once('!').filter(|(module, _)| !module.contains('(')).map_or(name, |(_, own)| own);
    let parts = name.rsplit_once('(').and_then(|(method, rest)| Some((method, rest.strip_suffix(')')?)));
    let Some((method, arguments)) = parts.filter(|(method, _)| !method.contains('(')) else {
        return name.to_owned();
    };
    // Arguments of generic types and dimensions of arrays have commas too.
    let mut depth = 0u32;
    let of_list = |letter: char| {
        match letter {
            '<' | '[' => depth += 1,
            '>' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    let list: Vec<String> = arguments.split(of_list).map(type_as_sos).collect();
    format!("{method}({})", list.join(", "))
}

fn type_as_sos(text: &str) -> String {
    let plain = text.trim_end_matches(['*', '&']);
    let (element, array) = plain.strip_suffix("[]").map_or((plain, ""), |element| (element, "[]"));
    let class = element.strip_prefix("value class ").or_else(|| element.strip_prefix("class "));
    let known = TYPES.iter().find(|(from, _)| *from == element).map(|(_, to)| *to);
    let element = class.or(known).unwrap_or(element);
    let suffix = text[plain.len()..].replace('&', " ByRef");
    format!("{element}{array}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::as_sos;

    #[test]
    fn methods_are_written_as_the_debugger_extension_does() {
        for (name, expected) in [
            ("mixed!Mixed.Native.native_work(int32)", "Mixed.Native.native_work(Int32)"),
            ("lib!System.GC._Collect(int32,int32)", "System.GC._Collect(Int32, Int32)"),
            (
                "lib!Interop+Kernel32.Read(int,unsigned int8*,int32&)",
                "Interop+Kernel32.Read(IntPtr, Byte*, Int32 ByRef)",
            ),
            ("lib!A.B(class System.String,value class X.Y[])", "A.B(System.String, X.Y[])"),
            ("lib!A.B()", "A.B()"),
            ("lib!A.B", "A.B"),
            ("lib!A.B(fnptr void (int32))", "A.B(fnptr void (int32))"),
            ("", ""),
        ] {
            assert_eq!(as_sos(name), expected);
        }
    }
}
