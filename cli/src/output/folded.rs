//! Folded stacks in the form of Brendan Gregg's `stackcollapse` scripts: `main;work;leaf COUNT`,
//! one line per distinct stack, the outermost function first.
//!
//! The count is in nanoseconds. Threads are merged: equal stacks of several threads are one line.
//! Time in which a thread was not sampled has no line.
//!
//! The format has no escapes. `flamegraph.pl` splits at every `;`, takes the last number of a line
//! for the count, and takes a number before that for the count of a second profile.

use super::sink::Sink;
use super::stack_sums::StackSums;
use super::unfold::{StackOrigin, Unfolder, incomplete, wait_root};
use super::{Description, Destination, Format, Options, OutputError, Summary, Writer, json, single};
use crate::profile::{Batch, FunctionId, Functions, Profile, Wait, Weight};
use std::collections::HashMap;
use stk_schema::text::printable;

pub(super) const FORMAT: Description = Description {
    name: "folded",
    help: "Text, a line per distinct stack with its nanoseconds: flamegraph.pl, inferno, speedscope",
    suffix: ".folded",
    other_suffixes: &[],
    is_folder: false,
    tells_source: false,
    create,
};

fn create(to: Destination, options: &Options) -> Result<Box<dyn Writer>, OutputError> {
    Ok(Box::new(FoldedWriter {
        sink: single(Format::Folded, to)?,
        weight: options.weights()[0],
        thread: None,
        end_ns: 0,
        weights: HashMap::new(),
    }))
}

struct FoldedWriter {
    sink: Sink,
    /// What the lines count.
    weight: Weight,
    /// The thread of `end_ns`.
    thread: Option<u32>,
    /// End of the time counted so far for that thread, nanoseconds since trace start.
    end_ns: u64,
    /// Nanoseconds by the source of a stack's line.
    weights: HashMap<StackOrigin, u64>,
}

impl Writer for FoldedWriter {
    fn passes(&self) -> Vec<Weight> {
        vec![self.weight]
    }

    fn begin(&mut self, _: &Profile) -> Result<(), OutputError> {
        Ok(())
    }

    fn samples(&mut self, _: &Profile, batch: &Batch<'_>) -> Result<(), OutputError> {
        if self.thread != Some(batch.thread) {
            (self.thread, self.end_ns) = (Some(batch.thread), 0);
        }
        for run in batch.runs {
            // Runs may overlap a little if the recorder had to correct the clock. Time is counted
            // only once.
            let start_ns = run.first_ns.max(self.end_ns);
            let end_ns = run.first_ns.saturating_add(run.weight_ns);
            if end_ns > start_ns {
                self.end_ns = end_ns;
                let origin = StackOrigin::of(run, self.weight);
                add(self.weights.entry(origin).or_default(), end_ns - start_ns);
            }
        }
        Ok(())
    }

    fn finish(&mut self, profile: &Profile) -> Result<Summary, OutputError> {
        let functions = Functions::new(profile, false);
        let names = FoldedNames::new(profile, &functions);
        let mut stacks = StackSums::default();
        let (mut unfolder, mut stack) = (Unfolder::default(), Vec::new());
        for (origin, weight_ns) in self.weights.drain() {
            stack.clear();
            if let Some(node) = origin.node {
                unfolder.unfold(profile, &functions, node, &mut stack);
            }
            stacks.add(names.of_stack(origin, &stack), weight_ns);
        }
        let (sink, mut line) = (&mut self.sink, Line::default());
        stacks.visit(|stack, weight_ns| write_line(line.of(stack, &names.texts), weight_ns, sink))?;
        self.sink.finish()
    }
}

fn add(sum: &mut u64, ns: u64) {
    *sum = sum.saturating_add(ns);
}

fn write_line(stack: &str, weight_ns: u64, sink: &mut Sink) -> Result<(), OutputError> {
    sink.put(stack.as_bytes());
    sink.put(b" ");
    json::number(&mut sink.buffer, weight_ns);
    sink.put(b"\n");
    sink.settle()
}

/// The text of the last stack. Kept, since the next one mostly begins alike.
#[derive(Default)]
struct Line {
    text: String,
    /// The stack, each name with the length of the text up to its end.
    names: Vec<(u32, usize)>,
}

impl Line {
    /// The names of a stack, outermost first, given by their indices in `texts`.
    fn of(&mut self, stack: &[u32], texts: &[String]) -> &str {
        let same = self.names.iter().zip(stack).take_while(|((last, _), next)| last == *next).count();
        self.names.truncate(same);
        self.text.truncate(self.names.last().map_or(0, |(_, end)| *end));
        for &name in &stack[same..] {
            if !self.names.is_empty() {
                self.text.push(';');
            }
            self.text.push_str(&texts[name as usize]);
            self.names.push((name, self.text.len()));
        }
        &self.text
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

/// Stands for a stack whose frames are all left out, so that its weight is not lost.
const EMPTY: &str = "[frames left out]";

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

    /// A stack's indices in `texts`, root first.
    fn of_stack(&self, origin: StackOrigin, stack: &[FunctionId]) -> impl Iterator<Item = u32> {
        let wait = origin.wait.map(|wait| self.waits[usize::from(wait.number())]);
        let root = self.stops[origin.stop.0 as usize];
        let is_empty = wait.is_none() && root.is_none() && stack.is_empty();
        wait.into_iter()
            .chain(root)
            .chain(is_empty.then_some(self.empty))
            .chain(stack.iter().map(move |function| self.functions[function.0 as usize]))
    }
}

/// A name as one field of a line. Characters that would end the field, the line or the name are
/// escaped.
fn field(name: &str) -> String {
    let text = printable(name).replace(';', r"\u{3b}");
    match text.rsplit_once(' ') {
        Some((rest, last)) if is_count(last) => format!(r"{rest}\u{{20}}{last}"),
        _ if text.is_empty() => "[no name]".to_owned(),
        _ => text,
    }
}

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
        ] {
            assert_eq!(field(name), shown);
        }
    }
}
