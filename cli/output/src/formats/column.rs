//! A column of JSON values that is written after other columns.

use super::OutputError;
use super::sink::Sink;
use std::io::{Read, Seek, Write};
use tempfile::SpooledTempFile;

/// Bytes of a column that are held in memory. More are moved to a temporary file.
const IN_MEMORY: usize = 4 << 20;

/// Bytes that are moved at a time.
const PART: usize = 64 << 10;

/// The values of a column, separated by commas.
pub(super) struct SpooledColumn {
    file: SpooledTempFile,
    buffer: Vec<u8>,
    is_empty: bool,
}

impl SpooledColumn {
    pub(super) fn new() -> SpooledColumn {
        SpooledColumn { file: tempfile::spooled_tempfile(IN_MEMORY), buffer: Vec::new(), is_empty: true }
    }

    /// Appends a value that `write` makes.
    pub(super) fn push(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), OutputError> {
        if !std::mem::take(&mut self.is_empty) {
            self.buffer.push(b',');
        }
        write(&mut self.buffer);
        if self.buffer.len() >= PART { self.spool() } else { Ok(()) }
    }

    /// Appends values, each with a comma before it.
    pub(super) fn push_all(&mut self, bytes: &[u8]) -> Result<(), OutputError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // The first value of a column has no comma.
        let skipped = usize::from(std::mem::take(&mut self.is_empty));
        self.buffer.extend_from_slice(&bytes[skipped..]);
        if self.buffer.len() >= PART { self.spool() } else { Ok(()) }
    }

    /// Writes all values.
    pub(super) fn write(mut self, sink: &mut Sink) -> Result<(), OutputError> {
        self.spool()?;
        self.file.rewind().map_err(OutputError::Column)?;
        loop {
            let read = (&mut self.file).take(PART as u64).read_to_end(&mut sink.buffer);
            sink.settle()?;
            if read.map_err(OutputError::Column)? == 0 {
                return Ok(());
            }
        }
    }

    fn spool(&mut self) -> Result<(), OutputError> {
        self.file.write_all(&self.buffer).map_err(OutputError::Column)?;
        self.buffer.clear();
        Ok(())
    }
}
