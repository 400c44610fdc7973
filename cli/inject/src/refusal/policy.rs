//! Which of a process's mitigation policies keep agent.dll out, as a function of the policies' flag
//! words.
//!
//! Words and bits are those of winnt.h (`PROCESS_MITIGATION_*_POLICY`). Policies without a row here
//! are no obstacle: inject starts threads at exports and the agent makes no code (dynamic code),
//! starts no process (child processes), draws nothing (fonts, win32k calls) and installs no hook
//! (extension points).

use crate::refusal::Refusal;

/// The words of a process's policies. A word that the system does not know or return is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Policies {
    pub signature: u32,
    pub control_flow_guard: u32,
    pub shadow_stack: u32,
    pub image_load: u32,
    /// ProcessDynamicCodePolicy, which is no obstacle.
    pub dynamic_code: u32,
}

/// The properties of agent.dll that [`check`] needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AgentTraits {
    /// Built for shadow stacks (/CETCOMPAT).
    pub cet: bool,
    /// Built for Control Flow Guard (/guard:cf).
    pub guard_cf: bool,
    /// Its file lies on a network share.
    pub remote: bool,
    /// Its file has a low mandatory label.
    pub low_label: bool,
}

/// One policy that blocks DLLs.
struct Rule {
    word: fn(&Policies) -> u32,
    bits: u32,
    /// Whether the policy nevertheless admits this DLL.
    admits: fn(&AgentTraits) -> bool,
    cause: &'static str,
    way_out: &'static str,
}

const WITHOUT_POLICY: &str = "start the program without that policy (Get-ProcessMitigation shows who set it)";

const RULES: [Rule; 10] = [
    Rule {
        word: |policies| policies.signature,
        bits: 1 << 0,
        admits: |_| false,
        cause: "loads only DLLs signed by Microsoft (the policy MicrosoftSignedOnly), which agent.dll is not",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.signature,
        bits: 1 << 1,
        admits: |_| false,
        cause: "loads only DLLs signed by the Store (the policy StoreSignedOnly), which agent.dll is not",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.signature,
        bits: 1 << 2,
        admits: |_| false,
        cause: "loads only DLLs signed by Microsoft, the Store or a hardware vendor (the policy MitigationOptIn), which agent.dll is not",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.control_flow_guard,
        bits: 1 << 1,
        admits: |_| false,
        cause: "ends when a thread is started at an export that it has not looked up itself (Control Flow Guard's EnableExportSuppression)",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.control_flow_guard,
        bits: 1 << 2,
        admits: |library| library.guard_cf,
        cause: "loads only DLLs built for Control Flow Guard (the policy StrictMode), which agent.dll is not",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.shadow_stack,
        bits: 1 << 4,
        admits: |library| library.cet,
        cause: "has shadow stacks in strict mode (EnableUserShadowStackStrictMode), for which agent.dll is not built",
        way_out: "use an agent.dll linked with /CETCOMPAT, or start the program without that policy",
    },
    Rule {
        word: |policies| policies.shadow_stack,
        bits: 1 << 5,
        admits: |library| library.cet,
        cause: "loads only DLLs built for shadow stacks (the policy BlockNonCetBinaries), which agent.dll is not",
        way_out: "use an agent.dll linked with /CETCOMPAT, or start the program without that policy",
    },
    Rule {
        word: |policies| policies.shadow_stack,
        bits: 1 << 6,
        admits: |_| false,
        cause: "loads only DLLs with exception continuation metadata (the policy BlockNonCetBinariesNonEhcont), which agent.dll has not",
        way_out: WITHOUT_POLICY,
    },
    Rule {
        word: |policies| policies.image_load,
        bits: 1 << 0,
        admits: |library| !library.remote,
        cause: "loads no DLLs from network shares (the policy NoRemoteImages), and agent.dll lies on one",
        way_out: "copy inject.exe and agent.dll to a local disk",
    },
    Rule {
        word: |policies| policies.image_load,
        bits: 1 << 1,
        admits: |library| !library.low_label,
        cause: "loads no DLLs of low integrity (the policy NoLowMandatoryLabelImages), and agent.dll has that label",
        way_out: "put agent.dll into a folder that low-integrity programs cannot write, or run: icacls agent.dll /setintegritylevel medium",
    },
];

/// Whether a process with these policies can be recorded with this DLL; without a DLL, with any.
///
/// # Errors
/// The first policy that blocks it, by its name, and what to do about it.
pub(crate) fn check(policies: &Policies, library: Option<&AgentTraits>) -> Result<(), Refusal> {
    // The DLL is unknown, so assume the one that most policies admit.
    let best = AgentTraits { cet: true, guard_cf: true, remote: false, low_label: false };
    let library = library.unwrap_or(&best);
    match RULES.iter().find(|rule| (rule.word)(policies) & rule.bits != 0 && !(rule.admits)(library)) {
        Some(rule) => Err(Refusal::new(rule.cause, rule.way_out)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: AgentTraits = AgentTraits { cet: false, guard_cf: false, remote: false, low_label: false };
    const NONE: Policies =
        Policies { signature: 0, control_flow_guard: 0, shadow_stack: 0, image_load: 0, dynamic_code: 0 };

    /// Flag words from winnt.h with the name that the refusal must contain; empty if the policy is
    /// no obstacle.
    #[test]
    fn each_policy_is_refused_by_its_name_or_is_no_obstacle() {
        let signature = |signature| Policies { signature, ..NONE };
        let guard = |control_flow_guard| Policies { control_flow_guard, ..NONE };
        let shadow = |shadow_stack| Policies { shadow_stack, ..NONE };
        let load = |image_load| Policies { image_load, ..NONE };
        let remote = AgentTraits { remote: true, ..PLAIN };
        let low = AgentTraits { low_label: true, ..PLAIN };
        let rows = [
            (NONE, PLAIN, ""),
            (signature(0x01), PLAIN, "MicrosoftSignedOnly"),
            (signature(0x02), PLAIN, "StoreSignedOnly"),
            (signature(0x04), PLAIN, "MitigationOptIn"),
            (signature(0x08), PLAIN, ""), // AuditMicrosoftSignedOnly
            (signature(0x10), PLAIN, ""), // AuditStoreSignedOnly
            (guard(0x01), PLAIN, ""), // EnableControlFlowGuard: a DLL without it is a valid target as a whole
            (guard(0x03), PLAIN, "EnableExportSuppression"),
            (guard(0x05), PLAIN, "StrictMode"),
            (guard(0x09), PLAIN, ""), // EnableXfg: checked by callers that are built for it
            (shadow(0x01), PLAIN, ""), // EnableUserShadowStack: compatibility mode
            (shadow(0x02), PLAIN, ""), // AuditUserShadowStack
            (shadow(0x04), PLAIN, ""), // SetContextIpValidation: the agent sets no context
            (shadow(0x11), PLAIN, "EnableUserShadowStackStrictMode"),
            (shadow(0x21), PLAIN, "BlockNonCetBinaries"),
            (shadow(0x41), PLAIN, "BlockNonCetBinariesNonEhcont"),
            (shadow(0x81), PLAIN, ""), // AuditBlockNonCetBinaries
            (load(0x01), remote, "NoRemoteImages"),
            (load(0x01), PLAIN, ""),
            (load(0x02), low, "NoLowMandatoryLabelImages"),
            (load(0x02), PLAIN, ""),
            (load(0x04), remote, ""), // PreferSystem32Images
            (load(0x18), AgentTraits { remote: true, ..low }, ""), // both audited
            (Policies { dynamic_code: 0x01, ..NONE }, PLAIN, ""), // ProhibitDynamicCode
        ];
        for (policies, library, name) in rows {
            match check(&policies, Some(&library)) {
                Ok(()) => assert_eq!(name, "", "{policies:?} {library:?}"),
                Err(refusal) => {
                    let named = refusal.cause.split(['(', ')', ' ', '\'', ',']).any(|word| word == name);
                    assert!(named && !refusal.way_out.is_empty(), "'{name}': {refusal:?}");
                }
            }
        }
    }

    #[test]
    fn a_dll_that_is_built_for_a_policy_is_admitted() {
        let guarded = AgentTraits { guard_cf: true, ..PLAIN };
        assert_eq!(check(&Policies { control_flow_guard: 0x05, ..NONE }, Some(&guarded)), Ok(()));
        let cet = AgentTraits { cet: true, ..PLAIN };
        assert_eq!(check(&Policies { shadow_stack: 0x31, ..NONE }, Some(&cet)), Ok(()));
        assert!(
            check(&Policies { shadow_stack: 0x41, ..NONE }, Some(&cet)).is_err(),
            "it has no EHCONT table"
        );
    }

    #[test]
    fn without_a_dll_only_policies_that_block_every_dll_refuse() {
        assert!(check(&Policies { signature: 1, ..NONE }, None).is_err());
        assert!(check(&Policies { control_flow_guard: 2, ..NONE }, None).is_err());
        let conditional = Policies { control_flow_guard: 4, shadow_stack: 0x30, image_load: 3, ..NONE };
        assert_eq!(check(&conditional, None), Ok(()));
    }
}
