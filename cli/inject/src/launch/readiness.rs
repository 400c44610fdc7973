//! Whether a process that inject has started is initialised, by what its loader has noted in its
//! memory.
//!
//! No single field says it on every Windows: `PEB_LDR_DATA.Initialized` is set before the first DLL
//! is loaded, and what ntdll itself waits for has no public place. So each sign that initialisation
//! still runs counts, as far as inject's own process, which is initialised, does not show it: a
//! field that has another meaning on some system proves nothing there.
//!
//! Sources: phnt (`ntpebteb.h`, `ntldr.h`), whose flags Wine's loader sets likewise;
//! [`stk_schema::layout`] has the offsets.

use std::fmt;
use stk_schema::layout::Layout;

/// PEB.CrossProcessFlags: ProcessInitializing. Wine never sets it.
const PROCESS_INITIALIZING: u32 = 1 << 1;
/// LDR_DATA_TABLE_ENTRY.Flags: ImageDll.
const IMAGE_DLL: u32 = 1 << 2;
/// LDR_DATA_TABLE_ENTRY.Flags: LoadInProgress.
const LOAD_IN_PROGRESS: u32 = 1 << 12;
/// LDR_DATA_TABLE_ENTRY.Flags: ProcessAttachCalled, set when DllMain has returned.
const PROCESS_ATTACH_CALLED: u32 = 1 << 19;

/// More modules than a process has when it begins. Ends a walk that a racing change sent in
/// circles.
const MAX_MODULES: usize = 4096;
/// Most bytes of a module's name that are read.
const MAX_NAME: usize = 520;

/// The DLL without which no program for Windows is initialised.
const FIRST_DLL: &str = "kernel32.dll";

/// What the loader of a process has noted, at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LoaderState {
    /// PEB.ProcessInitializing.
    initializing: bool,
    /// Whether PEB_LDR_DATA.EntryInProgress names a module.
    in_progress: bool,
    /// Thread id of the loader lock's owner; 0 = none.
    lock_owner: u64,
    /// The DLLs with an entry point, in load order.
    dlls: Vec<Dll>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Dll {
    /// Base name in lower case.
    name: String,
    /// Whether its entry point has been called for the process.
    attached: bool,
}

/// A sign that a process is still being initialised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unready {
    /// The loader has made no list of modules yet, or is changing it.
    NoModules,
    /// The process's environment block says so.
    Initializing,
    /// A module is being loaded.
    Loading,
    /// The main thread owns the loader lock: it is in a DllMain or a TLS callback.
    InDllMain,
    /// kernel32.dll is not there yet.
    NoFirstDll,
    /// The DllMain of this DLL has not returned.
    NotAttached(String),
}

impl fmt::Display for Unready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unready::NoModules => f.write_str("its loader has no list of modules yet"),
            Unready::Initializing => f.write_str("its environment block says that it is being initialised"),
            Unready::Loading => f.write_str("its loader is loading a module"),
            Unready::InDllMain => {
                f.write_str("its main thread is in a DllMain or TLS callback that waits alertably")
            }
            Unready::NoFirstDll => write!(f, "{FIRST_DLL} is not loaded yet"),
            Unready::NotAttached(name) => write!(f, "the DllMain of {name} has not returned"),
        }
    }
}

impl LoaderState {
    /// Reads the state by `read`, which fills a buffer from an address in the process whose PEB is
    /// at `peb`, or returns false. `None` if there is no whole list of modules.
    pub(crate) fn read(
        layout: &Layout,
        peb: u64,
        read: &dyn Fn(u64, &mut [u8]) -> bool,
    ) -> Option<LoaderState> {
        let memory = Memory { layout, read };
        let data = memory.pointer(peb + layout.peb_loader_data as u64).filter(|&data| data != 0)?;
        if memory.bytes::<1>(data + layout.loader_initialized as u64)? == [0] {
            return None;
        }
        let flags = u32::from_le_bytes(memory.bytes(peb + layout.peb_cross_process_flags as u64)?);
        let lock = memory.pointer(peb + layout.peb_loader_lock as u64)?;
        Some(LoaderState {
            initializing: flags & PROCESS_INITIALIZING != 0,
            in_progress: memory.pointer(data + layout.loader_entry_in_progress as u64)? != 0,
            lock_owner: match lock {
                0 => 0,
                section => memory.pointer(section + layout.section_owner as u64)?,
            },
            dlls: memory.dlls(data + layout.loader_list as u64)?,
        })
    }
}

/// Whether the loader of the process whose PEB is at `peb` has begun its list of modules. `read` as
/// for [`LoaderState::read`]; what cannot be read is no sign that it has not.
pub(crate) fn has_begun(layout: &Layout, peb: u64, read: &dyn Fn(u64, &mut [u8]) -> bool) -> bool {
    let memory = Memory { layout, read };
    match memory.pointer(peb + layout.peb_loader_data as u64) {
        Some(0) => false,
        Some(data) => memory.bytes::<1>(data + layout.loader_initialized as u64) != Some([0]),
        None => true,
    }
}

/// The sign, if there is one, that the process in this state is not initialised. `main`: its main
/// thread; `own`: the state of a process that is initialised on the same system.
pub(crate) fn unready(state: Option<&LoaderState>, main: u32, own: &LoaderState) -> Option<Unready> {
    let Some(state) = state else { return Some(Unready::NoModules) };
    if state.initializing && !own.initializing {
        return Some(Unready::Initializing);
    }
    if state.in_progress && !own.in_progress {
        return Some(Unready::Loading);
    }
    if state.lock_owner == u64::from(main) {
        return Some(Unready::InDllMain);
    }
    let exempt = |name: &str| own.dlls.iter().any(|dll| dll.name == name && !dll.attached);
    let waits = state.dlls.iter().find(|dll| !dll.attached && !exempt(&dll.name));
    if let Some(dll) = waits {
        return Some(Unready::NotAttached(dll.name.clone()));
    }
    (!state.dlls.iter().any(|dll| dll.name == FIRST_DLL)).then_some(Unready::NoFirstDll)
}

/// Whether the process is certainly still in the initialisation in which it was in the state
/// `first`. A main thread that owns the loader lock may have come to the program by now: functions
/// such as GetModuleHandle take that lock, and a program may load further DLLs.
pub(crate) fn is_still_initialising(
    state: Option<&LoaderState>,
    first: Option<&LoaderState>,
    own: &LoaderState,
) -> bool {
    let Some(state) = state else { return first.is_none() };
    let unattached =
        |state: &LoaderState, name: &str| state.dlls.iter().any(|dll| dll.name == name && !dll.attached);
    let waits = |dll: &Dll| {
        !dll.attached && !unattached(own, &dll.name) && first.is_none_or(|first| unattached(first, &dll.name))
    };
    state.initializing && !own.initializing || state.dlls.iter().any(waits)
}

/// The process's memory in words of its width.
struct Memory<'a> {
    layout: &'a Layout,
    read: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

impl Memory<'_> {
    fn bytes<const LEN: usize>(&self, address: u64) -> Option<[u8; LEN]> {
        let mut bytes = [0; LEN];
        (self.read)(address, &mut bytes).then_some(bytes)
    }

    fn pointer(&self, address: u64) -> Option<u64> {
        // UNICODE_STRING.Buffer is the first field of pointer size behind four bytes, aligned.
        match self.layout.string_text {
            4 => self.bytes(address).map(|bytes| u64::from(u32::from_le_bytes(bytes))),
            _ => self.bytes(address).map(u64::from_le_bytes),
        }
    }

    /// The DLLs with an entry point in the list with this head; `None` if the list is not whole.
    fn dlls(&self, head: u64) -> Option<Vec<Dll>> {
        let layout = self.layout;
        let mut dlls = Vec::new();
        let mut link = self.pointer(head)?;
        for _ in 0..MAX_MODULES {
            if link == head {
                return Some(dlls);
            }
            if link == 0 {
                return None;
            }
            let flags = u32::from_le_bytes(self.bytes(link + layout.entry_flags as u64)?);
            if flags & IMAGE_DLL != 0 && self.pointer(link + layout.entry_point as u64)? != 0 {
                let attached = flags & PROCESS_ATTACH_CALLED != 0 && flags & LOAD_IN_PROGRESS == 0;
                dlls.push(Dll { name: self.name(link + layout.entry_base_name as u64)?, attached });
            }
            link = self.pointer(link)?;
        }
        None
    }

    /// The UNICODE_STRING at `address` in lower case.
    fn name(&self, address: u64) -> Option<String> {
        let len = usize::from(u16::from_le_bytes(self.bytes(address)?)).min(MAX_NAME);
        let mut bytes = vec![0; len];
        if !(self.read)(self.pointer(address + self.layout.string_text as u64)?, &mut bytes) {
            return None;
        }
        let units: Vec<u16> =
            bytes.chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
        Some(String::from_utf16_lossy(&units).to_lowercase())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use stk_schema::layout::{BITS32, BITS64};

    const PEB: u64 = 0x7000_0000;
    const DATA: u64 = 0x7100_0000;
    const LOCK: u64 = 0x7200_0000;
    const MAIN: u32 = 0x44;
    const ATTACHED: u32 = IMAGE_DLL | PROCESS_ATTACH_CALLED;

    /// A process's memory, byte by byte.
    struct Fake {
        layout: Layout,
        bytes: HashMap<u64, u8>,
    }

    impl Fake {
        /// A process whose main thread has been initialised, with these modules: name, entry point,
        /// flags.
        fn new(layout: Layout, modules: &[(&str, u64, u32)]) -> Fake {
            let mut fake = Fake { layout, bytes: HashMap::new() };
            fake.word(PEB + layout.peb_loader_data as u64, DATA);
            fake.set(PEB + layout.peb_cross_process_flags as u64, &[0; 4]);
            fake.word(PEB + layout.peb_loader_lock as u64, LOCK);
            fake.word(LOCK + layout.section_owner as u64, 0);
            fake.set(DATA + layout.loader_initialized as u64, &[1]);
            fake.word(DATA + layout.loader_entry_in_progress as u64, 0);
            let mut link = DATA + layout.loader_list as u64;
            for (index, (name, entry_point, flags)) in modules.iter().enumerate() {
                let (entry, text) =
                    (0x7300_0000 + 0x1000 * index as u64, 0x7400_0000 + 0x1000 * index as u64);
                fake.word(link, entry);
                fake.word(entry + layout.entry_point as u64, *entry_point);
                fake.set(entry + layout.entry_flags as u64, &flags.to_le_bytes());
                let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
                let string = entry + layout.entry_base_name as u64;
                fake.set(string, &(units.len() as u16).to_le_bytes());
                fake.word(string + layout.string_text as u64, text);
                fake.set(text, &units);
                link = entry;
            }
            fake.word(link, DATA + layout.loader_list as u64);
            fake
        }

        fn set(&mut self, address: u64, bytes: &[u8]) {
            self.bytes.extend((address..).zip(bytes.iter().copied()));
        }

        fn word(&mut self, address: u64, value: u64) {
            let width = if self.layout == BITS32 { 4 } else { 8 };
            self.set(address, &value.to_le_bytes()[..width]);
        }

        fn state(&self) -> Option<LoaderState> {
            LoaderState::read(&self.layout, PEB, &|address, buffer| {
                let found = (address..).zip(buffer.iter_mut());
                found
                    .map(|(at, to)| self.bytes.get(&at).map(|&byte| *to = byte))
                    .collect::<Option<Vec<()>>>()
                    .is_some()
            })
        }

        fn unready(&self) -> Option<Unready> {
            unready(self.state().as_ref(), MAIN, &Fake::new(self.layout, &READY).state().expect("whole"))
        }
    }

    /// The executable, whose entry point the loader does not call; ntdll, which has none.
    const READY: [(&str, u64, u32); 4] = [
        ("app.exe", 0x1000, 0),
        ("ntdll.dll", 0, IMAGE_DLL),
        ("KERNEL32.DLL", 0x1000, ATTACHED),
        ("a.dll", 0x1000, ATTACHED),
    ];

    fn each_layout(test: impl Fn(Layout)) {
        [BITS64, BITS32].into_iter().for_each(test);
    }

    #[test]
    fn a_process_whose_dlls_are_attached_is_ready() {
        each_layout(|layout| assert_eq!(Fake::new(layout, &READY).unready(), None));
    }

    #[test]
    fn a_process_without_a_list_of_modules_is_not_ready() {
        each_layout(|layout| {
            let mut fake = Fake::new(layout, &READY);
            fake.word(PEB + layout.peb_loader_data as u64, 0);
            assert_eq!(fake.unready(), Some(Unready::NoModules));
            let mut fake = Fake::new(layout, &READY);
            fake.set(DATA + layout.loader_initialized as u64, &[0]);
            assert_eq!(fake.unready(), Some(Unready::NoModules));
            // A list that does not lead back to its head.
            let mut fake = Fake::new(layout, &READY);
            fake.word(0x7300_1000, 0x7300_0000);
            assert_eq!(fake.unready(), Some(Unready::NoModules));
            assert_eq!(unready(None, MAIN, &fake_state()), Some(Unready::NoModules));
        });
    }

    #[test]
    fn a_list_that_changes_has_begun() {
        each_layout(|layout| {
            let begun = |fake: &Fake| {
                has_begun(&layout, PEB, &|address, buffer| {
                    let mut found = (address..).zip(buffer.iter_mut());
                    found.all(|(at, to)| fake.bytes.get(&at).map(|&byte| *to = byte).is_some())
                })
            };
            let mut fake = Fake::new(layout, &READY);
            // It does not lead back to its head at this moment.
            fake.word(0x7300_1000, 0x7300_0000);
            assert!(begun(&fake) && fake.state().is_none());
            fake.set(DATA + layout.loader_initialized as u64, &[0]);
            assert!(!begun(&fake));
            fake.word(PEB + layout.peb_loader_data as u64, 0);
            assert!(!begun(&fake));
            assert!(begun(&Fake { layout, bytes: HashMap::new() }), "what cannot be read is no sign");
        });
    }

    fn fake_state() -> LoaderState {
        Fake::new(BITS64, &READY).state().expect("whole")
    }

    #[test]
    fn a_main_thread_that_owns_the_loader_lock_is_in_a_dllmain() {
        each_layout(|layout| {
            let mut fake = Fake::new(layout, &READY);
            fake.word(LOCK + layout.section_owner as u64, u64::from(MAIN));
            assert_eq!(fake.unready(), Some(Unready::InDllMain));
            // A thread that begins meanwhile owns it for a moment, too.
            fake.word(LOCK + layout.section_owner as u64, 0x88);
            assert_eq!(fake.unready(), None);
        });
    }

    #[test]
    fn a_dll_that_is_not_attached_is_named() {
        for flags in [IMAGE_DLL, IMAGE_DLL | LOAD_IN_PROGRESS, ATTACHED | LOAD_IN_PROGRESS] {
            each_layout(|layout| {
                let mut modules = READY;
                modules[3].2 = flags;
                let expected = Unready::NotAttached("a.dll".to_owned());
                assert_eq!(Fake::new(layout, &modules).unready(), Some(expected));
            });
        }
    }

    #[test]
    fn the_loader_s_own_signs_are_believed() {
        each_layout(|layout| {
            let mut fake = Fake::new(layout, &READY);
            fake.set(PEB + layout.peb_cross_process_flags as u64, &PROCESS_INITIALIZING.to_le_bytes());
            assert_eq!(fake.unready(), Some(Unready::Initializing));
            let mut fake = Fake::new(layout, &READY);
            fake.word(DATA + layout.loader_entry_in_progress as u64, 0x7300_3000);
            assert_eq!(fake.unready(), Some(Unready::Loading));
            assert_eq!(Fake::new(layout, &READY[..2]).unready(), Some(Unready::NoFirstDll));
        });
    }

    #[test]
    fn signs_that_an_initialised_process_shows_too_prove_nothing() {
        let mut fake = Fake::new(BITS64, &READY);
        fake.set(PEB + BITS64.peb_cross_process_flags as u64, &PROCESS_INITIALIZING.to_le_bytes());
        fake.word(DATA + BITS64.loader_entry_in_progress as u64, 1);
        fake.word(0x7300_1000 + BITS64.entry_point as u64, 0x1000);
        let state = fake.state().expect("whole");
        assert_eq!(unready(Some(&state), MAIN, &state), None);
        assert_ne!(unready(Some(&state), MAIN, &fake_state()), None);
    }

    #[test]
    fn a_lock_alone_is_no_proof_that_the_program_has_not_begun() {
        let own = fake_state();
        let state = |modules: &[(&str, u64, u32)]| Fake::new(BITS64, modules).state();
        let mut modules = READY;
        modules[3].2 = IMAGE_DLL;
        let first = state(&modules);
        assert!(is_still_initialising(first.as_ref(), first.as_ref(), &own));
        assert!(is_still_initialising(first.as_ref(), None, &own), "the list was not there at first");
        assert!(is_still_initialising(None, None, &own));

        let mut fake = Fake::new(BITS64, &READY);
        fake.word(LOCK + BITS64.section_owner as u64, u64::from(MAIN));
        let locked = fake.state();
        assert!(!is_still_initialising(locked.as_ref(), first.as_ref(), &own));
        fake.set(PEB + BITS64.peb_cross_process_flags as u64, &PROCESS_INITIALIZING.to_le_bytes());
        assert!(is_still_initialising(fake.state().as_ref(), first.as_ref(), &own));
        // A DLL that the program loads itself.
        let mut loads = READY.to_vec();
        loads.push(("b.dll", 0x1000, IMAGE_DLL));
        assert!(!is_still_initialising(state(&loads).as_ref(), first.as_ref(), &own));
        // A list that is being changed.
        assert!(!is_still_initialising(None, first.as_ref(), &own));
    }
}
