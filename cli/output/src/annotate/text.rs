//! Annotated functions as text.

use super::{Annotation, CodeBlock, PartStats};
use crate::stats::{Amount, CountedTotal, PrintOptions, percent};
use std::io::{self, Write};
use stk_base::text::{counted, cut};
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Lines around those with samples whose texts are shown.
const CONTEXT: u32 = 3;
/// Columns before a line's text.
const BEFORE: usize = 44;

/// Why the next instruction often has the weight.
const SKID: &str = "A sample counts for the instruction that would have run next: what took long is often the one before it.";

/// Prints what `stk annotate` shows.
pub fn print(annotation: &Annotation, out: &mut dyn Write, options: &PrintOptions) -> io::Result<()> {
    let Annotation { weight, interval_ns, counted_ns, .. } = *annotation;
    let whole = CountedTotal { weight, interval_ns, counted_ns, few: None };
    for (at, part) in annotation.parts.iter().enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        print_part(part, &whole, out, options)?;
    }
    if annotation.parts.iter().any(|part| !part.code.is_empty()) {
        writeln!(out, "\n{SKID}")?;
    }
    if annotation.others > 0 {
        let own = whole.amount(annotation.others_self.weight_ns);
        let others = counted(annotation.others, "other");
        writeln!(out, "\n{others} of that name, with {own} of their own: --top 0 shows all")?;
    }
    Ok(())
}

fn print_part(
    part: &PartStats,
    whole: &CountedTotal,
    out: &mut dyn Write,
    options: &PrintOptions,
) -> io::Result<()> {
    let name = match &part.function {
        Some(function) if part.module.is_empty() => printable(function).into_owned(),
        Some(function) => format!("{}  {}", printable(function), printable(&part.module)),
        None => printable(part.file.as_deref().unwrap_or_default()).into_owned(),
    };
    let bold = if options.color { format!("\x1b[1m{name}\x1b[0m") } else { name };
    writeln!(out, "{bold}")?;
    let figures = |ns| {
        let [amount, share] = whole.figures(ns);
        format!("{amount} ({})", share.trim_start())
    };
    let [own, total] = [part.own, part.total].map(|amount| figures(amount.weight_ns));
    writeln!(out, "  self {own}, total {total} of the {}", whole.weight.title())?;
    if let Some(file) = part.file.as_ref().filter(|_| part.function.is_some()) {
        writeln!(out, "  {}", printable(file))?;
    }
    if let Some(text) = &part.text_file {
        writeln!(out, "  text: {}", printable(text))?;
    }
    if let Some(problem) = &part.no_text {
        writeln!(out, "  {}", printable(problem))?;
    }
    writeln!(out)?;
    write!(out, "{}", lines(part, whole, options).text())?;
    for block in &part.code {
        writeln!(out)?;
        write!(out, "{}", instructions(block, whole, options).text())?;
    }
    Ok(())
}

/// Columns of the own amount, its share, the total, and what they are of.
fn columns(of: &str) -> [Column; 5] {
    let number = |heading: &str| Column::right(heading).at_least(9);
    [number("self"), Column::right("").gap(1), number("total"), Column::right(of), Column::left("")]
}

/// The cells of amounts; nothing is left blank.
fn cells(own: Amount, total: Amount, whole: &CountedTotal) -> [String; 3] {
    let shown = |amount: Amount, text: String| if amount == Amount::default() { String::new() } else { text };
    [
        shown(own, whole.amount(own.weight_ns)),
        shown(own, percent(own.weight_ns, whole.counted_ns)),
        shown(total, whole.amount(total.weight_ns)),
    ]
}

fn fitted(text: &str, options: &PrintOptions) -> String {
    let text = printable(text);
    match options.columns {
        Some(columns) => cut(&text, columns.saturating_sub(BEFORE).max(20)).into_owned(),
        None => text.into_owned(),
    }
}

fn lines(part: &PartStats, whole: &CountedTotal, options: &PrintOptions) -> Table {
    let mut table = Table::new(columns("line"));
    let blank = || [String::new(), String::new(), String::new()];
    let context = |table: &mut Table, from: u32, until: u32| {
        for line in from..until {
            let Some(text) = part.texts.get((line as usize).wrapping_sub(1)) else { break };
            table.row(blank().into_iter().chain([line.to_string(), fitted(text, options)]));
        }
    };
    let mut next: Option<u32> = None;
    for row in &part.lines {
        if let Some(line) = row.line {
            // The texts behind the last line and before this one, with a gap between them if that
            // is worth a line.
            let before = line.saturating_sub(CONTEXT).max(1);
            match next {
                Some(next) if next.saturating_add(CONTEXT + 1) >= before => {
                    context(&mut table, next, line);
                }
                Some(next) => {
                    context(&mut table, next, next.saturating_add(CONTEXT));
                    if !part.texts.is_empty() {
                        table.row(blank().into_iter().chain(["…".to_owned()]));
                    }
                    context(&mut table, before, line);
                }
                None => context(&mut table, before, line),
            }
            next = Some(line.saturating_add(1));
        }
        let line = row.line.map_or_else(|| "none".to_owned(), |line| line.to_string());
        let text = row.text.as_deref().map(|text| fitted(text, options)).unwrap_or_default();
        table.row(cells(row.own, row.total, whole).into_iter().chain([line, text]));
    }
    if let Some(next) = next {
        context(&mut table, next, next.saturating_add(CONTEXT));
    }
    table
}

fn instructions(block: &CodeBlock, whole: &CountedTotal, options: &PrintOptions) -> Table {
    let module = printable(&block.module).into_owned();
    let mut table = Table::new(columns("address").into_iter().chain([Column::left(module)]));
    for row in &block.rows {
        if row.skipped > 0 {
            let skipped = format!("… {}", counted(row.skipped, "instruction"));
            let blank = std::iter::repeat_n(String::new(), 5);
            table.row(blank.chain([skipped]));
        }
        let line = row.line.map(|line| line.to_string()).unwrap_or_default();
        let text = match (&row.text, row.problem) {
            (Some(text), _) => fitted(text, options),
            (None, problem) => format!("({})", problem.unwrap_or_default()),
        };
        let address = format!("{:x}", row.address);
        table.row(cells(row.own, row.total, whole).into_iter().chain([address, line, text]));
    }
    table
}
