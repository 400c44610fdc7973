//! A comparison as a table for terminals.

use super::{By, Change, Diff, DiffRow, SideSummary, Verdict, unnamed};
use stk_base::text::{count, counted, cut, pad, span, width};
use stk_schema::text::printable;

/// Columns before the names.
const BEFORE_NAME: usize = 69;
/// Columns of a name without a terminal, and the least in one.
const NAME_WIDTH: usize = 80;
const LEAST_NAME: usize = 20;

/// The table. `columns` are those of the terminal, if it is one.
pub fn table(diff: &Diff, columns: Option<usize>) -> String {
    let mut lines = vec![verdict(diff)];
    lines.extend(diff.inconclusive.iter().map(|reason| format!("  {}", printable(reason))));
    lines.push(String::new());
    lines.extend(sides(diff));
    lines.push(String::new());
    lines.push(heading(diff));
    let name_columns = columns.map_or(NAME_WIDTH, |all| all.saturating_sub(BEFORE_NAME).max(LEAST_NAME));
    lines.push("      base       new  difference    at least     at most".to_owned());
    lines.extend(diff.rows.iter().flat_map(|row| row_lines(row, diff.by, name_columns)));
    if diff.rows_left_out > 0 {
        let rows = counted(diff.rows_left_out, "smaller difference");
        lines.push(format!("  and {rows}: --top 0 lists all"));
    }
    if !diff.unmatched.is_empty() {
        lines.push(String::new());
        lines.push("Unmatched for want of symbols, and not judged".to_owned());
        lines.push("      base    named       new    named  lacks".to_owned());
        lines.extend(diff.unmatched.iter().map(|module| {
            format!(
                "  {:>6.1} % {:>6.0} % {:>7.1} % {:>6.0} %  {:<5}  {}",
                module.base_pct,
                module.base_named_pct,
                module.new_pct,
                module.new_named_pct,
                module.lacks,
                printable(&module.module)
            )
        }));
    }
    lines.join("\n") + "\n"
}

/// The answer in a line.
pub(super) fn verdict(diff: &Diff) -> String {
    let count_of = |change| diff.rows.iter().filter(|row| row.change == change).count() as u64;
    let (worse, better) = (count_of(Change::Worse), count_of(Change::Better));
    let noun = noun(diff.by);
    let over = format!("by more than {} % of the whole", diff.threshold_pct);
    let beside = match better {
        0 => String::new(),
        better => format!("; {} less", counted(better, noun)),
    };
    match diff.verdict {
        Verdict::Worse if worse == 1 => format!("worse: 1 {noun} takes more than before, {over}{beside}"),
        Verdict::Worse => format!("worse: {} take more than before, {over}{beside}", counted(worse, noun)),
        Verdict::Passed => format!("passed: no {noun} takes more than before, {over}{beside}"),
        Verdict::Inconclusive => {
            "inconclusive: whether anything takes more than before cannot be told".to_owned()
        }
    }
}

fn noun(by: By) -> &'static str {
    match by {
        By::Function => "function",
        By::Stack => "stack",
        By::Module => "module",
    }
}

/// What was compared: base and new.
pub(super) fn sides(diff: &Diff) -> [String; 2] {
    let line = |name: &str, side: &SideSummary| {
        let processes = side.processes.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", ");
        let (traces, samples) = (counted(side.traces, "trace"), counted(side.samples, "sample"));
        let (weight, named) = (span(side.weight_ns), side.named_pct);
        format!("{name}  {traces} of {processes}: {weight} in {samples}, {named:.0} % named from symbols")
    };
    [line("base", &diff.base), line("new ", &diff.new)]
}

/// What the rows are.
pub(super) fn heading(diff: &Diff) -> String {
    let title = match diff.by {
        By::Function => "Functions",
        By::Stack => "Stacks",
        By::Module => "Modules",
    };
    let own = match (diff.by, diff.total) {
        (By::Stack, _) => "",
        (_, true) => " with callees",
        (_, false) => " own",
    };
    let whole = match diff.absolute {
        true => "in percent of the base's mean trace",
        false => "in percent of each side",
    };
    let weight = diff.weight.title();
    let confidence = diff.confidence_pct;
    format!("{title} by their{own} {weight}, {whole}; bounds hold for all rows at once with {confidence} %")
        .replace("their with callees", "their")
}

fn row_lines(row: &DiffRow, by: By, columns: usize) -> Vec<String> {
    let bound = |bound: Option<f64>| bound.map_or("-".to_owned(), |pct| format!("{pct:+.2}"));
    let figures = format!(
        "  {:>6.2} % {:>7.2} % {:>+11.2} {:>11} {:>11}  {:<9}",
        row.base_pct,
        row.new_pct,
        row.difference_pct,
        bound(row.low_pct),
        bound(row.high_pct),
        row.change.as_str(),
    );
    let mut names = row_names(row, by);
    let module = names.pop().unwrap_or_default();
    let mut lines = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let module = if at == 0 && !module.is_empty() { format!("  {module}") } else { String::new() };
        let name = cut(name, columns.saturating_sub(width(&module)).max(LEAST_NAME)).into_owned();
        let before = if at == 0 { figures.clone() } else { pad("", width(&figures)) };
        lines.push(format!("{before} {name}{module}").trim_end().to_owned());
    }
    lines
}

/// Lines of a row's name, innermost function first, then its module; printable.
pub(super) fn row_names(row: &DiffRow, by: By) -> Vec<String> {
    let shown = |name: &str| printable(name).into_owned();
    if !row.stack.is_empty() {
        let callers = row.stack.iter().rev().enumerate();
        let mut names: Vec<String> = callers
            .map(|(at, name)| if at == 0 { shown(name) } else { format!("< {}", shown(name)) })
            .collect();
        if names.len() > STACK_FUNCTIONS {
            let more = names.len() - STACK_FUNCTIONS + 1;
            names.truncate(STACK_FUNCTIONS - 1);
            names.push(format!("< … {} more", count(more as u64)));
        }
        names.push(shown(&row.module));
        return names;
    }
    match &row.function {
        Some(function) => vec![shown(function), shown(&row.module)],
        None if by != By::Module => vec![shown(&unnamed(&row.module)), String::new()],
        None if row.module.is_empty() => vec!["(no module)".to_owned(), String::new()],
        None => vec![shown(&row.module), String::new()],
    }
}

/// Functions of a stack that are shown.
const STACK_FUNCTIONS: usize = 8;
