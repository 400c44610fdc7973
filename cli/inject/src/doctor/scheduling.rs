//! How the system schedules a process: what the program or a policy has set. The recorder's threads
//! share the processors; it changes none of this.

use super::Fact;

/// ProcessPowerThrottling: PROCESS_POWER_THROTTLING_STATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Throttling {
    pub control: u32,
    pub state: u32,
}

/// PROCESS_POWER_THROTTLING_EXECUTION_SPEED.
const EXECUTION_SPEED: u32 = 1;

/// Facts about one process; `None` where the system does not say.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scheduling {
    pub throttling: Option<Throttling>,
    /// The processors that it may use, and those of the system, in its group.
    pub affinity: Option<(u64, u64)>,
    /// Ids of its default CPU sets; none: all.
    pub cpu_sets: Option<Vec<u32>>,
    /// Whether the system raises its threads' priorities for a moment when waits end.
    pub boosts: Option<bool>,
}

impl Scheduling {
    /// `EcoQoS`, `full speed`, or that the system decides.
    fn power(&self) -> Option<&'static str> {
        Some(match self.throttling? {
            Throttling { control, .. } if control & EXECUTION_SPEED == 0 => "the system decides",
            Throttling { state, .. } if state & EXECUTION_SPEED != 0 => "EcoQoS",
            Throttling { .. } => "full speed",
        })
    }

    /// `4 of 8 (0xf)`.
    fn processors(&self) -> Option<String> {
        let (own, system) = self.affinity?;
        Some(format!("{} of {} ({own:#x})", own.count_ones(), system.count_ones()))
    }

    fn sets(&self) -> Option<String> {
        let sets = self.cpu_sets.as_ref()?;
        let ids: Vec<String> = sets.iter().map(u32::to_string).collect();
        Some(if ids.is_empty() { "all".to_owned() } else { ids.join(", ") })
    }

    /// Keys and values for the trace's metadata.
    pub(crate) fn metadata(&self) -> impl Iterator<Item = (String, String)> {
        let boosts = self.boosts.map(|on| if on { "on" } else { "off" }.to_owned());
        [
            ("process.power", self.power().map(str::to_owned)),
            ("process.affinity", self.processors()),
            ("process.cpu_sets", self.sets()),
            ("process.priority_boosts", boosts),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    }

    /// For the doctor.
    pub(crate) fn judge(&self, group: &'static str) -> Vec<Fact> {
        const UNKNOWN: &str = "this system does not say";
        let fact = |name: &'static str, value: Option<String>| match value {
            Some(value) => Fact::ok(group, name, value),
            None => Fact::unknown(group, name, UNKNOWN),
        };
        let few = self.affinity.is_some_and(|(own, system)| own.count_ones() < system.count_ones());
        let sets = self.cpu_sets.as_ref().is_some_and(|sets| !sets.is_empty());
        vec![
            fact("power", self.power().map(str::to_owned)).note_if(
                self.power() == Some("EcoQoS"),
                "the program runs at low clock rates and on efficient cores; the sampler opts out of that",
            ),
            fact("affinity", self.processors())
                .note_if(few, "the recorder's threads have to share these processors with the program"),
            fact("cpu-sets", self.sets())
                .note_if(sets, "the recorder's threads have to share these processors with the program"),
            match self.boosts {
                Some(on) => Fact::ok(group, "priority-boosts", on),
                None => Fact::unknown(group, "priority-boosts", UNKNOWN),
            },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn usual() -> Scheduling {
        Scheduling {
            throttling: Some(Throttling { control: 0, state: 0 }),
            affinity: Some((0xff, 0xff)),
            cpu_sets: Some(Vec::new()),
            boosts: Some(true),
        }
    }

    #[test]
    fn what_the_system_decides_by_itself_is_ok() {
        let scheduling = usual();
        assert!(scheduling.judge("target").iter().all(|fact| fact.verdict == Verdict::Ok));
        let metadata: Vec<_> = scheduling.metadata().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            metadata,
            [
                "process.power=the system decides",
                "process.affinity=8 of 8 (0xff)",
                "process.cpu_sets=all",
                "process.priority_boosts=on"
            ]
        );
    }

    #[test]
    fn a_slow_or_bound_program_is_noted() {
        let eco = Throttling { control: 1, state: 1 };
        let bound = Scheduling {
            throttling: Some(eco),
            affinity: Some((0x3, 0xff)),
            cpu_sets: Some(vec![256, 258]),
            boosts: Some(false),
        };
        let values: Vec<_> = bound.metadata().map(|(_, value)| value).collect();
        assert_eq!(values, ["EcoQoS", "2 of 8 (0x3)", "256, 258", "off"]);
        let noted: Vec<_> = bound.judge("target").into_iter().map(|fact| (fact.name, fact.verdict)).collect();
        let [power, affinity, sets, boosts] = &noted[..] else { panic!("{noted:?}") };
        for (name, verdict) in [power, affinity, sets] {
            assert_eq!(*verdict, Verdict::Note, "{name}");
        }
        assert_eq!(boosts.1, Verdict::Ok, "the program's own choice");
        let full = Scheduling { throttling: Some(Throttling { control: 1, state: 0 }), ..usual() };
        assert!(full.metadata().any(|(_, value)| value == "full speed"));
    }

    #[test]
    fn what_a_system_does_not_say_is_unknown_and_no_metadata() {
        let none = Scheduling::default();
        assert_eq!(none.metadata().count(), 0);
        assert!(none.judge("target").iter().all(|fact| fact.verdict == Verdict::Unknown));
    }
}
