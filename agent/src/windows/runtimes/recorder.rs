//! Writes RUNTIME_INFO, and the streams with the names of a runtime's methods.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use stk_schema::event::{Event, Nettrace, RuntimeInfo, RuntimeKind};

use super::answers::{Answers, AskError};
use super::shared::FoundRuntime;
use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dotnet::names::Names;
use crate::record::event_writer::EventWriter;
use crate::record::files::{FileThread, Files};
use crate::record::image::Memory;
use crate::record::modules::Events;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::state::MAILBOX;
use crate::windows::system::api::ticks;

/// Most bytes of a stream per event.
pub(super) const PIECE: usize = 32 << 10;
/// Received bytes after which the events are handed to the writer.
const FLUSH: u64 = 256 << 10;

pub(super) struct ListedRuntime {
    module: u64,
    pub(super) kind: RuntimeKind,
    pub(super) version: Vec<u8>,
    /// Whether another runtime was found before it.
    pub(super) second: bool,
}

/// Writes the events of runtimes. This is the part of the thread's state that others may flush.
pub(crate) struct RuntimesRecorder {
    journal: EventWriter<JournalPace>,
    known: Vec<ListedRuntime>,
    pub(super) answers: Answers,
    pub(super) asking: bool,
    /// The note about the host's answers, if it gets requests.
    pub(super) names: Option<String>,
    /// The stream that is being received: number, bytes written, bytes not written yet.
    session: u64,
    offset: u64,
    piece: Vec<u8>,
    unflushed: u64,
}

impl RuntimesRecorder {
    /// A recorder that has written nothing yet.
    pub(crate) fn new(journal: EventWriter<JournalPace>) -> RuntimesRecorder {
        RuntimesRecorder {
            journal,
            known: Vec::new(),
            answers: Answers::default(),
            asking: false,
            names: None,
            session: 0,
            offset: 0,
            piece: Vec::with_capacity(PIECE),
            unflushed: 0,
        }
    }

    /// Hands over what was received and written. Also used at the end of the process.
    pub(crate) fn flush(&mut self) {
        self.write_piece();
        self.journal.flush();
        self.unflushed = 0;
    }

    /// The file that events go into, and all files.
    pub(super) fn files(&self) -> (u32, Arc<Files>) {
        (self.journal.file(), self.journal.files().clone())
    }

    /// Turns to the next file, and states there again what is known.
    pub(super) fn turn(&mut self) {
        self.flush();
        self.journal.turn();
        self.journal.restate();
        self.journal.files().turn(FileThread::Runtimes, self.journal.file());
    }

    pub(super) fn found(&mut self, found: &FoundRuntime, descriptor: Option<&Descriptor>) {
        let known = ListedRuntime {
            module: found.module,
            kind: found.kind,
            version: found.version.clone(),
            second: !self.known.is_empty(),
        };
        self.write(&known, descriptor);
        self.known.push(known);
        self.flush();
    }

    /// Writes every runtime again, without its descriptor, which stays valid.
    fn report(&mut self) {
        for known in core::mem::take(&mut self.known) {
            self.write(&known, None);
            self.known.push(known);
        }
        self.flush();
    }

    /// Writes the current facts of a runtime, with its descriptor if there is one to write.
    fn write(&mut self, known: &ListedRuntime, descriptor: Option<&Descriptor>) {
        let pointers = descriptor.map(Descriptor::pointer_bytes).unwrap_or_default();
        let note = self.note(known);
        self.journal.event(&Event::RuntimeInfo(RuntimeInfo {
            module: known.module,
            time: ticks(),
            kind: u64::from(known.kind as u32),
            version: &known.version,
            descriptor: descriptor.map_or(&[], |descriptor| &descriptor.json),
            pointer_data: &pointers,
            note: note.as_bytes(),
        }));
    }

    /// Asks the host or takes its answers; see [`Names::step`].
    pub(super) fn step_names(&mut self, names: &mut Names, memory: &impl Memory, at_once: bool) {
        if names.step(&MAILBOX, ticks(), at_once, memory, &mut self.journal) {
            self.journal.flush();
        }
    }

    /// Writes the note about the host's answers, if it changed.
    pub(super) fn note_names(&mut self, names: Option<String>) {
        if names != self.names {
            self.names = names;
            self.report();
        }
    }

    pub(super) fn begin_stream(&mut self) {
        self.write_piece();
        self.session += 1;
        self.offset = 0;
        self.asking = true;
        self.report();
    }

    pub(super) fn received(&mut self, bytes: &[u8]) {
        self.answers.bytes += bytes.len() as u64;
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.write_piece();
        }
        if self.unflushed >= FLUSH {
            self.flush();
        }
    }

    pub(super) fn end_stream(&mut self, result: Result<(), AskError>) {
        match result {
            Ok(()) => self.answers.whole += 1,
            Err(_) => self.answers.cut += 1,
        }
        self.write_piece();
    }

    /// Notes the result of asking, with or without a stream.
    pub(super) fn asked(&mut self, result: Result<(), AskError>, version: Option<Vec<u8>>) {
        self.asking = false;
        let changed = self.answers.error != result.err();
        self.answers.error = result.err();
        let mut named = false;
        if let (Some(version), [known]) = (version, &mut self.known[..])
            && !version.is_empty()
        {
            named = known.version != version;
            known.version = version;
        }
        if changed || named || result.is_ok() {
            self.report();
        }
    }

    fn write_piece(&mut self) {
        if self.piece.is_empty() {
            return;
        }
        let event = Event::Nettrace(Nettrace {
            session: self.session,
            time: ticks(),
            offset: self.offset,
            bytes: &self.piece,
        });
        self.journal.event(&event);
        self.offset += self.piece.len() as u64;
        self.unflushed += self.piece.len() as u64;
        self.piece.clear();
    }
}
