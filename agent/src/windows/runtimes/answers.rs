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
    pub error: Option<AskError>,
}

/// Why the runtime could not be queried.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AskError {
    /// The pipe does not exist.
    Absent,
    /// It was busy or silent for too long.
    Silent,
    /// Another system error.
    System(u32),
    /// The process with this id made the pipe in the runtime's place.
    Foreign(u32),
    Refused(Refusal),
}

impl From<Fault> for AskError {
    fn from(fault: Fault) -> AskError {
        match fault {
            Fault::Late => AskError::Silent,
            Fault::System(code) => AskError::System(code),
            Fault::Foreign(server) => AskError::Foreign(server),
        }
    }
}

impl From<Refusal> for AskError {
    fn from(refusal: Refusal) -> AskError {
        AskError::Refused(refusal)
    }
}

impl AskError {
    /// Text for the user; `host_asked` says whether the names come from the host instead.
    pub(super) fn text(self, host_asked: bool) -> String {
        match self {
            AskError::Absent if host_asked => "no diagnostics pipe (DOTNET_EnableDiagnostics=0)".into(),
            AskError::Absent => {
                "no diagnostics pipe (DOTNET_EnableDiagnostics=0, or the runtime was not ready): \
                                methods not listed have no names"
                    .into()
            }
            AskError::Silent => "the runtime did not answer in time".into(),
            AskError::System(code) => format!("the diagnostics pipe failed with system error {code}"),
            AskError::Foreign(server) => {
                format!("the diagnostics pipe is not the runtime's: process {server} made it")
            }
            AskError::Refused(Refusal::Code(code)) => format!("the runtime refused with {code:#x}"),
            AskError::Refused(Refusal::Garbled) => {
                "what answered on the diagnostics pipe is no .NET runtime".into()
            }
        }
    }
}
