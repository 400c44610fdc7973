//! Turns a recording's ticks into seconds.
//!
//! `cargo run -p stk-schema --example ticks`

use stk_schema::Ticks;

/// Ticks a second of the usual Windows clock.
const TICKS_PER_SECOND: u64 = 10_000_000;

fn main() {
    let (start, sample) = (Ticks(1_000), Ticks(25_001_000));
    let Ticks(span) = sample.saturating_sub(start);
    println!("sampled {:.3} s after the start", span as f64 / TICKS_PER_SECOND as f64);
    assert!(Ticks::ZERO < sample && sample < Ticks::MAX);
}
