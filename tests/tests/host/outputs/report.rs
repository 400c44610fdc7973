//! A page of `stk report` whose names are hostile, for `tests/viewers/report.sh`.

use super::profiles::Builder;
use std::path::PathBuf;
use stk_output::report::{Report, Source};
use stk_output::stats::TimeZone;
use stk_profile::profile::{EventInfo, MissingModule, MissingSymbols, Placement};
use stk_profile::stack::StopReason;
use stk_profile::trace::Content;
use stk_schema::event::RunState;
use stk_schema::identity::ContentHash;
use stk_unwind::Trust;

/// A name that would run as a script wherever it was taken for HTML or for a script.
fn hostile(what: &str) -> String {
    format!("</script><script>window.owned=1</script>'\"`${{x}}{what}<img src=x onerror=\"window.owned=1\">")
}

#[test]
fn hostile_names_of_a_report_are_written_as_data() {
    let [function, module, file, thread, process] =
        ["function", "module", "file", "thread", "process"].map(hostile);
    let mut b = Builder::new();
    b.profile.trace.process = process.clone();
    b.profile.trace.source = process.clone();
    b.profile.trace.host = process;
    let image = b.image(&module, 1);
    b.module(image, 0x1_4000_0000, None, None);
    let complete = b.stop(StopReason::COMPLETE, "");
    let worker = b.thread(4, &thread);
    let names = [(function.as_str(), Some(file.as_str()), Some(1))];
    let outer = b.frame(Placement::Image(image, 0x1010), Trust::Scan, &names);
    let leaf = b.frame(Placement::Image(image, 0x1020), Trust::Context, &[("__proto__", None, None)]);
    let stack = b.stack(&[outer, leaf]);
    b.run(worker, Some(stack), complete, 0, 5, RunState::Running);
    b.profile.events.push(EventInfo {
        number: 1,
        kind: "mark",
        time_ns: 1,
        thread: None,
        tag: Some(0),
        text: Some(hostile("mark")),
        module: None,
        exception: None,
    });
    let lacking = MissingModule { module: module.clone(), samples: 5, frames: 1, reason: hostile("reason") };
    let missing = MissingSymbols { frames: 10, named: 5, modules: vec![lacking] };
    let mut report = Report::default();
    let source = Source {
        profile: &b.profile,
        runs: &b.runs,
        missing: &missing,
        warnings: &[hostile("warning")],
        part: "",
        annotation: None,
        zone: TimeZone::Utc,
    };
    report.add(&source).expect("runs");
    let temporary = tempfile::tempdir().expect("folder");
    let folder = std::env::var_os("STK_OUTPUTS").map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let path = folder.join("hostile.report.html");
    let digest = ContentHash([1; 16]);
    let uuid = String::new();
    let content =
        Content { uuid, start_utc_ns: 0, digest, len: 1, beginnings: Vec::new(), redacted_from: None };
    report.write(Some(&path), &content).expect("write");
    let page = std::fs::read_to_string(path).expect("the page");
    assert!(!page.contains("owned") && !page.contains("onerror"));
}
