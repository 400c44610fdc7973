//! An explanation of one frame, and the words that all architectures use in it.

use std::fmt;

use crate::frame::Fault;

/// How the walk found the caller of one frame, or tried to. Addresses are RVAs of the frame's
/// module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The record that describes the frame's function, such as `UNWIND_INFO v1 at 0x2010 of
    /// function 0x1000..0x1010, prologue 0x4`; or a statement that there is none.
    pub record: String,
    /// The rule that follows from it, such as `body; return address at [rsp+0x28]`.
    pub rule: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.record, self.rule)
    }
}

pub(crate) fn no_rule() -> String {
    "no rule".to_owned()
}

/// Why there is no rule.
pub(crate) fn fault(fault: Fault) -> String {
    match fault {
        Fault::NoUnwindData => "no rule: the unwind data is not known".to_owned(),
        Fault::NoFunction => {
            "no rule: no record covers the address, and only the innermost function can be a leaf".to_owned()
        }
        Fault::ReplacedReturnAddress => {
            "no rule: the return address is a function's first byte, to which no call leads; \
             something replaced it, as .NET's collector does"
                .to_owned()
        }
        Fault::BadUnwindInfo => "no rule: the unwind data is cyclic, cut off or makes no sense".to_owned(),
        Fault::UnsupportedVersion(version) => {
            format!("no rule: unwind data of version {version} is not supported")
        }
        Fault::ScalableVectors => {
            "no rule: the function saves scalable vector registers (SVE), which is not supported".to_owned()
        }
        Fault::OtherArchitecture => "no rule: the code is of another architecture".to_owned(),
    }
}

/// `[rsp+0x28]`, `[rbp-0x8]`, `[rsp]`.
pub(crate) fn word(register: &str, offset: i64) -> String {
    format!("[{}]", sum(register, offset))
}

/// `rsp+0x28`, `rbp-0x8`, `rsp`.
pub(crate) fn sum(register: &str, offset: i64) -> String {
    match offset {
        0 => register.to_owned(),
        1.. => format!("{register}+{offset:#x}"),
        _ => format!("{register}-{:#x}", offset.unsigned_abs()),
    }
}
