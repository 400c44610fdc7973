//! CPU time by place, as stk's own analysis shares it out: that of all threads, also of those that
//! mostly sleep.

use super::place::{Place, Places};
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::path::Path;
use stk_base::model::ImageId;
use stk_profile::pipeline::{LoadOptions, load};
use stk_profile::profile::{NodeId, Placement};

/// CPU time of a trace by place.
#[derive(Debug, Default)]
pub struct CpuPlaces {
    /// Innermost place and its CPU time in nanoseconds, a place once or several times.
    pub times: Vec<(Place, u64)>,
    /// Samples that this time was shared out among.
    pub samples: usize,
}

/// Reads a trace and shares its CPU time out, as `stk stats` does.
///
/// # Errors
/// When it cannot be read.
pub fn read(trace: &Path, places: &Places) -> Result<CpuPlaces> {
    let loaded = load(trace, &LoadOptions::default()).with_context(|| trace.display().to_string())?;
    let profile = &loaded.profile;
    let bases: HashMap<ImageId, u64> =
        profile.modules.iter().map(|module| (module.image, module.base)).collect();
    let place = |node: NodeId| {
        let frame = profile.tree.nodes()[node.0 as usize].frame;
        let address = match profile.frames.keys()[frame.0 as usize].place {
            Placement::Image(image, rva) => bases.get(&image)? + u64::from(rva),
            Placement::Code(code, offset) => profile.code[code as usize].base + u64::from(offset),
            Placement::Unknown(address) => address,
        };
        Some(places.at(address))
    };
    let mut out = CpuPlaces::default();
    loaded.runs.for_each(|batch| {
        for run in batch.runs.iter().filter(|run| run.cpu_ns > 0) {
            if let Some(place) = run.node.and_then(&place) {
                out.times.push((place, run.cpu_ns));
                out.samples += run.samples as usize;
            }
        }
        Ok::<(), std::io::Error>(())
    })?;
    Ok(out)
}
