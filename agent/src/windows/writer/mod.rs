//! The writer's thread: writes the other threads' blocks to the trace, then its end, and reports
//! that.
//!
//! [`WriterThread::run`] is its loop. It waits only for the disk. At the end of a recording it
//! gives the other threads time to hand over their blocks.
//!
//! It owns the trace's file ([`Writer`]), from its first byte to its last. It gets blocks from the
//! lanes of the [`Workers`] and returns them empty. It reports the end of the recording to the
//! host. If the process ends without the writer, `process_end` does its work.

mod process_end;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use stk_schema::Ticks;

use stk_format::BlockBuffer;
use stk_schema::control::{
    ROTATION_NONE, STATE_FAILED, STATE_STOPPED, STATE_STOPPING, STEP_ENDING, STEP_WAITING, STEP_WORKING,
    STEP_WRITING, TEST_FREEZE_WRITER, THREAD_WRITER,
};
use stk_schema::event::{End, EndReason};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{SetEvent, Sleep, THREAD_PRIORITY_ABOVE_NORMAL};

use crate::record::files::Files;
use crate::record::sampler::Sampler;
use crate::record::shared::Counters;
use crate::record::writer::{WriteError, Writer, Writers};
use crate::windows::code::{CODE_PATIENCE_MS, CodeRecorder};
use crate::windows::runtimes::RuntimesRecorder;
use crate::windows::sampler::SamplerThread;
use crate::windows::sampler::own_cpu::OwnCpu;
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{ENDED, WAKE_WRITER, close};
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::next_file::FileOffer;
use crate::windows::shared::priority::{leave_power_throttling, set_priority};
use crate::windows::shared::state::{FINISHED, SIGNALS, STATUS, WatchdogCause};
use crate::windows::system::api::{api, ticks};
use crate::windows::system::files::OutputFile;
use crate::windows::system::panic;
use crate::windows::tables::{TABLES_MS, TablesRecorder};
use crate::windows::workers::Workers;

/// Milliseconds that the writer waits for the other threads, in addition to those for the tables.
pub(super) const PATIENCE_MS: u64 = 10_000;
/// Milliseconds between the writer's checks of its queues.
const WRITE_MS: u32 = 10;
/// Rounds from one reading of the writer's own CPU time to the next.
const MEASURE_ROUNDS: u32 = 8;

/// The writer's thread and its data.
pub(super) struct WriterThread {
    /// The trace's files; `None` once the last one's end is written.
    pub state: Exclusive<Option<Writers<OutputFile>>>,
    /// The block that is being written now, and its file.
    in_flight: AtomicPtr<BlockBuffer>,
    in_flight_file: AtomicU32,
    files: Arc<Files>,
    /// The next file, from the tables thread.
    offer: Arc<FileOffer>,
    /// Whether the writer has begun to end the trace.
    ending: AtomicBool,
    /// A buffer for the END block that is used for nothing else.
    last_block: Exclusive<Box<BlockBuffer>>,
    clock: SessionClock,
    counters: Arc<Counters>,
    settings: WriterSettings,
}

/// How the writer works, as configured by the host.
pub(super) struct WriterSettings {
    /// The host's event for the end of the recording; null = none.
    pub ended_event: HANDLE,
    /// The phase of a suspension in which the samplers, or the writer, are to stop forever.
    pub test_freeze: u8,
    /// Where the writer's CPU time counts for the user's budget: whether the system counts cycles.
    pub measured: Option<bool>,
}

impl WriterThread {
    /// A writer that has written the trace's header. It owns the event of `settings`
    /// from now on.
    pub(super) fn new(
        writer: Writer<OutputFile>,
        offer: Arc<FileOffer>,
        last_block: Box<BlockBuffer>,
        clock: SessionClock,
        counters: Arc<Counters>,
        settings: WriterSettings,
    ) -> WriterThread {
        WriterThread {
            state: Exclusive::new(Some(Writers::new(writer))),
            in_flight: AtomicPtr::new(null_mut()),
            in_flight_file: AtomicU32::new(0),
            files: offer.files.clone(),
            offer,
            ending: AtomicBool::new(false),
            last_block: Exclusive::new(last_block),
            clock,
            counters,
            settings,
        }
    }

    /// Writes until all threads have handed over their blocks, then ends the trace.
    pub(super) fn run(&self, workers: &Workers) {
        // The buffers limit its work. If it waited for a busy target, they would fill, and samples
        // would be lost.
        set_priority(THREAD_PRIORITY_ABOVE_NORMAL);
        leave_power_throttling();
        let mut stop_seen = None;
        let own_cpu = self.settings.measured.and_then(|has_cycles| Some(OwnCpu::new(api()?, has_cycles)));
        let mut rounds = 0u32;
        loop {
            rounds = rounds.wrapping_add(1);
            STATUS.round(THREAD_WRITER, STEP_WORKING);
            if let Some(own_cpu) = own_cpu.as_ref().filter(|_| rounds.is_multiple_of(MEASURE_ROUNDS)) {
                self.counters.writer_cpu.store(own_cpu.ticks().0, Ordering::Relaxed);
            }
            let failed = self.state.enter(|writers| {
                let Some(writers) = writers else { return false };
                self.freeze_for_test();
                self.offer.take(writers);
                // Read before the blocks are taken: all of the present file's are among them.
                let last = self.files.last();
                let turned = writers.number() != last && self.files.all_turned(last);
                self.write_waiting(writers, workers);
                if turned {
                    self.end_present(writers);
                }
                let mut failed = false;
                for number in writers.numbers() {
                    let Some(writer) = writers.of(number) else { continue };
                    if writer.is_nearly_full() && number == self.files.last() {
                        SIGNALS.request_stop(EndReason::SizeLimit);
                    }
                    failed |= writer.failure().is_some();
                }
                failed
            });
            if failed.unwrap_or(false) {
                SIGNALS.request_stop(EndReason::WriteError);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
            }
            if SIGNALS.stopping() {
                STATUS.state.store(STATE_STOPPING, Ordering::Release);
                if self.may_end(workers, *stop_seen.get_or_insert_with(ticks)) {
                    break;
                }
            }
            STATUS.step(THREAD_WRITER, STEP_WAITING);
            WAKE_WRITER.wait(WRITE_MS);
        }
        STATUS.step(THREAD_WRITER, STEP_ENDING);
        self.end_trace(workers);
    }

    /// Whether the threads have handed over what they have, or had the time to, since the stop was
    /// seen.
    fn may_end(&self, workers: &Workers, stop_seen: Ticks) -> bool {
        let others_done = workers.sampler.worker.is_done()
            && workers.tables.worker.is_done()
            && workers.runtimes.worker.is_done();
        let waited = self.clock.milliseconds(ticks().saturating_sub(stop_seen));
        // A parked thread never continues. The other threads get time to hand over their blocks.
        let patience = if panic::happened() { 500 } else { TABLES_MS + PATIENCE_MS / 2 };
        let code_done = workers.code.worker.is_done() || waited >= 2 * CODE_PATIENCE_MS;
        others_done && code_done || waited >= patience
    }

    /// Writes the remaining blocks and the END block, closes the output, and reports the end.
    fn end_trace(&self, workers: &Workers) {
        let mut reason = end_reason();
        self.ending.store(true, Ordering::Release);
        self.state.enter(|writers| {
            let Some(mut writers) = writers.take() else { return };
            // Flush what a parked or hanging thread has not handed over, unless it stopped while it
            // changed its state.
            workers.tables.worker.state.enter(TablesRecorder::flush);
            workers.code.worker.state.enter(CodeRecorder::flush);
            workers.runtimes.worker.state.enter(RuntimesRecorder::flush);
            workers.sampler.worker.state.enter(Sampler::finish);
            self.write_waiting(&mut writers, workers);
            let detail = match reason {
                EndReason::Panic => panic::message().unwrap_or("the recorder panicked"),
                EndReason::Watchdog => WatchdogCause::last().text(),
                EndReason::GuardGone => "the guard process ended",
                _ => "",
            };
            for number in writers.numbers() {
                self.end(&mut writers, number, reason, detail);
                if writers.of(number).is_some_and(|writer| writer.failure().is_some()) {
                    reason = reason_with_failure(reason);
                }
                if number != self.files.last() {
                    writers.leave_present();
                    self.close(&mut writers, number);
                }
            }
            // Closes the output before the end is reported.
            STATUS.flight.store(0, Ordering::Release);
            drop(writers);
        });
        self.report_end(reason, &workers.sampler);
    }

    /// Fault injection: stops forever if a test requests it, after the first second.
    fn freeze_for_test(&self) {
        let frozen = self.settings.test_freeze == TEST_FREEZE_WRITER;
        while frozen && ticks() >= self.clock.after_start(1000) {
            // SAFETY: no arguments but a time.
            unsafe { Sleep(1000) };
        }
    }

    /// Ends the present file, for which no thread writes any more.
    fn end_present(&self, writers: &mut Writers<OutputFile>) {
        let number = writers.leave_present();
        self.end(writers, number, EndReason::Stopped, "the recording continues in the next file");
        self.close(writers, number);
    }

    /// Closes a file that has ended, and lets the status show the next one.
    fn close(&self, writers: &mut Writers<OutputFile>, number: u32) {
        let bytes = writers.of(number).map_or(0, |writer| writer.bytes());
        writers.close(number);
        self.offer.publish_end(number, &self.counters, bytes, &self.clock);
        STATUS.bytes.store(writers.present().map_or(0, |writer| writer.bytes()), Ordering::Relaxed);
    }

    /// Appends the blocks that wait.
    fn write_waiting(&self, writers: &mut Writers<OutputFile>, workers: &Workers) {
        let lanes = workers.lanes();
        while let Some((lane, (file, block))) = lanes.iter().find_map(|lane| Some((lane, lane.take_full()?)))
        {
            let Some(writer) = writers.of(file) else {
                lane.put_back(block);
                continue;
            };
            // If this thread is terminated from here on, the thread that ends the process finishes
            // the block.
            let block = Box::into_raw(block);
            self.in_flight_file.store(file, Ordering::Relaxed);
            self.in_flight.store(block, Ordering::Release);
            STATUS.step(THREAD_WRITER, STEP_WRITING);
            // SAFETY: it was a box just before, and nothing else refers to it while this thread
            // lives.
            let result = writer.block(unsafe { &*block });
            STATUS.round(THREAD_WRITER, STEP_WORKING);
            self.in_flight.store(null_mut(), Ordering::Release);
            // SAFETY: as above; it becomes a box again.
            let block = unsafe { Box::from_raw(block) };
            if result.is_err() {
                self.counters.take_back(u64::from(block.samples()));
            }
            lane.put_back(block);
            if let Err(error) = result {
                self.note_write_error(error);
            }
        }
        if let Some(writer) = writers.present() {
            STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
            workers.tables.bytes_since_state.store(writer.since_state(), Ordering::Relaxed);
        }
    }

    /// Writes the END block of a file.
    fn end(&self, writers: &mut Writers<OutputFile>, number: u32, reason: EndReason, detail: &str) {
        let counters = &self.counters;
        let (all, lost) =
            (counters.samples.load(Ordering::Relaxed), counters.dropped.load(Ordering::Relaxed));
        let (samples, dropped) = self.files.in_file(number, all, lost);
        let Some(writer) = writers.of(number) else { return };
        let end = End { time: ticks(), reason: reason as u64, samples, dropped, detail: detail.as_bytes() };
        let header = self.files.header(number);
        let result = self.last_block.enter(|block| {
            header.iter().for_each(|header| block.set_header(header));
            writer.end(block, end)
        });
        if let Some(Err(error)) = result {
            self.note_write_error(error);
        }
        if number == self.files.present() {
            STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
        }
    }

    fn note_write_error(&self, error: WriteError) {
        match error {
            WriteError::System(code) => {
                STATUS.system_error.store(code, Ordering::Relaxed);
                STATUS.set_message("the trace could not be written to");
            }
            WriteError::Full => SIGNALS.request_stop(EndReason::SizeLimit),
            WriteError::Interrupted => STATUS.set_message("a write was interrupted by the process's end"),
            WriteError::Seal(_) => STATUS.set_message("a block of the trace could not be compressed"),
        }
    }

    /// Publishes that the recording is over. Called last.
    pub(super) fn report_end(&self, reason: EndReason, sampler: &SamplerThread) {
        sampler.publish();
        if let Some(message) = panic::message() {
            STATUS.set_message(message);
        } else if reason == EndReason::Watchdog {
            STATUS.set_message(WatchdogCause::last().text());
        }
        STATUS.end_reason.store(reason as u32, Ordering::Release);
        if reason == EndReason::GuardGone {
            // Nobody is left to continue in another file.
            STATUS.rotation.store(ROTATION_NONE, Ordering::Release);
        }
        let failed = panic::happened();
        STATUS.state.store(if failed { STATE_FAILED } else { STATE_STOPPED }, Ordering::Release);
        if FINISHED.swap(true, Ordering::AcqRel) {
            return;
        }
        ENDED.signal();
        if !self.settings.ended_event.is_null() {
            // SAFETY: the host's event, which the agent has owned since the start and closes here.
            unsafe {
                SetEvent(self.settings.ended_event);
            }
            close(self.settings.ended_event);
        }
    }
}

/// Why a recording ended whose last blocks could not be written: hosts must not take its trace for
/// a whole one.
fn reason_with_failure(reason: EndReason) -> EndReason {
    match reason {
        EndReason::Stopped | EndReason::Duration | EndReason::SizeLimit => EndReason::WriteError,
        graver => graver,
    }
}

fn end_reason() -> EndReason {
    match SIGNALS.stop.load(Ordering::Acquire) {
        2 => EndReason::ProcessExit,
        3 => EndReason::Duration,
        4 => EndReason::Watchdog,
        5 => EndReason::Panic,
        6 => EndReason::WriteError,
        7 => EndReason::SizeLimit,
        8 => EndReason::GuardGone,
        _ => EndReason::Stopped,
    }
}
