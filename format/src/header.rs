//! The fixed-size records: file header, block header, tail. `format/SPEC.md` draws them.

use crate::{DecodeError, MAJOR, MINOR};
use stk_schema::bytes::{u16_in, u32_in, u64_in};
use stk_schema::{Arch, Os, Ticks, limits};

/// Bytes of a file header.
pub const FILE_HEADER_LEN: usize = 128;
/// Bytes of a block header.
pub const BLOCK_HEADER_LEN: usize = 104;
/// Bytes of the tail.
pub const TAIL_LEN: usize = 40;

/// zstd's skippable-frame magics (RFC 8878, section 3.1.2) that open the three records.
pub(crate) const FILE_FRAME: u32 = 0x184D_2A50;
pub(crate) const BLOCK_FRAME: u32 = 0x184D_2A51;
pub(crate) const TAIL_FRAME: u32 = 0x184D_2A52;
pub(crate) const FILE_MAGIC: [u8; 8] = *b"STKTRACE";
pub(crate) const BLOCK_MAGIC: [u8; 4] = *b"STKB";
pub(crate) const TAIL_MAGIC: [u8; 8] = *b"STKTAIL1";

/// CRC-32C (Castagnoli), as in iSCSI (RFC 3720).
const CRC: crc::Crc<u32, crc::Table<16>> = crc::Crc::<u32, crc::Table<16>>::new(&crc::CRC_32_ISCSI);

/// Unit of the CPU deltas of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum CpuUnit {
    /// No CPU deltas are recorded.
    #[default]
    None = 0,
    /// Thread times, in units of 100 ns.
    Time100ns = 1,
    /// Thread cycle counts.
    Cycles = 2,
}

impl CpuUnit {
    /// The unit stored as `code`; an unknown code means that the deltas have no known meaning.
    pub const fn from_code(code: u8) -> CpuUnit {
        match code {
            1 => CpuUnit::Time100ns,
            2 => CpuUnit::Cycles,
            _ => CpuUnit::None,
        }
    }
}

/// The first 128 bytes of a trace: the process recorded, its machine and the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHeader {
    /// Minor version of the format that wrote the file.
    pub minor: u16,
    /// Architecture of the process.
    pub arch: Arch,
    /// Operating system of the process.
    pub os: Os,
    /// Random identity of the trace; its first four bytes are the salt of its blocks.
    pub uuid: [u8; 16],
    /// Features that a reader must know to read the file at all.
    pub incompatible: u64,
    /// Features that a reader may ignore.
    pub compatible: u64,
    /// Ticks of the trace's clock per second.
    pub clock_frequency: u64,
    /// The clock when the recording started.
    pub clock_start: Ticks,
    /// The same moment in nanoseconds since the Unix epoch.
    pub utc_start: u64,
    /// Creation time of the process, nanoseconds since the Unix epoch; 0 if unknown.
    pub process_created: u64,
    /// Process id.
    pub pid: u32,
    /// Nominal sampling rate, in millihertz.
    pub rate_mhz: u32,
    /// Identity of the system's boot; 0 if unknown. With pid and creation time it names the
    /// process.
    pub boot_id: u64,
    /// Unit of CPU deltas.
    pub cpu_unit: CpuUnit,
}

/// Why bytes are not a file header that this version can read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("the file is too short for a trace header ({0} bytes)")]
    TooShort(usize),
    /// The magic numbers are missing.
    #[error("not a .stk trace: its first bytes are not a trace header")]
    NotATrace,
    /// Checksum mismatch.
    #[error("the trace header is damaged: its checksum does not match")]
    Damaged,
    /// Written by a later major version.
    #[error("trace format version {major}.{minor}: this program reads version 1; use a newer stk")]
    Version {
        /// Major version found.
        major: u16,
        /// Minor version found.
        minor: u16,
    },
    /// Needs features unknown here.
    #[error("the trace needs features that this program does not know (bits {0:#x}); use a newer stk")]
    Features(u64),
    /// Architecture, operating system or pointer size not known.
    #[error(
        "the trace was recorded on a machine that this program does not know (architecture {arch}, pointer size {pointer}, system {os}); use a newer stk"
    )]
    Machine {
        /// Architecture code.
        arch: u8,
        /// Pointer size in bytes.
        pointer: u8,
        /// Operating system code.
        os: u32,
    },
}

impl FileHeader {
    /// The number that every block of this trace repeats.
    pub fn salt(&self) -> u32 {
        u32::from_le_bytes([self.uuid[0], self.uuid[1], self.uuid[2], self.uuid[3]])
    }

    /// Bytes of a stack word: 4 or 8.
    pub fn word(&self) -> usize {
        self.arch.pointer_size()
    }

    /// The bytes that a file stores.
    pub fn encode(&self) -> [u8; FILE_HEADER_LEN] {
        let mut out = [0; FILE_HEADER_LEN];
        put(&mut out, 0, &FILE_FRAME.to_le_bytes());
        put(&mut out, 4, &(FILE_HEADER_LEN as u32 - 8).to_le_bytes());
        put(&mut out, 8, &FILE_MAGIC);
        put(&mut out, 16, &MAJOR.to_le_bytes());
        put(&mut out, 18, &self.minor.to_le_bytes());
        put(&mut out, 20, &(FILE_HEADER_LEN as u16).to_le_bytes());
        out[22] = self.arch as u8;
        out[23] = self.word() as u8;
        put(&mut out, 24, &self.salt().to_le_bytes());
        put(&mut out, 28, &(self.os as u32).to_le_bytes());
        put(&mut out, 32, &self.uuid);
        put(&mut out, 48, &self.incompatible.to_le_bytes());
        put(&mut out, 56, &self.compatible.to_le_bytes());
        put(&mut out, 64, &self.clock_frequency.to_le_bytes());
        put(&mut out, 72, &self.clock_start.0.to_le_bytes());
        put(&mut out, 80, &self.utc_start.to_le_bytes());
        put(&mut out, 88, &self.process_created.to_le_bytes());
        put(&mut out, 96, &self.pid.to_le_bytes());
        put(&mut out, 100, &self.rate_mhz.to_le_bytes());
        put(&mut out, 104, &self.boot_id.to_le_bytes());
        out[112] = self.cpu_unit as u8;
        let crc = CRC.checksum(&out[..124]);
        put(&mut out, 124, &crc.to_le_bytes());
        out
    }

    /// Whether `data` begins as every trace does, whatever follows. 16 bytes are enough.
    pub fn is_at_start_of(data: &[u8]) -> bool {
        let begin = data.first_chunk::<16>();
        begin.is_some_and(|begin| u32_in(begin, 0) == FILE_FRAME && begin[8..] == FILE_MAGIC)
    }

    /// Reads the header at the start of `data`. It checks the checksum before the version, so it
    /// never mistakes a damaged header for one of a newer version.
    pub fn decode(data: &[u8]) -> Result<FileHeader, HeaderError> {
        let Some(bytes) = data.first_chunk::<FILE_HEADER_LEN>() else {
            return Err(HeaderError::TooShort(data.len()));
        };
        if !FileHeader::is_at_start_of(bytes) {
            return Err(HeaderError::NotATrace);
        }
        if CRC.checksum(&bytes[..124]) != u32_in(bytes, 124) {
            return Err(HeaderError::Damaged);
        }
        let (major, minor) = (u16_in(bytes, 16), u16_in(bytes, 18));
        if major != MAJOR || usize::from(u16_in(bytes, 20)) != FILE_HEADER_LEN {
            return Err(HeaderError::Version { major, minor });
        }
        let incompatible = u64_in(bytes, 48);
        if incompatible != 0 {
            return Err(HeaderError::Features(incompatible));
        }
        let (arch, pointer, os) = (bytes[22], bytes[23], u32_in(bytes, 28));
        let machine = HeaderError::Machine { arch, pointer, os };
        let arch = Arch::from_code(arch).ok_or(machine)?;
        let os = u8::try_from(os).ok().and_then(Os::from_code).ok_or(machine)?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[32..48]);
        let header = FileHeader {
            minor,
            arch,
            os,
            uuid,
            incompatible,
            compatible: u64_in(bytes, 56),
            clock_frequency: u64_in(bytes, 64),
            clock_start: Ticks(u64_in(bytes, 72)),
            utc_start: u64_in(bytes, 80),
            process_created: u64_in(bytes, 88),
            pid: u32_in(bytes, 96),
            rate_mhz: u32_in(bytes, 100),
            boot_id: u64_in(bytes, 104),
            cpu_unit: CpuUnit::from_code(bytes[112]),
        };
        if usize::from(pointer) != header.word() {
            return Err(machine);
        }
        if header.salt() != u32_in(bytes, 24) || header.clock_frequency == 0 {
            return Err(HeaderError::Damaged);
        }
        Ok(header)
    }

    /// A header for a new trace of this version: everything that is not given is zero or unknown.
    pub fn new(arch: Arch, os: Os, uuid: [u8; 16], clock_frequency: u64) -> FileHeader {
        FileHeader {
            minor: MINOR,
            arch,
            os,
            uuid,
            incompatible: 0,
            compatible: 0,
            clock_frequency,
            clock_start: Ticks::ZERO,
            utc_start: 0,
            process_created: 0,
            pid: 0,
            rate_mhz: 0,
            boot_id: 0,
            cpu_unit: CpuUnit::None,
        }
    }

    /// Nanoseconds since the recording's start of the moment `time`; negative before it.
    pub fn nanoseconds(&self, time: Ticks) -> i64 {
        let delta = i128::from(time.0) - i128::from(self.clock_start.0);
        let ns = delta * 1_000_000_000 / i128::from(self.clock_frequency);
        ns.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
    }
}

/// The kind of a block's contents.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum BlockKind {
    /// Module, thread, clock and metadata events, written at once.
    Meta,
    /// SLOT and SAMPLE events, and events that belong to samples.
    Samples,
    /// All live modules, threads and code ranges, with a CLOCK.
    State,
    /// BLOB events.
    Blob,
    /// INDEX events.
    Index,
    /// One END event.
    End,
    /// DROPPED events.
    Dropped,
    /// A kind that this version does not know, or of the vendor range (0x80 and above).
    Other(u8),
}

impl BlockKind {
    /// Number of kinds that this version knows.
    pub(crate) const KNOWN: usize = 8;

    /// The kind's number.
    pub const fn code(self) -> u8 {
        match self {
            BlockKind::Meta => 1,
            BlockKind::Samples => 2,
            BlockKind::State => 3,
            BlockKind::Blob => 4,
            BlockKind::Index => 5,
            BlockKind::End => 6,
            BlockKind::Dropped => 7,
            BlockKind::Other(code) => code,
        }
    }

    /// The kind with number `code`.
    pub const fn from_code(code: u8) -> BlockKind {
        match code {
            1 => BlockKind::Meta,
            2 => BlockKind::Samples,
            3 => BlockKind::State,
            4 => BlockKind::Blob,
            5 => BlockKind::Index,
            6 => BlockKind::End,
            7 => BlockKind::Dropped,
            other => BlockKind::Other(other),
        }
    }

    /// The name used in SPEC.md and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            BlockKind::Meta => "META",
            BlockKind::Samples => "SAMPLES",
            BlockKind::State => "STATE",
            BlockKind::Blob => "BLOB",
            BlockKind::Index => "INDEX",
            BlockKind::End => "END",
            BlockKind::Dropped => "DROPPED",
            BlockKind::Other(_) => "unknown",
        }
    }
}

/// Codec of a payload: an ordinary zstd frame, the only one of version 1.
pub const CODEC_ZSTD: u8 = 1;

/// Block flag: the block belongs to a supplement, which was appended after the recording had ended.
pub const FLAG_SUPPLEMENT: u16 = 1;

/// The 104 bytes before a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Salt of the trace.
    pub salt: u32,
    /// Position among the blocks of the file, from 0; a gap is a loss.
    pub seq: u64,
    /// Bytes of the payload as stored.
    pub stored_len: u32,
    /// Bytes of events that it decompresses to.
    pub raw_len: u32,
    /// When the block was begun; the times of its events are relative to it.
    pub first: Ticks,
    /// Latest time of its events.
    pub last: Ticks,
    /// What it holds.
    pub kind: BlockKind,
    /// [`CODEC_ZSTD`].
    pub codec: u8,
    /// [`FLAG_SUPPLEMENT`].
    pub flags: u16,
    /// Number of events.
    pub events: u32,
    /// Samples dropped since the recording's start, at the time that the block was cut.
    pub dropped: u64,
    /// Sequence number of the last META or STATE block before this one; `u64::MAX` if none.
    pub last_meta: u64,
    /// Position among the blocks of its kind, from 0.
    pub ordinal: u64,
    /// Samples that it stands for, coalesced and idle passes included.
    pub samples: u32,
    /// Stack bytes of its full samples.
    pub stack_bytes: u32,
    /// xxh3-64 of the stored payload.
    pub payload_hash: u64,
}

impl BlockHeader {
    /// The bytes that a file stores.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_LEN] {
        let mut out = [0; BLOCK_HEADER_LEN];
        put(&mut out, 0, &BLOCK_FRAME.to_le_bytes());
        put(&mut out, 4, &(BLOCK_HEADER_LEN as u32 - 8).to_le_bytes());
        put(&mut out, 8, &BLOCK_MAGIC);
        put(&mut out, 12, &self.salt.to_le_bytes());
        put(&mut out, 16, &self.seq.to_le_bytes());
        put(&mut out, 24, &self.stored_len.to_le_bytes());
        put(&mut out, 28, &self.raw_len.to_le_bytes());
        put(&mut out, 32, &self.first.0.to_le_bytes());
        put(&mut out, 40, &self.last.0.to_le_bytes());
        out[48] = self.kind.code();
        out[49] = self.codec;
        put(&mut out, 50, &self.flags.to_le_bytes());
        put(&mut out, 52, &self.events.to_le_bytes());
        put(&mut out, 56, &self.dropped.to_le_bytes());
        put(&mut out, 64, &self.last_meta.to_le_bytes());
        put(&mut out, 72, &self.ordinal.to_le_bytes());
        put(&mut out, 80, &self.samples.to_le_bytes());
        put(&mut out, 84, &self.stack_bytes.to_le_bytes());
        put(&mut out, 88, &self.payload_hash.to_le_bytes());
        let crc = CRC.checksum(&out[..100]);
        put(&mut out, 100, &crc.to_le_bytes());
        out
    }

    /// [`decode`](Self::decode) of a block of the trace with this salt that is not too large.
    pub fn decode_of(data: &[u8], salt: u32) -> Option<BlockHeader> {
        let fits = |header: &BlockHeader| {
            header.salt == salt && header.stored_len as usize <= limits::MAX_BLOCK_STORED
        };
        BlockHeader::decode(data).filter(fits)
    }

    /// Reads the header at the start of `data`: `None` unless magics and checksum hold. The caller
    /// compares the salt.
    pub fn decode(data: &[u8]) -> Option<BlockHeader> {
        let bytes = data.first_chunk::<BLOCK_HEADER_LEN>()?;
        if u32_in(bytes, 0) != BLOCK_FRAME
            || u32_in(bytes, 4) != BLOCK_HEADER_LEN as u32 - 8
            || bytes[8..12] != BLOCK_MAGIC
            || CRC.checksum(&bytes[..100]) != u32_in(bytes, 100)
        {
            return None;
        }
        Some(BlockHeader {
            salt: u32_in(bytes, 12),
            seq: u64_in(bytes, 16),
            stored_len: u32_in(bytes, 24),
            raw_len: u32_in(bytes, 28),
            first: Ticks(u64_in(bytes, 32)),
            last: Ticks(u64_in(bytes, 40)),
            kind: BlockKind::from_code(bytes[48]),
            codec: bytes[49],
            flags: u16_in(bytes, 50),
            events: u32_in(bytes, 52),
            dropped: u64_in(bytes, 56),
            last_meta: u64_in(bytes, 64),
            ordinal: u64_in(bytes, 72),
            samples: u32_in(bytes, 80),
            stack_bytes: u32_in(bytes, 84),
            payload_hash: u64_in(bytes, 88),
        })
    }
}

/// The last 40 bytes of a finished trace: where its index lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Salt of the trace.
    pub salt: u32,
    /// Number of INDEX blocks, which follow each other.
    pub index_blocks: u32,
    /// Offset of the first INDEX block from the start of the file.
    pub index_offset: u64,
}

impl Tail {
    /// The bytes that a file stores.
    pub fn encode(&self) -> [u8; TAIL_LEN] {
        let mut out = [0; TAIL_LEN];
        put(&mut out, 0, &TAIL_FRAME.to_le_bytes());
        put(&mut out, 4, &(TAIL_LEN as u32 - 8).to_le_bytes());
        put(&mut out, 8, &TAIL_MAGIC);
        put(&mut out, 16, &self.salt.to_le_bytes());
        put(&mut out, 20, &self.index_blocks.to_le_bytes());
        put(&mut out, 24, &self.index_offset.to_le_bytes());
        let crc = CRC.checksum(&out[..36]);
        put(&mut out, 36, &crc.to_le_bytes());
        out
    }

    /// Reads a tail from exactly the bytes `data`.
    pub fn decode(data: &[u8]) -> Result<Tail, DecodeError> {
        let error = DecodeError { at: 0 };
        let bytes: &[u8; TAIL_LEN] = data.try_into().map_err(|_| error)?;
        if u32_in(bytes, 0) != TAIL_FRAME
            || u32_in(bytes, 4) != TAIL_LEN as u32 - 8
            || bytes[8..16] != TAIL_MAGIC
            || CRC.checksum(&bytes[..36]) != u32_in(bytes, 36)
        {
            return Err(error);
        }
        Ok(Tail { salt: u32_in(bytes, 16), index_blocks: u32_in(bytes, 20), index_offset: u64_in(bytes, 24) })
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        // The check value of CRC-32/ISCSI.
        assert_eq!(CRC.checksum(b"123456789"), 0xe306_9283);
    }
}
