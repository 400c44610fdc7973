//! Names of .NET methods that the runtime in the process does not give: from its data access
//! library (the DAC).
//!
//! * [`mailbox`]: requests and answers in the agent's mailbox for names.
//! * [`page_cache`]: pages of another process's memory, remembered for a moment.
//! * [`runtime`]: a .NET runtime's data on its data access library.
//! * [`symbol_path`]: where that library may lie on the debuggers' symbol path.

pub(crate) mod mailbox;
pub(crate) mod page_cache;
pub(crate) mod runtime;
pub(crate) mod symbol_path;
