//! The results of asking a runtime.

use alloc::format;
use alloc::string::String;

use super::pipe::Fault;
use crate::record::dotnet::ipc::Refusal;

/// Counts of the results so far.
#[derive(Default)]
pub(super) struct Answers {
    /// Lists that were received completely.
    pub whole: u64,
    /// Lists that were cut off.
    pub cut: u64,
    /// Bytes of all lists.
    pub bytes: u64,
    /// Why the last request failed, if it did.
    pub trouble: Option<Trouble>,
}

/// Why the runtime could not be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The pipe does not exist.
    Absent,
    /// It was busy or silent for too long.
    Silent,
    /// Another system error.
    System(u32),
    Refused(Refusal),
}

impl From<Fault> for Trouble {
    fn from(fault: Fault) -> Trouble {
        match fault {
            Fault::Late => Trouble::Silent,
            Fault::System(code) => Trouble::System(code),
        }
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        Trouble::Refused(refusal)
    }
}

impl Trouble {
    /// Text for the user; `host_asked` says whether the names come from the host instead.
    pub(super) fn text(self, host_asked: bool) -> String {
        match self {
            Trouble::Absent if host_asked => "no diagnostics pipe (DOTNET_EnableDiagnostics=0)".into(),
            Trouble::Absent => {
                "no diagnostics pipe (DOTNET_EnableDiagnostics=0, or the runtime was not ready): \
                                methods not listed have no names"
                    .into()
            }
            Trouble::Silent => "the runtime did not answer in time".into(),
            Trouble::System(code) => format!("the diagnostics pipe failed with system error {code}"),
            Trouble::Refused(Refusal::Code(code)) => format!("the runtime refused with {code:#x}"),
            Trouble::Refused(Refusal::Garbled) => {
                "what answered on the diagnostics pipe is no .NET runtime".into()
            }
        }
    }
}
