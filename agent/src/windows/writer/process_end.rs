//! The end of the process: the thread that ends it writes all complete data in place of the writer,
//! which is gone like all other threads. No waiting, no lock, no heap.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

use stk_format::{BlockBuffer, BlockKind};
use stk_schema::control::TEST_PANIC_AT_EXIT;
use stk_schema::event::{EndReason, Event};

use super::WriterThread;
use crate::record::files::FileThread;
use crate::record::last_modules::LastModules;
use crate::record::modules::{Events, Modules};
use crate::record::sampler::Sampler;
use crate::record::writer::{Writer, Writers};
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::RuntimesRecorder;
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::system::files::OutputFile;
use crate::windows::system::{heap, panic};
use crate::windows::tables::{TablesRecorder, TablesThread, loader};
use crate::windows::workers::Workers;

/// More than the loader's notification of one module needs, with its path and its identities and
/// the memory for writing it.
const CHANGE_BYTES: usize = 64 << 10;

impl WriterThread {
    /// Ends the trace in place of the writer, and reports the end.
    ///
    /// # Safety
    /// All threads of the process but the calling one must have ended.
    pub(crate) unsafe fn end_process(&self, workers: &Workers) {
        // A terminated thread never leaves its state. Its unfinished work is lost, except the block
        // being written.
        let sampler = &workers.sampler.worker.state;
        let finish_whole = |state: &mut _| workers.sampler.finish_in_place(state);
        let finish = |writer: &mut Option<Writers<OutputFile>>| {
            let Some(writer) = writer else { return };
            self.resume_write(writer);
            self.write_waiting(writer, workers);
            workers.tables.worker.state.enter(TablesRecorder::flush);
            self.write_waiting(writer, workers);
            self.write_last_modules(writer, &workers.tables);
            workers.code.worker.state.enter(CodeRecorder::flush);
            workers.runtimes.worker.state.enter(RuntimesRecorder::flush);
            if sampler.enter(finish_whole).is_none() {
                // The sampler was terminated, like all threads but this one.
                if SIGNALS.sampler_whole.load(Ordering::Acquire) {
                    // SAFETY: its state was consistent then (`sampler_whole`).
                    unsafe { sampler.enter_for_the_dead(finish_whole) };
                } else {
                    // SAFETY: its state is used only as far as it is consistent: the pointer to its
                    // block, and that block up to its last whole event.
                    unsafe { sampler.enter_for_the_dead(Sampler::finish_torn) };
                }
            }
            self.write_waiting(writer, workers);
            panic::if_requested(TEST_PANIC_AT_EXIT);
            for number in writer.numbers() {
                self.end(writer, number, EndReason::ProcessExit, "");
            }
        };
        if self.state.enter(finish).is_none() && !self.ending.load(Ordering::Acquire) {
            // SAFETY: the writer was terminated, like all threads but this one. Before it ends the
            // trace, it changes its state only while it writes a block, and `resume_write` finishes
            // that.
            unsafe { self.state.enter_for_the_dead(finish) };
        }
        self.report_end(EndReason::ProcessExit, &workers.sampler);
    }

    /// At the process's end: finishes the block that the terminated writer was writing.
    fn resume_write(&self, writers: &mut Writers<OutputFile>) {
        // SAFETY: the block that `write_waiting` stored, whose thread is gone; it is never freed.
        let Some(block) = (unsafe { self.in_flight.swap(null_mut(), Ordering::AcqRel).as_ref() }) else {
            return;
        };
        let Some(writer) = writers.of(self.in_flight_file.load(Ordering::Acquire)) else { return };
        if let Err(error) = writer.resume(block) {
            self.note_write_error(error);
        }
    }

    /// At the process's end: writes the loader's notifications that the tables thread did not
    /// write.
    fn write_last_modules(&self, writers: &mut Writers<OutputFile>, tables: &TablesThread) {
        let number = self.files.turned(FileThread::Sampler);
        let Some(writer) = writers.of(number) else { return };
        if let (Some(header), true) = (self.files.header(number), number != 0) {
            self.last_block.enter(|block| block.set_header(&header));
        }
        let ids = &tables.module_ids;
        let known = tables.worker.state.enter(|recorder| {
            self.last_block.enter(|block| {
                self.write_changes(Some(recorder.modules()), ids, block, writer);
            });
        });
        if known.is_none() {
            // The tables thread was terminated while it changed its lists.
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
        let dropped = self.counters.dropped.load(Ordering::Relaxed);
        block.set_dropped(self.files.since(self.files.last(), 0, dropped).1);
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

/// Writes events into the last block of a process that ends.
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
