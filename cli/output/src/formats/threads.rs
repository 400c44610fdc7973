//! Orders of threads, and the names of the tracks on which viewers show them.

use std::collections::{HashMap, HashSet};
use stk_profile::profile::Profile;

/// Threads by their running time, longest first; ties by index.
pub(super) fn busiest_first(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<u32> = (0..profile.threads.len() as u32).collect();
    order.sort_by_key(|&i| {
        let thread = &profile.threads[i as usize];
        (std::cmp::Reverse((thread.active_samples, thread.samples)), i)
    });
    order
}

/// The thread of each process that was created first.
pub(super) fn main_threads(profile: &Profile) -> HashSet<u32> {
    let mut first: HashMap<u32, (u64, u64, u32)> = HashMap::new();
    for (at, info) in (0u32..).zip(&profile.threads) {
        // Threads without a time of creation come last.
        let created = (info.created_utc_ns.wrapping_sub(1), info.start_ns.unwrap_or(0), at);
        let known = first.entry(profile.process_of_thread(at)).or_insert(created);
        *known = created.min(*known);
    }
    first.into_values().map(|(_, _, at)| at).collect()
}

/// Threads by (process, tid, start), since thread ids are reused, and a track's events must be in
/// time order.
pub(super) fn by_track(profile: &Profile) -> Vec<u32> {
    let mut order: Vec<u32> = (0..profile.threads.len() as u32).collect();
    order.sort_by_key(|&i| {
        let thread = &profile.threads[i as usize];
        (profile.process_of_thread(i), thread.tid, thread.start_ns.unwrap_or(0), i)
    });
    order
}

/// A thread's track: its process, and its id.
pub(super) type TrackKey = (u32, u32);

/// The track of a thread.
pub(super) fn track_of(profile: &Profile, thread: u32) -> TrackKey {
    (profile.process_of_thread(thread), profile.threads[thread as usize].tid)
}

/// The names of the tracks: for each, the names of all threads that had its id, in order of their
/// start.
pub(super) fn track_names(profile: &Profile) -> HashMap<TrackKey, String> {
    let mut tracks: HashMap<TrackKey, Vec<&str>> = HashMap::new();
    for &i in &by_track(profile) {
        let thread = &profile.threads[i as usize];
        let names = tracks.entry(track_of(profile, i)).or_default();
        if !thread.name.is_empty() && !names.contains(&thread.name.as_str()) {
            names.push(&thread.name);
        }
    }
    let label = |tid, names: Vec<&str>| {
        if names.is_empty() { format!("thread {tid}") } else { format!("{} ({tid})", names.join(", ")) }
    };
    tracks.into_iter().map(|(track, names)| (track, label(track.1, names))).collect()
}
