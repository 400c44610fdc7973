//! Loader notifications. The callback runs on the thread that loads or unloads, under the loader's
//! lock: it copies the notification into a preallocated ring and returns. For a loaded module it
//! keeps the identity. For a module that is unloaded before its tables were read, it keeps the
//! tables. It copies both by NtReadVirtualMemory, which fails if a page is gone. It takes no lock
//! of the target, allocates nothing, and copies at most a few megabytes.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::ptr::{null_mut, read_unaligned};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use stk_schema::Ticks;
use stk_schema::control::TEST_PANIC_IN_NOTIFICATION;

use crate::record::fingerprint::Fingerprint;
use crate::record::loader_queue::Change;
use crate::record::modules::ModuleSighting;
use crate::record::queue::Queue;
use crate::record::rescue::{Arena, PendingModules, RescueCopy};
use crate::windows::shared::state::SIGNALS;
use crate::windows::system::api::{SystemApi, api, ticks};
use crate::windows::system::landing::survive_panic;
use crate::windows::system::memory::OwnMemory;
use crate::windows::system::panic;
use crate::windows::system::text::{UnicodeString, wtf8};

/// Most notifications that wait for the tables thread.
const RING: usize = 1024;
/// Most notifications that the tables thread may have taken and not written; as many as are written
/// when the process ends.
const UNWRITTEN: usize = crate::record::last_modules::MOST;
/// UTF-16 units of a path that a notification keeps. The loader's list has the full path of a
/// longer one.
const PATH: usize = 520;

/// LDR_DLL_NOTIFICATION_REASON_LOADED.
const LOADED: u32 = 1;
/// LDR_DLL_NOTIFICATION_REASON_UNLOADED.
const UNLOADED: u32 = 2;

/// Bytes for tables of unloaded modules that wait for the tables thread.
const ARENA: u32 = 8 << 20;

/// Memory for notifications. It is made at the first start and stays as long as the agent.
struct NoteRoom {
    notes: Queue<Note>,
    /// Notifications that the tables thread has taken, but whose events the writer may not have
    /// yet.
    unwritten: Queue<Note>,
    pending: PendingModules,
    arena: Arena,
}

#[derive(Clone)]
struct Note {
    loaded: bool,
    print: Option<Fingerprint>,
    ticket: u64,
    rescued: Option<RescueCopy>,
    time: Ticks,
    base: u64,
    size: u32,
    len: u16,
    path: [u16; PATH],
}

static ROOM: AtomicPtr<NoteRoom> = AtomicPtr::new(null_mut());
/// The registration of [`callback`]; null = none.
static COOKIE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// Whether tables of unloaded modules are to be copied.
static RESCUING: AtomicBool = AtomicBool::new(false);
/// Modules whose tables did not fit.
static UNRESCUED: AtomicU64 = AtomicU64::new(0);
static LISTENING: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);

fn room() -> Option<&'static NoteRoom> {
    // SAFETY: null or a box that is never freed, except with the agent's heap as it is unmapped.
    unsafe { ROOM.load(Ordering::Acquire).as_ref() }
}

/// Takes notifications from now on; with `rescue`, also the tables of modules that are unloaded too
/// soon. Registers with the loader once and stays registered until the agent leaves
/// ([`unregister`]): unregistering needs the loader's lock, which must not delay the end of a
/// recording.
pub(crate) fn listen(api: &SystemApi, rescue: bool) -> bool {
    RESCUING.store(rescue, Ordering::Release);
    if room().is_none() {
        let (notes, unwritten) = (Queue::new(RING), Queue::new(UNWRITTEN));
        let room =
            NoteRoom { notes, unwritten, pending: PendingModules::default(), arena: Arena::new(ARENA) };
        ROOM.store(Box::into_raw(Box::new(room)), Ordering::Release);
    }
    if COOKIE.load(Ordering::Acquire).is_null() {
        let Some(register) = api.register_notification else { return false };
        let mut cookie = null_mut();
        // SAFETY: the callback has the documented type and stays mapped until `unregister`, since
        // the agent holds a reference of its module.
        if unsafe { register(0, callback as *const c_void, null_mut(), &mut cookie) } < 0 {
            return false;
        }
        COOKIE.store(cookie, Ordering::Release);
    }
    // Drop the notifications that an earlier recording did not take.
    while let Some(change) = next() {
        match change {
            Change::Loaded { ticket, .. } => tables_read(ticket),
            Change::Unloaded { rescued, .. } => {
                if let Some(rescued) = rescued {
                    give_back(rescued);
                }
            }
        }
    }
    written();
    LOST.store(0, Ordering::Relaxed);
    UNRESCUED.store(0, Ordering::Relaxed);
    LISTENING.store(true, Ordering::Release);
    true
}

/// Whether the loader notifies the agent.
pub(crate) fn is_registered() -> bool {
    !COOKIE.load(Ordering::Acquire).is_null()
}

/// Has the loader notify no more. It waits for the loader's lock, under which the notifications
/// run: none runs when it returns. False if the system refuses.
pub(crate) fn unregister(api: &SystemApi) -> bool {
    let cookie = COOKIE.load(Ordering::Acquire);
    if cookie.is_null() {
        return true;
    }
    // SAFETY: the registration is the agent's own and is taken back once.
    let done = api.unregister_notification.is_some_and(|unregister| unsafe { unregister(cookie) } >= 0);
    if done {
        COOKIE.store(null_mut(), Ordering::Release);
    }
    done
}

/// Registers a module that no notification reported. If it is unloaded before its ticket is passed
/// to [`tables_read`], its tables are copied.
pub(crate) fn expect(base: u64) -> u64 {
    room().map_or(0, |room| room.pending.loaded(base))
}

/// Notes that the tables of the load with this ticket were read or are not needed.
pub(crate) fn tables_read(ticket: u64) {
    if let Some(room) = room() {
        room.pending.settle(ticket);
    }
}

/// The memory that holds the bytes of each [`RescueCopy`].
pub(crate) fn arena() -> Option<&'static Arena> {
    room().map(|room| &room.arena)
}

/// Frees a [`RescueCopy`]. Called once for each.
pub(crate) fn give_back(rescued: RescueCopy) {
    if let Some(room) = room() {
        rescued.give_back(&room.arena);
    }
}

/// Modules whose tables could not be copied when they were unloaded, since the start.
pub(crate) fn unrescued() -> u64 {
    UNRESCUED.load(Ordering::Relaxed)
}

/// Stops taking notifications.
pub(crate) fn ignore() {
    LISTENING.store(false, Ordering::Release);
}

/// Takes the oldest change.
pub(crate) fn next() -> Option<Change> {
    let room = room()?;
    let note = room.notes.pop()?;
    // If there is no room, the change is lost if the process ends before it is written.
    let _ = room.unwritten.push(note.clone());
    Some(change(note))
}

/// Notes that the events of all changes taken so far were handed to the writer.
pub(crate) fn written() {
    if let Some(room) = room() {
        while room.unwritten.pop().is_some() {}
    }
}

/// The oldest change whose events the writer does not have. For the end of the process, when the
/// tables thread is gone.
pub(crate) fn next_unwritten() -> Option<Change> {
    let room = room()?;
    room.unwritten.pop().or_else(|| room.notes.pop()).map(change)
}

fn change(note: Note) -> Change {
    if !note.loaded {
        return Change::Unloaded { time: note.time, base: note.base, rescued: note.rescued };
    }
    let path_cut = usize::from(note.len) > PATH;
    let path = if path_cut { Vec::new() } else { wtf8(note.path[..usize::from(note.len)].iter().copied()) };
    Change::Loaded {
        time: note.time,
        seen: ModuleSighting { base: note.base, size: u64::from(note.size), path },
        path_cut,
        print: note.print.map(Box::new),
        ticket: note.ticket,
    }
}

/// Notifications that did not fit into the ring since the last call.
pub(crate) fn take_lost() -> u64 {
    LOST.swap(0, Ordering::Relaxed)
}

/// Whether any notifications did not fit into the ring.
pub(crate) fn has_lost() -> bool {
    LOST.load(Ordering::Relaxed) != 0
}

/// LDR_DLL_NOTIFICATION_DATA; loads and unloads have the same fields.
#[repr(C)]
pub(crate) struct Data {
    flags: u32,
    pub full_name: *const UnicodeString,
    pub base_name: *const UnicodeString,
    pub base: *const c_void,
    pub size: u32,
}

const _: () = {
    use core::mem::offset_of;
    use stk_schema::layout::NATIVE;
    assert!(offset_of!(Data, full_name) == NATIVE.notification_name);
    assert!(offset_of!(Data, base) == NATIVE.notification_base);
    assert!(offset_of!(Data, size) == NATIVE.notification_size);
};

unsafe extern "system" fn callback(reason: u32, data: *const Data, _context: *mut c_void) {
    if !LISTENING.load(Ordering::Acquire) || !matches!(reason, LOADED | UNLOADED) {
        return;
    }
    // SAFETY: the loader passes valid data.
    let (Some(room), Some(data)) = (room(), unsafe { data.as_ref() }) else { return };
    // SAFETY: as above.
    if !survive_panic(|| unsafe { note_change(room, reason, data) }) {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
    let watcher = WATCHER.load(Ordering::Acquire);
    if watcher != 0 && reason == LOADED {
        // SAFETY: `watch` stored a function of this type.
        let watcher = unsafe { core::mem::transmute::<usize, fn(&[u8])>(watcher) };
        let mut name = [0; NAME];
        // SAFETY: the loader passes valid data.
        let len = unsafe { base_name(data, &mut name) };
        watcher(name.get(..len).unwrap_or(&[]));
    }
}

/// The function that gets the name of each module as it is loaded, on the thread that loads it
/// and under the loader's lock; 0 = none.
static WATCHER: AtomicUsize = AtomicUsize::new(0);
/// Most bytes of such a name; a longer one is cut.
const NAME: usize = 256;

/// Sets the function that gets the names of loaded modules, or none.
pub(crate) fn watch(watcher: Option<fn(&[u8])>) {
    WATCHER.store(watcher.map_or(0, |watcher| watcher as usize), Ordering::Release);
}

/// Writes the module's file name into `into` as UTF-8 and returns its length.
///
/// # Safety
/// `data` must be the loader's, during its call of [`callback`].
unsafe fn base_name(data: &Data, into: &mut [u8; NAME]) -> usize {
    // SAFETY: null or a valid string for the length of the callback.
    let Some(name) = (unsafe { data.base_name.as_ref() }).filter(|name| !name.text.is_null()) else {
        return 0;
    };
    // SAFETY: the index is below the string's length.
    let units = (0..usize::from(name.len / 2)).map(|at| unsafe { read_unaligned(name.text.add(at)) });
    let mut len = 0;
    for character in char::decode_utf16(units) {
        let mut bytes = [0; 4];
        let bytes = character.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut bytes).as_bytes();
        let Some(place) = into.get_mut(len..len + bytes.len()) else { break };
        place.copy_from_slice(bytes);
        len += bytes.len();
    }
    len
}

/// Puts a note of the module that is loaded or unloaded into the ring.
///
/// # Safety
/// `data` must be the loader's, during its call of [`callback`].
unsafe fn note_change(room: &NoteRoom, reason: u32, data: &Data) {
    panic::if_requested(TEST_PANIC_IN_NOTIFICATION);
    let mut note = Note {
        loaded: reason == LOADED,
        print: None,
        ticket: 0,
        rescued: None,
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
    copy_image(room, &mut note);
    if note.loaded {
        SIGNALS.tables_pending.fetch_add(1, Ordering::AcqRel);
    }
    SIGNALS.loader_generation.fetch_add(1, Ordering::AcqRel);
    let loaded = note.loaded;
    if let Err(note) = room.notes.push(note) {
        LOST.fetch_add(1, Ordering::Relaxed);
        room.pending.settle(note.ticket);
        if let Some(rescued) = note.rescued {
            rescued.give_back(&room.arena);
        }
        if loaded {
            SIGNALS.tables_pending.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Copies the parts that the trace would lack if the module were unmapped before the tables thread
/// reads it.
fn copy_image(room: &NoteRoom, note: &mut Note) {
    // The functions were found at the start of the recording; nothing is looked up here.
    let Some(api) = api() else { return };
    let memory = OwnMemory(api);
    if note.loaded {
        note.print = Fingerprint::read(&memory, note.base);
        if RESCUING.load(Ordering::Acquire) {
            note.ticket = room.pending.loaded(note.base);
        }
    } else if room.pending.unloaded(note.base) && RESCUING.load(Ordering::Acquire) {
        note.rescued = RescueCopy::copy(&memory, note.base, &room.arena);
        if note.rescued.is_none() {
            UNRESCUED.fetch_add(1, Ordering::Relaxed);
        }
    }
}
