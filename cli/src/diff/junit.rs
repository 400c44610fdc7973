//! A comparison as JUnit's XML, which build servers show as tests: each row is a test, and fails if
//! it takes more than before.

use super::table::{row_names, sides, verdict};
use super::{Change, Diff, Verdict};
use std::fmt::Write as _;
use stk_output::formats::in_xml;
use stk_schema::text::printable;

/// The comparison as one test suite. What is inconclusive is an error, rows that cannot be compared
/// are skipped.
pub fn junit(diff: &Diff) -> String {
    let failures = diff.rows.iter().filter(|row| row.change == Change::Worse).count();
    let unjudged = |change| matches!(change, Change::Unmatched | Change::Unjudged);
    let skipped = diff.rows.iter().filter(|row| unjudged(row.change)).count();
    let errors = usize::from(diff.verdict == Verdict::Inconclusive);
    let tests = diff.rows.len() + 1;
    let counts =
        format!("tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\"");
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(out, "<testsuites name=\"stk diff\" {counts}>");
    let _ = writeln!(out, "  <testsuite name=\"stk diff\" {counts}>");
    let verdict = verdict(diff);
    out += "    <testcase classname=\"stk diff\" name=\"conclusive\">\n";
    if diff.verdict == Verdict::Inconclusive {
        let reasons = escaped(&diff.inconclusive.join("; "));
        let _ = writeln!(out, "      <error type=\"inconclusive\" message=\"{reasons}\"/>");
    }
    let _ = writeln!(
        out,
        "      <system-out>{}</system-out>\n    </testcase>",
        escaped(&format!("{verdict}\n{}", sides(diff).join("\n")))
    );
    for row in &diff.rows {
        let mut names = row_names(row, diff.by);
        let module = names.pop().unwrap_or_default();
        let class = if module.is_empty() { "stk diff" } else { &module };
        let name = names.join(" ");
        let _ = write!(out, "    <testcase classname=\"{}\" name=\"{}\"", escaped(class), escaped(&name));
        let figures =
            format!("{:.2} % before, {:.2} % now: {:+.2}", row.base_pct, row.new_pct, row.difference_pct);
        let least = row.low_pct.map_or(String::new(), |low| format!(", at least {low:+.2}"));
        let child = match row.change {
            Change::Worse => format!("<failure type=\"worse\" message=\"{figures}{least}\"/>"),
            Change::Unmatched => format!("<skipped message=\"unmatched for lack of symbols: {figures}\"/>"),
            Change::Unjudged => format!("<skipped message=\"too few traces to judge: {figures}\"/>"),
            Change::Better | Change::Unproved | Change::Small => {
                format!("<system-out>{}: {figures}{least}</system-out>", row.change.as_str())
            }
        };
        let _ = writeln!(out, ">{child}</testcase>");
    }
    out + "  </testsuite>\n</testsuites>\n"
}

/// A text as XML has it. Characters that XML forbids, even as references, are written as stk writes
/// them elsewhere.
fn escaped(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    let mut out = String::new();
    for c in in_xml(&lines.join("\n")).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            other => out.push(other),
        }
    }
    out
}
