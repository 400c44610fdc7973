//! A recording from start to end: its threads, and how it is stopped.
//!
//! Gets the host's configuration ([`start`]) and gives the trace, the status and the signal that it
//! has ended. At most one recording is under way in a process.
//!
//! * `begin`: checks and makes everything before the first thread of the target is touched.
//! * `threads`: the recorder's own threads.
//! * `sampling`, `lookups`, `watchdog`, `writing`: what each of them does.
//! * `calibration`: what the sampler measures before its first pass.
//! * `events`: what they wait for.
//! * `exclusive`: what they share.

mod begin;
pub mod lookups;
pub mod threads;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use stk_format::BlockBuffer;
use stk_schema::control::{AgentConfig, STATE_IDLE, StartResult};
use stk_schema::event::{DropReason, EndReason};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::WaitForSingleObject;

use crate::record::dynamic;
use crate::record::sampler::Sampler;
use crate::record::shared::{Counters, Lane};
use crate::record::writer::Writer;
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::{Runtimes, Shared};
use crate::windows::sampler::process::OwnProcess;
use crate::windows::sampler::triggers::Triggers;
use crate::windows::shared::events::{ENDED, WAKE_CENSUS, WAKE_SAMPLER, close, signal, wake_all};
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::system::api::Api;
use crate::windows::system::context::Context;
use crate::windows::system::files::OutputFile;
use crate::windows::system::heap;
use crate::windows::tables::Census;
use crate::windows::tables::hints;
use crate::windows::writer::PATIENCE_MS;
use begin::try_start;
use lookups::TABLES_MS;

/// One recording.
pub struct Session {
    pub api: &'static Api,
    pub counters: Arc<Counters>,
    pub sampler_lane: Arc<Lane>,
    pub census_lane: Arc<Lane>,
    pub code_lane: Arc<Lane>,
    pub runtimes_lane: Arc<Lane>,
    pub dotnet: Arc<Shared>,
    pub dynamic_code: Arc<dynamic::Shared>,
    /// Where instance ids come from.
    pub module_ids: Arc<AtomicU64>,
    pub triggers: Triggers,
    pub sampler: Exclusive<Sampler<OwnProcess>>,
    pub census: Exclusive<Census>,
    pub code: Exclusive<CodeRecorder>,
    pub runtimes: Exclusive<Runtimes>,
    pub writer: Exclusive<Option<Writer<OutputFile>>>,
    /// The block that is being written now.
    pub in_flight: AtomicPtr<BlockBuffer>,
    /// The writer has begun to end the trace.
    pub ending: AtomicBool,
    /// A buffer that nobody else uses, for the END block.
    pub last_block: Exclusive<Box<BlockBuffer>>,
    pub ticks_per_ms: u64,
    pub started: u64,
    pub period: u64,
    pub delay_ms: u32,
    pub duration_ms: u32,
    pub once: bool,
    pub check_walks: bool,
    pub test_panic: bool,
    /// The phase of a suspension in which samplers are to stop for ever, or the writer.
    pub test_freeze: u8,
    /// When the next pass is due, in ticks.
    pub due: AtomicU64,
    /// When sampling ends by itself, in ticks.
    pub sampling_ends: AtomicU64,
    /// Samplers that wait to take over.
    pub spares: AtomicU32,
    /// The sampler was deposed and a spare is to take over.
    pub takeover: AtomicBool,
    pub ended_event: HANDLE,
    pub has_cycles: bool,
    /// Id of a thread of the recorder that waits for the cost of a suspension to be measured on it;
    /// 0 = none.
    pub parked: AtomicU32,
    /// It is measured, or will not be.
    pub calibrated: AtomicBool,
    /// The guard process, whose end ends the recording; null = none.
    pub guard: HANDLE,
    pub sampler_done: AtomicBool,
    pub census_done: AtomicBool,
    pub code_done: AtomicBool,
    pub runtimes_done: AtomicBool,
    pub bytes_since_state: AtomicU64,
}

// SAFETY: what is not Sync by itself are handles, which are numbers.
unsafe impl Sync for Session {}
// SAFETY: as above.
unsafe impl Send for Session {}

/// The recording that is under way; owned by the `Arc`s of its threads and kept here as a plain
/// pointer that is cleared before the last of them goes.
static CURRENT: AtomicPtr<Session> = AtomicPtr::new(null_mut());
/// Whether a recording is being started, is under way, or has threads left.
static OCCUPIED: AtomicBool = AtomicBool::new(false);
/// Threads of `stk_capture` that look at `CURRENT` now.
static VISITORS: AtomicUsize = AtomicUsize::new(0);
/// Threads of the recording that still run.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Whether the writer has ended the trace (or given up).
pub static FINISHED: AtomicBool = AtomicBool::new(true);

/// Starts a recording as `config` says; see `stk_schema::control`.
pub fn start(config: &mut AgentConfig, own_module: HANDLE) -> StartResult {
    config.system_error = 0;
    config.status_address = (&raw const STATUS) as u64;
    let output = OutputFile(config.output as usize as HANDLE);
    let ended_event = config.ended_event as usize as HANDLE;
    let result = try_start(config, output, ended_event, own_module);
    if let Err((result, system_error)) = result {
        config.system_error = system_error;
        close(ended_event);
        close(config.guard as usize as HANDLE);
        return result;
    }
    StartResult::Ok
}

/// Stops the recording and waits until the trace is finalised; false if nothing was recording.
pub fn stop() -> bool {
    if FINISHED.load(Ordering::Acquire) {
        return false;
    }
    SIGNALS.request_stop(EndReason::Stopped);
    wake_all();
    // SAFETY: the event lives as long as the process.
    unsafe { WaitForSingleObject(ENDED.load(Ordering::Acquire), (TABLES_MS + PATIENCE_MS) as u32) };
    true
}

/// The end of the calling thread, the sampler in this slot, which was deposed while it was in a
/// system call.
pub fn leave_deposed(slot: usize) -> ! {
    threads::leave_deposed(slot)
}

/// DLL_THREAD_ATTACH: has the tables thread look for the new thread. Does nothing that can wait.
pub fn thread_started() {
    if !FINISHED.load(Ordering::Relaxed) && hints::thread_started() {
        signal(&WAKE_CENSUS);
    }
}

/// Where `stk_capture` arrives with its caller's context. 0 = recorded, 1 = nothing is recording, 2
/// = dropped.
pub extern "system" fn captured(context: *const Context, return_at: usize, tag: u64) -> u32 {
    VISITORS.fetch_add(1, Ordering::AcqRel);
    // SAFETY: while a visitor is counted, the session behind a non-null pointer is not freed.
    let result = match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(session) if !SIGNALS.stopping() => {
            // SAFETY: `stk_capture` hands over the calling thread's context and the place of its
            // return address.
            if unsafe { session.triggers.capture(&*context, return_at, tag) } {
                signal(&WAKE_SAMPLER);
                0
            } else {
                session.counters.lose(DropReason::BuffersFull, 1);
                2
            }
        }
        _ => 1,
    };
    VISITORS.fetch_sub(1, Ordering::AcqRel);
    result
}

/// DLL_PROCESS_DETACH at process exit: the other threads are gone. Writes what is whole, without
/// waiting, locks or the heap.
pub fn process_exit() {
    // SAFETY: the session's threads hold it and are gone without letting it go.
    let Some(session) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if FINISHED.load(Ordering::Acquire) {
        return;
    }
    heap::leave_heap();
    SIGNALS.request_stop(EndReason::ProcessExit);
    // Who was terminated in the middle of its work stays "busy" for ever, and what it was at is
    // lost, but for the block that was being written.
    let finish = |writer: &mut Option<Writer<OutputFile>>| {
        let Some(writer) = writer else { return };
        session.resume_write(writer);
        session.write_waiting(writer);
        session.census.enter(Census::flush);
        session.write_waiting(writer);
        session.write_last_modules(writer);
        session.code.enter(CodeRecorder::flush);
        session.runtimes.enter(Runtimes::flush);
        if session.sampler.enter(Sampler::finish).is_none() && SIGNALS.sampler_whole.load(Ordering::Acquire) {
            // SAFETY: the sampler was terminated, as all threads but this, where its state was
            // whole by its own word.
            unsafe { session.sampler.enter_for_the_dead(Sampler::finish) };
        }
        session.write_waiting(writer);
        session.end(writer, EndReason::ProcessExit, "");
    };
    if session.writer.enter(finish).is_none() && !session.ending.load(Ordering::Acquire) {
        // SAFETY: the writer was terminated, as all threads but this. Until it ends the trace it
        // changes its state only while it writes a block, and `resume_write` goes on with that.
        unsafe { session.writer.enter_for_the_dead(finish) };
    }
    session.report_end(EndReason::ProcessExit);
}

const _: () = assert!(STATE_IDLE == 0, "the status starts idle");
