//! Reads a PE file for the unwinder.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::pe::{
    IMAGE_DIRECTORY_ENTRY_EXCEPTION, IMAGE_FILE_MACHINE_AMD64, IMAGE_FILE_MACHINE_ARM64,
    IMAGE_FILE_MACHINE_I386,
};
use object::read::pe::{ImageNtHeaders, PeFile};
use pdb::FallibleIterator;
use stk_unwind::x86::{Fpo, FrameData, X86Tables};
use stk_unwind::{Arch, ImageTables};

/// A PE file mapped at its preferred base.
pub struct Image {
    /// ImageBase.
    pub base: u64,
    /// SizeOfImage, rounded up to pages.
    pub size: u64,
    /// Its tables and all its bytes.
    pub tables: ImageTables,
}

/// The parts of an image that the unwinder gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Every section.
    Everything,
    /// The parts that a trace embeds: the exception directory and the read-only data with the
    /// unwind info, but no code.
    Tables,
}

/// An image whose parts [`super::piece`] stores.
pub struct Parts {
    /// The architecture.
    pub arch: Arch,
    /// ImageBase.
    pub base: u64,
    /// SizeOfImage.
    pub size: u32,
    /// The exception directory: RVA and length.
    pub directory: (u32, u32),
    /// Every unwind record that the directory leads to: RVA and length.
    pub unwind_records: Vec<(u32, u32)>,
    /// Sections of code.
    pub code: Vec<Range<u32>>,
    /// The PDB's FrameData.
    pub frame_data: Vec<FrameData>,
    /// Everything.
    pub tables: ImageTables,
}

/// Reads the PE file at `path`.
pub fn load(path: &Path, known: Known, pdb: Option<&Path>) -> Result<Image> {
    let parts = parts(path, known, pdb)?;
    let size = u64::from(parts.size).next_multiple_of(0x1000);
    Ok(Image { base: parts.base, size, tables: parts.tables })
}

/// Reads the parts of the PE file at `path`.
pub fn parts(path: &Path, known: Known, pdb: Option<&Path>) -> Result<Parts> {
    let frames = match pdb {
        Some(pdb) => frames(pdb).with_context(|| pdb.display().to_string())?,
        None => Frames::default(),
    };
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let kind = object::FileKind::parse(&bytes[..]).with_context(|| path.display().to_string())?;
    match kind {
        object::FileKind::Pe32 => {
            map(&PeFile::<object::pe::ImageNtHeaders32>::parse(&bytes[..])?, known, frames)
        }
        object::FileKind::Pe64 => {
            map(&PeFile::<object::pe::ImageNtHeaders64>::parse(&bytes[..])?, known, frames)
        }
        other => bail!("{}: not a PE image but {other:?}", path.display()),
    }
}

fn map<H: ImageNtHeaders>(pe: &PeFile<'_, H>, known: Known, frames: Frames) -> Result<Parts> {
    use object::LittleEndian as LE;
    use object::read::pe::ImageOptionalHeader;

    let arch = match pe.nt_headers().file_header().machine.get(LE) {
        IMAGE_FILE_MACHINE_AMD64 => Arch::X64,
        IMAGE_FILE_MACHINE_ARM64 => Arch::Arm64,
        IMAGE_FILE_MACHINE_I386 => Arch::X86,
        other => bail!("machine type {other:#06x} is not one that the unwinder knows"),
    };
    let optional = pe.nt_headers().optional_header();
    let size = optional.size_of_image();
    let mut builder = ImageTables::new(arch, size);
    let mut code = Vec::new();
    for section in pe.section_table().iter() {
        let rva = section.virtual_address.get(LE);
        let is_code = section.characteristics.get(LE) & object::pe::IMAGE_SCN_MEM_EXECUTE != 0;
        if is_code {
            code.push(rva..rva + section.virtual_size.get(LE));
        }
        if known == Known::Tables && is_code {
            continue;
        }
        let stored = section.pe_data(pe.data()).context("a section lies outside the file")?;
        let mut data = stored.to_vec();
        // Bytes that a section does not store are zero in memory.
        data.resize(data.len().max(section.virtual_size.get(LE) as usize), 0);
        builder = builder.range(rva, data);
    }
    let directory = match pe.data_directory(IMAGE_DIRECTORY_ENTRY_EXCEPTION) {
        Some(directory) if arch != Arch::X86 => directory.address_range(),
        _ => (0, 0),
    };
    let x86 = X86Tables::new(frames.data.clone(), frames.fpo).with_functions(frames.procedures);
    let tables = builder.exception_directory(directory.0, directory.1).x86(x86).build();
    Ok(Parts {
        arch,
        base: optional.image_base(),
        size,
        directory,
        unwind_records: unwind_records(arch, &tables, directory),
        code,
        frame_data: frames.data,
        tables,
    })
}

/// The unwind records that the exception directory leads to.
fn unwind_records(arch: Arch, image: &ImageTables, (rva, len): (u32, u32)) -> Vec<(u32, u32)> {
    let word = |rva: u32| {
        let bytes = image.bytes(rva).and_then(|bytes| bytes.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let mut records = Vec::new();
    match arch {
        Arch::X64 => {
            for at in (rva..rva + len).step_by(12) {
                let mut info = word(at + 8);
                // A chain has a handful of links.
                for _ in 0..8 {
                    let head = word(info);
                    let codes = (head >> 16 & 0xff).next_multiple_of(2) * 2;
                    let is_chained = head >> 3 & 4 != 0;
                    records.push((info, 4 + codes + if is_chained { 12 } else { 0 }));
                    if !is_chained {
                        break;
                    }
                    info = word(info + 4 + codes + 8);
                }
            }
        }
        Arch::Arm64 => {
            for at in (rva..rva + len).step_by(8) {
                let data = word(at + 4);
                if data & 3 == 0 {
                    let (head, next) = (word(data), word(data + 4));
                    let is_extended = head >> 22 == 0 || (head >> 22 & 31, head >> 27) == (0, 0);
                    let (mut scopes, words) = match is_extended {
                        true => (next & 0xffff, next >> 16 & 0xff),
                        false => (head >> 22 & 31, head >> 27),
                    };
                    if head >> 21 & 1 != 0 {
                        scopes = 0;
                    }
                    records.push((data, 4 + u32::from(is_extended) * 4 + scopes * 4 + words * 4));
                }
            }
        }
        _ => {}
    }
    records
}

/// A PDB's frame records.
#[derive(Default)]
struct Frames {
    data: Vec<FrameData>,
    fpo: Vec<Fpo>,
    procedures: Vec<Range<u32>>,
}

/// Reads a PDB's FrameData and FPO records and the extents of its procedures.
fn frames(path: &Path) -> Result<Frames> {
    let mut pdb = pdb::PDB::open(std::fs::File::open(path)?)?;
    let addresses = pdb.address_map()?;
    let strings = pdb.string_table()?;
    let table = pdb.frame_table()?;
    let (mut programs, mut fpo) = (Vec::new(), Vec::new());
    let mut records = table.iter();
    while let Some(record) = records.next()? {
        let Some(rva) = record.code_start.to_rva(&addresses) else { continue };
        match record.program {
            Some(program) => programs.push(FrameData {
                rva: rva.0,
                len: record.code_size,
                locals: record.locals_size,
                params: record.params_size,
                prologue: u32::from(record.prolog_size),
                saved: u32::from(record.saved_regs_size),
                is_function_start: record.is_function_start,
                has_seh: false,
                has_eh: false,
                program: strings.get(program)?.to_string().into_owned(),
            }),
            None => fpo.push(Fpo {
                rva: rva.0,
                len: record.code_size,
                locals: record.locals_size,
                params: record.params_size,
                saved: u32::from(record.saved_regs_size),
                uses_ebp: record.uses_base_pointer,
                prologue: 0,
                has_seh: false,
                frame_type: 0,
            }),
        }
    }
    let mut procedures = Vec::new();
    let information = pdb.debug_information()?;
    let mut modules = information.modules()?;
    while let Some(module) = modules.next()? {
        let Some(module) = pdb.module_info(&module)? else { continue };
        let mut symbols = module.symbols()?;
        while let Some(symbol) = symbols.next()? {
            if let Ok(pdb::SymbolData::Procedure(procedure)) = symbol.parse()
                && let Some(rva) = procedure.offset.to_rva(&addresses)
            {
                procedures.push(rva.0..rva.0 + procedure.len);
            }
        }
    }
    Ok(Frames { data: programs, fpo, procedures })
}
