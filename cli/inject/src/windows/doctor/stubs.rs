//! Reads ntdll's functions from memory and from its file.

use super::system::module_path;
use crate::doctor::stubs::{FUNCTIONS, Jump, Stub, compared, jump};
use crate::image;
use object::read::pe::PeFile;
use std::mem::zeroed;
use std::ptr;
use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::Diagnostics::Debug::ReadProcessMemory;
use windows_sys::Win32::System::LibraryLoader::GetModuleHandleW;
use windows_sys::Win32::System::Memory::{MEM_IMAGE, MEMORY_BASIC_INFORMATION, VirtualQuery};
use windows_sys::Win32::System::Threading::GetCurrentProcess;
use windows_sys::w;

#[cfg(target_pointer_width = "64")]
type Headers = object::pe::ImageNtHeaders64;
#[cfg(target_pointer_width = "32")]
type Headers = object::pe::ImageNtHeaders32;

/// Compares them; empty if the file cannot be read.
pub(super) fn gather() -> Vec<Stub> {
    // SAFETY: ntdll is in every process.
    let ntdll = unsafe { GetModuleHandleW(w!("ntdll.dll")) };
    let Ok(bytes) = std::fs::read(module_path(ntdll)) else { return Vec::new() };
    let Ok(file) = PeFile::<Headers>::parse(&*bytes) else { return Vec::new() };
    FUNCTIONS.iter().map(|&name| compare(ntdll, &file, &bytes, name)).collect()
}

fn compare(ntdll: HMODULE, file: &PeFile<Headers>, bytes: &[u8], name: &'static str) -> Stub {
    let mut stub = Stub { name, bytes: None, hooked_by: None };
    let len = compared(image::own_machine());
    let Some(rva) = export(file, name) else { return stub };
    let address = ntdll.addr() + rva as usize;
    let (Some(on_disk), Some(in_memory)) = (at_rva(file, bytes, rva, len), read(address, len)) else {
        return stub;
    };
    if in_memory != on_disk {
        stub.hooked_by = leads_to(address);
    }
    stub.bytes = Some((in_memory, on_disk));
    stub
}

fn export(file: &PeFile<Headers>, name: &str) -> Option<u32> {
    let table = file.export_table().ok()??;
    let mut names = table.name_iter();
    let (_, index) =
        names.find(|(at, _)| table.name_from_pointer(*at).is_ok_and(|found| found == name.as_bytes()))?;
    table.address_by_index(u32::from(index)).ok()
}

/// `len` bytes at an RVA, from the file.
fn at_rva(file: &PeFile<Headers>, bytes: &[u8], rva: u32, len: usize) -> Option<Vec<u8>> {
    file.section_table().pe_data_at(bytes, rva)?.get(..len).map(<[u8]>::to_vec)
}

/// `len` bytes of this process's memory, by the call that cannot fault.
fn read(address: usize, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    // SAFETY: the destination is the vector; the source is checked by the system.
    let ok = unsafe {
        let source = ptr::without_provenance(address);
        ReadProcessMemory(GetCurrentProcess(), source, bytes.as_mut_ptr().cast(), len, &mut done)
    };
    (ok != 0 && done == len).then_some(bytes)
}

/// The owner of the code to which the code at `address` jumps. Follows up to four jumps, because
/// the first often leads to another.
fn leads_to(address: usize) -> Option<String> {
    const WIDE: bool = cfg!(target_pointer_width = "64");
    let mut at = address;
    for _ in 0..4 {
        let bytes = read(at, 16)?;
        at = match jump(&bytes, at as u64, WIDE) {
            Some(Jump::To(to)) => to as usize,
            Some(Jump::Through(pointer)) => {
                let bytes = read(pointer as usize, size_of::<usize>())?;
                usize::from_ne_bytes(bytes.try_into().ok()?)
            }
            None => break,
        };
    }
    (at != address).then(|| owner(at))
}

fn owner(address: usize) -> String {
    // SAFETY: the struct is plain data and has the size that is passed; the address is not
    // followed.
    let info = unsafe {
        let mut info: MEMORY_BASIC_INFORMATION = zeroed();
        VirtualQuery(ptr::without_provenance(address), &mut info, size_of::<MEMORY_BASIC_INFORMATION>());
        info
    };
    if info.Type == MEM_IMAGE {
        module_path(info.AllocationBase).display().to_string()
    } else {
        format!("memory at {address:#x} that belongs to no module")
    }
}
