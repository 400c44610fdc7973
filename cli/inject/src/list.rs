//! The output of `inject ps`: a table for people, JSON for programs.

use serde::Serialize;
use stk_schema::table::{Column, Table};
use stk_schema::text::printable;

/// Version of the JSON. It increases with a change that breaks readers.
pub(crate) const VERSION: u32 = 1;

/// One process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct ProcessRow {
    pub pid: u32,
    /// Program file name.
    pub name: String,
    /// `x64`, `arm64`, `x86`; `null` if unknown.
    pub arch: Option<String>,
    /// Its .NET runtime (`coreclr`, `clr`, `single-file`); `null` if it has none or if that is
    /// unknown.
    pub dotnet: Option<&'static str>,
    /// Whether `inject --pid` would work.
    pub recordable: bool,
    /// Whether it is being recorded now.
    pub recording: bool,
    /// Why it cannot be recorded; `null` if it can.
    pub reason: Option<String>,
}

/// JSON: `{"version":1,"processes":[…]}`, one process a line.
pub(crate) fn json(processes: &[ProcessRow]) -> String {
    let lines: Vec<String> =
        processes.iter().filter_map(|process| serde_json::to_string(process).ok()).collect();
    format!("{{\"version\":{VERSION},\"processes\":[\n{}\n]}}\n", lines.join(",\n"))
}

/// A table with a heading, as wide as its contents.
pub(crate) fn table(processes: &[ProcessRow]) -> String {
    let mut table = Table::new([
        Column::right("PID").gap(0).at_least(7),
        Column::left("NAME"),
        Column::left("ARCH").at_least(5),
        Column::left(".NET").at_least(11),
        Column::left("RECORDABLE"),
    ]);
    for process in processes {
        let recordable = match &process.reason {
            _ if process.recording => "recording now".to_owned(),
            Some(reason) => format!("no: {}", printable(reason)),
            None => "yes".to_owned(),
        };
        table.row([
            process.pid.to_string(),
            printable(&process.name).into_owned(),
            process.arch.as_deref().unwrap_or("?").to_owned(),
            process.dotnet.unwrap_or("-").to_owned(),
            recordable,
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<ProcessRow> {
        let one = ProcessRow {
            pid: 4404,
            name: "größe.exe".to_owned(),
            arch: Some("x64".to_owned()),
            dotnet: Some("coreclr"),
            recordable: true,
            recording: false,
            reason: None,
        };
        let two = ProcessRow {
            pid: 4,
            name: "System".to_owned(),
            arch: None,
            dotnet: None,
            recordable: false,
            recording: false,
            reason: Some("access denied".to_owned()),
        };
        vec![one, two]
    }

    #[test]
    fn the_table_lines_up() {
        assert_eq!(
            table(&samples()),
            "    PID  NAME       ARCH   .NET         RECORDABLE\n   \
             4404  größe.exe  x64    coreclr      yes\n      \
             4  System     ?      -            no: access denied\n"
        );
    }

    #[test]
    fn a_wide_name_lines_up_by_its_columns() {
        let mut rows = samples();
        // Unicode, UAX #11: each of the two characters takes two columns.
        rows[0].name = "名前.exe".to_owned();
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "   4404  名前.exe  x64    coreclr      yes");
        assert_eq!(lines[2], "      4  System    ?      -            no: access denied");
    }

    #[test]
    fn a_name_cannot_control_the_terminal() {
        let [mut one, _] = <[ProcessRow; 2]>::try_from(samples()).unwrap();
        one.name = "\u{1b}[2J\n.exe".to_owned();
        one.reason = Some("a policy\u{1b}[2J\nof it".to_owned());
        let text = table(&[one]);
        assert!(!text.contains('\u{1b}') && text.lines().count() == 2, "{text:?}");
    }

    #[test]
    fn the_json_is_versioned_and_holds_every_field() {
        let value: serde_json::Value = serde_json::from_str(&json(&samples())).expect("JSON");
        assert_eq!(value["version"], 1);
        assert_eq!(value["processes"][0]["name"], "größe.exe");
        assert_eq!(value["processes"][0]["dotnet"], "coreclr");
        assert_eq!(value["processes"][0]["recordable"], true);
        assert_eq!(value["processes"][1]["arch"], serde_json::Value::Null);
        assert_eq!(value["processes"][1]["reason"], "access denied");
    }
}
