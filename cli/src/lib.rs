//! stk
