//! The recorder's own heap, so that the recorder is independent of the target's heaps, their locks
//! and their damage.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use windows_sys::Win32::System::Memory::{HEAP_ZERO_MEMORY, HeapAlloc, HeapCreate, HeapDestroy, HeapFree};

/// The alignment of HeapAlloc's blocks (MEMORY_ALLOCATION_ALIGNMENT).
const NATURAL: usize = 2 * size_of::<usize>();
/// Memory for the few allocations at the end of the trace when the process exits: those of its
/// index, and a few kilobytes for each of the last modules.
const EXIT_BYTES: usize = 1 << 20;

static HEAP: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// Bytes handed out of [`EXIT_ARENA`], plus one; 0 while the process is not exiting.
static EXIT_USED: AtomicUsize = AtomicUsize::new(0);

#[repr(align(16))]
struct ExitArena(core::cell::UnsafeCell<[u8; EXIT_BYTES]>);
// SAFETY: `EXIT_USED` hands out each byte once.
unsafe impl Sync for ExitArena {}
static EXIT_ARENA: ExitArena = ExitArena(core::cell::UnsafeCell::new([0; EXIT_BYTES]));

/// From now on, allocations come from a fixed arena and frees do nothing.
///
/// At process exit the other threads are gone, perhaps with the heap's lock held, so nothing may
/// take that lock.
pub(crate) fn leave_heap() {
    let _ = EXIT_USED.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
}

/// Gives all memory back to the system. Called as the agent is unmapped, when nobody uses it.
pub(crate) fn destroy() {
    let heap = HEAP.swap(null_mut(), Ordering::AcqRel);
    if !heap.is_null() {
        // SAFETY: it is this module's own heap, and nobody uses a block of it any more.
        unsafe { HeapDestroy(heap) };
    }
}

/// Whether the arena for the process's end has `bytes` left. Events that do not fit are lost, and
/// not every allocation there may fail.
pub(crate) fn has_exit_room(bytes: usize) -> bool {
    EXIT_USED.load(Ordering::Acquire).saturating_add(bytes) <= EXIT_BYTES
}

/// Whether `bytes` more can be allocated. The recorder checks this before it starts, because it
/// must not fail later.
pub(crate) fn can_allocate(bytes: usize) -> bool {
    let heap = heap();
    if heap.is_null() {
        return false;
    }
    // SAFETY: `heap` is this module's live heap, and the block that it returns is freed at once.
    unsafe {
        let block = HeapAlloc(heap, 0, bytes);
        !block.is_null() && HeapFree(heap, 0, block) != 0
    }
}

#[cfg(not(test))]
#[global_allocator]
static GLOBAL: PrivateHeap = PrivateHeap;

struct PrivateHeap;

// SAFETY: blocks come from HeapAlloc (or the arena, each byte once), which aligns to `NATURAL`. For
// larger alignments, the word before the aligned address holds the block's own address.
unsafe impl GlobalAlloc for PrivateHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate(layout, 0)
    }

    // Large blocks are then fresh pages, which need not be written.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocate(layout, HEAP_ZERO_MEMORY)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if EXIT_USED.load(Ordering::Acquire) != 0 {
            return;
        }
        let block = if layout.align() <= NATURAL {
            block
        } else {
            // SAFETY: `alloc` wrote the block's own address there.
            unsafe { block.cast::<*mut u8>().sub(1).read() }
        };
        // SAFETY: the block came from this heap.
        unsafe {
            HeapFree(heap(), 0, block.cast());
        }
    }
}

fn allocate(layout: Layout, flags: u32) -> *mut u8 {
    if EXIT_USED.load(Ordering::Acquire) != 0 {
        // The arena is zero and hands out each byte once.
        return alloc_at_exit(layout);
    }
    let heap = heap();
    if heap.is_null() {
        return null_mut();
    }
    if layout.align() <= NATURAL {
        // SAFETY: `heap` is this module's live heap.
        return unsafe { HeapAlloc(heap, flags, layout.size()) }.cast();
    }
    let Some(size) = layout.size().checked_add(layout.align()) else { return null_mut() };
    // SAFETY: as above; `align` is larger than a word, so the aligned address leaves room for one
    // before it.
    unsafe {
        let block: *mut u8 = HeapAlloc(heap, flags, size).cast();
        if block.is_null() {
            return block;
        }
        let aligned = block.add(layout.align() - (block as usize & (layout.align() - 1)));
        aligned.cast::<*mut u8>().sub(1).write(block);
        aligned
    }
}

fn alloc_at_exit(layout: Layout) -> *mut u8 {
    let mut used = EXIT_USED.load(Ordering::Acquire);
    loop {
        let Some(start) = (used - 1).checked_next_multiple_of(layout.align().max(1)) else {
            return null_mut();
        };
        let Some(end) = start.checked_add(layout.size()).filter(|&end| end <= EXIT_BYTES) else {
            return null_mut();
        };
        match EXIT_USED.compare_exchange(used, end + 1, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: `start..end` is in the arena and was handed out only here. The arena is
            // aligned to 16; the recorder allocates nothing with a larger alignment at exit.
            Ok(_) => return unsafe { EXIT_ARENA.0.get().cast::<u8>().add(start) },
            Err(now) => used = now,
        }
    }
}

fn heap() -> *mut c_void {
    let heap = HEAP.load(Ordering::Acquire);
    if !heap.is_null() {
        return heap;
    }
    // SAFETY: no preconditions; a heap that grows as needed.
    let made = unsafe { HeapCreate(0, 0, 0) };
    match HEAP.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(first) => {
            if !made.is_null() {
                // SAFETY: this thread made it and no other has seen it.
                unsafe { HeapDestroy(made) };
            }
            first
        }
    }
}
