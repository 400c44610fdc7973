//! Names of a runtime's methods, read from the process's memory by the runtime's published data
//! contract (dotnet/runtime, docs/design/datacontracts). The runtime is not asked and none of its
//! locks is taken, so a name is there soon after its code was first seen, even if the process ends
//! by itself.
//!
//! ```text
//! layout       descriptor -> offsets of the fields, addresses of the globals
//! code_header  address of code -> MethodDesc (range sections, nibble map, precompiled images)
//! method_desc  MethodDesc -> module, token, type -> name
//! metadata     rows and heaps of an assembly's metadata (ECMA-335)
//! signature    signature blob -> text
//! source       takes wanted code, writes METHOD_NAME
//! frames       takes MethodDescs of explicit Frames, writes FRAME_METHOD
//! pages        what was read, kept for a while
//! reader       bounded reads of memory
//! ```
//!
//! The memory may hold anything: the runtime changes its structures while they are read, and frees
//! them. Every read can fail, every count is bounded, and the reads for one name are bounded
//! together ([`MOST_READS`]). A MethodDesc counts only if its MethodTable, its class and its module
//! refer to each other as they must.

mod code_header;
mod frames;
mod layout;
mod metadata;
mod method_desc;
mod pages;
mod reader;
mod signature;
mod source;

#[cfg(test)]
mod tests;

pub(crate) use frames::{FrameMethods, RecentMethods};
pub(crate) use layout::Contract;
pub(crate) use source::ContractNames;

use alloc::string::String;
use code_header::RuntimeCode;
use method_desc::Namer;
use pages::PageCache;

use crate::record::image::Memory;

/// Most reads of memory for one name, of code and of what stays as it is. Real ones take some 20.
const MOST_READS: u32 = 500;

/// The name of the runtime's own stubs, in the form of the data access library, which says what
/// kind of stub each is. The descriptor does not, so this name says where it is known from.
const STUB: &str = "CLRStub[RangeSection]";

/// The name of the method whose code holds `address`, in the form of the runtime's own list:
/// `Module!Namespace.Type.Method(signature)`. `None` if no method of the runtime's is there, or its
/// data make no sense.
pub(crate) fn name_of_code(
    contract: &Contract,
    memory: &impl Memory,
    pages: &PageCache,
    address: u64,
) -> Option<String> {
    let (fresh, kept) = (pages.fresh(memory, MOST_READS), pages.kept(memory, MOST_READS));
    match code_header::code_at(contract, &fresh, &kept, pages, address)? {
        RuntimeCode::Method(method) => Namer { contract, reader: &fresh, kept: &kept, pages }.method(method),
        RuntimeCode::Stub => Some(STUB.into()),
    }
}
