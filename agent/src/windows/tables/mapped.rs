//! Images that are mapped into this process, including those that the loader does not know.

use alloc::vec;
use alloc::vec::Vec;

use windows_sys::Win32::Storage::FileSystem::QueryDosDeviceW;
use windows_sys::Win32::System::Memory::MEM_IMAGE;
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use crate::record::fingerprint::Fingerprint;
use crate::record::modules::ModuleSighting;
use crate::record::unlisted::{Mappings, dos_path};
use crate::windows::system::api::SystemApi;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::pages::query;
use crate::windows::system::peb::Peb;
use crate::windows::system::text::{UnicodeString, units, wtf8};
use stk_schema::identity::PeIdentity;

/// MemoryMappedFilenameInformation.
const MAPPED_FILE_NAME: u32 = 2;
/// Most regions of an image; neighbouring regions have different protection.
const MOST_REGIONS: usize = 4096;
/// Attempts to read the loader's list when it changes meanwhile.
const TRIES: usize = 20;

/// This process's images, as the system reports them.
#[derive(Clone, Copy)]
pub(super) struct MappedImages {
    pub api: &'static SystemApi,
    pub peb: Peb,
}

impl MappedImages {
    /// Full path of the file that is mapped at `base`, WTF-8, with a drive letter if its device has
    /// one; empty if the system does not know it.
    pub(super) fn path(&self, base: u64) -> Vec<u8> {
        const HEADER: usize = size_of::<UnicodeString>();
        let (Some(query), Ok(base)) = (self.api.query_memory, usize::try_from(base)) else {
            return Vec::new();
        };
        // A UNICODE_STRING and the longest text that it can hold; words, so that it is aligned.
        let mut room = vec![0u64; (HEADER + 0x1_0000) / 8];
        let bytes = room.len() * 8;
        let (start, mut used) = (room.as_mut_ptr(), 0);
        // SAFETY: the address is looked up only; the result is written to `bytes` writable ones.
        let status = unsafe {
            query(GetCurrentProcess(), base as *const _, MAPPED_FILE_NAME, start.cast(), bytes, &mut used)
        };
        if status < 0 {
            return Vec::new();
        }
        // SAFETY: the system wrote a UNICODE_STRING at the start of the room, which is large and
        // aligned enough.
        let name: UnicodeString = unsafe { start.cast::<UnicodeString>().read() };
        let (first, len) = (start as usize, usize::from(name.len) & !1);
        let text = name.text as usize;
        if text < first + HEADER
            || text.checked_add(len).is_none_or(|end| end > first + bytes)
            || !text.is_multiple_of(2)
        {
            return Vec::new();
        }
        // SAFETY: the text lies inside of the room, which was zero before the system wrote to it.
        let name = unsafe { core::slice::from_raw_parts(text as *const u16, len / 2) };
        wtf8(dos_path(name, device).into_iter())
    }
}

impl Mappings for MappedImages {
    fn image_at(&self, address: u64) -> Option<ModuleSighting> {
        let info = query(address).filter(|info| info.Type == MEM_IMAGE)?;
        let base = info.AllocationBase as u64;
        let mut end = base;
        for _ in 0..MOST_REGIONS {
            let Some(region) = query(end).filter(|region| region.AllocationBase as u64 == base) else {
                break;
            };
            end = (region.BaseAddress as u64).saturating_add(region.RegionSize as u64);
        }
        Some(ModuleSighting { base, size: end - base, path: Vec::new() })
    }

    fn listed(&self) -> Option<Vec<u64>> {
        let memory = OwnMemory(self.api);
        let modules = (0..TRIES).find_map(|_| self.peb.modules(&memory))?;
        Some(modules.into_iter().map(|seen| seen.base).collect())
    }

    fn identity(&self, base: u64) -> Option<PeIdentity> {
        Fingerprint::read(&OwnMemory(self.api), base).map(|print| print.pe)
    }
}

/// The device of a drive letter; empty if it has none.
fn device(letter: u8) -> Vec<u16> {
    let name = [u16::from(letter), u16::from(b':'), 0];
    let mut target = [0u16; 512];
    // SAFETY: the name is zero-terminated; the result is that many units at most.
    let len = unsafe { QueryDosDeviceW(name.as_ptr(), target.as_mut_ptr(), target.len() as u32) };
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: reads up to the terminator or the end of the array.
    unsafe { units(target.as_ptr(), target.len()) }.to_vec()
}
