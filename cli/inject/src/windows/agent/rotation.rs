//! What the injects of a process report to each other, in the agent's status, of a recording that
//! continues in other files.

use super::{Agent, STOP_HOSTS_MS};
use crate::failure::Failure;
use crate::rotate::{FilePlace, FileTotals};
use crate::windows::process::Process;
use std::mem::offset_of;
use std::time::{Duration, Instant};
use stk_schema::control::{AgentStatus, ROTATION_CONTINUES, ROTATION_NONE, ROTATION_STOP, STATE_STOPPED};

/// How long a recording may be between two files.
const BETWEEN_FILES: Duration = Duration::from_secs(10);

/// Whether a recording is between two files: it has ended, and a host continues it.
pub(super) fn is_between_files(status: &AgentStatus) -> bool {
    status.rotation == ROTATION_CONTINUES && status.state == STATE_STOPPED
}

/// Whether the host of a recording in several files has still to continue it, or to end it.
fn is_unsettled(status: &AgentStatus) -> bool {
    status.rotation != ROTATION_NONE && status.state == STATE_STOPPED
}

impl Agent {
    /// [`Agent::status`] of a recording that is not between two files. Waits for the next file, but
    /// not for that of an inject that has gone.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn settled_status(&self, process: &Process) -> Result<AgentStatus, Failure> {
        let begun = Instant::now();
        loop {
            let status = self.status(process)?;
            if !is_unsettled(&status) || begun.elapsed() > BETWEEN_FILES {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the inject that continues in other files has ended the recording.
    ///
    /// # Errors
    /// A sentence for the user.
    pub(crate) fn await_end(&self, process: &Process, timeout_ms: u32) -> Result<(), Failure> {
        let begun = Instant::now();
        let patience = Duration::from_millis(timeout_ms.into());
        while begun.elapsed() < patience {
            match self.status(process) {
                Ok(status) if status.rotation == ROTATION_NONE => return Ok(()),
                Ok(_) => {}
                // With the agent, or the process, the recording has ended.
                Err(_) if process.has_ended() || !self.is_loaded(process) => return Ok(()),
                Err(failure) => return Err(failure),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // It was ended itself; nobody continues the recording.
        self.set_rotation(process, ROTATION_NONE);
        Err(Failure::failed(format!(
            "the inject that records {process} did not end the recording within {} s",
            timeout_ms.div_ceil(1000)
        )))
    }

    /// Reports to the other hosts whether the recording continues in another file: `ROTATION_*`.
    /// They do without it if the process has ended.
    pub(crate) fn set_rotation(&self, process: &Process, rotation: u32) {
        const FIELD: usize = offset_of!(AgentStatus, rotation);
        // The status of older agents ends before the field.
        let differs = self
            .status(process)
            .is_ok_and(|status| status.size as usize >= FIELD + 4 && status.rotation != rotation);
        if let Some(block) = self.exports.status_block.filter(|_| differs) {
            process.write(self.address(block) + FIELD as u64, &rotation.to_le_bytes());
        }
    }

    /// Has the host of a recording in several files, if there is one, end it. False without one.
    pub(crate) fn end_rotation(&self, process: &Process) -> bool {
        // Else the host could end the recording between reading and writing, and nobody would ever
        // take the wish back.
        let _hosts = self.take_hosts(process, STOP_HOSTS_MS);
        let rotates = self.status(process).is_ok_and(|status| status.rotation != ROTATION_NONE);
        if rotates {
            self.set_rotation(process, ROTATION_STOP);
        }
        rotates
    }

    /// Reports to the other hosts that the recording will not continue in another file, whatever
    /// they have reported to this one.
    pub(crate) fn rotation_ended(&self, process: &Process) {
        let _hosts = self.take_hosts(process, STOP_HOSTS_MS);
        self.set_rotation(process, ROTATION_NONE);
    }

    /// Reports to the other hosts which file of a recording comes next, and what the files before
    /// it hold. Called while none is being written.
    pub(crate) fn set_file(&self, process: &Process, place: &FilePlace) {
        const FIELDS: usize = offset_of!(AgentStatus, file_index);
        let mut bytes = [place.index.to_le_bytes(), place.number.to_le_bytes()].concat();
        let FileTotals { samples, dropped, bytes: size, elapsed_ms } = place.earlier;
        bytes.extend([samples, dropped, size, elapsed_ms].iter().flat_map(|value| value.to_le_bytes()));
        // The status of older agents ends before these fields.
        let known = self.status(process).is_ok_and(|status| status.size as usize >= FIELDS + bytes.len());
        if let Some(block) = self.exports.status_block.filter(|_| known) {
            process.write(self.address(block) + FIELDS as u64, &bytes);
        }
    }
}
