//! What the runtimes thread shares: the runtimes found by the tables thread, the managed threads
//! for the sampler, and the data contract for the code thread.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use stk_schema::event::RuntimeKind;

use crate::record::dotnet::contract::Contract;
use crate::record::dotnet::threads::Table;
use crate::record::queue::Queue;

/// Most runtimes that wait to be handled.
const FOUND: usize = 16;

/// A runtime, as the tables thread found it.
pub(crate) struct FoundRuntime {
    /// Module instance.
    pub module: u64,
    /// Its load address.
    pub base: u64,
    pub kind: RuntimeKind,
    /// Version from its resources; may be empty.
    pub version: Vec<u8>,
    /// Address of its data contract descriptor.
    pub descriptor: Option<u64>,
}

/// State that the runtimes thread shares with the other threads of the recording.
pub(crate) struct RuntimesState {
    /// Runtimes, from the tables thread.
    pub found: Queue<FoundRuntime>,
    /// Managed threads, for the sampler; null until a runtime with a data contract is found, then
    /// never changed.
    table: AtomicPtr<Table>,
    /// How methods are found and named in memory, for the code thread; null until a runtime says
    /// it, then never changed.
    contract: AtomicPtr<Contract>,
}

impl RuntimesState {
    /// No runtime found yet.
    pub(crate) fn new() -> RuntimesState {
        RuntimesState {
            found: Queue::new(FOUND),
            table: AtomicPtr::new(null_mut()),
            contract: AtomicPtr::new(null_mut()),
        }
    }

    /// The managed threads, if a runtime describes them.
    pub(crate) fn table(&self) -> Option<&Table> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the managed threads. Only the first runtime that describes them counts.
    pub(super) fn set_table(&self, table: Table) {
        if self.table().is_none() {
            self.table.store(Box::into_raw(Box::new(table)), Ordering::Release);
        }
    }

    /// How methods are named in memory, if a runtime says it.
    pub(crate) fn contract(&self) -> Option<&Contract> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.contract.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the contract. Only the first runtime that has one counts.
    pub(super) fn set_contract(&self, contract: Contract) {
        if self.contract().is_none() {
            self.contract.store(Box::into_raw(Box::new(contract)), Ordering::Release);
        }
    }
}

impl Drop for RuntimesState {
    fn drop(&mut self) {
        let contract = *self.contract.get_mut();
        if !contract.is_null() {
            // SAFETY: made by `set_contract`, and nothing else refers to `self` any more.
            drop(unsafe { Box::from_raw(contract) });
        }
        let table = *self.table.get_mut();
        if !table.is_null() {
            // SAFETY: made by `set_table`, and nothing else refers to `self` any more.
            drop(unsafe { Box::from_raw(table) });
        }
    }
}
