//! A comparison as a flame graph: widths are those of the new side, colours the difference to the
//! base in the function itself, red for more and blue for less.

use super::Diff;
use std::io;
use stk_output::formats::{draw_difference, folded_field, in_xml};

/// The flame graph as SVG, if the comparison kept stacks.
///
/// # Errors
///
/// When there are no stacks.
pub fn flame_graph(diff: &Diff) -> io::Result<Vec<u8>> {
    let mut lines: Vec<String> = diff
        .stacks
        .iter()
        .filter(|(_, sums)| *sums != [0, 0])
        .map(|(names, [base, new])| {
            let names: Vec<String> = names.iter().map(|name| folded_field(name)).collect();
            in_xml(&format!("{} {base} {new}", names.join(";"))).into_owned()
        })
        .collect();
    lines.sort_unstable();
    let change = |&(_, [base, new]): &(_, [u64; 2])| base.abs_diff(new);
    let most = diff.stacks.iter().map(change).max().unwrap_or(0);
    // Millionths as percent.
    let most = format!("{:.2} %", most as f64 / 1e4);
    let title = format!("New beside base: {}", diff.weight.title());
    let subtitle = "Width: share of the new side. Red: more than in the base; blue: less";
    let mut svg = Vec::new();
    draw_difference(title, (subtitle, "millionths"), &lines, &most, &mut svg)
        .map_err(|error| io::Error::other(format!("flame graph: {error}")))?;
    Ok(svg)
}
