//! The mutex by which the injects of a process agree on who starts a recording, or has the agent
//! leave.

use super::Agent;
use crate::failure::Failure;
use crate::windows::mutex::{self, OwnedMutex};
use crate::windows::process::Process;
use std::mem::offset_of;
use stk_schema::bytes::u64_in;
use stk_schema::requests::RequestMailbox;

impl Agent {
    /// Takes its mutex of hosts, which keeps other injects from having the agent leave, and from
    /// starting a recording. `None` if the agent has none yet, or has been unmapped meanwhile: the
    /// caller looks whether it [is loaded](Agent::is_loaded) once it has the mutex.
    ///
    /// # Errors
    /// A sentence for the user: another inject has it for longer than `patience_ms`.
    pub(crate) fn take_hosts(
        &self,
        process: &Process,
        patience_ms: u32,
    ) -> Result<Option<OwnedMutex>, Failure> {
        let address = self.status(process).map(|status| status.requests).unwrap_or(0);
        let Some(head) = mutex::mailbox(process, address) else { return Ok(None) };
        let Ok(mutex) = mutex::duplicate(process, u64_in(&head, offset_of!(RequestMailbox, lock))) else {
            return Ok(None);
        };
        OwnedMutex::take(mutex, patience_ms).map(Some).map_err(|_| {
            Failure::failed(format!(
                "another inject has been asking the agent in {process} for {} s: try again when it is done",
                patience_ms.div_ceil(1000)
            ))
        })
    }
}
