//! What was recorded, as `stk info` prints it.
//!
//! ```text
//! code       code made at run time: its count and its cost   DynamicCode
//! methods    methods of .NET: which of that code has names   MethodNames
//! document   the facts about a trace, in the form of JSON    Info
//! facts      gathers it                                      Trace -> Info
//! text       the facts as text                               Info -> text
//! table      several traces in a line each                   Info -> text
//! ```

mod code;
pub mod document;
pub mod facts;
mod methods;
pub mod table;
pub mod text;
