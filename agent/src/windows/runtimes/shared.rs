//! What the runtimes thread shares: the runtimes found by the tables thread, the managed threads
//! for the sampler, and the data contract for the code thread.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use stk_schema::event::RuntimeKind;

use crate::record::dotnet::contract::Contract;
use crate::record::dotnet::threads::ThreadTable;
use crate::record::queue::Queue;

/// Most runtimes that wait to be handled.
const FOUND: usize = 16;
/// Most MethodDescs that wait to be named.
const CALLED: usize = 1024;

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
    table: AtomicPtr<ThreadTable>,
    /// How methods are found and named in memory, for the code thread; null until a runtime says
    /// it, then never changed.
    contract: AtomicPtr<Contract>,
    /// Module instance of the runtime that the contract is of.
    contract_module: AtomicU64,
    /// MethodDescs of the methods that explicit Frames of samples are about, from the sampler to
    /// the code thread. Dropped when it is full: a later sample gives them again.
    pub called: Queue<u64>,
}

impl RuntimesState {
    /// No runtime found yet.
    pub(crate) fn new() -> RuntimesState {
        RuntimesState {
            found: Queue::new(FOUND),
            table: AtomicPtr::new(null_mut()),
            contract: AtomicPtr::new(null_mut()),
            contract_module: AtomicU64::new(0),
            called: Queue::new(CALLED),
        }
    }

    /// The managed threads, if a runtime describes them.
    pub(crate) fn table(&self) -> Option<&ThreadTable> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.table.load(Ordering::Acquire).as_ref() }
    }

    /// Sets the managed threads. Only the first runtime that describes them counts.
    pub(super) fn set_table(&self, table: ThreadTable) {
        if self.table().is_none() {
            self.table.store(Box::into_raw(Box::new(table)), Ordering::Release);
        }
    }

    /// How methods are named in memory, if a runtime says it.
    pub(crate) fn contract(&self) -> Option<&Contract> {
        // SAFETY: null, or a box that lives as long as `self`.
        unsafe { self.contract.load(Ordering::Acquire).as_ref() }
    }

    /// Module instance of the runtime that the contract is of.
    pub(crate) fn contract_module(&self) -> u64 {
        self.contract_module.load(Ordering::Relaxed)
    }

    /// Sets the contract of the runtime in a module. Only the first runtime that has one counts.
    pub(super) fn set_contract(&self, contract: Contract, module: u64) {
        if self.contract().is_none() {
            self.contract_module.store(module, Ordering::Relaxed);
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
