//! Sizes and properties of a frame by its function's record.

/// Sizes and properties of a frame by its function's record, as DIA's `IDiaStackFrame` has them.
/// Sizes are in bytes. `None`: such records do not say it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameFacts {
    /// DIA's `StackFrameTypeEnum`: `fpo`, `trap`, `tss`, `standard`, `frame-data`; of x64
    /// `unwind-info` or `machine-frame`; of x86's precompiled managed code `gc-info`.
    pub frame_type: &'static str,
    /// First RVA that the record describes; of a function in several parts that of the first.
    pub function_start: u32,
    /// Local variables; of x64 what the prologue allocates beside what it pushes.
    pub locals: u32,
    /// Parameters on the stack.
    pub parameters: Option<u32>,
    /// Saved registers; of x64 the general ones, pushed or stored.
    pub saved_registers: u32,
    /// Code of the prologue.
    pub prologue: u32,
    /// Whether the function has structured exception handling (x86).
    pub has_seh: Option<bool>,
    /// Whether the function has C++ exception handling (x86's FrameData).
    pub has_eh: Option<bool>,
    /// Whether the record names an exception handler (x64, UNW_FLAG_EHANDLER).
    pub exception_handler: Option<bool>,
    /// Whether the record names a termination handler (x64, UNW_FLAG_UHANDLER).
    pub termination_handler: Option<bool>,
    /// Whether the function sets a frame pointer up: x86's ebp, x64's frame register.
    pub allocates_base_pointer: bool,
}
