//! Where the traces of one machine lie on one time line, and which of them are of one process.
//!
//! Takes an [`Anchor`] of each trace. Returns a [`MergedTimeline`] with the place of each,
//! the process of each, and the times between the traces of one process:
//!
//! ```text
//! anchor   when and where traces were recorded, and where they lie Trace -> Anchor, MergedTimeline
//! gaps     the times between traces of one process                 MergedTimeline -> ProcessGap
//! ```

mod anchor;
mod gaps;

pub use anchor::{Anchor, Basis, MergedTimeline, TraceOffset, place};
pub use gaps::{ProcessGap, gaps};

/// The process of each trace: its first trace in `line`, and by trace the index of its process.
pub fn processes(anchors: &[Anchor], line: &MergedTimeline) -> (Vec<usize>, Vec<u32>) {
    let mut firsts: Vec<usize> = Vec::new();
    let mut of_trace = vec![0; anchors.len()];
    for &TraceOffset { trace, .. } in &line.places {
        let known = firsts.iter().position(|&first| anchors[trace].is_of_process_of(&anchors[first]));
        of_trace[trace] = known.unwrap_or(firsts.len()) as u32;
        if known.is_none() {
            firsts.push(trace);
        }
    }
    (firsts, of_trace)
}
