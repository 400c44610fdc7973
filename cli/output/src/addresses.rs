//! Names of single addresses, and how far an index of a PDB agrees with its records, as
//! `stk symbols lookup` and `check` print them.

use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use stk_base::text::count;
use stk_profile::stack::{ImageName, offset_name, unnamed_function};
use stk_schema::text::printable;
use stk_symbols::pdb_records::Agreement;
use stk_symbols::{Location, Reason, Resolution, Source};

/// An address with its name.
pub struct NamedAddress<'a> {
    pub rva: u32,
    /// File name of the image or PDB.
    pub module: &'a str,
    pub name: ImageName<'a>,
    /// Why there is no better name.
    pub reason: Option<&'a Reason>,
}

/// `name+0x12`; at the function's beginning, the name alone.
fn export_text(function: &str, displacement: u32) -> String {
    if displacement == 0 { function.to_owned() } else { offset_name(function, displacement.into()) }
}

/// Adds a line of JSON for an address.
pub fn json_line(shown: &NamedAddress<'_>, out: &mut String) {
    let frame = |frame: Location<'_>| {
        json!({
            "function": frame.function, "file": frame.file, "line": frame.line, "inline": frame.inline,
            "raw": frame.raw,
        })
    };
    let (source, frames, aliases): (_, Vec<serde_json::Value>, Vec<&str>) = match &shown.name {
        ImageName::Symbols(found) => {
            let source = if found.source == Source::Pdb { "pdb" } else { "dwarf" };
            (source, found.frames().map(frame).collect(), found.aliases().collect())
        }
        ImageName::Export { raw, function, displacement } => {
            let function = &*export_text(function, *displacement);
            let export = Location { function, raw, file: None, line: None, inline: false };
            ("export", vec![frame(export)], Vec::new())
        }
        ImageName::Function { .. } | ImageName::Offset => ("none", Vec::new(), Vec::new()),
    };
    let reason = shown.reason.map(ToString::to_string);
    let rva = format!("{:#x}", shown.rva);
    let mut line = json!({ "rva": rva, "frames": frames, "source": source, "reason": reason });
    if !aliases.is_empty() {
        line["aliases"] = aliases.into();
    }
    out.push_str(&line.to_string());
    out.push('\n');
}

/// Adds the lines of text for an address.
pub fn text(shown: &NamedAddress<'_>, out: &mut String) {
    let rva = format!("{:#x}", shown.rva);
    match &shown.name {
        ImageName::Symbols(found) => symbols_text(&rva, found, out),
        ImageName::Export { function, displacement, .. } => {
            let function = export_text(function, *displacement);
            let _ = writeln!(out, "{rva:<12}{}", printable(&function));
        }
        ImageName::Function { start, displacement } => {
            let function = unnamed_function(shown.module, (*start).into());
            let function = displacement.map_or(function.clone(), |inside| export_text(&function, inside));
            let _ = writeln!(out, "{rva:<12}{}", printable(&function));
        }
        ImageName::Offset => {
            let place = offset_name(shown.module, shown.rva.into());
            let _ = writeln!(out, "{rva:<12}{}", printable(&place));
        }
    }
    if let Some(reason) = shown.reason {
        let _ = writeln!(out, "{:12}({})", "", printable(&reason.to_string()));
    }
}

fn symbols_text(rva: &str, found: &Resolution<'_>, out: &mut String) {
    for (n, frame) in found.frames().enumerate() {
        let address = if n == 0 { rva } else { "" };
        let _ = write!(out, "{address:<12}{}", printable(frame.function));
        if !frame.inline {
            let _ = write!(out, "+{:#x}", found.displacement);
        }
        match (frame.file.map(printable), frame.line) {
            (Some(file), Some(line)) => drop(write!(out, " [{file}:{line}]")),
            (Some(file), None) => drop(write!(out, " [{file}]")),
            _ => {}
        }
        out.push_str(if frame.inline { " (inlined)\n" } else { "\n" });
    }
    if found.aliases().len() != 0 {
        let aliases: Vec<_> = found.aliases().map(printable).collect();
        let _ = writeln!(out, "{:12}(the same code as {})", "", aliases.join(", "));
    }
}

/// How far an index of a PDB agrees with its records.
pub fn agreement_text(path: &Path, agreement: &Agreement) -> String {
    let mut text = format!(
        "{}: {} of {} addresses as the records say ({} in procedures, {} with inlined functions, {} with a line, {} in folded code)\n",
        printable(&path.display().to_string()),
        count(agreement.rvas - agreement.wrong()),
        count(agreement.rvas),
        count(agreement.in_procedures),
        count(agreement.inlined),
        count(agreement.with_line),
        count(agreement.folded),
    );
    let wrong = [
        (agreement.wrong_names, "another function"),
        (agreement.wrong_chains, "other inlined functions"),
        (agreement.wrong_lines, "another file or line"),
        (agreement.wrong_aliases, "other names of folded code"),
    ];
    for (number, what) in wrong.into_iter().filter(|(number, _)| *number > 0) {
        let _ = writeln!(text, "    {} have {what}", count(number));
    }
    for example in &agreement.examples {
        let _ = writeln!(text, "    {}", printable(&example.to_string()));
    }
    text
}
