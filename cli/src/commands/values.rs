//! Names of the library's choices on the command line.

use crate::diff::{Axis, DiffFormat};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use stk_base::text::TimeZone;
use stk_output::dump::print::DumpStyle;
use stk_output::events::filter::KindName;
use stk_output::formats::{Format, PerfettoStyle};
use stk_output::stats::SortBy;
use stk_profile::profile::{ActivityKind, ThreadMerge, Weight};
use stk_profile::stack::FrameChoice;
use stk_symbols::Demangle;

/// A choice of the library: its values, each with its name and help text.
pub(super) trait Choice: Copy + PartialEq + Send + Sync + 'static {
    /// All values, in the order in which the help lists them.
    fn choices() -> Vec<(Self, &'static str, &'static str)>;
}

/// Parses an option that takes one of a choice's values.
pub(super) fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let value = |(_, name, help): (T, &'static str, &'static str)| PossibleValue::new(name).help(help);
    PossibleValuesParser::new(T::choices().into_iter().map(value)).try_map(|name: String| {
        let found = T::choices().into_iter().find(|(_, known, _)| *known == name);
        found.map(|(value, ..)| value).ok_or("no such value")
    })
}

/// The name of a choice's default, for the parser to begin with.
pub(super) fn default_name<T: Choice + Default>() -> &'static str {
    let found = T::choices().into_iter().find(|(value, ..)| *value == T::default());
    found.map_or("", |(_, name, _)| name)
}

/// Gives each value of a choice its name and help text.
macro_rules! values {
    ($choice:ty { $($value:ident = $name:literal, $help:literal;)+ }) => {
        impl Choice for $choice {
            fn choices() -> Vec<(Self, &'static str, &'static str)> {
                // None is forgotten.
                let _ = |value: Self| match value {
                    $(Self::$value => (),)+
                };
                vec![$((Self::$value, $name, $help)),+]
            }
        }
    };
}

values!(Demangle {
    Full = "full", "With parameters and return type";
    Short = "short", "The qualified name alone. Procedure records of a PDB hold no more than that either. Lambdas, local functions and state machines of .NET as in the source, also with full";
    None = "none", "As the record or the runtime has it";
});

values!(TimeZone {
    Utc = "utc", "Coordinated universal time";
    Local = "local", "The time of this machine";
});

values!(FrameChoice {
    All = "all", "All of them";
    Native = "native", "All but those of managed methods and of the stubs between them";
    Managed = "managed", "Only those of managed methods and of the stubs between them";
});

values!(Weight {
    Cpu = "cpu", "CPU time";
    Wall = "wall", "Time that samples cover, waits included";
    Samples = "samples", "Samples";
    Active = "active", "Samples in which the thread did not wait";
    Waiting = "waiting", "Time that samples cover in which the thread waited";
});

values!(ActivityKind {
    Running = "running", "On a processor, or ready to run";
    Waiting = "waiting", "Waiting in the system";
    SystemCall = "system-call", "In a system call that does not only wait";
    Unknown = "unknown", "Not known: without a stack, or seen not to run";
});

values!(ThreadMerge {
    All = "all", "All threads";
    ByName = "name", "Those of one name; numbers at its end do not count";
});

values!(SortBy {
    Own = "self", "The most self time first";
    Total = "total", "The most total time first";
    Waits = "waits", "The longest waits first";
    Name = "name", "By name";
});

values!(DumpStyle {
    K = "k", "Like the debuggers' `k`: Child-SP, RetAddr, Call Site";
    Plain = "plain", "One line a frame: \"module\"! file(line): function, or the address without a line";
    Merged = "merged", "Stacks of the same functions once, with their threads, those of the most threads first";
    Clrstack = "clrstack", "Like SOS's `clrstack -f`: Child SP, IP, Call Site, with .NET's explicit Frames in brackets; with `--frames managed` like its `clrstack`. Frames are those of stk's own walk, to the thread's start. The walk of .NET's data contract (`verify --walks` compares it) ends with the last managed frame, as the runtime's own reader does; the first example of the contract's document has one native frame more. The method that an explicit Frame calls is named as SOS does, if the trace holds its name (.NET 9 and later on x64) or the runtime lists it";
    Json = "json", "Everything that is known of each frame";
});

values!(KindName {
    Capture = "capture", "A thread called stk_capture";
    Mark = "mark", "A marked time";
    Exception = "exception", "An exception was seen";
    Load = "load", "A module was loaded";
    Unload = "unload", "A module was unloaded";
    ThreadStart = "thread-start", "A thread began";
    ThreadName = "thread-name", "A thread got another name";
    ThreadExit = "thread-exit", "A thread ended";
});

impl Choice for Format {
    fn choices() -> Vec<(Self, &'static str, &'static str)> {
        Format::ALL.iter().map(|&format| (format, format.name(), format.help())).collect()
    }
}

values!(PerfettoStyle {
    StackSamples = "stack-samples", "Samples with CPU time and time covered: Perfetto 58 and later";
    PerfSamples = "perf-samples", "A packet for each sample, without times: older Perfettos";
});

values!(Axis {
    Function = "function", "Functions, each its own time";
    Stack = "stack", "Whole stacks";
    Module = "module", "Modules";
});

values!(DiffFormat {
    Table = "table", "A table for terminals";
    Json = "json", "One JSON object, as schema/diff.schema.json describes it";
    Markdown = "markdown", "Markdown, for comments on a change";
    Junit = "junit", "JUnit's XML, which build servers show as tests";
});
