//! What a recording is limited to (`--threads`, `--max-overhead`), and what makes a thread take a
//! sample of itself (`--trigger`), on `tests/programs/raises.c` and busy.

use std::path::Path;

use serde_json::Value;
use stk_schema::event::{DropReason, EndReason};
use stk_tests::recorded::{Recorded, Sample};
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// C++'s exceptions.
const CPP: u64 = 0xe06d_7363;

/// The program of `WHAT`, recorded with these options while it does it; then the recording ends.
struct Raised {
    folder: Folder,
    said: String,
    recorded: Recorded,
}

impl Raised {
    fn of(what: &str, options: &[&str]) -> Raised {
        let folder = Folder::new(&format!("raises-{what}-{}", options.len()));
        let exe = wine::path("STK_ENDS_DIR").join("raises.exe");
        let program = Program::ready(&folder, folder.path(), &exe, &[what, "go"]);
        let pid = program.pid();
        let mut inject = Inject::start(&folder, &[&["--pid", &pid, "-o", "raised.stk"], options].concat());
        inject.wait_until_recording();
        let trace = folder.file("raised.stk");
        wine::wait_for("samples", || {
            Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty() || what == "name")
        });
        std::fs::write(folder.file("go"), "").expect("writable");
        wine::wait_for("the program to have done it", || program.output().contains("end\n").then_some(()));
        if what == "name" {
            wine::wait_for("samples of the thread that has its name now", || {
                Recorded::try_open(&trace).filter(|recorded| !recorded.samples.is_empty())
            });
        }
        Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
        inject.finish().expect(0);
        let recorded = Recorded::open_sound(&trace);
        assert_eq!(recorded.end_reason(), Some(EndReason::Stopped as u64));
        let said = program.output();
        assert!(said.contains("wrong 0\n"), "the program was disturbed:\n{said}");
        Raised { folder, said, recorded }
    }

    fn events(&self) -> Vec<Value> {
        let listed = stk::json(self.folder.path(), &["events", "raised.stk", "--json"]);
        listed["traces"][0]["events"].as_array().expect("a list of events").clone()
    }

    fn events_of(&self, kind: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["kind"] == kind).collect()
    }

    fn with_tag(&self, tag: u64) -> Vec<&Sample> {
        self.recorded.samples.iter().filter(|sample| sample.tag == Some(tag)).collect()
    }

    fn thread_of(&self, sample: &Sample) -> &str {
        &self.recorded.threads[&sample.thread].name
    }
}

#[test]
fn each_exception_is_an_event_and_changes_nothing() {
    let raised = Raised::of("throw", &["--trigger", "exception"]);
    assert!(raised.said.contains("handled 3\n"), "{}", raised.said);
    let exceptions = raised.events_of("exception");
    assert_eq!(exceptions.len(), 3, "{exceptions:?}");
    let captures = raised.with_tag(CPP);
    assert_eq!(captures.len(), 3);
    assert!(captures.iter().all(|capture| raised.thread_of(capture) == "raiser"));
    assert!(captures.iter().all(|capture| !capture.truncated && capture.stack > 0));
    // `stk dump --event` shows the stack: the function that raises it, and nothing of the recorder.
    let number = exceptions[0]["number"].to_string();
    let shown = stk::run(raised.folder.path(), &["dump", "raised.stk", "--event", &number]).stdout;
    assert!(shown.contains("RaiseException") && !shown.contains("agent"), "{shown}");
}

#[test]
fn only_the_exceptions_that_are_looked_for_are_recorded() {
    let raised = Raised::of("fault", &["--trigger", "exception=0xC0000005", "--trigger", "breakpoint"]);
    assert!(raised.said.contains("handled 1\n"), "{}", raised.said);
    let faults = raised.with_tag(0xc000_0005);
    assert!(faults.len() == 1 && raised.thread_of(faults[0]) == "raiser");
    let exceptions = raised.events_of("exception");
    assert_eq!(exceptions.len(), 1, "{exceptions:?}");
    let other = Raised::of("throw", &["--trigger", "exception=0xC0000005"]);
    assert!(other.events_of("exception").is_empty() && other.with_tag(CPP).is_empty());
}

#[test]
fn a_breakpoint_is_recorded_with_its_stack() {
    let raised = Raised::of("breakpoint", &["--trigger", "breakpoint"]);
    assert!(raised.said.contains("handled 1\n"), "{}", raised.said);
    assert_eq!(raised.with_tag(0x8000_0003).len(), 1);
}

#[test]
fn of_a_storm_of_exceptions_some_are_recorded_and_the_others_counted() {
    let raised = Raised::of("storm", &["--trigger", "exception"]);
    assert!(raised.said.contains("handled 3000\n"), "{}", raised.said);
    let exceptions = raised.events_of("exception").len() as u64;
    let dropped = |reason: DropReason| raised.recorded.dropped.get(&(reason as u64)).copied().unwrap_or(0);
    let left_out = dropped(DropReason::TriggerLimit) + dropped(DropReason::EventNotWritten);
    assert_eq!(exceptions + left_out, 3000, "{exceptions} recorded, {:?}", raised.recorded.dropped);
    assert!(exceptions >= 1 && left_out >= 1, "{exceptions} recorded, {left_out} left out");
    assert!(raised.with_tag(CPP).len() as u64 <= exceptions);
}

#[test]
fn a_stack_overflow_is_recorded_and_the_program_mends_it() {
    let raised = Raised::of("overflow", &["--trigger", "exception"]);
    assert!(raised.said.contains("overflows 1\n"), "{}", raised.said);
    let exceptions = raised.events_of("exception");
    assert_eq!(exceptions.len(), 1, "{exceptions:?}");
    assert!(exceptions[0].to_string().to_lowercase().contains("c00000fd"), "{}", exceptions[0]);
}

#[test]
fn the_load_of_a_module_is_marked_with_the_stack_of_the_thread_that_loads_it() {
    let raised = Raised::of("load", &["--trigger", "module:VERSION.*"]);
    let marks = raised.events_of("mark");
    assert!(marks.len() == 1 && marks[0].to_string().contains("trigger module: version.dll"), "{marks:?}");
    let captures = raised.with_tag(0);
    assert!(captures.len() == 1 && raised.thread_of(captures[0]) == "raiser", "{captures:?}");
    let number = raised.events_of("capture")[0]["number"].to_string();
    let shown = stk::run(raised.folder.path(), &["dump", "raised.stk", "--event", &number]).stdout;
    assert!(shown.contains("LoadLibrary"), "{shown}");
}

#[test]
fn a_process_that_begins_to_use_much_cpu_time_is_marked() {
    let folder = Folder::new("cpu-trigger");
    let busy = Program::busy(&folder, 0);
    let mut inject =
        Inject::start(&folder, &["--pid", &busy.pid(), "-o", "cpu.stk", "--trigger", "cpu>0", "-r", "50"]);
    inject.wait_until_recording();
    let marked = |_: &()| {
        let listed = stk::run(folder.path(), &["events", "cpu.stk", "--kind", "mark"]).stdout;
        listed.contains("trigger cpu>0").then_some(())
    };
    wine::wait_for("the mark", || marked(&()));
    Inject::run(&folder, &["stop", "--pid", &busy.pid()]).expect(0);
    inject.finish().expect(0);
}

#[test]
fn only_the_chosen_threads_are_sampled_and_none_counts_as_missed() {
    let folder = Folder::new("threads-chosen");
    let busy = Program::busy(&folder, 0);
    let line = ["--pid", &busy.pid(), "-o", "some.stk", "--threads", "main", "--threads", "name=W?iT*"];
    let mut inject = Inject::start(&folder, &line);
    inject.wait_until_recording();
    let trace = folder.file("some.stk");
    let of = |recorded: &Recorded, name: &str| {
        let named = recorded.threads_named(name);
        recorded.samples.iter().filter(|sample| named.contains(&sample.thread)).count()
    };
    wine::wait_for("samples of both", || {
        Recorded::try_open(&trace).filter(|found| of(found, "main") > 0 && of(found, "waiter") > 0)
    });
    Inject::run(&folder, &["stop", "--pid", &busy.pid()]).expect(0);
    inject.finish().expect(0);
    let recorded = Recorded::open_sound(&trace);
    for sample in &recorded.samples {
        let name = &recorded.threads[&sample.thread].name;
        assert!(["main", "waiter"].contains(&name.as_str()), "{name} was sampled");
    }
    // The others are known anyway.
    assert_eq!(recorded.threads_named("recursion").len(), 1);
    assert!(recorded.metadata.contains_key("recorder.threads"), "{:?}", recorded.metadata);
    let stats = stk::json(folder.path(), &["stats", "some.stk", "--json"]);
    assert_eq!(stats["traces"][0]["totals"]["threads"], 2, "{}", stats["traces"][0]["totals"]);
    let info = stk::run(folder.path(), &["info", "some.stk"]).stdout;
    assert!(info.contains("name=W?iT*"), "{info}");
}

#[test]
fn a_thread_is_sampled_from_the_moment_when_its_name_fits() {
    let raised = Raised::of("name", &["--threads", "name=late*"]);
    assert!(!raised.recorded.samples.is_empty());
    assert!(raised.recorded.samples.iter().all(|sample| raised.thread_of(sample) == "late name"));
}

#[test]
fn the_rate_falls_to_what_the_budget_allows_and_the_trace_says_so() {
    let folder = Folder::new("max-overhead");
    let busy = Program::busy(&folder, 0);
    let pid = busy.pid();
    let rate = |trace: &str, more: &[&str]| -> (Vec<f64>, u64) {
        let mut inject = Inject::start(&folder, &[&["--pid", &pid, "-o", trace], more].concat());
        inject.wait_until_recording();
        let path = folder.file(trace);
        // The rate is reported once a second.
        wine::wait_for("three seconds of recording", || lasts(&path, 3));
        Inject::run(&folder, &["stop", "--pid", &pid]).expect(0);
        inject.finish().expect(0);
        let info = stk::json(folder.path(), &["info", trace, "--json"]);
        let rates = info["traces"][0]["rates"].as_array().expect("a list");
        let hz = rates.iter().map(|rate| rate["hz"].as_f64().expect("a rate")).collect();
        (
            hz,
            stk::json(folder.path(), &["stats", trace, "--json"])["traces"][0]["totals"]["samples"]
                .as_u64()
                .expect("count"),
        )
    };
    let (rates, samples) = rate("little.stk", &["--max-overhead", "0.1"]);
    assert!(rates.iter().any(|&hz| hz < 500.0), "{rates:?}");
    assert!(samples > 0);
    let recorded = Recorded::open_sound(&folder.file("little.stk"));
    assert_eq!(recorded.metadata["recorder.max_overhead_ppm"], "1000");
    assert!(recorded.dropped.get(&(DropReason::DutyLimit as u64)).is_some_and(|&passes| passes > 0));
}

/// Whether the trace holds a sample so many seconds after its start.
fn lasts(trace: &Path, seconds: u64) -> Option<()> {
    let recorded = Recorded::try_open(trace)?;
    let last = recorded.samples.iter().map(|sample| sample.time).max()?;
    let span = last.saturating_sub(recorded.header.clock_start);
    (span.0 >= seconds * recorded.header.clock_frequency).then_some(())
}
