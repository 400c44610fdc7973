//! A process to record.

use super::policies::{self, Word};
use super::scheduling::Scheduling;
use super::{Fact, Verdict};

const GROUP: &str = "target";

/// The kind of drive that holds agent.dll, which decides whether another process can see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drive {
    Local,
    /// A network drive or share: other logon sessions may not see it, and policies may refuse it.
    Remote,
    /// A drive letter that `subst` made, which other logon sessions do not see.
    Substituted,
    /// Another kind, or unknown.
    Other,
}

/// Facts about the process; `None` where they are unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TargetFacts {
    /// Program file name.
    pub name: Option<String>,
    /// `x64`, `arm64`, `x86`.
    pub machine: Option<String>,
    /// Why inject refuses the process, if it does.
    pub refusal: Option<String>,
    /// The rights that recording needs, and whether each is granted.
    pub rights: Vec<(&'static str, bool)>,
    /// Its session and inject's.
    pub sessions: Option<(u32, u32)>,
    /// Its integrity level and inject's: 0x2000 medium, 0x3000 high.
    pub integrity: Option<(u32, u32)>,
    /// Whether it runs in an AppContainer.
    pub app_container: Option<bool>,
    pub policies: Vec<Word>,
    /// Load address of kernel32.dll there and here.
    pub kernel32: Option<(u64, u64)>,
    /// Number of modules in the process.
    pub modules: Option<u32>,
    /// The kind of agent.dll's drive, and the length of its path in UTF-16 units.
    pub agent_path: Option<(Drive, usize)>,
    /// Number of threads in the process.
    pub threads: Option<usize>,
    /// How the system schedules it.
    pub scheduling: Scheduling,
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge(target: &TargetFacts) -> Vec<Fact> {
    let Some(name) = &target.name else {
        let missing = Fact::ok(GROUP, "name", serde_json::Value::Null);
        return vec![missing.but(Verdict::Bad, "there is no such process, or it allows no query")];
    };
    let mut facts = vec![Fact::ok(GROUP, "name", name.as_str())];
    facts.push(Fact::ok(GROUP, "machine", target.machine.clone()));
    facts.push(match &target.refusal {
        None => Fact::ok(GROUP, "recordable", true),
        Some(why) => Fact::ok(GROUP, "recordable", false).but(Verdict::Bad, why.as_str()),
    });
    for (right, granted) in &target.rights {
        facts.push(Fact::check(
            GROUP,
            format!("right {right}"),
            *granted,
            *granted,
            "recording needs this right",
        ));
    }
    facts.push(pair("session", target.sessions, "it is in another session than inject", |theirs, ours| {
        theirs == ours
    }));
    facts.push(integrity(target));
    facts.push(match target.app_container {
        Some(inside) => Fact::ok(GROUP, "app-container", inside)
            .note_if(inside, "runs in an AppContainer: agent.dll must be readable for such programs"),
        None => Fact::unknown(GROUP, "app-container", "its token cannot be read"),
    });
    facts.extend(policies::judge(GROUP, &target.policies));
    facts.push(kernel32(target));
    facts.push(match target.modules {
        Some(count) => Fact::ok(GROUP, "modules", count),
        None => Fact::unknown(GROUP, "modules", "its module list cannot be read"),
    });
    facts.push(agent_path(target));
    facts.push(match target.threads {
        Some(count) => Fact::ok(GROUP, "threads", count),
        None => Fact::unknown(GROUP, "threads", "its threads cannot be counted"),
    });
    facts.extend(target.scheduling.judge(GROUP));
    facts
}

fn pair(name: &'static str, values: Option<(u32, u32)>, why: &str, same: impl Fn(u32, u32) -> bool) -> Fact {
    match values {
        Some((theirs, ours)) => Fact::ok(GROUP, name, theirs).note_if(!same(theirs, ours), why),
        None => Fact::unknown(GROUP, name, "cannot be queried"),
    }
}

fn integrity(target: &TargetFacts) -> Fact {
    match target.integrity {
        Some((theirs, ours)) => {
            let fact = Fact::ok(GROUP, "integrity", format!("{theirs:#x}, inject {ours:#x}"));
            if theirs > ours {
                fact.but(Verdict::Bad, "runs elevated: run inject as administrator")
            } else {
                fact
            }
        }
        None => Fact::unknown(GROUP, "integrity", "its token cannot be read"),
    }
}

fn kernel32(target: &TargetFacts) -> Fact {
    match target.kernel32 {
        Some((there, here)) => Fact::ok(GROUP, "kernel32", format!("{there:#x}")).note_if(
            there != here,
            "not where inject has it: addresses must come from the process's own module list",
        ),
        None => Fact::unknown(GROUP, "kernel32", "not in its module list, or the list cannot be read"),
    }
}

fn agent_path(target: &TargetFacts) -> Fact {
    /// LoadLibraryW accepts no longer path in programs that do not support long paths.
    const MAX_PATH: usize = 259;
    let name = "agent-path";
    match target.agent_path {
        None => Fact::unknown(GROUP, name, "agent.dll was not found"),
        Some((_, units)) if units > MAX_PATH => Fact::ok(GROUP, name, format!("{units} characters")).but(
            Verdict::Bad,
            "agent.dll's path is too long for most programs: move the release to a shorter one",
        ),
        Some((drive, _)) => {
            let fact = |value: &str| Fact::ok(GROUP, name, value);
            match drive {
                Drive::Local => fact("local disk"),
                Drive::Remote => fact("network")
                    .but(Verdict::Note, "programs of other users or sessions may not see this path"),
                Drive::Substituted => fact("subst drive")
                    .but(Verdict::Note, "programs of other logon sessions do not see this drive"),
                Drive::Other => fact("other").but(Verdict::Unknown, "the kind of drive is unknown"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::scheduling::Throttling;

    fn good() -> TargetFacts {
        TargetFacts {
            name: Some("app.exe".to_owned()),
            machine: Some("x64".to_owned()),
            refusal: None,
            rights: vec![("VM_READ", true)],
            sessions: Some((1, 1)),
            integrity: Some((0x2000, 0x2000)),
            app_container: Some(false),
            policies: vec![(7, Some(1))],
            kernel32: Some((0x7ff8_0000, 0x7ff8_0000)),
            modules: Some(9),
            agent_path: Some((Drive::Local, 30)),
            threads: Some(10),
            scheduling: Scheduling {
                throttling: Some(Throttling { control: 0, state: 0 }),
                affinity: Some((1, 1)),
                cpu_sets: Some(Vec::new()),
                boosts: Some(true),
            },
        }
    }

    fn not_ok(target: &TargetFacts) -> Vec<(String, Verdict)> {
        let facts = judge(target).into_iter().filter(|fact| fact.verdict != Verdict::Ok);
        facts.map(|fact| (fact.name, fact.verdict)).collect()
    }

    #[test]
    fn a_usual_process_is_ok() {
        assert_eq!(not_ok(&good()), []);
    }

    #[test]
    fn each_obstacle_is_reported() {
        let one = |target: TargetFacts, name: &str, verdict| {
            assert_eq!(not_ok(&target), [(name.to_owned(), verdict)])
        };
        one(TargetFacts { name: None, ..good() }, "name", Verdict::Bad);
        one(TargetFacts { refusal: Some("x".to_owned()), ..good() }, "recordable", Verdict::Bad);
        one(TargetFacts { rights: vec![("VM_READ", false)], ..good() }, "right VM_READ", Verdict::Bad);
        one(TargetFacts { sessions: Some((0, 1)), ..good() }, "session", Verdict::Note);
        one(TargetFacts { integrity: Some((0x3000, 0x2000)), ..good() }, "integrity", Verdict::Bad);
        one(TargetFacts { app_container: Some(true), ..good() }, "app-container", Verdict::Note);
        one(TargetFacts { policies: vec![(7, Some(2))], ..good() }, "policy ControlFlowGuard", Verdict::Note);
        one(TargetFacts { kernel32: Some((0x1000_0000, 0x7ff8_0000)), ..good() }, "kernel32", Verdict::Note);
        one(TargetFacts { agent_path: Some((Drive::Local, 260)), ..good() }, "agent-path", Verdict::Bad);
        one(TargetFacts { agent_path: Some((Drive::Substituted, 9)), ..good() }, "agent-path", Verdict::Note);
        one(TargetFacts { threads: None, ..good() }, "threads", Verdict::Unknown);
    }

    #[test]
    fn a_lower_integrity_than_injects_is_no_obstacle() {
        assert_eq!(not_ok(&TargetFacts { integrity: Some((0x1000, 0x2000)), ..good() }), []);
    }
}
