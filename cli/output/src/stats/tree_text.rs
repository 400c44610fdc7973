//! Call trees as text: functions that only hand on what they get are in one line.

use super::call_tree::{CallTreeStats, Direction, TreeRow, has_all};
use super::page::{AnswerTotal, Page, names_module, percent, shorter};
use std::collections::HashMap;
use std::io;
use stk_base::text::{capital, count, cut, width};
use stk_schema::text::printable;

/// The fewest columns of the functions of a line, however narrow the terminal and deep the tree.
const LEAST: usize = 30;
/// Columns of a line's functions where no terminal limits them.
const WIDEST: usize = 160;
/// Columns by which each level is moved to the right, and how many levels are.
const STEP: usize = 2;
const MOST_STEPS: usize = 12;

/// Functions in one line: the first has its callers in other lines, the last its callees.
struct TreeLine<'a> {
    rows: Vec<&'a TreeRow>,
    level: usize,
}

/// What the tree is of.
pub(super) fn heading(tree: &CallTreeStats, of: AnswerTotal) -> String {
    let title = of.whole.weight.title();
    let whole = of.whole.amount(tree.whole.weight_ns);
    let chosen = match tree.roots {
        0 if tree.direction == Direction::Tree => String::new(),
        0 => "no function: none matches (--group-by function --top 0 lists them)".to_owned(),
        1 => format!("the function that matches: {whole} of {title} in it"),
        roots => format!("the {} functions that match: {whole} of {title} in them", count(roots)),
    };
    match tree.direction {
        Direction::Tree => format!("{} by call tree", capital(title)),
        Direction::Callers => format!("Callers of {chosen}"),
        Direction::Callees => format!("Callees of {chosen}"),
    }
}

/// Prints a tree below its heading.
pub(super) fn print(tree: &CallTreeStats, of: AnswerTotal, page: &mut Page<'_>) -> io::Result<()> {
    let lines = lines(tree);
    if lines.is_empty() {
        return Ok(());
    }
    let both = of.all_ns != tree.whole.weight_ns;
    let own = tree.direction != Direction::Callers;
    let mut heading = format!("{:>11}{:8}", "total", "");
    if both {
        heading += &format!("{:>8}", "of all");
    }
    if own {
        heading += &format!("{:>11}", "self");
    }
    page.line(&heading)?;
    let same_name = same_names(tree);
    let mut modules: Vec<&str> = Vec::new();
    // A sum of others without weight says nothing.
    for line in
        lines.iter().filter(|line| line.rows.iter().any(|row| row.others == 0 || row.total.weight_ns > 0))
    {
        let (Some(first), Some(last)) = (line.rows.first(), line.rows.last()) else { continue };
        let mut text = format!(
            "  {:>9} {}",
            of.whole.amount(first.total.weight_ns),
            percent(first.total.weight_ns, tree.whole.weight_ns)
        );
        if both {
            text += &format!(" {}", percent(first.total.weight_ns, of.all_ns));
        }
        if own {
            text += &format!(
                " {:>10}",
                if last.others > 0 { String::new() } else { of.whole.amount(last.own.weight_ns) }
            );
        }
        let indent = 2 + STEP * line.level.min(MOST_STEPS);
        let columns = match page.options.columns {
            Some(all) => all.saturating_sub(width(&text) + indent).max(LEAST),
            None => WIDEST,
        };
        modules.truncate(line.level);
        let outer = modules.last().copied().unwrap_or_default();
        text += &" ".repeat(indent);
        text += &functions(line, tree.direction, outer, &same_name, columns);
        modules.push(&last.module);
        page.line(&text)?;
    }
    Ok(())
}

/// The rows as lines. A sum of others has one only beside functions that are shown.
fn lines(tree: &CallTreeStats) -> Vec<TreeLine<'_>> {
    let rows = &tree.rows;
    let is_nothing = |row: &TreeRow| row.others > 0 && row.total.weight_ns == 0;
    let mut below = vec![0u32; rows.len()];
    for parent in rows.iter().filter(|row| !is_nothing(row)).filter_map(|row| row.parent) {
        below[parent] += 1;
    }
    let mut lines: Vec<TreeLine<'_>> = Vec::new();
    // By row: its line.
    let mut of_row: Vec<usize> = Vec::with_capacity(rows.len());
    for row in rows {
        let parent = row.parent.map(|parent| (parent, of_row[parent]));
        match parent {
            Some((_, line)) if is_nothing(row) => of_row.push(line),
            Some((parent, line)) if below[parent] == 1 && row.others > 0 => of_row.push(line),
            Some((parent, line)) if below[parent] == 1 && has_all(row.total, rows[parent].total) => {
                lines[line].rows.push(row);
                of_row.push(line);
            }
            _ => {
                let level = parent.map_or(0, |(_, line)| lines[line].level + 1);
                of_row.push(lines.len());
                lines.push(TreeLine { rows: vec![row], level });
            }
        }
    }
    lines
}

/// Names that functions of several modules have.
fn same_names(tree: &CallTreeStats) -> HashMap<&str, Option<&str>> {
    let mut modules: HashMap<&str, Option<&str>> = HashMap::new();
    for row in &tree.rows {
        let only = modules.entry(&row.function).or_insert(Some(&row.module));
        if *only != Some(&row.module) {
            *only = None;
        }
    }
    modules.retain(|_, only| only.is_none());
    modules
}

/// The functions of a line. If they are too many for it, the last is shown, then the first, then
/// those before the last. The module of the last is shown where it is another than `outer`.
fn functions(
    line: &TreeLine<'_>,
    direction: Direction,
    outer: &str,
    same_name: &HashMap<&str, Option<&str>>,
    columns: usize,
) -> String {
    if let [TreeRow { others: others @ 1.., .. }] = line.rows[..] {
        return format!("{} {}", count(*others), if *others == 1 { "other" } else { "others" });
    }
    let arrow = if direction == Direction::Callers { " < " } else { " > " };
    let last = line.rows.len() - 1;
    let name = |row: &TreeRow| {
        let name = printable(&row.function).into_owned();
        match same_name.contains_key(&*row.function) && !row.module.is_empty() {
            true => format!("{name} [{}]", printable(&row.module)),
            false => name,
        }
    };
    let mut names: Vec<String> = line.rows.iter().map(|row| name(row)).collect();
    let TreeRow { function, module, .. } = line.rows[last];
    let reported = format!(" [{}]", printable(module));
    if module != outer
        && !module.is_empty()
        && !names_module(function, module)
        && !names.iter().any(|name| name.ends_with(&reported))
    {
        names[last] += &reported;
    }
    shortened(&names, arrow, columns)
}

/// Names with arrows between them. Where they are too long, the first and the last are shown, and
/// of the others as many next to the last as fit.
fn shortened(names: &[String], arrow: &str, columns: usize) -> String {
    let whole = names.join(arrow);
    if width(&whole) <= columns {
        return whole;
    }
    let names: Vec<String> = names.iter().map(|name| shorter(name)).collect();
    let whole = names.join(arrow);
    if width(&whole) <= columns {
        return whole;
    }
    let [first, middle @ .., last] = &names[..] else { return cut(&whole, columns).into_owned() };
    let gap = width(arrow);
    let left_out =
        |hidden: usize| if hidden > 0 { format!("… {hidden} …{arrow}") } else { String::new() };
    let ends = width(first) + gap + width(last);
    let mut hidden = middle.len();
    let mut next = 0;
    while let Some(name) = hidden.checked_sub(1).map(|at| &middle[at]) {
        let more = width(name) + gap;
        if ends + next + more + width(&left_out(hidden - 1)) > columns {
            break;
        }
        next += more;
        hidden -= 1;
    }
    // What the first and the last have together.
    let room = columns.saturating_sub(gap + next + width(&left_out(hidden)));
    let first_columns = width(first).min((room / 2).max(room.saturating_sub(width(last))));
    let mut text = format!("{}{arrow}{}", cut(first, first_columns), left_out(hidden));
    for name in &middle[hidden..] {
        text += name;
        text += arrow;
    }
    text + &cut(last, room - first_columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Amount;

    #[test]
    fn what_weighs_nothing_breaks_no_line() {
        let amount = |samples, weight_ns| Amount { samples, weight_ns };
        let row = |parent, function: &str, others, total| TreeRow {
            depth: 0,
            parent,
            function: function.to_owned(),
            module: String::new(),
            others,
            own: Amount::default(),
            total,
        };
        let of = |nothing| {
            let rows = vec![
                row(None, "main", 0, amount(12, 90)),
                row(Some(0), "loops", 0, amount(10, 90)),
                row(Some(0), "", 1, amount(2, nothing)),
            ];
            CallTreeStats { direction: Direction::Tree, roots: 1, whole: amount(12, 90), rows }
        };
        let names =
            |tree: &CallTreeStats| -> Vec<usize> { lines(tree).iter().map(|line| line.rows.len()).collect() };
        assert_eq!(names(&of(0)), [2], "main > loops");
        assert_eq!(names(&of(1)), [1, 1, 1]);
    }

    #[test]
    fn too_long_lines_keep_their_ends() {
        let names = ["start", "one", "two", "three", "work"].map(str::to_owned);
        let of = |columns| shortened(&names, " > ", columns);
        assert_eq!(of(32), "start > one > two > three > work");
        assert_eq!(of(31), "start > … 2 … > three > work");
        assert_eq!(of(27), "start > … 3 … > work");
        assert_eq!(of(18), "s…t > … 3 … > work");
        let long = ["first_function", "last_function"].map(str::to_owned);
        assert_eq!(shortened(&long, " < ", 23), "first_…ion < last_f…ion");
        let anonymous = ["start", "`anonymous namespace'::work"].map(str::to_owned);
        assert_eq!(shortened(&anonymous, " > ", 40), anonymous.join(" > "));
        assert_eq!(shortened(&anonymous, " > ", 24), "start > (anon)::work");
    }
}
