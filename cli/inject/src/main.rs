//! inject
fn main() {}
