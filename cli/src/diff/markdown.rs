//! A comparison as Markdown, for comments on a change.

use super::table::{heading, row_names, sides, verdict};
use super::{Change, Diff};
use stk_schema::text::printable;

/// The comparison in GitHub's Markdown.
pub fn markdown(diff: &Diff) -> String {
    let mut out = format!("### {}\n\n", verdict(diff));
    for reason in &diff.inconclusive {
        out += &format!("* {}\n", printable(reason));
    }
    for side in sides(diff) {
        out += &format!("* {}\n", escaped(&side));
    }
    out += &format!("\n{}\n\n", heading(diff));
    out += "| | base | new | difference | at least | at most | |\n|---|--:|--:|--:|--:|--:|---|\n";
    let bound = |bound: Option<f64>| bound.map_or(String::new(), |pct| format!("{pct:+.2}"));
    for row in &diff.rows {
        let names = row_names(row, diff.by);
        let names: Vec<String> =
            names.iter().filter(|name| !name.is_empty()).map(|name| code(name)).collect();
        let change = match row.change {
            Change::Worse => "**worse**",
            other => other.as_str(),
        };
        out += &format!(
            "| {} | {:.2} % | {:.2} % | {:+.2} | {} | {} | {change} |\n",
            names.join(" "),
            row.base_pct,
            row.new_pct,
            row.difference_pct,
            bound(row.low_pct),
            bound(row.high_pct),
        );
    }
    if diff.rows_left_out > 0 {
        out += &format!("\nSmaller differences left out: {}\n", diff.rows_left_out);
    }
    if !diff.unmatched.is_empty() {
        out += "\nUnmatched for lack of symbols, and not judged:\n\n";
        out += "| module | base | named | new | named | lacks |\n|---|--:|--:|--:|--:|---|\n";
    }
    for module in &diff.unmatched {
        out += &format!(
            "| {} | {:.1} % | {:.0} % | {:.1} % | {:.0} % | {} |\n",
            code(&printable(&module.module)),
            module.base_pct,
            module.base_named_pct,
            module.new_pct,
            module.new_named_pct,
            module.lacks,
        );
    }
    out
}

/// A text as a code span of a table. A span begins and ends with more backticks than stand together
/// in it; the bar between cells is escaped in spans, too.
fn code(text: &str) -> String {
    let mut fence = "`".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    let text = text.replace('|', "\\|");
    if fence.len() > 1 { format!("{fence} {text} {fence}") } else { format!("`{text}`") }
}

/// A text without a meaning in Markdown.
fn escaped(text: &str) -> String {
    let special = |c: char| r"\`*_{}[]<>()#|~&!".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_whole_in_code_spans() {
        // CommonMark 6.1; GitHub's tables take \| for a bar in spans, too.
        assert_eq!(code("work"), "`work`");
        assert_eq!(code("a::operator|="), r"`a::operator\|=`");
        assert_eq!(code("`anonymous namespace'::f"), "`` `anonymous namespace'::f ``");
        assert_eq!(escaped("a_b*[c] <d>"), r"a\_b\*\[c\] \<d\>");
    }
}
