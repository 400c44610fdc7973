//! `stk schema`: what the JSON of stk and inject looks like.

use super::{Exit, Out, Usage};
use serde::Deserialize;
use std::fmt::Write as _;

/// Prints a JSON schema (draft 07). Without NAME, lists the names.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk schema
  stk schema stats > stats.schema.json")]
pub(super) struct SchemaArgs {
    /// The schema, as the list names it
    #[arg(value_name = "NAME")]
    name: Option<String>,
}

/// The files of the folder `schema`, by their names.
macro_rules! schemas {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../schema/", $name, ".schema.json")))),+]
    };
}

const SCHEMAS: &[(&str, &str)] = schemas![
    "annotate",
    "diff",
    "doctor",
    "dump",
    "events",
    "info",
    "ps",
    "stats",
    "status",
    "symbols-at",
    "symbols-check",
    "symbols-list",
    "symbols-lookup",
    "verify",
    "walks",
];

/// What the list says of a schema.
#[derive(Deserialize)]
struct Title {
    title: String,
}

/// Runs the command.
pub(super) fn run(args: &SchemaArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.name {
        None => out(&list()?)?,
        Some(name) => {
            let known = SCHEMAS.iter().find(|(known, _)| known == name);
            let (_, text) =
                known.ok_or_else(|| Usage(format!("no schema is named `{name}`: stk schema lists them")))?;
            out(text)?;
        }
    }
    Ok(Exit::Ok)
}

fn list() -> serde_json::Result<String> {
    let columns = SCHEMAS.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut lines = String::new();
    for (name, text) in SCHEMAS {
        let Title { title } = serde_json::from_str(text)?;
        let _ = writeln!(lines, "{name:columns$}  {title}");
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_schema_of_the_repository_is_listed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schema");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> =
            files.filter_map(|file| file.to_str()?.strip_suffix(".schema.json").map(str::to_owned)).collect();
        names.sort();
        assert_eq!(SCHEMAS.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
    }
}
