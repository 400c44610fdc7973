//! Names for the distinct frames of a profile, and what is missing.

use super::{NodeId, Profile, Runs};
use crate::model::ImageId;
use crate::stack::{self, FrameKey, NameSource, NameSources, Placement, Site, StrId};
use crate::trace::beyond_memory;
use std::collections::{BTreeMap, HashMap};
use std::io;

/// Fills [`Profile::symbols`]. Uses the rayon pool that it is called in.
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

/// How many samples hold at least one frame whose module has no symbols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Module's file name.
    pub module: String,
    /// Samples with a frame in it that has no better name than an export or an offset.
    pub samples: u64,
    /// Distinct frames without a name.
    pub frames: u64,
    /// Why, and what to do.
    pub reason: String,
}

/// What a profile's names lack.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MissingSymbols {
    /// Frames of all samples.
    pub frames: u64,
    /// Frames of all samples that have a name from symbols.
    pub named: u64,
    /// Modules without symbols, by samples affected.
    pub modules: Vec<Missing>,
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
    let sets = ReasonSets::new(profile);
    let mut samples: Vec<u64> = Vec::new();
    let (mut frames, mut named) = (0u64, 0u64);
    runs.for_each(|batch| {
        for run in batch.runs {
            if let Some(NodeId(node)) = run.node {
                let facts = sets.nodes[node as usize];
                let count = u64::from(run.samples);
                frames += count * u64::from(facts.depth);
                named += count * u64::from(facts.named);
                if samples.len() <= facts.set as usize {
                    samples.resize(sets.sets.len(), 0);
                }
                samples[facts.set as usize] += count;
            }
        }
        Ok::<(), io::Error>(())
    })?;
    let mut by_reason: BTreeMap<(ImageId, StrId), (u64, u64)> = BTreeMap::new();
    for (set, count) in samples.iter().enumerate() {
        for &key in &sets.sets[set] {
            by_reason.entry(key).or_default().0 += count;
        }
    }
    let symbols = &profile.symbols;
    for ((key, reason), source) in profile.frames.keys().iter().zip(&symbols.reason).zip(&symbols.source) {
        if let (Placement::Image(image, _), Some(reason)) = (key.place, *reason)
            && *source != NameSource::Runtime
        {
            by_reason.entry((image, reason)).or_default().1 += 1;
        }
    }
    let mut modules: Vec<Missing> = by_reason
        .into_iter()
        .map(|((image, reason), (samples, frames))| Missing {
            module: profile.images[image.0 as usize].name.clone(),
            samples,
            frames,
            reason: profile.symbols.strings.get(reason).to_owned(),
        })
        .collect();
    modules.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.module.cmp(&b.module)));
    Ok(MissingSymbols { frames, named, modules })
}

/// For each stack which (module, reason) pairs its frames lack symbols for. Few distinct sets of
/// pairs occur.
struct ReasonSets {
    sets: Vec<Vec<(ImageId, StrId)>>,
    nodes: Vec<NodeFacts>,
}

#[derive(Clone, Copy)]
struct NodeFacts {
    set: u32,
    depth: u16,
    named: u16,
}

impl ReasonSets {
    fn new(profile: &Profile) -> ReasonSets {
        let mut sets: Vec<Vec<(ImageId, StrId)>> = vec![Vec::new()];
        let mut grown: HashMap<(u32, (ImageId, StrId)), u32> = HashMap::new();
        let mut ids: HashMap<Vec<(ImageId, StrId)>, u32> = HashMap::from([(Vec::new(), 0)]);
        let mut nodes: Vec<NodeFacts> = Vec::with_capacity(profile.tree.nodes().len());
        for node in profile.tree.nodes() {
            let parent =
                node.parent.map_or(NodeFacts { set: 0, depth: 0, named: 0 }, |p| nodes[p.0 as usize]);
            let frame = node.frame.0 as usize;
            let image = match profile.frames.keys()[frame].place {
                // Where a runtime named the frame, the reason is about its line.
                Placement::Image(image, _) if profile.symbols.source[frame] != NameSource::Runtime => {
                    Some(image)
                }
                _ => None,
            };
            let lacks = image.zip(profile.symbols.reason[frame]);
            let set = match lacks {
                Some(pair) => *grown.entry((parent.set, pair)).or_insert_with(|| {
                    let mut set = sets[parent.set as usize].clone();
                    if let Err(at) = set.binary_search(&pair) {
                        set.insert(at, pair);
                    }
                    *ids.entry(set).or_insert_with_key(|set| {
                        sets.push(set.clone());
                        (sets.len() - 1) as u32
                    })
                }),
                None => parent.set,
            };
            let named = profile.symbols.source[frame].is_certain();
            nodes.push(NodeFacts {
                set,
                depth: parent.depth.saturating_add(1),
                named: parent.named.saturating_add(u16::from(named)),
            });
        }
        ReasonSets { sets, nodes }
    }
}
