//! Orders of threads, and the names of the tracks on which viewers show them.

use crate::profile::Profile;
use std::collections::HashMap;

/// Threads by their running time, longest first; ties by index.
pub(super) fn busiest_first(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<u32> = (0..profile.threads.len() as u32).collect();
    order.sort_by_key(|&i| {
        let thread = &profile.threads[i as usize];
        (std::cmp::Reverse((thread.active_samples, thread.samples)), i)
    });
    order
}

/// Threads by (tid, start), since thread ids are reused, and a track's events must be in time
/// order.
pub(super) fn by_track(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<u32> = (0..profile.threads.len() as u32).collect();
    order.sort_by_key(|&i| {
        let thread = &profile.threads[i as usize];
        (thread.tid, thread.start_ns.unwrap_or(0), i)
    });
    order
}

/// The names of the tracks: for each, the names of all threads that had its id, in order of their
/// start.
pub(super) fn track_names(profile: &Profile) -> HashMap<u32, String> {
    let mut tracks: HashMap<u32, Vec<&str>> = HashMap::new();
    for &i in &by_track(profile) {
        let thread = &profile.threads[i as usize];
        let names = tracks.entry(thread.tid).or_default();
        if !thread.name.is_empty() && !names.contains(&thread.name.as_str()) {
            names.push(&thread.name);
        }
    }
    let label = |tid, names: Vec<&str>| {
        if names.is_empty() { format!("thread {tid}") } else { format!("{} ({tid})", names.join(", ")) }
    };
    tracks.into_iter().map(|(tid, names)| (tid, label(tid, names))).collect()
}
