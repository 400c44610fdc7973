//! Source lines and instructions of functions for a page: those of `stk annotate`, with the text
//! around the lines.

use super::tree::PageTree;
use crate::annotate::{Annotation, CodeBlock, InstructionRow, PartStats};
use serde::Serialize;

/// Lines of text before and behind those that have samples.
const AROUND: usize = 4;
/// Lines of text of a function at most.
const MOST_LINES: usize = 1000;
/// Bytes of all texts of a trace at most.
const MOST_TEXT: usize = 4 << 20;
/// Rows of instructions of a function at most.
const MOST_INSTRUCTIONS: usize = 10_000;
/// Rows of instructions of a trace at most.
const MOST_CODE: usize = 100_000;

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
    /// Its machine code, if the page shows it.
    code: Vec<PageCode<'a>>,
    /// Why there is none.
    code_problem: Option<&'static str>,
}

/// Machine code of a function that belongs together.
#[derive(Serialize)]
struct PageCode<'a> {
    module: &'a str,
    /// What addresses count from: see [`CodeBlock`].
    base: &'static str,
    rows: Vec<PageInstruction<'a>>,
}

/// The address in hexadecimal digits; how many instructions are left out before it; the text, or
/// why there is none; the source line (0: none is known); weight as in `lines`.
type PageInstruction<'a> = (String, u64, Option<&'a str>, Option<&'static str>, u32, u64, u64);

/// What a page can still hold.
struct Room {
    /// Bytes of texts.
    text: usize,
    /// Rows of instructions.
    code: usize,
}

/// Takes an amount off what is left, if that is enough.
fn take(left: &mut usize, amount: usize) -> bool {
    let rest = left.checked_sub(amount);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// The sources of the functions that are annotated and that the page has, in the order of the
/// annotation.
pub(super) fn sources<'a>(annotation: &'a Annotation, tree: &PageTree) -> Vec<FunctionSource<'a>> {
    let mut room = Room { text: MOST_TEXT, code: MOST_CODE };
    annotation.parts.iter().filter_map(|part| source(part, tree, &mut room)).collect()
}

fn source<'a>(part: &'a PartStats, tree: &PageTree, room: &mut Room) -> Option<FunctionSource<'a>> {
    let functions: Vec<u32> = part.functions.iter().filter_map(|id| tree.functions[id.0 as usize]).collect();
    if functions.is_empty() {
        return None;
    }
    let lines = part.lines.iter().map(|row| (row.line.unwrap_or(0), row.own.weight_ns, row.total.weight_ns));
    let numbers = || part.lines.iter().filter_map(|row| row.line).map(|line| line as usize);
    let first = numbers().min().unwrap_or(1).saturating_sub(AROUND).max(1);
    let end = numbers().max().unwrap_or(0).saturating_add(AROUND).min(part.texts.len());
    let texts = part.texts.get(first - 1..end.min(first - 1 + MOST_LINES)).unwrap_or_default();
    let (texts, problem) = if take(&mut room.text, texts.iter().map(String::len).sum()) {
        (texts, part.no_text.as_deref())
    } else {
        (&[][..], Some("no text: the page has no room for more"))
    };
    let instructions = part.code.iter().map(|block| block.rows.len()).sum();
    let (code, code_problem) = if instructions > MOST_INSTRUCTIONS {
        (&[][..], Some("no instructions: the function has too many for a page; stk annotate shows them"))
    } else if take(&mut room.code, instructions) {
        (&part.code[..], None)
    } else {
        (&[][..], Some("no instructions: the page has no room for more; stk annotate shows them"))
    };
    Some(FunctionSource {
        functions,
        file: part.file.as_deref(),
        problem,
        first,
        texts,
        lines: lines.collect(),
        code: code.iter().map(page_code).collect(),
        code_problem,
    })
}

fn page_code(block: &CodeBlock) -> PageCode<'_> {
    PageCode { module: &block.module, base: block.base, rows: block.rows.iter().map(page_row).collect() }
}

fn page_row(row: &InstructionRow) -> PageInstruction<'_> {
    let InstructionRow { address, skipped, own, total, .. } = *row;
    let line = row.line.unwrap_or(0);
    let text = row.text.as_deref();
    let problem = row.problem.filter(|_| text.is_none());
    (format!("{address:x}"), skipped, text, problem, line, own.weight_ns, total.weight_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_takes_nothing_of_the_room() {
        let mut left = 10;
        assert!(!take(&mut left, 11));
        assert_eq!(left, 10);
        assert!(take(&mut left, 10) && !take(&mut left, 1) && take(&mut left, 0));
    }
}
