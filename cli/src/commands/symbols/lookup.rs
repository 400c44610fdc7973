//! `stk symbols lookup` and `check`: one image, one PDB.

use super::super::{Exit, Usage, print};
use crate::map::MappedFile;
use crate::symbols::pdb::PdbFile;
use crate::symbols::{
    Demangle, Identity, ImageFile, ModuleKey, ModuleSymbols, Resolved, Source, SymbolOptions, Symbolizer,
};
use anyhow::Context;
use serde_json::json;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use stk_schema::Arch;
use stk_schema::identity::CodeView;
use stk_schema::text::printable_lines;

/// Names addresses, looked up as given (of a caller's frame, give the return address − 1).
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols lookup app.exe 1a2b0 -y C:\\build
  stk symbols lookup app.pdb - --json < rvas.txt

JSON lines: {\"rva\":\"0x…\",\"frames\":[{\"function\":…,\"file\":…,\"line\":…,\"inline\":bool,\"raw\":\"the record's own name\"}],
\"source\":\"pdb|dwarf|export|none\",\"reason\":…}, innermost frame first; \"aliases\" names functions that were folded into the outermost")]
pub(super) struct LookupArgs {
    /// An image, whose PDB is looked for, or a PDB
    #[arg(value_name = "IMAGE_OR_PDB")]
    file: PathBuf,
    /// RVAs in hexadecimal; `-` reads them from standard input, one a line
    #[arg(value_name = "RVA")]
    rvas: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// How much of a mangled name to show
    #[arg(long, value_enum, default_value_t, value_name = "STYLE")]
    demangle: Demangle,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Compares the CodeView record of an image with the identity of a PDB. Exit code 1 if they do not belong together.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols check app.exe app.pdb
  stk symbols check app.exe app.pdb --json")]
pub(super) struct CheckArgs {
    /// The image
    image: PathBuf,
    /// The PDB
    pdb: PathBuf,
    /// Print JSON: {"match": bool, "image": …, "wants": identity or null, "wants_name": …, "pdb": …, "has": identity}
    #[arg(long)]
    json: bool,
}

pub(super) fn check(args: &CheckArgs) -> anyhow::Result<Exit> {
    let (image_name, pdb_name) = (args.image.display(), args.pdb.display());
    let image = open(&args.image)?;
    let image = ImageFile::parse(&image).map_err(|error| anyhow::anyhow!("{image_name}: {error}"))?;
    let file = open(&args.pdb)?;
    let found = *PdbFile::open(&file).with_context(|| pdb_name.to_string())?.identity();
    let has = Identity::Pdb { guid: found.guid, age: found.age };
    let wants = image.code_view.as_ref().map(|&(guid, age, _)| Identity::Pdb { guid, age });
    let name = image.code_view.as_ref().map(|(_, _, name)| String::from_utf8_lossy(name).into_owned());
    let matches = image.code_view.as_ref().is_some_and(|(guid, age, _)| found.matches(guid, *age));
    let text = if args.json {
        let line = json!({
            "match": matches, "image": image_name.to_string(), "wants": wants.map(|id| id.to_string()),
            "wants_name": name, "pdb": pdb_name.to_string(), "has": has.to_string(),
        });
        format!("{line}\n")
    } else {
        match wants.zip(name) {
            None => format!("{image_name} names no PDB (it has no CodeView record)\n"),
            Some((wants, _)) if matches => format!("{pdb_name} belongs to {image_name} ({wants})\n"),
            Some((wants, name)) => {
                format!("{pdb_name} ({has}) does not belong to {image_name}, which wants {name} ({wants})\n")
            }
        }
    };
    print(&printable_lines(&text))?;
    Ok(if matches { Exit::Ok } else { Exit::Failure })
}

pub(super) fn lookup(args: &LookupArgs) -> anyhow::Result<Exit> {
    let rvas = read_rvas(&args.rvas)?;
    let file = open(&args.file)?;
    let symbolizer = Symbolizer::new(args.symbols.store([args.file.as_path()]), args.demangle);
    let resolved = resolve(&symbolizer, &args.file, &file, &rvas)?;
    let shown = |out: &str| if args.json { out.to_owned() } else { printable_lines(out) };
    let mut out = String::new();
    for (n, &rva) in rvas.iter().enumerate() {
        if let Some(found) = resolved.get(n) {
            if args.json { json_line(rva, &found, &mut out) } else { text(rva, &found, &mut out) }
        }
        if out.len() > 1 << 20 {
            print(&shown(&out))?;
            out.clear();
        }
    }
    print(&shown(&out))?;
    Ok(Exit::Ok)
}

fn resolve(
    symbolizer: &Symbolizer,
    path: &Path,
    file: &MappedFile,
    rvas: &[u32],
) -> anyhow::Result<ModuleSymbols> {
    let shown = path.display().to_string();
    if file.starts_with(b"MZ") {
        let image = ImageFile::parse(file).map_err(|error| anyhow::anyhow!("{shown}: {error}"))?;
        let code_view = image.code_view.as_ref();
        let module = ModuleKey {
            path: &shown,
            code_view: code_view.map(|(guid, age, name)| CodeView { guid: *guid, age: *age, pdb_name: name }),
            time_date_stamp: image.time_date_stamp,
            size_of_image: image.size_of_image,
            exports: Some(&image.exports),
            arch: image.arch.unwrap_or(Arch::X64),
        };
        return Ok(symbolizer.resolve(&module, rvas));
    }
    let identity = *PdbFile::open(file).with_context(|| shown.clone())?.identity();
    let module = ModuleKey {
        path: &shown,
        code_view: None,
        time_date_stamp: 0,
        size_of_image: 0,
        exports: None,
        arch: if identity.machine == object::pe::IMAGE_FILE_MACHINE_I386 { Arch::X86 } else { Arch::X64 },
    };
    let index = symbolizer.pdb_index(path, file, true).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    if let Ok(resolved) = symbolizer.resolve_in(&module, rvas, path, &index) {
        return Ok(resolved);
    }
    // The cached index is damaged inside.
    let index = symbolizer.pdb_index(path, file, false).map_err(|reason| anyhow::anyhow!("{reason}"))?;
    symbolizer.resolve_in(&module, rvas, path, &index).with_context(|| shown.clone())
}

fn read_rvas(arguments: &[String]) -> anyhow::Result<Vec<u32>> {
    let mut rvas = Vec::new();
    let mut parse = |text: &str| -> anyhow::Result<()> {
        let text = text.trim();
        let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
        if digits.is_empty() {
            return Ok(());
        }
        let rva = u32::from_str_radix(digits, 16)
            .map_err(|_| Usage(format!("{text:?} is no RVA: give up to 8 hexadecimal digits")))?;
        rvas.push(rva);
        Ok(())
    };
    for argument in arguments {
        if argument == "-" {
            // A line holds one address: a longer one is not read to its end.
            let mut input = std::io::stdin().lock();
            let mut line = String::new();
            while input.by_ref().take(64).read_line(&mut line).context("standard input")? != 0 {
                parse(&line)?;
                line.clear();
            }
        } else {
            parse(argument)?;
        }
    }
    Ok(rvas)
}

fn json_line(rva: u32, found: &Resolved<'_>, out: &mut String) {
    let frames: Vec<serde_json::Value> = found
        .frames()
        .filter(|_| found.source != Source::None)
        .map(|frame| {
            json!({
                "function": frame.function, "file": frame.file, "line": frame.line, "inline": frame.inline,
                "raw": frame.raw,
            })
        })
        .collect();
    let source = match found.source {
        Source::Pdb => "pdb",
        Source::Dwarf => "dwarf",
        Source::Export => "export",
        Source::None => "none",
    };
    let reason = found.reason.map(ToString::to_string);
    let mut line =
        json!({ "rva": format!("{rva:#x}"), "frames": frames, "source": source, "reason": reason });
    if found.aliases().len() != 0 {
        line["aliases"] = found.aliases().collect();
    }
    out.push_str(&line.to_string());
    out.push('\n');
}

fn text(rva: u32, found: &Resolved<'_>, out: &mut String) {
    use std::fmt::Write as _;
    for (n, frame) in found.frames().enumerate() {
        let address = if n == 0 { format!("{rva:#x}") } else { String::new() };
        let _ = write!(out, "{address:<12}{}", frame.function);
        if !frame.inline && found.source != Source::None && found.source != Source::Export {
            let _ = write!(out, "+{:#x}", found.displacement);
        }
        match (frame.file, frame.line) {
            (Some(file), Some(line)) => drop(write!(out, " [{file}:{line}]")),
            (Some(file), None) => drop(write!(out, " [{file}]")),
            _ => {}
        }
        out.push_str(if frame.inline { " (inlined)\n" } else { "\n" });
    }
    if found.aliases().len() != 0 {
        let aliases: Vec<&str> = found.aliases().collect();
        let _ = writeln!(out, "{:12}(the same code as {})", "", aliases.join(", "));
    }
    if let Some(reason) = found.reason {
        let _ = writeln!(out, "{:12}({reason})", "");
    }
}

fn open(path: &Path) -> anyhow::Result<MappedFile> {
    MappedFile::open(path).with_context(|| path.display().to_string())
}
