//! How the frames of a profile were found, and how much weight is certain.

use super::{Amount, TrustStats, TrustedWeight, share};
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::iter::repeat;
use stk_profile::profile::{ChainId, FrameId, NameSource, Profile};
use stk_unwind::Trust;

/// Frames by trust and module to blame, the first `top` of them, and the part of all that is
/// proved. `through` holds, by chain, the samples of the stacks that go through it.
pub(super) fn trust_stats<'a>(
    profile: &Profile,
    through: &[Amount],
    module_of: impl Fn(FrameId) -> &'a str,
    top: usize,
) -> (Vec<TrustStats>, f64) {
    let nodes = profile.tree.nodes();
    let trusts = trusts(profile);
    let trust_of = |frame: FrameId| trusts[frame.0 as usize];
    // Most frames are proved, and those have no module to blame: a short list holds their sums,
    // since a look-up in a table for every node would take longer than all the rest.
    let mut proved_frames: Vec<(Trust, u64)> = Vec::new();
    let mut frames: HashMap<(Trust, &str), u64> = HashMap::new();
    let mut add_proved =
        |trust: Trust, samples: u64| match proved_frames.iter_mut().find(|(known, _)| *known == trust) {
            Some((_, sum)) => *sum += samples,
            None => proved_frames.push((trust, samples)),
        };
    let placeholders = profile.placeholders();
    let is_code = |frame: FrameId| !placeholders[frame.0 as usize];
    let of_chains = profile.tree.chains().iter().zip(through).filter(|(_, amount)| amount.samples > 0);
    let of_nodes = of_chains.flat_map(|((_, of_chain), amount)| nodes[of_chain].iter().zip(repeat(amount)));
    for (node, amount) in of_nodes.filter(|(node, _)| is_code(node.frame)) {
        if trust_of(node.frame) == Trust::Context {
            add_proved(Trust::Context, amount.samples);
        }
        // Every other frame was found from the frame that it called.
        let Some(caller) = node.parent().map(|parent| trust_of(nodes[parent.0 as usize].frame)) else {
            continue;
        };
        if caller.is_proved() || caller == Trust::Assumed {
            add_proved(caller, amount.samples);
        } else {
            *frames.entry((caller, module_of(node.frame))).or_default() += amount.samples;
        }
    }
    for (trust, samples) in proved_frames {
        *frames.entry((trust, "")).or_default() += samples;
    }
    let all = frames.values().sum();
    let mut list: Vec<TrustStats> = frames
        .into_iter()
        .map(|((trust, module), frames)| TrustStats {
            trust,
            proved: trust.is_proved(),
            module: module.to_owned(),
            frames,
            share: share(frames, all),
        })
        .collect();
    list.sort_by(|a, b| {
        (Reverse(a.frames), a.trust.as_str(), &a.module).cmp(&(
            Reverse(b.frames),
            b.trust.as_str(),
            &b.module,
        ))
    });
    let proved = list.iter().filter(|trust| trust.proved).map(|trust| trust.frames).sum();
    list.truncate(top);
    (list, share(proved, all))
}

/// The weight of stacks in which every frame is proved, and of those that end in a named function.
/// `own`, by chain: the weight of the samples that end with it.
pub(super) fn trusted(profile: &Profile, own: &[Amount]) -> TrustedWeight {
    let mut sums = TrustedWeight::default();
    let (trusts, placeholders) = (trusts(profile), profile.placeholders());
    let (chains, nodes) = (profile.tree.chains(), profile.tree.nodes());
    let mut proved: Vec<bool> = Vec::with_capacity(own.len());
    for ((chain, of_chain), amount) in chains.iter().zip(own) {
        let of_chain = &nodes[of_chain];
        let Some(frame) = of_chain.last().map(|last| last.frame.0 as usize) else { continue };
        let caller = chains.caller(chain);
        // Callers come before their callees. Without a caller, a placeholder is no stack.
        let above = match caller {
            Some(ChainId(caller)) => proved[caller as usize],
            None => !placeholders[of_chain[0].frame.0 as usize],
        };
        let is_proved = above && of_chain.iter().all(|node| trusts[node.frame.0 as usize].is_proved());
        proved.push(is_proved);
        let add = |sum: &mut u64| *sum = sum.saturating_add(amount.weight_ns);
        if is_proved {
            add(&mut sums.proved_ns);
        } else if caller.is_none() && of_chain.len() == 1 && placeholders[frame] {
            add(&mut sums.no_stack_ns);
        }
        match profile.symbols.source[frame] {
            source if source.is_certain() => add(&mut sums.named_ns),
            NameSource::Export => add(&mut sums.export_ns),
            _ => {}
        }
    }
    sums
}

/// By frame: how it was found. For passes over nodes, which read frames in no order.
fn trusts(profile: &Profile) -> Vec<Trust> {
    profile.frames.keys().iter().map(|key| key.trust).collect()
}
