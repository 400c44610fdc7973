//! The export that `inject doctor` calls in its own process to check that this system behaves as
//! the recorder expects. The agent reports what it finds; inject judges it.
//!
//! This test takes the PEB lock, by its documented pair of functions, to compare its owner word
//! with the owner. No recording takes that lock.

use core::ffi::c_void;
use core::mem::transmute;
use core::ptr::{null_mut, read_volatile};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use stk_schema::layout::NATIVE;
use stk_schema::selftest as fact;
use stk_schema::selftest::SelfTest;
use windows_sys::Win32::Foundation::FreeLibrary;
use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleW, GetProcAddress, LoadLibraryW};
use windows_sys::Win32::System::Threading::GetCurrentThreadId;
use windows_sys::{s, w};

use crate::windows::system::api::{self, Api};
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::peb::Peb;
use crate::windows::system::thread::{self, Teb};
use crate::windows::tables::loader::{Data, UnicodeString};

/// LDR_DLL_NOTIFICATION_REASON_LOADED.
const LOADED: u32 = 1;

/// Export: see [`fact::EXPORT_SELFTEST`].
///
/// # Safety
/// `test` is null or points to as many bytes as its size says, readable and writable during the
/// call.
#[unsafe(no_mangle)]
unsafe extern "system" fn stk_agent_selftest(test: *mut SelfTest) -> u32 {
    // SAFETY: the caller's promise; size and version are checked first.
    let test = unsafe {
        if test.is_null()
            || (*test).version != fact::SELFTEST_VERSION
            || ((*test).size as usize) < size_of::<SelfTest>()
        {
            return 1;
        }
        &mut *test
    };
    let Some(api) = api::api() else { return 1 };
    // SAFETY: no preconditions.
    test.tid = unsafe { GetCurrentThreadId() };
    features(api, test);
    locks(api, test);
    probe(api, test);
    modules(api, test);
    own_thread(api, test);
    0
}

type PebLock = unsafe extern "system" fn();

fn peb_lock_functions() -> Option<(PebLock, PebLock)> {
    // SAFETY: the names are zero-terminated, and both functions take no argument and return nothing
    // that is used here (phnt, Wine).
    unsafe {
        let ntdll = GetModuleHandleW(w!("ntdll.dll"));
        let acquire = GetProcAddress(ntdll, s!("RtlAcquirePebLock"))?;
        let release = GetProcAddress(ntdll, s!("RtlReleasePebLock"))?;
        type Function = unsafe extern "system" fn() -> isize;
        Some((transmute::<Function, PebLock>(acquire), transmute::<Function, PebLock>(release)))
    }
}

fn features(api: &Api, test: &mut SelfTest) {
    for (there, feature) in [
        (api.next_thread.is_some(), fact::FEATURE_NEXT_THREAD),
        (api.register_notification.is_some(), fact::FEATURE_NOTIFICATION),
        (api.thread_cycles.is_some(), fact::FEATURE_CYCLES),
        (api.precise_time.is_some(), fact::FEATURE_PRECISE_TIME),
        (api.is_wow64.is_some(), fact::FEATURE_WOW64_2),
        (api.set_timer_resolution.is_some(), fact::FEATURE_TIMER_RESOLUTION),
        (api.wine_version.is_some(), fact::FEATURE_WINE),
        (peb_lock_functions().is_some(), fact::FEATURE_PEB_LOCK),
    ] {
        test.features |= if there { feature } else { 0 };
    }
}

/// Reads a field of the PEB, one pointer in size.
fn peb_field(api: &Api, offset: usize) -> u64 {
    // SAFETY: no preconditions.
    let peb = unsafe { (api.current_peb)() };
    // SAFETY: the block lives as long as the process, and the offsets of the layout lie within it.
    unsafe { read_volatile(peb.add(offset).cast::<usize>()) as u64 }
}

/// The owner word of the critical section at `address`.
fn owner(address: u64) -> u64 {
    word::<usize>(address, NATIVE.section_owner).map_or(0, |owner| owner as u64)
}

fn word<T: Copy>(address: u64, offset: usize) -> Option<T> {
    if address == 0 {
        return None;
    }
    // SAFETY: one of ntdll's static critical sections, which are never freed; another thread may
    // change the word, hence volatile.
    Some(unsafe { read_volatile((address as usize as *const u8).add(offset).cast::<T>()) })
}

fn locks(api: &Api, test: &mut SelfTest) {
    test.peb_lock = peb_field(api, NATIVE.peb_fast_peb_lock);
    test.loader_lock = peb_field(api, NATIVE.peb_loader_lock);
    let Some((acquire, release)) = peb_lock_functions() else { return };
    test.peb_owner_before = owner(test.peb_lock);
    // SAFETY: acquired and released once, on this thread, with plain reads in between.
    unsafe { acquire() };
    test.peb_owner_held = owner(test.peb_lock);
    let count: u32 = word(test.peb_lock, NATIVE.section_lock_count).unwrap_or(0);
    let recursion: u32 = word(test.peb_lock, NATIVE.section_recursion).unwrap_or(0);
    test.peb_lock_words = u64::from(count) | u64::from(recursion) << 32;
    // SAFETY: as above.
    unsafe { release() };
    test.peb_owner_after = owner(test.peb_lock);
}

/// The result that the callback fills while the probe is being loaded; null otherwise.
static WATCHED: AtomicPtr<SelfTest> = AtomicPtr::new(null_mut());
/// The thread that loads the probe. Loads of other threads are ignored.
static WATCHER: AtomicU32 = AtomicU32::new(0);

fn probe(api: &'static Api, test: &mut SelfTest) {
    let Some(register) = api.register_notification else { return };
    let mut cookie = null_mut();
    // SAFETY: the callback has the documented type. It stays registered: the agent is never
    // unloaded in this process, and while `WATCHED` is null the callback returns at once.
    if unsafe { register(0, notified as *const c_void, null_mut(), &mut cookie) } < 0 {
        return;
    }
    WATCHER.store(test.tid, Ordering::Release);
    let path = test.probe_path;
    WATCHED.store(test, Ordering::Release);
    // SAFETY: the path is zero-terminated, since `SelfTest::new` leaves room for it and this is a
    // copy.
    let module = unsafe { LoadLibraryW(path.as_ptr()) };
    WATCHED.store(null_mut(), Ordering::Release);
    test.probe_base[0] = module as u64;
    if module.is_null() {
        return;
    }
    if let Some(all) = Peb::current(api).modules(&OwnMemory(api))
        && let Some(listed) = all.iter().find(|listed| listed.base == module as u64)
    {
        test.probe_base[2] = listed.base;
        test.probe_size[1] = listed.size as u32;
        let text = core::str::from_utf8(&listed.path).unwrap_or("");
        for (to, unit) in test.listed_path[..fact::SELFTEST_PATH - 1].iter_mut().zip(text.encode_utf16()) {
            *to = unit;
        }
    }
    // SAFETY: the module was loaded above, and nothing of it is used any more.
    unsafe { FreeLibrary(module) };
}

unsafe extern "system" fn notified(reason: u32, data: *const Data, _context: *mut c_void) {
    let test = WATCHED.load(Ordering::Acquire);
    // SAFETY: no preconditions.
    let mine = unsafe { GetCurrentThreadId() } == WATCHER.load(Ordering::Acquire);
    if test.is_null() || !mine || reason != LOADED {
        return;
    }
    // SAFETY: `probe`, which runs below this frame on the same thread, lends the struct while
    // `WATCHED` points to it; the loader passes valid data.
    let (test, data) = unsafe { (&mut *test, &*data) };
    test.notified += 1;
    test.loader_owner_notified = owner(test.loader_lock);
    // The loader also reports the modules that the probe imports, before or after it.
    // SAFETY: null or a valid string for the length of the callback.
    if !unsafe { data.base_name.as_ref() }.is_some_and(|name| names_probe(name, &test.probe_path)) {
        return;
    }
    test.probe_base[1] = data.base as u64;
    test.probe_size[0] = data.size;
    test.notified_path = [0; fact::SELFTEST_PATH];
    // SAFETY: null or a valid string for the length of the callback.
    if let Some(UnicodeString { len, text, .. }) = unsafe { data.full_name.as_ref() } {
        let len = usize::from(len / 2).min(fact::SELFTEST_PATH - 1);
        for (index, to) in test.notified_path[..len].iter_mut().enumerate() {
            // SAFETY: `index` is below the string's length.
            *to = unsafe { text.add(index).read_unaligned() };
        }
    }
}

/// Whether a base name is that of the file in `path`, whose last part is ASCII.
fn names_probe(name: &UnicodeString, path: &[u16]) -> bool {
    let end = path.iter().position(|&unit| unit == 0).unwrap_or(path.len());
    let start = path[..end].iter().rposition(|&unit| unit == u16::from(b'\\')).map_or(0, |at| at + 1);
    let lower = |unit: u16| if unit < 128 { u16::from((unit as u8).to_ascii_lowercase()) } else { unit };
    usize::from(name.len / 2) == end - start
        && path[start..end].iter().enumerate().all(|(index, &unit)| {
            // SAFETY: `index` is below the string's length.
            lower(unit) == lower(unsafe { name.text.add(index).read_unaligned() })
        })
}

fn modules(api: &'static Api, test: &mut SelfTest) {
    test.image_base = peb_field(api, NATIVE.peb_image_base);
    if let Some(all) = Peb::current(api).modules(&OwnMemory(api)) {
        test.modules = all.len() as u32;
        test.first_base = all.first().map_or(0, |first| first.base);
    }
}

fn own_thread(api: &Api, test: &mut SelfTest) {
    let teb = Teb::current();
    test.teb = teb.address();
    // SAFETY: the calling thread's own block.
    let (limit, base) = unsafe {
        let at = teb.address() as usize as *const u8;
        (
            read_volatile(at.add(NATIVE.teb_stack_limit).cast::<usize>()),
            read_volatile(at.add(NATIVE.teb_stack_base).cast::<usize>()),
        )
    };
    (test.stack_limit, test.stack_base) = (limit as u64, base as u64);
    test.thread_name_len = u32::MAX;
    thread::enumerate(api, |_| test.threads += 1);
    let Some(own) = thread::open(test.tid) else { return };
    test.teb_queried = own.identity(api).map_or(0, |(_, teb)| teb.address());
    if let Some(name) = own.name(api) {
        test.thread_name_len = name.len() as u32;
        for (to, &byte) in test.thread_name.iter_mut().zip(&name) {
            *to = byte;
        }
    }
}
