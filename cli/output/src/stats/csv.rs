//! Answers as comma-separated values (RFC 4180): a line of column names, then a line a row, each
//! ended by CR LF. Control characters in names are escaped, so every row is one line. A name that a
//! spreadsheet would run as a formula has `'` before it.

use super::Amount;
use super::call_tree::CallTreeStats;
use super::groups::GroupStats;
use super::question::Answer;
use std::borrow::Cow;
use stk_schema::text::printable;

impl Answer {
    /// The rows as CSV. Times are nanoseconds.
    pub fn csv(&self) -> String {
        match self {
            Answer::CallTree(tree) => tree_csv(tree),
            Answer::Groups(groups) => groups_csv(groups),
        }
    }
}

fn tree_csv(tree: &CallTreeStats) -> String {
    let mut lines = Lines::default();
    let [own, total] = [amount_names("self"), amount_names("total")].map(|names| names.to_vec());
    let names = ["row", "parent", "depth", "function", "module", "others"].map(str::to_owned).to_vec();
    lines.add([names, own, total].concat());
    for (at, row) in tree.rows.iter().enumerate() {
        let place = [at.to_string(), row.parent.map(|parent| parent.to_string()).unwrap_or_default()];
        let names = [row.depth.to_string(), row.function.clone(), row.module.clone(), row.others.to_string()];
        lines.add([&place[..], &names, &amounts(row.own), &amounts(row.total)].concat());
    }
    lines.text
}

fn groups_csv(groups: &GroupStats) -> String {
    let mut lines = Lines::default();
    let keys: Vec<String> = groups.keys.iter().map(|key| key.name().into_owned()).collect();
    let [own, total, waits] = [amount_names("self"), amount_names("total"), amount_names("waits")];
    lines.add([&keys[..], &own, &total, &waits].concat());
    for row in &groups.rows {
        lines.add([&row.values[..], &amounts(row.own), &amounts(row.total), &amounts(row.waits)].concat());
    }
    lines.text
}

fn amount_names(of: &str) -> [String; 2] {
    [format!("{of}_samples"), format!("{of}_weight_ns")]
}

fn amounts(amount: Amount) -> [String; 2] {
    [amount.samples.to_string(), amount.weight_ns.to_string()]
}

#[derive(Default)]
struct Lines {
    text: String,
}

impl Lines {
    fn add(&mut self, fields: Vec<String>) {
        for (at, field) in fields.iter().enumerate() {
            if at > 0 {
                self.text.push(',');
            }
            self.text.push_str(&quoted(&no_formula(printable(field))));
        }
        self.text.push_str("\r\n");
    }
}

/// A text that no spreadsheet takes for a formula: names come from other people's symbols and
/// traces.
fn no_formula(text: Cow<'_, str>) -> Cow<'_, str> {
    match text.starts_with(['=', '+', '-', '@']) {
        true => Cow::Owned(format!("'{text}")),
        false => text,
    }
}

/// A field, in quotes if it needs them (RFC 4180, section 2).
fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains([',', '"', '\r', '\n']) {
        Cow::Owned(format!("\"{}\"", field.replace('"', "\"\"")))
    } else {
        Cow::Borrowed(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_as_the_rfc_says() {
        let mut lines = Lines::default();
        let fields = ["plain", "a,b", "say \"x\"", "", "line\nend", "operator,"];
        lines.add(fields.map(str::to_owned).to_vec());
        assert_eq!(lines.text, "plain,\"a,b\",\"say \"\"x\"\"\",,line\\u{a}end,\"operator,\"\r\n");
    }

    #[test]
    fn names_that_begin_as_formulas_are_texts_to_spreadsheets() {
        let mut lines = Lines::default();
        let fields = ["=cmd|' /C calc'!A0", "+1", "-2+3", "@SUM(1,2)", "\t=1", "a=1", "0"];
        lines.add(fields.map(str::to_owned).to_vec());
        assert_eq!(lines.text, "'=cmd|' /C calc'!A0,'+1,'-2+3,\"'@SUM(1,2)\",\\u{9}=1,a=1,0\r\n");
    }
}
