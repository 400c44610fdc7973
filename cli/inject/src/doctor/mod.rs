//! `inject doctor`: describes this system and checks that it is as the recorder expects.
//!
//! `windows::doctor` gathers facts. The modules here judge them without calling the system, so
//! every verdict can be tested on the host:
//!
//! * [`system`]: Windows, processors, virtualisation, code integrity, security software.
//! * [`files`]: inject.exe, agent.dll and the other programs of the release.
//! * [`policies`]: mitigation policies as raw words.
//! * [`scheduling`]: how the system schedules a process.
//! * [`target`]: a process to record.

pub(crate) mod files;
pub(crate) mod policies;
pub(crate) mod scheduling;
pub(crate) mod system;
pub(crate) mod target;

use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use stk_schema::text::printable;

/// Version of the JSON. It increases with a change that breaks readers.
pub(crate) const VERSION: u32 = 1;

/// The meaning of a fact for recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// As it should be.
    Ok,
    /// Recording works. The explanation says what is unusual.
    Note,
    /// The value could not be determined.
    Unknown,
    /// Recording will fail, or its results cannot be trusted.
    Bad,
}

/// One line of the report.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Fact {
    /// The subject, such as `system`.
    pub group: &'static str,
    /// Name within the group, such as `build`; stable within a version of the JSON.
    pub name: String,
    /// The value found; `null` if there is none.
    pub value: Value,
    /// The fact's meaning for recording.
    pub verdict: Verdict,
    /// The reason for the verdict; `null` where it is obvious.
    pub explanation: Option<String>,
}

impl Fact {
    /// A fact that is as it should be.
    pub(crate) fn ok(group: &'static str, name: impl Into<String>, value: impl Into<Value>) -> Fact {
        let (name, value) = (name.into(), value.into());
        Fact { group, name, value, verdict: Verdict::Ok, explanation: None }
    }

    /// A fact whose value could not be determined.
    pub(crate) fn unknown(group: &'static str, name: impl Into<String>, why: impl Into<String>) -> Fact {
        Fact::ok(group, name, Value::Null).but(Verdict::Unknown, why)
    }

    /// A fact of `value` that is ok if `good`; otherwise `bad` says what is wrong.
    pub(crate) fn check(
        group: &'static str,
        name: impl Into<String>,
        value: impl Into<Value>,
        good: bool,
        bad: &str,
    ) -> Fact {
        let fact = Fact::ok(group, name, value);
        if good { fact } else { fact.but(Verdict::Bad, bad) }
    }

    /// The same fact with another verdict and its reason.
    #[must_use]
    pub(crate) fn but(mut self, verdict: Verdict, why: impl Into<String>) -> Fact {
        self.verdict = verdict;
        self.explanation = Some(why.into());
        self
    }

    /// The same fact, noted if `different`.
    #[must_use]
    pub(crate) fn note_if(self, different: bool, why: &str) -> Fact {
        if different && self.verdict == Verdict::Ok { self.but(Verdict::Note, why) } else { self }
    }
}

/// The most columns for a fact's name.
const WIDEST: usize = 60;

/// The number of facts of each verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub ok: usize,
    pub note: usize,
    pub unknown: usize,
    pub bad: usize,
}

/// The report: all facts.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct DoctorReport {
    pub version: u32,
    /// Version of stk.
    pub stk: &'static str,
    /// `x64`, `arm64`, `x86`: what this inject was built for.
    pub arch: String,
    /// UTC in seconds since the Unix epoch.
    pub time: u64,
    /// The process given by `--pid`; `null` without one.
    pub pid: Option<u32>,
    /// The facts counted by verdict.
    pub summary: Summary,
    /// The facts, in the order in which they were determined.
    pub facts: Vec<Fact>,
}

impl DoctorReport {
    /// A report of `facts`, gathered at `time` (UTC in seconds since the Unix epoch).
    pub(crate) fn new(arch: String, time: u64, pid: Option<u32>, facts: Vec<Fact>) -> DoctorReport {
        let mut summary = Summary::default();
        for fact in &facts {
            *match fact.verdict {
                Verdict::Ok => &mut summary.ok,
                Verdict::Note => &mut summary.note,
                Verdict::Unknown => &mut summary.unknown,
                Verdict::Bad => &mut summary.bad,
            } += 1;
        }
        DoctorReport { version: VERSION, stk: env!("CARGO_PKG_VERSION"), arch, time, pid, summary, facts }
    }

    /// JSON as `schema/doctor.schema.json` describes it.
    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// Text for people: one line for each fact, and its explanation below.
    pub(crate) fn text(&self) -> String {
        let names = self.facts.iter().map(|fact| printable(&fact.name).chars().count());
        let width = names.max().unwrap_or(0).min(WIDEST);
        let mut text = String::new();
        let mut group = "";
        for fact in &self.facts {
            if fact.group != group {
                group = fact.group;
                let _ = writeln!(text, "{}{group}", if text.is_empty() { "" } else { "\n" });
            }
            let verdict = match fact.verdict {
                Verdict::Ok => "ok",
                Verdict::Note => "note",
                Verdict::Unknown => "unknown",
                Verdict::Bad => "BAD",
            };
            let (name, value) = (printable(&fact.name), shown(&fact.value));
            let _ = writeln!(text, "  {verdict:<7}  {name:<width$}  {}", printable(&value));
            if let Some(why) = &fact.explanation {
                let _ = writeln!(text, "           {}", printable(why));
            }
        }
        let Summary { ok, note, unknown, bad } = self.summary;
        let _ = writeln!(text, "\n{ok} ok, {note} to note, {unknown} unknown, {bad} bad");
        text
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(all) if all.is_empty() => "none".to_owned(),
        Value::Array(all) => {
            let all: Vec<String> =
                all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned)).collect();
            all.join(", ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> DoctorReport {
        let facts = vec![
            Fact::ok("system", "processors", 8),
            Fact::ok("system", "build", "10.0.26100").note_if(true, "not tried"),
            Fact::check("agent", "version", 7, false, "another version"),
            Fact::unknown("target", "threads", "no such process"),
        ];
        DoctorReport::new("x64".to_owned(), 1_700_000_000, Some(7), facts)
    }

    #[test]
    fn the_text_has_a_line_for_each_fact_and_its_reason_below() {
        assert_eq!(
            report().text(),
            "system\n  ok       processors  8\n  note     build       10.0.26100\n           not tried\n\n\
             agent\n  BAD      version     7\n           another version\n\n\
             target\n  unknown  threads     -\n           no such process\n\n\
             1 ok, 1 to note, 1 unknown, 1 bad\n"
        );
    }

    #[test]
    fn the_json_holds_value_verdict_and_reason() {
        let value: Value = serde_json::from_str(&report().json()).expect("JSON");
        assert_eq!(value["version"], 1);
        assert_eq!(value["pid"], 7);
        assert_eq!(value["summary"]["bad"], 1);
        assert_eq!(value["facts"][0]["value"], 8);
        assert_eq!(value["facts"][0]["explanation"], Value::Null);
        assert_eq!(value["facts"][2]["verdict"], "bad");
        assert_eq!(value["facts"][3]["value"], Value::Null);
    }

    #[test]
    fn text_from_the_system_cannot_control_the_terminal_or_begin_a_line() {
        let hostile = "a\u{1b}[2J\nb";
        let facts = vec![
            Fact::ok("system", hostile, hostile).but(Verdict::Note, hostile),
            Fact::ok("system", "modules", vec![hostile, hostile]),
        ];
        let text = DoctorReport::new("x64".to_owned(), 0, None, facts).text();
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert_eq!(text.matches(r"a\u{1b}[2J\u{a}b").count(), 5, "{text}");
        // The group, two facts, an explanation, an empty line, the sum.
        assert_eq!(text.lines().count(), 6, "{text}");
    }

    #[test]
    fn a_note_never_hides_that_something_is_bad() {
        let fact = Fact::check("a", "b", 1, false, "wrong").note_if(true, "different");
        assert_eq!((fact.verdict, fact.explanation.as_deref()), (Verdict::Bad, Some("wrong")));
    }
}
