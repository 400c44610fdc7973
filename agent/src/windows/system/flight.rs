//! Where the trace goes: a file, or a section that the guard process holds too.

use core::sync::atomic::{AtomicU64, Ordering};

use stk_schema::Ticks;
use stk_schema::event::EndReason;
use stk_schema::flight::{FlightHeader, RING_AT};
use windows_sys::Win32::Foundation::{GetLastError, HANDLE};
use windows_sys::Win32::System::Memory::{
    FILE_MAP_READ, FILE_MAP_WRITE, MEMORY_BASIC_INFORMATION, MEMORY_MAPPED_VIEW_ADDRESS, MapViewOfFile,
    UnmapViewOfFile, VirtualQuery,
};

use super::files::OutputFile;
use crate::record::flight::FlightRing;
use crate::record::patience::Sleeper as _;
use crate::record::writer::Output;
use crate::windows::system::api::{api, ticks};
use crate::windows::system::clock::SystemClock;

/// Milliseconds that the writer waits for the guard process before it overwrites what that has not
/// read.
const PATIENCE_MS: u32 = 5_000;
/// ERROR_INVALID_DATA, for a section whose header does not fit.
const INVALID_DATA: u32 = 13;

/// Destination of the trace.
pub(crate) enum TraceOutput {
    File(OutputFile),
    Flight(FlightSection),
}

/// The mapped section; left when dropped.
pub(crate) struct FlightSection {
    ring: FlightRing,
    view: MEMORY_MAPPED_VIEW_ADDRESS,
    /// Closes the handle.
    _section: OutputFile,
}

// SAFETY: an address and a handle are valid on every thread of the process.
unsafe impl Send for FlightSection {}

impl TraceOutput {
    /// The section behind this handle, mapped. `pause` is as for [`FlightRing::new`].
    ///
    /// # Errors
    /// The system's error code.
    pub(crate) fn map(section: OutputFile, pause: fn(u32) -> bool) -> Result<TraceOutput, u32> {
        // SAFETY: a handle of a section, or of something else, which the call refuses.
        let view = unsafe { MapViewOfFile(section.0, FILE_MAP_READ | FILE_MAP_WRITE, 0, 0, 0) };
        if view.Value.is_null() {
            // SAFETY: no preconditions.
            return Err(unsafe { GetLastError() });
        }
        let header = view.Value.cast::<FlightHeader>();
        // SAFETY: a view has at least a page, which holds the header; it is mapped to the end.
        let fits = unsafe { (*header).fits(view_size(view.Value)) };
        if !fits {
            // SAFETY: the view was mapped above, and nothing refers to it.
            unsafe { UnmapViewOfFile(view) };
            return Err(INVALID_DATA);
        }
        // SAFETY: the view stays until the section is dropped, with the ring; `fits` has compared
        // its size.
        let ring = unsafe { FlightRing::new(header, view.Value.cast::<u8>().add(RING_AT), pause) };
        Ok(TraceOutput::Flight(FlightSection { ring, view, _section: section }))
    }

    /// Address of the section's header; 0 for a file.
    pub(crate) fn section(&self) -> u64 {
        match self {
            TraceOutput::File(_) => 0,
            TraceOutput::Flight(section) => section.view.Value as u64,
        }
    }

    /// How much the ring is to keep, in milliseconds; `None` for a file.
    pub(crate) fn window_ms(&self) -> Option<u32> {
        match self {
            TraceOutput::File(_) => None,
            TraceOutput::Flight(section) => Some(section.ring.window_ms()),
        }
    }
}

/// When the writer began to wait. One thread writes at a time.
static WAITS_SINCE: AtomicU64 = AtomicU64::new(0);

/// Waits a little for the guard process; false when it has waited long, or when the guard or this
/// process ends.
pub(crate) fn pause(waits: u32, stop: u32) -> bool {
    let gone = [EndReason::ProcessExit, EndReason::GuardGone].map(|reason| reason as u32).contains(&stop);
    let now = ticks();
    if waits == 0 {
        WAITS_SINCE.store(now.0, Ordering::Relaxed);
    }
    let waited = now.saturating_sub(Ticks(WAITS_SINCE.load(Ordering::Relaxed)));
    if gone || api().is_none_or(|api| waited >= api.milliseconds(PATIENCE_MS)) {
        return false;
    }
    SystemClock.sleep(1);
    true
}

fn view_size(view: HANDLE) -> usize {
    let mut known = MEMORY_BASIC_INFORMATION::default();
    // SAFETY: an address of this process; the result has room.
    unsafe { VirtualQuery(view, &mut known, size_of::<MEMORY_BASIC_INFORMATION>()) };
    known.RegionSize
}

impl Output for TraceOutput {
    fn append(&mut self, bytes: &[u8]) -> Result<(), u32> {
        match self {
            TraceOutput::File(file) => file.append(bytes),
            TraceOutput::Flight(section) => section.ring.append(bytes),
        }
    }

    fn appended(&mut self) -> Option<u64> {
        match self {
            TraceOutput::File(file) => file.appended(),
            TraceOutput::Flight(section) => section.ring.appended(),
        }
    }

    fn wait_for_write(&mut self) -> u32 {
        match self {
            TraceOutput::File(file) => file.wait_for_write(),
            TraceOutput::Flight(_) => u32::MAX,
        }
    }
}

impl Drop for FlightSection {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; the ring is dropped with this, and nothing else refers to it.
        unsafe { UnmapViewOfFile(self.view) };
    }
}
