//! Bombs of drawn sizes, and two in one trace.

use super::{CLASSES, Make, STACKS, bomb, frames};
use crate::synth::Random;

/// `more` bombs for each of [`all`](super::all), the same in every run. Of a class they have sizes
/// from a quarter of its smallest to twice its largest, each as likely as its double; every third
/// has a bomb of another class in the same trace.
pub fn drawn(more: usize) -> Vec<(String, Make)> {
    let mut random = Random::new(11);
    let mut bombs: Vec<(String, Make)> = Vec::new();
    for &(name, add, sizes) in CLASSES.iter().chain(STACKS) {
        for n in 0..more * sizes.len() {
            let mut classes = vec![(add, size(&mut random, sizes))];
            let mut what = format!("{name}, drawn {}", classes[0].1);
            // What has no size is the same without another one.
            if n % 3 == 2 || sizes == [0] {
                let (other, add, sizes) = CLASSES[random.below(CLASSES.len())];
                let size = size(&mut random, sizes);
                classes.push((add, size));
                what = format!("{what}, with {other}, {size}");
            }
            bombs.push((what, Box::new(move || bomb(&classes))));
        }
    }
    for n in 0..more * frames::frames().len() {
        let stored = frames::drawn(&mut random);
        bombs.push((format!("drawn frame {n}"), Box::new(move || frames::forged_frame(&stored))));
    }
    bombs
}

fn size(random: &mut Random, sizes: &[usize]) -> usize {
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return 0 };
    let (least, most) = ((first as f64 / 4.0).max(1.0), (2 * last) as f64);
    if last == 0 { 0 } else { (least * (most / least).powf(random.share())) as usize }
}
