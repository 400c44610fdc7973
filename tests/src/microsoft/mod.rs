//! Microsoft's own walkers and symbol engines, dbghelp.dll and msdia140.dll, as judges of ours.
//! tests/programs/judge.c loads them under Wine and answers the requests that are written here.
//!
//! `tests/setup/microsoft.sh` fetches the DLLs, builds the program and sets `STK_MICROSOFT_DIR` to
//! their folder.

mod memory;
mod request;

use crate::cpu::cpu_time;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use stk_unwind::x64::X64Registers;
use stk_unwind::x86::X86Registers;

use crate::wine::{self, Folder};

pub use memory::{ImageBytes, Memory};
pub use request::{Options, Request};

/// The versions of the DLLs that the wheel holds, by [`Answer::versions`]: dbghelp.dll
/// 10.0.15063.400 and msdia140.dll 14.13.26020.0.
pub const VERSIONS: [[u16; 4]; 2] = [[10, 0, 15063, 400], [14, 13, 26020, 0]];

/// What the judge wrote, read in the order of the request's commands.
pub struct Answer {
    bytes: Vec<u8>,
    at: usize,
    versions: [[u16; 4]; 2],
}

/// A frame of StackWalk64: the return address, or the sample's own instruction pointer, and the
/// registers there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// rbx, rbp, rsi, rdi, r12 to r15.
    pub nonvolatile: [u64; 8],
}

/// One level of a look-up: the function, or what is inlined into it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Address of the symbol; 0 without one.
    pub start: u64,
    /// Its bytes; 0 if they are not known.
    pub size: u32,
    /// Its name.
    pub name: String,
    /// Its file; empty without a line.
    pub file: String,
    /// Its line; 0 without one.
    pub line: u32,
}

/// The caller that IDiaStackWalker found for a state of x86.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiaCaller {
    /// Whether a FrameData record of the PDB was used.
    pub by_record: bool,
    /// Return address.
    pub ip: u32,
    /// Stack pointer after the return, without the arguments that the callee pops.
    pub sp: u32,
    /// ebx, ebp, esi, edi.
    pub nonvolatile: [u32; 4],
}

/// Processor time of a thread, and what it did in that time.
#[derive(Clone, Copy, Default, Debug)]
pub struct Rate {
    /// Frames or levels.
    pub count: u64,
    /// Spent on a CPU.
    pub time: Duration,
}

impl Rate {
    /// Repeats what returns a count, for this time.
    pub fn of(time: Duration, mut what: impl FnMut() -> u64) -> Rate {
        let (mut rate, start) = (Rate::default(), cpu_time());
        while rate.time < time {
            rate.count += what();
            rate.time = cpu_time() - start;
        }
        rate
    }

    /// Adds another rate's count and time.
    pub fn add(&mut self, other: Rate) {
        self.count += other.count;
        self.time += other.time;
    }

    /// Per second.
    pub fn per_second(self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

/// All files in these folders and below.
///
/// # Panics
/// If one cannot be listed.
pub fn files_below(folders: &[PathBuf]) -> Vec<PathBuf> {
    let (mut folders, mut found) = (folders.to_vec(), Vec::new());
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Runs the judge.
///
/// # Panics
/// If it cannot be run or fails.
#[track_caller]
pub fn ask(request: &Request) -> Answer {
    // Without it Wine takes its own dbghelp.dll, whatever the path.
    let answer = run(request, "dbghelp=n;mscoree,mshtml,winemenubuilder.exe=");
    assert_eq!(answer.versions, VERSIONS, "other DLLs than Microsoft's were loaded");
    answer
}

/// The file version of the dbghelp.dll that Wine prefers to the one in the given folder.
pub fn version_of_wines_dbghelp() -> [u16; 4] {
    run(&Request::default(), "mscoree,mshtml,winemenubuilder.exe=").versions[0]
}

#[track_caller]
fn run(request: &Request, overrides: &str) -> Answer {
    let home = wine::path("STK_MICROSOFT_DIR");
    let folder = Folder::new("judge");
    let [question, answer] = ["request", "answer"].map(|name| folder.file(name));
    std::fs::write(&question, request.bytes()).expect("the folder is new");
    let mut command: Command = wine::command(&home.join("judge.exe"));
    command.env("WINEDLLOVERRIDES", overrides);
    command.args([&home, &question, &answer].map(|path| wine::windows_path(path)));
    let ended = wine::output(&mut command);
    assert!(ended.status.success(), "{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr));
    let bytes = std::fs::read(&answer).expect("the judge made it");
    let mut answer = Answer { bytes, at: 0, versions: [[0; 4]; 2] };
    answer.versions = [answer.version(), answer.version()];
    answer
}

impl Answer {
    /// The file versions of dbghelp.dll and msdia140.dll as loaded.
    pub fn versions(&self) -> [[u16; 4]; 2] {
        self.versions
    }

    fn version(&mut self) -> [u16; 4] {
        let version = self.u64();
        [48, 32, 16, 0].map(|shift| (version >> shift) as u16)
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let from = self.at;
        self.at += len;
        self.bytes.get(from..self.at).expect("the answer is whole")
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("four bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    fn text(&mut self) -> String {
        let len = self.u32() as usize;
        String::from_utf8_lossy(self.take(len)).into_owned()
    }

    /// The frames of `count` stacks, and the rate of many walks.
    pub fn walks(&mut self, count: usize) -> (Vec<Vec<Walked>>, Rate) {
        let mut stacks = Vec::new();
        for _ in 0..count {
            let mut frames = Vec::new();
            while self.u32() == 1 {
                let [ip, sp] = [self.u64(), self.u64()];
                frames.push(Walked { ip, sp, nonvolatile: [0; 8].map(|_| self.u64()) });
            }
            stacks.push(frames);
        }
        (stacks, self.rate())
    }

    /// The levels of `count` addresses, innermost first, and the rate of many look-ups.
    ///
    /// # Panics
    /// If dbghelp did not read the PDB.
    pub fn symbols(&mut self, count: usize) -> (Vec<Vec<Level>>, Rate) {
        const PDB: u32 = 3;
        assert_eq!(self.u32(), PDB, "dbghelp has no symbols of the PDB");
        self.levels(count)
    }

    /// As [`Answer::symbols`], by DIA: starts are RVAs.
    pub fn dia_symbols(&mut self, count: usize) -> (Vec<Vec<Level>>, Rate) {
        self.levels(count)
    }

    fn levels(&mut self, count: usize) -> (Vec<Vec<Level>>, Rate) {
        let mut answers = Vec::new();
        for _ in 0..count {
            let mut levels = Vec::new();
            while self.u32() == 1 {
                levels.push(Level {
                    start: self.u64(),
                    size: self.u32(),
                    name: self.text(),
                    file: self.text(),
                    line: self.u32(),
                });
            }
            answers.push(levels);
        }
        (answers, self.rate())
    }

    /// The callers of `count` states of x86.
    pub fn callers(&mut self, count: usize) -> Vec<Option<DiaCaller>> {
        let caller = |words: [u32; 7]| {
            let [found, ip, sp, nonvolatile @ ..] = words;
            (found != 0).then_some(DiaCaller { by_record: found == 1, ip, sp, nonvolatile })
        };
        (0..count).map(|_| caller([0; 7].map(|_| self.u32()))).collect()
    }

    fn rate(&mut self) -> Rate {
        let time = Duration::from_nanos(self.u64());
        Rate { count: self.u64(), time }
    }
}

/// Registers in the request's order: the instruction pointer, then the processor's numbers.
fn x64_words(registers: &X64Registers) -> impl Iterator<Item = u64> {
    [registers.ip].into_iter().chain(registers.gpr)
}

fn x86_words(registers: &X86Registers) -> impl Iterator<Item = u32> {
    [registers.ip].into_iter().chain(registers.gpr)
}
