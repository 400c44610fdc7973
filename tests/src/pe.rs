//! Reads the properties of a built PE image, 32- or 64-bit.

use object::LittleEndian as LE;
use object::pe;
use object::read::pe::{ImageNtHeaders, ImageThunkData, PeFile, optional_header_magic};
use std::collections::BTreeSet;

/// The properties of a DLL or program that the tests check.
#[derive(Clone, Debug)]
pub struct Built {
    /// `IMAGE_FILE_MACHINE_*`.
    pub machine: u16,
    /// Names of the DLLs that it imports from, in lower case.
    pub imports: BTreeSet<String>,
    /// Names of the functions that it imports.
    pub functions: BTreeSet<String>,
    /// Whether it has delayed imports.
    pub delays: bool,
    /// Whether the loader makes thread-local storage for it, from the process heap, at the start of
    /// each thread.
    pub thread_local: bool,
    /// Names of its exports.
    pub exports: BTreeSet<String>,
    /// Ids of the types of its resources (16: version information, 24: manifest).
    pub resources: BTreeSet<u16>,
}

/// Reads an image; a panic names what is wrong with it.
pub fn read(bytes: &[u8]) -> Built {
    match optional_header_magic(bytes).expect("it is a PE image") {
        pe::IMAGE_NT_OPTIONAL_HDR64_MAGIC => of::<pe::ImageNtHeaders64>(bytes),
        _ => of::<pe::ImageNtHeaders32>(bytes),
    }
}

fn of<Pe: ImageNtHeaders>(bytes: &[u8]) -> Built {
    let file = PeFile::<Pe>::parse(bytes).expect("it is a PE image");
    let (mut imports, mut functions) = (BTreeSet::new(), BTreeSet::new());
    if let Some(table) = file.import_table().expect("its import table can be read") {
        let mut descriptors = table.descriptors().expect("descriptors");
        while let Some(descriptor) = descriptors.next().expect("a descriptor") {
            let name = table.name(descriptor.name.get(LE)).expect("a name");
            imports.insert(String::from_utf8_lossy(name).to_ascii_lowercase());
            let mut thunks = table.thunks(descriptor.original_first_thunk.get(LE)).expect("its functions");
            while let Some(thunk) = thunks.next::<Pe>().expect("a function") {
                if !thunk.is_ordinal() {
                    let (_, name) = table.hint_name(thunk.address()).expect("a function's name");
                    functions.insert(String::from_utf8_lossy(name).into_owned());
                }
            }
        }
    }
    let mut exports = BTreeSet::new();
    if let Some(table) = file.export_table().expect("its export table can be read") {
        for (pointer, _) in table.name_iter() {
            let name = table.name_from_pointer(pointer).expect("a name");
            exports.insert(String::from_utf8_lossy(name).into_owned());
        }
    }
    let directories = file.data_directories();
    let has = |index| directories.get(index).is_some_and(|directory| directory.size.get(LE) != 0);
    let delays = has(pe::IMAGE_DIRECTORY_ENTRY_DELAY_IMPORT);
    let thread_local = has(pe::IMAGE_DIRECTORY_ENTRY_TLS);
    let mut resources = BTreeSet::new();
    let sections = file.section_table();
    if let Some(directory) =
        directories.resource_directory(bytes, &sections).expect("its resources can be read")
    {
        let root = directory.root().expect("the root of its resources");
        resources.extend(root.entries.iter().filter_map(|entry| entry.name_or_id().id()));
    }
    let machine = file.nt_headers().file_header().machine.get(LE);
    Built { machine, imports, functions, delays, thread_local, exports, resources }
}
