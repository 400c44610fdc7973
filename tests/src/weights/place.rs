//! Finds what lies at an address of a Wine process.

use super::trace::Loaded;
use object::LittleEndian as LE;
use object::pe::IMAGE_DIRECTORY_ENTRY_EXCEPTION;
use object::read::pe::PeFile64;
use std::path::{Path, PathBuf};

/// Where a sample fell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Place {
    /// In a system call, or on Wine's Unix side.
    System,
    /// At this address, in code that no image holds.
    Dynamic(u64),
    /// In this module of [`Places`], at this RVA.
    Module(usize, u32),
}

/// The unit that counts as one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    /// A module; all dynamic code is one.
    Module,
    /// 64 KB of a module or of dynamic code.
    Page64K,
    /// A function by the exception directory; 256 bytes where it has none.
    Function,
}

/// The images of a process and the ranges of its Unix side.
#[derive(Debug, Default)]
pub struct Places {
    images: Vec<Image>,
    unix: Vec<(u64, u64)>,
}

#[derive(Debug)]
struct Image {
    name: String,
    base: u64,
    size: u64,
    /// Sections: RVA and bytes.
    sections: Vec<(u32, Vec<u8>)>,
    /// RVAs at which functions begin, sorted.
    functions: Vec<u32>,
}

impl Places {
    /// The places of these modules, whose files are looked up in the Wine prefix, and of these Unix
    /// ranges.
    pub fn new(modules: &[Loaded], unix: Vec<(u64, u64)>) -> Places {
        Places { images: modules.iter().map(Image::open).collect(), unix }
    }

    /// What lies at `ip`.
    pub fn at(&self, ip: u64) -> Place {
        if ip >> 47 != 0 || self.unix.iter().any(|&(start, end)| (start..end).contains(&ip)) {
            return Place::System;
        }
        let holds = |image: &Image| (image.base..image.base + image.size).contains(&ip);
        let Some(index) = self.images.iter().position(holds) else { return Place::Dynamic(ip) };
        let rva = (ip - self.images[index].base) as u32;
        if self.images[index].is_behind_system_call(rva) { Place::System } else { Place::Module(index, rva) }
    }

    /// The bin of a place at a granularity: two numbers, equal for equal bins.
    pub fn bin(&self, place: Place, granularity: Granularity) -> (usize, u64) {
        const SYSTEM: usize = usize::MAX;
        const DYNAMIC: usize = usize::MAX - 1;
        match (place, granularity) {
            (Place::System, _) => (SYSTEM, 0),
            (Place::Dynamic(_), Granularity::Module) => (DYNAMIC, 0),
            (Place::Dynamic(ip), _) => (DYNAMIC, ip >> 16),
            (Place::Module(image, _), Granularity::Module) => (image, 0),
            (Place::Module(image, rva), Granularity::Page64K) => (image, u64::from(rva >> 16)),
            (Place::Module(image, rva), Granularity::Function) => (image, self.images[image].function(rva)),
        }
    }

    /// A text for a bin, for reports.
    pub fn name(&self, place: Place) -> String {
        match place {
            Place::System => "[system]".to_owned(),
            Place::Dynamic(ip) => format!("[dynamic] {:x}", ip >> 16),
            Place::Module(image, rva) => format!("{}+{rva:x}", self.images[image].name),
        }
    }
}

impl Image {
    /// An unreadable image counts as one without functions and system calls.
    fn open(module: &Loaded) -> Image {
        let (sections, functions) = host_path(&module.path)
            .and_then(|path| std::fs::read(path).ok())
            .and_then(|bytes| read(&bytes))
            .unwrap_or_default();
        let name = module.path.rsplit(['\\', '/']).next().unwrap_or_default().to_owned();
        Image { name, base: module.base, size: module.size, sections, functions }
    }

    /// The RVA at which the function at `rva` begins; 256 bytes count as one where no function is
    /// known.
    fn function(&self, rva: u32) -> u64 {
        match self.functions.partition_point(|&begin| begin <= rva) {
            0 => u64::from(rva >> 8) | 1 << 40,
            n => u64::from(self.functions[n - 1]),
        }
    }

    /// Whether the thread is right after a `syscall`, or after Wine's `call [7ffe1000h]`, which
    /// replaces it.
    fn is_behind_system_call(&self, rva: u32) -> bool {
        const SYSCALL: &[u8] = &[0x0f, 0x05];
        const WINE_CALL: &[u8] = &[0xff, 0x14, 0x25, 0x00, 0x10, 0xfe, 0x7f];
        [SYSCALL, WINE_CALL].iter().any(|code| {
            rva.checked_sub(code.len() as u32)
                .is_some_and(|start| self.bytes(start, code.len()) == Some(code))
        })
    }

    fn bytes(&self, rva: u32, len: usize) -> Option<&[u8]> {
        self.sections.iter().find_map(|(start, bytes)| {
            let at = rva.checked_sub(*start)? as usize;
            bytes.get(at..at + len)
        })
    }
}

type Read = (Vec<(u32, Vec<u8>)>, Vec<u32>);

fn read(bytes: &[u8]) -> Option<Read> {
    let file = PeFile64::parse(bytes).ok()?;
    let sections = file.section_table();
    let contents = sections
        .iter()
        .filter_map(|section| Some((section.virtual_address.get(LE), section.pe_data(bytes).ok()?.to_vec())))
        .collect();
    let mut functions = Vec::new();
    if let Some(directory) = file.data_directories().get(IMAGE_DIRECTORY_ENTRY_EXCEPTION)
        && let Ok(table) = directory.data(bytes, &sections)
    {
        let begin = |entry: &[u8]| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        functions = table.chunks_exact(12).map(begin).filter(|&begin| begin != 0).collect();
        functions.sort_unstable();
    }
    Some((contents, functions))
}

/// The file behind a Windows path of the Wine prefix, names compared without case.
fn host_path(path: &str) -> Option<PathBuf> {
    let path = path.replace('\\', "/");
    let path = path.trim_start_matches("/??/");
    let (drive, rest) = path.split_once(":/")?;
    let root = match drive.to_ascii_lowercase().as_str() {
        "z" => PathBuf::from("/"),
        "c" => PathBuf::from(std::env::var_os("WINEPREFIX")?).join("drive_c"),
        _ => return None,
    };
    rest.split('/').filter(|name| !name.is_empty()).try_fold(root, |folder, name| child(&folder, name))
}

fn child(folder: &Path, name: &str) -> Option<PathBuf> {
    let exact = folder.join(name);
    if exact.exists() {
        return Some(exact);
    }
    let entries = std::fs::read_dir(folder).ok()?;
    let same =
        |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().to_lowercase() == name.to_lowercase();
    entries.filter_map(Result::ok).find(same).map(|entry| entry.path())
}
