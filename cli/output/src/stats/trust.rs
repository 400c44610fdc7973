//! How the frames of a profile were found.

use super::{Amount, TrustStats, share};
use std::cmp::Reverse;
use std::collections::HashMap;
use stk_profile::profile::{FrameId, Profile};
use stk_unwind::Trust;

/// Frames by trust and module to blame, the first `top` of them, and the part of all that is
/// proved. `through` holds, by node, the samples of the stacks that go through it.
pub(super) fn trust_stats<'a>(
    profile: &Profile,
    through: &[Amount],
    module_of: &dyn Fn(FrameId) -> &'a str,
    top: usize,
) -> (Vec<TrustStats>, f64) {
    let nodes = profile.tree.nodes();
    let trust_of = |frame: FrameId| profile.frames.keys()[frame.0 as usize].trust;
    // Most frames are proved, and those have no module to blame: a short list holds their sums,
    // since a look-up in a table for every node would take longer than all the rest.
    let mut proved_frames: Vec<(Trust, u64)> = Vec::new();
    let mut frames: HashMap<(Trust, &str), u64> = HashMap::new();
    let mut add_proved =
        |trust: Trust, samples: u64| match proved_frames.iter_mut().find(|(known, _)| *known == trust) {
            Some((_, sum)) => *sum += samples,
            None => proved_frames.push((trust, samples)),
        };
    for (node, amount) in nodes.iter().zip(through).filter(|(_, amount)| amount.samples > 0) {
        if trust_of(node.frame) == Trust::Context {
            add_proved(Trust::Context, amount.samples);
        }
        // Every other frame was found from the frame that it called.
        let Some(caller) = node.parent.map(|parent| trust_of(nodes[parent.0 as usize].frame)) else {
            continue;
        };
        if caller.is_proved() {
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
