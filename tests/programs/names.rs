use std::collections::HashMap;
trait Shape { fn area(&self) -> f64; }
struct Sq(f64);
impl Shape for Sq { fn area(&self) -> f64 { self.0 * self.0 } }
#[inline(always)] fn helper(n: u64) -> u64 { n.wrapping_mul(3) + 1 }
#[inline(never)] fn outer<T: Into<u64>>(n: T) -> u64 { let n = n.into(); helper(n) + helper(n + 1) }
fn main() {
    let mut m: HashMap<String, u64> = HashMap::new();
    for (i, a) in std::env::args().enumerate() { *m.entry(a).or_default() += outer(i as u32); }
    let mut v: Vec<Box<dyn Shape>> = (0..m.len()).map(|n| Box::new(Sq(n as f64)) as Box<dyn Shape>).collect();
    v.sort_by(|a, b| a.area().partial_cmp(&b.area()).unwrap());
    println!("{:?} {}", m, v.iter().map(|s| s.area()).sum::<f64>());
}
