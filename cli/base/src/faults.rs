//! Mapped files that lose pages while they are read (Unix). Lost pages read as zeros, where the
//! system would otherwise end the process.
//!
//! An access to a page behind the new end of a shortened file, or to a page that the disk cannot
//! read, raises SIGBUS. The handler here maps pages of zeros from the lost page to the mapping's
//! end, and the access continues. Readers detect the zeros like any other damage, by checksums and
//! bounds. A SIGBUS at any other address is passed to the handler that was installed before.
// Signal handlers and mappings at fixed addresses are unsafe. Each use states its reason.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};
use std::{mem, ptr};

/// A mapping that is watched. Entries are never freed, only reused, so the handler can walk the
/// list at any time.
#[derive(Debug)]
struct WatchEntry {
    taken: AtomicBool,
    /// Address of the first byte; 0 = no mapping.
    start: AtomicUsize,
    /// Address behind the last byte.
    end: AtomicUsize,
    /// Address from which the mapping reads as zeros; `usize::MAX` = nowhere.
    lost: AtomicUsize,
    /// Written once, before the entry is in the list.
    next: AtomicPtr<WatchEntry>,
}

impl WatchEntry {
    /// First address and end of one mapping; `None` if the entry is given to another one in this
    /// moment. Read once, the end could be that of another mapping than the start.
    fn range(&self) -> Option<(usize, usize)> {
        let read = || (self.start.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        let range = read();
        (range == read()).then_some(range)
    }
}

/// The newest entry.
static ENTRIES: AtomicPtr<WatchEntry> = AtomicPtr::new(ptr::null_mut());
/// Bytes of a page.
static PAGE: AtomicUsize = AtomicUsize::new(4096);
/// The handler of SIGBUS before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Watches a mapping until it is dropped. Drop it before the mapping.
#[derive(Debug)]
pub struct MappingWatch(&'static WatchEntry);

impl MappingWatch {
    /// Watches a mapped file.
    pub fn new(mapped: &[u8]) -> MappingWatch {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(install);
        let entry = free_entry().unwrap_or_else(add_entry);
        let start = mapped.as_ptr() as usize;
        entry.lost.store(usize::MAX, Ordering::Relaxed);
        entry.end.store(start + mapped.len(), Ordering::SeqCst);
        entry.start.store(start, Ordering::SeqCst);
        MappingWatch(entry)
    }

    /// The first lost byte of the file, if a loss was detected.
    pub fn lost(&self) -> Option<usize> {
        let lost = self.0.lost.load(Ordering::Relaxed);
        (lost != usize::MAX).then(|| lost - self.0.start.load(Ordering::Relaxed))
    }
}

impl Drop for MappingWatch {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::SeqCst);
        self.0.end.store(0, Ordering::SeqCst);
        self.0.taken.store(false, Ordering::Release);
    }
}

/// All entries, newest first.
fn entries() -> impl Iterator<Item = &'static WatchEntry> {
    let mut at = ENTRIES.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the list holds null or pointers to entries that were leaked, so they are valid
        // for the rest of the process and shared.
        let entry = unsafe { at.as_ref() }?;
        at = entry.next.load(Ordering::Relaxed);
        Some(entry)
    })
}

fn free_entry() -> Option<&'static WatchEntry> {
    let take = |entry: &&WatchEntry| {
        !entry.taken.load(Ordering::Relaxed) && !entry.taken.swap(true, Ordering::Acquire)
    };
    entries().find(take)
}

/// A new entry, in the list.
fn add_entry() -> &'static WatchEntry {
    let entry: &'static WatchEntry = Box::leak(Box::new(WatchEntry {
        taken: AtomicBool::new(true),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        lost: AtomicUsize::new(usize::MAX),
        next: AtomicPtr::new(ptr::null_mut()),
    }));
    let _ = ENTRIES.fetch_update(Ordering::AcqRel, Ordering::Acquire, |newest| {
        entry.next.store(newest, Ordering::Relaxed);
        Some(ptr::from_ref(entry).cast_mut())
    });
    entry
}

fn install() {
    // SAFETY: sysconf only reads. `before` and `action` are zeroed as the C interface expects, then
    // filled in, and live until the calls return. The handler calls nothing that is not
    // async-signal-safe: it reads atomics and calls mmap.
    unsafe {
        if let Ok(page) = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)) {
            PAGE.store(page.max(1), Ordering::Relaxed);
        }
        let mut before: libc::sigaction = mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
            return;
        }
        // Stored before the handler can run.
        let _ = BEFORE.set(before);
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &action, ptr::null_mut());
    }
}

/// The handler of SIGBUS.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid siginfo to a handler with SA_SIGINFO. For SIGBUS it holds
    // an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if !entries().any(|entry| replace(entry, address)) {
        pass_on(signal, info, context);
    }
}

/// Maps zeros from the page of `address` to the end of the mapping that holds it. False: this
/// mapping does not hold it, or the zeros could not be mapped.
fn replace(entry: &WatchEntry, address: usize) -> bool {
    let Some((start, end)) = entry.range() else { return false };
    if start == 0 || !(start..end).contains(&address) {
        return false;
    }
    let page = PAGE.load(Ordering::Relaxed);
    let from = address - address % page;
    // SAFETY: the range is in the mapping of a watched file, from its page to its end, and
    // belongs to that mapping alone. The mapping's owner gives out only shared, read-only bytes,
    // and unmaps the whole range, whatever pages it has.
    let zeros = unsafe {
        libc::mmap(
            from as *mut libc::c_void,
            end - from,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    entry.lost.fetch_min(from, Ordering::Relaxed);
    zeros != libc::MAP_FAILED
}

/// Calls the handler that was installed before. The default one ends the process.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get();
    let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    let informed = before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0);
    // SAFETY: sigaction returned `handler` for this signal: a default, or a function whose
    // parameters SA_SIGINFO determines. After the default is set, the access is repeated and ends
    // the process.
    unsafe {
        match handler {
            libc::SIG_DFL | libc::SIG_IGN => drop(libc::signal(signal, libc::SIG_DFL)),
            _ if informed => {
                type InfoHandler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                mem::transmute::<usize, InfoHandler>(handler)(signal, info, context);
            }
            _ => mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler)(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn range_of_a_reused_entry_is_that_of_one_mapping() {
        let (short, long) = (vec![0u8; 100], vec![0u8; 9_000]);
        let mappings = [&short[..], &long[..]];
        let (met, ends) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // On a busy machine the other thread may begin late.
                let mut turn = 0;
                while turn < 200_000 || !met.load(Ordering::Relaxed) {
                    drop(MappingWatch::new(mappings[turn % 2]));
                    turn += 1;
                }
                ends.store(true, Ordering::Release);
            });
            while !ends.load(Ordering::Acquire) {
                for (start, end) in entries().filter_map(WatchEntry::range) {
                    // Other tests map files meanwhile.
                    if let Some(mapping) = mappings.iter().find(|mapping| mapping.as_ptr() as usize == start)
                    {
                        met.store(true, Ordering::Relaxed);
                        assert_eq!(end - start, mapping.len());
                    }
                }
            }
        });
    }
}
