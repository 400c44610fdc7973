//! Names the distinct frames of a profile, and sums up what is missing.

use super::{ChainId, NodeId, Profile, Runs, Visit};
use crate::stack::{self, FrameKey, NameSource, NameSources, Placement, Site, StrId};
use crate::trace::beyond_memory;
use rayon::prelude::*;
use std::collections::{BTreeMap, HashMap};
use std::io;
use stk_base::model::ImageId;

/// Fills [`Profile::symbols`]. Runs in the caller's rayon pool.
pub fn symbolize(profile: &mut Profile, sources: &NameSources<'_>) {
    let site = |key: &FrameKey| Site { place: key.place, exact: key.exact, seen: None };
    let sites: Vec<Site> = profile.frames.keys().iter().map(site).collect();
    let names = stack::name(sources, &sites);
    if names.left_out > 0 {
        let left_out = beyond_memory(names.left_out, "names", &sources.trace.budget);
        profile.losses.damaged_blocks.push(left_out);
    }
    profile.symbols = names.symbols;
}

/// A module without symbols, and how many samples are affected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingModule {
    /// Module's file name.
    pub module: String,
    /// Samples with a frame in it that has no better name than an export or an offset.
    pub samples: u64,
    /// Distinct frames without a name.
    pub frames: u64,
    /// Why, and what to do.
    pub reason: String,
}

/// Counts of the names that a profile lacks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MissingSymbols {
    /// Frames of all samples.
    pub frames: u64,
    /// Frames of all samples that have a name from symbols.
    pub named: u64,
    /// Modules without symbols, by samples affected.
    pub modules: Vec<MissingModule>,
}

impl MissingSymbols {
    /// Share of frames, weighted by samples, that have a name from symbols: 0 to 1; 1 if there are
    /// no frames.
    pub fn share(&self) -> f64 {
        if self.frames == 0 { 1.0 } else { self.named as f64 / self.frames as f64 }
    }
}

/// Sums up what symbolization did not find.
pub fn missing_symbols(profile: &Profile, runs: &Runs) -> io::Result<MissingSymbols> {
    let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
    let mut through = vec![0u64; chains.len()];
    runs.for_each(|batch| {
        chains.add(&mut through, batch.runs.len(), |_, mut sums| {
            for run in batch.runs {
                if let Some(sum) = run.node.and_then(|node| sums.of(node)) {
                    *sum += u64::from(run.samples);
                }
            }
        });
        Ok::<(), io::Error>(())
    })?;
    chains.add_callees(&mut through, |sum, more| *sum += more);
    // What stands for no stack has no name to find.
    let placeholders = profile.placeholders();
    let certain = profile.symbols.source.iter().zip(&placeholders);
    let counts: Vec<[u64; 2]> = certain
        .map(|(source, not_code)| [u64::from(!not_code), u64::from(!not_code && source.is_certain())])
        .collect();
    let of_chain = |chain: usize| {
        let of_chain = &nodes[chains.nodes(ChainId(chain as u32))];
        let all = of_chain.iter().map(|node| counts[node.frame.0 as usize]);
        added(all).map(|count| count * through[chain])
    };
    let all = (0..chains.len()).into_par_iter().with_min_len(1 << 14).map(of_chain);
    let ([frames, named], mut by_reason) = rayon::join(
        || all.reduce(Default::default, |a, b| added([a, b].into_iter())),
        || samples_by_reason(profile, &through, &placeholders),
    );
    let symbols = &profile.symbols;
    for ((key, reason), source) in profile.frames.keys().iter().zip(&symbols.reason).zip(&symbols.source) {
        if let (Placement::Image(image, _), Some(reason)) = (key.place, *reason)
            && *source != NameSource::Runtime
        {
            by_reason.entry((image, reason)).or_default().1 += 1;
        }
    }
    let mut modules: Vec<MissingModule> = by_reason
        .into_iter()
        // Names of what no sample shows are not missed.
        .filter(|(_, (samples, _))| *samples > 0)
        .map(|((image, reason), (samples, frames))| MissingModule {
            module: profile.images[image.0 as usize].name.clone(),
            samples,
            frames,
            reason: profile.symbols.strings.get(reason).to_owned(),
        })
        .collect();
    modules.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.module.cmp(&b.module)));
    Ok(MissingSymbols { frames, named, modules })
}

/// The sums of pairs.
fn added(pairs: impl Iterator<Item = [u64; 2]>) -> [u64; 2] {
    pairs.fold([0, 0], |[a, b], [more_a, more_b]| [a + more_a, b + more_b])
}

/// Samples with at least one frame of a module without symbols, by module and reason. The second
/// number of each pair is for its distinct frames, and left at 0. `through` holds, by chain, the
/// samples of the stacks that go through it; `placeholders`, by frame, whether it is no code.
fn samples_by_reason(
    profile: &Profile,
    through: &[u64],
    placeholders: &[bool],
) -> BTreeMap<(ImageId, StrId), (u64, u64)> {
    let mut pairs: Vec<(ImageId, StrId)> = Vec::new();
    let mut numbers: HashMap<(ImageId, StrId), usize> = HashMap::new();
    let lacks = |(frame, key): (usize, &FrameKey)| match key.place {
        // If a runtime named the frame, the reason is about its line.
        Placement::Image(image, _)
            if profile.symbols.source[frame] != NameSource::Runtime && !placeholders[frame] =>
        {
            let pair = Some(image).zip(profile.symbols.reason[frame])?;
            Some(*numbers.entry(pair).or_insert_with(|| {
                pairs.push(pair);
                pairs.len() - 1
            }))
        }
        _ => None,
    };
    let of_frames: Vec<Option<usize>> = profile.frames.keys().iter().enumerate().map(lacks).collect();
    let sums = if pairs.len() <= FEW_REASONS {
        few_reasons(profile, through, &of_frames, pairs.len())
    } else {
        many_reasons(profile, through, &of_frames, pairs.len())
    };
    pairs.into_iter().zip(sums).filter(|(_, sum)| *sum > 0).map(|(pair, sum)| (pair, (sum, 0))).collect()
}

/// Up to so many reasons, passes over the nodes cost less than a visit of the tree.
const FEW_REASONS: usize = 64;

/// The samples of each reason; `of_frames` gives their numbers, which are below this one. One pass
/// over the nodes for each eight reasons: a byte holds those of a chain and its callers.
fn few_reasons(profile: &Profile, through: &[u64], of_frames: &[Option<usize>], reasons: usize) -> Vec<u64> {
    let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
    let mut sums = Vec::new();
    let mut met: Vec<u8> = Vec::with_capacity(chains.len());
    for first in (0..reasons).step_by(u8::BITS as usize) {
        let mut of_bits = [0u64; u8::BITS as usize];
        // By frame: the bit of its reason, if it is one of these.
        let bit = |reason: &Option<usize>| {
            let number = reason.and_then(|reason| reason.checked_sub(first));
            number.filter(|&number| number < of_bits.len()).map_or(0, |number| 1u8 << number)
        };
        let bits: Vec<u8> = of_frames.iter().map(bit).collect();
        met.clear();
        for ((chain, of_chain), count) in chains.iter().zip(through) {
            // Callers come before their callees.
            let above = chains.caller(chain).map_or(0, |ChainId(caller)| met[caller as usize]);
            let all = nodes[of_chain].iter().fold(above, |met, node| met | bits[node.frame.0 as usize]);
            let mut new = all & !above;
            while new != 0 {
                of_bits[new.trailing_zeros() as usize] += count;
                new &= new - 1;
            }
            met.push(all);
        }
        sums.extend(of_bits);
    }
    sums
}

/// As [`few_reasons`], of any number of reasons.
fn many_reasons(profile: &Profile, through: &[u64], of_frames: &[Option<usize>], reasons: usize) -> Vec<u64> {
    let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
    let mut sums = vec![0; reasons];
    // For each reason, the number of its frames in the stack being visited. Only the first counts
    // its samples.
    let mut open = vec![0u32; reasons];
    chains.callees().visit(|NodeId(chain), when| {
        let count = through[chain as usize];
        let of_chain = nodes[chains.nodes(ChainId(chain))].iter();
        for reason in of_chain.filter_map(|node| of_frames[node.frame.0 as usize]).filter(|_| count > 0) {
            match when {
                Visit::Enter => {
                    sums[reason] += if open[reason] == 0 { count } else { 0 };
                    open[reason] += 1;
                }
                Visit::Leave => open[reason] -= 1,
            }
        }
        count > 0
    });
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{ImageSearch, load_images};
    use crate::profile::{BuildOptions, CallTree, Node, build};
    use crate::stack::FrameId;
    use crate::trace::Trace;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_stack_counts_once_for_each_reason_that_it_meets() {
        let file = stk_tests::traces::trace().finish();
        let trace = Trace::read(&file, "test.stk").unwrap();
        let images = load_images(&trace, &ImageSearch::NOWHERE);
        let built = build(&trace, &images, &BuildOptions::default(), &AtomicU64::new(0));
        let mut profile = built.unwrap().0;
        // Frames 0 and 2 lack names for reason 0, frame 1 for reason 63, frame 3 has a name.
        let of_frames = [Some(0), Some(63), Some(0), None];
        let mut tree = CallTree::default();
        let mut add = |parent, frame| tree.intern(Node { parent, frame: FrameId(frame) });
        let root = add(None, 3);
        let first = add(Some(root), 0);
        let second = add(Some(first), 1);
        add(Some(second), 2); // reason 0 again
        add(Some(root), 1);
        profile.tree = tree;
        // By node: each is a chain of its own.
        let mut through = vec![1, 10, 100, 1000, 10_000];
        profile.tree.add_callees(&mut through, |sum, more| *sum += more);
        let few = few_reasons(&profile, &through, &of_frames, 64);
        assert_eq!((few[0], few[63]), (1110, 11_100));
        assert_eq!(many_reasons(&profile, &through, &of_frames, 64), few);
    }
}
