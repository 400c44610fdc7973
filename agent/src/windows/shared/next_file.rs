//! The next file of a recording: the tables thread, which gets it from a host, offers it, and the
//! writer opens it.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use stk_format::FileHeader;
use stk_schema::control::ROTATION_NONE;

use crate::record::files::Files;
use crate::record::shared::Counters;
use crate::record::writer::{WriteError, Writer, Writers};
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::state::STATUS;
use crate::windows::system::api::{SystemApi, ticks, utc};
use crate::windows::system::files::OutputFile;
use crate::windows::system::heap;

/// A file that a host has opened.
pub(crate) struct NextFile {
    pub output: OutputFile,
    pub uuid: [u8; 16],
    /// Most bytes; 0 = no limit.
    pub max_bytes: u64,
    /// The number in its name.
    pub number: u32,
}

/// What became of an offer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Offered {
    Nothing = 0,
    Waits = 1,
    /// The file has its header.
    Taken = 2,
    Refused = 3,
}

/// The next file, on its way from the tables thread to the writer.
pub(crate) struct FileOffer {
    pub files: Arc<Files>,
    api: &'static SystemApi,
    header: FileHeader,
    /// Bytes of the largest block.
    capacity: usize,
    file: Exclusive<Option<NextFile>>,
    state: AtomicU8,
    /// The number in the next file's name.
    number: AtomicU32,
    /// When the present file began, in ticks; and the next.
    began: [AtomicU64; 2],
}

impl FileOffer {
    /// For a recording that begins with a file of this header.
    pub(crate) fn new(
        files: Arc<Files>,
        api: &'static SystemApi,
        header: FileHeader,
        capacity: usize,
    ) -> FileOffer {
        FileOffer {
            files,
            api,
            header,
            capacity,
            file: Exclusive::new(None),
            state: AtomicU8::new(Offered::Nothing as u8),
            number: AtomicU32::new(0),
            began: [AtomicU64::new(header.clock_start.0), AtomicU64::new(0)],
        }
    }

    /// Whether the recording is in one file, so that another can be offered.
    pub(crate) fn is_free(&self) -> bool {
        let last = self.files.last();
        self.files.present() == last && self.files.all_turned(last)
    }

    /// Offers a file; no other one may wait.
    pub(crate) fn put(&self, file: NextFile) {
        self.number.store(file.number, Ordering::Relaxed);
        self.file.enter(|place| *place = Some(file));
        self.state.store(Offered::Waits as u8, Ordering::Release);
    }

    /// What the writer did with the file. It is given once.
    pub(crate) fn answer(&self) -> Offered {
        let answer = match self.state.load(Ordering::Acquire) {
            1 => return Offered::Waits,
            2 => Offered::Taken,
            3 => Offered::Refused,
            _ => Offered::Nothing,
        };
        self.state.store(Offered::Nothing as u8, Ordering::Release);
        answer
    }

    /// Takes an offer back. True if the writer had not seen it: the handle is the host's again.
    pub(crate) fn withdraw(&self) -> bool {
        match self.file.enter(Option::take) {
            Some(Some(file)) => {
                self.state.store(Offered::Nothing as u8, Ordering::Release);
                // Not closed here: the host closes it.
                core::mem::forget(file.output);
                true
            }
            _ => false,
        }
    }

    /// For the writer: opens the file that is offered.
    pub(crate) fn take(&self, writers: &mut Writers<OutputFile>) {
        if self.state.load(Ordering::Acquire) != Offered::Waits as u8 {
            return;
        }
        let Some(Some(file)) = self.file.enter(Option::take) else { return };
        let mut header = self.header;
        (header.uuid, header.clock_start, header.utc_start) = (file.uuid, ticks(), utc(self.api));
        let room = heap::can_allocate(2 * self.capacity + (4 << 20));
        let opened =
            if room { Writer::new(&header, self.capacity, file.output) } else { Err(WriteError::Full) };
        let answer = match opened {
            Ok(mut writer) => {
                writer.set_limit(file.max_bytes);
                writers.add(writer);
                let number = self.files.begin(&header);
                if let Some(began) = self.began.get(number as usize % 2) {
                    began.store(header.clock_start.0, Ordering::Relaxed);
                }
                Offered::Taken
            }
            Err(error) => {
                if let WriteError::System(code) = error {
                    STATUS.system_error.store(code, Ordering::Relaxed);
                }
                STATUS.set_message("the next file could not be begun");
                Offered::Refused
            }
        };
        self.state.store(answer as u8, Ordering::Release);
    }

    /// For the writer: a file of so many bytes has ended. From now on the status shows the next.
    pub(crate) fn publish_end(&self, file: u32, counters: &Counters, bytes: u64, clock: &SessionClock) {
        let all = (counters.samples.load(Ordering::Relaxed), counters.dropped.load(Ordering::Relaxed));
        let (samples, dropped) = self.files.in_file(file, all.0, all.1);
        let began = |file: u32| self.began.get(file as usize % 2).map_or(0, |at| at.load(Ordering::Relaxed));
        let ticks = stk_schema::Ticks(began(file + 1).saturating_sub(began(file)));
        let add = |to: &AtomicU64, more| to.fetch_add(more, Ordering::Relaxed);
        if STATUS.rotation.load(Ordering::Acquire) != ROTATION_NONE {
            add(&STATUS.earlier_samples, samples);
            add(&STATUS.earlier_dropped, dropped);
            add(&STATUS.earlier_bytes, bytes);
            add(&STATUS.earlier_ms, clock.milliseconds(ticks));
            STATUS.file_number.store(self.number.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.files.set_present(file + 1);
        let (samples, dropped) = self.files.since(file + 1, all.0, all.1);
        STATUS.samples.store(samples, Ordering::Relaxed);
        STATUS.dropped.store(dropped, Ordering::Relaxed);
        STATUS.elapsed_ms.store(self.elapsed_ms(clock), Ordering::Relaxed);
        // Last: hosts take it for the sign that the file before is whole.
        STATUS.file_index.fetch_add(1, Ordering::Release);
    }

    /// Milliseconds since the present file began.
    pub(crate) fn elapsed_ms(&self, clock: &SessionClock) -> u64 {
        let began = self.began.get(self.files.present() as usize % 2);
        let began = began.map_or(clock.started, |at| stk_schema::Ticks(at.load(Ordering::Relaxed)));
        clock.milliseconds(ticks().saturating_sub(began))
    }
}
