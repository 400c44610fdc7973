//! Summarises a trace from its blocks' headers. It decodes no block, so even gigabytes take only a
//! moment.

use std::io::{self, Read, Seek, SeekFrom};
use stk_format::{BLOCK_HEADER_LEN, BlockHeader, BlockKind, FILE_HEADER_LEN, FileHeader};

/// The summary of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TraceSummary {
    /// Bytes of the file.
    pub bytes: u64,
    /// Samples in its whole blocks, idle ones included.
    pub samples: u64,
    pub dropped: u64,
    /// Milliseconds from the recording's start to its last event.
    pub elapsed_ms: u64,
    /// Whether the recording was finished: the END block is there.
    pub complete: bool,
}

/// Reads a trace's block headers up to its end or the first block that is damaged or not whole;
/// `None` if the file is not a trace.
///
/// # Errors
/// The system's error.
pub(crate) fn read(file: &mut (impl Read + Seek)) -> io::Result<Option<TraceSummary>> {
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut head = [0; FILE_HEADER_LEN];
    if !read_at(file, 0, &mut head)? {
        return Ok(None);
    }
    let Ok(header) = FileHeader::decode(&head) else { return Ok(None) };
    let mut contents = TraceSummary { bytes, ..TraceSummary::default() };
    let mut last = header.clock_start;
    let mut at = FILE_HEADER_LEN as u64;
    let mut head = [0; BLOCK_HEADER_LEN];
    while read_at(file, at, &mut head)?
        && let Some(block) = BlockHeader::decode(&head).filter(|block| block.salt == header.salt())
    {
        at += BLOCK_HEADER_LEN as u64 + u64::from(block.stored_len);
        if at > bytes {
            break;
        }
        contents.samples += u64::from(block.samples);
        contents.dropped = contents.dropped.max(block.dropped);
        contents.complete |= block.kind == BlockKind::End;
        last = last.max(block.last);
    }
    let ticks = u128::from((last - header.clock_start).0);
    contents.elapsed_ms = (ticks * 1000 / u128::from(header.clock_frequency.max(1))) as u64;
    Ok(Some(contents))
}

/// Fills `buffer` from `at`; false if the file ends before.
fn read_at(file: &mut (impl Read + Seek), at: u64, buffer: &mut [u8]) -> io::Result<bool> {
    file.seek(SeekFrom::Start(at))?;
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use stk_schema::Arch;
    use stk_tests::synth::{TraceBuilder, damage};

    /// Forty samples in two blocks.
    fn trace(finish: bool) -> Vec<u8> {
        let mut builder = TraceBuilder::new(Arch::X64);
        let thread = builder.thread(1, 44, "main", 0x2000);
        for time in 0..40 {
            builder.sample(thread, 10 + time, &[time; 17], &[time; 4]);
            if time == 19 {
                builder.cut();
            }
        }
        builder.cut();
        if finish { builder.finish() } else { builder.abandon() }
    }

    fn of(bytes: &[u8]) -> Option<TraceSummary> {
        read(&mut Cursor::new(bytes)).expect("memory can be read")
    }

    #[test]
    fn samples_of_a_finished_trace_are_counted() {
        let bytes = trace(true);
        let contents = of(&bytes).expect("a trace");
        assert_eq!((contents.samples, contents.complete), (40, true));
        assert_eq!(contents.bytes, bytes.len() as u64);
    }

    #[test]
    fn samples_in_whole_blocks_of_a_truncated_trace_are_counted() {
        let contents = of(&trace(false)).expect("a trace");
        assert_eq!((contents.samples, contents.complete), (40, false));
        let mut cut = trace(false);
        let seq = stk_format::Trace::open(&cut).expect("a trace").blocks().last().expect("blocks").header.seq;
        damage::cut_within(&mut cut, seq);
        let contents = of(&cut).expect("a trace");
        assert_eq!((contents.samples, contents.complete), (20, false));
    }

    #[test]
    fn a_file_that_is_not_a_trace_has_no_contents() {
        assert_eq!(of(b""), None);
        assert_eq!(of(&[0x55; 4096]), None);
    }
}
