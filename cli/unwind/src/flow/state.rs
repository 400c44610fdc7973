//! The symbolic registers and stack of a path, and the loads and stores that change them.

/// The symbolic value of a register or a word of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowValue {
    Unknown,
    /// The register's value at the start, plus an offset.
    Start(u8, i64),
    /// The word that lay at the register plus an offset at the start.
    Word(u8, i64),
    Constant(u64),
}

/// Used instead of a register's number: a word that lay at a register plus an offset at the start.
/// Only in 64-bit code. A path can have several, numbered from here on; an outcome has at most one.
pub(crate) const LOADED: u8 = 16;
/// The most words that a path can have as bases.
pub(super) const MAX_LOADED: usize = 16;
/// Used instead of a register's number: the aligned stack pointer. It has no value outside the
/// path.
pub(super) const ALIGNED: u8 = LOADED + MAX_LOADED as u8;

/// Number of the stack pointer.
pub(super) const SP: usize = 4;
/// The most words of the symbolic stack.
const MAX_STORES: usize = 192;

/// A path's state before the instruction at `rva`.
#[derive(Clone)]
pub(super) struct PathState {
    pub(super) rva: u32,
    pub(super) registers: [FlowValue; 16],
    pub(super) stores: Vec<((u8, i64), FlowValue)>,
    /// Where the words that serve as the registers from [`LOADED`] on lie.
    pub(super) loaded: Vec<(u8, i64)>,
    /// The stack pointer was aligned: [`ALIGNED`] is in use.
    pub(super) aligned: bool,
    /// Inlined calls that have not returned.
    pub(super) depth: u32,
}

impl PathState {
    /// The state at the start of a path.
    pub(super) fn new(rva: u32, registers: [FlowValue; 16]) -> PathState {
        PathState { rva, registers, stores: Vec::new(), loaded: Vec::new(), aligned: false, depth: 0 }
    }
}

/// The value plus an offset in bytes. Unknown unless the value is a constant or relative to a
/// register's first value.
pub(super) fn plus(value: FlowValue, bytes: i64) -> FlowValue {
    match value {
        FlowValue::Start(base, offset) => FlowValue::Start(base, offset.wrapping_add(bytes)),
        FlowValue::Constant(value) => FlowValue::Constant(value.wrapping_add(bytes as u64)),
        FlowValue::Unknown | FlowValue::Word(..) => FlowValue::Unknown,
    }
}

/// The word at an address.
pub(super) fn load(state: &PathState, at: (u8, i64)) -> FlowValue {
    match state.stores.iter().find(|(stored, _)| *stored == at) {
        Some((_, value)) => *value,
        None => FlowValue::Word(at.0, at.1),
    }
}

/// Stores a word at an address.
pub(super) fn store(state: &mut PathState, at: (u8, i64), value: FlowValue) {
    if let Some((_, stored)) = state.stores.iter_mut().find(|(stored, _)| *stored == at) {
        *stored = value;
    } else if state.stores.len() < MAX_STORES {
        state.stores.push((at, value));
    } else {
        // Too many stores: this path gives no result.
        state.registers[SP] = FlowValue::Unknown;
    }
}

/// Pushes a word.
pub(super) fn push(state: &mut PathState, value: FlowValue, word: i64) {
    state.registers[SP] = plus(state.registers[SP], -word);
    if let FlowValue::Start(base, offset) = state.registers[SP] {
        store(state, (base, offset), value);
    }
}
