//! A comparison as a flame graph: widths are those of the new side, colours the difference to the
//! base, red for more and blue for less.

use super::Diff;
use inferno::flamegraph::{Options, from_lines};
use std::io;
use stk_output::formats::{folded_field, in_xml};

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
    let mut options = Options::default();
    options.title = format!("New beside base: {}", diff.weight.title());
    options.subtitle =
        Some("Width: share of the new side. Red: more than in the base; blue: less".to_owned());
    options.count_name = "millionths".to_owned();
    options.deterministic = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .map_err(|error| io::Error::other(format!("flame graph: {error}")))?;
    Ok(svg)
}
