//! Names stacks and prints those that are wanted.

use super::choose::StackChoice;
use super::stack::{self, DumpStack};
use super::{clrstack, json, modules, text};
use std::collections::VecDeque;
use std::io;
use stk_base::text::TimeZone;
use stk_profile::profile::Selection;
use stk_profile::stack::{FoldOptions, NameSources, StackWalker};
use stk_profile::trace::snapshots;
use stk_schema::Ticks;

/// How stacks are printed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DumpStyle {
    /// Like the debuggers' `k`.
    #[default]
    K,
    /// One line a frame.
    Plain,
    /// Stacks of the same functions once, with their threads.
    Merged,
    /// Like SOS's `clrstack`.
    Clrstack,
    /// Everything that is known of each frame.
    Json,
}

/// How stacks are walked and printed.
#[derive(Clone, Copy)]
pub struct DumpOptions {
    pub style: DumpStyle,
    /// Name the unwind record and the rule by which each caller was found.
    pub explain: bool,
    pub fold: FoldOptions,
    pub zone: TimeZone,
    /// List the modules that were loaded at the moment too.
    pub modules: bool,
}

/// Takes the text.
pub type Out<'a> = &'a mut dyn FnMut(&str) -> io::Result<()>;

/// Prints the stacks of threads at a moment. Returns how many are left out for lack of memory.
pub fn moment(
    inputs: &stack::DumpInputs<'_>,
    walker: &mut StackWalker<'_>,
    time: Ticks,
    wanted: &dyn Fn(u64) -> bool,
    printer: &mut StackPrinter<'_, '_>,
) -> io::Result<u64> {
    let trace = inputs.trace;
    let (taken, mut left_out) = snapshots(trace, time, wanted);
    let mut stacks: Vec<DumpStack> = Vec::new();
    for snapshot in &taken {
        let stack = stack::walk(inputs, walker, snapshot, time, printer.options.explain);
        if trace.budget.take(stack.memory()) {
            stacks.push(stack);
        } else {
            left_out += 1;
        }
    }
    // All are of one moment, so sort by the thread id that users know.
    stacks.sort_by_key(|stack| (stack.tid, stack.instance));
    printer.print(stacks)?;
    Ok(left_out)
}

/// Names stacks and prints them in the chosen style, some at a time.
pub struct StackPrinter<'a, 'o> {
    pub(super) options: DumpOptions,
    sources: NameSources<'a>,
    out: Out<'o>,
    pub choice: StackChoice,
    /// Texts left out for lack of memory.
    pub unnamed: u64,
    /// The moment of the stacks, or of the last one.
    time: Ticks,
    /// With `--style merged`, all stacks so far.
    merged: text::MergedStacks,
    /// With `--style clrstack`, what is printed at the end.
    notes: clrstack::Notes,
    /// Lines on events that are not printed yet, with the events' numbers.
    lines: VecDeque<(u64, String)>,
    /// The last piece of text that was printed.
    pub last: PrintedItem,
}

/// A piece of text. An empty line is before and behind each stack.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PrintedItem {
    #[default]
    Nothing,
    Line,
    Stack,
}

impl<'a, 'o> StackPrinter<'a, 'o> {
    /// Of named stacks, prints those that `selection` takes.
    pub fn new(
        options: DumpOptions,
        selection: Selection,
        sources: NameSources<'a>,
        out: Out<'o>,
    ) -> StackPrinter<'a, 'o> {
        StackPrinter {
            options,
            sources,
            out,
            choice: StackChoice::new(selection),
            unnamed: 0,
            time: Ticks(0),
            merged: text::MergedStacks::default(),
            notes: clrstack::Notes::default(),
            lines: VecDeque::new(),
            last: PrintedItem::Nothing,
        }
    }

    /// Prints these lines on events, sorted by the events' numbers, before the stack of the first
    /// capture with such a number or a higher one. The style must be `k`, `plain` or `clrstack`.
    pub fn among(mut self, lines: Vec<(u64, String)>) -> StackPrinter<'a, 'o> {
        self.lines = lines.into();
        self
    }

    /// Begins the output. `time` is the moment of the stacks, or of the last one.
    pub fn begin(&mut self, time: Ticks) -> io::Result<()> {
        self.time = time;
        if self.options.style == DumpStyle::Json {
            let modules = self.options.modules.then(|| modules::at(self.sources.trace, time));
            (self.out)(&json::head(self.sources.trace, time, modules)?)?;
        }
        Ok(())
    }

    pub(super) fn print(&mut self, mut stacks: Vec<DumpStack>) -> io::Result<()> {
        let unnamed = stack::name(&self.sources, &mut stacks);
        self.unnamed = self.unnamed.saturating_add(unnamed);
        let mut text = String::new();
        for stack in &mut stacks {
            let number = stack.capture.map_or(0, |capture| capture.number);
            self.lines_up_to(number, &mut text);
            if !self.choice.takes(self.sources.trace, stack) {
                continue;
            }
            stack::fold(stack, self.options.fold);
            text.push_str(&self.text(stack)?);
        }
        (self.out)(&text)?;
        Ok(())
    }

    /// A stack, with what is between it and the one before.
    fn text(&mut self, stack: &DumpStack) -> io::Result<String> {
        let trace = self.sources.trace;
        let zone = self.options.zone;
        let text = match self.options.style {
            DumpStyle::K => text::k(trace, stack, zone),
            DumpStyle::Plain => text::plain(trace, stack, zone),
            DumpStyle::Merged => {
                self.merged.add(stack);
                return Ok(String::new());
            }
            DumpStyle::Clrstack => {
                clrstack::text(trace, stack, self.options.fold.frames, zone, &mut self.notes)
            }
            DumpStyle::Json => return Ok(json::thread(trace, stack, self.choice.taken == 1)?),
        };
        let before = std::mem::replace(&mut self.last, PrintedItem::Stack);
        Ok(if before == PrintedItem::Nothing { text } else { format!("\n{text}") })
    }

    /// Adds the lines on events up to the one with this number.
    fn lines_up_to(&mut self, number: u64, text: &mut String) {
        while self.lines.front().is_some_and(|(event, _)| *event <= number) {
            let Some((_, line)) = self.lines.pop_front() else { return };
            if std::mem::replace(&mut self.last, PrintedItem::Line) == PrintedItem::Stack {
                text.push('\n');
            }
            text.push_str(&line);
        }
    }

    pub fn end(&mut self) -> io::Result<()> {
        if self.options.style == DumpStyle::Json {
            (self.out)(json::end(self.choice.taken == 0))?;
        }
        if self.options.style == DumpStyle::Merged {
            let merged = std::mem::take(&mut self.merged);
            (self.out)(&merged.text(self.sources.trace, self.time, self.options.zone))?;
        }
        let mut rest = String::new();
        self.lines_up_to(u64::MAX, &mut rest);
        if self.options.modules && self.options.style != DumpStyle::Json {
            if self.choice.taken > 0 {
                rest.push('\n');
            }
            rest.push_str(&modules::text(self.sources.trace, self.time, self.options.zone));
        }
        (self.out)(&rest)?;
        (self.out)(&self.notes.text())?;
        Ok(())
    }
}
