//! A comparison as a table for terminals.

use super::{Axis, Change, Diff, DiffRow, SideSummary, Verdict, unnamed};
use stk_base::text::{count, counted, cut, span, width};
use stk_schema::table::{Column, Table};
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
    // Rows with a difference come before those without one.
    let differs = diff.rows.iter().any(|row| row.difference_pct != 0.0);
    if !differs && !diff.rows.is_empty() {
        lines.push("  none differs".to_owned());
    } else {
        lines.extend(rows(diff, name_columns));
    }
    if differs && diff.rows_left_out > 0 {
        let rows = counted(diff.rows_left_out, "smaller difference");
        lines.push(format!("  and {rows}: --top 0 lists all"));
    }
    if !diff.unmatched.is_empty() {
        lines.push(String::new());
        lines.push("Unmatched for lack of symbols, and not judged".to_owned());
        let mut table = Table::new([
            Column::right("base").at_least(8),
            Column::right("named").gap(1).at_least(8),
            Column::right("new").gap(1).at_least(9),
            Column::right("named").gap(1).at_least(8),
            Column::left("lacks"),
            Column::left(""),
        ]);
        for module in &diff.unmatched {
            table.row([
                format!("{:.1} %", module.base_pct),
                format!("{:.0} %", module.base_named_pct),
                format!("{:.1} %", module.new_pct),
                format!("{:.0} %", module.new_named_pct),
                module.lacks.to_owned(),
                printable(&module.module).into_owned(),
            ]);
        }
        lines.extend(table.lines());
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
            "inconclusive: whether anything takes more than before is unknown".to_owned()
        }
    }
}

fn noun(by: Axis) -> &'static str {
    match by {
        Axis::Function => "function",
        Axis::Stack => "stack",
        Axis::Module => "module",
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
        Axis::Function => "Functions",
        Axis::Stack => "Stacks",
        Axis::Module => "Modules",
    };
    let own = match (diff.by, diff.total) {
        (Axis::Stack, _) => "",
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

/// The rows, each with the lines of its name.
fn rows(diff: &Diff, columns: usize) -> Vec<String> {
    let mut table = Table::new([
        Column::right("base").at_least(8),
        Column::right("new").gap(1).at_least(9),
        Column::right("difference").gap(1).at_least(11),
        Column::right("at least").gap(1).at_least(11),
        Column::right("at most").gap(1).at_least(11),
        Column::left("").at_least(9),
        Column::left("").gap(1),
    ]);
    let bound = |bound: Option<f64>| bound.map_or("-".to_owned(), |pct| format!("{pct:+.2}"));
    for row in &diff.rows {
        let mut figures = vec![
            format!("{:.2} %", row.base_pct),
            format!("{:.2} %", row.new_pct),
            format!("{:+.2}", row.difference_pct),
            bound(row.low_pct),
            bound(row.high_pct),
            row.change.as_str().to_owned(),
        ];
        let mut names = row_names(row, diff.by);
        let mut module = names.pop().filter(|module| !module.is_empty()).map(|module| format!("  {module}"));
        for name in names {
            let module = module.take().unwrap_or_default();
            let name = cut(&name, columns.saturating_sub(width(&module)).max(LEAST_NAME)).into_owned();
            let none = vec![String::new(); figures.len()];
            let before = std::mem::replace(&mut figures, none);
            table.row(before.into_iter().chain([name + &module]));
        }
    }
    table.lines()
}

/// Lines of a row's name, innermost function first, then its module; printable.
pub(super) fn row_names(row: &DiffRow, by: Axis) -> Vec<String> {
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
        None if by != Axis::Module => vec![shown(&unnamed(&row.module)), String::new()],
        None if row.module.is_empty() => vec!["(no module)".to_owned(), String::new()],
        None => vec![shown(&row.module), String::new()],
    }
}

/// Functions of a stack that are shown.
const STACK_FUNCTIONS: usize = 8;
