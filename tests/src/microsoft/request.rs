//! Requests, as tests/programs/judge.c describes them.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use stk_unwind::x64::X64Registers;
use stk_unwind::x86::X86Registers;

use super::memory::Memory;
use super::{x64_words, x86_words};
use crate::wine;

/// Commands for the judge.
pub struct Request {
    bytes: Vec<u8>,
    /// Where bytes of a memory lie that was written before, by their address and length here.
    places: HashMap<(usize, usize), u64>,
}

impl Default for Request {
    fn default() -> Request {
        // Wine maps no empty file.
        Request { bytes: b"FREE".to_vec(), places: HashMap::new() }
    }
}

/// dbghelp's options of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Options {
    /// Names as the records have them.
    Raw,
    /// SYMOPT_UNDNAME.
    Undecorated,
}

impl Request {
    /// The file's contents.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn count(&mut self, len: usize) {
        self.u32(u32::try_from(len).expect("requests are smaller"));
    }

    fn milliseconds(&mut self, time: Duration) {
        self.count(time.as_millis() as usize);
    }

    fn path(&mut self, path: &Path) {
        let path = wine::windows_path(path);
        self.count(path.len());
        self.bytes.extend(path.as_bytes());
    }

    /// The memory and the modules of the next walks, in place of all before.
    pub fn memory(&mut self, memory: &Memory<'_>) -> &mut Request {
        self.bytes.extend(b"FREE");
        for (&address, bytes) in memory.ranges() {
            let place = self.place(bytes);
            self.bytes.extend(b"MEMO");
            self.u64(address);
            self.u64(bytes.len() as u64);
            self.u64(place);
        }
        for (&base, module) in memory.modules() {
            self.bytes.extend(b"MODU");
            self.u64(base);
            self.u64(module.size);
            self.count(module.functions.len());
            self.bytes.extend(module.functions.iter().flatten().flat_map(|word| word.to_le_bytes()));
        }
        self
    }

    /// The place of these bytes in the request. They are written once.
    fn place(&mut self, bytes: &[u8]) -> u64 {
        let key = (bytes.as_ptr() as usize, bytes.len());
        if let Some(&place) = self.places.get(&key) {
            return place;
        }
        self.bytes.extend(b"DATA");
        self.u64(bytes.len() as u64);
        let place = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        self.places.insert(key, place);
        place
    }

    /// Walks stacks of x64, and walks all of them again for this time.
    pub fn walks<'a>(
        &mut self,
        most_frames: u32,
        time: Duration,
        stacks: impl ExactSizeIterator<Item = (&'a X64Registers, u64, &'a [u8])>,
    ) -> &mut Request {
        self.bytes.extend(b"WALK");
        self.u32(most_frames);
        self.milliseconds(time);
        self.count(stacks.len());
        for (registers, start, bytes) in stacks {
            x64_words(registers).for_each(|word| self.u64(word));
            self.u64(start);
            self.u64(bytes.len() as u64);
            self.bytes.extend_from_slice(bytes);
        }
        self
    }

    /// Looks up RVAs in a PDB, or in an image with its PDB, and again for this time.
    pub fn symbols(
        &mut self,
        file: &Path,
        (base, size): (u64, u32),
        options: Options,
        time: Duration,
        rvas: &[u32],
    ) -> &mut Request {
        const LOAD_LINES: u32 = 0x10;
        const UNDNAME: u32 = 2;
        self.bytes.extend(b"SYMS");
        self.path(file);
        self.u64(base);
        self.u64(size.into());
        self.u32(LOAD_LINES | if options == Options::Undecorated { UNDNAME } else { 0 });
        self.milliseconds(time);
        self.rvas(rvas);
        self
    }

    /// Looks up RVAs by DIA, and again for this time.
    pub fn dia_symbols(&mut self, pdb: &Path, time: Duration, rvas: &[u32]) -> &mut Request {
        self.bytes.extend(b"DIAL");
        self.path(pdb);
        self.milliseconds(time);
        self.rvas(rvas);
        self
    }

    fn rvas(&mut self, rvas: &[u32]) {
        self.count(rvas.len());
        rvas.iter().for_each(|&rva| self.u32(rva));
    }

    /// The callers of states of x86 by DIA's stack walker. The stacks begin at esp.
    pub fn callers<'a>(
        &mut self,
        pdb: &Path,
        states: impl ExactSizeIterator<Item = (&'a X86Registers, &'a [u8])>,
    ) -> &mut Request {
        self.bytes.extend(b"FRAM");
        self.path(pdb);
        self.count(states.len());
        for (registers, stack) in states {
            x86_words(registers).for_each(|word| self.u32(word));
            self.u64(stack.len() as u64);
            self.bytes.extend_from_slice(stack);
        }
        self
    }
}
