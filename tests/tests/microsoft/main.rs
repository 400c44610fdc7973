//! Microsoft's dbghelp.dll and msdia140.dll beside stk, under Wine: where they and the processor
//! emulator agree and stk differs, stk is wrong. Each test prints its counts.

mod frame_data;
mod names;
mod recordings;
mod stacks;
mod states;
