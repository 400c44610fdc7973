//! Prints the blocks of a trace and what was found wrong with it.
//!
//! `cargo run -p stk-format --example blocks examples/traces/busy.stk`

use stk_format::Trace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("which trace?")?;
    let bytes = std::fs::read(path)?;
    let trace = Trace::open(&bytes)?;
    for block in trace.blocks() {
        println!("{:?} at {}: {} bytes", block.header.kind, block.offset, block.header.stored_len);
    }
    let end = if trace.is_complete() { "complete" } else { "without its end" };
    println!("{} blocks, {end}, {} damaged places", trace.blocks().len(), trace.damage().len());
    Ok(())
}
