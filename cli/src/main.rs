//! stk
fn main() {}
