//! The process's CPU time, for the trigger `cpu`.

use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessTimes};

use stk_schema::Ticks;

use super::{TablesRecorder, marks};
use crate::windows::system::api::ticks;

impl TablesRecorder {
    /// Leaves a mark when the process begins to use more CPU time than the trigger waits for.
    pub(super) fn look_at_cpu(&mut self) {
        let now = ticks();
        let frequency = self.api.frequency;
        let Some(trigger) = self.cpu_trigger.as_mut().filter(|trigger| trigger.is_due(now)) else { return };
        let Some(cpu) = process_cpu(frequency) else { return };
        if let Some(percent) = trigger.look(now, cpu) {
            let limit = trigger.percent();
            let text = alloc::format!("trigger cpu>{limit}: {percent} % of a processor");
            marks::leave_of_process(now, &text);
        }
    }
}

/// CPU time of this process so far.
fn process_cpu(frequency: u64) -> Option<Ticks> {
    let mut times = [0u64; 4];
    let [created, exited, kernel, user] = times.each_mut().map(|time| core::ptr::from_mut(time).cast());
    // SAFETY: the process's pseudo handle; four FILETIMEs, each the size of a u64 with no stricter
    // alignment.
    let known = unsafe { GetProcessTimes(GetCurrentProcess(), created, exited, kernel, user) } != 0;
    let units = times[2].wrapping_add(times[3]);
    known.then(|| Ticks((u128::from(units) * u128::from(frequency) / 10_000_000) as u64))
}
