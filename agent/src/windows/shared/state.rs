//! State that outlives a recording: the signals that the loader callback and DllMain use, the live
//! status, and the mailbox.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use stk_schema::control::{AgentStatus, CONTROL_VERSION, RECORDER_THREADS, STEP_NONE, ThreadActivity};
use stk_schema::event::EndReason;
use stk_schema::flight::FlightDesk;

use crate::record::dotnet::names::LiveMailbox;
use crate::record::held_times::HeldSummary;
use crate::record::requests::LiveRequests;
use crate::record::shared::{Pauses, Signals};
use crate::record::thread_filter::MainThread;

/// The signals of the current recording; there is at most one.
pub(crate) static SIGNALS: Signals = Signals {
    stop: AtomicU32::new(0),
    tables_pending: AtomicU32::new(0),
    loader_generation: AtomicU32::new(0),
    renew: AtomicBool::new(false),
    threads_known: AtomicBool::new(false),
    sampler_whole: AtomicBool::new(false),
    pauses: Pauses::new(),
};

/// Whether the writer has ended the trace or given up; true while nothing is recorded.
pub(crate) static FINISHED: AtomicBool = AtomicBool::new(true);

/// Why the watchdog ended the recording: a [`WatchdogCause`].
static WATCHDOG_CAUSE: AtomicU8 = AtomicU8::new(0);

/// Why the watchdog ends a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum WatchdogCause {
    /// A thread stood still for too long.
    Held = 0,
    /// Calls that resume a thread lasted too long.
    ResumeSlow = 1,
    /// Calls that resume a thread were refused.
    ResumeRefused = 2,
}

impl WatchdogCause {
    /// The cause of the last recording that the watchdog ended.
    pub(crate) fn last() -> WatchdogCause {
        match WATCHDOG_CAUSE.load(Ordering::Relaxed) {
            1 => WatchdogCause::ResumeSlow,
            2 => WatchdogCause::ResumeRefused,
            _ => WatchdogCause::Held,
        }
    }

    /// What happened, for the trace and for the host.
    pub(crate) fn text(self) -> &'static str {
        match self {
            WatchdogCause::Held => "a thread stayed suspended too long and was resumed",
            WatchdogCause::ResumeSlow => {
                "calls that resume a thread took over 100 ms: something in the process delays NtResumeThread"
            }
            WatchdogCause::ResumeRefused => {
                "a thread could not be resumed: something in the process refuses NtResumeThread"
            }
        }
    }
}

/// Ends the recording as the watchdog does.
pub(crate) fn stop_for(cause: WatchdogCause) {
    if !SIGNALS.stopping() {
        WATCHDOG_CAUSE.store(cause as u8, Ordering::Relaxed);
        SIGNALS.request_stop(EndReason::Watchdog);
    }
}

/// Exit code of the target's thread whose end was seen last. It becomes the process's own if the
/// recorder's threads end last.
pub(crate) static LAST_EXIT_CODE: AtomicU32 = AtomicU32::new(0);

/// The main thread of a recording that chooses threads, in all of its files.
pub(crate) static MAIN_THREAD: MainThread = MainThread::new();

/// The mailbox through which the agent asks inject.exe for names.
pub(crate) static MAILBOX: LiveMailbox = LiveMailbox::empty();

/// The mailbox through which hosts ask the agent to mark, pause and resume.
pub(crate) static REQUESTS: LiveRequests = LiveRequests::empty();

/// Where injects leave requests for traces of a `--flight` recording.
pub(crate) static FLIGHT_DESK: FlightDesk = FlightDesk::new();

/// A mark or an exception was written, which asks for a trace.
pub(crate) fn note_flight_trigger() {
    FLIGHT_DESK.triggers.fetch_add(1, Ordering::Release);
}

/// Resets the signals for another recording, which begins `paused` or not.
pub(crate) fn reset_signals(paused: bool) {
    SIGNALS.pauses.reset(paused);
    SIGNALS.tables_pending.store(0, Ordering::Relaxed);
    SIGNALS.renew.store(false, Ordering::Relaxed);
    SIGNALS.threads_known.store(false, Ordering::Relaxed);
    WATCHDOG_CAUSE.store(WatchdogCause::Held as u8, Ordering::Relaxed);
    SIGNALS.stop.store(0, Ordering::Release);
}

/// [`AgentStatus`] with atomic fields. Other processes may read it at any time.
#[repr(C)]
pub(crate) struct LiveStatus {
    size: u32,
    version: u32,
    pub state: AtomicU32,
    pub end_reason: AtomicU32,
    pub threads: AtomicU32,
    pub modules: AtomicU32,
    pub samples: AtomicU64,
    pub dropped: AtomicU64,
    pub bytes: AtomicU64,
    pub passes: AtomicU64,
    pub elapsed_ms: AtomicU64,
    pub system_error: AtomicU32,
    message_len: AtomicU32,
    message: UnsafeCell<[u8; 256]>,
    pub names: AtomicU64,
    pub guard_board: AtomicU64,
    pub flight: AtomicU64,
    pub requests: AtomicU64,
    pub paused: AtomicU32,
    pub handler_begun: AtomicU32,
    pub handler_ended: AtomicU32,
    pub threads_met: AtomicU32,
    pub rotation: AtomicU32,
    reserved_for_hosts: AtomicU32,
    pub file_index: AtomicU32,
    pub file_number: AtomicU32,
    pub earlier_samples: AtomicU64,
    pub earlier_dropped: AtomicU64,
    pub earlier_bytes: AtomicU64,
    pub earlier_ms: AtomicU64,
    activity: [LiveActivity; RECORDER_THREADS.len()],
    held_p50_ns: AtomicU64,
    held_p999_ns: AtomicU64,
    held_max_ns: AtomicU64,
}

/// [`ThreadActivity`] with atomic fields.
#[repr(C)]
struct LiveActivity {
    tid: AtomicU32,
    step: AtomicU32,
    rounds: AtomicU32,
    reserved: AtomicU32,
}

// SAFETY: everything but the message is atomic; the message is written by one thread at a time (the
// one that starts or ends a recording) and read byte by byte.
unsafe impl Sync for LiveStatus {}

const _: () = {
    assert!(size_of::<LiveStatus>() == size_of::<AgentStatus>());
    assert!(core::mem::offset_of!(LiveStatus, samples) == core::mem::offset_of!(AgentStatus, samples));
    assert!(core::mem::offset_of!(LiveStatus, message) == core::mem::offset_of!(AgentStatus, message));
    assert!(core::mem::offset_of!(LiveStatus, names) == core::mem::offset_of!(AgentStatus, names));
    assert!(core::mem::offset_of!(LiveStatus, paused) == core::mem::offset_of!(AgentStatus, paused));
    assert!(
        core::mem::offset_of!(LiveStatus, handler_ended) == core::mem::offset_of!(AgentStatus, handler_ended)
    );
    assert!(core::mem::offset_of!(LiveStatus, rotation) == core::mem::offset_of!(AgentStatus, rotation));
    assert!(core::mem::offset_of!(LiveStatus, earlier_ms) == core::mem::offset_of!(AgentStatus, earlier_ms));
    assert!(core::mem::offset_of!(LiveStatus, activity) == core::mem::offset_of!(AgentStatus, activity));
    assert!(
        core::mem::offset_of!(LiveStatus, held_max_ns) == core::mem::offset_of!(AgentStatus, held_max_ns)
    );
    assert!(size_of::<LiveActivity>() == size_of::<ThreadActivity>());
};

/// The status of this process's agent. Other processes find it by its export,
/// `control::EXPORT_STATUS_BLOCK`.
#[unsafe(export_name = "stk_agent_status_block")]
pub(crate) static STATUS: LiveStatus = LiveStatus {
    size: size_of::<AgentStatus>() as u32,
    version: CONTROL_VERSION,
    state: AtomicU32::new(0),
    end_reason: AtomicU32::new(0),
    threads: AtomicU32::new(0),
    modules: AtomicU32::new(0),
    samples: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    passes: AtomicU64::new(0),
    elapsed_ms: AtomicU64::new(0),
    system_error: AtomicU32::new(0),
    message_len: AtomicU32::new(0),
    message: UnsafeCell::new([0; 256]),
    names: AtomicU64::new(0),
    guard_board: AtomicU64::new(0),
    flight: AtomicU64::new(0),
    requests: AtomicU64::new(0),
    paused: AtomicU32::new(0),
    handler_begun: AtomicU32::new(0),
    handler_ended: AtomicU32::new(0),
    threads_met: AtomicU32::new(0),
    rotation: AtomicU32::new(0),
    reserved_for_hosts: AtomicU32::new(0),
    file_index: AtomicU32::new(0),
    file_number: AtomicU32::new(0),
    earlier_samples: AtomicU64::new(0),
    earlier_dropped: AtomicU64::new(0),
    earlier_bytes: AtomicU64::new(0),
    earlier_ms: AtomicU64::new(0),
    activity: [const {
        LiveActivity {
            tid: AtomicU32::new(0),
            step: AtomicU32::new(0),
            rounds: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
        }
    }; RECORDER_THREADS.len()],
    held_p50_ns: AtomicU64::new(0),
    held_p999_ns: AtomicU64::new(0),
    held_max_ns: AtomicU64::new(0),
};

impl LiveStatus {
    /// Sets the text of the last failure, cut to what fits.
    pub(crate) fn set_message(&self, text: &str) {
        let mut len = text.len().min(256);
        while !text.is_char_boundary(len) {
            len -= 1;
        }
        self.message_len.store(0, Ordering::Release);
        let to = self.message.get().cast::<u8>();
        for (index, byte) in text.bytes().take(len).enumerate() {
            // SAFETY: `index` is below 256; one thread writes at a time.
            unsafe { to.add(index).write_volatile(byte) };
        }
        self.message_len.store(len as u32, Ordering::Release);
    }

    /// Says what a thread of the recorder does (`THREAD_*`, `STEP_*`).
    pub(crate) fn step(&self, thread: usize, step: u32) {
        if let Some(activity) = self.activity.get(thread) {
            activity.step.store(step, Ordering::Relaxed);
        }
    }

    /// Says that a thread of the recorder has come round once more, and what it does now.
    pub(crate) fn round(&self, thread: usize, step: u32) {
        if let Some(activity) = self.activity.get(thread) {
            activity.rounds.fetch_add(1, Ordering::Relaxed);
            activity.step.store(step, Ordering::Relaxed);
        }
    }

    /// Names the thread with this role, which has done nothing yet; 0 = none.
    pub(crate) fn name_thread(&self, thread: usize, tid: u32) {
        if let Some(activity) = self.activity.get(thread) {
            activity.rounds.store(0, Ordering::Relaxed);
            activity.step.store(STEP_NONE, Ordering::Relaxed);
            activity.tid.store(tid, Ordering::Release);
        }
    }

    /// Publishes how long threads stood still.
    pub(crate) fn set_held(&self, held: HeldSummary) {
        self.held_p50_ns.store(held.p50, Ordering::Relaxed);
        self.held_p999_ns.store(held.p999, Ordering::Relaxed);
        self.held_max_ns.store(held.max, Ordering::Relaxed);
    }

    /// A copy, for a host in this process.
    pub(crate) fn copy(&self) -> AgentStatus {
        // SAFETY: same layout (asserted above), all of it plain data; a message that changes
        // meanwhile may come out mixed, which the status' contract allows.
        unsafe { core::ptr::from_ref(self).cast::<AgentStatus>().read_volatile() }
    }
}
