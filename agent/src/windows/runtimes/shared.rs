//! What the runtimes thread shares: runtimes from the tables thread, managed threads for the
//! sampler.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::event::RuntimeKind;

use crate::record::dotnet::threads::Table;
use crate::record::queue::Queue;

/// Runtimes that can wait to be looked at.
const FOUND: usize = 16;

/// A runtime, as the tables thread found it.
pub struct FoundRuntime {
    /// Module instance.
    pub module: u64,
    /// Its load address.
    pub base: u64,
    /// What it is.
    pub kind: RuntimeKind,
    /// Version from its resources; may be empty.
    pub version: Vec<u8>,
    /// Address of its data contract descriptor.
    pub descriptor: Option<u64>,
}

/// What this thread shares with the others of the recording.
pub struct RuntimesShared {
    /// Runtimes, from the tables thread.
    pub found: Queue<FoundRuntime>,
    /// Managed threads, for the sampler; null until a runtime with a data contract is found, then
    /// never changed.
    table: AtomicPtr<Table>,
}

impl RuntimesShared {
    /// Nothing found.
    pub fn new() -> RuntimesShared {
        RuntimesShared { found: Queue::new(FOUND), table: AtomicPtr::new(null_mut()) }
    }

    /// The managed threads, if a runtime tells them.
    pub fn table(&self) -> Option<&Table> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// The managed threads, from the first runtime that tells them.
    pub(super) fn set_table(&self, table: Table) {
        if self.table().is_none() {
            self.table.store(Box::into_raw(Box::new(table)), Ordering::Release);
        }
    }
}

impl Drop for RuntimesShared {
    fn drop(&mut self) {
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: made by `set_table`, and nobody else has `self` any more.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}
