//! Names the distinct frames of a profile, and sums up what is missing.

use super::{Node, NodeId, Profile, Runs, Visit};
use crate::model::ImageId;
use crate::stack::{self, FrameKey, NameSource, NameSources, Placement, Site, StrId};
use crate::trace::beyond_memory;
use std::collections::{BTreeMap, HashMap};
use std::io;

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
///
/// # Errors
///
/// When the runs' temporary file cannot be read.
pub fn missing_symbols(profile: &Profile, runs: &Runs) -> io::Result<MissingSymbols> {
    let mut samples = vec![0u64; profile.tree.nodes().len()];
    runs.for_each(|batch| {
        for run in batch.runs {
            if let Some(NodeId(node)) = run.node {
                samples[node as usize] += u64::from(run.samples);
            }
        }
        Ok::<(), io::Error>(())
    })?;
    profile.tree.add_callees(&mut samples, |sum, more| *sum += more);
    let nodes = profile.tree.nodes();
    let certain = |node: &Node| profile.symbols.source[node.frame.0 as usize].is_certain();
    let frames = samples.iter().sum();
    let named = nodes.iter().zip(&samples).filter(|(node, _)| certain(node)).map(|(_, count)| count).sum();
    let mut by_reason = samples_by_reason(profile, &samples);
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

/// Samples with at least one frame of a module without symbols, by module and reason. The second
/// number of each pair is for its distinct frames, and left at 0. `through` holds the samples of
/// the stacks that go through each node.
fn samples_by_reason(profile: &Profile, through: &[u64]) -> BTreeMap<(ImageId, StrId), (u64, u64)> {
    let nodes = profile.tree.nodes();
    let lacks = |NodeId(node): NodeId| {
        let frame = nodes[node as usize].frame.0 as usize;
        match profile.frames.keys()[frame].place {
            // If a runtime named the frame, the reason is about its line.
            Placement::Image(image, _) if profile.symbols.source[frame] != NameSource::Runtime => {
                Some(image).zip(profile.symbols.reason[frame])
            }
            _ => None,
        }
    };
    let mut sums: BTreeMap<(ImageId, StrId), (u64, u64)> = BTreeMap::new();
    // For each pair, the number of its frames in the stack being visited. Only the first counts its
    // samples.
    let mut open: HashMap<(ImageId, StrId), u32> = HashMap::new();
    profile.tree.visit(|node, when| {
        let count = through[node.0 as usize];
        if let Some(pair) = lacks(node).filter(|_| count > 0) {
            let open = open.entry(pair).or_default();
            match when {
                Visit::Enter if *open == 0 => {
                    sums.entry(pair).or_default().0 += count;
                    *open = 1;
                }
                Visit::Enter => *open += 1,
                Visit::Leave => *open -= 1,
            }
        }
        count > 0
    });
    sums
}
