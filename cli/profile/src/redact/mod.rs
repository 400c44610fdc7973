//! Makes a copy of a trace without what its stacks may hold of the program's data.
//!
//! Words of stacks, and registers, that are no addresses ([`KnownAddresses`]) become zero; texts
//! can go too ([`Texts`]). The copy has the blocks of the trace with their numbers, so that what
//! the trace has lost is missing in the copy. A block that cannot be read to its end is left out,
//! for nobody knows what it holds; so are events and blocks of types that this version does not
//! know.
//!
//! ```text
//! addresses  which words stay                      Trace -> KnownAddresses
//! texts      command lines, host, users in paths   Trace -> Texts
//! ```

mod addresses;
mod texts;

pub use addresses::KnownAddresses;
pub use texts::{Secret, Texts};

use crate::trace::{REDACTED_FROM, Trace};
use std::collections::BTreeSet;
use std::io;
use stk_base::text;
use stk_format::event::encode;
use stk_format::{
    BlockKind, BlockRef, FLAG_SUPPLEMENT, NoSupplement, Rewriter, Scratch, SealError, Supplement,
    SupplementWriter, TraceCopy, rewrite_events, rewrite_memory,
};
use stk_schema::event::{CheckWalk, Event, Metadata, Redaction};
use stk_schema::identity::ContentHash;
use thiserror::Error;

/// The rule of the words, as the copy states it.
const WORDS_RULE: &str =
    "stk redact: words and registers that are no addresses of modules, dynamic code or stacks";

/// Whether a trace says of itself that it is such a copy.
pub fn is_copy(trace: &Trace<'_>) -> bool {
    trace.timeline.redacted.contains_key(WORDS_RULE)
}

/// Bytes that the blocks of a trace may unpack to for each of its own, and those that any may have.
const RAW_PER_BYTE: u64 = 512;
const RAW_FREE: u64 = 16 << 20;

/// Why there is no copy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RedactError {
    /// No block can be read in which the copy could say that it is one.
    #[error("it has no whole META or STATE block, in which the copy would say that it is redacted")]
    NoPlace,
    /// No memory, or the compressor failed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The supplement cannot be made.
    #[error("its supplement cannot be copied: {0}")]
    Supplement(#[from] NoSupplement),
    /// The copy cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// What was changed.
#[derive(Clone, Default, Debug)]
pub struct RedactReport {
    /// Stored words and registers that became zero.
    pub words: u64,
    /// Stored words and registers that stayed because they are addresses. Zeros are in neither.
    pub kept: u64,
    /// Texts that were changed or left out.
    pub texts: u64,
    /// Events of types that this version does not know, left out.
    pub unknown_events: u64,
    /// What else the copy lacks, one sentence each.
    pub left_out: Vec<String>,
}

/// A trace that is being copied.
pub struct Redactor<'a> {
    trace: &'a Trace<'a>,
    known: KnownAddresses,
    texts: Texts,
    word: usize,
    report: RedactReport,
}

impl<'a> Redactor<'a> {
    /// Reads the trace and decides what goes. `dropped` is dropped beside the words.
    pub fn new(trace: &'a Trace<'a>, dropped: &BTreeSet<Secret>) -> Redactor<'a> {
        let (known, texts) = (KnownAddresses::of(trace), Texts::of(trace, dropped));
        let word = trace.header().word();
        Redactor { trace, known, texts, word, report: RedactReport::default() }
    }

    /// Passes the copy, except for the supplement, to `write`. `origin`: the digest of what is
    /// copied, by which the copy is known as one of that.
    pub fn copy(
        &mut self,
        origin: ContentHash,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<RedactReport, RedactError> {
        let blocks: Vec<&BlockRef> = self.blocks(false).collect();
        let (mut scratch, mut out) = (Scratch::new(), Vec::new());
        // The first block states how many words are overwritten in all: they are counted before.
        let mut place = None;
        let mut broken = BTreeSet::new();
        let stored: u64 = blocks.iter().map(|block| u64::from(block.header.stored_len)).sum();
        let mut left = RAW_FREE + RAW_PER_BYTE * stored;
        let mut too_much = 0u64;
        for block in &blocks {
            let Some(rest) = left.checked_sub(block.header.raw_len.into()) else {
                broken.insert(block.header.seq);
                too_much += 1;
                continue;
            };
            left = rest;
            let before = self.report.clone();
            match self.rewrite(block, &mut scratch, &mut out) {
                Ok(_) if matches!(block.header.kind, BlockKind::Meta | BlockKind::State) => {
                    place.get_or_insert(block.header.seq);
                }
                Ok(_) => {}
                Err(sentence) => {
                    broken.insert(block.header.seq);
                    self.report = before;
                    self.report.left_out.push(sentence);
                }
            }
        }
        let place = place.ok_or(RedactError::NoPlace)?;
        if too_much > 0 {
            let blocks = text::counted(too_much, "block");
            self.report.left_out.push(format!("{blocks}: more than a recording of this size unpacks to"));
        }
        let counted = std::mem::take(&mut self.report);
        self.texts.finish_first_pass();
        let mut copy = TraceCopy::new(self.texts.header())?;
        write(&self.texts.header().encode())?;
        for block in blocks.iter().filter(|block| !broken.contains(&block.header.seq)) {
            let Ok(mut events) = self.rewrite(block, &mut scratch, &mut out) else { continue };
            if block.header.seq == place {
                for (rule, words) in self.rules(counted.words) {
                    let event = Event::Redaction(Redaction { rule: rule.as_bytes(), words });
                    out.extend(encode(&event, block.header.first));
                    events += 1;
                }
                // Of a copy of a copy, the first one's origin stays.
                if self.trace.fact(REDACTED_FROM).is_none() {
                    let (key, value) = (REDACTED_FROM.as_bytes(), origin.to_string());
                    let event = Event::Metadata(Metadata { key, value: value.as_bytes() });
                    out.extend(encode(&event, block.header.first));
                    events += 1;
                }
            }
            write(copy.block(&block.header, &out, events)?)?;
        }
        if self.trace.blocks().is_complete() {
            while let Some(bytes) = copy.end()? {
                write(bytes)?;
            }
        }
        let mut left_out = counted.left_out;
        if self.texts.unsearched() > 0 {
            left_out.push(format!(
                "{} of .NET's lists, which could not be searched for what --drop names: they follow a gap, are too large, \
                 or the command line is not known",
                text::counted(self.texts.unsearched(), "piece")
            ));
        }
        Ok(RedactReport { left_out, ..std::mem::take(&mut self.report) })
    }

    /// The bytes of the supplement behind the copy, which is `copied` so far. Empty if the trace
    /// has none.
    ///
    /// # Errors
    ///
    /// When it cannot be made: a trace with damage has none.
    pub fn supplement(&mut self, copied: &[u8]) -> Result<Vec<u8>, RedactError> {
        if !matches!(self.trace.blocks().supplement(), Supplement::Whole { .. }) {
            return Ok(Vec::new());
        }
        let copied = stk_format::Trace::open(copied).map_err(|_| NoSupplement::Empty)?;
        let mut writer = SupplementWriter::new(&copied)?;
        let blocks: Vec<&BlockRef> = self.blocks(true).collect();
        let mut scratch = Scratch::new();
        for block in blocks {
            let Ok(events) = self.trace.blocks().events(block, &mut scratch) else { continue };
            for event in events.map_while(Result::ok) {
                let mut result = Ok(());
                self.event(&event, &mut |event| {
                    if let Err(error) = writer.event(block.header.kind, event) {
                        result = Err(error);
                    }
                });
                result?;
            }
        }
        Ok(writer.finish()?.bytes)
    }

    /// The blocks of the recording, or of its supplement, without the index.
    fn blocks(&self, supplement: bool) -> impl Iterator<Item = &'a BlockRef> + use<'a> {
        self.trace.blocks().blocks().iter().filter(move |block| {
            let flagged = block.header.flags & FLAG_SUPPLEMENT != 0;
            flagged == supplement && block.header.kind != BlockKind::Index
        })
    }

    /// The rules that the copy was made by, and the words that each overwrote.
    fn rules(&self, words: u64) -> Vec<(String, u64)> {
        let texts = self.texts.dropped().iter().map(|secret| (secret.rule(), 0));
        std::iter::once((WORDS_RULE.to_owned(), words)).chain(texts).collect()
    }

    /// The block's events as the copy has them, in `out`, and their number. The error is a
    /// sentence.
    fn rewrite(&mut self, block: &BlockRef, scratch: &mut Scratch, out: &mut Vec<u8>) -> Result<u32, String> {
        if matches!(block.header.kind, BlockKind::Other(_)) {
            let kind = block.header.kind.code();
            return Err(format!("block {}: kind {kind} is not known", block.header.seq));
        }
        let raw = self.trace.blocks().payload(block, scratch).map_err(|error| error.to_string())?;
        let word = self.word;
        rewrite_events(raw, &block.header, word, self, out).map_err(|error| error.to_string())
    }
}

impl Rewriter for Redactor<'_> {
    fn word(&mut self, word: u64) -> u64 {
        if word == 0 {
            0
        } else if self.known.keeps(word) {
            self.report.kept += 1;
            word
        } else {
            self.report.words += 1;
            0
        }
    }

    fn event(&mut self, event: &Event<'_>, put: &mut dyn FnMut(&Event<'_>)) {
        match event {
            Event::Unknown { .. } => self.report.unknown_events += 1,
            Event::Memory(memory) => {
                let mut bytes = memory.bytes.to_vec();
                rewrite_memory(&mut bytes, memory.address, self.word, |word| self.word(word));
                put(&Event::Memory(stk_schema::event::Memory { bytes: &bytes, ..*memory }));
            }
            // A frame is any word of the stack where the system's walk went astray.
            Event::CheckWalk(walk) => {
                let frames = walk.frames.iter().map(|&(ip, sp)| (self.word(ip), self.word(sp))).collect();
                let (thread, time, flags) = (walk.thread, walk.time, walk.flags);
                put(&Event::CheckWalk(CheckWalk { thread, time, flags, frames }));
            }
            event => self.report.texts += self.texts.event(event, put),
        }
    }
}
