//! A PE file as the unwinder wants it.

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

/// How much of an image the unwinder gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Every section.
    Everything,
    /// What a trace embeds: the exception directory and the read-only data with the unwind info, but no code.
    Tables,
}

/// Reads the PE file at `path`.
pub fn load(path: &Path, known: Known, pdb: Option<&Path>) -> Result<Image> {
    let x86 = match pdb {
        Some(pdb) => frames(pdb).with_context(|| pdb.display().to_string())?,
        None => X86Tables::default(),
    };
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let kind = object::FileKind::parse(&bytes[..]).with_context(|| path.display().to_string())?;
    match kind {
        object::FileKind::Pe32 => {
            map(&PeFile::<object::pe::ImageNtHeaders32>::parse(&bytes[..])?, known, x86)
        }
        object::FileKind::Pe64 => {
            map(&PeFile::<object::pe::ImageNtHeaders64>::parse(&bytes[..])?, known, x86)
        }
        other => bail!("{}: not a PE image but {other:?}", path.display()),
    }
}

fn map<H: ImageNtHeaders>(pe: &PeFile<'_, H>, known: Known, x86: X86Tables) -> Result<Image> {
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
    for section in pe.section_table().iter() {
        let is_code = section.characteristics.get(LE) & object::pe::IMAGE_SCN_MEM_EXECUTE != 0;
        if known == Known::Tables && is_code {
            continue;
        }
        let stored = section.pe_data(pe.data()).context("a section lies outside the file")?;
        let mut data = stored.to_vec();
        // What a section does not store is zero in memory.
        data.resize(data.len().max(section.virtual_size.get(LE) as usize), 0);
        builder = builder.range(section.virtual_address.get(LE), data);
    }
    let (rva, len) = match pe.data_directory(IMAGE_DIRECTORY_ENTRY_EXCEPTION) {
        Some(directory) => directory.address_range(),
        None => (0, 0),
    };
    Ok(Image {
        base: optional.image_base(),
        size: u64::from(size).next_multiple_of(0x1000),
        tables: builder.exception_directory(rva, len).x86(x86).build(),
    })
}

/// Reads a PDB's FrameData and FPO records and the extents of its procedures.
fn frames(path: &Path) -> Result<X86Tables> {
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
                program: strings.get(program)?.to_string().into_owned(),
            }),
            None => fpo.push(Fpo {
                rva: rva.0,
                len: record.code_size,
                locals: record.locals_size,
                params: record.params_size,
                saved: u32::from(record.saved_regs_size),
                uses_ebp: record.uses_base_pointer,
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
    Ok(X86Tables::new(programs, fpo).with_functions(procedures))
}
