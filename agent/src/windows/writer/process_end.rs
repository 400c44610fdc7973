//! The end of the process: the thread that ends it writes what is whole, in the place of the
//! writer, which is gone like all other threads. No waiting, no lock, no heap.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use stk_format::{BlockBuffer, BlockKind};
use stk_schema::control::TEST_PANIC_AT_EXIT;
use stk_schema::event::{EndReason, Event};

use super::WriterThread;
use crate::record::last_modules::LastModules;
use crate::record::modules::{Events, Modules};
use crate::record::sampler::Sampler;
use crate::record::writer::Writer;
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::RuntimesRecorder;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::system::files::OutputFile;
use crate::windows::system::heap;
use crate::windows::tables::{TablesRecorder, TablesThread, loader};
use crate::windows::workers::Workers;

/// More than what the loader has told of one module takes, its path and its identities, with what
/// writing it may take.
const CHANGE_BYTES: usize = 64 << 10;

impl WriterThread {
    /// Ends the trace in the place of the writer, and tells it.
    ///
    /// # Safety
    /// All threads of the process but the calling one must be gone for good.
    pub unsafe fn end_process(&self, workers: &Workers) {
        // Who was terminated in the middle of its work stays "busy" for ever, and what it was at is
        // lost, but for the block that was being written.
        let sampler = &workers.sampler.worker.state;
        let finish = |writer: &mut Option<Writer<OutputFile>>| {
            let Some(writer) = writer else { return };
            self.resume_write(writer);
            self.write_waiting(writer, workers);
            workers.tables.worker.state.enter(TablesRecorder::flush);
            self.write_waiting(writer, workers);
            self.write_last_modules(writer, &workers.tables);
            workers.code.worker.state.enter(CodeRecorder::flush);
            workers.runtimes.worker.state.enter(RuntimesRecorder::flush);
            if sampler.enter(Sampler::finish).is_none() && SIGNALS.sampler_whole.load(Ordering::Acquire) {
                // SAFETY: the sampler was terminated, as all threads but this, where its state was
                // whole by its own word.
                unsafe { sampler.enter_for_the_dead(Sampler::finish) };
            }
            self.write_waiting(writer, workers);
            assert!(self.test_freeze != TEST_PANIC_AT_EXIT, "a test asked for this");
            self.end(writer, EndReason::ProcessExit, "");
        };
        if self.state.enter(finish).is_none() && !self.ending.load(Ordering::Acquire) {
            // SAFETY: the writer was terminated, as all threads but this. Until it ends the trace
            // it changes its state only while it writes a block, and `resume_write` goes on with
            // that.
            unsafe { self.state.enter_for_the_dead(finish) };
        }
        self.report_end(EndReason::ProcessExit, &workers.sampler);
    }

    /// At the process's end: writes the block that the terminated writer was at.
    fn resume_write(&self, writer: &mut Writer<OutputFile>) {
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
    fn write_last_modules(&self, writer: &mut Writer<OutputFile>, tables: &TablesThread) {
        let ids = &tables.module_ids;
        let known = tables.worker.state.enter(|recorder| {
            self.last_block.enter(|block| {
                self.write_changes(Some(recorder.modules()), ids, block, writer);
            });
        });
        if known.is_none() {
            // The tables thread was terminated while it changed what it knows.
            self.last_block.enter(|block| self.write_changes(None, ids, block, writer));
        }
    }

    fn write_changes(
        &self,
        known: Option<&Modules>,
        ids: &AtomicU64,
        block: &mut BlockBuffer,
        writer: &mut Writer<OutputFile>,
    ) {
        block.begin(BlockKind::Meta, ticks());
        block.set_dropped(self.counters.dropped.load(Ordering::Relaxed));
        let mut out = LastBlock { thread: self, block, writer };
        let mut last = LastModules::new(known, ids);
        while last.has_room()
            && heap::has_exit_room(CHANGE_BYTES)
            && let Some(change) = loader::next_unwritten()
        {
            last.write(&change, &mut out);
        }
        out.flush();
    }
}

/// The block of the process's end as a place for events.
struct LastBlock<'a> {
    thread: &'a WriterThread,
    block: &'a mut BlockBuffer,
    writer: &'a mut Writer<OutputFile>,
}

impl LastBlock<'_> {
    fn flush(&mut self) {
        if !self.block.is_empty()
            && let Err(error) = self.writer.block(self.block)
        {
            self.thread.note_write_error(error);
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
