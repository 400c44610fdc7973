//! The files of a recording that continues from one file to the next without a gap.
//!
//! The writer opens the next file ([`Files::begin`]). The tables thread then writes its first STATE
//! block ([`Files::state`]) and, until the sampler has turned to the file, each of its events into
//! both. The sampler turns between two passes, and the tables thread after it; the code thread
//! follows when it has looked up what was seen before, and the runtimes thread after that. When all
//! have turned, the writer ends the file before. Each thread says by [`Files::turn`] that what it
//! hands over from then on is the next file's. Nobody waits for another.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stk_format::FileHeader;

/// Bytes of a file's header, in words.
const WORDS: usize = stk_format::FILE_HEADER_LEN / 8;

/// A thread that hands blocks to the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileThread {
    Tables = 0,
    Sampler = 1,
    Code = 2,
    Runtimes = 3,
}

/// What each file is, and which one each thread writes for. Files are numbered from 0. There are
/// two at most: the one that ends, and the next.
pub(crate) struct Files {
    headers: [[AtomicU64; WORDS]; 2],
    /// Samples taken, and lost, before a file.
    samples_before: [AtomicU64; 2],
    dropped_before: [AtomicU64; 2],
    /// The last file.
    last: AtomicU32,
    /// The last file whose STATE block was handed over.
    stated: AtomicU32,
    turned: [AtomicU32; 4],
    /// The first file that has not ended: the status shows it.
    present: AtomicU32,
}

impl Files {
    /// The first file.
    pub(crate) fn new(header: &FileHeader) -> Files {
        let files = Files {
            headers: Default::default(),
            samples_before: Default::default(),
            dropped_before: Default::default(),
            last: AtomicU32::new(0),
            stated: AtomicU32::new(0),
            turned: Default::default(),
            present: AtomicU32::new(0),
        };
        files.set_header(0, header);
        files
    }

    /// The header of a file.
    pub(crate) fn header(&self, file: u32) -> Option<FileHeader> {
        let mut bytes = [0; 8 * WORDS];
        for (to, from) in bytes.chunks_exact_mut(8).zip(self.headers.get(file as usize % 2)?) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_le_bytes());
        }
        FileHeader::decode(&bytes).ok()
    }

    fn set_header(&self, file: u32, header: &FileHeader) {
        let bytes = header.encode();
        if let Some(words) = self.headers.get(file as usize % 2) {
            for (to, from) in words.iter().zip(bytes.as_chunks().0) {
                to.store(u64::from_le_bytes(*from), Ordering::Relaxed);
            }
        }
    }

    /// For the writer: the next file begins. All threads must have turned to the one before.
    pub(crate) fn begin(&self, header: &FileHeader) -> u32 {
        let next = self.last() + 1;
        self.set_header(next, header);
        self.last.store(next, Ordering::Release);
        next
    }

    /// The last file that was begun.
    pub(crate) fn last(&self) -> u32 {
        self.last.load(Ordering::Acquire)
    }

    /// For the tables thread: the STATE block of this file is handed over. Samples lost so far were
    /// lost before it.
    pub(crate) fn state(&self, file: u32, dropped: u64) {
        set(&self.dropped_before, file, dropped);
        self.stated.store(file, Ordering::Release);
    }

    /// Whether a thread is to turn to the file after this one: all that comes first has happened.
    pub(crate) fn is_due(&self, thread: FileThread, present: u32) -> bool {
        let before = match thread {
            FileThread::Sampler => &self.stated,
            FileThread::Tables => self.of(FileThread::Sampler),
            // Its blocks begin after those that both files have.
            FileThread::Code => self.of(FileThread::Tables),
            FileThread::Runtimes => self.of(FileThread::Code),
        };
        before.load(Ordering::Acquire) > present
    }

    /// For the sampler, before it turns: so many samples were taken before this file.
    pub(crate) fn samples_before(&self, file: u32, samples: u64) {
        set(&self.samples_before, file, samples);
    }

    /// What a thread hands over from now on belongs to this file.
    pub(crate) fn turn(&self, thread: FileThread, file: u32) {
        self.of(thread).store(file, Ordering::Release);
    }

    /// The file that a thread writes for.
    pub(crate) fn turned(&self, thread: FileThread) -> u32 {
        self.of(thread).load(Ordering::Acquire)
    }

    /// Whether all threads write for this file.
    pub(crate) fn all_turned(&self, file: u32) -> bool {
        self.turned.iter().all(|turned| turned.load(Ordering::Acquire) == file)
    }

    /// Of `samples` and `dropped` samples of all files so far, those of this file and later ones.
    pub(crate) fn since(&self, file: u32, samples: u64, dropped: u64) -> (u64, u64) {
        let since = |all: u64, before| all.saturating_sub(at(before, file));
        (since(samples, &self.samples_before), since(dropped, &self.dropped_before))
    }

    /// Of `samples` and `dropped` samples of all files so far, those of this file alone.
    pub(crate) fn in_file(&self, file: u32, samples: u64, dropped: u64) -> (u64, u64) {
        let (last, next) = (self.last(), file.saturating_add(1));
        let turned = last >= next && self.turned(FileThread::Sampler) >= next;
        let stated = last >= next && self.stated.load(Ordering::Acquire) >= next;
        let until =
            |all, reached: bool, before: &[AtomicU64; 2]| if reached { at(before, next) } else { all };
        let samples = until(samples, turned, &self.samples_before);
        self.since(file, samples, until(dropped, stated, &self.dropped_before))
    }

    /// The first file that has not ended.
    pub(crate) fn present(&self) -> u32 {
        self.present.load(Ordering::Acquire)
    }

    /// For the writer: the files before this one have ended.
    pub(crate) fn set_present(&self, file: u32) {
        self.present.store(file, Ordering::Release);
    }

    fn of(&self, thread: FileThread) -> &AtomicU32 {
        let [tables, sampler, code, runtimes] = &self.turned;
        match thread {
            FileThread::Tables => tables,
            FileThread::Sampler => sampler,
            FileThread::Code => code,
            FileThread::Runtimes => runtimes,
        }
    }
}

fn at(of: &[AtomicU64; 2], file: u32) -> u64 {
    of.get(file as usize % 2).map_or(0, |one| one.load(Ordering::Relaxed))
}

fn set(of: &[AtomicU64; 2], file: u32, value: u64) {
    if let Some(one) = of.get(file as usize % 2) {
        one.store(value, Ordering::Relaxed);
    }
}
