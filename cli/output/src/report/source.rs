//! Source lines of functions for a page: those of `stk annotate`, with the text around them.

use super::tree::PageTree;
use crate::annotate::{Annotation, PartStats};
use serde::Serialize;

/// Lines of text before and behind those that have samples.
const AROUND: usize = 4;
/// Lines of text of a function at most.
const MOST_LINES: usize = 1000;
/// Bytes of all texts of a trace at most.
const MOST_TEXT: usize = 4 << 20;

/// The source of a function. The page reads it as JSON.
#[derive(Serialize)]
pub(super) struct FunctionSource<'a> {
    /// The page's numbers of the function; several where it is in several places of the profile.
    functions: Vec<u32>,
    /// The source file, as debug information names it; `None`: none is known.
    file: Option<&'a str>,
    /// Why there is no text, or why the text may be that of another build.
    problem: Option<&'a str>,
    /// Number of the first line of `texts`.
    first: usize,
    texts: &'a [String],
    /// Lines that have samples: number (0: none is known), weight of the samples that end in it and
    /// of those that have it on the stack, nanoseconds.
    lines: Vec<(u32, u64, u64)>,
}

/// The sources of the functions that are annotated and that the page has, in the order of the
/// annotation.
pub(super) fn sources<'a>(annotation: &'a Annotation, tree: &PageTree) -> Vec<FunctionSource<'a>> {
    let mut room = MOST_TEXT;
    annotation.parts.iter().filter_map(|part| source(part, tree, &mut room)).collect()
}

fn source<'a>(part: &'a PartStats, tree: &PageTree, room: &mut usize) -> Option<FunctionSource<'a>> {
    let functions: Vec<u32> = part.functions.iter().filter_map(|id| tree.functions[id.0 as usize]).collect();
    if functions.is_empty() {
        return None;
    }
    let lines = part.lines.iter().map(|row| (row.line.unwrap_or(0), row.own.weight_ns, row.total.weight_ns));
    let numbers = || part.lines.iter().filter_map(|row| row.line).map(|line| line as usize);
    let first = numbers().min().unwrap_or(1).saturating_sub(AROUND).max(1);
    let end = numbers().max().unwrap_or(0).saturating_add(AROUND).min(part.texts.len());
    let texts = part.texts.get(first - 1..end.min(first - 1 + MOST_LINES)).unwrap_or_default();
    let bytes: usize = texts.iter().map(String::len).sum();
    let (texts, problem) = match room.checked_sub(bytes) {
        Some(left) => {
            *room = left;
            (texts, part.no_text.as_deref())
        }
        None => (&[][..], Some("no text: the page has no room for more")),
    };
    Some(FunctionSource {
        functions,
        file: part.file.as_deref(),
        problem,
        first,
        texts,
        lines: lines.collect(),
    })
}
