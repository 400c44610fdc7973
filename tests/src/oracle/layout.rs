//! The layouts of `.states` and `.chains`.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use stk_unwind::{Arch, Registers, arm64, x64, x86};

/// The header of a file of states, which describes its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The architecture.
    pub arch: Arch,
    /// Load address of the image: its preferred base.
    pub image_base: u64,
    /// SizeOfImage, rounded up to pages.
    pub image_size: u64,
    /// Records.
    pub count: u32,
}

/// The records of one file.
#[derive(Debug)]
pub struct States {
    /// The header.
    pub header: Header,
    /// Whether the records hold whole call chains.
    pub chains: bool,
    /// The records.
    pub records: Vec<Record>,
}

/// One recorded moment and the truth about it.
#[derive(Debug, Clone)]
pub struct Record {
    /// Where the instruction pointer was.
    pub rva: u32,
    /// The function's RVA in the emulator script; 0 in chains.
    pub function_rva: u32,
    /// Flags (x64), kind (arm64) or callee-popped bytes (x86).
    pub flags: u16,
    /// The registers.
    pub registers: Registers,
    /// The true callers, innermost first.
    pub truth: Vec<Truth>,
    /// Stack bytes from the stack pointer up.
    pub stack: Vec<u8>,
}

/// A true caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truth {
    /// The return address.
    pub ip: u64,
    /// The stack pointer after the return.
    pub sp: u64,
    /// The nonvolatile registers in the layout's order.
    pub nonvolatile: Vec<u64>,
}

impl States {
    /// The names of the flags or kinds that a record carries.
    pub fn tags(&self, record: &Record) -> Vec<&'static str> {
        const X64: [&str; 11] = [
            "prolog",
            "body",
            "epilog",
            "no .pdata",
            "chained",
            "frame register",
            "alloc_large",
            "save_nonvol",
            "save_xmm",
            "v2 unwind info",
            "handler",
        ];
        const ARM64: [&str; 4] = ["xdata", "packed", "packed fragment", "none"];
        let names: &[&str] = match self.header.arch {
            Arch::X64 => &X64,
            Arch::Arm64 => &ARM64,
            _ => &[],
        };
        let has = |bit: usize| record.flags >> bit & 1 != 0;
        names.iter().enumerate().filter(|(bit, _)| has(*bit)).map(|(_, name)| *name).collect()
    }
}

/// Reads a file of states, compressed or not.
pub fn read(path: &Path) -> Result<States> {
    parse(&decompress(path)?).with_context(|| path.display().to_string())
}

/// The bytes of a file of states, compressed or not.
pub fn decompress(path: &Path) -> Result<Vec<u8>> {
    let stored = std::fs::read(path).with_context(|| path.display().to_string())?;
    if stored.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        return zstd::decode_all(&stored[..]).with_context(|| path.display().to_string());
    }
    Ok(stored)
}

/// Reads a file of states from its decompressed bytes.
pub fn parse(bytes: &[u8]) -> Result<States> {
    let mut cursor = Cursor { rest: bytes };
    let arch = match cursor.take(4)? {
        b"H5UW" => Arch::X64,
        b"H5U3" => Arch::X86,
        b"H5A6" => Arch::Arm64,
        other => bail!("not a file of states: it begins with {other:02x?}"),
    };
    let version = cursor.u32()?;
    ensure!(version == 1, "version {version} of the layout is not known");
    let header = Header { arch, image_base: cursor.u64()?, image_size: cursor.u64()?, count: cursor.u32()? };
    // States and chains of x64 share their header, but only the right one of the two readings ends
    // with the file.
    let states = records(cursor, &header, false);
    match states {
        Ok(records) => Ok(States { header, chains: false, records }),
        Err(_) if arch == Arch::X64 => {
            Ok(States { header, chains: true, records: records(cursor, &header, true)? })
        }
        Err(error) => Err(error),
    }
}

fn records(mut cursor: Cursor<'_>, header: &Header, chains: bool) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for _ in 0..header.count {
        records.push(record(&mut cursor, header, chains)?);
    }
    ensure!(cursor.rest.is_empty(), "{} bytes after the last record", cursor.rest.len());
    Ok(records)
}

fn record(cursor: &mut Cursor<'_>, header: &Header, chains: bool) -> Result<Record> {
    match header.arch {
        Arch::X64 if chains => x64_chain(cursor),
        Arch::X64 => x64_state(cursor),
        Arch::Arm64 => arm64_state(cursor),
        Arch::X86 => x86_state(cursor),
        other => bail!("states of {} have no layout", other.as_str()),
    }
}

fn x64_state(cursor: &mut Cursor<'_>) -> Result<Record> {
    let (rva, function_rva, flags) = (cursor.u32()?, cursor.u32()?, cursor.u16()?);
    let _depth = cursor.u16()?;
    let stack_len = cursor.u32()? as usize;
    let gpr = cursor.u64s()?;
    let truth = vec![x64_truth(cursor)?];
    let stack = cursor.take(stack_len)?.to_vec();
    let registers = Registers::X64(x64::X64Registers { ip: 0, gpr });
    Ok(Record { rva, function_rva, flags, registers, truth, stack })
}

fn x64_chain(cursor: &mut Cursor<'_>) -> Result<Record> {
    let (rva, flags, frames) = (cursor.u32()?, cursor.u16()?, cursor.u16()?);
    let stack_len = cursor.u32()? as usize;
    let gpr = cursor.u64s()?;
    let truth = (0..frames).map(|_| x64_truth(cursor)).collect::<Result<_>>()?;
    let stack = cursor.take(stack_len)?.to_vec();
    let registers = Registers::X64(x64::X64Registers { ip: 0, gpr });
    Ok(Record { rva, function_rva: 0, flags, registers, truth, stack })
}

fn arm64_state(cursor: &mut Cursor<'_>) -> Result<Record> {
    let (rva, function_rva, flags) = (cursor.u32()?, cursor.u32()?, cursor.u16()?);
    let _depth = cursor.u16()?;
    let stack_len = cursor.u32()? as usize;
    let (x, sp, d) = (cursor.u64s()?, cursor.u64()?, cursor.u64s()?);
    let truth =
        vec![Truth { ip: cursor.u64()?, sp: cursor.u64()?, nonvolatile: cursor.u64s::<19>()?.to_vec() }];
    let stack = cursor.take(stack_len)?.to_vec();
    let registers = Registers::Arm64(arm64::Arm64Registers { pc: 0, sp, x, d });
    Ok(Record { rva, function_rva, flags, registers, truth, stack })
}

fn x86_state(cursor: &mut Cursor<'_>) -> Result<Record> {
    let (rva, function_rva, flags) = (cursor.u32()?, cursor.u32()?, cursor.u16()?);
    let _depth = cursor.u16()?;
    let stack_len = cursor.u32()? as usize;
    let gpr = cursor.u32s()?;
    let [ip, sp, nonvolatile @ ..] = cursor.u32s::<6>()?.map(u64::from);
    let truth = vec![Truth { ip, sp, nonvolatile: nonvolatile.to_vec() }];
    let stack = cursor.take(stack_len)?.to_vec();
    Ok(Record {
        rva,
        function_rva,
        flags,
        registers: Registers::X86(x86::X86Registers { ip: 0, gpr }),
        truth,
        stack,
    })
}

fn x64_truth(cursor: &mut Cursor<'_>) -> Result<Truth> {
    Ok(Truth { ip: cursor.u64()?, sp: cursor.u64()?, nonvolatile: cursor.u64s::<8>()?.to_vec() })
}

/// The file with only the chosen records, from its decompressed bytes.
pub(super) fn subset(bytes: &[u8], states: &States, chosen: &[usize]) -> Result<Vec<u8>> {
    const HEADER: usize = 28;
    let mut cursor = Cursor::new(bytes);
    let mut out = cursor.take(HEADER - 4)?.to_vec();
    cursor.u32()?;
    out.extend((chosen.len() as u32).to_le_bytes());
    for index in 0..states.records.len() {
        let before = cursor.rest;
        record(&mut cursor, &states.header, states.chains)?;
        if chosen.binary_search(&index).is_ok() {
            out.extend_from_slice(&before[..before.len() - cursor.rest.len()]);
        }
    }
    Ok(out)
}

#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Cursor { rest }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else { bail!("the file ends early") };
        self.rest = rest;
        Ok(taken)
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.take(2)?.try_into()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into()?))
    }

    pub(super) fn u32s<const N: usize>(&mut self) -> Result<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u32()?;
        }
        Ok(words)
    }

    fn u64s<const N: usize>(&mut self) -> Result<[u64; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.u64()?;
        }
        Ok(words)
    }
}
