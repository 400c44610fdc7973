//! Writes the result where the command line says.

use super::DiffArgs;
use crate::commands::replace::replaces_own;
use crate::commands::{Out, Usage, note, size, terminal_columns};
use crate::diff::{Diff, DiffFormat, flame_graph, junit, markdown, table};
use std::path::Path;
use stk_base::files::MayReplace::NoTrace;
use stk_output::formats::Sink;

/// The outputs of a command line.
pub(super) struct Outputs<'a> {
    /// `None`: a flame graph alone.
    format: Option<DiffFormat>,
    /// `None`: standard output.
    file: Option<&'a Path>,
    flame_graphs: Vec<&'a Path>,
}

impl<'a> Outputs<'a> {
    /// # Errors
    ///
    /// A usage error if no name gives the format, or that a file is there already.
    pub(super) fn of(args: &'a DiffArgs) -> anyhow::Result<Outputs<'a>> {
        let file = args.output.as_deref().filter(|path| *path != Path::new("-"));
        let mut flame_graphs: Vec<&Path> = args.flamegraph.as_deref().into_iter().collect();
        let by_name =
            file.map(|path| (path, path.extension().unwrap_or_default().to_string_lossy().to_lowercase()));
        let format = match (args.format, by_name) {
            (Some(format), _) => Some(format),
            (None, None) => Some(DiffFormat::Table),
            (None, Some((path, name))) => match name.as_str() {
                "txt" => Some(DiffFormat::Table),
                "json" => Some(DiffFormat::Json),
                "md" => Some(DiffFormat::Markdown),
                "xml" => Some(DiffFormat::Junit),
                "svg" => {
                    flame_graphs.push(path);
                    None
                }
                _ => {
                    let text = format!("{}: the name has no known format: give --format", path.display());
                    return Err(Usage(text).into());
                }
            },
        };
        for path in file.iter().chain(&flame_graphs) {
            replaces_own((path, NoTrace), args.force, "", |_| false)?;
        }
        Ok(Outputs { format, file, flame_graphs })
    }

    pub(super) fn has_flame_graph(&self) -> bool {
        !self.flame_graphs.is_empty()
    }

    /// # Errors
    ///
    /// That an output cannot be written.
    pub(super) fn write(&self, diff: &Diff, out: Out<'_>) -> anyhow::Result<()> {
        for path in &self.flame_graphs {
            write(path, &flame_graph(diff)?)?;
        }
        let columns = if self.file.is_some() { None } else { terminal_columns() };
        let text = match self.format {
            None => return Ok(out(&table(diff, terminal_columns()))?),
            Some(DiffFormat::Table) => table(diff, columns),
            Some(DiffFormat::Json) => serde_json::to_string_pretty(diff)? + "\n",
            Some(DiffFormat::Markdown) => markdown(diff),
            Some(DiffFormat::Junit) => junit(diff),
        };
        match self.file {
            Some(path) => write(path, text.as_bytes()),
            None => Ok(out(&text)?),
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut sink = Sink::file(path)?;
    sink.put(bytes);
    sink.finish()?;
    note(&format!("wrote {} ({})", path.display(), size(bytes.len() as u64)));
    Ok(())
}
