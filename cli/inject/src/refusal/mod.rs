//! Decides from a process's properties why it cannot be recorded, and makes the message. Also
//! checks whether the architectures of process, processor, DLL and this inject fit.

pub(crate) mod blocked;
pub(crate) mod policy;

use crate::failure::Failure;
use crate::{companion, image};
use object::pe::{IMAGE_FILE_MACHINE_AMD64, IMAGE_FILE_MACHINE_ARM64};

/// Why a process cannot be recorded, and what to do about it: two clauses that follow the process's
/// name in a sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    /// `runs as another user (LAB\anna)`.
    pub cause: String,
    /// `run inject as that user or as administrator`.
    pub way_out: String,
}

impl Refusal {
    pub(crate) fn new(cause: impl Into<String>, way_out: impl Into<String>) -> Refusal {
        Refusal { cause: cause.into(), way_out: way_out.into() }
    }

    /// The sentence about `process`.
    pub(crate) fn failure(&self, process: &str) -> Failure {
        Failure::target(format!("{process} {}: {}", self.cause, self.way_out))
    }
}

/// The machine types of a process and of its processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Machine {
    /// `IMAGE_FILE_MACHINE_*` of the process.
    pub process: u16,
    /// `IMAGE_FILE_MACHINE_*` of the processor.
    pub native: u16,
}

/// Whether the architectures of a process, a DLL (its file name and machine) and an inject built
/// for `own` fit.
///
/// # Errors
/// What does not fit.
pub(crate) fn architecture(own: u16, machine: Machine, dll: Option<(&str, u16)>) -> Result<(), Refusal> {
    let process = image::machine_name(machine.process);
    if machine.native == IMAGE_FILE_MACHINE_ARM64 && machine.process != IMAGE_FILE_MACHINE_ARM64 {
        let cause = match machine.process {
            IMAGE_FILE_MACHINE_AMD64 => {
                "is an x64 or ARM64EC process on an ARM64 processor, whose stacks mix both kinds of code"
                    .to_owned()
            }
            _ => format!(
                "is an {process} process that an ARM64 processor emulates, whose registers are the emulator's"
            ),
        };
        return Err(Refusal::new(cause, "this is not supported: record a native ARM64 build of the program"));
    }
    if machine.process != own {
        let way_out = match companion::inject_for(own, machine.process) {
            Some(name) => format!("run {name} of the same release instead, with the same arguments"),
            None => format!("use the inject and agent of stk's {process} build"),
        };
        return Err(Refusal::new(
            format!("is {process}, but this inject is {}", image::machine_name(own)),
            way_out,
        ));
    }
    match dll {
        Some((name, dll)) if dll != machine.process => Err(Refusal::new(
            format!("is {process}, but {name} is {}", image::machine_name(dll)),
            format!("use the inject and agent of stk's {process} build"),
        )),
        _ => Ok(()),
    }
}

/// The access token of a process compared with this inject's.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TokenComparison {
    /// It is a protected process (PP or PPL).
    pub protected: bool,
    /// Both run as the same user; `None` if its token cannot be read, which is so for another
    /// user's process.
    pub same_user: Option<bool>,
    /// Its user, `DOMAIN\\name`.
    pub user: Option<String>,
    /// Its integrity level (0x2000 medium, 0x3000 elevated, 0x4000 system); 0 if unknown.
    pub integrity: u32,
    /// This inject's integrity level.
    pub own_integrity: u32,
    /// This inject may open any process except protected ones (it has SeDebugPrivilege).
    pub may_debug: bool,
}

/// Whether this inject may open the process.
///
/// # Errors
/// Why not.
pub(crate) fn standing(facts: &TokenComparison) -> Result<(), Refusal> {
    if facts.protected {
        return Err(Refusal::new(
            "is a protected process: Windows lets no program into it, not even an administrator's",
            "it cannot be recorded",
        ));
    }
    if facts.may_debug {
        return Ok(());
    }
    if facts.same_user != Some(true) {
        let user = match &facts.user {
            Some(name) => format!("another user ({name})"),
            None => "another user".to_owned(),
        };
        return Err(Refusal::new(format!("runs as {user}"), "run inject as that user or as administrator"));
    }
    if facts.integrity > facts.own_integrity {
        return Err(Refusal::new("runs elevated", "run inject as administrator"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const X64: u16 = 0x8664;
    const ARM64: u16 = 0xaa64;
    const X86: u16 = 0x14c;

    fn says(own: u16, process: u16, native: u16, dll: Option<(&str, u16)>) -> String {
        let refusal = architecture(own, Machine { process, native }, dll).expect_err("it is refused");
        refusal.failure("app.exe (pid 7)").to_string()
    }

    #[test]
    fn matching_architectures_are_not_refused() {
        for own in [X64, ARM64] {
            assert_eq!(
                architecture(own, Machine { process: own, native: own }, Some(("agent.dll", own))),
                Ok(())
            );
        }
        // A WOW64 process and the inject for 32-bit processes.
        assert_eq!(
            architecture(X86, Machine { process: X86, native: X64 }, Some(("agent32.dll", X86))),
            Ok(())
        );
    }

    #[test]
    fn every_inject_refuses_emulated_x64_and_arm64ec_by_name() {
        for own in [X64, ARM64, X86] {
            let text = says(own, X64, ARM64, None);
            assert!(text.contains("x64 or ARM64EC process on an ARM64 processor"), "{text}");
            assert!(text.contains("record a native ARM64 build"), "{text}");
            let text = says(own, X86, ARM64, None);
            assert!(text.contains("x86 process that an ARM64 processor emulates"), "{text}");
        }
    }

    #[test]
    fn the_refusal_names_the_inject_that_fits_the_process() {
        let text = says(X64, X86, X64, None);
        assert!(text.contains("is x86, but this inject is x64"), "{text}");
        assert!(
            text.contains("run inject32.exe of the same release instead, with the same arguments"),
            "{text}"
        );
        let text = says(X86, X64, X64, None);
        assert!(text.contains("run inject.exe of the same release"), "{text}");
    }

    #[test]
    fn a_dll_of_another_architecture_is_named() {
        let text = says(X64, X64, X64, Some(("dll32.dll", X86)));
        assert!(text.contains("is x64, but dll32.dll is x86"), "{text}");
    }

    #[test]
    fn the_tokens_decide_whether_inject_may_open_a_process() {
        let own = TokenComparison {
            same_user: Some(true),
            user: Some("LAB\\anna".to_owned()),
            integrity: 0x2000,
            own_integrity: 0x2000,
            ..TokenComparison::default()
        };
        let other =
            TokenComparison { same_user: Some(false), user: Some("LAB\\bert".to_owned()), ..own.clone() };
        let unknown = TokenComparison { same_user: None, user: None, integrity: 0, ..own.clone() };
        let elevated = TokenComparison { integrity: 0x3000, ..own.clone() };
        let admin = |facts: &TokenComparison| TokenComparison {
            may_debug: true,
            own_integrity: 0x3000,
            ..facts.clone()
        };
        let rows = [
            (own.clone(), ""),
            (other.clone(), "runs as another user (LAB\\bert)"),
            (unknown.clone(), "runs as another user"),
            (elevated.clone(), "runs elevated"),
            (admin(&other), ""),
            (admin(&unknown), ""),
            (admin(&elevated), ""),
            (TokenComparison { protected: true, ..admin(&own) }, "is a protected process"),
        ];
        for (facts, text) in rows {
            match standing(&facts) {
                Ok(()) => assert_eq!(text, "", "{facts:?}"),
                Err(refusal) => {
                    assert!(!text.is_empty() && refusal.cause.starts_with(text), "{facts:?}: {refusal:?}");
                }
            }
        }
    }
}
