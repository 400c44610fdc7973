//! Copies a thread's stack as [`stack_bounds`](crate::record::stack_bounds) plans it. While a
//! thread is suspended, it calls only VirtualQuery and NtReadVirtualMemory, two system calls that
//! take no lock of the process, and these only for memory outside of checked bounds.

use core::mem::zeroed;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEMORY_BASIC_INFORMATION, PAGE_GUARD, PAGE_NOACCESS, VirtualQuery,
};

use crate::record::sampler::Capture;
use crate::record::stack_bounds::{Bounds, CheckedBounds, Pages, Plan, Run, plan, readable};
use crate::windows::system::api::api;
use crate::windows::system::memory::OwnMemory;

/// Bytes copied between two checks that the thread is still suspended: the stack of a running
/// thread could be freed.
const COPY_STEP: usize = 64 << 10;
/// Smallest unit in which a failed copy by system call is repeated.
const PAGE: u64 = 4096;
const WORD: usize = size_of::<usize>();

/// This process's memory, as VirtualQuery reports it.
pub(super) struct OwnPages;

impl Pages for OwnPages {
    fn run(&self, address: u64) -> Option<Run> {
        let address = usize::try_from(address).ok()?;
        // SAFETY: plain data; the query only writes it.
        let mut info: MEMORY_BASIC_INFORMATION = unsafe { zeroed() };
        // SAFETY: the address is only looked up, not read.
        let known = unsafe { VirtualQuery(address as *const _, &mut info, size_of_val(&info)) };
        let readable = info.State == MEM_COMMIT && info.Protect & (PAGE_GUARD | PAGE_NOACCESS) == 0;
        (known != 0).then(|| Run {
            end: (info.BaseAddress as u64).saturating_add(info.RegionSize as u64),
            allocation: info.AllocationBase as u64,
            readable,
        })
    }
}

/// Copies the stack from `sp` up, with the bounds `seen` and their check `checked`. False if the
/// thread was resumed meanwhile, as `stands` reports.
///
/// # Safety
/// The thread with that stack pointer and those bounds must be suspended while `stands` returns
/// true, or be the calling one; `checked` must belong to that thread.
pub(super) unsafe fn copy(
    sp: usize,
    seen: Bounds,
    checked: &CheckedBounds,
    stands: &dyn Fn() -> bool,
    into: &mut Capture,
) -> bool {
    let Plan { start, zeros, careful, plain, base } = plan(sp as u64, seen, checked, into.stack.len(), WORD);
    (into.stack_start, into.stack_base, into.len) = (start, base, 0);
    let Some((below, rest)) = into.stack.split_at_mut_checked(zeros) else { return true };
    let Some((by_call, rest)) = rest.split_at_mut_checked(careful) else { return true };
    let Some(plainly) = rest.get_mut(..plain) else { return true };
    below.fill(0);
    into.len = zeros;
    let first = start + zeros as u64;
    if !by_call.is_empty() {
        let read = read_carefully(first, by_call);
        into.len += read;
        if !stands() {
            return false;
        }
        if read < careful {
            // The bounds are wrong, or this is a foreign stack: it ends before StackBase.
            into.stack_base = 0;
            return true;
        }
    }
    let first = (first + careful as u64) as usize;
    for (n, step) in plainly.chunks_mut(COPY_STEP).enumerate() {
        if !stands() {
            return false;
        }
        let from = (first + n * COPY_STEP) as *const u8;
        // SAFETY: within bounds that were checked for this thread, which is suspended on this very
        // stack; the buffer is not part of it.
        unsafe { core::ptr::copy_nonoverlapping(from, step.as_mut_ptr(), step.len()) };
        into.len += step.len();
    }
    true
}

/// Reads from `start` on as much as is readable without touching a guard page. Returns the number
/// of bytes, in whole words.
fn read_carefully(start: u64, into: &mut [u8]) -> usize {
    // The functions were found when the recording started, so this is one atomic read.
    let Some(memory) = api().map(OwnMemory) else { return 0 };
    let len = readable(&OwnPages, start, into.len());
    let Some(into) = into.get_mut(..len) else { return 0 };
    if memory.read_some(start, into) == len {
        return len & !(WORD - 1);
    }
    // Other threads run, so memory may have been freed since it was looked up.
    let mut done = 0;
    while done < len {
        let at = start + done as u64;
        let step = ((PAGE - at % PAGE) as usize).min(len - done);
        let Some(part) = into.get_mut(done..done + step) else { break };
        if memory.read_some(at, part) != step {
            break;
        }
        done += step;
    }
    done & !(WORD - 1)
}
