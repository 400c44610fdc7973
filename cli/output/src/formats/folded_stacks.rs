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
use super::stack_sums::{StackLine, WeighedChains, WeighedStack, WeighedStacks};
use super::unfold::{EMPTY, OriginSums, StackOrigin, incomplete, wait_root};
use super::{Options, OutputError, json};
use rayon::prelude::*;
use stk_profile::profile::{Batch, FunctionId, Functions, Profile, Run, Wait, Weight};
use stk_schema::text::printable;

/// The stacks of a profile, summed up.
pub(super) struct FoldedStacks {
    /// What the lines count.
    pub weight: Weight,
    /// Whether each source line is a function of its own.
    pub by_line: bool,
    counted: CountedTime,
    /// Nanoseconds by the source of a stack's line.
    weights: Option<OriginSums>,
}

impl FoldedStacks {
    pub(super) fn new(options: &Options) -> FoldedStacks {
        FoldedStacks {
            weight: options.weights()[0],
            by_line: options.lines,
            counted: CountedTime::default(),
            weights: None,
        }
    }

    /// Begins with the sums of a profile.
    pub(super) fn begin(&mut self, profile: &Profile) {
        self.weights = Some(OriginSums::new(profile));
    }

    /// Adds the runs of a thread. Threads follow each other.
    pub(super) fn add(&mut self, profile: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        let weights = self.weights.as_mut().ok_or(OutputError::Order("samples before begin"))?;
        let (thread, weight, mut counted) = (batch.thread, self.weight, self.counted);
        let origin = move |run: Run| {
            let (start_ns, end_ns) = counted.count(thread, &run)?;
            Some((StackOrigin::of(&run, weight), end_ns - start_ns))
        };
        weights.add(profile.tree.chains(), batch.runs.len(), batch.weighed().filter_map(origin));
        if batch.may_continue() {
            for run in batch.weighed() {
                self.counted.count(thread, &run);
            }
        }
        Ok(())
    }

    /// Calls `each` with lines, one for each distinct stack, with its nanoseconds: callers before
    /// their callees, otherwise in the order of their names. The sums are gone afterwards.
    pub(super) fn visit(
        &mut self,
        profile: &Profile,
        mut each: impl FnMut(&[u8]) -> Result<(), OutputError> + Send,
    ) -> Result<(), OutputError> {
        let weights = self.weights.take().ok_or(OutputError::Order("no samples"))?;
        let ((functions, names), lists) = rayon::join(
            || {
                let functions = Functions::new(profile, self.by_line);
                let names = FoldedNames::new(profile, &functions);
                (functions, names)
            },
            || weights.has_chains().then(|| WeighedChains::new(&profile.tree)),
        );
        let number = |function: FunctionId| names.functions[function.0 as usize];
        let roots = |origin| names.roots(origin);
        let sums = (weights, lists);
        let stacks = WeighedStacks::of(profile, &functions, sums, number, roots, Some(names.empty));
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
        let list = functions.list();
        let mut names: Vec<Option<String>> =
            list.par_iter().map(|function| Some(field(&function.name))).collect();
        names.extend(profile.stops.iter().map(|stop| incomplete(stop).map(|text| field(&text))));
        names.extend(Wait::all().into_iter().map(|wait| Some(field(&wait_root(wait)))));
        names.push(Some(EMPTY.to_owned()));
        let (texts, mut functions) = sorted(names);
        let mut stops = functions.split_off(list.len());
        let mut waits = stops.split_off(profile.stops.len());
        let empty = waits.pop().flatten().unwrap_or_default();
        let functions = functions.into_iter().flatten().collect();
        FoldedNames { texts, functions, stops, waits: waits.into_iter().flatten().collect(), empty }
    }

    /// What stands above the functions of a stack, as indices in `texts`, outermost first.
    fn roots(&self, origin: StackOrigin) -> [Option<u32>; 2] {
        let wait = origin.wait.map(|wait| self.waits[usize::from(wait.number())]);
        [wait, origin.stop.and_then(|stop| self.stops[stop.0 as usize])]
    }
}

/// The distinct ones of these texts, sorted, and by text its index among them.
fn sorted(texts: Vec<Option<String>>) -> (Vec<String>, Vec<Option<u32>>) {
    let mut indices = vec![None; texts.len()];
    let mut places: Vec<(String, usize)> =
        texts.into_iter().enumerate().filter_map(|(place, text)| Some((text?, place))).collect();
    places.par_sort_unstable();
    let mut distinct: Vec<String> = Vec::with_capacity(places.len());
    for (text, place) in places {
        if distinct.last() != Some(&text) {
            distinct.push(text);
        }
        indices[place] = Some(distinct.len() as u32 - 1);
    }
    (distinct, indices)
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
