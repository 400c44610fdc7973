//! The comparison of our walks with those of the system's own unwinder, as text and JSON
//! (`stk verify --walks`).

use serde::Serialize;
use std::fmt::Write;
use stk_base::text::{count, since_start};
use stk_profile::trace::Trace;
use stk_profile::walk_check::explicit::{self, FrameClass, StepClass};
use stk_profile::walk_check::{Comparison, DifferenceClass, Differences, Example, Side};
use stk_schema::Ticks;
use stk_schema::text::{hex, printable};

/// A trace's comparison, as `stk verify --walks --json` has it.
#[derive(Serialize)]
pub struct WalksJson {
    trace: String,
    process: String,
    /// The system that recorded and walked: Wine's version, or the system's build.
    system: String,
    samples: u64,
    walks: u64,
    equal: u64,
    equal_frames: u64,
    discarded: u64,
    /// Their sample or the modules at that time are not known.
    unmatched: u64,
    different: u64,
    unexplained: u64,
    classes: Vec<ClassJson>,
    explicit: ExplicitWalksJson,
    damage: Vec<String>,
}

/// The comparison of .NET's own view of its stacks with our walks.
#[derive(Serialize)]
struct ExplicitWalksJson {
    /// Samples with a report of the runtime.
    samples: u64,
    unexplained: u64,
    /// Explicit Frames.
    frames: Vec<CountJson>,
    /// The same by kind and class.
    kinds: Vec<KindJson>,
    /// Steps of the contract's own walk.
    steps: Vec<CountJson>,
    /// Chains that do not end properly.
    broken: u64,
    broken_examples: Vec<NoteJson>,
}

#[derive(Serialize)]
struct KindJson {
    kind: &'static str,
    class: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct CountJson {
    class: &'static str,
    meaning: &'static str,
    count: u64,
    examples: Vec<NoteJson>,
    /// Whether the examples are of interest to people: not where both sides agree.
    #[serde(skip)]
    shows_examples: bool,
}

#[derive(Serialize)]
struct NoteJson {
    tid: u32,
    /// Since the trace's start.
    time_ns: u64,
    text: String,
}

#[derive(Serialize)]
struct ClassJson {
    class: &'static str,
    explained: bool,
    meaning: &'static str,
    count: u64,
    examples: Vec<ExampleJson>,
}

#[derive(Serialize)]
struct ExampleJson {
    tid: u32,
    /// Since the trace's start.
    time_ns: u64,
    frame: usize,
    before: Option<SideJson>,
    ours: Option<SideJson>,
    system: Option<SideJson>,
    stop: &'static str,
    /// At the sample's instruction pointer, hexadecimal.
    code: String,
}

#[derive(Serialize)]
struct SideJson {
    /// `module+0xrva`, or the address outside of modules.
    at: String,
    ip: String,
    sp: String,
}

impl WalksJson {
    /// What is shown of a comparison of this trace.
    pub fn new(trace: &Trace<'_>, found: &Comparison) -> WalksJson {
        let class = |(class, differences): (&DifferenceClass, &Differences)| ClassJson {
            class: class.as_str(),
            explained: *class != DifferenceClass::Unexplained,
            meaning: class.meaning(),
            count: differences.count,
            examples: differences.examples.iter().map(|example| shown_example(trace, example)).collect(),
        };
        let system = trace.fact("wine").map(|version| format!("Wine {version}"));
        WalksJson {
            trace: trace.source.clone(),
            process: trace.process(),
            system: system.or_else(|| trace.fact("os.build").map(str::to_owned)).unwrap_or_default(),
            samples: found.samples,
            walks: found.walks,
            equal: found.equal,
            equal_frames: found.equal_frames,
            discarded: found.discarded,
            unmatched: found.unmatched,
            different: found.different(),
            unexplained: found.unexplained(),
            classes: found.differences.iter().map(class).collect(),
            explicit: shown_explicit(trace, &found.explicit),
            damage: found.damage.clone(),
        }
    }
}

fn shown_explicit(trace: &Trace<'_>, found: &explicit::ExplicitComparison) -> ExplicitWalksJson {
    let notes = |counted: &explicit::ClassCount| -> Vec<NoteJson> {
        let note = |(thread, time, text): &(u64, Ticks, String)| NoteJson {
            tid: tid(trace, *thread),
            time_ns: trace.clock.ns(*time),
            text: text.clone(),
        };
        counted.examples.iter().map(note).collect()
    };
    let shown = |class, meaning, shows_examples, counted: &explicit::ClassCount| CountJson {
        class,
        meaning,
        count: counted.count,
        examples: notes(counted),
        shows_examples,
    };
    let frames = |(class, counted): (&FrameClass, &explicit::ClassCount)| {
        let shows_examples = !matches!(class, FrameClass::Agrees | FrameClass::HoldsNone);
        shown(class.as_str(), class.meaning(), shows_examples, counted)
    };
    let steps = |(class, counted): (&StepClass, &explicit::ClassCount)| {
        shown(class.as_str(), class.meaning(), *class != StepClass::Agrees, counted)
    };
    let kinds = found.kinds.iter();
    let kinds = kinds.map(|((kind, class), &count)| KindJson { kind, class: class.as_str(), count });
    ExplicitWalksJson {
        samples: found.samples,
        unexplained: found.unexplained(),
        frames: found.frames.iter().map(frames).collect(),
        kinds: kinds.collect(),
        steps: found.steps.iter().map(steps).collect(),
        broken: found.broken.count,
        broken_examples: notes(&found.broken),
    }
}

fn tid(trace: &Trace<'_>, thread: u64) -> u32 {
    let timeline = &trace.timeline;
    timeline.thread(thread).map_or(0, |thread| thread.tid)
}

fn shown_example(trace: &Trace<'_>, example: &Example) -> ExampleJson {
    ExampleJson {
        tid: tid(trace, example.thread),
        time_ns: trace.clock.ns(example.time),
        frame: example.frame,
        before: example.before.as_ref().map(shown_side),
        ours: example.ours.as_ref().map(shown_side),
        system: example.system.as_ref().map(shown_side),
        stop: example.stop.as_str(),
        code: hex(&example.code),
    }
}

fn shown_side(side: &Side) -> SideJson {
    let at = if side.module.is_empty() {
        format!("{:#x}", side.rva)
    } else {
        format!("{}+{:#x}", side.module, side.rva)
    };
    SideJson { at, ip: format!("{:#x}", side.ip), sp: format!("{:#x}", side.sp) }
}

/// The comparison as text.
pub fn text(shown: &WalksJson) -> String {
    let mut text = String::new();
    if shown.walks == 0 {
        explicit_text(&mut text, shown);
        return text;
    }
    let _ = writeln!(
        text,
        "{}: {} walks of {} samples by {}: {} equal ({} frames), {} differ, {} of them not explained",
        printable(&shown.trace),
        count(shown.walks),
        count(shown.samples),
        printable(if shown.system.is_empty() { "the system's unwinder" } else { &shown.system }),
        count(shown.equal),
        count(shown.equal_frames),
        count(shown.different),
        count(shown.unexplained),
    );
    if shown.discarded > 0 {
        let _ = writeln!(
            text,
            "  {} discarded: the loader lock was taken, or the watchdog ended the walk",
            count(shown.discarded)
        );
    }
    if shown.unmatched > 0 {
        let _ = writeln!(text, "  {} without their sample", count(shown.unmatched));
    }
    for class in &shown.classes {
        let _ = writeln!(text, "  {:>7}  {}: {}", count(class.count), class.class, class.meaning);
        for example in &class.examples {
            example_text(&mut text, example);
        }
    }
    explicit_text(&mut text, shown);
    for damage in &shown.damage {
        let _ = writeln!(text, "  {}", printable(damage));
    }
    text
}

fn explicit_text(text: &mut String, shown: &WalksJson) {
    let explicit = &shown.explicit;
    if explicit.samples == 0 {
        return;
    }
    let all: u64 = explicit.frames.iter().map(|class| class.count).sum();
    let _ = writeln!(
        text,
        "{}: {} explicit Frames of .NET in {} samples: {} of them, or of the contract's own walks, not explained",
        printable(&shown.trace),
        count(all),
        count(explicit.samples),
        count(explicit.unexplained),
    );
    let notes = |text: &mut String, notes: &[NoteJson]| {
        for note in notes {
            let (time, note_text) = (since_start(note.time_ns), printable(&note.text));
            let _ = writeln!(text, "           thread {} at {time}: {note_text}", note.tid);
        }
    };
    for (what, classes) in [("Frames", &explicit.frames), ("steps", &explicit.steps)] {
        for class in classes {
            let _ = writeln!(text, "  {:>7}  {what} {}: {}", count(class.count), class.class, class.meaning);
            if class.shows_examples {
                notes(text, &class.examples);
            }
        }
    }
    if explicit.broken > 0 {
        let _ =
            writeln!(text, "  {:>7}  NOT EXPLAINED: chains that do not end as they should", explicit.broken);
        notes(text, &explicit.broken_examples);
    }
}

fn example_text(text: &mut String, example: &ExampleJson) {
    let side = |side: &Option<SideJson>| match side {
        Some(side) => format!("{} (sp {})", printable(&side.at), side.sp),
        None => format!("ends ({})", example.stop),
    };
    let system = match &example.system {
        Some(_) => side(&example.system),
        None => "ends".to_owned(),
    };
    let _ = writeln!(
        text,
        "           thread {} at {}, frame {} behind {}: ours {}, the system's {system}",
        example.tid,
        since_start(example.time_ns),
        example.frame,
        side(&example.before),
        side(&example.ours),
    );
}
