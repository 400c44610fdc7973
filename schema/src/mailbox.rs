//! The mailbox for names: the agent asks its host for the names of code addresses, and the host
//! answers.
//!
//! It is in the agent's memory until the process ends or the agent leaves;
//! [`AgentStatus::names`](crate::control::AgentStatus::names) says where. A host that runs outside
//! the process (inject.exe) can ask the runtime's data access library, which must not be loaded
//! into the process itself. A host may ignore the mailbox. The agent then does not wait.
//!
//! One request at a time. The agent fills `slots[..count]` with addresses and then increments
//! `request`. The host reads both, fills in each slot's answer and then sets `answer` to that
//! number. It increments `beat` while it polls and works. If `beat` does not change, the agent
//! gives the request up. Each field has one writer. The structs have no padding and no pointers.
//! Neither side trusts the contents: the agent copies each answer out and checks it, and the host
//! reads only up to its own sizes.

/// Version of [`NameMailbox`] described here.
pub const MAILBOX_VERSION: u32 = 1;
/// Addresses in one request.
pub const SLOTS: usize = 64;
/// Longest name in bytes. A longer one is cut and then ends with `…`.
pub const NAME_BYTES: usize = 992;

/// [`NameMailbox::host_state`]: no host has read the mailbox.
pub const HOST_NONE: u32 = 0;
/// [`NameMailbox::host_state`]: a host polls and has not needed the library yet, or `message` says
/// what it waits for.
pub const HOST_LOOKS: u32 = 1;
/// [`NameMailbox::host_state`]: the library answers; `message` describes it.
pub const HOST_ANSWERS: u32 = 2;
/// [`NameMailbox::host_state`]: there is no usable library; `message` says why.
pub const HOST_CANNOT: u32 = 3;

/// [`NameSlot::state`]: not answered.
pub const SLOT_ASKED: u32 = 0;
/// [`NameSlot::state`]: `name` is the name of the code at the address.
pub const SLOT_NAMED: u32 = 1;
/// [`NameSlot::state`]: the runtime has no name for it.
pub const SLOT_NAMELESS: u32 = 2;

/// The memory that agent and host share.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NameMailbox {
    /// Written by the agent: size of this struct in bytes; 0 before the first recording.
    pub size: u32,
    /// Written by the agent: [`MAILBOX_VERSION`].
    pub version: u32,
    /// Written by the agent: load address of the runtime's module; 0 = there is no request.
    pub runtime: u64,
    /// Written by the agent: [`RuntimeKind`](crate::event::RuntimeKind) as a number.
    pub runtime_kind: u32,
    /// Written by the agent: number of the request; never 0 once there was one.
    pub request: u32,
    /// Written by the agent: slots that the request uses.
    pub count: u32,
    /// Written by the agent: handle, valid in its process, of a mutex. A host owns it while it uses
    /// the mailbox, so the agent is unmapped only after the host has gone. 0 with older agents.
    pub lock: u32,
    /// Written by the host: increases at least every second while the host works.
    pub beat: u32,
    /// Written by the host: number of the last request that it has answered.
    pub answer: u32,
    /// Written by the host: `HOST_*`.
    pub host_state: u32,
    /// Written by the host: bytes of `message`.
    pub message_len: u32,
    /// Written by the host: UTF-8, for the user.
    pub message: [u8; 240],
    /// The request and its answers.
    pub slots: [NameSlot; SLOTS],
    /// Written by the host (the agent writes 0), one a slot: the address of the method's GCInfo;
    /// 0 = not known. Only of x86 code that .NET Core 2 or 3 compiled at run time, whose one piece
    /// is `base` and `size`. The mailboxes of older agents end before this field.
    pub gc_info: [u64; SLOTS],
}

/// One address and its answer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NameSlot {
    /// Written by the agent: an address inside of code.
    pub address: u64,
    /// Written by the host: first address of the named code; 0 = not known.
    pub base: u64,
    /// Written by the host: its bytes; 0 = not known.
    pub size: u64,
    /// Written by the host (the agent writes [`SLOT_ASKED`]): `SLOT_*`.
    pub state: u32,
    /// Written by the host: bytes of `name`.
    pub len: u32,
    /// Written by the host: UTF-8.
    pub name: [u8; NAME_BYTES],
}

/// Bytes before `slots`.
pub const HEADER_BYTES: usize = core::mem::offset_of!(NameMailbox, slots);
/// Bytes before `gc_info`: the least size of a mailbox.
pub const GC_INFO_AT: usize = core::mem::offset_of!(NameMailbox, gc_info);

const _: () = assert!(HEADER_BYTES == 8 + 8 + 16 + 16 + 240);
const _: () = assert!(size_of::<NameSlot>() == 1024);
const _: () = assert!(GC_INFO_AT == HEADER_BYTES + SLOTS * size_of::<NameSlot>());
const _: () = assert!(size_of::<NameMailbox>() == GC_INFO_AT + SLOTS * size_of::<u64>());
