//! Lists of groups as text.

use super::groups::{GroupRow, GroupStats, Recorded};
use super::keys::GroupKey;
use super::page::{CountedTotal, Page, amount_columns, fitted, percent};
use super::timeline::{Bars, bar_columns};
use std::io;
use stk_base::text::{capital, count, counted, span, width};
use stk_profile::profile::Weight;
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Columns of a value where no terminal limits them; longer ones only lose their alignment.
const WIDEST: usize = 60;
/// The fewest columns of a value, however narrow the terminal.
const LEAST: usize = 12;
/// Columns of the means of traces.
const EACH: usize = 40;
/// Between two columns of values.
const GAP: usize = 2;

/// `CPU time by function, module`.
pub(super) fn heading(groups: &GroupStats, title: &str) -> String {
    let keys: Vec<_> = groups.keys.iter().map(GroupKey::name).collect();
    format!("{} by {}", capital(title), keys.join(", "))
}

/// Prints a list below its heading.
pub(super) fn print(groups: &GroupStats, whole: CountedTotal, page: &mut Page<'_>) -> io::Result<()> {
    let of_frames = groups.keys.iter().any(GroupKey::is_of_frames);
    let timelines = groups.rows.iter().filter_map(|row| row.timeline.as_ref());
    let bars = Bars::of(timelines, bar_columns(page.options.columns), page.options.ascii);
    // One trace needs no mean.
    let traces = groups.rows.iter().filter_map(|row| row.recorded).map(|recorded| recorded.traces);
    let each = traces.fold(0, u64::saturating_add) > 1;
    let before = if of_frames { 51 } else { 31 }
        + if each { EACH } else { 0 }
        + bars.as_ref().map_or(0, |bars| GAP + bars.columns);
    let most = most_columns(groups, before, page.options.columns);
    let mut columns = amount_columns("self").to_vec();
    if of_frames {
        let [total, share] = amount_columns("total");
        columns.extend([total.gap(1).at_least(10), share]);
    }
    columns.push(Column::right("waits").gap(1).at_least(11));
    if each {
        columns.extend(["traces", "per trace", "of a processor"].map(Column::right));
    }
    let limit = |most: Option<usize>| Column::left("").at_most(most.unwrap_or(WIDEST));
    columns.extend(most.iter().map(|most| limit(*most)));
    columns.extend(bars.as_ref().map(|bars| Column::left(bars.title())));
    let mut table = Table::new(columns);
    for row in &groups.rows {
        let mut cells = whole.figures(row.own.weight_ns).to_vec();
        if of_frames {
            cells.extend(whole.figures(row.total.weight_ns));
        }
        cells.push(span(row.waits.weight_ns));
        if each {
            cells.extend(of_each(row, whole));
        }
        for (value, most) in row.values.iter().zip(&most) {
            cells.push(fitted(&printable(value), most.unwrap_or(usize::MAX)).into_owned());
        }
        cells.extend(bars.as_ref().map(|bars| bars.line(row.timeline.as_ref())));
        table.row(cells);
    }
    if groups.others > 0 {
        let mut cells = whole.figures(groups.others_self.weight_ns).to_vec();
        cells.resize(2 + if of_frames { 2 } else { 0 } + 1 + if each { 3 } else { 0 }, String::new());
        cells.push(format!("{} (--top 0 lists all)", counted(groups.others, "other")));
        table.row(cells);
    }
    page.table(&table)
}

/// The number of a group's traces, what each has in the mean, and that as a part of one processor.
fn of_each(row: &GroupRow, whole: CountedTotal) -> [String; 3] {
    let Recorded { traces, duration_ns } = row.recorded.unwrap_or_default();
    let each = whole.amount(row.own.weight_ns / traces.max(1));
    let processor =
        if whole.weight == Weight::Cpu { percent(row.own.weight_ns, duration_ns) } else { "-".to_owned() };
    [count(traces), each, processor]
}

/// By key: the most columns that a value has, so that all fit a terminal with `columns`; `None`:
/// there is no terminal. `before` stand before the values.
fn most_columns(groups: &GroupStats, before: usize, columns: Option<usize>) -> Vec<Option<usize>> {
    let Some(all) = columns else { return vec![None; groups.keys.len()] };
    let longest = |at: usize| groups.rows.iter().map(|row| width(&printable(&row.values[at]))).max();
    let mut columns: Vec<usize> = (0..groups.keys.len()).map(|at| longest(at).unwrap_or(0)).collect();
    // The widest gives way, until all fit.
    let room = all.saturating_sub(before + GAP * columns.len());
    while columns.iter().sum::<usize>() > room {
        let Some(widest) = columns.iter_mut().max().filter(|widest| **widest > LEAST) else { break };
        *widest -= 1;
    }
    columns.into_iter().map(Some).collect()
}
