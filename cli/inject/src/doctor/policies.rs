//! Mitigation policies as the words that GetProcessMitigationPolicy returns.

use super::{Fact, Verdict};

/// PROCESS_MITIGATION_POLICY values with their names in Windows' headers. The missing ones are not
/// words of flags.
pub(crate) const POLICIES: [(i32, &str); 17] = [
    (0, "DEP"),
    (1, "ASLR"),
    (2, "DynamicCode"),
    (3, "StrictHandleCheck"),
    (4, "SystemCallDisable"),
    (6, "ExtensionPointDisable"),
    (7, "ControlFlowGuard"),
    (8, "Signature"),
    (9, "FontDisable"),
    (10, "ImageLoad"),
    (12, "PayloadRestriction"),
    (13, "ChildProcess"),
    (14, "SideChannelIsolation"),
    (15, "UserShadowStack"),
    (16, "RedirectionTrust"),
    (17, "UserPointerAuth"),
    (18, "SEHOP"),
];

/// A policy's number and its word; `None` where the system does not know the policy.
pub(crate) type Word = (i32, Option<u32>);

/// The words as facts of `group`.
pub(crate) fn judge(group: &'static str, words: &[Word]) -> Vec<Fact> {
    let named =
        |number: i32| POLICIES.iter().find(|(known, _)| *known == number).map_or("?", |(_, name)| name);
    let word = |(number, word): &Word| {
        let name = format!("policy {}", named(*number));
        match word {
            Some(word) => Fact::ok(group, name, format!("{word:#x}"))
                .note_if(obstacle(*number, *word), "this policy may keep agent.dll out of the process"),
            None => Fact { verdict: Verdict::Unknown, ..Fact::ok(group, name, serde_json::Value::Null) },
        }
    };
    words.iter().map(word).collect()
}

/// Whether a policy's word has a bit that can block an unsigned DLL without CFG and CET marks.
fn obstacle(policy: i32, word: u32) -> bool {
    let bits = match policy {
        7 => 1 << 1 | 1 << 2,  // EnableExportSuppression, StrictMode
        8 => 1 | 1 << 1,       // MicrosoftSignedOnly, StoreSignedOnly
        10 => 1 | 1 << 1,      // NoRemoteImages, NoLowMandatoryLabelImages
        15 => 1 << 5 | 1 << 6, // BlockNonCetBinaries, BlockNonCetBinariesNonEhcont
        _ => 0,
    };
    word & bits != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policies_that_can_block_a_dll_are_noted() {
        let verdict = |policy, word| judge("own", &[(policy, Some(word))])[0].verdict;
        for (policy, word, expected) in [
            (2, 1, Verdict::Ok),
            (7, 0b001, Verdict::Ok),
            (7, 0b010, Verdict::Note),
            (7, 0b100, Verdict::Note),
            (8, 0b001, Verdict::Note),
            (8, 0b010, Verdict::Note),
            (8, 0b1000, Verdict::Ok),
            (10, 0b001, Verdict::Note),
            (10, 0b010, Verdict::Note),
            (10, 0b100, Verdict::Ok),
            (15, 1, Verdict::Ok),
            (15, 1 << 5, Verdict::Note),
            (15, 1 << 6, Verdict::Note),
        ] {
            assert_eq!(verdict(policy, word), expected, "policy {policy}, word {word:#b}");
        }
    }

    #[test]
    fn a_policy_that_the_system_does_not_know_is_unknown() {
        let facts = judge("own", &[(15, None)]);
        assert_eq!((facts[0].name.as_str(), facts[0].verdict), ("policy UserShadowStack", Verdict::Unknown));
    }
}
