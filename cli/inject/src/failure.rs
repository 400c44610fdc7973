//! Errors with their exit codes.

use std::fmt;

/// Exit code: success.
pub(crate) const OK: i32 = 0;
/// Exit code: it failed.
pub(crate) const FAILED: i32 = 1;
/// Exit code: the command line makes no sense.
pub(crate) const USAGE: i32 = 2;
/// Exit code: the target was not found, is denied, or has the wrong architecture.
pub(crate) const TARGET: i32 = 3;
/// Exit code: the recording, or inject itself, came to a standstill.
pub(crate) const STALLED: i32 = 8;
/// Exit code: a child process was seen and not recorded to its end.
pub(crate) const CHILD_MISSED: i32 = 9;
/// Exit code: interrupted by Ctrl-C, the trace is finalised.
pub(crate) const INTERRUPTED: i32 = 130;
/// Exit code in launch mode: inject itself failed.
pub(crate) const LAUNCH_FAILED: i32 = 125;
/// Exit code in launch mode: the program was found but could not be started.
pub(crate) const LAUNCH_DENIED: i32 = 126;
/// Exit code in launch mode: the program was not found.
pub(crate) const LAUNCH_NOT_FOUND: i32 = 127;

/// Why inject fails: one sentence for the user that also says what to do, and the exit code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    code: i32,
    text: String,
}

impl Failure {
    /// A failure that ends in exit code 1.
    pub(crate) fn failed(text: impl Into<String>) -> Failure {
        Failure { code: FAILED, text: text.into() }
    }

    /// A failure of the command line (exit code 2).
    pub(crate) fn usage(text: impl Into<String>) -> Failure {
        Failure { code: USAGE, text: text.into() }
    }

    /// The target is missing, denied or of the wrong kind (exit code 3).
    pub(crate) fn target(text: impl Into<String>) -> Failure {
        Failure { code: TARGET, text: text.into() }
    }

    /// A failure with an exit code of its own.
    pub(crate) fn with_code(code: i32, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn code(&self) -> i32 {
        self.code
    }

    /// The same failure in launch mode, where codes below 125 belong to the program.
    #[must_use]
    pub(crate) fn in_launch(self) -> Failure {
        match self.code {
            LAUNCH_FAILED..=LAUNCH_NOT_FOUND | INTERRUPTED => self,
            _ => Failure { code: LAUNCH_FAILED, ..self },
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_launch_mode_codes_below_125_are_the_programs_own() {
        assert_eq!(Failure::failed("x").in_launch().code(), 125);
        assert_eq!(Failure::target("x").in_launch().code(), 125);
        assert_eq!(Failure::with_code(LAUNCH_NOT_FOUND, "x").in_launch().code(), 127);
        assert_eq!(Failure::with_code(LAUNCH_DENIED, "x").in_launch().code(), 126);
    }
}
