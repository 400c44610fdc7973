//! Lists of groups as text.

use super::groups::{GroupRow, GroupStats};
use super::keys::GroupKey;
use super::page::{Page, Whole, percent};
use super::timeline::{Bars, bar_columns};
use stk_base::text::{capital, counted, cut, pad, span, width};
use std::io;
use stk_schema::text::printable;

/// Columns of a value where no terminal limits them; longer ones only lose their alignment.
const WIDEST: usize = 60;
/// The fewest columns of a value, however narrow the terminal.
const LEAST: usize = 12;
/// Between two columns of values.
const GAP: usize = 2;

/// `CPU time by function, module`.
pub(super) fn heading(groups: &GroupStats, title: &str) -> String {
    let keys: Vec<_> = groups.keys.iter().map(GroupKey::name).collect();
    format!("{} by {}", capital(title), keys.join(", "))
}

/// Prints a list below its heading.
pub(super) fn print(groups: &GroupStats, whole: Whole, page: &mut Page<'_>) -> io::Result<()> {
    let of_frames = groups.keys.iter().any(GroupKey::is_of_frames);
    let timelines = groups.rows.iter().filter_map(|row| row.timeline.as_ref());
    let bars = Bars::of(timelines, bar_columns(page.options.columns), page.options.ascii);
    let mut names = if of_frames {
        "        self              total             waits".to_owned()
    } else {
        "        self             waits".to_owned()
    };
    if let Some(bars) = &bars {
        names += &format!("  {}", bars.title());
    }
    page.line(&names)?;
    let before = if of_frames { 51 } else { 31 } + bars.as_ref().map_or(0, |bars| GAP + bars.columns);
    let values = Values::of(groups, before, page);
    for row in &groups.rows {
        let mut line = format!(
            "  {:>9} {}",
            whole.amount(row.own.weight_ns),
            percent(row.own.weight_ns, whole.counted_ns)
        );
        if of_frames {
            let total = row.total.weight_ns;
            line += &format!(" {:>10} {}", whole.amount(total), percent(total, whole.counted_ns));
        }
        line += &format!(" {:>11}", span(row.waits.weight_ns));
        if let Some(bars) = &bars {
            line += &format!("  {}", bars.line(row.timeline.as_ref()));
        }
        page.line(&format!("{line}{}", values.line(row)))?;
    }
    if groups.others > 0 {
        let own = groups.others_self.weight_ns;
        let others = format!("{} (--top 0 lists all)", counted(groups.others, "other"));
        page.line(&format!(
            "  {:>9} {}{}{others}",
            whole.amount(own),
            percent(own, whole.counted_ns),
            " ".repeat(before - 18 + GAP)
        ))?;
    }
    Ok(())
}

/// The columns of the values.
struct Values {
    /// Columns of each key, and how many a value has at most.
    columns: Vec<usize>,
    most: Vec<usize>,
}

impl Values {
    fn of(groups: &GroupStats, before: usize, page: &Page<'_>) -> Values {
        let longest = |at: usize| groups.rows.iter().map(|row| width(&printable(&row.values[at]))).max();
        let mut columns: Vec<usize> = (0..groups.keys.len()).map(|at| longest(at).unwrap_or(0)).collect();
        let Some(all) = page.options.columns else {
            let most = vec![usize::MAX; columns.len()];
            columns.iter_mut().for_each(|columns| *columns = (*columns).min(WIDEST));
            return Values { columns, most };
        };
        // The widest gives way, until all fit.
        let room = all.saturating_sub(before + GAP * columns.len());
        while columns.iter().sum::<usize>() > room {
            let Some(widest) = columns.iter_mut().max().filter(|widest| **widest > LEAST) else { break };
            *widest -= 1;
        }
        Values { most: columns.clone(), columns }
    }

    fn line(&self, row: &GroupRow) -> String {
        let mut line = String::new();
        for ((value, &columns), &most) in row.values.iter().zip(&self.columns).zip(&self.most) {
            let value = printable(value);
            line += &" ".repeat(GAP);
            line += &pad(&cut(&value, most), columns);
        }
        line
    }
}
