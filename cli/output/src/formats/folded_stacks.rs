//! Sums of equal stacks as lines of text, `main;work;leaf`: what folded stacks and flame graphs
//! are made of.
//!
//! Threads are merged: equal stacks of several threads are one line. Time in which a thread was not
//! sampled has no line.
//!
//! Lines have no escapes. Their readers split at every `;`, take the last number of a line for the
//! count, and a number before that for the count of a second profile. They drop an annotation such
//! as `_[k]` from the end of a name, and a line that begins with `# `.

use super::counted_time::CountedTime;
use super::stack_sums::{StackLine, WeighedStack, WeighedStacks};
use super::unfold::{EMPTY, OriginSums, StackOrigin, incomplete, wait_root};
use super::{Options, OutputError, json};
use stk_profile::profile::{Batch, FunctionId, Functions, Profile, Wait, Weight};
use stk_schema::text::printable;

/// The stacks of a profile, summed up.
pub(super) struct FoldedStacks {
    /// What the lines count.
    pub weight: Weight,
    /// Whether each source line is a function of its own.
    pub by_line: bool,
    counted: CountedTime,
    /// Nanoseconds by the source of a stack's line.
    weights: OriginSums,
}

impl FoldedStacks {
    pub(super) fn new(options: &Options) -> FoldedStacks {
        FoldedStacks {
            weight: options.weights()[0],
            by_line: options.lines,
            counted: CountedTime::default(),
            weights: OriginSums::default(),
        }
    }

    /// Adds the runs of a thread. Threads follow each other.
    pub(super) fn add(&mut self, batch: &Batch<'_>) {
        for run in batch.runs {
            if let Some((start_ns, end_ns)) = self.counted.count(batch.thread, run) {
                self.weights.add(StackOrigin::of(run, self.weight), end_ns - start_ns);
            }
        }
    }

    /// Calls `each` with lines, one for each distinct stack, with its nanoseconds: callers before
    /// their callees, otherwise in the order of their names. The sums are gone afterwards.
    pub(super) fn visit(
        &mut self,
        profile: &Profile,
        mut each: impl FnMut(&[u8]) -> Result<(), OutputError> + Send,
    ) -> Result<(), OutputError> {
        let functions = Functions::new(profile, self.by_line);
        let names = FoldedNames::new(profile, &functions);
        let weights = std::mem::take(&mut self.weights);
        let number = |function: FunctionId| names.functions[function.0 as usize];
        let roots = |origin| names.roots(origin);
        let stacks = WeighedStacks::of(profile, &functions, &weights, number, roots, Some(names.empty));
        drop(weights);
        let write = |text: u32, out: &mut Vec<u8>| {
            out.extend_from_slice(names.texts[text as usize].as_bytes());
        };
        let new = || (StackLine::new(b';'), Vec::new());
        let line = |(line, lines): &mut (StackLine, Vec<u8>), stack: WeighedStack<'_>| {
            lines.extend_from_slice(line.of(stack.functions, write));
            lines.push(b' ');
            json::number(lines, stack.weight);
            lines.push(b'\n');
        };
        stacks.visit(new, line, |(_, lines)| each(&lines))
    }
}

/// The texts for functions and for ends of incomplete stacks.
struct FoldedNames {
    /// Distinct texts, sorted.
    texts: Vec<String>,
    /// By function, an index in `texts`.
    functions: Vec<u32>,
    /// By stop, an index in `texts`; `None` = the stack is complete.
    stops: Vec<Option<u32>>,
    /// By wait, an index in `texts`.
    waits: Vec<u32>,
    /// Index in `texts` of what stands for a stack without names.
    empty: u32,
}

impl FoldedNames {
    fn new(profile: &Profile, functions: &Functions) -> FoldedNames {
        let functions: Vec<String> = functions.list().iter().map(|function| field(&function.name)).collect();
        let stop = |stop| incomplete(stop).map(|text| field(&text));
        let stops: Vec<Option<String>> = profile.stops.iter().map(stop).collect();
        let waits: Vec<String> = Wait::all().into_iter().map(|wait| field(&wait_root(wait))).collect();
        let mut texts: Vec<String> =
            functions.iter().chain(stops.iter().flatten()).chain(&waits).cloned().collect();
        texts.push(EMPTY.to_owned());
        texts.sort_unstable();
        texts.dedup();
        let index = |text: &String| texts.binary_search(text).unwrap_or_else(|at| at) as u32;
        let empty = index(&EMPTY.to_owned());
        let functions = functions.iter().map(index).collect();
        let stops = stops.iter().map(|text| text.as_ref().map(index)).collect();
        let waits = waits.iter().map(index).collect();
        FoldedNames { texts, functions, stops, waits, empty }
    }

    /// What stands above the functions of a stack, as indices in `texts`, outermost first.
    fn roots(&self, origin: StackOrigin) -> [Option<u32>; 2] {
        let wait = origin.wait.map(|wait| self.waits[usize::from(wait.number())]);
        [wait, origin.stop.and_then(|stop| self.stops[stop.0 as usize])]
    }
}

/// A name as one field of a line. Characters that would end the field, the line or the name are
/// escaped.
pub fn field(name: &str) -> String {
    let text = printable(name).replace(';', r"\u{3b}");
    let text = match text.rsplit_once(' ') {
        Some((rest, last)) if is_count(last) => format!(r"{rest}\u{{20}}{last}"),
        _ if text.trim().is_empty() => "[no name]".to_owned(),
        _ => text,
    };
    let text = match text.strip_prefix("# ") {
        Some(rest) => format!(r"\u{{23}} {rest}"),
        None => text,
    };
    match ANNOTATIONS.iter().find_map(|end| Some((text.strip_suffix(end)?, end))) {
        Some((rest, end)) => format!(r"{rest}\u{{5f}}{}", &end[1..]),
        None => text,
    }
}

/// Ends of names that readers take for remarks on them.
const ANNOTATIONS: [&str; 4] = ["_[k]", "_[w]", "_[i]", "_[j]"];

/// Whether `flamegraph.pl` takes the last word of a stack for a count.
fn is_count(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_end_a_field_a_line_or_a_name_are_escaped() {
        for (name, shown) in [
            ("operator new", "operator new"),
            ("a;b", r"a\u{3b}b"),
            ("a\nb\u{1b}\u{202e}", r"a\u{a}b\u{1b}\u{202e}"),
            ("", "[no name]"),
            ("take 2", r"take\u{20}2"),
            ("take 2.5", r"take\u{20}2.5"),
            ("take 2nd", "take 2nd"),
            ("# note", r"\u{23} note"),
            ("#note", "#note"),
            ("call_[k]", r"call\u{5f}[k]"),
            ("call_[x]", "call_[x]"),
        ] {
            assert_eq!(field(name), shown);
        }
    }
}
