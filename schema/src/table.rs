//! Tables for people: columns as wide as their texts.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use unicode_width::UnicodeWidthStr;

/// A column of a [`Table`].
#[derive(Clone, Debug)]
pub struct Column {
    heading: String,
    right: bool,
    gap: usize,
    least: usize,
    most: usize,
}

impl Column {
    /// Texts, which begin below each other. Two spaces stand before them.
    pub fn left(heading: impl Into<String>) -> Column {
        Column { heading: heading.into(), right: false, gap: 2, least: 0, most: usize::MAX }
    }

    /// Numbers, which end below each other. Two spaces stand before them.
    pub fn right(heading: impl Into<String>) -> Column {
        Column { right: true, ..Column::left(heading) }
    }

    /// Spaces before the column.
    pub fn gap(self, gap: usize) -> Column {
        Column { gap, ..self }
    }

    /// Places that the column takes, however short its texts.
    pub fn at_least(self, least: usize) -> Column {
        Column { least, ..self }
    }

    /// Places of the column, however long its texts: a longer one only loses its alignment.
    pub fn at_most(self, most: usize) -> Column {
        Column { most, ..self }
    }
}

/// Rows of texts in columns. A line has no spaces at its end.
///
/// ```
/// use stk_schema::table::{Column, Table};
/// let mut table = Table::new([Column::right("time").gap(0), Column::left("function")]);
/// table.row(["12.5 s".to_string(), "main".to_string()]);
/// assert_eq!(table.text(), "  time  function\n12.5 s  main\n");
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Table {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row, which may have fewer texts than there are columns.
    pub fn row(&mut self, texts: impl IntoIterator<Item = String>) {
        self.rows.push(texts.into_iter().collect());
    }

    /// The heading, if a column has one, and the rows.
    pub fn lines(&self) -> Vec<String> {
        let headings: Vec<String> = self.columns.iter().map(|column| column.heading.clone()).collect();
        let with_heading = headings.iter().any(|heading| !heading.is_empty());
        let rows = || with_heading.then_some(&headings).into_iter().chain(&self.rows);
        let wide = |at: usize, column: &Column| {
            let widest = rows().filter_map(|row| row.get(at)).map(|text| text.width()).max().unwrap_or(0);
            widest.min(column.most).max(column.least)
        };
        let widths: Vec<usize> =
            self.columns.iter().enumerate().map(|(at, column)| wide(at, column)).collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for ((text, column), &width) in row.iter().zip(&self.columns).zip(&widths) {
                let spaces = width.saturating_sub(text.width());
                let (before, behind) = if column.right { (spaces, 0) } else { (0, spaces) };
                line.extend(core::iter::repeat_n(' ', column.gap + before));
                line.push_str(text);
                line.extend(core::iter::repeat_n(' ', behind));
            }
            line.trim_end().to_string()
        };
        rows().map(line).collect()
    }

    /// The lines, each with its end.
    pub fn text(&self) -> String {
        self.lines().into_iter().flat_map(|line| [line, "\n".to_string()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;

    fn row<const N: usize>(texts: [&str; N]) -> [String; N] {
        texts.map(str::to_owned)
    }

    #[test]
    fn columns_are_as_wide_as_a_terminal_shows_their_texts() {
        let columns = [
            Column::right("pid").gap(0),
            Column::left("name"),
            Column::right("cpu").at_least(5).gap(1),
            Column::left("state").at_most(3),
            Column::left(""),
        ];
        let mut table = Table::new(columns);
        // Unicode, UAX #11: these two take two places each.
        table.row(row(["7", "名前", "1 s", "on", "x"]));
        table.row(row(["12345", "app.exe", "20 ms", "waits", "y"]));
        table.row(row(["1", "a"]));
        let lines = [
            "  pid  name      cpu  state",
            "    7  名前      1 s  on   x",
            "12345  app.exe 20 ms  waits  y",
            "    1  a",
        ];
        assert_eq!(table.lines(), lines);
    }

    #[test]
    fn a_table_without_headings_is_its_rows() {
        let mut table = Table::new([Column::left("").gap(0), Column::left("")]);
        assert_eq!(table.text(), "");
        table.row(row(["a", "b"]));
        assert_eq!(table.text(), "a  b\n");
    }
}
