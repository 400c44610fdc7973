//! What the recorder asks a .NET runtime in the process, and how. Portable, so that it is tested
//! without a runtime.
//!
//! ```text
//! runtime      which module is a runtime, its version       image -> RuntimeKind
//! json         the few values of a JSON text
//! descriptor   the exported data contract                   memory -> Descriptor, Layout
//! threads      the runtime's own view of a sampled thread   Layout, address -> ManagedState
//! ipc          messages of the diagnostics pipe             requests, replies
//! schedule     when the runtime is queried for names
//! contract     names of methods, read from memory            address -> METHOD_NAME
//! names        names that the host finds, not the pipe              addresses -> METHOD_NAME
//! ```
//!
//! Everything is read through [`Memory`](super::image::Memory), whose reads fail instead of
//! faulting. Every size that is read from memory is bounded.

pub(crate) mod contract;
pub(crate) mod descriptor;
pub(crate) mod ipc;
pub(crate) mod json;
pub(crate) mod names;
pub(crate) mod runtime;
pub(crate) mod schedule;
pub(crate) mod threads;

/// A pointer of `width` (4 or 8) bytes at `at`.
fn pointer_at(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    match width {
        8 => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        4 => Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?))),
        _ => None,
    }
}
