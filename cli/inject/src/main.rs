//! inject
fn main(){}
