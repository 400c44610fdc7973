//! A night of different traces: each is grown from one of a few real ones, under a UUID, a host and
//! a start of its own. Some are damaged, some end early.

use super::growth::{Grow, Grown, Identity, facts, grow_from};
use super::pieces::Pieces;
use super::with_trace;
use anyhow::Context;
use std::path::{Path, PathBuf};
use stk_format::{BlockKind, FILE_HEADER_LEN, Trace};
use stk_tests::synth::Random;

/// The settings of a night.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Night {
    /// How many traces.
    pub traces: usize,
    /// Mean number of samples of a trace; each has between half of it and one and a half.
    pub samples: u64,
    /// Traces of which bytes are flipped.
    pub damaged: usize,
    /// Traces that are cut off.
    pub truncated: usize,
}

/// Machines that the traces say they are of.
const HOSTS: usize = 50;
/// Start of the night: 2026-11-23 18:00 UTC, in seconds since the Unix epoch. A trace begins each
/// 40 s, so that a thousand of them are of two dates.
const START: u64 = 1_795_456_800;
const STEP: u64 = 40;

/// What happens to a trace after it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Whole,
    Damaged,
    Truncated,
}

impl Night {
    /// Makes the traces in `folder`, in turn of each source. Prints a line for each: its name, what
    /// happened to it, its UUID and how many samples were written, separated by tabs.
    pub(crate) fn make(&self, sources: &[PathBuf], folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir_all(folder)?;
        let fates = self.fates();
        std::thread::scope(|scope| {
            let of_source = |(number, source): (usize, &PathBuf)| {
                let (source, fates) = (source.clone(), &fates);
                let places: Vec<usize> = (number..self.traces).step_by(sources.len()).collect();
                scope.spawn(move || self.make_of(&source, &places, fates, folder))
            };
            let made: Vec<_> = sources.iter().enumerate().map(of_source).collect();
            for thread in made {
                thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked"))?;
            }
            Ok(())
        })
    }

    fn make_of(&self, source: &Path, places: &[usize], fates: &[Fate], folder: &Path) -> anyhow::Result<()> {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let in_source = || format!("{}: cannot be grown", source.display());
        with_trace(source, &mut |trace, walk| {
            let pieces = Pieces::take_apart(trace, Grow::default().source, &facts(trace)?, walk);
            for &place in places {
                let plan = self.plan(place);
                let uuid = plan.identity.as_ref().map(|identity| identity.uuid).unwrap_or_default();
                let (mut bytes, grown) = grow_from(trace, &pieces, &plan, walk, Vec::new())?;
                spoil(&mut bytes, fates[place], &mut Random::new(!(place as u64)));
                let name = format!("{place:04}-{stem}.stk");
                std::fs::write(folder.join(&name), bytes)?;
                print(&name, fates[place], &uuid, &grown);
            }
            Ok(())
        })
        .with_context(in_source)
    }

    fn plan(&self, place: usize) -> Grow {
        let mut random = Random::new(place as u64 + 1);
        let mut uuid = [0; 16];
        uuid.iter_mut().for_each(|byte| *byte = random.number() as u8);
        let identity = Identity {
            uuid,
            host: format!("lab-{:02}", random.below(HOSTS)),
            utc_start: (START + STEP * place as u64) * 1_000_000_000,
        };
        let samples = self.samples / 2 + random.number() % (self.samples + 1);
        Grow { samples, seed: random.number(), identity: Some(identity), ..Grow::default() }
    }

    /// By trace. The same in each run.
    fn fates(&self) -> Vec<Fate> {
        let mut fates = vec![Fate::Whole; self.traces];
        let spoilt = self.damaged.saturating_add(self.truncated).min(self.traces);
        for (place, fate) in fates.iter_mut().enumerate().take(spoilt) {
            *fate = if place < self.damaged { Fate::Damaged } else { Fate::Truncated };
        }
        let mut random = Random::new(0);
        for last in (1..fates.len()).rev() {
            fates.swap(last, random.below(last + 1));
        }
        fates
    }
}

/// Flips up to eight bytes behind the file's header, or cuts the file off among its samples.
fn spoil(bytes: &mut Vec<u8>, fate: Fate, random: &mut Random) {
    match fate {
        Fate::Whole => {}
        Fate::Damaged => {
            for _ in 0..1 + random.below(8) {
                let at = FILE_HEADER_LEN + random.below(bytes.len() - FILE_HEADER_LEN);
                bytes[at] ^= 1 + random.below(255) as u8;
            }
        }
        Fate::Truncated => {
            let from = second_samples(bytes).unwrap_or(bytes.len() / 2);
            bytes.truncate(from + random.below(bytes.len() - from));
        }
    }
}

/// Where the second block of samples begins: some samples are before it.
fn second_samples(bytes: &[u8]) -> Option<usize> {
    let trace = Trace::open(bytes).ok()?;
    let mut blocks = trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples);
    blocks.nth(1).map(|block| block.offset as usize)
}

fn print(name: &str, fate: Fate, uuid: &[u8; 16], grown: &Grown) {
    let fate = match fate {
        Fate::Whole => "whole",
        Fate::Damaged => "damaged",
        Fate::Truncated => "truncated",
    };
    let uuid: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{name}\t{fate}\t{uuid}\t{}", grown.samples);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const NIGHT: Night = Night { traces: 200, samples: 100, damaged: 4, truncated: 5 };

    #[test]
    fn traces_differ_and_as_many_as_asked_for_are_spoilt() {
        let fates = NIGHT.fates();
        let count = |wanted| fates.iter().filter(|fate| **fate == wanted).count();
        assert_eq!([count(Fate::Whole), count(Fate::Damaged), count(Fate::Truncated)], [191, 4, 5]);
        let plans: Vec<Grow> = (0..200).map(|place| NIGHT.plan(place)).collect();
        assert!(plans.iter().all(|plan| (50..=150).contains(&plan.samples)));
        let identities = || plans.iter().filter_map(|plan| plan.identity.as_ref());
        assert_eq!(identities().map(|identity| identity.uuid).collect::<HashSet<_>>().len(), 200);
        assert!(identities().map(|identity| &identity.host).collect::<HashSet<_>>().len() > 40);
        assert_eq!(plans.iter().map(|plan| plan.seed).collect::<HashSet<_>>().len(), 200);
    }

    #[test]
    fn bytes_are_flipped_behind_the_header_and_cut_off_at_the_end() {
        let whole: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
        for seed in 0..50 {
            let mut damaged = whole.clone();
            spoil(&mut damaged, Fate::Damaged, &mut Random::new(seed));
            let differ: Vec<usize> = (0..whole.len()).filter(|&at| damaged[at] != whole[at]).collect();
            assert!((1..=8).contains(&differ.len()) && differ[0] >= FILE_HEADER_LEN, "{differ:?}");
            let mut cut = whole.clone();
            spoil(&mut cut, Fate::Truncated, &mut Random::new(seed));
            assert!(cut.len() < whole.len() && whole.starts_with(&cut));
        }
    }
}
