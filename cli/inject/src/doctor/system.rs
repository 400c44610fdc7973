//! Windows, processors, virtualisation, code integrity, security software.

use super::{Fact, Verdict};
use serde_json::Value;

const GROUP: &str = "system";

/// First build of Windows 10 that the recorder supports: 1607, Server 2016.
const FIRST_BUILD: u32 = 14_393;

/// Facts about the system; `None` where the system does not give them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SystemFacts {
    /// Major, minor, build, update build revision.
    pub version: Option<(u32, u32, u32, Option<u32>)>,
    /// ProductName and DisplayVersion of the registry.
    pub product: Option<String>,
    /// Wine's version, under Wine.
    pub wine: Option<String>,
    /// Architectures of inject and of the processor: `x64`, `arm64` or `x86`.
    pub machine: Option<(String, String)>,
    /// Logical processors that the process may use.
    pub processors: u32,
    /// Efficiency class of each logical processor; more than one distinct value is a hybrid
    /// processor.
    pub efficiency: Option<Vec<u8>>,
    /// The hypervisor that CPUID names, if it names one.
    pub hypervisor: Option<String>,
    /// Manufacturer and model from the firmware.
    pub model: Option<String>,
    /// SYSTEM_CODEINTEGRITY_INFORMATION.CodeIntegrityOptions.
    pub code_integrity: Option<u32>,
    /// The first byte of SYSTEM_ISOLATED_USER_MODE_INFORMATION.
    pub isolated_user_mode: Option<u8>,
    /// VerifiedAndReputablePolicyState of the registry.
    pub smart_app_control: Option<u32>,
    /// Services that register as file system filters of the group "FSFilter Anti-Virus" or
    /// "FSFilter Activity Monitor".
    pub security_filters: Option<Vec<String>>,
    /// DLLs in inject's own process that are neither Windows' nor inject's.
    pub foreign_modules: Option<Vec<String>>,
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge(system: &SystemFacts) -> Vec<Fact> {
    let mut facts = vec![version(system), text("product", system.product.as_deref())];
    if let Some(wine) = &system.wine {
        let why = "Wine: times, priorities and cycle counts are not those of a real Windows";
        facts.push(Fact::ok(GROUP, "wine", wine.as_str()).but(Verdict::Note, why));
    }
    facts.push(machine(system));
    facts.push(processors(system));
    facts.push(efficiency(system));
    facts.push(text("model", system.model.as_deref()));
    facts.push(Fact::ok(GROUP, "hypervisor", system.hypervisor.clone()).note_if(
        system.hypervisor.is_some(),
        "a hypervisor runs (a virtual machine, or VBS on the bare machine): suspensions cost more",
    ));
    facts.push(virtualisation(system));
    facts.extend(code_integrity(system));
    facts.push(smart_app_control(system));
    facts.push(list(
        "security-filters",
        system.security_filters.as_ref(),
        "such software may block or slow down inject and agent.dll",
    ));
    facts.push(list(
        "foreign-modules",
        system.foreign_modules.as_ref(),
        "other software loads DLLs into inject; these may hook system calls",
    ));
    facts
}

fn text(name: &str, value: Option<&str>) -> Fact {
    match value {
        Some(value) => Fact::ok(GROUP, name, value),
        None => Fact::unknown(GROUP, name, "the registry does not say"),
    }
}

fn list(name: &str, all: Option<&Vec<String>>, why: &str) -> Fact {
    match all {
        Some(all) => Fact::ok(GROUP, name, all.clone()).note_if(!all.is_empty(), why),
        None => Fact::unknown(GROUP, name, "could not be listed"),
    }
}

fn version(system: &SystemFacts) -> Fact {
    let Some((major, minor, build, revision)) = system.version else {
        return Fact::unknown(GROUP, "build", "RtlGetVersion is missing");
    };
    let revision = revision.map_or(String::new(), |revision| format!(".{revision}"));
    let fact = Fact::ok(GROUP, "build", format!("{major}.{minor}.{build}{revision}"));
    fact.note_if(build < FIRST_BUILD, "older than Windows 10 1607: not a supported system")
}

fn machine(system: &SystemFacts) -> Fact {
    let Some((own, native)) = &system.machine else {
        return Fact::unknown(GROUP, "machine", "the system does not say");
    };
    let fact = Fact::ok(GROUP, "machine", format!("{own} on {native}"));
    match (own.as_str(), native.as_str()) {
        (own, native) if own == native => fact,
        ("x86", "x64") => fact.but(Verdict::Note, "this inject is for 32-bit programs"),
        _ => fact.but(
            Verdict::Bad,
            "inject runs emulated: use the build of stk for this processor to record native programs",
        ),
    }
}

fn processors(system: &SystemFacts) -> Fact {
    let fact = Fact::ok(GROUP, "processors", system.processors);
    match system.processors {
        0 => fact.but(Verdict::Unknown, "the system does not say"),
        1 => fact.but(
            Verdict::Note,
            "one processor: the recorder and the program take turns, so expect a low rate",
        ),
        _ => fact,
    }
}

fn efficiency(system: &SystemFacts) -> Fact {
    let Some(classes) = &system.efficiency else {
        return Fact::unknown(GROUP, "hybrid", "GetSystemCpuSetInformation is missing or failed");
    };
    let mut distinct = classes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let counts: Vec<String> = distinct
        .iter()
        .map(|class| format!("{} of class {class}", classes.iter().filter(|other| *other == class).count()))
        .collect();
    let fact = Fact::ok(GROUP, "hybrid", counts.join(", "));
    fact.note_if(distinct.len() > 1, "a hybrid processor: cycle counts of different cores are not comparable")
}

fn virtualisation(system: &SystemFacts) -> Fact {
    let Some(flags) = system.isolated_user_mode else {
        return Fact::unknown(GROUP, "vbs", "SystemIsolatedUserModeInformation is not available");
    };
    let on = |bit: u8| flags >> bit & 1 != 0;
    let state = match (on(0), on(1), on(2)) {
        (false, false, _) => "off",
        (_, true, true) => "VBS with memory integrity (HVCI), strict",
        (_, true, false) => "VBS with memory integrity (HVCI)",
        (true, false, _) => "VBS without memory integrity",
    };
    Fact::ok(GROUP, "vbs", state)
}

fn code_integrity(system: &SystemFacts) -> Vec<Fact> {
    const USER_MODE: u32 = 4;
    const USER_MODE_AUDIT: u32 = 8;
    const TEST_SIGNING: u32 = 2;
    let Some(options) = system.code_integrity else {
        return vec![Fact::unknown(
            GROUP,
            "code-integrity",
            "SystemCodeIntegrityInformation is not available",
        )];
    };
    let fact = Fact::ok(GROUP, "code-integrity", format!("{options:#x}"));
    vec![match options & (USER_MODE | USER_MODE_AUDIT | TEST_SIGNING) {
        on if on & USER_MODE != 0 && on & USER_MODE_AUDIT == 0 => fact.but(
            Verdict::Note,
            "a code integrity policy for programs is enforced: it may block inject.exe and agent.dll \
             (event log Microsoft-Windows-CodeIntegrity/Operational, events 3033 and 3077)",
        ),
        on if on & USER_MODE != 0 => {
            fact.but(Verdict::Note, "a code integrity policy for programs is audited, not enforced")
        }
        on if on & TEST_SIGNING != 0 => fact.but(Verdict::Note, "test signing is on"),
        _ => fact,
    }]
}

fn smart_app_control(system: &SystemFacts) -> Fact {
    let name = "smart-app-control";
    match system.smart_app_control {
        None => Fact::ok(GROUP, name, Value::String("absent".to_owned())),
        Some(0) => Fact::ok(GROUP, name, "off"),
        Some(1) => Fact::ok(GROUP, name, "on").but(
            Verdict::Note,
            "Smart App Control blocks unsigned DLLs that it does not know, agent.dll included, in every program",
        ),
        Some(2) => Fact::ok(GROUP, name, "evaluation")
            .but(Verdict::Note, "Smart App Control may turn itself on; it then blocks unsigned DLLs that it does not know"),
        Some(other) => Fact::ok(GROUP, name, other).but(Verdict::Unknown, "not a state that is documented"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(system: &SystemFacts, name: &str) -> Fact {
        judge(system).into_iter().find(|fact| fact.name == name).unwrap_or_else(|| panic!("no {name}"))
    }

    fn verdict(system: &SystemFacts, name: &str) -> Verdict {
        fact(system, name).verdict
    }

    #[test]
    fn facts_that_the_system_does_not_give_are_unknown() {
        let nothing = SystemFacts::default();
        for name in [
            "build",
            "product",
            "machine",
            "processors",
            "hybrid",
            "vbs",
            "code-integrity",
            "security-filters",
        ] {
            assert_eq!(verdict(&nothing, name), Verdict::Unknown, "{name}");
        }
    }

    #[test]
    fn the_build_is_written_with_its_revision_and_old_ones_are_noted() {
        let new = SystemFacts { version: Some((10, 0, 26_100, Some(2314))), ..SystemFacts::default() };
        assert_eq!(
            (fact(&new, "build").value, verdict(&new, "build")),
            ("10.0.26100.2314".into(), Verdict::Ok)
        );
        let old = SystemFacts { version: Some((6, 3, 9600, None)), ..SystemFacts::default() };
        assert_eq!((fact(&old, "build").value, verdict(&old, "build")), ("6.3.9600".into(), Verdict::Note));
    }

    #[test]
    fn an_emulated_inject_is_bad_and_a_32_bit_one_is_noted() {
        for (own, native, expected) in [
            ("x64", "x64", Verdict::Ok),
            ("arm64", "arm64", Verdict::Ok),
            ("x86", "x64", Verdict::Note),
            ("x64", "arm64", Verdict::Bad),
            ("x86", "arm64", Verdict::Bad),
        ] {
            let machine = Some((own.to_owned(), native.to_owned()));
            assert_eq!(
                verdict(&SystemFacts { machine, ..SystemFacts::default() }, "machine"),
                expected,
                "{own} on {native}"
            );
        }
    }

    #[test]
    fn a_hybrid_processor_is_recognised_by_its_efficiency_classes() {
        let hybrid = SystemFacts { efficiency: Some(vec![1, 0, 0, 1, 0]), ..SystemFacts::default() };
        assert_eq!(fact(&hybrid, "hybrid").value, "3 of class 0, 2 of class 1");
        assert_eq!(verdict(&hybrid, "hybrid"), Verdict::Note);
        let plain = SystemFacts { efficiency: Some(vec![0; 4]), ..SystemFacts::default() };
        assert_eq!(verdict(&plain, "hybrid"), Verdict::Ok);
    }

    #[test]
    fn memory_integrity_is_distinguished_from_vbs_alone() {
        let state = |flags| {
            fact(&SystemFacts { isolated_user_mode: Some(flags), ..SystemFacts::default() }, "vbs").value
        };
        assert_eq!(state(0), "off");
        assert_eq!(state(0b001), "VBS without memory integrity");
        assert_eq!(state(0b011), "VBS with memory integrity (HVCI)");
        assert_eq!(state(0b111), "VBS with memory integrity (HVCI), strict");
    }

    #[test]
    fn a_policy_for_programs_is_noted_with_its_events() {
        let with = |options| {
            fact(&SystemFacts { code_integrity: Some(options), ..SystemFacts::default() }, "code-integrity")
        };
        assert_eq!(with(0x1).verdict, Verdict::Ok);
        let enforced = with(0x5);
        assert_eq!(enforced.verdict, Verdict::Note);
        assert!(enforced.explanation.expect("a reason").contains("3077"));
        assert!(with(0xd).explanation.expect("a reason").contains("audited"));
    }

    #[test]
    fn smart_app_control_that_is_on_is_noted() {
        let with = |state| {
            verdict(&SystemFacts { smart_app_control: state, ..SystemFacts::default() }, "smart-app-control")
        };
        assert_eq!([None, Some(0)].map(with), [Verdict::Ok; 2]);
        assert_eq!([Some(1), Some(2)].map(with), [Verdict::Note; 2]);
        assert_eq!(with(Some(9)), Verdict::Unknown);
    }
}
