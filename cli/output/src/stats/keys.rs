//! The keys of lists: what samples can be grouped by.

use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// What samples are grouped by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupKey {
    Function,
    Module,
    /// Source file and line.
    Line,
    /// What kind of code it is, or that the thread is in the kernel.
    Kind,
    Thread,
    /// Threads of one name are one.
    ThreadName,
    /// What the thread did: `running`, `waiting` and so on.
    State,
    /// What the thread waited for.
    WaitReason,
    /// The innermost function that is neither the system's nor a runtime's.
    Caller,
    /// The span of so many nanoseconds since the trace's start.
    Time(u64),
    Process,
    Host,
    Trace,
    /// What a label of the recording says.
    Label(String),
}

/// Begins the name of a label's key.
const LABEL: &str = "label:";

impl GroupKey {
    /// All but those of labels and times, with what they are.
    pub const NAMED: [(GroupKey, &'static str, &'static str); 12] = [
        (GroupKey::Function, "function", "Functions, each with its module"),
        (GroupKey::Module, "module", "Modules, by their file names"),
        (GroupKey::Line, "line", "Source lines: file:line"),
        (
            GroupKey::Kind,
            "kind",
            "Kinds of code: native, managed, runtime, stub, dynamic, unknown; and kernel-wait, system-call",
        ),
        (GroupKey::Thread, "thread", "Threads"),
        (GroupKey::ThreadName, "thread-name", "Threads, those of one name as one"),
        (GroupKey::State, "state", "What threads did: running, waiting, system-call, unknown"),
        (GroupKey::WaitReason, "wait-reason", "What threads waited for"),
        (GroupKey::Caller, "caller", "The innermost function of each stack that is the program's own"),
        (GroupKey::Process, "process", "Executables, by their file names"),
        (GroupKey::Host, "host", "Machines"),
        (GroupKey::Trace, "trace", "Files"),
    ];

    /// Its name on the command line and in outputs.
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            GroupKey::Label(label) => Cow::Owned(format!("{LABEL}{label}")),
            GroupKey::Time(ns) => Cow::Owned(format!("time={}", plain_span(*ns))),
            key => GroupKey::NAMED.iter().find(|named| named.0 == *key).map_or("", |named| named.1).into(),
        }
    }

    /// The key with this name.
    pub fn of_name(name: &str) -> Option<GroupKey> {
        let label = name.strip_prefix(LABEL).filter(|label| !label.is_empty());
        let named = || GroupKey::NAMED.into_iter().find(|named| named.1 == name).map(|named| named.0);
        label.map(|label| GroupKey::Label(label.to_owned())).or_else(named)
    }

    /// Whether the frames of a stack may differ in it. Else all samples of a thread are in the same
    /// group.
    pub fn is_of_frames(&self) -> bool {
        matches!(self, GroupKey::Function | GroupKey::Module | GroupKey::Line | GroupKey::Kind)
    }

    /// Whether the samples of a thread may differ in it, by what the thread did.
    pub fn is_of_activity(&self) -> bool {
        matches!(self, GroupKey::State | GroupKey::WaitReason)
    }

    /// Whether the samples of a thread may differ in it, though it is not of single frames.
    pub fn is_of_sample(&self) -> bool {
        self.is_of_activity() || matches!(self, GroupKey::Caller | GroupKey::Time(_))
    }

    /// Whether all samples of a thread have the same value.
    pub fn is_of_thread(&self) -> bool {
        !self.is_of_frames() && !self.is_of_sample()
    }

    /// Whether all samples of a trace have the same value.
    pub fn is_of_trace(&self) -> bool {
        self.is_of_thread() && !matches!(self, GroupKey::Thread | GroupKey::ThreadName)
    }
}

/// `1.5s`, without a digit too many.
pub(super) fn plain_span(ns: u64) -> String {
    let (seconds, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    match rest {
        0 => format!("{seconds}s"),
        rest => format!("{seconds}.{}s", format!("{rest:09}").trim_end_matches('0')),
    }
}

impl Serialize for GroupKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}
