//! Loader notifications. The callback runs on the thread that loads or unloads, under the loader's lock: it copies what
//! it is told into a preallocated ring and returns.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::{null_mut, read_unaligned};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use super::api::{Api, ticks};
use super::state::SIGNALS;
use super::text::wtf8;
use crate::record::changes::Change;
use crate::record::modules::Seen;
use crate::record::queue::Queue;

/// Notifications that can wait for the tables thread.
const RING: usize = 1024;
/// UTF-16 units of a path that a notification keeps; the loader's list has the rest of a longer one.
const PATH: usize = 520;

/// LDR_DLL_NOTIFICATION_REASON_LOADED.
const LOADED: u32 = 1;
/// LDR_DLL_NOTIFICATION_REASON_UNLOADED.
const UNLOADED: u32 = 2;

struct Note {
    loaded: bool,
    time: u64,
    base: u64,
    size: u32,
    len: u16,
    path: [u16; PATH],
}

static NOTES: AtomicPtr<Queue<Note>> = AtomicPtr::new(null_mut());
static LISTENING: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);

/// Takes notifications from now on. Registers with the loader once per process and stays registered: taking the
/// callback back would need the loader's lock at the end of the recording.
pub fn listen(api: &Api) -> bool {
    if NOTES.load(Ordering::Acquire).is_null() {
        let Some(register) = api.register_notification else { return false };
        NOTES.store(Box::into_raw(Box::new(Queue::new(RING))), Ordering::Release);
        let mut cookie = null_mut();
        // SAFETY: the callback has the documented type and lives as long as the process, since the agent is pinned.
        if unsafe { register(0, callback as *const c_void, null_mut(), &mut cookie) } < 0 {
            NOTES.store(null_mut(), Ordering::Release);
            return false;
        }
    }
    while next().is_some() {}
    LOST.store(0, Ordering::Relaxed);
    LISTENING.store(true, Ordering::Release);
    true
}

/// Stops taking notifications.
pub fn ignore() {
    LISTENING.store(false, Ordering::Release);
}

/// The oldest change that was not taken yet.
pub fn next() -> Option<Change> {
    // SAFETY: null or a box that is never freed once the callback is registered.
    let note = unsafe { NOTES.load(Ordering::Acquire).as_ref() }?.pop()?;
    if !note.loaded {
        return Some(Change::Unloaded { time: note.time, base: note.base });
    }
    let path_cut = usize::from(note.len) > PATH;
    let path = if path_cut { Vec::new() } else { wtf8(note.path[..usize::from(note.len)].iter().copied()) };
    Some(Change::Loaded {
        time: note.time,
        seen: Seen { base: note.base, size: u64::from(note.size), path },
        path_cut,
    })
}

/// Notifications that did not fit into the ring since the last call.
pub fn take_lost() -> u64 {
    LOST.swap(0, Ordering::Relaxed)
}

/// Whether there are such.
pub fn has_lost() -> bool {
    LOST.load(Ordering::Relaxed) != 0
}

/// LDR_DLL_NOTIFICATION_DATA; loads and unloads have the same fields.
#[repr(C)]
pub struct Data {
    flags: u32,
    pub full_name: *const UnicodeString,
    pub base_name: *const UnicodeString,
    pub base: *const c_void,
    pub size: u32,
}

/// UNICODE_STRING; length in bytes.
#[repr(C)]
pub struct UnicodeString {
    pub len: u16,
    pub capacity: u16,
    pub text: *const u16,
}

const _: () = {
    use core::mem::offset_of;
    use stk_schema::layout::NATIVE;
    assert!(offset_of!(Data, full_name) == NATIVE.notification_name);
    assert!(offset_of!(Data, base) == NATIVE.notification_base);
    assert!(offset_of!(Data, size) == NATIVE.notification_size);
    assert!(offset_of!(UnicodeString, text) == NATIVE.string_text);
};

unsafe extern "system" fn callback(reason: u32, data: *const Data, _context: *mut c_void) {
    if !LISTENING.load(Ordering::Acquire) || !matches!(reason, LOADED | UNLOADED) {
        return;
    }
    // SAFETY: null or a box that is never freed once this callback is registered; the loader passes valid data.
    let (Some(notes), Some(data)) =
        (unsafe { NOTES.load(Ordering::Acquire).as_ref() }, unsafe { data.as_ref() })
    else {
        return;
    };
    let mut note = Note {
        loaded: reason == LOADED,
        time: ticks(),
        base: data.base as u64,
        size: data.size,
        len: 0,
        path: [0; PATH],
    };
    // SAFETY: null or a valid string for the length of the callback.
    if let Some(name) = unsafe { data.full_name.as_ref() }
        && note.loaded
        && !name.text.is_null()
    {
        note.len = name.len / 2;
        for (index, unit) in note.path.iter_mut().enumerate().take(usize::from(note.len)) {
            // SAFETY: `index` is below the string's length.
            *unit = unsafe { read_unaligned(name.text.add(index)) };
        }
    }
    if note.loaded {
        SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
    }
    SIGNALS.loader_generation.fetch_add(1, Ordering::AcqRel);
    let loaded = note.loaded;
    if notes.push(note).is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
        if loaded {
            SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
