//! The few fields of the process environment block that the recorder reads, by offset (winternl.h
//! and phnt; the same from Windows 7 to 11 and under Wine 8).

use alloc::vec;
use alloc::vec::Vec;
use core::ptr;

use crate::record::image::Memory;
use crate::record::modules::ModuleSighting;
use crate::windows::system::api::SystemApi;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::text::wtf8;

/// The offsets, asserted against public headers by stk-schema's test `e2e::layouts`.
mod offsets {
    use stk_schema::layout::NATIVE;
    pub(super) const LOADER_DATA: u64 = NATIVE.peb_loader_data as u64;
    pub(super) const FAST_PEB_LOCK: usize = NATIVE.peb_fast_peb_lock;
    pub(super) const LOADER_LOCK: usize = NATIVE.peb_loader_lock;
    pub(super) const LIST: u64 = NATIVE.loader_list as u64;
    pub(super) const BASE: usize = NATIVE.entry_base;
    pub(super) const SIZE: usize = NATIVE.entry_size;
    pub(super) const NAME_LEN: usize = NATIVE.entry_name_len;
    pub(super) const NAME: usize = NATIVE.entry_name;
    pub(super) const ENTRY: usize = NATIVE.entry_read;
    pub(super) const OWNER: usize = NATIVE.section_owner;
}

/// More modules than any process has. Ends a walk that a racing change sent in circles.
const MAX_MODULES: usize = 16_384;

/// The process environment block.
#[derive(Clone, Copy)]
pub(crate) struct Peb(*const u8);

// SAFETY: the block lives as long as the process and is only read.
unsafe impl Send for Peb {}
// SAFETY: as above.
unsafe impl Sync for Peb {}

impl Peb {
    /// This process's block.
    pub(crate) fn current(api: &SystemApi) -> Peb {
        // SAFETY: no preconditions.
        Peb(unsafe { (api.current_peb)() })
    }

    /// Whether thread `tid` owns the loader lock and the PEB lock, as RtlExitUserProcess does when
    /// it terminates every other thread. (So does a thread that loads a module and reads the
    /// environment meanwhile.) Such a thread is not sampled: if the sampler is terminated while it
    /// holds that thread suspended, only the guard process can resume it. This only reads the
    /// owners and takes no lock.
    pub(crate) fn owns_exit_locks(&self, tid: u32) -> bool {
        self.owner(offsets::FAST_PEB_LOCK) == tid as usize && self.owner(offsets::LOADER_LOCK) == tid as usize
    }

    fn owner(&self, lock: usize) -> usize {
        // SAFETY: the field holds null or the address of one of ntdll's static critical sections,
        // whose owner is a word that may change at any time, hence volatile.
        unsafe {
            let section: *const u8 = ptr::read_volatile(self.0.add(lock).cast());
            if section.is_null() { 0 } else { ptr::read_volatile(section.add(offsets::OWNER).cast()) }
        }
    }

    /// The loader's list of modules, the executable first. It is read without the loader's lock, so
    /// a racing load or unload can break the walk: `None` if it did not return to its head.
    pub(crate) fn modules(&self, memory: &OwnMemory) -> Option<Vec<ModuleSighting>> {
        let data = memory.pointer(self.0 as u64 + offsets::LOADER_DATA)?;
        let head = data + offsets::LIST;
        let mut modules = Vec::new();
        let mut link = memory.pointer(head)?;
        while link != head {
            if modules.len() == MAX_MODULES {
                return None;
            }
            let mut entry = [0; offsets::ENTRY];
            if !memory.read(link, &mut entry) {
                return None;
            }
            let base = word(&entry, offsets::BASE);
            if base != 0 {
                let len = u16::from_le_bytes([entry[offsets::NAME_LEN], entry[offsets::NAME_LEN + 1]]);
                let mut name = vec![0; usize::from(len)];
                if !memory.read(word(&entry, offsets::NAME), &mut name) {
                    name.clear();
                }
                let units = name.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
                modules.push(ModuleSighting {
                    base,
                    size: word(&entry, offsets::SIZE) & 0xffff_ffff,
                    path: wtf8(units),
                });
            }
            link = word(&entry, 0);
        }
        Some(modules)
    }
}

fn word(entry: &[u8; offsets::ENTRY], at: usize) -> u64 {
    let mut bytes = [0; size_of::<usize>()];
    bytes.copy_from_slice(&entry[at..at + size_of::<usize>()]);
    usize::from_le_bytes(bytes) as u64
}
