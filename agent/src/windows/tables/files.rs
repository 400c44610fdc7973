//! The next file of the recording: what it begins with, and when this thread turns to it
//! ([`crate::record::files`]).

use alloc::vec::Vec;
use core::ffi::c_void;
use core::mem::offset_of;

use core::sync::atomic::Ordering;
use stk_format::BlockKind;
use stk_schema::bytes::{u32_at, u64_at};
use stk_schema::control::{AgentConfig, CONTROL_VERSION, EMBED_NONE, FIRST_CONFIG_SIZE};
use stk_schema::event::{Event, ModuleFlags, RateChange};
use stk_schema::requests::{RESULT_DONE, RESULT_ENDED, RESULT_REFUSED, RESULT_UNKNOWN, RESULT_WAS_SO};

use super::{TablesRecorder, loader};
use crate::record::event_writer::StoredBlobs;
use crate::record::files::FileThread;
use crate::record::image::Memory as _;
use crate::record::modules::Events as _;
use crate::record::requests::HostRequest;
use crate::windows::shared::events::{WAKE_CODE, WAKE_SAMPLER, WAKE_WRITER};
use crate::windows::shared::next_file::{NextFile, Offered};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::ticks;
use crate::windows::system::files::OutputFile;

/// Milliseconds that a host's file waits for the file before to be whole. A host waits for longer.
const PATIENCE_MS: u64 = 5_000;
/// Most bytes of the next file's metadata.
const MOST_METADATA: usize = 1 << 20;

impl TablesRecorder {
    /// A host has opened the next file. False: the request is to be looked at again later.
    pub(super) fn next_file(&mut self, request: &HostRequest) -> Option<u32> {
        let asked = *self.file_asked.get_or_insert_with(ticks);
        let late = ticks().saturating_sub(asked).0 >= PATIENCE_MS * self.settings.ticks_per_ms;
        // Each file is to have its tables, so that it is whole by itself.
        if !self.offer.is_free() || !self.unread.is_empty() || self.offered.is_some() {
            return late.then(|| {
                self.file_asked = None;
                RESULT_WAS_SO
            });
        }
        self.file_asked = None;
        let Some((file, metadata)) = self.read_file(request) else { return Some(RESULT_UNKNOWN) };
        self.offer.put(file);
        self.offered = Some((request.clone(), metadata));
        WAKE_WRITER.signal();
        None
    }

    /// What the host says of the file.
    fn read_file(&self, request: &HostRequest) -> Option<(NextFile, Vec<u8>)> {
        let (address, number) = (u64_at(request.bytes(), 0)?, u32_at(request.bytes(), 8)?);
        let mut config = [0; FIRST_CONFIG_SIZE];
        if !self.memory.read(address, &mut config) {
            return None;
        }
        let word = |at| u32_at(&config, at);
        let long = |at| u64_at(&config, at);
        let fits = word(offset_of!(AgentConfig, version)) == Some(CONTROL_VERSION);
        let len = word(offset_of!(AgentConfig, metadata_len))? as usize;
        let output = long(offset_of!(AgentConfig, output))?;
        if !fits || len > MOST_METADATA || output == 0 {
            return None;
        }
        let mut metadata = alloc::vec![0; len];
        if len != 0 && !self.memory.read(long(offset_of!(AgentConfig, metadata))?, &mut metadata) {
            return None;
        }
        let uuid = config.get(offset_of!(AgentConfig, uuid)..)?.first_chunk()?;
        let file = NextFile {
            output: OutputFile(output as usize as *mut c_void),
            uuid: *uuid,
            max_bytes: long(offset_of!(AgentConfig, max_bytes))?,
            number,
        };
        Some((file, metadata))
    }

    /// Continues in the next file, as far as the other threads have.
    pub(super) fn follow_files(&mut self) {
        if let Some((request, metadata)) = self.offered.take() {
            match self.offer.answer() {
                Offered::Taken => {
                    self.settings.metadata = metadata;
                    self.answer(&request, RESULT_DONE);
                    self.state_next_file();
                }
                Offered::Waits => self.offered = Some((request, metadata)),
                Offered::Refused | Offered::Nothing => self.answer(&request, RESULT_REFUSED),
            }
        }
        let files = self.journal.files().clone();
        if self.journal.writes_both() && files.is_due(FileThread::Tables, self.journal.file()) {
            self.turn();
        }
    }

    /// Writes the next file's first blocks. From then on each event goes into both files, until the
    /// sampler has turned to the next.
    fn state_next_file(&mut self) {
        self.drain_loader();
        self.look_for_unlisted();
        let own_cpu_ns = self.own_cpu_ns();
        self.list_threads(stk_schema::event::ThreadFlags::empty());
        self.losses();
        self.measurements(own_cpu_ns);
        self.journal.begin_next();
        self.journal.switch(BlockKind::State);
        self.clock();
        self.metadata();
        self.fact("rotation.continued", b"1");
        let main = self.modules.live().iter().find(|module| module.flags.contains(ModuleFlags::MAIN));
        if let Some(path) = main.map(|main| main.seen.path.clone()) {
            self.fact("exe", &path);
        }
        self.contents = StoredBlobs::default();
        self.modules.begin_file();
        self.threads.begin_file();
        self.restate_lists();
        self.restate_rate();
        self.costs_written = false;
        self.suspension_costs();
        self.journal.switch(BlockKind::Meta);
        self.state_at = ticks();
        let files = self.journal.files().clone();
        self.journal.write_both();
        files.state(self.journal.file() + 1, self.counters.dropped.load(Ordering::Relaxed));
        WAKE_SAMPLER.signal();
    }

    /// The rate and the pause that are in force.
    fn restate_rate(&mut self) {
        let time = ticks();
        if self.rate_written != 0 {
            let rate_mhz = self.rate_of(self.rate_written);
            self.journal.event(&Event::RateChange(RateChange { time, rate_mhz }));
        }
        if self.pauses_written % 2 == 1 {
            self.journal.event(&Event::RateChange(RateChange { time, rate_mhz: 0 }));
        }
    }

    /// Turns to the next file: all that happened before its samples is in both.
    fn turn(&mut self) {
        self.drain_loader();
        self.journal.turn();
        // What the two files have in common ends here.
        let turned = alloc::format!("{}", ticks().0);
        self.fact("rotation.turned", turned.as_bytes());
        self.journal.files().turn(FileThread::Tables, self.journal.file());
        let modules: Vec<(u64, u64)> =
            self.modules.live().iter().map(|module| (module.instance, module.seen.base)).collect();
        for (instance, base) in modules {
            if self.unread.contains(&instance) {
                continue;
            }
            if self.settings.embed != EMBED_NONE {
                loader::tables_read(self.tickets.take(instance));
                self.tickets.put(instance, loader::expect(base));
            }
            self.unread.push_back(instance);
            SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
        }
        WAKE_CODE.signal();
        WAKE_WRITER.signal();
    }

    fn answer(&mut self, request: &HostRequest, result: u32) {
        crate::windows::shared::state::REQUESTS.answer(request, result);
    }

    /// The recording ends: a file that was offered and not opened is not written.
    pub(super) fn end_offer(&mut self) {
        if let Some((request, _)) = self.offered.take() {
            // Whoever has the handle closes it: twice would close another one of the program's.
            let ended = self.offer.withdraw();
            self.answer(&request, if ended { RESULT_ENDED } else { RESULT_DONE });
        }
    }
}
