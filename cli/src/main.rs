//! stk
fn main() {
    println!("{:?}", polars::prelude::df!("a"=>[1]));
}
