//! The writer's thread: what the others hand over goes into the trace, and its end is written and
//! told.

use alloc::boxed::Box;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use stk_format::{BlockBuffer, BlockKind};
use stk_schema::control::{STATE_FAILED, STATE_STOPPED, STATE_STOPPING, TEST_FREEZE_WRITER};
use stk_schema::event::{End, EndReason, Event};
use windows_sys::Win32::System::Threading::{
    SetEvent, Sleep, THREAD_PRIORITY_ABOVE_NORMAL, WaitForSingleObject,
};

use crate::record::last_modules::LastModules;
use crate::record::modules::{Events, Modules};
use crate::record::sampler::Sampler;
use crate::record::writer::{WriteError, Writer};
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::Runtimes;
use crate::windows::session::lookups::{CODE_PATIENCE_MS, TABLES_MS};
use crate::windows::session::threads::set_priority;
use crate::windows::session::{FINISHED, Session};
use crate::windows::shared::events::{ENDED, WAKE_WRITER, close, signal};
use crate::windows::shared::state::{SIGNALS, STATUS};
use crate::windows::system::api::ticks;
use crate::windows::system::files::OutputFile;
use crate::windows::system::panic;
use crate::windows::tables::Census;
use crate::windows::tables::loader;

/// Milliseconds between the writer's looks at its queues.
const WRITE_MS: u32 = 10;
/// Milliseconds that the writer waits for the other threads, beyond those for the tables.
pub const PATIENCE_MS: u64 = 10_000;

impl Session {
    /// Writes until all threads have handed over what they have, then ends the trace.
    pub fn run_writer(&self) {
        // What it has to do is bounded by the buffers: were it to wait for a busy target, they
        // would fill and samples be lost.
        set_priority(THREAD_PRIORITY_ABOVE_NORMAL);
        let mut stop_seen = None;
        loop {
            let failed = self.writer.enter(|writer| {
                let Some(writer) = writer else { return false };
                self.freeze_for_test();
                self.write_waiting(writer);
                if writer.is_nearly_full() {
                    SIGNALS.request_stop(EndReason::SizeLimit);
                }
                writer.failure().is_some()
            });
            if failed.unwrap_or(false) {
                SIGNALS.request_stop(EndReason::WriteError);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
            }
            if SIGNALS.stopping() {
                STATUS.state.store(STATE_STOPPING, Ordering::Release);
                let since = *stop_seen.get_or_insert_with(ticks);
                let others_done = [&self.sampler_done, &self.census_done, &self.runtimes_done]
                    .iter()
                    .all(|done| done.load(Ordering::Acquire));
                let waited = ticks().saturating_sub(since) / self.ticks_per_ms;
                // A parked thread never comes back; the other ones get the time to hand over what
                // they have.
                let patience = if panic::happened() { 500 } else { TABLES_MS + PATIENCE_MS / 2 };
                let code_done = self.code_done.load(Ordering::Acquire) || waited >= 2 * CODE_PATIENCE_MS;
                if others_done && code_done || waited >= patience {
                    break;
                }
            }
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_WRITER.load(Ordering::Acquire), WRITE_MS) };
        }
        let reason = end_reason();
        self.ending.store(true, Ordering::Release);
        self.writer.enter(|writer| {
            let Some(mut writer) = writer.take() else { return };
            // What a thread that parked or hangs has not handed over, unless it stopped in the
            // middle of it.
            self.census.enter(Census::flush);
            self.code.enter(CodeRecorder::flush);
            self.runtimes.enter(Runtimes::flush);
            self.sampler.enter(Sampler::finish);
            self.write_waiting(&mut writer);
            let detail = match reason {
                EndReason::Panic => panic::message().unwrap_or("the recorder panicked"),
                EndReason::Watchdog => "a thread stayed suspended too long and was resumed",
                EndReason::GuardGone => "the guard process ended",
                _ => "",
            };
            self.end(&mut writer, reason, detail);
            // Here the output is closed, before anybody hears of the end.
            drop(writer);
        });
        self.report_end(reason);
    }

    /// Fault injection: stops for ever if that is asked for, after the first second.
    fn freeze_for_test(&self) {
        let frozen = self.test_freeze == TEST_FREEZE_WRITER;
        while frozen && ticks() >= self.started + 1000 * self.ticks_per_ms {
            // SAFETY: no arguments but a time.
            unsafe { Sleep(1000) };
        }
    }

    /// Appends the blocks that wait: module and thread events first, as samples refer to them.
    pub fn write_waiting(&self, writer: &mut Writer<OutputFile>) {
        loop {
            let lanes = [&self.census_lane, &self.code_lane, &self.runtimes_lane, &self.sampler_lane];
            let Some((lane, block)) = lanes.into_iter().find_map(|lane| Some((lane, lane.take_full()?)))
            else {
                break;
            };
            // From here on, should this thread be terminated, the one that ends the process goes on
            // with the block.
            let block = Box::into_raw(block);
            self.in_flight.store(block, Ordering::Release);
            // SAFETY: it was a box a moment ago, and nobody else has it while this thread lives.
            let result = writer.block(unsafe { &*block });
            self.in_flight.store(null_mut(), Ordering::Release);
            // SAFETY: as above; it becomes the box again that it was.
            let block = unsafe { Box::from_raw(block) };
            if result == Err(WriteError::Full) {
                self.counters.take_back(u64::from(block.samples()));
            }
            lane.put_back(block);
            if let Err(error) = result {
                self.note_write_error(error);
            }
        }
        STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
        self.bytes_since_state.store(writer.since_state(), Ordering::Relaxed);
    }

    /// At the process's end: writes the block that the terminated writer was at.
    pub fn resume_write(&self, writer: &mut Writer<OutputFile>) {
        // SAFETY: the block that `write_waiting` put there, whose thread is gone; it is never
        // freed.
        let Some(block) = (unsafe { self.in_flight.swap(null_mut(), Ordering::AcqRel).as_ref() }) else {
            return;
        };
        if let Err(error) = writer.resume(block) {
            self.note_write_error(error);
        }
    }

    /// At the process's end: writes what the loader has told and the tables thread did not come to.
    pub fn write_last_modules(&self, writer: &mut Writer<OutputFile>) {
        let known = self.census.enter(|census| {
            self.last_block.enter(|block| self.write_changes(Some(census.modules()), block, writer));
        });
        if known.is_none() {
            // The tables thread was terminated while it changed what it knows.
            self.last_block.enter(|block| self.write_changes(None, block, writer));
        }
    }

    fn write_changes(
        &self,
        known: Option<&Modules>,
        block: &mut BlockBuffer,
        writer: &mut Writer<OutputFile>,
    ) {
        block.begin(BlockKind::Meta, ticks());
        block.set_dropped(self.counters.dropped.load(Ordering::Relaxed));
        let mut out = LastBlock { session: self, block, writer };
        let mut last = LastModules::new(known, &self.module_ids);
        while last.has_room()
            && let Some(change) = loader::next_unwritten()
        {
            last.write(&change, &mut out);
        }
        out.flush();
    }

    /// Writes the END block.
    pub fn end(&self, writer: &mut Writer<OutputFile>, reason: EndReason, detail: &str) {
        let end = End {
            time: ticks(),
            reason: reason as u64,
            samples: self.counters.samples.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            detail: detail.as_bytes(),
        };
        let result = self.last_block.enter(|block| writer.end(block, end));
        if let Some(Err(error)) = result {
            self.note_write_error(error);
        }
        STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
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

    /// Publishes that the recording is over, last of all.
    pub fn report_end(&self, reason: EndReason) {
        self.publish();
        if let Some(message) = panic::message() {
            STATUS.set_message(message);
        }
        STATUS.end_reason.store(reason as u32, Ordering::Release);
        let failed = matches!(reason, EndReason::Panic);
        STATUS.state.store(if failed { STATE_FAILED } else { STATE_STOPPED }, Ordering::Release);
        if FINISHED.swap(true, Ordering::AcqRel) {
            return;
        }
        signal(&ENDED);
        if !self.ended_event.is_null() {
            // SAFETY: the host's event, which the agent owns since the start and closes here.
            unsafe {
                SetEvent(self.ended_event);
            }
            close(self.ended_event);
        }
    }
}

/// The block of the process's end as a place for events.
struct LastBlock<'a> {
    session: &'a Session,
    block: &'a mut BlockBuffer,
    writer: &'a mut Writer<OutputFile>,
}

impl LastBlock<'_> {
    fn flush(&mut self) {
        if !self.block.is_empty()
            && let Err(error) = self.writer.block(self.block)
        {
            self.session.note_write_error(error);
        }
    }
}

impl Events for LastBlock<'_> {
    fn event(&mut self, event: &Event<'_>) {
        if self.block.push(event).is_err() {
            self.flush();
            self.block.begin(BlockKind::Meta, ticks());
            let _ = self.block.push(event);
        }
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
