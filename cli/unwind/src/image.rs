//! The known parts of one image: sparse bytes by RVA, the exception directory, the thread-start
//! functions.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::frame::Fault;
use crate::x86::{GcHeader, X86Tables};

/// The processor architecture of code and registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arch {
    /// x86-64 (AMD64).
    X64,
    /// AArch64, but not ARM64EC.
    Arm64,
    /// 32-bit x86.
    X86,
}

impl Arch {
    /// The short stable name: `x64`, `arm64` or `x86`.
    pub fn as_str(self) -> &'static str {
        match self {
            Arch::X64 => "x64",
            Arch::Arm64 => "arm64",
            Arch::X86 => "x86",
        }
    }
}

/// Bytes that an image shares with its owner: a vector, or anything that derefs to bytes and may be
/// sent between threads, such as a memory map.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// A part of `owner`'s bytes. Any part of `range` outside them is left out.
    pub fn part(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        let len = (*owner).as_ref().len();
        let start = range.start.min(len);
        SharedBytes { owner, range: start..range.end.clamp(start, len) }
    }

    fn get(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        SharedBytes { owner: Arc::new(bytes), range }
    }
}

impl From<&[u8]> for SharedBytes {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<Arc<[u8]>> for SharedBytes {
    fn from(bytes: Arc<[u8]>) -> Self {
        let range = 0..bytes.len();
        SharedBytes { owner: Arc::new(bytes), range }
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.range.len())
    }
}

/// The tables and known bytes of one image, addressed by RVA.
///
/// Built once for an image's content and shared by all workers (`Send + Sync`, never changed).
#[derive(Debug)]
pub struct ImageTables {
    arch: Arch,
    size: u32,
    ranges: Vec<KnownRange>,
    exceptions: Exceptions,
    thread_starts: Vec<Range<u32>>,
    interruptions: Vec<Range<u32>>,
    stack_starts: Vec<Range<u32>>,
    x86: X86Tables,
    method: Option<GcHeader>,
    stub: bool,
    many: bool,
}

#[derive(Debug)]
struct KnownRange {
    rva: u32,
    bytes: SharedBytes,
}

/// The exception directory in searchable form: sorted by first RVA.
#[derive(Debug)]
enum Exceptions {
    Unknown,
    /// The image's own bytes.
    InPlace {
        range: usize,
        offset: usize,
        len: usize,
    },
    /// A sorted copy, because the image's directory is not sorted or lies across ranges.
    Sorted(Vec<u8>),
}

/// Collects the known parts of an image; see [`ImageTables::new`].
#[derive(Debug)]
pub struct ImageTablesBuilder {
    arch: Arch,
    size: u32,
    ranges: Vec<KnownRange>,
    directory: Option<(u32, u32)>,
    clr: Option<u32>,
    thread_starts: Vec<u32>,
    interruptions: Vec<u32>,
    stack_starts: Vec<Range<u32>>,
    x86: X86Tables,
    method: Option<GcHeader>,
    stub: bool,
    many: bool,
}

impl ImageTables {
    /// Begins the description of an image of `image_size` bytes in memory (SizeOfImage).
    #[expect(clippy::new_ret_no_self, reason = "an image is described step by step")]
    pub fn new(arch: Arch, image_size: u32) -> ImageTablesBuilder {
        ImageTablesBuilder {
            arch,
            size: image_size,
            ranges: Vec::new(),
            directory: None,
            clr: None,
            thread_starts: Vec::new(),
            interruptions: Vec::new(),
            stack_starts: Vec::new(),
            x86: X86Tables::default(),
            method: None,
            stub: false,
            many: false,
        }
    }

    /// The architecture of the image's code.
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// SizeOfImage in bytes.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The known bytes from `rva` on, up to the end of the range that holds them.
    pub fn bytes(&self, rva: u32) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|known| known.rva <= rva);
        let known = &self.ranges[after.checked_sub(1)?];
        known.bytes.get().get((rva - known.rva) as usize..).filter(|bytes| !bytes.is_empty())
    }

    /// Whether the exception directory is known, so that [`function_range`](Self::function_range)
    /// finds every function that has unwind data.
    pub fn knows_functions(&self) -> bool {
        self.arch != Arch::X86 && self.exception_directory().is_some()
    }

    /// The extent of the function that holds `rva`, by its unwind data. For a function in several
    /// parts (x64), the extent of its first part. `None` between functions, and in those that need
    /// no unwind data.
    pub fn function_range(&self, rva: u32) -> Option<Range<u32>> {
        match self.arch {
            Arch::X64 => crate::x64::function_range(self, rva),
            Arch::Arm64 => crate::arm64::function_range(self, rva),
            Arch::X86 => {
                let managed = || Some(crate::x86::method(self, rva)?.range);
                self.x86.function(rva).or_else(managed)
            }
        }
    }

    /// Whether the exception directory lets `rva` be in the function or leaf that holds `start`,
    /// which lies before it: no other function begins in between. `true` if it is not known.
    pub fn is_one_function(&self, start: u32, rva: u32) -> bool {
        if !self.knows_functions() {
            return true;
        }
        match self.function_range(rva) {
            Some(function) => function.contains(&start),
            None => {
                self.function_range(start).is_none()
                    && self.records_up_to(start).ok() == self.records_up_to(rva).ok()
            }
        }
    }

    /// Number of the exception directory's records that begin at or before `rva`.
    pub(crate) fn records_up_to(&self, rva: u32) -> Result<usize, Fault> {
        let directory = self.exception_directory().ok_or(Fault::NoUnwindData)?;
        let size = record_bytes(self.arch);
        let (mut low, mut high) = (0, directory.len() / size);
        while low < high {
            let middle = low.midpoint(high);
            let at = &directory[middle * size..];
            if u32::from_le_bytes([at[0], at[1], at[2], at[3]]) <= rva {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// The known bytes before `rva`, back to the start of the range that holds the byte before it.
    pub(crate) fn bytes_before(&self, rva: u32) -> Option<&[u8]> {
        let after = self.ranges.partition_point(|known| known.rva < rva);
        let known = &self.ranges[after.checked_sub(1)?];
        known.bytes.get().get(..(rva - known.rva) as usize)
    }

    /// The exception directory's records, sorted; `None` if the directory is not known.
    pub fn exception_directory(&self) -> Option<&[u8]> {
        match &self.exceptions {
            Exceptions::Unknown => None,
            Exceptions::InPlace { range, offset, len } => {
                self.ranges[*range].bytes.get().get(*offset..*offset + *len)
            }
            Exceptions::Sorted(bytes) => Some(bytes),
        }
    }

    /// The GCInfo of the method that this is.
    pub(crate) fn gc_info(&self) -> Option<&GcHeader> {
        self.method.as_ref()
    }

    /// Whether its one entry stands for many functions.
    pub(crate) fn is_many(&self) -> bool {
        self.many
    }

    pub(crate) fn is_stub(&self) -> bool {
        self.stub
    }

    /// x86 only: the FrameData and FPO records of the PDB; empty if there are none.
    pub fn x86(&self) -> &X86Tables {
        &self.x86
    }

    /// Whether the function that begins at `begin` is one of the system's thread-start functions.
    pub(crate) fn is_thread_start(&self, begin: u32) -> bool {
        self.thread_starts.iter().any(|function| function.contains(&begin))
    }

    /// Whether `rva` is in a function that has no caller
    /// ([`stack_start`](ImageTablesBuilder::stack_start)).
    pub(crate) fn is_stack_start(&self, rva: u32) -> bool {
        self.stack_starts.iter().any(|function| function.contains(&rva))
    }

    /// Whether the function that holds `rva` is one that the system enters by itself
    /// ([`interruption`](ImageTablesBuilder::interruption)).
    pub fn is_interruption(&self, rva: u32) -> bool {
        self.interruptions.iter().any(|function| function.contains(&rva))
    }
}

impl ImageTablesBuilder {
    /// Adds known bytes that begin at `rva`. Bytes given twice must be equal; the earlier start
    /// wins.
    pub fn range(mut self, rva: u32, bytes: impl Into<SharedBytes>) -> Self {
        self.ranges.push(KnownRange { rva, bytes: bytes.into() });
        self
    }

    /// Says where the exception directory lies (data directory 3 of the PE header). `(0, 0)` says
    /// that the image has none. Without this call the directory is unknown, and every walk ends in
    /// this image with [`Stop::NoUnwindData`](crate::Stop::NoUnwindData).
    pub fn exception_directory(mut self, rva: u32, len: u32) -> Self {
        self.directory = Some((rva, len));
        self
    }

    /// x86 only: says where the CLR header lies (data directory 14 of the PE header). The table of
    /// functions to which that of a ready-to-run image leads is the exception directory.
    pub fn clr_header(mut self, rva: u32) -> Self {
        self.clr = Some(rva);
        self
    }

    /// Says that the function containing `rva` starts threads: kernel32!BaseThreadInitThunk and
    /// ntdll!RtlUserThreadStart. May be called repeatedly.
    pub fn thread_start(mut self, rva: u32) -> Self {
        self.thread_starts.push(rva);
        self
    }

    /// x64 only: says that the system enters the function containing `rva` by itself, while the
    /// thread runs other code (ntdll!KiUserApcDispatcher, KiUserCallbackDispatcher,
    /// KiUserExceptionDispatcher). The code that it returns to did not call it but was interrupted
    /// there. Windows' own unwind data says so by a machine frame, Wine's does not always. May be
    /// called repeatedly.
    pub fn interruption(mut self, rva: u32) -> Self {
        self.interruptions.push(rva);
        self
    }

    /// Says that the code in `function` (RVAs) has no caller, because a language runtime starts
    /// stacks of its own there (Go: runtime.goexit for goroutines, runtime.mstart for system
    /// stacks). A function that returns into it is the first of such a stack, whatever lies above.
    /// May be called repeatedly.
    pub fn stack_start(mut self, function: Range<u32>) -> Self {
        self.stack_starts.push(function);
        self
    }

    /// x86 only: the FrameData and FPO records of the image's PDB.
    pub fn x86(mut self, tables: X86Tables) -> Self {
        self.x86 = tables;
        self
    }

    /// x86 only: says that this is no image but one method that .NET Core 2 or 3 compiled at run
    /// time, with this GCInfo. GCInfo of a method of another size is left out.
    pub fn method(mut self, gc_info: &[u8]) -> Self {
        let is_x86 = self.arch == Arch::X86;
        self.method = GcHeader::read(gc_info).filter(|header| is_x86 && header.size == self.size);
        self
    }

    /// Says that this is no image but a piece of code that was made at run time without unwind
    /// data. Such stubs are leaves, or have pushed one register at most (as .NET's resolve stub of
    /// virtual stub dispatch does): where a leaf's return address is not in code, the next word is
    /// tried ([`Trust::LeafOutside`](crate::Trust::LeafOutside)).
    pub fn stub(mut self) -> Self {
        self.stub = true;
        self
    }

    /// Says that this is a range of code made at run time whose one entry stands for many
    /// functions, as V8 registers it. Each function sets up its frame as the entry says, but where
    /// a function begins is not known. The unwinder reads the code to see whether the frame is set
    /// up yet.
    pub fn many_functions(mut self) -> Self {
        self.many = true;
        self
    }

    /// Finishes the image.
    pub fn build(mut self) -> ImageTables {
        for known in &mut self.ranges {
            // RVAs have 32 bits.
            let room = (1u64 << 32) - u64::from(known.rva);
            let len = (known.bytes.range.len() as u64).min(room) as usize;
            known.bytes.range.end = known.bytes.range.start + len;
        }
        self.ranges.retain(|known| !known.bytes.range.is_empty());
        self.ranges.sort_by_key(|known| (known.rva, std::cmp::Reverse(known.bytes.range.len())));
        let mut covered = 0u64;
        self.ranges.retain_mut(|known| {
            let end = u64::from(known.rva) + known.bytes.range.len() as u64;
            if end <= covered {
                return false;
            }
            if u64::from(known.rva) < covered {
                let cut = covered - u64::from(known.rva);
                known.bytes.range.start += cut as usize;
                known.rva = covered as u32;
            }
            covered = end;
            true
        });
        let mut image = ImageTables {
            arch: self.arch,
            size: self.size,
            ranges: self.ranges,
            exceptions: Exceptions::Unknown,
            thread_starts: Vec::new(),
            interruptions: Vec::new(),
            stack_starts: self.stack_starts,
            x86: self.x86,
            method: self.method,
            stub: self.stub,
            many: self.many,
        };
        if image.arch == Arch::X86 {
            let clr = self.clr.filter(|&rva| rva != 0);
            self.directory = clr.and_then(|rva| crate::x86::functions(&image, rva)).or(Some((0, 0)));
        }
        if let Some((rva, len)) = self.directory {
            image.exceptions = find_exceptions(&image, rva, len);
        }
        image.thread_starts = self.thread_starts.iter().map(|&rva| function_range(&image, rva)).collect();
        image.interruptions = self.interruptions.iter().map(|&rva| function_range(&image, rva)).collect();
        image
    }
}

/// Bytes of a record of the exception directory.
fn record_bytes(arch: Arch) -> usize {
    match arch {
        Arch::X64 => 12,
        Arch::Arm64 => 8,
        Arch::X86 => crate::x86::FUNCTION_BYTES,
    }
}

/// Finds the exception directory among the known bytes and makes sure that it is sorted.
fn find_exceptions(image: &ImageTables, rva: u32, len: u32) -> Exceptions {
    let record = record_bytes(image.arch);
    if len == 0 {
        return Exceptions::Sorted(Vec::new());
    }
    let after = image.ranges.partition_point(|known| known.rva <= rva);
    let Some(range) = after.checked_sub(1) else { return Exceptions::Unknown };
    let offset = (rva - image.ranges[range].rva) as usize;
    let Some(bytes) = image.ranges[range].bytes.get().get(offset..) else { return Exceptions::Unknown };
    let bytes = &bytes[..bytes.len().min(len as usize) / record * record];
    if bytes.is_empty() {
        return Exceptions::Unknown;
    }
    let begin = |at: &[u8]| u32::from_le_bytes([at[0], at[1], at[2], at[3]]);
    // Linkers pad the directory with zero records; they would break the order. (In code made at run
    // time a function can begin at 0.)
    let is_used = |at: &&[u8]| at.iter().any(|&byte| byte != 0);
    let used = bytes.chunks_exact(record).filter(is_used);
    if bytes.chunks_exact(record).all(|at| is_used(&at)) && used.clone().is_sorted_by_key(begin) {
        return Exceptions::InPlace { range, offset, len: bytes.len() };
    }
    let mut records: Vec<&[u8]> = used.collect();
    records.sort_by_key(|at| begin(at));
    Exceptions::Sorted(records.concat())
}

/// The function that contains `rva`, as far as the tables describe it.
fn function_range(image: &ImageTables, rva: u32) -> Range<u32> {
    let found = image.function_range(rva);
    // Without a record the extent is unknown; the system's thread-start functions are at least this
    // long before the return address of the call that runs the thread.
    const UNKNOWN: u32 = 64;
    found.unwrap_or(rva..rva.saturating_add(UNKNOWN))
}
